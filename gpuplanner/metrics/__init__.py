"""What a simulated run amounts to: waits, utilisation and GPU-hours, with intervals over replications."""

from gpuplanner.metrics.accounts import Simulated
from gpuplanner.metrics.intervals import Comparison, Interval, mean_interval, paired, student_t
from gpuplanner.metrics.measure import by_tenant, measure
from gpuplanner.metrics.residency import resident_gpu_hours

__all__ = [
    "Comparison",
    "Interval",
    "Simulated",
    "by_tenant",
    "mean_interval",
    "measure",
    "paired",
    "resident_gpu_hours",
    "student_t",
]
