"""A study: tables and figures shared by page, workbook and JSON, with their provenance."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import polars as pl

from gpuplanner._version import __version__
from gpuplanner.core.errors import GpuPlannerError, ScenarioError, first_error_line
from gpuplanner.core.libraries_plugins_and_workers import list_library_versions
from gpuplanner.core.output_manifests_and_overwrite_checks import FolderMark
from gpuplanner.core.output_writing import replace_directory
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.serialization import from_plain, round_record, to_json, to_plain
from gpuplanner.core.step_functions import has_unknown_end
from gpuplanner.core.units_and_number_formats import HOURS_PER_WEEK, count_text, wait_text
from gpuplanner.cost.period_costs import Money
from gpuplanner.decision.comparison_record import Comparison
from gpuplanner.decision.decision_types import RECORD_DECIMALS, Decision, has_interval
from gpuplanner.decision.fleet_size_decision import (
    LAST_END,
    MEAN_COMPLETION,
    P95_WAIT,
    PAIRED_SCHEMA,
    compare_paired_waits,
    find_sized_fleet,
)
from gpuplanner.decision.layout_planning import FixedLayoutComparison, PlanChoice
from gpuplanner.decision.policy_comparison import MEANINGS
from gpuplanner.forecast.rolling_demand_forecast import NextDayDemand
from gpuplanner.hardware.catalog import CatalogParameter, find_parameter
from gpuplanner.hardware.power_carbon_and_prices import (
    GpuHourPrice,
    GpuPowerModel,
    GridCarbonIntensity,
    find_gpu_hour_price,
)
from gpuplanner.ingest.dataset import SourceFacts
from gpuplanner.planner.layout_plan import Plan, plan_from_json, plan_to_json
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.usage.gpu_hour_ledger import ONE_POOL_ASSUMPTION_TEXT, ledger_assumptions
from gpuplanner.usage.planning_history import History

BUCKET_SUFFIX = "_gpu_hours"
"""Suffix of the JSON keys of GPU-hours by ledger bucket."""


@dataclass(frozen=True, kw_only=True)
class Headline:
    """Figures of a study; unknown ones are None.

    - ``observed_from``, ``observed_to``, ``plan_from``: Begin and end of the observation window, and begin of the plan.
    - ``jobs``, ``tenants``: Jobs and tenants in the window.
    - ``gpu_model``, ``boards``, ``board_has_mig``: GPU model to plan for, all models as text, and whether it has MIG.
    - ``cut_gpus``, ``installed_gpus``, ``fleet_gpus``, ``fleet_note``: GPUs partitioned today, installed, and planned
      for, with a note.
    - ``installed_gpu_hours``, ``allocated_gpu_hours``, ``bucket_gpu_hours``: Of the window: in total, allocated to
      jobs, and by bucket of the ledger; in JSON each bucket has a key of its own.
    - ``small_jobs``, ``small_jobs_asking_too_much``, ``small_jobs_with_evidence``: Jobs that request one GPU or less:
      all, those that request more than they need, and those with a measurement.
    - ``small_gpus_whole``, ``small_gpus_rightsized``: Mean GPUs of these jobs in the window, on full GPUs, and
      rightsized.
    - ``cost``, ``currency``, ``price_per_gpu_hour``: Of the window.
    - ``energy_kwh``, ``carbon_kg``: Of the window, facility energy and its carbon.
    - ``plan_objective_gpu_hours``, ``plan_bound_gpu_hours``, ``plan_gap_fraction``: Objective, lower bound and
      optimality gap of the plan.
    - ``plan_changes``, ``plan_unmet_gpu_hours``, ``plan_gpu_hours_on``: Layout changes, demand not covered, and
      powered-on GPU-hours.
    - ``forecast_coverage_90``: Share of past intervals within the 90 % band of the forecast. [0-1]
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
    small_gpus_rightsized: float
    cost: str | None = None
    currency: str | None = None
    price_per_gpu_hour: float | None = None
    energy_kwh: float | None
    carbon_kg: float | None
    plan_objective_gpu_hours: float | None = None
    plan_bound_gpu_hours: float | None = None
    plan_gap_fraction: float | None = None
    plan_changes: int | None = None
    plan_unmet_gpu_hours: float | None = None
    plan_gpu_hours_on: float | None = None
    forecast_coverage_90: float | None = None
    tomorrow_gpus: float | None = None
    tomorrow_low: float | None = None
    tomorrow_high: float | None = None
    tomorrow_at: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures by name, for JSON."""
        plain: dict[str, Any] = to_plain(self)
        return plain | {f"{name}{BUCKET_SUFFIX}": hours for name, hours in plain.pop("bucket_gpu_hours").items()}

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> Self:
        """Restore the object from :meth:`to_dict`."""
        field_names = {field.name for field in fields(cls)}
        buckets = {name.removesuffix(BUCKET_SUFFIX): hours for name, hours in values.items() if name not in field_names}
        return from_plain(cls, {**values, "bucket_gpu_hours": buckets})


def build_headline(
    job_history: History,
    money_totals: Money,
    tables: Mapping[str, pl.DataFrame],
    plan: Plan | None,
    tomorrow: NextDayDemand | None,
) -> Headline:
    """Collect the figures of a study.

    Parameters
    ----------
    job_history : History
        Jobs and fleet of the window.
    money_totals : Money
        Costs, energy and carbon of the window.
    tables : mapping of str to polars.DataFrame
        Tables of the study.
    plan : Plan or None
        The plan, where the history is long enough.
    tomorrow : NextDayDemand or None
        Demand at the next noon.

    Returns
    -------
    Headline
        Figures, rounded.
    """
    buckets = dict(tables["ledger_buckets"].select("bucket", "gpu_hours").iter_rows())
    fleet = job_history.fleet
    energy, carbon = money_totals.energy, money_totals.carbon_kg["location"]
    headline = Headline(
        observed_from=job_history.begin.isoformat(),
        observed_to=job_history.end.isoformat(),
        plan_from=job_history.plan_start.isoformat(),
        jobs=job_history.jobs.height,
        tenants=job_history.jobs["tenant"].n_unique(),
        gpu_model=fleet.name,
        boards=fleet.accounted.models_text,
        board_has_mig=fleet.can_be_cut,
        cut_gpus=fleet.cut_gpus,
        installed_gpus=fleet.accounted.gpus,
        fleet_gpus=fleet.gpus,
        fleet_note=fleet.note,
        installed_gpu_hours=sum(hours or 0.0 for hours in buckets.values()),
        allocated_gpu_hours=float(tables["ledger_tenants"]["allocated_gpu_hours"].sum()),
        bucket_gpu_hours=buckets,
        **_small_job_figures(job_history),
        energy_kwh=None if energy is None else energy.value,
        carbon_kg=None if carbon is None else carbon.value,
    )
    if money_totals.price is not None:
        cost, price = str(tables["costs"]["EffectiveCost"].sum()), money_totals.price
        headline = replace(headline, cost=cost, currency=price.currency, price_per_gpu_hour=price.value)
    if plan is not None:
        headline = replace(
            headline,
            plan_objective_gpu_hours=plan.objective,
            plan_bound_gpu_hours=plan.bound,
            plan_gap_fraction=plan.gap,
            plan_changes=plan.changes,
            plan_unmet_gpu_hours=plan.unmet_gpu_hours,
            plan_gpu_hours_on=plan.gpu_hours_on,
            forecast_coverage_90=_mean_coverage(tables["choice"]),
        )
    if tomorrow is not None:
        headline = replace(
            headline, tomorrow_at=tomorrow.at.isoformat(), tomorrow_gpus=tomorrow.gpus, tomorrow_low=tomorrow.low,
            tomorrow_high=tomorrow.high,
        )  # fmt: skip
    return round_record(headline, RECORD_DECIMALS)


def _small_job_figures(job_history: History) -> dict[str, Any]:
    """Count jobs that request one GPU or less, those that request too much, and the GPUs that they use."""
    whole, sizes = job_history.views["whole"], job_history.rightsizing
    small = whole["gpus"] <= 1
    smaller = sizes["profile_needed"] != sizes["profile_requested"]
    # Only time in the period counts: jobs may run before and after it.
    begin, end = (pl.lit(time) for time in (job_history.begin, job_history.end))
    in_period = pl.min_horizontal(pl.col("end_time").fill_null(end), end) - pl.max_horizontal("start_time", begin)
    span_s = max((job_history.end - job_history.begin).total_seconds(), 1.0)
    gpu_model = job_history.fleet.gpu_model

    def mean_gpus(view: str) -> float:
        jobs = job_history.views[view].select("start_time", "end_time", "state", "profile", "instances")
        jobs = jobs.filter(small, pl.col("start_time").is_not_null(), ~has_unknown_end())
        share = {name: gpu_model.gpu_fraction(name) for name in jobs["profile"].drop_nulls().unique()}
        gpus = pl.col("profile").replace_strict(share, default=0.0, return_dtype=pl.Float64) * pl.col("instances")
        return float(jobs.select((gpus * in_period.dt.total_seconds().clip(0)).sum()).item()) / span_s

    return {
        "small_jobs": int(small.sum()),
        "small_jobs_asking_too_much": int((small & smaller).sum()),
        "small_jobs_with_evidence": int((small & sizes["is_sized"]).sum()),
    } | {f"small_gpus_{view}": mean_gpus(view) for view in ("whole", "rightsized")}


def _mean_coverage(choice: pl.DataFrame) -> float | None:
    """Compute the mean coverage of the 90 % forecast intervals of the demand of all tenants [0-1]; None without any."""
    pool = choice.filter(pl.col("unique_id").str.starts_with("all/"))
    values = pool["coverage_90"].drop_nulls().drop_nans()
    return float(values.mean()) if len(values) else None  # type: ignore[arg-type]


ASSUMED_KEYS = ("pue", "host_factor", "idle_fraction", "active_base_fraction", "active_slope_fraction")
"""Names of the catalogue parameters that a study assumes, such as PUE and idle power fraction."""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Basis of a study.

    - ``cautions``, ``not_stated``, ``doubts``: Sentences: what to know before using a figure, figures left out and why,
      and contradictions in the data.
    - ``gpuplanner``: Version that made the study.
    - ``libraries``: Versions of Python and of the libraries that figures depend on, by name.
    - ``inputs``: Hash of each input file.
    - ``trace``: Provenance of the dataset; :attr:`source_facts` reads it.
    - ``price``, ``power``, ``carbon``, ``pue``: Basis of money, energy and carbon; None where unknown.
    - ``assumptions``: Assumed parameters with range and source.
    - ``policies``: Meaning of each policy.
    """

    cautions: tuple[str, ...]
    not_stated: tuple[str, ...]
    doubts: tuple[str, ...]
    gpuplanner: str
    libraries: Mapping[str, str]
    inputs: Mapping[str, str]
    trace: Mapping[str, object]
    price: GpuHourPrice | None
    power: GpuPowerModel | None
    carbon: GridCarbonIntensity
    pue: float
    assumptions: Mapping[str, CatalogParameter]
    policies: Mapping[str, str]

    @property
    def source_facts(self) -> SourceFacts:
        """Source of the jobs, and counts of read and rejected rows."""
        return SourceFacts.from_provenance(self.trace)


def build_provenance(
    job_history: History, money_totals: Money, inputs: Mapping[str, str], cautions: Sequence[str], doubts: Sequence[str]
) -> Provenance:
    """Collect the basis of a study.

    Parameters
    ----------
    job_history : History
        Jobs and fleet of the window.
    money_totals : Money
        Costs, energy and carbon of the window.
    inputs : mapping of str to str
        Hash of each input file.
    cautions, doubts : sequence of str
        Sentences of the study.

    Returns
    -------
    Provenance
    """
    return Provenance(
        cautions=(*_list_cautions(job_history, money_totals), *cautions),
        not_stated=money_totals.missing,
        doubts=tuple(doubts),
        gpuplanner=__version__,
        libraries=list_library_versions(),
        inputs=inputs,
        trace=job_history.trace.provenance,
        price=money_totals.price,
        power=money_totals.power,
        carbon=money_totals.carbon,
        pue=money_totals.pue,
        assumptions={name: find_parameter(name) for name in ASSUMED_KEYS},
        policies=MEANINGS,
    )


def _list_cautions(job_history: History, money_totals: Money) -> list[str]:
    """List what a reader must know before using a figure, as sentences."""
    trace, fleet = job_history.trace, job_history.fleet
    texts = ledger_assumptions(trace.jobs, trace.inventory, start=job_history.begin, end=job_history.end)
    if fleet.name is None and len(fleet.installed.words) > 1:
        # A remark of the fleet covers several GPU models already.
        texts = [text for text in texts if text != ONE_POOL_ASSUMPTION_TEXT]
    texts += fleet.remarks()
    texts += [text for text in [trace.source_facts.shortened] if text]
    texts += job_history.describe_simulated_period()
    if fleet.in_catalogue:
        texts += money_totals.missing
    return texts


TABLES_FOLDER = "tables"
"""Folder of the tables in the folder of a report."""
JSON_TABLES = (
    "ledger_buckets", "ledger_tenants", "rightsizing", "scores", "layout_counts", "layout_changes", "costs", "energy",
    "weeks", "quality",
)  # fmt: skip
"""Tables of a study that are small enough to be part of ``study.json`` as well as of the table files."""
STUDY_0_MARK = FolderMark("study.json", '"plan_bound_gpu_hours"', names=("plan.json", "scenario.yaml", "*.parquet"))
""":class:`FolderMark` of study folders that were written before the format in ``study.json`` had a number."""
STUDY_1_MARK = FolderMark("study.json", "gpuplanner study 1", names=STUDY_0_MARK.names)
""":class:`FolderMark` of study folders of format 1."""
STUDY_MARK = FolderMark(
    "study.json", "gpuplanner study 2", names=STUDY_0_MARK.names, older=(STUDY_1_MARK, STUDY_0_MARK)
)
"""Mark of a study folder of this version, format 2; it may replace folders of earlier versions."""


@dataclass(frozen=True, eq=False)
class Study:
    """All results of an evaluation: source of report, workbook and notebook.

    Attributes
    ----------
    scenario : Scenario
        The question.
    headline : Headline
        Figures by name, rounded once; report, workbook and JSON print these.
    findings : tuple of str
        Three findings, as sentences.
    tables : mapping of str to polars.DataFrame
        All tables.
    plan, problem : Plan, PlanProblem, or None
        The plan and the problem that it solves; None where the history is too short to plan from, and then the
        tables of demand, forecast and plan are absent as well.
    plan_choices : tuple of PlanChoice
        The few-changes plan and the unrestricted plan; empty where the plan is unrestricted already.
    over_fixed : FixedLayoutComparison or None
        Gain of the plan over the best fixed layout; None without a plan.
    comparison : Comparison
        The policy comparison and the decision, as ``gpuplanner compare --json`` prints them: the only source of
        savings. See :func:`gpuplanner.decision.comparison_record.study_comparison`.
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
    over_fixed: FixedLayoutComparison | None
    comparison: Comparison
    provenance: Provenance

    @property
    def decision(self) -> Decision:
        """The decision: source of every figure of the first screen."""
        return self.comparison.decision

    def to_json(self) -> str:
        """Format the study as JSON: the same input and seed give the same bytes."""
        tables = {name: _json_rows(self.tables[name]) for name in JSON_TABLES if name in self.tables}
        comparison = self.comparison.to_dict()
        plain_fields = ("scenario", "findings", "plan_choices", "provenance")
        document = {name: to_plain(getattr(self, name)) for name in plain_fields}
        document |= {"headline": self.headline.to_dict(), "plan": {"over_fixed": to_plain(self.over_fixed)}}
        document |= {"decision": comparison["decision"], "comparison": comparison, "tables": tables}
        return to_json(document)

    def save(self, directory: str | Path) -> Path:
        """Write the study as a folder that :func:`open_study` reads.

        Parameters
        ----------
        directory : str or Path
            Folder to write; a study in it is replaced.

        Returns
        -------
        Path
            The folder.
        """
        with replace_directory(directory, mark=STUDY_MARK) as folder:
            (folder / "study.json").write_text(self.to_json(), encoding="utf-8")
            if self.plan is not None and self.problem is not None:
                (folder / "plan.json").write_text(plan_to_json(self.plan, self.problem), encoding="utf-8")
            (folder / "scenario.yaml").write_text(self.scenario.to_yaml(), encoding="utf-8")
            for name, table in self.tables.items():
                table.write_parquet(folder / f"{name}.parquet")
        return Path(directory)


def open_study(directory: str | Path) -> Study:
    """Read a folder written by :meth:`Study.save`, or the folder of a report.

    Parameters
    ----------
    directory : str or Path
        The folder.

    Returns
    -------
    Study

    Raises
    ------
    ScenarioError
        If it is not such a folder.
    """
    folder = Path(directory)
    try:
        values = json.loads((folder / "study.json").read_text(encoding="utf-8"))
        plan = problem = None
        if values["headline"]["plan_changes"] is not None:
            plan, problem = plan_from_json((folder / "plan.json").read_text(encoding="utf-8"))
        kept_tables = sorted(folder.glob("*.parquet")) or sorted((folder / TABLES_FOLDER).glob("*.parquet"))
        tables = {path.stem: pl.read_parquet(path) for path in kept_tables}
        return Study(
            scenario=Scenario(**values["scenario"]),
            headline=Headline.of_dict(values["headline"]),
            findings=tuple(values["findings"]),
            tables=tables,
            plan=plan,
            problem=problem,
            plan_choices=tuple(from_plain(PlanChoice, choice) for choice in values["plan_choices"]),
            over_fixed=from_plain(FixedLayoutComparison, over) if (over := values["plan"]["over_fixed"]) else None,
            comparison=Comparison.from_dict(values["comparison"]),
            provenance=from_plain(Provenance, values["provenance"]),
        )
    except KeyError as missing:
        got = "one without, of an older version"
        raise ScenarioError(str(folder), f"a study with {missing}", got, "Evaluate again.") from missing
    except (OSError, ValueError, TypeError, AttributeError, pl.exceptions.PolarsError) as error:
        expected = "a folder written by a study"
        raise ScenarioError(str(folder), expected, first_error_line(error), "Evaluate again.") from error


def _json_rows(table: pl.DataFrame) -> list[dict[str, Any]]:
    """Convert a table to rows for JSON: instants as ISO text, money as text with its cents."""
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


SAME_JOBS_FIELDS = ("data", "month", "gpu_model", "pool", "history_days")
"""Fields of two scenarios that are equal if both are about the same jobs."""
PAIRED_ENDS = ("minutes", "low", "high")
"""Ends of the names of the columns of a difference and its interval."""
_PAIRED_COLUMNS = (
    *(f"{measure}_difference_{end}" for measure in ("p95", "completion") for end in PAIRED_ENDS),
    "makespan_difference_minutes",
)
"""Columns of the differences to the first decision: of the size that waits longest there, and the makespan of all."""
_COMPARED_COLUMNS = {
    "study": pl.String, "action": pl.String, "meets_wait_limits": pl.String, "installed_gpus": pl.Int64,
    "gpus": pl.Int64, "gpu_hours_per_week": pl.Float64, "capacity_cost_per_week": pl.Float64, "currency": pl.String,
    "freed_gpu_hours_per_week": pl.Float64, "freed_low": pl.Float64, "freed_high": pl.Float64,
    "usd_per_week": pl.Float64, "longest_waiting_size": pl.String, "exhausted_on": pl.String,
    **dict.fromkeys(("p95_wait_minutes_today", "p95_wait_minutes", "p95_wait_low", "p95_wait_high"), pl.Float64),
    **dict.fromkeys(("completion_minutes", "completion_low", "completion_high", *_PAIRED_COLUMNS), pl.Float64),
}  # fmt: skip
"""Columns of the table of decisions side by side; waits and completion times are of the size that waits longest."""
COMPARED_FIGURES = {
    "action": ("action", ""), "meets_wait_limits": ("meets all wait limits", ""),
    "installed_gpus": ("GPUs today", ""), "gpus": ("GPUs", ""), "gpu_hours_per_week": ("GPU-hours a week", ""),
    "capacity_cost_per_week": ("cost of these, at your rate or list price [{currency} a week]", ""),
    "freed_gpu_hours_per_week": ("GPU-hours freed a week (90 % interval)", "freed"),
    "usd_per_week": ("spend that ends [USD a week]", ""), "longest_waiting_size": ("figures below: jobs on", ""),
    "p95_wait_minutes_today": ("p95 queue wait today [min]", ""),
    "p95_wait_minutes": ("p95 queue wait [min] (80 % interval)", "p95_wait"),
    "p95_difference_minutes": ("p95 queue wait less that of the first [min] (80 % interval)", "p95_difference"),
    "completion_minutes": ("mean completion time [min] (80 % interval)", "completion"),
    "exhausted_on": ("capacity exhausted on", ""),
}  # fmt: skip
"""Printed name of each figure of decisions side by side, and prefix of its interval, in the order of their rows."""


def arrange_decisions(decisions: pl.DataFrame, format_value: Callable[[Any], str]) -> pl.DataFrame:
    """Arrange decisions in columns, with a row for each figure that one of them has, as texts.

    Parameters
    ----------
    decisions : polars.DataFrame
        Decisions, as of :func:`tabulate_decisions`.
    format_value : callable
        Formats a value as text.
    """
    currency = " or ".join(decisions["currency"].drop_nulls().unique(maintain_order=True))
    rows: list[list[str]] = []
    for name, (label, prefix) in COMPARED_FIGURES.items():
        if decisions[name].null_count() < decisions.height:
            form = format_value
            if "[min]" in label:
                label, form = label.replace(" [min]", ""), signed_wait_text
            texts = [label.format(currency=currency), *map(form, decisions[name])]
            ends = decisions.select(f"{prefix}_low", f"{prefix}_high").rows() if prefix else []
            if ends and all(low is None for low, _ in ends):
                texts[0] = texts[0].partition(" (")[0]
            for column, (low, high) in enumerate(ends, start=1):
                texts[column] += "" if low is None else f" ({form(low)} to {form(high)})"
            rows.append(texts)
    return pl.DataFrame(rows, schema=["figure", *decisions["study"]], orient="row")


def signed_wait_text(minutes: float | None) -> str:
    """Format a wait or a difference of waits [min] as :func:`wait_text`, with its sign; a dash if it is not known."""
    return "–" if minutes is None else ("−" if minutes < -0.5 else "") + wait_text(abs(minutes))


def _label_studies(studies: Sequence[tuple[Scenario, Comparison]]) -> list[str]:
    """Label studies by their names; those of one name by what differs between them: their GPUs and other settings."""
    labels = []
    for scenario, comparison in studies:
        peers = [peer for peer in studies if peer[0].name == scenario.name]
        changes = sorted({name for peer, _ in peers for name in scenario.diff(peer)} - {"gpus"})
        parts = [f"{name}={value}" for name in changes if (value := getattr(scenario, name)) is not None]
        if len({peer.decision.gpus for _, peer in peers}) > 1:
            parts.insert(0, count_text(comparison.decision.gpus, "GPU"))
        labels.append(", ".join(parts) or scenario.name)
    if len(set(labels)) == len(labels):
        return labels
    return [f"{number}: {label}" for number, label in enumerate(labels, start=1)]


def tabulate_decisions(studies: Sequence[tuple[Scenario, Comparison]]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Tabulate decisions side by side, with the differences to the first on the same jobs.

    Parameters
    ----------
    studies : sequence of (Scenario, Comparison)
        Scenarios with their decisions; the first is the baseline.

    Returns
    -------
    decisions : polars.DataFrame
        A row for each, with what differs from the first. Differences are null where the jobs are not the same.
    differences : polars.DataFrame
        ``study, job_size, measure, difference_minutes, low, high``, as of :func:`compare_paired_waits`.
    """
    (first, first_comparison), base_fleet = studies[0], None
    size = getattr(first_comparison.decision.longest_waiting, "size", None)
    paired_figures = {(size, P95_WAIT): "p95", (size, MEAN_COMPLETION): "completion", ("all", LAST_END): "makespan"}
    rows: list[dict[str, Any]] = []
    tables = []
    for label, (scenario, comparison) in zip(_label_studies(studies), studies, strict=True):
        row = {"study": label} | _decision_numbers(scenario, comparison, size)
        # Without the same jobs, the record of a study is not even read: a saved one may have outlived its data.
        if rows and all(getattr(first, name) == getattr(scenario, name) for name in SAME_JOBS_FIELDS):
            base_fleet = base_fleet or find_sized_fleet(first, first_comparison.decision)
            compared_fleet = find_sized_fleet(scenario, comparison.decision)
            if base_fleet is not None and compared_fleet is not None:
                table = compare_paired_waits(base_fleet, compared_fleet)
                tables.append(table.select(pl.lit(label).alias("study"), pl.all()))
                for job_size, measure, *values in table.iter_rows():
                    columns = (f"{paired_figures.get((job_size, measure))}_difference_{end}" for end in PAIRED_ENDS)
                    row |= dict(zip(columns, values, strict=True))
        rows.append({name: row.get(name) for name in _COMPARED_COLUMNS})
    differences = pl.concat(tables) if tables else pl.DataFrame(schema={"study": pl.String, **PAIRED_SCHEMA})
    return pl.DataFrame(rows, schema=_COMPARED_COLUMNS, orient="row"), differences


def _decision_numbers(scenario: Scenario, comparison: Comparison, size: str | None) -> dict[str, Any]:
    """Return the numbers of a decision by column of :data:`_COMPARED_COLUMNS`, waits of a size or the longest waiting.

    Parameters
    ----------
    scenario : Scenario
        Price of a GPU-hour.
    comparison : Comparison
        The decision.
    size : str, optional
        Name of the job size.
    """
    decision, saving = comparison.decision, comparison.decision.saving
    waits = next((row for row in decision.service if row.size == size), decision.longest_waiting)
    missed = [row.size for row in decision.service if not row.meets_limit]
    gpu_hours, price = decision.gpus_mean * HOURS_PER_WEEK, None
    if scenario.price_book is None and decision.gpu_model is not None:
        with contextlib.suppress(GpuPlannerError):  # no list price, or none in this currency
            terms = {"own_price": scenario.price_per_gpu_hour, "currency": scenario.currency}
            price = find_gpu_hour_price(decision.gpu_model, **terms).value
    numbers = {
        "action": ", ".join(measure.action for measure in decision.measures).replace("_", " ") or decision.action,
        "meets_wait_limits": (f"no: {', '.join(missed)}" if missed else "yes") if decision.service else None,
        "gpu_hours_per_week": gpu_hours,
        "capacity_cost_per_week": None if price is None else gpu_hours * price,
        "currency": None if price is None else scenario.currency,
        "installed_gpus": decision.fleet_gpus,
        "gpus": decision.gpus,
        "freed_gpu_hours_per_week": saving.value,
        "freed_low": saving.low if saving.varies else None,
        "freed_high": saving.high if saving.varies else None,
        "usd_per_week": decision.financial_impact.usd_per_week,
        "exhausted_on": comparison.exhaustion.date,
    }
    if waits is not None:
        is_shown = has_interval(waits.recommended_p95_minutes, waits.low, waits.high)
        numbers |= {
            "p95_wait_minutes_today": waits.today_p95_minutes,
            "p95_wait_minutes": waits.recommended_p95_minutes,
            "p95_wait_low": waits.low if is_shown else None,
            "p95_wait_high": waits.high if is_shown else None,
            "completion_minutes": waits.completion_minutes,
            "completion_low": waits.completion_low,
            "completion_high": waits.completion_high,
            "longest_waiting_size": waits.size,
        }
    return numbers
