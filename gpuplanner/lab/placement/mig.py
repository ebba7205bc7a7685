"""The same for MIG: instances on boards as they arrive, and the slices lost in fragments."""

from __future__ import annotations

import functools
import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.errors import ScenarioError, message
from gpuplanner.hardware import GpuModel, Layout, Placement, as_board, driver_starts, free_slices, is_valid
from gpuplanner.lab.placement.pods import Integers
from gpuplanner.names import resolve

INSTANCE_RULES: Final = ("first-fit", "best-fit", "fgd")
"""Rules of :func:`place_instances`."""


@dataclass(frozen=True, eq=False, repr=False)
class InstanceAllocation:
    """MIG instances on GPUs, arrival by arrival.

    Parameters
    ----------
    board : GpuModel
        The board of all GPUs.
    gpus : int
        GPUs that there are.
    profiles : tuple of str, length n_arrivals
        What was asked for.
    gpu, start : ndarray of int, shape (n_arrivals,)
        GPU and start slice; -1 if the instance was left out.
    fragmented_slices : ndarray of float, shape (n_arrivals,)
        :func:`mig_fragmentation` of all GPUs after the arrival [memory slices].
    """

    board: GpuModel
    gpus: int
    profiles: tuple[str, ...]
    gpu: Integers
    start: Integers
    fragmented_slices: NDArray[np.float64]

    def __repr__(self) -> str:
        return f"<InstanceAllocation: {self.placed} of {len(self.gpu)} instances on {self.gpus} GPUs>"

    @property
    def placed(self) -> int:
        """Instances that found a place."""
        return int((self.gpu >= 0).sum())

    @property
    def allocated_slices(self) -> int:
        """Memory slices that they take."""
        return sum(
            self.board.profile(name).memory_slices
            for name, gpu in zip(self.profiles, self.gpu, strict=True)
            if gpu >= 0
        )

    def layouts(self) -> list[Layout]:
        """What every GPU holds in the end."""
        held: list[list[Placement]] = [[] for _ in range(self.gpus)]
        for name, gpu, start in zip(self.profiles, self.gpu.tolist(), self.start.tolist(), strict=True):
            if gpu >= 0:
                held[gpu].append(Placement.of(self.board.profile(name), start))
        return [Layout(tuple(placements)) for placements in held]

    def by_profile(self) -> pl.DataFrame:
        """Instances that came, found a place and were left out: ``profile, asked, placed, left_out``."""
        placed = pl.Series("placed", self.gpu >= 0)
        return (
            pl.DataFrame({"profile": self.profiles, "placed": placed})
            .group_by("profile", maintain_order=True)
            .agg(asked=pl.len(), placed=pl.col("placed").sum())
            .with_columns(left_out=pl.col("asked") - pl.col("placed"))
        )

    def to_frame(self) -> pl.DataFrame:
        """One row an arrival: profile, GPU, start slice (none if it was left out), and the running fragmentation."""
        placed = pl.col("gpu") >= 0
        return pl.DataFrame(
            {
                "profile": self.profiles,
                "gpu": self.gpu,
                "start_slice": self.start,
                "fragmented_slices": self.fragmented_slices,
            }
        ).with_columns(pl.when(placed).then(pl.col("gpu", "start_slice")))

    def to_dict(self) -> dict[str, Any]:
        """What there is to say about it in short."""
        return {
            "board": self.board.name,
            "gpus": self.gpus,
            "arrivals": len(self.gpu),
            "placed": self.placed,
            "allocated_slices": self.allocated_slices,
            "slices": self.gpus * self.board.memory_slices,
            "fragmented_slices": float(self.fragmented_slices[-1]),
        }


def mig_fragmentation(board: GpuModel | str, layout: Layout, demand: Mapping[str, int]) -> float:
    """Expected memory slices of one GPU that are free and of no use to an instance drawn from the demand.

    For each profile these are the free slices that no legal place of it covers; all of them, if it has no
    legal start left. Overlaps, maxima and engines count.

    Parameters
    ----------
    board : GpuModel or str
        The board.
    layout : Layout
        What stands on the GPU.
    demand : mapping of str to int
        How often each profile is asked for.

    Returns
    -------
    float
        Memory slices.

    Raises
    ------
    GeometryError
        If the board or a profile is unknown.
    ScenarioError
        If nothing is asked for, or a count is below 0.

    References
    ----------
    Weng et al., Beware of Fragmentation, USENIX ATC 2023, section 3.2, whose GPUs of a node become the slices
    of a GPU here. Of the same kind: Zambianco et al., arXiv 2511.18906.

    Examples
    --------
    A 1g in the middle of the lower half leaves no start for 3g there, but one in the upper half:

    >>> from gpuplanner.hardware import parse_placements
    >>> wanted = {"3g.20gb": 1}
    >>> mig_fragmentation("A100-40GB", Layout(), wanted)
    0.0
    >>> mig_fragmentation("A100-40GB", parse_placements("A100-40GB", "1g.5gb@1"), wanted)
    3.0
    """
    board = as_board(board)
    counts = _counts(board, demand)
    return _fragmenter(board, counts)(layout) / sum(counts.values())


def place_instances(
    board: GpuModel | str,
    profiles: Sequence[str],
    gpus: int,
    *,
    rule: str = "fgd",
    demand: Mapping[str, int] | None = None,
) -> InstanceAllocation:
    """Place MIG instances on GPUs as they arrive; none ever leaves, and one that finds no place is gone.

    Parameters
    ----------
    board : GpuModel or str
        The board of all GPUs.
    profiles : sequence of str, length n_arrivals
        Profiles in order of arrival.
    gpus : int
        GPUs that there are.
    rule : str
        ``first-fit``: the first GPU with a legal start. ``best-fit``: the one with fewest free slices. Both
        leave the start to the driver (:func:`gpuplanner.hardware.driver_starts`). ``fgd``: GPU and start with
        the least increase of :func:`mig_fragmentation`. Of equals the first GPU, then the driver's start.
    demand : mapping of str to int, optional
        What fragmentation is measured against; the profiles that arrive if None.

    Returns
    -------
    InstanceAllocation
        GPU, start slice and fragmentation at every arrival.

    Raises
    ------
    GeometryError
        If the board or a profile is unknown.
    ScenarioError
        If the rule is unknown, or there is no GPU or no profile.

    Examples
    --------
    >>> asked = ["2g.10gb", "3g.20gb", "4g.20gb"]
    >>> place_instances("A100-40GB", asked, 1, rule="first-fit")
    <InstanceAllocation: 2 of 3 instances on 1 GPUs>
    >>> place_instances("A100-40GB", ["3g.20gb", "4g.20gb"], 1, rule="fgd").start.tolist()
    [4, 0]
    """
    board = as_board(board)
    rule = resolve(rule, INSTANCE_RULES, what="rule", error=ScenarioError)
    if gpus < 1:
        raise ScenarioError(message("gpus", "at least 1", repr(gpus), "Give the number of GPUs."))
    names = tuple(board.profile(name).name for name in profiles)
    counts = _counts(board, Counter(names) if demand is None else demand)
    fragments = _fragmenter(board, counts)
    best_place = _chooser(board, rule, fragments)
    waiting: dict[Layout, list[int]] = {Layout(): list(range(gpus))}
    found = np.full((2, len(names)), -1, dtype=np.int64)
    after = np.empty(len(names), dtype=np.int64)
    total = gpus * fragments(Layout())
    for number, name in enumerate(names):
        options = [
            (place[0], numbers[0], place[1], layout)
            for layout, numbers in waiting.items()
            if (place := best_place(layout, name))
        ]
        if options:
            _, gpu, placement, layout = min(options, key=lambda option: option[:2])
            found[:, number] = gpu, placement.start
            heapq.heappop(waiting[layout])
            if not waiting[layout]:
                del waiting[layout]
            grown = Layout((*layout.placements, placement))
            heapq.heappush(waiting.setdefault(grown, []), gpu)
            total += fragments(grown) - fragments(layout)
        after[number] = total
    return InstanceAllocation(board, gpus, names, found[0], found[1], after / sum(counts.values()))


def _counts(board: GpuModel, demand: Mapping[str, int]) -> dict[str, int]:
    counts = {board.profile(name).name: count for name, count in demand.items()}
    if min(counts.values(), default=0) < 0 or not any(counts.values()):
        raise ScenarioError(
            message("demand", "counts of profiles, one above 0", repr(dict(demand)), "Mend it.")
        )
    return counts


def _options(board: GpuModel) -> Callable[[Layout, str], tuple[Placement, ...]]:
    """Legal places of a profile beside a layout, in the order in which the driver tries them."""

    @functools.cache
    def options(layout: Layout, name: str) -> tuple[Placement, ...]:
        profile = board.profile(name)
        places = (Placement.of(profile, start) for start in driver_starts(board, profile))
        return tuple(place for place in places if is_valid(board, Layout((*layout.placements, place))))

    return options


def _fragmenter(board: GpuModel, counts: Mapping[str, int]) -> Callable[[Layout], int]:
    """Free slices of no use, summed over the instances of the demand: whole and exact."""
    options = _options(board)

    @functools.cache
    def fragments(layout: Layout) -> int:
        free = set(free_slices(board, layout))
        found = 0
        for name, count in counts.items():
            covered = {
                place.start + offset for place in options(layout, name) for offset in range(place.size)
            }
            found += count * len(free - covered)
        return found

    return fragments


def _chooser(
    board: GpuModel, rule: str, fragments: Callable[[Layout], int]
) -> Callable[[Layout, str], tuple[int, Placement] | None]:
    """The place that a rule takes on a GPU with this layout, and what it costs there; None if there is none."""
    options = _options(board)

    @functools.cache
    def best_place(layout: Layout, name: str) -> tuple[int, Placement] | None:
        places = options(layout, name)
        if not places:
            return None
        if rule == "first-fit":
            return 0, places[0]
        if rule == "best-fit":
            return len(free_slices(board, layout)), places[0]
        grown = [fragments(Layout((*layout.placements, place))) for place in places]
        least = min(grown)
        return least - fragments(layout), places[grown.index(least)]

    return best_place
