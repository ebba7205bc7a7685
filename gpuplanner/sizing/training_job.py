"""A training job with all settings, from the user, the tool or an assumption."""

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

ADAPTABLE_MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
"""Weight matrices of a layer that a training method can adapt."""
_TRAINING_METHOD_COLUMNS = (
    "rank", "r_in", "r_out", "r_sq", "in", "out", "in_out", "each", "layer_h", "layer_kv", "fixed_h", "kept_out",
    "dense",
)  # fmt: skip
"""Columns of the table of training methods that become ``TrainingMethod.counts``."""


@dataclass(frozen=True)
class TrainingMethod:
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
        """Whether the method adds trained parameters to weight matrices of the model."""
        return any(self.counts[name] for name in ("r_in", "r_out", "r_sq", "in", "out", "in_out", "each"))

    @functools.cached_property
    def has_rank(self) -> bool:
        """Whether a rank determines the trained parameters."""
        return any(self.counts[name] for name in ("r_in", "r_out", "r_sq"))

    def matrix_params(self, inputs: int, outputs: int, rank: int) -> float:
        """Count the trained parameters of one adapted matrix."""
        n = self.counts
        ranked = rank * (n["r_in"] * inputs + n["r_out"] * outputs + n["r_sq"] * rank)
        return ranked + n["in"] * inputs + n["out"] * outputs + n["in_out"] * inputs * outputs + n["each"]


@functools.cache
def load_methods() -> dict[str, TrainingMethod]:
    """Load all training methods by name.

    Examples
    --------
    >>> load_methods()["dora"].base, load_methods()["freeze"].layers
    ('frozen', 2)
    """
    return {
        row["method"]: TrainingMethod(
            row["method"],
            row["base"],
            tuple((row["targets"] or "").split()),
            {name: float(row[name] or 0) for name in _TRAINING_METHOD_COLUMNS},
            int(row["trained_layers"] or 0),
        )
        for row in facts("training_methods").iter_rows(named=True)
    }


@functools.cache
def methods_by_name() -> dict[str, str]:
    """Map every spelling of a method to its name."""
    table = facts("training_methods").select("method", "called").iter_rows()
    return {name: method for method, called in table for name in (method, *(called or "").split())}


def list_adapted_matrices(architecture: Architecture, targets: tuple[str, ...]) -> list[tuple[str, int, int]]:
    """List name, inputs and outputs of the adapted matrices of a layer; an MLP without gate has no ``gate``.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import load_preset
    >>> list_adapted_matrices(load_preset("llama-2-7b"), ("q", "down"))
    [('q', 4096, 4096), ('down', 11008, 4096)]
    """
    shapes = architecture.matrix_shapes
    return [(name, *shapes[name]) for name in targets if name != "gate" or architecture.gated]


GENERIC_TOOL = "any"
"""Table row with the assumptions for an unknown tool."""
TOOLS_WITHOUT_RECIPE = (GENERIC_TOOL, "pytorch", "lightning")
"""Own training loops without a recipe: settings that are not stated may be anything, which the bound covers."""


@functools.cache
def _tool_rows(tool: str) -> tuple[tuple[frozenset[str], str, str], ...]:
    """Return the conditions, name and value of each default of a training tool, in the order of the table."""
    rows = facts("training_tools").filter(tool=tool).select("when", "fact", "value").iter_rows()
    return tuple((frozenset((condition or "").split()), fact, value) for condition, fact, value in rows)


@functools.cache
def _tools_by_name() -> dict[str, str]:
    """Map every spelling of a tool to its name."""
    called = facts("training_tools").filter(fact="called").select("tool", "value").iter_rows()
    return {name: tool for tool, names in called for name in (tool, *names.split())}


def find_tool(*names: str | None) -> str:
    """Find the tool of the first known name, else the generic row.

    Examples
    --------
    >>> find_tool(None, "Lightning-AI/litgpt"), find_tool("my-trainer")
    ('litgpt', 'any')
    """
    tools = _tools_by_name()
    for name in names:
        if name and (tool := tools.get(name.strip().lower())):
            return tool
    return GENERIC_TOOL


@functools.lru_cache(4096)
def resolve_tool_facts(tool: str, tags: frozenset[str]) -> dict[str, str]:
    """Resolve the defaults of a training tool under conditions: later rows, and the tool's own, override others.

    Examples
    --------
    >>> resolve_tool_facts("qwen-finetune", frozenset({"lora"}))["lora_rank"]
    '64'
    """
    sources = (GENERIC_TOOL,) if tool == GENERIC_TOOL else (GENERIC_TOOL, tool)
    return {
        fact: value or "" for source in sources for conditions, fact, value in _tool_rows(source) if conditions <= tags
    }


@functools.lru_cache(1024)
def find_generic_numbers(kind: str, name: str, fact: str) -> list[float] | None:
    """Find numbers of the generic tool table, such as bytes per parameter of a precision regime; None without a row.

    Examples
    --------
    >>> find_generic_numbers("regime", "deepspeed", "bytes")
    [2.0, 2.0, 16.0]
    """
    text = resolve_tool_facts(GENERIC_TOOL, frozenset({kind, name})).get(fact)
    return None if text is None else [float(word) for word in text.split() if word != "x"]


@dataclass(frozen=True)
class ToolDefault:
    """One default setting of a tool, with its source."""

    fact: str
    value: str
    source: str


_LAUNCH_AND_SPEED_FACTS = ("called", "launch", "parallel", "modes", "kernels")
"""Facts on launch and speed of a tool, which do not affect memory."""


def list_tool_facts(tool: str, tags: Iterable[str]) -> list[ToolDefault]:
    """List the default settings of a training tool that apply under conditions, with sources."""
    situation = frozenset(tags)
    table = facts("training_tools").filter(tool=tool)
    facts_by_name: dict[str, ToolDefault] = {}
    for condition, fact, value, source in table.select("when", "fact", "value", "source").iter_rows():
        if frozenset((condition or "").split()) <= situation and fact not in _LAUNCH_AND_SPEED_FACTS:
            facts_by_name[fact] = ToolDefault(fact, value, source)
    return list(facts_by_name.values())


RECOMPUTATION_MODES = ("none", "selective", "full")
"""Modes of activation recomputation (checkpointing)."""
MEMORY_METERS = ("allocated", "reserved", "device")
"""What a peak is measured by: allocated or reserved memory of PyTorch's allocator, or nvidia-smi."""
_COUNT_FIELDS = ("seq", "micro_batch", "accumulation", "tp", "pp", "dp", "cp", "ep", "lora_rank", "loss_chunks")
"""Fields of a training job that must be whole numbers above 0."""
_get_counts = operator.attrgetter(*_COUNT_FIELDS)
"""Return the fields of a training job in `_COUNT_FIELDS`."""


@dataclass(frozen=True)
class TrainingJob:
    """One setting of one training job.

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
    reduce_bytes : float
        Bytes an element of the copy of a sharded unit's gradients that is reduced; 0: they are reduced in place.
    resharded : bool
        Gathered weights are let go after forward; if not, a stage keeps all of its weights in 16 bit.
    ddp_buckets : bool
        Replicas reduce gradients in buckets that lie beside them and are as large.
    fp8_bytes : float, optional
        Bytes a weight of its copies in 8 bit, where matrix products are of 8 bit; None: they are not.
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
    reduce_bytes: float = 0.0
    resharded: bool = True
    ddp_buckets: bool = False
    meter: str = "device"
    context_gib: float = 0.0
    communicators: int = 0
    fp8_bytes: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        for name, value in zip(_COUNT_FIELDS, _get_counts(self), strict=True):
            if value < 1:
                _reject_job_field(name, "a whole number above 0", value)
        for name, allowed in (("method", load_methods()), ("recompute", RECOMPUTATION_MODES), ("meter", MEMORY_METERS)):
            if getattr(self, name) not in allowed:
                _reject_job_field(name, f"one of {', '.join(allowed)}", getattr(self, name))
        if self.model.kind != "diffusion":
            if self.model.heads % self.tp:
                near = max(t for t in range(1, self.tp) if self.model.heads % t == 0)
                _reject_job_field("tp", f"a divisor of {self.model.heads} heads, such as {near}", self.tp)
            if self.model.layers < self.pp:
                _reject_job_field("pp", f"at most {self.model.layers}, the layers", self.pp)
            if self.ep > 1 and (self.model.experts % self.ep or not self.model.experts):
                _reject_job_field("ep", f"a divisor of {self.model.experts} experts", self.ep)
            if self.shards % self.ep:
                _reject_job_field("ep", f"a divisor of {self.shards} data and context parallel ranks", self.ep)
            if not 0 <= self.trained_layers <= self.model.layers:
                _reject_job_field("trained_layers", f"at most {self.model.layers}, the layers", self.trained_layers)
        if find_generic_numbers("regime", self.regime, "bytes") is None:
            _reject_job_field("regime", "a regime of the tools' table", self.regime)

    @property
    def frozen(self) -> bool:
        """Whether the base model is frozen."""
        return load_methods()[self.method].base != "trained"

    @property
    def shards(self) -> int:
        """Ranks over which FSDP and ZeRO shard: data times context parallel ranks."""
        return self.dp * self.cp

    @property
    def tokens(self) -> float:
        """Tokens of a micro-batch on one rank."""
        return self.seq * self.micro_batch / self.cp

    @property
    def n_gpus(self) -> int:
        """Number of GPUs of the job."""
        return self.tp * self.pp * self.dp * self.cp


def _reject_job_field(name: str, expected: str, got: object) -> NoReturn:
    """Raise the error for a field of a training job with an impossible value."""
    raise ScenarioError(f"job, {name}", expected, repr(got), f"Fix {name}.")


def describe_layout(job: TrainingJob) -> str:
    """Describe how a job is laid out over GPUs: sharding, kinds of parallelism, and whether the model has experts.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import load_preset
    >>> job = TrainingJob(load_preset("mixtral-8x7b"), 512, pp=2, dp=4, sharding="zero1")
    >>> describe_layout(job), describe_layout(TrainingJob(load_preset("gpt2"), 512))
    ('zero1 pp experts', 'one GPU')
    """
    parallel = [name for name in ("tp", "pp", "cp", "ep") if getattr(job, name) > 1]
    sharding = [job.sharding or "ddp"] if job.shards > 1 else []
    return " ".join([*sharding, *parallel, *(["experts"] if job.model.experts else [])]) or "one GPU"


def describe_training_kind(job: TrainingJob) -> str:
    """Describe what determines memory: method, precision, whether weights are quantised, and the layout over GPUs."""
    return f"{job.method} {job.regime}{' narrow' if job.quantization else ''} on {describe_layout(job)}"


def compute_log_job_size(job: TrainingJob) -> tuple[float, float, float]:
    """Return the logarithms of parameters, tokens of a micro-batch and GPUs of a job."""
    return math.log(max(1.0, job.model.params())), math.log(max(1.0, job.tokens)), math.log(job.n_gpus)
