"""What teams may hold: quotas of their own, and what cohorts lend them.

A team or cohort keeps of its quota what it does not lend, and the cohort above has the rest of it. What is used beyond
what is kept counts against the cohort above, and so on to the top. This is how Kueue counts.

References
----------
Kueue, ``pkg/cache/scheduler/resource_node.go`` (available, addUsage, removeUsage), v0.12.
"""

from __future__ import annotations

from gpuplanner.simulate.jit import called
from gpuplanner.simulate.nodes.node_world import NONE
from gpuplanner.simulate.nodes.tenancy import UNLIMITED
from gpuplanner.simulate.tables import Table


@called
def available(groups: Table, team: int) -> int:
    """Units that a team may take on top of what it holds."""
    if not groups[team].limited:
        return UNLIMITED
    # From the top down: what a group has is what it keeps and does not use, and what it may have of the one above.
    depth, group = 0, team
    while groups[group].parent != NONE:
        group, depth = groups[group].parent, depth + 1
    found = groups[group].subtree - groups[group].usage
    for steps in range(depth - 1, -1, -1):
        group = team
        for _ in range(steps):
            group = groups[group].parent
        mine = groups[group]
        if mine.borrow < UNLIMITED:
            lent, beyond = mine.subtree - mine.local, max(mine.usage - mine.local, 0)
            found = min(found, lent - beyond + mine.borrow)
        found += max(mine.local - mine.usage, 0)
    return int(found)


@called
def take(groups: Table, team: int, units: int) -> None:
    """Let a team hold so many units more."""
    group = team
    while group != NONE and units > 0:
        mine = groups[group]
        kept = max(mine.local - mine.usage, 0)
        mine.usage += units
        units -= kept
        group = mine.parent if mine.limited else NONE


@called
def give_back(groups: Table, team: int, units: int) -> None:
    """Let a team hold so many units less."""
    group = team
    while group != NONE and units > 0:
        mine = groups[group]
        beyond = max(mine.usage - mine.local, 0)
        mine.usage -= units
        units = min(units, beyond)
        group = mine.parent if mine.limited else NONE
