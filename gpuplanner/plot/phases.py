"""One job over time: what its GPUs did, in which phase, and where it spiked."""

from __future__ import annotations

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.plot import prepare, theme

_MEASURES = (
    ("sm_activity", "SM activity [0-1]"),
    ("memory_used_gib", "memory used [GiB]"),
    ("power_w", "power [W]"),
)
_POINTS = 400
_SPIKE_COLOURS = (theme.PALETTE[5], theme.PALETTE[8], theme.PALETTE[7], theme.INK)
_APART = alt.Legend(symbolOffset=28)  # from the legend of the phases, which may end close before it
_WIDE = 0.12  # share of the time that a phase needs to carry its name


def plot_phases(
    samples: pl.DataFrame, phases: pl.DataFrame | None = None, spikes: pl.DataFrame | None = None
) -> ChartType:
    """SM activity, memory and power of one job's GPUs over time, with its phases behind them.

    Values are means over the job's GPUs. A long job is cut into at most 400 equal bins: the line is the mean
    of a bin, the band its least and greatest value, so that short spikes stay visible.

    Parameters
    ----------
    samples : polars.DataFrame
        Table ``schemas.Samples`` of one job: ``time`` and any of ``sm_activity, memory_used_gib, power_w``.
    phases : polars.DataFrame, optional
        ``start, end, label``: one row per phase.
    spikes : polars.DataFrame, optional
        ``time``, and optionally ``label`` and ``evidence``: one row per spike; marked above the first panel, in a
        colour for each label.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    prepare.require(samples, ["time"], where="plot_phases")
    title = "SM activity, memory and power of the job, per GPU"
    measures = [(name, label) for name, label in _MEASURES if _measured(samples, name)]
    if not measures:
        return theme.saying("The job has no samples.", title=title)
    rows = alt.Chart(prepare.to_data(_binned(samples, [name for name, _ in measures]), where="plot_phases"))
    bands, names = _bands(phases)
    x = prepare.utc_axis("time", prepare.span(samples["time"].min(), samples["time"].max()))  # type: ignore[arg-type]

    def panel(name: str, label: str, rank: int) -> ChartType:
        hover = [
            alt.Tooltip("at:N", title="UTC"),
            alt.Tooltip(f"{name}:Q", title=label, format=".3~r"),
            alt.Tooltip(f"{name}_high:Q", title="greatest", format=".3~r"),
        ]
        data = rows.transform_calculate(**prepare.utc_text(at="time"))
        y = alt.Y(f"{name}:Q", title=label)
        area = data.mark_area(opacity=0.25, color=theme.PALETTE[0]).encode(
            x=x, y=alt.Y(f"{name}_low:Q", title=label), y2=f"{name}_high:Q"
        )
        line = data.mark_line(color=theme.PALETTE[0], strokeWidth=1.4).encode(x=x, y=y, tooltip=hover)
        above = [*names, *_spikes(spikes)] if rank == 0 else []
        return alt.layer(*bands, area, line, *above).properties(height=130)

    parts = [panel(name, label, rank) for rank, (name, label) in enumerate(measures)]
    return theme.finish(
        alt.concat(*parts, columns=1),
        title=title,
        legend=190,
        names=40,
        panels={"columns": 1, "minimum": 1, "margin": 32},
    )


def _measured(samples: pl.DataFrame, name: str) -> bool:
    return name in samples.columns and samples[name].count() > 0


def _binned(samples: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """Means over GPUs, then mean, least and greatest of each time bin."""
    moments = samples.group_by("time").agg(pl.col(names).mean()).sort("time")
    seconds = (moments["time"].max() - moments["time"].min()).total_seconds()  # type: ignore[operator, union-attr]
    width = max(1, int(-(-seconds // _POINTS)))
    return (
        moments.group_by(pl.col("time").dt.truncate(f"{width}s"))
        .agg(
            pl.col(names).mean(),
            pl.col(names).min().name.suffix("_low"),
            pl.col(names).max().name.suffix("_high"),
        )
        .sort("time")
    )


def _bands(phases: pl.DataFrame | None) -> tuple[list[alt.Chart], list[alt.Chart]]:
    """Coloured bands, and the names of those wide enough to carry one."""
    if phases is None or phases.is_empty():
        return [], []
    prepare.require(phases, ["start", "end", "label"], where="plot_phases: phases")
    rows = prepare.to_data(phases.select("start", "end", "label").sort("start"), where="plot_phases: phases")
    labels = rows["label"].unique(maintain_order=True).to_list()
    colours = dict(zip(labels, theme.PALETTE[1:], strict=False))
    band = (
        alt.Chart(rows)
        .mark_rect(opacity=0.22)
        .transform_calculate(**prepare.utc_text(from_="start", to="end"))
        .encode(
            x=alt.X("start:T"),
            x2="end:T",
            fill=alt.Fill("label:N", title="phase", scale=theme.scale(colours, labels)),
            tooltip=[
                alt.Tooltip("label:N", title="phase"),
                alt.Tooltip("from_:N", title="from (UTC)"),
                alt.Tooltip("to:N", title="to (UTC)"),
            ],
        )
    )
    length = pl.col("end") - pl.col("start")
    whole = (pl.col("end").max() - pl.col("start").min()).dt.total_seconds()
    wide = phases.filter(length.dt.total_seconds() >= _WIDE * whole).select(
        "label", mid=pl.col("start") + length / 2
    )
    name = (
        alt.Chart(prepare.to_data(wide.sort("mid"), where="plot_phases: phases"))
        .mark_text(baseline="bottom", fontSize=11, color=theme.MUTED)
        .encode(x=alt.X("mid:T"), y=alt.value(-4), text="label:N")
    )
    return [band], [name]


def _spikes(spikes: pl.DataFrame | None) -> list[alt.Chart]:
    if spikes is None or spikes.is_empty():
        return []
    prepare.require(spikes, ["time"], where="plot_phases: spikes")
    told = [name for name in ("label", "evidence") if name in spikes.columns]
    marked = spikes.select("time", *told)
    if "label" not in told:
        marked = marked.with_columns(label=pl.lit("spike"))
    rows = prepare.to_data(marked.sort("time", "label"), where="plot_phases: spikes")
    labels = rows["label"].unique().sort().to_list()
    colours = dict(zip(labels, _SPIKE_COLOURS, strict=False))
    hover = [alt.Tooltip("at:N", title="dip (UTC)"), alt.Tooltip("label:N", title="looks like")]
    if "evidence" in told:
        hover.append(alt.Tooltip("evidence:N", title="evidence"))
    marks = (
        alt.Chart(rows)
        .mark_point(filled=True, size=40, opacity=1, shape="triangle-down")
        .transform_calculate(**prepare.utc_text(at="time"))
        .encode(
            x=alt.X("time:T"),
            y=alt.value(4),
            color=alt.Color("label:N", title="dip", legend=_APART, scale=theme.scale(colours, labels)),
            tooltip=hover,
        )
    )
    return [marks]
