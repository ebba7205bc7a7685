"""What will be asked for: the kinds of pods that fragmentation is measured against."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuplanner.errors import ScenarioError, message
from gpuplanner.lab.placement.pods import Integers, Pods

POPULARITY = 0.95
"""Share of the pods that the kinds of a target workload cover, as in the published experiments."""


@dataclass(frozen=True, eq=False)
class TargetWorkload:
    """Kinds of pods and how often each is asked for; memory is no part of it, as in the source.

    Parameters
    ----------
    cpu_milli, gpus, gpu_milli : ndarray of int, shape (n_kinds,)
        As in :class:`Pods`.
    models : tuple of str, length n_kinds
        As in :class:`Pods`.
    counts : ndarray of int, shape (n_kinds,)
        Pods of the kind.
    """

    cpu_milli: Integers
    gpus: Integers
    gpu_milli: Integers
    models: tuple[str, ...]
    counts: Integers

    @property
    def shares(self) -> NDArray[np.float64]:
        """Probability of each kind, shape (n_kinds,); they sum to 1."""
        return np.asarray(self.counts / self.counts.sum(), dtype=np.float64)


def target_workload(pods: Pods, popularity: float = POPULARITY) -> TargetWorkload:
    """The most frequent kinds of pods that together cover a share of all pods.

    Parameters
    ----------
    pods : Pods
        The history; CPU pods count as well.
    popularity : float
        Share to be covered, above 0 and at most 1.

    Returns
    -------
    TargetWorkload
        Most frequent kind first; of equals the larger one.

    Raises
    ------
    ScenarioError
        If the share makes no sense.

    References
    ----------
    Weng et al., Beware of Fragmentation, USENIX ATC 2023, section 3; hkust-adsl/kubernetes-scheduler-simulator,
    ``pkg/utils/frag.go`` (95 %, CPU pods included).

    Examples
    --------
    >>> pods = Pods(list("abcd"), [4, 4, 4, 8], [0] * 4, [1, 1, 1, 2], [500, 500, 500, 1000])
    >>> target_workload(pods, 0.75).gpu_milli.tolist()
    [500]
    >>> target_workload(pods).shares.tolist()
    [0.75, 0.25]
    """
    if not 0 < popularity <= 1:
        text = message("popularity", "above 0 and at most 1", repr(popularity), "Give a share such as 0.95.")
        raise ScenarioError(text)
    columns = (pods.cpu_milli.tolist(), pods.gpu_milli.tolist(), pods.gpus.tolist(), pods.models)
    frequent = sorted(
        ((count, kind) for kind, count in Counter(zip(*columns, strict=True)).items()), reverse=True
    )
    covered = np.cumsum([count for count, _ in frequent])
    kept = frequent[: int(np.searchsorted(covered, popularity * len(pods.names))) + 1]
    *numbers, models = zip(*(kind for _, kind in kept), strict=True)
    cpu, milli, gpus = (np.array(column) for column in numbers)
    return TargetWorkload(cpu, gpus, milli, models, np.array([count for count, _ in kept]))
