"""The compiled loop over nodes against the slow program, and against what has to be true of any play."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.simulator.simulation_inputs import DynamicMig, NodeAutoscaling, NodeFleet, NodeRequests, instance_sets
from gpuplanner.simulator.simulation_run import simulate_requests
from tests.examples import examples
from tests.simulator.nodes_slow import play_slow, random_case, spells_of

CASES, BATCHES = 200, 20
NOBODY = -1
BOARD = load_gpu_model("H100-80GB-SXM5")


def as_engine_takes_it(case):
    """The same case in the engine's own types."""
    rows, fleet, switching = case["requests"], case["fleet"], case["switching"]
    columns = ["ready", "submit", "run", "limit", "profile", "total", "nodes"]
    how = fleet.get("flexible")
    names = ("gpu", "1g.10gb", "3g.40gb")[: len(case["weights"])]
    return (
        NodeRequests(*([row[column] for row in rows] for column in columns)),
        NodeFleet(
            names,
            fleet["gpus"],
            fleet["capacity"],
            fleet["first"],
            case["weights"],
            how and DynamicMig(tuple(how["pools"]), instance_sets(BOARD, names), how["make_s"], how["whole_s"]),
        ),
    ), {
        "queue": case["queue"],
        "placement": case["placement"],
        "larger": case["larger"],
        "switching": None if switching is None else NodeAutoscaling(**switching),
    }


@cache
def played(seed, flexible=False, queue=None):
    """A case, and what the engine makes of it."""
    case = random_case(seed, flexible=flexible, queue=queue)
    (requests, fleet), options = as_engine_takes_it(case)
    return case, simulate_requests(requests, fleet, **options)


def intervals(outcome, nodes):
    """(from, until, pool) of each node in order of time."""
    found = [[] for _ in range(nodes)]
    for node, pool, start, until in outcome.power_intervals.select("node", "pool", "from_s", "until_s").iter_rows():
        found[node].append((start, until, pool))
    return [sorted(each) for each in found]


def differences(seed, flexible=False, queue=None):
    """What the engine and the slow program say differently, in words."""
    case, outcome = played(seed, flexible, queue)
    start_s, on = play_slow(**case)
    said = [
        f"case {seed}, request {row}: {mine} here, {theirs} by the engine"
        for row, (mine, theirs) in enumerate(zip(start_s, outcome.start_s.tolist(), strict=True))
        if mine != theirs and not (math.isnan(mine) and math.isnan(theirs))
    ]
    for node, (mine, theirs) in enumerate(zip(on, intervals(outcome, len(case["fleet"]["gpus"])), strict=True)):
        if sorted(mine) != theirs:
            said.append(f"case {seed}, node {node}: on {mine} here, {theirs} by the engine")
    return said


def batch(number):
    """Seeds of one batch."""
    return range(number * CASES // BATCHES, (number + 1) * CASES // BATCHES)


in_batches = pytest.mark.parametrize("number", range(BATCHES))


@in_batches
def test_the_engine_plays_as_the_slow_program_does(number):
    assert [line for seed in batch(number) for line in differences(seed)] == []


@in_batches
def test_gpus_that_are_cut_as_jobs_come_are_played_as_the_slow_program_does(number):
    assert [line for seed in batch(number) for line in differences(seed, flexible=True)] == []


@in_batches
def test_a_queue_of_slurm_is_played_as_the_slow_program_does(number):
    assert [line for seed in batch(number) for line in differences(seed, queue="slurm")] == []


def test_in_slurm_a_slice_that_waits_holds_a_whole_node_and_a_job_stays_with_the_node_that_it_woke():
    """Node 0 has two 1g and one 3g. One 1g is taken until 100 s by limit; who asks for two reserves all of the node."""
    columns = {
        #             1g   2 × 1g  3g long  3g short
        "ready_s": [0.0, 1.0, 2.0, 3.0],
        "submit_s": [0.0, 1.0, 2.0, 3.0],
        "run_s": [50.0, 10.0, 10.0, 10.0],
        "limit_s": [100.0, 10.0, 400.0, 20.0],
        "profile": [1, 1, 2, 2],
        "total": [1, 2, 1, 1],
        "nodes": [1, 1, 1, 1],
    }
    fleet = NodeFleet(("gpu", "1g.10gb", "3g.40gb"), [1], [[[0, 2, 1]]], [0], (8.0, 1.0, 3.0))
    assert simulate_requests(NodeRequests(**columns), fleet).start_s.tolist() == [0.0, 50.0, 2.0, 12.0]
    assert simulate_requests(NodeRequests(**columns), fleet, queue="slurm").start_s.tolist() == [0.0, 50.0, 50.0, 3.0]
    # Two nodes of one GPU, the second one asleep; the first is free again before the second is there.
    jobs = NodeRequests([0, 1], [0, 1], [20, 10], [20, 10], [0, 0], [1, 1], [1, 1])
    nodes = NodeFleet(("gpu",), [1, 1], [[[1]], [[1]]], [0, NOBODY], (1.0,))
    for queue, start, look_s in (("easy", 20.0, 0.0), ("slurm", 101.0, 0.0), ("slurm", 120.0, 30.0)):
        switching = NodeAutoscaling(idle_s=600.0, lead_s=100.0, look_s=look_s)
        assert simulate_requests(jobs, nodes, queue=queue, switching=switching).start_s.tolist() == [0.0, start], queue


@in_batches
def test_nodes_hold_no_more_than_they_offer_and_only_while_they_are_on(number):
    for seed in batch(number):
        case, outcome = played(seed)
        capacity, lead_s = case["fleet"]["capacity"], (case["switching"] or {"lead_s": 0.0})["lead_s"]
        for node, (held, on) in enumerate(
            zip(spells_of(case, outcome), intervals(outcome, len(capacity)), strict=True)
        ):
            assert all(before[1] <= after[0] for before, after in pairwise(on)), (seed, node)
            for start, end, profile, mine, request in held:
                pools = [pool for since, until, pool in on if since + lead_s <= start and end <= until]
                at_once = mine if end == start else 0  # what it takes it may give back before others start
                at_once += sum(
                    amount
                    for other_start, other_end, other, amount, _ in held
                    if other == profile and other_start <= start < other_end and end > start
                )
                assert any(at_once <= capacity[node][pool][profile] for pool in pools), (seed, node, request)


@in_batches
def test_requests_get_what_they_asked_for_once_they_are_ready(number):
    for seed in batch(number):
        case, outcome = played(seed)
        shares = outcome.allocations.group_by("request").agg("node", "profile", "amount")
        given = {row["request"]: row for row in shares.iter_rows(named=True)}
        for row, (asked, start) in enumerate(zip(case["requests"], outcome.start_s.tolist(), strict=True)):
            assert math.isnan(start) == (row not in given), (seed, row)
            if row not in given:
                continue
            mine = given[row]
            assert start >= asked["ready"], (seed, row)
            assert sum(mine["amount"]) == asked["total"], (seed, row)
            assert len(set(mine["node"])) == len(mine["node"]) == asked["nodes"], (seed, row)
            [profile] = set(mine["profile"])
            assert profile in (asked["profile"], *case["larger"][asked["profile"]]), (seed, row)
            per = -(-asked["total"] // asked["nodes"])
            assert sorted(mine["amount"])[1:] == [per] * (asked["nodes"] - 1), (seed, row)


@in_batches
def test_who_asks_for_the_same_slice_is_served_in_turn_and_so_is_a_strict_queue(number):
    for seed in batch(number):
        case, outcome = played(seed)
        asked = case["requests"]
        in_turn = sorted(range(len(asked)), key=lambda row: (asked[row]["ready"], asked[row]["submit"], row))
        for profile in range(len(case["weights"])):
            starts = [float(outcome.start_s[row]) for row in in_turn if asked[row]["profile"] == profile]
            if profile or case["queue"] == "strict":
                known = [start for start in starts if not math.isnan(start)]
                assert known == sorted(known), (seed, profile)


def test_an_idle_node_stays_for_who_may_have_a_larger_instance_than_asked_for():
    """Too rare among random cases: both nodes offer the larger profile alone, and one is busy until 100 s."""
    asked = {"ready": 0.0, "submit": 0.0, "run": 100.0, "limit": 100.0, "profile": 2, "total": 2, "nodes": 1}
    gang = {**asked, "run": 10.0, "limit": 10.0, "profile": 1, "nodes": 2}
    case = {
        "requests": [asked, gang],
        "fleet": {"gpus": [1, 1], "capacity": [[[0, 0, 2]], [[0, 0, 2]]], "first": [0, 0]},
        "queue": "easy",
        "placement": "lowest",
        "larger": ((), (2,), ()),
        "weights": (8.0, 1.0, 3.0),
        "switching": {"idle_s": 20.0, "lead_s": 5.0, "kept": (0,)},
    }
    (requests, fleet), options = as_engine_takes_it(case)
    outcome = simulate_requests(requests, fleet, **options)
    assert outcome.start_s.tolist() == [0.0, 100.0]
    assert intervals(outcome, 2) == [[(-math.inf, 130.0, 0)]] * 2


unit = st.tuples(st.integers(0, 30), st.integers(0, 20), st.integers(0, 10))


@settings(max_examples=examples(150))
@given(
    st.lists(unit, min_size=1, max_size=40),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.integers(1, 4),
    st.sampled_from(["easy", "strict"]),
)
def test_one_node_more_delays_nobody_who_asks_for_one_gpu(rows, gpus, more, queue):
    ready, run, slack = np.array(rows, float).T
    ones = np.ones(len(rows), int)
    requests = NodeRequests(ready, ready, run, run + slack, 0 * ones, ones, ones)
    before = simulate_requests(requests, NodeFleet.of_full_gpus(gpus), queue=queue).start_s
    after = simulate_requests(requests, NodeFleet.of_full_gpus([*gpus, more]), queue=queue).start_s
    assert (after <= before).all()
    assert after.mean() <= before.mean()


ARRIVALS, GROUPS, LEVEL = 240_000, 30, 0.99


@pytest.mark.parametrize(
    ("gpus", "load", "queue"), [([1], 0.6, "strict"), ([1, 1, 1, 1], 0.75, "easy"), ([2, 1], 0.7, "strict")]
)
def test_mean_wait_of_exponential_requests_is_erlangs(gpus, load, queue):
    servers = sum(gpus)
    rng = np.random.default_rng([7, servers])
    ready = np.cumsum(rng.exponential(1.0 / (servers * load), ARRIVALS))
    run, ones = rng.exponential(1.0, ARRIVALS), np.ones(ARRIVALS, int)
    requests = NodeRequests(ready, ready, run, run, 0 * ones, ones, ones)
    waits = simulate_requests(requests, NodeFleet.of_full_gpus(gpus), queue=queue).start_s - ready
    offered = servers * load
    waiting = offered**servers / math.factorial(servers) / (1 - load)
    idle = sum(offered**count / math.factorial(count) for count in range(servers))
    expected = waiting / (idle + waiting) / (servers * (1 - load))  # Erlang C
    groups = waits.reshape(GROUPS, -1).mean(axis=1)  # long enough to be all but independent
    error = NormalDist().inv_cdf((1 + LEVEL) / 2) * groups.std(ddof=1) / math.sqrt(GROUPS)
    assert error < 0.06 * expected
    assert abs(waits.mean() - expected) < error
