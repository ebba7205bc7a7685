"""Components of peak memory: weights, gradients, optimiser, activations, overheads."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from gpuplanner.hardware.catalog import parameter
from gpuplanner.sizing.model_architecture import Architecture
from gpuplanner.sizing.training_job import TrainingJob, figures, matrices, methods

FULLY = ("zero3", "fsdp")


@functools.lru_cache(1024)
def regime_bytes(regime: str, optimizer: str = "adamw") -> tuple[float, float, float]:
    """Bytes a parameter of weights, gradients and optimiser.

    Examples
    --------
    >>> regime_bytes("mixed"), sum(regime_bytes("pure", "sgd"))
    ((2.0, 2.0, 12.0), 4.0)
    """
    weights, gradients, states = figures("regime", regime, "bytes") or (0.0, 0.0, 0.0)
    moment = 2.0 if regime == "pure" else 4.0
    if (fixed := figures("optimizer", optimizer, "moment_bytes")) is not None:
        states += fixed[0] - 2 * moment
    elif (count := figures("optimizer", optimizer, "moments")) is not None:
        states += (count[0] - 2) * moment
    return weights, gradients, states


def stage_params(model: Architecture, tp: int, pp: int) -> float:
    """Parameters of the first rank of a pipeline: its layers, positions and the embedding.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import preset
    >>> round(stage_params(preset("llama-3.1-8b"), 4, 1) / 1e6)
    2008
    """
    if model.kind == "diffusion":
        return model.given_params
    ends = model.embedding_params(128 * tp if tp > 1 else 1)
    count = 2 if pp == 1 and not model.tied and model.kind == "decoder" else 1
    positions = model.positions * model.hidden
    return (model.layers / pp * model.layer_params() + count * ends + positions + model.extra / pp) / tp


def _absent_params(job: TrainingJob) -> float:
    """Parameters of experts that lie on other ranks of expert parallelism."""
    if job.ep == 1:
        return 0.0
    model = job.model
    here = replace(model, experts=model.experts // job.ep, experts_active=1)
    return model.layers * (model.layer_params() - here.layer_params()) / job.tp / job.pp


def trained_bytes(job: TrainingJob, params: float) -> float:
    """Weights, gradients and states of trained parameters on one rank.

    ZeRO-1 shards states; ZeRO-2 gradients also; ZeRO-3 and FSDP all [1]_. DeepSpeed's fp32 gradients of the step are
    counted with the states, which share their sharding; in stage 3 fp16 gradients are part of them: 18 / n [2]_.

    References
    ----------
    .. [1] Rajbhandari et al., ZeRO, arXiv 1910.02054.
    .. [2] deepspeedai/DeepSpeed, docs/code-docs/source/memory.rst.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import preset
    >>> job = TrainingJob(preset("gpt2"), 1024, regime="mixed", dp=64, sharding="zero1")
    >>> round(trained_bytes(job, 7.5e9) / 1e9, 1)
    31.4
    """
    weights, gradients, states = regime_bytes(job.regime, job.optimizer)
    n, kind = job.shards, job.sharding
    held = params - _absent_params(job)
    if job.offload == "all":
        return 0.0 if kind in FULLY else weights * held
    if job.offload:
        states = 0.0
    at_once = 0.0
    if job.step_in_backward:  # one gradient at a time, of which that of the embedding or head is the largest
        at_once = gradients * job.model.embedding_params() / job.tp / (n if kind in FULLY else 1)
        gradients = 0.0
    if kind == "zero3" and job.regime == "deepspeed":
        return (weights + states) * params / n
    shared = params / n  # experts are shared by as many ranks in fewer groups: what is sharded is the same
    whole = job.gradients_whole and kind in FULLY
    kept = weights * (shared if kind in FULLY else held)
    kept += gradients * (shared if kind in (*FULLY, "zero2") and not whole else held)
    return kept + at_once + states * (shared if kind in (*FULLY, "zero1", "zero2") else held)


def reference_bytes(job: TrainingJob, params: float) -> float:
    """Weights of the copy that preference training measures against; adapters are taken off for it instead.

    References
    ----------
    .. [1] Rafailov et al., Direct Preference Optimization, arXiv 2305.18290.
    """
    if not job.reference or job.frozen:
        return 0.0
    whole = job.shards == 1 or job.sharding not in FULLY
    return regime_bytes(job.regime)[0] * (params - _absent_params(job) if whole else params / job.shards)


def late_gradient_bytes(job: TrainingJob, params: float) -> float:
    """Gradients of :func:`trained_bytes` that do not lie there yet when forward has kept all of its activations.

    A framework that lets them go after each step makes them anew in backward, which frees activations as it goes; of
    several micro-batches a step all but the first find them there. Replicas reduce in buckets that stay. Pieces of
    sharded gradients are too small for activations to lie where they lay, and the allocator keeps their place.
    """
    shared = job.shards if job.sharding in (*FULLY, "zero2") and not job.gradients_whole else 1
    replicas = job.shards > 1 and job.sharding in ("", "ddp")
    kept = replicas or job.accumulation > 1 or not job.gradients_freed
    if kept or job.offload == "all" or job.step_in_backward:
        return 0.0
    if shared > 1 and job.meter != "allocated":
        return 0.0
    here = params if shared > 1 else params - _absent_params(job)
    return regime_bytes(job.regime, job.optimizer)[1] * here / shared


def frozen_bytes(job: TrainingJob, params: float) -> float:
    """Weights of a model that is not trained, and gradients where the tool keeps them all the same."""
    model, n = job.model, job.shards if job.sharding in FULLY else 1
    each = job.weight_bytes
    if n == 1:
        params -= _absent_params(job)
    if job.offload == "all":
        return 0.0 if job.sharding in FULLY else each * params
    if not job.quantization:
        kept = each * params / n
    else:
        narrow = (figures("quantization", job.quantization, "weight_bytes") or [2.0])[0]
        ends = model.embedding_params() / job.tp
        wide = ends if model.tied or job.quantised_head else 2 * ends
        kept = (narrow * (params - wide) + job.embedding_bytes * wide) / n
    if job.frozen_gradients:
        kept += each * params / (1 if job.gradients_whole else n)
    return kept


def static_bytes(job: TrainingJob, params: float) -> float:
    """Bytes of weights, gradients and states of these parameters of a stage, without what is trained beside them."""
    return frozen_bytes(job, params) if job.frozen else trained_bytes(job, params)


def dequantised_bytes(job: TrainingJob) -> float:
    """The largest matrix of 4 or 8 bits, in 16 bits while it is multiplied."""
    if not job.quantization:
        return 0.0
    model = job.model
    head = model.embedding_params() if job.quantised_head else 0
    return 2.0 * max(head, model.hidden * model.mlp_width) / job.tp


def gathered_bytes(job: TrainingJob) -> float:
    """What a sharded job holds whole for a moment: units of FSDP, live parameters and the largest layer of ZeRO-3."""
    if job.sharding not in FULLY or (job.shards == 1 and job.sharding == "fsdp"):
        return 0.0
    model, t = job.model, job.tp
    narrow = 2.0
    if job.quantization:
        narrow = (figures("quantization", job.quantization, "weight_bytes") or [2.0])[0]
    ends = model.embedding_params() * (1 if model.tied else 2) / t
    layer = model.layer_params() / t - _absent_params(job) * job.pp / max(1, model.layers)
    if job.sharding == "zero3":
        return 4.0 * max(layer, model.embedding_params() / t) + 2.0 * min(job.live_params, model.params() / t)
    # The unit at work, the one fetched ahead, and its gradient.
    units = 2 * narrow if job.frozen else 3 * narrow
    return units * layer + 2.0 * ends


def beside_params(job: TrainingJob) -> float:
    """Trained parameters of a job whose model is frozen, on all ranks: ``r (in + out)`` of each matrix with LoRA.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import preset
    >>> int(beside_params(TrainingJob(preset("llama-2-7b"), 1, method="lora")))
    4194304
    """
    model, method = job.model, methods()[job.method]
    if method.base == "layers":
        head = model.embedding_params() if job.method == "head" else 0
        return job.trained_layers * model.layer_params() + head
    n = method.counts
    of_layer = n["layer_h"] * model.hidden + n["layer_kv"] * model.kv_width
    adapted = matrices(model, job.lora_targets) if method.adapts else []
    of_layer += sum(method.matrix_params(into, out, job.lora_rank) for _, into, out in adapted)
    return model.layers * of_layer + n["fixed_h"] * model.hidden


def dense_bytes(job: TrainingJob) -> float:
    """Bytes of the matrices that a method makes of one layer, as large as those that it adapts."""
    if not job.frozen or not methods()[job.method].counts["dense"]:
        return 0.0
    return 2.0 * sum(into * out for _, into, out in matrices(job.model, job.lora_targets)) / job.tp


def adapter_bytes(job: TrainingJob) -> float:
    """Weights, gradients and states of what is trained beside a frozen model, on one rank.

    Layers that are not frozen have their weights with those of the model; what a regime keeps of them beyond is here.
    """
    model = job.model
    if not job.frozen:
        return 0.0
    params = beside_params(job) / job.tp / job.pp
    weights, gradients, states = regime_bytes(job.adapter_regime, job.optimizer)
    if methods()[job.method].base == "layers":
        weights = max(0.0, weights - job.weight_bytes)
    full = job.shards if job.sharding in FULLY else 1
    half = job.shards if job.sharding in (*FULLY, "zero1", "zero2") else 1
    kept = params * (weights / full + gradients / full + states / half)
    if job.embeddings_trained:
        copies = model.embedding_params() * (1 if model.tied else 2) / job.tp
        kept += copies * sum(regime_bytes(job.embedding_copy_regime, job.optimizer)) / full
        kept += 0.0 if job.fused_step else copies * 2.0 / full
    return kept


AUTOCAST = "amp"
"""Regime of fp32 weights, of which matrix products read copies in 16 bit."""


def layer_bytes(job: TrainingJob) -> tuple[float, float]:
    """Bytes a layer keeps for a micro-batch: what tensor parallelism does not split, and what it does.

    Per token and hidden element in 16 bit: norms' inputs 2 + 2 and outputs 2 + 2, queries 2, attention output 2, keys
    and values 2 + 2 by their width, and 8 (gated) or 4 (not) by the MLP's [1]_. A GELU that is composed of elementary
    operations keeps what `_composed_gelu` counts. A norm that upcasts (RMS, eager) keeps
    fp32 and costs about 7 more; masks of dropout cost 1 + 1. A frozen layer does not keep the inputs of its linear
    layers, unless a 4 bit kernel does; adapters keep theirs. The score matrix adds ``5 a s²``, and with flash attention
    ``4 a s`` of statistics.

    References
    ----------
    .. [1] Korthikanti et al., Reducing Activation Recomputation, arXiv 2205.05198, for a block without dropout.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import preset
    >>> job = TrainingJob(preset("gpt2"), 1024)
    >>> round(sum(layer_bytes(job)) / (1024 * 768), 2)  # 12 + 4 + 16, and 4 a / h
    32.06
    """
    model, h = job.model, job.model.hidden
    wide = 2.0 if job.regime == "fp32" else 1.0
    q, kv, f = model.q_width / h, model.kv_width / h, model.mlp_width / h
    frozen = methods()[job.method].base == "frozen"
    inputs, outputs, upcast = _norm_bytes(job, frozen=frozen)
    products = 2.0 * f
    mlp = (6.0 if job.compiled else 8.0) * f if model.gated else 4.0 * f
    if job.composed_gelu and not job.compiled and not model.gated:
        mlp = _composed_gelu(job) * f
    split = 4 * q + 4 * kv + mlp + (2 * q + 2 * kv if job.qkv_kept else 0.0)
    if frozen and not job.inputs_kept:
        outputs, split = 0.0, split - products
    if job.compiled:
        outputs = 0.0
    added = _adapter_elements(job)
    per_token = job.tokens * h * wide
    rows = job.tokens * job.seq * model.heads * 5.0 if not job.flash else job.tokens * model.heads * 4.0
    masks = 2.0 if job.dropout else 0.0
    whole = (inputs + outputs + upcast + masks) * per_token
    return whole, (split + added) * per_token + rows


def _norm_bytes(job: TrainingJob, *, frozen: bool) -> tuple[float, float, float]:
    """Of a layer's norms, by token and hidden element: inputs, outputs as matrices read them, and what an upcast adds.

    Autocast of fp32 weights has a residual in fp32, and makes a copy in 16 bit for each matrix that reads a norm
    (queries, keys and values of grouped or gated models are matrices of their own); so it does for each adapter.
    """
    model = job.model
    norms = min(model.norms, 2)
    rms = model.norm == "rms" and not job.compiled
    if job.eager and not frozen and job.regime == AUTOCAST:
        apart = model.gated or model.kv_width != model.q_width or model.kind == "encoder"
        return 4.0 * norms, 2.0 * ((3 if apart else 1) + (2 if model.gated else 1)), 4.0 * model.norms * rms
    if frozen and job.inputs_each:
        return 4.0 * norms, 0.0, 4.0 * (model.norms - norms) * rms
    return 2.0 * norms, 2.0 * norms, 3.5 * model.norms * rms


def _composed_gelu(job: TrainingJob) -> float:
    """Bytes by the MLP's width that ``0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))`` keeps, one operation after another.

    In the model's type x for its power, tanh, 1 + tanh, x / 2 and the product. Autocast makes the power and all that
    follows of it fp32, and casts the product for the matrix behind it.
    """
    regime = job.adapter_regime if job.frozen else job.regime
    return 4.0 + 4.0 + 4.0 + 2.0 + 2.0 if regime == AUTOCAST or job.inputs_each else 5 * 2.0


def _adapter_elements(job: TrainingJob) -> float:
    """What adapters of one layer keep, in bytes by the hidden size.

    LoRA and its kin: a dropped copy (2) and its mask (1) of each input; without dropout the input, once where matrices
    share it, and not where attention keeps it. And the delta (2) of each output, unless kernels are fused. What scales
    or shifts outputs keeps them.
    """
    method, h = methods()[job.method], job.model.hidden
    if not job.frozen or not method.adapts:
        return 0.0
    adapted = {name: (into / h, out / h) for name, into, out in matrices(job.model, job.lora_targets)}
    if kept := method.counts["kept_out"]:
        return kept * sum(out for _, out in adapted.values())
    if job.inputs_each and not job.lora_dropout:
        return 2.0 * sum(into for into, _ in adapted.values())
    outs = 0.0 if job.compiled else 2.0 * sum(out for _, out in adapted.values())
    if job.lora_dropout:
        fused = [name for name in adapted if name in ("q", "k", "v")][1:] if job.lora_fused_qkv else []
        return 3.0 * sum(into for name, (into, _) in adapted.items() if name not in fused) + outs
    inputs = {_INPUT[name]: into for name, (into, _) in adapted.items() if name != "o"}
    return 2.0 * sum(inputs.values()) + outs


_INPUT = {"q": "attention", "k": "attention", "v": "attention", "gate": "mlp", "up": "mlp", "down": "product"}
"""What each matrix reads, where several read the same."""


def _selected_bytes(job: TrainingJob, layer: float, border: float) -> float:
    """What selective recompute keeps of a layer: all but the scores, or input, attention and every other product."""
    model, h = job.model, job.model.hidden
    if job.selective == "attention":
        return layer - (0.0 if job.flash else 5.0 * job.tokens * job.seq * model.heads / job.tp)
    q, kv, f = model.q_width / h, model.kv_width / h, model.mlp_width / h
    products = 2.0 * (q + 2 * kv + 2 + (2 if model.gated else 1) * f)
    return border + (2.0 * q + products / 2) * job.tokens * h / job.tp


def activation_bytes(job: TrainingJob) -> tuple[float, float, float]:
    """What the first and the last stage of a pipeline keep, and what is worked on while a layer is computed again.

    Under 1F1B the first stage holds min(m, p) micro-batches of l / p layers, the last one [1]_. Full recompute keeps
    the input of each layer, and one layer whole in backward. Selective recompute by operators keeps also the output of
    attention and of every other matrix product, of attention everything but its scores [2]_.

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
    keeps, working = {
        "none": (layer, 0.0),
        "selective": (kept, layer - kept),
        "full": (border, layer),
    }[job.recompute]
    if job.recompute == "full" and job.inputs_offloaded:
        keeps = 0.0
    layers = model.layers / job.pp
    if methods()[job.method].base == "layers":  # nothing below the first trained layer has a gradient
        layers = min(layers, job.trained_layers)
    return min(job.accumulation, job.in_flight or job.pp) * layers * keeps, layers * keeps, working


GIB = 2.0**30


@functools.cache
def _known(name: str) -> float:
    return parameter(name).value


def bucket_bytes(job: TrainingJob, params: float) -> float:
    """Buckets in which DeepSpeed reduces gradients and gathers parameters, of 16 bit elements."""
    trained = beside_params(job) if job.frozen else params
    return 2.0 * (min(job.reduce_bucket, 2 * trained) + min(job.allgather_bucket, trained))


def step_bytes(job: TrainingJob, params: float) -> float:
    """Temporary of an optimiser step that is not fused: one more copy of a moment of what is trained.

    An optimiser that goes through the matrices one by one has temporaries of the largest.

    References
    ----------
    .. [1] docs.pytorch.org, torch.optim.AdamW: foreach needs about the size of the parameters more.
    """
    if job.step_in_backward or job.offload:
        return 0.0
    regime = job.adapter_regime if job.frozen else job.regime
    half = job.shards if job.sharding in (*FULLY, "zero1", "zero2") else 1
    if one := figures("optimizer", job.optimizer, "step_bytes"):
        model = job.model
        largest = max(model.embedding_params(), model.hidden * model.mlp_width) / job.tp
        return 0.0 if job.frozen else (one[0] + 2 * (regime == "pure")) * largest / half
    if job.fused_step:
        return 0.0
    trained = beside_params(job) if job.frozen else params
    each = 2.0 if regime == "pure" else 4.0
    return each * trained / half if regime_bytes(regime, job.optimizer)[2] else 0.0


def context_bytes(job: TrainingJob) -> float:
    """Context of CUDA and buffers of a communicator for each kind of parallelism: what the allocator does not see."""
    return _context(job) if job.meter == "device" else 0.0


def hidden_bytes(job: TrainingJob) -> float:
    """What the job's meter does not show though it lies on the board: the context, where the allocator is the meter."""
    return 0.0 if job.meter == "device" else _context(job)


def _context(job: TrainingJob) -> float:
    groups = sum(size > 1 for size in (job.tp, job.pp, job.shards))
    groups = job.communicators if groups and job.communicators else groups
    return ((job.context_gib or _known("cuda_context_gib")) + groups * _known("communicator_gib")) * GIB


def slack_share() -> float:
    """Share that the allocator holds beyond what is allocated."""
    return _known("allocator_slack")


MEGATRON_NORM = 4.0
"""Bytes of the final norm's input and output, per token and hidden element."""


def logits_bytes(job: TrainingJob) -> float:
    """Logits of one micro-batch on the last stage, with their copies, loss and gradient.

    Chunks of the loss divide all of it.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import preset
    >>> round(logits_bytes(TrainingJob(preset("qwen-7b"), 8192, logits_bytes=14)) / 1e9, 1)
    17.6
    """
    model = job.model
    if model.kind == "diffusion":
        return 0.0
    width = model.embedding_params() / model.hidden / job.tp
    chunks = job.loss_chunks
    if job.loss_gib:
        chunks = math.ceil(4 * job.tokens * width / GIB / job.loss_gib)
    return job.tokens * (job.logits_bytes * width / chunks + MEGATRON_NORM * model.hidden)


COMPONENTS = (
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
"""Names of the parts of a peak, in the order of the stack."""


class Part(NamedTuple):
    """One component of a peak."""

    name: str
    gib: float
    why: str


def peak_gib(job: TrainingJob) -> tuple[float, ...]:
    """GiB of each of `COMPONENTS` on the most loaded GPU.

    The first stage of a pipeline holds the most activations, the last one the logits; a layer is computed again when
    the logits are gone, and a step that is not fused has its temporary when the activations are; gradients that are
    made anew come as activations go. Whichever is larger counts, the other is 0. Slack is a share of what comes and
    goes in a step.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import preset
    >>> job = TrainingJob(preset("llama-3.2-3b"), 4096, 2, regime="pure", recompute="full", fused_step=True,
    ...     loss_chunks=8, compiled=True, meter="allocated")
    >>> round(sum(peak_gib(job)), 1)  # measured: 24.9
    26.6
    """
    stage = stage_params(job.model, job.tp, job.pp)
    states = static_bytes(job, stage) + reference_bytes(job, stage)
    first, last, working = activation_bytes(job)
    logits, step = logits_bytes(job), step_bytes(job, stage)
    if not job.frozen and job.regime == AUTOCAST and job.sharding not in FULLY:
        copies = 2.0 * stage
        if job.recompute == "full":  # they go as forward ends
            logits += copies
        else:
            first, last = first + copies, last + copies
    if (job.pp > 1 and first + working >= last + max(working, logits)) or working >= logits:
        kept, logits = max(first, last) + working, 0.0
    else:
        kept = last
    late = 0.0 if job.frozen else late_gradient_bytes(job, stage)
    if step > max(kept + logits - late, working):
        kept = logits = 0.0
    elif late > kept + logits - working:
        kept, logits, step = working, 0.0, 0.0
    else:  # what is kept beside the states is what is more than the gradients that come in its place
        step, taken = 0.0, min(late, kept)
        kept, logits = kept - taken, logits - (late - taken)
    gathered = gathered_bytes(job) + dequantised_bytes(job)
    parts = [states, adapter_bytes(job), gathered, kept, logits, step, bucket_bytes(job, stage)]
    slack = slack_share() * sum(parts[2:]) if job.meter != "allocated" else 0.0
    return tuple(part / GIB for part in (*parts, context_bytes(job), slack))


def explained(job: TrainingJob, knobs: Sequence[float] = (1.0,) * len(COMPONENTS)) -> list[Part]:
    """The components times their knobs, with a word of explanation each; those of nothing are left out."""
    trained = job.method if job.frozen else "all parameters"
    words = {
        "states": f"{job.regime} on {job.sharding or 'one rank'} of {job.shards}{', and a copy' * job.reference}"
        if not job.frozen
        else f"frozen weights, {job.quantization or '16 bit'}",
        "adapters": f"{job.method}: weights, gradients, states",
        "gathered": f"units that {job.sharding} holds whole",
        "activations": f"{job.tokens:.0f} tokens, recompute {job.recompute}",
        "logits": f"{job.logits_bytes:g} bytes a logit, {job.loss_chunks} chunks",
        "step": f"temporary of the optimiser for {trained}",
        "buckets": "to reduce and to gather in",
        "context": "CUDA and communicators",
        "slack": "cached by the allocator",
    }
    parts = zip(COMPONENTS, peak_gib(job), knobs, strict=True)
    return [Part(name, gib * knob, words[name].strip()) for name, gib, knob in parts if gib > 0]
