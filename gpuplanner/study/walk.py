"""The walk: from a scenario to a study."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from gpuplanner._version import __version__
from gpuplanner.catalog import parameter
from gpuplanner.demand import pool
from gpuplanner.ledger import ONE_POOL, assumptions, by_bucket, by_tenant
from gpuplanner.planner import Plan, layout_changes
from gpuplanner.scenario import Scenario
from gpuplanner.study.bundled import input_hashes
from gpuplanner.study.decision.policies import MEANINGS
from gpuplanner.study.decision.record import Comparison, compared
from gpuplanner.study.decision.tables import class_table, policy_table
from gpuplanner.study.decision.types import Decision
from gpuplanner.study.disk_cache import cache_folder, content_key
from gpuplanner.study.doubts import doubts
from gpuplanner.study.findings import findings
from gpuplanner.study.future.money import Money, money
from gpuplanner.study.future.options import check_options
from gpuplanner.study.future.outlook import OUTLOOKS, Tomorrow, expected_gpu_hours, tomorrow
from gpuplanner.study.future.plans import NAME_THEM, Planned, planned_calendar
from gpuplanner.study.future.short import too_short
from gpuplanner.study.past.accounts import ledger, rightsizing_table, weeks
from gpuplanner.study.past.history import History, history
from gpuplanner.study.study import Study, open_study
from gpuplanner.units import HOURS_PER_WEEK

MISMATCH = 1.5
"""Past weeks and forecast may differ in GPU-hours by this factor before the reader is warned."""
DECIMALS = 6
"""Figures are rounded once, here, so that report, workbook and JSON cannot differ."""
ASSUMPTIONS = ("pue", "host_factor", "idle_fraction", "active_base_fraction", "active_slope_fraction")


def evaluate(scenario: Scenario, *, cache: bool = True) -> Study:
    """Walk from data to decision: ledger, demand, forecast, plans, simulation, money.

    Parameters
    ----------
    scenario : Scenario
        What to plan, on what data.
    cache : bool
        Keep the study on disk by its content (scenario, input files, code) and give it back when it is asked
        for again, in the folder :func:`~gpuplanner.study.disk_cache.cache_folder`. Forecasts are kept there in any
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
    inputs = input_hashes(scenario.data, scenario.projects)
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
    tables = _past_tables(scenario, known, priced) | _compared_tables(found)
    ahead = None
    if reason is None and planned is not None:
        tables |= _planned_tables(scenario, planned)
        ahead, cautions = tomorrow(scenario), _mismatch(scenario, found)
        if planned.problem.nodes is None and known.fleet.can_be_cut:
            cautions.append(
                f"No files for operators are written: the nodes of the plan have no names. {NAME_THEM}"
            )
    else:
        cautions = [f"No forecast and no plan was made: {reason}. What happened stands by itself."]
    headline = _of_the_past(known, priced, tables) | _of_the_plan(
        None if planned is None else planned.plan, tables
    )
    headline |= decided_figures(found.decision) | _of_tomorrow(ahead)
    return Study(
        scenario=scenario,
        headline=headline,
        findings=tuple(findings(headline, tables, found.decision)),
        tables=tables,
        plan=None if planned is None else planned.plan,
        problem=None if planned is None else planned.problem,
        comparison=found,
        provenance=_provenance(known, priced, inputs, cautions)
        | {"doubts": doubts(known, tables["ledger_buckets"], found)},
    )


def _past_tables(scenario: Scenario, known: History, priced: Money) -> dict[str, pl.DataFrame]:
    booked = ledger(scenario)
    return {
        "quality": known.trace.quality,
        "ledger": booked,
        "ledger_buckets": by_bucket(booked),
        "ledger_tenants": by_tenant(booked),
        "rightsizing": rightsizing_table(known.jobs, known.rightsizing),
        "costs": priced.costs,
        "weeks": weeks(scenario),
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
    return {"policies": policy_table(found), "waits": class_table(found)} if found.rows else {}


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


def decided_figures(decision: Decision) -> dict[str, Any]:
    """The figures of a decision that stand among the others; all of it is in the study's ``decision``."""
    saved, all_week = decision.saving.value, decision.fleet_gpus * HOURS_PER_WEEK
    figures = {
        "action": decision.action,
        "winner": decision.policy,
        "recommended_gpus": decision.gpus,
        "saved_gpu_hours_per_week": saved,
        "saved_fraction": saved / all_week if saved is not None and all_week else None,
        "saved_cost_per_week": decision.worth.usd_per_week,
    }
    return {name: _rounded(value) for name, value in figures.items()}


def _of_the_past(known: History, priced: Money, tables: Mapping[str, pl.DataFrame]) -> dict[str, Any]:
    buckets = dict(tables["ledger_buckets"].select("bucket", "gpu_hours").iter_rows())
    figures = {
        "observed_from": known.begin.isoformat(),
        "observed_to": known.end.isoformat(),
        "plan_from": known.plan_start.isoformat(),
        "jobs": known.jobs.height,
        "tenants": known.jobs["tenant"].n_unique(),
        "board": known.fleet.name,
        "boards": known.fleet.installed.listed,
        "board_has_mig": known.fleet.can_be_cut,
        "cut_gpus": known.fleet.cut_gpus,
        "installed_gpus": known.fleet.installed.gpus,
        "fleet_gpus": known.fleet.gpus,
        "fleet_note": known.fleet.note,
        "installed_gpu_hours": sum(buckets.values()),
        "allocated_gpu_hours": float(tables["ledger_tenants"]["held_gpu_hours"].sum()),
        **{f"{name}_gpu_hours": hours for name, hours in buckets.items()},
        **_small_jobs(known),
        "cost": None if priced.price is None else str(tables["costs"]["EffectiveCost"].sum()),
        "currency": None if priced.price is None else priced.price.currency,
        "price_per_gpu_hour": None if priced.price is None else priced.price.value,
        "energy_kwh": priced.energy_kwh,
        "carbon_kg": priced.carbon_kg,
    }
    return {name: _rounded(value) for name, value in figures.items()}


def _of_the_plan(plan: Plan | None, tables: Mapping[str, pl.DataFrame]) -> dict[str, Any]:
    """Figures of a plan; the same names with nothing behind them where none was made."""
    figures = {
        "plan_status": plan and plan.status,
        "plan_objective_gpu_hours": plan and plan.objective,
        "plan_bound_gpu_hours": plan and plan.bound,
        "plan_gap_fraction": plan and plan.gap,
        "plan_changes": plan and plan.changes,
        "plan_unmet_gpu_hours": plan and plan.unmet_gpu_hours,
        "plan_gpu_hours_on": plan and plan.gpu_hours_on,
        "forecast_coverage_90": _mean_coverage(tables["choice"]) if plan else None,
    }
    return {name: _rounded(value) for name, value in figures.items()}


def _of_tomorrow(found: Tomorrow | None) -> dict[str, Any]:
    """GPUs expected at the next noon, and how many of them run already."""
    figures = {"tomorrow_gpus": found and found.gpus, "tomorrow_running_gpus": found and found.running}
    return {name: _rounded(value) for name, value in figures.items()}


def _small_jobs(known: History) -> dict[str, Any]:
    """Jobs that ask for one GPU or less: how many ask for too much, and what that means in GPUs."""
    whole, sizes = known.views["whole"], known.rightsizing
    small = whole["gpus"] <= 1
    smaller = sizes["profile_needed"] != sizes["profile_requested"]
    asked, needed = (known.views[view].filter(small) for view in ("requested", "rightsized"))
    lasting = known.views["rightsized"].filter(small).select("run_s")
    span_s = max((known.end - known.begin).total_seconds(), 1.0)
    board = known.fleet.board

    def gpus(view: pl.DataFrame) -> float:
        names = view["profile"].drop_nulls().unique()
        share = view["profile"].replace_strict({name: board.share(name) for name in names}, default=0.0)
        return float((share * lasting["run_s"].fill_null(0.0)).sum()) / span_s

    return {
        "small_jobs": int(small.sum()),
        "small_jobs_asking_too_much": int((small & smaller).sum()),
        "small_jobs_with_evidence": int((small & (sizes["evidence"] != "request")).sum()),
        "small_gpus_whole": gpus(whole.filter(small)),
        "small_gpus_requested": gpus(asked),
        "small_gpus_rightsized": gpus(needed),
    }


def _mean_coverage(choice: pl.DataFrame) -> float | None:
    """Of the pool's series: the bands that the report draws."""
    pool = choice.filter(pl.col("unique_id").str.starts_with("all/"))
    values = pool["coverage_90"].drop_nulls().drop_nans()
    return float(values.mean()) if len(values) else None  # type: ignore[arg-type]


def _rounded(value: Any) -> Any:  # noqa: ANN401 - figures of several kinds
    return round(value, DECIMALS) if isinstance(value, float) else value


def _cautions(known: History, priced: Money) -> list[str]:
    """What a reader must know before trusting a figure, in sentences."""
    texts = assumptions(known.trace.jobs, known.trace.inventory, start=known.begin, end=known.end)
    remarks = known.fleet.remarks()
    if known.fleet.name is None and len(known.fleet.installed.words) > 1:
        # The remark says the same of the boards, and what follows from it.
        texts = [text for text in texts if text != ONE_POOL]
    texts += remarks
    if known.fleet.in_catalogue:
        texts += priced.missing
    return texts


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


def _provenance(
    known: History, priced: Money, inputs: Mapping[str, str], cautions: Sequence[str]
) -> dict[str, Any]:
    return {
        "cautions": [*_cautions(known, priced), *cautions],
        "not_stated": list(priced.missing),
        "gpuplanner": __version__,
        "inputs": dict(inputs),
        "trace": dict(known.trace.provenance),
        "price": None if priced.price is None else dataclasses.asdict(priced.price),
        "power": None if priced.power is None else {
            name: getattr(priced.power, name) for name in ("source", "idle_w", "base_w", "slope_w")
        },
        "carbon": {"region": priced.carbon.region, "gco2e_per_kwh": priced.carbon.gco2e_per_kwh,
                   "method": priced.carbon.method, "source": priced.carbon.source, "year": priced.carbon.year},
        "pue": priced.pue,
        "assumptions": {
            name: {"value": found.value, "low": found.low, "high": found.high, "unit": found.unit,
                   "source": found.source, "date": found.date}
            for name in ASSUMPTIONS
            for found in [parameter(name)]
        },
        "policies": dict(MEANINGS),
    }  # fmt: skip
