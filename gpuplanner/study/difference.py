"""What a plan would do to a cluster as it is now, by GPU and by job; nothing, where the plan has been carried out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner import inbox
from gpuplanner.errors import ScenarioError, examples, message
from gpuplanner.export.reread import FileReport
from gpuplanner.export.states import NodeState, checked_plan, stamp, states_at
from gpuplanner.paths import EMPTIED
from gpuplanner.hardware.gpu import GpuModel
from gpuplanner.hardware.layout import parse_layout
from gpuplanner.hardware.feasibility import prove
from gpuplanner.inbox.core.lines.text_file import head
from gpuplanner.inbox.core.node_names import expand_node_list
from gpuplanner.planner.contract.problem import PlanProblem
from gpuplanner.planner.numbered.assign import assign
from gpuplanner.schemas.vocabulary import WHOLE_GPU
from gpuplanner.study.handover.read_back import read_plan

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
            return f"nothing changes on {self.gpus['node'].n_unique()} nodes"
        beside = self.changes.height - changed.height
        return (
            f"{changed.height} GPUs on {changed['node'].n_unique()} nodes change: {changed['instances_removed'].sum()} "
            f"instances and whole GPUs go, {changed['instances_made'].sum()} come; the files name {beside} GPUs more "
            f"and leave them alone; {self.victims['job'].n_unique()} jobs at work have to end"
        )


def difference(current: Sequence[str | Path], plan: str | Path, at: datetime | None = None) -> Difference:
    """Hold a cluster as it is against a plan.

    What it is comes from files of any source that the inbox reads: a dump of ``kubectl get nodes,pods -A -o json``,
    ``scontrol show node`` with ``sacct`` beside it, a node list, or another plan.
    """
    found, problem = read_plan(plan)
    table = checked_plan(assign(found, problem), problem.board)
    at = at or problem.slot_times[0]
    planned = states_at(table, at)
    there, jobs, problems = _as_it_is(current, problem.board, at)
    common = [node for node in planned if node in there]
    if not common:
        text = message(
            f"{', '.join(map(str, current))} beside {plan}",
            f"nodes of one cluster, such as {examples(sorted(planned))}",
            "; ".join(problems[:5]) or (examples(sorted(there)) if there else "no node with GPUs"),
            "Give a dump of the cluster that the plan is for.",
        )
        raise ScenarioError(text)
    problems += [f"{node}: is in the plan, and not in the cluster" for node in planned if node not in there]
    rows = []
    for node in common:
        held = there[node]
        if len(held) != len(planned[node].gpus):
            problems.append(f"{node}: has {len(held)} GPUs, and {len(planned[node].gpus)} in the plan")
            continue
        rows += [_row(node, gpu, *pair, problem) for gpu, pair in enumerate(_lined_up(held, planned[node]))]
    gpus = pl.DataFrame(rows, schema=GPUS, orient="row")
    victims = _victims(gpus, jobs, problem)
    given_up = at + timedelta(seconds=problem.change.drain_s.high)
    late = victims.filter(pl.col("ends_by") > given_up)
    problems += [
        f"{row['node']}: job {row['job']} may run until {stamp(row['ends_by'])}, and the change is given up at "
        f"{stamp(given_up)}"
        for row in late.iter_rows(named=True)
    ]
    others = sorted(set(there) - set(planned))
    notes = [f"not in the plan, and left alone: {examples(others)}"] if others else []
    return Difference(gpus, victims, tuple(problems), tuple(notes))


def carried_out(current: str | Path, plan: str | Path, at: datetime | None = None) -> FileReport:
    """Check that a cluster is as a plan says of one instant."""
    found = difference([current], plan, at)
    wrong = [
        f"{node} GPU {gpu}: {before}, and {after} in the plan"
        for node, gpu, before, after, *_ in found.gpus.iter_rows()
        if before != after
    ]
    problems = [*(one for one in found.problems if ": job " not in one), *wrong]
    fine = [f"{node}: as planned" for node in found.gpus["node"].unique(maintain_order=True)]
    return FileReport(ok=not problems, problems=problems, findings=[] if problems else fine)


def _as_it_is(
    paths: Sequence[str | Path], board: GpuModel, at: datetime
) -> tuple[dict[str, list[str]], list[pl.DataFrame], list[str]]:
    """Layouts of the GPUs of each node, jobs, and what keeps these from being known."""
    there: dict[str, list[str]] = {}
    jobs: list[pl.DataFrame] = []
    problems: list[str] = []
    for path in paths:
        if Path(path).suffix == ".json" and _PLAN.search("".join(head(path))):
            earlier, problem = read_plan(path)
            states = states_at(checked_plan(assign(earlier, problem), problem.board), at)
            there |= {node: [layout for _, layout in state.gpus] for node, state in states.items()}
            continue
        tables = inbox.read("auto", path).tables
        jobs += [tables["jobs"]] if "jobs" in tables else []
        for row in tables["inventory"].iter_rows(named=True) if "inventory" in tables else ():
            node, model = row["node"], row["gpu_model"]
            if model is not None and model != board.name:
                problems.append(f"{node}: has {model}, and the plan is for {board.name}")
            elif row["layouts"] is not None:
                there[node] = [_canonical(board, layout) for layout in row["layouts"].split(";")]
            elif row["mig_enabled"]:
                problems.append(f"{node}: is cut, and how does not follow from the file")
            else:
                there[node] = [WHOLE_GPU] * row["gpus"]
    return there, jobs, problems


def _canonical(board: GpuModel, layout: str) -> str:
    proof = prove(board, parse_layout(layout))
    return layout if proof.layout is None or not proof.layout.placements else proof.layout.text


def _lined_up(held: Sequence[str], planned: NodeState) -> Iterator[tuple[str, str]]:
    """Layout of each GPU of a node now and then, with as many that stay as there can be."""
    left, stays = list(held), []
    for _, layout in planned.gpus:
        stays.append(layout in left)
        if stays[-1]:
            left.remove(layout)
    for (_, layout), same in zip(planned.gpus, stays, strict=True):
        yield (layout, layout) if same else (left.pop(0), layout)


def _row(
    node: str, gpu: int, before: str, after: str, problem: PlanProblem
) -> tuple[str, int, str, str, int, int]:
    if before == after:
        return node, gpu, before, after, 0, 0
    change = problem.change.change(before, after)
    return node, gpu, before, after, change.emptied, len(change.created)


def _victims(gpus: pl.DataFrame, jobs: Sequence[pl.DataFrame], problem: PlanProblem) -> pl.DataFrame:
    """Jobs at work on nodes that are emptied; where GPUs are, on instances of the kinds that go."""
    changed = gpus.filter(pl.col("before") != pl.col("after"))
    by_gpu = EMPTIED.get(problem.change.path, "gpu") == "gpu"
    gone: dict[str, set[str]] = {}
    for node, layout in changed.select("node", "before").iter_rows():
        gone.setdefault(node, set()).update(parse_layout(layout) or [WHOLE_GPU])
    rows = []
    for table in jobs:
        at_work = table.filter(pl.col("state") == "RUNNING", pl.col("node_list").is_not_null())
        for job in at_work.iter_rows(named=True):
            profile = job["profile_requested"] or WHOLE_GPU
            limit = job["time_limit_s"]
            known = limit is not None and job["start_time"] is not None
            ends = job["start_time"] + timedelta(seconds=limit) if known else None
            rows += [
                (job["job_id"], job["tenant"], node, profile, job["start_time"], ends)
                for node in expand_node_list(job["node_list"])
                if node in gone and (profile in gone[node] or not by_gpu)
            ]
    return pl.DataFrame(rows, schema=VICTIMS, orient="row").sort("node", "job")
