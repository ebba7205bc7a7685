"""The verdict on late demand: exact intervals, false alarms under the null, and definitions on built jobs."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from gpuplanner.core.errors import SchemaError
from gpuplanner.usage.demand_by_phase_and_late_demand_test import (
    LATE_DEMAND_VERDICTS,
    judge_late_demand,
    late_demand_by_class,
    late_demand_table,
    late_over_early,
    phases_of_jobs,
)

BOARD = "H100-80GB-SXM5"
NINE = datetime(2026, 2, 2, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    ("n", "rank", "coverage"), [(6, 1, 0.96875), (9, 2, 0.9609375), (15, 4, 0.96484375), (20, 6, 0.95861053)]
)
def test_interval_is_that_of_the_published_table(n, rank, coverage):
    """Order statistics of the 95 % interval of the median and their coverage: Conover, table of the sign test."""
    found = judge_late_demand(np.arange(1.0, n + 1))
    assert (found.low, found.high) == (rank, n + 1 - rank)
    within = 1 - 2 * sum(math.comb(n, k) / 2**n for k in range(rank))
    assert within == pytest.approx(coverage, abs=1e-8)
    assert within >= 0.95


@pytest.mark.parametrize("draw", ["normal", "skewed", "tied"])
@pytest.mark.parametrize("n", [6, 13, 40])
def test_false_alarms_stay_below_the_level(draw, n):
    """True median just on the wrong side of the border, the worst case: each wrong verdict at most 2.5 %."""
    rng = np.random.default_rng(n)
    noise = {
        "normal": lambda: rng.normal(0, 0.3, n),
        "skewed": lambda: rng.exponential(0.4, n) - 0.4 * np.log(2),
        "tied": lambda: rng.choice([-0.2, 0.0, 0.0, 0.2], n),
    }[draw]
    drawn = [np.exp(noise()) for _ in range(1500)]
    at_most = 0.025 + 3 * np.sqrt(0.025 * 0.975 / 1500)
    above = [judge_late_demand(0.9001 * ratios).verdict for ratios in drawn]
    below = [judge_late_demand(0.8999 * ratios).verdict for ratios in drawn]
    assert above.count("supported") / 1500 <= at_most
    assert below.count("not supported") / 1500 <= at_most


def test_a_halved_demand_is_seen_and_few_jobs_are_not_enough():
    rng = np.random.default_rng(7)
    ratios = 0.5 * np.exp(rng.normal(0, 0.2, 12))
    assert judge_late_demand(ratios).verdict == "supported"
    few = judge_late_demand(ratios[:5])
    assert (few.verdict, few.low) == ("inconclusive", None)
    assert judge_late_demand(np.array([])).verdict == "inconclusive"
    assert judge_late_demand(ratios, effect=0.6).verdict != "supported"
    with pytest.raises(SchemaError, match="effect"):
        judge_late_demand(ratios, effect=0.0)


def make_jobs(late, count=8, memory_late=1.0):
    """Jobs of set-up, 200 minutes at full demand and 100 at a share of it, on one of their 8 GPUs."""
    rng = np.random.default_rng(2)
    parts = []
    for job in range(count):
        activity = np.repeat([0.0, 0.8, 0.8 * late], [15, 200, 100])
        memory = np.repeat([5.0, 20.0, 20.0 * memory_late], [15, 200, 100])
        parts.append(
            pl.DataFrame(
                {
                    "time": [NINE + timedelta(minutes=minute) for minute in range(315)],
                    "node": f"n{job}",
                    "gpu": 0,
                    "job_id": f"j{job}",
                    "sm_activity": np.clip(activity + rng.normal(0, 0.01, 315), 0, 1) * (activity > 0),
                    "memory_used_gib": memory + rng.normal(0, 0.1, 315),
                    "activity_source": "profiling",
                },
                schema_overrides={"time": pl.Datetime("us", "UTC")},
            )
        )
    jobs = pl.DataFrame({"job_id": [f"j{job}" for job in range(count)], "job_class": "tuning", "gpus": 8.0})
    samples = pl.concat(parts)
    return samples, phases_of_jobs(samples, jobs)


def test_both_definitions_see_a_built_decline():
    samples, phases = make_jobs(0.5)
    for part in ("thirds", "phases"):
        found = late_over_early(samples, phases, BOARD, part=part, need="sm")
        assert found["early"].to_list() == pytest.approx([6.4] * 8, rel=0.02)
        assert found["ratio"].to_list() == pytest.approx([0.5] * 8, rel=0.02)
    table = late_demand_table(samples, phases, BOARD)
    assert table["verdict"].to_list() == ["supported", "supported", "not supported"] * 2
    assert table.select("part", "need").row(0) == ("thirds", "both")
    assert set(table["verdict"]) <= set(LATE_DEMAND_VERDICTS)
    assert late_demand_by_class(samples, phases, BOARD).drop("job_class").equals(table)
