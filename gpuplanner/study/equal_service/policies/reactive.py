"""Policies that look at what runs and waits: cut on demand, give idle GPUs away, take them back when jobs come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuplanner.hardware import GpuModel
from gpuplanner.simulate import Fleet, OnDemand, Release
from gpuplanner.study.equal_service.play import PolicySetting
from gpuplanner.study.equal_service.policies.calendars import HOURS, HourlyPeaks
from gpuplanner.study.equal_service.tuning import Arena, Trial, cheaper_of
from gpuplanner.study.equal_service.weeks import WARM_UP_DAYS, Week
from gpuplanner.units import SECONDS_PER_HOUR, SECONDS_PER_MINUTE

WHOLE_ON_OFF, CUT_ON_DEMAND = "whole_on_off", "cut_on_demand"
REACTIVE, COMMITMENT = "reactive", "commitment_reactive"
IDLE_MINUTES = {"node": (1, 5, 15, 60), "gpu": (0, 1, 5, 15)}
"""For how long a node, or a GPU, may be idle before it goes: a GPU that is lent need not boot."""
LEVELS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.998)
"""Share of the leads in which what comes finds room in the reserve."""
DRAIN_MINUTES = (5, 1, 15)
"""For how long a job waits before GPUs are kept free for it; the first is tried with everything."""
CUT_AFTER_MINUTES = 2
"""How long a job may wait for an instance to become free before a GPU is cut, or comes, for it."""
KEPT_WHOLE = (0.0, 0.5)
"""Shares of the nodes on which no GPU is cut, so that large jobs find whole nodes."""
COMMITTED = (0.5, 0.75, 1.0)
"""Shares of the mean demand of an hour that are always on."""


@dataclass(frozen=True, eq=False)
class Reserves:
    """What comes within one lead, as measured on the tuning weeks.

    Attributes
    ----------
    come : mapping of str to array of float
        For each profile the instances that came in each lead, ascending.
    """

    come: dict[str, NDArray[np.float64]]

    @classmethod
    def of(cls, weeks: Sequence[Week], view: str, lead_s: float) -> Reserves:
        """Count arrivals in all leads of all weeks, one after the other."""
        counts: dict[str, list[NDArray[np.float64]]] = {}
        leads = max(int((weeks[0].end_s - weeks[0].begin_s) // max(lead_s, 1.0)), 1)
        names = sorted({name for week in weeks for name in week.asked[view]["profile"].unique()})
        for week in weeks:
            jobs = week.asked[view].filter(week.asked[view]["submit_s"] >= week.begin_s)
            for name in names:
                mine = jobs.filter(profile=name)
                lead = ((mine["submit_s"].to_numpy() - week.begin_s) // max(lead_s, 1.0)).astype(np.int64)
                inside = lead < leads
                come = np.bincount(lead[inside], mine["gpus"].to_numpy()[inside], minlength=leads)
                counts.setdefault(name, []).append(come.astype(np.float64))
        return cls({name: np.sort(np.concatenate(each)) for name, each in counts.items()})

    def at(self, level: float) -> dict[str, int]:
        """Instances of each profile that are enough in that share of the leads; at 0 none."""
        if level == 0:
            return {}
        found = {
            name: int(np.quantile(come, level, method="inverted_cdf")) for name, come in self.come.items()
        }
        return {name: count for name, count in found.items() if count}


@dataclass(frozen=True, eq=False)
class Reacting:
    """How GPUs go and come back.

    Attributes
    ----------
    policy, view : str
        Name, and what jobs ask for.
    unit : {"gpu", "node"}
        What goes and comes as one.
    lead_s : float
        How long it takes to come back [s].
    reserves : Reserves
        What comes within a lead.
    cut : bool
        Whether GPUs may be cut.
    """

    policy: str
    view: str
    unit: str
    lead_s: float
    reserves: Reserves
    cut: bool

    def setting(
        self,
        *,
        idle_minutes: int,
        reserve_level: float,
        drain_minutes: int = DRAIN_MINUTES[0],
        kept_whole: int = 0,
        cut_after_minutes: int = 0,
        exact: int = 0,
        committed: float = 0.0,
        floor: Sequence[tuple[float, int]] = (),
    ) -> PolicySetting:
        """The policy with these knobs.

        GPUs that are never cut; how long a job waits before a GPU is cut, or slices are drained, for it; whether it
        gets an instance of exactly the profile that it needs; a commitment by hour of the run.
        """
        control = OnDemand(
            patience_s=cut_after_minutes * SECONDS_PER_MINUTE,
            drain_s=drain_minutes * SECONDS_PER_MINUTE,
            keep_whole=kept_whole,
            release=Release(self.unit, idle_s=idle_minutes * SECONDS_PER_MINUTE, lead_s=self.lead_s),
            reserve=self.reserves.at(reserve_level),
            floor=floor,
            cut=self.cut,
        )
        knobs: dict[str, float | int | str] = {
            "idle_minutes": idle_minutes, "reserve_level": reserve_level, "drain_minutes": drain_minutes,
            "kept_whole": kept_whole,
        }  # fmt: skip
        more = {"cut_after_minutes": cut_after_minutes, "exact": exact, "committed": committed}
        shown = knobs | {name: value for name, value in more.items() if value}
        return PolicySetting(self.policy, self.view, control, shown, exact=bool(exact))


def tune_reacting(arena: Arena, how: Reacting) -> Trial | None:
    """The cheapest idle time with its least reserve, and then one other knob after the other where that is cheaper."""

    def least_reserve(idle: int) -> Trial | None:
        return arena.least(
            lambda place: how.setting(idle_minutes=idle, reserve_level=LEVELS[place]), 0, len(LEVELS) - 1
        )

    best = cheaper_of(least_reserve(idle) for idle in IDLE_MINUTES[how.unit])
    if best is None and how.cut:
        best = cheaper_of(_least_kept(arena, how, idle) for idle in IDLE_MINUTES[how.unit])
    for change in (
        _others(arena.fleet) if how.cut else [{"drain_minutes": drain} for drain in DRAIN_MINUTES[1:]]
    ):
        if best is not None:
            knobs: dict[str, Any] = {**best.setting.knobs, **change}
            best = cheaper_of([best, arena.trial(how.setting(**knobs))])
    return best


def _least_kept(arena: Arena, how: Reacting, idle: int) -> Trial | None:
    """The least reserve with GPUs that are never cut: large jobs may need them to find whole nodes."""
    kept = kept_whole(arena.fleet)[-1]
    return arena.least(
        lambda place: how.setting(idle_minutes=idle, reserve_level=LEVELS[place], kept_whole=kept),
        0,
        len(LEVELS) - 1,
    )


def _others(fleet: Fleet) -> list[dict[str, int]]:
    """Knobs that are tried after idle time and reserve, in this order."""
    return [
        {"exact": 1},
        *({"kept_whole": kept} for kept in kept_whole(fleet)[1:]),
        {"cut_after_minutes": CUT_AFTER_MINUTES},
        *({"drain_minutes": drain} for drain in DRAIN_MINUTES[1:]),
    ]


def kept_whole(fleet: Fleet) -> list[int]:
    """GPUs of the shares of nodes that are tried."""
    return sorted({int(share * fleet.nodes) * fleet.gpus_per_node for share in KEPT_WHOLE})


def tune_committed(
    arena: Arena, how: Reacting, reactive: Trial, peaks: HourlyPeaks, board: GpuModel
) -> Trial | None:
    """A part of the mean demand of each hour is always on, and the rest reacts, with no more reserve than before."""
    knobs: dict[str, Any] = dict(reactive.setting.knobs)
    most = LEVELS.index(float(knobs.pop("reserve_level")))
    share = np.array([board.share(name) for name in peaks.profiles])
    needed = share @ peaks.mean

    def least_reserve(committed: float) -> Trial | None:
        more: dict[str, Any] = {
            "committed": committed,
            "floor": _floor(np.floor(committed * needed).astype(int).tolist()),
        }
        return arena.least(lambda place: how.setting(reserve_level=LEVELS[place], **knobs, **more), 0, most)

    return cheaper_of(least_reserve(committed) for committed in COMMITTED)


def _floor(gpus: list[int]) -> tuple[tuple[float, int], ...]:
    """GPUs by hour of the week as steps of the run, with the same days before it."""
    every = [*gpus[-WARM_UP_DAYS * HOURS :], *gpus]
    steps = [(0.0, every[0])]
    for hour, count in enumerate(every):
        if count != steps[-1][1]:
            steps.append((hour * SECONDS_PER_HOUR, count))
    return tuple(steps)


def cut_on_demand(nodes: int, per_node: int, drain: int, kept_whole: int) -> PolicySetting:
    """So many nodes, all on, cut when jobs ask for it."""
    control = OnDemand(drain_s=drain * SECONDS_PER_MINUTE, keep_whole=kept_whole)
    knobs = {"gpus": nodes * per_node, "drain_minutes": drain, "kept_whole": kept_whole}
    return PolicySetting(CUT_ON_DEMAND, "rightsized", control, knobs, nodes=nodes)


def tune_cut_on_demand(arena: Arena) -> Trial | None:
    """As few nodes as hold the target."""
    nodes, per_node = arena.fleet.nodes, arena.fleet.gpus_per_node

    def fewest(kept: int) -> Trial | None:
        first = kept // per_node + 1
        return arena.least(lambda count: cut_on_demand(count, per_node, DRAIN_MINUTES[0], kept), first, nodes)

    return cheaper_of(fewest(kept) for kept in kept_whole(arena.fleet))
