"""GPUs that were kept out of the pool: reserved for somebody, being reconfigured, or down."""

from __future__ import annotations

import polars as pl

from gpuplanner.errors import SchemaError, examples, message
from gpuplanner.schemas import BUCKETS

NOBODY = "-"
"""Tenant of GPU-time that nobody held."""
KINDS = ("reserved", "reconfiguring", "down")
COLUMNS = {
    "bucket": pl.Enum(BUCKETS),
    "start_time": pl.Datetime("us", "UTC"),
    "end_time": pl.Datetime("us", "UTC"),
    "gpus": pl.Float64(),
    "gpu_model": pl.String(),
    "tenant": pl.String(),
    "node": pl.String(),
}
OPTIONAL = ("gpu_model", "tenant", "node")
WHERE = "ledger: out_of_service"


def withheld(table: pl.DataFrame | None, boards: pl.Series) -> pl.DataFrame:
    """Check a table of GPUs out of service, and give each row the board of the pool that misses them.

    Examples
    --------
    >>> withheld(None, pl.Series(["A100"])).height
    0
    """
    if table is None:
        return pl.DataFrame(schema=COLUMNS | {"board": pl.String})
    known = boards.unique().sort()
    needed = [name for name in COLUMNS if name not in OPTIONAL or (name == "gpu_model" and len(known) > 1)]
    missing = [name for name in needed if name not in table.columns]
    if missing:
        _refuse("", f"columns {', '.join(map(repr, needed))}", f"none of {examples(missing)}", "Add them.")
    _only(table, "bucket", list(KINDS), "Say what it was.")
    absent = [pl.lit(None, COLUMNS[name]).alias(name) for name in OPTIONAL if name not in table.columns]
    rows = table.with_columns(absent).select(*COLUMNS).cast(COLUMNS)  # type: ignore[arg-type]
    if rows.filter(pl.col("start_time").is_null() | ~(pl.col("gpus") >= 0)).height:
        _refuse("", "a start_time and a number of gpus in every row", "none or a negative one", "Fill it in.")
    rows = rows.with_columns(tenant=pl.col("tenant").fill_null(NOBODY))
    if len(known) == 1:
        return rows.with_columns(board=pl.lit(known[0], pl.String))
    _only(rows, "gpu_model", known.to_list(), "Name the board as the inventory does.")
    return rows.with_columns(board="gpu_model")


def _only(table: pl.DataFrame, column: str, words: list[str], todo: str) -> None:
    unknown = table.filter(~pl.col(column).cast(pl.String).is_in(words).fill_null(False))
    if unknown.height:
        found = unknown[column].cast(pl.String).fill_null("nothing").unique().sort().to_list()
        got = f"{unknown.height} rows with {examples(found)}"
        _refuse(f", column {column!r}", f"one of {examples(words)}", got, todo)


def _refuse(place: str, expected: str, got: str, todo: str) -> None:
    raise SchemaError(message(WHERE + place, expected, got, todo))
