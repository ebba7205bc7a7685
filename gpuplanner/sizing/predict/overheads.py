"""Everything that is neither model nor data: buckets, a step's temporaries, contexts, communicators, slack."""

from __future__ import annotations

import functools

from gpuplanner.catalog.loader import parameter
from gpuplanner.sizing.predict.adapters import beside_params
from gpuplanner.sizing.predict.job import TrainingJob
from gpuplanner.sizing.predict.static import FULLY, regime_bytes
from gpuplanner.sizing.predict.tools import figures

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
