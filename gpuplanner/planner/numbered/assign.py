"""From counts to numbered GPUs, with the fewest and gentlest cuts and whole GPUs together on nodes."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.hardware.layout import OFF
from gpuplanner.planner.contract.plan import Plan
from gpuplanner.planner.contract.problem import Counts, PlanProblem
from gpuplanner.planner.numbered.placer import OFF_PLACE as _OFF
from gpuplanner.planner.numbered.placer import ParkedPlacer, Places
from gpuplanner.planner.numbered.placer import Placer as _Placer
from gpuplanner.schemas.vocabulary import WHOLE_GPU
from gpuplanner.schemas.domain import LayoutPlan
from gpuplanner.schemas.check import check
from gpuplanner.units import SECONDS_PER_MINUTE

_CHANGES = {
    "before": pl.String,
    "after": pl.String,
    "changes": pl.Int64,
    "minutes": pl.Float64,
    "minutes_low": pl.Float64,
    "minutes_high": pl.Float64,
    "reboot": pl.Boolean,
}


def assign(plan: Plan, problem: PlanProblem) -> pl.DataFrame:
    """Say which GPU has which layout when.

    A GPU keeps its layout whenever the counts allow it, so that the GPUs cut are as few as the plan says. Which
    GPU takes up which new layout is a transport problem: reboots are avoided first, then the destruction of
    instances that the new layout wants as well. Cut GPUs gather on the last nodes, whole ones on nodes without
    cuts: a job of many whole GPUs finds them side by side. Nodes kept whole are never cut, racks stay within
    their power, and GPUs that were cut as often as a day allows are passed over while there are others.

    Parameters
    ----------
    plan : Plan
        A plan that was found.
    problem : PlanProblem
        Its problem.

    Returns
    -------
    polars.DataFrame, shape (n_ranges, 6)
        Table :class:`~gpuplanner.schemas.LayoutPlan`: one row for each GPU and range of slots with one
        layout, sorted by node, GPU and start. GPUs that are not on are ``"off"``, and ``parked`` says with
        which layout where they keep one. ``changed`` marks changes; in the first slot, GPUs are taken to have been
        cut already unless the problem has initial layouts.

    Raises
    ------
    InfeasiblePlanError
        If no plan was found.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner.methods.search import plan
    >>> problem = PlanProblem(
    ...     "A100-40GB", 3, 2, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["3g.20gb", "gpu"],
    ...     [[[2, 2, 4], [1, 1, 1]]],
    ... )
    >>> for row in assign(plan(problem), problem).select("node", "gpu", "layout", "changed").rows():
    ...     print(*row)
    node0 0 gpu False
    node0 1 off False
    node0 1 3g.20gb:2 True
    node1 0 3g.20gb:2 False
    """
    plan.require()
    return _ranges(_placed(problem, plan.layouts, plan.counts, plan.parked), problem)


def layouts_before(plan: Plan, problem: PlanProblem) -> pl.DataFrame | None:
    """How each GPU is cut before the first slot (node, gpu, layout), numbered as :func:`assign` does; None: unknown.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner.methods.search import plan
    >>> problem = PlanProblem(
    ...     "A100-40GB", 2, 2, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["3g.20gb"], [[[4, 4, 4]]],
    ...     initial={"gpu": 1, "3g.20gb:2": 1},
    ... )
    >>> layouts_before(plan(problem), problem).rows()
    [('node0', 0, 'gpu'), ('node0', 1, '3g.20gb:2')]
    """
    placed = _placed(problem, plan.layouts, plan.counts, plan.parked)
    if placed.initial is None:
        return None
    held = placed.held(placed.initial)
    number = np.arange(problem.gpus)
    return pl.DataFrame(
        {
            "node": pl.Series(problem.node_names, dtype=pl.String)[number // problem.gpus_per_node],
            "gpu": (number % problem.gpus_per_node).astype(np.int32),
            # One that was released comes back whole.
            "layout": [WHOLE_GPU if state == _OFF else placed.texts[state] for state in held],
        }
    )


def layout_changes(plan: Plan, problem: PlanProblem) -> pl.DataFrame:
    """Say which changes of layout a plan makes, how often, and how long each takes.

    Parameters
    ----------
    plan : Plan
        A plan that was found.
    problem : PlanProblem
        Its problem; its ``change`` says how long.

    Returns
    -------
    polars.DataFrame
        ``before, after`` (layout text), ``changes``, ``minutes``, ``minutes_low``, ``minutes_high`` for which the
        GPU, or with ``reboot`` its node, is out of service; most frequent first. Counted as the plan does: whenever
        a GPU takes up a layout, or gives one up and stays on. One that was released had none.

    Raises
    ------
    InfeasiblePlanError
        If no plan was found.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner.methods.search import plan
    >>> problem = PlanProblem(
    ...     "A100-40GB", 3, 2, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["3g.20gb"], [[[4, 4, 4]]],
    ...     initial={"gpu": 3},
    ... )
    >>> layout_changes(plan(problem), problem).select("before", "after", "changes", "minutes", "reboot").rows()
    [('gpu', '3g.20gb:2', 2, 10.0, True)]
    """
    plan.require()
    placed = _placed(problem, plan.layouts, plan.counts, plan.parked)
    texts = np.array([*placed.texts, WHOLE_GPU])
    before, after = placed.cut_before_and_after
    taken_up = before != after
    pairs = Counter(zip(texts[before[taken_up]].tolist(), texts[after[taken_up]].tolist(), strict=True))
    rows = []
    for (old, new), times in sorted(pairs.items(), key=lambda pair: (-pair[1], pair[0])):
        change = problem.change.change(old, new)
        lasting = [second / SECONDS_PER_MINUTE for second in (change.seconds, change.low_s, change.high_s)]
        rows.append((old, new, times, *lasting, change.reboot))
    return pl.DataFrame(rows, schema=_CHANGES, orient="row")


def changes_when_numbered(
    problem: PlanProblem, layouts: Sequence[str], counts: Counts, parked: Counts | None = None
) -> tuple[int, NDArray[np.bool_]]:
    """Most cuts of one GPU in one day, and which nodes are cut anew when, numbered as :func:`assign` does."""
    placed = _placed(problem, layouts, counts, parked)
    before, after = placed.cut_before_and_after
    nodes = _per_node(problem, before != after)
    nodes[0] = False
    return placed.most_switches, nodes


def node_reboots(problem: PlanProblem, layouts: Sequence[str], counts: Counts, parked: Counts) -> int:
    """Reboots of nodes for changes of MIG mode, if GPUs are numbered as :func:`assign` does."""
    if problem.change.reboot_s is None:
        return 0
    placed = _placed(problem, layouts, counts, parked)
    before, after = placed.cut_before_and_after
    return int(_per_node(problem, (before == placed.whole) != (after == placed.whole)).sum())


@dataclass(frozen=True, eq=False)
class _Placed:
    """State of every GPU in every slot, and before the first one if it is known."""

    texts: list[str]
    states: Places
    initial: Places | None
    most_switches: int
    parks: bool

    def held(self, states: Places) -> Places:
        """Layouts that GPUs have, on or parked."""
        return np.where(states >= len(self.texts), states - len(self.texts), states)

    @property
    def whole(self) -> int:
        """Position of the layout of GPUs that are not cut; that of none where nobody uses such."""
        return self.texts.index(WHOLE_GPU) if WHOLE_GPU in self.texts else _OFF

    @functools.cached_property
    def cut_before_and_after(self) -> tuple[Places, Places]:
        """How GPUs are cut, and what is made of that as each slot begins, each of shape (n_slots, n_gpus).

        One that was released comes back uncut; to one that is released nothing is done. The first slot is as it was
        if nothing is known of the time before.
        """
        states = self.held(self.states)
        first = states[:1] if self.initial is None else self.held(self.initial[None])
        before = np.concatenate([first, states[:-1]])
        before = np.where(before == _OFF, self.whole, before)
        return before, np.where(states == _OFF, before, states)


def _per_node(problem: PlanProblem, gpus: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Nodes with a GPU that is marked, shape (n_slots, n_nodes)."""
    starts = np.arange(0, problem.gpus, problem.gpus_per_node)
    return np.logical_or.reduceat(gpus, starts, axis=1)


def _placed(problem: PlanProblem, layouts: Sequence[str], counts: Counts, parked: Counts | None) -> _Placed:
    parks = problem.prices is not None
    known = [*layouts, *(problem.initial or {}), *(problem.parked or {}), *([WHOLE_GPU] if parks else [])]
    texts = list(dict.fromkeys(known))
    place = (ParkedPlacer if parks else _Placer)(problem, texts)
    now = np.full(problem.gpus, len(texts) + texts.index(WHOLE_GPU) if parks else _OFF, dtype=np.int16)
    initial = None
    if parks and parked is not None:
        counts = np.hstack(
            [np.pad(part, ((0, 0), (0, len(texts) - len(layouts)))) for part in (counts, parked)]
        )
    columns = len(texts) * (2 if parks else 1)
    if problem.initial is not None:
        held = [problem.initial.get(text, 0) for text in texts]
        held += [(problem.parked or {}).get(text, 0) for text in texts] if parks else []
        initial = now = place.next(now, np.array(held))
        place.begin_day()
    states, most = [], 0
    for slot, row in enumerate(counts):
        if slot and problem.day_of(slot) > problem.day_of(slot - 1):
            place.begin_day()
        free = slot == 0 and initial is None
        now = place.next(now, np.pad(row, (0, columns - len(row))), free=free)
        states.append(now)
        most = max(most, int(place.cuts_today.max(initial=0)))
    return _Placed(texts, np.array(states), initial, most, parks)


def _ranges(placed: _Placed, problem: PlanProblem) -> pl.DataFrame:
    """Runs of slots with one layout, as table rows."""
    by_gpu, texts, n = placed.states.T, placed.texts, len(placed.texts)
    fresh = np.ones_like(by_gpu, dtype=bool)
    fresh[:, 1:] = by_gpu[:, 1:] != by_gpu[:, :-1]
    gpu, start = np.nonzero(fresh)
    last = np.append(gpu[1:] != gpu[:-1], True)
    end = np.where(last, problem.n_slots, np.append(start[1:], 0))
    state = by_gpu[gpu, start]
    layout = placed.held(state)
    before, after = placed.cut_before_and_after
    changed = (before != after).T[gpu, start]
    times = pl.Series(problem.slot_times, dtype=pl.Datetime("us", "UTC"))
    labels = pl.Series([*texts, OFF], dtype=pl.String)
    frame = pl.DataFrame(
        {
            "node": pl.Series(problem.node_names, dtype=pl.String)[gpu // problem.gpus_per_node],
            "gpu": (gpu % problem.gpus_per_node).astype(np.int32),
            "slot_start": times[start],
            "slot_end": times[end],
            "layout": labels[np.where(state < n, state, _OFF) % len(labels)],
            "changed": changed,
            "parked": pl.Series([*texts, None], dtype=pl.String)[np.where(state < n, _OFF, layout) % (n + 1)],
        }
    )
    return check(frame.sort("node", "gpu", "slot_start"), LayoutPlan, where="assign")
