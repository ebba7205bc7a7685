"""Prove that one GPU can hold given instances, or say in words why it cannot; and where the driver would put them.

Asked for a profile without a place, the driver takes the start that is in the way of the fewest other placements, the
lowest of equals. This rule reproduces every transcript of the MIG User Guide that we know: seven 1g go to 6, 4, 5, 0,
1, 2, 3; three 2g to 4, 0, 2; a pair of 3g fills 4 first; and two 1g and a 2g leave no room for 3g. It is a rule of
thumb for predicting, not part of any proof: drivers may differ, and only an explicit start is certain.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpuplanner.hardware.gpu import GpuModel, as_board
from gpuplanner.hardware.layout import Layout, Placement, engine_faults, free_slices, maximum_faults, slices
from gpuplanner.hardware.profile import MigProfile, refuse
from gpuplanner.schemas.vocabulary import WHOLE_GPU
from gpuplanner.units import counted


@dataclass(frozen=True, slots=True)
class Proof:
    """Answer of :func:`prove`; true in a condition if the instances fit.

    Parameters
    ----------
    ok : bool
        Whether one GPU can hold them.
    layout : Layout or None
        Places for all of them; None if there are none.
    reason : str
        Why not; empty if they fit.
    """

    ok: bool
    layout: Layout | None
    reason: str

    def __bool__(self) -> bool:
        return self.ok


def prove(board: GpuModel | str, counts: Mapping[str, int]) -> Proof:
    """Find places for instances on one GPU, or the reason why there are none.

    The search is exact. Where several arrangements exist, the one that the driver would most likely make is
    given.

    Parameters
    ----------
    board : GpuModel or str
        The board.
    counts : mapping of str to int
        Instances of each profile; names of other driver versions are understood. ``{"gpu": 1}`` is a GPU that
        is not cut and needs no places.

    Returns
    -------
    Proof
        With the layout found, or the reason.

    Raises
    ------
    GeometryError
        If the board or a profile is unknown, or a count is not a whole number of at least 0.

    Examples
    --------
    >>> str(prove("A100-40GB", {"3g.20gb": 1, "4g.20gb": 1}).layout)
    '4g.20gb@0 3g.20gb@4'
    >>> prove("A100-40GB", {"1g.10gb": 4, "1g.5gb": 3}).reason
    '1g.10gb x4 (2 memory slices each) and 1g.5gb x3 (1 each) need 11 memory slices; A100-40GB has 8'
    """
    board = as_board(board)
    wanted = resolve_counts(board, counts)
    if WHOLE_GPU in wanted:
        alone = wanted == {WHOLE_GPU: 1}
        return Proof(alone, Layout() if alone else None, "" if alone else _not_cut(wanted))
    for rule in (maximum_faults, _memory_fault, engine_faults):
        faults = "; ".join(rule(board, wanted))
        if faults:
            return Proof(False, None, faults)
    layout = next(arrangements(board, wanted), None)
    if layout is None:
        return Proof(False, None, _dead_end(board, wanted))
    return Proof(True, layout, "")


def arrangements(board: GpuModel, counts: Mapping[str, int]) -> Iterator[Layout]:
    """Every way to place the instances, likeliest first; maxima and engines are not looked at."""
    wanted = [p for p in board.profiles for _ in range(counts.get(p.name, 0))]

    def place(index: int, mask: int, last: int) -> Iterator[tuple[Placement, ...]]:
        if index == len(wanted):
            yield ()
            return
        starts = driver_starts(board, wanted[index])
        # Instances of one profile are alike: the next of them only tries starts behind the last one's.
        first = last + 1 if index and wanted[index - 1] is wanted[index] else 0
        for position in range(first, len(starts)):
            placement = Placement.of(wanted[index], starts[position])
            if not mask & placement.mask:
                for rest in place(index + 1, mask | placement.mask, position):
                    yield (placement, *rest)

    for placements in place(0, 0, -1):
        yield Layout(placements)


def resolve_counts(board: GpuModel, counts: Mapping[str, int]) -> dict[str, int]:
    """Counts by the board's own names, largest profile first, zeros left out; a whole GPU comes last."""
    found: dict[MigProfile | str, int] = {}
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            refuse(f"count of {name}", "a whole number of at least 0", repr(count), "Mend the count.")
        key = name if name == WHOLE_GPU else board.profile(name)
        found[key] = found.get(key, 0) + count
    named = {profile.name: found[profile] for profile in board.profiles if found.get(profile)}
    return named | ({WHOLE_GPU: found[WHOLE_GPU]} if found.get(WHOLE_GPU) else {})


def _not_cut(wanted: Mapping[str, int]) -> str:
    if len(wanted) == 1:
        return f"{wanted[WHOLE_GPU]} whole GPUs are not one GPU"
    return "a GPU that is not cut holds no instances beside it"


def _memory_fault(board: GpuModel, wanted: Mapping[str, int]) -> Iterator[str]:
    sizes = {name: board.profile(name).memory_slices for name in wanted}
    needed = sum(wanted[name] * size for name, size in sizes.items())
    if needed > board.memory_slices:
        first, *others = [f"{name} x{wanted[name]} ({size}" for name, size in sizes.items()]
        parts = [f"{first} {'memory slice' if sizes[next(iter(sizes))] == 1 else 'memory slices'} each)"]
        parts += [f"{other} each)" for other in others]
        yield f"{_and(parts)} need {needed} memory slices; {board.name} has {board.memory_slices}"


def _dead_end(board: GpuModel, wanted: Mapping[str, int]) -> str:
    """Name the largest part that can be placed, and the instance that then finds no start in any way."""
    names = [name for name, count in wanted.items() for _ in range(count)]
    placed = Layout()
    length = 1
    while (grown := next(arrangements(board, Counter(names[:length])), None)) is not None:
        placed, length = grown, length + 1
    profile = board.profile(names[length - 1])
    size = profile.memory_slices
    return (
        f"with {placed} nothing is left for one more {profile.name}: it needs "
        f"{counted(size, 'memory slice')} from {slices(profile.starts)}, free: "
        f"{slices(free_slices(board, placed))}; no other arrangement leaves room either"
    )


def _and(parts: list[str]) -> str:
    return " and ".join(", ".join(parts).rsplit(", ", 1)) if len(parts) > 1 else parts[0]


@functools.lru_cache(maxsize=1024)
def driver_starts(board: GpuModel, profile: MigProfile) -> tuple[int, ...]:
    """Start slices of a profile in the order in which the driver tries them.

    Examples
    --------
    >>> board = as_board("A100-40GB")
    >>> driver_starts(board, board.profile("1g.5gb"))
    (6, 4, 5, 0, 1, 2, 3)
    """
    plain = [other for other in board.profiles if not other.attribute] or board.profiles
    masks = [Placement.of(other, start).mask for other in plain for start in other.starts]

    def in_the_way(start: int) -> tuple[int, int]:
        own = Placement.of(profile, start).mask
        return (sum(bool(own & mask) for mask in masks), start)

    return tuple(sorted(profile.starts, key=in_the_way))


def place_in_order(board: GpuModel | str, names: Iterable[str]) -> Layout | None:
    """Predict where instances end up that are created one after another on an empty GPU.

    Returns
    -------
    Layout or None
        None if one of them finds no place.

    Examples
    --------
    >>> str(place_in_order("A100-40GB", ["3g.20gb", "1g.5gb", "2g.10gb", "1g.5gb"]))
    '1g.5gb@0 1g.5gb@1 2g.10gb@2 3g.20gb@4'
    >>> place_in_order("A100-40GB", ["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"]) is None
    True
    """
    board = as_board(board)
    layout = Layout()
    for name in names:
        profile = board.profile(name)
        places = (Placement.of(profile, start) for start in driver_starts(board, profile))
        place = next((place for place in places if not place.mask & layout.mask), None)
        if place is None:
            return None
        layout = Layout((*layout.placements, place))
    return layout


def creation_order(board: GpuModel | str, counts: Mapping[str, int]) -> tuple[str, ...] | None:
    """Order of creation in which the driver, choosing the places, finds one for every instance.

    Parameters
    ----------
    board : GpuModel or str
        The board.
    counts : mapping of str to int
        Instances of each profile.

    Returns
    -------
    tuple of str or None
        Largest profiles first: this works for everything that fits on a board of the catalogue. None if it
        does not work here; then give explicit starts.

    Examples
    --------
    >>> creation_order("A100-40GB", {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1})
    ('3g.20gb', '2g.10gb', '1g.5gb', '1g.5gb')
    """
    board = as_board(board)
    by_size = sorted(counts, key=lambda name: board.profile(name).size_order, reverse=True)
    names = tuple(board.profile(name).name for name in by_size for _ in range(counts[name]))
    return names if place_in_order(board, names) is not None else None
