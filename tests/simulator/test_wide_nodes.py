"""Networks in both loops: against the slow program, and what must be."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.errors import ScenarioError
from gpuplanner.simulator.simulation_inputs import NodeAutoscaling, NodeFleet, NodeNetwork, NodeRequests
from gpuplanner.simulator.simulation_run import simulate_requests, simulate_shared_requests
from tests.examples import examples
from tests.simulator.test_nodes_oracle import intervals
from tests.simulator.test_shared_nodes import sharing_of
from tests.simulator.wide_slow import play_wide_slow, wide_case

CASES, BATCHES = 200, 10
WAYS = {
    "queue": {},
    "slurm": {"queue": "slurm"},
    "shared": {"rules": True},
    "shared slurm": {"queue": "slurm", "rules": True},
}


@cache
def played(seed, way):
    """A case, its rules, and what the engine makes of it."""
    case, rules = wide_case(seed, **WAYS[way])
    fleet, switching = case["fleet"], case["switching"]
    columns = ["ready", "submit", "run", "limit", "profile", "total", "nodes"]
    requests = NodeRequests(*([row[column] for row in case["requests"]] for column in columns))
    domains = np.array(fleet["network"]["domains"], np.int64).reshape(-1, len(fleet["gpus"]))
    nodes = NodeFleet(
        tuple(map(str, range(len(case["weights"])))), fleet["gpus"], fleet["capacity"], fleet["first"],
        case["weights"], network=NodeNetwork(domains, fleet["network"]["slowdowns"]),
    )  # fmt: skip
    options = {name: case[name] for name in ("queue", "placement", "larger")}
    if rules is None:
        switched = None if switching is None else NodeAutoscaling(**switching)
        return case, rules, simulate_requests(requests, nodes, switching=switched, **options)
    return case, rules, simulate_shared_requests(requests, nodes, sharing_of(rules), **options)


def differences(seed, way):
    """What the engine and the slow program say differently, in words."""
    case, rules, outcome = played(seed, way)
    mine = play_wide_slow(case, rules)
    names = {"first": "start_s", "factor": "factor"}
    if rules is not None:
        names |= {"finished": "end_s", "queued": "queued_s", "lost": "lost_s", "slowed": "slowed_s"}
        names |= {"stops": "stops", "failures": "failures"}
    said = []
    for name, theirs in names.items():
        for row, (here, there) in enumerate(zip(mine[name], getattr(outcome, theirs).tolist(), strict=True)):
            if here != pytest.approx(there, abs=1e-9, nan_ok=True):
                said.append(f"{way} {seed}, request {row}, {name}: {here} here, {there} by the engine")
    on = intervals(outcome, len(case["fleet"]["gpus"]))
    for node, (here, there) in enumerate(zip(mine["on"], on, strict=True)):
        if len(here) != len(there) or not np.allclose(sorted(here), there, atol=1e-9):
            said.append(f"{way} {seed}, node {node}: on {here} here, {there} by the engine")
    return said


@pytest.mark.parametrize("way", WAYS)
def test_a_few_wide_cases_are_played_as_the_slow_program_does(way):
    assert [line for seed in range(5) for line in differences(seed, way)] == []


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", range(BATCHES))
def test_wide_cases_are_played_as_the_slow_program_does(number, way):
    size = CASES // BATCHES
    seeds = range(number * size, (number + 1) * size)
    assert [line for seed in seeds for line in differences(seed, way)] == []


def some(seeds=range(30)):
    """Cases of every way."""
    return [(way, *played(seed, way)) for seed in seeds for way in WAYS]


def held_spells(case, rules, outcome):
    """(profile, node, amount, from, until) of all last runs."""
    run = np.array([request["run"] for request in case["requests"]])
    begun = outcome.start_s if rules is None else outcome.last_s
    until = outcome.start_s + run * outcome.factor if rules is None else outcome.end_s
    return [
        (profile, node, amount, begun[request], math.inf if math.isnan(until[request]) else until[request])
        for request, node, profile, amount in outcome.allocations.iter_rows()
        if not math.isnan(begun[request])
    ]  # fmt: skip


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(WAYS)))
def test_nothing_holds_more_than_nodes_have(seed, way):
    case, rules, outcome = played(seed, way)
    spells = held_spells(case, rules, outcome)
    for now in {begun for *_, begun, _ in spells}:
        held = {}
        for profile, node, amount, begun, until in spells:
            if begun <= now < until:
                held[node, profile] = held.get((node, profile), 0) + amount
        for (node, profile), amount in held.items():
            assert amount <= max(pool[profile] for pool in case["fleet"]["capacity"][node])


def test_every_request_is_served_by_what_may_serve_it_and_takes_as_long_as_that_says():
    moved = 0
    for _, case, _, outcome in some():
        net, nodes = case["fleet"]["network"], {}
        for request, node, profile in outcome.allocations.select("request", "node", "profile").iter_rows():
            nodes.setdefault((request, profile), []).append(node)
        for (number, profile), mine in nodes.items():
            asked = case["requests"][number]
            assert profile in (asked["profile"], *case["larger"][asked["profile"]])
            same = [tier for tier, of in enumerate(net["domains"], 1) if len({of[node] for node in mine}) == 1]
            tier = 0 if len(mine) == 1 else min(same, default=len(net["domains"]) + 1)
            assert outcome.factor[number] == pytest.approx(net["slowdowns"][tier])
            moved += net["slowdowns"][tier] != 1.0
    assert moved > 100


SHARED_WAYS = [way for way, told in WAYS.items() if told.get("rules")]


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(SHARED_WAYS))
def test_work_is_conserved_with_networks_of_unequal_speed(seed, way):
    case, _, outcome = played(seed, way)
    run = np.array([request["run"] for request in case["requests"]], float)
    runs = outcome.runs().drop_nulls()
    held = np.bincount(runs["request"].to_numpy(), (runs["at_s"] - runs["begun_s"]).to_numpy(), len(run))
    done = ~np.isnan(outcome.end_s)
    assert held[done] == pytest.approx((run + outcome.lost_s + outcome.slowed_s)[done])


def test_who_consolidates_is_slowed_down_less_than_who_spreads():
    asked = NodeRequests(*np.zeros((2, 3)), [100.0] * 3, [100.0] * 3, [0, 0, 0], [4, 4, 4], [1, 2, 2])
    network = NodeNetwork([[0, 0, 1, 1]], [1.0, 1.2, 1.5])
    fleet = replace(NodeFleet.of_full_gpus([4, 4, 4, 4]), network=network)
    close = simulate_requests(asked, fleet, placement="consolidate")
    far = simulate_requests(asked, fleet, placement="spread")
    assert close.factor.tolist() == [1.0, 1.2, 1.2]
    assert far.factor.tolist() == [1.0, 1.5, 1.5]


def test_a_network_whose_parts_do_not_fit_is_refused():
    for parts in ({"domains": [[0, 0]], "slowdowns": [1.0, 1.2]}, {"domains": [[0, 0]], "slowdowns": [1.0, 1.5, 1.2]}):
        with pytest.raises(ScenarioError, match="network of nodes: expected a domain of each tier for every node"):
            NodeNetwork(**parts)
