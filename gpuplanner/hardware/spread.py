"""Spread instances over several GPUs of one board, exactly."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from gpuplanner.hardware.enumerate import pareto_counts
from gpuplanner.hardware.feasibility import resolve_counts
from gpuplanner.hardware.gpu import GpuModel, as_board
from gpuplanner.schemas import WHOLE_GPU


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
