"""What a record may hold, by itself or by intent: more jobs, a starved profile, holds, long boots."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.policy_comparison import evaluate_policies, load_policy_simulation
from gpuplanner.decision.policy_simulation import PolicySetting
from gpuplanner.decision.recommendation import decide
from gpuplanner.decision.requested_jobs import AS_TODAY
from gpuplanner.simulator.simulation_inputs import NodeAutoscaling
from tests.clusters import planted


@pytest.fixture(scope="module")
def tight(handed_over):
    return handed_over(planted.planted("tight-1").cluster)


@pytest.fixture(scope="module")
def large(handed_over):
    return handed_over(planted.planted("too_large-1").cluster)


@pytest.mark.long
def test_half_as_many_jobs_again_are_never_answered_with_keep(tight):
    found = decide(Scenario(data=tight, actuator="slurm", arrival_scale=1.5, policies="fewer_nodes")).decision
    assert found.action == "buy"
    assert found.gpus > found.fleet_gpus


def test_more_jobs_wait_more(tight):
    waits = []
    for times in (0.7, 1.0, 1.3, 1.6):
        replayed_jobs = load_policy_simulation(Scenario(data=tight, actuator="slurm", arrival_scale=times))[2]
        waits.append(
            float(
                np.minimum(
                    replayed_jobs.today.start_delay_s[replayed_jobs.is_evaluated], replayed_jobs.asked_jobs.observed_s
                ).mean()
            )
        )
    assert waits == sorted(waits)
    assert waits[0] < 600 < waits[-1]


@pytest.mark.long
def test_a_starved_profile_is_not_hidden_by_others_of_its_size(handed_over):
    cluster = planted.planted("wrongly_cut-1").cluster
    found = decide(Scenario(data=handed_over(cluster), actuator="slurm")).decision
    assert found.longest_waiting.size == "1g.5gb"
    assert found.action == "repartition"


def test_a_boot_for_everybody_is_late_for_everybody(large):
    """Nodes that go at once and take 40 minutes to come: no share of the jobs is served as today."""
    replayed_jobs = load_policy_simulation(Scenario(data=large, actuator="slurm"))[2]
    today = replayed_jobs.today.setting
    slow = replace(today, policy="boots", switching=NodeAutoscaling(0.0, 2400.0))
    assert not replayed_jobs.meets_limit(replayed_jobs.simulate(slow), replayed_jobs.is_evaluated)
    assert replayed_jobs.meets_limit(
        replayed_jobs.simulate(PolicySetting("on", AS_TODAY, today.fleet, today.layouts, today.node_numbers)),
        replayed_jobs.is_evaluated,
    )


def test_where_nodes_may_take_longer_than_jobs_may_wait_the_largest_gang_has_a_reserve(large):
    found = evaluate_policies(Scenario(data=large, actuator="slurm", max_added_wait_minutes=5.0))
    row = next(one for one in found.evaluated_policies if one.policy == "power_down_idle")
    assert found.abilities.lead.high > 300
    assert row.run is None or row.run.setting.values["idle_nodes_kept"] >= 1


def test_five_jobs_in_a_hundred_late_by_days_are_seen(large):
    """A way that lets 4 % of the jobs wait for days holds the quantile, and is out by the mean of all."""
    replayed_jobs = load_policy_simulation(Scenario(data=large, actuator="slurm"))[2]
    is_evaluated = np.flatnonzero(replayed_jobs.is_evaluated)
    late = replayed_jobs.today.waits_s.copy()
    late[:, is_evaluated[:: len(is_evaluated) // (len(is_evaluated) // 25)]] = 2 * 86400.0
    forged = replace(replayed_jobs.today, waits_s=late)
    limits = replayed_jobs.todays_minutes(replayed_jobs.is_evaluated) + replayed_jobs.limit_minutes
    assert (replayed_jobs.wait_minutes(forged, replayed_jobs.is_evaluated)[:-1] <= limits[:-1]).all()
    assert not replayed_jobs.meets_limit(forged, replayed_jobs.is_evaluated)


def test_a_hold_of_six_hours_is_no_shortage(handed_over):
    cluster = planted.planted("quota_bound-1").cluster
    replayed_jobs = load_policy_simulation(Scenario(data=handed_over(cluster), actuator="slurm"))[2]
    held = np.nansum(replayed_jobs.asked_jobs.start_s - replayed_jobs.asked_jobs.requests.submit_s)
    assert replayed_jobs.waits.seconds[:, :3].sum() < 0.05 * held


def test_jobs_that_never_start_are_never_served(large):
    """One node of four GPUs holds all single jobs, and no gang of eight: a way with it alone is out."""
    replayed_jobs = load_policy_simulation(Scenario(data=large, actuator="slurm"))[2]
    fleet = replayed_jobs.asked_jobs.fleet.only([0])
    one = PolicySetting("one node", AS_TODAY, fleet, (), (0,))
    assert not replayed_jobs.meets_limit(replayed_jobs.simulate(one), replayed_jobs.is_evaluated)
