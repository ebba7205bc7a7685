"""Which fleet and which queue would best explain the waits that were observed."""

from __future__ import annotations

from typing import Any

import polars as pl

from gpuplanner.hardware import whole_board
from gpuplanner.metrics.agreement import agreement
from gpuplanner.simulate import Fleet, Rules, schedule
from gpuplanner.study.past.observed import Observed, peak_gpus

FACTORS = (0.75, 0.9, 1.0, 1.1, 1.25)
"""Fleets that are tried beside the one used, as multiples of it."""
QUEUES = ("strict", "pass", "easy")
MEASURES = (
    "typical_factor",
    "skill",
    "simulated_mean_s",
    "mean_absolute_error_s",
    "within_10min",
    "waited_within_1h",
)


def replay(observed: Observed, rules: Rules, *, nodes: int | None = None) -> pl.Series:
    """Waits of the jobs when they are served by some rules.

    Parameters
    ----------
    observed : Observed
        Jobs and fleet.
    rules : Rules
        Rules of the queue.
    nodes : int, optional
        Another number of nodes, of the size that the fleet has; a pool counts one GPU as a node here.

    Returns
    -------
    polars.Series
        Simulated waits [s], in the order of the jobs.
    """
    size, count = _node_size(observed), nodes or _node_count(observed)
    size, count = (size * observed.parts * count, 1) if observed.nodes == 1 else (size, count)
    return schedule(observed.jobs, Fleet(whole_board("any"), count, size), rules, policy="replay")["wait_s"]


def candidates(observed: Observed, used: Rules) -> pl.DataFrame:
    """Try other fleets and queues.

    Tried are the fleet used, :data:`FACTORS` of it, the most GPUs that were held at once, and those fleets in
    which the used rules make jobs wait just longer and just shorter on average than they did.

    Parameters
    ----------
    observed : Observed
        Jobs and fleet.
    used : Rules
        Rules of the verdict.

    Returns
    -------
    polars.DataFrame
        ``gpus, order, queue``, :data:`MEASURES` of :func:`gpuplanner.metrics.agreement.agreement`, ``used`` and
        ``nearest_mean``, the fleet whose mean wait comes nearest under the rules used; least typical factor
        first, the used one first among equals.
    """
    size, count = _node_size(observed), _node_count(observed)
    gpus = observed.jobs["gpus"].to_numpy() / observed.parts
    least = int(-(-gpus.max() // size))
    matching = _matching(observed, used, least)
    most = -(-peak_gpus(observed.jobs) // (size * observed.parts))
    fleets = {round(count * factor) for factor in FACTORS} | {most, matching}
    tried = [(nodes, used) for nodes in (count, matching - 1, matching) if nodes >= least]
    tried += [(nodes, Rules(queue=queue)) for queue in QUEUES for nodes in sorted(fleets) if nodes >= least]
    seen: dict[tuple[int, str, str], dict[str, Any]] = {}
    for nodes, rules in tried:
        key = (nodes, rules.order, rules.queue)
        if key not in seen:
            waits = observed.jobs.select("observed_s", simulated_s=replay(observed, rules, nodes=nodes))
            figures = agreement(waits).row(0, named=True)
            seen[key] = {
                "gpus": nodes * size,
                "order": rules.order,
                "queue": rules.queue,
                **{name: figures[name] for name in MEASURES},
                "used": nodes == count and rules == used,
            }
    target = observed.jobs["observed_s"].mean()
    by_rules = (pl.col("order") == used.order) & (pl.col("queue") == used.queue)
    off = pl.when(by_rules).then((pl.col("simulated_mean_s") - target).abs())
    return (
        pl.DataFrame(list(seen.values()))
        .with_columns(nearest_mean=pl.int_range(pl.len()) == off.arg_min())
        .sort("typical_factor", "used", "gpus", "queue", descending=[False, True, False, False])
    )


def _matching(observed: Observed, rules: Rules, least: int) -> int:
    """Fewest nodes with which the mean wait is not above the observed one, between `least` and twice the fleet.

    Mean waits may rise with the fleet now and then; halving then finds one of several such fleets.
    """
    target = float(observed.jobs["observed_s"].mean())  # type: ignore[arg-type]
    low, high = least, max(least, 2 * _node_count(observed))
    while low < high:
        middle = (low + high) // 2
        mean = float(replay(observed, rules, nodes=middle).mean())  # type: ignore[arg-type]
        low, high = (low, middle) if mean <= target else (middle + 1, high)
    return low


def _node_size(observed: Observed) -> int:
    """GPUs of a node; a pool is taken apart GPU by GPU."""
    return observed.gpus // observed.nodes if observed.nodes > 1 else 1


def _node_count(observed: Observed) -> int:
    return observed.gpus // _node_size(observed)
