"""Requests on named nodes of unequal size, which may come, go and be cut otherwise while they are empty."""

from gpuplanner.simulate.nodes.instance_sets import Flexible, instance_sets
from gpuplanner.simulate.nodes.machine import NodeFleet, NodeRequests, Outcome, Switching
from gpuplanner.simulate.nodes.play import play
from gpuplanner.simulate.nodes.readiness import Readiness, readiness

__all__ = [
    "Flexible",
    "NodeFleet",
    "NodeRequests",
    "Outcome",
    "Readiness",
    "Switching",
    "instance_sets",
    "play",
    "readiness",
]
