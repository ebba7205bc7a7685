"""Boards of a fleet played as one: whether jobs wait less where those that named no board may run on any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.hardware import GpuModel
from gpuplanner.scenario import Scenario
from gpuplanner.simulate.nodes import NodeFleet, NodeRequests, Outcome
from gpuplanner.study.decision.arena import Arena
from gpuplanner.study.decision.asked import AS_TODAY
from gpuplanner.study.decision.compare import opened
from gpuplanner.study.decision.explained import bases
from gpuplanner.study.decision.types import ASSUMED, QUEUE
from gpuplanner.study.other_boards import (
    boards_of_partitions,
    bound,
    cluster_of,
    fits_there,
    place_with_range,
)
from gpuplanner.study.past.pools import FleetPools
from gpuplanner.study.plays import played
from gpuplanner.study.tenants.tried import a_week, change_and_verdict, parts_of, played_arena, waits_seen
from gpuplanner.units import SECONDS_PER_DAY, SECONDS_PER_HOUR, SECONDS_PER_MINUTE

ALL = "all"


@dataclass(frozen=True, eq=False)
class PoolsTogether:
    """The same jobs on the boards that they ran on, and on any that may serve them.

    - ``pools``: A row for each board that jobs come from, and one for all: jobs; those that may leave and that do;
      their mean wait in minutes on their own and on any board; GPU-hours a week waited on both, the change with its
      interval and the verdict; by how many GPU-hours a week run times change, at the better and at the worse end.
    - ``blocks``: What intervals are over, in words.
    - ``notes``: What the figures rest on.
    """

    pools: pl.DataFrame
    blocks: str
    notes: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The finding in one sentence."""
        one = self.pools.row(-1, named=True)
        if not one["free"]:
            return "No job may run on another board than its own: played together, boards serve as each by itself."
        if not one["sent"]:
            return f"{one['free']:,} of {one['jobs']:,} jobs may run on another board, and none does."
        return (
            f"Played together, {one['sent']:,} of {one['jobs']:,} jobs run on another board ({one['free']:,} may): "
            f"jobs wait {one['wait_after_min']:,.1f} minutes on average instead of "
            f"{one['wait_before_min']:,.1f} ({one['verdict']}). Their run times change by "
            f"{one['slowed_low']:+,.1f} to {one['slowed_high']:+,.1f} GPU-hours a week."
        )

    def to_dict(self) -> dict[str, Any]:
        """The object of ``--json``."""
        facts = {"sentence": self.sentence, "blocks": self.blocks, "notes": list(self.notes)}
        return facts | {"pools": self.pools.to_dicts()}


@dataclass(frozen=True, eq=False)
class _Joined:
    """All boards as one fleet.

    - ``fleet``: Nodes of all; profiles of board after board, then what several may serve.
    - ``larger``: Profiles that serve each.
    - ``own``, ``free``: Jobs as bound to their boards, and as free to leave them.
    - ``jobs``: ``pool``, ``gpus``, ``ready_s``, ``judged`` and ``free`` of each.
    - ``slower``: How many times as long work of each profile takes with another, at the better and at the worse end.
    """

    fleet: NodeFleet
    larger: list[list[int]]
    own: NodeRequests
    free: NodeRequests
    jobs: pl.DataFrame
    slower: tuple[NDArray[np.float64], NDArray[np.float64]]


def pools_together(fleet: FleetPools) -> PoolsTogether | None:
    """Play the recent past of all boards in one loop: each job on its own board, and on any that may serve it.

    A job may leave its board by the rules of a plan (scenario key ``other_boards``), its own board coming first, then
    that on which it takes the least time. Run times on another board are those of its bandwidth or its arithmetic,
    whichever is worse; a gain that nobody measured is none. The better end is played as well. None where less than a
    day was observed.
    """
    arenas = {name: _arena(own) for name, own in fleet.pools.items()}
    seen = max(one.asked.seen_s for one in arenas.values())
    if seen < SECONDS_PER_DAY:
        return None
    both = _joined(fleet, arenas)
    first = next(iter(arenas.values()))
    better, worse = both.slower
    ends = (better, np.maximum(worse, 1.0))
    free = [_play(both, both.free, slower, first) for slower in ends]
    sides = [_play(both, both.own, np.ones_like(worse), first), *free]
    length, count, blocks = parts_of(seen)
    rows = [_row(name, both, sides, seen, length, count) for name in (*arenas, ALL)]
    return PoolsTogether(pl.DataFrame(rows), blocks, _notes(arenas))


def _arena(own: Scenario) -> Arena:
    _, _, arena, _ = opened(own)
    return played_arena(*bases(arena)[:2])


def _notes(arenas: Mapping[str, Arena]) -> tuple[str, ...]:
    unexplained = [
        name for name, one in arenas.items() if one.base not in (QUEUE, ASSUMED) and waits_seen(one)
    ]
    notes = [
        "Run times on another board follow from data sheets: bandwidth or arithmetic, whichever is worse; no gain is "
        "counted in waits."
    ]
    if unexplained:
        notes.append(
            f"NOT EXPLAINED on {', '.join(unexplained)}: what is played does not reproduce the waits in the data; "
            "trust directions more than figures."
        )
    return tuple(notes)


def _joined(fleet: FleetPools, arenas: Mapping[str, Arena]) -> _Joined:
    """Nodes, profiles and jobs of all boards with numbers of one count."""
    fleets = [one.asked.fleet for one in arenas.values()]
    begins = np.cumsum([0, *(len(one.profiles) for one in fleets)])
    parts, requests = [], []
    zero = min(one.asked.zero for one in arenas.values())
    reached = boards_of_partitions(fleet)
    for place, (name, arena) in enumerate(arenas.items()):
        rows, mine = arena.requests(AS_TODAY)
        later = (arena.asked.zero - zero).total_seconds()
        profile = mine.profile + begins[place]
        requests.append(
            replace(mine, ready_s=mine.ready_s + later, submit_s=mine.submit_s + later, profile=profile)
        )
        table = arena.asked.jobs.with_columns(*bound(fleet.pools[name]))
        parts.append(
            table.select(
                *(_may_go(fleet.pools[name], name, other, there, reached[name]).alias(other)
                  for other, there in arenas.items()),
                pool=pl.lit(name), gpus=pl.Series(arena.asked.gpus()), ready_s=pl.Series(arena.ready_s + later),
                judged=pl.Series(arena.judged),
            )[rows]
        )  # fmt: skip
    jobs = pl.concat(parts)
    own = NodeRequests(*(np.concatenate([getattr(one, name) for one in requests]) for name in _COLUMNS))
    own = replace(own, work=own.profile)
    larger = [
        [begins[place] + number for number in row]
        for place, one in enumerate(arenas.values())
        for row in (one.larger or [[] for _ in one.asked.fleet.profiles])
    ]
    homes, better, worse = _places(arenas, begins)
    go = jobs.select(list(arenas)).to_numpy()
    kinds: dict[tuple[int, ...], int] = {}
    asked = own.profile.copy()
    for row, profile in enumerate(own.profile.tolist()):
        flavours = tuple(there for pool, there in homes[profile] if go[row, pool])
        if flavours:
            asked[row] = begins[-1] + kinds.setdefault((profile, *flavours), len(kinds))
    serving = [[one[0], *larger[one[0]], *one[1:]] for one in kinds]
    first = [one[0] for one in kinds]
    boards = np.repeat(np.arange(len(fleets), dtype=np.int64), np.diff(begins))
    sliced = np.concatenate([np.arange(len(one.profiles)) > 0 for one in fleets])
    wide = int(begins[-1])
    capacity = np.zeros((sum(len(one.gpus) for one in fleets), 1, wide + len(kinds)), np.int64)
    done = 0
    for place, one in enumerate(fleets):
        capacity[done : done + len(one.gpus), 0, begins[place] : begins[place + 1]] = one.capacity[:, 0]
        done += len(one.gpus)
    names = [f"{name}/{profile}" for name, one in arenas.items() for profile in one.asked.fleet.profiles]
    weights = np.concatenate([one.weights for one in fleets])
    nodes = NodeFleet(
        (*names, *(f"any of {len(one)}" for one in kinds)), np.concatenate([one.gpus for one in fleets]), capacity,
        np.zeros(len(capacity), np.int64), np.concatenate([weights, weights[first]]),
        boards=np.concatenate([boards, boards[first]]), sliced=np.concatenate([sliced, sliced[first]]),
    )  # fmt: skip
    return _Joined(
        nodes, [*larger, *serving], own, replace(own, profile=asked), jobs.with_columns(free=pl.Series(asked >= wide)),
        (_padded(better, len(kinds)), _padded(worse, len(kinds))),
    )  # fmt: skip


_COLUMNS = ("ready_s", "submit_s", "run_s", "limit_s", "profile", "total", "nodes")


def _padded(slower: NDArray[np.float64], kinds: int) -> NDArray[np.float64]:
    """The same with columns for what nobody has."""
    return np.hstack([slower, np.ones((len(slower), kinds))])


def _may_go(own: Scenario, name: str, other: str, there: Arena, reached: Mapping[str, set[str]]) -> pl.Expr:
    """Whether jobs of a pool may run on another one."""
    if other == name or cluster_of(other) != cluster_of(name):
        return pl.lit(value=False)
    fits = fits_there(own, other, there.asked.board, int(there.asked.fleet.gpus.max()), reached)
    return (pl.col("free") & fits).fill_null(value=False)


def _places(
    arenas: Mapping[str, Arena], begins: NDArray[np.int64]
) -> tuple[list[list[tuple[int, int]]], NDArray[np.float64], NDArray[np.float64]]:
    """For each profile where else it may be served, the fastest first: number of the pool and of the profile."""
    wide = int(begins[-1])
    better, worse = np.ones((2, wide, wide))
    found: list[list[tuple[int, int]]] = []
    for name, one in arenas.items():
        for profile in one.asked.fleet.profiles:
            ways = []
            for pool, (other, there) in enumerate(arenas.items()):
                way = None if other == name else _way(one.asked.board, profile, there)
                if way is not None:
                    number = int(begins[pool]) + way[0]
                    better[len(found), number], worse[len(found), number] = way[1:]
                    ways.append((way[2], pool, number))
            found.append([(pool, number) for _, pool, number in sorted(ways)])
    return found, better, worse


def _way(home: GpuModel, profile: str, there: Arena) -> tuple[int, float, float] | None:
    """Number of the profile that serves one on another board, if its nodes have it, and how long that takes."""
    way = place_with_range(home, profile, there.asked.board)
    profiles = there.asked.fleet.profiles
    return None if way is None or way[0] not in profiles else (profiles.index(way[0]), *way[1:])


def _play(both: _Joined, requests: NodeRequests, slower: NDArray[np.float64], first: Arena) -> Outcome:
    return played(
        requests, replace(both.fleet, slower=slower), queue=first.queue, larger=both.larger,
        placement="lowest" if first.queue == "slurm" else "best",
    )  # fmt: skip


def _row(
    name: str, both: _Joined, sides: Sequence[Outcome], seen: float, length: float, count: int
) -> dict[str, Any]:
    """The row of a board."""
    jobs = both.jobs
    mine = jobs["judged"].to_numpy() & (True if name == ALL else (jobs["pool"] == name).to_numpy())
    ready, gpus = jobs["ready_s"].to_numpy(), jobs["gpus"].to_numpy()
    home, there = np.asarray(both.fleet.boards)[both.own.profile], np.full(len(mine), -1)
    held = sides[2].held
    there[held["request"].to_numpy()] = np.asarray(both.fleet.boards)[held["profile"].to_numpy()]
    row: dict[str, Any] = {
        "pool": name, "jobs": int(mine.sum()), "free": int((jobs["free"].to_numpy() & mine).sum()),
        "sent": int((mine & (there >= 0) & (there != home)).sum()),
    }  # fmt: skip
    weeks = []
    for side, found in zip(("before", "after"), (sides[0], sides[2]), strict=True):
        wait = np.where(np.isnan(found.start_s), np.maximum(seen - ready, 0.0), found.start_s - ready)[mine]
        row[f"wait_{side}_min"] = float(wait.mean()) / SECONDS_PER_MINUTE if len(wait) else 0.0
        table = pl.DataFrame({"at_s": ready[mine], "waited": wait * gpus[mine] / SECONDS_PER_HOUR})
        weeks.append(a_week(table, "waited", length, count))
    row |= change_and_verdict("waited", *weeks)
    for end, found in zip(("low", "high"), sides[1:], strict=True):
        longer = both.own.run_s * (np.nan_to_num(found.factor, nan=1.0) - 1.0) * gpus / SECONDS_PER_HOUR
        table = pl.DataFrame({"at_s": ready[mine], "longer": longer[mine]})
        row[f"slowed_{end}"] = float(a_week(table, "longer", length, count).mean())
    return row
