"""What is trained beside a frozen model: LoRA, adapters, copies of embedding and head."""

from __future__ import annotations

from gpuplanner.sizing.predict.job import TrainingJob
from gpuplanner.sizing.predict.static import FULLY, regime_bytes


def lora_params(job: TrainingJob) -> float:
    """Parameters of LoRA: ``r (in + out)`` of each adapted matrix.

    Examples
    --------
    >>> from gpuplanner.sizing.predict.describe import preset
    >>> int(lora_params(TrainingJob(preset("llama-2-7b"), 1, method="lora")))
    4194304
    """
    model, h = job.model, job.model.hidden
    q, kv, f = model.q_width, model.kv_width, model.mlp_width
    ends = {"q": h + q, "k": h + kv, "v": h + kv, "o": q + h, "gate": h + f, "up": h + f, "down": f + h}
    return model.layers * job.lora_rank * sum(ends[t] for t in job.lora_targets if t != "gate" or model.gated)


def adapter_bytes(job: TrainingJob) -> float:
    """Weights, gradients and states of adapters and of trained copies of the embeddings, on one rank."""
    model = job.model
    if not job.frozen:
        return 0.0
    if job.method == "lora":
        params = lora_params(job) / job.tp / job.pp
    else:
        outputs = 3 * model.hidden + 3 * model.mlp_width + 4 * model.hidden
        params = model.layers * (
            10 * model.hidden / model.layers + (outputs if job.method == "adapter_v2" else 0)
        )
    weights, gradients, states = regime_bytes(job.adapter_regime, job.optimizer)
    full = job.shards if job.sharding in FULLY else 1
    half = job.shards if job.sharding in (*FULLY, "zero1", "zero2") else 1
    kept = params * (weights / full + gradients / full + states / half)
    if job.embeddings_trained:
        copies = model.embedding_params() * (1 if model.tied else 2) / job.tp
        kept += copies * sum(regime_bytes(job.embedding_copy_regime, job.optimizer)) / full
        kept += 0.0 if job.fused_step else copies * 2.0 / full
    return kept
