"""The inbox: one reader per source, each giving a table, rejects, a quality report and provenance."""

from gpuplanner.inbox.additions import Appended, append
from gpuplanner.inbox.core.reading import Reading
from gpuplanner.inbox.core.source import Source
from gpuplanner.inbox.core.store import open_reading, open_trace, write, write_reading, write_trace
from gpuplanner.inbox.core.trace import Trace, gpu_hours
from gpuplanner.inbox.kubernetes.reader import read_kubernetes
from gpuplanner.inbox.public.itp import read_itp
from gpuplanner.inbox.public.openb import read_openb
from gpuplanner.inbox.public.philly import read_philly
from gpuplanner.inbox.public.supercloud import read_supercloud
from gpuplanner.inbox.registry import SOURCES, detect, read
from gpuplanner.inbox.slurm.inventory import read_inventory
from gpuplanner.inbox.slurm.sacct import read_slurm

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
