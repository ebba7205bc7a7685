"""What every bill needs, whatever its columns are called: tags, currencies, periods and exact totals."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.inbox.bills.delivery import Delivery
from gpuplanner.inbox.bills.summary import GPU_HOUR_UNITS, gpu_lines, looks_like_gpus
from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.core.findings import Check, Finding
from gpuplanner.inbox.core.lines.fields import Dialect, header_names
from gpuplanner.inbox.core.lines.rows import PLACE, Rows
from gpuplanner.inbox.core.lines.text_file import head
from gpuplanner.inbox.core.source_checks import source_check, source_finding
from gpuplanner.inbox.core.table_rows import assemble_reading

CATEGORIES = ("Usage", "Purchase", "Tax", "Credit", "Adjustment")
"""Values of ``ChargeCategory`` in FOCUS 1.0 to 1.2."""

BILL = Dialect(
    missing=frozenset({"NULL", "null"}),
    hint="Write the bill again, or name its source (gpuplanner ingest --list).",
    tables=True,
)

COSTS = ("BilledCost", "EffectiveCost", "ListCost")


NOBODY = re.compile(r"(?!)")
"""Matches no name: every tag is called as its users called it."""


UNKNOWN_GPUS = "lines that speak of GPUs, of an instance type that is not known"
UNKNOWN_EFFECT = "their GPU-hours are not counted: gpuplanner describe lists their types"
OPTIONAL = ("x_InstanceType", "PricingUnit", "ChargeDescription", "CommitmentDiscountStatus")
CHECKS = (
    source_check("bill: equal rows", ~pl.col("raw").is_first_distinct()),
    source_check(
        "bill: other period",
        ~pl.col("ChargePeriodStart").is_between(
            pl.col("BillingPeriodStart"), pl.col("BillingPeriodEnd"), closed="left"
        ),
    ),
    source_check("bill: correction", pl.col("ChargeClass") == "Correction"),
    source_check("bill: no list cost", pl.col("ListCost").is_null()),
)


def headers(files: Sequence[Path]) -> dict[Path, list[str]]:
    """Names of the columns of each file; none for an empty one."""
    return {path: header_names(line, BILL) for path in files for line in head(path)[:1]}


def assemble_bill(
    rows: Rows,
    delivery: Delivery,
    *,
    source: str,
    checks: Sequence[Check] = (),
    notes: Sequence[str] = (),
    tag_owner: re.Pattern[str] = NOBODY,
) -> Dataset:
    """Make a reading of charge lines that have the columns of ``schemas.TABLES["charges"]``."""
    _refuse_repeated_parts(rows)
    tidy = pl.col("Tags").map_elements(lambda text: tidy_tags(text, tag_owner), return_dtype=pl.String)
    rows = rows.with_columns(tidy=tidy)
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
    rows = rows.with_columns(Tags=pl.col("tidy"))
    # In the order of the rows: what speaks of GPUs and is of no instance type that the catalogue has.
    unknown = (pl.col("ChargeCategory") == "Usage") & looks_like_gpus() & pl.col("gpu_count").is_null()
    uncounted = ~pl.col("PricingUnit").str.contains(GPU_HOUR_UNITS).fill_null(value=False)
    lines = gpu_lines(
        rows.good.with_columns(
            pl.lit(None, pl.String).alias(name) for name in OPTIONAL if name not in rows.good.columns
        )
    )
    rows = rows.with_columns(lines.select(unknown_gpus=unknown & uncounted).to_series())
    currencies = rows.good["BillingCurrency"].unique().sort().to_list()
    several = source_check("bill: several currencies", pl.lit(len(currencies) > 1))
    return assemble_reading(
        rows,
        "charges",
        source=source,
        order=["BillingPeriodStart", "ChargePeriodStart"],
        what="charge",
        checks=[
            several,
            *CHECKS,
            *checks,
            Check(UNKNOWN_GPUS, "warning", UNKNOWN_EFFECT, pl.col("unknown_gpus")),
        ],
        findings=_file_findings(rows, delivery),
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


def _refuse_repeated_parts(rows: Rows) -> None:
    """Two files with the same rows would count each charge twice, however differently they are packed."""
    if len(rows.files) < 2:
        return
    rest = pl.exclude(*PLACE)
    parts = rows.good.select("file", hash=pl.struct(rest).hash()).group_by("file", maintain_order=True)
    hashes = pl.col("hash")
    looks = parts.agg(look=pl.struct(pl.len(), low=hashes.min(), high=hashes.max(), sum=hashes.sum()))
    twins = looks.group_by("look", maintain_order=True).agg("file").filter(pl.col("file").list.len() > 1)
    if twins.height:
        one, other, *_ = (rows.file_names()[file] for file in twins["file"][0])
        got = f"{one} and {other}, whose rows are the same"
        raise TraceFormatError(message("parts of a bill", "different rows in each", got, "Give one of them."))


def _file_findings(rows: Rows, delivery: Delivery) -> list[Finding]:
    """What the files of a bill make one know."""
    findings = []
    if older := delivery.left_out:
        findings.append(source_finding("bill: older refresh", len(older), str(older[0])))
    zoneless = {
        name: None
        for file in rows.files
        if file.table is not None
        for name, dtype in file.table.schema.items()
        if isinstance(dtype, pl.Datetime) and dtype.time_zone is None
    }
    if zoneless:
        findings.append(source_finding("bill: no zone in Parquet", rows.count, ", ".join(zoneless)))
    return findings


def tidy_tags(text: str, owner: re.Pattern[str] = NOBODY) -> str | None:
    """One line's tags as a JSON object with sorted keys, or None where they are no pairs.

    They may be an object, or a list of objects with ``key`` and ``value``; what matches `owner` is no part of a name.

    Examples
    --------
    >>> tidy_tags('{"team": "a", "app": true}'), tidy_tags('[{"key": "team", "value": "a"}]'), tidy_tags("team=a")
    ('{"app":"true","team":"a"}', '{"team":"a"}', None)
    """
    try:
        told = json.loads(
            text, object_pairs_hook=tuple
        )  # so that an object is no list, and keeps doubled names
        pairs = told if isinstance(told, tuple) else [_pair(each) for each in told]
        tidy = {owner.sub("", name): _text(value) for name, value in pairs}
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if len(tidy) < len(pairs):
        return None
    return json.dumps(tidy, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _pair(members: object) -> tuple[Any, Any]:
    known = dict(members) if isinstance(members, tuple) else {}
    return known["key"], known["value"]


def _text(value: object) -> str:
    """The text of a tag; a tag without one has the value true, or null."""
    if isinstance(value, (list, tuple)):
        raise TypeError
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
