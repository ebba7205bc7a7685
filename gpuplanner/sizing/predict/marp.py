"""Published rules, for comparison only."""

from __future__ import annotations

from gpuplanner.sizing.predict.job import TrainingJob
from gpuplanner.sizing.predict.overheads import GIB

BYTES_RULE = 18.0
"""Bytes a parameter of full mixed training, as fine-tuning tools print them: hiyouga/LLaMA-Factory README.md."""


def marp_gib(job: TrainingJob) -> float:
    """Frenzy's MARP as it is published: 20 bytes a parameter of a GPT-2 block, and activations, by tensor parallelism.

    ``W = V h + l (12 h² + 13 h)``, ``M = 20 W / t + s b h l (10 + 24 / t + 5 a s / (h t))`` bytes.

    Examples
    --------
    >>> from gpuplanner.sizing.predict.describe import preset
    >>> round(marp_gib(TrainingJob(preset("gpt2"), 1024)), 1)
    3.3
    """
    model = job.model
    layers, h, s, b, t = model.layers, model.hidden, job.seq, job.micro_batch, job.tp
    parameters = model.vocab * h + layers * (12 * h**2 + 13 * h)
    activations = s * b * h * layers * (10 + 24 / t + 5 * model.heads * s / (h * t))
    return (20 * parameters / t + activations) / GIB


def bytes_rule_gib(job: TrainingJob) -> float:
    """18 bytes a parameter, shared by all GPUs.

    Examples
    --------
    >>> from gpuplanner.sizing.predict.describe import preset
    >>> round(bytes_rule_gib(TrainingJob(preset("llama-2-7b"), 1024)))
    113
    """
    return BYTES_RULE * job.model.params() / job.gpus / GIB
