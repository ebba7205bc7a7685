"""The inbox: one reader per source, each giving a table, rejects, a quality report and provenance."""

from gpuplanner.traces.additions import Appended, append
from gpuplanner.traces.inventory import read_inventory
from gpuplanner.traces.itp import read_itp
from gpuplanner.traces.kubernetes import read_kubernetes
from gpuplanner.traces.openb import read_openb
from gpuplanner.traces.philly import read_philly
from gpuplanner.traces.reading import Reading
from gpuplanner.traces.slurm import read_slurm
from gpuplanner.traces.source import Source
from gpuplanner.traces.sources import SOURCES, detect, read
from gpuplanner.traces.store import open_reading, open_trace, write, write_reading, write_trace
from gpuplanner.traces.supercloud import read_supercloud
from gpuplanner.traces.trace import Trace, gpu_hours

__all__ = [
    "SOURCES",
    "Appended",
    "Reading",
    "Source",
    "Trace",
    "append",
    "detect",
    "gpu_hours",
    "open_reading",
    "open_trace",
    "read",
    "read_inventory",
    "read_itp",
    "read_kubernetes",
    "read_openb",
    "read_philly",
    "read_slurm",
    "read_supercloud",
    "write",
    "write_reading",
    "write_trace",
]
