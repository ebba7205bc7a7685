"""Resolve what a user typed to one known name, or say which names were near."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from gpuplanner.errors import GpuPlannerError, examples, message

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
    return [by_fold[key] for key in difflib.get_close_matches(text.casefold(), by_fold, n=3, cutoff=0.5)]


def resolve(
    text: str, choices: Iterable[str], *, what: str, error: type[GpuPlannerError] = GpuPlannerError
) -> str:
    """Return the choice that equals the text, else the only one that begins with it (case ignored).

    Examples
    --------
    >>> resolve("a30", ["A30-24GB", "A100-40GB"], what="board")
    'A30-24GB'
    >>> resolve("eassy", ["strict", "easy"], what="queue")
    Traceback (most recent call last):
        ...
    gpuplanner.errors.GpuPlannerError: queue 'eassy' is unknown: expected one of strict, easy; got 'eassy'. Did you ...
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
        text_out = message(
            f"{what} {text!r} is ambiguous", "one name", examples(begins), "Give more letters of one of them."
        )
        raise error(text_out)
    near = nearest(text, names) or names
    text_out = message(
        f"{what} {text!r} is unknown",
        f"one of {', '.join(names)}" if len(names) <= FEW else f"one of {len(names)} known names",
        repr(text),
        f"Did you mean {examples(near)}?",
    )
    raise error(text_out)
