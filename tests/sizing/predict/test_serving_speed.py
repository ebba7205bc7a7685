"""Speed of serving: physics, the shipped parameters against measured rows, and tables of settings."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from gpuplanner.cli.application import app, register_commands
from gpuplanner.core.errors import SchemaError
from gpuplanner.sizing.llm_service_plans import PREDICTED_COLUMNS, predict_serving_table
from gpuplanner.sizing.model_architecture import load_preset
from gpuplanner.sizing.serving_speed import (
    EngineLayout,
    EngineLoad,
    compute_serving_work,
    count_attended_tokens,
    count_sequences_in_memory,
    make_engine,
    predict_serving,
    shipped_serving_speed,
)
from gpuplanner.sizing.training_throughput import find_gpu_spec, make_slice_spec

H100 = find_gpu_spec("H100-80GB-SXM5")
ONE_GPU, LOAD = EngineLayout(), EngineLoad(1024, 512, 64)
ROW = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "gpu_model": "h100_sxm",
    "gpus": "1",
    "precision": "bf16",
    "backend": "vllm",
    "prompt_tokens": "1024",
    "answer_tokens": "512",
    "concurrency": "64",
}


def speed(model, gpu_model=H100, layout=ONE_GPU, load=LOAD):
    return predict_serving(compute_serving_work(load_preset(model), gpu_model, layout, load))


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt-oss-120b", "deepseek-v3"])
def test_more_concurrency_never_makes_a_token_faster(model):
    times = [
        speed(model, layout=EngineLayout(8), load=EngineLoad(1024, 512, count)).itl_ms for count in range(1, 600, 7)
    ]
    assert times == sorted(times)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt-oss-120b"])
@pytest.mark.parametrize("field", ["memory_bandwidth", "flops", "fabric"])
def test_a_faster_gpu_is_never_slower(model, field):
    faster = replace(H100, **{field: 2 * getattr(H100, field)})
    for count in (1, 16, 256):
        load = EngineLoad(4096, 256, count)
        assert speed(model, faster, EngineLayout(2), load).itl_ms <= speed(model, H100, EngineLayout(2), load).itl_ms


def test_longer_prompts_and_shorter_answers_cost_time_per_token():
    base = speed("qwen3-32b", layout=EngineLayout(2)).itl_ms
    assert speed("qwen3-32b", layout=EngineLayout(2), load=EngineLoad(4096, 512, 64)).itl_ms > base
    assert speed("qwen3-32b", layout=EngineLayout(2), load=EngineLoad(1024, 128, 64)).itl_ms > base


def test_tensor_parallelism_does_not_scale_linearly():
    one, eight = (speed("llama-3.1-8b", layout=EngineLayout(tp)).tokens_per_s for tp in (1, 8))
    assert 1.5 < eight / one < 6


def test_a_mig_slice_is_slower_than_the_gpu_and_launches_as_fast():
    part = make_slice_spec(H100, "3g.40gb")
    assert speed("llama-3.1-8b", part).itl_ms > speed("llama-3.1-8b").itl_ms
    tiny = [speed("qwen3-0.6b", gpu_model, load=EngineLoad(16, 16, 1)).itl_ms for gpu_model in (part, H100)]
    assert tiny[0] / tiny[1] < 1.5  # half the bandwidth, the same launches


def test_blackwell_multiplies_four_bits_and_hopper_unpacks_them():
    four, sixteen = EngineLayout(8, weight_bytes=0.53, weights="nvfp4"), EngineLayout(8, weight_bytes=0.53)
    long = EngineLoad(16384, 64, 64)  # prefill is what peaks decide
    b200 = find_gpu_spec("B200-180GB")
    assert speed("llama-3.1-70b", b200, four, long).itl_ms < speed("llama-3.1-70b", b200, sixteen, long).itl_ms
    assert speed("llama-3.1-70b", H100, four, long) == speed("llama-3.1-70b", H100, sixteen, long)


def test_sliding_windows_read_less_of_a_long_context():
    assert count_attended_tokens(load_preset("llama-3.1-8b"), 8192) == 8192
    assert count_attended_tokens(load_preset("gpt-oss-120b"), 8192) == (8192 + 128) / 2
    assert count_attended_tokens(load_preset("gemma-3-27b"), 6144) == pytest.approx(6144 / 6 + 1024 * 5 / 6)


def test_requests_beyond_memory_wait():
    model, layout, load = load_preset("qwen3-32b"), EngineLayout(), EngineLoad(2048, 512, 64)
    capacity = count_sequences_in_memory(model, H100, layout, load)
    assert 0 < capacity < 64
    waiting = predict_serving(compute_serving_work(model, H100, layout, load, capacity))
    full = predict_serving(compute_serving_work(model, H100, layout, EngineLoad(2048, 512, capacity)))
    assert waiting.itl_ms == full.itl_ms
    assert waiting.tokens_per_s == pytest.approx(full.tokens_per_s)
    assert waiting.ttft_high_ms > 10 * full.ttft_high_ms


def test_plans_for_serving_take_this_speed():
    engine = make_engine(load_preset("llama-3.1-8b"), H100, EngineLayout(), 1536, prompt=1024, itl_s=0.03)
    assert engine.step_s <= 0.03
    assert 5_000 < engine.tokens_per_s < 9_000  # two calibrated tools: 7,600 to 7,700
    low, high = engine.tokens_per_s_interval
    assert low < engine.tokens_per_s < high


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "google/gemma-3-28b-it"}, "Did you mean 'gemma-3-27b'"),
        ({"model": None}, "row, model"),
        ({"model": "bert-large"}, "a decoder"),
        ({"gpu_model": "H900"}, "H900"),
        ({"gpu_model": "RTX-PRO-6000-Blackwell-96GB"}, "data sheet"),
        ({"profile": "9g.1gb"}, "9g.1gb"),
        ({"gpus": "0"}, "row, gpus"),
        ({"concurrency": "-3"}, "row, concurrency"),
        ({"answer_tokens": ""}, "row, answer_tokens"),
        ({"prompt_tokens": "many"}, "row, prompt_tokens"),
        ({"concurrency": "nan"}, "row, concurrency"),
        ({"precision": "fp7"}, "row, precision"),
        ({"gpus": "3"}, "divisor of 32 heads"),
        ({"gpus": "2", "profile": "3g.40gb"}, "MIG slice"),
        ({"prompt_tokens": "2000000"}, "a request of 2,000,512 tokens"),
        ({"tp": "4"}, "1 GPUs"),
        ({"model": "meta-llama/Llama-3.1-405B-Instruct"}, "memory for llama-3.1-405b"),
    ],
)
def test_a_row_that_cannot_be_predicted_says_why(change, words):
    row = predict_serving_table(pl.DataFrame([ROW | change])).row(0, named=True)
    assert words in row["reason"]
    assert [row[name] for name in PREDICTED_COLUMNS] == [None] * len(PREDICTED_COLUMNS)


def test_a_table_without_a_needed_column_is_rejected():
    table = pl.DataFrame([ROW])
    for name in ("model", "gpu_model", "gpus", "prompt_tokens", "answer_tokens", "concurrency"):
        with pytest.raises(SchemaError, match=f"got no '{name}'"):
            predict_serving_table(table.drop(name))
    tp = predict_serving_table(table.rename({"gpus": "tp"}).drop("precision", "backend"))
    assert tp["reason"].item() is None


@pytest.mark.parametrize(
    "model",
    [
        "Qwen/Qwen3-32B-FP8", "openai/gpt-oss-120b", "deepseek-ai/DeepSeek-R1-0528", "nvidia/DeepSeek-R1-0528-FP4-v2",
        "nvidia/Llama-3.3-70B-Instruct-FP4", "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
        "RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w8a8", "mistralai/Mistral-Small-3.2-24B-Instruct-2506",
    ],
)  # fmt: skip
@pytest.mark.parametrize("gpu_model", ["H200", "H200-SXM-141GB", "b200_sxm", "NVIDIA-H200"])
def test_names_of_hubs_and_of_gpu_models_are_read(model, gpu_model):
    row = ROW | {"model": model, "gpu_model": gpu_model, "gpus": "8", "precision": None}
    found = predict_serving_table(pl.DataFrame([row])).row(0, named=True)
    assert found["reason"] is None
    assert 0 < found["itl_low_ms"] < found["itl_ms"] < found["itl_high_ms"] < 100


def test_precisions_order_the_times_by_their_bytes():
    words = ["bf16", "int8_wo", "fp8_block", "int4_wo"]
    times = predict_serving_table(pl.DataFrame([ROW | {"precision": word} for word in words]))["itl_ms"]
    assert times.to_list() == sorted(times, reverse=True)
    assert times.n_unique() == len(words)


def test_formats_come_from_the_column_then_the_name_then_the_release():
    rows = [
        {"model": "Qwen/Qwen3-32B", "precision": "fp8"},
        {"model": "Qwen/Qwen3-32B-FP8", "precision": None},
        {"model": "Qwen/Qwen3-32B", "precision": None},
        {"model": "Qwen/Qwen3-32B", "precision": "bfloat16"},
        {"model": "deepseek-ai/DeepSeek-R1", "precision": None, "gpus": "8", "gpu_model": "h200_sxm"},
        {"model": "deepseek-ai/DeepSeek-R1", "precision": "fp8_block", "gpus": "8", "gpu_model": "h200_sxm"},
    ]
    times = predict_serving_table(pl.DataFrame([ROW | row for row in rows]))["itl_ms"].to_list()
    assert times[0] == times[1] < times[2] == times[3]
    assert times[4] == times[5]


def test_the_command_keeps_rows_columns_and_order(tmp_path):
    register_commands()
    source, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    rows = [ROW | {"note": "a"}, ROW | {"model": "none", "note": "b"}, ROW | {"gpus": "8", "tp": "8", "note": "c"}]
    pl.DataFrame(rows, schema=[*ROW, "note", "tp"]).write_csv(source)
    run = CliRunner().invoke
    told = run(app, ["size", "--task", "serve", "--table", str(source), "-o", str(out)])
    assert told.exit_code == 0
    assert "3 rows, 1 of them not predicted" in told.stderr
    found = pl.read_csv(out)
    assert found.columns == [*ROW, "note", "tp", *PREDICTED_COLUMNS, "reason"]
    assert found["note"].to_list() == ["a", "b", "c"]
    assert found["itl_ms"].is_null().to_list() == [False, True, False]
    asked = run(app, ["size", "--task", "serve", "--table", str(source), "--json"])
    assert [row["note"] for row in json.loads(asked.stdout)["rows"]] == ["a", "b", "c"]
    assert "ITL [ms]" in run(app, ["size", "--task", "serve", "--table", str(source)]).stdout


def test_shipped_parameters_are_shares_and_say_how_well_they_do_on_left_out_groups():
    shipped = shipped_serving_speed()
    assert all(0 < getattr(shipped, name) < 1 for name in ("bandwidth_share", "compute_share", "wait_share"))
    for figures in shipped.provenance["left_out"]:
        assert figures["itl_median"] <= (0.15 if figures["kind"] == "dense" else 0.25)
        assert figures["rate_median"] <= 0.20
        assert 0.85 <= figures["itl_covered"] <= 0.95


@pytest.mark.data
def test_left_out_figures_are_those_of_the_shipped_file(public_data, monkeypatch):
    pytest.importorskip("scipy", reason="the fit needs scipy")
    if not (public_data / "serving").is_dir():
        pytest.skip("the public data has no measured speed of serving")
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[3] / "benchmarks"), *sys.path])
    import serving_speed as benchmark

    rows, work, _ = benchmark.measured(public_data)
    scored = benchmark.left_out(rows, work, "system", benchmark.RIDGE)
    recorded = {
        row["kind"]: row["itl_median"]
        for row in shipped_serving_speed().provenance["left_out"]
        if row["left_out"] == "system"
    }
    for kind, figure in recorded.items():
        errors = scored.filter(kind=kind)["itl_error"].to_numpy()
        assert benchmark.relative(errors) == pytest.approx(figure, abs=0.01)
