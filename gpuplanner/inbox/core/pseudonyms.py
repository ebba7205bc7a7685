"""A trace without names: for sharing, or where the law asks for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from gpuplanner.errors import PrivacyError, examples, message
from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.core.findings import Finding, report
from gpuplanner.privacy import pseudonym, pseudonymise, rows_that_name

NAMED = ("user", "tenant", "job_id", "job_name", "partition")
"""Columns that may name people. Job ids do where they are names of pods, job names where people sign them, partitions
where a group has its own."""
WITHHELD = "(withheld)"
WORD = re.compile(r"[\w.@-]+")


def without_names(trace: Dataset, key: bytes, columns: Sequence[str] = NAMED) -> Dataset:
    """Replace names of a trace by pseudonyms, in every table that has them.

    Lines of rejected rows and examples in the quality report are withheld, since they quote the source. The report
    warns where a name that was replaced still stands in a column that was kept.

    Examples
    --------
    >>> jobs = pl.DataFrame({"job_id": ["1"], "user": ["alice"], "tenant": ["vision"]})
    >>> rejects = pl.DataFrame({"raw": ["alice|??"]})
    >>> quality = report([Finding("no GPU", "info", 1, "none", "job of alice")])
    >>> trace = Dataset({"jobs": jobs}, rejects, quality, {"notes": ["account of alice: vision"]})
    >>> private = without_names(trace, bytes(32), ["user"])
    >>> private.jobs["user"][0], private.rejects["raw"][0], private.provenance["notes"]
    ('user-e1085d492d', '(withheld)', ['account of user-e1085d492d: vision'])
    """
    strange = [name for name in columns if name not in NAMED]
    if strange or not columns:
        got = examples(strange) if strange else "none"
        raise PrivacyError(message("pseudonyms", f"columns of {examples(list(NAMED))}", got, "Name them."))

    names = {
        column: sorted(
            {
                name
                for table in trace.tables.values()
                if column in table.columns
                for name in table[column].drop_nulls().unique()
            }
        )
        for column in columns
    }
    known = {name: pseudonym(name, key, column) for column in columns for name in names[column]}
    quality = trace.quality.with_columns(example=pl.lit(WITHHELD))
    left = [
        finding
        for table in trace.tables.values()
        for column in columns
        for finding in _left(table, column, names[column], columns)
    ]
    return replace(
        trace,
        tables={
            name: pseudonymise(table, key, [column for column in columns if column in table.columns])
            for name, table in trace.tables.items()
        },
        rejects=trace.rejects.with_columns(raw=pl.lit(WITHHELD)),
        quality=report([*left, *(Finding(*row) for row in quality.iter_rows())]),
        provenance={**_scrubbed(trace.provenance, known), "pseudonyms": list(columns)},
    )


def _left(table: pl.DataFrame, column: str, names: Sequence[str], replaced: Sequence[str]) -> list[Finding]:
    """A warning for each column in which names of `column` can still be read."""
    return [
        Finding(
            f"{kept}: holds a {column} that was replaced elsewhere",
            "warning",
            rows,
            "who it is can be read there: replace that column too, or leave it out before it is shared",
            WITHHELD,
        )
        for kept, rows in rows_that_name(table, names, but=replaced).items()
    ]


def _scrubbed(value: Any, known: Mapping[str, str]) -> Any:  # noqa: ANN401 - anything that JSON can hold
    """Replace names wherever they stand as words of a text."""
    if isinstance(value, str):
        return WORD.sub(lambda word: known.get(word.group(), word.group()), value)
    if isinstance(value, Mapping):
        return {name: _scrubbed(part, known) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_scrubbed(part, known) for part in value]
    return value
