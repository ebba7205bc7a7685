"""A trace as it can be replayed: jobs with their own arrivals and run times, a fleet, and what is left out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from gpuplanner.errors import ScenarioError, message
from gpuplanner.inbox import Dataset
from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.study.past.fleet import in_service, installed
from gpuplanner.study.past.history import begin_of, end_of

PARTS = (1, 2, 4, 7, 10, 14, 20, 28, 100, 1000)
"""Parts of a GPU that jobs may count in."""
WAITED_S = 600.0
"""Who waited for longer counts in what stays unexplained [s]."""
IDLE_SHARE = 0.9
"""Share of its wait in which enough GPUs were idle, from which on something else than a full fleet is the reason."""


@dataclass(frozen=True, eq=False)
class Observed:
    """Jobs of a trace that were seen to start, and the fleet that served them.

    Parameters
    ----------
    jobs : polars.DataFrame
        As :func:`gpuplanner.simulate.gangs.schedule` takes them, in order of submission, with ``name`` (its id in the
        source), ``submit_time``, ``asked_gpus``, ``observed_s`` (its wait) and ``limit_known``.
    parts : int
        Parts that a GPU counts: where jobs share GPUs, ``gpus`` of the jobs are parts.
    gpus : int
        GPUs of the fleet; ``fleet_note`` says where the number comes from.
    nodes : int
        Nodes of equal size if they are known; 1 for a pool.
    left_out : polars.DataFrame
        ``reason`` and ``jobs``.
    """

    jobs: pl.DataFrame
    parts: int
    gpus: int
    fleet_note: str
    nodes: int
    left_out: pl.DataFrame


def observe(trace: Dataset, *, gpus: int | None = None) -> Observed:
    """Take from a trace what can be replayed.

    Jobs that still ran at the end of the observation count as running until then. The fleet is `gpus`, else
    what :func:`gpuplanner.study.past.fleet.installed` finds. Nodes count where the inventory has nodes
    of one size and no job takes a part of a GPU.

    Parameters
    ----------
    trace : Dataset
        With start times.
    gpus : int, optional
        GPUs of the fleet, as a pool.

    Raises
    ------
    ScenarioError
        If no job of the trace can be replayed, or `gpus` is below 1.
    """
    if gpus is not None and gpus < 1:
        text = message("calibration: gpus", "a number above 0", f"{gpus}", "Give the size of the fleet.")
        raise ScenarioError(text)
    last = pl.lit(end_of(trace))
    ended = pl.when(pl.col("state") == "RUNNING").then(pl.max_horizontal("start_time", last))
    seen = trace.jobs.with_columns(ended=pl.coalesce(pl.col("end_time"), ended))
    reasons = {
        "holds no GPU": pl.col("gpus") == 0,
        "number of GPUs unknown": pl.col("gpus").is_null(),
        "never started": pl.col("start_time").is_null(),
        "end unknown": pl.col("ended").is_null(),
    }
    kept, left = _parted(seen, reasons)
    if kept.is_empty():
        text = message(
            "calibration", "jobs with GPUs, a start and an end", "none", "Use a trace that has start times."
        )
        raise ScenarioError(text)
    parts = _parts(kept["gpus"])
    jobs = _workload(kept, parts)
    fleet, note, nodes = _fleet(trace, parts, gpus)
    per_node = fleet * parts // nodes
    needed = pl.when(pl.col("gpus") > per_node).then((pl.col("gpus") / per_node).ceil() * per_node)
    too_large = needed.otherwise("gpus") > fleet * parts
    kept, larger = _parted(jobs, {"larger than the fleet": too_large})
    return Observed(kept, parts, fleet, note, nodes, pl.concat([left, larger]).filter(pl.col("jobs") > 0))


def obstacles(observed: Observed, trace: Dataset) -> pl.DataFrame:
    """Name what a queue over one pool cannot explain, with what the trace shows of it.

    Parameters
    ----------
    observed : Observed
        From :func:`observe`.
    trace : Dataset
        The trace itself.

    Returns
    -------
    polars.DataFrame
        ``what``, ``jobs`` that show it (null if the trace cannot show it), ``meaning``.
    """
    jobs = observed.jobs
    waited = jobs.filter(pl.col("observed_s") > WAITED_S)
    idle_share = _idle_share(waited, observed)
    models = trace.jobs["gpu_model"].drop_nulls().n_unique()
    if trace.inventory is not None:
        models = max(models, trace.inventory["gpu_model"].drop_nulls().n_unique())
    tiers = trace.jobs["tier"].drop_nulls().n_unique()
    found: list[tuple[str, int | None, str]] = [
        (
            "waited although enough GPUs were idle",
            int((idle_share >= IDLE_SHARE).sum()),
            f"limits of users or tenants, reservations, wanted boards or nodes, dependencies: of {waited.height} "
            f"jobs that waited over 10 min, those with enough idle GPUs for {IDLE_SHARE:.0%} of the wait",
        ),
        (
            "overtaken by a job that came later and asked for as much",
            int(_overtaken(jobs).sum()),
            "priorities, fair share, partitions: no order by arrival starts jobs so",
        ),
        (
            "priorities",
            None,
            f"the trace names {tiers} tiers, which are not used" if tiers > 1 else "not in the trace",
        ),
        ("limits and reservations", None, "not in the trace"),
        ("holds and dependencies", None, "a job counts as waiting from its submission on, eligible or not"),
        (
            "before the first submission",
            None,
            "the fleet begins empty; what ran earlier is not in the trace",
        ),
    ]
    if trace.provenance["source"] == "synthetic":
        found.append(("a real cluster", None, "the trace is made up: it says nothing about any cluster"))
    if models > 1:
        found.append(("boards", None, f"{models} kinds of boards are served as one pool"))
    if observed.parts > 1:
        found.append(("parts of GPUs", None, "parts of different GPUs are joined: waits are lower bounds"))
    unknown = jobs.height - int(jobs["limit_known"].sum())
    if unknown:
        found.append(("run-time limits", unknown, "unknown; backfill takes their run times for limits"))
    return pl.DataFrame(
        found, schema={"what": pl.String, "jobs": pl.Int64, "meaning": pl.String}, orient="row"
    )


def peak_gpus(jobs: pl.DataFrame) -> int:
    """Most GPUs, or parts of them, that were observed to be held at once."""
    _, held = _held(jobs)
    return int(held.max())


def _parted(jobs: pl.DataFrame, reasons: dict[str, pl.Expr]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Jobs for which no reason holds, and how many fall to each, the first counting."""
    counts = []
    for reason, holds in reasons.items():
        kept = jobs.filter(~holds.fill_null(value=False))
        counts.append((reason, jobs.height - kept.height))
        jobs = kept
    return jobs, pl.DataFrame(counts, schema={"reason": pl.String, "jobs": pl.Int64}, orient="row")


def _parts(gpus: pl.Series) -> int:
    """Fewest parts of a GPU in which all requests are whole numbers."""
    for parts in PARTS:
        if ((gpus * parts).round() - gpus * parts).abs().max() < 1e-6:  # type: ignore[operator]
            return parts
    return PARTS[-1]


def _workload(jobs: pl.DataFrame, parts: int) -> pl.DataFrame:
    jobs = jobs.sort("submit_time", maintain_order=True)
    run_s = (pl.col("ended") - pl.col("start_time")).dt.total_microseconds() / 1e6
    return jobs.select(
        pl.int_range(pl.len()).cast(pl.String).alias("job_id"),
        pl.col("job_id").alias("name"),
        "tenant",
        "submit_time",
        submit_s=(pl.col("submit_time") - pl.col("submit_time").first()).dt.total_microseconds() / 1e6,
        run_s=run_s,
        asked_gpus="gpus",
        gpus=(pl.col("gpus") * parts - 1e-6).ceil().cast(pl.Int32),
        profile=pl.lit(WHOLE_GPU),
        limit_s=pl.max_horizontal("time_limit_s", run_s),
        limit_known=pl.col("time_limit_s").is_not_null(),
        observed_s=(pl.col("start_time") - pl.col("submit_time")).dt.total_microseconds() / 1e6,
    )


def _fleet(trace: Dataset, parts: int, gpus: int | None) -> tuple[int, str, int]:
    if gpus is not None:
        return gpus, "as given", 1
    there = installed(trace, begin_of(trace), end_of(trace))
    if there.inferred:
        return max(there.gpus, 1), there.origin, 1
    nodes = in_service(there.inventory, end_of(trace))
    if nodes["gpus"].n_unique() == 1 and parts == 1:
        return there.gpus, f"{there.origin}: {nodes.height} nodes of {nodes['gpus'][0]}", nodes.height
    return there.gpus, f"{there.origin}, as one pool", 1


def _held(jobs: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """GPUs (or parts) that were observed to be held between instants, ends before starts."""
    start = (jobs["submit_s"] + jobs["observed_s"]).to_numpy()
    end, gpus = start + jobs["run_s"].to_numpy(), jobs["gpus"].to_numpy()
    edges, place = np.unique(np.concatenate([start, end]), return_inverse=True)
    change = np.bincount(place, np.concatenate([gpus, -gpus]), minlength=len(edges))
    return edges, np.cumsum(change).round()


def _idle_share(waited: pl.DataFrame, observed: Observed) -> np.ndarray:
    """For each job the share of its wait in which as many GPUs as it asks for were idle."""
    edges, held = _held(observed.jobs)
    idle, seconds = observed.gpus * observed.parts - held[:-1], np.diff(edges)
    submit, wait = waited["submit_s"].to_numpy(), waited["observed_s"].to_numpy()
    gpus = waited["gpus"].to_numpy()
    share = np.zeros(waited.height)
    for size in np.unique(gpus):
        # Time with enough idle GPUs since the beginning grows linearly between edges, so this is exact. Before
        # the first edge all is idle.
        enough = np.append(0.0, np.cumsum(seconds * (idle >= size)))
        mine = gpus == size
        begin, end = submit[mine], submit[mine] + wait[mine]
        before = np.clip(np.minimum(end, edges[0]) - begin, 0.0, None)
        share[mine] = (before + np.interp(end, edges, enough) - np.interp(begin, edges, enough)) / wait[mine]
    return share


def _overtaken(jobs: pl.DataFrame) -> np.ndarray:
    """Whether a job submitted later that asks for as many GPUs or more started earlier."""
    submit, gpus = jobs["submit_s"].to_numpy(), jobs["gpus"].to_numpy()
    start = submit + jobs["observed_s"].to_numpy()
    found = np.zeros(jobs.height, dtype=bool)
    for size in np.unique(gpus):
        large = gpus >= size
        earliest = np.append(np.minimum.accumulate(start[large][::-1])[::-1], np.inf)
        mine = gpus == size
        found[mine] = earliest[np.searchsorted(submit[large], submit[mine], "right")] < start[mine]
    return found
