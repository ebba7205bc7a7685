"""Jobs that can never start, as a run finds them before it begins."""

from __future__ import annotations

import polars as pl

from gpuplanner.simulate import Calendar, Fleet, Rules
from gpuplanner.simulate.build import to_terms
from gpuplanner.simulate.jobs import checked_phases, never_fitting


def unservable(
    jobs: pl.DataFrame,
    fleet: Fleet,
    calendar: Calendar,
    rules: Rules,
    *,
    phases: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """``job_id, profile, gpus, reason``."""
    rows = checked_phases(jobs, phases, rules)
    return never_fitting(rows, to_terms(rows, fleet, calendar, rules), fleet, calendar)
