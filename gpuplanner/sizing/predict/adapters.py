"""What is trained beside or of a frozen model: adapters of any method, layers that are not frozen, embeddings."""

from __future__ import annotations

from gpuplanner.sizing.predict.job import TrainingJob
from gpuplanner.sizing.predict.methods import matrices, methods
from gpuplanner.sizing.predict.static import FULLY, regime_bytes


def beside_params(job: TrainingJob) -> float:
    """Trained parameters of a job whose model is frozen, on all ranks: ``r (in + out)`` of each matrix with LoRA.

    Examples
    --------
    >>> from gpuplanner.sizing.predict.describe import preset
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
