"""Short dips of activity - checkpoints, evaluations, edges of data epochs - and the pace at which they come."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.phases.labels import CHECKPOINT, SHORT_S, label_spikes
from gpuplanner.phases.pace import FEWEST_EVENTS, correlation_lag, find_paces
from gpuplanner.phases.signals import IDLE_BELOW, MAD_TO_SIGMA, SPIKE, Signals, rows_of, signals_of

BRIDGED_ROWS = 2
"""Rows that do not stand out of the noise between two parts of one dip."""
GRAIN = 0.25
"""Resolution of the instant of a dip, in rows."""


@dataclass(frozen=True)
class Spikes:
    """Dips of one job.

    Parameters
    ----------
    table : polars.DataFrame
        ``start``, ``end``, ``depth`` (mean drop of SM activity), ``lost_s`` (seconds of full stop that the dip
        amounts to), ``memory_change`` and ``traffic_change`` (mean change of memory and PCIe traffic, as a
        share; null if not seen), ``label`` (one of :data:`gpuplanner.phases.SPIKE_LABELS`) and ``evidence``.
    period : timedelta or None
        Distance of the checkpoints if they are regular, else of the most frequent dips that are; else None.
    periods : dict of str to timedelta
        Label → distance of the dips of that label that are regular.
    rule : str or None
        What the period rests on: "gaps" between dips, or "autocorrelation" of the activity.
    """

    table: pl.DataFrame
    period: timedelta | None
    periods: dict[str, timedelta]
    rule: str | None


def find_spikes(samples: pl.DataFrame, *, step: timedelta | None = None) -> Spikes:
    """Find dips of SM activity that are shorter than a phase, their pace, and what they look like.

    A dip is a stretch in which activity, or activity and power together, lie 5 standard deviations of the noise
    below their level both before and after. The period is that of the chain of dips which explains most of them
    (:func:`gpuplanner.phases.pace.find_paces`), all together or short and long ones apart. Where fewer than three dips
    stand out of the noise it is the lag at which the activity is most like itself; three or more that keep no pace have
    none. Both work on readings at uneven distances. Dips with at most two
    steps between them are one.

    Parameters
    ----------
    samples : polars.DataFrame
        Table ``schemas.Samples`` of one job.
    step : timedelta, optional
        Distance at which samples are averaged; by default as in :func:`gpuplanner.phases.find_phases`.

    Returns
    -------
    Spikes
        Dips in order of time, and the period if there are enough and they are regular.

    Raises
    ------
    SchemaError
        If the samples are of several jobs.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> times = [datetime(2026, 2, 2, 9, tzinfo=UTC) + timedelta(minutes=minute) for minute in range(200)]
    >>> samples = pl.DataFrame({"time": times, "sm_activity": ([0.8] * 48 + [0.1] * 2) * 4})
    >>> samples = samples.with_columns(node=pl.lit("n1"), gpu=0, activity_source=pl.lit("profiling"))
    >>> spikes = find_spikes(samples)
    >>> spikes.table.height, spikes.period
    (3, datetime.timedelta(seconds=3000))
    """
    signals = signals_of(samples, step)
    rows = rows_of(signals)
    drop = signals.around("sm_activity", rows)["low"] - signals.table["sm_activity"]
    dips = _dips(signals, drop, rows, _traffic(samples, signals))
    grain_s = GRAIN * signals.step.total_seconds()
    short = (dips["lost_s"] <= SHORT_S).to_numpy()
    paces_of_dips = find_paces(dips["onset_s"].to_numpy(), (short, ~short), grain_s=grain_s)
    table, paces = label_spikes(dips.drop("onset_s"), paces_of_dips)
    if paces:
        periods = {label: timedelta(seconds=round(pace.period_s)) for label, pace in paces.items()}
        return Spikes(table, periods.get(CHECKPOINT, next(iter(periods.values()))), periods, "gaps")
    if dips.height >= FEWEST_EVENTS:  # dips that stand out and keep no pace have none
        return Spikes(table, None, {}, None)
    lag = correlation_lag(drop.fill_null(0.0).clip(0.0).to_numpy(), rows)
    if lag is None:
        return Spikes(table, None, {}, None)
    return Spikes(table, lag * signals.step, {}, "autocorrelation")


def spikes_of_jobs(samples: pl.DataFrame) -> pl.DataFrame:
    """Summarise the dips of every job that was sampled, by label.

    Parameters
    ----------
    samples : polars.DataFrame
        Table ``schemas.Samples``; rows without a job are left out.

    Returns
    -------
    polars.DataFrame
        ``job_id``, ``label``, ``dips``, ``every_s`` (their distance; null if not regular), ``last_s`` (median length)
        and ``lost_s`` (full stops that all of them amount to) [s], sorted by the first two.

    Examples
    --------
    >>> samples = pl.DataFrame({"sm_activity": ([0.8] * 57 + [0.05] * 3) * 6}).with_columns(
    ...     time=pl.datetime(2026, 2, 2, time_zone="UTC") + pl.duration(minutes=pl.int_range(pl.len())),
    ...     node=pl.lit("n1"), gpu=pl.lit(0), job_id=pl.lit("1"), activity_source=pl.lit("profiling"),
    ... )
    >>> spikes_of_jobs(samples).select("job_id", "label", "dips").rows()
    [('1', 'checkpoint', 5)]
    """
    rows = []
    seen = samples.filter(pl.col("job_id").is_not_null() & pl.col("sm_activity").is_not_null())
    for (job,), mine in seen.sort("job_id", "time").group_by("job_id", maintain_order=True):
        spikes = find_spikes(mine)
        last_s = (pl.col("end") - pl.col("start")).dt.total_microseconds().median() / 1e6
        by_label = spikes.table.group_by("label").agg(pl.len(), last_s, pl.col("lost_s").sum()).sort("label")
        for label, dips, length_s, lost_s in by_label.iter_rows():
            every = spikes.periods.get(label)
            rows.append(
                (job, label, dips, None if every is None else every.total_seconds(), length_s, lost_s)
            )
    columns = {"job_id": pl.String, "label": pl.String, "dips": pl.Int64}
    return pl.DataFrame(
        rows, schema=columns | dict.fromkeys(("every_s", "last_s", "lost_s"), pl.Float64), orient="row"
    )


def _dips(signals: Signals, drop: pl.Series, rows: int, traffic: pl.Series) -> pl.DataFrame:
    """One row for each stretch of low activity."""
    level = signals.around("sm_activity", rows)["low"]
    usual_memory = signals.around("memory_used_gib", rows)["low"]
    usual_traffic = traffic.rolling_median(4 * rows, min_samples=1, center=True)
    return (
        signals.table.with_columns(
            drop=drop,
            dip=_closed(_stands_out(signals, drop, rows)),
            lost=_share(drop, level).fill_null(0.0).clip(0, 1),
            memory=_share(signals.table["memory_used_gib"], usual_memory) - 1,
            traffic=_share(traffic, usual_traffic) - 1,
        )
        .with_columns(
            # A dip begins and ends within a row: the rows beside it hold the rest of what was lost.
            before=pl.col("lost").shift(1, fill_value=0.0),
            after=pl.col("lost").shift(-1, fill_value=0.0),
            at_s=pl.col("time").dt.epoch("us") / 1e6,
            stretch=pl.col("dip").rle_id(),
        )
        .filter("dip")
        .group_by("stretch", maintain_order=True)
        .agg(
            start=pl.col("time").first(),
            end=pl.col("time").last() + signals.step,
            depth=pl.col("drop").mean(),
            lost_s=(pl.col("lost").sum() + pl.col("before").first() + pl.col("after").last())
            * signals.step.total_seconds(),
            lost=pl.concat_list(pl.col("before").first(), pl.col("lost").implode(), pl.col("after").last()),
            at_s=pl.col("at_s").first(),
            memory_change=pl.col("memory").mean(),
            traffic_change=pl.col("traffic").mean(),
        )
        .with_columns(onset_s=_onset_s(signals.step.total_seconds()))
        .drop("stretch", "lost", "at_s")
    )


def _onset_s(step_s: float) -> pl.Expr:
    """When half a step of full stop was lost, or half of what was lost if that is less: finer than the readings are.

    A row holds its share of a dip that began within it. The instant comes a fixed time after the true beginning of dips
    that are alike, and its distance from one dip to the next is that of the beginnings.
    """

    def onset_s(dip: dict[str, Any]) -> float:
        lost = np.concatenate([[0.0], np.cumsum(dip["lost"])])
        rows = float(np.interp(min(0.5, lost[-1] / 2), lost, np.arange(len(lost))))
        return float(dip["at_s"] + (rows - 1) * step_s)

    return pl.struct("lost", "at_s").map_elements(onset_s, return_dtype=pl.Float64)


def _stands_out(signals: Signals, drop: pl.Series, rows: int) -> pl.Series:
    """Rows that are too low to be noise, by activity alone or with power, which falls when activity does."""
    by_activity = drop / _scatter(signals, "sm_activity", drop)
    less_power = signals.around("power_w", rows)["low"] - signals.table["power_w"]
    by_power = (less_power / _scatter(signals, "power_w", less_power)).fill_null(-math.inf)
    both = pl.DataFrame({"activity": by_activity, "power": by_power}).select(
        ((pl.col("activity") + pl.col("power")) / math.sqrt(2)).alias("both"),
        each=pl.min_horizontal("activity", "power"),
    )
    stands = (by_activity > SPIKE) | ((both["both"] > SPIKE) & (both["each"] > SPIKE / 2))
    return stands.fill_null(False) & signals.table["seen"]


def _scatter(signals: Signals, name: str, drop: pl.Series) -> float:
    """Standard deviation about the level: more than that of the noise from row to row where noise wanders."""
    active = (signals.table["sm_activity"] >= IDLE_BELOW).fill_null(False) & signals.table["seen"]
    off = drop.filter(active).drop_nulls().to_numpy()
    mad = float(np.median(np.abs(off - np.median(off)))) if len(off) else 0.0
    return max(MAD_TO_SIGMA * mad, signals.noise(name))


def _share(part: pl.Series, whole: pl.Series) -> pl.Series:
    """Part over whole; null where the whole is nothing."""
    return pl.select(pl.when(whole > 0).then(part / whole)).to_series()


def _closed(dip: pl.Series) -> pl.Series:
    """Bridge what parts a dip for at most :data:`BRIDGED_ROWS` rows."""
    rows = pl.int_range(pl.len())
    last = pl.when("dip").then(rows).forward_fill()
    following = pl.when("dip").then(rows).backward_fill()
    bridged = (following - last - 1 <= BRIDGED_ROWS).fill_null(False)
    return dip.rename("dip").to_frame().select(bridged).to_series()


def _traffic(samples: pl.DataFrame, signals: Signals) -> pl.Series:
    """PCIe traffic on the grid of the signals; null where it was not read."""
    if "pcie_gb_s" not in samples.columns:
        return pl.Series([None] * signals.table.height, dtype=pl.Float64)
    read = (
        samples.sort("time")
        .group_by_dynamic("time", every=signals.step)
        .agg(pl.col("pcie_gb_s").cast(pl.Float64).mean())
    )
    return signals.table.select("time").join(read, on="time", how="left", maintain_order="left")["pcie_gb_s"]
