"""Verification of plans and change bundles, and comparison of a plan with the present cluster."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner import ingest
from gpuplanner.core.errors import GpuPlannerError, ScenarioError, examples
from gpuplanner.core.output_manifests_and_overwrite_checks import (
    MANIFEST,
    WrittenFile,
    list_foreign_entries,
    read_manifest,
)
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.serialization import read_text
from gpuplanner.core.setting_rules_and_controls import DRAINED_UNIT_BY_ACTUATOR
from gpuplanner.core.units_and_number_formats import count_text
from gpuplanner.hardware.catalog import mig_model_names, non_mig_model_names
from gpuplanner.hardware.gpu_models import GpuModel, as_gpu_model, load_any_gpu_model
from gpuplanner.hardware.mig_layouts import parse_layout, prove
from gpuplanner.ingest.gpu_model_resolution_and_node_lists import expand_node_list
from gpuplanner.ingest.text_files import read_head
from gpuplanner.planner.fleet_plans_and_comparisons import fleet_from_json
from gpuplanner.planner.inference_service_plan import is_service_plan, services_from_json, verify_services
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
from gpuplanner.planner.plan_verification import verify
from gpuplanner.report.change_bundle import README_FILE
from gpuplanner.report.change_bundle_parts import CHECKSUMS_FILE
from gpuplanner.report.export_verification import FileReport, looks_like_layout_file, verify_file

UNCHECKED_FOLDER = "other"
"""Folder of a bundle with the files of third-party exporters, of which only the hash is checked."""
UNCHANGED_TEXT = "unchanged since export"
"""Finding on a file of a bundle that is only checked by the hash in its manifest, which it has."""
UNCHANGED_FILES_TEXT = f"files {UNCHANGED_TEXT}"
"""Finding on all files of a bundle, after their number."""
EDITED_TEXT = "edited since export"
"""Problem of a file of a bundle with another hash than in its manifest, whose layouts are checked as well."""
EDITED_UNCHECKED_TEXT = f"{EDITED_TEXT}; this file has no other check"
"""Problem of a file of a bundle with another hash than in its manifest, which nothing else checks."""
_STATED_MODEL_PATTERN = re.compile(r"(?:of gpuplanner for|GPU model) ([\w.+-]*\w)")
"""Text in a README or a file of an export that states the GPU model."""
_VERIFIABLE_PLAN_PATTERN = re.compile(r'"format":\s*"gpuplanner\.(?:plan|fleet-plan|services)/')
"""Format line of JSON files that can be verified: a plan, a fleet plan or a plan of services."""


def read_plan(path: str | Path) -> tuple[Plan, PlanProblem]:
    """Read a plan.json of one GPU pool, with the problem that it solves."""
    pools = read_plans(path)
    if len(pools) > 1:
        raise ScenarioError(str(path), "a plan of one pool", f"{len(pools)} pools", "Export each alone.")
    return next(iter(pools.values()))


def read_plans(path: str | Path) -> dict[str, tuple[Plan, PlanProblem]]:
    """Read a plan.json of one GPU pool or of a fleet, by pool."""
    text = read_text(path, error=ScenarioError, kind="plan", limit_bytes=MAX_PLAN_FILE_BYTES)
    try:
        return fleet_from_json(text)
    except ScenarioError as error:
        raise ScenarioError(str(path), "a plan.json", str(error), "Run gpuplanner plan again.") from error


def verify_any(
    path: str | Path, gpu_model: str | None, *, gpus_per_node: int | None = None,
    expected_problems: Mapping[str, PlanProblem] | None = None,
) -> FileReport:  # fmt: skip
    """Verify a plan, an exported file or a whole change bundle with code independent of the planner.

    Plans are checked in full. Of mig-parted files, ConfigMaps and Slurm lines, which people edit, the layouts are
    checked; of all other files of a bundle, the hash in its manifest.

    Parameters
    ----------
    path : str or Path
        plan.json, a plan of services, a mig-parted file, a ConfigMap, Slurm lines, or a bundle or any file of one.
    gpu_model : str or None
        GPU model of the nodes; that of a plan must be the same. None: the one that the file names, else the README of
        its bundle.
    gpus_per_node : int, optional
        GPUs on a node, for files that do not show it; None: as many as the devices that a file names, else 8.
    expected_problems : mapping of str to PlanProblem, optional
        Problems by pool that the plans must solve; the name is ignored if there is one. Without, a plan is checked
        against the problem in its file.

    Returns
    -------
    FileReport
        Messages of the checks; text from the file is not repeated.

    Raises
    ------
    GpuPlannerError
        If the file cannot be read, or the GPU model is unknown.
    """
    if not Path(path).exists():
        expected = "a plan, a file or folder of an export, or a report folder"
        raise ScenarioError(str(path), expected, "no such file or folder", "Check the path.")
    if Path(path).is_dir():
        return _check_bundle(Path(path), gpu_model, gpus_per_node)
    listed_report = _check_listed_file(Path(path))
    if listed_report is not None:
        return listed_report
    if not _is_plan(path):
        gpu_model = gpu_model or _find_gpu_model_in_text(Path(path))
        if gpu_model is None:
            raise ScenarioError(str(path), "--gpu-model of the nodes", "none", "Add --gpu-model.")
        gpus_per_node = gpus_per_node or _count_gpus_in_text(Path(path).read_text("utf-8", errors="replace"))
        return verify_file(path, load_any_gpu_model(gpu_model), gpus_per_node=gpus_per_node)
    text = read_text(path, error=ScenarioError, kind="plan", limit_bytes=MAX_PLAN_FILE_BYTES)
    if is_service_plan(text):
        return _check_services_plan(text, gpu_model)
    report = FileReport()
    pools = read_plans(path)
    for name, (plan, problem) in pools.items():
        prefix = f"{name}: " if len(pools) > 1 else ""
        faults = _plan_faults(plan, problem, gpu_model)
        report.problems.extend(prefix + fault for fault in faults)
        report.findings.extend(prefix + line for line in _describe_problem(plan, problem))
    if expected_problems is not None:
        problems = {name: problem for name, (_, problem) in pools.items()}
        report.problems.extend(_compare_problems(problems, expected_problems))
    return FileReport(report.problems) if report.problems else report


def _check_bundle(folder: Path, gpu_model: str | None, gpus_per_node: int | None) -> FileReport:
    """Check that all files of a change bundle are unchanged since export, and verify its plans and layouts."""
    folder = _to_absolute_path(folder)
    listed = _listed_files(folder)
    bundles = [] if listed else sorted(path.parent for path in folder.glob(f"*/{MANIFEST}"))
    if bundles:
        return _join_reports(folder, {path: _check_bundle(path, gpu_model, gpus_per_node) for path in bundles})
    if not listed:
        todo = "Give the folder of an export, or one file."
        if (folder / CHECKSUMS_FILE).is_file():
            todo = f"A copy has none: run sha256sum --check {CHECKSUMS_FILE} there, or verify the folder of the report."
        raise ScenarioError(str(folder), "a change bundle with manifest.json", "no manifest", todo)
    files = {path: written for path, written in sorted(listed.items()) if path.is_relative_to(folder)}
    report = FileReport()
    for path, written in files.items():
        name = path.relative_to(folder)
        if not path.is_file():
            report.problems.append(f"{name}: missing")
            continue
        has_check = UNCHECKED_FOLDER not in name.parts and _has_own_check(path)
        file_report = FileReport(findings=[] if has_check else [UNCHANGED_TEXT])
        if not written.is_unchanged_at(path):
            report.problems.append(f"{name}: {EDITED_TEXT if has_check else EDITED_UNCHECKED_TEXT}")
            file_report = FileReport()
        if has_check:
            try:
                file_report = verify_any(path, gpu_model, gpus_per_node=gpus_per_node)
            except GpuPlannerError as error:
                file_report = FileReport([str(error)])
        report.problems.extend(f"{name}: {fault}" for fault in file_report.problems)
        report.findings.extend(f"{name}: {line}" for line in file_report.findings)
    known_files = {path.relative_to(folder).as_posix(): file for path, file in files.items()} | {
        MANIFEST: WrittenFile(None, None)
    }
    # Folders with a manifest of their own are other results, and the scripts keep earlier layouts beside themselves.
    added = [
        name
        for name in list_foreign_entries(folder, known_files)
        if name not in known_files and not name.endswith(".before") and not (folder / name / MANIFEST).is_file()
    ]
    report.problems.extend(f"{name}: not part of the export; remove it" for name in added)
    n_unchanged = sum(path.is_file() and written.is_unchanged_at(path) for path, written in files.items())
    if report.problems:
        report.findings.insert(0, f"{n_unchanged} of {len(files)} {UNCHANGED_FILES_TEXT}")
    else:
        gpu_model = gpu_model or _find_gpu_model_in_text(folder / README_FILE)
        for_model = f", for {gpu_model}" if gpu_model else ""
        report.findings.insert(0, f"{n_unchanged} {UNCHANGED_FILES_TEXT}{for_model}")
    return report


def summarize_findings(findings: Sequence[str], max_lines: int = 8) -> list[str]:
    """Summarize findings of a verification in at most `max_lines` lines and those on whole bundles.

    The checks of a file, or of a node, are counted; files without a check of their own are in the line on the bundle.

    Examples
    --------
    >>> gpus = [f"slurm.conf: node n{node}: gpu {gpu}: gpu" for node in (1, 2) for gpu in range(8)]
    >>> summarize_findings(["3 files unchanged since export", "README.md: unchanged since export", *gpus])
    ['3 files unchanged since export', 'slurm.conf: 16 checks passed']
    """
    if len(findings) <= max_lines:
        return list(findings)
    on_bundles = [finding for finding in findings if UNCHANGED_FILES_TEXT in finding]
    checks = [finding for finding in findings if UNCHANGED_TEXT not in finding]
    entries = Counter(finding.partition(": ")[0] for finding in checks)
    lines = [f"{name}: {count_text(number, 'check')} passed" for name, number in entries.items()]
    if len(lines) > max_lines:
        lines = [f"{len(checks):,} checks passed, of {examples(list(entries))}"]
    return [*on_bundles, *lines]


def _join_reports(folder: Path, reports: Mapping[Path, FileReport]) -> FileReport:
    """Join the reports of several bundles in a folder, each with the name of its bundle."""
    joined = FileReport()
    for path, report in reports.items():
        joined.problems.extend(f"{path.relative_to(folder)}/{fault}" for fault in report.problems)
        joined.findings.extend(f"{path.relative_to(folder)}: {finding}" for finding in report.findings)
    return joined


def _check_listed_file(path: Path) -> FileReport | None:
    """Check the hash of a file that a manifest lists, if its content has no other check; None for all other files."""
    written = None if _has_own_check(path) else _listed_files(path.parent).get(_to_absolute_path(path))
    if written is None:
        return None
    is_unchanged = written.is_unchanged_at(path)
    return FileReport(findings=[UNCHANGED_TEXT]) if is_unchanged else FileReport([EDITED_UNCHECKED_TEXT])


def _listed_files(folder: Path) -> dict[Path, WrittenFile]:
    """Read files and hashes from the nearest manifest, of a folder or one above it, that lists files of the folder."""
    folder = _to_absolute_path(folder)
    for home in (folder, *folder.parents):
        manifest = read_manifest(home) or ("", {})
        files = {home / name: written for name, written in manifest[1].items() if name != MANIFEST}
        if any(path.is_relative_to(folder) for path in files):
            return files
    return {}


def _has_own_check(path: Path) -> bool:
    """Whether a file is a plan, or has layouts in a form that :func:`verify_file` checks."""
    if path.suffix == ".md":  # a page may quote lines of any kind
        return False
    try:
        text = read_text(path, error=ScenarioError, kind="file", limit_bytes=MAX_PLAN_FILE_BYTES)
    except ScenarioError:
        return False
    return looks_like_layout_file(text) or (
        path.suffix == ".json" and _VERIFIABLE_PLAN_PATTERN.search(text) is not None
    )


def _to_absolute_path(path: Path) -> Path:
    """Make a path absolute without resolving links."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - links stay as they are named


def _find_gpu_model_in_text(path: Path) -> str | None:
    """Return the GPU model that a file names, or else the README of its bundle; None if they name none or several."""
    for candidate in (path, *(folder / README_FILE for folder in path.absolute().parents[:2])):
        with contextlib.suppress(ScenarioError):
            text = read_text(candidate, error=ScenarioError, kind="file", limit_bytes=MAX_PLAN_FILE_BYTES)
            known_names = {*mig_model_names(), *non_mig_model_names()}
            stated = _STATED_MODEL_PATTERN.search(text)  # teams and nodes may be named after GPU models, too
            words = [stated[1]] if stated and stated[1] in known_names else re.findall(r"[\w.+-]*\w", text)
            model_names = known_names & set(words)
            if len(model_names) == 1:
                return model_names.pop()
    return None


def _count_gpus_in_text(text: str) -> int:
    """Count the GPUs of a node that a file names by index, or as 16 full GPUs in Slurm (two boards); else 8.

    Examples
    --------
    >>> _count_gpus_in_text("NodeName=n1 Gres=gpu:v100:16"), _count_gpus_in_text("devices: [0, 1]")
    (16, 2)
    """
    devices = [int(index) + 1 for index in re.findall(r"devices: \[(?:\d+, )*(\d+)\]", text)]
    full_gpus = re.findall(r"gpu:(?:(?!\d+g\.)[^:,\s])+:(\d{1,2})(?!\d)", text)
    return max(devices, default=16 if "16" in full_gpus else 8)


def _plan_faults(plan: Plan, problem: PlanProblem, gpu_model: str | None) -> list[str]:
    """List what is wrong with a plan: recomputed cost and changes, GPU model, reboots, layouts of single GPUs."""
    model_name, faults = problem.gpu_model.name, list(verify(plan, problem))
    if gpu_model is not None and load_any_gpu_model(gpu_model).name != model_name:
        faults.append(f"the plan is for {model_name}, not for {load_any_gpu_model(gpu_model).name}")
    if model_name in mig_model_names() and as_gpu_model(model_name) != problem.gpu_model:
        faults.append(f"the file describes {model_name} differently from the catalog")
    if plan.status == "unknown":
        faults.append("status: unknown, the file has no plan; run gpuplanner plan again")
    if faults or not plan.is_feasible:
        return faults
    reboots = count_node_reboots(problem, plan.layouts, plan.counts, plan.parked)
    if plan.reboots != reboots:
        return [f"reboots: the plan has {plan.reboots}, recomputed from its numbered GPUs {reboots}"]
    return find_layout_plan_faults(assign(plan, problem), plan, problem)


def _describe_problem(plan: Plan, problem: PlanProblem) -> Iterator[str]:
    """Yield sentences on the problem that a plan was checked against: demand, intervals, GPUs, duration of a change."""
    requested_gpu_hours = float((problem.demand.sum(axis=(0, 2)) * problem.shares).sum()) * problem.interval_hours
    yield (
        f"checked against the problem in the file: {requested_gpu_hours:.6g} GPU-hours requested in {problem.n_slots} "
        f"intervals from {problem.slot_times[0]:%Y-%m-%d %H:%M} UTC, {problem.gpus} x {problem.gpu_model.name}; "
        f"{problem.change.describe_time()}"
    )
    if plan.is_feasible:
        yield "every layout can be placed; cost, changes, reboots and unmet demand equal the recomputed values"
    else:
        yield "no plan meets the limits: the GPUs that must stay unchanged already break them"
    prices_without_text = None if problem.prices is None else replace(problem.prices, basis="")
    yield f"GPUs that are not needed are {replace(problem, prices=prices_without_text).idle_gpus_text}"


def _compare_problems(problems: Mapping[str, PlanProblem], expected: Mapping[str, PlanProblem]) -> Iterator[str]:
    """Yield a message for each GPU pool whose planning problem in a file differs from the expected one."""
    if len(problems) == len(expected) == 1:
        expected = dict(zip(problems, expected.values(), strict=True))
    if set(problems) != set(expected):
        yield f"the file has the pools {examples(sorted(problems))}, expected {examples(sorted(expected))}"
        return
    for name, problem in problems.items():
        facts, expected_facts = problem.to_dict(), expected[name].to_dict()
        if differing_keys := [key for key in facts if facts[key] != expected_facts[key]]:
            yield f"the plan is for another problem than the given one: {', '.join(differing_keys)} differ"


def _check_services_plan(text: str, gpu_model: str | None) -> FileReport:
    """Verify a plan of services, which is given as the JSON text of its file."""
    plan, profiles, rates, latencies = services_from_json(text)
    problems = verify_services(plan, profiles, rates, latencies)
    if gpu_model is not None and as_gpu_model(gpu_model).name != plan.gpu_model.name:
        problems.append(f"the plan is for {plan.gpu_model.name}, not for {as_gpu_model(gpu_model).name}")
    finding = (
        f"{plan.gpus} x {plan.gpu_model.name} for {len(rates)} services: every setting was measured, every rate is "
        "served, every layout can be placed"
    )
    return FileReport(problems, [] if problems else [finding])


def _is_plan(path: str | Path) -> bool:
    """Whether a file is to be read as plan.json, judged by its suffix and its first character."""
    try:
        with Path(path).open(encoding="utf-8") as stream:
            return stream.read(1) == "{" and Path(path).suffix == ".json"
    except (OSError, UnicodeDecodeError):
        return False


GPU_CHANGES_SCHEMA: dict[str, Any] = {
    "node": pl.String, "gpu": pl.Int32, "before": pl.String, "after": pl.String,
    "instances_removed": pl.Int32, "instances_made": pl.Int32,
}  # fmt: skip
"""Columns of ``LayoutDifference.gpus``: one row for each GPU with its layouts before and after."""
ENDING_JOBS_SCHEMA: dict[str, Any] = {
    "job": pl.String, "tenant": pl.String, "node": pl.String, "profile": pl.String,
    "started": pl.Datetime("us", "UTC"), "ends_by": pl.Datetime("us", "UTC"),
}  # fmt: skip
"""Columns of ``LayoutDifference.ending_jobs``: one row for each running job and node."""
_GPUPLANNER_FILE_PATTERN = re.compile(r'"format": *"gpuplanner\.')
"""Format line of any JSON file that gpuplanner wrote, such as a plan."""


@dataclass(frozen=True)
class LayoutDifference:
    """Differences between the layouts of the present cluster and those of a plan at one time.

    - ``gpus``: ``node``, ``gpu``, ``before``, ``after``, ``instances_removed``, ``instances_made`` of every GPU of the
      plan's nodes. Dumps count the instances of a node without GPU numbers, so as many as possible are taken as
      unchanged.
    - ``ending_jobs``: Running jobs that have to end: ``job``, ``tenant``, ``node``, ``profile``, ``started``, and
      ``ends_by`` from their time limit.
    - ``problems``: Why the plan cannot be carried out.
    - ``notes``: Remarks.
    """

    gpus: pl.DataFrame
    ending_jobs: pl.DataFrame
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def changes(self) -> pl.DataFrame:
        """GPUs that change, with the unchanged GPUs of the same nodes."""
        return self.gpus.filter((pl.col("before") != pl.col("after")).any().over("node"))

    def describe(self) -> str:
        """Describe how many GPUs and nodes change, instances are removed and created, and jobs have to end."""
        changed = self.gpus.filter(pl.col("before") != pl.col("after"))
        if changed.is_empty():
            return f"no GPU changes on {self.gpus['node'].n_unique()} nodes"
        unchanged_gpus = self.changes.height - changed.height
        return (
            f"{changed.height} GPUs on {changed['node'].n_unique()} nodes change: {changed['instances_removed'].sum()} "
            f"instances and full GPUs are removed, {changed['instances_made'].sum()} are created; {unchanged_gpus} "
            f"other GPUs in the files stay unchanged; {self.ending_jobs['job'].n_unique()} running jobs have to end"
        )


def compare_with_plan(
    current: Sequence[str | Path], plan_path: str | Path, time: datetime | None = None
) -> LayoutDifference:
    """Compare the present cluster with a plan.

    Parameters
    ----------
    current : sequence of str or Path
        Files that `ingest` reads: a dump of ``kubectl get nodes,pods -A -o json``, ``scontrol show node`` with
        ``sacct``, a node list, or another plan.
    plan_path : str or Path
        plan.json.
    time : datetime, optional
        Time of the plan; default: its first interval.

    Returns
    -------
    LayoutDifference
        GPUs that change and running jobs that have to end.

    Raises
    ------
    ScenarioError
        If cluster and plan have no node in common.
    """
    plan_of_file, problem = read_plan(plan_path)
    table = check_layout_plan(assign(plan_of_file, problem), problem.gpu_model)
    time = time or problem.slot_times[0]
    planned = node_states_at(table, time)
    cluster, jobs, problems = _read_cluster(current, problem.gpu_model, time)
    common = [node for node in planned if node in cluster]
    if not common:
        expected = f"the nodes of {plan_path}, such as {examples(sorted(planned))}"
        got = "; ".join(problems[:5]) or (examples(sorted(cluster)) if cluster else "no node with GPUs")
        todo = "Give a dump of the cluster of the plan."
        raise ScenarioError(", ".join(map(str, current)), expected, got, todo)
    problems += [f"{node}: in the plan, but not in the cluster" for node in planned if node not in cluster]
    rows = []
    for node in common:
        layouts = cluster[node]
        if len(layouts) != len(planned[node].gpus):
            problems.append(f"{node}: {len(layouts)} GPUs in the cluster, {len(planned[node].gpus)} in the plan")
            continue
        pairs = _match_layouts(layouts, planned[node])
        rows += [_gpu_change_row(node, gpu, *pair, problem) for gpu, pair in enumerate(pairs)]
    gpus = pl.DataFrame(rows, schema=GPU_CHANGES_SCHEMA, orient="row")
    ending_jobs = _find_ending_jobs(gpus, jobs, problem)
    timeout = time + timedelta(seconds=problem.change.drain_s.high)
    jobs_after_timeout = ending_jobs.filter(pl.col("ends_by") > timeout)
    problems += [
        f"{row['node']}: job {row['job']} may run until {format_utc(row['ends_by'])}, after the timeout of the change "
        f"at {format_utc(timeout)}"
        for row in jobs_after_timeout.iter_rows(named=True)
    ]
    nodes_outside = sorted(set(cluster) - set(planned))
    notes = [f"not in the plan, unchanged: {examples(nodes_outside)}"] if nodes_outside else []
    return LayoutDifference(gpus, ending_jobs, tuple(problems), tuple(notes))


def verify_carried_out(current: str | Path, plan_path: str | Path, time: datetime | None = None) -> FileReport:
    """Check that the present cluster has the layouts of a plan at one time."""
    comparison = compare_with_plan([current], plan_path, time)
    mismatches = [
        f"{node} GPU {gpu}: {before} in the cluster, {after} in the plan"
        for node, gpu, before, after, *_ in comparison.gpus.iter_rows()
        if before != after
    ]
    problems = [*(problem for problem in comparison.problems if ": job " not in problem), *mismatches]
    if mismatches:
        problems.append("a plan is a layout schedule; section 4 of export/README.md verifies the recommended layout")
    matches = [f"{node}: as planned" for node in comparison.gpus["node"].unique(maintain_order=True)]
    return FileReport(problems, [] if problems else matches)


def _read_cluster(
    paths: Sequence[str | Path], gpu_model: GpuModel, time: datetime
) -> tuple[dict[str, list[str]], list[pl.DataFrame], list[str]]:
    """Read cluster dumps: GPU layouts by node, tables of jobs, and reasons why layouts of nodes are not known."""
    layouts: dict[str, list[str]] = {}
    jobs: list[pl.DataFrame] = []
    problems: list[str] = []
    for path in paths:
        if Path(path).suffix == ".json" and _GPUPLANNER_FILE_PATTERN.search("".join(read_head(path))):
            earlier, problem = read_plan(path)
            states = node_states_at(check_layout_plan(assign(earlier, problem), problem.gpu_model), time)
            layouts |= {node: [layout for _, layout in state.gpus] for node, state in states.items()}
            continue
        tables = ingest.read("auto", path).tables
        jobs += [tables["jobs"]] if "jobs" in tables else []
        for row in tables["inventory"].iter_rows(named=True) if "inventory" in tables else ():
            node, model = row["node"], row["gpu_model"]
            if model is not None and model != gpu_model.name:
                problems.append(f"{node}: {model}, but the plan is for {gpu_model.name}")
            elif row["layouts"] is not None:
                layouts[node] = [_to_canonical_layout(gpu_model, layout) for layout in row["layouts"].split(";")]
            elif row["mig_enabled"]:
                problems.append(f"{node}: MIG-partitioned, but the file does not show the layout")
            else:
                layouts[node] = [FULL_GPU] * row["gpus"]
    return layouts, jobs, problems


def _to_canonical_layout(gpu_model: GpuModel, layout: str) -> str:
    """Return a layout with its profiles in canonical order; unchanged if it cannot be placed on the GPU model."""
    proof = prove(gpu_model, parse_layout(layout))
    return layout if proof.layout is None or not proof.layout.placements else proof.layout.counts_text


def _match_layouts(current_layouts: Sequence[str], planned_state: NodeState) -> Iterator[tuple[str, str]]:
    """Pair present and planned layouts of a node so that as many GPUs as possible stay unchanged."""
    unmatched, stays = list(current_layouts), []
    for _, layout in planned_state.gpus:
        stays.append(layout in unmatched)
        if stays[-1]:
            unmatched.remove(layout)
    for (_, layout), is_unchanged in zip(planned_state.gpus, stays, strict=True):
        yield (layout, layout) if is_unchanged else (unmatched.pop(0), layout)


def _gpu_change_row(
    node: str, gpu: int, before: str, after: str, problem: PlanProblem
) -> tuple[str, int, str, str, int, int]:
    """Make a row of :data:`GPU_CHANGES_SCHEMA`, with the numbers of instances removed and created."""
    if before == after:
        return node, gpu, before, after, 0, 0
    change = problem.change.change(before, after)
    return node, gpu, before, after, change.drained_units, len(change.created)


def _find_ending_jobs(gpus: pl.DataFrame, jobs: Sequence[pl.DataFrame], problem: PlanProblem) -> pl.DataFrame:
    """Find running jobs on nodes that are drained, or on instances that are removed if single GPUs are drained."""
    changed = gpus.filter(pl.col("before") != pl.col("after"))
    by_gpu = DRAINED_UNIT_BY_ACTUATOR.get(problem.change.actuator, "gpu") == "gpu"
    removed_by_node: dict[str, set[str]] = {}
    for node, layout in changed.select("node", "before").iter_rows():
        removed_by_node.setdefault(node, set()).update(parse_layout(layout) or [FULL_GPU])
    rows = []
    for table in jobs:
        running = table.filter(pl.col("state") == "RUNNING", pl.col("node_list").is_not_null())
        for job in running.iter_rows(named=True):
            profile = job["profile_requested"] or FULL_GPU
            limit = job["time_limit_s"]
            has_limit = limit is not None and job["start_time"] is not None
            ends = job["start_time"] + timedelta(seconds=limit) if has_limit else None
            rows += [
                (job["job_id"], job["tenant"], node, profile, job["start_time"], ends)
                for node in expand_node_list(job["node_list"])
                if node in removed_by_node and (profile in removed_by_node[node] or not by_gpu)
            ]
    return pl.DataFrame(rows, schema=ENDING_JOBS_SCHEMA, orient="row").sort("node", "job")
