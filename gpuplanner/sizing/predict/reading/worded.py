"""The words of a row by their meaning; what is no word is refused, and what it says twice and differently is listed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gpuplanner.errors import ScenarioError, message
from gpuplanner.sizing.predict.architecture import Architecture
from gpuplanner.sizing.predict.methods import Method, matrices, methods
from gpuplanner.sizing.predict.reading.cells import count, no_bf16, number
from gpuplanner.sizing.predict.reading.words import meaning, method_called, switched, targets_called
from gpuplanner.sizing.predict.tools import ANY, tool_called


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
        "master": "yes"
        if "master" in rest.lower() and not {"no", "without"} & {*rest.lower().split()}
        else "",
    }
    row = WordedRow(text, tool, methods()[name], said, narrow, words)
    if rest.strip() and not words["master"]:
        raise ScenarioError(
            message("row, optimizer", "a name, or a name and fp32 master", text["optimizer"], "Mend it.")
        )
    if row.full and narrow and narrow != "fp8":
        what = "16 bit weights, or a method that trains beside them, such as lora"
        raise ScenarioError(
            message("row, quantization with full training", what, text["quantization"], "Mend it.")
        )
    if row.full and narrow:
        row.narrow = ""
        row.note.append("quantization fp8 with full training: products are of 8 bit, weights are not")
    if "quantised" in said and narrow in ("int8", "fp8"):
        row.clashes.append(
            f"method {text['method']} has 4 bit weights, and quantization {narrow}: read as {narrow}"
        )
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
        raise ScenarioError(message("row, zero_stage", "0, 1, 2 or 3", f"{zero:g}", "Mend it."))
    if "lora_rank" in text:
        rank = count(text, "lora_rank")
        if rank > (model.hidden or rank):
            raise ScenarioError(message("row, lora_rank", f"at most {model.hidden}", f"{rank}", "Mend it."))
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
        say(f"lora_targets: {model.name} has no gate: nothing of it is adapted")
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
        say(
            f"n_gpus {text['n_gpus']} with device_map are more than the {model.layers or 1} layers: some stay empty"
        )
    if "embeddings" in row.said and row.full:
        say("method: embeddings are named beside full training, which trains them: read as full")
    if words["offload"] == "states" and words["optimizer"] == "sgd":
        say("cpu_offload of optimiser states, and sgd has none: read so")
