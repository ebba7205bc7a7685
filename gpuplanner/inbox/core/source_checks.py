"""What the quality report says of the oddities of single sources, from ``source_checks.csv``."""

from __future__ import annotations

import csv
import functools
from importlib import resources

import polars as pl

from gpuplanner.inbox.core.findings import Check, Finding


def source_check(name: str, condition: pl.Expr) -> Check:
    """Check of rows of a source.

    Parameters
    ----------
    name : str
        Name of the check in ``source_checks.csv``, which has its words, severity and effect.
    condition : polars.Expr
        True for the rows concerned.

    Examples
    --------
    >>> source_check("bill: no list cost", pl.col("ListCost").is_null()).severity
    'info'
    """
    row = _checks()[name]
    return Check(row["check"], row["severity"], row["effect"], condition)


def source_finding(name: str, rows: int, example: str = "", gpu_hours: float | None = None) -> Finding:
    """Finding in so many rows, by its name in ``source_checks.csv``.

    Examples
    --------
    >>> source_finding("samples: clock went back", 2).severity
    'warning'
    """
    row = _checks()[name]
    return Finding(row["check"], row["severity"], rows, row["effect"], example, gpu_hours)


def check_words(name: str) -> str:
    """What a check says of its rows."""
    return _checks()[name]["check"]


@functools.cache
def _checks() -> dict[str, dict[str, str]]:
    text = (resources.files("gpuplanner.inbox.core") / "source_checks.csv").read_text(encoding="utf-8")
    return {row["name"]: row for row in csv.DictReader(text.splitlines())}
