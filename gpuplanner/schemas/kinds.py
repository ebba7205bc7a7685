"""Columns with their meaning and unit: the tables of ``columns.csv``, and single columns of other declarations."""

from __future__ import annotations

import csv
import functools
import json
import re
from collections.abc import Callable, Mapping
from importlib import resources

import dataframely as dy
import polars as pl

from gpuplanner.schemas.vocabulary import BUCKETS, JOB_STATES

DECIMAL_DIGITS, DECIMAL_PLACES = 38, 18
DECIMAL = pl.Decimal(DECIMAL_DIGITS, DECIMAL_PLACES)
"""Money and priced amounts, exact: bills give up to 18 decimals, and sums must not drift."""

COLUMN_KINDS: Mapping[str, Callable[..., dy.Column]] = {
    "text": dy.String,
    "time": functools.partial(dy.Datetime, time_unit="us", time_zone="UTC"),
    "date": dy.Date,
    "number": dy.Float64,
    "count": dy.Int32,
    "large count": dy.Int64,
    "bool": dy.Bool,
    "decimal": functools.partial(dy.Decimal, DECIMAL_DIGITS, DECIMAL_PLACES),
    "money": functools.partial(dy.Decimal, 18, 2),
    "job state": functools.partial(dy.Enum, JOB_STATES),
    "bucket": functools.partial(dy.Enum, BUCKETS),
    "absence": functools.partial(dy.Enum, ("reserved", "reconfiguring", "down")),
    "resource": functools.partial(dy.Enum, ("gpu", "node")),
}
"""Kind of a column in ``columns.csv`` → its type. Instants are in UTC, to the microsecond."""


def declared(schema: type[dy.Schema]) -> type[dy.Schema]:
    """Give a table the columns that ``columns.csv`` declares for it: kind, bounds, unit and meaning of each."""
    rows = [row for row in _declared_columns() if row["table"] == table_name(schema.__name__)]
    members = {"__doc__": schema.__doc__, "__module__": schema.__module__}
    columns = {row["column"]: _column(row) for row in rows}
    return type(schema.__name__, (schema,), members | columns)


def table_name(class_name: str) -> str:
    """Name of a table by that of its class.

    Examples
    --------
    >>> table_name("QueueQuotas")
    'queue_quotas'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "_", class_name).lower()


@functools.cache
def _declared_columns() -> list[dict[str, str]]:
    text = (resources.files("gpuplanner.schemas") / "columns.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _column(row: Mapping[str, str]) -> dy.Column:
    bounds = {bound: json.loads(row[name]) for bound, name in (("min", "low"), ("max", "high")) if row[name]}
    about = meaning(row["meaning"], row["unit"])
    return COLUMN_KINDS[row["kind"]](nullable=row["nullable"] == "yes", metadata=about, **bounds)


def meaning(text: str, unit: str = "") -> dict[str, str]:
    """Metadata of a column: what it means, and in which unit."""
    return {"meaning": text, "unit": unit}


def text(text: str, *, nullable: bool = False) -> dy.String:
    """Text."""
    return dy.String(nullable=nullable, metadata=meaning(text))


def number(
    text: str, unit: str = "", *, nullable: bool = False, low: float | None = 0.0, high: float | None = None
) -> dy.Float64:
    """Floating-point numbers between bounds."""
    return dy.Float64(nullable=nullable, min=low, max=high, metadata=meaning(text, unit))


def count(text: str, *, nullable: bool = False, low: int = 0) -> dy.Int32:
    """Whole numbers."""
    return dy.Int32(nullable=nullable, min=low, metadata=meaning(text))
