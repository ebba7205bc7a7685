"""Enumeration of the MIG layouts of a GPU model, and the fewest GPUs that hold given instances.

A set of placements is a layout if memory intervals are disjoint, no profile exceeds its maximum, and engines and SMs
stay within those of the full-size profile. It is *maximal* if no further instance of the given profiles can be added.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter, le

import polars as pl

from gpuplanner.core.errors import GeometryError, examples
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.hardware.gpu_models import GpuModel, MigProfile, as_gpu_model
from gpuplanner.hardware.mig_layouts import (
    Layout,
    Placement,
    find_creation_order,
    find_free_slices,
    find_layout_faults,
    format_layout,
    parse_layout,
    place_as_created,
    prove,
    resolve_counts,
)

MAX_LAYOUTS_PER_GPU_MODEL = 200_000
"""Largest number of layouts of one GPU model that is enumerated; name fewer profiles to stay below."""
LAYOUTS_BY_COUNTS_SCHEMA = {
    "layout": pl.String,
    **dict.fromkeys(("instances", "free_slices", "placed"), pl.Int64),
    "driver": pl.String,
}
"""Column → polars type of :attr:`LayoutList.by_counts`, which has one row for each maximal combination of profile
counts."""

PLACED_LAYOUTS_SCHEMA = {"layout": pl.String, "places": pl.String}
"""Column → polars type of :attr:`LayoutList.placed`, which has one row for each maximal layout with start slices."""


def list_placed_layouts(
    gpu_model: GpuModel | str, profiles: Iterable[str] | None = None, *, maximal: bool = False
) -> tuple[Layout, ...]:
    """List every way to place instances on one GPU, without the empty layout.

    Parameters
    ----------
    gpu_model : GpuModel or str
        The GPU model.
    profiles : iterable of str, optional
        Only these profiles; all of the model if None.
    maximal : bool
        Only layouts to which nothing can be added.

    Returns
    -------
    tuple of Layout
        Sorted by placements.

    Raises
    ------
    GeometryError
        If the model or a profile is unknown, or there are more than :data:`MAX_LAYOUTS_PER_GPU_MODEL`.

    Examples
    --------
    >>> [str(layout) for layout in list_placed_layouts("A30", ["2g.12gb", "4g.24gb"], maximal=True)]
    ['2g.12gb@0 2g.12gb@2', '4g.24gb@0']
    """
    all_layouts, maximal_layouts = _enumerate_layouts(*_select_profiles(gpu_model, profiles))
    return maximal_layouts if maximal else all_layouts


def list_profile_counts(
    gpu_model: GpuModel | str, profiles: Iterable[str] | None = None, *, maximal: bool = False
) -> list[dict[str, int]]:
    """List the profile counts that one GPU can hold, regardless of placement.

    Parameters
    ----------
    gpu_model, profiles
        As for :func:`list_placed_layouts`.
    maximal : bool
        Only counts of maximal placed layouts. Another placement may still allow more instances; for counts that no
        placement extends, see :func:`list_pareto_counts`.

    Returns
    -------
    list of dict
        Number of instances by profile; largest profiles first, in each and in the list.

    Examples
    --------
    >>> list_profile_counts("A30", ["2g.12gb", "4g.24gb"])
    [{'4g.24gb': 1}, {'2g.12gb': 2}, {'2g.12gb': 1}]
    """
    gpu_model, selected = _select_profiles(gpu_model, profiles)
    vectors = _count_vectors(gpu_model, selected)[1 if maximal else 0]
    return [_counts_of_vector(selected, vector) for vector in vectors]


def count_layouts(gpu_model: GpuModel | str, profiles: Iterable[str] | None = None) -> dict[str, int]:
    """Count a GPU model's layouts with start slices (placed) and as profile counts (multisets), all and maximal.

    Examples
    --------
    >>> count_layouts("A100-40GB", ["1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"])
    {'placed': 297, 'placed_maximal': 19, 'multisets': 37, 'multisets_maximal': 14}
    """
    gpu_model, selected = _select_profiles(gpu_model, profiles)
    all_layouts, maximal_layouts = _enumerate_layouts(gpu_model, selected)
    vectors, largest_vectors = _count_vectors(gpu_model, selected)
    return {
        "placed": len(all_layouts),
        "placed_maximal": len(maximal_layouts),
        "multisets": len(vectors),
        "multisets_maximal": len(largest_vectors),
    }


def list_pareto_counts(gpu_model: GpuModel | str, profiles: Iterable[str] | None = None) -> list[dict[str, int]]:
    """List the profile counts of one GPU that no other feasible count dominates.

    Every feasible count is part of one of these, so a planner needs no others.

    Returns
    -------
    list of dict
        Number of instances by profile; largest profiles first, in each and in the list.

    Examples
    --------
    >>> list_pareto_counts("A30", ["1g.6gb", "2g.12gb"])
    [{'2g.12gb': 2}, {'2g.12gb': 1, '1g.6gb': 2}, {'1g.6gb': 4}]
    """
    gpu_model, selected = _select_profiles(gpu_model, profiles)
    vectors = _count_vectors(gpu_model, selected)[1]

    def is_dominated(vector: tuple[int, ...]) -> bool:
        """Whether another count has at least as many instances of each profile."""
        return any(larger != vector and all(map(le, vector, larger)) for larger in vectors)

    return [_counts_of_vector(selected, vector) for vector in vectors if not is_dominated(vector)]


def _select_profiles(
    gpu_model: GpuModel | str, profiles: Iterable[str] | None
) -> tuple[GpuModel, tuple[MigProfile, ...]]:
    """Return the GPU model and the named profiles of it, each once, largest first."""
    model = as_gpu_model(gpu_model)
    selected = set(model.profiles) if profiles is None else {model.profile(name) for name in profiles}
    return model, tuple(profile for profile in model.profiles if profile in selected)


def _counts_of_vector(profiles: tuple[MigProfile, ...], vector: tuple[int, ...]) -> dict[str, int]:
    """Convert counts in the order of `profiles` to a mapping of profile name to count, without zeros."""
    return {profile.name: count for profile, count in zip(profiles, vector, strict=True) if count}


@functools.lru_cache(maxsize=256)
def _count_vectors(
    gpu_model: GpuModel, profiles: tuple[MigProfile, ...]
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """List the distinct profile counts, in the order of `profiles`, of all and of the maximal layouts; descending."""
    names = [profile.name for profile in profiles]
    all_vectors, maximal_vectors = (
        tuple(sorted({tuple(map(_profile_names_of(layout).count, names)) for layout in layouts}, reverse=True))
        for layouts in _enumerate_layouts(gpu_model, profiles)
    )
    return all_vectors, maximal_vectors


def _profile_names_of(layout: Layout) -> list[str]:
    """List the profile of each placement of a layout."""
    return [placement.profile for placement in layout.placements]


@functools.lru_cache(maxsize=256)
def _enumerate_layouts(
    gpu_model: GpuModel, profiles: tuple[MigProfile, ...]
) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
    """Enumerate all layouts of the given profiles on one GPU, and the maximal ones; each sorted by placements."""
    search = _LayoutSearch(gpu_model, profiles)
    all_layouts: list[Layout] = []
    maximal_layouts: list[Layout] = []
    for layout, is_maximal in search.iterate_extensions(0, ()):
        if len(all_layouts) >= MAX_LAYOUTS_PER_GPU_MODEL:
            subject = f"layouts of {gpu_model.name} with {len(profiles)} profiles"
            raise GeometryError(subject, f"at most {MAX_LAYOUTS_PER_GPU_MODEL}", "more", "Name fewer profiles.")
        all_layouts.append(layout)
        if is_maximal:
            maximal_layouts.append(layout)
    sort_key = attrgetter("placements")
    return tuple(sorted(all_layouts, key=sort_key)), tuple(sorted(maximal_layouts, key=sort_key))


class _LayoutSearch:
    """Depth-first search for the MIG layouts of one GPU, by adding instances from memory slice 0 upwards.

    So each set of disjoint memory intervals occurs once.
    """

    def __init__(self, gpu_model: GpuModel, profiles: tuple[MigProfile, ...]) -> None:
        """Start the search on an empty GPU."""
        resources = tuple(gpu_model.budget)
        self.choices = [
            (placement, placement.mask, index)
            for index, profile in enumerate(profiles)
            for placement in (Placement.at_start(profile, start) for start in profile.starts)
        ]
        self.resource_use = [tuple(profile.amount(name) or 0 for name in resources) for profile in profiles]
        self.remaining_instances = [profile.max_instances for profile in profiles]
        self.spare_resources = [gpu_model.budget[name] for name in resources]
        self.mask = 0

    def iterate_extensions(self, lowest: int, placed: tuple[Placement, ...]) -> Iterator[tuple[Layout, bool]]:
        """Yield each layout that extends `placed` at or above memory slice `lowest`, and whether it is maximal."""
        for placement, mask, index in self.choices:
            if placement.start < lowest or not self._can_add(mask, index):
                continue
            extended = (*placed, placement)
            self._add_or_remove_placement(mask, index, +1)
            yield Layout(extended), not any(self._can_add(mask, index) for _, mask, index in self.choices)
            yield from self.iterate_extensions(placement.start + placement.size, extended)
            self._add_or_remove_placement(mask, index, -1)

    def _can_add(self, mask: int, index: int) -> bool:
        """Whether profile number `index` can be added on the memory slices of the bit mask `mask`.

        Free slices, the maximum of the profile and the remaining engines must allow it.
        """
        return (
            not self.mask & mask
            and self.remaining_instances[index] > 0
            and all(map(le, self.resource_use[index], self.spare_resources))
        )

    def _add_or_remove_placement(self, mask: int, index: int, sign: int) -> None:
        """Add (`sign` 1) or remove (-1) an instance of profile number `index` on the slices of `mask`."""
        self.mask ^= mask
        self.remaining_instances[index] -= sign
        for position, amount in enumerate(self.resource_use[index]):
            self.spare_resources[position] -= sign * amount


@dataclass(frozen=True, eq=False)
class LayoutList:
    """Maximal layouts of a GPU model.

    Parameters
    ----------
    by_counts : polars.DataFrame
        ``layout`` (text without placements), numbers of ``instances``, of memory slices in no instance
        (``free_slices``) and of placements (``placed``), and ``driver``: where the driver places the instances on an
        empty GPU if they are created largest first without a start slice; null if one of them would not fit.
    placed : polars.DataFrame
        ``layout`` (text without placements) and ``places`` (instances with start slices): one row for each placement.
    """

    by_counts: pl.DataFrame
    placed: pl.DataFrame


def list_layouts(
    gpu_model: GpuModel | str, profiles: Iterable[str] | None = None, *, fixed_layout: Layout | None = None
) -> LayoutList:
    """List the maximal layouts of a GPU model, largest profiles first.

    Parameters
    ----------
    gpu_model : GpuModel or str
        The GPU model.
    profiles : iterable of str, optional
        Only these profiles; all of the model if None.
    fixed_layout : Layout, optional
        Instances that cannot move: only layouts that contain them are listed.

    Returns
    -------
    LayoutList
        By profile counts, and by placement.

    Raises
    ------
    GeometryError
        If the model or a profile is unknown, the fixed instances are impossible, or there are too many layouts.

    Examples
    --------
    >>> from gpuplanner.hardware.mig_layouts import parse_placements
    >>> found = list_layouts("A30", ["2g.12gb", "4g.24gb"])
    >>> found.by_counts.select("layout", "driver").rows()
    [('4g.24gb:1', '4g.24gb@0'), ('2g.12gb:2', '2g.12gb@0 2g.12gb@2')]
    >>> classic = ["1g.6gb", "2g.12gb", "4g.24gb"]
    >>> list_layouts("A30", classic, fixed_layout=parse_placements("A30", "1g.6gb@1")).placed["places"].to_list()
    ['1g.6gb@0 1g.6gb@1 2g.12gb@2', '1g.6gb@0 1g.6gb@1 1g.6gb@2 1g.6gb@3']
    """
    gpu_model = as_gpu_model(gpu_model)
    fixed = fixed_layout or Layout()
    faults = find_layout_faults(gpu_model, fixed)
    if faults:
        expected = f"one that {gpu_model.name} can hold"
        raise GeometryError(f"layout {str(fixed)!r}", expected, examples(faults), "Fix the layout.")
    profile_names = None if profiles is None else tuple(profiles)
    fixed_placements = set(fixed.placements)
    placed_by_text: dict[str, list[Layout]] = {}
    for layout in list_placed_layouts(gpu_model, profile_names, maximal=True):
        if fixed_placements <= set(layout.placements):
            placed_by_text.setdefault(layout.counts_text, []).append(layout)
    counts = {
        format_layout(counts_of_layout): counts_of_layout
        for counts_of_layout in list_profile_counts(gpu_model, profile_names, maximal=True)
    }
    rows = []
    for text, counts_of_layout in counts.items():
        if text in placed_by_text:
            order = find_creation_order(gpu_model, counts_of_layout)
            driver = None if order is None else str(place_as_created(gpu_model, order))
            n_free = len(find_free_slices(gpu_model, placed_by_text[text][0]))
            rows.append((text, sum(counts_of_layout.values()), n_free, len(placed_by_text[text]), driver))
    placed = [(text, str(layout)) for text, *_ in rows for layout in placed_by_text[text]]
    by_counts = pl.DataFrame(rows, schema=LAYOUTS_BY_COUNTS_SCHEMA, orient="row")
    return LayoutList(by_counts, pl.DataFrame(placed, schema=PLACED_LAYOUTS_SCHEMA, orient="row"))


def make_placement_table(gpu_model: GpuModel | str, layouts: Iterable[str]) -> pl.DataFrame:
    """Make a table of the placements of layouts, one row per instance; full GPUs have none.

    Examples
    --------
    >>> make_placement_table("A100-40GB", ["3g.20gb:1,2g.10gb:1", "gpu"]).rows()
    [('3g.20gb:1,2g.10gb:1', '2g.10gb', 0, 2), ('3g.20gb:1,2g.10gb:1', '3g.20gb', 4, 4)]
    """
    model = as_gpu_model(gpu_model)
    rows = []
    for text in layouts:
        proof = prove(model, parse_layout(text))
        if proof.layout is None:
            raise GeometryError(f"layout {text!r}", f"one of {model.name}", proof.reason, "Fix it.")
        rows += [(text, placement.profile, placement.start, placement.size) for placement in proof.layout.placements]
    schema = {"layout": pl.String, "profile": pl.String, "start": pl.Int64, "size": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


MAX_GPUS_IN_FEWEST_GPUS_SEARCH = 64
"""Largest number of GPUs that :func:`find_fewest_gpus` tries."""


def spread_over_gpus(gpu_model: GpuModel | str, counts: Mapping[str, int], gpus: int) -> list[dict[str, int]] | None:
    """Distribute instances over a number of GPUs.

    The search is exact: for the GPU that takes the largest remaining instance, it tries every undominated count.

    Parameters
    ----------
    gpu_model : GpuModel or str
        The GPU model.
    counts : mapping of str to int
        Number of instances by profile; ``"gpu"`` counts full GPUs with MIG disabled.
    gpus : int
        Number of available GPUs.

    Returns
    -------
    list of dict or None
        Counts of each GPU used; None if the instances do not fit.

    Raises
    ------
    GeometryError
        If the model or a profile is unknown, or a count is not a whole number of at least 0.

    Examples
    --------
    >>> spread_over_gpus("A100-40GB", {"4g.20gb": 2, "3g.20gb": 1, "2g.10gb": 1, "1g.5gb": 1}, 2)
    [{'4g.20gb': 1, '3g.20gb': 1}, {'4g.20gb': 1, '2g.10gb': 1, '1g.5gb': 1}]
    >>> spread_over_gpus("A100-40GB", {"7g.40gb": 2, "gpu": 1}, 2) is None
    True
    """
    gpu_model = as_gpu_model(gpu_model)
    instances = resolve_counts(gpu_model, counts)
    full_gpus = instances.pop(FULL_GPU, 0)
    names = list(instances)
    largest_layouts = list_pareto_counts(gpu_model, names) if names else []
    vectors = [tuple(layout.get(name, 0) for name in names) for layout in largest_layouts]
    sizes = [gpu_model.profile(name).memory_slices for name in names]

    @functools.cache
    def fill(remaining: tuple[int, ...], free_gpus: int) -> tuple[tuple[int, ...], ...] | None:
        """Distribute the remaining instances over the free GPUs; None if they do not fit."""
        if not any(remaining):
            return ()
        if sum(map(int.__mul__, remaining, sizes)) > free_gpus * gpu_model.memory_slices:
            return None
        largest = next(index for index, count in enumerate(remaining) if count)
        # Each GPU takes what it can of what is left; dict.fromkeys drops repeats and keeps the order.
        candidates = dict.fromkeys(tuple(map(min, vector, remaining)) for vector in vectors if vector[largest])
        for candidate in candidates:
            other_gpus = fill(tuple(map(int.__sub__, remaining, candidate)), free_gpus - 1)
            if other_gpus is not None:
                return (candidate, *other_gpus)
        return None

    partitioned_gpus = fill(tuple(instances.values()), gpus - full_gpus) if gpus >= full_gpus else None
    if partitioned_gpus is None:
        return None
    partitioned = [{name: count for name, count in zip(names, take, strict=True) if count} for take in partitioned_gpus]
    return [*partitioned, *({FULL_GPU: 1} for _ in range(full_gpus))]


def find_fewest_gpus(gpu_model: GpuModel | str, counts: Mapping[str, int]) -> list[dict[str, int]] | None:
    """Find the fewest GPUs that hold given instances, and the counts of each.

    Parameters
    ----------
    gpu_model : GpuModel or str
        The GPU model.
    counts : mapping of str to int
        Number of instances by profile.

    Returns
    -------
    list of dict or None
        As :func:`spread_over_gpus`; None if more than :data:`MAX_GPUS_IN_FEWEST_GPUS_SEARCH` are needed.

    Raises
    ------
    GeometryError
        If the model or a profile is unknown, or a count is not a whole number of at least 0.

    Examples
    --------
    >>> find_fewest_gpus("A100-40GB", {"1g.5gb": 14, "3g.20gb": 1})
    [{'3g.20gb': 1}, {'1g.5gb': 7}, {'1g.5gb': 7}]
    >>> find_fewest_gpus("A100-80GB", {"1g.20gb": 5})
    [{'1g.20gb': 4}, {'1g.20gb': 1}]
    """
    gpu_model = as_gpu_model(gpu_model)
    instances = resolve_counts(gpu_model, counts)
    for gpus in range(min_gpus_bound(gpu_model, instances), MAX_GPUS_IN_FEWEST_GPUS_SEARCH + 1):
        gpu_counts = spread_over_gpus(gpu_model, instances, gpus)
        if gpu_counts is not None:
            return gpu_counts
    return None


def min_gpus_bound(gpu_model: GpuModel, counts: Mapping[str, int]) -> int:
    """Lower bound on the GPUs that instances need, by compute slices, memory slices and maxima of profiles.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> min_gpus_bound(load_gpu_model("A100-40GB"), {"4g.20gb": 3})
    3
    """
    profiles = {name: gpu_model.profile(name) for name in counts if name != FULL_GPU}
    compute = sum(counts[name] * profile.compute_slices for name, profile in profiles.items())
    memory = sum(counts[name] * profile.memory_slices for name, profile in profiles.items())
    by_max_instances = [-(-counts[name] // profile.max_instances) for name, profile in profiles.items()]
    partitioned_gpus = max(
        -(-compute // gpu_model.compute_slices), -(-memory // gpu_model.memory_slices), *by_max_instances, 0
    )
    return partitioned_gpus + counts.get(FULL_GPU, 0)
