"""MIG layouts: positions, text forms, and the proof that a GPU can hold given instances.

Asked for a profile without a place, the driver takes the start that is in the way of the fewest other placements, the
lowest of equals. This rule reproduces every transcript of the MIG User Guide that we know: seven 1g go to 6, 4, 5, 0,
1, 2, 3; three 2g to 4, 0, 2; a pair of 3g fills 4 first; and two 1g and a 2g leave no room for 3g. It is a rule of
thumb for predicting, not part of any proof: drivers may differ, and only an explicit start is certain.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpuplanner.core.errors import GeometryError
from gpuplanner.core.schemas import WHOLE_GPU
from gpuplanner.core.units import counted
from gpuplanner.hardware.gpu_models import RESOURCES, GpuModel, MigProfile, ProfileName, as_board

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


def parse_placements(gpu_model: GpuModel | str, text: str) -> Layout:
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
    gpu_model = as_board(gpu_model)
    placements = []
    for word in text.split():
        name, _, start = word.rpartition("@")
        if not (name and start.isascii() and start.isdecimal()):
            expected = "profile@start, such as '3g.20gb@4'"
            raise GeometryError(f"placement {word!r}", expected, repr(word), "Fix the placement.")
        placements.append(Placement.of(gpu_model.profile(name), int(start)))
    return Layout(tuple(placements))


def layout_faults(gpu_model: GpuModel | str, layout: Layout) -> list[str]:
    """Say what is impossible about a layout: starts, overlaps, maxima, engines. Empty means valid.

    Examples
    --------
    >>> layout_faults("A100-40GB", parse_placements("A100-40GB", "4g.20gb@0 3g.20gb@0"))
    ['4g.20gb@0 and 3g.20gb@0 overlap in memory slices 0-3']
    """
    gpu_model = as_board(gpu_model)
    faults = [
        f"{placement} is no legal start: {placement.profile} may start at {slices(profile.starts)}"
        for placement in layout.placements
        if placement.start not in (profile := gpu_model.profile(placement.profile)).starts
    ]
    for one, other in itertools.combinations(layout.placements, 2):
        shared = one.mask & other.mask
        if shared:
            pair = sorted((one, other), key=lambda p: (p.start, p.profile), reverse=True)
            faults.append(f"{pair[0]} and {pair[1]} overlap in memory slices {slices(bits(shared))}")
    return [*faults, *maximum_faults(gpu_model, layout.counts), *engine_faults(gpu_model, layout.counts)]


def maximum_faults(gpu_model: GpuModel, counts: Mapping[str, int]) -> Iterator[str]:
    """Profiles, by the board's own names, of which there are more than one board can hold."""
    for name, count in counts.items():
        most = gpu_model.profile(name).max_instances
        if count > most:
            yield f"{name} x{count}: {gpu_model.name} holds at most {most}"


def engine_faults(gpu_model: GpuModel, counts: Mapping[str, int]) -> Iterator[str]:
    """Engines (and SMs) of which the instances take more than one board has."""
    for resource, limit in gpu_model.budget.items():
        takers = {name: gpu_model.profile(name).amount(resource) or 0 for name in counts}
        taken = sum(counts[name] * amount for name, amount in takers.items())
        if taken > limit:
            who = " and ".join(f"{name} x{counts[name]}" for name, amount in takers.items() if amount)
            yield f"{who} need {taken} {RESOURCES[resource]}; {gpu_model.name} has {limit}"


def free_slices(gpu_model: GpuModel | str, layout: Layout) -> tuple[int, ...]:
    """Memory slices that no instance occupies, ascending.

    Examples
    --------
    >>> free_slices("A100-40GB", parse_placements("A100-40GB", "4g.20gb@0 2g.10gb@4"))
    (6, 7)
    """
    return bits(((1 << as_board(gpu_model).memory_slices) - 1) & ~layout.mask)


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
        raise _not_a_layout(dict(counts))
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
            raise _not_a_layout(text)
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


def _not_a_layout(value: object) -> GeometryError:
    expected = f"profiles with counts above 0, each once: '3g.40gb:1,1g.10gb:3', or {WHOLE_GPU!r}, or {OFF!r}"
    return GeometryError("layout", expected, repr(value), "Fix the layout.")


@dataclass(frozen=True, slots=True)
class Proof:
    """Answer of :func:`prove`; true in a condition if the instances fit.

    Parameters
    ----------
    ok : bool
        Whether one GPU can hold them.
    layout : Layout or None
        Places for all of them; None if there are none.
    reason : str
        Why not; empty if they fit.
    """

    ok: bool
    layout: Layout | None
    reason: str

    def __bool__(self) -> bool:
        return self.ok


def prove(gpu_model: GpuModel | str, counts: Mapping[str, int]) -> Proof:
    """Find places for instances on one GPU, or the reason why there are none.

    The search is exact. Where several arrangements exist, the one that the driver would most likely make is
    given.

    Parameters
    ----------
    gpu_model : GpuModel or str
        The board.
    counts : mapping of str to int
        Instances of each profile; names of other driver versions are understood. ``{"gpu": 1}`` is a GPU that
        is not cut and needs no places.

    Returns
    -------
    Proof
        With the layout found, or the reason.

    Raises
    ------
    GeometryError
        If the board or a profile is unknown, or a count is not a whole number of at least 0.

    Examples
    --------
    >>> str(prove("A100-40GB", {"3g.20gb": 1, "4g.20gb": 1}).layout)
    '4g.20gb@0 3g.20gb@4'
    >>> prove("A100-40GB", {"1g.10gb": 4, "1g.5gb": 3}).reason
    '1g.10gb x4 (2 memory slices each) and 1g.5gb x3 (1 each) need 11 memory slices; A100-40GB has 8'
    """
    gpu_model = as_board(gpu_model)
    wanted = resolve_counts(gpu_model, counts)
    if WHOLE_GPU in wanted:
        alone = wanted == {WHOLE_GPU: 1}
        return Proof(alone, Layout() if alone else None, "" if alone else _not_cut(wanted))
    for rule in (maximum_faults, _memory_fault, engine_faults):
        faults = "; ".join(rule(gpu_model, wanted))
        if faults:
            return Proof(False, None, faults)
    layout = next(arrangements(gpu_model, wanted), None)
    if layout is None:
        return Proof(False, None, _dead_end(gpu_model, wanted))
    return Proof(True, layout, "")


def arrangements(gpu_model: GpuModel, counts: Mapping[str, int]) -> Iterator[Layout]:
    """Every way to place the instances, likeliest first; maxima and engines are not looked at."""
    wanted = [p for p in gpu_model.profiles for _ in range(counts.get(p.name, 0))]

    def place(index: int, mask: int, last: int) -> Iterator[tuple[Placement, ...]]:
        if index == len(wanted):
            yield ()
            return
        starts = driver_starts(gpu_model, wanted[index])
        # Instances of one profile are alike: the next of them only tries starts behind the last one's.
        first = last + 1 if index and wanted[index - 1] is wanted[index] else 0
        for position in range(first, len(starts)):
            placement = Placement.of(wanted[index], starts[position])
            if not mask & placement.mask:
                for rest in place(index + 1, mask | placement.mask, position):
                    yield (placement, *rest)

    for placements in place(0, 0, -1):
        yield Layout(placements)


def resolve_counts(gpu_model: GpuModel, counts: Mapping[str, int]) -> dict[str, int]:
    """Counts by the board's own names, largest profile first, zeros left out; a whole GPU comes last."""
    found: dict[MigProfile | str, int] = {}
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            expected = "a whole number of at least 0"
            raise GeometryError(f"count of {name}", expected, repr(count), f"Fix it: {name}:1.")
        key = name if name == WHOLE_GPU else gpu_model.profile(name)
        found[key] = found.get(key, 0) + count
    named = {profile.name: found[profile] for profile in gpu_model.profiles if found.get(profile)}
    return named | ({WHOLE_GPU: found[WHOLE_GPU]} if found.get(WHOLE_GPU) else {})


def _not_cut(wanted: Mapping[str, int]) -> str:
    if len(wanted) == 1:
        return f"{wanted[WHOLE_GPU]} full GPUs are not one GPU"
    return "a full GPU (MIG disabled) has no MIG instances"


def _memory_fault(gpu_model: GpuModel, wanted: Mapping[str, int]) -> Iterator[str]:
    sizes = {name: gpu_model.profile(name).memory_slices for name in wanted}
    needed = sum(wanted[name] * size for name, size in sizes.items())
    if needed > gpu_model.memory_slices:
        first, *others = [f"{name} x{wanted[name]} ({size}" for name, size in sizes.items()]
        parts = [f"{first} {'memory slice' if sizes[next(iter(sizes))] == 1 else 'memory slices'} each)"]
        parts += [f"{other} each)" for other in others]
        yield f"{_and(parts)} need {needed} memory slices; {gpu_model.name} has {gpu_model.memory_slices}"


def _dead_end(gpu_model: GpuModel, wanted: Mapping[str, int]) -> str:
    """Name the largest part that can be placed, and the instance that then finds no start in any way."""
    names = [name for name, count in wanted.items() for _ in range(count)]
    placed = Layout()
    length = 1
    while (grown := next(arrangements(gpu_model, Counter(names[:length])), None)) is not None:
        placed, length = grown, length + 1
    profile = gpu_model.profile(names[length - 1])
    size = profile.memory_slices
    return (
        f"with {placed} nothing is left for one more {profile.name}: it needs "
        f"{counted(size, 'memory slice')} from {slices(profile.starts)}, free: "
        f"{slices(free_slices(gpu_model, placed))}; no other arrangement leaves capacity either"
    )


def _and(parts: list[str]) -> str:
    return " and ".join(", ".join(parts).rsplit(", ", 1)) if len(parts) > 1 else parts[0]


@functools.lru_cache(maxsize=1024)
def driver_starts(gpu_model: GpuModel, profile: MigProfile) -> tuple[int, ...]:
    """Start slices of a profile in the order in which the driver tries them.

    Examples
    --------
    >>> gpu_model = as_board("A100-40GB")
    >>> driver_starts(gpu_model, gpu_model.profile("1g.5gb"))
    (6, 4, 5, 0, 1, 2, 3)
    """
    plain = [other for other in gpu_model.profiles if not other.attribute] or gpu_model.profiles
    masks = [Placement.of(other, start).mask for other in plain for start in other.starts]

    def in_the_way(start: int) -> tuple[int, int]:
        own = Placement.of(profile, start).mask
        return (sum(bool(own & mask) for mask in masks), start)

    return tuple(sorted(profile.starts, key=in_the_way))


def place_in_order(gpu_model: GpuModel | str, names: Iterable[str]) -> Layout | None:
    """Predict where instances end up that are created one after another on an empty GPU.

    Returns
    -------
    Layout or None
        None if one of them finds no place.

    Examples
    --------
    >>> str(place_in_order("A100-40GB", ["3g.20gb", "1g.5gb", "2g.10gb", "1g.5gb"]))
    '1g.5gb@0 1g.5gb@1 2g.10gb@2 3g.20gb@4'
    >>> place_in_order("A100-40GB", ["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"]) is None
    True
    """
    gpu_model = as_board(gpu_model)
    layout = Layout()
    for name in names:
        profile = gpu_model.profile(name)
        places = (Placement.of(profile, start) for start in driver_starts(gpu_model, profile))
        place = next((place for place in places if not place.mask & layout.mask), None)
        if place is None:
            return None
        layout = Layout((*layout.placements, place))
    return layout


def creation_order(gpu_model: GpuModel | str, counts: Mapping[str, int]) -> tuple[str, ...] | None:
    """Order of creation in which the driver, choosing the places, finds one for every instance.

    Parameters
    ----------
    gpu_model : GpuModel or str
        The board.
    counts : mapping of str to int
        Instances of each profile.

    Returns
    -------
    tuple of str or None
        Largest profiles first: this works for everything that fits on a board of the catalogue. None if it
        does not work here; then give explicit starts.

    Examples
    --------
    >>> creation_order("A100-40GB", {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1})
    ('3g.20gb', '2g.10gb', '1g.5gb', '1g.5gb')
    """
    gpu_model = as_board(gpu_model)
    by_size = sorted(counts, key=lambda name: gpu_model.profile(name).size_order, reverse=True)
    names = tuple(gpu_model.profile(name).name for name in by_size for _ in range(counts[name]))
    return names if place_in_order(gpu_model, names) is not None else None
