"""Nodes and MIG layouts of each policy, and the rules by which the fleet is operated."""

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

from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.setting_rules_and_controls import PARTITIONER_BY_ACTUATOR
from gpuplanner.core.units_and_number_formats import SECONDS_PER_HOUR
from gpuplanner.decision.decision_types import LAYOUT_PER_JOB
from gpuplanner.decision.policy_simulation import PolicyRun, PolicySetting, SettingValues, partition_nodes
from gpuplanner.decision.requested_jobs import AS_TODAY, JobReplayInputs
from gpuplanner.hardware.actuators import UNNEEDED_NODES_RETURNED, ActuatorAbilities
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.hardware.layout_enumeration import list_pareto_counts
from gpuplanner.hardware.mig_layouts import UNUSED_LAYOUT, format_layout, parse_layout
from gpuplanner.hardware.repartitioning_cost import ChangeCost
from gpuplanner.planner.layout_plan import NodeState
from gpuplanner.simulator.simulation_inputs import DynamicMig, NodeAutoscaling, NodeFleet, NodeRequests

_PLAN_SCHEMA: dict[str, Any] = {
    "node": pl.String, "gpu": pl.Int32, "slot_start": pl.Datetime("us", "UTC"),
    "slot_end": pl.Datetime("us", "UTC"), "layout": pl.String, "changed": pl.Boolean, "parked": pl.String,
}  # fmt: skip
"""Columns of a layout plan: layout of each GPU by period."""


@dataclass(frozen=True)
class PoolRule:
    """A node pool: nodes with the same layouts.

    Attributes
    ----------
    name : str
        Name of the pool: one label of a DNS name.
    layouts : tuple of str
        Layout of each GPU of a node: ``"gpu"`` with MIG disabled, ``"on demand"`` with an instance for each job.
    count : int
        Nodes that can be in the pool.
    nodes : tuple of str
        Their names; empty if not known.
    max_nodes_on, kept : int
        Most nodes powered on at once; idle nodes that stay powered on.

    Examples
    --------
    >>> cut = PoolRule("mig", ("gpu", "1g.10gb:7"), 2, ("n1", "n2"))
    >>> cut.is_partitioned, cut.offers
    (True, {'gpu': 1, '1g.10gb': 7})
    """

    name: str
    layouts: tuple[str, ...]
    count: int
    nodes: tuple[str, ...] = ()
    max_nodes_on: int = 0
    kept: int = 0

    @property
    def state(self) -> NodeState:
        """Layouts of one of its nodes; GPUs with an instance for each job are full while they are empty."""
        return NodeState(tuple((gpu, _layout_while_empty(layout)) for gpu, layout in enumerate(self.layouts)))

    @property
    def is_partitioned(self) -> bool:
        """Whether any of its GPUs has fixed MIG instances."""
        return any(_layout_while_empty(layout) != FULL_GPU for layout in self.layouts)

    @property
    def offers(self) -> dict[str, int]:
        """Instances of each profile on one of its nodes, full GPUs first."""
        return self.state.totals


@dataclass(frozen=True)
class TenantQuota:
    """Quota of a tenant on today's GPUs.

    Attributes
    ----------
    tenant : str
        Queue of the tenant.
    gpus : float
        Nominal quota [GPUs]; an instance counts as its share of a GPU.
    cohort : str or None
        Cohort whose tenants lend each other unused quota.
    borrow, lend : float or None
        Most GPUs that it may borrow, and lend; None: no limit.
    namespaces : tuple of str
        Namespaces of its jobs.
    """

    tenant: str
    gpus: float
    cohort: str | None = None
    borrow: float | None = None
    lend: float | None = None
    namespaces: tuple[str, ...] = ()


@dataclass(frozen=True)
class FleetRules:
    """Rules by which the fleet is to be operated.

    Attributes
    ----------
    policy, actuator, gpu_model : str
        Policy, the actuator that applies it, and the GPU model of all nodes.
    pools : tuple of PoolRule
        Nodes by layouts. A node may belong to several pools, and is in one at a time.
    nodes : int
        Nodes in all pools.
    today : tuple of PoolRule
        The same nodes and the released ones with today's layouts.
    released : tuple of str
        Names of the released nodes.
    returned : bool
        Released nodes return to their owner; else they are powered down.
    idle_s : float or None
        Idle time before power-down [s]; None: nodes stay on.
    lead_s, lead_slow_s : float
        Time from power-up to the first job, partitioning included: usual and slow [s].
    cool_s : float
        Time after a power-up in which no node is powered down [s].
    placement : str
        Nodes that are filled first.
    requests : str
        Requests of jobs: as today, as requested, or rightsized.
    begins : str or None
        Instant from which the rules can apply: the end of the data.
    quotas : tuple of TenantQuota
        Quotas of tenants, if any are stated.

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
    def has_node_names(self) -> bool:
        """Whether the nodes have names."""
        return all(pool.nodes for pool in self.today)

    @property
    def powers_nodes_down(self) -> bool:
        """Whether idle nodes are powered down."""
        return self.idle_s is not None

    @functools.cached_property
    def todays_layouts(self) -> dict[str, tuple[str, ...]]:
        """Layouts of the GPUs of each node today."""
        return {node: pool.layouts for pool in self.today for node in pool.nodes}

    def make_pool_plan(self) -> pl.DataFrame:
        """Make a plan with one node of each node pool, under the name of the pool."""
        first = datetime.fromisoformat(self.begins or "2026-01-01T00:00:00+00:00")
        rows = [
            (pool.name, gpu, first, first + timedelta(days=28), layout, True, None)
            for pool in self.pools
            for gpu, layout in pool.state.gpus
        ]
        return pl.DataFrame(rows, schema=_PLAN_SCHEMA, orient="row")

    def layout_plan(self) -> pl.DataFrame:
        """Return the fixed fleet as a plan of two periods, today and as recommended: ``schemas.LayoutPlan``.

        Released nodes are off in the second period. A GPU whose layout stays keeps its number.
        """
        pools = {node: pool.layouts for pool in self.pools for node in pool.nodes}
        last = datetime.fromisoformat(self.begins or "2026-01-01T00:00:00+00:00")
        first, end = last - timedelta(hours=1), last + timedelta(days=28)
        rows: list[tuple[object, ...]] = []
        for node, was in sorted(self.todays_layouts.items()):
            for gpu, (old, new) in enumerate(line_up_layouts(was, pools.get(node))):
                rows.append((node, gpu, first, last, old, False, None))
                rows.append((node, gpu, last, end, new, old != new and new != UNUSED_LAYOUT, None))
        return pl.DataFrame(rows, schema=_PLAN_SCHEMA, orient="row")


def line_up_layouts(before: tuple[str, ...], after: tuple[str, ...] | None) -> Iterator[tuple[str, str]]:
    """Pair the layouts of a node's GPUs before and after a change, with as many GPUs unchanged as possible.

    Examples
    --------
    >>> list(line_up_layouts(("gpu", "1g.10gb:7"), ("1g.10gb:7", "3g.40gb:2")))
    [('gpu', '3g.40gb:2'), ('1g.10gb:7', '1g.10gb:7')]
    """
    old = [_layout_while_empty(FULL_GPU if layout == UNUSED_LAYOUT else layout) for layout in before]
    if after is None:
        yield from ((layout, UNUSED_LAYOUT) for layout in old)
        return
    unmatched = [_layout_while_empty(layout) for layout in after]
    staying = []
    for layout in old:
        staying.append(layout in unmatched)
        if staying[-1]:
            unmatched.remove(layout)
    yield from ((layout, layout if stays else unmatched.pop(0)) for layout, stays in zip(old, staying, strict=True))


def _layout_while_empty(layout: str) -> str:
    """Return the layout of a GPU while it has no jobs: full if instances are created for each job."""
    return FULL_GPU if layout == LAYOUT_PER_JOB or not parse_layout(layout) else layout


def rank_nodes(inputs: JobReplayInputs) -> list[int]:
    """Rank today's nodes, those to release last first: large nodes with full GPUs."""
    nodes = inputs.nodes
    n_partitioned = [sum(layout != FULL_GPU for layout in layouts) for layouts in nodes.layouts]
    return sorted(range(len(nodes.gpus)), key=lambda number: (-nodes.gpus[number], n_partitioned[number], number))


def assign_layouts(
    today: Sequence[tuple[str, ...]], order: Sequence[int], needed_layouts: Sequence[str]
) -> dict[int, tuple[str, ...]]:
    """Assign needed layouts to the GPUs of as few nodes as possible; nodes that have needed layouts keep them.

    A layout with more instances than a needed one counts as that one and stays: deleting instances gains nothing. Only
    nodes that no single layout fills get mixed layouts.

    Parameters
    ----------
    today : sequence of tuple of str
        Layout of each GPU, by node.
    order : sequence of int
        Numbers of the nodes, those to release last first.
    needed_layouts : sequence of str
        Layout of each GPU that is needed; the other GPUs of the last node have MIG disabled.

    Examples
    --------
    >>> today = [("gpu", "gpu"), ("3g.20gb:2",) * 2, ("3g.20gb:2",) * 2, ("1g.5gb:7",) * 2]
    >>> assign_layouts(today, range(4), ["gpu"] * 2 + ["1g.5gb:7"] * 4 + ["3g.20gb:2"] * 2)[2]
    ('1g.5gb:7', '1g.5gb:7')
    """
    unassigned = Counter(needed_layouts)
    layouts: dict[int, tuple[str, ...]] = {}
    names = {number: [_find_needed_layout(name, needed_layouts) for name in today[number]] for number in order}
    for number in order:
        if Counter(names[number]) <= unassigned:
            layouts[number] = today[number]
            unassigned -= Counter(names[number])

    for number in order:
        size = len(today[number])
        filling_layout = next((layout for layout, count in unassigned.most_common() if count >= size), None)
        if number not in layouts and filling_layout is not None:
            layouts[number] = (filling_layout,) * size
            unassigned[filling_layout] -= size

    remaining_layouts = list(unassigned.elements())
    for number in order:
        if remaining_layouts and number not in layouts:
            size = len(today[number])
            layouts[number] = tuple([FULL_GPU] * (size - len(remaining_layouts)) + remaining_layouts[:size])
            remaining_layouts = remaining_layouts[size:]
    for number, planned in layouts.items():
        layouts[number] = _keep_larger_layouts(planned, today[number], names[number])
    return {number: layouts[number] for number in order if number in layouts}


def _find_needed_layout(layout: str, needed_layouts: Sequence[str]) -> str:
    """Find the needed layout that a layout of today is or contains; itself if there is none."""
    if layout in needed_layouts or layout == LAYOUT_PER_JOB:
        return layout
    offered = Counter(parse_layout(layout))
    return next((name for name in needed_layouts if Counter(parse_layout(name)) <= offered), layout)


def _keep_larger_layouts(planned: Sequence[str], today: Sequence[str], todays_names: Sequence[str]) -> tuple[str, ...]:
    """Replace planned layouts of a node by those of today that contain them with more instances."""
    kept = list(planned)
    for layout, name in zip(today, todays_names, strict=True):
        if layout not in planned and name in kept:
            kept[kept.index(name)] = layout
    return tuple(kept)


def keep_layouts(inputs: JobReplayInputs, policy: str, numbers: Sequence[int]) -> PolicySetting:
    """Make the setting of a policy that keeps some of today's nodes with their layouts."""
    fleet, layouts = partition_nodes(inputs, numbers, [[inputs.nodes.layouts[number]] for number in numbers])
    values: SettingValues = {"gpus": int(fleet.gpus.sum()), "nodes": len(numbers)}
    return PolicySetting(policy, AS_TODAY, fleet, layouts, tuple(numbers), values=values)


def choose_layouts_for_demand(gpu_model: GpuModel, wanted_instances: Mapping[str, float], gpus: int) -> list[str]:
    """Choose layouts of GPUs, or nodes, that offer profiles in proportion to the wanted instances as far as possible.

    GPU by GPU, of all layouts with the scarcest profile, the one is chosen that covers most of the missing instances.

    Parameters
    ----------
    gpu_model : GpuModel
        GPU model with MIG profiles.
    wanted_instances : mapping of str to float
        Wanted instances of each profile.
    gpus : int
        GPUs, or nodes.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> choose_layouts_for_demand(load_gpu_model("H100-80GB-SXM5"), {"1g.10gb": 7, "3g.40gb": 2}, 2)
    ['3g.40gb:1,1g.10gb:4', '3g.40gb:1,1g.10gb:4']
    """
    names = [name for name, count in wanted_instances.items() if count > 0]
    options = ({name: count for name, count in item.items() if count} for item in list_pareto_counts(gpu_model, names))
    choices = [(item, format_layout(item)) for item in options if item]
    fraction = {name: gpu_model.gpu_fraction(name) for name in names}
    total = sum(fraction[name] * wanted_instances[name] for name in names)
    target_counts = {name: wanted_instances[name] * gpus / total for name in names}
    missing = dict(target_counts)
    dealt_counts: Counter[str] = Counter()

    def filled_gpus(choice: tuple[Mapping[str, int], str]) -> tuple[float, str]:
        """Return the missing instances that a layout covers, as GPUs."""
        item, text = choice
        return round(sum(fraction[name] * min(count, missing[name]) for name, count in item.items()), 9), text

    dealt_layouts = []
    for _ in range(gpus):
        scarcest_profile = min(names, key=lambda name: (dealt_counts[name] / target_counts[name], name))
        best, text = max((choice for choice in choices if scarcest_profile in choice[0]), key=filled_gpus)
        dealt_counts.update(best)
        missing |= {name: max(target_counts[name] - dealt_counts[name], 0.0) for name in best}
        dealt_layouts.append(text)
    return dealt_layouts


def count_instances(
    requests: NodeRequests, profiles: Sequence[str], job_mask: NDArray[np.bool_], span_s: float, *, peak: bool
) -> dict[str, float]:
    """Count the instances of each MIG profile in use if no job waits: mean, or peak.

    Parameters
    ----------
    requests : NodeRequests
        Requests of the jobs.
    profiles : sequence of str
        Names of the profiles by number.
    job_mask : array of bool, shape (n_jobs,)
        Jobs that count.
    span_s : float
        Length of the period. [s]
    peak : bool
        Count the most instances in use at once.
    """
    instances_in_use = {}
    for profile_number, name in enumerate(profiles):
        of_profile = job_mask & (requests.profile == profile_number)
        if name == FULL_GPU or not of_profile.any():
            continue
        start_s, run_s, count = requests.ready_s[of_profile], requests.run_s[of_profile], requests.total[of_profile]
        if peak:
            change_s = np.concatenate([start_s, start_s + run_s])
            change = np.concatenate([count, -count])
            instances_in_use[name] = float(np.cumsum(change[np.lexsort((change, change_s))]).max(initial=0))
        else:
            instances_in_use[name] = float((run_s * count).sum()) / max(span_s, SECONDS_PER_HOUR)
    return instances_in_use


def make_mig_fleet(
    inputs: JobReplayInputs, numbers: Sequence[int], abilities: ActuatorAbilities
) -> tuple[NodeFleet, tuple[tuple[tuple[str, ...], ...], ...], NodeAutoscaling | None]:
    """Make the fleet of some of today's nodes with an instance created for each job: nodes, layouts and switching.

    If MIG mode needs a reboot, a node is full or partitioned, and changes while it is empty; else each GPU can do both.
    """
    change_cost = ChangeCost.from_catalogue(inputs.gpu_model, PARTITIONER_BY_ACTUATOR[abilities.actuator])
    profiles = inputs.fleet.profiles
    gpus = inputs.fleet.gpus[list(numbers)]
    dynamic_mig = DynamicMig.from_change_cost(inputs.gpu_model, profiles, change_cost)
    if change_cost.reboot_s is None:
        capacity = [[dynamic_mig.capacity(count, whole=True)] for count in gpus.tolist()]
        fleet = NodeFleet(profiles, gpus, np.array(capacity), np.zeros_like(gpus), inputs.fleet.weights, dynamic_mig)
        return fleet, tuple(((LAYOUT_PER_JOB,) * count,) for count in gpus.tolist()), None
    no_instances = [0] * (len(profiles) - 1)
    capacity = [[[count, *no_instances], dynamic_mig.capacity(count, whole=False)] for count in gpus.tolist()]
    cut = [set(inputs.nodes.layouts[number]) != {FULL_GPU} for number in numbers]
    fleet = NodeFleet(profiles, gpus, np.array(capacity), np.array(cut), inputs.fleet.weights, dynamic_mig)
    names = tuple(((FULL_GPU,) * count, (LAYOUT_PER_JOB,) * count) for count in gpus.tolist())
    # Each pool keeps all idle nodes: they change, and never go.
    return fleet, names, NodeAutoscaling(0.0, change_cost.reboot_s.value, (len(gpus), len(gpus)))


def make_fleet_rules(inputs: JobReplayInputs, run: PolicyRun, abilities: ActuatorAbilities, policy: str) -> FleetRules:
    """Make the rules of a fleet from a policy setting and its simulation run, for exports.

    Parameters
    ----------
    inputs : JobReplayInputs
        Observed jobs as requests on today's nodes.
    run : PolicyRun
        Simulation run of the setting.
    abilities : ActuatorAbilities
        Abilities of the actuator.
    policy : str
        Name of the policy.
    """
    setting, nodes = run.setting, inputs.nodes
    switching = setting.switching if abilities.switches_nodes else None
    released_nodes = [number for number in range(len(nodes.gpus)) if number not in set(setting.node_numbers)]
    groups = _group_by_layouts(range(len(nodes.gpus)), nodes.layouts)
    today = tuple(
        PoolRule(f"today-{number}", layouts, len(numbers), _node_names(inputs, numbers))
        for number, (layouts, numbers) in enumerate(groups.items(), 1)
    )
    return FleetRules(
        policy=policy, actuator=abilities.actuator, gpu_model=inputs.gpu_model.name,
        pools=tuple(_list_pool_rules(inputs, run)), nodes=len(setting.node_numbers),
        today=today, released=_node_names(inputs, released_nodes),
        returned=abilities.returns == UNNEEDED_NODES_RETURNED,
        idle_s=None if switching is None else switching.idle_s, lead_s=abilities.lead.value,
        lead_slow_s=abilities.lead.high, cool_s=0.0 if switching is None else switching.cool_s,
        placement=setting.placement, requests=setting.view, begins=inputs.end.isoformat(),
    )  # fmt: skip


def _list_pool_rules(inputs: JobReplayInputs, run: PolicyRun) -> Iterator[PoolRule]:
    """Yield the :class:`PoolRule` of each node pool (nodes with the same layouts) under a policy setting."""
    setting, counts = run.setting, Counter[str]()
    kept_by_pool = () if setting.switching is None else setting.switching.kept
    for pool in range(setting.fleet.capacity.shape[1]):
        unassigned_kept = kept_by_pool[pool] if pool < len(kept_by_pool) else 0
        indices = [index for index, layouts in enumerate(setting.layouts) if layouts[pool]]
        nodes_by_layouts = _group_by_layouts(indices, [layouts[pool] for layouts in setting.layouts])
        for layouts, pool_nodes in sorted(nodes_by_layouts.items(), key=lambda item: -len(item[1])):
            kind = "full" if set(layouts) == {FULL_GPU} else "jobs" if LAYOUT_PER_JOB in layouts else "mig"
            counts[kind] += 1
            name = kind if counts[kind] == 1 else f"{kind}-{counts[kind]}"
            intervals = run.outcome.power_intervals.filter(pl.col("pool") == pool, pl.col("node").is_in(pool_nodes))
            ones = np.ones(len(setting.node_numbers), np.int64)
            peak = replace(run.outcome, power_intervals=intervals).peak_gpus(ones, 0.0, inputs.observed_s)
            nodes_kept = min(unassigned_kept, len(pool_nodes))
            unassigned_kept -= nodes_kept
            numbers = [setting.node_numbers[index] for index in pool_nodes]
            yield PoolRule(name, layouts, len(pool_nodes), _node_names(inputs, numbers), peak, nodes_kept)


def list_changed_layouts(inputs: JobReplayInputs, setting: PolicySetting) -> dict[tuple[str, str], list[str]]:
    """List the nodes of repartitioned GPUs, one name for each GPU, by layout before and after."""
    nodes_by_change: dict[tuple[str, str], list[str]] = {}
    for number, layouts in zip(setting.node_numbers, setting.layouts, strict=True):
        for before, after in line_up_layouts(inputs.nodes.layouts[number], layouts[0]):
            if before != after:
                nodes_by_change.setdefault((before, after), []).append(inputs.nodes.names[number])
    return nodes_by_change


def _group_by_layouts(numbers: Iterable[int], layouts: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], list[int]]:
    """Group node numbers by the layouts of their GPUs."""
    numbers_by_layouts: dict[tuple[str, ...], list[int]] = {}
    for number in numbers:
        numbers_by_layouts.setdefault(layouts[number], []).append(number)
    return numbers_by_layouts


def _node_names(inputs: JobReplayInputs, numbers: Iterable[int]) -> tuple[str, ...]:
    """Return the names of nodes by number; empty if nodes have no names."""
    return tuple(inputs.nodes.names[number] for number in numbers) if inputs.nodes.named else ()
