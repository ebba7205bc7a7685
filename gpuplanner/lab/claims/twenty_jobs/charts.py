"""Charts of the two cases: frames of this room go in, Altair charts come out."""

from __future__ import annotations

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.lab.claims.twenty_jobs.brief import TARGETS
from gpuplanner.lab.claims.twenty_jobs.serve import ServedBatch
from gpuplanner.plot import prepare, theme

_SEEDS_HEIGHT = 120
_MEASURES = {
    "completion_min": ("Completion time", "min", 1.0),
    "utilisation_provisioned": ("Utilisation of provisioned slices", "%", 100.0),
}


def _room(names: list[str]) -> int:
    """Pixels for the labels of an axis; browsers draw letters wider than the renderer thinks."""
    return 24 + round(6.4 * max(map(len, names)))


def plot_seeds(rows: pl.DataFrame) -> ChartType:
    """Every seed of both cases as a mark, beside the reported figures and their bands.

    Examples
    --------
    >>> from gpuplanner.lab.claims.twenty_jobs import CASE_1, CASE_2, replicate
    >>> len(plot_seeds(replicate([CASE_1, CASE_2], range(2))).to_dict()["vconcat"])
    2
    """
    policies = list(dict.fromkeys(target.policy for target in TARGETS))
    colours = theme.policy_colours(policies)

    def panel(measure: str) -> ChartType:
        title, unit, factor = _MEASURES[measure]
        mine = rows.filter(pl.col("policy").is_in(policies)).select(
            "seed", "policy", value=factor * pl.col(measure)
        )
        wanted = [target for target in TARGETS if target.measure == measure]
        reported = pl.DataFrame(
            [
                {"policy": t.policy, "reported": factor * t.reported}
                | {"low": factor * t.band[0], "high": factor * t.band[1]}
                for t in wanted
            ]
        )
        y = alt.Y("policy:N", title=None, sort=policies, axis=alt.Axis(minExtent=_room(policies)))
        x = alt.X("value:Q", title=f"[{unit}]", scale=alt.Scale(zero=False))
        colour = alt.Color("policy:N", scale=theme.scale(colours, policies), legend=None)
        base = alt.Chart(prepare.to_data(reported, where="plot_seeds"))
        band = base.mark_bar(color=theme.GRID, height=44).encode(x=alt.X("low:Q"), x2="high:Q", y=y)
        rule = base.mark_tick(color=theme.PALETTE[5], thickness=3, size=44).encode(
            x="reported:Q", y=y, tooltip=[alt.Tooltip("reported:Q", title=f"reported [{unit}]")]
        )
        marks = (
            alt.Chart(prepare.to_data(mine, where="plot_seeds"))
            .mark_point(filled=True, size=22, opacity=0.45)
            .encode(
                x=x,
                y=y,
                yOffset=alt.YOffset("lane:Q", scale=alt.Scale(domain=[-3, 9])),
                color=colour,
                tooltip=[
                    alt.Tooltip("seed:Q"),
                    alt.Tooltip("value:Q", title=f"{title} [{unit}]", format=".1f"),
                ],
            )
            .transform_calculate(lane="datum.seed % 7")
        )
        heading = alt.TitleParams(title, fontSize=13, offset=6)
        return alt.layer(band, marks, rule).properties(width=520, height=_SEEDS_HEIGHT, title=heading)

    chart = alt.vconcat(*[panel(measure) for measure in _MEASURES])
    title = "Every seed; orange: as reported, grey: within its band"
    return theme.finish(chart, title=title, names=theme.label_width(policies))


def plot_timeline(served: dict[str, ServedBatch]) -> ChartType:
    """Who ran where and when, one panel for each way of serving, one row per GPU and instance.

    Examples
    --------
    >>> from gpuplanner.lab.claims.twenty_jobs import CASE_1, one
    >>> chart = plot_timeline({"static": one(CASE_1, seed=0)[0]})
    >>> len(chart.to_dict()["vconcat"])
    1
    """
    needs = sorted({need for one in served.values() for need in one.attempts["need"]})
    colours = dict(zip(needs, theme.PALETTE, strict=False))
    last = max(float(one.attempts["end_min"].max() or 0.0) for one in served.values())  # type: ignore[arg-type]

    def panel(name: str, rows: pl.DataFrame) -> ChartType:
        order = rows["lane"].unique(maintain_order=True).to_list()
        base = alt.Chart(prepare.to_data(rows, where="plot_timeline"))
        axis = alt.Axis(labelOverlap=False, minExtent=_room(order))
        y = alt.Y("lane:N", title=None, sort=order, axis=axis)
        bars = base.mark_bar(height={"band": 0.82}, cornerRadius=2).encode(
            x=alt.X(
                "start_min:Q", title="minutes after queueing", scale=alt.Scale(domain=[0, last], nice=False)
            ),
            x2="end_min:Q",
            y=y,
            color=alt.Color("need:N", title="truly needs", scale=theme.scale(colours, needs)),
            tooltip=[
                alt.Tooltip("job_id:N", title="job"),
                alt.Tooltip("kind:N"),
                alt.Tooltip("asks_for:N", title="asked for"),
                alt.Tooltip("need:N", title="truly needs"),
                alt.Tooltip("profile:N", title="ran on"),
                alt.Tooltip("start_min:Q", title="start [min]", format=".1f"),
                alt.Tooltip("end_min:Q", title="end [min]", format=".1f"),
            ],
        )
        # Never colour alone: each bar says what its job truly needs.
        words = base.mark_text(align="left", dx=5, fontSize=10, color="white", fontWeight=600).encode(
            x="start_min:Q", y=y, text="short:N"
        )
        heading = alt.TitleParams(name, fontSize=13, offset=6)
        return alt.layer(bars, words).properties(width=520, height=19 * len(order), title=heading)

    panels = [panel(name, _lanes(one)) for name, one in served.items()]
    return theme.finish(
        alt.vconcat(*panels),
        title="The same jobs, GPU by GPU (instances that serve nobody are not drawn)",
        names=130,
    )


def _lanes(served: ServedBatch) -> pl.DataFrame:
    """Attempts with the instance that they ran on; instances of one profile on one GPU are told apart by time."""
    where = served.run.outcomes.select(
        job_id=pl.col("job_id").str.split("/").list.first(),
        attempt=pl.col("job_id").str.split("/").list.last().cast(pl.Int32),
        gpu="gpu",
    )
    columns = ("job_id", "kind", "need", "asks_for", "profile", "start_min", "end_min", "gpu")
    ran = served.attempts.join(where, on=["job_id", "attempt"]).filter(pl.col("end_min").is_not_null())
    free_at: dict[tuple[int, str], list[float]] = {}
    lanes = []
    for row in ran.sort("start_min", "gpu", "job_id").iter_rows(named=True):
        ends = free_at.setdefault((row["gpu"], row["profile"]), [])
        lane = next((n for n, end in enumerate(ends) if end <= row["start_min"] + 1e-9), len(ends))
        ends[lane : lane + 1] = [row["end_min"]]
        lanes.append({name: row[name] for name in columns} | {"number": lane})
    lane_name = pl.format("GPU {} · {} · {}", pl.col("gpu") + 1, "profile", pl.col("number") + 1)
    short = pl.col("need").str.split(".").list.first()
    return (
        pl.DataFrame(lanes)
        .with_columns(lane=lane_name, short=short)
        .sort("gpu", "profile", "number", "start_min")
    )


def plot_decomposition(parts: pl.DataFrame) -> ChartType:
    """Share of each gain that is right-sizing and that is layouts, with the spread between both orders.

    Examples
    --------
    >>> parts = pl.DataFrame({"measure": "x", "part": ["right-sizing", "layouts"], "share": [0.9, 0.1],
    ...     "first": [-9.0, -1.0], "last": [-9.0, -1.0], "shapley": [-9.0, -1.0]})
    >>> plot_decomposition(parts).to_dict()["title"]
    'What the gain is made of: mean over both orders of the two steps'
    """
    names = {
        "completion_min": "completion time",
        "mean_jct_min": "mean time in system",
        "utilisation_provisioned": "utilisation of provisioned slices",
    }
    shown = ["right-sizing", "layouts"]
    rows = parts.filter(pl.col("part").is_in(shown)).with_columns(
        what=pl.col("measure").replace(names), percent=100 * pl.col("share")
    )
    order = rows["what"].unique(maintain_order=True).to_list()
    base = alt.Chart(prepare.to_data(rows, where="plot_decomposition"))
    y = alt.Y("what:N", title=None, sort=order, axis=alt.Axis(labelLimit=260, minExtent=_room(order)))
    colours = {"right-sizing": theme.PALETTE[0], "layouts": theme.PALETTE[1]}
    bars = base.mark_bar().encode(
        x=alt.X("percent:Q", title="share of the gain [%]", stack="zero"),
        y=y,
        color=alt.Color("part:N", title=None, sort=shown, scale=theme.scale(colours, shown)),
        order=alt.Order("rank:Q"),
        tooltip=[
            alt.Tooltip("part:N"),
            alt.Tooltip("percent:Q", title="share [%]", format=".1f"),
            alt.Tooltip("first:Q", title="change if taken first", format="+.3~g"),
            alt.Tooltip("last:Q", title="change if taken last", format="+.3~g"),
        ],
    ).transform_calculate(rank="datum.part == 'right-sizing' ? 0 : 1")  # fmt: skip
    chart = alt.layer(bars).properties(width="container", height=42 * len(order))
    title = "What the gain is made of: mean over both orders of the two steps"
    return theme.finish(chart, title=title, names=theme.label_width(order))


def plot_ablations(rows: pl.DataFrame) -> ChartType:
    """Mean and 95 % interval over seeds of both cases under every ablation.

    Examples
    --------
    >>> row = {"ablation": "as designed", "case": "case 1", "metric": "completion", "unit": "min"}
    >>> chart = plot_ablations(pl.DataFrame([row | {"mean": 100.0, "low": 99.0, "high": 101.0}]))
    >>> len(chart.to_dict()["hconcat"])
    1
    """
    order = rows["ablation"].unique(maintain_order=True).to_list()
    cases = rows["case"].unique(maintain_order=True).to_list()
    colours = theme.policy_colours(cases)
    shapes = alt.Scale(domain=cases, range=["square", "circle"][: len(cases)])

    def panel(number: int, metric: str, unit: str) -> ChartType:
        data = prepare.to_data(rows.filter(metric=metric), where="plot_ablations")
        axis = alt.Axis(labelLimit=260, minExtent=_room(order)) if number == 0 else None
        y = alt.Y("ablation:N", title=None, sort=order, axis=axis)
        colour = alt.Color("case:N", title=None, scale=theme.scale(colours, cases))
        base = alt.Chart(data)
        line = base.mark_rule(size=2).encode(
            x=alt.X("low:Q", title=f"[{unit}]"), x2="high:Q", y=y, color=colour
        )
        mark = base.mark_point(filled=True, size=70, opacity=1).encode(
            x=alt.X("mean:Q"), y=y, color=colour, shape=alt.Shape("case:N", title=None, scale=shapes),
            tooltip=["ablation:N", "case:N", alt.Tooltip("mean:Q", format=".1f")],
        )  # fmt: skip
        heading = alt.TitleParams(metric, fontSize=13, offset=6)
        return alt.layer(line, mark).properties(width=230, height=24 * len(order), title=heading)

    metrics = rows.select("metric", "unit").unique(maintain_order=True).iter_rows()
    panels = [panel(number, metric, unit) for number, (metric, unit) in enumerate(metrics)]
    return theme.finish(alt.hconcat(*panels), title="One assumption changed at a time", names=240)
