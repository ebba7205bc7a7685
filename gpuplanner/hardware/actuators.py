"""What each actuator can do and how fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gpuplanner.core.errors import ScenarioError, resolve
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.scenario_fields import MADE_BY, OWNERSHIPS, RENTED
from gpuplanner.hardware.catalog import ActuatorFact, actuator_facts, actuators_by_source
from gpuplanner.hardware.gpu_models import GpuModel, any_board
from gpuplanner.hardware.repartitioning_cost import ChangeCost, Seconds, known_by, known_seconds

NEVER, EMPTY_NODES, GPUS = "never", "empty nodes", "gpus"
"""What an actuator partitions when a job requests it."""
RETURNED, IDLED = "returned", "idled"
"""What becomes of nodes that are not needed: somebody else has them, or they stay and rest."""
OWNERSHIP_OF: Mapping[str, str] = MappingProxyType(
    {**dict(zip(OWNERSHIPS, OWNERSHIPS, strict=True)), "on_demand": RENTED, "spot": RENTED}
)
"""Kinds of ownership as inventories write them, and which of :data:`~gpuplanner.core.scenario_fields.OWNERSHIPS`
each is."""
DEFAULT_ACTUATOR = "mig-manager"


@dataclass(frozen=True)
class ActuatorAbilities:
    """What one actuator can do on one board.

    - ``actuator``: One of the actuators of a scenario.
    - ``unit`` {"gpu", "node"}: The smallest that can be emptied and cut by itself.
    - ``cuts_on_demand`` {"never", "empty nodes", "gpus"}: What is cut when a job asks for it; "never" for boards that
      cannot be cut.
    - ``who``: Who cuts, in words.
    - ``substitutes``: A larger free instance may serve a smaller request. Where names are matched exactly it may not.
    - ``switches_nodes``: Something takes nodes away when they are idle and brings them back when jobs wait. Else they
      only rest, with their power on.
    - ``returns`` {"returned", "idled"}: What becomes of nodes that are not needed.
    - ``boot``: A node that was away until it is there again.
    - ``cut``: What is cut on it before it takes jobs; nothing where it is cut later.
    - ``lead``: Both together: what a job waits for a node that was away. Who counts layout changes separately takes
      ``boot``.
    - ``scan_s``: How often something looks whether nodes are wanted [s]: the longest that is lost before ``lead``.
    - ``cool_s``: How long after any node was added none is taken away [s].
    - ``shortest_idle_s``: The shortest idle time after which a node can be taken away [s]: what may be set.
    - ``queue`` {"easy", "slurm"}, ``placements``: Who may pass whom, and which nodes may be taken first, in the words
      of :func:`~gpuplanner.simulator.simulation_run`.
    - ``look_s``: How often somebody looks whether nodes that were called are there [s].
    - ``facts``: Where each of these comes from, by its name here.

    Examples
    --------
    >>> on_slurm = abilities("slurm")
    >>> on_slurm.cuts_on_demand, on_slurm.substitutes, on_slurm.returns, on_slurm.lead.words()
    ('empty nodes', False, 'idled', 'about 5 min (1 to 15)')
    """

    actuator: str
    unit: str
    cuts_on_demand: str
    who: str
    substitutes: bool
    switches_nodes: bool
    returns: str
    boot: Seconds
    cut: Seconds
    lead: Seconds
    scan_s: float
    cool_s: float
    shortest_idle_s: float
    queue: str
    placements: tuple[str, ...]
    look_s: float
    facts: Mapping[str, ActuatorFact]


def abilities(
    actuator: str,
    gpu_model: GpuModel | None = None,
    *,
    lead_s: float | None = None,
    ownership: str | None = None,
) -> ActuatorAbilities:
    """Say what an actuator can do.

    Notes
    -----
    The operator switches no nodes. Where they are returned, a node autoscaler does it, with its delays.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> for gpu_model in ("A100-80GB", "H100-80GB-SXM5"):
    ...     on = abilities("dra", load_gpu_model(gpu_model))
    ...     print(on.unit, on.cuts_on_demand, on.substitutes)
    gpu never True
    gpu gpus True
    >>> rented = abilities("mig-manager", ownership="rented")
    >>> rented.returns, rented.switches_nodes, rented.cool_s
    ('returned', True, 600.0)
    >>> abilities("autoscaler", lead_s=120).lead.words()
    'about 2 min (0.4 to 6)'
    """
    actuator = resolve(actuator, MADE_BY, what="actuator", error=ScenarioError)
    own = actuator_facts(actuator, *known_by(gpu_model), any_board=gpu_model is None)
    returns = _returns(own["returns"], ownership)
    by = own["switches_nodes"].value or "no"
    switches = by == "yes" or (by != "no" and returns == RETURNED)
    # What switches the nodes of an actuator that cannot do so itself brings its own delays.
    timed = actuator_facts(by) if switches and by != "yes" else own
    found = {**own, **{name: timed[name] for name in ("scan_s", "cool_s", "shortest_idle_s", "look_s")}}
    boot = known_seconds("node_lead_s").stated(lead_s)
    cut = _cut_on_arrival(actuator, gpu_model, found["cut_on_arrival"], returns)
    return ActuatorAbilities(
        actuator=actuator,
        unit=_text(found["unit"]),
        cuts_on_demand=NEVER if gpu_model is not None and not gpu_model.profiles else _text(found["cuts_on_demand"]),
        who=_text(found["who"]),
        substitutes=_yes(found["substitutes"]),
        switches_nodes=switches,
        returns=returns,
        boot=boot,
        cut=cut,
        lead=boot.plus(cut),
        scan_s=float(_text(found["scan_s"])),
        cool_s=float(_text(found["cool_s"])),
        shortest_idle_s=found["shortest_idle_s"].low or 0.0,
        queue=_text(found["queue"]),
        placements=tuple(_text(found["placements"]).split(";")),
        look_s=float(_text(found["look_s"])),
        facts=MappingProxyType(found),
    )


def scenario_abilities(
    scenario: Scenario, gpu_model: GpuModel | str | None = None, *, ownership: str | None = None
) -> ActuatorAbilities:
    """What the scenario's actuator can do, with what the scenario states itself.

    Parameters
    ----------
    scenario : Scenario
        Names the actuator, and may state the time until a node takes jobs and who owns the GPUs.
    gpu_model : GpuModel or str, optional
        On what; None: on boards that allow it.
    ownership : str, optional
        What the inventory says, which counts where the scenario says nothing.

    Examples
    --------
    >>> scenario_abilities(Scenario(actuator="slurm"), "A100-80GB").cuts_on_demand
    'empty nodes'
    >>> scenario_abilities(Scenario(node_lead_s=120)).lead.words()
    'about 2 min (0.4 to 6)'
    """
    return abilities(
        scenario.actuator,
        any_board(gpu_model) if isinstance(gpu_model, str) else gpu_model,
        lead_s=scenario.node_lead_s,
        ownership=scenario.ownership or ownership,
    )


def default_actuator(source: str) -> str:
    """The actuator of a cluster that a source of data speaks of, unless somebody says otherwise.

    Examples
    --------
    >>> default_actuator("slurm"), default_actuator("kubernetes"), default_actuator("philly")
    ('slurm', 'mig-manager', 'mig-manager')
    """
    return actuators_by_source().get(source.strip().casefold(), DEFAULT_ACTUATOR)


def ownership_of(kind: str | None) -> str | None:
    """Kind of ownership that a word of an inventory means; None stays unknown.

    Examples
    --------
    >>> ownership_of("spot"), ownership_of("owned"), ownership_of(None)
    ('rented', 'owned', None)
    """
    if kind is None:
        return None
    return OWNERSHIP_OF[resolve(kind, OWNERSHIP_OF, what="ownership", error=ScenarioError)]


def _returns(fact: ActuatorFact, ownership: str | None) -> str:
    """What is paid for anyway stays; what is rented goes."""
    owned_as = ownership_of(ownership)
    if owned_as is None:
        return _text(fact)
    return RETURNED if owned_as == RENTED else IDLED


def _cut_on_arrival(actuator: str, gpu_model: GpuModel | None, fact: ActuatorFact, returns: str) -> Seconds:
    """Time to cut a node that comes back, all its GPUs together and as finely as they can be.

    A board of Ampere keeps its MIG mode while it rests, so that only one that was with somebody else has to switch it.
    """
    if gpu_model is None or not gpu_model.profiles or not _yes(fact):
        return Seconds(0.0, 0.0, 0.0, fact.meaning)
    cost = ChangeCost.of(gpu_model, MADE_BY[actuator])
    if cost.reboot_s is not None and returns == RETURNED:
        return cost.reboot_s
    if not cost.one_by_one:
        return cost.change_s
    most, each = max(profile.max_instances for profile in gpu_model.profiles), cost.instance_s
    return Seconds(most * each.value, most * each.low, most * each.high, each.basis)


def _text(fact: ActuatorFact) -> str:
    if fact.value is None:
        todo = "Add it to actuator_abilities.csv."
        raise ScenarioError("actuator_abilities", f"a value of {fact.ability}", "none", todo)
    return fact.value


def _yes(fact: ActuatorFact) -> bool:
    return _text(fact) == "yes"
