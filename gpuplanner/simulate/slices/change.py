"""What a change of layout costs, part by part."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from gpuplanner.catalog import parameter
from gpuplanner.errors import ScenarioError, message
from gpuplanner.hardware import GpuModel, as_board, reconfiguration_cost
from gpuplanner.schemas import WHOLE_GPU


def _sourced(name: str) -> float:
    return field(default_factory=lambda: parameter(name).value)


@dataclass(frozen=True)
class ChangeCost:
    """Time that a change of layout takes, after jobs have drained, and that a job takes to start again.

    Jobs are never stopped for a change; waiting until they end is the first cost, and comes out of the run. Then
    an idle GPU is out of service for ``operator_s``, ``driver_s`` for every instance removed or made, and
    ``mode_s`` if MIG mode changes on a board that needs a reboot for it.

    Parameters
    ----------
    driver_s : float
        One instance made or removed [s].
    operator_s : float
        The operator's way, by labels, restarts of its pods and its manager [s]. It makes all instances of a GPU
        anew, so the whole GPU has to be idle. With 0 instances are changed by the driver alone, one after the
        other, and those beside them stay in use.
    mode_s : float
        Reboot of a node, on boards that need it to change MIG mode (Ampere, and boards of unknown
        architecture) [s]. Cut on demand, all GPUs of the node are out of service, and have to be idle before; in
        a calendar it counts for the GPU alone.
    restart_s : float
        Loading of a checkpoint, start and warm-up of a job whose next phase is served elsewhere [s].

    References
    ----------
    Defaults: parameters ``reconfigure_nvml_s``, ``reconfigure_operator_s``, ``reconfigure_reboot_s`` and
    ``restart_s`` of the catalogue, where their sources and ranges stand.

    Examples
    --------
    >>> ChangeCost()
    ChangeCost(driver_s=0.3, operator_s=60.0, mode_s=600.0, restart_s=30.0)
    >>> ChangeCost(operator_s=0).seconds("H100-80GB-SXM5", {"gpu": 1}, {"3g.40gb": 2})
    0.6
    """

    driver_s: float = _sourced("reconfigure_nvml_s")
    operator_s: float = _sourced("reconfigure_operator_s")
    mode_s: float = _sourced("reconfigure_reboot_s")
    restart_s: float = _sourced("restart_s")

    def __post_init__(self) -> None:
        """Check the values."""
        times = (self.driver_s, self.operator_s, self.mode_s, self.restart_s)
        if not all(0 <= seconds < math.inf for seconds in times):
            raise ScenarioError(message("cost of change", "seconds not below 0", str(self), "Change it."))

    @classmethod
    def flat(cls, seconds: float) -> Self:
        """Count the same for every change of a GPU, and nothing for a job that moves.

        Examples
        --------
        >>> ChangeCost.flat(60.0)
        ChangeCost(driver_s=0.0, operator_s=60.0, mode_s=0.0, restart_s=0.0)
        """
        return cls(driver_s=0.0, operator_s=seconds, mode_s=0.0, restart_s=0.0)

    def mode_of(self, board: GpuModel | str) -> float:
        """Seconds that a change of MIG mode takes on a board: ``mode_s`` where it needs a reboot, else 0."""
        cut = {as_board(board).profiles[-1].name: 1}
        return self.mode_s if reconfiguration_cost(board, {WHOLE_GPU: 1}, cut).reboot else 0.0

    def seconds(self, board: GpuModel | str, before: Mapping[str, int], after: Mapping[str, int]) -> float:
        """Seconds for which an idle GPU is out of service.

        Parameters
        ----------
        board : GpuModel or str
            The board.
        before, after : mapping of str to int
            Instances of each profile, or ``{"gpu": 1}``. Through the driver what both have stays.
        """
        if self.operator_s > 0:
            changed = sum(
                count for held in (before, after) for name, count in held.items() if name != WHOLE_GPU
            )
        else:
            driver = reconfiguration_cost(board, before, after, path="nvml")
            changed = len(driver.destroyed) + len(driver.created)
        mode = self.mode_of(board) if (WHOLE_GPU in before) != (WHOLE_GPU in after) else 0.0
        return self.operator_s + changed * self.driver_s + mode
