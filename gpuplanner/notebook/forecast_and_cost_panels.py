"""Panels of forecasts and costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner import report as plots
from gpuplanner.core.libraries_plugins_and_workers import import_optional
from gpuplanner.core.output_column_headings import replace_codes_by_text
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.setting_rules_and_controls import OWNERSHIPS
from gpuplanner.core.units_and_number_formats import UNALLOCATED_TEAM, money_text, period_text
from gpuplanner.cost.monthly_cost_review import CostReview, cost_review
from gpuplanner.decision.comparison_record import Comparison, compare_policies
from gpuplanner.decision.purchase_and_refresh_plans import PurchasePlan, plan_purchase
from gpuplanner.notebook.section_panels import SectionPanel, number_field
from gpuplanner.notebook.views_and_panels import control_style, dropdown, files_button, on_change
from gpuplanner.report import html_page as page
from gpuplanner.report.focus_files_and_workbooks import TEAM_PERIOD_SHEET_NAMES, write_cost_workbook
from gpuplanner.report.html_page import HtmlSection
from gpuplanner.usage.grouped_usage import months_in
from gpuplanner.usage.planning_history import load_dataset


@dataclass(frozen=True)
class ForecastQuestion:
    """Settings of a GPU demand forecast, for its calendar and the quantile to plan for.

    Attributes
    ----------
    horizon, gap : int
        Forecast horizon, and time from a decision until it takes effect. [intervals]
    price : float
        Cost of a missing GPU-hour. [planned GPU-hours]
    capacity : float
        Installed GPUs.

    Examples
    --------
    >>> ForecastQuestion(price=8.0)
    ForecastQuestion(horizon=48, gap=6, price=8.0, capacity=64.0)
    """

    horizon: int = 48
    gap: int = 6
    price: float = 5.0
    capacity: float = 64.0


class ForecastPanel(SectionPanel[ForecastQuestion, HtmlSection]):
    """Panel with controls of a forecast, the quantile to plan for and the calendar of GPUs.

    Parameters
    ----------
    question : ForecastQuestion
        Initial settings of the controls.
    draw : callable
        Function from the settings to a section of the forecast; runs in the background.
    interval_hours : float
        Length of an interval. [h]

    Attributes
    ----------
    controls : dict
        Number fields by field of :class:`ForecastQuestion`.

    Examples
    --------
    >>> def draw(question: ForecastQuestion) -> HtmlSection:
    ...     return HtmlSection(f"<p>{question.price:g}</p>")
    >>> panel = ForecastPanel(ForecastQuestion(48, 6, 5.0, 64.0), draw, interval_hours=0.5)
    >>> panel.controls["price"].control.value = 8.0
    >>> panel.ask().result(), panel.controls["gap"].label
    ('<p>8</p>', 'Lead time (intervals of 0.5 h)')
    """

    at_once = True

    def __init__(
        self,
        question: ForecastQuestion,
        draw: Callable[[ForecastQuestion], HtmlSection],
        *,
        interval_hours: float = 1.0,
    ) -> None:
        super().__init__(draw, HtmlSection, working="Forecasting ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        style = control_style("18em", "28em")
        unit = "h" if interval_hours == 1 else f"intervals of {interval_hours:g} h"
        ranges: dict[str, tuple[float, float, str, str]] = {
            "horizon": (1, 2000, f"Forecast horizon ({unit})", "Time to forecast"),
            "gap": (0, 500, f"Lead time ({unit})", "Time from a decision until it takes effect"),
            "price": (1.01, 1000.0, "Cost of a missing GPU-hour (GPU h)", "In planned, unused GPU-hours"),
            "capacity": (1.0, 1e6, "Installed GPUs", "Capacity to compare with"),
        }
        self.controls = {name: number_field(getattr(question, name), *row, **style) for name, row in ranges.items()}
        self.fields = [*self.controls.values()]
        fields = [field.control for field in self.fields]
        on_change(fields, self.ask_soon)
        self.panel = widgets.VBox([*fields, self.status, self.answer.box])

    @property
    def question(self) -> ForecastQuestion:
        """Settings of the controls."""
        return ForecastQuestion(**{name: field.value for name, field in self.controls.items()})


ALL_TEAMS_OPTION = ""
"""Value of the team drop-down for all teams."""
AS_IN_DATA = ""
"""Value of a drop-down for what the data state; JupyterLab would show None as blank."""


@dataclass(frozen=True)
class CostQuestion:
    """Settings of the cost panel.

    - ``scenario``: Month and prices.
    - ``tenant``: Team whose charge lines are shown.
    - ``months``: Planning period of commitments [months].
    - ``risk``: Weight of the CVaR [0-1].
    """

    scenario: Scenario
    tenant: str
    months: int
    risk: float


@dataclass(frozen=True, eq=False)
class CostAnswer:
    """Result that the cost panel shows: the settings with their cost review, purchase plan and policy comparison."""

    question: CostQuestion
    review: CostReview
    purchase: PurchasePlan
    comparison: Comparison


class CostPanel(SectionPanel[CostQuestion, CostAnswer]):
    """Panel with controls of price, month, team, ownership and terms, and the results of ``gpuplanner cost``.

    Parameters
    ----------
    scenario : Scenario
        Initial settings of the controls.
    workbook : str or Path
        Excel file that the button writes, with the tables of the shown answer.

    Attributes
    ----------
    price : NumberField
        Price of a GPU-hour; at its initial value, prices are those of the price book or the catalogue.
    month, tenant, owner : ipywidgets.Dropdown
        Calendar month, team and ownership of the GPUs.
    price_book : ipywidgets.Text
        File of dated prices; empty: none.
    months, risk : NumberField
        Planning period of commitments [months], and weight of the CVaR [0-1].

    Examples
    --------
    >>> panel = CostPanel(Scenario(month="2026-02"))
    >>> panel.price.control.value = 2.0
    >>> panel.question.scenario.price_per_gpu_hour
    2.0
    """

    def __init__(self, scenario: Scenario, workbook: str | Path = "costs.xlsx") -> None:
        super().__init__(self._compute_costs, answer_section, working="Computing the costs ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        self.scenario = scenario
        review = cost_review(scenario)
        style = control_style("15em", "28em")
        self._start = float(scenario.price_per_gpu_hour or (review.price.value if review.price else 0.0))
        unknown = "" if self._start or review.price else "; 0: not known"
        label, tooltip = f"Price ({scenario.currency} per GPU h{unknown})", "Unchanged: price book or list price"
        self.price = number_field(self._start, 0.0, 1e4, label, tooltip, **style)
        months = observed_months(scenario)
        options = [("all data", AS_IN_DATA), *((month, month) for month in months)]
        self.month = dropdown(options, scenario.month or AS_IN_DATA, "Month", tooltip="Calendar month", **style)
        teams = [name for name in review.by_tenant["tenant"] if name != UNALLOCATED_TEAM]
        options = [
            ("all teams", ALL_TEAMS_OPTION),
            *((name, name) for name in teams),
            ("unallocated", UNALLOCATED_TEAM),
        ]
        self.tenant = dropdown(options, ALL_TEAMS_OPTION, "Team", tooltip="Whose cost is shown", **style)
        options = [("as in the inventory", AS_IN_DATA), *((name.replace("_", " "), name) for name in OWNERSHIPS)]
        self.owner = dropdown(options, scenario.ownership or AS_IN_DATA, "Ownership", tooltip="Of the GPUs", **style)
        self.price_book = widgets.Text(
            value=scenario.price_book or "", description="Price book (file)", continuous_update=False, **style
        )
        self.months = number_field(12, 1, 60, "Commitment (months)", "Months of demand to cover", **style)
        self.risk = number_field(0.0, 0.0, 1.0, "CVaR (10 %) weight (0 to 1)", "0: mean cost", **style)
        self.fields = [self.price, self.months, self.risk]
        controls = [
            self.price.control, self.month, self.tenant, self.owner, self.months.control, self.risk.control,
            self.price_book,
        ]  # fmt: skip
        on_change(controls, self.ask_soon)
        sheet = TEAM_PERIOD_SHEET_NAMES["week"]
        tooltip = f"Write the tables of the shown answer to {workbook}, first the sheet {sheet}"
        self.files = files_button(
            lambda: write_cost_workbook(workbook, self._shown_review()),
            "Write the workbook", tooltip, f". Teams by week: sheet “{sheet}”",
        )  # fmt: skip
        grid = widgets.GridBox(controls, layout={"grid_template_columns": "repeat(auto-fill, minmax(26em, 1fr))"})
        scope = "The cells below have the price, month, ownership and price book of this panel once they run: after a "
        scope += "change, select the next one, then Run → Run Selected Cell and All Below."
        self.panel = widgets.VBox([grid, widgets.HTML(scope), self.files, self.status, self.answer.box])
        self.answer.value = cost_section(review, ALL_TEAMS_OPTION)
        self.status.value = "Cost of the parameters. Change a value: the cost follows, then the recommendation."

    def find_faults(self) -> list[tuple[Any, str]]:
        """List the fields outside their range, and a price book that does not exist."""
        faults = super().find_faults()
        path = self.price_book.value.strip()
        if path and not Path(path).is_file():
            faults.append((self.price_book, f"Price book: expected a file, got {path}"))
        return faults

    @property
    def question(self) -> CostQuestion:
        """Settings of the controls."""
        is_moved = self.price.value != self._start
        scenario = self.scenario.but(
            month=self.month.value or None,
            ownership=self.owner.value or None,
            price_book=self.price_book.value.strip() or None,
            price_per_gpu_hour=self.price.value if is_moved else self.scenario.price_per_gpu_hour,
        )
        return CostQuestion(scenario, self.tenant.value, self.months.value, self.risk.value)

    def _compute_costs(self, question: CostQuestion) -> CostAnswer:
        """Compute the cost, which is shown at once, then the purchase plan and the policies."""
        review = cost_review(question.scenario)
        self._call_in_kernel(self._show_cost, self._running, cost_section(review, question.tenant))
        plan = plan_purchase(question.scenario, question.months, risk=question.risk)
        return CostAnswer(question, review, plan, compare_policies(question.scenario))

    def _show_cost(self, number: int, section: HtmlSection) -> None:
        """Show the cost, unless there is a newer question than the one with this number."""
        if number == self._n_asked:
            self.answer.value = section
            self.status.value = "This is the new cost. Planning what to buy, reserve or rent ..."

    def _shown_review(self) -> CostReview:
        """Return the cost review of the shown answer, or of the present settings before the first answer."""
        return cost_review(self.question.scenario) if self.newest is None else self.newest.review


def observed_months(scenario: Scenario) -> list[str]:
    """List the calendar months ``YYYY-MM`` of the data, and that of the scenario.

    Examples
    --------
    >>> observed_months(Scenario())
    ['2026-02']
    """
    names = months_in(load_dataset(scenario.data, columns=("submit_time",)), scenario.tz)
    return sorted({*names, *filter(None, [scenario.month])})


def cost_section(review: CostReview, tenant: str) -> HtmlSection:
    """Render the cost of all teams, or of one team by bucket."""
    if review.total is None:
        return page.section("Cost", page.note("No GPU has a price."), *map(page.note, review.missing))
    is_all = tenant == ALL_TEAMS_OPTION
    team = "all teams" if is_all else tenant.replace("__", "")
    lines = review.costs if is_all else review.costs.filter(SubAccountName=tenant)
    name = pl.col("SubAccountName" if is_all else "x_Bucket")
    sums = lines.group_by(tenant=name, maintain_order=True).agg(
        cost=pl.col("EffectiveCost").sum(), gpu_hours=pl.col("PricingQuantity").sum()
    )
    cost = Decimal(str(lines["EffectiveCost"].sum()))
    of_total = "" if is_all else f" of {money_text(review.total, review.currency)}"
    headline = f"{team}: {money_text(cost, review.currency)}{of_total} {review.currency}"
    shown = replace_codes_by_text(sums)
    headings = {"tenant": "team" if is_all else "bucket", "cost": f"cost [{review.currency}]"}
    title = f"Cost of {team}, {period_text(*review.period)}"
    bars = plots.plot_costs(shown.with_columns(pl.col("cost").cast(pl.Float64)), unit=review.currency)
    total_row = sums.select(pl.lit("Total").alias("tenant"), pl.selectors.numeric().sum())
    with_total = pl.concat([shown, total_row], how="vertical_relaxed")
    table = page.table(with_total, caption=title, headings=headings, formats={"gpu_hours": ",.1f"})
    return page.section("Cost", page.figure(bars, title=title, alt=f"{headline}."), table)


def answer_section(answer: CostAnswer) -> HtmlSection:
    """Render the answer of the cost panel: cost, purchase options and the recommendation."""
    plan, decision = answer.purchase, answer.comparison.decision
    headings = {"cost": f"cost [{plan.currency}]"}
    options = page.table(plan.costs, caption=plan.scope, headings=headings, formats={"cost": ",.0f"})
    return HtmlSection(
        cost_section(answer.review, answer.question.tenant)
        + page.section(
            "Commitments",
            page.paragraph(plan.advice_sentence),
            options if plan.costs.height else "",
            *map(page.paragraph, [decision.sentence, *decision.financial_impact.basis.split("\n")]),
        )
    )
