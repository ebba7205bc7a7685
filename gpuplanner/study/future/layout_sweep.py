"""Static layouts over the drawn weeks of a scenario."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from gpuplanner.scenario import Scenario
from gpuplanner.simulate import Fleet, Rules
from gpuplanner.study.future.sweep import Policies, Sweep, static_mixes, sweep
from gpuplanner.study.future.workload import fleet_and_rules, past_jobs, replicate, workload
from gpuplanner.study.past.history import history


def sweep_layouts(
    scenario: Scenario,
    *,
    most: int = 20,
    rank_by: str = "mean_jct_s",
    progress: Callable[[int, int, str], object] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Sweep:
    """Simulate the right-sized jobs of a scenario under its most promising static mixes.

    Examples
    --------
    >>> found = sweep_layouts(Scenario(replications=2, horizon_slots=24), most=2)
    >>> found.complete, found.table.height
    (True, 2)
    """
    drawn, fleet, policies, rules = layouts_to_sweep(scenario, most=most)
    return sweep(drawn, fleet, policies, rules, rank_by=rank_by, progress=progress, cancel=cancel)


def layouts_to_sweep(
    scenario: Scenario, *, most: int = 20
) -> tuple[list[pl.DataFrame], Fleet, Policies, Rules]:
    """What :func:`sweep_layouts` simulates, as :func:`gpuplanner.study.future.sweep.sweep` and its panel take it.

    Examples
    --------
    >>> drawn, fleet, policies, rules = layouts_to_sweep(Scenario(replications=2, horizon_slots=24), most=2)
    >>> len(drawn), fleet.gpus, len(policies)
    (2, 64, 2)
    """
    known = history(scenario)
    known.fleet.require_mig("sweep")
    past = past_jobs(known)
    fleet, rules = fleet_and_rules(scenario, known)
    drawn = [
        workload(replicate(scenario, known, past, number), "rightsized")
        for number in range(scenario.replications)
    ]
    return drawn, fleet, static_mixes(drawn[0], fleet, most=most), rules
