"""By when the fleet no longer holds the target, as today and as recommended; and what would hold it for longer."""

from __future__ import annotations

import math
from datetime import timedelta

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.demand.growth import chance_by_week, fit_growth, run_out
from gpuplanner.schemas import SERVICE, WHOLE_GPU
from gpuplanner.study.decision.arena import order_statistic
from gpuplanner.study.decision.asked import RIGHTSIZED
from gpuplanner.study.decision.compare import Contest
from gpuplanner.study.decision.shortage import waiting_share
from gpuplanner.study.decision.types import RunOut, RunOutSide
from gpuplanner.study.past.history import History, begin_of
from gpuplanner.units import SECONDS_PER_DAY, SECONDS_PER_MINUTE

WEEK_DAYS = 7
EVEN = 0.5
RANGE = (0.05, 0.5, 0.95)
TOUCHED = 0.05
"""Where more than this share of the jobs waited for the fleet, it held back what 95 % of them ask for: starts do not
tell the demand, and submissions do only where a queue explains the waits."""
FEWEST_IN_CLASS = 20
MOST_WEEKS = 104
MOST_TIMES = 4


def weekly_needs(
    known: History, *, rightsized: bool, quantile: float, minutes: float | None = None
) -> NDArray[np.float64]:
    """GPUs with which such a share of the jobs of each size would have started in time in each past week, oldest first.

    What a job needs is what others hold as it comes, if all start when they come, and its own. It comes when it was
    seen to start; with `minutes`, at most so much later than such a share of its size waited in the whole record, for
    starts were held back by the fleet. Weeks are counted back from the end of the observation, those seen whole.
    """
    end, begin = known.plan_start, begin_of(known.trace)
    weeks = min(int((end - begin) / timedelta(days=WEEK_DAYS)), MOST_WEEKS)
    board = known.fleet.board
    table = known.views["rightsized" if rightsized else "whole"]
    names = table["profile"].drop_nulls().unique().to_list()
    share = {name: 1.0 if name == WHOLE_GPU else board.share(name) for name in names}
    sized = pl.col("profile").replace_strict(share, default=1.0, return_dtype=pl.Float64) * pl.col(
        "instances"
    )
    if not rightsized:
        # A slice that was held is its share of a GPU, whatever a fleet of whole ones would give.
        sized = pl.col("gpus")
    start = pl.col("start_time").fill_null(pl.col("submit_time") if minutes is None else end)
    # A service that runs is taken to run on, however long others of its kind ran before.
    endless = (pl.col("job_class") == SERVICE) & pl.col("end_time").is_null()
    rows = table.select(
        *((one - end).dt.total_microseconds() / 1e6 for one in (pl.col("submit_time"), start)),
        run=pl.when(endless).then(math.inf).otherwise("run_s"),
        gpus=sized,
    ).drop_nulls()
    submit, come, run, gpus = (column.to_numpy().astype(float) for column in rows)
    size = np.digitize(gpus, [1.01, 4.01, 8.01])
    if minutes is not None:
        usual = np.array([order_statistic((come - submit)[size == one], quantile) for one in range(4)])
        come = np.minimum(come, submit + usual[size] + minutes * SECONDS_PER_MINUTE)
    order = np.argsort(come, kind="stable")
    come, run, gpus, size = come[order], run[order], gpus[order], size[order]
    done = come + run
    by_end = np.argsort(done, kind="stable")
    gone = np.concatenate([[0.0], np.cumsum(gpus[by_end])])[np.searchsorted(done[by_end], come, "right")]
    needed = np.cumsum(gpus) - gone
    week = weeks + np.floor(come / (WEEK_DAYS * SECONDS_PER_DAY)).astype(np.int64)
    found = np.full(max(weeks, 0), np.nan)
    for number in range(weeks):
        mine = week == number
        groups = [mine, *(mine & (size == one) for one in range(4))]
        values = [
            order_statistic(needed[group], quantile) for group in groups if group.sum() >= FEWEST_IN_CLASS
        ]
        found[number] = max(values, default=0.0 if not mine.any() else float(needed[mine].max()))
    return found


def run_out_of(found: Contest, *, rightsized: bool) -> RunOut:
    """Run-out under today's way and under the recommended one, which may ask for less."""
    asked, arena = found.asked, found.arena
    why = None
    if asked.nodes.inferred:
        why = "how many GPUs there are is inferred from the jobs on them"
    elif waiting_share(arena) > TOUCHED and not found.explained:
        why = "jobs wait already, and no replay explains how long: what they would ask for is not known"
    if why is not None:
        return RunOut(RunOutSide(None, (), why), RunOutSide(None, (), why))
    today, then = (_side(needs_of(found, rightsized=side), found) for side in (False, rightsized))
    return RunOut(today, then)


def _side(needs: NDArray[np.float64], found: Contest) -> RunOutSide:
    """What the needs of past weeks say of those ahead, in whole GPUs on average and within a range."""
    first, seed = found.asked.end.date(), found.scenario.seed
    part = run_out(needs, float(found.asked.nodes.total), first, seed=seed)
    past = tuple(
        ((first - timedelta(weeks=len(needs) - week)).isoformat(), round(float(need), 2))
        for week, need in enumerate(needs)
        if np.isfinite(need)
    )
    rows = tuple((day.isoformat(), round(chance, 4)) for day, chance in part.by_week)
    ahead: tuple[tuple[str, float, float, float], ...] = ()
    if rows:
        ends = np.quantile(fit_growth(needs).paths(len(rows), seed=seed), RANGE, axis=0).round(2)
        ahead = tuple((day, *map(float, ends[:, week])) for week, (day, _) in enumerate(rows))  # type: ignore[misc]
    date = None if part.date is None else part.date.isoformat()
    return RunOutSide(date, rows, part.reason, ahead, past)


def needs_of(found: Contest, *, rightsized: bool) -> NDArray[np.float64]:
    """The needs of past weeks, from submission on where the fleet held jobs back."""
    arena, rightsized = found.arena, rightsized and RIGHTSIZED in found.asked.views
    minutes = arena.minutes if waiting_share(arena) > TOUCHED else None
    return weekly_needs(found.known, rightsized=rightsized, quantile=arena.quantile, minutes=minutes)


def within(side: RunOutSide, days: int) -> bool:
    """Whether a run-out is more likely than not within so many days."""
    weeks = math.ceil(days / WEEK_DAYS)
    return bool(side.by_week) and max(chance for _, chance in side.by_week[:weeks]) >= EVEN


def gpus_for(found: Contest, days: int, *, rightsized: bool) -> int | None:
    """GPUs more, in whole nodes, with which the fleet is unlikely to run out within so many days."""
    asked = found.asked
    needs = needs_of(found, rightsized=rightsized)
    law = fit_growth(needs)
    size = max(asked.nodes.gpus)
    weeks = max(math.ceil(days / WEEK_DAYS), 1)
    for nodes in range(1, MOST_TIMES * len(asked.nodes.gpus) + 1):
        capacity = float(asked.nodes.total + nodes * size)
        if chance_by_week(law, capacity, weeks, seed=found.scenario.seed)[-1] < EVEN:
            return nodes * size
    return None
