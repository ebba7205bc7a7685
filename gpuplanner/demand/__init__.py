"""Demand: jobs to series of concurrent instances by tenant and profile."""

from gpuplanner.demand.run_times import impute_run_times
from gpuplanner.demand.series import CLOCKS, demand_series, excluded
from gpuplanner.demand.summary import POOL, pool, weekly

__all__ = ["CLOCKS", "POOL", "demand_series", "excluded", "impute_run_times", "pool", "weekly"]
