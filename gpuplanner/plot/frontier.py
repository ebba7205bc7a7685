"""What each policy costs at each wait."""

from __future__ import annotations

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.plot import prepare, theme

_HEIGHT = 340
_TICKS = (0, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 500)
_KINDS = ("setting", "tuned", "today")


def plot_frontier(frame: pl.DataFrame) -> ChartType:
    """GPU-hours a week against wait: settings of a policy joined by a line, tuned ones and today's fleet marked.

    Left of the dashed line every class of jobs waits no longer than it may.

    Parameters
    ----------
    frame : polars.DataFrame
        ``policy, gpu_hours, wait_over_target, kind``, the kind one of ``"setting"``, ``"tuned"`` and ``"today"``.
        Policies stand in the order of their first rows, today's fleet first.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> points = pl.DataFrame({"policy": ["today", "reactive"], "gpu_hours": [10752.0, 4000.0],
    ...     "wait_over_target": [1.0, 0.5], "kind": ["today", "tuned"]})
    >>> plot_frontier(points).to_dict()["title"]
    'GPU-hours a week against wait'
    """
    prepare.require(frame, ["policy", "gpu_hours", "wait_over_target", "kind"], where="plot_frontier")
    title = "GPU-hours a week against wait"
    if frame.is_empty():
        return theme.saying("No policy was simulated.", title=title)
    policies = frame["policy"].unique(maintain_order=True).to_list()
    data = prepare.to_data(frame.sort("wait_over_target", maintain_order=True), where="plot_frontier")
    x = alt.X(
        "wait_over_target:Q",
        title="wait of the class that is worst off, over its target",
        scale=alt.Scale(type="symlog", constant=0.2, domainMin=0, nice=False),
        axis=alt.Axis(values=list(_TICKS)),
    )
    y = alt.Y("gpu_hours:Q", title="GPUs on [GPU h a week]", scale=alt.Scale(domainMin=0))
    colour = alt.Color(
        "policy:N", title=None, scale=theme.scale(theme.policy_colours(policies), policies), sort=policies
    )
    hover = [
        alt.Tooltip("policy:N", title="policy"),
        alt.Tooltip("kind:N", title="setting"),
        alt.Tooltip("gpu_hours:Q", title="GPU h a week", format=",.0f"),
        alt.Tooltip("wait_over_target:Q", title="wait over target", format=",.2f"),
    ]
    base = alt.Chart(data)
    parts: list[ChartType] = [
        base.mark_line(size=1.5, opacity=0.6).encode(x=x, y=y, color=colour, order="wait_over_target:Q"),
        base.mark_point(filled=True, opacity=1).encode(
            x=x,
            y=y,
            color=colour,
            shape=alt.Shape(
                "kind:N",
                title=None,
                scale=alt.Scale(domain=list(_KINDS), range=["circle", "diamond", "square"]),
            ),
            size=alt.condition("datum.kind == 'setting'", alt.value(35), alt.value(150)),
            tooltip=hover,
        ),
    ]
    limit = alt.Chart(prepare.to_data(pl.DataFrame({"wait_over_target": [1.0]}), where="plot_frontier"))
    parts.append(limit.mark_rule(strokeDash=[4, 4], color=theme.MUTED).encode(x="wait_over_target:Q"))
    chart = alt.layer(*parts).properties(width="container", height=_HEIGHT)
    return theme.finish(chart, title=title, finding=frontier_text(frame), legend=150)


def frontier_text(frame: pl.DataFrame) -> str:
    """Say what today's fleet and the tuned policies cost, dearest first.

    Examples
    --------
    >>> points = pl.DataFrame({"policy": ["today", "reactive"], "gpu_hours": [10752.0, 4000.0],
    ...     "wait_over_target": [1.0, 0.5], "kind": ["today", "tuned"]})
    >>> frontier_text(points)
    'today: 10,752 GPU-hours a week; reactive: 4,000.'
    """
    ends = frame.filter(pl.col("kind") != "setting").sort("gpu_hours", descending=True, maintain_order=True)
    said = [f"{policy}: {hours:,.0f}" for policy, hours in ends.select("policy", "gpu_hours").iter_rows()]
    return "; ".join([f"{said[0]} GPU-hours a week", *said[1:]]) + "." if said else "Nothing was tuned."
