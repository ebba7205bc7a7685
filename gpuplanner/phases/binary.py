"""Binary segmentation: change points of a long signal in n log n time, where PELT would take too long."""

from __future__ import annotations

import numpy as np


def binary_segmentation(signal: np.ndarray, shortest: int, penalty: float) -> list[int]:
    """Split a signal where that lowers its squared error most, and its parts again, while it pays.

    Parameters
    ----------
    signal : numpy.ndarray, shape (n, d)
        Signals in units of their noise.
    shortest : int
        Fewest rows of a part.
    penalty : float
        Least gain in squared error of a split.

    Returns
    -------
    list of int
        Ends of the parts, ascending, n last.

    References
    ----------
    Scott, Knott, "A cluster analysis method for grouping means in the analysis of variance", Biometrics 30(3),
    1974.

    Examples
    --------
    >>> binary_segmentation(np.repeat([[0.0], [9.0], [4.0]], 50, axis=0), shortest=5, penalty=20.0)
    [50, 100, 150]
    """
    sums = np.vstack([np.zeros(signal.shape[1]), np.cumsum(signal, axis=0)])
    found: list[int] = []
    open_parts = [(0, len(signal))]
    while open_parts:
        begin, end = open_parts.pop()
        splits = np.arange(begin + shortest, end - shortest + 1)
        if not len(splits):
            continue
        left, right = (splits - begin)[:, None], (end - splits)[:, None]
        apart = (sums[splits] - sums[begin]) / left - (sums[end] - sums[splits]) / right
        gains = (apart**2).sum(axis=1) * (left * right).ravel() / (end - begin)
        best = int(gains.argmax())
        if gains[best] > penalty:
            split = int(splits[best])
            found.append(split)
            open_parts += [(begin, split), (split, end)]
    return [*sorted(found), len(signal)]
