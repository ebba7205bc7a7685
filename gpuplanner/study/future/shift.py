"""Work that may wait, begun in hours of less carbon or of cheaper power: how much later, and what that saves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.cost import Facility, RangedAmount
from gpuplanner.cost.footprint import state_watts
from gpuplanner.errors import ScenarioError, message
from gpuplanner.names import resolve
from gpuplanner.scenario import Scenario
from gpuplanner.solving.effort import Effort
from gpuplanner.solving.linear import LinearModel
from gpuplanner.solving.solver import solve
from gpuplanner.study.decision.record import compared
from gpuplanner.study.future.burst import LEAST_H, Array, wanted
from gpuplanner.study.future.money import activity, book_of, grid_of
from gpuplanner.study.past.history import history
from gpuplanner.units import GRAMS_PER_KILOGRAM, SECONDS_PER_HOUR, WATTS_PER_KILOWATT

NAMED = ("tier", "job_class", "tenant")
"""What a rule of waiting may name; the first that knows the word counts."""
BY = {"carbon": "location_g", "price": "usd_per_kwh"}
DELAYS = np.arange(73)
"""Hours that a job may begin later."""
ROUNDS = 60
SIDES = ("value", "low", "high")
Delays = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Shift:
    """Jobs that begin later than they did, so that their energy has the least carbon, or costs least.

    - ``jobs``: ``job_id, tenant, start_time, gpus, hours, delay_hours``, by their start.
    - ``gpus``: Those of the decision: no hour holds more, unless it did before.
    - ``may_wait_gpu_hours``, ``moved_gpu_hours``: Of the jobs that rules name, and of those that move.
    - ``mean_delay_hours``, ``longest_delay_hours``: Of the jobs that move.
    - ``saved_kg``, ``saved_money``: With the range of power and building; None without prices by hour. What a GPU draws
      idle stays where it is.
    - ``gap``: By how much of what is saved more could be.
    """

    by: str
    jobs: pl.DataFrame
    gpus: int
    may_wait_gpu_hours: float
    moved_gpu_hours: float
    mean_delay_hours: float
    longest_delay_hours: int
    saved_kg: RangedAmount
    saved_money: RangedAmount | None
    currency: str
    gap: float
    notes: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """What moves, how much later, and what it saves."""
        kg, paid = self.saved_kg, self.saved_money
        cost = "" if paid is None else (
            f", and electricity {abs(paid.value):,.2f} {self.currency} {'cheaper' if paid.value >= 0 else 'dearer'} "
            f"({paid.low:,.2f} to {paid.high:,.2f})"
        )  # fmt: skip
        return (
            f"{self.jobs.height:,} jobs of {self.moved_gpu_hours:,.0f} GPU-hours, of {self.may_wait_gpu_hours:,.0f} "
            f"that may wait, begin {self.mean_delay_hours:.1f} h later on average, at most {self.longest_delay_hours} "
            f"h, on {self.gpus:,} GPUs: {kg.value:,.1f} kg CO2e less ({kg.low:,.1f} to {kg.high:,.1f}){cost}. No "
            f"other choice saves over {self.gap:.2%} more by {self.by}."
        )


def shift_plan(scenario: Scenario, waits: Mapping[str, float], *, by: str = "carbon") -> Shift:
    """Begin the jobs of the month that may wait when their energy is cleanest, or cheapest, on the decided fleet.

    ``waits`` are hours by tier, class or tenant: so much later than it did may a job begin.
    """
    known, column = history(scenario), BY[resolve(by, list(BY), what="shift by")]
    zero, board = known.begin.replace(minute=0, second=0, microsecond=0), known.fleet.name
    if scenario.carbon_file is None or board is None or not known.fleet.in_catalogue:
        todo = "Give --set carbon_file=FILE.csv, and --board if it is missing."
        got = f"{board or 'no board'} and {scenario.carbon_file or 'the mean of a year'}"
        raise ScenarioError(message("shift", "a board of the catalogue and its grid hour by hour", got, todo))
    grid = grid_of(scenario, known, pl.datetime_range(zero, known.end, "1h", closed="left", eager=True))
    if grid[column].null_count():
        todo = "Add the column, or shift by carbon."
        raise ScenarioError(message(scenario.carbon_file, f"{column} of every hour", "none", todo))
    every = known.jobs.filter(pl.col("start_time").is_not_null()).with_columns(
        pl.col("tenant").cast(pl.String), _wait(known.jobs, waits),
        hours=pl.col("run_s").fill_null(0.0) / SECONDS_PER_HOUR,
        begin=(pl.col("start_time") - zero).dt.total_microseconds() / 1e6 / SECONDS_PER_HOUR,
    )  # fmt: skip
    jobs = every.filter(pl.col("start_time") >= known.begin, pl.col("wait").is_not_null())
    begin, hours, gpus = (jobs[name].to_numpy() for name in ("begin", "hours", "gpus"))
    first, last = begin[:, None] + DELAYS, (begin + hours)[:, None] + DELAYS
    may = (jobs["wait"].to_numpy()[:, None] >= DELAYS) & (last <= grid.height)
    seen, facility = activity(scenario), Facility.of(scenario.pue)
    watts = {name: state_watts(board, seen.get(name, seen.get(""))) for name in jobs["tenant"].unique()}

    def saved(name: str, side: str) -> Array:
        """What each job saves by each delay: grams or USD."""
        pue = grid["pue"].fill_null(getattr(facility.pue, side)).to_numpy()
        sums = np.concatenate([[0.0], np.cumsum(grid[name].to_numpy() * pue)])
        extra = {one: getattr(two["busy"], side) - getattr(two["idle"], side) for one, two in watts.items()}
        kw = gpus * [extra[one] for one in jobs["tenant"]] * getattr(facility.host, side) / WATTS_PER_KILOWATT
        spent = np.interp(last, edges, sums) - np.interp(first, edges, sums)
        return np.asarray(np.where(may, kw[:, None] * (spent[:, :1] - spent), 0.0))

    most, edges = compared(scenario).decision.gpus or known.fleet.gpus, np.arange(grid.height + 1)
    before = wanted(
        every["begin"].to_numpy(), every["hours"].to_numpy(), every["gpus"].to_numpy(), grid.height
    )
    limit, seed = scenario.time_limit_s, scenario.seed
    effort = Effort.begin(gap_target=scenario.gap_target, time_limit_s=limit, seed=seed)
    worth, room = saved(column, "value"), np.maximum(most - before, 0.0)
    chosen, bound = delays(begin, hours, gpus, worth, room, effort, gap=scenario.gap_target)
    place, moved = (np.arange(len(chosen)), chosen), chosen > 0
    best, held = float(worth[place].sum()), gpus * hours

    def ranged(name: str, scale: float) -> RangedAmount:
        return RangedAmount(*(float(saved(name, side)[place].sum()) * scale for side in SIDES))

    paid = None
    if not grid[BY["price"]].null_count():
        paid = ranged(BY["price"], book_of(scenario).converted(1.0, "USD", scenario.currency, known.end))
    return Shift(
        by=by, gpus=most, currency=scenario.currency,
        jobs=jobs.select(
            "job_id", "tenant", "start_time", "gpus", "hours", delay_hours=pl.Series(chosen)
        ).filter(moved).sort("start_time", "job_id"),
        may_wait_gpu_hours=float(held.sum()), moved_gpu_hours=float(held[moved].sum()),
        mean_delay_hours=float(chosen[moved].mean()) if moved.any() else 0.0,
        longest_delay_hours=int(chosen.max(initial=0)),
        saved_kg=ranged(BY["carbon"], 1 / GRAMS_PER_KILOGRAM), saved_money=paid,
        gap=max(bound - best, 0.0) / best if best else 0.0,
        notes=("The hours of the grid and the jobs are taken as known beforehand, and where jobs fit on nodes is not "
               "looked at: this is what waiting can save at most.",),
    )  # fmt: skip


def delays(
    begin: Array, hours: Array, gpus: Array, saved: Array, room: Array, effort: Effort, *, gap: float
) -> tuple[Delays, float]:
    """The delay of each job in whole hours that saves most in all, and what could be saved at most.

    ``saved`` is by job and delay, its first column 0; ``room`` GPUs that may be held more in each hour than are. Jobs
    take their best hour unless that fills one: hours that are too full become rows, until none is.

    Examples
    --------
    Two jobs of an hour could both begin an hour later, where there is room for one:

    >>> one = np.ones(2)
    >>> saved = np.array([[0.0, 3.0], [0.0, 5.0]])
    >>> found, most = delays(0 * one, one, 4 * one, saved, np.array([0.0, 4.0]), Effort.begin(), gap=0.0)
    >>> found.tolist(), round(most, 3)
    ([0, 1], 5.0)
    """
    chosen, scale = saved.argmax(axis=1), max(float(saved.max(initial=0.0)), 1e-12)
    bound, until = float(saved.max(axis=1, initial=0.0).sum()), len(room)
    now = wanted(begin, hours, gpus, until)
    job, delay = np.nonzero(saved > 1e-9 * scale)
    rows: list[int] = []

    def held(start: Array, hour: int) -> Array:
        shared = np.minimum(start + hours[job], hour + 1) - np.maximum(start, hour)
        return np.asarray(gpus[job] * np.clip(shared, 0.0, None))

    def beyond() -> Array:
        """What each hour holds more than it may."""
        return wanted(begin + chosen, hours, gpus, until) - now - room

    for _ in range(ROUNDS):
        more = np.setdiff1d(np.flatnonzero(beyond() > LEAST_H), rows)
        if not more.size:
            break
        rows += more.tolist()
        change = np.array([held(begin[job] + delay, hour) - held(begin[job], hour) for hour in rows])
        inside = np.flatnonzero(np.isin(job, job[change.any(axis=0)]))
        model = LinearModel()
        worth = saved[job[inside], delay[inside]] / scale
        columns = model.add_columns([f"j{one}" for one in inside], cost=-worth, high=np.ones(len(inside)))
        for group in np.split(columns, np.flatnonzero(np.diff(job[inside])) + 1):
            model.add_row(f"once{group[0]}", group, [1.0] * len(group), "<=", 1.0)
        for hour, filled in zip(rows, change[:, inside], strict=True):
            model.add_row(f"h{hour}", columns[filled != 0], filled[filled != 0], "<=", float(room[hour]))
        found = solve(model, effort, gap=gap)
        if found.values is None:
            break
        alone = np.setdiff1d(np.arange(len(begin)), job[inside])
        if found.bound is not None:
            bound = min(bound, float(saved[alone].max(axis=1, initial=0.0).sum()) - found.bound * scale)
        taken = inside[found.values > 0.5]
        chosen[job[inside]] = 0
        chosen[job[taken]] = delay[taken]
    while (over := beyond()).max(
        initial=0.0
    ) > LEAST_H:  # the search was stopped: what gains least stays where it was
        hour, start = int(np.argmax(over)), begin + chosen
        there = np.flatnonzero((chosen > 0) & (start < hour + 1) & (start + hours > hour))
        there = there[np.argsort(saved[there, chosen[there]], kind="stable")]
        chosen[there[: np.searchsorted(np.cumsum(gpus[there]), over[hour]) + 1]] = 0
    return chosen, bound


def _wait(jobs: pl.DataFrame, waits: Mapping[str, float]) -> pl.Expr:
    """Hours that a job may wait: the fewest that a rule grants; null where none names it."""
    where: dict[str, str] = {}
    for name in (name for name in NAMED if name in jobs.columns):
        known = jobs[name].cast(pl.String).drop_nulls().unique()
        where = dict.fromkeys(known, name) | where
    granted = []
    for given, hours in waits.items():
        if not 1 <= hours <= DELAYS[-1]:
            expected = f"1 to {DELAYS[-1]} hours"
            raise ScenarioError(message(f"shift {given}", expected, f"{hours:g}", "Change it."))
        word = resolve(given, sorted(where), what="tier, class or tenant", error=ScenarioError)
        granted.append(pl.when(pl.col(where[word]).cast(pl.String) == word).then(pl.lit(float(hours))))
    return pl.min_horizontal(granted).alias("wait")
