"""Requests on named nodes of unequal size, which may come, go and be cut otherwise while they are empty."""

from gpuplanner.simulate.nodes.instance_sets import Flexible, instance_sets
from gpuplanner.simulate.nodes.layout_changes import LayoutChanges
from gpuplanner.simulate.nodes.machine import NodeFleet, NodeRequests, Outcome, Switching
from gpuplanner.simulate.nodes.network import NodeNetwork
from gpuplanner.simulate.nodes.play import play
from gpuplanner.simulate.nodes.shared_play import play_shared
from gpuplanner.simulate.nodes.sharing import QuotaGroup, SharedOutcome, Sharing

__all__ = [
    "Flexible",
    "LayoutChanges",
    "NodeFleet",
    "NodeNetwork",
    "NodeRequests",
    "Outcome",
    "QuotaGroup",
    "SharedOutcome",
    "Sharing",
    "Switching",
    "instance_sets",
    "play",
    "play_shared",
]
