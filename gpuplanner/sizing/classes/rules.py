"""Rules that name the class of a job: data in a YAML file that is shipped with the package."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl

from gpuplanner.errors import ScenarioError, examples, message
from gpuplanner.files.text import read_yaml
from gpuplanner.names import nearest
from gpuplanner.sizing.classes.facts import BEFORE_RUN, NUMBERS, TEXTS, spaced
from gpuplanner.strict_yaml import LinedMapping

CLASSES = ("pretraining", "fine-tuning", "evaluation", "inference", "interactive")
"""Classes that a rule may name."""

MAX_TEXT = 200


@dataclass(frozen=True)
class Words:
    """Condition: one of the words stands in a name.

    Attributes
    ----------
    fact : str
        One of :data:`~gpuplanner.sizing.classes.facts.TEXTS`.
    words : tuple of str
        Words, or several words with a blank between them, in small letters.
    """

    fact: str
    words: tuple[str, ...]

    def holds(self) -> pl.Expr:
        """Whether the condition holds; null where the name is not known."""
        return spaced(pl.col(self.fact)).str.contains_any([f" {word} " for word in self.words])


@dataclass(frozen=True)
class Range:
    """Condition: a number lies in a half-open range.

    Attributes
    ----------
    fact : str
        One of :data:`~gpuplanner.sizing.classes.facts.NUMBERS`.
    low, high : float
        At or above `low`, below `high`; infinite where the rule does not say. Of the hour, a `low` above `high`
        passes midnight.
    """

    fact: str
    low: float
    high: float

    def holds(self) -> pl.Expr:
        """Whether the condition holds; null where the number is not known."""
        above, below = pl.col(self.fact) >= self.low, pl.col(self.fact) < self.high
        return above | below if self.low > self.high else above & below


Condition: TypeAlias = Words | Range


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes
    ----------
    name : str
        Name, unique among the rules of a file.
    job_class : str
        Class that it gives, one of :data:`CLASSES`.
    conditions : tuple of Words or Range
        What must hold, all of it.
    because, source : str
        Why the rule may be right, and who says so; empty if the file does not say.
    """

    name: str
    job_class: str
    conditions: tuple[Condition, ...]
    because: str = ""
    source: str = ""

    @property
    def before_run(self) -> bool:
        """Whether everything that the rule looks at is known at submission."""
        return all(condition.fact in BEFORE_RUN for condition in self.conditions)

    def holds(self) -> pl.Expr:
        """Whether all conditions hold; what is not known does not hold."""
        return pl.all_horizontal(condition.holds().fill_null(False) for condition in self.conditions)


@functools.cache
def shipped_rules() -> tuple[Rule, ...]:
    """Rules that come with the package.

    Examples
    --------
    >>> sorted({rule.job_class for rule in shipped_rules()}) == sorted(CLASSES)
    True
    """
    with resources.as_file(resources.files("gpuplanner.sizing.classes") / "rules.yaml") as path:
        return read_rules(path)


def read_rules(path: str | Path) -> tuple[Rule, ...]:
    r"""Read rules from a YAML file, in the order in which they are tried.

    Parameters
    ----------
    path : str or Path
        File with one key, ``rules``: a list of mappings with ``name``, ``class``, ``when`` and, if wanted,
        ``because`` and ``source``. ``when`` maps facts to lists of words, or to ``{from: low, below: high}``.

    Returns
    -------
    tuple of Rule
        At least one.

    Raises
    ------
    ScenarioError
        If the file cannot be read, or a key, value or name is not as declared; the message names the line, the
        value and the nearest key.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "rules.yaml"
    ...     _ = path.write_text("rules:\n- {name: big, class: pretraining, when: {gpu: {from: 64}}}\n")
    ...     read_rules(path)
    Traceback (most recent call last):
        ...
    gpuplanner.errors.ScenarioError: ...rules.yaml line 2, rule 'big', when: expected one of ...; got 'gpu'. Did
    you mean 'gpus'?
    """
    where = Path(path).name
    document = read_yaml(path)
    listed = _mapping(document, ("rules",), where).get("rules")
    if not isinstance(listed, list) or not listed:
        raise _fault(where, "'rules' with a list of at least one rule", listed, "Add rules.")
    rules = tuple(_rule(item, f"{where}, rule {number}") for number, item in enumerate(listed, start=1))
    names = [rule.name for rule in rules]
    again = sorted({name for name in names if names.count(name) > 1})
    if again:
        raise _fault(where, "rules of different names", examples(again), "Rename one of each.")
    return rules


def _rule(item: object, where: str) -> Rule:
    known = _mapping(item, ("name", "class", "because", "source", "when"), where)
    where = _at(where, known, "name")
    name = _text(known, "name", where)
    where = f"{where.rpartition(', ')[0]}, rule {name!r}"
    job_class = _text(known, "class", where)
    if job_class not in CLASSES:
        raise _fault(
            _at(where, known, "class") + ", class", f"one of {', '.join(CLASSES)}", job_class,
            _did_you_mean(job_class, CLASSES),
        )  # fmt: skip
    if "when" not in known:
        raise _fault(where, "'when' with at least one condition", "none", "Say when the rule holds.")
    when = _mapping(known["when"], (*TEXTS, *NUMBERS), f"{_at(where, known, 'when')}, when")
    if not when:
        raise _fault(_at(where, known, "when"), "at least one condition in 'when'", "none", "Add one.")
    conditions = tuple(
        _condition(fact, value, f"{_at(where, when, fact)}, {fact}") for fact, value in when.items()
    )
    because, source = (_text(known, key, where) if key in known else "" for key in ("because", "source"))
    return Rule(name, job_class, conditions, because, source)


def _condition(fact: str, value: object, where: str) -> Condition:
    if fact in TEXTS:
        words = value if isinstance(value, list) else [value]
        good = [" ".join(_letters(word).split()) for word in words if isinstance(word, str)]
        if not words or len(good) < len(words) or not all(good):
            raise _fault(where, "a list of words", value, "Write for example [eval, benchmark].")
        return Words(fact, tuple(good))
    if not isinstance(value, dict):
        raise _fault(where, "{from: ..., below: ...}", value, "Give one bound or both.")
    bounds = _mapping(value, ("from", "below"), where)
    for key, bound in bounds.items():
        if isinstance(bound, bool) or not isinstance(bound, int | float) or not math.isfinite(bound):
            place = f"{_at(where, bounds, key)}, {key}"
            raise _fault(place, "a number", bound, f"Unit: {NUMBERS[fact]}.")
    low, high = float(bounds.get("from", -math.inf)), float(bounds.get("below", math.inf))
    if not bounds or low == high or (low > high and fact != "hour"):
        raise _fault(where, "a range that holds something", dict(value), "Put 'from' below 'below'.")
    return Range(fact, low, high)


def _letters(word: str) -> str:
    """The same folding as of names, on one word."""
    return str(pl.select(spaced(pl.lit(word))).item())


def _mapping(value: object, keys: tuple[str, ...], where: str) -> Mapping[str, Any]:
    """The mapping itself, if it has no keys but these."""
    if not isinstance(value, dict):
        raise _fault(where, f"a mapping with {', '.join(keys)}", value, "See the shipped rules.yaml.")
    for key in value:
        if key not in keys:
            raise _fault(
                _at(where, value, key), f"one of {', '.join(keys)}", key, _did_you_mean(str(key), keys)
            )
    return value


def _text(known: Mapping[str, Any], key: str, where: str) -> str:
    value = known.get(key)
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= MAX_TEXT:
        place = f"{_at(where, known, key)}, {key}"
        raise _fault(place, f"up to {MAX_TEXT} letters on one line", value, "Write it.")
    return value


def _at(where: str, known: Mapping[str, Any], key: str) -> str:
    """The place with the line of a key put behind the file name."""
    line = known.lines.get(key) if isinstance(known, LinedMapping) else None
    if line is None:
        return where
    file, comma, rest = where.partition(", ")
    return f"{file.partition(' line ')[0]} line {line}{comma}{rest}"


def _did_you_mean(text: str, known: tuple[str, ...]) -> str:
    near = nearest(text, known)
    return f"Did you mean {near[0]!r}?" if near else "Use one of these."


def _fault(where: str, expected: str, got: object, todo: str) -> ScenarioError:
    shown = got if isinstance(got, str) and got == "none" else repr(got)
    return ScenarioError(message(where, expected, shown[:MAX_TEXT], todo))
