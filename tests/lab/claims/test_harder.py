"""The harder case: totals kept, needs that the static layout lacks, and policies in their order."""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl
import pytest

from gpuplanner.errors import ScenarioError
from gpuplanner.lab.claims.twenty_jobs import Harder, draw_harder, replicate_harder
from gpuplanner.lab.claims.twenty_jobs.compare_harder import (
    BOUND,
    FORECAST,
    GREEDY,
    PERFECT,
    STATIC,
    degraded,
)
from gpuplanner.lab.claims.twenty_jobs.harder import HISTORY_SEEDS, forecast_day, wanted

SEEDS = range(2)


@pytest.fixture(scope="module")
def rows():
    return replicate_harder(SEEDS)


def test_totals_are_kept_and_the_static_layout_lacks_instances():
    for seed in range(20):
        jobs = draw_harder(Harder(), seed)
        assert jobs.height == 20
        assert sum(int(need[0]) for need in jobs["need"]) == 43
        assert jobs["need"].is_in(["4g.40gb", "7g.80gb"]).sum() == 3


def test_arrivals_and_run_times_are_as_said():
    jobs = pl.concat([draw_harder(Harder(), seed) for seed in range(400)])
    gaps = jobs.group_by("seed", maintain_order=True).agg(pl.col("submit_min").max())["submit_min"] / 20
    assert gaps.mean() == pytest.approx(1 / 0.4, rel=0.03)
    logs = np.log(jobs["run_min"].to_numpy())
    assert logs.std() == pytest.approx(0.8, rel=0.03)
    error = 0.8 / np.sqrt(len(logs))
    assert logs.mean() == pytest.approx(np.log(Harder().run_median_min), abs=4 * error)


@pytest.mark.long
def test_nobody_beats_the_bound_and_dynamic_layouts_serve_everybody(rows):
    bound = rows.filter(policy=BOUND)
    for policy in (GREEDY, FORECAST, PERFECT):
        mine = rows.filter(policy=policy)
        assert mine["unserved"].sum() == 0
        for measure in ("mean_wait_min", "mean_jct_min", "completion_min"):
            assert (mine[measure] >= bound[measure] - 1e-9).all()
    assert rows.filter(policy=STATIC)["unserved"].sum() > 0


@pytest.mark.long
def test_foresight_does_not_wait_longer_than_none(rows):
    waits = dict(rows.group_by("policy").agg(pl.col("mean_wait_min").mean()).iter_rows())
    assert waits[PERFECT] <= waits[GREEDY]


def test_history_shares_no_seed_and_forecast_covers_the_day():
    harder = Harder(history_days=7)
    assert max(SEEDS) < HISTORY_SEEDS
    found = forecast_day(harder).forecast
    assert found["unique_id"].n_unique() == 5
    assert found.group_by("unique_id").len()["len"].unique().to_list() == [96]
    assert (found["mean"] >= 0).all()


def test_degraded_jobs_run_longer_by_the_slices_they_lack():
    jobs = pl.concat([draw_harder(Harder(), seed) for seed in range(5)])
    found = degraded(jobs, Counter({Harder().design.static_layout: 8}), Harder())
    both = found.join(jobs, on=["seed", "job_id"], suffix="_drawn").filter(need_drawn="4g.40gb")
    assert both.height > 0
    slow = (both["run_min"] / both["run_min_drawn"]).to_numpy()
    assert slow == pytest.approx(np.maximum(1.0, both["fill"].to_numpy() * 4 / 3))
    assert not (found["need"] == "7g.80gb").any()


def test_wanted_counts_what_overlaps():
    jobs = pl.DataFrame({"need": ["7g.80gb", "7g.80gb"], "submit_min": [0.0, 5.0], "run_min": [20.0, 10.0]})
    assert wanted(jobs, 3, 10.0)[4].tolist() == [1.5, 1.5, 0.0]


def test_impossible_totals_are_refused():
    with pytest.raises(ScenarioError, match="totals"):
        draw_harder(Harder(large_jobs=20), 0)
    with pytest.raises(ScenarioError, match="harder case"):
        Harder(arrivals_per_min=0.0)
