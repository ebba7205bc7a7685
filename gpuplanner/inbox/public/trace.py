"""Public lists of jobs as declarations: columns, clock, states, what jobs are made of; one function reads all."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import polars as pl

from gpuplanner.errors import file_name
from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.core.findings import AMBIGUOUS_TIME, NO_QUEUE, Check
from gpuplanner.inbox.core.job_rows import assemble
from gpuplanner.inbox.core.lines.fields import Field
from gpuplanner.inbox.core.lines.reading import read_rows
from gpuplanner.inbox.core.lines.rows import Rows
from gpuplanner.inbox.core.lines.text_file import TextFile, head
from gpuplanner.inbox.core.source import columns_of
from gpuplanner.inbox.core.source_checks import source_check
from gpuplanner.inbox.core.times import (
    FIRST_INSTANT,
    INSTANT,
    iso,
    known_origin,
    known_zone,
    seconds,
    to_utc,
)
from gpuplanner.inbox.slurm.inventory import read_inventory

INSTANTS = ("submit", "start", "end")

RELATIVE = source_check("public: relative dates", pl.lit(value=True))


@dataclass(frozen=True)
class JobTrace:
    """A public list of jobs.

    Fields that are named as columns of ``schemas.Jobs`` become these. Of ``submit_s``, ``start_s`` and ``end_s``
    instants are made by the clock. Where there is no start, it is that of the submission, and the end follows from
    ``run_s``. Where nothing names a tenant it is the name of the file, and where nothing names a state, it is UNKNOWN.

    - ``source``: Name of the source.
    - ``columns``: Column of the file → how to read it.
    - ``zone``: Zone of naive times, unless the user states another.
    - ``origin``: Instant of second 0 as the source tells it, unless the user states another.
    - ``states``: State of the source → ours; other ones reject their row.
    - ``faults``: Reason → rows that are none.
    - ``steps``: Columns made of the fields, each step of those before it.
    - ``ids_shared``: Several jobs may have one id, :func:`told_apart`.
    - ``checks``: What the quality report says of its rows.
    - ``notes``: What the provenance says.
    - ``zone_note``: What it says where the zone was not stated, with a place for the zone.
    - ``seen``: Column of seconds up to which the trace was observed, beside the times of its jobs.
    - ``reduced``: Columns, and the declaration that holds where a file has none of them.
    """

    source: str
    columns: Mapping[str, Field]
    zone: str | None = None
    origin: datetime | None = None
    states: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, pl.Expr] = field(default_factory=dict)
    steps: Sequence[Mapping[str, pl.Expr]] = ()
    ids_shared: bool = False
    checks: Sequence[Check] = ()
    notes: Sequence[str] = ()
    zone_note: str = ""
    seen: str | None = None
    reduced: tuple[Collection[str], JobTrace] | None = None

    def sniff(self, lines: Sequence[str]) -> bool:
        """True if the first lines of a file look like this list."""
        columns = self.columns if self.reduced is None else self.reduced[1].columns
        return columns_of(columns)(lines)

    def __call__(
        self,
        paths: Sequence[str | Path],
        *,
        tz: str | None = None,
        origin: datetime | str | None = None,
        nodes: str | Path | None = None,
    ) -> Dataset:
        """Read files of this list."""
        trace = self
        if self.reduced is not None:
            headers = [line for path in paths for line in head(path)[:1]]
            wanted, other = self.reduced
            if not any(name in line for line in headers for name in wanted):
                trace = other
        rows = read_rows(paths, trace.columns, source=self.source)
        return trace.of(rows, tz=tz, origin=origin, nodes=nodes)

    def of(
        self,
        rows: Rows,
        *,
        tz: str | None = None,
        origin: datetime | str | None = None,
        nodes: str | Path | None = None,
        checks: Sequence[Check] = (),
        notes: Sequence[str] = (),
        more_files: Sequence[TextFile] = (),
    ) -> Dataset:
        """Make a dataset of rows with these fields; `checks` and `notes` are those of these files alone."""
        rows = rows.reject(self.faults) if self.faults else rows
        rows = with_states(rows, self.states) if self.states else rows
        zone = None if self.zone is None else known_zone(tz or self.zone)
        if zone is not None:
            called = {each.name: name for name, each in self.columns.items() if each.kind == "time"}
            rows = localized(rows, called, zone)
        counts = any(f"{name}_s" in rows.good.columns for name in INSTANTS)
        first = origin or self.origin
        zero = known_origin(first or FIRST_INSTANT) if counts else None
        relative = counts and first is None
        jobs = rows.good
        for step in self.steps:
            jobs = jobs.with_columns(**step)
        jobs = told_apart(jobs) if self.ids_shared else jobs
        if zero is not None:
            jobs = jobs.with_columns(
                at(zero, f"{name}_s").alias(f"{name}_time")
                for name in INSTANTS
                if f"{name}_s" in jobs.columns
            )
        queued = "start_time" in jobs.columns
        if not queued:
            submit = pl.col("submit_time")
            jobs = jobs.with_columns(start_time=submit, end_time=submit + seconds(pl.col("run_s")))
        usual = {"attempt": pl.lit(1), "tenant": stem_of(rows.files), "state": pl.lit("UNKNOWN")}
        jobs = jobs.with_columns(**{name: each for name, each in usual.items() if name not in jobs.columns})
        inventory, node_file = (None, None) if nodes is None else read_inventory(nodes)
        told = [f"times are seconds from the start of the trace; second 0 was set to {iso(zero)}"]
        return assemble(
            replace(rows, good=jobs),
            source=self.source,
            time_zone=zone,
            origin=zero,
            last_seen=None if zero is None or self.seen is None else at(zero, self.seen),
            checks=[
                *self.checks,
                *checks,
                *([] if queued else [NO_QUEUE]),
                *([] if zone is None else [AMBIGUOUS_TIME]),
                *([RELATIVE] if relative else []),
            ],
            notes=[
                *(told if relative else []),
                *self.notes,
                *([self.zone_note.format(zone)] if self.zone_note and not tz else []),
                *notes,
            ],
            inventory=inventory,
            more_files=[*more_files, *([] if node_file is None else [node_file])],
        )


def at(zero: datetime, column: str) -> pl.Expr:
    """Instants of a column of seconds from second 0."""
    return pl.lit(zero, INSTANT) + seconds(pl.col(column))


def stem_of(files: Sequence[TextFile]) -> pl.Expr:
    """Name of the file of each row, up to its first dot."""
    stems = {number: file_name(file.path).split(".")[0] for number, file in enumerate(files)}
    return pl.col("file").replace_strict(stems, return_dtype=pl.String)


def with_states(rows: Rows, words: Mapping[str, str]) -> Rows:
    """Put our states for the source's; rows with a state that is none of its words are rejected."""
    state = pl.col("state")
    rows = rows.reject({f"state: not one of {', '.join(words)}": ~state.is_in(list(words))})
    return rows.with_columns(state.replace_strict(dict(words), default="UNKNOWN"))


def localized(rows: Rows, called: Mapping[str, str], zone: str) -> Rows:
    """Turn naive times into UTC instants; `called` says what the source calls each of their columns."""
    columns = list(called)
    was = [pl.col(name).is_not_null().alias(f"was:{name}") for name in columns]
    good = to_utc(rows.good.with_columns(was), columns, zone)
    skipped = {
        f"{word}: the clocks of {zone} skip it": pl.col(f"was:{name}") & pl.col(name).is_null()
        for name, word in called.items()
    }
    read = replace(rows, good=good).reject(skipped)
    return replace(read, good=read.good.drop(f"was:{name}" for name in columns))


def told_apart(rows: pl.DataFrame) -> pl.DataFrame:
    """Give rows of one file that share an id a number behind it, ``twin`` + 1; rows of different files keep theirs.

    An export lists no job twice, so equal ids within it are different jobs that its columns cannot tell apart.
    In a second export the same id is the same job again.

    Examples
    --------
    >>> told_apart(pl.DataFrame({"file": [0, 0, 1], "job_id": ["a", "a", "a"]}))["job_id"].to_list()
    ['a', 'a#2', 'a']
    """
    rows = rows.with_columns(pl.zeros(rows.height, pl.Int64, eager=True).alias("twin"))
    shared = rows["job_id"].is_duplicated()
    if not shared.any():  # few are: all of them would take as long as reading them
        return rows
    before = rows.filter(shared).select(pl.int_range(pl.len()).over("file", "job_id")).to_series()
    again = shared.arg_true().filter(before > 0)
    number = before.filter(before > 0)
    named = rows["job_id"].gather(again) + "#" + (number + 1).cast(pl.String)
    return rows.with_columns(rows["twin"].scatter(again, number), rows["job_id"].scatter(again, named))


def plain(name: str) -> pl.Expr:
    """Text of a number for an id, without the decimals of a whole one; empty where it is missing.

    Examples
    --------
    >>> pl.DataFrame({"gpus": [4.0, 0.5, None]}).select(plain("gpus"))["gpus"].to_list()
    ['4', '0.5', '']
    """
    return pl.col(name).cast(pl.String).str.strip_suffix(".0").fill_null("")
