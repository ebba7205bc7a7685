"""Tokens per second of a training job."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from gpuplanner.hardware.catalog import board_spec, find_any_board, parameter
from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.sizing.memory_components import FULLY, layer_bytes, regime_bytes, stage_params
from gpuplanner.sizing.training_job import TrainingJob, matrices, methods

NODE = 8
"""GPUs of a node that share a fabric."""
_HIDDEN = 0.95
"""Share of the computing behind which communication of gradients and parameters can hide."""
_RAMP_TOKENS = 256.0
"""Tokens of a micro-batch at which kernels reach half of what they can."""
_AGAIN = {"none": 0.0, "selective": 0.24, "full": 1.0}
"""Share of forward that is computed again in backward."""
_EAGER = ("eager_matmul_share", "eager_passes", "eager_logit_bytes", "eager_step_passes", "eager_layer_s")
_ADAPTED = 1.8
"""Kernels of a layer with adapters beside its matrices, by those of one without; 0.6 more where forward comes again."""
_UNPACKED = 4.5
"""Bytes moved for a weight of 4 bits that is unpacked to 16 for a matrix product: 0.5, 2 and 2."""
_EAGER_RATE = 23e9
"""Bytes a second that a multiprocessor moves at most for kernels that are not fused, however fast the memory is."""
"""Parameters of a tool that launches kernel after kernel."""


@dataclass(frozen=True)
class Board:
    """What a plan needs to know of a GPU: GiB, dense peaks in FLOP/s (0: it has none), bandwidths in bytes/s, bf16."""

    name: str
    memory_gib: float
    flops: float
    memory_bandwidth: float
    fabric: float
    bf16: bool = True
    fp32_flops: float = 0.0
    multiprocessors: int = 0
    fp8_flops: float = 0.0
    fp4_flops: float = 0.0


@functools.cache
def board_facts(name: str) -> Board | None:
    """Facts of a board, or None where its data sheet states no peak.

    Examples
    --------
    >>> board_facts("H100-80GB-SXM5").memory_gib
    79.25
    """
    known = find_any_board(name)
    sheet = board_spec(known)
    peak = sheet.dense_bf16_tflops or sheet.dense_fp16_tflops
    if not peak or not sheet.memory_bandwidth_gb_s:
        return None
    memory = 0.98 * (sheet.memory_gb or 0.0)
    if sheet.mig_model:
        memory = max(profile.memory_gib or 0.0 for profile in load_gpu_model(known).profiles) or memory
    fabric = (sheet.nvlink_or_fabric_total_gb_s or 0.0) / 2 or parameter("link_pcie5_gb_s").value
    return Board(
        known,
        memory,
        peak * 1e12,
        sheet.memory_bandwidth_gb_s * 1e9,
        fabric * 1e9,
        bool(sheet.dense_bf16_tflops),
        1e12 * (sheet.fp32_tflops or 0.0),
        sheet.sm_or_cu_count or 0,
        1e12 * (sheet.dense_fp8_tflops or 0.0),
        2e12 * (sheet.dense_fp8_tflops or 0.0) * ("Blackwell" in (sheet.architecture or "")),
    )


def slice_board(gpu_model: Board, profile: str) -> Board:
    """A MIG slice as a GPU of its own: its memory, and its shares of bandwidth, peaks and multiprocessors.

    Examples
    --------
    >>> slice_board(board_facts("H100-80GB-SXM5"), "1g.20gb").memory_bandwidth / 3.35e12
    0.25
    """
    whole = load_gpu_model(gpu_model.name)
    one = whole.profile(profile)
    share = one.compute_slices / whole.compute_slices
    peaks = {name: getattr(gpu_model, name) * share for name in ("flops", "fp8_flops", "fp4_flops")}
    bandwidth = gpu_model.memory_bandwidth * one.memory_slices / whole.memory_slices
    return replace(gpu_model, memory_gib=one.memory_gib or 0.0, memory_bandwidth=bandwidth, **peaks)


def flops_per_token(job: TrainingJob) -> float:
    """Floating point operations a token: 6 a parameter that a token visits, and causal attention.

    An embedding is looked up; the head multiplies, also where it shares the embedding's parameters. LoRA saves 2 of 6,
    a reference adds 2.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import preset
    >>> round(flops_per_token(TrainingJob(preset("llama-2-7b"), 2048)) / 1e9, 1)
    41.3
    """
    model = job.model
    visits = _visits(job)
    looked_up = 0 if model.tied or model.kind == "diffusion" else model.embedding_params()
    attention = (6.0 + 2.0 * job.reference) * model.layers * job.seq * model.q_width
    return visits * (model.params(active=True) - looked_up) + attention


def _visits(job: TrainingJob) -> float:
    return (4.0 if job.frozen else 6.0) + 2.0 * job.reference


def tokens_per_s(job: TrainingJob, gpu_model: Board) -> tuple[float, float, float]:
    """Tokens a second of the whole job: low, expected and high.

    Of a tuned tool, computing takes what the model FLOP/s utilisation of published runs says. One that launches kernel
    after kernel takes matrix products at a share of the peak, and beside them what those kernels move through memory:
    what forward keeps, logits, the optimiser's state; at least what the host takes to launch a layer. To that come
    all-reduces of tensor parallelism inside a node, the bubble ``(p - 1) / m`` of a pipeline, and gradients or
    parameters over the fabric or the network as far as they cannot hide behind computing. fp32 computes at the peak of
    fp32: TF32 is off in PyTorch unless switched on.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import preset
    >>> job = TrainingJob(preset("llama-2-7b"), 2048, 4, 4, dp=8, sharding="fsdp")
    >>> [round(rate / 8) for rate in tokens_per_s(job, board_facts("H100-80GB-SXM5"))]  # published: 10643
    [6974, 9764, 10926]
    """
    link = gpu_model.fabric if job.tp * job.shards <= NODE else parameter("network_gb_s").value * 1e9
    per_step = job.tokens * job.shards * job.accumulation
    low, value, high = (per_step / _step_s(job, gpu_model, end, link) for end in ("low", "value", "high"))
    return low, value, high


@functools.cache
def _figure(name: str, end: str) -> float:
    """A parameter where it makes for the least (`low`), the expected (`value`) or the highest speed (`high`)."""
    known = parameter(name)
    slows = name.startswith("eager_") and name != "eager_matmul_share"
    return float(getattr(known, {"low": "high", "high": "low"}.get(end, end) if slows else end))


def _micro_s(job: TrainingJob, gpu_model: Board, end: str) -> tuple[float, float]:
    """Seconds that a GPU computes for a micro-batch, and for the optimiser's step where that is not among them."""
    split = job.tp * job.pp
    visits = _visits(job)
    again = _AGAIN[job.recompute]
    work = job.tokens * flops_per_token(job) * (visits + 2.0 * again) / visits / split
    peak = gpu_model.flops
    if job.regime == "fp32":
        peak = gpu_model.fp32_flops or peak
    if not job.eager or job.model.kind == "diffusion":
        return work / (peak * _figure("mfu", end) * job.tokens / (job.tokens + _RAMP_TOKENS)), 0.0
    share, passes, logit_bytes, step_passes, layer_s = (_figure(name, end) for name in _EAGER)
    model = job.model
    kept = sum(layer_bytes(job))
    if job.inputs_each:  # what adapters add to each output is moved and not kept
        kept += 2.0 * job.tokens * sum(out for _, _, out in matrices(model, job.lora_targets))
    kept *= passes * (1 + again / 2) * model.layers / split
    kept += logit_bytes * job.tokens * model.vocab / job.tp
    if job.quantization:  # read, written and read again in 16 bit for each pass
        kept += _UNPACKED * (2 + again) * model.params() / split
    adapts = methods()[job.method].adapts
    launched = layer_s * model.layers / job.pp * (1 + 0.6 * again) * (_ADAPTED if adapts else 1)
    share_of = job.shards if job.sharding in (*FULLY, "zero1", "zero2") else 1
    moved = regime_bytes(job.regime)[0] * stage_params(model, job.tp, job.pp) / share_of
    rate = min(gpu_model.memory_bandwidth, gpu_model.multiprocessors * _EAGER_RATE or gpu_model.memory_bandwidth)
    micro = max(work / (peak * share) + kept / rate, launched)
    return micro, 0.0 if job.frozen else step_passes * moved / rate


def _step_s(job: TrainingJob, gpu_model: Board, end: str, link: float) -> float:
    """Seconds of a step of the whole job, its gradients and parameters going over a link of so many bytes/s."""
    model, t, p, d = job.model, job.tp, job.pp, job.shards
    micro = job.tokens
    compute, optimiser = _micro_s(job, gpu_model, end)
    reduce_s = 0.0
    if t > 1:
        once = 2.0 * (t - 1) / t * micro * model.hidden * 2.0
        reduce_s = 4.0 * once * model.layers / p / gpu_model.fabric
    share = 2.0 * model.params() / (t * p)
    if job.frozen:
        share *= 0.02 if job.sharding != "fsdp" else 1.0
    moved = 0.0
    if d > 1:
        rounds = 3.0 * job.accumulation if job.sharding in ("fsdp", "zero3") else 2.0
        moved = rounds * (d - 1) / d * share / link
    step = (compute + reduce_s) * (job.accumulation + p - 1) + optimiser
    return float(step + max(0.0, moved - _HIDDEN * compute * job.accumulation))
