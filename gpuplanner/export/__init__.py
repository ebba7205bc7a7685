"""Plans as files for operators and finance, each with its own check."""

from gpuplanner.export.fleet_rules import FleetRules, PoolRule, TenantQuota
from gpuplanner.export.index import (change_index, to_index_text)
from gpuplanner.export.kubernetes import (allocatable, to_change_scripts, to_config_map)
from gpuplanner.export.mig_parted import to_mig_parted
from gpuplanner.export.reread import FileReport, states_layouts, verify_file
from gpuplanner.export.slurm import GRES_CONF, to_slurm, to_slurm_files
from gpuplanner.export.states import NodeState
from gpuplanner.files.csv import write_csv_safe

__all__ = [
    "GRES_CONF",
    "FileReport",
    "FleetRules",
    "NodeState",
    "PoolRule",
    "TenantQuota",
    "allocatable",
    "change_index",
    "states_layouts",
    "to_change_scripts",
    "to_config_map",
    "to_index_text",
    "to_mig_parted",
    "to_slurm",
    "to_slurm_files",
    "verify_file",
    "write_csv_safe",
]
