"""What somebody wants of a model, and the boards that are at hand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

from gpuplanner.catalog.loader import board_names, find_any_board, has_price, whole_board_names
from gpuplanner.catalog.aliases import boards_called
from gpuplanner.errors import GeometryError, ScenarioError, message
from gpuplanner.sizing.predict.architecture import Architecture
from gpuplanner.sizing.predict.describe import describe
from gpuplanner.sizing.predict.describe import published_preset
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
    - ``seq``: Tokens of a sequence; serving: of prompt and answer together.
    - ``tool``: Training tool; otherwise mixed precision with what each plan says.
    - ``tokens``: To train on, or to generate.
    - ``deadline_h``: Hours until it is done.
    - ``boards``: Board → GPUs at hand of it (None: as many as are needed); empty: all with a data sheet and a price.
    - ``itl_s``: Serving: seconds between two tokens of an answer, at most.
    - ``quantization``: Of frozen or served weights, in any words: ``nf4``, ``4bit double``, ``int8``, ``fp8``, ``awq``.
      None: as published where they are served, else 16 bits.
    - ``cache_dtype``: Serving: ``fp8`` keeps keys and values in 8 bits; by default 16, whatever the weights have.
    - ``adapters``: Serving: LoRA adapters that are loaded beside the model.
    - ``risk``: Largest probability to run out of memory.
    - ``prompt``, ``answer``: Serving: tokens of a prompt and of an answer; None: two thirds of ``seq``, and the rest.
    - ``rate``, ``ttft_s``: Serving: requests a second, and seconds to the first token for 99 % of them, at most.
    """

    model: str
    task: str
    seq: int = 4096
    tool: str | None = None
    tokens: float | None = None
    deadline_h: float | None = None
    boards: Mapping[str, int | None] | None = None
    itl_s: float | None = None
    quantization: str | None = None
    risk: float = RISK
    cache_dtype: str = ""
    adapters: int = 0
    prompt: int | None = None
    answer: int | None = None
    rate: float | None = None
    ttft_s: float | None = None

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            _refuse("task", f"one of {', '.join(TASKS)}", repr(self.task), "Choose one.")
        for name in ("seq", "tokens", "deadline_h", "itl_s", "risk", "prompt", "answer", "rate", "ttft_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                _refuse(name, "a number above 0", repr(value), "Correct it.")
        narrow = meaning("quantization", self.quantization) if self.quantization else ""
        if self.task == "qlora":
            object.__setattr__(self, "task", "lora")
            narrow = narrow or "nf4-dq"
        if self.quantization is not None or self.task != "serve":
            object.__setattr__(self, "quantization", "" if narrow == "none" else narrow)
        if self.quantization and self.task in ("train", "dpo"):
            _refuse("quantization", "task lora or serve", self.task, "Quantised weights are not trained.")
        if self.cache_dtype not in CACHES:
            known = ", ".join(name for name in CACHES if name)
            _refuse("cache_dtype", f"one of {known}", repr(self.cache_dtype), "Choose one.")
        served = ("cache_dtype", "adapters", "itl_s", "prompt", "answer", "rate", "ttft_s")
        if self.task != "serve" and (given := [name for name in served if getattr(self, name)]):
            _refuse(" and ".join(given), "task serve", self.task, "Leave them out.")
        if (self.prompt is None) != (self.answer is None):
            _refuse("prompt and answer", "tokens of both", f"{self.prompt} and {self.answer}", "State both.")
        if self.prompt is not None and self.answer is not None:
            object.__setattr__(self, "seq", self.prompt + self.answer)
        elif self.rate is not None:
            _refuse("rate", "prompt and answer beside it", "none", "State the tokens of a request.")
        if self.ttft_s is not None and self.rate is None:
            _refuse("ttft", "a rate beside it", "none", "State the requests a second.")


def _refuse(where: str, expected: str, got: str, hint: str) -> NoReturn:
    raise ScenarioError(message(f"size, {where}", expected, got, hint))


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
            found.append((board, count or _LARGEST))
        elif asked:
            raise ScenarioError(
                message(f"board {name}", "a data sheet with peak and bandwidth", "none", "Name another.")
            )
    return found


def settle_wish(wish: Wish) -> tuple[Wish, Architecture, list[tuple[Board, int]], list[str]]:
    """Describe the model and find the boards, with the formats and lengths that the model allows.

    Returns
    -------
    tuple
        The wish with what was open, the model, boards with their numbers, and what was assumed.
    """
    published = published_preset(wish.model) if wish.task == "serve" else None
    model, assumed = (published, []) if published else describe(wish.model)
    if model.positions and wish.seq > model.positions:
        if wish.prompt:
            most = f"at most {model.positions:,} tokens, the context of {model.name}"
            _refuse("prompt and answer", most, f"{wish.seq:,}", "Shorten one of them.")
        assumed.append(
            f"seq: {wish.seq} is beyond the {model.positions} positions of {model.name}, which are taken"
        )
        wish = replace(wish, seq=model.positions)
    elif wish.prompt and not model.positions:
        assumed.append(f"context: {model.name} is taken to allow {wish.seq:,} tokens; see its config.json")
    if wish.quantization is None:
        wish = replace(wish, quantization=model.released)
        if model.released:
            assumed.append(f"weights: {wish.quantization}, as published; --quantization bf16 for 16 bits")
    if wish.boards:
        named, taken = settled(wish.boards)
        wish = replace(wish, boards=named)
        assumed += taken
    else:
        assumed.append("boards: all with a list price; name those at hand with --gpus BOARD=COUNT or --data")
    boards = boards_of(wish.boards)
    unpriced = [board.name for board, _ in boards if not has_price(board.name)]
    if unpriced:
        assumed.append(f"price: none is known of {', '.join(unpriced)}, plans of it have no cost")
    return wish, model, boards, assumed


def tags_of(wish: Wish) -> frozenset[str]:
    """Words for the situation, which the conditions of the tools' table name."""
    kind = "lora" if wish.task == "lora" else "full"
    return frozenset({"sharded", kind, wish.task, *(["quantised"] if wish.quantization else [])})
