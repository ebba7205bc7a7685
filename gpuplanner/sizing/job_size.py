"""Ranking and explanation of the plans of a training job or service."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.core.errors import GpuPlannerError, InfeasiblePlanError
from gpuplanner.core.serialization import to_plain
from gpuplanner.hardware.catalog import find_slurm_type, mig_model_names
from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.sizing.job_plans import (
    JobPlan,
    SizingRequest,
    iterate_training_plans,
    make_pool_plans,
    resolve_request,
    tool_condition_tags,
)
from gpuplanner.sizing.learned_memory import MIN_FEW_ROWS, PeakModel, shipped_peak_model
from gpuplanner.sizing.llm_service_plans import describe_speed_evidence, format_serve_line
from gpuplanner.sizing.memory_components import PEAK_MEMORY_COMPONENTS, explain_peak, regime_bytes
from gpuplanner.sizing.mig_slices import (
    SliceFit,
    describe_wide_speeds,
    make_serving_plans,
    make_slice_plans,
    require_single_speed_row,
)
from gpuplanner.sizing.model_architecture import Architecture
from gpuplanner.sizing.request_lines_and_gpu_sharing import GpuRequest, format_request_lines
from gpuplanner.sizing.training_job import (
    GENERIC_TOOL,
    TOOLS_WITHOUT_RECIPE,
    ToolDefault,
    TrainingJob,
    find_tool,
    list_tool_facts,
    resolve_tool_facts,
)
from gpuplanner.sizing.training_throughput import GPUS_PER_NODE

SEVERAL_MODELS = "several GPU models"
"""GPU model, in the table of candidates, of a plan that runs on several."""
MAX_SHOWN_PLANS = 8
"""Largest number of plans that are shown."""
_MAX_TIME_LIMIT_S = 30 * 86400.0
"""Longest time limit in a request. [s]"""
_LONG_SEQUENCE_TOKENS = 65_536
"""Length of a sequence from which training programs split it over GPUs. [tokens]"""
_MIN_UNSPLIT_SPEED_FRACTION = 0.75
"""Fraction of the best speed from which replicas are preferred: a split model needs another training program."""


@dataclass(frozen=True)
class ModelSize:
    """A model with its parameters: all, and those active for one token."""

    name: str
    parameters: float
    active: float


@dataclass(frozen=True)
class JobSizing:
    """Plans for a model, the best first, with the assumptions about it and the tool.

    ``bound`` says what the bound on the memory of the first plan rests on, what would narrow it, and what to measure.
    ``note`` is set if no plan meets the deadline; the fastest plans are shown then. ``slices`` has the probability of
    running out of memory on every slice of the GPU models, including slices that do not fit. ``candidates`` has the
    best plan of each GPU model, slice and number of GPUs, also those past the deadline.
    """

    model: ModelSize
    assumed: tuple[str, ...]
    tool_does: tuple[ToolDefault, ...]
    plans: tuple[JobPlan, ...]
    note: str | None = None
    slices: tuple[SliceFit, ...] = ()
    bound: tuple[str, ...] = ()
    candidates: tuple[JobPlan, ...] = ()

    def plan_table(self) -> pl.DataFrame:
        """Make a table with one row per plan."""
        return pl.DataFrame([plan.to_dict() for plan in self.plans], infer_schema_length=None)

    def slice_table(self) -> pl.DataFrame:
        """Make a table with one row per slice; for serving, concurrent sequences replace the micro-batch."""
        table = pl.DataFrame([asdict(fit) for fit in self.slices])
        if self.slices and any(plan.engine for plan in self.plans):
            return table.drop("recompute").rename({"micro_batch": "concurrency"})
        return table

    def to_dict(self) -> dict[str, Any]:
        """Convert everything to values for JSON."""
        plans = [plan.to_dict() for plan in self.plans]
        values = {"model": self.model, "assumed": self.assumed, "tool_does": self.tool_does, "plans": plans}
        values |= {"bound": self.bound, "slices": [asdict(fit) for fit in self.slices]}
        plain: dict[str, Any] = to_plain(values if self.note is None else values | {"note": self.note})
        return plain


def size_job(request: SizingRequest, peaks: PeakModel | None = None, speeds: pl.DataFrame | None = None) -> JobSizing:
    """Plan a training job or engine: the best plans first, each with memory, time, cost, energy and reasons.

    It enumerates tensor, pipeline and data parallelism, sharding, recompute and micro-batch on each GPU model, and
    slices for jobs that fit one. Plans above the risk or past the deadline are left out; fewer GPUs come first, then
    lower cost.

    Parameters
    ----------
    request : SizingRequest
        Model, task, limits and GPUs.
    peaks : PeakModel, optional
        Memory model; default: the shipped one.
    speeds : polars.DataFrame, optional
        Known speed of the job on slices, one row of :class:`~gpuplanner.sizing.mig_speed_law.SpeedModelJobs`.

    Returns
    -------
    JobSizing

    Raises
    ------
    InfeasiblePlanError
        If no plan fits.

    Examples
    --------
    >>> request = SizingRequest("gpt2", "train", 1024, tokens=1e9, deadline_h=24, boards={"A100-80GB": 8})
    >>> best = size_job(request).plans[0]
    >>> best.gpu_model, best.p_oom < 0.05
    ('A100-80GB', True)
    """
    peaks = peaks or shipped_peak_model()
    request, model, boards, assumed = resolve_request(request)
    if request.task == "dpo":
        pairs = "two sequences each, tokens count both; beside adapters no copy lies: --task lora"
        assumed.append(f"pairs: {pairs}")
    tool = find_tool(request.tool)
    if request.tool and tool == GENERIC_TOOL:
        assumed.append(f"tool {request.tool!r} is not known: generic facts")
    fits: list[SliceFit] = []
    if request.task == "serve":
        plans, fits = make_serving_plans(request, model, boards, peaks)
    else:
        plans = list(iterate_training_plans(request, model, tool, boards, peaks))
        slice_job_plans, fits = make_slice_plans(request, model, tool, boards, peaks, require_single_speed_row(speeds))
        plans += slice_job_plans + make_pool_plans(plans, request)
        speed_ranges = [(fit.profile, fit.tokens_per_s_low, fit.tokens_per_s_high) for fit in fits if fit.fits]
        if request.boards and (wide := describe_wide_speeds(speed_ranges)):
            assumed.append(wide)
    if not plans:
        subject = f"{request.task} of {model.name} at {request.seq} tokens on {', '.join(b.name for b, _ in boards)}"
        expected = f"a plan with an out-of-memory risk of at most {100 * request.risk:g} %"
        raise InfeasiblePlanError(subject, expected, "none", _suggest_changes(request))
    in_time = [plan for plan in plans if plan.meets_deadline(request)]
    ranked = _rank_plans(in_time or plans, by_time=not in_time)[:MAX_SHOWN_PLANS]
    if ranked[0].job:
        assumed += _describe_settings(ranked[0].job, request)
    if request.task == "serve":
        assumed += describe_speed_evidence(model.name, ((plan.gpu_model, plan.profile) for plan in ranked))
    multipliers = np.exp(peaks.logs(tool)[: len(PEAK_MEMORY_COMPONENTS)]).tolist()
    for rank, plan in enumerate(ranked[:3]):
        why = _describe_plan(plan, request) + _describe_parallel_gain(plan, plans)
        smaller = _describe_next_smaller(plan, plans, fits, request)
        ranked[rank] = replace(plan, why=why, next_smaller=smaller)
        if plan.job is not None:
            components = explain_peak(plan.job, multipliers)
            amounts = {part.name: part.gib for part in components}
            reasons = {part.name: part.why for part in components}
            ranked[rank] = replace(ranked[rank], components=amounts, explained=reasons)
    return JobSizing(
        ModelSize(model.name, model.params(), model.params(active=True)),
        tuple(assumed),
        tuple(list_tool_facts(tool, tool_condition_tags(request))),
        tuple(_add_request_lines(plan, rank, request, model, tool) for rank, plan in enumerate(ranked, start=1)),
        None if in_time else "no plan meets the deadline; the fastest ones are shown",
        tuple(fits) if request.boards else (),
        _describe_bound(ranked[0].job, tool, peaks) if ranked[0].job else (),
        tuple(_rank_plans(plans, by_time=False)),
    )


def tabulate_candidates(sizing: JobSizing, request: SizingRequest) -> pl.DataFrame:
    """Tabulate run time and cost of the best plan of each GPU model, slice and number of GPUs, the cheapest first.

    Parameters
    ----------
    sizing : JobSizing
        Plans of the request.
    request : SizingRequest
        Job and deadline.

    Returns
    -------
    polars.DataFrame
        ``plan, gpu_model, profile, gpus, hours, tokens_per_s, cost, meets_deadline, pareto, p_oom``; ``pareto``: no
        other plan is both cheaper and faster. Without ``tokens`` the cost is that of an hour. [USD]

    Examples
    --------
    >>> request = SizingRequest("gpt2", "train", 1024, tokens=1e9, deadline_h=24, boards={"A100-80GB": 8})
    >>> table = tabulate_candidates(size_job(request), request)
    >>> table["cost"].is_sorted(), table["pareto"].any()
    (True, True)
    """
    rows = []
    for plan in sizing.candidates:
        model = SEVERAL_MODELS if plan.parts else plan.gpu_model
        plan_key = (plan.name, model, plan.profile, plan.gpus)
        rows.append((*plan_key, plan.hours, plan.tokens_per_s, plan.cost, plan.meets_deadline(request), plan.p_oom))
    schema = {
        "plan": pl.String, "gpu_model": pl.String, "profile": pl.String, "gpus": pl.Int64, "hours": pl.Float64,
        "tokens_per_s": pl.Float64, "cost": pl.Float64, "meets_deadline": pl.Boolean, "p_oom": pl.Float64,
    }  # fmt: skip
    table = pl.DataFrame(rows, schema=schema, orient="row")
    # From the fastest on, a plan that is cheaper than all faster ones.
    fastest_first = table.filter(pl.col("cost").is_not_null()).sort("tokens_per_s", "cost", descending=[True, False])
    cheapest_so_far = pl.col("cost").cum_min().shift()
    front = fastest_first.filter((pl.col("cost") < cheapest_so_far).fill_null(True))["plan"].implode()
    return table.with_columns(pareto=pl.col("plan").is_in(front)).sort("cost", "plan", nulls_last=True)


def tabulate_memory_components(plans: Iterable[JobPlan]) -> pl.DataFrame:
    """Make a table of the memory components of job plans, with bounds and the memory of the GPU, for a chart.

    Examples
    --------
    >>> found = size_job(SizingRequest("gpt2", "train", 1024, tokens=1e9, boards={"A100-80GB": 1}))
    >>> tabulate_memory_components(found.plans).columns
    ['plan', 'component', 'gib', 'predicted_gib', 'upper_gib', 'gpu_gib']
    """
    rows = [
        (f"{plan.rank}: {plan.name}", name, gib, plan.predicted_gib, plan.upper_gib, plan.gpu_gib)
        for plan in plans
        for name, gib in (plan.components or {}).items()
    ]  # fmt: skip
    names = ("plan", "component", "gib", "predicted_gib", "upper_gib", "gpu_gib")
    return pl.DataFrame(rows, schema=names, orient="row")


def _plan_order(plan: JobPlan) -> tuple[float, ...]:
    """Sort key of plans: fewer GPUs, then lower cost, higher speed and lower risk; for engines the cost of a token."""
    cost, gpus = plan.cost, plan.gpus * plan.share_of_gpu
    if plan.engine is not None and plan.per == "hour":
        # As many are run as are needed: what counts is a token.
        return (cost is None, (gpus if cost is None else cost) / plan.tokens_per_s, gpus)
    return (gpus, cost is None, cost or 0.0, -plan.tokens_per_s, plan.p_oom)


def _describe_bound(job: TrainingJob, tool: str, peaks: PeakModel) -> tuple[str, ...]:
    """Describe what the bound on the memory of a plan rests on, what would narrow it, and what to measure."""
    is_known_tool = tool not in TOOLS_WITHOUT_RECIPE
    distances = peaks.list_distances(tool, is_known_tool=is_known_tool, job=job, decided=True)
    radius, documented_radius = math.hypot(*distances.values()), peaks.unseen
    learned_radius = peaks.few_radius(MIN_FEW_ROWS, is_known_tool=is_known_tool)
    tool_helps, runs_help = not is_known_tool and documented_radius < radius, learned_radius < radius
    named = f"a tool with known defaults (--tool NAME), to {math.exp(documented_radius):.2f} times on one GPU"
    runs = f"{MIN_FEW_ROWS} runs of your own, to {math.exp(learned_radius):.2f} times"
    remedies = [text for helps, text in ((tool_helps, named), (runs_help, runs)) if helps]
    rests = "; ".join(distances)
    lines = [f"bound: {math.exp(radius):.2f} times the expected memory is enough for 95 % of such jobs, since {rests}"]
    if remedies:
        lines.append(f"narrower with: {'; or '.join(remedies)}")
        learn = "gpuplanner size --learn RUNS.csv -o MODEL.json, then --model-file MODEL.json"
        runs = "largest memory of the GPU over 20 steps, of plan 1 and of other micro-batches, a row each in RUNS.csv"
        lines.append(f"measure: {runs}; {learn}")
    return tuple(lines)


def _describe_settings(job: TrainingJob, request: SizingRequest) -> list[str]:
    """Describe what plans assume of a training job, and what none of them does."""
    kept = f"{sum(regime_bytes(job.regime, job.optimizer)):g} bytes a parameter before sharding"
    settings = f"{kept} for weights, gradients and {job.optimizer} states (precision {job.regime})"
    if job.frozen:
        adapters = f"rank {job.lora_rank} on {' '.join(job.lora_targets)}"
        settings = f"{adapters}, frozen weights of {job.quantization or '16 bit'}"
    lines = [f"training: {settings}, attention without a score matrix; --table takes other settings"]
    if request.seq >= _LONG_SEQUENCE_TOKENS:
        long = "no plan has it, nothing that was measured covers it; --table with column cp predicts one layout"
        lines.append(f"context parallelism: {long}")
    return lines


def _rank_plans(plans: Sequence[JobPlan], *, by_time: bool) -> list[JobPlan]:
    """Rank the best plan of each GPU model, slice and number of GPUs."""

    def order(plan: JobPlan) -> tuple[float, ...]:
        """Sort key of a plan, optionally by speed first."""
        return (-plan.tokens_per_s, *_plan_order(plan)) if by_time else _plan_order(plan)

    plans_by_key: dict[tuple[str, str, int], list[JobPlan]] = {}
    for plan in plans:
        plans_by_key.setdefault(_plan_key(plan), []).append(plan)
    share = 1.0 if by_time else _MIN_UNSPLIT_SPEED_FRACTION
    best_plans = []
    for group in plans_by_key.values():
        min_tokens_per_s = share * max(plan.tokens_per_s for plan in group)
        fast_plans = [plan for plan in group if plan.tokens_per_s >= min_tokens_per_s]
        best_plans.append(min(fast_plans, key=lambda plan: (_split_level(plan), *order(plan))))
    return sorted(best_plans, key=order)


def _plan_key(plan: JobPlan) -> tuple[str, str, int]:
    """Key of plans that compete: GPU model, profile and number of GPUs."""
    return plan.gpu_model, plan.profile, plan.gpus


def _split_level(plan: JobPlan) -> int:
    """Return how far a training job splits its model: 0 not, 1 by tensors, 2 by pipeline stages, 3 by both."""
    return 0 if plan.job is None else (plan.job.tp > 1) + 2 * (plan.job.pp > 1)


def _suggest_changes(request: SizingRequest) -> str:
    """Suggest changes of a request that no plan fits."""
    ways = ["Add GPU models", "shorten the sequence"]
    if request.task == "lora" and not request.quantization:
        ways.append("take --task qlora")
    if request.task == "serve":
        ways.append("take --quantization fp8 or --cache-dtype fp8")
    return f"{', '.join(ways[:-1])}, or {ways[-1]}."


def _describe_plan(plan: JobPlan, request: SizingRequest) -> str:
    """Describe memory, speed, time and price of a plan."""
    words = [
        f"{plan.predicted_gib:.1f} GiB expected of {plan.gpu_gib:.1f}",
        f"at most {plan.upper_gib:.1f} (95 % bound)",
        f"{plan.tokens_per_s:,.0f} tokens/s",
    ]
    if plan.hours is not None:
        words.append(f"{plan.hours:.1f} h" + (f" of {request.deadline_h:g}" if request.deadline_h else ""))
    if plan.price is not None:
        words.append(plan.price)
    return "; ".join(words)


def _describe_parallel_gain(plan: JobPlan, plans: Sequence[JobPlan]) -> str:
    """Describe how much faster the same GPUs are with a split model, if they are."""
    more_parallel = [
        split_plan
        for split_plan in plans
        if _plan_key(split_plan) == _plan_key(plan) and _split_level(split_plan) > _split_level(plan)
    ]
    best = max(more_parallel, key=lambda split_plan: split_plan.tokens_per_s, default=plan)
    if best.job is None or best.tokens_per_s < 1.02 * plan.tokens_per_s:
        return ""
    gain_text = f"{best.tokens_per_s / plan.tokens_per_s:.2f} times as fast in parts"
    return f"; {gain_text}: tensor {best.job.tp}, pipeline {best.job.pp}"


def _describe_next_smaller(
    plan: JobPlan, plans: Sequence[JobPlan], fits: Sequence[SliceFit], request: SizingRequest
) -> str:
    """Describe what the next smaller plan on the same GPU model lacks.

    Parameters
    ----------
    plan : JobPlan
        The plan.
    plans : sequence of JobPlan
        All plans.
    fits : sequence of SliceFit
        All slices.
    request : SizingRequest
        The request.
    """
    if plan.gpus == 1:
        smaller = [
            candidate
            for candidate in fits
            if candidate.gpu_model == plan.gpu_model and candidate.memory_gib < plan.gpu_gib - 1
        ]
        if not smaller:
            return "there is nothing smaller"
        if plan.job is None and not any(candidate.fits for candidate in smaller):
            late = ", or none is fast enough" if request.itl_s else ""
            return f"no smaller slice holds the model and one sequence of {request.seq} tokens{late}"
        best_slice = max(smaller, key=lambda candidate: (candidate.memory_gib, candidate.share_of_gpu))
        if best_slice.fits:
            return f"{best_slice.profile} would do it too, at {best_slice.tokens_per_s:,.0f} tokens/s"
        return f"{best_slice.profile} runs out of memory with a probability of {best_slice.p_oom:.2g}"
    fewer = [candidate for candidate in plans if candidate.gpu_model == plan.gpu_model and candidate.gpus < plan.gpus]
    if not fewer:
        return f"with fewer than {plan.gpus} GPUs the out-of-memory risk is above {100 * request.risk:g} %"
    best = _rank_plans([option for option in fewer if option.meets_deadline(request)] or fewer, by_time=False)[-1]
    count = f"{best.gpus} GPUs" if best.gpus > 1 else "one GPU"
    if not best.meets_deadline(request):
        return f"{count}: {best.hours:.1f} h, past the deadline of {request.deadline_h:g} h"
    price = f", for {best.price}" if best.price is not None else ""
    return f"{count} would do it too{price}"


def _add_request_lines(
    plan: JobPlan, rank: int, request: SizingRequest, architecture: Architecture, tool: str
) -> JobPlan:
    """Add to a plan its rank, request lines for the scheduler and the launch command.

    Parameters
    ----------
    plan : JobPlan
        The plan.
    rank : int
        Rank among the plans, from 1.
    request : SizingRequest
        The request.
    architecture : Architecture
        The model.
    tool : str
        Training tool.
    """
    limit = None if plan.hours_high is None else min(plan.hours_high * 3600, _MAX_TIME_LIMIT_S)
    parts = plan.parts or ((plan.gpu_model, plan.gpus),)
    launch = _make_launch_line(plan.job, plan.gpus, request, tool) if plan.job is not None else None
    if plan.engine is not None:
        engine, encoder = plan.engine, architecture.kind == "encoder"
        launch = format_serve_line(request, engine.tp, engine.concurrency, plan.replicas, encoder=encoder)
    lines = "".join(_make_request_lines(gpu_model, gpus, plan.profile, limit) for gpu_model, gpus in parts)
    return replace(plan, rank=rank, request=lines, launch=launch)


def _make_request_lines(gpu_model: str, gpus: int, profile: str, limit_s: float | None) -> str:
    """Make the options of sbatch, or a comment with the reason why there are none.

    Parameters
    ----------
    gpu_model, profile : str
        GPU model, and MIG profile or ``"gpu"``.
    gpus : int
        Number of GPUs or instances.
    limit_s : float or None
        Time limit. [s]
    """
    try:
        model = load_gpu_model(gpu_model) if gpu_model in mig_model_names() else None
        request = GpuRequest(profile, gpus, limit_s, math.ceil(gpus / GPUS_PER_NODE), model)
        return format_request_lines(request, "sbatch", gres_type=find_slurm_type(gpu_model))
    except GpuPlannerError as error:
        return f"# no lines: {error}\n"


def _make_launch_line(job: TrainingJob, gpus: int, request: SizingRequest, tool: str) -> str:
    """Make the launch command of the tool; generic words without a tool.

    Parameters
    ----------
    job : TrainingJob
        The job.
    gpus : int
        Number of GPUs.
    request : SizingRequest
        The request.
    tool : str
        Training tool.
    """
    nodes, local = math.ceil(gpus / GPUS_PER_NODE), min(gpus, GPUS_PER_NODE)
    options = []
    if job.tp > 1:
        options.append(f"--tensor-model-parallel-size {job.tp} --sequence-parallel")
    if job.pp > 1:
        options.append(f"--pipeline-model-parallel-size {job.pp}")
    if job.ep > 1:
        options.append(f"--expert-model-parallel-size {job.ep}")
    if job.sharding in ("zero1", "fsdp") and job.dp > 1:
        options.append("--use-distributed-optimizer" if job.sharding == "zero1" else "--use-torch-fsdp2")
    if job.recompute != "none":
        granularity = f"--recompute-granularity {job.recompute}"
        options.append(granularity + (" --recompute-method uniform" if job.recompute == "full" else ""))
    line = resolve_tool_facts(tool, tool_condition_tags(request) | {"single" if gpus == 1 else "several"})["launch"]
    line += "  # pairs: the tool's program for DPO" if job.reference and "dpo" not in line else ""
    micro_batch = job.micro_batch // (2 if job.reference else 1)
    return line.format(
        nodes=nodes, local=local, gpus=gpus, model=job.model.name, seq=job.seq, micro=micro_batch,
        accumulation=job.accumulation, batch=micro_batch * job.dp * job.accumulation, tp=job.tp, pp=job.pp,
        dp=job.dp, ep=job.ep, sharding=job.sharding if job.shards > 1 else "no sharding", recompute=job.recompute,
        recomputed="False" if job.recompute == "none" else "True", narrow=job.quantization or "16 bit",
        megatron=" ".join(options),
    ).strip()  # fmt: skip
