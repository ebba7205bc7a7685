"""Slices of a board as the speed model sees them: by their share of the SMs."""

from __future__ import annotations

import polars as pl

from gpuplanner.errors import GeometryError, message
from gpuplanner.hardware.gpu import GpuModel
from gpuplanner.hardware.profile import MigProfile
from gpuplanner.schemas.vocabulary import WHOLE_GPU
from gpuplanner.sizing.profile_sizes import plain_profiles


def full_profile(board: GpuModel) -> MigProfile:
    """The profile that takes the whole board, against which speeds are measured.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu import as_board
    >>> full_profile(as_board("H100-80GB-SXM5")).name
    '7g.80gb'
    """
    for profile in board.profiles:
        whole = (profile.compute_slices, profile.memory_slices) == (board.compute_slices, board.memory_slices)
        if whole and not profile.attribute:
            return profile
    text = message(f"{board.name}: full-size profile", "one", "none", "Add its row, as the driver lists it.")
    raise GeometryError(text)


def sm_fraction(board: GpuModel, profile: MigProfile) -> float:
    """SMs of a profile over those of the full-size profile.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu import as_board
    >>> board = as_board("H100-80GB-SXM5")
    >>> round(sm_fraction(board, board.profile("3g.40gb")), 3)  # not 3/7
    0.455
    """
    return board.sms_of(profile.name) / board.sms_of(full_profile(board).name)


def profile_table(board: GpuModel) -> pl.DataFrame:
    """Profiles of a board from small to large, then the whole GPU, with what a speed depends on.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu import as_board
    >>> table = profile_table(as_board("A100-40GB")).select("profile", "fraction", "uncut")
    >>> table.with_columns(pl.col("fraction", "uncut").round(2)).rows()[-3:]
    [('4g.20gb', 0.57, 0.52), ('7g.40gb', 1.0, 0.91), ('gpu', 1.0, 1.0)]
    """
    full, sms = full_profile(board), board.sms_of(WHOLE_GPU)
    rows = [
        (
            profile.name,
            profile.compute_slices,
            profile.memory_slices,
            profile.memory_gib,
            sm_fraction(board, profile),
            board.sms_of(profile.name) / sms,
        )
        for profile in plain_profiles(board)
    ]
    rows.append((WHOLE_GPU, full.compute_slices, full.memory_slices, full.memory_gib, 1.0, 1.0))
    names = ["profile", "compute_slices", "memory_slices", "memory_gib", "fraction", "uncut"]
    return pl.DataFrame(rows, schema=names, orient="row").with_row_index("rank")
