"""Classes of jobs by how much they ask for: a target of waits holds for each of them, not for their mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.schemas import WHOLE_GPU

SIZE_CLASSES = ("slices", "1", "2-4", "5-8", "more")
"""What a job asks for: MIG instances or a share of a GPU, or so many GPUs."""
LARGEST = (1, 4, 8)
"""Most GPUs of each class of whole GPUs but the last."""
MOST_NAMED = 3
"""A group of more classes is named by its first."""
NOT_STATED = "(not stated)"
FEWEST_JOBS = 100
"""A class with fewer judged jobs is pooled with its neighbour: its quantile would be a matter of luck."""


def size_class(profile: str, instances: str) -> pl.Expr:
    """Number of the class in :data:`SIZE_CLASSES`, by what a job asks for.

    Examples
    --------
    >>> asked = pl.DataFrame({"p": ["1g.10gb", "gpu", "gpu", "gpu"], "n": [1, 1, 8, 16]})
    >>> asked.select(size_class("p", "n")).to_series().to_list()
    [0, 1, 3, 4]
    """
    number = pl.lit(1, pl.Int64)
    for most in LARGEST:
        number = number + (pl.col(instances) > most).cast(pl.Int64)
    return pl.when(pl.col(profile) == WHOLE_GPU).then(number).otherwise(0)


def pooled_classes(jobs: NDArray[np.int64], fewest: int = FEWEST_JOBS) -> list[tuple[int, ...]]:
    """Put classes together until each group has enough jobs: a small one joins the class of next smaller jobs.

    Parameters
    ----------
    jobs : array of int, shape (n_classes,)
        Jobs of each class; classes without jobs belong to no group.
    fewest : int
        Jobs that a group needs, unless it is the only one.

    Returns
    -------
    list of tuple of int
        Classes of each group, smallest jobs first.

    Examples
    --------
    >>> pooled_classes(np.array([500, 900, 120, 30, 4]))
    [(0,), (1,), (2, 3, 4)]
    >>> pooled_classes(np.array([20, 900, 0, 300, 0]))
    [(0, 1), (3,)]
    """
    groups = [[number] for number, count in enumerate(jobs.tolist()) if count]
    while len(groups) > 1:
        small = [place for place, group in enumerate(groups) if jobs[group].sum() < fewest]
        if not small:
            break
        last = max(small[-1], 1)  # the first has no smaller neighbour: the second joins it
        groups[last - 1] += groups.pop(last)
    return [tuple(group) for group in groups]


def class_name(group: tuple[int, ...], classes: Sequence[str] = SIZE_CLASSES) -> str:
    """Name of a group of classes; of many the first alone.

    Examples
    --------
    >>> class_name((2, 3, 4))
    '2-4, 5-8, more'
    >>> class_name((0, 1, 2, 3, 4), ("a", "b", "c", "d", "e"))
    'a and 4 smaller'
    """
    names = [classes[number] for number in group]
    return ", ".join(names) if len(names) <= MOST_NAMED else f"{names[0]} and {len(names) - 1} smaller"


def classed(jobs: pl.DataFrame, by: str) -> tuple[pl.Series, tuple[str, ...]]:
    """Number of the class of each job, and the names of the classes.

    Parameters
    ----------
    jobs : polars.DataFrame
        ``profile_requested, instances_requested``, or the column that `by` names.
    by : str
        ``"size"``, or a column of names; the one with most jobs comes first.

    Examples
    --------
    >>> number, names = classed(pl.DataFrame({"tenant": ["b", "a", "a", None]}), "tenant")
    >>> number.to_list(), names
    ([1, 0, 0, 2], ('a', 'b', '(not stated)'))
    """
    if by == "size":
        return jobs.select(size_class("profile_requested", "instances_requested")).to_series(), SIZE_CLASSES
    named = jobs.select(name=pl.col(by).cast(pl.String).fill_null(NOT_STATED))["name"]
    order = named.value_counts().sort(["count", named.name], descending=[True, False])
    names = sorted(order[named.name].to_list(), key=lambda name: name == NOT_STATED)
    numbers = {name: number for number, name in enumerate(names)}
    return named.replace_strict(numbers, return_dtype=pl.Int64), tuple(names)
