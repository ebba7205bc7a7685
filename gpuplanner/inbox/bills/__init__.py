"""What cloud bills say of GPUs: hours and cost by month, tenant and instance type, reconciled to the cent."""

from gpuplanner.inbox.bills.gpu_lines import gpu_lines, unknown_types
from gpuplanner.inbox.bills.summary import difference, summarise, totals
from gpuplanner.inbox.bills.tenants import tag_pairs, with_tenants

__all__ = [
    "difference",
    "gpu_lines",
    "summarise",
    "tag_pairs",
    "totals",
    "unknown_types",
    "with_tenants",
]
