"""Telemetry: one reader per source, each giving samples, rejects, quality, coverage and provenance."""

from gpuplanner.telemetry.additions import Appended, append
from gpuplanner.telemetry.coverage import coverage, observed_gpu_hours
from gpuplanner.telemetry.holders import expand_node_list, match_jobs
from gpuplanner.telemetry.hourly import hourly
from gpuplanner.telemetry.ladder import RUNGS, effective_compute
from gpuplanner.telemetry.live import read_live
from gpuplanner.telemetry.pages import Hints
from gpuplanner.telemetry.result import Telemetry
from gpuplanner.telemetry.sources import SOURCES, Source, detect, read, speaks
from gpuplanner.telemetry.store import open_telemetry, scan_samples, write_telemetry
from gpuplanner.telemetry.transport import Server

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
    "scan_samples",
    "speaks",
    "write_telemetry",
]
