"""Verification of files that operators edit: mig-parted, ConfigMap and Slurm configurations."""

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
from gpuplanner.report.mig_manager_files import ALL_DISABLED_CONFIG, CONFIG_MAP_DATA_KEY

MIG_PARTED_KEYS = ("version", "mig-configs")
"""Keys that a mig-parted file may have at the top level."""
MIG_PARTED_ENTRY_KEYS = ("device-filter", "devices", "mig-enabled", "mig-devices")
"""Keys that an entry of a mig-parted configuration may have."""

_LABEL_VALUE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
"""Values that a Kubernetes label may have."""
_PCI_ID = re.compile(r"0x([0-9A-Fa-f]{4})10[Dd][Ee]")
"""PCI id of an NVIDIA device, such as ``0x233010DE``; the group is the device id."""


def check_mig_parted(mapping: LinedMapping, gpu_model: GpuModel, gpus_per_node: int) -> tuple[list[str], list[str]]:
    """Check a mig-parted file that was parsed with line numbers.

    Parameters
    ----------
    mapping : LinedMapping
        Content of the file.
    gpu_model : GpuModel
        GPU model of the nodes.
    gpus_per_node : int
        GPUs on one node.

    Returns
    -------
    tuple of list of str and list of str
        Problems and findings.
    """
    problems = list(_unknown_keys(mapping, MIG_PARTED_KEYS, "the file"))
    if mapping.get("version") != "v1":
        problems.append(f"version must be v1, not {_describe(mapping.get('version'))}")
    configs = mapping.get("mig-configs")
    if not isinstance(configs, LinedMapping) or not configs:
        return [*problems, f"mig-configs must name at least one config, not {_describe(configs)}"], []
    findings: list[str] = []
    for name, entries in configs.items():
        config = _MigPartedConfigCheck(name, configs.lines[name], gpu_model, gpus_per_node)
        config.check(entries)
        problems += config.problems
        findings += config.findings
    return problems, findings


class _MigPartedConfigCheck:
    """Check of one named configuration in a mig-parted file: it collects problems and findings."""

    def __init__(self, name: object, line: int, gpu_model: GpuModel, gpus_per_node: int) -> None:
        is_valid_label = isinstance(name, str) and len(name) <= MAX_LABEL_CHARS and _LABEL_VALUE.fullmatch(name)
        self.title = f"config {name if is_valid_label else _describe(name)}"
        self.line = line
        self.gpu_model = gpu_model
        self.gpus_per_node = gpus_per_node
        self.line_by_device: dict[int, int] = {}  # device -> line of the entry that has it
        self.problems: list[str] = []
        self.findings: list[str] = []
        if not is_valid_label:
            self._add_problem(line, "the name is no valid label value, so no node can select it")

    def _title_with_devices(self, devices: tuple[int, ...]) -> str:
        """Return the name of the configuration, with devices if given, as the start of a message."""
        return f"{self.title}, devices {format_slices(devices)}" if devices else self.title

    def _add_problem(self, line: int, fault: str, devices: tuple[int, ...] = ()) -> None:
        """Record a problem with its line."""
        self.problems.append(f"line {line}: {self._title_with_devices(devices)}: {fault}")

    def _add_finding(self, finding: str, devices: tuple[int, ...] = ()) -> None:
        """Record a finding: a remark that is not an error."""
        self.findings.append(f"{self._title_with_devices(devices)}: {finding}")

    def check(self, entries: object) -> None:
        """Check every entry, and find devices that no entry names."""
        if not isinstance(entries, list) or not entries:
            self._add_problem(self.line, f"must be a list of at least one entry, not {_describe(entries)}")
            return
        is_sound = True
        for number, entry in enumerate(entries, start=1):
            if isinstance(entry, LinedMapping) and entry:
                is_sound &= self._check_entry(entry)
            else:
                self._add_problem(self.line, f"entry {number} must have keys such as 'devices', not {_describe(entry)}")
                is_sound = False
        unnamed = tuple(device for device in range(self.gpus_per_node) if device not in self.line_by_device)
        if unnamed and is_sound and self.line_by_device:
            self._add_finding("not named, left unchanged", unnamed)

    def _check_entry(self, entry_mapping: LinedMapping) -> bool:
        """Check one entry; return whether its devices are known."""
        line = min(entry_mapping.lines.values())
        for fault in _unknown_keys(entry_mapping, MIG_PARTED_ENTRY_KEYS, "an entry"):
            self._add_problem(line, fault)
        if not self._applies_to_model(entry_mapping, line):
            return False
        devices = self._read_devices(entry_mapping, line)
        enabled = entry_mapping.get("mig-enabled")
        layout_counts = entry_mapping.get("mig-devices")
        if not isinstance(enabled, bool):
            self._add_problem(line, f"mig-enabled must be true or false, not {_describe(enabled)}", devices)
        elif not enabled:
            if layout_counts:
                self._add_problem(line, "mig-devices is set although mig-enabled is false", devices)
            elif devices:
                self._add_finding("MIG disabled", devices)
        elif not isinstance(layout_counts, LinedMapping):
            self._add_problem(line, f"mig-devices must map profiles to counts, not {_describe(layout_counts)}", devices)
        else:
            self._check_layout(layout_counts, devices, line)
        return bool(devices)

    def _check_layout(self, layout_mapping: LinedMapping, devices: tuple[int, ...], line: int) -> None:
        """Prove that the MIG instances of an entry fit on its devices, or record what is wrong with each profile."""
        counts: dict[str, int] = {}
        problems_before = len(self.problems)
        for name, count in layout_mapping.items():
            profile_line = layout_mapping.lines[name]
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                fault = f"count of {_describe(name)} must be a whole number above 0, not {_describe(count)}"
                self._add_problem(profile_line, fault, devices)
                continue
            try:
                profile = self.gpu_model.profile(str(name)).name
            except GeometryError as error:
                self._add_problem(profile_line, str(error), devices)
                continue
            counts[profile] = counts.get(profile, 0) + count
            if profile != name:
                compared = "mig-parted compares names with those of the driver, so check 'nvidia-smi mig -lgip'"
                self._add_finding(f"{_describe(name)} is read as {profile}; {compared}", devices)
        if len(self.problems) > problems_before:
            return
        proof = prove(self.gpu_model, counts)
        if proof.layout is None:
            self._add_problem(line, proof.reason, devices)
        else:
            self._add_finding(str(proof.layout) or "MIG enabled, no instances", devices)

    def _read_devices(self, entry_mapping: LinedMapping, line: int) -> tuple[int, ...]:
        """Return the valid devices of an entry; record all others as problems."""
        if "devices" not in entry_mapping:
            self._add_problem(line, "devices is missing; it must be all, or a list such as [0, 1]")
            return ()
        given = entry_mapping["devices"]
        key_line = entry_mapping.lines["devices"]
        if given == "all":
            given = list(range(self.gpus_per_node))
        if not isinstance(given, list) or not given:
            self._add_problem(key_line, f"devices must be all, or a list such as [0, 1], not {_describe(given)}")
            return ()
        numbers = [number for number in given if isinstance(number, int) and not isinstance(number, bool)]
        if len(numbers) < len(given):
            self._add_problem(key_line, f"devices must be numbers; {len(given) - len(numbers)} of {len(given)} are not")
        devices = Counter(number for number in numbers if 0 <= number < self.gpus_per_node)
        outside = [number for number in numbers if number not in devices]
        if outside:
            outside_text = ", ".join(map(_describe, outside[:5]))
            self._add_problem(key_line, f"no device {outside_text} on a node of {self.gpus_per_node} GPUs")
        repeated = tuple(sorted(device for device in devices if device in self.line_by_device or devices[device] > 1))
        if repeated:
            first = self.line_by_device.get(repeated[0], key_line)
            self._add_problem(key_line, f"named twice, first in line {first}", repeated)
        self.line_by_device |= dict.fromkeys(devices, key_line)
        return tuple(sorted(devices))

    def _applies_to_model(self, entry_mapping: LinedMapping, line: int) -> bool:
        """Whether the device filter of an entry includes this GPU model; unknown PCI ids may be of any."""
        given = entry_mapping.get("device-filter")
        if given is None:
            return True
        ids = given if isinstance(given, list) else [given]
        matches = [_PCI_ID.fullmatch(pci_id) if isinstance(pci_id, str) else None for pci_id in ids]
        gpu_models = [_gpu_models_by_device_id().get(match[1].upper()) for match in matches if match]
        if not gpu_models or len(gpu_models) < len(ids):
            key_line = entry_mapping.lines["device-filter"]
            self._add_problem(key_line, f"device-filter must be PCI ids such as '0x233010DE', not {_describe(given)}")
            return True
        if any(names is None or self.gpu_model.name in names for names in gpu_models):
            return True
        other_models = dict.fromkeys(name for names in gpu_models for name in names or ())
        self._add_finding(f"the entry in line {line} is for {', '.join(other_models)}; not checked")
        return False


@functools.cache
def _gpu_models_by_device_id() -> dict[str, list[str]]:
    """Load the GPU models of each PCI device id."""
    table = pl.read_csv((resources.files(__package__) / "bundle" / "pci_ids.csv").read_bytes(), infer_schema=False)
    return dict(table.group_by("device_id", maintain_order=True).agg("gpu_model").iter_rows())


def _unknown_keys(mapping: LinedMapping, known_keys: Iterable[str], owner: str) -> Iterator[str]:
    """Yield a message for each key that is not allowed, with the nearest allowed one."""
    allowed = list(known_keys)
    for key in mapping:
        if key not in allowed:
            nearest = nearest_names(str(key), allowed)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else f"; {owner} has {', '.join(allowed)}"
            yield f"unknown key {_describe(key)} in line {mapping.lines[key]}{hint}"


def _describe(value: object) -> str:
    """Format a wrong value of any type in a few printable characters, for an error message."""
    if value is None:
        return "nothing"
    if isinstance(value, list | dict):
        return f"a {'list' if isinstance(value, list) else 'mapping'} of {len(value)}"
    return ascii(value)[:60]


_LAYOUT_COMMENT = re.compile(r"#\s*(\S+) gpu (\d{1,4}): (gpu|off|\S+:\d+)")
"""Comment with the layout of a GPU, such as ``# n1 gpu 0: 1g.10gb:7``."""
_GRES_ITEM = re.compile(r"gpu(?::(?P<type>[^:]*[^:0-9][^:]*))?(?::(?P<count>[0-9]{1,6}))?", re.IGNORECASE)
"""Item of a Gres value, such as ``gpu:a100_1g.5gb:7``."""
_MAX_GRES_CHARACTERS = 100
"""Longest Gres item that is parsed, and longest text that a message quotes."""
_SLURM_KEY_VALUE = re.compile(r"([A-Za-z]+)\s*=\s*(\S+)")
"""Pair ``Key=value`` in a line of a Slurm configuration."""
_MIG_GRES_TYPE_PATTERN = re.compile(r"(?:.*_)?(\d+g\.\d+gb(?:[+.-][a-z.]+)?)", re.IGNORECASE)
"""GRES type of a MIG instance; the group is its profile."""
_GRES_KEYS = ("name", "type", "file", "multiplefiles", "count", "cores", "links", "flags")
"""Keys that a line of gres.conf may have, in lower case."""
_GRES_SOCKET_SUFFIX = re.compile(r"\((?:[Ss]|IDX):[\d,:-]*\)")
"""Sockets or indices after a Gres item, such as ``(S:0-1)``, which are ignored."""


def check_slurm_conf(text: str, gpu_model: GpuModel, gpus_per_node: int) -> tuple[list[str], list[str]]:
    """Check lines of slurm.conf against the layouts that their comments state.

    Parameters
    ----------
    text : str
        Lines of slurm.conf.
    gpu_model : GpuModel
        GPU model of the nodes.
    gpus_per_node : int
        GPUs on one node.

    Returns
    -------
    tuple of list of str and list of str
        Problems and findings.
    """
    problems: list[str] = []
    findings: list[str] = []
    layouts_by_node = _parse_layout_comments(text)
    first_lines: dict[str, int] = {}
    default = ""
    for number, line in _logical_lines(text):
        words = {key.casefold(): value for key, value in _SLURM_KEY_VALUE.findall(line)}
        node = words.get("nodename")
        if node is None:
            continue
        gres = words.get("gres", default)
        if node == "DEFAULT":
            default = gres
            continue
        title = f"node {_plain_ascii(node)}"
        if node in first_lines:
            problems.append(f"line {number}: {title}: listed twice, first in line {first_lines[node]}")
            continue
        first_lines[node] = number
        counts, faults = parse_gres_counts(gres, gpu_model)
        if not faults:
            faults, node_findings = _check_node(gpu_model, counts, gpus_per_node, layouts_by_node.get(node, {}))
            findings += [f"{title}: {finding}" for finding in node_findings]
        problems += [f"line {number}: {title}: {fault}" for fault in faults]
    orphans = [node for node in layouts_by_node if node not in first_lines]
    problems += [f"node {_plain_ascii(node)}: layouts in comments, but no NodeName line" for node in orphans]
    return problems, findings


def check_gres_conf(text: str, gpu_model: GpuModel, gpus_per_node: int) -> tuple[list[str], list[str]]:
    """Check gres.conf: either slurmd detects the GPUs, or the devices listed fit on them.

    Parameters
    ----------
    text : str
        Content of gres.conf.
    gpu_model : GpuModel
        GPU model of the nodes.
    gpus_per_node : int
        GPUs on one node.

    Returns
    -------
    tuple of list of str and list of str
        Problems and findings.
    """
    problems: list[str] = []
    findings: list[str] = []
    devices: dict[str, Counter[str]] = {}
    for number, line in _logical_lines(text):
        words = {key.casefold(): value for key, value in _SLURM_KEY_VALUE.findall(line)}
        known_keys = (*_GRES_KEYS, *(["autodetect", "nodename"] if words else []))
        problems += [
            f"line {number}: {_plain_ascii(key)} is none of {', '.join(known_keys)}"
            for key in words
            if key not in known_keys
        ]
        detection = words.get("autodetect", "off").casefold()
        if detection not in ("nvml", "off"):
            problems.append(f"line {number}: AutoDetect={_plain_ascii(detection)} does not detect these GPUs; use nvml")
        elif "autodetect" in words:
            source = "slurmd detects GPUs by the driver" if detection == "nvml" else "devices are listed"
            findings.append(f"line {number}: {source}")
        if words.get("name", "").casefold() != FULL_GPU:
            continue
        if "multiplefiles" in words:
            file_count = 1
        else:
            file_count = _count_device_files(words["file"]) if "file" in words else int(words.get("count", 1))
        counts, faults = parse_gres_counts(f"gpu:{words.get('type', '')}:{file_count}".replace("::", ":"), gpu_model)
        problems += [f"line {number}: {fault}" for fault in faults]
        devices.setdefault(words.get("nodename", "this node"), Counter()).update(counts)
    for node, counts in devices.items():
        faults, node_findings = place_on_gpus(gpu_model, counts, gpus_per_node)
        problems += [f"{_plain_ascii(node)}: {fault}" for fault in faults]
        findings += [f"{_plain_ascii(node)}: {finding}" for finding in node_findings]
    return problems, findings


def _count_device_files(text: str) -> int:
    """Count the device files that a pattern such as ``/dev/nvidia[0-3,7]`` names."""
    inner = re.fullmatch(r"[^\[\]]*\[([\d,-]{1,60})\]", text)
    if inner is None:
        return 1
    spans = [span.partition("-") for span in inner[1].split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in spans if first)


def place_on_gpus(gpu_model: GpuModel, counts: Mapping[str, int], gpus: int) -> tuple[list[str], list[str]]:
    """Place MIG instances and full GPUs on a number of GPUs.

    Parameters
    ----------
    gpu_model : GpuModel
        GPU model of the node.
    counts : mapping of str to int
        Instances by profile.
    gpus : int
        GPUs of the node.

    Returns
    -------
    tuple of list of str and list of str
        Problems and findings: one of the two has a message.
    """
    layouts = spread_over_gpus(gpu_model, dict(counts), gpus)
    counts_text = ", ".join(f"{name} x{count}" for name, count in counts.items())
    if layouts is None:
        return [f"{counts_text} do not fit on {gpus} GPUs of {gpu_model.name}"], []
    if not layouts:
        return [], ["no GPU declared"]
    groups = Counter(map(format_layout, layouts))
    listed = "; ".join(f"{layout} on {number}" for layout, number in groups.items())
    return [], [f"{counts_text} fit on {len(layouts)} of {gpus} GPUs: {listed}"]


def _check_node(
    gpu_model: GpuModel, counts: dict[str, int], gpus_per_node: int, layouts_by_gpu: dict[int, list[str]]
) -> tuple[list[str], list[str]]:
    """Check the GRES counts of one node against its stated layouts, or search for layouts that fit.

    Parameters
    ----------
    gpu_model : GpuModel
        GPU model of the node.
    counts : dict of str to int
        Instances by profile, from its Gres.
    gpus_per_node : int
        GPUs of the node.
    layouts_by_gpu : dict of int to list of str
        Layouts stated in comments, by GPU index.

    Returns
    -------
    tuple of list of str and list of str
        Problems and findings.
    """
    if not layouts_by_gpu:
        return place_on_gpus(gpu_model, counts, gpus_per_node)
    faults: list[str] = []
    findings: list[str] = []
    total: Counter[str] = Counter()
    for gpu, layouts in sorted(layouts_by_gpu.items()):
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
                findings.append(f"gpu {gpu}: {proof.layout if proof.layout.placements else layout}")
            total.update(parse_layout(layout))
    if not faults and total != Counter(counts):
        faults.append(f"Gres has {_list_counts(counts)}, the layouts in the comments have {_list_counts(total)}")
    return faults, findings


def parse_gres_counts(gres: str, gpu_model: GpuModel) -> tuple[dict[str, int], list[str]]:
    """Parse the GPUs and MIG instances that a Gres value declares, by profile, with faults in it."""
    counts: dict[str, int] = {}
    faults: list[str] = []
    for item in filter(None, _GRES_SOCKET_SUFFIX.sub("", gres).split(",")):
        if item.partition(":")[0].casefold() != FULL_GPU:
            continue
        parts = _GRES_ITEM.fullmatch(item) if len(item) <= _MAX_GRES_CHARACTERS else None
        count = int(parts["count"] or 1) if parts else 0
        if parts is None or count < 1:
            faults.append(f"{_plain_ascii(item)} must be gpu[:type][:count] with a count above 0")
            continue
        slice_type = _MIG_GRES_TYPE_PATTERN.fullmatch(parts["type"] or "")
        try:
            name = gpu_model.profile(slice_type[1]).name if slice_type else FULL_GPU
        except GeometryError as error:
            faults.append(f"{_plain_ascii(item)}: {error}")
            continue
        counts[name] = counts.get(name, 0) + count
    return counts, faults


def _parse_layout_comments(text: str) -> dict[str, dict[int, list[str]]]:
    """Collect the MIG layouts in comments such as ``# n1 gpu 0: 1g.10gb:7``, by node and GPU."""
    layouts_by_node: dict[str, dict[int, list[str]]] = {}
    for line in text.splitlines():
        match = _LAYOUT_COMMENT.fullmatch(line.strip())
        if match:
            layouts_by_node.setdefault(match[1], {}).setdefault(int(match[2]), []).append(match[3])
    return layouts_by_node


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines of a Slurm file with their number from 1, without comments and with continued lines joined."""
    continued, first = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.partition("#")[0].rstrip()
        first = first if continued else number
        if content.endswith("\\"):
            continued += content[:-1] + " "
            continue
        yield first, continued + content
        continued = ""
    if continued:
        yield first, continued


def _list_counts(counts: dict[str, int] | Counter[str]) -> str:
    """Format counts by name as text, for a message."""
    return ", ".join(f"{name} x{counts[name]}" for name in sorted(counts)) or "nothing"


def _plain_ascii(text: str) -> str:
    """Escape all but printable ASCII, so that a text from a file cannot control the terminal, and shorten it."""
    return ascii(text)[1:-1][:_MAX_GRES_CHARACTERS]


MAX_VERIFIED_FILE_BYTES = 4_000_000
"""Largest file that is verified [bytes]."""
VERIFIED_FILE_KINDS_TEXT = (
    "a mig-parted file (version: v1, mig-configs), a ConfigMap that holds one under data, or lines of slurm.conf "
    "(NodeName=... Gres=...) or gres.conf"
)
"""Kinds of files that can be verified, for error messages."""

_GRES_CONF_LINE = re.compile(
    r"^[ \t]*(?:NodeName[ \t]*=\S+[ \t]+)?(?:AutoDetect|Name)[ \t]*=", re.IGNORECASE | re.MULTILINE
)
"""Line by which a text is recognized as gres.conf."""
_SLURM_NODE_LINE = re.compile(r"^[ \t]*NodeName[ \t]*=", re.IGNORECASE | re.MULTILINE)
"""Line by which a text is recognized as slurm.conf."""
_MAX_GPUS_PER_NODE = 64
"""Largest number of GPUs on a node that is accepted."""


@dataclass(frozen=True, slots=True)
class FileReport:
    """Result of the verification of a file.

    Parameters
    ----------
    problems : list of str
        What is wrong, each with its line or device.
    findings : list of str
        What was understood: the placement of each layout, and remarks.
    """

    problems: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the file has no problem."""
        return not self.problems


def verify_file(path: str | Path, gpu_model: GpuModel | str, *, gpus_per_node: int = 8) -> FileReport:
    """Recognize a configuration file by its content, parse it strictly and prove each layout in it.

    Parameters
    ----------
    path : str or Path
        A mig-parted file, a ConfigMap with one inside, or lines of slurm.conf or gres.conf.
    gpu_model : GpuModel or str
        GPU model of the nodes.
    gpus_per_node : int
        GPUs on one node.

    Returns
    -------
    FileReport
        Wrong entries are problems of the report, not exceptions.

    Raises
    ------
    TraceFormatError
        If the file cannot be read, or is of no known kind.
    GeometryError
        If the GPU model is unknown.
    """
    gpu_model = as_gpu_model(gpu_model)
    if not 1 <= gpus_per_node <= _MAX_GPUS_PER_NODE:
        raise TraceFormatError("gpus_per_node", f"1 to {_MAX_GPUS_PER_NODE}", repr(gpus_per_node), "Fix the number.")
    text, source = read_text(path, limit_bytes=MAX_VERIFIED_FILE_BYTES, error=TraceFormatError), str(path)
    if _GRES_CONF_LINE.search(text):
        problems, findings = check_gres_conf(text, gpu_model, gpus_per_node)
    elif _SLURM_NODE_LINE.search(text):
        problems, findings = check_slurm_conf(text, gpu_model, gpus_per_node)
    else:
        document = load_yaml(text, source=source)
        if isinstance(document, LinedMapping) and document.get("kind") == "ConfigMap":
            problems, findings = _check_config_map(document, gpu_model, gpus_per_node, source=source)
        elif isinstance(document, LinedMapping) and "mig-configs" in document:
            problems, findings = check_mig_parted(document, gpu_model, gpus_per_node)
        else:
            hint = "Fix the path; plans and traces have other commands."
            raise TraceFormatError(source, VERIFIED_FILE_KINDS_TEXT, "something else", hint)
    return FileReport(problems, findings)


def looks_like_layout_file(text: str) -> bool:
    """Whether a text looks like a file with MIG layouts or GRES, which :func:`verify_file` can check.

    Examples
    --------
    >>> looks_like_layout_file("NodeName=n1 Gres=gpu:8"), looks_like_layout_file("kind: Deployment")
    (True, False)
    """
    if text.startswith("#!"):
        return False
    return "mig-configs" in text or bool(_GRES_CONF_LINE.search(text) or _SLURM_NODE_LINE.search(text))


def _check_config_map(
    config_mapping: LinedMapping, gpu_model: GpuModel, gpus_per_node: int, *, source: str
) -> tuple[list[str], list[str]]:
    """Check what the MIG manager needs of a ConfigMap; other parts of the object are not checked."""
    problems = []
    if config_mapping.get("apiVersion") != "v1":
        problems.append("ConfigMap: apiVersion must be v1")
    metadata = config_mapping.get("metadata")
    for key in ("name", "namespace"):
        value = metadata.get(key) if isinstance(metadata, LinedMapping) else None
        if not (isinstance(value, str) and value):
            problems.append(f"ConfigMap: metadata.{key} is missing; the ClusterPolicy has to name it")
    data = config_mapping.get("data")
    body = data.get(CONFIG_MAP_DATA_KEY) if isinstance(data, LinedMapping) else None
    if not isinstance(body, str):
        return [*problems, f"ConfigMap: data must hold the text {CONFIG_MAP_DATA_KEY!r}"], []
    inner = load_yaml(body, source=f"{source}, data {CONFIG_MAP_DATA_KEY}")
    if not isinstance(inner, LinedMapping):
        return [*problems, f"ConfigMap: data {CONFIG_MAP_DATA_KEY!r} is not a mig-parted file"], []
    inner_problems, findings = check_mig_parted(inner, gpu_model, gpus_per_node)
    configs = inner.get("mig-configs")
    if isinstance(configs, LinedMapping) and ALL_DISABLED_CONFIG not in configs:
        problems.append(
            f"ConfigMap: config {ALL_DISABLED_CONFIG!r} is missing; the GPU operator uses this label, "
            "and rollback needs it"
        )
    return [*problems, *(f"{CONFIG_MAP_DATA_KEY} {problem}" for problem in inner_problems)], findings
