"""What cloud bills say of GPUs: hours and cost by month, tenant and instance type, reconciled to the cent."""

from gpuplanner.inbox.bills.summary import (
    difference,
    gpu_lines,
    summarise,
    tag_pairs,
    totals,
    unknown_types,
    with_tenants,
)

__all__ = [
    "difference",
    "gpu_lines",
    "summarise",
    "tag_pairs",
    "totals",
    "unknown_types",
    "with_tenants",
]
