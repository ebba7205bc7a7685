"""Public names of the package and the modules that hold them: for type checkers, and loaded when used."""

from gpuplanner.decision.policy_layouts import FleetRules as FleetRules
from gpuplanner.decision.policy_layouts import PoolRule as PoolRule
from gpuplanner.decision.policy_layouts import TenantQuota as TenantQuota
from gpuplanner.decision.study import Study as Study
from gpuplanner.decision.study import open_study as open_study
from gpuplanner.decision.study_pipeline import evaluate as evaluate
from gpuplanner.decision.team_fairness import finish_time_fairness as finish_time_fairness
from gpuplanner.decision.team_fairness import isolated_outcomes as isolated_outcomes
from gpuplanner.decision.team_fairness import slowdown_by_tenant as slowdown_by_tenant
