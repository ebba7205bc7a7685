"""The study of the sample: figures that reconcile, are reproducible, and agree with short queries of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import polars as pl
import pytest

from gpuplanner.core.errors import OutputError, ScenarioError
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.units_and_number_formats import gpus_text
from gpuplanner.cost.period_costs import money
from gpuplanner.decision.comparison_record import study_comparison
from gpuplanner.decision.layout_planning import plan_study_layouts
from gpuplanner.decision.study import Study, open_study
from gpuplanner.decision.study_pipeline import evaluate
from gpuplanner.forecast.rolling_demand_forecast import OUTLOOK_STAGE_BY_VIEW, at_quantile, pooled_forecast
from gpuplanner.planner.plan_verification import verify
from gpuplanner.report.focus_files_and_workbooks import study_notes
from gpuplanner.usage.planning_history import history, load_dataset

FEBRUARY = datetime(2026, 2, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC)


def test_ledger_sums_to_installed_gpu_time(study: Study):
    assert study.headline.installed_gpu_hours == 64 * 28 * 24
    assert study.tables["ledger"]["gpu_hours"].sum() == pytest.approx(64 * 28 * 24, rel=1e-9)
    assert study.tables["ledger_buckets"]["share"].sum() == pytest.approx(1)


def test_allocated_hours_equal_a_query_of_their_own(study: Study):
    begin, end = FEBRUARY
    held = load_dataset("sample").jobs.filter(pl.col("start_time").is_not_null()).select(
        hours=(
            pl.col("end_time").fill_null(end).clip(begin, end) - pl.col("start_time").clip(begin, end)
        ).dt.total_microseconds() / 3.6e9 * pl.col("gpus")
    )  # fmt: skip
    assert study.headline.allocated_gpu_hours == pytest.approx(held["hours"].sum(), rel=1e-9)


def test_gpus_of_small_jobs_count_only_time_in_the_period(study: Study):
    head, known = study.headline, history(study.scenario)
    begin, end = (datetime.fromisoformat(text) for text in (head.observed_from, head.observed_to))
    hours = 0.0
    for start, stop in known.jobs.filter(pl.col("gpus") <= 1).select("start_time", "end_time").iter_rows():
        if start is not None:
            hours += max((min(stop or end, end) - max(start, begin)).total_seconds(), 0.0) / 3600
    assert head.small_gpus_whole == pytest.approx(hours / ((end - begin).total_seconds() / 3600), abs=1e-4)
    assert f"take {gpus_text(head.small_gpus_whole)} on average" in study.findings[1]


def test_bill_is_the_price_of_every_installed_hour(study: Study):
    cost = study.tables["costs"]["EffectiveCost"].sum()
    assert str(cost) == study.headline.cost
    assert abs(cost - Decimal(64 * 28 * 24) * Decimal(str(study.headline.price_per_gpu_hour))) < Decimal("0.01")


def test_the_next_noon_is_that_of_the_forecast(study: Study):
    figures, gpu_model = study.headline, history(study.scenario).fleet.gpu_model
    at = datetime.fromisoformat(figures.tomorrow_at)
    rows = study.tables["forecast"].filter(pl.col("unique_id").str.starts_with("all/"), ds=at)
    gpus = sum(row["mean"] * gpu_model.gpu_fraction(row["unique_id"][4:]) for row in rows.iter_rows(named=True))
    assert rows.height > 1
    assert figures.tomorrow_gpus == pytest.approx(gpus, abs=1e-5)
    assert (figures.tomorrow_low, figures.tomorrow_high) == (None, None)


def test_plan_is_proven_and_verified(study: Study):
    # Three sets of layouts take turns; the bound is that of plans with any number.
    assert 0 <= study.headline.plan_gap_fraction <= 0.15
    assert verify(study.plan, study.problem, study.tables["layout_plan"]) == []


def test_same_scenario_gives_the_same_bytes(study: Study, quick: Scenario):
    for stage in (
        history,
        pooled_forecast,
        study_comparison,
        money,
        *OUTLOOK_STAGE_BY_VIEW.values(),
        plan_study_layouts,
    ):
        stage.forget()
    again = evaluate(quick, cache=False)
    assert again.to_json() == study.to_json()


EVALUATION = """
import hashlib
from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.study_pipeline import evaluate
study = evaluate(Scenario(month="2026-02", replications=2, policies="fewer_nodes"), cache=False)
print(hashlib.sha256(study.to_json().encode()).hexdigest())
"""


@pytest.mark.long
def test_a_study_has_the_same_bytes_with_any_number_of_threads_and_any_hash_seed(tmp_path):
    digests = set()
    for count in ("1", "2"):
        threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS", "PYTHONHASHSEED"), count)
        environment = os.environ | threads | {"GPUPLANNER_CACHE": str(tmp_path / count)}
        command = [sys.executable, "-c", EVALUATION]
        digests.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(digests) == 1


def test_study_survives_its_folder(study: Study, tmp_path):
    study.save(tmp_path / "study")
    again = open_study(tmp_path / "study")
    assert again.to_json() == study.to_json()
    assert study_notes(again) == study_notes(study)
    assert verify(again.plan, again.problem) == []
    with pytest.raises(ScenarioError, match="folder written by a study"):
        open_study(tmp_path)


@pytest.mark.parametrize(
    ("part", "name", "other"),
    [("headline", "jobs", "many"), ("headline", "gpu_model", 7), ("provenance", "assumptions", "none"),
     ("provenance", "inputs", {"jobs.parquet": None}), ("comparison", "decision", 1), ("plan_choices", 0, True),
     ("scenario", "arrival_scale", 10**400), ("scenario", "seed", "1")],
)  # fmt: skip
def test_a_study_with_values_of_another_kind_is_refused_in_words(study: Study, tmp_path, part, name, other):
    study.save(tmp_path / "study")
    place = tmp_path / "study" / "study.json"
    values = json.loads(place.read_text())
    values[part][name] = other
    place.write_text(json.dumps(values))
    with pytest.raises(ScenarioError):
        open_study(tmp_path / "study")


def test_json_holds_what_the_tables_hold(study: Study):
    values = json.loads(study.to_json())
    assert [Decimal(row["EffectiveCost"]) for row in values["tables"]["costs"]] == (
        study.tables["costs"]["EffectiveCost"].to_list()
    )
    assert values["headline"] == study.headline.to_dict()


def test_a_price_moves_money_and_nothing_else(study: Study, quick: Scenario):
    evaluate(quick, cache=False)
    stages = [history, pooled_forecast, plan_study_layouts]
    computed = [stage.computed for stage in stages]
    dearer = evaluate(replace(quick, price_per_gpu_hour=100.0), cache=False)
    assert [stage.computed for stage in stages] == computed
    assert Decimal(dearer.headline.cost) == Decimal("4300800.00")
    assert dearer.decision.saving == study.decision.saving


def test_the_past_is_seen_as_it_was_known():
    # Planned from mid-month, jobs that ended later must still run, and what happened later must not show.
    march = history(Scenario(month="2026-02"))
    assert march.jobs.filter(pl.col("end_time") > march.end).is_empty()
    assert (march.jobs["submit_time"] < march.end).all()
    known_runs = march.jobs.filter(pl.col("state") == "RUNNING")
    assert known_runs["sm_activity"].is_null().all()
    assert (known_runs["run_s"] > 0).all()


def test_quantiles_between_the_stored_ones_are_interpolated(study: Study):
    forecast = study.tables["forecast"]
    at = {q: at_quantile(forecast, q)["y"] for q in (0.75, 0.8, 0.9)}
    assert (at[0.8] - (at[0.75] + (at[0.9] - at[0.75]) / 3)).abs().max() < 1e-9


def test_month_without_data_is_refused():
    with pytest.raises(ScenarioError, match="a month from 2026-02 to 2026-02"):
        history(Scenario(month="2025-02"))


def test_a_study_that_another_run_is_writing_is_returned_all_the_same(quick: Scenario, monkeypatch, tmp_path):
    monkeypatch.setenv("GPUPLANNER_CACHE", str(tmp_path / "cache"))

    def refuse(self: Study, directory: object) -> None:
        raise OutputError("cannot write: another run at it")

    monkeypatch.setattr(Study, "save", refuse)
    assert evaluate(quick).headline.jobs > 0
