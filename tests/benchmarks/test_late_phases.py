"""Late phases: step times of both forms of log, a planted reduction that is found, and the measured runs."""

from __future__ import annotations

import gzip

import claim_table
import late_phases as case
import polars as pl
import pytest


def megatron_log(step_ms: list[float]) -> str:
    return "".join(
        f" iteration {number:8d}/  100 | elapsed time per iteration (ms): {ms:.1f} | loss\n"
        for number, ms in enumerate(step_ms, start=1)
    )


def test_step_times_of_a_log_of_iterations_leave_out_the_warm_up():
    steps = case.step_times(megatron_log([9000.0] * 10 + [1500.0, 1600.0]))
    assert steps.rows() == [(11, 1.5), (12, 1.6)]


def test_step_times_of_a_log_of_elapsed_time_are_differences():
    text = "".join(f"step:{n}/20 train_loss:3.0 train_time:{1000 + 250 * n}ms step_avg\n" for n in range(9, 15))
    assert case.step_times(text).rows() == [(12, 0.25), (13, 0.25), (14, 0.25)]
    assert case.step_times("nothing of either form").is_empty()


@pytest.mark.parametrize(("late_ms", "verdict"), [(800.0, "holds"), (1000.0, "does not hold")])
def test_a_planted_reduction_is_found_and_none_is_not(tmp_path, late_ms, verdict):
    for number in range(6):
        text = megatron_log([1000.0 + number] * 40 + [late_ms + number] * 20)
        folder = tmp_path / f"source{number % 2}"
        folder.mkdir(exist_ok=True)
        if number % 2:
            (folder / f"run{number}.txt.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (folder / f"run{number}.out").write_text(text)
    logs = case.late_over_early_steps(tmp_path)
    assert logs["log"].to_list() == [f"run{number}" for number in (0, 2, 4, 1, 3, 5)]
    assert logs["ratio"].to_list() == pytest.approx([late_ms / 1000] * 6, abs=0.01)
    steps = case.judge_late_demand(logs["ratio"].to_numpy(), effect=case.REDUCTION)
    row = claim_table.figure_row(
        "steps", "late / early", steps.ratio, claimed=(None, 0.9), interval=(steps.low, steps.high)
    )
    assert row["verdict"] == verdict


@pytest.mark.data
def test_measured_runs_equal_the_stored_table(public_data, tmp_path, capsys):
    case.main(["--data", str(public_data), "--out", str(tmp_path)])
    assert "Verdict: inconclusive" in capsys.readouterr().out
    stored = case.Path(case.__file__).parent / "results"
    for name in ("late_phases", "late_phases_runs", "late_phases_logs", "late_phases_synthetic"):
        assert pl.read_csv(tmp_path / f"{name}.csv").equals(pl.read_csv(stored / f"{name}.csv"))
