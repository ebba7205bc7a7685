"""From a model and a deadline to plans, ranked, each with memory, time, money and energy, and why."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.catalog import board_names, slurm_type_of
from gpuplanner.errors import GpuPlannerError, InfeasiblePlanError, message
from gpuplanner.hardware import load_gpu_model
from gpuplanner.plain import to_plain
from gpuplanner.sizing import Request, request_lines
from gpuplanner.sizing.predict import PeakModel, TrainingJob, describe, explained, shipped_model
from gpuplanner.sizing.predict.throughput import NODE
from gpuplanner.sizing.predict.tools import ANY, ToolFact, tool_called, what_it_does
from gpuplanner.study.job_plans import (
    JobPlan,
    Wish,
    boards_of,
    pool_plans,
    serving_plans,
    slice_plans,
    tags_of,
    training_plans,
)

SHOWN = 8
_LONGEST_S = 30 * 86400.0


@dataclass(frozen=True)
class ModelSize:
    """A model and its parameters: all, and those that one token passes through."""

    name: str
    parameters: float
    active: float


@dataclass(frozen=True)
class Sized:
    """Plans for a model, the best first, and what was taken for granted of it and of the tool.

    ``note`` stands where no plan meets the deadline; the fastest are shown then.
    """

    model: ModelSize
    assumed: tuple[str, ...]
    tool_does: tuple[ToolFact, ...]
    plans: tuple[JobPlan, ...]
    note: str | None = None

    def table(self) -> pl.DataFrame:
        """One row a plan."""
        return pl.DataFrame([plan.to_dict() for plan in self.plans], infer_schema_length=None)

    def to_dict(self) -> dict[str, Any]:
        """All of it for JSON."""
        plans = [plan.to_dict() for plan in self.plans]
        told = {"model": self.model, "assumed": self.assumed, "tool_does": self.tool_does, "plans": plans}
        plain: dict[str, Any] = to_plain(told if self.note is None else told | {"note": self.note})
        return plain


def sized(wish: Wish, peaks: PeakModel | None = None) -> Sized:
    """Plans that fit, the best first, each with memory, probability, time, cost and energy, and why.

    Enumerates tensor, pipeline and data parallelism, sharding, recompute and micro-batch on each board, and slices of
    boards for what fits one; plans above the risk or past the deadline are left out, and the rest is ranked by cost,
    then by time.

    Examples
    --------
    >>> best = sized(Wish("gpt2", "train", 1024, tokens=1e9, deadline_h=24, boards={"A100-80GB": 8})).plans[0]
    >>> best.board, best.p_oom < 0.05
    ('A100-80GB', True)
    """
    peaks = peaks or shipped_model()
    model, assumed = describe(wish.model)
    boards = boards_of(wish.boards)
    tool = tool_called(wish.tool)
    if wish.tool and tool == ANY:
        assumed.append(f"tool {wish.tool!r} is not known: generic facts")
    find = serving_plans if wish.task == "serve" else training_plans
    plans = list(find(wish, model, tool, boards, peaks))
    if wish.task != "serve":
        plans += slice_plans(plans, wish) + pool_plans(plans, wish)
    if not plans:
        what = f"{wish.task} of {model.name} at {wish.seq} tokens on {', '.join(b.name for b, _ in boards)}"
        raise InfeasiblePlanError(
            message(
                what,
                f"a plan with p_oom of at most {wish.risk:g}",
                "none",
                "Add boards, or shorten the sequence.",
            )
        )
    in_time = [plan for plan in plans if plan.meets(wish)]
    ranked = _best(in_time or plans, by_time=not in_time)[:SHOWN]
    knobs = np.exp(peaks.logs(tool)).tolist()
    ranked[:3] = [_reasoned(plan, plans, wish, knobs) for plan in ranked[:3]]
    return Sized(
        ModelSize(model.name, model.params(), model.params(active=True)),
        tuple(assumed),
        tuple(what_it_does(tool, tags_of(wish))),
        tuple(_offered(plan, rank, wish) for rank, plan in enumerate(ranked, start=1)),
        None if in_time else "no plan meets the deadline; the fastest ones are shown",
    )


def stack(plans: Iterable[JobPlan]) -> pl.DataFrame:
    """The components of the plans that are explained, one row each, with bounds and the board's limit, for a chart.

    Examples
    --------
    >>> found = sized(Wish("gpt2", "train", 1024, tokens=1e9, boards={"A100-80GB": 1}))
    >>> stack(found.plans).columns
    ['plan', 'component', 'gib', 'predicted_gib', 'upper_gib', 'board_gib']
    """
    rows = [
        (f"{plan.rank}: {plan.gpus} x {plan.board} {plan.profile.replace('gpu', '')}".strip(), name, gib,
         plan.predicted_gib, plan.upper_gib, plan.board_gib)
        for plan in plans
        for name, gib in (plan.components or {}).items()
    ]  # fmt: skip
    names = ("plan", "component", "gib", "predicted_gib", "upper_gib", "board_gib")
    return pl.DataFrame(rows, schema=names, orient="row")


def _order(plan: JobPlan) -> tuple[float, ...]:
    cost = plan.cost
    return (cost is None, cost or 0.0, plan.gpus * plan.share_of_gpu, -plan.tokens_per_s, plan.p_oom)


def _best(plans: Sequence[JobPlan], *, by_time: bool) -> list[JobPlan]:
    """The best plan of each board, slice and number of GPUs, ranked."""
    ranked = sorted(plans, key=lambda plan: (-plan.tokens_per_s, *_order(plan)) if by_time else _order(plan))
    first: dict[tuple[str, str, int], JobPlan] = {}
    for plan in ranked:
        first.setdefault((plan.board, plan.profile, plan.gpus), plan)
    return list(first.values())


def _reasoned(plan: JobPlan, plans: Sequence[JobPlan], wish: Wish, knobs: Sequence[float]) -> JobPlan:
    """The plan with why it is one, what the next smaller one lacks, and where its memory goes."""
    plan = replace(plan, why=_why(plan, wish), next_smaller=_next_smaller(plan, plans, wish))
    if plan.job is None:
        return plan
    parts = explained(plan.job, knobs)
    return replace(
        plan,
        components={part.name: part.gib for part in parts},
        explained={part.name: part.why for part in parts},
    )


def _why(plan: JobPlan, wish: Wish) -> str:
    words = [
        f"{plan.predicted_gib:.1f} GiB expected of {plan.board_gib:.1f}",
        f"at most {plan.upper_gib:.1f} in 95 of 100",
        f"{plan.tokens_per_s:.0f} tokens/s",
    ]
    if plan.hours is not None:
        words.append(f"{plan.hours:.1f} h" + (f" of {wish.deadline_h:g}" if wish.deadline_h else ""))
    if plan.cost is not None:
        words.append(f"{plan.cost:.0f} {plan.currency}")
    return "; ".join(words)


def _next_smaller(plan: JobPlan, plans: Sequence[JobPlan], wish: Wish) -> str:
    """What the next smaller plan on the same board lacks."""
    if plan.gpus == 1:
        return (
            "one GPU is the smallest; see the slices" if plan.profile == "gpu" else "a slice is the smallest"
        )
    fewer = [one for one in plans if one.board == plan.board and one.gpus < plan.gpus]
    if not fewer:
        return f"with fewer than {plan.gpus} GPUs no plan has a p_oom of at most {wish.risk:g}"
    near = max(fewer, key=lambda one: (one.gpus, one.tokens_per_s))
    count = f"{near.gpus} GPUs" if near.gpus > 1 else "one GPU"
    if not near.meets(wish):
        return f"{count}: {near.hours:.1f} h, past the deadline of {wish.deadline_h:g} h"
    price = f", for {near.cost:.0f} {near.currency}" if near.cost is not None else ""
    return f"{count} would do it too{price}"


def _offered(plan: JobPlan, rank: int, wish: Wish) -> JobPlan:
    """The plan with its place and the lines that ask the scheduler for it."""
    nodes = math.ceil(plan.gpus / NODE)
    limit = None if plan.hours_high is None else min(plan.hours_high * 3600, _LONGEST_S)
    parts = plan.parts or ((plan.board, plan.gpus),)
    tensor = plan.engine.tp if plan.engine is not None else 1
    return replace(
        plan,
        rank=rank,
        request="".join(_request(board, gpus, plan.profile, limit) for board, gpus in parts),
        launch=f"--tensor-parallel-size {tensor}"
        if plan.job is None
        else _launch(plan.job, plan.gpus, nodes),
    )


def _request(board: str, gpus: int, profile: str, limit_s: float | None) -> str:
    """Options of sbatch, or a comment that says why there are none."""
    try:
        known = load_gpu_model(board) if board in board_names() else None
        request = Request(profile, gpus, limit_s, math.ceil(gpus / NODE), known)
        return request_lines(request, "sbatch", gres_type=slurm_type_of(board))
    except GpuPlannerError as error:
        return f"# no lines: {error}\n"


def _launch(job: TrainingJob, gpus: int, nodes: int) -> str:
    """Words for torchrun and Megatron."""
    words = [f"torchrun --nnodes {nodes} --nproc-per-node {min(gpus, NODE)} TRAIN.py"]
    words += [f"--seq-length {job.seq}", f"--micro-batch-size {job.micro_batch}"]
    words.append(f"--global-batch-size {job.micro_batch * job.dp * job.accumulation}")
    if job.tp > 1:
        words.append(f"--tensor-model-parallel-size {job.tp} --sequence-parallel")
    if job.pp > 1:
        words.append(f"--pipeline-model-parallel-size {job.pp}")
    if job.sharding == "zero1" and job.dp > 1:
        words.append("--use-distributed-optimizer")
    if job.sharding == "fsdp" and job.dp > 1:
        words.append("--use-torch-fsdp2")
    if job.recompute != "none":
        granularity = f"--recompute-granularity {job.recompute}"
        words.append(granularity + (" --recompute-method uniform" if job.recompute == "full" else ""))
    return " ".join(words)
