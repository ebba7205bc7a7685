"""A trace without names: for sharing, or where the law asks for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from gpuplanner.errors import PrivacyError, examples, message
from gpuplanner.inbox.core.trace import Trace
from gpuplanner.privacy import pseudonym, pseudonymise

NAMED = ("user", "tenant", "job_id", "job_name")
"""Columns that may name people. Job ids do where they are names of pods, job names where people sign them."""
WITHHELD = "(withheld)"
WORD = re.compile(r"[\w.@-]+")


def without_names(trace: Trace, key: bytes, columns: Sequence[str] = NAMED) -> Trace:
    """Replace names of a trace by pseudonyms, in every table that has them.

    Lines of rejected rows and examples in the quality report are withheld, since they quote the source.

    Parameters
    ----------
    trace : Trace
        As read.
    key : bytes
        From :func:`gpuplanner.privacy.read_key`.
    columns : sequence of {"user", "tenant", "job_id", "job_name"}
        What to replace.

    Returns
    -------
    Trace
        With the same rows and figures.

    Raises
    ------
    PrivacyError
        If a column is none of those.

    Examples
    --------
    >>> jobs = pl.DataFrame({"job_id": ["1"], "user": ["alice"], "tenant": ["vision"]})
    >>> rejects = pl.DataFrame({"raw": ["alice|??"]})
    >>> quality = pl.DataFrame({"example": ["job of alice"]})
    >>> trace = Trace(jobs, rejects, quality, {"notes": ["account of alice: vision"]})
    >>> private = without_names(trace, bytes(32), ["user"])
    >>> private.jobs["user"][0], private.rejects["raw"][0], private.provenance["notes"]
    ('user-e1085d492d', '(withheld)', ['account of user-e1085d492d: vision'])
    """
    strange = [name for name in columns if name not in NAMED]
    if strange or not columns:
        got = examples(strange) if strange else "none"
        raise PrivacyError(message("pseudonyms", f"columns of {examples(list(NAMED))}", got, "Name them."))

    def changed(table: pl.DataFrame | None) -> pl.DataFrame | None:
        if table is None:
            return None
        return pseudonymise(table, key, [name for name in columns if name in table.columns])

    known = {
        name: pseudonym(name, key, column)
        for column in columns
        for name in trace.jobs[column].drop_nulls().unique().sort()
    }
    return replace(
        trace,
        jobs=pseudonymise(trace.jobs, key, columns),
        inventory=changed(trace.inventory),
        samples=changed(trace.samples),
        quotas=changed(trace.quotas),
        rejects=trace.rejects.with_columns(raw=pl.lit(WITHHELD)),
        quality=trace.quality.with_columns(example=pl.lit(WITHHELD)),
        provenance={**_scrubbed(trace.provenance, known), "pseudonyms": list(columns)},
    )


def _scrubbed(value: Any, known: Mapping[str, str]) -> Any:  # noqa: ANN401 - anything that JSON can hold
    """Replace names wherever they stand as words of a text."""
    if isinstance(value, str):
        return WORD.sub(lambda word: known.get(word.group(), word.group()), value)
    if isinstance(value, Mapping):
        return {name: _scrubbed(part, known) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_scrubbed(part, known) for part in value]
    return value
