"""Public names of the package and the modules that hold them: for type checkers, and loaded when used."""

from gpuplanner.simulator.planned_layout_changes import LayoutChanges as LayoutChanges
from gpuplanner.simulator.replications import ConfidenceInterval as ConfidenceInterval
from gpuplanner.simulator.replications import PairedChange as PairedChange
from gpuplanner.simulator.replications import bootstrap_days as bootstrap_days
from gpuplanner.simulator.replications import compare_paired as compare_paired
from gpuplanner.simulator.replications import mean_interval as mean_interval
from gpuplanner.simulator.replications import student_t as student_t
from gpuplanner.simulator.scheduling_rules import Checkpoints as Checkpoints
from gpuplanner.simulator.scheduling_rules import Drain as Drain
from gpuplanner.simulator.scheduling_rules import Failures as Failures
from gpuplanner.simulator.scheduling_rules import FairShare as FairShare
from gpuplanner.simulator.scheduling_rules import PreemptionCosts as PreemptionCosts
from gpuplanner.simulator.scheduling_rules import QuotaGroup as QuotaGroup
from gpuplanner.simulator.scheduling_rules import SharedOutcome as SharedOutcome
from gpuplanner.simulator.scheduling_rules import Sharing as Sharing
from gpuplanner.simulator.simulation_inputs import DynamicMig as DynamicMig
from gpuplanner.simulator.simulation_inputs import NodeAutoscaling as NodeAutoscaling
from gpuplanner.simulator.simulation_inputs import NodeFleet as NodeFleet
from gpuplanner.simulator.simulation_inputs import NodeNetwork as NodeNetwork
from gpuplanner.simulator.simulation_inputs import NodeRequests as NodeRequests
from gpuplanner.simulator.simulation_inputs import Outcome as Outcome
from gpuplanner.simulator.simulation_inputs import instance_sets as instance_sets
from gpuplanner.simulator.simulation_run import simulate_requests as simulate_requests
from gpuplanner.simulator.simulation_run import simulate_shared_requests as simulate_shared_requests
