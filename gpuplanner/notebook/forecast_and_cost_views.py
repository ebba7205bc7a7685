"""Views of forecasts and costs, and of a published claim."""

from __future__ import annotations

from dataclasses import asdict, dataclass
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
from gpuplanner.notebook.forecast_and_cost_panels import CostPanel, ForecastPanel, ForecastQuestion
from gpuplanner.notebook.views_and_panels import View
from gpuplanner.report import cost_and_forecast_sections
from gpuplanner.report import html_page as page
from gpuplanner.report.focus_files_and_workbooks import write_cost_workbook

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
    >>> sorted(set(twenty_jobs().df["unit"]))
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

    def decision(self, horizon: int = 48, *, gap: int = 6, price: float = 5.0) -> View:
        """Show the quantile of demand to plan for, given the cost of missing GPU-hours.

        Parameters
        ----------
        horizon, gap : int
            Forecast horizon, and time from a decision until it takes effect. [intervals]
        price : float
            Cost of a missing GPU-hour. [planned GPU-hours]
        """
        shown = cost_and_forecast_sections.render_quantile_section(self.source, horizon, gap, price)
        return View(shown, self.source.cost_curve(horizon, gap, price))

    def calendar(self, horizon: int = 48, *, gap: int = 6, price: float = 5.0, capacity: float = 64.0) -> View:
        """Show the GPUs to plan on each day, and when demand exceeds `capacity` [GPU]; else as :meth:`decision`."""
        shown = cost_and_forecast_sections.render_calendar_section(self.source, horizon, gap, price, capacity)
        return View(shown, self.source.plan_calendar(horizon, gap, price))

    def controls(self, horizon: int = 48, *, gap: int = 6, price: float = 5.0, capacity: float = 64.0) -> ForecastPanel:
        """Make the panel with controls, the calendar and the decision; parameters as of :meth:`calendar`."""

        def show(question: ForecastQuestion) -> str:
            settings = asdict(question)
            shown = [self.calendar(**settings)]
            settings.pop("capacity")
            return "".join(view._repr_html_() for view in [*shown, self.decision(**settings)])

        return ForecastPanel(ForecastQuestion(horizon, gap, price, capacity), show)


def forecast_demand(scenario: Scenario, *, at: str = "") -> ForecastView:
    """Forecast GPU demand from a cutoff in the data.

    Parameters
    ----------
    scenario : Scenario
        Data.
    at : str
        Cutoff, ISO 8601, UTC if it has no offset; empty: the end of the data.

    Returns
    -------
    ForecastView
        ``expected()``, ``past_errors()``, ``decision()``, ``calendar()``: a view each; ``controls()`` moves the last
        two, of the same parameters.

    Raises
    ------
    TraceFormatError
        If the folder is no dataset.

    Examples
    --------
    >>> forecast_demand(Scenario(data="nowhere"))
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.TraceFormatError: ...
    """
    instant = datetime.fromisoformat(at) if at else None
    if instant is not None and instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return ForecastView(lay_out_demand(scenario, at=instant))


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
