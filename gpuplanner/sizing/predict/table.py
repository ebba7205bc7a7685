"""Tables of runs: predicted, and read as measured runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.sizing.predict.calibrate import Runs
from gpuplanner.sizing.predict.job import TrainingJob, extent_of, kind_of
from gpuplanner.sizing.predict.model import PeakModel, shipped_model
from gpuplanner.sizing.predict.overheads import GIB, hidden_bytes
from gpuplanner.sizing.predict.peak import COMPONENTS, peak_gib
from gpuplanner.sizing.predict.reading.rows import READ, Question, question
from gpuplanner.sizing.predict.tools import ANY

NEW = ("predicted_gib", "upper_gib", "p_oom", "family", "tool", "level", "missing", "note")
"""Columns that a prediction adds."""
SEEN, UNSEEN, NOT_PREDICTED = "tool seen", "tool unseen", "not predicted"
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


def predict(asked: Question, model: PeakModel, *, board_gib: float | None = None) -> Predicted:
    """Peak, bound and probability of running out of memory of one question.

    The bound is the 95 % quantile of measured over predicted at the level that the answer names; where something was
    not said, it also covers the other answers, as far as the board could hold them. ``p_oom`` is the share of the same
    residuals, with the tail of Student's t, that lies above the board less the context that a meter of the allocator
    does not show; the other answers count as much as the assumed one.

    Examples
    --------
    >>> row = {"model": "llama-2-7b", "method": "lora", "framework": "litgpt", "seq_len": 1304, "gpu_mem_gib": 40}
    >>> predict(question(row), shipped_model()).level
    'tool seen'
    """
    if asked.job is None:
        words = "; ".join(asked.missing)
        return Predicted(
            None, None, None, asked.family, asked.tool, NOT_PREDICTED, words, "; ".join(asked.note)
        )
    knobs = np.exp(model.logs(asked.label))
    peaks = [float(np.dot(peak_gib(job), knobs)) * asked.unit for job in (asked.job, *asked.others)]
    known, decided = asked.tool != ANY, not undecided(asked)
    radius = model.radius(asked.label, known=known, job=asked.job, decided=decided)
    radius += CLASH * bool(asked.clashes)
    others = max((peak * math.exp(_OTHER) for peak in peaks[1:]), default=0.0)
    most = board_gib or asked.most_gib
    upper = max(peaks[0] * math.exp(radius), min(others, most * asked.unit) if most else others)
    board, out = board_gib or asked.board_gib, None
    if board:
        room = asked.unit * max(board - hidden_bytes(asked.job) / GIB, 0.01)
        outs = [model.p_oom(peak, room, radius) for peak in peaks]
        out = outs[0] if len(outs) == 1 else (outs[0] + sum(outs[1:]) / len(outs[1:])) / 2
    told = list(asked.note)
    if model.seen(asked.label) and (score := model.accuracy.get(asked.family)):
        told.append(f"accuracy of {asked.family}: {score[0]:.0%} over {score[1]} runs of left-out sources")
    level = SEEN if model.seen(asked.label) else UNSEEN
    missing = "; ".join(asked.missing)
    return Predicted(peaks[0], upper, out, asked.family, asked.tool, level, missing, "; ".join(told))


def predict_table(
    table: pl.DataFrame, model: PeakModel | None = None, *, tool: str | None = None
) -> pl.DataFrame:
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
        name: pl.Series([getattr(each, name) for each in answers], dtype=pl.Float64).round(4)
        for name in NEW[:3]
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
        text = message("runs", "a column measured_peak_gib", f"{', '.join(table.columns[:5])} …", "Add it.")
        raise TraceFormatError(text)
    held = table.with_columns(pl.col("measured_peak_gib").cast(pl.Float64, strict=False)).filter(
        pl.col("measured_peak_gib") > 0
    )
    parts, worst, sources, flagged, kept, models, extent, kinds = [], [], [], [], [], [], [], []
    for number, row in enumerate(held.iter_rows(named=True)):
        asked = question(row, tool=tool)
        if asked.job is None:
            continue
        job = change(asked.job) if change else asked.job
        parts.append([gib * asked.unit for gib in peak_gib(job)])
        worst.append(
            max((sum(peak_gib(job)) * asked.unit * math.exp(_OTHER) for job in asked.others), default=0.0)
        )
        sources.append(question(row).label)
        flagged.append(undecided(asked))
        models.append(job.model.name)
        extent.append(extent_of(job))
        kinds.append(kind_of(job))
        kept.append(number)
    if not kept:
        raise TraceFormatError(message("runs", "rows with a measured peak", "none", "Measure some."))
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
    for number, row in enumerate(table.iter_rows(named=True), start=1):
        if row["measured_peak_gib"] in (None, ""):
            continue
        if (asked := question(row)).job is None:
            said.append(f"row {number}: {'; '.join(asked.missing)}")
    return said


def undecided(asked: Question) -> bool:
    """Whether a row leaves open what decides its peak: more than the heads of an architecture was assumed."""
    return any(not each.startswith(("heads", "framework")) for each in asked.missing)
