"""Check a mig-parted configuration: every key, every device, every count, and a placement for each entry."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib import resources

import polars as pl

from gpuplanner.errors import GeometryError
from gpuplanner.export.states import MAX_LABEL
from gpuplanner.hardware.gpu import GpuModel
from gpuplanner.hardware.feasibility import prove
from gpuplanner.hardware.layout import slices
from gpuplanner.names import nearest
from gpuplanner.strict_yaml import LinedMapping

TOP_KEYS = ("version", "mig-configs")
ENTRY_KEYS = ("device-filter", "devices", "mig-enabled", "mig-devices")

_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_PCI_ID = re.compile(r"0x([0-9A-Fa-f]{4})10[Dd][Ee]")


def check_parted(document: LinedMapping, board: GpuModel, gpus_per_node: int) -> tuple[list[str], list[str]]:
    """Problems and findings of a mig-parted file that was read as a mapping with lines."""
    problems = list(_unknown_keys(document, TOP_KEYS, "the file"))
    if document.get("version") != "v1":
        problems.append(f"version must be v1, not {_show(document.get('version'))}")
    configs = document.get("mig-configs")
    if not isinstance(configs, LinedMapping) or not configs:
        return [*problems, f"mig-configs must name at least one config, not {_show(configs)}"], []
    findings: list[str] = []
    for name, entries in configs.items():
        config = _Config(name, configs.lines[name], board, gpus_per_node)
        config.check(entries)
        problems += config.problems
        findings += config.findings
    return problems, findings


class _Config:
    """One named config while it is looked at."""

    def __init__(self, name: object, line: int, board: GpuModel, gpus_per_node: int) -> None:
        plain = isinstance(name, str) and len(name) <= MAX_LABEL and _LABEL.fullmatch(name)
        self.title = f"config {name if plain else _show(name)}"
        self.line = line
        self.board = board
        self.gpus_per_node = gpus_per_node
        self.taken: dict[int, int] = {}  # device -> line of the entry that has it
        self.problems: list[str] = []
        self.findings: list[str] = []
        if not plain:
            self._problem(line, "the name cannot be a label value, so no node can select it")

    def _of(self, devices: tuple[int, ...]) -> str:
        return f"{self.title}, devices {slices(devices)}" if devices else self.title

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
                self._problem(
                    self.line, f"entry {number} must have keys such as 'devices', not {_show(entry)}"
                )
                sound = False
        rest = tuple(device for device in range(self.gpus_per_node) if device not in self.taken)
        if rest and sound and self.taken:
            self._finding("not named, left as they are", rest)

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
                self._problem(line, "mig-devices stands beside mig-enabled: false", devices)
            elif devices:
                self._finding("not cut", devices)
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
                known = self.board.profile(str(name)).name
            except GeometryError as error:
                self._problem(at, str(error), devices)
                continue
            counts[known] = counts.get(known, 0) + count
            if known != name:
                self._finding(
                    f"{_show(name)} is taken for {known}; mig-parted compares names with those of the "
                    "driver, so check 'nvidia-smi mig -lgip'",
                    devices,
                )
        if len(self.problems) > before:
            return
        proof = prove(self.board, counts)
        if proof.layout is None:
            self._problem(line, proof.reason, devices)
        else:
            self._finding(str(proof.layout) or "cut, without instances", devices)

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
        if any(names is None or self.board.name in names for names in boards):
            return True
        others = dict.fromkeys(name for names in boards for name in names or ())
        self._finding(f"the entry in line {line} is for {', '.join(others)}; not proved")
        return False


@functools.cache
def _boards_by_device_id() -> dict[str, tuple[str, ...]]:
    table = pl.read_csv(
        (resources.files("gpuplanner.export") / "pci_ids.csv").read_bytes(), infer_schema=False
    )
    boards: dict[str, tuple[str, ...]] = {}
    for row in table.iter_rows(named=True):
        boards[row["device_id"]] = (*boards.get(row["device_id"], ()), row["gpu_model"])
    return boards


def _unknown_keys(found: LinedMapping, known: Iterable[str], what: str) -> Iterator[str]:
    allowed = list(known)
    for key in found:
        if key not in allowed:
            near = nearest(str(key), allowed)
            hint = f"; did you mean {near[0]!r}?" if near else f"; {what} has {', '.join(allowed)}"
            yield f"unknown key {_show(key)} in line {found.lines[key]}{hint}"


def _show(value: object) -> str:
    """Print a value that may be anything, in a few harmless characters."""
    if value is None:
        return "nothing"
    if isinstance(value, list | dict):
        return f"a {'list' if isinstance(value, list) else 'mapping'} of {len(value)}"
    return ascii(value)[:60]
