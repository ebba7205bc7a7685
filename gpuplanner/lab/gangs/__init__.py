"""Jobs on whole GPUs, one fleet and one queue: orders, stops, failures, and policies as Python functions."""

from gpuplanner.lab.gangs.cluster import Cluster, Gang
from gpuplanner.lab.gangs.python_policies import in_order, run_gangs_by, schedule_by
from gpuplanner.lab.gangs.rules import GangRules
from gpuplanner.lab.gangs.schedule import prepare, run_gangs, schedule
from gpuplanner.lab.gangs.spells import GangRun

__all__ = [
    "Cluster",
    "Gang",
    "GangRules",
    "GangRun",
    "in_order",
    "prepare",
    "run_gangs",
    "run_gangs_by",
    "schedule",
    "schedule_by",
]
