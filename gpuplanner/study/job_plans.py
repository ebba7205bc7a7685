"""What somebody wants of a model, and every way to run it: parallelism, sharding, recompute, slices, pools."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from gpuplanner.catalog import board_names, has_price, parameter, whole_board_names
from gpuplanner.cost import facility_kwh, gpu_hour_price, gpu_kwh, power_model
from gpuplanner.errors import GeometryError, ScenarioError, message
from gpuplanner.hardware import load_gpu_model
from gpuplanner.sizing.predict import Architecture, PeakModel, TrainingJob, peak_gib
from gpuplanner.sizing.predict.job import RECOMPUTE
from gpuplanner.sizing.predict.serving import Serving, serve
from gpuplanner.sizing.predict.throughput import Board, board_facts, tokens_per_s
from gpuplanner.sizing.predict.tools import ANY, figures, tool_facts

TASKS = ("train", "lora", "serve")
RISK = 0.05
"""Largest probability to run out of memory that a plan may have."""


@dataclass(frozen=True)
class Wish:
    """What is wanted.

    - ``model``: Preset, config.json, Megatron arguments or spec.
    - ``task`` {"train", "lora", "serve"}: What to do with it.
    - ``seq``: Tokens of a sequence; serving: of prompt and answer.
    - ``tool``: Training tool; otherwise mixed precision with what each plan says.
    - ``tokens``: To train on, or to generate.
    - ``deadline_h``: Hours until it is done.
    - ``boards``: Board → GPUs at hand of it (None: as many as are needed); empty: all with a data sheet and a price.
    - ``latency_s``: Serving: seconds a token of one sequence may take.
    - ``quantization``: Of frozen or served weights: ``nf4``, ``nf4-dq``, ``int8``, ``fp8``, ``gptq``.
    - ``risk``: Largest probability to run out of memory.
    """

    model: str
    task: str
    seq: int
    tool: str | None = None
    tokens: float | None = None
    deadline_h: float | None = None
    boards: Mapping[str, int | None] | None = None
    latency_s: float | None = None
    quantization: str = ""
    risk: float = RISK

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            what = message("size, task", f"one of {', '.join(TASKS)}", repr(self.task), "Choose one.")
            raise ScenarioError(what)
        for name in ("seq", "tokens", "deadline_h", "latency_s", "risk"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ScenarioError(message(f"size, {name}", "a number above 0", repr(value), "Mend it."))
        if self.quantization and figures("quantization", self.quantization, "weight_bytes") is None:
            known = "nf4, nf4-dq, fp4, int8, fp8, gptq"
            raise ScenarioError(
                message("size, quantization", f"one of {known}", repr(self.quantization), "Mend it.")
            )
        if self.quantization and self.task == "train":
            text = message(
                "size, quantization", "task lora or serve", "train", "Quantised weights are not trained."
            )
            raise ScenarioError(text)


_OF_JOB = ("tp", "pp", "dp", "sharding", "recompute", "micro_batch", "accumulation", "regime")
_WITHIN = ("job", "engine", "replicas", "parts")
_MAYBE_UNKNOWN = ("cost", "currency", "energy_kwh")


@dataclass(frozen=True)
class JobPlan:
    """One way to run a job: where, whether it fits in memory, how fast, for how much.

    Memory in GiB a GPU, ``p_oom`` the probability to run out of it; ``cost`` in ``currency`` and ``energy_kwh`` are of
    the whole job where its tokens are known, else of an hour (``per``), and None where no source states them. ``job``
    or ``engine`` says how it is run. ``parts`` are the boards of a pool with their GPUs. From ``rank`` on it is what
    ``gpuplanner size`` adds to the plans that it shows.
    """

    board: str
    gpus: int
    board_gib: float
    predicted_gib: float
    upper_gib: float
    p_oom: float
    level: str
    tokens_per_s: float
    tokens_per_s_low: float
    tokens_per_s_high: float
    per: str
    profile: str = "gpu"
    share_of_gpu: float = 1.0
    hours: float | None = None
    hours_low: float | None = None
    hours_high: float | None = None
    cost: float | None = None
    currency: str | None = None
    energy_kwh: float | None = None
    job: TrainingJob | None = None
    engine: Serving | None = None
    replicas: int = 1
    parts: tuple[tuple[str, int], ...] = ()
    rank: int | None = None
    why: str | None = None
    next_smaller: str | None = None
    components: Mapping[str, float] | None = None
    explained: Mapping[str, str] | None = None
    request: str | None = None
    launch: str | None = None

    def meets(self, wish: Wish) -> bool:
        """Whether it is done by the deadline."""
        return wish.deadline_h is None or self.hours is None or self.hours <= wish.deadline_h

    def to_dict(self) -> dict[str, Any]:
        """The plan for JSON and tables; what does not apply to it is left out."""
        told = {field.name: getattr(self, field.name) for field in fields(self)}
        told |= {name: getattr(self.job, name, None) for name in _OF_JOB}
        if self.engine is not None:
            told |= {
                "tp": self.engine.tp, "dp": self.replicas, "concurrency": self.engine.concurrency * self.replicas,
                "seconds_per_token": self.engine.step_s,
            }  # fmt: skip
        return {
            name: value
            for name, value in told.items()
            if name not in _WITHIN and (value is not None or name in _MAYBE_UNKNOWN)
        }


_STEP_TOKENS = 1 << 20
"""Tokens of a step, about what public recipes of this size take."""
_LARGEST = 1024
_ACTIVITY = 0.9
_TOGETHER = 0.95
"""What replicas on unlike boards reach of the sum of their speeds."""
_POINT = NormalDist().inv_cdf(0.95)


def boards_of(asked: Mapping[str, int | None] | None) -> list[tuple[Board, int]]:
    """Boards at hand with their numbers; without any, all that have a data sheet and a price."""
    named = asked or {name: None for name in (*board_names(), *whole_board_names()) if has_price(name)}
    found = []
    for name, count in named.items():
        try:
            board = board_facts(name)
        except GeometryError:
            if asked:
                raise
            continue
        if board is not None:
            found.append((board, min(count or _LARGEST, _LARGEST)))
        elif asked:
            raise ScenarioError(
                message(f"board {name}", "a data sheet with peak and bandwidth", "none", "Name another.")
            )
    return found


def tags_of(wish: Wish) -> frozenset[str]:
    """Words for the situation, which the conditions of the tools' table name."""
    return frozenset(
        {"lora" if wish.task == "lora" else "full", "sharded", *(["quantised"] if wish.quantization else [])}
    )


def _base(wish: Wish, model: Architecture, tool: str) -> TrainingJob:
    """What every plan has in common: what the tool does, or mixed precision."""
    facts = tool_facts(tool, tags_of(wish))
    regime = facts["regime"] if tool != ANY else "mixed"
    return TrainingJob(
        model, wish.seq, method="lora" if wish.task == "lora" else "full", regime=regime,
        adapter_regime=facts["adapter_regime"], quantization=wish.quantization,
        embedding_bytes=float(facts.get("embedding_bytes", 2)), lora_rank=int(facts["lora_rank"]),
        lora_targets=tuple(facts["lora_targets"].split()), selective=facts["selective"], fused_step=True,
        logits_bytes=float(facts["logits_bytes"]),
        reduce_bucket=float(facts.get("reduce_bucket", 0)), allgather_bucket=float(facts.get("allgather_bucket", 0)),
    )  # fmt: skip


def _shapes(base: TrainingJob, modes: Sequence[str]) -> Iterator[TrainingJob]:
    """Every shape but the number of replicas, the least parallel first."""
    model = base.model
    tensor = [t for t in (1, 2, 4, 8) if model.kind != "diffusion" and model.heads % t == 0] or [1]
    pipes = [p for p in (1, 2, 4, 8) if model.kind != "diffusion" and model.layers % p == 0] or [1]
    for p in pipes:
        for t in tensor:
            for sharding in ("fsdp", "ddp" if base.frozen else "zero1") if p == 1 else ("zero1",):
                for recompute in modes:
                    for micro in (1, 2, 4, 8):
                        yield replace(
                            base, tp=t, pp=p, sharding=sharding, recompute=recompute, micro_batch=micro,
                            sequence_parallel=t > 1,
                        )  # fmt: skip


def training_plans(
    wish: Wish, model: Architecture, tool: str, boards: Sequence[tuple[Board, int]], peaks: PeakModel
) -> Iterator[JobPlan]:
    """Plans that fit, of each shape with ever more replicas until the deadline is met on each board."""
    modes = ("none", "full") if tool == ANY else RECOMPUTE
    knobs, radius = np.exp(peaks.logs(tool)).tolist(), peaks.radius(tool, known=True)
    normal = NormalDist(0.0, radius / _POINT)
    largest = max(board.memory_gib for board, _ in boards)
    most = max(count for _, count in boards)
    level = "tool seen" if peaks.seen(tool) else "tool unseen"
    for shape in _shapes(_base(wish, model, tool), modes):
        dp, before = 1, math.inf
        waiting = list(boards)
        while waiting and shape.tp * shape.pp * dp <= most:
            steps = max(1, round(_STEP_TOKENS / (dp * shape.micro_batch * shape.seq)))
            job = replace(shape, dp=dp, accumulation=steps)
            peak = sum(knob * part for knob, part in zip(knobs, peak_gib(job), strict=True))
            if peak > largest and dp > 1 and peak > 0.98 * before:
                break
            before = peak
            for board, count in tuple(waiting):
                out = 1 - normal.cdf(math.log(board.memory_gib / peak))
                if job.gpus > count:
                    waiting.remove((board, count))
                elif out <= wish.risk:
                    memory = _JobMemory(board.memory_gib, peak, peak * math.exp(radius), out, level)
                    plan = replace(_plan(board, job.gpus, tokens_per_s(job, board), memory, wish), job=job)
                    yield plan
                    if plan.meets(wish):
                        waiting.remove((board, count))
            dp *= 2


def serving_plans(
    wish: Wish, model: Architecture, tool: str, boards: Sequence[tuple[Board, int]], peaks: PeakModel
) -> Iterator[JobPlan]:
    """Engines on each board that hold at least one sequence, as many as the deadline asks for."""
    narrow = (
        (figures("quantization", wish.quantization, "weight_bytes") or [2.0])[0] if wish.quantization else 2.0
    )
    cache = 1.0 if wish.quantization == "fp8" else 2.0
    share = parameter("decode_bandwidth_share")
    for board, count in boards:
        for t in (1, 2, 4, 8):
            if t > count or model.kind == "diffusion" or model.heads % t:
                continue
            engine = serve(
                model, board, t, wish.seq, weight_bytes=narrow, cache_bytes=cache, latency_s=wish.latency_s
            )
            if engine is None:
                continue
            replicas = 1
            if wish.tokens and wish.deadline_h:
                replicas = math.ceil(wish.tokens / (3600 * wish.deadline_h) / engine.tokens_per_s)
            if replicas * t > count:
                continue
            rate = engine.tokens_per_s * replicas
            rates = (rate * share.low / share.value, rate, rate * share.high / share.value)
            fixed = engine.weights_gib + engine.workspace_gib
            normal = NormalDist(0.0, peaks.unseen / _POINT / 4)  # weights are known, the workspace is not
            out = 1 - normal.cdf(math.log((board.memory_gib - engine.cache_gib) / fixed))
            memory = _JobMemory(
                board.memory_gib, fixed + engine.cache_gib, board.memory_gib, out, "tool unseen"
            )
            parts = {
                "weights": engine.weights_gib,
                "cache": engine.cache_gib,
                "workspace": engine.workspace_gib,
            }
            plan = _plan(board, replicas * t, rates, memory, wish)
            yield replace(plan, engine=engine, replicas=replicas, components=parts)


class _JobMemory(NamedTuple):
    """Memory of a board or slice and of a job on it, in GiB, and how likely it runs out."""

    board_gib: float
    predicted_gib: float
    upper_gib: float
    p_oom: float
    level: str


def _plan(
    board: Board,
    gpus: int,
    rates: tuple[float, float, float],
    memory: _JobMemory,
    wish: Wish,
    share: float = 1.0,
) -> JobPlan:
    """Time, money and energy of a number of GPUs, or of a share of one, at some tokens a second."""
    low, rate, high = rates
    hours = [wish.tokens / each / 3600 if wish.tokens else None for each in rates]
    gpu_hours = gpus * share * (1.0 if hours[1] is None else hours[1])
    price, energy = _hour(board.name)
    return JobPlan(
        board.name, gpus, *memory, rate, low, high, "job" if wish.tokens else "hour", share_of_gpu=share,
        hours=hours[1], hours_low=hours[2], hours_high=hours[0],
        cost=None if price is None else gpu_hours * price, currency=None if price is None else "USD",
        energy_kwh=None if energy is None else gpu_hours * energy,
    )  # fmt: skip


@functools.cache
def _hour(board: str) -> tuple[float | None, float | None]:
    """Price and energy at the building's meter of one busy GPU-hour, None where no source states them."""
    price = gpu_hour_price(board).value if has_price(board) else None
    try:
        law = power_model(board)
    except ScenarioError:
        return price, None
    energy = gpu_kwh(law, powered_gpu_hours=1, resident_gpu_hours=1, active_gpu_hours=_ACTIVITY)
    return price, facility_kwh(energy, host_factor=parameter("host_factor").value, pue=parameter("pue").value)


def slice_plans(plans: Sequence[JobPlan], wish: Wish) -> list[JobPlan]:
    """Plans of one GPU on the slices that hold their bound, at the speed of the slice with its interval."""
    best: dict[str, JobPlan] = {}
    for plan in plans:
        if plan.gpus == 1 and plan.board in board_names():
            kept = best.setdefault(plan.board, plan)
            if plan.upper_gib < kept.upper_gib:
                best[plan.board] = plan
    found = []
    for name, plan in best.items():
        board, facts = load_gpu_model(name), board_facts(name)
        roomy = [one for one in board.profiles if (one.memory_gib or 0) >= plan.upper_gib]
        if all(one.compute_slices == board.compute_slices for one in roomy):
            continue
        from gpuplanner.sizing.speed import default_model

        jobs = pl.DataFrame({"job_class": ["job"], "memory_gib": [plan.upper_gib]})
        try:
            speeds = default_model().predict(jobs, board)
        except GeometryError:  # no source states the SMs of its slices
            continue
        rates = (plan.tokens_per_s_low, plan.tokens_per_s, plan.tokens_per_s_high)
        sigma = math.log(plan.upper_gib / plan.predicted_gib) / _POINT
        for row in speeds.filter(pl.col("profile") != "gpu").iter_rows(named=True):
            if facts is None or row["speed"] >= 1:
                continue
            low, rate, high = (
                whole * row[f"speed{end}"] for whole, end in zip(rates, ("_low", "", "_high"), strict=True)
            )
            room = board.profile(row["profile"]).memory_gib or 0.1
            out = 1 - NormalDist(0.0, sigma).cdf(math.log(room / plan.predicted_gib))
            if out <= wish.risk:
                memory = _JobMemory(room, plan.predicted_gib, plan.upper_gib, out, plan.level)
                slot = _plan(facts, 1, (low, rate, high), memory, wish, board.share(row["profile"]))
                found.append(replace(slot, profile=row["profile"], job=plan.job))
    return found


def pool_plans(plans: Sequence[JobPlan], wish: Wish) -> list[JobPlan]:
    """Plans over several boards at hand: replicas of one shape, micro-batches by the speed of each board."""
    if not wish.boards or len(wish.boards) < 2:
        return []
    shapes: dict[tuple[object, ...], dict[str, JobPlan]] = {}
    for plan in plans:
        if (job := plan.job) is not None:
            key = (job.tp, job.pp, job.sharding, job.recompute, job.micro_batch)
            kept = shapes.setdefault(key, {}).setdefault(plan.board, plan)
            if plan.gpus > kept.gpus:
                shapes[key][plan.board] = plan
    return [
        _pooled(both, wish) for of_board in shapes.values() for both in combinations(of_board.values(), 2)
    ]


def _pooled(both: tuple[JobPlan, JobPlan], wish: Wish) -> JobPlan:
    """Two plans of one shape as one: as likely to run out of memory as the likelier of them."""
    low, rate, high = (
        _TOGETHER * sum(getattr(one, name) for one in both)
        for name in ("tokens_per_s_low", "tokens_per_s", "tokens_per_s_high")
    )
    hours = wish.tokens / rate / 3600 if wish.tokens else None

    def summed(name: str) -> float | None:
        """What an hour of both takes, for as long as they need together; None where one of them is not known."""
        hourly = [None if (of := getattr(one, name)) is None else of / (one.hours or 1.0) for one in both]
        known = [each for each in hourly if each is not None]
        return sum(known) * (hours or 1.0) if len(known) == len(both) else None

    return replace(
        max(both, key=lambda plan: plan.p_oom),
        board=" + ".join(f"{one.gpus} x {one.board}" for one in both), gpus=sum(one.gpus for one in both),
        parts=tuple((one.board, one.gpus) for one in both),
        tokens_per_s=rate, tokens_per_s_low=low, tokens_per_s_high=high,
        hours=hours, hours_low=wish.tokens / high / 3600 if wish.tokens else None,
        hours_high=wish.tokens / low / 3600 if wish.tokens else None,
        cost=summed("cost"), energy_kwh=summed("energy_kwh"),
    )  # fmt: skip
