"""Speed of an engine that serves a language model to a fixed number of concurrent requests."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuplanner.catalog.loader import parameter
from gpuplanner.sizing.predict.architecture import Architecture
from gpuplanner.sizing.predict.throughput import NODE, Board

DEFAULT = "serving_speed.json"
"""Parameters that are shipped; ``python benchmarks/serving_speed.py --write DATE`` makes them."""
FOUR_BIT = ("nvfp4", "mxfp4", "fp4")
"""Formats of weights that Blackwell multiplies in 4 bits; older GPUs unpack them to 16."""


@dataclass(frozen=True)
class Load:
    """A closed loop of requests on one engine.

    Parameters
    ----------
    prompt, answer : float
        Tokens of the prompt and of the answer of each request.
    concurrency : float or array of float
        Requests that are in the system at every instant.
    """

    prompt: float
    answer: float
    concurrency: float | NDArray[np.float64]


@dataclass(frozen=True)
class EngineLayout:
    """How an engine spreads a model over GPUs, and in which number formats.

    Parameters
    ----------
    tp, pp, dp : int
        Tensor and pipeline parallelism, and data parallelism of attention; experts are spread over ``tp * dp`` GPUs.
    weight_bytes, dense_bytes, cache_bytes : float
        Bytes of a weight of the experts (without experts: of every layer), of a weight of other layers, and of a
        number of the key and value cache.
    weights : str
        Format of the weights: ``"none"`` for 16 bits, ``"fp8"``, ``"nvfp4"`` and others.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    weight_bytes: float = 2.0
    dense_bytes: float = 2.0
    cache_bytes: float = 2.0
    weights: str = "none"


@dataclass(frozen=True)
class ServingWork:
    """Work of one decoding step and of one prefill on the busiest GPU, in seconds at the figures of its data sheet.

    ``read_s``, ``experts_s`` and ``compute_s`` are of a step: weights and cache read, weights of experts read,
    operations. ``prefill_s`` and ``prefill_link_s`` are of one prompt, ``link_s`` of the all-reduces of a step. Fields
    are numbers, or arrays with one entry a setting.
    """

    read_s: Any
    experts_s: Any
    compute_s: Any
    link_s: Any
    prefill_s: Any
    prefill_link_s: Any
    layers: Any
    expert_layers: Any
    reduces: Any
    narrow: Any
    answer: Any
    running: Any
    concurrency: Any


@dataclass(frozen=True)
class ServingSpeed:
    """Fitted parameters of the speed of serving, and how far measurements lay from it.

    Parameters
    ----------
    bandwidth_share, expert_bandwidth_share, compute_share, link_share : float
        Share reached of the data sheet: memory bandwidth for weights and cache, for weights of experts, dense peak,
        bandwidth to other GPUs. [0-1]
    narrow_compute_ratio : float
        Share of the peak of 8 and 4 bits over that of 16 bits. [0-1]
    layer_s, expert_layer_s, reduce_s : float
        Launching a layer, what a layer with experts adds, and one all-reduce. [s]
    step_s, sequence_s, prefill_s, first_token_s : float
        Time of the host for a step, for a sequence in it, for a prefill, and before a first token. [s]
    wait_share : float
        Share of the prefills of others for which a request waits before its first token; the rest lengthens its
        steps. [0-1]
    itl_factor, ttft_factor : float
        Ratio of the ends of the 90 % interval to the predicted time per output token and to the first token.
    provenance : mapping
        Source, date and number of rows, and the figures on left-out groups.
    """

    bandwidth_share: float
    expert_bandwidth_share: float
    compute_share: float
    link_share: float
    narrow_compute_ratio: float
    layer_s: float
    expert_layer_s: float
    reduce_s: float
    step_s: float
    sequence_s: float
    prefill_s: float
    first_token_s: float
    wait_share: float
    itl_factor: float
    ttft_factor: float
    provenance: Mapping[str, object]


@dataclass(frozen=True)
class ServingPrediction:
    """Time per output token and to the first token [ms] with 90 % intervals, and tokens/s of the answers."""

    itl_ms: float
    itl_low_ms: float
    itl_high_ms: float
    ttft_low_ms: float
    ttft_high_ms: float
    tokens_per_s: float


@functools.cache
def shipped_serving_speed() -> ServingSpeed:
    """The shipped parameters, fitted on public measurements.

    Examples
    --------
    >>> 0.5 < shipped_serving_speed().bandwidth_share < 1
    True
    """
    text = (resources.files("gpuplanner.sizing.predict") / DEFAULT).read_text("utf-8")
    return ServingSpeed(**json.loads(text))


def attended_tokens(model: Architecture, tokens: float) -> float:
    """Tokens of a context that the mean layer reads: layers with a sliding window read no more than that.

    Examples
    --------
    >>> from gpuplanner.sizing.predict.describe import preset
    >>> attended_tokens(preset("gpt-oss-20b"), 1024)
    576.0
    """
    if not model.window:
        return tokens
    full = 1 / model.window_every if model.window_every else 0.0
    return full * tokens + (1 - full) * min(tokens, model.window)


def weight_counts(model: Architecture) -> tuple[float, float, int]:
    """Weights of all layers without routed experts, of routed experts, and of the head.

    Examples
    --------
    >>> from gpuplanner.sizing.predict.describe import preset
    >>> [round(count / 1e9, 1) for count in weight_counts(preset("gpt-oss-120b"))]
    [1.0, 114.7, 0.6]
    """
    head = model.vocab * model.hidden
    routed = float(model.mlp_params(model.expert_ffn)) * model.experts * (model.layers - model.dense_layers)
    return model.params() - routed - head * (1 if model.tied else 2), routed, head


def serving_work(
    model: Architecture, board: Board, layout: EngineLayout, load: Load, capacity: float = np.inf
) -> ServingWork:
    """Work of an engine in the steady state of a closed loop.

    A step reads the weights that its sequences touch, of experts ``1 - (1 - active / experts) ** sequences``, and the
    cache of a mean context of prompt and half the answer. A prefill computes 2 operations a weight and token.

    Parameters
    ----------
    model, board, layout, load
        The model, the GPU (or MIG slice), parallelism with formats, and the requests.
    capacity : float
        Sequences for which there is memory; further requests wait.

    Examples
    --------
    >>> from gpuplanner.sizing.predict.describe import preset
    >>> from gpuplanner.sizing.predict.throughput import board_facts
    >>> work = serving_work(preset("llama-3.1-8b"), board_facts("H100-80GB-SXM5"), EngineLayout(), Load(1024, 512, 1))
    >>> round(1e3 * float(work.read_s), 2)  # 15 GB of weights and 0.2 GB of cache at 3.35 TB/s
    4.53
    """
    running = np.minimum(load.concurrency, capacity)
    at_once = running / layout.pp  # micro-batches take turns in a pipeline
    each = at_once / layout.dp
    spread = layout.tp * layout.dp
    dense, routed, head = weight_counts(model)
    visited = model.experts_active / max(model.experts, 1)
    active, touched = routed * visited, routed * (1 - (1 - visited) ** at_once)
    peak, narrow = compute_peak(board, layout.weights)
    context = attended_tokens(model, load.prompt + load.answer / 2) * model.layers
    past = attended_tokens(model, load.prompt / 2) * model.layers
    if model.kv_rank:  # decoding works on the latent, prefill on what it expands to
        cache = (model.kv_rank + model.rope_dim) * layout.cache_bytes
        width = model.heads * (model.kv_rank + model.rope_dim / 2) / layout.tp
        prefill_width = model.heads * (model.head_dim + model.rope_dim + model.v_dim) / 2
    else:
        cache = 2 * model.kv_width * layout.cache_bytes / min(layout.tp, model.kv_heads)
        width, prefill_width = model.q_width / layout.tp, model.q_width
    read = (dense * layout.dense_bytes + 2.0 * head) / layout.tp + each * context * cache
    compute = 2 * each * (dense + head) / layout.tp + 2 * at_once * active / spread
    prefill = 2 * load.prompt * (dense + active) / peak + 4 * load.prompt * past * prefill_width / board.flops
    link = board.fabric if spread <= NODE else 1e9 * parameter("network_gb_s").value
    # two all-reduces of 2 bytes, both ways
    moved = 8.0 * model.layers * model.hidden * (spread - 1) / spread / link
    return ServingWork(
        read_s=read / board.memory_bandwidth,
        experts_s=touched * layout.weight_bytes / spread / board.memory_bandwidth,
        compute_s=compute / peak + 4 * each * context * width / board.flops,
        link_s=moved * each,
        prefill_s=prefill / (spread * layout.pp),
        prefill_link_s=moved * load.prompt / (layout.dp * layout.pp),
        layers=model.layers,
        expert_layers=model.layers - model.dense_layers if model.experts else 0,
        reduces=2 * model.layers * (spread > 1),
        narrow=float(narrow),
        answer=load.answer,
        running=running,
        concurrency=load.concurrency,
    )


def compute_peak(board: Board, weights: str) -> tuple[float, bool]:
    """Dense peak at which a GPU multiplies weights of a format [FLOP/s], and whether it is one of 8 or 4 bits.

    Examples
    --------
    >>> from gpuplanner.sizing.predict.throughput import board_facts
    >>> compute_peak(board_facts("H100-80GB-SXM5"), "nvfp4") == compute_peak(board_facts("H100-80GB-SXM5"), "none")
    True
    """
    if weights in FOUR_BIT and board.fp4_flops:
        return board.fp4_flops, True
    if weights in ("fp8", "int8") and board.fp8_flops:
        return board.fp8_flops, True
    return board.flops, False


def serving_seconds(work: ServingWork, speed: ServingSpeed) -> tuple[Any, Any]:
    """Mean time per output token and mean time to the first token [s].

    A step takes ``max(bytes / bandwidth, operations / peak)``, launches, all-reduces and the host's time; to that come
    the prefills of the requests that follow on those that ended, ``running / answer`` a step. A request waits for a
    share of them before its first token, and, where memory holds fewer than all, for a place.
    """
    step, prefill = step_and_prefill_seconds(work, speed)
    waits = speed.wait_share * work.running * prefill
    itl = step + (1 - speed.wait_share) * work.running / work.answer * prefill
    first = speed.first_token_s + step + prefill + waits
    queue = (work.concurrency / work.running - 1) * (first + work.answer * itl)
    return itl, first + queue


def step_and_prefill_seconds(work: ServingWork, speed: ServingSpeed) -> tuple[Any, Any]:
    """Time of a decoding step and of the prefill of one prompt [s], each without the other."""
    ratio = np.where(work.narrow, speed.narrow_compute_ratio, 1.0)
    read = work.read_s / speed.bandwidth_share + work.experts_s / speed.expert_bandwidth_share
    step = np.maximum(read, work.compute_s / (speed.compute_share * ratio)) + speed.step_s
    step = step + work.layers * speed.layer_s + work.expert_layers * speed.expert_layer_s
    step = step + work.reduces * speed.reduce_s + work.link_s / speed.link_share
    step = step + work.running * speed.sequence_s
    prefill = work.prefill_s / (speed.compute_share * ratio) + work.prefill_link_s / speed.link_share
    return step, prefill + speed.prefill_s


def predict_serving(work: ServingWork, speed: ServingSpeed | None = None) -> ServingPrediction:
    """Speed of one setting with its intervals.

    Parameters
    ----------
    work : ServingWork
        From :func:`serving_work`.
    speed : ServingSpeed, optional
        By default the shipped parameters.

    Examples
    --------
    >>> from gpuplanner.sizing.predict.describe import preset
    >>> from gpuplanner.sizing.predict.throughput import board_facts
    >>> work = serving_work(preset("llama-3.1-8b"), board_facts("H100-80GB-SXM5"), EngineLayout(), Load(1024, 512, 64))
    >>> 8 < predict_serving(work).itl_ms < 16
    True
    """
    speed = speed or shipped_serving_speed()
    itl, first = serving_seconds(work, speed)
    rate = work.concurrency * work.answer / (first + work.answer * itl)
    itl_ms = [1e3 * itl * ratio for ratio in (1.0, 1 / speed.itl_factor, speed.itl_factor)]
    ttft_ms = [1e3 * first * ratio for ratio in (1 / speed.ttft_factor, speed.ttft_factor)]
    return ServingPrediction(*map(float, (*itl_ms, *ttft_ms, rate)))
