"""What sources call their columns, from ``columns.csv``: one row a column of each kind of file."""

from __future__ import annotations

import csv
import functools
import json
from importlib import resources
from typing import Any

from gpuplanner.inbox.core.lines.fields import Field
from gpuplanner.inbox.core.times import LAST_INSTANT, MAX_SECONDS
from gpuplanner.schemas.domain import MAX_GPUS_PER_JOB

MAX_AMOUNT = 1e12
"""A larger amount on one line of a bill is a fault of the file; sums of less stay exact."""

COLUMN_KINDS: dict[str, dict[str, Any]] = {
    "amount": {"kind": "decimal", "low": -MAX_AMOUNT, "high": MAX_AMOUNT},
    "seconds": {"kind": "number", "high": MAX_SECONDS},
    "epoch seconds": {"kind": "number", "high": LAST_INSTANT.timestamp()},
    "GPUs": {"kind": "number", "high": MAX_GPUS_PER_JOB},
    "UTC instant": {"kind": "instant", "naive_is_utc": True},
}
"""Kinds of columns beside those of :class:`Field`: money or a priced quantity, exact to 18 decimals and of either
sign; spans and instants in seconds; numbers of GPUs or nodes; instants that are UTC where no zone stands."""


def source_columns(table: str) -> dict[str, Field]:
    """Columns of one kind of file, in the words of the source, and how each is read.

    Examples
    --------
    >>> source_columns("philly_nodes")["total"].name
    'total'
    """
    return {row["column"]: _field(row) for row in _declared_columns() if row["table"] == table}


@functools.cache
def _declared_columns() -> list[dict[str, str]]:
    text = (resources.files("gpuplanner.inbox.core.lines") / "columns.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _field(row: dict[str, str]) -> Field:
    how = COLUMN_KINDS.get(row["kind"], {"kind": row["kind"]})
    bounds = {"high": json.loads(row["high"])} if row["high"] else {}
    return Field(
        row["name"], nullable=row["nullable"] == "yes", optional=row["optional"] == "yes", **how, **bounds
    )
