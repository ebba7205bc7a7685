"""What a run amounts to: waits, utilisation, goodput, fairness and borrowing, with intervals over replications."""

from gpuplanner.metrics.borrowing import NOBODY, borrowing, lent_hours
from gpuplanner.metrics.claims import Claims
from gpuplanner.metrics.finish_time import finish_time_fairness, isolated_outcomes, rho_by_tenant
from gpuplanner.metrics.intervals import (
    Interval,
    PairedChange,
    mean_interval,
    paired,
    student_t,
)
from gpuplanner.metrics.tenants import (
    entitlements,
    jain_index,
    shares_over_time,
    tenant_accounts,
    tenant_pieces,
)

__all__ = [
    "NOBODY",
    "Claims",
    "Interval",
    "PairedChange",
    "borrowing",
    "entitlements",
    "finish_time_fairness",
    "isolated_outcomes",
    "jain_index",
    "lent_hours",
    "mean_interval",
    "paired",
    "rho_by_tenant",
    "shares_over_time",
    "student_t",
    "tenant_accounts",
    "tenant_pieces",
]
