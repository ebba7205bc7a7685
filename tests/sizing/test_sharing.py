"""How jobs may share a GPU: each rule on jobs that were made for it, and what is written for the device plugin."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
import yaml

from gpuplanner.hardware.catalog import facts
from gpuplanner.sizing.request_lines_and_gpu_sharing import format_plugin_configs, recommend_sharing
from gpuplanner.usage.rightsizing import requested_and_used

NINE = datetime(2026, 2, 2, 9, tzinfo=UTC)


def jobs(
    gpu_model: str, memory: float, busy: float, *, users: int = 1, gpus: float = 1.0, count: int = 20, **more: object
):
    known = {
        "job_id": [f"{gpu_model}-{number}" for number in range(count)], "attempt": 1, "tenant": "t",
        "state": "COMPLETED",
        "gpus": gpus, "gpu_model": gpu_model, "submit_time": NINE, "start_time": NINE,
        "end_time": NINE + timedelta(hours=1), "sm_activity": busy, "memory_peak_gib": memory,
        "job_class": "evaluation", "user": [f"u{number % users}" for number in range(count)],
    }  # fmt: skip
    return pl.DataFrame({**known, **more})


def advised(*parts: pl.DataFrame) -> dict:
    return recommend_sharing(requested_and_used(pl.concat(parts, how="diagonal_relaxed"))).row(0, named=True)


@pytest.mark.parametrize(
    ("part", "mode", "jobs_per_gpu"),
    [
        (jobs("H100-80GB-SXM5", 6.0, 0.05, users=9), "mig", 7),
        (jobs("H100-80GB-SXM5", 70.0, 0.05, users=9), "whole", 1),
        (jobs("T4", 3.0, 0.3), "mps", 3),
        (jobs("T4", 3.0, 0.3, users=2), "whole", 1),
        (jobs("T4", 3.0, 0.8), "whole", 1),
        (jobs("T4", 9.0, 0.05), "whole", 1),
        (jobs("T4", 3.0, 0.02, users=5, job_class="interactive"), "time-slicing", 5),
        (jobs("T4", 3.0, 0.02, users=5), "whole", 1),
        (jobs("T4", 3.0, 0.3, count=4), "whole", 1),
        (jobs("T4", 3.0, 0.1, gpus=2.0), "whole", 1),
        (jobs("no such board", 3.0, 0.1), "whole", 1),
    ],
)
def test_each_rule(part, mode, jobs_per_gpu):
    one = advised(part)
    assert (one["mode"], one["jobs_per_gpu"]) == (mode, jobs_per_gpu), one["why"]
    assert one["jobs_per_gpu"] * (one["memory_peak_gib"] or 0.0) <= 80.0
    for fact in ("isolation", "memory_guard", "with_whom", "slow", "slurm", "kubernetes"):
        assert one[fact] == facts("sharing_modes").filter(mode=mode, fact=fact)["value"].item()


def test_what_is_enough_is_enough_for_nineteen_of_twenty_jobs():
    small = jobs("H100-80GB-SXM5", 6.0, 0.05, count=19)
    assert advised(small, jobs("H100-80GB-SXM5", 60.0, 0.05, count=1, job_id=["one"]))["mode"] == "mig"
    two = jobs("H100-80GB-SXM5", 60.0, 0.05, count=2, job_id=["one", "two"])
    assert advised(small, two)["mode"] == "whole"


def test_jobs_that_share_leave_each_other_what_they_use():
    one = advised(jobs("T4", 3.0, 0.3))
    assert one["jobs_per_gpu"] * one["sm_activity"] <= 1.0
    assert one["slow_at_most"] == 1.0
    turns = advised(jobs("T4", 3.0, 0.02, users=5, job_class="interactive"))
    assert turns["slow_at_most"] == turns["jobs_per_gpu"]


def test_the_device_plugin_is_told_what_shares_and_nothing_else():
    table = recommend_sharing(requested_and_used(pl.concat([jobs("T4", 3.0, 0.3), jobs("H100-80GB-SXM5", 6.0, 0.05)])))
    config = yaml.safe_load(format_plugin_configs(table))
    assert config["kind"] == "ConfigMap"
    [(name, text)] = config["data"].items()
    assert name == "evaluation-t4"
    [resource] = yaml.safe_load(text)["sharing"]["mps"]["resources"]
    assert resource == {"name": "nvidia.com/gpu", "replicas": 3}
    none = recommend_sharing(requested_and_used(jobs("H100-80GB-SXM5", 6.0, 0.05)))
    assert yaml.safe_load(format_plugin_configs(none)) is None


def test_gpu_hours_of_sharing_are_those_requested(command):
    """A job that requested a seventh of a GPU for an hour and was allocated all of it; another still runs."""
    part = jobs("H100-80GB-SXM5", 6.0, 0.05, count=2, profile_requested="1g.10gb", instances=1)
    part = part.with_columns(end_time=pl.when(pl.col("job_id").str.ends_with("-0")).then("end_time"))
    assert advised(part)["requested_gpu_hours"] == pytest.approx(1 / 7)
    text = command("rightsize", "sample", "--sharing")[1]
    assert "requested GPU-hours: of jobs that ended, whatever they were allocated" in text.splitlines()[0]
    assert "requested GPU-hours" in text.splitlines()[2]
    assert "jobs per GPU" in text.splitlines()[2]


def test_the_sample_through_the_command(command):
    code, out, _ = command("rightsize", "sample", "--sharing", "--json")
    assert code == 0
    import json

    rows = {(row["job_class"], row["gpus"]): row for row in json.loads(out)}
    assert rows["pretraining", "several"]["mode"] == "whole"
    assert rows["interactive", "one"]["mode"] == "mig"
