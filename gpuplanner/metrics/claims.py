"""What jobs wanted and held, from when to when: the ground of every account of tenants."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from gpuplanner.errors import SchemaError, examples, message
from gpuplanner.hardware import GpuModel, as_board
from gpuplanner.metrics.accounts import Window, slices_of
from gpuplanner.metrics.spells import Served, spells_of, steps
from gpuplanner.schemas import WHOLE_GPU


@dataclass(frozen=True, eq=False)
class Claims:
    """Jobs over time, in whole units, so that sums are exact.

    Parameters
    ----------
    table : polars.DataFrame
        One claim a row: ``tenant``, ``submit_s`` (it waits from then on), ``start_s`` (it holds from then on),
        ``end_s``, and the units ``wanted`` and ``held``. A job that was stopped is several claims.
    units_per_gpu : int
        1, or the compute slices of the board.
    window : tuple of float
        Start and end of what is accounted [s].
    """

    table: pl.DataFrame
    units_per_gpu: int
    window: Window

    def by_tenant(self, tenants: frozenset[str] = frozenset()) -> pl.DataFrame:
        """Units held and waited for, tenant by tenant, over the whole window.

        Parameters
        ----------
        tenants : frozenset of str
            Tenants to list though they claim nothing.

        Returns
        -------
        polars.DataFrame
            ``tenant, start_s, end_s, held, waiting`` (units): adjacent pieces that fill the window for every
            tenant.
        """
        begin, end = self.window
        held, wanted = pl.col("held"), pl.col("wanted")
        everyone = sorted(tenants.union(self.table["tenant"]))
        none = {"tenant": everyone, "at_s": begin, "held": 0, "waiting": 0}
        events = [
            pl.DataFrame(none, schema={"tenant": pl.String, "at_s": float, "held": int, "waiting": int})
        ]
        for instant, more, longer in (
            ("submit_s", pl.lit(0), wanted),
            ("start_s", held, -wanted),
            ("end_s", -held, pl.lit(0)),
        ):
            at = pl.col(instant).clip(begin, end)
            events.append(self.table.select("tenant", at_s=at, held=more.cast(int), waiting=longer.cast(int)))
        return steps(pl.concat(events), "tenant", ["held", "waiting"], until_s=end)


def claims(
    run: Served | pl.DataFrame, board: GpuModel | str | None = None, *, window: Window | None = None
) -> Claims:
    """Read claims off a run.

    A job that was stopped or resized, or that goes through phases, claims once for each of its spells.

    Parameters
    ----------
    run : GangRun, Run or polars.DataFrame
        Anything with ``outcomes`` and ``spells``; or outcomes alone, of a run in which no job was stopped.
    board : GpuModel or str, optional
        The board; needed where jobs hold instances, which count their compute slices.
    window : tuple of float, optional
        Start and end [s]; from the first submission to the last end if None. Jobs that have not started by the
        end wait until then, jobs that have not ended hold until then.

    Returns
    -------
    Claims

    Raises
    ------
    SchemaError
        If jobs were stopped and there are no spells that say when; if jobs hold instances and there is no
        board; or if the window is empty.

    Examples
    --------
    >>> outcomes = pl.DataFrame({"job_id": ["a", "b"], "tenant": ["x", "y"], "submit": 0.0, "gpus": [4, 2],
    ...     "first_start": [0.0, 60.0], "end": [60.0, 90.0], "profile": "gpu", "served_on": "gpu",
    ...     "preemptions": 0})
    >>> claims(outcomes).by_tenant().rows()
    [('x', 0.0, 60.0, 4, 0), ('x', 60.0, 90.0, 0, 0), ('y', 0.0, 60.0, 0, 2), ('y', 60.0, 90.0, 2, 0)]
    """
    spells = spells_of(run)
    model = None if board is None else as_board(board)
    sizes = _sizes(spells, model)
    begin, end = _span(spells, window)
    start = pl.col("start_s").fill_null(end)
    table = spells.select(
        "tenant",
        submit_s=pl.col("since_s"),
        start_s=start,
        end_s=pl.col("end_s").fill_null(pl.max_horizontal(start, pl.lit(end))),
        wanted=pl.col("gpus") * pl.col("profile").replace_strict(sizes, return_dtype=pl.Int64),
        held=pl.col("gpus")
        * pl.coalesce("served_on", "profile").replace_strict(sizes, return_dtype=pl.Int64),
    )
    return Claims(table, sizes[WHOLE_GPU], (begin, end))


def _sizes(spells: pl.DataFrame, board: GpuModel | None) -> dict[str, int]:
    """Units of each profile."""
    named = pl.concat([spells["profile"], spells["served_on"]]).drop_nulls().unique(maintain_order=True)
    cut = [name for name in named if name != WHOLE_GPU]
    if board is None and cut:
        text = message(
            "jobs to account by tenant",
            "whole GPUs, or a board that says how many slices an instance has",
            f"profiles {examples(cut)} and no board",
            "Name the board.",
        )
        raise SchemaError(text)
    return {name: 1 if board is None else slices_of(board, name) for name in (WHOLE_GPU, *cut)}


def _span(spells: pl.DataFrame, window: Window | None) -> Window:
    if window is not None:
        if not window[0] < window[1]:
            text = message("window to account", "start before end", f"{window}", "Change the window.")
            raise SchemaError(text)
        return window
    instants = spells.select(
        begin=pl.col("since_s").min(), end=pl.max_horizontal(pl.col("since_s", "start_s", "end_s").max())
    )
    begin, end = instants.row(0)
    return (begin or 0.0, end or 0.0)
