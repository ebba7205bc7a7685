"""Views of a cluster's data, forecasts, costs and published claims."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from gpuplanner import report as plots
from gpuplanner.core.output_places import allow_overwriting_within
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.stage_cache import claims_folder
from gpuplanner.cost.cost_review import CostReview, cost_review, price_rows
from gpuplanner.decision.comparison_record import compare_policies
from gpuplanner.decision.purchase_plan import plan_burst, plan_purchase, read_burst_rules
from gpuplanner.decision.purchase_plan import plan_refresh as renew
from gpuplanner.forecast.demand_outlook import lay_out_demand, rolling_backtest
from gpuplanner.forecast.gpu_demand import DemandHistory
from gpuplanner.forecast.model_selection import fold_scores, mean_scores
from gpuplanner.forecast.statistical_models import CANDIDATE_MODELS
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.notebook.forecast_and_cost_panels import AheadPanel, AheadQuestion, CostPanel
from gpuplanner.notebook.usage_panels import ExplorePanel, explore_inbox
from gpuplanner.notebook.views import View
from gpuplanner.report import cost_and_forecast_sections, dataset_sections
from gpuplanner.report import html_page as page
from gpuplanner.report.finance_exports import write_cost_workbook
from gpuplanner.usage.dataset_explorer import ALL_TENANTS_LABEL, ExploredDataset, open_inbox

SHOWN_METRICS = 4
"""Metrics in the chart: two completion times and two utilizations."""


def twenty_jobs() -> View:
    """Stored results of ``benchmarks/claims/twenty_jobs.py``: the claim of twenty jobs on eight H100.

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
    metrics = policies["metric"].unique(maintain_order=True).head(SHOWN_METRICS)
    shown = policies.filter(pl.col("metric").is_in(metrics.to_list()))
    chart = page.figure(
        plots.plot_policies(shown),
        title="Completion time and utilization by policy",
        alt=plots.policies_text(shown),
        numbers=policies,
    )
    table = page.table(figures, caption="Claimed and measured")
    return View(page.section("Twenty jobs on eight H100", table, chart), policies)


USUAL = AheadQuestion()


@dataclass(frozen=True, eq=False)
class Ahead:
    """What runs now and what will come, seen from one instant; its parts show themselves.

    - ``source``: The jobs, and what is known of them then.
    """

    source: DemandHistory

    @property
    def remarks(self) -> tuple[str, ...]:
        """What to know of the jobs before trusting a figure."""
        return tuple(self.source.remarks)

    def expected(self, horizon: int = 48) -> View:
        """GPUs expected, split into what runs already and what is to come."""
        return View(cost_and_forecast_sections.expected(self.source, horizon), self.source.fan(horizon))

    def past_errors(
        self,
        horizon: int = 48,
        *,
        gap: int = 6,
        cutoffs: int = 20,
        price: float = 5.0,
        models: tuple[str, ...] = CANDIDATE_MODELS,
    ) -> View:
        """How wrong every candidate was from many origins of the past."""
        judged = rolling_backtest(self.source, horizon=horizon, gap=gap, cutoffs=cutoffs, models=models, price=price)
        return View(cost_and_forecast_sections.past_errors(judged), mean_scores(fold_scores(judged)))

    def decision(self, asked: AheadQuestion = USUAL) -> View:
        """The quantile to plan at, by what GPU-hours short cost."""
        shown = cost_and_forecast_sections.decision(self.source, asked.horizon, asked.gap, asked.price)
        return View(shown, self.source.cost_curve(asked.horizon, asked.gap, asked.price))

    def calendar(self, asked: AheadQuestion = USUAL) -> View:
        """GPUs to plan on each day ahead, with their table."""
        shown = cost_and_forecast_sections.calendar(self.source, asked.horizon, asked.gap, asked.price, asked.capacity)
        return View(shown, self.source.plan_calendar(asked.horizon, asked.gap, asked.price))

    def controls(self, asked: AheadQuestion = USUAL) -> AheadPanel:
        """Controls of a question, with calendar and decision under them."""
        parts = (self.calendar, self.decision)
        return AheadPanel(asked, lambda moved: "".join(part(moved)._repr_html_() for part in parts))


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
    gpuplanner.core.errors.TraceFormatError: ...
    """
    instant = datetime.fromisoformat(at) if at else None
    if instant is not None and instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return Ahead(lay_out_demand(Scenario(data=data), at=instant))


@dataclass(frozen=True, eq=False)
class MonthCosts:
    """What a month cost; its parts show themselves.

    - ``scenario``, ``found``: What was asked, and what every table sums to.
    """

    scenario: Scenario
    found: CostReview

    def month(self) -> View:
        """The bill by team, reason and unit of work, with energy and carbon."""
        return View(cost_and_forecast_sections.month(self.found), self.found.by_tenant)

    def prices(self) -> View:
        """Every dated price that could hold for the board."""
        return View(cost_and_forecast_sections.prices(self.found), price_rows(self.found))

    def commitments(self, months: int = 12, *, risk: float = 0.0, refresh: tuple[str, float] | None = None) -> View:
        """What to buy, reserve or rent over the months to come, and when a newer board pays, of a stated speed."""
        found = plan_purchase(self.scenario, months, risk=risk)
        newer = None if refresh is None else renew(self.scenario, months, *refresh)
        return View(cost_and_forecast_sections.commitments(found, newer), found.costs)

    def burst(self, rules: str = "") -> View:
        """Jobs to send to rented GPUs, by a file of rules."""
        plan = plan_burst(self.scenario, read_burst_rules(rules)) if rules else None
        return View(cost_and_forecast_sections.burst_jobs(plan), pl.DataFrame() if plan is None else plan.jobs)

    def savings(self) -> View:
        """What the recommendation frees, and what that is worth."""
        found = compare_policies(self.scenario)
        return View(cost_and_forecast_sections.savings(found), pl.DataFrame(found.decision.measures))

    def to_excel(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write charge lines, prices and what they sum to as a workbook for finance."""
        with allow_overwriting_within(overwrite):
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
    gpuplanner.core.errors.TraceFormatError: ...
    """
    return MonthCosts(scenario, cost_review(scenario))


def explore(
    data: str | Dataset = "sample", *, gpu_model: str | None = None, tz: str = "UTC", smallest_group: int = 0
) -> SeenTrace:
    """Look into a trace: quality, hours, demand, phases, claims.

    Parameters
    ----------
    data : str or Dataset
        Folder written by ``ingest``, ``"sample"``, the name of a public trace, or what :func:`gpuplanner.read` gave.
    gpu_model : str, optional
        Board that requests are read for; default: the data's own.
    tz : str
        Zone of days and months.
    smallest_group : int
        Fewest people of a tenant that is shown by itself.

    Returns
    -------
    SeenTrace
        ``quality()``, ``ledger()``, ``demand()``, ``phases()``, ``claim()``, ``provenance()``: a view each.

    Raises
    ------
    TraceFormatError
        If it is no dataset.

    Examples
    --------
    >>> explore("sample").ledger().frame().columns[:2]
    ['bucket', 'gpu_hours']
    """
    box = open_inbox(data, gpu_model=gpu_model, tz=tz, smallest_group=smallest_group)
    return SeenTrace(box, data if isinstance(data, str) else "the trace")


@dataclass(frozen=True, eq=False)
class SeenTrace:
    """A trace whose parts show themselves.

    - ``box``, ``name``: What was opened, and from where.
    """

    box: ExploredDataset
    name: str

    def _repr_html_(self) -> str:
        return self.quality()._repr_html_()

    def quality(self) -> View:
        """What is wrong with the data, and which time was seen."""
        return View(dataset_sections.quality(self.box.quality_report), self.box.quality_report.findings)

    def ledger(self, tenant: str = ALL_TENANTS_LABEL) -> View:
        """Where the GPU-time went."""
        table = self.box.buckets() if tenant == ALL_TENANTS_LABEL else self.box.months(tenant)
        return View(dataset_sections.ledger(self.box, tenant), table)

    def demand(self, tenant: str = ALL_TENANTS_LABEL) -> View:
        """What was wanted, by profile and by tenant."""
        return View(dataset_sections.demand(self.box, tenant), self.box.rows_of(self.box.demand_series, tenant))

    def phases(self, job: str = "") -> View:
        """Phases, dips, signature and slice of one job; by default of the one with most telemetry."""
        known = self.box.jobs_of()
        seen = known and self.box.fleet.can_be_cut
        table = self.box.job(job or known[0]).phases if seen else pl.DataFrame()
        return View(dataset_sections.phases(self.box, job), table)

    def claim(self) -> View:
        """Whether late phases need fewer GPUs."""
        return View(dataset_sections.claim(self.box), pl.DataFrame() if self.box.claim is None else self.box.claim)

    def provenance(self) -> View:
        """Where the numbers come from."""
        return View(dataset_sections.provenance(self.box), self.box.quality_report.findings)

    def panel(self) -> ExplorePanel:
        """Controls to look around: trace, tenant, job and view."""
        return explore_inbox(self.box, dataset_sections.VIEWS, data=self.name)
