"""How long today's fleet lasts, if weekly peaks go on as they went."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from gpuplanner.errors import ScenarioError, SchemaError
from gpuplanner.scenario import Scenario
from gpuplanner.study.future.gpus_wanted import wanted
from gpuplanner.study.past.history import history
from gpuplanner.study.stages import stage

EARLY, EVEN = 0.1, 0.5
"""Probabilities that weekly peaks have passed the fleet by an instant."""


class Lasting(NamedTuple):
    """When peaks have passed the fleet with a probability of :data:`EARLY` and of :data:`EVEN`; None: not in a year.

    Of the `weeks` behind, `above` had their peak above the fleet already.
    """

    early: datetime | None
    even: datetime | None
    above: int
    weeks: int


@stage("slot_hours", after=(history,))
def lasting(scenario: Scenario) -> Lasting | None:
    """When the peaks of weeks pass the GPUs installed, see :func:`gpuplanner.forecast.run_out`; None: too few weeks.

    Examples
    --------
    >>> found = lasting(Scenario(month="2026-02"))
    >>> found.early <= found.even
    True
    """
    known = history(scenario)
    try:
        seen = wanted(scenario, at=known.plan_start)
        weeks, peaks = seen.run_out(known.fleet.installed.gpus, seed=scenario.seed), seen.weekly_peaks()
    except (ScenarioError, SchemaError):
        return None

    def first(level: float) -> datetime | None:
        past = weeks.filter(weeks["run_out_by"] >= level)
        return known.plan_start + timedelta(weeks=past["week"][0]) if past.height else None

    above = int((peaks > known.fleet.installed.gpus).sum())
    return Lasting(first(EARLY), first(EVEN), above, len(peaks))
