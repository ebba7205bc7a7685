"""Seeds times policies: every policy serves the same jobs of every seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from gpuplanner.errors import ScenarioError, message
from gpuplanner.lab.claims.twenty_jobs.account import account
from gpuplanner.lab.claims.twenty_jobs.arrange import LAYOUTS, arrange
from gpuplanner.lab.claims.twenty_jobs.design import Design
from gpuplanner.lab.claims.twenty_jobs.draw import draw
from gpuplanner.lab.claims.twenty_jobs.recommend import Profiling, observe, recommend, shipped_rule, verdicts
from gpuplanner.lab.claims.twenty_jobs.serve import ServedBatch, serve
from gpuplanner.metrics import mean_interval, paired

REQUESTS = ("asked", "recommended", "shipped", "true")
"""Whose profile counts: the owner's; the recommender's; that of ``gpuplanner.sizing.right_profiles``; the need itself,
which nobody knows and which is there for comparison only."""

VERDICTS = ("right", "larger", "slower", "out of memory")


@dataclass(frozen=True)
class Policy:
    """How a batch is served.

    Parameters
    ----------
    name : str
        What it is called in tables.
    requests : str
        One of :data:`REQUESTS`.
    layouts : str
        One of :data:`gpuplanner.lab.claims.twenty_jobs.arrange.LAYOUTS`.
    profiling_charged : bool
        Whether the profiling runs take time of the batch, on the static layout, before anything else. If not,
        they were made before: on an earlier run of the same job.

    Examples
    --------
    >>> Policy("half way", "recommended", "static").layouts
    'static'
    """

    name: str
    requests: str
    layouts: str
    profiling_charged: bool = False

    def __post_init__(self) -> None:
        """Check the words."""
        if self.requests not in REQUESTS or self.layouts not in LAYOUTS:
            text = message(
                f"policy {self.name!r}",
                f"requests of {', '.join(REQUESTS)}, layouts of {', '.join(LAYOUTS)}",
                f"{self.requests!r}, {self.layouts!r}",
                "Choose one of each.",
            )
            raise ScenarioError(text)


CASE_1 = Policy("case 1: as asked, static", "asked", "static")
CASE_2 = Policy("case 2: right-sized, planned", "recommended", "exact")


def one(
    policy: Policy,
    seed: int,
    design: Design | None = None,
    profiling: Profiling | None = None,
    *,
    speed: str = "slices",
) -> tuple[ServedBatch, list[str]]:
    """Serve the jobs of one seed under one policy.

    Returns
    -------
    ServedBatch
        What became of them.
    list of str
        Profiles that the policy asked for, in the order of the jobs.

    Examples
    --------
    >>> served, requested = one(CASE_2, seed=3)
    >>> served.run.outcomes.height, requested.count("3g.40gb")
    (20, 8)
    """
    design, profiling = design or Design(), profiling or Profiling()
    jobs = draw(design, seed)
    requested = _requested(policy, jobs, design, seed, profiling)
    return serve(jobs, arrange(requested, design, policy.layouts), design, speed=speed), requested


def replicate(
    policies: Sequence[Policy],
    seeds: Iterable[int],
    design: Design | None = None,
    profiling: Profiling | None = None,
    *,
    speed: str = "slices",
) -> pl.DataFrame:
    """Serve the jobs of every seed under every policy.

    Returns
    -------
    polars.DataFrame, shape (n_seeds * n_policies, ...)
        ``seed``, ``policy``, the figures of :func:`gpuplanner.lab.claims.twenty_jobs.account.account`, and how many
        requests were ``right``, ``larger``, ``slower`` and ``out of memory`` by the hidden truth.

    Raises
    ------
    GpuPlannerError
        If the identity of work fails in any run.

    Examples
    --------
    >>> rows = replicate([CASE_1, CASE_2], seeds=range(2))
    >>> rows.group_by("policy", maintain_order=True).agg(pl.col("completion_min").mean() > 90).rows()
    [('case 1: as asked, static', True), ('case 2: right-sized, planned', False)]
    """
    design, profiling = design or Design(), profiling or Profiling()
    rows = []
    for seed in seeds:
        for policy in policies:
            served, requested = one(policy, seed, design, profiling, speed=speed)
            found = account(served, design, speed=speed)
            if policy.profiling_charged:
                found = _after_profiling(found, seed, design, profiling, speed)
            first = served.attempts.filter(attempt=1)
            judged = verdicts(first, requested, design, speed).value_counts()
            counts = dict.fromkeys(VERDICTS, 0) | dict(judged.iter_rows())
            rows.append({"seed": seed, "policy": policy.name} | found | counts)
    return pl.DataFrame(rows, infer_schema_length=None)


def summarise(rows: pl.DataFrame, measures: Sequence[str]) -> pl.DataFrame:
    """Mean, spread over seeds, and 95 % interval of the mean.

    Returns
    -------
    polars.DataFrame
        ``policy, measure, mean, sd, least, most, low, high, seeds``, in the order of policies and measures.

    Examples
    --------
    >>> rows = pl.DataFrame({"policy": "a", "seed": [0, 1, 2], "completion_min": [58.0, 60.0, 62.0]})
    >>> found = summarise(rows, ["completion_min"]).row(0, named=True)
    >>> found["mean"], found["sd"], round(found["low"], 2), round(found["high"], 2)
    (60.0, 2.0, 55.03, 64.97)
    """
    found = []
    for (policy,), mine in rows.group_by("policy", maintain_order=True):
        for measure in measures:
            values = mine[measure].cast(pl.Float64)
            known = mean_interval(values.to_numpy())
            found.append(
                {"policy": policy, "measure": measure, "mean": known.mean, "sd": values.std()}
                | {"least": values.min(), "most": values.max(), "low": known.low, "high": known.high}
                | {"seeds": known.replications}
            )
    return pl.DataFrame(found, infer_schema_length=None)


def differences(rows: pl.DataFrame, baseline: str, measures: Sequence[str]) -> pl.DataFrame:
    """What each policy changes against a baseline, with the interval of the differences seed by seed.

    Returns
    -------
    polars.DataFrame
        ``policy, measure, difference, low, high, ratio``.

    Examples
    --------
    >>> rows = pl.DataFrame({"seed": [0, 1] * 2, "policy": ["a", "a", "b", "b"], "x": [4.0, 8.0, 3.0, 6.0]})
    >>> differences(rows, "a", ["x"]).select("policy", "difference", "ratio").rows()
    [('b', -1.5, 0.75)]
    """
    before = rows.filter(policy=baseline).sort("seed")
    found = []
    for (policy,), mine in rows.group_by("policy", maintain_order=True):
        if policy == baseline:
            continue
        after = mine.sort("seed")
        for measure in measures:
            known = paired(before[measure].to_numpy(), after[measure].to_numpy())
            found.append(
                {"policy": policy, "measure": measure, "difference": known.difference.mean}
                | {"low": known.difference.low, "high": known.difference.high, "ratio": known.ratio}
            )
    return pl.DataFrame(found, infer_schema_length=None)


def _requested(
    policy: Policy, jobs: pl.DataFrame, design: Design, seed: int, profiling: Profiling
) -> list[str]:
    if policy.requests in ("asked", "true"):
        return jobs["asks_for" if policy.requests == "asked" else "need"].to_list()
    samples = observe(jobs, design, seed, profiling)
    asked = jobs.select("job_id", "asks_for")
    if policy.requests == "shipped":
        return shipped_rule(asked, samples, design)
    return recommend(asked, samples, design, profiling)


def _after_profiling(
    found: dict[str, Any], seed: int, design: Design, profiling: Profiling, speed: str
) -> dict[str, Any]:
    """The same figures where the batch begins with the profiling runs; what these compute counts as no work."""
    runs = draw(design, seed).with_columns(run_min=pl.lit(float(profiling.minutes)))
    before = account(serve(runs, arrange(runs["asks_for"].to_list(), design, "static"), design), design)
    lead = before["completion_min"]
    total = found["completion_min"] + lead
    weighted = {
        name: (found[name] * found["completion_min"] + before[name] * lead) / total
        for name in ("provisioned_slices", "gpus_on")
    }
    return (
        found
        | weighted
        | {
            "completion_min": total,
            "mean_jct_min": found["mean_jct_min"] + lead,
            "mean_wait_min": found["mean_wait_min"] + lead,
            "utilisation_provisioned": found["work"] / (weighted["provisioned_slices"] * total),
            "utilisation_server": found["utilisation_server"] * found["completion_min"] / total,
            "utilisation_instances": None,
        }
    )
