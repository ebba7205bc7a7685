"""Replicas of language-model services: queue, settings and cost."""

from __future__ import annotations

import heapq
import math
import re
import shlex
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NoReturn

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.errors import (
    GpuPlannerError,
    InfeasiblePlanError,
    ScenarioError,
    SchemaError,
    examples,
    first_line,
    nearest,
)
from gpuplanner.core.units import SECONDS_PER_HOUR
from gpuplanner.hardware.catalog import boards_called, find_any_board, has_price
from gpuplanner.hardware.power_and_carbon import gpu_hour_price
from gpuplanner.sizing.job_plans import CACHES, Wish, settle_wish
from gpuplanner.sizing.mig_slices import ServingPlace, serving_places
from gpuplanner.sizing.model_architecture import Architecture, describe, presets, published_preset
from gpuplanner.sizing.run_table_words import meaning
from gpuplanner.sizing.serving_speed import (
    EngineLayout,
    Load,
    ServingPrediction,
    ServingSpeed,
    layout_of,
    predict_serving,
    sequence_capacity,
    serving_work,
    shipped_serving_speed,
    step_and_prefill_seconds,
)
from gpuplanner.sizing.throughput import Board, board_facts, slice_board

REQUESTS = 3000
"""Requests of a simulation, at least."""
LIFETIMES = 8
"""Times a request's own time that a simulation covers, at least."""
WARM_UP = 0.25
"""Share of a simulation that fills the replicas and is not counted."""
MOST_SIMULATED = 8
"""Replicas that are simulated, at most: of more, so many with their share of the rate."""


@dataclass(frozen=True, eq=False)
class ReplicaSpeed:
    """How long the steps of one replica take.

    Parameters
    ----------
    step_s : array of float, shape (most + 1,)
        Duration of a step by the number of sequences that decode in it. [s]
    prompt_token_s : float
        What each prompt token adds to the step that it is prefilled in. [s]
    first_token_s : float
        From the arrival of a request until it can be scheduled, and from its token to the client. [s]
    batched_tokens : int
        Tokens of a step, at most: each decoding sequence takes one, prompts share the rest in chunks.
    """

    step_s: NDArray[np.float64]
    prompt_token_s: float
    first_token_s: float
    batched_tokens: int

    @property
    def most(self) -> int:
        """Sequences that run at once, at most."""
        return len(self.step_s) - 1

    def steady_itl_s(self, prompt: int, answer: int) -> NDArray[np.float64]:
        """Mean time between output tokens while 1, 2, … requests run: each step carries its share of their prefills."""
        running = np.arange(1, self.most + 1)
        return np.asarray(self.step_s[1:] + running * self.prompt_token_s * prompt / answer)


@dataclass(frozen=True)
class QueueResult:
    """What requests saw, and how many ran at once.

    - ``ttft_p99_s``: 99th percentile of the time to the first token [s].
    - ``itl_p95_s``: 95th percentile of a request's mean time between output tokens [s].
    - ``running``: Sequences that decode in a replica at once, on average.
    """

    ttft_p99_s: float
    itl_p95_s: float
    running: float

    def meets(self, ttft_s: float, itl_s: float) -> bool:
        """Whether both targets are met."""
        return self.ttft_p99_s <= ttft_s and self.itl_p95_s <= itl_s


class _Replica:
    """One replica with continuous batching: decoding sequences first, then chunks of waiting prompts."""

    def __init__(self, speed: ReplicaSpeed, prompt: int, answer: int) -> None:
        self.speed, self.prompt, self.answer = speed, prompt, answer
        self.step_s: list[float] = speed.step_s.tolist()
        self.now = self.sequence_s = 0.0
        self.steps = 0
        self.waiting: deque[float] = deque()
        self.prefilled = 0
        self.running: list[tuple[int, float, float]] = []
        self.seen: list[tuple[float, float, float]] = []

    @property
    def requests(self) -> int:
        """Requests that wait or run."""
        return len(self.waiting) + len(self.running)

    def add(self, arrival: float) -> None:
        """Take a request; the replica has been advanced to its arrival."""
        if not self.requests:
            self.now = max(self.now, arrival)
        self.waiting.append(arrival)

    def advance(self, until: float) -> None:
        """Run all steps that begin before an instant."""
        while self.now < until and self.requests:
            decoding = len(self.running)
            finished, tokens, left_over = self._prompts_of_step(decoding)
            length = self.step_s[decoding] + tokens * self.speed.prompt_token_s
            times = 1
            if not tokens:  # nothing changes until a sequence ends or a request comes
                times = self.running[0][0] - self.steps
                if not self.waiting:
                    times = int(min(times, max((until - self.now) // length + 1, 1)))
            self.now += times * length
            self.sequence_s += times * length * decoding
            self.steps += times
            self.prefilled = left_over
            for _ in range(finished):
                heapq.heappush(self.running, (self.steps + self.answer - 1, self.now, self.waiting.popleft()))
            while self.running and self.running[0][0] <= self.steps:
                _, first, arrival = heapq.heappop(self.running)
                self.seen.append((arrival, first, self.now))

    def _prompts_of_step(self, decoding: int) -> tuple[int, int, int]:
        """Prompts that a step finishes, its prompt tokens, and tokens prefilled of the prompt that is next then."""
        room, places = self.speed.batched_tokens - decoding, self.speed.most - decoding
        if not self.waiting or places <= 0 or room <= 0:
            return 0, 0, self.prefilled
        first_rest = self.prompt - self.prefilled
        if first_rest > room:
            return 0, room, self.prefilled + room
        finished = 1 + min((room - first_rest) // self.prompt, places - 1, len(self.waiting) - 1)
        tokens = first_rest + (finished - 1) * self.prompt
        more = finished < len(self.waiting) and finished < places
        part = room - tokens if more else 0
        return finished, tokens + part, part


def simulate_queue(
    speed: ReplicaSpeed, replicas: int, rate: float, prompt: int, answer: int, *, seed: int = 0
) -> QueueResult:
    """Simulate replicas to which requests come at random, each to the one with the fewest requests.

    Parameters
    ----------
    speed : ReplicaSpeed
        Speed of one replica.
    replicas : int
        Number of replicas.
    rate : float
        Requests a second, of a Poisson process.
    prompt, answer : int
        Tokens of each prompt and of each answer.
    seed : int
        Seed of the arrivals.

    Examples
    --------
    >>> speed = ReplicaSpeed(np.full(65, 0.01), 1e-5, 0.0, 8192)
    >>> found = simulate_queue(speed, 1, 0.001, 1000, 100)
    >>> round(found.ttft_p99_s, 3), round(found.itl_p95_s, 3)
    (0.02, 0.01)
    """
    some = min(replicas, MOST_SIMULATED)
    rate *= some / replicas
    longest_s = answer * float(speed.steady_itl_s(prompt, answer)[-1])
    count = max(REQUESTS, math.ceil(LIFETIMES * longest_s * rate))
    arrivals = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count)).tolist()
    group = [_Replica(speed, prompt, answer) for _ in range(some)]
    for arrival in arrivals:
        for one in group:
            one.advance(arrival)
        min(group, key=lambda one: one.requests).add(arrival)
    for one in group:
        one.advance(math.inf)
    seen = np.array([row for one in group for row in one.seen])
    arrival, first, end = seen[seen[:, 0] >= arrivals[round(WARM_UP * count)]].T
    ttft_s = float(np.quantile(first - arrival, 0.99)) + speed.first_token_s
    itl_s = float(np.quantile((end - first) / max(answer - 1, 1), 0.95))
    return QueueResult(ttft_s, itl_s, sum(one.sequence_s for one in group) / (some * float(end.max())))


SERVING_COLUMNS = (
    "model", "gpu_model", "profile", "gpus", "precision", "cache_precision", "backend", "prompt_tokens",
    "answer_tokens", "concurrency", "tp", "pp", "dp", "ep",
)  # fmt: skip
"""Columns that are read. ``dp`` is data parallelism of attention; ``backend`` and ``ep`` change nothing measurable."""
NEEDED_COLUMNS = ("model", "gpu_model", "prompt_tokens", "answer_tokens", "concurrency")
PREDICTED = tuple(field.name for field in fields(ServingPrediction))
REASON = "reason"
FULL = "full"
"""Word of ``profile`` for a GPU with MIG disabled."""
_WEIGHTS_ONLY = re.compile(r"wo\b|a16|weight", re.IGNORECASE)
"""Formats of 8 bits that are unpacked to 16 before they are multiplied."""

_ONE_GPU_MODEL = {"a100_sxm": "A100-80GB"}
"""Words of NVIDIA AIConfigurator, from which tables of settings come, that may mean several GPU models elsewhere."""


def predict_serving_table(table: pl.DataFrame, speed: ServingSpeed | None = None) -> pl.DataFrame:
    """A table with times [ms], tokens/s and the reason for each row that is not predicted behind its own columns.

    Parameters
    ----------
    table : polars.DataFrame
        Rows with columns of `SERVING_COLUMNS`: ``model``, ``gpu_model``, ``prompt_tokens``, ``answer_tokens``,
        ``concurrency`` and ``gpus`` (or ``tp``) are needed. Other columns stay as they are.
    speed : ServingSpeed, optional
        By default the shipped parameters.

    Raises
    ------
    SchemaError
        If a column is missing that is needed.

    Examples
    --------
    >>> row = {"model": "Qwen/Qwen3-32B", "gpu_model": "h200_sxm", "gpus": 2, "prompt_tokens": 1024, "concurrency": 16}
    >>> predict_serving_table(pl.DataFrame([row | {"answer_tokens": 0}]))["reason"].item()
    'row, answer_tokens: expected a whole number above 0; got 0. Correct it.'
    """
    needed = (*NEEDED_COLUMNS, "tp" if "tp" in table.columns else "gpus")
    if missing := [name for name in needed if name not in table.columns]:
        raise SchemaError("table", f"columns {', '.join(needed)}", f"no {examples(missing)}", "Add them.")
    names = [name for name in SERVING_COLUMNS if name in table.columns]
    rows = table.select(names).rows()
    answers = {row: _predict(dict(zip(names, row, strict=True)), speed) for row in set(rows)}
    columns = {
        name: pl.Series([answers[row].get(name) for row in rows], dtype=pl.Float64).round(4) for name in PREDICTED
    }
    reasons = pl.Series([answers[row].get(REASON) for row in rows], dtype=pl.String)
    return table.drop(*PREDICTED, REASON, strict=False).with_columns(**columns, reason=reasons)


def _predict(row: Mapping[str, Any], speed: ServingSpeed | None) -> dict[str, Any]:
    """Columns of one row."""
    try:
        model, gpu_model, layout, load = serving_setting(row)
        capacity = sequence_capacity(model, gpu_model, layout, load)
        if not capacity:
            where = f"memory of {layout.tp * layout.pp * layout.dp} x {gpu_model.name}"
            room = f"memory for {model.name} and a request of {load.prompt + load.answer:,} tokens"
            _refuse(where, room, "too little", "Add GPUs.")
        work = serving_work(model, gpu_model, layout, load, capacity)
        return asdict(predict_serving(work, speed))
    except GpuPlannerError as error:
        return {REASON: first_line(error)}


def serving_setting(row: Mapping[str, Any]) -> tuple[Architecture, Board, EngineLayout, Load]:
    """The setting that a row states.

    Without a precision the format at the end of the model's name counts, then that of the published weights. Of 4 bits
    are only the experts of a model that has some.

    Raises
    ------
    ScenarioError
        If something is missing or cannot be read.

    Examples
    --------
    >>> row = {"model": "Qwen/Qwen3-32B-FP8", "gpu_model": "h200_sxm", "gpus": "4", "dp": "2", "prompt_tokens": "1000"}
    >>> serving_setting({**row, "answer_tokens": "500", "concurrency": "8"})[2].tp
    2
    """
    name = str(row.get("model") or "")
    own = name.endswith(".json") or "=" in name
    model = describe(name)[0] if own else published_preset(name) or _unknown(name)
    if model.kind != "decoder":
        _refuse("model", "a decoder", f"{model.name}, {model.kind}", "Name another.")
    load = Load(*(_count(row, name, None) for name in ("prompt_tokens", "answer_tokens", "concurrency")))
    pp, dp, _ = (_count(row, name, 1) for name in ("pp", "dp", "ep"))
    tp = _count(row, "tp", 0) or max(_count(row, "gpus", None) // (pp * dp), 1)
    gpus = _count(row, "gpus", tp * pp * dp)
    if tp * pp * dp != gpus:
        _refuse("tp x pp x dp", f"{gpus} GPUs", f"{tp * pp * dp}", "Correct them.")
    if model.heads % tp:
        _refuse("tp", f"a divisor of {model.heads} heads", f"{tp}", "Correct it.")
    if gpus > 1 and row.get("profile") not in (None, "", FULL):  # MIG instances have no NVLink to each other
        _refuse("gpus", "1 where profile is a MIG slice", f"{gpus}", "Correct it.")
    text = str(row.get("precision") or model.released or "none")
    weights = meaning("quantization", text, column="precision")
    cache_bytes = 1.0 if meaning("quantization", str(row.get("cache_precision") or "none")) == "fp8" else 2.0
    layout = layout_of(model, weights, tp, pp=pp, dp=dp, cache_bytes=cache_bytes)
    if weights == "int8" and _WEIGHTS_ONLY.search(text):
        layout = replace(layout, weights="none")
    return model, _gpu(row), layout, load


def _refuse(where: str, expected: str, got: str, hint: str) -> NoReturn:
    raise ScenarioError(f"row, {where}", expected, got, hint)


def _unknown(name: str) -> NoReturn:
    """Refuse a name that is no preset's, with the nearest ones."""
    near = nearest(name.rpartition("/")[2], presets())
    hint = f"Did you mean {examples(near)}?" if near else "Give the config.json of the model."
    _refuse("model", "a known model or a config.json", repr(name), hint)


def _gpu(row: Mapping[str, Any]) -> Board:
    """The GPU, or the MIG slice that ``profile`` names; of several that a word may mean the most common."""
    word, profile = str(row.get("gpu_model") or ""), row.get("profile")
    word = _ONE_GPU_MODEL.get(word.lower(), word)
    name = (boards_called(word) or (find_any_board(word),))[0]
    gpu_model = board_facts(name)
    if gpu_model is None:
        _refuse("gpu_model", "a GPU whose data sheet states peak and bandwidth", name, "Name another.")
    return slice_board(gpu_model, str(profile)) if profile and profile != FULL else gpu_model


def _count(row: Mapping[str, Any], name: str, default: int | None) -> int:
    """A whole number above 0."""
    value = row.get(name)
    if value in (None, "") and default is not None:
        return default
    try:
        number = float(value)  # type: ignore[arg-type]  # None: not a number
    except (TypeError, ValueError):
        number = 0.0
    if not 1 <= number < 1e12 or number % 1:
        _refuse(name, "a whole number above 0", repr(value), "Correct it.")
    return int(number)


TTFT_S, ITL_S = 1.0, 0.05
"""Targets where none is stated: a first token within a second, and twenty tokens a second, about four times reading."""
MOST_TIMES = 4
"""Replicas that are tried, at most, in times those that carry the rate with no wait."""
LARGE_GIB, LARGE = 70.0, (8192, 1024)
"""vLLM's defaults of --max-num-batched-tokens and --max-num-seqs for a server on a GPU with so much memory."""
SMALL = (2048, 256)
"""The same on a GPU or MIG slice with less, and on an A100 of any size."""
MOST_HEADROOM, HALVINGS = 4.0, 5
SHOWN, MOST_COST = 8, 3.0
"""Plans that are shown, at most, and their cost, in times that of the cheapest."""
MEASURED = ("H100", "H200")
MEASURED_MODELS = ("llama-3.1-8b", "qwen3-32b", "gpt-oss-120b", "deepseek-v3")
"""GPU models and models whose speeds the parameters were fitted on."""
_VLLM = {"fp8": "fp8", "nf4": "bitsandbytes", "nf4-dq": "bitsandbytes", "fp4": "bitsandbytes"}
"""Formats that vLLM makes of weights of 16 bits as it loads them; others are in the checkpoint."""


@dataclass(frozen=True)
class ReplicaPlan:
    """Replicas that meet the targets of a service.

    ``gpus`` are full GPUs, those that slices are cut from included. ``ttft_p99_ms`` is the 99th percentile of the time
    to the first token, ``itl_p95_ms`` the 95th of a request's mean time between output tokens, each with the ends of
    its 90 % interval. ``headroom`` is the rate up to which the targets hold, in times that of the service, at most 4.
    Prices are list prices, None where none is known; prompt and answer tokens share the cost by the time of each.
    """

    rank: int
    gpu_model: str
    profile: str
    replicas: int
    gpus_per_replica: int
    gpus: int
    max_num_seqs: int
    max_num_batched_tokens: int
    ttft_p99_ms: float
    ttft_low_ms: float
    ttft_high_ms: float
    itl_p95_ms: float
    itl_low_ms: float
    itl_high_ms: float
    headroom: float
    usd_per_hour: float | None
    usd_per_million_tokens: float | None
    usd_per_million_prompt_tokens: float | None
    usd_per_million_answer_tokens: float | None
    launch: str


@dataclass(frozen=True)
class SizedService:
    """Plans for a service, the cheapest first, what was assumed, and what keeps other GPUs from its targets."""

    model: str
    assumed: tuple[str, ...]
    plans: tuple[ReplicaPlan, ...]
    limits: tuple[str, ...]


def size_service(wish: Wish) -> SizedService:
    """Plan a service with a rate: the fewest replicas on each GPU, slice and number of GPUs, the cheapest first.

    Parameters
    ----------
    wish : Wish
        With ``prompt``, ``answer`` and ``rate``; targets that are not stated are taken, and listed in ``assumed``.

    Raises
    ------
    InfeasiblePlanError
        If nothing meets the targets: it names what bounds each GPU.

    Examples
    --------
    >>> wish = Wish("llama-3.1-8b", "serve", prompt=1024, answer=512, rate=20, boards={"H100-80GB-SXM5": 8})
    >>> found = size_service(wish)
    >>> found.plans[0].ttft_p99_ms < 1000, found.assumed[0]
    (True, 'ttft: 1,000 ms for 99 % of the requests; --ttft-ms to change')
    """
    wish, model, boards, taken = settle_wish(wish)
    assumed = []
    if wish.ttft_s is None:
        assumed.append(f"ttft: {1e3 * TTFT_S:,.0f} ms for 99 % of the requests; --ttft-ms to change")
    if wish.itl_s is None:
        assumed.append(f"itl: {1e3 * ITL_S:,.0f} ms a token for 95 % of the requests; --itl-ms to change")
    wish = replace(wish, ttft_s=wish.ttft_s or TTFT_S, itl_s=wish.itl_s or ITL_S)
    plans: list[ReplicaPlan] = []
    short: dict[str, list[str]] = {}
    for gpu_model, count in boards:
        for place in serving_places(model, gpu_model, count):
            found = _find_fewest(wish, model, place)
            if isinstance(found, ReplicaPlan) and found.gpus > count:
                found = f"{found.gpus:,} GPUs are needed, {count:,} are at hand"
            if isinstance(found, str):
                short.setdefault(found, []).append(place.words)
            else:
                plans.append(found)
    limits = [f"{', '.join(places)}: {reason}" for reason, places in short.items()]
    if not plans:
        what = f"serve {model.name} at {wish.rate:g} requests/s"
        ttft_s, itl_s = _targets_of(wish)[3:]
        targets = f"first tokens within {_ms(ttft_s)} and {_ms(itl_s)} a token"
        hint = "Relax the target that is named, or add GPUs."
        raise InfeasiblePlanError(what, targets, "; ".join(limits), hint)

    plans.sort(key=lambda one: (one.usd_per_million_tokens or math.inf, one.gpus, one.ttft_p99_ms))
    most = MOST_COST * (plans[0].usd_per_hour or math.inf)
    shown = [one for one in plans[:SHOWN] if (one.usd_per_hour or 0.0) <= most]
    ranked = tuple(replace(one, rank=rank) for rank, one in enumerate(shown, start=1))
    assumed += taken + speed_evidence(model.name, ((one.gpu_model, one.profile) for one in ranked))
    for name in dict.fromkeys(one.gpu_model for one in ranked if one.usd_per_hour is not None):
        price = gpu_hour_price(name)
        assumed.append(f"price: {name} {price.value:g} USD an hour, {price.source.partition(':')[0]}")
    assumed.append("requests: at random instants, of one length, each to the replica with the fewest")
    return SizedService(model.name, tuple(assumed), ranked, tuple(limits))


def speed_evidence(model: str, places: Iterable[tuple[str, str]]) -> list[str]:
    """What speeds of serving rest on, and which model, GPU models and profiles nobody measured.

    Examples
    --------
    >>> speed_evidence("gemma-3-27b", [("H200-141GB", "gpu"), ("L40S", "gpu"), ("H200-141GB", "3g.71gb")])[1]
    'not measured: gemma-3-27b, L40S, H200-141GB 3g.71gb: errors may be larger than the intervals'
    """
    source = shipped_serving_speed().provenance["source"]
    said = [f"speed: measured on {', '.join(MEASURED_MODELS)}, {' and '.join(MEASURED)} ({source})"]
    names = (name if profile == "gpu" else f"{name} {profile}" for name, profile in places)
    other = [name for name in dict.fromkeys(names) if not name.startswith(MEASURED) or " " in name]
    if other := [model] * (model not in MEASURED_MODELS) + other:
        said.append(f"not measured: {', '.join(other)}: errors may be larger than the intervals")
    return said


def _find_fewest(wish: Wish, model: Architecture, place: ServingPlace) -> ReplicaPlan | str:
    """The fewest replicas of a place that meet the targets, or what keeps any number of them from it."""
    prompt, answer, rate, ttft_s, itl_s = _targets_of(wish)
    gpu_model, speed = place.gpu_model, shipped_serving_speed()
    layout = layout_of(model, wish.quantization or "none", place.gpus, cache_bytes=CACHES[wish.cache_dtype])
    most = sequence_capacity(model, gpu_model, layout, Load(prompt, answer, 1))
    if most < 1:
        return f"weights and one request of {prompt + answer:,} tokens do not fit in memory"
    batched, seqs = SMALL if gpu_model.memory_gib < LARGE_GIB or gpu_model.name.startswith("A100") else LARGE
    running = np.arange(min(most, seqs) + 1.0)

    work = serving_work(model, gpu_model, layout, Load(prompt, answer, running))
    steps, prefill_s = step_and_prefill_seconds(work, speed)
    per_token = float(np.max(prefill_s)) / prompt
    engine = ReplicaSpeed(steps, per_token, speed.first_token_s, batched)
    alone = {
        "token": (float(steps[1]), float((work.read_s + work.experts_s)[1]), "memory bandwidth", itl_s),
        "first token": (
            speed.first_token_s + float(steps[1]) + per_token * prompt, float(np.max(work.prefill_s)), "peak", ttft_s
        ),
    }  # fmt: skip
    for name, (taken, bound, limit, target) in alone.items():
        if taken > target:
            return f"a {name} takes {_ms(taken)} where one request runs alone, {_ms(bound)} at full {limit}"

    itl = engine.steady_itl_s(prompt, answer)
    allowed = max(int((itl <= itl_s).sum()), 1)
    rates = running[1:] / (alone["first token"][0] + answer * itl)
    least = max(math.ceil(rate / float(rates[:allowed].max())), 1)
    ways: list[tuple[int, ReplicaSpeed]] = []
    for sequences in sorted({allowed, engine.most}):
        tried = replace(engine, step_s=steps[: sequences + 1])

        def meets(replicas: int, tried: ReplicaSpeed = tried) -> bool:
            return simulate_queue(tried, replicas, rate, prompt, answer).meets(ttft_s, itl_s)

        counts = range(least, MOST_TIMES * least + MOST_TIMES)
        enough = counts[bisect_left(counts, True, key=meets) :]
        ways += [(count, tried) for count in enough[:1]]
    if not ways:
        found = simulate_queue(tried, counts[-1], rate, prompt, answer)
        seen = f"{_ms(found.ttft_p99_s)} to the first token and {_ms(found.itl_p95_s)} a token"
        return f"{counts[-1]:,} replicas still take {seen}"
    return _price_replicas(wish, place, *min(ways, key=lambda way: way[0]), speed)


def _targets_of(wish: Wish) -> tuple[int, int, float, float, float]:
    """Tokens of prompt and answer, requests a second, and both targets, all of which a settled wish has."""
    found = wish.prompt, wish.answer, wish.rate, wish.ttft_s, wish.itl_s
    assert None not in found, "only a service with a rate and targets is planned"
    return found  # type: ignore[return-value]  # none is None


def _ms(seconds: float) -> str:
    """Milliseconds with two figures, at least.

    Examples
    --------
    >>> _ms(0.0044), _ms(0.3333)
    ('4.4 ms', '333 ms')
    """
    return f"{1e3 * seconds:,.{1 if seconds < 0.01 else 0}f} ms"


def _price_replicas(
    wish: Wish, place: ServingPlace, replicas: int, engine: ReplicaSpeed, speed: ServingSpeed
) -> ReplicaPlan:
    """A number of replicas with what requests see, how much more they carry, and what a million tokens cost."""
    prompt, answer, rate, ttft_s, itl_s = _targets_of(wish)

    def queue(times: float) -> QueueResult:
        return simulate_queue(engine, replicas, times * rate, prompt, answer)

    low, high = 1.0, MOST_HEADROOM
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if queue(middle).meets(ttft_s, itl_s) else (low, middle)
    found = queue(1.0)
    gpus = math.ceil(replicas * place.gpus / place.instances)
    per_hour = gpus * gpu_hour_price(place.gpu_model.name).value if has_price(place.gpu_model.name) else None
    # Money goes where the time of the replicas goes: prompts are computed once, answers token by token.
    decoding = max(found.running, 1.0)
    prompt_s = prompt * engine.prompt_token_s
    answer_s = answer * float(np.interp(decoding, np.arange(engine.most + 1), engine.step_s)) / decoding
    share = prompt_s / (prompt_s + answer_s)

    def per_million(part: float, tokens: float) -> float | None:
        return None if per_hour is None else 1e6 * per_hour * part / (SECONDS_PER_HOUR * rate * tokens)

    ttft, itl = 1e3 * found.ttft_p99_s, 1e3 * found.itl_p95_s
    return ReplicaPlan(
        0, place.gpu_model.name, place.profile, replicas, place.gpus, gpus, engine.most, engine.batched_tokens,
        ttft, ttft / speed.ttft_factor, ttft * speed.ttft_factor, itl, itl / speed.itl_factor, itl * speed.itl_factor,
        low, per_hour, per_million(1.0, prompt + answer), per_million(share, prompt), per_million(1 - share, answer),
        serve_line(wish, place.gpus, engine.most, replicas, batched_tokens=engine.batched_tokens),
    )  # fmt: skip


def serve_line(
    wish: Wish, tp: int, sequences: int, replicas: int, *, batched_tokens: int = 0, encoder: bool = False
) -> str:
    """The line that starts one replica, in vLLM's words; what vLLM would take from the size of the GPU is stated."""
    name = wish.model if "/" in wish.model and " " not in wish.model else "MODEL"
    words = [f"vllm serve {shlex.quote(name)} --tensor-parallel-size {tp} --max-model-len {wish.seq}"]
    words.append(f"--max-num-seqs {sequences}")
    if batched_tokens:
        words.append(f"--max-num-batched-tokens {batched_tokens}")
    if encoder:
        words.append("--runner pooling")
    if wish.cache_dtype == "fp8":
        words.append("--kv-cache-dtype fp8")
    if wish.quantization in _VLLM:
        words.append(f"--quantization {_VLLM[wish.quantization]}")
    if wish.adapters:
        words.append(f"--enable-lora --max-loras {wish.adapters}")
    notes = [f"{replicas} times"] * (replicas > 1)
    if wish.quantization and wish.quantization not in _VLLM:
        notes.append(f"a checkpoint in {wish.quantization.replace('gptq', 'GPTQ or AWQ')}")
    return " ".join(words) + (f"  # {', '.join(notes)}" if notes else "")
