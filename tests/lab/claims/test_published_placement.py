"""The published experiment: OpenB pods on 1,213 GPU nodes, allocation at 100 and 130 % arrived demand."""

from __future__ import annotations

import numpy as np
import pytest

from gpuplanner.lab.claims.placement import published_arrivals
from gpuplanner.lab.claims.placement.published import GoRandom
from gpuplanner.lab.placement import (
    allocate,
    draw_arrivals,
    mean_curve,
    read_nodes,
    read_pods,
    verify_allocation,
)

# Allocated share of all GPUs [%] of the ten published runs, seeds 42 to 51: hkust-adsl/
# kubernetes-scheduler-simulator, experiments/analysis/expected_results/analysis_allo_discrete.csv.
PUBLISHED = {
    ("dot-product", 100): (90.34, 90.56, 90.83, 90.69, 90.55, 90.52, 91.0, 90.68, 90.53, 90.52),
    ("dot-product", 130): (90.54, 90.84, 91.03, 90.89, 90.74, 90.75, 91.28, 90.93, 90.76, 90.73),
    ("gpu-packing", 100): (91.37, 91.78, 91.91, 92.58, 91.12, 91.07, 92.51, 91.83, 91.46, 92.16),
    ("gpu-packing", 130): (91.57, 92.06, 92.1, 92.79, 91.3, 91.29, 92.78, 92.06, 91.69, 92.38),
    ("best-fit", 100): (92.94, 92.97, 92.89, 92.93, 93.0, 92.84, 92.68, 93.04, 92.64, 92.69),
    ("best-fit", 130): (93.13, 93.25, 93.09, 93.14, 93.19, 93.04, 92.95, 93.21, 92.87, 92.89),
    ("fgd", 100): (95.14, 95.06, 95.29, 95.38, 95.35, 95.14, 95.18, 95.3, 95.15, 95.28),
    ("fgd", 130): (95.29, 95.32, 95.44, 95.48, 95.49, 95.27, 95.37, 95.47, 95.35, 95.43),
}


@pytest.fixture(scope="module")
def openb(public_data):
    folder = public_data / "alibaba_gpu_v2023"
    pods = read_pods(folder / "openb_pod_list_default.csv.gz")
    return pods, read_nodes(folder / "openb_node_list_gpu_node.csv")


def as_published(found, percent):
    """Mean of the allocated share, in hundredths of a percent, where the arrived share rounds to a percent."""
    gpus = found.nodes.capacity / 1000
    arrived = np.round(100 * found.arrived_gpus / gpus)
    return np.round(100 * found.allocated_gpus / gpus, 2)[arrived == percent].mean()


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.long
@pytest.mark.parametrize("runs_of_each", [3, 10])
def test_forty_published_runs_to_the_digit(openb, runs_of_each):
    orders = [published_arrivals(*openb, seed) for seed in range(42, 42 + runs_of_each)]
    for policy in ("dot-product", "gpu-packing", "best-fit", "fgd"):
        runs = [allocate(*openb, policy, arrivals=order) for order in orders]
        for percent in (100, 130):
            shares = [round(as_published(run, percent), 2) for run in runs]
            assert shares == list(PUBLISHED[policy, percent][:runs_of_each])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.data
def test_ten_orders_of_our_own(openb):
    means = {}
    for policy in ("best-fit", "fgd", "random"):
        runs = [allocate(*openb, policy, arrivals=draw_arrivals(*openb, seed=s), seed=s) for s in range(10)]
        curve = mean_curve(runs)
        assert curve["orders"].to_list() == [10] * 11
        assert curve["allocated_share"].is_sorted()
        means[policy] = 100 * curve["allocated_share"][4]
        assert verify_allocation(runs[-1]) == []
    assert means["best-fit"] == pytest.approx(92.86, abs=0.5)
    assert means["fgd"] == pytest.approx(95.23, abs=0.5)
    assert means["random"] < means["best-fit"] < means["fgd"]


def test_go_random():
    """First numbers of the default source, and of its permutation, as Go's own documentation prints them."""
    random = GoRandom(1)
    assert [random.int63() for _ in range(3)] == [
        5577006791947779410,
        8674665223082153551,
        6129484611666145821,
    ]
    random = GoRandom(1)
    assert [random.below(100) for _ in range(6)] == [81, 87, 47, 59, 81, 18]


def test_go_random_below_a_power_of_two_and_in_permutations():
    random = GoRandom(42)
    assert {random.below(8) for _ in range(200)} == set(range(8))
    assert sorted(random.permutation(50)) == list(range(50))
    assert sorted(random.shuffled(list(range(50)))) == list(range(50))
    assert GoRandom(0).int63() == GoRandom(89482311).int63()
