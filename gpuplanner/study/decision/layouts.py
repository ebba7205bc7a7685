"""Today's nodes as a way has them: as they are, in mixed layouts by demand, or with instances made for each job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.export.fleet_rules import FleetRules, PoolRule
from gpuplanner.export.fleet_rules import line_up_layouts
from gpuplanner.paths import MADE_BY
from gpuplanner.hardware.change_cost import ChangeCost
from gpuplanner.hardware.gpu import GpuModel
from gpuplanner.hardware.layout import format_layout
from gpuplanner.hardware.enumerate import pareto_counts
from gpuplanner.hardware.abilities import RETURNED, PathAbilities
from gpuplanner.schemas.vocabulary import WHOLE_GPU
from gpuplanner.simulate.nodes.instance_sets import Flexible
from gpuplanner.simulate.nodes.machine import NodeFleet, NodeRequests, Switching
from gpuplanner.study.decision.arena import Knobs, Trial, WaySetting, cut_fleet
from gpuplanner.study.decision.asked import AS_TODAY, Asked
from gpuplanner.study.decision.types import CUT_BY_JOBS
from gpuplanner.units import SECONDS_PER_HOUR


def kept_longest(asked: Asked) -> list[int]:
    """Today's nodes, those that stay longest first: the large, whole ones."""
    nodes = asked.nodes
    cut = [sum(layout != WHOLE_GPU for layout in layouts) for layouts in nodes.layouts]
    return sorted(range(len(nodes.gpus)), key=lambda number: (-nodes.gpus[number], cut[number], number))


def assign_layouts(
    today: Sequence[tuple[str, ...]], order: Sequence[int], wanted: Sequence[str]
) -> dict[int, tuple[str, ...]]:
    """Assign a layout to each GPU of as many nodes as are needed; nodes that have wanted layouts keep them.

    Of the others those are mixed that no layout fills.

    Parameters
    ----------
    today : sequence of tuple of str
        Layout of each GPU, by node.
    order : sequence of int
        Numbers of the nodes, those first that stay longest.
    wanted : sequence of str
        Layout of each GPU that is needed; what is left of the last node is not partitioned.

    Examples
    --------
    >>> today = [("gpu", "gpu"), ("3g.20gb:2",) * 2, ("3g.20gb:2",) * 2, ("1g.5gb:7",) * 2]
    >>> assign_layouts(today, range(4), ["gpu"] * 2 + ["1g.5gb:7"] * 4 + ["3g.20gb:2"] * 2)[2]
    ('1g.5gb:7', '1g.5gb:7')
    """
    left = Counter(wanted)
    layouts: dict[int, tuple[str, ...]] = {}
    for number in order:
        if Counter(today[number]) <= left:
            layouts[number] = today[number]
            left -= Counter(today[number])

    for number in order:
        size = len(today[number])
        filled = next((layout for layout, count in left.most_common() if count >= size), None)
        if number not in layouts and filled is not None:
            layouts[number] = (filled,) * size
            left[filled] -= size

    rest = list(left.elements())
    for number in order:
        if rest and number not in layouts:
            size = len(today[number])
            layouts[number] = tuple([WHOLE_GPU] * (size - len(rest)) + rest[:size])
            rest = rest[size:]
    return {number: layouts[number] for number in order if number in layouts}


def as_they_are(asked: Asked, policy: str, numbers: Sequence[int]) -> WaySetting:
    """Some of today's nodes, cut as they are."""
    fleet, layouts = cut_fleet(asked, numbers, [[asked.nodes.layouts[number]] for number in numbers])
    knobs: Knobs = {"gpus": int(fleet.gpus.sum()), "nodes": len(numbers)}
    return WaySetting(policy, AS_TODAY, fleet, layouts, tuple(numbers), knobs=knobs)


def deal_layouts(board: GpuModel, wanted: Mapping[str, float], gpus: int) -> list[str]:
    """Layouts of so many GPUs, or nodes, that offer profiles in proportion to what is wanted, as far as they can.

    One GPU after the other gets, of all layouts with the profile that is shortest of its share, the one that fills
    most of what the others still lack.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu import load_gpu_model
    >>> deal_layouts(load_gpu_model("H100-80GB-SXM5"), {"1g.10gb": 7, "3g.40gb": 2}, 2)
    ['3g.40gb:1,1g.10gb:4', '3g.40gb:1,1g.10gb:4']
    """
    names = [name for name, count in wanted.items() if count > 0]
    held = ({name: count for name, count in one.items() if count} for one in pareto_counts(board, names))
    choices = [(one, format_layout(one)) for one in held if one]
    share = {name: board.share(name) for name in names}
    total = sum(share[name] * wanted[name] for name in names)
    target = {name: wanted[name] * gpus / total for name in names}
    lack = dict(target)
    got: Counter[str] = Counter()

    def filled(choice: tuple[Mapping[str, int], str]) -> tuple[float, str]:
        one, text = choice
        return round(sum(share[name] * min(count, lack[name]) for name, count in one.items()), 9), text

    found = []
    for _ in range(gpus):
        shortest = min(names, key=lambda name: (got[name] / target[name], name))
        best, text = max((choice for choice in choices if shortest in choice[0]), key=filled)
        got.update(best)
        lack |= {name: max(target[name] - got[name], 0.0) for name in best}
        found.append(text)
    return found


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


def rules_of(asked: Asked, trial: Trial, able: PathAbilities, policy: str) -> FleetRules:
    """The setting of a way as those who write its files need it, with what came of it when it was played."""
    setting, nodes = trial.setting, asked.nodes
    switching = setting.switching if able.switches_nodes else None
    left = [number for number in range(len(nodes.gpus)) if number not in set(setting.numbers)]
    return FleetRules(
        policy=policy,
        path=able.path,
        board=asked.board.name,
        pools=tuple(_pools(asked, trial)),
        nodes=len(setting.numbers),
        today=tuple(
            PoolRule(f"today-{place}", layouts, len(mine), _names(asked, mine))
            for place, (layouts, mine) in enumerate(_alike(range(len(nodes.gpus)), nodes.layouts).items(), 1)
        ),
        released=_names(asked, left),
        returned=able.returns == RETURNED,
        idle_s=None if switching is None else switching.idle_s,
        lead_s=able.lead.value,
        lead_slow_s=able.lead.high,
        cool_s=0.0 if switching is None else switching.cool_s,
        placement=setting.placement,
        requests=setting.view,
        begins=asked.end.isoformat(),
    )


def _pools(asked: Asked, trial: Trial) -> Iterator[PoolRule]:
    """Nodes of a setting that are cut alike, by the engine's pools; each keeps idle ones on as they do."""
    setting, counts = trial.setting, Counter[str]()
    kept = () if setting.switching is None else setting.switching.kept
    for pool in range(setting.fleet.capacity.shape[1]):
        left = kept[pool] if pool < len(kept) else 0
        places = [place for place, layouts in enumerate(setting.layouts) if layouts[pool]]
        kinds = _alike(places, [layouts[pool] for layouts in setting.layouts])
        for layouts, mine in sorted(kinds.items(), key=lambda item: -len(item[1])):
            kind = "whole" if set(layouts) == {WHOLE_GPU} else "jobs" if CUT_BY_JOBS in layouts else "cut"
            counts[kind] += 1
            name = kind if counts[kind] == 1 else f"{kind}-{counts[kind]}"
            on = trial.outcome.on.filter(pl.col("pool") == pool, pl.col("node").is_in(mine))
            ones = np.ones(len(setting.numbers), np.int64)
            most = replace(trial.outcome, on=on).most_gpus(ones, 0.0, asked.seen_s)
            stay = min(left, len(mine))
            left -= stay
            numbers = [setting.numbers[place] for place in mine]
            yield PoolRule(name, layouts, len(mine), _names(asked, numbers), most, stay)


def changed_layouts(asked: Asked, setting: WaySetting) -> dict[tuple[str, str], list[str]]:
    """Nodes of the GPUs that are repartitioned, one name for each GPU, by layout before and after."""
    found: dict[tuple[str, str], list[str]] = {}
    for number, layouts in zip(setting.numbers, setting.layouts, strict=True):
        for before, after in line_up_layouts(asked.nodes.layouts[number], layouts[0]):
            if before != after:
                found.setdefault((before, after), []).append(asked.nodes.names[number])
    return found


def _alike(numbers: Iterable[int], layouts: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], list[int]]:
    found: dict[tuple[str, ...], list[int]] = {}
    for number in numbers:
        found.setdefault(layouts[number], []).append(number)
    return found


def _names(asked: Asked, numbers: Iterable[int]) -> tuple[str, ...]:
    return tuple(asked.nodes.names[number] for number in numbers) if asked.nodes.named else ()
