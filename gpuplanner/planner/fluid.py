"""The problem as arrays: what every method works on.

The unit of decision is the number of GPUs that are on with a given layout in a given slot, so that nothing
here grows with the fleet. Nothing is done to a GPU that is not needed: it keeps the layout it has, and comes back
with it for nothing. So a state of the fleet is a vector in two parts: for each layout the GPUs on with it, then
for each layout with instances the GPUs that have it but are not on. All others are whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpuplanner.hardware import format_layout, pareto_counts, parse_layout
from gpuplanner.planner.problem import Counts, Floats, PlanProblem
from gpuplanner.planner.shortage import Steps, shortage_steps
from gpuplanner.planner.substitution import membership, serves, up_sets
from gpuplanner.schemas import WHOLE_GPU


@dataclass(frozen=True, eq=False)
class Fluid:
    """Arrays of a :class:`PlanProblem`.

    Parameters
    ----------
    problem : PlanProblem
        Where they come from.
    layouts : tuple of str
        Layouts that a plan may need: those on which no other improves, and those that are there at first or
        must stay.
    cut : ndarray of bool, shape (n_layouts,)
        Whether a GPU with the layout is cut.
    demanded : ndarray of int, shape (n_sets, n_profiles)
        One row for each set of requests that can be short together.
    cover : ndarray of int, shape (n_sets, n_layouts)
        Instances on one GPU of each layout that can serve the set.
    steps : list of Steps
        Cost of missing instances, by slot.
    on_cost, change_cost, mode_cost : float
        Cost of one GPU that is on for one slot, of one that takes up another layout, and what is added if its MIG
        mode changes.
    gpus : ndarray of int, shape (n_slots,)
        GPUs that may be on.
    cuttable : ndarray of int, shape (n_slots,)
        GPUs that may be on and cut; below 0 where the limits contradict each other.
    most_cut : int
        GPUs that may be cut, on or not.
    pinned : ndarray of int, shape (n_columns,)
        GPUs that must be on with a layout in every slot, as a state.
    initial : ndarray of int or None, shape (n_columns,)
        State before the first slot: nothing is on yet. None: GPUs that are on in the first slot have their
        layouts already, all others are whole.
    """

    problem: PlanProblem
    layouts: tuple[str, ...]
    cut: NDArray[np.bool_]
    demanded: Counts
    cover: Counts
    steps: list[Steps]
    on_cost: float
    change_cost: float
    mode_cost: float
    gpus: Counts
    cuttable: Counts
    most_cut: int
    pinned: Counts
    initial: Counts | None

    @classmethod
    def of(cls, problem: PlanProblem, also: Sequence[str] = ()) -> Fluid:
        """Build the arrays, with further layouts if some are named.

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
        initial = {text: gpus for text, gpus in (problem.initial or {}).items() if text != WHOLE_GPU}
        pinned = problem.limits.pinned
        named = {*initial, *pinned, *also}
        layouts = list(dict.fromkeys([*_useful_layouts(problem), *initial, *pinned, *also]))
        held = [parse_layout(layout) for layout in layouts]
        supply = tuple(dict.fromkeys(name for counts in held for name in counts))
        sets = up_sets(problem.board, problem.profiles, supply)
        provides = np.zeros((len(supply), len(held)), dtype=np.int64)
        for layout, counts in enumerate(held):
            provides[[supply.index(name) for name in counts], layout] = list(counts.values())
        cover = membership([able for _, able in sets], len(supply)) @ provides
        keep = [i for i, layout in enumerate(layouts) if layout in named or not _beaten(cover, i)]
        layouts = [layouts[i] for i in keep]
        cut = [text for text in layouts if text != WHOLE_GPU]
        return cls(
            problem=problem,
            layouts=tuple(layouts),
            cut=np.array([text != WHOLE_GPU for text in layouts], dtype=bool),
            demanded=membership([asked for asked, _ in sets], len(problem.profiles)),
            cover=cover[:, keep],
            steps=shortage_steps(problem),
            on_cost=problem.on_price * problem.slot_hours,
            change_cost=problem.change_gpu_hours,
            mode_cost=problem.mode_gpu_hours,
            gpus=problem.gpus_allowed_on,
            cuttable=problem.gpus_cuttable,
            # More may be cut at first than may be on: they stay so until they are needed.
            most_cut=max(problem.gpus - problem.kept_whole, sum(initial.values())),
            pinned=_state([pinned.get(text, 0) for text in layouts], [0] * len(cut)),
            initial=None
            if problem.initial is None
            else _state([0] * len(layouts), [initial.get(text, 0) for text in cut]),
        )

    def on(self, states: Counts) -> Counts:
        """GPUs on with each layout, shape (..., n_layouts)."""
        return states[..., : len(self.layouts)]

    def held(self, states: Counts) -> Counts:
        """GPUs that have each layout with instances, on or not, shape (..., n_cut)."""
        held: Counts = self.on(states)[..., self.cut] + states[..., len(self.layouts) :]
        return held

    def state(self, on: Counts, held: Counts) -> Counts:
        """States from GPUs on with each layout and GPUs that have each layout with instances."""
        return np.concatenate([on, held - on[..., self.cut]], axis=-1)

    def allowed(self, slot: int, states: Counts) -> NDArray[np.bool_]:
        """Whether states, shape (n, n_columns), keep the limits of a slot."""
        on, cut = self.on(states), self.held(states).sum(axis=1)
        most = 0 if slot == 0 and self.initial is None else self.problem.gpus
        within: NDArray[np.bool_] = (
            (on.sum(axis=1) <= self.gpus[slot])
            & (on[:, self.cut].sum(axis=1) <= self.cuttable[slot])
            & (states >= self.pinned).all(axis=1)
            & (cut <= self.most_cut)
            & (states.sum(axis=1) <= self.problem.gpus)
            & (cut - on[:, self.cut].sum(axis=1) <= most)
        )
        return within

    def with_instance(self, profile: int) -> Fluid:
        """The same arrays with one more column of counts, last: single instances of a profile, free of cost."""
        names = self.problem.profiles
        serving = [serves(self.problem.board, names[profile], name) for name in names]
        column = (self.demanded @ np.array(serving, dtype=np.int64) > 0).astype(np.int64)
        return replace(self, cover=np.column_stack([self.cover, column]))

    def missing(self, slot: int, counts: Counts) -> Counts:
        """Instances short of each profile, chosen so that the shortage costs least.

        Serving the dearest requests first is exact, because the sets of requests that can be served together
        form a polymatroid.

        Parameters
        ----------
        slot : int
            The slot.
        counts : ndarray of int, shape (n_layouts,)
            GPUs on by layout.
        """
        short = self.problem.required[:, slot].copy()
        for profile, served, _ in self._serve(slot, counts[None]):
            short[profile] -= served[0]
        return short

    def slot_costs(self, slot: int, counts: Counts) -> Floats:
        """Cost of a slot, GPUs on and demand unmet, under several vectors of counts.

        Parameters
        ----------
        slot : int
            The slot.
        counts : ndarray of int, shape (n, n_layouts) or (n, n_columns)
            GPUs on by layout, one vector a row; GPUs that are not on, if they are told, cost nothing.

        Returns
        -------
        ndarray of float, shape (n,)
        """
        steps = self.steps[slot]
        on = counts[:, : self.cover.shape[1]]
        costs: Floats = self.on_cost * on.sum(axis=1) + float(steps.width @ steps.cost)
        for _, served, price in self._serve(slot, on):
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

    def changes(self, before: Counts | None, after: Counts) -> tuple[int, int]:
        """GPUs that take up another layout between two states, and those whose MIG mode changes with it.

        GPUs that have a layout still wanted keep it, so that no fewer can change. Nothing changes if nothing is
        known of the first state.
        """
        if before is None:
            return 0, 0
        more = self.held(after) - self.held(before)
        grown, mode = int(more.clip(0).sum()), int(more.sum())
        return grown + max(-mode, 0), abs(mode)

    def change_price(self, before: Counts | None, after: Counts) -> float:
        """What the changes between two states cost."""
        changes, modes = self.changes(before, after)
        return self.change_cost * changes + self.mode_cost * modes

    def cost(self, states: Counts, *, start: int = 0, before: Counts | None = None) -> float:
        """Cost of consecutive slots with the changes into and between them.

        Parameters
        ----------
        states : ndarray of int, shape (n, n_columns)
            States in the slots from `start` on.
        start : int
            First slot.
        before : ndarray of int, optional, shape (n_columns,)
            State in the slot before; entering the first slot is free if None.
        """
        total = 0.0
        previous = before
        for slot, now in enumerate(states, start):
            total += float(self.slot_costs(slot, now[None])[0])
            total += self.change_price(previous, now)
            previous = now
        return total

    def before(self, states: Counts, slot: int) -> Counts | None:
        """State in the slot before one of a plan; the initial one before the first."""
        return states[slot - 1] if slot else self.initial


def _state(on: Sequence[int], kept: Sequence[int]) -> Counts:
    return np.array([*on, *kept], dtype=np.int64)


def _useful_layouts(problem: PlanProblem) -> list[str]:
    """Texts of the fullest layouts of the profiles that anybody wants, and of the whole GPU if wanted."""
    wanted = [p for p, needed in zip(problem.profiles, problem.required.max(axis=1), strict=True) if needed]
    slices = [profile for profile in wanted if profile != WHOLE_GPU]
    counts = pareto_counts(problem.board, slices) if slices else []
    whole = [WHOLE_GPU] if WHOLE_GPU in wanted else []
    return [*map(format_layout, counts), *whole]


def _beaten(cover: Counts, layout: int) -> bool:
    """Whether some other layout can do all that this one can, and more (or the same, and comes first)."""
    own = cover[:, layout]
    at_least = (cover >= own[:, None]).all(axis=0)
    equal = (cover == own[:, None]).all(axis=0)
    return bool((at_least & ~equal).any() or equal[:layout].any())
