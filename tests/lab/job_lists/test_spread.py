"""Percentiles and tails of jobs, by hand."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from gpuplanner.errors import SchemaError
from gpuplanner.lab.job_lists import distribution


def test_distribution_by_hand():
    outcomes = pl.DataFrame(
        {"submit": 0.0, "first_start": np.arange(100.0), "end": 200.0, "tenant": ["a", "b"] * 50}
    )
    waits = distribution(outcomes, tail=0.1).row(0, named=True)
    assert waits["p50"] == 49.5
    assert waits["p95"] == pytest.approx(94.05)
    assert waits["p99"] == pytest.approx(98.01)
    assert (waits["tail_mean"], waits["max"], waits["jobs"]) == (94.5, 99.0, 100)
    by = distribution(outcomes, by="tenant").filter(measure="queueing_delay_s")
    assert by["mean"].to_list() == [49.0, 50.0]
    assert by["tail_mean"].to_list() == [96.0, 97.0]  # the worst 3 of 50


@pytest.mark.parametrize("bad", [{"tail": 0.0}, {"by": "nobody"}, {"bound_s": 0.0}])
def test_what_cannot_be_is_refused(bad):
    with pytest.raises(SchemaError, match=r"distribution of jobs|bounded slowdown"):
        distribution(pl.DataFrame({"submit": [0.0], "first_start": 0.0, "end": 1.0}), **bad)
