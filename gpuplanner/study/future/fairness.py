"""How fair a policy is to the tenants of a fleet: what they were due, who borrowed, who finished late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from gpuplanner.metrics import (
    Claims,
    borrowing,
    claims,
    entitlements,
    finish_time_fairness,
    isolated_outcomes,
    jain_index,
    rho_by_tenant,
    tenant_accounts,
)
from gpuplanner.simulate import Fleet, Rules, run_gangs, schedule


@dataclass(frozen=True, eq=False)
class Fairness:
    """What a run means to the tenants.

    - ``claimed``: What jobs wanted and held; for shares over time.
    - ``tenants``: :func:`gpuplanner.metrics.tenant_accounts` and :func:`gpuplanner.metrics.rho_by_tenant` side by
      side.
    - ``borrowed``: :func:`gpuplanner.metrics.borrowing`.
    - ``jobs``: :func:`gpuplanner.metrics.finish_time_fairness`.
    - ``mean_rho``, ``max_rho``: Over all jobs.
    - ``jain_satisfaction``, ``jain_rho``: Jain's index of the tenants' satisfaction, and of 1 / mean rho.
    """

    claimed: Claims
    tenants: pl.DataFrame
    borrowed: pl.DataFrame
    jobs: pl.DataFrame
    mean_rho: float | None
    max_rho: float | None
    jain_satisfaction: float | None
    jain_rho: float | None


def fairness(
    jobs: pl.DataFrame, fleet: Fleet, rules: Rules, *, shares: Mapping[str, float] | None = None
) -> Fairness:
    """Serve jobs together, and every tenant's alone on its share, and compare.

    Examples
    --------
    >>> jobs = pl.DataFrame({"job_id": ["a", "b"], "tenant": ["x", "y"], "submit_s": [0.0, 1.0],
    ...     "run_s": [7200.0, 3600.0], "gpus": [4, 2], "profile": "gpu"})
    >>> found = fairness(jobs, Fleet("H100-80GB-SXM5", nodes=1, gpus_per_node=4), Rules(queue="strict"))
    >>> found.tenants.select("tenant", "entitled_gpus", "mean_rho").rows()
    [('x', 2.0, 0.5), ('y', 2.0, 2.999...)]
    >>> found.borrowed["borrower", "lender"].rows()
    [('x', '-'), ('x', 'y')]
    """
    shared = run_gangs(jobs, fleet, rules, policy="shared")
    given = rules.fair_share.shares if shares is None else shares
    entitled = entitlements(fleet.gpus, jobs["tenant"], given)

    def alone(mine: pl.DataFrame, gpus: int) -> pl.DataFrame:
        return schedule(mine, Fleet(fleet.board, 1, gpus), rules, policy="alone")

    claimed = claims(shared)
    by_job = finish_time_fairness(shared.outcomes, isolated_outcomes(jobs, entitled, alone))
    late = rho_by_tenant(by_job)
    tenants = tenant_accounts(claimed, entitled).join(late, on="tenant", how="left", maintain_order="left")
    mean_rho, max_rho = by_job.select(mean=pl.col("rho").mean(), max=pl.col("rho").max()).row(0)
    return Fairness(
        claimed=claimed,
        tenants=tenants,
        borrowed=borrowing(claimed, entitled),
        jobs=by_job,
        mean_rho=mean_rho,
        max_rho=max_rho,
        jain_satisfaction=jain_index(tenants["satisfaction"].drop_nulls().to_numpy()),
        jain_rho=jain_index(1 / late["mean_rho"].to_numpy()),
    )
