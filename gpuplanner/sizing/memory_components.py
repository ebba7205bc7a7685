"""Components of the peak memory of training: weights, gradients, optimiser, activations, overheads."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from gpuplanner.hardware.catalog import find_parameter
from gpuplanner.sizing.model_architecture import Architecture
from gpuplanner.sizing.training_job import TrainingJob, find_generic_numbers, list_adapted_matrices, load_methods

WEIGHT_SHARDINGS = ("zero3", "fsdp")
"""Sharding modes that shard weights as well."""


@functools.lru_cache(1024)
def regime_bytes(regime: str, optimizer: str = "adamw") -> tuple[float, float, float]:
    """Return bytes per parameter of weights, gradients and optimiser states of a precision regime, such as ``mixed``.

    Examples
    --------
    >>> regime_bytes("mixed"), sum(regime_bytes("pure", "sgd"))
    ((2.0, 2.0, 12.0), 4.0)
    """
    weights, gradients, states = find_generic_numbers("regime", regime, "bytes") or (0.0, 0.0, 0.0)
    moment = 2.0 if regime == "pure" else 4.0
    if (fixed := find_generic_numbers("optimizer", optimizer, "moment_bytes")) is not None:
        states += fixed[0] - 2 * moment
    elif (count := find_generic_numbers("optimizer", optimizer, "moments")) is not None:
        states += (count[0] - 2) * moment
    return weights, gradients, states


def stage_params(architecture: Architecture, tp: int, pp: int) -> float:
    """Count the parameters of the first pipeline rank: its layers, positions and the embedding.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import load_preset
    >>> round(stage_params(load_preset("llama-3.1-8b"), 4, 1) / 1e6)
    2008
    """
    if architecture.kind == "diffusion":
        return architecture.given_params
    ends = architecture.embedding_params(128 * tp if tp > 1 else 1)
    count = 2 if pp == 1 and not architecture.tied and architecture.kind == "decoder" else 1
    positions = architecture.positions * architecture.hidden
    return (
        architecture.layers / pp * architecture.layer_params() + count * ends + positions + architecture.extra / pp
    ) / tp


def _absent_params(job: TrainingJob) -> float:
    """Count the parameters of experts that lie on other ranks of expert parallelism."""
    if job.ep == 1:
        return 0.0
    model = job.model
    local_architecture = replace(model, experts=model.experts // job.ep, experts_active=1)
    return model.layers * (model.layer_params() - local_architecture.layer_params()) / job.tp / job.pp


def trained_bytes(job: TrainingJob, params: float) -> float:
    """Return the bytes of weights, gradients and states of trained parameters on one rank.

    References
    ----------
    .. [1] Rajbhandari et al., ZeRO, arXiv 1910.02054.
    .. [2] deepspeedai/DeepSpeed, docs/code-docs/source/memory.rst.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import load_preset
    >>> job = TrainingJob(load_preset("gpt2"), 1024, regime="mixed", dp=64, sharding="zero1")
    >>> round(trained_bytes(job, 7.5e9) / 1e9, 1)
    31.4
    """
    weights, gradients, states = regime_bytes(job.regime, job.optimizer)
    n, sharding = job.shards, job.sharding
    local_params = params - _absent_params(job)
    if job.offload == "all":
        return 0.0 if sharding in WEIGHT_SHARDINGS else weights * local_params
    if job.offload:
        states = 0.0
    at_once = 0.0
    if job.step_in_backward:  # one gradient at a time, of which that of the embedding or head is the largest
        at_once = gradients * job.model.embedding_params() / job.tp / (n if sharding in WEIGHT_SHARDINGS else 1)
        gradients = 0.0
    if sharding == "zero3" and job.regime == "deepspeed":
        return (weights + states) * params / n

    # Experts are shared by as many ranks in fewer groups: a shard is the same.
    def local_count(*shardings: str) -> float:
        return params / n if sharding in shardings else local_params

    gradient_shardings = ("zero2",) if job.gradients_whole else (*WEIGHT_SHARDINGS, "zero2")
    total = weights * local_count(*WEIGHT_SHARDINGS) + gradients * local_count(*gradient_shardings)
    return total + at_once + states * local_count(*WEIGHT_SHARDINGS, "zero1", "zero2")


def reference_bytes(job: TrainingJob, params: float) -> float:
    """Return the bytes of the reference copy of preference training; with adapters the base model serves as reference.

    References
    ----------
    .. [1] Rafailov et al., Direct Preference Optimization, arXiv 2305.18290.
    """
    if not job.reference or job.frozen:
        return 0.0
    whole = job.shards == 1 or job.sharding not in WEIGHT_SHARDINGS
    return regime_bytes(job.regime)[0] * (params - _absent_params(job) if whole else params / job.shards)


def reusable_gradient_bytes(job: TrainingJob, params: float) -> float:
    """Return the bytes of gradients that are allocated only as backward frees activations.

    A framework that frees gradients after each step allocates them again in backward, while activations are freed; of
    several micro-batches per step only the first does. Replicas keep buckets for the reduction. Pieces of sharded
    gradients are too small to reuse the memory of activations, which the allocator keeps.
    """
    n_shards = job.shards if job.sharding in (*WEIGHT_SHARDINGS, "zero2") and not job.gradients_whole else 1
    replicas = job.shards > 1 and job.sharding in ("", "ddp")
    stays = replicas or job.accumulation > 1 or not job.gradients_freed
    if stays or job.offload == "all" or job.step_in_backward:
        return 0.0
    if n_shards > 1 and job.meter != "allocated":
        return 0.0
    local_params = params if n_shards > 1 else params - _absent_params(job)
    return regime_bytes(job.regime, job.optimizer)[1] * local_params / n_shards


def frozen_bytes(job: TrainingJob, params: float) -> float:
    """Return the bytes of frozen weights, and of gradients where the tool keeps them anyway."""
    model, n = job.model, job.shards if job.sharding in WEIGHT_SHARDINGS else 1
    weight_bytes = job.weight_bytes
    if n == 1:
        params -= _absent_params(job)
    if job.offload == "all":
        return 0.0 if job.sharding in WEIGHT_SHARDINGS else weight_bytes * params
    if not job.quantization:
        kept = weight_bytes * params / n
    else:
        narrow = (find_generic_numbers("quantization", job.quantization, "weight_bytes") or [2.0])[0]
        ends = model.embedding_params() / job.tp
        wide = ends if model.tied or job.quantised_head else 2 * ends
        kept = (narrow * (params - wide) + job.embedding_bytes * wide) / n
    if job.frozen_gradients:
        kept += weight_bytes * params / (1 if job.gradients_whole else n)
    return kept


def eight_bit_copy_bytes(job: TrainingJob) -> float:
    """Return the bytes of the 8 bit copies, and their transposes, that training in fp8 keeps of the layers' weights.

    Where autocast would copy weights in 16 bit, they take the place and size of these copies; of sharded weights a
    layer has them.

    References
    ----------
    .. [1] NVIDIA/TransformerEngine, transformer_engine/pytorch/module/base.py, get_weight_workspace.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import load_preset
    >>> job = TrainingJob(load_preset("llama-3.1-8b"), 4096, regime="megatron", fp8_bytes=2.0)
    >>> round(eight_bit_copy_bytes(job) / 1e9, 1)
    14.0
    """
    if not job.fp8_bytes or has_autocast_copies(job):
        return 0.0
    layers = 1 if job.sharding in WEIGHT_SHARDINGS else job.model.layers
    local_params = job.model.layer_params() / job.tp - _absent_params(job) * job.pp / job.model.layers
    return job.fp8_bytes * layers / (1 if layers == 1 else job.pp) * local_params


def has_autocast_copies(job: TrainingJob) -> bool:
    """Whether autocast copies all weights of a stage in 16 bit: those trained in fp32, and not gathered in pieces."""
    return not job.frozen and job.regime == AUTOCAST_REGIME and job.sharding not in WEIGHT_SHARDINGS


def static_bytes(job: TrainingJob, params: float) -> float:
    """Return the bytes of weights, gradients and states of a stage, without adapters."""
    return frozen_bytes(job, params) if job.frozen else trained_bytes(job, params)


def dequantised_bytes(job: TrainingJob) -> float:
    """Return the bytes of the largest quantised matrix while it is unpacked to 16 bits."""
    if not job.quantization:
        return 0.0
    model = job.model
    head = model.embedding_params() if job.quantised_head else 0
    return 2.0 * max(head, model.hidden * model.mlp_width) / job.tp


def gathered_bytes(job: TrainingJob) -> float:
    """Return the bytes that a sharded job gathers temporarily: FSDP units, or live parameters and a layer of ZeRO-3."""
    if job.sharding not in WEIGHT_SHARDINGS:
        return 0.0
    model, t = job.model, job.tp
    narrow = 2.0
    if job.quantization:
        narrow = (find_generic_numbers("quantization", job.quantization, "weight_bytes") or [2.0])[0]
    ends = model.embedding_params() * (1 if model.tied else 2) / t
    layer = model.layer_params() / t - _absent_params(job) * job.pp / max(1, model.layers)
    if job.sharding == "zero3":
        return 4.0 * max(layer, model.embedding_params() / t) + 2.0 * min(job.live_params, model.params() / t)
    # The unit at work, the one fetched ahead, and its gradient.
    units = 2 * narrow if job.frozen else 3 * narrow
    reduced = 0.0 if job.frozen else job.reduce_bytes * max(layer, model.embedding_params() / t)
    if not job.resharded:
        return 2.0 * stage_params(model, t, job.pp) + 2.0 * layer + reduced
    return units * layer + 2.0 * ends + reduced


def adapter_params(job: TrainingJob) -> float:
    """Count the trained parameters of a job with a frozen model: ``r (in + out)`` of each matrix with LoRA.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import load_preset
    >>> int(adapter_params(TrainingJob(load_preset("llama-2-7b"), 1, method="lora")))
    4194304
    """
    model, method = job.model, load_methods()[job.method]
    if method.base == "layers":
        head = model.embedding_params() if job.method == "head" else 0
        return job.trained_layers * model.layer_params() + head
    n = method.counts
    of_layer = n["layer_h"] * model.hidden + n["layer_kv"] * model.kv_width
    adapted = list_adapted_matrices(model, job.lora_targets) if method.adapts else []
    of_layer += sum(method.matrix_params(into, out, job.lora_rank) for _, into, out in adapted)
    return model.layers * of_layer + n["fixed_h"] * model.hidden


def dense_bytes(job: TrainingJob) -> float:
    """Return the bytes of the dense matrices that a method builds in one layer, as large as the adapted ones."""
    if not job.frozen or not load_methods()[job.method].counts["dense"]:
        return 0.0
    return 2.0 * sum(into * out for _, into, out in list_adapted_matrices(job.model, job.lora_targets)) / job.tp


def adapter_bytes(job: TrainingJob) -> float:
    """Return the bytes of weights, gradients and states trained next to a frozen model, on one rank.

    Weights of layers that are not frozen count with the model; only what their regime needs beyond is counted here.
    """
    model = job.model
    if not job.frozen:
        return 0.0
    params = adapter_params(job) / job.tp / job.pp
    weights, gradients, states = regime_bytes(job.adapter_regime, job.optimizer)
    if load_methods()[job.method].base == "layers":
        weights = max(0.0, weights - job.weight_bytes)
    full = job.shards if job.sharding in WEIGHT_SHARDINGS else 1
    half = job.shards if job.sharding in (*WEIGHT_SHARDINGS, "zero1", "zero2") else 1
    kept = params * (weights / full + gradients / full + states / half)
    if job.embeddings_trained:
        copies = model.embedding_params() * (1 if model.tied else 2) / job.tp
        kept += copies * sum(regime_bytes(job.embedding_copy_regime, job.optimizer)) / full
        kept += 0.0 if job.fused_step else copies * 2.0 / full
    return kept


AUTOCAST_REGIME = "amp"
"""Regime of fp32 weights, of which matrix products read copies in 16 bit."""


def layer_bytes(job: TrainingJob) -> tuple[float, float]:
    """Return the activation bytes of a layer per micro-batch: not split, and split, by tensor parallelism.

    References
    ----------
    .. [1] Korthikanti et al., Reducing Activation Recomputation, arXiv 2205.05198, for a block without dropout.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import load_preset
    >>> job = TrainingJob(load_preset("gpt2"), 1024)
    >>> round(sum(layer_bytes(job)) / (1024 * 768), 2)  # 12 + 4 + 16, and 4 a / h
    32.06
    """
    model, h = job.model, job.model.hidden
    wide = 2.0 if job.regime == "fp32" else 1.0
    q, kv, f = model.q_width / h, model.kv_width / h, model.mlp_width / h
    frozen = load_methods()[job.method].base == "frozen"
    inputs, outputs, upcast = _norm_bytes(job, frozen=frozen)
    products = 2.0 * f
    mlp = (6.0 if job.compiled else 8.0) * f if model.gated else 4.0 * f
    if job.composed_gelu and not job.compiled and not model.gated:
        mlp = _composed_gelu_bytes(job) * f
    routed = 4.0 * model.experts_active if model.experts else 0.0  # a token's input to each expert, and its output
    split = 4 * q + 4 * kv + mlp + routed + (2 * q + 2 * kv if job.qkv_kept else 0.0)
    if frozen and not job.inputs_kept:
        outputs, split = 0.0, split - products
    if job.compiled:
        outputs = 0.0
    added = _adapter_bytes_per_element(job)
    per_token = job.tokens * h * wide
    rows = job.tokens * job.seq * model.heads * 5.0 if not job.flash else job.tokens * model.heads * 4.0
    masks = 2.0 if job.dropout else 0.0
    whole = (inputs + outputs + upcast + masks) * per_token
    return whole, (split + added) * per_token + rows


def _norm_bytes(job: TrainingJob, *, frozen: bool) -> tuple[float, float, float]:
    """Return bytes of a layer's norms per token and hidden element: inputs, outputs, and upcasts."""
    model = job.model
    norms = min(model.norms, 2)
    rms = model.norm == "rms" and not job.compiled
    if job.eager and not frozen and job.regime == AUTOCAST_REGIME:
        has_separate_matrices = model.gated or model.kv_width != model.q_width or model.kind == "encoder"
        return (
            4.0 * norms,
            2.0 * ((3 if has_separate_matrices else 1) + (2 if model.gated else 1)),
            4.0 * model.norms * rms,
        )
    if frozen and job.inputs_each:
        return 4.0 * norms, 0.0, 4.0 * (model.norms - norms) * rms
    return 2.0 * norms, 2.0 * norms, 3.5 * model.norms * rms


def _composed_gelu_bytes(job: TrainingJob) -> float:
    """Return the bytes that a GELU composed of elementary operations keeps, per element of the MLP width."""
    regime = job.adapter_regime if job.frozen else job.regime
    return 4.0 + 4.0 + 4.0 + 2.0 + 2.0 if regime == AUTOCAST_REGIME or job.inputs_each else 5 * 2.0


def _adapter_bytes_per_element(job: TrainingJob) -> float:
    """Return the bytes that the adapters of one layer keep, per hidden element."""
    method, h = load_methods()[job.method], job.model.hidden
    if not job.frozen or not method.adapts:
        return 0.0
    adapted = {name: (into / h, out / h) for name, into, out in list_adapted_matrices(job.model, job.lora_targets)}
    if kept := method.counts["kept_out"]:
        return kept * sum(out for _, out in adapted.values())
    if job.inputs_each and not job.lora_dropout:
        return 2.0 * sum(into for into, _ in adapted.values())
    outs = 0.0 if job.compiled else 2.0 * sum(out for _, out in adapted.values())
    if job.lora_dropout:
        fused = [name for name in adapted if name in ("q", "k", "v")][1:] if job.lora_fused_qkv else []
        return 3.0 * sum(into for name, (into, _) in adapted.items() if name not in fused) + outs
    inputs = {_INPUT_BY_MATRIX[name]: into for name, (into, _) in adapted.items() if name != "o"}
    return 2.0 * sum(inputs.values()) + outs


_INPUT_BY_MATRIX = {"q": "attention", "k": "attention", "v": "attention", "gate": "mlp", "up": "mlp", "down": "product"}
"""What each matrix reads, where several read the same."""


def _selected_bytes(job: TrainingJob, layer: float, border: float) -> float:
    """Return the bytes of a layer that selective recompute keeps."""
    model, h = job.model, job.model.hidden
    if job.selective == "attention":
        return layer - (0.0 if job.flash else 5.0 * job.tokens * job.seq * model.heads / job.tp)
    q, kv, f = model.q_width / h, model.kv_width / h, model.mlp_width / h
    products = 2.0 * (q + 2 * kv + 2 + (2 if model.gated else 1) * f)
    return border + (2.0 * q + products / 2) * job.tokens * h / job.tp


def activation_bytes(job: TrainingJob) -> tuple[float, float, float]:
    """Return the activation bytes of the first and last pipeline stage, and those of a layer being recomputed.

    References
    ----------
    .. [1] Narayanan et al., Efficient Large-Scale Language Model Training, arXiv 2104.04473.
    .. [2] pytorch/torchtitan, torchtitan/distributed/activation_checkpoint.py; Korthikanti et al., arXiv 2205.05198.
    """
    model = job.model
    if model.kind == "diffusion":
        kept = job.micro_batch * model.given_activation_bytes * (0.25 if job.recompute == "full" else 1.0)
        return kept, kept, 0.0
    whole, split = layer_bytes(job)
    layer = (whole / job.tp if job.sequence_parallel else whole) + split / job.tp + dense_bytes(job)
    border = 2.0 * job.tokens * model.hidden * (2.0 if job.regime == "fp32" else 1.0)
    border /= job.tp if job.sequence_parallel else 1
    kept = min(layer, _selected_bytes(job, layer, border))
    keeps, working = {"none": (layer, 0.0), "selective": (kept, layer - kept), "full": (border, layer)}[job.recompute]
    if job.recompute == "full" and job.inputs_offloaded:
        keeps = 0.0
    layers = model.layers / job.pp
    if load_methods()[job.method].base == "layers":  # nothing below the first trained layer has a gradient
        layers = min(layers, job.trained_layers)
    return min(job.accumulation, job.in_flight or job.pp) * layers * keeps, layers * keeps, working


BYTES_PER_GIB = 2.0**30
"""Bytes in a GiB."""


@functools.cache
def _parameter_value(name: str) -> float:
    """Return the value of a catalogue parameter; cached."""
    return find_parameter(name).value


def bucket_bytes(job: TrainingJob, params: float) -> float:
    """Return the bytes of buckets that gradients are reduced in and parameters gathered in."""
    trained = adapter_params(job) if job.frozen else params
    if job.ddp_buckets and job.shards > 1 and job.sharding in ("", "ddp") and job.offload != "all":
        return trained * regime_bytes(job.adapter_regime if job.frozen else job.regime)[1]
    return 2.0 * (min(job.reduce_bucket, 2 * trained) + min(job.allgather_bucket, trained))


def step_bytes(job: TrainingJob, params: float) -> float:
    """Return the temporary bytes of an optimiser step that is not fused: one more copy of a moment.

    An optimiser that processes matrices one by one needs temporaries of the largest.

    References
    ----------
    .. [1] docs.pytorch.org, torch.optim.AdamW: foreach needs about the size of the parameters more.
    """
    if job.step_in_backward or job.offload:
        return 0.0
    regime = job.adapter_regime if job.frozen else job.regime
    half = job.shards if job.sharding in (*WEIGHT_SHARDINGS, "zero1", "zero2") else 1
    if step_figures := find_generic_numbers("optimizer", job.optimizer, "step_bytes"):
        model = job.model
        largest = max(model.embedding_params(), model.hidden * model.mlp_width) / job.tp
        return 0.0 if job.frozen else (step_figures[0] + 2 * (regime == "pure")) * largest / half
    if job.fused_step:
        return 0.0
    trained = adapter_params(job) if job.frozen else params
    bytes_per_parameter = 2.0 if regime == "pure" else 4.0
    return bytes_per_parameter * trained / half if regime_bytes(regime, job.optimizer)[2] else 0.0


def context_bytes(job: TrainingJob) -> float:
    """Return the bytes of the CUDA context and communicator buffers, which the allocator does not count."""
    return _context_and_communicator_bytes(job) if job.meter == "device" else 0.0


def unmetered_bytes(job: TrainingJob) -> float:
    """Return the bytes on the GPU that the memory meter of the job does not count: CUDA context and communicators."""
    return 0.0 if job.meter == "device" else _context_and_communicator_bytes(job)


def _context_and_communicator_bytes(job: TrainingJob) -> float:
    """Return the bytes of the CUDA context and of one communicator per kind of parallelism."""
    groups = sum(size > 1 for size in (job.tp, job.pp, job.shards))
    groups = job.communicators if groups and job.communicators else groups
    return (
        (job.context_gib or _parameter_value("cuda_context_gib")) + groups * _parameter_value("communicator_gib")
    ) * BYTES_PER_GIB


MEGATRON_NORM_BYTES_PER_ELEMENT = 4.0
"""Bytes of the final norm's input and output, per token and hidden element."""


def logits_bytes(job: TrainingJob) -> float:
    """Return the bytes of logits of one micro-batch on the last stage, with copies, loss and gradient.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import load_preset
    >>> round(logits_bytes(TrainingJob(load_preset("qwen-7b"), 8192, logits_bytes=14)) / 1e9, 1)
    17.6
    """
    model = job.model
    if model.kind == "diffusion":
        return 0.0
    width = model.embedding_params() / model.hidden / job.tp
    chunks = job.loss_chunks
    if job.loss_gib:
        chunks = math.ceil(4 * job.tokens * width / BYTES_PER_GIB / job.loss_gib)
    return job.tokens * (job.logits_bytes * width / chunks + MEGATRON_NORM_BYTES_PER_ELEMENT * model.hidden)


PEAK_MEMORY_COMPONENTS = (
    "states",
    "adapters",
    "gathered",
    "activations",
    "logits",
    "step",
    "buckets",
    "context",
    "slack",
)
"""Names of the components of a peak, in the order of the stack."""


class PeakComponent(NamedTuple):
    """One component of a peak, with its explanation."""

    name: str
    gib: float
    why: str


def peak_gib(job: TrainingJob) -> tuple[float, ...]:
    """Predict each of `PEAK_MEMORY_COMPONENTS` on the most loaded GPU [GiB].

    The first pipeline stage has the most activations, the last one the logits. A layer is recomputed after the logits
    are freed, the temporary of a step exists after activations are freed, and reused gradients appear as activations
    go. Of such alternatives the larger counts and the other is 0. Slack is a fraction of what is allocated within a
    step.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import load_preset
    >>> job = TrainingJob(load_preset("llama-3.2-3b"), 4096, 2, regime="pure", recompute="full", fused_step=True,
    ...     loss_chunks=8, compiled=True, meter="allocated")
    >>> round(sum(peak_gib(job)), 1)  # measured: 24.9
    26.6
    """
    stage = stage_params(job.model, job.tp, job.pp)
    states = static_bytes(job, stage) + reference_bytes(job, stage) + eight_bit_copy_bytes(job)
    first, last, working = activation_bytes(job)
    logits, step = logits_bytes(job), step_bytes(job, stage)
    if has_autocast_copies(job):
        copies = 2.0 * stage
        if job.recompute == "full":  # they go as forward ends
            logits += copies
        else:
            first, last = first + copies, last + copies
    if (job.pp > 1 and first + working >= last + max(working, logits)) or working >= logits:
        kept, logits = max(first, last) + working, 0.0
    else:
        kept = last
    reusable = 0.0 if job.frozen else reusable_gradient_bytes(job, stage)
    if step > max(kept + logits - reusable, working):
        kept = logits = 0.0
    elif reusable > kept + logits - working:
        kept, logits, step = working, 0.0, 0.0
    else:  # what is kept beside the states is what is more than the gradients that come in its place
        step, reused = 0.0, min(reusable, kept)
        kept, logits = kept - reused, logits - (reusable - reused)
    gathered = gathered_bytes(job) + dequantised_bytes(job)
    parts = [states, adapter_bytes(job), gathered, kept, logits, step, bucket_bytes(job, stage)]
    slack = _parameter_value("allocator_slack") * sum(parts[2:]) if job.meter != "allocated" else 0.0
    return tuple(part / BYTES_PER_GIB for part in (*parts, context_bytes(job), slack))


def explain_peak(
    job: TrainingJob, multipliers: Sequence[float] = (1.0,) * len(PEAK_MEMORY_COMPONENTS)
) -> list[PeakComponent]:
    """List the components of a peak times their multipliers, each with an explanation; zero components are left out."""
    trained = job.method if job.frozen else "all parameters"
    states = f"{job.regime} on {job.sharding or 'one rank'} of {job.shards}{', and a copy' * job.reference}"
    states = f"frozen weights, {job.quantization or '16 bit'}" if job.frozen else states
    copies = eight_bit_copy_bytes(job) / BYTES_PER_GIB
    words = {
        "states": states + (f", and {copies:.1f} GiB of 8 bit copies of weights" if copies else ""),
        "adapters": f"{job.method}: weights, gradients, states",
        "gathered": f"units that {job.sharding} holds whole",
        "activations": f"{job.tokens:.0f} tokens, recompute {job.recompute}",
        "logits": f"{job.logits_bytes:g} bytes a logit, {job.loss_chunks} chunks",
        "step": f"temporary of the optimiser for {trained}",
        "buckets": "to reduce and to gather in",
        "context": "CUDA and communicators",
        "slack": "cached by the allocator",
    }
    parts = zip(PEAK_MEMORY_COMPONENTS, peak_gib(job), multipliers, strict=True)
    return [PeakComponent(name, gib * knob, words[name].strip()) for name, gib, knob in parts if gib > 0]
