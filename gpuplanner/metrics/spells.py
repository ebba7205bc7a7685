"""When jobs waited and when they held GPUs, and sums of that over time: what every account over time reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import polars as pl

from gpuplanner.errors import SchemaError, examples, message

OF_OUTCOMES = {"submit": "since_s", "first_start": "start_s", "end": "end_s"}


class Served(Protocol):
    """A run; it may have ``spells`` besides, as those of :mod:`gpuplanner.simulate` do."""

    @property
    def outcomes(self) -> pl.DataFrame:
        """Table ``schemas.Outcomes``."""


def spells_of(run: Served | pl.DataFrame) -> pl.DataFrame:
    """Read off a run when its jobs waited and held GPUs.

    Parameters
    ----------
    run : GangRun, Run or polars.DataFrame
        Anything with ``outcomes``, and with ``spells`` if jobs were stopped, resized, or had phases. Outcomes
        alone stand for a run in which every job held its GPUs from its first start to its end.

    Returns
    -------
    polars.DataFrame
        One row for every time that a job waited for GPUs and then held them without a break, at least one for
        each job: ``since_s`` (it waited from then on), ``start_s`` (it held from then on; null if it never got
        any more), ``end_s``, ``lost_s`` (time of it that was for nothing), and ``job_id``, ``tenant``,
        ``profile``, ``served_on``, ``gpus``, ``node`` and ``gpu``, as far as they are known.

    Raises
    ------
    SchemaError
        If jobs were stopped and nothing says when.

    Examples
    --------
    >>> outcomes = pl.DataFrame({"job_id": ["a"], "submit": [0.0], "first_start": [60.0], "end": [90.0]})
    >>> spells_of(outcomes).rows(named=True)
    [{'job_id': 'a', 'since_s': 0.0, 'start_s': 60.0, 'end_s': 90.0, 'lost_s': 0.0}]
    """
    if isinstance(run, pl.DataFrame):
        outcomes, spells = run, None
    else:
        outcomes, spells = run.outcomes, getattr(run, "spells", None)
    if spells is not None:
        table: pl.DataFrame = spells
        return table
    _refuse_stopped(outcomes)
    lost = pl.col("lost_gpu_s") / pl.col("gpus") if "lost_gpu_s" in outcomes.columns else pl.lit(0.0)
    return outcomes.rename(OF_OUTCOMES, strict=False).with_columns(lost_s=lost)


def _refuse_stopped(outcomes: pl.DataFrame) -> None:
    stopped = (
        outcomes.filter(pl.col("preemptions") > 0) if "preemptions" in outcomes.columns else outcomes.clear()
    )
    if stopped.height:
        text = message(
            "outcomes to account over time",
            "a run with its spells where jobs were stopped, since outcomes do not say when they held GPUs",
            f"outcomes alone, with {stopped.height} that were stopped: {examples(stopped['job_id'].to_list())}",
            "Pass the run, with its spells, in place of its outcomes.",
        )
        raise SchemaError(text)


def steps(events: pl.DataFrame, by: str, changes: Sequence[str], *, until_s: float) -> pl.DataFrame:
    """Sum up changes over time, group by group.

    Changes of one instant count at once. Sorting is all that costs more than one pass: O(n log n). Integer
    changes are summed exactly.

    Examples
    --------
    >>> events = pl.DataFrame({"node": 0, "at_s": [5.0, 0.0, 5.0], "held": [-2, 3, 1]})
    >>> steps(events, "node", ["held"], until_s=9.0).rows()
    [(0, 0.0, 5.0, 3), (0, 5.0, 9.0, 2)]
    """
    return (
        events.group_by(by, start_s="at_s")
        .agg(pl.col(changes).sum())
        .sort(by, "start_s")
        .with_columns(
            pl.col(changes).cum_sum().over(by),
            end_s=pl.col("start_s").shift(-1).over(by).fill_null(until_s),
        )
        .filter(pl.col("end_s") > pl.col("start_s"))
        .select(by, "start_s", "end_s", *changes)
    )
