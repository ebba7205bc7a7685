"""The samples table: checked, joined to jobs, and laid over an existing folder."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import polars as pl

from gpuplanner._version import __version__
from gpuplanner.core.errors import OTHER_SOURCE, TraceFormatError, message
from gpuplanner.core.schema_checks import empty
from gpuplanner.core.schemas import LATER_COUNTERS, Samples
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import REJECTS, Rows, names_of
from gpuplanner.ingest.large_tables import DERIVED, by_month, scan_months, write_parts
from gpuplanner.ingest.quality_report import Finding, combined, of_files, report
from gpuplanner.ingest.source_fields import iso
from gpuplanner.ingest.telemetry.coverage import GROUP_ROWS, Seen, seen_of
from gpuplanner.ingest.telemetry.metric_definitions import (
    DEVICE,
    DEVICE_KEY,
    ORDER,
    QUANTITIES,
    RUNGS,
    Metric,
    best_rungs,
    climbed,
    on_one_rung,
    rungs,
)
from gpuplanner.ingest.telemetry.sample_buffer import Columns, Gathering, Spill, with_until
from gpuplanner.ingest.telemetry.telemetry_join import (
    AGAIN,
    BETWEEN_JOBS,
    CONTRADICTION,
    WINDOW_ROWS,
    Joiner,
    holders_table,
)
from gpuplanner.ingest.telemetry.telemetry_quality import (
    JUDGED_BY,
    clock_went_back,
    is_of_samples,
    of_seen,
    overlaps,
    rejected,
)
from gpuplanner.ingest.text_files import FileBlocks, TextFile, texts_of_lines

FACTS = ("profile", "job_id")
ACTIVITY = ("sm_activity", "activity_source")
OVERLAID_QUANTITIES = tuple(name for name in Samples.columns() if name not in (*ORDER, *FACTS, *ACTIVITY, *DERIVED))
NEW = " of the new"
"""Ending of the columns of new samples beside those of old ones."""


def grow(
    old: Dataset, there: Mapping[str, Path], new: Dataset, *, by_metric: bool
) -> tuple[Dataset, dict[str, pl.DataFrame]]:
    """Lay new telemetry over that of the same source; nothing is written.

    Months are read one by one, those without new samples only if a device in them was read by a better counter now.
    """
    assert new.told is not None, "as every reader gives it"
    coming = by_month(pl.concat([new.tables["samples"], new.told], how="horizontal"))
    known = rungs(scan_months(list(there.values())))
    ever = pl.concat([known, rungs(new.tables["samples"])])
    best_now = best_rungs(ever).join(known, on=DEVICE_KEY, how="semi", nulls_equal=True)
    unsettled = not best_rungs(known).equals(best_now)
    changed: dict[str, pl.DataFrame] = {}
    refused = [new.rejects]
    for month in sorted({*there, *coming} if unsettled else coming):
        stored = scan_months([there[month]] if month in there else []).collect()
        samples = on_one_rung(stored, ever)
        if month in coming:
            samples, again = overlay(samples, on_one_rung(coming[month], ever), by_metric=by_metric)
            samples = on_one_rung(samples, ever)
            refused += [again] if new.processes is None else []
        if not samples.equals(stored):
            changed[month] = samples
    parts = [
        changed[month].lazy() if month in changed else scan_months([there[month]])
        for month in sorted({*there, *changed})
    ]
    seen = seen_of(pl.concat([part.select(JUDGED_BY) for part in parts]).collect())
    rejects = pl.concat([old.rejects, *refused]).sort("file", "row", maintain_order=True)
    days = seen.coverage()
    provenance = _provenance(old.provenance, new.provenance, seen, rejects.height)
    before = (Finding(*row) for table in (old.quality, new.quality) for row in table.iter_rows())
    lasting = combined(each for each in before if not is_of_samples(each.check))
    found = [*rejected(rejects, provenance["rows_in"]), *of_seen(seen, days), *lasting]
    whole = Dataset({"coverage": days}, rejects, report(found), provenance)
    return whole.with_tables(processes=_processes(old, new)), changed


def overlay(old: pl.DataFrame, new: pl.DataFrame, *, by_metric: bool) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Samples of a span with those that were read later; each device and instant counts once.

    What was read first counts. Of a source whose rows are samples, an old sample stays as it is; of one whose rows
    are readings of single metrics, each quantity that the old sample lacks is taken from the new one, activity from
    the better rung, and the jobs of both, which then share the device. Either way the order in which files come
    decides only between rows that contradict one another, and laying over in several steps gives what laying over in
    one does.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.core.schemas import Samples
    >>> from gpuplanner.core.schema_checks import conform
    >>> row = {"time": datetime(2026, 1, 1, tzinfo=UTC), "node": "n1", "gpu": 0, "activity_source": "none"}
    >>> first, second = (
    ...     conform(pl.DataFrame([row | read]), Samples, where="example")
    ...     for read in ({"power_w": 400.0}, {"power_w": 410.0, "memory_used_gib": 8.0})
    ... )
    >>> place = {"file": pl.lit("b.prom"), "row": pl.lit(1, pl.Int64), "raw": pl.lit("...")}
    >>> samples, again = overlay(first, second.with_columns(**place), by_metric=True)
    >>> samples["power_w", "memory_used_gib"].row(0), again["reason"].to_list()
    ((400.0, 8.0), ['another value for the same device and time as an earlier row'])
    """
    columns = old.columns
    both = old.join(new, on=ORDER, how="inner", suffix=NEW, nulls_equal=True, maintain_order="left")
    only_new = new.join(both, on=ORDER, how="anti", nulls_equal=True).select(columns)
    if not by_metric:
        same = pl.all_horizontal(
            pl.col(name).eq_missing(pl.col(name + NEW)) for name in (*OVERLAID_QUANTITIES, *ACTIVITY)
        )
        reason = pl.when(same).then(pl.lit(AGAIN)).otherwise(pl.lit(CONTRADICTION))
        return pl.concat([old, only_new]).sort(ORDER), _refused(both, reason)
    better, equal = _rung(NEW) < _rung(""), _rung(NEW) == _rung("")
    differs = [pl.col(name) != pl.col(name + NEW) for name in OVERLAID_QUANTITIES]
    adds = [pl.col(name).is_null() & pl.col(name + NEW).is_not_null() for name in OVERLAID_QUANTITIES]
    contradicts = pl.any_horizontal(*differs, equal & (pl.col("sm_activity") != pl.col("sm_activity" + NEW)))
    shares = (pl.col("job_id") != pl.col("job_id" + NEW)).fill_null(value=False)
    reason = (
        pl.when(shares)
        .then(None)
        .when(contradicts.fill_null(False))
        .then(pl.lit(CONTRADICTION))
        .when(~pl.any_horizontal(*adds, better))
        .then(pl.lit(AGAIN))
    )
    jobs = pl.concat_list(pl.col(name).str.split(BETWEEN_JOBS) for name in ("job_id", "job_id" + NEW))
    filled = both.with_columns(
        *(pl.coalesce(name, name + NEW) for name in (*OVERLAID_QUANTITIES, "profile")),
        pl.when(shares)
        .then(jobs.list.unique().list.sort().list.join(BETWEEN_JOBS))
        .otherwise(pl.coalesce("job_id", "job_id" + NEW))
        .alias("job_id"),
        *(pl.when(better).then(pl.col(name + NEW)).otherwise(pl.col(name)).alias(name) for name in ACTIVITY),
    )
    only_old = old.join(both, on=ORDER, how="anti", nulls_equal=True)
    return pl.concat([only_old, filled.select(columns), only_new]).sort(ORDER), _refused(both, reason)


def _rung(suffix: str) -> pl.Expr:
    """Place on the ladder of what a sample's activity comes from; below all rungs where there is none."""
    places = {rung: place for place, rung in enumerate(RUNGS)}
    place = pl.col("activity_source" + suffix).replace_strict(places)
    return pl.when(pl.col("sm_activity" + suffix).is_not_null()).then(place).otherwise(len(RUNGS))


def _refused(both: pl.DataFrame, reason: pl.Expr) -> pl.DataFrame:
    """New samples that were there already, as rows for the reject table; those without a reason are not refused."""
    table = both.select("file", "row", reason.alias("reason"), "raw")
    return table.filter(pl.col("reason").is_not_null()).cast(REJECTS)


def _processes(old: Dataset, new: Dataset) -> pl.DataFrame | None:
    """Processes of both, each once."""
    tables = [each.processes for each in (old, new) if each.processes is not None]
    return pl.concat(tables).unique(maintain_order=True) if tables else None


def _provenance(old: Mapping[str, Any], new: Mapping[str, Any], seen: Seen, rejected_rows: int) -> dict[str, Any]:
    first, last = seen.span()
    rows_in = old["rows_in"] + new["rows_in"]
    return {
        **new,
        "files": [*old["files"], *new["files"]],
        "rows_in": rows_in,
        "rows_kept": rows_in - rejected_rows,
        "rows_rejected": rejected_rows,
        "samples": seen.samples,
        "span_start": iso(first),
        "span_end": iso(last),
        "gpu_hours": seen.observed_gpu_hours(),
        "boards": sorted({*old["boards"], *new["boards"]}),
        "notes": list(dict.fromkeys([*old["notes"], *new["notes"]])),
        "gpuplanner": __version__,
    }


BLOCK_BYTES = 24 << 20
COUNTERS = {"sm_occupancy": "sm_occupancy", "energy_counter_j": "energy_counter", "xid": "xid"}
"""Column of samples that older folders lack → quantity."""
assert set(COUNTERS) == set(LATER_COUNTERS)


@dataclass(frozen=True)
class Way:
    """How much is in memory while telemetry is read, and where its samples go.

    - ``into``: Folder that gets a file for each month in UTC; without one, all samples are in memory.
    - ``name``: Name of these files, each in a folder ``month=2026-01``.
    - ``block_bytes``: Text that is read at a time.
    - ``window_rows``, ``group_rows``: Rows that are sorted at a time, by time and by GPU.
    """

    into: Path | None = None
    name: str = "samples.parquet"
    block_bytes: int = BLOCK_BYTES
    window_rows: int = WINDOW_ROWS
    group_rows: int = GROUP_ROWS

    def room(self) -> BinaryIO:
        """A file for what must wait: in memory with the samples, or beside them; it goes when it is closed."""
        if self.into is None:
            return io.BytesIO()
        return tempfile.TemporaryFile(dir=self.into)


@dataclass
class SampleSpans:
    """Samples of all rows that were gathered.

    - ``joiner``: Gives the joined rows.
    - ``way``: Where samples go.
    """

    joiner: Joiner
    way: Way
    months: dict[int, list[int]] = field(default_factory=dict)
    _holders: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.gathered: Gathering = self.joiner.gathered
        metrics = self.gathered.metrics or {}
        read = {metrics[str(name)].quantity for (name,) in self.gathered.names.rows if name in metrics}
        has_counter = "energy_counter" in read or self.gathered.spill.has("energy_counter")
        self.seen = Seen(self.joiner.devices, has_counter, self.way.room(), self.way.group_rows)
        self._spill = Spill(self.way.room(), "time")
        count = len(self.joiner.devices)
        self._there, self._sm, self._better, self._engine, self._legacy = np.zeros((5, count), bool)
        self._counted: dict[int, set[str]] = {}

    def take(self) -> pl.DataFrame:
        """Make all samples; those in memory are given back, in order."""
        unused = {"rank", "memory_total", *(() if self.way.into is None else ("id", "line"))}
        for month, rows in self.joiner.samples():
            if not len(rows["time"]):
                continue
            self.seen.see(rows)
            self._note(month, rows)
            self.months.setdefault(month, []).append(len(self._spill))
            self._spill.add({name: values for name, values in rows.items() if name not in unused})
        self.table = holders_table(self.gathered.holders)
        self.ever = self._rungs()
        if self.way.into is None:
            frames = [frame for month in self.months for frame in self._frames(month)]
            return pl.concat(frames, rechunk=True) if frames else empty(Samples)
        for month in self.months:
            place = self.way.into / f"month={month // 12:04d}-{month % 12 + 1:02d}"
            absent = [name for name, quantity in COUNTERS.items() if quantity not in self._counted[month]]
            types = {
                name: column.dtype for name, column in Samples.columns().items() if name not in (*absent, *DERIVED)
            }
            place.mkdir(parents=True, exist_ok=True)
            self._write(month, pl.Schema(types), place / self.way.name)
        return empty(Samples)

    def _write(self, month: int, schema: pl.Schema, path: Path) -> None:
        write_parts(lambda: (frame.select(schema.names()) for frame in self._frames(month)), schema, path)

    def _note(self, month: int, rows: Columns) -> None:
        """Note what devices were read by, which counters a month has, and which holders have samples."""
        rank = rows["rank"]
        self._there[rank] = True
        self._holders.update(np.unique(rows["who"]).tolist())
        given = {name: ~np.isnan(rows[name]) for name in QUANTITIES if name in rows}
        counted = self._counted.setdefault(month, set())
        counted.update(name for name in COUNTERS.values() if name in given and given[name].any())
        nothing = np.zeros(len(rank), bool)
        sm, engine = given.get("sm_active", nothing), given.get("engine_active", nothing)
        self._sm[rank[sm]] = True
        self._better[rank[sm]] = True
        if sm.all():
            return
        side = given.get("tensor_active", nothing) | given.get("dram_active", nothing)
        self._engine[rank[engine & ~sm]] = True
        self._better[rank[engine | side]] = True
        rest = given.get("gpu_util", nothing) & ~(sm | engine | side)
        self._legacy[rank[rest]] = True

    def _rungs(self) -> pl.DataFrame | None:
        """What each device was ever read by; None where no device stands on two rungs."""
        gpus = {
            device[:2]
            for device, there in zip(self.joiner.devices, self._there, strict=True)
            if there and device[2] is not None
        }
        cut = np.array([device[:2] in gpus for device in self.joiner.devices], bool)
        if not (self._engine & self._sm).any() and not (self._legacy & (self._better | cut)).any():
            return None
        schema = {name: DEVICE[name] for name in DEVICE_KEY}
        devices = pl.DataFrame(self.joiner.devices, schema, orient="row")
        read = devices.with_columns(has_sm=pl.Series(self._sm), has_better=pl.Series(self._better))
        return read.filter(pl.Series(self._there))

    def _frames(self, month: int) -> Iterator[pl.DataFrame]:
        """Samples of the spans of a month."""
        for number in self.months[month]:
            frame = self._frame(self._spill.part(number))
            self.seen.see_rungs(frame)
            yield frame

    def _frame(self, rows: Columns) -> pl.DataFrame:
        who = pl.Series(rows["who"])
        held = {
            name: self.table[name].new_from_index(0, len(who))
            if self.table[name].n_unique() == 1
            else self.table[name].gather(who)
            for name in ("node", "gpu", "instance", "profile", "job_id", "mig_enabled")
        }
        values = {name: pl.Series(rows[name], nan_to_null=True) for name in QUANTITIES if name in rows}
        time = pl.Series(rows["time"]).cast(pl.Datetime("us", "UTC"))
        samples = climbed(pl.DataFrame({"time": time, **held, **values}))
        return samples if self.ever is None else on_one_rung(samples, self.ever)

    def boards(self) -> list[str]:
        """Boards of the samples, in the words of the source."""
        found = self.table["board"].gather(pl.Series(sorted(self._holders), dtype=pl.UInt32))
        return found.drop_nulls().unique().sort().to_list()

    def told(self, names: list[str]) -> pl.DataFrame:
        """Where each sample was read first: file, row and text."""
        parts = [self._spill.part(number) for month in self.months for number in self.months[month]]
        ids, lines = (
            np.concatenate([part[name] for part in parts]) if parts else np.empty(0, np.int64)
            for name in ("id", "line")
        )
        file, raw = files_of(self.gathered, ids, names), texts_of(self.gathered, ids)
        return pl.DataFrame({"file": file, "row": lines.astype(np.int64), "raw": raw})


def files_of(gathered: Gathering, ids: np.ndarray, names: list[str]) -> pl.Series:
    """Names of the files of rows."""
    return pl.Series(names, dtype=pl.String).gather(pl.Series(gathered.file_of(ids)))


def texts_of(gathered: Gathering, ids: np.ndarray) -> pl.Series:
    """Texts of rows, where they were kept."""
    return pl.concat([pl.Series(dtype=pl.String), *gathered.texts]).gather(pl.Series(ids))


SHOWN_NAMES = 30


@dataclass
class Story:
    """What a reader says of its files beside their rows.

    - ``source``: Name of the source.
    - ``time_zone``: Zone in which naive times were read.
    - ``notes``: What a reader of the provenance must know.
    - ``more``: Findings of this source.
    - ``processes``: Table ``schemas.Processes``; then rows are processes, of which a device and time may have
      several.
    - ``empty_is_fine``: No rows are an answer.
    """

    source: str
    time_zone: str | None = None
    notes: Sequence[str] = ()
    more: Sequence[Finding] = ()
    processes: pl.DataFrame | None = None
    empty_is_fine: bool = False


def telemetry_of(rows: Rows, story: Story, metrics: dict[str, Metric] | None = None) -> Dataset:
    """Telemetry of a source with one row per device and time or, of `metrics`, per device, time and metric."""
    gathered = Gathering(metrics)
    gathered.add(rows)
    return finish(gathered, rows.files, story)


def finish(
    gathered: Gathering,
    files: Sequence[TextFile],
    story: Story,
    *,
    within_s: float = 0.0,
    way: Way | None = None,
    again: FileBlocks | None = None,
) -> Dataset:
    """Telemetry of all rows that were gathered."""
    way = way or Way()
    names = names_of(files)
    where = f"{story.source}: {', '.join(names[:5])}"
    gathered.signs.refuse_mixed(where)
    rejects = pl.concat([pl.DataFrame(schema=REJECTS), *gathered.rejects])
    if not gathered.good and not (story.empty_is_fine and rejects.is_empty()):
        raise TraceFormatError(_nothing_left(gathered.count, rejects, where))
    joiner = Joiner(gathered, within_s, story.processes is not None, way.window_rows)
    spans = SampleSpans(joiner, way)
    samples = with_until(spans.take())
    seen = spans.seen.settle()
    days = seen.coverage()
    came_twice = _came_twice(joiner, names, again)
    rejects = pl.concat([rejects, came_twice.drop("id")])
    gone = came_twice["id"].to_numpy()
    first, last = seen.span()
    unused = [name[:40] for name in (*gathered.unused, *sorted(gathered.other_metrics))]
    more_names = f" and {len(unused) - SHOWN_NAMES} more" if len(unused) > SHOWN_NAMES else ""
    provenance = {
        "source": story.source,
        "files": [
            {"name": name, "sha256": file.sha256, "bytes": file.bytes} for name, file in zip(names, files, strict=True)
        ],
        "rows_in": gathered.count,
        "rows_kept": gathered.good - came_twice.height,
        "rows_rejected": rejects.height,
        "samples": seen.samples,
        "span_start": iso(first),
        "span_end": iso(last),
        "gpu_hours": seen.observed_gpu_hours(),
        "boards": spans.boards(),
        "time_zone": story.time_zone,
        "notes": [
            *story.notes,
            *([f"not read: {', '.join(unused[:SHOWN_NAMES])}{more_names}"] if unused else []),
        ],
        "gpuplanner": __version__,
    }
    falls, file, line = gathered.falls(gone)
    found = [
        *rejected(rejects, gathered.count),
        *of_seen(seen, days),
        *overlaps(gathered.spans_without(gone), gathered.devices.rows, names),
        *clock_went_back(falls, f"{names[file]}, line {line}"),
        *of_files(names, [file.ends_open for file in files], gathered.blank),
        *story.more,
    ]
    tables = {"coverage": days} if way.into is not None else {"samples": samples, "coverage": days}
    if story.processes is not None:
        tables["processes"] = story.processes.unique(maintain_order=True)
    ordered = rejects.sort("file", "row", maintain_order=True)
    told = spans.told(names) if gathered.keeps_text and way.into is None else None
    return Dataset(tables, ordered, report(found), provenance, told=told)


def _came_twice(joiner: Joiner, names: list[str], again: FileBlocks | None) -> pl.DataFrame:
    """Rows that came twice, for the reject table, with their numbers, by which they are ordered."""
    gathered = joiner.gathered
    parts = [
        pl.DataFrame({"id": places[0], "row": places[1]}).with_columns(reason=pl.lit(reason))
        for reason, found in ((AGAIN, joiner.again), (CONTRADICTION, joiner.contradicting))
        for places in found
    ]
    schema = {"id": pl.Int64, "row": pl.Int64, "reason": pl.String}
    rows = pl.concat([pl.DataFrame(schema=schema), *parts]).sort("id")
    ids = rows["id"].to_numpy()
    numbers = gathered.file_of(ids) if len(ids) else ids
    if gathered.keeps_text or again is None:
        raw = texts_of(gathered, ids)
    else:
        raw = _read_again(again, rows.select("row", number=pl.Series(numbers, dtype=pl.Int64)))
    found = rows.with_columns(file=files_of(gathered, ids, names), raw=raw)
    return found.select("id", *(pl.col(name).cast(dtype) for name, dtype in REJECTS.items()))


def _read_again(blocks: FileBlocks, rows: pl.DataFrame) -> pl.Series:
    """Texts of lines, by number of file and line."""
    wanted: dict[int, set[int]] = {}
    for row, number in rows.select("row", "number").iter_rows():
        wanted.setdefault(number, set()).add(row)
    texts = texts_of_lines(blocks, wanted)
    return pl.Series([texts[number, row] for row, number in rows.iter_rows()], dtype=pl.String)


def _nothing_left(count: int, rejects: pl.DataFrame, where: str) -> str:
    reasons = rejects["reason"].value_counts(sort=True).head(5).iter_rows()
    words = "; ".join(f"{reason} in {rows} row(s)" for reason, rows in reasons)
    got = f"{count} rows and none of them: {words}" if count else "no rows"
    return message(where, "at least one readable sample", got, OTHER_SOURCE)
