"""The queue in front of replicas, against a slower program that runs every step, and against theory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.sizing import llm_service_plans as serving_queue
from gpuplanner.sizing.llm_service_plans import ReplicaStepTimes, simulate_queue


def every_step(speed: ReplicaStepTimes, arrivals: list[float], prompt: int, answer: int) -> list[tuple[float, float]]:
    """First and last token of each request in one replica that plays each step of each sequence."""
    now, nxt, done = 0.0, 0, {}
    left = dict.fromkeys(range(len(arrivals)), prompt)
    tokens: dict[int, int] = {}
    first: dict[int, float] = {}
    while len(done) < len(arrivals):
        while nxt < len(arrivals) and arrivals[nxt] <= now:
            nxt += 1
        waiting = [number for number in range(nxt) if left[number]]
        if not waiting and not tokens:
            now = arrivals[nxt]
            continue
        decoding = list(tokens)
        room, places, taken, ready = speed.batched_tokens - len(decoding), speed.max_sequences - len(decoding), 0, []
        for number in waiting:
            part = min(left[number], room - taken) if places > 0 else 0
            if not part:
                break
            left[number] -= part
            taken += part
            if not left[number]:
                ready.append(number)
                places -= 1
        now += float(speed.step_s[len(decoding)]) + taken * speed.prompt_token_s
        for number in decoding:
            tokens[number] += 1
        for number in ready:
            tokens[number], first[number] = 1, now
        for number in [number for number, count in tokens.items() if count >= answer]:
            done[number] = now
            del tokens[number]
    return [(first[number], done[number]) for number in range(len(arrivals))]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.001, 0.4), min_size=1, max_size=25),
    st.integers(1, 90),
    st.integers(1, 12),
    st.integers(1, 5),
    st.sampled_from([6, 40, 200]),
)
def test_a_replica_runs_as_one_that_plays_every_step(gaps, prompt, answer, most, budget):
    speed = ReplicaStepTimes(0.01 + 0.003 * np.arange(most + 1), 0.0004, 0.0, budget)
    arrivals = np.cumsum(gaps).tolist()
    fast = serving_queue._Replica(speed, prompt, answer)
    for arrival in arrivals:
        fast.advance(arrival)
        fast.add_request(arrival)
    fast.advance(np.inf)
    slow = sorted(every_step(speed, arrivals, prompt, answer))
    found = sorted((first, end) for _, first, end in fast.finished_requests)
    assert len(found) == len(arrivals)
    assert np.allclose(found, slow, atol=1e-9)


def test_one_place_is_a_queue_with_one_server_and_fixed_service():
    """M/D/1: requests of one token, one at a time; they wait rho / (2 (1 - rho)) service times on average."""
    speed = ReplicaStepTimes(np.array([0.0, 0.0]), 1e-3, 0.0, 100)
    rho, seen = 0.7, []
    arrivals = np.cumsum(np.random.default_rng(3).exponential(0.1 / rho, 60_000))
    replica = serving_queue._Replica(speed, 100, 1)
    for arrival in arrivals.tolist():
        replica.advance(arrival)
        replica.add_request(arrival)
    replica.advance(np.inf)
    seen = np.array(replica.finished_requests)
    waited = (seen[:, 2] - seen[:, 0]).mean() / 0.1 - 1
    assert waited == pytest.approx(rho / (2 * (1 - rho)), rel=0.05)


@pytest.mark.parametrize("replicas", [1, 3, 40])
def test_more_requests_never_wait_less_and_more_replicas_never_longer(replicas):
    speed = ReplicaStepTimes(0.007 + 0.00008 * np.arange(129), 2.2e-5, 0.02, 8192)
    rates = [replicas * each for each in (2, 6, 9, 11)]
    found = [simulate_queue(speed, replicas, rate, 1024, 512) for rate in rates]
    waits = [one.ttft_p99_s for one in found]
    assert waits == sorted(waits)
    assert [one.itl_p95_s for one in found] == sorted(one.itl_p95_s for one in found)
    assert found[-1].ttft_p99_s > simulate_queue(speed, replicas + 1, rates[-1], 1024, 512).ttft_p99_s


def test_sequences_at_once_follow_littles_law():
    speed = ReplicaStepTimes(np.full(257, 0.01), 0.0, 0.0, 100_000)
    found = simulate_queue(speed, 2, 10.0, 100, 200)
    assert found.running == pytest.approx(5 * 199 * 0.01, rel=0.1)


def test_an_overload_is_seen():
    speed = ReplicaStepTimes(np.full(9, 0.01), 1e-5, 0.0, 8192)
    assert simulate_queue(speed, 1, 9.0, 1000, 100).ttft_p99_s > 3
