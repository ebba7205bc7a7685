"""The page, the request lines and the layout rest on one list of recommended requests."""

from __future__ import annotations

import json

import polars as pl

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.study_pipeline import evaluate
from gpuplanner.usage.planning_history import history


def test_page_and_command_lower_the_same_jobs(command):
    code, out, _ = command("rightsize", "sample", "--json")
    assert code == 0
    groups = pl.DataFrame(json.loads(out)["groups"], infer_schema_length=None)
    small = groups.filter(pl.col("instances") == 1, pl.col("gpus") <= 1)
    parts = small.rename({"jobs": "all"}).explode("jobs_by_profile").unnest("jobs_by_profile", separator=".")
    lowered = parts.filter(pl.col("jobs_by_profile.profile") != pl.col("profile"))["jobs_by_profile.jobs"].sum()
    figures = evaluate(Scenario()).headline
    assert lowered == figures.small_jobs_asking_too_much > 1000
    sized = small.filter(pl.col("recommended_profile").is_not_null())
    assert sized["jobs"].sum() == figures.small_jobs_with_evidence


def test_layout_and_request_lines_are_for_the_same_jobs(command):
    planned = history(Scenario()).views["rightsized"].filter(pl.col("profile") != "gpu")["profile"].value_counts()
    assert planned.height == 5
    for profile, jobs in planned.iter_rows():
        code, out, _ = command("rightsize", "sample", "--profile", profile, "--format", "pod", "--json")
        parts = [part for row in json.loads(out)["groups"] for part in row["jobs_by_profile"]]
        assert code == 0
        assert sum(part["jobs"] for part in parts if part["profile"] == profile) == jobs
        # The sample's GPUs are not partitioned: every profile needs lines, the stated ones as well.
        lines = [part["lines"] for part in parts if part["profile"] == profile]
        assert all(f"nvidia.com/mig-{profile}: 1" in line for line in lines)
        assert all("lines" not in part for part in parts if part["profile"] != profile)


def test_profiles_of_a_request_add_up_to_its_jobs(command):
    groups = json.loads(command("rightsize", "sample", "--json")[1])["groups"]
    assert all(sum(part["jobs"] for part in row["jobs_by_profile"]) == row["jobs"] for row in groups)
    mixed = [row for row in groups if len(row["jobs_by_profile"]) > 1]
    assert mixed
    saved, by_job = (sum(row[name] for row in mixed) for name in ("saved_gpu_hours", "saved_by_job_gpu_hours"))
    assert by_job > saved > 0
