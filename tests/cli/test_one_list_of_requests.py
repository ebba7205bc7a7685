"""The page, the request lines and the layout rest on one list of recommended requests."""

from __future__ import annotations

import json

import polars as pl
import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.core.stage_cache_and_data_folders import sample_folder
from gpuplanner.decision.study_pipeline import evaluate
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.usage.planning_history import history, load_dataset


def test_page_and_command_lower_the_same_jobs(command):
    code, out, _ = command("rightsize", "sample", "--json")
    assert code == 0
    requests = pl.DataFrame(json.loads(out)["requests"], infer_schema_length=None)
    small = requests.filter(pl.col("instances") == 1, pl.col("gpus") <= 1)
    lowered = small.filter(pl.col("profile_to_request") != pl.col("profile"))["jobs"].sum()
    figures = evaluate(Scenario()).headline
    assert lowered == figures.small_jobs_asking_too_much > 1000
    sized = small.filter(pl.col("recommended_profile").is_not_null())
    assert sized["jobs"].sum() == figures.small_jobs_with_evidence


def test_layout_and_request_lines_are_for_the_same_jobs(command):
    planned = history(Scenario()).views["rightsized"].filter(pl.col("profile") != "gpu")["profile"].value_counts()
    assert planned.height == 5
    for profile, jobs in planned.iter_rows():
        code, out, _ = command("rightsize", "sample", "--profile", profile, "--format", "pod", "--json")
        requests = json.loads(out)["requests"]
        assert code == 0
        assert sum(request["jobs"] for request in requests) == jobs
        # The sample's GPUs are not partitioned: every profile needs lines, the stated ones as well.
        assert all(f"nvidia.com/mig-{profile}: 1" in request["lines"] for request in requests)


def test_profiles_add_up_to_the_whole(command):
    saved = []
    for arguments in (
        (),
        *(("--profile", name) for name in ("gpu", "1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb")),
    ):
        requests = json.loads(command("rightsize", "sample", *arguments, "--json")[1])["requests"]
        saved.append(sum(request["saved_gpu_hours"] or 0 for request in requests))
    assert saved[0] == pytest.approx(sum(saved[1:]))


def test_hours_above_the_stated_request_are_counted_from_the_jobs(command):
    """Jobs that stated a slice and held a full GPU: the run time less the slice's share of it."""
    notes = command("rightsize", "sample", "--team", "research")[2]
    jobs = load_dataset("sample").jobs.filter(pl.col("profile_requested").is_not_null(), tenant="research")
    hours = (pl.col("end_time") - pl.col("start_time")).dt.total_seconds() / 3600
    share = pl.col("profile_requested").str.head(1).cast(pl.Float64) / 7
    above = jobs.select(((pl.col("gpus") - share) * hours).sum()).item()
    assert f"{jobs.height:,} jobs stated a MIG profile" in notes
    assert f"allocated {above:,.1f} GPU-hours more" in notes
    assert "no node offers" in notes


def test_a_user_and_a_job_have_their_own_lines(command):
    lines = command("rightsize", "sample", "--user", "vision-u3", "--format", "sbatch")[1]
    assert lines.count("'vision-u3, ") == lines.count("#SBATCH --gres") > 1
    told = json.loads(command("rightsize", "sample", "--job", "job-004335", "--json")[1])
    assert [request["profile_to_request"] for request in told["requests"]] == [told["jobs"][0]["profile_needed"]]


def test_profiles_that_another_team_holds_are_offered(command, tmp_path):
    trace = open_dataset(sample_folder())
    held = pl.when(tenant="search").then(pl.lit(1, trace.jobs.schema["instances"]))
    jobs = trace.jobs.with_columns(instances=held)
    write_dataset(trace.with_tables(jobs=jobs), tmp_path / "t")
    told = command("rightsize", str(tmp_path / "t"), "--team", "search")[2]
    assert "no node offers" not in told
    assert "no node offers" not in command("rightsize", str(tmp_path / "t"), "--team", "research")[2]


def test_data_without_a_job_on_gpus_have_no_recommendation(command, tmp_path):
    trace = open_dataset(sample_folder())
    write_dataset(trace.with_tables(jobs=trace.jobs.with_columns(gpus=pl.lit(0.0))), tmp_path / "t")
    code, out, _ = command("rightsize", str(tmp_path / "t"), "--json")
    assert (code, json.loads(out)["requests"]) == (0, [])
