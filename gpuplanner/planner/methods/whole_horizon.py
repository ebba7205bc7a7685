"""The whole horizon as one model: the proof for small problems, the last resort for others.

Alone, one big model is hopeless at middle sizes. Begun from a good plan and with the floors of slots in it,
it closes small problems and tightens the bound of others.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuplanner.planner.contract.problem import Counts
from gpuplanner.planner.program.families import Floor, build, start_values
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.solving.effort import Effort
from gpuplanner.solving.solver import solve

_NODES = 20_000


def solve_whole(
    fluid: Fluid, counts: Counts, floors: Sequence[Floor], effort: Effort
) -> tuple[Counts | None, float | None]:
    """Solve all slots together, beginning from a plan."""
    model = build(fluid, range(len(counts)), before=fluid.initial, floors=floors)
    start = start_values(model, counts, fluid.initial, None)
    answer = solve(model.linear, effort, gap=effort.gap_target, start=start, nodes=_NODES)
    return None if answer.values is None else model.counts(answer.values), answer.bound
