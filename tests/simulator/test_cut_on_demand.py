"""GPUs that are cut as jobs come and go: worked by hand, never oversubscribed, and nobody starves behind anybody."""

from __future__ import annotations

import numpy as np
import pytest

from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.hardware.layout_enumeration import list_placed_layouts
from gpuplanner.simulator.simulation_inputs import DynamicMig, NodeAutoscaling, NodeFleet, NodeRequests, instance_sets
from gpuplanner.simulator.simulation_run import simulate_requests
from tests.simulator.nodes_slow import random_case
from tests.simulator.test_nodes_oracle import as_engine_takes_it

BOARD = load_gpu_model("H100-80GB-SXM5")
NAMES = ("gpu", "1g.10gb", "3g.40gb")
WHOLE, SMALL, HALF = range(3)
MAKE_S, WHOLE_S = 1.0, 5.0
SHARES = np.array([1.0, 1 / 7, 3 / 7])


def flexible(*nodes, whole=True):
    """Nodes of so many GPUs that are all cut as jobs come and go."""
    how = DynamicMig((True,), instance_sets(BOARD, NAMES), MAKE_S, WHOLE_S)
    return NodeFleet(NAMES, nodes, [[how.capacity(gpus, whole=whole)] for gpus in nodes], [0] * len(nodes), SHARES, how)


def asked(*rows):
    """Requests of (ready, run, profile, total), limits as long as they run."""
    ready, run, profile, total = np.array(rows, float).T
    return NodeRequests(ready, ready, run, run, profile, total, np.ones(len(rows)))


def starts(fleet, *rows, **options):
    return simulate_requests(asked(*rows), fleet, **options).start_s.tolist()


def test_an_instance_is_made_before_its_job_begins_and_a_gpu_becomes_whole_again():
    assert starts(flexible(1), (0, 10, WHOLE, 1)) == [0.0]
    assert starts(flexible(1), (0, 10, SMALL, 1), (5, 10, WHOLE, 1)) == [1.0, 11.0 + WHOLE_S]


def test_a_node_holds_what_its_gpus_can_hold_together():
    rows = [(0, 10, HALF, 1), *[(0, 10, SMALL, 1)] * 5]
    assert starts(flexible(1), *rows) == [1.0] * 5 + [12.0]
    assert starts(flexible(1), *[(0, 10, SMALL, 1)] * 8) == [1.0] * 7 + [12.0]
    assert starts(flexible(1), (0, 10, HALF, 2)) == [2.0]


def test_small_instances_share_a_gpu_so_that_others_stay_whole():
    rows = [*[(0, 100, SMALL, 1)] * 7, (1, 10, WHOLE, 3)]
    assert starts(flexible(4), *rows) == [1.0] * 7 + [1.0]


@pytest.mark.parametrize("queue", ["easy", "strict"])
def test_small_jobs_that_never_stop_coming_do_not_keep_whole_gpus_from_a_job(queue):
    small = [(second, 50, SMALL, 1) for second in range(0, 2000, 2)]
    gang = (100, 60, WHOLE, 2)
    [*others, start] = starts(flexible(2), *small, gang, queue=queue)
    running = [at for at, row in zip(others, small, strict=True) if row[0] <= 100]
    # It begins when the last of those that came before it has ended, and is never passed by one that lasts longer.
    assert start <= max(running) + 50 + WHOLE_S
    assert not any(100 <= at < start and at + 50 > start for at in others)


@pytest.mark.parametrize("queue", ["easy", "strict"])
def test_jobs_on_whole_gpus_do_not_starve_an_instance(queue):
    whole = [(second, 50, WHOLE, 2) for second in range(0, 1000, 10)]
    [*_, start] = starts(flexible(2), *whole, (15, 5, HALF, 1), queue=queue)
    assert start == 101.0  # behind the two that came before it


def test_where_mig_mode_needs_a_reboot_an_empty_node_changes_as_a_whole():
    how = DynamicMig((False, True), instance_sets(BOARD, NAMES), MAKE_S, WHOLE_S)
    capacity = [[[2, 0, 0], how.capacity(2, whole=False)]]
    fleet = NodeFleet(NAMES, [2], capacity, [1], SHARES, how)
    small = [(second, 50, SMALL, 1) for second in range(0, 3000, 10)]
    reboot = NodeAutoscaling(0.0, 600.0, (1, 1))
    [first, *_, gang] = starts(fleet, *small, (800, 50, WHOLE, 2), switching=reboot)
    assert first == 1.0
    # The node empties for the gang within the time of a job, and reboots.
    assert 1400.0 <= gang <= 800.0 + 51.0 + 600.0


def fits(gpus, whole, small, half):
    """Whether so many instances can be on so many GPUs: a GPU has two halves, or one and four small, or seven."""
    left = gpus - whole
    return any(
        2 * two + one >= half and 4 * one + 7 * (left - two - one) >= small
        for two in range(left + 1)
        for one in range(left + 1 - two)
    )


def test_no_gpu_is_ever_oversubscribed():
    held_at_all = 0
    for seed in range(200):
        case = random_case(seed, flexible=True)
        (requests, fleet), options = as_engine_takes_it(case)
        outcome = simulate_requests(requests, fleet, **options)
        rows = [
            (node, profile, amount, outcome.start_s[request], outcome.start_s[request] + requests.run_s[request])
            for request, node, profile, amount in outcome.allocations.iter_rows()
        ]
        for node, gpus in enumerate(fleet.gpus.tolist()):
            mine = [row for row in rows if row[0] == node]
            for instant in {row[3] for row in mine}:
                held = [0, 0, 0]
                for _, profile, amount, start, end in mine:
                    held[profile] += amount if start <= instant < end else 0
                pools = [
                    pool
                    for _, pool, since, until in outcome.power_intervals.filter(node=node).iter_rows()
                    if since <= instant < until
                ]
                for pool in pools:
                    if fleet.flexible.pools[pool]:
                        held_at_all += sum(held)
                        assert fits(gpus, *held), (seed, node, instant, held)
    assert held_at_all > 1000


def test_a_set_of_instances_is_one_that_the_board_can_hold_and_goes_back_the_way_it_came():
    gpu_model = load_gpu_model("A30-24GB")
    names = ("gpu", *(profile.name for profile in gpu_model.profiles))
    found = instance_sets(gpu_model, names)
    assert (
        len(found.after_adding) == len(list_placed_layouts(gpu_model)) + 2
    )  # and the empty GPU, and the one that is held whole
    for held, profile in zip(*np.nonzero(found.after_adding >= 0), strict=True):
        after, slot = found.after_adding[held, profile], found.start_slice[held, profile]
        assert found.after_removing[after, slot] == held
        assert found.room[held, profile] == 1 + found.room[after, profile]
        assert found.loss[held, profile] > 0


def heavy(seed):
    """Jobs on whole GPUs and instances for a fleet of 16 GPUs that is in use for nine tenths of its time."""
    rng = np.random.default_rng([11, seed])
    count = 1500
    profile = rng.choice(3, count, p=[0.35, 0.4, 0.25])
    total = np.where(profile == WHOLE, rng.choice([1, 2, 4], count, p=[0.6, 0.25, 0.15]), 1)
    run = rng.lognormal(6.0, 1.0, count)
    ready = np.cumsum(rng.exponential(run @ (SHARES[profile] * total) / count / (0.9 * 16), count))
    return NodeRequests(ready, ready, run, run * rng.uniform(1, 3, count), profile, total, np.ones(count))


def static(cut):
    """Four nodes of four GPUs of which so many are cut, in turn for halves and for small instances beside one."""
    rows = []
    for node in range(4):
        mine = max(min(cut - 4 * (3 - node), 4), 0)
        rows.append([[4 - mine, 4 * (mine // 2 + mine % 2), mine // 2 + mine % 2 + 2 * (mine // 2)]])
    return NodeFleet(NAMES, [4] * 4, rows, [0] * 4, SHARES)


@pytest.mark.long
def test_jobs_on_whole_gpus_wait_no_longer_than_under_the_static_layout_that_waits_least():
    """On average: the layout is the best of nine for the very jobs that come, so that by luck one may win."""
    longer = []
    for seed in range(10):
        requests = heavy(seed)
        fleets = [flexible(4, 4, 4, 4), *(static(cut) for cut in range(1, 10))]
        on_demand, *others = (
            np.maximum(simulate_requests(requests, fleet).start_s - requests.ready_s, 0.0) for fleet in fleets
        )
        best = min(others, key=np.mean)
        on_whole = requests.profile == WHOLE
        longer.append((on_demand[on_whole].mean() - best[on_whole].mean(), on_demand.mean() - best.mean()))
    assert (np.mean(longer, axis=0) <= WHOLE_S).all()
