"""Training runs on one GPU: measured, and held against what is predicted for them.

``python benchmarks/training_runs.py`` predicts memory and speed of the rows of ``training_runs.csv``, for which nothing
was fitted but the five parameters ``eager_…`` of the speed, and with ``--write`` makes ``docs/training_runs.md``.
``--measure OUT.csv --shapes SHAPES.csv`` runs the rows of a table on the GPU at hand, each in a process of its own; it
needs PyTorch, transformers, peft and accelerate, random weights and nothing to download.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import math
import os
import statistics
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
RUNS = HERE / "training_runs.csv"
PRESETS = HERE.parent / "gpuplanner" / "catalog" / "facts" / "model_presets.csv"
PAGE = HERE.parent / "docs" / "training_runs.md"
STEPS = 10
GIB = 2.0**30
KINDS = {
    "phi": "Phi", "pythia": "GPTNeoX", "mistral": "Mistral", "qwen2.5": "Qwen2", "qwen3": "Qwen3",
    "gemma-2": "Gemma2", "gpt2": "GPT2", "opt": "OPT", "bert": "Bert", "roberta": "Roberta", "xlm": "Roberta",
    "vit": "ViT",
}  # fmt: skip
SIZES = {
    "num_hidden_layers": "layers", "hidden_size": "hidden", "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads", "vocab_size": "vocab", "intermediate_size": "ffn", "head_dim": "head_dim",
}  # fmt: skip
OLD_NAMES = {
    "GPT2": {
        "num_hidden_layers": "n_layer", "hidden_size": "n_embd", "num_attention_heads": "n_head",
        "intermediate_size": "n_inner",
    },
    "OPT": {"intermediate_size": "ffn_dim"},
}  # fmt: skip


def shape(row):
    """Sizes of a row's model, as the table of presets has them unless the row says so itself."""
    with PRESETS.open() as file:
        known = {line["preset"]: line for line in csv.DictReader(file)}
    return known.get(row["model"], {}) | {name: cell for name, cell in row.items() if cell}


def architecture(row):
    """Config of transformers for a row."""
    import transformers

    family = next((kind for name, kind in KINDS.items() if row["model"].startswith(name)), "Llama")
    sized = shape(row)
    given = {name: int(sized[column]) for name, column in SIZES.items() if sized.get(column)}
    if family in ("GPT2", "OPT", "Bert", "Roberta", "ViT", "GPTNeoX"):
        given = {
            name: size for name, size in given.items() if name not in ("num_key_value_heads", "head_dim")
        }
    if family == "Roberta":
        given |= {"max_position_embeddings": 514, "type_vocab_size": 1}
    if family == "ViT":
        given.pop("vocab_size")
        given |= {"num_labels": 1000, "patch_size": 14 if row["seq_len"] == "257" else 16}
    if family in ("Llama", "Qwen2", "Qwen3"):
        given["tie_word_embeddings"] = sized.get("tied") == "1"
    return getattr(transformers, f"{family}Config")(
        **{OLD_NAMES.get(family, {}).get(name, name): size for name, size in given.items()}
    )


class Same:
    """A data set of one sample, again and again: the processor has nothing to do but to hand it out."""

    def __init__(self, sample):
        self.sample = sample

    def __len__(self):
        return 10**6

    def __getitem__(self, _):
        return self.sample


def run(row):
    """Train for some steps; peaks in GiB as allocator, allocator's pool and device have them, and seconds a step."""
    import peft
    import torch
    import transformers

    config, precision = architecture(row), row["precision"]
    lora, again = row["method"] == "lora", row["activation_checkpointing"] == "full"
    narrow = precision == "bf16-true" or (lora and precision == "bf16-mixed")
    picture = config.model_type == "vit"
    kind = (
        "ImageClassification"
        if picture
        else "MaskedLM"
        if config.model_type in ("bert", "roberta")
        else "CausalLM"
    )
    with torch.device("cuda"):
        net = getattr(transformers, f"AutoModelFor{kind}").from_config(
            config, dtype=torch.bfloat16 if narrow else torch.float32
        )
    if lora:
        gated = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        names = ["q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"] if config.model_type == "phi" else gated
        if again:
            net.enable_input_require_grads()
        net = peft.get_peft_model(
            net, peft.LoraConfig(r=int(row["lora_rank"]), target_modules=names, task_type="CAUSAL_LM")
        )
    if picture:
        sample = {"pixel_values": torch.randn(3, 224, 224), "labels": torch.tensor(1)}
    else:
        ids = torch.randint(5, config.vocab_size, (int(row["seq_len"]),))
        sample = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    args = transformers.TrainingArguments(
        output_dir="/tmp/training_runs", max_steps=STEPS, per_device_train_batch_size=int(row["micro_batch"]),
        bf16=precision == "bf16-mixed" or lora, fp16=precision == "fp16-mixed", gradient_checkpointing=again,
        optim=row["optimizer"], report_to=[], save_strategy="no", logging_steps=1000, disable_tqdm=True,
    )  # fmt: skip
    ends = []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, *_, **__):
            torch.cuda.synchronize()
            ends.append(time.perf_counter())

    transformers.Trainer(model=net, args=args, train_dataset=Same(sample), callbacks=[Clock()]).train()
    free, total = torch.cuda.mem_get_info()
    steps = [after - before for before, after in itertools.pairwise(ends[2:])]
    return {
        "allocated_gib": torch.cuda.max_memory_allocated() / GIB,
        "reserved_gib": torch.cuda.max_memory_reserved() / GIB,
        "measured_peak_gib": (total - free) / GIB,
        "step_s": statistics.median(steps),
    }


def measure(shapes, out):
    """Each row in a process of its own, its result written at once."""
    table = list(csv.DictReader(shapes.open()))
    found = ("allocated_gib", "reserved_gib", "measured_peak_gib", "step_s", "status")
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*table[0], *(name for name in found if name not in table[0])])
        writer.writeheader()
        for row in table:
            read, write = os.pipe()
            if os.fork() == 0:
                try:
                    answer = {**run(row), "status": "ok"}
                except Exception as error:
                    answer = {"status": "oom" if "out of memory" in str(error) else f"failed: {error}"[:200]}
                os.write(write, json.dumps(answer).encode())
                os._exit(0)
            os.wait()
            answer = json.loads(os.read(read, 65536) or b'{"status": "died"}')
            writer.writerow(row | {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in answer.items()})
            file.flush()
            print(*list(row.values())[:2], answer, flush=True)


def compare(runs=RUNS):
    """Rows that ran, with what is predicted of each; and those that ran out of memory."""
    import polars as pl

    from gpuplanner.sizing.predict import predict_table
    from gpuplanner.sizing.predict.reading.rows import question
    from gpuplanner.sizing.predict.throughput import board_facts, tokens_per_s

    table = predict_table(pl.read_csv(runs, infer_schema=False))
    rows = []
    for row in table.iter_rows(named=True):
        job, board = question(row).job, board_facts(row["gpu"])
        low, rate, high = tokens_per_s(job, board)
        rows.append(
            row
            | {
                "slowest_s": job.tokens / low,
                "predicted_s": job.tokens / rate,
                "fastest_s": job.tokens / high,
            }
        )
    ran = [
        row | {name: float(row[name]) for name in ("measured_peak_gib", "step_s")}
        for row in rows
        if row["status"] == "ok"
    ]
    return ran, [row for row in rows if row["status"] == "oom"]


def figures(ran):
    """Accuracy, cover and width of the memory; median ratio, mean factor of error and cover of the seconds a step."""
    peaks = [(row["predicted_gib"], row["upper_gib"], row["measured_peak_gib"]) for row in ran]
    logs = [math.log(row["predicted_s"] / row["step_s"]) for row in ran]
    return {
        "runs": len(ran),
        "accuracy": statistics.mean(max(0.0, 1 - abs(said / was - 1)) for said, _, was in peaks),
        "within 15 %": statistics.mean(abs(said / was - 1) <= 0.15 for said, _, was in peaks),
        "below the bound": statistics.mean(was <= most for _, most, was in peaks),
        "bound / measured": statistics.mean(most / was for _, most, was in peaks),
        "seconds / measured, median": math.exp(statistics.median(logs)),
        "factor of error, mean": math.exp(statistics.mean(map(abs, logs))),
        "seconds in their range": statistics.mean(
            row["fastest_s"] <= row["step_s"] <= row["slowest_s"] for row in ran
        ),
    }


def page(ran, lost):
    """The page of the documentation."""
    parts = {"all": lambda row: True}
    for column in ("gpu", "set", "method", "precision", "activation_checkpointing"):
        for value in sorted({row[column] for row in ran}):
            parts[f"{column.replace('_', ' ')}: {value}"] = lambda row, c=column, v=value: row[c] == v
    table = [{"runs of": name, **figures([row for row in ran if of(row)])} for name, of in parts.items()]
    lines = ["| " + " | ".join(table[0]) + " |", "|" + "---|" * len(table[0])]
    for line in table:
        cells = (f"{value:.3f}" if isinstance(value, float) else f"{value}" for value in line.values())
        lines.append("| " + " | ".join(cells) + " |")
    each = ["| model | how | sequences | memory, GiB | said | at most | ms a step | said |", "|" + "---|" * 8]
    for row in sorted(ran, key=lambda row: row["predicted_gib"] / row["measured_peak_gib"]):
        how = f"{row['method']}, {row['precision']}, {row['optimizer']}" + (
            ", recomputed" if row["activation_checkpointing"] == "full" else ""
        )
        said = [row["measured_peak_gib"], row["predicted_gib"], row["upper_gib"]]
        cells = [
            row["model"],
            how,
            f"{row['micro_batch']} x {row['seq_len']}",
            *(f"{gib:.1f}" for gib in said),
        ]
        cells += [f"{1000 * row[name]:.0f}" for name in ("step_s", "predicted_s")]
        each.append("| " + " | ".join(cells) + " |")
    out = [
        f"{row['model']} ({row['method']}, {row['precision']}): {row['predicted_gib']:.0f} GiB, risk {row['p_oom']}"
        for row in lost
    ]
    return "\n".join(
        [*WORDS, *lines, "", f"Out of memory: {'; '.join(out) or 'none'}.", "", "## Each run", "", *each, ""]
    )


WORDS = (
    "# Training runs on one GPU, held against what is said of them",
    "",
    "Made by `python benchmarks/training_runs.py --write` from `benchmarks/training_runs.csv`: runs of transformers",
    "5.17 and peft 0.21 with PyTorch 2.11 on an H200, random weights, ten steps each, memory as the device had it.",
    "",
    "**Memory.** Nothing was fitted to these runs. Set 1 was predicted at 0.913 when it was measured, 0.974 of it",
    "below the bound at 1.26 times what was measured. Its largest errors then led to the source code of the tools:",
    "adapters that each cast their input, copies of autocast, which optimiser is fused, how Adafactor steps, what a",
    "loss keeps, which attention has groups in fp32. Set 2 was measured before that, was at 0.896, and was looked at",
    "afterwards.",
    "",
    "**Speed.** Seconds a step come from five parameters `eager_…` (`gpuplanner/catalog/facts/parameters.csv`), fitted",
    "to these runs: fitted on set 1 they meet set 2 within a factor of 1.12 on the mean, fitted on set 2 they meet",
    "set 1 within 1.17. Before them the error was a factor of 2.4, of fp32 more than 10. Set 1 ran six steps and made",
    "its samples anew, which makes small runs slower.",
    "",
)


def main():
    """Compare, write the page, or measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="make the page of the documentation")
    parser.add_argument("--measure", type=Path, metavar="OUT.csv", help="run the shapes on the GPU at hand")
    parser.add_argument("--shapes", type=Path, default=RUNS, metavar="SHAPES.csv", help="rows to run")
    asked = parser.parse_args()
    if asked.measure:
        measure(asked.shapes, asked.measure)
        return
    ran, lost = compare()
    for name, value in figures(ran).items():
        print(f"{name:>28} {value:.3f}" if isinstance(value, float) else f"{name:>28} {value}")
    if asked.write:
        PAGE.write_text(page(ran, lost))


if __name__ == "__main__":
    main()
