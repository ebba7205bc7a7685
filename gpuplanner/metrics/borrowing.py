"""Who held more than its entitlement while others were kept from theirs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from gpuplanner.metrics.claims import Claims
from gpuplanner.metrics.tenants import tenant_pieces
from gpuplanner.units import SECONDS_PER_HOUR

NOBODY = "-"
"""As borrower: GPUs that nobody held. As lender: entitlement that nobody claimed."""

TINY_GPUS = 1e-9
"""What may remain of nothing after many additions."""


def borrowing(claimed: Claims, entitled: Mapping[str, float]) -> pl.DataFrame:
    """Say who borrowed how much from whom.

    At every instant, tenant i holds ``b_i`` GPUs above its entitlement, and tenant j lacks ``d_j`` that are
    due to it. With ``B`` and ``L`` their sums, i borrows ``b_i * d_j / max(B, L)`` from j: everybody who is
    above shares in what everybody lacks. Where more is held above than is lacking, the rest comes from
    entitlement that nobody claimed; where more is lacking, the rest stood idle. So all that is above, and all
    that is lacking, is attributed exactly once:

    - what a borrower has from all lenders is its ``above_gpu_hours`` of :func:`tenant_accounts`;
    - what a lender lacks through all borrowers is its ``deficit_gpu_hours``.

    Parameters
    ----------
    claimed, entitled
        As for :func:`~gpuplanner.metrics.tenant_pieces`.

    Returns
    -------
    polars.DataFrame
        ``borrower``, ``lender``, ``gpu_hours`` above 0, sorted by names; :data:`NOBODY` on either side. Takes
        a sort of the events, and one pass over them for every borrower.

    Examples
    --------
    >>> table = pl.DataFrame({"tenant": ["x", "y"], "submit_s": 0.0, "start_s": [0.0, 3600.0],
    ...     "end_s": [3600.0, 7200.0], "wanted": [4, 1], "held": [4, 1]})
    >>> borrowing(Claims(table, 1, (0.0, 7200.0)), {"x": 2.0, "y": 2.0}).rows()
    [('x', '-', 1.0), ('x', 'y', 1.0)]
    """
    names, seconds, tenant, low, high, above, deficit, _ = _laid_out(claimed, entitled)
    above_all, deficit_all = (_summed(values, low, high, len(seconds)) for values in (above, deficit))
    most = np.maximum(above_all, deficit_all)
    per_gpu = np.divide(seconds, most, out=np.zeros_like(seconds), where=most > TINY_GPUS)
    idle, unclaimed = ((most - part) * (most - part > TINY_GPUS) for part in (above_all, deficit_all))
    rows = []
    for rank, borrower in enumerate(names):
        mine = tenant == rank
        # The pieces of one tenant are adjacent, so repeating them lays them out over all edges.
        held = np.repeat(above[mine], (high - low)[mine]) if rank else idle
        so_far = np.append(0.0, np.cumsum(held * per_gpu))
        lent = np.bincount(tenant, deficit * (so_far[high] - so_far[low]), minlength=len(names))
        lent[0] = held @ (per_gpu * unclaimed)
        rows += [
            (borrower, *pair) for pair in zip(names, lent / SECONDS_PER_HOUR, strict=True) if pair[1] > 0
        ]
    schema = {"borrower": pl.String, "lender": pl.String, "gpu_hours": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def lent_hours(claimed: Claims, entitled: Mapping[str, float]) -> list[tuple[str, float]]:
    """GPU-hours of its entitlement that each tenant did not ask for, and that others held meanwhile.

    What tenants hold above their entitlement comes first from what others lack, see :func:`borrowing`; the rest from
    entitlement that nobody claims, of each in proportion to what it leaves; GPUs that are nobody's due come last.

    Examples
    --------
    >>> table = pl.DataFrame({"tenant": ["x"], "submit_s": 0.0, "start_s": [0.0], "end_s": [3600.0], "wanted": [4],
    ...     "held": [4]})
    >>> lent_hours(Claims(table, 1, (0.0, 7200.0)), {"x": 2.0, "y": 1.0, "z": 2.0})
    [('x', 0.0), ('y', 0.66...), ('z', 1.33...)]
    """
    names, seconds, tenant, low, high, above, deficit, unclaimed = _laid_out(claimed, entitled)
    above_all, deficit_all, left_all = (
        _summed(values, low, high, len(seconds)) for values in (above, deficit, unclaimed)
    )
    freely = np.clip(above_all - deficit_all, 0.0, left_all)
    part = np.divide(freely * seconds, left_all, out=np.zeros_like(seconds), where=left_all > TINY_GPUS)
    so_far = np.append(0.0, np.cumsum(part))
    lent = np.bincount(tenant, unclaimed * (so_far[high] - so_far[low]), minlength=len(names))
    return list(zip(names[1:], (lent[1:] / SECONDS_PER_HOUR).tolist(), strict=True))


def _laid_out(
    claimed: Claims, entitled: Mapping[str, float]
) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Names, nobody first; seconds between edges; and of each piece its tenant, first and last edge, and amounts."""
    pieces = tenant_pieces(claimed, entitled)
    names = [NOBODY, *pieces["tenant"].unique().sort()]
    number = {name: rank for rank, name in enumerate(names)}
    edges = np.append(np.unique(pieces["start_s"].to_numpy()), claimed.window[1])
    tenant, low, high, above, deficit, unclaimed = (
        pieces.with_columns(pl.col("tenant").replace_strict(number, return_dtype=pl.Int64))
        .select("tenant", "start_s", "end_s", "above", "deficit", "unclaimed")
        .to_numpy()
        .T
    )
    low, high = np.searchsorted(edges, low), np.searchsorted(edges, high)
    return names, np.diff(edges), tenant.astype(np.int64), low, high, above, deficit, unclaimed


def _summed(values: np.ndarray, low: np.ndarray, high: np.ndarray, count: int) -> np.ndarray:
    """Sum of pieces over every stretch between two edges."""
    changes = np.bincount(low, values, minlength=count + 1) - np.bincount(high, values, minlength=count + 1)
    total: np.ndarray = np.cumsum(changes)[:count]
    return total
