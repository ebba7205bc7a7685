"""Bills in FOCUS, the FinOps Open Cost and Usage Specification, versions 1.0 to 1.2."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import polars as pl

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.inbox.bills.charges import BILL, assemble_bill, headers
from gpuplanner.inbox.bills.delivery import delivered
from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.core.lines.column_tables import source_columns
from gpuplanner.inbox.core.lines.reading import read_rows
from gpuplanner.inbox.core.source import columns_of, looks
from gpuplanner.inbox.core.source_checks import source_check

FOCUS_COLUMNS = source_columns("focus")
"""What is read of the 43 columns of version 1.0 (57 of 1.2); ``x_`` columns are those of AWS and Microsoft, and our
own ``x_InstanceType``."""

VERSION_MARKS = {
    "1.2": {"InvoiceId", "BillingAccountType", "SubAccountType", "PricingCurrency"},
    "1.1": {"SkuMeter", "SkuPriceDetails", "ServiceSubcategory", "CapacityReservationId"},
}
"""Columns that came with a version."""

DETAIL = r'"(?:InstanceType|ServiceType|MachineType)"\s*:\s*"([^"]+)"'
SHAPE = r"^((?:BM|VM)\.[A-Za-z0-9.]+)$"
USAGE = r":((?:ml\.)?[a-z][a-z0-9-]*\.[a-z0-9-]+)$"

INSTANCE_TYPE = pl.coalesce(
    pl.col("x_InstanceType"),
    pl.col("SkuPriceDetails").str.extract(DETAIL),
    pl.col("x_SkuDetails").str.extract(DETAIL),
    pl.col("x_UsageType").str.extract(USAGE),
    pl.col("ResourceType").str.extract(SHAPE),
    pl.col("SkuMeter"),
    pl.col("x_SkuMeterName"),
)
"""Where the instance type stands: in a column of its own (our tables of charges), in the details of the price (AWS,
Microsoft), at the end of the usage type (AWS), in the type of the resource (OCI), in the name of the meter
(Microsoft)."""
ZONELESS = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:[\",;]|$)"
"""A time without its offset in a line; by the standard all are UTC, and AWS leaves the ``Z`` out [1]_.

References
----------
.. [1] FinOps Foundation, FOCUS 1.0, Date/Time Format; AWS Data Exports, FOCUS 1.0 with AWS columns.
"""


@looks(columns_of(FOCUS_COLUMNS))
def read_focus(paths: Sequence[str | Path]) -> Dataset:
    r"""Read bills in FOCUS.

    References
    ----------
    .. [1] FinOps Foundation, FinOps Open Cost and Usage Specification, versions 1.0 (2024), 1.1 (2024) and 1.2
       (2025): columns and their allowed values.

    Examples
    --------
    >>> import tempfile
    >>> month = "2025-09-01T00:00:00Z,2025-10-01T00:00:00Z"
    >>> line = f"{month},{month},1234,USD,Usage,98.32,98.32,98.32,Compute,Virtual Machines,1,Hours"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "bill.csv"
    ...     _ = path.write_text(",".join(list(COLUMN_MAP)[:14]) + "\n" + line + "\n")
    ...     read_focus([path]).summary()["BilledCost_USD"]
    '98.32'
    """
    delivery = delivered(paths)
    versions = {version_of(names): path for path, names in headers(delivery.files).items()}
    if len(versions) > 1:
        got = "; ".join(f"{path.name}: {version}" for version, path in sorted(versions.items()))
        todo = "Read each version on its own: exports of two versions may hold the same charges."
        raise TraceFormatError(message("focus", "files of one version", got, todo))
    rows = read_rows(delivery.files, FOCUS_COLUMNS, source="focus", dialect=BILL)
    rows = rows.with_columns(x_InstanceType=INSTANCE_TYPE)
    notes = [f"FOCUS {version}" for version in versions]
    zoneless = source_check("focus: no zone", pl.col("raw").str.contains(ZONELESS))
    return assemble_bill(rows, delivery, source="focus", checks=[zoneless], notes=notes)


def version_of(names: Collection[str]) -> str:
    """Version of FOCUS by the columns that came with each, whatever the case of their letters.

    Examples
    --------
    >>> version_of({"BilledCost", "SkuMeter"}), version_of({"BilledCost"})
    ('1.1', '1.0')
    """
    folded = {name.casefold() for name in names}
    marks = ((version, {mark.casefold() for mark in marks}) for version, marks in VERSION_MARKS.items())
    return next((version for version, each in marks if each & folded), "1.0")
