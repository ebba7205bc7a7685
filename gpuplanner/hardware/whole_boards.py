"""Boards that are not cut: those without MIG, and those of which nothing but a name is known."""

from __future__ import annotations

from gpuplanner.catalog.loader import board_names, board_spec, find_any_board, whole_board_names
from gpuplanner.errors import GeometryError
from gpuplanner.hardware.gpu import GpuModel, load_gpu_model


def whole_board(name: str) -> GpuModel:
    """A board of that name that nobody can cut.

    It has one slice and no profile, so that everything that counts whole GPUs works for it, and whatever asks for
    a profile finds none. Memory, SMs and architecture are those of its data sheet, where the catalogue has one;
    else memory is 0, and SMs and architecture are not known.

    Parameters
    ----------
    name : str
        Any name; those of :func:`gpuplanner.catalog.whole_board_names` have a data sheet or a price.

    Examples
    --------
    >>> board = whole_board("T4")
    >>> board.memory_gib, board.sms, board.share("gpu"), board.profiles
    (16.0, 40, 1.0, ())
    >>> whole_board("a word of the source").memory_gib
    0.0
    """
    try:
        sheet = board_spec(name) if name in whole_board_names() else None
    except GeometryError:
        sheet = None
    if sheet is None:
        return GpuModel(name, 0.0, 1, 1, ())
    return GpuModel(name, sheet.memory_gb or 0.0, 1, 1, (), sheet.sm_or_cu_count, sheet.architecture)


def any_board(name: str) -> GpuModel:
    """Load a board of the catalogue: with its profiles if it has MIG, else as one that is never cut.

    Raises
    ------
    GeometryError
        If the board is unknown, or a prefix fits several.

    Examples
    --------
    >>> len(any_board("a30").profiles) > 0, any_board("t4").profiles
    (True, ())
    """
    known = find_any_board(name)
    return load_gpu_model(known) if known in board_names() else whole_board(known)
