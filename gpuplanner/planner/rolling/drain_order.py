"""In what order GPUs change their layouts, so that as few requests as possible find no instance meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpuplanner.hardware.layout import OFF, parse_layout
from gpuplanner.hardware.gpu import GpuModel
from gpuplanner.hardware.reconfigure import Reconfiguration
from gpuplanner.planner.contract.problem import Counts
from gpuplanner.planner.contract.substitution import membership, up_sets
from gpuplanner.schemas.vocabulary import WHOLE_GPU


@dataclass(frozen=True)
class Move:
    """One GPU at a slot boundary.

    - ``node``: Name of its node.
    - ``gpu``: Index on the node.
    - ``before``, ``after``: Layout text on either side; ``"off"`` where the GPU is not needed.
    - ``held``: Layout that it has when the change begins: that of before, or the one it was left with.
    - ``left``: Layout that it has afterwards.
    - ``change``: How it is cut; None if it is not.
    """

    node: str
    gpu: int
    before: str
    after: str
    held: str
    left: str
    change: Reconfiguration | None

    @property
    def in_use(self) -> bool:
        """Whether work may be on it when the change begins."""
        return self.before != OFF

    @property
    def action(self) -> str:
        """What happens to it, one of :data:`~gpuplanner.planner.rolling.transition.ACTIONS`."""
        if self.held == self.left:
            if self.after == OFF:
                return "release"
            return "wait" if self.in_use else "return"
        if WHOLE_GPU in (self.held, self.left):
            return "cut" if self.held == WHOLE_GPU else "uncut"
        return "recut"


@dataclass(frozen=True)
class DrainUnit:
    """GPUs that change together: one, or all that a node's reboot takes along.

    - ``moves``: At least one.
    - ``reboot``: Whether the node reboots for it.
    """

    moves: tuple[Move, ...]
    reboot: bool

    @property
    def out(self) -> int:
        """GPUs in use that are out meanwhile."""
        return sum(move.in_use for move in self.moves)

    @property
    def released(self) -> bool:
        """Whether it is one GPU that is given back."""
        return self.moves[0].action == "release"

    def seconds(self, move: Move) -> float:
        """Time that a GPU is busy, without its drain [s]; with a reboot, that of the node."""
        moves = self.moves if self.reboot else (move,)
        return max(0.0 if m.change is None else m.change.seconds for m in moves)

    def drains(self, move: Move) -> bool:
        """Whether work must leave the GPU first: not where no instance goes."""
        undisturbed = move.change is not None and not self.reboot and not move.change.destroyed
        return move.in_use and not undisturbed


class Supply:
    """Instances at work, against those wanted on both sides of a boundary.

    - ``board``: The board.
    - ``moves``: Every GPU, also those that stay as they are.
    """

    def __init__(self, board: GpuModel, moves: Sequence[Move]) -> None:
        texts = {text for move in moves for text in (move.before, move.after)} - {OFF}
        self.profiles = tuple(sorted({name for text in texts for name in parse_layout(text)}))
        sets = up_sets(board, self.profiles, self.profiles)
        self.asked = membership([asked for asked, _ in sets], len(self.profiles))
        self.able = membership([able for _, able in sets], len(self.profiles))
        self.now = self._of([move.before for move in moves])
        self.later = self._of([move.after for move in moves])
        self.needed = np.minimum(self.now, self.later)

    def lost(self, unit: DrainUnit) -> Counts:
        """Instances that are out while a unit changes; those that stay through it go on."""
        total = self._of([move.before for move in unit.moves])
        kept = [
            placement.profile
            for move in unit.moves
            if move.in_use and move.change is not None and not unit.reboot
            for placement in move.change.kept
        ]
        return total - np.array([kept.count(name) for name in self.profiles], dtype=np.int64)

    def gained(self, unit: DrainUnit) -> Counts:
        """By how many instances the supply has grown once a unit is done."""
        return self._of([m.after for m in unit.moves]) - self._of([m.before for m in unit.moves])

    def short(self, wanted: Counts, there: Counts) -> int:
        """Requests that find no instance, their own or a larger one.

        Serving one profile after another is exact: what can be served together is a polymatroid.
        """
        free = self.able @ there
        missing = 0
        for profile, requests in enumerate(wanted.tolist()):
            if requests:
                sets = self.asked[:, profile] > 0
                served = min(requests, int(free[sets].min()))
                free[sets] -= served
                missing += requests - served
        return missing

    def _of(self, layouts: Sequence[str]) -> Counts:
        """Instances on GPUs with these layouts, by profile."""
        total = dict.fromkeys(self.profiles, 0)
        for layout in layouts:
            for name, count in {} if layout == OFF else parse_layout(layout).items():
                total[name] += count
        return np.array(list(total.values()), dtype=np.int64)


def ordered(
    units: Sequence[DrainUnit], supply: Supply, at_once: int
) -> Iterator[tuple[list[DrainUnit], int]]:
    """Yield the units of each step, with the requests that are short during it."""
    there = supply.now
    idle = [unit for unit in units if not unit.out]
    if idle:
        yield idle, supply.short(supply.needed, there)
        there = there + sum(supply.gained(unit) for unit in idle)
    kinds: dict[tuple[bytes, bytes, int], list[DrainUnit]] = {}
    for unit in reversed(units):
        if unit.out and not unit.released:
            key = (supply.lost(unit).tobytes(), supply.gained(unit).tobytes(), unit.out)
            kinds.setdefault(key, []).append(unit)
    waiting = list(kinds.values())
    while any(waiting):
        step = _next_step(waiting, there, supply, at_once)
        yield step, supply.short(supply.needed, there - sum(supply.lost(unit) for unit in step))
        there = there + sum(supply.gained(unit) for unit in step)
    released = [unit for unit in units if unit.released]
    if released:
        there = there + sum(supply.gained(unit) for unit in released)
        yield released, supply.short(supply.needed, there)


def _next_step(
    waiting: Sequence[list[DrainUnit]], there: Counts, supply: Supply, at_once: int
) -> list[DrainUnit]:
    """Take out the gentlest units, alike ones by kind, to change next."""
    step: list[DrainUnit] = []
    left = at_once
    while True:
        judged = []
        for kind, units in enumerate(waiting):
            if units and units[-1].out <= left:
                meanwhile = supply.short(supply.needed, there - supply.lost(units[-1]))
                afterwards = supply.short(supply.later, there + supply.gained(units[-1]))
                first = units[-1].moves[0]
                judged.append((meanwhile, afterwards, first.node, first.gpu, kind))
        best = min(judged, default=None)
        if best is None or (step and best[0] > 0):
            return step
        step.append(waiting[best[-1]].pop())
        there = there - supply.lost(step[-1])
        left -= step[-1].out
