"""Sums of a ledger, and the check that it is complete."""

from __future__ import annotations

import polars as pl

from gpuplanner.schemas import BUCKETS, Ledger, conform

DARK_BUCKETS = ("held_idle", "free", "fragmented", "unexplained", "reserved", "reconfiguring", "down")
"""Paid for, no work done. Unobserved time is not among them: nothing may be claimed of it."""
HELD_BUCKETS = ("used", "unobserved", "held_idle")


def reconcile(ledger: pl.DataFrame, installed: float, *, tolerance: float = 1e-9) -> dict[str, float | bool]:
    """Compare a ledger with the GPU-hours installed.

    Parameters
    ----------
    ledger : polars.DataFrame
        Table ``schemas.Ledger``.
    installed : float
        GPU-hours installed, from :func:`installed_gpu_hours` or the bill.
    tolerance : float
        Largest difference that counts as rounding, as a share of `installed`.

    Returns
    -------
    dict
        ``ledger_gpu_hours``, ``installed_gpu_hours``, ``difference_gpu_hours`` (ledger - installed),
        ``relative`` (of installed; 0 if both are 0) and ``balanced``.

    Examples
    --------
    >>> from gpuplanner.schemas import empty
    >>> reconcile(empty(Ledger), 24.0)["difference_gpu_hours"]
    -24.0
    """
    total = float(conform(ledger, Ledger, where="ledger")["gpu_hours"].sum())
    difference = total - installed
    scale = max(abs(installed), abs(total))
    relative = difference / scale if scale > 0 else 0.0
    return {
        "ledger_gpu_hours": total,
        "installed_gpu_hours": installed,
        "difference_gpu_hours": difference,
        "relative": relative,
        "balanced": abs(relative) <= tolerance,
    }


def by_bucket(ledger: pl.DataFrame) -> pl.DataFrame:
    """GPU-hours and share of each bucket, all buckets listed in their fixed order.

    Returns
    -------
    polars.DataFrame, shape (9, 3)
        ``bucket``, ``gpu_hours`` [GPU h], ``share`` [0-1] (0 for an empty ledger).

    Examples
    --------
    >>> from gpuplanner.schemas import empty
    >>> by_bucket(empty(Ledger))["bucket"].to_list()[:3]
    ['used', 'unobserved', 'held_idle']
    """
    table = conform(ledger, Ledger, where="ledger")
    buckets = table.group_by(pl.col("bucket").cast(pl.String), maintain_order=True)
    sums = dict(buckets.agg(pl.col("gpu_hours").sum()).iter_rows())
    hours = [float(sums.get(bucket, 0.0)) for bucket in BUCKETS]
    total = sum(hours)
    return pl.DataFrame(
        {
            "bucket": pl.Series(BUCKETS, dtype=pl.Enum(BUCKETS)),
            "gpu_hours": hours,
            "share": [part / total if total > 0 else 0.0 for part in hours],
        }
    )


def by_tenant(ledger: pl.DataFrame) -> pl.DataFrame:
    """What each tenant held, and what of it was seen to work.

    Returns
    -------
    polars.DataFrame
        ``tenant``, ``held_gpu_hours`` and its parts ``used``, ``unobserved``, ``held_idle`` [GPU h], and
        ``idle_share`` [0-1] (held idle, of what was observed; null if nothing was); most held first. Time
        that nobody held is not in it.

    Examples
    --------
    >>> from gpuplanner.schemas import empty
    >>> by_tenant(empty(Ledger)).columns
    ['tenant', 'held_gpu_hours', 'used', 'unobserved', 'held_idle', 'idle_share']
    """
    hours = pl.col("gpu_hours")
    observed = pl.col("used") + pl.col("held_idle")
    return (
        conform(ledger, Ledger, where="ledger")
        .filter(pl.col("bucket").cast(pl.String).is_in(HELD_BUCKETS))
        .group_by("tenant", maintain_order=True)
        .agg(
            hours.sum().alias("held_gpu_hours"),
            *(hours.filter(pl.col("bucket") == bucket).sum().alias(bucket) for bucket in HELD_BUCKETS),
        )
        .with_columns(idle_share=pl.when(observed > 0).then(pl.col("held_idle") / observed))
        .sort("held_gpu_hours", "tenant", descending=[True, False])
    )


def dark_share(ledger: pl.DataFrame) -> dict[str, float]:
    """Share of the installed GPU-time that was paid for and did no work, by part.

    Returns
    -------
    dict
        One share [0-1] for each of :data:`DARK_BUCKETS`, and ``dark``, their sum. Where time is unobserved,
        this is a lower bound.

    Examples
    --------
    >>> from gpuplanner.schemas import empty
    >>> dark_share(empty(Ledger))["dark"]
    0.0
    """
    shares = dict(by_bucket(ledger).select(pl.col("bucket").cast(pl.String), "share").iter_rows())
    parts = {bucket: shares[bucket] for bucket in DARK_BUCKETS}
    return parts | {"dark": sum(parts.values())}
