"""Spells: identities of time, work and room under every rule that stops jobs, and by hand."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.hardware import ChangeCost
from gpuplanner.lab.gangs import GangRules, run_gangs
from gpuplanner.simulate import Calendar, Checkpoints, Failures, Fleet, Preemption, Rules, simulate

BOARD = "H100-80GB-SXM5"
RULES = [
    GangRules(queue="strict", tiers_preempt=True),
    GangRules(queue="pass", tiers_preempt=True, checkpoints=Checkpoints(7.0, 1.0)),
    GangRules(queue="easy", tiers_preempt=True, preemption=Preemption(((1, 2.0),), min_run_s=4.0)),
    GangRules(queue="pass", failures=Failures(0.03, 3.0, seed=4), checkpoints=Checkpoints(write_s=0.5)),
    GangRules(
        queue="easy",
        order="fair",
        tiers_preempt=True,
        failures=Failures(0.03, 1.0),
        checkpoints=Checkpoints(2.0),
    ),
]


@st.composite
def clusters(draw):
    nodes, per_node = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    size = st.integers(1, nodes * per_node).filter(lambda gpus: -(-gpus // per_node) <= nodes)
    row = st.tuples(st.integers(0, 40), st.integers(0, 30), size, st.sampled_from("ab"), st.integers(0, 2))
    rows = draw(st.lists(row, min_size=1, max_size=20))
    jobs = pl.DataFrame(rows, schema=["submit_s", "run_s", "gpus", "tenant", "tier"], orient="row").select(
        pl.int_range(pl.len()).cast(pl.String).alias("job_id"),
        pl.all(),
        profile=pl.lit("gpu"),
        limit_s=pl.col("run_s") + 5,
    )
    return jobs, Fleet(BOARD, nodes, per_node)


def assert_sound(jobs, run, gpus):
    """What must hold of the spells of jobs on whole GPUs, whatever the rules."""
    held = pl.col("end_s") - pl.col("start_s")
    spells = run.spells
    assert (spells["end_s"] >= spells["start_s"]).all()
    assert (spells["start_s"] >= spells["since_s"]).all()
    assert spells.filter((pl.col("lost_s") < 0) | (pl.col("lost_s") > held + 1e-9)).is_empty()
    # One after the other, without a gap of waiting, from submission to end.
    turns = spells.group_by("job_id", maintain_order=True).agg(
        pl.col("since_s", "start_s", "end_s", "ended"),
        gross_gpu_s=(held * pl.col("gpus")).sum(),
        lost_gpu_s=(pl.col("lost_s") * pl.col("gpus")).sum(),
        queued_s=(pl.col("start_s") - pl.col("since_s")).sum(),
    )
    assert turns["job_id"].to_list() == jobs["job_id"].to_list()
    for turn, job in zip(turns.iter_rows(named=True), run.outcomes.iter_rows(named=True), strict=True):
        assert turn["since_s"] == [job["submit"], *turn["end_s"][:-1]]
        assert (turn["start_s"][0], turn["end_s"][-1]) == (job["first_start"], job["end"])
        assert turn["queued_s"] == pytest.approx(job["queued_s"])
        assert turn["lost_gpu_s"] == pytest.approx(job["lost_gpu_s"])
        assert len(turn["ended"]) == job["preemptions"] + 1
        assert turn["ended"][-1] == "finished"
        assert "finished" not in turn["ended"][:-1]
    # Room: at no instant more is held than there is.
    changes = pl.concat(
        [spells.select(at=at, held=sign * pl.col("gpus")) for at, sign in (("start_s", 1), ("end_s", -1))]
    )
    assert changes.group_by("at").agg(pl.col("held").sum()).sort("at")["held"].cum_sum().max() <= gpus
    return turns


@pytest.mark.parametrize("rules", RULES)
@settings(max_examples=25, deadline=None)
@given(cluster=clusters())
def test_identities_where_jobs_are_stopped(cluster, rules):
    jobs, fleet = cluster
    run = run_gangs(jobs, fleet, rules, policy="p")
    turns = assert_sound(jobs, run, fleet.gpus)
    # What was held is the work, and what was lost.
    work = (jobs["run_s"] * jobs["gpus"]).to_numpy()
    assert np.allclose(turns["gross_gpu_s"], work + turns["lost_gpu_s"].to_numpy())
    held = run.outcomes.select(
        (pl.col("end") - pl.col("submit") - pl.col("queued_s")) * pl.col("gpus")
    ).to_series()
    assert np.allclose(turns["gross_gpu_s"], held)
    # Jobs within one node share it with no more than fit.
    for (_,), mine in run.spells.filter(pl.col("gpus") <= fleet.gpus_per_node).group_by("node"):
        starts = mine["start_s"].to_numpy()
        at_once = [
            mine.filter(pl.col("start_s") <= now, pl.col("end_s") > now)["gpus"].sum() for now in starts
        ]
        assert max(at_once) <= fleet.gpus_per_node


@pytest.mark.parametrize("queue", ["strict", "pass", "easy"])
@settings(max_examples=15, deadline=None)
@given(cluster=clusters())
def test_without_stops_spells_are_stays(cluster, queue):
    jobs, fleet = cluster
    run = run_gangs(jobs, fleet, GangRules(queue=queue), policy="p")
    assert_sound(jobs, run, fleet.gpus)
    names = ["job_id", "tenant", "profile", "served_on", "gpus", "node"]
    stays = run.outcomes.select(
        *names, since_s="submit", start_s="first_start", end_s="end", lost_s=pl.lit(0.0)
    )
    assert run.spells.select(stays.columns).equals(stays)
    calendar = simulate(
        jobs, fleet, Calendar.constant({"gpu": fleet.gpus}), Rules(queue="strict"), policy="p"
    )
    strict = run_gangs(jobs.drop("tier"), fleet, GangRules(queue="strict"), policy="p")
    assert calendar.spells.select(stays.columns).equals(strict.spells.select(stays.columns))


@pytest.mark.parametrize(
    ("rules", "ending"),
    [
        (GangRules(queue="pass", failures=Failures(5 / 3600, 0.0), checkpoints=Checkpoints(0.0)), "failed"),
    ],
)
def test_more_stops_than_the_loop_keeps_at_once(rules, ending):
    # A long job is stopped hundreds of times, by failures or by short jobs.
    short = 400
    jobs = pl.DataFrame(
        {
            "job_id": [str(number) for number in range(short + 1)],
            "tenant": "t",
            "submit_s": [0.0, *(10.0 * (1 + np.arange(short)))],
            "run_s": [9.0 * short, *np.ones(short)],
            "gpus": 1,
            "profile": "gpu",
        }
    )
    run = run_gangs(jobs, Fleet(BOARD, 1, 1), rules, policy="p")
    long = assert_sound(jobs, run, 1).row(0, named=True)
    assert len(long["ended"]) > 300
    assert set(long["ended"][:-1]) == {ending}
    assert long["gross_gpu_s"] == pytest.approx(9 * short)


def test_what_was_lost_stands_in_the_spell_that_lost_it():
    jobs = pl.DataFrame(
        {
            "job_id": ["low", "high"],
            "tenant": "t",
            "submit_s": [0.0, 25.0],
            "run_s": [40.0, 10.0],
            "gpus": 8,
            "profile": "gpu",
            "tier": [1, 0],
        }
    )
    rules = GangRules(queue="strict", tiers_preempt=True, checkpoints=Checkpoints(interval_s=10.0))
    run = run_gangs(jobs, Fleet(BOARD, 1, 8), rules, policy="p")
    # 20 of 25 s were saved; the second run begins with 30 s of overhead.
    assert run.spells.drop("tenant", "profile", "served_on", "gpus", "node", "gpu").rows() == [
        ("low", 0.0, 0.0, 25.0, 5.0, "preempted"),
        ("low", 25.0, 35.0, 85.0, 30.0, "finished"),
        ("high", 25.0, 25.0, 35.0, 0.0, "finished"),
    ]


def test_a_job_that_never_starts_has_a_spell_that_never_begins():
    jobs = pl.DataFrame(
        {
            "job_id": ["served", "never", "stuck"],
            "tenant": "t",
            "submit_s": 0.0,
            "run_s": 10.0,
            "gpus": 1,
            "profile": ["1g.10gb", "gpu", "1g.10gb"],
        }
    )
    phases = pl.DataFrame({"job_id": "stuck", "profile": ["1g.10gb", "3g.40gb"], "run_s": [100.0, 10.0]})
    calendar = Calendar([0.0, 50.0], ("3g.40gb:1,1g.10gb:3", "1g.10gb:7"), [[1, 0], [0, 1]])
    run = simulate(
        jobs, Fleet(BOARD, 1, 1), calendar, Rules("strict", substitute=False, change=ChangeCost.flat(0.0)),
        policy="p", leave_unservable=True, phases=phases,
    )  # fmt: skip
    assert run.spells.select("job_id", "phase", "since_s", "start_s", "end_s", "ended").rows() == [
        ("served", 0, 0.0, 0.0, 10.0, "finished"),
        ("never", 0, 0.0, None, None, None),
        ("stuck", 0, 0.0, 0.0, 100.0, "next phase"),
        ("stuck", 1, 100.0, None, None, None),
    ]
    assert run.outcomes["end"].to_list() == [10.0, None, None]
