"""Which files of a delivered bill count: the parts that the newest manifest of each billing period lists.

Providers deliver a bill as a folder of parts. Each refresh of a period repeats all of it, often beside the older
ones, so that the parts of two refreshes must never be added: what counts is said by manifests [1]_ [2]_ [3]_.

References
----------
.. [1] AWS, Cost and Usage Reports user guide, "Viewing report files": ``yyyymmdd-yyyymmdd/assemblyId/``, and a manifest
   with ``assemblyId`` and ``reportKeys`` in both folders; the one above is that of the newest assembly.
.. [2] AWS, Data Exports user guide, "Understanding export delivery": ``data/BILLING_PERIOD=yyyy-mm/`` and
   ``metadata/BILLING_PERIOD=yyyy-mm/``, whose manifest has ``dataFiles``.
.. [3] Microsoft, Cost Management, "Export data": ``yyyymmdd-yyyymmdd/runId/manifest.json`` with ``blobs`` and the
   ``submittedTime`` of the run.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path, PurePosixPath
from typing import Any

from gpuplanner.errors import TraceFormatError, examples, message
from gpuplanner.inbox.core.lines.text_blocks import read_document

MANIFEST = "manifest.json"
"""End of the name of every manifest, in small letters."""

PART = re.compile(r"\.(?:csv|parquet|avro|orc)(?:\.(?:gz|zip|zst|bz2|xz))?$", re.IGNORECASE)
"""End of the name of every part; those of a format that is not read are named by the error, not passed over."""

PERIOD = re.compile(r"(?<![^/])(?:BILLING_PERIOD=\d{4}-\d{2}|\d{8}-\d{8}|year=\d{4}/month=\d{1,2})(?=/)")
"""Folders of a billing period."""

MADE = re.compile(r"\d{4}-?\d{2}-?\d{2}T\d{2}:?\d{2}:?\d{2}[.\d]*Z")
"""Instant in the name of the folder of a refresh."""

REMEDY = "Give the folder as it was delivered, or the files themselves."


@dataclass(frozen=True)
class Delivery:
    """What is to be read.

    Attributes
    ----------
    files : tuple of Path
        In the order of the folders, and by name within one.
    left_out : tuple of Path
        Parts in the folders that no counting manifest lists: older refreshes.
    """

    files: tuple[Path, ...]
    left_out: tuple[Path, ...]


@dataclass(frozen=True)
class Manifest:
    """A list of parts: where it lies, of which export and period, when it was made ("" if not told), their keys."""

    path: PurePosixPath
    export: str
    period: str
    made: str
    keys: tuple[str, ...]


def delivered(paths: Iterable[str | Path]) -> Delivery:
    """Files to read: those given, and the parts that count in each folder given.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for run, time in (("new", "2025-09-03T00:00:00Z"), ("old", "2025-09-02T00:00:00Z")):
    ...         place = Path(folder) / "20250901-20250930" / run
    ...         place.mkdir(parents=True)
    ...         _ = (place / "part_0.csv").write_text(run)
    ...         text = json.dumps({"blobs": [{"blobName": f"x/{run}/part_0.csv"}], "runInfo": {"submittedTime": time}})
    ...         _ = (place / "manifest.json").write_text(text)
    ...     [path.read_text() for path in delivered([folder]).files]
    ['new']
    """
    files: list[Path] = []
    left_out: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            files.append(path)
            continue
        parts, manifests = _inside(path)
        if manifests:
            chosen = [
                part for manifest in _newest(path, manifests) for part in _parts_of(path, manifest, parts)
            ]
        else:
            chosen = parts
            _require_one_refresh(path, parts)
        _require_one_kind(path, chosen)
        files += [path / part for part in dict.fromkeys(chosen)]
        left_out += [path / part for part in parts if part not in set(chosen)]
    return Delivery(tuple(files), tuple(left_out))


def _inside(folder: Path) -> tuple[list[PurePosixPath], list[Manifest]]:
    """Parts and manifests in a folder, by their paths below it; hidden ones are passed over."""
    inside = sorted(
        path for path in _walk(folder) if not any(name.startswith((".", "_")) for name in path.parts)
    )
    parts = [path for path in inside if PART.search(path.name)]
    if not parts:
        got = examples([str(path) for path in inside]) if inside else "a folder with nothing in it"
        raise TraceFormatError(
            message(str(folder), "parts of a bill, as .csv, .csv.gz or .parquet", got, REMEDY)
        )
    return parts, [_manifest(folder, path) for path in inside if path.name.lower().endswith(MANIFEST)]


def _walk(folder: Path) -> list[PurePosixPath]:
    """Every file in a folder; what cannot be listed or leads out of it is an error, since parts would be missed."""

    def refuse(error: OSError) -> None:
        text = message(str(error.filename), "a readable folder", error.strerror or str(error), REMEDY)
        raise TraceFormatError(text) from error

    found = []
    for place, folders, names in os.walk(folder, onerror=refuse):
        links = [str(Path(place, name)) for name in folders if Path(place, name).is_symlink()]
        if links:
            raise TraceFormatError(
                message(links[0], "a folder of the delivery", "a link to a folder", REMEDY)
            )
        found += [PurePosixPath(Path(place, name).relative_to(folder).as_posix()) for name in names]
    return found


def _manifest(folder: Path, path: PurePosixPath) -> Manifest:
    where = str(folder / path)
    try:
        told = json.loads(read_document(folder / path)[1])
        return Manifest(path, *_facts(told, path))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, TraceFormatError):
            raise
        expected = "a manifest with reportKeys, dataFiles or blobs"
        raise TraceFormatError(
            message(where, expected, f"{type(error).__name__}: {error}"[:200], REMEDY)
        ) from error


def _facts(told: Any, path: PurePosixPath) -> tuple[str, str, str, tuple[str, ...]]:  # noqa: ANN401 - JSON
    """Export, period, time and keys of a manifest of any of the three kinds."""
    run = told.get("runInfo", {})
    if "blobs" in told:
        keys, export = (
            [blob["blobName"] for blob in told["blobs"]],
            told.get("exportConfig", {}).get("exportName", ""),
        )
    else:
        keys = told["dataFiles"] if "dataFiles" in told else told["reportKeys"]
        export = told.get("reportName") or path.name
    if not keys or not all(isinstance(key, str) for key in keys):
        raise TypeError
    named = PERIOD.search(str(path)) or PERIOD.search(keys[0])
    if "startDate" in run:
        period = date.fromisoformat(run["startDate"][:10]).isoformat()
    else:
        period = named.group() if named else ""
    made = MADE.search(str(path)) or MADE.search(keys[0])
    return str(export), period, str(run.get("submittedTime") or (made.group() if made else "")), tuple(keys)


def _newest(folder: Path, manifests: Sequence[Manifest]) -> list[Manifest]:
    """The manifest of each period that counts: made last or, where no time is told, standing above the others."""
    exports = sorted({manifest.export for manifest in manifests})
    if len(exports) > 1:
        todo = "Read each on its own: two exports may tell of the same charges."
        raise TraceFormatError(message(str(folder), "parts of one export", examples(exports), todo))
    newest = []
    for period in sorted({manifest.period for manifest in manifests}):
        same = [manifest for manifest in manifests if manifest.period == period]
        order = sorted(same, key=_age)
        if len(order) > 1 and _age(order[-1]) == _age(order[-2]) and order[-1].keys != order[-2].keys:
            _refuse_refreshes(folder, period, [str(manifest.path) for manifest in same])
        newest.append(order[-1])
    return newest


def _age(manifest: Manifest) -> tuple[str, int]:
    return manifest.made, -len(manifest.path.parts)


def _parts_of(folder: Path, manifest: Manifest, parts: Sequence[PurePosixPath]) -> list[PurePosixPath]:
    """The files that a manifest lists, by their keys: the same path from the period on, or beside the manifest."""
    found, missing = [], []
    for key in map(PurePosixPath, manifest.keys):
        same = [part for part in parts if _ends_alike(part, key) or part == manifest.path.with_name(key.name)]
        if len(same) == 1:
            found += same
        else:
            missing.append(str(key))
    if missing:
        where = f"{folder / manifest.path}"
        expected = "each part that it lists in the folder once"
        raise TraceFormatError(message(where, expected, f"not so for {examples(missing)}", REMEDY))
    return found


def _ends_alike(part: PurePosixPath, key: PurePosixPath) -> bool:
    """True if a key ends with the path of a part; folders above that of the period may be others."""
    named = PERIOD.search(str(part))
    end = PurePosixPath(str(part)[named.start() :]).parts if named else part.parts
    return key.parts[-len(end) :] == end


def _require_one_refresh(folder: Path, parts: Sequence[PurePosixPath]) -> None:
    """Without a manifest, parts of a period in two folders may be two refreshes of it."""
    places: dict[str, set[str]] = {}
    for part in parts:
        named = PERIOD.search(str(part))
        if named:
            places.setdefault(named.group(), set()).add(str(part.parent))
    for period, folders in sorted(places.items()):
        if len(folders) > 1:
            _refuse_refreshes(folder, period, sorted(folders))


def _require_one_kind(folder: Path, parts: Sequence[PurePosixPath]) -> None:
    kinds = {"Parquet" if part.name.lower().endswith(".parquet") else "CSV": part.name for part in parts}
    if len(kinds) > 1:
        todo = "Give the files of one kind: the others may hold the same charges."
        got = "; ".join(f"{kind}: {name}" for kind, name in sorted(kinds.items()))
        raise TraceFormatError(message(str(folder), "parts of one kind", got, todo))


def _refuse_refreshes(folder: Path, period: str, got: Sequence[str]) -> None:
    expected = f"one refresh of {period}, or a manifest that says which is the newest"
    todo = "Give the folder of the newest one."
    raise TraceFormatError(message(str(folder), expected, examples(got), todo))
