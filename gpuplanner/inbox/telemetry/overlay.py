"""New telemetry laid over a folder of it: what stands in the folder counts, the rest is added or accounted for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner._version import __version__
from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.core.lines.reject_columns import REJECTS
from gpuplanner.inbox.core.findings import Finding, combined, report
from gpuplanner.inbox.core.months import DERIVED, by_month, scan_months
from gpuplanner.inbox.core.times import iso
from gpuplanner.inbox.telemetry.coverage import coverage, observed_gpu_hours
from gpuplanner.inbox.telemetry.holders import (BETWEEN_JOBS)
from gpuplanner.inbox.telemetry.readers.device_key import DEVICE_KEY
from gpuplanner.inbox.telemetry.joining import AGAIN, CONTRADICTION
from gpuplanner.inbox.telemetry.metric_ladder import ORDER, RUNGS, best_rungs, on_one_rung, rungs
from gpuplanner.inbox.telemetry.sample_findings import JUDGED_BY, is_of_samples, of_samples, rejected
from gpuplanner.schemas.domain import Samples

FACTS = ("profile", "job_id")
ACTIVITY = ("sm_activity", "activity_source")
OVERLAID_QUANTITIES = tuple(name for name in Samples.columns() if name not in (*ORDER, *FACTS, *ACTIVITY, *DERIVED))
NEW = " of the new"
"""Ending of the columns of new samples beside those of old ones."""


def grow(
    old: Dataset, there: Mapping[str, Path], new: Dataset, *, by_metric: bool
) -> tuple[Dataset, dict[str, pl.DataFrame]]:
    """Lay new telemetry over that of the same source; nothing is written.

    Months are read one by one, those without new samples only if a device in them was read by a better counter now.
    """
    assert new.told is not None, "as every reader gives it"
    coming = by_month(pl.concat([new.tables["samples"], new.told], how="horizontal"))
    known = rungs(scan_months(list(there.values())))
    ever = pl.concat([known, rungs(new.tables["samples"])])
    unsettled = not best_rungs(known).equals(
        best_rungs(ever).join(known, on=DEVICE_KEY, how="semi", nulls_equal=True)
    )
    changed: dict[str, pl.DataFrame] = {}
    refused = [new.rejects]
    for month in sorted({*there, *coming} if unsettled else coming):
        stored = scan_months([there[month]] if month in there else []).collect()
        samples = on_one_rung(stored, ever)
        if month in coming:
            samples, again = overlay(samples, on_one_rung(coming[month], ever), by_metric=by_metric)
            samples = on_one_rung(samples, ever)
            refused += [again] if new.processes is None else []
        if not samples.equals(stored):
            changed[month] = samples
    parts = [
        changed[month].lazy() if month in changed else scan_months([there[month]])
        for month in sorted({*there, *changed})
    ]
    seen = pl.concat([part.select(JUDGED_BY) for part in parts]).collect()
    rejects = pl.concat([old.rejects, *refused]).sort("file", "row", maintain_order=True)
    days = coverage(seen)
    provenance = _provenance(old.provenance, new.provenance, seen, rejects.height)
    before = (Finding(*row) for table in (old.quality, new.quality) for row in table.iter_rows())
    lasting = combined(each for each in before if not is_of_samples(each.check))
    found = [*rejected(rejects, provenance["rows_in"]), *of_samples(seen, days), *lasting]
    whole = Dataset({"coverage": days}, rejects, report(found), provenance)
    return whole.with_tables(processes=_processes(old, new)), changed


def overlay(old: pl.DataFrame, new: pl.DataFrame, *, by_metric: bool) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Samples of a span with those that were read later; each device and instant counts once.

    What was read first counts. Of a source whose rows are samples, an old sample stays as it is; of one whose rows
    are readings of single metrics, each quantity that the old sample lacks is taken from the new one, activity from
    the better rung, and the jobs of both, which then share the device. Either way the order in which files come
    decides only between rows that contradict one another, and laying over in several steps gives what laying over in
    one does.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.schemas.domain import Samples
    >>> from gpuplanner.schemas.check import conform
    >>> row = {"time": datetime(2026, 1, 1, tzinfo=UTC), "node": "n1", "gpu": 0, "activity_source": "none"}
    >>> first, second = (
    ...     conform(pl.DataFrame([row | read]), Samples, where="example")
    ...     for read in ({"power_w": 400.0}, {"power_w": 410.0, "memory_used_gib": 8.0})
    ... )
    >>> place = {"file": pl.lit("b.prom"), "row": pl.lit(1, pl.Int64), "raw": pl.lit("...")}
    >>> samples, again = overlay(first, second.with_columns(**place), by_metric=True)
    >>> samples["power_w", "memory_used_gib"].row(0), again["reason"].to_list()
    ((400.0, 8.0), ['another value for the same device and time as an earlier row'])
    """
    columns = old.columns
    both = old.join(new, on=ORDER, how="inner", suffix=NEW, nulls_equal=True, maintain_order="left")
    only_new = new.join(both, on=ORDER, how="anti", nulls_equal=True).select(columns)
    if not by_metric:
        same = pl.all_horizontal(
            pl.col(name).eq_missing(pl.col(name + NEW)) for name in (*OVERLAID_QUANTITIES, *ACTIVITY)
        )
        reason = pl.when(same).then(pl.lit(AGAIN)).otherwise(pl.lit(CONTRADICTION))
        return pl.concat([old, only_new]).sort(ORDER), _refused(both, reason)
    better, equal = _rung(NEW) < _rung(""), _rung(NEW) == _rung("")
    differs = [pl.col(name) != pl.col(name + NEW) for name in OVERLAID_QUANTITIES]
    adds = [pl.col(name).is_null() & pl.col(name + NEW).is_not_null() for name in OVERLAID_QUANTITIES]
    contradicts = pl.any_horizontal(*differs, equal & (pl.col("sm_activity") != pl.col("sm_activity" + NEW)))
    shares = (pl.col("job_id") != pl.col("job_id" + NEW)).fill_null(value=False)
    reason = (
        pl.when(shares)
        .then(None)
        .when(contradicts.fill_null(False))
        .then(pl.lit(CONTRADICTION))
        .when(~pl.any_horizontal(*adds, better))
        .then(pl.lit(AGAIN))
    )
    jobs = pl.concat_list(pl.col(name).str.split(BETWEEN_JOBS) for name in ("job_id", "job_id" + NEW))
    filled = both.with_columns(
        *(pl.coalesce(name, name + NEW) for name in (*OVERLAID_QUANTITIES, "profile")),
        pl.when(shares)
        .then(jobs.list.unique().list.sort().list.join(BETWEEN_JOBS))
        .otherwise(pl.coalesce("job_id", "job_id" + NEW))
        .alias("job_id"),
        *(pl.when(better).then(pl.col(name + NEW)).otherwise(pl.col(name)).alias(name) for name in ACTIVITY),
    )
    only_old = old.join(both, on=ORDER, how="anti", nulls_equal=True)
    return pl.concat([only_old, filled.select(columns), only_new]).sort(ORDER), _refused(both, reason)


def _rung(suffix: str) -> pl.Expr:
    """Place on the ladder of what a sample's activity comes from; below all rungs where there is none."""
    place = pl.col("activity_source" + suffix).replace_strict(
        dict(zip(RUNGS, range(len(RUNGS)), strict=True))
    )
    return pl.when(pl.col("sm_activity" + suffix).is_not_null()).then(place).otherwise(len(RUNGS))


def _refused(both: pl.DataFrame, reason: pl.Expr) -> pl.DataFrame:
    """New samples that were there already, as rows for the reject table; those without a reason are not refused."""
    table = both.select("file", "row", reason.alias("reason"), "raw")
    return table.filter(pl.col("reason").is_not_null()).cast(REJECTS)


def _processes(old: Dataset, new: Dataset) -> pl.DataFrame | None:
    """Processes of both, each once."""
    tables = [each.processes for each in (old, new) if each.processes is not None]
    return pl.concat(tables).unique(maintain_order=True) if tables else None


def _provenance(
    old: Mapping[str, Any], new: Mapping[str, Any], seen: pl.DataFrame, rejected_rows: int
) -> dict[str, Any]:
    rows_in = old["rows_in"] + new["rows_in"]
    return {
        **new,
        "files": [*old["files"], *new["files"]],
        "rows_in": rows_in,
        "rows_kept": rows_in - rejected_rows,
        "rows_rejected": rejected_rows,
        "samples": seen.height,
        "span_start": iso(seen["time"].min()),  # type: ignore[arg-type]
        "span_end": iso(seen["time"].max()),  # type: ignore[arg-type]
        "gpu_hours": observed_gpu_hours(seen),
        "boards": sorted({*old["boards"], *new["boards"]}),
        "notes": list(dict.fromkeys([*old["notes"], *new["notes"]])),
        "gpuplanner": __version__,
    }
