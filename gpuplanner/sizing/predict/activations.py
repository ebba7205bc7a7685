"""What forward keeps for backward."""

from __future__ import annotations

from gpuplanner.sizing.predict.adapters import dense_bytes
from gpuplanner.sizing.predict.job import TrainingJob
from gpuplanner.sizing.predict.methods import matrices, methods

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
    >>> from gpuplanner.sizing.predict.describe import preset
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
