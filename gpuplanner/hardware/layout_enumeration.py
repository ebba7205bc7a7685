"""All MIG layouts of a GPU model, and the fewest GPUs that hold given instances.

A set of placements is a layout if memory intervals are disjoint, no profile exceeds its maximum, and the
engines and SMs taken stay within those of the full-size profile. It is *maximal* if no further instance (of
the profiles asked for) can be added anywhere.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter, le

import polars as pl

from gpuplanner.core.errors import GeometryError, examples
from gpuplanner.core.schemas import WHOLE_GPU
from gpuplanner.hardware.gpu_models import GpuModel, MigProfile, as_board
from gpuplanner.hardware.mig_layouts import (
    Layout,
    Placement,
    creation_order,
    format_layout,
    free_slices,
    layout_faults,
    parse_layout,
    place_in_order,
    prove,
    resolve_counts,
)

MAX_LAYOUTS = 200_000
"""More layouts of one board than this are refused: name fewer profiles."""
BY_COUNTS = {
    "layout": pl.String,
    **dict.fromkeys(("instances", "free_slices", "placed"), pl.Int64),
    "driver": pl.String,
}

PLACED = {"layout": pl.String, "places": pl.String}


def placed_layouts(
    gpu_model: GpuModel | str, profiles: Iterable[str] | None = None, *, maximal: bool = False
) -> tuple[Layout, ...]:
    """Every way to place instances on one GPU; the empty GPU is not among them.

    Parameters
    ----------
    gpu_model : GpuModel or str
        The board.
    profiles : iterable of str, optional
        Only these profiles; all of the board if None.
    maximal : bool
        Only layouts to which nothing can be added.

    Returns
    -------
    tuple of Layout
        Sorted by the places taken.

    Raises
    ------
    GeometryError
        If the board or a profile is unknown, or there are more than :data:`MAX_LAYOUTS`.

    Examples
    --------
    >>> [str(layout) for layout in placed_layouts("A30", ["2g.12gb", "4g.24gb"], maximal=True)]
    ['2g.12gb@0 2g.12gb@2', '4g.24gb@0']
    """
    every, largest = _all_layouts(*_chosen(gpu_model, profiles))
    return largest if maximal else every


def multisets(
    gpu_model: GpuModel | str, profiles: Iterable[str] | None = None, *, maximal: bool = False
) -> list[dict[str, int]]:
    """Profile counts that one GPU can hold, without regard to places.

    Parameters
    ----------
    board, profiles
        As for :func:`placed_layouts`.
    maximal : bool
        Only counts of maximal placed layouts. Such counts may still be part of larger ones that start from
        other places; for those that are not, see :func:`pareto_counts`.

    Returns
    -------
    list of dict
        Largest profiles first, within each and in the list.

    Examples
    --------
    >>> multisets("A30", ["2g.12gb", "4g.24gb"])
    [{'4g.24gb': 1}, {'2g.12gb': 2}, {'2g.12gb': 1}]
    """
    gpu_model, chosen = _chosen(gpu_model, profiles)
    vectors = _vectors(gpu_model, chosen)[1 if maximal else 0]
    return [_as_counts(chosen, vector) for vector in vectors]


def layout_counts(gpu_model: GpuModel | str, profiles: Iterable[str] | None = None) -> dict[str, int]:
    """How many layouts there are, placed and as counts, all and maximal.

    Examples
    --------
    >>> layout_counts("A100-40GB", ["1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"])
    {'placed': 297, 'placed_maximal': 19, 'multisets': 37, 'multisets_maximal': 14}
    """
    gpu_model, chosen = _chosen(gpu_model, profiles)
    every, largest = _all_layouts(gpu_model, chosen)
    vectors, largest_vectors = _vectors(gpu_model, chosen)
    return {
        "placed": len(every),
        "placed_maximal": len(largest),
        "multisets": len(vectors),
        "multisets_maximal": len(largest_vectors),
    }


def pareto_counts(gpu_model: GpuModel | str, profiles: Iterable[str] | None = None) -> list[dict[str, int]]:
    """Profile counts of one GPU to which none other adds an instance and takes none away.

    Every feasible count is part of one of these, so a planner needs no others.

    Returns
    -------
    list of dict
        Largest profiles first, within each and in the list.

    Examples
    --------
    >>> pareto_counts("A30", ["1g.6gb", "2g.12gb"])
    [{'2g.12gb': 2}, {'2g.12gb': 1, '1g.6gb': 2}, {'1g.6gb': 4}]
    """
    gpu_model, chosen = _chosen(gpu_model, profiles)
    vectors = _vectors(gpu_model, chosen)[1]

    def is_dominated(vector: tuple[int, ...]) -> bool:
        return any(other != vector and all(map(le, vector, other)) for other in vectors)

    return [_as_counts(chosen, vector) for vector in vectors if not is_dominated(vector)]


def _chosen(gpu_model: GpuModel | str, profiles: Iterable[str] | None) -> tuple[GpuModel, tuple[MigProfile, ...]]:
    """The profiles asked for, largest first, each once."""
    known = as_board(gpu_model)
    wanted = set(known.profiles) if profiles is None else {known.profile(name) for name in profiles}
    return known, tuple(profile for profile in known.profiles if profile in wanted)


def _as_counts(profiles: tuple[MigProfile, ...], vector: tuple[int, ...]) -> dict[str, int]:
    return {profile.name: count for profile, count in zip(profiles, vector, strict=True) if count}


@functools.lru_cache(maxsize=256)
def _vectors(
    gpu_model: GpuModel, profiles: tuple[MigProfile, ...]
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Distinct count vectors of all and of the maximal layouts, in descending order."""
    names = [profile.name for profile in profiles]
    every, largest = (
        tuple(sorted({tuple(map(_names(layout).count, names)) for layout in layouts}, reverse=True))
        for layouts in _all_layouts(gpu_model, profiles)
    )
    return every, largest


def _names(layout: Layout) -> list[str]:
    return [placement.profile for placement in layout.placements]


@functools.lru_cache(maxsize=256)
def _all_layouts(
    gpu_model: GpuModel, profiles: tuple[MigProfile, ...]
) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
    """All layouts and the maximal ones."""
    search = _Search(gpu_model, profiles)
    every: list[Layout] = []
    largest: list[Layout] = []
    for layout, is_maximal in search.walk(0, ()):
        if len(every) >= MAX_LAYOUTS:
            where = f"layouts of {gpu_model.name} with {len(profiles)} profiles"
            raise GeometryError(where, f"at most {MAX_LAYOUTS}", "more", "Name fewer profiles.")
        every.append(layout)
        if is_maximal:
            largest.append(layout)
    by_place = attrgetter("placements")
    return tuple(sorted(every, key=by_place)), tuple(sorted(largest, key=by_place))


class _Search:
    """Depth-first walk over the board from slice 0 upwards: each set of disjoint intervals comes up once."""

    def __init__(self, gpu_model: GpuModel, profiles: tuple[MigProfile, ...]) -> None:
        resources = tuple(gpu_model.budget)
        self.choices = [
            (placement, placement.mask, index)
            for index, profile in enumerate(profiles)
            for placement in (Placement.of(profile, start) for start in profile.starts)
        ]
        self.takes = [tuple(profile.amount(name) or 0 for name in resources) for profile in profiles]
        self.left = [profile.max_instances for profile in profiles]
        self.spare = [gpu_model.budget[name] for name in resources]
        self.mask = 0

    def walk(self, lowest: int, chosen: tuple[Placement, ...]) -> Iterator[tuple[Layout, bool]]:
        """Yield every layout that adds at least one placement at or above ``lowest`` to those chosen."""
        for placement, mask, index in self.choices:
            if placement.start < lowest or not self._fits(mask, index):
                continue
            grown = (*chosen, placement)
            self._take(mask, index, +1)
            yield Layout(grown), not any(self._fits(mask, index) for _, mask, index in self.choices)
            yield from self.walk(placement.start + placement.size, grown)
            self._take(mask, index, -1)

    def _fits(self, mask: int, index: int) -> bool:
        return not self.mask & mask and self.left[index] > 0 and all(map(le, self.takes[index], self.spare))

    def _take(self, mask: int, index: int, sign: int) -> None:
        self.mask ^= mask
        self.left[index] -= sign
        for position, amount in enumerate(self.takes[index]):
            self.spare[position] -= sign * amount


@dataclass(frozen=True, eq=False)
class LayoutList:
    """Layouts to which nothing can be added.

    Parameters
    ----------
    by_counts : polars.DataFrame
        ``layout, instances, free_slices, placed`` (ways to place it) and ``driver``: where its instances end up on
        an empty GPU if they are created largest first without places; none if one of them would find no place.
    placed : polars.DataFrame
        ``layout, places``: each way to place it.
    """

    by_counts: pl.DataFrame
    placed: pl.DataFrame


def list_layouts(
    gpu_model: GpuModel | str, profiles: Iterable[str] | None = None, *, beside: Layout | None = None
) -> LayoutList:
    """List the maximal layouts of a board, largest profiles first.

    Parameters
    ----------
    gpu_model : GpuModel or str
        The board.
    profiles : iterable of str, optional
        Only these profiles; all of the board if None.
    beside : Layout, optional
        Instances that stand where they are: only layouts that hold them there are listed.

    Returns
    -------
    LayoutList
        By profile counts, and with places.

    Raises
    ------
    GeometryError
        If the board or a profile is unknown, what stands there is impossible, or there are too many layouts.

    Examples
    --------
    >>> from gpuplanner.hardware.mig_layouts import parse_placements
    >>> found = list_layouts("A30", ["2g.12gb", "4g.24gb"])
    >>> found.by_counts.select("layout", "driver").rows()
    [('4g.24gb:1', '4g.24gb@0'), ('2g.12gb:2', '2g.12gb@0 2g.12gb@2')]
    >>> classic = ["1g.6gb", "2g.12gb", "4g.24gb"]
    >>> list_layouts("A30", classic, beside=parse_placements("A30", "1g.6gb@1")).placed["places"].to_list()
    ['1g.6gb@0 1g.6gb@1 2g.12gb@2', '1g.6gb@0 1g.6gb@1 1g.6gb@2 1g.6gb@3']
    """
    gpu_model = as_board(gpu_model)
    standing = beside or Layout()
    faults = layout_faults(gpu_model, standing)
    if faults:
        expected = f"one that {gpu_model.name} can hold"
        raise GeometryError(f"layout {str(standing)!r}", expected, examples(faults), "Fix the layout.")
    chosen = None if profiles is None else tuple(profiles)
    held = set(standing.placements)
    places: dict[str, list[Layout]] = {}
    for layout in placed_layouts(gpu_model, chosen, maximal=True):
        if held <= set(layout.placements):
            places.setdefault(layout.text, []).append(layout)
    counts = {format_layout(each): each for each in multisets(gpu_model, chosen, maximal=True)}
    rows = []
    for text, each in counts.items():
        if text in places:
            order = creation_order(gpu_model, each)
            driver = None if order is None else str(place_in_order(gpu_model, order))
            free = len(free_slices(gpu_model, places[text][0]))
            rows.append((text, sum(each.values()), free, len(places[text]), driver))
    placed = [(text, str(layout)) for text, *_ in rows for layout in places[text]]
    by_counts = pl.DataFrame(rows, schema=BY_COUNTS, orient="row")
    return LayoutList(by_counts, pl.DataFrame(placed, schema=PLACED, orient="row"))


def placement_table(gpu_model: GpuModel | str, layouts: Iterable[str]) -> pl.DataFrame:
    """Where the instances of layouts lie on their board; GPUs that are not cut have none.

    Examples
    --------
    >>> placement_table("A100-40GB", ["3g.20gb:1,2g.10gb:1", "gpu"]).rows()
    [('3g.20gb:1,2g.10gb:1', '2g.10gb', 0, 2), ('3g.20gb:1,2g.10gb:1', '3g.20gb', 4, 4)]
    """
    model = as_board(gpu_model)
    rows = []
    for text in layouts:
        proof = prove(model, parse_layout(text))
        if proof.layout is None:
            raise GeometryError(f"layout {text!r}", f"one of {model.name}", proof.reason, "Fix it.")
        rows += [(text, place.profile, place.start, place.size) for place in proof.layout.placements]
    names = {"layout": pl.String, "profile": pl.String, "start": pl.Int64, "size": pl.Int64}
    return pl.DataFrame(rows, schema=names, orient="row")


MOST_GPUS = 64
"""GPUs of one node, at most: more is a fault of what was written down, and the search would be long."""


def spread(gpu_model: GpuModel | str, counts: Mapping[str, int], gpus: int) -> list[dict[str, int]] | None:
    """Find counts for each of several GPUs that sum to the instances asked for.

    Parameters
    ----------
    gpu_model : GpuModel or str
        The board.
    counts : mapping of str to int
        Instances of each profile; ``"gpu"`` counts GPUs that are not cut.
    gpus : int
        GPUs that there are.

    Returns
    -------
    list of dict or None
        One entry per GPU used, each holding what one GPU can hold; None if they do not fit. The search is
        exact: for the GPU that takes the largest instance left, it tries every undominated count.

    Raises
    ------
    GeometryError
        If the board or a profile is unknown, or a count is not a whole number of at least 0.

    Examples
    --------
    >>> spread("A100-40GB", {"4g.20gb": 2, "3g.20gb": 1, "2g.10gb": 1, "1g.5gb": 1}, 2)
    [{'4g.20gb': 1, '3g.20gb': 1}, {'4g.20gb': 1, '2g.10gb': 1, '1g.5gb': 1}]
    >>> spread("A100-40GB", {"7g.40gb": 2, "gpu": 1}, 2) is None
    True
    """
    gpu_model = as_board(gpu_model)
    wanted = resolve_counts(gpu_model, counts)
    whole = wanted.pop(WHOLE_GPU, 0)
    names = list(wanted)
    largest_layouts = pareto_counts(gpu_model, names) if names else []
    vectors = [tuple(layout.get(name, 0) for name in names) for layout in largest_layouts]
    sizes = [gpu_model.profile(name).memory_slices for name in names]

    @functools.cache
    def fill(left: tuple[int, ...], free: int) -> tuple[tuple[int, ...], ...] | None:
        if not any(left):
            return ()
        if sum(map(int.__mul__, left, sizes)) > free * gpu_model.memory_slices:
            return None
        largest = next(index for index, count in enumerate(left) if count)
        # Each GPU takes what it can of what is left; dict.fromkeys drops repeats and keeps the order.
        takes = dict.fromkeys(tuple(map(min, vector, left)) for vector in vectors if vector[largest])
        for take in takes:
            rest = fill(tuple(map(int.__sub__, left, take)), free - 1)
            if rest is not None:
                return (take, *rest)
        return None

    filled = fill(tuple(wanted.values()), gpus - whole) if gpus >= whole else None
    if filled is None:
        return None
    cut = [{name: count for name, count in zip(names, take, strict=True) if count} for take in filled]
    return [*cut, *({WHOLE_GPU: 1} for _ in range(whole))]


def fewest_gpus(gpu_model: GpuModel | str, counts: Mapping[str, int]) -> list[dict[str, int]] | None:
    """Find the fewest GPUs that hold some instances, and what each of them holds.

    Parameters
    ----------
    gpu_model : GpuModel or str
        The board.
    counts : mapping of str to int
        Instances of each profile.

    Returns
    -------
    list of dict or None
        As :func:`spread`; None if more than :data:`MOST_GPUS` were needed.

    Raises
    ------
    GeometryError
        If the board or a profile is unknown, or a count is not a whole number of at least 0.

    Examples
    --------
    >>> fewest_gpus("A100-40GB", {"1g.5gb": 14, "3g.20gb": 1})
    [{'3g.20gb': 1}, {'1g.5gb': 7}, {'1g.5gb': 7}]
    >>> fewest_gpus("A100-80GB", {"1g.20gb": 5})
    [{'1g.20gb': 4}, {'1g.20gb': 1}]
    """
    gpu_model = as_board(gpu_model)
    wanted = resolve_counts(gpu_model, counts)
    for gpus in range(at_least(gpu_model, wanted), MOST_GPUS + 1):
        found = spread(gpu_model, wanted, gpus)
        if found is not None:
            return found
    return None


def at_least(gpu_model: GpuModel, counts: Mapping[str, int]) -> int:
    """GPUs that some instances need at least: by compute slices, memory slices and the most of each profile.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> at_least(load_gpu_model("A100-40GB"), {"4g.20gb": 3})
    3
    """
    profiles = {name: gpu_model.profile(name) for name in counts if name != WHOLE_GPU}
    compute = sum(counts[name] * profile.compute_slices for name, profile in profiles.items())
    memory = sum(counts[name] * profile.memory_slices for name, profile in profiles.items())
    each = [-(-counts[name] // profile.max_instances) for name, profile in profiles.items()]
    cut = max(-(-compute // gpu_model.compute_slices), -(-memory // gpu_model.memory_slices), *each, 0)
    return cut + counts.get(WHOLE_GPU, 0)
