"""Ranked plans of a training job with memory, time, cost and energy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.core.errors import GpuPlannerError, InfeasiblePlanError
from gpuplanner.core.serialization import to_plain
from gpuplanner.hardware.catalog import board_names, slurm_type_of
from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.sizing.job_plans import JobPlan, Wish, pool_plans, settle_wish, tags_of, training_plans
from gpuplanner.sizing.learned_memory import PeakModel, shipped_model
from gpuplanner.sizing.memory_components import explained
from gpuplanner.sizing.mig_slices import SliceFit, one_job, serving_plans, slice_plans, wide_speeds
from gpuplanner.sizing.model_architecture import Architecture
from gpuplanner.sizing.request_lines import Request, request_lines
from gpuplanner.sizing.service_plans import serve_line, speed_evidence
from gpuplanner.sizing.throughput import NODE
from gpuplanner.sizing.training_job import ANY, ToolFact, TrainingJob, tool_called, tool_facts, what_it_does

SHOWN = 8
_LONGEST_S = 30 * 86400.0
_PLAINER = 0.75
"""Share of the best speed at which replicas alone are preferred: a model in parts asks for another training program."""


@dataclass(frozen=True)
class ModelSize:
    """A model and its parameters: all, and those that one token passes through."""

    name: str
    parameters: float
    active: float


@dataclass(frozen=True)
class Sized:
    """Plans for a model, the best first, and what was taken for granted of it and of the tool.

    ``note`` stands where no plan meets the deadline; the fastest are shown then. ``slices`` says of every slice of the
    boards how likely the job runs out of memory there, also where it does not fit.
    """

    model: ModelSize
    assumed: tuple[str, ...]
    tool_does: tuple[ToolFact, ...]
    plans: tuple[JobPlan, ...]
    note: str | None = None
    slices: tuple[SliceFit, ...] = ()

    def table(self) -> pl.DataFrame:
        """One row a plan."""
        return pl.DataFrame([plan.to_dict() for plan in self.plans], infer_schema_length=None)

    def slice_table(self) -> pl.DataFrame:
        """One row a slice of the boards at hand; of serving, sequences at once where training has its micro-batch."""
        table = pl.DataFrame([asdict(one) for one in self.slices])
        if self.slices and any(plan.engine for plan in self.plans):
            return table.drop("recompute").rename({"micro_batch": "concurrency"})
        return table

    def to_dict(self) -> dict[str, Any]:
        """All of it for JSON."""
        plans = [plan.to_dict() for plan in self.plans]
        told = {"model": self.model, "assumed": self.assumed, "tool_does": self.tool_does, "plans": plans}
        told["slices"] = [asdict(one) for one in self.slices]
        plain: dict[str, Any] = to_plain(told if self.note is None else told | {"note": self.note})
        return plain


def sized(wish: Wish, peaks: PeakModel | None = None, speeds: pl.DataFrame | None = None) -> Sized:
    """Plans that fit, the best first, each with memory, probability, time, cost and energy, and why.

    Enumerates tensor, pipeline and data parallelism, sharding, recompute and micro-batch on each board, and slices of
    boards for what fits one; plans above the risk or past the deadline are left out, and of the rest those that take
    the fewest GPUs, or the least of one, stand first, the cheapest of them before the others. ``speeds`` is what is
    known of the job's speed on slices, one row of :class:`~gpuplanner.sizing.mig_speed_law.SpeedJobs`.

    Examples
    --------
    >>> best = sized(Wish("gpt2", "train", 1024, tokens=1e9, deadline_h=24, boards={"A100-80GB": 8})).plans[0]
    >>> best.gpu_model, best.p_oom < 0.05
    ('A100-80GB', True)
    """
    peaks = peaks or shipped_model()
    wish, model, boards, assumed = settle_wish(wish)
    if wish.task == "dpo":
        pairs = "two sequences each, tokens count both; beside adapters no copy lies: --task lora"
        assumed.append(f"pairs: {pairs}")
    tool = tool_called(wish.tool)
    if wish.tool and tool == ANY:
        assumed.append(f"tool {wish.tool!r} is not known: generic facts")
    fits: list[SliceFit] = []
    if wish.task == "serve":
        plans, fits = serving_plans(wish, model, boards, peaks)
    else:
        plans = list(training_plans(wish, model, tool, boards, peaks))
        cut, fits = slice_plans(wish, model, tool, boards, peaks, one_job(speeds))
        plans += cut + pool_plans(plans, wish)
        shown = [(one.profile, one.tokens_per_s_low, one.tokens_per_s_high) for one in fits if one.fits]
        if wish.boards and (wide := wide_speeds(shown)):
            assumed.append(wide)
    if not plans:
        what = f"{wish.task} of {model.name} at {wish.seq} tokens on {', '.join(b.name for b, _ in boards)}"
        expected = f"a plan with p_oom of at most {wish.risk:g}"
        raise InfeasiblePlanError(what, expected, "none", _ways_out(wish))
    in_time = [plan for plan in plans if plan.meets(wish)]
    ranked = _best(in_time or plans, by_time=not in_time)[:SHOWN]
    if wish.task == "serve":
        assumed += speed_evidence(model.name, ((plan.gpu_model, plan.profile) for plan in ranked))
    knobs = np.exp(peaks.logs(tool)).tolist()
    ranked[:3] = [_reasoned(plan, plans, fits, wish, knobs) for plan in ranked[:3]]
    return Sized(
        ModelSize(model.name, model.params(), model.params(active=True)),
        tuple(assumed),
        tuple(what_it_does(tool, tags_of(wish))),
        tuple(_offered(plan, rank, wish, model, tool) for rank, plan in enumerate(ranked, start=1)),
        None if in_time else "no plan meets the deadline; the fastest ones are shown",
        tuple(fits) if wish.boards else (),
    )


def stack(plans: Iterable[JobPlan]) -> pl.DataFrame:
    """The components of the plans that are explained, one row each, with bounds and the board's limit, for a chart.

    Examples
    --------
    >>> found = sized(Wish("gpt2", "train", 1024, tokens=1e9, boards={"A100-80GB": 1}))
    >>> stack(found.plans).columns
    ['plan', 'component', 'gib', 'predicted_gib', 'upper_gib', 'gpu_gib']
    """
    rows = [
        (f"{plan.rank}: {plan.gpus} x {plan.gpu_model} {plan.profile.replace('gpu', '')}".strip(), name, gib,
         plan.predicted_gib, plan.upper_gib, plan.gpu_gib)
        for plan in plans
        for name, gib in (plan.components or {}).items()
    ]  # fmt: skip
    names = ("plan", "component", "gib", "predicted_gib", "upper_gib", "gpu_gib")
    return pl.DataFrame(rows, schema=names, orient="row")


def _order(plan: JobPlan) -> tuple[float, ...]:
    cost, gpus = plan.cost, plan.gpus * plan.share_of_gpu
    if plan.engine is not None and plan.per == "hour":
        # As many are run as are needed: what counts is a token.
        return (cost is None, (gpus if cost is None else cost) / plan.tokens_per_s, gpus)
    return (gpus, cost is None, cost or 0.0, -plan.tokens_per_s, plan.p_oom)


def _best(plans: Sequence[JobPlan], *, by_time: bool) -> list[JobPlan]:
    """The best plan of each board, slice and number of GPUs, ranked."""

    def order(plan: JobPlan) -> tuple[float, ...]:
        return (-plan.tokens_per_s, *_order(plan)) if by_time else _order(plan)

    alike: dict[tuple[str, str, int], list[JobPlan]] = {}
    for plan in plans:
        alike.setdefault(_place(plan), []).append(plan)
    share = 1.0 if by_time else _PLAINER
    found = []
    for group in alike.values():
        least = share * max(plan.tokens_per_s for plan in group)
        near = [plan for plan in group if plan.tokens_per_s >= least]
        found.append(min(near, key=lambda plan: (_in_parts(plan), *order(plan))))
    return sorted(found, key=order)


def _place(plan: JobPlan) -> tuple[str, str, int]:
    return plan.gpu_model, plan.profile, plan.gpus


def _in_parts(plan: JobPlan) -> int:
    """How far a model in training is split: not, its matrices, its layers."""
    return 0 if plan.job is None else (plan.job.tp > 1) + 2 * (plan.job.pp > 1)


def _ways_out(wish: Wish) -> str:
    """What somebody can do whom no plan fits."""
    ways = ["Add GPU models", "shorten the sequence"]
    if wish.task == "lora" and not wish.quantization:
        ways.append("take --task qlora")
    if wish.task == "serve":
        ways.append("take --quantization fp8 or --cache-dtype fp8")
    return f"{', '.join(ways[:-1])}, or {ways[-1]}."


def _reasoned(
    plan: JobPlan, plans: Sequence[JobPlan], fits: Sequence[SliceFit], wish: Wish, knobs: Sequence[float]
) -> JobPlan:
    """The plan with why it is one, what the next smaller one lacks, and where its memory goes."""
    smaller = _next_smaller(plan, plans, fits, wish)
    plan = replace(plan, why=_why(plan, wish) + _split(plan, plans), next_smaller=smaller)
    if plan.job is None:
        return plan
    parts = explained(plan.job, knobs)
    words = {part.name: part.why for part in parts}
    return replace(plan, components={part.name: part.gib for part in parts}, explained=words)


def _why(plan: JobPlan, wish: Wish) -> str:
    words = [
        f"{plan.predicted_gib:.1f} GiB expected of {plan.gpu_gib:.1f}",
        f"at most {plan.upper_gib:.1f} (95 % bound)",
        f"{plan.tokens_per_s:,.0f} tokens/s",
    ]
    if plan.hours is not None:
        words.append(f"{plan.hours:.1f} h" + (f" of {wish.deadline_h:g}" if wish.deadline_h else ""))
    if plan.price is not None:
        words.append(plan.price)
    return "; ".join(words)


def _split(plan: JobPlan, plans: Sequence[JobPlan]) -> str:
    """How much faster the same GPUs are with the model in parts, where they are."""
    split = [one for one in plans if _place(one) == _place(plan) and _in_parts(one) > _in_parts(plan)]
    best = max(split, key=lambda one: one.tokens_per_s, default=plan)
    if best.job is None or best.tokens_per_s < 1.02 * plan.tokens_per_s:
        return ""
    times = f"{best.tokens_per_s / plan.tokens_per_s:.2f} times as fast in parts"
    return f"; {times}: tensor {best.job.tp}, pipeline {best.job.pp}"


def _next_smaller(plan: JobPlan, plans: Sequence[JobPlan], fits: Sequence[SliceFit], wish: Wish) -> str:
    """What the next smaller plan on the same board lacks."""
    if plan.gpus == 1:
        smaller = [one for one in fits if one.gpu_model == plan.gpu_model and one.memory_gib < plan.gpu_gib - 1]
        if not smaller:
            return "there is nothing smaller"
        if plan.job is None and not any(one.fits for one in smaller):
            late = ", or none is fast enough" if wish.itl_s else ""
            return f"no smaller slice holds the model and one sequence of {wish.seq} tokens{late}"
        near = max(smaller, key=lambda one: (one.memory_gib, one.share_of_gpu))
        if near.fits:
            return f"{near.profile} would do it too, at {near.tokens_per_s:,.0f} tokens/s"
        return f"{near.profile} runs out of memory with a probability of {near.p_oom:.2g}"
    fewer = [one for one in plans if one.gpu_model == plan.gpu_model and one.gpus < plan.gpus]
    if not fewer:
        return f"with fewer than {plan.gpus} GPUs no plan has a p_oom of at most {wish.risk:g}"
    other = max(fewer, key=lambda one: (one.gpus, one.tokens_per_s))
    count = f"{other.gpus} GPUs" if other.gpus > 1 else "one GPU"
    if not other.meets(wish):
        return f"{count}: {other.hours:.1f} h, past the deadline of {wish.deadline_h:g} h"
    price = f", for {other.price}" if other.price is not None else ""
    return f"{count} would do it too{price}"


def _offered(plan: JobPlan, rank: int, wish: Wish, model: Architecture, tool: str) -> JobPlan:
    """The plan with its place and the lines that ask the scheduler for it."""
    limit = None if plan.hours_high is None else min(plan.hours_high * 3600, _LONGEST_S)
    parts = plan.parts or ((plan.gpu_model, plan.gpus),)
    launch = _launch(plan.job, plan.gpus, wish, tool) if plan.job is not None else None
    if plan.engine is not None:
        engine, encoder = plan.engine, model.kind == "encoder"
        launch = serve_line(wish, engine.tp, engine.concurrency, plan.replicas, encoder=encoder)
    lines = "".join(_request(gpu_model, gpus, plan.profile, limit) for gpu_model, gpus in parts)
    return replace(plan, rank=rank, request=lines, launch=launch)


def _request(gpu_model: str, gpus: int, profile: str, limit_s: float | None) -> str:
    """Options of sbatch, or a comment that says why there are none."""
    try:
        known = load_gpu_model(gpu_model) if gpu_model in board_names() else None
        request = Request(profile, gpus, limit_s, math.ceil(gpus / NODE), known)
        return request_lines(request, "sbatch", gres_type=slurm_type_of(gpu_model))
    except GpuPlannerError as error:
        return f"# no lines: {error}\n"


def _launch(job: TrainingJob, gpus: int, wish: Wish, tool: str) -> str:
    """The line that starts the tool that was named; words for any tool where none was."""
    nodes, local = math.ceil(gpus / NODE), min(gpus, NODE)
    more = []
    if job.tp > 1:
        more.append(f"--tensor-model-parallel-size {job.tp} --sequence-parallel")
    if job.pp > 1:
        more.append(f"--pipeline-model-parallel-size {job.pp}")
    if job.ep > 1:
        more.append(f"--expert-model-parallel-size {job.ep}")
    if job.sharding in ("zero1", "fsdp") and job.dp > 1:
        more.append("--use-distributed-optimizer" if job.sharding == "zero1" else "--use-torch-fsdp2")
    if job.recompute != "none":
        granularity = f"--recompute-granularity {job.recompute}"
        more.append(granularity + (" --recompute-method uniform" if job.recompute == "full" else ""))
    line = tool_facts(tool, tags_of(wish) | {"single" if gpus == 1 else "several"})["launch"]
    line += "  # pairs: the tool's program for DPO" if job.reference and "dpo" not in line else ""
    micro = job.micro_batch // (2 if job.reference else 1)
    return line.format(
        nodes=nodes, local=local, gpus=gpus, model=job.model.name, seq=job.seq, micro=micro,
        accumulation=job.accumulation, batch=micro * job.dp * job.accumulation, tp=job.tp, pp=job.pp,
        dp=job.dp, ep=job.ep, sharding=job.sharding if job.shards > 1 else "no sharding", recompute=job.recompute,
        recomputed="False" if job.recompute == "none" else "True", narrow=job.quantization or "16 bit",
        megatron=" ".join(more),
    ).strip()  # fmt: skip
