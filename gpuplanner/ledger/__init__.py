"""The GPU-time ledger: every installed GPU-hour in exactly one bucket."""

from gpuplanner.ledger.account import ONE_POOL, assumptions, gpu_time_ledger
from gpuplanner.ledger.activity import ACTIVE, held_and_active, held_by_activity
from gpuplanner.ledger.held import by_node, gpu_hours_by_node, held_by_state, requested_allocated_active
from gpuplanner.ledger.pools import inferred_inventory, installed_gpu_hours
from gpuplanner.ledger.slices import slice_hours
from gpuplanner.ledger.views import DARK_BUCKETS, by_bucket, by_period, by_tenant, dark_share, reconcile

__all__ = [
    "ACTIVE",
    "DARK_BUCKETS",
    "ONE_POOL",
    "assumptions",
    "by_bucket",
    "by_node",
    "by_period",
    "by_tenant",
    "dark_share",
    "gpu_hours_by_node",
    "gpu_time_ledger",
    "held_and_active",
    "held_by_activity",
    "held_by_state",
    "inferred_inventory",
    "installed_gpu_hours",
    "reconcile",
    "requested_allocated_active",
    "slice_hours",
]
