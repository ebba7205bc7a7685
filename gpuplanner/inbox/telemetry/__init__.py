"""Telemetry: one reader per source, each giving samples, rejects, quality, coverage and provenance."""

from gpuplanner.inbox.core.node_names import expand_node_list
from gpuplanner.inbox.telemetry.coverage import coverage, observed_gpu_hours
from gpuplanner.inbox.telemetry.growth import Appended, append
from gpuplanner.inbox.telemetry.hourly import hourly
from gpuplanner.inbox.telemetry.job_match import match_jobs
from gpuplanner.inbox.telemetry.ladder import RUNGS, effective_compute
from gpuplanner.inbox.telemetry.live import read_live
from gpuplanner.inbox.telemetry.pages import Hints
from gpuplanner.inbox.telemetry.result import Telemetry
from gpuplanner.inbox.telemetry.sources import SOURCES, Source, detect, read, read_months, speaks
from gpuplanner.inbox.telemetry.store import open_telemetry, scan_samples, write_telemetry
from gpuplanner.inbox.telemetry.transport import Server

__all__ = [
    "RUNGS",
    "SOURCES",
    "Appended",
    "Hints",
    "Server",
    "Source",
    "Telemetry",
    "append",
    "coverage",
    "detect",
    "effective_compute",
    "expand_node_list",
    "hourly",
    "match_jobs",
    "observed_gpu_hours",
    "open_telemetry",
    "read",
    "read_live",
    "read_months",
    "scan_samples",
    "speaks",
    "write_telemetry",
]
