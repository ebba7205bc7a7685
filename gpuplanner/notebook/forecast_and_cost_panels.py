"""Panels of forecasts and costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from html import escape
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl

from gpuplanner.core.libraries_plugins_and_workers import import_optional
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.setting_rules_and_controls import OWNERSHIPS
from gpuplanner.core.units_and_number_formats import UNALLOCATED_TEAM, money_text, period_text
from gpuplanner.cost.cost_review import CostReview, cost_review
from gpuplanner.decision.comparison_record import Comparison, compare_policies
from gpuplanner.decision.purchase_refresh_and_burst_plans import PurchasePlan, plan_purchase
from gpuplanner.notebook.views_and_panels import (
    BackgroundPanel,
    control_style,
    dropdown,
    files_button,
    on_change,
    slider,
    table_html,
)
from gpuplanner.report.focus_files_and_workbooks import write_cost_workbook
from gpuplanner.usage.study_history import load_dataset, months_from, observation_begins_at, observation_ends_at


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


class ForecastPanel(BackgroundPanel[ForecastQuestion, str]):
    """Panel with controls of a forecast, the quantile to plan for and the calendar of GPUs.

    Parameters
    ----------
    question : ForecastQuestion
        Initial settings of the controls.
    draw : callable
        Function from the settings to HTML of the forecast; runs in the background.

    Attributes
    ----------
    controls : dict
        ipywidgets controls by field of :class:`ForecastQuestion`.

    Examples
    --------
    >>> panel = ForecastPanel(ForecastQuestion(48, 6, 5.0, 64.0), lambda asked: f"<p>{asked.price:g}</p>")
    >>> panel.controls["price"].value = 8.0
    >>> panel.ask().result()
    '<p>8</p>'
    """

    at_once = True

    def __init__(self, question: ForecastQuestion, draw: Callable[[ForecastQuestion], str]) -> None:
        super().__init__(draw, "<div class='gpuplanner-answer'>{}</div>".format, working="Forecasting ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        style = control_style("18em", "44em")

        ranges: dict[str, tuple[Any, ...]] = {
            "horizon": (6, 336, 6, "Forecast horizon (h)", "Hours to forecast"),
            "gap": (0, 72, 1, "Lead time (h)", "Hours from a decision until it takes effect"),
            "price": (1.0, 30.0, 0.5, "Cost of a missing GPU-hour (GPU h)", "In planned, unused GPU-hours"),
            "capacity": (1.0, 2 * question.capacity, 1.0, "Installed GPUs", "Capacity to compare with"),
        }
        self.controls = {name: slider(getattr(question, name), *row, **style) for name, row in ranges.items()}
        on_change(self.controls.values(), self.ask_soon)
        self.panel = widgets.VBox([*self.controls.values(), self.status, self.answer])

    @property
    def question(self) -> ForecastQuestion:
        """Settings of the controls."""
        return ForecastQuestion(**{name: control.value for name, control in self.controls.items()})


ALL_TEAMS = ""
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


class CostPanel(BackgroundPanel[CostQuestion, CostAnswer]):
    """Panel with controls of month, team, prices, ownership and terms, and the results of ``gpuplanner cost``.

    Parameters
    ----------
    scenario : Scenario
        Initial settings of the controls.
    workbook : str or Path
        Excel file that the button writes, with the tables of the shown answer.

    Attributes
    ----------
    month, tenant, owner : ipywidgets.Dropdown
        Calendar month, team and ownership of the GPUs.
    price : ipywidgets.FloatSlider
        Price of a GPU-hour; at its initial value, prices are those of the price book or the catalogue.
    price_book : ipywidgets.Text
        File of dated prices; empty: none.
    months, risk : ipywidgets.IntSlider, ipywidgets.FloatSlider
        Planning period of commitments [months], and weight of the CVaR [0-1].

    Examples
    --------
    >>> panel = CostPanel(Scenario(month="2026-02"))
    >>> panel.price.value = 2.0
    >>> panel.question.scenario.price_usd_per_gpu_hour
    2.0
    """

    at_once = True

    def __init__(self, scenario: Scenario, workbook: str | Path = "costs.xlsx") -> None:
        super().__init__(_answer_cost_question, answer_html, working="Computing the costs ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        self.scenario = scenario
        review = cost_review(scenario)
        style = control_style("16em", "44em")
        months = observed_months(scenario)
        options = [("all data", AS_IN_DATA), *((month, month) for month in months)]
        self.month = dropdown(options, scenario.month or AS_IN_DATA, "Month", tooltip="Calendar month", **style)
        teams = [name for name in review.by_tenant["tenant"] if name != UNALLOCATED_TEAM]
        options = [("all teams", ALL_TEAMS), *((name, name) for name in teams), ("unallocated", UNALLOCATED_TEAM)]
        self.tenant = dropdown(options, ALL_TEAMS, "Team", tooltip="Whose cost is shown", **style)
        self._start = scenario.price_usd_per_gpu_hour or (review.price.value if review.price else 0.0)
        max_price, label = max(4 * self._start, 10.0), f"Price ({scenario.currency} per GPU h)"
        tooltip = "Price of a GPU-hour; unchanged: price book or list price"
        self.price = slider(float(self._start), 0.0, max_price, 0.01, label, tooltip, readout_format=".2f", **style)
        self.price_book = widgets.Text(
            value=scenario.price_book or "", description="Price book (file)", continuous_update=False, **style
        )
        owners = ((name.replace("_", " "), name) for name in OWNERSHIPS)
        options = [("as in the inventory", AS_IN_DATA), *owners]
        self.owner = dropdown(options, scenario.ownership or AS_IN_DATA, "Ownership", tooltip="Of the GPUs", **style)
        self.months = slider(12, 1, 36, 1, "Commitment horizon (months)", "Months of demand to cover", **style)
        self.risk = slider(0.0, 0.0, 1.0, 0.1, "CVaR (10 %) weight (0 to 1)", "0: mean cost", **style)
        controls = [self.month, self.tenant, self.price, self.price_book, self.owner, self.months, self.risk]
        on_change(controls, self.ask_soon)
        tooltip = f"Write the tables of the shown answer to {workbook}"
        locale = scenario.number_locale
        files = files_button(
            lambda: write_cost_workbook(workbook, self._shown_review(), locale=locale), "Write the workbook", tooltip
        )
        self.panel = widgets.VBox([*controls, files, self.status, self.answer])

    @property
    def question(self) -> CostQuestion:
        """Settings of the controls."""
        is_moved = self.price.value != self._start
        scenario = self.scenario.but(
            month=self.month.value or None,
            ownership=self.owner.value or None,
            price_book=self.price_book.value.strip() or None,
            price_usd_per_gpu_hour=self.price.value if is_moved else self.scenario.price_usd_per_gpu_hour,
        )
        return CostQuestion(scenario, self.tenant.value, self.months.value, self.risk.value)

    def _shown_review(self) -> CostReview:
        """Return the cost review of the shown answer, or of the present settings before the first answer."""
        return cost_review(self.question.scenario) if self.newest is None else self.newest.review


def _answer_cost_question(question: CostQuestion) -> CostAnswer:
    """Compute cost review, purchase plan and policy comparison for the settings of the cost panel."""
    purchase_plan = plan_purchase(question.scenario, question.months, risk=question.risk)
    return CostAnswer(question, cost_review(question.scenario), purchase_plan, compare_policies(question.scenario))


def observed_months(scenario: Scenario) -> list[str]:
    """List the calendar months ``YYYY-MM`` of the data, and that of the scenario.

    Examples
    --------
    >>> observed_months(Scenario())
    ['2026-02']
    """
    trace, zone = load_dataset(scenario.data, columns=("submit_time",)), ZoneInfo(scenario.tz)
    ends = observation_begins_at(trace), observation_ends_at(trace) - timedelta(microseconds=1)
    names = months_from(*(f"{time.astimezone(zone):%Y-%m}" for time in ends))
    return sorted({*names, *filter(None, [scenario.month])})


def answer_html(answer: CostAnswer) -> str:
    """Render the answer of the cost panel as HTML: cost of the chosen team, purchase options and the recommendation."""
    review, question = answer.review, answer.question
    if review.total is None:
        notes = "".join(f"<p>{escape(text)}</p>" for text in review.missing)
        return f"<p><b>No GPU has a price.</b></p>{notes}"
    team = question.tenant.replace("__", "") or "all teams"
    lines = review.costs if question.tenant == ALL_TEAMS else review.costs.filter(SubAccountName=question.tenant)
    by = "SubAccountName" if question.tenant == ALL_TEAMS else "x_Bucket"
    shown = lines.group_by(by, maintain_order=True).agg(pl.col("EffectiveCost", "PricingQuantity").sum())
    cost_shown = Decimal(str(lines["EffectiveCost"].sum()))
    rows = [
        (name.replace("_", " "), money_text(cost, review.currency), f"{hours:,.1f}")
        for name, cost, hours in [*shown.iter_rows(), ("Total", cost_shown, lines["PricingQuantity"].sum())]
    ]
    headings = ["team" if question.tenant == ALL_TEAMS else "bucket", f"cost [{review.currency}]", "GPU-hours"]
    title = f"Cost of {team}, {period_text(*review.period)}"
    sentence = escape(answer.comparison.decision.sentence)
    impact = escape(answer.comparison.decision.financial_impact.basis).replace("\n", "<br>")
    purchase_plan = answer.purchase
    option_rows = ((option, f"{cost:,.0f}") for option, cost in purchase_plan.costs.iter_rows())
    option_headings = ["purchase option", f"cost [{purchase_plan.currency}]"]
    of_total = "" if question.tenant == ALL_TEAMS else f" of {money_text(review.total, review.currency)}"
    return (
        f"<div class='gpuplanner-answer'><p><b>{escape(team)}: {money_text(cost_shown, review.currency)}{of_total} "
        f"{review.currency}</b></p>{table_html(headings, rows, caption=title)}"
        f"<p>{escape(purchase_plan.advice_sentence)}</p>"
        f"{table_html(option_headings, option_rows, caption='Cost over simulated demand')}"
        f"<p><b>{sentence}</b></p><p>{impact}</p>"
        "</div>"
    )
