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

from gpuplanner.hardware.catalog import find_parameter
from gpuplanner.sizing.memory_components import BYTES_PER_GIB
from gpuplanner.sizing.model_architecture import Architecture
from gpuplanner.sizing.training_job import find_generic_numbers
from gpuplanner.sizing.training_throughput import GPUS_PER_NODE, GpuSpec

SERVING_SPEED_FILE_NAME = "serving_speed.json"
"""Shipped parameters; ``python benchmarks/serving_speed.py --write DATE`` makes them."""
FOUR_BIT_FORMATS = ("nvfp4", "mxfp4", "fp4")
"""Formats of weights that Blackwell multiplies in 4 bits; older GPUs unpack them to 16."""


@dataclass(frozen=True)
class EngineLoad:
    """A constant number of concurrent requests on one engine.

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
    """Parallelism and number formats of an engine.

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
    """Work of one decoding step and of one prefill on the busiest GPU, in seconds at the speeds of its data sheet.

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
    """Fitted parameters of serving speed, with the errors of measurements.

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
    """Load the shipped parameters, fitted to public measurements.

    Examples
    --------
    >>> 0.5 < shipped_serving_speed().bandwidth_share < 1
    True
    """
    text = (resources.files(__package__) / SERVING_SPEED_FILE_NAME).read_text("utf-8")
    return ServingSpeed(**json.loads(text))


def count_attended_tokens(architecture: Architecture, tokens: float) -> float:
    """Count the context tokens that an average layer reads; sliding windows limit them.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import load_preset
    >>> count_attended_tokens(load_preset("gpt-oss-20b"), 1024)
    576.0
    """
    if not architecture.window:
        return tokens
    full = 1 / architecture.window_every if architecture.window_every else 0.0
    return full * tokens + (1 - full) * min(tokens, architecture.window)


def count_weights(architecture: Architecture) -> tuple[float, float, int]:
    """Count weights of all layers without routed experts, of routed experts, and of the head.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import load_preset
    >>> [round(count / 1e9, 1) for count in count_weights(load_preset("gpt-oss-120b"))]
    [1.0, 114.7, 0.6]
    """
    head = architecture.vocab * architecture.hidden
    routed = (
        float(architecture.mlp_params(architecture.expert_ffn))
        * architecture.experts
        * (architecture.layers - architecture.dense_layers)
    )
    return architecture.params() - routed - head * (1 if architecture.tied else 2), routed, head


def compute_serving_work(
    architecture: Architecture, gpu_model: GpuSpec, layout: EngineLayout, load: EngineLoad, capacity: float = np.inf
) -> ServingWork:
    """Compute the work of an engine in the steady state of constant concurrency.

    Parameters
    ----------
    architecture, gpu_model, layout, load
        The model, the GPU (or MIG slice), parallelism with formats, and the requests.
    capacity : float
        Sequences for which there is memory; further requests wait.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import load_preset
    >>> from gpuplanner.sizing.training_throughput import find_gpu_spec
    >>> h100 = find_gpu_spec("H100-80GB-SXM5")
    >>> work = compute_serving_work(load_preset("llama-3.1-8b"), h100, EngineLayout(), EngineLoad(1024, 512, 1))
    >>> round(1e3 * float(work.read_s), 2)  # 15 GB of weights and 0.2 GB of cache at 3.35 TB/s
    4.53
    """
    running = np.minimum(load.concurrency, capacity)
    at_once = running / layout.pp  # micro-batches take turns in a pipeline
    sequences_per_replica = at_once / layout.dp
    spread = layout.tp * layout.dp
    dense, routed, head = count_weights(architecture)
    visited = architecture.experts_active / max(architecture.experts, 1)
    active, touched = routed * visited, routed * (1 - (1 - visited) ** at_once)
    peak, narrow = find_compute_peak(gpu_model, layout.weights)
    context = count_attended_tokens(architecture, load.prompt + load.answer / 2) * architecture.layers
    past = count_attended_tokens(architecture, load.prompt / 2) * architecture.layers
    if architecture.kv_rank:  # decoding works on the latent, prefill on what it expands to
        cache = (architecture.kv_rank + architecture.rope_dim) * layout.cache_bytes
        width = architecture.heads * (architecture.kv_rank + architecture.rope_dim / 2) / layout.tp
        prefill_width = architecture.heads * (architecture.head_dim + architecture.rope_dim + architecture.v_dim) / 2
    else:
        cache = 2 * architecture.kv_width * layout.cache_bytes / min(layout.tp, architecture.kv_heads)
        width, prefill_width = architecture.q_width / layout.tp, architecture.q_width
    read = (dense * layout.dense_bytes + 2.0 * head) / layout.tp + sequences_per_replica * context * cache
    compute = 2 * sequences_per_replica * (dense + head) / layout.tp + 2 * at_once * active / spread
    prefill = 2 * load.prompt * (dense + active) / peak + 4 * load.prompt * past * prefill_width / gpu_model.flops
    link = gpu_model.fabric if spread <= GPUS_PER_NODE else 1e9 * find_parameter("network_gb_s").value
    # two all-reduces of 2 bytes, both ways
    moved = 8.0 * architecture.layers * architecture.hidden * (spread - 1) / spread / link
    return ServingWork(
        read_s=read / gpu_model.memory_bandwidth,
        experts_s=touched * layout.weight_bytes / spread / gpu_model.memory_bandwidth,
        compute_s=compute / peak + 4 * sequences_per_replica * context * width / gpu_model.flops,
        link_s=moved * sequences_per_replica,
        prefill_s=prefill / (spread * layout.pp),
        prefill_link_s=moved * load.prompt / (layout.dp * layout.pp),
        layers=architecture.layers,
        expert_layers=architecture.layers - architecture.dense_layers if architecture.experts else 0,
        reduces=2 * architecture.layers * (spread > 1),
        narrow=float(narrow),
        answer=load.answer,
        running=running,
        concurrency=load.concurrency,
    )


def find_compute_peak(gpu_model: GpuSpec, weights: str) -> tuple[float, bool]:
    """Find the dense peak for a weight format [FLOP/s], and whether it uses 8 or 4 bits.

    Examples
    --------
    >>> from gpuplanner.sizing.training_throughput import find_gpu_spec
    >>> h100 = find_gpu_spec("H100-80GB-SXM5")
    >>> find_compute_peak(h100, "nvfp4") == find_compute_peak(h100, "none")
    True
    """
    if weights in FOUR_BIT_FORMATS and gpu_model.fp4_flops:
        return gpu_model.fp4_flops, True
    if weights in ("fp8", "int8") and gpu_model.fp8_flops:
        return gpu_model.fp8_flops, True
    return gpu_model.flops, False


def serving_seconds(work: ServingWork, speed: ServingSpeed) -> tuple[Any, Any]:
    """Return mean time per output token and mean time to the first token [s]."""
    step, prefill = step_and_prefill_seconds(work, speed)
    waits = speed.wait_share * work.running * prefill
    itl = step + (1 - speed.wait_share) * work.running / work.answer * prefill
    first = speed.first_token_s + step + prefill + waits
    queue = (work.concurrency / work.running - 1) * (first + work.answer * itl)
    return itl, first + queue


def step_and_prefill_seconds(work: ServingWork, speed: ServingSpeed) -> tuple[Any, Any]:
    """Return the time of a decoding step and of the prefill of one prompt, each alone [s]."""
    ratio = np.where(work.narrow, speed.narrow_compute_ratio, 1.0)
    read = work.read_s / speed.bandwidth_share + work.experts_s / speed.expert_bandwidth_share
    step = np.maximum(read, work.compute_s / (speed.compute_share * ratio)) + speed.step_s
    step = step + work.layers * speed.layer_s + work.expert_layers * speed.expert_layer_s
    step = step + work.reduces * speed.reduce_s + work.link_s / speed.link_share
    step = step + work.running * speed.sequence_s
    prefill = work.prefill_s / (speed.compute_share * ratio) + work.prefill_link_s / speed.link_share
    return step, prefill + speed.prefill_s


def predict_serving(work: ServingWork, speed: ServingSpeed | None = None) -> ServingPrediction:
    """Predict the speed of one setting with intervals.

    Parameters
    ----------
    work : ServingWork
        From :func:`compute_serving_work`.
    speed : ServingSpeed, optional
        By default the shipped parameters.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import load_preset
    >>> from gpuplanner.sizing.training_throughput import find_gpu_spec
    >>> h100 = find_gpu_spec("H100-80GB-SXM5")
    >>> work = compute_serving_work(load_preset("llama-3.1-8b"), h100, EngineLayout(), EngineLoad(1024, 512, 64))
    >>> 8 < predict_serving(work).itl_ms < 16
    True
    """
    speed = speed or shipped_serving_speed()
    itl, first = serving_seconds(work, speed)
    rate = work.concurrency * work.answer / (first + work.answer * itl)
    itl_ms = [1e3 * itl * ratio for ratio in (1.0, 1 / speed.itl_factor, speed.itl_factor)]
    ttft_ms = [1e3 * first * ratio for ratio in (1 / speed.ttft_factor, speed.ttft_factor)]
    return ServingPrediction(*map(float, (*itl_ms, *ttft_ms, rate)))


CACHE_BLOCK_TOKENS = 16
"""Tokens of a cache block, vLLM's default."""
DEFAULT_PROMPT_FRACTION = 2 / 3
"""Fraction of a sequence assumed to be its prompt where only its length is known; assumption of this project."""
_CUDA_GRAPH_GIB = 0.5
"""Memory of the CUDA graphs of an engine [GiB]."""
_PREFILL_TOKENS = 8192
"""Most prompt tokens that an engine prefills at once, for which it has workspace."""


@dataclass(frozen=True)
class ServingEstimate:
    """One engine on `tp` GPUs: GiB a GPU, concurrent sequences, time per output token [s], tokens/s of the answers."""

    tp: int
    weights_gib: float
    cache_gib: float
    workspace_gib: float
    concurrency: int
    step_s: float
    tokens_per_s: float
    tokens_per_s_interval: tuple[float, float]


def cache_bytes_per_token(architecture: Architecture, tp: int = 1, *, bytes_each: float = 2.0) -> float:
    """Return the bytes of key and value cache a token on one GPU: ``2 l n_kv d``, of MLA the latent and rotary part.

    Heads are shared by at most as many ranks as there are key and value heads.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import load_preset
    >>> [cache_bytes_per_token(load_preset(name)) / 1024 for name in ("llama-3.1-8b", "llama-3.1-70b")]
    [128.0, 320.0]
    """
    if architecture.kv_rank:
        return architecture.layers * (architecture.kv_rank + architecture.rope_dim) * bytes_each
    return 2.0 * architecture.layers * architecture.kv_width * bytes_each / min(tp, architecture.kv_heads)


@dataclass(frozen=True)
class EngineFootprint:
    """Bytes that an engine takes on each GPU: weights, workspace, and the cache of one sequence."""

    weights: float
    workspace: float
    sequence: float

    @property
    def least_gib(self) -> float:
        """Memory of an engine that serves one sequence at a time [GiB]."""
        return (self.weights + self.workspace + self.sequence) / BYTES_PER_GIB


def make_layout(
    architecture: Architecture, weights: str, tp: int = 1, *, pp: int = 1, dp: int = 1, cache_bytes: float = 2.0
) -> EngineLayout:
    """Make a layout with the bytes of a weight format; 4 bits apply to the experts only, if the model has some.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import load_preset
    >>> layout = make_layout(load_preset("gpt-oss-120b"), "mxfp4")
    >>> layout.weight_bytes < 1, layout.dense_bytes
    (True, 2.0)
    """
    read = find_generic_numbers("quantization", weights, "weight_bytes")
    weight_bytes = dense_bytes = read[0] if read else 2.0
    if architecture.experts and weight_bytes < 1:
        dense_bytes = 1.0 if architecture.released == "fp8" else 2.0
    return EngineLayout(tp, pp, dp, weight_bytes, dense_bytes, cache_bytes, weights)


def compute_footprint(
    architecture: Architecture, layout: EngineLayout, seq: float, adapters: int = 0
) -> EngineFootprint:
    """Compute the memory of an engine on each GPU [bytes]; embeddings and head have 16 bits."""
    dense, routed, head = count_weights(architecture)
    tp = layout.tp
    weights = (dense * layout.dense_bytes + 2.0 * head * (1 if architecture.tied else 2)) / tp
    weights = (weights + routed * layout.weight_bytes / (tp * layout.dp)) / layout.pp
    weights += adapters * 0.01 * architecture.params() / tp
    width = max(architecture.mlp_width, architecture.q_width + 2 * architecture.kv_width)
    workspace = _PREFILL_TOKENS * (2 * width / tp + 4 * architecture.hidden) * 2.0 + 4.0 * architecture.vocab * 256 / tp
    communicator_gib = (tp > 1) * find_parameter("communicator_gib").value
    workspace += (_CUDA_GRAPH_GIB + find_parameter("cuda_context_gib").value + communicator_gib) * BYTES_PER_GIB
    blocks = math.ceil(seq / CACHE_BLOCK_TOKENS) * CACHE_BLOCK_TOKENS
    sequence_bytes = cache_bytes_per_token(architecture, tp, bytes_each=layout.cache_bytes) * blocks
    if architecture.kind == "encoder":
        # Nothing is kept from step to step: a sequence takes what one layer works with.
        sequence_bytes = seq * (2 * width / tp + 4 * architecture.hidden) * 2.0
    return EngineFootprint(weights, workspace, sequence_bytes)


def count_sequences_in_memory(
    architecture: Architecture, gpu_model: GpuSpec, layout: EngineLayout, load: EngineLoad
) -> int:
    """Count the sequences of average length that fit in the memory of an engine next to its weights.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import load_preset
    >>> from gpuplanner.sizing.training_throughput import find_gpu_spec
    >>> model, gpu_model = load_preset("llama-3.1-70b"), find_gpu_spec("H100-80GB-SXM5")
    >>> [count_sequences_in_memory(model, gpu_model, EngineLayout(tp), EngineLoad(1024, 512, 1)) for tp in (1, 2, 4)]
    [0, 16, 371]
    """
    length = load.prompt + load.answer / 2
    engine_footprint = compute_footprint(architecture, layout, length)
    sequence_bytes = engine_footprint.sequence * count_attended_tokens(architecture, length) / length / layout.pp
    free_bytes = (
        gpu_model.memory_gib * BYTES_PER_GIB * find_parameter("serving_memory_share").value
        - engine_footprint.weights
        - engine_footprint.workspace
    )
    return max(int(free_bytes / sequence_bytes), 0) * layout.dp


def make_engine(
    architecture: Architecture,
    gpu_model: GpuSpec,
    layout: EngineLayout,
    seq: int,
    *,
    prompt: float | None = None,
    itl_s: float | None = None,
    adapters: int = 0,
) -> ServingEstimate | None:
    """Make an engine that fills its memory with cache, with as many sequences as the time per token allows.

    Without ``prompt``, two thirds of ``seq`` tokens are assumed to be the prompt. The speed is that of
    :func:`serving_seconds`. None if not even one sequence fits or is fast enough.
    """
    engine_footprint = compute_footprint(architecture, layout, seq, adapters)
    weights, workspace, sequence_bytes = engine_footprint.weights, engine_footprint.workspace, engine_footprint.sequence
    free_bytes = (
        gpu_model.memory_gib * BYTES_PER_GIB * find_parameter("serving_memory_share").value - weights - workspace
    )
    max_sequences = int(min(free_bytes, 1e4 * sequence_bytes) // sequence_bytes)
    speed = shipped_serving_speed()
    prompt_tokens = DEFAULT_PROMPT_FRACTION * seq if prompt is None else prompt

    def work(count: int) -> ServingWork:
        """Return the work of the engine with a number of concurrent requests."""
        return compute_serving_work(
            architecture, gpu_model, layout, EngineLoad(prompt_tokens, seq - prompt_tokens, count)
        )

    def step(count: int) -> float:
        """Return the time of one decoding step [s] with a number of concurrent sequences."""
        if architecture.kind == "encoder":  # all tokens of a sequence at once, told by the token
            read = weights / (gpu_model.memory_bandwidth * speed.bandwidth_share)
            compute = 2.0 * architecture.params() / layout.tp / (gpu_model.flops * speed.compute_share)
            return max(read, count * seq * compute) / seq
        return float(serving_seconds(work(count), speed)[0])

    if itl_s is not None:
        max_sequences = bisect_right(range(1, max_sequences + 1), itl_s, key=step)
    if max_sequences < 1:
        return None
    rate, step_s = max_sequences / step(max_sequences), step(max_sequences)
    if architecture.kind != "encoder":
        rate = predict_serving(work(max_sequences), speed).tokens_per_s
    interval = (rate / speed.itl_factor, rate * speed.itl_factor)
    return ServingEstimate(
        layout.tp,
        weights / BYTES_PER_GIB,
        max_sequences * sequence_bytes / BYTES_PER_GIB,
        workspace / BYTES_PER_GIB,
        max_sequences,
        step_s,
        rate,
        interval,
    )
