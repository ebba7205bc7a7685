"""What was seen is played again: on its own nodes nobody is late, and jobs arrive between eligibility and start."""

from __future__ import annotations

import numpy as np
import pytest

from gpuplanner.scenario import Scenario
from gpuplanner.simulate.nodes import NodeRequests, play
from gpuplanner.study.decision.asked import AS_TODAY, Asked
from gpuplanner.study.decision.compare import opened
from tests.clusters import cut_clusters, growth
from tests.seeds import seeds

SECOND_S = 1.0


def late_on_its_own_nodes(asked: Asked) -> np.ndarray:
    """Seconds by which jobs start later than they did, each on the nodes where it was."""
    begun = ~np.isnan(asked.start_s)
    requests = asked.views[AS_TODAY]
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


@pytest.mark.parametrize("seed", [3, 11])
def test_every_job_of_a_small_fleet_is_judged_against_its_own_start(seed, handed_over):
    asked, arena = opened(Scenario(data=handed_over(growth.months(seed, 4)), path="slurm"))[1:3]
    judged = arena.judged
    assert (
        arena.ready_s[judged] <= np.where(np.isnan(asked.start_s), asked.seen_s, asked.start_s)[judged]
    ).all()
    assert (arena.ready_s[judged] >= asked.granted.submit_s[judged]).all()
    assert np.isfinite(arena.today.late_s[:, arena.judged]).all()
