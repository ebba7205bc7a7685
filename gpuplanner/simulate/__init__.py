"""What would happen: jobs, a fleet and a calendar of layouts in; waits, ends and GPU states out."""

from gpuplanner.simulate.fleet import Calendar, Fleet, Rules
from gpuplanner.simulate.jobs import Workload, unservable
from gpuplanner.simulate.replications import bootstrap_days
from gpuplanner.simulate.run import Run, simulate

__all__ = ["Calendar", "Fleet", "Rules", "Run", "Workload", "bootstrap_days", "simulate", "unservable"]
