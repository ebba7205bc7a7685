"""A cluster in a notebook: its tables, and a view for each question that a planner asks of them."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from zoneinfo import ZoneInfo

import polars as pl

from gpuplanner import cost as cost_package
from gpuplanner import notebook
from gpuplanner import report as plots
from gpuplanner.core.errors import GpuPlannerError, ScenarioError, TraceFormatError, examples
from gpuplanner.core.output_column_headings import replace_codes_by_text
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.stage_cache_and_data_folders import data_folder
from gpuplanner.core.units_and_number_formats import (
    UNALLOCATED_LABEL,
    UNALLOCATED_TEAM,
    count_text,
    day_text,
    last_day_text,
    money_text,
    percent_text,
    period_text,
    wait_text,
)
from gpuplanner.cost.cost_over_time import ROUNDING_TEXT, SPREAD_GROUPS, mark_partial_weeks, spread_cost
from gpuplanner.cost.monthly_cost_review import JOB_COST_GROUPS, hourly_price_text
from gpuplanner.ingest.dataset_import import add_sources, group_files_by_source
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.notebook.period_panel import PeriodPanel
from gpuplanner.notebook.views_and_panels import View, answer_or_card, or_card
from gpuplanner.report import dataset_sections
from gpuplanner.report import html_page as page
from gpuplanner.report.html_page import HtmlSection
from gpuplanner.report.number_formats_and_glossary import glossary_terms_in
from gpuplanner.usage.dataset_description_and_data_quality import DISAGREEMENT_GROUPS, tabulate_disagreements
from gpuplanner.usage.dataset_explorer import ALL_TENANTS_LABEL, ExploredDataset, explore_dataset, find_dataset_folder
from gpuplanner.usage.grouped_usage import (
    TIME_GROUPS,
    UsageFilter,
    describe_partial_periods,
    group_ledger,
    group_utilization,
    group_waits,
    keep_largest,
    require_groups,
    require_month,
)
from gpuplanner.usage.period_accounts import scenario_ledger
from gpuplanner.usage.planning_history import history, load_dataset, observation_begins_at, observation_ends_at

# What plans and prices is imported when it is first used: tables of a dataset then appear in half the time.
if TYPE_CHECKING:
    from gpuplanner.decision.study import Study
    from gpuplanner.notebook.forecast_and_cost_views import ForecastView, MonthCosts

COST_GROUPS = {
    "team": "tenant", "ownership": "ownership", "bucket": "bucket", "gpu_model": "gpu_model", "end_state": "end",
    "job": "job", **{name: name for name in JOB_COST_GROUPS},
}  # fmt: skip
"""Groups of the cost, and the tables of a cost review that have them."""
_COUNTED_JOBS_TEXT = (
    "A job counts once, with the wait of its first attempt. gp.decide counts every attempt, and joins the sizes 5-8 "
    "and 9+ GPUs to 5+ GPUs where one of them has few jobs."
)
"""Why numbers and sizes of jobs differ from those of a decision."""
MIN_JOBS_ABOVE_PERCENTILE = 5
"""Fewest jobs that must wait longer than a percentile for it to be shown without a remark."""


def open(
    data: str | Path = "sample", *, gpu_model: str | None = None, tz: str = "UTC", smallest_group: int = 0
) -> Cluster:
    """Open a dataset by its name or folder.

    Parameters
    ----------
    data : str or Path
        Folder that ``ingest`` or ``start`` wrote, ``"sample"``, or the name of a public trace (``"fox"``, ``"openb"``,
        ``"philly"``; ``GPUPLANNER_DATA`` names their folder).
    gpu_model : str, optional
        GPU model for which requests are evaluated; default: that of the data.
    tz : str
        IANA zone of hours, days, weeks and months.
    smallest_group : int
        Teams of fewer users are shown together; 0: none.

    Returns
    -------
    Cluster

    Raises
    ------
    TraceFormatError
        If the folder is no dataset.

    Examples
    --------
    >>> open("sample")
    Cluster(sample: 64 GPUs, 11,521 jobs, 1 Feb 2026 to 28 Feb 2026)
    """
    folder = str(data)
    return Cluster(explore_dataset(folder, gpu_model=gpu_model, tz=tz, smallest_group=smallest_group), folder)


def read(*files: str | Path, tz: str | None = None, gpu_model: str | None = None, **options: Any) -> Cluster:  # noqa: ANN401 - of any reader
    r"""Read files of a cluster: accounting, node lists, telemetry, in any order; each source is recognized.

    Parameters
    ----------
    *files : str or Path
        Files, such as the output of ``sacct`` and ``scontrol show node``, or ``kubectl get pods,nodes -o json``.
    tz : str, optional
        IANA zone of times without an offset, and of hours, days, weeks and months; default: UTC.
    gpu_model : str, optional
        GPU model for which requests are evaluated; default: that of the data.
    **options
        Other options of the readers, as for ``gpuplanner ingest``.

    Returns
    -------
    Cluster
        Kept in a temporary folder; :meth:`Cluster.save` keeps it.

    Raises
    ------
    TraceFormatError
        If a file cannot be read; the message says what to do.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "cluster01.csv"
    ...     _ = path.write_text("job_id,submission_time,duration,num_gpu\na,0,7200,8\n")
    ...     read(path).jobs["gpus"].to_list()
    [8.0]
    """
    folder = _temporary_folder()
    add_sources(group_files_by_source(files), folder, tz=tz, **options)
    inbox = explore_dataset(folder, gpu_model=gpu_model, tz=tz or "UTC")
    return Cluster(inbox, folder, title=", ".join(Path(file).name for file in files))


_TEMPORARY_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []
"""Folders of datasets that were read and not saved; they are deleted when Python ends."""


def _temporary_folder() -> str:
    """Make a folder for a dataset that is deleted when Python ends."""
    _TEMPORARY_FOLDERS.append(tempfile.TemporaryDirectory(prefix="gpuplanner-"))
    return str(Path(_TEMPORARY_FOLDERS[-1].name) / "data")


@dataclass(frozen=True, eq=False, repr=False)
class Cluster:
    """Jobs, nodes and telemetry of a cluster as frames, and a view for each question about them.

    :meth:`ledger`, :meth:`waits` and :meth:`utilization` take ``team=``, ``partition=``, ``job_class=``, ``gpus=``,
    ``start=``, ``end=`` and ``month=`` alike. Every view has ``.df`` (a polars frame) and ``.chart()``, and displays
    both.

    - ``inbox``: The opened dataset.
    - ``data``: Its folder or name, as of a :class:`Scenario`.
    - ``title``: What it is called in a notebook; empty: ``data``.
    """

    inbox: ExploredDataset
    data: str
    title: str = ""

    def __repr__(self) -> str:
        begin, end = observation_begins_at(self.inbox.trace), observation_ends_at(self.inbox.trace)
        period = f"{day_text(begin)} to {last_day_text(end.isoformat())}"
        installed = count_text(self.inbox.fleet.gpus, "GPU")
        return f"Cluster({self.title or self.data}: {installed}, {count_text(self.jobs.height, 'job')}, {period})"

    def _repr_html_(self) -> str:
        return self.quality()._repr_html_()

    @property
    def jobs(self) -> pl.DataFrame:
        """Jobs, one row for each attempt, without those in quarantine (columns: docs, tables)."""
        return self.inbox.trace.jobs

    @property
    def samples(self) -> pl.DataFrame | None:
        """Telemetry samples by GPU and time; None without telemetry."""
        return self.inbox.trace.samples

    @cached_property
    def nodes(self) -> pl.DataFrame:
        """Nodes with their GPU model and number of GPUs; inferred from the jobs where no node list was read."""
        return self.inbox.fleet.installed.inventory

    @or_card("GPU-hours", errors=TraceFormatError)
    def ledger(
        self, by: str | Sequence[str] = (), *, team: str | None = None, partition: str | None = None,
        job_class: str | None = None, gpus: tuple[float, float] | None = None, start: str | datetime | None = None,
        end: str | datetime | None = None, month: str | None = None, sort: str = "",
        top: int | tuple[int, int] | None = None,
    ) -> View:  # fmt: skip
        """Show the installed GPU-hours by bucket: used, allocated but idle, no telemetry, unallocated and others.

        Parameters
        ----------
        by : str or sequence of str
            Groups: ``"team"``, ``"user"``, ``"partition"``, ``"project"``, ``"tier"`` (of service),
            ``"job_class"`` (``interactive`` are notebooks), ``"job"``, ``"gpu_model"``, ``"hour_of_day"``,
            ``"weekday"``, ``"day"``, ``"week"``, ``"month"``; default: the section of the report, by month.
        team, partition, job_class : str, optional
            Only these allocated GPU-hours.
        gpus : tuple of two numbers, optional
            Only jobs that request from so many to so many full GPUs, such as ``(1, 2)``. [GPU]
        start, end : str or datetime, optional
            First instant, and first instant after the period.
        month : str, optional
            Calendar month, such as ``"2026-02"``.
        sort : str
            Bucket to sort by and to draw, such as ``"allocated_idle"``, the wasted GPU-hours.
        top : int or tuple of two int, optional
            Rows to keep; ``(20, 3)``: of the first group the 20 with most GPU-hours, and 3 rows of each.

        Returns
        -------
        View
            ``df``: the groups, the GPU-hours of each bucket, and ``gpu_hours``, their sum. [GPU h] Use is null where
            there is no telemetry.

        Raises
        ------
        ScenarioError
            If a group, team or partition is unknown, or the period is empty.

        Examples
        --------
        >>> open("sample").ledger(by=["team", "week"]).df.columns[:3]
        ['team', 'week', 'used']
        """
        usage_filter = UsageFilter(team, partition, job_class, gpus, start, end, month)
        if not by and usage_filter == UsageFilter(team) and not sort and top is None:
            tenant = team or ALL_TENANTS_LABEL
            table = self.inbox.buckets() if team is None else self.inbox.months(tenant)
            return View(dataset_sections.render_ledger_section(self.inbox, tenant), table)
        groups, value = by or "month", sort or "gpu_hours"
        table = group_ledger(self.inbox.trace, groups, usage_filter=usage_filter, tz=self.inbox.tz)
        about = f"{table['gpu_hours'].sum():,.0f} GPU-hours"
        if sort or top is not None:
            table = keep_largest(table, groups, value, top)
        label = "GPU-hours" if value == "gpu_hours" else f"{value.replace('_', ' ').capitalize()} GPU-hours"
        return self._usage_view(table, groups, value, label, usage_filter, about=about)

    @or_card("Queue wait", errors=TraceFormatError)
    def waits(
        self, by: str | Sequence[str] = "job_size", *, percentile: float | None = None, team: str | None = None,
        partition: str | None = None, job_class: str | None = None, gpus: tuple[float, float] | None = None,
        start: str | datetime | None = None, end: str | datetime | None = None, month: str | None = None,
    ) -> View:  # fmt: skip
        """Show the observed queue waits, from when a job is eligible to its first start on GPUs.

        Parameters
        ----------
        by : str or sequence of str
            Groups: ``"job_size"``, ``"team"``, ``"user"``, ``"partition"``, ``"project"``, ``"gpu_model"``,
            ``"tier"``, ``"job_class"``, ``"job"``, or a part of the time as for :meth:`ledger`; with ``"cause"`` the
            hours of waiting by their cause, of the last ``history_days`` of the record (a field of :class:`Scenario`):
            ``insufficient`` (fewer idle GPUs than the job requests), ``fragmented`` (enough idle GPUs, spread over too
            many nodes), ``wrong_layout`` (enough, but not as the MIG instances that it requests), ``queued_behind``
            (it would fit, others are ahead), ``limits`` (its team is at a limit of GPUs) or ``unexplained``.
        percentile : float, optional
            Percentile of the queue wait; default: 0.95. Hours by cause have none. [0-1]
        team, partition, job_class : str, optional
            Only these jobs.
        gpus : tuple of two numbers, optional
            Only jobs that request from so many to so many full GPUs, such as ``(1, 2)``. [GPU]
        start, end : str or datetime, optional
            Only jobs submitted from, and before.
        month : str, optional
            Only jobs submitted in this calendar month, such as ``"2026-02"``.

        Returns
        -------
        View
            ``df``: the groups, ``jobs``, ``jobs_not_started``, ``mean_wait_minutes``, ``p95_wait_minutes``,
            ``max_wait_minutes`` and ``wait_hours``. A job counts once, with the wait of its first
            attempt. By cause: ``jobs``, ``wait_hours`` and ``idle_elsewhere_hours``, in which enough GPUs were idle on
            other nodes than those of ``partition`` (without it, on any nodes).

        Raises
        ------
        ScenarioError
            If a group, team, partition or percentile is not valid, or the period is empty.

        Examples
        --------
        >>> open("sample").waits(by="team", percentile=0.5).df.columns[4]
        'p50_wait_minutes'
        """
        usage_filter = UsageFilter(team, partition, job_class, gpus, start, end, month)
        groups = [by] if isinstance(by, str) else [*by]
        if "cause" in groups:
            if percentile is not None:
                other_groups = [name for name in groups if name != "cause"] or ["job_size"]
                todo = f"Call both: .waits(by={other_groups}, percentile={percentile}) and .waits(by={groups})."
                raise ScenarioError("percentile", "none with 'cause', which sums hours", str(percentile), todo)
            from gpuplanner.decision.explained_waits import group_wait_causes  # tables need no simulator

            table = group_wait_causes(self.scenario(), by, usage_filter=usage_filter)
            causes = glossary_terms_in(", ".join(table["cause"].cast(pl.String).unique()).replace("_", " "))
            note = "; ".join(f"{name}: {meaning}" for name, meaning in causes.items())
            about, since = f"{table['wait_hours'].sum():,.1f} hours of waiting", history(self.scenario()).recent
            how: dict[str, Any] = {"about": about, "note": note, "since": since}
            return self._usage_view(table, by, "wait_hours", "Hours of waiting [h]", usage_filter, **how)
        dataset, tz = self.inbox.trace, self.inbox.tz
        percentile = 0.95 if percentile is None else percentile
        table = group_waits(dataset, by, percentile=percentile, usage_filter=usage_filter, tz=tz)
        n_jobs = table.select(pl.sum("jobs", "jobs_not_started")).sum_horizontal().item()
        note = f"{_few_jobs_text(table, table.columns[: table.columns.index('jobs')], percentile)} {_COUNTED_JOBS_TEXT}"
        how = {"about": count_text(n_jobs, "job"), "note": note}
        name = f"p{100 * percentile:g}"
        return self._usage_view(table, by, f"{name}_wait_minutes", f"{name} queue wait [min]", usage_filter, **how)

    @or_card("Utilization", errors=TraceFormatError)
    def utilization(
        self, by: str | Sequence[str] = "hour_of_day", *, team: str | None = None, partition: str | None = None,
        job_class: str | None = None, gpus: tuple[float, float] | None = None,
        start: str | datetime | None = None, end: str | datetime | None = None, month: str | None = None,
    ) -> View:  # fmt: skip
        """Show the shares of the GPU-hours that were allocated and used.

        Parameters
        ----------
        by : str or sequence of str
            Groups, as for :meth:`ledger`.
        team, partition, job_class : str, optional
            Only these allocated GPU-hours.
        gpus : tuple of two numbers, optional
            Only jobs that request from so many to so many full GPUs, such as ``(1, 2)``. [GPU]
        start, end : str or datetime, optional
            First instant, and first instant after the period.
        month : str, optional
            Calendar month, such as ``"2026-02"``.

        Returns
        -------
        View
            ``df``: the groups, ``gpu_hours``, ``allocated_gpu_hours`` [GPU h], ``allocated_fraction`` of the installed
            GPU-hours and ``used_fraction`` of the allocated ones with telemetry [0-1]; null where not known.

        Raises
        ------
        ScenarioError
            If a group, team or partition is unknown, or the period is empty.

        Examples
        --------
        >>> open("sample").utilization(by="hour_of_day").df.height
        24
        """
        usage_filter = UsageFilter(team, partition, job_class, gpus, start, end, month)
        table = group_utilization(self.inbox.trace, by, usage_filter=usage_filter, tz=self.inbox.tz)
        column, label = "allocated_fraction", "Allocated share of installed GPU-hours"
        if not table[column].count():
            column, label = "used_fraction", "Used share of allocated GPU-hours"
        about = f"{table['gpu_hours'].sum():,.0f} GPU-hours"
        return self._usage_view(table, by, column, f"{label} [0-1]", usage_filter, about=about)

    def _usage_view(
        self, table: pl.DataFrame, by: str | Sequence[str], value: str, label: str, usage_filter: UsageFilter, *,
        since: datetime | None = None, **texts: str,
    ) -> View:  # fmt: skip
        """Make the view of a table of usage as :func:`_grouped_view`, with the filters and the period in words.

        Parameters
        ----------
        table, by, value, label, **texts
            As of :func:`_grouped_view`.
        usage_filter : UsageFilter
            What the table is limited to.
        since : datetime, optional
            First instant, where the table begins later than the filter.
        """
        start, end = usage_filter.period_in(self.inbox.trace, self.inbox.tz)
        period, texts["about"] = (max(start, since or start), end), f"{usage_filter.filter_text}{texts['about']}"
        return _grouped_view(table, by, value, label, period=period, tz=self.inbox.tz, **texts)

    def cost(
        self, by: str | Sequence[str] = "team", *, prices: float | str | Path | None = None, month: str | None = None
    ) -> View:
        """Show the cost of the GPU-hours.

        Parameters
        ----------
        by : str or sequence of str
            ``"team"``, ``"user"``, ``"partition"``, ``"project"``, ``"tier"``, ``"job_class"``, ``"ownership"``,
            ``"bucket"``, ``"gpu_model"``, ``"end_state"`` or ``"job"``; one or more of ``"team"``, ``"gpu_model"``,
            ``"bucket"`` and the parts of the time of :meth:`ledger`, such as ``["team", "week"]``.
        prices : float, str or Path, optional
            Price of a GPU-hour [USD], or a price book (file); default: the list price of the catalog.
        month : str, optional
            Month, such as ``"2026-02"``; default: all of the record.

        Returns
        -------
        View
            ``df``: the group, its GPU-hours, energy and cost, as the command ``cost`` prints them; over time the
            groups, ``days`` observed, ``gpu_hours`` and ``cost``, which sum to the same total.

        Raises
        ------
        ScenarioError
            If a group or a price is not valid. Data that cannot be priced give a card with the reason.

        Examples
        --------
        >>> open("sample").cost(by="team", prices=2.0, month="2026-02").df["cost"].sum()
        Decimal('86016.00')
        """
        names = require_groups(by, list(dict.fromkeys((*COST_GROUPS, *SPREAD_GROUPS))))
        column = COST_GROUPS.get(names[0]) if len(names) == 1 else None
        if column is None and not set(names) <= set(SPREAD_GROUPS):
            expected = f"one group, or several of {', '.join(SPREAD_GROUPS)}"
            raise ScenarioError("by", expected, repr(by), "Give the other groups one at a time.")
        scenario = self.scenario(month=month, **_price_fields(prices))
        return answer_or_card(f"Cost by {' and '.join(names)}", lambda: _cost_view(scenario, names, column))

    def costs(self, *, prices: float | str | Path | None = None, **changes: Any) -> MonthCosts:  # noqa: ANN401 - fields of a scenario
        """Review cost, energy and carbon at `prices`, as of :meth:`cost`.

        ``changes`` are other fields of a :class:`Scenario`, such as ``month``.
        """
        return notebook.costs(self.scenario(**_price_fields(prices) | changes))

    def forecast(self, *, at: str = "") -> ForecastView:
        """Forecast the GPU demand from a cutoff; default: the end of the data."""
        return notebook.forecast_demand(self.scenario(), at=at, installed_gpus=self.inbox.fleet.gpus or None)

    def fair_share(self, rules: Mapping[str, Any] | str | Path) -> View:
        """Show the p95 queue wait of each team and job size under other quotas, preemption and run-time limits.

        The recorded jobs are simulated on today's nodes, under the quotas in the data and under the other rules.

        Parameters
        ----------
        rules : mapping, str or Path
            Content of a ``quotas.yaml``, such as ``{"teams": [{"name": "vision", "gpus": 8, "cohort": "all"}],
            "preemption": {"reclaim": True}, "max_run_hours": 12}``, or such a file.

        Returns
        -------
        View
            ``df``: ``team``, ``job_size``, ``jobs``; ``p95_before_minutes``, ``p95_after_minutes`` and
            ``p95_difference_minutes`` with the 90 % intervals of the last two; ``never_before``, ``never_after``.

        Raises
        ------
        ScenarioError
            If a rule is not valid. Data that cannot be simulated give a card with the reason.
        """
        from gpuplanner.decision.quota_and_placement_comparison import compare_stated_rules
        from gpuplanner.decision.sharing_rules import read_quotas
        from gpuplanner.report.policy_and_team_sections import render_rules_comparison

        if isinstance(rules, Mapping):
            file = Path(_temporary_folder()).with_name("rules.yaml")
            file.write_text(json.dumps(rules, indent=1), encoding="utf-8")
        else:
            file = Path(rules)
        read_quotas(file)  # a mistake in the rules is an error at once

        def draw() -> View:
            comparison = compare_stated_rules(self.scenario(quotas_to_try=str(file)))
            if isinstance(rules, Mapping):  # they have no file that the user knows
                comparison = replace(comparison, after="the other rules")
            waits = comparison.waits
            view = _grouped_view(waits, ["team", "job_size"], "p95_after_minutes", "p95 queue wait [min]")
            return View(HtmlSection(view.section + render_rules_comparison(comparison)), waits)

        return answer_or_card("Queue waits under other rules", draw)

    def scenario(self, **changes: Any) -> Scenario:  # noqa: ANN401 - fields of a scenario
        """Return the scenario of this cluster with other field values."""
        if "month" in changes:
            require_month(changes["month"], self.inbox.trace, self.inbox.tz)
        folder = find_dataset_folder(self.data)
        own_fields = {"data": folder, "tz": self.inbox.tz, "gpu_model": self.inbox.gpu_model}
        return Scenario(**own_fields | _usual_actuator(folder) | changes)

    def save(self, folder: str | Path) -> Path:
        """Write the tables as a dataset folder, which :func:`open` reads again."""
        return write_dataset(self.inbox.trace, folder)

    @or_card("Disagreements of sources", errors=TraceFormatError)
    def quality(self, by: str | Sequence[str] = (), *, against: Cluster | None = None) -> View:
        """Show the data quality and the observed periods; with groups, where sources disagree.

        Parameters
        ----------
        by : str or sequence of str
            Groups of disagreements: ``"check"``, ``"source"``, ``"team"``; default: the quality report.
        against : Cluster, optional
            Another list of the same jobs, such as the pods that ran them.

        Returns
        -------
        View
            ``df``: the findings; or the groups, ``rows`` and the ``gpu_hours`` that they affect [GPU h].

        Raises
        ------
        ScenarioError
            If a group is unknown.
        """
        if not by and against is None:
            report = self.inbox.quality_report
            return View(dataset_sections.render_quality_section(report), report.findings)
        groups = by or DISAGREEMENT_GROUPS
        other_dataset = None if against is None else against.inbox.trace
        table = tabulate_disagreements(self.inbox.trace, groups, other_dataset=other_dataset)
        return _grouped_view(table, groups, "gpu_hours", "GPU-hours affected")

    def demand(self, *, team: str | None = None) -> View:
        """Show the unconstrained demand by MIG profile and by team."""
        tenant = team or ALL_TENANTS_LABEL
        demand = self.inbox.rows_of(self.inbox.demand_series, tenant)
        return View(dataset_sections.render_demand_section(self.inbox, tenant), demand)

    def phases(self, job: str = "") -> View:
        """Show phases, utilization dips, bottleneck and MIG profile of a job; default: the one with most telemetry."""
        jobs = self.inbox.jobs_of()
        has_phases = jobs and self.inbox.fleet.can_be_cut
        table = self.inbox.job(job or jobs[0]).phases if has_phases else pl.DataFrame()
        return View(dataset_sections.render_phase_section(self.inbox, job), table)

    def late_demand(self) -> View:
        """Show whether final phases of jobs need fewer GPUs, as a test on these data."""
        table = pl.DataFrame() if self.inbox.claim is None else self.inbox.claim
        return View(dataset_sections.render_claim_section(self.inbox), table)

    def provenance(self) -> View:
        """Show the sources of the data."""
        return View(dataset_sections.render_provenance_section(self.inbox), self.inbox.quality_report.findings)

    def panel(self) -> PeriodPanel:
        """Make the panel of a period: days are marked in a chart; GPU-hours, demand and teams of them are shown."""
        return PeriodPanel(self.inbox)


def _price_fields(prices: float | str | Path | None) -> dict[str, Any]:
    """Return the fields of a scenario for a price of a GPU-hour or a price book; none for list prices."""
    if isinstance(prices, int | float):
        return {"price_per_gpu_hour": float(prices)}
    return {"price_book": str(prices)} if prices else {}


def _cost_view(scenario: Scenario, groups: Sequence[str], column: str | None) -> View:
    """Make the view of the cost by the group of a column of the cost tables, or by several of :data:`SPREAD_GROUPS`."""
    review = cost_package.cost_review(scenario)
    if review.total is None:
        missing = "; ".join(review.missing) or "no price of this GPU model is known"
        raise ScenarioError("cost", "a price of a GPU-hour", missing, "Give prices=, such as prices=2.50.")
    if column is None:
        table = spread_cost(review.costs, scenario_ledger(scenario), groups, tz=scenario.tz)
    else:
        table = review.table_by(column)
        table = table.rename({table.columns[0]: groups[0]}).cast({groups[0]: pl.String})
    table = table.with_columns(pl.col(pl.String).replace({UNALLOCATED_TEAM: UNALLOCATED_LABEL}))
    rate = f"{hourly_price_text(review.hourly_cost)} {review.currency} per GPU-hour"
    about = f"{money_text(review.total, review.currency)} {review.currency}{review.price_basis} ({rate})"
    start, end = map(datetime.fromisoformat, review.period)
    how: dict[str, Any] = {"period": (start, end), "tz": scenario.tz, "about": about, "note": ROUNDING_TEXT}
    return replace(_grouped_view(table, groups, "cost", f"Cost [{review.currency}]", **how), sums=review.sums)


def _few_jobs_text(table: pl.DataFrame, groups: Sequence[str], percentile: float) -> str:
    """Name the groups whose wait percentile rests on fewer jobs than :data:`MIN_JOBS_ABOVE_PERCENTILE`; else empty."""
    few = table.filter(pl.col("jobs") > 0, pl.col("jobs") * (1 - percentile) < MIN_JOBS_ABOVE_PERCENTILE)
    names = pl.concat_str(pl.col(groups).cast(pl.String).fill_null("-"), separator=" · ")
    texts = few.select(pl.format("{} ({} jobs)", names, "jobs")).to_series().to_list()
    about = f"p{100 * percentile:g} rests on fewer than {MIN_JOBS_ABOVE_PERCENTILE} jobs that waited longer"
    return f"{about}: {examples(texts)}." if texts else ""


def _grouped_view(
    table: pl.DataFrame, by: str | Sequence[str], value: str, label: str, *,
    period: tuple[datetime, datetime] | None = None, tz: str = "UTC", about: str = "", note: str = "",
) -> View:  # fmt: skip
    """Make the view of a table by group: a chart of one of its columns, with the table below.

    Parameters
    ----------
    table : polars.DataFrame
        Table of :mod:`gpuplanner.usage.grouped_usage`, or of costs.
    by : str or sequence of str
        Columns of the groups.
    value : str
        Column that the chart shows.
    label : str
        What it is, with its unit.
    period : tuple of two datetime, optional
        First instant, and first instant after the period, which the subtitle states.
    tz : str
        IANA zone of its weeks and months.
    about : str
        Filters, and total of the table, of the subtitle.
    note : str
        Text below the chart.
    """
    groups = table.columns[: 1 if isinstance(by, str) else len(by)]
    words = " and ".join(group.replace("_", " ").replace("gpu", "GPU") for group in groups)
    title = f"{label.split(' [')[0]} by {words}"
    shown = replace_codes_by_text(table)
    largest = shown.drop_nulls(value).sort(value, descending=True).head(1)
    alt = "There are no values."
    if largest.height:
        names = " · ".join(f"{name}:00" if group == "hour_of_day" else str(name)
                           for group, name in zip(groups, largest.row(0)[: len(groups)], strict=True))  # fmt: skip
        highest, unit = float(largest[value][0]), label.partition(" [")[2].rstrip("]") or "GPU-hours"
        forms = {"min": wait_text(highest), "0-1": percent_text(highest)}
        text = forms.get(unit, f"{highest:,.{0 if highest >= 100 else 2}f} {unit}")
        alt = f"Highest {'at' if {*groups} & {*TIME_GROUPS} else 'for'} {names}: {text}."
    if not {*groups} & {*TIME_GROUPS} and (n_zero := shown.filter(pl.col(value) == 0).height):
        alt += f" Without a bar: {count_text(n_zero, 'row')} of 0."
    partial = ""
    if period is not None:
        alt = f"{about}, {period_text(*(instant.isoformat() for instant in period))}. {alt}"
        partial = describe_partial_periods(table, groups, *(instant.astimezone(ZoneInfo(tz)) for instant in period))
    drawn = plots.plot_groups(mark_partial_weeks(shown), groups, value, label=label)
    chart = page.figure(drawn, title=title, alt=alt, numbers=shown)
    return View(HtmlSection(chart + "".join(map(page.note, filter(None, (partial, note))))), table)


StudySource: TypeAlias = "str | Path | Cluster | Scenario | Study"
"""What a decision is made for: name or folder of a dataset, a cluster, a scenario, or another study."""


def make_scenario(data: StudySource, changes: Mapping[str, Any]) -> Scenario:
    """Make a scenario of a name, a folder, a cluster, a scenario or a study, with other field values.

    For a name, a folder or a cluster the actuator is that of the data.
    """
    if isinstance(data, Cluster):
        return data.scenario(**changes)
    scenario = data if isinstance(data, Scenario) else getattr(data, "scenario", None)
    if isinstance(scenario, Scenario):
        return scenario.but(**changes)
    if not isinstance(data, str | Path):
        example = "write for example 'sample' or gp.Scenario(data='sample')"
        raise TypeError(f"expected a name, a folder, a cluster, a scenario or a study; got {data!r}: {example}")
    name = find_dataset_folder(str(data))
    if "month" in changes:
        require_month(changes["month"], load_dataset(name, columns=("submit_time",)), str(changes.get("tz", "UTC")))
    return Scenario(**{"data": name} | _usual_actuator(name) | dict(changes))


def _usual_actuator(folder: str) -> dict[str, Any]:
    """Return the field `actuator` by the data of a folder; empty if it cannot be read."""
    from gpuplanner.decision.study_pipeline import read_usual_actuator  # planners are not needed to read tables

    with contextlib.suppress(OSError, GpuPlannerError):
        return {"actuator": read_usual_actuator(data_folder(folder))}
    return {}
