"""What was seen is played again: on its own nodes nobody is late, and readiness is what the fleet kept waiting."""

from __future__ import annotations

import numpy as np
import pytest

from gpuplanner.scenario import Scenario
from gpuplanner.simulate.nodes import NodeFleet, NodeRequests, play, readiness
from gpuplanner.study.decision.asked import AS_TODAY, Asked
from gpuplanner.study.decision.compare import opened
from tests.clusters import cut_clusters, growth
from tests.seeds import seeds

SECOND_S = 1.0


def late_on_its_own_nodes(asked: Asked) -> np.ndarray:
    """Seconds by which jobs start later than they did, each on the nodes where it was."""
    begun = ~np.isnan(asked.start_s)
    requests = asked.views[AS_TODAY].requests
    end = np.where(np.isnan(asked.end_s), asked.seen_s, asked.end_s)
    # Accounting drops parts of a second, so that an end may lie behind the start that it made room for.
    run = np.maximum(end - asked.start_s - SECOND_S, 0.0)
    seen = NodeRequests(
        asked.start_s[begun], requests.submit_s[begun], run[begun], run[begun], requests.profile[begun],
        requests.total[begun], requests.nodes[begun],
    )  # fmt: skip
    pins = [asked.pins[row] for row in np.flatnonzero(begun)]
    return play(seen, asked.fleet, pinned=pins).start_s - asked.start_s[begun]


def test_todays_fleet_is_late_for_nobody_on_the_sample():
    assert (late_on_its_own_nodes(opened(Scenario(path="slurm"))[1]) <= SECOND_S).all()


@pytest.mark.parametrize("seed", seeds(2, 4)[1:])
def test_todays_fleet_is_late_for_nobody_on_cut_clusters(seed, handed_over):
    for cluster, path in (
        (cut_clusters.slurm_cut(seed), "slurm"),
        (cut_clusters.kubernetes_cut(seed), "operator"),
    ):
        asked = opened(Scenario(data=handed_over(cluster), path=path))[1]
        assert asked.nodes.named
        assert (late_on_its_own_nodes(asked) <= SECOND_S).all()


def test_a_wait_for_something_else_than_the_fleet_stays_out():
    # Both GPUs are free from 10 on; the second job starts at 500 all the same. The third waits for the second.
    asked = NodeRequests([0, 5, 400], [0, 5, 400], [10, 100, 50], [100] * 3, [0] * 3, [2, 2, 1], [1, 1, 1])
    start, end = np.array([0.0, 500, 600]), np.array([10.0, 600, 650])
    found = readiness(asked, NodeFleet.whole([2]), start, end, seen_s=1000.0)
    assert found.ready_s.tolist() == [0.0, 500.0, 500.0]
    assert found.by_count_s.tolist() == [0.0, 0.0, 100.0]


def test_a_place_that_is_missing_is_told_from_gpus_that_are():
    # Two GPUs are free, one on each node: a job for two on one node has no place.
    asked = NodeRequests([0, 0, 10], [0, 0, 10], [100, 100, 10], [100] * 3, [0] * 3, [1, 1, 2], [1, 1, 1])
    start, end = np.array([0.0, 0, 100]), np.array([100.0, 100, 110])
    found = readiness(asked, NodeFleet.whole([2, 2]), start, end, seen_s=200.0, nodes=[[0], [1], [0]])
    assert found.ready_s[2] == 10.0
    assert (found.by_place_s[2], found.by_count_s[2]) == (90.0, 0.0)


def test_jobs_that_still_wait_count_since_they_had_no_room():
    asked = NodeRequests([0, 20], [0, 20], [500, 10], [500, 10], [0, 0], [2, 1], [1, 1])
    found = readiness(
        asked, NodeFleet.whole([2]), np.array([0.0, np.nan]), np.array([np.nan, np.nan]), seen_s=100.0
    )
    assert found.ready_s[1] == 20.0
    assert found.by_count_s[1] == 80.0


@pytest.mark.parametrize("seed", [3, 11])
def test_every_job_of_a_small_fleet_is_judged_against_its_own_start(seed, handed_over):
    asked, arena = opened(Scenario(data=handed_over(growth.months(seed, 4)), path="slurm"))[1:3]
    waits = asked.start_s - arena.back.ready_s
    assert (waits[arena.judged] >= 0).all()
    assert (arena.back.ready_s[arena.judged] >= asked.views[AS_TODAY].requests.submit_s[arena.judged]).all()
    # What today's fleet is late by without any move is what its history had and a free placement has not.
    assert np.isfinite(arena.today.late_s[:, arena.judged]).all()
