"""Logits and loss: never dropped, they decide small models with large vocabularies."""

from __future__ import annotations

from gpuplanner.sizing.predict.job import TrainingJob

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
    return job.tokens * (job.logits_bytes * width / job.loss_chunks + MEGATRON_NORM * model.hidden)
