"""MIG layouts: placements, text forms, and the proof that a GPU can hold given instances.

Without a start, the driver places an instance where it blocks the fewest other placements, at the lowest of equal
starts. This rule reproduces the transcripts in the MIG User Guide: seven 1g go to 6, 4, 5, 0, 1, 2, 3; three 2g to 4,
0, 2; the first of two 3g to 4; and two 1g with a 2g block 3g. It is a prediction and not part of any proof: drivers may
differ, and only an explicit start is certain.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpuplanner.core.errors import GeometryError
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.units_and_number_formats import count_text
from gpuplanner.hardware.gpu_models import LABEL_BY_RESOURCE, GpuModel, MigProfile, ProfileName, as_gpu_model

UNUSED_LAYOUT = "off"
"""Layout text of a GPU that a plan does not need."""


@dataclass(frozen=True, slots=True, order=True)
class Placement:
    """One MIG instance of a profile on memory slices ``start`` to ``start + size - 1``."""

    start: int
    size: int
    profile: str

    @classmethod
    def at_start(cls, profile: MigProfile, start: int) -> Placement:
        """Make the placement of an instance of a profile at a start slice."""
        return cls(start, profile.memory_slices, profile.name)

    @property
    def mask(self) -> int:
        """Memory slices that the instance occupies, as a bit mask."""
        return ((1 << self.size) - 1) << self.start

    def __str__(self) -> str:
        """Format as ``profile@start``."""
        return f"{self.profile}@{self.start}"


@dataclass(frozen=True, slots=True)
class Layout:
    """MIG instances on one GPU with their start slices, sorted by start; not checked for feasibility.

    Examples
    --------
    >>> layout = parse_placements("A100-40GB", "3g.20gb@4 4g.20gb@0")
    >>> str(layout), layout.counts_text
    ('4g.20gb@0 3g.20gb@4', '4g.20gb:1,3g.20gb:1')
    """

    placements: tuple[Placement, ...] = ()

    def __post_init__(self) -> None:
        """Sort the placements."""
        object.__setattr__(self, "placements", tuple(sorted(self.placements)))

    def __str__(self) -> str:
        """Format the placements, separated by blanks."""
        return " ".join(map(str, self.placements))

    @property
    def counts(self) -> dict[str, int]:
        """Number of instances by profile, largest profile first."""
        counts = Counter(placement.profile for placement in self.placements)
        return {name: counts[name] for name in sorted(counts, key=_profile_text_order, reverse=True)}

    @property
    def counts_text(self) -> str:
        """Layout text without placements, such as ``3g.20gb:2``, largest profile first."""
        return format_layout(self.counts)

    @property
    def mask(self) -> int:
        """Memory slices that any instance occupies, as a bit mask."""
        return sum(placement.mask for placement in self.placements)


def parse_placements(gpu_model: GpuModel | str, text: str) -> Layout:
    """Parse ``"3g.20gb@4 4g.20gb@0"``, the text form of a layout with placements.

    Raises
    ------
    GeometryError
        If a word is not ``profile@start`` or the profile is unknown. Feasibility is checked by
        :func:`find_layout_faults`.

    Examples
    --------
    >>> parse_placements("A30", "2g.12gb@2").placements
    (Placement(start=2, size=2, profile='2g.12gb'),)
    """
    gpu_model = as_gpu_model(gpu_model)
    placements = []
    for word in text.split():
        name, _, start = word.rpartition("@")
        if not (name and start.isascii() and start.isdecimal()):
            expected = "profile@start, such as '3g.20gb@4'"
            raise GeometryError(f"placement {word!r}", expected, repr(word), "Fix the placement.")
        placements.append(Placement.at_start(gpu_model.profile(name), int(start)))
    return Layout(tuple(placements))


def find_layout_faults(gpu_model: GpuModel | str, layout: Layout) -> list[str]:
    """List the faults of a layout: starts, overlaps, maxima, engines. Empty means feasible.

    Examples
    --------
    >>> find_layout_faults("A100-40GB", parse_placements("A100-40GB", "4g.20gb@0 3g.20gb@0"))
    ['4g.20gb@0 and 3g.20gb@0 overlap in memory slices 0-3']
    """
    gpu_model = as_gpu_model(gpu_model)
    faults = [
        f"{placement} is no legal start: {placement.profile} may start at {format_slices(profile.starts)}"
        for placement in layout.placements
        if placement.start not in (profile := gpu_model.profile(placement.profile)).starts
    ]
    for first, second in itertools.combinations(layout.placements, 2):
        shared = first.mask & second.mask
        if shared:
            pair = sorted((first, second), key=lambda p: (p.start, p.profile), reverse=True)
            faults.append(f"{pair[0]} and {pair[1]} overlap in memory slices {format_slices(list_set_bits(shared))}")
    return [*faults, *find_maximum_faults(gpu_model, layout.counts), *find_engine_faults(gpu_model, layout.counts)]


def find_maximum_faults(gpu_model: GpuModel, counts: Mapping[str, int]) -> Iterator[str]:
    """Yield a fault for each profile of which there are more instances than one GPU can hold."""
    for name, count in counts.items():
        max_instances = gpu_model.profile(name).max_instances
        if count > max_instances:
            yield f"{name} x{count}: {gpu_model.name} holds at most {max_instances}"


def find_engine_faults(gpu_model: GpuModel, counts: Mapping[str, int]) -> Iterator[str]:
    """Yield a fault for each resource (engines and SMs) of which the instances take more than one GPU has."""
    for resource, limit in gpu_model.budget.items():
        amounts = {name: gpu_model.profile(name).amount(resource) or 0 for name in counts}
        needed = sum(counts[name] * amount for name, amount in amounts.items())
        if needed > limit:
            users = " and ".join(f"{name} x{counts[name]}" for name, amount in amounts.items() if amount)
            yield f"{users} need {needed} {LABEL_BY_RESOURCE[resource]}; {gpu_model.name} has {limit}"


def find_free_slices(gpu_model: GpuModel | str, layout: Layout) -> tuple[int, ...]:
    """List the memory slices that no instance occupies, ascending.

    Examples
    --------
    >>> find_free_slices("A100-40GB", parse_placements("A100-40GB", "4g.20gb@0 2g.10gb@4"))
    (6, 7)
    """
    return list_set_bits(((1 << as_gpu_model(gpu_model).memory_slices) - 1) & ~layout.mask)


def format_layout(counts: Mapping[str, int]) -> str:
    """Format profile counts as canonical text: largest first, without zero counts.

    ``{"gpu": 1}`` is a full GPU with MIG disabled; empty counts are a GPU that is not needed.

    Raises
    ------
    GeometryError
        If a name is no profile name, a count is negative, or a full GPU is combined with instances.

    Examples
    --------
    >>> format_layout({"1g.10gb": 2, "3g.40gb": 1, "2g.20gb": 1})
    '3g.40gb:1,2g.20gb:1,1g.10gb:2'
    >>> format_layout({"gpu": 1}), format_layout({})
    ('gpu', 'off')
    """
    nonzero = {name: count for name, count in counts.items() if count != 0}
    if nonzero == {FULL_GPU: 1}:
        return FULL_GPU
    names = {name: str(ProfileName.parse_name(name)) for name in nonzero if name != FULL_GPU}
    if len(names) < len(nonzero) or len(set(names.values())) < len(names) or min(nonzero.values(), default=0) < 0:
        raise _make_layout_error(dict(counts))
    ordered = sorted(names, key=lambda name: _profile_text_order(names[name]), reverse=True)
    return ",".join(f"{names[name]}:{nonzero[name]}" for name in ordered) or UNUSED_LAYOUT


def parse_layout(text: str) -> dict[str, int]:
    """Parse layout text into profile counts, in canonical order.

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
    return dict(_parse_layout_text(text))


@functools.lru_cache(maxsize=4096)
def _parse_layout_text(text: str) -> tuple[tuple[str, int], ...]:
    """Parse layout text into pairs of profile and count; cached."""
    stripped = text.strip()
    if stripped == FULL_GPU:
        return ((FULL_GPU, 1),)
    if stripped == UNUSED_LAYOUT:
        return ()
    counts: dict[str, int] = {}
    for part in stripped.split(","):
        name, _, count = part.strip().rpartition(":")
        profile = str(ProfileName.parse_name(name)) if name else ""
        if not (profile and count.isascii() and count.isdecimal() and int(count)) or profile in counts:
            raise _make_layout_error(text)
        counts[profile] = int(count)
    return tuple((name, counts[name]) for name in sorted(counts, key=_profile_text_order, reverse=True))


def list_set_bits(mask: int) -> tuple[int, ...]:
    """List the positions of the set bits, such as the memory slices of a mask, from 0 for the lowest bit, ascending.

    Examples
    --------
    >>> list_set_bits(0b1011)
    (0, 1, 3)
    """
    return tuple(position for position in range(mask.bit_length()) if mask >> position & 1)


def format_slices(numbers: tuple[int, ...]) -> str:
    """Format memory slice numbers as text, consecutive ones as a range.

    Examples
    --------
    >>> format_slices((0, 1, 2, 6))
    '0-2, 6'
    >>> format_slices(())
    'none'
    """
    runs = itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    parts = [[number for _, number in run] for _, run in runs]
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts) or "none"


@functools.cache
def _profile_text_order(name: str) -> tuple[int, int, str]:
    """Sort key of profile names: memory, compute slices, name.

    The memory in the name grows with the memory slices on every GPU model, so that no GPU model is needed.
    """
    parts = ProfileName.parse_name(name)
    return (parts.memory_gb, parts.compute_slices, name)


def _make_layout_error(value: object) -> GeometryError:
    """Make the error of a value that is not a layout."""
    expected = f"profiles with counts above 0, each once: '3g.40gb:1,1g.10gb:3', or {FULL_GPU!r}, or {UNUSED_LAYOUT!r}"
    return GeometryError("layout", expected, repr(value), "Fix the layout.")


@dataclass(frozen=True, slots=True)
class LayoutProof:
    """Result of :func:`prove`, whether one GPU can hold given instances; true in a condition if it can.

    Parameters
    ----------
    ok : bool
        Whether one GPU can hold the instances.
    layout : Layout or None
        Placements of all instances; None if there are none.
    reason : str
        Reason why they do not fit; empty if they fit.
    """

    ok: bool
    layout: Layout | None
    reason: str

    def __bool__(self) -> bool:
        """Whether the instances fit."""
        return self.ok


def prove(gpu_model: GpuModel | str, counts: Mapping[str, int]) -> LayoutProof:
    """Prove that one GPU can hold given MIG instances, or give the reason why not.

    The search is exact. Among several arrangements it returns the one that the driver would most likely make.

    Parameters
    ----------
    gpu_model : GpuModel or str
        The GPU model.
    counts : mapping of str to int
        Number of instances by profile; names of other driver versions are accepted. ``{"gpu": 1}`` is a full GPU with
        MIG disabled, which needs no placements.

    Returns
    -------
    LayoutProof
        With a layout, or the reason.

    Raises
    ------
    GeometryError
        If the model or a profile is unknown, or a count is not a whole number of at least 0.

    Examples
    --------
    >>> str(prove("A100-40GB", {"3g.20gb": 1, "4g.20gb": 1}).layout)
    '4g.20gb@0 3g.20gb@4'
    >>> prove("A100-40GB", {"1g.10gb": 4, "1g.5gb": 3}).reason
    '1g.10gb x4 (2 memory slices each) and 1g.5gb x3 (1 each) need 11 memory slices; A100-40GB has 8'
    """
    gpu_model = as_gpu_model(gpu_model)
    instances = resolve_counts(gpu_model, counts)
    if FULL_GPU in instances:
        if instances == {FULL_GPU: 1}:
            return LayoutProof(True, Layout(), "")
        fault = "a full GPU (MIG disabled) has no MIG instances"
        if len(instances) == 1:
            fault = f"{instances[FULL_GPU]} full GPUs are not one GPU"
        return LayoutProof(False, None, fault)
    for rule in (find_maximum_faults, _find_memory_fault, find_engine_faults):
        faults = "; ".join(rule(gpu_model, instances))
        if faults:
            return LayoutProof(False, None, faults)
    layout = next(iterate_arrangements(gpu_model, instances), None)
    if layout is None:
        return LayoutProof(False, None, _describe_dead_end(gpu_model, instances))
    return LayoutProof(True, layout, "")


def iterate_arrangements(gpu_model: GpuModel, counts: Mapping[str, int]) -> Iterator[Layout]:
    """Yield every placement of the instances, likeliest first; maxima and engines are not checked."""
    profiles = [p for p in gpu_model.profiles for _ in range(counts.get(p.name, 0))]

    def place_from(index: int, mask: int, last: int) -> Iterator[tuple[Placement, ...]]:
        """Yield placements of instance number `index` and the next ones on memory slices outside the bit mask.

        `last` is the position of the previous instance among the starts of its profile.
        """
        if index == len(profiles):
            yield ()
            return
        starts = order_driver_starts(gpu_model, profiles[index])
        # Instances of one profile are alike: the next of them only tries starts behind the last one's.
        first = last + 1 if index and profiles[index - 1] is profiles[index] else 0
        for position in range(first, len(starts)):
            placement = Placement.at_start(profiles[index], starts[position])
            if not mask & placement.mask:
                for tail in place_from(index + 1, mask | placement.mask, position):
                    yield (placement, *tail)

    for placements in place_from(0, 0, -1):
        yield Layout(placements)


def resolve_counts(gpu_model: GpuModel, counts: Mapping[str, int]) -> dict[str, int]:
    """Convert counts to the profile names of the GPU model, largest first, without zeros; full GPUs come last."""
    counts_by_profile: dict[MigProfile | str, int] = {}
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise GeometryError(f"count of {name}", "a whole number of at least 0", repr(count), f"Fix it: {name}:1.")
        key = name if name == FULL_GPU else gpu_model.profile(name)
        counts_by_profile[key] = counts_by_profile.get(key, 0) + count
    counts_by_name = {
        profile.name: counts_by_profile[profile] for profile in gpu_model.profiles if counts_by_profile.get(profile)
    }
    return counts_by_name | ({FULL_GPU: counts_by_profile[FULL_GPU]} if counts_by_profile.get(FULL_GPU) else {})


def _find_memory_fault(gpu_model: GpuModel, instances: Mapping[str, int]) -> Iterator[str]:
    """Yield a fault if the instances take more memory slices than one GPU has."""
    sizes = {name: gpu_model.profile(name).memory_slices for name in instances}
    needed = sum(instances[name] * size for name, size in sizes.items())
    if needed > gpu_model.memory_slices:
        first_text, *other_texts = [f"{name} x{instances[name]} ({size}" for name, size in sizes.items()]
        parts = [f"{first_text} {'memory slice' if sizes[next(iter(sizes))] == 1 else 'memory slices'} each)"]
        parts += [f"{other_text} each)" for other_text in other_texts]
        yield f"{_join_with_and(parts)} need {needed} memory slices; {gpu_model.name} has {gpu_model.memory_slices}"


def _describe_dead_end(gpu_model: GpuModel, instances: Mapping[str, int]) -> str:
    """Describe the instances that fit, placed largest first, and the next one, for which no arrangement has a start."""
    names = [name for name, count in instances.items() for _ in range(count)]
    placed = Layout()
    length = 1
    while (extended := next(iterate_arrangements(gpu_model, Counter(names[:length])), None)) is not None:
        placed, length = extended, length + 1
    profile = gpu_model.profile(names[length - 1])
    size = profile.memory_slices
    return (
        f"with {placed} nothing is left for one more {profile.name}: it needs "
        f"{count_text(size, 'memory slice')} from {format_slices(profile.starts)}, free: "
        f"{format_slices(find_free_slices(gpu_model, placed))}; no other arrangement leaves capacity either"
    )


def _join_with_and(parts: list[str]) -> str:
    """Join texts with commas and a final "and"."""
    return " and ".join(", ".join(parts).rsplit(", ", 1)) if len(parts) > 1 else parts[0]


@functools.lru_cache(maxsize=1024)
def order_driver_starts(gpu_model: GpuModel, profile: MigProfile) -> tuple[int, ...]:
    """List the start slices of a profile in the order in which the driver tries them.

    Examples
    --------
    >>> gpu_model = as_gpu_model("A100-40GB")
    >>> order_driver_starts(gpu_model, gpu_model.profile("1g.5gb"))
    (6, 4, 5, 0, 1, 2, 3)
    """
    plain = [plain_profile for plain_profile in gpu_model.profiles if not plain_profile.attribute] or gpu_model.profiles
    masks = [Placement.at_start(plain_profile, start).mask for plain_profile in plain for start in plain_profile.starts]

    def in_the_way(start: int) -> tuple[int, int]:
        """Sort key of a start: the number of placements that it blocks, then the slice."""
        own_mask = Placement.at_start(profile, start).mask
        return (sum(bool(own_mask & mask) for mask in masks), start)

    return tuple(sorted(profile.starts, key=in_the_way))


def place_as_created(gpu_model: GpuModel | str, names: Iterable[str]) -> Layout | None:
    """Predict the layout of instances that are created one after another on an empty GPU.

    Returns
    -------
    Layout or None
        None if one of them does not fit.

    Examples
    --------
    >>> str(place_as_created("A100-40GB", ["3g.20gb", "1g.5gb", "2g.10gb", "1g.5gb"]))
    '1g.5gb@0 1g.5gb@1 2g.10gb@2 3g.20gb@4'
    >>> place_as_created("A100-40GB", ["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"]) is None
    True
    """
    gpu_model = as_gpu_model(gpu_model)
    layout = Layout()
    for name in names:
        profile = gpu_model.profile(name)
        candidates = (Placement.at_start(profile, start) for start in order_driver_starts(gpu_model, profile))
        placement = next((placement for placement in candidates if not placement.mask & layout.mask), None)
        if placement is None:
            return None
        layout = Layout((*layout.placements, placement))
    return layout


def find_creation_order(gpu_model: GpuModel | str, counts: Mapping[str, int]) -> tuple[str, ...] | None:
    """Find an order of creation in which the driver places every instance by itself.

    Parameters
    ----------
    gpu_model : GpuModel or str
        The GPU model.
    counts : mapping of str to int
        Number of instances by profile.

    Returns
    -------
    tuple of str or None
        Largest profiles first, which works for all feasible counts on models of the catalogue; None if it fails, in
        which case give explicit starts.

    Examples
    --------
    >>> find_creation_order("A100-40GB", {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1})
    ('3g.20gb', '2g.10gb', '1g.5gb', '1g.5gb')
    """
    gpu_model = as_gpu_model(gpu_model)
    by_size = sorted(counts, key=lambda name: gpu_model.profile(name).size_order, reverse=True)
    names = tuple(gpu_model.profile(name).name for name in by_size for _ in range(counts[name]))
    return names if place_as_created(gpu_model, names) is not None else None
