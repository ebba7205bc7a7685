"""Facts about boards, prices and carbon: data with a source, never constants in code."""

from gpuplanner.catalog.loader import (
    FACT_TABLES,
    Parameter,
    board_names,
    board_spec,
    carbon_intensity,
    facts,
    find_board,
    gpu_price,
    parameter,
)

__all__ = [
    "FACT_TABLES",
    "Parameter",
    "board_names",
    "board_spec",
    "carbon_intensity",
    "facts",
    "find_board",
    "gpu_price",
    "parameter",
]
