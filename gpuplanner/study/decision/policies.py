"""Ways to run a fleet, the plain ones included: one row says all of a way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuplanner.hardware.abilities import GPUS, PathAbilities
from gpuplanner.plugins import POLICIES, plugged
from gpuplanner.study.decision.arena import Trial
from gpuplanner.study.decision.tuning import Tuning
from gpuplanner.study.decision.types import NODE_POOLS, ON_DEMAND, ON_OFF, STATIC_MIG, STATIC_WHOLE, TODAY
from gpuplanner.study.past.fleet import PlannedFleet

MIG, POWER, INSTANCES = "MIG", "nodes that power down", "instances made for jobs"
"""What a policy may need of GPUs and of the actuator."""


@dataclass(frozen=True)
class FleetWay:
    """A way to run the fleet.

    - ``meaning``, ``short``: What it does, and what it is called beside its mark.
    - ``needs``: :data:`MIG`, :data:`POWER` or :data:`INSTANCES`; nothing where any actuator can perform it.
    - ``settings``: Tries its settings; None: there is nothing to be set, or the wait model says how many nodes.
    """

    meaning: str
    short: str
    needs: tuple[str, ...] = ()
    settings: Callable[[Tuning], list[Trial]] | None = None

    def tuned(self, tuning: Tuning, name: str) -> Trial | None:
        """Its cheapest setting that holds; None where there is none."""
        return None if self.settings is None else tuning.tuned(name, self.settings(tuning))

    def why_not(self, able: PathAbilities, fleet: PlannedFleet) -> str | None:
        """Why an actuator cannot perform it on a fleet; None where it can."""
        if self.needs and fleet.today.shared:
            return "jobs share GPUs without MIG"
        if MIG in self.needs and not fleet.can_be_cut:
            return "this GPU model has no MIG profiles"
        lacking = {POWER: not able.switches_nodes, INSTANCES: able.cuts_on_demand != GPUS}
        facts = {POWER: "switches_nodes", INSTANCES: "cuts_on_demand"}
        found = (able.facts[facts[need]].meaning for need in self.needs if lacking.get(need))
        return next((f"not with {able.path}: {meaning}" for meaning in found), None)


WAYS: dict[str, FleetWay] = {
    TODAY: FleetWay("the fleet as it is, all on", "as today"),
    STATIC_WHOLE: FleetWay("fewer nodes, left as they are cut today and always on", "fewer nodes, always on"),
    STATIC_MIG: FleetWay("some nodes cut once for what jobs need, all always on", "cut once, always on", (MIG,)),
    ON_OFF: FleetWay(
        "nodes as they are cut today rest when idle and come back when jobs wait", "rest when idle",
        (POWER,), Tuning.on_off,
    ),
    NODE_POOLS: FleetWay(
        "nodes come whole or in one mixed layout, as jobs wait, and rest when idle", "mixed pools that rest when idle",
        (MIG, POWER), Tuning.pools,
    ),
    ON_DEMAND: FleetWay(
        "some nodes, always on: an instance is made for each job, and removed with it", "cut as jobs come and go",
        (MIG, INSTANCES), Tuning.on_demand,
    ),
}  # fmt: skip
"""Ways to run the fleet by name, in the order in which they are shown, those of other packages last; the first
is never tuned."""
WAYS |= plugged(POLICIES, FleetWay, frozenset(WAYS))
MEANINGS = {name: way.meaning for name, way in WAYS.items()}
SHORT = {name: way.short for name, way in WAYS.items()}
POLICY_NAMES = tuple(WAYS)[1:]
