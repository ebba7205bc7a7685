"""Facts about boards, prices and carbon: data with a source, never constants in code."""

from gpuplanner.catalog.aliases import all_boards, boards_called, names_of, slurm_type, slurm_type_of
from gpuplanner.catalog.loader import (
    FACT_TABLES,
    Parameter,
    PathFact,
    board_names,
    board_spec,
    facts,
    find_any_board,
    find_board,
    gpu_price,
    has_price,
    parameter,
    path_facts,
    paths_by_source,
    whole_board_names,
)

__all__ = [
    "FACT_TABLES",
    "Parameter",
    "PathFact",
    "all_boards",
    "board_names",
    "board_spec",
    "boards_called",
    "facts",
    "find_any_board",
    "find_board",
    "gpu_price",
    "has_price",
    "names_of",
    "parameter",
    "path_facts",
    "paths_by_source",
    "slurm_type",
    "slurm_type_of",
    "whole_board_names",
]
