"""Orders of arrival, and what is told of an allocation."""

from __future__ import annotations

import dataclasses

import numpy as np
import polars as pl
import pytest

from gpuplanner.errors import ScenarioError
from gpuplanner.lab.claims.placement import published_arrivals
from gpuplanner.lab.placement import (
    REASONS,
    Arrivals,
    Nodes,
    Pods,
    allocate,
    as_listed,
    draw_arrivals,
    mean_curve,
    verify_allocation,
)
from gpuplanner.lab.placement.result import device_list


@pytest.fixture
def pods():
    return Pods(list("abcde"), [1000] * 5, [10] * 5, [1, 1, 2, 0, 1], [500, 250, 1000, 0, 1000])


@pytest.fixture
def nodes():
    return Nodes(["n1", "n2"], [64000, 2000], [100, 100], [2, 2], ["T4", "T4"])


@pytest.mark.parametrize("up_to", [0.3, 1.0, 1.3, 7.7])
def test_drawn_orders_end_before_the_demand_is_exceeded(pods, nodes, up_to):
    for seed in range(20):
        order = draw_arrivals(pods, nodes, seed=seed, up_to=up_to)
        assert pods.demand[order.pods].sum() <= up_to * nodes.capacity
        assert sorted(order.nodes) == [0, 1]
        listed = order.pods[: len(pods.names)]
        assert len(set(listed.tolist())) == len(listed)
        longer = draw_arrivals(pods, nodes, seed=seed, up_to=2 * up_to)
        assert longer.pods[: len(order.pods)].tolist() == order.pods.tolist()


def test_published_orders_bring_every_listed_pod_first(pods, nodes):
    order = published_arrivals(pods, nodes, 42, up_to=3.0)
    assert sorted(order.pods[:5].tolist()) == [0, 1, 2, 3, 4]
    assert 3.0 * nodes.capacity - pods.demand[order.pods].sum() + 1000 >= 0
    swapped = Nodes(nodes.names[::-1], [2000, 64000], [100, 100], [2, 2])
    again = published_arrivals(pods, swapped, 42, up_to=3.0)
    assert again.pods.tolist() == order.pods.tolist()
    assert (1 - again.nodes).tolist() == order.nodes.tolist()


def test_totals_curve_and_reasons(pods, nodes):
    found = allocate(pods, nodes, "first-fit", arrivals=as_listed(pods, nodes))
    assert found.node.tolist() == [0, 0, 1, 0, 0]
    assert found.arrived_gpus.tolist() == [0.5, 0.75, 2.75, 2.75, 3.75]
    assert found.allocated_share() == found.allocated_share(0.9375) == 3.75 / 4
    assert found.allocated_share(0.2) == 0.75 / 4
    assert found.allocated_share(1.0) is None
    assert found.allocated_share(0.1) is None
    assert found.curve((0.2, 0.9, 1.0))["arrived_share"].to_list() == [0.2, 0.9]
    assert found.unplaced().is_empty()
    frame = found.to_frame()
    assert frame["gpus"].to_list() == ["0", "0", "0-1", "", "1"]
    assert frame["allocated_gpus"][-1] == found.to_dict()["allocated_share"] * 4


def test_unplaced_by_reason(pods, nodes):
    twice = Arrivals(np.array([2, 2, 2, 0, 3]), np.array([0, 1]))
    found = allocate(pods, nodes, "first-fit", arrivals=twice)
    assert found.node.tolist() == [0, 1, -1, -1, 0]
    assert found.unplaced().rows() == [(REASONS[3], 2, 2.5, pytest.approx(2.5 / 6.5))]
    assert found.to_frame()["node"].to_list() == ["n1", "n2", None, None, "n1"]


def test_mean_curve_spans_the_orders(pods, nodes):
    runs = [allocate(pods, nodes, "best-fit", arrivals=draw_arrivals(pods, nodes, seed=s)) for s in range(5)]
    curve = mean_curve(runs, (0.5, 0.8))
    each = pl.concat([run.curve((0.8,)) for run in runs])["allocated_share"]
    row = curve.filter(pl.col("arrived_share") == 0.8).row(0, named=True)
    assert (row["lowest"], row["highest"]) == (each.min(), each.max())
    assert row["allocated_share"] == pytest.approx(each.mean())


def test_verifier_names_each_fault(pods, nodes):
    found = allocate(pods, nodes, "first-fit")

    def faults(**changes):
        return " | ".join(verify_allocation(dataclasses.replace(found, **changes)))

    assert "short of CPU" in faults(node=np.array([1, 1, 0, 1, 1]), devices=np.array([1, 1, 3, 0, 2]))
    assert "GPU 0 of node n1 holds 1750 of 1000" in faults(devices=np.array([1, 1, 3, 0, 1]))
    assert "GPUs [0] of the 2" in faults(devices=np.array([1, 1, 1, 0, 2]))
    assert "GPUs [2]" in faults(devices=np.array([4, 1, 3, 0, 2]))
    out = {"node": np.array([0, 0, 1, 0, -1]), "reason": np.array([0, 0, 0, 0, 4])}
    assert "left out, but node n1 has room" in faults(**out)
    assert "node -1 with reason 0" in faults(node=out["node"])
    assert "other numbers" in faults(node=np.array([0]))
    wanting = dataclasses.replace(pods, models=("A10", "", "", "", ""))
    assert "has T4, not A10" in faults(pods=wanting)
    tight = Nodes(nodes.names, nodes.cpu_milli, [15, 100], nodes.gpus, nodes.models)
    assert "short of memory" in faults(nodes=tight)


def test_seeds_repeat_and_differ(cluster):
    pods, nodes = cluster(4)
    order = draw_arrivals(pods, nodes, seed=1, up_to=3.0)
    runs = [allocate(pods, nodes, "random", arrivals=order, seed=seed).node.tolist() for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("up_to", [0, -1.0, float("nan"), 1e9])
def test_impossible_demand(pods, nodes, up_to):
    with pytest.raises(ScenarioError, match="up_to"):
        draw_arrivals(pods, nodes, seed=0, up_to=up_to)


def test_nothing_to_draw(pods, nodes):
    bare = Nodes(["n"], [1000], [1], [0])
    for asked, there in ((pods, bare), (Pods(["a"], [1], [1], [0], [0]), nodes)):
        with pytest.raises(ScenarioError, match="GPUs, and pods that want some"):
            draw_arrivals(asked, there, seed=0)


def test_nodes_must_be_ordered_whole(pods, nodes):
    with pytest.raises(ScenarioError, match="every node once"):
        allocate(pods, nodes, arrivals=Arrivals(np.array([0]), np.array([0, 0])))


def test_device_list_of_nothing():
    assert device_list(0) == []
