"""What a row says decides; what is no word is refused; what a row says twice and differently is listed and widens."""

import polars as pl
import pytest

from gpuplanner.core.errors import ScenarioError
from gpuplanner.hardware.catalog import facts
from gpuplanner.sizing.memory_components import BYTES_PER_GIB, PEAK_MEMORY_COMPONENTS, logits_bytes, peak_gib
from gpuplanner.sizing.training_job import load_methods, methods_by_name
from gpuplanner.sizing.training_run_row_parsing import resolve_word
from gpuplanner.sizing.training_run_tables import predict_table, read_row_job

ROW = {
    "framework": "torchtune", "model": "llama-3.1-8b", "method": "lora", "seq_len": "2048", "micro_batch": "1",
    "precision": "bf16", "optimizer": "AdamW", "activation_checkpointing": "full", "gpu_mem_gib": "80", "n_gpus": "1",
}  # fmt: skip
TOOLS = sorted(set(facts("training_tools")["tool"]))


def answer(**changes):
    row = {name: value for name, value in (ROW | changes).items() if value is not None}
    return predict_table(pl.DataFrame([row])).row(0, named=True)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("said", ["32-true", "float32"])
def test_stated_fp32_has_sixteen_bytes_a_parameter_under_every_tool(tool, said):
    for model in ("llama-3.1-8b", "gpt2"):
        row = {"framework": tool, "model": model, "seq_len": 512, "precision": said, "optimizer": "adamw"}
        job = read_row_job(row).job
        assert peak_gib(job)[0] * BYTES_PER_GIB >= 15.99 * job.model.params()


@pytest.mark.parametrize("tool", TOOLS)
def test_stated_precision_decides_under_every_tool(tool):
    row = {"framework": tool, "model": "llama-3.1-8b", "seq_len": 512, "optimizer": "adamw", "n_gpus": 1}
    states = {
        said: peak_gib(read_row_job(row | {"precision": said}).job)[0] * BYTES_PER_GIB / 8.03e9
        for said in ("bf16-true", "bf16-mixed", "32-true")
    }
    job = read_row_job(row | {"precision": "bf16-true"}).job
    if job.regime.startswith("deepspeed"):  # which keeps fp32 copies of whatever it trains
        assert states["bf16-true"] >= 16
    else:
        assert states["bf16-true"] == pytest.approx(8, rel=0.01)
    assert states["bf16-mixed"] >= 15.9
    assert states["32-true"] == pytest.approx(16, rel=0.01)


@pytest.mark.parametrize("name", sorted(methods_by_name()))
def test_every_method_is_known_and_trains_what_it_says(name):
    asked = read_row_job({"model": "llama-2-7b", "seq_len": 512, "precision": "bf16", "method": name})
    assert asked.job is not None
    states, beside = peak_gib(asked.job)[:2]
    if load_methods()[asked.job.method].base == "trained":
        assert states * BYTES_PER_GIB > 7.9 * asked.job.model.params()
    else:
        assert states * BYTES_PER_GIB <= 2 * asked.job.model.params()
        assert beside > 0


@pytest.mark.parametrize(
    ("told", "read"),
    [
        ("['q_proj', 'v_proj']", "q v"),
        ("c_attn", "q k v"),
        ("query_key_value dense_h", "q k v down"),
        ("gate_up_proj;down_proj", "gate up down"),
        ("model.layers.0.self_attn.q_proj", "q"),
        ("moon", "q k v o gate up down"),
        ("attention+mlp", "q k v o gate up down"),
    ],
)
def test_matrices_are_read_in_the_words_of_adapter_libraries(told, read):
    asked = read_row_job({"model": "llama-2-7b", "seq_len": 512, "method": "lora", "lora_targets": told})
    assert " ".join(asked.job.lora_targets) == read
    is_known = told[0] in "[cag"
    assert is_known != any("lora_targets" in clash for clash in asked.clashes)


def test_a_loop_of_ones_own_holds_a_temporary_of_the_step_where_a_fused_one_does_not():
    # AdamW on CUDA is foreach unless told otherwise: one more tensor for each parameter, here of 16 bit, while it steps
    row = {"model": "llama-3.1-8b", "seq_len": 64, "precision": "bf16-true", "optimizer": "adamw", "method": "full"}
    job = read_row_job({**row, "framework": "pytorch", "activation_checkpointing": "yes"}).job
    parts = dict(zip(PEAK_MEMORY_COMPONENTS, peak_gib(job), strict=True))
    assert parts["step"] * BYTES_PER_GIB == pytest.approx(2 * job.model.params(), rel=0.01)
    assert (parts["states"] + parts["step"]) * BYTES_PER_GIB == pytest.approx(10 * job.model.params(), rel=0.01)
    without = read_row_job({**row, "framework": "pytorch", "optimizer": "sgd"}).job
    assert dict(zip(PEAK_MEMORY_COMPONENTS, peak_gib(without), strict=True))["step"] == 0


def test_adapters_of_more_rank_and_more_layers_take_more_and_dense_ones_make_a_matrix():
    def total(**row):
        job = read_row_job({"model": "llama-2-7b", "seq_len": 512, "precision": "bf16", "framework": "peft", **row}).job
        return sum(peak_gib(job))

    assert total(method="lora", lora_rank=8) < total(method="lora", lora_rank=64)
    assert total(method="freeze", trained_layers=2) < total(method="freeze", trained_layers=8) < total(method="full")
    assert total(method="loha") > total(method="lora") > total(method="ia3") - 1
    assert total(method="prompt_tuning") < total(method="lora")


@pytest.mark.parametrize(
    ("kind", "text", "means"),
    [
        ("quantization", "nf4 dq", "nf4-dq"),
        ("quantization", "8 bit", "int8"),
        ("quantization", "int4 (gptq)", "gptq"),
        ("optimizer", "adamw_torch_fused", "adamw"),
        ("optimizer", "paged_adamw_8bit", "pagedadamw8bit"),
        ("precision", "bfloat16", "bf16"),
    ],
)
def test_words_in_any_order_and_with_any_signs_mean_the_same(kind, text, means):
    assert resolve_word(kind, text) == means


@pytest.mark.parametrize(
    ("kind", "text", "near"),
    [("optimizer", "foo", "adamw"), ("optimizer", "adamv", "adamw"), ("precision", "int2", "expected one of"),
     ("quantization", "nf5", "nf4"), ("quantization", "nf4 int8", "expected one of")],
)  # fmt: skip
def test_what_is_no_word_is_refused_with_the_nearest(kind, text, near):
    with pytest.raises(ScenarioError, match=near):
        resolve_word(kind, text)


NONSENSE = [
    *[("method", word) for word in ("lroa", "42", "?")],
    *[("precision", word) for word in ("int2", "double trouble", "fp16 bf16")],
    *[("optimizer", word) for word in ("foo", "adamw sgd", "sgd, no master")],
    *[("quantization", word) for word in ("nf5", "nf4 int8")],
    ("activation_checkpointing", "perhaps"), ("flash_attention", "7"), ("cpu_offload", "moon"), ("fsdp", "shards"),
    ("gpu", "toaster"), ("framework", "my trainer"), ("model", "llama-9-900b"), ("lora_targets", "q_prj, v_proj"),
    *[("micro_batch", word) for word in ("0", "1.5", "nan", "1_000", "\u0663")],
    *[("seq_len", word) for word in ("2047.5", "1e99", "2,048")],
    ("zero_stage", "7"), ("lora_rank", "1000000"), ("tp", "3"), ("pp", "64"), ("ep", "2"), ("params", "-7B"),
    ("gpu_mem_gib", "80 TB"), ("trained_layers", "900"), ("dp", "0.5"),
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
    {"method": "full", "lora_targets": "q_proj"}, {"method": "ia3", "lora_rank": "8"},
    {"method": "full", "quantization": "nf4"}, {"method": "qlora", "quantization": "int8"},
    {"zero_stage": "2", "fsdp": "yes", "dp": "4", "n_gpus": "4"}, {"dp": "4", "n_gpus": "8"},
    {"tp": "8", "n_gpus": "4"}, {"model": "llama-3.1-8b", "params": "3e9"}, {"layers": "10"}, {"kv_heads": "32"},
    {"layers": "16", "hidden": "2048", "params": "1.2e9"}, {"gpu": "A100-40GB", "gpu_mem_gib": "80"},
    {"device_map": "auto", "n_gpus": "4", "fsdp": "yes"}, {"device_map": "auto", "n_gpus": "33"},
    {"precision": "32-true", "optimizer": "adamw, fp32 master"}, {"model": "gpt2", "seq_len": "4096"},
    {"framework": "torchtune", "source": "axolotl"}, {"method": "lora", "trained_layers": "4"},
    {"method": "lora", "cpu_offload": "optimizer", "optimizer": "sgd"}, {"model": "mistral-7b", "method": "bitfit"},
    {"model": "gpt2", "lora_targets": "gate_proj", "seq_len": "512"}, {"model": "sdxl", "method": "lora"},
    {"gpu": "T4", "gpu_mem_gib": "16", "precision": "bf16"}, {"model": "mixtral-8x7b", "ep": "8"},
    {"model": "foo", "params": "70e9", "layers": "32", "hidden": "1024"},
]  # fmt: skip


@pytest.mark.parametrize("changes", CONTRADICTIONS, ids=str)
def test_contradictions_are_refused_or_listed_and_widen(changes):
    said = answer(**changes)
    assert said["missing"], said
    if said["level"] != "not predicted":
        words = [name for name in changes if name in said["missing"]]
        assert words, said
        asked = read_row_job({**ROW, **changes})
        assert asked.clashes


def test_layers_spread_by_device_map_share_the_weights_and_one_works_at_a_time():
    one = read_row_job(ROW | {"method": "qlora"})
    four = read_row_job(ROW | {"method": "qlora", "device_map": "auto", "n_gpus": "4"})
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
    alone, spread = read_row_job(row | {"zero_stage": 1}).job, read_row_job(row | {"zero_stage": 1, "ep": 8}).job
    assert peak_gib(spread)[0] < 0.5 * peak_gib(alone)[0]
    whole = [read_row_job(row | {"fsdp": "yes", "ep": ep}).job for ep in (1, 8)]
    assert peak_gib(whole[0])[0] == pytest.approx(peak_gib(whole[1])[0])  # what is sharded is the same


def test_a_loss_that_is_cut_to_a_size_does_not_grow_with_the_batch():
    row = {"framework": "unsloth", "model": "llama-3.1-8b", "method": "qlora", "precision": "bf16", "seq_len": 8192}
    small, large = (read_row_job(row | {"micro_batch": n}).job for n in (2, 16))
    assert logits_bytes(large) < 2.2 * logits_bytes(small)
    assert sum(peak_gib(small)) < sum(peak_gib(read_row_job(row | {"framework": "trl", "micro_batch": 2}).job))


UNKNOWN = [
    {"precision": "bf16-auto"}, {"method": "lora-sft-v2"}, {"optimizer": "adamw_mini"}, {"fsdp": "HSDP"},
    {"activation_checkpointing": "every-second"}, {"model": "our-org/Llama-3.1-8B-Instruct-custom"},
    {"model": "our-model-8B"}, {"quantization": "nf4 ours", "method": "qlora-nf4"},
]  # fmt: skip


@pytest.mark.parametrize("changes", UNKNOWN, ids=str)
def test_an_unknown_word_is_listed_and_widens_and_does_not_end_the_prediction(changes):
    known = answer(**({"method": "qlora"} if "quantization" in changes else {}))
    said = answer(**changes)
    assert said["predicted_gib"] == pytest.approx(known["predicted_gib"], rel=0.35)
    assert all(name in said["missing"] for name in changes)
    assert "not known" in said["missing"]
    assert said["upper_gib"] / said["predicted_gib"] > known["upper_gib"] / known["predicted_gib"]
    assert said["p_oom"] >= known["p_oom"]


def test_a_stage_of_zero_and_what_it_off_loads_is_read_from_words():
    row = ROW | {"framework": "deepspeed", "method": "full", "dp": "8", "n_gpus": "8", "optimizer": "adamw"}
    words = read_row_job(row | {"zero_stage": "ZeRO-3 offload"})
    figures = read_row_job(row | {"zero_stage": "3", "cpu_offload": "all"})
    assert words.job == figures.job
    assert not words.clashes


def test_the_shape_follows_from_the_size_where_a_model_is_not_known():
    of_size = read_row_job(ROW | {"model": "mystery", "params": "13e9"})
    assert of_size.job.model.params() == pytest.approx(13e9, rel=0.05)
    assert "mystery" in of_size.clashes[0]
    without = answer(model="mystery")
    assert without["level"] == "not predicted"
    by_shape = answer(model="mystery", layers="32", hidden="4096", heads="32", kv_heads="8", vocab="128256")
    assert by_shape["predicted_gib"] > 0
    assert "params: assumed" in by_shape["missing"]


LOOP = {
    "framework": "pytorch", "model": "ours", "layers": "12", "hidden": "768", "heads": "12", "vocab": "50304",
    "seq_len": "1024", "micro_batch": "4", "precision": "bf16-mixed", "optimizer": "adamw_torch_fused",
    "activation_checkpointing": "none", "n_gpus": "1",
}  # fmt: skip


def test_stated_width_gate_and_head_make_the_model():
    plain = {"ffn": "3072", "gated": "0", "tied": "1"}
    asked = read_row_job(LOOP | plain)
    assert not asked.missing
    assert (asked.job.model.ffn, asked.job.model.gated, asked.job.model.tied) == (3072, False, True)
    assert asked.job.model.params() == 12 * (12 * 768**2 + 13 * 768) + 50304 * 768 + 2 * 768
    assert read_row_job(LOOP | {"ffn": "2048", "gated": "yes", "tied": "no"}).job.model.gated
    assert "row, gated" in " ".join(read_row_job(LOOP | plain | {"gated": "maybe"}).missing)


def test_gradients_lie_beside_activations_under_lightning():
    """Its closure frees them after forward; a loop that frees them after the step reuses their memory."""
    loop, lightning = (read_row_job(LOOP | {"ffn": "3072", "framework": tool}).job for tool in ("pytorch", "lightning"))
    gradients = 4 * loop.model.params() / BYTES_PER_GIB
    beside = dict(zip(PEAK_MEMORY_COMPONENTS[:-1], peak_gib(lightning), strict=False))
    reused = dict(zip(PEAK_MEMORY_COMPONENTS[:-1], peak_gib(loop), strict=False))
    assert sum(beside.values()) - sum(reused.values()) == pytest.approx(gradients, rel=1e-3)


def test_a_step_matrix_by_matrix_needs_less_than_one_over_all():
    rows = (
        LOOP | {"ffn": "3072", "optimizer": said, "activation_checkpointing": "full", "micro_batch": "1"}
        for said in ("adamw", "adamw for loop")
    )
    at_once, one_by_one = (sum(peak_gib(read_row_job(row).job)) for row in rows)
    assert one_by_one < at_once


def test_frozen_weights_under_autocast_are_of_16_bit_and_the_bound_covers_32():
    row = LOOP | {"ffn": "3072", "method": "lora", "lora_rank": "8", "lora_targets": "q v"}
    asked = read_row_job(row)
    assert asked.job.weight_bytes == 2
    assert 4 in [job.weight_bytes for job in asked.alternatives]
    wide = sum(peak_gib(asked.alternatives[0]))
    assert predict_table(pl.DataFrame([row]))["upper_gib"].item() >= wide


@pytest.mark.parametrize("said", ["fp8", "fp8 hybrid", "fp8-mixed", "hybrid", "transformer-engine", "bf16 + fp8"])
def test_training_in_fp8_is_known_and_its_bound_is_wide(said):
    row = {"framework": "megatron-lm", "model": "llama-3.1-8b", "seq_len": 4096, "optimizer": "adamw", "zero_stage": 1,
           "n_gpus": 8}  # fmt: skip
    narrow, wide = (read_row_job(row | {"precision": precision}) for precision in (said, "bf16"))
    assert narrow.clashes == wide.clashes
    model = narrow.job.model
    copies = 2 * model.layers * model.layer_params() / BYTES_PER_GIB
    assert peak_gib(narrow.job)[0] - peak_gib(wide.job)[0] == pytest.approx(copies)
    told = predict_table(pl.DataFrame([row | {"precision": said}])).row(0, named=True)
    assert "covers training in fp8" in told["note"]
    assert told["upper_gib"] > 1.5 * told["predicted_gib"]


FULL = {"model": "llama-3.1-8b", "seq_len": 2048, "method": "full", "gpu": "H100-80GB-SXM5"}


@pytest.mark.parametrize("tool", sorted(set(facts("training_tools")["tool"])))
@pytest.mark.parametrize("precision", ["bf16", "bf16-true", "bf16-mixed", "fp8", "32-true"])
def test_a_peak_holds_weights_gradients_and_states_of_the_optimizer_that_it_names(tool, precision):
    stated = predict_table(pl.DataFrame([FULL | {"framework": tool, "precision": precision, "optimizer": "sgdm",
                                                 "activation_checkpointing": "full"}]))  # fmt: skip
    moment = 4 if precision in ("32-true", "bf16-mixed") else 2
    assert stated["predicted_gib"].item() > 8.03e9 * 3 * moment * 0.55 / BYTES_PER_GIB
    row = read_row_job(FULL | {"framework": tool, "precision": precision})
    named = [text.removeprefix("optimizer: assumed ") for text in row.missing if text.startswith("optimizer: ")]
    assert named == [row.job.optimizer]


@pytest.mark.parametrize("framework", ["lightning", "pytorch", "my trainer"])
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_the_gpu_does_not_change_the_peak_of_a_loop_of_ones_own(framework, precision):
    rows = pl.DataFrame([FULL | {"framework": framework, "precision": precision, "gpu": gpu}
                         for gpu in ("A10", "H100-80GB-SXM5", "B200-180GB-SXM")])  # fmt: skip
    assert predict_table(rows)["predicted_gib"].n_unique() == 1


@pytest.mark.parametrize(("more", "copied"), [
    ({"framework": "transformers"}, False), ({"framework": "my trainer"}, False), ({"framework": "megatron-lm"}, True),
    ({"framework": "transformers", "method": "lora"}, True), ({"framework": "my trainer", "method": "lora"}, True),
])  # fmt: skip
def test_copies_in_8_bit_are_counted_or_the_note_names_what_they_replace(more, copied):
    fp8, mixed = (read_row_job(FULL | more | {"precision": precision}) for precision in ("fp8", "bf16-mixed"))
    assert (sum(peak_gib(fp8.job)) > sum(peak_gib(mixed.job)) + 10) == copied
    assert ("in place of those of autocast" in " ".join(fp8.note)) != copied


@pytest.mark.parametrize(
    ("layout", "words"),
    [({"cp": 4}, "context parallelism"), ({"model": "mixtral-8x7b", "ep": 8}, "expert parallelism")],
)
def test_parallelism_without_any_run_says_so_and_has_a_wide_bound(layout, words):
    row = {"framework": "megatron-lm", "model": "llama-3.1-8b", "seq_len": 4096, "precision": "bf16", "n_gpus": 8}
    told = predict_table(pl.DataFrame([row | layout])).row(0, named=True)
    assert f"nothing that was measured covers {words}" in told["note"]
    assert told["upper_gib"] > 1.6 * told["predicted_gib"]
