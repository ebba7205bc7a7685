"""How much of a GPU cluster each policy allocates: OpenB pods on their 1,213 GPU nodes, pods a CPU second.

Run ``python benchmarks/allocation.py`` (a minute, most of it for replaying every run). The lists are those of the
``alibaba_gpu_v2023`` folder of ``GPUPLANNER_DATA``. Ten orders of arrival of our own, ten of the published
experiments (seeds 42 to 51, with their own random numbers), and variants of the rules that show what the result
depends on; at the end MIG instances. The published simulator states ten minutes a run of some 10,800 pods on two
cores: nine pods a CPU second.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np

from gpuplanner.lab.claims.placement import published_arrivals
from gpuplanner.lab.claims.published.fgd import PUBLISHED
from gpuplanner.lab.placement import (
    POLICIES,
    Allocation,
    Arrivals,
    Nodes,
    PlacementPolicy,
    Pods,
    allocate,
    draw_arrivals,
    mean_curve,
    place_instances,
    read_nodes,
    read_pods,
    verify_allocation,
    verify_instances,
)

AT = (0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3)
PUBLISHED_PODS_PER_S = 10_800 / (600 * 2)
RULES = ("first-fit", "best-fit", "fgd")
PROFILES = ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
MIXES = ((0.4, 0.25, 0.2, 0.1, 0.05), (0.5, 0.3, 0.2, 0.0, 0.0), (0.2, 0.2, 0.2, 0.2, 0.2))


def row(
    name: str, policy: PlacementPolicy | str, draw: Callable[[int], Arrivals], pods: Pods, nodes: Nodes
) -> list[Allocation]:
    """Run ten orders and print their curve."""
    orders = [draw(number) for number in range(10)]
    started = time.process_time()
    runs = [allocate(pods, nodes, policy, arrivals=order, seed=seed) for seed, order in enumerate(orders)]
    rate = sum(len(run.node) for run in runs) / (time.process_time() - started)
    shares = 100 * mean_curve(runs, AT)["allocated_share"].to_numpy()
    spread = 100 * np.std([run.allocated_share(1.0) for run in runs], ddof=1)
    faults = [fault for run in runs for fault in verify_allocation(run)]
    known = PUBLISHED.get(name)
    print(
        f"{name:30}{''.join(f'{share:8.2f}' for share in shares)}{spread:7.2f}"
        f"{f'{known:.2f}' if known else '':>10}{rate:10,.0f}{rate / PUBLISHED_PODS_PER_S:9,.0f} x  "
        f"{'WRONG ' + faults[0] if faults else 'ok'}"
    )
    return runs


def head(title: str) -> None:
    """Print a title and the names of the columns."""
    arrived = "".join(f"{f'{share:.0%}':>8}" for share in AT)
    print(
        f"\n{title}\n{'allocated %, arrived':30}{arrived}{'s.d.':>7}{'published':>10}{'pods/s':>10}{'ratio':>11}"
    )


def openb(pods: Pods, nodes: Nodes) -> None:
    """Tables of the OpenB experiment."""

    def own(number: int) -> Arrivals:
        return draw_arrivals(pods, nodes, seed=number)

    head("Ten orders of our own")
    runs = {name: row(name, name, own, pods, nodes) for name in POLICIES}
    head("The ten published orders")
    for name in ("dot-product", "gpu-packing", "best-fit", "fgd"):
        row(name, name, lambda number: published_arrivals(pods, nodes, 42 + number), pods, nodes)
    head("Variants")
    listed = np.arange(len(nodes.names))
    roomy = Nodes(nodes.names, nodes.cpu_milli, 100 * nodes.memory_mib, nodes.gpus, nodes.models)
    for name in ("best-fit", "fgd"):
        exact = PlacementPolicy(POLICIES[name].node, POLICIES[name].gpu, None)
        row(f"{name}, scores not cut", exact, own, pods, nodes)
        row(f"{name}, ties by list", name, lambda number: Arrivals(own(number).pods, listed), pods, nodes)
        row(f"{name}, ample memory", name, own, pods, roomy)
    for name in ("best-fit", "fgd"):
        print(
            f"\nLeft out by {name}, first order, {runs[name][0].fragmented_gpus[-1]:.0f} GPUs in fragments at the end"
        )
        for reason, count, gpus, share in runs[name][0].unplaced().rows():
            print(f"  {reason:32}{count:6} pods{gpus:8.0f} GPUs{100 * share:7.2f} % of the demand")


def instances() -> None:
    """MIG instances on 100 boards, twice what they hold."""
    print("\n600 MIG instances in ten orders on 100 H100 80 GB: placed, share of memory slices, instances/s")
    print(f"{'mix of ' + ', '.join(PROFILES):52}{''.join(f'{rule:>26}' for rule in RULES)}")
    for mix in MIXES:
        cells = []
        for rule in RULES:
            started = time.process_time()
            asked = [np.random.default_rng(seed).choice(PROFILES, 600, p=mix).tolist() for seed in range(10)]
            runs = [place_instances("H100-80GB-SXM5", names, 100, rule=rule) for names in asked]
            rate = 6000 / (time.process_time() - started)
            share = np.mean([run.allocated_slices for run in runs]) / 800
            wrong = any(verify_instances(run) for run in runs[:2])
            placed = np.mean([run.placed for run in runs])
            cells.append(f"{placed:10.1f}{100 * share:7.2f} %{rate:7,.0f}{'!' if wrong else ''}")
        print(f"{', '.join(f'{share:.0%}' for share in mix):52}{''.join(cells)}")


def main() -> None:
    """Print the tables."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    folder = Path(os.environ.get("GPUPLANNER_DATA", "../shared/data")) / "alibaba_gpu_v2023"
    pods = read_pods(folder / "openb_pod_list_default.csv.gz")
    nodes = read_nodes(folder / "openb_node_list_gpu_node.csv")
    used = ", ".join(f"{name} {version(name)}" for name in ("gpuplanner", "numpy", "numba"))
    print(f"Python {platform.python_version()}, {used}; CPU seconds, one thread, after compilation")
    allocate(pods, nodes)
    openb(pods, nodes)
    instances()


if __name__ == "__main__":
    main()
