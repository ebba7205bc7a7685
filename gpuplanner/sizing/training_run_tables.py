"""Tables of training runs: jobs with predicted or measured memory."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.core.errors import ScenarioError, TraceFormatError
from gpuplanner.core.units_and_number_formats import percent_text
from gpuplanner.sizing.learned_memory import (
    PRECISION_READINGS,
    MeasuredRuns,
    PeakModel,
    predict_gib,
    shipped_peak_model,
)
from gpuplanner.sizing.memory_components import BYTES_PER_GIB, has_autocast_copies, peak_gib, unmetered_bytes
from gpuplanner.sizing.model_architecture import Architecture
from gpuplanner.sizing.training_job import (
    GENERIC_TOOL,
    TOOLS_WITHOUT_RECIPE,
    TrainingJob,
    compute_log_job_size,
    describe_training_kind,
    find_tool,
    resolve_tool_facts,
)
from gpuplanner.sizing.training_run_architectures import MODEL_SHAPE_COLUMNS, MODEL_STYLE_COLUMNS, read_row_model
from gpuplanner.sizing.training_run_row_parsing import (
    ParsedRunRow,
    choose_unstated_settings,
    compute_static_gib,
    count_replicas,
    has_bare_precision,
    note_assumptions,
    note_contradictions,
    parse_targets,
    read_count,
    read_gpu_memory,
    read_number_column,
    resolve_row_words,
    resolve_word,
    split_zero_stage,
)

RUN_TABLE_INPUT_COLUMNS = (
    "source", "framework", "model", "params", *MODEL_SHAPE_COLUMNS, *MODEL_STYLE_COLUMNS, "seq_len",
    "micro_batch", "grad_accum", "precision", "optimizer", "method", "lora_rank", "lora_targets", "trained_layers",
    "quantization", "zero_stage", "fsdp", "tp", "pp", "dp", "cp", "ep", "device_map", "activation_checkpointing",
    "flash_attention", "packing", "cpu_offload", "torch_compile", "gpu", "gpu_mem_gib", "n_gpus",
)  # fmt: skip
"""Columns of a table of runs that a prediction reads; measured ones are not among them."""


@dataclass(frozen=True)
class RowTrainingJob:
    """A row of a table of runs as a training job, with assumptions and alternatives.

    ``family`` is the training method, with ``q`` before it for quantised weights and ``-sharded`` after it for several
    replicas.

    ``alternatives`` are the same job with other values of settings that were not stated and matter; the bound covers
    them. ``readings`` are the job under each of `PRECISION_READINGS`, where the precision is ambiguous. ``clashes`` are
    contradictory statements and unknown words with the value used; they widen the bound.
    ``max_gib`` is the memory of the largest GPU model that the row may mean.
    """

    tool: str
    family: str
    job: TrainingJob | None
    missing: tuple[str, ...] = ()
    alternatives: tuple[TrainingJob, ...] = ()
    note: tuple[str, ...] = ()
    unit: float = 1.0
    gpu_gib: float | None = None
    clashes: tuple[str, ...] = ()
    max_gib: float | None = None
    name: str = ""
    readings: tuple[TrainingJob, ...] = ()

    @property
    def label(self) -> str:
        """Name under which runs are learned: the tool, or the name of an unknown tool."""
        return self.name if self.tool == GENERIC_TOOL and self.name else self.tool


def read_row_job(row: Mapping[str, Any], *, tool: str | None = None) -> RowTrainingJob:
    """Read the job of one row.

    Examples
    --------
    >>> asked = read_row_job({"model": "llama-2-7b", "method": "lora", "framework": "peft"})
    >>> asked.job, asked.missing
    (None, ('seq_len: not given; add it',))
    >>> read_row_job({"model": "llama-2-7b", "method": "lroa", "seq_len": 512}).clashes
    ("method: 'lroa' is not known: read as lora, the nearest known word",)
    """
    stated_cells = [
        (name, str(cell).strip()) for name in RUN_TABLE_INPUT_COLUMNS if (cell := row.get(name)) is not None
    ]
    return _read_row_job(tuple(pair for pair in stated_cells if pair[1]), tool)


def make_job(architecture: Architecture, text: dict[str, str], seq: int, tool: str) -> TrainingJob:
    """Make a job of a known architecture, with text settings and tool facts read as those of a row."""
    job = _make_row_job(resolve_row_words(text, tool), architecture, seq).job
    assert job is not None
    return job


@functools.lru_cache(4096)
def _read_row_job(items: tuple[tuple[str, str], ...], forced: str | None) -> RowTrainingJob:
    """Convert a row of a table of runs to a training job, if its settings suffice."""
    text = split_zero_stage(dict(items))
    tool = forced or find_tool(text.get("framework"), text.get("source"))
    family, gpu_gib, max_gib = "?", None, None
    try:
        row = resolve_row_words(text, tool)
        family = ("q" if row.narrow else "") + row.method.name + ("-sharded" if count_replicas(text) > 1 else "")
        gpu_gib, max_gib, clashes, unknown = read_gpu_memory(text)
        row.clashes += clashes
        row.missing += unknown
        row_model = read_row_model(text, tool)
        row.clashes += row_model.clashes
        row.note += row_model.notes
        row.missing += row_model.lacking
        seq = read_number_column(text, "seq_len")
        if not seq:
            row.missing.append("seq_len: not given; add it")
        if row_model.model is None or not seq:
            return RowTrainingJob(tool, family, None, tuple(row.missing), note=tuple(row.note), gpu_gib=gpu_gib)
        note_contradictions(row, row_model.model, int(seq))
        tool_name = "" if forced else (text.get("framework") or text.get("source") or "").lower()
        return _make_row_job(row, row_model.model, int(seq), max_gib, family, gpu_gib, tool_name)
    except ScenarioError as error:
        return RowTrainingJob(tool, family, None, (str(error),), gpu_gib=gpu_gib)


def _situation_tags(row: ParsedRunRow, architecture: Architecture, ranks: int) -> set[str]:
    """List the conditions of the tool facts that apply to a row."""
    zero, precision = read_number_column(row.text, "zero_stage"), row.words["precision"]
    tags = {row.method.name, "sharded" if ranks > 1 else "single", *row.features}
    tags |= {"parts"} if read_count(row.text, "tp") * read_count(row.text, "pp") > 1 else set()
    tags |= {"stages"} if read_count(row.text, "pp") > 1 else set()
    if row.method.adapts and row.method.has_rank:
        tags |= {"lora", *(["qlora"] if "quantised" in row.features else [])}
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
    billions = architecture.params() / 1e9
    tags |= {"large"} if billions > 30 else {"3b"} if 2 < billions < 5 else {"1b"} if billions < 2 else set()
    return tags


def _choose_sharding(row: ParsedRunRow, tags: set[str], facts: Mapping[str, str], ranks: int) -> str:
    """Choose the sharding: as stated, else the tool's."""
    stages = [tag for tag in ("zero1", "zero2", "zero3", "fsdp") if tag in tags]
    sharding = stages[0] if stages else facts.get("sharding", "")
    if "zero0" in tags and facts["regime"] != "deepspeed_fp32_grads":
        sharding = ""
    if (sharding == "fsdp" and ranks == 1 and not stages) or (row.words["fsdp"] == "no" and not stages):
        sharding = ""
    return sharding


def _choose_regimes(row: ParsedRunRow, tags: set[str], facts: Mapping[str, str]) -> tuple[str, str, float]:
    """Choose the regimes of trained parameters and adapters, and bytes of a frozen weight, by the stated precision."""
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


def _has_fused_step(optimizer: str, facts: Mapping[str, str]) -> bool:
    """Whether the optimiser step has no temporary: by the optimiser's name, else the tool's default."""
    if "fused" in optimizer.lower() or optimizer.lower() in ("adamw_torch", "adamw_hf"):
        return "fused" in optimizer.lower()
    return facts.get("fused_step") == "yes"


def _keeps_scores(architecture: Architecture, words: Mapping[str, str], regime: str) -> bool:
    """Whether attention keeps its score matrix: as stated, or since no kernel supports the setting."""
    return words["attention"] == "scores" or (regime == "fp32" and architecture.kv_width < architecture.q_width)


_SWITCH_FACTS = (
    "quantised_head", "inputs_kept", "lora_fused_qkv", "step_in_backward", "gradients_freed", "ddp_buckets", "qkv_kept"
)  # fmt: skip
"""Facts of a tool that are yes or no, and fields of a training job of the same name."""
_AMOUNT_FACTS = ("loss_gib", "reduce_bucket", "allgather_bucket", "live_params", "reduce_bytes", "context_gib")
"""Facts of a tool that are numbers, and fields of a training job of the same name; 0 where they are not stated."""


def _make_row_job(
    row: ParsedRunRow, architecture: Architecture, seq: int, max_gib: float | None = None,
    family: str = "", gpu_gib: float | None = None, tool_name: str = "",
) -> RowTrainingJob:  # fmt: skip
    """Build the training job of a row, with the assumptions for settings that it does not state."""
    text, words, tool = row.text, row.words, row.tool
    parallel: dict[str, Any] = {name: read_count(text, name) for name in ("tp", "pp", "dp", "cp", "ep")}
    if words["device_map"] == "auto":
        gpus = int(read_number_column(text, "n_gpus") or 1)
        parallel |= {"tp": 1, "dp": 1, "cp": 1, "pp": min(gpus, architecture.layers or 1), "in_flight": 1}
        ranks = 1
    else:
        ranks = count_replicas(text)
        if "dp" not in text:
            parallel["dp"] = max(1, ranks // parallel["cp"])
    tags = _situation_tags(row, architecture, ranks)
    facts = resolve_tool_facts(tool, frozenset(tags))
    unsaid = not (tags & {"zero", "fsdp"}) and "zero_stage" not in text
    of_zero = facts.get("sharding", "").startswith("zero")
    if unsaid and of_zero and ("single" not in tags or row.narrow or row.full):
        tags |= {"zero", facts["sharding"]}
        tags.discard("amp")
        facts = resolve_tool_facts(tool, frozenset(tags))
    sharding = "" if words["device_map"] == "auto" else _choose_sharding(row, tags, facts, ranks)
    regime, adapter_regime, weight = _choose_regimes(row, tags, facts)
    method = row.method
    unasked = facts["lora_targets"] if "lora" in tags else "all"
    targets = method.targets or parse_targets(text.get("lora_targets", unasked))
    optimizer = words["optimizer"] or resolve_word("optimizer", facts.get("optimizer", "adamw"))
    compiled = (words["compile"] or facts.get("torch_compile")) == "yes"
    pairs = "pairs" in row.features
    accumulation = read_count(text, "grad_accum")
    if parallel["pp"] > 1 and "grad_accum" not in text and words["device_map"] != "auto":
        accumulation = parallel["pp"]
        row.note.append(
            f"grad_accum not stated: as many micro-batches are in flight as there are stages, {accumulation}"
        )
    if pairs:
        row.note.append("pairs: two sequences each, a micro-batch counts pairs")
    switches = {name: facts.get(name) == "yes" for name in _SWITCH_FACTS}
    amounts: dict[str, Any] = {name: float(facts.get(name, 0)) for name in _AMOUNT_FACTS}
    micro, rank = read_count(text, "micro_batch") * (1 + pairs), int(method.counts["rank"] or facts["lora_rank"])
    job = TrainingJob(
        architecture, seq, micro, accumulation, method.name,
        embeddings_trained="embeddings" in row.features and not row.full,
        reference=pairs, regime=regime, adapter_regime=adapter_regime,
        embedding_copy_regime=facts.get("embedding_copy_regime", adapter_regime) if regime != "fp32" else "fp32",
        optimizer=optimizer, quantization=facts.get(f"{row.narrow}_is", row.narrow), weight_bytes=weight,
        embedding_bytes=float(facts.get("embedding_bytes", 2)), selective=facts["selective"],
        sequence_parallel=facts.get("sequence_parallel") == "yes" and parallel["tp"] > 1,
        inputs_each=facts.get("lora_inputs") == "each" and row.method.adapts and not compiled,
        lora_rank=int(read_number_column(text, "lora_rank") or rank), lora_targets=targets,
        lora_dropout=facts.get("lora_dropout") != "0",
        trained_layers=min(int(read_number_column(text, "trained_layers") or method.layers), architecture.layers),
        **parallel, sharding=sharding,
        recompute=words["recompute"] or facts["recompute"], dropout=facts.get("dropout") == "yes",
        flash=not _keeps_scores(architecture, words, regime),
        offload={"none": ""}.get(words["offload"], words["offload"]),
        inputs_offloaded=facts.get("inputs_offloaded") == "yes" and not words["recompute"],
        compiled=compiled, eager=not compiled and facts["kernels"] == "eager",
        logits_bytes=float(facts["logits_bytes"]), loss_chunks=int(facts.get("loss_chunks", 1)),
        fused_step=_has_fused_step(text.get("optimizer", ""), facts),
        gradients_whole=facts.get("gradients_whole") == "yes" and sharding == "fsdp",
        composed_gelu=architecture.gelu_new and facts.get("composed_gelu") == "yes",
        frozen_gradients=facts.get("frozen_gradients") == "yes" and sharding == "fsdp",
        resharded=facts.get("resharded") != "no", meter=facts["meter"], **switches, **amounts,
        communicators=int(facts.get("communicators", 0)),
        fp8_bytes=float(facts["fp8_bytes"]) if "fp8" in tags and not row.narrow else None,
    )  # fmt: skip
    if not job.sharding and job.shards > 1 and max_gib and compute_static_gib(job) > max_gib:
        job = replace(job, sharding=resolve_tool_facts(tool, frozenset(tags | {"unplaced"})).get("sharding", "fsdp"))
        row.missing.append(f"sharding: assumed {job.sharding}, as it does not fit otherwise")
    job, alternatives = choose_unstated_settings(row, job, max_gib)
    note_assumptions(row, job)
    if job.fp8_bytes is not None:
        copies = f"{job.fp8_bytes:g} bytes a weight of copies" if job.fp8_bytes else "weights are cast in each product"
        replaced = ", in place of those of autocast" if job.fp8_bytes and has_autocast_copies(job) else ""
        row.note.append(f"fp8: {copies}{replaced}; activations counted as of 16 bit")
    if earlier := facts.get("earlier_regime"):
        alternatives = (*alternatives, replace(job, regime=earlier))
        newest = f"version of {tool}: assumed the newest of the table, which accumulates gradients in fp32"
        row.missing.append(newest)
    is_ambiguous = row.tool in TOOLS_WITHOUT_RECIPE and has_bare_precision(row) and not tags & {"pretrain", "zero"}
    readings = [
        replace(job, regime=job.regime if job.frozen else regime, adapter_regime=regime, embedding_copy_regime=regime)
        for regime in (PRECISION_READINGS if is_ambiguous else ())
    ]
    unit = 2.0**30 / 1e9 if facts["meter_unit"] == "GB" else 1.0
    if unit != 1:
        row.note.append("in GB of 1e9 bytes, as this tool's meter prints")
    missing = (*row.missing, *row.clashes)
    clashes, note = tuple(row.clashes), tuple(row.note)
    return RowTrainingJob(
        tool, family, job, missing, alternatives, note, unit, gpu_gib, clashes, max_gib, tool_name, tuple(readings)
    )


RUN_TABLE_OUTPUT_COLUMNS = ("predicted_gib", "upper_gib", "p_oom", "family", "tool", "level", "missing", "note")
"""Columns that a prediction adds to a table of runs."""
TOOL_MEASURED, TOOL_NOT_MEASURED, NOT_PREDICTED = "tool measured", "tool not measured", "not predicted"
"""Values of ``level``: the tool has measured runs; it has none; the row has no prediction."""
CLASH_LOG_RADIUS = 0.3
"""Logarithm of the factor to the 95 % bound that an unknown word or a contradiction alone would make; radii add by
squares.
"""
_ALTERNATIVE_LOG_MARGIN = 0.05
"""Logarithm of the factor by which a bound exceeds the largest peak under other values of unstated settings."""


@dataclass(frozen=True)
class PeakPrediction:
    """Prediction of one row; None where it is not possible."""

    predicted_gib: float | None
    upper_gib: float | None
    p_oom: float | None
    family: str
    tool: str
    level: str
    missing: str
    note: str


def predict_row(row_job: RowTrainingJob, model: PeakModel, *, gpu_gib: float | None = None) -> PeakPrediction:
    """Predict peak, bound and probability of running out of memory of one job.

    Examples
    --------
    >>> row = {"model": "llama-2-7b", "method": "lora", "framework": "litgpt", "seq_len": 1304, "gpu_mem_gib": 40}
    >>> predict_row(read_row_job(row), shipped_peak_model()).level
    'tool measured'
    """
    if row_job.job is None:
        words, note = "; ".join(row_job.missing), "; ".join(row_job.note)
        return PeakPrediction(None, None, None, row_job.family, row_job.tool, NOT_PREDICTED, words, note)
    parts = np.array([peak_gib(job) for job in (row_job.job, *row_job.alternatives)]) * row_job.unit
    weights = model.readings.get(row_job.label, ()) if row_job.readings else ()
    if weights:
        parts[0] = np.array(weights) @ _list_reading_parts(row_job, row_job.job)
    peaks = predict_gib(parts, model.logs(row_job.label)).tolist()
    # That every sequence is full is the largest case: the bound covers the others as it is.
    decided = all(text.startswith((*_UNDECISIVE_REMARKS, "packing: assumed")) for text in row_job.missing)
    distances = model.list_distances(
        row_job.label, is_known_tool=row_job.tool not in TOOLS_WITHOUT_RECIPE, job=row_job.job, decided=decided
    )
    if row_job.clashes:
        distances["words are unknown or contradict each other"] = CLASH_LOG_RADIUS
    radius = math.hypot(*distances.values())
    largest_alternative = max((peak * math.exp(_ALTERNATIVE_LOG_MARGIN) for peak in peaks[1:]), default=0.0)
    max_gib = gpu_gib or row_job.max_gib
    largest_alternative = min(largest_alternative, max_gib * row_job.unit if max_gib else math.inf)
    upper = max(peaks[0] * math.exp(radius), largest_alternative)
    board_gib, p_oom = gpu_gib or row_job.gpu_gib, None
    if board_gib:
        room = row_job.unit * max(board_gib - unmetered_bytes(row_job.job) / BYTES_PER_GIB, 0.01)
        p_oom, *alternatives = (model.p_oom(peak, room, radius) for peak in peaks)
        p_oom = (p_oom + sum(alternatives) / len(alternatives)) / 2 if alternatives else p_oom
    is_learned = model.has_tool(row_job.label)
    outdated = ("tool unknown", "framework: ") * is_learned + ("precision: ",) * bool(weights)
    missing, notes = (
        [text for text in texts if not text.startswith(outdated)] for texts in (row_job.missing, row_job.note)
    )
    notes.append(f"bound {upper / peaks[0]:.2f} times: {', '.join(distances)}")
    if is_learned and (score := model.accuracy.get(row_job.family)):
        notes.append(f"accuracy of {row_job.family}: {percent_text(score[0])} over {score[1]} runs of left-out sources")
    if weights:
        likely = zip(weights[1:], PRECISION_READINGS.values(), strict=True)
        notes.append(f"by your runs: {', '.join(f'{text} {percent_text(weight)}' for weight, text in likely)}")
    level = TOOL_MEASURED if is_learned else TOOL_NOT_MEASURED
    words = "; ".join(missing)
    return PeakPrediction(peaks[0], upper, p_oom, row_job.family, row_job.tool, level, words, "; ".join(notes))


def _list_reading_parts(row_job: RowTrainingJob, job: TrainingJob) -> list[list[float]]:
    """List the components of a job [GiB] as it is assumed, and under each of `PRECISION_READINGS`."""
    jobs = (job, *row_job.readings) if row_job.readings else (job,) * (1 + len(PRECISION_READINGS))
    return [[gib * row_job.unit for gib in peak_gib(read_job)] for read_job in jobs]


def predict_table(table: pl.DataFrame, model: PeakModel | None = None, *, tool: str | None = None) -> pl.DataFrame:
    """Add the columns of `RUN_TABLE_OUTPUT_COLUMNS` to a table of runs.

    Examples
    --------
    >>> table = pl.DataFrame({"model": ["llama-2-7b"], "method": ["lora"]})
    >>> predict_table(table)["missing"].to_list()
    ['seq_len: not given; add it']
    """
    model, read = model or shipped_peak_model(), [name for name in RUN_TABLE_INPUT_COLUMNS if name in table.columns]
    predictions: dict[tuple[Any, ...], PeakPrediction] = {}
    rows = table.select(read).rows() if read else [()] * len(table)
    for row in rows:
        if row not in predictions:
            predictions[row] = predict_row(read_row_job(dict(zip(read, row, strict=True)), tool=tool), model)
    schema: dict[str, Any] = dict.fromkeys(RUN_TABLE_OUTPUT_COLUMNS, pl.String)
    schema |= dict.fromkeys(RUN_TABLE_OUTPUT_COLUMNS[:3], pl.Float64)
    answers = pl.DataFrame([predictions[row] for row in rows], schema=schema).with_columns(pl.col(pl.Float64).round(4))
    return table.drop(RUN_TABLE_OUTPUT_COLUMNS, strict=False).hstack(answers)


def collect_measured_runs(
    table: pl.DataFrame, *, tool: str | None = None, change: Callable[[TrainingJob], TrainingJob] | None = None
) -> tuple[MeasuredRuns, pl.DataFrame]:
    """Collect the rows with a measured peak that can be predicted, as arrays and as a table.

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
    measured = table.with_columns(pl.col("measured_peak_gib").cast(pl.Float64, strict=False))
    measured = measured.filter(pl.col("measured_peak_gib") > 0)
    rows = [(i, row, read_row_job(row, tool=tool)) for i, row in enumerate(measured.iter_rows(named=True))]
    rows = [(i, row, row_job) for i, row, row_job in rows if row_job.job is not None]
    if not rows:
        raise TraceFormatError("runs", "rows with a measured peak", "none", "Measure some.")
    row_numbers, named_rows, row_jobs = zip(*rows, strict=True)
    jobs = [change(row_job.job) if change else row_job.job for row_job in row_jobs]
    parts = [_list_reading_parts(row_job, job) for row_job, job in zip(row_jobs, jobs, strict=True)]
    peaks = [max((sum(peak_gib(job)) for job in row_job.alternatives), default=0.0) for row_job in row_jobs]
    worst = np.array(peaks) * [row_job.unit for row_job in row_jobs] * math.exp(_ALTERNATIVE_LOG_MARGIN)
    measured = measured[list(row_numbers)]
    readings = np.moveaxis(np.array(parts), 1, 0)
    runs = MeasuredRuns(
        readings[0], measured["measured_peak_gib"].to_numpy(), tuple(read_row_job(row).label for row in named_rows),
        np.array([*map(lacks_deciding_settings, row_jobs)], dtype=np.bool_), worst,
        tuple(job.model.name for job in jobs), np.array([*map(compute_log_job_size, jobs)]),
        tuple(map(describe_training_kind, jobs)), readings,
    )  # fmt: skip
    return runs, measured


def list_unread_rows(table: pl.DataFrame) -> list[str]:
    """List rows with a measured peak from which no job can be read, with the reasons.

    Parameters
    ----------
    table : polars.DataFrame
        Runs, the first of them row 1.

    Returns
    -------
    list of str

    Examples
    --------
    >>> list_unread_rows(pl.DataFrame({"model": ["gpt2"], "measured_peak_gib": [3.0]}))
    ['row 1: seq_len: not given; add it']
    """
    if "measured_peak_gib" not in table.columns:
        return []
    faults = []
    for row_number, row in enumerate(table.iter_rows(named=True), start=1):
        if row["measured_peak_gib"] in (None, ""):
            continue
        if (row_job := read_row_job(row)).job is None:
            faults.append(f"row {row_number}: {'; '.join(row_job.missing)}")
    return faults


def lacks_deciding_settings(row_job: RowTrainingJob) -> bool:
    """Whether a row does not state settings that decide its peak."""
    return any(not text.startswith(_UNDECISIVE_REMARKS) for text in row_job.missing)


_UNDECISIVE_REMARKS = ("heads", "framework")
"""Beginnings of remarks on what is missing and hardly affects a peak."""
