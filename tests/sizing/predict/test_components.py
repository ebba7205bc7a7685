"""The worked rows of the published component model, and parameter counts of published models."""

from dataclasses import replace

import pytest

from gpuplanner.core.errors import ScenarioError
from gpuplanner.hardware.catalog import facts
from gpuplanner.sizing.memory_components import (
    PEAK_MEMORY_COMPONENTS,
    activation_bytes,
    adapter_params,
    bucket_bytes,
    explain_peak,
    gathered_bytes,
    layer_bytes,
    logits_bytes,
    peak_gib,
    regime_bytes,
    stage_params,
    trained_bytes,
)
from gpuplanner.sizing.model_architecture import (
    Architecture,
    compare_params,
    load_presets,
    parse_architecture,
    parse_config,
)
from gpuplanner.sizing.training_job import TrainingJob, resolve_tool_facts
from gpuplanner.sizing.training_run_tables import read_row_job


@pytest.mark.parametrize("row", facts("model_presets").to_dicts(), ids=lambda row: row["preset"])
def test_presets_have_the_published_parameters(row):
    assert load_presets()[row["preset"]].params() == pytest.approx(row["params_published"], rel=0.005)


@pytest.mark.parametrize(
    ("regime", "total"), [("mixed", 16), ("megatron", 18), ("pure", 8), ("fsdp_fp32", 16), ("deepspeed", 20)]
)
def test_bytes_a_parameter(regime, total):
    assert sum(regime_bytes(regime)) == total


def test_eight_bit_states_and_one_moment():
    assert sum(regime_bytes("mixed", "adamw8bit")) == pytest.approx(16 - 8 + 2.03, abs=0.01)
    assert sum(regime_bytes("mixed", "sgdm")) == 12


@pytest.mark.parametrize(("sharding", "gigabytes"), [("ddp", 120), ("zero1", 31.4), ("zero2", 16.6), ("zero3", 1.9)])
def test_zero_on_64_ranks(sharding, gigabytes):
    job = TrainingJob(load_presets()["gpt2"], 1, regime="mixed", dp=64, sharding=sharding)
    assert trained_bytes(job, 7.5e9) / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_megatron_distributed_optimiser_and_context_parallel_ranks_share():
    job = TrainingJob(load_presets()["gpt2"], 1, regime="megatron", dp=4, cp=2, sharding="zero1")
    assert trained_bytes(job, 1.0) == pytest.approx(6 + 12 / 8)


def test_static_part_of_the_shared_megatron_check():
    model = Architecture("check", 32, 4096, 32, 8, 131073, ffn=16384, gated=True)
    job = TrainingJob(model, 8192, 2, regime="megatron", tp=4, dp=2, sharding="zero1")
    # 20.15 GB where the MLP has two matrices of 4 h; gated, 12 GB more; of two matrices:
    plain = replace(job, model=replace(model, gated=False))
    assert trained_bytes(plain, stage_params(plain.model, 4, 1)) / 1e9 == pytest.approx(20.15, rel=0.02)


def test_activations_without_dropout_tensor_parallel_and_scores():
    model = Architecture("gpt", 1, 1024, 16, 16, 1000, ffn=4096, gated=False, norm="layer")
    job = TrainingJob(model, 512, 2)
    unit = 512 * 2 * 1024
    assert sum(layer_bytes(replace(job, flash=False))) / unit == pytest.approx(32 + 5 * 16 * 512 / 1024)
    whole, split = layer_bytes(replace(job, tp=4))
    assert whole / unit == 8  # inputs and outputs of the two norms stay on every rank
    assert split / unit == pytest.approx(24 + 4 * 16 / 1024)


@pytest.mark.parametrize("t", [1, 2, 4, 8])
def test_the_published_activation_table(t):
    """Bytes a layer over s b h: 34 + 5as/h alone, 10 + 24/t + 5as/(ht), (34 + 5as/h)/t, 34/t, and 2."""
    model = Architecture("gpt", 1, 1024, 16, 16, 1000, ffn=4096, gated=False, norm="layer")
    job = TrainingJob(model, 512, 2, dropout=True, flash=False, tp=t)
    unit, scores = 512 * 2 * 1024, 5 * 16 * 512 / 1024
    assert sum(layer_bytes(replace(job, tp=1))) / unit == pytest.approx(34 + scores)
    assert activation_bytes(job)[1] / unit == pytest.approx(10 + (24 + scores) / t)
    whole = replace(job, sequence_parallel=True)
    assert activation_bytes(whole)[1] / unit == pytest.approx((34 + scores) / t)
    selected = activation_bytes(replace(whole, recompute="selective", selective="attention"))[1]
    assert selected / unit == pytest.approx(34 / t)
    assert activation_bytes(replace(job, recompute="full"))[1] / unit == pytest.approx(2)


def test_llama_blocks_follow_the_derived_formula():
    model = load_presets()["llama-3.1-8b"]
    job = TrainingJob(model, 2048, compiled=False)
    g, f = model.kv_heads / model.heads, model.ffn / model.hidden
    per = sum(layer_bytes(job)) / (2048 * model.hidden)
    assert per == pytest.approx(12 + 4 * g + 8 * f + 7 + 4 * model.heads / model.hidden)


def test_pipeline_holds_at_most_its_depth_and_recompute_keeps_inputs():
    model = load_presets()["gpt2"]
    job = TrainingJob(model, 1024, accumulation=8, pp=4)
    first, last, _ = activation_bytes(job)
    assert first == pytest.approx(4 * last)
    assert activation_bytes(replace(job, accumulation=2))[0] == pytest.approx(2 * last)
    kept, _, working = activation_bytes(replace(job, pp=1, recompute="full"))
    assert kept == pytest.approx(12 * 2 * 1024 * 768)
    assert working == pytest.approx(sum(layer_bytes(job)))


def test_logits_scale_with_vocabulary_and_chunks():
    job = TrainingJob(load_presets()["qwen-7b"], 4096, logits_bytes=10)
    width = 151936 * 4096
    assert logits_bytes(job) == pytest.approx(10 * width + 4 * 4096 * 4096)
    assert logits_bytes(replace(job, loss_chunks=8)) < logits_bytes(job) / 6


def test_trainable_parameters_of_lora_are_those_that_its_tool_prints():
    for name, printed in (("phi-1.5", 1572864), ("stablelm-alpha-3b", 2097152), ("llama-2-13b", 6553600)):
        assert adapter_params(TrainingJob(load_presets()[name], 1, method="lora")) == printed


def test_gradients_that_are_made_anew_come_as_activations_go():
    job = TrainingJob(load_presets()["llama-3.2-3b"], 4096, 1, regime="pure", fused_step=True, meter="allocated")
    kept, freed = (sum(peak_gib(replace(job, gradients_freed=way))) for way in (False, True))
    assert (kept - freed) * 2**30 == pytest.approx(2 * job.model.params(), rel=0.01)  # activations are more
    several = replace(job, gradients_freed=True, accumulation=4)
    assert sum(peak_gib(several)) == pytest.approx(kept)
    small = replace(job, seq=128, recompute="full", gradients_freed=True)
    states, *_ = peak_gib(small)
    assert states * 2**30 == pytest.approx(8 * job.model.params(), rel=0.01)  # gradients are more
    replicas = replace(job, dp=4, gradients_freed=True)
    assert peak_gib(replicas) == peak_gib(replace(replicas, gradients_freed=False))  # which reduce in buckets that stay


def test_a_composed_gelu_keeps_a_tensor_an_operation():
    def mlp(framework, model="gpt2", **more):
        row = {"framework": framework, "model": model, "seq_len": 1024, "precision": "bf16-true", "optimizer": "adamw"}
        job = read_row_job(row | more).job
        return sum(layer_bytes(job)) / job.tokens / job.model.ffn

    assert mlp("transformers") - mlp("pytorch") == pytest.approx(6)  # power, tanh, 1 + tanh and a half, not one
    assert mlp("transformers", precision="bf16") - mlp("pytorch") == pytest.approx(
        12 + 4 / 4
    )  # fp32 from the power on, and a residual in fp32 (4 bytes of hidden elements, a quarter of the MLP's)
    assert mlp("transformers", torch_compile="yes") == pytest.approx(mlp("nanogpt"))
    assert mlp("transformers", "pythia-1b") == pytest.approx(mlp("pytorch", "pythia-1b"))
    config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 100}
    assert parse_config(config | {"activation_function": "gelu_new"}, "tiny")[0].gelu_new
    assert not parse_config(config | {"activation_function": "gelu"}, "tiny")[0].gelu_new


def test_components_are_not_negative_and_add_up():
    for name in ("llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "bert-base", "sdxl"):
        job = TrainingJob(load_presets()[name], 1024, 2, regime="mixed", sharding="fsdp", dp=8)
        parts = peak_gib(job)
        assert len(parts) == len(PEAK_MEMORY_COMPONENTS)
        assert min(parts) >= 0
        assert sum(part.gib for part in explain_peak(job)) == pytest.approx(sum(parts))


def test_config_files_arguments_and_specs_give_the_same_model():
    config = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
              "num_key_value_heads": 8, "vocab_size": 128256, "intermediate_size": 14336}  # fmt: skip
    assert parse_config(config, "x")[0].params() == 8030261248
    spec = "layers=32 hidden=4096 heads=32 kv_heads=8 vocab=128256 ffn=14336 params=8030261248"
    assert parse_architecture(spec)[0].params() == 8030261248
    words = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --num-query-groups 8 --vocab-size 128256 \
--ffn-hidden-size 14336 --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights"
    assert parse_architecture(words)[0].params() == 8030261248


def test_labels_may_lie_and_numbers_may_not():
    model = Architecture("GPT", 8, 14400, 96, 96, 250000, ffn=57600, gated=False, norm="layer", tied=True)
    assert "layers have 23.5" in compare_params(model, 20e9, label=True)
    with pytest.raises(ScenarioError, match="which its layers have"):
        compare_params(model, 20e9, label=False)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"tp": 3}, "such as 2"),
        ({"micro_batch": 0}, "above 0"),
        ({"method": "half"}, "one of full"),
        ({"pp": 64}, "at most 32"),
        ({"recompute": "some"}, "one of none"),
    ],
)
def test_what_cannot_be_is_refused_with_the_nearest_choice(wrong, said):
    with pytest.raises(ScenarioError, match=said):
        TrainingJob(load_presets()["llama-3.1-8b"], 2048, **wrong)


def test_a_tool_overrules_what_is_assumed_of_any():
    assert resolve_tool_facts("any", frozenset())["recompute"] == "full"
    assert resolve_tool_facts("litgpt", frozenset({"lora", "single"}))["recompute"] == "none"
    assert resolve_tool_facts("litgpt", frozenset({"lora", "sharded"}))["gradients_whole"] == "yes"


def test_frameworks_hold_more_than_what_a_step_computes():
    """Copies to reduce, weights that stay gathered, buckets of replicas, and micro-batches in flight."""
    row = {"model": "llama-3.1-8b", "seq_len": 4096, "precision": "bf16", "method": "pretrain", "n_gpus": 8}
    titan = read_row_job(row | {"framework": "torchtitan", "fsdp": "yes"}).job
    assert titan.reduce_bytes == 4
    assert gathered_bytes(titan) > gathered_bytes(replace(titan, reduce_bytes=0.0)) + 4 * titan.model.layer_params()
    staged = read_row_job(row | {"framework": "torchtitan", "fsdp": "yes", "pp": 2, "n_gpus": 16}).job
    assert not staged.resharded
    assert gathered_bytes(staged) > 2 * stage_params(staged.model, 1, 2)
    replicas = read_row_job(row | {"framework": "transformers", "precision": "bf16-mixed"}).job
    assert bucket_bytes(replicas, 8e9) == pytest.approx(4 * 8e9)
    assert bucket_bytes(read_row_job(row | {"framework": "megatron-lm"}).job, 8e9) == 0
    unsaid, one = ({"framework": "megatron-lm", "pp": 4, "n_gpus": 4}, {"grad_accum": 1})
    in_flight = read_row_job(row | unsaid).job
    assert in_flight.accumulation == 4
    assert activation_bytes(in_flight)[0] == 4 * activation_bytes(read_row_job(row | unsaid | one).job)[0]


def test_a_token_is_kept_once_for_each_of_its_experts():
    mixture = TrainingJob(load_presets()["mixtral-8x7b"], 1024)
    plain = replace(mixture, model=replace(mixture.model, experts=0, ffn=mixture.model.mlp_width))
    assert sum(layer_bytes(mixture)) - sum(layer_bytes(plain)) == pytest.approx(1024 * 4096 * 4 * 2)
