"""Errors and warnings of gpuplanner, and suggestions for mistyped names.

Every message has four parts, in this order: the subject and its location; the expected value; the value found, with a
count and at most five examples; the fix. :class:`GpuPlannerError` joins four parts with :func:`format_message`.
"""

from __future__ import annotations

import difflib
import os
import re
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path

MAX_EXAMPLES = 5
"""Number of values that a message lists before "and n more"."""
REPLACE_FILE_FIX = "Give the right file, or write it again."
"""Fourth part of an error message (the fix) about a file with unexpected content."""
NAME_SOURCE_FIX = "Write the file again, or name its source (gpuplanner ingest --list)."
"""Fourth part of an error message (the fix) about a file that is not of the stated source."""

_CONTROL_CHARACTER_PATTERN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""Characters that a terminal interprets instead of displaying: control codes, text direction marks, surrogates and
noncharacters."""


class GpuPlannerError(Exception):
    """Base class of all errors that gpuplanner raises on purpose: one text, or the four parts of a message.

    Examples
    --------
    >>> str(GpuPlannerError("fleet.gpus", "a whole number above 0", "-8", "Give the number of GPUs."))
    'fleet.gpus: expected a whole number above 0; got -8. Give the number of GPUs.'
    """

    def __init__(self, *parts: str) -> None:
        """Store one text, or join the four parts of a message."""
        super().__init__(format_message(*parts) if len(parts) > 1 else parts[0])

    def _render_traceback_(self) -> list[str]:
        """Return what IPython prints: the line of the user's cell and the message, without the lines of libraries."""
        cells = [frame for frame in traceback.extract_tb(self.__traceback__) if frame.name == "<module>"]
        return [*(f"Line {frame.lineno}: {frame.line}" for frame in cells[-1:]), f"{type(self).__name__}: {self}"]


class SchemaError(GpuPlannerError, ValueError):
    """A table does not have the columns, types or values of its schema."""


class TraceFormatError(GpuPlannerError, ValueError):
    """A source file does not have the format that was stated for it."""


class GeometryError(GpuPlannerError, ValueError):
    """A GPU model, MIG profile, placement or layout does not exist or cannot be placed."""


class ScenarioError(GpuPlannerError, ValueError):
    """A scenario, configuration file or parameter is invalid."""


class OutputError(GpuPlannerError, OSError):
    """A result could not be written; the previous file or folder is intact."""


class InfeasiblePlanError(GpuPlannerError, ValueError):
    """A plan was required, but none exists or none was found within the limits."""


class VerificationError(GpuPlannerError, ValueError):
    """An independent check rejected a computed result."""


class PrivacyError(GpuPlannerError, ValueError):
    """A key for pseudonyms is unusable, or a request would reveal names."""


class MissingDependencyError(GpuPlannerError, ImportError):
    """An optional library is not installed."""


class WorkerError(GpuPlannerError, RuntimeError):
    """Worker processes or machines are no longer available."""


class GpuPlannerWarning(UserWarning):
    """A condition that the user should know about but that does not stop the run."""


def escape_controls(text: str) -> str:
    r"""Escape control characters as ``\u001b``, so that a terminal shows them; line ends and tabs stay.

    The escapes are those of JSON and YAML, so texts in these formats keep their meaning.

    Examples
    --------
    >>> escape_controls("a\x1b[2J\n")
    'a\\u001b[2J\n'
    """
    return _CONTROL_CHARACTER_PATTERN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def printable_file_name(path: str | Path) -> str:
    r"""Return the name of a file without its folder; bytes that are not UTF-8 become ``\xff``.

    Examples
    --------
    >>> printable_file_name("logs/log\udce9.csv")
    'log\\xe9.csv'
    """
    return _escape_to_one_line(os.fsencode(Path(path).name).decode("utf-8", "backslashreplace"))


def format_message(subject: str, expected: str, got: str, todo: str) -> str:
    """Join the four parts of an error message.

    Parameters
    ----------
    subject : str
        The value that is wrong and its location.
    expected, got : str
        The expected value, and the value found.
    todo : str
        The fix, as a sentence.

    Returns
    -------
    str
        One line without control characters.

    Examples
    --------
    >>> format_message("fleet.gpus", "a whole number above 0", "-8", "Give the number of GPUs.")
    'fleet.gpus: expected a whole number above 0; got -8. Give the number of GPUs.'
    """
    subject, expected, got, todo = map(_escape_to_one_line, (subject, expected, got, todo))
    return f"{subject}: expected {expected}; got {got}. {todo}"


def require_no_faults(subject: str, faults: Sequence[str]) -> None:
    """Raise :class:`VerificationError` if a check of a result found faults, so that the result is not shown or written.

    Examples
    --------
    >>> require_no_faults("packing of jobs.txt", [])
    >>> require_no_faults("packing of jobs.txt", ["bin 0 holds 110 of 100"])
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.VerificationError: packing of jobs.txt: expected an answer that its check accepts; got 1
    fault: 'bin 0 holds 110 of 100'. Nothing was written; please report it with the input.
    """
    if faults:
        got = f"{len(faults)} fault{'s' * (len(faults) > 1)}: {examples(faults)}"
        todo = "Nothing was written; please report it with the input."
        raise VerificationError(subject, "an answer that its check accepts", got, todo)


def first_error_line(error: BaseException) -> str:
    r"""Return the first line of an error's text, or its class name if the text is empty.

    Examples
    --------
    >>> first_error_line(ValueError("no such column\nhere is the plan")), first_error_line(ValueError())
    ('no such column', 'ValueError')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _escape_to_one_line(text: str) -> str:
    """Escape line ends, tabs and control characters, so that untrusted text stays on one line of a message."""
    return escape_controls(text).replace("\n", "\\n").replace("\t", "\\t")


def examples(values: Sequence[object]) -> str:
    """Format the first five values for a message, and the number of the others.

    Examples
    --------
    >>> examples(["a", "b"])
    "'a', 'b'"
    >>> examples(range(8))
    '0, 1, 2, 3, 4 and 3 more'
    """
    shown = ", ".join(repr(value) for value in values[:MAX_EXAMPLES])
    hidden_count = len(values) - MAX_EXAMPLES
    return f"{shown} and {hidden_count} more" if hidden_count > 0 else shown


MAX_LISTED_NAMES = 8
"""Number of allowed names up to which a message lists all of them."""


def nearest_names(text: str, choices: Iterable[str]) -> list[str]:
    """List at most three known names that resemble the text, best first (case ignored).

    Examples
    --------
    >>> nearest_names("quantil", ["quantile", "seed"])
    ['quantile']
    """
    by_fold = {choice.casefold(): choice for choice in choices}
    return [by_fold[key] for key in difflib.get_close_matches(text.casefold(), by_fold, n=3, cutoff=0.6)]


def suggest_name(text: str, choices: Iterable[str]) -> str:
    """Return the nearest known name as a question to append to a wrong one; empty if none resembles it.

    Examples
    --------
    >>> suggest_name("quantil", ["quantile", "seed"]), suggest_name("x", ["quantile", "seed"])
    (" (did you mean 'quantile'?)", '')
    """
    near = nearest_names(text, choices)
    return f" (did you mean {near[0]!r}?)" if near else ""


def resolve_name(
    text: str, choices: Iterable[str], *, subject: str, error: type[GpuPlannerError] = GpuPlannerError
) -> str:
    """Return the name that equals the text, or the only one that begins with it (case ignored).

    Parameters
    ----------
    text : str
        Name or beginning of a name, as typed.
    choices : iterable of str
        Allowed names.
    subject : str
        Word for the kind of name, for the message.
    error : type
        Class of the error.

    Returns
    -------
    str
        One of `choices`.

    Raises
    ------
    GpuPlannerError
        Of class `error`, if no name or several names match; the message suggests similar names.

    Examples
    --------
    >>> resolve_name("a30", ["A30-24GB", "A100-40GB"], subject="gpu_model")
    'A30-24GB'
    >>> resolve_name("eassy", ["strict", "easy"], subject="queue")
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
        raise error(f"{subject} {text!r} is ambiguous", "one name", examples(begins), todo)
    near = nearest_names(text, names)
    is_short = len(names) <= MAX_LISTED_NAMES
    expected = f"one of {', '.join(names)}" if is_short else f"one of {len(names)} known names"
    todo = f"Did you mean {examples(near)}?" if near else f"Choose one of {'these' if is_short else examples(names)}."
    raise error(f"{subject} {text!r} is unknown", expected, repr(text), todo)
