"""Which part of the gain is right-sizing, and which is changing layouts? Both orders, and their mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from gpuplanner.lab.claims.twenty_jobs.experiment import CASE_1, CASE_2, Policy
from gpuplanner.metrics import mean_interval

ONLY_RIGHT_SIZED = Policy("right-sized, static", "recommended", "static")
ONLY_PLANNED = Policy("as asked, planned", "asked", "exact")
CORNERS = (CASE_1, ONLY_RIGHT_SIZED, ONLY_PLANNED, CASE_2)
"""All four of {as asked, right-sized} x {static, planned}."""


def decompose(rows: pl.DataFrame, measures: Sequence[str]) -> pl.DataFrame:
    """Split the change from case 1 to case 2 into its two steps.

    Parameters
    ----------
    rows : polars.DataFrame
        From :func:`gpuplanner.lab.claims.twenty_jobs.experiment.replicate`, with all of :data:`CORNERS`.
    measures : sequence of str
        Figures to split.

    Returns
    -------
    polars.DataFrame
        ``measure, part`` (right-sizing, layouts, together), ``first`` (the change that this step makes if it
        is taken first), ``last`` (if it is taken last), ``shapley`` (the mean of both), ``low`` and ``high``
        (95 % interval of it over seeds), ``share`` of the whole change.

    References
    ----------
    L. S. Shapley, A value for n-person games, 1953: with two players, the mean over both orders.

    Examples
    --------
    >>> names = [policy.name for policy in CORNERS]
    >>> rows = pl.DataFrame({"seed": [0] * 4 + [1] * 4, "policy": names * 2, "x": [10.0, 4, 9, 2] * 2})
    >>> decompose(rows, ["x"]).select("part", "first", "last", "shapley").rows()
    [('right-sizing', -6.0, -7.0, -6.5), ('layouts', -1.0, -2.0, -1.5), ('together', -8.0, -8.0, -8.0)]
    """
    found = []
    for measure in measures:
        before, sized, planned, both = (
            rows.filter(policy=policy.name).sort("seed")[measure].to_numpy() for policy in CORNERS
        )
        whole = both - before
        parts = {
            "right-sizing": (sized - before, both - planned),
            "layouts": (planned - before, both - sized),
            "together": (whole, whole),
        }
        for part, (first, last) in parts.items():
            middle = mean_interval((first + last) / 2)
            found.append(
                {"measure": measure, "part": part, "first": np.mean(first), "last": np.mean(last)}
                | {"shapley": middle.mean, "low": middle.low, "high": middle.high}
                | {"share": middle.mean / np.mean(whole) if np.mean(whole) else None}
            )
    return pl.DataFrame(found, infer_schema_length=None)
