"""Clusters as their operators would hand them over: dumps, read by the project's own readers, as a dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.ingest.kubernetes.cluster_reader import read_kubernetes
from gpuplanner.ingest.slurm.accounting import read_slurm
from tests.clusters.cluster import Cluster


@pytest.fixture(scope="session")
def handed_over(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Cluster], str]:
    """Write a cluster's dumps, read them, and give the folder of the dataset."""
    known: dict[str, str] = {}

    def hand_over(cluster: Cluster) -> str:
        if cluster.name not in known:
            folder = tmp_path_factory.mktemp(cluster.name)
            paths: dict[str, Path] = {}
            for name, text in cluster.files().items():
                paths[name] = folder / name
                paths[name].write_text(text)
            if cluster.source == "slurm":
                found = read_slurm([paths["sacct.txt"]], tz="UTC", nodes=paths.get("nodes.txt"))
            else:
                found = read_kubernetes(list(paths.values()))
            write_dataset(found, folder / "data")
            known[cluster.name] = str(folder / "data")
        return known[cluster.name]

    return hand_over


@pytest.fixture(scope="session")
def accounted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Sequence[str]], str]:
    """Write lines of Slurm accounting, read them, and give the folder of the dataset."""
    head = "JobID|User|Account|Partition|State|Submit|Start|End|NNodes|NodeList|ReqTRES|AllocTRES"

    def read(name: str, lines: Sequence[str]) -> str:
        folder = tmp_path_factory.mktemp(name)
        (folder / "sacct.txt").write_text("\n".join([head, *lines]) + "\n")
        write_dataset(read_slurm([folder / "sacct.txt"], tz="UTC"), folder / "data")
        return str(folder / "data")

    return read
