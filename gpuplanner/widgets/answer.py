"""An answer of the what-if panel as it looks: the decision, the frontier, and the figures beside those before."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from html import escape

import polars as pl

from gpuplanner import plot
from gpuplanner.scenario import Scenario
from gpuplanner.study.decision.frames import frontier_frame, target_in_words
from gpuplanner.study.decision.policies import SHORT
from gpuplanner.study.decision.record import Comparison, PolicyRow
from gpuplanner.units import NO_FIGURE, day_text, figure_text
from gpuplanner.widgets.background import table_html

LOOK = """<style>
.gpuplanner-answer picture img { max-width: 100%; height: auto; }
.gpuplanner-answer .stale { opacity: .45; }
.gpuplanner-answer table { border-collapse: collapse; margin: .6em 0; }
.gpuplanner-answer :is(th, td) { padding: .2em .5em; text-align: right; vertical-align: top; }
.gpuplanner-answer td { overflow-wrap: anywhere; min-width: 6em; }
.gpuplanner-answer tbody th { text-align: left; font-weight: normal; }
.gpuplanner-answer tbody tr:nth-child(odd) { background: rgba(128, 128, 128, .08); }
</style>"""


@dataclass(frozen=True)
class PanelAnswer:
    """What was found for a scenario, and how it is looked at.

    - ``scenario``: As it was asked.
    - ``found``: All ways, and the decision.
    - ``policy``: Whose figures are shown; None: the recommended way's.
    - ``picture``: From :func:`frontier_html`.
    """

    scenario: Scenario
    found: Comparison
    policy: str | None = None
    picture: str = ""

    @property
    def row(self) -> PolicyRow | None:
        """The figures of the way that is shown; None if it was not compared."""
        return self.found.row(self.policy or self.found.winner)


def frontier_html(found: Comparison, pinned: Comparison) -> str:
    """The frontier, with the ways of the pinned answer as outlines."""
    frame = frontier_frame(found, None if pinned == found else pinned)
    return _picture(tuple(frame.iter_rows()), tuple(frame.schema.items()), found.minutes, found.winner)


@functools.lru_cache(maxsize=16)
def _picture(
    points: tuple[tuple[object, ...], ...],
    columns: tuple[tuple[str, pl.DataType], ...],
    minutes: float,
    winner: str,
) -> str:
    """Draw points of a frontier; prices and owners move none, so that nothing is drawn anew for them."""
    frame = pl.DataFrame(points, schema=dict(columns), orient="row")
    return plot.picture_html(plot.plot_frontier(frame, limit=minutes, best=winner, names=SHORT))


def answer_html(answer: PanelAnswer, pinned: PanelAnswer, *, stale: bool = False) -> str:
    """The decision, the frontier, and the figures beside those of the answer that is pinned.

    A picture that is ``stale`` is pale: it is still that of the answer before.
    """
    columns = {"as it stands": _figures(answer)}
    if (old := _figures(pinned)) != columns["as it stands"]:
        columns = {"pinned": old, "what if": _figures(answer)}
    names = list(dict.fromkeys(name for figures in columns.values() for name in figures))
    rows = ([name, *(figures.get(name, NO_FIGURE) for figures in columns.values())] for name in names)
    one, kind = answer.found.decision, "stale" * stale
    steps = "".join(f"<li>{escape(step.text)}</li>" for step in one.next_steps)
    to_do = f"<details><summary>Next steps</summary><ol>{steps}</ol></details>" if steps else ""
    sure, worth = " ".join(one.how_sure), escape(one.worth.basis).replace("\n", "<br>")
    return (
        f"{LOOK}<div class='gpuplanner-answer'><p><b>{escape(one.sentence)}</b></p>"
        f"<p>{escape(target_in_words(answer.found))}</p><div class='{kind}'>{answer.picture}</div>"
        f"{table_html(['', *columns], rows)}{to_do}"
        f"<p>{escape(sure)}</p><p>{worth}</p></div>"
    )


def _figures(answer: PanelAnswer) -> dict[str, str]:
    """Figures by what they are called; those of the decision first, then those of the way that is shown."""
    found, one, row = answer.found, answer.found.decision, answer.row
    cells = {
        "what to do": one.action.replace("_", " "),
        "GPUs on at once, at most": f"{one.gpus:,} of {one.fleet_gpus:,}",
        "saved [GPU h a week]": _between(one.saving.value, one.saving.low, one.saving.high),
        "worth [USD a week]": figure_text(one.worth.usd_per_week, ",.0f"),
        "p95 queue wait, longest size [min]": _between(
            *(
                (None, None, None)
                if one.latest is None
                else (one.latest.recommended_p95_minutes, one.latest.low, one.latest.high)
            )
        ),
        "capacity exhausted": _day(found.exhaustion.date),
    }
    if row is None:
        return cells | {"way": f"{SHORT.get(answer.policy or found.winner, answer.policy)} (not compared)"}
    cells |= {
        "way": SHORT.get(row.policy, row.policy),
        "holds the limit": "yes" if row.meets_target else row.reason or "no",
        "GPUs on [GPU h a week]": figure_text(row.gpu_hours, ",.0f"),
        "added, the class that pays most [min]": figure_text(row.added_minutes, ",.1f"),
        "jobs that pay [%]": figure_text(None if row.later_share is None else 100 * row.later_share, ",.0f"),
        "longest [min]": figure_text(row.longest_min, ",.0f"),
    }
    for part in found.decision.service:
        cells[f"p95 wait on {part.size}, of its limit [min]"] = (
            f"{part.recommended_p95_minutes:,.1f} of {part.limit_minutes:,.1f}"
        )
    return cells


def _between(mean: float | None, low: float | None, high: float | None) -> str:
    """A mean with its interval, if there is one."""
    if mean is None:
        return NO_FIGURE
    return f"{mean:,.0f}" + (
        "" if low is None or high is None or low == high else f" ({low:,.0f} to {high:,.0f})"
    )


def _day(when: str | None) -> str:
    return NO_FIGURE if when is None else day_text(when)
