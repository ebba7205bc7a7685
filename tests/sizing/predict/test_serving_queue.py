"""The queue in front of replicas, against a slower program that runs every step, and against theory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.sizing.replica_queue import (
    ReplicaStepTimes,
    RequestStream,
    run_replicas,
    serve_requests,
    simulate_queue,
)


def every_step(
    speed: ReplicaStepTimes, arrivals: list[float], prompts: list[int], answers: list[int]
) -> list[tuple[float, float]]:
    """First and last token of each request in one replica that plays each step of each sequence."""
    now, nxt, done = 0.0, 0, {}
    left = dict(enumerate(prompts))
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
        for number in [number for number, count in tokens.items() if count >= answers[number]]:
            done[number] = now
            del tokens[number]
    return [(first[number], done[number]) for number in range(len(arrivals))]


def run_one(speed: ReplicaStepTimes, requests: RequestStream) -> tuple[np.ndarray, np.ndarray]:
    """First and last token of each request in one replica, by the compiled program."""
    since, replicas = np.full(1, -np.inf), np.ones(1, np.int64)
    times = (requests.arrival_s, requests.prompt, requests.answer, replicas, since)
    first, end, *_ = run_replicas(*times, speed.step_s, speed.prompt_token_s, speed.batched_tokens)
    return first, end


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.001, 0.4), st.integers(1, 90), st.integers(1, 12)), min_size=1, max_size=25),
    st.integers(1, 5),
    st.sampled_from([6, 40, 200]),
)
def test_a_replica_runs_as_one_that_plays_every_step(rows, most, budget):
    speed = ReplicaStepTimes(0.01 + 0.003 * np.arange(most + 1), 0.0004, 0.0, budget)
    gaps, prompts, answers = (list(column) for column in zip(*rows, strict=True))
    arrivals = np.cumsum(gaps)
    found = np.transpose(run_one(speed, RequestStream(arrivals, np.array(prompts), np.array(answers))))
    assert np.allclose(found, every_step(speed, arrivals.tolist(), prompts, answers), atol=1e-9)


def test_one_place_is_a_queue_with_one_server_and_fixed_service():
    """M/D/1: requests of one token, one at a time; they wait rho / (2 (1 - rho)) service times on average."""
    speed = ReplicaStepTimes(np.array([0.0, 0.0]), 1e-3, 0.0, 100)
    rho, count = 0.7, 60_000
    arrivals = np.cumsum(np.random.default_rng(3).exponential(0.1 / rho, count))
    first, _ = run_one(speed, RequestStream(arrivals, np.full(count, 100), np.ones(count, np.int64)))
    waited = (first - arrivals).mean() / 0.1 - 1
    assert waited == pytest.approx(rho / (2 * (1 - rho)), rel=0.05)


def test_a_replica_that_is_removed_finishes_its_requests_and_gets_no_more():
    speed = ReplicaStepTimes(np.full(9, 0.1), 0.0, 0.0, 8192)
    requests = RequestStream(np.array([0.0, 0.0, 10.0, 10.0]), np.full(4, 10), np.full(4, 200))
    times = serve_requests(speed, requests, np.array([2, 1]), np.array([-np.inf, 5.0]))
    # The first two run alone on a replica each, 20 s long; at 10 s the first replica alone takes the others, to 30 s.
    assert times.busy_s == pytest.approx([20.0, 30.0], abs=0.2)


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
