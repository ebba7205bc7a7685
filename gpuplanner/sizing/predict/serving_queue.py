"""The queue in front of replicas that serve a language model: request by request, step by step."""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

REQUESTS = 3000
"""Requests of a simulation, at least."""
LIFETIMES = 8
"""Times a request's own time that a simulation covers, at least."""
WARM_UP = 0.25
"""Share of a simulation that fills the replicas and is not counted."""
MOST_SIMULATED = 8
"""Replicas that are simulated, at most: of more, so many with their share of the rate."""


@dataclass(frozen=True, eq=False)
class ReplicaSpeed:
    """How long the steps of one replica take.

    Parameters
    ----------
    step_s : array of float, shape (most + 1,)
        Duration of a step by the number of sequences that decode in it. [s]
    prompt_token_s : float
        What each prompt token adds to the step that it is prefilled in. [s]
    first_token_s : float
        From the arrival of a request until it can be scheduled, and from its token to the client. [s]
    batched_tokens : int
        Tokens of a step, at most: each decoding sequence takes one, prompts share the rest in chunks.
    """

    step_s: NDArray[np.float64]
    prompt_token_s: float
    first_token_s: float
    batched_tokens: int

    @property
    def most(self) -> int:
        """Sequences that run at once, at most."""
        return len(self.step_s) - 1

    def steady_itl_s(self, prompt: int, answer: int) -> NDArray[np.float64]:
        """Mean time between output tokens while 1, 2, … requests run: each step carries its share of their prefills."""
        running = np.arange(1, self.most + 1)
        return np.asarray(self.step_s[1:] + running * self.prompt_token_s * prompt / answer)


@dataclass(frozen=True)
class QueueResult:
    """What requests saw, and how many ran at once.

    - ``ttft_p99_s``: 99th percentile of the time to the first token [s].
    - ``itl_p95_s``: 95th percentile of a request's mean time between output tokens [s].
    - ``running``: Sequences that decode in a replica at once, on average.
    """

    ttft_p99_s: float
    itl_p95_s: float
    running: float

    def meets(self, ttft_s: float, itl_s: float) -> bool:
        """Whether both targets are met."""
        return self.ttft_p99_s <= ttft_s and self.itl_p95_s <= itl_s


class _Replica:
    """One replica with continuous batching: decoding sequences first, then chunks of waiting prompts."""

    def __init__(self, speed: ReplicaSpeed, prompt: int, answer: int) -> None:
        self.speed, self.prompt, self.answer = speed, prompt, answer
        self.step_s: list[float] = speed.step_s.tolist()
        self.now = self.sequence_s = 0.0
        self.steps = 0
        self.waiting: deque[float] = deque()
        self.prefilled = 0
        self.running: list[tuple[int, float, float]] = []
        self.seen: list[tuple[float, float, float]] = []

    @property
    def requests(self) -> int:
        """Requests that wait or run."""
        return len(self.waiting) + len(self.running)

    def add(self, arrival: float) -> None:
        """Take a request; the replica has been advanced to its arrival."""
        if not self.requests:
            self.now = max(self.now, arrival)
        self.waiting.append(arrival)

    def advance(self, until: float) -> None:
        """Run all steps that begin before an instant."""
        while self.now < until and self.requests:
            decoding = len(self.running)
            finished, tokens, left_over = self._prompts_of_step(decoding)
            length = self.step_s[decoding] + tokens * self.speed.prompt_token_s
            times = 1
            if not tokens:  # nothing changes until a sequence ends or a request comes
                times = self.running[0][0] - self.steps
                if not self.waiting:
                    times = int(min(times, max((until - self.now) // length + 1, 1)))
            self.now += times * length
            self.sequence_s += times * length * decoding
            self.steps += times
            self.prefilled = left_over
            for _ in range(finished):
                heapq.heappush(self.running, (self.steps + self.answer - 1, self.now, self.waiting.popleft()))
            while self.running and self.running[0][0] <= self.steps:
                _, first, arrival = heapq.heappop(self.running)
                self.seen.append((arrival, first, self.now))

    def _prompts_of_step(self, decoding: int) -> tuple[int, int, int]:
        """Prompts that a step finishes, its prompt tokens, and tokens prefilled of the prompt that is next then."""
        room, places = self.speed.batched_tokens - decoding, self.speed.most - decoding
        if not self.waiting or places <= 0 or room <= 0:
            return 0, 0, self.prefilled
        first_rest = self.prompt - self.prefilled
        if first_rest > room:
            return 0, room, self.prefilled + room
        finished = 1 + min((room - first_rest) // self.prompt, places - 1, len(self.waiting) - 1)
        tokens = first_rest + (finished - 1) * self.prompt
        more = finished < len(self.waiting) and finished < places
        part = room - tokens if more else 0
        return finished, tokens + part, part


def simulate_queue(
    speed: ReplicaSpeed, replicas: int, rate: float, prompt: int, answer: int, *, seed: int = 0
) -> QueueResult:
    """Simulate replicas to which requests come at random, each to the one with the fewest requests.

    Parameters
    ----------
    speed : ReplicaSpeed
        Speed of one replica.
    replicas : int
        Number of replicas.
    rate : float
        Requests a second, of a Poisson process.
    prompt, answer : int
        Tokens of each prompt and of each answer.
    seed : int
        Seed of the arrivals.

    Examples
    --------
    >>> speed = ReplicaSpeed(np.full(65, 0.01), 1e-5, 0.0, 8192)
    >>> found = simulate_queue(speed, 1, 0.001, 1000, 100)
    >>> round(found.ttft_p99_s, 3), round(found.itl_p95_s, 3)
    (0.02, 0.01)
    """
    some = min(replicas, MOST_SIMULATED)
    rate *= some / replicas
    longest_s = answer * float(speed.steady_itl_s(prompt, answer)[-1])
    count = max(REQUESTS, math.ceil(LIFETIMES * longest_s * rate))
    arrivals = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count)).tolist()
    group = [_Replica(speed, prompt, answer) for _ in range(some)]
    for arrival in arrivals:
        for one in group:
            one.advance(arrival)
        min(group, key=lambda one: one.requests).add(arrival)
    for one in group:
        one.advance(math.inf)
    seen = np.array([row for one in group for row in one.seen])
    arrival, first, end = seen[seen[:, 0] >= arrivals[round(WARM_UP * count)]].T
    return QueueResult(
        float(np.quantile(first - arrival, 0.99)) + speed.first_token_s,
        float(np.quantile((end - first) / max(answer - 1, 1), 0.95)),
        sum(one.sequence_s for one in group) / (some * float(end.max())),
    )
