"""What people write in a column, and what they mean: every word has one meaning, and others are refused."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from gpuplanner.catalog.loader import facts
from gpuplanner.errors import ScenarioError, message
from gpuplanner.names import nearest
from gpuplanner.sizing.predict.methods import TARGETS, method_names

_BETWEEN = re.compile(r"[^a-z0-9]+")
_PAIRS = re.compile(r"(?<![a-z0-9])dpo(?![a-z0-9])")


@functools.cache
def _known(kind: str) -> tuple[dict[str, list[frozenset[str]]], frozenset[str]]:
    """Meanings of a kind with the sets of words that say each, and words that say nothing."""
    rows = facts("training_words").filter(kind=kind).select("word", "called").iter_rows()
    said: dict[str, list[frozenset[str]]] = {}
    filler: frozenset[str] = frozenset()
    for word, called in rows:
        if word == "-":  # words that say nothing about the meaning, such as who does it
            filler = frozenset(called.split())
            continue
        names = [word, *called.split("|")]
        said[word] = [frozenset(_BETWEEN.sub(" ", name.lower()).split()) for name in names]
    return said, filler


@functools.lru_cache(4096)
def meaning(kind: str, text: str, *, column: str = "") -> str:
    """The meaning of a text: the one whose words cover it, in any order; else it is refused with the nearest word.

    Examples
    --------
    >>> meaning("quantization", "bnb.nf4 (double quant)"), meaning("precision", "BF16 true")
    ('nf4-dq', 'bf16-true')
    >>> meaning("optimizer", "adamv")
    Traceback (most recent call last):
        ...
    gpuplanner.errors.ScenarioError: row, optimizer: expected one of adamw, adamw8bit, ... Did you mean adamw? ...
    """
    said, filler = _known(kind)
    words = frozenset(_BETWEEN.sub(" ", text.lower()).split())
    bare = words - filler or words
    fitting: dict[str, int] = {}
    for name, ways in said.items():
        within = [way for way in ways if way <= bare]
        if within and frozenset().union(*within) >= bare:
            fitting[name] = max(map(len, within))
    if fitting and not text.lstrip().startswith("-"):
        return max(fitting, key=lambda name: fitting[name])
    spelled = {" ".join(sorted(way)): name for name, ways in said.items() for way in ways}
    near = nearest(" ".join(sorted(bare)), spelled) or nearest(text, said)
    hint = f"Did you mean {spelled.get(near[0], near[0])}?" if near else "Choose one."
    raise ScenarioError(
        message(f"row, {column or kind}", f"one of {', '.join(said)}", repr(text), f"{hint} Mend it.")
    )


@functools.lru_cache(1024)
def method_called(text: str) -> tuple[str, frozenset[str]]:
    """A training method and what was said with it.

    ``embeddings`` are trained too; ``quantised`` are the weights beside QLoRA and its kin; ``pairs`` of answers are
    compared, as DPO does (huggingface/trl trl/trainer/dpo_trainer.py: both go through the model as one batch).

    Examples
    --------
    >>> method_called("LoRA + embeddings"), method_called("Q-LoRA")[0]
    (('lora', frozenset({'embeddings'})), 'lora')
    >>> method_called("dpo"), method_called("LoRA, DPO")
    (('full', frozenset({'pairs'})), ('lora', frozenset({'pairs'})))
    """
    known = method_names()
    first, *others = [
        _BETWEEN.sub("_", part.lower()).strip("_") for part in re.split(r"[+,]", text) if part.strip()
    ] or [""]
    said = set()
    for other in others:
        if other.rstrip("s") not in ("embedding", "emb", "head", "lm_head", "embed"):
            first = f"{first}_{other}"
        else:
            said.add("embeddings")
    if (alone := _PAIRS.sub("", first).strip("_")) != first:
        said.add("pairs")
        first = alone or "full"
    name = known.get(first) or known.get(first.replace("_", ""))
    if name is None:
        near = sorted({known[one] for one in nearest(first, known)}, key=list(known.values()).index)
        hint = f"Did you mean {' or '.join(near)}?" if near else "Choose one."
        listed = ", ".join(sorted(set(known.values())))
        raise ScenarioError(message("row, method", f"one of {listed}", repr(text), f"{hint} Mend it."))
    if name in ("pretrain",) or first.startswith(("pretrain", "continued")):
        said.add("pretrain")
    if name in _NARROW:
        said.add("quantised")
    return _NARROW.get(name, name), frozenset(said)


_NARROW: Mapping[str, str] = {"qlora": "lora", "qdora": "dora", "qoft": "oft"}
"""Methods that say that the model beside them has 4 bits, and what they are otherwise."""


def switched(kind: str, row: Mapping[str, str], column: str) -> str:
    """The meaning of a column of a row, empty where the row does not say it."""
    return meaning(kind, row[column], column=column) if column in row else ""


_MODULE = re.compile(r"[A-Za-z0-9_.-]+")


@functools.lru_cache(1024)
def targets_called(text: str) -> tuple[str, ...]:
    """Matrices of a layer that a text names, in any of the ways adapter libraries name them.

    Examples
    --------
    >>> targets_called("q_proj, v_proj"), targets_called("all-linear")
    (('q', 'v'), ('q', 'k', 'v', 'o', 'gate', 'up', 'down'))
    """
    parts = _MODULE.findall(text) or [text]
    named = {each for part in parts for each in meaning("target", part, column="lora_targets").split()}
    return tuple(each for each in TARGETS if each in named)
