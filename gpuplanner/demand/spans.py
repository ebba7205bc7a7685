"""Spans of time against a grid of slots, and against days."""

from __future__ import annotations

import numpy as np

DAY_H = 24.0


def occupancy(
    begin: np.ndarray, end: np.ndarray, size: np.ndarray, row: np.ndarray, rows: int, slots: int
) -> np.ndarray:
    """Mean size that is held in every slot, by row.

    Parameters
    ----------
    begin, end : numpy.ndarray, shape (n,)
        In slots; what lies outside of the grid is cut off, and an end before its begin counts nothing.
    size : numpy.ndarray, shape (n,)
    row : numpy.ndarray of int, shape (n,)
    rows, slots : int

    Returns
    -------
    numpy.ndarray, shape (rows, slots)

    Examples
    --------
    >>> occupancy(np.array([0.5]), np.array([2.25]), np.array([4.0]), np.array([0]), 1, 3).tolist()
    [[2.0, 4.0, 1.0]]
    """
    width = slots + 2
    first = np.clip(begin, 0.0, slots)
    last = np.maximum(np.clip(end, 0.0, slots), first)
    cells, total = row * width, rows * width
    change = np.zeros(total)
    inside = np.zeros(total)
    for edge, sign in ((first, 1.0), (last, -1.0)):
        slot = edge.astype(np.int64)
        change += np.bincount(cells + slot, weights=sign * size, minlength=total)
        inside += np.bincount(cells + slot, weights=-sign * size * (edge - slot), minlength=total)
    held = (change.reshape(rows, width).cumsum(axis=1) + inside.reshape(rows, width))[:, :slots]
    return np.where(held > 1e-9, held, 0.0)


def day_shares(spans: np.ndarray, days: np.ndarray) -> np.ndarray:
    """Share of each day, given by its first hour, that lies in one of the spans.

    Examples
    --------
    >>> day_shares(np.array([[6.0, 12.0], [30.0, 99.0]]), np.array([0.0, 24.0])).tolist()
    [0.25, 0.75]
    """
    held = sum(
        np.clip(np.minimum(days + DAY_H, end) - np.maximum(days, begin), 0.0, None) for begin, end in spans
    )
    return np.minimum(np.asarray(held) / DAY_H, 1.0)
