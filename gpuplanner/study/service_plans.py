"""Replicas that serve a language model at a rate of requests: how many, on what, and what a million tokens cost."""

from __future__ import annotations

import math
import shlex
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from gpuplanner.catalog.loader import has_price
from gpuplanner.hardware.list_prices import gpu_hour_price
from gpuplanner.errors import InfeasiblePlanError, message
from gpuplanner.sizing.predict.architecture import Architecture
from gpuplanner.sizing.predict.serving import layout_of, sequence_capacity
from gpuplanner.sizing.predict.serving_queue import QueueResult, ReplicaSpeed, simulate_queue
from gpuplanner.sizing.predict.serving_speed import (
    Load,
    ServingSpeed,
    serving_work,
    shipped_serving_speed,
    step_and_prefill_seconds,
)
from gpuplanner.study.job_slices import ServingPlace, serving_places
from gpuplanner.study.wish import CACHES, Wish, settle_wish
from gpuplanner.units import SECONDS_PER_HOUR

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
    board: str
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
    for board, count in boards:
        for place in serving_places(model, board, count):
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
        raise InfeasiblePlanError(message(what, targets, "; ".join(limits), hint))

    plans.sort(key=lambda one: (one.usd_per_million_tokens or math.inf, one.gpus, one.ttft_p99_ms))
    most = MOST_COST * (plans[0].usd_per_hour or math.inf)
    shown = [one for one in plans[:SHOWN] if (one.usd_per_hour or 0.0) <= most]
    ranked = tuple(replace(one, rank=rank) for rank, one in enumerate(shown, start=1))
    assumed += taken + speed_evidence(model.name, ((one.board, one.profile) for one in ranked))
    for name in dict.fromkeys(one.board for one in ranked if one.usd_per_hour is not None):
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
    board, speed = place.board, shipped_serving_speed()
    layout = layout_of(model, wish.quantization or "none", place.gpus, cache_bytes=CACHES[wish.cache_dtype])
    most = sequence_capacity(model, board, layout, Load(prompt, answer, 1))
    if most < 1:
        return f"weights and one request of {prompt + answer:,} tokens do not fit in memory"
    batched, seqs = SMALL if board.memory_gib < LARGE_GIB or board.name.startswith("A100") else LARGE
    running = np.arange(min(most, seqs) + 1.0)

    work = serving_work(model, board, layout, Load(prompt, answer, running))
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
    per_hour = gpus * gpu_hour_price(place.board.name).value if has_price(place.board.name) else None
    # Money goes where the time of the replicas goes: prompts are computed once, answers token by token.
    decoding = max(found.running, 1.0)
    prompt_s = prompt * engine.prompt_token_s
    answer_s = answer * float(np.interp(decoding, np.arange(engine.most + 1), engine.step_s)) / decoding
    share = prompt_s / (prompt_s + answer_s)

    def per_million(part: float, tokens: float) -> float | None:
        return None if per_hour is None else 1e6 * per_hour * part / (SECONDS_PER_HOUR * rate * tokens)

    ttft, itl = 1e3 * found.ttft_p99_s, 1e3 * found.itl_p95_s
    return ReplicaPlan(
        0, place.board.name, place.profile, replicas, place.gpus, gpus, engine.most, engine.batched_tokens,
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
