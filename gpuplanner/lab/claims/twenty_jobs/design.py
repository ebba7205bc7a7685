"""The 20-job case as parameters: who needs what, who asks for what, and the ranges of everything drawn."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

from gpuplanner.errors import ScenarioError, message
from gpuplanner.hardware import ChangeCost, GpuModel, as_board
from gpuplanner.units import SECONDS_PER_MINUTE

Range = tuple[float, float]


@dataclass(frozen=True)
class Group:
    """Jobs of one kind.

    Parameters
    ----------
    need : str
        Smallest profile that holds the job: hidden from every policy.
    asks_for : str
        Profile that its owner asks for.
    jobs : int
        How many there are.
    kind : str
        What they do.
    """

    need: str
    asks_for: str
    jobs: int
    kind: str


GROUPS = (
    Group("3g.40gb", "3g.40gb", 8, "GPT-like training"),
    Group("2g.20gb", "3g.40gb", 5, "CV or NLP training"),
    Group("1g.10gb", "3g.40gb", 1, "inference"),
    Group("2g.20gb", "2g.20gb", 2, "training"),
    Group("1g.10gb", "2g.20gb", 1, "inference"),
    Group("1g.10gb", "1g.10gb", 3, "inference"),
)
"""Calibrated: chosen, with the ranges of :class:`Design`, after 36 configurations had been tried against the
four figures of the brief."""


@dataclass(frozen=True)
class Design:
    """A workload on a small fleet; ranges are those of uniform distributions.

    Parameters
    ----------
    groups : tuple of Group
        The jobs.
    fill : tuple of float
        Share of the needed profile that a job keeps busy.
    run_min : tuple of float
        Run time on an instance that is large enough [min].
    memory_share : tuple of float
        Peak memory as a share of the memory of the needed profile.
    peak_at_share : tuple of float
        When in its run a job reaches its peak memory, as a share of the run: where it dies if that is too much.
    board : str
        The board.
    gpus : int
        GPUs in the fleet.
    static_layout : str
        What every GPU is cut into before anybody plans: the "all-balanced" default of NVIDIA's partition
        manager for 80 GB boards.
    reconfigure_min : float
        Time that a GPU is out of service for a change of layout [min].

    Raises
    ------
    ScenarioError
        If a range or count makes no sense.

    References
    ----------
    mig-parted, ``deployments/systemd/config-default.yaml`` (all-balanced).

    Examples
    --------
    >>> design = Design()
    >>> design.jobs, design.needed_slices, design.model.name
    (20, 43, 'H100-80GB-SXM5')
    """

    groups: tuple[Group, ...] = GROUPS
    fill: Range = (0.93, 1.0)
    run_min: Range = (52.0, 59.0)
    memory_share: Range = (0.55, 0.92)
    peak_at_share: Range = (0.05, 0.5)
    board: str = "H100-80GB-SXM5"
    gpus: int = 8
    static_layout: str = "3g.40gb:1,2g.20gb:1,1g.10gb:2"
    reconfigure_min: float = 1.0

    def __post_init__(self) -> None:
        """Check ranges and counts."""
        faults = [
            f"{name} {span}"
            for name, span, most in (
                ("fill", self.fill, 1.0),
                ("run_min", self.run_min, math.inf),
                ("memory_share", self.memory_share, 1.0),
                ("peak_at_share", self.peak_at_share, 1.0),
            )
            if not 0 < span[0] <= span[1] <= most or not math.isfinite(span[1])
        ]
        faults += [f"{group.jobs} jobs of {group.kind!r}" for group in self.groups if group.jobs < 0]
        if not self.jobs or self.gpus < 1 or not 0 <= self.reconfigure_min < math.inf:
            faults.append(f"{self.jobs} jobs, {self.gpus} GPUs, reconfigure_min {self.reconfigure_min}")
        if faults:
            text = message(
                "design",
                "ranges above 0 that ascend, shares up to 1, at least one job and one GPU",
                "; ".join(faults),
                "Mend them.",
            )
            raise ScenarioError(text)

    @property
    def jobs(self) -> int:
        """Number of jobs."""
        return sum(group.jobs for group in self.groups)

    @functools.cached_property
    def model(self) -> GpuModel:
        """The board."""
        return as_board(self.board)

    @property
    def change(self) -> ChangeCost:
        """What a change of layout costs: the stated time, and nothing else."""
        return ChangeCost.flat(SECONDS_PER_MINUTE * self.reconfigure_min)

    @property
    def needed_slices(self) -> int:
        """Compute slices that all jobs together need."""
        return sum(group.jobs * self.model.profile(group.need).compute_slices for group in self.groups)

    def asking(self, *, for_need: bool) -> Design:
        """The same needs, where everybody asks for just that, or for the dearest profile that anybody needs.

        Examples
        --------
        >>> {group.asks_for for group in Design().asking(for_need=False).groups}
        {'3g.40gb'}
        """
        largest = max((g.need for g in self.groups), key=lambda name: self.model.profile(name).size_order)
        groups = (replace(g, asks_for=g.need if for_need else largest) for g in self.groups)
        return replace(self, groups=tuple(groups))
