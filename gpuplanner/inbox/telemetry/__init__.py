"""Telemetry: readers of samples, what was seen of each node, hours of each device, and whose they were."""

from gpuplanner.inbox.telemetry.coverage import coverage, observed_gpu_hours
from gpuplanner.inbox.telemetry.hourly import hourly
from gpuplanner.inbox.telemetry.metric_ladder import RUNGS
from gpuplanner.inbox.telemetry.readers.live import Server, read_live
from gpuplanner.inbox.telemetry.readers.pages import Hints

__all__ = [
    "RUNGS",
    "Hints",
    "Server",
    "coverage",
    "hourly",
    "observed_gpu_hours",
    "read_live",
]
