"""Telemetry as a folder: Parquet tables and JSON that anyone can open, the same bytes for the same input."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl

from gpuplanner.errors import SchemaError, TraceFormatError, message
from gpuplanner.files import Mark, replaced_directory, to_json
from gpuplanner.schemas import Samples, check
from gpuplanner.telemetry.result import PROCESSES, Telemetry
from gpuplanner.traces.quality import COLUMNS as QUALITY
from gpuplanner.traces.trace import REJECTS, SUMMARY

FORMAT = "gpuplanner telemetry 1"
"""Text in provenance.json by which a folder of telemetry is known."""
MARK = Mark("provenance.json", FORMAT)

REMEDY = "Read the telemetry again."


def write_telemetry(telemetry: Telemetry, directory: str | Path) -> Path:
    """Write telemetry as a folder, in place of older telemetry or an empty folder.

    Parameters
    ----------
    telemetry : Telemetry
        What to write.
    directory : str or Path
        Gets samples.parquet, rejects.parquet, coverage.parquet, quality.json, provenance.json, and
        processes.parquet where there are any.

    Returns
    -------
    Path
        `directory`.

    Raises
    ------
    OutputError
        If the folder holds anything else, or cannot be written; what stood there is intact.
    """
    directory = Path(directory)
    tables = {"samples": telemetry.samples, "rejects": telemetry.rejects, "coverage": telemetry.coverage}
    if telemetry.processes is not None:
        tables["processes"] = telemetry.processes
    with replaced_directory(directory, mark=MARK) as folder:
        for name, table in tables.items():
            table.write_parquet(folder / f"{name}.parquet")
        (folder / "quality.json").write_text(to_json(telemetry.quality.to_dicts()), encoding="utf-8")
        provenance = {**telemetry.provenance, "format": FORMAT}
        (folder / "provenance.json").write_text(to_json(provenance), encoding="utf-8")
    return directory


def open_telemetry(directory: str | Path) -> Telemetry:
    """Open a folder written by :func:`write_telemetry`.

    Raises
    ------
    TraceFormatError
        If the folder is missing, is no telemetry, or its parts are missing, damaged or do not fit together.

    Examples
    --------
    >>> open_telemetry("no/such/folder")
    Traceback (most recent call last):
        ...
    gpuplanner.errors.TraceFormatError: no/such/folder: expected a folder of telemetry; ...
    """
    folder = Path(directory)
    try:
        provenance = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
        if provenance.pop("format") != FORMAT:
            raise ValueError(f"not {FORMAT!r}")  # noqa: EM102
        quality = pl.DataFrame(
            json.loads((folder / "quality.json").read_text(encoding="utf-8")), schema=QUALITY, orient="row"
        )
        tables = {path.stem: pl.read_parquet(path, glob=False) for path in sorted(folder.glob("*.parquet"))}
        telemetry = Telemetry(
            samples=check(tables["samples"], Samples, where=str(folder)),
            rejects=tables["rejects"].match_to_schema(REJECTS),
            quality=quality,
            coverage=tables["coverage"],
            provenance=provenance,
            processes=tables["processes"].match_to_schema(PROCESSES) if "processes" in tables else None,
        )
        stated = [provenance[name] for name in (*SUMMARY, "samples")][-1]
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        SchemaError,
        pl.exceptions.PolarsError,
    ) as error:
        got = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise TraceFormatError(message(str(folder), "a folder of telemetry", got[:300], REMEDY)) from error
    if telemetry.samples.height != stated or telemetry.rejects.height != provenance["rows_rejected"]:
        expected = "the rows that its provenance.json states"
        got = f"{telemetry.samples.height} samples and {telemetry.rejects.height} rejected rows"
        raise TraceFormatError(message(str(folder), expected, got, REMEDY))
    return telemetry
