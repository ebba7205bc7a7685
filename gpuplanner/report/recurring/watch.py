"""The page of a watch: what was found, which jobs outgrow what they hold, and what came of earlier looks."""

from __future__ import annotations

import polars as pl

from gpuplanner._version import __version__
from gpuplanner.report import page
from gpuplanner.report.words import safe
from gpuplanner.study.recurring.watched import Watched

GPU_HOURS = {
    "at": "look", "gain": "gain expected [GPU h]", "chance": "chance", "realised": "gain that came [GPU h]",
    "regret": "regret against hindsight [GPU h]",
}  # fmt: skip


def watch_page(state: Watched, *, refresh_s: float | None = None, locale: str = "en") -> str:
    """The page of a watch; it asks for itself again every so many seconds.

    Examples
    --------
    >>> html = watch_page(Watched(at="2026-02-02T00:00:00Z", sentence="The fleet stays as it is."), refresh_s=60)
    >>> '<meta http-equiv="refresh" content="60">' in html, "The fleet stays as it is." in html
    (True, True)
    """
    counts = {
        "looks": f"{state.looks:,}",
        "change packs written": f"{state.packs:,}",
        "looks and readings that failed": f"{state.failures:,}",
        "looks whose hours are over": f"{state.judged:,}",
        "gain of their packs, by what came": f"{state.realised:,.0f} GPU-hours",
        "regret of their advice against hindsight": f"{state.regret:,.0f} GPU-hours",
    }
    pack = [
        f'<p><a href="pack/steps.csv">The last pack</a>, of {safe(state.pack_at)}: its changes in order.</p>'
    ]
    found = [page.paragraph(state.sentence or "Nothing was looked at yet."), *(pack if state.pack_at else [])]
    parts = [page.section("Found", *found, page.answers(counts, caption="Looks so far"))]
    if state.jobs:
        jobs = pl.DataFrame([vars(one) for one in state.jobs])
        parts.append(
            page.section("Jobs to move", page.table(jobs, caption="Running jobs that outgrow what they hold"))
        )
    if state.past:
        about = page.note(
            "Gains are of the hours to the look after: what a plan does behind that can still be done then."
        )
        looks = page.table(
            state.table(), caption="Looks, the last one first", headings=GPU_HOURS, formats={"chance": ".0%"}
        )
        parts.append(page.section("Looks", about, looks))
    return page.render_page(
        "\n".join(parts),
        title="Watch",
        subtitle=f"data to {state.at}" if state.at else "no look yet",
        provenance={"gpuplanner": __version__, "data": state.data or "none"},
        refresh_s=refresh_s,
        locale=locale,
    )
