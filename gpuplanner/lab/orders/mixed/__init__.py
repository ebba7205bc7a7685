"""The loops over fleets of several types of GPU: one decision for each job, and in rounds."""

from gpuplanner.lab.orders.mixed.dispatch import MixedRun, dispatch
from gpuplanner.lab.orders.mixed.machines import heterogeneity_aware, opportunistic
from gpuplanner.lab.orders.mixed.mixed import GpuType, MixedJobs, Plans

__all__ = [
    "GpuType",
    "MixedJobs",
    "MixedRun",
    "Plans",
    "dispatch",
    "heterogeneity_aware",
    "opportunistic",
]
