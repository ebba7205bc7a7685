"""How many GPUs each elastic job gets in a round: the power mean of their speed-ups, by greedy and local search."""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

from gpuplanner.lab.claims.heterogeneous.rounds import Allocate, Round, RoundJob

ROUNDING = 1e-12


def by_power_mean(power: float = -1.0, least_gain: float = 0.0) -> Allocate:
    """Make the allocation that maximises the power mean of the speed-ups of all jobs on one type.

    A job's speed-up is its rate over that with an equal share of all GPUs, less the restart where it would be
    given another number. Jobs get their least number of GPUs in order of arrival, as far as they go. Then
    whoever gains most for each GPU grows, and at last one job shrinks in favour of another as long as that
    helps. Pollux uses a genetic algorithm instead, which also chooses nodes.

    Parameters
    ----------
    power : float
        Below 0: the smaller, the more the slowest job counts; Pollux uses -1.
    least_gain : float
        Share of the speed of one GPU that every further GPU has to add at least. Who cannot make use of its
        GPUs in this way gives them back, even if nobody waits.

    Examples
    --------
    >>> from gpuplanner.lab.claims.heterogeneous.rounds import JobPhase
    >>> sizes = np.arange(1, 5)
    >>> stages = [(JobPhase(1.0, rates, rates),) for rates in (1.0 * sizes, np.sqrt(sizes))]
    >>> jobs = [RoundJob("ab"[i], 0.0, 0 * sizes, sizes, stages[i]) for i in range(2)]
    >>> [int(sizes[option]) for option in by_power_mean()(Round(0.0, jobs, (4,), 30.0))]
    [2, 2]
    """
    return functools.partial(_allocate, power=power, least_gain=least_gain)


def offered(job: RoundJob, least_gain: float) -> list[int]:
    """Options of a job by ascending number of GPUs, those alone that add enough to the one before.

    Examples
    --------
    >>> from gpuplanner.lab.claims.heterogeneous.rounds import JobPhase
    >>> rates = np.array([1.0, 1.9, 2.0, 1.8])
    >>> job = RoundJob("a", 0.0, np.zeros(4, int), np.arange(1, 5), (JobPhase(1.0, rates, rates),))
    >>> offered(job, 0.0), offered(job, 0.5)
    ([0, 1, 2], [0, 1])
    """
    rates, kept = job.rates, [int(np.argmax(job.rates > 0))]
    unit = rates[kept[0]] / job.gpus[kept[0]]
    for option in range(kept[0] + 1, len(rates)):
        more = int(job.gpus[option] - job.gpus[kept[-1]])
        if rates[option] - rates[kept[-1]] > max(least_gain * unit * more, ROUNDING * rates[kept[-1]]):
            kept.append(option)
    return kept


def costs(question: Round, job: RoundJob, power: float) -> NDArray[np.float64]:
    """What every option of a job adds to the sum to be minimised, ``speed-up ** power``."""
    share = max(question.capacity[0] // len(question.jobs), 1)
    able = np.flatnonzero(job.rates > 0)
    fair = job.rates[able[max(int(np.searchsorted(job.gpus[able], share, side="right")) - 1, 0)]]
    speed_up = job.rates / fair * job.discount(question.now, question.restart_s)
    if job.option >= 0:
        speed_up[job.option] = job.rates[job.option] / fair
    return np.where(speed_up > 0, np.maximum(speed_up, 1e-300) ** power, math.inf)


def _allocate(question: Round, power: float, least_gain: float) -> list[int]:
    """Least numbers first, then greedy, then exchanges."""
    jobs = question.jobs
    ways = [offered(job, least_gain) for job in jobs]
    cost = [costs(question, job, power) for job in jobs]
    chosen, room = [-1] * len(jobs), question.capacity[0]
    for number, job in enumerate(jobs):
        need = int(job.gpus[ways[number][0]])
        if need <= room:
            chosen[number] = ways[number][0]
            room -= need
    served = [number for number in range(len(jobs)) if chosen[number] >= 0]
    # Every exchange lowers the sum; the bound is for those that lower it by next to nothing.
    for _ in range(4 * question.capacity[0] + 4 * len(jobs)):
        room = _grow(jobs, served, ways, cost, chosen, room)
        freed = _shrink_for_another(jobs, served, ways, cost, chosen, room)
        if freed is None:
            break
        room = freed
    return chosen


def _grow(
    jobs: list[RoundJob],
    served: list[int],
    ways: list[list[int]],
    cost: list[NDArray[np.float64]],
    chosen: list[int],
    room: int,
) -> int:
    """Let whoever gains most for each GPU grow until nobody does; return the room left."""
    best = {
        number: _best_growth(jobs[number], ways[number], cost[number], chosen[number], room)
        for number in served
    }
    while best:
        number = max(best, key=lambda job: best[job][0])
        gain, option = best[number]
        if gain <= 0:
            break
        more = int(jobs[number].gpus[option] - jobs[number].gpus[chosen[number]])
        if more <= room:
            chosen[number] = option
            room -= more
        best[number] = _best_growth(jobs[number], ways[number], cost[number], chosen[number], room)
    return room


def _best_growth(
    job: RoundJob, ways: list[int], cost: NDArray[np.float64], now: int, room: int
) -> tuple[float, int]:
    """Largest gain for each further GPU, and the option that has it."""
    best = (0.0, now)
    for option in ways:
        more = int(job.gpus[option] - job.gpus[now])
        if 0 < more <= room and (cost[now] - cost[option]) / more > best[0]:
            best = (float(cost[now] - cost[option]) / more, option)
    return best


def _shrink_for_another(
    jobs: list[RoundJob],
    served: list[int],
    ways: list[list[int]],
    cost: list[NDArray[np.float64]],
    chosen: list[int],
    room: int,
) -> int | None:
    """Make the best exchange between two jobs; return the room left, None if none helps."""
    who = np.array([number for number in served for _ in ways[number]])
    option = np.array([option for number in served for option in ways[number]])
    pairs = list(zip(who.tolist(), option.tolist(), strict=True))
    more = np.array(
        [int(jobs[number].gpus[way] - jobs[number].gpus[chosen[number]]) for number, way in pairs]
    )
    change = np.array([cost[number][way] - cost[number][chosen[number]] for number, way in pairs])
    gives, takes = np.flatnonzero(more < 0), np.flatnonzero(more > 0)
    both = change[gives, None] + change[takes]
    both[(who[gives, None] == who[takes]) | (more[gives, None] + more[takes] > room)] = math.inf
    least = -ROUNDING * sum(float(cost[number][chosen[number]]) for number in served)
    if not both.size or both.min() >= least:
        return None
    give, take = np.unravel_index(both.argmin(), both.shape)
    for place in (gives[give], takes[take]):
        chosen[who[place]] = int(option[place])
        room -= int(more[place])
    return room
