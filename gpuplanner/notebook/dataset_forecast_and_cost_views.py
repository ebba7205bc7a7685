"""Views of a dataset, its forecasts and costs, and of published claims."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from gpuplanner import report as plots
from gpuplanner.core.output_manifests_and_overwrite_checks import allow_overwriting_within
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.stage_cache_and_data_folders import claims_folder
from gpuplanner.cost.cost_review import CostReview, cost_review, price_rows
from gpuplanner.decision.comparison_record import compare_policies
from gpuplanner.decision.purchase_refresh_and_burst_plans import plan_burst, plan_purchase, read_burst_rules
from gpuplanner.decision.purchase_refresh_and_burst_plans import plan_refresh as renew
from gpuplanner.forecast.gpu_demand import DemandHistory
from gpuplanner.forecast.model_selection import fold_scores, mean_scores
from gpuplanner.forecast.rolling_demand_forecast import lay_out_demand, rolling_backtest
from gpuplanner.forecast.statistical_models import CANDIDATE_MODELS
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.notebook.dataset_and_quota_panels import ExplorePanel, make_explore_panel
from gpuplanner.notebook.forecast_and_cost_panels import CostPanel, ForecastPanel, ForecastQuestion
from gpuplanner.notebook.views_and_panels import View
from gpuplanner.report import cost_and_forecast_sections, dataset_sections
from gpuplanner.report import html_page as page
from gpuplanner.report.focus_files_and_workbooks import write_cost_workbook
from gpuplanner.usage.dataset_explorer import ALL_TENANTS_LABEL, ExploredDataset, explore_dataset

MAX_TWENTY_JOBS_METRICS = 4
"""Number of metrics that :func:`twenty_jobs` charts: two completion times and two utilizations."""


def twenty_jobs() -> View:
    """Show the stored results of ``benchmarks/claims/twenty_jobs.py``, a test of a published claim on eight H100.

    Returns
    -------
    View
        Claimed and measured figures, and each policy with its 95 % interval; ``frame()`` has one row a policy and
        metric: ``policy, metric, unit, mean, low, high``.

    Examples
    --------
    >>> sorted(set(twenty_jobs().frame()["unit"]))
    ['%', 'min', 'slices']
    """
    figures = pl.read_csv(claims_folder() / "twenty_jobs.csv")
    policies = pl.read_csv(claims_folder() / "twenty_jobs_policies.csv")
    metrics = policies["metric"].unique(maintain_order=True).head(MAX_TWENTY_JOBS_METRICS)
    shown = policies.filter(pl.col("metric").is_in(metrics.to_list()))
    chart = page.figure(
        plots.plot_policies(shown),
        title="Completion time and utilization by policy",
        alt=plots.policies_text(shown),
        numbers=policies,
    )
    table = page.table(figures, caption="Claimed and measured")
    return View(page.section("Twenty jobs on eight H100", table, chart), policies)


DEFAULT_FORECAST_QUESTION = ForecastQuestion()
"""Default forecast settings: horizon, gap, cost of a missing GPU-hour, installed GPUs."""


@dataclass(frozen=True, eq=False)
class ForecastView:
    """Forecast of GPU demand from a cutoff in the data, with a method that shows each part in a notebook.

    - ``source``: Demand of the jobs that are known at the cutoff.
    """

    source: DemandHistory

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks on the data that limit the forecast."""
        return tuple(self.source.remarks)

    def expected(self, horizon: int = 48) -> View:
        """Show the expected GPUs of running and of future jobs over `horizon` intervals."""
        return View(cost_and_forecast_sections.render_expected_section(self.source, horizon), self.source.fan(horizon))

    def past_errors(
        self,
        horizon: int = 48,
        *,
        gap: int = 6,
        cutoffs: int = 20,
        price: float = 5.0,
        models: tuple[str, ...] = CANDIDATE_MODELS,
    ) -> View:
        """Show the backtest errors of every candidate model.

        Parameters
        ----------
        horizon, gap : int
            Forecast horizon, and time from the cutoff to the first forecast. [intervals]
        cutoffs : int
            Number of cutoffs.
        price : float
            Cost of a missing GPU-hour. [planned GPU-hours]
        models : tuple of str
            Candidate models.

        Returns
        -------
        View
            Charts and the mean errors by model.
        """
        backtest = rolling_backtest(self.source, horizon=horizon, gap=gap, cutoffs=cutoffs, models=models, price=price)
        return View(cost_and_forecast_sections.render_error_section(backtest), mean_scores(fold_scores(backtest)))

    def decision(self, question: ForecastQuestion = DEFAULT_FORECAST_QUESTION) -> View:
        """Show the quantile of forecast demand to plan for, given the cost of missing GPU-hours."""
        shown = cost_and_forecast_sections.render_quantile_section(
            self.source, question.horizon, question.gap, question.price
        )
        return View(shown, self.source.cost_curve(question.horizon, question.gap, question.price))

    def calendar(self, question: ForecastQuestion = DEFAULT_FORECAST_QUESTION) -> View:
        """Show the GPUs to plan on each day of the horizon."""
        shown = cost_and_forecast_sections.render_calendar_section(
            self.source, question.horizon, question.gap, question.price, question.capacity
        )
        return View(shown, self.source.plan_calendar(question.horizon, question.gap, question.price))

    def controls(self, question: ForecastQuestion = DEFAULT_FORECAST_QUESTION) -> ForecastPanel:
        """Make the panel with controls of the forecast settings, the calendar of GPUs to plan and the quantile."""
        parts = (self.calendar, self.decision)
        return ForecastPanel(question, lambda question: "".join(part(question)._repr_html_() for part in parts))


def ahead(data: str = "sample", *, at: str = "") -> ForecastView:
    """Forecast GPU demand from a cutoff in the data.

    Parameters
    ----------
    data : str
        Folder written by ``ingest``, or ``"sample"``.
    at : str
        Cutoff, ISO 8601, UTC if it has no offset; empty: the end of the data.

    Returns
    -------
    ForecastView
        ``expected()``, ``past_errors()``, ``decision()``, ``calendar()``: a view each; ``controls()``: a panel that
        changes the settings (:class:`ForecastQuestion`) of the last two.

    Raises
    ------
    TraceFormatError
        If the folder is no dataset.

    Examples
    --------
    >>> ahead("nowhere")
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.TraceFormatError: ...
    """
    instant = datetime.fromisoformat(at) if at else None
    if instant is not None and instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return ForecastView(lay_out_demand(Scenario(data=data), at=instant))


@dataclass(frozen=True, eq=False)
class MonthCosts:
    """Cost of a month, with a method that shows each part in a notebook.

    - ``scenario``: Month, data and prices.
    - ``review``: Cost, energy and carbon of the month.
    """

    scenario: Scenario
    review: CostReview

    def month(self) -> View:
        """Show the cost by team, bucket and unit of work, with energy and carbon."""
        return View(cost_and_forecast_sections.render_cost_section(self.review), self.review.by_tenant)

    def prices(self) -> View:
        """Show all prices of the GPU model with their dates."""
        return View(cost_and_forecast_sections.render_price_section(self.review), price_rows(self.review))

    def commitments(self, months: int = 12, *, risk: float = 0.0, refresh: tuple[str, float] | None = None) -> View:
        """Show the GPUs to buy, reserve or rent, and when a newer GPU model pays off.

        Parameters
        ----------
        months : int
            Planning period. [months]
        risk : float
            Weight of the CVaR against the mean cost. [0-1]
        refresh : tuple of str and float, optional
            Newer GPU model, and its speed relative to today's.

        Returns
        -------
        View
            Purchase plan, and costs by option.
        """
        purchase_plan = plan_purchase(self.scenario, months, risk=risk)
        refresh_plan = None if refresh is None else renew(self.scenario, months, *refresh)
        return View(
            cost_and_forecast_sections.render_commitment_section(purchase_plan, refresh_plan), purchase_plan.costs
        )

    def burst(self, rules: str = "") -> View:
        """Show the jobs to send to rented GPUs; `rules` is the path of a file of burst rules, or empty."""
        plan = plan_burst(self.scenario, read_burst_rules(rules)) if rules else None
        return View(
            cost_and_forecast_sections.render_burst_section(plan), pl.DataFrame() if plan is None else plan.jobs
        )

    def savings(self) -> View:
        """Show the capacity that the recommendation frees, and its financial impact."""
        comparison = compare_policies(self.scenario)
        return View(
            cost_and_forecast_sections.render_savings_section(comparison), pl.DataFrame(comparison.decision.measures)
        )

    def to_excel(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write charge lines, prices and totals as an Excel workbook."""
        with allow_overwriting_within(overwrite):
            return write_cost_workbook(path, self.review, locale=self.scenario.number_locale)

    def controls(self, workbook: str | Path = "costs.xlsx") -> CostPanel:
        """Make the panel with controls of month, team, prices, ownership and terms; a button writes the workbook."""
        return CostPanel(self.scenario, workbook)


def costs(scenario: Scenario) -> MonthCosts:
    """Review the cost of a month by team and bucket.

    Parameters
    ----------
    scenario : Scenario
        The month, its data and its prices.

    Returns
    -------
    MonthCosts
        ``month()``, ``prices()``, ``commitments()``, ``burst()``, ``savings()``, ``controls()``, ``to_excel()``.

    Raises
    ------
    GpuPlannerError
        If the data or a price cannot be used.

    Examples
    --------
    >>> costs(Scenario(data="nowhere"))
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.TraceFormatError: ...
    """
    return MonthCosts(scenario, cost_review(scenario))


def explore(
    data: str | Dataset = "sample", *, gpu_model: str | None = None, tz: str = "UTC", smallest_group: int = 0
) -> TraceView:
    """Open a dataset and show its quality, GPU-hours, demand, phases and claims.

    Parameters
    ----------
    data : str or Dataset
        Folder written by ``ingest``, ``"sample"``, the name of a public trace, or a dataset of :func:`gpuplanner.read`.
    gpu_model : str, optional
        GPU model for which requests are evaluated; default: that of the data.
    tz : str
        Time zone of days and months.
    smallest_group : int
        Smallest number of users of a team that is shown by itself.

    Returns
    -------
    TraceView
        ``quality()``, ``ledger()``, ``demand()``, ``phases()``, ``claim()``, ``provenance()``: a view each.

    Raises
    ------
    TraceFormatError
        If the folder is no dataset.

    Examples
    --------
    >>> explore("sample").ledger().frame().columns[:2]
    ['bucket', 'gpu_hours']
    """
    inbox = explore_dataset(data, gpu_model=gpu_model, tz=tz, smallest_group=smallest_group)
    return TraceView(inbox, data if isinstance(data, str) else "the trace")


@dataclass(frozen=True, eq=False)
class TraceView:
    """A dataset of jobs and telemetry, with a method that shows each part in a notebook.

    - ``inbox``: The opened dataset.
    - ``name``: Its folder or name.
    """

    inbox: ExploredDataset
    name: str

    def _repr_html_(self) -> str:
        return self.quality()._repr_html_()

    def quality(self) -> View:
        """Show the data quality and the observed periods."""
        return View(
            dataset_sections.render_quality_section(self.inbox.quality_report), self.inbox.quality_report.findings
        )

    def ledger(self, tenant: str = ALL_TENANTS_LABEL) -> View:
        """Show the installed GPU-hours by bucket, of all teams or of one."""
        table = self.inbox.buckets() if tenant == ALL_TENANTS_LABEL else self.inbox.months(tenant)
        return View(dataset_sections.render_ledger_section(self.inbox, tenant), table)

    def demand(self, tenant: str = ALL_TENANTS_LABEL) -> View:
        """Show the unconstrained demand by MIG profile and by team."""
        return View(
            dataset_sections.render_demand_section(self.inbox, tenant),
            self.inbox.rows_of(self.inbox.demand_series, tenant),
        )

    def phases(self, job: str = "") -> View:
        """Show phases, utilization dips, bottleneck and MIG profile of a job; default: the one with most telemetry."""
        jobs = self.inbox.jobs_of()
        has_phases = jobs and self.inbox.fleet.can_be_cut
        table = self.inbox.job(job or jobs[0]).phases if has_phases else pl.DataFrame()
        return View(dataset_sections.render_phase_section(self.inbox, job), table)

    def claim(self) -> View:
        """Show evidence on the claim that later phases of jobs need fewer GPUs."""
        table = pl.DataFrame() if self.inbox.claim is None else self.inbox.claim
        return View(dataset_sections.render_claim_section(self.inbox), table)

    def provenance(self) -> View:
        """Show the sources of the data."""
        return View(dataset_sections.render_provenance_section(self.inbox), self.inbox.quality_report.findings)

    def panel(self) -> ExplorePanel:
        """Make the panel with controls of dataset, team, job and view."""
        return make_explore_panel(self.inbox, dataset_sections.SECTION_VIEWS, data=self.name)
