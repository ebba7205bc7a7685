"""Clusters of which it is known what is right: too large, short, wrongly cut, tight, held by quotas, growing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuplanner.scenario import Scenario
from gpuplanner.study.decision.decide import decide
from tests.clusters import planted, truth
from tests.clusters.cluster import Cluster

QUICK = (
    "too_large-1",
    "too_large-2",
    "short-1",
    "short-2",
    "tight-1",
    "tight-2",
    "quota_bound-1",
    "growing-1",
    "growing-3",
)
OTHERS = tuple(name for name in planted.names() if name not in QUICK)


def answered(name: str, handed_over: Callable[[Cluster], str]):
    cluster = planted.planted(name).cluster
    path = "slurm" if cluster.source == "slurm" else "operator"
    return decide(Scenario(data=handed_over(cluster), path=path)).decision


def check(name: str, handed_over: Callable[[Cluster], str]) -> None:
    found, right = answered(name, handed_over), truth.truth(name)
    assert found.action in right.actions
    assert abs(found.gpus - right.right_gpus) <= 0.1 * right.right_gpus
    assert sum(one.gpus for one in found.layouts) == found.gpus
    if name.startswith("quota"):
        assert found.monday[0].startswith("look at quotas")
    if name.startswith("short"):
        assert found.shortage.gpus_needed == right.more_gpus
        assert found.shortage.jobs > 0


@pytest.mark.parametrize("name", QUICK)
def test_what_was_planted_is_found(name, handed_over):
    check(name, handed_over)


@pytest.mark.long
@pytest.mark.parametrize("name", OTHERS)
def test_what_was_planted_is_found_in_the_others(name, handed_over):
    check(name, handed_over)


def test_nobody_keeps_a_starved_cluster(handed_over):
    # Half as many GPUs again would be needed, and today's own fleet is as late as the record.
    assert answered("short-3", handed_over).action == "buy"
