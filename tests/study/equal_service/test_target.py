"""Size classes, the target, and what a week to come may ask for."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from gpuplanner.study.equal_service.play import Played
from gpuplanner.study.equal_service.size_classes import SIZE_CLASSES, classed, pooled_classes
from gpuplanner.study.equal_service.spread import heavy_week, past_misses, week_spread
from gpuplanner.study.equal_service.target import ServiceTarget, wait_quantile


def week(waits_min: list[float], size: list[int]) -> Played:
    waits = 60.0 * np.array(waits_min)
    return Played(0.0, 0.0, waits, waits + 60.0, np.array(size), 0, 0, 0)


def test_a_target_is_held_exactly_while_its_share_of_the_jobs_is_on_time() -> None:
    target = ServiceTarget(0.95, ((0,), (1,)), (10.0, 30.0))
    on_time = week([10.0] * 19 + [500.0] + [30.0] * 20, [0] * 20 + [1] * 20)
    assert target.met([on_time])
    assert target.excess([on_time]) == pytest.approx(0.0, abs=1e-12)
    one_more = week([10.0] * 18 + [10.1, 500.0] + [30.0] * 20, [0] * 20 + [1] * 20)
    assert not target.met([one_more])
    assert target.excess([one_more]) == pytest.approx(0.05)
    assert wait_quantile([one_more], (0,), 0.95) == pytest.approx(606.0)
    assert target.met([one_more, on_time, on_time]) is False
    assert target.weeks_held([one_more, on_time]) == [1.0, 1.0]  # 10.1 is within 1.2 times 10


def test_a_class_that_waits_longer_today_may_go_on_to_and_no_other() -> None:
    today = week([0.0] * 20 + [40.0] * 20, [0] * 20 + [2] * 20)
    target = ServiceTarget.against_today([today], [(0,), (2,)], 0.95, 10.0)
    assert target.minutes == (10.0, 40.0)
    assert target.met([today])


def test_who_may_not_wait_at_all_is_measured_against_a_second() -> None:
    target = ServiceTarget(0.5, ((0,),), (0.0,))
    assert target.strain([week([0.0], [0])]) == 0.0
    assert target.strain([week([2.0], [0])]) == 120.0


def test_small_classes_join_a_neighbour_and_every_class_with_jobs_is_judged_once() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        jobs = rng.integers(0, 300, len(SIZE_CLASSES)) * (rng.random(len(SIZE_CLASSES)) < 0.8)
        groups = pooled_classes(jobs)
        assert [number for group in groups for number in group] == np.flatnonzero(jobs).tolist()
        assert len(groups) < 2 or all(jobs[list(group)].sum() >= 100 for group in groups)


def test_jobs_of_a_tenant_are_a_class_and_few_of_them_join_the_next() -> None:
    names = ["vision"] * 400 + ["speech"] * 150 + ["robots"] * 30 + ["maps"] * 20
    shuffled = pl.DataFrame({"tenant": np.random.default_rng(1).permutation(names)})
    number, classes = classed(shuffled, "tenant")
    assert classes == ("vision", "speech", "robots", "maps")
    assert all(classes[place] == name for place, name in zip(number, shuffled["tenant"], strict=True))
    groups = pooled_classes(np.bincount(number.to_numpy()))
    assert groups == [(0,), (1, 2, 3)]
    target = ServiceTarget(0.95, tuple(groups), (10.0, 10.0), classes)
    assert target.names() == ["vision", "speech, robots, maps"]


def test_nine_of_ten_weeks_to_come_ask_for_no_more_than_a_heavy_week() -> None:
    rng = np.random.default_rng(5)
    days = rng.normal(100.0, 15.0, (2000, 21))
    below = [run[14:].mean() <= heavy_week(run[:14]) * run[:14].mean() for run in days]
    assert 0.88 <= np.mean(below) <= 0.96  # alike neighbours are counted where chance made some


def test_nine_of_ten_weeks_to_come_lie_within_the_spread_of_the_days_seen() -> None:
    rng = np.random.default_rng(6)
    days = rng.normal(100.0, 15.0, (2000, 21))
    inside = [abs(run[14:].mean() / run[:14].mean() - 1) <= week_spread(run[:14], level=0.9) for run in days]
    assert 0.87 <= np.mean(inside) <= 0.96


def test_past_misses_are_those_of_every_week_after_a_week() -> None:
    daily = np.random.default_rng(7).gamma(4.0, 10.0, 30)
    found = past_misses(daily, 14)
    assert len(found) == 30 - 14 + 1
    assert found[3] == pytest.approx(daily[10:17].mean() / daily[0:10].mean() - 1)
    assert found[-1] == pytest.approx(daily[23:30].mean() / daily[9:23].mean() - 1)
