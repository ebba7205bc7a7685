"""What became of jobs on whole GPUs, and the table of their spells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.schemas import conform
from gpuplanner.simulate.results import Spells


@dataclass(frozen=True, eq=False)
class GangRun:
    """What became of jobs on whole GPUs.

    Parameters
    ----------
    outcomes : polars.DataFrame
        As of :func:`~gpuplanner.lab.gangs.schedule`.
    spells : polars.DataFrame
        One row for every time that a job held its GPUs, in the order of the jobs and then of time: ``job_id``,
        ``tenant``, ``since_s`` (it waited from then on), ``start_s``, ``end_s``, ``profile``, ``served_on``,
        ``gpus``, ``node`` (the first one), ``gpu`` (null), ``lost_s`` (time of the spell that was for nothing
        that lasts) and ``ended``: ``"finished"``, ``"preempted"`` or ``"failed"``.
    """

    outcomes: pl.DataFrame
    spells: pl.DataFrame


def gang_spells(
    jobs: pl.DataFrame, found: Mapping[str, NDArray[Any]], stops: Mapping[str, NDArray[Any]]
) -> pl.DataFrame:
    """Make the table of spells of gangs."""
    lost_before = np.bincount(stops["job"], stops["lost"], minlength=jobs.height)
    last = jobs.with_columns(
        node=pl.Series(found["node"]),
        lost_s=pl.Series(np.maximum(found["lost"] - lost_before, 0.0)),
        start_s=pl.Series(found["begun"]),
        end_s=pl.Series(found["end"]),
        ended=pl.lit("finished"),
    )
    stopped = jobs[stops["job"]].with_columns(
        node=pl.Series(stops["node"]),
        lost_s=pl.Series(stops["lost"]),
        start_s=pl.Series(stops["begun"]),
        end_s=pl.Series(stops["at"]),
        ended=pl.when(pl.Series(stops["failed"]) == 1).then(pl.lit("failed")).otherwise(pl.lit("preempted")),
    )
    return in_turn(pl.concat([stopped, last]).sort("row", maintain_order=True))


def in_turn(spells: pl.DataFrame) -> pl.DataFrame:
    """Table :class:`Spells` of spells on whole GPUs in the order of the jobs and of time: each waits for the next."""
    after = pl.col("end_s").shift(1).over("row")
    table = spells.with_columns(since_s=after.fill_null(pl.col("submit_s")), served_on="profile")
    return conform(table, Spells, where="spells")
