"""Checks of written files: mig-parted, operator and Slurm configurations."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import polars as pl

from gpuplanner.core.errors import GeometryError, TraceFormatError, nearest_names
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.serialization import LinedMapping, load_yaml, read_text
from gpuplanner.hardware.gpu_models import GpuModel, as_gpu_model
from gpuplanner.hardware.layout_enumeration import spread_over_gpus
from gpuplanner.hardware.mig_layouts import format_layout, format_slices, parse_layout, prove
from gpuplanner.planner.layout_plan import MAX_LABEL_CHARS
from gpuplanner.report.mig_manager_files import ALL_DISABLED, DATA_KEY

TOP_KEYS = ("version", "mig-configs")
ENTRY_KEYS = ("device-filter", "devices", "mig-enabled", "mig-devices")

_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_PCI_ID = re.compile(r"0x([0-9A-Fa-f]{4})10[Dd][Ee]")


def check_parted(document: LinedMapping, gpu_model: GpuModel, gpus_per_node: int) -> tuple[list[str], list[str]]:
    """Problems and findings of a mig-parted file that was read as a mapping with lines."""
    problems = list(_unknown_keys(document, TOP_KEYS, "the file"))
    if document.get("version") != "v1":
        problems.append(f"version must be v1, not {_show(document.get('version'))}")
    configs = document.get("mig-configs")
    if not isinstance(configs, LinedMapping) or not configs:
        return [*problems, f"mig-configs must name at least one config, not {_show(configs)}"], []
    findings: list[str] = []
    for name, entries in configs.items():
        config = _Config(name, configs.lines[name], gpu_model, gpus_per_node)
        config.check(entries)
        problems += config.problems
        findings += config.findings
    return problems, findings


class _Config:
    """One named config while it is looked at."""

    def __init__(self, name: object, line: int, gpu_model: GpuModel, gpus_per_node: int) -> None:
        plain = isinstance(name, str) and len(name) <= MAX_LABEL_CHARS and _LABEL.fullmatch(name)
        self.title = f"config {name if plain else _show(name)}"
        self.line = line
        self.gpu_model = gpu_model
        self.gpus_per_node = gpus_per_node
        self.taken: dict[int, int] = {}  # device -> line of the entry that has it
        self.problems: list[str] = []
        self.findings: list[str] = []
        if not plain:
            self._problem(line, "the name is no valid label value, so no node can select it")

    def _of(self, devices: tuple[int, ...]) -> str:
        return f"{self.title}, devices {format_slices(devices)}" if devices else self.title

    def _problem(self, line: int, fault: str, devices: tuple[int, ...] = ()) -> None:
        self.problems.append(f"line {line}: {self._of(devices)}: {fault}")

    def _finding(self, found: str, devices: tuple[int, ...] = ()) -> None:
        self.findings.append(f"{self._of(devices)}: {found}")

    def check(self, entries: object) -> None:
        """Look at every entry, then at what none of them names."""
        if not isinstance(entries, list) or not entries:
            self._problem(self.line, f"must be a list of at least one entry, not {_show(entries)}")
            return
        sound = True
        for number, entry in enumerate(entries, start=1):
            if isinstance(entry, LinedMapping) and entry:
                sound &= self._entry(entry)
            else:
                self._problem(self.line, f"entry {number} must have keys such as 'devices', not {_show(entry)}")
                sound = False
        rest = tuple(device for device in range(self.gpus_per_node) if device not in self.taken)
        if rest and sound and self.taken:
            self._finding("not named, left unchanged", rest)

    def _entry(self, entry: LinedMapping) -> bool:
        """Look at one entry; True if its devices are known."""
        line = min(entry.lines.values())
        for fault in _unknown_keys(entry, ENTRY_KEYS, "an entry"):
            self._problem(line, fault)
        if not self._applies(entry, line):
            return False
        devices = self._devices(entry, line)
        enabled = entry.get("mig-enabled")
        wanted = entry.get("mig-devices")
        if not isinstance(enabled, bool):
            self._problem(line, f"mig-enabled must be true or false, not {_show(enabled)}", devices)
        elif not enabled:
            if wanted:
                self._problem(line, "mig-devices is set although mig-enabled is false", devices)
            elif devices:
                self._finding("MIG disabled", devices)
        elif not isinstance(wanted, LinedMapping):
            self._problem(line, f"mig-devices must map profiles to counts, not {_show(wanted)}", devices)
        else:
            self._layout(wanted, devices, line)
        return bool(devices)

    def _layout(self, wanted: LinedMapping, devices: tuple[int, ...], line: int) -> None:
        """Prove one layout, or say for each profile what is wrong."""
        counts: dict[str, int] = {}
        before = len(self.problems)
        for name, count in wanted.items():
            at = wanted.lines[name]
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                fault = f"count of {_show(name)} must be a whole number above 0, not {_show(count)}"
                self._problem(at, fault, devices)
                continue
            try:
                known = self.gpu_model.profile(str(name)).name
            except GeometryError as error:
                self._problem(at, str(error), devices)
                continue
            counts[known] = counts.get(known, 0) + count
            if known != name:
                self._finding(
                    f"{_show(name)} is read as {known}; mig-parted compares names with those of the driver, so "
                    "check 'nvidia-smi mig -lgip'",
                    devices,
                )
        if len(self.problems) > before:
            return
        proof = prove(self.gpu_model, counts)
        if proof.layout is None:
            self._problem(line, proof.reason, devices)
        else:
            self._finding(str(proof.layout) or "MIG enabled, no instances", devices)

    def _devices(self, entry: LinedMapping, line: int) -> tuple[int, ...]:
        """Devices of an entry that are sound; everything else is a problem."""
        if "devices" not in entry:
            self._problem(line, "devices is missing; it must be all, or a list such as [0, 1]")
            return ()
        given = entry["devices"]
        at = entry.lines["devices"]
        if given == "all":
            given = list(range(self.gpus_per_node))
        if not isinstance(given, list) or not given:
            self._problem(at, f"devices must be all, or a list such as [0, 1], not {_show(given)}")
            return ()
        numbers = [one for one in given if isinstance(one, int) and not isinstance(one, bool)]
        if len(numbers) < len(given):
            self._problem(at, f"devices must be numbers; {len(given) - len(numbers)} of {len(given)} are not")
        found = Counter(number for number in numbers if 0 <= number < self.gpus_per_node)
        outside = [number for number in numbers if number not in found]
        if outside:
            shown = ", ".join(map(_show, outside[:5]))
            self._problem(at, f"no device {shown} on a node of {self.gpus_per_node} GPUs")
        twice = tuple(sorted(device for device in found if device in self.taken or found[device] > 1))
        if twice:
            first = self.taken.get(twice[0], at)
            self._problem(at, f"named twice, first in line {first}", twice)
        self.taken |= dict.fromkeys(found, at)
        return tuple(sorted(found))

    def _applies(self, entry: LinedMapping, line: int) -> bool:
        """Whether the device filter lets the entry apply to this board; unknown ids may be of any board."""
        given = entry.get("device-filter")
        if given is None:
            return True
        ids = given if isinstance(given, list) else [given]
        matches = [_PCI_ID.fullmatch(one) if isinstance(one, str) else None for one in ids]
        boards = [_boards_by_device_id().get(match[1].upper()) for match in matches if match]
        if not boards or len(boards) < len(ids):
            at = entry.lines["device-filter"]
            self._problem(at, f"device-filter must be PCI ids such as '0x233010DE', not {_show(given)}")
            return True
        if any(names is None or self.gpu_model.name in names for names in boards):
            return True
        others = dict.fromkeys(name for names in boards for name in names or ())
        self._finding(f"the entry in line {line} is for {', '.join(others)}; not checked")
        return False


@functools.cache
def _boards_by_device_id() -> dict[str, list[str]]:
    table = pl.read_csv((resources.files(__package__) / "bundle" / "pci_ids.csv").read_bytes(), infer_schema=False)
    return dict(table.group_by("device_id").agg("gpu_model").iter_rows())


def _unknown_keys(found: LinedMapping, known: Iterable[str], what: str) -> Iterator[str]:
    allowed = list(known)
    for key in found:
        if key not in allowed:
            near = nearest_names(str(key), allowed)
            hint = f"; did you mean {near[0]!r}?" if near else f"; {what} has {', '.join(allowed)}"
            yield f"unknown key {_show(key)} in line {found.lines[key]}{hint}"


def _show(value: object) -> str:
    """Print a value that may be anything, in a few harmless characters."""
    if value is None:
        return "nothing"
    if isinstance(value, list | dict):
        return f"a {'list' if isinstance(value, list) else 'mapping'} of {len(value)}"
    return ascii(value)[:60]


_STATED = re.compile(r"#\s*(\S+) gpu (\d{1,4}): (gpu|off|\S+:\d+)")
_GRES = re.compile(r"gpu(?::(?P<type>[^:]*[^:0-9][^:]*))?(?::(?P<count>[0-9]{1,6}))?", re.IGNORECASE)
_MAX_GRES = 100
_WORD = re.compile(r"([A-Za-z]+)\s*=\s*(\S+)")
_SLICE = re.compile(r"(?:.*_)?(\d+g\.\d+gb(?:[+.-][a-z.]+)?)", re.IGNORECASE)
_GRES_KEYS = ("name", "type", "file", "multiplefiles", "count", "cores", "links", "flags")
_SOCKETS = re.compile(r"\((?:[Ss]|IDX):[\d,:-]*\)")


def check_slurm(text: str, gpu_model: GpuModel, gpus_per_node: int) -> tuple[list[str], list[str]]:
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
            problems.append(f"line {number}: {title}: listed twice, first in line {seen[node]}")
            continue
        seen[node] = number
        counts, faults = gres_counts(gres, gpu_model)
        if not faults:
            faults, found = _node(gpu_model, counts, gpus_per_node, stated.get(node, {}))
            findings += [f"{title}: {one}" for one in found]
        problems += [f"line {number}: {title}: {fault}" for fault in faults]
    orphans = [node for node in stated if node not in seen]
    problems += [f"node {_plain(node)}: layouts in comments, but no NodeName line" for node in orphans]
    return problems, findings


def check_gres_conf(text: str, gpu_model: GpuModel, gpus_per_node: int) -> tuple[list[str], list[str]]:
    """Problems and findings of gres.conf: slurmd looks for itself, or the devices listed are those of the GPUs."""
    problems: list[str] = []
    findings: list[str] = []
    devices: dict[str, Counter[str]] = {}
    for number, line in _logical_lines(text):
        words = {key.casefold(): value for key, value in _WORD.findall(line)}
        known = (*_GRES_KEYS, *(["autodetect", "nodename"] if words else []))
        problems += [f"line {number}: {_plain(key)} is none of {', '.join(known)}" for key in words if key not in known]
        how = words.get("autodetect", "off").casefold()
        if how not in ("nvml", "off"):
            problems.append(f"line {number}: AutoDetect={_plain(how)} does not detect these GPUs; use nvml")
        elif "autodetect" in words:
            source = "slurmd detects GPUs by the driver" if how == "nvml" else "devices are listed"
            findings.append(f"line {number}: {source}")
        if words.get("name", "").casefold() != FULL_GPU:
            continue
        if "multiplefiles" in words:
            number_of = 1
        else:
            number_of = _files(words["file"]) if "file" in words else int(words.get("count", 1))
        counts, faults = gres_counts(f"gpu:{words.get('type', '')}:{number_of}".replace("::", ":"), gpu_model)
        problems += [f"line {number}: {fault}" for fault in faults]
        devices.setdefault(words.get("nodename", "this node"), Counter()).update(counts)
    for node, counts in devices.items():
        faults, found = fit_on(gpu_model, counts, gpus_per_node)
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


def fit_on(gpu_model: GpuModel, counts: Mapping[str, int], gpus: int) -> tuple[list[str], list[str]]:
    """Say how instances and whole GPUs fit on some GPUs, or that they do not."""
    filled = spread_over_gpus(gpu_model, dict(counts), gpus)
    wanted = ", ".join(f"{name} x{count}" for name, count in counts.items())
    if filled is None:
        return [f"{wanted} do not fit on {gpus} GPUs of {gpu_model.name}"], []
    if not filled:
        return [], ["no GPU declared"]
    groups = Counter(map(format_layout, filled))
    listed = "; ".join(f"{layout} on {number}" for layout, number in groups.items())
    return [], [f"{wanted} fit on {len(filled)} of {gpus} GPUs: {listed}"]


def _node(
    gpu_model: GpuModel, counts: dict[str, int], gpus_per_node: int, stated: dict[int, list[str]]
) -> tuple[list[str], list[str]]:
    """Faults and findings of one node: by the layouts stated for it, else by searching for some."""
    if not stated:
        return fit_on(gpu_model, counts, gpus_per_node)
    faults: list[str] = []
    found: list[str] = []
    total: Counter[str] = Counter()
    for gpu, layouts in sorted(stated.items()):
        if gpu >= gpus_per_node:
            faults.append(f"gpu {gpu} has a layout, but the node has {gpus_per_node} GPUs")
        if len(layouts) > 1:
            faults.append(f"gpu {gpu} has {len(layouts)} layouts")
        for layout in layouts:
            try:
                proof = prove(gpu_model, parse_layout(layout))
            except GeometryError as error:
                faults.append(f"gpu {gpu}: {error}")
                continue
            if proof.layout is None:
                faults.append(f"gpu {gpu}: {proof.reason}")
            else:
                found.append(f"gpu {gpu}: {proof.layout if proof.layout.placements else layout}")
            total.update(parse_layout(layout))
    if not faults and total != Counter(counts):
        faults.append(f"Gres has {_list(counts)}, the layouts in the comments have {_list(total)}")
    return faults, found


def gres_counts(gres: str, gpu_model: GpuModel) -> tuple[dict[str, int], list[str]]:
    """GPUs and slices that a Gres value declares, by profile; other resources are left out."""
    counts: dict[str, int] = {}
    faults: list[str] = []
    for item in filter(None, _SOCKETS.sub("", gres).split(",")):
        if item.partition(":")[0].casefold() != FULL_GPU:
            continue
        parts = _GRES.fullmatch(item) if len(item) <= _MAX_GRES else None
        count = int(parts["count"] or 1) if parts else 0
        if parts is None or count < 1:
            faults.append(f"{_plain(item)} must be gpu[:type][:count] with a count above 0")
            continue
        slice_type = _SLICE.fullmatch(parts["type"] or "")
        try:
            name = gpu_model.profile(slice_type[1]).name if slice_type else FULL_GPU
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


MAX_BYTES = 4_000_000
FILE_KINDS = (
    "a mig-parted file (version: v1, mig-configs), a ConfigMap that holds one under data, or lines of slurm.conf "
    "(NodeName=... Gres=...) or gres.conf"
)

_GRES_LINE = re.compile(r"^[ \t]*(?:NodeName[ \t]*=\S+[ \t]+)?(?:AutoDetect|Name)[ \t]*=", re.IGNORECASE | re.MULTILINE)
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


def verify_file(path: str | Path, gpu_model: GpuModel | str, *, gpus_per_node: int = 8) -> FileReport:
    """Recognise a file by its content, read it strictly, and prove every layout in it.

    Parameters
    ----------
    path : str or Path
        A mig-parted file, a ConfigMap with one inside, or lines of slurm.conf or gres.conf.
    gpu_model : GpuModel or str
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
    gpu_model = as_gpu_model(gpu_model)
    if not 1 <= gpus_per_node <= _MAX_GPUS_PER_NODE:
        raise TraceFormatError("gpus_per_node", f"1 to {_MAX_GPUS_PER_NODE}", repr(gpus_per_node), "Fix the number.")
    text, where = read_text(path, limit_bytes=MAX_BYTES, error=TraceFormatError), str(path)
    if _GRES_LINE.search(text):
        problems, findings = check_gres_conf(text, gpu_model, gpus_per_node)
    elif _NODE_LINE.search(text):
        problems, findings = check_slurm(text, gpu_model, gpus_per_node)
    else:
        document = load_yaml(text, source=where)
        if isinstance(document, LinedMapping) and document.get("kind") == "ConfigMap":
            problems, findings = _check_config_map(document, gpu_model, gpus_per_node, where=where)
        elif isinstance(document, LinedMapping) and "mig-configs" in document:
            problems, findings = check_parted(document, gpu_model, gpus_per_node)
        else:
            hint = "Fix the path; plans and traces have other commands."
            raise TraceFormatError(where, FILE_KINDS, "something else", hint)
    return FileReport(ok=not problems, problems=problems, findings=findings)


def states_layouts(text: str) -> bool:
    """Whether a text looks like a file that :func:`verify_file` checks.

    >>> states_layouts("NodeName=n1 Gres=gpu:8"), states_layouts("kind: Deployment")
    (True, False)
    """
    if text.startswith("#!"):
        return False
    return "mig-configs" in text or bool(_GRES_LINE.search(text) or _NODE_LINE.search(text))


def _check_config_map(
    document: LinedMapping, gpu_model: GpuModel, gpus_per_node: int, *, where: str
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
    inner = load_yaml(body, source=f"{where}, data {DATA_KEY}")
    if not isinstance(inner, LinedMapping):
        return [*problems, f"ConfigMap: data {DATA_KEY!r} is not a mig-parted file"], []
    found, findings = check_parted(inner, gpu_model, gpus_per_node)
    configs = inner.get("mig-configs")
    if isinstance(configs, LinedMapping) and ALL_DISABLED not in configs:
        problems.append(
            f"ConfigMap: config {ALL_DISABLED!r} is missing; the GPU operator uses this label, and rollback needs it"
        )
    return [*problems, *(f"{DATA_KEY} {problem}" for problem in found)], findings
