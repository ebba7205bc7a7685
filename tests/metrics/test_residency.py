"""GPU-hours with a job on the GPU, against counting second by second."""

from __future__ import annotations

from types import SimpleNamespace

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.metrics import resident_gpu_hours

END = 40
PIECES = st.lists(
    st.tuples(
        st.integers(0, 1), st.integers(0, 2), st.integers(0, END), st.integers(0, END), st.integers(0, 3)
    ),
    max_size=12,
)


def run_of(pieces: list[tuple[int, int, int, int, int]]) -> SimpleNamespace:
    """A run of jobs on slices: node, GPU, start, length, and whether it ever starts (0: no)."""
    rows = [
        {
            "served_on": "1g.10gb",
            "gpus": 1,
            "node": node,
            "gpu": gpu,
            "first_start": float(start) if started else None,
            "end": float(start + length) if started > 1 else None,
        }
        for node, gpu, start, length, started in pieces
    ]
    schema = {"served_on": pl.String, "gpus": pl.Int64, "node": pl.Int64, "gpu": pl.Int64}
    outcomes = pl.DataFrame(rows, schema=schema | {"first_start": pl.Float64, "end": pl.Float64})
    return SimpleNamespace(outcomes=outcomes, states=pl.DataFrame({"end_s": [float(END)]}))


@given(pieces=PIECES, begin=st.integers(0, END - 1), length=st.integers(1, END))
def test_equals_counting_every_second(pieces, begin, length):
    end = min(begin + length, END)
    held = {
        (node, gpu, second)
        for node, gpu, start, run_s, started in pieces
        if started
        for second in range(start, start + run_s if started > 1 else END)
        if begin <= second < end
    }
    found = resident_gpu_hours(run_of(pieces), window=(float(begin), float(end)))
    assert found * 3600 == pytest.approx(len(held))


def test_gangs_of_whole_gpus_count_each_gpu():
    run = run_of([(0, 0, 10, 20, 2)])
    run.outcomes = run.outcomes.with_columns(served_on=pl.lit("gpu"), gpus=pl.lit(8))
    assert resident_gpu_hours(run) * 3600 == pytest.approx(160)
