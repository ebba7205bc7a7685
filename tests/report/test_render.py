"""The report folder: whole or not at all, the same totals everywhere, nothing hostile in it."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from html.parser import HTMLParser

import nbformat
import polars as pl
import pytest

from gpuplanner.core.errors import GpuPlannerError
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.serialization import sha256
from gpuplanner.decision.comparison_record import Comparison
from gpuplanner.decision.study import open_study
from gpuplanner.decision.study_pipeline import evaluate
from gpuplanner.hardware.mig_layouts import parse_layout
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.report.export_verification import verify_file
from gpuplanner.report.metric_formulas import list_formulas, value_text
from gpuplanner.report.report_rendering import run_notebook, write_report
from gpuplanner.usage.planning_history import load_dataset
from tests.report.test_first_screen import Figures

pytestmark = pytest.mark.notebook


def test_folder_holds_everything_and_its_hashes(report):
    manifest = json.loads((report / "manifest.json").read_text())["files"]
    expected = {"index.html", "appendix.html", "message.txt", "summary.md", "study.json", "workbook.xlsx", "plan.json"}
    assert expected | {"export/README.md", "tables/README.md", "tables/ledger.parquet"} <= set(manifest)
    assert all(sha256(report / name) == told["sha256"] for name, told in manifest.items())
    assert (report / "index.html").stat().st_size <= 3_000_000
    assert (report / "appendix.html").stat().st_size <= 3_000_000


def test_the_files_with_every_value_of_a_chart_need_no_spreadsheet_library(report):
    pages = "".join((report / name).read_text() for name in ("index.html", "appendix.html"))
    files = [file for text in re.findall("; every value: ([^<]*)</summary>", pages) for file in text.split(", ")]
    assert len(files) >= 5
    assert all(file.endswith(".parquet") and (report / file).is_file() for file in files), files


def sheet(report, name: str) -> pl.DataFrame:
    return pl.read_excel(report / "workbook.xlsx", sheet_name=name, read_options={"header_row": None})


def numbers(frame: pl.DataFrame) -> set[float]:
    values = set()
    for column in frame.iter_columns():
        values |= set(column.cast(pl.Float64, strict=False).drop_nulls())
    return values


def test_page_workbook_and_json_have_the_same_totals(report):
    study = json.loads((report / "study.json").read_text())
    page = (report / "index.html").read_text()
    cost = Decimal(study["headline"]["cost"])
    assert sum(Decimal(row["EffectiveCost"]) for row in study["tables"]["costs"]) == cost
    assert f"{cost:,.2f}" in page
    costs = sheet(report, "Costs")
    assert float(cost) in numbers(sheet(report, "Totals"))
    for row in study["tables"]["costs"]:
        assert float(row["EffectiveCost"]) in numbers(costs)
    hours = study["headline"]["installed_gpu_hours"]
    assert f"{hours:,.0f}" in page
    assert any(abs(value - hours) < 1e-6 for value in numbers(sheet(report, "Installed GPU-hours by bucket")))
    allocated = study["headline"]["allocated_gpu_hours"]
    assert f"{allocated:,.0f}" in page
    assert any(abs(value - allocated) < 1e-5 for value in numbers(sheet(report, "Allocated GPU-hours by team")))


def shown(path, scenario):
    """What the cells of a notebook show up to its decision, with a scenario's own parameters."""
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"][:3]
    found: list[str] = []
    names = {"display": lambda one: found.append(one._repr_html_())}
    exec(cells[0], names)  # the project's own notebook
    names |= {"actuator": scenario.actuator, "policies": scenario.policies}
    for cell in cells[1:]:
        exec(cell, names)
    return found


def test_what_is_sent_says_what_the_page_says_and_is_linked_from_it(report):
    one = Comparison.from_dict(json.loads((report / "study.json").read_text())["comparison"]).decision
    page, message, markdown = ((report / name).read_text() for name in ("index.html", "message.txt", "summary.md"))
    assert len(message) <= 3000
    shown = {name: text for name, _, text in Figures(page).found}
    for text in (message, markdown.replace("\\", "")):
        assert shown["exhaustion.date"] in text if "exhaustion.date" in shown else "until capacity is exhausted" in text
        name = f"service.{one.service.index(one.most_improved_size)}"
        assert f"{shown[f'{name}.today_p95_minutes']} → {shown[f'{name}.recommended_p95_minutes']}" in text
        assert all(" ".join(step.what.split()) in " ".join(text.split()) for step in one.next_steps)
    held = pl.read_parquet(report / "tables" / "ledger_tenants.parquet")["allocated_gpu_hours"].sum()
    assert shown["all_allocated"] == f"{sum(row.allocated_gpu_hours for row in one.teams):,.0f}"
    assert held == pytest.approx(sum(row.allocated_gpu_hours for row in one.teams if row.team != "__unallocated__"))
    beside = re.findall(r'<a href="([^"#]*)">', page)
    assert {"workbook.xlsx", "appendix.html", "message.txt", "summary.md", "report.ipynb", "study.json"} <= set(beside)
    assert all((report / path).exists() for path in beside)


class Places(HTMLParser):
    """Text of each element with an id, and how many cutoffs are closed around it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text: dict[str, list[str]] = {}
        self.closed: dict[str, int] = {}
        self._open: list[tuple[str, str | None, bool]] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if tag in ("section", "details", "div", "dl", "footer"):
            known = dict(attrs)
            self._open.append((tag, known.get("id"), tag == "details" and "open" not in known))
            if known.get("id"):
                self.closed[known["id"]] = sum(closed for _, _, closed in self._open)
                self.text[known["id"]] = []
            elif tag == "details" and self._open[-2:-1] and self._open[-2][0] == "section":
                self.closed[self._open[-2][1]] += self._open[-1][2]

    def handle_endtag(self, tag):
        if self._open and self._open[-1][0] == tag:
            self._open.pop()

    def handle_data(self, data):
        for _, name, _ in self._open:
            if name:
                self.text[name].append(data)


def questions(root):
    lines = (root / "tests" / "report" / "page_answers.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return [row for row in rows if row[0] != "who"]


def test_every_question_has_its_answer_where_the_docs_say_within_two_clicks(report, root):
    study = open_study(report)
    asked = questions(root)
    assert {who: sum(row[0] == who for row in asked) for who, *_ in asked} == dict.fromkeys(
        ("planner", "director", "operator", "finance"), 3
    )
    for _, question, file, place, clicks, figure in asked:
        found = Places((report / file).read_text())
        assert place in found.text, question
        assert found.closed[place] + (file != "index.html") == int(clicks) <= 2, question
        text = " ".join("".join(found.text[place]).split())
        if figure == "next-steps":
            expected = [step.what for step in study.decision.next_steps]
        elif figure == "plan":
            expected = [f"{study.headline.plan_objective_gpu_hours:,.0f}"]
        else:
            value = next(one.value for one in list_formulas(study) if one.name == figure)
            expected = [value_text(value) if value is not None and figure != "wait" else "–"]
        assert all(" ".join(each.split()) in text for each in expected), (question, expected)


def test_page_notebook_and_json_show_the_same_decision(report):
    """Every figure of the first screen is that of study.json, on the page and in the notebook."""
    told = json.loads((report / "study.json").read_text())["decision"]
    told["saving"] = told.pop("saving_gpu_hours_per_week")
    page = (report / "index.html").read_text()
    notebook = nbformat.read(report / "report.ipynb", as_version=4)
    shown = [
        output.get("data", {}).get("text/html", "") for cell in notebook.cells for output in cell.get("outputs", [])
    ]
    figure = re.compile(r'<data data-of="([^"]+)" value="([^"]*)">([^<]*)</data>')
    first = figure.findall(page)
    assert {name for name, _, _ in first} >= {"gpus", "fleet_gpus", "delayed_share"}
    assert set(figure.findall("".join(shown))) <= set(first)
    for name, value, _ in first:
        if name.split(".")[0] in told:
            place = told
            for part in name.split("."):
                place = place[int(part)] if isinstance(place, list) else place[part]
            assert value == ("" if place is None else str(place)), name


def test_the_files_of_the_decision_hold_and_have_every_layout_of_it(report):
    decision = json.loads((report / "study.json").read_text())["decision"]
    assert (report / "export" / "README.md").read_text().startswith(f"# {decision['sentence']}\n")
    folder = report / "export" / decision["actuator"]
    [parted] = [path for path in folder.iterdir() if path.name in ("mig-parted.yaml", "configmap.yaml")]
    found = verify_file(parted, "H100-80GB-SXM5")
    assert found.ok, found.problems
    text = re.sub(r"\s", "", parted.read_text())
    for part in decision["layouts"]:
        devices = "".join(f'"{profile}":{count}' for profile, count in parse_layout(part["layout"]).items()
                          ) if part["layout"] != "full" else "mig-enabled:false"  # fmt: skip
        assert devices in text, part["layout"]
    assert sum(path.is_file() for path in (report / "export").rglob("*")) <= 40


@pytest.mark.long
def test_made_again_over_the_first_it_is_the_same_to_the_byte(report, quick, tmp_path):
    shutil.copytree(report, tmp_path / "again")
    write_report(quick, tmp_path / "again")
    first = json.loads((report / "manifest.json").read_text())
    assert json.loads((tmp_path / "again" / "manifest.json").read_text()) == first


def hostile_trace(folder) -> str:
    trace = load_dataset("sample")
    evil = {"search": '=HYPERLINK("http://x")', "vision": "<script>alert(1)</script>", "speech": "@SUM(1)"}
    lately = pl.col("submit_time") >= trace.jobs["submit_time"].max() - timedelta(weeks=3)
    jobs = trace.jobs.filter(lately & pl.col("tenant").is_in(list(evil))).with_columns(pl.col("tenant").replace(evil))
    write_dataset(
        Dataset({"jobs": jobs, "inventory": trace.inventory}, trace.rejects, trace.quality, trace.provenance),
        folder / "trace",
    )
    return str(folder / "trace")


@pytest.mark.long
def test_hostile_tenant_names_stay_text(tmp_path, quick):
    scenario = replace(quick, data=hostile_trace(tmp_path), replications=2, policies="fewer_nodes")
    write_report(scenario, tmp_path / "out")
    page = (tmp_path / "out" / "index.html").read_text()
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page
    tenants = sheet(tmp_path / "out", "Allocated GPU-hours by team")
    assert '=HYPERLINK("http://x")' in tenants.to_series(0).to_list()


def failing(tmp_path, source: str):
    cell = nbformat.v4.new_code_cell('scenario_path = ""', metadata={"tags": ["parameters"]})
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = nbformat.v4.new_notebook(cells=[cell, nbformat.v4.new_code_cell(source)], metadata=kernel)
    nbformat.write(notebook, tmp_path / "bad.ipynb")
    return tmp_path / "bad.ipynb"


def test_failing_notebook_leaves_the_old_report_and_is_kept(tmp_path, quick):
    out = tmp_path / "out"
    out.mkdir()
    (out / "manifest.json").write_text('{"format": "gpuplanner report 1"}')
    with pytest.raises(GpuPlannerError, match=r"bad.ipynb, cell \d: ValueError: no such month"):
        write_report(quick, out, notebook=failing(tmp_path, 'raise ValueError("no such month")'))
    assert [path.name for path in out.iterdir()] == ["manifest.json"]
    kept = nbformat.read(tmp_path / "out.failed.ipynb", as_version=4)
    assert "no such month" in str(kept.cells)
    assert sorted(tmp_path.glob("[!.]*")) == [tmp_path / n for n in ("bad.ipynb", "out", "out.failed.ipynb")]


def test_a_kernel_that_is_killed_is_said_and_nothing_is_lost(tmp_path, quick):
    killed = failing(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(GpuPlannerError, match=r"bad.ipynb: expected a kernel that answers.*Kernel died"):
        write_report(quick, tmp_path / "out", notebook=killed)
    assert not (tmp_path / "out").exists()


def test_notebook_that_shows_nothing_is_refused(tmp_path, quick):
    with pytest.raises(OSError, match="cells that show sections"):
        write_report(quick, tmp_path / "out", notebook=failing(tmp_path, "1 + 1"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        pytest.param("01_demand_and_phases", {}, marks=pytest.mark.long),
        pytest.param(
            "02_forecast", {"cutoffs": 6, "models": "Naive,SeasonalNaive,HourOfDay,RunOff"}, marks=pytest.mark.long
        ),
        ("03_static_vs_dynamic", {"policies": "mig_static,power_down_idle", "actuator": "slurm", "month": "2026-02"}),
        pytest.param("04_mig_layouts", {"horizon_intervals": 48, "work_limit": 30}, marks=pytest.mark.long),
        pytest.param("05_size_a_job", {}, marks=pytest.mark.long),
        pytest.param("06_cost_review", {}, marks=pytest.mark.long),
        pytest.param("07_twenty_jobs", {"jobs_2g": 9}, marks=pytest.mark.long),
    ],
)
def test_notebooks_run_headless(root, tmp_path, name, parameters):
    run_notebook(root / "notebooks" / f"{name}.ipynb", tmp_path / "out.ipynb", parameters)
    executed = nbformat.read(tmp_path / "out.ipynb", as_version=4)
    shown = [output for cell in executed.cells for output in cell.get("outputs", [])]
    assert any("image/svg+xml" in output.get("data", {}) for output in shown)
    assert not any(output.output_type == "error" for output in shown)


@pytest.mark.long
@pytest.mark.data
@pytest.mark.slow
def test_openb_numbers_equal_a_short_query(public_data, tmp_path):
    """What the report says of OpenB is what ten lines of polars say of the raw file."""
    from gpuplanner.ingest.source_registry import read

    pods = public_data / "alibaba_gpu_v2023" / "openb_pod_list_default.csv.gz"
    nodes = public_data / "alibaba_gpu_v2023" / "openb_node_list_gpu_node.csv"
    write_dataset(read("openb", pods, nodes=nodes), tmp_path / "openb")
    found = evaluate(Scenario(data=str(tmp_path / "openb"), replications=2, policies="fewer_nodes"), cache=False)
    raw = pl.read_csv(pods).with_columns(gpus=pl.col("num_gpu") * pl.col("gpu_milli") / 1000)
    small = raw.filter((pl.col("gpus") > 0) & (pl.col("gpus") <= 1))
    assert found.headline.small_jobs == small.height == 6989
    until = raw["deletion_time"].max()
    held_s = (pl.col("deletion_time") - pl.col("scheduled_time")) * pl.col("gpus")
    held = raw.drop_nulls("scheduled_time").select(held_s.sum()).item() / 3600
    assert found.headline.allocated_gpu_hours == pytest.approx(held, rel=1e-9)
    gpus = pl.read_csv(nodes)["gpu"].sum()
    assert found.headline.installed_gpu_hours == pytest.approx(gpus * until / 3600, rel=1e-9)


@pytest.mark.long
@pytest.mark.data
@pytest.mark.slow
def test_philly_numbers_equal_a_short_query(public_data, tmp_path):
    """October 2017 in Seattle: what was allocated, and by whom."""
    from gpuplanner.ingest.source_registry import read

    path = public_data / "philly" / "philly.csv.gz"
    write_dataset(read("philly", path, tz="America/Los_Angeles"), tmp_path / "philly")
    zone = "America/Los_Angeles"
    found = evaluate(
        Scenario(
            data=str(tmp_path / "philly"),
            month="2017-10",
            tz=zone,
            replications=2,
            horizon_intervals=24,
            policies="fewer_nodes",
        ),
        cache=False,
    )
    raw = pl.read_csv(path, columns=["timestamp", "duration", "num_gpus", "cluster"]).drop_nulls()
    local = pl.col("timestamp").str.to_datetime().dt.replace_time_zone(zone, ambiguous="earliest")
    start = local.dt.convert_time_zone("UTC").dt.epoch("s").cast(pl.Float64)
    october, november = 1_506_841_200, 1_509_519_600  # midnight in Seattle, UTC-7
    overlap = (start + pl.col("duration")).clip(october, november) - start.clip(october, november)
    held = raw.group_by("cluster").agg((overlap * pl.col("num_gpus")).sum() / 3600)
    assert found.headline.allocated_gpu_hours == pytest.approx(held["timestamp"].sum(), rel=1e-9)
    tenants = found.tables["ledger_tenants"]
    assert dict(tenants.select("tenant", "allocated_gpu_hours").iter_rows()) == pytest.approx(
        {name: hours for name, hours in held.iter_rows() if hours}, rel=1e-9
    )
    assert tenants["allocated_gpu_hours"].is_sorted(descending=True)
