"""What a dataset shall hold once a source has said more: made from what it holds now, before anything is written."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.core.kept_files import scan_table
from gpuplanner.inbox.core.merge_jobs import merge
from gpuplanner.inbox.core.months import MONTH, SAMPLES, months
from gpuplanner.inbox.core.table_rows import merge_tables
from gpuplanner.inbox.draft import Draft, as_layer, write_part
from gpuplanner.inbox.store import MARK, OF_EACH, SOURCES, Stored, open_dataset, open_part, read_provenance
from gpuplanner.inbox.telemetry.overlay import grow

HASH_LETTERS = 16
"""Letters of a hash that name a part: 64 bits."""


def as_it_is(directory: Path) -> tuple[Mapping[str, Mapping[str, Any]], Draft]:
    """Facts of the sources that a folder has, and all that it holds, to be kept as it is."""
    if not (directory / MARK.file).is_file():
        return {}, Draft({}, {}, {}, {})
    # All is checked; the jobs, which may be many, stay where they are.
    whole = open_dataset(directory, columns=["attempt"])
    stored = Stored(directory, read_provenance(directory))
    tables: dict[str, pl.DataFrame | Path] = {
        name: directory / "jobs.parquet" if name == "jobs" else table
        for name, table in whole.tables.items()
        if name not in OF_EACH
    }
    files = {
        (month, source): path
        for source in stored.telemetry
        for month, path in months(directory, source).items()
    }
    parts = {
        (path.parent.parent.name, path.name): path for path in sorted((directory / SOURCES).glob("*/parts/*"))
    }
    return stored.facts, Draft({name: stored.layer(name) for name in stored.facts}, tables, files, parts)


def without(
    facts: Mapping[str, Mapping[str, Any]], draft: Draft, name: str
) -> tuple[Mapping[str, Mapping[str, Any]], Draft]:
    """A dataset as if one source had never been read."""
    mine = set(facts[name].get("tables", draft.layers[name].facts["tables"])) if name in facts else set()
    return {source: each for source, each in facts.items() if source != name}, Draft(
        {source: layer for source, layer in draft.layers.items() if source != name},
        {table: rows for table, rows in draft.tables.items() if table not in mine},
        {key: samples for key, samples in draft.months.items() if key[1] != name},
        {key: part for key, part in draft.parts.items() if key[0] != name},
    )


def laid_over(
    draft: Draft, name: str, new: Sequence[Dataset], known: Mapping[str, Any] | None, *, by_metric: bool
) -> Draft:
    """What the folder shall hold once the new rows are in it."""
    kind = new[0].kind
    if kind == "jobs":
        return _with_parts(draft, name, new, known)
    [only] = new
    if known is None:
        fresh = Draft.of(only)
        return Draft(
            {**draft.layers, **fresh.layers}, {**draft.tables, **fresh.tables},
            {**draft.months, **fresh.months}, draft.parts,
        )  # fmt: skip
    layer = draft.layers[name]
    old = Dataset(layer.tables, scan_table(layer.rejects).collect(), layer.quality, layer.facts)
    if kind == SAMPLES:
        there = {month: path for (month, source), path in draft.months.items() if source == name}
        files = {month: path for month, path in there.items() if isinstance(path, Path)}
        whole, changed = grow(old, files, only, by_metric=by_metric)
        kept = {**draft.months, **{(month, name): samples for month, samples in changed.items()}}
        layers = {**draft.layers, name: as_layer(whole, [SAMPLES])}
        return replace(draft, layers=layers, months=kept)
    there_now = layer.tables[kind] if kind in OF_EACH else draft.tables[kind]
    merged = merge_tables(old, only, scan_table(there_now).collect())
    beside = {each: layer.tables.get(each) for each in OF_EACH if each != kind} | dict(only.tables)
    grown = Draft.of(merged.with_tables(**beside | {kind: merged.table}))
    return replace(draft, layers={**draft.layers, **grown.layers}, tables={**draft.tables, **grown.tables})


def with_files(draft: Draft, read: Dataset, layer: str, room: Path) -> Draft:
    """A new source whose rows stand in files already: jobs and rejects, or samples by month."""
    if (jobs := room / "jobs.parquet").exists():
        rejects = room / "rejects.parquet"
        told = replace(as_layer(read, ["jobs"]), rejects=rejects)
        write_part(room, read, rejects)
        tables = {**draft.tables, **Draft.of(read).tables, "jobs": jobs}
        parts = {**draft.parts, (layer, _key(read)): room}
        return replace(draft, layers={**draft.layers, layer: told}, tables=tables, parts=parts)
    found = {(path.parent.name, layer): path for path in sorted(room.glob(f"{MONTH}*/{layer}.parquet"))}
    layers = {**draft.layers, layer: as_layer(read, [SAMPLES])}
    return replace(draft, layers=layers, months={**draft.months, **found})


def _with_parts(draft: Draft, name: str, new: Sequence[Dataset], known: Mapping[str, Any] | None) -> Draft:
    """Lists of jobs, those read before and the new ones, as one; a file of the same name takes the other's place."""
    told = {part.provenance["files"][0]["name"] for part in new}
    gone = {
        str(file["sha256"])[:HASH_LETTERS] for file in (known or {}).get("files", ()) if file["name"] in told
    }
    parts: dict[tuple[str, str], Dataset | Path] = {
        key: part for key, part in draft.parts.items() if not (key[0] == name and key[1] in gone)
    }
    parts |= {(name, _key(part)): part for part in new}
    mine = [part for key, part in parts.items() if key[0] == name]
    opened = [open_part(part) if isinstance(part, Path) else part for part in mine]
    merged = merge(opened) if len(opened) > 1 else opened[0]
    return replace(
        draft,
        layers={**draft.layers, name: as_layer(merged)},
        tables={**draft.tables, **merged.tables},
        parts=parts,
    )


def _key(part: Dataset) -> str:
    """Name of a part: of its file's bytes, or of those of all its files."""
    hashes = [str(file["sha256"]) for file in part.provenance["files"]]
    if len(hashes) > 1:
        hashes = [hashlib.sha256("".join(sorted(hashes)).encode()).hexdigest()]
    return hashes[0][:HASH_LETTERS]
