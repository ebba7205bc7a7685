"""The optimum by dynamic programming over slots, where the fleet is small enough to list what its GPUs can have."""

from __future__ import annotations

import numpy as np

from gpuplanner.planner.changes import change_costs
from gpuplanner.planner.effort import Effort
from gpuplanner.planner.fluid import Fluid
from gpuplanner.planner.held import at_need
from gpuplanner.planner.lattice import Lattice
from gpuplanner.planner.problem import Counts, Floats

MAX_STATES = 100_000
"""States up to which a day of hours takes seconds, and less than 1 GiB of memory."""


def dynamic_states(
    fluid: Fluid, effort: Effort, *, max_states: int = MAX_STATES
) -> tuple[Counts, float] | None:
    r"""Find an optimal plan, or say that there are too many states.

    .. math:: V_t(h) = \min_{x \le h} f_t(x) + \min_{h'} \bigl( V_{t-1}(h') + r(h', h) \bigr)

    where :math:`h` says how many GPUs have each layout, :math:`x` how many are on with it, :math:`f_t` what the
    slot costs and :math:`r` what changes cost. Both minima are found for all :math:`h` at once. The first is a
    pass over the list from small to large. For the second, give up GPUs one at a time for nothing, down to what
    both have in common, and take up others at their price: two passes, a distance transform. The number of
    GPUs being given, a change is paid once, by the layout that grows. Let :math:`c` be its price, :math:`m` that of
    MIG mode and :math:`w` the whole GPUs: since :math:`|w - w'| = 2 (w - w')^+ - (w - w')`, and the last part
    telescopes, whole GPUs cost :math:`c + 2m`, others :math:`c`, and :math:`m` is paid for each GPU less that is
    whole at the end. (Where nobody asks for whole GPUs and MIG mode has no price, they are left out.) So the
    work of a slot grows with the number of states times that of layouts, not with the square of the number of
    states.

    Parameters
    ----------
    fluid : Fluid
        The arrays.
    effort : Effort
        Limits of the search.
    max_states : int
        Most states to list.

    Returns
    -------
    states : ndarray of int, shape (n_slots, n_columns)
        A plan.
    bound : float
        Its cost, which no plan undercuts. None instead of both if there are too many states, the time was up
        first, or the limits contradict each other.

    References
    ----------
    Felzenszwalb and Huttenlocher, Distance transforms of sampled functions, Theory of Computing 8 (2012),
    for the two passes.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner import PlanProblem
    >>> problem = PlanProblem(
    ...     board="H100-80GB-SXM5", gpus=1, gpus_per_node=1, slot_start=datetime(2026, 11, 2, tzinfo=UTC),
    ...     slot_hours=1, tenants=["ads"], profiles=["7g.80gb", "1g.10gb"],
    ...     demand=[[[1, 0, 0, 1], [0, 0, 3, 0]]], unmet_price=2.0, change_gpu_hours=0.5,
    ... )
    >>> fluid = Fluid.of(problem)
    >>> effort = Effort.begin(gap_target=0, time_limit_s=10, seed=0, solver="highs")
    >>> states, bound = dynamic_states(fluid, effort)  # the GPU is off in the second hour, and keeps its layout
    >>> fluid.on(states).tolist(), round(bound, 3)
    ([[1, 0], [0, 0], [0, 0], [1, 0]], 2.857)
    """
    lattice = Lattice.of(fluid, max_states)
    if lattice is None:
        return None
    search = _Search(fluid, lattice)
    for slot in range(fluid.problem.n_slots):
        if effort.spent():
            return None
        search.enter(slot)
    return search.best()


class _Search:
    """Least cost of the slots so far for everything that GPUs can have."""

    def __init__(self, fluid: Fluid, lattice: Lattice) -> None:
        self.fluid, self.lattice = fluid, lattice
        vectors = lattice.vectors
        self.on = vectors[:, : len(fluid.layouts)]
        self.cut = self.on[:, fluid.cut]
        self.total = self.cut.sum(axis=1)
        self.alone = fluid.state(self.on, self.cut)
        # Whole GPUs are a layout of their own, if they matter: all GPUs then have one.
        self.whole = np.flatnonzero(~lattice.cut).tolist()
        self.full = np.ones(len(vectors), dtype=bool)
        if len(self.whole):
            self.full = vectors.sum(axis=1) == fluid.problem.gpus
        self.only_on = (vectors[:, len(fluid.layouts) :] == 0).all(axis=1)
        self.prices = np.where(lattice.cut, fluid.change_cost, fluid.change_cost + 2 * fluid.mode_cost)
        self.values: list[Floats] = []
        self.chosen: list[Counts] = []

    def enter(self, slot: int) -> None:
        """Add a slot."""
        fluid = self.fluid
        able = fluid.allowed(slot, self.alone) & self.only_on
        own = np.where(able, fluid.slot_costs(slot, self.on), np.inf)
        if slot == 0 and fluid.initial is None:
            # Here what is cut is on; the others are whole, and there are as many as may be on.
            least, at = self.lattice.least_within(own, self.whole)
        else:
            least, at = self.lattice.least_within(own)
        if slot:
            value = least + self.lattice.nearest(self.values[-1], self.prices)
        else:
            value = least - fluid.mode_cost * self.total
            if fluid.initial is not None:
                value += change_costs(fluid, fluid.initial[None], self.alone)[0]
        self.chosen.append(at)
        self.values.append(np.where(self.full, value, np.inf))

    def best(self) -> tuple[Counts, float] | None:
        """The plan with the least value at the end, and that value; None if there is none."""
        fluid, vectors = self.fluid, self.lattice.vectors
        last = self.values[-1] + fluid.mode_cost * self.total
        row = int(last.argmin())
        if not np.isfinite(last[row]):
            return None
        rows = [row]
        for value in reversed(self.values[:-1]):
            way = (vectors[rows[-1]] - vectors).clip(0) @ self.prices
            rows.append(int((value + way).argmin()))
        rows.reverse()
        on = np.array([self.on[at[row]] for at, row in zip(self.chosen, rows, strict=True)])
        return at_need(fluid, on, self.cut[rows]), float(last[row])
