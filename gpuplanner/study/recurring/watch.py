"""A look at a running fleet: what runs on, what comes, the plan that follows, and whether it is worth its changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.demand.runoff import RunOff, run_off
from gpuplanner.errors import ScenarioError, message
from gpuplanner.planner.contract.plan import Plan
from gpuplanner.planner.contract.problem import PlanProblem
from gpuplanner.planner.numbered.assign import layouts_before
from gpuplanner.planner.program.realised_cost import realised_cost, realised_costs
from gpuplanner.planner.rolling.online import Online, roll
from gpuplanner.planner.rolling.transition import transition
from gpuplanner.planner.rolling.worthwhile import weigh
from gpuplanner.planner.rolling.online import Accept
from gpuplanner.planner.rolling.worthwhile import Verdict, standing_plan
from gpuplanner.scenario import Scenario
from gpuplanner.sizing.past_use import asked_and_used
from gpuplanner.sizing.peak_trend import peak_trends
from gpuplanner.study.future.outlook import largest_gang
from gpuplanner.study.future.plans import Planned, planned_for, problem_of, with_room_for_gangs
from gpuplanner.study.past.history import History, history
from gpuplanner.study.recurring.nodes_seen import nodes_seen

EVERYBODY = "all"
JOB_COLUMNS = ("job_id", "tenant", "profile", "next_profile", "restart_gpu_hours", "advice")
PATHS_WEIGHED = 100
"""Of the sample paths every second one is held against the plans: a look is to take seconds."""
WATCHED, ALWAYS, REACTIVE, NEVER, HINDSIGHT = "watch", "always", "reactive", "never", "hindsight"

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PastAdvice:
    """The plan of an earlier look with its problem, whether it was advised, and slots to the look after."""

    plan: Plan
    problem: PlanProblem
    taken: bool
    slots: int


@dataclass(frozen=True)
class PastOutcome:
    """What came to the look after [GPU h]: gain of the plan over the fleet as it was, regret of what was advised."""

    gain: float
    regret: float


@dataclass(frozen=True, eq=False)
class FleetLook:
    """What was found at one instant.

    - ``at``: End of the data; the plan begins ``watch_frozen_hours`` later, and until then all stays as it is.
    - ``planned``: The plan with its problem, whose fleet begins as it is cut and on today.
    - ``verdict``: What it gains over leaving the fleet as it is for so many ``slots``, to the look after.
    - ``worth``: Whether that is enough for a change.
    - ``came``: What became of earlier looks whose hours are over, by when they were made.
    - ``nodes``: GPUs of each node, where there is a list of them.
    - ``jobs``: Running jobs that outgrow what they hold, with the profile to move to and what a restart costs.
    """

    at: datetime
    planned: Planned
    verdict: Verdict
    worth: bool
    slots: int
    came: Mapping[str, PastOutcome] = field(default_factory=dict)
    nodes: Mapping[str, int] = field(default_factory=dict)
    jobs: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=JOB_COLUMNS))

    @property
    def sentence(self) -> str:
        """What was found, in words."""
        one, hours = self.verdict, self.slots * self.planned.problem.slot_hours
        return (
            f"In {hours:g} h, to the look after, the plan gains {one.gain:,.0f} GPU-hours over the fleet as it is "
            f"({one.low:,.0f} to {one.high:,.0f}), changes paid for; it pays with {one.chance:.0%} chance: "
            f"{'worth its changes' if self.worth else 'the fleet stays as it is'}."
        )

    @property
    def steps(self) -> pl.DataFrame:
        """The first change of the plan, GPU by GPU, in the order that keeps fewest requests waiting; may be empty."""
        table, problem = self.planned.layout_plan, self.planned.problem
        start, slot = problem.slot_start, timedelta(hours=problem.slot_hours)
        before = layouts_before(self.planned.plan, problem)
        if before is not None:
            now = pl.DataFrame(
                {"slot_start": [start - slot], "slot_end": [start], "changed": [False], "parked": None}
            )
            rows = before.join(now, how="cross").select(table.columns).cast(table.schema)
            table = pl.concat([rows, table])
        moved = table.sort("slot_start").filter(
            pl.col("layout") != pl.col("layout").shift(1).over("node", "gpu")
        )
        if moved.is_empty():
            return pl.DataFrame(schema={"step": pl.Int64})
        return transition(table, at=moved["slot_start"][0], board=problem.board, change=problem.change)


def look(scenario: Scenario, every: int, earlier: Mapping[str, PastAdvice] | None = None) -> FleetLook:
    """Look at the data of a scenario as they are now; the plan follows the sample paths, not a library's model.

    The look after is ``every`` slots later: what a plan does behind that can still be done then, so that only what
    differs until then is weighed. ``earlier`` are plans of looks before, by when they were made; of those whose hours
    are over it says what came.
    """
    known = history(scenario)
    jobs, slot = _jobs(known, scenario), timedelta(hours=scenario.slot_hours)
    frozen = _frozen(scenario)
    origin = (known.plan_start - known.recent) // slot
    steps = frozen + scenario.horizon_slots
    paths = _paths(jobs, origin, steps, scenario.seed)[:, :, frozen:] * scenario.arrival_scale
    start = known.plan_start + frozen * slot
    problem = problem_of(
        scenario, (EVERYBODY,), jobs.names, _demand(scenario, paths, jobs.names), start=start, prices=None
    )  # fmt: skip
    planned = planned_for(problem, scenario)
    stands, days = standing_plan(planned.plan.require(), problem), (known.plan_start - known.recent).days
    verdict = weigh(problem, stands, planned.plan, paths, until=every, days=max(days, 1))
    came = {
        at: _outcome(advice, jobs, known, scenario)
        for at, advice in (earlier or {}).items()
        if _is_over(advice, known, scenario)
    }
    worth = verdict.worth(scenario.watch_chance)
    slots = min(every, problem.n_slots)
    nodes = nodes_seen(known.trace.inventory, known.plan_start)
    return FleetLook(
        known.plan_start, planned, verdict, worth, slots, came, nodes, _outgrown(known, scenario)
    )


def _is_over(advice: PastAdvice, known: History, scenario: Scenario) -> bool:
    problem = advice.problem
    end = problem.slot_start + advice.slots * timedelta(hours=problem.slot_hours)
    seen = known.recent <= problem.slot_start and end <= known.plan_start
    return seen and problem.slot_hours == scenario.slot_hours


def _outcome(advice: PastAdvice, jobs: RunOff, known: History, scenario: Scenario) -> PastOutcome:
    """Hold the plan of a look, the fleet as it was then and a plan that knows all against the demand that came."""
    first = (advice.problem.slot_start - known.recent) // timedelta(hours=advice.problem.slot_hours)
    last = first + advice.slots
    seen = dict(zip(jobs.names, jobs.seen(jobs.names, last)[:, first:], strict=True))
    nobody = np.zeros(advice.slots)
    came = np.array([seen.get(name, nobody) for name in advice.problem.profiles])[None]
    problem = replace(advice.problem, demand=came)
    plan = replace(
        advice.plan, counts=advice.plan.counts[: advice.slots], parked=advice.plan.parked[: advice.slots]
    )
    stands, best = standing_plan(plan, problem), planned_for(problem, scenario).plan.require()
    never, planned, least = realised_costs(problem, [stands, plan, best], came)[:, 0]
    advised = planned if advice.taken else never
    return PastOutcome(
        round(float(never - planned), 6), round(float(advised - min(never, planned, least)), 6)
    )


def _outgrown(known: History, scenario: Scenario) -> pl.DataFrame:
    """Running jobs whose memory is heading beyond what they hold; none where jobs may not be told one by one."""
    running = known.trace.jobs.filter(pl.col("state") == "RUNNING")
    if known.trace.samples is None or running.is_empty() or scenario.smallest_group:
        return pl.DataFrame(schema=JOB_COLUMNS)
    samples = known.trace.samples.filter(pl.col("job_id").is_in(running["job_id"].implode()))
    asked = asked_and_used(running, {None: known.fleet.board.name}, samples=samples)
    found = peak_trends(asked, samples, known.plan_start)
    return found.filter("running", pl.col("next_profile").is_not_null()).select(JOB_COLUMNS)


def _frozen(scenario: Scenario) -> int:
    return round(scenario.watch_frozen_hours / scenario.slot_hours)


def _jobs(known: History, scenario: Scenario) -> RunOff:
    """Jobs of the fleet by the profile that they need, from the recent past on."""
    view = known.views["rightsized" if known.fleet.can_be_cut else "whole"]
    return run_off(
        view, start=known.recent, slot_hours=scenario.slot_hours, series="profile", size="instances"
    )


def _paths(jobs: RunOff, origin: int, steps: int, seed: int) -> Floats:
    """Sample paths of instances wanted, shape (n_paths, n_profiles, steps)."""
    drawn = jobs.draws(jobs.names, origin, steps, seed)
    return np.moveaxis(drawn, 1, 0)[:: max(drawn.shape[1] // PATHS_WEIGHED, 1)]


def _demand(scenario: Scenario, paths: Floats, profiles: tuple[str, ...]) -> Floats:
    """Demand to cover: the scenario's quantile of each slot, with room for the largest job; shape (1, n, steps)."""
    wanted = np.quantile(paths, scenario.quantile, axis=0)[None]
    return with_room_for_gangs(wanted, profiles, largest_gang(scenario))


@dataclass(frozen=True)
class ReplayRow:
    """One way to react, over the days that are replayed: cost [GPU h], how often it changed, and against others."""

    way: str
    cost: float
    packs: int
    gain: float
    regret: float


@dataclass(frozen=True)
class Replay:
    """A stretch of the past, looked at again and again as it went on; ``refused`` looks wrote no pack."""

    begin: datetime
    days: int
    looks: int
    refused: int
    rows: tuple[ReplayRow, ...]


def replay(
    scenario: Scenario, *, days: int, every: int, told: Callable[[int, Verdict, bool], None] | None = None
) -> Replay:
    """Replay the last days of a record, a look every so many slots, nothing later known; and what other ways had cost.

    ``never`` leaves the fleet as it is, ``always`` takes every new plan, ``reactive`` plans as if what is wanted now
    stayed, ``hindsight`` knew all. Every way pays its changes; cost is of what came, by
    :func:`gpuplanner.planner.program.realised_cost.realised_cost`.
    """
    # The first look knows as many days as each one after it.
    scenario = scenario.but(history_days=scenario.history_days + days)
    known = history(scenario)
    jobs, slot = _jobs(known, scenario), timedelta(hours=scenario.slot_hours)
    end = (known.plan_start - known.recent) // slot
    span = round(24 * days / scenario.slot_hours)
    first = end - span
    if first < span:
        got = f"{end * scenario.slot_hours / 24:.0f}"
        todo = "Replay fewer days, or raise history_days."
        raise ScenarioError(message("watch: replay", f"{2 * days} days of recent past", got, todo))
    came = jobs.seen(jobs.names, end)
    problem = problem_of(
        scenario, (EVERYBODY,), jobs.names, came[None, :, first:], start=known.recent + first * slot, prices=None
    )  # fmt: skip
    horizon, frozen = min(scenario.horizon_slots, span), _frozen(scenario)
    ahead: dict[int, Floats] = {}
    wanted: dict[int, Floats] = {}

    def forecast(at: int) -> Floats:
        if at not in wanted:  # a plan that begins now was made when the slots before it were frozen
            ahead.clear()
            ahead[at] = _paths(jobs, first + at - frozen, frozen + horizon, scenario.seed)[:, :, frozen:]
            wanted[at] = _demand(scenario, ahead[at], jobs.names)
        return wanted[at]

    def as_now(at: int) -> Floats:
        now = jobs.seen(jobs.names, first + at - frozen)[:, -1:]
        return np.repeat(now[None], horizon, axis=2)

    verdicts: list[bool] = []

    def accept(at: int, part: PlanProblem, standing: Plan, new: Plan) -> bool:
        known_days = max(round((first + at) * scenario.slot_hours / 24), 1)
        verdict = weigh(part, standing, new, ahead[at][:, :, : part.n_slots], until=every, days=known_days)
        verdicts.append(verdict.worth(scenario.watch_chance))
        if told is not None:
            told(at, verdict, verdicts[-1])
        return verdicts[-1]

    def rolled(
        believed: Callable[[int], Floats], asked: Accept | None = None, hindsight: Plan | None = None
    ) -> Online:
        return roll(
            problem,
            believed,
            commit=every,
            horizon=horizon,
            accept=asked,
            hindsight=hindsight,
            **scenario.effort,
        )

    watched = rolled(forecast, accept)
    always, reactive = (rolled(one, hindsight=watched.hindsight) for one in (forecast, as_now))
    least = min(one.hindsight_cost for one in (watched, always, reactive))
    stands = standing_plan(watched.hindsight, problem)
    never = realised_cost(problem, stands.layouts, stands.counts)
    costs = {
        WATCHED: (watched.cost, watched.replans), NEVER: (never, 0), ALWAYS: (always.cost, always.replans),
        REACTIVE: (reactive.cost, reactive.replans), HINDSIGHT: (least, 1),
    }  # fmt: skip
    rows = tuple(
        ReplayRow(way, cost, packs, never - cost, cost - least) for way, (cost, packs) in costs.items()
    )
    return Replay(problem.slot_start, days, len(verdicts), verdicts.count(False), rows)
