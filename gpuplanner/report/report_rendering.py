"""Report folders: the report notebook run with papermill, and the page of a fleet of several pools."""

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
from gpuplanner.core.libraries_plugins_and_workers import import_optional
from gpuplanner.core.output_column_headings import read_table_headings
from gpuplanner.core.output_manifests_and_overwrite_checks import (
    MANIFEST,
    WRITE_TARGET_ERRNOS,
    FolderMark,
    errno_of,
    remove_own_file,
    resolve_path,
)
from gpuplanner.core.output_writing import replace_directory, write_atomically
from gpuplanner.core.scenario import FILE_PATH_FIELDS, Scenario
from gpuplanner.core.schemas import GPU_TIME_BUCKETS
from gpuplanner.core.serialization import to_json
from gpuplanner.core.stage_cache_and_data_folders import forget_results_in_memory, notebook_folder
from gpuplanner.core.units_and_number_formats import count_text, localize_text
from gpuplanner.decision.decision_types import Decision
from gpuplanner.decision.gpu_model_decisions import (
    ComparedFleet,
    FleetPlans,
    format_fleet_decision,
    make_decision_table,
    plan_fleet,
)
from gpuplanner.decision.inference_answers import list_data_warnings
from gpuplanner.decision.layout_planning import PlannedProblem
from gpuplanner.decision.savings_track_record import (
    add_month,
    read_ledger,
    read_savings,
    savings_file,
    savings_json,
    savings_sheets,
    update_forecast_ledger,
)
from gpuplanner.decision.study import TABLES_FOLDER, Study
from gpuplanner.decision.study_pipeline import check_options, evaluate
from gpuplanner.decision.team_fairness import Fairness
from gpuplanner.planner.fleet_plans_and_comparisons import fleet_to_json
from gpuplanner.planner.layout_plan import plan_to_json
from gpuplanner.report import html_page as page
from gpuplanner.report import monthly_sections
from gpuplanner.report.bundle_export import write_bundle_into
from gpuplanner.report.cost_and_forecast_sections import render_forecast_record, render_savings_record
from gpuplanner.report.first_screen import describe_fleet, list_badges, render_warnings
from gpuplanner.report.focus_files_and_workbooks import study_notes, write_study_workbook
from gpuplanner.report.html_page import (
    FRAGMENT_MIME_TYPE,
    HtmlSection,
    add_pictures,
    paragraph,
    render_page,
    split_appendix,
)
from gpuplanner.report.monthly_sections import PDF_FILE, describe_period, list_downloads
from gpuplanner.report.report_messages_and_pdf import (
    find_browser,
    print_pdf,
    render_markdown,
    render_message,
    write_tables,
)
from gpuplanner.usage.period_accounts import scenario_ledger
from gpuplanner.usage.planning_history import FleetPools, tabulate_pools

NOTEBOOK_CELL_TIMEOUT_S = 1800
"""Maximum run time of one notebook cell [s]."""
MONTHLY_REPORT_NOTEBOOK = "monthly_report.ipynb"
"""Shipped notebook that makes the report page."""
REPORT_SECTIONS: Mapping[str, Callable[[Study], HtmlSection]] = {
    section.__name__: section
    for section in (
        monthly_sections.summary, monthly_sections.capacity, monthly_sections.ledger, monthly_sections.comparison,
        monthly_sections.teams, monthly_sections.rightsizing, monthly_sections.costs, monthly_sections.demand,
        monthly_sections.numbers, monthly_sections.layouts, monthly_sections.quality, monthly_sections.method,
    )
}  # fmt: skip
"""Sections of the monthly report by name, in the order of the page."""
PAGE_FILES = ("index.html", "appendix.html", "message.txt", "summary.md", "report.pdf")
"""Pages and messages in a report folder."""
DATA_FILE_PATTERNS = (
    f"{TABLES_FOLDER}/*.parquet",
    "study.json",
    "workbook.xlsx",
    "plan.json",
    "scenario.yaml",
    "report.ipynb",
)
"""Glob patterns of the data files in a report folder."""
REPORT_FOLDER_MARK = FolderMark(MANIFEST, "gpuplanner report 1", names=(*PAGE_FILES, *DATA_FILE_PATTERNS))
"""Recognizes a report folder, which a new report may replace."""


def write_report(
    scenario: Scenario, out: str | Path, *, notebook: Path | None = None, inputs: Iterable[str | Path] = (),
    ledger: Path | None = None,
) -> Study:  # fmt: skip
    """Evaluate a scenario and write its report folder in one step.

    The folder has ``index.html``, ``appendix.html``, ``message.txt``, ``summary.md``, ``study.json``,
    ``workbook.xlsx``, ``tables/``, ``plan.json``, ``scenario.yaml``, the executed ``report.ipynb``, ``export/``,
    ``manifest.json`` with the hash of each and, if a browser is found, ``report.pdf``. Notebook, workbook, PDF and each
    section of the page are independent: what needs a missing library or fails is left out with a warning, and the page
    names it. If anything else fails, the earlier folder stays; a failed notebook is kept beside it as
    ``<out>.failed.ipynb``.

    Parameters
    ----------
    scenario : Scenario
        Scenario to evaluate.
    out : str or Path
        Folder that is replaced.
    notebook : Path, optional
        Notebook to run instead of the shipped one; if it fails, so does the report.
    inputs : iterable of str or Path
        Inputs, which must not lie in the folder that is replaced.
    ledger : Path, optional
        Parquet file of the forecasts of earlier months, which is extended; promised savings are in
        ``<ledger>.savings.json`` beside it.

    Returns
    -------
    Study
        The evaluated study.
    """
    out = Path(out)
    check_options(scenario)
    forecasts = None if ledger is None else read_ledger(ledger)
    savings_months = None if ledger is None else read_savings(savings_file(ledger))
    left_out: dict[str, str] = {}
    with replace_directory(out, mark=REPORT_FOLDER_MARK, inputs=inputs) as folder:
        study = evaluate(scenario)
        # The jobs leave memory before the kernel of the notebook reads them, too.
        forget_results_in_memory()
        (folder / "scenario.yaml").write_text(_with_absolute_paths(scenario).to_yaml(), encoding="utf-8")
        source = notebook or notebook_folder() / MONTHLY_REPORT_NOTEBOOK
        executed = folder / "report.ipynb"
        failed_copy = out.with_suffix(".failed.ipynb")
        with _leave_out("notebook", left_out, never=notebook is not None):
            run_notebook(source, executed, {"scenario_path": str(folder / "scenario.yaml")}, failed_copy=failed_copy)
            body_parts = [join_fragments(executed)]
            _clean_notebook(executed)
        if "notebook" in left_out:
            executed.unlink(missing_ok=True)
            body_parts = list(_render_sections(study, left_out))
        body = "\n".join(body_parts)
        forecasts = None if forecasts is None else update_forecast_ledger(forecasts, study)
        body += "" if forecasts is None else render_forecast_record(forecasts)
        savings_months = None if savings_months is None else add_month(savings_months, scenario, study.comparison)
        body += "" if savings_months is None else render_savings_record(savings_months)
        (folder / "study.json").write_text(study.to_json(), encoding="utf-8")
        if study.plan is not None and study.problem is not None:
            (folder / "plan.json").write_text(plan_to_json(study.plan, study.problem), encoding="utf-8")
        (folder / "scenario.yaml").write_text(scenario.to_yaml(), encoding="utf-8")
        savings_tables = {} if savings_months is None else savings_sheets(savings_months)
        with _leave_out("workbook", left_out):
            write_study_workbook(folder / "workbook.xlsx", study, savings_tables, links=list_downloads(study))
        write_bundle_into(scenario, study.comparison, folder)
        notes = [page.note(f"Left out of this report: {name}: {reason}") for name, reason in left_out.items()]
        _write_pages(folder, study, *split_appendix("".join([*notes, body])))
        with _leave_out("PDF", left_out):
            if (program := find_browser()) is not None:
                print_pdf(folder / "index.html", folder / PDF_FILE[1], program)
        _remove_dead_links(folder, study)
    if "notebook" not in left_out:
        remove_own_file(out.with_suffix(".failed.ipynb"))
    if ledger is not None and forecasts is not None:
        write_atomically(ledger, forecasts.write_parquet, protect_foreign=False)
    if ledger is not None and savings_months is not None:
        text = savings_json(savings_months)
        write_atomically(
            savings_file(ledger), lambda path: path.write_text(text, encoding="utf-8"), protect_foreign=False
        )
    return study


@contextmanager
def _leave_out(output: str, left_out: dict[str, str], *, never: bool = False) -> Iterator[None]:
    """Leave an output of the report out, with a warning, if a library is missing or it fails.

    Parameters
    ----------
    output : str
        Name of the output, such as ``workbook``.
    left_out : dict of str to str
        Gets the reason, by output.
    never : bool
        Raise the error instead.
    """
    try:
        yield
    except Exception as error:  # of any kind: the other outputs do not depend on this one
        if never or errno_of(error) in WRITE_TARGET_ERRNOS:  # on a full disk, no other output can be written either
            raise
        left_out[output] = first_error_line(error)
        warnings.warn(f"no {output}: {left_out[output]}", GpuPlannerWarning, stacklevel=3)


def _render_sections(study: Study, left_out: dict[str, str]) -> Iterator[str]:
    """Yield the sections of the page without the notebook; those that fail are left out."""
    for name, render in REPORT_SECTIONS.items():
        with _leave_out(f"section {name}", left_out):
            yield add_pictures(render(study))


def _remove_dead_links(folder: Path, study: Study) -> None:
    """Remove the links to files that were left out from page and summary."""
    dead = [(name, path) for name, path in list_downloads(study) if not (folder / path).exists()]
    for file in (folder / "index.html", folder / "summary.md") if dead else ():
        text = file.read_text(encoding="utf-8")
        for name, path in dead:
            text = text.replace(f'<a href="{path}">{name}</a> ', "").replace(f" · [{name}]({path})", "")
        file.write_text(text, encoding="utf-8")


def _write_pages(folder: Path, study: Study, body: str, appendix: str) -> None:
    """Write the page, its appendix, the message and the summary of a study."""
    title = f"GPU capacity report · {study.scenario.name}"
    decision, locale = study.decision, study.scenario.number_locale
    appendix_link = '<p class="more"><a href="appendix.html">Appendix: demand forecast and planned layouts</a></p>'
    index = render_page(
        body + (appendix_link if appendix else ""),
        title=title,
        subtitle=_subtitle(study),
        decision=decision.sentence,
        badges=list_badges(decision),
        provenance=study_notes(study),
        locale=locale,
    )
    appendix_note = paragraph(
        "Appendix to index.html: the demand forecast with its errors and the planned layouts with their bounds."
    )
    comparison, period, downloads = study.comparison, describe_period(study), list_downloads(study)
    doubts = study.provenance.doubts
    texts = {
        "index.html": index,
        "appendix.html": render_page(
            appendix_note + appendix, title=f"{title}, appendix", subtitle=_subtitle(study),
            provenance=study_notes(study), locale=locale,
        ),
        "message.txt": localize_text(render_message(comparison, title, period, downloads, doubts), locale),
        "summary.md": localize_text(render_markdown(comparison, title, period, downloads, doubts), locale),
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    write_tables(folder / TABLES_FOLDER, study.tables)


def run_notebook(
    source: Path, target: Path, parameters: Mapping[str, str | float | bool | None], *, failed_copy: Path | None = None
) -> None:
    """Execute a notebook with papermill; unknown parameters are rejected.

    Parameters
    ----------
    source : Path
        Notebook.
    target : Path
        Executed notebook to write.
    parameters : mapping of str to value
        Values of names in its parameters cell.
    failed_copy : Path, optional
        Where a failed notebook is kept with its output.

    Raises
    ------
    ScenarioError
        If the notebook does not exist or a parameter is unknown.
    GpuPlannerError
        If a cell fails, or takes longer than ``NOTEBOOK_CELL_TIMEOUT_S``.
    """
    papermill = import_optional("papermill", extra="report")
    exceptions = import_optional("nbclient.exceptions", extra="report")
    if not source.is_file():
        raise ScenarioError(str(source), "a notebook", "no such file", "Check the path.")
    with _silence_papermill():
        known_names = _parameter_names(source)
        unknown = [name for name in parameters if name not in known_names]
        if unknown:
            nearest = [nearest_names(name, known_names)[:1] for name in unknown]
            expected = f"names of its parameters cell: {', '.join(known_names) or 'none'}"
            got = f"unknown {examples(unknown)} (nearest: {nearest})"
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
                execution_timeout=NOTEBOOK_CELL_TIMEOUT_S,
                # Failing cells are reported by the client; the kernel itself may log that its shutdown interrupts it.
                extra_arguments=["--IPKernelApp.log_level=CRITICAL"],
            )
        except papermill.exceptions.PapermillExecutionError as error:
            kept_text = _keep_failed_notebook(target, failed_copy)
            message = f"{source.name}, cell {error.exec_count}: {error.ename}: {error.evalue}{kept_text}"
            raise GpuPlannerError(message) from None
        except (exceptions.DeadKernelError, exceptions.CellTimeoutError) as error:
            # The kernel was killed, or a cell took longer than any should: what it had done so far is kept.
            got = f"{first_error_line(error)}{_keep_failed_notebook(target, failed_copy)}"
            expected = f"a kernel that answers within {NOTEBOOK_CELL_TIMEOUT_S / 60:g} minutes a cell"
            todo = "Check memory (the usual cause), then run it again."
            raise GpuPlannerError(source.name, expected, got, todo) from None


def _parameter_names(source: Path) -> list[str]:
    """List the names that the parameters cell of a notebook sets."""
    cells = json.loads(source.read_text(encoding="utf-8"))["cells"]
    sources = [join_cell_text(cell["source"]) for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    names = []
    for node in ast.parse("\n".join(sources)).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names += [target.id for target in targets if isinstance(target, ast.Name)]
    return names


def join_fragments(executed: Path) -> str:
    """Join the page fragments of an executed notebook, in the order of its cells."""
    notebook = json.loads(executed.read_text(encoding="utf-8"))
    fragments = [
        join_cell_text(data[FRAGMENT_MIME_TYPE]) for data in _iterate_outputs(notebook) if FRAGMENT_MIME_TYPE in data
    ]
    if not fragments:
        expected = "cells that show sections of a study"
        todo = 'Add a cell, for example study.section("summary").'
        raise OutputError(executed.name, expected, "none", todo)
    return "\n".join(fragments)


def _iterate_outputs(notebook: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the data of all cell outputs of a notebook."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            yield output.get("data", {})


def join_cell_text(text: str | list[str]) -> str:
    """Join the text of a cell or output, which notebooks store as one text or line by line."""
    return text if isinstance(text, str) else "".join(text)


def _clean_notebook(executed: Path) -> None:
    """Remove from an executed notebook the page fragments and what differs from run to run."""
    notebook = json.loads(executed.read_text(encoding="utf-8"))
    for data in _iterate_outputs(notebook):
        data.pop(FRAGMENT_MIME_TYPE, None)
    notebook["metadata"].pop("papermill", None)
    for number, cell in enumerate(notebook["cells"]):
        cell["metadata"].pop("papermill", None)
        cell["metadata"].pop("execution", None)
        cell["id"] = f"cell-{number}"
        if "injected-parameters" in cell["metadata"].get("tags", []):
            cell["source"] = '# Parameters\nscenario_path = "scenario.yaml"\n'
    executed.write_text(to_json(notebook), encoding="utf-8")


def _with_absolute_paths(scenario: Scenario) -> Scenario:
    """Make the paths of a scenario absolute, as the notebook kernel runs in another folder."""
    data = scenario.data if scenario.data == "sample" else str(resolve_path(scenario.data))
    files = {name: (path := getattr(scenario, name)) and str(resolve_path(path)) for name in FILE_PATH_FIELDS}
    return scenario.but(data=data, **files)


def _subtitle(study: Study) -> str:
    """Describe the period, time zone and installed GPUs of a study, for the line above the headline."""
    return f"{describe_period(study)} ({study.scenario.tz}) · {describe_fleet(study.decision)}"


def _keep_failed_notebook(target: Path, failed_copy: Path | None) -> str:
    """Copy a failed notebook and return a remark about it; empty if it cannot be kept."""
    if failed_copy is None or not target.exists():
        return ""
    try:
        write_atomically(failed_copy, partial(shutil.copyfile, target))
    except OutputError:
        return ""
    return f" (the notebook with its output is kept as {failed_copy})"


@contextmanager
def _silence_papermill() -> Iterator[None]:
    """Suppress log messages and deprecation warnings of papermill and its kernel client."""
    log = logging.getLogger("papermill")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        log.setLevel(before)


POOLS_FOLDER = "pools"
"""Subfolder of a fleet report with a report folder for each GPU pool."""
MAX_CHARTED_POOLS = 20
"""Maximum number of GPU pools with a bar of their own in a chart."""
_FLEET_HEADINGS = read_table_headings("GPU pools")
"""Headings of the tables of a fleet report, by column."""


def write_fleet_report(
    fleet: FleetPools, title: str, out: str | Path, *, inputs: Iterable[str | Path] = (),
    report_progress: Callable[[str], object] | None = None,
) -> ComparedFleet:  # fmt: skip
    """Write the page of a fleet with a whole report of each GPU pool below it, in one step.

    ``index.html`` has the recommendations of all pools, ``pools/NAME/`` the report of a pool as :func:`write_report`
    writes it, ``fleet.json`` the figures and ``plan.json`` the plans of all pools.

    Parameters
    ----------
    fleet : FleetPools
        Pools with their scenarios.
    title : str
        Title of the page.
    out : str or Path
        Folder that is replaced.
    inputs : iterable of str or Path
        Inputs, which must not lie in the folder that is replaced.
    report_progress : callable, optional
        Is called with the name of each pool before its report.

    Returns
    -------
    ComparedFleet
        Comparison of each pool.
    """
    with replace_directory(out, mark=REPORT_FOLDER_MARK, inputs=inputs) as folder:
        studies = {}
        (folder / POOLS_FOLDER).mkdir()
        for name, pool_scenario in fleet.pools.items():
            if report_progress is not None:
                report_progress(name)
            studies[name] = write_report(pool_scenario, folder / POOLS_FOLDER / pool_folder_name(name))
        planned = combine_plans(fleet, studies)
        (folder / "index.html").write_text(render_fleet_page(fleet, studies, title=title), encoding="utf-8")
        compared = ComparedFleet({name: study.comparison for name, study in studies.items()})
        plans = None if planned is None else planned.summary_table.to_dicts()
        (folder / "fleet.json").write_text(to_json(compared.to_dict() | {"plans": plans}), encoding="utf-8")
        if planned is not None:
            (folder / "plan.json").write_text(fleet_to_json(planned.combined_plan, planned.problems), encoding="utf-8")
    return compared


def pool_folder_name(name: str) -> str:
    """Make a folder name from the name of a GPU pool, with other characters percent-encoded.

    Examples
    --------
    >>> pool_folder_name("A100-40GB"), pool_folder_name("west/A100|T4"), pool_folder_name("..")
    ('A100-40GB', 'west+A100%7CT4', '%2E%2E')
    """
    text = quote(name.replace("/", "+"), safe="+")
    return text if text.strip(".") else text.replace(".", "%2E")


def combine_plans(fleet: FleetPools, studies: Mapping[str, Study]) -> FleetPlans | None:
    """Combine the plans of all GPU pools, with demand moved to substitute GPU models; None if a pool has no plan."""
    planned = {
        name: PlannedProblem(study.problem, study.plan)
        for name, study in studies.items()
        if study.plan is not None and study.problem is not None
    }
    grids = {(pool_plan.problem.slot_start, pool_plan.problem.n_slots) for pool_plan in planned.values()}
    return plan_fleet(fleet, known_plans=planned) if len(planned) == len(studies) and len(grids) == 1 else None


def render_fleet_page(fleet: FleetPools, studies: Mapping[str, Study], *, title: str) -> str:
    """Render the page of a fleet: recommendations, next steps, utilization and teams by GPU pool."""
    decisions = {name: study.decision for name, study in studies.items()}
    idle = ", ".join(f"{gpus:,} × {name}" for name, gpus in fleet.idle.items())
    unused = f"No job was allocated {idle}: these GPUs are not planned, and all their GPU-hours are unallocated."
    notes = [page.note(unused)] if idle else []
    sources = {study.scenario.data: study.scenario for study in studies.values()}
    warnings_html = render_warnings(
        [warning for scenario in sources.values() for warning in list_data_warnings(scenario)]
    )
    pool_list = _list_pool_decisions(decisions)
    parts = [
        page.section("Recommendation", warnings_html, pool_list, _decision_table(decisions), *notes),
        _next_steps_section(decisions),
        _utilization_section(fleet),
    ]
    parts += _team_sections(studies)
    pools = page.table(tabulate_pools(fleet), caption="Nodes, GPUs and jobs by pool", headings=_FLEET_HEADINGS)
    parts.append(page.section("Fleet", pools))
    first = next(iter(studies.values()))
    gpus = sum(decision.fleet_gpus for decision in decisions.values())
    return page.render_page(
        "\n".join(parts),
        title=f"GPU capacity report · {title}",
        subtitle=f"{gpus:,} GPUs in {count_text(len(studies), 'pool')}",
        decision=format_fleet_decision(decisions),
        provenance={"pools": ", ".join(studies), "made by": first.provenance.gpuplanner},
        locale=first.scenario.number_locale,
    )


def render_fleet_recommendation(fleet_compared: ComparedFleet) -> HtmlSection:
    """Render the recommendation for a whole fleet, for notebooks."""
    parts = [page.paragraph(fleet_compared.decision_text), _decision_table(fleet_compared.decisions)]
    return HtmlSection(page.section("Recommendation by pool", *parts))


def _decision_table(decisions: Mapping[str, Decision]) -> str:
    """Render the table of recommendations by GPU pool."""
    return page.table(
        make_decision_table(decisions), caption="Recommendation by pool", headings=_FLEET_HEADINGS,
        formats={"freed_gpu_hours": ",.0f"},
    )  # fmt: skip


def _list_pool_decisions(decisions: Mapping[str, Decision]) -> str:
    """Render a list of GPU pools, each with its decision and a link to its report."""
    rows = [f"<li>{_link_pool(name)}: {escape(decision.sentence)}</li>" for name, decision in decisions.items()]
    return f"<ul>{''.join(rows)}</ul>"


def _link_pool(name: str) -> str:
    """Render a link to the report of a GPU pool."""
    return f'<a href="{POOLS_FOLDER}/{quote(pool_folder_name(name))}/index.html">{escape(name)}</a>'


def _next_steps_section(decisions: Mapping[str, Decision]) -> HtmlSection:
    """Render the next steps, GPU pool by pool."""
    parts = []
    for name, decision in decisions.items():
        steps = "".join(f"<li>{escape(step.text)}</li>" for step in decision.next_steps) or "<li>none</li>"
        parts.append(f"<h3>{_link_pool(name)}</h3><ol>{steps}</ol>")
    return page.section("Next steps", *parts)


def _utilization_section(fleet: FleetPools) -> HtmlSection:
    """Render the GPU-hours of each GPU pool by bucket."""
    hours = fleet_ledger(fleet)
    hours_by_bucket = hours.group_by("tenant", "bucket", maintain_order=True).agg(pl.col("gpu_hours").sum())
    wide = hours_by_bucket.pivot("bucket", index="tenant", values="gpu_hours", sort_columns=False)
    order = [name for name in GPU_TIME_BUCKETS if name in wide.columns]
    wide = wide.select(pl.col("tenant").alias("pool"), *order, installed=pl.sum_horizontal(*order)).fill_null(0.0)
    wide = wide.sort("installed", "pool", descending=[True, False])
    unallocated = hours.filter(bucket="unallocated").group_by("tenant").agg(pl.col("gpu_hours").sum()).sort("gpu_hours")
    largest = unallocated.tail(1).rows()
    alt_text = "No GPU-hour is unallocated."
    if largest:
        alt_text = f"{largest[0][0]} has most: {largest[0][1]:,.0f} unallocated GPU-hours."
    return page.section(
        "Utilization by GPU model",
        page.figure(
            plots.plot_ledger_tenants(hours, top=MAX_CHARTED_POOLS), title="Installed GPU-hours by pool", alt=alt_text,
        ),
        page.table(wide, caption="GPU-hours by pool", formats=dict.fromkeys(wide.columns[1:], ",.0f")),
    )  # fmt: skip


def fleet_ledger(fleet: FleetPools) -> pl.DataFrame:
    """Read the GPU-hour ledgers of all GPU pools; ``tenant`` names the pool, or a GPU model without jobs."""
    parts = []
    # One pool of each dataset: its ledger has them all.
    for name, pool_scenario in {scenario.data: (name, scenario) for name, scenario in fleet.pools.items()}.values():
        prefix = name.rpartition("/")[0]
        default_name = name.rpartition("/")[2] if len(fleet.pools) == 1 else "all GPU models"
        gpu_model = pl.col("gpu_model").cast(pl.String).fill_null(default_name)
        tenant = pl.concat_str(pl.lit(f"{prefix}/" if prefix else ""), gpu_model)
        parts.append(scenario_ledger(pool_scenario.but(pool=None)).select("bucket", "gpu_hours", tenant=tenant))
    return pl.concat(parts)


def _team_sections(studies: Mapping[str, Study]) -> list[HtmlSection]:
    """Render allocated GPU-hours, shortfall, cause of waiting and next step of each team by GPU pool."""
    fairness_by_pool = {name: Fairness.of_tables(study.tables) for name, study in studies.items()}
    rows = [
        fairness.teams.filter(pl.col("jobs") > 0).select(
            "tenant", pl.lit(name).alias("pool"), "allocated_gpu_hours", "shortfall_gpu_hours", "why", "next_step"
        )
        for name, fairness in fairness_by_pool.items()
        if fairness is not None
    ]
    if not rows:
        return []
    explanation = page.note(
        "A quota without a GPU model holds for each; the page of each GPU model has fair share and lending by team."
    )
    table = page.table(
        pl.concat(rows).sort("tenant", "pool"), caption="Teams by GPU model", headings=_FLEET_HEADINGS,
        formats={"allocated_gpu_hours": ",.0f", "shortfall_gpu_hours": ",.0f"},
    )  # fmt: skip
    return [page.section("Fair share by team", table, explanation)]
