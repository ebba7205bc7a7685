"""Which job held a device: by name, by allocation, or because no other job can have."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import Jobs, Samples
from gpuplanner.ingest.gpu_model_resolution_and_node_lists import expand_node_list
from gpuplanner.ingest.quality_report import Finding
from gpuplanner.ingest.telemetry.coverage import coverage
from gpuplanner.ingest.telemetry.metric_definitions import DEVICE_KEY
from gpuplanner.ingest.telemetry.telemetry_join import count_named_devices, find_allocations, find_devices
from gpuplanner.ingest.telemetry.telemetry_quality import summarise_join
from tests.examples import examples

START = datetime(2026, 1, 1, tzinfo=UTC)


def hour(number: float) -> datetime:
    """Instant so many hours after the start."""
    return START + timedelta(hours=number)


def samples(*rows: dict[str, Any]) -> pl.DataFrame:
    """Samples of GPU 0 on n1 unless they say otherwise."""
    common = {"time": START, "node": "n1", "gpu": 0, "instance": None, "profile": None, "job_id": None}
    table = pl.DataFrame([common | {"activity_source": "none"} | row for row in rows], infer_schema_length=None)
    return conform(table, Samples, source="test")


def jobs(*rows: tuple[str, float, float | None, str | None, float | None, str | None]) -> pl.DataFrame:
    """Jobs by id, start and end in hours, node list, GPUs and profile."""
    table = pl.DataFrame(
        [
            {
                "job_id": name,
                "attempt": 1,
                "tenant": "t",
                "submit_time": START,
                "start_time": hour(start),
                "end_time": None if end is None else hour(end),
                "state": "RUNNING" if end is None else "COMPLETED",
                "gpus": gpus,
                "node_list": nodes,
                "profile_requested": profile,
            }
            for name, start, end, nodes, gpus, profile in rows
        ],
        infer_schema_length=None,
    )
    return conform(table, Jobs, source="test")


def matched(
    table: pl.DataFrame, known: pl.DataFrame, names: pl.DataFrame | None = None
) -> tuple[pl.DataFrame, dict[str, Any], list[Finding]]:
    """Samples with their jobs, and the report on the match."""
    devices = find_devices(table.lazy())
    with_kind = table.lazy().join(devices.lazy(), on=DEVICE_KEY, how="left", nulls_equal=True)
    holders = find_allocations(devices, known, names, None, count_named_devices(with_kind, names))
    found = holders.assign_jobs(table.lazy())
    facts, findings = summarise_join(found, known, holders, coverage(table))
    return found.collect(), facts, findings


def held(table: pl.DataFrame, *rows: Any) -> Sequence[str | None]:
    """Jobs of the samples, in the order in which they were given."""
    found = matched(table, jobs(*rows))[0]
    derived = ("job_id", "job_evidence")
    assert found.drop(derived).equals(table.drop(derived))
    return found["job_id"].to_list()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("gpu-[08-10,15],cpu7", ["gpu-08", "gpu-09", "gpu-10", "gpu-15", "cpu7"]),
        ("a[1-2]b, c", ["a1b", "a2b", "c"]),
    ],
)
def test_node_lists_of_slurm(text: str, names: list[str]):
    assert expand_node_list(text) == names


@pytest.mark.parametrize("text", ["n[1-", "n[a-b]", "n[1-9999999]", "n]", "n[3-]x", "a b"])
def test_what_is_no_node_list_is_refused(text: str):
    with pytest.raises(TraceFormatError, match="node list"):
        expand_node_list(text)


def test_one_job_that_held_the_whole_node():
    table = samples(*({"time": hour(at), "gpu": gpu} for at in (0, 1, 2, 3) for gpu in (0, 1)))
    assert held(table, ("a", 1, 2, "n1", 2, None), ("b", 2, None, "n[1-2]", 4, None)) == [
        *(None, None, "a", "a", "b", "b", "b", "b")
    ]


def test_a_job_on_a_part_of_the_node_is_not_guessed():
    table = samples({"gpu": 0}, {"gpu": 1})
    assert held(table, ("a", 0, 1, "n1", 1, None)) == [None, None]
    assert held(table, ("a", 0, 1, "n1", 1, None), ("b", 0, 1, "n1", 1, None)) == [None, None]
    found, _, findings = matched(table, jobs(("a", 0, 1, "n1", 1, None)))
    assert found["job_evidence"].to_list() == ["together", "together"]
    assert [(each.check, each.severity, each.rows) for each in findings] == [
        ("several jobs on the node: job of a device not known", "info", 2)
    ]


@pytest.mark.parametrize(
    ("gpus", "others", "evidence"),
    [(1, [], "none"), (2, [], "together"), (1, [("b", 0, 1, "n1", 1, None)], "together")],
)
def test_a_gpu_without_a_name_beside_a_named_job_is_free_unless_a_job_lacks_gpus(gpus, others, evidence):
    table = samples({"gpu": 0, "job_id": "pod-a"}, {"gpu": 1}, {"gpu": 2})
    names = pl.DataFrame({"name": ["pod-a"], "job_id": ["a"]})
    found = matched(table, jobs(("a", 0, 1, "n1", gpus, None), *others), names)[0]
    assert found["job_id"].to_list() == ["a", None, None]
    assert found["job_evidence"].to_list() == ["stated", evidence, evidence]


def test_a_name_from_the_source_counts_most():
    assert held(samples({"job_id": "77"}), ("a", 0, 1, "n1", 1, None)) == ["77"]


def test_instances_are_matched_by_their_profile():
    table = samples(
        {"instance": 1, "profile": "3g.40gb"},
        {"instance": 9, "profile": "1g.10gb"},
        {"instance": 10, "profile": "1g.10gb"},
        {},
    )
    assert held(
        table, ("big", 0, 1, "n1", 1, "3g.40gb"), ("small", 0, 1, "n1", 1, "1g.10gb"), ("whole", 0, 1, "n1", 8, None)
    ) == ["big", None, None, None]


def test_jobs_seen_outside_their_time_show_that_clocks_differ():
    table = samples(*({"time": hour(at), "job_id": "a"} for at in (0, 0.01, 0.02, 0.03)))
    *_, findings = matched(table, jobs(("a", 0.5, 1, "n1", 1, None)))
    (skew,) = [found for found in findings if found.check.startswith("clock skew")]
    assert (skew.severity, skew.rows, skew.example) == ("warning", 1, "job a on n1: by 1800 s")
    *_, findings = matched(table, jobs(("a", 0, 1, "n1", 1, None)))
    assert not findings


def test_only_free_devices_at_work_have_activity_without_a_job():
    table = samples(
        *({"time": hour(at), "sm_activity": busy} for at, busy in ((0, 0.9), (2, 0.049), (3, None), (4, 0.05)))
    )
    *_, findings = matched(table, jobs(("a", 0, 1, "n1", 1, None)))
    told = [(found.check, found.severity, found.rows, found.example) for found in findings]
    assert told == [
        ("no job on the node then", "info", 3, ""),
        ("activity without a job", "warning", 1, "n1 GPU 0 at 2026-01-01 04:00:00 UTC"),
    ]


def test_full_gpus_sampled_while_jobs_ran_on_their_instances_are_named():
    """The reason stands in place of a job of another user; n2 shows the instance of its job, n3 a job on full GPUs."""
    instance = {"node": "n2", "instance": 7, "profile": "3g.40gb"}
    full = ({"time": hour(at), "node": node, "sm_activity": 0.4} for node in ("n1.site", "n3") for at in (0, 0.5, 2))
    known = jobs(
        ("a", 0, 1, "n1", 0.5, "3g.40gb"), ("b", 0, 1, "n2", 1, "3g.40gb"), ("c", 0, 2, "n3", 1, None),
        ("d", 1, 3, "n3", 0.5, "3g.40gb"),
    )  # fmt: skip
    found, facts, findings = matched(samples(*full, instance), known)
    evidence = found.group_by("node", maintain_order=True).agg("job_evidence").rows()
    assert sorted(evidence) == [
        ("n1.site", ["mig_instances", "mig_instances", "none"]), ("n2", ["whole_node"]),
        ("n3", ["whole_node", "whole_node", "mig_instances"]),
    ]  # fmt: skip
    assert [(each.check, each.severity, each.rows, each.example) for each in findings] == [
        ("full GPUs sampled while jobs ran on their MIG instances", "warning", 3, "node n1.site"),
        ("no job on the node then", "info", 1, ""),
        ("activity without a job", "warning", 1, "n1.site GPU 0 at 2026-01-01 02:00:00 UTC"),
    ]
    assert "GPU_I_ID" in findings[0].effect
    assert facts["by_reason"]["full GPU sampled while jobs ran on MIG instances of the node"] > 0


def test_activity_after_the_list_of_jobs_is_no_activity_without_a_job():
    table = samples(*({"time": hour(at), "sm_activity": 0.9} for at in (0, 1, 2)))
    known = jobs(("a", 0, 1, "n1", 1, None))
    holders = find_allocations(find_devices(table.lazy()), known)
    *_, findings = summarise_join(holders.assign_jobs(table.lazy()), known, holders, coverage(table), hour(1))
    assert [each.check for each in findings] == ["samples after the end of the list of jobs"]


def test_another_name_of_a_job_is_told_by_the_list():
    names = pl.DataFrame({"name": ["ads/train-0", "ads/train-1"], "job_id": "ads/train"})
    table = samples({"job_id": "ads/train-0"}, {"gpu": 1, "job_id": "ads/train-1"}, {"gpu": 2, "job_id": "x/y"})
    found, facts, findings = matched(table, jobs(("ads/train", 0, 1, "n1", 2, None)), names)
    assert found["job_id"].to_list() == ["ads/train", "ads/train", "x/y"]
    assert [each.check for each in findings] == ["job not in the list of jobs"]
    assert facts["unmatched_gpu_hours"] == 0.0  # one instant is no time


def test_the_report_sums_to_the_observed_gpu_hours():
    """Two GPUs for four hours: a whole job, two jobs together, nobody, and on another node nobody at all."""
    seen = [{"time": hour(at / 4), "gpu": gpu} for at in range(17) for gpu in (0, 1)]
    table = samples(*seen, *({"time": hour(at / 4), "node": "n9"} for at in range(5)))
    known = jobs(("a", 0, 1, "n1", 2, None), ("b", 1, 3, "n1", 1, None), ("c", 1, 2, "n1", 1, None))
    _, facts, _ = matched(table, known)
    total = facts["matched_gpu_hours"] + facts["together_gpu_hours"] + facts["unmatched_gpu_hours"]
    assert total == pytest.approx(float(coverage(table)["observed_gpu_h"].sum()), abs=1e-12) == 9.75
    assert facts["by_reason"]["no job names this node"] == pytest.approx(1.25)
    assert facts["matched_gpu_hours"] == pytest.approx(2.0)
    assert facts["together_gpu_hours"] == pytest.approx(4.0)


def test_what_runs_at_the_end_of_the_list_is_not_known_to_hold_anything_later():
    table = samples(*({"time": hour(at)} for at in (1, 2, 3)))
    known = jobs(("a", 0, None, "n1", 1, None))
    holders = find_allocations(find_devices(table.lazy()), known, None, hour(2))
    found = holders.assign_jobs(table.lazy())
    assert found.collect()["job_id"].to_list() == ["a", None, None]
    facts, findings = summarise_join(found, known, holders, coverage(table), hour(2))
    assert set(facts["by_reason"]) == {"one job was allocated all devices of the node", "the list of jobs ends before"}
    assert [(each.check, each.rows) for each in findings] == [("samples after the end of the list of jobs", 2)]


def test_a_node_is_known_by_its_first_name():
    table = samples({"node": "n1.cluster.site"}, {"node": "n2"}, {"node": "n3.a"}, {"node": "n3.b"})
    rows = [("a", 0, 1, "n1", 1, None), ("b", 0, 1, "n2.site", 1, None), ("c", 0, 1, "n3", 1, None)]
    assert held(table, *rows) == ["a", "b", None, None]


SPANS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 8), st.sampled_from(["n1", "n2", "n[1-2]"]), st.integers(1, 4)),
    max_size=8,
)


@settings(deadline=None, max_examples=examples(60))
@given(SPANS, st.lists(st.tuples(st.integers(0, 25), st.sampled_from(["n1", "n2"])), min_size=1, max_size=15))
def test_matches_are_those_of_brute_force(spans: Any, seen: Any):
    rows = [
        (str(number), start, start + length, nodes, float(gpus), None)
        for number, (start, length, nodes, gpus) in enumerate(spans)
    ]
    if not rows:
        return
    table = samples(*({"time": hour(at), "node": node} for at, node in sorted(set(seen))))
    expected = []
    for at, node in table.select("time", "node").iter_rows():
        on = [row for row in rows if node in expand_node_list(row[3]) and hour(row[1]) <= at < hour(row[2])]
        # one GPU is seen on each node
        sure = len(on) == 1 and on[0][4] / len(expand_node_list(on[0][3])) >= 1
        expected.append(on[0][0] if sure else None)
    assert held(table, *rows) == expected
