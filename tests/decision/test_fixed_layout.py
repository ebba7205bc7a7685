"""A schedule of layouts against the best fixed layout: hand-made runs, and one object for page, JSON and study."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from gpuplanner.decision.layout_planning import FixedLayoutComparison, PlanWeek, compare_with_fixed
from gpuplanner.simulator.simulation_inputs import NodeRequests

DAY_HOURS, SUBMIT_S = 24.0, 3600.0
PROFILES = ("gpu", "1g.5gb")


def run(hours: float, *waits: tuple[str, int, float | None]) -> PlanWeek:
    """A day with jobs by profile, GPUs and wait in minutes; None: never started."""
    profile = [PROFILES.index(name) for name, _, _ in waits]
    ready_s, run_s = np.full(len(waits), SUBMIT_S), np.ones(len(waits))
    total = [gpus for _, gpus, _ in waits]
    asked = NodeRequests(ready_s, ready_s, run_s, run_s, profile, total, np.ones(len(waits)))
    start_s = np.array([np.nan if wait is None else SUBMIT_S + 60 * wait for _, _, wait in waits])
    week = SimpleNamespace(
        requests=asked, fleet=SimpleNamespace(profiles=PROFILES, weights=np.array([1.0, 1 / 7])),
        outcome=SimpleNamespace(start_s=start_s), count_gpu_hours_on=lambda _: hours,
    )  # fmt: skip
    return PlanWeek.from_simulation(week, 3600 * DAY_HOURS)


def test_hours_are_those_of_a_week_and_the_wait_is_the_largest_rise_by_size():
    schedule = [run(80.0, ("gpu", 1, 5.0), ("gpu", 8, 30.0), ("1g.5gb", 1, 0.0))]
    fixed = [run(100.0, ("gpu", 1, 5.0), ("gpu", 8, 10.0), ("1g.5gb", 1, 60.0))]
    assert compare_with_fixed(schedule, fixed, DAY_HOURS) == FixedLayoutComparison(7 * 20.0, 20.0, 1)


def test_a_job_that_never_starts_waits_to_the_end_of_the_week():
    schedule, fixed = [run(1.0, ("gpu", 1, None))], [run(1.0, ("gpu", 1, 0.0))]
    assert compare_with_fixed(schedule, fixed, DAY_HOURS).added_p95_minutes == pytest.approx(23 * 60)


def test_page_and_json_have_the_line_of_the_study(study):
    told = json.loads(study.to_json())["plan"]["over_fixed"]
    assert told == vars(study.over_fixed)
