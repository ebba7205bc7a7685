"""Page of ``gpuplanner watch``."""

from __future__ import annotations

import polars as pl

from gpuplanner._version import __version__
from gpuplanner.core.output_column_headings import read_table_headings
from gpuplanner.decision.replanning import BUNDLE_FOLDER, WatchState
from gpuplanner.report import html_page as page
from gpuplanner.report.number_formats_and_glossary import escape_html

WATCH_RUN_HEADINGS = read_table_headings("watch runs")
"""Headings of the table of runs of `gpuplanner watch`, by column."""


def render_watch_page(watch_state: WatchState, *, refresh_s: float | None = None, locale: str = "en") -> str:
    """Render the page of `gpuplanner watch`.

    Parameters
    ----------
    watch_state : WatchState
        State of the watch after its last run.
    refresh_s : float, optional
        Interval after which the browser reloads the page. [s]
    locale : str
        Locale of numbers and dates.

    Returns
    -------
    str
        HTML page.

    Examples
    --------
    >>> state = WatchState(at="2026-02-02T00:00:00Z", sentence="The fleet stays as it is.")
    >>> html = render_watch_page(state, refresh_s=60)
    >>> '<meta http-equiv="refresh" content="60">' in html, "The fleet stays as it is." in html
    (True, True)
    """
    counts = {
        "runs": f"{watch_state.looks:,}",
        "change bundles written": f"{watch_state.packs:,}",
        "failed runs": f"{watch_state.failures:,}",
        "evaluated runs": f"{watch_state.evaluated:,}",
        "realised gain of their change bundles": f"{watch_state.realised:,.0f} GPU-hours",
        "regret of their recommendations against hindsight": f"{watch_state.regret:,.0f} GPU-hours",
    }
    status = [page.paragraph(watch_state.sentence or "No run yet.")]
    if watch_state.pack_at:
        link = f'<a href="{BUNDLE_FOLDER}/steps.csv">Latest change bundle</a>'
        status.append(f"<p>{link}, {escape_html(watch_state.pack_at)}: its changes in order.</p>")
    parts = [page.section("Status", *status, page.value_table(counts, caption="Runs so far"))]
    if watch_state.jobs:
        jobs = pl.DataFrame([vars(job) for job in watch_state.jobs])
        parts.append(page.section("Jobs to move", page.table(jobs, caption="Jobs that outgrow their allocation")))
    if watch_state.past:
        explanation = page.note("A gain covers the hours until the next run, which can change the rest of the plan.")
        formats = {"chance": ".0%"}
        runs = page.table(
            watch_state.runs_table(), caption="Runs, newest first", headings=WATCH_RUN_HEADINGS, formats=formats
        )
        parts.append(page.section("Runs", explanation, runs))
    return page.render_page(
        "\n".join(parts),
        title="Watch",
        subtitle=f"data to {watch_state.at}" if watch_state.at else "no run yet",
        provenance={"gpuplanner": __version__, "data": watch_state.data or "none"},
        refresh_s=refresh_s,
        locale=locale,
    )
