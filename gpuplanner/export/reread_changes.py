"""Check scripts of changes and their index: nothing in them but what was written, and layouts that can be."""

from __future__ import annotations

import functools
import io
import itertools
import re
import shlex
from collections import Counter
from importlib import resources
from pathlib import Path

import polars as pl

from gpuplanner.errors import GeometryError, GpuPlannerError, first_line
from gpuplanner.export.changes import SHARED_PARTS, filled_template
from gpuplanner.export.index import INDEX, REHEARSED, index_line
from gpuplanner.export.reread_slurm import fit_on, gres_counts
from gpuplanner.hardware import GpuModel, layout_faults, parse_layout, parse_placements, prove
from gpuplanner.schemas import WHOLE_GPU

_HOLE = re.compile(r"@([A-Z_]+)@")
_MAY_BE = {
    "AFTERWARDS": r"[^\n]*",
    "FOLDER": r"[A-Za-z0-9/._-]+",
    "IMAGE": r"[A-Za-z0-9/._:@-]+",
    "NOTES": r"(?:#[^\n]*\n?)*",
    "STEPS": r"(?s:.*?)",
    "TIMEOUT_S": r"\d+",
    "CUT_S": r"\d+",
    "PROGRAMS": r"[A-Za-z0-9/._-]+",
    "RESERVE": r":|keep gpuplanner-[a-z0-9-]+ \d+(?:\nkeep gpuplanner-[a-z0-9-]+ \d+)*",
}
"""What may stand where a script is filled in; elsewhere a line of names, numbers and times."""
_NODE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9])?")
_GROUP = re.compile(r"(?<=[ |])\d[\d,]*: ([^;|→]+)")
_PLAIN = r"[A-Za-z0-9 ,:._-]*"
_STEP = re.compile(
    r"(?P<what>config|offers|gres|before|target|size)\[(?P<node>[A-Za-z0-9._-]+)(?:/\d+)?\]="
    r"(?P<value>[A-Za-z0-9 ,:./@=+_-]*)"
)


def check_script(text: str, board: GpuModel, gpus_per_node: int) -> tuple[list[str], list[str]]:
    """Problems and findings of a script: it must be one of this room, and what it fills in must be possible."""
    matches = ((name, _form(name).fullmatch(text)) for name in _scripts())
    name, filled = next(((name, found) for name, found in matches if found), ("", None))
    if filled is None:
        return [_stranger(text)], []
    known = filled.groupdict()
    if "STEPS" not in known:
        return [], [f"{name} as it is shipped"]
    problems = [] if known["BOARD"] == board.name else [f"it is for {known['BOARD']}, not for {board.name}"]
    findings, nodes = [], set()
    for word in shlex.split(known["STEPS"]):
        step = _STEP.fullmatch(word)
        if step is None:
            problems.append(f"{word[:80]!a} is no step")
            continue
        nodes.add(step["node"])
        faults, understood = _content(step["what"], step["value"], board, gpus_per_node)
        problems += [f"node {step['node']}: {fault}" for fault in faults]
        findings += [f"node {step['node']}: {one}" for one in understood]
    if nodes != set(known["NODES"].split()):
        problems.append(f"its nodes are {known['NODES']}, but there are steps for {' '.join(sorted(nodes))}")
    return problems, findings


def check_timer(text: str) -> tuple[list[str], list[str]]:
    """Problems and findings of what keeps the time of a calendar: it is as it is shipped, but for folder and image."""
    names = [name for name in _shipped("templates/calendar") if not name.endswith((".sh", ".md"))]
    found = [name for name in names if _form(name).fullmatch(text)]
    if not found:
        return ["it is none of the timers that are shipped"], []
    return [], [f"{found[0]} as it is shipped"]


@functools.cache
def _scripts() -> tuple[str, ...]:
    """Every script of this room, but the parts that several share."""
    found = [name for folder in ("", "templates", "templates/calendar") for name in _shipped(folder)]
    return tuple(sorted({name for name in found if name.endswith(".sh")} - set(SHARED_PARTS.values())))


def _shipped(folder: str) -> list[str]:
    """Files of a folder of this room; where a caller put another room in its place it may have no such folder."""
    room = resources.files("gpuplanner.export") / folder
    return [f"{folder}/{one.name}".lstrip("/") for one in room.iterdir()] if room.is_dir() else []


@functools.cache
def _form(name: str) -> re.Pattern[str]:
    """What a script of this room looks like, whatever is filled in; what is filled in twice must be the same."""
    seen: set[str] = set()

    def hole(match: re.Match[str]) -> str:
        if match[1] in seen:
            return f"(?P={match[1]})"
        seen.add(match[1])
        return f"(?P<{match[1]}>{_MAY_BE.get(match[1], _PLAIN)})"

    parts = _HOLE.split(_whole_template(name))
    return re.compile(
        "".join(
            re.escape(part) if at % 2 == 0 else _HOLE.sub(hole, f"@{part}@") for at, part in enumerate(parts)
        )
    )


def _whole_template(name: str) -> str:
    return filled_template(name, {})


def _stranger(text: str) -> str:
    """Say which line of a script is none of ours."""
    lines = {line for name in _scripts() for line in _whole_template(name).splitlines()}
    forms = [
        re.compile(_PLAIN.join(map(re.escape, _HOLE.split(line)[::2])))
        for line in lines
        if _HOLE.search(line)
    ]
    for number, line in enumerate(text.splitlines(), start=1):
        ours = line in lines or line.startswith("#") or any(form.fullmatch(line) for form in forms)
        if not ours and not all(map(_STEP.fullmatch, _words(line))):
            return f"line {number} is in no script that is shipped: {line[:80]!a}"
    return "lines are missing, or stand in another order than in any script that is shipped"


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return [line]


def _content(what: str, value: str, board: GpuModel, gpus_per_node: int) -> tuple[list[str], list[str]]:
    """Faults and findings of what one step states."""
    try:
        if what == "target":
            return ([] if value == "whole" else layout_faults(board, parse_placements(board, value))), [
                f"GPU: {value}"
            ]
        if what == "gres":
            counts, faults = gres_counts(value, board)
        elif what == "offers":
            items = [item.partition("=") for item in value.split()]
            counts = {
                WHOLE_GPU if name.endswith("/gpu") else board.profile(name.partition("mig-")[2]).name: int(
                    count
                )
                for name, _, count in items
            }
            faults = []
        else:
            return [], []
    except (GpuPlannerError, ValueError) as error:
        return [str(error)], []
    return (faults, []) if faults else fit_on(board, counts, gpus_per_node)


def check_names(text: str) -> tuple[list[str], list[str]]:
    """Problems and findings of a list of nodes: a name a line, each once, and what may be said of it behind it."""
    lines = [line.split(" ") for line in text.splitlines()]
    names = [line[0] for line in lines]
    odd = [
        f"line {number}: {word[:80]!a} is no name of a node"
        for number, line in enumerate(lines, 1)
        for word in line
        if not _NODE.fullmatch(word)
    ]
    twice = [f"{name} stands there twice" for name, count in Counter(names).items() if count > 1 and not odd]
    return [*odd, *twice], [f"{len(names)} nodes"]


def check_index(text: str, board: GpuModel, gpus_per_node: int) -> tuple[list[str], list[str]]:
    """Problems and findings of changes.csv: times in order, and layouts that can be on the GPUs of a node."""
    try:
        index = read_index(text)
    except (pl.exceptions.PolarsError, ValueError) as error:
        return [f"no index of changes: {first_line(error)}"], []
    problems = []
    for number, row in enumerate(index.iter_rows(named=True), start=2):
        faults = (
            [] if row["reserve_from"] <= row["planned"] else ["kept free from a time after it is planned"]
        )
        if row["give_up_at"] is not None and row["give_up_at"] <= row["planned"]:
            faults.append("given up before it is planned")
        for column in ("before", "after", "untouched"):
            for word in row[column].split():
                gpu, _, layout = word.partition("=")
                if not gpu.isdecimal() or int(gpu) >= gpus_per_node:
                    faults.append(f"{column}: no GPU {gpu} on a node of {gpus_per_node}")
                faults += [f"{column}: GPU {gpu}: {fault}" for fault in _impossible(layout, board)]
        if row["gpus"] != len(row["after"].split()):
            faults.append(f"{row['gpus']} GPUs, but {len(row['after'].split())} layouts")
        problems += [f"line {number}: {fault}" for fault in faults]
    return problems, [f"{index.height} changes of {index['node'].n_unique()} nodes"]


def check_index_text(text: str, path: Path, board: GpuModel) -> tuple[list[str], list[str]]:
    """Problems and findings of changes.md: its layouts can be, and its lines are those of changes.csv beside it."""
    found = [line for line in text.splitlines() if line.startswith("|")][2:]
    layouts = {layout.strip() for line in found for layout in _GROUP.findall(line)}
    problems = [fault for layout in sorted(layouts) for fault in _impossible(layout, board)]
    table = path.with_name("changes.csv")
    if table.is_file():
        rows = read_index(table.read_text(encoding="utf-8")).iter_rows(named=True)
        pairs = itertools.zip_longest(found, map(index_line, rows))
        wrong = [number for number, pair in enumerate(pairs, start=1) if pair[0] != pair[1]]
        problems += [f"line {number} of the table is not that of {table.name}" for number in wrong]
    return problems, [f"{len(found)} changes; every layout can be"]


def read_index(text: str) -> pl.DataFrame:
    """Read changes.csv back as it was made."""
    times = [name for name, kind in INDEX.items() if kind == pl.Datetime("us", "UTC")]
    schema = INDEX | REHEARSED | dict.fromkeys(times, pl.String)
    frame = pl.read_csv(io.StringIO(text), schema=schema)
    words = [name for name, kind in INDEX.items() if kind == pl.String]
    return frame.with_columns(
        pl.col(words).fill_null(""),
        pl.col(times).str.to_datetime("%Y-%m-%dT%H:%M:%SZ", time_zone="UTC", time_unit="us"),
    )


def _impossible(layout: str, board: GpuModel) -> list[str]:
    try:
        proof = prove(board, parse_layout(layout))
    except GeometryError as error:
        return [str(error)]
    return [] if proof.layout else [proof.reason]
