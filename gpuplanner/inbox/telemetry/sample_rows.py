"""Last step of every reader of telemetry: devices and times, limits, repeats, ladder, quality, provenance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from gpuplanner._version import __version__
from gpuplanner.errors import TraceFormatError, message
from gpuplanner.inbox.core.findings import Finding, report
from gpuplanner.inbox.core.rows import Rows, out_of_time
from gpuplanner.inbox.core.times import iso
from gpuplanner.inbox.telemetry.coverage import coverage, observed_gpu_hours
from gpuplanner.inbox.telemetry.joining import DEVICE_KEY, join_readings, without_repeats
from gpuplanner.inbox.telemetry.labels import DEVICE, MAX_INDEX
from gpuplanner.inbox.telemetry.ladder import ORDER, to_samples
from gpuplanner.inbox.telemetry.limits import reject_impossible
from gpuplanner.inbox.telemetry.metrics import QUANTITIES, Metric
from gpuplanner.inbox.telemetry.numbers import read_long, refuse_mixed_units
from gpuplanner.inbox.telemetry.result import Telemetry
from gpuplanner.inbox.telemetry.sample_findings import findings
from gpuplanner.schemas import Samples, empty

NO_TIME = "the time cannot be read, or has no zone"
SHOWN_NAMES = 30


def from_readings(
    rows: Rows,
    metrics: dict[str, Metric],
    *,
    source: str,
    within_s: float = 0.0,
    time_zone: str | None = None,
    notes: Sequence[str] = (),
    more: Sequence[Finding] = (),
) -> Telemetry:
    """Telemetry of a source with one row per device, time and metric.

    Parameters
    ----------
    rows : Rows
        Columns of :data:`gpuplanner.inbox.telemetry.labels.READING`.
    metrics : dict of str to Metric
        Name in the source → what it is.
    source : str
        Name of the source.
    within_s : float
        How far apart the readings of one round may be [s].
    time_zone, notes, more
        As in :func:`from_table`.

    Raises
    ------
    TraceFormatError
        If no row is left, or units are mixed up.
    """
    unreadable = pl.col("fault")
    faults = {
        reason: unreadable == reason for reason in rows.good["fault"].drop_nulls().unique().sort().to_list()
    }
    rows = read_long(_placed(rows.reject(faults)), metrics)
    values = {
        quantity: pl.when(pl.col("quantity") == quantity).then(pl.col("value")) for quantity in QUANTITIES
    }
    refuse_mixed_units(rows, values, _where(rows, source))
    rows, wide = join_readings(reject_impossible(rows, values), within_s=within_s)
    return _finish(rows, wide, source, time_zone, notes, more)


def from_table(
    rows: Rows,
    *,
    source: str,
    time_zone: str | None = None,
    notes: Sequence[str] = (),
    more: Sequence[Finding] = (),
    processes: pl.DataFrame | None = None,
    empty_is_fine: bool = False,
) -> Telemetry:
    """Telemetry of a source with one row per device and time.

    Parameters
    ----------
    rows : Rows
        ``time``, ``node``, ``gpu``, all quantities, and what there is of ``instance``, ``profile``,
        ``board``, ``job_id`` and ``mig_enabled``.
    source : str
        Name of the source.
    time_zone : str, optional
        Zone in which naive times were read.
    notes : sequence of str
        What a reader of the provenance must know.
    more : sequence of Finding
        Findings of this source.
    processes : polars.DataFrame, optional
        Columns of :data:`gpuplanner.inbox.telemetry.result.PROCESSES`; then rows are processes, of which a device
        and time may have several.
    empty_is_fine : bool
        No rows are an answer.

    Raises
    ------
    TraceFormatError
        If no row is left, or units are mixed up.
    """
    absent = [pl.lit(None, DEVICE[name]).alias(name) for name in DEVICE if name not in rows.good.columns]
    rows = _placed(replace(rows, good=rows.good.with_columns(absent)))
    values = {quantity: pl.col(quantity) for quantity in QUANTITIES}
    refuse_mixed_units(rows, values, _where(rows, source))
    rows = reject_impossible(rows, values)
    key = ("time", *DEVICE_KEY)
    if processes is None:
        rows = without_repeats(rows, key, (*key, *QUANTITIES))
    wide = rows.good.unique(key, keep="first", maintain_order=True)
    return _finish(rows, wide, source, time_zone, notes, more, processes, empty_is_fine)


def _placed(rows: Rows) -> Rows:
    """Reject rows without a time or a GPU."""
    return rows.reject(
        {
            NO_TIME: pl.col("time").is_null(),
            "the time is not between 1970 and 2100": out_of_time(pl.col("time")),
            "no GPU number": ~pl.col("gpu").is_between(0, MAX_INDEX).fill_null(False),
            "no node": pl.col("node").is_null(),
        }
    )


def _finish(
    rows: Rows,
    wide: pl.DataFrame,
    source: str,
    time_zone: str | None,
    notes: Sequence[str],
    more: Sequence[Finding],
    processes: pl.DataFrame | None = None,
    empty_is_fine: bool = False,
) -> Telemetry:
    if rows.good.is_empty() and not (empty_is_fine and rows.rejects.is_empty()):
        raise TraceFormatError(_nothing_left(rows, source))
    wide = wide.sort(ORDER, maintain_order=True)
    samples = to_samples(wide) if wide.height else empty(Samples)
    days = coverage(samples)
    unused = [name[:40] for name in rows.unused]
    more_names = f" and {len(unused) - SHOWN_NAMES} more" if len(unused) > SHOWN_NAMES else ""
    rejects = rows.rejects.sort("file", "row", maintain_order=True)
    boards = wide["board"].drop_nulls().unique().sort().to_list()
    provenance = {
        "source": source,
        "files": [
            {"name": name, "sha256": file.sha256, "bytes": file.bytes}
            for name, file in zip(rows.file_names(), rows.files, strict=True)
        ],
        "rows_in": rows.count,
        "rows_kept": rows.good.height,
        "rows_rejected": rejects.height,
        "samples": samples.height,
        "span_start": iso(samples["time"].min()),  # type: ignore[arg-type]
        "span_end": iso(samples["time"].max()),  # type: ignore[arg-type]
        "gpu_hours": observed_gpu_hours(samples),
        "boards": boards,
        "time_zone": time_zone,
        "notes": [
            *notes,
            *([f"not read: {', '.join(unused[:SHOWN_NAMES])}{more_names}"] if unused else []),
        ],
        "gpuplanner": __version__,
    }
    found = [*findings(rows, samples, days), *more]
    names = dict(enumerate(rows.file_names()))
    told = wide.select(
        file=pl.col("file").replace_strict(names, return_dtype=pl.String),
        row=pl.col("line").cast(pl.Int64),
        raw="raw",
    )
    if processes is not None:
        processes = processes.unique(maintain_order=True)
    return Telemetry(samples, rejects, report(found), days, provenance, processes, told)


def _where(rows: Rows, source: str) -> str:
    return f"{source}: {', '.join(rows.file_names()[:5])}"


def _nothing_left(rows: Rows, source: str) -> str:
    reasons = rows.rejects["reason"].value_counts(sort=True).head(5).iter_rows()
    got = "; ".join(f"{reason} in {count} row(s)" for reason, count in reasons)
    return message(
        _where(rows, source),
        "at least one readable sample",
        f"{rows.count} rows and none of them: {got}" if rows.count else "no rows",
        "Is this the right source?",
    )
