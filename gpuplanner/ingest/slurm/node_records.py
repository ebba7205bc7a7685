"""Readers of node lists: CSV inventories, and those of Slurm (``scontrol show node``, slurm.conf, ``sinfo``, JSON)."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl

from gpuplanner.core.errors import GeometryError, TraceFormatError, examples
from gpuplanner.core.schema_checks import add_absent_columns, check_table, conform, make_empty_table
from gpuplanner.core.schemas import FULL_GPU, MAX_GPUS_PER_JOB, TABLES, Inventory
from gpuplanner.core.units_and_number_formats import count_text
from gpuplanner.hardware.mig_layouts import UNUSED_LAYOUT, parse_layout
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import Record, RecordCollector, Rows, parse_instants, raise_fault
from gpuplanner.ingest.gpu_lists_of_nodes import is_gpu_list, read_dump_time, read_gpu_lists
from gpuplanner.ingest.gpu_model_resolution_and_node_lists import DeviceResolver, smallest_layouts, try_expand_node_list
from gpuplanner.ingest.job_gpu_counting import resolve_node_models
from gpuplanner.ingest.node_dump_history import make_node_dumps, merge_node_histories
from gpuplanner.ingest.quality_report import Finding, source_check, source_finding
from gpuplanner.ingest.slurm.accounting_fields import SLURM_NULL_TEXTS
from gpuplanner.ingest.source_definition import register_sniffer
from gpuplanner.ingest.source_fields import (
    CSV_DIALECT,
    UTC_TIME_DTYPE,
    Field,
    map_unique_texts,
    parse_header,
    validate_time_zone,
)
from gpuplanner.ingest.table_assembly import assemble_nodes
from gpuplanner.ingest.text_files import TextFile, read_head, read_text_file
from gpuplanner.ingest.typed_row_reader import looks_like_json, read_rows, require_faultless

SINFO_HEADER_NAMES = {"NODELIST", "GRES"}
"""Columns by which the output of sinfo is recognised."""

SCONTROL_LINE_PATTERN = re.compile(r"(?i)\s*(?:NodeName|SlurmctldHost|ClusterName)=")
"""Beginning of a line of ``scontrol show node``, or of a slurm.conf that lists nodes."""

SLURM_CONF_LINE_PATTERN = re.compile(r"[A-Z]\w*=")
"""Beginning of a line of slurm.conf: a key and ``=``."""

SLURM_NODE_JSON_PATTERN = re.compile(r'"(?:nodes|sinfo)"\s*:\s*\[')
"""Field by which JSON of scontrol or sinfo with nodes is recognised."""

PARENTHESES_PATTERN = re.compile(r"\([^()]*\)")
"""Part of a Gres text in parentheses, such as socket numbers: ``(S:0-1)``."""

SHARE_GRES_PATTERN = re.compile(r"(?P<name>shard|mps)(?::(?P<type>[^:]*[^:\d][^:]*))?:(?P<count>\d{1,9})")
"""Item of a node's Gres for shares of its GPUs, such as ``shard:a100:8`` or ``mps:400``."""

SHARES_PER_GPU_PATTERN = r"(?:shard|mps)(?::[^,:]+)?:\d+(?:\.\d+)?"
"""Entry of the column ``shares`` of a node list: shares per GPU, such as ``shard:4``."""

SHARES_PER_GPU_LIST_PATTERN = f"^{SHARES_PER_GPU_PATTERN}(?:,{SHARES_PER_GPU_PATTERN})*$"
"""Text of the column ``shares`` of a node list: entries joined by commas."""

NODE_REASON_TIME_PATTERN = re.compile(r"\[[^\[\]]*@(?P<time>[^\[\]\s]+)\]\s*$")
"""End of a Slurm node's reason: who set it, and when, as in ``[root@2026-03-22T11:03:34]``."""

GPU_GRES_PATTERN = re.compile(
    r"gpu(?::(?P<type>(?!no_consume)[^:]*[^:\d][^:]*))?(?::no_consume)?(?::(?P<count>\d{1,6}))?"
)
"""Item of a node's Gres for GPUs, such as ``gpu:a100:4``: type and count."""

FIELD_BY_NODE_STATE_COLUMN = {name: Field(name, nullable=True, optional=True) for name in ("state", "since", "latest")}
"""Columns that only Slurm node lists have: state of the node, since when it is down or drained, last time seen."""

NodeRecord = tuple[int, str, dict[str, str]]
"""Line number and text of a record's first line, and its values by key in upper case."""


def is_slurm_nodes(lines: Sequence[str]) -> bool:
    """Whether the first lines of a file look like a node list of Slurm.

    Examples
    --------
    >>> is_slurm_nodes(["NodeName=n1 Arch=x86_64"]), is_slurm_nodes(["node,gpus,gpu_model"])
    (True, False)
    """
    if not lines:
        return False
    if looks_like_json(lines):
        text = "\n".join(lines)
        return SLURM_NODE_JSON_PATTERN.search(text) is not None and '"apiVersion"' not in text
    first_line = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    is_conf = SLURM_CONF_LINE_PATTERN.match(first_line) and any(map(SCONTROL_LINE_PATTERN.match, lines))
    is_key_value_list = SCONTROL_LINE_PATTERN.match(first_line) or is_conf
    return bool(is_key_value_list) or set(re.split(r"[|\s]+", lines[0].upper())) >= SINFO_HEADER_NAMES


def read_slurm_nodes(
    paths: Sequence[str | Path], columns: dict[str, Field], gpu_model_by_type: Mapping[str, str] | None = None
) -> Rows:
    r"""Read node lists of Slurm: name, number of GPUs, GPU model and MIG layouts of each node.

    MIG instances count as the fewest GPUs that can hold them: seven of 1g are one GPU, and so are two of 3g.

    Parameters
    ----------
    paths : sequence of str or Path
        Output of ``scontrol show node`` or ``sinfo``, as text or JSON, or slurm.conf.
    columns : dict of str to Field
        Columns of a node list and how to read them.
    gpu_model_by_type : mapping of str to str, optional
        GPU type in Gres → GPU model, for types whose name does not give it.

    Returns
    -------
    Rows
        One row for each node; nodes that cannot be read are among the rejects.

    Examples
    --------
    >>> import tempfile

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "nodes.txt"
    ...     _ = path.write_text("NodeName=n1 Arch=x86_64\n   Gres=gpu:a100:1(S:0-1),gpu:a100_1g.5gb:14,mps:400\n")
    ...     read_slurm_nodes([path], FIELD_BY_NODE_LIST_COLUMN).good["node", "gpus", "layouts", "gres_types"].rows()
    [('n1', 3.0, 'gpu;1g.5gb:7;1g.5gb:7', 'gpu=a100,1g.5gb=a100_1g.5gb')]
    """
    files = [read_text_file(path) for path in paths]
    numbered_records = [
        (file_number, *record)
        for file_number, (path, file) in enumerate(zip(paths, files, strict=True))
        for record in _parse_node_list(path, list(file.lines.iter_rows()))
    ]
    gres_items = {item for *_, values in numbered_records for item in _split_gres(values.get("GRES", ""))}
    types = {match["type"] for match in map(GPU_GRES_PATTERN.fullmatch, gres_items) if match}
    boards = DeviceResolver.from_words(filter(None, types), gpu_model_by_type)

    records = RecordCollector(columns | FIELD_BY_NODE_STATE_COLUMN)
    for file_number, line_number, line, values in numbered_records:
        node_list = values.get("NODENAME") or values.get("NODELIST", "")
        gres = values.get("GRES", "")
        if "FUTURE" in values.get("STATE", "").upper():
            continue
        latest = values.get("LASTUPDATE") or values.get("LASTBUSYTIME") or None
        state_fields = {"state": values.get("STATE") or None, "since": _reason_time(values), "latest": latest}
        for node in try_expand_node_list(node_list) or ("",):
            try:
                record = {**_parse_node_gres(node, gres, boards), **state_fields}
                records.add_record(file_number, line_number, line, record)
            except ValueError as error:
                records.reject(file_number, line_number, line, str(error))
    return records.rows(files)


def _parse_node_list(path: str | Path, lines: Sequence[tuple[int, str]]) -> list[NodeRecord]:
    """Parse a node list of Slurm in any of its forms: JSON, sinfo, or scontrol and slurm.conf."""
    first_line = next((text for _, text in lines if text.strip()), "")
    if looks_like_json([first_line]):
        return list(_parse_node_json(path, "\n".join(text for _, text in lines)))
    if set(re.split(r"[|\s]+", first_line.upper())) >= SINFO_HEADER_NAMES:
        return _parse_sinfo(lines)
    return _apply_conf_defaults(parse_scontrol_records(lines))


def parse_scontrol_records(lines: Sequence[tuple[int, str]], first_key: str = "NodeName=") -> list[NodeRecord]:
    """Parse the output of scontrol: a record starts at the line with its first key, and goes on in indented lines.

    Parameters
    ----------
    lines : sequence of (int, str)
        Line numbers and lines.
    first_key : str
        Beginning of the first line of each record.

    Returns
    -------
    list of NodeRecord
    """
    records: list[NodeRecord] = []
    in_record = False
    for number, line in lines:
        is_first_line = line.lstrip().casefold().startswith(first_key.casefold())
        in_record = is_first_line or (in_record and line[:1] in ("", " ", "\t"))
        if is_first_line:
            records.append((number, line, {}))
        for word in line.split() if in_record else ():
            name, _, value = word.partition("=")
            records[-1][2].setdefault(name.upper(), value)
        if in_record and "Reason=" in line:
            records[-1][2]["REASON"] = line.partition("Reason=")[2]
    return records


def _apply_conf_defaults(records: Sequence[NodeRecord]) -> list[NodeRecord]:
    """Fill in the values of nodes of slurm.conf from the lines ``NodeName=DEFAULT`` above them."""
    defaults: dict[str, str] = {}
    nodes = []
    for number, line, values in records:
        if values.get("NODENAME", "").upper() == "DEFAULT":
            defaults |= values
        else:
            nodes.append((number, line, {**defaults, **values}))
    return nodes


def _parse_sinfo(lines: Sequence[tuple[int, str]]) -> list[NodeRecord]:
    """Parse the output of sinfo; a line without a word for each column becomes a record without values."""
    separator = "|" if "|" in lines[0][1] else None
    (_, _, header), *table = [
        (number, line, [word.strip() for word in line.split(separator)]) for number, line in lines if line.strip()
    ]
    names = [name.upper() for name in header]
    return [
        (number, line, dict(zip(names, words, strict=True)) if len(words) == len(names) else {})
        for number, line, words in table
        if words != header
    ]


def _parse_node_json(path: str | Path, text: str) -> Iterator[NodeRecord]:
    """Parse the nodes of ``scontrol show node --json`` or ``sinfo --json``.

    References
    ----------
    SchedMD/slurm: src/plugins/data_parser/v0.0.40/parsers.c, NODE and SINFO_DATA.
    """
    remedy = "Write it again: scontrol show node --json > nodes.json."
    try:
        document = json.loads(text)
        items = document.get("nodes") or document.get("sinfo") or []
    except (ValueError, RecursionError, AttributeError) as error:
        raise TraceFormatError(str(path), "one JSON document", str(error), remedy) from None
    for number, item in enumerate(items, 1):
        line = json.dumps(item)[:200]
        try:
            record = _parse_json_node(item)
        except (AttributeError, KeyError, TypeError):
            expected = "nodes as scontrol writes them: name, gres and state"
            raise TraceFormatError(f"{path}, node {number}", expected, line, remedy) from None
        yield number, line, record | {"LASTUPDATE": _epoch_text(document.get("last_update"))}


def _parse_json_node(item: dict[str, Any]) -> dict[str, str]:
    """Parse one item of the JSON of scontrol or sinfo into the values of a record."""
    group = item.get("node", item)
    gres = item.get("gres")
    names = item.get("nodes")
    state = group.get("state") or ()
    record = {
        "NODENAME": ",".join(names["nodes"]) if isinstance(names, dict) else item.get("name", ""),
        "GRES": (gres["total"] if isinstance(gres, dict) else gres) or "",
        # CLOUD is one of the first flags in text, and at any place in JSON.
        "STATE": state if isinstance(state, str) else "+".join(sorted(state, key=lambda flag: flag != "CLOUD")),
        "TIMESTAMP": _epoch_text(item.get("reason_changed_at")),
    }
    if not all(isinstance(value, str) for value in record.values()):
        raise TypeError
    return record


def _epoch_text(value: Any) -> str:  # noqa: ANN401 - anything that JSON can hold
    """Return a time of the JSON of Slurm, a number or an object with one, as text; empty if it has none."""
    return str((value.get("number") if isinstance(value, dict) else value) or "")


def _reason_time(values: Mapping[str, str]) -> str | None:
    """Return the time at which the reason of a down or drained node was set, as text; None if it has none."""
    match = NODE_REASON_TIME_PATTERN.search(values.get("REASON", ""))
    text = match["time"] if match else values.get("TIMESTAMP", "")
    return None if text in (*SLURM_NULL_TEXTS, "0") else text


def _split_gres(text: str) -> list[str]:
    """Split a Gres text at commas into items such as ``gpu:a100:4``, without parts in parentheses (socket numbers)."""
    return [] if text in SLURM_NULL_TEXTS else PARENTHESES_PATTERN.sub("", text).split(",")


def _parse_node_gres(node: str, gres: str, device_resolver: DeviceResolver) -> Record:
    """Parse the Gres of a node into the columns of a node list: GPUs, GPU model, MIG layouts and shares per GPU."""
    if not node:
        raise_fault("not a name and a Gres for each column of the header")
    full_gpus = 0
    models = []
    instances_by_model: dict[str, Counter[str]] = defaultdict(Counter)
    gpus_by_model = Counter[str]()
    shares = Counter[tuple[str, str | None]]()
    gres_types: dict[str, str] = {}

    for item in _split_gres(gres):
        gpu_match = GPU_GRES_PATTERN.fullmatch(item)
        share_match = SHARE_GRES_PATTERN.fullmatch(item)
        if share_match is not None:
            shares[share_match["name"], share_match["type"]] += int(share_match["count"])
        if gpu_match is None:
            if item == "gpu" or item.startswith("gpu:"):
                raise_fault(f"Gres: {item!r} is no number of GPUs")
            continue
        count = int(gpu_match["count"] or 1)
        device = device_resolver.split_word(gpu_match["type"] or FULL_GPU)
        models += [device.gpu_model] if device.gpu_model else []
        if gpu_match["type"]:
            gres_types[device.profile or FULL_GPU] = gpu_match["type"]
        if device.profile is None:
            full_gpus += count
            gpus_by_model[device.gpu_model or ""] += count
        elif count:
            instances_by_model[device.gpu_model or ""][device.profile] += count

    layouts = []
    for gpu_model, counts in instances_by_model.items():
        model_layouts = _fewest_gpu_layouts(gpu_model, counts, device_resolver)
        layouts += model_layouts
        gpus_by_model[gpu_model] += len(model_layouts)
    return {
        "node": node,
        "gpus": str(full_gpus + len(layouts)),
        "gpu_model": "|".join(dict.fromkeys(models)) or None,
        "mig_enabled": "true" if layouts else None,
        "layouts": ";".join([FULL_GPU] * full_gpus + layouts) if layouts else None,
        "shares": _format_shares(shares, gpus_by_model, device_resolver),
        "gres_types": ",".join(f"{profile}={name}" for profile, name in gres_types.items()) or None,
    }


def _format_shares(
    share_counts: Mapping[tuple[str, str | None], int],
    gpus_by_model: Mapping[str, int],
    device_resolver: DeviceResolver,
) -> str | None:
    """Format the shares into which each GPU of a node is divided, such as ``shard:4``.

    Parameters
    ----------
    share_counts : mapping of (str, str or None) to int
        Name and GPU type of the shares (``shard``, ``mps``) → number on the node.
    gpus_by_model : mapping of str to int
        GPU model → number of GPUs of the node.
    device_resolver : DeviceResolver
        Resolver from GPU types to GPU models.

    Returns
    -------
    str or None
        Shares per GPU by name; the type follows the name where the node has several GPU models.
    """
    shares_per_gpu: dict[str, float] = {}
    for (name, type_), count in share_counts.items():
        typed_gpus = gpus_by_model.get(device_resolver.split_word(type_).gpu_model or "", 0) if type_ else 0
        word = f"{name}:{type_}" if typed_gpus and len(gpus_by_model) > 1 else name
        if count and any(gpus_by_model.values()):
            shares_per_gpu[word] = shares_per_gpu.get(word, 0.0) + count / (typed_gpus or sum(gpus_by_model.values()))
    return ",".join(f"{word}:{size!r}".removesuffix(".0") for word, size in shares_per_gpu.items()) or None


def _fewest_gpu_layouts(
    gpu_model: str, instance_counts: Mapping[str, int], device_resolver: DeviceResolver
) -> list[str]:
    """Return the MIG layouts of the fewest GPUs that hold `instance_counts` (MIG profile → number of instances).

    All GPU models that the type `gpu_model` may mean must agree; else a ValueError is the reject reason of the node.
    """
    devices = [
        device_resolver.resolve_word(f"{gpu_model}_{profile}" if gpu_model else profile) for profile in instance_counts
    ]
    candidate_models = [name for name in devices[0].candidates if all(name in device.candidates for device in devices)]
    layouts = smallest_layouts(candidate_models, instance_counts)
    if layouts is None:
        mapping_example = f"{gpu_model or FULL_GPU}=MODEL"
        raise_fault(f"MIG instances on an unknown number of GPUs: give --map-gpu {mapping_example}")
    return layouts


def _node_list_columns(node: str, gpus: str, model: str) -> dict[str, Field]:
    """Return column → field for node, GPUs and GPU model, from the names of these columns in a form of node list."""
    number = Field("gpus", "number", high=MAX_GPUS_PER_JOB)
    return {node: Field("node"), gpus: number, model: Field("gpu_model", nullable=True)}


OPTIONAL_NODE_COLUMNS = ("installed", "retired", "mig_enabled", "layouts", "shares", "gres_types")
"""Columns that some forms of node lists lack; they are filled with nulls."""

FIELD_BY_NODE_LIST_COLUMN = _node_list_columns("node", "gpus", "gpu_model") | {
    name: Field(name, nullable=True, optional=True)
    for name in ("rack", "nvlink_domain", "ownership", *OPTIONAL_NODE_COLUMNS)
}
"""Columns of ``schemas.Inventory`` that a node list may give; times are dates (midnight in UTC) or have an offset."""

MIG_ENABLED_BY_WORD = {
    **dict.fromkeys(("true", "yes", "on", "1", "enabled"), True),
    **dict.fromkeys(("false", "no", "off", "0", "disabled"), False),
}
"""Word in a node list, in lower case → whether MIG mode is on."""

NODE_LIST_CSV_FORMS = (
    _node_list_columns("sn", "gpu", "model"),  # Alibaba OpenB
    _node_list_columns("node_name", "gpu_capacity_num", "gpu_model"),  # Alibaba's spot GPU cluster, 2026
    FIELD_BY_NODE_LIST_COLUMN,
)
"""Forms of CSV node lists, as column → field; the first two columns of each identify it."""


CPU_ONLY_CHECK = source_check("nodes: no GPU", pl.col("gpus") == 0)
"""Check of the quality report on nodes without GPUs."""

# Whole words only: a node in state POWERED_DOWN powers up when it is needed.
CLOSED_NODE_STATE_PATTERN = r"(?i)\b(?:DOWN|DRAIN|DRAINED|DRAINING|DRNG|FAIL|FAILING|FUTURE|MAINT|NOT_RESPONDING)\b"
"""Slurm node states in which a node accepts no new jobs (POWERED_DOWN is none: it powers up when needed)."""

IS_CLOSED_GPU_NODE_EXPR = (pl.col("gpus") > 0) & pl.col("state").str.contains(CLOSED_NODE_STATE_PATTERN)
"""Whether a row of a node list is a node with GPUs that accepts no new jobs."""

CLOSED_NODE_CHECK = source_check("nodes: closed", IS_CLOSED_GPU_NODE_EXPR)
"""Check of the quality report on nodes that are down or drained."""

UNDATED_CLOSURE_CHECK = source_check(
    "nodes: closed since an unknown time", IS_CLOSED_GPU_NODE_EXPR & pl.col("closed_from").is_null()
)
"""Check of the quality report on down or drained nodes since a time that is unknown."""


IS_POWERED_DOWN_NODE_EXPR = (pl.col("gpus") > 0) & (
    pl.col("state").str.contains(r"(?i)\bCLOUD\b.*\bPOWER(?:ED_DOWN|ING_DOWN|ING_UP)?\b|^\w+\*?[~%#]")
).fill_null(value=False)
"""Whether a row is a cloud node with GPUs that is not running; sinfo marks such states with ``~``, ``%`` or ``#``."""


def drop_powered_down_nodes(rows: Rows) -> tuple[Rows, list[Finding]]:
    """Drop cloud nodes that are not running, as they are no installed capacity, and name them; refuse a list of none.

    References
    ----------
    SchedMD, sinfo(1), NODE STATE CODES; slurm.conf(5), State=CLOUD.
    """
    off = rows.good.filter(IS_POWERED_DOWN_NODE_EXPR) if "state" in rows.good.columns else rows.good.clear()
    if off.is_empty():
        return rows, []
    rows = replace(rows, good=rows.good.filter(~IS_POWERED_DOWN_NODE_EXPR))
    names = off["node"].unique(maintain_order=True).to_list()
    if not rows.good["gpus"].sum():
        got = f"{count_text(len(names), 'cloud node')} powered down ({examples(names)}), and no other node with GPUs"
        remedy = "Leave the list out, and capacity follows from the jobs, or export it while nodes run."
        raise TraceFormatError("node list", "nodes with GPUs that are powered up", got, remedy)
    gpus = count_text(int(off.unique("node")["gpus"].sum()), "GPU")
    return rows, [source_finding("nodes: powered down", len(names), examples(names), gpus=gpus)]


SAME_NODE_REASON = "the same node again; lists of several dates need the date in the file name (nodes-2026-11-02.txt)"
"""Fault of a row of a node that an earlier row lists for the same or an unknown date."""


def read_inventory(
    path: str | Path, boards: Mapping[str, str] | None = None
) -> tuple[pl.DataFrame, TextFile, list[Finding]]:
    r"""Read a node list into an inventory.

    An inventory is a denominator of shares, so a fault in it is an error, never a reject.

    Parameters
    ----------
    path : str or Path
        CSV with the columns `node`, `gpus`, `gpu_model` and others of :data:`FIELD_BY_NODE_LIST_COLUMN`, or with those
        of OpenB or of the spot cluster; or ``scontrol show node`` and ``sinfo``, as text or JSON, or slurm.conf.
    boards : mapping of str to str, optional
        GPU type in the list → GPU model, where the number of GPUs depends on it.

    Returns
    -------
    inventory : polars.DataFrame
        Table ``schemas.Inventory``, sorted by node.
    file : TextFile
        The file, for the provenance.
    findings : list of Finding
        Nodes that are left out.

    Raises
    ------
    TraceFormatError
        If a node cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "nodes.csv"
    ...     _ = path.write_text("node,gpus,gpu_model\nn1,8,H100\n")
    ...     read_inventory(path)[0]["node", "gpus"].row(0)
    ('n1', 8)
    """
    rows, findings = drop_powered_down_nodes(read_inventory_rows([path], boards))
    return conform(rows.good, Inventory, source=str(path)).sort("node"), rows.files[0], findings


def read_inventory_rows(
    paths: Sequence[str | Path],
    boards: Mapping[str, str] | None = None,
    tz: str | None = None,
    nodes: str | Path | None = None,
) -> Rows:
    """Read the rows of node lists in any of their forms; faults raise a TraceFormatError.

    Lists of several dates may have the same node; column ``time`` is the date of the list, null if unknown.
    """
    rows = _with_dump_times(_read_node_rows(paths, boards, nodes), tz)
    rows = replace(rows, good=add_absent_columns(rows.good, dict.fromkeys(OPTIONAL_NODE_COLUMNS, pl.String())))
    if "latest" in rows.good.columns:  # sinfo has a line for each partition of a node, and slurm.conf lists it undated
        has_date = pl.col("time").is_not_null() | pl.col("time").is_null().all().over("node")
        same_columns = ["node", "time", "gpus", "gpu_model", "layouts", "shares", "gres_types"]
        rows = replace(rows, good=rows.good.filter(has_date).unique(same_columns, keep="first", maintain_order=True))
    faults = {
        SAME_NODE_REASON: ~pl.struct("node", "time").is_first_distinct(),
        "not a whole number of GPUs": pl.col("gpus") != pl.col("gpus").floor(),
    }
    rows = _parse_service_dates(_parse_mig_layouts(rows)).reject(faults)
    return require_faultless(rows, ", ".join(str(path) for path in paths), "one whole row per node")


def _with_dump_times(rows: Rows, tz: str | None) -> Rows:
    """Add ``time``: the date in the name of the file, else the latest time at which it saw a node; null if unknown.

    Times without an offset are in the zone `tz`; without one they are unknown.
    """
    time_of_file = {number: read_dump_time(file.path) for number, file in enumerate(rows.files)}
    latest = pl.lit(None, UTC_TIME_DTYPE)
    if "latest" in rows.good.columns:
        rows = rows.with_columns(latest=_parse_state_times(rows.good["latest"], tz))
        latest = pl.col("latest").max().over("file")
    named = pl.col("file").replace_strict(time_of_file, default=None, return_dtype=UTC_TIME_DTYPE)
    return rows.with_columns(time=pl.coalesce(named, latest))


def detect_node_columns(lines: Sequence[str]) -> dict[str, Field] | None:
    """Return the columns of a node list in CSV by its header line; None if it is no node list."""
    header = {name.casefold() for line in lines[:1] for name in parse_header(line, CSV_DIALECT)}
    return next((columns for columns in NODE_LIST_CSV_FORMS if set(list(columns)[:2]) <= header), None)


def _parse_mig_layouts(rows: Rows) -> Rows:
    """Parse MIG mode into a boolean, and reject rows with unreadable MIG layouts or shares per GPU."""
    has_instances = map_unique_texts(rows.good["layouts"], lambda text: _count_layouts(text)[0], pl.Int64) > 0
    listed_gpus = map_unique_texts(rows.good["layouts"], lambda text: _count_layouts(text)[1], pl.Int64)
    word, layouts = pl.col("mig_enabled").str.strip_chars().str.to_lowercase(), pl.col("layouts")
    mode = word.replace_strict(MIG_ENABLED_BY_WORD, default=None, return_dtype=pl.Boolean)
    faults = {
        "mig_enabled: neither true nor false": word.is_not_null() & mode.is_null(),
        "layouts: not such as '3g.20gb:2;1g.5gb:7;gpu'": layouts.is_not_null() & listed_gpus.is_null(),
        "layouts: of more GPUs than the node has": listed_gpus > pl.col("gpus"),
        "layouts: of MIG instances, and mig_enabled is false": has_instances & ~mode,
        "shares: not such as 'shard:4' or 'mps:100'": ~pl.col("shares").str.contains(SHARES_PER_GPU_LIST_PATTERN),
    }
    mig = pl.coalesce(mode, pl.when(has_instances).then(pl.lit(value=True)))
    return rows.reject(faults).with_columns(mig_enabled=mig)


def _count_layouts(text: str) -> tuple[int | None, int | None]:
    """Count the MIG-partitioned GPUs in a text of layouts, and all its GPUs; None twice if it is no such text."""
    layouts = [part.strip() for part in text.split(";") if part.strip()]
    try:
        partitioned = [part for part in layouts if part not in (FULL_GPU, UNUSED_LAYOUT) and parse_layout(part)]
    except GeometryError:
        return None, None
    return len(partitioned), len(layouts)


def _parse_service_dates(rows: Rows) -> Rows:
    """Parse the dates on which nodes were installed and retired."""
    names = ("installed", "retired")
    with_times = rows.with_columns(_parse_day_or_instant(name).alias(f"{name} time") for name in names)
    faults = {
        f"{name}: neither a date nor a time with its offset from UTC": pl.col(name).is_not_null()
        & pl.col(f"{name} time").is_null()
        for name in names
    }
    faults["retired: before installed"] = pl.col("retired time") < pl.col("installed time")
    return with_times.reject(faults).with_columns(pl.col(f"{name} time").alias(name) for name in names)


def _parse_day_or_instant(column: str) -> pl.Expr:
    """Parse dates as midnight in UTC, and times with an offset from UTC."""
    text = pl.col(column).str.strip_chars()
    day = text.str.to_datetime("%Y-%m-%d", time_unit="us", time_zone="UTC", strict=False)
    return pl.coalesce(parse_instants(text), day)


def _read_node_rows(
    paths: Sequence[str | Path], boards: Mapping[str, str] | None, nodes: str | Path | None = None
) -> Rows:
    """Read node lists of one form: of single nodes, of Slurm, or CSV."""
    heads = [read_head(path) for path in paths]
    if paths and all(map(is_gpu_list, heads)):
        inventory = make_empty_table(Inventory) if nodes is None else read_inventory(nodes, boards)[0]
        gpus_of_node = {row[0]: row[1:] for row in inventory.select("node", "gpus", "gpu_model").iter_rows()}
        return read_gpu_lists(paths, FIELD_BY_NODE_LIST_COLUMN, gpus_of_node)
    if paths and all(map(is_slurm_nodes, heads)):
        return read_slurm_nodes(paths, FIELD_BY_NODE_LIST_COLUMN, boards)
    if any(map(is_slurm_nodes, heads)):
        other_paths = [str(path) for path, lines in zip(paths, heads, strict=True) if not is_slurm_nodes(lines)]
        got = f"no list of Slurm in {examples(other_paths)}"
        raise TraceFormatError("node list", "files of one form", got, "Leave all but one form out.")
    columns = next(filter(None, map(detect_node_columns, heads[:1])), FIELD_BY_NODE_LIST_COLUMN)
    return read_rows(paths, columns, source="node list")


def with_closing_times(rows: Rows, tz: str | None) -> Rows:
    """Add ``closed_from``: the time since which a node accepts no new jobs: of its reason, else of the list.

    Times without an offset are in the zone `tz`; without one, and in a list without a date, they stay null.
    """
    rows = replace(rows, good=add_absent_columns(rows.good, dict.fromkeys(("state", "since"), pl.String())))
    since = _parse_state_times(rows.good["since"], tz)
    return rows.with_columns(closed_from=pl.when(IS_CLOSED_GPU_NODE_EXPR).then(pl.coalesce(since, "time")))


def _parse_state_times(texts: pl.Series, tz: str | None) -> pl.Expr:
    """Parse the times of the states of nodes; null where they have no offset and no zone is given."""
    zone = None if tz is None else ZoneInfo(validate_time_zone(tz))
    return map_unique_texts(texts, lambda text: _parse_closing_time(text, zone), UTC_TIME_DTYPE)


def _parse_closing_time(text: str, zone: ZoneInfo | None) -> datetime | None:
    """Parse epoch seconds or an ISO time; None if it is neither, or has no offset and no zone is given."""
    if text.isdigit():
        return datetime.fromtimestamp(int(text), UTC)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        return None
    zoned_instant = instant if instant.tzinfo is not None or zone is None else instant.replace(tzinfo=zone)
    return None if zoned_instant.tzinfo is None else zoned_instant.astimezone(UTC)


def closed_node_outages(nodes: pl.DataFrame) -> pl.DataFrame | None:
    """Make the table ``schemas.OutOfService`` of nodes that are closed since a known time; None if there is none."""
    closed = nodes.filter(pl.col("closed_from").is_not_null()).sort("closed_from", "node")
    outages = closed.select(
        "node", start_time="closed_from", end_time=pl.lit(None, UTC_TIME_DTYPE), gpus=pl.lit(None, pl.Float64),
        bucket=pl.lit("down"),
    )  # fmt: skip
    return check_table(outages, TABLES["out_of_service"], source="node list") if outages.height else None


@register_sniffer(lambda lines: detect_node_columns(lines) is not None or is_slurm_nodes(lines) or is_gpu_list(lines))
def read_nodes(
    paths: Sequence[str | Path],
    *,
    boards: Mapping[str, str] | None = None,
    tz: str | None = None,
    nodes: str | Path | None = None,
) -> Dataset:
    r"""Read node lists; nodes that are down or drained are out of service since their reason, or from the list on.

    Parameters
    ----------
    paths : sequence of str or Path
        Node lists of one form, as :func:`read_inventory` reads them.
    boards : mapping of str to str, optional
        GPU type in the list → GPU model.
    tz : str, optional
        Time zone of reasons of Slurm without an offset.
    nodes : str or Path, optional
        Node list with the GPUs of nodes of which mig-parted shows the layout alone.

    Returns
    -------
    Dataset
        The inventory, with the table ``out_of_service`` where nodes are closed.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "node_info_df.csv"
    ...     _ = path.write_text("gpu_model,gpu_capacity_num,cpu_num,node_name\nA10,4,192,0\n")
    ...     read_nodes([path]).summary()["gpus"]
    4
    """
    rows, findings = drop_powered_down_nodes(read_inventory_rows(paths, boards, tz, nodes))
    rows = with_closing_times(rows, tz)
    names = dict(enumerate(rows.file_names()))
    whole_cluster = pl.lit(not any(is_gpu_list(read_head(path)) for path in paths))
    file = pl.col("file").replace_strict(names, return_dtype=pl.String)
    dumps = rows.good.with_columns(file, whole_cluster=whole_cluster)
    histories = [
        {"node_dumps": make_node_dumps(dumped), "out_of_service": closed_node_outages(dumped)}
        for dumped in dumps.sort("time", maintain_order=True).partition_by("time", maintain_order=True)
    ]
    is_latest = pl.col("time").is_null() | (pl.col("time") == pl.col("time").max().over("node"))
    inventory, model_findings = resolve_node_models(rows.good.filter(is_latest), boards)
    checks = [CPU_ONLY_CHECK, CLOSED_NODE_CHECK, UNDATED_CLOSURE_CHECK]
    dataset = assemble_nodes(rows, inventory, [*findings, *model_findings], checks=checks)
    return dataset.with_tables(**merge_node_histories(histories))
