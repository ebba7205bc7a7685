"""Layout plans as Slurm configuration.

Slurm does not cut GPUs: it is told what slices a node has, and drains a node that has fewer. So each switch
of layouts needs these lines changed together with it.
"""

from __future__ import annotations

import re
import shlex
from datetime import datetime

import polars as pl

from gpuplanner.catalog.aliases import names_of, slurm_type, slurm_type_of
from gpuplanner.errors import GeometryError, message
from gpuplanner.export.changes import (LayoutChange, held_by, layout_changes_of)
from gpuplanner.export.bundle_files import change_script, filled_template, template_text
from gpuplanner.export.states import NodeState, checked_plan, file_stamp, stamp, states_at
from gpuplanner.hardware.layout import OFF
from gpuplanner.hardware.change_cost import ChangeCost
from gpuplanner.hardware.gpu import GpuModel, as_board
from gpuplanner.schemas.vocabulary import WHOLE_GPU
from gpuplanner.simulate.rules import (Drain)

GRES_CONF = """\
# On every node; slurmd asks the driver what slices there are. It needs Slurm's NVML plugin (gpu_nvml.so), which some
# packages leave out, Debian's among them: use what static-gres.sh prints on the node then.
AutoDetect=nvml
"""
"""Contents of gres.conf on every node."""
STATIC_GRES = "static-gres.sh"
"""Script that prints gres.conf on a node whose Slurm has no NVML."""
INSTALL = "install-gres.sh"
"""Script that puts the Gres of nodes into the lines that slurm.conf has for them."""

_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def to_slurm_files(
    plan: pl.DataFrame,
    board: GpuModel | str,
    *,
    gres_type: str | None = None,
    change: ChangeCost | None = None,
    drain: Drain | None = None,
    initial: pl.DataFrame | None = None,
) -> dict[str, str]:
    """Print gres.conf, and the lines of slurm.conf with the script for each change; alike ones have one together.

    Parameters
    ----------
    plan, board, gres_type
        As for :func:`to_slurm`.
    change : ChangeCost, optional
        How long a change takes: that of the plan; None: by the operator, as the catalogue has it.
    drain, initial
        As for :func:`~gpuplanner.export.index.change_index`.

    Returns
    -------
    dict of str to str
        Text by file name: ``gres.conf``, ``static-gres.sh`` for builds of Slurm without NVML, ``install-gres.sh``,
        which puts lines into a slurm.conf, ``slurm-<time>.conf`` from the first time of the plan on, in the order of
        time, and ``change-<time>.sh`` for each of them at which some node is cut anew.

    Raises
    ------
    SchemaError, GeometryError
        As :func:`to_slurm`.
    """
    board = as_board(board)
    whole = _checked_type(board, gres_type)
    cost = ChangeCost.of(board) if change is None else change.on(board)
    frame = checked_plan(plan, board)
    limit_s = cost.drain_s.high if drain is None else drain.limit_s
    changes = layout_changes_of(frame, limit_s, held_by(initial))
    first = min(frame["slot_start"])
    times = dict.fromkeys([first, *(one.times[0] for one in changes)])
    lines = {f"slurm-{file_stamp(time)}.conf": _lines(frame, board, time, whole) for time in times}
    static = filled_template(STATIC_GRES, {"TYPE": whole})
    return (
        {"gres.conf": GRES_CONF, STATIC_GRES: static, INSTALL: template_text(INSTALL)}
        | lines
        | {f"{one.name}.sh": _change_script(frame, one, cost, board, whole) for one in changes}
    )


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
        Type of a whole GPU; slices are ``<type>_<profile>``. Slurm drains a node whose types are not part of those
        that slurmd finds. By default what slurmd finds for the usual variant of the board
        (:func:`~gpuplanner.catalog.slurm_type`), ``nvidia_h100_80gb_hbm3``.

    Returns
    -------
    str
        ``GresTypes`` and one ``NodeName`` line per node. ``AccountingStorageTRES`` with the types of the whole plan
        is a comment, since slurmctld stops at it where there is no slurmdbd. Comments state the layout of each GPU,
        so that the file can be proved again. Parked GPUs count as they are cut, released ones do not count: which nodes
        go while they are idle is up to Slurm's power saving.

    Raises
    ------
    SchemaError
        If the table is not a layout plan, or it says nothing about the time.
    GeometryError
        If a layout cannot be placed on the board, or the type is no Slurm type or is needed.

    Examples
    --------
    >>> from datetime import UTC
    >>> start, end = datetime(2026, 11, 2, tzinfo=UTC), datetime(2026, 11, 3, tzinfo=UTC)
    >>> plan = pl.DataFrame({
    ...     "node": ["n1", "n1"], "gpu": [0, 1], "slot_start": start, "slot_end": end,
    ...     "layout": ["1g.10gb:7", "gpu"], "changed": True,
    ... })
    >>> print(to_slurm(plan, "H100-80GB-SXM5", start).splitlines()[-1])
    NodeName=n1 Gres=gpu:nvidia_h100_80gb_hbm3:1,gpu:nvidia_h100_80gb_hbm3_1g.10gb:7
    """
    board = as_board(board)
    return _lines(checked_plan(plan, board), board, at, _checked_type(board, gres_type))


def _change_script(
    frame: pl.DataFrame, one: LayoutChange, cost: ChangeCost, board: GpuModel, whole: str
) -> str:
    """The script of a change."""
    steps = [
        f"config[{node}]={shlex.quote(after.config_name)}\n"
        f"gres[{node}]={shlex.quote(','.join(sorted(_counts(after, whole))))}\n"
        f"before[{node}]={shlex.quote(had.config_name if had else '')} size[{node}]={len(after.gpus)}"
        for node, (had, after) in one.nodes.items()
    ]
    lines = f"slurm-{file_stamp(one.times[0])}.conf"
    parts = {"LINES": lines, "STEPS": "\n".join(steps)}
    return change_script("change_slurm.sh", one, cost, board, parts)


def _counts(state: NodeState, whole: str) -> list[str]:
    """What a node has without the GPUs that are released: Slurm drains nodes that have fewer than stated, not more."""
    there = NodeState(tuple(one for one in state.gpus if one[0] not in state.released))
    return [f"gpu:{_gres_type(whole, profile)}:{count}" for profile, count in there.totals.items()]


def gres_of(state: NodeState, board: GpuModel, gres_type: str | None) -> str:
    """What a node line says of a node's GPUs."""
    return ",".join(_counts(state, _checked_type(board, gres_type)))


def _lines(frame: pl.DataFrame, board: GpuModel, at: datetime, whole: str) -> str:
    """Lines of one time of a checked plan."""
    states = states_at(frame, at)
    everything = NodeState(tuple(enumerate(frame["layout"].unique().sort().to_list())))
    types = [f"gres/gpu:{_gres_type(whole, profile)}" for profile in everything.totals]
    lines = [
        f"# slurm.conf from {stamp(at)}, board {board.name}.",
        "# In this order: drain the changed nodes, wait until they are empty, cut their GPUs, put the Gres of these",
        "# lines into yours ('bash install-gres.sh --dry-run FILE' shows it; a second line for a node is fatal),",
        "# 'scontrol reconfigure' (before Slurm 23.11: restart slurmctld, then slurmd of the nodes), resume;",
        f"# change-{file_stamp(at)}.sh does so where a node is cut anew. Slurm drains nodes with fewer devices.",
        *_type_notes(board, whole),
        "# gres.conf: AutoDetect=nvml, or where Slurm was built without NVML what static-gres.sh prints on the node.",
        "GresTypes=gpu",
        "# With slurmdbd only; without, slurmctld does not start:",
        f"# AccountingStorageTRES={','.join(['gres/gpu', *types])}",
    ]
    for node, state in states.items():
        lines += [
            f"# {node} gpu {gpu}: {OFF if gpu in state.released else layout}" for gpu, layout in state.gpus
        ]
        counts = _counts(state, whole)
        lines.append(f"NodeName={node}" + (f" Gres={','.join(counts)}" if counts else ""))
    return "\n".join(lines) + "\n"


def _type_notes(board: GpuModel, whole: str) -> list[str]:
    """Comments: for which product the types are those that slurmd finds, and the types of the others."""
    types = {name: slurm_type(name) for name in names_of(board.name, "nvml")}
    # Before the profile, the type must be the end of the one found.
    fit = [name for name, found in types.items() if found.endswith(whole.lower())]
    others = [f"{name}: {found}" for name, found in types.items() if name not in fit]
    return [
        f"# Types as slurmd finds them for {' and '.join(fit)}."
        if fit
        else "# Types as given by --gres-type.",
        *([f"# Other boards of this kind need --gres-type: {'; '.join(others)}."] if others else []),
    ]


def _checked_type(board: GpuModel, gres_type: str | None) -> str:
    whole = gres_type if gres_type is not None else slurm_type_of(board.name)
    if not _TYPE.fullmatch(whole):
        allowed = "letters, digits, '_', '.' and '-'"
        text = message("Slurm GRES type", allowed, repr(whole), "Take it from what 'slurmd -G' prints.")
        raise GeometryError(text)
    return whole


def _gres_type(whole: str, profile: str) -> str:
    return whole if profile == WHOLE_GPU else f"{whole}_{profile}"
