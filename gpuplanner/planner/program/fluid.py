"""The problem as arrays: what every method works on.

The unit of decision is the number of GPUs that are on with a given layout in a given slot, so that nothing
here grows with the fleet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpuplanner.hardware import format_layout, pareto_counts, parse_layout
from gpuplanner.planner.contract.problem import Counts, Floats, PlanProblem
from gpuplanner.planner.contract.substitution import membership, serves, up_sets
from gpuplanner.planner.program.shortage import ShortageSteps, shortage_steps
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
    steps : list of ShortageSteps
        Cost of missing instances, by slot.
    on_cost, change_cost : float
        Cost of one GPU that is on for one slot, and of one that is cut.
    gpus : ndarray of int, shape (n_slots,)
        GPUs that may be on.
    cuttable : ndarray of int, shape (n_slots,)
        GPUs that may be cut; below 0 where the limits contradict each other.
    pinned : ndarray of int, shape (n_layouts,)
        GPUs that must have a layout in every slot.
    initial : ndarray of int or None, shape (n_layouts,)
        GPUs by layout before the first slot.
    """

    problem: PlanProblem
    layouts: tuple[str, ...]
    cut: NDArray[np.bool_]
    demanded: Counts
    cover: Counts
    steps: list[ShortageSteps]
    on_cost: float
    change_cost: float
    gpus: Counts
    cuttable: Counts
    pinned: Counts
    initial: Counts | None

    @classmethod
    def of(cls, problem: PlanProblem) -> Fluid:
        """Build the arrays.

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
        named = {*initial, *pinned}
        layouts = list(dict.fromkeys([*_useful_layouts(problem), *initial, *pinned]))
        held = [parse_layout(layout) for layout in layouts]
        supply = tuple(dict.fromkeys(name for counts in held for name in counts))
        sets = up_sets(problem.board, problem.profiles, supply)
        provides = np.zeros((len(supply), len(held)), dtype=np.int64)
        for layout, counts in enumerate(held):
            provides[[supply.index(name) for name in counts], layout] = list(counts.values())
        cover = membership([able for _, able in sets], len(supply)) @ provides
        keep = [i for i, layout in enumerate(layouts) if layout in named or not _beaten(cover, i)]
        gpus = problem.gpus_allowed_on
        return cls(
            problem=problem,
            layouts=tuple(layouts[i] for i in keep),
            cut=np.array([layouts[i] != WHOLE_GPU for i in keep], dtype=bool),
            demanded=membership([asked for asked, _ in sets], len(problem.profiles)),
            cover=cover[:, keep],
            steps=shortage_steps(problem),
            on_cost=problem.on_price * problem.slot_hours,
            change_cost=problem.change_gpu_hours,
            gpus=gpus,
            cuttable=problem.gpus_cuttable,
            pinned=np.array([pinned.get(layouts[i], 0) for i in keep], dtype=np.int64),
            initial=None if problem.initial is None else np.array([initial.get(layouts[i], 0) for i in keep]),
        )

    def allowed(self, slot: int, states: Counts) -> NDArray[np.bool_]:
        """Whether vectors of counts, shape (n, n_layouts), keep the limits of a slot."""
        within: NDArray[np.bool_] = (
            (states.sum(axis=1) <= self.gpus[slot])
            & (states[:, self.cut].sum(axis=1) <= self.cuttable[slot])
            & (states >= self.pinned).all(axis=1)
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
            GPUs by layout.
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
        counts : ndarray of int, shape (n, n_layouts)
            GPUs by layout, one vector a row.

        Returns
        -------
        ndarray of float, shape (n,)
        """
        steps = self.steps[slot]
        costs: Floats = self.on_cost * counts.sum(axis=1) + float(steps.width @ steps.cost)
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

    def cuts(self, before: Counts | None, after: Counts) -> int:
        """GPUs cut between two slots; none if nothing is known of the first."""
        return 0 if before is None else int((after - before).clip(0)[self.cut].sum())

    def cost(self, counts: Counts, *, start: int = 0, before: Counts | None = None) -> float:
        """Cost of consecutive slots with the changes into and between them.

        Parameters
        ----------
        counts : ndarray of int, shape (n, n_layouts)
            GPUs by layout in the slots from `start` on.
        start : int
            First slot.
        before : ndarray of int, optional, shape (n_layouts,)
            Counts of the slot before; entering the first slot is free if None.
        """
        total = 0.0
        previous = before
        for slot, now in enumerate(counts, start):
            total += float(self.slot_costs(slot, now[None])[0])
            total += self.change_cost * self.cuts(previous, now)
            previous = now
        return total

    def before(self, counts: Counts, slot: int) -> Counts | None:
        """Counts of the slot before one of a plan; the initial ones before the first."""
        return counts[slot - 1] if slot else self.initial


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
