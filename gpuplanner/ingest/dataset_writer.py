"""Writing a dataset, and merging new rows into one."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.core.output_places import DATASET_FORMAT
from gpuplanner.core.output_writing import replaced_directory
from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import TABLES, Jobs
from gpuplanner.core.serialization import to_json
from gpuplanner.ingest.dataset import Dataset, gpu_hours
from gpuplanner.ingest.dataset_folder import (
    MARK,
    OF_EACH,
    SOURCES,
    Layer,
    Stored,
    layer_of,
    open_dataset,
    open_part,
    part_of,
    read_provenance,
)
from gpuplanner.ingest.gpu_shares import UNDECIDED, resolve_jobs
from gpuplanner.ingest.job_table import merge, merge_tables, unresolved_gpu_hours
from gpuplanner.ingest.large_tables import (
    MONTH,
    SAMPLES,
    by_month,
    months,
    of_span,
    read_table,
    scan_months,
    scan_table,
    write_month,
    write_table,
)
from gpuplanner.ingest.quality_report import UNKNOWN_GPUS, Finding, combined, report, run_checks
from gpuplanner.ingest.quarantine import (
    OTHER_LAYOUT,
    QUARANTINED,
    believed,
    outgrown_nodes,
    quarantine_facts,
    quarantine_findings,
    require_believed,
    with_past_nodes,
    with_quarantine,
)
from gpuplanner.ingest.telemetry.coverage import coverage
from gpuplanner.ingest.telemetry.sample_table import grow
from gpuplanner.ingest.telemetry.telemetry_join import devices_of, find_holders, shared_names
from gpuplanner.ingest.telemetry.telemetry_quality import join_report

ANY_DEVICE = ("slurm", "job-table")
"""Sources whose GPUs without a type may be whole ones or MIG instances."""
TERMS = "read_with"
"""Name in the facts of a source of the options that all its files were read with."""


@dataclass(frozen=True, eq=False)
class Draft:
    """What a folder shall hold.

    - ``layers``: Source → what it said of itself, in the order in which they came.
    - ``tables``: Tables on top, or the files that hold them as they are, but for :data:`OF_EACH`, which follow from
      the layers.
    - ``months``: Month's folder and source → its samples, or the file that holds them as they are.
    - ``parts``: Source and key → a part of its list of jobs, or the folder that holds it as it is.
    """

    layers: Mapping[str, Layer] = field(default_factory=dict)
    tables: Mapping[str, pl.DataFrame | Path] = field(default_factory=dict)
    months: Mapping[tuple[str, str], pl.DataFrame | Path] = field(default_factory=dict)
    parts: Mapping[tuple[str, str], Dataset | Path] = field(default_factory=dict)

    @classmethod
    def of(cls, dataset: Dataset) -> Draft:
        """What a folder holds that one source filled."""
        source = layer_of(dataset.provenance)
        samples = dataset.samples
        by = {} if samples is None else by_month(samples)
        return cls(
            {source: as_layer(dataset)},
            {name: table for name, table in dataset.tables.items() if name not in (SAMPLES, *OF_EACH)},
            {(month, source): part for month, part in by.items()},
        )

    def grown(self, more: Draft) -> Draft:
        """All that this and another one hold; the other one counts where both have something."""
        names = ("layers", "tables", "months", "parts")
        return Draft(**{name: {**getattr(self, name), **getattr(more, name)} for name in names})


def write_dataset(dataset: Dataset, directory: str | Path) -> Path:
    r"""Write what one source gave as a folder, in place of an older dataset or an empty folder.

    Parameters
    ----------
    dataset : Dataset
        Of one source, as read.
    directory : str or Path
        Gets a Parquet file for each table (samples by month), rejects.parquet, quality.json, provenance.json and the
        folder ``sources``.

    Returns
    -------
    Path
        `directory`.

    Raises
    ------
    OutputError
        If the folder holds anything but a dataset, or cannot be written; what stood there is intact.

    Examples
    --------
    >>> import tempfile
    >>> from gpuplanner.ingest.source_registry import read
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "cluster01.csv"
    ...     _ = path.write_text("job_id,submission_time,duration,num_gpu\na,0,7200,8\n")
    ...     written = write_dataset(read("itp", path), Path(folder) / "mine")
    ...     sorted(file.name for file in written.iterdir())
    ['jobs.parquet', 'manifest.json', 'provenance.json', 'quality.json', 'rejects.parquet', 'sources']
    """
    return replace_dataset(directory, Draft.of(dataset))


def as_layer(dataset: Dataset, more: Sequence[str] = ()) -> Layer:
    """What a source said of itself; `more` are tables that it gave beside those of the dataset."""
    facts = {**dataset.provenance, "tables": sorted({*dataset.tables, *more})}
    tables = {name: table for name, table in dataset.tables.items() if name in OF_EACH}
    samples = dataset.tables.get(SAMPLES)
    if samples is not None and "coverage" not in tables:
        tables["coverage"] = coverage(samples)
    return Layer(facts, dataset.quality, dataset.rejects, tables)


def replace_dataset(directory: str | Path, draft: Draft) -> Path:
    """Put a folder in place of what stood there."""
    directory = Path(directory)
    with replaced_directory(directory, mark=MARK) as folder:
        draft = _judged(draft)
        for name, table in draft.tables.items():
            _write_table(table, folder / f"{name}.parquet")
        for (month, source), samples in draft.months.items():
            path = folder / SAMPLES / month / f"{source}.parquet"
            if isinstance(samples, Path):
                linked(samples, path)
            else:
                write_month(samples, path)
        for source, layer in draft.layers.items():
            _write_layer(folder / SOURCES / source, layer)
        for (source, key), part in draft.parts.items():
            place = part_of(folder, source, key)
            if isinstance(part, Path):
                shutil.copytree(part, place, copy_function=linked)
            else:
                write_part(place, part)
        layers = list(draft.layers.values())
        rejects = [layer.rejects for layer in layers]
        together = rejects[0] if len(rejects) == 1 else pl.concat(map(scan_table, rejects))
        _write_table(together, folder / "rejects.parquet")
        rows = {name: height_of(folder / f"{name}.parquet") for name in [*draft.tables, "rejects"]}
        stored = Stored(folder, {"sources": [layer.facts for layer in layers]})
        for name, table in _of_each(stored, layers).items():
            write_table(table, folder / f"{name}.parquet")
            rows[name] = table.height
        told: dict[str, Any] = {}
        findings = [Finding(*row) for layer in layers for row in layer.quality.iter_rows()]
        if stored.telemetry:
            raw = scan_months(of_span(folder, stored.telemetry, None, None))
            rows[SAMPLES] = raw.select(pl.len()).collect().item()
            if "jobs" in draft.tables:
                told["join"], found = _join(folder, stored, raw, draft.tables)
                findings += found
        quality = layers[0].quality if len(layers) == 1 and not told else report(combined(findings))
        (folder / "quality.json").write_text(to_json(quality.to_dicts()), encoding="utf-8")
        sources = [layer.facts for layer in layers]
        stated = {"format": DATASET_FORMAT, "sources": sources, "rows": rows, **told}
        (folder / "provenance.json").write_text(to_json(stated), encoding="utf-8")
    return directory


def _judged(draft: Draft) -> Draft:
    """Jobs judged by the inventory, whichever source gave it, and when."""
    jobs, inventory = draft.tables.get("jobs"), draft.tables.get("inventory")
    if jobs is None or not isinstance(inventory, pl.DataFrame):
        return draft
    jobs = jobs if isinstance(jobs, pl.DataFrame) else read_table(jobs, Jobs)
    name = next(name for name, layer in draft.layers.items() if "jobs" in layer.facts["tables"])
    layer = draft.layers[name]
    found: list[Finding] = []
    before = jobs
    if "inventory" not in layer.facts["tables"]:
        # Boards of which the words left a doubt may follow from the nodes.
        stated = layer.facts.get(TERMS, {}).get("boards")
        by_slurm = layer.facts["source"] in ANY_DEVICE
        known, _, found = resolve_jobs(jobs, inventory, stated, any_device=by_slurm)
        jobs = conform(known, Jobs, where="jobs")
    marked = with_quarantine(jobs, inventory)
    require_believed(marked["quarantined"].drop_nulls(), marked.height, name)
    sound = believed(marked)
    found += outgrown_nodes(marked, inventory)
    sized = with_past_nodes(sound, inventory)
    if marked.equals(before) and not found:
        return draft
    until = datetime.fromisoformat(layer.facts["span_end"])
    counted = {"gpu_hours": gpu_hours(sound, until), **quarantine_facts(marked, until)}
    again = {each.check for each in found}
    if "inventory" not in layer.facts["tables"]:
        again |= UNDECIDED | {UNKNOWN_GPUS.check}
        found += run_checks(sound, [UNKNOWN_GPUS])
        counted["unresolved_gpu_hours"] = unresolved_gpu_hours(sound, until)
    kept = [
        Finding(*row)
        for row in layer.quality.iter_rows()
        if not row[0].startswith(QUARANTINED) and row[0] not in again and not re.search(OTHER_LAYOUT, row[0])
    ]
    quality = report([*kept, *found, *quarantine_findings(marked, until)])
    layers = {**draft.layers, name: replace(layer, facts={**layer.facts, **counted}, quality=quality)}
    return replace(draft, layers=layers, tables={**draft.tables, "jobs": marked, "inventory": sized})


def _join(
    folder: Path, stored: Stored, raw: pl.LazyFrame, tables: Mapping[str, pl.DataFrame | Path]
) -> tuple[dict[str, Any], list[Finding]]:
    """Work out who held the devices of the telemetry, and keep it."""
    jobs = scan_table(tables["jobs"]).collect()
    names = scan_table(tables["job_names"]).collect() if "job_names" in tables else None
    facts = next(each for each in stored.facts.values() if "jobs" in each["tables"])
    until = datetime.fromisoformat(facts["span_end"])
    together = shared_names(raw, names)
    names = together if names is None else pl.concat([names.select("name", "job_id"), together])
    holders = find_holders(devices_of(raw), jobs, names, until)
    if together.height:
        together.write_parquet(folder / "shared_names.parquet")
    holders.devices.write_parquet(folder / "devices.parquet")
    holders.spans.write_parquet(folder / "holders.parquet")
    seen = read_table(folder / "coverage.parquet", TABLES["coverage"])
    return join_report(stored.scan(), jobs, holders, seen, until)


def _of_each(stored: Stored, layers: Sequence[Layer]) -> dict[str, pl.DataFrame]:
    """Coverage and processes of all telemetry together, and what all sources say of closed nodes."""
    found = {}
    several = len(stored.telemetry) > 1
    for name in OF_EACH:
        tables = [layer.tables[name] for layer in layers if name in layer.tables]
        if tables and name == "coverage" and several:
            found[name] = coverage(stored.scan().select("time", "node", "gpu").collect(engine="streaming"))
        elif tables:
            found[name] = pl.concat(tables).unique(maintain_order=True) if len(tables) > 1 else tables[0]
    return found


def _write_layer(folder: Path, layer: Layer) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _write_table(layer.rejects, folder / "rejects.parquet")
    for name, table in layer.tables.items():
        write_table(table, folder / f"{name}.parquet")
    (folder / "quality.json").write_text(to_json(layer.quality.to_dicts()), encoding="utf-8")


def write_part(folder: Path, part: Dataset, rejects: Path | None = None) -> None:
    """Write a part of a list of jobs, whose rejects may stand in a file already."""
    _write_layer(folder, Layer(part.provenance, part.quality, rejects or part.rejects, part.tables))
    (folder / "provenance.json").write_text(to_json(dict(part.provenance)), encoding="utf-8")


def _write_table(table: pl.DataFrame | pl.LazyFrame | Path, path: Path) -> None:
    if not isinstance(table, Path):
        write_table(table, path)
    elif table != path:
        linked(table, path)


def height_of(path: Path) -> int:
    """Number of rows of a table."""
    return int(pl.scan_parquet(path, glob=False).select(pl.len()).collect().item())


def linked(source: str | Path, target: str | Path) -> None:
    """Give the new folder a file of the old one as it is: files are replaced and never changed, so they may share."""
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


HASH_LETTERS = 16
"""Letters of a hash that name a part: 64 bits."""


def as_it_is(directory: Path) -> tuple[Mapping[str, Mapping[str, Any]], Draft]:
    """Facts of the sources that a folder has, and all that it holds, to be kept as it is."""
    if not (directory / MARK.file).is_file():
        return {}, Draft()
    # All is checked; the jobs, which may be many, stay where they are.
    whole = open_dataset(directory, columns=["attempt"])
    stored = Stored(directory, read_provenance(directory))
    tables: dict[str, pl.DataFrame | Path] = {
        name: table for name, table in whole.tables.items() if name not in OF_EACH
    }
    if "jobs" in tables:
        tables["jobs"] = directory / "jobs.parquet"
    files = {(month, source): path for source in stored.telemetry for month, path in months(directory, source).items()}
    parts = {(path.parent.parent.name, path.name): path for path in sorted((directory / SOURCES).glob("*/parts/*"))}
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
        return draft.grown(Draft.of(only))
    layer = draft.layers[name]
    old = Dataset(layer.tables, scan_table(layer.rejects).collect(), layer.quality, layer.facts)
    if kind == SAMPLES:
        there = {month: path for (month, source), path in draft.months.items() if source == name}
        files = {month: path for month, path in there.items() if isinstance(path, Path)}
        whole, changed = grow(old, files, only, by_metric=by_metric)
        fresh = {(month, name): samples for month, samples in changed.items()}
        return draft.grown(Draft({name: as_layer(whole, [SAMPLES])}, months=fresh))
    there_now = layer.tables[kind] if kind in OF_EACH else draft.tables[kind]
    merged = merge_tables(old, only, scan_table(there_now).collect())
    beside = {each: layer.tables.get(each) for each in OF_EACH if each != kind} | dict(only.tables)
    return draft.grown(Draft.of(merged.with_tables(**beside | {kind: merged.table})))


def with_files(draft: Draft, read: Dataset, layer: str, room: Path) -> Draft:
    """A new source whose rows stand in files already: jobs and rejects, or samples by month."""
    if (jobs := room / "jobs.parquet").exists():
        rejects = room / "rejects.parquet"
        told = replace(as_layer(read, ["jobs"]), rejects=rejects)
        write_part(room, read, rejects)
        tables = {**Draft.of(read).tables, "jobs": jobs}
        return draft.grown(Draft({layer: told}, tables, parts={(layer, _key(read)): room}))
    found = {(path.parent.name, layer): path for path in sorted(room.glob(f"{MONTH}*/{layer}.parquet"))}
    return draft.grown(Draft({layer: as_layer(read, [SAMPLES])}, months=found))


def _with_parts(draft: Draft, name: str, new: Sequence[Dataset], known: Mapping[str, Any] | None) -> Draft:
    """Lists of jobs, those read before and the new ones, as one; a file of the same name takes the other's place."""
    told = {part.provenance["files"][0]["name"] for part in new}
    files = (known or {}).get("files", ())
    gone = {str(file["sha256"])[:HASH_LETTERS] for file in files if file["name"] in told}
    parts: dict[tuple[str, str], Dataset | Path] = {
        key: part for key, part in draft.parts.items() if not (key[0] == name and key[1] in gone)
    }
    parts |= {(name, _key(part)): part for part in new}
    mine = [part for key, part in parts.items() if key[0] == name]
    opened = [open_part(part) if isinstance(part, Path) else part for part in mine]
    merged = merge(opened) if len(opened) > 1 else opened[0]
    return replace(draft.grown(Draft({name: as_layer(merged)}, merged.tables)), parts=parts)


def _key(part: Dataset) -> str:
    """Name of a part: of its file's bytes, or of those of all its files."""
    hashes = [str(file["sha256"]) for file in part.provenance["files"]]
    if len(hashes) > 1:
        hashes = [hashlib.sha256("".join(sorted(hashes)).encode()).hexdigest()]
    return hashes[0][:HASH_LETTERS]
