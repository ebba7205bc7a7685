"""The report notebook run with papermill, and pages of several pools."""

from __future__ import annotations

import ast
import json
import logging
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl

from gpuplanner import report as plots
from gpuplanner.core.errors import (
    GpuPlannerError,
    GpuPlannerWarning,
    OutputError,
    ScenarioError,
    examples,
    first_error_line,
    nearest_names,
)
from gpuplanner.core.execution import import_optional
from gpuplanner.core.output_places import MANIFEST, FolderMark, remove_own_file
from gpuplanner.core.output_writing import replace_directory, write_atomically
from gpuplanner.core.scenario import FILE_PATH_FIELDS, Scenario
from gpuplanner.core.schemas import GPU_TIME_BUCKETS
from gpuplanner.core.serialization import to_json
from gpuplanner.core.stage_cache import notebook_folder
from gpuplanner.core.units import count_text, localize_text
from gpuplanner.decision.decision_types import Decision
from gpuplanner.decision.layout_planning import PlannedProblem
from gpuplanner.decision.policy_simulation import list_data_warnings
from gpuplanner.decision.pool_decisions import (
    ComparedFleet,
    FleetPlans,
    format_fleet_decision,
    make_decision_table,
    plan_fleet,
)
from gpuplanner.decision.study import TABLES_FOLDER, Study
from gpuplanner.decision.study_pipeline import check_options, evaluate
from gpuplanner.decision.team_fairness import Fairness
from gpuplanner.decision.track_record import (
    add_month,
    read_ledger,
    read_savings,
    savings_file,
    savings_json,
    savings_sheets,
    update_forecast_ledger,
)
from gpuplanner.planner.layout_plan import plan_to_json
from gpuplanner.planner.plan_variants import fleet_to_json
from gpuplanner.report import html_page as page
from gpuplanner.report.change_bundle import pack_into
from gpuplanner.report.cost_and_forecast_sections import forecast_record, savings_record
from gpuplanner.report.finance_exports import notes, write_study_workbook
from gpuplanner.report.first_screen import badges, fleet_words, warning_list
from gpuplanner.report.html_page import FRAGMENT, Section, paragraph, parted, render_page
from gpuplanner.report.monthly_sections import PDF, links, period
from gpuplanner.report.report_messages import browser, markdown_text, message_text, pdf_into, tables_into
from gpuplanner.usage.job_history import FleetPools, tabulate_pools
from gpuplanner.usage.period_accounts import scenario_ledger

CELL_TIMEOUT_S = 1800
NOTEBOOK = "monthly_report.ipynb"
NEEDED = {"papermill": "report", "xlsxwriter": "report", "vl_convert": "plot", "altair": "plot"}
"""Optional packages of a report and their extras, checked before the pipeline starts."""
PAGES = ("index.html", "appendix.html", "message.txt", "summary.md", "report.pdf")
FIGURES = (f"{TABLES_FOLDER}/*.parquet", "study.json", "workbook.xlsx", "plan.json", "scenario.yaml", "report.ipynb")
MARK = FolderMark(MANIFEST, "gpuplanner report 1", names=(*PAGES, *FIGURES))


def write_report(
    scenario: Scenario,
    out: str | Path,
    *,
    notebook: Path | None = None,
    inputs: Iterable[str | Path] = (),
    ledger: Path | None = None,
) -> Study:
    """Evaluate a scenario and write its report folder in one step.

    The folder gets ``index.html`` and ``appendix.html``, ``message.txt``, ``summary.md`` and, where a browser is,
    ``report.pdf``, ``study.json``, ``workbook.xlsx``, ``tables/``, ``plan.json``, ``scenario.yaml``, ``report.ipynb``
    (as executed), ``export/`` and ``manifest.json`` with the hash of each. If anything fails, what stood there stays;
    a failed notebook is kept beside it as ``<out>.failed.ipynb``. A `scenario_ledger` holds what earlier months
    forecast, and its neighbour, ``<ledger>.savings.json``, what they promised to save.
    """
    out = Path(out)
    check_options(scenario)
    told = None if ledger is None else read_ledger(ledger)
    saved = None if ledger is None else read_savings(savings_file(ledger))
    for name, extra in NEEDED.items():
        import_optional(name, extra=extra)
    with replace_directory(out, mark=MARK, inputs=inputs) as folder:
        study = evaluate(scenario)
        (folder / "scenario.yaml").write_text(_absolute(scenario).to_yaml(), encoding="utf-8")
        source = notebook or notebook_folder() / NOTEBOOK
        executed = folder / "report.ipynb"
        keep = out.with_suffix(".failed.ipynb")
        run_notebook(source, executed, {"scenario_path": str(folder / "scenario.yaml")}, keep=keep)
        told = None if told is None else update_forecast_ledger(told, study)
        body = page_body(executed)
        body += "" if told is None else forecast_record(told)
        saved = None if saved is None else add_month(saved, scenario, study.comparison)
        body += "" if saved is None else savings_record(saved)
        _written(folder, study, *parted(body))
        _strip(executed)
        (folder / "study.json").write_text(study.to_json(), encoding="utf-8")
        if study.plan is not None and study.problem is not None:
            (folder / "plan.json").write_text(plan_to_json(study.plan, study.problem), encoding="utf-8")
        (folder / "scenario.yaml").write_text(scenario.to_yaml(), encoding="utf-8")
        more = {} if saved is None else savings_sheets(saved)
        write_study_workbook(folder / "workbook.xlsx", study, more, links=links(study))
        pack_into(scenario, study.comparison, folder)
        _printed(folder)
    remove_own_file(out.with_suffix(".failed.ipynb"))
    if ledger is not None and told is not None:
        write_atomically(ledger, told.write_parquet, protect_foreign=False)
    if ledger is not None and saved is not None:
        text = savings_json(saved)
        write_atomically(
            savings_file(ledger), lambda place: place.write_text(text, encoding="utf-8"), protect_foreign=False
        )
    return study


def _written(folder: Path, study: Study, body: str, aside: str) -> None:
    """Write the page, its appendix, and what is sent: all from the one decision."""
    title, one, write = (f"GPU capacity report · {study.scenario.name}", study.decision, study.scenario.number_locale)
    more = '<p class="more"><a href="appendix.html">Appendix: demand forecast and planned layouts</a></p>'
    index = render_page(
        body + (more if aside else ""),
        title=title,
        subtitle=_subtitle(study),
        decision=one.sentence,
        badges=badges(one),
        provenance=notes(study),
        locale=write,
    )
    back = paragraph(
        "Appendix to index.html: the demand forecast with its errors and the planned layouts with their bounds."
    )
    texts = {
        "index.html": index,
        "appendix.html": render_page(
            back + aside, title=f"{title}, appendix", subtitle=_subtitle(study), provenance=notes(study),
            locale=write,
        ),
    }  # fmt: skip
    said = (study.comparison, title, period(study), links(study), study.provenance.doubts)
    texts |= {"message.txt": localize_text(message_text(*said), write)}
    texts |= {"summary.md": localize_text(markdown_text(*said), write)}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    tables_into(folder / TABLES_FOLDER, study.tables)


def _printed(folder: Path) -> None:
    """Print the page where a browser is; where it fails the page does without, and it is said."""
    program = browser()
    if program is None:
        return
    try:
        pdf_into(folder / "index.html", folder / PDF[1], program)
    except OutputError as error:
        warnings.warn(f"no PDF: {error}", GpuPlannerWarning, stacklevel=2)
        for name in ("index.html", "summary.md"):
            text = (folder / name).read_text(encoding="utf-8")
            text = text.replace(f'<a href="{PDF[1]}">{PDF[0]}</a> ', "").replace(f" · [{PDF[0]}]({PDF[1]})", "")
            (folder / name).write_text(text, encoding="utf-8")


def run_notebook(
    source: Path, target: Path, parameters: Mapping[str, str | float | bool | None], *, keep: Path | None = None
) -> None:
    """Execute a notebook with papermill; unknown parameters are refused, which papermill only logs."""
    papermill = import_optional("papermill", extra="report")
    exceptions = import_optional("nbclient.exceptions", extra="report")
    if not source.is_file():
        raise ScenarioError(str(source), "a notebook", "no such file", "Check the path.")
    with _quiet():
        known = _parameters(source)
        unknown = [name for name in parameters if name not in known]
        if unknown:
            near = [nearest_names(name, known)[:1] for name in unknown]
            expected = f"names of its parameters cell: {', '.join(known) or 'none'}"
            got = f"unknown {examples(unknown)} (nearest: {near})"
            todo = "Rename or remove them in the parameters cell."
            raise ScenarioError(f"{source.name}, parameters", expected, got, todo)
        try:
            papermill.execute_notebook(
                str(source),
                str(target),
                parameters=dict(parameters),
                kernel_name="python3",
                progress_bar=False,
                log_output=False,
                execution_timeout=CELL_TIMEOUT_S,
                extra_arguments=["--IPKernelApp.log_level=ERROR"],  # the client is on this very machine
            )
        except papermill.exceptions.PapermillExecutionError as error:
            left = _keep(target, keep)
            raise GpuPlannerError(
                f"{source.name}, cell {error.exec_count}: {error.ename}: {error.evalue}{left}"
            ) from None
        except (exceptions.DeadKernelError, exceptions.CellTimeoutError) as error:
            # The kernel was killed, or a cell took longer than any should: what it had done so far is kept.
            why = first_error_line(error)
            expected = f"a kernel that answers within {CELL_TIMEOUT_S / 60:g} minutes a cell"
            todo = "Check memory (the usual cause), then run it again."
            raise GpuPlannerError(source.name, expected, f"{why}{_keep(target, keep)}", todo) from None


def _parameters(source: Path) -> list[str]:
    """Names that the parameters cell sets; papermill itself passes over values that hold an equals sign."""
    cells = json.loads(source.read_text(encoding="utf-8"))["cells"]
    told = [cell_text(cell["source"]) for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    found = []
    for node in ast.parse("\n".join(told)).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found += [target.id for target in targets if isinstance(target, ast.Name)]
    return found


def page_body(executed: Path) -> str:
    """Fragments of the page in the order of the cells that made them."""
    notebook = json.loads(executed.read_text(encoding="utf-8"))
    fragments = [cell_text(data[FRAGMENT]) for data in _outputs(notebook) if FRAGMENT in data]
    if not fragments:
        expected = "cells that show sections of gpuplanner.report.monthly_sections"
        todo = "Add a cell, for example monthly_sections.summary(study)."
        raise OutputError(executed.name, expected, "none", todo)
    return "\n".join(fragments)


def _outputs(notebook: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            yield output.get("data", {})


def cell_text(text: str | list[str]) -> str:
    """Text of a cell or an output: notebooks keep it as one text, or line by line."""
    return text if isinstance(text, str) else "".join(text)


def _strip(executed: Path) -> None:
    """Leave out what differs from run to run, and the fragments that stand in the page already."""
    notebook = json.loads(executed.read_text(encoding="utf-8"))
    for data in _outputs(notebook):
        data.pop(FRAGMENT, None)
    notebook["metadata"].pop("papermill", None)
    for number, cell in enumerate(notebook["cells"]):
        cell["metadata"].pop("papermill", None)
        cell["metadata"].pop("execution", None)
        cell["id"] = f"cell-{number}"
        if "injected-parameters" in cell["metadata"].get("tags", []):
            cell["source"] = '# Parameters\nscenario_path = "scenario.yaml"\n'
    executed.write_text(to_json(notebook), encoding="utf-8")


def _absolute(scenario: Scenario) -> Scenario:
    """The scenario as the kernel must see it, which runs in another folder."""
    data = scenario.data if scenario.data == "sample" else _resolved(scenario.data)
    files = {name: (place := getattr(scenario, name)) and _resolved(place) for name in FILE_PATH_FIELDS}
    return scenario.but(data=data, **files)


def _resolved(place: str) -> str:
    return str(Path(place).resolve())


def _subtitle(study: Study) -> str:
    return f"{period(study)} ({study.scenario.tz}) · {fleet_words(study.decision)}"


def _keep(target: Path, keep: Path | None) -> str:
    if keep is None or not target.exists():
        return ""
    try:
        write_atomically(keep, partial(shutil.copyfile, target))
    except OutputError:
        return ""
    return f" (the notebook with its output is kept as {keep})"


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what papermill and its kernel client say of themselves from reaching the user."""
    log = logging.getLogger("papermill")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        log.setLevel(before)


FOLDER = "pools"
"""Where the pools have their own pages, each in a folder of its name."""
MOST_POOLS = 20
_HEADINGS = {
    "pool": "pool", "gpus": "GPUs", "needed": "GPUs needed", "cut_gpus": "GPUs partitioned", "action": "action",
    "saved_gpu_hours": "capacity freed [GPU h per week]", "tenant": "team",
    "allocated_gpu_hours": "allocated [GPU h]", "shortfall_gpu_hours": "shortfall [GPU h]",
    "why": "cause of waiting", "next_step": "next step",
}  # fmt: skip


def write_fleet_report(
    fleet: FleetPools,
    title: str,
    out: str | Path,
    *,
    inputs: Iterable[str | Path] = (),
    tell: Callable[[str], object] | None = None,
) -> ComparedFleet:
    """Write the page of a fleet, with a whole report of each pool under it, in one step.

    ``index.html`` says what to do in all, ``pools/NAME/`` is what
    :func:`~gpuplanner.report.report_rendering.write_report` writes
    of the pool by itself, ``fleet.json`` has the figures and ``plan.json`` the plans of all pools.
    """
    with replace_directory(out, mark=MARK, inputs=inputs) as folder:
        studies = {}
        (folder / FOLDER).mkdir()
        for name, own in fleet.pools.items():
            if tell is not None:
                tell(name)
            studies[name] = write_report(own, folder / FOLDER / folder_of(name))
        planned = planned_of(fleet, studies)
        (folder / "index.html").write_text(fleet_page(fleet, studies, title=title), encoding="utf-8")
        found = ComparedFleet({name: study.comparison for name, study in studies.items()})
        plans = None if planned is None else planned.summary_table.to_dicts()
        (folder / "fleet.json").write_text(to_json(found.to_dict() | {"plans": plans}), encoding="utf-8")
        if planned is not None:
            (folder / "plan.json").write_text(fleet_to_json(planned.combined_plan, planned.problems), encoding="utf-8")
    return found


def folder_of(name: str) -> str:
    """Folder of a pool: its name, whatever may stand in it.

    Examples
    --------
    >>> folder_of("A100-40GB"), folder_of("west/A100|T4"), folder_of("..")
    ('A100-40GB', 'west+A100%7CT4', '%2E%2E')
    """
    text = quote(name.replace("/", "+"), safe="+")
    return text if text.strip(".") else text.replace(".", "%2E")


def planned_of(fleet: FleetPools, studies: Mapping[str, Study]) -> FleetPlans | None:
    """The plans of the studies as one, with demand sent to substitute models; None where one of them has none."""
    found = {
        name: PlannedProblem(study.problem, study.plan)
        for name, study in studies.items()
        if study.plan is not None and study.problem is not None
    }
    same = {(one.problem.slot_start, one.problem.n_slots) for one in found.values()}
    return plan_fleet(fleet, known_plans=found) if len(found) == len(studies) and len(same) == 1 else None


def fleet_page(fleet: FleetPools, studies: Mapping[str, Study], *, title: str) -> str:
    """The page of a fleet."""
    decisions = {name: study.decision for name, study in studies.items()}
    idle = ", ".join(f"{gpus:,} × {name}" for name, gpus in fleet.idle.items())
    unused = f"No job was allocated {idle}: these GPUs are not planned, and all their GPU-hours are unallocated."
    notes = [page.note(unused)] if idle else []
    sources = dict.fromkeys(study.scenario.data for study in studies.values())
    warned = warning_list([warning for data in sources for warning in list_data_warnings(data)])
    parts = [
        page.section("Recommendation", warned, _by_pool(decisions), _decisions(decisions), *notes),
        _next_steps(decisions),
        _where_time_went(fleet),
    ]
    parts += _teams(studies)
    pools = page.table(tabulate_pools(fleet), caption="Nodes, GPUs and jobs by pool", headings=_HEADINGS)
    parts.append(page.section("Fleet", pools))
    first = next(iter(studies.values()))
    gpus = sum(one.fleet_gpus for one in decisions.values())
    return page.render_page(
        "\n".join(parts),
        title=f"GPU capacity report · {title}",
        subtitle=f"{gpus:,} GPUs in {count_text(len(studies), 'pool')}",
        decision=format_fleet_decision(decisions),
        provenance={"pools": ", ".join(studies), "made by": first.provenance.gpuplanner},
        locale=first.scenario.number_locale,
    )


def decided_fleet(found: ComparedFleet) -> Section:
    """The decision on the whole fleet without pages around it: for notebooks."""
    parts = [page.paragraph(found.decision_text), _decisions(found.decisions)]
    return Section(page.section("Recommendation by pool", *parts))


def _decisions(decisions: Mapping[str, Decision]) -> str:
    return page.table(
        make_decision_table(decisions), caption="Recommendation by pool", headings=_HEADINGS,
        formats={"saved_gpu_hours": ",.0f"},
    )  # fmt: skip


def _by_pool(decisions: Mapping[str, Decision]) -> str:
    """A line for each pool, which leads to its page."""
    rows = [f"<li>{_link(name)}: {escape(one.sentence)}</li>" for name, one in decisions.items()]
    return f"<ul>{''.join(rows)}</ul>"


def _link(name: str) -> str:
    return f'<a href="{FOLDER}/{quote(folder_of(name))}/index.html">{escape(name)}</a>'


def _next_steps(decisions: Mapping[str, Decision]) -> Section:
    """What to do, pool by pool; the files of each lie in its folder."""
    parts = []
    for name, one in decisions.items():
        steps = "".join(f"<li>{escape(step.text)}</li>" for step in one.next_steps) or "<li>none</li>"
        parts.append(f"<h3>{_link(name)}</h3><ol>{steps}</ol>")
    return page.section("Next steps", *parts)


def _where_time_went(fleet: FleetPools) -> Section:
    """GPU-hours of each pool by bucket, from the ledger that the pools share."""
    hours = fleet_hours(fleet)
    shown = hours.group_by("tenant", "bucket").agg(pl.col("gpu_hours").sum())
    wide = shown.pivot("bucket", index="tenant", values="gpu_hours", sort_columns=False)
    order = [name for name in GPU_TIME_BUCKETS if name in wide.columns]
    wide = wide.select(pl.col("tenant").alias("pool"), *order, installed=pl.sum_horizontal(*order)).fill_null(0.0)
    wide = wide.sort("installed", "pool", descending=[True, False])
    free = hours.filter(bucket="unallocated").group_by("tenant").agg(pl.col("gpu_hours").sum()).sort("gpu_hours")
    most = free.tail(1).rows()
    said = f"{most[0][0]} has most: {most[0][1]:,.0f} unallocated GPU-hours." if most else "No GPU-hour is unallocated."
    return page.section(
        "Utilization by GPU model",
        page.figure(
            plots.plot_ledger_tenants(hours, top=MOST_POOLS), title="Installed GPU-hours by pool", alt=said,
        ),
        page.table(wide, caption="GPU-hours by pool", formats=dict.fromkeys(wide.columns[1:], ",.0f")),
    )  # fmt: skip


def fleet_hours(fleet: FleetPools) -> pl.DataFrame:
    """Ledger rows of all GPU models, ``tenant`` being the pool or an unused GPU model."""
    parts, read = [], set()
    for name, own in fleet.pools.items():
        if own.data in read:
            continue
        read.add(own.data)
        prefix = name.rpartition("/")[0]
        alone = name.rpartition("/")[2] if len(fleet.pools) == 1 else "all GPU models"
        gpu_model = pl.col("gpu_model").cast(pl.String).fill_null(alone)
        tenant = pl.concat_str(pl.lit(f"{prefix}/" if prefix else ""), gpu_model)
        parts.append(scenario_ledger(own).select("bucket", "gpu_hours", tenant=tenant))
    return pl.concat(parts)


def _teams(studies: Mapping[str, Study]) -> list[Section]:
    """Allocated GPU-hours and shortfall of each team by GPU model, with causes of waiting and next steps."""
    found = {name: Fairness.of_tables(study.tables) for name, study in studies.items()}
    rows = [
        one.teams.filter(pl.col("jobs") > 0).select(
            "tenant", pl.lit(name).alias("pool"), "allocated_gpu_hours", "shortfall_gpu_hours", "why", "next_step"
        )
        for name, one in found.items()
        if one is not None
    ]
    if not rows:
        return []
    said = page.note(
        "A quota without a GPU model holds for each; the page of each GPU model has fair share and lending by team."
    )
    table = page.table(
        pl.concat(rows).sort("tenant", "pool"), caption="Teams by GPU model", headings=_HEADINGS,
        formats={"allocated_gpu_hours": ",.0f", "shortfall_gpu_hours": ",.0f"},
    )  # fmt: skip
    return [page.section("Fair share by team", table, said)]
