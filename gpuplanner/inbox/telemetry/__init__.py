"""Telemetry: readers of samples, what was seen of each node, hours of each device, and whose they were."""

from typing import TYPE_CHECKING, Any

from gpuplanner.inbox.telemetry.coverage import coverage, observed_gpu_hours
from gpuplanner.inbox.telemetry.hourly import hourly
from gpuplanner.inbox.telemetry.metric_ladder import RUNGS

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:  # noqa: ANN401 - what is read with, loaded when it is used
    from gpuplanner.inbox.telemetry.readers import live, pages

    if name not in __all__:
        raise AttributeError(name)
    return getattr(pages if name == "Hints" else live, name)
