"""What happened within a window of time: jobs submitted, slices held by jobs, slices provided by GPUs."""

from __future__ import annotations

import functools
from typing import Protocol

import polars as pl

from gpuplanner.errors import SchemaError, message
from gpuplanner.hardware import OFF, GpuModel, parse_layout
from gpuplanner.schemas import WHOLE_GPU

Window = tuple[float, float]

SERVING = ("on", "draining")
"""States in which the instances of a GPU exist."""


class Simulated(Protocol):
    """A run: what became of the jobs and of the GPUs."""

    @property
    def outcomes(self) -> pl.DataFrame:
        """Table ``schemas.Outcomes``."""

    @property
    def spells(self) -> pl.DataFrame:
        """Spells of :class:`gpuplanner.simulate.Run`."""

    @property
    def states(self) -> pl.DataFrame:
        """``node``, ``gpu``, ``start_s``, ``end_s``, ``layout``, ``state``."""


def covered(run: Simulated, window: Window | None) -> Window:
    """The window to measure: as given, else the whole run."""
    end = run.states["end_s"].max() if run.states.height else 0.0
    assert isinstance(end, float)
    if window is None:
        return (0.0, end)
    if not 0 <= window[0] < window[1] <= end:
        text = message(
            "window to measure",
            f"start before end, both between 0 and the end of the run at {end:g} s",
            f"{window[0]:g} to {window[1]:g} s",
            "Change the window, or simulate with until_s at its end.",
        )
        raise SchemaError(text)
    return window


def within(frame: pl.DataFrame, column: str, window: Window | None) -> pl.DataFrame:
    """Rows whose instant lies in the window, start included and end not; all rows if there is none."""
    if window is None:
        return frame
    return frame.filter(pl.col(column) >= window[0], pl.col(column) < window[1])


def held(spells: pl.DataFrame, board: GpuModel, window: Window) -> pl.DataFrame:
    """Spells that began, with their time within the window."""
    served = spells["served_on"].drop_nulls().unique(maintain_order=True).to_list()
    sizes = {profile: slices_of(board, profile) for profile in (WHOLE_GPU, *served)}
    held_s, lost = _overlap("start_s", "end_s", window), pl.col("lost_s")
    lasting = 1.0 - lost / (pl.col("end_s") - pl.col("start_s"))
    return spells.filter(pl.col("start_s").is_not_null()).with_columns(
        held_s=held_s,
        useful_s=pl.when(held_s > 0, lost > 0).then(held_s * lasting).otherwise(held_s),
        instances=pl.col("gpus").cast(pl.Int64),
        slices=pl.col("gpus") * pl.col("served_on").replace_strict(sizes, return_dtype=pl.Int64),
    )


def provided(states: pl.DataFrame, board: GpuModel, window: Window) -> pl.DataFrame:
    """States with their time within the window, and what the GPU offers to jobs meanwhile."""
    layouts = states["layout"].unique(maintain_order=True).to_list()
    contents = {layout: parse_layout(layout) for layout in (OFF, *layouts)}
    instances = {layout: sum(counts.values()) for layout, counts in contents.items()}
    slices = {
        layout: sum(count * slices_of(board, profile) for profile, count in counts.items())
        for layout, counts in contents.items()
    }
    serving = pl.col("state").is_in(SERVING).cast(pl.Int64)
    return states.with_columns(
        time_s=_overlap("start_s", "end_s", window),
        instances=serving * pl.col("layout").replace_strict(instances, return_dtype=pl.Int64),
        slices=serving * pl.col("layout").replace_strict(slices, return_dtype=pl.Int64),
    )


@functools.lru_cache(maxsize=4096)
def slices_of(board: GpuModel, profile: str) -> int:
    """Compute slices of one instance, or of the whole board."""
    return board.compute_slices if profile == WHOLE_GPU else board.profile(profile).compute_slices


def _overlap(start: str, end: str, window: Window) -> pl.Expr:
    """Seconds that the rows share with the window; what has no end lasts."""
    begin = pl.col(start).clip(lower_bound=window[0])
    finish = pl.col(end).clip(upper_bound=window[1]).fill_null(window[1])
    return (finish - begin).clip(lower_bound=0.0)
