"""The quality of data as read: a section, a page of its own, and a picture."""

from __future__ import annotations

from datetime import UTC, datetime

from gpuplanner import plot
from gpuplanner._version import __version__
from gpuplanner.report import page
from gpuplanner.report.picture import roomy, told_svg
from gpuplanner.report.section import Section
from gpuplanner.study.past.quality import DataQuality, by_figure


def quality(found: DataQuality) -> Section:
    """What is wrong with the data, and which time was seen."""
    facts = found.facts
    refused = (
        f"{facts['rows_rejected']:,} rejected with a reason" if facts["rows_rejected"] else "none rejected"
    )
    read = (
        f"Source {facts['source']}: {facts['rows_in']:,} rows read, {facts['rows_kept']:,} kept, {refused}. "
        "Look here first: a figure is as good as its rows."
    )
    drawn = [
        page.figure(
            roomy(plot.plot_quality(by_figure(found.findings))),
            title="What is wrong, and which figures it moves",
            alt=plot.quality_text(found.findings),
            table=found.findings,
        ),
        page.figure(
            roomy(plot.plot_intake(found.intake)),
            title="Jobs submitted and rows rejected, by day",
            alt=f"{plot.intake_text(found.intake)} Look for days without jobs: an outage, or rows that are missing.",
            table=found.intake,
        ),
    ]
    seen = plot.coverage_text(found.coverage)
    if found.coverage is None:
        return Section(page.section("Data quality", page.paragraph(read), *drawn, page.note(seen)))
    covered = page.figure(
        roomy(plot.plot_coverage(found.coverage)),
        title="Telemetry: observed share of each node's time",
        alt=f"{seen} A full bar is time seen whole, a cross time without a reading; "
        "blank is before the first or after the last reading.",
        table=found.coverage,
    )
    return Section(page.section("Data quality", page.paragraph(read), *drawn, covered))


def quality_page(found: DataQuality, *, title: str) -> str:
    """A page of its own about the quality of the data, as :func:`gpuplanner.report.page.render_page` makes it."""
    facts = found.facts
    span = [facts[side] for side in ("span_start", "span_end")]
    subtitle = "without times" if None in span else f"{_minute(span[0])} to {_minute(span[1])} UTC"
    origin = {"source": str(facts["source"]), "gpuplanner": __version__}
    origin |= {each["name"]: each["sha256"] for each in found.provenance.get("files", [])}
    return page.render_page(quality(found).html, title=title, subtitle=subtitle, provenance=origin)


def _minute(instant: str) -> str:
    """An instant as people read it, in UTC."""
    return f"{datetime.fromisoformat(instant).astimezone(UTC):%Y-%m-%d %H:%M}"


def quality_svg(found: DataQuality) -> str:
    """One picture of all that is drawn of the quality of the data.

    Examples
    --------
    >>> from gpuplanner.study.past.quality import data_quality
    >>> quality_svg(data_quality("sample"))[:4]
    '<svg'
    """
    charts = [plot.plot_quality(by_figure(found.findings)), plot.plot_intake(found.intake)]
    if found.coverage is not None:
        charts.append(plot.plot_coverage(found.coverage))
    words = [
        plot.quality_text(found.findings),
        plot.intake_text(found.intake),
        plot.coverage_text(found.coverage),
    ]
    return told_svg(charts, words)
