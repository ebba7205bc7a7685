"""The nodes and layouts of each policy."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.scenario_fields import PARTITIONER_BY_ACTUATOR
from gpuplanner.core.schemas import WHOLE_GPU
from gpuplanner.core.units import SECONDS_PER_HOUR
from gpuplanner.decision.decision_types import CUT_BY_JOBS
from gpuplanner.decision.policy_simulation import Knobs, Trial, WaySetting, cut_fleet
from gpuplanner.decision.requests import AS_TODAY, JobReplayInputs
from gpuplanner.hardware.actuators import RETURNED_NODES, ActuatorAbilities
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.hardware.layout_enumeration import list_pareto_counts
from gpuplanner.hardware.mig_layouts import UNUSED_LAYOUT, format_layout, parse_layout
from gpuplanner.hardware.repartitioning_cost import ChangeCost
from gpuplanner.planner.layout_plan import NodeState
from gpuplanner.simulator.simulated_fleet import DynamicMig, NodeAutoscaling, NodeFleet, NodeRequests

_PLAN: dict[str, Any] = {
    "node": pl.String, "gpu": pl.Int32, "slot_start": pl.Datetime("us", "UTC"),
    "slot_end": pl.Datetime("us", "UTC"), "layout": pl.String, "changed": pl.Boolean, "parked": pl.String,
}  # fmt: skip
BY_JOBS = "on demand"
"""Layout of a GPU on which instances are made for jobs."""


@dataclass(frozen=True)
class PoolRule:
    """Nodes that are cut alike.

    Attributes
    ----------
    name : str
        Its name: one label of a DNS name.
    layouts : tuple of str
        Layout of each GPU of one of its nodes, ``"gpu"`` where it is not cut, :data:`BY_JOBS` where jobs cut it.
    count : int
        Nodes that can be in it.
    nodes : tuple of str
        Their names; empty where nobody knows them.
    most, kept : int
        Nodes on at once at most; idle ones that stay on.

    Examples
    --------
    >>> cut = PoolRule("mig", ("gpu", "1g.10gb:7"), 2, ("n1", "n2"))
    >>> cut.is_cut, cut.offers
    (True, {'gpu': 1, '1g.10gb': 7})
    """

    name: str
    layouts: tuple[str, ...]
    count: int
    nodes: tuple[str, ...] = ()
    most: int = 0
    kept: int = 0

    @property
    def state(self) -> NodeState:
        """One of its nodes; GPUs that jobs cut are whole while they are empty."""
        return NodeState(tuple((gpu, _empty(layout)) for gpu, layout in enumerate(self.layouts)))

    @property
    def is_cut(self) -> bool:
        """Whether any of its GPUs has instances by itself."""
        return any(_empty(layout) != WHOLE_GPU for layout in self.layouts)

    @property
    def offers(self) -> dict[str, int]:
        """Instances of each profile on one of its nodes, whole GPUs first."""
        return self.state.totals


@dataclass(frozen=True)
class TenantQuota:
    """What a tenant may hold of the GPUs of today.

    Attributes
    ----------
    tenant : str
        Its queue.
    gpus : float
        Its own [GPUs]; an instance counts with its share of one.
    cohort : str or None
        Tenants of one lend each other what they leave.
    borrow, lend : float or None
        How much it may borrow on top, and lend, at most [GPUs]; None: no limit.
    namespaces : tuple of str
        Whose jobs are its own.
    """

    tenant: str
    gpus: float
    cohort: str | None = None
    borrow: float | None = None
    lend: float | None = None
    namespaces: tuple[str, ...] = ()


@dataclass(frozen=True)
class FleetRules:
    """The fleet as it shall be run.

    Attributes
    ----------
    policy, actuator, board : str
        The way, who performs it, and the board of all nodes.
    pools : tuple of PoolRule
        Nodes by how they are cut. A node may be in several, and is in one at a time.
    nodes : int
        Nodes that there are in all of them.
    today : tuple of PoolRule
        The same nodes, and those that are not needed, as they are cut today.
    released : tuple of str
        Nodes that are not needed.
    returned : bool
        They go back to whom they belong to; else they stay and rest.
    idle_s : float or None
        How long a node is idle when it goes [s]; None: it stays on.
    lead_s, lead_slow_s : float
        From the call until a node that was off takes jobs, its cut included: usual, and at the slow end [s].
    cool_s : float
        For how long after a node came none goes [s].
    placement : str
        Which nodes are filled first.
    requests : str
        What jobs ask for: as today, as they request, or as they need.
    begins : str or None
        Instant from which it can hold: the end of what was read.
    quotas : tuple of TenantQuota
        What tenants may hold, where something says so.

    Examples
    --------
    >>> today = (PoolRule("today-1", ("gpu",), 2, ("n1", "n2")),)
    >>> cut = PoolRule("mig", ("1g.10gb:7",), 1, ("n1",))
    >>> rules = FleetRules("mig_static", "slurm", "H100-80GB-SXM5", (cut,), 1, today, released=("n2",))
    >>> rules.layout_plan().select("node", "layout", "changed").rows()[1::2]
    [('n1', '1g.10gb:7', True), ('n2', 'off', False)]
    """

    policy: str
    actuator: str
    gpu_model: str
    pools: tuple[PoolRule, ...]
    nodes: int
    today: tuple[PoolRule, ...]
    released: tuple[str, ...] = ()
    returned: bool = False
    idle_s: float | None = None
    lead_s: float = 0.0
    lead_slow_s: float = 0.0
    cool_s: float = 0.0
    placement: str = "best"
    requests: str = "today"
    begins: str | None = None
    quotas: tuple[TenantQuota, ...] = ()

    @property
    def named(self) -> bool:
        """Whether the nodes have names."""
        return all(pool.nodes for pool in self.today)

    @property
    def comes_and_goes(self) -> bool:
        """Whether nodes go while they are idle."""
        return self.idle_s is not None

    @functools.cached_property
    def before(self) -> dict[str, tuple[str, ...]]:
        """Layouts of each node today."""
        return {node: pool.layouts for pool in self.today for node in pool.nodes}

    def pool_plan(self) -> pl.DataFrame:
        """One node of each pool as a plan, by the name of the pool."""
        first = datetime.fromisoformat(self.begins or "2026-01-01T00:00:00+00:00")
        rows = [
            (pool.name, gpu, first, first + timedelta(days=28), layout, True, None)
            for pool in self.pools
            for gpu, layout in pool.state.gpus
        ]
        return pl.DataFrame(rows, schema=_PLAN, orient="row")

    def layout_plan(self) -> pl.DataFrame:
        """The fixed fleet as a plan of two ranges, today and then: ``schemas.LayoutPlan``; nodes that go are off then.

        A GPU that stays as it is keeps its number.
        """
        pools = {node: pool.layouts for pool in self.pools for node in pool.nodes}
        last = datetime.fromisoformat(self.begins or "2026-01-01T00:00:00+00:00")
        first, end = last - timedelta(hours=1), last + timedelta(days=28)
        rows: list[tuple[object, ...]] = []
        for node, was in sorted(self.before.items()):
            for gpu, (old, new) in enumerate(line_up_layouts(was, pools.get(node))):
                rows.append((node, gpu, first, last, old, False, None))
                rows.append((node, gpu, last, end, new, old != new and new != UNUSED_LAYOUT, None))
        return pl.DataFrame(rows, schema=_PLAN, orient="row")


def line_up_layouts(was: tuple[str, ...], then: tuple[str, ...] | None) -> Iterator[tuple[str, str]]:
    """Layout of each GPU before and after, as many as can be unchanged.

    Examples
    --------
    >>> list(line_up_layouts(("gpu", "1g.10gb:7"), ("1g.10gb:7", "3g.40gb:2")))
    [('gpu', '3g.40gb:2'), ('1g.10gb:7', '1g.10gb:7')]
    """
    old = [_empty(WHOLE_GPU if layout == UNUSED_LAYOUT else layout) for layout in was]
    if then is None:
        yield from ((layout, UNUSED_LAYOUT) for layout in old)
        return
    left = [_empty(layout) for layout in then]
    stays = []
    for layout in old:
        stays.append(layout in left)
        if stays[-1]:
            left.remove(layout)
    yield from ((layout, layout if same else left.pop(0)) for layout, same in zip(old, stays, strict=True))


def _empty(layout: str) -> str:
    return WHOLE_GPU if layout == BY_JOBS or not parse_layout(layout) else layout


def kept_longest(asked: JobReplayInputs) -> list[int]:
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


def as_they_are(asked: JobReplayInputs, policy: str, numbers: Sequence[int]) -> WaySetting:
    """Some of today's nodes, cut as they are."""
    fleet, layouts = cut_fleet(asked, numbers, [[asked.nodes.layouts[number]] for number in numbers])
    knobs: Knobs = {"gpus": int(fleet.gpus.sum()), "nodes": len(numbers)}
    return WaySetting(policy, AS_TODAY, fleet, layouts, tuple(numbers), knobs=knobs)


def deal_layouts(gpu_model: GpuModel, wanted: Mapping[str, float], gpus: int) -> list[str]:
    """Layouts of so many GPUs, or nodes, that offer profiles in proportion to what is wanted, as far as they can.

    One GPU after the other gets, of all layouts with the profile that is shortest of its share, the one that fills
    most of what the others still lack.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> deal_layouts(load_gpu_model("H100-80GB-SXM5"), {"1g.10gb": 7, "3g.40gb": 2}, 2)
    ['3g.40gb:1,1g.10gb:4', '3g.40gb:1,1g.10gb:4']
    """
    names = [name for name, count in wanted.items() if count > 0]
    held = ({name: count for name, count in one.items() if count} for one in list_pareto_counts(gpu_model, names))
    choices = [(one, format_layout(one)) for one in held if one]
    share = {name: gpu_model.gpu_fraction(name) for name in names}
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
    asked: JobReplayInputs, numbers: Sequence[int], able: ActuatorAbilities
) -> tuple[NodeFleet, tuple[tuple[tuple[str, ...], ...], ...], NodeAutoscaling | None]:
    """Some of today's nodes, their GPUs cut as jobs come and go, with the layouts of each pool and how nodes change.

    Where MIG mode needs a reboot, a node is whole or cut, and changes while it is empty; else every GPU is both.
    """
    cost, profiles = (
        ChangeCost.from_catalogue(asked.gpu_model, PARTITIONER_BY_ACTUATOR[able.actuator]),
        asked.fleet.profiles,
    )
    gpus, how = asked.fleet.gpus[list(numbers)], DynamicMig.from_change_cost(asked.gpu_model, profiles, cost)
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
    return fleet, names, NodeAutoscaling(0.0, cost.reboot_s.value, (len(gpus), len(gpus)))


def rules_of(asked: JobReplayInputs, trial: Trial, able: ActuatorAbilities, policy: str) -> FleetRules:
    """The setting of a way as those who write its files need it, with what came of it when it was played."""
    setting, nodes = trial.setting, asked.nodes
    switching = setting.switching if able.switches_nodes else None
    left = [number for number in range(len(nodes.gpus)) if number not in set(setting.numbers)]
    return FleetRules(
        policy=policy,
        actuator=able.actuator,
        gpu_model=asked.gpu_model.name,
        pools=tuple(_pools(asked, trial)),
        nodes=len(setting.numbers),
        today=tuple(
            PoolRule(f"today-{place}", layouts, len(mine), _names(asked, mine))
            for place, (layouts, mine) in enumerate(_alike(range(len(nodes.gpus)), nodes.layouts).items(), 1)
        ),
        released=_names(asked, left),
        returned=able.returns == RETURNED_NODES,
        idle_s=None if switching is None else switching.idle_s,
        lead_s=able.lead.value,
        lead_slow_s=able.lead.high,
        cool_s=0.0 if switching is None else switching.cool_s,
        placement=setting.placement,
        requests=setting.view,
        begins=asked.end.isoformat(),
    )


def _pools(asked: JobReplayInputs, trial: Trial) -> Iterator[PoolRule]:
    """Nodes of a setting that are cut alike, by the engine's pools; each keeps idle ones on as they do."""
    setting, counts = trial.setting, Counter[str]()
    kept = () if setting.switching is None else setting.switching.kept
    for pool in range(setting.fleet.capacity.shape[1]):
        left = kept[pool] if pool < len(kept) else 0
        places = [place for place, layouts in enumerate(setting.layouts) if layouts[pool]]
        kinds = _alike(places, [layouts[pool] for layouts in setting.layouts])
        for layouts, mine in sorted(kinds.items(), key=lambda item: -len(item[1])):
            kind = "full" if set(layouts) == {WHOLE_GPU} else "jobs" if CUT_BY_JOBS in layouts else "mig"
            counts[kind] += 1
            name = kind if counts[kind] == 1 else f"{kind}-{counts[kind]}"
            on = trial.outcome.power_intervals.filter(pl.col("pool") == pool, pl.col("node").is_in(mine))
            ones = np.ones(len(setting.numbers), np.int64)
            most = replace(trial.outcome, power_intervals=on).peak_gpus(ones, 0.0, asked.observed_s)
            stay = min(left, len(mine))
            left -= stay
            numbers = [setting.numbers[place] for place in mine]
            yield PoolRule(name, layouts, len(mine), _names(asked, numbers), most, stay)


def changed_layouts(asked: JobReplayInputs, setting: WaySetting) -> dict[tuple[str, str], list[str]]:
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


def _names(asked: JobReplayInputs, numbers: Iterable[int]) -> tuple[str, ...]:
    return tuple(asked.nodes.names[number] for number in numbers) if asked.nodes.named else ()
