"""Run the report notebook and put page, workbook, JSON and exports in place together."""

from __future__ import annotations

import ast
import json
import logging
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from gpuplanner._optional import import_optional
from gpuplanner.errors import (
    GpuPlannerError,
    GpuPlannerWarning,
    OutputError,
    ScenarioError,
    examples,
    first_line,
    message,
)
from gpuplanner.files.manifest import MANIFEST, Mark
from gpuplanner.files.ours import remove_ours
from gpuplanner.files.folder import replaced_directory
from gpuplanner.files.text import to_json
from gpuplanner.files.single import write_atomically
from gpuplanner.names import nearest
from gpuplanner.planner.contract.plan import plan_to_json
from gpuplanner.report.cost import savings_record
from gpuplanner.report.figures import headline
from gpuplanner.report.first_screen import badge, fleet_words
from gpuplanner.report.forecast import forecast_record
from gpuplanner.report.page import paragraph, parted, render_page
from gpuplanner.report.section import FRAGMENT
from gpuplanner.report.sent import browser, markdown_text, message_text, pdf_into, tables_into
from gpuplanner.report.tearsheet import PDF, links, period
from gpuplanner.scenario import FILES, Scenario
from gpuplanner.study.study import Study
from gpuplanner.study.evaluation import evaluate
from gpuplanner.study.bundled import notebook_folder
from gpuplanner.study.forecast_ledger import read_ledger, remember
from gpuplanner.study.future.options import check_options
from gpuplanner.study.handover.decision_pack import pack_into
from gpuplanner.study.handover.workbooks import notes, write_study_workbook
from gpuplanner.study.savings_ledger import booked, read_savings, savings_file, savings_json, savings_sheets
from gpuplanner.study.study import TABLES
from gpuplanner.units import in_locale

CELL_TIMEOUT_S = 1800
NOTEBOOK = "monthly_report.ipynb"
NEEDED = {"papermill": "report", "xlsxwriter": "report", "vl_convert": "plot", "altair": "plot"}
"""Optional packages that a report takes, and the extras that bring them: missed before the walk, not behind it."""
MARK = Mark(
    MANIFEST,
    "gpuplanner report 1",
    names=(
        "index.html",
        "appendix.html",
        "message.txt",
        "summary.md",
        "report.pdf",
        f"{TABLES}/*.parquet",
        "study.json",
        "workbook.xlsx",
        "plan.json",
        "scenario.yaml",
        "report.ipynb",
    ),
)


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
    a failed notebook is kept beside it as ``<out>.failed.ipynb``. A `ledger` holds what earlier months
    forecast, and its neighbour, ``<ledger>.savings.json``, what they promised to save.
    """
    out = Path(out)
    check_options(scenario)
    told = None if ledger is None else read_ledger(ledger)
    saved = None if ledger is None else read_savings(savings_file(ledger))
    for name, extra in NEEDED.items():
        import_optional(name, extra=extra)
    with replaced_directory(out, mark=MARK, inputs=inputs) as folder:
        study = evaluate(scenario)
        (folder / "scenario.yaml").write_text(_absolute(scenario).to_yaml(), encoding="utf-8")
        source = notebook or notebook_folder() / NOTEBOOK
        executed = folder / "report.ipynb"
        run_notebook(
            source,
            executed,
            {"scenario_path": str(folder / "scenario.yaml")},
            keep=out.with_suffix(".failed.ipynb"),
        )
        told = None if told is None else remember(told, study)
        body = page_body(executed)
        body += "" if told is None else forecast_record(told)
        saved = None if saved is None else booked(saved, scenario, study.comparison)
        body += "" if saved is None else savings_record(saved)
        _written(folder, study, *parted(body))
        _strip(executed)
        (folder / "study.json").write_text(study.to_json(), encoding="utf-8")
        if study.plan is not None and study.problem is not None:
            (folder / "plan.json").write_text(plan_to_json(study.plan, study.problem), encoding="utf-8")
        (folder / "scenario.yaml").write_text(scenario.to_yaml(), encoding="utf-8")
        more = {} if saved is None else savings_sheets(saved)
        write_study_workbook(folder / "workbook.xlsx", study, more)
        pack_into(scenario, study.comparison, folder)
        _printed(folder)
    remove_ours(out.with_suffix(".failed.ipynb"))
    if ledger is not None and told is not None:
        write_atomically(ledger, told.write_parquet, guarded=False)
    if ledger is not None and saved is not None:
        text = savings_json(saved)
        write_atomically(
            savings_file(ledger), lambda place: place.write_text(text, encoding="utf-8"), guarded=False
        )
    return study


def _written(folder: Path, study: Study, body: str, aside: str) -> None:
    """Write the page, its appendix, and what is sent: all from the one decision."""
    title, one, write = f"GPU report: {study.scenario.name}", study.decision, study.scenario.number_locale
    more = '<p class="more"><a href="appendix.html">Appendix: forecast and its errors, the planned layouts</a></p>'
    index = render_page(
        body + (more if aside else ""),
        title=title,
        subtitle=_subtitle(study),
        decision=headline(one),
        badge=badge(one),
        provenance=notes(study),
        locale=write,
    )
    back = paragraph(
        "Behind the page index.html: how the forecast and the plan were made, and how far they can be trusted."
    )
    told = {"title": title, "period": period(study)}
    texts = {
        "index.html": index,
        "appendix.html": render_page(
            back + aside, title=f"{title}, appendix", subtitle=_subtitle(study), provenance=notes(study),
            locale=write,
        ),
        "message.txt": in_locale(message_text(study.comparison, **told), write),
        "summary.md": in_locale(
            markdown_text(study.comparison, **told, links=dict([("Page", "index.html"), *links(study)])), write
        ),
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    tables_into(folder / TABLES, study.tables)


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
            text = text.replace(f'<a href="{PDF[1]}">{PDF[0]}</a> ', "").replace(
                f" · [{PDF[0]}]({PDF[1]})", ""
            )
            (folder / name).write_text(text, encoding="utf-8")


def run_notebook(
    source: Path,
    target: Path,
    parameters: Mapping[str, str | float | bool | None],
    *,
    keep: Path | None = None,
) -> None:
    """Execute a notebook with papermill; unknown parameters are refused, which papermill only logs."""
    papermill = import_optional("papermill", extra="report")
    exceptions = import_optional("nbclient.exceptions", extra="report")
    if not source.is_file():
        raise ScenarioError(message(str(source), "a notebook", "nothing there", "Check the path."))
    with _quiet():
        known = _parameters(source)
        unknown = [name for name in parameters if name not in known]
        if unknown:
            near = [nearest(name, known)[:1] for name in unknown]
            text = message(
                f"{source.name}, parameters",
                f"names of its parameters cell: {', '.join(known) or 'none'}",
                f"unknown {examples(unknown)} (nearest: {near})",
                "Rename or remove them.",
            )
            raise ScenarioError(text)
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
            text = f"{source.name}, cell {error.exec_count}: {error.ename}: {error.evalue}{left}"
            raise GpuPlannerError(text) from None
        except (exceptions.DeadKernelError, exceptions.CellTimeoutError) as error:
            # The kernel was killed, or a cell took longer than any should: what it had done so far is kept.
            why = first_line(error)
            text = message(
                source.name,
                f"a kernel that lives, and answers within {CELL_TIMEOUT_S / 60:g} minutes a cell",
                f"{why}{_keep(target, keep)}",
                "Look for what ended it (most often too little memory), and run it again.",
            )
            raise GpuPlannerError(text) from None


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
        text = message(
            executed.name, "cells that show sections of gpuplanner.report.tearsheet", "none", "Add them."
        )
        raise OutputError(text)
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
    files = {name: (place := getattr(scenario, name)) and _resolved(place) for name in FILES}
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
