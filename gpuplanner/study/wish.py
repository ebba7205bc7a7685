"""What somebody wants of a model, and the boards that are at hand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuplanner.catalog import board_names, boards_called, find_any_board, has_price, whole_board_names
from gpuplanner.errors import GeometryError, ScenarioError, message
from gpuplanner.sizing.predict.reading.words import meaning
from gpuplanner.sizing.predict.throughput import Board, board_facts

TASKS = ("train", "dpo", "lora", "qlora", "serve")
CACHES = {"": 2.0, "auto": 2.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}
"""Bytes of a number of the cache of keys and values."""
RISK = 0.05
"""Largest probability to run out of memory that a plan may have."""
_LARGEST = 1024


@dataclass(frozen=True)
class Wish:
    """What is wanted.

    - ``model``: Preset, config.json, Megatron arguments or spec.
    - ``task`` {"train", "dpo", "lora", "qlora", "serve"}: What to do with it; QLoRA is LoRA beside 4 bit weights, DPO
      full training on pairs of answers beside a copy of the model.
    - ``seq``: Tokens of a sequence; serving: of prompt and answer.
    - ``tool``: Training tool; otherwise mixed precision with what each plan says.
    - ``tokens``: To train on, or to generate.
    - ``deadline_h``: Hours until it is done.
    - ``boards``: Board → GPUs at hand of it (None: as many as are needed); empty: all with a data sheet and a price.
    - ``latency_s``: Serving: seconds a token of one sequence may take.
    - ``quantization``: Of frozen or served weights, in any words: ``nf4``, ``4bit double``, ``int8``, ``fp8``, ``awq``.
    - ``cache_dtype``: Serving: ``fp8`` keeps keys and values in 8 bits; by default 16, whatever the weights have.
    - ``adapters``: Serving: LoRA adapters that are loaded beside the model.
    - ``risk``: Largest probability to run out of memory.
    """

    model: str
    task: str
    seq: int
    tool: str | None = None
    tokens: float | None = None
    deadline_h: float | None = None
    boards: Mapping[str, int | None] | None = None
    latency_s: float | None = None
    quantization: str = ""
    risk: float = RISK
    cache_dtype: str = ""
    adapters: int = 0

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            what = message("size, task", f"one of {', '.join(TASKS)}", repr(self.task), "Choose one.")
            raise ScenarioError(what)
        for name in ("seq", "tokens", "deadline_h", "latency_s", "risk"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ScenarioError(message(f"size, {name}", "a number above 0", repr(value), "Mend it."))
        narrow = meaning("quantization", self.quantization) if self.quantization else ""
        if self.task == "qlora":
            object.__setattr__(self, "task", "lora")
            narrow = narrow or "nf4-dq"
        object.__setattr__(self, "quantization", "" if narrow == "none" else narrow)
        if self.quantization and self.task in ("train", "dpo"):
            text = message(
                "size, quantization", "task lora or serve", self.task, "Quantised weights are not trained."
            )
            raise ScenarioError(text)
        if self.cache_dtype not in CACHES:
            known = ", ".join(name for name in CACHES if name)
            raise ScenarioError(
                message("size, cache_dtype", f"one of {known}", repr(self.cache_dtype), "Choose one.")
            )
        if (self.cache_dtype or self.adapters) and self.task != "serve":
            text = message("size, cache_dtype and adapters", "task serve", self.task, "Leave them out.")
            raise ScenarioError(text)


def boards_named(words: Iterable[str]) -> dict[str, int | None]:
    """Boards at hand as people write them, ``BOARD`` or ``BOARD=COUNT``; None: as many as are needed.

    A word that may mean several boards stays as it is: :func:`settled` says which is taken.

    Examples
    --------
    >>> boards_named(["H100-SXM5-80GB=64", "A30", "a100=8"])
    {'H100-80GB-SXM5': 64, 'A30-24GB': None, 'a100': 8}
    """
    counts: dict[str, int | None] = {}
    for word in words:
        name, equals, count = word.partition("=")
        if equals and not (count.isdecimal() and int(count)):
            text = message(
                "boards at hand", "BOARD or BOARD=COUNT with a whole number above 0", repr(word), "Mend it."
            )
            raise ScenarioError(text)
        called = boards_called(name)
        known = name if len(called) > 1 else called[0] if called else find_any_board(name)
        counts[known] = int(count) if equals else None
    return counts


def settled(boards: Mapping[str, int | None]) -> tuple[dict[str, int | None], list[str]]:
    """Boards by their own names, and which was taken where a word may mean several: the most common of a family.

    Examples
    --------
    >>> settled({"a100": 8})
    ({'A100-40GB': 8}, ['board a100: taken as A100-40GB, may be A100-80GB; name it'])
    """
    names: dict[str, int | None] = {}
    taken = []
    for word, count in boards.items():
        first, *others = boards_called(word) or (find_any_board(word),)
        if others:
            taken.append(f"board {word}: taken as {first}, may be {', '.join(others)}; name it")
        already = names.get(first, 0)
        names[first] = None if count is None or already is None else count + already
    return names, taken


def boards_of(asked: Mapping[str, int | None] | None) -> list[tuple[Board, int]]:
    """Boards at hand with their numbers; without any, all that have a data sheet and a price."""
    named = asked or {name: None for name in (*board_names(), *whole_board_names()) if has_price(name)}
    found = []
    for name, count in named.items():
        try:
            board = board_facts(name)
        except GeometryError:
            if asked:
                raise
            continue
        if board is not None:
            found.append((board, min(count or _LARGEST, _LARGEST)))
        elif asked:
            raise ScenarioError(
                message(f"board {name}", "a data sheet with peak and bandwidth", "none", "Name another.")
            )
    return found


def tags_of(wish: Wish) -> frozenset[str]:
    """Words for the situation, which the conditions of the tools' table name."""
    kind = "lora" if wish.task == "lora" else "full"
    return frozenset({"sharded", kind, wish.task, *(["quantised"] if wish.quantization else [])})
