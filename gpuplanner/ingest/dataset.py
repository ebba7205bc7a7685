"""The dataset: tables read from sources, with provenance, rejected rows, quality report and pseudonyms."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import polars as pl

from gpuplanner.core.errors import PrivacyError, TraceFormatError, examples
from gpuplanner.core.privacy import count_rows_with_names, make_pseudonym, pseudonymise
from gpuplanner.core.serialization import from_plain
from gpuplanner.core.units_and_number_formats import SECONDS_PER_HOUR
from gpuplanner.ingest.chunked_tables import LazyJobs
from gpuplanner.ingest.quality_report import Finding, build_quality_report


@dataclass(frozen=True)
class SourceFile:
    """A file that was read: its name and the SHA-256 hash of its bytes."""

    name: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class SourceFacts:
    """Facts of one source in the provenance of a dataset: row counts, observed span, GPU-hours.

    - ``source``: Name of the source.
    - ``rows_in``, ``rows_kept``, ``rows_rejected``, ``rows_quarantined``: Rows read, accepted, rejected, quarantined.
    - ``span_start``, ``span_end``: Observed span, ISO 8601 text in UTC.
    - ``time_zone``: Zone of the naive times of the files.
    - ``files``: Files that were read.
    - ``notes``: Remarks of the reader.
    - ``gpuplanner``: Version of gpuplanner that read the files.
    - ``gpu_hours``: Allocated GPU-hours of the jobs outside quarantine [GPU h].
    - ``quarantined_gpu_hours``: GPU-hours that the quarantined jobs state [GPU h].
    - ``unresolved_gpu_hours``: Estimated GPU-hours of jobs whose number of GPUs is unknown [GPU h].
    - ``shortened``: Text that says what a restriction to a shorter span left out.
    - ``dra_pods``, ``plugin_pods``: Kubernetes pods that request NVIDIA GPUs by DRA, and GPUs by a device plugin.
    - ``dra_nodes``: Nodes whose GPUs the DRA driver of NVIDIA offers.
    """

    source: str
    rows_in: int
    rows_kept: int
    rows_rejected: int
    span_start: str | None
    span_end: str | None
    time_zone: str | None = None
    files: tuple[SourceFile, ...] = ()
    notes: tuple[str, ...] = ()
    gpuplanner: str = "of an unknown version"
    rows_quarantined: int = 0
    quarantined_gpu_hours: float = 0.0
    gpu_hours: float = 0.0
    unresolved_gpu_hours: float = 0.0
    shortened: str | None = None
    """Text that says what a restriction to a shorter span left out; None for the whole observation."""
    dra_pods: int = 0
    plugin_pods: int = 0
    dra_nodes: int = 0

    @property
    def uncounted_gpu_hours(self) -> float:
        """GPU-hours of jobs that no figure counts: in quarantine, or on an unknown number of GPUs [GPU h]."""
        return self.quarantined_gpu_hours + self.unresolved_gpu_hours

    @classmethod
    def from_provenance(cls, provenance: Mapping[str, object]) -> SourceFacts:
        """Read the facts from a provenance mapping; keys that are not a field of the class are ignored.

        Examples
        --------
        >>> counts = {"rows_in": 3, "rows_kept": 2, "rows_rejected": 1}
        >>> provenance = {"source": "itp", **counts, "span_start": None, "span_end": None, "gpus": 8}
        >>> SourceFacts.from_provenance(provenance).rows_kept
        2
        """
        return from_plain(cls, provenance)

    @property
    def span(self) -> tuple[datetime, datetime]:
        """Observed span: its first instant and the first instant after it [UTC]."""
        instants = (self.span_start, self.span_end)
        begin, end = (datetime.fromisoformat(str(instant)).astimezone(UTC) for instant in instants)
        return begin, end


SUMMARY_FACT_KEYS = ("source", "table", "rows_in", "rows_kept", "rows_rejected", "span_start", "span_end", "gpu_hours")
"""Keys of a provenance that a summary shows, in order; ``table`` and ``gpu_hours`` are optional."""


MAIN_TABLE_PRECEDENCE = ("jobs", "samples")
"""Table names in the order in which the first that a dataset has is its main table (:attr:`Dataset.kind`)."""

SampleScan = Callable[[datetime | None, datetime | None], pl.LazyFrame]
"""Function that takes the begin and end of a span [UTC] and returns its samples as a lazy frame."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Tables of one or more sources, freshly read from files or opened from a dataset folder.

    Attributes
    ----------
    tables : mapping of str to polars.DataFrame
        Name → table of ``schemas.TABLES``, and ``coverage`` and ``processes`` of telemetry. Tables that no source gave
        are absent; samples of a folder are read on first use and are not among them.
    rejects : polars.DataFrame
        Rows that cannot be parsed or are implausible: ``file``, ``row`` (line number), ``reason``, ``raw``.
    quality : polars.DataFrame
        Quality report: ``check``, ``severity``, ``rows``, ``effect``, ``example``; most severe first.
    provenance : mapping
        Origin and row counts of the first table; ready for JSON.
    other_sources : tuple of mapping
        Provenance of the other sources of a folder.
    join : mapping, optional
        GPU-hours of the telemetry by how the job on the device was found [GPU h]; None without jobs or telemetry.
    scan : callable, optional
        Function that reads the samples of a span from a folder.
    stored_jobs : LazyJobs, optional
        Jobs of a folder that stay on disk until they are used.
    sample_origins : polars.DataFrame, optional
        Where each sample was first read: ``file``, ``row``, ``raw``, in the order of the samples. Not stored in a
        folder.
    """

    tables: Mapping[str, pl.DataFrame]
    rejects: pl.DataFrame
    quality: pl.DataFrame
    provenance: Mapping[str, Any]
    other_sources: tuple[Mapping[str, Any], ...] = ()
    join: Mapping[str, Any] | None = None
    scan: SampleScan | None = field(default=None, repr=False)
    stored_jobs: LazyJobs | None = field(default=None, repr=False)
    sample_origins: pl.DataFrame | None = field(default=None, repr=False)

    @cached_property
    def source_facts(self) -> SourceFacts:
        """Facts of the first source of the dataset, from its provenance."""
        return SourceFacts.from_provenance(self.provenance)

    @property
    def kind(self) -> str:
        """Name of the main table: jobs, else samples, else the first table."""
        read_later = {"jobs": self.stored_jobs, "samples": self.scan}
        names = [*self.tables, *(name for name, content in read_later.items() if content is not None)]
        return next((name for name in MAIN_TABLE_PRECEDENCE if name in names), names[0])

    @property
    def table(self) -> pl.DataFrame:
        """The main table, named by `kind`."""
        samples = self.samples if self.kind == "samples" else None
        return self.tables[self.kind] if samples is None else samples

    @property
    def jobs(self) -> pl.DataFrame:
        """Table ``schemas.Jobs``, sorted by submission.

        Raises
        ------
        TraceFormatError
            If no source gave a list of jobs.
        """
        if "jobs" not in self.tables:
            description = f"{self.kind} of {self.source_facts.source}"
            todo = "Ingest a list of jobs into the same folder."
            raise TraceFormatError("dataset", "a list of jobs", description, todo)
        return self.tables["jobs"]

    @property
    def lazy_jobs(self) -> LazyJobs:
        """The jobs as a lazy table that is read in chunks."""
        return LazyJobs.from_table(self.jobs) if self.stored_jobs is None else self.stored_jobs

    @property
    def has_jobs(self) -> bool:
        """Whether a source gave a list of jobs."""
        return "jobs" in self.tables or self.stored_jobs is not None

    @cached_property
    def samples(self) -> pl.DataFrame | None:
        """Table ``schemas.Samples`` in memory, sorted by time and device; None without telemetry."""
        if "samples" in self.tables or self.scan is None:
            return self.tables.get("samples")
        return self.scan(None, None).collect()

    def samples_between(self, begin: datetime, end: datetime) -> pl.DataFrame | None:
        """Return the samples from `begin` until before `end` [UTC]; None without telemetry."""
        if self.scan is not None and "samples" not in self.tables:
            return self.scan(begin, end).collect()
        inside = pl.col("time").is_between(begin, end, closed="left")
        return None if self.samples is None else self.samples.filter(inside)

    @property
    def inventory(self) -> pl.DataFrame | None:
        """Table ``schemas.Inventory``; None without a node list."""
        return self.tables.get("inventory")

    @property
    def quotas(self) -> pl.DataFrame | None:
        """Table ``schemas.QueueQuotas``; None without quotas."""
        return self.tables.get("queue_quotas")

    @property
    def coverage(self) -> pl.DataFrame | None:
        """Share of each node and UTC day that telemetry observed; None without telemetry."""
        return self.tables.get("coverage")

    @property
    def processes(self) -> pl.DataFrame | None:
        """Processes observed on the GPUs; None where no source lists them."""
        return self.tables.get("processes")

    def with_tables(self, **tables: pl.DataFrame | None) -> Dataset:
        """Return a copy of the dataset with some tables replaced; None removes a table.

        Examples
        --------
        >>> empty = pl.DataFrame()
        >>> made = Dataset({"jobs": empty}, empty, empty, {}).with_tables(inventory=empty, jobs=None)
        >>> list(made.tables)
        ['inventory']
        """
        remaining = {name: table for name, table in (self.tables | tables).items() if table is not None}  # type: ignore[operator]
        return replace(self, tables=remaining)

    def restrict_to_span(self, jobs: pl.DataFrame, begin: datetime, end: datetime, omission: str) -> Dataset:
        """Return a copy of the dataset as if only a part of its observed time had been observed.

        Parameters
        ----------
        jobs : polars.DataFrame
            Jobs of that part of the time, table ``schemas.Jobs``.
        begin, end : datetime
            Span to keep, without `end` [UTC].
        omission : str
            Text that says what was left out.

        Returns
        -------
        Dataset
            Dataset whose provenance states the new span.
        """
        scan, span = self.scan, {"span_start": begin.isoformat(), "span_end": end.isoformat()}
        return replace(
            self,
            stored_jobs=None,
            tables={"jobs": jobs, **self.tables},
            provenance={**self.provenance, **span, "shortened": omission},
            scan=None if scan is None else lambda first, last: scan(max(first or begin, begin), last),
        )

    def restrict_to_nodes(self, jobs: pl.DataFrame, nodes: pl.DataFrame) -> Dataset:
        """Return a copy of the dataset with the jobs, the samples and, where it has one, the inventory of some nodes.

        Parameters
        ----------
        jobs : polars.DataFrame
            Jobs of these nodes, table ``schemas.Jobs``.
        nodes : polars.DataFrame
            Table ``schemas.Inventory``.
        """
        tables: dict[str, pl.DataFrame] = {"jobs": jobs} | ({} if self.inventory is None else {"inventory": nodes})
        is_there, scan = pl.col("node").is_in(nodes["node"].to_list()), self.scan
        if "samples" in self.tables:
            tables["samples"] = self.tables["samples"].filter(is_there)
        scan_nodes = None if scan is None else lambda first, last: scan(first, last).filter(is_there)
        return replace(self.with_tables(**tables), scan=scan_nodes)

    def summary(self) -> dict[str, object]:
        """Summarise the first source (row counts, span in UTC, totals), the other sources and the telemetry join."""
        facts_by_name = summarise_facts(self.provenance)
        if self.other_sources:
            facts_by_name["other sources"] = [summarise_facts(facts) for facts in self.other_sources]
        if self.join is not None:
            facts_by_name["telemetry by job"] = dict(self.join)
        return facts_by_name

    def __repr__(self) -> str:
        facts = ", ".join(f"{key}={value!r}" for key, value in self.summary().items())
        return f"Dataset({facts})"


def summarise_facts(facts: Mapping[str, Any]) -> dict[str, object]:
    """Select the facts of one source that a summary shows, with its totals.

    Examples
    --------
    >>> summarise_facts({"source": "itp", "rows_in": 1, "rows_kept": 1, "rows_rejected": 0, "span_start": None,
    ...             "span_end": None, "gpu_hours": 8.0, "notes": []})["gpu_hours"]
    8.0
    """
    return {key: facts[key] for key in SUMMARY_FACT_KEYS if key in facts} | dict(facts.get("totals", {}))


def gpu_hours(jobs: pl.DataFrame, until: datetime) -> float:
    """Sum the allocated GPU-hours of jobs: GPUs times the time between start and end.

    A running job counts up to `until`. Jobs without a start, an end or a number of GPUs add nothing; the quality report
    counts them.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``.
    until : datetime
        End of the observation [UTC].

    Returns
    -------
    float
        GPU-hours [GPU h].

    Examples
    --------
    >>> from datetime import UTC
    >>> noon, two = datetime(2025, 1, 1, 12, tzinfo=UTC), datetime(2025, 1, 1, 14, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"start_time": [noon], "end_time": [None], "state": ["RUNNING"], "gpus": [4.0]})
    >>> gpu_hours(jobs, two)
    8.0
    """
    end_if_running = pl.when(pl.col("state") == "RUNNING").then(pl.max_horizontal("start_time", pl.lit(until)))
    end = pl.coalesce(pl.col("end_time").cast(pl.Datetime("us", "UTC")), end_if_running)
    allocated_time = end - pl.col("start_time")
    total = jobs.select((pl.col("gpus") * allocated_time.dt.total_microseconds()).sum() / 1e6).item()
    return float(total) / SECONDS_PER_HOUR


PSEUDONYM_COLUMNS = ("user", "tenant", "job_id", "job_name", "partition", "project")
"""Columns that may name people: job ids where they are pod names, job names that people sign, partitions of one
group."""
WITHHELD_TEXT = "(withheld)"
"""Replacement of quoted source lines and examples in a pseudonymised dataset."""
NAME_WORD_PATTERN = re.compile(r"[\w.@-]+")
"""Words of a text that may be names of users, tenants, jobs or partitions."""


def pseudonymise_dataset(dataset: Dataset, key: bytes, columns: Sequence[str] = PSEUDONYM_COLUMNS) -> Dataset:
    """Replace names in every table of a dataset by pseudonyms.

    Raw lines of rejected rows and examples in the quality report are withheld because they quote the source. The report
    warns where a replaced name is still present in another column.

    Parameters
    ----------
    dataset : Dataset
        Dataset as read.
    key : bytes
        Secret key of the pseudonyms.
    columns : sequence of str
        Columns to replace, of :data:`PSEUDONYM_COLUMNS`.

    Returns
    -------
    Dataset
        Dataset with pseudonyms, which its provenance notes.

    Raises
    ------
    PrivacyError
        If `columns` is empty or has a column that cannot name people.

    Examples
    --------
    >>> jobs = pl.DataFrame({"job_id": ["1"], "user": ["alice"], "tenant": ["vision"]})
    >>> rejects = pl.DataFrame({"raw": ["alice|??"]})
    >>> quality = build_quality_report([Finding("no GPU", "info", 1, "none", "job of alice")])
    >>> trace = Dataset({"jobs": jobs}, rejects, quality, {"notes": ["account of alice: vision"]})
    >>> private = pseudonymise_dataset(trace, bytes(32), ["user"])
    >>> private.jobs["user"][0], private.rejects["raw"][0], private.provenance["notes"]
    ('user-e1085d492d', '(withheld)', ['account of user-e1085d492d: vision'])
    """
    unknown_columns = [name for name in columns if name not in PSEUDONYM_COLUMNS]
    if unknown_columns or not columns:
        got = examples(unknown_columns) if unknown_columns else "none"
        raise PrivacyError("pseudonyms", f"columns of {examples(list(PSEUDONYM_COLUMNS))}", got, "Name them.")

    names: dict[str, set[str]] = {column: set() for column in columns}
    for table in dataset.tables.values():
        for column in names.keys() & {*table.columns}:
            names[column] |= {*table[column].drop_nulls().unique()}
    pseudonyms_by_name = {name: make_pseudonym(name, key, column) for column in columns for name in names[column]}
    quality = dataset.quality.with_columns(example=pl.lit(WITHHELD_TEXT))
    effect = "who it is can be read there: replace that column too, or leave it out before it is shared"
    leftover_findings = [
        Finding(
            f"{column_with_name}: holds a {column} that was replaced elsewhere", "warning", rows, effect, WITHHELD_TEXT
        )
        for table in dataset.tables.values()
        for column in columns
        for column_with_name, rows in count_rows_with_names(
            table, sorted(names[column]), except_columns=columns
        ).items()
    ]
    return replace(
        dataset,
        tables={
            name: pseudonymise(table, key, [column for column in columns if column in table.columns])
            for name, table in dataset.tables.items()
        },
        rejects=dataset.rejects.with_columns(raw=pl.lit(WITHHELD_TEXT)),
        quality=build_quality_report([*leftover_findings, *(Finding(*row) for row in quality.iter_rows())]),
        provenance={**_replace_names(dataset.provenance, pseudonyms_by_name), "pseudonyms": list(columns)},
    )


def _replace_names(value: Any, pseudonyms_by_name: Mapping[str, str]) -> Any:  # noqa: ANN401 - anything that JSON can hold
    """Replace names by pseudonyms in all texts of a JSON value, wherever they are whole words."""
    if isinstance(value, str):
        return NAME_WORD_PATTERN.sub(lambda word: pseudonyms_by_name.get(word.group(), word.group()), value)
    if isinstance(value, Mapping):
        return {name: _replace_names(part, pseudonyms_by_name) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_names(part, pseudonyms_by_name) for part in value]
    return value
