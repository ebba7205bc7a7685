"""How fast a job runs on an instance: in units of capacity, as far as the job can use it.

A job that keeps a share ``fill`` of its needed profile busy demands ``fill * capacity(need)`` and works at
``min(capacity(instance), demand)``. On anything at least as large as its need it runs for its own run time.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import polars as pl

from gpuplanner.errors import ScenarioError
from gpuplanner.hardware import as_board
from gpuplanner.names import resolve
from gpuplanner.sizing.profile_sizes import plain_profiles

SPEEDS = ("slices", "sms", "throughput_low", "throughput_high")
"""What capacity means. ``slices``: compute slices. ``sms``: streaming multiprocessors. ``throughput_low`` and
``_high``: saturated throughput measured on A100 slices, with the two readings of its uncertain middle."""

_RATIOS = {
    "throughput_low": {1: 1.0, 2: 2.08, 3: 3.0, 4: 3.5, 7: 7.5},
    "throughput_high": {1: 1.0, 2: 2.08, 3: 3.5, 4: 4.0, 7: 7.5},
}
# By compute slices, relative to one. Read from the bars of MIGPerf (BERT-base and MiniLM inference, arXiv
# 2301.00407, repository MLSysOps/MIGProfiler); its 20 GB bar may be 3g or 4g, hence the two readings.


@functools.lru_cache(maxsize=64)
def capacities(board: str, speed: str) -> Mapping[str, float]:
    """Capacity of each plain profile of a board.

    Examples
    --------
    >>> capacities("H100-80GB-SXM5", "slices")["3g.40gb"], capacities("H100-80GB-SXM5", "sms")["3g.40gb"]
    (3.0, 60.0)
    """
    chosen = resolve(speed, SPEEDS, what="speed model", error=ScenarioError)
    model = as_board(board)
    plain = {profile.name: profile for profile in plain_profiles(model)}
    if chosen == "slices":
        found = {name: float(profile.compute_slices) for name, profile in plain.items()}
    elif chosen == "sms":
        found = {name: float(model.sms_of(name)) for name in plain}
    else:
        found = {name: _RATIOS[chosen][profile.compute_slices] for name, profile in plain.items()}
    return MappingProxyType(found)


def whole_capacity(board: str, speed: str) -> float:
    """Capacity of a board that is one instance."""
    return max(capacities(board, speed).values())


def demand(jobs: pl.DataFrame, capacity: Mapping[str, float]) -> np.ndarray:
    """Capacity that each job can use, shape (n_jobs,)."""
    needed: pl.Series = jobs["need"].replace_strict(capacity, return_dtype=pl.Float64)
    wanted: np.ndarray = (jobs["fill"] * needed).to_numpy()
    return wanted


def rate(jobs: pl.DataFrame, served_on: pl.Series, capacity: Mapping[str, float]) -> np.ndarray:
    """Capacity that each job does use on an instance of the given profile, shape (n_jobs,).

    Examples
    --------
    >>> jobs = pl.DataFrame({"need": ["2g.20gb", "2g.20gb"], "fill": [0.95, 0.95]})
    >>> rate(jobs, pl.Series(["3g.40gb", "1g.10gb"]), capacities("H100-80GB-SXM5", "slices")).tolist()
    [1.9, 1.0]
    """
    offered = served_on.replace_strict(capacity, return_dtype=pl.Float64).to_numpy()
    used: np.ndarray = np.minimum(offered, demand(jobs, capacity))
    return used
