"""The policies that are compared, who can perform them, and how each is tuned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuplanner.catalog import parameter
from gpuplanner.scenario import Scenario
from gpuplanner.simulate import Calendar, Fleet, Rules
from gpuplanner.study.equal_service.play import Played, PolicySetting, play_in_full
from gpuplanner.study.equal_service.policies.calendars import (
    CALENDAR,
    CALENDAR_RESERVE,
    CalendarMaker,
    HourlyPeaks,
    hourly_peaks,
    largest_job,
    tune_calendar,
    tune_calendar_reserve,
)
from gpuplanner.study.equal_service.policies.node_pools import AUTOSCALED_POOLS, tune_pools
from gpuplanner.study.equal_service.policies.reactive import (
    COMMITMENT,
    CUT_ON_DEMAND,
    REACTIVE,
    WHOLE_ON_OFF,
    Reacting,
    Reserves,
    tune_committed,
    tune_cut_on_demand,
    tune_reacting,
)
from gpuplanner.study.equal_service.policies.static_fleets import (
    STATIC_MIG,
    STATIC_WHOLE,
    tune_static_mig,
    tune_static_whole,
)
from gpuplanner.study.equal_service.size_classes import pooled_classes
from gpuplanner.study.equal_service.target import ServiceTarget
from gpuplanner.study.equal_service.tuning import Arena, Trial
from gpuplanner.study.equal_service.weeks import Week, Weeks
from gpuplanner.study.future.drains import drain_of
from gpuplanner.study.future.money import power_of
from gpuplanner.study.future.workload import fleet_and_rules
from gpuplanner.study.past.history import History, history

TODAY = "today"
STATIC = (STATIC_WHOLE, STATIC_MIG)
MEANINGS: Mapping[str, str] = {
    TODAY: "the fleet as it is, all on, requests as made",
    STATIC_WHOLE: "whole GPUs, all on, as few as hold the target",
    WHOLE_ON_OFF: "whole GPUs, given away when idle and taken back when jobs wait",
    STATIC_MIG: "one mix of MIG layouts, all on, right-sized requests",
    CALENDAR: "a few sets of layouts by hour of the week, right-sized requests",
    CALENDAR_RESERVE: "a calendar of less margin, and whole GPUs on top",
    CUT_ON_DEMAND: "all on, cut when jobs ask for it, right-sized requests",
    REACTIVE: "cut when jobs ask for it, given away when idle, with a reserve for what comes meanwhile",
    COMMITMENT: "a part of each hour's demand always on, the rest reacts",
    AUTOSCALED_POOLS: "pools of nodes of fixed layouts that come and go, cut while they are empty",
}
"""What each policy does, in the order in which they are shown."""
POLICY_NAMES = tuple(MEANINGS)[1:]
_EVERYBODY = (STATIC_WHOLE, WHOLE_ON_OFF, STATIC_MIG)
_CALENDARS = (CALENDAR, CALENDAR_RESERVE)
PERFORMED_BY: Mapping[str, tuple[str, ...]] = {
    "operator": (*_EVERYBODY, *_CALENDARS, AUTOSCALED_POOLS),
    "parted": (*_EVERYBODY, *_CALENDARS, AUTOSCALED_POOLS),
    "nvml": POLICY_NAMES,
    "dra": POLICY_NAMES,
    "autoscaler": (*_EVERYBODY, AUTOSCALED_POOLS),
    "slurm": (*_EVERYBODY, AUTOSCALED_POOLS),
}
"""Policies that a path can perform: only something that makes single instances cuts a GPU while others work on it."""
UNCUT = (STATIC_WHOLE, WHOLE_ON_OFF)
"""Policies of a board that cannot be cut."""


def fleet_in_units(scenario: Scenario, known: History) -> tuple[Fleet, Rules, dict[str, int]]:
    """The fleet that all policies are played on, the rules, and today's layouts on it.

    Where only the number of GPUs is known and nodes come and go, they stand in nodes of the usual size; GPUs that
    fill no node are left out for every policy alike.
    """
    fleet, rules = fleet_and_rules(scenario, known)
    rules = replace(rules, drain=drain_of(scenario, fleet.board))
    size, layouts = known.fleet.node_size, dict(known.fleet.layouts)
    if scenario.release_unit == "gpu" or fleet.nodes > 1 or fleet.gpus <= size:
        return fleet, rules, layouts
    spare = fleet.gpus % size
    most = max(layouts, key=lambda layout: layouts[layout])
    return Fleet(fleet.board, fleet.gpus // size, size), rules, {**layouts, most: layouts[most] - spare}


@dataclass(eq=False)
class Contest:
    """Everything that the policies of one scenario are tuned with.

    Attributes
    ----------
    scenario : Scenario
        Path, release unit and rules.
    weeks : Weeks
        Weeks to tune on and to judge on.
    target : ServiceTarget
        The service, by today's waits on the weeks to tune on.
    tell : callable, optional
        Told of every trial, with the policy.
    """

    scenario: Scenario
    weeks: Weeks
    target: ServiceTarget
    tell: Callable[[str, Trial], object] | None = None
    found: dict[str, tuple[Arena, Trial | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read the fleet."""
        self.known: History = history(self.scenario)
        self.fleet, self.rules, layouts = fleet_in_units(self.scenario, self.known)
        view = "requested" if self.known.fleet.cut_gpus else "whole"
        self.as_it_is = PolicySetting(TODAY, view, Calendar.constant(layouts), {"gpus": self.fleet.gpus})
        self.law = power_of(self.known.fleet)
        # A policy gives whole nodes back, or single GPUs where these are what is lent.
        self.unit = 1 if self.scenario.release_unit == "gpu" else self.fleet.gpus_per_node
        self.lead_s: float = parameter("node_lead_s").value

    @classmethod
    def opened(
        cls, scenario: Scenario, drawn: Weeks, tell: Callable[[str, Trial], object] | None = None
    ) -> Contest:
        """A contest for the service that today's fleet gives on the weeks to tune on."""
        groups = pooled_classes(drawn.jobs_by_class())
        asked = scenario.wait_quantile, scenario.wait_minutes
        unset = cls(scenario, drawn, ServiceTarget(asked[0], (), ()), tell)
        usual = unset.played(unset.as_it_is, drawn.usual)
        return replace(unset, target=ServiceTarget.against_today(usual, groups, *asked, drawn.classes))

    def played(self, setting: PolicySetting, which: Sequence[Week]) -> tuple[Played, ...]:
        """A setting on some weeks, with its energy and where its hours went."""
        return tuple(play_in_full(setting, week, self.fleet, self.rules, self.law) for week in which)

    def tuned(self, policy: str) -> tuple[Arena, Trial | None]:
        """Tune a policy, once; the arena holds all that was tried."""
        if policy not in self.found:
            arena = Arena(self.fleet, self.rules, self.weeks.tuning, self.target, tell=self.tell)
            self.found[policy] = (arena, self._tune(policy, arena))
        return self.found[policy]

    def _tune(self, policy: str, arena: Arena) -> Trial | None:
        if policy == STATIC_WHOLE:
            return tune_static_whole(arena, self.unit)
        if policy == STATIC_MIG:
            return tune_static_mig(arena, self.unit)
        if policy == CALENDAR:
            return tune_calendar(arena, self._maker())
        if policy == CALENDAR_RESERVE:
            return tune_calendar_reserve(arena, self._maker(), self.tuned(CALENDAR)[1])
        if policy == CUT_ON_DEMAND:
            return tune_cut_on_demand(arena)
        if policy == AUTOSCALED_POOLS:
            return tune_pools(arena, self.lead_s) if self.scenario.release_unit == "node" else None
        if policy == COMMITMENT:
            reactive = self.tuned(REACTIVE)[1]
            how = self._reacting(policy)
            return (
                None
                if reactive is None
                else tune_committed(arena, how, reactive, self._peaks(), self.fleet.model)
            )
        return tune_reacting(arena, self._reacting(policy))

    def _reacting(self, policy: str) -> Reacting:
        view = "whole" if policy == WHOLE_ON_OFF else "rightsized"
        reserves = Reserves.of(self.weeks.tuning, view, self.lead_s)
        return Reacting(
            policy, view, self.scenario.release_unit, self.lead_s, reserves, cut=policy != WHOLE_ON_OFF
        )

    def _maker(self) -> CalendarMaker:
        change, gang = self.rules.change_on(self.fleet.model), largest_job(self.weeks.tuning, "rightsized")
        return CalendarMaker(
            self.fleet, change, self._peaks(), gang, self.weeks.split, self.scenario.reserve_hours
        )

    def _peaks(self) -> HourlyPeaks:
        return hourly_peaks(self.weeks.tuning, "rightsized", self.known.plan_start.isoweekday())
