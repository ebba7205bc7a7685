"""Hand-worked measures, and identities that hold in every simulated run."""

from __future__ import annotations

from types import SimpleNamespace

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.hardware import ChangeCost, load_gpu_model
from gpuplanner.metrics import measure
from gpuplanner.simulate import Calendar, Fleet, Rules, simulate
from tests.examples import examples

BOARD = load_gpu_model("H100-80GB-SXM5")


@pytest.fixture(scope="module")
def run():
    """Two GPUs over 100 h. GPU 0 is whole; GPU 1 is cut in two, reconfigured from 40 to 42 h, off from 80 h.

    Job b waits 10 h and runs 30 h on 3/7; d never starts; e runs for no time.
    """
    hour = 3600.0
    rows = [
        # id, tenant, submit, start, end, served_on, gpus
        ("a", "x", 0.0, 0.0, 50.0, "gpu", 1),
        ("b", "x", 0.0, 10.0, 40.0, "3g.40gb", 1),
        ("c", "y", 45.0, 45.0, 65.0, "1g.10gb", 1),
        ("d", "y", 50.0, None, None, None, 1),
        ("e", "z", 60.0, 70.0, 70.0, "gpu", 1),
    ]
    names = ["job_id", "tenant", "submit", "first_start", "end", "served_on", "gpus"]
    outcomes = pl.DataFrame(rows, schema=names, orient="row").with_columns(
        pl.col("submit", "first_start", "end") * hour
    )
    states = pl.DataFrame(
        [
            (0, 0, 0.0, 100.0, "gpu", "on"),
            (0, 1, 0.0, 30.0, "3g.40gb:2", "on"),
            (0, 1, 30.0, 40.0, "3g.40gb:2", "draining"),
            (0, 1, 40.0, 42.0, "1g.10gb:7", "reconfiguring"),
            (0, 1, 42.0, 80.0, "1g.10gb:7", "on"),
            (0, 1, 80.0, 100.0, "off", "off"),
        ],
        schema=["node", "gpu", "start_s", "end_s", "layout", "state"],
        orient="row",
    ).with_columns(pl.col("start_s", "end_s") * hour)
    spells = outcomes.rename({"first_start": "start_s", "end": "end_s"}).with_columns(lost_s=0.0)
    return SimpleNamespace(outcomes=outcomes, states=states, spells=spells)


def test_a_run_worked_by_hand(run):
    found = measure(run, BOARD)
    hour = 3600.0
    held = 50 + 30 * 3 / 7 + 20 / 7
    offered = 100 + 40 * 6 / 7 + 38
    expected = {
        "jobs": 5,
        "unfinished": 1,
        "mean_queueing_delay_s": 5 * hour,
        "median_queueing_delay_s": 5 * hour,
        "p95_queueing_delay_s": 10 * hour,
        "mean_jct_s": (50 + 40 + 20 + 10) / 4 * hour,
        "p95_jct_s": (40 + 0.85 * 10) * hour,
        "mean_slowdown": (1 + 40 / 30 + 1) / 3,
        "mean_bounded_slowdown": (1 + 40 / 30 + 1 + hour) / 4,
        "makespan_s": 70 * hour,
        "utilisation_provisioned": held / offered,
        "utilisation_server": held / 200,
        "utilisation_instances": (50 + 30 + 20) / (100 + 2 * 40 + 7 * 38),
        "installed_gpu_hours": 200.0,
        "provisioned_gpu_hours": 180.0,
        "reconfiguring_gpu_hours": 2.0,
        "busy_gpu_hours": held,
        "useful_gpu_hours": held,
        "goodput": held / 180,
        "reconfigurations": 1,
    }
    assert found == pytest.approx(expected)
    assert list(found) == list(expected)


def test_a_window_counts_jobs_by_submission_and_time_by_overlap(run):
    hour = 3600.0
    found = measure(run, BOARD, window=(41 * hour, 61 * hour))
    assert (found["jobs"], found["unfinished"]) == (3, 1)
    assert found["mean_queueing_delay_s"] == 5 * hour
    assert found["busy_gpu_hours"] == pytest.approx(9 + 16 / 7)
    assert found["installed_gpu_hours"] == 40.0
    assert found["reconfiguring_gpu_hours"] == 1.0
    assert found["reconfigurations"] == 0
    assert measure(run, BOARD, window=(40 * hour, 41 * hour))["reconfigurations"] == 1


@st.composite
def cases(draw):
    """Static or changing fleets under jobs of a few kinds, in whole seconds."""
    kinds = {"gpu": "gpu", "3g.40gb": "3g.40gb:2", "1g.10gb": "1g.10gb:7"}
    rows = draw(
        st.lists(
            st.tuples(
                st.integers(0, 500), st.integers(0, 300), st.sampled_from(list(kinds)), st.sampled_from("xyz")
            ),
            min_size=1,
            max_size=40,
        )
    )
    jobs = pl.DataFrame(rows, schema=["submit_s", "run_s", "profile", "tenant"], orient="row").select(
        pl.int_range(pl.len()).cast(pl.String).alias("job_id"), pl.all(), gpus=1, limit_s="run_s"
    )
    counts = [[draw(st.integers(0, 2)) for _ in kinds] for _ in range(draw(st.integers(1, 3)))]
    calendar = Calendar([200.0 * slot for slot in range(len(counts))], tuple(kinds.values()), counts)
    rules = Rules(change=ChangeCost.flat(draw(st.sampled_from([0.0, 30.0]))))
    return jobs, calendar, rules


@settings(max_examples=examples(50), deadline=None)
@given(cases())
def test_identities(case):
    jobs, calendar, rules = case
    run = simulate(
        jobs, Fleet(BOARD, 3, 2), calendar, rules, policy="p", leave_unservable=True, until_s=700.0
    )
    found = measure(run, BOARD)
    end = run.states["end_s"].max()
    assert found["installed_gpu_hours"] * 3600 == pytest.approx(6 * end)
    hours = {
        state: float((rows["end_s"] - rows["start_s"]).sum()) / 3600
        for (state,), rows in run.states.partition_by("state", as_dict=True).items()
    }
    assert sum(hours.values()) == pytest.approx(found["installed_gpu_hours"])
    serving = hours.get("on", 0.0) + hours.get("draining", 0.0)
    assert found["provisioned_gpu_hours"] == pytest.approx(serving + hours.get("reconfiguring", 0.0))
    # Work is conserved: what jobs held is what they need, whichever instance served them.
    done = run.outcomes.join(jobs.select("job_id", "run_s"), on="job_id").filter(pl.col("end").is_not_null())
    work = sum(BOARD.share(row["served_on"]) * row["run_s"] for row in done.to_dicts())
    assert found["busy_gpu_hours"] * 3600 == pytest.approx(work)
    assert found["utilisation_server"] * 6 * end == pytest.approx(work)
    if found["utilisation_provisioned"] is not None:
        slice_s = sum(
            (row["end_s"] - row["start_s"]) * {"gpu": 1, "3g.40gb:2": 6 / 7, "1g.10gb:7": 1}[row["layout"]]
            for row in run.states.filter(pl.col("state").is_in(["on", "draining"])).to_dicts()
        )
        assert found["utilisation_provisioned"] * slice_s == pytest.approx(work)
        assert 0 <= found["utilisation_provisioned"] <= 1 + 1e-12
        assert 0 <= found["utilisation_instances"] <= 1 + 1e-12
    assert found["utilisation_server"] * found["installed_gpu_hours"] <= found["provisioned_gpu_hours"] + 1e-9
    assert found["jobs"] - found["unfinished"] == done.height
    # Windows that part the run part its time, and its jobs.
    parts = [measure(run, BOARD, window=window) for window in ((0.0, 333.0), (333.0, end))]
    for name in ("busy", "installed", "provisioned", "reconfiguring"):
        assert sum(part[f"{name}_gpu_hours"] for part in parts) == pytest.approx(found[f"{name}_gpu_hours"])
    assert sum(part["jobs"] for part in parts) == found["jobs"]
