"""Node lists of jobs as numbers: which job is on which nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from gpuplanner.inbox.core.node_names import known_nodes


@dataclass(frozen=True, eq=False)
class NodeLists:
    """Lists of nodes, numbered, as numbers of nodes in an inventory; -1 for a node that is not in it.

    Attributes
    ----------
    first : numpy.ndarray, shape (lists + 1,)
        Where each list begins in ``node``.
    node : numpy.ndarray
        The nodes of all lists, one list after the other.
    """

    first: np.ndarray
    node: np.ndarray

    def spread(self, lists: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For the given lists: which of them, node, and how many nodes that list has, one row a node."""
        many = self.first[lists + 1] - self.first[lists]
        row = np.repeat(np.arange(len(lists)), many)
        place = np.arange(len(row)) - np.repeat(np.cumsum(many) - many, many)
        return row, self.node[self.first[lists][row] + place], many[row]


def numbered_lists(texts: pl.Series, number: Mapping[str, int]) -> tuple[np.ndarray, NodeLists]:
    """Number the node lists of jobs; one that is missing or cannot be read is a list of one unknown node.

    Parameters
    ----------
    texts : polars.Series
        Node lists as their source writes them, as text or categories.
    number : mapping of str to int
        Number of each known node.

    Examples
    --------
    >>> of_job, lists = numbered_lists(pl.Series(["n[1-2]", None, "n2"]), {"n1": 0, "n2": 1})
    >>> row, node, many = lists.spread(of_job)
    >>> node.tolist(), many.tolist()
    ([0, 1, -1, 1], [2, 2, 1, 1])
    """
    known = texts.drop_nulls().unique().cast(pl.String).sort()
    names = [[-1], *([number.get(name, -1) for name in known_nodes(text) or [""]] for text in known)]
    of_job = texts.replace_strict(known, range(1, len(known) + 1), default=0, return_dtype=pl.Int32)
    first = np.cumsum([0, *map(len, names)])
    return of_job.fill_null(0).to_numpy(), NodeLists(first, np.concatenate(names).astype(np.int64))
