"""Static layouts and cutting on demand over the drawn weeks of a scenario."""

from __future__ import annotations

from collections.abc import Callable

from gpuplanner.scenario import Scenario
from gpuplanner.simulate import Calendar, OnDemand
from gpuplanner.study.future.sweep import Sweep, static_mixes, sweep
from gpuplanner.study.future.workload import fleet_and_rules, past_jobs, replicate, workload
from gpuplanner.study.past.history import history

ON_DEMAND = "cut on demand"


def sweep_layouts(
    scenario: Scenario,
    *,
    most: int = 20,
    rank_by: str = "mean_jct_s",
    progress: Callable[[int, int, str], object] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Sweep:
    """Simulate the right-sized jobs of a scenario under its most promising static mixes, and cut on demand.

    Parameters
    ----------
    scenario : Scenario
        Fleet, rules and drawn weeks are its own; the first mix is the baseline.
    most : int
        Static mixes to simulate.
    rank_by, progress, cancel
        As for :func:`gpuplanner.study.future.sweep.sweep`.

    Examples
    --------
    >>> found = sweep_layouts(Scenario(replications=2, horizon_slots=24), most=2)
    >>> found.complete, found.table.height
    (True, 3)
    """
    known = history(scenario)
    known.fleet.require_mig("sweep")
    past = past_jobs(known)
    fleet, rules = fleet_and_rules(scenario, known)
    drawn = [
        workload(replicate(scenario, known, past, number), "rightsized").drop("active_gpus")
        for number in range(scenario.replications)
    ]
    policies: dict[str, Calendar | OnDemand] = {**static_mixes(drawn[0], fleet, most=most)}
    policies[ON_DEMAND] = OnDemand()
    return sweep(drawn, fleet, policies, rules, rank_by=rank_by, progress=progress, cancel=cancel)
