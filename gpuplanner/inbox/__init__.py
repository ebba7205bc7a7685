"""The inbox: sources of every kind into one dataset, with rejects, a quality report and provenance."""

from gpuplanner.inbox.additions import Added, add, add_read
from gpuplanner.inbox.core.dataset import (Dataset, gpu_hours)
from gpuplanner.inbox.core.source import Source
from gpuplanner.inbox.draft import write_dataset
from gpuplanner.inbox.registry import detect, read
from gpuplanner.inbox.sources import SOURCES
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
    "scan_samples",
    "write_dataset",
]
