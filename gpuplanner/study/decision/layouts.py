"""How to cut so many GPUs for what is asked for: mixed layouts by demand, or instances made for each job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gpuplanner.hardware import MADE_BY, ChangeCost, GpuModel, format_layout, pareto_counts
from gpuplanner.hardware.abilities import PathAbilities
from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.simulate.nodes import Flexible, NodeFleet, NodeRequests, Switching
from gpuplanner.study.decision.asked import Asked
from gpuplanner.study.decision.types import CUT_BY_JOBS
from gpuplanner.units import SECONDS_PER_HOUR


def mixed_layouts(board: GpuModel, wanted: Mapping[str, float], gpus: int) -> list[str]:
    """Layouts of so many GPUs that offer profiles in proportion to what is wanted, as far as whole boards allow.

    One GPU after the other gets, of all layouts with the profile that is shortest of its share, the one that fills
    most of what the others still lack.

    Examples
    --------
    >>> from gpuplanner.hardware import load_gpu_model
    >>> mixed_layouts(load_gpu_model("H100-80GB-SXM5"), {"1g.10gb": 7, "3g.40gb": 2}, 2)
    ['3g.40gb:1,1g.10gb:4', '3g.40gb:1,1g.10gb:4']
    """
    names = [name for name, count in wanted.items() if count > 0]
    choices = [one for one in pareto_counts(board, names) if any(one.values())]
    share = {name: board.share(name) for name in names}
    total = sum(share[name] * wanted[name] for name in names)
    target = {name: wanted[name] * gpus / total for name in names}
    got: Counter[str] = Counter()
    found = []
    for _ in range(gpus):
        shortest = min(names, key=lambda name: (got[name] / target[name], name))
        able = [one for one in choices if one.get(shortest)]

        def filled(one: Mapping[str, int]) -> tuple[float, str]:
            fits = sum(
                share[name] * min(count, max(target[name] - got[name], 0.0)) for name, count in one.items()
            )
            return round(fits, 9), format_layout({name: count for name, count in one.items() if count})

        best = max(able, key=filled)
        got.update(best)
        found.append(format_layout({name: count for name, count in best.items() if count}))
    return sorted(found)


def wanted_instances(
    requests: NodeRequests, profiles: Sequence[str], which: NDArray[np.bool_], span_s: float, *, peak: bool
) -> dict[str, float]:
    """Instances of each MIG profile that are in use on average, or at once at most, if nobody waits."""
    found = {}
    for number, name in enumerate(profiles):
        mine = which & (requests.profile == number)
        if name == WHOLE_GPU or not mine.any():
            continue
        begin, run, count = requests.ready_s[mine], requests.run_s[mine], requests.total[mine]
        if peak:
            at = np.concatenate([begin, begin + run])
            change = np.concatenate([count, -count])
            found[name] = float(np.cumsum(change[np.lexsort((change, at))]).max(initial=0))
        else:
            found[name] = float(run @ count) / max(span_s, SECONDS_PER_HOUR)
    return found


def on_demand_fleet(
    asked: Asked, numbers: Sequence[int], able: PathAbilities
) -> tuple[NodeFleet, tuple[tuple[tuple[str, ...], ...], ...], Switching | None]:
    """Some of today's nodes, their GPUs cut as jobs come and go, with the layouts of each pool and how nodes change.

    Where MIG mode needs a reboot, a node is whole or cut, and changes while it is empty; else every GPU is both.
    """
    cost, profiles = ChangeCost.of(asked.board, MADE_BY[able.path]), asked.fleet.profiles
    gpus, how = asked.fleet.gpus[list(numbers)], Flexible.of(asked.board, profiles, cost)
    if cost.reboot_s is None:
        capacity = [[how.capacity(count, whole=True)] for count in gpus.tolist()]
        fleet = NodeFleet(profiles, gpus, np.array(capacity), np.zeros_like(gpus), asked.fleet.weights, how)
        return fleet, tuple(((CUT_BY_JOBS,) * count,) for count in gpus.tolist()), None
    none = [0] * (len(profiles) - 1)
    capacity = [[[count, *none], how.capacity(count, whole=False)] for count in gpus.tolist()]
    cut = [set(asked.nodes.layouts[number]) != {WHOLE_GPU} for number in numbers]
    fleet = NodeFleet(profiles, gpus, np.array(capacity), np.array(cut), asked.fleet.weights, how)
    names = tuple(((WHOLE_GPU,) * count, (CUT_BY_JOBS,) * count) for count in gpus.tolist())
    # Each pool keeps all idle nodes: they change, and never go.
    return fleet, names, Switching(0.0, cost.reboot_s.value, (len(gpus), len(gpus)))
