"""What numbered GPUs have while a plan does not need them."""

from __future__ import annotations

import polars as pl

from gpuplanner.hardware.layout import OFF
from gpuplanner.schemas import WHOLE_GPU


def with_held(layout_plan: pl.DataFrame) -> pl.DataFrame:
    """Say which layout every GPU has in every range, needed or not.

    A GPU that is not needed keeps what it was last on with. One that was not on before has what it comes with, if
    that is no change, and else is taken to be whole.

    Parameters
    ----------
    layout_plan : polars.DataFrame
        Table ``schemas.LayoutPlan``.

    Returns
    -------
    polars.DataFrame
        The same rows, sorted by node, GPU and start, with ``held`` and ``had``, the layout in the range and that
        before it, neither of them ever ``"off"``.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> hours = [datetime(2026, 11, 2, hour, tzinfo=UTC) for hour in range(4)]
    >>> plan = pl.DataFrame({
    ...     "node": "n1", "gpu": 0, "slot_start": hours[:3], "slot_end": hours[1:],
    ...     "layout": ["3g.40gb:2", "off", "7g.80gb:1"], "changed": [False, False, True],
    ... })
    >>> with_held(plan).select("held", "had").rows()
    [('3g.40gb:2', '3g.40gb:2'), ('3g.40gb:2', '3g.40gb:2'), ('7g.80gb:1', '3g.40gb:2')]
    """
    gpu = ["node", "gpu"]
    on = pl.col("layout") != OFF
    first, changed = (pl.col(name).filter(on).first().over(gpu) for name in ("layout", "changed"))
    held = pl.when(on).then("layout").forward_fill().over(gpu)
    at_first = pl.when(changed).then(pl.lit(WHOLE_GPU)).otherwise(first).fill_null(WHOLE_GPU)
    return (
        layout_plan.sort(*gpu, "slot_start")
        .with_columns(held=pl.coalesce(held, at_first), had=at_first)
        .with_columns(had=pl.coalesce(pl.col("held").shift().over(gpu), "had"))
    )
