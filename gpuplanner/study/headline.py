"""The figures that report, workbook and JSON share, rounded once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import polars as pl

from gpuplanner.plain import of_plain, rounded, to_plain
from gpuplanner.planner.contract.plan import Plan
from gpuplanner.study.decision.types import DECIMALS, Decision
from gpuplanner.study.future.money import Money
from gpuplanner.study.future.outlook import Tomorrow
from gpuplanner.study.past.history import History
from gpuplanner.units import HOURS_PER_WEEK

HOURS = "_gpu_hours"


@dataclass(frozen=True, kw_only=True)
class Headline:
    """Figures of a study; what is not known is None.

    - ``observed_from``, ``observed_to``, ``plan_from``: Instants: of what was observed in the window, and of the
      plan.
    - ``jobs``, ``tenants``: In the window.
    - ``board``, ``boards``, ``board_has_mig``: The one to plan for, all in words, and whether it can be cut.
    - ``cut_gpus``, ``installed_gpus``, ``fleet_gpus``, ``fleet_note``: GPUs that are cut today, that are installed,
      and that are planned for, with a note.
    - ``installed_gpu_hours``, ``allocated_gpu_hours``, ``bucket_gpu_hours``: Of the window, in all, held by jobs, and
      by bucket of the ledger; in JSON each bucket has a key of its own.
    - ``small_jobs``, ``small_jobs_asking_too_much``, ``small_jobs_with_evidence``: Jobs that ask for one GPU or less.
    - ``small_gpus_whole``, ``small_gpus_requested``, ``small_gpus_rightsized``: GPUs on average if each of them had a
      whole one, what it asks for, or what it needs.
    - ``cost``, ``currency``, ``price_per_gpu_hour``: Of the window.
    - ``energy_kwh``, ``carbon_kg``: Of the window, at the building's meter.
    - ``plan_status``, ``plan_objective_gpu_hours``, ``plan_bound_gpu_hours``, ``plan_gap_fraction``: The plan, its
      bound and the gap between them.
    - ``plan_changes``, ``plan_unmet_gpu_hours``, ``plan_gpu_hours_on``: Layout changes, demand not covered, and
      GPU-hours on.
    - ``forecast_coverage_90``: Share of past slots that the 90 % band of the forecast held.
    - ``action``, ``winner``, ``recommended_gpus``: The decision; all of it is :attr:`Study.decision`.
    - ``saved_gpu_hours_per_week``, ``saved_fraction``, ``saved_cost_per_week``: What it saves.
    - ``tomorrow_gpus``, ``tomorrow_running_gpus``: GPUs expected at the next noon, and how many of them run already.
    """

    observed_from: str
    observed_to: str
    plan_from: str
    jobs: int
    tenants: int
    board: str | None
    boards: str
    board_has_mig: bool
    cut_gpus: int
    installed_gpus: int
    fleet_gpus: int
    fleet_note: str
    installed_gpu_hours: float
    allocated_gpu_hours: float
    bucket_gpu_hours: Mapping[str, float]
    small_jobs: int
    small_jobs_asking_too_much: int
    small_jobs_with_evidence: int
    small_gpus_whole: float
    small_gpus_requested: float
    small_gpus_rightsized: float
    cost: str | None = None
    currency: str | None = None
    price_per_gpu_hour: float | None = None
    energy_kwh: float | None
    carbon_kg: float | None
    plan_status: str | None = None
    plan_objective_gpu_hours: float | None = None
    plan_bound_gpu_hours: float | None = None
    plan_gap_fraction: float | None = None
    plan_changes: int | None = None
    plan_unmet_gpu_hours: float | None = None
    plan_gpu_hours_on: float | None = None
    forecast_coverage_90: float | None = None
    action: str
    winner: str
    recommended_gpus: int
    saved_gpu_hours_per_week: float | None
    saved_fraction: float | None
    saved_cost_per_week: float | None
    tomorrow_gpus: float | None = None
    tomorrow_running_gpus: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Figures by name, for JSON."""
        found: dict[str, Any] = to_plain(self)
        return found | {f"{name}{HOURS}": hours for name, hours in found.pop("bucket_gpu_hours").items()}

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> Self:
        """The same object from what :meth:`to_dict` gave."""
        known = {field.name for field in fields(cls)}
        buckets = {name.removesuffix(HOURS): hours for name, hours in values.items() if name not in known}
        return of_plain(cls, {**values, "bucket_gpu_hours": buckets})


def headline_of(
    known: History,
    priced: Money,
    decision: Decision,
    tables: Mapping[str, pl.DataFrame],
    plan: Plan | None,
    ahead: Tomorrow | None,
) -> Headline:
    """The figures of a study, of the past, of the decision, and, where there is one, of the plan."""
    buckets = dict(tables["ledger_buckets"].select("bucket", "gpu_hours").iter_rows())
    fleet, saved = known.fleet, decision.saving.value
    all_week = decision.fleet_gpus * HOURS_PER_WEEK
    found = Headline(
        observed_from=known.begin.isoformat(),
        observed_to=known.end.isoformat(),
        plan_from=known.plan_start.isoformat(),
        jobs=known.jobs.height,
        tenants=known.jobs["tenant"].n_unique(),
        board=fleet.name,
        boards=fleet.installed.listed,
        board_has_mig=fleet.can_be_cut,
        cut_gpus=fleet.cut_gpus,
        installed_gpus=fleet.installed.gpus,
        fleet_gpus=fleet.gpus,
        fleet_note=fleet.note,
        installed_gpu_hours=sum(buckets.values()),
        allocated_gpu_hours=float(tables["ledger_tenants"]["held_gpu_hours"].sum()),
        bucket_gpu_hours=buckets,
        **_small_jobs(known),
        energy_kwh=priced.energy_kwh,
        carbon_kg=priced.carbon_kg,
        action=decision.action,
        winner=decision.policy,
        recommended_gpus=decision.gpus,
        saved_gpu_hours_per_week=saved,
        saved_fraction=saved / all_week if saved is not None and all_week else None,
        saved_cost_per_week=decision.worth.usd_per_week,
    )
    if priced.price is not None:
        found = replace(
            found,
            cost=str(tables["costs"]["EffectiveCost"].sum()),
            currency=priced.price.currency,
            price_per_gpu_hour=priced.price.value,
        )
    if plan is not None:
        found = replace(
            found,
            plan_status=plan.status,
            plan_objective_gpu_hours=plan.objective,
            plan_bound_gpu_hours=plan.bound,
            plan_gap_fraction=plan.gap,
            plan_changes=plan.changes,
            plan_unmet_gpu_hours=plan.unmet_gpu_hours,
            plan_gpu_hours_on=plan.gpu_hours_on,
            forecast_coverage_90=_mean_coverage(tables["choice"]),
        )
    if ahead is not None:
        found = replace(found, tomorrow_gpus=ahead.gpus, tomorrow_running_gpus=ahead.running)
    return rounded(found, DECIMALS)


def _small_jobs(known: History) -> dict[str, Any]:
    """Jobs that ask for one GPU or less: how many ask for too much, and what that means in GPUs."""
    whole, sizes = known.views["whole"], known.rightsizing
    small = whole["gpus"] <= 1
    smaller = sizes["profile_needed"] != sizes["profile_requested"]
    run_s = known.views["rightsized"].filter(small)["run_s"].fill_null(0.0)
    span_s = max((known.end - known.begin).total_seconds(), 1.0)
    board = known.fleet.board

    def gpus(view: str) -> float:
        profile = known.views[view].filter(small)["profile"]
        share = {name: board.share(name) for name in profile.drop_nulls().unique()}
        return float((profile.replace_strict(share, default=0.0) * run_s).sum()) / span_s

    return {
        "small_jobs": int(small.sum()),
        "small_jobs_asking_too_much": int((small & smaller).sum()),
        "small_jobs_with_evidence": int((small & (sizes["evidence"] != "request")).sum()),
    } | {f"small_gpus_{view}": gpus(view) for view in ("whole", "requested", "rightsized")}


def _mean_coverage(choice: pl.DataFrame) -> float | None:
    """Of the pool's series: the bands that the report draws."""
    pool = choice.filter(pl.col("unique_id").str.starts_with("all/"))
    values = pool["coverage_90"].drop_nulls().drop_nans()
    return float(values.mean()) if len(values) else None  # type: ignore[arg-type]
