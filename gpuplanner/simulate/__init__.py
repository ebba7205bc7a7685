"""What would happen: jobs, a fleet and rules or a calendar of layouts in; waits, ends and GPU states out."""

from gpuplanner.simulate.fleet import Calendar, Fleet
from gpuplanner.simulate.jobs import Workload
from gpuplanner.simulate.replications import bootstrap_days
from gpuplanner.simulate.rules import Checkpoints, Drain, Failures, FairShare, Preemption, Rules
from gpuplanner.simulate.run import Run, simulate

__all__ = [
    "Calendar",
    "Checkpoints",
    "Drain",
    "Failures",
    "FairShare",
    "Fleet",
    "Preemption",
    "Rules",
    "Run",
    "Workload",
    "bootstrap_days",
    "simulate",
]
