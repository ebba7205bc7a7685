"""Small clusters, drawn."""

from __future__ import annotations

import numpy as np
import pytest

from gpuplanner.lab.placement import Nodes, Pods

MODELS = ("A10", "T4", "V100")


def draw_cluster(seed: int) -> tuple[Pods, Nodes]:
    rng = np.random.default_rng(seed)
    n_nodes, n_pods = int(rng.integers(1, 7)), int(rng.integers(1, 45))
    nodes = Nodes(
        [f"n{i}" for i in range(n_nodes)],
        rng.choice([4000, 16000, 32000], n_nodes),
        rng.choice([4096, 32768], n_nodes),
        rng.choice([0, 1, 2, 4], n_nodes),
        rng.choice(MODELS, n_nodes).tolist(),
    )
    gpus = rng.choice([0, 1, 1, 1, 2, 4], n_pods)
    milli = np.where(gpus > 1, 1000, rng.choice([100, 250, 330, 500, 700, 1000], n_pods))
    wanted = rng.choice(["", "", "", "T4", "A10|T4", "V100", "H100"], n_pods).tolist()
    pods = Pods(
        [f"p{i}" for i in range(n_pods)],
        rng.choice([0, 500, 1000, 6000], n_pods),
        rng.choice([0, 512, 4096, 40000], n_pods),
        gpus,
        np.where(gpus == 0, 0, milli),
        wanted,
    )
    return pods, nodes


@pytest.fixture(scope="session")
def cluster():
    return draw_cluster
