"""Public traces that are opened by name, where their files are at hand."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gpuplanner.errors import ScenarioError, message
from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.registry import read
from gpuplanner.inbox.core.quarantine import believed


@dataclass(frozen=True)
class PublicTrace:
    """A public trace in the folder that ``GPUPLANNER_DATA`` names."""

    source: str
    jobs: str
    tz: str | None = None
    nodes: str | None = None


PUBLIC = {
    "fox": PublicTrace("slurm", "slurm/sacct_fox_2025.txt", tz="Europe/Oslo"),
    "openb": PublicTrace(
        "openb",
        "alibaba_gpu_v2023/openb_pod_list_default.csv.gz",
        nodes="alibaba_gpu_v2023/openb_node_list_gpu_node.csv",
    ),
    "philly": PublicTrace("philly", "philly/philly.csv.gz", tz="America/Los_Angeles"),
}
"""Public traces that :func:`gpuplanner.study.past.explore.open_inbox` opens by name."""


def public_traces() -> list[str]:
    """Names of :data:`PUBLIC` whose files lie in the folder that ``GPUPLANNER_DATA`` names."""
    folder = os.environ.get("GPUPLANNER_DATA")
    if not folder:
        return []
    return [name for name, each in PUBLIC.items() if (Path(folder) / each.jobs).is_file()]


def read_public(name: str) -> Dataset:
    """Read a public trace by name."""
    known, folder = PUBLIC[name], Path(os.environ["GPUPLANNER_DATA"])
    nodes = None if known.nodes is None else folder / known.nodes
    found = read(known.source, folder / known.jobs, tz=known.tz, nodes=nodes)
    if found.kind != "jobs":
        text = message(f"public trace {known.jobs}", "a list of jobs", found.kind, "Check the files.")
        raise ScenarioError(text)
    return found.with_tables(jobs=believed(found.jobs))
