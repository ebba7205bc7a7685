"""Schemas of the tables that packages exchange. Times are UTC; column names contain units."""

from __future__ import annotations

import csv
import functools
import itertools
import json
import re
from collections.abc import Callable, Mapping
from importlib import resources

import dataframely as dy
import polars as pl

FULL_GPU = "gpu"
"""Profile name of a full GPU (MIG disabled), as in the resource ``nvidia.com/gpu``."""

SERVICE_JOB_CLASS = "service"
"""Job class of services: jobs that a controller restarts whenever they end, until a user stops them."""

JOB_STATES = (
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "OUT_OF_MEMORY",
    "NODE_FAIL",
    "PREEMPTED",
    "RUNNING",
    "PENDING",
    "UNKNOWN",
)
"""States of a job attempt, as in Slurm; ``UNKNOWN`` if the source has no state column."""

MIN_USED_SM_ACTIVITY = 0.05
"""SM activity [0-1] from which a GPU counts as used; below it, as idle."""

GPU_TIME_BUCKETS = (
    "used",
    "no_telemetry",
    "allocated_idle",
    "unallocated",
    "fragmented",
    "idle_pending",
    "reserved",
    "reconfiguring",
    "down",
)
"""Buckets of the ledger: states of installed GPU-time. Every installed GPU-hour is in exactly one bucket.

used
    Allocated, and telemetry shows activity.
no_telemetry
    Allocated, without telemetry: neither used nor idle is known.
allocated_idle
    Allocated, and telemetry shows no activity.
unallocated
    Not allocated, and no waiting job could have used it: none waited, or each requested more than was unallocated.
fragmented
    Not allocated although a waiting job requested no more GPUs than were unallocated: too few of them were on one node.
    Only counted where the node of each allocation is known.
idle_pending
    Idle with eligible jobs pending that request no more than is idle: as many GPUs as these jobs request. The causes of
    waiting tell why: MIG layouts, the queue, limits, or unexplained.
reserved
    Reserved for a user or group, and not allocated to them.
reconfiguring
    Out of service because its MIG layout is being changed.
down
    Out of service for any other reason.
"""


MONEY_DECIMAL_DIGITS, MONEY_DECIMAL_PLACES = 38, 18
"""Total digits and decimals of exact amounts of money."""
MONEY_DTYPE = pl.Decimal(MONEY_DECIMAL_DIGITS, MONEY_DECIMAL_PLACES)
"""Type of money and priced amounts, exact: bills have up to 18 decimals, and sums must not drift."""

SCHEMA_COLUMN_BY_KIND: Mapping[str, Callable[..., dy.Column]] = {
    "text": dy.String,
    "time": functools.partial(dy.Datetime, time_unit="us", time_zone="UTC"),
    "date": dy.Date,
    "number": dy.Float64,
    "count": dy.Int32,
    "large count": dy.Int64,
    "bool": dy.Bool,
    "decimal": functools.partial(dy.Decimal, MONEY_DECIMAL_DIGITS, MONEY_DECIMAL_PLACES),
    "money": functools.partial(dy.Decimal, 18, 2),
    "job state": functools.partial(dy.Enum, JOB_STATES),
    "bucket": functools.partial(dy.Enum, GPU_TIME_BUCKETS),
    "absence": functools.partial(dy.Enum, ("reserved", "reconfiguring", "down")),
    "resource": functools.partial(dy.Enum, ("gpu", "node")),
}
"""Column type by its kind in ``schema_columns.csv``. Times are UTC with microseconds."""


def add_declared_columns(schema: type[dy.Schema]) -> type[dy.Schema]:
    """Add the columns that ``schema_columns.csv`` declares for a table: kind, bounds, unit and meaning of each."""
    rows = [row for row in _declared_columns() if row["table"] == table_name(schema.__name__)]
    members = {"__doc__": schema.__doc__, "__module__": schema.__module__}
    columns = {row["column"]: _column(row) for row in rows}
    return type(schema.__name__, (schema,), members | columns)


def table_name(class_name: str) -> str:
    """Return the name of a table, in snake case, for the name of its schema class.

    Examples
    --------
    >>> table_name("QueueQuotas")
    'queue_quotas'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "_", class_name).lower()


@functools.cache
def _declared_columns() -> list[dict[str, str]]:
    """Read the rows of ``schema_columns.csv``."""
    text = (resources.files(__package__) / "schema_columns.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _column(row: Mapping[str, str]) -> dy.Column:
    """Make the column of one row of ``schema_columns.csv``."""
    bounds = {bound: json.loads(row[name]) for bound, name in (("min", "low"), ("max", "high")) if row[name]}
    about = column_metadata(row["meaning"], row["unit"])
    return SCHEMA_COLUMN_BY_KIND[row["kind"]](nullable=row["nullable"] == "yes", metadata=about, **bounds)


def column_metadata(description: str, unit: str = "") -> dict[str, str]:
    """Make the metadata of a column: its meaning and unit."""
    return {"meaning": description, "unit": unit}


def text_column(description: str, *, nullable: bool = False) -> dy.String:
    """Make a column of text."""
    return dy.String(nullable=nullable, metadata=column_metadata(description))


def number_column(
    description: str, unit: str = "", *, nullable: bool = False, low: float | None = 0.0, high: float | None = None
) -> dy.Float64:
    """Make a column of floating-point numbers between bounds.

    Parameters
    ----------
    description, unit : str
        Meaning and unit of the column.
    nullable : bool
        Whether values may be missing.
    low, high : float, optional
        Bounds, both allowed.
    """
    return dy.Float64(nullable=nullable, min=low, max=high, metadata=column_metadata(description, unit))


def count_column(description: str, *, nullable: bool = False, low: int = 0) -> dy.Int32:
    """Make a column of whole numbers with a lower bound."""
    return dy.Int32(nullable=nullable, min=low, metadata=column_metadata(description))


@add_declared_columns
class Requests(dy.Schema):
    """One request to a served model."""


@add_declared_columns
class Serving(dy.Schema):
    """One minute of one replica of a served model: requests, tokens and latencies of its metrics."""


@add_declared_columns
class Occupancy(dy.Schema):
    """One pool at one instant: its allocated GPUs. A series, not jobs."""


@add_declared_columns
class Quotas(dy.Schema):
    """GPU quota of one pool on one day; a pool that did not exist that day has no row."""


@add_declared_columns
class Gauges(dy.Schema):
    """One reading of one metric of one container."""


@add_declared_columns
class StepTimes(dy.Schema):
    """One training step of one worker."""


@add_declared_columns
class Distributions(dy.Schema):
    """One point of a cumulative distribution that a source publishes instead of jobs; it has no time."""


@add_declared_columns
class JobStates(dy.Schema):
    """One job of a source without times: what it requested and its end state; no GPU-hours follow from it."""


@add_declared_columns
class Charges(dy.Schema):
    """One charge line of a bill, with the column names of FOCUS; own fields begin with ``x_``."""


@add_declared_columns
class Processes(dy.Schema):
    """One process observed on a GPU at one time."""


@add_declared_columns
class Coverage(dy.Schema):
    """One node on one UTC day: how many of its GPU-hours telemetry covers."""


@add_declared_columns
class QueueQuotas(dy.Schema):
    """Quota of one queue or Slurm account for one resource of one flavor, as in Kueue. A null limit is no limit."""


@add_declared_columns
class JobNames(dy.Schema):
    """Another name of a job, by which telemetry may know it: a pod, the number of an array task."""


@add_declared_columns
class OutOfService(dy.Schema):
    """Installed GPUs of a node that jobs could not use: repartitioned, drained or reserved."""


READER_SCHEMAS: tuple[type[dy.Schema], ...] = (
    *(Requests, Serving, Occupancy, Quotas, Gauges, StepTimes, Distributions, JobStates),
    *(Charges, Processes, Coverage, JobNames, QueueQuotas, OutOfService),
)
"""Tables that readers produce besides :data:`OWN_SCHEMAS`."""


MAX_GPUS_PER_JOB = 100_000
"""Largest GPU count of a job; a larger one is an error of the source."""


@add_declared_columns
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


@add_declared_columns
class Samples(dy.Schema):
    """One GPU or MIG instance from one reading to the next."""


OPTIONAL_SAMPLE_COLUMNS = ("sm_occupancy", "energy_counter_j", "xid")
"""Columns of ``Samples`` that older dataset folders lack; they are written only where a reader has them."""


@add_declared_columns
class Inventory(dy.Schema):
    """One node a row."""


@add_declared_columns
class Demand(dy.Schema):
    """One series at one interval, in the long form of forecasting libraries."""


@add_declared_columns
class Forecast(dy.Schema):
    """One series, interval and model."""

    @dy.rule()
    def quantiles_ordered(cls) -> pl.Expr:
        """Quantiles do not cross."""
        names = ["q05", "q10", "q25", "q50", "q75", "q90", "q95"]
        return pl.all_horizontal(pl.col(low) <= pl.col(high) for low, high in itertools.pairwise(names))


@add_declared_columns
class LayoutPlan(dy.Schema):
    """One GPU over a range of intervals with the same layout."""


@add_declared_columns
class Ledger(dy.Schema):
    """Installed GPU-time of one team, GPU model and hour in one bucket. Tenant '-' is unallocated time."""


@add_declared_columns
class Costs(dy.Schema):
    """One charge line, with the columns of FOCUS 1.2; own fields begin with ``x_``."""


OWN_SCHEMAS: tuple[type[dy.Schema], ...] = (Jobs, Samples, Inventory, Demand, Forecast, LayoutPlan, Ledger, Costs)
"""Tables that packages of gpuplanner exchange."""
TABLES: dict[str, type[dy.Schema]] = {table_name(table.__name__): table for table in (*OWN_SCHEMAS, *READER_SCHEMAS)}
"""All schemas by table name."""
