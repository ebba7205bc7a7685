"""Tokens per second of a training job."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from gpuplanner.hardware.catalog import find_data_sheet, find_parameter, resolve_gpu_model
from gpuplanner.hardware.gpu_models import load_gpu_model, make_non_mig_model
from gpuplanner.sizing.memory_components import WEIGHT_SHARDINGS, layer_bytes, regime_bytes, stage_params
from gpuplanner.sizing.training_job import TrainingJob, list_adapted_matrices, load_methods

GPUS_PER_NODE = 8
"""GPUs of a node that share a fabric."""
_MAX_OVERLAPPED_COMPUTE_FRACTION = 0.95
"""Fraction of the computing time that can hide communication of gradients and parameters."""
_HALF_PEAK_RATE_TOKENS = 256.0
"""Tokens of a micro-batch at which kernels reach half of their peak rate."""
_RECOMPUTED_FORWARD_FRACTION_BY_MODE = {"none": 0.0, "selective": 0.24, "full": 1.0}
"""Fraction of the forward pass that is recomputed in backward."""
_EAGER_PARAMETERS = ("eager_matmul_share", "eager_passes", "eager_logit_bytes", "eager_step_passes", "eager_layer_s")
"""Catalogue parameters of the speed of training that is neither compiled nor fused."""
_ADAPTER_KERNEL_FACTOR = 1.8
"""Kernels of a layer with adapters over those without; 0.6 more where forward is recomputed."""
_UNPACK_BYTES_PER_WEIGHT = 4.5
"""Bytes moved to unpack a 4 bit weight to 16 bits: 0.5, 2 and 2."""
_MAX_EAGER_BYTES_PER_SM_S = 23e9
"""Bytes a second that a multiprocessor moves at most for kernels that are not fused, however fast the memory is."""


@dataclass(frozen=True)
class GpuSpec:
    """Data-sheet values of a GPU or slice: GiB, dense peaks [FLOP/s] (0: none), bandwidths [bytes/s], bf16."""

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
def find_gpu_spec(name: str) -> GpuSpec | None:
    """Find the data-sheet values of a GPU model; None if its data sheet states no peak.

    Examples
    --------
    >>> find_gpu_spec("H100-80GB-SXM5").memory_gib
    79.25
    """
    full_name = resolve_gpu_model(name)
    sheet = find_data_sheet(full_name)
    peak = sheet.dense_bf16_tflops or sheet.dense_fp16_tflops
    if not peak or not sheet.memory_bandwidth_gb_s:
        return None
    memory = (load_gpu_model if sheet.mig_model else make_non_mig_model)(full_name).memory_gib
    fabric = (sheet.nvlink_or_fabric_total_gb_s or 0.0) / 2 or find_parameter("link_pcie5_gb_s").value
    return GpuSpec(
        full_name,
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


def make_slice_spec(gpu_model: GpuSpec, profile: str) -> GpuSpec:
    """Scale the data-sheet values of a GPU to a MIG slice: memory, bandwidth, peaks and multiprocessors.

    Examples
    --------
    >>> make_slice_spec(find_gpu_spec("H100-80GB-SXM5"), "1g.20gb").memory_bandwidth / 3.35e12
    0.25
    """
    geometry = load_gpu_model(gpu_model.name)
    mig_profile = geometry.profile(profile)
    share = mig_profile.compute_slices / geometry.compute_slices
    peaks = {name: getattr(gpu_model, name) * share for name in ("flops", "fp8_flops", "fp4_flops")}
    bandwidth = gpu_model.memory_bandwidth * mig_profile.memory_slices / geometry.memory_slices
    return replace(gpu_model, memory_gib=mig_profile.memory_gib or 0.0, memory_bandwidth=bandwidth, **peaks)


def count_flops_per_token(job: TrainingJob) -> float:
    """Count floating-point operations per token: 6 per active parameter, and causal attention.

    4 per parameter where the weights are frozen, 2 more with a reference model; embeddings that are looked up are left
    out.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import load_preset
    >>> round(count_flops_per_token(TrainingJob(load_preset("llama-2-7b"), 2048)) / 1e9, 1)
    41.3
    """
    model = job.model
    visits = _flops_per_weight(job)
    looked_up = 0 if model.tied or model.kind == "diffusion" else model.embedding_params()
    attention = (6.0 + 2.0 * job.reference) * model.layers * job.seq * model.q_width
    return visits * (model.params(active=True) - looked_up) + attention


def _flops_per_weight(job: TrainingJob) -> float:
    """Return the operations per weight and token: forward and backward, and a reference model."""
    return (4.0 if job.frozen else 6.0) + 2.0 * job.reference


def estimate_tokens_per_s(job: TrainingJob, gpu_model: GpuSpec) -> tuple[float, float, float]:
    """Estimate the tokens per second of the whole job: low, expected and high.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import load_preset
    >>> job = TrainingJob(load_preset("llama-2-7b"), 2048, 4, 4, dp=8, sharding="fsdp")
    >>> [round(rate / 8) for rate in estimate_tokens_per_s(job, find_gpu_spec("H100-80GB-SXM5"))]  # published: 10643
    [6974, 9764, 10926]
    """
    link = gpu_model.fabric if job.tp * job.shards <= GPUS_PER_NODE else find_parameter("network_gb_s").value * 1e9
    per_step = job.tokens * job.shards * job.accumulation
    low, value, high = (per_step / _step_seconds(job, gpu_model, end, link) for end in ("low", "value", "high"))
    return low, value, high


@functools.cache
def _speed_parameter(name: str, end: str) -> float:
    """Return a catalogue parameter at the end of its range that gives low, expected or high speed."""
    parameter = find_parameter(name)
    slows = name.startswith("eager_") and name != "eager_matmul_share"
    return float(getattr(parameter, {"low": "high", "high": "low"}.get(end, end) if slows else end))


def _micro_batch_seconds(job: TrainingJob, gpu_model: GpuSpec, end: str) -> tuple[float, float]:
    """Return the seconds of a micro-batch on a GPU, and of the optimiser step where counted separately."""
    split = job.tp * job.pp
    visits = _flops_per_weight(job)
    recomputed = _RECOMPUTED_FORWARD_FRACTION_BY_MODE[job.recompute]
    work = job.tokens * count_flops_per_token(job) * (visits + 2.0 * recomputed) / visits / split
    peak = gpu_model.flops
    if job.regime == "fp32":
        peak = gpu_model.fp32_flops or peak
    if not job.eager or job.model.kind == "diffusion":
        return work / (peak * _speed_parameter("mfu", end) * job.tokens / (job.tokens + _HALF_PEAK_RATE_TOKENS)), 0.0
    share, passes, logit_bytes, step_passes, layer_s = (_speed_parameter(name, end) for name in _EAGER_PARAMETERS)
    model = job.model
    moved_bytes = sum(layer_bytes(job))
    if job.inputs_each:  # what adapters add to each output is moved and not kept
        moved_bytes += 2.0 * job.tokens * sum(out for _, _, out in list_adapted_matrices(model, job.lora_targets))
    moved_bytes *= passes * (1 + recomputed / 2) * model.layers / split
    moved_bytes += logit_bytes * job.tokens * model.vocab / job.tp
    if job.quantization:  # read, written and read again in 16 bit for each pass
        moved_bytes += _UNPACK_BYTES_PER_WEIGHT * (2 + recomputed) * model.params() / split
    adapts = load_methods()[job.method].adapts
    launched = layer_s * model.layers / job.pp * (1 + 0.6 * recomputed) * (_ADAPTER_KERNEL_FACTOR if adapts else 1)
    share_of = job.shards if job.sharding in (*WEIGHT_SHARDINGS, "zero1", "zero2") else 1
    state_bytes = regime_bytes(job.regime)[0] * stage_params(model, job.tp, job.pp) / share_of
    rate = min(
        gpu_model.memory_bandwidth, gpu_model.multiprocessors * _MAX_EAGER_BYTES_PER_SM_S or gpu_model.memory_bandwidth
    )
    micro = max(work / (peak * share) + moved_bytes / rate, launched)
    return micro, 0.0 if job.frozen else step_passes * state_bytes / rate


def _step_seconds(job: TrainingJob, gpu_model: GpuSpec, end: str, link: float) -> float:
    """Return the seconds of a step of the whole job, with gradients or parameters over a link of given bytes/s."""
    model, t, p, d = job.model, job.tp, job.pp, job.shards
    micro = job.tokens
    compute, optimiser = _micro_batch_seconds(job, gpu_model, end)
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
    return float(step + max(0.0, moved - _MAX_OVERLAPPED_COMPUTE_FRACTION * compute * job.accumulation))
