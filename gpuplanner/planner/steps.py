"""What is done to numbered GPUs when a plan is carried out, and for how long they are out of service."""

from __future__ import annotations

import polars as pl

from gpuplanner.hardware import GpuModel, Reconfiguration, as_board, reconfiguration_cost, with_held
from gpuplanner.schemas import LayoutPlan, check

_REBOOT = pl.col("scope") == "node"


def steps(layout_plan: pl.DataFrame, board: GpuModel | str, *, path: str = "operator") -> pl.DataFrame:
    """List every change of a plan with what is done for it.

    Parameters
    ----------
    layout_plan : polars.DataFrame
        Table :class:`~gpuplanner.schemas.LayoutPlan`.
    board : GpuModel or str
        The board of all GPUs in the table.
    path : {"operator", "parted", "nvml"}
        How the changes are made.

    Returns
    -------
    polars.DataFrame
        One row for each GPU that changes, sorted by time, node and GPU: ``slot_start, node, gpu``; ``before`` and
        ``after``, layouts as text; ``mode``, what MIG mode is switched to, null if it stays; ``scope``, one of
        :data:`~gpuplanner.hardware.SCOPES`; ``steps``, what is done, in order; ``seconds``, how long it takes once
        work has left; ``gpu_seconds``, the time for which GPUs are out of service. A node that reboots is out with
        all its GPUs, once, and its other changes are made then; that time is shared out among those that need it.

    Raises
    ------
    SchemaError
        If the table is no layout plan.
    GeometryError
        If a layout is impossible on the board, or the path is unknown.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> hours = [datetime(2026, 11, 2, hour, tzinfo=UTC) for hour in range(3)]
    >>> plan = pl.DataFrame({
    ...     "node": "n1", "gpu": [0, 0, 1], "slot_start": [*hours[:2], hours[0]],
    ...     "slot_end": [*hours[1:], hours[2]], "layout": ["gpu", "7g.80gb:1", "gpu"],
    ...     "changed": [False, True, False],
    ... }, schema_overrides={"gpu": pl.Int32})
    >>> for board in ("A100-80GB", "H100-80GB-SXM5"):
    ...     print(steps(plan, board).select("scope", "steps", "seconds", "gpu_seconds").rows())
    [('node', 'switch MIG mode on, reboot the node, create 7g.80gb@0', 600.0, 1200.0)]
    [('gpu', 'switch MIG mode on, create 7g.80gb@0', 60.0, 60.0)]
    """
    board = as_board(board)
    rows = with_held(check(layout_plan, LayoutPlan, where="layout plan"))
    on_node = rows.select("node", "gpu").unique().group_by("node").len("gpus")
    changed = rows.filter("changed").select("slot_start", "node", "gpu", before="had", after="held")
    known = {
        pair: _row(reconfiguration_cost(board, *pair, path=path))
        for pair in changed.select("before", "after").unique().iter_rows()
    }
    schema = {"mode": pl.String, "scope": pl.String, "steps": pl.String, "seconds": pl.Float64}
    done = [known[pair] for pair in changed.select("before", "after").iter_rows()]
    found = pl.concat([changed, pl.DataFrame(done, schema=schema, orient="row")], how="horizontal")
    together = ["slot_start", "node"]
    reboots = _REBOOT.sum().over(together)
    of_node = pl.col("seconds").max().over(together) * pl.col("gpus") / reboots
    return (
        found.join(on_node, on="node", how="left", maintain_order="left")
        .with_columns(
            gpu_seconds=pl.when(reboots == 0)
            .then("seconds")
            .otherwise(pl.when(_REBOOT).then(of_node).otherwise(0.0))
        )
        .drop("gpus")
        .sort("slot_start", "node", "gpu")
    )


def _row(change: Reconfiguration) -> tuple[str | None, str, str, float]:
    return change.mode, change.scope, ", ".join(change.steps), change.seconds
