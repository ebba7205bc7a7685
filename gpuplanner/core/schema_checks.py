"""Checks of tables against their schemas; each check reports all faults at once."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import dataframely as dy
import polars as pl

from gpuplanner.core.errors import SchemaError, examples, first_error_line

ROW_NUMBER_COLUMN = "row_number"
"""Column with the row number of a rejected row, from 0."""


def check_table(frame: pl.DataFrame, schema: type[dy.Schema], *, source: str) -> pl.DataFrame:
    """Check every column and value of a table against a schema.

    Parameters
    ----------
    frame : polars.DataFrame
        The table. Columns beyond the schema are dropped.
    schema : type
        Schema of :mod:`gpuplanner.core.schemas`.
    source : str
        Origin of the table, for the message.

    Returns
    -------
    polars.DataFrame
        Columns of the schema, in its order, cast to its types.

    Raises
    ------
    SchemaError
        With every missing column, and for each broken rule the number of rows and the first of them.

    Examples
    --------
    >>> from gpuplanner.core.schemas import Demand
    >>> check_table(pl.DataFrame({"ds": []}), Demand, source="demand")
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.SchemaError: demand: expected columns 'unique_id', 'y', 'tenant', ... Add the columns.
    """
    table = conform(frame, schema, source=source)
    if schema.is_valid(table):  # the usual case costs half of what telling the faults does
        return table
    good, bad = filter_rows(table, schema)
    if bad.height:
        first_rows = pl.col(ROW_NUMBER_COLUMN).head(5)
        faults = bad.group_by("reason", maintain_order=True).agg(pl.len().alias("rows"), first_rows)
        fault_texts = (f"{why} in {rows} row(s), first {examples(some)}" for why, rows, some in faults.iter_rows())
        listed = "; ".join(fault_texts)
        got = f"{bad.height} of {frame.height} rows that do not: {listed}"
        todo = "Fix these rows, or import the file, which puts them into a table of rejected rows."
        raise SchemaError(source, f"every row to satisfy the table '{schema.__name__}'", got, todo)
    return good


def conform(frame: pl.DataFrame, schema: type[dy.Schema], *, source: str) -> pl.DataFrame:
    """Select the columns of a schema and cast them to its types; absent nullable columns become null.

    Parameters
    ----------
    frame : polars.DataFrame
        The table.
    schema : type
        Schema of :mod:`gpuplanner.core.schemas`.
    source : str
        Origin of the table, for the message.

    Raises
    ------
    SchemaError
        If columns that may not be null are missing, or a column cannot be cast.
    """
    return _select_columns(frame, schema, tuple(schema.columns()), source=source)


def cast_columns(frame: pl.DataFrame, schema: type[dy.Schema], names: Sequence[str], *, source: str) -> pl.DataFrame:
    """Select the columns `names` of a schema and cast them to its types; absent nullable columns become null.

    For tables of many millions of rows, which are never copied whole. Categorical text stays categorical.

    Parameters
    ----------
    frame : polars.DataFrame
        The table.
    schema : type
        Schema of :mod:`gpuplanner.core.schemas`.
    names : sequence of str
        Columns to select.
    source : str
        Origin of the table, for the message.

    Raises
    ------
    SchemaError
        As :func:`conform`.

    Examples
    --------
    >>> from gpuplanner.core.schemas import Jobs
    >>> jobs = pl.DataFrame({"tenant": ["a"]}, schema={"tenant": pl.Categorical})
    >>> cast_columns(jobs, Jobs, ["tenant", "gpus"], source="jobs").dtypes
    [Categorical, Float64]
    """
    return _select_columns(frame, schema, names, source=source, categories=True)


def _select_columns(
    frame: pl.DataFrame, schema: type[dy.Schema], names: Sequence[str], *, source: str, categories: bool = False
) -> pl.DataFrame:
    """Select columns of a schema and cast them.

    Parameters
    ----------
    frame : polars.DataFrame
        The table.
    schema, names, source, categories
        As of :func:`schema_columns`.
    """
    try:
        return frame.select(schema_columns(frame.schema, schema, names, source=source, categories=categories))
    except pl.exceptions.PolarsError as error:
        expected = f"types of the table '{schema.__name__}'"
        raise SchemaError(source, expected, first_error_line(error), "Fix the type of this column.") from error


def schema_columns(
    present: pl.Schema, schema: type[dy.Schema], names: Sequence[str], *, source: str, categories: bool = False
) -> list[pl.Expr]:
    """List expressions for columns of a schema, also of a lazy table; absent nullable columns become null.

    Parameters
    ----------
    present : polars.Schema
        Columns of the table, with their types.
    schema : type
        Schema of the columns.
    names : sequence of str
        Columns to select.
    source : str
        Origin of the table, for the message.
    categories : bool
        Keep categorical text as it is.
    """
    columns = {name: schema.columns()[name] for name in names}
    require_columns(present, [name for name, column in columns.items() if not column.nullable], source=source)
    expressions = []
    for name, column in columns.items():
        is_category = categories and present.get(name) == pl.Categorical and column.dtype == pl.String
        if name not in present:
            expressions.append(pl.lit(None, column.dtype).alias(name))
        elif is_category or present[name] == column.dtype:
            # A cast, even to the same type, keeps filters from the file.
            expressions.append(pl.col(name))
        else:
            expressions.append(pl.col(name).cast(column.dtype))
    return expressions


def require_columns(present: pl.Schema, names: Sequence[str], *, source: str) -> None:
    """Raise ``SchemaError`` if a table lacks columns."""
    if missing := [name for name in names if name not in present]:
        expected = f"columns {', '.join(map(repr, missing))}"
        raise SchemaError(source, expected, f"columns {examples(list(present))}", "Add the columns.")


def add_absent_columns(table: pl.DataFrame, types: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Add the columns that a table lacks, as nulls.

    Examples
    --------
    >>> add_absent_columns(pl.DataFrame({"gpus": [8]}), {"gpus": pl.Int64(), "rack": pl.String()}).row(0)
    (8, None)
    """
    return table.with_columns(pl.lit(None, types[name]).alias(name) for name in types if name not in table.columns)


def filter_rows(frame: pl.DataFrame, schema: type[dy.Schema]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Split a conformed table into valid rows, and invalid rows with their reasons.

    Returns
    -------
    good : polars.DataFrame
        Rows that satisfy the schema, in order.
    bad : polars.DataFrame
        The other rows, with ``row_number`` (0-based row number in ``frame``) and ``reason``.

    Examples
    --------
    >>> from gpuplanner.core.schemas import Ledger

    >>> good, bad = filter_rows(make_empty_table(Ledger), Ledger)
    >>> good.height, bad.height, bad.columns[-1]
    (0, 0, 'reason')
    """
    good, failure = _add_row_number_column(schema).filter(frame.with_row_index(ROW_NUMBER_COLUMN))
    details = failure.details()
    rules = [name for name in details.columns if not name.startswith(ROW_NUMBER_COLUMN) and name not in frame.columns]
    broken = [
        pl.when(pl.col(rule).cast(pl.String) == "invalid").then(pl.lit(_describe_broken_rule(schema, rule)))
        for rule in rules
    ]
    reason = pl.concat_str(broken, separator="; ", ignore_nulls=True)
    return good.drop(ROW_NUMBER_COLUMN), details.select(*frame.columns, ROW_NUMBER_COLUMN, reason=reason)


def make_empty_table(schema: type[dy.Schema]) -> pl.DataFrame:
    """Make a table of a schema without rows."""
    return pl.DataFrame(schema={name: column.dtype for name, column in schema.columns().items()})


@functools.cache
def _add_row_number_column(schema: type[dy.Schema]) -> type[dy.Schema]:
    """Extend a schema by a row number column, so that rejected rows can be located."""
    return type(f"Numbered{schema.__name__}", (schema,), {ROW_NUMBER_COLUMN: dy.UInt32(nullable=False)})


def _describe_broken_rule(schema: type[dy.Schema], rule: str) -> str:
    """Describe a broken rule: 'gpus below 0' rather than 'gpus|min'."""
    column_name, _, kind = rule.partition("|")
    if not kind:
        return rule.replace("_", " ") + " is broken"
    column = schema.columns()[column_name]
    bounds = {"min": f"below {getattr(column, 'min', '')}", "max": f"above {getattr(column, 'max', '')}"}
    words = {"nullability": "missing", "nan": "not a number", "inf": "infinite", "dtype": "wrong type"}
    return f"{column_name} {words.get(kind) or bounds.get(kind) or kind}"
