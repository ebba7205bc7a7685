"""What a row says decides; what is no word is refused; what a row says twice and differently is listed and widens."""

import polars as pl
import pytest
from typer.testing import CliRunner

from gpuplanner.catalog import facts
from gpuplanner.cli.app import app, register_commands
from gpuplanner.errors import ScenarioError
from gpuplanner.sizing.predict import predict_table
from gpuplanner.sizing.predict.methods import method_names, methods
from gpuplanner.sizing.predict.overheads import GIB
from gpuplanner.sizing.predict.peak import COMPONENTS, logits_bytes, peak_gib
from gpuplanner.sizing.predict.reading.rows import question
from gpuplanner.sizing.predict.reading.words import meaning

ROW = {
    "framework": "torchtune", "model": "llama-3.1-8b", "method": "lora", "seq_len": "2048", "micro_batch": "1",
    "precision": "bf16", "optimizer": "AdamW", "activation_checkpointing": "full", "gpu_mem_gib": "80", "n_gpus": "1",
}  # fmt: skip
TOOLS = sorted(set(facts("training_tools")["tool"]))


def answer(**changes):
    row = {name: value for name, value in (ROW | changes).items() if value is not None}
    return predict_table(pl.DataFrame([row])).row(0, named=True)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("said", ["32-true", "fp32", "float32"])
def test_stated_fp32_has_sixteen_bytes_a_parameter_under_every_tool(tool, said):
    for model in ("llama-3.1-8b", "gpt2"):
        row = {"framework": tool, "model": model, "seq_len": 512, "precision": said, "optimizer": "adamw"}
        job = question(row).job
        assert peak_gib(job)[0] * GIB >= 15.99 * job.model.params()


@pytest.mark.parametrize("tool", TOOLS)
def test_stated_precision_decides_under_every_tool(tool):
    row = {"framework": tool, "model": "llama-3.1-8b", "seq_len": 512, "optimizer": "adamw", "n_gpus": 1}
    states = {
        said: peak_gib(question(row | {"precision": said}).job)[0] * GIB / 8.03e9
        for said in ("bf16-true", "bf16-mixed", "32-true")
    }
    job = question(row | {"precision": "bf16-true"}).job
    if job.regime.startswith("deepspeed"):  # which keeps fp32 copies of whatever it trains
        assert states["bf16-true"] >= 16
    else:
        assert states["bf16-true"] == pytest.approx(8, rel=0.01)
    assert states["bf16-mixed"] >= 15.9
    assert states["32-true"] == pytest.approx(16, rel=0.01)


@pytest.mark.parametrize("name", sorted(method_names()))
def test_every_method_is_known_and_trains_what_it_says(name):
    asked = question({"model": "llama-2-7b", "seq_len": 512, "precision": "bf16", "method": name})
    assert asked.job is not None
    states, beside = peak_gib(asked.job)[:2]
    if methods()[asked.job.method].base == "trained":
        assert states * GIB > 7.9 * asked.job.model.params()
    else:
        assert states * GIB <= 2 * asked.job.model.params()
        assert beside > 0


@pytest.mark.parametrize(
    ("told", "read"),
    [
        ("['q_proj', 'v_proj']", "q v"),
        ("c_attn", "q k v"),
        ("query_key_value dense_h", None),
        ("gate_up_proj;down_proj", "gate up down"),
        ("model.layers.0.self_attn.q_proj", None),
        ("attention+mlp", "q k v o gate up down"),
    ],
)
def test_matrices_are_read_in_the_words_of_adapter_libraries(told, read):
    asked = question({"model": "llama-2-7b", "seq_len": 512, "method": "lora", "lora_targets": told})
    if read is None:
        assert asked.job is None
        assert "lora_targets" in asked.missing[-1]
    else:
        assert " ".join(asked.job.lora_targets) == read


def test_a_loop_of_ones_own_holds_a_temporary_of_the_step_where_a_fused_one_does_not():
    # AdamW on CUDA is foreach unless told otherwise: one more tensor for each parameter, here of 16 bit, while it steps
    row = {
        "model": "llama-3.1-8b",
        "seq_len": 64,
        "precision": "bf16-true",
        "optimizer": "adamw",
        "method": "full",
    }
    job = question({**row, "framework": "pytorch", "activation_checkpointing": "yes"}).job
    parts = dict(zip(COMPONENTS, peak_gib(job), strict=True))
    assert parts["step"] * GIB == pytest.approx(2 * job.model.params(), rel=0.01)
    assert (parts["states"] + parts["step"]) * GIB == pytest.approx(10 * job.model.params(), rel=0.01)
    without = question({**row, "framework": "pytorch", "optimizer": "sgd"}).job
    assert dict(zip(COMPONENTS, peak_gib(without), strict=True))["step"] == 0


@pytest.mark.parametrize(("said", "beside"), [("dpo", "full"), ("lora+dpo", "lora"), ("DPO, QLoRA", "qlora")])
def test_preference_training_takes_pairs_and_a_copy_beside_what_is_trained_whole(said, beside):
    row = {
        "framework": "trl",
        "model": "llama-3.1-8b",
        "seq_len": 2048,
        "precision": "bf16-true",
        "optimizer": "adamw",
    }
    pairs, alone = question(row | {"method": said}), question(row | {"method": beside, "micro_batch": 2})
    more = (sum(peak_gib(pairs.job)) - sum(peak_gib(alone.job))) * GIB
    copy = 2 * pairs.job.model.params() if beside == "full" else 0
    assert more == pytest.approx(copy, rel=0.001)
    assert "pairs" in pairs.note[0]


def test_adapters_of_more_rank_and_more_layers_take_more_and_dense_ones_make_a_matrix():
    def total(**row):
        job = question(
            {"model": "llama-2-7b", "seq_len": 512, "precision": "bf16", "framework": "peft", **row}
        ).job
        return sum(peak_gib(job))

    assert total(method="lora", lora_rank=8) < total(method="lora", lora_rank=64)
    assert (
        total(method="freeze", trained_layers=2)
        < total(method="freeze", trained_layers=8)
        < total(method="full")
    )
    assert total(method="loha") > total(method="lora") > total(method="ia3") - 1
    assert total(method="prompt_tuning") < total(method="lora")


@pytest.mark.parametrize(
    ("kind", "text", "means"),
    [("quantization", "nf4 dq", "nf4-dq"), ("quantization", "bnb.nf4-dq", "nf4-dq"),
     ("quantization", "8 bit", "int8"), ("quantization", "int4 (gptq)", "gptq"),
     ("quantization", "load in 4bit", "nf4"), ("quantization", "FP8 e4m3", "fp8"),
     ("optimizer", "adamw_torch_fused", "adamw"), ("optimizer", "AdamW8bit", "adamw8bit"),
     ("optimizer", "paged_adamw_8bit", "pagedadamw8bit"), ("optimizer", "lion_8bit", "lion8bit"),
     ("precision", "bfloat16", "bf16"), ("precision", "BF16 mixed", "bf16-mixed"),
     ("precision", "16-true", "fp16-true")],
)  # fmt: skip
def test_words_in_any_order_and_with_any_signs_mean_the_same(kind, text, means):
    assert meaning(kind, text) == means


@pytest.mark.parametrize(
    ("kind", "text", "near"),
    [("optimizer", "foo", "adamw"), ("optimizer", "adamv", "adamw"), ("precision", "int2", "expected one of"),
     ("quantization", "nf5", "nf4"), ("quantization", "nf4 int8", "expected one of")],
)  # fmt: skip
def test_what_is_no_word_is_refused_with_the_nearest(kind, text, near):
    with pytest.raises(ScenarioError, match=near):
        meaning(kind, text)


NONSENSE = [
    *[("method", word) for word in ("lroa", "loora", "halff", "fullx", "none", "42", "qlorra", "dorra", "?", "rlhff")],
    *[("precision", word) for word in ("int2", "fp7", "bf17", "tf16", "double trouble", "fp16 bf16", "mixe", "true")],
    *[("optimizer", word) for word in ("foo", "adamm8", "sdg", "lyon", "adamw sgd", "12", "adamw, fast")],
    *[("quantization", word) for word in ("int2", "nf5", "nf4 int8", "maybe", "gptqq", "fp3", "12bit")],
    *[("activation_checkpointing", word) for word in ("some", "perhaps", "ful", "2")],
    *[("flash_attention", word) for word in ("sometimes", "flsh", "7")],
    *[("cpu_offload", word) for word in ("moon", "maybe", "3")],
    *[("torch_compile", word) for word in ("perhaps", "compiled?", "-1")],
    *[("fsdp", word) for word in ("perhaps", "shards", "9")],
    *[("device_map", word) for word in ("world", "autoo")],
    *[("gpu", word) for word in ("H9000", "toaster")],
    *[("framework", word) for word in ("torchtunee", "my trainer")],
    *[("model", word) for word in ("llama-9-900b", "???")],
    *[("micro_batch", word) for word in ("0", "-2", "1.5", "two", "nan", "inf")],
    *[("seq_len", word) for word in ("two", "-5", "1e99")],
    *[("zero_stage", word) for word in ("7", "1.5", "two")],
    *[("lora_rank", word) for word in ("0", "1000000", "eight", "-8")],
    *[("lora_targets", word) for word in ("q_prj, v_proj", "all-linaer", "???")],
    *[("n_gpus", word) for word in ("0", "-1", "many")],
    *[("tp", word) for word in ("3", "0")],
    *[(name, "2047.5") for name in ("seq_len", "layers", "hidden", "heads", "kv_heads", "vocab", "trained_layers")],
    *[("micro_batch", word) for word in ("1_000", "\u0663", "0x10", "8 sequences", "1,000")],
    *[("params", word) for word in ("0", "-7B", "7 dogs", "nan")],
    *[("optimizer", word) for word in ("sgd, no master", "adamw, without fp32 master", "adam adafactor")],
    *[("grad_accum", word) for word in ("0", "-4", "lots", "2.5")],
    *[("gpu_mem_gib", word) for word in ("0", "80 TB", "1e9", "inf")],
    *[("cp", word) for word in ("0", "2.5", "x")], ("trained_layers", "900"), ("layers", "0"), ("seq_len", "2,048"),
    ("pp", "64"), ("ep", "2"), ("gpu_mem_gib", "-1"), ("gpu_mem_gib", "lots"), ("params", "much"), ("dp", "0.5"),
]  # fmt: skip


@pytest.mark.parametrize(("column", "value"), NONSENSE)
def test_nonsense_is_refused_or_listed(column, value):
    said = answer(**{column: value, **({"gpu_mem_gib": None} if column == "gpu" else {})})
    listed = said["level"] == "not predicted" or column in said["missing"]
    assert listed, said
    assert said["family"] != "full"
    if said["level"] == "not predicted":
        assert said["missing"]
        assert said["predicted_gib"] is None


CONTRADICTIONS = [
    *[{"method": name, "lora_targets": "q_proj"} for name in ("full", "ia3", "freeze", "vera")],
    *[{"method": name, "lora_rank": "8"} for name in ("full", "pretrain", "ia3", "freeze", "ln_tuning")],
    *[{"method": name, "quantization": "nf4"} for name in ("full", "pretrain", "sft")],
    *[{"method": "full", "quantization": word} for word in ("int8", "gptq", "nf4-dq", "awq")],
    *[{"method": "qlora", "quantization": word} for word in ("int8", "fp8", "no", "bf16")],
    *[{"zero_stage": stage, "fsdp": "yes", "dp": "4", "n_gpus": "4"} for stage in ("1", "2", "3")],
    *[{"dp": dp, "n_gpus": gpus} for dp, gpus in (("4", "8"), ("2", "1"), ("8", "4"), ("3", "8"))],
    *[{"tp": tp, "n_gpus": gpus} for tp, gpus in (("8", "4"), ("4", "6"), ("2", "1"))],
    *[{"model": model, "params": params} for model, params in (
        ("llama-3.1-8b", "3e9"), ("llama-3.1-8b", "70B"), ("gpt2", "1.5e9"), ("llama-2-7b", "13B"),
        ("qwen-7b", "1.8e9"), ("mixtral-8x7b", "7B"), ("bert-base", "8B"))],
    *[{"layers": "10"}, {"hidden": "1024"}, {"heads": "16"}, {"kv_heads": "32"}, {"vocab": "32000"}],
    *[{"layers": "16", "hidden": "2048", "params": "1.2e9"}, {"layers": "80", "hidden": "8192", "params": "70e9"}],
    *[{"gpu": gpu, "gpu_mem_gib": gib} for gpu, gib in (
        ("A100-40GB", "80"), ("A100-SXM4-80GB", "40"), ("H100-80GB-SXM5", "141"), ("A30-24GB", "80"),
        ("RTX-4090", "80"))],
    *[{"device_map": "auto", "n_gpus": "4", **more} for more in (
        {"fsdp": "yes"}, {"zero_stage": "3"}, {"dp": "4"}, {"tp": "4"}, {"pp": "4"})],
    *[{"precision": word, "optimizer": "adamw, fp32 master"} for word in ("32-true", "bf16-true", "fp16-true", "fp32")],
    *[{"model": model, "seq_len": seq} for model, seq in (("gpt2", "4096"), ("gpt2-xl", "2048"), ("opt-1.3b", "8192"))],
    *[{"framework": "torchtune", "source": source} for source in ("Lightning-AI/litgpt", "qwen", "axolotl")],
    *[{"method": method, "trained_layers": "4"} for method in ("lora", "full", "ia3")],
    *[{"zero_stage": "0", "fsdp": word, "n_gpus": "2", "dp": "2"} for word in ("yes", "full_shard")],
    *[{"method": name, "cpu_offload": "optimizer", "optimizer": "sgd"} for name in ("lora", "dora", "freeze")],
    *[{"model": model, "lora_targets": "gate_proj", "seq_len": "512"} for model in ("gpt2", "opt-1.3b", "bert-base")],
    *[{"model": model, "method": "bitfit"} for model in ("llama-3.1-8b", "mistral-7b")],
    *[{"model": model, "method": method} for model in ("sdxl", "sd-1.5") for method in ("lora", "dora")],
    *[{"model": "sdxl", "method": "full", name: "4", "n_gpus": "4"} for name in ("tp", "pp", "cp")],
    *[{"gpu": gpu, "gpu_mem_gib": "16", "precision": word} for gpu in ("T4", "V100-16GB") for word in (
        "bf16", "bf16-mixed", "bf16-true")],
    *[{"model": "mixtral-8x7b", "ep": ep, **more} for ep, more in (
        ("8", {}), ("4", {"n_gpus": "2"}), ("8", {"dp": "1"}), ("8", {"dp": "4", "n_gpus": "4"}))],
    *[{"device_map": "auto", "n_gpus": gpus} for gpus in ("33", "200")],
    {"method": "full+embeddings"}, {"method": "full", "cpu_offload": "optimizer", "optimizer": "sgd"},
    {"model": "Foo-7B", "params": "70e9", "layers": "32", "hidden": "4096"},
    {"model": "foo", "params": "70e9", "layers": "32", "hidden": "1024"},
    {"model": "foo", "params": "2.2e8", "layers": "32", "hidden": "1024"},
    {"model": "foo", "params": "1e8", "layers": "32", "hidden": "4096"},
]  # fmt: skip


@pytest.mark.parametrize("changes", CONTRADICTIONS, ids=str)
def test_contradictions_are_refused_or_listed_and_widen(changes):
    assert len(CONTRADICTIONS) >= 60
    said = answer(**changes)
    assert said["missing"], said
    if said["level"] != "not predicted":
        words = [name for name in changes if name in said["missing"]]
        assert words, said
        asked = question({**ROW, **changes})
        assert asked.clashes


def test_sixty_of_each():
    assert len(NONSENSE) >= 60


def test_layers_spread_by_device_map_share_the_weights_and_one_works_at_a_time():
    one = question(ROW | {"method": "qlora"})
    four = question(ROW | {"method": "qlora", "device_map": "auto", "n_gpus": "4"})
    assert four.job.pp == 4
    assert not four.clashes
    assert peak_gib(four.job)[0] < 0.5 * peak_gib(one.job)[0]


def test_experts_spread_over_ranks_lie_there_alone():
    row = {
        "model": "mixtral-8x7b",
        "seq_len": 2048,
        "precision": "bf16",
        "framework": "megatron-lm",
        "dp": 8,
        "n_gpus": 8,
    }
    alone, spread = question(row | {"zero_stage": 1}).job, question(row | {"zero_stage": 1, "ep": 8}).job
    assert peak_gib(spread)[0] < 0.5 * peak_gib(alone)[0]
    whole = [question(row | {"fsdp": "yes", "ep": ep}).job for ep in (1, 8)]
    assert peak_gib(whole[0])[0] == pytest.approx(peak_gib(whole[1])[0])  # what is sharded is the same


def test_accuracy_of_others_is_not_told_of_a_tool_that_nobody_measured():
    assert "accuracy" in answer(framework="torchtune")["note"]
    assert "accuracy" not in answer(framework="trl")["note"]
    assert "accuracy" not in answer(framework=None)["note"]


def test_a_loss_that_is_cut_to_a_size_does_not_grow_with_the_batch():
    row = {
        "framework": "unsloth",
        "model": "llama-3.1-8b",
        "method": "qlora",
        "precision": "bf16",
        "seq_len": 8192,
    }
    small, large = (question(row | {"micro_batch": n}).job for n in (2, 16))
    assert logits_bytes(large) < 2.2 * logits_bytes(small)
    assert sum(peak_gib(small)) < sum(peak_gib(question(row | {"framework": "trl", "micro_batch": 2}).job))


def test_columns_that_are_nearly_those_that_are_read_are_named(tmp_path):
    (tmp_path / "rows.csv").write_text("model,method,seq_len,lora_r,owner\nllama-2-7b,lora,512,8,me\n")
    register_commands()
    said = CliRunner().invoke(app, ["size", "--table", str(tmp_path / "rows.csv")]).stderr
    assert "column lora_r is not read: is lora_rank meant?" in said
    assert "owner" not in said
