"""Whether the simulator waits as was observed: what it says of other fleets may be headlined only where it does."""

from __future__ import annotations

from dataclasses import dataclass

from gpuplanner.errors import ScenarioError
from gpuplanner.metrics.agreement import agreement
from gpuplanner.scenario import Scenario
from gpuplanner.simulate import Rules
from gpuplanner.study.future.calibration import (
    CIRCULAR,
    CONTRADICTED,
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
from gpuplanner.units import SECONDS_PER_MINUTE


@dataclass(frozen=True)
class WaitsCheck:
    """The observed waits beside those of the simulator that a study uses.

    Attributes
    ----------
    outcome : str
        One of :data:`gpuplanner.study.future.calibration.OUTCOMES`.
    sentence : str
        The same with its figures.
    observed_mean_min, simulated_mean_min : float or None
        Mean wait of the jobs compared, as they waited and as the simulator says of the fleet as it is.
    """

    outcome: str
    sentence: str
    observed_mean_min: float | None = None
    simulated_mean_min: float | None = None


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
    means = (overall[f"{side}_mean_s"] / SECONDS_PER_MINUTE for side in ("observed", "simulated"))
    return WaitsCheck(found, text + (CIRCULAR if made_up else ""), *means)
