"""Checks of tables against their schemas; a check reports all faults at once."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import dataframely as dy
import polars as pl

from gpuplanner.core.errors import SchemaError, examples, first_line

ROW = "row_number"


def check(frame: pl.DataFrame, schema: type[dy.Schema], *, where: str) -> pl.DataFrame:
    """Return the frame, in schema order, if every column and value is as declared.

    Parameters
    ----------
    frame : polars.DataFrame
        The table. Columns beyond the schema are dropped.
    schema : type
        A class of :mod:`gpuplanner.core`.
    where : str
        Where the table came from, for the message.

    Returns
    -------
    polars.DataFrame
        Columns of the schema, in its order, cast to its types.

    Raises
    ------
    SchemaError
        Naming every missing column, and for every broken rule the count and the first rows.

    Examples
    --------
    >>> from gpuplanner.core.schemas import Demand
    >>> check(pl.DataFrame({"ds": []}), Demand, where="demand")
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.SchemaError: demand: expected columns 'unique_id', 'y', 'tenant', ... Add the columns.
    """
    table = conform(frame, schema, where=where)
    if schema.is_valid(table):  # the usual case costs half of what telling the faults does
        return table
    good, bad = filter_rows(table, schema)
    if bad.height:
        faults = bad.group_by("reason", maintain_order=True).agg(pl.len().alias("rows"), pl.col(ROW).head(5))
        told = (f"{why} in {rows} row(s), first {examples(some)}" for why, rows, some in faults.iter_rows())
        listed = "; ".join(told)
        got = f"{bad.height} of {frame.height} rows that do not: {listed}"
        todo = "Fix these rows, or import the file, which puts them into a table of rejected rows."
        raise SchemaError(where, f"every row to satisfy the table '{schema.__name__}'", got, todo)
    return good


def conform(frame: pl.DataFrame, schema: type[dy.Schema], *, where: str) -> pl.DataFrame:
    """Select the columns of the schema and cast them; nullable columns that are absent become null.

    Raises
    ------
    SchemaError
        If columns that may not be null are missing, or a column cannot be cast.
    """
    return _selected(frame, schema, tuple(schema.columns()), where=where)


def some_columns(frame: pl.DataFrame, schema: type[dy.Schema], names: Sequence[str], *, where: str) -> pl.DataFrame:
    """Select some columns of the schema and cast them; those that may be null are made where they are absent.

    Tables of many millions of rows are never copied whole, so they need not have the other columns, and text in
    them may stand as categories, which stay.

    Raises
    ------
    SchemaError
        As :func:`conform`.

    Examples
    --------
    >>> from gpuplanner.core.schemas import Jobs
    >>> jobs = pl.DataFrame({"tenant": ["a"]}, schema={"tenant": pl.Categorical})
    >>> some_columns(jobs, Jobs, ["tenant", "gpus"], where="jobs").dtypes
    [Categorical, Float64]
    """
    return _selected(frame, schema, names, where=where, categories=True)


def _selected(
    frame: pl.DataFrame,
    schema: type[dy.Schema],
    names: Sequence[str],
    *,
    where: str,
    categories: bool = False,
) -> pl.DataFrame:
    columns = {name: schema.columns()[name] for name in names}
    missing = [name for name, column in columns.items() if name not in frame.columns and not column.nullable]
    if missing:
        expected = f"columns {', '.join(map(repr, missing))}"
        raise SchemaError(where, expected, f"columns {examples(frame.columns)}", "Add the columns.")
    kept = {name for name, dtype in frame.schema.items() if categories and dtype == pl.Categorical}
    kept &= {name for name, column in columns.items() if column.dtype == pl.String}
    present = [
        pl.lit(None, column.dtype).alias(name)
        if name not in frame.columns
        else pl.col(name)
        if name in kept
        else pl.col(name).cast(column.dtype)
        for name, column in columns.items()
    ]
    try:
        return frame.select(present)
    except pl.exceptions.PolarsError as error:
        expected = f"types of the table '{schema.__name__}'"
        raise SchemaError(where, expected, first_line(error), "Fix the type of this column.") from error


def filter_rows(frame: pl.DataFrame, schema: type[dy.Schema]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Part a conformed table into good rows, and bad rows with every reason.

    Returns
    -------
    good : polars.DataFrame
        Rows that satisfy the schema, in order.
    bad : polars.DataFrame
        The other rows, with ``row_number`` (0-based row number in ``frame``) and ``reason``.

    Examples
    --------
    >>> from gpuplanner.core.schemas import Ledger

    >>> good, bad = filter_rows(empty(Ledger), Ledger)
    >>> good.height, bad.height, bad.columns[-1]
    (0, 0, 'reason')
    """
    good, failure = _numbered(schema).filter(frame.with_row_index(ROW))
    details = failure.details()
    rules = [name for name in details.columns if not name.startswith(ROW) and name not in frame.columns]
    broken = [pl.when(pl.col(rule).cast(pl.String) == "invalid").then(pl.lit(_reason(schema, rule))) for rule in rules]
    reason = pl.concat_str(broken, separator="; ", ignore_nulls=True)
    return good.drop(ROW), details.select(*frame.columns, ROW, reason=reason)


def empty(schema: type[dy.Schema]) -> pl.DataFrame:
    """Make a table of the schema without rows."""
    return pl.DataFrame(schema={name: column.dtype for name, column in schema.columns().items()})


def to_markdown(name: str, schema: type[dy.Schema]) -> str:
    """Reference text of one table: its meaning, columns, types, units and bounds.

    Examples
    --------
    >>> from gpuplanner.core.schemas import Demand
    >>> print(to_markdown("demand", Demand).splitlines()[0])
    ## `demand`
    """
    lines = [f"## `{name}`", "", (schema.__doc__ or "").strip(), ""]
    lines += ["| column | type | unit | may be missing | meaning |", "|---|---|---|---|---|"]
    for column_name, column in schema.columns().items():
        facts = column.metadata or {}
        dtype = "text" if column.dtype == pl.String else str(column.dtype)
        if isinstance(column, dy.Enum):
            dtype = "one of " + ", ".join(column.categories)
        lines.append(
            f"| `{column_name}` | {dtype} | {facts.get('unit') or '-'} "
            f"| {'yes' if column.nullable else 'no'} | {facts.get('meaning', '')} |"
        )
    return "\n".join(lines) + "\n"


@functools.cache
def _numbered(schema: type[dy.Schema]) -> type[dy.Schema]:
    """The schema with a row number, so that a rejected row can be traced to its place."""
    return type(f"Numbered{schema.__name__}", (schema,), {ROW: dy.UInt32(nullable=False)})


def _reason(schema: type[dy.Schema], rule: str) -> str:
    """Say what a broken rule means: 'gpus below 0' rather than 'gpus|min'."""
    column_name, _, kind = rule.partition("|")
    if not kind:
        return rule.replace("_", " ") + " is broken"
    column = schema.columns()[column_name]
    bounds = {"min": f"below {getattr(column, 'min', '')}", "max": f"above {getattr(column, 'max', '')}"}
    words = {"nullability": "missing", "nan": "not a number", "inf": "infinite", "dtype": "wrong type"}
    return f"{column_name} {words.get(kind) or bounds.get(kind) or kind}"
