"""``gpuplanner start``: files of a cluster in any order, and a decision; where there is none, what would help."""

from __future__ import annotations

import gzip
import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
import typer

from gpuplanner.cli.start_dialog import StartPrompt
from gpuplanner.cli.start_notebook_and_compile_commands import _complete_scenario, _describe_linked_files
from gpuplanner.core.errors import TraceFormatError
from gpuplanner.core.output_manifests_and_overwrite_checks import MANIFEST
from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.comparison_record import load_comparison
from gpuplanner.decision.decision_types import ACTIONS
from gpuplanner.hardware.catalog import export_command
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.notebook.cluster import make_scenario
from tests.usage.test_fleet import made, nodes

FIRST = datetime(2026, 1, 5, tzinfo=UTC)
HEADER = "JobID|User|Account|Partition|State|Submit|Start|End|NNodes|NodeList|ReqTRES|AllocTRES"


def accounting(place: Path, *, days: int = 21, offset: str = "", gres: str = "gres/gpu:a100=4") -> Path:
    """Twelve jobs a day, one after another, on one of four nodes of four GPUs."""
    lines = [HEADER]
    for number in range(12 * days):
        begin = FIRST + timedelta(hours=2 * number)
        told = [f"{one:%Y-%m-%dT%H:%M:%S}{offset}" for one in (begin, begin, begin + timedelta(hours=1))]
        tres = f"cpu=1,{gres},node=1"
        lines.append("|".join([str(number), "ann", "vision", "gpu", "COMPLETED", *told, "1", "n1", tres, tres]))
    file = place / "sacct.txt"
    file.write_text("\n".join(lines) + "\n")
    return file


def node_list(place: Path, boards: tuple[str, ...] = ("a100",) * 4) -> Path:
    file = place / "scontrol.txt"
    rows = [f"NodeName=n{number} Gres=gpu:{gpu_model}:4 State=IDLE" for number, gpu_model in enumerate(boards, start=1)]
    file.write_text("\n\n".join(rows) + "\n")
    return file


def pods(place: Path, gpus: str = "nvidia.com/gpu", days: int = 8) -> Path:
    items = []
    for number in range(12 * days):
        begin = FIRST + timedelta(hours=2 * number)
        told = [f"{begin + timedelta(hours=hours):%Y-%m-%dT%H:%M:%SZ}" for hours in (0, 1)]
        box = {"name": "main", "resources": {"limits": {gpus: "2"}}}
        ended = {"terminated": {"startedAt": told[0], "finishedAt": told[1], "exitCode": 0}}
        items.append({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": f"p{number}", "namespace": "ads", "creationTimestamp": told[0]},
            "spec": {"nodeName": "n1", "containers": [box]},
            "status": {"phase": "Succeeded", "startTime": told[0],
                       "containerStatuses": [{"name": "main", "state": ended}]},
        })  # fmt: skip
    file = place / "pods.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return file


def kube_nodes(place: Path) -> Path:
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "4"}
    items = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{number}", "labels": labels},
         "status": {"capacity": {"nvidia.com/gpu": "4"}, "allocatable": {"nvidia.com/gpu": "4"}}}
        for number in (1, 2)
    ]  # fmt: skip
    file = place / "nodes.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return file


def decided(command, *arguments: object) -> dict:
    code, out, err = command("start", *map(str, arguments), "--json", "--no-page")
    assert code == 0, err
    return json.loads(out)


def test_jobs_and_nodes_of_slurm_in_any_order_end_in_one_decision(command, tmp_path):
    files = [node_list(tmp_path), accounting(tmp_path)]
    found = decided(command, *files, "-o", tmp_path / "out", "--yes")
    one = found["decision"]
    # One node of four is ever used: three of sixteen GPUs' nodes can rest.
    assert (one["action"], one["fleet_gpus"], one["gpus"], one["actuator"]) == ("release", 16, 4, "slurm")
    assert sum(part["gpus"] for part in one["layouts"]) == one["gpus"]
    assert one["financial_impact"]["ownership"] == "owned"
    assert {measure["action"] for measure in one["measures"]} <= set(ACTIONS)
    assert found["page"] is None


def test_the_folder_begins_again_where_it_ended(command, tmp_path):
    out = tmp_path / "out"
    first = decided(command, accounting(tmp_path), node_list(tmp_path), "-o", out, "--set", "max_added_wait_minutes=14")
    own = Scenario.from_yaml(out / "scenario.yaml")
    assert (Path(own.data).resolve(), own.actuator, own.max_added_wait_minutes) == (
        (out / "data").resolve(),
        "slurm",
        14,
    )
    for again in (out / "data", out / "scenario.yaml", out):
        assert decided(command, again, "-o", out)["decision"] == first["decision"]


def test_the_actuator_names_who_stated_it(command, tmp_path):
    out = tmp_path / "out"
    dumps = (str(accounting(tmp_path)), str(node_list(tmp_path)))
    runs = {"usual for slurm": dumps, "from scenario.yaml": (str(out),), "as stated": (str(out), "--actuator", "slurm")}
    for basis, arguments in runs.items():
        code, printed, err = command("start", *arguments, "-o", str(out), "--yes", "--no-page")
        assert code == 0, err
        (line,) = (line for line in (printed + err).splitlines() if line.startswith("Actuator"))
        assert basis in line


DRA_DUMPS = Path(__file__).parents[1] / "ingest" / "cluster_dumps" / "kubernetes"


def with_pods_again(dump: Path, place: Path, copies: int) -> Path:
    """A dump with copies of its pods that request GPUs from the device plugin."""
    content = json.loads(dump.read_text())
    by_plugin = [
        item
        for item in content["items"]
        if item["kind"] == "Pod" and "extendedResourceClaimStatus" not in item["status"]
    ]
    for number in range(copies):
        for item in by_plugin:
            names = {name: f"{item['metadata'][name]}-{number}" for name in ("name", "uid")}
            content["items"].append(item | {"metadata": item["metadata"] | names})
    file = place / "dump.json"
    file.write_text(json.dumps(content))
    return file


@pytest.mark.parametrize(
    ("dump", "plugin_copies", "actuator", "basis"),
    [
        ("21-dra-dynmig/dump.json.gz", 0, "dra", "40 pods with ResourceClaims (DRA) (--actuator)"),
        ("21-dra-dynmig/ownclass.json.gz", 0, "dra", "40 pods with ResourceClaims (DRA) (--actuator)"),
        ("27-dra-extended-resource/mixed.json", 0, "dra", "2 pods with ResourceClaims (DRA), 1 with device-plugin"),
        ("27-dra-extended-resource/mixed.json", 2, "mig-manager", "(DRA), 3 with device-plugin requests (--actuator)"),
        ("07-amd-dra/dump.json.gz", 0, "mig-manager", "usual for kubernetes"),
    ],
)
def test_the_actuator_follows_how_most_pods_request_gpus(command, tmp_path, dump, plugin_copies, actuator, basis):
    file = DRA_DUMPS / dump
    file = with_pods_again(file, tmp_path, plugin_copies) if plugin_copies else file
    out = tmp_path / "out"
    code, printed, err = command("start", str(file), "-o", str(out), "--yes", "--no-page")
    assert code == 0, err
    (line,) = (line for line in (printed + err).splitlines() if line.startswith("Actuator"))
    assert (line.split()[1], basis in line) == (actuator, True), line
    alone = (out / "data").rename(tmp_path / "alone")
    assert make_scenario(str(alone), {}).actuator == actuator
    _, printed, err = command("start", str(alone), "-o", str(tmp_path / "again"), "--yes", "--no-page")
    again = (printed + err).splitlines()
    assert line in again
    assert any(text.startswith("Ownership  owned") for text in again)  # no scenario file states it


def test_export_opens_what_was_decided(command, tmp_path, monkeypatch):
    out = tmp_path / "out"
    decided(command, accounting(tmp_path), node_list(tmp_path), "-o", out)
    monkeypatch.setattr("gpuplanner.decision.comparison_record.decide", None)
    load_comparison.forget()
    wanted = contents(out / "export")
    assert wanted
    for number, again in enumerate((out, out / "scenario.yaml", out / "data")):
        monkeypatch.chdir(out.parent)
        folder = tmp_path / f"export{number}"
        code, _, err = command("export", os.path.relpath(again), "-o", str(folder))
        assert code == 0, err
        assert contents(folder) == wanted


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def test_pods_and_nodes_of_kubernetes_are_parts_of_one_dump(command, tmp_path):
    files = [kube_nodes(tmp_path), pods(tmp_path)]
    one = decided(command, *files, "-o", tmp_path / "out")["decision"]
    assert (one["fleet_gpus"], one["gpu_model"], one["actuator"]) == (8, "H100-80GB-SXM5", "mig-manager")
    assert {name for part in one["layouts"] for name in part["nodes"]} <= {"n1", "n2"}


LABELS = ("Read", "Time zone", "Actuator", "Ownership", "Today", "Policies")


def test_what_was_taken_is_said_with_the_option_that_changes_it(command, tmp_path):
    code, out, err = command(
        "start", str(accounting(tmp_path)), str(node_list(tmp_path)), "-o", str(tmp_path / "out"), "--no-page"
    )
    assert code == 0
    order = [label for line in err.splitlines() if (label := line[:11].strip()) and line[10:11] == " "]
    order = [label for label in order if label in LABELS]
    assert order == list(LABELS)
    for option in ("(--tz)", "(--actuator)", "(--set ownership=…)"):
        assert option in err
    assert out.index("Release 12 of 16") < out.index("GPUs needed") < out.index("Next steps") < out.index("Report")
    assert "252 jobs" in err


def test_zones_come_from_offsets_from_the_option_or_are_asked_for(command, tmp_path):
    zoned = accounting(tmp_path, offset="+01:00")
    decided(command, zoned, "-o", tmp_path / "a")
    assert Scenario.from_yaml(tmp_path / "a" / "scenario.yaml").tz == "Etc/GMT-1"
    naive = accounting(tmp_path)
    decided(command, naive, "-o", tmp_path / "b", "--tz", "Europe/Oslo")
    assert Scenario.from_yaml(tmp_path / "b" / "scenario.yaml").tz == "Europe/Oslo"
    decided(command, naive, "-o", tmp_path / "c", "--yes")
    assert Scenario.from_yaml(tmp_path / "c" / "scenario.yaml").tz == "UTC"
    # A stated setting is not replaced by that of the data.
    decided(command, tmp_path / "c" / "data", "-o", tmp_path / "d", "--set", "tz=America/Lima")
    assert Scenario.from_yaml(tmp_path / "d" / "scenario.yaml").tz == "America/Lima"
    spans = [
        json.loads((tmp_path / name / "data" / "provenance.json").read_text())["sources"][0]["span_start"]
        for name in "bc"
    ]
    assert spans == ["2026-01-04T23:00:00Z", "2026-01-05T00:00:00Z"]


def test_three_questions_at_most_and_a_wrong_answer_is_asked_again(command, tmp_path, monkeypatch):
    answers = iter(["Europe/Olso", "Europe/Oslo", "A100-40GB", "rented"])
    asked = []

    def prompt(text, **_):
        asked.append(text)
        return next(answers)

    monkeypatch.setattr(typer, "prompt", prompt)
    monkeypatch.setattr(StartPrompt, "for_terminal", classmethod(lambda cls, **_: cls(interactive=True, verbose=True)))
    file = accounting(tmp_path, gres="gres/gpu=4")
    code, _, _ = command("start", str(file), "-o", str(tmp_path / "out"), "--no-page")
    assert code == 0
    own = Scenario.from_yaml(tmp_path / "out" / "scenario.yaml")
    assert (own.tz, own.gpu_model, own.ownership) == ("Europe/Oslo", "A100-40GB", "rented")
    assert [text.split()[0] for text in asked] == ["Time", "Time", "GPU", "Ownership"]


def test_the_largest_of_two_boards_is_planned_and_said(command, tmp_path):
    boards = ("a100", "a100", "a100", "v100")
    files = [str(accounting(tmp_path)), str(node_list(tmp_path, boards))]
    code, out, err = command("start", *files, "-o", str(tmp_path / "out"), "--no-page")
    assert code == 0
    assert "of 12" in out
    assert "Of 16 GPUs, the plan is for the 12" in err


@pytest.mark.parametrize(
    ("header", "row", "reason"),
    [
        (HEADER, "1|a|x|cpu|COMPLETED|{0}|{0}|{1}|1|n1|cpu=2,node=1|cpu=2,node=1", "no job requested a GPU"),
        (HEADER, "1|a|x|gpu|PENDING|{0}|Unknown|Unknown|1|None assigned|cpu=2,gres/gpu=1|",
         "no job states when it ran"),
        (HEADER.replace("|Start", ""), "1|a|x|gpu|COMPLETED|{0}|{1}|1|n1|cpu=2,gres/gpu=1|cpu=2,gres/gpu=1",
         "no job states when it ran"),
    ],
)  # fmt: skip
def test_unknown_names_the_command_that_helps(command, tmp_path, header, row, reason):
    file = tmp_path / "sacct.txt"
    rows = [
        row.format("2026-01-05T00:00:00", "2026-01-05T05:00:00"),
        row.format("2026-01-05T01:00:00", "2026-01-05T06:00:00"),
    ]
    file.write_text("\n".join([header, rows[0], rows[1].replace("1|a", "2|a", 1)]) + "\n")
    one = decided(command, file, "-o", tmp_path / "out", "--yes")["decision"]
    assert one["action"] == "none"
    assert reason in one["sentence"]
    assert one["missing"][0]["command"] == f"{export_command('sacct')} && gpuplanner start jobs.txt"


def test_accounting_without_times_ends_with_the_columns_and_the_command(command, tmp_path):
    file = tmp_path / "sacct.txt"
    file.write_text("JobID|User|Account|Partition|State|AllocTRES\n1|a|x|gpu|COMPLETED|cpu=2,gres/gpu=1\n")
    code, out, err = command("start", str(file), "-o", str(tmp_path / "out"), "--no-page", "--yes")
    assert (code, out) == (3, "")
    assert "expected columns 'Submit' or 'Eligible' or 'Start'" in err
    assert export_command("sacct") in err


DUMPS = Path(__file__).parents[1] / "ingest" / "cluster_dumps" / "kubernetes"


@pytest.mark.parametrize(
    ("case", "reason", "what", "count"),
    [
        ("12-gaudi-mixed/only.json", "no job requested a GPU", "habana.ai/gaudi is not read", 20),
        (
            "08-bottlerocket-shared/dump.json",
            "100 % of GPU-hours could not be resolved",
            "br-1: nvidia.com/gpu.shared",
            40,
        ),
    ],
)
def test_warnings_stand_on_the_terminal_and_in_json(command, tmp_path, case, reason, what, count):
    file = tmp_path / "dump.json"
    file.write_bytes(gzip.decompress((DUMPS / f"{case}.gz").read_bytes()))
    found = decided(command, file, "-o", tmp_path / "out", "--yes")
    assert found["decision"]["action"] == "none"
    assert reason in found["decision"]["sentence"]
    [warning] = [one for one in found["warnings"] if what in one["what"]]
    assert set(warning) == {"what", "count", "gpu_hours"}
    assert warning["count"] == count
    code, out, err = command("start", str(file), "-o", str(tmp_path / "out"), "--yes", "--no-page")
    assert code == 0, err
    assert f"{count}" in out
    assert what in out


def test_a_path_that_the_source_cannot_have_is_refused_with_the_cause(command, tmp_path):
    code, out, err = command("start", str(pods(tmp_path)), "--actuator", "slurm", "-o", str(tmp_path / "out"))
    assert (code, out) == (3, "")
    assert "jobs of Kubernetes (kubernetes), and slurm is a part of Slurm" in err
    code, _, err = command("start", str(accounting(tmp_path)), "--actuator", "dra", "-o", str(tmp_path / "b"), "--yes")
    assert code == 3
    assert "expected an actuator that Slurm has: mig-parted, nvidia-smi, slurm" in err


def readings(folder):
    """What nvidia-smi --query-gpu prints."""
    path = folder / "query.csv"
    names = "timestamp, index, uuid, name, utilization.gpu [%], memory.used [MiB], memory.total [MiB]"
    rows = (
        f"2026/10/01 10:0{minute}:00.000, 0, GPU-1, NVIDIA H100 80GB HBM3, 55 %, 9 MiB, 81559 MiB" for minute in "012"
    )
    path.write_text("\n".join((names, *rows)) + "\n")
    return path


def test_files_that_cannot_be_used_are_refused_in_four_parts(command, tmp_path):
    empty, odd = tmp_path / "empty.txt", tmp_path / "odd.txt"
    empty.write_text("")
    odd.write_text("hello\n")
    cases = {
        "missing.txt": ("No such file", [tmp_path / "missing.txt"]),
        "empty.txt": ("an empty file", [empty]),
        "odd.txt": ("'hello'", [odd]),
        "a list of jobs": ("inventory in 'scontrol.txt'", [node_list(tmp_path)]),
        "gpuplanner describe": ("readings of GPUs alone in 'query.csv'", [readings(tmp_path)]),
        "no other source of jobs": ("'kubernetes' is there", [pods(tmp_path), accounting(tmp_path)]),
    }
    for number, (named, (got, files)) in enumerate(cases.items()):
        code, out, err = command(
            "start", *map(str, files), "-o", str(tmp_path / f"out{number}"), "--yes", "--tz", "UTC"
        )
        assert (code, out) == (3, ""), named
        for part in (named, ": expected ", "; got ", got):
            assert part in err
        assert err.rstrip().endswith(".")


def test_a_folder_that_was_begun_is_one_that_a_report_may_fill():
    from gpuplanner.cli import start_dialog
    from gpuplanner.report import report_rendering

    assert start_dialog.START_REPORT_MARK.text == report_rendering.REPORT_FOLDER_MARK.text
    assert set(start_dialog.START_REPORT_MARK.names) <= set(report_rendering.REPORT_FOLDER_MARK.names)


@pytest.mark.parametrize("old", [1, "2g.10gb"])
def test_an_old_request_that_today_s_nodes_cannot_hold_is_not_compared(command, tmp_path, old):
    partitioned = nodes(("n1", "A100-40GB", 8)).with_columns(layouts=pl.lit(";".join(["1g.5gb:7"] * 8)))
    today = made([("A100-40GB", "1g.5gb", hour, 3) for hour in (8, 9) for _ in range(10)], partitioned)
    before = made([("A100-40GB", old, 5, 2)]).jobs.with_columns(job_id=pl.lit("old")).head(1)
    folder = write_dataset(today.with_tables(jobs=pl.concat([before, today.jobs])), tmp_path / "data")
    for _ in range(2):  # what was kept of the first run reads like it
        code, out, err = command("start", str(folder), "--yes", "--no-page", "-o", str(tmp_path / "out"))
        assert (code, "nan" in out, "None" in out) == (0, False, False), err
    decision = decided(command, folder)["decision"]
    assert decision["action"] == "none", "three days are too few"
    assert any(text.startswith("Excluded: 1 job ") for text in decision["confidence"])


def test_a_report_that_cannot_be_written_is_a_failure(command, tmp_path, monkeypatch):
    def fail(*_):
        raise TraceFormatError("notebook", "a report", "none", "Fix it.")

    monkeypatch.setattr("gpuplanner.cli.start_dialog.write_page", fail)
    out = tmp_path / "out"
    code, _, err = command(
        "start", str(accounting(tmp_path)), str(node_list(tmp_path)), "-o", str(out), "--yes", "--quiet"
    )
    assert code == 3
    assert "gpuplanner: no report: notebook" in err
    assert f"All other results are in {out}" in err
    assert (out / "export").is_dir()


@pytest.mark.parametrize(("word", "asked"), [("h100", True), ("A100-40GB", False), (None, True)])
def test_an_ambiguous_gpu_model_is_asked_for(monkeypatch, word, asked):
    questions = []

    def answer(text, **_):
        questions.append(text)
        return "H100-80GB-SXM5"

    monkeypatch.setattr(typer, "prompt", answer)
    summary = SimpleNamespace(gpu_models=(word,) if word else (), ownership="owned")
    scenario = _complete_scenario(Scenario(), summary, StartPrompt(interactive=True, verbose=False), set())
    assert scenario.gpu_model == ("H100-80GB-SXM5" if asked else None)
    assert bool(questions) == asked


@pytest.mark.parametrize(
    ("files", "text"),
    [
        (
            ["workbook.xlsx", "export/README.md", "report.ipynb"],
            "workbook, change bundle and notebook are linked there",
        ),
        (["export/README.md", "report.ipynb"], "change bundle and notebook are linked there"),
        (["export/README.md"], "change bundle is linked there"),
        ([], ""),
    ],
)
def test_the_end_of_start_names_the_files_that_were_written(tmp_path, files, text):
    (tmp_path / "export").mkdir()
    for file in files:
        (tmp_path / file).touch()
    assert _describe_linked_files(tmp_path).strip() == text


@pytest.mark.long
@pytest.mark.parametrize(("module", "extra"), [("highspy", "plan"), ("statsforecast.models", "forecast")])
def test_a_report_without_a_library_names_what_it_leaves_out(command, monkeypatch, tmp_path, module, extra):
    monkeypatch.setenv("GPUPLANNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, module, None)
    files = str(accounting(tmp_path)), str(node_list(tmp_path))
    code, _, err = command("start", *files, "--yes", "-o", str(tmp_path / "out"))
    assert code == 0, err
    page = "".join((tmp_path / "out" / name).read_text() for name in ("index.html", "appendix.html"))
    assert "No forecast and no plan was made" in page
    assert f"gpuplanner[{extra}]" in page
    assert not (tmp_path / "out/plan.json").exists()
