"""All ways to run a fleet on the same jobs: each tuned on earlier days, judged on later ones, and one of them wins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from gpuplanner.errors import ScenarioError
from gpuplanner.hardware.abilities import PathAbilities, abilities
from gpuplanner.inbox.store import open_dataset
from gpuplanner.names import resolve
from gpuplanner.scenario import Scenario
from gpuplanner.study.bundled import data_folder
from gpuplanner.study.decision.arena import Arena, Mask, Trial
from gpuplanner.study.decision.asked import Asked, asked_of, larger_profiles, limits_of
from gpuplanner.study.decision.left_out import any_ran
from gpuplanner.study.decision.policies import POLICY_NAMES, WAYS
from gpuplanner.study.decision.tuning import Tuning
from gpuplanner.study.decision.types import NEVER_RAN, NO_GPU, STATIC_MIG, STATIC_WHOLE, TODAY, SizeService
from gpuplanner.study.past.history import History, history
from gpuplanner.study.tenants.quotas import rules_in
from gpuplanner.study.waits.draws import scale_load, simulate_waits
from gpuplanner.study.waits.explain import explain_waits, take_jobs
from gpuplanner.units import SECONDS_PER_DAY

WEEKS_FROM_DAYS = 14
MOST_HELD_BACK_DAYS = 14
FEWEST_JOBS = 100
"""Jobs that policies are fitted on, and evaluated on, at least."""
ALIKE = 0.01
"""Of ways whose GPU-hours differ by less than this share, the simplest is taken."""

BY_WAITS = {
    STATIC_WHOLE: "with fewer nodes a job size would wait longer than its limit, or than today where it is late",
    STATIC_MIG: "on no other layout fewer GPUs keep each job size within its limit",
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
    asked: Asked
    arena: Arena
    able: PathAbilities
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


def opened(scenario: Scenario) -> tuple[History, Asked, Arena, PathAbilities]:
    """Read the past as jobs and nodes, with what kept each job waiting."""
    known = history(scenario)
    asked = asked_of(known)
    if scenario.quotas is not None:
        asked = replace(asked, limits=limits_of(rules_in(scenario.quotas, known)))
    able = abilities(
        scenario.path, known.fleet.board, lead_s=scenario.node_lead_s, ownership=scenario.ownership
    )  # fmt: skip
    larger = larger_profiles(asked.board, asked.fleet.profiles) if able.substitutes else None
    queue = able.queue if scenario.queue == "easy" else scenario.queue
    waits = explain_waits(asked)
    if scenario.arrival_scale != 1.0:
        rows, arrival = scale_load(waits.arrival_s, ~waits.judged, scenario.arrival_scale, asked.seen_s)
        asked, waits = take_jobs(asked, waits, rows, arrival - waits.arrival_s[rows])
        # What these jobs would wait on today's fleet stands for what was observed.
        simulated = simulate_waits(asked, waits, asked.fleet, np.arange(len(rows)), waits.arrival_s)
        waits = replace(waits, waited_s=np.minimum(simulated, asked.seen_s))
    arena = Arena(asked, waits, queue, scenario.wait_quantile, scenario.wait_minutes, larger, scenario.seed)
    return known, asked, arena, able


def contest(scenario: Scenario, tell: Callable[[str, Trial], object] | None = None) -> Contest:
    """Tune every policy that the actuator can perform, and judge all on the same days."""
    known, asked, arena, able = opened(scenario)
    split = holdout_from(asked, arena, int(asked.seen_s // SECONDS_PER_DAY))
    number = np.arange(len(arena.today.day_hours))
    every_day = number < max(int(asked.seen_s // SECONDS_PER_DAY), 1)
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
        why_not = WAYS[policy].why_not(able, known.fleet)
        if why_not is not None:
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
    return "services start too late in the evaluation window"


def judge(policy: str, trial: Trial, *, holds: bool, days: tuple[Mask, Mask]) -> JudgedWay:
    """A setting with its GPU-hours in the training window, and in the evaluation window."""
    promised, hours = (7 * float(trial.day_hours[some].mean()) for some in days)
    return JudgedWay(policy, trial, None, holds, hours, promised)


def holdout_from(asked: Asked, arena: Arena, days: int) -> int | None:
    """The day from which policies are evaluated; None where the record is too short to keep days back from fitting."""
    split = days - min(days // 2, MOST_HELD_BACK_DAYS)
    late = arena.judged & (arena.ready_s >= split * SECONDS_PER_DAY)
    early = arena.judged & ~late
    if asked.nodes.snapshot or asked.starts_assumed or days < WEEKS_FROM_DAYS:
        return None
    return split if min(int(late.sum()), int(early.sum())) >= FEWEST_JOBS else None


def asked_policies(scenario: Scenario) -> list[str]:
    """Policies to compare, in their order: those that the scenario names, else all."""
    if scenario.policies is None:
        return list(POLICY_NAMES)
    names = (name.strip() for name in scenario.policies.split(","))
    asked = {resolve(name, POLICY_NAMES, what="policy", error=ScenarioError) for name in names}
    return [name for name in POLICY_NAMES if name in asked]
