"""Parsing of the words in tables of training runs."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpuplanner.core.errors import GeometryError, ScenarioError, nearest_names
from gpuplanner.hardware.catalog import facts, list_gpu_models, match_gpu_models
from gpuplanner.sizing.learned_memory import PEAK_HEADROOM_FRACTION
from gpuplanner.sizing.memory_components import BYTES_PER_GIB, peak_gib, stage_params, static_bytes
from gpuplanner.sizing.model_architecture import Architecture, parse_params_label
from gpuplanner.sizing.training_job import (
    ADAPTABLE_MATRICES,
    GENERIC_TOOL,
    TOOLS_WITHOUT_RECIPE,
    TrainingJob,
    TrainingMethod,
    find_tool,
    list_adapted_matrices,
    load_methods,
    methods_by_name,
)
from gpuplanner.sizing.training_throughput import GpuSpec, find_gpu_spec

_MAX_COUNT_VALUE = 1e7
"""Largest number accepted in a column of counts."""
_GB_SUFFIX_PATTERN = re.compile(r"\s*(gib|gb|g)$", re.IGNORECASE)
"""Unit after an amount of memory."""
_NON_COUNT_COLUMNS = ("params", "gpu_mem_gib")
"""Numeric columns whose values need not be whole numbers."""
_MAX_GPU_MEMORY_DIFFERENCE_FRACTION = 0.12
"""Relative difference of a stated memory from that of the GPU model up to which both may be right: GB and GiB are 7 %
apart.
"""


def read_number_column(row: Mapping[str, str], name: str) -> float | None:
    """Read a number, with a matching unit; None if absent."""
    text = row.get(name)
    return None if text is None else _parse_number(text, name)


@functools.lru_cache(4096)
def _parse_number(text: str, name: str) -> float:
    """Parse the number of a cell of a table of runs, with a unit where the column allows one."""
    bare = _GB_SUFFIX_PATTERN.sub("", text) if name == "gpu_mem_gib" else text
    try:
        value = float(bare) if bare.isascii() and "_" not in bare else math.nan
    except ValueError:
        value = (parse_params_label(text) if name == "params" else None) or math.nan
    max_value = 1e15 if name == "params" else _MAX_COUNT_VALUE
    within = 0 <= value <= max_value  # which is false of NaN
    if not within or (not value and name != "zero_stage") or (value % 1 and name not in _NON_COUNT_COLUMNS):
        whole = "" if name in _NON_COUNT_COLUMNS else ", whole,"
        want = f"a number{whole} from 0 (above 0 for a size) up to {max_value:g}"
        raise ScenarioError(f"row, {name}", want, repr(text), f"Fix column {name}.")
    return value


def read_count(row: Mapping[str, str], name: str) -> int:
    """Read a whole number above 0; 1 if absent."""
    if name not in row:
        return 1
    return int(_parse_number(row[name], name))


def count_replicas(row: Mapping[str, str]) -> int:
    """Count data times context parallel ranks, stated or derived from all GPUs."""
    stated = int((read_number_column(row, "dp") or 0) * (read_number_column(row, "cp") or 1))
    inner = read_count(row, "tp") * read_count(row, "pp")
    return stated or max(1, int((read_number_column(row, "n_gpus") or 1) // inner))


def read_gpu_memory(row: Mapping[str, str]) -> tuple[float | None, float | None, tuple[str, ...], tuple[str, ...]]:
    """Read the stated or named GPU memory [GiB], the most that the name allows, contradictions, and unknown names."""
    stated = read_number_column(row, "gpu_mem_gib")
    if "gpu" not in row:
        return stated, stated, (), ()
    sizes = [gpu_model.memory_gib for gpu_model in _match_gpu_specs(row["gpu"])]
    if not sizes:
        return stated, stated, (), () if stated is not None else (_describe_unknown_gpu(row["gpu"]),)
    if stated is None:
        return (sizes[0] if len(set(sizes)) == 1 else None), max(sizes), (), ()
    if min(abs(stated / size - 1) for size in sizes) > _MAX_GPU_MEMORY_DIFFERENCE_FRACTION:
        gpu_model = f"gpu {row['gpu']}, which has {max(sizes):.0f} GiB"
        return stated, stated, (f"gpu_mem_gib {stated:g} and {gpu_model}: read as {stated:g}",), ()
    return stated, stated, (), ()


@functools.lru_cache(1024)
def _describe_unknown_gpu(word: str) -> str:
    """Describe a GPU name that the catalogue does not have, with the nearest name that it has."""
    near = nearest_names(word, list_gpu_models())
    hint = f", such as {near[0]}" if near else ""
    return f"gpu: {word} is not known; add gpu_mem_gib, or name a GPU model{hint}"


def lacks_bf16(word: str) -> bool:
    """Whether all GPU models that a name may mean lack bf16."""
    return bool(_match_gpu_specs(word)) and not any(gpu_model.bf16 for gpu_model in _match_gpu_specs(word))


@functools.lru_cache(1024)
def _match_gpu_specs(word: str) -> tuple[GpuSpec, ...]:
    """Return the data-sheet values of all GPU models that a word may mean."""
    return tuple(sheet for name in match_gpu_models(word) if (sheet := _find_gpu_spec(name)))


@functools.cache
def _find_gpu_spec(name: str) -> GpuSpec | None:
    """Return the data-sheet values of a GPU model, or None if the catalogue has no data sheet of it."""
    try:
        return find_gpu_spec(name)
    except GeometryError:  # no data sheet
        return None


_SEPARATOR_PATTERN = re.compile(r"[^a-z0-9]+")
"""Characters that separate the words of a cell."""
_DPO_PATTERN = re.compile(r"(?<![a-z0-9])dpo(?![a-z0-9])")
"""DPO as a word of its own in a training method."""


@functools.cache
def _spellings_by_meaning(kind: str) -> tuple[dict[str, list[frozenset[str]]], frozenset[str]]:
    """Return, for one column of a table of runs, the word sets of the spellings of each value, and filler words."""
    rows = facts("training_words").filter(kind=kind).select("word", "called").iter_rows()
    spellings: dict[str, list[frozenset[str]]] = {}
    filler: frozenset[str] = frozenset()
    for word, called in rows:
        if word == "-":  # words that say nothing about the meaning, such as who does it
            filler = frozenset(called.split())
            continue
        names = [word, *called.split("|")]
        spellings[word] = [frozenset(_SEPARATOR_PATTERN.sub(" ", name.lower()).split()) for name in names]
    return spellings, filler


@functools.lru_cache(4096)
def resolve_word(kind: str, text: str, *, column: str = "") -> str:
    """Resolve the text of a cell to the value whose words cover it, in any order; else an error names the nearest.

    Examples
    --------
    >>> resolve_word("quantization", "bnb.nf4 (double quant)"), resolve_word("precision", "BF16 true")
    ('nf4-dq', 'bf16-true')
    >>> resolve_word("optimizer", "adamv")
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.ScenarioError: row, optimizer: expected one of adamw, adamw_for_loop, ... Did you mean adamw?
    """
    spellings, filler = _spellings_by_meaning(kind)
    words = frozenset(_SEPARATOR_PATTERN.sub(" ", text.lower()).split())
    significant = words - filler or words
    fitting: dict[str, int] = {}
    for name, word_sets in spellings.items():
        matching = [spelling for spelling in word_sets if spelling <= significant]
        if matching and frozenset().union(*matching) >= significant:
            fitting[name] = max(map(len, matching))
    if fitting and not text.lstrip().startswith("-"):
        return max(fitting, key=lambda name: fitting[name])
    meaning_by_spelling = {
        " ".join(sorted(spelling)): name for name, word_sets in spellings.items() for spelling in word_sets
    }
    suggestions = nearest_names(" ".join(sorted(significant)), meaning_by_spelling) or nearest_names(text, spellings)
    hint = (
        f"Did you mean {meaning_by_spelling.get(suggestions[0], suggestions[0])}?"
        if suggestions
        else "Choose one of these."
    )
    raise ScenarioError(f"row, {column or kind}", f"one of {', '.join(spellings)}", repr(text), hint)


@functools.lru_cache(4096)
def read_nearest_word(kind: str, text: str, column: str) -> tuple[str, str]:
    """Read the text of a cell as the known word that it contains or resembles, with a remark if it is not one.

    An unknown text that contains and resembles none is read as if the column were empty.

    Examples
    --------
    >>> read_nearest_word("optimizer", "adamw_bnb_8bit_v2", "optimizer")
    ('adamw8bit', "optimizer: 'adamw_bnb_8bit_v2' is not known: read as adamw8bit, the nearest known word")
    >>> read_nearest_word("precision", "posit", "precision")
    ('', "precision: 'posit' is not known: read as if it were not stated; known are 32-true, bf16-true, fp16-true, ...")
    """
    try:
        return resolve_word(kind, text, column=column), ""
    except ScenarioError:
        spellings, filler = _spellings_by_meaning(kind)
    words = frozenset(_SEPARATOR_PATTERN.sub(" ", text.lower()).split()) - filler
    contained = {
        name: max((len(spelling) for spelling in word_sets if spelling <= words), default=0)
        for name, word_sets in spellings.items()
    }
    largest = max(contained.values(), default=0)
    best = [name for name, count in contained.items() if count == largest and largest]
    meanings = {" ".join(sorted(spelling)): name for name, sets in spellings.items() for spelling in sets}
    near = [meanings[word] for word in nearest_names(" ".join(sorted(words)), meanings)]
    if text.lstrip().startswith("-") or not (best or near):
        examples = ", ".join([*spellings][:3])
        return "", f"{column}: {text!r} is not known: read as if it were not stated; known are {examples}, ..."
    chosen = (best or near)[0]
    return chosen, f"{column}: {text!r} is not known: read as {chosen}, the nearest known word"


@functools.lru_cache(1024)
def find_nearest_method(text: str) -> tuple[str, str]:
    """Find the spelling of a known training method that a text contains or resembles, and a remark if it is not one.

    Examples
    --------
    >>> find_nearest_method("QLoRA-NF4"), find_nearest_method("lora")
    (('qlora', "method: 'QLoRA-NF4' is not known: read as qlora, the nearest known word"), ('lora', ''))
    """
    try:
        parse_method(text)
    except ScenarioError:
        if not re.search("[a-z]{2}", text.lower()):
            raise
        folded, names = _SEPARATOR_PATTERN.sub("_", text.lower()).strip("_"), methods_by_name()
        contained = [name for name in names if len(name) > 2 and re.search(rf"(?<![a-z]){name}(?![a-z])", folded)]
        near = sorted(contained, key=lambda name: (names[name] != "full", len(name)), reverse=True) or sorted(
            nearest_names(folded, names), key=[*names].index
        )
        chosen, why = (near[0], "the nearest known word") if near else ("full", "which needs most")
        return chosen, f"method: {text!r} is not known: read as {chosen}, {why}"
    return text, ""


_ZERO_STAGE_PATTERN = re.compile(
    r"(?:deepspeed|ds)?[\s_-]*(?:zero|stage|z)[\s_-]*(?:stage)?[\s_-]*([0-3])(.*)", re.IGNORECASE
)
"""ZeRO stage as users write it, such as ``zero3-offload``, with what follows it."""


def split_zero_stage(text: dict[str, str]) -> dict[str, str]:
    """Return a row in which a ZeRO stage in words is a number, and off-loading that it names stands in its own column.

    Examples
    --------
    >>> split_zero_stage({"zero_stage": "zero3-offload"})
    {'cpu_offload': 'all', 'zero_stage': '3'}
    """
    match = _ZERO_STAGE_PATTERN.fullmatch(text.get("zero_stage", ""))
    if not match:
        return text
    offload = {"cpu_offload": "all" if match[1] == "3" else "states"} if "offload" in match[2].lower() else {}
    return offload | text | {"zero_stage": match[1]}


@functools.lru_cache(1024)
def parse_method(text: str) -> tuple[str, frozenset[str]]:
    """Parse a training method and its features.

    Examples
    --------
    >>> parse_method("LoRA + embeddings"), parse_method("Q-LoRA")[0]
    (('lora', frozenset({'embeddings'})), 'lora')
    >>> parse_method("dpo"), parse_method("LoRA, DPO")
    (('full', frozenset({'pairs'})), ('lora', frozenset({'pairs'})))
    """
    names = methods_by_name()
    parts = [part.lower() for part in re.split(r"[+,]", text) if part.strip()]
    method_word, *extra_parts = [_SEPARATOR_PATTERN.sub("_", part).strip("_") for part in parts] or [""]
    features = set()
    for part in extra_parts:
        if part.rstrip("s") not in ("embedding", "emb", "head", "lm_head", "embed"):
            method_word = f"{method_word}_{part}"
        else:
            features.add("embeddings")
    if (without_pairs := _DPO_PATTERN.sub("", method_word).strip("_")) != method_word:
        features.add("pairs")
        method_word = without_pairs or "full"
    name = names.get(method_word) or names.get(method_word.replace("_", ""))
    if name is None:
        near = sorted(
            {names[spelling] for spelling in nearest_names(method_word, names)}, key=list(names.values()).index
        )
        hint = f"Did you mean {' or '.join(near)}?" if near else "Choose one."
        listed = ", ".join(sorted(set(names.values())))
        raise ScenarioError("row, method", f"one of {listed}", repr(text), hint)
    if name in ("pretrain",) or method_word.startswith(("pretrain", "continued")):
        features.add("pretrain")
    if name in _METHOD_BY_QUANTIZED_METHOD:
        features.add("quantised")
    return _METHOD_BY_QUANTIZED_METHOD.get(name, name), frozenset(features)


_METHOD_BY_QUANTIZED_METHOD: Mapping[str, str] = {"qlora": "lora", "qdora": "dora", "qoft": "oft"}
"""Plain method of each method whose name implies that the frozen model has 4 bit weights."""


def read_column_word(kind: str, row: Mapping[str, str], column: str, unknown: list[str]) -> str:
    """Read the word in a column of a row, empty if absent; add a remark to the list if it is not known."""
    word, remark = read_nearest_word(kind, row[column], column) if column in row else ("", "")
    unknown += [remark] if remark else []
    return word


_MODULE_NAME_PATTERN = re.compile(r"[A-Za-z0-9_.-]+")
"""Name of a module of a model, such as ``self_attn.q_proj``."""


@functools.lru_cache(1024)
def parse_targets(text: str) -> tuple[str, ...]:
    """Parse the adapted matrices in any naming of adapter libraries; names of no matrix are passed over if others are.

    Examples
    --------
    >>> parse_targets("q_proj, v_proj"), parse_targets("all-linear")
    (('q', 'v'), ('q', 'k', 'v', 'o', 'gate', 'up', 'down'))
    """
    parts = _MODULE_NAME_PATTERN.findall(text) or [text]
    named = {target for part in parts for target in read_nearest_word("target", part, "lora_targets")[0].split()}
    return tuple(target for target in ADAPTABLE_MATRICES if target in named) or ADAPTABLE_MATRICES


def list_unknown_targets(text: str) -> list[str]:
    """List the names among adapted matrices that no adapter library uses."""
    parts = _MODULE_NAME_PATTERN.findall(text) or [text]
    return [part for part in parts if read_nearest_word("target", part, "lora_targets")[1]]


@dataclass
class ParsedRunRow:
    """A row with resolved words, and the notes collected while it is read; ``clashes`` lists unknown words too."""

    text: dict[str, str]
    tool: str
    method: TrainingMethod
    features: frozenset[str]
    narrow: str
    words: dict[str, str]
    clashes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    note: list[str] = field(default_factory=list)

    @property
    def full(self) -> bool:
        """Whether the whole model is trained."""
        return self.method.base == "trained"

    @property
    def is_own_loop(self) -> bool:
        """Whether the tool is a training loop of one's own, without a recipe."""
        return self.tool in TOOLS_WITHOUT_RECIPE


def resolve_row_words(text: dict[str, str], tool: str) -> ParsedRunRow:
    """Resolve the texts of a row of a table of runs (method, precision, optimizer); unknown words are listed."""
    unknown: list[str] = []
    spelling, remark = find_nearest_method(text.get("method", "full"))
    name, features = parse_method(spelling)
    unknown += [remark] if remark else []
    quantization = read_column_word("quantization", text, "quantization", unknown)
    quantization = "" if quantization == "none" else quantization or ("nf4-dq" if "quantised" in features else "")
    optimizer_name, _, optimizer_options = text.get("optimizer", "").partition(",")
    words = {
        "precision": read_column_word("precision", text, "precision", unknown),
        "optimizer": read_column_word(
            "optimizer", {"optimizer": optimizer_name} if optimizer_name.strip() else {}, "optimizer", unknown
        ),
        "recompute": read_column_word("recompute", text, "activation_checkpointing", unknown),
        "attention": read_column_word("attention", text, "flash_attention", unknown),
        "offload": read_column_word("offload", text, "cpu_offload", unknown),
        "compile": read_column_word("switch", text, "torch_compile", unknown),
        "packing": read_column_word("switch", text, "packing", unknown),
        "fsdp": read_column_word("fsdp", text, "fsdp", unknown),
        "device_map": read_column_word("device_map", text, "device_map", unknown),
        "master": "yes"
        if "master" in optimizer_options.lower() and not {"no", "without"} & {*optimizer_options.lower().split()}
        else "",
    }
    row = ParsedRunRow(text, tool, load_methods()[name], features, quantization, words, unknown)
    if optimizer_options.strip() and not words["master"]:
        row.clashes.append(f"optimizer: {optimizer_options.strip()!r} is not known: only a fp32 master copy is read")
    if row.full and quantization and quantization != "fp8":
        expected = "16 bit weights, or a method that trains beside them, such as lora"
        raise ScenarioError("row, quantization with full training", expected, text["quantization"], "Fix one of them.")
    if row.full and quantization:
        row.narrow, row.features = "", row.features | {"fp8"}
        row.note.append("quantization fp8 with full training: products are of 8 bit, weights are not")
    if "quantised" in features and quantization in ("int8", "fp8"):
        expected = f"method {text['method']} has 4 bit weights, and quantization {quantization}"
        row.clashes.append(f"{expected}: read as {quantization}")
    if "quantised" in features and "quantization" in text and not quantization:
        row.clashes.append(f"method {text['method']} with no quantization: read as 16 bit")
    framework = text.get("framework")
    if framework and find_tool(framework) == GENERIC_TOOL:
        row.missing.append(f"framework: {framework} is not known; generic facts")
    tools = find_tool(framework), find_tool(text.get("source"))
    if GENERIC_TOOL not in tools and tools[0] != tools[1]:
        row.clashes.append(f"framework {tools[0]} and source {tools[1]}: read as {tools[0]}")
    if tool == GENERIC_TOOL:
        row.note.append("tool unknown: generic facts, wide bound")
    return row


def note_contradictions(row: ParsedRunRow, architecture: Architecture, seq: int) -> None:
    """Note contradictory statements of a row, and how they are read."""
    text, words, add_clash = row.text, row.words, row.clashes.append
    zero = read_number_column(text, "zero_stage")
    if zero not in (None, 0, 1, 2, 3):
        raise ScenarioError("row, zero_stage", "0, 1, 2 or 3", f"{zero:g}", "Fix zero_stage, for example 2.")
    if "lora_rank" in text:
        rank = read_count(text, "lora_rank")
        if rank > (architecture.hidden or rank):
            raise ScenarioError("row, lora_rank", f"at most {architecture.hidden}", f"{rank}", "Fix lora_rank.")
        if not row.method.has_rank:
            add_clash(f"lora_rank is given with {row.method.name}, which has none: not read")
    if "lora_targets" in text and (row.method.targets or not row.method.adapts):
        add_clash(f"lora_targets is given with {row.method.name}, which has its own or none: not read")
    if unknown := list_unknown_targets(text.get("lora_targets", "all")):
        read = " ".join(parse_targets(text["lora_targets"]))
        add_clash(f"lora_targets: {', '.join(map(repr, unknown))} not known: read as {read}")
    if "trained_layers" in text and row.method.base != "layers":
        add_clash(f"trained_layers is given with {row.method.name}: not read")
    if zero is not None and words["fsdp"] == "yes":
        add_clash("zero_stage and fsdp are both given: read as ZeRO")
    ranks = math.prod(read_count(text, name) for name in ("tp", "pp", "dp", "cp"))
    gpus = read_number_column(text, "n_gpus")
    if gpus is not None and gpus < 1:
        read_count(text, "n_gpus")
    spread = words["device_map"] == "auto"
    if gpus and (gpus != ranks if "dp" in text and not spread else gpus % ranks):
        add_clash(f"n_gpus {text['n_gpus']} is not tp x pp x dp x cp: {ranks} counts")
    if spread and (ranks > 1 or zero or words["fsdp"] == "yes"):
        add_clash("device_map spreads layers over GPUs, and so do ranks or sharding: read as device_map")
    if words["precision"] == "32-true" and words["master"]:
        add_clash("precision is fp32 and a fp32 master copy is named: read as fp32 without one")
    if words["precision"].endswith("-true") and words["precision"] != "32-true" and words["master"]:
        add_clash(f"precision {words['precision']} and a fp32 master copy: read with the copy")
    if architecture.positions and seq > architecture.positions:
        add_clash(
            f"seq_len: {seq} is beyond the {architecture.positions} positions of {architecture.name}: read as {seq}"
        )
    if "lora_targets" in text and not list_adapted_matrices(architecture, parse_targets(text["lora_targets"])):
        add_clash(f"lora_targets: {architecture.name} has no such layer: it adapts nothing")
    if row.method.name == "bitfit" and not architecture.bias:
        add_clash(f"method bitfit trains biases, and {architecture.name} has few or none: read as if it had")
    if architecture.kind == "diffusion":
        if row.method.adapts:
            add_clash(f"method {row.method.name}: adapters of {architecture.name} are not counted")
        split = [name for name in ("tp", "pp", "cp") if read_count(text, name) > 1]
        row.clashes += [f"{name}: {architecture.name} is counted whole on each rank" for name in split]
    if words["precision"].startswith("bf16") and lacks_bf16(text.get("gpu", "")):
        add_clash(f"precision {words['precision']} and gpu {text['gpu']}, which does not compute in it: read so")
    if spread and gpus and gpus > (architecture.layers or 1):
        layers = f"the {architecture.layers or 1} layers"
        add_clash(f"n_gpus {text['n_gpus']} with device_map are more than {layers}: some stay empty")
    if "embeddings" in row.features and row.full:
        add_clash("method: embeddings are named beside full training, which trains them: read as full")
    if words["offload"] == "states" and words["optimizer"] == "sgd":
        add_clash("cpu_offload of optimiser states, and sgd has none: read so")


def note_assumptions(row: ParsedRunRow, job: TrainingJob) -> None:
    """Note settings that matter and were not stated: recompute, optimiser, precision."""
    if not row.words["recompute"] and row.is_own_loop:
        row.missing.append(f"activation_checkpointing: assumed {job.recompute}")
    if not row.words["optimizer"] and (row.full or row.is_own_loop):
        row.missing.append(f"optimizer: assumed {job.optimizer}")
    if not row.words["precision"]:
        row.missing.append(f"precision: assumed {job.regime}")
    elif row.is_own_loop and has_bare_precision(row) and row.full and job.regime in _PARAMETER_PRECISION_TEXT:
        row.missing.append(
            f"precision: bf16-true or bf16-mixed states whether parameters are fp32; assumed "
            f"{_PARAMETER_PRECISION_TEXT[job.regime]}"
        )
    if row.words["packing"] == "no":
        row.missing.append("packing: sequences that are not full were taken as full")


_PARAMETER_PRECISION_TEXT = {"unsaid": "the middle", "pure": "bf16-true", "amp": "bf16-mixed"}
"""Whether parameters are assumed to be fp32, in remarks, by precision regime."""


def has_bare_precision(row: ParsedRunRow) -> bool:
    """Whether the precision is missing or names only a number format, not whether weights or operations have it."""
    return row.words["precision"] in ("", "bf16", "fp16", "fp8")


def choose_unstated_settings(
    row: ParsedRunRow, job: TrainingJob, max_gib: float | None
) -> tuple[TrainingJob, tuple[TrainingJob, ...]]:
    """Choose the likeliest values of settings that a row does not state; return alternatives, one change at a time."""
    words, changes = row.words, list[dict[str, Any]]()
    recipe = job.regime == "pure" and not row.is_own_loop and not words["recompute"] and not job.offload
    if row.full and recipe and not words["optimizer"] and job.step_in_backward:
        row.missing.append(f"step in backward and paged states: {_RECIPE_ASSUMPTION_TEXT}")
        changes += [{"step_in_backward": False}, {"step_in_backward": False, "optimizer": "adamw8bit"}]
    if recipe and not job.quantization and job.recompute == "full" and words["compile"]:
        row.missing.append(f"activation_checkpointing: {_RECIPE_ASSUMPTION_TEXT}")
        changes.append({"recompute": "none"})
    if job.regime == "unsaid" or (row.is_own_loop and row.full and has_bare_precision(row) and job.regime == "pure"):
        changes += [{"regime": "pure"}, {"regime": "amp"}][job.regime == "pure" :]
        if not words["optimizer"]:
            changes += [{"regime": "pure", "optimizer": "adamw8bit"}, {"regime": "pure", **_MEMORY_SAVING_SETTINGS}]
    if row.is_own_loop and job.frozen and words["precision"].endswith("-mixed") and not row.narrow:
        row.note.append("frozen weights beside autocast: taken as of 16 bit, the bound covers fp32")
        changes.append({"weight_bytes": 4.0})
    if row.is_own_loop and job.model.gelu_new:
        changes.append({"composed_gelu": True})
    if row.is_own_loop and job.loss_chunks > 1:
        changes.append({"loss_chunks": 1})
    if row.is_own_loop and row.method.has_rank and not row.method.targets and job.model.hidden:
        largest = job.lora_rank if "lora_rank" in row.text else _MAX_RECIPE_LORA_RANK
        targets = job.lora_targets if "lora_targets" in row.text else ADAPTABLE_MATRICES
        changes.append({"lora_targets": targets, "lora_rank": min(largest, job.model.hidden)})
    if row.is_own_loop and not words["recompute"] and not job.quantization:
        changes.append({"recompute": "none" if job.recompute == "full" else "full"})
    _note_unstated_columns(row, job)
    variants = [job, *(replace(job, **change) for change in changes)]
    # That a recipe was published for a GPU shows that it fits; of a loop of one's own, this is what is asked.
    if len(variants) == 1 or max_gib is None or row.is_own_loop:
        return job, tuple(variants[1:])
    sizes = [(sum(peak_gib(variant)), index) for index, variant in enumerate(variants)]
    _, index = max((size for size in sizes if size[0] <= max_gib * (1 - PEAK_HEADROOM_FRACTION)), default=(0.0, 0))
    return variants[index], tuple(variant for i, variant in enumerate(variants) if i != index)


_RECIPE_ASSUMPTION_TEXT = "assumed as in the tool's recipe, or as the GPU allows"
"""End of remarks on settings that are assumed as in the tool's recipe."""
_MAX_RECIPE_LORA_RANK = 64
"""Largest LoRA rank that recipes of the tools use by default."""
_MEMORY_SAVING_SETTINGS = {"optimizer": "pagedadamw8bit", "step_in_backward": True, "recompute": "full"}
"""Settings that save most memory in a full training on one GPU."""


def _note_unstated_columns(row: ParsedRunRow, job: TrainingJob) -> None:
    """Note the columns that a row does not state and that the recipe of its tool does not decide."""
    words = row.words
    pure = job.regime == "pure" and not row.is_own_loop and not job.offload
    if pure and job.recompute == "full" and job.compiled and words["compile"] and words["optimizer"]:
        row.missing.append("off-load of activations, step in backward: not stated, assumed neither")
    if pure and row.full and words["recompute"] == "none" and not job.compiled and not words["packing"]:
        row.missing.append("packing: assumed that every sequence is full")


def compute_static_gib(job: TrainingJob) -> float:
    """Compute the memory of weights, gradients and optimiser states, which stays on a GPU throughout [GiB]."""
    return static_bytes(job, stage_params(job.model, job.tp, job.pp)) / BYTES_PER_GIB
