"""A schedule of layouts against the best fixed layout: hand-made runs, and one object for page, JSON and study."""

from __future__ import annotations

import json
from types import SimpleNamespace

import polars as pl
import pytest

from gpuplanner.hardware import load_gpu_model
from gpuplanner.report.appendix import layouts
from gpuplanner.study.future import fixed_layout
from gpuplanner.study.future.fixed_layout import OverFixed, compare_with_fixed

DAY_S = 86_400.0


def run(hours: float, *waits: tuple[str, float, float | None]) -> SimpleNamespace:
    """A day with jobs by profile, GPUs and wait in minutes; None: never started."""
    rows = [
        {
            "profile": name,
            "gpus": gpus,
            "submit": 3600.0,
            "first_start": None if wait is None else 3600.0 + 60 * wait,
        }
        for name, gpus, wait in waits
    ]
    return SimpleNamespace(
        hours=hours, outcomes=pl.DataFrame(rows, schema_overrides={"first_start": pl.Float64})
    )


@pytest.fixture(autouse=True)
def stated_hours(monkeypatch, request):
    if "study" not in request.fixturenames:
        monkeypatch.setattr(
            fixed_layout, "measure", lambda one, *_, **__: {"provisioned_gpu_hours": one.hours}
        )


def test_hours_are_those_of_a_week_and_the_wait_is_the_largest_rise_by_size():
    schedule = [run(80.0, ("gpu", 1, 5.0), ("gpu", 8, 30.0), ("1g.5gb", 1, 0.0))]
    fixed = [run(100.0, ("gpu", 1, 5.0), ("gpu", 8, 10.0), ("1g.5gb", 1, 60.0))]
    found = compare_with_fixed(schedule, fixed, load_gpu_model("A100-40GB"), DAY_S)
    assert found == OverFixed(7 * 20.0, 20.0, 1)


def test_a_job_that_never_starts_waits_to_the_end_of_the_week():
    schedule, fixed = [run(1.0, ("gpu", 1, None))], [run(1.0, ("gpu", 1, 0.0))]
    found = compare_with_fixed(schedule, fixed, load_gpu_model("A100-40GB"), DAY_S)
    assert found.added_p95_minutes == pytest.approx(23 * 60)


def test_page_and_json_have_the_line_of_the_study(study):
    told = json.loads(study.to_json())["plan"]["over_fixed"]
    assert told == vars(study.over_fixed)
    assert study.over_fixed.sentence in str(layouts(study))
