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
from gpuplanner.inbox.telemetry.hold_times import held_readings
from gpuplanner.inbox.telemetry.readers.limits import POWER_MARGIN, board_limits
from gpuplanner.schemas.domain import Samples


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


def board_steps(held: pl.DataFrame, *, to_the_end: bool = True) -> pl.DataFrame:
    """Energy of each board while its readings hold, and over the gaps between.

    Parameters
    ----------
    held : polars.DataFrame
        Readings of :func:`board_readings`, as :func:`~gpuplanner.inbox.telemetry.hold_times.held_readings` gives them.
    to_the_end : bool
        Also give the time for which the last reading of each board holds.

    Returns
    -------
    polars.DataFrame
        A row a piece of time: its begin ``time``, ``end``, ``step_s``, ``gap``, the instant of its ``reading``, and
        ``counted_j``, ``integrated_j`` (null over gaps) and ``energy_j``, by the counter, the power and either [J]. Of
        a gap, the time for which the reading before it holds is a piece of its own.

    Examples
    --------
    A driver that is loaded again between the second and the third reading, and a gap after the fourth:

    >>> from datetime import UTC, datetime, timedelta
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> read = {"time": [noon + timedelta(seconds=s) for s in (0, 10, 20, 30, 930)], "node": "n1", "gpu": 0}
    >>> read |= {"job_id": None, "power_w": 100.0, "energy_counter_j": [7000.0, 8000.0, 500.0, 1500.0, 91500.0]}
    >>> steps = board_steps(held_readings(pl.DataFrame(read), BOARD)).sort("time").drop_nulls("energy_j")
    >>> steps.select("counted_j", "energy_j", "gap").rows()[:3]
    [(1000.0, 1000.0, False), (None, 1000.0, False), (1000.0, 1000.0, False)]
    >>> steps.select("counted_j", "energy_j", "gap").rows()[3:]
    [(1000.0, 1000.0, False), (89000.0, 89000.0, True)]
    """
    counter, later = pl.col("energy_counter_j"), pl.col("counter_end")
    ahead = {"end": "time", "power_end": "power_w", "counter_end": "energy_counter_j", "job_end": "job_id"}
    held = held.with_columns(
        pl.when(~pl.col("last")).then(pl.col(name).shift(-1)).alias(end)
        for end, name in ahead.items()
        if name in held.columns
    )
    whole_s = seconds_between("time", "end")
    most = POWER_MARGIN * board_limits(None)[0] * (whole_s + LAG_S)
    held = held.with_columns(
        reading="time",
        counted_j=pl.when((later - counter).is_between(0, most)).then(later - counter),
        since_reset_j=pl.when((later < counter) & (later <= most)).then(later),
        restarted=((later < counter) | (later - counter > most)).fill_null(value=False),
    )
    pieces = [_between_readings(held)]
    if held["gap"].any():
        part = (seconds_between("time", "until") / whole_s).fill_nan(0.0)
        rest = held.filter("gap").with_columns(
            time="until", integrated_j=pl.lit(None, pl.Float64), counted_j=pl.col("counted_j") * (1 - part)
        )
        before = held.filter("gap").with_columns(
            counted_j=pl.col("counted_j") * part, restarted=pl.lit(value=False)
        )
        pieces += [_held_on(before), rest]
    if to_the_end:
        pieces.append(_held_on(held.filter("last", counter.is_null())))
        pieces.append(held.filter("last", counter.is_not_null()).with_columns(end="until"))
    return (
        pl.concat(pieces, how="diagonal")
        .with_columns(step_s=seconds_between("time", "end"))
        .filter(pl.col("step_s") > 0)
        .with_columns(energy_j=pl.coalesce("counted_j", "integrated_j", pl.col("since_reset_j")))
    )


def _between_readings(held: pl.DataFrame) -> pl.DataFrame:
    """Pieces from one reading to the next, over which the power goes along a straight line."""
    power_w = (pl.col("power_w") + pl.col("power_end")) / 2
    return held.filter(~pl.col("gap"), ~pl.col("last")).with_columns(
        integrated_j=power_w * seconds_between("time", "end")
    )


def _held_on(held: pl.DataFrame) -> pl.DataFrame:
    """Pieces for which readings without a next one hold, at their power."""
    power_j = pl.col("power_w") * seconds_between("time", "until")
    return held.with_columns(
        end="until",
        power_end="power_w",
        gap=pl.lit(value=False),
        integrated_j=pl.when(pl.col("counted_j").is_null()).then(power_j),
        since_reset_j=pl.lit(None, pl.Float64),
    )


def seconds_between(begin: str, end: str) -> pl.Expr:
    """Seconds from the instants of one column to those of another."""
    return (pl.col(end) - pl.col(begin)).dt.total_microseconds() / 1e6


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
        board_steps(held_readings(_read_once(told, by), by))
        .group_by(by)
        .agg(
            pl.when(pl.col("energy_j").count() > 0).then(pl.col("energy_j").sum()),
            gap_j=pl.col("energy_j").filter("gap").sum(),
            counted_j=pl.col("counted_j").filter(both).sum(),
            integrated_j=pl.col("integrated_j").filter(both).sum(),
            restarts=pl.col("restarted").sum().cast(pl.Int64),
        )
        .sort(by)
        .select(*by, kwh.name.map(lambda name: name.replace("_j", "_kwh")), "restarts")
    )
