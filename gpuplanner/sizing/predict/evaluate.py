"""How good predictions are on measured runs, each source left out of what was learned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.errors import ScenarioError, message
from gpuplanner.sizing.predict.calibrate import Floats, Runs, few_rows, predicted_gib, source_names
from gpuplanner.sizing.predict.job import TrainingJob
from gpuplanner.sizing.predict.model import PeakModel, fit_model, own_radius, shipped_model
from gpuplanner.sizing.predict.overheads import GIB
from gpuplanner.sizing.predict.peak import COMPONENTS
from gpuplanner.sizing.predict.rows import question
from gpuplanner.sizing.predict.table import SEEN, UNSEEN, measured_runs, predict, undecided
from gpuplanner.sizing.predict.tools import ANY, tool_called

BYTES_RULE = 18.0
"""Bytes a parameter of full mixed training, as fine-tuning tools print them: hiyouga/LLaMA-Factory README.md."""

CLOSE = 0.15
_DRAWS = 20
_UNDECIDED = ("source", "model", "family", "predicted_gib", "upper_gib", "measured", "accuracy", "missing")
_SIZES = ((1.5e9, "up to 1.5B"), (10e9, "1.5B to 10B"), (50e9, "10B to 50B"), (float("inf"), "above 50B"))


def marp_gib(job: TrainingJob) -> float:
    """Frenzy's MARP as it is published: 20 bytes a parameter of a GPT-2 block, and activations, by tensor parallelism.

    ``W = V h + l (12 h² + 13 h)``, ``M = 20 W / t + s b h l (10 + 24 / t + 5 a s / (h t))`` bytes.

    Examples
    --------
    >>> from gpuplanner.sizing.predict.describe import preset
    >>> round(marp_gib(TrainingJob(preset("gpt2"), 1024)), 1)
    3.3
    """
    model = job.model
    layers, h, s, b, t = model.layers, model.hidden, job.seq, job.micro_batch, job.tp
    parameters = model.vocab * h + layers * (12 * h**2 + 13 * h)
    activations = s * b * h * layers * (10 + 24 / t + 5 * model.heads * s / (h * t))
    return (20 * parameters / t + activations) / GIB


def bytes_rule_gib(job: TrainingJob) -> float:
    """18 bytes a parameter, shared by all GPUs.

    Examples
    --------
    >>> from gpuplanner.sizing.predict.describe import preset
    >>> round(bytes_rule_gib(TrainingJob(preset("llama-2-7b"), 1024)))
    113
    """
    return BYTES_RULE * job.model.params() / job.gpus / GIB


def accuracy_of(predicted: Floats, measured: Floats) -> Floats:
    """``1 - |error| / measured``, not below 0.

    Examples
    --------
    >>> accuracy_of(np.array([9.0, 30.0]), np.array([10.0, 10.0])).tolist()
    [0.9, 0.0]
    """
    return np.maximum(0.0, 1 - np.abs(predicted - measured) / measured)


def scored(table: pl.DataFrame, leave: str | None = None) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Predict each source by knobs learned from the others.

    Parameters
    ----------
    table : polars.DataFrame
        Runs with measured peaks.
    leave : str, optional
        Only this source is left out and scored; by default each in turn. Of one source alone the shipped model's
        knobs for tools unseen are scored.

    Returns
    -------
    tuple
        One row a measured run, with ``predicted_gib``, ``upper_gib``, ``accuracy``, MARP's and the rule's; and, by
        tool, what was reached after five rows.

    Raises
    ------
    ScenarioError
        If there is no such source.
    """
    runs, held = measured_runs(table)
    names, chosen = source_names(runs), None
    if leave is not None:
        chosen = tool_called(leave)
        if chosen not in names or (chosen == ANY and leave not in table["source"].to_list()):
            text = message("--leave", f"a source among {', '.join(names)}", repr(leave), "Name one of them.")
            raise ScenarioError(text)
    predicted, upper = np.full(len(runs), np.nan), np.full(len(runs), np.nan)
    after: dict[str, Any] = {}
    for name in names:
        mine = runs.of(name)
        if chosen not in (None, name):
            continue
        model = fit_model(runs.take(~mine)) if len(names) > 1 else shipped_model()
        knobs = np.log(np.array([model.knobs[each] for each in COMPONENTS]))
        predicted[mine] = predicted_gib(runs.parts[mine], knobs)
        upper[mine] = np.maximum(predicted[mine] * np.exp(model.unseen), runs.worst[mine])
        after[name] = _after_five(runs.take(mine), knobs, model)
    jobs = [question(row) for row in held.iter_rows(named=True)]
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
        undecided=pl.Series([undecided(q) for q in jobs]),
        missing=pl.Series(["; ".join(q.missing) for q in jobs]),
    )
    return frame.filter(pl.col("predicted_gib").is_not_nan()), after


def evaluate(table: pl.DataFrame, leave: str | None = None) -> dict[str, Any]:
    """Accuracy, share within 15 %, cover and width of bounds by source, method, size and level; rules beside them.

    Parameters
    ----------
    table : polars.DataFrame
        Runs, measured or out of memory, with the columns of ``memory_measurements.csv``.
    leave : str, optional
        Score this source alone.

    Returns
    -------
    dict
        ``overall``, ``sources``, ``methods``, ``sizes``, ``levels``: one row a group; ``undecided``: the rows that
        cannot be told from their columns; ``out_of_memory``; ``not_predicted``; ``generic``: accuracy where no tool is
        known.
    """
    frame, after = scored(table, leave)
    sources = _grouped(frame, "tool")
    named = (
        dict(frame.select("tool", "source").unique("tool").iter_rows()) if "source" in frame.columns else {}
    )
    for row in sources:
        row |= {"source": named.get(row["tool"], row["tool"]), **after[row["tool"]]}
    generic, _ = measured_runs(table, tool=ANY)
    plain = accuracy_of(generic.parts.sum(axis=1), generic.measured)
    asked = [question(row) for row in table.iter_rows(named=True)]
    decided = frame.filter(~pl.col("undecided"))
    lost = sum(each.job is None for each in asked)
    return {
        "overall": _grouped(frame.with_columns(all=pl.lit("all")), "all")[0],
        "decided": _grouped(decided.with_columns(all=pl.lit("decided")), "all")[0] if len(decided) else None,
        "sources": sources,
        "methods": _grouped(frame, "family"),
        "sizes": _grouped(frame, "size"),
        "levels": _levels(frame, after),
        "generic": {"accuracy": float(plain.mean()), "rows": len(plain)},
        "not_predicted": {"rows": lost, "share": lost / max(1, len(asked))},
        "out_of_memory": _out_of_memory(table, leave),
        "undecided": frame.filter("undecided").select(name for name in _UNDECIDED if name in frame.columns).to_dicts(),
    }  # fmt: skip


def _after_five(runs: Runs, knobs: Floats, model: PeakModel) -> dict[str, float]:
    """What five random rows of the source teach, over draws: accuracy, cover and width on the rest."""
    if len(runs) < 10:
        return {}
    found = []
    for learned, rest, residuals in few_rows(runs, knobs, draws=_DRAWS, seed=1):
        predicted = predicted_gib(rest.parts, learned)
        upper = np.maximum(predicted * np.exp(own_radius(residuals, model.few)), rest.worst)
        score = accuracy_of(predicted, rest.measured).mean()
        found.append((score, (rest.measured <= upper).mean(), (upper / predicted).mean()))
    names = ("accuracy_after_five", "cover_after_five", "width_after_five")
    return dict(zip(names, np.mean(found, axis=0).tolist(), strict=True))


def _grouped(frame: pl.DataFrame, by: str) -> list[dict[str, Any]]:
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
        .to_dicts()
    )  # fmt: skip


def _levels(frame: pl.DataFrame, after: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """What each level reaches: sources that were not seen, and the same after five of their rows."""
    unseen = _grouped(frame.with_columns(level=pl.lit(UNSEEN)), "level")
    learned = [each for each in after.values() if each]
    if not learned:
        return unseen
    mean = {
        name: float(np.mean([each[f"{name}_after_five"] for each in learned]))
        for name in ("accuracy", "cover", "width")
    }
    return [*unseen, {"level": SEEN, "rows": len(frame), **mean}]


def _out_of_memory(table: pl.DataFrame, leave: str | None) -> dict[str, int]:
    """Runs that ended so, how many were said so, and how many measured above their board though said to fit."""
    runs = measured_runs(table)[0]
    said = ended = wrong = 0
    chosen = None if leave is None else tool_called(leave)
    models: dict[str, PeakModel] = {}
    status = "status" in table.columns
    for row in table.iter_rows(named=True):
        asked = question(row)
        out = status and str(row["status"] or "").lower() == "oom"
        measured = None if row.get("measured_peak_gib") in (None, "") else float(row["measured_peak_gib"])
        above = bool(measured and asked.board_gib and measured > asked.board_gib)
        if asked.job is None or not (out or above) or chosen not in (None, asked.tool):
            continue
        if asked.tool not in models:
            mine = runs.of(asked.tool)
            models[asked.tool] = (
                fit_model(runs.take(~mine)) if 0 < mine.sum() < len(runs) else shipped_model()
            )
        answer = predict(asked, models[asked.tool])
        if answer.p_oom is None or asked.board_gib is None or answer.upper_gib is None:
            continue
        ended += out
        said += out and (answer.p_oom >= 0.5 or answer.upper_gib > asked.board_gib)
        wrong += above and answer.p_oom < 0.05
    return {"rows": ended, "said": said, "above_board_said_to_fit": wrong}


def _size(job: TrainingJob) -> str:
    return next(name for limit, name in _SIZES if job.model.params() <= limit)
