"""Policies, their settings fitted on a training window, and their comparison in an evaluation window."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.errors import ScenarioError, resolve_name
from gpuplanner.core.libraries_plugins_and_workers import POLICY_ENTRY_POINT_GROUP, load_plugins
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.stage_cache_and_data_folders import data_folder, stage
from gpuplanner.core.units_and_number_formats import SECONDS_PER_DAY, SECONDS_PER_MINUTE
from gpuplanner.decision.data_correction import has_run_jobs
from gpuplanner.decision.decision_types import (
    AUTOSCALED_POOLS,
    FEWER_NODES,
    MIG_DYNAMIC,
    MIG_STATIC,
    POWER_DOWN_IDLE,
    REASON_NO_GPU_REQUESTED,
    REASON_NO_RUN_TIMES,
    TODAY,
    JobSizeWaits,
    find_fleet_abilities,
)
from gpuplanner.decision.explained_waits import ExplainedWaits, explain_waits, take_jobs
from gpuplanner.decision.inference_services import add_services
from gpuplanner.decision.policy_layouts import (
    choose_layouts_for_demand,
    count_instances,
    keep_layouts,
    make_mig_fleet,
    rank_nodes,
)
from gpuplanner.decision.policy_simulation import (
    Mask,
    PolicyRun,
    PolicySetting,
    ReplayedJobs,
    SettingValues,
    find_smallest,
    partition_nodes,
)
from gpuplanner.decision.requested_jobs import (
    REQUESTED,
    RIGHTSIZED,
    JobReplayInputs,
    limits_of_tenants,
    list_larger_profiles,
    read_replay_inputs,
)
from gpuplanner.decision.sharing_rules import read_rules_file
from gpuplanner.decision.wait_curve import DAYS_PER_WEEK, scale_load, simulate_waits
from gpuplanner.hardware.actuators import PARTITIONS_ANY_GPUS, ActuatorAbilities
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.simulator.replications import student_t
from gpuplanner.simulator.simulation_inputs import NodeAutoscaling
from gpuplanner.usage.planning_history import History, history
from gpuplanner.usage.study_fleet import PlannedFleet, explain_full_gpus

USUAL_IDLE_MINUTES = (10, 30)
"""Usual idle times before power-down [min]; a shorter time costs more power-ups and has to save more."""
MIN_GAIN_BY_UNUSUAL_IDLE = 0.03
"""Smallest share of the GPU-hours that an unusual idle time must save to be chosen [0-1]."""
MIN_GAIN_BY_MIXED_LAYOUTS = 0.02
"""Smallest share of the GPU-hours that several layouts on one node must save to be chosen [0-1]."""
IDLE_NODES_SEARCH_RADIUS = 2
"""How many more or fewer idle nodes are tried when another setting of a policy changes."""
MAX_WAITING_SHARE = 0.05
"""Share of all jobs waiting at once at which a simulation of a setting stops [0-1]."""


@dataclass(eq=False)
class TuningJobs:
    """Search for the cheapest setting of a policy that meets the wait limit in the training window.

    - ``replayed_jobs``: Observed jobs and the fleet of today.
    - ``training_jobs``, ``training_days``: Jobs and days of the training window.
    - ``abilities``: Abilities of the actuator.
    - ``report_run``: Called with the policy and the result of each simulation run.
    - ``reasons``: Why a policy has no setting, by policy.
    - ``good_runs``: Simulation runs that meet the limit.
    """

    replayed_jobs: ReplayedJobs
    training_jobs: Mask
    training_days: Mask
    abilities: ActuatorAbilities
    report_run: Callable[[str, PolicyRun], object] | None = None
    reasons: dict[str, str] = field(default_factory=dict)
    good_runs: set[PolicyRun] = field(default_factory=set)

    def choose_cheapest(self, policy: str, searched: Sequence[PolicyRun]) -> PolicyRun | None:
        """Choose the cheapest simulated setting that meets the limit in all replays; None without any."""
        good_runs = [run for run in searched if run in self.good_runs]
        good_runs.sort(key=lambda run: (self.rank_hours(run), run.setting.total_gpus, self.mean_wait(run)))
        # Settings are played in full, cheapest first, until one holds.
        for run in good_runs[:6]:
            full_run = self.replayed_jobs.simulate(run.setting)
            if self.replayed_jobs.meets_limit(full_run, self.training_jobs):
                return full_run
        if good_runs:
            self.reasons[policy] = "its settings meet the limit in some simulations only"
        elif any(self.replayed_jobs.meets_limit(run, self.training_jobs) for run in searched):
            self.reasons[policy] = "its settings meet the limit on past weeks, but not with slow node start-up"
        else:
            self.reasons[policy] = "none of its settings meets the limit"
        return None

    def meets_training_limit(self, run: PolicyRun) -> bool:
        """Whether a setting meets the wait limit in the training window, and with slow power-ups.

        With slow power-ups the waits of each job size may be longer by as much as the power-up takes longer: idle nodes
        kept for slow power-ups alone cost more than they gain.
        """
        replayed_jobs, jobs, switching = self.replayed_jobs, self.training_jobs, run.setting.switching
        meets_limit = replayed_jobs.meets_limit(run, jobs)
        meets_limit = meets_limit and replayed_jobs.share_of_days_met(run, jobs) >= self.min_days_share
        if meets_limit and switching is not None:
            slow_setting = replace(run.setting, switching=replace(switching, lead_s=self.abilities.lead.high))
            slower_min = (self.abilities.lead.high - self.abilities.lead.value) / SECONDS_PER_MINUTE
            slow_run = self._simulate_training(slow_setting)
            meets_limit = replayed_jobs.meets_limit(slow_run, jobs, tolerance_minutes=slower_min)
        if meets_limit:
            self.good_runs.add(run)
        return meets_limit

    def _simulate_training(self, setting: PolicySetting) -> PolicyRun:
        """Simulate the training window in one replay while settings are searched: the chosen one is played in all."""
        return self.replayed_jobs.simulate(setting, 1, max_waiting=MAX_WAITING_SHARE, until_s=self.training_end_s)

    @cached_property
    def training_end_s(self) -> float:
        """End of the training window, or arrival of the last job without an end, which must start in time too [s]."""
        last_day = int(np.flatnonzero(self.training_days).max(initial=-1))
        arrivals_s = self.replayed_jobs.arrival_s[self.replayed_jobs.standing | self.training_jobs]
        return max(SECONDS_PER_DAY * (last_day + 1.0), float(arrivals_s.max(initial=0.0)) + 1.0)

    @cached_property
    def min_days_share(self) -> float:
        """Share of the training days on which a setting has to meet the limit, at most that of today's fleet."""
        replayed_today = replace(self.replayed_jobs.today, waits_s=self.replayed_jobs.today.waits_s[1:])
        # Nine days in ten, if today's fleet replayed meets the limit on as many.
        return min(0.9, self.replayed_jobs.share_of_days_met(replayed_today, self.training_jobs))

    def mean_wait(self, run: PolicyRun) -> float:
        """Return the mean queue wait in the training window [min]; it decides between settings of equal cost."""
        late_s = run.waits_s[0, self.training_jobs]
        return float(late_s.mean()) / SECONDS_PER_MINUTE if len(late_s) else 0.0

    def rank_hours(self, run: PolicyRun) -> float:
        """Return the GPU-hours in the training window that rank a setting; unusual settings count as costlier."""
        gpu_hours, setting = float(run.daily_gpu_hours[self.training_days].sum()), run.setting
        shortest, longest = USUAL_IDLE_MINUTES
        if not shortest <= float(setting.values.get("idle_minutes", shortest)) <= longest:
            gpu_hours /= 1 - MIN_GAIN_BY_UNUSUAL_IDLE
        if any(len(set(layouts)) > 1 for node in setting.layouts for layouts in node):
            gpu_hours /= 1 - MIN_GAIN_BY_MIXED_LAYOUTS
        return gpu_hours

    def try_settings(self, settings: Iterable[PolicySetting]) -> list[PolicyRun]:
        """Simulate each setting once, and note those that meet the limit."""
        runs = []
        for setting in settings:
            run = self._simulate_training(setting)
            if self.report_run is not None:
                self.report_run(setting.policy, run)
            self.meets_training_limit(run)
            runs.append(run)
        return runs

    def try_counts(
        self, settings_of: Callable[[int], Iterable[PolicySetting]], fewest: int, upper: int
    ) -> list[PolicyRun]:
        """Simulate settings for the smallest number, of nodes or GPUs, that has a setting within the limit.

        Parameters
        ----------
        settings_of : callable
            Returns the settings for a number.
        fewest, upper : int
            Smallest and largest number to try.
        """
        runs: list[PolicyRun] = []

        def good(count: int) -> bool:
            """Whether a number has a setting that meets the limit."""
            new_runs = self.try_settings(settings_of(count))
            runs.extend(new_runs)
            return any(run in self.good_runs for run in new_runs)

        find_smallest(good, fewest, upper)
        return runs

    def list_settings_on_nodes(self, setting: PolicySetting, numbers: Sequence[int]) -> list[PolicySetting]:
        """List the setting of a policy on today's nodes of these numbers, with 0 to 2 more idle nodes kept on."""
        places = [setting.node_numbers.index(number) for number in numbers]
        fleet, switching = setting.fleet.only(np.array(places)), setting.switching
        assert switching is not None
        setting_name = "whole_nodes_kept" if "whole_nodes_kept" in setting.values else "idle_nodes_kept"
        nodes_kept = range(switching.kept[0], min(switching.kept[0] + IDLE_NODES_SEARCH_RADIUS, len(numbers)) + 1)
        return [
            replace(
                setting, fleet=fleet, layouts=tuple(setting.layouts[position] for position in places),
                node_numbers=tuple(numbers), switching=replace(switching, kept=(idle_nodes, *switching.kept[1:])),
                values={**setting.values, "gpus": int(fleet.gpus.sum()), setting_name: idle_nodes},
            )
            for idle_nodes in nodes_kept
        ]  # fmt: skip

    def make_switching(self, idle_minutes: int, idle_nodes_kept: Sequence[int]) -> NodeAutoscaling:
        """Make the rule that powers nodes down after idle minutes, except a number of idle nodes of each node pool."""
        able, idle_s = self.abilities, idle_minutes * SECONDS_PER_MINUTE
        return NodeAutoscaling(idle_s, able.lead.value + able.scan_s, tuple(idle_nodes_kept), able.cool_s, able.look_s)

    def try_power_down(self) -> list[PolicyRun]:
        """Simulate today's nodes with power-down when idle: idle times, idle nodes kept, and placements."""
        inputs = self.replayed_jobs.asked_jobs
        unswitched_setting = keep_layouts(inputs, POWER_DOWN_IDLE, rank_nodes(inputs))

        def make_setting(idle_minutes: int, placement: str, kept: int) -> PolicySetting:
            """Return the setting of an idle time, a placement and a number of idle nodes."""
            switching = self.make_switching(idle_minutes, [kept])
            values: SettingValues = {"idle_minutes": idle_minutes, "idle_nodes_kept": kept, "placement": placement}
            return replace(unswitched_setting, switching=switching, placement=placement, values=values)

        return self._try_idle_rules(make_setting, self.abilities.placements)

    def _try_idle_rules(
        self, make: Callable[[int, str, int], PolicySetting], placements: Sequence[str]
    ) -> list[PolicyRun]:
        """Find the fewest idle nodes to keep at one idle time, then try other idle times and placements.

        Parameters
        ----------
        make : callable
            Returns the setting of an idle time [min], a placement and a number of idle nodes kept on.
        placements : sequence of str
            Placements to try.
        """
        idle_minutes = [minutes for minutes in (1, 5, 10, 15, 30) if 60 * minutes >= self.abilities.shortest_idle_s]
        usual_minutes = min(idle_minutes, key=lambda minutes: abs(minutes - USUAL_IDLE_MINUTES[0]))
        most_nodes = len(self.replayed_jobs.asked_jobs.nodes.gpus)
        runs = self.try_counts(lambda kept: [make(usual_minutes, placements[0], kept)], 0, most_nodes)
        good_switching = [run.setting.switching for run in runs if run in self.good_runs]
        kept = min((switching.kept[0] for switching in good_switching if switching is not None), default=None)
        if kept is None:
            return runs
        for placement, minutes in itertools.product(placements, idle_minutes):
            if (placement, minutes) != (placements[0], usual_minutes):
                runs += self._try_idle_nodes_near(partial(make, minutes, placement), kept)
        # The plainest rule, an idle time alone: more idle nodes kept do not always shorten waits.
        longer_minutes = (minutes for minutes in idle_minutes if minutes >= USUAL_IDLE_MINUTES[0]) if kept else ()
        runs += self.try_settings(make(minutes, placements[0], 0) for minutes in longer_minutes)
        return runs

    def _try_idle_nodes_near(self, setting_of: Callable[[int], PolicySetting], idle_nodes: int) -> list[PolicyRun]:
        """Try a number of idle nodes kept on; fewer while the wait limit is met, else up to two more until it is."""
        runs = self.try_settings([setting_of(idle_nodes)])
        is_decreasing = runs[0] in self.good_runs
        for _ in range(IDLE_NODES_SEARCH_RADIUS):
            idle_nodes += -1 if is_decreasing else 1
            if not 0 <= idle_nodes <= len(self.replayed_jobs.asked_jobs.nodes.gpus):
                break
            runs += self.try_settings([setting_of(idle_nodes)])
            if (runs[-1] in self.good_runs) != is_decreasing:
                break
        return runs

    def _list_mig_demands(self) -> Iterator[tuple[str, dict[str, float]]]:
        """Yield the views in which jobs request MIG instances, with mean, then peak instances of each profile."""
        inputs, fitted_jobs = self.replayed_jobs.asked_jobs, self.training_jobs
        for view in (REQUESTED, RIGHTSIZED):
            for peak in (False, True) if view in inputs.views else ():
                requests = inputs.views[view].with_ready_times(self.replayed_jobs.arrival_s)
                span_s = float(self.training_days.sum()) * SECONDS_PER_DAY
                instances = count_instances(requests, inputs.fleet.profiles, fitted_jobs, span_s, peak=peak)
                if instances:
                    yield view, instances

    def try_node_pools(self) -> list[PolicyRun]:
        """Simulate node pools of full and MIG-partitioned nodes: each node in one layout, or in mixed layouts."""
        inputs, order = self.replayed_jobs.asked_jobs, rank_nodes(self.replayed_jobs.asked_jobs)
        runs = []

        def make(setting: PolicySetting, mig_kept: int, idle: int, placement: str, full_kept: int) -> PolicySetting:
            """Return the setting of a node layout with its idle rule.

            Parameters
            ----------
            setting : PolicySetting
                Nodes and layouts.
            mig_kept, full_kept : int
                Idle nodes that stay powered on, MIG-partitioned and full.
            idle : int
                Idle time before power-down. [min]
            placement : str
                Nodes that are filled first.
            """
            values: SettingValues = {
                "idle_minutes": idle, "whole_nodes_kept": full_kept, "cut_nodes_kept": mig_kept,
                "requests": setting.view,
            }  # fmt: skip
            switching = self.make_switching(idle, [full_kept, mig_kept])
            return replace(setting, switching=switching, placement=placement, values=values)

        gpus = [inputs.nodes.gpus[number] for number in order]
        choices: dict[tuple[str, tuple[tuple[str, ...], ...]], None] = {}
        for view, instances in self._list_mig_demands():
            layout_by_node = choose_layouts_for_demand(inputs.gpu_model, instances, len(gpus))
            choices[view, tuple((layout,) * count for layout, count in zip(layout_by_node, gpus, strict=True))] = None
            mixed_layouts = (choose_layouts_for_demand(inputs.gpu_model, instances, count) for count in gpus)
            choices[view, tuple(tuple(sorted(layouts)) for layouts in mixed_layouts)] = None
        for view, mig_nodes in choices:
            layouts = [((FULL_GPU,) * len(mig_kept), mig_kept) for mig_kept in mig_nodes]
            fixed = PolicySetting(AUTOSCALED_POOLS, view, *partition_nodes(inputs, order, layouts), tuple(order))
            for mig_kept in (0, 1):
                runs += self._try_idle_rules(partial(make, fixed, mig_kept), self.abilities.placements[-1:])
        return runs

    def try_dynamic_mig(self) -> list[PolicyRun]:
        """Simulate the fewest nodes with instances created for each job that meet the limit, with all placements."""
        inputs = self.replayed_jobs.asked_jobs
        views = dict.fromkeys(view for view, _ in self._list_mig_demands())
        views_and_placements = list(itertools.product(views, self.abilities.placements))

        def settings_of(count: int) -> Iterator[PolicySetting]:
            """Yield the settings of a number of nodes."""
            numbers = rank_nodes(inputs)[:count]
            fleet, layouts, switching = make_mig_fleet(inputs, numbers, self.abilities)
            for view, placement in views_and_placements:
                values: SettingValues = {
                    "gpus": int(fleet.gpus.sum()), "nodes": count, "requests": view, "placement": placement,
                }  # fmt: skip
                yield PolicySetting(MIG_DYNAMIC, view, fleet, layouts, tuple(numbers), switching, placement, values)

        return self.try_counts(settings_of, 1, len(inputs.nodes.gpus)) if views_and_placements else []


NEEDS_MIG, NEEDS_ON_OFF, NEEDS_INSTANCES = "MIG", "nodes that power down", "instances made for jobs"
"""Requirements of a policy on GPUs and actuator: MIG, nodes that power down, and MIG instances created for jobs."""


@dataclass(frozen=True)
class FleetPolicy:
    """A policy to operate the fleet, with its settings.

    - ``meaning``, ``short``: What the policy does, and its short name.
    - ``needs``: :data:`NEEDS_MIG`, :data:`NEEDS_ON_OFF` or :data:`NEEDS_INSTANCES`; empty if any actuator can apply it.
    - ``settings``: Function that simulates its settings; None: nothing to set, or the wait model finds the number of
      nodes.
    """

    meaning: str
    short: str
    needs: tuple[str, ...] = ()
    settings: Callable[[TuningJobs], list[PolicyRun]] | None = None

    def tune(self, tuning: TuningJobs, name: str) -> PolicyRun | None:
        """Find the cheapest setting that meets the limit; None without any."""
        return None if self.settings is None else tuning.choose_cheapest(name, self.settings(tuning))

    def find_obstacle(self, abilities: ActuatorAbilities, fleet: PlannedFleet) -> str | None:
        """Find why an actuator cannot apply the policy to a fleet; None if it can."""
        if self.needs and fleet.today.shared:
            return "jobs share GPUs without MIG"
        if NEEDS_MIG in self.needs and not fleet.can_be_cut:
            return explain_full_gpus(fleet.name)
        lacking = {
            NEEDS_ON_OFF: not abilities.switches_nodes,
            NEEDS_INSTANCES: abilities.cuts_on_demand != PARTITIONS_ANY_GPUS,
        }
        facts = {NEEDS_ON_OFF: "switches_nodes", NEEDS_INSTANCES: "cuts_on_demand"}
        meanings = (abilities.facts[facts[need]].meaning for need in self.needs if lacking.get(need))
        return next((f"not with {abilities.actuator}: {meaning}" for meaning in meanings), None)


POLICIES: dict[str, FleetPolicy] = {
    TODAY: FleetPolicy("today's fleet, all nodes powered on", "today"),
    FEWER_NODES: FleetPolicy("fewer nodes with today's layouts; those that are kept stay powered on", "fewer nodes"),
    MIG_STATIC: FleetPolicy("some nodes in a fixed MIG layout; all stay powered on", "static MIG layout", (NEEDS_MIG,)),
    POWER_DOWN_IDLE: FleetPolicy(
        "nodes with today's layouts power down when idle and up when jobs wait", "power down idle nodes",
        (NEEDS_ON_OFF,), TuningJobs.try_power_down,
    ),
    AUTOSCALED_POOLS: FleetPolicy(
        "node pools, full or in one MIG layout, scale with pending jobs", "autoscaled node pools",
        (NEEDS_MIG, NEEDS_ON_OFF), TuningJobs.try_node_pools,
    ),
    MIG_DYNAMIC: FleetPolicy(
        "some nodes create a MIG instance for each job; all stay powered on", "dynamic MIG",
        (NEEDS_MIG, NEEDS_INSTANCES), TuningJobs.try_dynamic_mig,
    ),
}  # fmt: skip
"""Policies by name in display order, those of extensions last; the first has no settings."""
POLICIES |= load_plugins(POLICY_ENTRY_POINT_GROUP, FleetPolicy, frozenset(POLICIES))
MEANINGS = {name: policy.meaning for name, policy in POLICIES.items()}
"""Meanings of the policies by name."""
SHORT_NAMES = {name: policy.short for name, policy in POLICIES.items()}
SHORT_NAMES |= {"buy": "more GPUs", "pack": "nodes filled one by one", "raise_limit": "raised limits"}
"""Short names for charts and tables, by policy, and by action of measures that keep today's layouts."""
POLICY_NAMES = tuple(POLICIES)[1:]
"""Names of the policies without today's."""


MIN_JOBS_PER_WINDOW = 100
"""Fewest jobs of the training window, and of the evaluation window."""
COST_TIE_SHARE = 0.01
"""Largest difference of GPU-hours between policies of equal cost, as a share [0-1]; the simplest is recommended."""

EXCLUSION_REASON_BY_POLICY = {
    FEWER_NODES: "with fewer nodes a job size misses its limit, or waits longer than today if it misses it already",
    MIG_STATIC: "no other MIG layout is to be tried, or none meets the wait limits with as few GPUs",
}
"""Policies whose setting the wait model finds, and why they are excluded if it finds none."""


@dataclass(frozen=True, eq=False)
class EvaluatedPolicy:
    """A fitted policy in the evaluation window.

    - ``policy``: Name of the policy.
    - ``run``: Simulation run of its setting; None if it is excluded.
    - ``reason``: Why it is excluded.
    - ``meets_limit``: Whether it meets the wait limit in the evaluation window.
    - ``evaluation_hours``, ``training_hours``: GPU-hours provisioned a week in the evaluation and in the training
      window.
    - ``service``: Queue waits by job size, if the wait model recommends it; they decide whether it meets the limit.
    - ``performable``: Whether the actuator can apply it.
    """

    policy: str
    run: PolicyRun | None
    reason: str | None
    meets_limit: bool
    evaluation_hours: float
    training_hours: float
    service: tuple[JobSizeWaits, ...] = ()
    performable: bool = True


@dataclass(frozen=True, eq=False)
class PolicyResults:
    """All policies simulated on the same jobs.

    - ``scenario``, ``job_history``, ``asked_jobs``, ``replayed_jobs``, ``abilities``: Scenario, observed jobs, their
      requests, the simulation of policies, and the abilities of the actuator.
    - ``training_jobs``, ``evaluation_jobs``: Jobs of the training and of the evaluation window.
    - ``training_days``, ``evaluation_days``: Days of both.
    - ``has_holdout``: Whether the record is long enough for two windows.
    - ``today``: Today's fleet.
    - ``evaluated_policies``: The other policies in order.
    - ``winner``: Cheapest policy that meets the limit; today's if none is cheaper.
    """

    scenario: Scenario
    job_history: History
    asked_jobs: JobReplayInputs
    replayed_jobs: ReplayedJobs
    abilities: ActuatorAbilities
    training_jobs: Mask
    evaluation_jobs: Mask
    training_days: Mask
    evaluation_days: Mask
    has_holdout: bool
    today: EvaluatedPolicy
    evaluated_policies: tuple[EvaluatedPolicy, ...]
    winner: EvaluatedPolicy


def find_simulation_obstacle(scenario: Scenario) -> str | None:
    """Find why nothing can be simulated: no job requested a GPU, or none states when it ran; None otherwise."""
    gpu_jobs = open_dataset(data_folder(scenario.data), jobs_on_disk=True).lazy_jobs.table.filter(pl.col("gpus") > 0)
    if not gpu_jobs.select(pl.len()).collect(engine="streaming").item():
        return REASON_NO_GPU_REQUESTED
    return None if has_run_jobs(gpu_jobs) else REASON_NO_RUN_TIMES


@stage
def _explain_jobs(scenario: Scenario) -> tuple[JobReplayInputs, ExplainedWaits]:
    """Read the jobs and nodes of a scenario, and explain the waits, once for all actuators and demands."""
    job_history = history(scenario)
    inputs = read_replay_inputs(job_history)
    if scenario.quotas is not None:
        inputs = replace(inputs, tenant_limits=limits_of_tenants(read_rules_file(scenario.quotas, job_history)))
    return inputs, explain_waits(inputs)


@stage
def explain_study_waits(scenario: Scenario) -> tuple[JobReplayInputs, ExplainedWaits]:
    """Explain the waits of the jobs at the demand of a scenario, with its inference services."""
    inputs, waits = _explain_jobs(scenario)
    if scenario.arrival_scale != 1.0:
        job_rows, arrival = scale_load(waits.arrival_s, ~waits.is_evaluated, scenario.arrival_scale, inputs.observed_s)
        inputs, waits = take_jobs(inputs, waits, job_rows, arrival - waits.arrival_s[job_rows])
        # What these jobs would wait on today's fleet stands for what was observed.
        simulated_s = simulate_waits(inputs, waits, inputs.fleet, np.arange(len(job_rows)), waits.arrival_s)
        waits = replace(waits, waited_s=np.minimum(simulated_s, inputs.observed_s))
    if scenario.services is not None:
        inputs, waits = add_services(scenario, inputs, waits)
    return inputs, waits


def load_policy_simulation(scenario: Scenario) -> tuple[History, JobReplayInputs, ReplayedJobs, ActuatorAbilities]:
    """Read the jobs and nodes of a scenario, explain the waits, and prepare the simulation of policies."""
    job_history, (inputs, waits) = history(scenario), explain_study_waits(scenario)
    abilities = find_fleet_abilities(scenario, job_history)
    larger = list_larger_profiles(inputs.gpu_model, inputs.fleet.profiles) if abilities.substitutes else None
    rule = abilities.queue if scenario.queue == "easy" else scenario.queue
    replayed_jobs = ReplayedJobs(inputs, waits, rule, scenario.max_added_wait_minutes, larger, scenario.seed)
    return job_history, inputs, replayed_jobs, abilities


def evaluate_policies(scenario: Scenario, tell: Callable[[str, PolicyRun], object] | None = None) -> PolicyResults:
    """Fit every policy that the actuator can apply, and evaluate all on the same days.

    Parameters
    ----------
    scenario : Scenario
        Data, actuator and wait limits.
    tell : callable, optional
        Called with the policy and the result of each simulation run.

    Returns
    -------
    PolicyResults
    """
    job_history, inputs, replayed_jobs, abilities = load_policy_simulation(scenario)
    evaluation_day = find_evaluation_day(inputs, replayed_jobs, int(inputs.observed_s // SECONDS_PER_DAY))
    day_numbers = np.arange(len(replayed_jobs.today.daily_gpu_hours))
    every_day = day_numbers < max(int(inputs.observed_s // SECONDS_PER_DAY), 1)
    earlier = later = replayed_jobs.is_evaluated
    earlier_days = later_days = every_day
    if evaluation_day is not None:
        is_before = replayed_jobs.arrival_s < evaluation_day * SECONDS_PER_DAY
        earlier, later = replayed_jobs.is_evaluated & is_before, replayed_jobs.is_evaluated & ~is_before
        earlier_days = every_day & (day_numbers < evaluation_day)
        later_days = every_day & (day_numbers >= evaluation_day)
    tuning = TuningJobs(replayed_jobs, earlier, earlier_days, abilities, tell)

    def evaluate(policy: str, run: PolicyRun | None, reason: str | None = None) -> EvaluatedPolicy:
        """Return the policy of a simulation run with its result in the evaluation window."""
        if run is None:
            return EvaluatedPolicy(policy, None, reason, False, np.nan, np.nan)
        holds = replayed_jobs.meets_limit(run, later)
        evaluated = summarize_policy_run(policy, run, holds=holds, days=(earlier_days, later_days))
        return replace(evaluated, reason=reason if holds else explain_missed_limit(replayed_jobs, run, later))

    today, evaluated_policies = evaluate(TODAY, replayed_jobs.today), []
    for policy in list_requested_policies(scenario) if evaluation_day is not None else ():
        if (why_not := POLICIES[policy].find_obstacle(abilities, job_history.fleet)) is not None:
            evaluated_policies.append(replace(evaluate(policy, None, why_not), performable=False))
            continue
        run = POLICIES[policy].tune(tuning, policy)
        reason = tuning.reasons.get(policy, EXCLUSION_REASON_BY_POLICY.get(policy))
        evaluated_policies.append(evaluate(policy, run, reason))
    meeting = [evaluated for evaluated in evaluated_policies if evaluated.meets_limit]
    winner = today
    cheapest = min(meeting, key=lambda evaluated: evaluated.training_hours, default=today)
    if cheapest.training_hours < (1 - COST_TIE_SHARE) * today.training_hours:
        max_hours = (1 + COST_TIE_SHARE) * cheapest.training_hours
        winner = next(evaluated for evaluated in meeting if evaluated.training_hours <= max_hours)
    return PolicyResults(
        scenario, job_history, inputs, replayed_jobs, abilities, earlier, later, earlier_days, later_days,
        evaluation_day is not None, today, tuple(evaluated_policies), winner,
    )  # fmt: skip


@stage
def _fit_policies(scenario: Scenario, tell: Callable[[str, PolicyRun], object] | None) -> PolicyResults:
    """Evaluate the policies of a scenario, once for all fleet sizes, demands and wait limits that are asked of it."""
    return evaluate_policies(scenario, tell)


def load_fitted_policies(scenario: Scenario, tell: Callable[[str, PolicyRun], object] | None = None) -> PolicyResults:
    """Evaluate the policies of a scenario, or return them from memory, with a list of simulation runs of its own."""
    results = _fit_policies(scenario, tell)
    replayed_jobs = copy.copy(results.replayed_jobs)
    replayed_jobs.runs = list(replayed_jobs.runs)
    return replace(results, scenario=scenario, replayed_jobs=replayed_jobs)


def explain_missed_limit(replayed_jobs: ReplayedJobs, run: PolicyRun, evaluated_jobs: Mask) -> str:
    """Explain why a fitted policy misses the limit in the evaluation window."""
    if np.isinf(run.waits_s[:, evaluated_jobs & replayed_jobs.is_evaluated]).any():
        return "a job does not start in the evaluation window"
    if replayed_jobs.worst_excess_minutes(run, evaluated_jobs) > 0:
        return f"in the evaluation window it adds more than {replayed_jobs.limit_minutes:g} minutes"
    return "services start after their deadline in the evaluation window"


def summarize_policy_run(policy: str, run: PolicyRun, *, holds: bool, days: tuple[Mask, Mask]) -> EvaluatedPolicy:
    """Summarize a simulation run with its GPU-hours a week in both windows.

    Parameters
    ----------
    policy : str
        Name of the policy.
    run : PolicyRun
        Simulation run of its setting.
    holds : bool
        Whether it meets the wait limit in the evaluation window.
    days : tuple of two arrays of bool, shape (n_days,)
        Days of the training and of the evaluation window.
    """
    training, evaluation = (7 * float(run.daily_gpu_hours[window_days].mean()) for window_days in days)
    return EvaluatedPolicy(policy, run, None, holds, evaluation, training)


def find_evaluation_day(inputs: JobReplayInputs, replayed_jobs: ReplayedJobs, n_days: int) -> int | None:
    """Find the first day of the evaluation window; None if the record is too short for one."""
    evaluation_day = n_days - min(n_days // 2, 14)
    is_late = replayed_jobs.is_evaluated & (replayed_jobs.arrival_s >= evaluation_day * SECONDS_PER_DAY)
    is_early = replayed_jobs.is_evaluated & ~is_late
    # A record of less than two weeks is too short to keep days back.
    if inputs.nodes.snapshot or inputs.starts_assumed or n_days < 14:
        return None
    return evaluation_day if min(int(is_late.sum()), int(is_early.sum())) >= MIN_JOBS_PER_WINDOW else None


def list_requested_policies(scenario: Scenario) -> list[str]:
    """List the policies to compare in their order: those that the scenario names, else all."""
    if scenario.policies is None:
        return list(POLICY_NAMES)
    names = (name.strip() for name in scenario.policies.split(","))
    requested_policies = {resolve_name(name, POLICY_NAMES, subject="policy", error=ScenarioError) for name in names}
    return [name for name in POLICY_NAMES if name in requested_policies]


INTERVAL_LEVEL = 0.9
"""Coverage of the interval of the weekly saving [0-1]."""


def estimate_weekly_saving(daily_saved: NDArray[np.float64], max_weekly: float) -> tuple[float, float, float]:
    """Estimate the saving of a future week with its 90 % interval, from daily savings.

    The interval is Student's t over days. It is wider if neighbouring days are alike, and if past weeks missed the days
    before them by more.

    Parameters
    ----------
    daily_saved : array of float, shape (n_days,)
        GPU-hours saved on each day.
    max_weekly : float
        Upper bound of the interval. [GPU h a week]

    Returns
    -------
    tuple of float
        Estimate, lower and upper end of its interval. [GPU h a week]

    Examples
    --------
    >>> value, low, high = estimate_weekly_saving(np.array([100.0, 120.0] * 7), 5000.0)
    >>> round(value), round(low), round(high)
    (770, 710, 830)
    """
    daily_mean = float(daily_saved.mean())
    weekly_saving = DAYS_PER_WEEK * daily_mean
    half_width = DAYS_PER_WEEK * max(half_width_from_daily_spread(daily_saved), half_width_from_past_weeks(daily_saved))
    return weekly_saving, max(weekly_saving - half_width, 0.0), min(weekly_saving + half_width, max_weekly)


def half_width_from_daily_spread(daily_saved: NDArray[np.float64]) -> float:
    """Compute the half width of the interval of a future week's daily mean from the spread of days [GPU h a day]."""
    n_days = len(daily_saved)
    if n_days < 2:
        return float(abs(daily_saved).max(initial=0.0))
    deviations = daily_saved - daily_saved.mean()
    correlation = float((deviations[1:] @ deviations[:-1]) / max(deviations @ deviations, 1e-12))
    # Few days say little about their autocorrelation: more than this is not believed.
    correlation = min(max(correlation, 0.0), 0.6)
    spread = float(np.sqrt(deviations @ deviations / (n_days - 1))) * np.sqrt((1 + correlation) / (1 - correlation))
    return float(student_t((1 + INTERVAL_LEVEL) / 2, n_days - 1) * spread * np.sqrt(1 / DAYS_PER_WEEK + 1 / n_days))


def half_width_from_past_weeks(daily_saved: NDArray[np.float64]) -> float:
    """Compute the half width of the interval of a future week's daily mean from errors of past weeks [GPU h a day].

    It is 0 with fewer than three weeks.
    """
    weekly_errors: Sequence[float] = [
        float(daily_saved[day : day + DAYS_PER_WEEK].mean() - daily_saved[:day].mean())
        for day in range(DAYS_PER_WEEK, len(daily_saved) - DAYS_PER_WEEK + 1, DAYS_PER_WEEK)
    ]
    if len(weekly_errors) < 2:
        return 0.0
    # Few weeks: their spread by Student's t around no miss, as a quantile of so few says nothing.
    return float(student_t((1 + INTERVAL_LEVEL) / 2, len(weekly_errors)) * np.sqrt(np.mean(np.square(weekly_errors))))
