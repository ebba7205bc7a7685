"""Training runs on the GPU at hand, with which ``benchmarks/training_runs.py`` and ``memory_model.py`` compare.

``python benchmarks/on_gpu/measure_training.py SHAPES.csv OUT.csv [SECONDS]`` runs each row in a process of its own,
with random weights and nothing to download; rows that would start after the seconds are left out. It needs PyTorch,
transformers, peft and accelerate, and nothing of gpuplanner. Column ``framework`` chooses the program: transformers and
peft train by transformers.Trainer, pytorch, accelerate and lightning by loops in ``training_loops.py``.
"""

import csv
import itertools
import json
import os
import statistics
import sys
import time
from pathlib import Path

PRESETS = Path(__file__).resolve().parents[2] / "gpuplanner" / "hardware" / "facts" / "model_presets.csv"
STEPS = 10
STARTED = time.monotonic()
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
        given = {name: size for name, size in given.items() if name not in ("num_key_value_heads", "head_dim")}
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
    import training_loops

    if row["framework"] in ("pytorch", "accelerate", "lightning"):
        return training_loops.train(row)
    import peft
    import torch
    import transformers

    config, precision = architecture(row), row["precision"]
    lora, again = row["method"] == "lora", row["activation_checkpointing"] == "full"
    narrow = precision == "bf16-true" or (lora and precision == "bf16-mixed")
    picture = config.model_type == "vit"
    kind = "ImageClassification" if picture else "MaskedLM" if config.model_type in ("bert", "roberta") else "CausalLM"
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
        torch_compile=row.get("torch_compile") == "yes", gradient_accumulation_steps=int(row.get("grad_accum") or 1),
    )  # fmt: skip
    ends = []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, *_, **__):
            torch.cuda.synchronize()
            ends.append(time.perf_counter())

    transformers.Trainer(model=net, args=args, train_dataset=Same(sample), callbacks=[Clock()]).train()
    steps = [after - before for before, after in itertools.pairwise(ends[2:])]
    return training_loops.read_peaks() | {"step_s": statistics.median(steps)}


def measure(shapes, out, limit_s=float("inf")):
    """Each row in a process of its own, its result written at once; libraries are loaded before processes part."""
    import accelerate  # noqa: F401
    import peft  # noqa: F401
    import pytorch_lightning  # noqa: F401
    import transformers  # noqa: F401

    table = list(csv.DictReader(shapes.open()))
    found = ("allocated_gib", "reserved_gib", "measured_peak_gib", "step_s", "status")
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*table[0], *(name for name in found if name not in table[0])])
        writer.writeheader()
        for row in table:
            if time.monotonic() - STARTED > limit_s:
                print("left out:", row["model"], row["framework"], flush=True)
                continue
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


if __name__ == "__main__":
    measure(*map(Path, sys.argv[1:3]), *map(float, sys.argv[3:]))
