"""Training loops as users write them on PyTorch, accelerate and Lightning, with a model of their own."""

import contextlib
import itertools
import statistics
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

STEPS, GIB = 6, 2.0**30
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class LowRank(nn.Module):
    """A frozen linear layer and a product of two narrow ones beside it."""

    def __init__(self, base, rank, dtype):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features, dtype=dtype) / rank)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank, dtype=dtype))

    def forward(self, x):
        """Sum of both."""
        low = functional.linear(functional.linear(x.to(self.a.dtype), self.a), self.b)
        return self.base(x) + low.to(x.dtype)


class Block(nn.Module):
    """One layer: attention by PyTorch's kernel, and an MLP with a gate or a GELU."""

    def __init__(self, hidden, heads, kv_heads, ffn, gated):
        super().__init__()
        self.heads, self.kv_heads, self.size, self.gated = heads, kv_heads, hidden // heads, gated
        norm = nn.RMSNorm if gated else nn.LayerNorm
        self.norm1, self.norm2 = norm(hidden), norm(hidden)
        self.q_proj = nn.Linear(hidden, heads * self.size, bias=not gated)
        self.k_proj = nn.Linear(hidden, kv_heads * self.size, bias=not gated)
        self.v_proj = nn.Linear(hidden, kv_heads * self.size, bias=not gated)
        self.o_proj = nn.Linear(hidden, hidden, bias=not gated)
        if gated:
            self.gate_proj = nn.Linear(hidden, ffn, bias=False)
        self.up_proj = nn.Linear(hidden, ffn, bias=not gated)
        self.down_proj = nn.Linear(ffn, hidden, bias=not gated)

    def forward(self, x):
        """Attention and MLP with residuals."""
        batch, length, hidden = x.shape
        h = self.norm1(x)
        q, k, v = (
            part.view(batch, length, heads, self.size).transpose(1, 2)
            for part, heads in (
                (self.q_proj(h), self.heads), (self.k_proj(h), self.kv_heads), (self.v_proj(h), self.kv_heads),
            )
        )  # fmt: skip
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        x = x + self.o_proj(mixed.transpose(1, 2).reshape(batch, length, hidden))
        h = self.norm2(x)
        inner = functional.silu(self.gate_proj(h)) * self.up_proj(h) if self.gated else functional.gelu(self.up_proj(h))
        return x + self.down_proj(inner)


class Decoder(nn.Module):
    """A decoder with embedding and head; ``recompute`` computes each layer again in backward."""

    def __init__(self, row):
        super().__init__()
        layers, hidden, heads, kv_heads, vocab, ffn = (
            int(row[name]) for name in ("layers", "hidden", "heads", "kv_heads", "vocab", "ffn")
        )
        gated = row["gated"] == "1"
        self.recompute, self.upcast = row["activation_checkpointing"] == "full", gated
        self.embedding = nn.Embedding(vocab, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads, kv_heads, ffn, gated) for _ in range(layers))
        self.norm = nn.RMSNorm(hidden) if gated else nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)
        if row["tied"] == "1":
            self.head.weight = self.embedding.weight

    def forward(self, ids):
        """Mean loss of the next token."""
        x = self.embedding(ids)
        if self.recompute and not self.embedding.weight.requires_grad:
            x.requires_grad_(True)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        logits = self.head(self.norm(x))
        logits = logits.float() if self.upcast else logits
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def build(row):
    """Model of a row on the device: 16 bit for ``…-true`` and for frozen models, else fp32."""
    lora, precision = row["method"] == "lora", row["precision"]
    narrow = precision in ("bf16-true", "fp16-true") or lora
    with torch.device(DEVICE):
        torch.set_default_dtype(torch.bfloat16 if narrow and precision != "32-true" else torch.float32)
        net = Decoder(row)
        torch.set_default_dtype(torch.float32)
        if lora:
            net.requires_grad_(False)
            kept = torch.bfloat16 if precision == "bf16-true" else torch.float32
            for block in net.blocks:
                for name in [f"{target}_proj" for target in row["lora_targets"].split()]:
                    setattr(block, name, LowRank(getattr(block, name), int(row["lora_rank"]), kept))
    return net


def optimizer_of(row, net):
    """Optimiser by its name."""
    trained = [weight for weight in net.parameters() if weight.requires_grad]
    name = row["optimizer"]
    if name == "sgd":
        return torch.optim.SGD(trained, lr=1e-4)
    if name == "adafactor":
        return torch.optim.Adafactor(trained, lr=1e-4)
    # Unstated, PyTorch takes all matrices at once (foreach); "fused=False" would turn that off as well.
    how = {"fused": True} if "fused" in name else {"foreach": False} if "loop" in name else {}
    return torch.optim.AdamW(trained, lr=1e-5, **how)


def shard(net):
    """FSDP over the ranks that there are, one here, as torchtitan does: fp32 parameters, bf16 products."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.distributed.init_process_group(
        "nccl" if DEVICE == "cuda" else "gloo", init_method=f"file:///tmp/store_{time.time_ns()}", rank=0, world_size=1
    )
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in net.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(net, mp_policy=policy)


def plain_loop(row, net, ids):
    """Steps of a loop of one's own; yields after each."""
    sharded = row["fsdp"] == "yes"
    if sharded:
        shard(net)
    optimizer = optimizer_of(row, net)
    half = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}.get(row["precision"])
    scaler = torch.amp.GradScaler(DEVICE, enabled=row["precision"] == "fp16-mixed")
    call = torch.compile(net) if row["torch_compile"] == "yes" else net
    for _ in range(STEPS):
        for _ in range(int(row["grad_accum"] or 1)):
            with torch.autocast(DEVICE, half) if half and not sharded else contextlib.nullcontext():
                loss = call(ids)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        yield


def accelerate_loop(row, net, ids):
    """Steps with accelerate.Accelerator; yields after each."""
    from accelerate import Accelerator

    kind = {"bf16-mixed": "bf16", "fp16-mixed": "fp16"}.get(row["precision"], "no")
    helper = Accelerator(mixed_precision=kind)
    net, optimizer = helper.prepare(net, optimizer_of(row, net))
    for _ in range(STEPS):
        for _ in range(int(row["grad_accum"] or 1)):
            helper.backward(net(ids))
        helper.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield


def lightning_loop(row, net, ids, ends):
    """All steps with Lightning's Trainer; appends the time of each."""
    import pytorch_lightning as lightning

    class Task(lightning.LightningModule):
        """The model with its loss."""

        def __init__(self):
            super().__init__()
            self.net = torch.compile(net) if row["torch_compile"] == "yes" else net

        def training_step(self, batch, _):
            """Loss of a batch."""
            return self.net(batch[0])

        def configure_optimizers(self):
            """Optimiser of the row."""
            return optimizer_of(row, self.net)

        def on_train_batch_end(self, *_):
            """Note the time."""
            note_time(ends)

    accumulation = int(row["grad_accum"] or 1)
    data = torch.utils.data.TensorDataset(ids.cpu().repeat(STEPS * accumulation, 1))
    trainer = lightning.Trainer(
        max_steps=STEPS, precision=row["precision"], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=accumulation,
        gradient_clip_val=1.0, accelerator="gpu" if DEVICE == "cuda" else "cpu", devices=1,
    )  # fmt: skip
    trainer.fit(Task(), torch.utils.data.DataLoader(data, batch_size=len(ids)))


def note_time(ends):
    """Append the time at which the device is done."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    ends.append(time.perf_counter())


def read_peaks():
    """Largest memory in GiB: allocated, held by the allocator, and of the device.

    What lies outside the allocator (the context) does not change. The device itself is no witness: a program may have
    emptied the allocator at its end, as Lightning does.
    """
    free, total = torch.cuda.mem_get_info()
    held = torch.cuda.max_memory_reserved()
    return {
        "allocated_gib": torch.cuda.max_memory_allocated() / GIB,
        "reserved_gib": held / GIB,
        "measured_peak_gib": (total - free - torch.cuda.memory_reserved() + held) / GIB,
    }


def train(row):
    """Train a row; peaks in GiB as allocator, allocator's pool and device have them, and seconds a step."""
    net, ends = build(row), []
    ids = torch.randint(5, int(row["vocab"]), (int(row["micro_batch"]), int(row["seq_len"])), device=DEVICE)
    if row["framework"] == "lightning":
        lightning_loop(row, net, ids, ends)
    else:
        for _ in (accelerate_loop if row["framework"] == "accelerate" else plain_loop)(row, net, ids):
            note_time(ends)
    steps = [after - before for before, after in itertools.pairwise(ends[1:])]
    own = (weight.numel() for name, weight in net.named_parameters() if name.rpartition(".")[2] not in ("a", "b"))
    counted = {"params": sum(own), "step_s": statistics.median(steps)}
    return counted | read_peaks() if DEVICE == "cuda" else counted
