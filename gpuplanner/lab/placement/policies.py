"""Rules by which a pod chooses a node and, on it, a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpuplanner.errors import ScenarioError, message
from gpuplanner.names import resolve

NODE_RULES: Final = ("first-fit", "best-fit", "worst-fit", "dot-product", "gpu-packing", "random", "fgd")
"""How nodes that can hold the pod are scored; see :class:`PlacementPolicy`."""

GPU_RULES: Final = ("first", "tightest", "loosest", "random", "steepest")
"""Which GPU of the node a pod that wants part of one gets; see :class:`PlacementPolicy`."""


@dataclass(frozen=True)
class PlacementPolicy:
    """A node rule, a GPU rule, and how finely scores are told apart.

    The node with the highest score takes the pod; of equals, the first in the order of nodes.

    Parameters
    ----------
    node : str
        ``first-fit`` scores all nodes alike. ``best-fit`` prefers the node with least CPU and GPU left after
        the pod, each over that of the largest node and weighing half; ``worst-fit`` the opposite.
        ``dot-product`` prefers nodes whose free CPU and GPU point away from the request (small product).
        ``gpu-packing`` prefers a GPU that is shared already, then idle GPUs of a node in use, then idle nodes.
        ``random`` draws among all that fit. ``fgd``, fragmentation gradient descent, prefers the steepest
        decrease of :func:`gpuplanner.lab.placement.fragmentation`.
    gpu : str
        For a share of one GPU: the ``first`` that has it, the one with least (``tightest``) or most
        (``loosest``) left, a ``random`` one, or the one with the ``steepest`` decrease of fragmentation.
        Whole GPUs are all alike: the first idle ones.
    steps : int or None
        Scores from 0 to 1 are cut to multiples of 1/steps, as schedulers with whole-numbered scores do;
        100 is Kubernetes. None compares them exactly. ``gpu-packing`` has points of its own.

    Raises
    ------
    ScenarioError
        If a rule is unknown or `steps` is not above 0.

    References
    ----------
    Weng et al., Beware of Fragmentation, USENIX ATC 2023; scores as in hkust-adsl/kubernetes-scheduler-simulator,
    ``pkg/simulator/plugin`` (worst fit and first fit are ours: no experiment has them).

    Examples
    --------
    >>> PlacementPolicy("fgd", "steepest", steps=None)
    PlacementPolicy(node='fgd', gpu='steepest', steps=None)
    """

    node: str
    gpu: str
    steps: int | None = 100

    def __post_init__(self) -> None:
        """Check the rules."""
        for rule, known in ((self.node, NODE_RULES), (self.gpu, GPU_RULES)):
            if rule not in known:
                raise ScenarioError(
                    message("policy", f"one of {', '.join(known)}", repr(rule), "Name a rule of this list.")
                )
        if self.steps is not None and self.steps < 1:
            raise ScenarioError(message("policy: steps", "at least 1, or None", repr(self.steps), "Mend it."))


POLICIES: Final = {
    "first-fit": PlacementPolicy("first-fit", "first"),
    "best-fit": PlacementPolicy("best-fit", "tightest"),
    "worst-fit": PlacementPolicy("worst-fit", "loosest"),
    "dot-product": PlacementPolicy("dot-product", "tightest"),
    "gpu-packing": PlacementPolicy("gpu-packing", "tightest"),
    "random": PlacementPolicy("random", "random"),
    "fgd": PlacementPolicy("fgd", "steepest"),
}
"""Policies by name; those of the published experiments choose nodes and GPUs exactly as these do."""


def as_policy(policy: PlacementPolicy | str) -> PlacementPolicy:
    """Return the policy itself, or find it by its name.

    Examples
    --------
    >>> as_policy("best-fit").gpu
    'tightest'
    """
    if isinstance(policy, PlacementPolicy):
        return policy
    return POLICIES[resolve(policy, POLICIES, what="policy", error=ScenarioError)]
