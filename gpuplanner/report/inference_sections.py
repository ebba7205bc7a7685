"""Page section on inference services: replicas by hour, GPUs beside jobs, and cost by model and team."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner import report as plots
from gpuplanner._version import __version__
from gpuplanner.core.output_column_headings import read_table_headings
from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.inference_answers import InferenceAnswer, describe_service_costs, tabulate_services
from gpuplanner.ingest.quality_report import QualityWarning
from gpuplanner.planner.replica_schedule import REPLICA_HOUR_REASONS
from gpuplanner.report import chart_theme as theme
from gpuplanner.report import html_page as page
from gpuplanner.report.chart_theme import frame_chart, make_chart, make_tooltips
from gpuplanner.report.first_screen import render_warnings
from gpuplanner.report.html_page import HtmlSection

MAX_CHARTED_SERVICES = 6
"""Services with a chart of their replicas: those with most requests."""
PLANNED_LABEL, NEEDED_LABEL = "planned", "needed in hindsight"
"""Legend labels of the replicas of a service in an hour: as planned, and the fewest that its requests needed."""
_REASON_HEADINGS = read_table_headings("replica reasons")
"""Column headings of the parts of the cost of replicas."""
_ANSWER_COLUMNS = (
    "name", "model", "team", "device", "replicas_min", "replicas_max", "ttft_p99_ms", "ttft_target_ms", "itl_p95_ms",
    "itl_target_ms", "gpu_hours", "peak_gpu_hours", "hindsight_gpu_hours",
)  # fmt: skip
"""Columns of the table of services on the page."""


@frame_chart("Replicas by hour", "time", "planned", "needed", empty="The trace has no hour.")
def plot_replicas(hours: pl.DataFrame) -> ChartType:
    """Plot the planned replicas of a service by hour, and the fewest that its requests needed.

    Parameters
    ----------
    hours : polars.DataFrame
        ``time, planned, needed``, one row an hour.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> frame = pl.DataFrame({"time": [datetime(2026, 3, 2, tzinfo=UTC)], "planned": [2], "needed": [1]})
    >>> plot_replicas(frame).to_dict()["title"]
    'Replicas by hour'
    """
    labels = {"planned": PLANNED_LABEL, "needed": NEEDED_LABEL}
    last = hours.tail(1).with_columns(pl.col("time").dt.offset_by("1h"))
    rows = pl.concat([hours, last]).unpivot(["planned", "needed"], index="time", variable_name="kind", value_name="n")
    rows = rows.with_columns(pl.col("kind").replace_strict(labels))
    peak = max(*hours["planned"].to_list(), *hours["needed"].to_list(), 1)
    ticks = list(range(0, peak + 1, -(-peak // 5)))
    colours = {PLANNED_LABEL: theme.SKY, NEEDED_LABEL: theme.VERMILION}
    chart: alt.Chart = (
        make_chart(rows)
        .mark_line(interpolate="step-after")
        .encode(
            x=theme.utc_axis(rows, "time"),
            y=alt.Y("n:Q", title="replicas", scale=alt.Scale(zero=True), axis=alt.Axis(values=ticks, format=",d")),
            color=alt.Color("kind:N", title=None, scale=theme.colour_scale(colours, list(colours))),
            # The planned line is broad, so that it shows below an equal one.
            strokeWidth=alt.StrokeWidth("kind:N", title=None, scale=alt.Scale(domain=list(colours), range=[6, 1.5])),
            tooltip=make_tooltips(kind="replicas", n=("replicas", ",d")),
        )
    )
    return theme.finish(chart, height=200)


def render_services_page(scenario: Scenario, answer: InferenceAnswer, warnings: Sequence[QualityWarning]) -> str:
    """Render the page of services that are planned without a list of jobs."""
    section = render_services_section(answer, tabulate_services(scenario))
    return page.render_page(
        render_warnings(warnings) + section, title=f"Inference services · {scenario.name}",
        subtitle="planned without a list of jobs", decision=answer.sentence, locale=scenario.number_locale,
        provenance={"data": Path(scenario.data).name, "made by": f"gpuplanner {__version__}"},
    )  # fmt: skip


def render_services_section(answer: InferenceAnswer | None, tables: Mapping[str, pl.DataFrame]) -> HtmlSection:
    """Render the inference services of a study; empty without services.

    Parameters
    ----------
    answer : InferenceAnswer, optional
        Answers on the services.
    tables : mapping of str to polars.DataFrame
        Tables of the study, of which :func:`~gpuplanner.decision.inference_answers.tabulate_services` makes some.
    """
    if answer is None or "service_hours" not in tables:
        return HtmlSection("")
    parts = [page.paragraph(answer.sentence)]
    requests = dict(
        tables["service_hours"].group_by("service", maintain_order=True).agg(pl.col("requests").sum()).iter_rows()
    )
    charted = sorted(answer.services, key=lambda row: -requests.get(row.name, 0))[:MAX_CHARTED_SERVICES]
    for row in answer.services:
        parts += [page.paragraph(text) for text in (row.sentence, row.zero_text, row.backtest_text)]
        if row in charted:
            hours = tables["service_hours"].filter(pl.col("service") == row.name)
            parts.append(page.figure(
                plots.plot_replicas(hours), title=f"Replicas of {row.name} by hour of the trace",
                alt=f"{hours.height:,} hours; each hour is planned with what such hours needed, and no fewer than "
                f"{row.replicas_min:,}.",
                numbers=hours.drop("service"),
            ))  # fmt: skip
    rows = pl.DataFrame([{name: getattr(row, name) for name in _ANSWER_COLUMNS} for row in answer.services])
    caption = "Services: replicas, simulated latencies with targets, and GPU-hours of the trace"
    parts.append(page.table(rows, caption=caption))
    parts += _render_service_costs(tables)
    notes = [f"{row.name}: {'; '.join(row.assumptions)}." for row in answer.services if row.assumptions]
    parts += [page.note(text) for text in notes]
    return page.section("Inference services", *parts)


def _render_service_costs(tables: Mapping[str, pl.DataFrame]) -> list[str]:
    """Render the cost of services by model and team, and by what their replicas are held for."""
    if "service_costs" not in tables:
        return [page.note("Cost of services: the price of a GPU-hour is not known (--set price_per_gpu_hour=…).")]
    lines, tokens = tables["service_costs"], tables["token_costs"]
    currency = tokens["currency"][0]
    by_team = page.table(
        tokens.drop("currency"),
        caption=f"Cost of the trace by model and team [{currency}]; the rows sum to the cost of all GPU-hours that "
        "services have. Idle: all but computing",
        headings=read_table_headings("service costs"),
    )
    reasons = lines.pivot("reason", index="service", values="cost", aggregate_function="sum")
    by_reason = page.table(
        reasons.select("service", *REPLICA_HOUR_REASONS),
        caption=f"Cost of the GPUs allocated to services, by reason [{currency}]",
        headings=_REASON_HEADINGS,
    )
    return [page.paragraph(describe_service_costs(lines)), by_team, by_reason]
