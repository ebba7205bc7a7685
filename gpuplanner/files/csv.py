"""CSV that a spreadsheet program opens without running anything in it."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from gpuplanner.files.single import write_atomically

# Text that begins so is run as a formula; some editions do the same with the full-width characters.
_STARTS = r"[=+\-@＝＋－＠\t\r\n]"
_TIME = "%Y-%m-%dT%H:%M:%S%.fZ"


def write_csv_safe(path: str | Path, frame: pl.DataFrame) -> Path:
    r"""Write a frame as CSV (RFC 4180, UTF-8, lines end in CR LF).

    Text that begins with ``=``, ``+``, ``-``, ``@``, a tab or a line end would be run as a formula. It gets a
    leading apostrophe; so does text that begins with apostrophes before such a character, so that every value
    can be restored. Numbers are written as they are. A missing value is an empty
    cell, an empty text is ``""``. Instants are written in UTC as ISO 8601 with ``Z``.

    Parameters
    ----------
    path : str or Path
        Where to write.
    frame : polars.DataFrame
        No nested columns.

    Returns
    -------
    Path
        ``path``.

    Raises
    ------
    OutputError
        If the folder cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = write_csv_safe(Path(folder) / "a.csv", pl.DataFrame({"tenant": ["=1+1"], "x": [-2]}))
    ...     path.read_bytes()
    b"tenant,x\r\n'=1+1,-2\r\n"
    """
    safe = guarded(frame)
    return write_atomically(path, lambda temporary: safe.write_csv(temporary, line_terminator="\r\n"))


def guarded(frame: pl.DataFrame, time: str = _TIME) -> pl.DataFrame:
    """A frame in which no text is run as a formula, and instants are text in UTC; see :func:`write_csv_safe`."""
    text = pl.selectors.string() | pl.selectors.categorical() | pl.selectors.enum()
    zoned = pl.selectors.datetime(time_zone="*")
    safe = frame.with_columns(
        _guarded(text.cast(pl.String)), zoned.dt.convert_time_zone("UTC").dt.to_string(time)
    )
    safe.columns = _names(safe, _guarded(pl.col("name")))
    return safe


def _names(frame: pl.DataFrame, change: pl.Expr) -> list[str]:
    return pl.DataFrame({"name": frame.columns}).select(change)["name"].to_list()


def _guarded(text: pl.Expr) -> pl.Expr:
    return text.str.replace(rf"^('*{_STARTS})", "'${1}")
