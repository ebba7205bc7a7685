"""Job ids for sources that have none: they follow from what a row says, wherever and in which file it stands."""

from __future__ import annotations

import polars as pl


def told_apart(rows: pl.DataFrame) -> pl.DataFrame:
    """Give rows of one file that share an id a number behind it; rows of different files keep theirs.

    An export lists no job twice, so equal ids within it are different jobs that its columns cannot tell apart.
    In a second export the same id is the same job again.

    Examples
    --------
    >>> told_apart(pl.DataFrame({"file": [0, 0, 1], "job_id": ["a", "a", "a"]}))["job_id"].to_list()
    ['a', 'a#2', 'a']
    """
    twin = pl.zeros(rows.height, pl.Int64, eager=True).alias("twin")
    shared = rows.select(pl.struct("file", "job_id").is_duplicated()).to_series()
    if shared.any():
        before = rows.filter(shared).select(pl.int_range(pl.len()).over("file", "job_id")).to_series()
        twin = twin.scatter(shared.arg_true(), before)
    number = "#" + (pl.col("twin") + 1).cast(pl.String)
    named = pl.when(pl.col("twin") > 0).then(pl.col("job_id") + number).otherwise("job_id")
    return rows.with_columns(twin).with_columns(job_id=named)


def plain(name: str) -> pl.Expr:
    """Text of a number for an id, without the decimals of a whole one; empty where it is missing.

    Examples
    --------
    >>> pl.DataFrame({"gpus": [4.0, 0.5, None]}).select(plain("gpus"))["gpus"].to_list()
    ['4', '0.5', '']
    """
    return pl.col(name).cast(pl.String).str.strip_suffix(".0").fill_null("")
