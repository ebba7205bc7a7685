"""A policy of a node autoscaler: nodes of a few fixed layouts, which come when jobs wait and go when they are idle."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuplanner.errors import ScenarioError, message
from gpuplanner.simulate.fleet import Calendar, Fleet
from gpuplanner.simulate.slices.world import EVENT, NONE, UNIT, Ints, Power, table


@dataclass(frozen=True)
class AutoscaledPools:
    """Pools of nodes, each of one layout. A node is cut before jobs come to it, so none is ever drained.

    A pool grows when jobs wait for more than what it has coming: by as many nodes as they fill, the oldest job first,
    up to the nodes installed. A job waits for the pool with the most instances of its profile on a GPU, or where no
    pool has any, of the smallest that may stand in; meanwhile it takes what any pool has free. A node that has been
    idle for ``idle_s`` goes, and forgets its layout; where all nodes are on, one that is idle goes at once if jobs wait
    for another pool.

    Parameters
    ----------
    layouts : sequence of str
        Layout of each pool, which all GPUs of its nodes have.
    idle_s : float
        How long a node has been idle when it goes [s].
    lead_s : float
        How long a node takes to come: to boot and to be cut [s].
    reserve : mapping of str to int
        Idle nodes of a pool that stay on.
    floor : mapping of str to int
        Nodes that a pool has at least.

    Raises
    ------
    ScenarioError
        If there is no pool, one stands twice, or a number is below 0.

    Examples
    --------
    >>> AutoscaledPools(["gpu", "1g.10gb:7"], idle_s=900.0, lead_s=360.0, reserve={"1g.10gb:7": 1}).lead_s
    360.0
    """

    layouts: Sequence[str]
    idle_s: float
    lead_s: float
    reserve: Mapping[str, int] = field(default_factory=dict)
    floor: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the values."""
        object.__setattr__(self, "layouts", tuple(self.layouts))
        numbers = (self.idle_s, self.lead_s, *self.reserve.values(), *self.floor.values())
        strangers = {*self.reserve, *self.floor} - set(self.layouts)
        sound = all(0 <= number < math.inf for number in numbers) and not strangers
        if not sound or not self.layouts or len(set(self.layouts)) < len(self.layouts):
            text = message(
                "autoscaled pools",
                "layouts, each once; idle_s, lead_s, reserve and floor not below 0, and of these layouts",
                str(self),
                "Change them.",
            )
            raise ScenarioError(text)

    def opening(self, fleet: Fleet) -> Calendar:
        """How the run begins: the reserve and the floor of each pool are on, whichever is more.

        Raises
        ------
        ScenarioError
            If these are more nodes than the fleet has.
        """
        nodes = {name: max(self.reserve.get(name, 0), self.floor.get(name, 0)) for name in self.layouts}
        if sum(nodes.values()) > fleet.nodes:
            text = message(
                "autoscaled pools",
                f"at most the {fleet.nodes} nodes of the fleet kept on",
                str(nodes),
                "Keep fewer.",
            )
            raise ScenarioError(text)
        return Calendar.constant({name: count * fleet.gpus_per_node for name, count in nodes.items()})


def pools_of(layouts: Ints, instances: Ints, substitutes: Ints) -> tuple[Ints, Ints]:
    """For each profile the layout whose pool grows for it, and the profile that serves it there; ``NONE``: none does.

    Parameters
    ----------
    layouts : array of int
        Numbers of the layouts of the pools.
    instances : array of int, shape (n_layouts, n_profiles)
        Instances on one GPU.
    substitutes : array of int, shape (n_profiles, most)
        Profiles that may stand in, smallest first, then ``NONE``.
    """
    count = instances.shape[1]
    pool, serving = np.full(count, NONE), np.full(count, NONE)
    for profile in range(count):
        for able in (profile, *(other for other in substitutes[profile] if other != NONE)):
            best = layouts[instances[layouts, able].argmax()]
            if instances[best, able]:
                pool[profile], serving[profile] = best, able
                break
    return pool, serving


def to_pools(
    policy: AutoscaledPools, fleet: Fleet, names: tuple[str, ...], instances: Ints, substitutes: Ints
) -> Power:
    """Fill the tables of pools; ``names`` are those of the layouts by number."""
    number = {name: rank for rank, name in enumerate(names)}
    pool, serving = pools_of(np.array([number[name] for name in policy.layouts]), instances, substitutes)
    kept, floor = (
        np.array([held.get(name, 0) for name in names], np.int64) for held in (policy.reserve, policy.floor)
    )
    return Power(
        unit=fleet.gpus_per_node,
        idle_s=float(policy.idle_s),
        lead_s=float(policy.lead_s),
        reserve=kept,
        floor_at=np.zeros(1),
        floor_gpus=floor,
        rooms=np.zeros((0, 0), np.int64),
        room=np.zeros(0, np.int64),
        pool=pool,
        serving=serving,
        units=table(UNIT, fleet.nodes),
        timers=table(EVENT, fleet.nodes),
    )


def first_pools(policy: AutoscaledPools, fleet: Fleet, names: tuple[str, ...]) -> Ints:
    """Layout number of every GPU as the run begins; ``NONE``: off."""
    layout = np.full(fleet.gpus, NONE)
    counts = policy.opening(fleet)
    held = np.repeat([names.index(name) for name in counts.layouts], counts.counts[0])
    layout[: len(held)] = held
    return layout
