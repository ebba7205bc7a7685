"""Looks at a running fleet: a new plan, whether it is worth its changes, and what is kept between looks."""

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
from gpuplanner.core.output_places import allow_overwriting_within, require_file
from gpuplanner.core.output_writing import write_atomically
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.serialization import from_plain, to_json, to_plain
from gpuplanner.core.units import percent_text
from gpuplanner.decision.layout_planning import Planned, planned_for, problem_of, with_room_for_gangs
from gpuplanner.forecast.demand_outlook import largest_gang
from gpuplanner.forecast.run_off import RunOff, lay_out_run_off
from gpuplanner.planner.drain_order import transition
from gpuplanner.planner.layout_plan import Plan, format_utc, plan_from_json, plan_to_json
from gpuplanner.planner.numbered_gpus import initial_gpu_layouts
from gpuplanner.planner.plan_explanation import realised_cost, realised_costs
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.receding_horizon import PlanGain, roll, standing_plan, weigh
from gpuplanner.sizing.memory_trend import peak_trends
from gpuplanner.usage.installed_capacity import describe_node_changes, gpus_of_nodes
from gpuplanner.usage.job_history import History, history
from gpuplanner.usage.rightsizing import requested_and_used

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

    - ``at``: End of the data; the plan begins ``notice_hours`` later, and until then all stays as it is.
    - ``planned``: The plan with its problem, whose fleet begins as it is cut and on today.
    - ``verdict``: What it gains over leaving the fleet as it is for so many ``slots``, to the look after.
    - ``justified``: Whether that is enough for a change.
    - ``came``: What became of earlier looks whose hours are over, by when they were made.
    - ``nodes``: GPUs of each node, where there is a list of them.
    - ``jobs``: Running jobs that outgrow what they hold, with the profile to move to and what a restart costs.
    """

    at: datetime
    planned: Planned
    verdict: PlanGain
    justified: bool
    slots: int
    came: Mapping[str, PastOutcome] = field(default_factory=dict)
    nodes: Mapping[str, int] = field(default_factory=dict)
    jobs: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=JOB_COLUMNS))

    @property
    def sentence(self) -> str:
        """What was found, in words."""
        one, hours = self.verdict, self.slots * self.planned.problem.interval_hours
        return (
            f"In {hours:g} h, to the look after, the plan gains {one.gain:,.0f} GPU-hours over the fleet as it is "
            f"({one.low:,.0f} to {one.high:,.0f}), changes paid for; it pays with {percent_text(one.chance)} chance: "
            f"{'worth its changes' if self.justified else 'the fleet stays as it is'}."
        )

    @property
    def steps(self) -> pl.DataFrame:
        """The first change of the plan, GPU by GPU, in the order that keeps fewest requests waiting; may be empty."""
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


def look(scenario: Scenario, every: int, earlier: Mapping[str, PastAdvice] | None = None) -> FleetLook:
    """Look at the data of a scenario as they are now; the plan follows the sample paths, not a library's model.

    The look after is ``every`` slots later: what a plan does behind that can still be done then, so that only what
    differs until then is weighed. ``earlier`` are plans of looks before, by when they were made; of those whose hours
    are over it says what came.
    """
    known = history(scenario)
    jobs, slot = _jobs(known, scenario), timedelta(hours=scenario.interval_hours)
    frozen = _frozen(scenario)
    origin = (known.plan_start - known.recent) // slot
    steps = frozen + scenario.horizon_intervals
    paths = _paths(jobs, origin, steps, scenario.seed)[:, :, frozen:] * scenario.arrival_scale
    start = known.plan_start + frozen * slot
    problem = problem_of(
        scenario, (EVERYBODY,), jobs.names, _demand(scenario, paths, jobs.names), start=start, prices=None
    )  # fmt: skip
    planned = planned_for(problem, scenario)
    stands, days = standing_plan(planned.plan.require(), problem), (known.plan_start - known.recent).days
    verdict = weigh(problem, stands, planned.plan, paths, decision_slot=every, days=max(days, 1))
    over = {at: advice for at, advice in (earlier or {}).items() if _is_over(advice, known, scenario)}
    came = {at: _outcome(advice, jobs, known, scenario) for at, advice in over.items()}
    worth, slots = verdict.worth(scenario.watch_chance), min(every, problem.n_slots)
    nodes, outgrown = gpus_of_nodes(known.trace.inventory, known.plan_start), _outgrown(known, scenario)
    return FleetLook(known.plan_start, planned, verdict, worth, slots, came, nodes, outgrown)


def _is_over(advice: PastAdvice, known: History, scenario: Scenario) -> bool:
    problem = advice.problem
    end = problem.slot_start + advice.slots * timedelta(hours=problem.interval_hours)
    seen = known.recent <= problem.slot_start and end <= known.plan_start
    return seen and problem.interval_hours == scenario.interval_hours


def _outcome(advice: PastAdvice, jobs: RunOff, known: History, scenario: Scenario) -> PastOutcome:
    """Hold the plan of a look, the fleet as it was then and a plan that knows all against the demand that came."""
    first = (advice.problem.slot_start - known.recent) // timedelta(hours=advice.problem.interval_hours)
    last = first + advice.slots
    seen = dict(zip(jobs.names, jobs.demand_before(jobs.names, last)[:, first:], strict=True))
    nobody = np.zeros(advice.slots)
    came = np.array([seen.get(name, nobody) for name in advice.problem.profiles])[None]
    problem = replace(advice.problem, demand=came)
    counts, parked = (table[: advice.slots] for table in (advice.plan.counts, advice.plan.parked))
    plan = replace(advice.plan, counts=counts, parked=parked)
    stands, best = standing_plan(plan, problem), planned_for(problem, scenario).plan.require()
    never, planned, least = realised_costs(problem, [stands, plan, best], came)[:, 0]
    advised = planned if advice.taken else never
    regret = float(advised - min(never, planned, least))
    return PastOutcome(round(float(never - planned), 6), round(regret, 6))


def _outgrown(known: History, scenario: Scenario) -> pl.DataFrame:
    """Running jobs whose memory is heading beyond what they hold; none where jobs may not be told one by one."""
    running = known.trace.jobs.filter(pl.col("state") == "RUNNING")
    if known.trace.samples is None or running.is_empty() or scenario.smallest_group:
        return pl.DataFrame(schema=JOB_COLUMNS)
    samples = known.trace.samples.filter(pl.col("job_id").is_in(running["job_id"].implode()))
    asked = requested_and_used(running, {None: known.fleet.gpu_model.name}, samples=samples)
    found = peak_trends(asked, samples, known.plan_start)
    return found.filter("running", pl.col("next_profile").is_not_null()).select(JOB_COLUMNS)


def _frozen(scenario: Scenario) -> int:
    return round(scenario.notice_hours / scenario.interval_hours)


def _jobs(known: History, scenario: Scenario) -> RunOff:
    """Jobs of the fleet by the profile that they need, from the recent past on."""
    view, interval_hours = (
        known.views["rightsized" if known.fleet.can_be_cut else "whole"],
        scenario.interval_hours,
    )
    return lay_out_run_off(view, start=known.recent, interval_hours=interval_hours, series="profile", size="instances")


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
    scenario: Scenario, *, days: int, every: int, told: Callable[[int, PlanGain, bool], None] | None = None
) -> Replay:
    """Replay the last days of a record, a look every so many slots, nothing later known; and what other ways had cost.

    ``never`` leaves the fleet as it is, ``always`` takes every new plan, ``reactive`` plans as if what is wanted now
    stayed, ``hindsight`` knew all. Every way pays its changes; cost is of what came, by
    :func:`gpuplanner.planner.plan_explanation.realised_cost`.
    """
    # The first look knows as many days as each one after it.
    scenario = scenario.but(history_days=scenario.history_days + days)
    known = history(scenario)
    jobs, slot = _jobs(known, scenario), timedelta(hours=scenario.interval_hours)
    end = (known.plan_start - known.recent) // slot
    span = round(24 * days / scenario.interval_hours)
    first = end - span
    if first < span:
        got = f"{end * scenario.interval_hours / 24:.0f}"
        todo = "Replay fewer days, or raise history_days."
        raise ScenarioError("watch: replay", f"{2 * days} days of recent past", got, todo)
    came = jobs.demand_before(jobs.names, end)
    problem = problem_of(
        scenario, (EVERYBODY,), jobs.names, came[None, :, first:], start=known.recent + first * slot, prices=None
    )  # fmt: skip
    horizon, frozen = min(scenario.horizon_intervals, span), _frozen(scenario)
    ahead: dict[int, Floats] = {}
    wanted: dict[int, Floats] = {}

    def forecast(at: int) -> Floats:
        if at not in wanted:  # a plan that begins now was made when the slots before it were frozen
            ahead.clear()
            ahead[at] = _paths(jobs, first + at - frozen, frozen + horizon, scenario.seed)[:, :, frozen:]
            wanted[at] = _demand(scenario, ahead[at], jobs.names)
        return wanted[at]

    def as_now(at: int) -> Floats:
        return np.repeat(jobs.demand_before(jobs.names, first + at - frozen)[None, :, -1:], horizon, axis=2)

    verdicts: list[bool] = []

    def accept(at: int, part: PlanProblem, standing: Plan, new: Plan) -> bool:
        known_days = max(round((first + at) * scenario.interval_hours / 24), 1)
        verdict = weigh(part, standing, new, ahead[at][:, :, : part.n_slots], decision_slot=every, days=known_days)
        verdicts.append(verdict.worth(scenario.watch_chance))
        if told is not None:
            told(at, verdict, verdicts[-1])
        return verdicts[-1]

    how: dict[str, Any] = {"commit": every, "horizon": horizon, **scenario.search_limits}
    watched = roll(problem, forecast, accept=accept, **how)
    how |= {"hindsight": watched.hindsight}
    always, reactive = (roll(problem, believed, **how) for believed in (forecast, as_now))
    least = min(one.hindsight_cost for one in (watched, always, reactive))
    stands = standing_plan(watched.hindsight, problem)
    never = realised_cost(problem, stands.layouts, stands.counts)
    costs = (
        (WATCHED, watched.cost, watched.replans), (NEVER, never, 0), (ALWAYS, always.cost, always.replans),
        (REACTIVE, reactive.cost, reactive.replans), (HINDSIGHT, least, 1),
    )  # fmt: skip
    rows = tuple(ReplayRow(way, cost, packs, never - cost, cost - least) for way, cost, packs in costs)
    return Replay(problem.slot_start, days, len(verdicts), verdicts.count(False), rows)


STATE, METRICS, PAGE, PACK, LOOKS = "watch.json", "watch.prom", "watch.html", "bundle", "runs"
FORMAT = "gpuplanner.watch/3"


@dataclass(frozen=True)
class PastLook:
    """One look: what it expected, and what came of its plan once the hours to the look after are over [GPU h].

    - ``gain``, ``chance``: Of the plan over the fleet as it is, as expected, in so many ``slots``.
    - ``realised``: The same by the demand that came; None before that is known.
    - ``regret``: What was advised (the plan where a pack was written, else the fleet as it is) over hindsight.
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
        """Name of its plan, which is kept until it is judged."""
        return f"{self.at.replace(':', '')}.json"


@dataclass(frozen=True)
class JobAdvice:
    """A running job that is going to be too large for what it has, and what to do."""

    job_id: str
    tenant: str
    profile: str
    next_profile: str
    restart_gpu_hours: float | None
    advice: str


@dataclass(frozen=True)
class Watched:
    """What a watch remembers between looks, and what its metrics say; sums are of all looks that were judged."""

    data: str = ""
    at: str = ""
    gpus: int = 0
    looks: int = 0
    packs: int = 0
    failures: int = 0
    gain: float = 0.0
    chance: float = 0.0
    judged: int = 0
    realised: float = 0.0
    regret: float = 0.0
    pack_at: str = ""
    sentence: str = ""
    past: tuple[PastLook, ...] = ()
    jobs: tuple[JobAdvice, ...] = ()
    nodes: Mapping[str, int] = field(default_factory=dict)

    def metrics(self) -> str:
        """The state as Prometheus reads it from a file of the node exporter's text collector."""
        told = {
            "looks_total": ("counter", self.looks, "Evaluations of the fleet."),
            "packs_total": ("counter", self.packs, "Change bundles written."),
            "failures_total": ("counter", self.failures, "Evaluations and imports that failed."),
            "gain_gpu_hours": ("gauge", self.gain, "Gain of the last plan over today's fleet."),
            "chance_ratio": (
                "gauge",
                self.chance,
                "Probability that the last plan pays off.",
            ),
            "judged_total": ("counter", self.judged, "Evaluations whose period is over."),
            "realised_gpu_hours": ("gauge", self.realised, "Realised gain of the change bundles."),
            "regret_gpu_hours_total": (
                "counter",
                self.regret,
                "Regret against the best plan in hindsight.",
            ),
            "jobs_to_move": ("gauge", len(self.jobs), "Running jobs that outgrow their instance."),
        }
        return "".join(
            f"# HELP gpuplanner_watch_{name} {words}\n# TYPE gpuplanner_watch_{name} {kind}\n"
            f"gpuplanner_watch_{name} {value:.10g}\n"
            for name, (kind, value, words) in told.items()
        )

    def after(self, found: FleetLook, data: str) -> Watched:
        """What is remembered after a look at data of this hash."""
        at, gpus = format_utc(found.at), found.planned.problem.gpus
        if at < self.at:
            todo = "Check the clock of the source; the state is unchanged."
            raise ScenarioError("watch: end of the data", f"{self.at} or later", at, todo)
        words = found.sentence
        if changed := describe_node_changes(self.nodes, found.nodes):
            words += f" {changed}"
        elif self.gpus and gpus != self.gpus:
            words += f" The fleet has {gpus:,} GPUs, {self.gpus:,} at the last evaluation."
        if self.pack_at and not found.justified:
            words += f" The change bundle of {self.pack_at} is not confirmed by this evaluation."
        gain, chance = round(found.verdict.gain, 6), round(found.verdict.chance, 6)
        came = found.came
        past = [
            replace(one, realised=came[one.at].gain, regret=came[one.at].regret) if one.at in came else one
            for one in self.past
            if one.at != at
        ]
        newly = [one for one in past if one.at in came]
        return replace(
            self, data=data, at=at, gpus=gpus, looks=self.looks + 1, packs=self.packs + found.justified,
            gain=gain, chance=chance, sentence=words, pack_at=at if found.justified else self.pack_at,
            judged=self.judged + len(newly),
            realised=round(self.realised + sum(one.realised or 0.0 for one in newly if one.pack), 6),
            regret=round(self.regret + sum(one.regret or 0.0 for one in newly), 6),
            # The last 400 looks are told one by one; all of them are in the sums.
            past=(*past, PastLook(at, found.justified, gain, chance, slots=found.slots))[-400:],
            nodes=found.nodes,
            jobs=tuple(from_plain(JobAdvice, row) for row in found.jobs.to_dicts()),
        )  # fmt: skip

    def table(self) -> pl.DataFrame:
        """Its looks, the last one first."""
        figures = dict.fromkeys(("gain", "chance", "realised", "regret"), pl.Float64)
        schema = {"at": pl.String, "pack": pl.Boolean, **figures}
        rows = [{name: vars(one)[name] for name in schema} for one in reversed(self.past)]
        return pl.DataFrame(rows, schema=schema)


def state_of(out: Path) -> Watched:
    """The state of a folder; of an empty one, nothing seen yet."""
    place = out / STATE
    if not place.exists():
        return Watched()
    try:
        values = json.loads(place.read_text(encoding="utf-8"))
        if values.pop("format") != FORMAT:
            raise ValueError(place.name)
        return from_plain(Watched, values)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        todo = f"Remove {place.name}; counters restart at 0."
        raise ScenarioError(str(place), f"a state of {FORMAT!r}", str(error), todo) from None


def advice_of(out: Path, state: Watched) -> Mapping[str, PastAdvice]:
    """Plans of looks that are still to be judged, by when they were made; one that is gone is not judged."""
    return {
        one.at: PastAdvice(*plan_from_json(place.read_text(encoding="utf-8")), one.pack, one.slots)
        for one in state.past
        if one.regret is None and (place := out / LOOKS / one.file).exists()
    }


def keep(out: Path, state: Watched, found: FleetLook | None = None) -> None:
    """Plan, metrics and state, each whole or not at all; the state last, so that a killed look is looked at again."""
    folder = out / LOOKS
    open_looks = {one.file for one in state.past if one.regret is None}
    if found is not None:
        text = plan_to_json(found.planned.plan, found.planned.problem)
        place = folder / state.past[-1].file
        write_atomically(place, lambda new: new.write_text(text, encoding="utf-8"), protect_foreign=False)
    write_record(out / METRICS, state.metrics())
    write_record(out / STATE, to_json({"format": FORMAT} | to_plain(state)))
    for place in folder.glob("????-??-??T??????Z.json"):
        if place.name not in open_looks:
            place.unlink()


def require_free(out: Path) -> None:
    """Refuse a folder without a state in which files of others have the names that ``watch`` writes."""
    if not (out / STATE).exists():
        for name in (PAGE, METRICS):
            require_file(out / name)


def write_record(place: Path, text: str) -> None:
    """Write a file of the folder, whose names were free when it began."""
    with allow_overwriting_within():
        write_atomically(place, lambda new: new.write_text(text, encoding="utf-8"))
