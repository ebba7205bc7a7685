"""Tables of training runs to jobs with predicted or measured memory."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.core.errors import ScenarioError, TraceFormatError, nearest
from gpuplanner.core.units import percent_text
from gpuplanner.hardware.catalog import facts
from gpuplanner.sizing.learned_memory import PeakModel, Runs, shipped_model
from gpuplanner.sizing.memory_components import COMPONENTS, GIB, hidden_bytes, peak_gib
from gpuplanner.sizing.model_architecture import (
    LABEL_TOLERANCE,
    Architecture,
    agree,
    known_preset,
    size_in,
    with_width_for,
)
from gpuplanner.sizing.run_table_words import (
    WordedRow,
    assumed,
    contradictions,
    count,
    gpu_gib,
    meaning,
    number,
    placed,
    replicas,
    static_gib,
    targets_called,
    worded,
)
from gpuplanner.sizing.training_job import ANY, TrainingJob, extent_of, kind_of, tool_called, tool_facts

SHAPE = ("layers", "hidden", "heads", "kv_heads", "vocab")
_READ = ("model", "params", "tp", *SHAPE)
_WIDTHS = (0.5, 20.0)
"""Widths of an MLP by hidden size beyond which layers and parameters cannot be of one model."""
_NAME_TOLERANCE = 0.2


@dataclass
class RowModel:
    """The architecture of a row, or None; what was counted otherwise than stated, contradicts or is lacking."""

    model: Architecture | None = None
    said: list[str] = field(default_factory=list)
    clashes: list[str] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)


def model_of(row: dict[str, str], tool: str) -> RowModel:
    """Read the architecture of a row; rows of one model share it."""
    return _model_of(tuple((name, row[name]) for name in _READ if name in row), tool)


@functools.lru_cache(1024)
def _model_of(items: tuple[tuple[str, str], ...], tool: str) -> RowModel:
    row = dict(items)
    found, name, params = RowModel(), row.get("model", ""), number(row, "params")
    known = known_preset(name)
    shape: dict[str, Any] = {each: int(number(row, each) or 0) for each in SHAPE}
    labelled = size_in(name)
    if known:
        differing = [each for each in SHAPE if shape[each] and getattr(known, each) != shape[each]]
        preset_counts = not differing or not all(shape[each] for each in ("layers", "hidden"))
        for each in differing:
            what = f"{each}: {shape[each]} is not the {getattr(known, each)} of {known.name}"
            reading = ", which counts" if preset_counts else f": read as {shape[each]}"
            found.clashes.append(f"{what}{reading}")
        if preset_counts:
            counted = known.params()
            if params and abs(counted - params) > LABEL_TOLERANCE * counted:
                what = f"params: {params:.4g} is not the {counted:.4g} of {known.name}"
                found.clashes.append(f"{what}, which counts")
            found.model = known
            return found
    elif labelled and params and abs(labelled / params - 1) > _NAME_TOLERANCE:
        what = f"params: {params:.4g} is not the {labelled:.4g} of the name"
        found.clashes.append(f"{what}: read as {params:.4g}")
    near = nearest(name, facts("model_presets")["preset"].to_list()) if name and not known else []
    hint = f" (is {near[0]} meant?)" if near else ""
    lacks = [each for each in ("layers", "hidden") if not shape[each]]
    found.lacking = [f"{each}: not given, no preset of this name{hint}; add it" for each in lacks]
    params = params or labelled
    if not params and not lacks:
        found.lacking.append("params: not given, no preset of this name; add it")
    if not found.lacking:
        _shaped(found, row, tool, shape, params or 0.0)
    return found


def _shaped(found: RowModel, row: dict[str, str], tool: str, shape: dict[str, Any], params: float) -> None:
    """An architecture from layers, widths and parameters; what is missing is assumed and said."""
    name = row.get("model", "") or "row"
    if not shape["heads"]:
        ranks, hidden = int(number(row, "tp") or 1), shape["hidden"]
        fitting = [n for n in range(ranks, hidden + 1, ranks) if hidden % n == 0]
        shape["heads"] = min(fitting, key=lambda n: abs(hidden / n - 128), default=1)
        found.lacking.append(f"heads: assumed {shape['heads']}")
    if not shape["vocab"]:
        shape["vocab"] = 32000
        found.lacking.append("vocab: assumed 32000")
    style_facts = tool_facts(tool, frozenset())
    families = ("gpt", "bloom", "opt", "pythia", "neox", "falcon", "bert", "t5")
    plain = style_facts.get("gated") == "0" or any(family in name.lower() for family in families)
    style: dict[str, Any] = {"gated": not plain, "bias": plain, "norm": "layer" if plain else "rms"}
    style["tied"] = style_facts.get("tied") == "1"
    if style_facts.get("ffn") == "4h" or (plain and "gpt" in name.lower()):
        made = Architecture(name, **shape, ffn=4 * shape["hidden"], **style)
        label = size_in(name) is not None or float(f"{params:.3g}") == params
        said = agree(made, params, label=label)
        found.said += [said] if said else []
        if said and not (0.5 < made.params() / params < 2):
            found.clashes.append(said)
    else:
        made = with_width_for(Architecture(name, **shape, ffn=1, **style), params)
        found.said.append(f"MLP width {made.ffn} from the parameter count")
        ratio = made.ffn / made.hidden
        if not _WIDTHS[0] <= ratio <= _WIDTHS[1]:
            what = f"params: {params:.4g} and {made.layers} layers of {made.hidden}"
            found.clashes.append(f"{what} make an MLP of {ratio:.2g} times the hidden size: read so")
    if made.hidden < made.heads or made.vocab < 2:
        got = f"{made.hidden}, {made.vocab}"
        raise ScenarioError("row, hidden and vocab", "sizes of a model", got, "Fix hidden and vocab.")
    found.model = made


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
    gpu_gib: float | None = None
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
    family, gpu_model, most = "?", None, None
    try:
        row = worded(text, tool)
        family = ("q" if row.narrow else "") + row.method.name + ("-sharded" if replicas(text) > 1 else "")
        gpu_model, most, clashes, unknown = gpu_gib(text)
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
            return Question(tool, family, None, tuple(row.missing), note=tuple(row.note), gpu_gib=gpu_model)
        contradictions(row, found.model, int(seq))
        called = "" if forced else (text.get("framework") or text.get("source") or "").lower()
        return _answered(row, found.model, int(seq), most, family, gpu_model, called)
    except ScenarioError as error:
        return Question(tool, family, None, (str(error),), gpu_gib=gpu_model)


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
        regime = "amp" if regime in ("pure", "fp32", "unsaid") else regime
        return regime, "amp" if adapters == "pure" else adapters, weight
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
    family: str = "", gpu_model: float | None = None, called: str = "",
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
    unsaid = not (tags & {"zero", "fsdp"}) and "zero_stage" not in text
    of_zero = facts.get("sharding", "").startswith("zero")
    if unsaid and of_zero and ("single" not in tags or row.narrow or row.full):
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
    return Question(tool, family, job, missing, others, note, unit, gpu_model, clashes, most, called)


NEW = ("predicted_gib", "upper_gib", "p_oom", "family", "tool", "level", "missing", "note")
"""Columns that a prediction adds."""
SEEN, UNSEEN, NOT_PREDICTED = "tool measured", "tool not measured", "not predicted"
CLASH = 0.25
"""Logarithm by which a bound is wider where a row says a thing twice and differently."""
_OTHER = 0.05
"""Logarithm of what a bound adds to the largest of the other answers."""


@dataclass(frozen=True)
class Predicted:
    """One row predicted; ``None`` where it could not be."""

    predicted_gib: float | None
    upper_gib: float | None
    p_oom: float | None
    family: str
    tool: str
    level: str
    missing: str
    note: str


def predict(asked: Question, model: PeakModel, *, gpu_gib: float | None = None) -> Predicted:
    """Peak, bound and probability of running out of memory of one question.

    The bound is the 95 % quantile of measured over predicted at the level that the answer names; where something was
    not said, it also covers the other answers, as far as the board could hold them. ``p_oom`` is the share of the same
    residuals, with the tail of Student's t, that lies above the board less the context that a meter of the allocator
    does not show; the other answers count as much as the assumed one.

    Examples
    --------
    >>> row = {"model": "llama-2-7b", "method": "lora", "framework": "litgpt", "seq_len": 1304, "gpu_mem_gib": 40}
    >>> predict(question(row), shipped_model()).level
    'tool measured'
    """
    if asked.job is None:
        words, note = "; ".join(asked.missing), "; ".join(asked.note)
        return Predicted(None, None, None, asked.family, asked.tool, NOT_PREDICTED, words, note)
    knobs = np.exp(model.logs(asked.label))
    peaks = [float(np.dot(peak_gib(job), knobs)) * asked.unit for job in (asked.job, *asked.others)]
    known, decided = asked.tool != ANY, not undecided(asked)
    radius = model.radius(asked.label, known=known, job=asked.job, decided=decided)
    radius += CLASH * bool(asked.clashes)
    others = max((peak * math.exp(_OTHER) for peak in peaks[1:]), default=0.0)
    most = gpu_gib or asked.most_gib
    upper = max(peaks[0] * math.exp(radius), min(others, most * asked.unit) if most else others)
    gpu_model, out = gpu_gib or asked.gpu_gib, None
    if gpu_model:
        room = asked.unit * max(gpu_model - hidden_bytes(asked.job) / GIB, 0.01)
        outs = [model.p_oom(peak, room, radius) for peak in peaks]
        out = outs[0] if len(outs) == 1 else (outs[0] + sum(outs[1:]) / len(outs[1:])) / 2
    told = list(asked.note)
    if model.seen(asked.label) and (score := model.accuracy.get(asked.family)):
        told.append(f"accuracy of {asked.family}: {percent_text(score[0])} over {score[1]} runs of left-out sources")
    level = SEEN if model.seen(asked.label) else UNSEEN
    missing = "; ".join(asked.missing)
    return Predicted(peaks[0], upper, out, asked.family, asked.tool, level, missing, "; ".join(told))


def predict_table(table: pl.DataFrame, model: PeakModel | None = None, *, tool: str | None = None) -> pl.DataFrame:
    """A table with the columns of `NEW` behind its own.

    Examples
    --------
    >>> table = pl.DataFrame({"model": ["llama-2-7b"], "method": ["lora"]})
    >>> predict_table(table)["missing"].to_list()
    ['seq_len: not given; add it']
    """
    model, read = model or shipped_model(), [name for name in READ if name in table.columns]
    remembered: dict[tuple[Any, ...], Predicted] = {}
    rows = table.select(read).rows() if read else [()] * len(table)
    for row in rows:
        if row not in remembered:
            remembered[row] = predict(question(dict(zip(read, row, strict=True)), tool=tool), model)
    answers = [remembered[row] for row in rows]
    numbers = {
        name: pl.Series([getattr(each, name) for each in answers], dtype=pl.Float64).round(4) for name in NEW[:3]
    }
    words = {name: pl.Series([getattr(each, name) for each in answers], dtype=pl.String) for name in NEW[3:]}
    return table.drop(NEW, strict=False).with_columns(**numbers, **words)


def measured_runs(
    table: pl.DataFrame,
    *,
    tool: str | None = None,
    change: Callable[[TrainingJob], TrainingJob] | None = None,
) -> tuple[Runs, pl.DataFrame]:
    """Rows that were measured and can be predicted, as arrays; and these rows.

    Parameters
    ----------
    table : polars.DataFrame
        Runs with ``measured_peak_gib``; rows without one, such as those that ran out of memory, are left out.
    tool : str, optional
        Predict as this tool, ``"any"`` for none; the sources stay the tools that the rows name.
    change : callable, optional
        What to make of each job before it is predicted.

    Raises
    ------
    TraceFormatError
        If no row is measured.
    """
    if "measured_peak_gib" not in table.columns:
        got = f"{', '.join(table.columns[:5])} …"
        raise TraceFormatError("runs", "a column measured_peak_gib", got, "Add it.")
    held = table.with_columns(pl.col("measured_peak_gib").cast(pl.Float64, strict=False))
    held = held.filter(pl.col("measured_peak_gib") > 0)
    parts, worst, sources, flagged, kept, models, extent, kinds = [], [], [], [], [], [], [], []
    for i, row in enumerate(held.iter_rows(named=True)):
        asked = question(row, tool=tool)
        if asked.job is None:
            continue
        job = change(asked.job) if change else asked.job
        parts.append([gib * asked.unit for gib in peak_gib(job)])
        others = (sum(peak_gib(job)) * asked.unit * math.exp(_OTHER) for job in asked.others)
        worst.append(max(others, default=0.0))
        sources.append(question(row).label)
        flagged.append(undecided(asked))
        models.append(job.model.name)
        extent.append(extent_of(job))
        kinds.append(kind_of(job))
        kept.append(i)
    if not kept:
        raise TraceFormatError("runs", "rows with a measured peak", "none", "Measure some.")
    held = held[kept]
    runs = Runs(
        np.array(parts).reshape(-1, len(COMPONENTS)), held["measured_peak_gib"].to_numpy(), tuple(sources),
        np.array(flagged, dtype=np.bool_), np.array(worst), tuple(models), np.array(extent), tuple(kinds),
    )  # fmt: skip
    return runs, held


def unread_rows(table: pl.DataFrame) -> list[str]:
    """Rows with a measured peak from which no job can be read, by their number, and why.

    Parameters
    ----------
    table : polars.DataFrame
        Runs, the first of them row 1.

    Returns
    -------
    list of str

    Examples
    --------
    >>> unread_rows(pl.DataFrame({"model": ["gpt2"], "measured_peak_gib": [3.0]}))
    ['row 1: seq_len: not given; add it']
    """
    if "measured_peak_gib" not in table.columns:
        return []
    said = []
    for row_number, row in enumerate(table.iter_rows(named=True), start=1):
        if row["measured_peak_gib"] in (None, ""):
            continue
        if (asked := question(row)).job is None:
            said.append(f"row {row_number}: {'; '.join(asked.missing)}")
    return said


def undecided(asked: Question) -> bool:
    """Whether a row leaves open what decides its peak: more than the heads of an architecture was assumed."""
    return any(not each.startswith(("heads", "framework")) for each in asked.missing)
