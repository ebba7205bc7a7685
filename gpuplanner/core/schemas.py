"""Schemas of the tables that packages exchange. Times are UTC; column names contain units."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import dataframely as dy
import polars as pl

from gpuplanner.core.serialization import read_packaged_rows

if TYPE_CHECKING:
    from dataframely._base_schema import SchemaMeta
else:
    SchemaMeta = type(dy.Schema)  # has no public name

FULL_GPU = "gpu"
"""Profile name of a full GPU (MIG disabled), as in the resource ``nvidia.com/gpu``."""

SERVICE_JOB_CLASS = "service"
"""Job class of services: jobs that a controller restarts whenever they end, until a user stops them."""

JOB_STATES = (
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED"),
    *("RUNNING", "PENDING", "UNKNOWN"),
)
"""States of a job attempt, as in Slurm; ``UNKNOWN`` if the source has no state column."""

MIN_USED_SM_ACTIVITY = 0.05
"""SM activity [0-1] from which a GPU counts as used; below it, as idle."""

GPU_TIME_BUCKETS = (
    *("used", "no_telemetry", "allocated_idle", "unallocated", "fragmented", "idle_pending"),
    *("reserved", "reconfiguring", "down"),
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


class _DeclaredColumns(SchemaMeta):
    """Class of schemas that get the columns that ``schema_columns.csv`` declares for their table."""

    def __new__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> SchemaMeta:
        """Create a schema; the table gives the kind, bounds, unit and meaning of each column."""
        declared = read_packaged_rows("gpuplanner.core", "schema_columns.csv")
        columns = {row["column"]: _column(row) for row in declared if row["table"] == table_name(name)}
        return super().__new__(cls, name, bases, columns | members)


def table_name(class_name: str) -> str:
    """Return the name of a table, in snake case, for the name of its schema class.

    Examples
    --------
    >>> table_name("QueueQuotas")
    'queue_quotas'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "_", class_name).lower()


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


class TableSchema(dy.Schema, metaclass=_DeclaredColumns):
    """Schema of a table that packages exchange."""


class Requests(TableSchema):
    """One request to a served model."""


class Serving(TableSchema):
    """One minute of one replica of a served model: requests, tokens and latencies of its metrics."""


class Occupancy(TableSchema):
    """One pool at one instant: its allocated GPUs. A series, not jobs."""


class Quotas(TableSchema):
    """GPU quota of one pool on one day; a pool that did not exist that day has no row."""


class Gauges(TableSchema):
    """One reading of one metric of one container."""


class Distributions(TableSchema):
    """One point of a cumulative distribution that a source publishes instead of jobs; it has no time."""


class Charges(TableSchema):
    """One charge line of a bill, with the column names of FOCUS; own fields begin with ``x_``."""


class Processes(TableSchema):
    """One process observed on a GPU at one time."""


class Coverage(TableSchema):
    """One node on one UTC day: how many of its GPU-hours telemetry covers."""


class QueueQuotas(TableSchema):
    """Quota of one queue or Slurm account for one resource of one flavor, as in Kueue. A null limit is no limit."""


class JobNames(TableSchema):
    """Another name of a job, by which telemetry may know it: a pod, the number of an array task."""


class OutOfService(TableSchema):
    """Installed GPUs of a node that jobs could not use: repartitioned, drained or reserved."""


class NodeDumps(TableSchema):
    """MIG layouts of one node at the time of one dump of the cluster."""


READER_SCHEMAS: tuple[type[dy.Schema], ...] = (
    *(Requests, Serving, Occupancy, Quotas, Gauges, Distributions),
    *(Charges, Processes, Coverage, JobNames, QueueQuotas, OutOfService, NodeDumps),
)
"""Tables that readers produce besides :data:`OWN_SCHEMAS`."""


MAX_GPUS_PER_JOB = 100_000
"""Largest GPU count of a job; a larger one is an error of the source."""


class Jobs(TableSchema):
    """One job attempt a row. Missing stays missing: a null is never read as zero."""

    @dy.rule()
    def start_not_before_submit(cls) -> pl.Expr:
        """start_time is at or after submit_time."""
        return pl.col("start_time") >= pl.col("submit_time")

    @dy.rule()
    def end_not_before_start(cls) -> pl.Expr:
        """end_time is at or after start_time."""
        return pl.col("end_time") >= pl.col("start_time")


class Samples(TableSchema):
    """One GPU or MIG instance from one reading to the next."""


OPTIONAL_SAMPLE_COLUMNS = ("sm_occupancy", "energy_counter_j", "xid")
"""Columns of ``Samples`` that older dataset folders lack; they are written only where a reader has them."""


class Inventory(TableSchema):
    """One node a row."""


class Demand(TableSchema):
    """One series at one interval, in the long form of forecasting libraries."""


class Forecast(TableSchema):
    """One series, interval and model."""

    @dy.rule()
    def quantiles_ordered(cls) -> pl.Expr:
        """Quantiles do not cross."""
        names = ["q05", "q10", "q25", "q50", "q75", "q90", "q95"]
        return pl.all_horizontal(pl.col(low) <= pl.col(high) for low, high in itertools.pairwise(names))


class LayoutPlan(TableSchema):
    """One GPU over a range of intervals with the same layout."""


class Ledger(TableSchema):
    """Installed GPU-time of one team, GPU model and hour in one bucket. Tenant '-' is unallocated time."""


class Costs(TableSchema):
    """One charge line, with the columns of FOCUS 1.2; own fields begin with ``x_``."""


OWN_SCHEMAS: tuple[type[dy.Schema], ...] = (Jobs, Samples, Inventory, Demand, Forecast, LayoutPlan, Ledger, Costs)
"""Tables that packages of gpuplanner exchange."""
TABLES: dict[str, type[dy.Schema]] = {table_name(table.__name__): table for table in (*OWN_SCHEMAS, *READER_SCHEMAS)}
"""All schemas by table name."""
