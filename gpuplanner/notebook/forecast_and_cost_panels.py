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

from gpuplanner.core.execution import import_optional
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.scenario_fields import OWNERSHIPS
from gpuplanner.core.units import UNALLOCATED_TEAM, money_text
from gpuplanner.cost.cost_review import CostReview, cost_review
from gpuplanner.decision.comparison_record import Comparison, compare_policies
from gpuplanner.decision.purchase_plan import PurchasePlan, plan_purchase
from gpuplanner.notebook.views import BackgroundPanel, control_look, dropdown, files_button, slider, table_html, watch
from gpuplanner.report.finance_exports import write_cost_workbook
from gpuplanner.usage.job_history import begin_of, end_of, load_dataset, months_from


@dataclass(frozen=True)
class AheadQuestion:
    """What is asked of a forecast, by calendar, decision and controls alike.

    Attributes
    ----------
    horizon, gap : int
        Slots that are looked at, and slots that it takes to act.
    price : float
        Of a GPU-hour short, in GPU-hours planned.
    capacity : float
        GPUs that there are.

    Examples
    --------
    >>> AheadQuestion(price=8.0)
    AheadQuestion(horizon=48, gap=6, price=8.0, capacity=64.0)
    """

    horizon: int = 48
    gap: int = 6
    price: float = 5.0
    capacity: float = 64.0


class AheadPanel(BackgroundPanel[AheadQuestion, str]):
    """Controls of a forecast, and what they decide: the quantile, and the calendar of GPUs to plan.

    Parameters
    ----------
    start : AheadQuestion
        Where the controls begin.
    draw : callable
        From what is asked to markup; runs in the background.

    Attributes
    ----------
    controls : dict
        ipywidgets controls by field of the question.

    Examples
    --------
    >>> panel = AheadPanel(AheadQuestion(48, 6, 5.0, 64.0), lambda asked: f"<p>{asked.price:g}</p>")
    >>> panel.controls["price"].value = 8.0
    >>> panel.ask().result()
    '<p>8</p>'
    """

    at_once = True

    def __init__(self, start: AheadQuestion, draw: Callable[[AheadQuestion], str]) -> None:
        super().__init__(draw, "<div class='gpuplanner-answer'>{}</div>".format, working="Forecasting ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        look = control_look("18em", "44em")

        rows: dict[str, tuple[Any, ...]] = {
            "horizon": (6, 336, 6, "Forecast horizon (h)", "Hours to forecast"),
            "gap": (0, 72, 1, "Lead time (h)", "Hours from a decision until it takes effect"),
            "price": (1.0, 30.0, 0.5, "Cost of a missing GPU-hour (GPU h)", "In planned, unused GPU-hours"),
            "capacity": (1.0, 2 * start.capacity, 1.0, "Installed GPUs", "Capacity to compare with"),
        }
        self.controls = {name: slider(getattr(start, name), *row, **look) for name, row in rows.items()}
        watch(self.controls.values(), self.ask_soon)
        self.panel = widgets.VBox([*self.controls.values(), self.status, self.answer])

    @property
    def question(self) -> AheadQuestion:
        """What the controls ask as they stand."""
        return AheadQuestion(**{name: control.value for name, control in self.controls.items()})


EVERYBODY = ""
"""Tenant of a question about all of them."""
UNSAID = ""
"""Value of a drop-down that leaves it to the data: JupyterLab draws one of None as blank."""


@dataclass(frozen=True)
class CostQuestion:
    """What is asked of money: a month at its prices, whose lines are shown, and how far commitments look."""

    scenario: Scenario
    tenant: str
    months: int
    risk: float


@dataclass(frozen=True, eq=False)
class CostAnswer:
    """The month, what to commit, and what the decision saves, of one question."""

    question: CostQuestion
    review: CostReview
    purchase: PurchasePlan
    found: Comparison


class CostPanel(BackgroundPanel[CostQuestion, CostAnswer]):
    """Controls of month, tenant, prices, owner and terms, answered by what `cost` says.

    Parameters
    ----------
    scenario : Scenario
        Where the controls start.
    workbook : str or Path
        What the button writes: the tables of the answer that is shown.

    Attributes
    ----------
    month, tenant, owner : ipywidgets.Dropdown
        Calendar month, whose lines are shown, and who pays for the GPUs.
    price : ipywidgets.FloatSlider
        Of a GPU-hour; where it starts, prices are those of the book or the list.
    price_book : ipywidgets.Text
        File of own dated prices; empty: none.
    months, risk : ipywidgets.IntSlider, ipywidgets.FloatSlider
        Months that commitments are looked at, and the weight of the dearest tenth of the paths.

    Examples
    --------
    >>> panel = CostPanel(Scenario(month="2026-02"))
    >>> panel.price.value = 2.0
    >>> panel.question.scenario.price_usd_per_gpu_hour
    2.0
    """

    at_once = True

    def __init__(self, scenario: Scenario, workbook: str | Path = "costs.xlsx") -> None:
        super().__init__(_answered, answer_html, working="Computing the costs ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        self.scenario = scenario
        begun = cost_review(scenario)
        look = control_look("16em", "44em")
        months = months_seen(scenario)
        options = [("all data", UNSAID), *((month, month) for month in months)]
        self.month = dropdown(options, scenario.month or UNSAID, "Month", tooltip="Calendar month", **look)
        teams = [name for name in begun.by_tenant["tenant"] if name != UNALLOCATED_TEAM]
        options = [("all teams", EVERYBODY), *((name, name) for name in teams), ("unallocated", UNALLOCATED_TEAM)]
        self.tenant = dropdown(options, EVERYBODY, "Team", tooltip="Whose cost is shown", **look)
        self._start = scenario.price_usd_per_gpu_hour or (begun.price.value if begun.price else 0.0)
        most, label = max(4 * self._start, 10.0), f"Price ({scenario.currency} per GPU h)"
        told = "Price of a GPU-hour; unchanged: price book or list price"
        self.price = slider(float(self._start), 0.0, most, 0.01, label, told, readout_format=".2f", **look)
        self.price_book = widgets.Text(
            value=scenario.price_book or "", description="Price book (file)", continuous_update=False, **look
        )
        owners = ((name.replace("_", " "), name) for name in OWNERSHIPS)
        options = [("as in the inventory", UNSAID), *owners]
        self.owner = dropdown(options, scenario.ownership or UNSAID, "Ownership", tooltip="Of the GPUs", **look)
        self.months = slider(12, 1, 36, 1, "Commitment horizon (months)", "Months of demand to cover", **look)
        self.risk = slider(0.0, 0.0, 1.0, 0.1, "CVaR (10 %) weight (0 to 1)", "0: mean cost", **look)
        controls = [self.month, self.tenant, self.price, self.price_book, self.owner, self.months, self.risk]
        watch(controls, self.ask_soon)
        told = f"Write the tables of the shown answer to {workbook}"
        locale = scenario.number_locale
        files = files_button(
            lambda: write_cost_workbook(workbook, self._shown(), locale=locale), "Write the workbook", told
        )
        self.panel = widgets.VBox([*controls, files, self.status, self.answer])

    @property
    def question(self) -> CostQuestion:
        """What the controls ask as they stand."""
        moved = self.price.value != self._start
        asked = self.scenario.but(
            month=self.month.value or None,
            ownership=self.owner.value or None,
            price_book=self.price_book.value.strip() or None,
            price_usd_per_gpu_hour=self.price.value if moved else self.scenario.price_usd_per_gpu_hour,
        )
        return CostQuestion(asked, self.tenant.value, self.months.value, self.risk.value)

    def _shown(self) -> CostReview:
        return cost_review(self.question.scenario) if self.newest is None else self.newest.review


def _answered(asked: CostQuestion) -> CostAnswer:
    bought = plan_purchase(asked.scenario, asked.months, risk=asked.risk)
    return CostAnswer(asked, cost_review(asked.scenario), bought, compare_policies(asked.scenario))


def months_seen(scenario: Scenario) -> list[str]:
    """Calendar months of which something was observed, the scenario's own among them.

    Examples
    --------
    >>> months_seen(Scenario())
    ['2026-02']
    """
    trace, zone = load_dataset(scenario.data, columns=("submit_time",)), ZoneInfo(scenario.tz)
    ends = begin_of(trace), end_of(trace) - timedelta(microseconds=1)
    names = months_from(*(f"{time.astimezone(zone):%Y-%m}" for time in ends))
    return sorted({*names, *filter(None, [scenario.month])})


def answer_html(answer: CostAnswer) -> str:
    """Show the lines asked for, what to commit, and the saving as a waterfall with its range."""
    review, asked = answer.review, answer.question
    if review.total is None:
        notes = "".join(f"<p>{escape(text)}</p>" for text in review.missing)
        return f"<p><b>No GPU has a price.</b></p>{notes}"
    whose = asked.tenant.replace("__", "") or "all teams"
    lines = review.costs if asked.tenant == EVERYBODY else review.costs.filter(SubAccountName=asked.tenant)
    by = "SubAccountName" if asked.tenant == EVERYBODY else "x_Bucket"
    shown = lines.group_by(by, maintain_order=True).agg(pl.col("EffectiveCost", "PricingQuantity").sum())
    part = Decimal(str(lines["EffectiveCost"].sum()))
    rows = [
        (name.replace("_", " "), money_text(cost, review.currency), f"{hours:,.1f}")
        for name, cost, hours in [*shown.iter_rows(), ("Total", part, lines["PricingQuantity"].sum())]
    ]
    heads = ["team" if asked.tenant == EVERYBODY else "GPU time", f"cost [{review.currency}]", "GPU-hours"]
    title = f"Cost of {whose}, {review.period[0][:10]} to {review.period[1][:10]}"
    sentence = escape(answer.found.decision.sentence)
    worth = escape(answer.found.decision.financial_impact.basis).replace("\n", "<br>")
    mix = answer.purchase
    ways = ((way, f"{cost:,.0f}") for way, cost in mix.costs.iter_rows())
    bought = ["purchase option", f"cost [{mix.currency}]"]
    of = "" if asked.tenant == EVERYBODY else f" of {money_text(review.total, review.currency)}"
    return (
        f"<div class='gpuplanner-answer'><p><b>{escape(whose)}: {money_text(part, review.currency)}{of} "
        f"{review.currency}</b></p>{table_html(heads, rows, caption=title)}"
        f"<p>{escape(mix.advice_sentence)}</p>{table_html(bought, ways, caption='Cost over simulated demand')}"
        f"<p><b>{sentence}</b></p><p>{worth}</p>"
        "</div>"
    )
