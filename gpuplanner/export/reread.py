"""Check the layouts in files that operators edit by hand: mig-parted, its ConfigMap, and lines for Slurm."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.export.kubernetes import (DATA_KEY)
from gpuplanner.export.mig_parted import ALL_DISABLED
from gpuplanner.export.reread_parted import check_parted
from gpuplanner.export.reread_slurm import check_gres_conf, check_slurm
from gpuplanner.files.text import read_text
from gpuplanner.hardware.gpu import GpuModel, as_board
from gpuplanner.strict_yaml import LinedMapping, load_strict

MAX_BYTES = 4_000_000
FILE_KINDS = (
    "a mig-parted file (version: v1, mig-configs), a ConfigMap that holds one under data, or lines of slurm.conf "
    "(NodeName=... Gres=...) or gres.conf"
)

_GRES_LINE = re.compile(
    r"^[ \t]*(?:NodeName[ \t]*=\S+[ \t]+)?(?:AutoDetect|Name)[ \t]*=", re.IGNORECASE | re.MULTILINE
)
_NODE_LINE = re.compile(r"^[ \t]*NodeName[ \t]*=", re.IGNORECASE | re.MULTILINE)
_MAX_GPUS_PER_NODE = 64


@dataclass(frozen=True, slots=True)
class FileReport:
    """What was found in a file.

    Parameters
    ----------
    ok : bool
        Whether everything in it is right and possible.
    problems : list of str
        What is wrong, each with its place; empty if ok.
    findings : list of str
        What was understood: the placement found for each layout, and what deserves a look.
    """

    ok: bool
    problems: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)


def verify_file(path: str | Path, board: GpuModel | str, *, gpus_per_node: int = 8) -> FileReport:
    """Recognise a file by its content, read it strictly, and prove every layout in it.

    Parameters
    ----------
    path : str or Path
        A mig-parted file, a ConfigMap with one inside, or lines of slurm.conf or gres.conf.
    board : GpuModel or str
        Board of the nodes.
    gpus_per_node : int
        GPUs on one node.

    Returns
    -------
    FileReport
        Wrong entries are problems of the report, not exceptions.

    Raises
    ------
    TraceFormatError
        If the file cannot be read, or is none of the kinds understood.
    GeometryError
        If the board is unknown.
    """
    board = as_board(board)
    if not 1 <= gpus_per_node <= _MAX_GPUS_PER_NODE:
        text = message("gpus_per_node", f"1 to {_MAX_GPUS_PER_NODE}", repr(gpus_per_node), "Fix the number.")
        raise TraceFormatError(text)
    text = read_text(path, limit_bytes=MAX_BYTES, error=TraceFormatError)
    return _verify_text(text, board, gpus_per_node, where=str(path))


def states_layouts(text: str) -> bool:
    """Whether a text looks like a file that :func:`verify_file` checks.

    >>> states_layouts("NodeName=n1 Gres=gpu:8"), states_layouts("kind: Deployment")
    (True, False)
    """
    if text.startswith("#!"):
        return False
    return "mig-configs" in text or bool(_GRES_LINE.search(text) or _NODE_LINE.search(text))


def _verify_text(text: str, board: GpuModel, gpus_per_node: int, *, where: str) -> FileReport:
    if _GRES_LINE.search(text):
        problems, findings = check_gres_conf(text, board, gpus_per_node)
    elif _NODE_LINE.search(text):
        problems, findings = check_slurm(text, board, gpus_per_node)
    else:
        document = load_strict(text, where=where)
        if isinstance(document, LinedMapping) and document.get("kind") == "ConfigMap":
            problems, findings = _check_config_map(document, board, gpus_per_node, where=where)
        elif isinstance(document, LinedMapping) and "mig-configs" in document:
            problems, findings = check_parted(document, board, gpus_per_node)
        else:
            hint = "Check the path; plans and traces have commands of their own."
            raise TraceFormatError(message(where, FILE_KINDS, "something else", hint))
    return FileReport(ok=not problems, problems=problems, findings=findings)


def _check_config_map(
    document: LinedMapping, board: GpuModel, gpus_per_node: int, *, where: str
) -> tuple[list[str], list[str]]:
    """Look at what the MIG manager needs; everything else in the object is the cluster's business."""
    problems = []
    if document.get("apiVersion") != "v1":
        problems.append("ConfigMap: apiVersion must be v1")
    metadata = document.get("metadata")
    for key in ("name", "namespace"):
        value = metadata.get(key) if isinstance(metadata, LinedMapping) else None
        if not (isinstance(value, str) and value):
            problems.append(f"ConfigMap: metadata.{key} is missing; the ClusterPolicy has to name it")
    data = document.get("data")
    body = data.get(DATA_KEY) if isinstance(data, LinedMapping) else None
    if not isinstance(body, str):
        return [*problems, f"ConfigMap: data must hold the text {DATA_KEY!r}"], []
    inner = load_strict(body, where=f"{where}, data {DATA_KEY}")
    if not isinstance(inner, LinedMapping):
        return [*problems, f"ConfigMap: data {DATA_KEY!r} is no mig-parted file"], []
    found, findings = check_parted(inner, board, gpus_per_node)
    configs = inner.get("mig-configs")
    if isinstance(configs, LinedMapping) and ALL_DISABLED not in configs:
        problems.append(
            f"ConfigMap: config {ALL_DISABLED!r} is missing; the operator labels nodes so, and a change cannot be "
            "taken back to a config that is not there"
        )
    return [*problems, *(f"{DATA_KEY} {problem}" for problem in found)], findings
