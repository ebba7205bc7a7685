"""Which instances may serve which requests, and what that means for capacity.

Requests of several profiles and instances of several profiles are matched by a small flow. By Hall's theorem
the flow exists if and only if, for each set of requests, the instances that can serve any of them are at
least as many. Only sets of instances that contain, with a profile, every profile that can serve it (the
*up-sets*) can be tight, which leaves six sets for the six base profiles of a data-centre board instead of 36
flow variables.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuplanner.hardware.gpu import GpuModel
from gpuplanner.schemas.vocabulary import WHOLE_GPU


def serves(board: GpuModel, instance: str, request: str) -> bool:
    """Whether an instance of one profile can do the work asked of another.

    What it needs for that is in :meth:`gpuplanner.hardware.MigProfile.serves`. A GPU that is not cut and an
    instance never stand in for each other: they are different resources to every scheduler.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu import load_gpu_model
    >>> board = load_gpu_model("H100-80GB-SXM5")
    >>> serves(board, "2g.20gb", "1g.20gb"), serves(board, "1g.20gb", "2g.20gb")
    (True, False)
    >>> serves(board, "2g.20gb", "1g.10gb+me"), serves(board, "gpu", "1g.10gb")
    (False, False)
    """
    if instance == request or WHOLE_GPU in (instance, request):
        return instance == request
    return board.profile(instance).serves(board.profile(request))


@functools.lru_cache(maxsize=256)
def up_sets(
    board: GpuModel, requests: Sequence[str], instances: Sequence[str]
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Sets of requests with the instances that can serve them, enough to decide every matching.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu import load_gpu_model
    >>> names = ("2g.10gb", "1g.5gb", "gpu")
    >>> up_sets(load_gpu_model("A100-40GB"), names, names)
    (((0,), (0,)), ((0, 1), (0, 1)), ((2,), (2,)))
    """
    able = [
        frozenset(i for i, instance in enumerate(instances) if serves(board, instance, request))
        for request in requests
    ]
    unions: set[frozenset[int]] = set()
    for one in able:
        unions |= {one} | {one | other for other in unions}
    asking = {union: {r for r, one in enumerate(able) if one <= union} for union in unions}

    def follows(union: frozenset[int]) -> bool:
        parts = ((part, union - part) for part in unions if part and part < union)
        return any(rest in asking and asking[part] | asking[rest] == asking[union] for part, rest in parts)

    kept = [union for union in unions if not follows(union)]
    return tuple(sorted((tuple(sorted(asking[union])), tuple(sorted(union))) for union in kept))


def membership(positions: Sequence[Sequence[int]], size: int) -> NDArray[np.int64]:
    """Sets of positions as rows of zeros and ones, shape (n_sets, size).

    Examples
    --------
    >>> membership([(0,), (0, 2)], 3).tolist()
    [[1, 0, 0], [1, 0, 1]]
    """
    rows = np.zeros((len(positions), size), dtype=np.int64)
    for row, held in zip(rows, positions, strict=True):
        row[list(held)] = 1
    return rows
