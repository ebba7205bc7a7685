"""Nodes of fixed layouts that come and go: theory, hand-worked cases, and what every run keeps to."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.errors import ScenarioError
from gpuplanner.simulate import AutoscaledPools, Calendar, Fleet, Rules, simulate, unservable

BOARD = "H100-80GB-SXM5"
SEVEN, TWO = "1g.10gb:7", "3g.40gb:2"


def play(jobs, policy, nodes, per_node=2, rules=Rules("strict"), until_s=0.0):  # noqa: B008
    fleet = Fleet(BOARD, nodes, per_node)
    return simulate(jobs, fleet, policy, rules, policy="p", until_s=until_s, leave_unservable=True)


def nodes_on(run, at, layout=None):
    rows = run.states.filter(pl.col("start_s") <= at, pl.col("end_s") > at, pl.col("state") != "off")
    return rows.filter(pl.col("layout") == layout if layout else True)["node"].n_unique()


def test_nodes_of_one_gpu_without_setup_are_a_queue_that_is_on_only_to_work():
    rng, count = np.random.default_rng(5), 2000
    jobs = pl.DataFrame(
        {
            "job_id": np.arange(count).astype(str),
            "tenant": "t",
            "submit_s": np.cumsum(rng.exponential(100 / 4.8, count)),
            "run_s": rng.exponential(100.0, count),
            "gpus": 1,
            "profile": "gpu",
        }
    )
    always = play(jobs, Calendar.constant({"gpu": 6}), 6, 1)
    waits = []
    for lead_s in (0.0, 30.0):
        run = play(jobs, AutoscaledPools(["gpu"], idle_s=0.0, lead_s=lead_s), 6, 1)
        waits.append(run.outcomes["wait_s"] - always.outcomes["wait_s"])
        on = run.states.filter(state="on")
        assert (on["end_s"] - on["start_s"]).sum() == pytest.approx(jobs["run_s"].sum())
    assert waits[0].abs().max() < 1e-6
    assert 0.0 < waits[1].mean() <= waits[1].max() <= 30.0 + 1e-6


def test_each_pool_grows_for_its_own_jobs_by_what_they_fill(jobs_of, starts):
    small = [(f"s{k}", 0, 100, 1, "1g.10gb") for k in range(15)]
    jobs = jobs_of(*small, ("m", 10, 100, 1, "3g.40gb"), ("w", 20, 100, 2, "gpu"))
    run = play(jobs, AutoscaledPools(["gpu", SEVEN, TWO], idle_s=50.0, lead_s=30.0), 5)
    assert {starts(run)[f"s{k}"] for k in range(15)} == {30}
    assert (starts(run)["m"], starts(run)["w"]) == (40, 50)
    assert [nodes_on(run, 60, layout) for layout in ("gpu", SEVEN, TWO)] == [1, 2, 1]
    late = play(jobs, AutoscaledPools(["gpu", SEVEN, TWO], idle_s=50.0, lead_s=30.0), 5, until_s=500.0)
    assert [nodes_on(late, at) for at in (179, 181, 189, 191, 199, 201)] == [4, 2, 2, 1, 1, 0]


def test_an_idle_node_goes_at_once_where_another_pool_has_none_left(jobs_of, starts):
    jobs = jobs_of(("s", 0, 50, 1, "1g.10gb"), ("w", 100, 10, 1, "gpu"))
    run = play(jobs, AutoscaledPools(["gpu", SEVEN], idle_s=1000.0, lead_s=30.0), 1)
    assert starts(run) == {"s": 30, "w": 130}


def test_reserve_and_floor_stay_on(jobs_of, starts):
    policy = AutoscaledPools(["gpu", SEVEN], 50.0, 30.0, reserve={"gpu": 1}, floor={SEVEN: 2})
    jobs = jobs_of(("w", 10, 500, 2, "gpu"), ("v", 100, 10, 1, "gpu"), ("s", 200, 10, 1, "1g.10gb"))
    run = play(jobs, policy, 6, until_s=2000.0)
    assert starts(run) == {"w": 10, "v": 100, "s": 200}
    assert [nodes_on(run, at, "gpu") for at in (5, 15, 300, 1500)] == [1, 2, 2, 1]
    assert nodes_on(run, 1500, SEVEN) == 2


def test_a_gang_larger_than_a_node_gets_whole_nodes(jobs_of, starts):
    run = play(jobs_of(("w", 0, 10, 5, "gpu")), AutoscaledPools(["gpu"], 0.0, 0.0), 4)
    assert starts(run) == {"w": 0}
    assert nodes_on(run, 5) == 3


def test_who_no_pool_serves_is_named(jobs_of):
    jobs = jobs_of(("a", 0, 1, 1, "7g.80gb"), ("b", 0, 1, 1, "2g.20gb"), ("c", 0, 1, 1, "gpu"))
    policy, fleet = AutoscaledPools([TWO], 0.0, 0.0), Fleet(BOARD, 1, 2)
    assert unservable(jobs, fleet, policy, Rules("strict"))["job_id"].to_list() == ["a", "c"]


@pytest.mark.parametrize(
    "values",
    [
        {"layouts": []},
        {"layouts": ["gpu", "gpu"]},
        {"idle_s": -1.0},
        {"reserve": {"gpu": -1}},
        {"floor": {SEVEN: 1}},
    ],
)
def test_bad_values_are_refused(values):
    with pytest.raises(ScenarioError, match="autoscaled pools"):
        AutoscaledPools(**{"layouts": ["gpu"], "idle_s": 0.0, "lead_s": 0.0} | values)


@st.composite
def cases(draw):
    per_node, nodes = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    profile = st.sampled_from(["gpu", "1g.10gb", "2g.20gb", "3g.40gb"])
    drawn = draw(
        st.lists(
            st.tuples(st.integers(0, 300), st.integers(0, 99), st.integers(1, 4), profile),
            min_size=1,
            max_size=30,
        )
    )
    jobs = pl.DataFrame(
        [
            (
                str(number),
                float(at),
                float(run),
                min(gpus, nodes * per_node) if name == "gpu" else 1,
                name,
                "t",
            )
            for number, (at, run, gpus, name) in enumerate(drawn)
        ],
        schema=["job_id", "submit_s", "run_s", "gpus", "profile", "tenant"],
        orient="row",
    ).with_columns(limit_s="run_s")
    layouts = ["gpu", SEVEN, "3g.40gb:1,2g.20gb:1,1g.10gb:2"][: draw(st.integers(1, 3))]
    kept = {layouts[-1]: draw(st.integers(0, 1))}
    policy = AutoscaledPools(
        layouts,
        draw(st.sampled_from([0.0, 20.0])),
        draw(st.sampled_from([0.0, 15.0])),
        kept,
        {"gpu": nodes - 1},
    )
    return jobs, policy, nodes, per_node, Rules(draw(st.sampled_from(["strict", "easy"])))


@settings(max_examples=80, deadline=None)
@given(cases())
def test_every_run_keeps_to_its_pools(case):
    jobs, policy, nodes, per_node, rules = case
    run = play(jobs, policy, nodes, per_node, rules, until_s=1000.0)
    assert set(run.states["layout"]) <= {*policy.layouts, "off"}
    assert set(run.states["state"]) <= {"on", "off", "booting"}
    # All GPUs of a node are alike at all times, and nothing runs on what is off or comes.
    assert run.states.group_by("node", "start_s", "end_s", "layout", "state").len()[
        "len"
    ].unique().to_list() == [per_node]
    spells = run.spells.drop_nulls("end_s")
    assert np.allclose(
        spells["end_s"] - spells["start_s"], spells.join(jobs, on="job_id", maintain_order="left")["run_s"]
    )
    held = spells.join(run.states, on=["node", "gpu"], suffix="_state").filter(
        pl.col("start_s") < pl.col("end_s_state"), pl.col("end_s") > pl.col("start_s_state")
    )
    assert (held["state"] == "on").all()
    for at in run.states["start_s"].unique():
        assert nodes_on(run, at, "gpu") >= policy.floor["gpu"]
