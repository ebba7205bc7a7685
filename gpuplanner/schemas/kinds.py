"""Columns with their meaning and unit, for the declarations of tables."""

from __future__ import annotations

import dataframely as dy
import polars as pl

DECIMAL_DIGITS, DECIMAL_PLACES = 38, 18
DECIMAL = pl.Decimal(DECIMAL_DIGITS, DECIMAL_PLACES)
"""Money and priced amounts, exact: bills give up to 18 decimals, and sums must not drift."""


def meaning(text: str, unit: str = "") -> dict[str, str]:
    """Metadata of a column: what it means, and in which unit."""
    return {"meaning": text, "unit": unit}


def time(text: str, *, nullable: bool = False) -> dy.Datetime:
    """UTC instants to the microsecond."""
    return dy.Datetime(nullable=nullable, time_unit="us", time_zone="UTC", metadata=meaning(text, "UTC"))


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


def decimal(text: str, unit: str = "", *, nullable: bool = False) -> dy.Decimal:
    """Exact decimal numbers of either sign."""
    return dy.Decimal(DECIMAL_DIGITS, DECIMAL_PLACES, nullable=nullable, metadata=meaning(text, unit))
