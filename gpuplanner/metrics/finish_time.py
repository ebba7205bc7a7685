"""Finish-time fairness: how much later jobs end for sharing the cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import polars as pl

from gpuplanner.errors import SchemaError, message

Schedule = Callable[[pl.DataFrame, int], pl.DataFrame]
"""Runs jobs on a number of GPUs and gives their outcomes."""


def isolated_outcomes(jobs: pl.DataFrame, entitled: Mapping[str, float], run: Schedule) -> pl.DataFrame:
    """Run the jobs of every tenant alone on what it is entitled to.

    A job that asks for more than the tenant's share runs on the whole share and takes longer in proportion
    (limits too), as perfect scaling has it. Shares are rounded down to whole GPUs, but never below one.

    Parameters
    ----------
    jobs : polars.DataFrame
        As jobs are simulated: ``tenant, gpus, run_s`` and more.
    entitled : mapping of str to float
        GPUs of each tenant; 1/n of the cluster in the definition of Themis.
    run : callable
        Schedules jobs on a number of GPUs, by the same rules as the shared run.

    Returns
    -------
    polars.DataFrame
        The outcomes of all tenants.

    Raises
    ------
    SchemaError
        If a tenant has no entitlement.

    References
    ----------
    K. Mahajan et al., Themis: Fair and efficient GPU cluster scheduling, NSDI 2020, section 3.

    Examples
    --------
    >>> def run(jobs, gpus):
    ...     return jobs.select("job_id", "tenant", jct_s=pl.col("run_s"))
    >>> jobs = pl.DataFrame({"job_id": ["a"], "tenant": ["x"], "gpus": [4], "run_s": [60.0]})
    >>> isolated_outcomes(jobs, {"x": 2.0}, run).rows()
    [('a', 'x', 120.0)]
    """
    tenants = jobs["tenant"].unique().sort()
    without = [tenant for tenant in tenants if not entitled.get(tenant, 0.0) > 0]
    if without:
        text = message(
            "finish-time fairness",
            "an entitlement above 0 for every tenant",
            f"none for {without}",
            "Give all tenants a share, or drop their jobs.",
        )
        raise SchemaError(text)
    parts = []
    for tenant in tenants:
        gpus = max(1, math.floor(entitled[tenant] + 1e-9))
        longer = (pl.col("gpus") / gpus).clip(lower_bound=1.0)
        times = [name for name in ("run_s", "limit_s") if name in jobs.columns]
        mine = jobs.filter(tenant=tenant).with_columns(
            pl.col(times) * longer, pl.col("gpus").clip(upper_bound=gpus)
        )
        parts.append(run(mine, gpus))
    return pl.concat(parts)


def finish_time_fairness(shared: pl.DataFrame, isolated: pl.DataFrame) -> pl.DataFrame:
    """Compare completion times in the shared cluster with those of every tenant alone.

    ``rho = T_shared / T_isolated``, with T from submission to end: 1 is what sharing promises; above it, the
    tenant would have been better off with its own share.

    Parameters
    ----------
    shared, isolated : polars.DataFrame
        Outcomes of the same jobs: ``job_id, tenant, jct_s``.

    Returns
    -------
    polars.DataFrame
        ``job_id, tenant, shared_jct_s, isolated_jct_s, rho``, in the order of `shared`; rho is null where a
        job did not end in both, or took no time alone.

    Raises
    ------
    SchemaError
        If the jobs are not the same.

    Examples
    --------
    >>> shared = pl.DataFrame({"job_id": ["a", "b"], "tenant": "x", "jct_s": [60.0, 90.0]})
    >>> finish_time_fairness(shared, shared.with_columns(jct_s=60.0))["rho"].to_list()
    [1.0, 1.5]
    """
    if sorted(shared["job_id"]) != sorted(isolated["job_id"]):
        text = message(
            "finish-time fairness",
            "the same jobs shared and alone",
            f"{shared.height} and {isolated.height} jobs, not all the same",
            "Run both on the same jobs.",
        )
        raise SchemaError(text)
    alone = isolated.select("job_id", isolated_jct_s="jct_s")
    return (
        shared.select("job_id", "tenant", shared_jct_s="jct_s")
        .join(alone, on="job_id", how="left", maintain_order="left")
        .with_columns(
            rho=pl.when(pl.col("isolated_jct_s") > 0).then(pl.col("shared_jct_s") / pl.col("isolated_jct_s"))
        )
    )


def rho_by_tenant(fairness: pl.DataFrame) -> pl.DataFrame:
    """Mean, worst and late jobs of every tenant.

    Parameters
    ----------
    fairness : polars.DataFrame
        From :func:`finish_time_fairness`.

    Returns
    -------
    polars.DataFrame
        ``tenant``, ``jobs`` that have a rho, ``mean_rho``, ``p95_rho``, ``max_rho`` and ``late_share``, the
        share of them with rho above 1, sorted by tenant.

    Examples
    --------
    >>> rho_by_tenant(pl.DataFrame({"tenant": "x", "rho": [1.0, 3.0]})).row(0)
    ('x', 2, 2.0, 2.9, 3.0, 0.5)
    """
    rho = pl.col("rho")
    return (
        fairness.drop_nulls("rho")
        .group_by("tenant")
        .agg(
            jobs=pl.len(),
            mean_rho=rho.mean(),
            p95_rho=rho.quantile(0.95, "linear"),
            max_rho=rho.max(),
            late_share=(rho > 1).mean(),
        )
        .sort("tenant")
    )
