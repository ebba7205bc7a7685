"""A job with every question answered: by the user, by the tool's documentation, or by an assumption."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import NoReturn

from gpuplanner.errors import ScenarioError, message
from gpuplanner.sizing.predict.architecture import Architecture
from gpuplanner.sizing.predict.methods import methods
from gpuplanner.sizing.predict.tools import figures

RECOMPUTE = ("none", "selective", "full")
METERS = ("allocated", "reserved", "device")
_COUNTS = ("seq", "micro_batch", "accumulation", "tp", "pp", "dp", "cp", "ep", "lora_rank", "loss_chunks")
_counts = operator.attrgetter(*_COUNTS)


@dataclass(frozen=True)
class TrainingJob:
    """One way to train one model.

    Parameters
    ----------
    model : Architecture
        What is trained.
    seq, micro_batch, accumulation : int
        Tokens of a sequence, sequences of a micro-batch on one GPU, micro-batches of a step.
    method : str
        What is trained of it or beside it: a row of the table of methods.
    trained_layers : int
        Layers that are not frozen, for a method that trains some of them.
    regime, adapter_regime, embedding_copy_regime : str
        Precision of what is trained: a row ``regime …`` of the tools' table.
    weight_bytes, embedding_bytes : float
        Bytes of a frozen weight, and of a frozen weight of embedding and head under quantisation.
    offload : {"", "states", "all"}
        What lies in the host's memory: optimiser states, or parameters and gradients also.
    lora_rank, lora_targets, lora_fused_qkv, lora_dropout
        Adapters; fused: q, k and v share one input.
    tp, pp, dp, cp, ep : int
        Tensor, pipeline, data, context and expert parallel ranks; the last share the experts among data parallel ones.
    in_flight : int
        Micro-batches that a pipeline has under way; 0: as many as it has stages.
    sharding : {"", "ddp", "zero1", "zero2", "zero3", "fsdp"}
        What is sharded over the data and context parallel ranks.
    recompute : {"none", "selective", "full"}
        What is computed again in backward; `selective` says which: ``"operators"`` (all but attention and every other
        matrix product) or ``"attention"`` (its scores alone).
    reference : bool
        A copy of the model that is not trained lies beside it, as preference training measures against (DPO).
    gradients_freed : bool
        Gradients are let go after a step and made anew in backward, while activations go.
    eager : bool
        Kernels are launched one by one, as PyTorch has them, instead of compiled or fused ones.
    composed_gelu : bool
        GELU is composed of elementary operations, each of which keeps what its gradient needs.
    loss_chunks, loss_gib
        Chunks of the loss; or GiB of fp32 logits that a chunk has at most.
    meter : {"allocated", "reserved", "device"}
        What the figure is compared with: the allocator, all that it holds, or nvidia-smi.
    """

    model: Architecture
    seq: int
    micro_batch: int = 1
    accumulation: int = 1
    method: str = "full"
    embeddings_trained: bool = False
    regime: str = "amp"
    adapter_regime: str = "amp"
    embedding_copy_regime: str = "pure"
    optimizer: str = "adamw"
    quantization: str = ""
    weight_bytes: float = 2.0
    embedding_bytes: float = 2.0
    quantised_head: bool = False
    inputs_kept: bool = False
    inputs_each: bool = False
    qkv_kept: bool = False
    lora_rank: int = 8
    lora_targets: tuple[str, ...] = ("q", "v")
    lora_fused_qkv: bool = False
    lora_dropout: bool = True
    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    in_flight: int = 0
    trained_layers: int = 0
    sequence_parallel: bool = False
    sharding: str = ""
    recompute: str = "none"
    selective: str = "operators"
    flash: bool = True
    dropout: bool = False
    offload: str = ""
    inputs_offloaded: bool = False
    compiled: bool = False
    eager: bool = False
    logits_bytes: float = 10.0
    loss_chunks: int = 1
    loss_gib: float = 0.0
    fused_step: bool = False
    step_in_backward: bool = False
    gradients_whole: bool = False
    gradients_freed: bool = False
    reference: bool = False
    composed_gelu: bool = False
    frozen_gradients: bool = False
    reduce_bucket: float = 0.0
    allgather_bucket: float = 0.0
    live_params: float = 0.0
    meter: str = "device"
    context_gib: float = 0.0
    communicators: int = 0

    def __post_init__(self) -> None:
        for name, value in zip(_COUNTS, _counts(self), strict=True):
            if value < 1:
                _refuse(name, "a whole number above 0", value)
        for name, allowed in (("method", methods()), ("recompute", RECOMPUTE), ("meter", METERS)):
            if getattr(self, name) not in allowed:
                _refuse(name, f"one of {', '.join(allowed)}", getattr(self, name))
        if self.model.kind != "diffusion":
            if self.model.heads % self.tp:
                near = max(t for t in range(1, self.tp) if self.model.heads % t == 0)
                _refuse("tp", f"a divisor of {self.model.heads} heads, such as {near}", self.tp)
            if self.model.layers < self.pp:
                _refuse("pp", f"at most {self.model.layers}, the layers", self.pp)
            if self.ep > 1 and (self.model.experts % self.ep or not self.model.experts):
                _refuse("ep", f"a divisor of {self.model.experts} experts", self.ep)
            if self.shards % self.ep:
                _refuse("ep", f"a divisor of {self.shards} data and context parallel ranks", self.ep)
            if not 0 <= self.trained_layers <= self.model.layers:
                _refuse("trained_layers", f"at most {self.model.layers}, the layers", self.trained_layers)
        if figures("regime", self.regime, "bytes") is None:
            _refuse("regime", "a regime of the tools' table", self.regime)

    @property
    def frozen(self) -> bool:
        """Whether the base model is not trained."""
        return methods()[self.method].base != "trained"

    @property
    def shards(self) -> int:
        """Ranks that share what is sharded: FSDP and ZeRO shard over data and context parallel ranks."""
        return self.dp * self.cp

    @property
    def tokens(self) -> float:
        """Tokens of a micro-batch on one rank."""
        return self.seq * self.micro_batch / self.cp

    @property
    def gpus(self) -> int:
        """GPUs of the job."""
        return self.tp * self.pp * self.dp * self.cp


def _refuse(name: str, expected: str, came: object) -> NoReturn:
    raise ScenarioError(message(f"job, {name}", expected, repr(came), "Mend it."))


def kind_of(job: TrainingJob) -> str:
    """What kind of training it is, as far as memory tells: method, precision, whether weights are narrow."""
    return f"{job.method} {job.regime}{' narrow' if job.quantization else ''}"


def extent_of(job: TrainingJob) -> tuple[float, float, float]:
    """How large a job is: logarithms of its parameters, its tokens of a micro-batch and its GPUs."""
    return math.log(max(1.0, job.model.params())), math.log(max(1.0, job.tokens)), math.log(job.gpus)
