"""Spread instances over several GPUs of one board, exactly; the fewest GPUs that hold some instances."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from gpuplanner.hardware.enumerate import pareto_counts
from gpuplanner.hardware.feasibility import resolve_counts
from gpuplanner.hardware.gpu import GpuModel, as_board
from gpuplanner.schemas.vocabulary import WHOLE_GPU

MOST_GPUS = 64
"""GPUs of one node, at most: more is a fault of what was written down, and the search would be long."""


def spread(board: GpuModel | str, counts: Mapping[str, int], gpus: int) -> list[dict[str, int]] | None:
    """Find counts for each of several GPUs that sum to the instances asked for.

    Parameters
    ----------
    board : GpuModel or str
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
    board = as_board(board)
    wanted = resolve_counts(board, counts)
    whole = wanted.pop(WHOLE_GPU, 0)
    names = list(wanted)
    vectors = [
        tuple(c.get(name, 0) for name in names) for c in (pareto_counts(board, names) if names else [])
    ]
    sizes = [board.profile(name).memory_slices for name in names]

    @functools.cache
    def fill(left: tuple[int, ...], free: int) -> tuple[tuple[int, ...], ...] | None:
        if not any(left):
            return ()
        if sum(map(int.__mul__, left, sizes)) > free * board.memory_slices:
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


def fewest_gpus(board: GpuModel | str, counts: Mapping[str, int]) -> list[dict[str, int]] | None:
    """Find the fewest GPUs that hold some instances, and what each of them holds.

    Parameters
    ----------
    board : GpuModel or str
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
    board = as_board(board)
    wanted = resolve_counts(board, counts)
    for gpus in range(at_least(board, wanted), MOST_GPUS + 1):
        found = spread(board, wanted, gpus)
        if found is not None:
            return found
    return None


def at_least(board: GpuModel, counts: Mapping[str, int]) -> int:
    """GPUs that some instances need at least: by compute slices, memory slices and the most of each profile.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu import load_gpu_model
    >>> at_least(load_gpu_model("A100-40GB"), {"4g.20gb": 3})
    3
    """
    profiles = {name: board.profile(name) for name in counts if name != WHOLE_GPU}
    compute = sum(counts[name] * profile.compute_slices for name, profile in profiles.items())
    memory = sum(counts[name] * profile.memory_slices for name, profile in profiles.items())
    each = [-(-counts[name] // profile.max_instances) for name, profile in profiles.items()]
    cut = max(-(-compute // board.compute_slices), -(-memory // board.memory_slices), *each, 0)
    return cut + counts.get(WHOLE_GPU, 0)
