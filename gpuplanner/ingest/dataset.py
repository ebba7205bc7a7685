"""A dataset: tables from sources with what is needed to trust them, and pseudonyms."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import polars as pl

from gpuplanner.core.errors import PrivacyError, TraceFormatError, examples
from gpuplanner.core.privacy import pseudonym, pseudonymise, rows_that_name
from gpuplanner.core.serialization import of_plain
from gpuplanner.core.units import SECONDS_PER_HOUR
from gpuplanner.ingest.large_tables import LongJobs
from gpuplanner.ingest.quality_report import Finding, report


@dataclass(frozen=True)
class SourceFile:
    """A file that was read, by its name and the hash of its bytes."""

    name: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Stated:
    """Where rows come from, and what became of them.

    The span of the observation is in UTC, as text; ``quarantined_gpu_hours`` [GPU h] are those that the jobs in
    quarantine state, ``unresolved_gpu_hours`` about those of jobs whose number of GPUs is not known. Totals of its own
    and how it was read stand in the provenance alone, as the source wrote them.
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
    """What was left out of it, where a part of the time is looked at."""

    @classmethod
    def of(cls, provenance: Mapping[str, object]) -> Stated:
        """Read from a provenance; facts that are no field are passed over.

        Examples
        --------
        >>> counts = {"rows_in": 3, "rows_kept": 2, "rows_rejected": 1}
        >>> Stated.of({"source": "itp", **counts, "span_start": None, "span_end": None, "gpus": 8}).rows_kept
        2
        """
        return of_plain(cls, provenance)

    @property
    def span(self) -> tuple[datetime, datetime]:
        """First instant of the observation, and the first after it [UTC]."""
        instants = (self.span_start, self.span_end)
        begin, end = (datetime.fromisoformat(str(instant)).astimezone(UTC) for instant in instants)
        return begin, end


SHOWN_FIRST = (
    "source",
    "table",
    "rows_in",
    "rows_kept",
    "rows_rejected",
    "span_start",
    "span_end",
    "gpu_hours",
)
"""Facts of a source in the order in which they are shown; table and GPU hours are not of every one."""


COMMON = ("jobs", "samples")
"""Tables that a dataset is named after, before any other."""

Scan = Callable[[datetime | None, datetime | None], pl.LazyFrame]
"""Samples of a span, read when they are collected."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """What sources gave: read from files just now, or kept in a folder.

    Attributes
    ----------
    tables : mapping of str to polars.DataFrame
        Name → table of ``schemas.TABLES``, or one of ``coverage`` and ``processes`` beside telemetry. Those that no
        source gave are absent; samples of a folder are not among them until they are asked for.
    rejects : polars.DataFrame
        Rows that cannot be read or believed: ``file``, ``row`` (line number), ``reason``, ``raw``.
    quality : polars.DataFrame
        ``check``, ``severity``, ``rows``, ``effect``, ``example``; gravest first.
    provenance : mapping
        Where the rows of the first table came from and what was counted; ready for JSON.
    others : tuple of mapping
        The same of the other sources of a folder.
    join : mapping, optional
        GPU-hours of the telemetry by how the job that held the device is known; None without jobs or telemetry.
    scan : callable, optional
        How samples are read from a folder.
    kept : LongJobs, optional
        Jobs of a folder that are read when they are asked for.
    told : polars.DataFrame, optional
        Where each sample was read first: ``file``, ``row``, ``raw``, in the order of the samples. Not kept in a
        folder.
    """

    tables: Mapping[str, pl.DataFrame]
    rejects: pl.DataFrame
    quality: pl.DataFrame
    provenance: Mapping[str, Any]
    others: tuple[Mapping[str, Any], ...] = ()
    join: Mapping[str, Any] | None = None
    scan: Scan | None = field(default=None, repr=False)
    kept: LongJobs | None = field(default=None, repr=False)
    told: pl.DataFrame | None = field(default=None, repr=False)

    @cached_property
    def stated(self) -> Stated:
        """What the source of the first table says of itself."""
        return Stated.of(self.provenance)

    @property
    def kind(self) -> str:
        """Name of the table that the dataset is named after: jobs, else samples, else the first."""
        read_later = {"jobs": self.kept, "samples": self.scan}
        names = [*self.tables, *(name for name, there in read_later.items() if there is not None)]
        return next((name for name in COMMON if name in names), names[0])

    @property
    def table(self) -> pl.DataFrame:
        """The table that the dataset is named after."""
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
            got = f"{self.kind} of {self.stated.source}"
            todo = "Ingest a list of jobs into the same folder."
            raise TraceFormatError("dataset", "a list of jobs", got, todo)
        return self.tables["jobs"]

    @property
    def long(self) -> LongJobs:
        """The same, some of them at a time."""
        return LongJobs.of(self.jobs) if self.kept is None else self.kept

    @property
    def has_jobs(self) -> bool:
        """Whether a source gave a list of jobs."""
        return "jobs" in self.tables or self.kept is not None

    @cached_property
    def samples(self) -> pl.DataFrame | None:
        """Table ``schemas.Samples``, sorted by time and device, all of it in memory; None without telemetry."""
        if "samples" in self.tables or self.scan is None:
            return self.tables.get("samples")
        return self.scan(None, None).collect()

    def samples_between(self, begin: datetime, end: datetime) -> pl.DataFrame | None:
        """Those that hold in a span."""
        if self.scan is not None and "samples" not in self.tables:
            return self.scan(begin, end).collect()
        inside = pl.col("time").is_between(begin, end, closed="left")
        return None if self.samples is None else self.samples.filter(inside)

    @property
    def inventory(self) -> pl.DataFrame | None:
        """Table ``schemas.Inventory``, or None."""
        return self.tables.get("inventory")

    @property
    def quotas(self) -> pl.DataFrame | None:
        """Table ``schemas.QueueQuotas``, or None."""
        return self.tables.get("queue_quotas")

    @property
    def coverage(self) -> pl.DataFrame | None:
        """How much of each node and UTC day telemetry saw, or None without telemetry."""
        return self.tables.get("coverage")

    @property
    def processes(self) -> pl.DataFrame | None:
        """Processes seen on the GPUs, or None where no source lists them."""
        return self.tables.get("processes")

    def with_tables(self, **tables: pl.DataFrame | None) -> Dataset:
        """The same dataset with other tables under some names; None takes one away.

        Examples
        --------
        >>> empty = pl.DataFrame()
        >>> made = Dataset({"jobs": empty}, empty, empty, {}).with_tables(inventory=empty, jobs=None)
        >>> list(made.tables)
        ['inventory']
        """
        kept = {name: table for name, table in (self.tables | tables).items() if table is not None}  # type: ignore[operator]
        return replace(self, tables=kept)

    def shortened(self, jobs: pl.DataFrame, begin: datetime, end: datetime, told: str) -> Dataset:
        """The same of a part of the time, as if nothing else had been observed."""
        scan, span = self.scan, {"span_start": begin.isoformat(), "span_end": end.isoformat()}
        return replace(
            self,
            kept=None,
            tables={"jobs": jobs, **self.tables},
            provenance={**self.provenance, **span, "shortened": told},
            scan=None if scan is None else lambda first, last: scan(max(first or begin, begin), last),
        )

    def summary(self) -> dict[str, object]:
        """The facts to show first: source, row counts, span in UTC, totals; then those of the other sources."""
        told = summary_of(self.provenance)
        if self.others:
            told["other sources"] = [summary_of(facts) for facts in self.others]
        if self.join is not None:
            told["telemetry by job"] = dict(self.join)
        return told

    def __repr__(self) -> str:
        facts = ", ".join(f"{key}={value!r}" for key, value in self.summary().items())
        return f"Dataset({facts})"


def summary_of(facts: Mapping[str, Any]) -> dict[str, object]:
    """The facts of one source to show first.

    Examples
    --------
    >>> summary_of({"source": "itp", "rows_in": 1, "rows_kept": 1, "rows_rejected": 0, "span_start": None,
    ...             "span_end": None, "gpu_hours": 8.0, "notes": []})["gpu_hours"]
    8.0
    """
    return {key: facts[key] for key in SHOWN_FIRST if key in facts} | dict(facts.get("totals", {}))


def gpu_hours(jobs: pl.DataFrame, until: datetime) -> float:
    """GPU-hours held: GPUs times time between start and end.

    A job that still runs counts up to `until`. Jobs without a start, an end or a number of GPUs add
    nothing; the quality report counts them.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``.
    until : datetime
        End of the observation.

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
    still = pl.when(pl.col("state") == "RUNNING").then(pl.lit(until))
    held = pl.coalesce(pl.col("end_time").cast(pl.Datetime("us", "UTC")), still) - pl.col("start_time")
    total = jobs.select((pl.col("gpus") * held.dt.total_microseconds()).sum() / 1e6).item()
    return float(total) / SECONDS_PER_HOUR


NAMED = ("user", "tenant", "job_id", "job_name", "partition")
"""Columns that may name people. Job ids do where they are names of pods, job names where people sign them, partitions
where a group has its own."""
WITHHELD = "(withheld)"
WORD = re.compile(r"[\w.@-]+")


def without_names(trace: Dataset, key: bytes, columns: Sequence[str] = NAMED) -> Dataset:
    """Replace names of a trace by pseudonyms, in every table that has them.

    Lines of rejected rows and examples in the quality report are withheld, since they quote the source. The report
    warns where a name that was replaced still stands in a column that was kept.

    Examples
    --------
    >>> jobs = pl.DataFrame({"job_id": ["1"], "user": ["alice"], "tenant": ["vision"]})
    >>> rejects = pl.DataFrame({"raw": ["alice|??"]})
    >>> quality = report([Finding("no GPU", "info", 1, "none", "job of alice")])
    >>> trace = Dataset({"jobs": jobs}, rejects, quality, {"notes": ["account of alice: vision"]})
    >>> private = without_names(trace, bytes(32), ["user"])
    >>> private.jobs["user"][0], private.rejects["raw"][0], private.provenance["notes"]
    ('user-e1085d492d', '(withheld)', ['account of user-e1085d492d: vision'])
    """
    strange = [name for name in columns if name not in NAMED]
    if strange or not columns:
        got = examples(strange) if strange else "none"
        raise PrivacyError("pseudonyms", f"columns of {examples(list(NAMED))}", got, "Name them.")

    names: dict[str, set[str]] = {column: set() for column in columns}
    for table in trace.tables.values():
        for column in names.keys() & {*table.columns}:
            names[column] |= {*table[column].drop_nulls().unique()}
    known = {name: pseudonym(name, key, column) for column in columns for name in names[column]}
    quality = trace.quality.with_columns(example=pl.lit(WITHHELD))
    effect = "who it is can be read there: replace that column too, or leave it out before it is shared"
    left = [
        Finding(f"{kept}: holds a {column} that was replaced elsewhere", "warning", rows, effect, WITHHELD)
        for table in trace.tables.values()
        for column in columns
        for kept, rows in rows_that_name(table, sorted(names[column]), but=columns).items()
    ]
    return replace(
        trace,
        tables={
            name: pseudonymise(table, key, [column for column in columns if column in table.columns])
            for name, table in trace.tables.items()
        },
        rejects=trace.rejects.with_columns(raw=pl.lit(WITHHELD)),
        quality=report([*left, *(Finding(*row) for row in quality.iter_rows())]),
        provenance={**_scrubbed(trace.provenance, known), "pseudonyms": list(columns)},
    )


def _scrubbed(value: Any, known: Mapping[str, str]) -> Any:  # noqa: ANN401 - anything that JSON can hold
    """Replace names wherever they stand as words of a text."""
    if isinstance(value, str):
        return WORD.sub(lambda word: known.get(word.group(), word.group()), value)
    if isinstance(value, Mapping):
        return {name: _scrubbed(part, known) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_scrubbed(part, known) for part in value]
    return value
