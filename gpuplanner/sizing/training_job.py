"""A training job with every setting, from the user, the tool or an assumption."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from gpuplanner.core.errors import ScenarioError
from gpuplanner.hardware.catalog import facts
from gpuplanner.sizing.model_architecture import Architecture

TARGETS = ("q", "k", "v", "o", "gate", "up", "down")
"""Matrices of a layer that a method may adapt."""
_NUMBERS = (
    "rank", "r_in", "r_out", "r_sq", "in", "out", "in_out", "each", "layer_h", "layer_kv", "fixed_h", "kept_out",
    "dense",
)  # fmt: skip


@dataclass(frozen=True)
class Method:
    """What one method trains: all (``trained``), some layers (``layers``) or what it adds to a ``frozen`` model.

    ``counts`` are coefficients of trained parameters: of an adapted matrix by its rank, inputs, outputs and products of
    them; of a layer by hidden size and by width of the keys; once by the hidden size. ``kept_out`` are bytes that
    backward keeps of each adapted output; ``dense`` says that a matrix as large as the adapted one is made.
    """

    name: str
    base: str
    targets: tuple[str, ...]
    counts: dict[str, float]
    layers: int

    @functools.cached_property
    def adapts(self) -> bool:
        """Whether it adds to matrices of the model."""
        return any(self.counts[name] for name in ("r_in", "r_out", "r_sq", "in", "out", "in_out", "each"))

    @functools.cached_property
    def of_rank(self) -> bool:
        """Whether a rank says how much is trained."""
        return any(self.counts[name] for name in ("r_in", "r_out", "r_sq"))

    def matrix_params(self, inputs: int, outputs: int, rank: int) -> float:
        """Trained parameters of one adapted matrix."""
        n = self.counts
        ranked = rank * (n["r_in"] * inputs + n["r_out"] * outputs + n["r_sq"] * rank)
        return ranked + n["in"] * inputs + n["out"] * outputs + n["in_out"] * inputs * outputs + n["each"]


@functools.cache
def methods() -> dict[str, Method]:
    """Every method by its name.

    Examples
    --------
    >>> methods()["dora"].base, methods()["freeze"].layers
    ('frozen', 2)
    """
    return {
        row["method"]: Method(
            row["method"],
            row["base"],
            tuple((row["targets"] or "").split()),
            {name: float(row[name] or 0) for name in _NUMBERS},
            int(row["trained_layers"] or 0),
        )
        for row in facts("training_methods").iter_rows(named=True)
    }


@functools.cache
def method_names() -> dict[str, str]:
    """Method by each of its names, in lower case and with ``_`` between words."""
    table = facts("training_methods").select("method", "called").iter_rows()
    return {name: method for method, called in table for name in (method, *(called or "").split())}


def matrices(model: Architecture, targets: tuple[str, ...]) -> list[tuple[str, int, int]]:
    """Name, inputs and outputs of the adapted matrices of a layer; a plain MLP has no gate.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import preset
    >>> matrices(preset("llama-2-7b"), ("q", "down"))
    [('q', 4096, 4096), ('down', 11008, 4096)]
    """
    sides = model.sides
    return [(name, *sides[name]) for name in targets if name != "gate" or model.gated]


ANY = "any"
"""The generic row: what is assumed of a tool that is not known."""
OWN_LOOPS = (ANY, "pytorch")
"""Loops of one's own, which have no recipe: what is not stated of them may be anything, and a bound covers it."""


@functools.cache
def _rows(tool: str) -> tuple[tuple[frozenset[str], str, str], ...]:
    """Conditions, fact and value of a tool, in the order of the table."""
    rows = facts("training_tools").filter(tool=tool).select("when", "fact", "value").iter_rows()
    return tuple((frozenset((when or "").split()), fact, value) for when, fact, value in rows)


@functools.cache
def _names() -> dict[str, str]:
    called = facts("training_tools").filter(fact="called").select("tool", "value").iter_rows()
    return {name: tool for tool, names in called for name in (tool, *names.split())}


def tool_called(*names: str | None) -> str:
    """The tool behind the first name that is known, else the generic row.

    Examples
    --------
    >>> tool_called(None, "Lightning-AI/litgpt"), tool_called("my-trainer")
    ('litgpt', 'any')
    """
    known = _names()
    for name in names:
        if name and (found := known.get(name.strip().lower())):
            return found
    return ANY


@functools.lru_cache(4096)
def tool_facts(tool: str, tags: frozenset[str]) -> dict[str, str]:
    """What a tool does in a situation: of rows whose conditions hold, later and the tool's own ones win.

    Examples
    --------
    >>> tool_facts("qwen-finetune", frozenset({"lora"}))["lora_rank"]
    '64'
    """
    sources = (ANY,) if tool == ANY else (ANY, tool)
    return {fact: value or "" for each in sources for when, fact, value in _rows(each) if when <= tags}


@functools.lru_cache(1024)
def figures(kind: str, name: str, fact: str) -> list[float] | None:
    """Numbers of the generic table, such as bytes a parameter of a regime; None where it has no such row.

    Examples
    --------
    >>> figures("regime", "deepspeed", "bytes")
    [2.0, 2.0, 16.0]
    """
    text = tool_facts(ANY, frozenset({kind, name})).get(fact)
    return None if text is None else [float(word) for word in text.split() if word != "x"]


@dataclass(frozen=True)
class ToolFact:
    """One thing that a tool does unasked, and who says so."""

    fact: str
    value: str
    source: str


_OF_PLANS = ("called", "launch", "parallel", "modes", "kernels")
"""Facts that say how a tool is started and how fast it is, not what it does to memory."""


def what_it_does(tool: str, tags: Iterable[str]) -> list[ToolFact]:
    """What a tool does unasked, for people to read."""
    held = frozenset(tags)
    table = facts("training_tools").filter(tool=tool)
    found: dict[str, ToolFact] = {}
    for when, fact, value, source in table.select("when", "fact", "value", "source").iter_rows():
        if frozenset((when or "").split()) <= held and fact not in _OF_PLANS:
            found[fact] = ToolFact(fact, value, source)
    return list(found.values())


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
    raise ScenarioError(f"job, {name}", expected, repr(came), f"Fix {name}.")


def kind_of(job: TrainingJob) -> str:
    """What kind of training it is, as far as memory tells: method, precision, whether weights are narrow."""
    return f"{job.method} {job.regime}{' narrow' if job.quantization else ''}"


def extent_of(job: TrainingJob) -> tuple[float, float, float]:
    """How large a job is: logarithms of its parameters, its tokens of a micro-batch and its GPUs."""
    return math.log(max(1.0, job.model.params())), math.log(max(1.0, job.tokens)), math.log(job.gpus)
