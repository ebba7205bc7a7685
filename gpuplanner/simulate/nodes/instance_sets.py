"""GPUs that are cut as jobs come and go: every set of instances that one may hold, and what becomes of it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from gpuplanner.hardware.change_cost import ChangeCost
from gpuplanner.hardware.gpu import GpuModel
from gpuplanner.hardware.feasibility import driver_starts
from gpuplanner.hardware.enumerate import placed_layouts
from gpuplanner.schemas.vocabulary import WHOLE_GPU
from gpuplanner.simulate.nodes.node_world import NONE, InstanceSets

EMPTY = 0
"""Number of the set without instances."""


@dataclass(frozen=True, eq=False)
class Flexible:
    """Pools whose GPUs hold what jobs on them ask for: an instance is made for its job, and removed with it.

    ``make_s`` passes before a job begins on an instance, ``whole_s`` before one begins on whole GPUs of which some
    were cut last. Whole GPUs are there for jobs only where the capacity of the pool has them.
    """

    pools: tuple[bool, ...]
    places: InstanceSets
    make_s: float
    whole_s: float

    @classmethod
    def of(cls, board: GpuModel, profiles: tuple[str, ...], cost: ChangeCost) -> Self:
        """The only pool, or, where MIG mode needs a reboot, the second beside one of whole GPUs.

        One instance is removed and one made for a job; on a GPU that becomes whole all may have to go.
        """
        most = max(profile.max_instances for profile in board.profiles)
        each, change = cost.instance_s.value, cost.change_s.value
        pools = (True,) if cost.reboot_s is None else (False, True)
        return cls(pools, instance_sets(board, profiles), change + 2 * each, change + most * each)

    def capacity(self, gpus: int, *, whole: bool) -> list[int]:
        """What a node of so many empty GPUs offers, of each profile by itself."""
        room = gpus * self.places.room[EMPTY]
        room[0] = gpus if whole else 0
        return [int(count) for count in room]


@functools.lru_cache(maxsize=64)
def instance_sets(board: GpuModel, profiles: tuple[str, ...]) -> InstanceSets:
    """Tables of a board for some profiles, the whole GPU first.

    A new instance goes where the most stays possible: the instances of each profile, and whole GPUs, that could be
    added by themselves count by their compute slices. Of equals it goes where the driver would put it.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu import load_gpu_model
    >>> found = instance_sets(load_gpu_model("H100-80GB-SXM5"), ("gpu", "1g.10gb", "3g.40gb"))
    >>> found.room[EMPTY].tolist()
    [1, 7, 2]
    >>> one = found.add[EMPTY, 1]  # at slice 6: two instances of 3g.40gb become one, but seven small ones still fit
    >>> found.slot[EMPTY, 1].item(), found.room[one].tolist()
    (6, [0, 6, 1])
    """
    used = [board.profile(name) for name in profiles if name != WHOLE_GPU]
    number = {profile.name: place for place, profile in enumerate(used, start=1)}
    layouts = placed_layouts(board, list(number)) if used else ()
    sets = [frozenset((number[one.profile], one.start) for one in layout.placements) for layout in layouts]
    sets = [frozenset[tuple[int, int]](), *sorted(sets, key=lambda held: (len(held), sorted(held)))]
    place_of = {held: place for place, held in enumerate(sets)}
    size = [board.compute_slices, *(profile.compute_slices for profile in used)]
    starts = [(), *(driver_starts(board, profile) for profile in used)]
    add, slot, room, lose = (np.full((len(sets) + 1, len(size)), fill) for fill in (NONE, NONE, 0, 0))
    take = np.full((len(sets) + 1, board.memory_slices), NONE)
    most = np.zeros_like(room)  # how many could be added if places were chosen for this profile alone
    worth = np.zeros(len(sets) + 1, np.int64)
    add[EMPTY, 0], slot[EMPTY, 0], take[-1, 0] = len(sets), 0, EMPTY
    room[EMPTY, 0] = most[EMPTY, 0] = 1
    for held in reversed(range(len(sets))):  # larger sets first: what follows is known
        further = _further(sets[held], starts, place_of)
        for profile, ways in enumerate(further):
            most[held, profile] = max([most[held, profile], *(1 + most[after, profile] for _, after in ways)])
        worth[held] = most[held] @ size
        for profile, ways in enumerate(further):
            if ways:
                start, after = max(ways, key=lambda way: worth[way[1]])
                add[held, profile], slot[held, profile] = after, start
                room[held, profile] = 1 + room[after, profile]
        for profile, start in sets[held]:
            take[held, start] = place_of[sets[held] - {(profile, start)}]
    able = add != NONE
    lose[able] = (worth[:, None] - worth[add])[able]
    return InstanceSets(add, slot, take, room, lose)


def _further(
    held: frozenset[tuple[int, int]],
    starts: Sequence[tuple[int, ...]],
    place_of: dict[frozenset[tuple[int, int]], int],
) -> list[list[tuple[int, int]]]:
    """For each profile the starts where one more may be, in the driver's order, and the set that it makes."""
    return [
        [
            (start, place_of[after])
            for start in begins
            if (after := held | {(profile, start)}) in place_of and after != held
        ]
        for profile, begins in enumerate(starts)
    ]
