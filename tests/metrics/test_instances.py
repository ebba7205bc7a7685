"""Idle instances and layouts that do not fit the queue."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.hardware import ChangeCost, load_gpu_model
from gpuplanner.metrics import instance_fragmentation, instance_totals, measure
from gpuplanner.simulate import Calendar, Fleet, Rules, simulate

BOARD = load_gpu_model("H100-80GB-SXM5")
LAYOUTS = {"gpu": "gpu", "3g.40gb": "3g.40gb:2", "1g.10gb": "1g.10gb:7"}


def run_of(rows, counts, rules, until_s=400.0):
    jobs = pl.DataFrame(rows, schema=["submit_s", "run_s", "profile"], orient="row").with_columns(
        pl.int_range(pl.len()).cast(pl.String).alias("job_id"), tenant=pl.lit("t"), gpus=1, limit_s="run_s"
    )
    calendar = Calendar([100.0 * slot for slot in range(len(counts))], tuple(LAYOUTS.values()), counts)
    return simulate(
        jobs, Fleet(BOARD, 2, 2), calendar, rules, policy="p", until_s=until_s, leave_unservable=True
    )


def test_by_hand():
    rules = Rules(queue="strict", substitute=False)
    rows = [(0, 200, "1g.10gb")] * 7 + [(50, 100, "1g.10gb")]
    found = instance_fragmentation(run_of(rows, [[1, 1, 1]], rules), BOARD)
    # One job waits from 50 to 200 s for a 1g.10gb, while a whole GPU and two 3g.40gb stand idle.
    large = 1 + 6 / 7
    expected = [(0, 50, large, 0, 0), (50, 200, large, 1 / 7, large), (200, 300, large + 6 / 7, 0, 0)]
    for row, wanted in zip(found.head(3).rows(), expected, strict=True):
        assert row == pytest.approx(wanted)


def test_totals_within_a_window():
    """Of the 150 s in which a job waits, 100 s lie before 150 s; nothing that was idle then was what it asked for."""
    rules = Rules(queue="strict", substitute=False)
    rows = [(0, 200, "1g.10gb")] * 7 + [(50, 100, "1g.10gb")]
    pieces = instance_fragmentation(run_of(rows, [[1, 1, 1]], rules), BOARD)
    large = 1 + 6 / 7
    found = instance_totals(pieces, window=(0.0, 150.0))
    assert found["idle_gpu_hours"] * 3600 == pytest.approx(150 * large)
    assert found["idle_while_waiting_gpu_hours"] * 3600 == pytest.approx(100 * large)
    assert found["stranded_gpu_hours"] == pytest.approx(found["idle_while_waiting_gpu_hours"])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 300), st.integers(0, 200), st.sampled_from(list(LAYOUTS))),
        min_size=1,
        max_size=25,
    ),
    st.lists(st.tuples(*[st.integers(0, 1)] * 3), min_size=1, max_size=3),
)
def test_idle_and_held_make_up_what_exists(rows, counts):
    run = run_of(rows, counts, Rules(change=ChangeCost.flat(20.0)))
    pieces = instance_fragmentation(run, BOARD)
    assert (pieces["idle"] >= -1e-9).all()
    assert (pieces["stranded"] <= pieces["idle"] + 1e-9).all()
    seconds = pieces["end_s"] - pieces["start_s"]
    assert seconds.sum() == pytest.approx(run.states["end_s"].max())
    found = measure(run, BOARD)
    idle_h = (pieces["idle"] * seconds).sum() / 3600
    share = found["utilisation_provisioned"]
    if share:
        assert idle_h == pytest.approx(found["busy_gpu_hours"] / share - found["busy_gpu_hours"], abs=1e-9)
    # A job waits from submission to start, or to the end of the run.
    waits = run.outcomes.with_columns(
        stop=pl.col("first_start").fill_null(run.states["end_s"].max()),
        share=pl.col("profile").replace_strict({name: BOARD.share(name) for name in LAYOUTS}),
    )
    waited = waits.select(((pl.col("stop") - pl.col("submit")) * pl.col("share")).sum()).item()
    assert (pieces["waiting"] * seconds).sum() == pytest.approx(waited, abs=1e-6)
