"""Memory and speed of serving a language model."""

from __future__ import annotations

import functools
import json
import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuplanner.hardware.catalog import parameter
from gpuplanner.sizing.memory_components import GIB
from gpuplanner.sizing.model_architecture import Architecture
from gpuplanner.sizing.throughput import NODE, Board
from gpuplanner.sizing.training_job import figures

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
    text = (resources.files(__package__) / DEFAULT).read_text("utf-8")
    return ServingSpeed(**json.loads(text))


def attended_tokens(model: Architecture, tokens: float) -> float:
    """Tokens of a context that the mean layer reads: layers with a sliding window read no more than that.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import preset
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
    >>> from gpuplanner.sizing.model_architecture import preset
    >>> [round(count / 1e9, 1) for count in weight_counts(preset("gpt-oss-120b"))]
    [1.0, 114.7, 0.6]
    """
    head = model.vocab * model.hidden
    routed = float(model.mlp_params(model.expert_ffn)) * model.experts * (model.layers - model.dense_layers)
    return model.params() - routed - head * (1 if model.tied else 2), routed, head


def serving_work(
    model: Architecture, gpu_model: Board, layout: EngineLayout, load: Load, capacity: float = np.inf
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
    >>> from gpuplanner.sizing.model_architecture import preset
    >>> from gpuplanner.sizing.throughput import board_facts
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
    peak, narrow = compute_peak(gpu_model, layout.weights)
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
    prefill = 2 * load.prompt * (dense + active) / peak + 4 * load.prompt * past * prefill_width / gpu_model.flops
    link = gpu_model.fabric if spread <= NODE else 1e9 * parameter("network_gb_s").value
    # two all-reduces of 2 bytes, both ways
    moved = 8.0 * model.layers * model.hidden * (spread - 1) / spread / link
    return ServingWork(
        read_s=read / gpu_model.memory_bandwidth,
        experts_s=touched * layout.weight_bytes / spread / gpu_model.memory_bandwidth,
        compute_s=compute / peak + 4 * each * context * width / gpu_model.flops,
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


def compute_peak(gpu_model: Board, weights: str) -> tuple[float, bool]:
    """Dense peak at which a GPU multiplies weights of a format [FLOP/s], and whether it is one of 8 or 4 bits.

    Examples
    --------
    >>> from gpuplanner.sizing.throughput import board_facts
    >>> compute_peak(board_facts("H100-80GB-SXM5"), "nvfp4") == compute_peak(board_facts("H100-80GB-SXM5"), "none")
    True
    """
    if weights in FOUR_BIT and gpu_model.fp4_flops:
        return gpu_model.fp4_flops, True
    if weights in ("fp8", "int8") and gpu_model.fp8_flops:
        return gpu_model.fp8_flops, True
    return gpu_model.flops, False


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
    >>> from gpuplanner.sizing.model_architecture import preset
    >>> from gpuplanner.sizing.throughput import board_facts
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


BLOCK = 16
"""Tokens of a block of the cache, vLLM's default."""
PROMPT_SHARE = 2 / 3
"""Share of a sequence that is taken as its prompt where only its length is known; assumption of this project."""
_GRAPH_GIB = 0.5
_PREFILL_TOKENS = 8192


@dataclass(frozen=True)
class Serving:
    """One engine on `tp` GPUs: GiB a GPU, concurrent sequences, time per output token [s], tokens/s of the answers."""

    tp: int
    weights_gib: float
    cache_gib: float
    workspace_gib: float
    concurrency: int
    step_s: float
    tokens_per_s: float
    tokens_per_s_interval: tuple[float, float]


def cache_bytes_per_token(model: Architecture, tp: int = 1, *, bytes_each: float = 2.0) -> float:
    """Bytes of key and value cache a token on one GPU: ``2 l n_kv d``, of MLA the latent and the rotary part.

    Heads are shared by at most as many ranks as there are key and value heads.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import preset
    >>> [cache_bytes_per_token(preset(name)) / 1024 for name in ("llama-3.1-8b", "llama-3.1-70b")]
    [128.0, 320.0]
    """
    if model.kv_rank:
        return model.layers * (model.kv_rank + model.rope_dim) * bytes_each
    return 2.0 * model.layers * model.kv_width * bytes_each / min(tp, model.kv_heads)


@dataclass(frozen=True)
class Footprint:
    """Bytes that an engine takes on each GPU: weights, workspace, and the cache of one sequence."""

    weights: float
    workspace: float
    sequence: float

    @property
    def least_gib(self) -> float:
        """What an engine needs that serves one sequence at a time."""
        return (self.weights + self.workspace + self.sequence) / GIB


def layout_of(
    model: Architecture, weights: str, tp: int = 1, *, pp: int = 1, dp: int = 1, cache_bytes: float = 2.0
) -> EngineLayout:
    """A layout with the bytes of a format of weights: of 4 bits are only the experts of a model that has some.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import preset
    >>> layout = layout_of(preset("gpt-oss-120b"), "mxfp4")
    >>> layout.weight_bytes < 1, layout.dense_bytes
    (True, 2.0)
    """
    read = figures("quantization", weights, "weight_bytes")
    weight_bytes = dense_bytes = read[0] if read else 2.0
    if model.experts and weight_bytes < 1:
        dense_bytes = 1.0 if model.released == "fp8" else 2.0
    return EngineLayout(tp, pp, dp, weight_bytes, dense_bytes, cache_bytes, weights)


def footprint(model: Architecture, layout: EngineLayout, seq: float, adapters: int = 0) -> Footprint:
    """What an engine takes on each of its GPUs, whatever their size; embeddings and head have 16 bits."""
    dense, routed, head = weight_counts(model)
    tp = layout.tp
    weights = (dense * layout.dense_bytes + 2.0 * head * (1 if model.tied else 2)) / tp
    weights = (weights + routed * layout.weight_bytes / (tp * layout.dp)) / layout.pp
    weights += adapters * 0.01 * model.params() / tp
    width = max(model.mlp_width, model.q_width + 2 * model.kv_width)
    workspace = _PREFILL_TOKENS * (2 * width / tp + 4 * model.hidden) * 2.0 + 4.0 * model.vocab * 256 / tp
    communicator_gib = (tp > 1) * parameter("communicator_gib").value
    workspace += (_GRAPH_GIB + parameter("cuda_context_gib").value + communicator_gib) * GIB
    blocks = math.ceil(seq / BLOCK) * BLOCK
    one = cache_bytes_per_token(model, tp, bytes_each=layout.cache_bytes) * blocks
    if model.kind == "encoder":
        # Nothing is kept from step to step: a sequence takes what one layer works with.
        one = seq * (2 * width / tp + 4 * model.hidden) * 2.0
    return Footprint(weights, workspace, one)


def sequence_capacity(model: Architecture, gpu_model: Board, layout: EngineLayout, load: Load) -> int:
    """Sequences of mean length for which an engine has memory in its share of each GPU, beside its weights.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import preset
    >>> from gpuplanner.sizing.throughput import board_facts
    >>> model, gpu_model = preset("llama-3.1-70b"), board_facts("H100-80GB-SXM5")
    >>> [sequence_capacity(model, gpu_model, EngineLayout(tp), Load(1024, 512, 1)) for tp in (1, 2, 4)]
    [0, 16, 371]
    """
    length = load.prompt + load.answer / 2
    taken = footprint(model, layout, length)
    one = taken.sequence * attended_tokens(model, length) / length / layout.pp
    room = gpu_model.memory_gib * GIB * parameter("serving_memory_share").value - taken.weights - taken.workspace
    return max(int(room / one), 0) * layout.dp


def serve(
    model: Architecture,
    gpu_model: Board,
    layout: EngineLayout,
    seq: int,
    *,
    prompt: float | None = None,
    itl_s: float | None = None,
    adapters: int = 0,
) -> Serving | None:
    """An engine that fills its share of the GPU with cache, at most as many sequences as the time per token allows.

    Without a ``prompt`` two thirds of a sequence of ``seq`` tokens are taken as one. The speed is that of
    :func:`~gpuplanner.sizing.serving_speed.serving_seconds`.
    """
    taken = footprint(model, layout, seq, adapters)
    weights, workspace, one = taken.weights, taken.workspace, taken.sequence
    room = gpu_model.memory_gib * GIB * parameter("serving_memory_share").value - weights - workspace
    most = int(min(room, 1e4 * one) // one)
    speed = shipped_serving_speed()
    asked = PROMPT_SHARE * seq if prompt is None else prompt

    def work(count: int) -> ServingWork:
        return serving_work(model, gpu_model, layout, Load(asked, seq - asked, count))

    def step(count: int) -> float:
        if model.kind == "encoder":  # all tokens of a sequence at once, told by the token
            read = weights / (gpu_model.memory_bandwidth * speed.bandwidth_share)
            compute = 2.0 * model.params() / layout.tp / (gpu_model.flops * speed.compute_share)
            return max(read, count * seq * compute) / seq
        return float(serving_seconds(work(count), speed)[0])

    if itl_s is not None:
        most = bisect_right(range(1, most + 1), itl_s, key=step)
    if most < 1:
        return None
    rate, step_s = most / step(most), step(most)
    if model.kind != "encoder":
        rate = predict_serving(work(most), speed).tokens_per_s
    interval = (rate / speed.itl_factor, rate * speed.itl_factor)
    return Serving(layout.tp, weights / GIB, most * one / GIB, workspace / GIB, most, step_s, rate, interval)
