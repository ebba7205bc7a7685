"""Recurring evaluation of a fleet: new plans, whether they are worth their changes, and the state in between."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.output_manifests_and_overwrite_checks import allow_overwriting_within, require_file
from gpuplanner.core.output_writing import write_atomically
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.serialization import from_plain, to_json, to_plain
from gpuplanner.core.units_and_number_formats import percent_text
from gpuplanner.decision.layout_planning import (
    PlannedProblem,
    make_problem_for_demand,
    plan_problem_for,
    raise_demand_to_gang,
)
from gpuplanner.forecast.rolling_demand_forecast import largest_gang
from gpuplanner.forecast.run_off import RunOff, lay_out_run_off
from gpuplanner.planner.drain_order import transition
from gpuplanner.planner.layout_plan import Plan, format_utc, plan_from_json, plan_to_json
from gpuplanner.planner.numbered_gpus import initial_gpu_layouts
from gpuplanner.planner.plan_explanation import realised_cost, realised_costs
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.receding_horizon import PlanGain, roll, standing_plan, weigh
from gpuplanner.sizing.memory_trend import peak_trends
from gpuplanner.usage.installed_capacity import describe_node_changes, gpus_of_nodes
from gpuplanner.usage.planning_history import History, history
from gpuplanner.usage.requested_demand import ALL_TENANTS_POOL_NAME
from gpuplanner.usage.rightsizing import requested_and_used

JOB_ADVICE_COLUMNS = ("job_id", "tenant", "profile", "next_profile", "restart_gpu_hours", "advice")
"""Columns of the table of running jobs that outgrow their MIG instance."""
MAX_WEIGHED_PATHS = 100
"""Most demand sample paths on which plans are compared, so that an evaluation takes seconds."""
WATCHED, ALWAYS, REACTIVE, NEVER, HINDSIGHT = "watch", "always", "reactive", "never", "hindsight"
"""Replanning policies of a replay: replan when it is worth the changes, at each evaluation, for present demand, never,
and with known future demand.
"""

Floats = NDArray[np.float64]
"""Array of float."""


@dataclass(frozen=True, eq=False)
class PastAdvice:
    """Plan of an earlier evaluation with its problem.

    - ``plan``, ``problem``: The plan, and the problem that it solves.
    - ``taken``: Whether the plan was advised.
    - ``slots``: Intervals to the next evaluation.
    """

    plan: Plan
    problem: PlanProblem
    taken: bool
    slots: int


@dataclass(frozen=True)
class PastOutcome:
    """Realised result of an earlier evaluation, until the next one [GPU h].

    - ``gain``: Gain of the plan over the unchanged fleet.
    - ``regret``: Cost of what was advised over the best plan in hindsight.
    """

    gain: float
    regret: float


@dataclass(frozen=True, eq=False)
class FleetEvaluation:
    """Result of one evaluation of the fleet.

    - ``at``: End of the data; the plan begins ``notice_hours`` later, and until then nothing changes.
    - ``planned``: The plan with its problem, which begins with today's layouts and powered-on GPUs.
    - ``verdict``: Gain of the plan over the unchanged fleet for ``slots`` intervals, to the next evaluation.
    - ``justified``: Whether the gain justifies a change.
    - ``past_outcomes``: Results of earlier evaluations whose period is over, by their time.
    - ``nodes``: GPUs of each node, where there is a node list.
    - ``jobs``: Running jobs that outgrow their instance, with the profile to move to and the cost of a restart.
    """

    at: datetime
    planned: PlannedProblem
    verdict: PlanGain
    justified: bool
    slots: int
    past_outcomes: Mapping[str, PastOutcome] = field(default_factory=dict)
    nodes: Mapping[str, int] = field(default_factory=dict)
    jobs: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=JOB_ADVICE_COLUMNS))

    @property
    def advice_text(self) -> str:
        """Gain of the plan and whether it is worth its changes, as a sentence."""
        verdict, hours = self.verdict, self.slots * self.planned.problem.interval_hours
        chance = percent_text(verdict.chance)
        return (
            f"In {hours:g} h, to the look after, the plan gains {verdict.gain:,.0f} GPU-hours over the fleet as it is "
            f"({verdict.low:,.0f} to {verdict.high:,.0f}), changes paid for; it pays with {chance} chance: "
            f"{'worth its changes' if self.justified else 'the fleet stays as it is'}."
        )

    @property
    def steps(self) -> pl.DataFrame:
        """First change of the plan, GPU by GPU, in the order that keeps the fewest requests waiting; may be empty."""
        table, problem = self.planned.layout_plan, self.planned.problem
        start, slot = problem.slot_start, timedelta(hours=problem.interval_hours)
        if (before := initial_gpu_layouts(self.planned.plan, problem)) is not None:
            now = {"slot_start": start - slot, "slot_end": start, "changed": False, "parked": None}
            rows = before.with_columns(pl.lit(value).alias(name) for name, value in now.items())
            table = pl.concat([rows.select(table.columns).cast(table.schema), table])
        changed = pl.col("layout") != pl.col("layout").shift(1).over("node", "gpu")
        moved = table.sort("slot_start").filter(changed)
        if moved.is_empty():
            return pl.DataFrame(schema={"step": pl.Int64})
        return transition(table, at=moved["slot_start"][0], gpu_model=problem.gpu_model, change=problem.change)


def evaluate_fleet(
    scenario: Scenario, interval_slots: int, past_advice: Mapping[str, PastAdvice] | None = None
) -> FleetEvaluation:
    """Evaluate the fleet on the current data: plan from sample paths, and weigh the plan against no change.

    Only the intervals to the next evaluation are weighed: later changes of the plan can still be made then.

    Parameters
    ----------
    scenario : Scenario
        Data, horizon and limits.
    interval_slots : int
        Intervals of the plan from one evaluation to the next.
    past_advice : mapping of str to PastAdvice, optional
        Plans of earlier evaluations by their time; those whose period is over are scored.

    Returns
    -------
    FleetEvaluation
    """
    job_history = history(scenario)
    now, past = job_history.plan_start, job_history.plan_start - job_history.recent
    jobs, slot = _lay_out_jobs(job_history, scenario), timedelta(hours=scenario.interval_hours)
    notice_slots = _count_notice_slots(scenario)
    origin = past // slot
    steps = notice_slots + scenario.horizon_intervals
    paths = _sample_demand_paths(jobs, origin, steps, scenario.seed)[:, :, notice_slots:] * scenario.arrival_scale
    start = now + notice_slots * slot
    demand = _demand_to_cover(scenario, paths, jobs.names)
    problem = make_problem_for_demand(
        scenario, (ALL_TENANTS_POOL_NAME,), jobs.names, demand, start_time=start, prices=None
    )
    planned = plan_problem_for(problem, scenario)
    unchanged_plan, days = standing_plan(planned.plan.require(), problem), max(past.days, 1)
    verdict = weigh(problem, unchanged_plan, planned.plan, paths, decision_slot=interval_slots, days=days)
    outcomes = {
        at: _evaluate_past_advice(advice, jobs, job_history, scenario)
        for at, advice in (past_advice or {}).items()
        if _has_ended(advice, job_history, scenario)
    }
    justified, slots = verdict.worth(scenario.watch_chance), min(interval_slots, problem.n_slots)
    nodes, outgrown = gpus_of_nodes(job_history.trace.inventory, now), _find_outgrown_jobs(job_history, scenario)
    return FleetEvaluation(now, planned, verdict, justified, slots, outcomes, nodes, outgrown)


def _has_ended(advice: PastAdvice, job_history: History, scenario: Scenario) -> bool:
    """Whether the period of an earlier plan is over and lies within the recent past of the data."""
    problem = advice.problem
    end = problem.slot_start + advice.slots * timedelta(hours=problem.interval_hours)
    is_observed = job_history.recent <= problem.slot_start and end <= job_history.plan_start
    return is_observed and problem.interval_hours == scenario.interval_hours


def _evaluate_past_advice(advice: PastAdvice, run_off: RunOff, job_history: History, scenario: Scenario) -> PastOutcome:
    """Score an earlier plan on the observed demand, against the unchanged fleet and the best plan in hindsight.

    Parameters
    ----------
    advice : PastAdvice
        The earlier plan.
    run_off : RunOff
        Observed demand by profile.
    job_history : History
        The recent past.
    scenario : Scenario
        Limits of the search.
    """
    first = (advice.problem.slot_start - job_history.recent) // timedelta(hours=advice.problem.interval_hours)
    last = first + advice.slots
    observed = dict(zip(run_off.names, run_off.demand_before(run_off.names, last)[:, first:], strict=True))
    no_demand = np.zeros(advice.slots)
    demand = np.array([observed.get(name, no_demand) for name in advice.problem.profiles])[None]
    problem = replace(advice.problem, demand=demand)
    counts, parked = (table[: advice.slots] for table in (advice.plan.counts, advice.plan.parked))
    plan = replace(advice.plan, counts=counts, parked=parked)
    unchanged_plan, best_plan = standing_plan(plan, problem), plan_problem_for(problem, scenario).plan.require()
    unchanged_cost, plan_cost, best_cost = realised_costs(problem, [unchanged_plan, plan, best_plan], demand)[:, 0]
    advised_cost = plan_cost if advice.taken else unchanged_cost
    regret = float(advised_cost - min(unchanged_cost, plan_cost, best_cost))
    return PastOutcome(round(float(unchanged_cost - plan_cost), 6), round(regret, 6))


def _find_outgrown_jobs(job_history: History, scenario: Scenario) -> pl.DataFrame:
    """Find running jobs whose memory trend exceeds their instance; none where single jobs may not be shown."""
    running = job_history.trace.jobs.filter(pl.col("state") == "RUNNING")
    if job_history.trace.samples is None or running.is_empty() or scenario.smallest_group:
        return pl.DataFrame(schema=JOB_ADVICE_COLUMNS)
    samples = job_history.trace.samples.filter(pl.col("job_id").is_in(running["job_id"].implode()))
    requests = requested_and_used(running, {None: job_history.fleet.gpu_model.name}, samples=samples)
    trends = peak_trends(requests, samples, job_history.plan_start)
    return trends.filter("running", pl.col("next_profile").is_not_null()).select(JOB_ADVICE_COLUMNS)


def _count_notice_slots(scenario: Scenario) -> int:
    """Intervals of the plan in the notice period, in which nothing changes."""
    return round(scenario.notice_hours / scenario.interval_hours)


def _lay_out_jobs(job_history: History, scenario: Scenario) -> RunOff:
    """Tabulate the demand of the jobs of the recent past over time, by the profile that they need."""
    view = job_history.views["rightsized" if job_history.fleet.can_be_cut else "whole"]
    grid: dict[str, Any] = {"start": job_history.recent, "interval_hours": scenario.interval_hours}
    return lay_out_run_off(view, **grid, series="profile", size="instances")


def _sample_demand_paths(run_off: RunOff, origin: int, steps: int, seed: int) -> Floats:
    """Sample paths of demanded instances, shape (n_paths, n_profiles, steps).

    Parameters
    ----------
    run_off : RunOff
        Observed demand by profile.
    origin, steps : int
        First interval, and number of intervals.
    seed : int
        Seed of the draws.
    """
    drawn = run_off.draws(run_off.names, origin, steps, seed)
    return np.moveaxis(drawn, 1, 0)[:: max(drawn.shape[1] // MAX_WEIGHED_PATHS, 1)]


def _demand_to_cover(scenario: Scenario, paths: Floats, profiles: tuple[str, ...]) -> Floats:
    """Instances to plan for, shape (1, n_profiles, steps): the scenario's quantile, with GPUs for the largest job."""
    demand = np.quantile(paths, scenario.quantile, axis=0)[None]
    return raise_demand_to_gang(demand, profiles, largest_gang(scenario))


@dataclass(frozen=True)
class ReplayRow:
    """Result of one replanning policy over the replayed days.

    - ``policy``: Name of the policy.
    - ``cost``: Cost [GPU h].
    - ``packs``: Number of changes.
    - ``gain``, ``regret``: Against never changing, and against hindsight [GPU h].
    """

    policy: str
    cost: float
    packs: int
    gain: float
    regret: float


@dataclass(frozen=True)
class Replay:
    """Replayed days of the record, with an evaluation at each interval.

    - ``begin``, ``days``: First instant, and length [d].
    - ``looks``, ``refused``: Evaluations, and those that wrote no change bundle.
    - ``rows``: Result by policy.
    """

    begin: datetime
    days: int
    looks: int
    refused: int
    rows: tuple[ReplayRow, ...]


def replay_past(
    scenario: Scenario, *, days: int, interval_slots: int, tell: Callable[[int, PlanGain, bool], None] | None = None
) -> Replay:
    """Replay the last days of a record with an evaluation every so many intervals, and compare replanning policies.

    No evaluation uses later data. ``never`` leaves the fleet unchanged, ``always`` takes every new plan, ``reactive``
    plans as if the present demand stayed, ``hindsight`` knows all. Each policy pays for its changes; cost is that of
    the observed demand, by :func:`gpuplanner.planner.plan_explanation.realised_cost`.

    Parameters
    ----------
    scenario : Scenario
        Data, horizon and limits.
    days : int
        Days to replay.
    interval_slots : int
        Intervals of the plan from one evaluation to the next.
    tell : callable, optional
        Called with the interval, the verdict and whether the plan was taken.

    Returns
    -------
    Replay

    Raises
    ------
    ScenarioError
        If the recent past is shorter than twice the days.
    """
    # The first evaluation uses as many days of history as each later one.
    scenario = scenario.but(history_days=scenario.history_days + days)
    job_history = history(scenario)
    jobs, slot = _lay_out_jobs(job_history, scenario), timedelta(hours=scenario.interval_hours)
    n_observed = (job_history.plan_start - job_history.recent) // slot
    n_replayed = round(24 * days / scenario.interval_hours)
    first = n_observed - n_replayed
    if first < n_replayed:
        got = f"{n_observed * scenario.interval_hours / 24:.0f}"
        todo = "Replay fewer days, or raise history_days."
        raise ScenarioError("watch: replay", f"{2 * days} days of recent past", got, todo)
    observed_demand = jobs.demand_before(jobs.names, n_observed)
    problem = make_problem_for_demand(
        scenario, (ALL_TENANTS_POOL_NAME,), jobs.names, observed_demand[None, :, first:],
        start_time=job_history.recent + first * slot, prices=None
    )  # fmt: skip
    horizon, notice_slots = min(scenario.horizon_intervals, n_replayed), _count_notice_slots(scenario)
    paths_at: dict[int, Floats] = {}
    demand_at: dict[int, Floats] = {}

    def forecast(at: int) -> Floats:
        if at not in demand_at:  # a plan that begins now was made a notice period earlier
            paths_at.clear()
            origin, steps = first + at - notice_slots, notice_slots + horizon
            paths_at[at] = _sample_demand_paths(jobs, origin, steps, scenario.seed)[:, :, notice_slots:]
            demand_at[at] = _demand_to_cover(scenario, paths_at[at], jobs.names)
        return demand_at[at]

    def repeat_present(at: int) -> Floats:
        return np.repeat(jobs.demand_before(jobs.names, first + at - notice_slots)[None, :, -1:], horizon, axis=2)

    verdicts: list[bool] = []

    def accept(at: int, part_problem: PlanProblem, current_plan: Plan, new_plan: Plan) -> bool:
        past_days = max(round((first + at) * scenario.interval_hours / 24), 1)
        paths = paths_at[at][:, :, : part_problem.n_slots]
        verdict = weigh(part_problem, current_plan, new_plan, paths, decision_slot=interval_slots, days=past_days)
        verdicts.append(verdict.worth(scenario.watch_chance))
        if tell is not None:
            tell(at, verdict, verdicts[-1])
        return verdicts[-1]

    options: dict[str, Any] = {"commit": interval_slots, "horizon": horizon, **scenario.search_limits}
    watched = roll(problem, forecast, accept=accept, **options)
    options |= {"hindsight": watched.hindsight}
    always, reactive = (roll(problem, believed, **options) for believed in (forecast, repeat_present))
    best_cost = min(run.hindsight_cost for run in (watched, always, reactive))
    unchanged_plan = standing_plan(watched.hindsight, problem)
    unchanged_cost = realised_cost(problem, unchanged_plan.layouts, unchanged_plan.counts)
    costs = (
        (WATCHED, watched.cost, watched.replans), (NEVER, unchanged_cost, 0), (ALWAYS, always.cost, always.replans),
        (REACTIVE, reactive.cost, reactive.replans), (HINDSIGHT, best_cost, 1),
    )  # fmt: skip
    rows = tuple(ReplayRow(name, cost, packs, unchanged_cost - cost, cost - best_cost) for name, cost, packs in costs)
    return Replay(problem.slot_start, days, len(verdicts), verdicts.count(False), rows)


STATE_FILE, METRICS_FILE, PAGE_FILE = "watch.json", "watch.prom", "watch.html"
"""Names of the files of ``watch``: its state, Prometheus metrics, and page."""
BUNDLE_FOLDER, RUNS_FOLDER = "bundle", "runs"
"""Names of the folders of change bundles and of plans."""
WATCH_FORMAT = "gpuplanner.watch/3"
"""Text in the state file of ``watch`` that names its format and version."""


@dataclass(frozen=True)
class PastEvaluation:
    """Earlier evaluation: its expected gain, and the realised one when its period is over [GPU h].

    - ``at``: Time of the evaluation.
    - ``pack``: Whether a change bundle was written.
    - ``gain``, ``chance``: Expected gain of the plan over the unchanged fleet in ``slots`` intervals, and its
      probability.
    - ``realised``: Gain by the observed demand; None before it is known.
    - ``regret``: Cost of what was advised over hindsight: the plan where a bundle was written, else the unchanged
      fleet.
    - ``slots``: Intervals to the next evaluation.
    """

    at: str
    pack: bool
    gain: float
    chance: float
    realised: float | None = None
    regret: float | None = None
    slots: int = 1

    @property
    def file(self) -> str:
        """Name of the file of its plan, which is kept until it is scored."""
        return f"{self.at.replace(':', '')}.json"


@dataclass(frozen=True)
class JobAdvice:
    """Running job that outgrows its instance, and what to do.

    - ``job_id``, ``tenant``: The job and its tenant.
    - ``profile``, ``next_profile``: Profile now, and profile to move to.
    - ``restart_gpu_hours``: Cost of a restart [GPU h].
    - ``advice``: The advice as a sentence.
    """

    job_id: str
    tenant: str
    profile: str
    next_profile: str
    restart_gpu_hours: float | None
    advice: str


@dataclass(frozen=True)
class WatchState:
    """State of the watch between evaluations, and source of its metrics; sums are over all scored evaluations.

    - ``data``: Hash of the data.
    - ``at``: Time of the last evaluation.
    - ``gpus``, ``nodes``: GPUs of the fleet, and of each node.
    - ``looks``, ``packs``, ``failures``: Evaluations, change bundles written, and failed evaluations.
    - ``gain``, ``chance``: Gain of the last plan [GPU h], and the probability that it pays off.
    - ``evaluated``, ``realised``, ``regret``: Scored evaluations, realised gain of bundles, and regret [GPU h].
    - ``pack_at``: Time of the last change bundle.
    - ``sentence``: Result of the last evaluation.
    - ``past``: Earlier evaluations.
    - ``jobs``: Running jobs that outgrow their instance.
    """

    data: str = ""
    at: str = ""
    gpus: int = 0
    looks: int = 0
    packs: int = 0
    failures: int = 0
    gain: float = 0.0
    chance: float = 0.0
    evaluated: int = 0
    realised: float = 0.0
    regret: float = 0.0
    pack_at: str = ""
    sentence: str = ""
    past: tuple[PastEvaluation, ...] = ()
    jobs: tuple[JobAdvice, ...] = ()
    nodes: Mapping[str, int] = field(default_factory=dict)

    def format_metrics(self) -> str:
        """Format the state of the watch as Prometheus metrics, for the text-file collector of the node exporter."""
        series = {
            "looks_total": ("counter", self.looks, "Evaluations of the fleet."),
            "packs_total": ("counter", self.packs, "Change bundles written."),
            "failures_total": ("counter", self.failures, "Evaluations and imports that failed."),
            "gain_gpu_hours": ("gauge", self.gain, "Gain of the last plan over today's fleet."),
            "chance_ratio": ("gauge", self.chance, "Probability that the last plan pays off."),
            "evaluated_total": ("counter", self.evaluated, "Evaluations whose period is over."),
            "realised_gpu_hours": ("gauge", self.realised, "Realised gain of the change bundles."),
            "regret_gpu_hours_total": ("counter", self.regret, "Regret against the best plan in hindsight."),
            "jobs_to_move": ("gauge", len(self.jobs), "Running jobs that outgrow their instance."),
        }
        return "".join(
            f"# HELP gpuplanner_watch_{name} {help_text}\n# TYPE gpuplanner_watch_{name} {kind}\n"
            f"gpuplanner_watch_{name} {value:.10g}\n"
            for name, (kind, value, help_text) in series.items()
        )

    def add_evaluation(self, evaluation: FleetEvaluation, data: str) -> WatchState:
        """Return the state of the watch after an evaluation of data with this hash.

        Parameters
        ----------
        evaluation : FleetEvaluation
            The evaluation.
        data : str
            Hash of the data.

        Raises
        ------
        ScenarioError
            If the data end before those of the last evaluation.
        """
        at, gpus = format_utc(evaluation.at), evaluation.planned.problem.gpus
        if at < self.at:
            todo = "Check the clock of the source; the state is unchanged."
            raise ScenarioError("watch: end of the data", f"{self.at} or later", at, todo)
        sentence = evaluation.advice_text
        if changed := describe_node_changes(self.nodes, evaluation.nodes):
            sentence += f" {changed}"
        elif self.gpus and gpus != self.gpus:
            sentence += f" The fleet has {gpus:,} GPUs, {self.gpus:,} at the last evaluation."
        if self.pack_at and not evaluation.justified:
            sentence += f" The change bundle of {self.pack_at} is not confirmed by this evaluation."
        gain, chance = round(evaluation.verdict.gain, 6), round(evaluation.verdict.chance, 6)
        outcomes = evaluation.past_outcomes
        past = [
            replace(run, realised=outcomes[run.at].gain, regret=outcomes[run.at].regret) if run.at in outcomes else run
            for run in self.past
            if run.at != at
        ]
        newly_evaluated = [run for run in past if run.at in outcomes]
        return replace(
            self, data=data, at=at, gpus=gpus, looks=self.looks + 1, packs=self.packs + evaluation.justified,
            gain=gain, chance=chance, sentence=sentence, pack_at=at if evaluation.justified else self.pack_at,
            evaluated=self.evaluated + len(newly_evaluated),
            realised=round(self.realised + sum(run.realised or 0.0 for run in newly_evaluated if run.pack), 6),
            regret=round(self.regret + sum(run.regret or 0.0 for run in newly_evaluated), 6),
            # Only the last 400 evaluations are listed; the sums include all.
            past=(*past, PastEvaluation(at, evaluation.justified, gain, chance, slots=evaluation.slots))[-400:],
            nodes=evaluation.nodes,
            jobs=tuple(from_plain(JobAdvice, row) for row in evaluation.jobs.to_dicts()),
        )  # fmt: skip

    def runs_table(self) -> pl.DataFrame:
        """Table of its evaluations, the last one first."""
        figures = dict.fromkeys(("gain", "chance", "realised", "regret"), pl.Float64)
        schema = {"at": pl.String, "pack": pl.Boolean, **figures}
        rows = [{name: vars(run)[name] for name in schema} for run in reversed(self.past)]
        return pl.DataFrame(rows, schema=schema)


def read_watch_state(folder: Path) -> WatchState:
    """Read the state of ``watch`` from its folder; a folder without one gives an empty state."""
    path = folder / STATE_FILE
    if not path.exists():
        return WatchState()
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values.pop("format") != WATCH_FORMAT:
            raise ValueError(path.name)
        return from_plain(WatchState, values)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        todo = f"Remove {path.name}; counters restart at 0."
        raise ScenarioError(str(path), f"a state of {WATCH_FORMAT!r}", str(error), todo) from None


def read_past_advice(folder: Path, watch_state: WatchState) -> Mapping[str, PastAdvice]:
    """Read the plans of evaluations that are not scored yet, by their time; missing files are left out."""
    return {
        run.at: PastAdvice(*plan_from_json(path.read_text(encoding="utf-8")), run.pack, run.slots)
        for run in watch_state.past
        if run.regret is None and (path := folder / RUNS_FOLDER / run.file).exists()
    }


def save_watch_state(folder_of_watch: Path, watch_state: WatchState, evaluation: FleetEvaluation | None = None) -> None:
    """Write plan, metrics and state, each atomically; the state last, so that an interrupted evaluation is repeated.

    Plans that no open evaluation needs are deleted then.
    """
    folder = folder_of_watch / RUNS_FOLDER
    open_looks = {run.file for run in watch_state.past if run.regret is None}
    if evaluation is not None:
        text = plan_to_json(evaluation.planned.plan, evaluation.planned.problem)
        path = folder / watch_state.past[-1].file
        write_atomically(path, lambda new: new.write_text(text, encoding="utf-8"), protect_foreign=False)
    write_watch_file(folder_of_watch / METRICS_FILE, watch_state.format_metrics())
    write_watch_file(folder_of_watch / STATE_FILE, to_json({"format": WATCH_FORMAT} | to_plain(watch_state)))
    for path in folder.glob("????-??-??T??????Z.json"):
        if path.name not in open_looks:
            path.unlink()


def require_watch_folder(folder: Path) -> None:
    """Reject a folder without a state of ``watch`` in which foreign files have names that ``watch`` writes."""
    if not (folder / STATE_FILE).exists():
        for name in (PAGE_FILE, METRICS_FILE):
            require_file(folder / name)


def write_watch_file(path: Path, text: str) -> None:
    """Write a file of a watch folder atomically."""
    with allow_overwriting_within():
        write_atomically(path, lambda new: new.write_text(text, encoding="utf-8"))
