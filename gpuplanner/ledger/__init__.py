"""The GPU-time ledger: every installed GPU-hour in exactly one bucket."""

from gpuplanner.ledger.account import assumptions, gpu_time_ledger
from gpuplanner.ledger.pools import inferred_inventory, installed_gpu_hours
from gpuplanner.ledger.views import DARK_BUCKETS, by_bucket, by_tenant, dark_share, reconcile

__all__ = [
    "DARK_BUCKETS",
    "assumptions",
    "by_bucket",
    "by_tenant",
    "dark_share",
    "gpu_time_ledger",
    "inferred_inventory",
    "installed_gpu_hours",
    "reconcile",
]
