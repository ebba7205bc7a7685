"""The very orders of arrival of the published experiments, so that single runs can be compared to the digit.

Those runs shuffle and draw with Go's ``math/rand``: an additive lagged Fibonacci generator, words of 64 bits,
lags 607 and 273, whose first state is that of a small generator after 7.8e12 steps, mixed with the seed. The
jump over these steps is a power of x modulo the characteristic polynomial x^607 - x^334 - 1.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from gpuplanner.lab.placement.arrivals import UP_TO, Arrivals
from gpuplanner.lab.placement.pods import Nodes, Pods

_LONG, _SHORT = 607, 273
_JUMP = 7_800_000_000_000
_WORD = (1 << 64) - 1
_PRIME = (1 << 31) - 1

_WATCHES = 10
"""Numbers that the scheduler's ten watches take between the drawing of pods and the shuffling of nodes."""


def published_arrivals(pods: Pods, nodes: Nodes, seed: int, *, up_to: float = UP_TO) -> Arrivals:
    """The order of one published run.

    Parameters
    ----------
    pods, nodes : Pods, Nodes
        The lists, whose names order them.
    seed : int
        The experiments have 42 to 51.
    up_to : float
        As in :func:`gpuplanner.lab.placement.draw_arrivals`; the lists must ask for less than that. One pod may go
        beyond it, for the experiments look at the share of one of its GPUs only before they let it in.

    Returns
    -------
    Arrivals
        Listed pods shuffled, then pods drawn; nodes shuffled.

    References
    ----------
    hkust-adsl/kubernetes-scheduler-simulator, ``pkg/simulator/simulator.go`` and ``experiments/``; Go,
    ``src/math/rand`` (``rng.go``, ``gen_cooked.go``).

    Examples
    --------
    >>> pods, nodes = Pods(["a"], [1], [1], [1], [500]), Nodes(["n1", "n2"], [9, 9], [9, 9], [1, 1])
    >>> len(published_arrivals(pods, nodes, 42).pods)
    5
    """
    random = GoRandom(seed)
    random.int63()
    by_name = sorted(range(len(pods.names)), key=pods.names.__getitem__)
    order = random.shuffled(by_name)
    demand, share = pods.demand.tolist(), pods.gpu_milli.tolist()
    arrived, limit = sum(demand), up_to * nodes.capacity
    while arrived + share[drawn := by_name[random.below(len(by_name))]] <= limit:
        arrived += demand[drawn]
        order.append(drawn)
    for _ in range(_WATCHES):
        random.int63()
    rank = random.permutation(len(nodes.names))
    node_names = sorted(range(len(nodes.names)), key=nodes.names.__getitem__)
    node_order = [node for _, node in sorted(zip(rank, node_names, strict=True))]
    return Arrivals(np.array(order), np.array(node_order))


class GoRandom:
    """Go's ``math/rand``.

    - ``seed``: The seed.

    Examples
    --------
    >>> GoRandom(1).int63()
    5577006791947779410
    """

    def __init__(self, seed: int) -> None:
        self._words = [
            own ^ first for own, first in zip(_small_generator(seed, 40, 20), _first_state(), strict=True)
        ]
        self._at = _LONG - _SHORT

    def int63(self) -> int:
        """A number of 63 bits."""
        self._at = (self._at - 1) % _LONG
        lag = (self._at - _LONG + _SHORT) % _LONG
        self._words[self._at] = (self._words[self._at] + self._words[lag]) & _WORD
        return self._words[self._at] & (_WORD >> 1)

    def below(self, n: int) -> int:
        """A number from 0 to n - 1, ``Intn``."""
        if n & (n - 1) == 0:
            return self.int63() >> 32 & (n - 1)
        most = (1 << 31) - 1 - (1 << 31) % n
        while (value := self.int63() >> 32) > most:
            pass
        return value % n

    def shuffled(self, items: list[int]) -> list[int]:
        """The items in random order, ``Shuffle``."""
        items = list(items)
        for last in range(len(items) - 1, 0, -1):
            other = self._scaled(last + 1)
            items[last], items[other] = items[other], items[last]
        return items

    def permutation(self, n: int) -> list[int]:
        """The numbers from 0 to n - 1 in random order, ``Perm``."""
        numbers = [0] * n
        for number in range(n):
            other = self.below(number + 1)
            numbers[number] = numbers[other]
            numbers[other] = number
        return numbers

    def _scaled(self, n: int) -> int:
        """A number from 0 to n - 1 by multiplication, ``int31n``."""
        while True:
            product = (self.int63() >> 31) * n
            low = product & 0xFFFFFFFF
            if low >= n or low >= (1 << 32) % n:
                return product >> 32


def _small_generator(seed: int, left: int, middle: int) -> list[int]:
    """607 words, each of three numbers of x -> 48271 x mod (2^31 - 1), after twenty that are dropped."""
    x = seed % _PRIME or 89482311
    words = []
    for index in range(-20, _LONG):
        x = 48271 * x % _PRIME
        if index >= 0:
            word = x << left
            x = 48271 * x % _PRIME
            word ^= x << middle
            x = 48271 * x % _PRIME
            words.append((word ^ x) & _WORD)
    return words


@functools.cache
def _first_state() -> list[int]:
    """The state of the generator, seeded with 1, after its 7.8e12 steps."""
    # In the order of its making, x[n] = x[n - 607] + x[n - 273]; the state runs downwards from word 333.
    places = [(_LONG - _SHORT - 1 - n) % _LONG for n in range(_LONG)]
    start = _small_generator(1, 20, 10)
    series = np.zeros(2 * _LONG, dtype=np.uint64)
    series[:_LONG] = [start[place] for place in places]
    for n in range(_LONG, 2 * _LONG, _SHORT):
        block = series[n : n + _SHORT]
        block += series[n - _LONG :][: len(block)] + series[n - _SHORT :][: len(block)]
    power = _power_of_x(_JUMP)
    shift = _JUMP % _LONG
    state = [0] * _LONG
    for n in range(_LONG):
        state[places[(n + shift) % _LONG]] = int((power * series[n : n + _LONG]).sum())
    return state


def _power_of_x(exponent: int) -> NDArray[np.uint64]:
    """Coefficients of a power of x modulo the characteristic polynomial, modulo 2^64."""
    power = np.zeros(_LONG, dtype=np.uint64)
    power[0] = 1
    for bit in map(int, f"{exponent:b}"):
        square = np.zeros(2 * _LONG, dtype=np.uint64)
        for degree in range(_LONG):
            square[degree + bit : degree + bit + _LONG] += power[degree] * power
        while (high := square[_LONG:].copy()).any():
            square[_LONG:] = 0
            square[:_LONG] += high
            square[_LONG - _SHORT : 2 * _LONG - _SHORT] += high
        power = square[:_LONG]
    return power
