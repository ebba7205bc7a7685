"""A folder of tables with rejects, quality report and provenance: how each kind of reading is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dataframely as dy
import polars as pl

from gpuplanner.errors import SchemaError, TraceFormatError, message
from gpuplanner.files import Mark, kept_aside, replaced_directory, sole_writer, to_json
from gpuplanner.inbox.core.findings import COLUMNS as QUALITY
from gpuplanner.inbox.core.job_pieces import read_jobs
from gpuplanner.inbox.core.trace import REJECTS
from gpuplanner.schemas import check

REMEDY = "Make it with: gpuplanner ingest SOURCE PATH... -o DIR."


@dataclass(frozen=True, eq=False)
class Folder:
    """What every folder holds beside its own tables."""

    path: Path
    rejects: pl.DataFrame
    quality: pl.DataFrame
    provenance: dict[str, Any]

    def table(self, name: str, schema: type[dy.Schema] | pl.Schema) -> pl.DataFrame:
        """One of its tables.

        Raises
        ------
        TraceFormatError
            If it is missing, damaged or not of the schema.
        """
        return _table(self.path / f"{name}.parquet", schema)

    def jobs(self, columns: Sequence[str]) -> pl.DataFrame:
        """Some columns of its jobs, see :func:`gpuplanner.inbox.core.job_pieces.read_jobs`.

        Raises
        ------
        TraceFormatError
            As :meth:`table`.
        """
        path = self.path / "jobs.parquet"
        with _explained(path):
            return read_jobs(path, columns)

    def table_if_there(self, name: str, schema: type[dy.Schema] | pl.Schema) -> pl.DataFrame | None:
        """One of its tables, or None."""
        return self.table(name, schema) if (self.path / f"{name}.parquet").exists() else None

    def require_keys(self, names: Iterable[str]) -> None:
        """Refuse a folder whose provenance lacks any of the names.

        Raises
        ------
        TraceFormatError
            Naming what is missing.
        """
        missing = sorted(set(names) - self.provenance.keys())
        if missing:
            expected = f"the rows its provenance.json states, and {', '.join(missing)}"
            raise TraceFormatError(message(str(self.path), expected, "neither", REMEDY))

    def require(self, stated: Mapping[str, Any]) -> None:
        """Refuse a folder whose tables are not those that its provenance states.

        Raises
        ------
        TraceFormatError
            Naming both.
        """
        known = {name: self.provenance.get(name) for name in stated}
        if known != stated:
            got = f"{dict(stated)}"
            text = message(str(self.path), f"the rows its provenance.json states: {known}", got, REMEDY)
            raise TraceFormatError(text)


def write_folder(
    directory: str | Path,
    mark: Mark,
    tables: Mapping[str, pl.DataFrame | None],
    quality: pl.DataFrame,
    provenance: Mapping[str, Any],
    *,
    more: Callable[[Path], object] = lambda _: None,
) -> Path:
    """Write a folder in place of an older one of its kind, or of an empty one; one run at a time.

    Parameters
    ----------
    directory : str or Path
        Where it shall stand.
    mark : Mark
        Its kind; the text goes into provenance.json.
    tables : mapping of str to polars.DataFrame or None
        Name → table; None is left out.
    quality : polars.DataFrame
        Quality report.
    provenance : mapping
        Ready for JSON.
    more : callable
        Writes what else belongs into the new folder, whose path it gets.

    Returns
    -------
    Path
        `directory`.

    Raises
    ------
    OutputError
        If the folder holds anything else, cannot be written, or is being written by another run; what stood
        there is intact.
    """
    with sole_writer(directory):
        return replace_folder(directory, mark, tables, quality, provenance, more=more)


def replace_folder(
    directory: str | Path,
    mark: Mark,
    tables: Mapping[str, pl.DataFrame | None],
    quality: pl.DataFrame,
    provenance: Mapping[str, Any],
    *,
    more: Callable[[Path], object] = lambda _: None,
) -> Path:
    """Do what :func:`write_folder` does, for a run that is known to be the sole writer already."""
    directory = Path(directory)
    with replaced_directory(directory, mark=mark) as folder:
        more(folder)
        for name, table in tables.items():
            if table is not None:
                table.write_parquet(folder / f"{name}.parquet")
        (folder / "quality.json").write_text(to_json(quality.to_dicts()), encoding="utf-8")
        stated = {**provenance, "format": mark.text}
        (folder / "provenance.json").write_text(to_json(stated), encoding="utf-8")
    return directory


def open_folder(directory: str | Path, mark: Mark, what: str) -> Folder:
    """Open a folder of one kind.

    Parameters
    ----------
    directory : str or Path
        Where it stands.
    mark : Mark
        Its kind.
    what : str
        What it holds, for messages: ``"a trace"``.

    Returns
    -------
    Folder
        Its common parts; its tables are read on demand.

    Raises
    ------
    TraceFormatError
        If the folder is missing, of another kind, or its parts are missing or damaged.
    """
    folder = Path(directory)
    if not (folder / mark.file).is_file():
        got = "nothing there"
        if folder.exists():
            got = f"a folder without a {mark.file}" if folder.is_dir() else "a file"
        elif (aside := kept_aside(folder)) is not None:
            got = f"nothing there, since a run was stopped; what stood there is {aside}"
        raise TraceFormatError(message(str(folder), f"a folder that holds {what}", got, REMEDY))
    provenance = _json(folder / mark.file)
    if not isinstance(provenance, dict) or provenance.pop("format", None) != mark.text:
        got = f"a {mark.file} of another format"
        raise TraceFormatError(message(str(folder), f"a {mark.text!r}", got, REMEDY))
    rejects = _table(folder / "rejects.parquet", REJECTS)
    quality = _json(folder / "quality.json")
    try:
        findings = pl.DataFrame(quality, schema=QUALITY, orient="row")
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        text = message(str(folder / "quality.json"), "a list of findings", _first_line(error), REMEDY)
        raise TraceFormatError(text) from error
    return Folder(folder, rejects, findings, provenance)


def _json(path: Path) -> Any:  # noqa: ANN401 - anything that JSON can hold
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TraceFormatError(message(str(path), "a JSON file", _first_line(error), REMEDY)) from error


def _table(path: Path, schema: type[dy.Schema] | pl.Schema) -> pl.DataFrame:
    """A table of the folder: its columns alone are checked, or, for a declared table, its values too."""
    with _explained(path):
        frame = pl.read_parquet(path, glob=False)
        if isinstance(schema, pl.Schema):
            return frame.match_to_schema(schema)
        return check(frame, schema, where=str(path))


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pl.exceptions.PolarsError, SchemaError) as error:
        text = message(str(path), "a table written by this program", _first_line(error), REMEDY)
        raise TraceFormatError(text) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
