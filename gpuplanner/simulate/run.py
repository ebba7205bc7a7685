"""Run jobs through a fleet, and give back what became of every job and every GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from gpuplanner.schemas import Outcomes, conform
from gpuplanner.simulate.build import Terms, to_terms, to_world
from gpuplanner.simulate.fleet import Calendar, Fleet
from gpuplanner.simulate.jobs import checked, never_fitting, refuse
from gpuplanner.simulate.rules import Rules, refuse_rules_for_gangs
from gpuplanner.simulate.world import NONE, RECONFIGURING, STATES, World


@dataclass(frozen=True)
class Run:
    """What became of the jobs and of the GPUs.

    Parameters
    ----------
    outcomes : polars.DataFrame
        Table ``schemas.Outcomes``, in the order of the jobs.
    states : polars.DataFrame
        ``node``, ``gpu`` (on the node), ``start_s``, ``end_s``, ``layout`` and ``state``, sorted by GPU and
        time: every GPU is in one row at every time from 0 to the end of the run. States are ``on``;
        ``draining``, when nothing new starts because another layout is due; ``reconfiguring``, where
        ``layout`` is the coming one; and ``off``. A reconfiguration that takes no time keeps its row.
    """

    outcomes: pl.DataFrame
    states: pl.DataFrame


def simulate(
    jobs: pl.DataFrame,
    fleet: Fleet,
    calendar: Calendar,
    rules: Rules,
    *,
    policy: str,
    replication: int = 0,
    until_s: float = 0.0,
    leave_unservable: bool = False,
) -> Run:
    """Serve jobs in order of arrival with the layouts of a calendar.

    Within one instant: jobs end, reconfigurations are done, the calendar changes, jobs arrive, jobs start.

    Jobs wait in one queue per profile, first come first served; ties of submission go by the order of the
    jobs. A job on whole GPUs gets the node with the fewest idle GPUs that holds it; one larger than a node
    needs wholly idle nodes and leaves the rest of the last one to others. A job on an instance runs
    ``max(1, sms_needed / SMs of the instance)`` times as long as ``run_s``.

    When a slot begins, layouts in surplus give up GPUs: first those already leaving, then those with the
    fewest busy slices, on nodes with cut GPUs, with the highest number. A leaving GPU starts nothing new, is
    reconfigured when its last job ends, and comes up in the layout that is then most short of GPUs, or is
    switched off. Running jobs are never stopped. GPUs that are off are switched on first: as whole GPUs at
    once, in other layouts after a reconfiguration.

    Parameters
    ----------
    jobs : polars.DataFrame
        ``job_id``, ``tenant``, ``submit_s`` (at or below 0: there when the run starts; a job carried over
        from before comes in with the rest of its run time), ``run_s``, ``gpus`` (1 for an instance),
        ``profile``, ``sms_needed`` and ``limit_s`` (both may be null or absent; EASY needs limits).
    fleet : Fleet
        What is installed.
    calendar : Calendar
        Layouts over time.
    rules : Rules
        How jobs are served.
    policy : str
        Name written into the outcomes.
    replication : int
        Number written into the outcomes.
    until_s : float
        The states are written at least until then [s]; always until the last job has ended.
    leave_unservable : bool
        Leave jobs that can never start out of the run, with null start and end, instead of refusing them.

    Returns
    -------
    Run
        Jobs that wait when nothing more can happen have null start and end.

    Raises
    ------
    SchemaError
        If the jobs are not as described.
    ScenarioError
        If a job can never start, a slot wants more GPUs than there are, or the rules are for
        :func:`~gpuplanner.simulate.schedule` alone.
    GeometryError
        If a profile or layout is not one of the board.

    Examples
    --------
    >>> jobs = pl.DataFrame({"job_id": ["a", "b", "c"], "tenant": "t", "submit_s": [0.0, 5.0, 6.0],
    ...     "run_s": 100.0, "gpus": 1, "profile": "1g.10gb", "sms_needed": [8.0, 32.0, 8.0]})
    >>> fleet = Fleet("H100-80GB-SXM5", nodes=1, gpus_per_node=1)
    >>> run = simulate(jobs, fleet, Calendar.constant({"1g.10gb:2": 1}), Rules(), policy="static")
    >>> run.outcomes.select("job_id", "first_start", "end", "wait_s").rows()
    [('a', 0.0, 100.0, 0.0), ('b', 5.0, 205.0, 0.0), ('c', 100.0, 200.0, 94.0)]
    >>> run.states.rows()
    [(0, 0, 0.0, 205.0, '1g.10gb:2', 'on')]
    """
    from gpuplanner.simulate.engine import advance

    refuse_rules_for_gangs(rules)
    table = checked(jobs, rules)
    terms = to_terms(table, fleet, calendar, rules)
    misfits = never_fitting(table, terms, fleet, calendar)
    if not leave_unservable:
        refuse(misfits, table.height)
    kept = table.with_row_index("row").join(misfits, on="job_id", how="anti").sort("submit_s", "row")
    world = to_world(kept, terms, fleet, calendar, rules, until_s)
    pages = []
    finished = False
    while not finished:
        finished = advance(world)
        pages.append(world.log[: world.status[0].logged].copy())
        world.status[0].logged = 0
    end_s = max(float(world.status[0].now), until_s)
    return Run(
        outcomes=_outcomes(table, kept["row"].to_numpy(), world, terms, fleet, policy, replication),
        states=_states(np.concatenate(pages), end_s, terms, fleet),
    )


def _outcomes(
    jobs: pl.DataFrame,
    rows: np.ndarray,
    world: World,
    terms: Terms,
    fleet: Fleet,
    policy: str,
    replication: int,
) -> pl.DataFrame:
    """Put the results, which are in order of arrival, into the order of the jobs."""

    def in_order(values: np.ndarray, missing: float) -> pl.Series:
        placed = np.full(jobs.height, missing, dtype=values.dtype)
        placed[rows] = values
        return pl.Series(placed)

    gpu = in_order(world.jobs.gpu, NONE)
    started = gpu != NONE
    served = in_order(world.jobs.served, NONE).replace_strict(
        {NONE: None} | dict(enumerate(terms.profiles)), return_dtype=pl.String
    )
    return conform(
        jobs.select(
            "job_id",
            "tenant",
            "profile",
            "gpus",
            pl.col("submit_s").alias("submit"),
            policy=pl.lit(policy),
            replication=pl.lit(replication),
            first_start=in_order(world.jobs.start, np.nan).fill_nan(None),
            end=in_order(world.jobs.end, np.nan).fill_nan(None),
            served_on=served,
            node=pl.when(started).then(gpu // fleet.gpus_per_node),
            gpu=pl.when(started).then(gpu % fleet.gpus_per_node),
            preemptions=0,
            lost_gpu_s=0.0,
        ).with_columns(
            wait_s=pl.col("first_start") - pl.col("submit"), jct_s=pl.col("end") - pl.col("submit")
        ),
        Outcomes,
        where="outcomes",
    )


def _states(log: np.ndarray, end_s: float, terms: Terms, fleet: Fleet) -> pl.DataFrame:
    """Turn changes into rows that last until the next change of the same GPU."""
    layouts = {NONE: "off"} | dict(enumerate(terms.layouts))
    return (
        pl.DataFrame(
            {"number": log["gpu"], "start_s": log["at"], "layout": log["layout"], "state": log["state"]}
        )
        .sort("number", maintain_order=True)
        .with_columns(end_s=pl.col("start_s").shift(-1).over("number").fill_null(end_s))
        .filter((pl.col("end_s") > pl.col("start_s")) | (pl.col("state") == RECONFIGURING))
        .select(
            node=(pl.col("number") // fleet.gpus_per_node).cast(pl.Int32),
            gpu=(pl.col("number") % fleet.gpus_per_node).cast(pl.Int32),
            start_s="start_s",
            end_s="end_s",
            layout=pl.col("layout").replace_strict(layouts, return_dtype=pl.String),
            state=pl.col("state").replace_strict(dict(enumerate(STATES)), return_dtype=pl.String),
        )
    )
