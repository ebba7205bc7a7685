"""Stored results of a published claim, for the notebook that shows them."""

from __future__ import annotations

import polars as pl

from gpuplanner import plot
from gpuplanner.report import page
from gpuplanner.study.bundled import claims_folder
from gpuplanner.views.view import View

SHOWN_METRICS = 4
"""Metrics in the chart: two completion times and two utilizations."""


def twenty_jobs() -> View:
    """Stored results of ``benchmarks/claims/twenty_jobs.py``: the claim of twenty jobs on eight H100.

    Returns
    -------
    View
        Claimed and measured figures, and each policy with its 95 % interval; ``frame()`` has one row a policy and
        metric: ``policy, metric, unit, mean, low, high``.

    Examples
    --------
    >>> sorted(set(twenty_jobs().frame()["unit"]))
    ['%', 'min', 'slices']
    """
    figures = pl.read_csv(claims_folder() / "twenty_jobs.csv")
    policies = pl.read_csv(claims_folder() / "twenty_jobs_policies.csv")
    metrics = policies["metric"].unique(maintain_order=True).head(SHOWN_METRICS)
    shown = policies.filter(pl.col("metric").is_in(metrics.to_list()))
    chart = page.figure(
        plot.plot_policies(shown),
        title="Completion time and utilization by policy",
        alt=plot.policies_text(shown),
        numbers=policies,
    )
    return View(
        page.section("Twenty jobs on eight H100", page.table(figures, caption="Claimed and measured"), chart),
        policies,
    )
