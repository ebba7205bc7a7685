"""Planned changes of nodes: the compiled loop against the slow program."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache

from gpuplanner.simulate.nodes import LayoutChanges, play
from tests.simulate.nodes_slow import play_slow_with_changes, random_case, random_changes
from tests.simulate.test_nodes_oracle import CASES, as_engine_takes_it, batch, in_batches, intervals

QUEUES = ("easy", "strict", "slurm", "pass")
COLUMNS = ("node", "planned", "cordon", "deadline", "takes", "pool", "drained")


@cache
def played(seed):
    """A case on nodes that stay, its changes, and what the engine makes of them."""
    case = random_case(seed) | {"queue": QUEUES[seed % 4], "switching": None, "pinned": None}
    changes, before_change = random_changes(case, seed)
    (requests, fleet), options = as_engine_takes_it(case)
    planned = LayoutChanges(*([one[name] for one in changes] for name in COLUMNS), before_change)
    return case, changes, before_change, play(requests, fleet, changes=planned, **options)


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
    for request, node, _, amount in outcome.held.iter_rows():
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


def test_the_cases_have_changes_of_all_kinds_and_starts_under_a_cordon():
    ends, under_a_cordon = Counter(), 0
    for seed in range(CASES):
        _, changes, before_change, outcome = played(seed)
        cordons = []
        for change, made in zip(changes, outcome.changes.iter_rows(named=True), strict=True):
            ends[change["drained"], made["outcome"]] += 1
            if change["drained"] and made["began_s"] is not None:
                cordons.append((change["node"], made["began_s"], made["ended_s"]))
        for request, node, _, _ in outcome.held.iter_rows():
            start = float(outcome.start_s[request])
            inside = any(node == place and since <= start < until for place, since, until in cordons)
            assert before_change or not inside, (seed, request)
            under_a_cordon += inside
    assert min(ends[drained, end] for drained in (True, False) for end in ("done", "given up")) >= 50
    assert under_a_cordon >= 80
