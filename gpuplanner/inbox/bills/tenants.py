"""Who pays for a charge line: a tag of theirs, else their account."""

from __future__ import annotations

import json

import polars as pl

UNTAGGED = "untagged"
"""Tenant of lines without the tag that names tenants: shown, never spread over the others."""


def tag_pairs(charges: pl.DataFrame) -> pl.DataFrame:
    """Tags as pairs, one a row.

    Parameters
    ----------
    charges : polars.DataFrame
        Table ``schemas.TABLES["charges"]``.

    Returns
    -------
    polars.DataFrame
        ``charge`` (0-based row of `charges`), ``key``, ``value``.

    Examples
    --------
    >>> tag_pairs(pl.DataFrame({"Tags": ['{"app":"x","team":"a"}', None]})).rows()
    [(0, 'app', 'x'), (0, 'team', 'a')]
    """
    pairs = [
        (number, key, value)
        for number, text in enumerate(charges["Tags"])
        if text is not None
        for key, value in json.loads(text).items()
    ]
    return pl.DataFrame(
        pairs, schema={"charge": pl.UInt32, "key": pl.String, "value": pl.String}, orient="row"
    )


def with_tenants(charges: pl.DataFrame, tag: str | None = None) -> pl.DataFrame:
    """Name the tenant of each charge line.

    Parameters
    ----------
    charges : polars.DataFrame
        Table ``schemas.TABLES["charges"]``.
    tag : str, optional
        Key of the tag that names tenants (case matters); :data:`UNTAGGED` where a line has none. Without it,
        the tenant is the name of the sub-account, else its id, else the billing account.

    Returns
    -------
    polars.DataFrame
        `charges` with ``tenant``.

    Examples
    --------
    >>> with_tenants(pl.DataFrame({"Tags": ['{"team":"a"}', '{"Team":"b"}']}), "team")["tenant"].to_list()
    ['a', 'untagged']
    """
    if tag is None:
        return charges.with_columns(tenant=pl.coalesce("SubAccountName", "SubAccountId", "BillingAccountId"))
    named = tag_pairs(charges).filter(pl.col("key") == tag, pl.col("value") != "")
    joined = charges.with_row_index("charge").join(
        named.select("charge", tenant="value"), on="charge", how="left", maintain_order="left"
    )
    return joined.with_columns(pl.col("tenant").fill_null(UNTAGGED)).drop("charge")
