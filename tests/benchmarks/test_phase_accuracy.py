"""How well phases and paces are found: on seeded jobs, and on measured runs whose phases were logged."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import numpy as np
import polars as pl
import pytest
from phase_jobs.held_out_jobs import GROUPS, LEAST_DIPS, make_held_out
from phase_jobs.score import Score, score_changes, tolerance
from phase_jobs.synthetic_jobs import SHAPES, make_job

from gpuplanner.ingest.source_registry import read
from gpuplanner.usage.job_phases import find_phases
from gpuplanner.usage.utilization_dips import find_dips, find_pace, find_paces

TARGET = 0.9
LOGGED_RUNS = ("b1", "t2", "t6", "t13_node0")


def measure(seeds):
    """Scores by shape, Hausdorff distances, share of paces within 5 %, and labels true and found."""
    by_shape, distances, paces, labels = dict.fromkeys(SHAPES, Score()), [], [], Counter()
    for seed in seeds:
        job = make_job(seed)
        length = job.samples["time"][-1] - job.samples["time"][0]
        found = find_phases(job.samples)["start"][1:].to_list()
        score = score_changes(found, job.changes, tolerance(length))
        by_shape[job.shape] += score
        if score.hausdorff is not None:
            distances.append(score.hausdorff)
        spikes = find_dips(job.samples)
        if job.period is not None:
            paces.append(spikes.period is not None and abs(spikes.period / job.period - 1) <= 0.05)
        near = [
            (start, label)
            for start, label in spikes.table.select("start", "label").rows()
            if job.spikes.height and (job.spikes["start"] - start).abs().min() <= timedelta(minutes=3)
        ]
        labels["found"] += spikes.table.height
        labels["right place"] += len(near)
        for start, label in near:
            nearest = int((job.spikes["start"] - start).abs().arg_min())
            labels["right label"] += label == job.spikes["label"][nearest]
        labels["true"] += job.spikes.height
    return by_shape, sorted(distances), np.mean(paces), labels


def test_phases_and_paces_of_a_few_jobs():
    by_shape, distances, paces, labels = measure(range(25))
    total = sum(by_shape.values(), Score())
    assert min(total.precision, total.recall, paces) >= TARGET
    assert distances[len(distances) // 2] <= timedelta(minutes=2)
    assert labels["right label"] >= TARGET * labels["right place"]


@pytest.mark.long
def test_held_out_jobs_of_every_group():
    """Jobs of a generator that the detector was not tuned on; benchmarks/phases.py prints more of them by group."""
    total, paces, alarms = Score(), [], []
    for group in GROUPS:
        score = Score()
        for seed in (100, 101):
            job = make_held_out(group, seed)
            length = job.samples["time"][-1] - job.samples["time"][0]
            found = find_phases(job.samples)["start"][1:].to_list()
            score += score_changes(found, job.changes, tolerance(length))
            period = find_dips(job.samples).period if job.samples["sm_activity"].count() else None
            if job.period is not None:
                paces.append(period is not None and abs(period / job.period - 1) <= 0.05)
            elif group == "dips at random" or job.spikes.height < LEAST_DIPS:
                alarms.append(period is not None)
        assert min(score.precision, score.recall) >= 0.75, group  # of six changes or so
        total += score
    assert total.true > 80
    assert min(total.precision, total.recall, np.mean(paces)) >= TARGET
    assert len(paces) > 15
    assert sum(alarms) <= 1


def test_dips_at_random_have_no_pace():
    """False alarms: of 100 jobs whose dips come at random, at most 5 seem to have a pace of their dips."""
    rng = np.random.default_rng(11)
    alarms = sum(find_pace(np.sort(rng.uniform(0, 86_400, rng.integers(3, 16)))) is not None for _ in range(100))
    assert alarms <= 5


def test_kinds_of_dips_part_two_paces_and_make_no_false_ones():
    """Checkpoints and edges whose paces hide each other are told apart by their length; kinds at random add nothing."""
    rng = np.random.default_rng(4)
    one, two = (np.arange(8) + 1) * 3600.0 + rng.normal(0, 60, 8), (np.arange(5) + 0.4) * 5900.0
    times_s = np.sort(np.concatenate([one, two]))
    edges = np.isin(times_s, two)
    found = [pace.period_s for pace in find_paces(times_s, (edges, ~edges), grain_s=15)]
    assert found == [pytest.approx(5900, rel=0.01), pytest.approx(3600, rel=0.02)]
    alarms = 0
    for _ in range(100):
        n = rng.integers(3, 16)
        kind = rng.random(n) < 0.5
        alarms += bool(find_paces(np.sort(rng.uniform(0, 86_400, n)), (kind, ~kind), grain_s=15))
    assert alarms <= 5


def test_uneven_readings_do_not_hide_a_pace():
    rng = np.random.default_rng(5)
    times_s = np.cumsum(rng.uniform(5, 115, 700))
    dips = (times_s % 2700 < 150) & (times_s > 600)
    start = make_job(4).samples["time"][0]
    samples = pl.DataFrame(
        {
            "time": [start + timedelta(seconds=float(second)) for second in times_s],
            "sm_activity": np.where(dips, 0.05, 0.8) + rng.normal(0, 0.02, 700),
        }
    ).with_columns(pl.col("sm_activity").clip(0, 1), node=pl.lit("n"), gpu=0, activity_source=pl.lit("profiling"))
    found = find_dips(samples)
    assert found.period is not None
    assert abs(found.period / timedelta(seconds=2700) - 1) <= 0.05


def read_run(folder, run):
    path = folder / "h100_runs" / f"{run}_telemetry.csv.gz"
    log = pl.read_csv(path, infer_schema_length=None).with_columns(
        time=pl.from_epoch((pl.col("timestamp") * 1e6).cast(pl.Int64), time_unit="us").dt.replace_time_zone("UTC")
    )
    return read("node-csv", path).samples, log


def logged_edges(log, least=4):
    """Where the log changes phase, phases of fewer than four seconds left out."""
    spans = log.group_by("phase", maintain_order=True).agg(
        pl.col("time").min().alias("start"), seconds=pl.col("time").dt.truncate("1s").n_unique()
    )
    return spans.filter(pl.col("seconds") >= least)["start"][1:].to_list()


def moves(samples, edge):
    """Whether activity, memory or power of the node differ by an eighth between the 10 s before and after an edge."""
    ten = timedelta(seconds=10)
    for name in ("sm_activity", "memory_used_gib", "power_w"):
        before = samples.filter(pl.col("time").is_between(edge - ten, edge, closed="left"))[name].mean()
        after = samples.filter(pl.col("time").is_between(edge, edge + ten, closed="left"))[name].mean()
        if abs(after - before) > 0.125 * samples[name].max():
            return True
    return False


def other_events(log):
    """What the log does not say, from what the detector does not use or cannot blur: the first and last second with
    the legacy counter above a tenth, and steps of the allocator by 4 % of the peak."""
    seconds = (
        log.sort("time")
        .group_by_dynamic("time", every="1s")
        .agg(pl.col("gpu_util_pct").mean(), pl.col("mem_used_mib").mean())
    )
    ran = seconds.filter(pl.col("gpu_util_pct") > 10)["time"]
    step = seconds["mem_used_mib"].diff().abs().fill_null(0) > 0.04 * seconds["mem_used_mib"].max()
    return [*ran.gather([0, -1] if len(ran) else []), *seconds.filter(step)["time"]]


@pytest.mark.data
def test_logged_phases_of_measured_runs(public_data):
    """Every logged edge at which the meters move is found; what is found is an edge or another event.

    From warm-up to steady the meters of no run move: the log counts iterations there. Those edges cannot be found, and
    the recall over all logged edges is what they leave.
    """
    moving, found_all, logged, generous = Score(), Score(), Score(), Score()
    for run in LOGGED_RUNS:
        samples, log = read_run(public_data, run)
        within = tolerance(log["time"].max() - log["time"].min(), surely=timedelta(0))
        found = find_phases(samples)["start"][1:].to_list()
        edges = logged_edges(log)
        # The usual two minutes are much for runs of five: by them even the phases of a second are found.
        usual = tolerance(log["time"].max() - log["time"].min())
        generous += score_changes(found, logged_edges(log, least=1), usual)
        moving += score_changes(found, [edge for edge in edges if moves(samples, edge)], within)
        logged += score_changes(found, edges, within)
        found_all += score_changes(found, [*edges, *other_events(log)], within)
    assert (moving.true, logged.true) == (4, 8)
    assert moving.recall >= TARGET
    assert logged.recall == moving.true / logged.true
    assert found_all.precision >= TARGET
    assert (generous.true, generous.precision, generous.recall) == (12, 1.0, 1.0)
    assert generous.hausdorff < timedelta(seconds=43)
