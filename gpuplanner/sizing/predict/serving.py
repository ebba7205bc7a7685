"""Memory and speed of serving: weights, key and value cache, workspace, and how many sequences that leaves room for."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuplanner.catalog import parameter
from gpuplanner.sizing.predict.architecture import Architecture
from gpuplanner.sizing.predict.overheads import GIB
from gpuplanner.sizing.predict.serving_speed import (
    EngineLayout,
    Load,
    attended_tokens,
    predict_serving,
    serving_seconds,
    serving_work,
    shipped_serving_speed,
    weight_counts,
)
from gpuplanner.sizing.predict.throughput import Board

BLOCK = 16
"""Tokens of a block of the cache, vLLM's default."""
PROMPT_SHARE = 2 / 3
"""Share of a sequence that is taken as its prompt where only its length is known; assumption of this project."""
_GRAPH_GIB = 0.5
_PREFILL_TOKENS = 8192


@dataclass(frozen=True)
class Serving:
    """One engine on `tp` GPUs: GiB a GPU, concurrent sequences, time per output token [s], tokens/s of the answers."""

    tp: int
    weights_gib: float
    cache_gib: float
    workspace_gib: float
    concurrency: int
    step_s: float
    tokens_per_s: float
    tokens_per_s_interval: tuple[float, float]


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


def sequence_capacity(model: Architecture, board: Board, layout: EngineLayout, load: Load) -> int:
    """Sequences of mean length for which an engine has memory; 0 where its weights and one of them exceed a GPU.

    An engine fills its share of the GPU, and one that would hold no sequence then is taken to be given more.

    Examples
    --------
    >>> from gpuplanner.sizing.predict.describe import preset
    >>> from gpuplanner.sizing.predict.throughput import board_facts
    >>> model, board = preset("llama-3.1-70b"), board_facts("H100-80GB-SXM5")
    >>> [sequence_capacity(model, board, EngineLayout(tp), Load(1024, 512, 1)) for tp in (1, 2, 4)]
    [0, 16, 371]
    """
    dense, routed, head = weight_counts(model)
    length = load.prompt + load.answer / 2
    weights = dense * layout.dense_bytes + 2.0 * head * (1 if model.tied else 2)
    weights = (weights / layout.tp + routed * layout.weight_bytes / (layout.tp * layout.dp)) / layout.pp
    taken = footprint(
        model, layout.tp, math.ceil(length), weight_bytes=0, cache_bytes=layout.cache_bytes, adapters=0
    )
    one = taken.sequence * attended_tokens(model, length) / length / layout.pp
    memory = board.memory_gib * GIB
    room = memory * parameter("serving_memory_share").value - weights - taken.workspace
    return max(int(room / one), 0) * layout.dp or int(weights + one < memory)


def serve(
    model: Architecture,
    board: Board,
    tp: int,
    seq: int,
    *,
    weight_bytes: float = 2.0,
    cache_bytes: float = 2.0,
    weight_format: str = "none",
    latency_s: float | None = None,
    adapters: int = 0,
) -> Serving | None:
    """An engine that fills its share of the board with cache, at most as many sequences as the latency allows.

    Of a sequence of `seq` tokens two thirds are taken as prompt and one third as answer. The speed is that of
    :func:`~gpuplanner.sizing.predict.serving_speed.serving_seconds`.
    """
    taken = footprint(model, tp, seq, weight_bytes=weight_bytes, cache_bytes=cache_bytes, adapters=adapters)
    weights, workspace, one = taken.weights, taken.workspace, taken.sequence
    room = board.memory_gib * GIB * parameter("serving_memory_share").value - weights - workspace
    most = int(min(room, 1e4 * one) // one)
    if most < 1:
        return None
    speed = shipped_serving_speed()
    dense_bytes = 2.0 if model.experts and weight_bytes < 1 else weight_bytes
    layout = EngineLayout(tp, 1, 1, weight_bytes, dense_bytes, cache_bytes, weight_format)

    def load(count: int) -> Load:
        return Load(PROMPT_SHARE * seq, (1 - PROMPT_SHARE) * seq, count)

    def step(count: int) -> float:
        if model.kind == "encoder":  # all tokens of a sequence at once, told by the token
            read = weights / (board.memory_bandwidth * speed.bandwidth_share)
            compute = 2.0 * model.params() / tp / (board.flops * speed.compute_share)
            return max(read, count * seq * compute) / seq
        return float(serving_seconds(serving_work(model, board, layout, load(count)), speed)[0])

    if latency_s is not None:
        if step(1) > latency_s:
            return None
        low, high = 1, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if step(middle) <= latency_s else (low, middle - 1)
        most = low
    rate, step_s = most / step(most), step(most)
    if model.kind != "encoder":
        rate = predict_serving(serving_work(model, board, layout, load(most)), speed).tokens_per_s
    interval = (rate / speed.itl_factor, rate * speed.itl_factor)
    return Serving(tp, weights / GIB, most * one / GIB, workspace / GIB, most, step_s, rate, interval)
