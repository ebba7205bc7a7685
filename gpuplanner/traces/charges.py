"""What every bill needs, whatever its columns are called: tags, currencies, periods and exact totals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from gpuplanner.traces.fields import Dialect, Field
from gpuplanner.traces.quality import Check
from gpuplanner.traces.reader import Rows
from gpuplanner.traces.reading import Reading, assemble_reading

CATEGORIES = ("Usage", "Purchase", "Tax", "Credit", "Adjustment")
"""Values of ``ChargeCategory`` in FOCUS 1.0 to 1.2."""

MAX_AMOUNT = 1e12
"""A larger amount on one line is a fault of the file; sums of less stay exact."""

BILL = Dialect(missing=frozenset({"NULL", "null"}), hint="Is this the right kind of bill?")

COSTS = ("BilledCost", "EffectiveCost", "ListCost")


def amount(name: str, *, nullable: bool = False, optional: bool = False) -> Field:
    """A field of money or a priced quantity, of either sign, exact to 18 decimals."""
    return Field(name, "decimal", nullable, optional, low=-MAX_AMOUNT, high=MAX_AMOUNT)


CHECKS = (
    Check(
        "equal to an earlier row in every field",
        "warning",
        "kept: a part of the bill delivered twice would be charged twice",
        ~pl.col("raw").is_first_distinct(),
    ),
    Check(
        "charged for another time than the billing period",
        "info",
        "months by billing period and months by charge period differ by such lines",
        ~pl.col("ChargePeriodStart").is_between(
            pl.col("BillingPeriodStart"), pl.col("BillingPeriodEnd"), closed="left"
        ),
    ),
    Check(
        "correction of an earlier bill",
        "info",
        "it is part of this bill's total, and of the hours of the period that it corrects",
        pl.col("ChargeClass") == "Correction",
    ),
    Check(
        "list cost not in the bill",
        "info",
        "savings against list prices leave such lines out",
        pl.col("ListCost").is_null(),
    ),
)


def assemble_bill(
    rows: Rows, *, source: str, checks: Sequence[Check] = (), notes: Sequence[str] = ()
) -> Reading:
    """Make a reading of charge lines that have the columns of ``schemas.TABLES["charges"]``.

    Parameters
    ----------
    rows : Rows
        Good rows; ``Tags`` as text in JSON: an object, or a list of objects with ``key`` and ``value``.
    source : str
        Name of the source.
    checks : sequence of Check
        Conditions of this source, beyond those on all bills.
    notes : sequence of str
        What a reader of the provenance must know.

    Returns
    -------
    Reading
        With the totals of each currency, as exact text: amounts of two currencies are never added.

    Raises
    ------
    TraceFormatError
        If no row is left.
    """
    rows = replace(rows, good=rows.good.with_columns(tidy=_tidy(pl.col("Tags"))))
    start, end = pl.col("BillingPeriodStart"), pl.col("BillingPeriodEnd")
    rows = rows.reject(
        {
            f"ChargeCategory: not one of {', '.join(CATEGORIES)}": ~pl.col("ChargeCategory").is_in(
                list(CATEGORIES)
            ),
            "currency: not three capital letters": ~pl.col("BillingCurrency").str.contains(r"^[A-Z]{3}$"),
            "billing period: its end is not after its start": end <= start,
            "charge period: it ends before it starts": pl.col("ChargePeriodEnd")
            < pl.col("ChargePeriodStart"),
            "Tags: not pairs of a name and a text, each name once": pl.col("tidy").is_null()
            & pl.col("Tags").is_not_null(),
        }
    )
    rows = replace(rows, good=rows.good.with_columns(Tags=pl.col("tidy")))
    currencies = rows.good["BillingCurrency"].unique().sort().to_list()
    several = Check(
        "lines in several currencies",
        "warning",
        "every figure stands once for each currency: amounts are never converted or added across them",
        pl.lit(len(currencies) > 1),
    )
    return assemble_reading(
        rows,
        "charges",
        source=source,
        order=["BillingPeriodStart", "ChargePeriodStart"],
        what="charge",
        checks=[several, *CHECKS, *checks],
        totals={
            f"{cost}_{currency}": exact_text(pl.col(cost).filter(pl.col("BillingCurrency") == currency).sum())
            for currency in currencies
            for cost in COSTS
        },
        span=("ChargePeriodStart", "ChargePeriodEnd"),
        notes=notes,
    )


def exact_text(amounts: pl.Expr) -> pl.Expr:
    """Decimals as text without trailing zeros.

    Examples
    --------
    >>> pl.select(exact_text(pl.lit("1.50").cast(pl.Decimal(38, 18)))).item()
    '1.5'
    """
    return amounts.cast(pl.String).str.strip_chars_end("0").str.strip_chars_end(".")


def _tidy(tags: pl.Expr) -> pl.Expr:
    """Tags as a JSON object with sorted keys; null where they are no pairs."""
    return tags.map_elements(tidy_tags, return_dtype=pl.String)


def tidy_tags(text: str) -> str | None:
    """One line's tags as a JSON object with sorted keys, or None where they are no pairs.

    Examples
    --------
    >>> tidy_tags('{"team": "a", "app": true}'), tidy_tags('[{"key": "team", "value": "a"}]'), tidy_tags("team=a")
    ('{"app":"true","team":"a"}', '{"team":"a"}', None)
    """
    try:
        parsed = json.loads(text, object_pairs_hook=Pairs)
        pairs = parsed if isinstance(parsed, Pairs) else [_pair(each) for each in parsed]
        tidy = {name: _text(value) for name, value in pairs}
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if len(tidy) < len(pairs):
        return None
    return json.dumps(tidy, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


class Pairs(list[tuple[str, Any]]):
    """Members of a JSON object, doubled names included."""


def _pair(members: Any) -> tuple[str, Any]:  # noqa: ANN401 - anything that JSON can hold
    if not isinstance(members, Pairs):
        raise TypeError
    known = dict(members)
    if not isinstance(known["key"], str):
        raise TypeError
    return known["key"], known["value"]


def _text(value: Any) -> str:  # noqa: ANN401 - anything that JSON can hold
    """The text of a tag; a tag without one has the value true, or null."""
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value).lower()
    if isinstance(value, list):
        raise TypeError
    return str(value)
