"""Memory and speed of serving: weights, key and value cache, workspace, and how many sequences that leaves room for."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuplanner.catalog import parameter
from gpuplanner.sizing.predict.architecture import Architecture
from gpuplanner.sizing.predict.overheads import GIB
from gpuplanner.sizing.predict.throughput import Board

BLOCK = 16
"""Tokens of a block of the cache, vLLM's default."""
_GRAPH_GIB = 0.5
_PREFILL_TOKENS = 8192


@dataclass(frozen=True)
class Serving:
    """One engine on `tp` GPUs: GiB a GPU, and what it serves."""

    tp: int
    weights_gib: float
    cache_gib: float
    workspace_gib: float
    concurrency: int
    step_s: float

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second of the engine at this concurrency."""
        return self.concurrency / self.step_s if self.concurrency else 0.0


def cache_bytes_per_token(model: Architecture, tp: int = 1, *, bytes_each: float = 2.0) -> float:
    """Bytes of key and value cache a token on one GPU: ``2 l n_kv d``, of MLA the latent and the rotary part.

    Heads are shared by at most as many ranks as there are key and value heads.

    Examples
    --------
    >>> from gpuplanner.sizing.predict.describe import preset
    >>> [cache_bytes_per_token(preset(name)) / 1024 for name in ("llama-3.1-8b", "llama-3.1-70b")]
    [128.0, 320.0]
    """
    if model.kv_rank:
        return model.layers * (model.kv_rank + model.rope_dim) * bytes_each
    return 2.0 * model.layers * model.kv_width * bytes_each / min(tp, model.kv_heads)


@dataclass(frozen=True)
class Footprint:
    """Bytes that an engine takes on each GPU: weights, workspace, and the cache of one sequence."""

    weights: float
    workspace: float
    sequence: float

    @property
    def least_gib(self) -> float:
        """What an engine needs that serves one sequence at a time."""
        return (self.weights + self.workspace + self.sequence) / GIB


def footprint(
    model: Architecture, tp: int, seq: int, *, weight_bytes: float, cache_bytes: float, adapters: int
) -> Footprint:
    """What an engine takes on each of its GPUs, whatever their size."""
    weights = weight_bytes * model.params() / tp + adapters * 0.01 * model.params() / tp
    width = max(model.mlp_width, model.q_width + 2 * model.kv_width)
    workspace = _PREFILL_TOKENS * (2 * width / tp + 4 * model.hidden) * 2.0 + 4.0 * model.vocab * 256 / tp
    workspace += (
        _GRAPH_GIB + parameter("cuda_context_gib").value + (tp > 1) * parameter("communicator_gib").value
    ) * GIB
    one = cache_bytes_per_token(model, tp, bytes_each=cache_bytes) * math.ceil(seq / BLOCK) * BLOCK
    if (
        model.kind == "encoder"
    ):  # nothing is kept from step to step: a sequence takes what one layer works with
        one = seq * (2 * width / tp + 4 * model.hidden) * 2.0
    return Footprint(weights, workspace, one)


def serve(
    model: Architecture,
    board: Board,
    tp: int,
    seq: int,
    *,
    weight_bytes: float = 2.0,
    cache_bytes: float = 2.0,
    latency_s: float | None = None,
    adapters: int = 0,
) -> Serving | None:
    """An engine that fills its share of the board with cache, at most as many sequences as the latency allows.

    A decoding step reads weights and cache once, or computes 2 operations a parameter and sequence, whichever is
    longer.
    """
    taken = footprint(model, tp, seq, weight_bytes=weight_bytes, cache_bytes=cache_bytes, adapters=adapters)
    weights, workspace, one = taken.weights, taken.workspace, taken.sequence
    room = board.memory_gib * GIB * parameter("serving_memory_share").value - weights - workspace
    most = int(min(room, 1e4 * one) // one)
    if most < 1:
        return None
    read = board.memory_bandwidth * parameter("decode_bandwidth_share").value
    active = weight_bytes * model.params(active=True) / tp
    compute = 2.0 * model.params(active=True) / tp / (board.flops * parameter("mfu").value)
    reduce_s = 2 * model.layers * 1e-5 * (tp > 1)

    def step(count: int) -> float:
        if model.kind == "encoder":  # all tokens of a sequence at once, told by the token
            return max(weights / read, count * seq * compute) / seq
        touched = min(weights, active * count) if model.experts else active
        return max((touched + count * one / 2) / read, count * compute) + reduce_s

    if latency_s is not None:
        if step(1) > latency_s:
            return None
        low, high = 1, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if step(middle) <= latency_s else (low, middle - 1)
        most = low
    return Serving(tp, weights / GIB, most * one / GIB, workspace / GIB, most, step(most))
