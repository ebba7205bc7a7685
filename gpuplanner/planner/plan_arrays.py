"""A planning problem as arrays: substitution, change costs, shortage.

The unit of decision is the number of GPUs that are on with a given layout in a given slot, so that nothing
here grows with the fleet. Where GPUs that are not needed are parked, those that keep a layout are counted beside
them, in further columns; the rest is parked and not cut.

Pooled demand d needs R = ceil(d) instances. With k of them missing, max(0, d - (R - k)) of the demand is left
unmet, taken from the lowest tier first. Its cost is convex in k with breaks at whole instances only, so that
few linear steps give it exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from gpuplanner.core.schemas import WHOLE_GPU
from gpuplanner.hardware.layout_enumeration import multisets, pareto_counts
from gpuplanner.hardware.mig_layouts import format_layout, parse_layout
from gpuplanner.planner.plan_problem import TIERS, Counts, Floats, PlanProblem, membership, serves, up_sets


@dataclass(frozen=True, eq=False)
class Ways:
    """Edges of the tree of states, and what it costs to send GPUs over them.

    Each edge parts the states in two. Over it goes, one way or the other, what the side beyond it has too much:
    the change of the number of GPUs there. The costs of all edges add up to a distance: over a third state it is
    never less than straight.

    - ``beyond``, shape (n_ways, n_columns): Whether GPUs of a column are beyond the edge.
    - ``come``, ``go``, shape (n_ways,): Cost of one batch that goes beyond the edge, and of one that comes back.
    - ``batch``, shape (n_ways,): GPUs of a batch: those of a node, where it is nodes that reboot; else 1.
    - ``recut``, shape (n_ways, 2): Whether a GPU that goes beyond the edge takes up a layout, and whether one that
      comes back does.
    - ``names``: What going over each is called in models, out and back.
    """

    beyond: Counts
    come: Floats
    go: Floats
    batch: Counts
    recut: NDArray[np.bool_]
    names: tuple[tuple[str, str], ...]

    def costs(self, before: Counts, after: Counts) -> Floats:
        """Cost of changing from each state to each other."""
        costs = np.zeros((len(before), len(after)))
        for way, (come, go, batch) in enumerate(zip(self.come, self.go, self.batch.tolist(), strict=True)):
            more = (after @ self.beyond[way])[None, :] - (before @ self.beyond[way])[:, None]
            for price, gpus in ((come, more), (go, -more)):
                if price:
                    costs += price * (gpus.clip(0) if batch == 1 else -(-gpus.clip(0) // batch))
        return costs

    def cost(self, before: Counts | None, after: Counts) -> float:
        """Cost between two slots; none if nothing is known of the first."""
        if before is None:
            return 0.0
        more = self.beyond @ (after - before)
        batches = -(-np.abs(more) // self.batch)
        return float(np.where(more > 0, self.come, self.go) @ batches)

    def recuts(self, before: Counts | None, after: Counts) -> int:
        """GPUs that take up a layout between two slots; none if nothing is known of the first."""
        if before is None:
            return 0
        more = self.beyond @ (after - before)
        return int(np.stack([more, -more], axis=1).clip(0)[self.recut].sum())

    @property
    def taking_up(self) -> Floats:
        """Cost of one more GPU that takes up a layout, by column; 0 for a GPU that is not cut."""
        return np.where(self.recut[:, 0], self.come, 0.0) @ self.beyond

    @property
    def of_columns(self) -> Floats:
        """Cost of one GPU more and of one less, by column, shape (2, n_columns), where each edge is of one column."""
        return np.stack([self.come, self.go]) @ self.beyond

    def some(self, kept: NDArray[np.bool_]) -> Self:
        """Some of the edges alone."""
        names = tuple(name for name, keep in zip(self.names, kept.tolist(), strict=True) if keep)
        arrays = {name: getattr(self, name)[kept] for name in ("beyond", "come", "go", "batch", "recut")}
        return replace(self, names=names, **arrays)

    def dearer(self, price: float) -> Self:
        """The same if taking up a layout cost at least so much."""
        cost = np.stack([self.come, self.go])
        come, go = np.where(self.recut.T, np.maximum(cost, price), cost)
        return replace(self, come=come, go=go)


def ways_of(problem: PlanProblem, layouts: Sequence[str], owner: Counts) -> Ways:
    """Edges of the tree of states of a problem."""
    prices, gpu_model = problem.prices, problem.gpu_model
    columns = np.arange(len(owner))
    cut = np.array([layouts[i] != WHOLE_GPU for i in owner], dtype=bool)
    takes_up, gives_up, neither = (True, False), (False, True), (False, False)
    rows: list[tuple[NDArray[np.bool_], float, float, int, tuple[bool, bool], tuple[str, str]]] = []
    if prices is None:
        price = problem.change_gpu_hours
        rows = [(columns == i, price, 0.0, 1, takes_up, ("cut", "")) for i in columns[cut].tolist()]
    else:
        for i, text in enumerate(layouts):
            emptied = prices.drain_of(gpu_model, text)
            rows.append((columns == i, prices.wake, emptied, 1, neither, ("wake", "drain")))
        for i in columns[: len(layouts)][cut[: len(layouts)]].tolist():
            come, go = prices.dress_of(layouts[i]), prices.strip_of(layouts[i])
            rows.append((owner == i, come, go, 1, takes_up, ("dress", "strip")))
        whole = prices.mode + prices.dress_of(WHOLE_GPU)
        rows.append((cut, prices.mode, whole, 1, gives_up, ("mode_on", "mode_off")))
        node = problem.gpus_per_node
        rows.append((cut, prices.reboot, prices.reboot, node, neither, ("reboot_on", "reboot_off")))
    rows = [row for row in rows if (row[1] or row[2] or any(row[4])) and row[0].any()]
    return Ways(
        beyond=np.array([row[0] for row in rows], dtype=np.int64).reshape(len(rows), len(owner)),
        come=np.array([row[1] for row in rows]),
        go=np.array([row[2] for row in rows]),
        batch=np.array([row[3] for row in rows], dtype=np.int64),
        recut=np.array([row[4] for row in rows], dtype=bool).reshape(len(rows), 2),
        names=tuple(row[5] for row in rows),
    )


@dataclass(frozen=True)
class ShortageSteps:
    """Cost of missing instances in one slot, as linear steps; within a profile from cheap to dear.

    - ``profile``, shape (n_steps,): Profile of each step, by position.
    - ``width``, shape (n_steps,): Instances in the step.
    - ``cost``, shape (n_steps,): Cost of each instance of the step that is missing, for the slot.
    """

    profile: Counts
    width: Counts
    cost: Floats


def tenant_order(problem: PlanProblem) -> list[list[int]]:
    """Groups of tenants in the order in which they go short: lowest tier, then cheapest, first.

    Within a group the shortage is shared in proportion to demand.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> problem = PlanProblem(
    ...     "A30", 1, 1, datetime(2026, 1, 1, tzinfo=UTC), 1, ["a", "b", "c"], ["1g.6gb"], np.ones((3, 1, 1)),
    ...     tiers=["guaranteed", "best_effort", "guaranteed"],
    ... )
    >>> tenant_order(problem)
    [[1], [0, 2]]
    """
    ranks = [-TIERS.index(tier) for tier in problem.tiers]
    keys = list(zip(ranks, problem.unmet_price, strict=True))
    return [[i for i, key in enumerate(keys) if key == one] for one in sorted(set(keys))]


def shortage_steps(problem: PlanProblem) -> list[ShortageSteps]:
    """Steps of every slot of a problem."""
    groups = tenant_order(problem)
    prices = np.array([problem.unmet_price[group[0]] for group in groups])
    demand = np.array([problem.admitted[group].sum(axis=0) for group in groups])
    demand = demand.reshape(len(groups), *problem.demand.shape[1:])
    weights = problem.shares * problem.interval_hours
    required = problem.required
    return [_slot_steps(demand[:, :, t], required[:, t], prices, weights) for t in range(problem.n_slots)]


def _slot_steps(demand: Floats, required: Counts, prices: Floats, weights: Floats) -> ShortageSteps:
    steps: list[tuple[int, int, float]] = []
    for profile, needed in enumerate(required.tolist()):
        if needed:
            pieces = _profile_steps(demand[:, profile], needed, prices * weights[profile])
            steps += [(profile, width, cost) for width, cost in pieces]
    profiles, widths, costs = zip(*steps, strict=True) if steps else ((), (), ())
    instances = np.array(widths, dtype=np.int64)
    return ShortageSteps(np.array(profiles, dtype=np.int64), instances, np.array(costs))


def _profile_steps(demand: Floats, needed: int, prices: Floats) -> list[tuple[int, float]]:
    """Width and cost per instance of each step, for demand by group in the order of going short."""
    breaks = np.concatenate([[0.0], np.cumsum(demand)])
    costs = np.concatenate([[0.0], np.cumsum(demand * prices)])
    spare = max(0.0, needed - float(breaks[-1]))
    near = np.concatenate([np.floor(breaks + spare), np.ceil(breaks + spare), [0.0, 1.0, needed]])
    missing = np.unique(near.clip(0, needed))
    totals = np.interp((missing - spare).clip(0), breaks, costs)
    widths = np.diff(missing)
    slopes = np.diff(totals) / widths
    joined: list[tuple[int, float]] = []
    for width, slope in zip(widths.astype(int).tolist(), slopes.tolist(), strict=True):
        if joined and np.isclose(joined[-1][1], slope, rtol=1e-9, atol=1e-12):
            joined[-1] = (joined[-1][0] + width, joined[-1][1])
        else:
            joined.append((width, slope))
    return joined


def unmet_by_tenant(problem: PlanProblem, missing: Counts) -> Floats:
    """Demand left unmet when instances are missing.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> problem = PlanProblem(
    ...     "A30", 1, 1, datetime(2026, 1, 1, tzinfo=UTC), 1, ["a", "b"], ["1g.6gb"], [[[1.5]], [[0.8]]],
    ...     tiers=["standard", "best_effort"],
    ... )
    >>> unmet_by_tenant(problem, np.array([[2]])).ravel().round(3).tolist()
    [0.5, 0.8]
    """
    served = problem.required - missing
    left = np.where(missing > 0, problem.pooled - served, 0.0).clip(0.0)
    unmet = np.zeros_like(problem.admitted)
    for group in tenant_order(problem):
        demand = problem.admitted[group]
        total = demand.sum(axis=0)
        taken = np.minimum(left, total)
        unmet[group] = demand * np.divide(taken, total, out=np.zeros_like(total), where=total > 0)
        left = left - taken
    return unmet


@dataclass(frozen=True, eq=False)
class Fluid:
    """Arrays of a :class:`PlanProblem`.

    - ``problem``: Where they come from.
    - ``layouts``: Layouts that a plan may need: those that no other covers at no higher price, and those that are
      there at first or must stay.
    - ``owner``, shape (n_columns,): Layout of each column of counts: of GPUs on, one for each layout in their order,
      then of parked GPUs, one for each layout that is cut.
    - ``cut``, shape (n_columns,): Whether a GPU in the column is cut.
    - ``demanded``, shape (n_sets, n_profiles): One row for each set of requests that can be short together.
    - ``cover``, shape (n_sets, n_columns): Instances on one GPU of each column that can serve the set.
    - ``steps``: Cost of missing instances, by slot.
    - ``on_cost``, ``idle_cost``: Cost of one GPU that is on for one slot, beyond one that is not; and of all of them,
      were none on.
    - ``ways``: What it costs to come from some counts to others.
    - ``gpus``, shape (n_slots,): GPUs that may be on.
    - ``cuttable``, shape (n_slots,): GPUs that may be cut; below 0 where the limits contradict each other.
    - ``pinned``, shape (n_columns,): GPUs that must have a layout in every slot.
    - ``initial``, shape (n_columns,): GPUs by column before the first slot.
    """

    problem: PlanProblem
    layouts: tuple[str, ...]
    owner: Counts
    cut: NDArray[np.bool_]
    demanded: Counts
    cover: Counts
    steps: list[ShortageSteps]
    on_cost: float
    idle_cost: float
    ways: Ways
    gpus: Counts
    cuttable: Counts
    pinned: Counts
    initial: Counts | None

    @classmethod
    def of(cls, problem: PlanProblem, layouts: Sequence[str] | None = None) -> Fluid:
        """Build the arrays; with given layouts, or with those that a plan may need.

        Examples
        --------
        >>> from datetime import UTC, datetime
        >>> names = ["1g.5gb", "3g.20gb", "4g.20gb"]
        >>> problem = PlanProblem(
        ...     "A100-40GB", 8, 8, datetime(2026, 1, 1, tzinfo=UTC), 1, ["a"], names, np.ones((1, 3, 2))
        ... )
        >>> Fluid.of(problem).layouts
        ('4g.20gb:1,3g.20gb:1', '4g.20gb:1,1g.5gb:3', '3g.20gb:1,1g.5gb:4', '1g.5gb:7')
        """
        initial, pinned = dict(problem.initial or {}), problem.limits.pinned
        parked = dict(problem.parked or {})
        named = {*initial, *pinned, *parked, *(layouts or ())}
        layouts = list(dict.fromkeys([*(layouts or _useful_layouts(problem)), *initial, *pinned, *parked]))
        held = [parse_layout(layout) for layout in layouts]
        supply = tuple(dict.fromkeys(name for counts in held for name in counts))
        wanted = np.flatnonzero(problem.required.any(axis=1)).tolist()
        sets = up_sets(problem.gpu_model, tuple(problem.profiles[p] for p in wanted), supply)
        provides = np.zeros((len(supply), len(held)), dtype=np.int64)
        for layout, counts in enumerate(held):
            provides[[supply.index(name) for name in counts], layout] = list(counts.values())
        cover = membership([able for _, able in sets], len(supply)) @ provides
        merits = _merits(problem, layouts, cover)
        useful = [bool(cover[:, i].any()) and not _beaten(merits, i) for i in range(len(layouts))]
        keep = [i for i, text in enumerate(layouts) if text in named or useful[i]]
        texts = tuple(layouts[i] for i in keep)
        cut = np.array([text != WHOLE_GPU for text in texts], dtype=bool)
        idle = np.flatnonzero(cut) if problem.prices is not None else np.zeros(0, dtype=np.int64)
        owner = np.concatenate([np.arange(len(texts)), idle]).astype(np.int64)

        def columns(on: Mapping[str, int], kept: Mapping[str, int]) -> Counts:
            held = [on.get(text, 0) for text in texts] + [kept.get(texts[i], 0) for i in idle]
            return np.array(held, dtype=np.int64)

        parked_price = 0.0 if problem.prices is None else problem.prices.parked_price
        return cls(
            problem=problem,
            layouts=texts,
            owner=owner,
            cut=cut[owner],
            demanded=membership([[wanted[p] for p in asked] for asked, _ in sets], len(problem.profiles)),
            cover=np.pad(cover[:, keep], ((0, 0), (0, len(idle)))),
            steps=shortage_steps(problem),
            on_cost=(problem.on_price - parked_price) * problem.interval_hours,
            idle_cost=parked_price * problem.interval_hours * problem.gpus,
            ways=ways_of(problem, texts, owner),
            gpus=problem.gpus_allowed_on,
            cuttable=problem.gpus_cuttable,
            pinned=columns(pinned, {}),
            initial=None if problem.initial is None else columns(initial, parked),
        )

    @property
    def used(self) -> NDArray[np.bool_]:
        """Which columns count GPUs that are on, shape (n_columns,)."""
        return np.arange(len(self.owner)) < len(self.layouts)

    @property
    def useful(self) -> Counts:
        """Most GPUs of each column that have work in a slot, shape (n_slots, n_columns)."""
        rows = [self.demanded[:, steps.profile] @ steps.width for steps in self.steps]
        asked = np.array(rows, dtype=np.int64).reshape(len(self.steps), len(self.demanded))
        needed = np.where(self.cover > 0, -(-asked[:, :, None] // self.cover.clip(1)), 0)
        most: Counts = needed.max(axis=1, initial=0)
        return most

    @property
    def may_change(self) -> NDArray[np.bool_]:
        """Whether counts may change as a slot begins, shape (n_slots,)."""
        slots = self.problem.limits.change_slots
        number = np.arange(self.problem.n_slots)
        return np.ones(len(number), bool) if slots is None else np.isin(number, slots)

    @property
    def parks(self) -> bool:
        """Whether GPUs that are not needed are parked."""
        return self.problem.prices is not None

    def split(self, counts: Counts) -> tuple[Counts, Counts]:
        """GPUs on and GPUs parked by layout, shape (n_slots, n_layouts) each; what is parked uncut is left out."""
        on = counts[:, : len(self.layouts)]
        parked = np.zeros_like(on)
        parked[:, self.owner[len(self.layouts) :]] = counts[:, len(self.layouts) :]
        return on, parked

    def allowed(self, slot: int, states: Counts) -> NDArray[np.bool_]:
        """Whether vectors of counts, shape (n, n_columns), keep the limits of a slot."""
        on = states[:, : len(self.layouts)]
        cut = on[:, self.cut[: len(self.layouts)]]
        fits = (on.sum(axis=1) <= self.gpus[slot]) & (cut.sum(axis=1) <= self.cuttable[slot])
        within: NDArray[np.bool_] = fits & (states >= self.pinned).all(axis=1)
        if self.parks:
            within &= states.sum(axis=1) <= self.problem.gpus_held
            within &= states[:, self.cut].sum(axis=1) <= self.problem.gpus_held_cut
        return within

    def with_instance(self, profile: int) -> Fluid:
        """The same arrays with one more column of counts, last: single instances of a profile, free of cost."""
        names = self.problem.profiles
        serving = [serves(self.problem.gpu_model, names[profile], name) for name in names]
        column = (self.demanded @ np.array(serving, dtype=np.int64) > 0).astype(np.int64)
        return replace(self, cover=np.column_stack([self.cover, column]), owner=np.append(self.owner, 0))

    def missing(self, slot: int, counts: Counts) -> Counts:
        """Instances short of each profile, chosen so that the shortage costs least.

        Serving the dearest requests first is exact, because the sets of requests that can be served together
        form a polymatroid.
        """
        short = self.problem.required[:, slot].copy()
        for profile, served, _ in self._serve(slot, counts[None]):
            short[profile] -= served[0]
        return short

    def slot_costs(self, slot: int, counts: Counts) -> Floats:
        """Cost of a slot, GPUs on and demand unmet, under several vectors of counts."""
        steps = self.steps[slot]
        on = counts[:, : len(self.layouts)].sum(axis=1)
        costs: Floats = self.on_cost * on + (self.idle_cost + float(steps.width @ steps.cost))
        for _, served, price in self._serve(slot, counts):
            costs -= served * price
        return costs

    def _serve(self, slot: int, counts: Counts) -> Iterator[tuple[int, Counts, float]]:
        """Profile, instances served under each vector of counts, and price of each step, dearest first."""
        steps = self.steps[slot]
        free = self.cover @ counts.T
        for step in np.argsort(-steps.cost, kind="stable").tolist():
            profile = int(steps.profile[step])
            sets = self.demanded[:, profile] > 0
            served = np.minimum(steps.width[step], free[sets].min(axis=0))
            free[sets] -= served
            yield profile, served, float(steps.cost[step])

    def departures(self, before: Counts | None, after: Counts) -> int:
        """GPUs emptied between two slots; none if nothing is known of the first."""
        return 0 if before is None else int((before - after)[: len(self.layouts)].clip(0).sum())

    def changes(self, before: Counts | None, after: Counts) -> int:
        """GPUs that take up a layout between two slots, or give one up and stay on; none if the first is not known.

        Where GPUs are released, one comes back uncut. So those that are to be on uncut are taken from what was not
        cut as long as there is any.
        """
        if before is None:
            return 0
        uncut = 0 if self.parks else int(after[~self.cut].sum() + before[self.cut].sum()) - self.problem.gpus
        return self.ways.recuts(before, after) + max(0, uncut)

    def cost(self, counts: Counts, *, start: int = 0, before: Counts | None = None) -> float:
        """Cost of consecutive slots with the changes into and between them."""
        total = 0.0
        previous = before
        for slot, now in enumerate(counts, start):
            total += float(self.slot_costs(slot, now[None])[0])
            total += self.ways.cost(previous, now)
            previous = now
        return total

    def before(self, counts: Counts, slot: int) -> Counts | None:
        """Counts of the slot before one of a plan; the initial ones before the first."""
        return counts[slot - 1] if slot else self.initial


def _useful_layouts(problem: PlanProblem) -> list[str]:
    """Texts of layouts: the fullest ones of the profiles that anybody wants, and the whole GPU if wanted; then all.

    Where taking up, giving up or emptying has a price that depends on the layout, one with fewer instances, or with
    other ones than anybody asks for by name, may be the cheaper way to do the same.
    """
    wanted = [p for p, needed in zip(problem.profiles, problem.required.max(axis=1), strict=True) if needed]
    slices = [profile for profile in wanted if profile != WHOLE_GPU]
    counts = pareto_counts(problem.gpu_model, slices) if slices else []
    every = multisets(problem.gpu_model) if slices and problem.prices is not None else []
    whole = [WHOLE_GPU] if WHOLE_GPU in wanted else []
    return [*map(format_layout, counts), *whole, *map(format_layout, every)]


def _merits(problem: PlanProblem, layouts: Sequence[str], cover: Counts) -> Floats:
    """What each layout can do, and what it saves on its ways, a column each: more is better, row by row.

    A layout that another one covers in all rows is not needed. Let GPUs have the other one wherever a plan has the
    first, on or parked. They serve as much, at the same price of hours, within the same limits (both are cut, or no
    layout serves what a whole GPU does). The edges of the tree of states that part the two from the rest join: with
    x and y GPUs on their way, (x + y)+ is at most x+ + y+, and each costs no more than it did, as waking costs the
    same for all layouts, and emptying, taking up and giving up cost no more for the other one. Hence the plan costs
    no more. Layouts that GPUs have at first, or must keep, stay: there nothing can be exchanged.

    One that serves nothing is not needed either: what a GPU had before, or has after, is as good a state to wait in.
    """
    if problem.prices is None:
        return cover.astype(np.float64)
    prices, gpu_model = problem.prices, problem.gpu_model
    emptied = [-prices.drain_of(gpu_model, text) for text in layouts]
    given_up = [-prices.strip_of(text) for text in layouts]
    return np.vstack([cover, emptied, given_up])


def _beaten(merits: Floats, layout: int) -> bool:
    """Whether some other layout has all that this one has, and more (or the same, and comes first)."""
    own = merits[:, layout]
    at_least = (merits >= own[:, None]).all(axis=0)
    equal = (merits == own[:, None]).all(axis=0)
    return bool((at_least & ~equal).any() or equal[:layout].any())
