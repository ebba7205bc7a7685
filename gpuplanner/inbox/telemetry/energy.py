"""Energy of boards: from the driver's counter where there is one, else from the power between samples.

The counter adds up inside the board, so it also tells what was drawn while nobody looked; the power is known at the
instants of the samples alone. Both are the board's, also where an exporter repeats them on every MIG instance [1]_.

References
----------
.. [1] NVIDIA/dcgm-exporter, issue 317: one counter, told by each of four instances of an A30.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import polars as pl

from gpuplanner.errors import SchemaError, examples, message
from gpuplanner.inbox.telemetry.readers.limits import POWER_MARGIN, board_limits
from gpuplanner.inbox.telemetry.readers.metrics import GAP_FACTOR
from gpuplanner.schemas import Samples
from gpuplanner.units import SECONDS_PER_HOUR


def columns_of(samples: pl.LazyFrame, names: Iterable[str]) -> pl.LazyFrame:
    """Select columns of samples, in the types of the table; those that may be null may be absent.

    Examples
    --------
    >>> columns_of(pl.LazyFrame({"gpu": [3], "own": ["x"]}), ["gpu", "xid"]).collect().row(0)
    (3, None)
    """
    present = samples.collect_schema()
    declared = {name: Samples.columns()[name] for name in names}
    missing = [name for name, column in declared.items() if name not in present and not column.nullable]
    if missing:
        expected, got = f"columns {examples(missing)}", f"columns {examples(present.names())}"
        raise SchemaError(message("samples", expected, got, "Add the columns."))
    return samples.select(
        pl.lit(None, column.dtype).alias(name)
        if name not in present
        # A cast, even to the same type, keeps filters from the file.
        else pl.col(name)
        if present[name] == column.dtype
        else pl.col(name).cast(column.dtype)
        for name, column in declared.items()
    )


BOARD = ("node", "gpu")
TOLD = ("time", "instance", "power_w", "energy_counter_j")
"""Columns of samples that tell the energy of a board, beside those that name it."""
J_PER_KWH = 3.6e6
COUNTER, POWER, BOTH = "counter", "power", "counter and power"
LAG_S = 1.0
"""The driver renews the counter in steps: what it tells may be up to this old."""


def board_readings(samples: pl.DataFrame) -> pl.DataFrame:
    """Power and energy counter of each board at each instant, once.

    Examples
    --------
    >>> told = {"time": [0, 0, 1, 2], "node": "n1", "gpu": 0, "instance": [1, 2, 1, 1], "job_id": None}
    >>> told |= {"power_w": None, "energy_counter_j": [5.0, 5.0, None, 9.0]}
    >>> board_readings(pl.DataFrame(told))["time", "energy_counter_j"].rows()
    [(0, 5.0), (2, 9.0)]
    """
    columns = ("time", *BOARD, "job_id", "instance", "power_w", "energy_counter_j")
    return _read_once(samples.select(columns).sort("time", maintain_order=True), BOARD)


def _read_once(readings: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Readings of each board at each instant, once, of readings in the order of time."""
    whole = pl.col("instance").is_null()
    if readings["instance"].null_count() < readings.height:
        readings = (
            readings.sort("time", "instance", nulls_last=False, maintain_order=True)
            .group_by("time", *by, maintain_order=True)
            .agg(
                pl.col("^job_id$").filter(whole).first(),
                pl.col("power_w", "energy_counter_j").drop_nulls().first(),
            )
        )
    readings = readings.drop("instance", strict=False)
    if readings["energy_counter_j"].null_count() in (0, readings.height):
        return readings
    counted = pl.col("energy_counter_j").is_not_null()
    place = pl.int_range(pl.len()).over(by)
    between = place.is_between(place.filter(counted).min().over(by), place.filter(counted).max().over(by))
    return readings.filter(counted | ~between.fill_null(False))


def board_steps(
    readings: pl.DataFrame, gap_s: float | None = None, by: Sequence[str] = BOARD
) -> pl.DataFrame:
    """Energy between successive readings of each board.

    Examples
    --------
    A driver that is loaded anew between the second and the third reading, and a gap after the fourth:

    >>> from datetime import UTC, datetime, timedelta
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> read = {"time": [noon + timedelta(seconds=s) for s in (0, 10, 20, 30, 930)], "node": "n1", "gpu": 0}
    >>> read |= {"job_id": None, "power_w": 100.0, "energy_counter_j": [7000.0, 8000.0, 500.0, 1500.0, 91500.0]}
    >>> board_steps(pl.DataFrame(read)).select("counted_j", "energy_j", "gap").rows()
    [(1000.0, 1000.0, False), (None, 1000.0, False), (1000.0, 1000.0, False), (90000.0, 90000.0, True)]
    """
    counter, later = pl.col("energy_counter_j"), pl.col("counter_end")
    most = POWER_MARGIN * board_limits(None)[0] * (pl.col("step_s") + LAG_S)
    limit = pl.lit(gap_s) if gap_s is not None else GAP_FACTOR * pl.col("step_s").median().over(by)
    ahead = {"end": "time", "power_end": "power_w", "counter_end": "energy_counter_j", "job_end": "job_id"}
    return (
        readings.with_columns(
            pl.col(name).shift(-1).over(by).alias(end)
            for end, name in ahead.items()
            if name in readings.columns
        )
        .drop_nulls("end")
        .with_columns(step_s=(pl.col("end") - pl.col("time")).dt.total_microseconds() / 1e6)
        .with_columns(gap=pl.col("step_s") > pl.min_horizontal(limit, pl.lit(SECONDS_PER_HOUR)))
        .with_columns(
            counted_j=pl.when((later - counter).is_between(0, most)).then(later - counter),
            integrated_j=pl.when(~pl.col("gap")).then(
                (pl.col("power_w") + pl.col("power_end")) / 2 * pl.col("step_s")
            ),
            since_reset_j=pl.when((later < counter) & (later <= most)).then(later),
        )
        .with_columns(energy_j=pl.coalesce("counted_j", "integrated_j", "since_reset_j"))
    )


def board_energy(samples: pl.DataFrame, by: Sequence[str] = BOARD) -> pl.DataFrame:
    """Energy of each board from its first to its last reading, by the counter and by the power.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> read = {"time": [noon + timedelta(hours=h) for h in range(3)], "node": "n1", "gpu": 0, "instance": None}
    >>> read |= {"power_w": 500.0, "energy_counter_j": [1.0, 1800001.0, 3600001.0]}
    >>> board_energy(pl.DataFrame(read)).select("energy_kwh", "counted_kwh", "integrated_kwh").row(0)
    (1.0, 1.0, 1.0)
    """
    told = samples.select(by).hstack(columns_of(samples.lazy(), TOLD).collect())
    if len(by) > 1 or not told[by[0]].flags["SORTED_ASC"]:
        told = told.sort("time", maintain_order=True)
    both = pl.col("counted_j").is_not_null() & pl.col("integrated_j").is_not_null()
    kwh = pl.col("energy_j", "gap_j", "counted_j", "integrated_j") / J_PER_KWH
    return (
        board_steps(_read_once(told, by), by=by)
        .group_by(by)
        .agg(
            pl.when(pl.col("energy_j").count() > 0).then(pl.col("energy_j").sum()),
            gap_j=pl.col("energy_j").filter("gap").sum(),
            counted_j=pl.col("counted_j").filter(both).sum(),
            integrated_j=pl.col("integrated_j").filter(both).sum(),
            restarts=(
                pl.col("counted_j").is_null()
                & (pl.col("energy_counter_j") + pl.col("counter_end")).is_not_null()
            )
            .sum()
            .cast(pl.Int64),
        )
        .sort(by)
        .select(*by, kwh.name.map(lambda name: name.replace("_j", "_kwh")), "restarts")
    )
