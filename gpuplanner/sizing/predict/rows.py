"""Rows of a table of runs to jobs: what they say, what their tool does unasked, what had to be assumed."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuplanner.catalog import boards_called
from gpuplanner.errors import GeometryError, ScenarioError, message
from gpuplanner.sizing.predict.architecture import Architecture, agree, with_width_for
from gpuplanner.sizing.predict.describe import known_preset, size_in
from gpuplanner.sizing.predict.job import TrainingJob
from gpuplanner.sizing.predict.overheads import GIB
from gpuplanner.sizing.predict.static import frozen_bytes, stage_params, trained_bytes
from gpuplanner.sizing.predict.throughput import board_facts
from gpuplanner.sizing.predict.tools import ANY, tool_called, tool_facts

READ = (
    "source", "framework", "model", "params", "layers", "hidden", "heads", "kv_heads", "vocab", "seq_len",
    "micro_batch", "grad_accum", "precision", "optimizer", "method", "lora_rank", "quantization", "zero_stage",
    "fsdp", "tp", "pp", "dp", "cp", "activation_checkpointing", "flash_attention", "cpu_offload", "torch_compile",
    "gpu", "gpu_mem_gib", "n_gpus",
)  # fmt: skip
"""Columns that a prediction reads; measured ones are not among them."""
_LARGEST = 1e7
_UNIT = re.compile(r"\s*(gib|gb|g)$", re.IGNORECASE)
_YES, _NO = ("yes", "true", "1", "on"), ("no", "false", "0", "off", "none")


@dataclass(frozen=True)
class Question:
    """A row as a job, with what was assumed and what else it may be.

    ``others`` are the same job under the other answers to what was not stated and matters much; a bound covers them.
    """

    tool: str
    family: str
    job: TrainingJob | None
    missing: tuple[str, ...] = ()
    others: tuple[TrainingJob, ...] = ()
    note: tuple[str, ...] = ()
    unit: float = 1.0
    board_gib: float | None = None


def question(row: Mapping[str, Any], *, tool: str | None = None) -> Question:
    """Read one row.

    Examples
    --------
    >>> asked = question({"model": "llama-2-7b", "method": "lora", "framework": "peft"})
    >>> asked.job, asked.missing
    (None, ('seq_len: not given; add it',))
    """
    text = {
        name: str(row[name]).strip() for name in READ if row.get(name) is not None and str(row[name]).strip()
    }
    return _question(tuple(text.items()), tool)


@functools.lru_cache(4096)
def _question(items: tuple[tuple[str, str], ...], tool: str | None) -> Question:
    row = dict(items)
    tool = tool or tool_called(row.get("framework"), row.get("source"))
    method = row.get("method", "full").lower()
    narrow = _quantization(row.get("quantization", ""), method)
    kind = "lora" if "lora" in method else method if method.startswith("adapter") else "full"
    family, board = kind if not narrow else f"q{kind}", None
    try:
        family += "-sharded" if _ranks(row) > 1 else ""
        board = _board_gib(row)
        clashes = _contradictions(row, kind)
        model, counted, lacking = _model(row, tool)
        said = (*counted, *clashes)
        seq = _number(row, "seq_len")
        if not seq:
            lacking = (*lacking, "seq_len: not given; add it")
        if model is None or not seq:
            return Question(tool, family, None, lacking, note=said, board_gib=board)
        return _answered(row, tool, family, model, int(seq), (kind, narrow, method), said, lacking, board)
    except ScenarioError as error:
        return Question(tool, family, None, (str(error),), board_gib=board)


def _answered(
    row: dict[str, str], tool: str, family: str, model: Architecture, seq: int, how: tuple[str, str, str],
    said: tuple[str, ...], missing: tuple[str, ...], board: float | None,
) -> Question:  # fmt: skip
    kind, narrow, method = how
    tags = _tags(row, kind, narrow, method, model)
    facts = tool_facts(tool, frozenset(tags))
    if (
        not (tags & {"zero", "fsdp"})
        and facts.get("sharding", "").startswith("zero")
        and ("single" not in tags or narrow or kind == "full")
    ):
        tags |= {"zero", facts["sharding"]}
        tags.discard("amp")
    facts = tool_facts(tool, frozenset(tags))
    regime = facts["regime"]
    stages = [tag for tag in ("zero1", "zero2", "zero3", "fsdp") if tag in tags]
    sharding = stages[0] if stages else facts.get("sharding", "")
    if "zero0" in tags and regime != "deepspeed_fp32_grads":
        sharding = ""
    if sharding == "fsdp" and _ranks(row) == 1:
        sharding = ""
    asked, recompute = row.get("activation_checkpointing", "").lower(), facts["recompute"]
    if asked:
        recompute = "none" if asked in _NO else "selective" if asked.startswith("sel") else "full"
    elif tool == ANY:
        missing = (*missing, f"activation_checkpointing: assumed {recompute}")
    optimizer = facts.get("optimizer", "adamw").lower()
    stated = row.get("optimizer", "").lower().partition(",")[0].strip()
    if stated:
        optimizer = {"adam": "adamw"}.get(stated, stated).replace("_", "").replace("-", "").replace(" ", "")
    elif kind == "full" or tool == ANY:
        missing = (*missing, f"optimizer: assumed {optimizer}")
    if not row.get("precision"):
        missing = (*missing, f"precision: assumed {regime}")
    elif tool == ANY and regime == "amp" and kind == "full":
        missing = (*missing, "precision: whether parameters are fp32 is not said, assumed so")
    if "fp32 master" in row.get("optimizer", "").lower() and regime in ("amp", "pure"):
        regime = "mixed"
    count: dict[str, Any] = {name: _count(row, name) for name in ("tp", "pp", "dp", "cp")}
    gpus = int(_number(row, "n_gpus") or 0)
    if "dp" not in row and gpus:
        count["dp"] = max(1, gpus // (count["tp"] * count["pp"] * count["cp"]))
    job = TrainingJob(
        model, seq, _count(row, "micro_batch"), _count(row, "grad_accum"), kind,
        embeddings_trained="embedding" in method, regime=regime, adapter_regime=facts["adapter_regime"],
        embedding_copy_regime=facts.get("embedding_copy_regime", facts["adapter_regime"]), optimizer=optimizer,
        quantization=narrow, embedding_bytes=float(facts.get("embedding_bytes", 2)),
        selective=facts["selective"],
        sequence_parallel=facts.get("sequence_parallel") == "yes" and count["tp"] > 1,
        quantised_head=facts.get("quantised_head") == "yes", inputs_kept=facts.get("inputs_kept") == "yes",
        lora_rank=int(_number(row, "lora_rank") or facts["lora_rank"]),
        lora_targets=tuple(facts["lora_targets"].split()), lora_fused_qkv=facts.get("lora_fused_qkv") == "yes",
        lora_dropout=facts.get("lora_dropout") != "0", **count, sharding=sharding, recompute=recompute,
        dropout=facts.get("dropout") == "yes",
        flash=row.get("flash_attention", "yes").lower() not in _NO,
        offload=row.get("cpu_offload", "").lower() in _YES,
        compiled=row.get("torch_compile", facts.get("torch_compile", "")).lower() in _YES,
        logits_bytes=float(facts["logits_bytes"]), loss_chunks=int(facts.get("loss_chunks", 1)),
        fused_step=facts.get("fused_step") == "yes", step_in_backward=facts.get("step_in_backward") == "yes",
        gradients_whole=facts.get("gradients_whole") == "yes" and sharding == "fsdp",
        frozen_gradients=facts.get("frozen_gradients") == "yes" and sharding == "fsdp",
        reduce_bucket=float(facts.get("reduce_bucket", 0)), allgather_bucket=float(facts.get("allgather_bucket", 0)),
        live_params=float(facts.get("live_params", 0)), meter=facts["meter"],
        qkv_kept=facts.get("qkv_kept") == "yes", context_gib=float(facts.get("context_gib", 0)),
        communicators=int(facts.get("communicators", 0)),
    )  # fmt: skip
    if not job.sharding and job.shards > 1 and board and _static_gib(job) > board:
        job = replace(job, sharding=tool_facts(tool, frozenset(tags | {"unplaced"})).get("sharding", "fsdp"))
        missing = (*missing, f"sharding: assumed {job.sharding}, as it does not fit otherwise")
    others, unsaid = _other_answers(row, job, kind, asked, stated)
    if earlier := facts.get("earlier_regime"):
        others = (*others, replace(job, regime=earlier))
        unsaid = (
            *unsaid,
            f"version of {tool}: assumed the newest of the table, which accumulates gradients in fp32",
        )
    if tool == ANY:
        said = (*said, "tool unknown: generic facts, wide bound")
    unit = 2.0**30 / 1e9 if facts["meter_unit"] == "GB" else 1.0
    if unit != 1:
        said = (*said, "in GB of 1e9 bytes, as this tool's meter prints")
    return Question(tool, family, job, (*missing, *unsaid), others, said, unit, board)


def _other_answers(
    row: dict[str, str], job: TrainingJob, kind: str, recompute: str, optimizer: str
) -> tuple[tuple[TrainingJob, ...], tuple[str, ...]]:
    """The job under the other answers to what a recipe's own default may not settle, by columns alone."""
    others: list[TrainingJob] = []
    unsaid: list[str] = []
    recipe = job.regime == "pure" and not recompute and not job.offload
    if kind == "full" and recipe and not optimizer:
        others.append(replace(job, optimizer="adamw8bit", step_in_backward=False))
        unsaid.append("step in backward and paged states: assumed as in the tool's recipe")
    if recipe and not job.quantization and job.recompute == "full" and row.get("torch_compile"):
        others.append(replace(job, recompute="none"))
        unsaid.append("activation_checkpointing: assumed as in the tool's recipe")
    if job.recompute == "full" and job.compiled and job.regime == "pure" and optimizer and not job.offload:
        unsaid.append("off-load of activations, step in backward: not stated, assumed neither")
    if kind == "full" and recompute in _NO and not job.compiled and job.regime == "pure":
        unsaid.append("packing: assumed that every sequence is full")
    return tuple(others), tuple(unsaid)


def _model(row: dict[str, str], tool: str) -> tuple[Architecture | None, tuple[str, ...], tuple[str, ...]]:
    """The architecture, what was counted otherwise than stated, and what is lacking."""
    name, params = row.get("model", ""), _number(row, "params")
    known = known_preset(name)
    shape: dict[str, Any] = {
        each: int(_number(row, each) or 0) for each in ("layers", "hidden", "heads", "kv_heads", "vocab")
    }
    if known and all(not value or getattr(known, each) == value for each, value in shape.items()):
        return known, (), ()
    lacking = tuple(
        f"{each}: not given, no preset of this name; add it"
        for each in ("layers", "hidden")
        if not shape[each]
    )
    params = params or size_in(name)
    if not params and not lacking:
        lacking = ("params: not given, no preset of this name; add it",)
    if lacking:
        return None, (), lacking
    missing = []
    if not shape["heads"]:
        ranks, hidden = int(_number(row, "tp") or 1), shape["hidden"]
        fitting = [n for n in range(ranks, hidden + 1, ranks) if hidden % n == 0]
        shape["heads"] = min(fitting, key=lambda n: abs(hidden / n - 128), default=1)
        missing.append(f"heads: assumed {shape['heads']}")
    if not shape["vocab"]:
        shape["vocab"] = 32000
        missing.append("vocab: assumed 32000")
    facts = tool_facts(tool, frozenset())
    plain = facts.get("gated") == "0" or any(
        word in name.lower() for word in ("gpt", "bloom", "opt", "pythia", "neox", "falcon", "bert", "t5")
    )
    style: dict[str, Any] = {
        "gated": not plain,
        "norm": "layer" if plain else "rms",
        "bias": plain,
        "tied": facts.get("tied") == "1",
    }
    if facts.get("ffn") == "4h" or (plain and "gpt" in name.lower()):
        made = Architecture(name or "row", **shape, ffn=4 * shape["hidden"], **style)
        label = size_in(name) is not None or float(f"{params:.3g}") == params
        said = agree(made, params or 0.0, label=label)
        return made, (said,) if said else (), tuple(missing)
    made = with_width_for(Architecture(name or "row", **shape, ffn=1, **style), params or 0.0)
    return made, (f"MLP width {made.ffn} from the parameter count",), tuple(missing)


def _tags(row: dict[str, str], kind: str, narrow: str, method: str, model: Architecture) -> set[str]:
    """Words for the situation, which the conditions of the tools' table name."""
    precision, zero, ranks = row.get("precision", "").lower(), _number(row, "zero_stage"), _ranks(row)
    if zero not in (None, 0, 1, 2, 3):
        raise ScenarioError(message("row, zero_stage", "0, 1, 2 or 3", f"{zero:g}", "Mend it."))
    tags = {kind, "sharded" if ranks > 1 else "single"}
    if "pretrain" in method:
        tags.add("pretrain")
    if "embedding" in method:
        tags.add("embeddings")
    if narrow:
        tags |= {"quantised", narrow.partition("-")[0]}
    tags |= {
        word
        for word in ("bf16", "fp16", "fp32")
        if word in precision.replace("32-true", "fp32").replace("float32", "fp32")
    }
    if "true" in precision:
        tags.add("true")
    if zero is not None:
        tags |= {f"zero{zero:.0f}", *(["zero"] if zero else [])}
    elif row.get("fsdp", "").lower() in _YES:
        tags.add("fsdp")
    if not tags & {"zero", "fsdp"} and not narrow:
        tags.add("amp")
    if row.get("torch_compile", "").lower() in _YES:
        tags.add("compile")
    if row.get("activation_checkpointing", "").lower() not in _NO:
        tags.add("recomputed")
    if not row.get("optimizer"):
        tags.add("unstated")
    billions = model.params() / 1e9
    tags |= {"large"} if billions > 30 else {"3b"} if 2 < billions < 5 else {"1b"} if billions < 2 else set()
    return tags


def _static_gib(job: TrainingJob) -> float:
    stage = stage_params(job.model, job.tp, job.pp)
    return (frozen_bytes(job, stage) if job.frozen else trained_bytes(job, stage)) / GIB


def _quantization(text: str, method: str) -> str:
    text = text.lower().replace("bnb.", "").replace("_", "-")
    if not text:
        return "nf4-dq" if method.startswith("qlora") else ""
    if "gptq" in text or "awq" in text or text.startswith("int4"):
        return "gptq"
    return next(
        (name for name in ("nf4-dq", "nf4", "fp4", "int8", "fp8") if name in text),
        "nf4" if "4" in text else "int8",
    )


def _ranks(row: dict[str, str]) -> int:
    ranks = int((_number(row, "dp") or 0) * (_number(row, "cp") or 1))
    return ranks or max(
        1, int((_number(row, "n_gpus") or 1) // ((_number(row, "tp") or 1) * (_number(row, "pp") or 1)))
    )


def _number(row: Mapping[str, str], name: str) -> float | None:
    """A number, with its unit if it has one that goes with the column; None where there is none."""
    text = row.get(name)
    if text is None:
        return None
    bare = _UNIT.sub("", text) if name == "gpu_mem_gib" else text
    try:
        value = float(bare)
    except ValueError:
        value = (size_in(text) if name == "params" else None) or math.nan
    if not abs(value) <= (1e15 if name == "params" else _LARGEST):  # which is false of NaN
        said = message(f"row, {name}", f"a number up to {_LARGEST:g}", repr(text), "Mend it.")
        raise ScenarioError(said)
    return value


def _count(row: Mapping[str, str], name: str) -> int:
    """A count, 1 where it is not stated; what is no whole number above 0 is refused."""
    value = _number(row, name)
    if value is None:
        return 1
    if value < 1 or value != int(value):
        raise ScenarioError(message(f"row, {name}", "a whole number above 0", f"{value:g}", "Mend it."))
    return int(value)


def _board_gib(row: Mapping[str, str]) -> float | None:
    """Memory of the board: stated, or that of the only board of that name."""
    stated = _number(row, "gpu_mem_gib")
    if stated is not None and stated <= 0:
        raise ScenarioError(message("row, gpu_mem_gib", "a number above 0", f"{stated:g}", "Mend it."))
    if stated is not None or "gpu" not in row:
        return stated
    called = boards_called(row["gpu"])
    try:
        facts = board_facts(called[0]) if len(called) == 1 else None
    except GeometryError:  # no data sheet
        return None
    return None if facts is None else facts.memory_gib


def _contradictions(row: Mapping[str, str], kind: str) -> list[str]:
    """What a row says twice and differently, and how it was read."""
    said = []
    if kind == "full" and "lora_rank" in row:
        said.append("lora_rank is given with full training: not read")
    if row.get("zero_stage") not in (None, "0") and row.get("fsdp", "").lower() in _YES:
        said.append("zero_stage and fsdp are both given: read as ZeRO")
    ranks = math.prod(_count(row, name) for name in ("tp", "pp", "dp", "cp"))
    if {"dp", "n_gpus"} <= set(row) and ranks != _number(row, "n_gpus"):
        said.append(f"n_gpus {row['n_gpus']} is not tp x pp x dp x cp: {ranks} counts")
    return said
