"""What the panel shows of a comparison at equal service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from gpuplanner import plot
from gpuplanner.scenario import Scenario
from gpuplanner.study.equal_service.words import decision, frontier_frame, target_in_words, what_to_set
from gpuplanner.units import HOURS_PER_WEEK

GPU_HOURS = ("gpu_hours", "gpu_hours_low", "gpu_hours_high")
SAVED = ("saving_gpu_hours_per_week", "saving_low", "saving_high")
LOOK = """<style>
.gpuplanner-answer picture img { max-width: 100%; height: auto; }
.gpuplanner-answer table { border-collapse: collapse; margin: .6em 0; }
.gpuplanner-answer :is(th, td) { padding: .2em .5em; text-align: right; vertical-align: top; }
.gpuplanner-answer td { overflow-wrap: anywhere; min-width: 6em; }
.gpuplanner-answer tbody th { text-align: left; font-weight: normal; }
.gpuplanner-answer tbody tr:nth-child(odd) { background: rgba(128, 128, 128, .08); }
</style>"""


@dataclass(frozen=True)
class Answer:
    """What was found for a scenario, and how it is looked at.

    Attributes
    ----------
    scenario : Scenario
        As it was asked.
    found : mapping
        :func:`gpuplanner.study.equal_service.promise.promise_of`.
    price : float
        Of a GPU-hour, in the scenario's currency; 0: none is known, and nothing is said of money.
    policy : str or None
        Whose figures are shown; None: the winner's.
    picture : str
        From :func:`frontier_html`.
    """

    scenario: Scenario
    found: Mapping[str, Any]
    price: float
    policy: str | None = None
    picture: str = ""

    @property
    def row(self) -> Mapping[str, Any] | None:
        """The figures of the policy that is shown; None if it was not tuned."""
        wanted = self.policy or self.found["winner"]
        rows = (self.found["today"], *self.found["policies"])
        return next((row for row in rows if row["policy"] == wanted), None)


def frontier_html(found: Mapping[str, Any], pinned: Mapping[str, Any]) -> str:
    """The frontier, with the policies of the pinned answer as outlines."""
    return plot.picture_html(plot.plot_frontier(frontier_frame(found, None if pinned == found else pinned)))


def answer_html(answer: Answer, pinned: Answer) -> str:
    """The decision, the frontier, and the figures beside those of the answer that is pinned."""
    columns = {"as it stands": _figures(answer)}
    if (old := _figures(pinned)) != columns["as it stands"]:
        columns = {"pinned": old, "what if": _figures(answer)}
    names = list(dict.fromkeys(name for figures in columns.values() for name in figures))
    head = "".join(f"<th scope='col'>{title}</th>" for title in columns)
    body = "".join(
        f"<tr><th scope='row'>{escape(name)}</th>"
        + "".join(f"<td>{escape(figures.get(name, '–'))}</td>" for figures in columns.values())
        + "</tr>"
        for name in names
    )
    lines = "\n".join(what_to_set(answer.found, answer.scenario.path))
    to_set = f"<details><summary>What to set</summary><pre>{escape(lines)}</pre></details>" if lines else ""
    return (
        f"{LOOK}<div class='gpuplanner-answer'><p><b>{escape(decision(answer.found))}</b></p>"
        f"<p>{escape(target_in_words(answer.found))}</p>{answer.picture}"
        f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>{to_set}"
        f"<p>{'' if answer.found['reason'] else escape(answer.found['note'])}</p></div>"
    )


def _figures(answer: Answer) -> dict[str, str]:
    """Figures by what they are called; a saving is stated of the winner alone."""
    found, row, currency = answer.found, answer.row, answer.scenario.currency
    if row is None:
        return {"policy": f"{answer.policy} (not tuned)"}
    share = f"{found['target']['quantile']:.0%}"
    cells = {
        "policy": row["policy"],
        "holds the target": "yes" if row["meets_target"] else "no",
        "GPUs on [GPU h a week]": _between(row, GPU_HOURS),
        "GPUs on, mean": f"{row['gpu_hours'] / HOURS_PER_WEEK:,.0f} of {found['today']['knobs']['gpus']:,}",
        "today's fleet [GPU h a week]": f"{found['today']['gpu_hours']:,.0f}",
        "mean wait [min]": f"{row['wait_mean_min']:,.1f}",
    }
    for part in row["by_class"]:
        within = f"{part['wait_quantile_min']:,.1f} of {part['target_min']:,.0f}"
        cells[f"{share} of size {part['size_class']} start within [min]"] = within
    cells["changes of layout a week"] = f"{row['changes']:,.0f}"
    saved = found["saving_gpu_hours_per_week"] if row["policy"] == found["winner"] else None
    if saved is not None:
        cells["saved against today [GPU h a week]"] = _between(found, SAVED)
        cells[f"of it over {found['baseline']}, fixed"] = f"{found['saving_over_static']:,.0f}"
    if answer.price:
        cells[f"price of a GPU-hour [{currency}]"] = f"{answer.price:,.2f}"
        cells[f"cost a week [{currency}]"] = _between(row, GPU_HOURS, answer.price)
        if saved is not None:
            cells[f"saved a week [{currency}]"] = _between(found, SAVED, answer.price)
    return cells


def _between(row: Mapping[str, Any], names: tuple[str, str, str], times: float = 1.0) -> str:
    """A mean with its interval, if there is one."""
    mean, low, high = (row[name] for name in names)
    ends = "" if low is None or low == high else f" ({times * low:,.0f} to {times * high:,.0f})"
    return f"{times * mean:,.0f}{ends}"
