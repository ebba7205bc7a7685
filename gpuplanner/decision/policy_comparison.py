"""Policies, their tuning on earlier days, and their comparison on later ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.errors import ScenarioError, resolve_name
from gpuplanner.core.execution import POLICY_ENTRY_POINTS, load_plugins
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schemas import WHOLE_GPU
from gpuplanner.core.stage_cache import data_folder
from gpuplanner.core.units import SECONDS_PER_DAY, SECONDS_PER_MINUTE
from gpuplanner.decision.decision_types import (
    AUTOSCALED_POOLS,
    FEWER_NODES,
    MIG_STATIC,
    NEVER_RAN,
    NO_GPU,
    ON_DEMAND,
    ON_OFF,
    TODAY,
    SizeService,
)
from gpuplanner.decision.explained_waits import explain_waits, take_jobs
from gpuplanner.decision.policy_fleets import as_they_are, deal_layouts, kept_longest, on_demand_fleet, wanted_instances
from gpuplanner.decision.policy_simulation import Arena, Knobs, Mask, Trial, WaySetting, any_ran, cut_fleet, least
from gpuplanner.decision.requests import (
    REQUESTED,
    RIGHTSIZED,
    JobReplayInputs,
    limits_of_tenants,
    list_larger_profiles,
    read_replay_inputs,
)
from gpuplanner.decision.sharing_rules import read_rules_file
from gpuplanner.decision.wait_curve import DAYS_PER_WEEK, scale_load, simulate_waits
from gpuplanner.hardware.actuators import ANY_GPUS, ActuatorAbilities, find_abilities
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.simulator.replications import student_t
from gpuplanner.simulator.simulated_fleet import NodeAutoscaling
from gpuplanner.usage.job_history import History, history
from gpuplanner.usage.planned_fleet import PlannedFleet

USUAL_IDLE_MINUTES = (10, 30)
"""Idle minutes that sites set: a shorter time wears nodes out by boots, and has to be worth it."""
LEAST_GAIN_BY_IDLE = 0.03
LEAST_GAIN_BY_MIXING = 0.02
"""Share of the GPU-hours that a shorter idle time gains, or several layouts on one node, to be chosen."""
NEAR = 2
"""How many more, or fewer, idle nodes are tried where another knob is turned."""
HOPELESS = 0.05
"""Share of all jobs that wait at once where a setting is given up: one in twenty may be late at all."""


@dataclass(eq=False)
class Tuning:
    """What a way is tuned on: an arena, and the jobs of the earlier weeks.

    - ``arena``: The weeks as they were.
    - ``earlier``: Jobs that count.
    - ``days``: Days that count.
    - ``able``: What the actuator can do.
    - ``tell``: Told of every setting that is tried.
    """

    arena: Arena
    earlier: Mask
    days: Mask
    able: ActuatorAbilities
    tell: Callable[[str, Trial], object] | None = None
    reasons: dict[str, str] = field(default_factory=dict)
    good: set[int] = field(default_factory=set)

    def tuned(self, policy: str, searched: Sequence[Trial]) -> Trial | None:
        """Of settings that were tried the cheapest that holds: on earlier weeks, and at a slow lead."""
        good = [trial for trial in searched if id(trial) in self.good]
        good.sort(key=lambda trial: (self.rank(trial), trial.setting.gpus, self.strain(trial)))
        # Settings are played in full, cheapest first, until one holds.
        for trial in good[:6]:
            full = self.arena.play(trial.setting)
            if self.arena.holds(full, self.earlier):
                return full
        if good:
            self.reasons[policy] = "its settings meet the limit in some simulations only"
        elif any(self.arena.holds(trial, self.earlier) for trial in searched):
            why = "its settings meet the limit on past weeks, but not with slow node start-up"
            self.reasons[policy] = why
        else:
            self.reasons[policy] = "none of its settings meets the limit"
        return None

    def is_good(self, trial: Trial) -> bool:
        """Whether a setting meets the limit in the training window.

        Where nodes take longest to come no class may be later than that by more than nodes are: an idle node kept for
        slow boots alone costs more than they do.
        """
        held, how = self.arena.holds(trial, self.earlier), trial.setting.switching
        held = held and self.arena.share_of_days(trial, self.earlier) >= self.least_days
        if held and how is not None:
            slow = replace(trial.setting, switching=replace(how, lead_s=self.able.lead.high))
            slower_min = (self.able.lead.high - self.able.lead.value) / SECONDS_PER_MINUTE
            slow_trial = self.arena.play(slow, 1, hopeless=HOPELESS)
            held = self.arena.holds(slow_trial, self.earlier, later_minutes=slower_min)
        if held:
            self.good.add(id(trial))
        return held

    @cached_property
    def least_days(self) -> float:
        """Share of the training days on which a setting has to meet the limit: no more than today's fleet replayed."""
        again = replace(self.arena.today, late_s=self.arena.today.late_s[1:])
        # Nine days in ten, if today's fleet replayed meets the limit on as many.
        return min(0.9, self.arena.share_of_days(again, self.earlier))

    def strain(self, trial: Trial) -> float:
        """How late its jobs start on average [min]: of equals the one with room is taken."""
        late_s = trial.late_s[0, self.earlier]
        return float(late_s.mean()) / SECONDS_PER_MINUTE if len(late_s) else 0.0

    def rank(self, trial: Trial) -> float:
        """GPU-hours by which settings are ranked: those of an unusual one count for more by what it has to gain."""
        hours, setting = float(trial.day_hours[self.days].sum()), trial.setting
        shortest, longest = USUAL_IDLE_MINUTES
        if not shortest <= float(setting.knobs.get("idle_minutes", shortest)) <= longest:
            hours /= 1 - LEAST_GAIN_BY_IDLE
        if any(len(set(layouts)) > 1 for node in setting.layouts for layouts in node):
            hours /= 1 - LEAST_GAIN_BY_MIXING
        return hours

    def try_settings(self, settings: Iterable[WaySetting]) -> list[Trial]:
        """Simulate settings once each, and note which of them are good."""
        tried = []
        for setting in settings:
            # One replay while settings are looked for: the chosen one is played in all.
            trial = self.arena.play(setting, 1, hopeless=HOPELESS)
            if self.tell is not None:
                self.tell(setting.policy, trial)
            self.is_good(trial)
            tried.append(trial)
        return tried

    def try_counts(self, settings_of: Callable[[int], Iterable[WaySetting]], fewest: int, most: int) -> list[Trial]:
        """Simulate the settings of as few nodes, GPUs or idle nodes as are enough for one of them to be good."""
        tried: list[Trial] = []

        def good(count: int) -> bool:
            found = self.try_settings(settings_of(count))
            tried.extend(found)
            return any(id(trial) in self.good for trial in found)

        least(good, fewest, most)
        return tried

    def settings_on(self, setting: WaySetting, numbers: Sequence[int]) -> list[WaySetting]:
        """Settings of the same policy on some of today's nodes: as many idle nodes kept, one more, and two more."""
        places = [setting.numbers.index(number) for number in numbers]
        fleet, how = setting.fleet.only(np.array(places)), setting.switching
        assert how is not None
        name = "whole_nodes_kept" if "whole_nodes_kept" in setting.knobs else "idle_nodes_kept"
        more = range(how.kept[0], min(how.kept[0] + NEAR, len(numbers)) + 1)
        return [
            replace(
                setting, fleet=fleet, layouts=tuple(setting.layouts[place] for place in places), numbers=tuple(numbers),
                switching=replace(how, kept=(kept, *how.kept[1:])),
                knobs={**setting.knobs, "gpus": int(fleet.gpus.sum()), name: kept},
            )
            for kept in more
        ]  # fmt: skip

    def switching_of(self, idle: int, kept: Sequence[int]) -> NodeAutoscaling:
        """How nodes come and go after so many idle minutes, with so many idle ones kept in each pool."""
        able, idle_s = self.able, idle * SECONDS_PER_MINUTE
        return NodeAutoscaling(idle_s, able.lead.value + able.scan_s, tuple(kept), able.cool_s, able.look_s)

    def on_off(self) -> list[Trial]:
        """The nodes as they are: idle time, idle nodes kept, and which are filled first."""
        fixed = as_they_are(self.arena.asked, ON_OFF, kept_longest(self.arena.asked))

        def setting(idle: int, placement: str, kept: int) -> WaySetting:
            knobs: Knobs = {"idle_minutes": idle, "idle_nodes_kept": kept, "placement": placement}
            switching = self.switching_of(idle, [kept])
            return replace(fixed, switching=switching, placement=placement, knobs=knobs)

        return self._descend(setting, self.able.placements)

    def _descend(self, setting_of: Callable[[int, str, int], WaySetting], placements: Sequence[str]) -> list[Trial]:
        """The fewest idle nodes kept at one idle time, then other idle times and placements from there on."""
        idles = [idle for idle in (1, 5, 10, 15, 30) if 60 * idle >= self.able.shortest_idle_s]
        usual = min(idles, key=lambda idle: abs(idle - USUAL_IDLE_MINUTES[0]))
        most = len(self.arena.asked.nodes.gpus)
        found = self.try_counts(lambda kept: [setting_of(usual, placements[0], kept)], 0, most)
        good = [trial.setting.switching for trial in found if id(trial) in self.good]
        kept = min((how.kept[0] for how in good if how is not None), default=None)
        if kept is None:
            return found
        for placement, idle in itertools.product(placements, idles):
            if (placement, idle) != (placements[0], usual):
                found += self._near(partial(setting_of, idle, placement), kept)
        # The plainest rule, an idle time alone: more idle nodes kept do not always shorten waits.
        plain = (idle for idle in idles if idle >= USUAL_IDLE_MINUTES[0]) if kept else ()
        found += self.try_settings(setting_of(idle, placements[0], 0) for idle in plain)
        return found

    def _near(self, setting_of: Callable[[int], WaySetting], kept: int) -> list[Trial]:
        """So many idle nodes kept, fewer as long as that is good, else a few more until it is."""
        found = self.try_settings([setting_of(kept)])
        down = id(found[0]) in self.good
        for _ in range(NEAR):
            kept += -1 if down else 1
            if not 0 <= kept <= len(self.arena.asked.nodes.gpus):
                break
            found += self.try_settings([setting_of(kept)])
            if (id(found[-1]) in self.good) != down:
                break
        return found

    def _demands(self) -> Iterator[tuple[str, dict[str, float]]]:
        """Views in which jobs ask for slices, with the instances that they need on average, then at most."""
        asked, which = self.arena.asked, self.earlier
        for view in (REQUESTED, RIGHTSIZED):
            for peak in (False, True) if view in asked.views else ():
                requests = asked.views[view].with_ready_times(self.arena.ready_s)
                span_s = float(self.days.sum()) * SECONDS_PER_DAY
                wanted = wanted_instances(requests, asked.fleet.profiles, which, span_s, peak=peak)
                if wanted:
                    yield view, wanted

    def pools(self) -> list[Trial]:
        """Nodes that come whole, or cut: each in one layout, or in as many as hold the demand closest."""
        asked, order = self.arena.asked, kept_longest(self.arena.asked)
        found = []

        def setting(fixed: WaySetting, cut: int, idle: int, placement: str, kept: int) -> WaySetting:
            knobs: Knobs = {
                "idle_minutes": idle, "whole_nodes_kept": kept, "cut_nodes_kept": cut, "requests": fixed.view,
            }  # fmt: skip
            switching = self.switching_of(idle, [kept, cut])
            return replace(fixed, switching=switching, placement=placement, knobs=knobs)

        gpus = [asked.nodes.gpus[number] for number in order]
        cuts: dict[tuple[str, tuple[tuple[str, ...], ...]], None] = {}
        for view, wanted in self._demands():
            by_node = deal_layouts(asked.gpu_model, wanted, len(gpus))
            cuts[view, tuple((one,) * count for one, count in zip(by_node, gpus, strict=True))] = None
            mixed = (deal_layouts(asked.gpu_model, wanted, count) for count in gpus)
            cuts[view, tuple(tuple(sorted(layouts)) for layouts in mixed)] = None
        for view, cut_nodes in cuts:
            layouts = [((WHOLE_GPU,) * len(cut), cut) for cut in cut_nodes]
            fixed = WaySetting(AUTOSCALED_POOLS, view, *cut_fleet(asked, order, layouts), tuple(order))
            for cut in (0, 1):
                found += self._descend(partial(setting, fixed, cut), self.able.placements[-1:])
        return found

    def on_demand(self) -> list[Trial]:
        """As few nodes as hold the target, with instances made for each job; all placements on each number of nodes."""
        asked = self.arena.asked
        views = dict.fromkeys(view for view, _ in self._demands())
        how = list(itertools.product(views, self.able.placements))

        def settings_of(count: int) -> Iterator[WaySetting]:
            numbers = kept_longest(asked)[:count]
            fleet, named, switching = on_demand_fleet(asked, numbers, self.able)
            for view, placement in how:
                knobs: Knobs = {
                    "gpus": int(fleet.gpus.sum()), "nodes": count, "requests": view, "placement": placement,
                }  # fmt: skip
                yield WaySetting(ON_DEMAND, view, fleet, named, tuple(numbers), switching, placement, knobs)

        return self.try_counts(settings_of, 1, len(asked.nodes.gpus)) if how else []


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

    def why_not(self, able: ActuatorAbilities, fleet: PlannedFleet) -> str | None:
        """Why an actuator cannot perform it on a fleet; None where it can."""
        if self.needs and fleet.today.shared:
            return "jobs share GPUs without MIG"
        if MIG in self.needs and not fleet.can_be_cut:
            return "this GPU model has no MIG profiles"
        lacking = {POWER: not able.switches_nodes, INSTANCES: able.cuts_on_demand != ANY_GPUS}
        facts = {POWER: "switches_nodes", INSTANCES: "cuts_on_demand"}
        found = (able.facts[facts[need]].meaning for need in self.needs if lacking.get(need))
        return next((f"not with {able.actuator}: {meaning}" for meaning in found), None)


WAYS: dict[str, FleetWay] = {
    TODAY: FleetWay("today's fleet, all nodes powered on", "today"),
    FEWER_NODES: FleetWay("fewer nodes with today's layouts, always powered on", "fewer nodes"),
    MIG_STATIC: FleetWay("some nodes in a fixed MIG layout, always powered on", "static MIG layout", (MIG,)),
    ON_OFF: FleetWay(
        "nodes with today's layouts power down when idle and up when jobs wait", "power down idle nodes",
        (POWER,), Tuning.on_off,
    ),
    AUTOSCALED_POOLS: FleetWay(
        "node pools, full or in one MIG layout, scale with pending jobs", "autoscaled node pools",
        (MIG, POWER), Tuning.pools,
    ),
    ON_DEMAND: FleetWay(
        "some nodes, always powered on: a MIG instance is created for each job", "dynamic MIG",
        (MIG, INSTANCES), Tuning.on_demand,
    ),
}  # fmt: skip
"""Ways to run the fleet by name, in the order in which they are shown, those of other packages last; the first
is never tuned."""
WAYS |= load_plugins(POLICY_ENTRY_POINTS, FleetWay, frozenset(WAYS))
MEANINGS = {name: way.meaning for name, way in WAYS.items()}
SHORT = {name: way.short for name, way in WAYS.items()}
POLICY_NAMES = tuple(WAYS)[1:]


FEWEST_JOBS = 100
"""Jobs that policies are fitted on, and evaluated on, at least."""
ALIKE = 0.01
"""Of ways whose GPU-hours differ by less than this share, the simplest is taken."""

BY_WAITS = {
    FEWER_NODES: "with fewer nodes a job size misses its limit, or waits longer than today if it misses it already",
    MIG_STATIC: "no other layout keeps each job size within its limit on fewer GPUs",
}
"""Policies whose setting the wait model finds, and why they are out where it finds none."""


@dataclass(frozen=True, eq=False)
class JudgedWay:
    """A tuned way on the days that it was not tuned on.

    - ``policy``: Its name.
    - ``trial``: Its setting, played; None where it is out.
    - ``reason``: Why it is out.
    - ``holds``: Whether it holds the target on the days kept back.
    - ``hours_per_week``, ``promised_per_week``: GPU-hours on, a week, on the days kept back and on those tuned on.
    - ``service``: Waits by job size of what the wait model recommends: they say what it adds, and whether it holds.
    - ``performable``: Whether the actuator can perform it.
    """

    policy: str
    trial: Trial | None
    reason: str | None
    holds: bool
    hours_per_week: float
    promised_per_week: float
    service: tuple[SizeService, ...] = ()
    performable: bool = True


@dataclass(frozen=True, eq=False)
class Contest:
    """What came of all ways.

    - ``scenario``, ``known``, ``asked``, ``arena``, ``able``: What was compared.
    - ``earlier``, ``later``: Jobs to tune on, and to judge on.
    - ``earlier_days``, ``later_days``: The same as days.
    - ``holdout``: Whether the record is long enough to fit policies on earlier days and evaluate them on later ones.
    - ``today``: Today's fleet.
    - ``judged``: The others, in a stated order.
    - ``winner``: The cheapest that holds, today's where none is cheaper.
    """

    scenario: Scenario
    known: History
    asked: JobReplayInputs
    arena: Arena
    able: ActuatorAbilities
    earlier: Mask
    later: Mask
    earlier_days: Mask
    later_days: Mask
    holdout: bool
    today: JudgedWay
    judged: tuple[JudgedWay, ...]
    winner: JudgedWay


def nothing_ran(scenario: Scenario) -> str | None:
    """Why nothing can be played: no job asked for a GPU, or none states when it ran; None where one did."""
    columns = ["gpus", "start_time", "submit_time", "end_time", "state"]
    asked = open_dataset(data_folder(scenario.data), columns=columns).jobs.filter(pl.col("gpus") > 0)
    if asked.is_empty():
        return NO_GPU
    return None if any_ran(asked) else NEVER_RAN


def opened(scenario: Scenario) -> tuple[History, JobReplayInputs, Arena, ActuatorAbilities]:
    """Read the past as jobs and nodes, with what kept each job waiting."""
    known = history(scenario)
    asked = read_replay_inputs(known)
    if scenario.quotas is not None:
        asked = replace(asked, tenant_limits=limits_of_tenants(read_rules_file(scenario.quotas, known)))
    able = find_abilities(
        scenario.actuator, known.fleet.gpu_model, lead_s=scenario.node_lead_s, ownership=scenario.ownership
    )  # fmt: skip
    larger = list_larger_profiles(asked.gpu_model, asked.fleet.profiles) if able.substitutes else None
    queue = able.queue if scenario.queue == "easy" else scenario.queue
    waits = explain_waits(asked)
    if scenario.arrival_scale != 1.0:
        rows, arrival = scale_load(waits.arrival_s, ~waits.judged, scenario.arrival_scale, asked.observed_s)
        asked, waits = take_jobs(asked, waits, rows, arrival - waits.arrival_s[rows])
        # What these jobs would wait on today's fleet stands for what was observed.
        simulated = simulate_waits(asked, waits, asked.fleet, np.arange(len(rows)), waits.arrival_s)
        waits = replace(waits, waited_s=np.minimum(simulated, asked.observed_s))
    arena = Arena(asked, waits, queue, scenario.wait_percentile, scenario.max_added_wait_minutes, larger, scenario.seed)
    return known, asked, arena, able


def contest(scenario: Scenario, tell: Callable[[str, Trial], object] | None = None) -> Contest:
    """Tune every policy that the actuator can perform, and judge all on the same days."""
    known, asked, arena, able = opened(scenario)
    split = holdout_from(asked, arena, int(asked.observed_s // SECONDS_PER_DAY))
    number = np.arange(len(arena.today.day_hours))
    every_day = number < max(int(asked.observed_s // SECONDS_PER_DAY), 1)
    earlier = later = arena.judged
    earlier_days = later_days = every_day
    if split is not None:
        before = arena.ready_s < split * SECONDS_PER_DAY
        earlier, later = arena.judged & before, arena.judged & ~before
        earlier_days, later_days = every_day & (number < split), every_day & (number >= split)
    tuning = Tuning(arena, earlier, earlier_days, able, tell)

    def judged_way(policy: str, trial: Trial | None, reason: str | None = None) -> JudgedWay:
        if trial is None:
            return JudgedWay(policy, None, reason, False, np.nan, np.nan)
        holds = arena.holds(trial, later)
        found = judge(policy, trial, holds=holds, days=(earlier_days, later_days))
        return replace(found, reason=reason if holds else why_out(arena, trial, later))

    today, judged = judged_way(TODAY, arena.today), []
    for policy in asked_policies(scenario) if split is not None else ():
        if (why_not := WAYS[policy].why_not(able, known.fleet)) is not None:
            judged.append(replace(judged_way(policy, None, why_not), performable=False))
            continue
        trial = WAYS[policy].tuned(tuning, policy)
        judged.append(judged_way(policy, trial, tuning.reasons.get(policy, BY_WAITS.get(policy))))
    holding = [one for one in judged if one.holds]
    winner = today
    best = min(holding, key=lambda one: one.promised_per_week, default=today)
    if best.promised_per_week < (1 - ALIKE) * today.promised_per_week:
        winner = next(one for one in holding if one.promised_per_week <= (1 + ALIKE) * best.promised_per_week)
    return Contest(scenario, known, asked, arena, able, earlier, later, earlier_days, later_days, split is not None,
                   today, tuple(judged), winner)  # fmt: skip


def why_out(arena: Arena, trial: Trial, which: Mask) -> str:
    """Why a fitted policy misses the limit in the evaluation window."""
    if np.isinf(trial.late_s[:, which & arena.judged]).any():
        return "a job does not start in the evaluation window"
    if arena.excess(trial, which) > 0:
        return f"in the evaluation window it adds more than {arena.minutes:g} minutes"
    return "services start after their deadline in the evaluation window"


def judge(policy: str, trial: Trial, *, holds: bool, days: tuple[Mask, Mask]) -> JudgedWay:
    """A setting with its GPU-hours in the training window, and in the evaluation window."""
    promised, hours = (7 * float(trial.day_hours[some].mean()) for some in days)
    return JudgedWay(policy, trial, None, holds, hours, promised)


def holdout_from(asked: JobReplayInputs, arena: Arena, days: int) -> int | None:
    """The day from which policies are evaluated; None where the record is too short to keep days back from fitting."""
    split = days - min(days // 2, 14)
    late = arena.judged & (arena.ready_s >= split * SECONDS_PER_DAY)
    early = arena.judged & ~late
    # A record of less than two weeks is too short to keep days back.
    if asked.nodes.snapshot or asked.starts_assumed or days < 14:
        return None
    return split if min(int(late.sum()), int(early.sum())) >= FEWEST_JOBS else None


def asked_policies(scenario: Scenario) -> list[str]:
    """Policies to compare, in their order: those that the scenario names, else all."""
    if scenario.policies is None:
        return list(POLICY_NAMES)
    names = (name.strip() for name in scenario.policies.split(","))
    asked = {resolve_name(name, POLICY_NAMES, subject="policy", error=ScenarioError) for name in names}
    return [name for name in POLICY_NAMES if name in asked]


LEVEL = 0.9


def promised(daily_saved: NDArray[np.float64], most: float) -> tuple[float, float, float]:
    """What a week to come saves, with an interval: the mean of seven days around the mean of those seen.

    Student's t over days, wider where neighbouring days are alike, and where past weeks missed the days before them by
    more than that.

    Examples
    --------
    >>> value, low, high = promised(np.array([100.0, 120.0] * 7), 5000.0)
    >>> round(value), round(low), round(high)
    (770, 710, 830)
    """
    mean = float(daily_saved.mean())
    value = DAYS_PER_WEEK * mean
    half = DAYS_PER_WEEK * max(by_draw(daily_saved), by_misses(daily_saved))
    return value, max(value - half, 0.0), min(value + half, most)


def by_draw(daily: NDArray[np.float64]) -> float:
    """Half width for the mean of a week to come by the spread of days alone."""
    days = len(daily)
    if days < 2:
        return float(abs(daily).max(initial=0.0))
    apart = daily - daily.mean()
    alike = float((apart[1:] @ apart[:-1]) / max(apart @ apart, 1e-12))
    # Few days say little about their autocorrelation: more than this is not believed.
    alike = min(max(alike, 0.0), 0.6)
    spread = float(np.sqrt(apart @ apart / (days - 1))) * np.sqrt((1 + alike) / (1 - alike))
    return float(student_t((1 + LEVEL) / 2, days - 1) * spread * np.sqrt(1 / DAYS_PER_WEEK + 1 / days))


def by_misses(daily: NDArray[np.float64]) -> float:
    """Half width by what past weeks missed the mean of all days before them; 0 with fewer than three weeks."""
    missed: Sequence[float] = [
        float(daily[at : at + DAYS_PER_WEEK].mean() - daily[:at].mean())
        for at in range(DAYS_PER_WEEK, len(daily) - DAYS_PER_WEEK + 1, DAYS_PER_WEEK)
    ]
    if len(missed) < 2:
        return 0.0
    # Few weeks: their spread by Student's t around no miss, as a quantile of so few says nothing.
    return float(student_t((1 + LEVEL) / 2, len(missed)) * np.sqrt(np.mean(np.square(missed))))
