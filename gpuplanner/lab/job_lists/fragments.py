"""GPUs that stand idle and are of no use to those who wait."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.errors import SchemaError, examples, message
from gpuplanner.metrics.spells import Served, spells_of, steps

Ints = NDArray[np.int64]


def fragmentation(run: Served | pl.DataFrame, *, nodes: int, gpus_per_node: int) -> pl.DataFrame:
    """Idle GPUs over time, and how many of them cannot be used.

    A job of at most a node can use the idle GPUs of the nodes that hold it; a larger one can use wholly idle
    nodes, if there are enough. One that waits although idle GPUs were of use to it is kept back by the order of
    the queue, not by fragmentation.

    Parameters
    ----------
    run : GangRun or polars.DataFrame
        Of :func:`gpuplanner.simulate.run_gangs`; or outcomes alone, of rules that stop nobody.
    nodes, gpus_per_node : int
        The fleet of the run.

    Returns
    -------
    polars.DataFrame
        Pieces of time, sorted, from the first submission to the last end:

        start_s, end_s
            Of the piece [s].
        idle
            GPUs that no job holds.
        waiting_gpus
            GPUs that the job asks for which waits longest, since it was submitted or stopped; 0 if none waits.
        stranded_for_head
            Idle GPUs that this job cannot use.
        stranded_for_mix
            Idle GPUs that a job of the workload cannot use, in the mean over all jobs: the measure of
            fragmentation gradient descent, for whole GPUs.

    Raises
    ------
    SchemaError
        If jobs were stopped and there are no spells that say when, or if some are larger than a node and leave
        a part of their last one to others: nothing says which one that was.

    References
    ----------
    Q. Weng et al., Beware of fragmentation: Scheduling GPU-sharing workloads with fragmentation gradient
    descent, ATC 2023, section 3.

    Examples
    --------
    >>> outcomes = pl.DataFrame({"job_id": ["a", "b", "c"], "submit": 0.0, "first_start": [0.0, 0.0, 60.0],
    ...     "end": [60.0, 90.0, 120.0], "gpus": [3, 3, 4], "node": [0, 1, 0], "preemptions": 0})
    >>> fragmentation(outcomes, nodes=2, gpus_per_node=4).select("end_s", "idle", "stranded_for_head").rows()
    [(60.0, 2, 2), (90.0, 1, 0), (120.0, 4, 0)]
    """
    spells = spells_of(run)
    _refuse(spells, gpus_per_node)
    ran = spells.filter(pl.col("end_s") > pl.col("start_s"))
    if ran.is_empty():
        return pl.DataFrame(schema=dict.fromkeys(_COLUMNS, pl.Float64))
    instants = pl.concat([spells["since_s"], spells["start_s"], spells["end_s"]]).drop_nulls()
    edges = instants.unique().sort().to_numpy()
    whole, by_node = _idle_over_time(ran, edges, nodes, gpus_per_node)
    asked = spells.unique("job_id", maintain_order=True)["gpus"]
    sizes = asked.unique().sort().to_numpy()
    useful = np.stack([_useful(int(size), edges, whole, by_node, gpus_per_node) for size in sizes])
    idle = _useful(1, edges, whole, by_node, gpus_per_node)
    head = _longest_waiting(spells, edges)
    row = np.searchsorted(sizes, head)
    popular = asked.value_counts().sort("gpus")["count"].to_numpy() / len(asked)
    return pl.DataFrame(
        {
            "start_s": edges[:-1],
            "end_s": edges[1:],
            "idle": idle,
            "waiting_gpus": head,
            "stranded_for_head": np.where(head > 0, idle - useful[row, np.arange(len(idle))], 0),
            "stranded_for_mix": idle - popular @ useful,
        }
    )


_COLUMNS = ("start_s", "end_s", "idle", "waiting_gpus", "stranded_for_head", "stranded_for_mix")


def fragmentation_totals(pieces: pl.DataFrame) -> dict[str, float]:
    """Sum up pieces of :func:`fragmentation`.

    Returns
    -------
    dict
        ``idle_gpu_hours``; ``idle_while_waiting_gpu_hours``, while some job waited;
        ``stranded_for_head_gpu_hours`` and ``stranded_for_mix_gpu_hours``.

    Examples
    --------
    >>> pieces = pl.DataFrame({"start_s": [0.0], "end_s": [3600.0], "idle": [4], "waiting_gpus": [8],
    ...     "stranded_for_head": [4], "stranded_for_mix": [1.0]})
    >>> fragmentation_totals(pieces)["idle_while_waiting_gpu_hours"]
    4.0
    """
    hours = (pl.col("end_s") - pl.col("start_s")) / 3600.0
    found = pieces.select(
        idle_gpu_hours=(pl.col("idle") * hours).sum(),
        idle_while_waiting_gpu_hours=(pl.col("idle") * hours).filter(pl.col("waiting_gpus") > 0).sum(),
        stranded_for_head_gpu_hours=(pl.col("stranded_for_head") * hours).sum(),
        stranded_for_mix_gpu_hours=(pl.col("stranded_for_mix") * hours).sum(),
    )
    return found.row(0, named=True)


def _refuse(spells: pl.DataFrame, per_node: int) -> None:
    gpus = pl.col("gpus")
    jobs = (
        spells.filter((gpus > per_node) & (gpus % per_node != 0))["job_id"]
        .unique(maintain_order=True)
        .to_list()
    )
    if jobs:
        text = message(
            "fragmentation over time",
            f"jobs that fill all their nodes of {per_node} GPUs if they have several",
            f"{len(jobs)} others: {examples(jobs)}",
            "Round them up to whole nodes.",
        )
        raise SchemaError(text)


def _idle_over_time(
    ran: pl.DataFrame, edges: NDArray[np.float64], nodes: int, per_node: int
) -> tuple[Ints, pl.DataFrame]:
    """Nodes that hold nothing at all, over the edges; and pieces of the others with their idle GPUs.

    A job of whole nodes holds nodes on which nothing else runs, so it does not matter which.
    """
    small = pl.col("gpus") <= per_node
    events = pl.concat(
        [
            ran.filter(small).select("node", at_s=at, held=sign * pl.col("gpus").cast(pl.Int64))
            for at, sign in (("start_s", 1), ("end_s", -1))
        ]
    )
    pieces = steps(events, "node", ["held"], until_s=float(edges[-1])).filter(pl.col("held") > 0)
    gangs = ran.filter(~small).select("start_s", "end_s", taken=pl.col("gpus").cast(pl.Int64) // per_node)
    taken = _on_edges(edges, gangs["start_s"], gangs["end_s"], gangs["taken"])
    in_part = _on_edges(
        edges, pieces["start_s"], pieces["end_s"], pl.Series([1]).new_from_index(0, pieces.height)
    )
    return nodes - taken - in_part, pieces.with_columns(idle=per_node - pl.col("held"))


def _useful(size: int, edges: NDArray[np.float64], whole: Ints, pieces: pl.DataFrame, per_node: int) -> Ints:
    """Idle GPUs that a job of some size can use."""
    if size > per_node:
        return np.where(whole >= -(-size // per_node), whole, 0) * per_node
    roomy = pieces.filter(pl.col("idle") >= size)
    return whole * per_node + _on_edges(edges, roomy["start_s"], roomy["end_s"], roomy["idle"])


def _on_edges(edges: NDArray[np.float64], start: pl.Series, end: pl.Series, height: pl.Series) -> Ints:
    """Sum of pieces over every stretch between two edges."""
    change = np.zeros(len(edges), np.int64)
    for instant, sign in ((start, 1), (end, -1)):
        np.add.at(change, np.searchsorted(edges, instant.to_numpy()), sign * height.to_numpy())
    return np.cumsum(change)[:-1]


def _longest_waiting(spells: pl.DataFrame, edges: NDArray[np.float64]) -> Ints:
    """GPUs asked for by the job that has waited longest, over every stretch; 0 if none waits.

    A job is that one from when all that waited before it have started until it starts itself.
    """
    start = pl.col("start_s").fill_null(float(edges[-1]))
    queue = (
        spells.with_columns(start=start)
        .sort("since_s", maintain_order=True)
        .with_columns(first=pl.max_horizontal("since_s", pl.col("start").cum_max().shift(1)))
        .filter(pl.col("start") > pl.col("first"))
    )
    return _on_edges(edges, queue["first"], queue["start"], queue["gpus"].cast(pl.Int64))
