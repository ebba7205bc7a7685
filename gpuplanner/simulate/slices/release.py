"""When idle GPUs are released, as a rule and as the tables of the loop."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from gpuplanner.errors import ScenarioError, message
from gpuplanner.names import resolve
from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.simulate.fleet import Fleet
from gpuplanner.simulate.slices.world import EVENT, UNIT, Power, table

UNITS = ("gpu", "node")


@dataclass(frozen=True)
class Release:
    """Idle GPUs are given away, and come back when jobs wait for them.

    Parameters
    ----------
    unit : {"gpu", "node"}
        What goes and comes as one: a GPU that is lent to another pool, or a node with all its GPUs.
    idle_s : float
        How long a unit has been idle when it goes [s].
    lead_s : float
        How long it takes to come back [s]; it counts as on meanwhile.

    Raises
    ------
    ScenarioError
        If the unit is unknown, or a time is below 0.

    Examples
    --------
    >>> Release("node", idle_s=900.0, lead_s=300.0).unit
    'node'
    """

    unit: str
    idle_s: float
    lead_s: float

    def __post_init__(self) -> None:
        """Check the values."""
        object.__setattr__(self, "unit", resolve(self.unit, UNITS, what="release: unit", error=ScenarioError))
        if not all(0 <= seconds < math.inf for seconds in (self.idle_s, self.lead_s)):
            text = message("release", "idle_s and lead_s not below 0", str(self), "Change them.")
            raise ScenarioError(text)


NO_POWER = Power(
    unit=0,
    idle_s=0.0,
    lead_s=0.0,
    reserve=np.zeros(0, np.int64),
    floor_at=np.zeros(1),
    floor_gpus=np.zeros(1, np.int64),
    rooms=np.zeros((0, 0), np.int64),
    room=np.zeros(0, np.int64),
    pool=np.zeros(0, np.int64),
    serving=np.zeros(0, np.int64),
    units=table(UNIT, 0),
    timers=table(EVENT, 0),
)
"""Every GPU stays on."""


def to_power(
    release: Release | None,
    reserve: Mapping[str, int],
    floor: Iterable[tuple[float, int]],
    fleet: Fleet,
    profiles: tuple[str, ...],
) -> Power:
    """Fill the tables of what is switched off and on.

    Parameters
    ----------
    release : Release or None
        When units go and come; None: never.
    reserve : mapping of str to int
        Idle instances to keep on.
    floor : iterable of (float, int)
        From when on at least how many GPUs are on.
    fleet : Fleet
        What is installed.
    profiles : tuple of str
        Name of each profile number; the first is the whole GPU.
    """
    if release is None:
        return NO_POWER
    unit = 1 if release.unit == "gpu" else fleet.gpus_per_node
    names = {
        name if name == WHOLE_GPU else fleet.model.profile(name).name: kept for name, kept in reserve.items()
    }
    kept = np.array([names.get(name, 0) for name in profiles], np.int64)
    counted = len(profiles) if kept.any() else 0
    steps = sorted({0.0: 0, **{float(at): int(gpus) for at, gpus in floor}}.items())
    return Power(
        unit=unit,
        idle_s=float(release.idle_s),
        lead_s=float(release.lead_s),
        reserve=kept,
        floor_at=np.array([at for at, _ in steps]),
        floor_gpus=np.array([gpus for _, gpus in steps], np.int64),
        rooms=np.zeros((fleet.gpus if counted else 0, counted), np.int64),
        room=np.zeros(counted, np.int64),
        pool=np.zeros(0, np.int64),
        serving=np.zeros(0, np.int64),
        units=table(UNIT, fleet.gpus // unit),
        timers=table(EVENT, fleet.gpus // unit),
    )
