"""A policy instead of a calendar: GPUs are cut when waiting jobs ask for it."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuplanner.errors import ScenarioError, message
from gpuplanner.hardware import ChangeCost, GpuModel, Placement, prove
from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.simulate.fleet import Calendar, Fleet, instances_of
from gpuplanner.simulate.slices.geometry import geometry
from gpuplanner.simulate.slices.world import NONE, PLACED, Slicing, table


@dataclass(frozen=True)
class OnDemand:
    """A waiting job that finds no free instance of its profile gets a GPU cut anew.

    Instances have places. A new one goes where it disturbs least: into free slices, beside what runs; else in
    place of as few idle instances as possible; else onto a whole GPU that is idle, which leaves MIG mode last as
    the dearest. Of equals it goes where it adds least fragmentation, then to the lowest GPU, then to the start
    that the driver tries first. Busy instances are never touched. A job on whole GPUs that finds too few has idle
    cut GPUs made whole, on the node where the fewest have to be.

    Fragmentation is FGD's, with every profile of the run as likely as any other: the memory slices that are free
    or idle and that a profile has no legal start for, summed over profiles.

    Through the operator or mig-parted (the path of ``Rules.change``) only a GPU without jobs is cut, for all the
    waiting jobs that it can hold, and full; through NVML one instance is made at a time.

    Whoever came first is served first, across profiles. For a change of MIG mode that needs a reboot no node is
    drained.

    Parameters
    ----------
    start : mapping of str to int
        GPUs by layout as the run begins, as in a static calendar; all others are whole.
    patience_s : float
        A job waits for so long before a GPU is cut for it [s].
    drain_after_s : float or None
        A job that has waited for so long, and for which no GPU can be cut, has slices drained [s]: where the
        fewest are in use, nothing more starts until it can be cut there. One drain for each profile at a time.
        If nobody waits for it any more by then, or the GPU has had all its changes of that day, what was drained
        is offered again.
        None: never; then large instances, and whole GPUs, may not come at all while smaller ones are in demand.
    switches_per_day : int or None
        Most changes of one GPU within a day, counted from the start of the run; None: any number.
    keep_whole : int
        GPUs, from the lowest number up, that are never cut.

    References
    ----------
    Q. Weng et al., Beware of fragmentation: scheduling GPU-sharing workloads with fragmentation gradient descent,
    USENIX ATC 2023.

    Examples
    --------
    >>> OnDemand(patience_s=60.0, switches_per_day=4, keep_whole=2).keep_whole
    2
    """

    start: Mapping[str, int] = field(default_factory=dict)
    patience_s: float = 0.0
    drain_after_s: float | None = 3600.0
    switches_per_day: int | None = None
    keep_whole: int = 0

    def __post_init__(self) -> None:
        """Check the values."""
        limit = 0 if self.switches_per_day is None else self.switches_per_day
        waits = (self.patience_s, 0.0 if self.drain_after_s is None else self.drain_after_s)
        if not all(0 <= wait < math.inf for wait in waits) or min(limit, self.keep_whole) < 0:
            text = message(
                "cutting on demand",
                "patience_s, drain_after_s, switches_per_day and keep_whole not below 0",
                str(self),
                "Change them.",
            )
            raise ScenarioError(text)

    def opening(self, fleet: Fleet) -> Calendar:
        """How the run begins: the layouts of ``start``, and whole GPUs.

        Raises
        ------
        ScenarioError
            If more GPUs are cut than the fleet has beside those kept whole.
        """
        cut = {layout: count for layout, count in self.start.items() if layout != WHOLE_GPU}
        able = fleet.gpus - self.keep_whole
        if sum(cut.values()) > max(able, 0):
            text = message(
                "cutting on demand, start",
                f"at most {max(able, 0)} cut GPUs, which are those of the fleet but {self.keep_whole} kept whole",
                f"{sum(cut.values())}",
                "Cut fewer at the start, or keep fewer whole.",
            )
            raise ScenarioError(text)
        return Calendar.constant({WHOLE_GPU: fleet.gpus - sum(cut.values()), **cut})


def to_slicing(
    policy: OnDemand, fleet: Fleet, change: ChangeCost, profiles: tuple[str, ...], layouts: Sequence[str]
) -> Slicing:
    """Fill the tables of a run on demand."""
    board, number = fleet.model, {name: rank for rank, name in enumerate(profiles)}
    cuts = np.full((fleet.gpus, board.memory_slices), NONE)
    for gpu, layout in enumerate(layouts):
        for placement in _placements(board, layout):
            cuts[gpu, placement.start] = number[placement.profile]
    places, placed = geometry(board, profiles[1:]), table(PLACED, fleet.gpus)
    placed.owner = NONE
    limit, patience_s = policy.switches_per_day, float(policy.patience_s)
    return Slicing(
        patience_s=patience_s,
        drain_after_s=math.inf if policy.drain_after_s is None else max(policy.drain_after_s, patience_s),
        switches_per_day=NONE if limit is None else limit,
        keep_whole=policy.keep_whole,
        one_by_one=change.one_by_one,
        change_s=change.change_s.value,
        instance_s=change.instance_s.value,
        reboot_s=0.0 if change.reboot_s is None else change.reboot_s.value,
        starts=places.starts,
        spans=places.spans,
        open=places.open,
        loss=places.loss,
        takes=places.takes,
        budget=places.budget,
        room=np.zeros(len(places.budget), np.int64),
        cuts=cuts,
        gpus=placed,
        touched=np.zeros(fleet.gpus, np.int64),
    )


def no_slicing() -> Slicing:
    """Tables without rows, for a run over a calendar."""
    rows, square = np.zeros(0, np.int64), np.zeros((0, 0), np.int64)
    return Slicing(
        patience_s=0.0,
        drain_after_s=0.0,
        switches_per_day=NONE,
        keep_whole=0,
        one_by_one=True,
        change_s=0.0,
        instance_s=0.0,
        reboot_s=0.0,
        starts=square,
        spans=rows,
        open=square,
        loss=np.zeros(0),
        takes=square,
        budget=rows,
        room=rows,
        cuts=square,
        gpus=table(PLACED, 0),
        touched=rows,
    )


@functools.lru_cache(maxsize=4096)
def _placements(board: GpuModel, layout: str) -> tuple[Placement, ...]:
    """Where the driver would put the instances of a layout."""
    placed = prove(board, instances_of(board, layout)).layout
    assert placed is not None
    return placed.placements
