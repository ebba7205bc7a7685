"""Nodes of a Slurm cluster: what ``scontrol show node`` and ``sinfo -N -o "%N %G"`` print."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpuplanner.hardware import fewest_gpus, format_layout, parse_device
from gpuplanner.inbox.core.boards import Boards, stated_boards, told_by_profiles
from gpuplanner.inbox.core.lines.fields import Field
from gpuplanner.inbox.core.lines.records import Record, Records
from gpuplanner.inbox.core.lines.rows import Rows
from gpuplanner.inbox.core.lines.text_file import read_text_file
from gpuplanner.inbox.slurm.fields import NO_VALUE
from gpuplanner.schemas import WHOLE_GPU

SINFO_HEADER = {"NODELIST", "GRES"}
PARENTHESES = re.compile(r"\([^()]*\)")
GPU = re.compile(r"gpu(?::(?P<type>(?!no_consume)[^:]*[^:\d][^:]*))?(?::no_consume)?(?::(?P<count>\d{1,6}))?")

STATE = {"state": Field("state", nullable=True, optional=True)}
Found = tuple[int, str, str, str, str]
"""Number of the line, the line, name of the node, its Gres, its State."""


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


def read_slurm_nodes(
    path: str | Path, columns: dict[str, Field], stated: Mapping[str, str] | None = None
) -> Rows:
    r"""Read the nodes of a Slurm cluster: name, number of GPUs, board, and how the GPUs are cut.

    Instances are counted as the fewest boards that can hold them: seven of 1g are one board, and so are two of 3g.

    Examples
    --------
    >>> import tempfile
    >>> from gpuplanner.inbox.slurm.inventory import COLUMN_MAP
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "nodes.txt"
    ...     _ = path.write_text("NodeName=n1 Arch=x86_64\n   Gres=gpu:a100:1(S:0-1),gpu:a100_1g.5gb:14,mps:400\n")
    ...     read_slurm_nodes(path, COLUMN_MAP).good["node", "gpus", "gpu_model", "layouts"].rows()
    [('n1', 3.0, 'a100', 'gpu;1g.5gb:7;1g.5gb:7')]
    """
    file = read_text_file(path)
    lines = list(file.lines.iter_rows())
    first = next((text for _, text in lines if text.strip()), "")
    found = list(_scontrol(lines) if first.lstrip().startswith("NodeName=") else _sinfo(lines))
    types = {match["type"] for *_, gres, _ in found for item in _gres(gres) if (match := GPU.fullmatch(item))}
    boards = Boards(stated_boards(stated), told_by_profiles(parse_device(word) for word in types if word))
    records, seen = Records(columns | STATE), set()
    for number, line, node, gres, state in found:
        if (node, gres) in seen:
            continue
        seen.add((node, gres))
        try:
            records.add(0, number, line, {**_record(node, gres, boards), "state": state or None})
        except ValueError as error:
            records.reject(0, number, line, str(error))
    return records.rows([file])


def _scontrol(lines: Sequence[tuple[int, str]]) -> Iterator[Found]:
    """Each record begins with the line of its NodeName."""
    begun: tuple[int, str, str] | None = None
    told = {"Gres": "", "State": ""}
    for number, line in lines:
        words = line.split()
        if words and words[0].startswith("NodeName="):
            if begun:
                yield *begun, told["Gres"], told["State"]
            begun, told = (number, line, words[0].partition("=")[2]), {"Gres": "", "State": ""}
        for name in told:
            begins = f"{name}="
            told[name] = told[name] or next(
                (word.removeprefix(begins) for word in words if word.startswith(begins)), ""
            )
    if begun:
        yield *begun, told["Gres"], told["State"]


def _sinfo(lines: Sequence[tuple[int, str]]) -> Iterator[Found]:
    table = [(number, line, line.split()) for number, line in lines if line.strip()]
    header = table[0][2]
    node, gres = header.index("NODELIST"), header.index("GRES")
    state = header.index("STATE") if "STATE" in header else None
    for number, line, words in table[1:]:
        if words != header:
            whole = len(words) == len(header)
            named = words[node] if whole else ""
            yield (
                number,
                line,
                named,
                words[gres] if whole else "",
                words[state] if whole and state is not None else "",
            )


def _gres(text: str) -> list[str]:
    return [] if text in NO_VALUE else PARENTHESES.sub("", text).split(",")


def _record(node: str, gres: str, boards: Boards) -> Record:
    if not node:
        reason = "not a name and a Gres for each column of the header"
        raise ValueError(reason)
    if "[" in node:
        reason = "several nodes on one line: use sinfo -N"
        raise ValueError(reason)
    whole, models = 0, []
    cut: dict[str, dict[str, int]] = {}
    for item in _gres(gres):
        match = GPU.fullmatch(item)
        if match is None:
            if item == "gpu" or item.startswith("gpu:"):
                reason = f"Gres: {item!r} is no number of GPUs"
                raise ValueError(reason)
            continue
        count, device = int(match["count"] or 1), parse_device(match["type"] or WHOLE_GPU)
        models += [device.board] if device.board else []
        if device.profile is None:
            whole += count
        elif count:
            counts = cut.setdefault(device.board or "", {})
            counts[device.profile] = counts.get(device.profile, 0) + count
    layouts = [layout for board, counts in cut.items() for layout in _cut_gpus(board, counts, boards)]
    return {
        "node": node,
        "gpus": str(whole + len(layouts)),
        "gpu_model": "|".join(dict.fromkeys(models)) or None,
        "mig_enabled": "true" if layouts else None,
        "layouts": ";".join([WHOLE_GPU] * whole + layouts) if layouts else None,
    }


def _cut_gpus(board: str, counts: Mapping[str, int], boards: Boards) -> list[str]:
    """Layouts of the fewest GPUs that hold some instances; all boards that may be meant must agree on them."""
    devices = [boards.device(f"{board}_{profile}" if board else profile) for profile in counts]
    maybe = [name for name in devices[0].maybe if all(name in device.maybe for device in devices)]
    found = [fewest_gpus(name, counts) for name in maybe]
    if not found or any(cut is None or len(cut) != len(found[0] or ()) for cut in found):
        named = f"{board or WHOLE_GPU}=BOARD"
        reason = f"MIG instances on a number of GPUs that does not follow: name the board, --board {named}"
        raise ValueError(reason)
    return [format_layout(cut) for cut in found[0] or ()]
