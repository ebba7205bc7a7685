"""Queue of requests in front of replicas of a language model with continuous batching."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuplanner.core.libraries_plugins_and_workers import compile_entry, compile_helper

Floats = NDArray[np.float64]
"""Array of floats."""
Ints = NDArray[np.int64]
"""Array of whole numbers."""

MIN_SIMULATED_REQUESTS = 3000
"""Fewest requests of a simulation with random arrivals."""
MIN_SIMULATED_REQUEST_TIMES = 8
"""Shortest simulation with random arrivals, as a multiple of the time of one request."""
SIMULATION_WARM_UP_FRACTION = 0.25
"""Fraction of a simulation with random arrivals that fills the replicas and is not counted."""
MAX_SIMULATED_REPLICAS = 8
"""Largest number of simulated replicas with random arrivals; of more, this many are simulated with their share of the
rate."""


@dataclass(frozen=True, eq=False)
class ReplicaStepTimes:
    """Step times of one replica.

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

    step_s: Floats
    prompt_token_s: float
    first_token_s: float
    batched_tokens: int

    @property
    def max_sequences(self) -> int:
        """Largest number of concurrent sequences."""
        return len(self.step_s) - 1

    def steady_itl_s(self, prompt: float, answer: float) -> Floats:
        """Return the mean time between output tokens with 1, 2, … running requests, including their prefills [s]."""
        running = np.arange(1, self.max_sequences + 1)
        return np.asarray(self.step_s[1:] + running * self.prompt_token_s * prompt / answer)


@dataclass(frozen=True)
class QueueResult:
    """Simulated latencies, and the number of running sequences.

    - ``ttft_p99_s``: 99th percentile of the time to the first token [s].
    - ``itl_p95_s``: 95th percentile of a request's mean time between output tokens [s].
    - ``running``: Mean number of decoding sequences of a replica.
    """

    ttft_p99_s: float
    itl_p95_s: float
    running: float

    def meets_targets(self, ttft_s: float, itl_s: float) -> bool:
        """Whether both latency targets are met."""
        return self.ttft_p99_s <= ttft_s and self.itl_p95_s <= itl_s


@dataclass(frozen=True, eq=False)
class RequestTimes:
    """Times of requests that were served in a simulation.

    - ``ttft_s``, shape (n_requests,): Time from arrival to the first token [s].
    - ``itl_s``, shape (n_requests,): Mean time between the output tokens of a request [s].
    - ``sequence_s``: Sum of the decoding time of all sequences [s].
    - ``busy_s``, shape (n_changes,): Time in which replicas compute, by number of ready replicas [s].
    """

    ttft_s: Floats
    itl_s: Floats
    sequence_s: float
    busy_s: Floats

    def percentiles(self, rows: NDArray[np.bool_] | slice = slice(None)) -> tuple[float, float]:
        """Return the 99th percentile of the time to the first token, and the 95th of the time per token [s]."""
        return float(np.quantile(self.ttft_s[rows], 0.99)), float(np.quantile(self.itl_s[rows], 0.95))


@dataclass(frozen=True, eq=False)
class RequestStream:
    """Requests in the order of their arrival.

    - ``arrival_s``, shape (n_requests,): When each arrives [s].
    - ``prompt``, ``answer``, shape (n_requests,): Tokens of its prompt and of its answer.
    """

    arrival_s: Floats
    prompt: Ints
    answer: Ints

    def __len__(self) -> int:
        """Count the requests."""
        return len(self.arrival_s)

    def take(self, rows: NDArray[np.bool_] | Ints | slice) -> RequestStream:
        """Select some of the requests."""
        return RequestStream(self.arrival_s[rows], self.prompt[rows], self.answer[rows])

    def mean_running_lengths(self) -> tuple[int, int]:
        """Return the tokens of prompt and answer of a mean sequence among those that run at an instant.

        A sequence runs for as many steps as its answer has tokens, so that long answers are met more often: the means
        are weighted with the length of the answer.

        Examples
        --------
        >>> RequestStream(np.zeros(2), np.array([100, 400]), np.array([100, 300])).mean_running_lengths()
        (325, 250)
        """
        weight = self.answer / self.answer.sum()
        return max(round(float(weight @ self.prompt)), 1), max(round(float(weight @ self.answer)), 1)


def serve_requests(
    step_times: ReplicaStepTimes, requests: RequestStream, replicas: Ints | int, change_s: Floats | None = None
) -> RequestTimes:
    """Simulate replicas that serve requests, each sent to the ready replica with the fewest requests.

    Parameters
    ----------
    step_times : ReplicaStepTimes
        Speed of one replica.
    requests : RequestStream
        Requests, by arrival.
    replicas : int or array of int, shape (n_changes,)
        Ready replicas, at least one; a replica that is removed finishes its requests.
    change_s : array of float, shape (n_changes,), optional
        Since when so many are ready, ascending; None: one number for all the time. [s]

    Examples
    --------
    >>> step_times = ReplicaStepTimes(np.full(65, 0.01), 1e-5, 0.0, 8192)
    >>> requests = RequestStream(np.array([0.0, 5.0]), np.array([1000, 2000]), np.array([100, 1]))
    >>> serve_requests(step_times, requests, 1).ttft_s.round(3).tolist()
    [0.02, 0.03]
    """
    counts = np.atleast_1d(np.asarray(replicas, np.int64))
    since_s = np.full(1, -np.inf) if change_s is None else change_s
    first_s, end_s, busy_s, sequence_s = run_replicas(
        requests.arrival_s, requests.prompt, requests.answer, counts, since_s,
        step_times.step_s, step_times.prompt_token_s, step_times.batched_tokens,
    )  # fmt: skip
    itl_s = (end_s - first_s) / np.maximum(requests.answer - 1, 1)
    return RequestTimes(first_s - requests.arrival_s + step_times.first_token_s, itl_s, sequence_s, busy_s)


@compile_entry
def run_replicas(
    arrival_s: Floats,
    prompt: Ints,
    answer: Ints,
    replicas: Ints,
    since_s: Floats,
    step_s: Floats,
    prompt_token_s: float,
    batched_tokens: int,
) -> tuple[Floats, Floats, Floats, float]:
    """Run all requests through the replicas; see :func:`serve_requests`.

    Returns
    -------
    first_s, end_s : array of float, shape (n_requests,)
        When the first token and the last token of each request are ready. [s]
    busy_s : array of float, shape (n_changes,)
        Time in which replicas compute, from each change of their number to the next. [s]
    sequence_s : float
        Sum of the decoding time of all sequences. [s]
    """
    n_requests, n_replicas, max_sequences = len(arrival_s), replicas.max(), len(step_s) - 1
    first_s, end_s, busy_s = np.zeros(n_requests), np.zeros(n_requests), np.zeros(len(replicas))
    now_s, steps = np.zeros(n_replicas), np.zeros(n_replicas, np.int64)
    # Waiting requests of a replica are a linked list, running ones a heap by the step in which they end.
    next_waiting = np.full(n_requests, -1)
    first_waiting, last_waiting = np.full(n_replicas, -1), np.full(n_replicas, -1)
    waiting, running = np.zeros(n_replicas, np.int64), np.zeros(n_replicas, np.int64)
    prefilled = np.zeros(n_replicas, np.int64)
    heap_step = np.zeros((n_replicas, max_sequences + 1), np.int64)
    heap_request = np.zeros((n_replicas, max_sequences + 1), np.int64)
    sequence_s, period = 0.0, 0
    for number in range(n_requests + 1):
        until_s = arrival_s[number] if number < n_requests else np.inf
        for replica in range(n_replicas):
            while now_s[replica] < until_s and waiting[replica] + running[replica] > 0:
                decoding = running[replica]
                room, places = batched_tokens - decoding, max_sequences - decoding
                tokens, prefilled_next, n_finished = 0, prefilled[replica], 0
                request = first_waiting[replica]
                if places > 0 and room > 0:
                    while request >= 0 and places > 0:
                        remaining = prompt[request] - prefilled_next
                        if remaining > room - tokens:
                            prefilled_next += room - tokens
                            tokens = room
                            break
                        tokens += remaining
                        prefilled_next = 0
                        n_finished += 1
                        places -= 1
                        request = next_waiting[request]
                length_s = step_s[decoding] + tokens * prompt_token_s
                times = 1
                if tokens == 0:  # nothing changes until a sequence ends or a request comes
                    times = heap_step[replica, 0] - steps[replica]
                    if waiting[replica] == 0 and until_s < np.inf:
                        times = min(times, max(int((until_s - now_s[replica]) // length_s) + 1, 1))
                now_s[replica] += times * length_s
                busy_s[period] += times * length_s
                sequence_s += times * length_s * decoding
                steps[replica] += times
                prefilled[replica] = prefilled_next
                for _ in range(n_finished):
                    request = first_waiting[replica]
                    first_waiting[replica] = next_waiting[request]
                    waiting[replica] -= 1
                    first_s[request] = now_s[replica]
                    end_step = steps[replica] + answer[request] - 1
                    push_end(heap_step[replica], heap_request[replica], running[replica], end_step, request)
                    running[replica] += 1
                while running[replica] > 0 and heap_step[replica, 0] <= steps[replica]:
                    end_s[heap_request[replica, 0]] = now_s[replica]
                    running[replica] -= 1
                    pop_end(heap_step[replica], heap_request[replica], running[replica])
        if number == n_requests:
            break
        while period + 1 < len(since_s) and since_s[period + 1] <= until_s:
            period += 1
        chosen = 0
        for replica in range(1, replicas[period]):
            if waiting[replica] + running[replica] < waiting[chosen] + running[chosen]:
                chosen = replica
        if waiting[chosen] + running[chosen] == 0:
            now_s[chosen] = max(now_s[chosen], until_s)
        if waiting[chosen] == 0:
            first_waiting[chosen] = number
        else:
            next_waiting[last_waiting[chosen]] = number
        last_waiting[chosen] = number
        waiting[chosen] += 1
    return first_s, end_s, busy_s, sequence_s


@compile_helper
def push_end(heap_step: Ints, heap_request: Ints, size: int, end_step: int, request: int) -> None:
    """Add a request to the heap of a replica that has its running requests by the step in which they end."""
    row = size
    while row > 0 and heap_step[(row - 1) // 2] > end_step:
        heap_step[row], heap_request[row] = heap_step[(row - 1) // 2], heap_request[(row - 1) // 2]
        row = (row - 1) // 2
    heap_step[row], heap_request[row] = end_step, request


@compile_helper
def pop_end(heap_step: Ints, heap_request: Ints, size: int) -> None:
    """Remove the request that ends first from the heap of a replica; `size` is the number of those that remain."""
    end_step, request, row = heap_step[size], heap_request[size], 0
    while 2 * row + 1 < size:
        child = 2 * row + 1
        if child + 1 < size and heap_step[child + 1] < heap_step[child]:
            child += 1
        if heap_step[child] >= end_step:
            break
        heap_step[row], heap_request[row] = heap_step[child], heap_request[child]
        row = child
    heap_step[row], heap_request[row] = end_step, request


def simulate_queue(
    step_times: ReplicaStepTimes, replicas: int, rate: float, prompt: int, answer: int, *, seed: int = 0
) -> QueueResult:
    """Simulate replicas with random arrivals, each sent to the replica with the fewest requests.

    Parameters
    ----------
    step_times : ReplicaStepTimes
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
    >>> speed = ReplicaStepTimes(np.full(65, 0.01), 1e-5, 0.0, 8192)
    >>> result = simulate_queue(speed, 1, 0.001, 1000, 100)
    >>> round(result.ttft_p99_s, 3), round(result.itl_p95_s, 3)
    (0.02, 0.01)
    """
    n_simulated = min(replicas, MAX_SIMULATED_REPLICAS)
    rate *= n_simulated / replicas
    longest_s = answer * float(step_times.steady_itl_s(prompt, answer)[-1])
    count = max(MIN_SIMULATED_REQUESTS, math.ceil(MIN_SIMULATED_REQUEST_TIMES * longest_s * rate))
    arrival_s = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))
    times = serve_requests(
        step_times, RequestStream(arrival_s, np.full(count, prompt), np.full(count, answer)), n_simulated
    )
    counted = slice(round(SIMULATION_WARM_UP_FRACTION * count), None)
    end_s = arrival_s + times.ttft_s - step_times.first_token_s + times.itl_s * max(answer - 1, 1)
    running = times.sequence_s / (n_simulated * float(end_s[counted].max()))
    return QueueResult(*times.percentiles(counted), running)
