"""Check lines of slurm.conf: whether the GPUs and slices declared for a node fit on the GPUs it has."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from gpuplanner.errors import GeometryError
from gpuplanner.hardware.gpu import GpuModel
from gpuplanner.hardware.layout import format_layout, parse_layout
from gpuplanner.hardware.feasibility import prove
from gpuplanner.hardware.spread import spread
from gpuplanner.schemas.vocabulary import WHOLE_GPU

_STATED = re.compile(r"#\s*(\S+) gpu (\d{1,4}): (gpu|off|\S+:\d+)")
_GRES = re.compile(r"gpu(?::(?P<type>[^:]*[^:0-9][^:]*))?(?::(?P<count>[0-9]{1,6}))?", re.IGNORECASE)
_MAX_GRES = 100
_WORD = re.compile(r"([A-Za-z]+)\s*=\s*(\S+)")
_SLICE = re.compile(r"(?:.*_)?(\d+g\.\d+gb(?:[+.-][a-z.]+)?)", re.IGNORECASE)
_GRES_KEYS = ("name", "type", "file", "multiplefiles", "count", "cores", "links", "flags")
_SOCKETS = re.compile(r"\((?:[Ss]|IDX):[\d,:-]*\)")


def check_slurm(text: str, board: GpuModel, gpus_per_node: int) -> tuple[list[str], list[str]]:
    """Problems and findings of lines of slurm.conf, with the layouts that their comments state."""
    problems: list[str] = []
    findings: list[str] = []
    stated = _stated_layouts(text)
    seen: dict[str, int] = {}
    default = ""
    for number, line in _logical_lines(text):
        words = {key.casefold(): value for key, value in _WORD.findall(line)}
        node = words.get("nodename")
        if node is None:
            continue
        gres = words.get("gres", default)
        if node == "DEFAULT":
            default = gres
            continue
        title = f"node {_plain(node)}"
        if node in seen:
            problems.append(f"line {number}: {title}: stands there twice, first in line {seen[node]}")
            continue
        seen[node] = number
        counts, faults = gres_counts(gres, board)
        if not faults:
            faults, found = _node(board, counts, gpus_per_node, stated.get(node, {}))
            findings += [f"{title}: {one}" for one in found]
        problems += [f"line {number}: {title}: {fault}" for fault in faults]
    orphans = [node for node in stated if node not in seen]
    problems += [f"node {_plain(node)}: layouts are stated, but there is no line for it" for node in orphans]
    return problems, findings


def check_gres_conf(text: str, board: GpuModel, gpus_per_node: int) -> tuple[list[str], list[str]]:
    """Problems and findings of gres.conf: slurmd looks for itself, or the devices listed are those of the GPUs."""
    problems: list[str] = []
    findings: list[str] = []
    devices: dict[str, Counter[str]] = {}
    for number, line in _logical_lines(text):
        words = {key.casefold(): value for key, value in _WORD.findall(line)}
        known = (*_GRES_KEYS, *(["autodetect", "nodename"] if words else []))
        problems += [
            f"line {number}: {_plain(key)} is none of {', '.join(known)}" for key in words if key not in known
        ]
        how = words.get("autodetect", "off").casefold()
        if how not in ("nvml", "off"):
            problems.append(f"line {number}: AutoDetect={_plain(how)} does not find these GPUs; nvml does")
        elif "autodetect" in words:
            findings.append(
                f"line {number}: slurmd asks the driver" if how == "nvml" else f"line {number}: lists follow"
            )
        if words.get("name", "").casefold() != WHOLE_GPU:
            continue
        if "multiplefiles" in words:
            number_of = 1
        else:
            number_of = _files(words["file"]) if "file" in words else int(words.get("count", 1))
        counts, faults = gres_counts(f"gpu:{words.get('type', '')}:{number_of}".replace("::", ":"), board)
        problems += [f"line {number}: {fault}" for fault in faults]
        devices.setdefault(words.get("nodename", "this node"), Counter()).update(counts)
    for node, counts in devices.items():
        faults, found = fit_on(board, counts, gpus_per_node)
        problems += [f"{_plain(node)}: {fault}" for fault in faults]
        findings += [f"{_plain(node)}: {one}" for one in found]
    return problems, findings


def _files(text: str) -> int:
    """Device files that a word such as ``/dev/nvidia[0-3,7]`` names."""
    inner = re.fullmatch(r"[^\[\]]*\[([\d,-]{1,60})\]", text)
    if inner is None:
        return 1
    spans = [span.partition("-") for span in inner[1].split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in spans if first)


def fit_on(board: GpuModel, counts: Mapping[str, int], gpus: int) -> tuple[list[str], list[str]]:
    """Say how instances and whole GPUs fit on some GPUs, or that they do not."""
    filled = spread(board, dict(counts), gpus)
    wanted = ", ".join(f"{name} x{count}" for name, count in counts.items())
    if filled is None:
        return [f"{wanted} do not fit on {gpus} GPUs of {board.name} in any way"], []
    if not filled:
        return [], ["no GPU declared"]
    groups = Counter(map(format_layout, filled))
    listed = "; ".join(f"{layout} on {number}" for layout, number in groups.items())
    return [], [f"{wanted} fit on {len(filled)} of {gpus} GPUs: {listed}"]


def _node(
    board: GpuModel, counts: dict[str, int], gpus_per_node: int, stated: dict[int, list[str]]
) -> tuple[list[str], list[str]]:
    """Faults and findings of one node: by the layouts stated for it, else by searching for some."""
    if not stated:
        return fit_on(board, counts, gpus_per_node)
    faults: list[str] = []
    found: list[str] = []
    total: Counter[str] = Counter()
    for gpu, layouts in sorted(stated.items()):
        if gpu >= gpus_per_node:
            faults.append(f"gpu {gpu} is stated, but the node has {gpus_per_node} GPUs")
        if len(layouts) > 1:
            faults.append(f"gpu {gpu} is stated {len(layouts)} times")
        for layout in layouts:
            try:
                proof = prove(board, parse_layout(layout))
            except GeometryError as error:
                faults.append(f"gpu {gpu}: {error}")
                continue
            if proof.layout is None:
                faults.append(f"gpu {gpu}: {proof.reason}")
            else:
                found.append(f"gpu {gpu}: {proof.layout if proof.layout.placements else layout}")
            total.update(parse_layout(layout))
    if not faults and total != Counter(counts):
        faults.append(f"Gres says {_list(counts)}, the layouts stated make {_list(total)}")
    return faults, found


def gres_counts(gres: str, board: GpuModel) -> tuple[dict[str, int], list[str]]:
    """GPUs and slices that a Gres value declares, by profile; other resources are left out."""
    counts: dict[str, int] = {}
    faults: list[str] = []
    for item in filter(None, _SOCKETS.sub("", gres).split(",")):
        if item.partition(":")[0].casefold() != WHOLE_GPU:
            continue
        parts = _GRES.fullmatch(item) if len(item) <= _MAX_GRES else None
        count = int(parts["count"] or 1) if parts else 0
        if parts is None or count < 1:
            faults.append(f"{_plain(item)} must be gpu[:type][:count] with a count above 0")
            continue
        slice_type = _SLICE.fullmatch(parts["type"] or "")
        try:
            name = board.profile(slice_type[1]).name if slice_type else WHOLE_GPU
        except GeometryError as error:
            faults.append(f"{_plain(item)}: {error}")
            continue
        counts[name] = counts.get(name, 0) + count
    return counts, faults


def _stated_layouts(text: str) -> dict[str, dict[int, list[str]]]:
    """Layouts from comments such as ``# n1 gpu 0: 1g.10gb:7``, by node and GPU."""
    found: dict[str, dict[int, list[str]]] = {}
    for line in text.splitlines():
        match = _STATED.fullmatch(line.strip())
        if match:
            found.setdefault(match[1], {}).setdefault(int(match[2]), []).append(match[3])
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their number (from 1), comments cut off, continued lines joined."""
    held, first = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        bare = line.partition("#")[0].rstrip()
        first = first if held else number
        if bare.endswith("\\"):
            held += bare[:-1] + " "
            continue
        yield first, held + bare
        held = ""
    if held:
        yield first, held


def _list(counts: dict[str, int] | Counter[str]) -> str:
    return ", ".join(f"{name} x{counts[name]}" for name in sorted(counts)) or "nothing"


def _plain(text: str) -> str:
    """Print text that may be anything without what a terminal would act on."""
    return ascii(text)[1:-1][:_MAX_GRES]
