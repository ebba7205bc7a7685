"""Lists of which no row may be left out: any fault in them is an error, for the rest would be another question."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from gpuplanner.errors import TraceFormatError, examples, message
from gpuplanner.inbox.core.lines.fields import Field
from gpuplanner.inbox.core.lines.reading import read_rows
from gpuplanner.inbox.core.lines.rows import PLACE


def read_faultless(path: str | Path, columns: Mapping[str, Field], what: str) -> pl.DataFrame:
    r"""Read a CSV list whose numbers are whole, or refuse it.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.csv"
    ...     _ = path.write_text("gpus\n8\n")
    ...     read_faultless(path, {"gpus": Field("gpus", "number")}, "list")["gpus"].to_list()
    [8]
    """
    numbers = {name: pl.col(field.name) for name, field in columns.items() if field.kind == "number"}
    rows = read_rows([path], columns, source=what).reject(
        {f"{name} is not a whole number": value != value.floor() for name, value in numbers.items()}
    )
    faults = [f"line {line}: {reason}" for line, reason in rows.rejects["row", "reason"].iter_rows()]
    if faults or rows.good.is_empty():
        got = (
            f"{len(faults)} faulty row{'s' * (len(faults) > 1)}: {examples(faults)}"
            if faults
            else "no rows below the header"
        )
        raise TraceFormatError(message(str(path), f"a {what} without faults", got, "Mend the list."))
    return rows.good.drop(PLACE).with_columns(value.cast(pl.Int64) for value in numbers.values())
