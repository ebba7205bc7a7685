"""Whether there is enough of a past to plan from; if not, a study says what happened and plans nothing."""

from __future__ import annotations

from datetime import timedelta

import polars as pl

from gpuplanner.scenario import Scenario
from gpuplanner.simulate.replications import SATURDAY
from gpuplanner.study.future.workload import days_to_draw, past_jobs
from gpuplanner.study.past.history import History, history

SPARE_SLOTS = 2
"""Slots that a forecast needs beside as many as it tells."""


def too_short(scenario: Scenario) -> str | None:
    """Why no plan can be made of so short a past, in words; None where it is long enough.

    Examples
    --------
    >>> too_short(Scenario(month="2026-02"))
    >>> too_short(Scenario(month="2026-02", history_days=3))
    'the history has 72 hours, and a forecast of 168 hours needs at least 170'
    """
    known = history(scenario)
    seen = (known.plan_start - known.recent) / timedelta(hours=1)
    ahead = scenario.horizon_slots * scenario.slot_hours
    needed = ahead + SPARE_SLOTS * scenario.slot_hours
    if seen < needed:
        return f"the history has {seen:g} hours, and a forecast of {ahead:g} hours needs at least {needed:g}"
    return _missing_days(known, ahead)


def _missing_days(known: History, ahead_h: float) -> str | None:
    """Working days are drawn from working days, days of weekends from such."""
    past = days_to_draw(known, past_jobs(known))
    if past.is_empty():
        return "no job was submitted in the history"
    seen = past.select(
        pl.date_range(pl.col("submit_time").min().dt.date(), pl.col("submit_time").max().dt.date())
    )
    kinds = set((seen.to_series().dt.weekday() >= SATURDAY).to_list())
    days = -(-int(ahead_h) // 24)
    coming = {(known.plan_start + timedelta(days=day)).isoweekday() >= SATURDAY for day in range(days)}
    for weekend, name in ((False, "working day"), (True, "day of a weekend")):
        if weekend in coming - kinds:
            return f"the history has no {name}, and the horizon has"
    return None
