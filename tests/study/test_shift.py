"""Work that may wait: no choice of delays saves more, by trying every one; on the sample, from command to amount."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from gpuplanner.errors import GpuPlannerError, ScenarioError
from gpuplanner.scenario import Scenario
from gpuplanner.solving.effort import Effort
from gpuplanner.study.future.burst import wanted
from gpuplanner.study.future.shift import delays, shift_plan


@pytest.mark.parametrize("seed", range(12))
def test_no_choice_of_delays_saves_more(seed: int):
    rng = np.random.default_rng(seed)
    begin, hours = rng.uniform(0, 3, 5).round(2), rng.uniform(0.2, 2, 5).round(2)
    gpus = rng.choice([1.0, 2.0, 4.0], 5)
    saved = np.hstack([np.zeros((5, 1)), rng.uniform(-2, 6, (5, 3)).round(2)])
    now = wanted(begin, hours, gpus, 9)
    room = np.maximum(5.0 - now, 0.0)

    def fits(chosen: np.ndarray) -> bool:
        return bool((wanted(begin + chosen, hours, gpus, 9) <= now + room + 1e-5).all())

    found, most = delays(begin, hours, gpus, saved, room, Effort.begin(), gap=0.0)
    assert fits(found)
    every = np.arange(5)
    best = max(
        saved[every, list(one)].sum() for one in itertools.product(range(4), repeat=5) if fits(np.array(one))
    )
    assert saved[every, found].sum() == pytest.approx(best, abs=1e-6)
    assert most >= best - 1e-6


def test_a_search_that_is_cut_short_fills_no_hour_and_says_what_it_may_lack():
    """Eight jobs would all begin in the one clean hour, which takes two."""
    ones = np.ones(8)
    saved, room = np.tile([0.0, 3.0], (8, 1)), np.array([0.0, 2.0])
    spent = Effort.begin(work_limit=1)
    spent.spend(1e12)
    found, most = delays(0 * ones, ones, ones, saved, room, spent, gap=0.0)
    assert found.sum() <= 2
    assert most >= 3.0 * found.sum()


def grid_file(folder: Path, scenario_month: str = "2026-02") -> str:
    """Power that is clean and dear by day."""
    begin = pl.lit(f"{scenario_month}-01").str.to_date()
    hours = pl.select(
        pl.datetime_range(begin, begin.dt.offset_by("1mo"), "1h", time_zone="UTC", closed="left").alias(
            "time"
        )
    )
    by_day = pl.col("time").dt.hour().is_between(8, 17)
    grid = hours.with_columns(
        location_g_per_kwh=pl.when(by_day).then(100.0).otherwise(500.0),
        usd_per_kwh=pl.when(by_day).then(0.3).otherwise(0.1),
    )
    path = folder / "grid.csv"
    grid.with_columns(pl.col("time").dt.strftime("%Y-%m-%dT%H:%M:%SZ")).write_csv(path)
    return str(path)


def test_what_may_wait_runs_by_day_for_the_grid_and_by_night_for_the_purse(
    quick: Scenario, study, tmp_path: Path
):
    asked = quick.but(carbon_file=grid_file(tmp_path))
    clean = shift_plan(asked, {"best_effort": 8})
    assert clean.saved_kg.low <= clean.saved_kg.value <= clean.saved_kg.high
    assert clean.saved_kg.value > 0 > clean.saved_money.value
    assert 0 < clean.mean_delay_hours <= clean.longest_delay_hours <= 8
    assert clean.moved_gpu_hours <= clean.may_wait_gpu_hours
    assert clean.gap <= quick.gap_target
    cheap = shift_plan(asked, {"best_effort": 8}, by="price")
    assert cheap.saved_money.value > 0 > cheap.saved_kg.value
    assert cheap.gpus == study.decision.gpus
    less = shift_plan(asked, {"best_effort": 2})
    assert less.saved_kg.value <= clean.saved_kg.value


def test_the_command_takes_rules_and_refuses_what_is_none(quick: Scenario, study, tmp_path: Path, command):
    (tmp_path / "scenario.yaml").write_text(quick.but(carbon_file=grid_file(tmp_path)).to_yaml())
    asked = ("cost", str(tmp_path / "scenario.yaml"), "--json", "--shift")
    code, out, err = command(*asked, "evaluation=4")
    assert code == 0, err
    assert json.loads(out)["shift"]["saved_kg"]["value"] > 0
    assert command(*asked, "evaluation")[0] == 2
    assert "did you mean" in command(*asked, "evaluatoin=4")[2].lower()
    with pytest.raises(ScenarioError, match="1 to 72 hours"):
        shift_plan(quick.but(carbon_file=grid_file(tmp_path)), {"evaluation": 100})
    with pytest.raises(ScenarioError, match="grid hour by hour"):
        shift_plan(quick, {"evaluation": 4})
    with pytest.raises(GpuPlannerError, match="shift by"):
        shift_plan(quick, {"evaluation": 4}, by="water")
