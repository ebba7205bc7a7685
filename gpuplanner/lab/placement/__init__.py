"""Pods on nodes as they arrive: CPU, memory, GPU shares, and how much of the GPUs is lost in fragments.

``allocate`` places pods by a policy; ``fragmentation`` says how many idle GPUs are of no use where they are;
``place_instances`` does the same for MIG instances on boards. ``verify_allocation`` replays any allocation.

Examples
--------
Best fit and fragmentation gradient descent on the same arrivals. A pod of 0.6 GPU and few cores finds two nodes
with 0.6 and 1 GPU free; when half of the pods want a whole GPU, the first node is the better place:

>>> from gpuplanner.lab.placement import Nodes, Pods, allocate, verify_allocation
>>> pods = Pods(["a", "b", "c"], [4000] * 3, [4096] * 3, [1, 1, 1], [400, 600, 1000])
>>> nodes = Nodes(["n1", "n2"], [32000] * 2, [65536] * 2, [1, 1], ["T4", "T4"])
>>> found = allocate(pods, nodes, "fgd")
>>> found, verify_allocation(found)
(<Allocation: fgd, 3 of 3 pods, 100.00%>, [])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuplanner._optional import late_name
from gpuplanner.lab.placement.arrivals import Arrivals, as_listed, draw_arrivals
from gpuplanner.lab.placement.mig import InstanceAllocation, mig_fragmentation, place_instances
from gpuplanner.lab.placement.pods import Nodes, Pods
from gpuplanner.lab.placement.policies import POLICIES, PlacementPolicy
from gpuplanner.lab.placement.read import read_nodes, read_pods, read_requests
from gpuplanner.lab.placement.result import REASONS, Allocation, mean_curve
from gpuplanner.lab.placement.verify import verify_allocation, verify_instances
from gpuplanner.lab.placement.workload import TargetWorkload, target_workload

if TYPE_CHECKING:
    from gpuplanner.lab.placement.fragments import fragmentation
    from gpuplanner.lab.placement.leftover import left_by_layout, left_by_model
    from gpuplanner.lab.placement.online import allocate

# These modules are compiled when they are imported, which only a call shall wait for.
_COMPILED = {
    "allocate": "online",
    "fragmentation": "fragments",
    "left_by_layout": "leftover",
    "left_by_model": "leftover",
}

__all__ = [
    "POLICIES",
    "REASONS",
    "Allocation",
    "Arrivals",
    "InstanceAllocation",
    "Nodes",
    "PlacementPolicy",
    "Pods",
    "TargetWorkload",
    "allocate",
    "as_listed",
    "draw_arrivals",
    "fragmentation",
    "left_by_layout",
    "left_by_model",
    "mean_curve",
    "mig_fragmentation",
    "place_instances",
    "read_nodes",
    "read_pods",
    "read_requests",
    "target_workload",
    "verify_allocation",
    "verify_instances",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a function of a module that is loaded late
    return late_name(__name__, _COMPILED, name)
