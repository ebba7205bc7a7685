"""The machine: boards, MIG profiles, layouts, and what is possible on them."""

from gpuplanner.hardware.change_cost import ChangeCost
from gpuplanner.hardware.enumerate import (
    LayoutList,
    layout_counts,
    list_layouts,
    multisets,
    pareto_counts,
    placed_layouts,
)
from gpuplanner.hardware.feasibility import Proof, creation_order, driver_starts, place_in_order, prove
from gpuplanner.hardware.gpu import GpuModel, as_board, load_gpu_model
from gpuplanner.hardware.layout import (
    OFF,
    Layout,
    Placement,
    format_layout,
    free_slices,
    layout_faults,
    parse_layout,
    parse_placements,
)
from gpuplanner.hardware.names import (
    DeviceWord,
    Share,
    boards_meant,
    common_share,
    parse_device,
    profile_on,
)
from gpuplanner.hardware.profile import MigProfile, ProfileName
from gpuplanner.hardware.reconfigure import Reconfiguration
from gpuplanner.hardware.seconds import Seconds, minutes
from gpuplanner.hardware.spread import at_least, fewest_gpus, spread
from gpuplanner.hardware.whole_boards import any_board, whole_board
from gpuplanner.paths import EMPTIED, MADE_BY, PATHS

__all__ = [
    "EMPTIED",
    "MADE_BY",
    "OFF",
    "PATHS",
    "ChangeCost",
    "DeviceWord",
    "GpuModel",
    "Layout",
    "LayoutList",
    "MigProfile",
    "Placement",
    "ProfileName",
    "Proof",
    "Reconfiguration",
    "Seconds",
    "Share",
    "any_board",
    "as_board",
    "at_least",
    "boards_meant",
    "common_share",
    "creation_order",
    "driver_starts",
    "fewest_gpus",
    "format_layout",
    "free_slices",
    "layout_counts",
    "layout_faults",
    "list_layouts",
    "load_gpu_model",
    "minutes",
    "multisets",
    "pareto_counts",
    "parse_device",
    "parse_layout",
    "parse_placements",
    "place_in_order",
    "placed_layouts",
    "profile_on",
    "prove",
    "spread",
    "whole_board",
]
