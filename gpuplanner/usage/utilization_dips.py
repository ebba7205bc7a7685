"""Short dips of GPU activity, labelled as checkpoints, evaluations or data-epoch edges, and their period."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.usage.job_phases import (
    MAD_TO_SIGMA,
    MAX_IDLE_SM_ACTIVITY,
    MIN_SPIKE_NOISE_SDS,
    Signals,
    average_signals,
    rows_of,
)
from gpuplanner.usage.rightsizing import first_text

MAX_PERIODIC_GAP_VARIATION = 0.15
"""Largest coefficient of variation of the gaps between events that count as periodic."""
MIN_PERIODIC_AUTOCORRELATION = 0.3
"""Smallest autocorrelation of a signal that counts as periodic."""
MIN_EQUAL_PEAK_FRACTION = 0.9
"""Share of the highest autocorrelation peak from which another peak counts as one of the same period [0-1]."""
MAX_EVENT_DEVIATION_OF_PERIOD_FRACTION = 0.08
"""Share of the period by which a periodic event may be early or late [0-1]."""
MAX_MISSED_EVENTS_IN_A_ROW = 2
"""Most periodic events in a row that may be missing."""
MAX_EVEN_GAP_VARIATION = 0.05
"""Largest coefficient of variation of the gaps at which all events count as one even series, without a test against
chance.
"""
MAX_FALSE_PERIOD_PROBABILITY = 0.02
"""Largest probability that events at random times show a period as regular, for a period to count."""
LOG_CHANCE_INTERCEPT, LOG_CHANCE_SLOPE_PER_EVENT = -1.4, 0.2
"""Intercept and slope by number of events of a correction to the log probability in :func:`find_pace`, fitted to 1,500
random sets of 3 to 28 events; ``benchmarks/phases.py`` measures the resulting error rate.
"""
MIN_PERIODIC_EVENTS = 3
"""Fewest events that can have a period."""
MAX_SUCCESSOR_DISTANCE_EVENTS = 6
"""Most positions by which the next periodic event may follow a given one in the list of all events."""


@dataclass(frozen=True)
class EventPace:
    """Periodic events: their period, members and spread.

    - ``period_s``: Period [s].
    - ``members``: Positions of the periodic events in the list of all events.
    - ``spread``: Coefficient of variation of the gaps between members, each divided by the number of periods in it.
    - ``log_chance``: Log of the probability that as many random events contain so regular a series.
    """

    period_s: float
    members: tuple[int, ...]
    spread: float
    log_chance: float = field(default=0.0, repr=False)


def find_pace(times_s: np.ndarray, *, grain_s: float = 1.0) -> EventPace | None:
    """Find the period of events, if they are periodic beyond chance.

    Each distance between an event and one of the next few is tried as the period, and the events are followed
    from one to the next, as a fold of the time axis would do, but with a slow drift allowed. The pace is
    the chain least likely to arise from as many events at random: each link multiplies that by the chance that
    one falls as near to its due time as the worst link of the chain did, and every chain tried is a chance more.
    The instants need not lie on a grid; `grain_s` is their resolution [s].

    Examples
    --------
    >>> find_pace(np.array([0.0, 60.0, 75.0, 120.0, 180.0, 300.0]))
    EventPace(period_s=60.0, members=(0, 1, 3, 4, 5), spread=0.0)
    >>> find_pace(np.array([0.0, 60.0, 75.0, 240.0])) is None
    True
    """
    n = len(times_s)
    periods = _candidate_periods_s(times_s)
    if n < MIN_PERIODIC_EVENTS or not periods:
        return None
    rate = n / (times_s[-1] - times_s[0])
    best_chain: tuple[float, list[int], np.ndarray] | None = None
    for period in periods:
        for first in range(min(n, MAX_SUCCESSOR_DISTANCE_EVENTS)):
            chain, steps = _follow_period(times_s, first, period)
            if len(chain) < MIN_PERIODIC_EVENTS:
                continue
            single = np.diff(times_s[chain]) / np.array(steps)
            worst = max(float(np.abs(single - np.median(single)).max()), grain_s / 2)
            chances = np.minimum(1.0, np.array(steps) * 2 * worst * rate)
            expected = float(np.log(chances).sum() - np.log(chances).max())  # one link sets the period
            if best_chain is None or expected < best_chain[0]:
                best_chain = expected, chain, single
    if best_chain is None:
        return None
    expected, chain, single = best_chain
    spread = float(single.std() / single.mean())
    expected += (
        math.log(len(periods) * min(n, MAX_SUCCESSOR_DISTANCE_EVENTS))
        + LOG_CHANCE_INTERCEPT
        + LOG_CHANCE_SLOPE_PER_EVENT * n
    )
    missing = np.ptp(np.diff(times_s)) > single.mean() / 2
    even = len(chain) == n and spread < MAX_EVEN_GAP_VARIATION and not (missing and n == MIN_PERIODIC_EVENTS)
    if spread >= MAX_PERIODIC_GAP_VARIATION or (expected >= math.log(MAX_FALSE_PERIOD_PROBABILITY) and not even):
        return None
    return EventPace(float(np.median(single)), tuple(chain), spread, expected)


MAX_PACES = 2
"""Most periods that :func:`find_paces` tells apart."""


def find_paces(times_s: np.ndarray, kinds: Sequence[np.ndarray] = (), *, grain_s: float = 1.0) -> list[EventPace]:
    """Find up to two periods of events, the least likely to be random first: of all events, or of each kind.

    Either the most regular period of all events is taken, then that of the remaining events; or the period of each kind
    of event. Of both results, the one that is less likely to be random is returned.

    Parameters
    ----------
    times_s : numpy.ndarray, shape (n,)
        Times of the events, ascending. [s]
    kinds : sequence of numpy.ndarray of bool
        Events of each kind.
    grain_s : float
        Resolution of the times. [s]

    Examples
    --------
    >>> times = np.sort([*range(0, 600, 60), *range(25, 600, 90)])
    >>> [pace.period_s for pace in find_paces(times)]
    [60.0, 90.0]
    """
    everything = np.arange(len(times_s))
    events_by_kind = [np.flatnonzero(kind) for kind in kinds]
    mixed: list[EventPace] = []
    events_left = everything
    while len(mixed) < MAX_PACES:
        sought = [events_left, *events_by_kind] if mixed else [everything]
        candidates = [_find_pace_of_subset(times_s, events, grain_s) for events in sought]
        new = [pace for pace in candidates if pace is not None and not any(_is_same_pace(pace, old) for old in mixed)]
        if not new:
            break
        best = min(new, key=lambda pace: pace.log_chance)
        mixed.append(replace(best, members=tuple(np.intersect1d(best.members, events_left).tolist())))
        events_left = np.setdiff1d(events_left, best.members)
    by_kind = [
        pace for events in events_by_kind if (pace := _find_pace_of_subset(times_s, events, grain_s)) is not None
    ]
    paces = min(mixed, by_kind, key=lambda candidates: sum(pace.log_chance for pace in candidates))
    return sorted(paces, key=lambda pace: pace.log_chance)


def _find_pace_of_subset(times_s: np.ndarray, events: np.ndarray, grain_s: float) -> EventPace | None:
    """Find the period of a subset of the events, with members numbered among all events.

    In a subset, three equidistant events are not enough, and the probability limit is lower, as there are several
    subsets.
    """
    pace = find_pace(times_s[events], grain_s=grain_s)
    if pace is None:
        return None
    all_even = len(pace.members) == len(events) > MIN_PERIODIC_EVENTS
    if len(events) < len(times_s) and not all_even and pace.log_chance >= math.log(MAX_FALSE_PERIOD_PROBABILITY / 3):
        return None
    return replace(pace, members=tuple(events[list(pace.members)].tolist()))


def _is_same_pace(pace: EventPace, other_pace: EventPace) -> bool:
    """Whether a period is another one again: a multiple of it, or one that shares a third of its events."""
    ratio = pace.period_s / other_pace.period_s
    multiple = round(ratio) > 1 and abs(ratio - round(ratio)) < MAX_EVEN_GAP_VARIATION * ratio
    return multiple or 3 * len(set(pace.members) & set(other_pace.members)) > len(pace.members)


def _candidate_periods_s(times_s: np.ndarray) -> list[float]:
    """List the periods to try: distances between each event and the next few, merged within 2 %."""
    distances = [times_s[k:] - times_s[:-k] for k in range(1, min(MAX_SUCCESSOR_DISTANCE_EVENTS, len(times_s) - 1) + 1)]
    kept: list[float] = []
    for distance in np.sort(np.concatenate(distances)) if distances else []:
        if distance > 0 and (not kept or distance > 1.02 * kept[-1]):
            kept.append(float(distance))
    return kept


def _follow_period(times_s: np.ndarray, first: int, period: float) -> tuple[list[int], list[int]]:
    """List events that follow each other at a period from the first one, and the number of periods between each two."""
    chain, steps = [first], list[int]()
    while True:
        last = times_s[chain[-1]]
        for step in range(1, MAX_MISSED_EVENTS_IN_A_ROW + 2):
            due = last + step * period
            near = int(np.abs(times_s - due).argmin())
            if near > chain[-1] and abs(times_s[near] - due) <= MAX_EVENT_DEVIATION_OF_PERIOD_FRACTION * period:
                chain.append(near)
                steps.append(step)
                break
        else:
            return chain, steps


def correlation_lag(signal: np.ndarray, shortest: int) -> int | None:
    """Find the lag [rows], at least `shortest`, with the highest autocorrelation of a signal, if it is beyond chance.

    References
    ----------
    Box, Jenkins, Reinsel, Ljung, "Time Series Analysis", 5th ed., 2016, section 2.1.5.

    Examples
    --------
    >>> correlation_lag(np.tile([1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0], 20), shortest=3)
    7
    """
    centred = signal - signal.mean()
    n, power = len(centred), float(centred @ centred)
    if n < 3 * shortest or power == 0:
        return None
    spectrum = np.abs(np.fft.rfft(centred, 2 * n)) ** 2
    correlation = np.fft.irfft(spectrum)[:n] / power * n / (n - np.arange(n))
    lags = np.arange(shortest, n // 3)
    peaks = lags[
        (correlation[lags] > MIN_PERIODIC_AUTOCORRELATION)
        & (correlation[lags] >= correlation[lags - 1])
        & (correlation[lags] >= correlation[lags + 1])
        & (correlation[2 * lags] > MIN_PERIODIC_AUTOCORRELATION / 2)
    ]
    if not len(peaks):
        return None
    # What comes back after one period does so after two: the first of the peaks that are nearly the highest.
    high = correlation[peaks] >= MIN_EQUAL_PEAK_FRACTION * correlation[peaks].max()
    return int(peaks[high][0])


CHECKPOINT, EVALUATION, EPOCH, UNEXPLAINED = "checkpoint", "evaluation", "data-epoch edge", "unexplained"
DIP_CAUSE_LABELS = (CHECKPOINT, EVALUATION, EPOCH, UNEXPLAINED)
"""Labels of dips by their likely cause.

evaluation
    Memory changes as well: other weights or batches are held while the model is tested.
checkpoint
    Memory stays; traffic to the host rises, or the dip amounts to more than a minute of full stop.
data-epoch edge
    Memory stays and the dip amounts to at most a minute of full stop: the loader begins anew.
unexplained
    Memory stays, and the dip keeps no pace.

A checkpoint that stalls for less than a minute and an edge look the same unless both occur (then the checkpoints are
the longer ones), or the traffic to the host was read; the evidence says so.
"""
MIN_EVALUATION_MEMORY_CHANGE_FRACTION = 0.05
"""Share by which memory must change for a dip to look like an evaluation."""
MIN_CHECKPOINT_PCIE_RISE_FRACTION = 0.5
"""Share by which PCIe traffic must rise for a dip to look like a checkpoint being copied to the host."""
MAX_EPOCH_EDGE_S = 60.0
"""Longest data-epoch edge: 5 to 60 seconds of a loader that begins anew."""


def label_dips(dips: pl.DataFrame, paces: Sequence[EventPace]) -> tuple[pl.DataFrame, dict[str, EventPace]]:
    """Label the dips of one job by their likely cause, with the evidence as text.

    Examples
    --------
    >>> row = {"depth": 0.5, "lost_s": 200.0, "memory_change": -0.3, "traffic_change": None}
    >>> table, _ = label_dips(pl.DataFrame([row]), [])
    >>> table.select("label", "evidence").row(0)
    ('evaluation', 'memory -30 %; 200 s of full stop; alone or irregular')
    """
    train, rhythm = [0] * dips.height, ["alone or irregular"] * dips.height
    for number, pace in enumerate(paces, start=1):
        for member in pace.members:
            train[member] = number
            rhythm[member] = f"one of {len(pace.members)} about {pace.period_s / 60:.3g} min apart"
    changes = (pl.col("memory_change").abs() >= MIN_EVALUATION_MEMORY_CHANGE_FRACTION).fill_null(False)
    rises = (pl.col("traffic_change") >= MIN_CHECKPOINT_PCIE_RISE_FRACTION).fill_null(False)
    regular = pl.col("train") > 0
    trained = dips.with_columns(pl.Series("train", train, pl.Int8), pl.Series("rhythm", rhythm, pl.String))
    trained = trained.with_columns(changes=changes)
    # What an evaluation loses says nothing about the checkpoints that keep the same pace.
    usual_lost_s = pl.col("lost_s").filter(~pl.col("changes")).median().over("train")
    long = pl.when(regular).then(usual_lost_s).otherwise("lost_s") > _max_epoch_edge_s(trained)
    cases = ((pl.col("changes"), EVALUATION), (rises | long, CHECKPOINT), (regular, EPOCH))
    label = first_text(*cases, (pl.lit(True), UNEXPLAINED))
    table = trained.with_columns(label=label).drop("changes")
    table = table.with_columns(evidence=_evidence_text(rises, several=len(paces) > 1))
    named: dict[str, EventPace] = {}
    for number, pace in enumerate(paces, start=1):
        labels = table.filter(train=number)["label"]
        plain = labels.filter(labels != EVALUATION)
        named.setdefault((plain if len(plain) else labels).mode().sort()[0], pace)
    return table.drop("train", "rhythm"), named


def _max_epoch_edge_s(trained: pl.DataFrame) -> float:
    """Find the longest data-epoch edge [s]: of two periods with dips of about a minute, the shorter dips are edges."""
    plain = trained.filter(~pl.col("changes") & (pl.col("train") > 0))
    usual_s = plain.group_by("train", maintain_order=True).agg(pl.col("lost_s").median())["lost_s"].sort().to_list()
    if (
        len(usual_s) > 1
        and usual_s[0] <= 2 * MAX_EPOCH_EDGE_S
        and (usual_s[-1] <= MAX_EPOCH_EDGE_S or usual_s[0] > MAX_EPOCH_EDGE_S)
    ):
        return float(usual_s[0])
    return MAX_EPOCH_EDGE_S


def _evidence_text(rises: pl.Expr, *, several: bool) -> pl.Expr:
    """Build the evidence of each label as text: change of memory and PCIe traffic, seconds of full stop, and period.

    `rises` tells whether PCIe traffic rose in a dip, `several` whether the job has dips with different periods.
    """

    def change_text(name: str, words: str) -> pl.Expr:
        percent = (100 * pl.col(name)).round(0).cast(pl.Int64)
        sign = pl.when(percent > 0).then(pl.lit("+")).otherwise(pl.lit(""))
        text = pl.concat_str(pl.lit(f"{words} "), sign, percent, pl.lit(" %"))
        return pl.when(pl.col(name).is_null()).then(pl.lit(f"{words} not read")).otherwise(text)

    is_ambiguous = pl.col("label").is_in([CHECKPOINT, EPOCH]) & (pl.col("lost_s") <= 2 * MAX_EPOCH_EDGE_S) & ~rises
    return pl.concat_str(
        change_text("memory_change", "memory"),
        pl.when(pl.col("traffic_change").is_not_null()).then(change_text("traffic_change", "PCIe traffic")),
        pl.format("{} s of full stop", pl.col("lost_s").round(0).cast(pl.Int64)),
        pl.col("rhythm"),
        pl.when(is_ambiguous & pl.lit(not several)).then(pl.lit("a checkpoint and an epoch edge look alike here")),
        separator="; ",
        ignore_nulls=True,
    )


MAX_ROWS_BETWEEN_PARTS_OF_A_DIP = 2
"""Most grid rows within the noise between two parts of one dip."""
DIP_TIME_RESOLUTION_ROWS = 0.25
"""Resolution of the time of a dip, in grid rows."""


@dataclass(frozen=True)
class ActivityDips:
    """Dips of SM activity of one job, with labels and periods.

    Parameters
    ----------
    table : polars.DataFrame
        ``start``, ``end``, ``depth`` (mean drop of SM activity), ``lost_s`` (seconds of full stop that the dip
        amounts to), ``memory_change`` and ``traffic_change`` (mean change of memory and PCIe traffic, as a
        share; null if not seen), ``label`` (one of :data:`gpuplanner.usage.utilization_dips.DIP_CAUSE_LABELS`) and
        ``evidence``.
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


def find_dips(samples: pl.DataFrame, *, step: timedelta | None = None) -> ActivityDips:
    """Find dips of SM activity that are shorter than a phase, their likely causes and their periods.

    A dip is a stretch in which activity, or activity and power together, lie 5 standard deviations of the noise
    below their level both before and after. The period is that of the chain of dips which explains most of them
    (:func:`gpuplanner.usage.utilization_dips.find_paces`), all together or short and long ones apart. Where fewer
    than three dips stand out of the noise it is the lag at which the activity is most like itself; three or more that
    keep no pace have none. Both work on readings at uneven distances. Dips with at most two steps between them are one.

    Parameters
    ----------
    samples : polars.DataFrame
        Table ``schemas.Samples`` of one job.
    step : timedelta, optional
        Distance at which samples are averaged; by default as in :func:`gpuplanner.usage.job_phases.find_phases`.

    Returns
    -------
    ActivityDips
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
    >>> spikes = find_dips(samples)
    >>> spikes.table.height, spikes.period
    (3, datetime.timedelta(seconds=3000))
    """
    signals = average_signals(samples, step)
    rows = rows_of(signals)
    drop = signals.around("sm_activity", rows)["low"] - signals.table["sm_activity"]
    dips = _tabulate_dips(signals, drop, rows, _pcie_traffic(samples, signals))
    grain_s = DIP_TIME_RESOLUTION_ROWS * signals.step.total_seconds()
    short = (dips["lost_s"] <= MAX_EPOCH_EDGE_S).to_numpy()
    paces_of_dips = find_paces(dips["onset_s"].to_numpy(), (short, ~short), grain_s=grain_s)
    table, paces = label_dips(dips.drop("onset_s"), paces_of_dips)
    if paces:
        periods = {label: timedelta(seconds=round(pace.period_s)) for label, pace in paces.items()}
        return ActivityDips(table, periods.get(CHECKPOINT, next(iter(periods.values()))), periods, "gaps")
    few = dips.height < MIN_PERIODIC_EVENTS  # more dips that stand out and keep no pace have none
    lag = correlation_lag(drop.fill_null(0.0).clip(0.0).to_numpy(), rows) if few else None
    if lag is None:
        return ActivityDips(table, None, {}, None)
    return ActivityDips(table, lag * signals.step, {}, "autocorrelation")


def dips_of_jobs(samples: pl.DataFrame) -> pl.DataFrame:
    """Summarize the dips of SM activity of every job with telemetry, by label.

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
    >>> dips_of_jobs(samples).select("job_id", "label", "dips").rows()
    [('1', 'checkpoint', 5)]
    """
    rows = []
    readings = samples.filter(pl.col("job_id").is_not_null() & pl.col("sm_activity").is_not_null())
    for (job,), job_samples in readings.sort("job_id", "time").group_by("job_id", maintain_order=True):
        spikes = find_dips(job_samples)
        last_s = (pl.col("end") - pl.col("start")).dt.total_microseconds().median() / 1e6
        by_label = spikes.table.group_by("label").agg(pl.len(), last_s, pl.col("lost_s").sum()).sort("label")
        for label, dips, length_s, lost_s in by_label.iter_rows():
            every = spikes.periods.get(label)
            every_s = None if every is None else every.total_seconds()
            rows.append((job, label, dips, every_s, length_s, lost_s))
    seconds = dict.fromkeys(("every_s", "last_s", "lost_s"), pl.Float64)
    schema = {"job_id": pl.String, "label": pl.String, "dips": pl.Int64, **seconds}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _tabulate_dips(signals: Signals, drop: pl.Series, rows: int, traffic: pl.Series) -> pl.DataFrame:
    """Tabulate the dips of one job: begin, end, depth, seconds of full stop, and changes of memory and traffic.

    Parameters
    ----------
    signals : Signals
        Signals of the job.
    drop : polars.Series
        Drop of SM activity below its level, by grid row. [0-1]
    rows : int
        Grid rows of the shortest phase.
    traffic : polars.Series
        PCIe traffic, by grid row. [GB/s]
    """
    level = signals.around("sm_activity", rows)["low"]
    usual_memory = signals.around("memory_used_gib", rows)["low"]
    usual_traffic = traffic.rolling_median(4 * rows, min_samples=1, center=True)
    return (
        signals.table.with_columns(
            drop=drop,
            dip=_bridge_gaps(_is_below_noise(signals, drop, rows)),
            lost=_divide_series(drop, level).fill_null(0.0).clip(0, 1),
            memory=_divide_series(signals.table["memory_used_gib"], usual_memory) - 1,
            traffic=_divide_series(traffic, usual_traffic) - 1,
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
    """Find when a dip began, finer than the step of the readings: when half a step of full activity was lost.

    A row holds its share of a dip that began within it. The instant comes a fixed time after the true beginning of dips
    that are alike, and its distance from one dip to the next is that of the beginnings.
    """

    def onset_s(dip: dict[str, Any]) -> float:
        lost = np.concatenate([[0.0], np.cumsum(dip["lost"])])
        rows = float(np.interp(min(0.5, lost[-1] / 2), lost, np.arange(len(lost))))
        return float(dip["at_s"] + (rows - 1) * step_s)

    return pl.struct("lost", "at_s").map_elements(onset_s, return_dtype=pl.Float64)


def _is_below_noise(signals: Signals, drop: pl.Series, rows: int) -> pl.Series:
    """Mark grid rows whose activity (`drop` below its level), alone or with power, is too low to be noise.

    `rows` is the number of grid rows of the shortest phase.
    """
    by_activity = drop / _deviation_about_level(signals, "sm_activity", drop)
    less_power = signals.around("power_w", rows)["low"] - signals.table["power_w"]
    by_power = (less_power / _deviation_about_level(signals, "power_w", less_power)).fill_null(-math.inf)
    both = pl.DataFrame({"activity": by_activity, "power": by_power}).select(
        ((pl.col("activity") + pl.col("power")) / math.sqrt(2)).alias("both"),
        each=pl.min_horizontal("activity", "power"),
    )
    by_both = (both["both"] > MIN_SPIKE_NOISE_SDS) & (both["each"] > MIN_SPIKE_NOISE_SDS / 2)
    stands = (by_activity > MIN_SPIKE_NOISE_SDS) | by_both
    return stands.fill_null(False) & signals.table["seen"]


def _deviation_about_level(signals: Signals, name: str, drop: pl.Series) -> float:
    """Estimate the standard deviation of a signal about its level (from its `drop` below it): noise and slow drift."""
    active = (signals.table["sm_activity"] >= MAX_IDLE_SM_ACTIVITY).fill_null(False) & signals.table["seen"]
    off = drop.filter(active).drop_nulls().to_numpy()
    mad = float(np.median(np.abs(off - np.median(off)))) if len(off) else 0.0
    return max(MAD_TO_SIGMA * mad, signals.noise(name))


def _divide_series(part: pl.Series, whole: pl.Series) -> pl.Series:
    """Divide two series; null where the divisor is 0."""
    return pl.select(pl.when(whole > 0).then(part / whole)).to_series()


def _bridge_gaps(dip: pl.Series) -> pl.Series:
    """Merge parts of a dip that are at most :data:`MAX_ROWS_BETWEEN_PARTS_OF_A_DIP` rows apart."""
    rows = pl.int_range(pl.len())
    last = pl.when("dip").then(rows).forward_fill()
    following = pl.when("dip").then(rows).backward_fill()
    bridged = (following - last - 1 <= MAX_ROWS_BETWEEN_PARTS_OF_A_DIP).fill_null(False)
    return dip.rename("dip").to_frame().select(bridged).to_series()


def _pcie_traffic(samples: pl.DataFrame, signals: Signals) -> pl.Series:
    """Average PCIe traffic [GB/s] over each step of the signals' time grid; null where it was not read."""
    if "pcie_gb_s" not in samples.columns:
        return pl.Series([None] * signals.table.height, dtype=pl.Float64)
    steps = samples.sort("time").group_by_dynamic("time", every=signals.step)
    read = steps.agg(pl.col("pcie_gb_s").cast(pl.Float64).mean())
    return signals.table.select("time").join(read, on="time", how="left", maintain_order="left")["pcie_gb_s"]
