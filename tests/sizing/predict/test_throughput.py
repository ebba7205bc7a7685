"""Speed of training against runs that were measured, and against what cannot be otherwise."""

import pytest

from gpuplanner.sizing.training_run_tables import read_row_job
from gpuplanner.sizing.training_throughput import count_flops_per_token, estimate_tokens_per_s, find_gpu_spec

H200 = find_gpu_spec("H200")
# Model, method, precision, tokens of a sequence, sequences, recompute; seconds a step of transformers 5.17 and peft
# 0.21 with PyTorch 2.11 on an H200. The parameters were fitted on these and 75 others.
RUNS = (
    ("tinyllama-1.1b", "full", "bf16-mixed", 4096, 4, "none", 0.374),
    ("llama-3.1-8b", "lora", "bf16-true", 2048, 2, "none", 0.436),
    ("qwen2.5-7b", "lora", "bf16-true", 4096, 2, "full", 1.023),
    ("llama-2-7b", "full", "bf16-true", 2048, 4, "full", 0.939),
    ("phi-1.5", "full", "32-true", 2048, 2, "none", 0.820),
    ("gpt2-large", "full", "fp16-mixed", 1024, 8, "full", 0.313),
    ("bert-large", "full", "bf16-mixed", 512, 32, "none", 0.142),
    ("llama-3.2-3b", "full", "bf16-mixed", 1024, 1, "full", 0.328),  # what the host takes to launch it
)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: "-".join(map(str, run[:3])))
def test_runs_that_were_measured_lie_in_the_interval(run):
    model, method, precision, seq, micro, recompute, step_s = run
    row = {
        "framework": "peft" if method == "lora" else "transformers", "model": model, "method": method,
        "precision": precision, "seq_len": seq, "micro_batch": micro, "activation_checkpointing": recompute,
    }  # fmt: skip
    if method == "lora":
        row |= {"lora_rank": 16, "lora_targets": "all"}
    job = read_row_job(row).job
    low, rate, high = estimate_tokens_per_s(job, H200)
    assert low < job.tokens / step_s < high
    assert rate == pytest.approx(job.tokens / step_s, rel=0.35)


def test_fp32_is_no_faster_than_its_peak():
    job = read_row_job({"model": "llama-3.2-1b", "method": "full", "precision": "32-true", "seq_len": 2048}).job
    for gpu_model in map(find_gpu_spec, ("A100-80GB", "H100-80GB-SXM5", "H200", "MI300X", "V100-16GB-SXM2")):
        assert (
            estimate_tokens_per_s(job, gpu_model)[2] * count_flops_per_token(job)
            <= gpu_model.fp32_flops
            <= gpu_model.flops
        )


def test_kernels_that_are_compiled_are_faster_and_larger_batches_too():
    row = {"framework": "torchtune", "model": "llama-3.2-3b", "method": "full", "seq_len": 2048}
    one, compiled, four = (read_row_job(row | more).job for more in ({}, {"torch_compile": "yes"}, {"micro_batch": 4}))
    assert estimate_tokens_per_s(compiled, H200)[1] > estimate_tokens_per_s(one, H200)[1]
    assert all(
        more > few
        for more, few in zip(estimate_tokens_per_s(four, H200), estimate_tokens_per_s(one, H200), strict=True)
    )
