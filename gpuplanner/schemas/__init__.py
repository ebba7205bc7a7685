"""One declaration per table: used for checks, for the reference page and for test data."""

from gpuplanner.schemas.check import check, conform, empty, filter_rows, some_columns, to_markdown
from gpuplanner.schemas.domain import (
    LATER_COUNTERS,
    TABLES,
    Costs,
    Demand,
    Forecast,
    Inventory,
    Jobs,
    LayoutPlan,
    Ledger,
    Samples,
)
from gpuplanner.schemas.readings import Coverage, JobNames, Processes, QueueQuotas
from gpuplanner.schemas.vocabulary import BUCKETS, JOB_STATES, SERVICE, USED_FROM, WHOLE_GPU

__all__ = [
    "BUCKETS",
    "JOB_STATES",
    "LATER_COUNTERS",
    "SERVICE",
    "TABLES",
    "USED_FROM",
    "WHOLE_GPU",
    "Costs",
    "Coverage",
    "Demand",
    "Forecast",
    "Inventory",
    "JobNames",
    "Jobs",
    "LayoutPlan",
    "Ledger",
    "Processes",
    "QueueQuotas",
    "Samples",
    "check",
    "conform",
    "empty",
    "filter_rows",
    "some_columns",
    "to_markdown",
]
