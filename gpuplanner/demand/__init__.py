"""Demand: jobs to series of concurrent instances by tenant and profile, and to sample paths of what will be wanted."""

from gpuplanner.demand.hazards import (
    Hazards,
    impute_run_times,
    remaining_run_time,
    remaining_while_busy,
)
from gpuplanner.demand.record import change_points, complete_until
from gpuplanner.demand.runoff import PATHS, RunOff, run_off
from gpuplanner.demand.series import POOL, demand_series, excluded, occupancy, pool, weekly

__all__ = [
    "PATHS",
    "POOL",
    "Hazards",
    "RunOff",
    "change_points",
    "complete_until",
    "demand_series",
    "excluded",
    "impute_run_times",
    "occupancy",
    "pool",
    "remaining_run_time",
    "remaining_while_busy",
    "run_off",
    "weekly",
]
