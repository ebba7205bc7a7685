"""The tables that pass between the rooms. All times are UTC instants; units stand in the names."""

from __future__ import annotations

import itertools

import dataframely as dy
import polars as pl

from gpuplanner.schemas.kinds import declared, table_name
from gpuplanner.schemas.readings import READING_TABLES

MAX_GPUS_PER_JOB = 100_000
"""More GPUs than any machine has: a count above it is a fault of the source, not a job."""


@declared
class Jobs(dy.Schema):
    """One job attempt a row. Missing stays missing: a null is never read as zero."""

    @dy.rule()
    def start_not_before_submit(cls) -> pl.Expr:
        """start_time is at or after submit_time."""
        return pl.col("start_time") >= pl.col("submit_time")

    @dy.rule()
    def end_not_before_start(cls) -> pl.Expr:
        """end_time is at or after start_time."""
        return pl.col("end_time") >= pl.col("start_time")


@declared
class Samples(dy.Schema):
    """One GPU or MIG instance from one reading to the next."""


LATER_COUNTERS = ("sm_occupancy", "energy_counter_j", "xid")
"""Columns of ``Samples`` that older folders lack; where nobody read them they are not written either."""


@declared
class Inventory(dy.Schema):
    """One node a row."""


@declared
class Demand(dy.Schema):
    """One series at one slot, in the long form that forecasting libraries read."""


@declared
class Forecast(dy.Schema):
    """One series, slot and model."""

    @dy.rule()
    def quantiles_ordered(cls) -> pl.Expr:
        """Quantiles do not cross."""
        names = ["q05", "q10", "q25", "q50", "q75", "q90", "q95"]
        return pl.all_horizontal(pl.col(low) <= pl.col(high) for low, high in itertools.pairwise(names))


@declared
class LayoutPlan(dy.Schema):
    """One GPU over one range of slots in which its layout stays the same."""


@declared
class Ledger(dy.Schema):
    """Installed GPU-time of one tenant, board and hour in one bucket. Tenant '-' is nobody."""


@declared
class Costs(dy.Schema):
    """One charge line, with the columns that FOCUS 1.2 asks for; own fields begin with ``x_``."""


OWN_TABLES: tuple[type[dy.Schema], ...] = (
    Jobs,
    Samples,
    Inventory,
    Demand,
    Forecast,
    LayoutPlan,
    Ledger,
    Costs,
)
TABLES: dict[str, type[dy.Schema]] = {
    table_name(table.__name__): table for table in (*OWN_TABLES, *READING_TABLES)
}
