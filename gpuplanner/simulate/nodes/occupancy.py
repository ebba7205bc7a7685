"""The loop that looks back: what was free when, and since when each kind of request fitted nowhere."""

from __future__ import annotations

import numpy as np

from gpuplanner.simulate.jit import called, entry
from gpuplanner.simulate.slices.world import Floats, Ints

NONE = -1
FITS, PLACE, COUNT = range(3)
STATE, SINCE, BEFORE, CLOCK, COUNTED, PLACED, COUNTED_THEN, PLACED_THEN = range(8)
"""Of each kind: how it stands and since when, when the spell before this one began, and for how long it was short of
slices or of a place: in all, by its last look at the clock, and when the last spell without room began."""


@entry
def look_back(
    at: Floats,
    what: Ints,
    who: Ints,
    submit: Floats,
    start: Floats,
    profile: Ints,
    total: Ints,
    kind: Ints,
    kinds: Ints,
    served_by: Ints,
    free: Ints,
    shares: Floats,
    gpus: float,
    hold: Ints,
    named: Ints,
    on_node: Ints,
    amount: Ints,
    seen: float,
    latency: float,
    ready: Floats,
    by_count: Floats,
    by_place: Floats,
    fitting: Ints,
    spell: Floats,
    marks: Floats,
) -> int:
    """Go through what was seen, instant by instant; return how many starts found no room where they were."""
    over, event = 0, 0
    spare, eighths = gpus, gpus
    for number in range(len(kinds)):
        for rank in range(served_by.shape[1]):
            count_nodes(kinds, served_by, free, fitting, number, rank)
        spell[number, STATE] = state_of(kinds, served_by, fitting, shares, spare, eighths, number)
        spell[number, SINCE] = spell[number, BEFORE] = spell[number, CLOCK] = -np.inf
    while event < len(at):
        now, changed = at[event], False
        if now > seen:
            break
        while event < len(at) and at[event] == now:
            job = who[event]
            one = kind[job]
            if what[event] == 0:
                tick(spell, one, now)
                marks[job, 0], marks[job, 1] = spell[one, COUNTED], spell[one, PLACED]
            elif what[event] == 1:
                tick(spell, one, now)
                ready[job] = start[job]
                waited(spell, one, job, submit, now, latency, ready, by_count, by_place, marks)
            elif what[event] == 2:
                changed = True
                for place in range(hold[job], hold[job + 1]):
                    if on_node[place] != NONE:
                        free[on_node[place], profile[job]] += amount[place]
                spare += shares[0, profile[job]] * total[job]
                eighths += shares[1, profile[job]] * total[job]
            else:
                changed = True
                over += settle(
                    free, profile[job], total[job], hold[job], hold[job + 1], named[job], on_node, amount
                )
                spare -= shares[0, profile[job]] * total[job]
                eighths -= shares[1, profile[job]] * total[job]
            event += 1
        if changed:
            for number in range(len(kinds)):
                for rank in range(served_by.shape[1]):
                    count_nodes(kinds, served_by, free, fitting, number, rank)
                state = state_of(kinds, served_by, fitting, shares, spare, eighths, number)
                if state != spell[number, STATE]:
                    tick(spell, number, now)
                    if (state == FITS) != (spell[number, STATE] == FITS):
                        spell[number, BEFORE], spell[number, SINCE] = spell[number, SINCE], now
                        if state != FITS:
                            spell[number, COUNTED_THEN] = spell[number, COUNTED]
                            spell[number, PLACED_THEN] = spell[number, PLACED]
                    spell[number, STATE] = state
    for job in range(len(submit)):
        one = kind[job]
        if np.isnan(start[job]) and submit[job] <= seen and spell[one, STATE] != FITS:
            tick(spell, one, seen)
            waited(spell, one, job, submit, seen, 0.0, ready, by_count, by_place, marks)
    return over


@called
def tick(spell: Floats, one: int, now: float) -> None:
    """Count the time since the last look to what a kind was short of."""
    passed = now - spell[one, CLOCK]
    if spell[one, CLOCK] > -np.inf:
        if spell[one, STATE] == COUNT:
            spell[one, COUNTED] += passed
        elif spell[one, STATE] == PLACE:
            spell[one, PLACED] += passed
    spell[one, CLOCK] = now


@called
def waited(
    spell: Floats,
    one: int,
    job: int,
    submit: Floats,
    now: float,
    latency: float,
    ready: Floats,
    by_count: Floats,
    by_place: Floats,
    marks: Floats,
) -> None:
    """Write since when a job had nowhere to go, if it had not until now, or until a scheduler's look ago."""
    begun = spell[one, SINCE]
    if spell[one, STATE] == FITS:
        # It fits: for no longer than the scheduler takes to look, and not since before it came?
        if now - begun > latency or begun <= submit[job] or spell[one, BEFORE] >= begun:
            return
        begun = spell[one, BEFORE]
    if submit[job] >= begun:
        ready[job] = submit[job]
        counted, placed = marks[job, 0], marks[job, 1]
    else:
        ready[job] = begun
        counted, placed = spell[one, COUNTED_THEN], spell[one, PLACED_THEN]
    by_count[job] = spell[one, COUNTED] - counted
    by_place[job] = spell[one, PLACED] - placed


@called
def count_nodes(kinds: Ints, served_by: Ints, free: Ints, fitting: Ints, number: int, rank: int) -> None:
    """Count the nodes that have room for a part of a request, and for its last part."""
    serving = served_by[kinds[number, 0], rank]
    fitting[number, rank, 0] = fitting[number, rank, 1] = 0
    if serving == NONE:
        return
    for node in range(len(free)):
        fitting[number, rank, 0] += free[node, serving] >= kinds[number, 1]
        fitting[number, rank, 1] += free[node, serving] >= kinds[number, 3]


@called
def state_of(
    kinds: Ints, served_by: Ints, fitting: Ints, shares: Floats, spare: float, eighths: float, number: int
) -> int:
    """Whether a kind fits somewhere; and if not, whether as much as it asks for is free at all."""
    nodes = kinds[number, 2]
    for rank in range(served_by.shape[1]):
        able = served_by[kinds[number, 0], rank] != NONE
        if able and fitting[number, rank, 0] >= nodes - 1 and fitting[number, rank, 1] >= nodes:
            return FITS
    asked = kinds[number, 1] * (nodes - 1) + kinds[number, 3]
    short = spare < shares[0, kinds[number, 0]] * asked - 1e-6
    return COUNT if short or eighths < shares[1, kinds[number, 0]] * asked - 1e-6 else PLACE


@called
def settle(
    free: Ints, profile: int, total: int, first: int, last: int, named: int, on_node: Ints, amount: Ints
) -> int:
    """Put a job where it was; where nobody knows, where it fits best. 1 if there was no room for it."""
    if not named:
        return seat(free, profile, total, first, last, on_node, amount)
    left, room = total, 0
    for place in range(first, last):
        if on_node[place] != NONE:
            room += max(free[on_node[place], profile], 0)
    for place in range(first, last):
        if on_node[place] == NONE:
            continue
        behind = 0
        for other in range(place + 1, last):
            behind += on_node[other] != NONE
        amount[place] = left if behind == 0 else -(-left // (behind + 1))
        if room >= total:
            amount[place] = left if behind == 0 else max(min(free[on_node[place], profile], left - behind), 1)
        free[on_node[place], profile] -= amount[place]
        left -= amount[place]
    return int(room < total)


@called
def seat(free: Ints, profile: int, total: int, first: int, last: int, on_node: Ints, amount: Ints) -> int:
    """Put a job on the nodes that it leaves least of, else wherever anything is free."""
    left, place = total, first
    while left and place < last:
        need, best = -(-left // (last - place)), NONE
        for node in range(len(free)):
            if free[node, profile] >= need and (best == NONE or free[node, profile] < free[best, profile]):
                best = node
        if best == NONE:
            for node in range(len(free)):
                if best == NONE or free[node, profile] > free[best, profile]:
                    best = node
            need = min(need, max(free[best, profile], 0))
            if need == 0:
                break
        on_node[place], amount[place] = best, need
        free[best, profile] -= need
        left -= need
        place += 1
    return int(left > 0)
