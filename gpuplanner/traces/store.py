"""A trace as a folder: Parquet tables and JSON that anyone can open, the same bytes for the same trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dataframely as dy
import polars as pl

from gpuplanner.errors import SchemaError, TraceFormatError, message
from gpuplanner.files import Mark, replaced_directory, to_json
from gpuplanner.schemas import Inventory, Jobs, Samples, check
from gpuplanner.traces.quality import COLUMNS as QUALITY
from gpuplanner.traces.trace import REJECTS, SUMMARY, Trace

FORMAT = "gpuplanner trace 1"
"""Text in provenance.json by which a trace folder is known."""
MARK = Mark("provenance.json", FORMAT)

REMEDY = "Make it with: gpuplanner ingest SOURCE PATH... -o DIR."


def write_trace(trace: Trace, directory: str | Path) -> Path:
    r"""Write a trace as a folder of tables, in place of an older trace or an empty folder.

    Parameters
    ----------
    trace : Trace
        What to write.
    directory : str or Path
        Gets jobs.parquet, rejects.parquet, quality.json, provenance.json, and inventory.parquet and
        samples.parquet where the trace has them.

    Returns
    -------
    Path
        `directory`.

    Raises
    ------
    OutputError
        If the folder holds anything but a trace, or cannot be written; what stood there is intact.

    Examples
    --------
    >>> import tempfile
    >>> from gpuplanner.traces import read_itp
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "cluster01.csv"
    ...     _ = path.write_text("job_id,submission_time,duration,num_gpu\na,0,7200,8\n")
    ...     written = write_trace(read_itp([path]), Path(folder) / "trace")
    ...     sorted(file.name for file in written.iterdir())
    ['jobs.parquet', 'provenance.json', 'quality.json', 'rejects.parquet']
    """
    directory = Path(directory)
    tables = {"jobs": trace.jobs, "rejects": trace.rejects}
    tables |= {} if trace.inventory is None else {"inventory": trace.inventory}
    tables |= {} if trace.samples is None else {"samples": trace.samples}
    with replaced_directory(directory, mark=MARK) as folder:
        for name, table in tables.items():
            table.write_parquet(folder / f"{name}.parquet")
        (folder / "quality.json").write_text(to_json(trace.quality.to_dicts()), encoding="utf-8")
        provenance = {**trace.provenance, "format": FORMAT}
        (folder / "provenance.json").write_text(to_json(provenance), encoding="utf-8")
    return directory


def open_trace(directory: str | Path) -> Trace:
    """Open a folder written by :func:`write_trace`.

    Raises
    ------
    TraceFormatError
        If the folder is missing, is no trace, or its parts are missing, damaged or do not fit together.

    Examples
    --------
    >>> open_trace("no/such/folder")
    Traceback (most recent call last):
        ...
    gpuplanner.errors.TraceFormatError: no/such/folder: expected a folder that holds a trace; ...
    """
    folder = Path(directory)
    if not (folder / "provenance.json").is_file():
        got = "nothing there"
        if folder.exists():
            got = "a folder without a provenance.json" if folder.is_dir() else "a file"
        raise TraceFormatError(message(str(folder), "a folder that holds a trace", got, REMEDY))
    provenance = _json(folder / "provenance.json")
    if not isinstance(provenance, dict) or provenance.pop("format", None) != FORMAT:
        got = "a provenance.json of another format"
        raise TraceFormatError(message(str(folder), f"a {FORMAT!r}", got, REMEDY))
    jobs = _table(folder / "jobs.parquet", Jobs)
    rejects = _table(folder / "rejects.parquet")
    counts = {"rows_kept": jobs.height, "rows_rejected": rejects.height}
    stated = {name: provenance.get(name) for name in counts}
    if counts != stated or not set(SUMMARY) <= provenance.keys():
        text = message(str(folder), f"the rows its provenance.json states: {stated}", f"{counts}", REMEDY)
        raise TraceFormatError(text)
    quality = _json(folder / "quality.json")
    try:
        findings = pl.DataFrame(quality, schema=QUALITY, orient="row")
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        text = message(str(folder / "quality.json"), "a list of findings", _first_line(error), REMEDY)
        raise TraceFormatError(text) from error
    return Trace(
        jobs=jobs,
        rejects=rejects,
        quality=findings,
        provenance=provenance,
        inventory=_table_if_there(folder / "inventory.parquet", Inventory),
        samples=_table_if_there(folder / "samples.parquet", Samples),
    )


def _json(path: Path) -> Any:  # noqa: ANN401 - anything that JSON can hold
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TraceFormatError(message(str(path), "a JSON file", _first_line(error), REMEDY)) from error


def _table(path: Path, schema: type[dy.Schema] | None = None) -> pl.DataFrame:
    """A table of the folder; without a schema, the reject table."""
    try:
        frame = pl.read_parquet(path, glob=False)
        return frame.match_to_schema(REJECTS) if schema is None else check(frame, schema, where=str(path))
    except (OSError, pl.exceptions.PolarsError, SchemaError) as error:
        text = message(str(path), "a table written by this program", _first_line(error), REMEDY)
        raise TraceFormatError(text) from error


def _table_if_there(path: Path, schema: type[dy.Schema]) -> pl.DataFrame | None:
    return _table(path, schema) if path.exists() else None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
