"""``describe``: traces and telemetry in words, JSON and a chart."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime

import polars as pl
import pytest

from gpuplanner.usage.rightsizing import GPU_HOURS_NOTE
from tests.cli.test_start import accounting


@pytest.fixture
def telemetry(command, tmp_path) -> str:
    path = tmp_path / "node1.csv"
    lines = ["timestamp, index, utilization.gpu [%], memory.used [MiB], power.draw [W]"]
    lines += [f"2026/03/01 08:{minute:02d}:00.000, 0, 50 %, 1000 MiB, 200.0 W" for minute in range(30)]
    path.write_text("\n".join(lines) + "\n")
    assert command("ingest", "auto", str(path), "--tz", "UTC", "-o", str(tmp_path / "t"), "--quiet")[0] == 0
    return str(tmp_path / "t")


@pytest.mark.parametrize("suffix", ["html", "svg"])
def test_chart_is_written_and_talk_goes_to_stderr(command, telemetry, tmp_path, suffix):
    out = tmp_path / f"quality.{suffix}"
    code, text, err = command("describe", telemetry, "--json", "--chart", str(out))
    assert code == 0
    json.loads(text)
    assert f"written: {out}" in err
    assert "node1" in out.read_text("utf-8")


def test_a_description_that_is_shared_shows_small_tenants_together(command, telemetry):
    alone, together = (
        json.loads(command("describe", "sample", "--smallest-group", few, "--json")[1]) for few in ("0", "1000")
    )
    assert {row["tenant"] for row in together["GPU-hours by team"]} == {"(small groups)"}
    assert "llm-core" not in json.dumps(together)
    held = [sum(row["allocated_gpu_hours"] for row in told["GPU-hours by team"]) for told in (alone, together)]
    assert held[0] == pytest.approx(held[1], rel=1e-12)
    code, _, err = command("describe", telemetry, "--smallest-group", "5")
    assert code == 0
    assert "ignored: the folder holds no jobs" in err


def test_a_line_states_which_gpu_hours_are_allocated_and_which_requested(command, telemetry):
    """Both sums of a team as the line states them, counted from its jobs."""
    from gpuplanner.hardware.gpu_models import load_gpu_model
    from gpuplanner.usage.planning_history import load_dataset

    described = json.loads(command("describe", "sample", "--json")[1])
    (row,) = (row for row in described["GPU-hours by team"] if row["tenant"] == "research")
    groups = json.loads(command("rightsize", "sample", "--team", "research", "--json")[1])["requests"]
    requested = sum(group["gpu_hours"] for group in groups)

    trace, gpu_model = load_dataset("sample"), load_gpu_model("H100-80GB-SXM5")
    last = datetime.fromisoformat(trace.provenance["span_end"])
    jobs = trace.jobs.filter(pl.col("tenant") == "research", pl.col("start_time").is_not_null())
    allocated_hours = requested_hours = 0.0
    for gpus, profile, start, end in jobs.select("gpus", "profile_requested", "start_time", "end_time").rows():
        allocated_hours += gpus * (min(end or last, last) - start).total_seconds() / 3600
        if end is not None:
            part = gpus if profile is None else gpu_model.gpu_fraction(str(profile))
            requested_hours += part * (end - start).total_seconds() / 3600
    assert row["allocated_gpu_hours"] == pytest.approx(allocated_hours, rel=1e-3)
    assert requested == pytest.approx(requested_hours, rel=1e-3)
    assert requested < 0.6 * allocated_hours

    assert command("describe", "sample")[1].splitlines()[-1] == GPU_HOURS_NOTE
    assert GPU_HOURS_NOTE not in command("describe", telemetry)[1]


def test_nodes_and_the_dark_share_are_a_count_of_the_jobs(command):
    """Hours in which attempts held GPUs, spread over the nodes that they name; the ledger closes over all of them."""
    from gpuplanner.ingest.gpu_model_resolution_and_node_lists import expand_node_list
    from gpuplanner.usage.planning_history import load_dataset

    told = json.loads(command("describe", "sample", "--by-node", "--json")[1])
    trace = load_dataset("sample")
    first, last = (datetime.fromisoformat(trace.provenance[side]) for side in ("span_start", "span_end"))
    held = Counter()
    columns = ("gpus", "state", "start_time", "end_time", "node_list")
    for gpus, state, start, end, names in trace.jobs.select(columns).rows():
        nodes = expand_node_list(names) if names else [None]
        known = start is not None and start < last and (end or last) > first
        known &= end is not None or state == "RUNNING"
        for node in nodes if known else []:
            lasted = (min(end or last, last) - max(start, first)).total_seconds() / 3600
            held[node] += lasted * gpus / len(nodes)
    rows = {row["node"]: row for row in told["GPU-hours by node"]}
    assert len(rows) >= 8
    assert held == {node: pytest.approx(row["allocated_gpu_hours"], rel=1e-6) for node, row in rows.items()}
    total = told["facts"]["installed_gpu_hours"]
    assert sum(row["installed_gpu_hours"] for row in rows.values()) == pytest.approx(total)
    worked = sum(row["gpu_hours"] for row in told["ledger"] if row["bucket"] in ("used", "no_telemetry"))
    assert told["facts"]["unused_share"] == pytest.approx(1 - worked / total)
    assert "GPU-hours by node" not in json.loads(command("describe", "sample", "--json")[1])


def test_all_sums_of_allocated_gpu_hours_are_the_figure_on_top(command, tmp_path):
    """Jobs of the sample that began before its span; and a list of jobs alone."""
    listed = str(tmp_path / "listed")
    assert command("ingest", "slurm", str(accounting(tmp_path)), "--tz", "UTC", "-o", listed, "--quiet")[0] == 0
    for folder in ("sample", listed):
        told = json.loads(command("describe", folder, "--json")[1])
        ledger = {row["bucket"]: row["gpu_hours"] for row in told["ledger"]}
        allocated = sum(ledger.get(name) or 0 for name in ("used", "no_telemetry", "allocated_idle"))
        titles = ("allocated GPU-hours and queue waits by team", "GPU-hours by how attempts ended")
        sums = [allocated, *(sum(row["gpu_hours"] for row in told[title]) for title in titles)]
        assert [*sums, told["facts"]["gpu_hours"]] == pytest.approx([told["gpu_hours"]] * 4, rel=1e-6)


def test_a_ledger_that_does_not_close_is_refused(command, monkeypatch):
    from gpuplanner.usage import period_accounts as accounts

    monkeypatch.setattr(accounts, "installed_gpu_hours", lambda *_: 1.0)
    code, out, err = command("describe", "sample")
    assert (code, out) == (1, "")
    assert "GPU-hours booked, 1.00 installed" in err


def test_other_suffixes_are_refused_before_anything_is_read(command, tmp_path):
    code, _, err = command("describe", "no/such/folder", "--chart", str(tmp_path / "q.png"))
    assert code == 2
    assert ".html or .svg" in err
    assert not (tmp_path / "q.png").exists()


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_telemetry_by_hour_is_written(command, telemetry, tmp_path, suffix):
    """Half an hour at 200 W, a sample a minute, of which each holds for a minute."""
    out = tmp_path / f"hours.{suffix}"
    assert command("describe", telemetry, "--json", "--hours", str(out))[0] == 0
    (row,) = (pl.read_csv if suffix == "csv" else pl.read_parquet)(out).to_dicts()
    assert (row["samples"], row["sm_activity"]) == (30, 0.5)
    assert row["energy_kwh"] == pytest.approx(0.2 * 30 / 60)
    assert row["covered"] == pytest.approx(30 / 60)


def test_jobs_of_a_class_are_listed_with_what_named_it(command):
    code, text, _ = command("describe", "sample", "--class", "inference")
    assert code == 0
    assert "job class" in text
    told = json.loads(command("describe", "sample", "--class", "inference", "--json")[1])
    by_source = {row["job_class"]: row["jobs"] for row in told["classes"]}
    assert by_source == {row["job_class"]: row["jobs"] for row in told["jobs by job class"]}
    assert len(told["jobs"]) == by_source["inference"]
    assert {(row["job_class"], row["class_source"]) for row in told["jobs"]} == {("inference", "source")}
    assert "jobs" not in json.loads(command("describe", "sample", "--json")[1])


def test_every_job_has_its_class_where_rules_name_it(command, tmp_path):
    from gpuplanner.core.stage_cache_and_data_folders import sample_folder
    from gpuplanner.ingest.dataset_folder import open_dataset
    from gpuplanner.ingest.dataset_writer import write_dataset

    sample = open_dataset(sample_folder())
    unnamed = sample.with_tables(jobs=sample.jobs.with_columns(job_class=pl.lit(None, pl.String)))
    write_dataset(unnamed, tmp_path / "unnamed")
    told = json.loads(command("describe", str(tmp_path / "unnamed"), "--class", "all", "--json")[1])
    assert len(told["jobs"]) == told["facts"]["jobs"] == sum(row["jobs"] for row in told["classes"])
    counted = Counter((row["job_class"], row["class_source"]) for row in told["jobs"])
    assert counted == {(row["job_class"], row["class_source"]): row["jobs"] for row in told["classes"]}
    assert all((row["rule"] is None) == (row["job_class"] is None) for row in told["jobs"])


def test_a_class_that_is_not_there_is_refused(command, telemetry):
    code, _, err = command("describe", "sample", "--class", "infrence")
    assert (code, "Did you mean 'inference'" in err) == (3, True)
    assert command("describe", "sample", "--class", "all", "--smallest-group", "5")[0] == 2
    code, _, err = command("describe", telemetry, "--class", "all")
    assert (code, "--class ignored: the folder holds no jobs" in err) == (0, True)
