"""Checks of plans and files that were handed over, against the cluster as it is."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner import ingest
from gpuplanner.core.errors import ScenarioError, examples
from gpuplanner.core.output_places import MANIFEST, WrittenFile, read_manifest
from gpuplanner.core.scenario_fields import DRAINED_UNIT_BY_ACTUATOR
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.serialization import read_text
from gpuplanner.hardware.catalog import mig_model_names, non_mig_model_names
from gpuplanner.hardware.gpu_models import GpuModel, as_gpu_model, load_any_gpu_model
from gpuplanner.hardware.mig_layouts import parse_layout, prove
from gpuplanner.ingest.gpu_model_resolution import expand_node_list
from gpuplanner.ingest.text_files import read_head
from gpuplanner.planner.layout_plan import (
    MAX_PLAN_FILE_BYTES,
    NodeState,
    Plan,
    check_layout_plan,
    format_utc,
    node_states_at,
)
from gpuplanner.planner.limit_verification import find_layout_plan_faults
from gpuplanner.planner.numbered_gpus import assign, count_node_reboots
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_variants import fleet_from_json
from gpuplanner.planner.plan_verification import verify
from gpuplanner.planner.service_plan import is_service_plan, services_from_json, verify_services
from gpuplanner.report.change_bundle import PAGE
from gpuplanner.report.export_verification import FileReport, states_layouts, verify_file

MADE_ELSEWHERE = "other"
"""Folder of a pack with what exporters of other packages make: only its hash is checked."""
UNCHANGED = "unchanged since export"
EDITED = "edited since export; this file has no other check"
EDITED_CHECKED = "edited since export; run gpuplanner verify on this file alone"
_PLAN_FORMAT = re.compile(r'"format":\s*"gpuplanner\.(?:plan|fleet-plan|services)/')


def read_plan(path: str | Path) -> tuple[Plan, PlanProblem]:
    """Read a plan.json with the problem in it."""
    pools = read_plans(path)
    if len(pools) > 1:
        raise ScenarioError(str(path), "a plan of one pool", f"{len(pools)} pools", "Export each alone.")
    return next(iter(pools.values()))


def read_plans(path: str | Path) -> dict[str, tuple[Plan, PlanProblem]]:
    """Read a plan.json of one pool or of a fleet, by pool."""
    text = read_text(path, error=ScenarioError, kind="plan", limit_bytes=MAX_PLAN_FILE_BYTES)
    try:
        return fleet_from_json(text)
    except ScenarioError as error:
        raise ScenarioError(str(path), "a plan.json", str(error), "Run gpuplanner plan again.") from error


def verify_any(
    path: str | Path,
    gpu_model: str | None,
    *,
    gpus_per_node: int | None = None,
    against: Mapping[str, PlanProblem] | None = None,
) -> FileReport:
    """Check a plan, an exported file or a whole pack again, with code that shares nothing with what made it.

    Plans are checked in full; of mig-parted files, ConfigMaps and Slurm lines, which people edit, the layouts; of all
    other files of a pack, whether they are as they were written, by the hash in its manifest.

    Parameters
    ----------
    path : str or Path
        plan.json, a plan of services, a mig-parted file, a ConfigMap, or Slurm lines; a pack or any file of one.
    gpu_model : str or None
        Board of the nodes; a plan names its own, which must then be the same. None: the one that the file names, else
        the page of its pack.
    gpus_per_node : int, optional
        GPUs on a node, for files that do not say; None: as many as the devices that a file names, else 8.
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
        return _pack_report(Path(path), gpu_model, gpus_per_node)
    listed = _listed_report(Path(path))
    if listed is not None:
        return listed
    if not _is_plan(path):
        gpu_model = gpu_model or _board_named(Path(path))
        if gpu_model is None:
            raise ScenarioError(str(path), "--gpu-model of the nodes", "none", "Add --gpu-model.")
        devices = re.findall(r"devices: \[(?:\d+, )*(\d+)\]", Path(path).read_text("utf-8", errors="replace"))
        gpus_per_node = gpus_per_node or max(map(int, devices), default=7) + 1
        return verify_file(path, load_any_gpu_model(gpu_model), gpus_per_node=gpus_per_node)
    text = read_text(path, error=ScenarioError, kind="plan", limit_bytes=MAX_PLAN_FILE_BYTES)
    if is_service_plan(text):
        return _service_report(text, gpu_model)
    report = FileReport(ok=True)
    pools = read_plans(path)
    for name, (plan, problem) in pools.items():
        where = f"{name}: " if len(pools) > 1 else ""
        faults = _plan_faults(plan, problem, gpu_model)
        report.problems.extend(where + fault for fault in faults)
        report.findings.extend(where + line for line in _held_against(plan, problem))
    if against is not None:
        report.problems.extend(_differences({name: problem for name, (_, problem) in pools.items()}, against))
    if report.problems:
        return FileReport(ok=False, problems=report.problems)
    return report


def _pack_report(folder: Path, gpu_model: str | None, gpus_per_node: int | None) -> FileReport:
    """Check all files of a pack: whether they are as they were written, and the layouts of those that people edit."""
    folder = _absolute(folder)
    listed = _listed_files(folder)
    if not listed:
        todo = "Give the folder of an export."
        raise ScenarioError(str(folder), "a change bundle with manifest.json", "no manifest", todo)
    files = {path: written for path, written in sorted(listed.items()) if path.is_relative_to(folder)}
    report = FileReport(ok=True)
    for path, written in files.items():
        name = path.relative_to(folder)
        if not path.is_file():
            report.problems.append(f"{name}: missing")
            continue
        checked = MADE_ELSEWHERE not in name.parts and _has_own_check(path)
        if not written.is_unchanged_at(path):
            report.problems.append(f"{name}: {EDITED_CHECKED if checked else EDITED}")
        elif checked:
            found = verify_any(path, gpu_model, gpus_per_node=gpus_per_node)
            report.problems.extend(f"{name}: {fault}" for fault in found.problems)
            report.findings.extend(f"{name}: {line}" for line in found.findings)
        else:
            report.findings.append(f"{name}: {UNCHANGED}")
    if not report.problems:
        gpu_model = gpu_model or _board_named(folder / PAGE)
        report.findings.insert(0, f"{len(files)} files unchanged since export, for {gpu_model}")
    return replace(report, ok=not report.problems)


def _listed_report(path: Path) -> FileReport | None:
    """Report on a file of a pack whose content has no check; None for all others."""
    written = None if _has_own_check(path) else _listed_files(path.parent).get(_absolute(path))
    if written is None:
        return None
    if written.is_unchanged_at(path):
        return FileReport(ok=True, findings=[UNCHANGED])
    return FileReport(ok=False, problems=[EDITED])


def _listed_files(folder: Path) -> dict[Path, WrittenFile]:
    """Files that the manifest of a folder lists, else that of one of the two folders above it."""
    folder = _absolute(folder)
    for home in (folder, *folder.parents[:2]):
        manifest = read_manifest(home)
        if manifest is not None:
            return {home / name: written for name, written in manifest[1].items() if name != MANIFEST}
    return {}


def _has_own_check(path: Path) -> bool:
    """Whether a file is a plan, or states layouts in a form that :func:`verify_file` checks."""
    if path.suffix == ".md":  # a page may quote lines of any kind
        return False
    try:
        text = read_text(path, error=ScenarioError, kind="file", limit_bytes=MAX_PLAN_FILE_BYTES)
    except ScenarioError:
        return False
    return states_layouts(text) or (path.suffix == ".json" and _PLAN_FORMAT.search(text) is not None)


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - links stay as they are named


def _board_named(path: Path) -> str | None:
    """The one board of the catalogue that a file names, else the page of the pack that it stands in."""
    for place in (path, *(folder / PAGE for folder in path.absolute().parents[:2])):
        with contextlib.suppress(ScenarioError):
            text = read_text(place, error=ScenarioError, kind="file", limit_bytes=MAX_PLAN_FILE_BYTES)
            named = {*mig_model_names(), *non_mig_model_names()} & set(re.findall(r"[\w.+-]*\w", text))
            if len(named) == 1:
                return named.pop()
    return None


def _plan_faults(plan: Plan, problem: PlanProblem, gpu_model: str | None) -> list[str]:
    """What is wrong with a plan."""
    own, faults = problem.gpu_model.name, list(verify(plan, problem))
    if gpu_model is not None and load_any_gpu_model(gpu_model).name != own:
        faults.append(f"the plan is for {own}, not for {load_any_gpu_model(gpu_model).name}")
    if own in mig_model_names() and as_gpu_model(own) != problem.gpu_model:
        faults.append(f"the file describes {own} differently from the catalogue")
    if plan.status == "unknown":
        faults.append("status: unknown, the file has no plan; run gpuplanner plan again")
    if faults or not plan.is_feasible:
        return faults
    reboots = count_node_reboots(problem, plan.layouts, plan.counts, plan.parked)
    if plan.reboots != reboots:
        return [f"reboots: the plan has {plan.reboots}, recomputed from its numbered GPUs {reboots}"]
    return find_layout_plan_faults(assign(plan, problem), plan, problem)


def _held_against(plan: Plan, problem: PlanProblem) -> Iterator[str]:
    """What a plan was held against: figures of its problem, no words of it."""
    asked = float((problem.demand.sum(axis=(0, 2)) * problem.shares).sum()) * problem.interval_hours
    yield (
        f"checked against the problem in the file: {asked:.6g} GPU-hours requested in {problem.n_slots} intervals from "
        f"{problem.slot_times[0]:%Y-%m-%d %H:%M} UTC, {problem.gpus} x {problem.gpu_model.name}; "
        f"{problem.change.describe_time()}"
    )
    if plan.is_feasible:
        yield "every layout can be placed; cost, changes, reboots and unmet demand equal the recomputed values"
    else:
        yield "no plan meets the limits: the GPUs that must stay unchanged already break them"
    silent = None if problem.prices is None else replace(problem.prices, basis="")
    yield f"GPUs that are not needed are {replace(problem, prices=silent).idle_gpus_text}"


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
            yield f"the plan is for another problem than the given one: {', '.join(odd)} differ"


def _service_report(text: str, gpu_model: str | None) -> FileReport:
    plan, profiles, rates, latencies = services_from_json(text)
    problems = verify_services(plan, profiles, rates, latencies)
    if gpu_model is not None and as_gpu_model(gpu_model).name != plan.gpu_model.name:
        problems.append(f"the plan is for {plan.gpu_model.name}, not for {as_gpu_model(gpu_model).name}")
    finding = (
        f"{plan.gpus} x {plan.gpu_model.name} for {len(rates)} services: every setting was measured, every rate is "
        "served, every layout can be placed"
    )
    return FileReport(ok=not problems, problems=problems, findings=[] if problems else [finding])


def _is_plan(path: str | Path) -> bool:
    try:
        with Path(path).open(encoding="utf-8") as stream:
            return stream.read(1) == "{" and Path(path).suffix == ".json"
    except (OSError, UnicodeDecodeError):
        return False


GPUS: dict[str, Any] = {
    "node": pl.String, "gpu": pl.Int32, "before": pl.String, "after": pl.String,
    "instances_removed": pl.Int32, "instances_made": pl.Int32,
}  # fmt: skip
VICTIMS: dict[str, Any] = {
    "job": pl.String, "tenant": pl.String, "node": pl.String, "profile": pl.String,
    "started": pl.Datetime("us", "UTC"), "ends_by": pl.Datetime("us", "UTC"),
}  # fmt: skip
_PLAN = re.compile(r'"format": *"gpuplanner\.')


@dataclass(frozen=True)
class Difference:
    """A cluster beside what a plan says of one instant.

    - ``gpus``: ``node``, ``gpu``, ``before``, ``after``, ``instances_removed``, ``instances_made`` of every GPU of the
      plan's nodes. Dumps count the instances of a node and do not number its GPUs, so that as many as can be are taken
      to stay.
    - ``victims``: Jobs at work that have to end for it: ``job``, ``tenant``, ``node``, ``profile``, ``started``, and
      ``ends_by`` by their limit.
    - ``problems``: Why the plan cannot be carried out like this.
    - ``notes``: What deserves a look.
    """

    gpus: pl.DataFrame
    victims: pl.DataFrame
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def changes(self) -> pl.DataFrame:
        """GPUs that change, and those that the files name on the same nodes and leave alone."""
        return self.gpus.filter((pl.col("before") != pl.col("after")).any().over("node"))

    def words(self) -> str:
        """Say what would be destroyed."""
        changed = self.gpus.filter(pl.col("before") != pl.col("after"))
        if changed.is_empty():
            return f"no GPU changes on {self.gpus['node'].n_unique()} nodes"
        beside = self.changes.height - changed.height
        return (
            f"{changed.height} GPUs on {changed['node'].n_unique()} nodes change: {changed['instances_removed'].sum()} "
            f"instances and full GPUs are removed, {changed['instances_made'].sum()} are created; {beside} other GPUs "
            f"in the files stay unchanged; {self.victims['job'].n_unique()} running jobs have to end"
        )


def difference(current: Sequence[str | Path], plan: str | Path, at: datetime | None = None) -> Difference:
    """Hold a cluster as it is against a plan.

    What it is comes from files of any source that the inbox reads: a dump of ``kubectl get nodes,pods -A -o json``,
    ``scontrol show node`` with ``sacct`` beside it, a node list, or another plan.
    """
    found, problem = read_plan(plan)
    table = check_layout_plan(assign(found, problem), problem.gpu_model)
    at = at or problem.slot_times[0]
    planned = node_states_at(table, at)
    there, jobs, problems = _as_it_is(current, problem.gpu_model, at)
    common = [node for node in planned if node in there]
    if not common:
        expected = f"nodes of one cluster, such as {examples(sorted(planned))}"
        got = "; ".join(problems[:5]) or (examples(sorted(there)) if there else "no node with GPUs")
        todo = "Give a dump of the cluster of the plan."
        raise ScenarioError(f"{', '.join(map(str, current))} beside {plan}", expected, got, todo)
    problems += [f"{node}: in the plan, but not in the cluster" for node in planned if node not in there]
    rows = []
    for node in common:
        held = there[node]
        if len(held) != len(planned[node].gpus):
            problems.append(f"{node}: {len(held)} GPUs in the cluster, {len(planned[node].gpus)} in the plan")
            continue
        rows += [_row(node, gpu, *pair, problem) for gpu, pair in enumerate(_lined_up(held, planned[node]))]
    gpus = pl.DataFrame(rows, schema=GPUS, orient="row")
    victims = _victims(gpus, jobs, problem)
    given_up = at + timedelta(seconds=problem.change.drain_s.high)
    late = victims.filter(pl.col("ends_by") > given_up)
    problems += [
        f"{row['node']}: job {row['job']} may run until {format_utc(row['ends_by'])}, after the timeout of the change "
        f"at {format_utc(given_up)}"
        for row in late.iter_rows(named=True)
    ]
    others = sorted(set(there) - set(planned))
    notes = [f"not in the plan, unchanged: {examples(others)}"] if others else []
    return Difference(gpus, victims, tuple(problems), tuple(notes))


def carried_out(current: str | Path, plan: str | Path, at: datetime | None = None) -> FileReport:
    """Check that a cluster is as a plan says of one instant."""
    found = difference([current], plan, at)
    wrong = [
        f"{node} GPU {gpu}: {before} in the cluster, {after} in the plan"
        for node, gpu, before, after, *_ in found.gpus.iter_rows()
        if before != after
    ]
    problems = [*(one for one in found.problems if ": job " not in one), *wrong]
    fine = [f"{node}: as planned" for node in found.gpus["node"].unique(maintain_order=True)]
    return FileReport(ok=not problems, problems=problems, findings=[] if problems else fine)


def _as_it_is(
    paths: Sequence[str | Path], gpu_model: GpuModel, at: datetime
) -> tuple[dict[str, list[str]], list[pl.DataFrame], list[str]]:
    """Layouts of the GPUs of each node, jobs, and what keeps these from being known."""
    there: dict[str, list[str]] = {}
    jobs: list[pl.DataFrame] = []
    problems: list[str] = []
    for path in paths:
        if Path(path).suffix == ".json" and _PLAN.search("".join(read_head(path))):
            earlier, problem = read_plan(path)
            states = node_states_at(check_layout_plan(assign(earlier, problem), problem.gpu_model), at)
            there |= {node: [layout for _, layout in state.gpus] for node, state in states.items()}
            continue
        tables = ingest.read("auto", path).tables
        jobs += [tables["jobs"]] if "jobs" in tables else []
        for row in tables["inventory"].iter_rows(named=True) if "inventory" in tables else ():
            node, model = row["node"], row["gpu_model"]
            if model is not None and model != gpu_model.name:
                problems.append(f"{node}: {model}, but the plan is for {gpu_model.name}")
            elif row["layouts"] is not None:
                there[node] = [_canonical(gpu_model, layout) for layout in row["layouts"].split(";")]
            elif row["mig_enabled"]:
                problems.append(f"{node}: MIG-partitioned, but the file does not show the layout")
            else:
                there[node] = [FULL_GPU] * row["gpus"]
    return there, jobs, problems


def _canonical(gpu_model: GpuModel, layout: str) -> str:
    proof = prove(gpu_model, parse_layout(layout))
    return layout if proof.layout is None or not proof.layout.placements else proof.layout.counts_text


def _lined_up(held: Sequence[str], planned: NodeState) -> Iterator[tuple[str, str]]:
    """Layout of each GPU of a node now and then, with as many that stay as there can be."""
    left, stays = list(held), []
    for _, layout in planned.gpus:
        stays.append(layout in left)
        if stays[-1]:
            left.remove(layout)
    for (_, layout), same in zip(planned.gpus, stays, strict=True):
        yield (layout, layout) if same else (left.pop(0), layout)


def _row(node: str, gpu: int, before: str, after: str, problem: PlanProblem) -> tuple[str, int, str, str, int, int]:
    if before == after:
        return node, gpu, before, after, 0, 0
    change = problem.change.change(before, after)
    return node, gpu, before, after, change.drained_units, len(change.created)


def _victims(gpus: pl.DataFrame, jobs: Sequence[pl.DataFrame], problem: PlanProblem) -> pl.DataFrame:
    """Jobs at work on nodes that are emptied; where GPUs are, on instances of the kinds that go."""
    changed = gpus.filter(pl.col("before") != pl.col("after"))
    by_gpu = DRAINED_UNIT_BY_ACTUATOR.get(problem.change.actuator, "gpu") == "gpu"
    gone: dict[str, set[str]] = {}
    for node, layout in changed.select("node", "before").iter_rows():
        gone.setdefault(node, set()).update(parse_layout(layout) or [FULL_GPU])
    rows = []
    for table in jobs:
        at_work = table.filter(pl.col("state") == "RUNNING", pl.col("node_list").is_not_null())
        for job in at_work.iter_rows(named=True):
            profile = job["profile_requested"] or FULL_GPU
            limit = job["time_limit_s"]
            known = limit is not None and job["start_time"] is not None
            ends = job["start_time"] + timedelta(seconds=limit) if known else None
            rows += [
                (job["job_id"], job["tenant"], node, profile, job["start_time"], ends)
                for node in expand_node_list(job["node_list"])
                if node in gone and (profile in gone[node] or not by_gpu)
            ]
    return pl.DataFrame(rows, schema=VICTIMS, orient="row").sort("node", "job")
