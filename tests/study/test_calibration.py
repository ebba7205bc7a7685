"""Calibration against clusters whose rules are known, because they were made up, and against real traces."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from gpuplanner.cli.app import app, register_commands
from gpuplanner.inbox import Dataset, read, write_dataset
from gpuplanner.scenario import Scenario
from gpuplanner.schemas import Inventory, Jobs, conform
from gpuplanner.study.future.calibration import (
    BY_COUNT,
    BY_PLACE,
    ELSEWHERE,
    LATENCY,
    SENTENCES,
    Thresholds,
    WaitFigures,
    calibrate,
    judge,
    outcome,
)
from gpuplanner.study.past.history import load_trace
from tests.simulate.nodes_slow import play_slow

START = datetime(2026, 3, 2, tzinfo=UTC)
GPUS, HOUR = 16, 3600.0


@pytest.fixture
def scenario_of(tmp_path):
    """A scenario of jobs with ``submit_s, start_s, end_s, gpus``, on nodes of so many GPUs each."""

    def made(jobs: pl.DataFrame, nodes: list[int] | None, **fields) -> Scenario:
        write_dataset(trace_of(jobs, nodes), tmp_path / "trace")
        return Scenario(data=str(tmp_path / "trace"), **fields)

    return made


def trace_of(jobs: pl.DataFrame, nodes: list[int] | None) -> Dataset:
    defaults = {"tenant": pl.lit("t"), "state": pl.lit("COMPLETED"), "time_limit_s": pl.lit(None, pl.Float64)}
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
    last = max(table["end_time"].max(), table["submit_time"].max()) + timedelta(hours=1)
    facts = {
        "source": "test", "span_start": START.isoformat(), "span_end": last.isoformat(), "rows_in": table.height,
        "rows_kept": table.height, "gpu_hours": 0.0, "rows_rejected": 0, "files": [],
    }  # fmt: skip
    sample = load_trace("sample")
    dataset = Dataset(
        {"jobs": conform(table, Jobs, where="jobs")}, sample.rejects.clear(), sample.quality.clear(), facts
    )
    if nodes is None:
        return dataset
    names = [f"n{number}" for number in range(len(nodes))]
    return dataset.with_tables(
        inventory=conform(pl.DataFrame({"node": names, "gpus": nodes}), Inventory, where="nodes")
    )


def cluster(queue: str, seed: int = 5, jobs: int = 600) -> pl.DataFrame:
    """Jobs on a loaded node of 16 GPUs that is served by a rule; limits are twice the run times."""
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
    asked = table.select(
        ready="submit_s", submit="submit_s", run="run_s", limit="limit_s", profile=0, total="gpus", nodes=1
    )
    fleet = {"gpus": [GPUS], "capacity": [[[GPUS]]], "first": [0], "flexible": None}
    starts, _ = play_slow(
        asked.to_dicts(), fleet, queue=queue, placement="best", larger=((),), weights=(1.0,), switching=None,
        pinned=None,
    )  # fmt: skip
    start = pl.Series(starts)
    return table.with_columns(start_s=start, end_s=start + pl.col("run_s"), time_limit_s="limit_s")


def shares(found) -> dict[str, float]:
    return dict(found.causes.select("cause", "share").iter_rows())


@pytest.mark.parametrize("queue", ["strict", "easy"])
def test_the_rule_that_made_the_waits_explains_them_all(scenario_of, queue):
    found = calibrate(scenario_of(cluster(queue), [GPUS], queue=queue))
    assert (found.outcome, found.verdict) == ("explained", "reproduces")
    assert found.overall.waited > 100
    assert found.overall.typical_factor == pytest.approx(1.0, abs=0.02)
    assert found.overall.waited_within_1h == pytest.approx(1.0, abs=0.02)
    assert shares(found)[ELSEWHERE] < 0.02, "fleet and queue are all that kept anybody"
    assert sum(shares(found).values()) == pytest.approx(1.0)
    assert found.overall.simulated_low_s <= found.overall.simulated_mean_s
    late = found.overall.observed_completion_mean_s - found.overall.observed_mean_s
    run_s = cluster(queue)["run_s"].mean()
    assert late == pytest.approx(run_s, rel=0.01), "from the start to the end is the run time"


def test_another_fleet_or_queue_does_not(scenario_of):
    jobs = cluster("easy")
    more = calibrate(scenario_of(jobs, [24]))
    assert (more.outcome, more.verdict) == ("contradicted", "underestimates")
    assert shares(more)[ELSEWHERE] > 0.3
    strict = calibrate(scenario_of(jobs, [GPUS], queue="strict"))
    assert (strict.outcome, strict.verdict) == ("contradicted", "overestimates")


def test_groups_part_the_jobs(scenario_of):
    found = calibrate(scenario_of(cluster("easy"), [GPUS], tz="Asia/Tokyo"))
    for group in found.groups.values():
        assert group["jobs"].sum() == found.overall.jobs == 600
        assert group["waited"].sum() == found.overall.waited
    assert found.groups["size"]["size"].cast(pl.String).to_list() == ["1 GPU", "2-4 GPUs", "5-8 GPUs"]
    assert found.jobs["hour"][0] == (START + timedelta(seconds=cluster("easy")["submit_s"][0])).hour + 9


def steady(jobs: int, *, waits: float, gpus: int = 1) -> pl.DataFrame:
    """Jobs of half an hour, one an hour, on GPUs that are free all the time."""
    submit = pl.int_range(0, jobs, eager=True).cast(pl.Float64) * HOUR
    frame = pl.DataFrame({"submit_s": submit, "gpus": gpus}).with_columns(start_s=pl.col("submit_s") + waits)
    return frame.with_columns(end_s=pl.col("start_s") + HOUR / 2)


def test_a_quota_is_named_as_what_no_fleet_explains(scenario_of):
    found = calibrate(scenario_of(steady(150, waits=6 * HOUR), [8]))
    assert (found.outcome, found.verdict) == ("contradicted", "underestimates")
    row = found.causes.row(by_predicate=pl.col("cause") == ELSEWHERE, named=True)
    assert row["share"] == pytest.approx(1.0)
    assert row["jobs"] == found.overall.jobs
    assert "a quota" in row["meaning"]
    assert row["hours"] == pytest.approx(6 * found.overall.jobs)


def test_a_scheduler_that_looks_now_and_then_is_a_constant(scenario_of):
    found = calibrate(scenario_of(steady(150, waits=20.0), [8]))
    assert found.facts.latency_s == 20.0
    assert shares(found)[LATENCY] == pytest.approx(1.0)
    assert found.jobs["simulated_s"].to_list() == found.jobs["observed_s"].to_list()
    assert found.outcome == "cannot be checked", "nobody waited for long enough to tell"


def test_too_few_free_and_free_but_not_together_are_told_apart(scenario_of):
    # On two nodes of four, three and three leave one each: a job of two waits although two are free.
    rows = {
        "submit_s": [0.0, 0, 0, 8000, 8000],
        "start_s": [0.0, 0, 3600, 8000, 11_600],
        "end_s": [3600.0, 3600, 7200, 11_600, 15_200],
        "gpus": [3, 3, 2, 8, 8],
    }
    found = calibrate(scenario_of(pl.DataFrame(rows), [4, 4]))
    assert found.jobs["simulated_s"].to_list() == found.jobs["observed_s"].to_list()
    told = dict(found.causes.select("cause", "hours").iter_rows())
    assert (told[BY_PLACE], told[BY_COUNT]) == (pytest.approx(1.0), pytest.approx(1.0))


def test_jobs_that_are_not_judged_are_counted_by_reason(scenario_of):
    rows = steady(30, waits=0.0)
    never = pl.DataFrame({"submit_s": [100.0], "start_s": None, "end_s": None, "gpus": 1, "state": "PENDING"})
    found = calibrate(scenario_of(pl.concat([rows, never], how="diagonal_relaxed").with_columns(
        state=pl.col("state").fill_null("COMPLETED")), [8]))  # fmt: skip
    assert found.overall.jobs == 30
    assert found.left_out.rows() == [("never started", 1)]


def figures(**change):
    """Waits that are reproduced, but for what is changed; every replay is as the first unless it is said."""
    told = (
        dict.fromkeys((field.name for field in dataclasses.fields(WaitFigures)), 0.0)
        | {
            "jobs": 500,
            "waited": 100,
            "observed_mean_s": 600.0,
            "simulated_mean_s": 600.0,
            "within_10min": 0.9,
            "waited_within_1h": 0.6,
        }
        | change
    )
    ends = dict.fromkeys(("simulated_low_s", "simulated_high_s"), told["simulated_mean_s"])
    return WaitFigures(**(told | ends | change))


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, "reproduces"),
        ({"simulated_mean_s": 900.0}, "overestimates"),
        ({"simulated_mean_s": 400.0}, "underestimates"),
        # Replays that range as far as what was seen do not contradict it.
        ({"simulated_mean_s": 900.0, "simulated_low_s": 500.0, "simulated_high_s": 950.0}, "reproduces"),
        ({"within_10min": 0.7}, "right on average only"),
        ({"waited_within_1h": 0.4}, "right on average only"),
        ({"jobs": 99}, "too few to judge"),
        ({"waited": 19}, "too few to judge"),
        ({"waited": 19, "simulated_mean_s": 900.0}, "overestimates"),
    ],
)
def test_verdicts_follow_the_thresholds(change, verdict):
    assert judge(figures(**change), Thresholds()) == verdict
    assert verdict in SENTENCES


@pytest.mark.parametrize(
    ("change", "means"),
    [
        ({}, "explained"),
        ({"simulated_mean_s": 900.0}, "contradicted"),
        ({"simulated_mean_s": 400.0, "jobs": 20, "waited": 3}, "contradicted"),
        ({"jobs": 20, "waited": 3}, "cannot be checked"),
        ({"waited": 0, "observed_mean_s": 30.0, "simulated_mean_s": 900.0}, "contradicted"),
        ({"waited": 0, "observed_mean_s": 0.0, "simulated_mean_s": 900.0}, "cannot be checked"),
    ],
)
def test_outcomes_say_what_may_rest_on_the_simulator(change, means):
    assert outcome([figures(**change)]) == means
    # One size of job that is not explained is enough.
    other = "contradicted" if means == "contradicted" else "explained"
    assert outcome([figures(), figures(**change)]) == other


def test_without_observed_waits_the_simulation_stands_alone(scenario_of):
    """A source without starts takes the submission for them: nothing was observed, all is simulated."""
    jobs = cluster("easy").with_columns(end_s=pl.col("submit_s") + pl.col("run_s"), start_s="submit_s")
    found = calibrate(scenario_of(jobs, [GPUS]))
    assert (found.outcome, found.verdict) == ("cannot be checked", "no waits observed")
    assert "simulated only" in found.sentence


def test_the_comparison_is_made_of_the_same_jobs_on_the_same_nodes(study):
    """Sizes, GPUs and base of ``calibrate`` are those that ways to run the fleet are judged by."""
    found = calibrate(study.scenario)
    assert found.facts.fleet_gpus == study.decision.fleet_gpus
    assert found.facts.base == study.decision.base
    sizes = [row.size_class for row in study.comparison.today.by_class]
    assert found.groups["size"]["size"].cast(pl.String).to_list() == sizes
    # The sample's jobs came through plain backfill, which is not Slurm's.
    assert calibrate(study.scenario.but(path="operator")).outcome == "explained"


def test_command(scenario_of):
    register_commands()
    folder = scenario_of(cluster("easy"), [GPUS]).data
    run = CliRunner().invoke(app, ["calibrate", folder, "--json"])
    assert run.exit_code == 0, run.output
    found = json.loads(run.stdout)
    assert (found["outcome"], found["verdict"]) == ("explained", "reproduces")
    assert found["facts"]["fleet_gpus"] == GPUS
    assert len(found["quantiles"]) == 110
    assert [row["cause"] for row in found["causes"]][:2] == [BY_COUNT, BY_PLACE]
    assert CliRunner().invoke(app, ["calibrate", folder, "--json"]).stdout == run.stdout
    text = CliRunner().invoke(app, ["calibrate", folder]).stdout
    assert text.startswith("explained: the mean wait of every size of job is as observed")
    assert "The simulator reproduces the waits here" in text


@pytest.mark.data
def test_openb_waits_are_not_of_a_full_fleet(public_data, tmp_path):
    """A fleet of 6,212 GPUs of which at most 66 are ever held cannot make anybody wait; pods waited all the same."""
    folder = public_data / "alibaba_gpu_v2023"
    pods, nodes = folder / "openb_pod_list_default.csv.gz", folder / "openb_node_list_gpu_node.csv"
    write_dataset(read("openb", [pods], nodes=nodes), tmp_path / "openb")
    found = calibrate(Scenario(data=str(tmp_path / "openb")))
    assert found.facts.fleet_gpus == 6212
    assert found.jobs["simulated_s"].max() == found.facts.latency_s <= 1.0
    assert found.verdict == "underestimates"
    assert shares(found)[ELSEWHERE] > 0.98
