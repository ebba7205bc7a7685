"""Nodes of the planted clusters that are powered down while idle: cases counted by hand, and laws on random queues."""

from __future__ import annotations

import numpy as np
import pytest
import replay_recommendation
from queue_simulator import NEVER_S, PowerRule, QueueJobs, QueueRule, make_fleet, simulate

from tests.benchmarks.test_planted_clusters import random_jobs

POWER = PowerRule(idle_s=60, boot_s=300)


def on_three_nodes(*rows, power=POWER, **rule):
    """Jobs of (eligible, GPUs of a node, nodes, run) on three nodes of four GPUs: starts, and sorted spells."""
    eligible_s, gpus, nodes, run_s = np.array(rows).T
    zeros, request = np.zeros_like(eligible_s), np.arange(len(rows))
    jobs = QueueJobs(eligible_s, gpus, nodes, run_s, run_s, zeros + NEVER_S, zeros, zeros, zeros, request)
    result = simulate(jobs, make_fleet((12,), (1,), 4), QueueRule(gap_s=0, **rule), power=power)
    return result.start_s.tolist(), sorted(result.powered.tolist()), result


@pytest.mark.long
def test_idle_nodes_go_after_the_idle_time_and_come_for_jobs_that_wait():
    starts, spells, result = on_three_nodes((0, 4, 1, 1000), (100, 4, 2, 100), (200, 4, 1, 50))
    # The second job calls two nodes at 100; the third needs one more than there are, and finds one on at 500.
    assert starts == [0, 400, 500]
    first, last = (-NEVER_S, 60), (100, 560)
    assert spells == [[0, -NEVER_S, 1060], [1, *first], [1, 100, 610], [2, *first], [2, *last]]
    assert result.power_ups(0, 2000) == 2
    assert result.node_hours(0, 2000) == (1060 + 60 + 510 + 60 + 460) / 3600


def test_jobs_take_nodes_that_are_on_then_those_that_boot_then_the_lowest_of_the_others():
    starts, spells, _ = on_three_nodes(
        (0, 3, 1, 1000), (100, 2, 1, 300), (150, 1, 1, 10), (200, 2, 1, 300), (250, 1, 1, 300), spread=True
    )
    # One GPU is left on the node that is on, and all of the booting one is emptier.
    assert starts == [0, 400, 150, 400, 250]
    assert spells == [[0, -NEVER_S, 1060], [1, -NEVER_S, 60], [1, 100, 760], [2, -NEVER_S, 60]]


def test_reservation_counts_the_boot_of_those_before():
    starts, _, result = on_three_nodes((0, 4, 1, 1000), (100, 4, 2, 2000), (150, 4, 2, 10), (200, 4, 1, 1350))
    # The second job starts at 400, so the third is promised 2400; the last is over by then, and passes it.
    assert result.promised_start_s[2] == 2400
    assert starts == [0, 400, 2400, 1000]


def test_kept_nodes_stay_and_the_highest_number_goes_first():
    _, spells, _ = on_three_nodes((0, 4, 1, 1000), power=POWER._replace(kept=1))
    # At 1000 two nodes are idle, and the higher of them has been for long.
    assert spells == [[0, -NEVER_S, NEVER_S], [1, -NEVER_S, 1000], [2, -NEVER_S, 60]]


def test_nodes_are_refilled_only_where_the_rule_has_it():
    jobs = (0, 4, 1, 1000), (100, 4, 1, 1000), (200, 4, 1, 1000)
    starts, spells, _ = on_three_nodes(*jobs, power=POWER._replace(kept=1))
    assert starts == [0, 100, 500]
    assert spells == [[0, -NEVER_S, NEVER_S], [1, -NEVER_S, 1160], [2, -NEVER_S, 60], [2, 200, 1560]]
    starts, spells, _ = on_three_nodes(*jobs, power=POWER._replace(kept=1, refill=True))
    # As soon as no node is idle the third is called, 100 s before the job that it serves.
    assert starts == [0, 100, 400]
    assert spells == [[0, -NEVER_S, NEVER_S], [1, -NEVER_S, 1160], [2, -NEVER_S, 60], [2, 100, 1460]]


def test_fullest_emptiest_or_lowest_node_is_taken_first():
    jobs = (0, 2, 1, 1000), (1, 3, 1, 1000), (2, 1, 1, 10)
    last = [on_three_nodes(*jobs, **rule)[2].units[2, 0] for rule in ({}, {"spread": True}, {"lowest": True})]
    assert last == [1, 2, 0]


@pytest.mark.parametrize("rule", [QueueRule(), QueueRule(spread=True), QueueRule(reserve_for_head=False)])
def test_nodes_that_are_never_idle_long_enough_change_nothing(rule):
    jobs, fleet = random_jobs(2, interval_s=700), make_fleet((24,), (1,), 8)
    before = simulate(jobs, fleet, rule)
    never_idle = simulate(jobs, fleet, rule, power=PowerRule(NEVER_S // 4, 300, kept=3, refill=True))
    for name in before._fields[:-1]:
        assert (getattr(before, name) == getattr(never_idle, name)).all(), name
    assert never_idle.power_ups(jobs.eligible_s[0], NEVER_S) == 0
    assert never_idle.node_hours(0, 3600) == 3


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("power", [POWER, POWER._replace(kept=1), POWER._replace(kept=2, refill=True)])
def test_jobs_run_on_nodes_that_have_booted_and_only_idle_nodes_go(seed, power):
    jobs, rule = random_jobs(seed, interval_s=3000), QueueRule()
    result = simulate(jobs, make_fleet((32,), (1,), 8), rule, power=power)
    started = np.flatnonzero(result.start_s < NEVER_S)
    assert result.power_ups(jobs.eligible_s[0], NEVER_S) > 10
    for node, up_s, down_s in result.powered.tolist():
        there_s = up_s + power.boot_s * (up_s > -NEVER_S)
        mine = [
            job for job in started if node in result.units[job] and up_s <= result.start_s[job] - power.boot_s < down_s
        ]
        assert all(result.start_s[job] >= there_s for job in mine)
        if down_s < NEVER_S and mine:
            assert max(result.end_s[job] for job in mine) + rule.gap_s + power.idle_s <= down_s
    for job in started:
        for node in result.units[job][: jobs.nodes[job]]:
            there = result.powered[result.powered[:, 0] == node]
            assert ((there[:, 1] <= result.start_s[job]) & (there[:, 2] >= result.end_s[job])).any()


def test_boots_without_time_start_whole_node_jobs_as_if_all_were_on():
    jobs, fleet = random_jobs(3, gpus=(8,), interval_s=4000), make_fleet((32,), (1,), 8)
    always_on = simulate(jobs, fleet, QueueRule())
    saving = simulate(jobs, fleet, QueueRule(), power=PowerRule(600, 0, kept=1))
    assert (saving.start_s == always_on.start_s).all()
    begin_s, end_s = jobs.eligible_s[0], jobs.eligible_s[-1]
    assert saving.node_hours(begin_s, end_s) < 0.9 * always_on.node_hours(begin_s, end_s)


def test_power_saving_where_it_is_not_simulated_is_refused():
    with pytest.raises(ValueError, match="full GPUs"):
        simulate(random_jobs(0), make_fleet((8,), (7,), 8), QueueRule(), power=POWER)


@pytest.mark.long
@pytest.mark.parametrize("words", ["a --seeds 2 4", "b --gpus 128"])
def test_recommendations_come_to_the_same_in_the_simulator(words, capsys):
    assert replay_recommendation.main(words.split()) == 0
    assert capsys.readouterr().out.count("Power idle nodes down") == 2
