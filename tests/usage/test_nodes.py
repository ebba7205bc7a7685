"""Today's nodes: their number, sizes and layouts are those that people have, and no GPU is lost on the way."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import Inventory, Jobs
from gpuplanner.hardware.mig_layouts import parse_layout, prove
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.dataset_import import add_files
from gpuplanner.ingest.source_registry import read
from gpuplanner.usage.installed_capacity import find_installed
from gpuplanner.usage.planning_history import (
    history,
    load_dataset,
    nodes_of_todays_fleet,
    observation_begins_at,
    observation_ends_at,
)
from gpuplanner.usage.study_fleet import planned_fleet

DAY = datetime(2026, 2, 2, tzinfo=UTC)
DAYS = 3


def made(*jobs, inventory=None, gpu_model="A100-40GB", days=DAYS):
    """A trace of jobs ``(nodes, GPUs or instances of a profile, first hour, hours)``, and further columns by name."""
    rows = []
    for number, (place, held, first, hours, *more) in enumerate(jobs):
        count, profile = held if isinstance(held, tuple) else (held, None)
        rows.append(
            {
                "job_id": str(number),
                "attempt": 1,
                "tenant": "t",
                "state": "RUNNING" if hours is None else "COMPLETED",
                "gpus": count * int(profile[0]) / 7 if profile else float(count),
                "instances": count if profile else None,
                "profile_requested": profile,
                "gpu_model": gpu_model,
                "node_list": place,
                "submit_time": DAY + timedelta(hours=first),
                "start_time": DAY + timedelta(hours=first),
                "end_time": None if hours is None else DAY + timedelta(hours=first + hours),
                **(more[0] if more else {}),
            }
        )
    table = conform(pl.DataFrame(rows, infer_schema_length=None), Jobs, source="test")
    span = {"span_start": DAY.isoformat(), "span_end": (DAY + timedelta(days=days)).isoformat()}
    kept = {"source": "test", "rows_in": len(rows), "rows_kept": len(rows), "rows_rejected": 0} | span
    sample = load_dataset("sample")
    empty = sample.rejects.clear(), sample.quality.clear()
    given = None if inventory is None else conform(inventory, Inventory, source="test")
    return Dataset({"jobs": table}, *empty, kept | {"gpu_hours": 0.0, "files": []}).with_tables(inventory=given)


def listed(*rows):
    """An inventory of nodes ``(name, GPUs, layouts)``."""
    return pl.DataFrame(
        [
            {"node": n, "gpu_model": "A100-40GB", "gpus": g, "layouts": t, "mig_enabled": True if t else None}
            for n, g, t in rows
        ],
        schema_overrides={"layouts": pl.String, "mig_enabled": pl.Boolean},
    )


def fleet(trace, **fields):
    return planned_fleet(Scenario(**fields), trace, observation_begins_at(trace), observation_ends_at(trace))


def sizes(trace, **fields):
    today = fleet(trace, **fields).today
    return dict(zip(today.names, today.gpus, strict=True))


def cuts(trace, **fields):
    today = fleet(trace, **fields).today
    return {name: tuple(t for t in texts if t != "gpu") for name, texts in zip(today.names, today.layouts, strict=True)}


def test_a_node_has_as_many_gpus_as_were_held_of_it_at_once_and_ends_come_first():
    trace = made(("n1", 2, 0, 4), ("n1", 1, 2, 4), ("n1", 2, 4, 4), ("n2", 4, 0, 1), ("n2", 4, 1, 1))
    # Of n1: 2, then 3 from hour 2, and 1 + 2 from hour 4, when the first two are back; n2 is taken over at once.
    assert sizes(trace) == {"n2": 4, "n1": 3}
    found = fleet(trace)
    assert (found.gpus, found.today.total, found.today.named, found.today.inferred) == (7, 7, True, True)


def test_twenty_gpus_on_nodes_of_four_stay_twenty():
    trace = made(*((f"gpu0{n}", 4, n, 30) for n in range(1, 4)), ("gpu[04-05]", 8, 2, 30))
    found = fleet(trace)
    assert (found.gpus, found.today.gpus, found.node_size) == (20, (4,) * 5, 4)
    assert found.node_names == found.today.names == tuple(f"gpu0{n}" for n in range(1, 6))
    assert find_installed(trace, observation_begins_at(trace), observation_ends_at(trace)).gpus == 20


@pytest.mark.parametrize(
    ("gpus", "fields", "expected"),
    [
        (20, {}, (8, 8, 4)),
        (21, {}, (8, 8, 5)),
        (5, {}, (5,)),
        (21, {"gpus_per_node": 4}, (4, 4, 4, 4, 4, 1)),
        (99, {"nodes": 3, "gpus_per_node": 4}, (4, 4, 4)),
    ],
)
def test_without_names_there_is_one_smaller_node_for_the_rest(gpus, fields, expected):
    found = fleet(made((None, gpus, 0, 30)), **fields)
    assert found.today.gpus == expected
    assert found.today.total == found.gpus == sum(expected)
    assert not found.today.named
    assert found.node_names is None


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        ([("n[1-2]", 3, 0, 5)], 3),  # one of them has two
        ([("n[1-2]", 3, 0, 5), ("n1", 2, 6, 5), ("n2", 2, 6, 5)], 4),  # both had two: the third is on either
        ([("n[1-2]", 3, 0, 5), ("n1", 1, 0, 5), ("n2", 1, 0, 5), ("n2", 3, 9, 5)], 5),  # room for it on n2
        ([("n[1-2]", 3, 0, 5), ("n[1-2]", 3, 0, 5)], 6),
        ([("n[1-4]", 2, 0, 5)], 2),  # nodes beside them hold none
    ],
)
def test_gpus_that_are_not_spread_evenly_make_nodes_no_larger_than_they_must_be(jobs, expected):
    assert sum(sizes(made(*jobs)).values()) == expected


def test_the_most_instances_of_each_profile_lie_beside_each_other_and_beside_whole_gpus():
    trace = made(
        ("n1", 2, 0, 10),
        ("n1", (9, "1g.5gb"), 1, 2),
        ("n1", (1, "3g.20gb"), 5, 2),  # never with the nine, but its GPU is cut for it all the same
        ("n2", 1, 0, 10),
    )
    today = fleet(trace).today
    assert dict(zip(today.names, today.gpus, strict=True)) == {"n1": 4, "n2": 1}
    held = {"1g.5gb": 0, "3g.20gb": 0}
    for text in today.layouts[0]:
        counts = parse_layout(text)
        assert prove("A100-40GB", counts), text
        for name, count in counts.items():
            if name != "gpu":
                held[name] += count
    assert held == {"1g.5gb": 9, "3g.20gb": 1}
    assert today.layouts[0].count("gpu") == 2
    assert fleet(trace).cut_gpus == 2


def test_a_node_that_was_cut_anew_has_no_more_gpus_for_that():
    whole, cut = ("n1", 4, 0, 20), ("n1", (28, "1g.5gb"), 30, 20)
    assert cuts(made(whole, cut)) == {"n1": ("1g.5gb:7",) * 4}
    assert sizes(made(whole, cut)) == {"n1": 4}
    back = ("n1", 4, 55, 5)
    assert cuts(made(whole, cut, back)) == {"n1": ()}, "today it is whole again"
    assert sizes(made(whole, cut, back)) == {"n1": 4}


def test_nodes_of_the_inventory_are_played_as_they_are_listed():
    trace = made(("a", 3, 0, 5), inventory=listed(("a", 3, None), ("b", 8, "1g.5gb:7;1g.5gb:7"), ("c", 8, None)))
    found = fleet(trace)
    assert sizes(trace) == {"c": 8, "b": 8, "a": 3}
    assert cuts(trace) == {"a": (), "b": ("1g.5gb:7",) * 2, "c": ()}
    assert (found.gpus, found.today.total, found.today.inferred) == (19, 19, False)
    assert found.node_names == ("c", "b", "a"), "one smaller node, and the last"
    assert dict(found.layouts) == {"1g.5gb:7": 2, "gpu": 17}


def test_layouts_that_an_inventory_leaves_out_follow_from_the_jobs_on_its_nodes():
    jobs = [("n1", (10, "1g.5gb"), 0, 30), ("n1", 2, 0, 30), ("n2", 4, 0, 30)]
    trace = made(*jobs, inventory=listed(("n1", 8, None), ("n2", 8, None)))
    found = fleet(trace)
    assert cuts(trace) == {"n2": (), "n1": ("1g.5gb:3", "1g.5gb:7")}
    assert found.gpus == 16
    assert "has no MIG layouts of 'n1'" in found.remarks()[0]
    stated = made(*jobs, inventory=listed(("n1", 8, None), ("n2", 8, "2g.10gb:3")))
    assert cuts(stated) == {"n1": (), "n2": ("2g.10gb:3",)}, "stated for one node, none of the other means whole"


def test_more_instances_than_a_listed_node_can_have_held_at_one_cut_are_those_of_late():
    jobs = [("n1", (7, "1g.5gb"), 0, 5), ("n1", (2, "3g.20gb"), 20 * 24, 5), ("n2", 1, 0, 5)]
    trace = made(*jobs, inventory=listed(("n1", 1, None), ("n2", 1, None)), days=25)
    assert cuts(trace) == {"n2": (), "n1": ("3g.20gb:2",)}


def test_instances_of_nobody_knows_where_are_played_on_the_fewest_gpus():
    trace = made(*((None, (1, "3g.20gb"), 0, 30) for _ in range(5)), (None, 2, 0, 30))
    found = fleet(trace)
    assert found.today.total == found.gpus
    held = [parse_layout(text).get("3g.20gb", 0) for texts in found.today.layouts for text in texts]
    assert sum(held) == 5
    assert "the data have no MIG layouts" in found.remarks()[0]


def test_nodes_smaller_than_their_like_are_named_and_stay_what_was_seen():
    trace = made(*((f"gpu{n}", 8, 0, 9) for n in range(4)), ("gpu4", 3, 0, 9), ("login", 1, 0, 9))
    found = fleet(trace)
    assert sizes(trace)["gpu4"] == 3
    assert [text for text in found.remarks() if "'gpu4'" in text and "at most 3 GPUs" in text]
    assert not [text for text in found.remarks() if "login" in text]


def test_gpus_of_jobs_without_a_node_are_beside_the_others_and_no_name_goes_out():
    trace = made(("n1", 4, 0, 40), (None, 2, 1, 1))
    found = fleet(trace)
    assert found.gpus == found.today.total == 6
    assert not found.today.named
    assert found.node_names is None


def test_where_few_jobs_name_their_nodes_the_nodes_are_not_known():
    assert sizes(made(("n1", 1, 0, 2), (None, 4, 0, 40))) == {"node0": 5}


def test_a_list_made_at_one_moment_is_told_from_a_history():
    late = [(f"n{n}", 4, 71, None) for n in range(6)]
    early = [("n0", 1, hour, 1) for hour in range(0, 60, 6)]
    found = fleet(made(*late, *early)).today
    assert found.snapshot
    assert "6 of 16 ran in the last hour, with 24 GPUs" in found.remarks[0]
    steady = [(f"n{n}", 4, 2, None) for n in range(6)]
    assert not fleet(made(*steady, *early)).today.snapshot, "as many GPUs before"
    assert not fleet(made(*late, *early, *early)).today.snapshot, "most jobs are over"


def test_fox_is_seen_as_a_list_of_one_moment_on_the_nodes_of_its_jobs(public_data):
    trace = read("slurm", [public_data / "slurm" / "sacct_fox_2025.txt"], tz="Europe/Oslo")
    found = fleet(trace)
    most = {}
    ran = trace.jobs.filter(pl.col("gpus") > 0, pl.col("start_time").is_not_null())
    for at in ran["start_time"].unique():
        there = ran.filter(pl.col("start_time") <= at, pl.col("end_time").fill_null(observation_ends_at(trace)) > at)
        assert there["node_list"].str.contains(",").sum() == 0
        for node, gpus in there.group_by("node_list").agg(pl.col("gpus").sum()).iter_rows():
            most[node] = max(most.get(node, 0), gpus)
    assert sizes(trace) == most
    assert found.gpus == sum(most.values()) >= 46
    assert found.today.snapshot


SACCT = "JobID|State|Submit|Start|End|AllocTRES|NodeList|Account\n"


def test_a_node_list_joins_the_jobs_that_are_there_already(tmp_path):
    jobs, nodes, folder = tmp_path / "jobs.txt", tmp_path / "nodes.txt", tmp_path / "d"
    lines = [
        f"{n}|COMPLETED|1756706400|{1756710000 + 60 * n}|1756717200|{tres}|{node}|a\n"
        for n, (tres, node) in enumerate([("gres/gpu=4", "g1"), ("gres/gpu=1", "g2"), ("gres/gpu=2", "g2")])
    ]
    jobs.write_text(SACCT + "".join(lines))
    nodes.write_text(
        "NodeName=g1 Arch=x86_64\n   Gres=gpu:a100:4\n   State=MIXED\n"
        "NodeName=g2 Arch=x86_64\n   Gres=gpu:a100:2,gpu:a100_1g.5gb:14\n   State=IDLE+DRAIN\n"
        "NodeName=g3 Arch=x86_64\n   Gres=gpu:a100:4\n   State=IDLE\n"
    )
    add_files("slurm", [jobs], folder)
    added = add_files("nodes", [nodes], folder)
    assert "node that takes no new jobs" in added.dataset.quality["check"].to_list()
    nodes_now = nodes_of_todays_fleet(history(Scenario(data=str(folder))))
    assert dict(zip(nodes_now.names, nodes_now.gpus, strict=True)) == {"g1": 4, "g2": 4, "g3": 4}
    assert nodes_now.layouts[2] == ("gpu", "gpu", "1g.5gb:7", "1g.5gb:7")
    assert (nodes_now.named, nodes_now.inferred) == (True, False)


TWO = [("A100-40GB", "a1", 8), ("A100-40GB", "a2", 8), ("T4", "t1", 4)]


def two_boards(*boards):
    """Jobs ``(board, node)`` on a cluster of sixteen A100 and four T4."""
    table = pl.DataFrame([{"node": n, "gpu_model": b, "gpus": g} for b, n, g in TWO])
    jobs = [(node, 2, hour, 3, {"gpu_model": gpu_model}) for hour, (gpu_model, node) in enumerate(boards)]
    return made(*jobs, inventory=table)


def test_a_job_of_a_board_that_is_not_installed_empties_nothing():
    trace = two_boards(("A100-40GB", "a1"), ("T4", "t1"))
    found = fleet(trace)
    assert found.pool == "A100-40GB"
    strange = trace.jobs.with_columns(gpu_model=pl.lit("V100"))
    assert found.jobs_of(strange)["node_list"].to_list() == ["a1"], "by its node"
    assert found.jobs_of(strange.with_columns(node_list=pl.lit("x9"))).height == 2, "else all"
    other = two_boards(("V100-16GB-SXM2", "x1"), ("A100-40GB", "a1"))
    assert fleet(other).jobs_of(other.jobs).height == 2


def test_the_same_nodes_follow_from_the_jobs_in_any_order():
    jobs = [("n[1-2]", 3, 0, 5), ("n[1-3]", 7, 1, 5), ("n2", (3, "2g.10gb"), 0, 9), ("n3", 2, 3, 9), ("n1", 1, 2, 2)]
    trace = made(*jobs)
    shuffled = replace(trace, tables={"jobs": trace.jobs.reverse()})
    assert fleet(trace).today == fleet(shuffled).today
