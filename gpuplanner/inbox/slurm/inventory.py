"""Node lists: which nodes there are, with how many GPUs of which kind, beside jobs or as a source of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner.errors import GeometryError, TraceFormatError, examples, message
from gpuplanner.hardware import OFF, fewest_gpus, format_layout, parse_device, parse_layout
from gpuplanner.inbox.core.boards import Boards, stated_boards, told_by_profiles
from gpuplanner.inbox.core.dataset import Dataset
from gpuplanner.inbox.core.findings import Check
from gpuplanner.inbox.core.lines.fields import CSV, Field, header_names
from gpuplanner.inbox.core.lines.reading import read_rows
from gpuplanner.inbox.core.lines.rows import Record, Records, Rows
from gpuplanner.inbox.core.lines.text_blocks import read_text_file
from gpuplanner.inbox.core.lines.text_file import TextFile, head
from gpuplanner.inbox.core.shares import resolve_nodes
from gpuplanner.inbox.core.source import looks
from gpuplanner.inbox.core.table_rows import assemble_reading
from gpuplanner.inbox.slurm.fields import NO_VALUE
from gpuplanner.schemas import WHOLE_GPU, Inventory, conform
from gpuplanner.schemas.domain import MAX_GPUS_PER_JOB

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


COLUMN_MAP = {
    "node": Field("node"),
    "gpus": Field("gpus", "number", high=MAX_GPUS_PER_JOB),
    "gpu_model": Field("gpu_model", nullable=True),
    "rack": Field("rack", nullable=True, optional=True),
    "nvlink_domain": Field("nvlink_domain", nullable=True, optional=True),
    "ownership": Field("ownership", nullable=True, optional=True),
    "installed": Field("installed", nullable=True, optional=True),
    "retired": Field("retired", nullable=True, optional=True),
    "mig_enabled": Field("mig_enabled", nullable=True, optional=True),
    "layouts": Field("layouts", nullable=True, optional=True),
}
"""Columns of ``schemas.Inventory`` that a node list may give; times are dates (midnight in UTC) or have an offset."""

SWITCH = {
    **dict.fromkeys(("true", "yes", "on", "1", "enabled"), True),
    **dict.fromkeys(("false", "no", "off", "0", "disabled"), False),
}
"""Words for MIG mode."""

OPENB_COLUMN_MAP = {
    "sn": Field("node"),
    "gpu": Field("gpus", "number", high=MAX_GPUS_PER_JOB),
    "model": Field("gpu_model", nullable=True),
}
"""The node lists of Alibaba OpenB."""

SPOT_COLUMN_MAP = {
    "node_name": Field("node"),
    "gpu_capacity_num": Field("gpus", "number", high=MAX_GPUS_PER_JOB),
    "gpu_model": Field("gpu_model", nullable=True),
}
"""The node list of Alibaba's spot GPU cluster, 2026."""

KINDS = (OPENB_COLUMN_MAP, SPOT_COLUMN_MAP, COLUMN_MAP)
"""Columns by which a node list is known, then those that it may have."""


CPU_ONLY = Check("node without GPUs", "info", "it adds nothing to capacity", pl.col("gpus") == 0)

# In words of its own: POWERED_DOWN is a node that comes back when it is needed.
CLOSED_STATE = r"(?i)\b(?:DOWN|DRAIN|DRAINED|DRAINING|DRNG|FAIL|FAILING|FUTURE|MAINT|NOT_RESPONDING)\b"
CLOSED = Check(
    "node that takes no new jobs",
    "info",
    "its GPUs count as installed",
    (pl.col("gpus") > 0) & pl.col("state").str.contains(CLOSED_STATE),
)


def read_inventory(
    path: str | Path, boards: Mapping[str, str] | None = None
) -> tuple[pl.DataFrame, TextFile]:
    r"""Read a node list: table ``schemas.Inventory`` sorted by node, and the file, for the provenance.

    The list is CSV with `node`, `gpus`, `gpu_model` and what else :data:`COLUMN_MAP` has, or with the columns of OpenB
    or of the spot cluster; or the text of ``scontrol show node`` or ``sinfo -N -o "%N %G"``. An inventory is a
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
    rows = _with_times(_with_layouts(_rows(paths, boards))).reject(
        {
            "the same node again": ~pl.col("node").is_first_distinct(),
            "not a whole number of GPUs": pl.col("gpus") != pl.col("gpus").floor(),
        }
    )
    faults = [f"line {line}: {reason}" for line, reason in rows.rejects["row", "reason"].iter_rows()]
    if faults or rows.good.is_empty():
        got = f"{len(faults)} faulty rows: {examples(faults)}" if faults else "no rows below the header"
        where = ", ".join(str(path) for path in paths)
        raise TraceFormatError(message(where, "one whole row per node", got, "Mend the list."))
    return rows


def columns_of_nodes(lines: Sequence[str]) -> dict[str, Field] | None:
    """Columns of a node list with this header line; None if it looks like none."""
    header = {name.casefold() for line in lines[:1] for name in header_names(line, CSV)}
    return next((columns for columns in KINDS if set(list(columns)[:2]) <= header), None)


def _with_layouts(rows: Rows) -> Rows:
    """MIG mode as a truth, and layouts that are some; either is absent where a form of lists does not have it."""
    absent = [name for name in ("mig_enabled", "layouts") if name not in rows.good.columns]
    good = rows.good.with_columns(pl.lit(None, pl.String).alias(name) for name in absent)
    counts = {text: _layout_counts(text) for text in good["layouts"].drop_nulls().unique()}
    cut, gpus = ({text: found[place] for text, found in counts.items()} for place in (0, 1))
    word, layouts = pl.col("mig_enabled").str.strip_chars().str.to_lowercase(), pl.col("layouts")
    has_cut = layouts.replace_strict(cut, default=None, return_dtype=pl.Int64) > 0
    number = layouts.replace_strict(gpus, default=None, return_dtype=pl.Int64)
    mode = word.replace_strict(SWITCH, default=None, return_dtype=pl.Boolean)
    checked = replace(rows, good=good).reject(
        {
            "mig_enabled: neither true nor false": word.is_not_null() & mode.is_null(),
            "layouts: not such as '3g.20gb:2;1g.5gb:7;gpu'": layouts.is_not_null() & number.is_null(),
            "layouts: of more GPUs than the node has": number > pl.col("gpus"),
            "layouts: of cut GPUs, and mig_enabled is false": has_cut & ~mode,
        }
    )
    mig = pl.coalesce(mode, pl.when(has_cut).then(pl.lit(value=True)))
    return checked.with_columns(mig_enabled=mig)


def _layout_counts(text: str) -> tuple[int | None, int | None]:
    """How many GPUs a text of layouts cuts, and how many it tells of; None twice if it is none."""
    parts = [part.strip() for part in text.split(";") if part.strip()]
    try:
        cut = [part for part in parts if part not in (WHOLE_GPU, OFF) and parse_layout(part)]
    except GeometryError:
        return None, None
    return len(cut), len(parts)


def _with_times(rows: Rows) -> Rows:
    """Instants of coming and going; None where a form of lists does not have them."""
    names = [name for name in ("installed", "retired") if name in rows.good.columns]
    text = pl.col(names).str.strip_chars().str.replace(r"\s*(?:Z|UTC)$", "+00:00")
    day = text.str.to_datetime("%Y-%m-%d", time_unit="us", time_zone="UTC", strict=False)
    offset = text.str.replace(" ", "T", literal=True).str.to_datetime(
        "%Y-%m-%dT%H:%M:%S%.f%z", time_unit="us", strict=False
    )
    read = rows.good.with_columns(offset.name.suffix(" offset"), day.name.suffix(" day"))
    good = read.with_columns(
        pl.coalesce(f"{name} offset", f"{name} day").alias(f"{name} time") for name in names
    )
    faults = {
        f"{name}: neither a date nor a time with its offset from UTC": pl.col(name).is_not_null()
        & pl.col(f"{name} time").is_null()
        for name in names
    }
    if len(names) == 2:
        faults["retired: before installed"] = pl.col("retired time") < pl.col("installed time")
    checked = replace(rows, good=good).reject(faults)
    return checked.with_columns(pl.col(f"{name} time").alias(name) for name in names)


def _rows(paths: Sequence[str | Path], boards: Mapping[str, str] | None) -> Rows:
    first = [head(path) for path in paths[:1]]
    if len(paths) == 1 and is_slurm_nodes(first[0]):
        return read_slurm_nodes(paths[0], COLUMN_MAP, boards)
    columns = next(filter(None, map(columns_of_nodes, first)), COLUMN_MAP)
    return read_rows(paths, columns, source="node list")


def looks_like_nodes(lines: Sequence[str]) -> bool:
    """True if the first lines of a file look like a node list."""
    return columns_of_nodes(lines) is not None or is_slurm_nodes(lines)


@looks(looks_like_nodes)
def read_nodes(paths: Sequence[str | Path], *, boards: Mapping[str, str] | None = None) -> Dataset:
    r"""Read node lists.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "node_info_df.csv"
    ...     _ = path.write_text("gpu_model,gpu_capacity_num,cpu_num,node_name\nA10,4,192,0\n")
    ...     read_nodes([path]).summary()["gpus"]
    4
    """
    rows = inventory_rows(paths, boards)
    nodes, findings = resolve_nodes(rows.good, boards)
    return assemble_reading(
        replace(rows, good=nodes),
        "inventory",
        source="nodes",
        order=["node"],
        what="node",
        checks=[CPU_ONLY, *([CLOSED] if "state" in nodes.columns else [])],
        findings=findings,
        totals={
            "gpus": pl.col("gpus").cast(pl.Int64).sum(),
            "models": pl.col("gpu_model").drop_nulls().n_unique(),
        },
        span=(),
    )
