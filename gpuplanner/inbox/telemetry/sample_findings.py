"""What is missing, doubled or odd in telemetry, how many rows it touches and which figures it moves."""

from __future__ import annotations

import polars as pl

from gpuplanner.errors import examples
from gpuplanner.inbox.core.findings import Finding, reject_findings
from gpuplanner.inbox.core.rows import Rows
from gpuplanner.inbox.telemetry.coverage import steps
from gpuplanner.inbox.telemetry.energy import BOARD, board_energy
from gpuplanner.inbox.telemetry.joining import AGAIN, DEVICE_KEY
from gpuplanner.inbox.telemetry.ladder import ENGINE, LEGACY, NONE

LOW_COVERAGE = 0.9
"""Share of a node's day below which its means are worth a warning."""

RUNG_WORDS = {
    LEGACY: (
        "warning",
        "activity from the legacy counter",
        "it says that some kernel ran, not that the GPU was busy: activity is too high",
    ),
    ENGINE: (
        "info",
        "activity from the engine counter",
        "it is high as soon as one kernel runs: activity is an upper bound of SM activity",
    ),
    NONE: ("warning", "no activity", "these samples are unknown, not idle: activity leaves them out"),
}

POWER_ERROR = 0.05
"""Error that the driver allows itself for the power [1]_: energies further apart are worth a warning.

References
----------
.. [1] NVIDIA, NVML API reference, nvmlDeviceGetPowerUsage: accurate to within +/- 5 % of the current power draw.
"""

GAPS = "gaps between samples"
SPARSE = f"node-days observed for less than {LOW_COVERAGE:.0%}"
TWICE = "whole GPU beside its MIG instances"
TWO_ENERGIES = "energy by the counter and by the power"
RESTARTS = "energy counter that started anew or jumped"
XIDS = "boards on which the driver saw an error (XID)"
OF_SAMPLES = frozenset(
    {GAPS, SPARSE, TWICE, TWO_ENERGIES, RESTARTS, XIDS, *(check for _, check, _ in RUNG_WORDS.values())}
)
JUDGED_BY = ("time", "node", "gpu", "instance", "power_w", "energy_counter_j", "xid", "activity_source")
"""Columns of samples that findings are made from."""


def findings(rows: Rows, samples: pl.DataFrame, days: pl.DataFrame) -> list[Finding]:
    """Everything that is checked in every source.

    Parameters
    ----------
    rows : Rows
        Rows as read, kept and rejected; ``file``, ``time`` and device of those kept.
    samples : polars.DataFrame
        Table ``schemas.Samples``.
    days : polars.DataFrame
        Table of :func:`gpuplanner.inbox.telemetry.coverage.coverage`.

    Returns
    -------
    list of Finding
        Only what holds somewhere.
    """
    return [
        *rejected(rows.rejects, rows.count),
        *of_samples(samples, days),
        *_overlaps(rows),
        *_clock_went_back(rows),
        *_file_ends(rows),
    ]


def of_samples(samples: pl.DataFrame, days: pl.DataFrame) -> list[Finding]:
    """Everything that the samples tell by themselves, whatever files they came from.

    Parameters
    ----------
    samples : polars.DataFrame
        Columns :data:`JUDGED_BY` of table ``schemas.Samples``, in its order.
    days : polars.DataFrame
        As for :func:`findings`.
    """
    return [
        *_rungs(samples),
        *_gaps(samples),
        *_low_coverage(days),
        *_counted_twice(samples),
        *_energies(samples),
        *_driver_errors(samples),
    ]


def is_of_samples(check: str) -> bool:
    """True for findings of :func:`of_samples` and :func:`rejected`, which can be made anew from the tables alone.

    Examples
    --------
    >>> is_of_samples("gaps between samples"), is_of_samples("blank lines")
    (True, False)
    """
    return check in OF_SAMPLES or check.startswith(("rejected: ", "duplicates: "))


def rejected(rejects: pl.DataFrame, rows_in: int) -> list[Finding]:
    """Count the rejected rows by reason; readings that came twice are no fault.

    Parameters
    ----------
    rejects : polars.DataFrame
        ``file``, ``row``, ``reason``, ``raw``.
    rows_in : int
        Rows of the files.
    """
    repeated = rejects.filter(pl.col("reason") == AGAIN)
    found = reject_findings(rejects.filter(pl.col("reason") != AGAIN), rows_in, ())
    if repeated.height:
        where = f"{repeated['file'][0]}, line {repeated['row'][0]}"
        effect = "none: each reading counts once"
        found.append(Finding("duplicates: " + AGAIN, "info", repeated.height, effect, where))
    return found


def _rungs(samples: pl.DataFrame) -> list[Finding]:
    counts = dict(samples.group_by("activity_source").len().iter_rows())
    return [
        Finding(check, severity, counts[rung], effect, _place(samples.filter(activity_source=rung)))
        for rung, (severity, check, effect) in RUNG_WORDS.items()
        if rung in counts
    ]


def _gaps(samples: pl.DataFrame) -> list[Finding]:
    gaps = steps(samples).filter("gap").sort("step_s", descending=True)
    if gaps.is_empty():
        return []
    node, gpu, begin, _, step_s, usual_s, _ = gaps.row(0)
    return [
        Finding(
            GAPS,
            "warning",
            gaps.height,
            f"{gaps['step_s'].sum() / 3600:.2f} GPU-hours were not observed; nothing is filled in",
            f"{node} GPU {gpu}: {step_s:.1f} s from {begin:%Y-%m-%d %H:%M:%S} UTC, usually {usual_s:.1f} s",
        )
    ]


def _low_coverage(days: pl.DataFrame) -> list[Finding]:
    low = days.filter(pl.col("covered") < LOW_COVERAGE).sort("covered", "node", "day")
    if low.is_empty():
        return []
    worst = low.row(0, named=True)
    return [
        Finding(
            SPARSE,
            "warning",
            low.height,
            "means and sums of these days stand for a part of them only",
            f"{worst['node']} on {worst['day']}: {worst['covered']:.0%}",
        )
    ]


def _overlaps(rows: Rows) -> list[Finding]:
    """Devices that two files speak of at the same time."""
    if len(rows.files) < 2:
        return []
    spans = (
        rows.good.group_by("file", *DEVICE_KEY)
        .agg(first=pl.col("time").min(), last=pl.col("time").max())
        .sort(*DEVICE_KEY, "first", "file")
        .with_columns(before=pl.col("last").cum_max().shift(1).over(DEVICE_KEY))
    )
    over = spans.filter(pl.col("first") < pl.col("before"))
    if over.is_empty():
        return []
    names = rows.file_names()
    return [
        Finding(
            "files that overlap in time",
            "warning",
            over.height,
            "readings that agree were counted once; others stand side by side in the samples",
            f"{names[over['file'][0]]} on {over['node'][0]} GPU {over['gpu'][0]}",
        )
    ]


def _clock_went_back(rows: Rows) -> list[Finding]:
    """Times that fall from one row of a device to the next in the file."""
    stream = ["file", *DEVICE_KEY, *(["metric"] if "metric" in rows.good.columns else [])]
    back = rows.good.filter((pl.col("time").diff().over(stream) < pl.duration()).fill_null(False))
    if back.is_empty():
        return []
    where = f"{rows.file_names()[back['file'][0]]}, line {back['line'][0]}"
    effect = "rows were sorted by time; those between the two clocks may be out of place"
    return [Finding("clock skew: the clock went back", "warning", back.height, effect, where)]


def _counted_twice(samples: pl.DataFrame) -> list[Finding]:
    whole, parts = (samples.filter(pl.col("instance").is_null() == flag) for flag in (True, False))
    both = whole.join(parts.select("node", "gpu").unique(), on=["node", "gpu"])
    if both.is_empty():
        return []
    effect = "observed GPU-hours count each GPU once; sum either the GPUs or their instances, not both"
    return [Finding(TWICE, "info", both.height, effect, _place(both))]


def _energies(samples: pl.DataFrame) -> list[Finding]:
    """How far the energy that the counter tells is from the integral of the power."""
    if samples["energy_counter_j"].null_count() == samples.height:
        return []
    boards, found = board_energy(samples), []
    both = boards.filter(pl.col("integrated_kwh") > 0)
    apart = pl.col("counted_kwh") / pl.col("integrated_kwh") - 1
    if both.height:
        total = both.select(pl.col("counted_kwh", "integrated_kwh").sum()).select(apart).item()
        worst = both.with_columns(apart=apart).sort(
            pl.col("apart").abs(), *BOARD, descending=[True, False, False]
        )
        node, gpu, off = worst["node", "gpu", "apart"].row(0)
        severity = "warning" if abs(off) > POWER_ERROR else "info"
        effect = f"energy is that of the counter: {total:+.2%} against the power between the samples"
        found.append(Finding(TWO_ENERGIES, severity, both.height, effect, f"{node} GPU {gpu}: {off:+.2%}"))
    anew = boards.filter(pl.col("restarts") > 0)
    if anew.height:
        effect = "energy of these steps is from the power, or what the counter tells since: a lower bound"
        example = f"{anew['node'][0]} GPU {anew['gpu'][0]}"
        found.append(Finding(RESTARTS, "info", int(anew["restarts"].sum()), effect, example))
    return found


def _driver_errors(samples: pl.DataFrame) -> list[Finding]:
    """Boards whose last XID is not 0; the number stays until the driver is loaded anew, so samples say no more."""
    errors = samples.filter(pl.col("xid") > 0)
    if errors.is_empty():
        return []
    boards = errors.select(BOARD).n_unique()
    effect = "none of itself: readings are kept as they are, but jobs on these boards may have failed or hung"
    return [Finding(XIDS, "warning", boards, effect, f"XID {errors['xid'][0]}: {_place(errors)}")]


def _file_ends(rows: Rows) -> list[Finding]:
    found = []
    names = [name for name, file in zip(rows.file_names(), rows.files, strict=True) if file.ends_open]
    if names:
        effect = "the last row may be cut short: compare with the source"
        found.append(Finding("last line without a line end", "info", len(names), effect, examples(names)))
    if rows.blank:
        found.append(Finding("blank lines", "info", rows.blank, "none: not counted as rows", ""))
    return found


def _place(samples: pl.DataFrame) -> str:
    node, gpu, time = samples.row(0, named=True)["node"], samples["gpu"][0], samples["time"][0]
    return f"{node} GPU {gpu} at {time:%Y-%m-%d %H:%M:%S} UTC"
