"""Panel of a period: days are marked in a chart, and the tables below show these days."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl

from gpuplanner import report as plots
from gpuplanner.core.libraries_plugins_and_workers import import_optional
from gpuplanner.core.output_column_headings import replace_codes_by_text
from gpuplanner.core.units_and_number_formats import UNALLOCATED_LABEL, day_text
from gpuplanner.notebook.section_panels import SectionPanel, brush_chart
from gpuplanner.notebook.views_and_panels import button, control_style, dropdown, on_change
from gpuplanner.report import html_page as page
from gpuplanner.report.html_page import HtmlSection
from gpuplanner.usage.dataset_explorer import ALL_TENANTS_LABEL, ExploredDataset
from gpuplanner.usage.gpu_hour_ledger import ALLOCATED_BUCKETS, UNALLOCATED_TENANT_LABEL, hours_by_bucket
from gpuplanner.usage.planning_history import observation_begins_at, observation_ends_at

BRUSH_NAME = "days"
"""Name of the selection of days in the chart."""


@dataclass(frozen=True)
class Period:
    """Days of a team; ``end`` is the first instant after the last day."""

    start: datetime
    end: datetime
    team: str


@dataclass(frozen=True, eq=False)
class PeriodTables:
    """GPU-hours, demand and teams of a period.

    - ``period``: The period.
    - ``ledger``: ``bucket, gpu_hours, share``. [GPU h]
    - ``demand``: ``profile, mean_instances, p95_instances, peak_instances``.
    - ``teams``: ``team, allocated_gpu_hours, used_fraction``: null without telemetry. [GPU h]
    """

    period: Period
    ledger: pl.DataFrame
    demand: pl.DataFrame
    teams: pl.DataFrame


class PeriodPanel(SectionPanel[Period, PeriodTables]):
    """Panel of the GPU-hours by day: dragging over days shows their ledger, demand and teams.

    Parameters
    ----------
    dataset : ExploredDataset
        Opened dataset.

    Attributes
    ----------
    start, end : ipywidgets.DatePicker
        First and last day, also set by dragging in the chart.
    team : ipywidgets.Dropdown
        Team whose GPU-hours and demand are shown.
    newest : PeriodTables or None
        Tables that are shown.

    Examples
    --------
    >>> from gpuplanner.usage.dataset_explorer import explore_dataset
    >>> panel = PeriodPanel(explore_dataset("sample"))
    >>> panel.start.value, panel.end.value = date(2026, 2, 2), date(2026, 2, 8)
    >>> tables = panel.ask().result()
    >>> round(tables.ledger["gpu_hours"].sum()), tables.period.end.day  # a week of 64 GPUs
    (10752, 9)
    """

    at_once = True

    def __init__(self, dataset: ExploredDataset) -> None:
        super().__init__(self._tabulate, period_section, working="Summing these days ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        self.dataset, self._zone = dataset, ZoneInfo(dataset.tz)
        self._first = observation_begins_at(dataset.trace).astimezone(self._zone).date()
        last = observation_ends_at(dataset.trace) - timedelta(microseconds=1)
        self._last = last.astimezone(self._zone).date()
        style = control_style("6em", "20em")
        self.start = widgets.DatePicker(value=self._first, description="First day", **style)
        self.end = widgets.DatePicker(value=self._last, description="Last day", **style)
        self.team = dropdown([ALL_TENANTS_LABEL, *dataset.tenants], ALL_TENANTS_LABEL, "Team", **style)
        reset = button("All days", "Show the whole record", self._show_all_days, layout={"width": "8em"})
        on_change([self.start, self.end, self.team], self.ask_soon)
        spec = plots.chart_spec(plots.plot_ledger(dataset.gpu_hour_ledger, tz=dataset.tz))
        self.chart = brush_chart(spec, BRUSH_NAME)
        self.chart.selections.observe(self._on_brush, [BRUSH_NAME])
        row = widgets.HBox([self.start, self.end, self.team, reset], layout={"flex_flow": "row wrap"})
        hint = widgets.HTML(
            "Drag over days of the chart, or set them here; <code>.newest</code> of the panel has the tables."
        )
        self.panel = widgets.VBox([self.chart, hint, row, self.status, self.answer.box])

    @property
    def question(self) -> Period:
        """Days and team of the controls."""
        return Period(self._midnight(self.start.value), self._midnight(self.end.value, days=1), self.team.value)

    def find_faults(self) -> list[tuple[Any, str]]:
        """List the days that are missing, outside the record, or in the wrong order."""
        record = f"a day from {self._first} to {self._last}"
        faults = [
            (control, f"{control.description}: expected {record}, got {control.value}")
            for control in (self.start, self.end)
            if control.value is None or not self._first <= control.value <= self._last
        ]
        if not faults and self.end.value < self.start.value:
            faults.append((self.end, f"Last day: expected {self.start.value} or later, got {self.end.value}"))
        return faults

    def _midnight(self, day: date, days: int = 0) -> datetime:
        """Return the start of a day in the zone of the dataset, or of one some days later."""
        return datetime.combine(day + timedelta(days=days), datetime.min.time(), self._zone).astimezone(UTC)

    def _show_all_days(self) -> None:
        """Set the controls to the whole record."""
        self.start.value, self.end.value = self._first, self._last

    def _on_brush(self, change: Any) -> None:  # noqa: ANN401 - a change of a trait
        """Set the days to those that were marked in the chart."""
        marked = change["new"].value.get("start") if change["new"].value else None
        if not marked:
            self._show_all_days()
            return
        # Times of the chart are local times that are written as if they were UTC.
        first, last = (datetime.fromtimestamp(instant / 1000, UTC).date() for instant in (marked[0], marked[-1] - 1))
        self.start.value, self.end.value = max(first, self._first), min(last, self._last)

    def _tabulate(self, period: Period) -> PeriodTables:
        """Sum GPU-hours, demand and teams of the period."""
        dataset = self.dataset
        days: dict[str, Any] = {"lower_bound": period.start, "upper_bound": period.end, "closed": "left"}
        ledger = dataset.gpu_hour_ledger.filter(pl.col("hour").is_between(**days))
        demand = dataset.rows_of(dataset.demand_series, period.team).filter(pl.col("ds").is_between(**days))
        hours = (
            ledger.filter(pl.col("bucket").cast(pl.String).is_in(ALLOCATED_BUCKETS))
            .group_by(
                team=pl.col("tenant").cast(pl.String).replace({UNALLOCATED_TENANT_LABEL: UNALLOCATED_LABEL}),
                maintain_order=True,
            )
            .agg(
                allocated_gpu_hours=pl.col("gpu_hours").sum(),
                used=pl.col("gpu_hours").filter(pl.col("bucket") == "used").sum(),
                measured=pl.col("gpu_hours").filter(pl.col("bucket") != "no_telemetry").sum(),
            )
        )
        used = pl.when(pl.col("measured") > 0).then(pl.col("used") / pl.col("measured"))
        teams = hours.select("team", "allocated_gpu_hours", used_fraction=used)
        instances = (
            demand.group_by("profile", "ds", maintain_order=True)
            .agg(pl.col("y").sum())
            .group_by("profile", maintain_order=True)
        )
        profiles = instances.agg(
            mean_instances=pl.col("y").mean(),
            p95_instances=pl.col("y").quantile(0.95),
            peak_instances=pl.col("y").max(),
        )
        return PeriodTables(
            period,
            hours_by_bucket(dataset.rows_of(ledger, period.team)),
            profiles.sort("mean_instances", "profile", descending=[True, False]),
            teams.sort("allocated_gpu_hours", "team", descending=[True, False]),
        )


def period_section(tables: PeriodTables) -> HtmlSection:
    """Render the tables of a period."""
    period = tables.period
    last = period.end - timedelta(microseconds=1)
    days = f"{day_text(period.start)} to {day_text(last)}, {period.team}"
    caption, formats = f"GPU-hours by bucket, {days}", {"gpu_hours": ",.0f"}
    ledger = page.table(replace_codes_by_text(tables.ledger), caption=caption, formats=formats)
    teams = page.table(tables.teams, caption="Allocated GPU-hours by team", formats={"used_fraction": ".1%"})
    demand = page.table(tables.demand, caption="Demand by profile if no job waited [instances]")
    return page.section("These days", page.pair(ledger, teams), demand)
