"""Whether the saving of a plan may be headlined: its waits must not be worse, nor contradicted by those observed."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from gpuplanner.errors import ScenarioError
from gpuplanner.metrics import mean_interval
from gpuplanner.metrics.agreement import agreement
from gpuplanner.scenario import Scenario
from gpuplanner.simulate import Rules
from gpuplanner.study.future.calibration import (
    CIRCULAR,
    CONTRADICTED,
    EXPLAINED,
    UNCHECKED,
    Thresholds,
    judge,
    outcome,
    sentence,
)
from gpuplanner.study.future.fleet_fit import replay
from gpuplanner.study.past.history import history
from gpuplanner.study.past.observed import observe
from gpuplanner.study.stages import stage

SHOWN, SIMULATED_ONLY = "shown", "simulated only"
NOT_COMPARABLE, WITHHELD, NO_PLAN = "not comparable", "withheld", "no plan"
STATUSES = {
    SHOWN: "the simulator waits as was observed, and the plan's waits are not worse than today's",
    SIMULATED_ONLY: "the plan's waits are not worse than today's, in a simulator that could not be checked",
    NOT_COMPARABLE: "the plan's waits are worse than today's by more than the interval, or some jobs find no room",
    WITHHELD: "the simulator does not wait as was observed",
    NO_PLAN: "the history is too short to forecast and plan from",
}
"""What may be said of a saving. Only of the first two it is a headline; tables of all policies always stand."""
HEADLINED = (SHOWN, SIMULATED_ONLY)


@dataclass(frozen=True)
class WaitsCheck:
    """The observed waits beside those of the simulator that a study uses.

    Attributes
    ----------
    outcome : str
        One of :data:`gpuplanner.study.future.calibration.OUTCOMES`.
    sentence : str
        The same with its figures.
    """

    outcome: str
    sentence: str


@dataclass(frozen=True)
class Saving:
    """What may be said of the saving of a plan.

    Attributes
    ----------
    status : str
        One of :data:`STATUSES`.
    note : str
        Why, with both figures.
    """

    status: str
    note: str

    @property
    def headlined(self) -> bool:
        """Whether the figure may stand as a headline."""
        return self.status in HEADLINED


@stage("queue", after=(history,))
def waits_check(scenario: Scenario) -> WaitsCheck:
    """Serve the jobs of the trace again by the scenario's queue, and compare the waits with those observed."""
    known = history(scenario)
    gpus = scenario.nodes * scenario.gpus_per_node if known.trace.inventory is None else 0
    try:
        observed = observe(known.trace, gpus=gpus or None)
    except ScenarioError:
        text = "No job states when it started and ended, so the simulator cannot be checked here; simulated only."
        return WaitsCheck(UNCHECKED, text)
    waits = replay(observed, Rules(queue=scenario.queue))
    overall = agreement(observed.jobs.select("observed_s", simulated_s=waits)).row(0, named=True)
    found = outcome(overall)
    lead = "The simulator does not wait as was observed" if found == CONTRADICTED else ""
    text = sentence(judge(overall, Thresholds()), overall, lead=lead)
    made_up = known.trace.provenance["source"] == "synthetic"
    return WaitsCheck(found, text + (CIRCULAR if made_up else ""))


def judged_saving(check: WaitsCheck, runs: pl.DataFrame, *, baseline: str, plan: str) -> Saving:
    """Say whether the saving of a plan against a baseline may be headlined.

    Parameters
    ----------
    check : WaitsCheck
        Whether the simulator waits as was observed.
    runs : polars.DataFrame
        ``policy``, ``replication``, ``mean_queueing_delay_s``, ``unservable`` of every run.
    baseline, plan : str
        Policies.

    Returns
    -------
    Saving
        Waits are worse if their mean is above the 95 % interval of today's, or the interval of the difference,
        replication by replication, is above zero. Few replications make wide intervals of differences, and weeks
        that differ make wide intervals of waits; either is enough.

    Examples
    --------
    >>> runs = pl.DataFrame({"policy": ["a", "a", "b", "b"], "replication": [0, 1, 0, 1], "unservable": 0,
    ...     "mean_queueing_delay_s": [30.0, 30.0, 8640.0, 8650.0]})
    >>> judged_saving(WaitsCheck("explained", "As seen."), runs, baseline="a", plan="b").note
    'not comparable: jobs wait 144.1 minutes on average instead of 0.5'
    """
    if check.outcome == CONTRADICTED:
        return Saving(WITHHELD, f"withheld: {check.sentence}")
    before, after = (_of(runs, policy, "mean_queueing_delay_s") for policy in (baseline, plan))
    worse, stuck = (
        _worse(before, after),
        _worse(*(_of(runs, name, "unservable") for name in (baseline, plan))),
    )
    if worse:
        then, now = (float(side.mean()) / 60 for side in (after, before))  # type: ignore[arg-type]
        return Saving(
            NOT_COMPARABLE, f"not comparable: jobs wait {then:,.1f} minutes on average instead of {now:,.1f}"
        )
    if stuck:
        none, some = (float(_of(runs, name, "unservable").mean()) for name in (baseline, plan))  # type: ignore[arg-type]
        return Saving(
            NOT_COMPARABLE,
            f"not comparable: on average {some:,.1f} jobs never find room instead of {none:,.1f}",
        )
    status = SHOWN if check.outcome == EXPLAINED else SIMULATED_ONLY
    return Saving(status, f"{status}: {check.sentence}" if status == SIMULATED_ONLY else check.sentence)


def _of(runs: pl.DataFrame, policy: str, measure: str) -> pl.Series:
    return runs.filter(policy=policy).sort("replication")[measure].cast(pl.Float64)


def _worse(before: pl.Series, after: pl.Series) -> bool:
    """Whether the second is above the first by more than its interval, or than that of their difference."""
    known = before.is_not_null() & after.is_not_null()
    before, after = before.filter(known), after.filter(known)
    if before.is_empty():
        return False
    today, differences = mean_interval(before.to_numpy()), mean_interval((after - before).to_numpy())
    above = today.mean + differences.mean > (today.mean if today.high is None else today.high)
    return above or (differences.mean if differences.low is None else differences.low) > 0
