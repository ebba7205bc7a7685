"""Demand by class and phase, the slice for each phase, and the command that shows them."""

from __future__ import annotations

import json
import sys

import polars as pl
import pytest

from gpuplanner.cli.application import main
from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.usage.demand_by_phase_and_late_demand_test import demand_by_class, fit_phases, phases_of_jobs

BOARD = "H100-80GB-SXM5"


@pytest.fixture(scope="module")
def measured(training):
    """Phases of four seeded training jobs."""
    samples = pl.concat(
        training(seed).with_columns(job_id=pl.lit(str(seed)), node=pl.lit(f"n{seed}")) for seed in (0, 5, 10, 15)
    )
    jobs = pl.DataFrame({"job_id": ["0", "5", "10", "15"], "job_class": "pretraining", "gpus": [1.0, 1.0, 8.0, 8.0]})
    return phases_of_jobs(samples, jobs)


def test_demand_by_class_has_medians_quartiles_and_counts(measured):
    phases = measured
    table = demand_by_class(phases)
    assert table["label"].to_list() == ["setup", "ramp", "steady", "decay"]
    assert table["jobs"].to_list() == [4] * 4
    for name in ("share", "sm_activity", "memory_peak_gib", "power_w", "gpus"):
        assert (table[f"{name}_q25"] <= table[name]).all()
        assert (table[name] <= table[f"{name}_q75"]).all()
    assert table.filter(label="steady")["gpus"][0] == 4.5
    assert phases.group_by("job_id").agg(pl.col("share").sum())["share"].to_list() == pytest.approx([1.0] * 4)


def test_fit_by_phase_never_needs_more_than_fit_by_job(measured):
    gpu_model = load_gpu_model(BOARD)
    fitted = fit_phases(measured, gpu_model)
    assert (fitted["saved_gpu_hours"] >= 0).all()
    assert fitted.filter(pl.col("gpus") > 1)["profile_phase"].unique().to_list() == ["gpu"]
    by_hand = sum(
        (gpu_model.gpu_fraction(row["profile_job"]) - gpu_model.gpu_fraction(row["profile_phase"]))
        * row["run_s"]
        / 3600
        for row in fitted.iter_rows(named=True)
    )
    assert fitted["saved_gpu_hours"].sum() == pytest.approx(by_hand)


@pytest.fixture
def run(capsys, monkeypatch):
    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["gpuplanner", "phases", "sample", *arguments])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return command


def test_the_command_prints_tables_and_a_job(run):
    code, out, _ = run("--json")
    tables = json.loads(out)
    assert code == 0
    assert {row["job_class"] for row in tables["demand by class and phase"]} >= {"pretraining", "inference"}
    assert len(tables["demand, final against early"]) % 6 == 0
    code, out, _ = run("--job", "job-002875")
    assert code == 0
    assert "evaluation" in out
    assert "period [s]  4440" in out
    assert run("--job", "job-000000-absent")[0] == 3
