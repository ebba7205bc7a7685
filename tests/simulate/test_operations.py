"""Changes of a calendar as operators make them: cordon, drain, a time limit, cut, return. A change takes 60 s."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.hardware import ChangeCost
from gpuplanner.simulate import Calendar, Drain, Fleet, Rules, simulate
from tests.examples import examples

BOARD = "H100-80GB-SXM5"
LAYOUTS = ("gpu", "1g.10gb:7", "3g.40gb:2")
COST = ChangeCost.of(BOARD, "operator", change_s=60.0, restart_s=30.0)
SERVING = ("on", "draining")


def play(jobs, numbered, drain, starts=(0.0, 50.0), per_node=2, queue="strict", held=None, **options):
    numbered = np.array(numbered)
    counts = np.array([[(row == layout).sum() for layout in range(3)] for row in numbered])
    calendar = Calendar(np.array(starts), LAYOUTS, counts, numbered, held=held)
    fleet = Fleet(BOARD, numbered.shape[1] // per_node, per_node)
    rules = Rules(queue, change=COST, drain=drain)
    return simulate(jobs, fleet, calendar, rules, policy="p", leave_unservable=True, **options)


def rows(run):
    return run.changes.select(
        "node", "gpu", "gpus", "wanted_s", "began_s", "drained_s", "ended_s", "outcome"
    ).rows()


def test_a_node_is_emptied_cut_and_returned_as_a_whole(jobs_of, starts, history):
    jobs = jobs_of(("a", 0, 100, 1, "gpu"), ("b", 60, 5, 1, "gpu"), ("c", 60, 5, 1, "1g.10gb"))
    run = play(jobs, [[0, 0], [0, 1]], Drain(limit_s=None))
    assert rows(run) == [(0, None, 1, 50, 50, 100, 160, "done")]
    assert run.changes["drain_minutes"].to_list() == [50 / 60]
    assert starts(run) == {"a": 0, "b": 160, "c": 160}
    assert history(run, 1, 2)[:3] == [
        (0, 50, "gpu", "on"),
        (50, 100, "gpu", "draining"),
        (100, 160, "1g.10gb:7", "reconfiguring"),
    ]


def test_or_the_gpu_alone(jobs_of, starts):
    jobs = jobs_of(("a", 0, 100, 1, "gpu"), ("c", 60, 5, 1, "1g.10gb"))
    run = play(jobs, [[0, 0], [0, 1]], Drain("gpu"))
    assert rows(run) == [(0, 1, 1, 50, 50, 50, 110, "done")]
    assert starts(run) == {"a": 0, "c": 110}


def test_what_does_not_empty_in_time_keeps_its_layout_until_the_next_change(jobs_of, starts):
    jobs = jobs_of(("a", 0, 100, 1, "gpu"), ("b", 60, 5, 1, "gpu"), ("c", 60, 5, 1, "1g.10gb"))
    run = play(jobs, [[0, 0], [0, 1], [0, 2], [0, 1]], Drain(limit_s=30.0), (0, 50, 120, 300), until_s=500.0)
    assert rows(run)[0] == (0, None, 1, 50, 50, None, 80, "given up")
    assert [row[-1] for row in rows(run)] == ["given up", "done", "done"]
    assert starts(run) == {"a": 0, "b": 80, "c": 180}  # on a larger instance


def test_or_is_cleared_by_force_with_the_loss_of_what_was_not_saved(jobs_of):
    jobs = jobs_of(("a", 0, 200, 1, "gpu"))
    run = play(jobs, [[0, 0], [0, 1]], Drain(limit_s=25.0, evict=True, checkpoint_s=30.0))
    assert rows(run) == [(0, None, 1, 50, 50, 75, 135, "evicted")]
    # It had run for 75 s, of which 60 are kept; on the other GPU it starts again at 135.
    assert run.outcomes.select("first_start", "end").row(0) == (0, 135 + 30 + 140)
    assert run.spells["lost_s"].to_list() == [15 + 30]
    kept = play(jobs, [[0, 0], [0, 1]], Drain(limit_s=25.0, evict=True, checkpoint_s=0.0))
    assert kept.outcomes["end"][0] == 135 + 30 + 125


def test_the_cordon_comes_ahead_and_jobs_that_end_before_the_change_may_pass_it(jobs_of, starts):
    jobs = jobs_of(("long", 20, 100, 1, "gpu"), ("short", 25, 20, 1, "gpu"), ("slice", 30, 5, 1, "1g.10gb"))
    plan = [[0, 0], [1, 1], [0, 0]]
    shut = play(jobs, plan, Drain(ahead_s=40.0), starts=(0, 50, 400))
    assert starts(shut) == {"long": 420, "short": 420, "slice": 70}
    assert rows(shut)[0] == (0, None, 2, 50, 10, 10, 70, "done")
    busy = jobs_of(
        ("first", 0, 30, 1, "gpu"), *jobs.select("job_id", "submit_s", "run_s", "gpus", "profile").rows()
    )
    passing = play(busy, plan, Drain(ahead_s=40.0, before_change=True), starts=(0, 50, 400))
    # Empty at 45, it is cut when that is planned: who comes until then may still have it.
    assert starts(passing) == {"first": 0, "long": 460, "short": 25, "slice": 110}
    assert rows(passing)[0] == (0, None, 2, 50, 10, 45, 110, "done")


def test_the_next_change_of_a_node_is_reserved_from_the_last_one_on(jobs_of, starts):
    # Between 110 and 300 the node is cut. Who came at 130 ends by 300 and may start, the other might not.
    jobs = jobs_of(
        ("short", 130, 60, 1, "1g.10gb"), ("long", 130, 220, 1, "1g.10gb"), ("gpu", 300, 9, 1, "gpu")
    )
    plan = [[0, 0], [1, 1], [0, 0]]
    run = play(jobs, plan, Drain(ahead_s=1000.0, limit_s=30.0, before_change=True), starts=(0, 50, 300))
    assert starts(run) == {"short": 130, "long": None, "gpu": 360}
    assert [row[3:] for row in rows(run)] == [(50, 0, 0, 110, "done"), (300, 110, 190, 360, "done")]
    free = play(jobs, plan, Drain(ahead_s=0.0, limit_s=30.0, before_change=True), starts=(0, 50, 300))
    assert starts(free) == {"short": 130, "long": 130, "gpu": None}
    assert [row[-1] for row in rows(free)] == ["done", "given up"]


def test_one_that_is_late_goes_on_until_its_limit_and_the_next_one_follows(jobs_of):
    jobs = jobs_of(("a", 0, 70, 1, "gpu"))
    plan, drain = [[0, 0], [1, 1], [2, 2]], Drain(ahead_s=40.0, limit_s=500.0, before_change=True)
    assert [row[3:] for row in rows(play(jobs, plan, drain, (0, 50, 200), until_s=300.0))] == [
        (50, 10, 70, 130, "done"),
        (200, 160, 160, 260, "done"),
    ]
    assert [row[3:] for row in rows(play(jobs, plan, drain, (0, 50, 60), until_s=300.0))] == [
        (50, 10, None, 60, "given up"),
        (60, 60, 70, 130, "done"),
    ]


def test_what_was_released_comes_back_whole_and_what_was_parked_as_it_is_cut(jobs_of, starts):
    jobs = jobs_of(("slice", 210, 10, 1, "1g.10gb"))
    numbered = np.array([[1, 0], [-1, 0], [1, 0], [-1, 0], [0, 0]])
    at = (0, 100, 200, 300, 400)
    run = play(jobs, numbered, Drain(), starts=at)
    assert starts(run) == {"slice": 260}
    assert run.changes.select("wanted_s", "before", "after").rows() == [(200, "0=gpu", "0=1g.10gb:7")]
    parked = np.array([[1, 0], [1, 0], [1, 0], [1, 0], [0, 0]])
    run = play(jobs, numbered, Drain(), starts=at, held=parked)
    assert starts(run) == {"slice": 210}
    assert run.changes.select("wanted_s", "before", "after").rows() == [(400, "0=1g.10gb:7", "0=gpu")]


def test_few_nodes_change_where_the_calendar_names_no_gpus(jobs_of):
    calendar = Calendar(np.array([0.0, 50.0]), LAYOUTS, np.array([[8, 0, 0], [4, 2, 2]]))
    rules = Rules("strict", change=COST, drain=Drain())
    run = simulate(jobs_of(("a", 0, 99, 1, "gpu")), Fleet(BOARD, 2, 4), calendar, rules, policy="p")
    assert run.changes.select("node", "gpus").rows() == [(0, 4)]


@st.composite
def cases(draw):
    """Jobs, planned layouts of numbered GPUs, and how they are changed."""
    per_node, nodes = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    drawn = draw(
        st.lists(
            st.tuples(
                st.integers(0, 600),
                st.integers(1, 200),
                st.integers(1, per_node),
                st.sampled_from(["gpu", "1g.10gb", "3g.40gb"]),
                st.sampled_from([1.0, 2.0]),
            ),
            min_size=1,
            max_size=25,
        )
    )
    jobs = pl.DataFrame(
        [
            (str(number), float(at), float(run), gpus if name == "gpu" else 1, name, run * slack, "t")
            for number, (at, run, gpus, name, slack) in enumerate(drawn)
        ],
        schema=["job_id", "submit_s", "run_s", "gpus", "profile", "limit_s", "tenant"],
        orient="row",
    )
    row = st.lists(st.integers(-1, 2), min_size=per_node * nodes, max_size=per_node * nodes)
    numbered = draw(st.lists(row, min_size=2, max_size=5))
    drain = Drain(
        draw(st.sampled_from(["node", "gpu"])),
        draw(st.sampled_from([0.0, 50.0])),
        draw(st.sampled_from([None, 100.0, 30.0])),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.sampled_from([0.0, 20.0, np.inf])),
    )
    return jobs, numbered, drain, per_node, draw(st.sampled_from(["strict", "easy"]))


@settings(max_examples=examples(40), deadline=None)
@given(cases())
def test_operations_are_those_of_the_plan_and_touch_no_running_job(case):
    jobs, numbered, drain, per_node, queue = case
    starts = [150.0 * slot for slot in range(len(numbered))]
    run = play(jobs, numbered, drain, starts, per_node, queue, until_s=2000.0)
    size = per_node if drain.scope == "node" else 1
    planned = sorted(
        (at, gpu // size)
        for at, old, new in zip(starts[1:], numbered, numbered[1:], strict=False)
        for gpu in {
            gpu // size * size
            for gpu, (before, after) in enumerate(zip(old, new, strict=True))
            if after not in (-1, max(before, 0))  # what is off comes back whole
        }
    )
    made = run.changes.with_columns(
        group=pl.col("node") if size > 1 else pl.col("node") * per_node + pl.col("gpu").fill_null(0)
    )
    assert sorted(made.select("wanted_s", "group").rows()) == planned
    assert made["outcome"].null_count() == 0 or drain.limit_s is None
    ended = made.drop_nulls("ended_s")
    assert (ended["ended_s"] >= ended["began_s"]).all()
    if drain.limit_s is not None and not drain.evict:
        within = (drain.ahead_s + drain.limit_s) / 60 + 1e-9
        assert (made["drain_minutes"].drop_nulls() <= within).all()
    if drain.evict:
        return  # what was stopped has one row from its first start to its end
    spells = run.spells.drop_nulls("end_s")
    needed = spells.join(jobs.select("job_id", "run_s"), on="job_id")
    assert np.allclose(needed["end_s"] - needed["start_s"], needed["run_s"])
    held = spells.join(run.states, on=["node", "gpu"], suffix="_state").filter(
        pl.col("start_s") < pl.col("end_s_state"), pl.col("end_s") > pl.col("start_s_state")
    )
    assert held["state"].is_in(SERVING).all()
