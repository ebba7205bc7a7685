"""Whose turn it is among those who wait: by tier, then teams within their own quota, then use, then who came first."""

from __future__ import annotations

import numpy as np

from gpuplanner.simulate.jit import called
from gpuplanner.simulate.nodes.tenancy import UNITS
from gpuplanner.simulate.tables import Floats, Ints, Table


@called
def age(groups: Table, decay: float, seconds: float) -> None:
    """Let teams use what they hold, and forget."""
    kept = np.exp(-decay * seconds)
    lasting = (1.0 - kept) / decay if decay > 0.0 else seconds
    for group in groups:
        group.used = group.used * kept + group.usage / UNITS * lasting / group.weight


@called
def see_quotas(groups: Table) -> None:
    """See who has quota of its own left; where any team has a quota, those without one have none left."""
    stated = 0
    for group in groups:
        stated |= group.limited
    for group in groups:
        group.shut = 0
        group.over = stated and (group.usage >= group.nominal or not group.limited)


@called
def see_hours(hours: Floats, passed: Ints, now: float) -> None:
    """See which hours have begun and ended."""
    for row in range(len(passed)):
        while hours[row, passed[row]] <= now:
            passed[row] += 1


@called
def precedes(groups: Table, jobs: Table, one: int, other: int) -> bool:
    """Whether a request comes before another."""
    mine, theirs = jobs[one], jobs[other]
    if mine.tier != theirs.tier:
        return bool(mine.tier < theirs.tier)
    if mine.team != theirs.team:
        ours, others = groups[mine.team], groups[theirs.team]
        if ours.over != others.over:
            return bool(ours.over < others.over)
        if ours.used != others.used:
            return bool(ours.used < others.used)
    return one < other


@called
def put_in_order(groups: Table, jobs: Table, queue: Ints, spare: Ints, first: int, count: int) -> None:
    """Sort the queue from a place on by merging; it costs next to nothing where it is in order."""
    width = 1
    for place in range(first + 1, count):
        if precedes(groups, jobs, queue[place], queue[place - 1]):
            width = 0
            break
    if width:
        return
    width = 1
    while width < count - first:
        for low in range(first, count, 2 * width):
            middle, high = min(low + width, count), min(low + 2 * width, count)
            left, right = low, middle
            for place in range(low, high):
                if left < middle and (right == high or not precedes(groups, jobs, queue[right], queue[left])):
                    spare[place] = queue[left]
                    left += 1
                else:
                    spare[place] = queue[right]
                    right += 1
        for place in range(first, count):
            queue[place] = spare[place]
        width *= 2
