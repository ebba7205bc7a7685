"""What happened within a window of time: jobs submitted, slices held by jobs, slices provided by GPUs."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Protocol

import polars as pl

from gpuplanner.errors import SchemaError, message
from gpuplanner.hardware import OFF, GpuModel, parse_layout
from gpuplanner.metrics.jobs import run_time
from gpuplanner.schemas import WHOLE_GPU

Window = tuple[float, float]

SERVING = ("on", "draining", "changing")
"""States in which the instances of a GPU exist."""


class Simulated(Protocol):
    """A run: what became of the jobs and of the GPUs."""

    @property
    def outcomes(self) -> pl.DataFrame:
        """Table ``schemas.Outcomes``."""

    @property
    def states(self) -> pl.DataFrame:
        """``node``, ``gpu``, ``start_s``, ``end_s``, ``layout``, ``state``."""


@dataclass(frozen=True, eq=False)
class Scheduled:
    """A run as measures read it.

    Parameters
    ----------
    outcomes, states : polars.DataFrame
        As of :class:`gpuplanner.simulate.Run`.
    """

    outcomes: pl.DataFrame
    states: pl.DataFrame


def always_on(outcomes: pl.DataFrame, gpus: int) -> Scheduled:
    """Outcomes of whole GPUs that are all on from 0 to the last end, so that they can be measured like a run.

    Parameters
    ----------
    outcomes : polars.DataFrame
        Of :func:`gpuplanner.simulate.schedule`.
    gpus : int
        GPUs of the fleet.

    Examples
    --------
    >>> always_on(pl.DataFrame({"end": [60.0, 90.0]}), 2).states.rows()
    [(0, 0, 0.0, 90.0, 'gpu', 'on'), (0, 1, 0.0, 90.0, 'gpu', 'on')]
    """
    end = outcomes["end"].max() or 0.0
    numbers = pl.int_range(gpus, dtype=pl.Int32, eager=True)
    states = pl.select(
        node=pl.lit(0, pl.Int32), gpu=numbers, start_s=0.0, end_s=pl.lit(end, pl.Float64),
        layout=pl.lit(WHOLE_GPU), state=pl.lit("on"),
    )  # fmt: skip
    return Scheduled(outcomes, states)


def covered(run: Simulated, window: Window | None) -> Window:
    """The window to measure: as given, else the whole run.

    Raises
    ------
    SchemaError
        If the window is empty or reaches beyond the run.
    """
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


def held(outcomes: pl.DataFrame, board: GpuModel, window: Window) -> pl.DataFrame:
    """Started jobs with the time for which each held its GPUs or instance within the window.

    Returns
    -------
    polars.DataFrame
        The jobs with ``held_s``, ``useful_s`` of it, ``instances`` (a whole GPU is one) and ``slices`` (compute
        slices held). Outcomes do not say when a stopped job was back in the queue, nor when it lost what:
        both count evenly over the time from its first start to its end.
    """
    served = outcomes["served_on"].drop_nulls().unique(maintain_order=True).to_list()
    sizes = {profile: slices_of(board, profile) for profile in (WHOLE_GPU, *served)}
    span = pl.col("end") - pl.col("first_start")
    within_s = _overlap("first_start", "end", window)
    ran = run_time(outcomes)
    lost = pl.col("lost_gpu_s") / pl.col("gpus")
    return outcomes.filter(pl.col("first_start").is_not_null()).with_columns(
        held_s=pl.when(ran == span).then(within_s).otherwise(within_s * (ran / span)),
        useful_s=pl.when(ran - lost == span).then(within_s).otherwise(within_s * ((ran - lost) / span)),
        instances=pl.col("gpus").cast(pl.Int64),
        slices=pl.col("gpus") * pl.col("served_on").replace_strict(sizes, return_dtype=pl.Int64),
    )


def provided(states: pl.DataFrame, board: GpuModel, window: Window) -> pl.DataFrame:
    """States with their time within the window, and what the GPU offers to jobs meanwhile.

    Returns
    -------
    polars.DataFrame
        The states with ``time_s``, ``instances`` and ``slices``; both are 0 unless the GPU is on.
    """
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
    """Seconds that the rows share with the window."""
    begin, finish = pl.col(start).clip(lower_bound=window[0]), pl.col(end).clip(upper_bound=window[1])
    return (finish - begin).clip(lower_bound=0.0)
