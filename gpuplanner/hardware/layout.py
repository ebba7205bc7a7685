"""Where instances sit on one GPU, and the text forms of layouts."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpuplanner.errors import GeometryError, message
from gpuplanner.hardware.gpu import GpuModel, as_board
from gpuplanner.hardware.profile import RESOURCES, MigProfile, ProfileName, refuse
from gpuplanner.schemas.vocabulary import WHOLE_GPU

OFF = "off"
"""Layout text of a GPU that is not needed."""


@dataclass(frozen=True, slots=True, order=True)
class Placement:
    """One instance at its place: memory slices ``start`` to ``start + size - 1``."""

    start: int
    size: int
    profile: str

    @classmethod
    def of(cls, profile: MigProfile, start: int) -> Placement:
        """Place a profile at a start slice."""
        return cls(start, profile.memory_slices, profile.name)

    @property
    def mask(self) -> int:
        """The occupied memory slices as bits."""
        return ((1 << self.size) - 1) << self.start

    def __str__(self) -> str:
        return f"{self.profile}@{self.start}"


@dataclass(frozen=True, slots=True)
class Layout:
    """The instances on one GPU, sorted by start slice. Immutable; says nothing about being possible.

    Examples
    --------
    >>> layout = parse_placements("A100-40GB", "3g.20gb@4 4g.20gb@0")
    >>> str(layout), layout.text
    ('4g.20gb@0 3g.20gb@4', '4g.20gb:1,3g.20gb:1')
    """

    placements: tuple[Placement, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "placements", tuple(sorted(self.placements)))

    def __str__(self) -> str:
        return " ".join(map(str, self.placements))

    @property
    def counts(self) -> dict[str, int]:
        """Instances of each profile, largest profile first."""
        found = Counter(placement.profile for placement in self.placements)
        return {name: found[name] for name in sorted(found, key=_text_order, reverse=True)}

    @property
    def text(self) -> str:
        """Canonical text of the counts; the places are not in it."""
        return format_layout(self.counts)

    @property
    def mask(self) -> int:
        """The occupied memory slices as bits."""
        return sum(placement.mask for placement in self.placements)


def parse_placements(board: GpuModel | str, text: str) -> Layout:
    """Read ``"3g.20gb@4 4g.20gb@0"``, the text form of a layout with places.

    Raises
    ------
    GeometryError
        If a word is not ``profile@start`` or the profile is unknown. Whether the layout is possible is a
        question for :func:`layout_faults`.

    Examples
    --------
    >>> parse_placements("A30", "2g.12gb@2").placements
    (Placement(start=2, size=2, profile='2g.12gb'),)
    """
    board = as_board(board)
    placements = []
    for word in text.split():
        name, _, start = word.rpartition("@")
        if not (name and start.isascii() and start.isdecimal()):
            refuse(f"placement {word!r}", "profile@start, such as '3g.20gb@4'", repr(word), "Mend it.")
        placements.append(Placement.of(board.profile(name), int(start)))
    return Layout(tuple(placements))


def layout_faults(board: GpuModel | str, layout: Layout) -> list[str]:
    """Say what is impossible about a layout: starts, overlaps, maxima, engines. Empty means valid.

    Examples
    --------
    >>> layout_faults("A100-40GB", parse_placements("A100-40GB", "4g.20gb@0 3g.20gb@0"))
    ['4g.20gb@0 and 3g.20gb@0 overlap in memory slices 0-3']
    """
    board = as_board(board)
    faults = [
        f"{placement} is no legal start: {placement.profile} may start at {slices(profile.starts)}"
        for placement in layout.placements
        if placement.start not in (profile := board.profile(placement.profile)).starts
    ]
    for one, other in itertools.combinations(layout.placements, 2):
        shared = one.mask & other.mask
        if shared:
            pair = sorted((one, other), key=lambda p: (p.start, p.profile), reverse=True)
            faults.append(f"{pair[0]} and {pair[1]} overlap in memory slices {slices(bits(shared))}")
    return [*faults, *maximum_faults(board, layout.counts), *engine_faults(board, layout.counts)]


def maximum_faults(board: GpuModel, counts: Mapping[str, int]) -> Iterator[str]:
    """Profiles, by the board's own names, of which there are more than one board can hold."""
    for name, count in counts.items():
        most = board.profile(name).max_instances
        if count > most:
            yield f"{name} x{count}: {board.name} holds at most {most}"


def engine_faults(board: GpuModel, counts: Mapping[str, int]) -> Iterator[str]:
    """Engines (and SMs) of which the instances take more than one board has."""
    for resource, limit in board.budget.items():
        takers = {name: board.profile(name).amount(resource) or 0 for name in counts}
        taken = sum(counts[name] * amount for name, amount in takers.items())
        if taken > limit:
            who = " and ".join(f"{name} x{counts[name]}" for name, amount in takers.items() if amount)
            yield f"{who} need {taken} {RESOURCES[resource]}; {board.name} has {limit}"


def free_slices(board: GpuModel | str, layout: Layout) -> tuple[int, ...]:
    """Memory slices that no instance occupies, ascending.

    Examples
    --------
    >>> free_slices("A100-40GB", parse_placements("A100-40GB", "4g.20gb@0 2g.10gb@4"))
    (6, 7)
    """
    return bits(((1 << as_board(board).memory_slices) - 1) & ~layout.mask)


def format_layout(counts: Mapping[str, int]) -> str:
    """Canonical text of profile counts: largest first, zero counts left out.

    ``{"gpu": 1}`` is a GPU that is not cut, nothing at all is one that is not needed.

    Raises
    ------
    GeometryError
        If a name is no profile name, a count is negative, or a whole GPU stands beside instances.

    Examples
    --------
    >>> format_layout({"1g.10gb": 2, "3g.40gb": 1, "2g.20gb": 1})
    '3g.40gb:1,2g.20gb:1,1g.10gb:2'
    >>> format_layout({"gpu": 1}), format_layout({})
    ('gpu', 'off')
    """
    held = {name: count for name, count in counts.items() if count != 0}
    if held == {WHOLE_GPU: 1}:
        return WHOLE_GPU
    names = {name: str(ProfileName.parse(name)) for name in held if name != WHOLE_GPU}
    if len(names) < len(held) or len(set(names.values())) < len(names) or min(held.values(), default=0) < 0:
        raise GeometryError(_not_a_layout(dict(counts)))
    ordered = sorted(names, key=lambda name: _text_order(names[name]), reverse=True)
    return ",".join(f"{names[name]}:{held[name]}" for name in ordered) or OFF


def parse_layout(text: str) -> dict[str, int]:
    """Read layout text back into profile counts, in canonical order.

    Raises
    ------
    GeometryError
        If a part is not ``profile:count`` with a count above 0, or a profile is named twice.

    Examples
    --------
    >>> parse_layout("1g.10gb:2,3g.40gb:1")
    {'3g.40gb': 1, '1g.10gb': 2}
    >>> parse_layout("gpu"), parse_layout("off")
    ({'gpu': 1}, {})
    """
    return dict(_parsed(text))


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[tuple[str, int], ...]:
    stripped = text.strip()
    if stripped == WHOLE_GPU:
        return ((WHOLE_GPU, 1),)
    if stripped == OFF:
        return ()
    counts: dict[str, int] = {}
    for part in stripped.split(","):
        name, _, count = part.strip().rpartition(":")
        known = str(ProfileName.parse(name)) if name else ""
        if not (known and count.isascii() and count.isdecimal() and int(count)) or known in counts:
            raise GeometryError(_not_a_layout(text))
        counts[known] = int(count)
    return tuple((name, counts[name]) for name in sorted(counts, key=_text_order, reverse=True))


def bits(mask: int) -> tuple[int, ...]:
    """Positions of the set bits, ascending.

    Examples
    --------
    >>> bits(0b1011)
    (0, 1, 3)
    """
    return tuple(position for position in range(mask.bit_length()) if mask >> position & 1)


def slices(numbers: tuple[int, ...]) -> str:
    """Print slice numbers with runs joined.

    Examples
    --------
    >>> slices((0, 1, 2, 6))
    '0-2, 6'
    >>> slices(())
    'none'
    """
    runs = itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    parts = [[number for _, number in run] for _, run in runs]
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts) or "none"


@functools.cache
def _text_order(name: str) -> tuple[int, int, str]:
    """Small to large by name alone: memory in the name grows with memory slices on every board."""
    parts = ProfileName.parse(name)
    return (parts.memory_gb, parts.compute_slices, name)


def _not_a_layout(value: object) -> str:
    return message(
        "layout",
        f"profiles with counts above 0, each once: '3g.40gb:1,1g.10gb:3', or {WHOLE_GPU!r}, or {OFF!r}",
        repr(value),
        "Mend the layout.",
    )
