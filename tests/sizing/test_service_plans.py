"""Replicas for a rate of requests: fewest that meet the targets, their price, and limits of physics."""

from __future__ import annotations

import json
from functools import cache

import pytest

from gpuplanner.core.errors import InfeasiblePlanError, ScenarioError
from gpuplanner.hardware.power_carbon_and_prices import find_gpu_hour_price
from gpuplanner.sizing.job_plans import SizingRequest
from gpuplanner.sizing.llm_service_plans import size_service

H100 = {"H100-80GB-SXM5": 64}


@cache
def sized(model, quantization, boards, figures):
    return size_service(SizingRequest(model, "serve", quantization=quantization, boards=dict(boards), **dict(figures)))


def service(model="llama-3.1-8b", quantization=None, boards=H100, **changed):
    """Plans of a service, found once for all tests that ask for the same."""
    figures = {"prompt": 1024, "answer": 512, "rate": 20.0, "ttft_s": 1.0, "itl_s": 0.03} | changed
    return sized(model, quantization, tuple(boards.items()), tuple(figures.items()))


def by_place(found):
    return {(one.profile, one.gpus_per_replica): one for one in found.plans}


def test_every_plan_meets_the_targets_and_the_cheapest_stands_first():
    found = service()
    for plan in found.plans:
        assert plan.ttft_p99_ms <= 1000
        assert plan.itl_p95_ms <= 30
        assert plan.ttft_low_ms < plan.ttft_p99_ms < plan.ttft_high_ms
        assert plan.headroom >= 1
    prices = [plan.usd_per_million_tokens for plan in found.plans]
    assert prices == sorted(prices)
    assert [plan.rank for plan in found.plans] == list(range(1, len(prices) + 1))


def test_a_replica_of_one_gpu_serves_what_calibrated_tools_say():
    plan = by_place(service(rate=100.0))["gpu", 1]
    assert 100 * 512 / 7_700 <= plan.replicas <= 100 * 512 / 5_000


def test_the_price_of_tokens_is_what_the_replicas_cost():
    for plan in service().plans:
        hourly = plan.gpus * find_gpu_hour_price("H100-80GB-SXM5").value
        assert plan.usd_per_hour == pytest.approx(hourly)
        prompt = plan.usd_per_million_prompt_tokens * 20 * 1024
        answer = plan.usd_per_million_answer_tokens * 20 * 512
        assert (prompt + answer) * 3600 / 1e6 == pytest.approx(hourly)
        assert plan.usd_per_million_tokens * 20 * 1536 * 3600 / 1e6 == pytest.approx(hourly)


@pytest.mark.long
def test_the_headroom_is_the_rate_up_to_which_the_same_replicas_do():
    plan = by_place(service())["gpu", 1]
    assert by_place(service(rate=20 * plan.headroom))["gpu", 1].replicas <= plan.replicas
    assert by_place(service(rate=20 * plan.headroom * 1.25))["gpu", 1].replicas > plan.replicas


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"itl_s": 0.002}, "a token takes 7.0 ms where one request runs alone, 4.5 ms at full memory bandwidth"),
        ({"ttft_s": 0.02}, "a first token takes"),
        ({"boards": {"H100-80GB-SXM5": 1}}, "GPUs are needed, 1 are at hand"),
        ({"model": "llama-3.1-405b", "boards": {"A30-24GB": 4}}, "do not fit in memory"),
    ],
)
def test_what_keeps_a_service_from_its_targets_is_named(more, words):
    with pytest.raises(InfeasiblePlanError) as error:
        service(**more)
    assert words in str(error.value)


def test_what_an_engine_takes_from_the_size_of_a_slice_is_stated():
    plans = by_place(service())
    assert "--max-num-batched-tokens 2048" in plans["3g.40gb", 1].launch
    assert plans["3g.40gb", 1].max_num_seqs <= 256
    assert "--max-num-batched-tokens 8192" in plans["gpu", 1].launch


@pytest.mark.long
def test_weights_are_served_as_published_unless_stated():
    published, wide = service(model="gpt-oss-120b"), service(model="gpt-oss-120b", quantization="bf16")
    assert "weights: mxfp4, as published; --quantization bf16 for 16 bits" in published.assumed
    assert min(one.gpus for one in published.plans) < min(one.gpus for one in wide.plans)


@pytest.mark.long
def test_gpus_that_nobody_measured_are_named():
    found = service(boards={"L40S": 32}, itl_s=0.05)
    assert any(line.startswith("not measured: L40S") for line in found.assumed)
    assert not any("not measured" in line for line in service(boards={"H200-141GB": 1}, rate=1.0).assumed[:1])


@pytest.mark.long
def test_slices_are_counted_in_full_gpus():
    found = service(boards={"H200-141GB": 64})
    for plan in found.plans:
        per_gpu = {"4g.71gb": 1, "3g.71gb": 2, "2g.35gb": 3, "1g.35gb": 4}.get(plan.profile, 1)
        assert plan.gpus == -(-plan.replicas * plan.gpus_per_replica // per_gpu)
    assert found.plans[0].profile == "gpu"


def test_plans_that_cost_several_times_the_best_are_left_out():
    plans = service(rate=100.0).plans
    assert max(one.usd_per_hour for one in plans) <= 3 * plans[0].usd_per_hour


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "how", "words"),
    [
        ("Qwen/Qwen3-32B-FP8", {}, "vllm serve Qwen/Qwen3-32B-FP8 --tensor-parallel-size"),
        ("Qwen/Qwen3-32B", {"quantization": "fp8"}, "--quantization fp8"),
        ("mistral-7b", {"quantization": "awq"}, "a checkpoint in GPTQ or AWQ"),
        ("gpt-oss-120b", {}, "a checkpoint in mxfp4"),
    ],
)
def test_formats_that_lie_in_the_checkpoint_are_no_option_of_the_engine(model, how, words):
    launch = service(model=model, itl_s=0.05, **how).plans[0].launch
    assert words in launch
    assert ("--quantization" in launch) == (how == {"quantization": "fp8"} or model.endswith("FP8"))


def test_weights_that_leave_no_room_in_the_share_of_an_engine_do_not_fit():
    with pytest.raises(InfeasiblePlanError, match="do not fit in memory"):
        service(model="deepseek-ai/DeepSeek-R1", rate=0.5, boards={"H100-80GB-SXM5": 64})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rate": 5.0}, "size, rate: expected prompt and answer beside it"),
        ({"prompt": 100}, "size, prompt and answer: expected tokens of both"),
        ({"ttft_s": 1.0}, "size, ttft: expected a rate beside it"),
        ({"prompt": 100, "answer": 100, "rate": -1.0}, "size, rate: expected a number above 0"),
        ({"task": "train", "rate": 5.0}, "size, rate: expected task serve"),
    ],
)
def test_half_a_service_is_refused(given, words):
    with pytest.raises(ScenarioError, match=words):
        SizingRequest(**({"model": "llama-3.1-8b", "task": "serve"} | given))


def test_a_request_beyond_the_context_is_refused():
    with pytest.raises(ScenarioError, match="the context of gpt2"):
        service(model="gpt2", prompt=1000)


def test_the_command_prints_plans_limits_and_assumptions(command):
    options = "size --model llama-3.1-8b --task serve --prompt 1024 --answer 512 --rate 5 --gpus H100-80GB-SXM5=4"
    code, out, _ = command(*options.split())
    assert code == 0
    assert "serve llama-3.1-8b: 5 requests/s of 1,024 + 512 tokens" in out
    assert "left out: H100-80GB-SXM5 1g.10gb: weights and one request of 1,536 tokens do not fit in memory" in out
    assert "assumed: ttft: 1,000 ms for 99 % of the requests; --ttft-ms to change" in out
    code, out, _ = command(*options.split(), "--json")
    plan = json.loads(out)["plans"][0]
    assert code == 0
    assert {"replicas", "gpus_per_replica", "profile", "usd_per_million_tokens"} <= set(plan)
