"""Errors, warnings, and names that a user mistyped.

Every message has four parts, in this order: what and where; what was expected; what came, with a count
and at most five examples; what to do. An error that is given these four joins them with :func:`message`.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

MAX_EXAMPLES = 5
OTHER_FILE = "Give the right file, or write it again."
OTHER_SOURCE = "Write the file again, or name its source (gpuplanner ingest --list)."
"""What to do where a file is not what was asked for, or not of the source that was named."""

_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""Characters that a terminal obeys instead of showing them: controls, the order of letters, and what is no text."""


class GpuPlannerError(Exception):
    """Base of every error that gpuplanner raises on purpose: of one text, or of the four parts of a message.

    Examples
    --------
    >>> str(GpuPlannerError("fleet.gpus", "a whole number above 0", "-8", "Give the number of GPUs."))
    'fleet.gpus: expected a whole number above 0; got -8. Give the number of GPUs.'
    """

    def __init__(self, *parts: str) -> None:
        super().__init__(message(*parts) if len(parts) > 1 else parts[0])


class SchemaError(GpuPlannerError, ValueError):
    """A table does not have the columns, types or values of its schema."""


class TraceFormatError(GpuPlannerError, ValueError):
    """A source file cannot be read as what it was said to be."""


class GeometryError(GpuPlannerError, ValueError):
    """A board, profile, placement or layout that does not exist or cannot be placed."""


class ScenarioError(GpuPlannerError, ValueError):
    """A scenario, configuration file or parameter that cannot be used as it stands."""


class OutputError(GpuPlannerError, OSError):
    """A result could not be written; whatever stood there before is intact."""


class InfeasiblePlanError(GpuPlannerError, ValueError):
    """A plan was required and none exists, or none was found in time."""


class CheckError(GpuPlannerError, ValueError):
    """What was computed does not hold when it is checked again from the question alone."""


class PrivacyError(GpuPlannerError, ValueError):
    """A key for pseudonyms cannot be used, or what is asked for would show names."""


class MissingDependencyError(GpuPlannerError, ImportError):
    """An optional library is not installed."""


class WorkerError(GpuPlannerError, RuntimeError):
    """Processes or machines that work was given to are gone."""


class GpuPlannerWarning(UserWarning):
    """Something that the user should know but that does not stop the work."""


def printable(text: str) -> str:
    r"""Text as a terminal may get it: what it would obey is written as ``\u001b``, lines and tabs stay.

    The form is that of JSON and YAML, so that their texts say the same as before.

    Examples
    --------
    >>> printable("a\x1b[2J\n")
    'a\\u001b[2J\n'
    """
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def file_name(path: str | Path) -> str:
    r"""Name of a file without its folder, as text: bytes that are no UTF-8 are written as ``\xff``.

    Examples
    --------
    >>> file_name("logs/log\udce9.csv")
    'log\\xe9.csv'
    """
    return _one_line(os.fsencode(Path(path).name).decode("utf-8", "backslashreplace"))


def message(what: str, expected: str, got: str, todo: str) -> str:
    """Join the four parts of an error message.

    Examples
    --------
    >>> message("fleet.gpus", "a whole number above 0", "-8", "Give the number of GPUs.")
    'fleet.gpus: expected a whole number above 0; got -8. Give the number of GPUs.'
    """
    what, expected, got, todo = map(_one_line, (what, expected, got, todo))
    return f"{what}: expected {expected}; got {got}. {todo}"


def require_sound(what: str, faults: Sequence[str]) -> None:
    """Let nothing be shown or written that its own check refuses.

    Examples
    --------
    >>> require_sound("packing of jobs.txt", [])
    >>> require_sound("packing of jobs.txt", ["bin 0 holds 110 of 100"])
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.CheckError: packing of jobs.txt: expected an answer that its check accepts; got 1 fault:
    'bin 0 holds 110 of 100'. Nothing was written; please report it with the input.
    """
    if faults:
        got = f"{len(faults)} fault{'s' * (len(faults) > 1)}: {examples(faults)}"
        todo = "Nothing was written; please report it with the input."
        raise CheckError(what, "an answer that its check accepts", got, todo)


def first_line(error: BaseException) -> str:
    r"""What an error of a library says first, or its kind.

    Examples
    --------
    >>> first_line(ValueError("no such column\nhere is the plan")), first_line(ValueError())
    ('no such column', 'ValueError')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _one_line(text: str) -> str:
    """What came from outside may hold anything; in a message it is one line of plain characters."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def examples(values: Sequence[object]) -> str:
    """Print at most five of the values, and say how many more there are.

    Examples
    --------
    >>> examples(["a", "b"])
    "'a', 'b'"
    >>> examples(range(8))
    '0, 1, 2, 3, 4 and 3 more'
    """
    shown = ", ".join(repr(value) for value in values[:MAX_EXAMPLES])
    rest = len(values) - MAX_EXAMPLES
    return f"{shown} and {rest} more" if rest > 0 else shown


FEW = 8
"""Names that a message lists in full."""


def nearest(text: str, choices: Iterable[str]) -> list[str]:
    """Known names that look like the text, best first.

    Examples
    --------
    >>> nearest("quantil", ["quantile", "seed"])
    ['quantile']
    """
    by_fold = {choice.casefold(): choice for choice in choices}
    return [by_fold[key] for key in difflib.get_close_matches(text.casefold(), by_fold, n=3, cutoff=0.6)]


def resolve(text: str, choices: Iterable[str], *, what: str, error: type[GpuPlannerError] = GpuPlannerError) -> str:
    """Return the choice that equals the text, else the only one that begins with it (case ignored).

    Examples
    --------
    >>> resolve("a30", ["A30-24GB", "A100-40GB"], what="gpu_model")
    'A30-24GB'
    >>> resolve("eassy", ["strict", "easy"], what="queue")
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.GpuPlannerError: queue 'eassy' is unknown: expected one of strict, easy; got 'eassy'. ...
    """
    names = list(choices)
    fold = text.casefold()
    exact = [name for name in names if name.casefold() == fold]
    begins = [name for name in names if fold and name.casefold().startswith(fold)]
    if len(exact) == 1:
        return exact[0]
    if len(begins) == 1:
        return begins[0]
    if begins:
        todo = "Give more letters of one of them."
        raise error(f"{what} {text!r} is ambiguous", "one name", examples(begins), todo)
    near = nearest(text, names)
    expected = f"one of {', '.join(names)}" if len(names) <= FEW else f"one of {len(names)} known names"
    todo = f"Did you mean {examples(near)}?" if near else f"Choose one of {examples(names)}."
    raise error(f"{what} {text!r} is unknown", expected, repr(text), todo)
