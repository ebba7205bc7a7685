"""The smallest profile that is fast enough."""

from __future__ import annotations

import dataframely as dy
import polars as pl

from gpuplanner.errors import SchemaError, examples, message
from gpuplanner.hardware import GpuModel, as_board
from gpuplanner.schemas import check
from gpuplanner.schemas.kinds import meaning, number
from gpuplanner.sizing.speed.slices import profile_table
from gpuplanner.sizing.speed.speed_tables import SpeedTable


class SpeedNeeds(dy.Schema):
    """How fast a class of jobs has to run: a speed, or its work and the time it may take, or both."""

    job_class = dy.String(nullable=False, primary_key=True, metadata=meaning("name of the class"))
    wanted_speed = dy.Float64(nullable=True, min_exclusive=0, metadata=meaning("relative to the whole GPU"))
    whole_gpu_h = number("run time on the whole GPU", "h", nullable=True)
    deadline_h = dy.Float64(nullable=True, min_exclusive=0, metadata=meaning("time it may take", "h"))

    @dy.rule()
    def whole_gpu_h_and_deadline_h_go_together(cls) -> pl.Expr:
        """A deadline says nothing without the work, nor the work without a deadline."""
        return pl.col("whole_gpu_h").is_null() == pl.col("deadline_h").is_null()

    @dy.rule()
    def something_is_wanted(cls) -> pl.Expr:
        """A wanted speed or a deadline is given."""
        return pl.col("wanted_speed").is_not_null() | pl.col("deadline_h").is_not_null()


def smallest_fast_enough(speeds: pl.DataFrame, needs: pl.DataFrame, board: GpuModel | str) -> pl.DataFrame:
    """Find for each class of jobs the smallest profile whose lower bound of the speed is enough.

    Parameters
    ----------
    speeds : polars.DataFrame
        A table :class:`~gpuplanner.sizing.speed.speed_tables.SpeedTable`, as
        :meth:`~gpuplanner.sizing.speed.SpeedModel.predict` gives it; profiles that a job does not fit have no row.
    needs : polars.DataFrame
        A table :class:`SpeedNeeds`. Of a wanted speed and a deadline, the stricter counts.
    board : GpuModel or str
        The board of `speeds`, for the order of its profiles: by compute slices, then memory.

    Returns
    -------
    polars.DataFrame
        ``job_class`` in the order of `needs`, ``wanted`` (speed), ``profile``, ``speed``, ``speed_low`` and
        ``speed_high``; the last four are null where no profile is fast enough.

    Raises
    ------
    SchemaError
        If a table is not what it should be, or `speeds` has no row for a class or knows other profiles.

    Examples
    --------
    >>> speeds = pl.DataFrame({"job_class": ["a"] * 3, "profile": ["2g.20gb", "1g.10gb", "7g.80gb"],
    ...     "speed": [0.8, 0.5, 1.0], "speed_low": [0.7, 0.4, 0.9], "speed_high": [0.9, 0.6, 1.0]})
    >>> needs = pl.DataFrame({"job_class": ["a"], "whole_gpu_h": [3.0], "deadline_h": [5.0]})
    >>> smallest_fast_enough(speeds, needs, "A100-80GB").select("wanted", "profile", "speed_low").row(0)
    (0.6, '2g.20gb', 0.7)
    """
    where = "smallest_fast_enough"
    wanted = check(needs, SpeedNeeds, where=f"{where}: needs")
    speeds = check(speeds, SpeedTable, where=f"{where}: speeds")
    known = profile_table(as_board(board)).select("profile", "rank")
    _refuse_missing(speeds, known, wanted)
    fast = pl.col("speed_low") >= pl.col("wanted")
    by_deadline = pl.col("whole_gpu_h") / pl.col("deadline_h")
    needed = wanted.select("job_class", wanted=pl.max_horizontal("wanted_speed", by_deadline))
    best = (
        speeds.join(known, on="profile")
        .join(needed, on="job_class")
        .filter(fast)
        .sort("rank")
        .unique("job_class", keep="first", maintain_order=True)
        .drop("wanted", "rank")
    )
    return needed.join(best, on="job_class", how="left", maintain_order="left")


def _refuse_missing(speeds: pl.DataFrame, known: pl.DataFrame, needs: pl.DataFrame) -> None:
    strange = speeds.join(known, on="profile", how="anti")["profile"].unique(maintain_order=True).to_list()
    if strange:
        expected = f"profiles of the board: {', '.join(known['profile'])}"
        text = message(
            "smallest_fast_enough: speeds", expected, examples(strange), "Name the board of the speeds."
        )
        raise SchemaError(text)
    absent = needs.join(speeds, on="job_class", how="anti")["job_class"].to_list()
    if absent:
        text = message(
            "smallest_fast_enough: needs",
            "classes with a row in speeds",
            examples(absent),
            "Predict them first.",
        )
        raise SchemaError(text)
