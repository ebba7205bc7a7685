"""Plans and files that were handed over, read back and checked with code that shares nothing with what made them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from gpuplanner.catalog import board_names, whole_board_names
from gpuplanner.errors import ScenarioError, examples, message
from gpuplanner.export import FileReport, verify_file
from gpuplanner.export.pack import PAGE
from gpuplanner.files import MANIFEST, read_text
from gpuplanner.files.manifest import read_manifest
from gpuplanner.hardware import any_board, as_board
from gpuplanner.planner import (
    Plan,
    PlanProblem,
    assign,
    fleet_from_json,
    verify,
)
from gpuplanner.planner.contract.plan import LARGEST_FILE
from gpuplanner.planner.numbered.assign import node_reboots
from gpuplanner.planner.verification.numbered_gpus import layout_plan_faults
from gpuplanner.services import verify_services
from gpuplanner.services.plan_file import is_service_plan, services_from_json

MADE_ELSEWHERE = "other"
"""Folder of a pack with what exporters of other packages make: only they can read it back."""
FOR_PEOPLE = (".xlsx",)
"""Endings of files of a pack that hold nothing to apply, as its page does."""


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
    """Check a plan, an exported file or a whole pack again, with code that shares nothing with what made it.

    Parameters
    ----------
    path : str or Path
        plan.json, a plan of services, a mig-parted file, a ConfigMap, or Slurm lines; or the folder of a pack.
    board : str or None
        Board of the nodes; a plan names its own, which must then be the same. None: the one that the file names, else
        the page of its pack.
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
    if Path(path).is_dir():
        return _pack_report(Path(path), board, gpus_per_node)
    if not _is_plan(path):
        board = board or _board_named(Path(path))
        if board is None:
            text = message(str(path), "--board with the board of the nodes", "none", "Name it.")
            raise ScenarioError(text)
        return verify_file(path, any_board(board), gpus_per_node=gpus_per_node)
    text = read_text(path, error=ScenarioError, what="plan", limit_bytes=LARGEST_FILE)
    if is_service_plan(text):
        return _service_report(text, board)
    report = FileReport(ok=True)
    pools = read_plans(path)
    for name, (plan, problem) in pools.items():
        where = f"{name}: " if len(pools) > 1 else ""
        faults = _plan_faults(plan, problem, board)
        report.problems.extend(where + fault for fault in faults)
        report.findings.extend(where + line for line in _held_against(plan, problem))
    if against is not None:
        report.problems.extend(_differences({name: problem for name, (_, problem) in pools.items()}, against))
    if report.problems:
        return FileReport(ok=False, problems=report.problems)
    return report


def _pack_report(folder: Path, board: str | None, gpus_per_node: int) -> FileReport:
    """All files of a pack: whether they are as they were written, and what each says, proved again."""
    manifests = ((home, read_manifest(home)) for home in (folder, folder.parent))
    home, told = next((one for one in manifests if one[1] is not None), (folder, None))
    if told is None:
        text = message(
            str(folder),
            "a pack, which has a manifest.json",
            "none in this folder",
            "Name the folder of an export.",
        )
        raise ScenarioError(text)
    files = {home / name: one for name, one in told[1].items() if name != MANIFEST}
    mine = {path: one for path, one in sorted(files.items()) if path.is_relative_to(folder)}
    report = FileReport(ok=True)
    for path, written in mine.items():
        name = path.relative_to(folder)
        if not written.still_in(path):
            report.problems.append(f"{name}: gone, or changed since it was written")
        elif MADE_ELSEWHERE not in name.parts and path.suffix not in FOR_PEOPLE and path.name != PAGE:
            one = verify_any(path, board, gpus_per_node=gpus_per_node)
            report.problems.extend(f"{name}: {fault}" for fault in one.problems)
            report.findings.extend(f"{name}: {line}" for line in one.findings)
    if not report.problems:
        board = board or _board_named(folder / PAGE)
        report.findings.insert(0, f"{len(mine)} files as they were written, for {board}")
    return replace(report, ok=not report.problems)


def _board_named(path: Path) -> str | None:
    """The one board of the catalogue that a file names, else the page of the pack that it stands in."""
    for place in (path, *(folder / PAGE for folder in path.absolute().parents[:2])):
        with contextlib.suppress(ScenarioError):
            text = read_text(place, error=ScenarioError, what="file", limit_bytes=LARGEST_FILE)
            named = {*board_names(), *whole_board_names()} & set(re.findall(r"[\w.+-]*\w", text))
            if len(named) == 1:
                return named.pop()
    return None


def _plan_faults(plan: Plan, problem: PlanProblem, board: str | None) -> list[str]:
    """What is wrong with a plan."""
    own, faults = problem.board.name, list(verify(plan, problem))
    if board is not None and any_board(board).name != own:
        faults.append(f"the plan is for {own}, not for {any_board(board).name}")
    if own in board_names() and as_board(own) != problem.board:
        faults.append(f"the file describes {own} otherwise than the catalogue")
    if plan.status == "unknown":
        faults.append("status: unknown, there is no plan; plan again")
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
    else:
        yield "no plan keeps the limits: what must stay alone does not"
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
