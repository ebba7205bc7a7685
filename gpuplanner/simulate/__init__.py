"""What would happen: jobs, a fleet and rules or a calendar of layouts in; waits, ends and GPU states out."""

from gpuplanner.simulate.fleet import Calendar, Fleet
from gpuplanner.simulate.gangs.cluster import Cluster, Gang
from gpuplanner.simulate.gangs.python_policies import in_order, run_gangs_by, schedule_by
from gpuplanner.simulate.gangs.schedule import prepare, run_gangs, schedule
from gpuplanner.simulate.gangs.spells import GangRun
from gpuplanner.simulate.jobs import Workload
from gpuplanner.simulate.replications import bootstrap_days
from gpuplanner.simulate.rules import Checkpoints, Drain, Failures, FairShare, Preemption, Rules
from gpuplanner.simulate.run import Run, simulate
from gpuplanner.simulate.speeds import Speeds

__all__ = [
    "Calendar",
    "Checkpoints",
    "Cluster",
    "Drain",
    "Failures",
    "FairShare",
    "Fleet",
    "Gang",
    "GangRun",
    "Preemption",
    "Rules",
    "Run",
    "Speeds",
    "Workload",
    "bootstrap_days",
    "in_order",
    "prepare",
    "run_gangs",
    "run_gangs_by",
    "schedule",
    "schedule_by",
    "simulate",
]
