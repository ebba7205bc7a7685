"""A closer look at the policies: who surely differs from today, how waits spread, what GPUs did while others waited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from gpuplanner.metrics import (
    POLICY_MEASURES,
    Measure,
    distribution,
    hours_by_condition,
    instance_fragmentation,
    instance_totals,
    rank_policies,
)
from gpuplanner.metrics.accounts import within
from gpuplanner.scenario import Scenario
from gpuplanner.study.future.money import energy_of_runs, power_of, pue_of
from gpuplanner.study.future.proof import POLICIES, PolicyRun, compare, each_run, measured, policies_of
from gpuplanner.study.past.history import history

JUDGED = (
    *(each for each in POLICY_MEASURES if each.better == "low"),
    Measure(
        "provisioned_gpu_hours", "GPU time on", "GPU h", 1.0, "low", "GPU-hours of GPUs that are not off"
    ),
)
"""What policies are told apart by. They ask for slices of unlike sizes, so what is held of them says nothing."""


@dataclass(frozen=True, eq=False)
class PolicyDetail:
    """What there is to say of the policies beyond means.

    Parameters
    ----------
    policies : polars.DataFrame
        Every measure of every policy with its interval: :func:`gpuplanner.study.future.proof.compare`.
    verdicts : polars.DataFrame
        :func:`gpuplanner.metrics.rank_policies` against today's fleet: ``better``, ``worse`` or ``not told apart``,
        by p-values of Holm over the whole table. Measures that a run does not have are left out.
    waits : polars.DataFrame
        ``policy, measure, jobs`` (of all replications), means over replications of ``mean, p50, p95, p99`` and
        ``tail_mean`` (of the worst 5 %), and ``longest`` of all; measures of single jobs.
    hours : polars.DataFrame
        Means over replications, within the horizon [GPU h]: ``busy, idle, reconfiguring, off`` of
        :func:`gpuplanner.metrics.hours_by_condition`; of the instances that nobody held,
        ``idle_while_waiting_gpu_hours`` while some job waited, and ``stranded_gpu_hours`` of profiles that none of
        those waited for; ``energy_kwh`` at the building's meter, null without a law of power.
    """

    policies: pl.DataFrame
    verdicts: pl.DataFrame
    waits: pl.DataFrame
    hours: pl.DataFrame

    def to_dict(self) -> dict[str, Any]:
        """The tables, ready for JSON."""
        return {name: getattr(self, name).to_dicts() for name in ("policies", "verdicts", "waits", "hours")}


def policy_detail(scenario: Scenario) -> PolicyDetail:
    """Serve the drawn jobs under every policy once more, and look closer.

    Examples
    --------
    >>> found = policy_detail(Scenario(replications=2, horizon_slots=24))
    >>> found.hours.columns[:5], found.waits["measure"][0]
    (['policy', 'busy', 'idle', 'reconfiguring', 'off'], 'queueing_delay_s')
    """
    rows, waits, hours = [], [], []
    for one in each_run(scenario):
        rows.append(measured(one))
        waits.append(_waits(one))
        hours.append(_hours(one))
    runs = pl.DataFrame(rows, infer_schema_length=None)
    known = history(scenario)
    power = power_of(known.fleet)
    energy = None if power is None else energy_of_runs(runs, power, pue_of(scenario))
    spent = pl.DataFrame(hours).with_columns(
        pl.lit(None, pl.Float64).alias("energy_kwh") if energy is None else energy
    )
    return PolicyDetail(
        compare(runs, policies_of(known)),
        verdicts(runs),
        _over_replications(pl.concat(waits)),
        spent.group_by("policy", maintain_order=True).mean(),
    )


def verdicts(runs: pl.DataFrame) -> pl.DataFrame:
    """Which policies surely differ from today's, in the measures that every run has."""
    whole = [each for each in JUDGED if not runs[each.column].null_count()]
    return rank_policies(runs, baseline=POLICIES[0].name, measures=whole)


def _waits(one: PolicyRun) -> pl.DataFrame:
    found = distribution(within(one.run.outcomes, "submit", one.window))
    return found.insert_column(0, pl.lit(one.policy.name).alias("policy"))


def _over_replications(waits: pl.DataFrame) -> pl.DataFrame:
    return waits.group_by("policy", "measure", maintain_order=True).agg(
        pl.col("jobs").sum(),
        pl.col("mean", "p50", "p95", "p99", "tail_mean").mean(),
        longest=pl.col("max").max(),
    )


def _hours(one: PolicyRun) -> dict[str, Any]:
    board = one.fleet.model
    idle = instance_totals(instance_fragmentation(one.run, board), window=one.window)
    return {
        "policy": one.policy.name,
        **hours_by_condition(one.run, board, window=one.window),
        **{name: idle[name] for name in ("idle_while_waiting_gpu_hours", "stranded_gpu_hours")},
    }
