"""What was seen is possible: on its own nodes everybody has room, and jobs arrive between eligibility and start."""

from __future__ import annotations

import heapq

import numpy as np
import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.policy_comparison import load_policy_simulation
from gpuplanner.decision.requested_jobs import AS_TODAY, JobReplayInputs
from tests.clusters import cut_clusters, growth
from tests.seeds import seeds

SECOND_S = 1.0


def jobs_without_room(asked: JobReplayInputs) -> list[int]:
    """Jobs that find too little room on the nodes where they were, though all before them end a second early."""
    requests, free = asked.views[AS_TODAY], asked.fleet.capacity[:, 0, :].copy()
    end = np.where(np.isnan(asked.end_s), asked.observed_s, asked.end_s)
    running, lacking = [], []
    for row in np.argsort(asked.start_s, kind="stable").tolist():
        start, profile, left = asked.start_s[row], requests.profile[row], int(requests.total[row])
        if np.isnan(start) or not asked.observed_nodes[row]:
            continue
        # Accounting drops parts of a second, so that an end may lie behind the start that it made room for.
        while running and running[0][0] <= start + SECOND_S:
            _, held, freed = heapq.heappop(running)
            for node, amount in freed:
                free[node, held] += amount
        taken = []
        for later, node in zip(
            range(len(asked.observed_nodes[row]) - 1, -1, -1), asked.observed_nodes[row], strict=True
        ):
            taken.append((node, min(int(free[node, profile]), left - later)))
            left -= taken[-1][1]
        if left or min(amount for _, amount in taken) < 1:
            lacking.append(row)
        for node, amount in taken:
            free[node, profile] -= amount
        heapq.heappush(running, (max(end[row] - SECOND_S, start), profile, taken))
    return lacking


def test_todays_fleet_has_room_for_everybody_on_the_sample():
    assert jobs_without_room(load_policy_simulation(Scenario(actuator="slurm"))[1]) == []


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(2, 4)[1:])
def test_todays_fleet_has_room_for_everybody_on_cut_clusters(seed, handed_over):
    for cluster, path in ((cut_clusters.slurm_cut(seed), "slurm"), (cut_clusters.kubernetes_cut(seed), "mig-manager")):
        asked = load_policy_simulation(Scenario(data=handed_over(cluster), actuator=path))[1]
        assert asked.nodes.named
        assert jobs_without_room(asked) == []


@pytest.mark.parametrize("seed", [3, 11])
def test_every_job_of_a_small_fleet_is_judged_against_its_own_start(seed, handed_over):
    asked, replayed_jobs = load_policy_simulation(Scenario(data=handed_over(growth.months(seed, 4)), actuator="slurm"))[
        1:3
    ]
    is_evaluated = replayed_jobs.is_evaluated
    assert (
        replayed_jobs.arrival_s[is_evaluated]
        <= np.where(np.isnan(asked.start_s), asked.observed_s, asked.start_s)[is_evaluated]
    ).all()
    assert (replayed_jobs.arrival_s[is_evaluated] >= asked.requests.submit_s[is_evaluated]).all()
    assert np.isfinite(replayed_jobs.today.waits_s[:, replayed_jobs.is_evaluated]).all()
