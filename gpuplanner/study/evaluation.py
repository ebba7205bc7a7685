"""The walk: from a scenario to a study."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from gpuplanner.demand.series import pool
from gpuplanner.ledger.views import by_bucket, by_tenant
from gpuplanner.ledger.held import held_by_state
from gpuplanner.planner.numbered.assign import layout_changes
from gpuplanner.scenario import FILES, Scenario
from gpuplanner.sizing.past_use import asked_and_used
from gpuplanner.sizing.shared_gpus import sharing
from gpuplanner.study.bundled import input_hashes
from gpuplanner.study.cache import cache_folder, content_key
from gpuplanner.study.decision.frames import curve_table, policy_table, service_table
from gpuplanner.study.decision.record import Comparison, compared
from gpuplanner.study.findings import doubts, findings
from gpuplanner.study.future.calm import plan_choices
from gpuplanner.study.future.fixed_layout import plan_over_fixed
from gpuplanner.study.future.money import Money, money
from gpuplanner.study.future.options import check_options
from gpuplanner.study.future.outlook import OUTLOOKS, expected_gpu_hours, tomorrow
from gpuplanner.study.future.plans import NAME_THEM, Planned, planned_calendar
from gpuplanner.study.future.workload import too_short
from gpuplanner.study.headline import headline_of
from gpuplanner.study.past.accounts import (ledger, rightsizing_table, use)
from gpuplanner.study.future.weekly_gpus import weeks
from gpuplanner.study.past.history import History, history
from gpuplanner.study.provenance import provenance_of
from gpuplanner.study.study import Study, open_study
from gpuplanner.study.tenants.fairness import fairness
from gpuplanner.study.tenants.node_distance import placement_table
from gpuplanner.study.tenants.tried import is_asked, rules_tried
from gpuplanner.units import HOURS_PER_WEEK

MISMATCH = 1.5
"""Past weeks and forecast may differ in GPU-hours by this factor before the reader is warned."""


def evaluate(scenario: Scenario, *, cache: bool = True) -> Study:
    """Walk from data to decision: ledger, demand, forecast, plans, simulation, money.

    Parameters
    ----------
    scenario : Scenario
        What to plan, on what data.
    cache : bool
        Keep the study on disk by its content (scenario, input files, code) and give it back when it is asked
        for again, in the folder :func:`~gpuplanner.study.cache.cache_folder`. Forecasts are kept there in any
        case, by the demand that they were made from.

    Returns
    -------
    Study
        The same scenario, data and seed give the same study, to the byte.

    Raises
    ------
    GpuPlannerError
        If the data or the scenario cannot be used; the message says what to do.
    """
    check_options(scenario)
    inputs = input_hashes(scenario.data, *(getattr(scenario, name) for name in FILES))
    place = cache_folder() / content_key(scenario, inputs)
    if cache and (place / "study.json").exists():
        return open_study(place)
    study = _walk(scenario, inputs)
    if cache:
        study.save(place)
    return study


def _walk(scenario: Scenario, inputs: Mapping[str, str]) -> Study:
    """What happened, what to do with the fleet, and, where the past is long enough, a plan."""
    known, priced, found = history(scenario), money(scenario), compared(scenario)
    reason = too_short(scenario)
    planned = None if reason else planned_calendar(scenario)
    plan, problem = (None, None) if planned is None else (planned.plan, planned.problem)
    tables = _past_tables(scenario, known, priced) | _compared_tables(found) | fairness(scenario).to_tables()
    ahead = None
    if reason is None and is_asked(scenario):
        tables |= rules_tried(scenario).to_tables()
    if reason is None and scenario.gang_slowdowns is not None:
        tables["placements"] = placement_table(scenario)
    if reason is None and planned is not None:
        tables |= _planned_tables(scenario, planned)
        ahead, cautions = tomorrow(scenario), _mismatch(scenario, found)
        if planned.problem.nodes is None and known.fleet.can_be_cut:
            cautions.append(
                f"No files for operators are written: the nodes of the plan have no names. {NAME_THEM}"
            )
    else:
        cautions = [f"No forecast and no plan was made: {reason}. What happened stands by itself."]
    doubted = doubts(known, tables["ledger_buckets"], found)
    search = "" if plan is None else f"{plan.stopped_by}. {plan.explanation}"
    headline = headline_of(known, priced, found.decision, tables, plan, ahead)
    return Study(
        scenario=scenario,
        headline=headline,
        findings=tuple(findings(headline, tables, found.decision)),
        tables=tables,
        plan=plan,
        problem=problem,
        plan_choices=() if reason else plan_choices(scenario),
        over_fixed=None if reason else plan_over_fixed(scenario),
        comparison=found,
        provenance=provenance_of(known, priced, inputs, cautions, doubted, search),
    )


def _past_tables(scenario: Scenario, known: History, priced: Money) -> dict[str, pl.DataFrame]:
    booked = ledger(scenario)
    return {
        "quality": known.trace.quality,
        "ledger": booked,
        "ledger_buckets": by_bucket(booked),
        "ledger_tenants": by_tenant(booked),
        "rightsizing": rightsizing_table(known.jobs, known.rightsizing),
        "sharing": sharing(asked_and_used(known.jobs, samples=known.trace.samples)),
        "costs": priced.costs,
        "energy": priced.states,
        "weeks": weeks(scenario),
        "use": use(scenario),
        "ended": held_by_state(known.trace.jobs, start=known.begin, end=known.end),
    }


def _planned_tables(scenario: Scenario, planned: Planned) -> dict[str, pl.DataFrame]:
    outlook = OUTLOOKS["rightsized"](scenario)
    return {
        "demand": pl.concat([pool(outlook.demand), outlook.demand]),
        "forecast": outlook.result.forecast,
        "scores": outlook.result.scores,
        "choice": outlook.result.choice,
        "layout_plan": planned.layout_plan,
        "layout_counts": _layout_counts(planned),
        "layout_changes": layout_changes(planned.plan, planned.problem),
    }


def _compared_tables(found: Comparison) -> dict[str, pl.DataFrame]:
    if not found.rows:
        return {}
    return {"policies": policy_table(found), "waits": service_table(found), "wait_curve": curve_table(found)}


def _layout_counts(planned: Planned) -> pl.DataFrame:
    plan, times = planned.plan, planned.problem.slot_times
    return pl.DataFrame(
        [
            {"slot_start": times[slot], "layout": layout, "gpus": int(plan.counts[slot, place])}
            for slot in range(planned.problem.n_slots)
            for place, layout in enumerate(plan.layouts)
        ],
        schema={"slot_start": pl.Datetime("us", "UTC"), "layout": pl.String, "gpus": pl.Int64},
    )


def _mismatch(scenario: Scenario, compared: Comparison) -> list[str]:
    """Whether what the forecast expects and what policies were judged on are far apart."""
    if compared.today is None or compared.today.busy_gpu_hours is None:
        return []
    span = scenario.horizon_slots * scenario.slot_hours / HOURS_PER_WEEK
    expected, judged = expected_gpu_hours(scenario) / span, compared.today.busy_gpu_hours
    if 1 / MISMATCH <= (judged + 1) / (expected + 1) <= MISMATCH:
        return []
    return [
        f"The forecast expects {expected:,.0f} GPU-hours of work a week, the days that policies were judged on hold "
        f"{judged:,.0f}: demand is not steady, and what was found on the past need not hold for what comes. Plan "
        "from a month whose demand resembles what comes."
    ]
