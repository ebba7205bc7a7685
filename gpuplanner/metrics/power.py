"""GPU-hours by what a GPU did."""

from __future__ import annotations

import polars as pl

from gpuplanner.hardware import GpuModel, as_board
from gpuplanner.metrics.accounts import Simulated, Window, covered, provided
from gpuplanner.metrics.spells import spells_of
from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.units import hours_from_seconds

CONDITIONS = ("busy", "idle", "reconfiguring", "off")


def hours_by_condition(
    run: Simulated, board: GpuModel | str, *, window: Window | None = None
) -> dict[str, float]:
    """Part the installed GPU-hours by what the GPU did.

    Parameters
    ----------
    run, board, window
        As for :func:`~gpuplanner.metrics.measure`.

    Returns
    -------
    dict
        GPU-hours of each of :data:`CONDITIONS`: ``busy`` with at least one job on the GPU, ``idle`` in service
        without, ``reconfiguring``, ``off``. They sum to the installed GPU-hours.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> outcomes = pl.DataFrame({"served_on": ["gpu"], "gpus": 1, "node": 0, "gpu": 0,
    ...     "submit": 0.0, "first_start": 0.0, "end": 3600.0})
    >>> states = pl.DataFrame({"node": 0, "gpu": 0, "start_s": 0.0, "end_s": [7200.0], "layout": "gpu",
    ...     "state": "on"})
    >>> hours_by_condition(SimpleNamespace(outcomes=outcomes, states=states), "H100-80GB-SXM5")
    {'busy': 1.0, 'idle': 1.0, 'reconfiguring': 0.0, 'off': 0.0}
    """
    supply = provided(run.states, as_board(board), covered(run, window))
    hours = {
        state: hours_from_seconds(float(supply.filter(pl.col("state") == state)["time_s"].sum()))
        for state in ("reconfiguring", "off")
    }
    busy = resident_gpu_hours(run, window=window)
    installed = hours_from_seconds(float(supply["time_s"].sum()))
    return {"busy": busy, "idle": installed - busy - sum(hours.values()), **hours}


def resident_gpu_hours(run: Simulated, *, window: Window | None = None) -> float:
    """GPU-hours in which a GPU held at least one job.

    Jobs on slices of one GPU overlap and count once; jobs on whole GPUs never share.

    Parameters
    ----------
    run : Run
        Anything with ``outcomes`` and ``states``, and ``spells`` if jobs were stopped or have phases.
    window : tuple of float, optional
        Start and end [s from the start of the run]; the whole run if None.

    Returns
    -------
    float
        GPU-hours [GPU h].

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> outcomes = pl.DataFrame({"served_on": ["1g.10gb", "1g.10gb", "gpu"], "gpus": [1, 1, 2], "node": 0,
    ...     "gpu": [0, 0, 1], "first_start": [0.0, 1800.0, 0.0], "end": [3600.0, 5400.0, 3600.0]})
    >>> states = pl.DataFrame({"end_s": [7200.0]})
    >>> resident_gpu_hours(SimpleNamespace(outcomes=outcomes, states=states))
    3.5
    """
    begin, end = covered(run, window)
    held = (
        spells_of(run)
        .filter(pl.col("start_s").is_not_null())
        .with_columns(
            start=pl.col("start_s").clip(begin, end), stop=pl.col("end_s").fill_null(end).clip(begin, end)
        )
        .filter(pl.col("stop") > pl.col("start"))
    )
    whole = held.filter(pl.col("served_on") == WHOLE_GPU)
    whole_s = float(whole.select(((pl.col("stop") - pl.col("start")) * pl.col("gpus")).sum()).item())
    # What earlier jobs on the same GPU already cover adds nothing.
    covered_until = pl.col("stop").cum_max().shift(1).over("node", "gpu")
    sliced_s = float(
        held.filter(pl.col("served_on") != WHOLE_GPU)
        .sort("node", "gpu", "start", "stop")
        .select((pl.col("stop") - pl.max_horizontal("start", covered_until)).clip(lower_bound=0.0).sum())
        .item()
    )
    return hours_from_seconds(whole_s + sliced_s)
