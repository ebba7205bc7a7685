"""Idle GPUs of no use: by hand, and against a replay node by node."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.errors import SchemaError
from gpuplanner.lab.gangs import GangRules, run_gangs
from gpuplanner.lab.job_lists import fragmentation, fragmentation_totals
from gpuplanner.simulate import Checkpoints, Fleet

NODES, SIZE = 3, 4


@st.composite
def cases(draw):
    job = st.tuples(
        st.integers(0, 30), st.integers(0, 20), st.sampled_from([1, 2, 3, 4, 8, 12]), st.integers(0, 1)
    )
    rows = draw(st.lists(job, min_size=1, max_size=30))
    jobs = pl.DataFrame(rows, schema=["submit_s", "run_s", "gpus", "tier"], orient="row").with_columns(
        job_id=pl.int_range(pl.len()).cast(pl.String), tenant=pl.lit("t"), profile=pl.lit("gpu")
    )
    rules = GangRules(
        queue=draw(st.sampled_from(["strict", "pass"])),
        tiers_preempt=draw(st.booleans()),
        checkpoints=Checkpoints(5.0),
    )
    return jobs, rules


def brute(rows, sizes, now):
    """Idle GPUs, what the longest waiting job asks for, and useful GPUs by size, at one instant."""
    running = [row for row in rows if row["start_s"] <= now < row["end_s"]]
    idle = dict.fromkeys(range(NODES), SIZE)
    whole = 0
    for row in running:
        if row["gpus"] <= SIZE:
            idle[row["node"]] -= row["gpus"]
        else:
            whole += row["gpus"] // SIZE
    for node in [node for node in idle if idle[node] == SIZE][:whole]:
        idle[node] = 0

    def useful(gpus):
        if gpus <= SIZE:
            return sum(free for free in idle.values() if free >= gpus)
        empty = sum(free == SIZE for free in idle.values())
        return empty * SIZE if empty >= gpus // SIZE else 0

    waiting = [row for row in rows if row["since_s"] <= now < row["start_s"]]
    head = min(waiting, key=lambda row: row["since_s"])["gpus"] if waiting else 0
    free = sum(idle.values())
    mix = sum(free - useful(gpus) for gpus in sizes) / len(sizes)
    return free, head, free - useful(head) if head else 0, mix


@settings(max_examples=50, deadline=None)
@given(cases())
def test_every_piece_equals_a_replay(case):
    run = run_gangs(case[0], Fleet("H100-80GB-SXM5", NODES, SIZE), case[1], policy="p")
    rows, sizes = run.spells.to_dicts(), run.outcomes["gpus"].to_list()
    pieces = fragmentation(run, nodes=NODES, gpus_per_node=SIZE)
    for piece in pieces.iter_rows(named=True):
        found = brute(rows, sizes, (piece["start_s"] + piece["end_s"]) / 2)
        assert (piece["idle"], piece["waiting_gpus"], piece["stranded_for_head"]) == found[:3]
        assert piece["stranded_for_mix"] == pytest.approx(found[3])


def test_totals_by_hand():
    table = pl.DataFrame(
        {
            "job_id": ["a", "b", "c"],
            "submit": 0.0,
            "first_start": [0.0, 0.0, 3600.0],
            "end": [3600.0, 7200.0, 7200.0],
            "gpus": [3, 3, 4],
            "node": [0, 1, 0],
            "preemptions": 0,
        }
    )
    # The first hour has one idle GPU on each node: none for the 4 that wait; 3 and 4 do not fit either.
    assert fragmentation_totals(fragmentation(table, nodes=2, gpus_per_node=4)) == {
        "idle_gpu_hours": 3.0,
        "idle_while_waiting_gpu_hours": 2.0,
        "stranded_for_head_gpu_hours": 2.0,
        "stranded_for_mix_gpu_hours": 3.0,
    }


def test_what_outcomes_do_not_say_is_refused():
    table = pl.DataFrame({"job_id": ["a"], "submit": 0.0, "gpus": [6], "preemptions": [0]})
    with pytest.raises(SchemaError, match="fill all their nodes"):
        fragmentation(table, nodes=2, gpus_per_node=4)
    with pytest.raises(SchemaError, match="1 that were stopped"):
        fragmentation(table.with_columns(gpus=4, preemptions=1), nodes=2, gpus_per_node=4)


def test_no_job_no_piece():
    numbers = dict.fromkeys(("submit", "first_start", "end"), pl.Float64)
    whole = dict.fromkeys(("gpus", "node", "preemptions"), pl.Int32)
    pieces = fragmentation(
        pl.DataFrame(schema={"job_id": pl.String} | numbers | whole), nodes=2, gpus_per_node=4
    )
    assert pieces.is_empty()
    assert sum(fragmentation_totals(pieces).values()) == 0
