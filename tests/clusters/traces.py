"""Public traces and generated clusters that a decision is tried on, read by the project's own readers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import polars as pl

from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.source_registry import read
from tests.clusters.cluster import Cluster
from tests.clusters.mixed import MixedFleet

FEWEST_JOBS, VIRTUAL_CLUSTERS = 400, 6
"""Virtual clusters of Philly with more jobs than this are taken alone."""
PACIFIC = "America/Los_Angeles"


def read_cluster(cluster: Cluster | MixedFleet) -> Dataset:
    """A generated cluster by its dumps."""
    with tempfile.TemporaryDirectory() as name:
        paths: dict[str, Path] = {}
        for file, text in cluster.files().items():
            paths[file] = Path(name) / file
            paths[file].write_text(text, encoding="utf-8")
        if cluster.source == "slurm":
            return read("slurm", paths["sacct.txt"], nodes=paths.get("nodes.txt"), tz="UTC")
        return read("kubernetes", list(paths.values()))


PUBLIC: Mapping[str, Callable[[Path], Dataset]] = {
    "Fox": lambda data: read("slurm", data / "slurm" / "sacct_fox_2025.txt", tz="Europe/Oslo"),
    "Kalos": lambda data: read("acme", data / "acme" / "trace_kalos.sample_reduced.csv"),
    "Supercloud": lambda data: read("supercloud", data / "supercloud" / "slurm-log-queueing-clean.csv.gz"),
    "OpenB": lambda data: read(
        "openb",
        data / "alibaba_gpu_v2023" / "openb_pod_list_default.csv.gz",
        nodes=data / "alibaba_gpu_v2023" / "openb_node_list_gpu_node.csv",
    ),
    "ITP, cluster 3": lambda data: read("itp", data / "itp" / "cluster03.csv.gz"),
}
"""Whole traces by name, read from the folder of public data."""


@cache
def philly(data: Path) -> Dataset:
    """All of Philly."""
    return read("philly", data / "philly" / "philly.csv.gz", tz=PACIFIC)


def virtual_clusters(data: Path) -> Iterator[tuple[Dataset, str]]:
    """Each large virtual cluster of Philly by itself, most jobs first, with its busiest month."""
    whole = philly(data)
    jobs = whole.jobs.group_by("tenant").len().filter(pl.col("len") > FEWEST_JOBS)
    for name in jobs.sort("len", "tenant", descending=[True, False])["tenant"].head(VIRTUAL_CLUSTERS):
        alone = whole.jobs.filter(pl.col("tenant") == name)
        yield whole.with_tables(jobs=alone), busiest_month(alone)


def busiest_month(jobs: pl.DataFrame) -> str:
    """The month in which most GPU time was asked for."""
    hours = (pl.col("end_time") - pl.col("start_time")).dt.total_seconds() * pl.col("gpus")
    months = jobs.group_by(month=pl.col("submit_time").dt.strftime("%Y-%m")).agg(hours=hours.sum())
    return str(months.sort("hours", "month", descending=[True, False])["month"][0])
