"""Rows of runs to jobs: a stated value decides, the tool's facts fill what is unsaid, the rest is assumed and said."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuplanner.errors import ScenarioError
from gpuplanner.sizing.predict.architecture import Architecture
from gpuplanner.sizing.predict.job import TrainingJob
from gpuplanner.sizing.predict.reading.cells import board_gib, count, number, replicas
from gpuplanner.sizing.predict.reading.row_model import model_of
from gpuplanner.sizing.predict.reading.unsaid import assumed, placed, static_gib
from gpuplanner.sizing.predict.reading.worded import WordedRow, contradictions, worded
from gpuplanner.sizing.predict.reading.words import meaning, targets_called
from gpuplanner.sizing.predict.tools import ANY, tool_called, tool_facts

READ = (
    "source", "framework", "model", "params", "layers", "hidden", "heads", "kv_heads", "vocab", "seq_len",
    "micro_batch", "grad_accum", "precision", "optimizer", "method", "lora_rank", "lora_targets", "trained_layers",
    "quantization", "zero_stage", "fsdp", "tp", "pp", "dp", "cp", "ep", "device_map", "activation_checkpointing",
    "flash_attention", "packing", "cpu_offload", "torch_compile", "gpu", "gpu_mem_gib", "n_gpus",
)  # fmt: skip
"""Columns that a prediction reads; measured ones are not among them."""


@dataclass(frozen=True)
class Question:
    """A row as a job, with what was assumed and what else it may be.

    ``others`` are the same job under the other answers to what was not stated and matters much; a bound covers them.
    ``clashes`` are what the row says twice and differently, with how it was read; they widen a bound. ``most_gib`` is
    the memory of the largest board that the row may mean.
    """

    tool: str
    family: str
    job: TrainingJob | None
    missing: tuple[str, ...] = ()
    others: tuple[TrainingJob, ...] = ()
    note: tuple[str, ...] = ()
    unit: float = 1.0
    board_gib: float | None = None
    clashes: tuple[str, ...] = ()
    most_gib: float | None = None
    name: str = ""

    @property
    def label(self) -> str:
        """The tool, or what a tool that is not known is called: runs of it are learned under this name."""
        return self.name if self.tool == ANY and self.name else self.tool


def question(row: Mapping[str, Any], *, tool: str | None = None) -> Question:
    """Read one row.

    Examples
    --------
    >>> asked = question({"model": "llama-2-7b", "method": "lora", "framework": "peft"})
    >>> asked.job, asked.missing
    (None, ('seq_len: not given; add it',))
    >>> "Did you mean lora" in question({"model": "llama-2-7b", "method": "lroa", "seq_len": 512}).missing[0]
    True
    """
    said = [(name, str(cell).strip()) for name in READ if (cell := row.get(name)) is not None]
    return _question(tuple(pair for pair in said if pair[1]), tool)


def job_of(model: Architecture, text: dict[str, str], seq: int, tool: str) -> TrainingJob:
    """A job of an architecture at hand, its words read and its tool's facts filled in as those of a row are."""
    job = _answered(worded(text, tool), model, seq).job
    assert job is not None
    return job


@functools.lru_cache(4096)
def _question(items: tuple[tuple[str, str], ...], forced: str | None) -> Question:
    text = dict(items)
    tool = forced or tool_called(text.get("framework"), text.get("source"))
    family, board, most = "?", None, None
    try:
        row = worded(text, tool)
        family = ("q" if row.narrow else "") + row.method.name + ("-sharded" if replicas(text) > 1 else "")
        board, most, clashes, unknown = board_gib(text)
        row.clashes += clashes
        row.missing += unknown
        found = model_of(text, tool)
        row.clashes += found.clashes
        row.note += found.said
        row.missing += found.lacking
        seq = number(text, "seq_len")
        if not seq:
            row.missing.append("seq_len: not given; add it")
        if found.model is None or not seq:
            return Question(tool, family, None, tuple(row.missing), note=tuple(row.note), board_gib=board)
        contradictions(row, found.model, int(seq))
        called = "" if forced else (text.get("framework") or text.get("source") or "").lower()
        return _answered(row, found.model, int(seq), most, family, board, called)
    except ScenarioError as error:
        return Question(tool, family, None, (str(error),), board_gib=board)


def _tags(row: WordedRow, model: Architecture, ranks: int) -> set[str]:
    """Words for the situation, which the conditions of the tools' table name."""
    zero, precision = number(row.text, "zero_stage"), row.words["precision"]
    tags = {row.method.name, "sharded" if ranks > 1 else "single", *row.said}
    tags |= {"parts"} if count(row.text, "tp") * count(row.text, "pp") > 1 else set()
    if row.method.adapts and row.method.of_rank:
        tags |= {"lora", *(["qlora"] if "quantised" in row.said else [])}
    if row.narrow:
        tags |= {"quantised", row.narrow.partition("-")[0]}
    tags |= set(precision.replace("32-true", "fp32").split("-"))
    if zero is not None:
        tags |= {f"zero{zero:.0f}", *(["zero"] if zero else [])}
    elif row.words["fsdp"] == "yes":
        tags.add("fsdp")
    if not tags & {"zero", "fsdp"} and not row.narrow:
        tags.add("amp")
    if row.words["compile"] == "yes":
        tags.add("compile")
    if row.words["recompute"] != "none":
        tags.add("recomputed")
    if not row.words["optimizer"]:
        tags.add("unstated")
    billions = model.params() / 1e9
    tags |= {"large"} if billions > 30 else {"3b"} if 2 < billions < 5 else {"1b"} if billions < 2 else set()
    return tags


def _sharding(row: WordedRow, tags: set[str], facts: Mapping[str, str], ranks: int) -> str:
    """What is sharded: as stated, else as the tool does."""
    stages = [tag for tag in ("zero1", "zero2", "zero3", "fsdp") if tag in tags]
    sharding = stages[0] if stages else facts.get("sharding", "")
    if "zero0" in tags and facts["regime"] != "deepspeed_fp32_grads":
        sharding = ""
    if (sharding == "fsdp" and ranks == 1) or (row.words["fsdp"] == "no" and not stages):
        sharding = ""
    return sharding


def _regimes(row: WordedRow, tags: set[str], facts: Mapping[str, str]) -> tuple[str, str, float]:
    """Regime of what is trained, of adapters, and bytes of a frozen weight: what is stated of precision decides."""
    regime, adapters, precision = facts["regime"], facts["adapter_regime"], row.words["precision"]
    weight = float(facts.get("weight_bytes", 2))
    if precision == "32-true":
        return "fp32", "fp32", 4.0
    if "zero" in tags and not regime.startswith(("deepspeed", "megatron", "mixed")):
        return "deepspeed", "deepspeed", weight
    if precision.endswith("-true") and not tags & {"zero"}:
        return "mixed" if row.words["master"] else "pure", "pure", weight
    if precision.endswith("-mixed"):
        return (
            "amp" if regime in ("pure", "fp32", "unsaid") else regime,
            "amp" if adapters == "pure" else adapters,
            weight,
        )
    if row.words["master"] and regime in ("amp", "pure"):
        regime = "mixed"
    return regime, adapters, weight


def _fused(optimizer: str, facts: Mapping[str, str]) -> bool:
    """Whether a step has no temporary: names of optimisers say so before the tool's habit does."""
    if "fused" in optimizer.lower() or optimizer.lower() in ("adamw_torch", "adamw_hf"):
        return "fused" in optimizer.lower()
    return facts.get("fused_step") == "yes"


def _keeps_scores(model: Architecture, words: Mapping[str, str], regime: str) -> bool:
    """Whether attention keeps its score matrix: as stated, or because no kernel has what is asked for.

    Of PyTorch's kernels that take keys and values by groups, flash needs 16 bit, and the other one keeps the scores
    (docs.pytorch.org, scaled_dot_product_attention).
    """
    return words["attention"] == "scores" or (regime == "fp32" and model.kv_width < model.q_width)


def _answered(
    row: WordedRow, model: Architecture, seq: int, most: float | None = None,
    family: str = "", board: float | None = None, called: str = "",
) -> Question:  # fmt: skip
    text, words, tool = row.text, row.words, row.tool
    parallel: dict[str, Any] = {name: count(text, name) for name in ("tp", "pp", "dp", "cp", "ep")}
    if words["device_map"] == "auto":
        gpus = int(number(text, "n_gpus") or 1)
        parallel |= {"tp": 1, "dp": 1, "cp": 1, "pp": min(gpus, model.layers or 1), "in_flight": 1}
        ranks = 1
    else:
        ranks = replicas(text)
        if "dp" not in text:
            parallel["dp"] = max(1, ranks // parallel["cp"])
    tags = _tags(row, model, ranks)
    facts = tool_facts(tool, frozenset(tags))
    if (
        not (tags & {"zero", "fsdp"})
        and "zero_stage" not in text
        and facts.get("sharding", "").startswith("zero")
        and ("single" not in tags or row.narrow or row.full)
    ):
        tags |= {"zero", facts["sharding"]}
        tags.discard("amp")
        facts = tool_facts(tool, frozenset(tags))
    sharding = "" if words["device_map"] == "auto" else _sharding(row, tags, facts, ranks)
    regime, adapter_regime, weight = _regimes(row, tags, facts)
    method = row.method
    unasked = facts["lora_targets"] if "lora" in tags else "all"
    targets = method.targets or targets_called(text.get("lora_targets", unasked))
    optimizer = words["optimizer"] or meaning("optimizer", facts.get("optimizer", "adamw"))
    compiled = (words["compile"] or facts.get("torch_compile")) == "yes"
    pairs = "pairs" in row.said
    if pairs:
        row.note.append("pairs: two sequences each, a micro-batch counts pairs")
    micro, rank = count(text, "micro_batch") * (1 + pairs), int(method.counts["rank"] or facts["lora_rank"])
    job = TrainingJob(
        model, seq, micro, count(text, "grad_accum"), method.name,
        embeddings_trained="embeddings" in row.said and not row.full,
        reference=pairs, regime=regime, adapter_regime=adapter_regime,
        embedding_copy_regime=facts.get("embedding_copy_regime", adapter_regime) if regime != "fp32" else "fp32",
        optimizer=optimizer, quantization=facts.get(f"{row.narrow}_is", row.narrow), weight_bytes=weight,
        embedding_bytes=float(facts.get("embedding_bytes", 2)), selective=facts["selective"],
        sequence_parallel=facts.get("sequence_parallel") == "yes" and parallel["tp"] > 1,
        quantised_head=facts.get("quantised_head") == "yes", inputs_kept=facts.get("inputs_kept") == "yes",
        inputs_each=facts.get("lora_inputs") == "each" and row.method.adapts and not compiled,
        lora_rank=int(number(text, "lora_rank") or rank), lora_targets=targets,
        lora_fused_qkv=facts.get("lora_fused_qkv") == "yes", lora_dropout=facts.get("lora_dropout") != "0",
        trained_layers=min(int(number(text, "trained_layers") or method.layers), model.layers),
        **parallel, sharding=sharding,
        recompute=words["recompute"] or facts["recompute"], dropout=facts.get("dropout") == "yes",
        flash=not _keeps_scores(model, words, regime),
        offload={"none": ""}.get(words["offload"], words["offload"]),
        inputs_offloaded=facts.get("inputs_offloaded") == "yes" and not words["recompute"],
        compiled=compiled, eager=not compiled and facts["kernels"] == "eager",
        logits_bytes=float(facts["logits_bytes"]), loss_chunks=int(facts.get("loss_chunks", 1)),
        loss_gib=float(facts.get("loss_gib", 0)), fused_step=_fused(text.get("optimizer", ""), facts),
        step_in_backward=facts.get("step_in_backward") == "yes",
        gradients_whole=facts.get("gradients_whole") == "yes" and sharding == "fsdp",
        composed_gelu=model.gelu_new and facts.get("composed_gelu") == "yes",
        gradients_freed=facts.get("gradients_freed") == "yes",
        frozen_gradients=facts.get("frozen_gradients") == "yes" and sharding == "fsdp",
        reduce_bucket=float(facts.get("reduce_bucket", 0)), allgather_bucket=float(facts.get("allgather_bucket", 0)),
        live_params=float(facts.get("live_params", 0)), meter=facts["meter"], qkv_kept=facts.get("qkv_kept") == "yes",
        context_gib=float(facts.get("context_gib", 0)), communicators=int(facts.get("communicators", 0)),
    )  # fmt: skip
    assumed(row, job)
    if not job.sharding and job.shards > 1 and most and static_gib(job) > most:
        job = replace(job, sharding=tool_facts(tool, frozenset(tags | {"unplaced"})).get("sharding", "fsdp"))
        row.missing.append(f"sharding: assumed {job.sharding}, as it does not fit otherwise")
    job, others = placed(row, job, most)
    if earlier := facts.get("earlier_regime"):
        others = (*others, replace(job, regime=earlier))
        newest = f"version of {tool}: assumed the newest of the table, which accumulates gradients in fp32"
        row.missing.append(newest)
    unit = 2.0**30 / 1e9 if facts["meter_unit"] == "GB" else 1.0
    if unit != 1:
        row.note.append("in GB of 1e9 bytes, as this tool's meter prints")
    missing = (*row.missing, *row.clashes)
    clashes, note = tuple(row.clashes), tuple(row.note)
    return Question(tool, family, job, missing, others, note, unit, board, clashes, most, called)
