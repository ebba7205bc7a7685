"""Run jobs through a fleet, and give back what became of every job and every GPU."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from gpuplanner.simulate.build import to_terms, to_world
from gpuplanner.simulate.fleet import Calendar, Fleet
from gpuplanner.simulate.jobs import checked_phases, never_fitting, refuse
from gpuplanner.simulate.results import outcomes_of, phase_spells, states_of
from gpuplanner.simulate.rules import Rules
from gpuplanner.simulate.slices.planned_changes import CHANGES, changes_of
from gpuplanner.simulate.slices.world import World


@dataclass(frozen=True)
class Run:
    """What became of the jobs and of the GPUs.

    Parameters
    ----------
    outcomes : polars.DataFrame
        Table ``schemas.Outcomes``, in the order of the jobs, and ``queued_s``: all time in queues [s], before the
        first phase and between phases. Of a job with phases, what it asked for and where it was are those of the
        first; ``lost_gpu_s`` is what its restarts took.
    states : polars.DataFrame
        ``node``, ``gpu`` (on the node), ``start_s``, ``end_s``, ``layout`` and ``state``, sorted by GPU and
        time: every GPU is in one row at every time from 0 to the end of the run. States are ``on``;
        ``draining``, when nothing new starts because another layout is due; ``reconfiguring``, where
        ``layout`` is the coming one; and ``off``. A reconfiguration that takes no time keeps its row.
    spells : polars.DataFrame
        One row for every phase that a job came to, in the order of the jobs: ``job_id``, ``tenant``, ``since_s``
        (it waited from then on), ``start_s`` and ``end_s`` (null if it never got what it asked for),
        ``profile``, ``served_on``, ``gpus``, ``node``, ``gpu``, ``lost_s`` (what its restart took), ``ended``
        (``"finished"`` or ``"next phase"``) and ``phase``.
    changes : polars.DataFrame
        One row for every planned change where ``Rules.drain`` says how they are made: ``node``, ``gpu`` (null where
        the node is changed as a whole), ``gpus`` (how many change), ``before`` and ``after`` (their planned layouts, as
        ``0=gpu 1=3g.40gb:2``), ``wanted_s`` (planned), ``began_s`` (cordon), ``drained_s``, ``ended_s``,
        ``drain_minutes`` and ``outcome``: ``"done"``, ``"given up"`` or ``"evicted"``; what
        had not come to that by the end of the run is null.
    """

    outcomes: pl.DataFrame
    states: pl.DataFrame
    spells: pl.DataFrame
    changes: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=CHANGES))


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
    phases: pl.DataFrame | None = None,
) -> Run:
    """Serve jobs in order of arrival with the layouts of a calendar.

    Within one instant: jobs end, reconfigurations are done, the calendar changes, jobs arrive, jobs start.

    Jobs wait in one queue per profile, first come first served; ties of submission go by the order of the
    jobs. A job on whole GPUs gets the node with the fewest idle GPUs that holds it; one larger than a node
    needs wholly idle nodes and leaves the rest of the last one to others. A job on an instance runs
    ``max(1, sms_needed / SMs of the instance)`` times as long as ``run_s``.

    When a phase of a job ends, the job stays where it is if the next one asks for the same. Else it gives its
    instance back and waits at the end of the queue of what it needs next; there it takes
    the ``restart_s`` of ``Rules.change`` to start again, unless it gets the same instance in the same instant.

    When a slot begins, layouts in surplus give up GPUs: first those already leaving, then those with the
    fewest busy slices, on nodes with cut GPUs, with the highest number. A leaving GPU starts nothing new, is
    reconfigured when its last job ends, and comes up in the layout that is then most short of GPUs, or is
    switched off. Running jobs are never stopped, unless ``Rules.drain`` evicts them: a job keeps its first start then,
    and ``lost_s`` counts what was done again and what its restarts took. GPUs that are off are switched on first: as
    whole GPUs at once, in other layouts after a reconfiguration.

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
        Leave jobs that can never start, or end, out of the run, with null start and end, instead of refusing
        them.
    phases : polars.DataFrame, optional
        ``job_id``, ``profile``, ``run_s``, and ``gpus``, ``sms_needed`` and ``limit_s`` as for jobs (they may be
        null or absent): the phases of a job in the order of the rows. What the job itself asks for then does
        not count.

    Returns
    -------
    Run
        Jobs that wait when nothing more can happen have null start and end.

    Raises
    ------
    SchemaError
        If the jobs are not as described.
    ScenarioError
        If a job can never start or a slot wants more GPUs than there are.
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
    rows = checked_phases(jobs, phases, rules)
    terms = to_terms(rows, fleet, calendar, rules)
    misfits = never_fitting(rows, terms, fleet, calendar)
    if not leave_unservable:
        refuse(misfits, jobs.height)
    kept = rows.join(misfits, on="job_id", how="anti").sort(pl.col("phase") > 0, "submit_s", "row", "phase")
    world = to_world(kept, terms, fleet, calendar, rules, until_s)
    log = _run(world)
    end_s = max(float(world.status[0].now), until_s)
    left_out = rows.filter(phase=0).join(misfits, on="job_id", how="semi")
    spells = phase_spells(kept, left_out, world, terms, fleet)
    return Run(
        outcomes=outcomes_of(rows.filter(phase=0).sort("row"), spells, policy, replication),
        states=states_of(log, end_s, terms, fleet),
        spells=spells.drop("row"),
        changes=changes_of(world.operations, world.cut, terms.layouts, fleet, rules.drain),
    )


def _run(world: World) -> np.ndarray:
    """Run the loop to its end, and return the changes of state."""
    from gpuplanner.simulate.slices.calendar_loop import advance

    pages = []
    finished = False
    while not finished:
        finished = advance(world)
        pages.append(world.log[: world.status[0].logged].copy())
        world.status[0].logged = 0
    return np.concatenate(pages)
