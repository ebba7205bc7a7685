"""Each service sized by itself, then packed first fit: what planners without a model do, and where ours begins."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gpuplanner.planner.contract.problem import Counts
from gpuplanner.services.options import SHORTFALL, Choices

Content = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Sizing:
    """How many instances of each option, and how many GPUs of each layout to hold them.

    - ``instances``, shape (n_options,): Instances.
    - ``on``, shape (n_layouts,): GPUs.
    """

    instances: Counts
    on: Counts

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return int(self.on.sum())


def sized_alone(choices: Choices) -> Sizing:
    """Size every service by itself and pack the instances.

    As many instances as stay busy of the size with the most throughput per compute slice, one more, the
    smallest that will do, for the rest; then all of them onto GPUs, first fit by decreasing size. This is the
    way of ParvaGPU but for its last step, which splits the instances of GPUs that stay half empty.

    References
    ----------
    MunQ-Lee/ParvaGPU_SC24, src/configurator.c (``demand_matching``) and src/allocator.c.
    """
    instances = np.zeros(len(choices.options), dtype=np.int64)
    for service, rate in choices.rate_per_s.items():
        places = choices.of(service)
        throughput = {place: choices.options[place].throughput_per_s for place in places}
        slices = {place: choices.options[place].profile.compute_slices for place in places}
        main = max(places, key=lambda place: (throughput[place] / slices[place], -slices[place]))
        instances[main] = math.floor(rate / throughput[main])
        rest = rate - instances[main] * throughput[main]
        if rest > rate * SHORTFALL:
            instances[next(place for place in places if throughput[place] >= rest)] += 1
    return Sizing(instances, first_fit(choices, instances))


def first_fit(choices: Choices, instances: Counts) -> Counts:
    """Pack instances onto GPUs, largest first, each onto the first GPU that can hold it.

    GPUs that hold the same are handled together, so that the work does not grow with their number.
    """
    profiles = {option.profile.name: option.profile for option in choices.options}
    names = sorted(profiles, key=lambda name: profiles[name].size_order, reverse=True)
    room = np.array([[layout.get(name, 0) for name in names] for layout in choices.layouts], dtype=np.int64)
    groups: list[tuple[Content, int]] = []
    for position, name in enumerate(names):
        left = sum(
            number
            for option, number in zip(choices.options, instances.tolist(), strict=True)
            if option.profile.name == name
        )
        groups = _add(groups, position, left, room.reshape(-1, len(names)))
    on: Counts = np.zeros(len(choices.layouts), dtype=np.int64)
    for content, gpus in groups:
        on[int(np.flatnonzero((room >= content).all(axis=1))[0])] += gpus
    return on


def _add(
    groups: list[tuple[Content, int]], position: int, left: int, room: Counts
) -> list[tuple[Content, int]]:
    """First fit of so many instances of one profile onto groups of like GPUs, then onto new ones."""
    packed: list[tuple[Content, int]] = []
    for content, gpus in [*groups, ((0,) * room.shape[1], left)]:
        others = np.array(content)
        others[position] = 0
        holding = room[(room >= others).all(axis=1), position]
        each = int(holding.max()) - content[position]
        full = min(gpus, left // each) if each else 0
        partly = left % each if each and full < gpus else 0
        left -= full * each + partly
        untouched = gpus - full - bool(partly) if any(content) else 0
        for number, added in ((full, each), (int(partly > 0), partly), (untouched, 0)):
            if number:
                grown = (*content[:position], content[position] + added, *content[position + 1 :])
                packed.append((grown, number))
    return packed
