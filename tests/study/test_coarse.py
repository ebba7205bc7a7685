"""Coarse answers: chosen among what was tried, priced by multiplication, and marked as what they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuplanner.scenario import Scenario
from gpuplanner.study.coarse import coarse
from gpuplanner.study.decision.record import QUANTILES, Comparison, FrontierPoint, PolicyRow, compared
from gpuplanner.study.decision.sentences import no_decision

KNOWN = Scenario(path="slurm")


@pytest.fixture(scope="module")
def tried() -> Comparison:
    """Two settings of pools, and two of nodes that are cut as jobs come."""
    one = replace(no_decision(KNOWN, "none"), action="keep", fleet_gpus=64, gpus=64)
    today = PolicyRow("today", "all on", gpu_hours=1000.0, gpu_hours_promised=1000.0, added_minutes=0.0)
    pools = PolicyRow(
        "node_pools", "come and go", gpu_hours=600.0, gpu_hours_promised=600.0, added_minutes=9.0
    )
    fixed = PolicyRow("static_whole", "fewer", gpu_hours=900.0, gpu_hours_promised=900.0, added_minutes=1.0)
    points = (("node_pools", 600.0, 9.0), ("node_pools", 800.0, 2.0), ("static_whole", 900.0, 1.0))
    minutes = ((1.0, 3.0, 7.0, 9.0, 30.0), (0.0, 0.0, 1.0, 2.0, 8.0), (0.0, 0.0, 0.0, 1.0, 2.0))
    frontier = tuple(FrontierPoint(*point, seen) for point, seen in zip(points, minutes, strict=True))
    return Comparison(one, 0.95, 10.0, today, (pools, fixed), frontier)


@pytest.mark.parametrize(("minutes", "saved"), [(10.0, 400.0), (5.0, 200.0), (1.0, 100.0), (0.5, None)])
def test_a_limit_takes_the_cheapest_setting_within_it(tried, minutes, saved):
    found = coarse(tried, KNOWN.but(wait_minutes=20.0), KNOWN.but(wait_minutes=minutes))
    assert found.decision.saving.value == saved
    assert "Coarse" in found.decision.how_sure[0]


@pytest.mark.parametrize(("share", "saved"), [(0.75, 400.0), (0.9, 200.0), (0.92, 200.0), (0.99, 100.0)])
def test_a_share_of_the_jobs_reads_what_each_setting_adds_for_it(tried, share, saved):
    """At 5 minutes: for three quarters of the jobs the cheapest pools do, for 99 of 100 none of them."""
    known = KNOWN.but(wait_minutes=5.0)
    assert coarse(tried, known, known.but(wait_quantile=share)).decision.saving.value == saved


@pytest.mark.parametrize(("times", "saved"), [(0.5, 700.0), (1.5, 100.0), (2.0, None)])
def test_more_jobs_keep_what_was_tried_on_for_longer(tried, times, saved):
    assert coarse(tried, KNOWN, KNOWN.but(arrival_scale=times)).decision.saving.value == saved


def test_prices_are_the_exact_answer(quick):
    """Nothing that is played reads a price, so that the coarse worth is the exact one."""
    known = quick.but(ownership="owned", policies="whole_on_off")
    asked = known.but(price_usd_per_kwh=0.5)
    found, exact = coarse(compared(known), known, asked), compared(asked)
    assert found.decision.worth == exact.decision.worth
    assert found.policies == exact.policies


def test_what_each_setting_adds_at_the_stated_share_is_the_setting_itself(quick):
    points = compared(quick).frontier
    assert points
    for point in points:
        assert point.by_quantile[QUANTILES.index(quick.wait_quantile)] == point.added_minutes
