"""What is missing, doubled or odd in telemetry, how many rows it touches and which figures it moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from gpuplanner.inbox.core.findings import Finding, reasons_of, reject_findings
from gpuplanner.inbox.core.source_checks import check_words, source_finding
from gpuplanner.inbox.telemetry.coverage import Device, Gaps, Seen, seen_of
from gpuplanner.inbox.telemetry.energy import BOARD
from gpuplanner.inbox.telemetry.joining import AGAIN
from gpuplanner.inbox.telemetry.metric_ladder import ENGINE, LEGACY, NO_COUNTER
from gpuplanner.inbox.telemetry.spill import device_order

LOW_COVERAGE = 0.9
"""Share of a node's day below which its means are worth a warning; ``source_checks.csv`` says so in words."""

RUNGS_BELOW = (LEGACY, ENGINE, NO_COUNTER)
"""Rungs of the ladder that are worth a finding."""

POWER_ERROR = 0.05
"""Error that the driver allows itself for the power [1]_: energies further apart are worth a warning.

References
----------
.. [1] NVIDIA, NVML API reference, nvmlDeviceGetPowerUsage: accurate to within +/- 5 % of the current power draw.
"""

GAPS = "gaps between samples"
TWO_ENERGIES = "energy by the counter and by the power"
SAMPLE_CHECKS = ("sparse days", "counted twice", "counter restarts", "XID")
OF_SAMPLES = {
    *(GAPS, TWO_ENERGIES),
    *(check_words(f"samples: {name}") for name in SAMPLE_CHECKS),
    *(check_words(f"activity: {rung}") for rung in RUNGS_BELOW),
}
JUDGED_BY = ("time", "node", "gpu", "instance", "power_w", "energy_counter_j", "xid", "activity_source")
"""Columns of samples that findings are made from."""


def of_samples(samples: pl.DataFrame, days: pl.DataFrame) -> list[Finding]:
    """Everything that the samples tell by themselves, whatever files they came from."""
    return of_seen(seen_of(samples), days)


def of_seen(seen: Seen, days: pl.DataFrame) -> list[Finding]:
    """Findings of :func:`of_samples`, of samples that were seen."""
    return [
        *_rungs(seen),
        *_gaps(seen.gaps),
        *_low_coverage(days),
        *_counted_twice(seen),
        *_energies(seen.energies),
        *_driver_errors(seen),
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
    """Count the rejected rows by reason; readings that came twice are no fault."""
    repeated = rejects.filter(pl.col("reason") == AGAIN)
    found = reject_findings(reasons_of(rejects.filter(pl.col("reason") != AGAIN)), rows_in, ())
    if repeated.height:
        where = f"{repeated['file'][0]}, line {repeated['row'][0]}"
        effect = "none: each reading counts once"
        found.append(Finding("duplicates: " + AGAIN, "info", repeated.height, effect, where))
    return found


def _rungs(seen: Seen) -> list[Finding]:
    return [
        source_finding(f"activity: {rung}", seen.rungs[rung][0], str(seen.rungs[rung][1]))
        for rung in RUNGS_BELOW
        if rung in seen.rungs
    ]


def _gaps(gaps: Gaps) -> list[Finding]:
    if gaps.longest is None:
        return []
    node, gpu, begin, step_s, usual_s = gaps.longest
    return [
        Finding(
            GAPS,
            "warning",
            gaps.count,
            f"{gaps.total_us / 3.6e9:.2f} GPU-hours were not observed; nothing is filled in",
            f"{node} GPU {gpu}: {step_s:.1f} s from {begin:%Y-%m-%d %H:%M:%S} UTC, usually {usual_s:.1f} s",
            gaps.total_us / 3.6e9,
        )
    ]


def _low_coverage(days: pl.DataFrame) -> list[Finding]:
    low = days.filter(pl.col("covered") < LOW_COVERAGE).sort("covered", "node", "day")
    if low.is_empty():
        return []
    worst = low.row(0, named=True)
    example = f"{worst['node']} on {worst['day']}: {worst['covered']:.0%}"
    return [source_finding("samples: sparse days", low.height, example)]


def overlaps(
    spans: Mapping[tuple[int, int], tuple[int, int]], devices: Sequence[Device], names: Sequence[str]
) -> list[Finding]:
    """Devices that two files speak of at the same time."""
    if len(names) < 2:
        return []
    ordered = sorted(
        (*device_order(devices[device]), first, file, last) for (file, device), (first, last) in spans.items()
    )
    over, known, until = [], None, 0
    for node, gpu, instance, first, file, last in ordered:
        if (node, gpu, instance) == known:
            if first < until:
                over.append((file, node, gpu))
            until = max(until, last)
        else:
            known, until = (node, gpu, instance), last
    if not over:
        return []
    file, node, gpu = over[0]
    return [source_finding("samples: files overlap", len(over), f"{names[file]} on {node} GPU {gpu}")]


def clock_went_back(falls: int, where: str) -> list[Finding]:
    """Times that fall from one row of a device to the next in the file: how many, and where the first is."""
    return [source_finding("samples: clock went back", falls, where)] if falls else []


def _counted_twice(seen: Seen) -> list[Finding]:
    both = seen.counted_twice()
    if both is None:
        return []
    return [source_finding("samples: counted twice", both[0], str(both[1]))]


def _energies(boards: pl.DataFrame | None) -> list[Finding]:
    """How far the energy that the counter tells is from the integral of the power."""
    if boards is None:
        return []
    found = []
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
        example = f"{anew['node'][0]} GPU {anew['gpu'][0]}"
        found.append(source_finding("samples: counter restarts", int(anew["restarts"].sum()), example))
    return found


def _driver_errors(seen: Seen) -> list[Finding]:
    """Boards whose last XID is not 0; the number stays until the driver is loaded anew, so samples say no more."""
    if seen.first_error is None:
        return []
    xid, place = seen.first_error
    return [source_finding("samples: XID", len(seen.errors), f"XID {xid}: {place}")]
