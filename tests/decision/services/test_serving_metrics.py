"""Metrics of vLLM and SGLang: counters, resets, histograms; requests drawn of them; and the calibration of speed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from gpuplanner.core.errors import ScenarioError
from gpuplanner.decision.service_requests import draw_requests
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.source_registry import detect_source
from gpuplanner.ingest.telemetry.serving_metrics import read_serving
from gpuplanner.sizing.llm_service_plans import read_serving_setting
from gpuplanner.sizing.model_architecture import load_preset
from gpuplanner.sizing.serving_calibration import SpeedCalibration, calibrate_serving_speed
from gpuplanner.sizing.serving_speed import (
    EngineLayout,
    EngineLoad,
    compute_serving_work,
    serving_seconds,
    shipped_serving_speed,
)
from gpuplanner.sizing.training_throughput import find_gpu_spec

NOON = 1_772_452_800  # 2026-03-02 12:00 UTC
Labels = dict[str, str]


def series(name: str, values: list[float], every: int = 15, **labels: str) -> dict[str, Any]:
    points = [[NOON + every * number, str(value)] for number, value in enumerate(values)]
    return {"metric": {"__name__": name, "model_name": "m", "namespace": "nlp", "pod": "a"} | labels, "values": points}


def read(folder: Path, *rows: dict[str, Any]) -> Dataset:
    path = folder / "answer.json"
    path.write_text(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": list(rows)}}))
    assert detect_source(path) == "serving"
    return read_serving([path])


@pytest.mark.parametrize("server", ["vllm", "sglang"])
def test_a_minute_counted_by_hand(tmp_path, server):
    requests, running = {"vllm": ("request_success_total", "num_requests_running"),
                         "sglang": ("num_requests_total", "num_running_reqs")}[server]  # fmt: skip
    dataset = read(
        tmp_path,
        series(f"{server}:{requests}", [10, 11, 14, 14, 20], finished_reason="stop"),
        series(f"{server}:{requests}", [0, 0, 1, 1, 1], finished_reason="length"),
        series(f"{server}:prompt_tokens_total", [0, 100, 400, 400, 1000]),
        series(f"{server}:generation_tokens_total", [5, 25, 65, 65, 105]),
        series(f"{server}:{running}", [2, 4, 6, 8]),
        series(f"{server}:time_to_first_token_seconds_sum", [0, 1, 2, 2, 6]),
        series(f"{server}:time_to_first_token_seconds_count", [0, 2, 4, 4, 8]),
        series(f"{server}:time_per_output_token_seconds_sum", [0, 1, 1, 1, 2]),
        series(f"{server}:time_per_output_token_seconds_count", [0, 50, 50, 50, 100]),
    )
    row = dataset.table.row(0, named=True)
    assert (row["service"], row["team"], row["replica"]) == ("m", "nlp", "a")
    assert row["requests"] == 11
    assert row["prompt_tokens"] == 1000
    assert row["generated_tokens"] == 100
    assert row["running"] == 5
    assert row["ttft_s"] == 0.75
    assert row["token_s"] == 0.02


def test_a_counter_that_is_reset_counts_from_zero(tmp_path):
    dataset = read(tmp_path, series("vllm:prompt_tokens_total", [1000, 1300, 50, 80]))
    assert dataset.table["prompt_tokens"].sum() == 300 + 50 + 30
    assert dataset.quality.filter(check="counters that were reset")["rows"].to_list() == [1]


def test_other_buckets_and_other_metrics_are_named(tmp_path):
    bucket = "vllm:time_to_first_token_seconds_bucket"
    dataset = read(
        tmp_path,
        series("vllm:prompt_tokens_total", [0, 10]),
        series(bucket, [0, 3], le="0.1"),
        series(bucket, [0, 3], le="0.5", pod="b"),
        series("vllm:cache_config_info", [1, 1]),
    )
    checks = dict(dataset.quality.select("check", "severity").iter_rows())
    assert checks["histograms differ"] == "warning"
    assert checks["metrics that are not used"] == "info"


def test_bad_points_are_rejected_with_a_reason(tmp_path):
    good, nameless = series("vllm:prompt_tokens_total", [0, 10]), series("vllm:prompt_tokens_total", [1])
    del nameless["metric"]["model_name"]
    good["values"] += [[NOON + 60, "NaN"], [NOON + 75, "-3"], ["later", "9"]]
    dataset = read(tmp_path, good, nameless)
    assert dataset.rejects.height == 4
    assert any("model_name" in reason for reason in dataset.rejects["reason"])
    assert dataset.table["prompt_tokens"].sum() == 10


def test_requests_are_drawn_with_the_counted_tokens(tmp_path):
    dataset = read(
        tmp_path,
        series("vllm:request_success_total", [0, 30, 30, 90], every=60),
        series("vllm:prompt_tokens_total", [0, 30_000, 30_000, 90_000], every=60),
        series("vllm:generation_tokens_total", [0, 3000, 3000, 9000], every=60),
    )
    drawn = draw_requests(dataset.table, seed=1)
    assert drawn.height == 90
    assert drawn["prompt_tokens"].sum() == 90_000
    assert drawn["generated_tokens"].sum() == 9_000
    assert drawn["time"].is_sorted()
    assert drawn.filter(pl.col("time").dt.minute() == 1).is_empty()
    assert drawn.equals(draw_requests(dataset.table, seed=1))


def test_lengths_scatter_as_their_histogram_does(tmp_path):
    bucket = "vllm:request_prompt_tokens_bucket"
    dataset = read(
        tmp_path,
        series("vllm:request_success_total", [0, 1000], every=60),
        series("vllm:prompt_tokens_total", [0, 600_000], every=60),
        series("vllm:generation_tokens_total", [0, 50_000], every=60),
        series(bucket, [0, 0], every=60, le="100.0"),
        series(bucket, [0, 900], every=60, le="200.0"),
        series(bucket, [0, 900], every=60, le="4000.0"),
        series(bucket, [0, 1000], every=60, le="5000.0"),
        series(bucket, [0, 1000], every=60, le="+Inf"),
    )
    assert dataset.table["prompt_buckets"][0] == "+Inf:1000 100.0:0 200.0:900 4000.0:900 5000.0:1000"
    drawn = draw_requests(dataset.table, seed=1)
    assert drawn["prompt_tokens"].sum() == pytest.approx(600_000, rel=0.001)
    assert drawn["generated_tokens"].unique().to_list() == [50]
    long = drawn.filter(pl.col("prompt_tokens") > 1000)
    assert 0.08 < long.height / drawn.height < 0.12
    # Nine in ten are between 100 and 200 tokens, the others between 4,000 and 5,000: 585 on average.
    assert long["prompt_tokens"].mean() == pytest.approx(4500, rel=0.1)
    assert drawn.equals(draw_requests(dataset.table, seed=1))


def test_requests_without_tokens_are_refused(tmp_path):
    dataset = read(tmp_path, series("vllm:request_success_total", [0, 30]))
    with pytest.raises(ScenarioError, match="got no 'prompt_tokens'"):
        draw_requests(dataset.table, seed=1)


def test_calibration_finds_two_parameters_under_noise():
    model, gpu = load_preset("llama-3.1-8b"), find_gpu_spec("H100-80GB-SXM5")
    assert gpu is not None

    def work(running: np.ndarray) -> Any:
        return compute_serving_work(model, gpu, EngineLayout(), EngineLoad(800, 200, running))

    rng = np.random.default_rng(2)
    running = rng.uniform(1, 60, 600)
    truth = replace(shipped_serving_speed(), bandwidth_share=0.55, step_s=0.006)
    token_s = serving_seconds(work(running), truth)[0] * rng.lognormal(0, 0.1, 600)
    result = calibrate_serving_speed(work, running, token_s)
    assert isinstance(result, SpeedCalibration)
    assert result.speed.bandwidth_share == pytest.approx(0.55, rel=0.1)
    assert result.speed.step_s == pytest.approx(0.006, rel=0.15)
    assert result.error_after < 0.08 < result.error_before
    assert calibrate_serving_speed(work, running[:5], token_s[:5]) == (
        "5 measurements of time per token with running requests: at least 10"
    )
    narrow = calibrate_serving_speed(work, np.full(30, 8.0), token_s[:30])
    assert isinstance(narrow, SpeedCalibration)
    assert narrow.fitted == ("bandwidth_share",)


def test_calibration_on_one_half_of_measured_settings_helps_on_the_other(public_data):
    """Published measurements: for each model, GPU and engine, every other concurrency predicts the rest."""
    table = pl.read_csv(public_data / "serving" / "serving_measurements.csv.gz")
    table = table.filter(
        pl.col("pp_size") == 1, pl.col("attention_dp_size").cast(pl.Float64, strict=False).fill_null(1) == 1
    ).with_columns(running=pl.col("batch_size").cast(pl.Float64), token_s=pl.col("silicon_tpot_ms") / 1e3)
    keys = ["model_path", "system", "backend", "precision", "tp_size", "isl", "osl"]
    before, after = [], []
    for key, group in table.drop_nulls(["running", "token_s"]).group_by(keys, maintain_order=True):
        if group["batch_size"].n_unique() < 4:
            continue
        name, system, _, precision, tp, isl, osl = key
        row = {"model": name, "gpu_model": system, "gpus": tp, "precision": precision, "prompt_tokens": isl}
        model, gpu, layout, load = read_serving_setting(row | {"answer_tokens": osl, "concurrency": 1})
        ranked = group.sort("running")
        running, token_s = ranked["running"].to_numpy(), ranked["token_s"].to_numpy()

        def work(many: np.ndarray, model=model, gpu=gpu, layout=layout, load=load) -> Any:
            return compute_serving_work(model, gpu, layout, EngineLoad(load.prompt, load.answer, many))

        half = np.arange(len(running)) % 2 == 0
        fitted = calibrate_serving_speed(work, np.repeat(running[half], 8), np.repeat(token_s[half], 8))
        assert isinstance(fitted, SpeedCalibration)
        for speed, errors in ((shipped_serving_speed(), before), (fitted.speed, after)):
            errors += np.abs(serving_seconds(work(running[~half]), speed)[0] / token_s[~half] - 1).tolist()
    assert len(before) >= 40
    assert np.median(after) < np.median(before)
