"""The verdict on a claim follows from its figures, and the stored tables say what their own figures say."""

from __future__ import annotations

import csv
from pathlib import Path

import claim_table as table
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

RESULTS = Path(__file__).parents[2] / "benchmarks" / "claims" / "results"
NAMES = ("twenty_jobs", "late_phases", "heterogeneous_gpus")


@pytest.mark.parametrize(
    ("claimed", "interval", "verdict"),
    [
        ((None, 4.0), (2.5, 3.5), "holds"),
        ((3.5, None), (2.5, 3.0), "does not hold"),
        ((None, 3.0), (2.5, 3.5), "inconclusive"),
        ((2.0, 4.0), (2.0, 4.0), "holds"),
        ((None, 3.0), (None, None), "inconclusive"),
    ],
)
def test_verdict_of_a_figure(claimed, interval, verdict):
    assert table.figure_row("wait", "min", 3.0, claimed=claimed, interval=interval)["verdict"] == verdict


@pytest.mark.parametrize(
    ("verdicts", "overall"),
    [
        (["holds", "holds"], "holds"),
        (["holds", "inconclusive"], "holds in part"),
        (["does not hold", "inconclusive"], "does not hold"),
        ([], "inconclusive"),
    ],
)
def test_verdict_of_a_claim(verdicts, overall):
    assert table.overall_verdict(pl.DataFrame({"verdict": verdicts}, schema={"verdict": pl.String})) == overall


@given(st.integers(1, 200).flatmap(lambda count: st.tuples(st.integers(0, count), st.just(count))))
def test_the_interval_of_a_share_holds_it(counts):
    hits, count = counts
    low, high = table.share_interval(hits, count)
    share = hits / count
    assert -1e-12 <= low <= share + 1e-12
    assert share - 1e-12 <= high <= 1 + 1e-12


def test_values_of_one_group_count_together():
    values = np.array([0.0] * 50 + [1.0] * 50)
    apart = table.grouped_interval(values, np.arange(100))
    together = table.grouped_interval(values, values)
    assert apart[0] > 0.35
    assert together == (0.0, 1.0)


@pytest.mark.parametrize("name", NAMES)
def test_stored_verdicts_follow_from_stored_figures(name):
    with (RESULTS / f"{name}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows
    for row in rows:
        numbers = {key: float(row[key]) if row[key] else None for key in ("measured", "low", "high")}
        claimed = tuple(float(row[key]) if row[key] else None for key in ("claimed_low", "claimed_high"))
        interval = (numbers["low"], numbers["high"])
        again = table.figure_row(row["figure"], row["unit"], numbers["measured"], claimed=claimed, interval=interval)
        assert again["verdict"] == row["verdict"]
