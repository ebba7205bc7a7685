"""What would happen: jobs, nodes and rules in; starts and nodes over time out."""

from gpuplanner.simulate.replications import bootstrap_days
from gpuplanner.simulate.rules import (Checkpoints, Drain, Failures, FairShare, Preemption)

__all__ = ["Checkpoints", "Drain", "Failures", "FairShare", "Preemption", "bootstrap_days"]
