"""A study: tables and figures that page, workbook and JSON share, with their provenance."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import polars as pl

from gpuplanner._version import __version__
from gpuplanner.core.errors import ScenarioError, first_error_line
from gpuplanner.core.output_places import FolderMark
from gpuplanner.core.output_writing import replace_directory
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.serialization import from_plain, round_record, to_json, to_plain
from gpuplanner.core.units import HOURS_PER_WEEK
from gpuplanner.cost.period_costs import Money
from gpuplanner.decision.comparison_record import Comparison
from gpuplanner.decision.decision_types import DECIMALS, Decision
from gpuplanner.decision.layout_planning import OverFixed, PlanChoice
from gpuplanner.decision.policy_comparison import MEANINGS
from gpuplanner.forecast.demand_outlook import NextDayDemand
from gpuplanner.hardware.catalog import Parameter, find_parameter
from gpuplanner.hardware.power_and_carbon import CarbonFactor, PowerModel, Price
from gpuplanner.ingest.dataset import SourceFacts
from gpuplanner.planner.layout_plan import Plan, plan_from_json, plan_to_json
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.usage.gpu_hour_ledger import ONE_POOL_ASSUMPTION_TEXT, ledger_assumptions
from gpuplanner.usage.job_history import History

HOURS = "_gpu_hours"


@dataclass(frozen=True, kw_only=True)
class Headline:
    """Figures of a study; what is not known is None.

    - ``observed_from``, ``observed_to``, ``plan_from``: Instants: of what was observed in the window, and of the
      plan.
    - ``jobs``, ``tenants``: In the window.
    - ``gpu_model``, ``boards``, ``board_has_mig``: The one to plan for, all in words, and whether it can be cut.
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
    - ``tomorrow_at``, ``tomorrow_gpus``: The next noon, and the rightsized GPUs that the forecast has then;
      ``tomorrow_low``, ``tomorrow_high``: their 90 % interval, of a forecast of one profile.
    """

    observed_from: str
    observed_to: str
    plan_from: str
    jobs: int
    tenants: int
    gpu_model: str | None
    boards: str
    board_has_mig: bool
    cut_gpus: int
    installed_gpus: int
    fleet_gpus: int
    fleet_note: str
    installed_gpu_hours: float
    allocated_gpu_hours: float
    bucket_gpu_hours: Mapping[str, float | None]
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
    tomorrow_low: float | None = None
    tomorrow_high: float | None = None
    tomorrow_at: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Figures by name, for JSON."""
        found: dict[str, Any] = to_plain(self)
        return found | {f"{name}{HOURS}": hours for name, hours in found.pop("bucket_gpu_hours").items()}

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> Self:
        """The same object from what :meth:`to_dict` gave."""
        known = {field.name for field in fields(cls)}
        buckets = {name.removesuffix(HOURS): hours for name, hours in values.items() if name not in known}
        return from_plain(cls, {**values, "bucket_gpu_hours": buckets})


def headline_of(
    known: History,
    priced: Money,
    decision: Decision,
    tables: Mapping[str, pl.DataFrame],
    plan: Plan | None,
    ahead: NextDayDemand | None,
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
        gpu_model=fleet.name,
        boards=fleet.installed.models_text,
        board_has_mig=fleet.can_be_cut,
        cut_gpus=fleet.cut_gpus,
        installed_gpus=fleet.installed.gpus,
        fleet_gpus=fleet.gpus,
        fleet_note=fleet.note,
        installed_gpu_hours=sum(hours or 0.0 for hours in buckets.values()),
        allocated_gpu_hours=float(tables["ledger_tenants"]["allocated_gpu_hours"].sum()),
        bucket_gpu_hours=buckets,
        **_small_jobs(known),
        energy_kwh=priced.energy_kwh,
        carbon_kg=priced.carbon_kg,
        action=decision.action,
        winner=decision.policy,
        recommended_gpus=decision.gpus,
        saved_gpu_hours_per_week=saved,
        saved_fraction=saved / all_week if saved is not None and all_week else None,
        saved_cost_per_week=decision.financial_impact.usd_per_week,
    )
    if priced.price is not None:
        cost, price = str(tables["costs"]["EffectiveCost"].sum()), priced.price
        found = replace(found, cost=cost, currency=price.currency, price_per_gpu_hour=price.value)
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
        found = replace(
            found, tomorrow_at=ahead.at.isoformat(), tomorrow_gpus=ahead.gpus, tomorrow_low=ahead.low,
            tomorrow_high=ahead.high,
        )  # fmt: skip
    return round_record(found, DECIMALS)


def _small_jobs(known: History) -> dict[str, Any]:
    """Jobs that ask for one GPU or less: how many ask for too much, and what that means in GPUs."""
    whole, sizes = known.views["whole"], known.rightsizing
    small = whole["gpus"] <= 1
    smaller = sizes["profile_needed"] != sizes["profile_requested"]
    run_s = known.views["rightsized"].filter(small)["run_s"].fill_null(0.0)
    span_s = max((known.end - known.begin).total_seconds(), 1.0)
    gpu_model = known.fleet.gpu_model

    def gpus(view: str) -> float:
        profile = known.views[view].filter(small)["profile"]
        share = {name: gpu_model.gpu_fraction(name) for name in profile.drop_nulls().unique()}
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


ASSUMED = ("pue", "host_factor", "idle_fraction", "active_base_fraction", "active_slope_fraction")


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What a study rests on.

    - ``cautions``, ``not_stated``, ``doubts``: Sentences: what to know before trusting a figure, what is left out and
      why, what speaks against the figures.
    - ``gpuplanner``: Version that made the study.
    - ``inputs``: Hash of each input file.
    - ``trace``: What the inbox kept of where the jobs come from; :attr:`read` is what of it is told.
    - ``price``, ``power``, ``carbon``, ``pue``: What money, energy and carbon rest on; None where it is not known.
    - ``ledger_assumptions``: Assumed figures with range and source.
    - ``policies``: What each way to run a fleet means.
    """

    cautions: tuple[str, ...]
    not_stated: tuple[str, ...]
    doubts: tuple[str, ...]
    gpuplanner: str
    inputs: Mapping[str, str]
    trace: Mapping[str, object]
    price: Price | None
    power: PowerModel | None
    carbon: CarbonFactor
    pue: float
    assumptions: Mapping[str, Parameter]
    policies: Mapping[str, str]

    @property
    def read(self) -> SourceFacts:
        """Where the jobs come from, and what became of the rows."""
        return SourceFacts.from_provenance(self.trace)


def provenance_of(
    known: History,
    priced: Money,
    inputs: Mapping[str, str],
    cautions: Sequence[str],
    doubts: Sequence[str],
) -> Provenance:
    """What a study of some history rests on."""
    return Provenance(
        cautions=(*_cautions(known, priced), *cautions),
        not_stated=priced.missing,
        doubts=tuple(doubts),
        gpuplanner=__version__,
        inputs=inputs,
        trace=known.trace.provenance,
        price=priced.price,
        power=priced.power,
        carbon=priced.carbon,
        pue=priced.pue,
        assumptions={name: find_parameter(name) for name in ASSUMED},
        policies=MEANINGS,
    )


def _cautions(known: History, priced: Money) -> list[str]:
    """What a reader must know before trusting a figure, in sentences."""
    texts = ledger_assumptions(known.trace.jobs, known.trace.inventory, start=known.begin, end=known.end)
    if known.fleet.name is None and len(known.fleet.installed.words) > 1:
        # The remark says the same of the boards, and what follows from it.
        texts = [text for text in texts if text != ONE_POOL_ASSUMPTION_TEXT]
    texts += known.fleet.remarks()
    texts += [text for text in [known.trace.source_facts.shortened] if text]
    texts += known.how_played()
    if known.fleet.in_catalogue:
        texts += priced.missing
    return texts


TABLES = "tables"
"""Folder of the tables in that of a report."""
JSON_TABLES = (
    "ledger_buckets", "ledger_tenants", "rightsizing", "scores", "layout_counts", "layout_changes", "costs", "energy",
    "weeks", "quality",
)  # fmt: skip
"""Tables small enough to stand in study.json as well."""
OLD_MARK = FolderMark("study.json", '"plan_bound_gpu_hours"', names=("plan.json", "scenario.yaml", "*.parquet"))
FIRST_MARK = FolderMark("study.json", "gpuplanner study 1", names=OLD_MARK.names)
MARK = FolderMark("study.json", "gpuplanner study 2", names=OLD_MARK.names, older=(FIRST_MARK, OLD_MARK))


@dataclass(frozen=True, eq=False)
class Study:
    """Everything that a report, a workbook or a notebook shows.

    Attributes
    ----------
    scenario : Scenario
        What was asked.
    headline : Headline
        Figures by name, rounded once; report, workbook and JSON print these.
    findings : tuple of str
        Three findings in words.
    tables : mapping of str to polars.DataFrame
        All tables.
    plan, problem : Plan, PlanProblem, or None
        The planned calendar and what it answers; None where the history is too short to plan from, and then the
        tables of demand, forecast and plan are absent as well.
    plan_choices : tuple of PlanChoice
        The plan with few sets of layouts, and the one that is free to change; empty where the plan is free already.
    over_fixed : OverFixed or None
        What the plan wins over the best fixed layout; None without a plan.
    comparison : Comparison
        All ways to run the fleet, and the decision that follows, as ``gpuplanner compare --json`` prints them: the one
        place that says what is saved. See :func:`gpuplanner.decision.comparison_record.comparison`.
    provenance : Provenance
        Inputs with hashes, versions, assumptions with sources.
    """

    scenario: Scenario
    headline: Headline
    findings: tuple[str, ...]
    tables: Mapping[str, pl.DataFrame]
    plan: Plan | None
    problem: PlanProblem | None
    plan_choices: tuple[PlanChoice, ...]
    over_fixed: OverFixed | None
    comparison: Comparison
    provenance: Provenance

    @property
    def decision(self) -> Decision:
        """What to do: every figure of the first screen is read from here."""
        return self.comparison.decision

    def to_json(self) -> str:
        """The study as JSON: the same input and seed give the same bytes."""
        tables = {name: _rows(self.tables[name]) for name in JSON_TABLES if name in self.tables}
        comparison = self.comparison.to_dict()
        as_they_are = ("scenario", "findings", "plan_choices", "provenance")
        found = {name: to_plain(getattr(self, name)) for name in as_they_are}
        found |= {"headline": self.headline.to_dict(), "plan": {"over_fixed": to_plain(self.over_fixed)}}
        found |= {"decision": comparison["decision"], "comparison": comparison, "tables": tables}
        return to_json(found)

    def save(self, directory: str | Path) -> Path:
        """Write the study as a folder that :func:`open_study` reads."""
        with replace_directory(directory, mark=MARK) as folder:
            (folder / "study.json").write_text(self.to_json(), encoding="utf-8")
            if self.plan is not None and self.problem is not None:
                (folder / "plan.json").write_text(plan_to_json(self.plan, self.problem), encoding="utf-8")
            (folder / "scenario.yaml").write_text(self.scenario.to_yaml(), encoding="utf-8")
            for name, table in self.tables.items():
                table.write_parquet(folder / f"{name}.parquet")
        return Path(directory)


def open_study(directory: str | Path) -> Study:
    """Read a folder written by :meth:`Study.save`, or that of a report.

    Raises
    ------
    ScenarioError
        If it is not such a folder.
    """
    folder = Path(directory)
    try:
        values = json.loads((folder / "study.json").read_text(encoding="utf-8"))
        plan = problem = None
        if values["headline"]["plan_status"] is not None:
            plan, problem = plan_from_json((folder / "plan.json").read_text(encoding="utf-8"))
        kept_tables = sorted(folder.glob("*.parquet")) or sorted((folder / TABLES).glob("*.parquet"))
        tables = {path.stem: pl.read_parquet(path) for path in kept_tables}
        return Study(
            scenario=Scenario(**values["scenario"]),
            headline=Headline.of_dict(values["headline"]),
            findings=tuple(values["findings"]),
            tables=tables,
            plan=plan,
            problem=problem,
            plan_choices=tuple(from_plain(PlanChoice, one) for one in values["plan_choices"]),
            over_fixed=from_plain(OverFixed, over) if (over := values["plan"]["over_fixed"]) else None,
            comparison=Comparison.from_dict(values["comparison"]),
            provenance=from_plain(Provenance, values["provenance"]),
        )
    except KeyError as missing:
        got = "one without, of an older version"
        raise ScenarioError(str(folder), f"a study with {missing}", got, "Evaluate again.") from missing
    except (OSError, ValueError, TypeError, AttributeError, pl.exceptions.PolarsError) as error:
        expected = "a folder written by a study"
        raise ScenarioError(str(folder), expected, first_error_line(error), "Evaluate again.") from error


def _rows(table: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows that JSON can hold: instants as ISO text, money as text with its cents."""
    plain = table.with_columns(
        pl.col(pl.Datetime("us", "UTC")).dt.strftime("%Y-%m-%dT%H:%M:%SZ"),
        pl.col(pl.Date).cast(pl.String),
        pl.col(pl.Decimal).cast(pl.String),
        pl.col(pl.Enum, pl.Categorical).cast(pl.String),
    )
    return [
        {name: None if isinstance(value, float) and value != value else value for name, value in row.items()}
        for row in plain.iter_rows(named=True)
    ]
