"""Jobs that cannot be true beside the others: which are marked, which stand, and that what is left fits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import Inventory, Jobs
from gpuplanner.ingest.implausible_jobs_and_past_nodes import (
    EXCEEDS_INVENTORY_REASON,
    FAR_AWAY_TIME_REASON,
    FULL_NODE_REASON,
    FULL_POOL_REASON,
    IMPLAUSIBLE_GPUS_REASON,
    add_past_nodes,
    drop_quarantined,
    find_past_fleet_changes,
    mark_quarantine,
    quarantine_findings,
)
from gpuplanner.ingest.quality_report import check_text
from gpuplanner.usage.gpu_hour_ledger import gpu_time_ledger
from gpuplanner.usage.pool_occupancy_and_inferred_inventory import installed_gpu_hours
from tests.examples import examples

DAY = datetime(2026, 2, 2, tzinfo=UTC)


def hour(number):
    return None if number is None else DAY + timedelta(hours=number)


def jobs_of(*rows):
    """Rows of GPUs, submission, start, end [h], node list, board."""
    return conform(
        pl.DataFrame(
            [
                {
                    "job_id": str(place), "attempt": 1, "tenant": "a", "gpus": float(gpus),
                    "submit_time": hour(submit), "start_time": hour(start), "end_time": hour(end),
                    "state": "COMPLETED" if end is not None else "PENDING" if start is None else "RUNNING",
                    "node_list": node, "gpu_model": gpu_model,
                }
                for place, (gpus, submit, start, end, node, gpu_model) in enumerate(rows)
            ],
            infer_schema_length=None,
        ),
        Jobs,
        source="test",
    )  # fmt: skip


def nodes_of(*gpus, gpu_model=None):
    names = [f"n{place}" for place in range(len(gpus))]
    boards = pl.Series(gpu_model if isinstance(gpu_model, list) else [gpu_model] * len(gpus), dtype=pl.String)
    return conform(pl.DataFrame({"node": names, "gpus": gpus, "gpu_model": boards}), Inventory, source="test")


def marks(jobs, inventory=None):
    return mark_quarantine(jobs, inventory)["quarantined"].to_list()


USUAL = [(8, place, place, place + 2, None, None) for place in range(20)]


def test_two_jobs_on_the_gpus_of_one_node():
    jobs = jobs_of((8, 0, 0, 4, "n0", None), (8, 1, 1, 3, "n0", None), (8, 4, 4, 5, "n0", None))
    assert marks(jobs, nodes_of(8, 8)) == [None, FULL_NODE_REASON, None], "the node is full though the fleet is not"
    assert marks(jobs) == [None] * 3, "without an inventory nobody knows that the node has eight"
    told = quarantine_findings(mark_quarantine(jobs, nodes_of(8, 8)), hour(5))
    assert [(each.rows, each.severity, each.example) for each in told] == [(1, "error", "job 1")]
    assert "16.0 GPU-hours" in told[0].effect


def test_clocks_of_nodes_that_differ_by_seconds_are_no_overlap():
    late = hour(4) - timedelta(seconds=40)
    jobs = jobs_of((8, 0, 0, 4, "n0", None), (8, 1, 1, 6, "n0", None))
    jobs = jobs.with_columns(start_time=pl.Series([DAY, late]))
    assert marks(jobs, nodes_of(8, 8)) == [None, None]


def test_a_job_over_nodes_counts_with_what_must_be_on_each():
    over_both = (12, 0, 0, 4, "n[0-1]", None)  # at least four on each
    assert marks(jobs_of(over_both, (4, 1, 1, 2, "n0", None)), nodes_of(8, 8)) == [None, None]
    assert marks(jobs_of(over_both, (5, 1, 1, 2, "n0", None)), nodes_of(8, 8)) == [None, FULL_NODE_REASON]


def test_jobs_on_nodes_that_the_list_lacks_count_as_they_ran():
    jobs = jobs_of((8, 0, 0, 4, "n0", None), (8, 0, 0, 4, "n7", None), (12, 5, 5, 6, "n[0,8]", None))
    assert marks(jobs, nodes_of(8)) == [None] * 3
    past = add_past_nodes(jobs, nodes_of(8))
    assert past.select("node", "gpus", "installed", "retired").rows() == [
        ("n0", 8, None, None), ("n7", 8, hour(0), hour(4)), ("n8", 6, hour(5), hour(6)),
    ]  # fmt: skip
    (told,) = find_past_fleet_changes(jobs, nodes_of(8))
    assert (told.rows, told.gpu_hours, told.example) == (2, 44.0, "'n7', 'n8'")
    later = jobs_of((4, 9, 9, 10, "n7", None), (8, 9, 9, 10, "n0", None))
    assert marks(later, past) == [None, None], "a list that was completed by earlier jobs binds no later ones"
    three = jobs_of((8, 0, 0, 1, "n0", None), *[(8, 0, 0, 1, "n7", None)] * 3)
    assert marks(three, nodes_of(8)) == [None, None, None, FULL_NODE_REASON], "no server has 24 GPUs"
    other = jobs_of((8, 0, 0, 4, "x1", None), (8, 0, 0, 4, "x2", None))
    assert marks(other, nodes_of(8)) == [None, FULL_POOL_REASON], "no name is of the list: they may be the same nodes"
    assert [each.check for each in find_past_fleet_changes(other, nodes_of(8))] == [check_text("nodes: other cluster")]


@pytest.mark.parametrize(
    ("listed", "held", "kept"),
    [(7, [8], True), (7, [5, 3], True), (6, [8], True), (8, [9], False), (7, [9], False), (2, [8], False)],
)
def test_a_node_that_lost_gpus_had_the_size_of_a_server(listed, held, kept):
    jobs = jobs_of((1, 0, 0, 9, "n0", None), *[(gpus, 10, 10, 12, "n0", None) for gpus in held])
    assert marks(jobs, nodes_of(listed)) == [None, *[None if kept else EXCEEDS_INVENTORY_REASON] * len(held)]


def test_an_absurd_number_of_gpus():
    assert marks(jobs_of(*USUAL, (100_000, 3, 3, 4, None, None))) == [None] * 20 + [IMPLAUSIBLE_GPUS_REASON]
    two = [(100_000, 3, 3, 4, None, None)] * 2
    assert marks(jobs_of(*USUAL, *two)) == [None] * 20 + [IMPLAUSIBLE_GPUS_REASON] * 2, (
        "they do not vouch for each other"
    )
    never_ran = (100_000, 3, None, None, None, None)
    assert marks(jobs_of(*USUAL, never_ran))[-1] == IMPLAUSIBLE_GPUS_REASON
    assert marks(jobs_of(*USUAL, (1000, 3, 3, 4, None, None)))[-1] is None
    large = [(512, place, place, place + 2, None, None) for place in range(20)]
    assert marks(jobs_of(*large, (8192, 3, 3, 4, None, None)))[-1] is None, "1,536 were held at once"
    assert marks(jobs_of(*large[:5], (100_000, 3, 3, 4, None, None)))[-1] is None, "five are no measure"
    assert marks(jobs_of(*USUAL, (25, 3, 3, 4, None, None)), nodes_of(8, 8, 8))[-1] == EXCEEDS_INVENTORY_REASON


@pytest.mark.parametrize("years", [-56, -2, 2, 70])
def test_a_submission_years_away(years):
    away = years * 366 * 24
    assert marks(jobs_of(*USUAL, (1, away, away, away + 1, None, None)))[-1] == FAR_AWAY_TIME_REASON
    several = [(1, away, away, away + 1, None, None)] * 4
    assert marks(jobs_of(*USUAL, *several))[-4:] == [None] * 4, "four of 24 are a part of the record"


def test_an_end_years_away_and_a_clock_of_its_own():
    assert marks(jobs_of(*USUAL, (1, 3, 3, 40 * 366 * 24, None, None)))[-1] == FAR_AWAY_TIME_REASON
    origin = jobs_of(*USUAL).with_columns(
        pl.col("submit_time", "start_time", "end_time") - (DAY - datetime(1970, 1, 1, tzinfo=UTC))
    )
    assert marks(origin) == [None] * 20, "seconds from the start of a trace are no faults"


def test_held_beyond_the_inventory_the_last_to_start_go():
    jobs = jobs_of(
        (4, 0, 0, 6, None, "A"), (4, 0, 1, 3, None, "A"), (4, 0, 2, 4, None, "A"), (4, 0, 3, 5, None, "A"),
    )  # fmt: skip
    assert marks(jobs, nodes_of(8)) == [None, None, FULL_POOL_REASON, None]
    assert marks(jobs, nodes_of(4, 4, gpu_model=["A", "B"])) == [
        None,
        FULL_POOL_REASON,
        FULL_POOL_REASON,
        FULL_POOL_REASON,
    ]
    retired = nodes_of(8, 4).with_columns(retired=pl.Series([None, hour(2)], dtype=pl.Datetime("us", "UTC")))
    assert marks(jobs, retired) == [None, None, FULL_POOL_REASON, None]


def test_models_that_may_be_the_same_are_one_pool():
    words = nodes_of(8, 2, gpu_model=["a100", "A100-40GB"])
    assert marks(jobs_of((8, 0, 0, 1, None, "A100-40GB"), (2, 0, 0, 1, None, "a100")), words) == [None, None]
    two = nodes_of(4, 1, gpu_model=["v100|h100", "h100"])
    jobs = jobs_of((2, 0, 0, 1, "n0", "v100"), (2, 0, 0, 1, "n0", "h100"), (1, 0, 0, 1, "n1", "h100"))
    assert marks(jobs, two) == [None] * 3
    assert gpu_time_ledger(jobs, two, start=DAY, end=hour(1))["gpu_hours"].sum() == 5
    assert gpu_time_ledger(jobs[1:], two, start=DAY, end=hour(1))["gpu_hours"].sum() == 5
    apart = nodes_of(8, 2, gpu_model=["V100-32GB", "A100-40GB"])
    assert marks(jobs_of((3, 0, 0, 1, None, "A100-40GB")), apart) == [FULL_POOL_REASON]


JOB = st.tuples(
    st.sampled_from([1 / 7, 0.5, 1, 2, 4, 8]), st.integers(0, 20), st.none() | st.integers(0, 5),
    st.none() | st.integers(0, 10), st.sampled_from([None, "n0", "n1", "n[0-1]", "n9", "n["]),
    st.sampled_from([None, "A", "B", "a"]),
).map(
    lambda row: (
        row[0], row[1], None if row[2] is None else row[1] + row[2],
        None if row[3] is None else row[1] + (row[2] or 0) + row[3], *row[4:],
    )
)  # fmt: skip


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(JOB, min_size=1, max_size=14), st.sampled_from([None, ["A", "B"], ["A", "A"], ["A", None]]))
def test_what_is_believed_has_a_ledger_and_rows_add_up(rows, boards):
    """Whatever the rows: the ledger over the inventory comes, and every minute fits; what fitted stays."""
    jobs, inventory = jobs_of(*rows), nodes_of(4, 4, gpu_model=boards)
    marked = mark_quarantine(jobs, inventory)
    kept = drop_quarantined(marked)
    assert marked.drop("quarantined").equals(jobs.drop("quarantined"))
    assert kept.height + marked["quarantined"].count() == jobs.height
    past = add_past_nodes(kept, inventory)
    ledger = gpu_time_ledger(kept, past, start=DAY, end=hour(40))
    assert ledger["gpu_hours"].sum() == pytest.approx(installed_gpu_hours(past, DAY, hour(40)))
    assert past.filter(pl.col("node").is_in(["n0", "n1"])).equals(inventory)
    assert marks(kept, inventory) == [None] * kept.height, "judged again, nothing more goes"
    held = [
        sum(g for g, _, start, end, *_ in rows if start is not None and start <= at < (40 if end is None else end))
        for at in range(40)
    ]
    if boards != ["A", "B"] and max(held) <= 8 and all(row[4] is None for row in rows):
        assert kept.height == jobs.height


def test_judged_by_a_walk_through_time():
    """The last to start go: the same as walking from start to start and refusing what does not fit."""
    rng = np.random.default_rng(3)
    starts = np.sort(rng.integers(0, 500, 400))
    rows = [(int(g), int(s), int(s), int(s + d), None, None)
            for g, s, d in zip(rng.integers(1, 9, 400), starts, rng.integers(1, 30, 400), strict=True)]  # fmt: skip
    running, expected = [], []
    for gpus, _, start, end, *_ in rows:
        running = [(g, e) for g, e in running if e > start]
        fits = sum(g for g, _ in running) + gpus <= 40
        expected.append(None if fits else FULL_POOL_REASON)
        running += [(gpus, end)] if fits else []
    assert marks(jobs_of(*rows), nodes_of(40)) == expected
    assert 10 < sum(each is not None for each in expected) < 390
