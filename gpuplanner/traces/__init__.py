"""The inbox: one reader per source, each giving jobs, rejects, a quality report and provenance."""

from gpuplanner.traces.inventory import read_inventory
from gpuplanner.traces.itp import read_itp
from gpuplanner.traces.openb import read_openb
from gpuplanner.traces.philly import read_philly
from gpuplanner.traces.slurm import read_slurm
from gpuplanner.traces.sources import SOURCES, Source, detect, read
from gpuplanner.traces.store import open_trace, write_trace
from gpuplanner.traces.trace import Trace, gpu_hours

__all__ = [
    "SOURCES",
    "Source",
    "Trace",
    "detect",
    "gpu_hours",
    "open_trace",
    "read",
    "read_inventory",
    "read_itp",
    "read_openb",
    "read_philly",
    "read_slurm",
    "write_trace",
]
