"""Coarse answers: chosen among what was tried, priced by multiplication, and marked as what they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.comparison_record import Comparison, FrontierPoint, PolicyRow
from gpuplanner.decision.decision_text import make_empty_decision
from gpuplanner.decision.study_pipeline import estimate_coarsely

KNOWN = Scenario(actuator="slurm")


@pytest.fixture(scope="module")
def tried() -> Comparison:
    """Two settings of pools, and two of nodes that are cut as jobs come."""
    one = replace(make_empty_decision(KNOWN, "none"), action="keep", fleet_gpus=64, gpus=64)
    today = PolicyRow("today", "all on", gpu_hours=1000.0, gpu_hours_promised=1000.0, added_wait_p95_minutes=0.0)
    pools = PolicyRow(
        "autoscaled_pools",
        "come and go",
        gpu_hours=600.0,
        gpu_hours_promised=600.0,
        added_wait_p95_minutes=9.0,
    )
    fixed = PolicyRow("fewer_nodes", "fewer", gpu_hours=900.0, gpu_hours_promised=900.0, added_wait_p95_minutes=1.0)
    points = (("autoscaled_pools", 600.0, 9.0), ("autoscaled_pools", 800.0, 2.0), ("fewer_nodes", 900.0, 1.0))
    frontier = tuple(FrontierPoint(*point) for point in points)
    return Comparison(one, 0.95, 10.0, today, (pools, fixed), frontier)


@pytest.mark.parametrize(("minutes", "saved"), [(10.0, 400.0), (5.0, 200.0), (1.0, 100.0), (0.5, None)])
def test_a_limit_takes_the_cheapest_setting_within_it(tried, minutes, saved):
    found = estimate_coarsely(tried, KNOWN.but(max_added_wait_minutes=20.0), KNOWN.but(max_added_wait_minutes=minutes))
    assert found.decision.saving.value == saved
    assert "Coarse" in found.decision.confidence[0]


@pytest.mark.parametrize(("times", "saved"), [(0.5, 700.0), (1.5, 100.0), (2.0, None)])
def test_more_jobs_keep_what_was_tried_on_for_longer(tried, times, saved):
    assert estimate_coarsely(tried, KNOWN, KNOWN.but(arrival_scale=times)).decision.saving.value == saved
