"""Charge lines as a FOCUS 1.2 file, and the rules of the specification that such a file must keep."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path

import polars as pl

from gpuplanner.errors import CheckError, message
from gpuplanner.files.csv import write_csv_safe

MANDATORY = (
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart",
    "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd", "ChargePeriodStart", "ContractedCost",
    "EffectiveCost", "InvoiceIssuerName", "ListCost", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName",
    "ServiceCategory", "ServiceName",
)  # fmt: skip
"""Columns that every FOCUS 1.2 file has; those of :data:`MAY_BE_NULL` may be empty."""
MAY_BE_NULL = ("BillingAccountName", "ChargeClass", "ChargeDescription", "PricingQuantity", "PricingUnit")
WORDS = {
    "ChargeCategory": {"Usage", "Purchase", "Tax", "Credit", "Adjustment"},
    "ChargeClass": {"Correction", ""},
    "PricingCategory": {"Standard", "Dynamic", "Committed", "Other", ""},
    "ServiceCategory": {
        "AI and Machine Learning", "Analytics", "Business Applications", "Compute", "Databases", "Developer Tools",
        "Multicloud", "Identity", "Integration", "Internet of Things", "Management and Governance", "Media",
        "Migration", "Mobile", "Networking", "Other", "Security", "Storage", "Web",
    },
}  # fmt: skip
INSTANTS = ("BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd")
FORMS = (
    dict.fromkeys(INSTANTS, r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z$")
    | dict.fromkeys(
        ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost", "PricingQuantity", "ListUnitPrice"),
        r"^-?\d+(\.\d+)?([eE][+-]?\d+)?$",
    )
    | {"BillingCurrency": "^[A-Z]{3}$"}
)
FOCUS_TIME = "%Y-%m-%dT%H:%M:%SZ"


def write_focus(path: str | Path, costs: pl.DataFrame) -> Path:
    """Write charge lines (``schemas.Costs``) as a FOCUS 1.2 CSV file; lines that break a rule of it are refused.

    Examples
    --------
    >>> from gpuplanner.schemas.domain import Costs
    >>> from gpuplanner.schemas.check import empty
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_focus(Path(folder) / "bill.csv", empty(Costs)).read_text()[:41]
    'BillingPeriodStart,BillingPeriodEnd,Charg'
    """
    plain = focus_text(costs)
    if problems := check_focus(plain):
        got, todo = "; ".join(problems[:3]), "Tell the authors of gpuplanner."
        raise CheckError(message(str(path), "lines that keep FOCUS 1.2", got, todo))
    return write_csv_safe(path, plain)


def focus_text(costs: pl.DataFrame) -> pl.DataFrame:
    """Charge lines as text in the forms of FOCUS: instants to the second with ``Z``, decimals in full."""
    return costs.with_columns(
        pl.selectors.datetime().dt.convert_time_zone("UTC").dt.strftime(FOCUS_TIME),
        pl.selectors.decimal().cast(pl.String).str.replace(r"(\.\d\d\d*?)0+$", "${1}"),
    )


def check_focus(lines: pl.DataFrame) -> list[str]:
    """Rules of FOCUS 1.2 that lines break, a sentence each, with the first line below the header that breaks it.

    Lines are text, as :func:`focus_text` gives them or as a file is read without guessing types.

    Examples
    --------
    >>> check_focus(pl.DataFrame({"BilledCost": ["1"]}))[0]
    'BillingAccountId: mandatory column is absent'
    """
    text = lines.select(pl.all().cast(pl.String))
    absent = [f"{name}: mandatory column is absent" for name in MANDATORY if name not in text.columns]
    strange = [
        f"{name}: neither a column of FOCUS nor one with x_ in front"
        for name in text.columns
        if not re.fullmatch(r"x_\w+|[A-Z][A-Za-z]+", name)
    ]
    return [*absent, *strange, *(fault for fault in _faults(text) if fault)]


def _faults(text: pl.DataFrame) -> Iterator[str]:
    filled = {name: pl.col(name).fill_null("") for name in text.columns}
    rules = [(name, filled[name] == "", "must not be null") for name in MANDATORY if name in filled]
    rules = [rule for rule in rules if rule[0] not in MAY_BE_NULL]
    rules += [
        (name, ~filled[name].is_in(sorted(words)), "not an allowed value")
        for name, words in WORDS.items()
        if name in filled
    ]
    rules += [
        (name, (filled[name] != "") & ~filled[name].str.contains(form), "not in the form of FOCUS")
        for name, form in FORMS.items()
        if name in filled
    ]
    rules += [
        (end, filled[end] <= filled[start], f"not after {start}")
        for start, end in (INSTANTS[:2], INSTANTS[2:])
        if {start, end} <= set(filled)
    ]
    for name, broken, rule in rules:
        wrong = text.with_row_index("line", 1).filter(broken)
        yield f"{name}: {rule} in line {wrong['line'][0]}: {wrong[name][0]!r}" if wrong.height else ""
    if {"ListUnitPrice", "PricingQuantity", "ListCost"} <= set(filled):
        yield _products(text)


def _products(text: pl.DataFrame) -> str:
    """A list cost is its unit price times its quantity, exactly, but in corrections."""
    for line, row in enumerate(text.iter_rows(named=True), 1):
        price, quantity = row["ListUnitPrice"], row["PricingQuantity"]
        if not price or not quantity or row.get("ChargeClass") == "Correction":
            continue
        try:
            fits = Decimal(price) * Decimal(quantity) == Decimal(row["ListCost"])
        except InvalidOperation:
            continue
        if not fits:
            return f"ListCost: not ListUnitPrice times PricingQuantity in line {line}"
    return ""
