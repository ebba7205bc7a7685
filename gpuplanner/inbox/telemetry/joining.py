"""Rows of a span of time to one row per device and time: sorted, each counted once, readings joined.

Spans are sorted one after the other, since a sort of all rows would hold them all: that of polars' streaming engine
takes about 100 bytes a row (839 MiB for eight million rows of seven columns), its ``unique`` half of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import polars as pl

from gpuplanner.inbox.telemetry.gathering import HOLDER, MINUTE_US, Gathering
from gpuplanner.inbox.telemetry.holders import (BETWEEN_JOBS)
from gpuplanner.inbox.telemetry.readers.labels import DEVICE
from gpuplanner.inbox.telemetry.readers.metrics import QUANTITIES
from gpuplanner.inbox.telemetry.spill import Codes, Columns, device_order

WINDOW_ROWS = 1 << 18
"""Rows that are sorted at a time; more only where one minute has more. Longer columns cost more memory, each of its
pages asked for anew."""

AGAIN = "the same reading again"
CONTRADICTION = "another value for the same device and time as an earlier row"


@dataclass
class Joiner:
    """Brings the rows of devices and times together, one span after the other.

    - ``gathered``: All rows.
    - ``within_s``: A collector may read the metrics of one round one after the other. Readings of a device follow
      each other into one sample while they are not further apart than this and no metric comes twice; where one does,
      the source samples faster than that, and only readings of one instant belong together.
    - ``many``: A device and time may have several rows, of which the first counts, and the others are no repetitions.
    - ``window_rows``: Rows to sort at a time.
    - ``again``, ``contradicting``: Numbers and lines of the rows that came twice, with the same value and with
      another one.
    """

    gathered: Gathering
    within_s: float = 0.0
    many: bool = False
    window_rows: int = WINDOW_ROWS
    again: list[np.ndarray] = field(default_factory=list)
    contradicting: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        devices = self.gathered.devices.rows
        ordered = sorted(range(len(devices)), key=lambda at: device_order(devices[at]))
        self.rank_of_device = np.empty(len(devices), np.int64)
        self.rank_of_device[ordered] = np.arange(len(devices))
        self.devices = [devices[at] for at in ordered]
        self._held: Columns | None = None
        self._broken: dict[int, int] = {}

    def ranks(self, who: np.ndarray) -> np.ndarray:
        """Place of the device of each row in the order of node, GPU and instance."""
        holders = self.gathered.holders.rows
        codes = [self.gathered.devices.code(held[:3]) for held in holders[len(self._ranks) :]]
        if codes:
            self._ranks = np.concatenate((self._ranks, self.rank_of_device[codes]))
        ranks: np.ndarray = self._ranks[who]
        return ranks

    _ranks: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def samples(self) -> Iterator[tuple[int, Columns]]:
        """Month (months since year 0) and rows of successive spans, sorted by time and device.

        Columns ``time``, ``who``, ``rank``, ``id``, ``line`` and what there is of the quantities.
        """
        waiting: list[tuple[int, int, int, Columns]] = []
        for month, low, high in self._plan():
            cut = self._joined if self.gathered.metrics is not None else self._counted_once
            rows = cut(list(self.gathered.spill.between(low, high)), high)
            early = rows["time"] < low
            if early.any():  # rounds that had begun before this span
                for place, (before, first, last, known) in enumerate(waiting):
                    mine = early & (rows["time"] >= first) & (rows["time"] < last)
                    if mine.any():
                        late = {name: values[mine] for name, values in rows.items()}
                        waiting[place] = (before, first, last, _sorted(_below([known, late])))
                rows = {name: values[~early] for name, values in rows.items()}
            waiting.append((month, low, high, rows))
            open_from = high if self._held is None else int(self._held["time"].min())
            while waiting and waiting[0][2] <= open_from:
                before, _, _, known = waiting.pop(0)
                yield before, known
        for month, _, _, rows in waiting:
            yield month, rows

    def _plan(self) -> Iterator[tuple[int, int, int]]:
        """Month, begin and end of spans with not too many rows each."""
        minutes = sorted(self.gathered.minutes)
        rows, begin, month = 0, None, None
        for minute in minutes:
            here = _month(minute)
            if begin is not None and (
                here != month or rows + self.gathered.minutes[minute] > self.window_rows
            ):
                yield month or 0, begin * MINUTE_US, minute * MINUTE_US
                begin, rows = None, 0
            if begin is None:
                begin, month = minute, here
            rows += self.gathered.minutes[minute]
        if begin is not None:
            yield month or 0, begin * MINUTE_US, (minutes[-1] + 1) * MINUTE_US

    def _counted_once(self, parts: Sequence[Columns], high: int) -> Columns:
        """Rows of a source with a row per sample."""
        rows = _below(parts)
        rows["rank"] = self.ranks(rows["who"])
        rows = _sorted(rows)
        later = np.zeros(len(rows["time"]), bool)
        later[1:] = (rows["time"][1:] == rows["time"][:-1]) & (rows["rank"][1:] == rows["rank"][:-1])
        if later.any():
            first = np.maximum.accumulate(np.where(later, 0, np.arange(len(later))))
            rows = self._without(rows, later, first, [name for name in QUANTITIES if name in rows])
        return rows

    def _without(self, rows: Columns, later: np.ndarray, first: np.ndarray, values: Sequence[str]) -> Columns:
        """Leave out rows that came before; tell those with the values of the first from those with others."""
        if not self.many:
            doubled = np.flatnonzero(later)
            same = np.ones(len(doubled), bool)
            for name in values:
                one, other = rows[name][doubled], rows[name][first[doubled]]
                same &= (one == other) | (np.isnan(one) & np.isnan(other))
            places = np.stack((rows["id"], rows["line"].astype(np.int64)))[:, doubled]
            self.again.append(places[:, same])
            self.contradicting.append(places[:, ~same])
        return {name: column[~later] for name, column in rows.items()}

    def _joined(self, parts: Sequence[Columns], high: int) -> Columns:
        """Rows of a source with a row per metric; rounds that may go on are held for the next span."""
        rows = _below(parts)
        rows["rank"] = self.ranks(rows["who"])
        rows = _sorted(rows, "rank", "time")
        later, first = _come_twice(rows)
        if later.any():
            jobs = self._jobs(rows["who"])
            shared = (jobs != jobs[first]) & (jobs > 0) & (jobs[first] > 0)
            rows = self._without(rows, later & ~shared, first, ["value"])
        if self._held is not None:
            rows = _sorted(_below([self._held, rows]), "rank", "time")
            self._held = None
        at = rows["time"]
        if self.within_s:
            rows, at = self._rounds(rows, high)
        return self._wide(rows, at)

    def _jobs(self, who: np.ndarray) -> np.ndarray:
        """Number of the job that each row names, 0: none. Series of one GPU with several jobs are no repetitions."""
        numbers: dict[object, int] = {None: 0}
        job = HOLDER.index("job_id")
        of_holder = [numbers.setdefault(held[job], len(numbers)) for held in self.gathered.holders.rows]
        jobs: np.ndarray = np.array(of_holder, np.int64)[who]
        return jobs

    def _rounds(self, rows: Columns, high: int) -> tuple[Columns, np.ndarray]:
        """Time of the sample that each reading belongs to; readings that are held are left out."""
        time, rank, count = rows["time"], rows["rank"], len(rows["time"])
        if not count:
            return rows, time
        within_us = round(self.within_s * 1e6)
        head = np.ones(count, bool)
        head[1:] = (rank[1:] != rank[:-1]) | (time[1:] - time[:-1] > within_us)
        begins = np.flatnonzero(head)
        run = np.cumsum(head) - 1
        once = _all_different(run, rows["metric"], len(begins))
        first_rank = rank[begins]
        for place in np.flatnonzero(np.isin(first_rank, list(self._broken))).tolist() if self._broken else ():
            row = int(begins[place])
            last = self._broken[int(rank[row])]
            opens = place == 0 or first_rank[place - 1] != first_rank[place]
            if opens and time[row] - last <= within_us:
                once[place] = False
        ends = np.append(begins[1:], count) - 1
        goes_on = time[ends] >= high - within_us
        self._broken = {int(rank[end]): int(time[end]) for end in ends[goes_on & ~once].tolist()}
        at = np.where(once[run], time[begins][run], time)
        held = (goes_on & once)[run]
        if held.any() and high <= max(self.gathered.minutes) * MINUTE_US:
            self._held = {name: values[held] for name, values in rows.items()}
            return {name: values[~held] for name, values in rows.items()}, at[~held]
        return rows, at

    def _wide(self, rows: Columns, at: np.ndarray) -> Columns:
        """One row per device and sample time, with the first value of each quantity."""
        rank, count = rows["rank"], len(at)
        head = np.ones(count, bool)
        head[1:] = (rank[1:] != rank[:-1]) | (at[1:] != at[:-1])
        group = np.cumsum(head) - 1
        groups = int(head.sum())
        wide = {name: rows[name][head] for name in ("id", "line", "rank")} | {"time": at[head]}
        wide["who"] = self._holders(rows["who"], head, group)
        metrics = self.gathered.metrics or {}
        names = [str(name) for (name,) in self.gathered.names.rows]
        by_quantity: dict[str, list[int]] = {}
        for code, name in enumerate(names):
            if name in metrics:
                by_quantity.setdefault(metrics[name].quantity, []).append(code)
        given = ~np.isnan(rows["value"])
        for quantity in QUANTITIES:
            codes = by_quantity.get(quantity)
            if not codes:
                continue
            mine = given & (rows["metric"] == codes[0] if len(codes) == 1 else np.isin(rows["metric"], codes))
            places = np.flatnonzero(mine)[::-1]  # so that the first is written last
            values = np.full(groups, np.nan)
            values[group[places]] = rows["value"][places]
            if len(places):
                wide[quantity] = values
        return _sorted(wide)

    def _holders(self, who: np.ndarray, head: np.ndarray, group: np.ndarray) -> np.ndarray:
        """Holder of each group: of each fact, the first that a reading of the group states, and all of the jobs."""
        first: np.ndarray = who[head]
        mixed = np.unique(group[who != first[group]])
        if not len(mixed):
            return first
        held = self.gathered.holders
        rows = np.flatnonzero(np.isin(group, mixed))
        facts = holders_table(held)[who[rows]]
        table = (
            facts.with_columns(group=group[rows])
            .group_by("group", maintain_order=True)
            .agg(
                pl.col(*HOLDER[:3]).first(),
                pl.col("profile", "board", "mig_enabled").drop_nulls().first(),
                pl.col("job_id").drop_nulls().unique().sort().str.join(BETWEEN_JOBS),
            )
            .with_columns(pl.col("job_id").replace("", None))
        )
        first = first.copy()
        first[table["group"].to_numpy()] = held.of(table)
        return first


def holders_table(codes: Codes) -> pl.DataFrame:
    """Holders by number."""
    types = DEVICE | {"mig_enabled": pl.Boolean()}
    return pl.DataFrame(codes.rows, schema={name: types[name] for name in HOLDER}, orient="row")


def _month(minute: int) -> int:
    at = datetime.fromtimestamp(minute * 60, UTC)
    return at.year * 12 + at.month - 1


def _below(parts: Sequence[Columns]) -> Columns:
    """Rows below each other; a quantity that a part does not have is NaN in it."""
    if len(parts) == 1:
        return dict(parts[0])
    names: Iterable[str] = dict.fromkeys(name for part in parts for name in part)
    rows: dict[str, np.ndarray] = {}
    for name in names:
        values = [part[name] if name in part else np.full(len(part["time"]), np.nan) for part in parts]
        rows[name] = np.concatenate(values)
    return rows


def _sorted(rows: Columns, first: str = "time", then: str = "rank") -> Columns:
    """Rows by two of their columns; rows of one device and time stay as they follow each other."""
    if len(rows[first]) < 2:
        return rows
    major, minor = rows[first] - rows[first].min(), rows[then] - rows[then].min()
    width = int(minor.max()) + 1
    if int(major.max()) + 1 < 2**62 // width:
        key = major * width + minor
        if (key[1:] >= key[:-1]).all():
            return rows
        order = np.argsort(key, kind="stable")
    else:
        order = np.lexsort((minor, major))
    return {name: values[order] for name, values in rows.items()}


def _come_twice(rows: Columns) -> tuple[np.ndarray, np.ndarray]:
    """Readings, by device and time, whose metric was read before at that time; and the first such reading."""
    time, rank, count = rows["time"], rows["rank"], len(rows["time"])
    head = np.ones(count, bool)
    head[1:] = (rank[1:] != rank[:-1]) | (time[1:] != time[:-1])
    pairs = (np.cumsum(head) << 16) | rows["metric"]
    order = np.argsort(pairs, kind="stable")
    ordered = pairs[order]
    again = np.zeros(count, bool)
    again[1:] = ordered[1:] == ordered[:-1]
    first, later = np.arange(count), np.zeros(count, bool)
    if again.any():
        later[order] = again
        first[order] = order[np.maximum.accumulate(np.where(again, 0, np.arange(count)))]
    return later, first


def _all_different(run: np.ndarray, metric: np.ndarray, runs: int) -> np.ndarray:
    """Whether no metric comes twice, of each run."""
    pairs = (run.astype(np.int64) << 16) | metric
    pairs.sort(kind="stable")
    twice = pairs[1:][pairs[1:] == pairs[:-1]] >> 16
    different = np.ones(runs, bool)
    different[twice] = False
    return different
