"""Sweeps of layouts: ranks, paired differences, progress, cancelling, and the mixes to sweep."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import polars as pl
import pytest

from gpuplanner.errors import ScenarioError
from gpuplanner.hardware import parse_layout, prove
from gpuplanner.metrics import paired, paired_p_value
from gpuplanner.simulate import Calendar, Fleet, Rules, simulate
from gpuplanner.study.future.sweep import MEASURES, each_policy, static_mixes, sweep

BOARD = "H100-80GB-SXM5"
FLEET = Fleet(BOARD, 1, 4)
STRICT = Rules("strict")
POLICIES = {
    "small": Calendar.constant({"1g.10gb:7": 3, "3g.40gb:2": 1}),
    "large": Calendar.constant({"1g.10gb:7": 1, "3g.40gb:2": 3}),
    "whole": Calendar.constant({"7g.80gb:1": 4}),
}


def drawn(seed, count=60):
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "job_id": np.arange(count).astype(str),
            "tenant": "t",
            "submit_s": np.sort(rng.random(count) * 2000),
            "run_s": rng.exponential(300, count),
            "gpus": 1,
            "profile": rng.choice(["1g.10gb", "3g.40gb"], count),
        }
    )


def test_the_table_is_what_the_runs_give_ranked():
    draws = [drawn(seed) for seed in range(3)]
    found = sweep(draws, FLEET, POLICIES, STRICT, baseline="large")
    assert found.complete
    jct = {
        name: [simulate(jobs, FLEET, layouts, STRICT, policy="p").outcomes["jct_s"].mean() for jobs in draws]
        for name, layouts in POLICIES.items()
    }
    assert found.table["policy"].to_list() == sorted(jct, key=lambda name: np.mean(jct[name]))
    for row in found.table.to_dicts():
        assert row["mean_jct_s"] == pytest.approx(np.mean(jct[row["policy"]]))
        expected = paired(jct["large"], jct[row["policy"]])
        assert row["difference"] == pytest.approx(expected.difference.mean)
        assert row["difference_low"] == pytest.approx(expected.difference.low)
        assert row["ratio"] == pytest.approx(expected.ratio)
    # Holm over two comparisons: the smaller p-value twice, and the larger never below that.
    alone = sorted(paired_p_value(jct["large"], jct[name]) for name in POLICIES if name != "large")
    told = sorted(found.table["p_holm"].drop_nulls())
    assert told == pytest.approx([min(2 * alone[0], 1), max(min(2 * alone[0], 1), alone[1])])


def test_it_ranks_by_waits_too():
    found = sweep(drawn(1), FLEET, POLICIES, STRICT, rank_by="p95_queueing_delay_s").table
    assert found["p95_queueing_delay_s"].is_sorted()
    assert found["difference_low"].null_count() == found.height  # one replication says nothing about spread


def test_policies_without_room_come_last():
    policies = {"no 3g": Calendar.constant({"1g.10gb:7": 4}), **POLICIES}
    found = sweep(drawn(2), FLEET, policies, STRICT).table
    assert found["policy"][-1] == "no 3g"
    assert found["unserved"].to_list()[:-1] == [0, 0, 0]
    assert found["unserved"][-1] == drawn(2).filter(profile="3g.40gb").height


def test_progress_is_told_and_cancelling_keeps_what_is_done():
    stop, told = threading.Event(), []

    def progress(done, asked, name):
        told.append((done, asked, name))
        if done == 2:
            stop.set()

    draws = [drawn(0), drawn(1)]
    found = sweep(draws, FLEET, POLICIES, STRICT, progress=progress, cancel=stop.is_set)
    assert told == [(1, 3, "small"), (2, 3, "large")]
    assert (found.done, found.asked, found.complete) == (2, 3, False)
    whole = sweep(draws, FLEET, POLICIES, STRICT).table
    shared = ["policy", *MEASURES, "difference"]
    kept = whole.filter(pl.col("policy").is_in(["small", "large"]))
    assert found.table.select(shared).equals(kept.select(shared))


def test_cancelled_at_once_it_is_an_empty_table_of_the_same_columns():
    found = sweep(drawn(0), FLEET, POLICIES, STRICT, cancel=lambda: True)
    assert found.done == 0
    assert found.table.columns == sweep(drawn(0), FLEET, POLICIES, STRICT).table.columns


def test_it_can_be_walked_through_one_by_one():
    names = [name for name, _ in itertools.islice(each_policy(drawn(0), FLEET, POLICIES, STRICT), 2)]
    assert names == ["small", "large"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policies": {}}, "at least one policy"),
        ({"baseline": "none"}, "baseline"),
        ({"rank_by": "beauty"}, "rank_by"),
    ],
)
def test_what_is_unknown_is_refused(options, words):
    arguments = {"jobs": drawn(0), "fleet": FLEET, "policies": POLICIES, "rules": STRICT} | options
    with pytest.raises(ScenarioError, match=words):
        sweep(**arguments)


class TestMixes:
    def test_they_use_the_whole_fleet_and_fit_on_the_board(self):
        mixes = static_mixes(drawn(0), Fleet(BOARD, 2, 8))
        assert len(mixes) == 20
        for calendar in mixes.values():
            assert calendar.counts.sum() == 16
            assert all(prove(BOARD, parse_layout(layout)) for layout in calendar.layouts)

    def test_the_first_is_the_least_loaded_by_brute_force(self):
        jobs, fleet = drawn(3), Fleet(BOARD, 1, 6)
        work = dict(jobs.group_by("profile").agg(pl.col("run_s").sum()).rows())

        def load(counts):
            held = {name: sum(c * layout.get(name, 0) for layout, c in counts) for name in work}
            return max(work[name] / held[name] if held[name] else np.inf for name in work)

        layouts = [{"3g.40gb": a, "1g.10gb": b} for a, b in ((2, 0), (1, 4), (0, 7))]
        best = min(
            load(list(zip(layouts, split, strict=True)))
            for split in itertools.product(range(7), repeat=3)
            if sum(split) == 6
        )
        first = next(iter(static_mixes(jobs, fleet).values()))
        found = load(
            [(parse_layout(text), c) for text, c in zip(first.layouts, first.counts[0], strict=True)]
        )
        assert found == pytest.approx(best)

    def test_gangs_get_their_whole_gpus(self):
        gang = drawn(0).head(1).with_columns(pl.col("gpus") * 3, profile=pl.lit("gpu"))
        for calendar in static_mixes(pl.concat([drawn(0), gang]), FLEET).values():
            assert calendar.counts[0][calendar.layouts.index("gpu")] >= 3

    def test_a_fleet_without_room_is_said_so(self):
        whole = drawn(0).with_columns(profile=pl.lit("gpu"))
        jobs = pl.concat([drawn(0), whole.with_columns(pl.col("gpus") * 4)])
        with pytest.raises(ScenarioError, match=r"room for .*'gpu'; got 4 GPUs"):
            static_mixes(jobs, FLEET)
