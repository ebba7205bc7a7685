"""Node lists of Slurm: ``scontrol show node``, ``sinfo`` and JSON."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl

from gpuplanner.core.errors import GeometryError, TraceFormatError, examples
from gpuplanner.core.schema_checks import check, conform
from gpuplanner.core.schemas import MAX_GPUS_PER_JOB, TABLES, WHOLE_GPU, Inventory
from gpuplanner.hardware.gpu_model_names import parse_device
from gpuplanner.hardware.mig_layouts import OFF, parse_layout
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import Record, Records, Rows, refuse, with_offset
from gpuplanner.ingest.gpu_model_resolution import (
    Boards,
    known_nodes,
    layouts_on,
    stated_boards,
    told_by_profiles,
)
from gpuplanner.ingest.gpu_shares import resolve_nodes
from gpuplanner.ingest.job_table import assemble_nodes
from gpuplanner.ingest.quality_report import Check
from gpuplanner.ingest.row_reader import faultless, is_json, read_rows
from gpuplanner.ingest.slurm.accounting_fields import NO_VALUE
from gpuplanner.ingest.source_definition import looks
from gpuplanner.ingest.source_fields import CSV, INSTANT, Field, header_names, known_zone, map_texts
from gpuplanner.ingest.text_files import TextFile, head, read_text_file

SINFO_HEADER = {"NODELIST", "GRES"}
OF_SCONTROL = re.compile(r"(?i)\s*(?:NodeName|SlurmctldHost|ClusterName)=")
"""How lines of scontrol, and of slurm.conf, begin that has nodes in it."""
OF_CONF = re.compile(r"[A-Z]\w*=")
OF_JSON = re.compile(r'"(?:nodes|sinfo)"\s*:\s*\[')
PARENTHESES = re.compile(r"\([^()]*\)")
SHARE = re.compile(r"(?P<name>shard|mps)(?::(?P<type>[^:]*[^:\d][^:]*))?:(?P<count>\d{1,9})")
ONE_SHARE = r"(?:shard|mps)(?::[^,:]+)?:\d+(?:\.\d+)?"
SHARES = re.compile(f"{ONE_SHARE}(?:,{ONE_SHARE})*")
DATED = re.compile(r"\[[^\[\]]*@(?P<time>[^\[\]\s]+)\]\s*$")
"""Who gave the reason of a node that is closed, and when: ``[root@2026-03-22T11:03:34]``."""
GPU = re.compile(r"gpu(?::(?P<type>(?!no_consume)[^:]*[^:\d][^:]*))?(?::no_consume)?(?::(?P<count>\d{1,6}))?")

STATE = {name: Field(name, nullable=True, optional=True) for name in ("state", "since")}
Found = tuple[int, str, dict[str, str]]
"""Number of the line, the line, and what it or its record says, by names in capital letters."""


def is_slurm_nodes(lines: Sequence[str]) -> bool:
    """True if the first lines of a file look like nodes of Slurm.

    Examples
    --------
    >>> is_slurm_nodes(["NodeName=n1 Arch=x86_64"]), is_slurm_nodes(["node,gpus,gpu_model"])
    (True, False)
    """
    if not lines:
        return False
    if is_json(lines):
        text = "\n".join(lines)
        return OF_JSON.search(text) is not None and '"apiVersion"' not in text
    first = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    ours = OF_SCONTROL.match(first) or (OF_CONF.match(first) and any(map(OF_SCONTROL.match, lines)))
    return bool(ours) or set(re.split(r"[|\s]+", lines[0].upper())) >= SINFO_HEADER


def read_slurm_nodes(
    paths: Sequence[str | Path], columns: dict[str, Field], stated: Mapping[str, str] | None = None
) -> Rows:
    r"""Read the nodes of Slurm clusters: name, number of GPUs, board, and how the GPUs are cut.

    Instances are counted as the fewest boards that can hold them: seven of 1g are one board, and so are two of 3g.

    Examples
    --------
    >>> import tempfile

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "nodes.txt"
    ...     _ = path.write_text("NodeName=n1 Arch=x86_64\n   Gres=gpu:a100:1(S:0-1),gpu:a100_1g.5gb:14,mps:400\n")
    ...     read_slurm_nodes([path], COLUMN_MAP).good["node", "gpus", "gpu_model", "layouts"].rows()
    [('n1', 3.0, 'a100', 'gpu;1g.5gb:7;1g.5gb:7')]
    """
    files = [read_text_file(path) for path in paths]
    found = [
        (number, *record)
        for number, (path, file) in enumerate(zip(paths, files, strict=True))
        for record in _records_of(path, list(file.lines.iter_rows()))
    ]
    matches = (GPU.fullmatch(item) for *_, told in found for item in _gres(told.get("GRES", "")))
    types = {match["type"] for match in matches if match}
    boards = Boards(stated_boards(stated), told_by_profiles(parse_device(word) for word in types if word))
    records, seen = Records(columns | STATE), set()
    for number, place, line, told in found:
        named, gres = told.get("NODENAME") or told.get("NODELIST", ""), told.get("GRES", "")
        if "FUTURE" in told.get("STATE", "").upper():
            continue
        closed = {"state": told.get("STATE") or None, "since": _since(told)}
        for node in known_nodes(named) or ("",):
            if (node, gres) in seen:
                continue
            seen.add((node, gres))
            try:
                records.add(number, place, line, {**_record(node, gres, boards), **closed})
            except ValueError as error:
                records.reject(number, place, line, str(error))
    return records.rows(files)


def _records_of(path: str | Path, lines: Sequence[tuple[int, str]]) -> list[Found]:
    """Records of a node list of Slurm, in whichever of its forms it is."""
    first = next((text for _, text in lines if text.strip()), "")
    if is_json([first]):
        return list(_json_records(path, "\n".join(text for _, text in lines)))
    if set(re.split(r"[|\s]+", first.upper())) >= SINFO_HEADER:
        return _sinfo(lines)
    return _with_defaults(scontrol_records(lines))


def scontrol_records(lines: Sequence[tuple[int, str]], first: str = "NodeName=") -> list[Found]:
    """Each record begins with the line of its name; the lines that are indented below belong to it."""
    found: list[Found] = []
    ours = False
    for number, line in lines:
        begins = line.lstrip().casefold().startswith(first.casefold())
        ours = begins or (ours and line[:1] in ("", " ", "\t"))
        if begins:
            found.append((number, line, {}))
        for word in line.split() if ours else ():
            name, _, value = word.partition("=")
            found[-1][2].setdefault(name.upper(), value)
        if ours and "Reason=" in line:
            found[-1][2]["REASON"] = line.partition("Reason=")[2]
    return found


def _with_defaults(found: Sequence[Found]) -> list[Found]:
    """Nodes of slurm.conf with what its lines ``NodeName=DEFAULT`` before them say."""
    defaults: dict[str, str] = {}
    nodes = []
    for number, line, told in found:
        if told.get("NODENAME", "").upper() == "DEFAULT":
            defaults |= told
        else:
            nodes.append((number, line, {**defaults, **told}))
    return nodes


def _sinfo(lines: Sequence[tuple[int, str]]) -> list[Found]:
    """A line for each node, or for some that are alike; one that has not a word for each column tells nothing."""
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


def _json_records(path: str | Path, text: str) -> Iterator[Found]:
    """Nodes of ``scontrol show node --json``, or of ``sinfo --json``.

    References
    ----------
    SchedMD/slurm: src/plugins/data_parser/v0.0.40/parsers.c, NODE and SINFO_DATA.
    """
    todo = "Write it again: scontrol show node --json > nodes.json."
    try:
        found = json.loads(text)
        items = found.get("nodes") or found.get("sinfo") or []
    except (ValueError, RecursionError, AttributeError) as error:
        raise TraceFormatError(str(path), "one JSON document", str(error), todo) from None
    for number, item in enumerate(items, 1):
        line = json.dumps(item)[:200]
        try:
            record = _json_record(item)
        except (AttributeError, KeyError, TypeError):
            expected = "nodes as scontrol writes them: name, gres and state"
            raise TraceFormatError(f"{path}, node {number}", expected, line, todo) from None
        yield number, line, record


def _json_record(item: dict[str, Any]) -> dict[str, str]:
    group = item.get("node", item)
    gres, names = item.get("gres"), item.get("nodes")
    state, since = group.get("state") or (), item.get("reason_changed_at")
    record = {
        "NODENAME": ",".join(names["nodes"]) if isinstance(names, dict) else item.get("name", ""),
        "GRES": (gres["total"] if isinstance(gres, dict) else gres) or "",
        "STATE": state if isinstance(state, str) else "+".join(state),
        "TIMESTAMP": str((since.get("number") if isinstance(since, dict) else since) or ""),
    }
    if not all(isinstance(value, str) for value in record.values()):
        raise TypeError
    return record


def _since(told: Mapping[str, str]) -> str | None:
    """When a node was closed, by its reason."""
    match = DATED.search(told.get("REASON", ""))
    text = match["time"] if match else told.get("TIMESTAMP", "")
    return None if text in (*NO_VALUE, "0") else text


def _gres(text: str) -> list[str]:
    return [] if text in NO_VALUE else PARENTHESES.sub("", text).split(",")


def _record(node: str, gres: str, boards: Boards) -> Record:
    if not node:
        refuse("not a name and a Gres for each column of the header")
    whole, models = 0, []
    cut: dict[str, Counter[str]] = defaultdict(Counter)
    gpus, parts = Counter[str](), Counter[tuple[str, str | None]]()
    for item in _gres(gres):
        match, share = GPU.fullmatch(item), SHARE.fullmatch(item)
        if share is not None:
            parts[share["name"], share["type"]] += int(share["count"])
        if match is None:
            if item == "gpu" or item.startswith("gpu:"):
                refuse(f"Gres: {item!r} is no number of GPUs")
            continue
        count, device = int(match["count"] or 1), boards.parts(match["type"] or WHOLE_GPU)
        models += [device.gpu_model] if device.gpu_model else []
        if device.profile is None:
            whole += count
            gpus[device.gpu_model or ""] += count
        elif count:
            cut[device.gpu_model or ""][device.profile] += count
    layouts = []
    for gpu_model, counts in cut.items():
        layouts += (of_board := _cut_gpus(gpu_model, counts, boards))
        gpus[gpu_model] += len(of_board)
    return {
        "node": node,
        "gpus": str(whole + len(layouts)),
        "gpu_model": "|".join(dict.fromkeys(models)) or None,
        "mig_enabled": "true" if layouts else None,
        "layouts": ";".join([WHOLE_GPU] * whole + layouts) if layouts else None,
        "shares": _shares(parts, gpus, boards),
    }


def _shares(counts: Mapping[tuple[str, str | None], int], gpus: Mapping[str, int], boards: Boards) -> str | None:
    """Parts of each GPU, by name and type of the shares; the type is left out where all GPUs are of one type."""
    parts: dict[str, float] = {}
    for (name, type_), count in counts.items():
        of_type = gpus.get(boards.parts(type_).gpu_model or "", 0) if type_ else 0
        word = f"{name}:{type_}" if of_type and len(gpus) > 1 else name
        if count and any(gpus.values()):
            parts[word] = parts.get(word, 0.0) + count / (of_type or sum(gpus.values()))
    return ",".join(f"{word}:{size!r}".removesuffix(".0") for word, size in parts.items()) or None


def _cut_gpus(gpu_model: str, counts: Mapping[str, int], boards: Boards) -> list[str]:
    """Layouts of the fewest GPUs that hold some instances; all boards that may be meant must agree on them."""
    devices = [boards.device(f"{gpu_model}_{profile}" if gpu_model else profile) for profile in counts]
    maybe = [name for name in devices[0].maybe if all(name in device.maybe for device in devices)]
    layouts = layouts_on(maybe, counts)
    if layouts is None:
        named = f"{gpu_model or WHOLE_GPU}=MODEL"
        refuse(f"MIG instances on an unknown number of GPUs: give --map-gpu {named}")
    return layouts


def _columns(node: str, gpus: str, model: str) -> dict[str, Field]:
    """What every node list says, by the names that one kind of them has for it."""
    number = Field("gpus", "number", high=MAX_GPUS_PER_JOB)
    return {node: Field("node"), gpus: number, model: Field("gpu_model", nullable=True)}


ABSENT = ("installed", "retired", "mig_enabled", "layouts", "shares")
"""Columns that are looked at, and that some forms of lists do not have."""

COLUMN_MAP = _columns("node", "gpus", "gpu_model") | {
    name: Field(name, nullable=True, optional=True) for name in ("rack", "nvlink_domain", "ownership", *ABSENT)
}
"""Columns of ``schemas.Inventory`` that a node list may give; times are dates (midnight in UTC) or have an offset."""

SWITCH = {
    **dict.fromkeys(("true", "yes", "on", "1", "enabled"), True),
    **dict.fromkeys(("false", "no", "off", "0", "disabled"), False),
}
"""Words for MIG mode."""

KINDS = (
    _columns("sn", "gpu", "model"),  # Alibaba OpenB
    _columns("node_name", "gpu_capacity_num", "gpu_model"),  # Alibaba's spot GPU cluster, 2026
    COLUMN_MAP,
)
"""Columns by which a node list is known, then those that it may have."""


CPU_ONLY = Check("node without GPUs", "info", "it adds nothing to capacity", pl.col("gpus") == 0)

# In words of its own: POWERED_DOWN is a node that comes back when it is needed.
CLOSED_STATE = r"(?i)\b(?:DOWN|DRAIN|DRAINED|DRAINING|DRNG|FAIL|FAILING|FUTURE|MAINT|NOT_RESPONDING)\b"
IS_CLOSED = (pl.col("gpus") > 0) & pl.col("state").str.contains(CLOSED_STATE)
CLOSED = Check(
    "node that takes no new jobs",
    "info",
    "its GPUs count as installed, and as out of service since the date of its reason",
    IS_CLOSED,
)
UNDATED = Check(
    "node that takes no new jobs since a time that is not known",
    "warning",
    "its GPUs count as installed and idle: its reason has no date, or a local one, which needs --tz",
    IS_CLOSED & pl.col("closed_from").is_null(),
)


def read_inventory(path: str | Path, boards: Mapping[str, str] | None = None) -> tuple[pl.DataFrame, TextFile]:
    r"""Read a node list: table ``schemas.Inventory`` sorted by node, and the file, for the provenance.

    The list is CSV with `node`, `gpus`, `gpu_model` and what else :data:`COLUMN_MAP` has, or with the columns of OpenB
    or of the spot cluster; or ``scontrol show node`` and ``sinfo``, as text or JSON, or slurm.conf. An inventory is a
    denominator, so a fault in it is an error, never a reject. `boards`: word of the list → board, where the number of
    GPUs depends on it.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "nodes.csv"
    ...     _ = path.write_text("node,gpus,gpu_model\nn1,8,H100\n")
    ...     read_inventory(path)[0]["node", "gpus"].row(0)
    ('n1', 8)
    """
    rows = inventory_rows([path], boards)
    return conform(rows.good, Inventory, where=str(path)).sort("node"), rows.files[0]


def inventory_rows(paths: Sequence[str | Path], boards: Mapping[str, str] | None = None) -> Rows:
    """Rows of node lists, in whichever of the forms they are."""
    found = _rows(paths, boards)
    absent = [pl.lit(None, pl.String).alias(name) for name in ABSENT if name not in found.good.columns]
    faults = {
        "the same node again": ~pl.col("node").is_first_distinct(),
        "not a whole number of GPUs": pl.col("gpus") != pl.col("gpus").floor(),
    }
    rows = _with_times(_with_layouts(found.with_columns(absent))).reject(faults)
    return faultless(rows, ", ".join(str(path) for path in paths), "one whole row per node")


def columns_of_nodes(lines: Sequence[str]) -> dict[str, Field] | None:
    """Columns of a node list with this header line; None if it looks like none."""
    header = {name.casefold() for line in lines[:1] for name in header_names(line, CSV)}
    return next((columns for columns in KINDS if set(list(columns)[:2]) <= header), None)


def _with_layouts(rows: Rows) -> Rows:
    """MIG mode as a truth, and layouts that are some."""
    has_cut = map_texts(rows.good["layouts"], lambda text: _layout_counts(text)[0], pl.Int64) > 0
    number = map_texts(rows.good["layouts"], lambda text: _layout_counts(text)[1], pl.Int64)
    word, layouts = pl.col("mig_enabled").str.strip_chars().str.to_lowercase(), pl.col("layouts")
    mode = word.replace_strict(SWITCH, default=None, return_dtype=pl.Boolean)
    shares = f"^(?:{SHARES.pattern})$"
    faults = {
        "mig_enabled: neither true nor false": word.is_not_null() & mode.is_null(),
        "layouts: not such as '3g.20gb:2;1g.5gb:7;gpu'": layouts.is_not_null() & number.is_null(),
        "layouts: of more GPUs than the node has": number > pl.col("gpus"),
        "layouts: of MIG instances, and mig_enabled is false": has_cut & ~mode,
        "shares: not such as 'shard:4' or 'mps:100'": ~pl.col("shares").str.contains(shares),
    }
    mig = pl.coalesce(mode, pl.when(has_cut).then(pl.lit(value=True)))
    return rows.reject(faults).with_columns(mig_enabled=mig)


def _layout_counts(text: str) -> tuple[int | None, int | None]:
    """How many GPUs a text of layouts cuts, and how many it tells of; None twice if it is none."""
    parts = [part.strip() for part in text.split(";") if part.strip()]
    try:
        cut = [part for part in parts if part not in (WHOLE_GPU, OFF) and parse_layout(part)]
    except GeometryError:
        return None, None
    return len(cut), len(parts)


def _with_times(rows: Rows) -> Rows:
    """Instants of coming and going."""
    names = ("installed", "retired")
    read = rows.with_columns(_day_or_instant(name).alias(f"{name} time") for name in names)
    faults = {
        f"{name}: neither a date nor a time with its offset from UTC": pl.col(name).is_not_null()
        & pl.col(f"{name} time").is_null()
        for name in names
    }
    faults["retired: before installed"] = pl.col("retired time") < pl.col("installed time")
    return read.reject(faults).with_columns(pl.col(f"{name} time").alias(name) for name in names)


def _day_or_instant(name: str) -> pl.Expr:
    text = pl.col(name).str.strip_chars()
    day = text.str.to_datetime("%Y-%m-%d", time_unit="us", time_zone="UTC", strict=False)
    return pl.coalesce(with_offset(text), day)


def _rows(paths: Sequence[str | Path], boards: Mapping[str, str] | None) -> Rows:
    heads = [head(path) for path in paths]
    if paths and all(map(is_slurm_nodes, heads)):
        return read_slurm_nodes(paths, COLUMN_MAP, boards)
    if any(map(is_slurm_nodes, heads)):
        others = [str(path) for path, lines in zip(paths, heads, strict=True) if not is_slurm_nodes(lines)]
        got = f"no list of Slurm in {examples(others)}"
        raise TraceFormatError("node list", "files of one form", got, "Leave all but one form out.")
    columns = next(filter(None, map(columns_of_nodes, heads[:1])), COLUMN_MAP)
    return read_rows(paths, columns, source="node list")


def with_closing(rows: Rows, tz: str | None) -> Rows:
    """Nodes with the instant at which they were closed, where the list says it: ``closed_from``."""
    if "since" not in rows.good.columns:
        return rows.with_columns(state=pl.lit(None, pl.String), closed_from=pl.lit(None, INSTANT))
    zone = None if tz is None else ZoneInfo(known_zone(tz))
    since = map_texts(rows.good["since"], lambda text: _instant(text, zone), INSTANT)
    return rows.with_columns(closed_from=pl.when(IS_CLOSED).then(since))


def _instant(text: str, zone: ZoneInfo | None) -> datetime | None:
    if text.isdigit():
        return datetime.fromtimestamp(int(text), UTC)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    stated = found if found.tzinfo is not None or zone is None else found.replace(tzinfo=zone)
    return None if stated.tzinfo is None else stated.astimezone(UTC)


def closed_nodes(nodes: pl.DataFrame) -> pl.DataFrame | None:
    """Table ``schemas.OutOfService`` of nodes that are closed since a known instant; None where there is none."""
    closed = nodes.filter(pl.col("closed_from").is_not_null()).sort("closed_from", "node")
    found = closed.select(
        "node", start_time="closed_from", end_time=pl.lit(None, INSTANT), gpus=pl.lit(None, pl.Float64),
        bucket=pl.lit("down"),
    )  # fmt: skip
    return check(found, TABLES["out_of_service"], where="node list") if found.height else None


@looks(lambda lines: columns_of_nodes(lines) is not None or is_slurm_nodes(lines))
def read_nodes(
    paths: Sequence[str | Path], *, boards: Mapping[str, str] | None = None, tz: str | None = None
) -> Dataset:
    r"""Read node lists; nodes that are closed are out of service since the date of their reason.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "node_info_df.csv"
    ...     _ = path.write_text("gpu_model,gpu_capacity_num,cpu_num,node_name\nA10,4,192,0\n")
    ...     read_nodes([path]).summary()["gpus"]
    4
    """
    rows = with_closing(inventory_rows(paths, boards), tz)
    nodes, findings = resolve_nodes(rows.good, boards)
    found = assemble_nodes(rows, nodes, findings, checks=[CPU_ONLY, CLOSED, UNDATED])
    return found.with_tables(out_of_service=closed_nodes(nodes))
