"""What became of every arrival, and the tables that show it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.lab.placement.arrivals import Arrivals
from gpuplanner.lab.placement.pods import MILLI, Integers, Nodes, Pods
from gpuplanner.lab.placement.policies import PlacementPolicy

REASONS: Final = (
    "placed",
    "no node has the model",
    "larger than any node",
    "too little GPU left in all",
    "GPU left, but fragmented",
    "no CPU beside the GPU",
    "no memory beside GPU and CPU",
)
"""Why a pod was left out: the first of these, in this order, that rules out every node."""

STEPS: Final = (0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3)
"""Arrived demand, over the GPUs that there are, at which curves are read."""

_NEAR = 0.005  # a curve is read at whole percents, so half of one may be missing


@dataclass(frozen=True, eq=False, repr=False)
class Allocation:
    """Pods on nodes, arrival by arrival.

    Parameters
    ----------
    policy : PlacementPolicy
        The policy.
    pods, nodes, arrivals : Pods, Nodes, Arrivals
        What was asked.
    node : ndarray of int, shape (n_arrivals,)
        Node of the pod, as a position in `nodes`; -1 if it was left out.
    devices : ndarray of int, shape (n_arrivals,)
        Its GPUs on that node, as bits.
    reason : ndarray of int, shape (n_arrivals,)
        Position in :data:`REASONS`.
    fragmented_gpus : ndarray of float, shape (n_arrivals,)
        Fragmentation of the cluster after the arrival [GPUs].
    """

    policy: PlacementPolicy
    pods: Pods
    nodes: Nodes
    arrivals: Arrivals
    node: Integers
    devices: Integers
    reason: Integers
    fragmented_gpus: NDArray[np.float64]

    def __repr__(self) -> str:
        placed = int((self.node >= 0).sum())
        return f"<Allocation: {self.policy.node}, {placed} of {len(self.node)} pods, {self.allocated_share():.2%}>"

    @property
    def arrived_gpus(self) -> NDArray[np.float64]:
        """GPU demand that has arrived, after each arrival [GPUs], shape (n_arrivals,)."""
        return self.pods.demand[self.arrivals.pods].cumsum() / MILLI

    @property
    def allocated_gpus(self) -> NDArray[np.float64]:
        """GPU demand that was placed, after each arrival [GPUs], shape (n_arrivals,)."""
        return np.where(self.node >= 0, self.pods.demand[self.arrivals.pods], 0).cumsum() / MILLI

    def allocated_share(self, arrived: float | None = None) -> float | None:
        """Allocated GPUs over all GPUs, when demand for so many of them has arrived.

        Parameters
        ----------
        arrived : float, optional
            Arrived demand over all GPUs: 1.0 is as much as there is. At the end if None.

        Returns
        -------
        float or None
            Read after the last arrival that does not exceed it; None if less than that ever arrives.
        """
        at = self._position(arrived)
        return None if at is None else float(self.allocated_gpus[at] * MILLI / self.nodes.capacity)

    def _position(self, arrived: float | None) -> int | None:
        if arrived is None:
            return len(self.node) - 1
        share = self.arrived_gpus * MILLI / self.nodes.capacity
        at = int(np.searchsorted(share, arrived + 1e-12, side="right")) - 1
        return at if at >= 0 and share[-1] >= arrived - _NEAR else None

    def curve(self, at: Iterable[float] = STEPS) -> pl.DataFrame:
        """Allocated and fragmented share of all GPUs by arrived demand.

        Returns
        -------
        polars.DataFrame
            ``arrived_share, allocated_share, fragmented_share``; rows that were not reached are left out.
        """
        reached = [(share, position) for share in at if (position := self._position(share)) is not None]
        rows = [position for _, position in reached]
        gpus = self.nodes.capacity / MILLI
        return pl.DataFrame(
            {
                "arrived_share": [share for share, _ in reached],
                "allocated_share": self.allocated_gpus[rows] / gpus,
                "fragmented_share": self.fragmented_gpus[rows] / gpus,
            },
            schema=dict.fromkeys(("arrived_share", "allocated_share", "fragmented_share"), pl.Float64),
        )

    def unplaced(self) -> pl.DataFrame:
        """Pods left out, by reason.

        Returns
        -------
        polars.DataFrame
            ``reason, pods, gpus, arrived_share`` (of the GPU demand that arrived), in the order of
            :data:`REASONS`; only reasons that occur.
        """
        wanted = self.pods.demand[self.arrivals.pods] / MILLI
        counts = np.bincount(self.reason, minlength=len(REASONS))
        gpus = np.bincount(self.reason, weights=wanted, minlength=len(REASONS))
        table = pl.DataFrame(
            {
                "reason": REASONS,
                "pods": counts,
                "gpus": gpus,
                "arrived_share": gpus / max(wanted.sum(), 1e-300),
            }
        )
        return table.slice(1).filter(pl.col("pods") > 0)

    def to_frame(self) -> pl.DataFrame:
        """One row an arrival: pod, node, GPUs joined by ``-``, reason, and the three running totals [GPUs]."""
        names = [self.pods.names[pod] for pod in self.arrivals.pods]
        return pl.DataFrame(
            {
                "pod": names,
                "node": [self.nodes.names[node] if node >= 0 else None for node in self.node],
                "gpus": ["-".join(map(str, device_list(mask))) for mask in self.devices.tolist()],
                "reason": [REASONS[reason] for reason in self.reason],
                "arrived_gpus": self.arrived_gpus,
                "allocated_gpus": self.allocated_gpus,
                "fragmented_gpus": self.fragmented_gpus,
            },
            schema_overrides={"node": pl.String},
        )

    def to_dict(self) -> dict[str, Any]:
        """What there is to say about it in short."""
        return {
            "policy": self.policy.node,
            "arrivals": len(self.node),
            "placed": int((self.node >= 0).sum()),
            "arrived_share": float(self.arrived_gpus[-1] * MILLI / self.nodes.capacity),
            "allocated_share": self.allocated_share(),
            "fragmented_gpus": float(self.fragmented_gpus[-1]),
        }


def device_list(devices: int) -> list[int]:
    """The GPUs that stand in a number as bits.

    Examples
    --------
    >>> device_list(0b1010)
    [1, 3]
    """
    return [gpu for gpu in range(devices.bit_length()) if devices >> gpu & 1]


def mean_curve(found: Sequence[Allocation], at: Iterable[float] = STEPS) -> pl.DataFrame:
    """Curve over several orders of arrival.

    Parameters
    ----------
    found : sequence of Allocation
        One per order.
    at : iterable of float
        Arrived demand over all GPUs.

    Returns
    -------
    polars.DataFrame
        ``arrived_share, orders, allocated_share, lowest, highest, fragmented_share``: means over the orders
        that reached it, and the range of the allocated share.
    """
    allocated = pl.col("allocated_share")
    return (
        pl.concat([one.curve(at) for one in found])
        .group_by("arrived_share", maintain_order=True)
        .agg(
            orders=pl.len(),
            allocated_share=allocated.mean(),
            lowest=allocated.min(),
            highest=allocated.max(),
            fragmented_share=pl.col("fragmented_share").mean(),
        )
        .sort("arrived_share")
    )
