"""How fast an elastic training job gets on: throughput by GPUs and batch, times what a batch of that size is worth."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gpuplanner.errors import ScenarioError, message
from gpuplanner.simulate.slices.world import Floats, Ints

STEPS = 64
"""Batches per GPU that are tried, evenly spaced on a log scale."""


@dataclass(frozen=True)
class Goodput:
    """Goodput of a job, THROUGHPUT x EFFICIENCY, in examples of the initial batch size per second.

    With K GPUs, m examples on each and q steps of accumulation, a batch has ``M = K * m * (q + 1)`` examples.
    ``T_grad = grad_s[0] + grad_s[1] * m``. ``T_sync`` is 0 on one GPU, ``sync_node_s[0] + sync_node_s[1] *
    (K - 2)`` on one node, and the same with ``sync_nodes_s`` on several. ``T_iter = q * T_grad + (T_grad^gamma +
    T_sync^gamma)^(1/gamma)``, the throughput is ``M / T_iter``, and the efficiency of a batch is ``(phi + M0) /
    (phi + M)`` at gradient noise scale ``phi``.

    Parameters
    ----------
    grad_s : tuple of (float, float)
        Time of a gradient [s], and for each example [s].
    sync_node_s, sync_nodes_s : tuple of (float, float)
        Time to synchronise two GPUs [s], and for each further GPU [s].
    gamma : float
        Overlap of both, at least 1: none at 1, complete at infinity.
    batch0 : int
        M0, the batch that the user would take; no smaller one is tried.
    most_batch : int
        Largest batch that still converges.
    most_per_gpu : int
        Examples that fit into the memory of one GPU.
    most_accumulation : int
        Steps of accumulation that may be taken.

    Raises
    ------
    ScenarioError
        If a number is out of range.

    References
    ----------
    A. Qiao et al., Pollux: co-adaptive cluster scheduling for goodput-optimized deep learning, OSDI 2021.

    Examples
    --------
    >>> job = Goodput((0.05, 0.01), (0.02, 0.001), (0.1, 0.002), batch0=32, most_batch=1024, most_per_gpu=64)
    >>> [round(job.best(gpus, one_node=True, noise_scale=500.0)) for gpus in (1, 2, 4, 8)]
    [88, 156, 277, 468]
    """

    grad_s: tuple[float, float]
    sync_node_s: tuple[float, float] = (0.0, 0.0)
    sync_nodes_s: tuple[float, float] = (0.0, 0.0)
    gamma: float = 1.0
    batch0: int = 1
    most_batch: int = 1 << 30
    most_per_gpu: int = 1 << 30
    most_accumulation: int = 0

    def __post_init__(self) -> None:
        """Check the numbers."""
        times = (*self.grad_s, *self.sync_node_s, *self.sync_nodes_s)
        timed = all(0 <= time < math.inf for time in times) and sum(self.grad_s) > 0 and self.gamma >= 1
        counted = (
            1 <= self.batch0 <= self.most_batch and self.most_per_gpu >= 1 and self.most_accumulation >= 0
        )
        if not timed or not counted:
            expected = (
                "times not below 0, a gradient that takes time, gamma from 1 up, 1 <= batch0 <= most_batch"
            )
            raise ScenarioError(message("goodput", expected, str(self), "Change it."))

    def best(self, gpus: int, *, one_node: bool, noise_scale: float) -> float:
        """Goodput of the best batch [examples/s]; 0 if no batch is allowed.

        Parameters
        ----------
        gpus : int
            K.
        one_node : bool
            Whether they are all on one.
        noise_scale : float
            ``phi``, in examples; infinite: every example of a large batch counts as in a small one.
        """
        steps = np.arange(1, self.most_accumulation + 2)[:, None]
        least, most = (
            -(-self.batch0 // (gpus * steps)),
            np.minimum(self.most_per_gpu, self.most_batch // (gpus * steps)),
        )
        low, high = int(least.min()), int(most.max())
        if high < low:
            return 0.0
        # Every number up to the limits would do; those on the log scale, and the limits themselves, are enough.
        tried = np.geomspace(low, high, STEPS).round()
        each = np.unique(np.concatenate([tried, least.ravel(), most.ravel()]))[None, :]
        allowed = (each >= least) & (each <= most)
        goodput = np.where(allowed, self._goodput(gpus, each, steps, one_node, noise_scale), 0.0)
        return float(goodput.max())

    def _goodput(self, gpus: int, each: Floats, steps: Ints, one_node: bool, noise_scale: float) -> Floats:
        """Goodput for ``each`` examples on a GPU and so many ``steps``, q + 1."""
        first, further = self.sync_node_s if one_node else self.sync_nodes_s
        sync = first + further * (gpus - 2) if gpus > 1 else 0.0
        grad = self.grad_s[0] + self.grad_s[1] * each
        longer, shorter = np.maximum(grad, sync), np.minimum(grad, sync)
        both = (
            longer * (1.0 + (shorter / longer) ** self.gamma) ** (1.0 / self.gamma)
            if self.gamma < math.inf
            else longer
        )
        batch = gpus * each * steps
        efficiency = (noise_scale + self.batch0) / (noise_scale + batch) if noise_scale < math.inf else 1.0
        return np.asarray(batch / ((steps - 1) * grad + both) * efficiency)
