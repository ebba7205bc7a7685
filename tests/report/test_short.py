"""A few days of data: no forecast and no plan, and still a ledger, the quality and a page of what happened."""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.study import open_study
from gpuplanner.decision.study_pipeline import evaluate
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.ingest.source_registry import read
from gpuplanner.report import monthly_sections as appendix
from gpuplanner.report import monthly_sections as tearsheet
from gpuplanner.report.focus_files_and_workbooks import write_study_workbook
from gpuplanner.simulator.replications import explain_short_history

HEADER = "JobID|User|Account|State|Submit|Start|End|ElapsedRaw|Timelimit|NodeList|ReqTRES|AllocTRES|JobName"
JOBS = 29


@pytest.fixture(scope="module")
def three_days(tmp_path_factory):
    """Folder of 29 jobs submitted within three days, and the GPU-hours that they held."""
    folder, rng = tmp_path_factory.mktemp("short"), np.random.default_rng(4)
    lines, held = [HEADER], 0.0
    for number in range(JOBS):
        submit = datetime(2025, 9, 1, 7) + timedelta(hours=2.3 * number)
        start = submit + timedelta(minutes=int(rng.choice([0, 0, 12])))
        seconds, gpus = int(rng.integers(600, 20_000)), int(rng.choice([1, 2, 4]))
        end = start + timedelta(seconds=seconds)
        times = "|".join(time.strftime("%Y-%m-%dT%H:%M:%S") for time in (submit, start, end))
        lines.append(f"{number}|u|acc{number % 3}|COMPLETED|{times}|{seconds}|1-00:00:00|n1||gres/gpu={gpus}|train")
        held += gpus * seconds / 3600
    (folder / "sacct.txt").write_text("\n".join(lines) + "\n")
    write_dataset(read("slurm", folder / "sacct.txt", tz="UTC"), folder / "trace")
    return str(folder / "trace"), held


def test_what_happened_is_told_and_nothing_is_planned(three_days, tmp_path):
    folder, held = three_days
    study = evaluate(Scenario(data=folder, price_per_gpu_hour=2.0), cache=False)
    assert study.plan is None
    assert study.headline.allocated_gpu_hours == pytest.approx(held, rel=1e-6)
    ledger = study.tables["ledger"]["gpu_hours"].sum()
    assert study.headline.installed_gpu_hours == pytest.approx(ledger, rel=1e-6)
    assert float(study.headline.cost) == pytest.approx(2.0 * ledger, abs=0.01)
    assert study.decision.action == "none"
    assert study.findings[2] == study.decision.sentence
    assert any("needs at least 170" in text for text in study.provenance.cautions)
    sections = {
        name: getattr(tearsheet, name)(study)
        for name in ("summary", "ledger", "rightsizing", "costs", "quality", "method")
    }
    assert "Utilization" in sections["ledger"]
    assert "29 rows read" in sections["quality"]
    for name in ("demand", "layouts"):
        assert getattr(appendix, name)(study) == ""
    book = write_study_workbook(tmp_path / "book.xlsx", study)
    assert "Installed GPU-hours by bucket" in pl.read_excel(book, sheet_id=0)
    study.save(tmp_path / "study")
    assert open_study(tmp_path / "study").to_json() == study.to_json()


def test_a_day_of_a_weekend_cannot_be_drawn_from_a_week_without_one(three_days):
    folder, _ = three_days  # Monday to Thursday; two days ahead begin on a Thursday
    assert explain_short_history(Scenario(data=folder, horizon_intervals=24)) is None
    assert "no day of a weekend" in str(explain_short_history(Scenario(data=folder, horizon_intervals=60)))
