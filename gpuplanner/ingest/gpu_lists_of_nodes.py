"""GPUs and MIG layouts of single nodes, as nvidia-smi and mig-parted print them, in files named after node and date."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import yaml

from gpuplanner.core.errors import TraceFormatError, printable_file_name
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.hardware.mig_layouts import format_layout
from gpuplanner.ingest.delimited_rows import RecordCollector, Rows
from gpuplanner.ingest.source_fields import Field
from gpuplanner.ingest.text_files import read_text_file

DUMP_DATE_PATTERN = re.compile(r"(?<!\d)(20\d\d)-?(\d\d)-?(\d\d)(?:[T_-]?(\d\d)[:-]?(\d\d))?Z?(?!\d)")
"""Date, and time in UTC, in the name of a file, such as ``nodes-2026-11-02.txt`` or ``nodes-20261102T0630Z.txt``."""


def read_dump_time(path: str | Path) -> datetime | None:
    """Read the time in the name of a dump [UTC]; None if it has none, a TraceFormatError if there is no such day.

    Examples
    --------
    >>> read_dump_time("nodes-20261102T0630Z.txt").isoformat(), read_dump_time("nodes.txt")
    ('2026-11-02T06:30:00+00:00', None)
    """
    if (match := DUMP_DATE_PATTERN.search(Path(path).name)) is None:
        return None
    year, month, day, hour, minute = (int(part or 0) for part in match.groups())
    try:
        return datetime(year, month, day, hour, minute, tzinfo=UTC)
    except ValueError as error:
        expected, todo = "a date in the name of the file", "Name it such as nodes-2026-11-02.txt."
        raise TraceFormatError(str(path), expected, f"{match[0]}: {error}", todo) from None


GpuState = tuple[str | None, str]
"""GPU model as the file names it, None if it does not; layout: ``gpu``, ``off`` or such as ``3g.20gb:2``."""


def _parse_device_list(text: str, node_gpus: int | None) -> list[GpuState]:
    """Parse ``nvidia-smi -L``, which names the profile of each MIG instance."""
    models: list[str] = []
    counts: list[Counter[str]] = []
    for match in re.finditer(r"^GPU \d+: (.+?) \(UUID|^ +MIG (\S+) +Device", text, re.MULTILINE):
        if match[1]:
            models.append(match[1])
            counts.append(Counter())
        elif re.match(r"\d+c\.", match[2]):
            raise ValueError(f"compute instance {match[2]}, without its MIG instance")
        else:
            counts[-1][match[2]] += 1
    return [(model, format_layout(instances or {FULL_GPU: 1})) for model, instances in zip(models, counts, strict=True)]


def _parse_exported_configuration(text: str, node_gpus: int | None) -> list[GpuState]:
    """Parse ``nvidia-mig-parted export``; where it has ``devices: all``, the number of GPUs must be known.

    References
    ----------
    NVIDIA/mig-parted@22f3ebf: cmd/nvidia-mig-parted/export/config.go; equal GPUs become ``all``.
    """
    [entries] = yaml.safe_load(text)["mig-configs"].values()
    layouts: dict[int, str] = {}
    for entry in entries:
        layout = format_layout(entry.get("mig-devices") or {} if entry["mig-enabled"] else {FULL_GPU: 1})
        devices = entry["devices"]
        if devices == "all" and (node_gpus is None or len(entries) > 1):
            raise ValueError("'devices: all': not how many GPUs that is (--nodes NODE_LIST or nvidia-smi -L has it)")
        layouts |= dict.fromkeys(range(node_gpus or 0) if devices == "all" else map(int, devices), layout)
    return [(None, layouts[index]) for index in sorted(layouts)]


PARSER_BY_PATTERN: Mapping[str, Callable[[str, int | None], list[GpuState]]] = {
    r"(?m)^GPU \d+: .*\(UUID: GPU-": _parse_device_list,
    r"(?m)\A(?:version: v1\n|\{\s*\"version\": \"v1\",\s*)\"?mig-configs\"?:": _parse_exported_configuration,
}
"""Pattern of the first lines of a file → parser: text and, if known, number of GPUs of the node → state of each GPU."""


def is_gpu_list(lines: Sequence[str]) -> bool:
    """Whether the first lines of a file look like the GPUs of one node, as nvidia-smi or mig-parted prints them.

    Examples
    --------
    >>> is_gpu_list(["GPU 0: NVIDIA A30 (UUID: GPU-1)"]), is_gpu_list(["version: v1", "mig-configs:"])
    (True, True)
    """
    return any(re.search(pattern, "\n".join(lines)) for pattern in PARSER_BY_PATTERN)


def read_gpu_lists(
    paths: Sequence[str | Path], columns: Mapping[str, Field], gpus_of_node: Mapping[str, tuple[int, str | None]]
) -> Rows:
    r"""Read the GPUs of nodes, one file for each node and date, whose name has both: ``gn01-2026-11-02.txt``.

    Parameters
    ----------
    paths : sequence of str or Path
        Output of ``nvidia-smi -L`` or ``nvidia-mig-parted export``.
    columns : mapping of str to Field
        Columns of a node list and how to read them.
    gpus_of_node : mapping of str to tuple
        Node → number of its GPUs and their GPU model, for files that do not have them.

    Returns
    -------
    Rows
        One row for each file.

    Raises
    ------
    TraceFormatError
        If the name of a file has no node or no date, or its GPUs or layouts do not follow from it.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "gn01-2026-11-02.txt"
    ...     _ = path.write_text("GPU 0: NVIDIA A30 (UUID: GPU-1)\n  MIG 2g.12gb     Device  0: (UUID: MIG-1)\n")
    ...     columns = {"node": Field("node"), "gpus": Field("gpus", "number"), "layouts": Field("layouts")}
    ...     read_gpu_lists([path], columns, {}).good["node", "gpus", "layouts"].rows()
    [('gn01', 1.0, '2g.12gb:1')]
    """
    files = [read_text_file(path) for path in paths]
    records = RecordCollector(columns)
    for number, file in enumerate(files):
        name = printable_file_name(file.path)
        stem = re.sub(r"(?:\.(?:gz|xz|zst|txt|log|xml|ya?ml|json))+$", "", name)
        node = DUMP_DATE_PATTERN.sub("", stem).strip("-_. ")
        if not node or read_dump_time(stem) is None:
            expected = "the node and the date (UTC) in the name of the file, as the file has no name of its node"
            todo = "Name it such as gn01-2026-11-02.txt: nvidia-smi -L > $(hostname)-$(date -u +%F).txt."
            raise TraceFormatError(str(file.path), expected, repr(name), f"{todo} {UTILIZATION_ADVICE}")
        text = "\n".join(file.lines["text"])
        parse = next(parser for pattern, parser in PARSER_BY_PATTERN.items() if re.search(pattern, text))
        node_gpus, node_model = gpus_of_node.get(node, (None, None))
        try:
            states = parse(text, node_gpus)
        except (ValueError, yaml.YAMLError, AttributeError, KeyError, TypeError, RecursionError) as error:
            expected, todo = "GPUs of one node with their MIG layouts", "Write it again: nvidia-smi -L."
            raise TraceFormatError(str(file.path), expected, str(error)[:200], todo) from None
        is_partitioned = any(layout != FULL_GPU for _, layout in states)
        models = dict.fromkeys(model for model, _ in states if model)
        records.add_record(number, 1, text[:80], {
            "node": node, "gpus": str(len(states)), "gpu_model": "|".join(models) or node_model,
            "mig_enabled": str(is_partitioned).lower(),
            "layouts": ";".join(layout for _, layout in states) if is_partitioned else None,
        })  # fmt: skip
    return records.rows(files)


UTILIZATION_ADVICE = (
    "For utilization run nvidia-smi --query-gpu=timestamp,index,name,mig.mode.current,utilization.gpu,memory.used,"
    "memory.total,power.draw --format=csv -l 30 > $(hostname).csv."
)
"""Text of an error message: the command that logs what GPUs do, which is no list of them."""
