"""The same jobs under every policy, replication by replication."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.metrics import mean_interval, measure, resident_gpu_hours
from gpuplanner.metrics.accounts import Window
from gpuplanner.scenario import Scenario
from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.simulate import Calendar, Fleet, Run, simulate
from gpuplanner.study.future.plans import PLANS, Planned
from gpuplanner.study.future.workload import fleet_and_rules, past_jobs, replicate, workload
from gpuplanner.study.past.history import History, history
from gpuplanner.study.stages import stage


@dataclass(frozen=True)
class ComparedPolicy:
    """What is compared: whose layouts, whose requests, what it means, and what people call it."""

    name: str
    view: str
    plan: str | None
    meaning: str
    called: str


POLICIES = (
    ComparedPolicy(
        "installed", "whole", None,
        "today: every GPU on, whole GPUs as requested", "today: whole GPUs, all on",
    ),
    ComparedPolicy(
        "whole_sized", "whole", "whole_sized",
        "whole GPUs as requested, as many as demand needs", "whole GPUs, sized to demand",
    ),
    ComparedPolicy(
        "static_requested", "requested", "static_requested",
        "one MIG layout for the requests as made", "static MIG, as requested",
    ),
    ComparedPolicy(
        "same_layout_rightsized", "rightsized", "static_requested",
        "right-sized requests, layout unchanged", "same layout, right-sized",
    ),
    ComparedPolicy(
        "static_rightsized", "rightsized", "static_rightsized",
        "one MIG layout for right-sized requests", "static MIG, right-sized",
    ),
    ComparedPolicy(
        "dynamic_rightsized", "rightsized", "dynamic_rightsized",
        "planned calendar, right-sized requests", "planned calendar, right-sized",
    ),
)  # fmt: skip
"""In the order in which they are shown: the baseline first, the plan that savings are judged by last."""
AS_CUT = ComparedPolicy(
    "installed", "requested", None,
    "today: every GPU on, cut as it is, requests as made", "today: cut as it is, all on",
)  # fmt: skip
"""The baseline of a fleet that is cut already."""
WHOLE_POLICIES = (
    *POLICIES[:2],
    ComparedPolicy(
        "dynamic_rightsized", "whole", "dynamic_rightsized",
        "whole GPUs as requested, on and off as planned", "planned calendar of whole GPUs",
    ),
)  # fmt: skip
"""The policies of a board that cannot be cut: without layouts and right sizes the others would be copies."""


def policies_of(known: History) -> tuple[ComparedPolicy, ...]:
    """The policies that differ on the boards that are planned for."""
    return policies_where(can_be_cut=known.fleet.can_be_cut, is_cut=known.fleet.cut_gpus > 0)


def policies_where(*, can_be_cut: bool, is_cut: bool) -> tuple[ComparedPolicy, ...]:
    """The policies that differ where boards can be cut or not; today's are the layouts that GPUs have.

    Examples
    --------
    >>> [policy.name for policy in policies_where(can_be_cut=False, is_cut=False)]
    ['installed', 'whole_sized', 'dynamic_rightsized']
    """
    policies = POLICIES if can_be_cut else WHOLE_POLICIES
    return (AS_CUT, *policies[1:]) if is_cut else policies


@stage(
    "queue", "substitute", "replications", "path", "reconfigure_minutes",
    after=(history, *PLANS.values()),
)  # fmt: skip
def proof(scenario: Scenario) -> pl.DataFrame:
    """Measures of every policy in every replication.

    Returns
    -------
    polars.DataFrame
        One row per policy and replication: the measures of :func:`gpuplanner.metrics.measure` in the horizon
        of the plan, ``resident_gpu_hours``, ``active_gpu_hours`` ``activity_provisioned`` (SM activity of the
        GPUs that are on) and ``unservable`` (jobs that the policy has no room for).
    """
    return pl.DataFrame([measured(one) for one in each_run(scenario)], infer_schema_length=None)


@dataclass(frozen=True, eq=False)
class PolicyRun:
    """One policy in one replication.

    Parameters
    ----------
    policy : ComparedPolicy
        The policy.
    replication : int
        Its number.
    asked : polars.DataFrame
        Its jobs, with the SM activity that is known of them.
    fleet : Fleet
        What is installed.
    run : Run
        What became of the jobs.
    window : tuple of float
        The horizon of the plan [s].
    """

    policy: ComparedPolicy
    replication: int
    asked: pl.DataFrame
    fleet: Fleet
    run: Run
    window: Window


def each_run(scenario: Scenario) -> Iterator[PolicyRun]:
    """Serve the drawn jobs under every policy, replication by replication."""
    known = history(scenario)
    past = past_jobs(known)
    fleet, rules = fleet_and_rules(scenario, known)
    policies = policies_of(known)
    calendars = {policy.name: _calendar(policy, scenario, known) for policy in policies}
    horizon_s = scenario.horizon_slots * scenario.slot_s
    for replication in range(scenario.replications):
        jobs = replicate(scenario, known, past, replication)
        for policy in policies:
            asked = workload(jobs, policy.view)
            run = simulate(
                asked.drop("active_gpus"), fleet, calendars[policy.name], rules,
                policy=policy.name, replication=replication, until_s=horizon_s, leave_unservable=True,
            )  # fmt: skip
            yield PolicyRun(policy, replication, asked, fleet, run, (0.0, horizon_s))


def _calendar(policy: ComparedPolicy, scenario: Scenario, known: History) -> Calendar:
    if policy.plan is None:
        return Calendar.constant(known.fleet.layouts)
    return calendar_of(PLANS[policy.plan](scenario))


def calendar_of(planned: Planned) -> Calendar:
    """The counts of a plan as the simulator's calendar, from its first slot on."""
    problem, plan = planned.problem, planned.plan.require()
    starts = np.arange(problem.n_slots, dtype=np.float64) * problem.slot_hours * 3600.0
    none = np.zeros((len(starts), 1), int)
    counts, parked = (plan.counts, plan.parked) if plan.layouts else (none, none)
    return Calendar(
        starts, plan.layouts or (WHOLE_GPU,), counts, parked=None if problem.prices is None else parked
    )


def measured(one: PolicyRun) -> dict[str, Any]:
    """The row of a run in :func:`proof`."""
    run, window = one.run, one.window
    found = measure(run, one.fleet.model, window=window)
    resident = resident_gpu_hours(run, window=window)
    active = min(_active_gpu_hours(run, one.asked, window[1]), resident)
    provisioned = found["provisioned_gpu_hours"]
    # Without any measurement activity counts as full, for energy: that is an upper bound, and no activity.
    seen = one.asked["active_gpus"].null_count() < one.asked.height
    return {
        "policy": one.policy.name,
        "replication": one.replication,
        **found,
        "resident_gpu_hours": resident,
        "active_gpu_hours": active,
        "activity_provisioned": active / provisioned if provisioned and seen else None,
        "unservable": int(run.outcomes["first_start"].is_null().sum()),
    }


def _active_gpu_hours(run: Run, asked: pl.DataFrame, horizon_s: float) -> float:
    """Integral of SM activity [GPU h]; jobs without a measurement count with the mean of the others."""
    held_s = run.outcomes["end"].fill_null(horizon_s).clip(0.0, horizon_s) - run.outcomes[
        "first_start"
    ].fill_null(horizon_s).clip(0.0, horizon_s)
    per_gpu = asked["active_gpus"] / asked["gpus"]
    mean = per_gpu.mean()
    activity = per_gpu.fill_null(mean if mean is not None else 1.0) * asked["gpus"]
    return float((held_s * activity).sum()) / 3600.0


def compare(runs: pl.DataFrame, policies: Sequence[ComparedPolicy] = POLICIES) -> pl.DataFrame:
    """Every measure of every policy with the interval over replications.

    Returns
    -------
    polars.DataFrame
        ``policy, meaning, measure, mean, low, high``: Student's t interval at 95 %, in the order of
        the policies and of the measures; null where no replication has the measure (nobody waited,
        because nobody came).
    """
    measures = [name for name in runs.columns if name not in ("policy", "replication")]
    rows = []
    for policy in policies:
        mine = runs.filter(policy=policy.name)
        for name in measures:
            row: dict[str, Any] = {"policy": policy.name, "meaning": policy.meaning, "measure": name}
            values = mine[name].cast(pl.Float64).drop_nulls()
            if len(values):
                found = mean_interval(values.to_numpy())
                row |= {"mean": found.mean, "low": _not_below_zero(found.low), "high": found.high}
            rows.append(row)
    schema = dict.fromkeys(("policy", "meaning", "measure"), pl.String)
    return pl.DataFrame(rows, schema=schema | dict.fromkeys(("mean", "low", "high"), pl.Float64))


def drawn_gpu_hours(runs: pl.DataFrame) -> float:
    """Mean GPU-hours that jobs on whole GPUs held within the horizon, over all replications."""
    held = runs.filter(policy=POLICIES[0].name)["busy_gpu_hours"].to_list()
    return float(np.mean(held))


def _not_below_zero(low: float | None) -> float | None:
    """No measure can be negative, so neither can what it may be."""
    return None if low is None else max(low, 0.0)
