"""Which layouts the GPUs get for a batch of requests, and which profile each request then runs on."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from gpuplanner.errors import ScenarioError
from gpuplanner.hardware import GpuModel, format_layout, parse_layout, prove
from gpuplanner.lab.claims.twenty_jobs.design import Design
from gpuplanner.names import resolve
from gpuplanner.planner import PlanProblem, assign, plan, verify
from gpuplanner.planner.contract.substitution import serves
from gpuplanner.planner.verification.plans import Matching

LAYOUTS = ("static", "exact", "exact_spares", "greedy")
"""``static``: the layout of the design, unchanged. ``exact``: the planner's optimum, less the instances that no
request is to have. ``exact_spares``: the same with them. ``greedy``: first fit, largest requests first."""

_SLOT_START = datetime(2026, 1, 5, 9, tzinfo=UTC)


@dataclass(frozen=True)
class Arrangement:
    """Layouts, and the profile that each request waits for.

    Parameters
    ----------
    layouts : tuple of (str, int)
        Layout text and GPUs that have it; the other GPUs of the fleet are off.
    given : tuple of str or None
        For each request the profile it runs on: its own, or a larger one that is to stand in. None if there
        is none that ever could.
    """

    layouts: tuple[tuple[str, int], ...]
    given: tuple[str | None, ...]

    @property
    def gpus(self) -> int:
        """GPUs that are on."""
        return sum(gpus for _, gpus in self.layouts)


def arrange(requests: Sequence[str], design: Design, how: str) -> Arrangement:
    """Choose layouts for requests that are all there at once.

    Parameters
    ----------
    requests : sequence of str
        Profile of each job.
    design : Design
        Fleet and static layout.
    how : str
        One of :data:`LAYOUTS`.

    Raises
    ------
    ScenarioError
        If `how` is unknown.

    Examples
    --------
    >>> requests = ["3g.40gb"] * 8 + ["2g.20gb"] * 7 + ["1g.10gb"] * 5
    >>> [arrange(requests, Design(), how).gpus for how in LAYOUTS]
    [8, 7, 7, 7]
    """
    chosen = resolve(how, LAYOUTS, what="layouts", error=ScenarioError)
    wanted = Counter(requests)
    on_gpus, places = _arranged(tuple(sorted(wanted.items())), design, chosen)
    queues = {profile: list(given) for profile, given in places.items()}
    given = tuple(queues[profile].pop(0) for profile in requests)
    return Arrangement(tuple(Counter(map(format_layout, on_gpus)).items()), given)


Wanted = tuple[tuple[str, int], ...]
Places = dict[str, tuple[str | None, ...]]


@functools.lru_cache(maxsize=4096)
def _arranged(wanted: Wanted, design: Design, how: str) -> tuple[list[dict[str, int]], Places]:
    """Instances of each GPU that is on, and for each profile what its requests run on."""
    if how == "greedy":
        on_gpus = first_fit(dict(wanted), design.model, design.gpus)
    elif how == "static":
        on_gpus = [parse_layout(design.static_layout) for _ in range(design.gpus)]
    else:
        on_gpus = _planned(wanted, design)
    there = sum(map(Counter, on_gpus), Counter[str]())
    places, used = _matched(wanted, there, design.model)
    if how == "exact":
        on_gpus = _without(on_gpus, there - used)
    return on_gpus, places


def _planned(wanted: Wanted, design: Design) -> list[dict[str, int]]:
    """The planner's optimum for one slot: the fewest GPUs, then the fewest that are cut anew."""
    problem = PlanProblem(
        design.board, design.gpus, design.gpus, _SLOT_START, 1.0, ["case"], [profile for profile, _ in wanted],
        np.array([[[jobs] for _, jobs in wanted]]), change=design.change,
        initial={design.static_layout: design.gpus},
    )  # fmt: skip
    best = plan(problem, gap_target=0).require()
    faults = verify(best, problem, assign(best, problem))
    assert not faults, faults
    pairs = zip(best.layouts, best.counts[0].tolist(), strict=True)
    return [parse_layout(layout) for layout, gpus in pairs for _ in range(gpus)]


def first_fit(wanted: Mapping[str, int], board: GpuModel, gpus: int) -> list[dict[str, int]]:
    """Instances GPU by GPU, largest first, each on the first GPU that has room; what finds none is left out.

    Examples
    --------
    >>> from gpuplanner.hardware import as_board
    >>> first_fit({"1g.10gb": 1, "4g.40gb": 1, "3g.40gb": 2}, as_board("H100-80GB-SXM5"), 2)
    [{'4g.40gb': 1, '3g.40gb': 1}, {'3g.40gb': 1, '1g.10gb': 1}]
    """
    filled: list[Counter[str]] = [Counter() for _ in range(gpus)]
    for profile in sorted(wanted, key=lambda name: board.profile(name).size_order, reverse=True):
        for _ in range(wanted[profile]):
            fitting = (held for held in filled if prove(board, held + Counter([profile])))
            next(fitting, Counter[str]())[profile] += 1
    return [dict(held) for held in filled if held]


def _matched(wanted: Wanted, there: Counter[str], board: GpuModel) -> tuple[Places, Counter[str]]:
    """What the requests of each profile run on, and the instances that are to be used.

    The largest requests are matched first. One that finds no instance waits for its own profile, or where
    there is none, for the smallest that serves it.
    """
    by_size = sorted(there, key=lambda name: board.profile(name).size_order)
    able = [[name for name in by_size if serves(board, name, profile)] for profile, _ in wanted]
    matching = Matching(able, there)
    order = sorted(range(len(wanted)), key=lambda at: board.profile(wanted[at][0]).size_order, reverse=True)
    for at in order:
        matching.serve(at, wanted[at][1])
    places: Places = {}
    for at, (profile, jobs) in enumerate(wanted):
        found = [name for name, count in matching.used[at].items() for _ in range(count)]
        waits_for = next(iter(able[at]), None)
        places[profile] = tuple(found + [waits_for] * (jobs - len(found)))
    used = sum((Counter(taken) for taken in matching.used), Counter[str]())
    return places, used


def _without(on_gpus: list[dict[str, int]], spare: Counter[str]) -> list[dict[str, int]]:
    """The same GPUs, less spare instances; GPUs left empty are off."""
    left = Counter(spare)
    kept = []
    for held in on_gpus:
        taken = Counter({profile: min(count, left[profile]) for profile, count in held.items()})
        left -= taken
        kept.append(dict(Counter(held) - taken))
    return [held for held in kept if held]
