"""The quality report as data: which figures a finding moves, and what came in on which day."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime

import polars as pl
import pytest

from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.ingest.quality_report import JOB_LIST_CHECKS
from gpuplanner.ingest.source_registry import read
from gpuplanner.usage.dataset_description_and_data_quality import (
    EFFECT_WORDS_BY_FIGURE,
    data_quality,
    describe,
    figures_affected,
    intake,
)


def no_rejects() -> pl.DataFrame:
    return pl.DataFrame(schema={"reason": pl.String, "raw": pl.String})


@pytest.mark.parametrize("check", JOB_LIST_CHECKS, ids=lambda check: check.check)
def test_effect_of_every_common_check_names_a_figure(check):
    assert set(figures_affected(check.effect)) <= set(EFFECT_WORDS_BY_FIGURE)


def test_jobs_are_counted_on_every_day_between_first_and_last():
    jobs = pl.DataFrame({"submit_time": [datetime(2026, 3, day, 23, 59, tzinfo=UTC) for day in (1, 1, 4)]})
    found = intake(jobs, no_rejects())
    assert found["rows"].to_list() == [2, 0, 0, 1]
    assert found["day"].to_list() == [date(2026, 3, day) for day in (1, 2, 3, 4)]


def test_rejected_rows_are_counted_by_reason_and_the_date_they_state():
    raw = ["7,2026-03-02T10:00:00,2026-03-03", "8,2026-13-45", "9,-", "10,2026-03-02"]
    rejects = pl.DataFrame({"reason": ["early", "early", "no end", "early"], "raw": raw})
    found = intake(pl.DataFrame(schema={"submit_time": pl.Datetime("us", "UTC")}), rejects)
    assert found.rows() == [
        ("rejected: early", date(2026, 3, 2), 2), ("rejected: early", None, 1), ("rejected: no end", None, 1)
    ]  # fmt: skip


def test_intake_counts_every_job_of_the_sample():
    found = data_quality("sample")
    assert found.intake["rows"].sum() == found.read.rows_kept


@pytest.fixture
def telemetry(tmp_path) -> str:
    """Two hours of one GPU with an hour missing, as nvidia-smi logs it."""
    minutes = [*range(0, 30), *range(90, 120)]
    lines = ["timestamp, index, utilization.gpu [%], memory.used [MiB], power.draw [W]"]
    lines += [f"2026/03/01 {8 + m // 60:02d}:{m % 60:02d}:00.000, 0, 50 %, 1000 MiB, 200.0 W" for m in minutes]
    path = tmp_path / "node1.csv"
    path.write_text("\n".join(lines) + "\n")
    write_dataset(read("auto", [path], tz="UTC"), tmp_path / "telemetry")
    return str(tmp_path / "telemetry")


def test_telemetry_has_coverage_and_no_jobs(telemetry):
    found = data_quality(telemetry)
    share = found.coverage["observed_gpu_h"].sum() / found.coverage["expected_gpu_h"].sum()
    assert share == pytest.approx(60 / 120)
    assert found.intake.is_empty()
    told = describe(telemetry)
    assert told.tables["coverage by node"]["covered"].item() == pytest.approx(60 / 120)
    assert any(re.search("gap", check) for check in told.tables["quality"]["check"])
