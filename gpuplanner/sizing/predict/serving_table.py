"""Tables of settings in which an engine serves a model, each predicted or with the reason why not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, NoReturn

import polars as pl

from gpuplanner.catalog.aliases import boards_called
from gpuplanner.catalog.loader import find_any_board
from gpuplanner.errors import GpuPlannerError, ScenarioError, SchemaError, examples, first_line, message
from gpuplanner.names import nearest
from gpuplanner.sizing.predict.architecture import Architecture
from gpuplanner.sizing.predict.describe import describe, presets, published_preset
from gpuplanner.sizing.predict.reading.words import meaning
from gpuplanner.sizing.predict.serving import layout_of, sequence_capacity
from gpuplanner.sizing.predict.serving_speed import (
    EngineLayout,
    Load,
    ServingPrediction,
    ServingSpeed,
    predict_serving,
    serving_work,
)
from gpuplanner.sizing.predict.throughput import Board, board_facts, slice_board

SERVING_COLUMNS = (
    "model", "gpu_model", "profile", "gpus", "precision", "cache_precision", "backend", "prompt_tokens",
    "answer_tokens", "concurrency", "tp", "pp", "dp", "ep",
)  # fmt: skip
"""Columns that are read. ``dp`` is data parallelism of attention; ``backend`` and ``ep`` change nothing measurable."""
NEEDED_COLUMNS = ("model", "gpu_model", "prompt_tokens", "answer_tokens", "concurrency")
PREDICTED = tuple(field.name for field in fields(ServingPrediction))
REASON = "reason"
FULL = "full"
"""Word of ``profile`` for a GPU with MIG disabled."""
_WEIGHTS_ONLY = re.compile(r"wo\b|a16|weight", re.IGNORECASE)
"""Formats of 8 bits that are unpacked to 16 before they are multiplied."""

_ONE_GPU_MODEL = {"a100_sxm": "A100-80GB"}
"""Words of NVIDIA AIConfigurator, from which tables of settings come, that may mean several GPU models elsewhere."""


def predict_serving_table(table: pl.DataFrame, speed: ServingSpeed | None = None) -> pl.DataFrame:
    """A table with times [ms], tokens/s and the reason for each row that is not predicted behind its own columns.

    Parameters
    ----------
    table : polars.DataFrame
        Rows with columns of `SERVING_COLUMNS`: ``model``, ``gpu_model``, ``prompt_tokens``, ``answer_tokens``,
        ``concurrency`` and ``gpus`` (or ``tp``) are needed. Other columns stay as they are.
    speed : ServingSpeed, optional
        By default the shipped parameters.

    Raises
    ------
    SchemaError
        If a column is missing that is needed.

    Examples
    --------
    >>> row = {"model": "Qwen/Qwen3-32B", "gpu_model": "h200_sxm", "gpus": 2, "prompt_tokens": 1024, "concurrency": 16}
    >>> predict_serving_table(pl.DataFrame([row | {"answer_tokens": 0}]))["reason"].item()
    'row, answer_tokens: expected a whole number above 0; got 0. Correct it.'
    """
    needed = (*NEEDED_COLUMNS, "tp" if "tp" in table.columns else "gpus")
    if missing := [name for name in needed if name not in table.columns]:
        raise SchemaError(
            message("table", f"columns {', '.join(needed)}", f"no {examples(missing)}", "Add them.")
        )
    names = [name for name in SERVING_COLUMNS if name in table.columns]
    rows = table.select(names).rows()
    answers = {row: _predict(dict(zip(names, row, strict=True)), speed) for row in set(rows)}
    columns = {
        name: pl.Series([answers[row].get(name) for row in rows], dtype=pl.Float64).round(4)
        for name in PREDICTED
    }
    reasons = pl.Series([answers[row].get(REASON) for row in rows], dtype=pl.String)
    return table.drop(*PREDICTED, REASON, strict=False).with_columns(**columns, reason=reasons)


def _predict(row: Mapping[str, Any], speed: ServingSpeed | None) -> dict[str, Any]:
    """Columns of one row."""
    try:
        model, board, layout, load = serving_setting(row)
        capacity = sequence_capacity(model, board, layout, load)
        if not capacity:
            room = f"room for {model.name} and a request of {load.prompt + load.answer:,} tokens"
            _refuse(
                f"memory of {layout.tp * layout.pp * layout.dp} x {board.name}",
                room,
                "too little",
                "Add GPUs.",
            )
        work = serving_work(model, board, layout, load, capacity)
        return asdict(predict_serving(work, speed))
    except GpuPlannerError as error:
        return {REASON: first_line(error)}


def serving_setting(row: Mapping[str, Any]) -> tuple[Architecture, Board, EngineLayout, Load]:
    """The setting that a row states.

    Without a precision the format at the end of the model's name counts, then that of the published weights. Of 4 bits
    are only the experts of a model that has some.

    Raises
    ------
    ScenarioError
        If something is missing or cannot be read.

    Examples
    --------
    >>> row = {"model": "Qwen/Qwen3-32B-FP8", "gpu_model": "h200_sxm", "gpus": "4", "dp": "2", "prompt_tokens": "1000"}
    >>> serving_setting({**row, "answer_tokens": "500", "concurrency": "8"})[2].tp
    2
    """
    name = str(row.get("model") or "")
    own = name.endswith(".json") or "=" in name
    model = describe(name)[0] if own else published_preset(name) or _unknown(name)
    if model.kind != "decoder":
        _refuse("model", "a decoder", f"{model.name}, {model.kind}", "Name another.")
    load = Load(*(_count(row, name, None) for name in ("prompt_tokens", "answer_tokens", "concurrency")))
    pp, dp, _ = (_count(row, name, 1) for name in ("pp", "dp", "ep"))
    tp = _count(row, "tp", 0) or max(_count(row, "gpus", None) // (pp * dp), 1)
    gpus = _count(row, "gpus", tp * pp * dp)
    if tp * pp * dp != gpus:
        _refuse("tp x pp x dp", f"{gpus} GPUs", f"{tp * pp * dp}", "Correct them.")
    if model.heads % tp:
        _refuse("tp", f"a divisor of {model.heads} heads", f"{tp}", "Correct it.")
    if gpus > 1 and row.get("profile") not in (None, "", FULL):  # MIG instances have no NVLink to each other
        _refuse("gpus", "1 where profile is a MIG slice", f"{gpus}", "Correct it.")
    text = str(row.get("precision") or model.released or "none")
    weights = meaning("quantization", text, column="precision")
    cache_bytes = 1.0 if meaning("quantization", str(row.get("cache_precision") or "none")) == "fp8" else 2.0
    layout = layout_of(model, weights, tp, pp=pp, dp=dp, cache_bytes=cache_bytes)
    if weights == "int8" and _WEIGHTS_ONLY.search(text):
        layout = replace(layout, weights="none")
    return model, _gpu(row), layout, load


def _refuse(where: str, expected: str, got: str, hint: str) -> NoReturn:
    raise ScenarioError(message(f"row, {where}", expected, got, hint))


def _unknown(name: str) -> NoReturn:
    """Refuse a name that is no preset's, with the nearest ones."""
    near = nearest(name.rpartition("/")[2], presets())
    hint = f"Did you mean {examples(near)}?" if near else "Give the path of its config.json."
    _refuse("model", "a known model or a config.json", repr(name), hint)


def _gpu(row: Mapping[str, Any]) -> Board:
    """The GPU, or the MIG slice that ``profile`` names; of several that a word may mean the most common."""
    word, profile = str(row.get("gpu_model") or ""), row.get("profile")
    word = _ONE_GPU_MODEL.get(word.lower(), word)
    name = (boards_called(word) or (find_any_board(word),))[0]
    board = board_facts(name)
    if board is None:
        _refuse("gpu_model", "a GPU whose data sheet states peak and bandwidth", name, "Name another.")
    return slice_board(board, str(profile)) if profile and profile != FULL else board


def _count(row: Mapping[str, Any], name: str, default: int | None) -> int:
    """A whole number above 0."""
    value = row.get(name)
    if value in (None, "") and default is not None:
        return default
    try:
        number = float(value)  # type: ignore[arg-type]  # None: not a number
    except (TypeError, ValueError):
        number = 0.0
    if not 1 <= number < 1e12 or number % 1:
        _refuse(name, "a whole number above 0", repr(value), "Correct it.")
    return int(number)
