"""Rows of runs to jobs: a stated value decides, the tool's facts fill what is unsaid, the rest is assumed and said."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpuplanner.errors import ScenarioError, message
from gpuplanner.sizing.predict.architecture import Architecture
from gpuplanner.sizing.predict.job import TrainingJob
from gpuplanner.sizing.predict.methods import TARGETS, Method, methods
from gpuplanner.sizing.predict.observed import HEADROOM
from gpuplanner.sizing.predict.overheads import GIB
from gpuplanner.sizing.predict.peak import peak_gib
from gpuplanner.sizing.predict.reading.cells import board_gib, count, number, replicas
from gpuplanner.sizing.predict.reading.row_model import model_of
from gpuplanner.sizing.predict.reading.words import meaning, method_called, switched, targets_called
from gpuplanner.sizing.predict.static import frozen_bytes, stage_params, trained_bytes
from gpuplanner.sizing.predict.tools import ANY, OWN_LOOPS, tool_called, tool_facts

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


@dataclass
class _Row:
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
        return self.method.base == "trained"


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
    text = {
        name: str(row[name]).strip() for name in READ if row.get(name) is not None and str(row[name]).strip()
    }
    return _question(tuple(text.items()), tool)


def job_of(model: Architecture, text: dict[str, str], seq: int, tool: str) -> TrainingJob:
    """A job of an architecture at hand, its words read and its tool's facts filled in as those of a row are."""
    job = _answered(_worded(text, tool), model, seq, None).job
    assert job is not None
    return job


@functools.lru_cache(4096)
def _question(items: tuple[tuple[str, str], ...], forced: str | None) -> Question:
    text = dict(items)
    tool = forced or tool_called(text.get("framework"), text.get("source"))
    family, board, most = "?", None, None
    try:
        row = _worded(text, tool)
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
        _contradictions(row, found.model, int(seq))
        answered = _answered(row, found.model, int(seq), most)
        called = "" if forced else (text.get("framework") or text.get("source") or "").lower()
        return replace(answered, family=family, board_gib=board, most_gib=most, name=called)
    except ScenarioError as error:
        return Question(tool, family, None, (str(error),), board_gib=board)


def _worded(text: dict[str, str], tool: str) -> _Row:
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
        "master": "yes" if "master" in rest.lower() else "",
    }
    row = _Row(text, tool, methods()[name], said, narrow, words)
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


def _contradictions(row: _Row, model: Architecture, seq: int) -> None:
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
    if zero and words["fsdp"] == "yes":
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
    if words["precision"].startswith("fp16") and words["precision"].endswith("true") and words["master"]:
        say("precision fp16-true and a fp32 master copy: read with the copy")
    if "embeddings" in row.said and row.full:
        say("method: embeddings are named beside full training, which trains them: read as full")
    if words["offload"] == "states" and row.full and words["optimizer"] == "sgd":
        say("cpu_offload of optimiser states, and sgd has none: read so")


def _tags(row: _Row, model: Architecture, ranks: int) -> set[str]:
    """Words for the situation, which the conditions of the tools' table name."""
    zero, precision = number(row.text, "zero_stage"), row.words["precision"]
    tags = {row.method.name, "sharded" if ranks > 1 else "single", *row.said}
    if row.method.adapts and row.method.of_rank:
        tags.add("lora")
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


def _sharding(row: _Row, tags: set[str], facts: Mapping[str, str], ranks: int) -> str:
    """What is sharded: as stated, else as the tool does."""
    stages = [tag for tag in ("zero1", "zero2", "zero3", "fsdp") if tag in tags]
    sharding = stages[0] if stages else facts.get("sharding", "")
    if "zero0" in tags and facts["regime"] != "deepspeed_fp32_grads":
        sharding = ""
    if (sharding == "fsdp" and ranks == 1) or (row.words["fsdp"] == "no" and not stages):
        sharding = ""
    return sharding


def _regimes(row: _Row, tags: set[str], facts: Mapping[str, str]) -> tuple[str, str, float]:
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


def _answered(row: _Row, model: Architecture, seq: int, most: float | None) -> Question:
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
    micro, rank = count(text, "micro_batch"), int(method.counts["rank"] or facts["lora_rank"])
    job = TrainingJob(
        model, seq, micro, count(text, "grad_accum"), method.name,
        embeddings_trained="embeddings" in row.said and not row.full,
        regime=regime, adapter_regime=adapter_regime,
        embedding_copy_regime=facts.get("embedding_copy_regime", adapter_regime) if regime != "fp32" else "fp32",
        optimizer=optimizer, quantization=facts.get(f"{row.narrow}_is", row.narrow), weight_bytes=weight,
        embedding_bytes=float(facts.get("embedding_bytes", 2)), selective=facts["selective"],
        sequence_parallel=facts.get("sequence_parallel") == "yes" and parallel["tp"] > 1,
        quantised_head=facts.get("quantised_head") == "yes", inputs_kept=facts.get("inputs_kept") == "yes",
        lora_rank=int(number(text, "lora_rank") or rank), lora_targets=targets,
        lora_fused_qkv=facts.get("lora_fused_qkv") == "yes", lora_dropout=facts.get("lora_dropout") != "0",
        trained_layers=min(int(number(text, "trained_layers") or method.layers), model.layers),
        **parallel, sharding=sharding,
        recompute=words["recompute"] or facts["recompute"], dropout=facts.get("dropout") == "yes",
        flash=words["attention"] != "scores", offload={"none": ""}.get(words["offload"], words["offload"]),
        inputs_offloaded=facts.get("inputs_offloaded") == "yes" and not words["recompute"],
        compiled=(words["compile"] or facts.get("torch_compile")) == "yes", logits_bytes=float(facts["logits_bytes"]),
        loss_chunks=int(facts.get("loss_chunks", 1)),
        loss_gib=float(facts.get("loss_gib", 0)), fused_step=facts.get("fused_step") == "yes",
        step_in_backward=facts.get("step_in_backward") == "yes",
        gradients_whole=facts.get("gradients_whole") == "yes" and sharding == "fsdp",
        frozen_gradients=facts.get("frozen_gradients") == "yes" and sharding == "fsdp",
        reduce_bucket=float(facts.get("reduce_bucket", 0)), allgather_bucket=float(facts.get("allgather_bucket", 0)),
        live_params=float(facts.get("live_params", 0)), meter=facts["meter"], qkv_kept=facts.get("qkv_kept") == "yes",
        context_gib=float(facts.get("context_gib", 0)), communicators=int(facts.get("communicators", 0)),
    )  # fmt: skip
    _assumed(row, job)
    if not job.sharding and job.shards > 1 and most and _static_gib(job) > most:
        job = replace(job, sharding=tool_facts(tool, frozenset(tags | {"unplaced"})).get("sharding", "fsdp"))
        row.missing.append(f"sharding: assumed {job.sharding}, as it does not fit otherwise")
    job, others = _placed(row, job, most)
    if earlier := facts.get("earlier_regime"):
        others = (*others, replace(job, regime=earlier))
        newest = f"version of {tool}: assumed the newest of the table, which accumulates gradients in fp32"
        row.missing.append(newest)
    unit = 2.0**30 / 1e9 if facts["meter_unit"] == "GB" else 1.0
    if unit != 1:
        row.note.append("in GB of 1e9 bytes, as this tool's meter prints")
    missing = (*row.missing, *row.clashes)
    return Question(tool, "", job, missing, others, tuple(row.note), unit, clashes=tuple(row.clashes))


def _assumed(row: _Row, job: TrainingJob) -> None:
    """Say what was not stated and matters: recompute, optimiser, precision."""
    if not row.words["recompute"] and row.tool in OWN_LOOPS:
        row.missing.append(f"activation_checkpointing: assumed {job.recompute}")
    if not row.words["optimizer"] and (row.full or row.tool in OWN_LOOPS):
        row.missing.append(f"optimizer: assumed {job.optimizer}")
    if not row.words["precision"]:
        row.missing.append(f"precision: assumed {job.regime}")
    elif row.tool in OWN_LOOPS and _bare(row) and row.full and job.regime in ("unsaid", "pure", "amp"):
        row.missing.append(f"precision: whether parameters are fp32 is not said; assumed {_SAID[job.regime]}")
    if row.words["packing"] == "no":
        row.missing.append("packing: sequences that are not full were taken as full")


_SAID = {"unsaid": "the middle", "pure": "not", "amp": "so"}


def _bare(row: _Row) -> bool:
    """Whether a type is named without saying of what."""
    return row.words["precision"] in ("", "bf16", "fp16", "fp8")


def _placed(row: _Row, job: TrainingJob, most: float | None) -> tuple[TrainingJob, tuple[TrainingJob, ...]]:
    """The job under the likeliest answer to what is open, and under the others, one changed at a time.

    A recipe of its tool leaves open what it saves with, and who has room does not save: of its answers the largest that
    fits the board is taken. Of a tool that is not known the assumed answer is taken, unless only others fit.
    """
    words, changes = row.words, list[dict[str, Any]]()
    recipe = job.regime == "pure" and row.tool not in OWN_LOOPS and not words["recompute"] and not job.offload
    if row.full and recipe and not words["optimizer"] and job.step_in_backward:
        row.missing.append(
            "step in backward and paged states: assumed as in the tool's recipe, or as the board allows"
        )
        changes += [{"step_in_backward": False}, {"step_in_backward": False, "optimizer": "adamw8bit"}]
    if recipe and not job.quantization and job.recompute == "full" and words["compile"]:
        row.missing.append(
            "activation_checkpointing: assumed as in the tool's recipe, or as the board allows"
        )
        changes.append({"recompute": "none"})
    if job.regime == "unsaid" or (row.tool in OWN_LOOPS and row.full and _bare(row) and job.regime == "pure"):
        changes += [{"regime": "pure"}, {"regime": "amp"}][job.regime == "pure" :]
        if not words["optimizer"]:
            changes += [{"regime": "pure", "optimizer": "adamw8bit"}, {"regime": "pure", **_SAVING}]
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


_LARGE_RANK = 64
"""The largest rank that recipes of the tools take unasked."""
_SAVING = {"optimizer": "pagedadamw8bit", "step_in_backward": True, "recompute": "full"}
"""All that a full training of one GPU can save with."""


def _more_unsaid(row: _Row, job: TrainingJob) -> None:
    """What else a recipe of its tool leaves open, by columns alone."""
    words = row.words
    pure = job.regime == "pure" and row.tool not in OWN_LOOPS and not job.offload
    if pure and job.recompute == "full" and job.compiled and words["compile"] and words["optimizer"]:
        row.missing.append("off-load of activations, step in backward: not stated, assumed neither")
    if pure and row.full and words["recompute"] == "none" and not job.compiled and not words["packing"]:
        row.missing.append("packing: assumed that every sequence is full")


def _static_gib(job: TrainingJob) -> float:
    stage = stage_params(job.model, job.tp, job.pp)
    return (frozen_bytes(job, stage) if job.frozen else trained_bytes(job, stage)) / GIB
