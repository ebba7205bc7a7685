"""Words in tables of training runs and what they mean."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpuplanner.core.errors import GeometryError, ScenarioError, nearest
from gpuplanner.hardware.catalog import all_boards, boards_called, facts
from gpuplanner.sizing.learned_memory import HEADROOM
from gpuplanner.sizing.memory_components import GIB, peak_gib, stage_params, static_bytes
from gpuplanner.sizing.model_architecture import Architecture, size_in
from gpuplanner.sizing.throughput import Board, board_facts
from gpuplanner.sizing.training_job import (
    ANY,
    OWN_LOOPS,
    TARGETS,
    Method,
    TrainingJob,
    matrices,
    method_names,
    methods,
    tool_called,
)

_LARGEST = 1e7
_UNIT = re.compile(r"\s*(gib|gb|g)$", re.IGNORECASE)
_BROKEN = ("params", "gpu_mem_gib")
"""Columns that are no counts."""
_OTHER_SIZE = 0.12
"""Share by which a stated memory may differ from the board's before one of them is wrong: GB and GiB are 7 % apart."""


def number(row: Mapping[str, str], name: str) -> float | None:
    """A number, with its unit if it has one that goes with the column; None where there is none."""
    text = row.get(name)
    return None if text is None else _number(text, name)


@functools.lru_cache(4096)
def _number(text: str, name: str) -> float:
    bare = _UNIT.sub("", text) if name == "gpu_mem_gib" else text
    try:
        value = float(bare) if bare.isascii() and "_" not in bare else math.nan
    except ValueError:
        value = (size_in(text) if name == "params" else None) or math.nan
    most = 1e15 if name == "params" else _LARGEST
    within = 0 <= value <= most  # which is false of NaN
    if not within or (not value and name != "zero_stage") or (value % 1 and name not in _BROKEN):
        want = f"a number{'' if name in _BROKEN else ', whole,'} from 0 (above 0 for a size) up to {most:g}"
        raise ScenarioError(f"row, {name}", want, repr(text), f"Fix column {name}.")
    return value


def count(row: Mapping[str, str], name: str) -> int:
    """A count, 1 where it is not stated; what is no whole number above 0 is refused."""
    if name not in row:
        return 1
    return int(_number(row[name], name))


def replicas(row: Mapping[str, str]) -> int:
    """Ranks of data and context parallelism, from what is stated of them or of all GPUs."""
    told = int((number(row, "dp") or 0) * (number(row, "cp") or 1))
    inner = count(row, "tp") * count(row, "pp")
    return told or max(1, int((number(row, "n_gpus") or 1) // inner))


def gpu_gib(row: Mapping[str, str]) -> tuple[float | None, float | None, tuple[str, ...], tuple[str, ...]]:
    """Memory of the board as stated or named; the most that the name allows; what contradicts; what is not known."""
    stated = number(row, "gpu_mem_gib")
    if "gpu" not in row:
        return stated, stated, (), ()
    sizes = [gpu_model.memory_gib for gpu_model in _called(row["gpu"])]
    if not sizes:
        return stated, stated, (), () if stated is not None else (_unknown(row["gpu"]),)
    if stated is None:
        return (sizes[0] if len(set(sizes)) == 1 else None), max(sizes), (), ()
    if min(abs(stated / size - 1) for size in sizes) > _OTHER_SIZE:
        gpu_model = f"gpu {row['gpu']}, which has {max(sizes):.0f} GiB"
        return stated, stated, (f"gpu_mem_gib {stated:g} and {gpu_model}: read as {stated:g}",), ()
    return stated, stated, (), ()


@functools.lru_cache(1024)
def _unknown(word: str) -> str:
    """What is said of a board that nobody knows; in a table one name stands in many rows."""
    near = nearest(word, all_boards())
    hint = f", such as {near[0]}" if near else ""
    return f"gpu: {word} is not known; add gpu_mem_gib, or name a GPU model{hint}"


def no_bf16(word: str) -> bool:
    """Whether a board that is named, and every other that the name may mean, does not compute in bf16."""
    return bool(_called(word)) and not any(gpu_model.bf16 for gpu_model in _called(word))


@functools.lru_cache(1024)
def _called(word: str) -> tuple[Board, ...]:
    return tuple(sheet for name in boards_called(word) if (sheet := _sheet(name)))


@functools.cache
def _sheet(name: str) -> Board | None:
    try:
        return board_facts(name)
    except GeometryError:  # no data sheet
        return None


_BETWEEN = re.compile(r"[^a-z0-9]+")
_PAIRS = re.compile(r"(?<![a-z0-9])dpo(?![a-z0-9])")


@functools.cache
def _known(kind: str) -> tuple[dict[str, list[frozenset[str]]], frozenset[str]]:
    """Meanings of a kind with the sets of words that say each, and words that say nothing."""
    rows = facts("training_words").filter(kind=kind).select("word", "called").iter_rows()
    said: dict[str, list[frozenset[str]]] = {}
    filler: frozenset[str] = frozenset()
    for word, called in rows:
        if word == "-":  # words that say nothing about the meaning, such as who does it
            filler = frozenset(called.split())
            continue
        names = [word, *called.split("|")]
        said[word] = [frozenset(_BETWEEN.sub(" ", name.lower()).split()) for name in names]
    return said, filler


@functools.lru_cache(4096)
def meaning(kind: str, text: str, *, column: str = "") -> str:
    """The meaning of a text: the one whose words cover it, in any order; else it is refused with the nearest word.

    Examples
    --------
    >>> meaning("quantization", "bnb.nf4 (double quant)"), meaning("precision", "BF16 true")
    ('nf4-dq', 'bf16-true')
    >>> meaning("optimizer", "adamv")
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.ScenarioError: row, optimizer: expected one of adamw, adamw8bit, ... Did you mean adamw?
    """
    said, filler = _known(kind)
    words = frozenset(_BETWEEN.sub(" ", text.lower()).split())
    bare = words - filler or words
    fitting: dict[str, int] = {}
    for name, ways in said.items():
        within = [way for way in ways if way <= bare]
        if within and frozenset().union(*within) >= bare:
            fitting[name] = max(map(len, within))
    if fitting and not text.lstrip().startswith("-"):
        return max(fitting, key=lambda name: fitting[name])
    spelled = {" ".join(sorted(way)): name for name, ways in said.items() for way in ways}
    near = nearest(" ".join(sorted(bare)), spelled) or nearest(text, said)
    hint = f"Did you mean {spelled.get(near[0], near[0])}?" if near else "Choose one of these."
    raise ScenarioError(f"row, {column or kind}", f"one of {', '.join(said)}", repr(text), hint)


@functools.lru_cache(1024)
def method_called(text: str) -> tuple[str, frozenset[str]]:
    """A training method and what was said with it.

    ``embeddings`` are trained too; ``quantised`` are the weights beside QLoRA and its kin; ``pairs`` of answers are
    compared, as DPO does (huggingface/trl trl/trainer/dpo_trainer.py: both go through the model as one batch).

    Examples
    --------
    >>> method_called("LoRA + embeddings"), method_called("Q-LoRA")[0]
    (('lora', frozenset({'embeddings'})), 'lora')
    >>> method_called("dpo"), method_called("LoRA, DPO")
    (('full', frozenset({'pairs'})), ('lora', frozenset({'pairs'})))
    """
    known = method_names()
    parts = [part.lower() for part in re.split(r"[+,]", text) if part.strip()]
    first, *others = [_BETWEEN.sub("_", part).strip("_") for part in parts] or [""]
    said = set()
    for other in others:
        if other.rstrip("s") not in ("embedding", "emb", "head", "lm_head", "embed"):
            first = f"{first}_{other}"
        else:
            said.add("embeddings")
    if (alone := _PAIRS.sub("", first).strip("_")) != first:
        said.add("pairs")
        first = alone or "full"
    name = known.get(first) or known.get(first.replace("_", ""))
    if name is None:
        near = sorted({known[one] for one in nearest(first, known)}, key=list(known.values()).index)
        hint = f"Did you mean {' or '.join(near)}?" if near else "Choose one."
        listed = ", ".join(sorted(set(known.values())))
        raise ScenarioError("row, method", f"one of {listed}", repr(text), hint)
    if name in ("pretrain",) or first.startswith(("pretrain", "continued")):
        said.add("pretrain")
    if name in _NARROW:
        said.add("quantised")
    return _NARROW.get(name, name), frozenset(said)


_NARROW: Mapping[str, str] = {"qlora": "lora", "qdora": "dora", "qoft": "oft"}
"""Methods that say that the model beside them has 4 bits, and what they are otherwise."""


def switched(kind: str, row: Mapping[str, str], column: str) -> str:
    """The meaning of a column of a row, empty where the row does not say it."""
    return meaning(kind, row[column], column=column) if column in row else ""


_MODULE = re.compile(r"[A-Za-z0-9_.-]+")


@functools.lru_cache(1024)
def targets_called(text: str) -> tuple[str, ...]:
    """Matrices of a layer that a text names, in any of the ways adapter libraries name them.

    Examples
    --------
    >>> targets_called("q_proj, v_proj"), targets_called("all-linear")
    (('q', 'v'), ('q', 'k', 'v', 'o', 'gate', 'up', 'down'))
    """
    parts = _MODULE.findall(text) or [text]
    named = {each for part in parts for each in meaning("target", part, column="lora_targets").split()}
    return tuple(each for each in TARGETS if each in named)


@dataclass
class WordedRow:
    """A row while it is read: its words with their meanings, and what is found out about it."""

    text: dict[str, str]
    tool: str
    method: Method
    said: frozenset[str]
    narrow: str
    words: dict[str, str]
    clashes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    note: list[str] = field(default_factory=list)

    @property
    def full(self) -> bool:
        """Whether the model itself is trained, whole."""
        return self.method.base == "trained"


def worded(text: dict[str, str], tool: str) -> WordedRow:
    """The words of a row by their meaning; what is no word is refused."""
    name, said = method_called(text.get("method", "full"))
    narrow = switched("quantization", text, "quantization")
    narrow = "" if narrow == "none" else narrow or ("nf4-dq" if "quantised" in said else "")
    first, _, rest = text.get("optimizer", "").partition(",")
    words = {
        "precision": switched("precision", text, "precision"),
        "optimizer": meaning("optimizer", first) if first.strip() else "",
        "recompute": switched("recompute", text, "activation_checkpointing"),
        "attention": switched("attention", text, "flash_attention"),
        "offload": switched("offload", text, "cpu_offload"),
        "compile": switched("switch", text, "torch_compile"),
        "packing": switched("switch", text, "packing"),
        "fsdp": switched("fsdp", text, "fsdp"),
        "device_map": switched("device_map", text, "device_map"),
        "master": "yes" if "master" in rest.lower() and not {"no", "without"} & {*rest.lower().split()} else "",
    }
    row = WordedRow(text, tool, methods()[name], said, narrow, words)
    if rest.strip() and not words["master"]:
        expected = "a name, or a name and fp32 master"
        raise ScenarioError("row, optimizer", expected, text["optimizer"], "Fix optimizer.")
    if row.full and narrow and narrow != "fp8":
        what = "16 bit weights, or a method that trains beside them, such as lora"
        raise ScenarioError("row, quantization with full training", what, text["quantization"], "Fix one of them.")
    if row.full and narrow:
        row.narrow = ""
        row.note.append("quantization fp8 with full training: products are of 8 bit, weights are not")
    if "quantised" in said and narrow in ("int8", "fp8"):
        what = f"method {text['method']} has 4 bit weights, and quantization {narrow}"
        row.clashes.append(f"{what}: read as {narrow}")
    if "quantised" in said and "quantization" in text and not narrow:
        row.clashes.append(f"method {text['method']} with no quantization: read as 16 bit")
    given = text.get("framework")
    if given and tool_called(given) == ANY:
        row.missing.append(f"framework: {given} is not known; generic facts")
    both = tool_called(given), tool_called(text.get("source"))
    if ANY not in both and both[0] != both[1]:
        row.clashes.append(f"framework {both[0]} and source {both[1]}: read as {both[0]}")
    if tool == ANY:
        row.note.append("tool unknown: generic facts, wide bound")
    return row


def contradictions(row: WordedRow, model: Architecture, seq: int) -> None:
    """What a row says twice and differently, and how it is read."""
    text, words, say = row.text, row.words, row.clashes.append
    zero = number(text, "zero_stage")
    if zero not in (None, 0, 1, 2, 3):
        raise ScenarioError("row, zero_stage", "0, 1, 2 or 3", f"{zero:g}", "Fix zero_stage, for example 2.")
    if "lora_rank" in text:
        rank = count(text, "lora_rank")
        if rank > (model.hidden or rank):
            raise ScenarioError("row, lora_rank", f"at most {model.hidden}", f"{rank}", "Fix lora_rank.")
        if not row.method.of_rank:
            say(f"lora_rank is given with {row.method.name}, which has none: not read")
    if "lora_targets" in text and (row.method.targets or not row.method.adapts):
        say(f"lora_targets is given with {row.method.name}, which has its own or none: not read")
    if "trained_layers" in text and row.method.base != "layers":
        say(f"trained_layers is given with {row.method.name}: not read")
    if zero is not None and words["fsdp"] == "yes":
        say("zero_stage and fsdp are both given: read as ZeRO")
    ranks = math.prod(count(text, name) for name in ("tp", "pp", "dp", "cp"))
    gpus = number(text, "n_gpus")
    if gpus is not None and gpus < 1:
        count(text, "n_gpus")
    spread = words["device_map"] == "auto"
    if gpus and (gpus != ranks if "dp" in text and not spread else gpus % ranks):
        say(f"n_gpus {text['n_gpus']} is not tp x pp x dp x cp: {ranks} counts")
    if spread and (ranks > 1 or zero or words["fsdp"] == "yes"):
        say("device_map spreads layers over GPUs, and so do ranks or sharding: read as device_map")
    if words["precision"] == "32-true" and words["master"]:
        say("precision is fp32 and a fp32 master copy is named: read as fp32 without one")
    if words["precision"].endswith("-true") and words["precision"] != "32-true" and words["master"]:
        say(f"precision {words['precision']} and a fp32 master copy: read with the copy")
    if model.positions and seq > model.positions:
        say(f"seq_len: {seq} is beyond the {model.positions} positions of {model.name}: read as {seq}")
    if "lora_targets" in text and not matrices(model, targets_called(text["lora_targets"])):
        say(f"lora_targets: {model.name} has no such layer: it adapts nothing")
    if row.method.name == "bitfit" and not model.bias:
        say(f"method bitfit trains biases, and {model.name} has few or none: read as if it had")
    if model.kind == "diffusion":
        if row.method.adapts:
            say(f"method {row.method.name}: adapters of {model.name} are not counted")
        split = [name for name in ("tp", "pp", "cp") if count(text, name) > 1]
        row.clashes += [f"{name}: {model.name} is counted whole on each rank" for name in split]
    if words["precision"].startswith("bf16") and no_bf16(text.get("gpu", "")):
        say(f"precision {words['precision']} and gpu {text['gpu']}, which does not compute in it: read so")
    if spread and gpus and gpus > (model.layers or 1):
        layers = f"the {model.layers or 1} layers"
        say(f"n_gpus {text['n_gpus']} with device_map are more than {layers}: some stay empty")
    if "embeddings" in row.said and row.full:
        say("method: embeddings are named beside full training, which trains them: read as full")
    if words["offload"] == "states" and words["optimizer"] == "sgd":
        say("cpu_offload of optimiser states, and sgd has none: read so")


def assumed(row: WordedRow, job: TrainingJob) -> None:
    """Say what was not stated and matters: recompute, optimiser, precision."""
    if not row.words["recompute"] and row.tool in OWN_LOOPS:
        row.missing.append(f"activation_checkpointing: assumed {job.recompute}")
    if not row.words["optimizer"] and (row.full or row.tool in OWN_LOOPS):
        row.missing.append(f"optimizer: assumed {job.optimizer}")
    if not row.words["precision"]:
        row.missing.append(f"precision: assumed {job.regime}")
    elif row.tool in OWN_LOOPS and _bare(row) and row.full and job.regime in ("unsaid", "pure", "amp"):
        row.missing.append(f"precision: not stated whether parameters are fp32; assumed {_SAID[job.regime]}")
    if row.words["packing"] == "no":
        row.missing.append("packing: sequences that are not full were taken as full")


_SAID = {"unsaid": "the middle", "pure": "not", "amp": "so"}


def _bare(row: WordedRow) -> bool:
    """Whether a type is named without saying of what."""
    return row.words["precision"] in ("", "bf16", "fp16", "fp8")


def placed(row: WordedRow, job: TrainingJob, most: float | None) -> tuple[TrainingJob, tuple[TrainingJob, ...]]:
    """The job under the likeliest answer to what is open, and under the others, one changed at a time.

    A recipe of its tool leaves open what it saves with, and who has room does not save: of its answers the largest that
    fits the board is taken. Of a tool that is not known the assumed answer is taken, unless only others fit.
    """
    words, changes = row.words, list[dict[str, Any]]()
    recipe = job.regime == "pure" and row.tool not in OWN_LOOPS and not words["recompute"] and not job.offload
    if row.full and recipe and not words["optimizer"] and job.step_in_backward:
        row.missing.append(f"step in backward and paged states: {_AS_IN_RECIPE}")
        changes += [{"step_in_backward": False}, {"step_in_backward": False, "optimizer": "adamw8bit"}]
    if recipe and not job.quantization and job.recompute == "full" and words["compile"]:
        row.missing.append(f"activation_checkpointing: {_AS_IN_RECIPE}")
        changes.append({"recompute": "none"})
    if job.regime == "unsaid" or (row.tool in OWN_LOOPS and row.full and _bare(row) and job.regime == "pure"):
        changes += [{"regime": "pure"}, {"regime": "amp"}][job.regime == "pure" :]
        if not words["optimizer"]:
            changes += [{"regime": "pure", "optimizer": "adamw8bit"}, {"regime": "pure", **_SAVING}]
    if row.tool in OWN_LOOPS and job.model.gelu_new:
        changes.append({"composed_gelu": True})
    if row.tool in OWN_LOOPS and job.loss_chunks > 1:
        changes.append({"loss_chunks": 1})
    if row.tool in OWN_LOOPS and row.method.of_rank and not row.method.targets and job.model.hidden:
        largest = job.lora_rank if "lora_rank" in row.text else _LARGE_RANK
        targets = job.lora_targets if "lora_targets" in row.text else TARGETS
        changes.append({"lora_targets": targets, "lora_rank": min(largest, job.model.hidden)})
    if row.tool in OWN_LOOPS and not words["recompute"] and not job.quantization:
        changes.append({"recompute": "none" if job.recompute == "full" else "full"})
    _more_unsaid(row, job)
    ways = [job, *(replace(job, **change) for change in changes)]
    if len(ways) == 1 or most is None or (row.tool in OWN_LOOPS and sum(peak_gib(job)) <= most):
        return job, tuple(ways[1:])
    sizes = [(sum(peak_gib(way)), place) for place, way in enumerate(ways)]
    _, place = max((one for one in sizes if one[0] <= most * (1 - HEADROOM)), default=(0.0, 0))
    return ways[place], tuple(way for at, way in enumerate(ways) if at != place)


_AS_IN_RECIPE = "assumed as in the tool's recipe, or as the GPU allows"
_LARGE_RANK = 64
"""The largest rank that recipes of the tools take unasked."""
_SAVING = {"optimizer": "pagedadamw8bit", "step_in_backward": True, "recompute": "full"}
"""All that a full training of one GPU can save with."""


def _more_unsaid(row: WordedRow, job: TrainingJob) -> None:
    """What else a recipe of its tool leaves open, by columns alone."""
    words = row.words
    pure = job.regime == "pure" and row.tool not in OWN_LOOPS and not job.offload
    if pure and job.recompute == "full" and job.compiled and words["compile"] and words["optimizer"]:
        row.missing.append("off-load of activations, step in backward: not stated, assumed neither")
    if pure and row.full and words["recompute"] == "none" and not job.compiled and not words["packing"]:
        row.missing.append("packing: assumed that every sequence is full")


def static_gib(job: TrainingJob) -> float:
    """GiB that lie on a GPU throughout: what cannot fit without sharding."""
    return static_bytes(job, stage_params(job.model, job.tp, job.pp)) / GIB
