"""Weights, gradients and optimiser states: bytes by regime and optimiser, sharded as the job says."""

from __future__ import annotations

import functools
from dataclasses import replace

from gpuplanner.sizing.predict.architecture import Architecture
from gpuplanner.sizing.predict.job import TrainingJob
from gpuplanner.sizing.predict.tools import figures

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
    >>> from gpuplanner.sizing.predict.describe import preset
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
    >>> from gpuplanner.sizing.predict.describe import preset
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
        gradients, at_once = (
            0.0,
            gradients * job.model.embedding_params() / job.tp / (n if kind in FULLY else 1),
        )
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
    if (
        replicas
        or job.accumulation > 1
        or not job.gradients_freed
        or job.offload == "all"
        or job.step_in_backward
    ):
        return 0.0
    if shared > 1 and job.meter != "allocated":
        return 0.0
    return (
        regime_bytes(job.regime, job.optimizer)[1]
        * (params if shared > 1 else params - _absent_params(job))
        / shared
    )


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
    units = (
        2 * narrow if job.frozen else 3 * narrow
    )  # the unit at work, the one fetched ahead, and its gradient
    return units * layer + 2.0 * ends
