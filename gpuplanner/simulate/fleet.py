"""What is simulated: a fleet, and a calendar of its layouts."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from gpuplanner.errors import GeometryError, ScenarioError, message
from gpuplanner.hardware import GpuModel, as_board, parse_layout, prove
from gpuplanner.schemas import WHOLE_GPU

MOST_GPUS = 10_000_000
"""Larger fleets are refused; every GPU takes memory."""


@dataclass(frozen=True)
class Fleet:
    """Nodes with the same number of GPUs of the same board.

    Parameters
    ----------
    board : GpuModel or str
        The board, or its name.
    nodes, gpus_per_node : int
        At least 1 each. One node with all GPUs is a pool in which placement does not matter.

    Raises
    ------
    ScenarioError
        If there is no GPU, or more than :data:`MOST_GPUS`.
    GeometryError
        If the board is unknown.

    Examples
    --------
    >>> fleet = Fleet("H100-80GB-SXM5", nodes=4, gpus_per_node=8)
    >>> fleet.gpus, fleet.model.sms
    (32, 132)
    """

    board: GpuModel | str
    nodes: int
    gpus_per_node: int

    def __post_init__(self) -> None:
        """Check the counts and that the board exists."""
        if min(self.nodes, self.gpus_per_node) < 1 or self.gpus > MOST_GPUS:
            text = message(
                "fleet",
                f"at least one node and one GPU on it, and at most {MOST_GPUS} GPUs",
                f"nodes={self.nodes}, gpus_per_node={self.gpus_per_node}",
                "Give both.",
            )
            raise ScenarioError(text)
        as_board(self.board)

    @property
    def gpus(self) -> int:
        """GPUs installed."""
        return self.nodes * self.gpus_per_node

    @property
    def model(self) -> GpuModel:
        """The board."""
        return as_board(self.board)


@dataclass(frozen=True, eq=False)
class Calendar:
    """How many GPUs should have which layout, from when on; GPUs that are not counted are off.

    The first slot is the state in which the run begins. The last one stays in force until all jobs ended.
    A calendar of one slot is a static policy; one that counts every GPU as ``"gpu"`` is a fleet without MIG.

    Parameters
    ----------
    slot_starts_s : array of float, shape (n_slots,)
        Starts of the slots [s], 0 first, ascending.
    layouts : tuple of str, length n_layouts
        Layout texts such as ``"3g.40gb:2"``, or ``"gpu"``; each once. Ties between layouts that are equally
        short of GPUs go to the first.
    counts : array of int, shape (n_slots, n_layouts)
        GPUs that should have the layout.
    numbered : array of int, shape (n_slots, n_gpus), optional
        Place in ``layouts`` of the layout of every GPU, node by node; -1: off. Where changes are played as operators
        make them (``Rules.drain``), these are what is changed; None: such that few nodes change.
    parked : array of int, shape (n_slots, n_layouts), optional
        GPUs that are off and keep the layout; those that are neither counted here nor on are not cut. None: a GPU that
        is off has lost its layout.
    held : array of int, shape (n_slots, n_gpus), optional
        Place in ``layouts`` of how every GPU is cut, on or off, beside ``numbered``; None: one that is off is released,
        and comes back whole.

    Raises
    ------
    ScenarioError
        If the parts do not fit together.

    Examples
    --------
    >>> night = Calendar([0, 43200], ("gpu", "1g.10gb:7"), [[6, 2], [2, 6]])
    >>> night.counts.sum(axis=1).tolist()
    [8, 8]
    """

    slot_starts_s: NDArray[np.float64]
    layouts: tuple[str, ...]
    counts: NDArray[np.int64]
    numbered: NDArray[np.int64] | None = None
    parked: NDArray[np.int64] | None = None
    held: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        """Take read-only copies of the arrays, and check them against each other."""
        starts = np.array(self.slot_starts_s, dtype=np.float64)
        counts = np.array(self.counts)
        faults = []
        if starts.ndim != 1 or not len(starts) or starts[0] != 0 or not np.all(np.diff(starts) > 0):
            faults.append(("slot_starts_s that begin at 0 and ascend", starts.tolist()))
        if not np.isfinite(starts).all():
            faults.append(("finite slot_starts_s", starts.tolist()))
        if not self.layouts or len(set(self.layouts)) < len(self.layouts) or "off" in self.layouts:
            faults.append(("at least one layout, each once and none of them 'off'", list(self.layouts)))
        if counts.shape != (len(starts), len(self.layouts)):
            faults.append((f"counts of shape {(len(starts), len(self.layouts))}", counts.shape))
        elif not np.issubdtype(counts.dtype, np.integer) or counts.min() < 0:
            faults.append(("counts in whole numbers not below 0", counts.tolist()))
        elif self.numbered is not None:
            numbered = np.array(self.numbered, dtype=np.int64)
            numbered.setflags(write=False)
            object.__setattr__(self, "numbered", numbered)
            tally = [[(row == layout).sum() for layout in range(len(self.layouts))] for row in numbered]
            if not np.array_equal(tally, counts):
                faults.append(("numbered GPUs as many as counts has", numbered.tolist()))
        if self.held is not None:
            held = np.array(self.held, dtype=np.int64)
            held.setflags(write=False)
            object.__setattr__(self, "held", held)
            on = None if self.numbered is None else np.array(self.numbered)
            fits = on is not None and held.shape == on.shape and np.array_equal(held[on >= 0], on[on >= 0])
            if not fits or not ((held >= 0) & (held < len(self.layouts))).all():
                faults.append(
                    ("held layouts of all numbered GPUs, those on as numbered has them", held.tolist())
                )
        if self.parked is not None:
            kept = np.array(self.parked, dtype=np.int64)
            kept.setflags(write=False)
            object.__setattr__(self, "parked", kept)
            whole = [kept[:, i].any() for i, layout in enumerate(self.layouts) if layout == WHOLE_GPU]
            if kept.shape != counts.shape or kept.min(initial=0) < 0 or any(whole):
                faults.append((f"parked GPUs that are cut, of shape {counts.shape}", kept.tolist()))
        if faults:
            expected = "; ".join(expected for expected, _ in faults)
            got = "; ".join(str(got) for _, got in faults)
            raise ScenarioError(message("calendar", expected, got, "Mend the calendar."))
        object.__setattr__(self, "slot_starts_s", starts)
        object.__setattr__(self, "layouts", tuple(self.layouts))
        object.__setattr__(self, "counts", counts.astype(np.int64))
        self.slot_starts_s.setflags(write=False)
        self.counts.setflags(write=False)

    @classmethod
    def constant(cls, counts: Mapping[str, int]) -> Self:
        """One target for the whole run.

        Examples
        --------
        >>> Calendar.constant({"gpu": 4, "1g.10gb:7": 4}).counts.tolist()
        [[4, 4]]
        """
        return cls(np.zeros(1), tuple(counts), np.array([list(counts.values())]))

    def instances(self, fleet: Fleet) -> list[dict[str, int]]:
        """Instances of each layout, by the board's own profile names.

        Raises
        ------
        GeometryError
            If a layout names an unknown profile, or does not fit on the board.
        ScenarioError
            If a slot wants more GPUs than the fleet has.
        """
        most = self.counts.sum(axis=1) + (0 if self.parked is None else self.parked.sum(axis=1))
        slot = int(most.argmax())
        if most[slot] > fleet.gpus:
            text = message(
                f"calendar, slot {slot}",
                f"at most the {fleet.gpus} GPUs of the fleet",
                f"{most[slot]}",
                "Lower the counts, or add nodes.",
            )
            raise ScenarioError(text)
        return [instances_of(fleet.model, layout) for layout in self.layouts]


@functools.lru_cache(maxsize=4096)
def instances_of(board: GpuModel, layout: str) -> dict[str, int]:
    """Instances of one layout by the board's own profile names, after proving that the board can hold them."""
    counts = parse_layout(layout)
    if WHOLE_GPU in counts:
        return counts
    counts = {board.profile(name).name: count for name, count in counts.items()}
    proof = prove(board, counts)
    if not proof:
        text = message(
            f"calendar, layout {layout!r}",
            f"instances that fit on one {board.name}",
            proof.reason,
            "Change the layout.",
        )
        raise GeometryError(text)
    return counts
