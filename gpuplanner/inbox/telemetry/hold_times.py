"""How long a reading holds: until the next one of its series, and before a gap for one usual step.

Ledger, coverage, energy and join report take these spans, so that they agree whatever the interval between readings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from gpuplanner.inbox.telemetry.readers.metrics import GAP_FACTOR
from gpuplanner.inbox.telemetry.spill import Codes

MAX_STEP_S = 3600.0
"""Longest step between two readings that is no gap."""
DAY_US = 86_400_000_000
HOLD_DEVICE = ("node", "gpu", "instance")


@dataclass(frozen=True)
class HoldTimes:
    """Spans of readings, in the order of the readings.

    - ``until_us``: End of the span; the reading's own time where the series has no usual step.
    - ``usual_us``: Usual step, 0 where none is known.
    - ``gap``: True where the next reading of the series comes too late.
    """

    until_us: np.ndarray
    usual_us: np.ndarray
    gap: np.ndarray


def hold_times(
    series: np.ndarray,
    time_us: np.ndarray,
    *,
    max_step_s: float | None = None,
    known_us: np.ndarray | None = None,
) -> HoldTimes:
    """Find until when each reading holds.

    The usual step of a series is the median of its steps of at most :data:`MAX_STEP_S` that end on the UTC day, else
    that of the last day before. A series of one reading has no usual step: the reading holds for no time.

    Parameters
    ----------
    series : numpy.ndarray, shape (n,)
        Number of the series of each reading, ascending.
    time_us : numpy.ndarray, shape (n,)
        Time of each reading, ascending within its series [us].
    max_step_s : float, optional
        Longest step that is no gap; by default 2.5 times the usual step, at most :data:`MAX_STEP_S` [s].
    known_us : numpy.ndarray, shape (n_series,), optional
        Usual step of each series before the first reading, 0 where none is known [us].

    Examples
    --------
    Every 10 minutes, then nothing for 2 hours:

    >>> minutes = np.array([0, 10, 20, 140, 150])
    >>> held = hold_times(np.zeros(5, int), minutes * 60_000_000)
    >>> (held.until_us // 60_000_000).tolist(), held.gap.tolist()
    ([10, 20, 30, 150, 160], [False, False, True, False, False])
    """
    rows = len(time_us)
    if not rows:
        return HoldTimes(time_us, time_us, np.zeros(0, bool))
    goes_on = np.append(series[1:] == series[:-1], False)
    step_us = np.where(goes_on, np.append(time_us[1:], 0) - time_us, 0)
    ends_on = np.where(goes_on, np.append(time_us[1:], 0), time_us) // DAY_US
    head = np.ones(rows, bool)
    head[1:] = (series[1:] != series[:-1]) | (ends_on[1:] != ends_on[:-1])
    day = np.cumsum(head) - 1
    usual_us = _usual_steps(series[head], day, step_us, known_us)[day]
    limit_us = np.minimum(GAP_FACTOR * usual_us, MAX_STEP_S * 1e6) if max_step_s is None else max_step_s * 1e6
    gap = goes_on & (step_us > limit_us)
    ends = ~goes_on | gap
    until_us = time_us + np.where(
        ends, usual_us if max_step_s is None else np.minimum(usual_us, limit_us), step_us
    )
    return HoldTimes(until_us.astype(np.int64), usual_us, gap)


def _usual_steps(
    series: np.ndarray, day: np.ndarray, step_us: np.ndarray, known_us: np.ndarray | None
) -> np.ndarray:
    """Usual step of each series on each of its days, which follow each other."""
    valid = (step_us > 0) & (step_us <= MAX_STEP_S * 1e6)
    medians = (
        pl.DataFrame({"day": day[valid], "step": step_us[valid]}).group_by("day").agg(pl.col("step").median())
    )
    usual = np.full(len(series), np.nan)
    usual[medians["day"].to_numpy()] = medians["step"].to_numpy()
    if known_us is not None:
        first = np.flatnonzero(np.append(True, series[1:] != series[:-1]))
        before = known_us[series[first]]
        usual[first] = np.where(np.isnan(usual[first]) & (before > 0), before, usual[first])
    table = pl.DataFrame({"series": series, "usual": pl.Series(usual, nan_to_null=True)})
    filled = table.select(pl.col("usual").forward_fill().over("series").fill_null(0.0))
    usual_us: np.ndarray = np.rint(filled["usual"].to_numpy()).astype(np.int64)
    return usual_us


def held_readings(
    readings: pl.DataFrame, by: Sequence[str], *, max_step_s: float | None = None
) -> pl.DataFrame:
    """Add until when each reading holds, sorted by series and time.

    Parameters
    ----------
    readings : polars.DataFrame
        ``time`` and the columns `by`; with ``usual_us``, the usual step of the series as known before, or 0 [us].
    by : sequence of str
        Columns that tell series apart.
    max_step_s : float, optional
        As for :func:`hold_times`.

    Returns
    -------
    polars.DataFrame
        The readings with ``series`` (its number), ``until``, ``usual_us``, ``gap`` (the next one comes too late) and
        ``last`` (there is no next one).

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> read = pl.DataFrame({"time": [noon, noon + timedelta(minutes=5)], "node": "n1"})
    >>> held_readings(read, ["node"]).select(pl.col("until").dt.minute(), "last").rows()
    [(5, False), (10, True)]
    """
    instant = pl.Datetime("us", "UTC")
    readings = readings.with_columns(
        pl.col("time").cast(instant), series=pl.Series(Codes(tuple(by)).of(readings).astype(np.int64))
    ).sort("series", "time", maintain_order=True)
    series, time_us = readings["series"].to_numpy(), readings["time"].to_physical().to_numpy()
    known_us = None
    if "usual_us" in readings.columns:
        known_us = (
            readings.group_by("series").agg(pl.col("usual_us").max()).sort("series")["usual_us"].to_numpy()
        )
    held = hold_times(series, time_us, max_step_s=max_step_s, known_us=known_us)
    return readings.with_columns(
        until=pl.Series(held.until_us).cast(instant),
        usual_us=pl.Series(held.usual_us),
        gap=pl.Series(held.gap),
        last=(pl.col("series") != pl.col("series").shift(-1)).fill_null(True),
    )


def with_until(samples: pl.DataFrame) -> pl.DataFrame:
    """Fill ``until``, the end of the time for which each sample holds, of samples in any order.

    It is left as it is where all samples have it. Samples with activity hold until the next one with activity,
    whatever else is read of the device meanwhile.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> read = {"time": [noon, noon + timedelta(minutes=1), noon + timedelta(minutes=5)], "node": "n1", "gpu": 0}
    >>> samples = pl.DataFrame(read | {"instance": None, "sm_activity": [0.5, None, 0.4]})
    >>> with_until(samples).select(pl.col("until").dt.minute()).to_series().to_list()
    [5, 1, 10]
    """
    if "until" in samples.columns and not samples["until"].null_count():
        return samples
    absent = [pl.lit(None).alias(name) for name in ("instance", "sm_activity") if name not in samples.columns]
    keyed = samples.with_columns(absent).select(
        *HOLD_DEVICE, "time", has_activity=pl.col("sm_activity").is_not_null(), row=pl.int_range(pl.len())
    )
    until = held_readings(keyed, [*HOLD_DEVICE, "has_activity"]).sort("row")["until"]
    return samples.with_columns(until)
