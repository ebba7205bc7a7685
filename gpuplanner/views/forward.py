"""What comes, and what it costs, for notebooks and scripts: forecasts, and the review of a month."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from gpuplanner.files.ours import overwriting
from gpuplanner.forecast.candidates import CANDIDATES
from gpuplanner.forecast.record import fold_scores, mean_scores
from gpuplanner.report import cost
from gpuplanner.report import forecast
from gpuplanner.scenario import Scenario
from gpuplanner.study.decision.record import compared
from gpuplanner.study.future.burst import burst_plan, read_burst
from gpuplanner.study.future.cost_review import CostReview, cost_review, price_rows
from gpuplanner.study.future.gpus_wanted import Wanted
from gpuplanner.study.future.purchase import purchase
from gpuplanner.study.future.purchase import refresh as renew
from gpuplanner.study.future.rolling import rolling, wanted
from gpuplanner.study.handover.workbooks import write_cost_workbook
from gpuplanner.views.view import View
from gpuplanner.widgets.ahead import AheadPanel, AheadQuestion
from gpuplanner.widgets.costs import CostPanel

USUAL = AheadQuestion()


@dataclass(frozen=True, eq=False)
class Ahead:
    """What runs now and what will come, seen from one instant; its parts show themselves.

    - ``source``: The jobs, and what is known of them then.
    """

    source: Wanted

    @property
    def remarks(self) -> tuple[str, ...]:
        """What to know of the jobs before trusting a figure."""
        return tuple(self.source.remarks)

    def expected(self, horizon: int = 48) -> View:
        """GPUs expected, split into what runs already and what is to come."""
        return View(forecast.expected(self.source, horizon), self.source.fan(horizon))

    def past_errors(
        self,
        horizon: int = 48,
        *,
        gap: int = 6,
        folds: int = 20,
        price: float = 5.0,
        models: tuple[str, ...] = CANDIDATES,
    ) -> View:
        """How wrong every candidate was from many origins of the past."""
        judged = rolling(self.source, horizon=horizon, gap=gap, folds=folds, models=models, price=price)
        return View(forecast.past_errors(judged), mean_scores(fold_scores(judged)))

    def decision(self, asked: AheadQuestion = USUAL) -> View:
        """The quantile to plan at, by what GPU-hours short cost."""
        shown = forecast.decision(self.source, asked.horizon, asked.gap, asked.price)
        return View(shown, self.source.cost_curve(asked.horizon, asked.gap, asked.price))

    def calendar(self, asked: AheadQuestion = USUAL) -> View:
        """GPUs to plan on each day ahead, with their table."""
        shown = forecast.calendar(self.source, asked.horizon, asked.gap, asked.price, asked.capacity)
        return View(shown, self.source.calendar(asked.horizon, asked.gap, asked.price))

    def controls(self, asked: AheadQuestion = USUAL) -> AheadPanel:
        """Controls of a question, with calendar and decision under them."""
        return AheadPanel(
            asked, lambda moved: self.calendar(moved)._repr_html_() + self.decision(moved)._repr_html_()
        )


def ahead(data: str = "sample", *, at: str = "") -> Ahead:
    """Look ahead from an instant of a trace.

    Parameters
    ----------
    data : str
        Folder written by ``ingest``, or ``"sample"``.
    at : str
        Origin, ISO 8601, UTC if it has no zone; empty: the end of the data.

    Returns
    -------
    Ahead
        ``expected()``, ``past_errors()``, ``decision()``, ``calendar()``: a view each; ``controls()`` moves the last
        two, which answer an :class:`AheadQuestion`.

    Raises
    ------
    TraceFormatError
        If it is no dataset.

    Examples
    --------
    >>> ahead("nowhere")
    Traceback (most recent call last):
        ...
    gpuplanner.errors.TraceFormatError: ...
    """
    instant = datetime.fromisoformat(at) if at else None
    if instant is not None and instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return Ahead(wanted(Scenario(data=data), at=instant))


@dataclass(frozen=True, eq=False)
class MonthCosts:
    """What a month cost; its parts show themselves.

    - ``scenario``, ``found``: What was asked, and what every table sums to.
    """

    scenario: Scenario
    found: CostReview

    def month(self) -> View:
        """The bill by team, reason and unit of work, with energy and carbon."""
        return View(cost.month(self.found), self.found.by_tenant)

    def prices(self) -> View:
        """Every dated price that could hold for the board."""
        return View(cost.prices(self.found), price_rows(self.found))

    def commitments(
        self, months: int = 12, *, risk: float = 0.0, refresh: tuple[str, float] | None = None
    ) -> View:
        """What to buy, reserve or rent over the months to come, and when a newer board pays, of a stated speed."""
        found = purchase(self.scenario, months, risk=risk)
        newer = None if refresh is None else renew(self.scenario, months, *refresh)
        return View(cost.commitments(found, newer), found.costs)

    def burst(self, rules: str = "") -> View:
        """Jobs to send to rented GPUs, by a file of rules."""
        plan = burst_plan(self.scenario, read_burst(rules)) if rules else None
        return View(cost.burst_jobs(plan), pl.DataFrame() if plan is None else plan.jobs)

    def savings(self) -> View:
        """What the recommendation frees, and what that is worth."""
        found = compared(self.scenario)
        return View(cost.savings(found), pl.DataFrame(found.decision.measures))

    def to_excel(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write charge lines, prices and what they sum to as a workbook for finance."""
        with overwriting(overwrite):
            return write_cost_workbook(path, self.found, locale=self.scenario.number_locale)

    def controls(self, workbook: str | Path = "costs.xlsx") -> CostPanel:
        """Controls of month, tenant, prices, owner and terms, with a button that writes the workbook."""
        return CostPanel(self.scenario, workbook)


def costs(scenario: Scenario) -> MonthCosts:
    """Review what a month cost, for whom and why.

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
    gpuplanner.errors.TraceFormatError: ...
    """
    return MonthCosts(scenario, cost_review(scenario))
