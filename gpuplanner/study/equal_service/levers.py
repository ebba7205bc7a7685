"""What each lever of the winner saves at equal service, booked in a stated order and in the reverse one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.study.equal_service.contenders import TODAY
from gpuplanner.study.equal_service.judging import JudgedPolicy
from gpuplanner.study.equal_service.policies.calendars import CALENDAR, CALENDAR_RESERVE
from gpuplanner.study.equal_service.policies.node_pools import AUTOSCALED_POOLS
from gpuplanner.study.equal_service.policies.reactive import COMMITMENT, CUT_ON_DEMAND, REACTIVE, WHOLE_ON_OFF
from gpuplanner.study.equal_service.policies.static_fleets import STATIC_MIG, STATIC_WHOLE

SIZE, RIGHT_SIZE, CUT = "size the fleet", "right-size", "cut"
CHANGE, SWITCH_OFF, REACT = "change layouts", "switch off", "react"
LEVERS = (SIZE, RIGHT_SIZE, CUT, CHANGE, SWITCH_OFF, REACT)
"""The order in which they are booked."""
NEEDS: Mapping[str, frozenset[str]] = {
    TODAY: frozenset(),
    STATIC_WHOLE: frozenset({SIZE}),
    WHOLE_ON_OFF: frozenset({SWITCH_OFF, REACT}),
    STATIC_MIG: frozenset({SIZE, RIGHT_SIZE, CUT}),
    CALENDAR: frozenset({RIGHT_SIZE, CUT, CHANGE, SWITCH_OFF}),
    CALENDAR_RESERVE: frozenset({RIGHT_SIZE, CUT, CHANGE, SWITCH_OFF}),
    CUT_ON_DEMAND: frozenset({SIZE, RIGHT_SIZE, CUT, CHANGE, REACT}),
    REACTIVE: frozenset(LEVERS[1:]),
    COMMITMENT: frozenset(LEVERS[1:]),
    AUTOSCALED_POOLS: frozenset({RIGHT_SIZE, CUT, SWITCH_OFF, REACT}),
}
"""What a policy must be allowed to do; those that switch off take no GPU away for good."""


class Lever(NamedTuple):
    """A lever: GPU-hours that are needed with it and all before it, what it saves there, and booked from behind."""

    lever: str
    gpu_hours: float
    saved: float
    saved_reverse: float


def used(one: JudgedPolicy) -> frozenset[str]:
    """Levers that a judged policy pulls: one that made no change of layout changes none, and may cut none.

    Jobs are right-sized to slices, so where nothing is cut nothing is right-sized.
    """
    needs = NEEDS[one.policy]
    changed = any(week.changes for week in one.weeks)
    layouts = [name for name in one.setting.knobs if name == WHOLE_GPU or ":" in name]
    layouts += str(one.setting.knobs.get("pools", "")).split("; ")
    cut = changed or any(":" in layout for layout in layouts)
    if one.policy in (CALENDAR, CALENDAR_RESERVE):
        cut = cut or any(":" in layout for layout in one.setting.control.layouts)  # type: ignore[union-attr]
    return needs - ({CHANGE} if not changed else set()) - ({CUT, RIGHT_SIZE} if not cut else set())


def levers(today: JudgedPolicy, holding: Sequence[JudgedPolicy], winner: JudgedPolicy) -> list[Lever]:
    """Book the saving of the winner to the levers that it uses.

    With some levers only some policies can be performed; the cheapest of these that holds the target says what is
    needed with them. A lever saves what it takes off that, after those before it. Both orders end at the winner, so
    they sum to the whole saving.

    Parameters
    ----------
    today, winner : JudgedPolicy
        Where the booking starts and ends.
    holding : sequence of JudgedPolicy
        Policies that hold the target.

    Returns
    -------
    list of Lever
        In the order of :data:`LEVERS`; a lever that the winner does not use saves nothing.

    Examples
    --------
    >>> import numpy as np
    >>> from types import SimpleNamespace as Some
    >>> def one(name, hours, changes, **knobs):
    ...     return Some(policy=name, gpu_hours=np.array([hours]), weeks=[Some(changes=changes)],
    ...                 setting=Some(knobs=knobs, control=None))
    >>> today, fewer = one("today", 100.0, 0), one("static_whole", 80.0, 0, gpus=8)
    >>> for row in levers(today, [fewer], one("reactive", 50.0, 3)):
    ...     if row.saved or row.saved_reverse: print(row.lever, row.saved, row.saved_reverse)
    size the fleet 20.0 0.0
    right-size 0.0 50.0
    react 30.0 0.0
    """
    wanted = used(winner)
    least = float(winner.gpu_hours.mean())
    costs = [(used(one), float(one.gpu_hours.mean())) for one in (today, *holding)]
    costs = [(needs, max(hours, least)) for needs, hours in costs]

    def needed(allowed: Collection[str]) -> float:
        if wanted <= set(allowed):
            return least
        # What a smaller fleet that never changes would save is sizing, whoever wins.
        return min(hours for needs, hours in costs if needs <= set(allowed) & (wanted | {SIZE}))

    forward = [needed(LEVERS[:count]) for count in range(len(LEVERS) + 1)]
    backward = [needed(LEVERS[count:]) for count in range(len(LEVERS) + 1)]
    return [
        Lever(name, forward[place + 1], forward[place] - forward[place + 1], backward[place + 1] - backward[place])
        for place, name in enumerate(LEVERS)
    ]  # fmt: skip
