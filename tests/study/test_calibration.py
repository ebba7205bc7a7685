"""Calibration against clusters whose rules are known, because they were simulated, and against real traces."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from gpuplanner.cli.app import app, register_commands
from gpuplanner.errors import ScenarioError
from gpuplanner.inbox import Dataset, read, write_dataset
from gpuplanner.schemas import Inventory, Jobs, conform
from gpuplanner.simulate import Fleet, Rules, schedule
from gpuplanner.study.future.calibration import SENTENCES, Thresholds, calibrate, judge, outcome, size_class
from gpuplanner.study.future.fleet_fit import replay
from gpuplanner.study.past.history import load_trace
from gpuplanner.study.past.observed import observe, obstacles, peak_gpus

START = datetime(2026, 3, 2, tzinfo=UTC)
GPUS = 16


def trace_of(jobs: pl.DataFrame, *, inventory: pl.DataFrame | None = None, end_s: float = 1e7) -> Dataset:
    """A trace with ``tenant, submit_s, start_s, end_s, gpus``; null starts and ends stay null."""
    defaults = {"state": pl.lit("COMPLETED"), "time_limit_s": pl.lit(None, pl.Float64)}
    table = jobs.with_columns(**{k: v for k, v in defaults.items() if k not in jobs.columns}).select(
        pl.int_range(pl.len()).cast(pl.String).alias("job_id"),
        "tenant",
        "state",
        "time_limit_s",
        attempt=1,
        submit_time=pl.lit(START) + pl.duration(seconds="submit_s"),
        start_time=pl.lit(START) + pl.duration(seconds="start_s"),
        end_time=pl.lit(START) + pl.duration(seconds="end_s"),
        gpus=pl.col("gpus").cast(pl.Float64),
    )
    facts = {
        "source": "test",
        "span_start": START.isoformat(),
        "span_end": (START + timedelta(seconds=end_s)).isoformat(),
        "rows_in": table.height,
        "rows_kept": table.height,
        "gpu_hours": 0.0,
        "rows_rejected": 0,
    }
    nothing = pl.DataFrame()
    dataset = Dataset({"jobs": conform(table, Jobs, where="jobs")}, nothing, nothing, facts)
    return dataset.with_tables(inventory=inventory)


def cluster(rules: Rules, seed: int = 5, jobs: int = 600) -> Dataset:
    """A loaded pool of 16 GPUs that is served by some rules; limits are twice the run times."""
    rng = np.random.default_rng(seed)
    gpus, run_s = rng.choice([1, 2, 4, 8], jobs, p=[0.6, 0.2, 0.1, 0.1]), rng.integers(60, 7200, jobs)
    between = (gpus * run_s).mean() / (GPUS * 0.9)
    table = pl.DataFrame(
        {
            "job_id": np.arange(jobs).astype(str),
            "tenant": rng.choice(["x", "y"], jobs),
            "submit_s": np.cumsum(rng.exponential(between, jobs)).round(),
            "run_s": run_s.astype(float),
            "gpus": gpus,
            "profile": "gpu",
        }
    ).with_columns(limit_s=pl.col("run_s") * 2)
    found = schedule(table, Fleet("H100-80GB-SXM5", 1, GPUS), rules, policy="truth")
    return trace_of(
        table.with_columns(start_s=found["first_start"], end_s=found["end"], time_limit_s="limit_s")
    )


@pytest.fixture(scope="module")
def easy() -> Dataset:
    return cluster(Rules(queue="easy"))


@pytest.mark.parametrize("queue", ["strict", "pass", "easy"])
def test_the_rules_that_made_the_waits_explain_them_all(queue):
    found = calibrate(cluster(Rules(queue=queue)), gpus=GPUS, rules=Rules(queue=queue))
    assert found.verdict == "reproduces"
    assert found.overall["typical_factor"] == pytest.approx(1.0)
    assert found.overall["skill"] == found.overall["waited_within_1h"] == 1.0
    assert found.overall["waited"] > 100
    best = found.candidates.row(0, named=True)
    assert (best["gpus"], best["queue"], best["used"], best["nearest_mean"]) == (GPUS, queue, True, True)
    assert (found.candidates["typical_factor"][1:] > 1.0).all()


def test_the_fit_finds_the_fleet_that_was_not_used(easy):
    found = calibrate(easy, gpus=20)
    assert found.facts["queue"] == "easy"
    assert found.facts["fleet"] == "as given"
    assert found.verdict == "underestimates"
    assert found.candidates.filter("used")["gpus"].to_list() == [20]
    best = found.candidates.row(0, named=True)
    assert (best["gpus"], best["queue"], best["nearest_mean"]) == (GPUS, "easy", True)
    assert calibrate(easy, gpus=13).verdict == "overestimates"


def test_the_fleet_is_inferred_from_what_was_held(easy):
    observed = observe(easy)
    starts = observed.jobs.select(
        begin=pl.col("submit_s") + pl.col("observed_s"), run="run_s", gpus="gpus"
    ).rows()
    most = max(sum(gpus for begin, run, gpus in starts if begin <= now < begin + run) for now, _, _ in starts)
    assert peak_gpus(observed.jobs) == most == observed.gpus
    assert observed.fleet_note.startswith("inferred")


def test_groups_part_the_jobs(easy):
    found = calibrate(easy, gpus=GPUS, tz="Asia/Tokyo")
    for group in found.groups.values():
        assert group["jobs"].sum() == found.overall["jobs"] == 600
        assert group["waited"].sum() == found.overall["waited"]
    assert found.groups["size"]["size"].to_list() == ["1 GPU", "2-7 GPUs", "8 GPUs"]
    first = found.jobs.row(0, named=True)
    assert first["hour"] == (easy.jobs["submit_time"][0] + timedelta(hours=9)).hour


def test_jobs_that_cannot_be_replayed_are_counted_by_reason():
    rows = [
        # submit, start, end, gpus, state
        (0, 100, 200, 1.0, "COMPLETED"),
        (1, 100, None, 1.0, "RUNNING"),
        (2, None, None, 1.0, "PENDING"),
        (3, 100, 200, 0.0, "COMPLETED"),
        (4, 100, 200, None, "COMPLETED"),
        (5, 100, None, 1.0, "UNKNOWN"),
        (6, 100, 200, 9.0, "COMPLETED"),
    ]
    frame = pl.DataFrame(
        rows, schema=["submit_s", "start_s", "end_s", "gpus", "state"], orient="row"
    ).with_columns(tenant=pl.lit("t"))
    observed = observe(trace_of(frame, end_s=1000), gpus=8)
    assert observed.left_out.rows() == [
        ("holds no GPU", 1),
        ("number of GPUs unknown", 1),
        ("never started", 1),
        ("end unknown", 1),
        ("larger than the fleet", 1),
    ]
    assert observed.jobs["run_s"].to_list() == [100.0, 900.0]  # the second still runs at the end
    assert observed.jobs["observed_s"].to_list() == [100.0, 99.0]


def test_parts_of_gpus_are_served_in_parts():
    frame = pl.DataFrame(
        {
            "submit_s": [0, 0, 0],
            "start_s": [0, 0, 50],
            "end_s": [50, 50, 100],
            "gpus": [0.25, 0.75, 0.5],
            "tenant": "t",
        }
    )
    observed = observe(trace_of(frame))
    assert (observed.parts, observed.gpus, observed.jobs["gpus"].to_list()) == (4, 1, [1, 3, 2])
    assert replay(observed, Rules(queue="strict")).to_list() == [0.0, 0.0, 50.0]


def test_nodes_count_where_they_are_alike():
    frame = pl.DataFrame(
        {"submit_s": [0, 0, 0], "start_s": [0, 0, 60], "end_s": 60, "gpus": [3, 3, 2], "tenant": "t"}
    ).with_columns(end_s=pl.col("start_s") + 60)
    nodes = conform(pl.DataFrame({"node": ["a", "b"], "gpus": 4}), Inventory, where="nodes")
    observed = observe(trace_of(frame, inventory=nodes))
    assert (observed.gpus, observed.nodes) == (8, 2)
    # Two GPUs are idle, but on different nodes.
    assert replay(observed, Rules(queue="strict")).to_list() == [0.0, 0.0, 60.0]
    unlike = nodes.with_columns(gpus=pl.Series([4, 2], dtype=pl.Int32))
    pool = observe(trace_of(frame, inventory=unlike))
    assert (pool.gpus, pool.nodes) == (6, 1)
    assert observe(trace_of(frame, inventory=nodes), gpus=8).nodes == 1


def brute_obstacles(observed) -> tuple[int, int]:
    """Waited although enough was idle in 90 % of the seconds; overtaken by a later job of at least the size."""
    rows = [
        (submit, submit + wait, submit + wait + run, gpus)
        for submit, wait, run, gpus in observed.jobs.select("submit_s", "observed_s", "run_s", "gpus").rows()
    ]
    idle = 0
    for submit, start, _, gpus in rows:
        if start - submit <= 600:
            continue
        free = [
            observed.gpus - sum(g for _, begin, end, g in rows if begin <= second + 0.5 < end) >= gpus
            for second in range(int(submit), int(start))
        ]
        idle += np.mean(free) >= 0.9
    overtaken = sum(
        any(other[0] > job[0] and other[1] < job[1] and other[3] >= job[3] for other in rows) for job in rows
    )
    return idle, overtaken


@pytest.mark.parametrize("seed", range(6))
def test_obstacles_are_counted_as_defined(seed):
    rng = np.random.default_rng(seed)
    submit = np.sort(rng.integers(0, 3000, 25))
    start = submit + rng.choice([0, 300, 700, 1500], 25)
    frame = pl.DataFrame(
        {
            "submit_s": submit,
            "start_s": start,
            "end_s": start + rng.integers(1, 2000, 25),
            "gpus": rng.choice([1, 2, 4], 25),
            "tenant": "t",
        }
    )
    trace = trace_of(frame)
    observed = observe(trace, gpus=int(rng.integers(16, 30)))
    counts = dict(obstacles(observed, trace).select("what", "jobs").iter_rows())
    assert (
        counts["waited although enough GPUs were idle"],
        counts["overtaken by a job that came later and asked for as much"],
    ) == brute_obstacles(observed)


FIGURES = {
    "jobs": 500,
    "waited": 100,
    "observed_mean_s": 600.0,
    "simulated_mean_s": 600.0,
    "within_10min": 0.9,
    "waited_within_1h": 0.6,
}


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, "reproduces"),
        ({"simulated_mean_s": 900.0}, "overestimates"),
        ({"simulated_mean_s": 400.0}, "underestimates"),
        ({"within_10min": 0.7}, "right on average only"),
        ({"waited_within_1h": 0.4}, "right on average only"),
        ({"jobs": 99}, "too few to judge"),
        ({"waited": 19}, "too few to judge"),
        ({"waited": 19, "simulated_mean_s": 900.0}, "overestimates"),
    ],
)
def test_verdicts_follow_the_thresholds(change, verdict):
    assert judge(FIGURES | change, Thresholds()) == verdict
    assert verdict in SENTENCES


@pytest.mark.parametrize(
    ("change", "means"),
    [
        ({}, "explained"),
        ({"within_10min": 0.7}, "explained"),  # the mean is right, and it is the mean that is headlined
        ({"simulated_mean_s": 900.0}, "contradicted"),
        ({"simulated_mean_s": 400.0, "jobs": 20, "waited": 3}, "contradicted"),
        ({"jobs": 20, "waited": 3}, "cannot be checked"),
        ({"waited": 0, "observed_mean_s": 30.0, "simulated_mean_s": 0.0}, "cannot be checked"),
        ({"waited": 0, "observed_mean_s": 30.0, "simulated_mean_s": 900.0}, "contradicted"),
        ({"waited": 0, "observed_mean_s": 0.0, "simulated_mean_s": 900.0}, "cannot be checked"),
    ],
)
def test_outcomes_say_what_may_rest_on_the_simulator(change, means):
    assert outcome(FIGURES | change) == means


def test_without_observed_waits_the_simulation_stands_alone(easy):
    """A source without starts takes the submission for them: nothing was observed, all is simulated."""
    run = pl.col("end_time") - pl.col("start_time")
    at_once = easy.jobs.with_columns(end_time=pl.col("submit_time") + run, start_time=pl.col("submit_time"))
    found = calibrate(easy.with_tables(jobs=at_once))
    assert (found.outcome, found.verdict) == ("cannot be checked", "no waits observed")
    assert "simulated only" in found.sentence
    assert found.overall["jobs"] == 600


def test_thresholds_are_data():
    strict = Thresholds(within_10min=0.95)
    assert judge(FIGURES, strict) == "right on average only"


def test_what_cannot_be_calibrated_is_refused(easy):
    with pytest.raises(ScenarioError, match="a number above 0"):
        calibrate(easy, gpus=0)
    with pytest.raises(ScenarioError, match="IANA"):
        calibrate(easy, tz="Mars/Base")
    with pytest.raises(ScenarioError, match="a start and an end"):
        calibrate(easy.with_tables(jobs=easy.jobs.clear()))


def test_size_classes_cover_all_sizes_in_order():
    found = size_class(pl.Series([0.1, 1.0, 1.5, 2.0, 7.0, 8.0, 9.0, 512.0]))
    assert found.to_list() == [
        "part of a GPU", "1 GPU", "1 GPU", "2-7 GPUs", "2-7 GPUs", "8 GPUs", "over 8 GPUs", "over 8 GPUs",
    ]  # fmt: skip
    assert found.equals(found.sort())


def test_command(easy, tmp_path):
    register_commands()
    folder = tmp_path / "trace"
    sample = load_trace("sample")
    facts = {**sample.provenance, **easy.provenance}
    write_dataset(replace(easy, rejects=sample.rejects, quality=sample.quality, provenance=facts), folder)
    run = CliRunner().invoke(app, ["calibrate", str(folder), "--gpus", str(GPUS), "--json"])
    assert run.exit_code == 0, run.output
    found = json.loads(run.stdout)
    assert (found["outcome"], found["verdict"]) == ("explained", "reproduces")
    assert found["facts"]["fleet_gpus"] == GPUS
    assert len(found["quantiles"]) == 110
    again = CliRunner().invoke(app, ["calibrate", str(folder), "--gpus", str(GPUS), "--json"])
    assert again.stdout == run.stdout
    text = CliRunner().invoke(app, ["calibrate", str(folder), "--gpus", "20"]).stdout
    assert text.startswith("contradicted: the mean wait is not as observed")
    assert "The simulator underestimates the waits here" in text
    assert "other fleets and queues, best first" in text


@pytest.mark.parametrize("ending", [".html", ".svg"])
def test_chart(tmp_path, ending):
    register_commands()
    path = tmp_path / f"waits{ending}"
    run = CliRunner().invoke(app, ["calibrate", "sample", "--chart", str(path), "--json"])
    assert run.exit_code == 0, run.output
    told, drawn = json.loads(run.stdout), path.read_text("utf-8")
    late = next(row for row in told["quantiles"] if row["level"] == 0.95)
    assert f"95 %, {late['simulated_s'] / 60:,.1f} and {late['observed_s'] / 60:,.1f} min" in drawn
    assert f"Used: {told['facts']['fleet_gpus']:,} GPUs" in drawn
    assert drawn.count("<figure>") == (5 if ending == ".html" else 0)
    assert CliRunner().invoke(app, ["calibrate", "sample", "--chart", "waits.pdf"]).exit_code == 2


@pytest.mark.data
def test_openb_waits_are_not_of_a_full_fleet(public_data):
    """A fleet of 6,212 GPUs of which at most 66 are ever held cannot make anybody wait; pods waited all the same."""
    folder = public_data / "alibaba_gpu_v2023"
    pods, nodes = folder / "openb_pod_list_default.csv.gz", folder / "openb_node_list_gpu_node.csv"
    found = calibrate(read("openb", [pods], nodes=nodes))
    assert found.facts["fleet_gpus"] == 6212
    assert found.facts["most_gpus_held"] == pytest.approx(65.59)
    assert found.jobs["simulated_s"].max() == 0.0
    assert found.verdict == "underestimates"
    assert found.overall["skill"] == 0.0
    counts = dict(found.obstacles.select("what", "jobs").iter_rows())
    assert counts["waited although enough GPUs were idle"] == found.overall["waited"] == 115
    assert dict(found.left_out.iter_rows()) == {"holds no GPU": 1088, "never started": 861}


@pytest.mark.data
def test_fox_is_too_small_to_judge(public_data):
    found = calibrate(read("slurm", [public_data / "slurm" / "sacct_fox_2025.txt"], tz="Europe/Oslo"))
    assert found.verdict == "too few to judge"
    assert found.outcome == "contradicted", "nobody waits in the simulation, and people waited for days"
    assert (found.overall["jobs"], found.overall["waited"]) == (65, 12)
    assert found.facts["fleet"].startswith("inferred")
