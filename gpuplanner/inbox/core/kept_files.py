"""Tables and JSON of a folder, read with an error that says which file is not as it was written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dataframely as dy
import polars as pl

from gpuplanner.errors import SchemaError, TraceFormatError, message
from gpuplanner.inbox.core.findings import COLUMNS as QUALITY
from gpuplanner.schemas import check

REMEDY = "Make it with: gpuplanner ingest SOURCE PATH... -o DIR."


def read_table(path: Path, schema: type[dy.Schema] | pl.Schema) -> pl.DataFrame:
    """A table of a folder: its columns alone are checked, or, for a declared table, its values too."""
    try:
        frame = pl.read_parquet(path, glob=False)
        if isinstance(schema, pl.Schema):
            return frame.match_to_schema(schema)
        return check(frame, schema, where=str(path))
    except (OSError, pl.exceptions.PolarsError, SchemaError) as error:
        text = message(str(path), "a table written by this program", first_line(error), REMEDY)
        raise TraceFormatError(text) from error


def read_findings(path: Path) -> pl.DataFrame:
    """A quality report."""
    quality = read_json(path)
    try:
        return pl.DataFrame(quality, schema=QUALITY, orient="row")
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        text = message(str(path), "a list of findings", first_line(error), REMEDY)
        raise TraceFormatError(text) from error


def read_json(path: Path) -> Any:  # noqa: ANN401 - anything that JSON can hold
    """A JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TraceFormatError(message(str(path), "a JSON file", first_line(error), REMEDY)) from error


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Say of what is wrong with tables within the block that they are not as this program wrote them."""
    try:
        yield
    except (OSError, pl.exceptions.PolarsError, SchemaError) as error:
        text = message(str(path), "tables written by this program", first_line(error), REMEDY)
        raise TraceFormatError(text) from error


def first_line(error: Exception) -> str:
    """What an error says first, or its kind."""
    return (str(error).splitlines() or [type(error).__name__])[0]
