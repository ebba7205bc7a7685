"""The compiled loop of tenants against the slow program, the plain loop, and what has to be true of any play."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.errors import ScenarioError
from gpuplanner.simulator.scheduling_rules import Checkpoints, Failures, FairShare, PreemptionCosts, QuotaGroup, Sharing
from gpuplanner.simulator.simulation_run import simulate_requests, simulate_shared_requests
from tests.examples import examples
from tests.simulator.shared_slow import play_shared_slow, shared_case
from tests.simulator.test_nodes_oracle import as_engine_takes_it, intervals

UNITS = 5040
KINDS = {
    "quotas": {"quotas": True},
    "stops": {"stops": True, "quotas": True},
    "failures": {"failures": True, "stops": True, "quotas": True},
    "hours": {"hours": True, "failures": True, "stops": True, "quotas": True},
}
CASES, BATCHES = 200, 20


def sharing_of(rules):
    """The same rules in the engine's own types."""
    groups = tuple(
        QuotaGroup(
            *(None if one[name] is None else one[name] / UNITS for name in ("gpus", "borrow", "lend")),
            -1 if one["parent"] is None else one["parent"],
            one["weight"],
        )
        for one in rules["groups"]
    )
    failures = rules["mtbf"] and Failures(rules["mtbf"] / 3600.0, rules["restart"], rules["seed"])
    return Sharing(
        rules["team"], rules["tier"], groups, np.array(rules["units"]) / UNITS,
        "fifo" if rules["half_life"] is None else "fair", FairShare(rules["half_life"] or 1.0), rules["by_tier"],
        rules["reclaim"], PreemptionCosts(rules["overhead"], min_run_s=rules["min_run"]),
        Checkpoints(rules["every"], rules["write"]), failures, rules["hours"],
        tuple([instant for spell in spells for instant in spell] for spells in rules["openings"]),
        rules["head_keeps_quota"],
    )  # fmt: skip


@cache
def played(seed, kind, queue=None):
    """A case, its rules, and what the engine makes of it."""
    case, rules = shared_case(seed, **KINDS[kind], queue=queue)
    (requests, fleet), options = as_engine_takes_it(case)
    options.pop("switching")
    return case, rules, simulate_shared_requests(requests, fleet, sharing_of(rules), **options)


def differences(seed, kind, queue=None):
    """What the engine and the slow program say differently, in words."""
    case, rules, outcome = played(seed, kind, queue)
    mine = play_shared_slow(case, rules)
    names = {"first": "start_s", "finished": "end_s", "queued": "queued_s", "lost": "lost_s", "stops": "stops"}
    said = []
    for name, theirs in (names | {"failures": "failures"}).items():
        for row, (here, there) in enumerate(zip(mine[name], getattr(outcome, theirs).tolist(), strict=True)):
            if here != pytest.approx(there, abs=1e-9, nan_ok=True):
                said.append(f"case {seed}, request {row}, {name}: {here} here, {there} by the engine")
    for node, (here, there) in enumerate(zip(mine["on"], intervals(outcome, len(case["fleet"]["gpus"])), strict=True)):
        if len(here) != len(there) or not all(
            a == pytest.approx(b, abs=1e-9) for a, b in zip(sorted(here), there, strict=True)
        ):
            said.append(f"case {seed}, node {node}: on {here} here, {there} by the engine")
    return said


WAYS = {"plain": {}, "slurm": {"queue": "slurm"}}


def said_of(seeds, kinds=tuple(KINDS)):
    return [
        line for seed in seeds for kind in kinds for way in WAYS.values() for line in differences(seed, kind, **way)
    ]


def test_a_few_cases_are_played_as_the_slow_program_does():
    assert said_of(range(3)) == []


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(BATCHES))
def test_the_engine_plays_as_the_slow_program_does(number, kind):
    size = CASES // BATCHES
    assert said_of(range(number * size, (number + 1) * size), [kind]) == []


def some(seeds=range(12)):
    """Cases of every kind and way."""
    return [played(seed, kind, **way) for seed in seeds for kind in KINDS for way in WAYS.values()]


def test_the_cases_have_stops_failures_and_teams_that_lack_quota():
    cases = some()
    assert sum(outcome.stops.sum() for _, _, outcome in cases) > 20
    assert sum(outcome.failures.sum() for _, _, outcome in cases) > 50
    assert sum((outcome.lost_s > 0).sum() for _, _, outcome in cases) > 100
    never = sum(np.isnan(outcome.end_s).sum() for _, _, outcome in cases)
    assert never > 10  # those who ask for more than their quota ever is, or fit nowhere


ANY = (st.integers(0, 2**32 - 1), st.sampled_from(sorted(KINDS)), st.sampled_from(sorted(WAYS)))
"""Any case: what it is drawn from, what its rules know, and how its nodes are cut and queued for."""


@settings(max_examples=examples(60), deadline=None)
@given(*ANY)
def test_work_is_conserved_run_by_run(seed, kind, way):
    case, _, outcome = played(seed, kind, **WAYS[way])
    run = np.array([request["run"] for request in case["requests"]], float)
    ready = np.array([request["ready"] for request in case["requests"]], float)
    runs = outcome.runs().drop_nulls()
    held = np.bincount(runs["request"].to_numpy(), (runs["at_s"] - runs["begun_s"]).to_numpy(), len(run))
    done = ~np.isnan(outcome.end_s)
    assert held[done] == pytest.approx((run + outcome.lost_s)[done])
    assert (outcome.end_s - ready)[done] == pytest.approx((held + outcome.queued_s)[done])
    counts = outcome.stopped.group_by("request").agg(pl.len(), pl.col("failed").sum())
    for request, ended, failed in counts.iter_rows():
        assert (outcome.stops[request], outcome.failures[request]) == (ended - failed, failed)


def held_beside_quota(case, rules, outcome):
    """(held, allowed) of every team that has a quota, at each instant at which one of its requests begins."""
    groups = rules["groups"]
    runs = outcome.runs().filter(pl.col("at_s").is_null() | (pl.col("at_s") > pl.col("begun_s")))
    units = np.array(rules["units"])[[request["profile"] for request in case["requests"]]]
    units = units * [request["total"] for request in case["requests"]]
    request, begun = runs["request"].to_numpy(), runs["begun_s"].to_numpy()
    until, team = runs["at_s"].fill_null(math.inf).to_numpy(), np.array(rules["team"])
    for number in range(rules["teams"]):
        one = groups[number]
        if one["gpus"] is None and one["parent"] is None:
            continue
        may = (one["gpus"] or 0) if one["parent"] is None else math.inf
        if one["borrow"] is not None:
            may = min(may, (one["gpus"] or 0) + one["borrow"])
        mine = team[request] == number
        for now in begun[mine]:
            yield units[request[mine & (begun <= now) & (until > now)]].sum(), may


@settings(max_examples=examples(60), deadline=None)
@given(*ANY)
def test_no_team_holds_more_than_its_quota_and_what_it_may_borrow(seed, kind, way):
    for held, may in held_beside_quota(*played(seed, kind, **WAYS[way])):
        assert held <= may


def test_quotas_are_used_to_the_last_of_them():
    """The property above is not one of fleets on which quotas bind nobody."""
    sums = [each for case in some() for each in held_beside_quota(*case)]
    assert sum(held == may for held, may in sums) > 20


@pytest.mark.parametrize("way", WAYS)
def test_who_shares_nothing_is_played_as_by_the_plain_loop(way):
    for seed in range(12):
        case, _ = shared_case(seed, **WAYS[way])
        (requests, fleet), options = as_engine_takes_it(case)
        options.pop("switching")
        plain = simulate_requests(requests, fleet, **options)
        nobody = Sharing(np.zeros(len(requests)), np.zeros(len(requests)))
        shared = simulate_shared_requests(requests, fleet, nobody, **options)
        np.testing.assert_array_equal(shared.start_s, plain.start_s)
        assert shared.power_intervals.equals(plain.power_intervals)
        assert shared.allocations.equals(plain.allocations)
        assert not (shared.stops + shared.failures).any()


def test_cohorts_that_are_no_tree_and_requests_without_a_team_are_refused():
    circle = (QuotaGroup(1.0, parent=1), QuotaGroup(1.0, parent=0))
    for team, groups in (([0], circle), ([1], (QuotaGroup(),))):
        with pytest.raises(ScenarioError, match="a team and a tier for every request, and cohorts that form a tree"):
            Sharing(team, [0], groups)
