"""Dataset folders: writing them, and merging new rows into existing ones."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.core.output_manifests_and_overwrite_checks import DATASET_FORMAT
from gpuplanner.core.output_writing import replace_directory
from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import TABLES, Jobs
from gpuplanner.core.serialization import to_json
from gpuplanner.ingest.chunked_tables import (
    MONTH_PREFIX,
    SAMPLES,
    find_files_in_span,
    find_month_files,
    read_table,
    scan_month_files,
    scan_table,
    split_by_month,
    write_month,
    write_table,
)
from gpuplanner.ingest.dataset import Dataset, gpu_hours
from gpuplanner.ingest.dataset_folder import (
    DATASET_MARK,
    MERGED_TABLES,
    SOURCES_FOLDER,
    SourceRecord,
    StoredDataset,
    job_part_folder,
    open_dataset,
    open_job_part,
    read_provenance,
    record_name,
)
from gpuplanner.ingest.implausible_jobs_and_past_nodes import (
    OTHER_MIG_LAYOUT_PATTERN,
    QUARANTINE_PREFIX,
    add_past_nodes,
    drop_quarantined,
    find_past_fleet_changes,
    mark_quarantine,
    quarantine_facts,
    quarantine_findings,
    require_unquarantined,
)
from gpuplanner.ingest.job_gpu_counting import NODE_LIST_DEPENDENT_CHECKS, count_jobs_in_gpus
from gpuplanner.ingest.node_dump_history import date_unlisted_nodes, merge_dated_inventories
from gpuplanner.ingest.quality_report import (
    UNKNOWN_GPUS_CHECK,
    Finding,
    add_unresolved_hours,
    build_quality_report,
    combine_findings,
    run_checks,
)
from gpuplanner.ingest.table_assembly import merge_job_exports, merge_tables, unresolved_gpu_hours
from gpuplanner.ingest.telemetry.coverage import coverage
from gpuplanner.ingest.telemetry.metric_definitions import DEVICE_KEY
from gpuplanner.ingest.telemetry.sample_table_writer import merge_telemetry
from gpuplanner.ingest.telemetry.telemetry_join import (
    count_named_devices,
    find_allocations,
    find_devices,
    find_shared_names,
)
from gpuplanner.ingest.telemetry.telemetry_quality import summarise_join

UNTYPED_GPU_SOURCES = ("slurm", "job-table")
"""Sources whose GPUs without a type may be full GPUs or MIG instances, such as Slurm."""
READ_OPTIONS_FACT_KEY = "read_with"
"""Key in the stored facts of a source for the reader options that all its files were read with."""


@dataclass(frozen=True, eq=False)
class DatasetDraft:
    """Content that a dataset folder shall have, before it is written.

    - ``records``: Source → its record.
    - ``tables``: Combined tables, or the files that have them unchanged; without :data:`MERGED_TABLES`, which are
      combined from the records.
    - ``months``: Folder of a month and source → samples, or the file that has them unchanged.
    - ``parts``: Source and key → part (exported file) of its list of jobs, or the folder that has it unchanged.
    """

    records: Mapping[str, SourceRecord] = field(default_factory=dict)
    tables: Mapping[str, pl.DataFrame | Path] = field(default_factory=dict)
    months: Mapping[tuple[str, str], pl.DataFrame | Path] = field(default_factory=dict)
    parts: Mapping[tuple[str, str], Dataset | Path] = field(default_factory=dict)

    @classmethod
    def from_dataset(cls, dataset: Dataset) -> DatasetDraft:
        """Plan the folder of a dataset that has one source."""
        source = record_name(dataset.provenance)
        samples = dataset.samples
        samples_by_month = {} if samples is None else split_by_month(samples)
        return cls(
            {source: to_source_record(dataset)},
            {name: table for name, table in dataset.tables.items() if name not in (SAMPLES, *MERGED_TABLES)},
            {(month, source): month_samples for month, month_samples in samples_by_month.items()},
        )

    def merged_with(self, other_draft: DatasetDraft) -> DatasetDraft:
        """Return both drafts combined; where both have an entry, the other draft wins."""
        names = ("records", "tables", "months", "parts")
        return DatasetDraft(**{name: {**getattr(self, name), **getattr(other_draft, name)} for name in names})


def write_dataset(dataset: Dataset, directory: str | Path) -> Path:
    r"""Write the dataset of one source to a folder, replacing an older dataset or an empty folder.

    Parameters
    ----------
    dataset : Dataset
        Tables of one source, as read.
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
        If the folder holds anything but a dataset, or cannot be written; its old content is then intact.

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
    return replace_dataset(directory, DatasetDraft.from_dataset(dataset))


def to_source_record(dataset: Dataset, extra_tables: Sequence[str] = ()) -> SourceRecord:
    """Make the record of the source of a dataset.

    `extra_tables` names tables of the source that are already written to files.
    """
    facts = {**dataset.provenance, "tables": sorted({*dataset.tables, *extra_tables})}
    tables = {name: table for name, table in dataset.tables.items() if name in MERGED_TABLES}
    samples = dataset.tables.get(SAMPLES)
    if samples is not None and "coverage" not in tables:
        tables["coverage"] = coverage(samples)
    return SourceRecord(facts, dataset.quality, dataset.rejects, tables)


def replace_dataset(directory: str | Path, draft: DatasetDraft) -> Path:
    """Write a draft to a folder in place of its old content."""
    directory = Path(directory)
    with replace_directory(directory, mark=DATASET_MARK) as folder:
        draft = _count_jobs(draft)
        for name, table in draft.tables.items():
            _write_or_link_table(table, folder / f"{name}.parquet")
        for (month, source), samples in draft.months.items():
            path = folder / SAMPLES / month / f"{source}.parquet"
            if isinstance(samples, Path):
                link_or_copy(samples, path)
            else:
                write_month(samples, path)
        for source, record in draft.records.items():
            _write_record(folder / SOURCES_FOLDER / source, record)
        for (source, key), part in draft.parts.items():
            part_folder = job_part_folder(folder, source, key)
            if isinstance(part, Path):
                shutil.copytree(part, part_folder, copy_function=link_or_copy)
            else:
                write_job_part(part_folder, part)
        records = sorted(draft.records.values(), key=_record_rank)
        rejects = [record.rejects for record in records]
        all_rejects = rejects[0] if len(rejects) == 1 else pl.concat(map(scan_table, rejects))
        _write_or_link_table(all_rejects, folder / "rejects.parquet")
        row_counts = {name: count_rows(folder / f"{name}.parquet") for name in [*draft.tables, "rejects"]}
        stored_dataset = StoredDataset(folder, {"sources": [record.facts for record in records]})
        for name, table in _combine_shared_tables(stored_dataset, records).items():
            write_table(table, folder / f"{name}.parquet")
            row_counts[name] = table.height
        join_facts: dict[str, Any] = {}
        findings = [Finding(*row) for record in records for row in record.quality.iter_rows()]
        if stored_dataset.telemetry_sources:
            all_samples = scan_month_files(find_files_in_span(folder, stored_dataset.telemetry_sources, None, None))
            row_counts[SAMPLES] = all_samples.select(pl.len()).collect().item()
            if "jobs" in draft.tables:
                join_facts["join"], join_findings = _join_telemetry(folder, stored_dataset, all_samples, draft.tables)
                findings += join_findings
        quality = records[0].quality
        if len(records) > 1 or join_facts:
            quality = build_quality_report(combine_findings(findings))
        (folder / "quality.json").write_text(to_json(quality.to_dicts()), encoding="utf-8")
        sources = [record.facts for record in records]
        provenance = {"format": DATASET_FORMAT, "sources": sources, "rows": row_counts, **join_facts}
        (folder / "provenance.json").write_text(to_json(provenance), encoding="utf-8")
    return directory


def _record_rank(record: SourceRecord) -> tuple[bool, bool, str]:
    """Return the sort key of the sources of a dataset: that of the jobs, those of samples, then by name."""
    tables = record.facts["tables"]
    return "jobs" not in tables, SAMPLES not in tables, record_name(record.facts)


def _combine_node_tables(records: Iterable[SourceRecord]) -> Mapping[str, pl.DataFrame | None]:
    """Combine the inventories of all sources, with their dumps and outages; empty where no source has one."""
    parts = [record.tables for record in records if "inventory" in record.tables]
    tables = merge_dated_inventories(parts) if len(parts) > 1 else {**parts[0]} if parts else None
    if not tables or tables["inventory"] is None:
        return {}
    return {**tables, "inventory": date_unlisted_nodes(tables["inventory"], tables.get("node_dumps"))}


def _count_jobs(draft: DatasetDraft) -> DatasetDraft:
    """Count the jobs of a draft, as they were read, with its inventory, and apply the quarantine rules to them.

    What earlier node lists resolved is forgotten, so that the order of the imports does not matter.
    """
    inventory = _combine_node_tables(draft.records.values()).get("inventory")
    if inventory is None or "jobs" not in draft.tables:
        return draft if inventory is None else replace(draft, tables={**draft.tables, "inventory": inventory})
    name = next(name for name, record in draft.records.items() if "jobs" in record.facts["tables"])
    record = draft.records[name]
    if own_parts := [part for (source, _), part in draft.parts.items() if source == name]:
        as_read = _merge_parts(own_parts)
        record = replace(record, facts={**record.facts, **as_read.provenance}, quality=as_read.quality)
        jobs = as_read.jobs
    else:
        stored = draft.tables["jobs"]
        jobs = stored if isinstance(stored, pl.DataFrame) else read_table(stored, Jobs)
    findings: list[Finding] = []
    if "inventory" not in record.facts["tables"]:
        # Boards of which the words left a doubt may follow from the nodes.
        stated_boards = record.facts.get(READ_OPTIONS_FACT_KEY, {}).get("boards")
        by_slurm = record.facts["source"] in UNTYPED_GPU_SOURCES
        resolved_jobs, _, findings = count_jobs_in_gpus(jobs, inventory, stated_boards, any_device=by_slurm)
        jobs = conform(resolved_jobs, Jobs, source="jobs")
    marked_jobs = mark_quarantine(jobs, inventory)
    require_unquarantined(marked_jobs["quarantined"].drop_nulls(), marked_jobs.height, name)
    trusted_jobs = drop_quarantined(marked_jobs)
    findings += find_past_fleet_changes(marked_jobs, inventory)
    until = datetime.fromisoformat(record.facts["span_end"])
    counted_facts = {"gpu_hours": gpu_hours(trusted_jobs, until), **quarantine_facts(marked_jobs, until)}
    renewed_checks = {finding.check for finding in findings}
    if "inventory" not in record.facts["tables"]:
        renewed_checks |= NODE_LIST_DEPENDENT_CHECKS | {UNKNOWN_GPUS_CHECK.check}
        findings += run_checks(trusted_jobs, [UNKNOWN_GPUS_CHECK])
        counted_facts["unresolved_gpu_hours"] = unresolved_gpu_hours(trusted_jobs, until)
    kept = [
        Finding(*row)
        for row in record.quality.iter_rows()
        if not row[0].startswith(QUARANTINE_PREFIX)
        and row[0] not in renewed_checks
        and not re.search(OTHER_MIG_LAYOUT_PATTERN, row[0])
    ]
    quality = build_quality_report([*kept, *findings, *quarantine_findings(marked_jobs, until)])
    facts = {**record.facts, **counted_facts}
    quality = add_unresolved_hours(quality, facts.get("unresolved_gpu_hours"))
    records = {**draft.records, name: replace(record, facts=facts, quality=quality)}
    tables = {**draft.tables, "jobs": marked_jobs, "inventory": add_past_nodes(trusted_jobs, inventory)}
    return replace(draft, records=records, tables=tables)


def _join_telemetry(
    folder: Path, stored_dataset: StoredDataset, samples: pl.LazyFrame, tables: Mapping[str, pl.DataFrame | Path]
) -> tuple[dict[str, Any], list[Finding]]:
    """Compute which jobs were allocated the devices of the telemetry, and store the join tables.

    Parameters
    ----------
    folder : Path
        New dataset folder.
    stored_dataset : StoredDataset
        The same folder with its source facts.
    samples : polars.LazyFrame
        Samples of all sources.
    tables : mapping of str to polars.DataFrame or Path
        Combined tables with ``jobs``.

    Returns
    -------
    tuple of dict and list of Finding
        Joined GPU-hours by kind of evidence [GPU h], and findings for the quality report.
    """
    jobs = scan_table(tables["jobs"]).collect()
    names = scan_table(tables["job_names"]).collect() if "job_names" in tables else None
    facts = next(facts for facts in stored_dataset.facts_by_source.values() if "jobs" in facts["tables"])
    until = datetime.fromisoformat(facts["span_end"])
    shared_pod_names = find_shared_names(samples, names)
    names = shared_pod_names if names is None else pl.concat([names.select("name", "job_id"), shared_pod_names])
    devices = find_devices(samples)
    with_kind = samples.join(devices.lazy().select(*DEVICE_KEY, "kind"), on=DEVICE_KEY, how="left", nulls_equal=True)
    holders = find_allocations(devices, jobs, names, until, count_named_devices(with_kind, names))
    if shared_pod_names.height:
        shared_pod_names.write_parquet(folder / "shared_names.parquet")
    holders.devices.write_parquet(folder / "devices.parquet")
    holders.spans.write_parquet(folder / "holders.parquet")
    coverage_table = read_table(folder / "coverage.parquet", TABLES["coverage"])
    return summarise_join(stored_dataset.scan(), jobs, holders, coverage_table, until)


def _combine_shared_tables(stored_dataset: StoredDataset, records: Sequence[SourceRecord]) -> dict[str, pl.DataFrame]:
    """Combine the tables that several sources may give, without the inventory."""
    combined = {}
    has_several_sources = len(stored_dataset.telemetry_sources) > 1
    parts = [record.tables for record in records if "inventory" not in record.tables] + [_combine_node_tables(records)]
    for name in MERGED_TABLES:
        tables = [table for part in parts if (table := part.get(name)) is not None and name != "inventory"]
        if tables and name == "coverage" and has_several_sources:
            combined[name] = coverage(stored_dataset.scan().select("time", "node", "gpu").collect(engine="streaming"))
        elif tables:
            combined[name] = pl.concat(tables).unique(maintain_order=True) if len(tables) > 1 else tables[0]
    return combined


def _write_record(folder: Path, record: SourceRecord) -> None:
    """Write the record of a source to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_or_link_table(record.rejects, folder / "rejects.parquet")
    for name, table in record.tables.items():
        write_table(table, folder / f"{name}.parquet")
    (folder / "quality.json").write_text(to_json(record.quality.to_dicts()), encoding="utf-8")


def write_job_part(folder: Path, dataset: Dataset, rejects: Path | None = None) -> None:
    """Write one part (exported file) of a list of jobs to a folder; its rejects may already be in a file."""
    _write_record(folder, SourceRecord(dataset.provenance, dataset.quality, rejects or dataset.rejects, dataset.tables))
    (folder / "provenance.json").write_text(to_json(dict(dataset.provenance)), encoding="utf-8")


def _write_or_link_table(table: pl.DataFrame | pl.LazyFrame | Path, path: Path) -> None:
    """Write a table to a Parquet file, or link the file that has it."""
    if not isinstance(table, Path):
        write_table(table, path)
    elif table != path:
        link_or_copy(table, path)


def count_rows(path: Path) -> int:
    """Count the rows of a Parquet file."""
    return int(pl.scan_parquet(path, glob=False).select(pl.len()).collect().item())


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Hard-link or copy a file of the old folder to the new one; a link is safe as files are never changed."""
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


JOB_PART_HASH_CHARACTERS = 16
"""Characters of a SHA-256 hash (64 bits) that name a part (exported file) of a job list."""


def load_draft(directory: Path) -> tuple[Mapping[str, Mapping[str, Any]], DatasetDraft]:
    """Load the facts of all sources of a folder, and a draft that keeps its content unchanged."""
    if not (directory / DATASET_MARK.file).is_file():
        return {}, DatasetDraft()
    # All is checked; the jobs, which may be many, stay where they are.
    dataset = open_dataset(directory, columns=["attempt"])
    stored = StoredDataset(directory, read_provenance(directory))
    tables: dict[str, pl.DataFrame | Path] = {
        name: table for name, table in dataset.tables.items() if name not in MERGED_TABLES
    }
    if "jobs" in tables:
        tables["jobs"] = directory / "jobs.parquet"
    files = {
        (month, source): path
        for source in stored.telemetry_sources
        for month, path in find_month_files(directory, source).items()
    }
    parts = {
        (path.parent.parent.name, path.name): path for path in sorted((directory / SOURCES_FOLDER).glob("*/parts/*"))
    }
    return stored.facts_by_source, DatasetDraft(
        {name: stored.read_record(name) for name in stored.facts_by_source}, tables, files, parts
    )


def remove_source(
    sources: Mapping[str, Mapping[str, Any]], draft: DatasetDraft, source: str
) -> tuple[Mapping[str, Mapping[str, Any]], DatasetDraft]:
    """Remove one source from the facts and the draft of a dataset."""
    own_tables = draft.records[source].facts["tables"] if source in draft.records else ()
    return {key: facts for key, facts in sources.items() if key != source}, DatasetDraft(
        {key: record for key, record in draft.records.items() if key != source},
        {table: rows for table, rows in draft.tables.items() if table not in own_tables},
        {key: samples for key, samples in draft.months.items() if key[1] != source},
        {key: part for key, part in draft.parts.items() if key[0] != source},
    )


def merge_into_draft(
    draft: DatasetDraft,
    source: str,
    new_datasets: Sequence[Dataset],
    known_facts: Mapping[str, Any] | None,
    *,
    by_metric: bool,
) -> DatasetDraft:
    """Merge newly read rows of one source into a draft.

    Parameters
    ----------
    draft : DatasetDraft
        Content of the dataset so far.
    source : str
        Name of the source record.
    new_datasets : sequence of Dataset
        New rows; several only for lists of jobs.
    known_facts : mapping, optional
        Facts of the source if the dataset has it.
    by_metric : bool
        Samples are readings of single metrics, of which several make one sample.

    Returns
    -------
    DatasetDraft
        Content with the new rows.
    """
    kind = new_datasets[0].kind
    if kind == "jobs":
        return _merge_job_parts(draft, source, new_datasets, known_facts)
    [new_dataset] = new_datasets
    if known_facts is None:
        return draft.merged_with(DatasetDraft.from_dataset(new_dataset))
    record = draft.records[source]
    old_dataset = Dataset(record.tables, scan_table(record.rejects).collect(), record.quality, record.facts)
    if kind == SAMPLES:
        stored_months = {month: path for (month, month_source), path in draft.months.items() if month_source == source}
        files = {month: path for month, path in stored_months.items() if isinstance(path, Path)}
        merged, changed_months = merge_telemetry(old_dataset, files, new_dataset, by_metric=by_metric)
        fresh_months = {(month, source): samples for month, samples in changed_months.items()}
        return draft.merged_with(DatasetDraft({source: to_source_record(merged, [SAMPLES])}, months=fresh_months))
    stored_table = record.tables[kind] if kind in MERGED_TABLES else draft.tables[kind]
    merged = merge_tables(old_dataset, new_dataset, scan_table(stored_table).collect())
    beside_tables = {table: record.tables.get(table) for table in MERGED_TABLES if table != kind}
    beside_tables |= {**new_dataset.tables, **merged.tables}
    return draft.merged_with(DatasetDraft.from_dataset(merged.with_tables(**beside_tables)))


def add_written_files(draft: DatasetDraft, dataset: Dataset, source: str, folder: Path) -> DatasetDraft:
    """Add a new source whose rows are already written to files: jobs and rejects, or samples by month.

    Parameters
    ----------
    draft : DatasetDraft
        Content of the dataset so far.
    dataset : Dataset
        The source as read, without the written tables.
    source : str
        Name of the source record.
    folder : Path
        Folder of the written files.

    Returns
    -------
    DatasetDraft
        Content with the new source.
    """
    if (jobs := folder / "jobs.parquet").exists():
        rejects = folder / "rejects.parquet"
        record = replace(to_source_record(dataset, ["jobs"]), rejects=rejects)
        write_job_part(folder, dataset, rejects)
        tables = {**DatasetDraft.from_dataset(dataset).tables, "jobs": jobs}
        return draft.merged_with(DatasetDraft({source: record}, tables, parts={(source, _part_key(dataset)): folder}))
    month_files = {
        (path.parent.name, source): path for path in sorted(folder.glob(f"{MONTH_PREFIX}*/{source}.parquet"))
    }
    return draft.merged_with(DatasetDraft({source: to_source_record(dataset, [SAMPLES])}, months=month_files))


def _merge_job_parts(
    draft: DatasetDraft, source: str, new_datasets: Sequence[Dataset], known_facts: Mapping[str, Any] | None
) -> DatasetDraft:
    """Merge the old and new parts (exported files) of a source's job list; a file replaces one of the same name."""
    new_file_names = {part.provenance["files"][0]["name"] for part in new_datasets}
    files = (known_facts or {}).get("files", ())
    replaced_keys = {str(file["sha256"])[:JOB_PART_HASH_CHARACTERS] for file in files if file["name"] in new_file_names}
    parts: dict[tuple[str, str], Dataset | Path] = {
        key: part for key, part in draft.parts.items() if not (key[0] == source and key[1] in replaced_keys)
    }
    parts |= {(source, _part_key(part)): part for part in new_datasets}
    merged = _merge_parts([part for key, part in parts.items() if key[0] == source])
    return replace(draft.merged_with(DatasetDraft.from_dataset(merged)), parts=parts)


def _merge_parts(parts: Sequence[Dataset | Path]) -> Dataset:
    """Merge the parts (exported files) of a list of jobs, as they were read."""
    datasets = [open_job_part(part) if isinstance(part, Path) else part for part in parts]
    return merge_job_exports(datasets) if len(datasets) > 1 else datasets[0]


def _part_key(part_dataset: Dataset) -> str:
    """Return the name of a part of a job list: the hash of its file, or of the hashes of all its files."""
    hashes = [str(file["sha256"]) for file in part_dataset.provenance["files"]]
    if len(hashes) > 1:
        hashes = [hashlib.sha256("".join(sorted(hashes)).encode()).hexdigest()]
    return hashes[0][:JOB_PART_HASH_CHARACTERS]
