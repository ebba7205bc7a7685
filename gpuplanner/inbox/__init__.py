"""The inbox: sources of every kind into one dataset, with rejects, a quality report and provenance."""

from gpuplanner.inbox.additions import Added, add, add_read
from gpuplanner.inbox.core.dataset import Dataset, gpu_hours
from gpuplanner.inbox.core.source import Source
from gpuplanner.inbox.draft import write_dataset
from gpuplanner.inbox.kubernetes.reader import read_kubernetes
from gpuplanner.inbox.public.job_lists import read_itp
from gpuplanner.inbox.public.openb import read_openb
from gpuplanner.inbox.public.philly import read_philly
from gpuplanner.inbox.public.supercloud import read_supercloud
from gpuplanner.inbox.registry import SOURCES, detect, read
from gpuplanner.inbox.slurm.inventory import read_inventory
from gpuplanner.inbox.slurm.sacct import read_slurm
from gpuplanner.inbox.store import open_dataset, scan_samples

__all__ = [
    "SOURCES",
    "Added",
    "Dataset",
    "Source",
    "add",
    "add_read",
    "detect",
    "gpu_hours",
    "open_dataset",
    "read",
    "read_inventory",
    "read_itp",
    "read_kubernetes",
    "read_openb",
    "read_philly",
    "read_slurm",
    "read_supercloud",
    "scan_samples",
    "write_dataset",
]
