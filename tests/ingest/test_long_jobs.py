"""Jobs some at a time: the same rows, and the same figures as of all of them at once."""

from __future__ import annotations

from datetime import timedelta

import polars as pl
import pytest

from gpuplanner.core.serialization import to_plain
from gpuplanner.core.stage_cache_and_data_folders import sample_folder
from gpuplanner.ingest import chunked_tables as long_jobs
from gpuplanner.ingest.chunked_tables import LazyJobs
from gpuplanner.usage.current_nodes import observe_nodes
from gpuplanner.usage.dataset_description_and_data_quality import describe
from gpuplanner.usage.planning_history import load_dataset, observation_begins_at, observation_ends_at
from gpuplanner.usage.pool_occupancy_and_inferred_inventory import inferred_inventory


def alike(one: object, other: object) -> bool:
    """Whether two plain values are the same but for rounding."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return one == pytest.approx(other, rel=1e-9) if isinstance(one, float) else one == other


def test_parts_and_spans_hold_every_job_where_it_belongs(monkeypatch):
    whole = load_dataset("sample").jobs
    monkeypatch.setattr(long_jobs, "MAX_JOBS_IN_MEMORY", 1000)
    known, columns = LazyJobs.open_file(sample_folder() / "jobs.parquet", whole.height), ["job_id", "tenant"]
    parts = pl.concat(known.iterate_chunks(columns))
    assert parts.cast({"tenant": pl.String}).equals(whole.select(columns))
    begin, end = whole["submit_time"].min(), whole["submit_time"].max() + timedelta(hours=1)
    spans = known.split_span(begin, end)
    assert len(spans) > 5
    assert [first for first, _ in spans[1:]] == [last for _, last in spans[:-1]]
    first, last = spans[2]
    there = (pl.col("submit_time") < last) & (pl.col("end_time").fill_null(last) > first)
    assert known.collect_between(first, last, columns)["job_id"].equals(whole.filter(there)["job_id"])


def test_what_is_said_of_jobs_does_not_depend_on_how_many_are_read_at_a_time(monkeypatch):
    before = to_plain(describe("sample", smallest_group=3, nodes=True).to_dict())
    monkeypatch.setattr(long_jobs, "MAX_JOBS_IN_MEMORY", 4000)
    assert alike(before, to_plain(describe("sample", smallest_group=3, nodes=True).to_dict()))


def test_nodes_and_boards_seen_in_parts_are_those_seen_at_once(monkeypatch):
    trace = load_dataset("sample")
    begin, end = observation_begins_at(trace), observation_ends_at(trace)
    cut = (pl.col("gpus") == 1) & (pl.col("node_list") < "n03")
    known = LazyJobs.from_table(
        trace.jobs.with_columns(
            instances=pl.when(cut).then(1),
            profile_requested=pl.when(cut).then(pl.lit("1g.10gb")),
            gpus=pl.when(cut).then(1 / 7).otherwise("gpus"),
        )
    )
    at_once = observe_nodes(known, begin, end), inferred_inventory(known, start=begin, end=end)
    monkeypatch.setattr(long_jobs, "MAX_JOBS_IN_MEMORY", 2000)
    parts = observe_nodes(known, begin, end), inferred_inventory(known, start=begin, end=end)
    assert all(one.equals(other) for one, other in zip(at_once, parts, strict=True))
    assert at_once[0]["layouts"].null_count() < at_once[0].height


def test_jobs_in_quarantine_are_left_out_of_every_reading():
    jobs = (
        load_dataset("sample")
        .jobs.head(4)
        .with_columns(quarantined=pl.Series([None, "huge", None, None], dtype=pl.String))
    )
    known = LazyJobs.from_table(jobs)
    assert known.collect_rows(["job_id"]).height == next(known.iterate_chunks(["job_id"])).height == 3
    assert LazyJobs.from_table(known) is known
