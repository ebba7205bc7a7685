"""The peak of the most loaded GPU as a stack of components."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from gpuplanner.sizing.predict.activations import AUTOCAST, activation_bytes
from gpuplanner.sizing.predict.adapters import adapter_bytes
from gpuplanner.sizing.predict.job import TrainingJob
from gpuplanner.sizing.predict.overheads import GIB, bucket_bytes, context_bytes, slack_share, step_bytes
from gpuplanner.sizing.predict.static import (
    FULLY,
    dequantised_bytes,
    frozen_bytes,
    gathered_bytes,
    late_gradient_bytes,
    reference_bytes,
    stage_params,
    trained_bytes,
)

MEGATRON_NORM = 4.0
"""Bytes of the final norm's input and output, per token and hidden element."""


def logits_bytes(job: TrainingJob) -> float:
    """Logits of one micro-batch on the last stage, with their copies, loss and gradient.

    Chunks of the loss divide all of it.

    Examples
    --------
    >>> from gpuplanner.sizing.predict.describe import preset
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
    >>> from gpuplanner.sizing.predict.describe import preset
    >>> job = TrainingJob(preset("llama-3.2-3b"), 4096, 2, regime="pure", recompute="full", fused_step=True,
    ...     loss_chunks=8, compiled=True, meter="allocated")
    >>> round(sum(peak_gib(job)), 1)  # measured: 24.9
    26.6
    """
    stage = stage_params(job.model, job.tp, job.pp)
    states = (
        frozen_bytes(job, stage) if job.frozen else trained_bytes(job, stage) + reference_bytes(job, stage)
    )
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
        "slack": "held by the allocator",
    }
    parts = zip(COMPONENTS, peak_gib(job), knobs, strict=True)
    return [Part(name, gib * knob, words[name].strip()) for name, gib, knob in parts if gib > 0]
