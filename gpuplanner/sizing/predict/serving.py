"""Memory and speed of serving: weights, key and value cache, workspace, and how many sequences that leaves room for."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from gpuplanner.catalog.loader import parameter
from gpuplanner.sizing.predict.architecture import Architecture
from gpuplanner.sizing.predict.overheads import GIB
from gpuplanner.sizing.predict.serving_speed import (
    EngineLayout,
    Load,
    ServingWork,
    attended_tokens,
    predict_serving,
    serving_seconds,
    serving_work,
    shipped_serving_speed,
    weight_counts,
)
from gpuplanner.sizing.predict.throughput import Board
from gpuplanner.sizing.predict.tools import figures

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


def layout_of(
    model: Architecture, weights: str, tp: int = 1, *, pp: int = 1, dp: int = 1, cache_bytes: float = 2.0
) -> EngineLayout:
    """A layout with the bytes of a format of weights: of 4 bits are only the experts of a model that has some.

    Examples
    --------
    >>> from gpuplanner.sizing.predict.describe import preset
    >>> layout = layout_of(preset("gpt-oss-120b"), "mxfp4")
    >>> layout.weight_bytes < 1, layout.dense_bytes
    (True, 2.0)
    """
    read = figures("quantization", weights, "weight_bytes")
    weight_bytes = dense_bytes = read[0] if read else 2.0
    if model.experts and weight_bytes < 1:
        dense_bytes = 1.0 if model.released == "fp8" else 2.0
    return EngineLayout(tp, pp, dp, weight_bytes, dense_bytes, cache_bytes, weights)


def footprint(model: Architecture, layout: EngineLayout, seq: float, adapters: int = 0) -> Footprint:
    """What an engine takes on each of its GPUs, whatever their size; embeddings and head have 16 bits."""
    dense, routed, head = weight_counts(model)
    tp = layout.tp
    weights = (dense * layout.dense_bytes + 2.0 * head * (1 if model.tied else 2)) / tp
    weights = (weights + routed * layout.weight_bytes / (tp * layout.dp)) / layout.pp
    weights += adapters * 0.01 * model.params() / tp
    width = max(model.mlp_width, model.q_width + 2 * model.kv_width)
    workspace = _PREFILL_TOKENS * (2 * width / tp + 4 * model.hidden) * 2.0 + 4.0 * model.vocab * 256 / tp
    workspace += (
        _GRAPH_GIB + parameter("cuda_context_gib").value + (tp > 1) * parameter("communicator_gib").value
    ) * GIB
    blocks = math.ceil(seq / BLOCK) * BLOCK
    one = cache_bytes_per_token(model, tp, bytes_each=layout.cache_bytes) * blocks
    if (
        model.kind == "encoder"
    ):  # nothing is kept from step to step: a sequence takes what one layer works with
        one = seq * (2 * width / tp + 4 * model.hidden) * 2.0
    return Footprint(weights, workspace, one)


def sequence_capacity(model: Architecture, board: Board, layout: EngineLayout, load: Load) -> int:
    """Sequences of mean length for which an engine has memory in its share of each GPU, beside its weights.

    Examples
    --------
    >>> from gpuplanner.sizing.predict.describe import preset
    >>> from gpuplanner.sizing.predict.throughput import board_facts
    >>> model, board = preset("llama-3.1-70b"), board_facts("H100-80GB-SXM5")
    >>> [sequence_capacity(model, board, EngineLayout(tp), Load(1024, 512, 1)) for tp in (1, 2, 4)]
    [0, 16, 371]
    """
    length = load.prompt + load.answer / 2
    taken = footprint(model, layout, length)
    one = taken.sequence * attended_tokens(model, length) / length / layout.pp
    room = board.memory_gib * GIB * parameter("serving_memory_share").value - taken.weights - taken.workspace
    return max(int(room / one), 0) * layout.dp


def serve(
    model: Architecture,
    board: Board,
    layout: EngineLayout,
    seq: int,
    *,
    prompt: float | None = None,
    itl_s: float | None = None,
    adapters: int = 0,
) -> Serving | None:
    """An engine that fills its share of the GPU with cache, at most as many sequences as the time per token allows.

    Without a ``prompt`` two thirds of a sequence of ``seq`` tokens are taken as one. The speed is that of
    :func:`~gpuplanner.sizing.predict.serving_speed.serving_seconds`.
    """
    taken = footprint(model, layout, seq, adapters)
    weights, workspace, one = taken.weights, taken.workspace, taken.sequence
    room = board.memory_gib * GIB * parameter("serving_memory_share").value - weights - workspace
    most = int(min(room, 1e4 * one) // one)
    speed = shipped_serving_speed()
    asked = PROMPT_SHARE * seq if prompt is None else prompt

    def work(count: int) -> ServingWork:
        return serving_work(model, board, layout, Load(asked, seq - asked, count))

    def step(count: int) -> float:
        if model.kind == "encoder":  # all tokens of a sequence at once, told by the token
            read = weights / (board.memory_bandwidth * speed.bandwidth_share)
            compute = 2.0 * model.params() / layout.tp / (board.flops * speed.compute_share)
            return max(read, count * seq * compute) / seq
        return float(serving_seconds(work(count), speed)[0])

    if itl_s is not None:
        most = bisect_right(range(1, most + 1), itl_s, key=step)
    if most < 1:
        return None
    rate, step_s = most / step(most), step(most)
    if model.kind != "encoder":
        rate = predict_serving(work(most), speed).tokens_per_s
    interval = (rate / speed.itl_factor, rate * speed.itl_factor)
    return Serving(layout.tp, weights / GIB, most * one / GIB, workspace / GIB, most, step_s, rate, interval)
