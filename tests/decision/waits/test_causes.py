"""Causes of waits against a slow program that looks at every second, and what must hold of any record."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.decision.free_gpus_over_time import close_handover_gaps, observe_handover, observe_occupancy
from gpuplanner.decision.wait_causes import (
    CAUSES,
    FitTable,
    TenantGpuLimit,
    attribute_waits,
    find_fit_times,
    find_tenant_limits,
    observe_tenant_use,
)
from gpuplanner.simulator.simulation_inputs import NodeRequests
from tests.examples import examples

WEIGHTS = np.array([1.0, 0.25])
LATENCY_S = 5
LIMIT = 2.0


@st.composite
def records(draw):
    """Nodes of unequal size with whole GPUs and quarters, and jobs that held and waited for them, in whole seconds."""
    capacity = np.array(draw(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), min_size=1, max_size=3)))
    capacity[0, 0] = max(capacity[0, 0], 1)
    free = np.repeat(capacity[None], 80, axis=0)
    jobs, nodes = [], []
    for _ in range(draw(st.integers(1, 12))):
        node, profile = draw(st.integers(0, len(capacity) - 1)), draw(st.integers(0, 1))
        eligible, wait, run = draw(st.integers(0, 30)), draw(st.integers(0, 25)), draw(st.integers(1, 20))
        amount, start = draw(st.integers(1, 4)), eligible + wait
        if (free[start : start + run, node, profile] < amount).any():
            start, node = -1, None  # it still waits at the end
        else:
            free[start : start + run, node, profile] -= amount
        jobs.append((eligible, start, start + run, profile, amount))
        nodes.append(None if node is None else [node])
    simulated = [draw(st.integers(0, 80)) for _ in jobs]
    tenant = np.array([draw(st.integers(0, 1)) for _ in jobs])
    return capacity, np.array(jobs), nodes, np.array(simulated, float), tenant


def nobody(jobs):
    """Use of tenants without limits."""
    return observe_tenant_use(np.zeros(jobs, int), np.ones(jobs), np.zeros(jobs), np.ones(jobs))


def parts(jobs):
    """Requests, starts and ends of rows of the strategy."""
    eligible, start, end, profile, amount = jobs.T
    one = np.ones(len(jobs), int)
    requests = NodeRequests(eligible, eligible, np.maximum(end - start, 1), one * 100, profile, amount, one)
    begun = start >= 0
    return requests, np.where(begun, start, np.nan), np.where(begun, end, np.nan)


def free_by_second(capacity, jobs, nodes, latency):
    """Free GPUs and instances in each second of a hundred; what is retaken in time was never free."""
    held = [
        [start, end, nodes[row][0], profile, amount]
        for row, (_, start, end, profile, amount) in enumerate(jobs.tolist())
        if start >= 0
    ]
    free = np.repeat(capacity[None], 100, axis=0)
    for start, end, node, profile, amount in held:
        free[start:end, node, profile] -= amount
    for node in range(len(capacity)):
        for profile in range(2):
            released = []  # of this node, last one last
            marks = sorted(
                [(end, 0, amount) for start, end, where, what, amount in held if (where, what) == (node, profile)]
                + [(start, 1, amount) for start, end, where, what, amount in held if (where, what) == (node, profile)],
                key=lambda mark: (mark[0], mark[1], mark[2] if mark[1] else -mark[2]),
            )
            for time, taken, amount in marks:
                if not taken:
                    released.append([time, amount])
                    continue
                while amount and released and time - released[-1][0] < latency:
                    piece = min(amount, released[-1][1])
                    free[released[-1][0] : time, node, profile] -= piece
                    amount -= piece
                    released[-1][1] -= piece
                    if not released[-1][1]:
                        released.pop()
    return free


def cause_of(free, profile, amount):
    """What is short in one second for so many on one node; None where they fit."""
    if (free[:, profile] >= amount).any():
        return None
    if free[:, profile].sum() >= amount:
        return "fragmented"
    other = 1 - profile
    if free[:, other].sum() * WEIGHTS[other] >= amount * WEIGHTS[profile] - 1e-9:
        return "wrong_layout"
    return "insufficient"


def used(jobs, tenant, row, second):
    """GPUs that a limited tenant held in one second; of the other one none counts."""
    if tenant[row]:
        return -np.inf
    return sum(
        WEIGHTS[profile] * amount
        for mine, (_, start, end, profile, amount) in zip(tenant, jobs.tolist(), strict=True)
        if mine == 0 and 0 <= start <= second < end
    )


def by_second(capacity, jobs, nodes, simulated, until, tenant):
    """Seconds of each job by cause: a look at every second."""
    free = free_by_second(capacity, jobs, nodes, LATENCY_S)
    seconds = np.zeros((len(jobs), len(CAUSES)))
    for row, (eligible, _, _, profile, amount) in enumerate(jobs.tolist()):
        looks = [cause_of(free[second], profile, amount) for second in range(eligible, int(until[row]))]
        kept, place = "unexplained", 0
        first = next((look for look in looks if look is not None), "unexplained")
        before_any = True
        while place < len(looks):
            stop = place
            while stop < len(looks) and (looks[stop] is None) == (looks[place] is None):
                stop += 1
            if looks[place] is not None:
                for look in looks[place:stop]:
                    seconds[row, CAUSES.index(look)] += 1
                kept, before_any = looks[stop - 1], False
            elif stop - place <= LATENCY_S:
                seconds[row, CAUSES.index(first if before_any else kept)] += stop - place
            else:
                spell = range(eligible + place, eligible + stop)
                weight = WEIGHTS[profile] * amount
                at_limit = [used(jobs, tenant, row, second) + weight > LIMIT + 1e-9 for second in spell]
                limited = sum(at_limit)
                behind = sum(second < simulated[row] and not over for second, over in zip(spell, at_limit, strict=True))
                seconds[row, CAUSES.index("limits")] += limited
                seconds[row, CAUSES.index("queued_behind")] += behind
                seconds[row, CAUSES.index("unexplained")] += stop - place - limited - behind
            place = stop
    return seconds


@pytest.mark.long
@settings(max_examples=examples(200), deadline=None)
@given(records())
def test_causes_are_those_of_every_second(record):
    capacity, jobs, nodes, simulated, tenant = record
    requests, start, end = parts(jobs)
    until = np.where(np.isnan(start), 60.0, start)
    seen = close_handover_gaps(observe_occupancy(requests, start, end, nodes, capacity), LATENCY_S)
    fits = find_fit_times(requests, seen, WEIGHTS)
    use = observe_tenant_use(tenant, WEIGHTS[requests.profile] * requests.total, start, end, [TenantGpuLimit(0, LIMIT)])
    found = attribute_waits(fits, requests.ready_s, until, simulated, LATENCY_S, use)
    assert found.sum(axis=1) == pytest.approx(np.maximum(until - requests.ready_s, 0))
    assert found == pytest.approx(by_second(capacity, jobs, nodes, simulated, until, tenant))


def test_the_seconds_between_an_end_and_the_next_start_are_no_free_gpus():
    """One GPU, one job after the other, each handed over in 5 s: whoever waits finds it taken all the time."""
    rows = np.arange(50)
    start = 105.0 * rows
    requests = NodeRequests(0 * start, 0 * start, [100] * 50, [100] * 50, [0] * 50, [1] * 50, [1] * 50)
    seen = observe_occupancy(requests, start, start + 100, [[0]] * 50, np.array([[1, 0]]))
    handover = observe_handover(requests, start, seen)
    assert (handover.latency_s, handover.median_s) == (60.0, 5.0)
    fits = find_fit_times(requests, close_handover_gaps(seen, handover.latency_s), WEIGHTS)
    seconds = attribute_waits(fits, requests.ready_s, start, start, handover.latency_s, nobody(50))
    assert seconds.sum(axis=0).tolist() == [start.sum(), 0, 0, 0, 0, 0]


def test_a_limit_is_named_only_where_its_own_ends_let_the_next_one_start():
    rows = np.arange(20)
    start, one = 1000.0 * rows, np.ones(20)
    found = find_tenant_limits(0 * rows, one, start, start + 990, start, latency_s=60.0, seen_s=20_000.0)
    assert [limit.gpus for limit in found] == [1.0]
    # The same waits, with starts long after the end of the one before: something else holds them.
    assert find_tenant_limits(0 * rows, one, start, start + 500, start, latency_s=60.0, seen_s=20_000.0) == ()


def test_nothing_fits_on_a_node_out_of_service():
    requests = NodeRequests([0.0], [0.0], [60.0], [60.0], [1], [2], [1])
    closed = [(10.0, 30.0, 0, np.inf)]
    seen = observe_occupancy(requests, np.array([40.0]), np.array([100.0]), [[0]], np.array([[1, 4]]), closed)
    seconds = attribute_waits(
        find_fit_times(requests, seen, WEIGHTS), np.zeros(1), np.array([40.0]), np.zeros(1), 5.0, nobody(1)
    )
    assert seconds[0].tolist() == [20.0, 0, 0, 0, 0, 20.0]  # it fits before and after, and nothing explains that


def test_a_second_at_the_limit_is_no_second_behind_others():
    """At its limit until 50, it waits in the simulation until 60: nothing explains the last 40 s of 100."""
    requests = NodeRequests([0.0, 0], [0.0, 0], [50.0, 100], [50.0, 100], [0, 0], [1, 1], [1, 1])
    start, end = np.array([0.0, 100]), np.array([50.0, 200])
    seen = observe_occupancy(requests, start, end, [[0], [0]], np.array([[2, 0]]))
    use = observe_tenant_use(np.zeros(2, int), np.ones(2), start, end, [TenantGpuLimit(0, 1.0)])
    seconds = attribute_waits(
        find_fit_times(requests, seen, WEIGHTS), np.zeros(2), start, np.array([0.0, 60]), 5.0, use
    )
    assert dict(zip(CAUSES, seconds[1].tolist(), strict=True)) == {
        "insufficient": 0.0, "fragmented": 0.0, "wrong_layout": 0.0,
        "queued_behind": 10.0, "limits": 50.0, "unexplained": 40.0,
    }  # fmt: skip


def test_a_job_that_ends_as_it_starts_keeps_no_unnamed_node_from_others():
    requests = NodeRequests([0.0, 0], [0.0, 0], [0.0, 50], [0.0, 50], [0, 0], [4, 4], [1, 1])
    seen = observe_occupancy(requests, np.array([0.0, 10]), np.array([0.0, 60]), [None, None], np.array([[4]]))
    assert seen.time_s.tolist() == [0.0, 0.0, 10.0, 60.0]
    assert seen.change.tolist() == [4, -4, -4, 4]


def test_a_short_wait_on_idle_gpus_is_no_shortage():
    requests = NodeRequests([0.0], [0.0], [60.0], [60.0], [0], [4], [1])
    idle = FitTable(np.array([-np.inf]), np.array([[-1]], np.int8), np.array([0]))
    seconds = attribute_waits(idle, requests.ready_s, np.array([180.0]), np.zeros(1), 180.0, nobody(1))
    assert dict(zip(CAUSES, seconds[0].tolist(), strict=True))["unexplained"] == seconds.sum() == 180.0
