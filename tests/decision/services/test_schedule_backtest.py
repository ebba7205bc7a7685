"""A schedule is evaluated on a later week than that of its plan: planted growth, and a program that runs every step."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.inference_answers import answer_service
from gpuplanner.decision.inference_services import InferenceService, plan_inference_services, slots_of_hours
from gpuplanner.decision.service_requests import read_request_stream
from gpuplanner.ingest.dataset_import import add_files
from gpuplanner.planner.replica_schedule import (
    LatencyTargets,
    ReplicaSchedule,
    plan_replicas,
    plan_replicas_by_activity,
)
from gpuplanner.sizing.replica_queue import ReplicaStepTimes
from tests.decision.services.event_program import play
from tests.decision.services.request_weeks import MONDAY, request_week

HEAVY = ReplicaStepTimes(0.02 + 0.0003 * np.arange(33), 5e-4, 0.0, 2048)
"""A model whose prompts take half a second each."""
TARGETS = LatencyTargets(8.0, 0.3)


def three_weeks(growth: float) -> pl.DataFrame:
    """Three weeks with the rhythm of days and weekends; the last has `growth` times the requests."""
    return pl.concat([
        request_week(seed, peak_per_s=rate).with_columns(pl.col("time").dt.offset_by(f"{number}w"))
        for number, (seed, rate) in enumerate([(11, 0.3), (12, 0.3), (13, 0.3 * growth)])
    ])  # fmt: skip


def plan(requests: pl.DataFrame) -> ReplicaSchedule:
    stream, begin = read_request_stream(requests)
    slots = slots_of_hours(begin, int(stream.arrival_s[-1] // 3600) + 1, 168, "UTC")
    return plan_replicas(HEAVY, stream, TARGETS, slots, 168, quantile=0.9)


@pytest.fixture(scope="module")
def grown() -> ReplicaSchedule:
    return plan(three_weeks(1.6))


def test_the_last_week_is_served_by_the_replicas_of_the_weeks_before(grown):
    last = MONDAY + timedelta(weeks=2)
    requests = three_weeks(1.6)
    before = plan(requests.filter(pl.col("time") < last))
    assert before.backtest is not None  # two weeks: one to plan, one to test
    week = requests.filter(pl.col("time") >= last)
    stream, begin = read_request_stream(week)
    replicas = before.by_slot[slots_of_hours(begin, 168, 168, "UTC")].tolist()
    ttft, itl = play(
        stream.arrival_s.tolist(), stream.prompt.tolist(), stream.answer.tolist(), replicas, HEAVY.step_s.tolist(),
        HEAVY.prompt_token_s, HEAVY.batched_tokens,
    )  # fmt: skip
    backtest = grown.backtest
    assert backtest is not None
    assert backtest.ttft_p99_s == pytest.approx(np.quantile(ttft, 0.99), rel=0.005)
    assert backtest.itl_p95_s == pytest.approx(np.quantile(itl, 0.95), rel=0.005)
    late = pl.DataFrame({"hour": stream.arrival_s // 3600, "ttft": np.array(ttft) > 8.0, "itl": np.array(itl) > 0.3})
    by_hour = late.group_by("hour").agg(pl.col("ttft", "itl").mean())
    met = by_hour.filter(pl.col("ttft") <= 0.01, pl.col("itl") <= 0.05).height
    assert abs(backtest.hours_met - met) <= 1
    assert backtest.hours == by_hour.height == 168
    rises = np.maximum(np.diff(replicas), 0).sum()
    observed_h = float(grown.hours["observed_h"][-1])
    held_h = sum(replicas) - (1 - observed_h) * replicas[-1] + rises * 300 / 3600
    assert backtest.replica_hours["planned"] == pytest.approx(held_h)
    assert backtest.requests_per_h * (167 + observed_h) == pytest.approx(week.height)
    assert backtest.requests_per_h / backtest.requests_per_h_before == pytest.approx(1.6, rel=0.03)


def test_growth_is_missed_by_the_plan_and_steady_weeks_are_not(grown):
    steady = plan(three_weeks(1.0)).backtest
    assert steady is not None
    assert grown.backtest is not None
    assert steady.hours_met > 0.9 * steady.hours
    assert grown.backtest.hours_met < steady.hours_met
    assert grown.backtest.replica_hours["planned"] < grown.backtest.replica_hours["hindsight"]
    assert steady.replica_hours["planned"] < 0.8 * steady.replica_hours["peak all day"]


def test_activity_is_judged_by_the_hours_with_room():
    hour = np.arange(3 * 168)
    # One GPU is busy, from Monday to Friday two; in the last week one more on Wednesday.
    busy = 1.0 + (hour % 168 < 120) + ((hour >= 336 + 48) & (hour < 336 + 72))
    readings = pl.DataFrame({"hour": hour, "busy": busy, "requests": np.where(hour < 336, 10.0, 12.0)})
    schedule = plan_replicas_by_activity(readings, hour % 168, 168, busy_share=1.0)
    backtest = schedule.backtest
    assert backtest is not None
    assert (backtest.hours, backtest.hours_met) == (168, 144)
    assert (backtest.requests_per_h, backtest.requests_per_h_before) == (12.0, 10.0)
    hours = {"planned": 2 * 120 + 48, "peak all day": 2 * 168, "hindsight": 2 * 120 + 48 + 24}
    assert {name: round(value) for name, value in backtest.replica_hours.items()} == hours
    assert backtest.ttft_p99_s is None


def test_a_short_trace_says_that_it_is_not_tested(tmp_path: Path, public_data: Path):
    folder = public_data / "alibaba_genai_v2026"
    add_files("auto", [folder / "qps.csv.gz", folder / "pod_gpu_duty_cycle_anon.csv.gz"], tmp_path / "data")
    file = tmp_path / "services.yaml"
    file.write_text("services:\n- {name: art, model: sdxl, requests: Generative Requests, gpu_model: A100-80GB}\n")
    planned = plan_inference_services(Scenario(data=str(tmp_path / "data"), services=str(file)))
    assert planned[0].service == InferenceService(
        "art", "sdxl", "art", "Generative Requests", gpu_model="A100-80GB", line=2
    )
    answer = answer_service(planned[0])
    assert answer.backtest is None
    assert "art: not tested on a later week, the trace has 0.1 weeks" in answer.backtest_text
