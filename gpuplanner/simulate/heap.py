"""A binary heap in a table of events, ordered by instant, then number."""

from __future__ import annotations

from gpuplanner.simulate.jit import compiled
from gpuplanner.simulate.tables import Table


@compiled
def push(heap: Table, size: int, at: float, who: int) -> int:
    """Add an event; return the new size."""
    place = size
    while place > 0:
        parent = (place - 1) // 2
        if heap[parent].at < at or (heap[parent].at == at and heap[parent].who < who):
            break
        heap[place] = heap[parent]
        place = parent
    heap[place].at, heap[place].who = at, who
    return size + 1


@compiled
def pop(heap: Table, size: int) -> int:
    """Remove the first event (read it before); return the new size."""
    size -= 1
    at, who, place = heap[size].at, heap[size].who, 0
    while True:
        child, other = 2 * place + 1, 2 * place + 2
        if child >= size:
            break
        if other < size and (
            heap[other].at < heap[child].at
            or (heap[other].at == heap[child].at and heap[other].who < heap[child].who)
        ):
            child = other
        if at < heap[child].at or (at == heap[child].at and who < heap[child].who):
            break
        heap[place] = heap[child]
        place = child
    heap[place].at, heap[place].who = at, who
    return size


@compiled
def drop(heap: Table, size: int, who: int) -> int:
    """Remove the event of somebody who has one; return the new size."""
    place = 0
    while heap[place].who != who:
        place += 1
    while place > 0:
        parent = (place - 1) // 2
        heap[place] = heap[parent]
        place = parent
    return pop(heap, size)
