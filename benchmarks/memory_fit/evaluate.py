"""How good predictions are on measured runs, each source left out of what was learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, fields
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.core.errors import ScenarioError, format_message
from gpuplanner.core.serialization import to_plain
from gpuplanner.sizing.learned_memory import (
    Floats,
    MeasuredRuns,
    PeakModel,
    combine_radius,
    list_sources,
    predict_gib,
    shipped_peak_model,
)
from gpuplanner.sizing.memory_components import BYTES_PER_GIB, PEAK_MEMORY_COMPONENTS
from gpuplanner.sizing.training_job import GENERIC_TOOL, TrainingJob, find_tool
from gpuplanner.sizing.training_run_tables import (
    TOOL_MEASURED,
    TOOL_NOT_MEASURED,
    collect_measured_runs,
    lacks_deciding_settings,
    predict_row,
    read_row_job,
)
from memory_fit.fitting import few_rows, fit_model

BYTES_RULE = 18.0
"""Bytes a parameter of full mixed training, as fine-tuning tools print them: hiyouga/LLaMA-Factory README.md."""

CLOSE = 0.15
_DRAWS = 20
_UNDECIDED = ("source", "model", "family", "predicted_gib", "upper_gib", "measured", "accuracy", "missing")
_SIZES = ((1.5e9, "up to 1.5B"), (10e9, "1.5B to 10B"), (50e9, "10B to 50B"), (float("inf"), "above 50B"))


@dataclass(frozen=True)
class PeakScore:
    """How good predictions are on some runs: accuracy and share within 15 %, and cover and width of the bounds.

    ``marp`` and ``bytes_per_parameter`` are the accuracy of the published rules on the same runs.
    """

    rows: int
    accuracy: float
    within_15_percent: float
    cover: float
    width: float
    marp: float
    bytes_per_parameter: float


@dataclass(frozen=True)
class AfterFive:
    """What five random rows of a source teach: accuracy, cover and width on its other rows, over draws."""

    accuracy_after_five: float
    cover_after_five: float
    width_after_five: float


@dataclass(frozen=True)
class RowShare:
    """Some rows, and which share of all they are."""

    rows: int
    share: float


@dataclass(frozen=True)
class GenericScore:
    """Accuracy, cover and width where no tool is known: each source left out, and the facts about its tool."""

    accuracy: float
    rows: int
    cover: float
    width: float


@dataclass(frozen=True)
class OutOfMemory:
    """Runs that ended so, how many were said so, and how many measured above their board though said to fit."""

    rows: int
    said: int
    above_board_said_to_fit: int


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How good predictions are on measured runs: of all, and of those whose columns tell what decides their peak.

    Tables have the columns of :class:`PeakScore`, one row a group; that of sources also those of :class:`AfterFive`.
    ``strangers`` and ``generic`` are with the facts about the tool taken away as well; ``not_predicted`` counts rows
    from which no job can be read, and ``lacks_deciding_settings`` holds those that cannot be told from their columns.
    """

    overall: PeakScore
    decided: PeakScore | None
    sources: pl.DataFrame
    methods: pl.DataFrame
    sizes: pl.DataFrame
    levels: pl.DataFrame
    strangers: pl.DataFrame
    generic: GenericScore
    not_predicted: RowShare
    out_of_memory: OutOfMemory
    undecided: pl.DataFrame

    def to_dict(self) -> dict[str, Any]:
        """All of it for JSON; what does not apply to a row is left out."""
        plain = {field.name: to_plain(getattr(self, field.name)) for field in fields(self)}
        for name in ("sources", "levels"):
            plain[name] = [{key: value for key, value in row.items() if value is not None} for row in plain[name]]
        return plain


def marp_gib(job: TrainingJob) -> float:
    """Frenzy's MARP as it is published: 20 bytes a parameter of a GPT-2 block, and activations, by tensor parallelism.

    ``W = V h + l (12 h² + 13 h)``, ``M = 20 W / t + s b h l (10 + 24 / t + 5 a s / (h t))`` bytes.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import load_preset
    >>> round(marp_gib(TrainingJob(load_preset("gpt2"), 1024)), 1)
    3.3
    """
    model = job.model
    layers, h, s, b, t = model.layers, model.hidden, job.seq, job.micro_batch, job.tp
    parameters = model.vocab * h + layers * (12 * h**2 + 13 * h)
    activations = s * b * h * layers * (10 + 24 / t + 5 * model.heads * s / (h * t))
    return (20 * parameters / t + activations) / BYTES_PER_GIB


def bytes_rule_gib(job: TrainingJob) -> float:
    """18 bytes a parameter, shared by all GPUs.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import load_preset
    >>> round(bytes_rule_gib(TrainingJob(load_preset("llama-2-7b"), 1024)))
    113
    """
    return BYTES_RULE * job.model.params() / job.n_gpus / BYTES_PER_GIB


def accuracy_of(predicted: Floats, measured: Floats) -> Floats:
    """``1 - |error| / measured``, not below 0.

    Examples
    --------
    >>> accuracy_of(np.array([9.0, 30.0]), np.array([10.0, 10.0])).tolist()
    [0.9, 0.0]
    """
    return np.maximum(0.0, 1 - np.abs(predicted - measured) / measured)


def scored(table: pl.DataFrame, leave: str | None = None) -> tuple[pl.DataFrame, dict[str, AfterFive]]:
    """Predict each source by multipliers learned from the others.

    Parameters
    ----------
    table : polars.DataFrame
        Runs with measured peaks.
    leave : str, optional
        Only this source is left out and scored; by default each in turn. Of one source alone the shipped model's
        multipliers for tools unseen are scored.

    Returns
    -------
    tuple
        One row a measured run, with ``predict_gib``, ``upper_gib``, ``accuracy``, MARP's and the rule's; and, by
        tool, what was reached after five rows.

    Raises
    ------
    ScenarioError
        If there is no such source.
    """
    runs, held = collect_measured_runs(table)
    generic, names, chosen = collect_measured_runs(table, tool=GENERIC_TOOL)[0], list_sources(runs), None
    if leave is not None:
        chosen = _label(leave)
        if chosen not in names:
            text = format_message("--leave", f"a source among {', '.join(names)}", repr(leave), "Name one of them.")
            raise ScenarioError(text)
    predicted, upper = np.full(len(runs), np.nan), np.full(len(runs), np.nan)
    after: dict[str, AfterFive] = {}
    for name in names:
        mine = runs.is_from(name)
        if chosen not in (None, name):
            continue
        others = ~mine
        rest = fit_model(runs.select(others), generic=generic.select(others)) if len(names) > 1 else None
        model = rest or shipped_peak_model()
        multipliers = np.log(np.array([model.multipliers[each] for each in PEAK_MEMORY_COMPONENTS]))
        predicted[mine] = predict_gib(runs.parts[mine], multipliers)
        upper[mine] = np.maximum(predicted[mine] * np.exp(model.unseen), runs.worst[mine])
        if (learned := _after_five(runs.select(mine), multipliers, model)) is not None:
            after[name] = learned
    jobs = [read_row_job(row) for row in held.iter_rows(named=True)]
    frame = held.with_columns(
        tool=pl.Series(runs.sources),
        predicted_gib=predicted,
        upper_gib=upper,
        accuracy=accuracy_of(predicted, runs.measured),
        measured=runs.measured,
        marp=accuracy_of(np.array([marp_gib(q.job) for q in jobs if q.job]), runs.measured),
        bytes_rule=accuracy_of(np.array([bytes_rule_gib(q.job) for q in jobs if q.job]), runs.measured),
        family=pl.Series([q.family for q in jobs]),
        size=pl.Series([_size(q.job) for q in jobs if q.job]),
        undecided=pl.Series([lacks_deciding_settings(q) for q in jobs]),
        missing=pl.Series(["; ".join(q.missing) for q in jobs]),
    )
    return frame.filter(pl.col("predicted_gib").is_not_nan()), after


def evaluate(table: pl.DataFrame, leave: str | None = None) -> Evaluation:
    """Accuracy, share within 15 %, cover and width of bounds by source, method, size and level; rules beside them.

    Parameters
    ----------
    table : polars.DataFrame
        Runs, measured or out of memory, with the columns of ``memory_measurements.csv``.
    leave : str, optional
        PeakScore this source alone.

    Returns
    -------
    Evaluation
    """
    frame, after = scored(table, leave)
    named = "source" if "source" in frame.columns else "tool"
    learned = pl.DataFrame(
        [{"tool": name, **asdict(one)} for name, one in after.items()],
        schema={"tool": pl.String} | {each.name: pl.Float64 for each in fields(AfterFive)},
    )
    sources = (
        _grouped(frame, "tool")
        .join(frame.select("tool", source=pl.col(named)).unique("tool"), on="tool", how="left", maintain_order="left")
        .join(learned, on="tool", how="left", maintain_order="left")
    )
    strangers = _strangers(table, frame["tool"].unique().sort().to_list())
    asked = [read_row_job(row) for row in table.iter_rows(named=True)]
    decided = frame.filter(~pl.col("undecided"))
    lost = sum(each.job is None for each in asked)
    return Evaluation(
        _score(frame), _score(decided) if len(decided) else None,
        sources, _grouped(frame, "family"), _grouped(frame, "size"), _levels(frame, after),
        _grouped(strangers, "tool").drop("marp", "bytes_per_parameter"), _generic(strangers),
        RowShare(lost, lost / max(1, len(asked))),
        _out_of_memory(table, leave),
        frame.filter("undecided").select(name for name in _UNDECIDED if name in frame.columns),
    )  # fmt: skip


def _strangers(table: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """Each source predicted without it and without the facts about its tool."""
    runs, read = collect_measured_runs(table)[0], collect_measured_runs(table, tool=GENERIC_TOOL)[0]
    found = []
    for name in names:
        mine = runs.is_from(name)
        rest, own = runs.select(~mine), read.select(mine)
        model = fit_model(rest, generic=read.select(~mine)) if len(rest) else shipped_peak_model()
        predicted = predict_gib(own.parts, model.logs(GENERIC_TOOL))
        radius = np.where(own.flagged, model.generic, model.radius(GENERIC_TOOL, is_known_tool=False, decided=True))
        upper = np.maximum(predicted * np.exp(radius), own.worst)
        score = {"accuracy": accuracy_of(predicted, own.measured), "marp": 0.0, "bytes_rule": 0.0}
        columns = {"predicted_gib": predicted, "upper_gib": upper, "measured": own.measured, **score}
        found.append(pl.DataFrame(columns).with_columns(tool=pl.lit(name)))
    return pl.concat(found)


def _generic(strangers: pl.DataFrame) -> GenericScore:
    score = _score(strangers)
    return GenericScore(score.accuracy, score.rows, score.cover, score.width)


def _after_five(runs: MeasuredRuns, multipliers: Floats, model: PeakModel) -> AfterFive | None:
    """What five random rows of the source teach; None if it has too few others."""
    if len(runs) < 10:
        return None
    found = []
    for learned, rest, residuals in few_rows(runs, multipliers, draws=_DRAWS, seed=1):
        predicted = predict_gib(rest.parts, learned)
        upper = np.maximum(predicted * np.exp(combine_radius(residuals, model.few)), rest.worst)
        score = accuracy_of(predicted, rest.measured).mean()
        found.append((score, (rest.measured <= upper).mean(), (upper / predicted).mean()))
    return AfterFive(*np.mean(found, axis=0).tolist())


def _score(frame: pl.DataFrame) -> PeakScore:
    return PeakScore(*_grouped(frame.with_columns(all=pl.lit("all")), "all").drop("all").row(0))


def _grouped(frame: pl.DataFrame, by: str) -> pl.DataFrame:
    within = (pl.col("predicted_gib") / pl.col("measured") - 1).abs() <= CLOSE
    return (
        frame.group_by(by)
        .agg(
            rows=pl.len(), accuracy=pl.col("accuracy").mean(), within_15_percent=within.mean(),
            cover=(pl.col("measured") <= pl.col("upper_gib")).mean(),
            width=(pl.col("upper_gib") / pl.col("predicted_gib")).mean(),
            marp=pl.col("marp").mean(), bytes_per_parameter=pl.col("bytes_rule").mean(),
        )
        .sort(by)
    )  # fmt: skip


def _levels(frame: pl.DataFrame, after: Mapping[str, AfterFive]) -> pl.DataFrame:
    """What each level reaches: sources that were not seen, and the same after five of their rows."""
    unseen = _grouped(frame.with_columns(level=pl.lit(TOOL_NOT_MEASURED)), "level")
    if not after:
        return unseen
    means = np.mean([astuple(each) for each in after.values()], axis=0)
    seen = pl.DataFrame(
        {"level": TOOL_MEASURED, "rows": len(frame), **dict(zip(("accuracy", "cover", "width"), means, strict=True))}
    )
    return pl.concat([unseen, seen.cast({"rows": unseen.schema["rows"]})], how="diagonal")


def _out_of_memory(table: pl.DataFrame, leave: str | None) -> OutOfMemory:
    runs = collect_measured_runs(table)[0]
    said = ended = wrong = 0
    chosen = None if leave is None else _label(leave)
    models: dict[str, PeakModel] = {}
    status = "status" in table.columns
    for row in table.iter_rows(named=True):
        asked = read_row_job(row)
        out = status and str(row["status"] or "").lower() == "oom"
        measured = None if row.get("measured_peak_gib") in (None, "") else float(row["measured_peak_gib"])
        above = bool(measured and asked.gpu_gib and measured > asked.gpu_gib)
        if asked.job is None or not (out or above) or chosen not in (None, asked.label):
            continue
        if asked.label not in models:
            mine = runs.is_from(asked.label)
            models[asked.label] = fit_model(runs.select(~mine)) if 0 < mine.sum() < len(runs) else shipped_peak_model()
        answer = predict_row(asked, models[asked.label])
        if answer.p_oom is None or asked.gpu_gib is None or answer.upper_gib is None:
            continue
        ended += out
        said += out and (answer.p_oom >= 0.5 or answer.upper_gib > asked.gpu_gib)
        wrong += above and answer.p_oom < 0.05
    return OutOfMemory(ended, said, wrong)


def _label(name: str) -> str:
    """Under what runs of a source are learned: its tool, or its own name."""
    tool = find_tool(name)
    return name.lower() if tool == GENERIC_TOOL else tool


def _size(job: TrainingJob) -> str:
    return next(name for limit, name in _SIZES if job.model.params() <= limit)
