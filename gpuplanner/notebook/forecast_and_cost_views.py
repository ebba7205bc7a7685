"""Views of forecasts and costs, and of a published claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner import report as plots
from gpuplanner.core.errors import ScenarioError, TraceFormatError, resolve_name
from gpuplanner.core.output_manifests_and_overwrite_checks import allow_overwriting_within
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.stage_cache_and_data_folders import claims_folder
from gpuplanner.core.units_and_number_formats import HOURS_PER_WEEK
from gpuplanner.cost.cost_over_time import compare_periods, spread_cost
from gpuplanner.cost.monthly_cost_review import CostReview, cost_review, price_rows
from gpuplanner.decision.burst_plan import plan_burst, read_burst_rules
from gpuplanner.decision.comparison_record import compare_policies
from gpuplanner.decision.purchase_and_refresh_plans import compare_ways_to_pay, plan_purchase
from gpuplanner.forecast.gpu_demand import DemandHistory
from gpuplanner.forecast.model_selection import fold_scores, mean_scores
from gpuplanner.forecast.rolling_demand_forecast import lay_out_demand, rolling_backtest
from gpuplanner.forecast.statistical_models import CANDIDATE_MODELS
from gpuplanner.notebook.forecast_and_cost_panels import CostPanel, ForecastPanel, ForecastQuestion
from gpuplanner.notebook.views_and_panels import View, answer_or_card, or_card, require_share, require_whole_number
from gpuplanner.report import cost_and_forecast_sections
from gpuplanner.report import html_page as page
from gpuplanner.report.focus_files_and_workbooks import write_cost_workbook
from gpuplanner.report.html_page import HtmlSection
from gpuplanner.usage.grouped_usage import parse_instant
from gpuplanner.usage.period_accounts import scenario_ledger
from gpuplanner.usage.planning_history import load_dataset

FORECAST_FIX = 'gp.read("jobs.csv").forecast()  # needs jobs with start and end'
"""Python code that leads to a forecast."""
COST_FIX = 'gp.open(data).costs(gpu_model="A100-80GB", price_per_gpu_hour=2.50)'
"""Python code that leads to a cost."""
MAX_TWENTY_JOBS_METRICS = 4
"""Number of metrics that :func:`twenty_jobs` charts: two completion times and two utilizations."""


def twenty_jobs() -> View:
    """Show the stored results of ``benchmarks/claims/twenty_jobs.py``, a test of a published claim on eight H100.

    Returns
    -------
    View
        Claimed and measured figures, and each policy with its 95 % interval; ``df`` has one row for each policy and
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


@dataclass(frozen=True, eq=False, repr=False)
class ForecastView:
    """Forecast of GPU demand from a cutoff in the data, with a method that shows each part in a notebook.

    - ``scenario``: Data and interval length.
    - ``at``: Cutoff; None: the end of the data.
    - ``installed_gpus``: Capacity that demand is compared with; None: the peak of the demand. [GPU]
    """

    scenario: Scenario
    at: datetime | None = None
    installed_gpus: float | None = None

    def __repr__(self) -> str:
        return f"ForecastView({self.scenario.name}, at={'the end of the data' if self.at is None else self.at})"

    @cached_property
    def source(self) -> DemandHistory:
        """Demand of the jobs that are known at the cutoff."""
        return lay_out_demand(self.scenario, at=self.at)

    @cached_property
    def capacity(self) -> float:
        """Installed GPUs, or the peak of the demand where they are not known."""
        peak = self.source.demand_table.filter(unique_id=self.source.whole)["y"].max()
        return float(self.installed_gpus or peak or 1.0)  # type: ignore[arg-type]

    def _repr_html_(self) -> str:
        return self.remarks()._repr_html_()

    @or_card("Demand history", FORECAST_FIX)
    def remarks(self) -> View:
        """Show cutoff, series and interval, and remarks on the data that limit the forecast."""
        source = self.source
        cutoff = source.start + timedelta(hours=source.slots * source.interval_hours)
        facts = {
            "cutoff": f"{cutoff:%Y-%m-%d %H:%M} UTC",
            "history": f"{source.slots:,} intervals of {source.interval_hours:g} h",
            "series": f"{len(source.ids):,}, {source.whole} is shown",
            "remarks": "; ".join(source.remarks) or "none",
        }
        table = page.value_table(facts, caption="Demand history")
        return View(page.section("Demand history", table), pl.DataFrame({"remark": list(source.remarks)}))

    @or_card("GPUs expected", FORECAST_FIX)
    def expected(self, horizon: int = 48) -> View:
        """Show the expected GPUs of running and of future jobs over `horizon` intervals, after those observed."""
        return View(cost_and_forecast_sections.render_expected_section(self.source, horizon), self.source.fan(horizon))

    @or_card("Past forecasts", FORECAST_FIX)
    def past_errors(
        self,
        horizon: int = 48,
        *,
        gap: int = 6,
        cutoffs: int = 20,
        price: float = 5.0,
        models: tuple[str, ...] = CANDIDATE_MODELS,
    ) -> View:
        """Show past forecasts over what came, and the backtest errors of every candidate model.

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
        how: dict[str, Any] = {"horizon": horizon, "gap": gap, "cutoffs": cutoffs, "price": price}
        backtest = rolling_backtest(self.source, models=models, **how)
        return View(cost_and_forecast_sections.render_error_section(backtest), mean_scores(fold_scores(backtest)))

    @or_card("Capacity to plan", FORECAST_FIX)
    def decision(self, horizon: int = 48, *, gap: int = 6, price: float = 5.0) -> View:
        """Show the quantile of demand to plan for, given the cost of missing GPU-hours.

        Parameters
        ----------
        horizon, gap : int
            Forecast horizon, and time from a decision until it takes effect. [intervals]
        price : float
            Cost of a missing GPU-hour. [planned GPU-hours]
        """
        section = cost_and_forecast_sections.render_quantile_section(self.source, horizon, gap, price)
        return View(section, self.source.cost_curve(horizon, gap, price))

    @or_card("GPUs to plan on each day", FORECAST_FIX)
    def calendar(self, horizon: int = 48, *, gap: int = 6, price: float = 5.0, capacity: float | None = None) -> View:
        """Show the GPUs to plan on each day, and when demand exceeds `capacity` [GPU]; else as :meth:`decision`."""
        gpus = self.capacity if capacity is None else capacity
        section = cost_and_forecast_sections.render_calendar_section(self.source, horizon, gap, price, gpus)
        return View(section, self.source.plan_calendar(horizon, gap, price))

    def exhaustion(
        self,
        *,
        capacity_fraction: float = 0.9,
        growth_per_week: Mapping[str, float] | None = None,
        added_gpus: Mapping[str, tuple[float, date | str]] | None = None,
        weeks: int = 104,
        quantile: float = 0.95,
    ) -> View:
        """Show the week in which demand first exceeds a share of the capacity: early, median and late.

        Parameters
        ----------
        capacity_fraction : float
            Share of the installed GPUs. [0-2]
        growth_per_week : mapping of str to float, optional
            Growth of teams, such as ``{"vision": 0.02}`` for 2 % a week; other demand grows as fitted to the record.
        added_gpus : mapping of str to tuple, optional
            GPUs that a team needs all the time from a day on, such as ``{"search": (16, "2026-04-01")}``.
        weeks : int
            Weeks ahead.
        quantile : float
            Quantile of the intervals of a week that stands for its demand; 1: the peak. [0-1]

        Returns
        -------
        View
            ``df``: ``estimate``, ``probability`` [0-1] and ``week``, null where it is not within these weeks.

        Raises
        ------
        ScenarioError
            If a share, a team or a day is not valid.
        """
        require_share("capacity_fraction", capacity_fraction, 2.0)
        require_share("quantile", quantile)
        require_whole_number("weeks", weeks, 1, 520)
        title = "Demand above the limit"
        changes: dict[str, Any] = {"growth_per_week": growth_per_week or {}, "added_gpus": added_gpus or {}}

        source = answer_or_card(title, lambda: self.source, FORECAST_FIX)
        if isinstance(source, View):
            return source

        def draw() -> View:
            limit = capacity_fraction * self.capacity
            demand = source.draw_weekly_demand(**changes, weeks=weeks, quantile=quantile)
            estimates, outlook = source.date_exceedance(demand, limit)
            observed_weeks = source.slots * source.interval_hours / HOURS_PER_WEEK
            section = cost_and_forecast_sections.render_exceedance_section(estimates, outlook, limit, observed_weeks)
            return View(section, estimates)

        return answer_or_card(title, draw, errors=TraceFormatError)

    @or_card("Forecast", FORECAST_FIX)
    def controls(
        self, horizon: int = 48, *, gap: int = 6, price: float = 5.0, capacity: float | None = None
    ) -> ForecastPanel:
        """Make the panel with controls, the calendar and the decision; parameters as of :meth:`calendar`."""

        def show(question: ForecastQuestion) -> HtmlSection:
            settings = asdict(question)
            calendar = self.calendar(**settings)
            settings.pop("capacity")
            return HtmlSection(calendar.section + self.decision(**settings).section)

        question = ForecastQuestion(horizon, gap, price, self.capacity if capacity is None else float(capacity))
        return ForecastPanel(question, show, interval_hours=self.source.interval_hours)


def forecast_demand(scenario: Scenario, *, at: str = "", installed_gpus: float | None = None) -> ForecastView:
    """Forecast GPU demand from a cutoff in the data.

    Parameters
    ----------
    scenario : Scenario
        Data.
    at : str
        Cutoff, ISO 8601, UTC if it has no offset; empty: the end of the data.
    installed_gpus : float, optional
        Capacity that demand is compared with; default: the peak of the demand. [GPU]

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
    >>> forecast = forecast_demand(Scenario(), at="2026-02-20")
    >>> forecast.expected(24).df.columns
    ['ds', 'still_running', 'to_come', 'q05', 'q50', 'q95']
    """
    instant = parse_instant(at, option="at") if at else None
    load_dataset(scenario.data, columns=("submit_time",))  # a folder that is no dataset is an error at once
    return ForecastView(scenario, instant, installed_gpus)


@dataclass(frozen=True, eq=False, repr=False)
class MonthCosts:
    """Cost of a month, with a method that shows each part in a notebook.

    - ``scenario``: Month, data and prices.
    """

    scenario: Scenario

    def __repr__(self) -> str:
        return f"MonthCosts({self.scenario.name}: {self.scenario.month or 'the whole observation'})"

    @cached_property
    def review(self) -> CostReview:
        """Cost, energy and carbon of the month."""
        return cost_review(self.scenario)

    def _repr_html_(self) -> str:
        return self.month()._repr_html_()

    @or_card("The month", COST_FIX)
    def month(self) -> View:
        """Show the cost by team, bucket and unit of work, with energy and carbon."""
        section = page.section("The month", *cost_and_forecast_sections.cost_section_parts(self.review))
        return View(HtmlSection(section.replace("--set ", "")), self.review.by_tenant, self.review.sums)  # as in Python

    def with_settings_of(self, panel: CostPanel) -> MonthCosts:
        """Return the costs at the price, month, ownership and price book of a panel, for the cells below it."""
        return MonthCosts(panel.question.scenario)

    def over_time(self, every: str = "week") -> View:
        """Show the cost of all data by team over time, with the change from one period to the next.

        Parameters
        ----------
        every : str
            ``"week"`` or ``"month"``.

        Returns
        -------
        View
            ``df``: ``week`` or ``month``, ``days`` observed, ``gpu_hours``, ``cost``, ``cost_per_day`` and
            ``change_fraction`` against the period before, see :func:`gpuplanner.cost.cost_over_time.compare_periods`.
        """
        name = resolve_name(every, ["week", "month"], subject="every", error=ScenarioError)
        scenario = self.scenario.but(month=None)

        def draw() -> View:
            review = self.review if scenario == self.scenario else cost_review(scenario)
            by_team = spread_cost(review.costs, scenario_ledger(scenario), ["team", name], tz=scenario.tz)
            section = cost_and_forecast_sections.render_cost_over_time(by_team, name, review)
            return View(section, compare_periods(by_team, name))

        return answer_or_card(f"Cost by {name}", draw, COST_FIX)

    @or_card("Prices", COST_FIX)
    def prices(self) -> View:
        """Show all prices of the GPU model with their dates."""
        return View(cost_and_forecast_sections.render_price_section(self.review), price_rows(self.review))

    def commitments(
        self, months: int = 12, *, risk: float = 0.0, gpus: int | None = None,
        used_fraction: float | None = None, purchase_price: float | None = None,
    ) -> View:  # fmt: skip
        """Show the GPUs to buy, reserve or rent; with `gpus`, the ways to pay for more GPUs.

        Parameters
        ----------
        months : int
            Planning period. [months]
        risk : float
            Weight of the CVaR against the mean cost. [0-1]
        gpus : int, optional
            GPUs beyond those of today: compares buying, reserving and renting them on demand. [GPU]
        used_fraction : float, optional
            Share of the hours in which they are used; default: the allocated share of today. [0-1]
        purchase_price : float, optional
            Price of a GPU with its share of the node; default: the price book. [currency per GPU]

        Returns
        -------
        View
            Purchase plan, and costs by option. With `gpus`, ``df``: ``option``, ``gpus``, ``cost``,
            ``break_even_fraction`` of the hours in use [0-1] and ``break_even_month``, both against on demand.

        Raises
        ------
        ScenarioError
            If a number is out of range.
        """
        require_whole_number("months", months, 1, 120)
        if gpus is not None:
            require_whole_number("gpus", gpus, 1, 1_000_000)
            if used_fraction is not None:
                require_share("used_fraction", used_fraction)
            if purchase_price is not None and not purchase_price > 0:
                raise ScenarioError("purchase_price", "a price above 0", f"{purchase_price}", "Fix purchase_price=.")

        def show() -> View:
            if gpus is not None:
                how = {"used_fraction": used_fraction, "purchase_price": purchase_price}
                table, notes = compare_ways_to_pay(self.scenario, months, gpus, **how)
                title = f"Cost of {gpus:,} more GPUs, {months} months, {self.scenario.currency}, undiscounted"
                return View(cost_and_forecast_sections.render_payment_section(table, notes, title), table)
            plan = plan_purchase(self.scenario, months, risk=risk)
            return View(cost_and_forecast_sections.render_commitment_section(plan), plan.costs)

        return answer_or_card("Buy, reserve or rent", show, COST_FIX)

    @or_card("Jobs for rented GPUs", COST_FIX)
    def burst(self, rules: str = "") -> View:
        """Show the jobs to send to rented GPUs; `rules` is the path of a file of burst rules, or empty."""
        plan = plan_burst(self.scenario, read_burst_rules(rules)) if rules else None
        table = pl.DataFrame() if plan is None else plan.jobs
        return View(cost_and_forecast_sections.render_burst_section(plan), table)

    @or_card("Savings", COST_FIX)
    def savings(self) -> View:
        """Show the capacity that the recommendation frees, and its financial impact."""
        comparison = compare_policies(self.scenario)
        measures = pl.DataFrame(comparison.decision.measures)
        return View(cost_and_forecast_sections.render_savings_section(comparison), measures)

    def to_excel(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write charge lines, prices and totals as an Excel workbook."""
        with allow_overwriting_within(overwrite):
            return write_cost_workbook(path, self.review)

    @or_card("Cost", COST_FIX)
    def controls(self, workbook: str | Path = "costs.xlsx") -> CostPanel:
        """Make the panel with controls of price, month, team, ownership and terms; a button writes the workbook."""
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
        ``month()``, ``over_time()``, ``prices()``, ``commitments()``, ``burst()``, ``savings()``, ``controls()``,
        ``to_excel()``.

    Raises
    ------
    GpuPlannerError
        If the data or a price cannot be used.

    Examples
    --------
    >>> month = costs(Scenario(month="2026-02", price_per_gpu_hour=2.0))
    >>> month.over_time("month").df.select("month", "days", "cost").rows()
    [(datetime.date(2026, 2, 1), 28, Decimal('86016.00'))]
    """
    load_dataset(scenario.data, columns=("submit_time",))  # a folder that is no dataset is an error at once
    return MonthCosts(scenario)
