"""Files for operators and finance, each re-read and proved before it is put in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.catalog import board_names
from gpuplanner.cost.footprint import AMOUNTS
from gpuplanner.errors import GeometryError, GpuPlannerError, OutputError, ScenarioError, examples, message
from gpuplanner.export import (
    FileReport,
    change_index,
    to_change_scripts,
    to_config_map,
    to_index_text,
    to_mig_parted,
    to_slurm,
    to_slurm_files,
    verify_file,
)
from gpuplanner.export.csv import guarded
from gpuplanner.export.focus import FOCUS_TIME
from gpuplanner.export.pack import PAGE, Pack, Step, filled, page_tables
from gpuplanner.export.workbook import Summary, write_workbook
from gpuplanner.files import read_text, replaced_directory
from gpuplanner.hardware import as_board
from gpuplanner.names import resolve
from gpuplanner.planner import Plan, PlanProblem, assign, fleet_from_json, verify, verify_bound
from gpuplanner.planner.contract.plan import LARGEST_FILE
from gpuplanner.planner.numbered.assign import layouts_before, node_reboots
from gpuplanner.planner.verification.bounds import BoundCheck
from gpuplanner.planner.verification.numbered_gpus import layout_plan_faults
from gpuplanner.scenario import Scenario
from gpuplanner.services import verify_services
from gpuplanner.services.plan_file import is_service_plan, services_from_json
from gpuplanner.study.decision.frames import target_in_words
from gpuplanner.study.decision_pack import MARK, write_pack
from gpuplanner.study.explain import solved
from gpuplanner.study.future.cost_review import CostReview, price_rows
from gpuplanner.study.future.drains import drain_of, rehearse
from gpuplanner.study.future.plans import NAME_THEM
from gpuplanner.study.study import Study

FORMATS = ("mig-parted", "configmap", "runbook", "slurm", "all")
NO_PLANS = ("README.md",)
"""Pages for people; ``verify`` reads back all other files."""

SHEETS = {
    "ledger_buckets": ("Ledger", ["gpu_hours"]),
    "ledger_tenants": ("Tenants", ["held_gpu_hours"]),
    "costs": ("Costs", []),
    "energy": ("Energy", ["gpu_hours", "energy_kwh", "location_kg", "market_kg", "embodied_kg"]),
    "policies": ("Policies", []),
    "waits": ("Waits", []),
    "rightsizing": ("Right-sizing", ["jobs", "gpu_hours"]),
    "weeks": ("Weeks", []),
    "layout_plan": ("Layout plan", []),
    "layout_counts": ("Layout counts", []),
    "layout_changes": ("Layout changes", ["changes"]),
    "choice": ("Forecast models", []),
    "scores": ("Forecast scores", []),
    "quality": ("Data quality", []),
}
"""Tables of the workbook: name of the sheet, and the columns added up at its foot. What ``ingest`` reads as a bill has
none: its sums stand on a sheet of their own."""
NAMED = {
    "total_cost": "EffectiveCost", "total_gpu_hours": "PricingQuantity", "total_energy_kwh": "x_EnergyKwh",
    "total_carbon_kg": "x_CarbonKg",
}  # fmt: skip


def read_plan(path: str | Path) -> tuple[Plan, PlanProblem]:
    """Read a plan.json with the problem in it."""
    pools = read_plans(path)
    if len(pools) > 1:
        text = message(
            str(path), "a plan of one pool", f"{len(pools)} pools", "Plan and export each by itself."
        )
        raise ScenarioError(text)
    return next(iter(pools.values()))


def read_plans(path: str | Path) -> dict[str, tuple[Plan, PlanProblem]]:
    """Read a plan.json of one pool or of a fleet, by pool."""
    text = read_text(path, error=ScenarioError, what="plan", limit_bytes=LARGEST_FILE)
    try:
        return fleet_from_json(text)
    except ScenarioError as error:
        fault = message(str(path), "a plan.json", str(error), "Plan again.")
        raise ScenarioError(fault) from error


def verify_any(
    path: str | Path,
    board: str | None,
    *,
    gpus_per_node: int = 8,
    against: Mapping[str, PlanProblem] | None = None,
) -> FileReport:
    """Check a plan or an exported file again, with code that shares nothing with what made it.

    Parameters
    ----------
    path : str or Path
        plan.json, a plan of services, a mig-parted file, a ConfigMap, or Slurm lines.
    board : str or None
        Board of the nodes; a plan names its own, which must then be the same.
    gpus_per_node : int
        GPUs on a node, for files that do not say.
    against : mapping of str to PlanProblem, optional
        Problems by pool that the plans must be of; the name does not matter where there is one. Without, a plan is
        held against the problem in its file, which is right about itself whoever wrote it.

    Returns
    -------
    FileReport
        Its words are those of the check; what a file says in words is not repeated.

    Raises
    ------
    GpuPlannerError
        If the file cannot be read, or the board is not known.
    """
    if not _is_plan(path):
        if board is None:
            text = message(str(path), "--board with the board of the nodes", "none", "Name it.")
            raise ScenarioError(text)
        return verify_file(path, board, gpus_per_node=gpus_per_node)
    text = read_text(path, error=ScenarioError, what="plan", limit_bytes=LARGEST_FILE)
    if is_service_plan(text):
        return _service_report(text, board)
    report = FileReport(ok=True)
    pools = read_plans(path)
    for name, (plan, problem) in pools.items():
        where = f"{name}: " if len(pools) > 1 else ""
        faults = _plan_faults(plan, problem, board)
        bound = BoundCheck(faults, "", proven=False) if faults else verify_bound(plan, problem)
        report.problems.extend(where + fault for fault in bound.faults)
        report.findings.extend(where + line for line in _held_against(plan, problem))
        (report.findings if bound.proven else report.unproven).append(where + bound.words)
    if against is not None:
        report.problems.extend(_differences({name: problem for name, (_, problem) in pools.items()}, against))
    if report.problems:
        return FileReport(ok=False, problems=report.problems)
    return replace(report, ok=not report.unproven)


def _plan_faults(plan: Plan, problem: PlanProblem, board: str | None) -> list[str]:
    """What is wrong with a plan, its bound aside."""
    own, faults = problem.board.name, list(verify(plan, problem))
    if board is not None and as_board(board).name != own:
        faults.append(f"the plan is for {own}, not for {as_board(board).name}")
    if own in board_names() and as_board(own) != problem.board:
        faults.append(f"the file describes {own} otherwise than the catalogue")
    if faults or not plan.found:
        return faults
    reboots = node_reboots(problem, plan.layouts, plan.counts, plan.parked)
    if plan.reboots != reboots:
        return [f"reboots: the plan says {plan.reboots}, its GPUs when numbered {reboots}"]
    return layout_plan_faults(assign(plan, problem), plan, problem)


def _held_against(plan: Plan, problem: PlanProblem) -> Iterator[str]:
    """What a plan was held against: figures of its problem, no words of it."""
    asked = float((problem.demand.sum(axis=(0, 2)) * problem.shares).sum()) * problem.slot_hours
    yield (
        f"held against the problem in the file: {asked:.6g} GPU-hours asked for in {problem.n_slots} slots from "
        f"{problem.slot_times[0]:%Y-%m-%d %H:%M} UTC on, {problem.gpus} x {problem.board.name}; "
        f"{problem.change.words()}"
    )
    if plan.found:
        yield "every layout is placed, and cost, changes, reboots and unmet demand are as recomputed"
    silent = None if problem.prices is None else replace(problem.prices, basis="")
    yield f"GPUs that are not needed are {replace(problem, prices=silent).idle_words}"


def _differences(found: Mapping[str, PlanProblem], due: Mapping[str, PlanProblem]) -> Iterator[str]:
    """In what the problems of a file are not those that they should be."""
    if len(found) == len(due) == 1:
        due = dict(zip(found, due.values(), strict=True))
    if set(found) != set(due):
        yield f"the file has the pools {examples(sorted(found))}, expected {examples(sorted(due))}"
        return
    for name, problem in found.items():
        own, other = problem.to_dict(), due[name].to_dict()
        if odd := [key for key in own if own[key] != other[key]]:
            yield f"the plan is of another problem than the one to hold it against: {', '.join(odd)} differ"


def export_plan(
    path: str | Path,
    out: str | Path,
    *,
    formats: str = "all",
    at: datetime | None = None,
    gres_type: str | None = None,
    scenario: Scenario | None = None,
) -> list[Path]:
    """Write a plan as the files that operators apply.

    Parameters
    ----------
    path : str or Path
        plan.json.
    out : str or Path
        Folder to put in place; what stood there stays if anything fails.
    formats : str
        One of :data:`FORMATS`.
    at : datetime, optional
        Only the layouts in force at that instant; default: the whole calendar.
    gres_type : str, optional
        Slurm's type of a whole GPU; default: what slurmd finds for the board.
    scenario : Scenario, optional
        What the plan was made of: says how changes are made, and rehearses them for the index.

    Returns
    -------
    list of Path
        The files, sorted.

    Raises
    ------
    ScenarioError
        If there is no such format, or nothing to apply.
    OutputError
        If a file does not hold when it is read back, or cannot be written.
    """
    plan, problem = read_plan(path)
    pack = calendar_pack(plan, problem, formats=formats, at=at, gres_type=gres_type, scenario=scenario)
    with replaced_directory(out, mark=MARK, inputs=[path]) as folder:
        write_pack(pack, folder)
        _prove(folder, problem)
    return [Path(out) / name for name in sorted(pack.files)]


def calendar_pack(
    plan: Plan,
    problem: PlanProblem,
    *,
    formats: str = "all",
    at: datetime | None = None,
    gres_type: str | None = None,
    scenario: Scenario | None = None,
) -> Pack:
    """The files of a planned calendar, a folder for each path; parameters as for :func:`export_plan`.

    What names of nodes cannot enter is left out with a warning, unless it is all that was asked for.
    """
    formats = resolve(formats, FORMATS, what="format", error=ScenarioError)
    board = problem.board
    if not board.profiles:
        text = message(
            f"export of a plan for {board.name}",
            "a plan for a board with MIG",
            "whole GPUs, switched on and off",
            "Plan for a board with MIG: name it with --board.",
        )
        raise ScenarioError(text)
    if problem.nodes is None:
        text = message("export", "a plan that names its nodes", "a plan of nodes without names", NAME_THEM)
        raise ScenarioError(text)
    layouts, initial = assign(plan.require(), problem), layouts_before(plan, problem)
    drain = drain_of(scenario or Scenario(path=problem.change.path), problem.change)
    known: dict[str, Any] = {"change": problem.change, "drain": drain, "initial": initial}
    wanted = FORMATS[:-1] if formats == "all" else (formats,)
    pack = Pack()
    if "mig-parted" in wanted:
        pack.add(
            to_mig_parted(layouts, board, at=at), Step("parted/mig-parted.yaml", "what mig-parted reads")
        )
    if "configmap" in wanted:
        place = "operator/configmap.yaml"
        apply, delete = (f"kubectl {verb} -f {place}" for verb in ("apply", "delete"))
        pack.add(
            to_config_map(layouts, board, at=at), Step(place, "the same for the operator", apply, "", delete)
        )
    if "runbook" in wanted:
        try:
            scripts = to_change_scripts(layouts, board, **known)
        except GeometryError as error:
            if formats == "runbook":
                raise
            scripts = {}
            pack.warnings.append(f"scripts for Kubernetes are left out: {error}")
        _add_scripts(pack, "operator", scripts)
    if "slurm" in wanted:
        if at is None:
            lines = to_slurm_files(layouts, board, gres_type=gres_type, **known)
        else:
            lines = {"slurm.conf": to_slurm(layouts, board, at, gres_type=gres_type)}
        pack.files |= {f"slurm/{name}": text for name, text in lines.items()}
        _add_scripts(
            pack, "slurm", {name: text for name, text in lines.items() if name.startswith("change-")}
        )
    if at is None and {"runbook", "slurm"} & set(wanted):
        index = change_index(
            layouts,
            board,
            **known,
            expected=None if scenario is None else rehearse(scenario, layouts, problem),
        )
        pack.files["changes.csv"] = guarded(index, FOCUS_TIME).write_csv()
        pack.add(to_index_text(index, board, problem.change), Step("changes.md", "every change, by time"))
    pack.files[PAGE] = filled("calendar.md", {"BOARD": board.name, **page_tables(pack)})
    return pack


def _add_scripts(pack: Pack, path: str, scripts: Mapping[str, str]) -> None:
    """The scripts of a calendar: which of them is due is for the timer to find out."""
    pack.files |= {f"{path}/{name}": text for name, text in scripts.items()}
    if scripts:
        do = f'for script in {path}/change-*.sh; do IF_DUE=yes bash "$script" apply; done'
        pack.steps.append(Step(f"{path}/change-*.sh", "a change each; does nothing unless it is due", do))


def write_study_workbook(
    path: str | Path, study: Study, more: Mapping[str, pl.DataFrame] | None = None
) -> Path:
    """Write the tables of a study, and more sheets by name, as a workbook whose totals are those of the report."""
    there = {name: study.tables[name] for name in SHEETS if name in study.tables}
    sheets = {SHEETS[name][0]: table for name, table in there.items() if table.width} | dict(more or {})
    totals = {sheet: columns for sheet, columns in SHEETS.values() if columns and sheet in sheets}
    return _with_totals(path, sheets, title=study.scenario.name, notes=notes(study), totals=totals)


def write_cost_workbook(
    path: str | Path, found: CostReview, more: Mapping[str, pl.DataFrame] | None = None
) -> Path:
    """Write a review of a month as a workbook for finance: charge lines as a bill is read, and what they sum to."""
    sheets = {
        "Costs": found.costs, "Tenants": found.by_tenant, "Reasons": found.by_bucket, "Ownership": found.by_ownership,
        "Ends": found.by_end, "Jobs": found.by_job, "Energy": found.states, "Prices": price_rows(found), **(more or {}),
    }  # fmt: skip
    told = {"Period": " to ".join(found.period), "Not stated": " ".join(found.missing) or "nothing"}
    totals = {"Energy": list(AMOUNTS)}
    there = {name: table for name, table in sheets.items() if table.width}
    return _with_totals(path, there, title=found.name, notes=told, totals=totals)


def _with_totals(
    path: str | Path,
    sheets: Mapping[str, pl.DataFrame],
    *,
    title: str,
    notes: Mapping[str, str],
    totals: Mapping[str, Sequence[str]],
) -> Path:
    """A workbook whose charge lines stand as a reader of bills takes them, summed on a sheet of their own."""
    name, summary = SHEETS["costs"][0], None
    if name in sheets and sheets[name].height:
        lines = sheets[name].with_columns(pl.selectors.datetime().dt.strftime(FOCUS_TIME))
        sheets = {**sheets, name: lines}
        summary = Summary(name, NAMED, "EffectiveCost", "SubAccountName")
    return write_workbook(path, sheets, title=title, notes=notes, totals=totals, summary=summary)


def notes(study: Study) -> Mapping[str, str]:
    """What a reader of a file must know: period, baseline, price, sources, versions."""
    price, trace = study.provenance.price, study.provenance.read
    return {
        "Period": f"{study.headline.observed_from} to {study.headline.observed_to}",
        "Source": f"{trace.source}, {trace.rows_kept} of {trace.rows_in} rows kept",
        "Files read": "; ".join(
            f"{name}: sha256 {sha}" for name, sha in sorted(study.provenance.inputs.items())
        ),
        "Baseline": study.provenance.policies["today"],
        "Service": target_in_words(study.comparison),
        "Fleet": f"{study.headline.fleet_gpus} GPUs of {study.headline.board or study.headline.boards}, "
        f"{study.headline.fleet_note}; {study.headline.installed_gpus} installed",
        "Decision": study.decision.sentence,
        "How sure": " ".join(study.decision.how_sure),
        "Price": "none"
        if price is None
        else f"{price.value:.4f} {price.currency} a GPU-hour; {price.source}; {price.date}",
        "Carbon": f"{study.provenance.carbon.source}; {study.provenance.carbon.year}",
        "Scenario": "; ".join(_stated(study.scenario)) or "all as it is by default",
        **solved(study),
        "gpuplanner": str(study.provenance.gpuplanner),
    }


def _stated(scenario: Scenario) -> Iterator[str]:
    """What a scenario says otherwise than by default, field by field."""
    for name, (_, stated) in Scenario().diff(scenario).items():
        yield f"{name} = {stated}"


def _service_report(text: str, board: str | None) -> FileReport:
    plan, profiles, rates, latencies = services_from_json(text)
    problems = verify_services(plan, profiles, rates, latencies)
    if board is not None and as_board(board).name != plan.board.name:
        problems.append(f"the plan is for {plan.board.name}, not for {as_board(board).name}")
    finding = (
        f"{plan.gpus} x {plan.board.name} for {len(rates)} services: every setting was measured, every rate is "
        "served, every GPU can be cut so"
    )
    return FileReport(ok=not problems, problems=problems, findings=[] if problems else [finding])


def _is_plan(path: str | Path) -> bool:
    try:
        with Path(path).open(encoding="utf-8") as stream:
            return stream.read(1) == "{" and Path(path).suffix == ".json"
    except (OSError, UnicodeDecodeError):
        return False


def _prove(folder: Path, problem: PlanProblem) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_dir() or any(path.match(name) for name in NO_PLANS):
            continue
        try:
            report = verify_file(path, problem.board, gpus_per_node=problem.gpus_per_node)
        except GpuPlannerError as error:
            raise OutputError(f"{path.name} cannot be read back: {error}") from error  # noqa: EM102
        if not report.ok:
            text = message(
                path.name,
                "an export that holds when it is read back",
                "; ".join(report.problems[:5]),
                "Report it.",
            )
            raise OutputError(text)
