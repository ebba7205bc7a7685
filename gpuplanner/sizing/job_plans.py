"""Training plans for a model on the GPU models at hand."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, NoReturn

import numpy as np

from gpuplanner.core.errors import GeometryError, ScenarioError
from gpuplanner.hardware.catalog import (
    board_names,
    boards_called,
    find_any_board,
    has_price,
    parameter,
    whole_board_names,
)
from gpuplanner.hardware.power_and_carbon import facility_kwh, gpu_hour_price, gpu_kwh, power_model
from gpuplanner.sizing.learned_memory import PeakModel
from gpuplanner.sizing.memory_components import peak_gib
from gpuplanner.sizing.model_architecture import Architecture, describe, published_preset
from gpuplanner.sizing.run_table_words import meaning
from gpuplanner.sizing.run_tables import job_of
from gpuplanner.sizing.serving_speed import Serving
from gpuplanner.sizing.throughput import Board, board_facts, tokens_per_s
from gpuplanner.sizing.training_job import ANY, TARGETS, TrainingJob, tool_facts

TASKS = ("train", "dpo", "lora", "qlora", "serve")
CACHES = {"": 2.0, "auto": 2.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}
"""Bytes of a number of the cache of keys and values."""
RISK = 0.05
"""Largest probability to run out of memory that a plan may have."""
_LARGEST = 1024


@dataclass(frozen=True)
class Wish:
    """What is wanted.

    - ``model``: Preset, config.json, Megatron arguments or spec.
    - ``task`` {"train", "dpo", "lora", "qlora", "serve"}: What to do with it; QLoRA is LoRA beside 4 bit weights, DPO
      full training on pairs of answers beside a copy of the model.
    - ``seq``: Tokens of a sequence; serving: of prompt and answer together.
    - ``tool``: Training tool; otherwise mixed precision with what each plan says.
    - ``tokens``: To train on, or to generate.
    - ``deadline_h``: Hours until it is done.
    - ``boards``: Board → GPUs at hand of it (None: as many as are needed); empty: all with a data sheet and a price.
    - ``itl_s``: Serving: seconds between two tokens of an answer, at most.
    - ``quantization``: Of frozen or served weights, in any words: ``nf4``, ``4bit double``, ``int8``, ``fp8``, ``awq``.
      None: as published where they are served, else 16 bits.
    - ``cache_dtype``: Serving: ``fp8`` keeps keys and values in 8 bits; by default 16, whatever the weights have.
    - ``adapters``: Serving: LoRA adapters that are loaded beside the model.
    - ``risk``: Largest probability to run out of memory.
    - ``prompt``, ``answer``: Serving: tokens of a prompt and of an answer; None: two thirds of ``seq``, and the rest.
    - ``rate``, ``ttft_s``: Serving: requests a second, and seconds to the first token for 99 % of them, at most.
    """

    model: str
    task: str
    seq: int = 4096
    tool: str | None = None
    tokens: float | None = None
    deadline_h: float | None = None
    boards: Mapping[str, int | None] | None = None
    itl_s: float | None = None
    quantization: str | None = None
    risk: float = RISK
    cache_dtype: str = ""
    adapters: int = 0
    prompt: int | None = None
    answer: int | None = None
    rate: float | None = None
    ttft_s: float | None = None

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            _refuse("task", f"one of {', '.join(TASKS)}", repr(self.task), "Choose one.")
        for name in ("seq", "tokens", "deadline_h", "itl_s", "risk", "prompt", "answer", "rate", "ttft_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                _refuse(name, "a number above 0", repr(value), "Correct it.")
        narrow = meaning("quantization", self.quantization) if self.quantization else ""
        if self.task == "qlora":
            object.__setattr__(self, "task", "lora")
            narrow = narrow or "nf4-dq"
        if self.quantization is not None or self.task != "serve":
            object.__setattr__(self, "quantization", "" if narrow == "none" else narrow)
        if self.quantization and self.task in ("train", "dpo"):
            _refuse("quantization", "task lora or serve", self.task, "Quantised weights are not trained.")
        if self.cache_dtype not in CACHES:
            known = ", ".join(name for name in CACHES if name)
            _refuse("cache_dtype", f"one of {known}", repr(self.cache_dtype), "Choose one.")
        served = ("cache_dtype", "adapters", "itl_s", "prompt", "answer", "rate", "ttft_s")
        if self.task != "serve" and (given := [name for name in served if getattr(self, name)]):
            _refuse(" and ".join(given), "task serve", self.task, "Leave them out.")
        if (self.prompt is None) != (self.answer is None):
            _refuse("prompt and answer", "tokens of both", f"{self.prompt} and {self.answer}", "State both.")
        if self.prompt is not None and self.answer is not None:
            object.__setattr__(self, "seq", self.prompt + self.answer)
        elif self.rate is not None:
            _refuse("rate", "prompt and answer beside it", "none", "State the tokens of a request.")
        if self.ttft_s is not None and self.rate is None:
            _refuse("ttft", "a rate beside it", "none", "State the requests a second.")


def _refuse(where: str, expected: str, got: str, hint: str) -> NoReturn:
    raise ScenarioError(f"size, {where}", expected, got, hint)


def boards_named(words: Iterable[str]) -> dict[str, int | None]:
    """Boards at hand as people write them, ``BOARD`` or ``BOARD=COUNT``; None: as many as are needed.

    A word that may mean several boards stays as it is: :func:`settled` says which is taken.

    Examples
    --------
    >>> boards_named(["H100-SXM5-80GB=64", "A30", "a100=8"])
    {'H100-80GB-SXM5': 64, 'A30-24GB': None, 'a100': 8}
    """
    counts: dict[str, int | None] = {}
    for word in words:
        name, equals, count = word.partition("=")
        if equals and not (count.isdecimal() and int(count)):
            expected = "MODEL or MODEL=COUNT with a whole number above 0"
            raise ScenarioError("--gpus", expected, repr(word), "Give for example --gpus A100-40GB=8.")
        called = boards_called(name)
        known = name if len(called) > 1 else called[0] if called else find_any_board(name)
        counts[known] = int(count) if equals else None
    return counts


def settled(boards: Mapping[str, int | None]) -> tuple[dict[str, int | None], list[str]]:
    """Boards by their own names, and which was taken where a word may mean several: the most common of a family.

    Examples
    --------
    >>> settled({"a100": 8})
    ({'A100-40GB': 8}, ['GPU model a100: assumed A100-40GB, could also be A100-80GB'])
    """
    names: dict[str, int | None] = {}
    taken = []
    for word, count in boards.items():
        first, *others = boards_called(word) or (find_any_board(word),)
        if others:
            taken.append(f"GPU model {word}: assumed {first}, could also be {', '.join(others)}")
        already = names.get(first, 0)
        names[first] = None if count is None or already is None else count + already
    return names, taken


def boards_of(asked: Mapping[str, int | None] | None) -> list[tuple[Board, int]]:
    """Boards at hand with their numbers; without any, all that have a data sheet and a price."""
    named = asked or {name: None for name in (*board_names(), *whole_board_names()) if has_price(name)}
    found = []
    for name, count in named.items():
        try:
            gpu_model = board_facts(name)
        except GeometryError:
            if asked:
                raise
            continue
        if gpu_model is not None:
            found.append((gpu_model, count or _LARGEST))
        elif asked:
            expected = "a data sheet with peak and bandwidth"
            raise ScenarioError(f"GPU model {name}", expected, "none", "Choose another GPU model.")
    return found


def settle_wish(wish: Wish) -> tuple[Wish, Architecture, list[tuple[Board, int]], list[str]]:
    """Describe the model and find the boards, with the formats and lengths that the model allows.

    Returns
    -------
    tuple
        The wish with what was open, the model, boards with their numbers, and what was assumed.
    """
    published = published_preset(wish.model) if wish.task == "serve" else None
    model, assumed = (published, []) if published else describe(wish.model)
    if model.positions and wish.seq > model.positions:
        if wish.prompt:
            most = f"at most {model.positions:,} tokens, the context of {model.name}"
            _refuse("prompt and answer", most, f"{wish.seq:,}", "Shorten one of them.")
        beyond = f"{wish.seq} is beyond the {model.positions} positions of {model.name}, which are taken"
        assumed.append(f"seq: {beyond}")
        wish = replace(wish, seq=model.positions)
    elif wish.prompt and not model.positions:
        assumed.append(f"context: {model.name} is taken to allow {wish.seq:,} tokens; see its config.json")
    if wish.quantization is None:
        wish = replace(wish, quantization=model.released)
        if model.released:
            assumed.append(f"weights: {wish.quantization}, as published; --quantization bf16 for 16 bits")
    if wish.boards:
        named, taken = settled(wish.boards)
        wish = replace(wish, boards=named)
        assumed += taken
    else:
        assumed.append("GPU models: all with a list price (--gpus MODEL=COUNT or --data for your own)")
    boards = boards_of(wish.boards)
    unpriced = [gpu_model.name for gpu_model, _ in boards if not has_price(gpu_model.name)]
    if unpriced:
        assumed.append(f"price: none is known of {', '.join(unpriced)}, plans of it have no cost")
    return wish, model, boards, assumed


def tags_of(wish: Wish) -> frozenset[str]:
    """Words for the situation, which the conditions of the tools' table name."""
    kind = "lora" if wish.task == "lora" else "full"
    return frozenset({"sharded", kind, wish.task, *(["quantised"] if wish.quantization else [])})


_OF_JOB = ("tp", "pp", "dp", "ep", "sharding", "recompute", "micro_batch", "accumulation", "regime")
_WITHIN = ("job", "engine", "replicas", "parts")
_PER = {"job": "in all", "hour": "an hour"}
_MAYBE_UNKNOWN = ("cost", "currency", "energy_kwh")
STEP_TOKENS = 1 << 20
"""Tokens of a step, about what public recipes of this size take."""
_ACTIVITY = 0.9
_RANK = 16
"""Rank of adapters of all linear layers where no tool says another."""
_SHORT = 1024
"""Tokens below which sequences, such as those of images, go by several at once."""
_TOGETHER = 0.95
"""What replicas on unlike boards reach of the sum of their speeds."""


@dataclass(frozen=True)
class JobPlan:
    """One way to run a job: where, whether it fits in memory, how fast, for how much.

    Memory in GiB a GPU, ``p_oom`` the probability to run out of it; ``cost`` in ``currency`` and ``energy_kwh`` are of
    the whole job where its tokens are known, else of an hour (``per``), and None where no source states them. ``job``
    or ``engine`` says how it is run. ``parts`` are the boards of a pool with their GPUs. From ``rank`` on it is what
    ``gpuplanner size`` adds to the plans that it shows.
    """

    gpu_model: str
    gpus: int
    gpu_gib: float
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

    @property
    def price(self) -> str | None:
        """What it costs, with its unit."""
        return None if self.cost is None else f"{self.cost:,.2f} {self.currency} {_PER[self.per]}"

    def to_dict(self) -> dict[str, Any]:
        """The plan for JSON and tables; what does not apply to it is left out."""
        told = {field.name: getattr(self, field.name) for field in fields(self)} | {"price": self.price}
        told |= {name: getattr(self.job, name, None) for name in _OF_JOB}
        if self.job is not None and self.job.shards == 1:
            told["sharding"] = "none"
        if self.engine is not None:
            told |= {
                "tp": self.engine.tp, "dp": self.replicas, "concurrency": self.engine.concurrency * self.replicas,
                "seconds_per_token": self.engine.step_s,
            }  # fmt: skip
        known = [name for name, value in told.items() if value is not None or name in _MAYBE_UNKNOWN]
        return {name: told[name] for name in known if name not in _WITHIN}


def base_job(wish: Wish, model: Architecture, tool: str) -> TrainingJob:
    """What every plan has in common: what the tool does in bf16, as rows are read; of no tool mixed precision."""
    method = "lora" if wish.task == "lora" else "full"
    row = {"method": method, "precision": "bf16", "quantization": wish.quantization or "none"}
    row["optimizer"] = tool_facts(tool, tags_of(wish)).get("optimizer", "adamw")
    job = job_of(model, row, wish.seq, tool)
    if tool == ANY:
        job = replace(job, regime="mixed", adapter_regime="amp", lora_rank=_RANK, lora_targets=TARGETS)
    return replace(job, fused_step=True, reference=wish.task == "dpo")


def shapes(wish: Wish, model: Architecture, tool: str, *, parallel: bool = True) -> Iterator[TrainingJob]:
    """Every shape but the number of replicas, the least parallel first; experts on all ranks, or shared by some."""
    facts, base = tool_facts(tool, tags_of(wish)), base_job(wish, model, tool)
    kinds, modes = (facts.get("parallel") or "").split(), facts["modes"].split()
    whole = model.kind != "diffusion" and parallel
    tensor = [t for t in (1, 2, 4, 8) if whole and model.heads % t == 0 and (t == 1 or "tp" in kinds)] or [1]
    pipes = [p for p in (1, 2, 4, 8) if whole and model.layers % p == 0 and (p == 1 or "pp" in kinds)] or [1]
    many = whole and model.experts % 8 == 0 and "ep" in kinds
    experts = [1, 8] if many and model.experts else [1]
    plain = "ddp" if base.frozen else "zero1"
    one = 2 if base.reference else 1
    several = one if model.kind == "diffusion" else one << max(0, (_SHORT // wish.seq).bit_length() - 1)
    micros = sorted({one, *(several * times for times in (1, 2, 4, 8))})
    for p, t, e in itertools.product(pipes, tensor, experts):
        for sharding in ("fsdp", plain) if p == e == 1 and parallel else (plain,):
            for recompute, micro in itertools.product(modes, micros):
                yield replace(
                    base, tp=t, pp=p, ep=e, dp=e, sharding=sharding, recompute=recompute, micro_batch=micro,
                    sequence_parallel=t > 1, inputs_offloaded=base.inputs_offloaded and recompute == "full",
                )  # fmt: skip


def expected_peak(job: TrainingJob, tool: str, peaks: PeakModel) -> tuple[float, float]:
    """GiB that are expected of a job, and the logarithm of the factor of their bound."""
    knobs = [float(knob) for knob in np.exp(peaks.logs(tool))]
    peak = sum(knob * part for knob, part in zip(knobs, peak_gib(job), strict=True))
    return peak, peaks.radius(tool, known=True, job=job)


def training_plans(
    wish: Wish, model: Architecture, tool: str, boards: Sequence[tuple[Board, int]], peaks: PeakModel
) -> Iterator[JobPlan]:
    """Plans that fit, of each shape with ever more replicas until the deadline is met on each board."""
    largest = max(gpu_model.memory_gib for gpu_model, _ in boards)
    most = max(count for _, count in boards)
    level = "tool measured" if peaks.seen(tool) else "tool not measured"
    for shape in shapes(wish, model, tool):
        dp, before = shape.ep, math.inf
        waiting = list(boards)
        while waiting and shape.tp * shape.pp * dp <= most:
            steps = max(1, round(STEP_TOKENS / (dp * shape.micro_batch * shape.seq)))
            job = replace(shape, dp=dp, accumulation=steps)
            peak, radius = expected_peak(job, tool, peaks)
            if peak > largest and dp > 1 and peak > 0.98 * before:
                break
            before = peak
            for gpu_model, count in tuple(waiting):
                out = peaks.p_oom(peak, gpu_model.memory_gib, radius)
                if job.gpus > count:
                    waiting.remove((gpu_model, count))
                elif out <= wish.risk:
                    memory = JobMemory(gpu_model.memory_gib, peak, peak * math.exp(radius), out, level)
                    plan = replace(priced(gpu_model, job.gpus, tokens_per_s(job, gpu_model), memory, wish), job=job)
                    yield plan
                    if plan.meets(wish):
                        waiting.remove((gpu_model, count))
            dp *= 2


class JobMemory(NamedTuple):
    """Memory of a board or slice and of a job on it, in GiB, and how likely it runs out."""

    gpu_gib: float
    predicted_gib: float
    upper_gib: float
    p_oom: float
    level: str


def priced(
    gpu_model: Board,
    gpus: int,
    rates: tuple[float, float, float],
    memory: JobMemory,
    wish: Wish,
    share: float = 1.0,
) -> JobPlan:
    """Time, money and energy of a number of GPUs, or of a share of one, at some tokens a second."""
    low, rate, high = rates
    hours = [wish.tokens / each / 3600 if wish.tokens else None for each in rates]
    gpu_hours = gpus * share * (1.0 if hours[1] is None else hours[1])
    price, energy = _hour(gpu_model.name)
    return JobPlan(
        gpu_model.name, gpus, *memory, rate, low, high, "job" if wish.tokens else "hour", share_of_gpu=share,
        hours=hours[1], hours_low=hours[2], hours_high=hours[0],
        cost=None if price is None else gpu_hours * price, currency=None if price is None else "USD",
        energy_kwh=None if energy is None else gpu_hours * energy,
    )  # fmt: skip


@functools.cache
def _hour(gpu_model: str) -> tuple[float | None, float | None]:
    """Price and energy at the building's meter of one busy GPU-hour, None where no source states them."""
    price = gpu_hour_price(gpu_model).value if has_price(gpu_model) else None
    try:
        law = power_model(gpu_model)
    except ScenarioError:
        return price, None
    energy = gpu_kwh(law, powered_gpu_hours=1, resident_gpu_hours=1, active_gpu_hours=_ACTIVITY)
    return price, facility_kwh(energy, host_factor=parameter("host_factor").value, pue=parameter("pue").value)


def pool_plans(plans: Sequence[JobPlan], wish: Wish) -> list[JobPlan]:
    """Plans over several boards at hand: replicas of one shape, micro-batches by the speed of each board."""
    if not wish.boards or len(wish.boards) < 2:
        return []
    shapes: dict[tuple[object, ...], dict[str, JobPlan]] = {}
    for plan in plans:
        if (job := plan.job) is not None:
            key = (job.tp, job.pp, job.sharding, job.recompute, job.micro_batch)
            kept = shapes.setdefault(key, {}).setdefault(plan.gpu_model, plan)
            if plan.gpus > kept.gpus:
                shapes[key][plan.gpu_model] = plan
    pairs = (itertools.combinations(of_board.values(), 2) for of_board in shapes.values())
    return [_pooled(both, wish) for both in itertools.chain.from_iterable(pairs)]


def _pooled(both: tuple[JobPlan, JobPlan], wish: Wish) -> JobPlan:
    """Two plans of one shape as one: as likely to run out of memory as the likelier of them."""
    names = ("tokens_per_s_low", "tokens_per_s", "tokens_per_s_high")
    low, rate, high = (_TOGETHER * sum(getattr(one, name) for one in both) for name in names)
    hours = wish.tokens / rate / 3600 if wish.tokens else None

    def summed(name: str) -> float | None:
        """What an hour of both takes, for as long as they need together; None where one of them is not known."""
        hourly = [None if (of := getattr(one, name)) is None else of / (one.hours or 1.0) for one in both]
        known = [each for each in hourly if each is not None]
        return sum(known) * (hours or 1.0) if len(known) == len(both) else None

    return replace(
        max(both, key=lambda plan: plan.p_oom),
        gpu_model=" + ".join(f"{one.gpus} x {one.gpu_model}" for one in both), gpus=sum(one.gpus for one in both),
        parts=tuple((one.gpu_model, one.gpus) for one in both),
        tokens_per_s=rate, tokens_per_s_low=low, tokens_per_s_high=high,
        hours=hours, hours_low=wish.tokens / high / 3600 if wish.tokens else None,
        hours_high=wish.tokens / low / 3600 if wish.tokens else None,
        cost=summed("cost"), energy_kwh=summed("energy_kwh"),
    )  # fmt: skip
