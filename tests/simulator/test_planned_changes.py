"""Planned changes of nodes: the compiled loop against the slow program."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.simulator.planned_layout_changes import LayoutChanges
from gpuplanner.simulator.simulation_run import simulate_requests
from tests.examples import examples
from tests.simulator.nodes_slow import Game, play_slow_with_changes, random_case, random_changes, spells_of
from tests.simulator.test_nodes_oracle import CASES, as_engine_takes_it, batch, in_batches, intervals

QUEUES = ("easy", "strict", "slurm", "pass")
COLUMNS = ("node", "planned", "cordon", "deadline", "takes", "pool", "drained")


@cache
def played(seed):
    """A case on nodes that stay, its changes, and what the engine makes of them."""
    case = random_case(seed) | {"queue": QUEUES[seed % 4], "switching": None}
    changes, before_change = random_changes(case, seed)
    (requests, fleet), options = as_engine_takes_it(case)
    planned = LayoutChanges(*([one[name] for one in changes] for name in COLUMNS), before_change)
    return case, changes, before_change, simulate_requests(requests, fleet, changes=planned, **options)


def same(mine, theirs):
    return mine == theirs or (math.isnan(mine) and math.isnan(theirs))


def differences(seed):
    """What the engine and the slow program say differently, in words."""
    case, changes, before_change, outcome = played(seed)
    start_s, on, held, fates = play_slow_with_changes(case, changes, before_change)
    said = [
        f"case {seed}, request {row}: starts at {mine} here, {theirs} by the engine"
        for row, (mine, theirs) in enumerate(zip(start_s, outcome.start_s.tolist(), strict=True))
        if not same(mine, theirs)
    ]
    theirs = [{} for _ in held]
    for request, node, _, amount in outcome.allocations.iter_rows():
        theirs[request][node] = amount
    said += [
        f"case {seed}, request {row}: holds {mine} here, {other} by the engine"
        for row, (mine, other) in enumerate(zip(held, theirs, strict=True))
        if mine != other
    ]
    assert outcome.changes["row"].to_list() == list(range(len(changes)))
    said += [
        f"case {seed}, change {row}: {mine} here, {other} by the engine"
        for row, (mine, other) in enumerate(zip(fates, outcome.changes.drop("row").iter_rows(), strict=True))
        if mine != other
    ]
    said += [
        f"case {seed}, node {node}: on {mine} here, {other} by the engine"
        for node, (mine, other) in enumerate(zip(on, intervals(outcome, len(on)), strict=True))
        if sorted(mine) != other
    ]
    return said


@in_batches
def test_planned_changes_are_played_as_the_slow_program_does(number):
    assert [line for seed in batch(number) for line in differences(seed)] == []


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(CASES, 1_000_000))
def test_and_so_are_cases_of_any_other_seed(seed):
    assert differences(seed) == []


def test_the_cases_have_changes_of_all_kinds_and_starts_under_a_cordon():
    ends, under_a_cordon = Counter(), 0
    for seed in range(CASES):
        _, changes, before_change, outcome = played(seed)
        cordons = []
        for change, made in zip(changes, outcome.changes.iter_rows(named=True), strict=True):
            ends[change["drained"], made["outcome"]] += 1
            if change["drained"] and made["began_s"] is not None:
                cordons.append((change["node"], made["began_s"], made["ended_s"]))
        for request, node, _, _ in outcome.allocations.iter_rows():
            start = float(outcome.start_s[request])
            inside = any(node == place and since <= start < until for place, since, until in cordons)
            assert before_change or not inside, (seed, request)
            under_a_cordon += inside
    assert min(ends[drained, end] for drained in (True, False) for end in ("done", "given up")) >= 50
    assert under_a_cordon >= 80


@in_batches
def test_nodes_hold_no_more_than_they_offer_when_a_request_starts_and_none_starts_while_they_are_partitioned(number):
    for seed in batch(number):
        case, changes, before_change, outcome = played(seed)
        pools = intervals(outcome, len(case["fleet"]["gpus"]))
        for node, mine in enumerate(pools):
            spans = [(since, until) for since, until, _ in mine]
            assert [until for _, until in spans[:-1]] == [since for since, _ in spans[1:]], (seed, node)
        held = spells_of(case, outcome)
        for change, made in zip(changes, outcome.changes.iter_rows(named=True), strict=True):
            if change["drained"] and made["began_s"] is not None:
                closed = change["planned"] if before_change else made["began_s"]
                late = [span for span in held[change["node"]] if closed <= span[0] < made["ended_s"]]
                assert late == [], (seed, change)
                opened = min(closed, made["ended_s"])
                short = [span for span in held[change["node"]] if made["began_s"] <= span[0] < opened]
                limits = [start + case["requests"][request]["limit"] for start, *_, request in short]
                assert all(limit <= change["planned"] for limit in limits), (seed, change)
        for node, mine in enumerate(held):
            for start, _, profile, _, request in mine:
                at_once = sum(
                    amount for begun, end, other, amount, _ in mine if other == profile and begun <= start < end
                )
                offered = [
                    case["fleet"]["capacity"][node][pool][profile]
                    for since, until, pool in pools[node]
                    if since <= start < until
                ]
                assert at_once <= max(offered), (seed, node, request)


@in_batches
def test_each_request_holds_what_it_asked_for_or_never_starts(number):
    for seed in batch(number):
        case, _, _, outcome = played(seed)
        given = [[] for _ in case["requests"]]
        for request, _, profile, amount in outcome.allocations.iter_rows():
            given[request].append((profile, amount))
        for row, (asked, start) in enumerate(zip(case["requests"], outcome.start_s.tolist(), strict=True)):
            assert math.isnan(start) == (given[row] == []), (seed, row)
            if given[row]:
                assert start >= asked["ready"], (seed, row)
                assert sum(amount for _, amount in given[row]) == asked["total"], (seed, row)
                [profile] = {profile for profile, _ in given[row]}
                assert profile in (asked["profile"], *case["larger"][asked["profile"]]), (seed, row)


@in_batches
def test_the_order_of_rows_does_not_matter_and_the_same_input_gives_the_same_play(number):
    for seed in batch(number):
        case, changes, before_change, outcome = played(seed)
        (requests, fleet), options = as_engine_takes_it(case)
        # Ties go by the row: only changes that are planned for another time than all others of their node may move.
        unlike = len({(one["node"], one["planned"]) for one in changes}) == len(changes)
        order = list(range(len(changes)))
        order = sorted(order, key=lambda row: changes[row]["planned"]) if unlike else order
        columns = ([changes[row][name] for row in order] for name in COLUMNS)
        again = simulate_requests(requests, fleet, changes=LayoutChanges(*columns, before_change), **options)
        assert np.array_equal(again.start_s, outcome.start_s, equal_nan=True), seed
        assert again.power_intervals.sort("node", "from_s").equals(outcome.power_intervals.sort("node", "from_s")), seed
        assert again.changes.drop("row").equals(outcome.changes[order].drop("row")), seed


class Promising(Game):
    """The slow program, which notes when it said that the first to wait starts at the latest."""

    def shadow_of(self, head):
        shadow = super().shadow_of(head)
        self.__dict__.setdefault("promised", {}).setdefault(head["row"], shadow["time"])
        return shadow


@in_batches
def test_easy_never_delays_the_first_to_wait_beyond_its_promise(number):
    """Where limits are run times, on whole GPUs of nodes that do not change; the promise is the slow program's."""
    kept = 0
    for seed in batch(number):
        case = random_case(seed) | {"queue": "easy", "switching": None}
        whole = [one | {"limit": one["run"]} for one in case["requests"] if one["profile"] == 0]
        if not whole:
            continue
        case |= {"requests": whole}
        (requests, fleet), options = as_engine_takes_it(case)
        game = Promising(*case.values())
        game.play()
        starts = simulate_requests(requests, fleet, **options).start_s
        for row, promise in getattr(game, "promised", {}).items():
            assert not starts[row] > promise, (seed, row)
            kept += 1
    assert kept > 0
