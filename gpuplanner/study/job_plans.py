"""What somebody wants of a model, and every way to run it: parallelism, sharding, recompute, slices, pools."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import NormalDist
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.catalog import board_names, has_price, parameter, whole_board_names
from gpuplanner.cost import facility_kwh, gpu_hour_price, gpu_kwh, power_model
from gpuplanner.errors import GeometryError, ScenarioError, message
from gpuplanner.hardware import load_gpu_model
from gpuplanner.sizing.predict import Architecture, PeakModel, TrainingJob, peak_gib
from gpuplanner.sizing.predict.job import RECOMPUTE
from gpuplanner.sizing.predict.serving import serve
from gpuplanner.sizing.predict.throughput import Board, board_facts, tokens_per_s
from gpuplanner.sizing.predict.tools import ANY, figures, tool_facts

TASKS = ("train", "lora", "serve")
RISK = 0.05
"""Largest probability to run out of memory that a plan may have."""


@dataclass(frozen=True)
class Wish:
    """What is wanted.

    Parameters
    ----------
    model : str
        Preset, config.json, Megatron arguments or spec.
    task : {"train", "lora", "serve"}
        What to do with it.
    seq : int
        Tokens of a sequence; serving: of prompt and answer.
    tool : str, optional
        Training tool; otherwise mixed precision with what each plan says.
    tokens : float, optional
        To train on, or to generate.
    deadline_h : float, optional
        Hours until it is done.
    boards : mapping
        Board → GPUs at hand of it (None: as many as are needed); empty: all with a data sheet and a price.
    latency_s : float, optional
        Serving: seconds a token of one sequence may take.
    quantization : str
        Of frozen or served weights: ``nf4``, ``nf4-dq``, ``int8``, ``fp8``, ``gptq``.
    risk : float
        Largest probability to run out of memory.
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
) -> Iterator[dict[str, Any]]:
    """Plans that fit, of each shape with ever more replicas until the deadline is met on each board."""
    modes = ("none", "full") if tool == ANY else RECOMPUTE
    knobs, radius = np.exp(peaks.logs(tool)).tolist(), peaks.radius(tool, known=True)
    normal = NormalDist(0.0, radius / _POINT)
    largest = max(board.memory_gib for board, _ in boards)
    most = max(count for _, count in boards)
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
                    rates = tokens_per_s(job, board)
                    plan = _plan(board, job.gpus, rates, wish, job)
                    plan |= {"predicted_gib": peak, "upper_gib": peak * math.exp(radius), "p_oom": out}
                    plan["level"] = "tool seen" if peaks.seen(tool) else "tool unseen"
                    yield plan
                    if meets(plan, wish):
                        waiting.remove((board, count))
            dp *= 2


def serving_plans(
    wish: Wish, model: Architecture, tool: str, boards: Sequence[tuple[Board, int]], peaks: PeakModel
) -> Iterator[dict[str, Any]]:
    """Engines on each board that hold at least one sequence, as many as the deadline asks for."""
    narrow = (
        (figures("quantization", wish.quantization, "weight_bytes") or [2.0])[0] if wish.quantization else 2.0
    )
    cache = 1.0 if wish.quantization == "fp8" else 2.0
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
            share = parameter("decode_bandwidth_share")
            plan = _plan(
                board,
                replicas * t,
                (rate * share.low / share.value, rate, rate * share.high / share.value),
                wish,
            )
            fixed = engine.weights_gib + engine.workspace_gib
            normal = NormalDist(0.0, peaks.unseen / _POINT / 4)  # weights are known, the workspace is not
            out = 1 - normal.cdf(math.log((board.memory_gib - engine.cache_gib) / fixed))
            plan |= {
                "predicted_gib": fixed + engine.cache_gib, "upper_gib": board.memory_gib, "p_oom": out, "tp": t,
                "dp": replicas, "concurrency": engine.concurrency * replicas, "seconds_per_token": engine.step_s,
                "components": {
                    "weights": engine.weights_gib, "cache": engine.cache_gib, "workspace": engine.workspace_gib,
                },
                "level": "tool unseen",
            }  # fmt: skip
            yield plan


def _plan(
    board: Board,
    gpus: int,
    rates: tuple[float, float, float],
    wish: Wish,
    job: TrainingJob | None = None,
    share: float = 1.0,
) -> dict[str, Any]:
    """Time, money and energy of a number of GPUs, or of a share of one, at some tokens a second."""
    hours = [wish.tokens / rate / 3600 if wish.tokens else math.nan for rate in rates]
    known = {} if not wish.tokens else {"hours": hours[1], "hours_low": hours[2], "hours_high": hours[0]}
    plan: dict[str, Any] = {
        "board": board.name, "gpus": gpus, "profile": "gpu", "tokens_per_s": rates[1], "tokens_per_s_low": rates[0],
        "tokens_per_s_high": rates[2], "board_gib": board.memory_gib, "job": job, "share": share, **known,
    }  # fmt: skip
    gpu_hours = gpus * share * (hours[1] if wish.tokens else 1.0)
    price, energy = _hour(board.name)
    plan["cost"] = None if price is None else gpu_hours * price
    plan["currency"] = None if price is None else "USD"
    plan["energy_kwh"] = None if energy is None else gpu_hours * energy
    plan["per"] = "job" if wish.tokens else "hour"
    return plan


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


def slice_plans(plans: Sequence[dict[str, Any]], wish: Wish) -> list[dict[str, Any]]:
    """Plans of one GPU on the slices that hold their bound, at the speed of the slice with its interval."""
    best: dict[str, dict[str, Any]] = {}
    for plan in plans:
        if plan["gpus"] == 1 and plan["board"] in board_names():
            kept = best.setdefault(plan["board"], plan)
            if plan["upper_gib"] < kept["upper_gib"]:
                best[plan["board"]] = plan
    found = []
    for name, plan in best.items():
        board, facts = load_gpu_model(name), board_facts(name)
        roomy = [one for one in board.profiles if (one.memory_gib or 0) >= plan["upper_gib"]]
        if all(one.compute_slices == board.compute_slices for one in roomy):
            continue
        from gpuplanner.sizing.speed import default_model

        jobs = pl.DataFrame({"job_class": ["job"], "memory_gib": [plan["upper_gib"]]})
        try:
            speeds = default_model().predict(jobs, board)
        except GeometryError:  # no source states the SMs of its slices
            continue
        for row in speeds.filter(pl.col("profile") != "gpu").iter_rows(named=True):
            if facts is None or row["speed"] >= 1:
                continue
            rates = tuple(plan[f"tokens_per_s{end}"] * row[f"speed{end}"] for end in ("_low", "", "_high"))
            slot = _plan(
                facts, 1, (rates[0], rates[1], rates[2]), wish, plan["job"], board.share(row["profile"])
            )
            memory = board.profile(row["profile"]).memory_gib
            kept = {key: plan[key] for key in ("predicted_gib", "upper_gib", "level")}
            sigma = math.log(plan["upper_gib"] / plan["predicted_gib"]) / _POINT
            out = 1 - NormalDist(0.0, sigma).cdf(math.log((memory or 0.1) / plan["predicted_gib"]))
            if out <= wish.risk:
                found.append({**slot, **kept, "profile": row["profile"], "board_gib": memory, "p_oom": out})
    return found


def meets(plan: Mapping[str, Any], wish: Wish) -> bool:
    """Whether a plan is done by the deadline."""
    return wish.deadline_h is None or wish.tokens is None or plan["hours"] <= wish.deadline_h


def pool_plans(plans: Sequence[dict[str, Any]], wish: Wish) -> list[dict[str, Any]]:
    """Plans over several boards at hand: replicas of one shape, micro-batches by the speed of each board."""
    if not wish.boards or len(wish.boards) < 2:
        return []
    shapes: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for plan in plans:
        job = plan["job"]
        key = (job.tp, job.pp, job.sharding, job.recompute, job.micro_batch)
        kept = shapes.setdefault(key, {}).setdefault(plan["board"], plan)
        if plan["gpus"] > kept["gpus"]:
            shapes[key][plan["board"]] = plan
    found = []
    for of_board in shapes.values():
        for both in combinations(of_board.values(), 2):
            worst = max(both, key=lambda plan: plan["p_oom"])
            plan = dict(worst)
            for name in ("tokens_per_s", "tokens_per_s_low", "tokens_per_s_high"):
                plan[name] = _TOGETHER * sum(one[name] for one in both)
            if wish.tokens:
                for name, rate in (("hours", ""), ("hours_low", "_high"), ("hours_high", "_low")):
                    plan[name] = wish.tokens / plan[f"tokens_per_s{rate}"] / 3600
            for name in ("cost", "energy_kwh"):
                hourly = [None if one[name] is None else one[name] / one.get("hours", 1.0) for one in both]
                known = [each for each in hourly if each is not None]
                plan[name] = sum(known) * plan.get("hours", 1.0) if len(known) == len(both) else None
            plan["gpus"] = sum(one["gpus"] for one in both)
            plan["board"] = " + ".join(f"{one['gpus']} x {one['board']}" for one in both)
            plan["parts"] = [(one["board"], one["gpus"]) for one in both]
            found.append(plan)
    return found
