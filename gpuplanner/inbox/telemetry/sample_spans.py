"""Joined rows, span by span, to samples: in memory, or as a file for each month."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import polars as pl

from gpuplanner.inbox.core.months import DERIVED, write_parts
from gpuplanner.inbox.telemetry.coverage import GROUP_ROWS, Seen
from gpuplanner.inbox.telemetry.gathering import Gathering
from gpuplanner.inbox.telemetry.joining import WINDOW_ROWS, Joiner, holders_table
from gpuplanner.inbox.telemetry.metric_ladder import climbed, on_one_rung
from gpuplanner.inbox.telemetry.readers.metrics import QUANTITIES
from gpuplanner.inbox.telemetry.spill import Columns, Spill
from gpuplanner.schemas.domain import Samples
from gpuplanner.schemas.check import empty
from gpuplanner.schemas.domain import LATER_COUNTERS

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
        metrics = self.gathered.metrics
        has_counter = (
            self.gathered.spill.has("energy_counter")
            if metrics is None
            else any(
                metrics[str(name)].quantity == "energy_counter"
                for (name,) in self.gathered.names.rows
                if name in metrics
            )
        )
        self.seen = Seen(self.joiner.devices, has_counter, self.way.room(), self.way.group_rows)
        self._spill = Spill(self.way.room(), "time")
        count = len(self.joiner.devices)
        self._there, self._sm, self._better, self._engine, self._legacy = (
            np.zeros(count, bool) for _ in range(5)
        )
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
                name: column.dtype
                for name, column in Samples.columns().items()
                if name not in (*absent, *DERIVED)
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
        devices = pl.DataFrame(
            self.joiner.devices,
            schema={"node": pl.String, "gpu": pl.Int32, "instance": pl.Int32},
            orient="row",
        )
        return devices.with_columns(has_sm=pl.Series(self._sm), has_better=pl.Series(self._better)).filter(
            pl.Series(self._there)
        )

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
        found = (
            self.table["board"].gather(sorted(self._holders))
            if self._holders
            else pl.Series([], dtype=pl.String)
        )
        return found.drop_nulls().unique().sort().to_list()

    def told(self, names: list[str]) -> pl.DataFrame:
        """Where each sample was read first: file, row and text."""
        parts = [self._spill.part(number) for month in self.months for number in self.months[month]]
        ids, lines = (
            np.concatenate([part[name] for part in parts]) if parts else np.empty(0, np.int64)
            for name in ("id", "line")
        )
        return pl.DataFrame(
            {
                "file": files_of(self.gathered, ids, names),
                "row": pl.Series(lines.astype(np.int64)),
                "raw": texts_of(self.gathered, ids),
            }
        )


def files_of(gathered: Gathering, ids: np.ndarray, names: list[str]) -> pl.Series:
    """Names of the files of rows."""
    if not len(ids):
        return pl.Series([], dtype=pl.String)
    return pl.Series(names, dtype=pl.String).gather(pl.Series(gathered.file_of(ids)))


def texts_of(gathered: Gathering, ids: np.ndarray) -> pl.Series:
    """Texts of rows, where they were kept."""
    if not len(ids):
        return pl.Series([], dtype=pl.String)
    return pl.concat(gathered.texts).gather(pl.Series(ids))
