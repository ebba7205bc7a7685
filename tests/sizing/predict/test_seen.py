"""Peaks of MISO against what really fits, and serving by worked rows."""

import json

import polars as pl
import pytest

from gpuplanner.core.errors import SchemaError
from gpuplanner.sizing.learned_memory import classify_peaks, find_smallest_slices, list_fitting_slices
from gpuplanner.sizing.memory_trend import compare_measured_and_predicted_slices
from gpuplanner.sizing.model_architecture import parse_architecture
from gpuplanner.sizing.serving_speed import EngineLayout, cache_bytes_per_token, make_engine
from gpuplanner.sizing.training_job import TrainingJob
from gpuplanner.sizing.training_throughput import estimate_tokens_per_s, find_gpu_spec

BOARD = "A100-40GB"
PROFILES = ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")


@pytest.fixture(scope="module")
def miso(public_data):
    """Peaks on the whole GPU, and which batch sizes fit which slice."""
    root = public_data / "miso_mig"
    rows = [
        (path.stem.removeprefix("memory_"), int(batch), mib / 1024)
        for path in sorted((root / "util_collection").glob("memory_*.json"))
        for batch, mib in json.loads(path.read_text()).items()
    ]
    seen = pl.DataFrame(
        [(m, f"{m}-{b}", gib) for m, b, gib in rows], schema=["program", "job", "peak_gib"], orient="row"
    )
    feasible = {
        name: json.loads((root / "feasible" / f"{name.replace('.', '_')}.json").read_text()) for name in PROFILES
    }
    truth = {(f"{m}-{b}", name): b in feasible[name][m] for m, b, _ in rows for name in PROFILES}
    return seen, truth


def agreement(table, truth):
    rows = table.filter(pl.col("profile").is_in(PROFILES)).select("job", "profile", "fits").rows()
    wrong = [(said, truth[job, profile]) for job, profile, said in rows if said != truth[job, profile]]
    return len(rows), 1 - len(wrong) / len(rows), sum(said for said, _ in wrong)


@pytest.mark.data
def test_peaks_of_a_framework_that_takes_memory_in_steps_never_say_that_what_does_not_fit_does(miso):
    seen, truth = miso
    assert classify_peaks(seen)["peak_is"].unique().to_list() == ["upper bound"]
    settings, share, false_fits = agreement(list_fitting_slices(seen, BOARD), truth)
    assert settings == 80
    assert false_fits == 0
    assert share >= 0.82


@pytest.mark.data
def test_a_run_on_one_smaller_slice_overrules_the_bound(miso):
    seen, truth = miso
    tried = find_smallest_slices(seen, BOARD).select("program", "job", "peak_gib", ran_profile="try_next")
    ran = [None if name is None else truth[job, name] for job, name in tried.select("job", "ran_profile").rows()]
    settings, share, false_fits = agreement(list_fitting_slices(tried.with_columns(ran=pl.Series(ran)), BOARD), truth)
    assert (settings, false_fits) == (80, 0)
    assert share >= 0.95


def test_a_plain_peak_gets_headroom_and_a_missing_column_is_named():
    seen = pl.DataFrame({"program": ["a", "a"], "job": ["1", "2"], "peak_gib": [9.4, 4.0]})
    assert find_smallest_slices(seen, "A100-80GB")["profile"].to_list() == ["1g.20gb", "1g.10gb"]
    with pytest.raises(SchemaError, match="peak_gib"):
        list_fitting_slices(seen.drop("peak_gib"), "A100-80GB")


def test_what_was_seen_stands_beside_what_is_predicted():
    row = {"job": "1", "program": "tf", "model": "gpt2", "seq_len": "1024", "framework": "nanogpt"}
    both = compare_measured_and_predicted_slices(
        pl.DataFrame([row | {"peak_gib": "30"}, row | {"job": "2", "peak_gib": "30"}]), "A100-80GB"
    )
    assert both["right"].to_list() == ["prediction"] * 2
    alone = compare_measured_and_predicted_slices(pl.DataFrame([row | {"peak_gib": "30"}]), "A100-80GB")
    assert alone["right"].to_list() == ["seen"]


@pytest.mark.parametrize(("name", "kib"), [("llama-3.1-8b", 128), ("llama-3.1-70b", 320)])
def test_cache_per_token(name, kib):
    assert cache_bytes_per_token(parse_architecture(name)[0]) == kib * 1024


def test_cache_of_70b_at_32k_tokens_and_of_its_heads_without_groups():
    model = parse_architecture("llama-2-70b")[0]
    assert cache_bytes_per_token(model) * 32768 / 2**30 == pytest.approx(10)
    assert cache_bytes_per_token(model) * 8 * 32768 / 2**30 == pytest.approx(80)
    assert cache_bytes_per_token(model, 16) == cache_bytes_per_token(model, 8)  # no more ranks than heads share it


def test_latent_attention_keeps_its_latent_and_the_rotary_part():
    assert cache_bytes_per_token(parse_architecture("deepseek-v3")[0]) == 61 * (512 + 64) * 2


def test_concurrency_is_what_the_cache_has_room_for():
    model, gpu_model = parse_architecture("llama-3.1-8b")[0], find_gpu_spec("H100-80GB-SXM5")
    engine = make_engine(model, gpu_model, EngineLayout(), 8192)
    room = 0.9 * gpu_model.memory_gib - engine.weights_gib - engine.workspace_gib
    assert engine.concurrency == int(room // 1)  # 8192 tokens of 128 KiB are 1 GiB
    assert make_engine(model, gpu_model, EngineLayout(), 8192, itl_s=0.008).concurrency < engine.concurrency
    assert make_engine(model, gpu_model, EngineLayout(cache_bytes=1.0), 8192).concurrency == pytest.approx(
        2 * engine.concurrency, abs=1
    )
    assert make_engine(parse_architecture("llama-3.1-405b")[0], gpu_model, EngineLayout(), 8192) is None


@pytest.mark.parametrize(
    ("model", "gpus", "published"), [("llama-2-7b", 8, 10643), ("llama-2-13b", 128, 5080), ("llama-2-70b", 128, 1058)]
)
def test_speed_of_published_runs_lies_in_the_interval(model, gpus, published):
    job = TrainingJob(parse_architecture(model)[0], 2048, 8, 4, dp=gpus, sharding="fsdp")  # micro-batch not published
    low, _, high = estimate_tokens_per_s(job, find_gpu_spec("H100-80GB-SXM5"))
    assert low / gpus <= published <= 1.05 * high / gpus
