"""Measured runs in other words: what users write instead of the words of a table, known and unknown."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl

_PRECISIONS = {
    "bf16-true": ("pure_bf16", "bf16 (weights too)", "bfloat16-true", "bf16-true+tf32"),
    "bf16": ("bfloat16", "BF16", "torch.bfloat16", "bf16+flash", "bf16-auto"),
    "fp16": ("float16", "torch.float16", "FP16-O2", "half", "fp16-dynamic-scale"),
}
_METHODS = {
    "lora": ("LoRA-SFT", "peft-lora", "lora_r8", "LoRA (PEFT)", "lora-finetune"),
    "lora+embeddings": ("lora+embeddings",),
    "qlora": ("qlora-nf4", "Q-LoRA 4bit", "QLoRA/bnb", "qlora_sft"),
    "full": ("full-sft", "full FT", "FullFineTune", "sft-full-params", "finetuning"),
    "pretrain": ("pre-training", "pretraining-from-scratch", "causal pretrain"),
    "adapter": ("adapter", "adapter-v1-sft"),
    "adapter_v2": ("adapter_v2", "adapter-v2"),
}
_OPTIMIZERS = {
    "AdamW": ("adamw_torch_fused", "AdamWScheduleFree", "torch.optim.AdamW", "adamw_mini", "Adam-W"),
    "AdamW8bit": ("adamw_bnb_8bit", "bnb AdamW 8bit v2"),
    "Adam, fp32 master": ("FusedAdam, fp32 master", "distributed_fused_adam, fp32 master"),
}
_ZERO = {"0": ("0", "zero-0"), "1": ("zero1", "stage 1", "ZeRO-1"), "3": ("zero3", "stage3", "deepspeed zero3")}
_FSDP = {"yes": ("fsdp2", "HSDP", "FULL_SHARD", "fully_shard", "fsdp-v2")}
_RECOMPUTE = {"full": ("full-block", "every layer", "uniform", "all"), "no": ("none", "disabled", "off")}
_FLASH = {"yes": ("FA3", "flash-attn-2.6", "sdpa-flash", "cudnn"), "no": ("eager", "vanilla")}
_COLUMNS = {
    "precision": _PRECISIONS, "method": _METHODS, "optimizer": _OPTIMIZERS, "zero_stage": _ZERO, "fsdp": _FSDP,
    "activation_checkpointing": _RECOMPUTE, "flash_attention": _FLASH,
}  # fmt: skip


def reword(table: pl.DataFrame, seed: int = 1, share: float = 0.4) -> pl.DataFrame:
    """Replace a share of the words of each row by others, and names of models by names of weights made from them."""
    random = np.random.default_rng(seed)

    def other(words: dict[str, tuple[str, ...]]) -> Callable[[str | None], str | None]:
        def choose(cell: str | None) -> str | None:
            if cell not in words or random.random() > share:
                return cell
            return str(random.choice(words[cell]))

        return choose

    changed = {
        name: pl.Series([other(words)(cell) for cell in table[name]], dtype=pl.String)
        for name, words in _COLUMNS.items()
    }
    endings = ("-Instruct-custom", "-sft-v3", "-ours", "_base_2026")
    names = [
        f"our-org/{name}{random.choice(endings)}" if name and random.random() < share else name
        for name in table["model"]
    ]
    return table.with_columns(**changed, model=pl.Series(names, dtype=pl.String))
