"""Abilities and delays of each actuator, the tool that changes a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gpuplanner.core.errors import ScenarioError, resolve_name
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.setting_rules_and_controls import OWNERSHIP_RENTED, OWNERSHIPS, PARTITIONER_BY_ACTUATOR
from gpuplanner.hardware.catalog import ActuatorFact, actuators_by_source, list_actuator_facts
from gpuplanner.hardware.gpu_models import GpuModel, load_any_gpu_model
from gpuplanner.hardware.repartitioning_cost import (
    ChangeCost,
    TimeRange,
    find_time_parameter,
    model_names_in_actuator_facts,
)

PARTITIONS_NEVER, PARTITIONS_EMPTY_NODES, PARTITIONS_ANY_GPUS = "never", "empty nodes", "gpus"
"""Values of ``ActuatorAbilities.cuts_on_demand``: which GPUs an actuator MIG-partitions when a job requests it: none,
those of empty nodes, or any."""
UNNEEDED_NODES_RETURNED, UNNEEDED_NODES_IDLED = "returned", "idled"
"""Values of ``ActuatorAbilities.returns``: nodes that no job needs are returned to their owner, or stay idle and
powered on."""
OWNERSHIP_BY_WORD: Mapping[str, str] = MappingProxyType(
    {**dict(zip(OWNERSHIPS, OWNERSHIPS, strict=True)), "on_demand": OWNERSHIP_RENTED, "spot": OWNERSHIP_RENTED}
)
"""Word for the ownership of nodes in an inventory, such as ``spot`` → its value in
:data:`~gpuplanner.core.setting_rules_and_controls.OWNERSHIPS`, ``rented``."""
DEFAULT_ACTUATOR = "mig-manager"
"""Actuator assumed for a cluster whose data source (Slurm, Kubernetes) has no default actuator in the catalogue."""


@dataclass(frozen=True)
class ActuatorAbilities:
    """Abilities and delays of one actuator, which partitions GPUs and adds or removes nodes, for one GPU model.

    - ``actuator``: One of the actuators of a scenario.
    - ``unit`` {"gpu", "node"}: Smallest unit that can be drained and repartitioned alone.
    - ``cuts_on_demand`` {"never", "empty nodes", "gpus"}: Units that are partitioned when a job requests them; "never"
      for models without MIG.
    - ``partitioner``: Name of the component that partitions, as texts show it.
    - ``substitutes``: Whether a larger free instance may serve a smaller request; not where names are matched exactly.
    - ``switches_nodes``: Whether a component removes idle nodes and adds them when jobs wait. Otherwise idle nodes stay
      powered on.
    - ``returns`` {"returned", "idled"}: State of nodes that are not needed.
    - ``boot``: Time from adding a node until it is available.
    - ``cut``: Time to MIG-partition an added node before it accepts jobs; 0 if it is partitioned later.
    - ``lead``: Sum of ``boot`` and ``cut``: the wait of a job for an added node. Code that counts layout changes
      separately uses ``boot``.
    - ``scan_s``: Interval at which demand for nodes is checked: the longest delay before ``lead`` [s].
    - ``cool_s``: Time after adding a node during which none is removed [s].
    - ``shortest_idle_s``: Shortest idle time after which a node can be removed [s].
    - ``queue`` {"easy", "slurm"}, ``placements``: Backfill rule and orders of node placement of a simulation.
    - ``look_s``: Interval at which the arrival of requested nodes is checked [s].
    - ``facts``: Row of the catalogue, with its source, from which each of these values comes, by ability.

    Examples
    --------
    >>> on_slurm = find_abilities("slurm")
    >>> on_slurm.cuts_on_demand, on_slurm.substitutes, on_slurm.returns, on_slurm.lead.describe_time()
    ('empty nodes', False, 'idled', 'about 5 min (1 to 15)')
    """

    actuator: str
    unit: str
    cuts_on_demand: str
    partitioner: str
    substitutes: bool
    switches_nodes: bool
    returns: str
    boot: TimeRange
    cut: TimeRange
    lead: TimeRange
    scan_s: float
    cool_s: float
    shortest_idle_s: float
    queue: str
    placements: tuple[str, ...]
    look_s: float
    facts: Mapping[str, ActuatorFact]


def find_abilities(
    actuator: str, gpu_model: GpuModel | None = None, *, lead_s: float | None = None, ownership: str | None = None
) -> ActuatorAbilities:
    """Find the abilities and delays of an actuator in the catalogue.

    Parameters
    ----------
    actuator : str
        One of the actuators of a scenario.
    gpu_model : GpuModel, optional
        GPU model; None: any model that allows the ability.
    lead_s : float, optional
        Stated time until an added node accepts jobs. [s]
    ownership : str, optional
        Ownership of the GPUs, which decides whether nodes are returned.

    Notes
    -----
    The GPU Operator adds and removes no nodes. Where nodes are returned, a node autoscaler does so, with its delays.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> for gpu_model in ("A100-80GB", "H100-80GB-SXM5"):
    ...     on = find_abilities("dra", load_gpu_model(gpu_model))
    ...     print(on.unit, on.cuts_on_demand, on.substitutes)
    gpu never True
    gpu gpus True
    >>> rented = find_abilities("mig-manager", ownership="rented")
    >>> rented.returns, rented.switches_nodes, rented.cool_s
    ('returned', True, 600.0)
    >>> rented.facts["mig_allocation"].value, rented.facts["mig_allocation"].date
    ('distributed;packed', '2026-08-19')
    >>> find_abilities("autoscaler", lead_s=120).lead.describe_time()
    'about 2 min (0.4 to 6)'
    """
    actuator = resolve_name(actuator, PARTITIONER_BY_ACTUATOR, subject="actuator", error=ScenarioError)
    model_names = model_names_in_actuator_facts(gpu_model)
    own_facts = list_actuator_facts(actuator, *model_names, any_gpu_model=gpu_model is None)
    node_release = _decide_node_return(own_facts["returns"], ownership)
    node_switching = own_facts["switches_nodes"].value or "no"
    switches_nodes = node_switching == "yes" or (node_switching != "no" and node_release == UNNEEDED_NODES_RETURNED)
    # Nodes that the actuator cannot add or remove itself have the delays of the component that does.
    timing_facts = list_actuator_facts(node_switching) if switches_nodes and node_switching != "yes" else own_facts
    timing_names = ("scan_s", "cool_s", "shortest_idle_s", "look_s")
    all_facts = {**own_facts, **{name: timing_facts[name] for name in timing_names}}

    has_mig = gpu_model is None or bool(gpu_model.profiles)
    boot = find_time_parameter("node_lead_s").scaled_to(lead_s)
    partition_time = _added_node_partitioning_time(actuator, gpu_model, all_facts["cut_on_arrival"], node_release)
    return ActuatorAbilities(
        actuator=actuator,
        unit=_require_value(all_facts["unit"]),
        cuts_on_demand=_require_value(all_facts["cuts_on_demand"]) if has_mig else PARTITIONS_NEVER,
        partitioner=_require_value(all_facts["who"]),
        substitutes=_is_yes(all_facts["substitutes"]),
        switches_nodes=switches_nodes,
        returns=node_release,
        boot=boot,
        cut=partition_time,
        lead=boot.followed_by(partition_time),
        scan_s=float(_require_value(all_facts["scan_s"])),
        cool_s=float(_require_value(all_facts["cool_s"])),
        shortest_idle_s=all_facts["shortest_idle_s"].low or 0.0,
        queue=_require_value(all_facts["queue"]),
        placements=tuple(_require_value(all_facts["placements"]).split(";")),
        look_s=float(_require_value(all_facts["look_s"])),
        facts=MappingProxyType(all_facts),
    )


def find_scenario_abilities(
    scenario: Scenario, gpu_model: GpuModel | str | None = None, *, ownership: str | None = None
) -> ActuatorAbilities:
    """Find the abilities of a scenario's actuator, with the values that the scenario states.

    Parameters
    ----------
    scenario : Scenario
        Has the actuator, and optionally the time until a node accepts jobs and the ownership.
    gpu_model : GpuModel or str, optional
        GPU model; None: any model that allows the ability.
    ownership : str, optional
        Ownership in the inventory, used if the scenario states none.

    Examples
    --------
    >>> find_scenario_abilities(Scenario(actuator="slurm"), "A100-80GB").cuts_on_demand
    'empty nodes'
    >>> find_scenario_abilities(Scenario(node_lead_s=120)).lead.describe_time()
    'about 2 min (0.4 to 6)'
    """
    return find_abilities(
        scenario.actuator,
        load_any_gpu_model(gpu_model) if isinstance(gpu_model, str) else gpu_model,
        lead_s=scenario.node_lead_s,
        ownership=scenario.ownership or ownership,
    )


def find_default_actuator(source: str) -> str:
    """Find the actuator assumed for clusters whose data come from a source, such as ``slurm`` for Slurm accounting.

    Examples
    --------
    >>> find_default_actuator("slurm"), find_default_actuator("kubernetes"), find_default_actuator("philly")
    ('slurm', 'mig-manager', 'mig-manager')
    """
    return actuators_by_source().get(source.strip().casefold(), DEFAULT_ACTUATOR)


def parse_ownership(word: str | None) -> str | None:
    """Parse an inventory's word for the ownership of nodes to owned, reserved or rented; None stays unknown.

    Examples
    --------
    >>> parse_ownership("spot"), parse_ownership("owned"), parse_ownership(None)
    ('rented', 'owned', None)
    """
    if word is None:
        return None
    return OWNERSHIP_BY_WORD[resolve_name(word, OWNERSHIP_BY_WORD, subject="ownership", error=ScenarioError)]


def _decide_node_return(fact: ActuatorFact, ownership: str | None) -> str:
    """Decide whether unneeded nodes are returned: rented nodes are, owned and reserved nodes stay idle.

    Without a known ownership, the catalogue's `fact` about the actuator decides.
    """
    owned_as = parse_ownership(ownership)
    if owned_as is None:
        return _require_value(fact)
    return UNNEEDED_NODES_RETURNED if owned_as == OWNERSHIP_RENTED else UNNEEDED_NODES_IDLED


def _added_node_partitioning_time(
    actuator: str, gpu_model: GpuModel | None, fact: ActuatorFact, returns: str
) -> TimeRange:
    """Return the time [s] to MIG-partition an added node, all its GPUs at once and into the smallest instances.

    An Ampere GPU keeps its MIG mode while the node is powered down, so that only a returned node has to switch it.

    Parameters
    ----------
    actuator : str
        Actuator of the cluster.
    gpu_model : GpuModel or None
        GPU model of the node.
    fact : ActuatorFact
        Catalogue entry on whether added nodes are partitioned before they accept jobs.
    returns : {"returned", "idled"}
        State of nodes that are not needed.
    """
    if gpu_model is None or not gpu_model.profiles or not _is_yes(fact):
        return TimeRange(0.0, 0.0, 0.0, fact.meaning)

    cost = ChangeCost.from_catalogue(gpu_model, PARTITIONER_BY_ACTUATOR[actuator])
    # The reboot of a returned node enables MIG and includes the time for its instances.
    if cost.reboot_s is not None and returns == UNNEEDED_NODES_RETURNED:
        return cost.reboot_s
    if not cost.one_by_one:
        return cost.change_s
    count = max(profile.max_instances for profile in gpu_model.profiles)
    instance_time = cost.instance_s
    return TimeRange(
        count * instance_time.value, count * instance_time.low, count * instance_time.high, instance_time.basis
    )


def _require_value(fact: ActuatorFact) -> str:
    """Return the value of a catalogue fact, or raise :class:`ScenarioError` if the table has none."""
    if fact.value is None:
        todo = "Add it to actuator_abilities.csv."
        raise ScenarioError("actuator_abilities", f"a value of {fact.ability}", "none", todo)
    return fact.value


def _is_yes(fact: ActuatorFact) -> bool:
    """Whether the value of a catalogue fact is "yes"."""
    return _require_value(fact) == "yes"
