"""Figures of ``docs/method.md``, of the sample: causes, arrivals, wait curve, interval.

    python docs/make_method.py

Half a minute; the same sample gives the same bytes.
"""

from __future__ import annotations

from pathlib import Path

import altair as alt
import numpy as np
import polars as pl

from gpuplanner import report as plots
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.units_and_number_formats import SECONDS_PER_MINUTE
from gpuplanner.decision.capacity_measures import keep_fleet
from gpuplanner.decision.comparison_record import compare_policies, make_wait_curve_table, make_wait_table
from gpuplanner.decision.explained_waits import explain_waits, make_cause_table, sum_waits
from gpuplanner.decision.recommendation import build_wait_model
from gpuplanner.decision.requested_jobs import read_replay_inputs
from gpuplanner.decision.wait_causes import CAUSES
from gpuplanner.decision.wait_curve import WaitModel, join_pools, split_by_profiles
from gpuplanner.report import chart_theme as theme
from gpuplanner.usage.planning_history import history

IMAGES = Path(__file__).parent / "images"
HEIGHT = 200
DRAWS = 10


def causes_chart(model: WaitModel) -> alt.Chart:
    """Hours waited by job size and cause."""
    hours = make_cause_table(sum_waits(model.inputs, model.waits).causes.job_size)
    long = hours.unpivot(CAUSES, index="name", variable_name="cause", value_name="hours").filter(pl.col("hours") > 0)
    long = long.with_columns(pl.col("cause").str.replace_all("_", " "))
    return (
        alt.Chart(long)
        .mark_bar()
        .encode(
            x=alt.X("hours:Q", title="hours waited"),
            y=alt.Y("name:N", title=None, sort=hours["name"].to_list()),
            color=alt.Color("cause:N", title=None, sort=[cause.replace("_", " ") for cause in CAUSES]),
        )
    )


def arrivals_chart(model: WaitModel) -> alt.LayerChart:
    """Waits of each size, observed and in the replay from the arrivals."""
    waits = model.waits
    rows = [
        (model.size_names[number], what, float(values[waits.is_evaluated & (model.size_of_job == number)].sum()) / 3600)
        for number in model.sizes
        for what, values in (("observed", waits.waited_s), ("simulated", waits.simulated_s))
    ]
    frame = pl.DataFrame(rows, schema=["size", "what", "hours"], orient="row")
    return (
        alt.Chart(frame)
        .mark_bar()
        .encode(
            x=alt.X("hours:Q", title="hours waited"),
            y=alt.Y("size:N", title=None, sort=frame["size"].unique(maintain_order=True).to_list()),
            yOffset="what:N",
            color=alt.Color("what:N", title=None),
        )
    )


def interval_chart(model: WaitModel) -> alt.LayerChart:
    """The curve of each drawn record, thin, under that of the record itself, for the size that waits longest."""
    pools, today = split_by_profiles(model.inputs.fleet), keep_fleet(model, None).units
    fleets = [
        join_pools(pools, [max(round(factor * count), 1) for count in today]) for factor in np.linspace(0.5, 2, 13)
    ]
    number = int(np.argmax(model.percentiles(model.inputs.fleet, 0)))
    rows = []
    for fleet in fleets:
        gpus = int(fleet.gpus.sum())
        for row in range(1 + DRAWS):
            wait = float(model.percentiles(fleet, row)[number]) / SECONDS_PER_MINUTE
            rows.append((gpus, "record" if row == 0 else f"draw {row}", min(wait, model.inputs.observed_s / 60)))
    frame = pl.DataFrame(rows, schema=["gpus", "of", "minutes"], orient="row")
    base = alt.Chart(frame).encode(
        x=alt.X("gpus:Q", title="GPUs"),
        y=alt.Y("minutes:Q", title="p95 queue wait [min]", scale=alt.Scale(type="symlog", constant=1)),
        detail="of:N",
    )
    drawn = base.transform_filter("datum.of != 'record'").mark_line(size=1, color="#8a949e")
    record = base.transform_filter("datum.of == 'record'").mark_line(size=2.5, color="#0072b2")
    return alt.layer(drawn, record)


def main() -> None:
    """Draw and write the four figures."""
    asked = read_replay_inputs(history(Scenario()))
    model = build_wait_model(asked, explain_waits(asked))
    found = compare_policies(Scenario())
    one = found.decision
    limits = make_wait_table(found).select("limit_minutes", job_size="size")
    curve = plots.plot_wait_curve(
        make_wait_curve_table(found), today=one.fleet_gpus, recommended=one.gpus, limits=limits
    )
    charts = {"causes": causes_chart(model), "arrivals": arrivals_chart(model), "interval": interval_chart(model)}
    for name, chart in charts.items():
        text = plots.chart_to_svg(theme.finish(chart, height=HEIGHT))
        (IMAGES / f"{name}.svg").write_text(text, encoding="utf-8")
    (IMAGES / "wait_curve.svg").write_text(plots.chart_to_svg(curve), encoding="utf-8")


if __name__ == "__main__":
    main()
