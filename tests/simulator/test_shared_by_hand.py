"""Teams that share nodes where the answer can be worked out by hand: tiers that stop others, fair share, failures."""

from __future__ import annotations

import numpy as np
import pytest

from gpuplanner.core.errors import ScenarioError
from gpuplanner.simulator.scheduling_rules import Checkpoints, Failures, FairShare, PreemptionCosts, QuotaGroup, Sharing
from gpuplanner.simulator.simulation_inputs import NodeFleet, NodeRequests
from gpuplanner.simulator.simulation_run import simulate_shared_requests

NODE = NodeFleet.of_full_gpus([4])
PREEMPTION = PreemptionCosts(overhead_s=10.0, min_run_s=30.0)


def requests_of(*rows):
    """Rows of (submit_s, run_s, gpus), each on one node."""
    submit_s, run_s, gpus = np.array(rows, float).T
    none = np.zeros(len(rows), np.int64)
    return NodeRequests(submit_s, submit_s, run_s, run_s, none, gpus, none + 1)


class TestTiers:
    def run(self, rows, tier, fleet=NODE, **rules):
        rules = {"tiers_preempt": True, "preemption": PREEMPTION} | rules
        return simulate_shared_requests(
            requests_of(*rows), fleet, Sharing(np.zeros(len(tier)), tier, **rules), queue="strict"
        )

    def test_a_stopped_job_loses_the_work_since_its_checkpoint_and_pays_the_overhead(self):
        found = self.run([(0, 100, 4), (50, 20, 2)], [1, 0], checkpoints=Checkpoints(interval_s=15.0))
        # Stopped at 50 with 45 s saved; back at 70 with 10 s of overhead and 55 s of work.
        assert found.start_s.tolist() == [0, 50]
        assert found.end_s.tolist() == [135, 70]
        assert found.stops.tolist() == [1, 0]
        assert found.lost_s.tolist() == [5 + 10, 0]
        assert found.queued_s.tolist() == [20, 0]
        assert found.stopped.rows() == [(0, 0.0, 50.0, 5.0, False)]

    def test_without_checkpoints_all_work_is_lost(self):
        found = self.run([(0, 100, 4), (50, 20, 2)], [1, 0])
        assert found.end_s.tolist() == [180, 70]
        assert found.lost_s.tolist() == [60, 0]

    def test_writing_checkpoints_takes_time(self):
        found = self.run([(0, 100, 4)], [0], checkpoints=Checkpoints(interval_s=25.0, write_s=2.0))
        assert found.end_s.tolist() == [106]
        assert found.lost_s.tolist() == [6]

    def test_a_job_that_began_lately_is_left_alone_until_it_has_run_its_time(self):
        assert self.run([(0, 100, 4), (5, 20, 2)], [1, 0]).start_s.tolist() == [0, 30]

    def test_of_those_that_would_do_the_least_urgent_and_latest_is_stopped_and_no_other(self):
        rows = [(0, 900, 1), (1, 900, 1), (2, 900, 1), (3, 900, 1), (100, 10, 1)]
        assert self.run(rows, [2, 2, 1, 1, 0]).stops.tolist() == [0, 1, 0, 0, 0]

    def test_a_job_that_does_not_stand_in_the_way_is_spared(self):
        # One job of the second node alone makes room for two GPUs; the one stopped before it is spared.
        rows = [(0, 900, 2), (0, 900, 1), (1, 900, 1), (100, 10, 2)]
        found = self.run(rows, [1, 1, 2, 0], fleet=NodeFleet.of_full_gpus([2, 2]))
        assert found.stops.tolist() == [0, 1, 1, 0]

    def test_nobody_is_stopped_for_the_same_tier_or_in_vain(self):
        rows = [(0, 100, 2), (0, 100, 2), (50, 10, 4)]
        assert self.run(rows, [1, 0, 0]).stops.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("half_life_s", "weight", "starts"),
    [(1e9, 1.0, [0, 900, 920, 910]), (10.0, 1.0, [0, 900, 910, 920]), (1e9, 1000.0, [0, 900, 910, 920])],
)
def test_fair_share_goes_by_use_for_each_weight_and_forgets(half_life_s, weight, starts):
    """The first team ran long ago for ten times as long as the second one just now; both wait at 905."""
    jobs = requests_of((0, 100, 4), (900, 10, 4), (905, 10, 4), (905, 10, 4))
    groups = (QuotaGroup(weight=weight), QuotaGroup())
    sharing = Sharing([0, 1, 0, 1], [0] * 4, groups, order="fair", fair_share=FairShare(half_life_s))
    assert simulate_shared_requests(jobs, NODE, sharing, queue="strict").start_s.tolist() == starts


class TestFailures:
    JOBS = requests_of(*((job, 50_000, 1 + job % 4) for job in range(200)))

    def run(self, queue="strict", **values):
        failures = Failures(**({"mtbf_gpu_h": 20.0} | values))
        none = np.zeros(len(self.JOBS))
        sharing = Sharing(none, none, failures=failures, checkpoints=Checkpoints(write_s=30.0))
        return simulate_shared_requests(self.JOBS, NodeFleet.of_full_gpus([8] * 4), sharing, queue=queue)

    def test_the_same_seed_fails_the_same_jobs_under_another_rule(self):
        first = self.run()
        assert first.failures.sum() > 50
        assert first.failures.tolist() == self.run(queue="easy").failures.tolist()
        assert first.failures.tolist() != self.run(seed=1).failures.tolist()

    def test_a_job_that_never_gets_on_is_named_instead_of_run_for_ever(self):
        sharing = Sharing([0, 0], [0, 0], failures=Failures(mtbf_gpu_h=0.001))
        with pytest.raises(ScenarioError, match="request 1: expected an end after at most 10000 starts"):
            simulate_shared_requests(requests_of((0, 1, 1), (1, 1000, 4)), NODE, sharing)


@pytest.mark.parametrize(
    "make",
    [
        lambda: PreemptionCosts(overhead_s=-1.0),
        lambda: PreemptionCosts(min_run_s=-1.0),
        lambda: Checkpoints(interval_s=-1.0),
        lambda: Checkpoints(interval_s=0.0, write_s=1.0),
        lambda: Failures(mtbf_gpu_h=0.0),
        lambda: FairShare(half_life_s=0.0),
    ],
)
def test_rules_out_of_range_are_rejected(make):
    with pytest.raises(ScenarioError, match=r"not below 0|above 0"):
        make()
