"""Predictions against public measurements: nothing measured is read, and each source is left out of what scores it."""

import math

import numpy as np
import polars as pl
import pytest
from memory_fit.evaluate import OutOfMemory, evaluate
from typer.testing import CliRunner

from gpuplanner.cli.application import app, register_commands
from gpuplanner.sizing.learned_memory import (
    combine_radius,
    format_peak_model,
    learn_own_runs,
    read_peak_model,
    shipped_peak_model,
)
from gpuplanner.sizing.training_run_tables import collect_measured_runs, list_unread_rows, predict_table, read_row_job

MEASURED = ("measured_peak_gib", "measured_raw", "raw_unit", "aggregation", "status", "notes")

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def rows(public_data):
    return pl.read_csv(public_data / "memory" / "memory_measurements.csv", infer_schema=False)


@pytest.fixture(scope="module")
def found(rows):
    return evaluate(rows)


def test_measured_columns_are_not_read(rows):
    mixed = rows.with_columns(pl.col(name).shuffle(seed=3) for name in MEASURED)
    plain, shuffled, absent = (predict_table(table) for table in (rows, mixed, rows.drop(MEASURED)))
    added = plain.columns[len(rows.columns) :]
    assert plain.select(added).equals(shuffled.select(added))
    assert plain.select(added).equals(absent.select(added))


def test_all_measured_rows_are_predicted(rows, found):
    assert found.overall.rows == 199
    assert found.not_predicted.rows == 0
    assert predict_table(rows)["level"].unique().to_list() == ["tool measured"]


def test_accuracy_with_each_source_left_out(found):
    by_tool = {row["tool"]: row["accuracy"] for row in found.sources.to_dicts()}
    assert found.overall.accuracy >= 0.91
    assert min(by_tool[name] for name in ("litgpt", "qwen-finetune", "megatron-deepspeed")) >= 0.92
    assert by_tool["torchtune"] >= 0.85
    assert found.decided.accuracy >= 0.93
    assert found.generic.accuracy >= 0.85
    assert found.strangers["accuracy"].min() >= 0.7
    assert found.overall.marp < 0.1  # the published formula, for the job that it was made for


def test_bounds_cover_as_they_say(found):
    for row in found.sources.to_dicts():
        assert row["cover"] >= 0.95, row
        assert row["width"] <= 2.0, row
    three = [row for row in found.sources.to_dicts() if row["tool"] != "torchtune"]
    assert np.mean([row["accuracy_after_five"] for row in three]) >= 0.93
    assert np.mean([row["cover_after_five"] for row in three]) >= 0.93
    assert np.mean([row["width_after_five"] for row in three]) <= 1.2


def test_what_ran_out_of_memory_was_said_to(found):
    assert found.out_of_memory == OutOfMemory(rows=8, said=8, above_board_said_to_fit=0)


def test_rows_that_leave_it_open_are_marked_beforehand(found):
    marked = found.undecided.to_dicts()
    assert all(row["missing"] for row in marked)
    tune = [row for row in marked if row["source"] == "pytorch/torchtune"]
    assert len(tune) == 14  # optimiser or recompute not stated, off-load, a padded batch
    assert {row["model"] for row in marked if row not in tune} == {"GPT 20B", "GPT 200B"}  # of bf16, which version
    assert len(marked) == 17


def test_even_one_run_moves_its_tool_and_nobody_else(rows):
    mine = rows.filter(source="Lightning-AI/litgpt", status="ok").head(8).with_columns(
        source=pl.lit("trl"), measured_peak_gib=pl.col("measured_peak_gib").cast(pl.Float64) * 1.2
    )  # fmt: skip
    model = shipped_peak_model()
    runs, _ = collect_measured_runs(mine)
    after, before = learn_own_runs(model, runs), model
    assert after.tools["litgpt"] == before.tools["litgpt"]
    assert "trl" in after.tools
    one = learn_own_runs(model, runs.select(np.arange(1)))
    assert "trl" in one.tools
    assert after.radii["trl"] < one.radii["trl"] < model.unseen
    assert read_peak_model(format_peak_model(after)) == after


def test_own_runs_tell_what_an_ambiguous_precision_means():
    """Rows of a trainer that says bf16 alone, made with parameters of 32 bit, and of 16 bit."""
    table = pl.DataFrame({
        "framework": "my trainer", "model": ["gpt2-xl", "llama-3.2-1b", "llama-3.2-3b", "qwen2.5-1.5b", "llama-3.1-8b"],
        "method": "full", "seq_len": [1024, 2048, 1024, 2048, 1024], "precision": "bf16", "optimizer": "AdamW",
        "activation_checkpointing": "full",
    })  # fmt: skip
    model = shipped_peak_model()
    for number, stated in enumerate(("bf16-true", "bf16-mixed")):
        truth = predict_table(table.with_columns(precision=pl.lit(stated)))
        rows = table.with_columns(measured_peak_gib=truth["predicted_gib"])
        runs, _ = collect_measured_runs(rows.head(4))
        after = learn_own_runs(model, runs)
        assert after.readings["my trainer"][1 + number] > 0.4
        assert read_peak_model(format_peak_model(after)) == after
        seen = predict_table(table.tail(1), after).row(0, named=True)
        assert seen["predicted_gib"] == pytest.approx(truth["predicted_gib"][-1], rel=0.15)
        assert "precision" not in seen["missing"]
        assert "by your runs: parameters of 16 bit" in seen["note"]
    stated, _ = collect_measured_runs(rows.with_columns(precision=pl.lit("bf16-mixed")))
    assert not learn_own_runs(model, stated).readings


def test_scatter_within_that_of_other_tools_does_not_widen_a_bound():
    model = shipped_peak_model()
    for known in (True, False):
        counts = (1, 2, 3, 4, 5, 8, 20)
        priors = [model.few_radius(count, is_known_tool=known) for count in counts]
        few = [
            combine_radius(np.full(count, 0.02), prior, is_known_tool=known)
            for count, prior in zip(counts, priors, strict=True)
        ]
        assert few == sorted(few, reverse=True)
    assert combine_radius(np.full(8, 0.3), 0.25) > combine_radius(np.full(8, 0.02), 0.25)


def test_rows_that_cannot_be_read_are_named_and_the_others_are_learned_from(rows):
    mine = rows.filter(source="Lightning-AI/litgpt", status="ok").head(5).with_columns(
        source=pl.lit("my trainer"), method=pl.Series(["lora", "?", "lora", "lora", "lora"])
    )  # fmt: skip
    (said,) = list_unread_rows(mine)
    assert "row 2" in said
    assert "lora" in said
    after = learn_own_runs(shipped_peak_model(), collect_measured_runs(mine)[0])
    assert after.rows["my trainer"] == 4
    seen = predict_table(mine.head(1), after).row(0, named=True)
    assert seen["level"] == "tool measured"
    assert abs(seen["predicted_gib"] - float(mine["measured_peak_gib"][0])) < abs(
        predict_table(mine.head(1))["predicted_gib"][0] - float(mine["measured_peak_gib"][0])
    )


def test_a_bound_is_wider_for_what_was_not_seen_and_the_probability_never_below_what_the_rows_support():
    model = shipped_peak_model()
    row = {"framework": "litgpt", "model": "llama-2-7b", "method": "lora", "seq_len": 1304, "precision": "bf16-true"}
    job = read_row_job(row).job
    near = model.radius("litgpt", is_known_tool=True, job=job)
    far = model.radius("litgpt", is_known_tool=True, job=read_row_job(row | {"seq_len": 131072, "micro_batch": 8}).job)
    new = model.radius("litgpt", is_known_tool=True, job=read_row_job(row | {"model": "gemma-7b"}).job)
    other = model.radius("litgpt", is_known_tool=True, job=read_row_job(row | {"precision": "32-true"}).job)
    stranger, decided = (model.radius("own", is_known_tool=False, decided=said) for said in (False, True))
    assert model.unseen < decided < stranger == model.generic  # less is open where all that matters is said
    assert near == model.radii["litgpt"]
    assert other >= model.unseen  # the tool was seen, but not at this precision
    assert far > near
    assert new > near
    assert model.p_oom(1.0, 1000.0, near) == pytest.approx(3 / sum(model.rows.values()))
    assert model.p_oom(1.0, math.exp(near), near) == pytest.approx(0.05, rel=0.01)
    assert model.p_oom(2.0, 1.0, near) > 0.99


@pytest.mark.parametrize("column", ["tool measured", "facts taken away"])
def test_out_of_memory_runs_are_above_the_default_risk_and_runs_with_room_below(rows, column):
    answers = predict_table(rows, tool="any" if column == "facts taken away" else None)
    out = answers.filter(pl.col("status") == "oom")
    assert (out["p_oom"] > 0.05).all()
    free = answers.filter(pl.col("measured_peak_gib").cast(pl.Float64) <= 0.8 * pl.col("gpu_mem_gib").cast(pl.Float64))
    below = (free["p_oom"] < 0.05).mean()
    assert below >= (0.8 if column == "tool measured" else 0.7)


def test_rows_that_say_too_little_say_what_to_add():
    table = pl.DataFrame(
        {"model": ["gpt2", "mystery", "gpt2"], "seq_len": [None, 1024, 1024], "micro_batch": [1, 1, 1]}
    )
    answer = predict_table(table)
    assert answer["level"].to_list()[:2] == ["not predicted"] * 2
    assert "seq_len" in answer["missing"][0]
    assert "layers" in answer["missing"][1]
    assert "hidden" in answer["missing"][1]
    assert answer["level"][2] == "tool not measured"
    assert "tool unknown" in answer["note"][2]


def test_public_runs_of_tools_that_were_never_learned_from_lie_below_the_bound():
    """Torchtitan's and Megatron-LM's published peaks: nothing of them was fitted."""
    titan = {"framework": "torchtitan", "model": "Llama-3.1-8B", "precision": "bf16", "optimizer": "AdamW"}
    table = pl.DataFrame(
        [
            titan | {"seq_len": 8192, "micro_batch": 2, "dp": 8, "activation_checkpointing": "selective",
                     "published": 82.4},
            titan | {"seq_len": 32768, "micro_batch": 1, "dp": 8, "activation_checkpointing": "full",
                     "published": 83.9},
            titan | {"model": "Llama-3.1-70B", "seq_len": 8192, "micro_batch": 16, "dp": 32, "tp": 8,
                     "activation_checkpointing": "full", "published": 71.9},
            {"framework": "megatron-lm", "model": "8B", "params": 6.18e9, "layers": 32, "hidden": 4096, "heads": 32,
             "kv_heads": 8, "vocab": 131073, "seq_len": 8192, "micro_batch": 2, "tp": 4, "dp": 2, "zero_stage": 1,
             "precision": "bf16", "optimizer": "Adam", "published": 58.188e9 / 2**30},
        ],
        infer_schema_length=None,
    )  # fmt: skip
    found = predict_table(table)
    assert found["level"].to_list() == ["tool not measured"] * 4
    assert ((found["predicted_gib"] / found["published"] - 1).abs() <= 0.15).all()
    assert (found["upper_gib"] >= found["published"]).all()


def test_the_command_writes_what_it_says(rows, tmp_path):
    register_commands()
    source, out, model = tmp_path / "rows.csv", tmp_path / "out.csv", tmp_path / "model.json"
    rows.head(20).write_csv(source)
    run = CliRunner().invoke
    assert run(app, ["size", "--table", str(source), "-o", str(out)]).exit_code == 0
    written = pl.read_csv(out)
    assert written.columns[-8:] == ["predicted_gib", "upper_gib", "p_oom", "family", "tool", "level", "missing", "note"]
    assert (written["upper_gib"] > written["predicted_gib"]).all()
    assert run(app, ["size", "--learn", str(source), "-o", str(model)]).exit_code == 0
    assert run(app, ["size", "--table", str(source), "--model-file", str(model), "-o", str(out)]).exit_code == 0
    assert run(app, ["size"]).exit_code == 2
