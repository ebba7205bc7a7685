"""Plans from a model and a deadline: what fits, what it takes, and why."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from gpuplanner.cli.application import app, register_commands
from gpuplanner.core.errors import InfeasiblePlanError, ScenarioError
from gpuplanner.core.scenario import Scenario
from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.sizing.job_plans import SizingRequest, parse_gpu_counts, resolve_gpu_words
from gpuplanner.sizing.job_size import size_job
from gpuplanner.sizing.memory_components import peak_gib
from gpuplanner.sizing.mig_slices import max_slice_fraction
from gpuplanner.sizing.training_throughput import count_flops_per_token
from gpuplanner.usage.planning_history import gpus_by_model


@pytest.fixture(scope="module")
def found():
    return size_job(SizingRequest("llama-3.1-8b", "train", 8192, tokens=2e9, deadline_h=168))


def test_plans_fit_meet_the_deadline_and_take_the_fewest_gpus_first(found):
    plans = found.plans
    assert len(plans) == 8
    assert all(plan.p_oom <= 0.05 and plan.hours <= 168 for plan in plans)
    assert all(plan.upper_gib <= plan.gpu_gib * 1.001 for plan in plans)
    taken = [plan.gpus * plan.share_of_gpu for plan in plans]
    assert taken == sorted(taken)
    assert all(plan.energy_kwh > 0 and plan.level == "tool not measured" for plan in plans)


def test_gpus_tokens_and_hours_hang_together(found):
    for plan in found.plans:
        assert plan.gpus == plan.job.tp * plan.job.pp * plan.job.dp
        assert plan.hours * 3600 * plan.tokens_per_s == pytest.approx(2e9)
        assert plan.hours_low < plan.hours < plan.hours_high


def test_a_tighter_deadline_never_takes_fewer_gpus_and_a_tool_that_was_seen_has_a_tighter_bound():
    boards = {"A100-80GB": 64}
    taken = [
        size_job(SizingRequest("llama-2-7b", "train", 2048, tokens=1e9, deadline_h=hours, boards=boards)).plans[0].gpus
        for hours in (200, 20, 5)
    ]
    assert taken == sorted(taken)
    assert taken[0] < taken[-1]
    plain = size_job(SizingRequest("llama-2-7b", "lora", 2048, boards={"A100-80GB": 1})).plans[0]
    seen = size_job(SizingRequest("llama-2-7b", "lora", 2048, "litgpt", boards={"A100-80GB": 1})).plans[0]
    assert seen.level == "tool measured"
    assert seen.upper_gib / seen.predicted_gib < plain.upper_gib / plain.predicted_gib


def test_small_jobs_find_slices_and_pools_join_unlike_boards():
    small = size_job(SizingRequest("gpt2", "train", 512, tokens=1e8, boards={"H100-80GB-SXM5": 1}))
    assert any(plan.profile != "gpu" for plan in small.plans)
    pool = size_job(
        SizingRequest(
            "llama-3.1-8b", "train", 4096, tokens=1e10, deadline_h=40, boards={"A100-80GB": 8, "H100-80GB-SXM5": 4}
        )
    )
    both = [plan for plan in pool.plans if "+" in plan.gpu_model]
    assert both
    assert both[0].request.count("#SBATCH --gres") == 2


def test_serving_meets_its_latency_and_asks_for_replicas():
    wish = SizingRequest(
        "llama-3.1-70b", "serve", 4096, tokens=1e9, deadline_h=24, itl_s=0.05, boards={"H100-80GB-SXM5": None}
    )
    plan = size_job(wish).plans[0]
    assert plan.engine.step_s <= 0.05
    assert plan.engine.concurrency > 0
    assert plan.tokens_per_s * 86400 >= 1e9


def test_a_slice_costs_the_larger_of_its_shares_and_is_tuned_by_itself():
    gpu_model = load_gpu_model("H100-80GB-SXM5")
    assert max_slice_fraction(gpu_model, "1g.20gb") == 1 / 4  # four fit a board
    assert max_slice_fraction(gpu_model, "3g.40gb") == 1 / 2
    assert max_slice_fraction(gpu_model, "1g.10gb") == pytest.approx(1 / 7)
    found = size_job(SizingRequest("llama-3.2-1b", "lora", 2048, tokens=1e8, boards={"H100-80GB-SXM5": 1}))
    hourly = {plan.profile: plan.cost / plan.hours for plan in found.plans}
    assert hourly["1g.20gb"] == pytest.approx(hourly["gpu"] / 4)
    ways = {one.profile: (one.micro_batch, one.recompute) for one in found.slices if one.fits}
    assert len(set(ways.values())) > 1


def test_every_slice_has_its_probability_also_where_the_job_does_not_fit():
    found = size_job(SizingRequest("llama-3.1-8b", "qlora", 8192, boards={"A100-80GB": 4}))
    assert {one.profile for one in found.slices} == {"1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb"}
    by_memory = sorted(found.slices, key=lambda one: one.memory_gib)
    outs = [one.p_oom for one in by_memory if not one.fits]
    assert outs == sorted(outs, reverse=True)
    assert all((one.p_oom <= 0.05) == one.fits for one in found.slices)
    assert all(0 < one.p_oom < 1 for one in found.slices)


def test_services_run_on_slices_and_the_cache_is_narrow_only_where_it_is_asked_for():
    def engines(**more):
        plans = size_job(SizingRequest("llama-3.2-3b", "serve", 8192, boards={"H100-80GB-SXM5": 2}, **more)).plans
        return {plan.profile: plan.engine for plan in plans}

    plain, weights, cache = engines(), engines(quantization="fp8"), engines(cache_dtype="fp8")
    assert {"gpu", "1g.20gb", "3g.40gb"} <= set(plain)
    assert plain["1g.20gb"].step_s > 0
    assert cache["gpu"].concurrency == pytest.approx(2 * plain["gpu"].concurrency, rel=0.02)
    assert weights["gpu"].concurrency < 1.2 * plain["gpu"].concurrency
    assert engines(adapters=20)["gpu"].concurrency < plain["gpu"].concurrency


def test_experts_are_spread_where_the_tool_can_and_no_tool_is_told_to_do_what_it_cannot():
    wish = SizingRequest("mixtral-8x7b", "train", 4096, "megatron-lm", 1e9, boards={"H100-80GB-SXM5": 64})
    assert any(plan.job.ep > 1 and "--expert-model-parallel-size" in plan.launch for plan in size_job(wish).plans)
    for tool, words in (("axolotl", "axolotl train"), ("torchtune", "tune run"), ("litgpt", "litgpt finetune_lora")):
        plans = size_job(SizingRequest("llama-3.1-8b", "lora", 2048, tool, 1e8, boards={"H100-80GB-SXM5": 8})).plans
        assert all(plan.job.tp == plan.job.pp == 1 for plan in plans)
        assert all(words in plan.launch for plan in plans)
        assert "model-parallel" not in plans[0].launch
    lora = size_job(SizingRequest("llama-3.1-8b", "qlora", 2048, boards={"H100-80GB-SXM5": 1})).plans[0]
    assert "accelerate launch" in lora.launch
    assert lora.price.endswith("USD an hour")


def test_boards_come_from_the_data_and_their_number_is_kept():
    boards = gpus_by_model(Scenario())
    assert boards == {"H100-80GB-SXM5": 64}
    register_commands()
    told = CliRunner().invoke(app, ["size", "--model", "gpt2", "--seq", "512", "--data", "sample", "--json"])
    found = json.loads(told.stdout)
    assert {plan["gpu_model"] for plan in found["plans"]} == {"H100-80GB-SXM5"}
    assert found["slices"]
    assert not [line for line in found["assumed"] if "GPU models" in line]
    free = CliRunner().invoke(app, ["size", "--model", "gpt2", "--seq", "512"])
    assert "--gpus MODEL=COUNT" in free.stdout


@pytest.mark.parametrize(
    ("word", "taken", "other"),
    [
        ("H100-80GB", "H100-80GB-SXM5", "H100-80GB-PCIe"),
        ("a100", "A100-40GB", "A100-80GB"),
        ("H20", "H20-96GB", "H20-141GB"),
    ],
)
def test_of_boards_that_a_word_may_mean_the_most_common_is_taken_and_said(word, taken, other):
    sizes = size_job(SizingRequest("gpt2", "train", 1024, tokens=1e9, boards=parse_gpu_counts([f"{word}=2"])))
    assert {plan.gpu_model for plan in sizes.plans} == {taken}
    assert max(plan.gpus for plan in sizes.plans) <= 2
    assert any(word in line and taken in line and other in line for line in sizes.assumed)
    assert resolve_gpu_words({word: 2, taken: 3})[0] == {taken: 5}


def test_what_cannot_be_says_why():
    with pytest.raises(InfeasiblePlanError, match="out-of-memory risk"):
        size_job(SizingRequest("llama-3.1-405b", "train", 8192, boards={"A100-80GB": 1}))
    late = size_job(SizingRequest("llama-2-7b", "train", 2048, tokens=1e12, deadline_h=1, boards={"A100-80GB": 8}))
    assert "deadline" in late.note
    for wrong in ({"task": "fly"}, {"task": "train", "tokens": -1.0}, {"task": "train", "quantization": "nf4"}):
        with pytest.raises(ScenarioError):
            SizingRequest(**({"model": "gpt2", "seq": 512} | wrong))


def test_the_command_answers_with_plans_probability_cost_and_energy():
    register_commands()
    words = "size --model llama-3.1-8b --task train --seq 8192 --deadline 7d --tokens 2e9 --json"
    told = CliRunner().invoke(app, words.split())
    first = json.loads(told.stdout)["plans"][0]
    assert {"p_oom", "cost", "energy_kwh", "tokens_per_s_low", "launch", "request"} <= set(first)
    plain = CliRunner().invoke(app, ["size", "--model", "gpt2", "--seq", "512", "--gpus", "A100-80GB=2"])
    assert "next smaller" in plain.stdout
    assert CliRunner().invoke(app, ["size", "--model", "gpt2", "--deadline", "soon"]).exit_code == 2


def test_what_is_known_of_a_job_narrows_its_speed_on_slices(tmp_path):
    """Telemetry narrows an interval that spanned tenfold and more; a slice that was measured has its own speed."""
    register_commands()
    own = tmp_path / "own.csv"
    words = [
        "size",
        "--model",
        "llama-3.1-8b",
        "--task",
        "qlora",
        "--seq",
        "1024",
        "--gpus",
        "H100-80GB-SXM5=1",
        "--json",
    ]

    def slices_of(rows: str | None) -> tuple[dict[str, dict[str, float]], list[str]]:
        more = []
        if rows is not None:
            own.write_text(rows)
            more = ["--speed-table", str(own)]
        told = json.loads(CliRunner().invoke(app, words + more).stdout)
        return {one["profile"]: one for one in told["slices"]}, told["assumed"]

    free, said = slices_of(None)
    known, nothing = slices_of("job_class,power_share\ntune,0.5\n")
    run, _ = slices_of("job_class,measured_profile,measured_speed\ntune,3g.40gb,0.6\n")
    width = [one["2g.20gb"]["tokens_per_s_high"] / one["2g.20gb"]["tokens_per_s_low"] for one in (free, known, run)]
    assert width[0] > 10 > width[1]
    assert width[2] < width[0]
    assert [line for line in said if "1g.20gb is known within a factor of" in line]
    assert not [line for line in nothing if "factor" in line]
    # the same micro-batch on 3g and 4g of the same memory: their rates are as their speeds are
    whole = free["4g.40gb"]["tokens_per_s"] / 0.786
    assert run["3g.40gb"]["tokens_per_s"] == pytest.approx(0.6 * whole, rel=0.01)


def test_a_model_is_sized_without_the_readers_of_data():
    code = (
        "import sys; from gpuplanner.sizing.job_size import size_job; "
        "from gpuplanner.sizing.job_plans import SizingRequest; "
        "size_job(SizingRequest('gpt2', boards={'A100-80GB': 1}, task='train', seq=1024)); "
        "sys.exit(any(name.startswith('gpuplanner.ingest') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_encoder_on_several_gpus_is_replicas():
    plans = size_job(SizingRequest("bert-large", "serve", 512, boards={"A100-80GB": 4})).plans
    whole = [plan for plan in plans if plan.profile == "gpu"]
    assert [(plan.gpus, plan.engine.tp, plan.replicas) for plan in whole] == [(1, 1, 1), (2, 1, 2), (4, 1, 4)]
    assert whole[1].tokens_per_s == pytest.approx(2 * whole[0].tokens_per_s)


def test_a_model_is_split_only_where_replicas_are_far_slower():
    eight = size_job(
        SizingRequest("llama-3.1-8b", "train", 4096, tokens=1e9, deadline_h=168, boards={"H100-80GB-SXM5": 8})
    )
    assert all(plan.job.tp == plan.job.pp == 1 for plan in eight.plans)
    assert "times as fast in parts: tensor 2, pipeline 1" in eight.plans[0].why
    far = size_job(SizingRequest("llama-3.1-70b", "train", 4096, boards={"H100-80GB-SXM5": 64}))
    assert any(plan.job.tp > 1 for plan in far.plans)


def test_preference_training_has_a_copy_beside_and_takes_pairs():
    boards = {"H100-80GB-SXM5": 16}
    alone, pairs = (
        size_job(SizingRequest("llama-3.2-3b", task, 1024, boards=boards)).plans for task in ("train", "dpo")
    )
    both = next(plan for plan in pairs if plan.components and plan.job)
    assert both.job.reference
    assert both.job.micro_batch % 2 == 0
    copy = replace(both.job, reference=False)
    assert peak_gib(both.job)[0] - peak_gib(copy)[0] == pytest.approx(2 * 3.2e9 / both.job.shards / 2**30, rel=0.05)
    assert alone[0].gpus <= pairs[0].gpus
    line = size_job(SizingRequest("llama-3.2-3b", "dpo", 1024, "torchtune", boards=boards)).plans[0].launch
    assert "full_dpo_distributed" in line
    assert "# pairs" in pairs[0].launch
    assert count_flops_per_token(both.job) > 1.25 * count_flops_per_token(copy)


@pytest.mark.parametrize(("model", "positions"), [("vit-large", 197), ("bge-base-en-v1.5", 512), ("bge-m3", 8194)])
def test_a_sequence_beyond_the_positions_of_a_model_is_cut_and_said(model, positions):
    found = size_job(SizingRequest(model, "train", 10_000, boards={"A100-80GB": 1}))
    assert found.plans[0].job.seq == positions
    assert any("positions" in line for line in found.assumed)
