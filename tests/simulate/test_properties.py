"""What must hold in every run, re-derived from the two tables that come out of it."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.hardware import ChangeCost, load_gpu_model, parse_layout
from gpuplanner.schemas import Outcomes, check
from gpuplanner.simulate import Calendar, Fleet, Rules, simulate
from tests.examples import examples
from tests.simulate.unservable import unservable

BOARD = load_gpu_model("H100-80GB-SXM5")
LAYOUTS = ("gpu", "3g.40gb:2", "1g.10gb:7", "3g.40gb:1,2g.20gb:1,1g.20gb:1", "2g.20gb:3,1g.10gb:1")
PROFILES = ("gpu", "gpu", "3g.40gb", "2g.20gb", "1g.20gb", "1g.10gb")


@st.composite
def inputs(draw):
    """Jobs, a fleet, a calendar and rules."""
    fleet = Fleet(BOARD, draw(st.integers(1, 3)), draw(st.integers(1, 4)))
    starts = sorted(draw(st.sets(st.integers(1, 120), max_size=4)))
    counts = []
    for _ in range(len(starts) + 1):
        edges = sorted(draw(st.lists(st.integers(0, fleet.gpus), min_size=5, max_size=5)))
        counts.append(np.diff([0, *edges]).tolist())
    rows = draw(
        st.lists(
            st.tuples(
                st.integers(-5, 150),
                st.integers(0, 40),
                st.sampled_from(PROFILES),
                st.integers(1, 6),
                st.sampled_from([None, 8.0, 32.0, 64.0]),
            ),
            min_size=1,
            max_size=30,
        )
    )
    jobs = pl.DataFrame(
        rows, schema=["submit_s", "run_s", "profile", "gpus", "sms_needed"], orient="row"
    ).select(
        pl.int_range(pl.len()).cast(pl.String).alias("job_id"),
        pl.col("submit_s", "run_s", "sms_needed").cast(pl.Float64),
        "profile",
        tenant=pl.lit("t"),
        gpus=pl.when(pl.col("profile") == "gpu").then("gpus").otherwise(1),
        limit_s=pl.col("run_s").cast(pl.Float64),
    )
    rules = Rules(
        queue=draw(st.sampled_from(["easy", "strict"])),
        substitute=draw(st.booleans()),
        change=ChangeCost.flat(draw(st.sampled_from([0, 7, 60]))),
    )
    return jobs, fleet, Calendar([0, *starts], LAYOUTS, counts), rules


def run_of(jobs, fleet, calendar, rules):
    return simulate(jobs, fleet, calendar, rules, policy="p", leave_unservable=True, until_s=130.0)


def row_at(rows, instant):
    """State of a GPU right after an instant; at the end of the run its last state."""
    after = [row for row in rows if row["start_s"] <= instant < row["end_s"]]
    return after[0] if after else rows[-1]


@settings(max_examples=examples(40), deadline=None)
@given(inputs())
def test_states_cover_every_gpu_from_the_start_to_the_end(case):
    _, fleet, _, _ = case
    run = run_of(*case)
    end = run.states["end_s"].max()
    assert end >= max(130.0, run.outcomes["end"].max() or 0.0)
    assert float((run.states["end_s"] - run.states["start_s"]).sum()) == pytest.approx(fleet.gpus * end)
    gpus = run.states.partition_by("node", "gpu", as_dict=True)
    assert list(gpus) == [(node, gpu) for node in range(fleet.nodes) for gpu in range(fleet.gpus_per_node)]
    for rows in gpus.values():
        assert rows["start_s"][0] == 0
        assert rows["end_s"][-1] == end
        assert rows["start_s"].to_list()[1:] == rows["end_s"].to_list()[:-1]


@settings(max_examples=examples(40), deadline=None)
@given(inputs())
def test_every_job_is_served_once_for_as_long_as_it_needs(case):
    jobs, fleet, calendar, rules = case
    outcomes = check(run_of(*case).outcomes, Outcomes, where="outcomes")
    assert outcomes["job_id"].to_list() == jobs["job_id"].to_list()
    misfits = set(unservable(jobs, fleet, calendar, rules)["job_id"])
    for job, outcome in zip(jobs.to_dicts(), outcomes.to_dicts(), strict=True):
        if outcome["first_start"] is None:
            assert outcome["end"] is outcome["node"] is outcome["served_on"] is None
            continue
        assert job["job_id"] not in misfits
        assert outcome["first_start"] >= max(job["submit_s"], 0)
        served = outcome["served_on"]
        slowdown = 1.0
        if job["profile"] == "gpu":
            assert served == "gpu"
        else:
            wanted, given_one = BOARD.profile(job["profile"]), BOARD.profile(served)
            assert given_one.compute_slices >= wanted.compute_slices
            assert given_one.memory_slices >= wanted.memory_slices
            assert rules.substitute or served == job["profile"]
            slowdown = max(1.0, (job["sms_needed"] or 0.0) / BOARD.sms_of(served))
        assert outcome["end"] == outcome["first_start"] + job["run_s"] * slowdown


@settings(max_examples=examples(40), deadline=None)
@given(inputs())
def test_no_instance_serves_two_jobs_and_none_is_cut_under_a_job(case):
    _, fleet, _, _ = case
    run = run_of(*case)
    rows_of = {
        key: rows.to_dicts() for key, rows in run.states.partition_by("node", "gpu", as_dict=True).items()
    }
    started = run.outcomes.filter(pl.col("first_start").is_not_null()).to_dicts()
    for instant in sorted({job["first_start"] for job in started}):
        here = {key: row_at(rows, instant) for key, rows in rows_of.items()}
        running = [job for job in started if job["first_start"] <= instant < job["end"]]
        whole = [job for job in running if job["served_on"] == "gpu"]
        serving = [
            key for key, row in here.items() if row["layout"] == "gpu" and row["state"] in ("on", "draining")
        ]
        assert sum(job["gpus"] for job in whole) <= len(serving)
        for node in range(fleet.nodes):
            small = [job for job in whole if job["node"] == node and job["gpus"] <= fleet.gpus_per_node]
            assert sum(job["gpus"] for job in small) <= sum(key[0] == node for key in serving)
        cut = [job for job in running if job["served_on"] != "gpu"]
        for key, jobs in itertools.groupby(sorted(cut, key=gpu_of), key=gpu_of):
            held = [job["served_on"] for job in jobs]
            counts = parse_layout(here[key]["layout"])
            assert here[key]["state"] in ("on", "draining")
            assert all(held.count(profile) <= counts[profile] for profile in set(held))
    for job in started:
        if job["served_on"] != "gpu" and job["first_start"] < run.states["end_s"].max():
            first = row_at(rows_of[gpu_of(job)], job["first_start"])
            assert first["state"] == "on"
            during = [
                row["layout"]
                for row in rows_of[gpu_of(job)]
                if row["start_s"] < job["end"] and row["end_s"] > job["first_start"]
            ]
            assert set(during) <= {first["layout"]}


def gpu_of(job):
    return (job["node"], job["gpu"])


@settings(max_examples=examples(40), deadline=None)
@given(inputs())
def test_queues_are_first_come_first_served(case):
    jobs, _, _, rules = case
    run = run_of(*case)
    ordered = run.outcomes.with_row_index("row").sort("submit", "row")
    for profile in jobs["profile"].unique():
        if profile == "gpu" and rules.queue == "easy":
            continue
        mine = ordered.filter(pl.col("profile") == profile, pl.col("first_start").is_not_null())
        assert mine["first_start"].is_sorted()


@settings(max_examples=examples(40), deadline=None)
@given(inputs())
def test_an_instance_waits_only_while_all_of_its_profile_are_held(case):
    jobs, fleet, calendar, _ = case
    static = Calendar(calendar.slot_starts_s[:1], LAYOUTS, calendar.counts[:1])
    run = run_of(jobs, fleet, static, Rules(queue="strict"))
    installed = dict.fromkeys(PROFILES, 0)
    for layout, count in zip(LAYOUTS, static.counts[0], strict=True):
        for profile, instances in parse_layout(layout).items():
            installed[profile] += count * instances
    started = run.outcomes.filter(pl.col("first_start").is_not_null(), pl.col("profile") != "gpu").to_dicts()
    for job in started:
        if job["wait_s"] > 0 and job["submit"] >= 0:
            held = [
                other["served_on"]
                for other in started
                if other["first_start"] <= job["submit"] < other["end"] and other is not job
            ]
            assert held.count(job["profile"]) == installed[job["profile"]]


@settings(max_examples=examples(40), deadline=None)
@given(inputs(), st.sets(st.integers(1, 130), max_size=4))
def test_a_slot_that_repeats_the_target_changes_nothing(case, extra):
    jobs, fleet, calendar, rules = case
    starts = np.unique([*calendar.slot_starts_s, *extra])
    slot = np.searchsorted(calendar.slot_starts_s, starts, "right") - 1
    longer = Calendar(starts, LAYOUTS, calendar.counts[slot])
    assert_same(run_of(*case), run_of(jobs, fleet, longer, rules))


@settings(max_examples=examples(40), deadline=None)
@given(inputs(), st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter_where_submissions_differ(case, random):
    jobs, fleet, calendar, rules = case
    jobs = jobs.unique("submit_s", keep="first", maintain_order=True)
    rows = list(range(jobs.height))
    random.shuffle(rows)
    shuffled = run_of(jobs[rows], fleet, calendar, rules)
    assert shuffled.outcomes["job_id"].to_list() == jobs["job_id"].gather(rows).to_list()
    straight = run_of(jobs, fleet, calendar, rules)
    assert straight.outcomes.sort("job_id").equals(shuffled.outcomes.sort("job_id"))
    assert straight.states.equals(shuffled.states)


@settings(max_examples=examples(40), deadline=None)
@given(inputs())
def test_the_same_input_gives_the_same_run(case):
    assert_same(run_of(*case), run_of(*case))


def assert_same(one, other):
    assert one.outcomes.equals(other.outcomes)
    assert one.states.equals(other.states)


@pytest.mark.parametrize("queue", ["easy", "strict"])
def test_the_log_is_emptied_as_often_as_it_fills(jobs_of, queue):
    # A GPU that changes 500 times writes far more than the log holds at once.
    jobs = jobs_of(*[(f"j{k}", 200 * k, 90, 1, "gpu") for k in range(250)])
    calendar = Calendar(np.arange(500) * 100.0, ("gpu", "1g.10gb:7"), [[1, 0], [0, 1]] * 250)
    run = simulate(
        jobs,
        Fleet(BOARD, 1, 1),
        calendar,
        Rules(queue=queue, change=ChangeCost.flat(1)),
        policy="p",
        until_s=50_000,
    )
    assert run.states.height == 1 + 499 * 2
    assert run.outcomes["wait_s"].max() == 1.0
