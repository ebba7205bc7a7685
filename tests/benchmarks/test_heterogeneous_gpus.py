"""Jobs on three GPU models: capacity, options by hand, and the integer program against every assignment."""

from __future__ import annotations

import itertools

import heterogeneous_gpus as case
import numpy as np
import polars as pl
import pytest

JOBS = 25


def test_options_of_a_job_by_hand():
    """60 GiB: alone on the 80 GiB model, with tensor parallelism on the 40 GiB model as well."""
    options = [option for option in case.options_of(60.0, 1000.0) if option.gpus <= 2]
    assert [(option.model, option.gpus) for option in options] == [(0, 1), (0, 2), (1, 2), (0, 2)]
    slowest = 1000.0 / 2**0.9
    assert [option.run_s for option in options] == pytest.approx(
        [500.0, slowest / 2, slowest * 1.05, slowest * 1.05 / 2]
    )


def test_nodes_of_a_job():
    assert case.smallest_fitting_node([8, 3, 4], 3) == {1: 3}
    assert case.smallest_fitting_node([2, 3, 4], 6) == {2: 4, 1: 2}
    assert case.first_fitting_node([8, 3, 4], 3) == {0: 3}
    assert case.first_fitting_node([2, 3, 4], 6) == {0: 2, 1: 3, 2: 1}
    assert case.smallest_fitting_node([1, 1], 3) == {}


@pytest.mark.parametrize("policy", ["choose_aware", "choose_picked"])
def test_no_gpu_is_used_twice_and_every_job_ends(policy):
    jobs = case.draw_jobs(3, 1.5, jobs=JOBS)
    choose = getattr(case, policy)

    def checked(job, idle):
        for model, nodes in zip(case.FLEET, idle, strict=True):
            assert all(0 <= count <= model.gpus_per_node for count in nodes)
        return choose(job, idle)

    case.serve_in_order(jobs, checked)
    for job in jobs:
        assert job.end_s - job.submit_s >= min(option.run_s for option in job.options) - 1e-9


def test_a_job_alone_runs_as_each_policy_says():
    (job,) = case.draw_jobs(0, 0.9, jobs=1)
    case.serve_in_order([job], case.choose_picked)
    assert job.end_s == job.submit_s + job.picked_option.run_s
    case.serve_in_order([job], case.choose_aware)
    assert job.end_s == job.submit_s + job.options[0].run_s
    case.serve_in_rounds([job])
    begins = np.ceil(job.submit_s / case.ROUND_S) * case.ROUND_S
    assert job.end_s == pytest.approx(begins + min(option.run_s for option in job.options))


def test_a_job_that_is_moved_keeps_its_work_and_pays_a_restart():
    job = case.Job(0.0, [case.Option(0, 1, 100.0), case.Option(0, 2, 50.0)], case.Option(0, 1, 100.0))
    moving = case.MovingJob(job)
    moving.start(0, 60.0)
    assert moving.end_s == 160.0
    moving.stop(110.0)
    moving.start(1, 110.0)
    assert moving.moves == 1
    assert moving.end_s == 110.0 + case.RESTART_S + 0.5 * 50.0
    # Half of its speed stays as it is; the other option is worth less by the restart.
    discount = (140.0 - case.RESTART_S) / (140.0 + case.RESTART_S)
    assert moving.values(140.0).tolist() == pytest.approx([0.5 * discount, 1.0])


def test_the_integer_program_finds_the_best_of_all_assignments(monkeypatch):
    monkeypatch.setattr(case, "FLEET", (case.GpuModel(1, 4, 80.0, 2.0), case.GpuModel(1, 2, 40.0, 1.0)))
    monkeypatch.setattr(case, "SOLVER_GAP", 0.0)
    for memory in itertools.product((10.0, 60.0), repeat=3):
        jobs = [
            case.MovingJob(case.Job(0.0, options, options[0]))
            for options in (case.options_of(gib, 900.0 + gib) for gib in memory)
        ]

        def value(chosen, jobs=jobs):
            used = [0, 0]
            total = 0.0
            for job, option in zip(jobs, chosen, strict=True):
                if option >= 0:
                    used[job.job.options[option].model] += job.job.options[option].gpus
                    total += job.values(0.0)[option]
            fits = used[0] <= 4 and used[1] <= 2
            return total if fits else -1.0

        best = max(value(chosen) for chosen in itertools.product(*(range(-1, len(job.job.options)) for job in jobs)))
        assert value(case.assigned_options(jobs, 0.0)) == pytest.approx(best)


@pytest.mark.data
def test_each_source_is_predicted_without_its_own_runs(public_data, tmp_path):
    measured = pl.read_csv(public_data / case.MEASUREMENTS, infer_schema=False)
    path = tmp_path / "runs.csv"
    source = measured["source"].to_list()[0]
    doubled = measured.with_columns(
        measured_peak_gib=pl.when(pl.col("source") == source)
        .then((2 * pl.col("measured_peak_gib").cast(pl.Float64, strict=False)).cast(pl.String))
        .otherwise("measured_peak_gib")
    )
    doubled.write_csv(path)
    plain = case.memory_accuracy(public_data / case.MEASUREMENTS)
    shifted = case.memory_accuracy(path)
    assert plain["accuracy"].mean() == pytest.approx(94.2, abs=0.5)
    (label,) = (plain.with_columns(source_named=measured_rows(measured)).filter(source_named=source))["source"].unique()
    mine, again = (table.filter(source=label)["accuracy"].to_numpy() for table in (plain, shifted))
    # Its predictions are as before, and twice the measured peak halves them: 100 p / 2 m.
    below = mine[again > 0]
    assert len(below) == len(mine)
    assert np.all(np.minimum(abs(again - mine / 2), abs(again - (200 - mine) / 2)) < 1e-6)


def measured_rows(measured: pl.DataFrame) -> pl.Series:
    peak = pl.col("measured_peak_gib").cast(pl.Float64, strict=False)
    return measured.filter(peak > 0)["source"]
