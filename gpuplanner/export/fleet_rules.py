"""What was decided, as those who write files for operators need it: which nodes, cut how, and when they come and go."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import polars as pl

from gpuplanner.export.states import NodeState
from gpuplanner.hardware.layout import OFF, parse_layout
from gpuplanner.schemas.vocabulary import WHOLE_GPU

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
    >>> cut = PoolRule("cut", ("gpu", "1g.10gb:7"), 2, ("n1", "n2"))
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
    policy, path, board : str
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
    >>> cut = PoolRule("cut", ("1g.10gb:7",), 1, ("n1",))
    >>> rules = FleetRules("static_mig", "slurm", "H100-80GB-SXM5", (cut,), 1, today, released=("n2",))
    >>> rules.layout_plan().select("node", "layout", "changed").rows()[1::2]
    [('n1', '1g.10gb:7', True), ('n2', 'off', False)]
    """

    policy: str
    path: str
    board: str
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
    requests: str = "as today"
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
        rows = [
            row
            for node, was in sorted(self.before.items())
            for gpu, (old, new) in enumerate(line_up_layouts(was, pools.get(node)))
            for row in (
                (node, gpu, first, last, old, False, None),
                (node, gpu, last, end, new, old != new and new != OFF, None),
            )
        ]
        return pl.DataFrame(rows, schema=_PLAN, orient="row")


def line_up_layouts(was: tuple[str, ...], then: tuple[str, ...] | None) -> Iterator[tuple[str, str]]:
    """Layout of each GPU before and after, as many as can be unchanged.

    Examples
    --------
    >>> list(line_up_layouts(("gpu", "1g.10gb:7"), ("1g.10gb:7", "3g.40gb:2")))
    [('gpu', '3g.40gb:2'), ('1g.10gb:7', '1g.10gb:7')]
    """
    old = [_empty(WHOLE_GPU if layout == OFF else layout) for layout in was]
    if then is None:
        yield from ((layout, OFF) for layout in old)
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
