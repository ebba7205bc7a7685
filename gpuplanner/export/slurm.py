"""Layout plans as Slurm configuration.

Slurm does not cut GPUs: it is told what slices a node has, and drains a node that has fewer. So each switch
of layouts needs these lines changed together with it.
"""

from __future__ import annotations

import re
from datetime import datetime

import polars as pl

from gpuplanner.errors import GeometryError, message
from gpuplanner.export.states import NodeState, checked_plan, file_stamp, stamp, states_at, switch_times
from gpuplanner.hardware import GpuModel, as_board
from gpuplanner.schemas import WHOLE_GPU

GRES_CONF = "AutoDetect=nvml\n"
"""Contents of gres.conf on every node: slurmd asks the driver what slices there are."""

_TYPE = re.compile(r"[a-z0-9][a-z0-9_.-]*")


def to_slurm_files(
    plan: pl.DataFrame, board: GpuModel | str, *, gres_type: str | None = None
) -> dict[str, str]:
    """Print gres.conf, and the lines of slurm.conf for each time at which some range of the plan begins.

    Returns
    -------
    dict of str to str
        Text by file name: ``gres.conf``, then ``slurm-<time>.conf`` in the order of time.

    Raises
    ------
    SchemaError, GeometryError
        As :func:`to_slurm`.
    """
    board = as_board(board)
    whole = _checked_type(board, gres_type)
    frame = checked_plan(plan, board)
    lines = {
        f"slurm-{file_stamp(time)}.conf": _lines(frame, board, time, whole) for time in switch_times(frame)
    }
    return {"gres.conf": GRES_CONF} | lines


def to_slurm(plan: pl.DataFrame, board: GpuModel | str, at: datetime, *, gres_type: str | None = None) -> str:
    """Print the lines of slurm.conf that hold at one time.

    Parameters
    ----------
    plan : polars.DataFrame
        Table ``schemas.LayoutPlan``.
    board : GpuModel or str
        The board of all nodes.
    at : datetime
        With its zone.
    gres_type : str, optional
        Type of a whole GPU; slices are ``<type>_<profile>``. Slurm wants it to be part of the name that
        slurmd detects, for example ``nvidia_h100_80gb_hbm3``. By default the board's family, ``h100``.

    Returns
    -------
    str
        ``GresTypes``, ``AccountingStorageTRES`` with the types of the whole plan, and one ``NodeName`` line
        per node. Comments state the layout of each GPU, so that the file can be proved again. GPUs that are
        not needed are left out of the counts.

    Raises
    ------
    SchemaError
        If the table is not a layout plan, or it says nothing about the time.
    GeometryError
        If a layout cannot be placed on the board, or the type is no Slurm type.

    Examples
    --------
    >>> from datetime import UTC
    >>> start, end = datetime(2026, 11, 2, tzinfo=UTC), datetime(2026, 11, 3, tzinfo=UTC)
    >>> plan = pl.DataFrame({
    ...     "node": ["n1", "n1"], "gpu": [0, 1], "slot_start": start, "slot_end": end,
    ...     "layout": ["1g.10gb:7", "gpu"], "changed": True,
    ... })
    >>> print(to_slurm(plan, "H100-80GB-SXM5", start).splitlines()[-1])
    NodeName=n1 Gres=gpu:h100:1,gpu:h100_1g.10gb:7
    """
    board = as_board(board)
    return _lines(checked_plan(plan, board), board, at, _checked_type(board, gres_type))


def board_type(board: GpuModel) -> str:
    """Slurm type of a board: its family in lower case.

    Examples
    --------
    >>> board_type(as_board("H100-80GB-SXM5")), board_type(as_board("RTX-PRO-6000"))
    ('h100', 'rtx_pro_6000_blackwell')
    """
    family = re.split(r"-\d+GB", board.name)[0]
    return family.lower().replace("-", "_")


def _lines(frame: pl.DataFrame, board: GpuModel, at: datetime, whole: str) -> str:
    """Lines of one time of a checked plan."""
    states = states_at(frame, at)
    everything = NodeState(tuple(enumerate(frame["layout"].unique().sort().to_list())))
    types = [f"gres/gpu:{_gres_type(whole, profile)}" for profile in everything.totals]
    lines = [
        f"# slurm.conf from {stamp(at)}, board {board.name}.",
        "# Cut the GPUs first, then merge these lines into yours; restart slurmctld and the changed slurmd.",
        "# A type must be part of the 'MIG Profile' that slurmd prints at debug2; else it drains.",
        "# gres.conf: AutoDetect=nvml",
        "GresTypes=gpu",
        f"AccountingStorageTRES={','.join(['gres/gpu', *types])}",
    ]
    for node, state in states.items():
        lines += [f"# {node} gpu {gpu}: {layout}" for gpu, layout in state.gpus]
        counts = [f"gpu:{_gres_type(whole, profile)}:{count}" for profile, count in state.totals.items()]
        lines.append(f"NodeName={node}" + (f" Gres={','.join(counts)}" if counts else ""))
    return "\n".join(lines) + "\n"


def _checked_type(board: GpuModel, gres_type: str | None) -> str:
    whole = gres_type if gres_type is not None else board_type(board)
    if not _TYPE.fullmatch(whole):
        allowed = "lower-case letters, digits, '_', '.' and '-'"
        text = message("Slurm GRES type", allowed, repr(whole), "Take it from what slurmd detects.")
        raise GeometryError(text)
    return whole


def _gres_type(whole: str, profile: str) -> str:
    return whole if profile == WHOLE_GPU else f"{whole}_{profile}"
