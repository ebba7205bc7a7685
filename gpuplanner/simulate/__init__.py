"""What would happen: jobs, a fleet and rules or a calendar of layouts in; waits, ends and GPU states out."""

from gpuplanner.simulate.fleet import Calendar, Fleet
from gpuplanner.simulate.joblist import read_job_list, totals
from gpuplanner.simulate.jobs import Workload, unservable
from gpuplanner.simulate.replications import bootstrap_days
from gpuplanner.simulate.research import Cluster, Gang, in_order, schedule_by
from gpuplanner.simulate.rules import Checkpoints, Failures, FairShare, Preemption, Rules
from gpuplanner.simulate.run import Run, simulate
from gpuplanner.simulate.schedule import prepare, schedule

__all__ = [
    "Calendar",
    "Checkpoints",
    "Cluster",
    "Failures",
    "FairShare",
    "Fleet",
    "Gang",
    "Preemption",
    "Rules",
    "Run",
    "Workload",
    "bootstrap_days",
    "in_order",
    "prepare",
    "read_job_list",
    "schedule",
    "schedule_by",
    "simulate",
    "totals",
    "unservable",
]
