"""Nodes of a Slurm cluster: what ``scontrol show node`` and ``sinfo -N -o "%N %G"`` print."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpuplanner.inbox.core.fields import Field
from gpuplanner.inbox.core.records import Record, Records
from gpuplanner.inbox.core.rows import Rows
from gpuplanner.inbox.core.text_file import read_text_file
from gpuplanner.inbox.slurm.words import MIG_TYPE, NO_VALUE

SINFO_HEADER = {"NODELIST", "GRES"}
PARENTHESES = re.compile(r"\([^()]*\)")
GPU = re.compile(r"gpu(?::(?P<type>(?!no_consume)[^:]*[^:\d][^:]*))?(?::no_consume)?(?::(?P<count>\d{1,6}))?")

Found = tuple[int, str, str, str]
"""Number of the line, the line, name of the node, its Gres."""


def is_slurm_nodes(lines: Sequence[str]) -> bool:
    """True if the first lines of a file look like nodes of Slurm.

    Examples
    --------
    >>> is_slurm_nodes(["NodeName=n1 Arch=x86_64"]), is_slurm_nodes(["node,gpus,gpu_model"])
    (True, False)
    """
    return bool(lines) and (
        lines[0].lstrip().startswith("NodeName=") or set(lines[0].split()) >= SINFO_HEADER
    )


def read_slurm_nodes(path: str | Path, columns: dict[str, Field]) -> Rows:
    r"""Read the nodes of a Slurm cluster: name, number of GPUs, board.

    Parameters
    ----------
    path : str or Path
        Text of ``scontrol show node`` (also ``--oneliner``), or of ``sinfo -N`` with its header line and the
        columns NODELIST and GRES.
    columns : dict of str to Field
        Fields for ``node``, ``gpus`` and ``gpu_model``.

    Returns
    -------
    Rows
        One row per node; a node that sinfo lists for several partitions counts once. Rejected are nodes
        whose number of GPUs does not follow: several nodes on one line, and nodes with MIG instances, of
        which the source counts only the instances.

    Raises
    ------
    TraceFormatError
        If the file cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> from gpuplanner.inbox.slurm.inventory import COLUMN_MAP
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "nodes.txt"
    ...     _ = path.write_text("NodeName=n1 Arch=x86_64\n   Gres=gpu:a100:4(S:0-1),mps:400\n")
    ...     read_slurm_nodes(path, COLUMN_MAP).good["node", "gpus", "gpu_model"].rows()
    [('n1', 4.0, 'a100')]
    """
    file = read_text_file(path)
    lines = list(file.lines.iter_rows())
    first = next((text for _, text in lines if text.strip()), "")
    found = _scontrol(lines) if first.lstrip().startswith("NodeName=") else _sinfo(lines)
    records, seen = Records(columns), set()
    for number, line, node, gres in found:
        if (node, gres) in seen:
            continue
        seen.add((node, gres))
        try:
            records.add(0, number, line, _record(node, gres))
        except ValueError as error:
            records.reject(0, number, line, str(error))
    return records.rows([file])


def _scontrol(lines: Sequence[tuple[int, str]]) -> Iterator[Found]:
    """Each record begins with the line of its NodeName."""
    begun: tuple[int, str, str] | None = None
    gres = ""
    for number, line in lines:
        words = line.split()
        if words and words[0].startswith("NodeName="):
            if begun:
                yield *begun, gres
            begun, gres = (number, line, words[0].partition("=")[2]), ""
        gres = next((word.partition("=")[2] for word in words if word.startswith("Gres=")), gres)
    if begun:
        yield *begun, gres


def _sinfo(lines: Sequence[tuple[int, str]]) -> Iterator[Found]:
    table = [(number, line, line.split()) for number, line in lines if line.strip()]
    header = table[0][2]
    node, gres = header.index("NODELIST"), header.index("GRES")
    for number, line, words in table[1:]:
        if words != header:
            whole = len(words) == len(header)
            yield number, line, words[node] if whole else "", words[gres] if whole else ""


def _record(node: str, gres: str) -> Record:
    if not node:
        reason = "not a name and a Gres for each column of the header"
        raise ValueError(reason)
    if "[" in node:
        reason = "several nodes on one line: use sinfo -N"
        raise ValueError(reason)
    items = [] if gres in NO_VALUE else PARENTHESES.sub("", gres).split(",")
    total, boards = 0, []
    for item in items:
        match = GPU.fullmatch(item)
        if match is None:
            if item == "gpu" or item.startswith("gpu:"):
                reason = f"Gres: {item!r} is no number of GPUs"
                raise ValueError(reason)
            continue
        if match["type"] and MIG_TYPE.fullmatch(match["type"]):
            reason = "MIG instances: the source does not say how many GPUs they are on"
            raise ValueError(reason)
        total += int(match["count"] or 1)
        boards += [match["type"]] if match["type"] else []
    return {"node": node, "gpus": str(total), "gpu_model": "|".join(dict.fromkeys(boards)) or None}
