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
    is_single = (pl.col("instances") == 1) & (pl.col("gpus") <= 1)
    lowered = groups.filter(is_single, pl.col("recommended_profile") != pl.col("profile"))
    figures = evaluate(Scenario()).headline
    assert lowered["jobs"].sum() == figures.small_jobs_asking_too_much > 100
    sized = groups.filter(is_single, pl.col("recommended_profile").is_not_null())
    assert sized["jobs"].sum() == figures.small_jobs_with_evidence


def test_layout_and_request_lines_have_the_same_profiles(command):
    _, out, _ = command("rightsize", "sample", "--format", "pod")
    lines = out.count("nvidia.com/mig-")
    by_profile = {}
    for profile in history(Scenario()).views["rightsized"]["profile"].unique().drop_nulls().to_list():
        if profile != "gpu":
            _, of_profile, _ = command("rightsize", "sample", "--profile", profile, "--format", "pod")
            by_profile[profile] = of_profile.count(f"nvidia.com/mig-{profile}: ")
            assert by_profile[profile] == of_profile.count("kind: Pod")
    # The sample's GPUs are not partitioned: each profile of the layout needs requests, the stated ones as well.
    assert len(by_profile) == 5
    assert all(by_profile.values())
    assert sum(by_profile.values()) == lines
