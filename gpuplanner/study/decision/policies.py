"""Ways to run a fleet, the plain ones included: one row says all of a way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuplanner.hardware.abilities import GPUS, PathAbilities
from gpuplanner.plugins import POLICIES, plugged
from gpuplanner.study.decision.arena import Trial
from gpuplanner.study.decision.tuning import Tuning
from gpuplanner.study.decision.types import NODE_POOLS, ON_DEMAND, ON_OFF, STATIC_MIG, STATIC_WHOLE, TODAY

LEVERS = FEWER, CUT, REST, AS_JOBS_COME = (
    "fewer nodes held",
    "cut otherwise",
    "rest when idle",
    "cut on demand",
)
"""What a way can pull, in the order in which savings are counted."""


@dataclass(frozen=True)
class FleetWay:
    """A way to run the fleet.

    - ``meaning``, ``short``: What it does, and what it is called beside its mark.
    - ``levers``: What it pulls, of :data:`LEVERS`: who cannot pull one of them cannot perform it.
    - ``settings``: Tries its settings; None: there is nothing to be set, or the wait model says how many nodes.
    """

    meaning: str
    short: str
    levers: tuple[str, ...]
    settings: Callable[[Tuning], list[Trial]] | None = None

    def tuned(self, tuning: Tuning, name: str) -> Trial | None:
        """Its cheapest setting that holds; None where there is none."""
        return None if self.settings is None else tuning.tuned(name, self.settings(tuning))

    def performed_by(self, able: PathAbilities, *, can_be_cut: bool) -> bool:
        """Whether a path can perform it on boards of which one knows whether they can be cut."""
        can = {
            FEWER: True,
            CUT: can_be_cut,
            REST: able.switches_nodes,
            AS_JOBS_COME: able.cuts_on_demand == GPUS,
        }
        return all(can[lever] for lever in self.levers)


WAYS: dict[str, FleetWay] = {
    TODAY: FleetWay("the fleet as it is, all on", "as today", (FEWER,)),
    STATIC_WHOLE: FleetWay(
        "fewer nodes, left as they are cut today and always on", "fewer nodes, always on", (FEWER,)
    ),
    STATIC_MIG: FleetWay(
        "some nodes cut once for what jobs need, all always on", "cut once, always on", (FEWER, CUT)
    ),
    ON_OFF: FleetWay(
        "nodes as they are cut today rest when idle and come back when jobs wait", "rest when idle",
        (FEWER, REST), Tuning.on_off,
    ),
    NODE_POOLS: FleetWay(
        "nodes come whole or in one mixed layout, as jobs wait, and rest when idle", "mixed pools that rest when idle",
        (FEWER, CUT, REST), Tuning.pools,
    ),
    ON_DEMAND: FleetWay(
        "some nodes, always on: an instance is made for each job, and removed with it", "cut as jobs come and go",
        (FEWER, CUT, AS_JOBS_COME), Tuning.on_demand,
    ),
}  # fmt: skip
"""Ways to run the fleet by name, in the order in which they are shown, those of other packages last; the first
is never tuned."""
WAYS |= plugged(POLICIES, FleetWay, frozenset(WAYS))
MEANINGS = {name: way.meaning for name, way in WAYS.items()}
SHORT = {name: way.short for name, way in WAYS.items()}
POLICY_NAMES = tuple(WAYS)[1:]
