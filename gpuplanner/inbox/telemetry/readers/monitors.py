"""Tables in columns of blanks: ``nvidia-smi dmon`` and ``pmon``, ``dcgmi dmon``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.core.findings import Finding
from gpuplanner.inbox.core.lines.rows import Rows
from gpuplanner.inbox.core.source import matches
from gpuplanner.inbox.telemetry.readers.csv_logs import found_on_trust, node_by_file
from gpuplanner.inbox.telemetry.readers.instants import with_instants
from gpuplanner.inbox.telemetry.readers.metrics import DCGMI, SMI_DMON, SMI_UNITS, Metric, is_blank
from gpuplanner.inbox.telemetry.readers.numbers import known_unit, read_wide
from gpuplanner.inbox.telemetry.readers.pages import Hints, data_only, path_of, read_pages, reads
from gpuplanner.inbox.telemetry.sample_rows import Story, telemetry_of
from gpuplanner.schemas.readings import Processes
from gpuplanner.schemas.check import conform

DEFAULT_INTERVAL_S = 1.0
"""Sampling interval of all three programs unless told otherwise (option ``-d``)."""

ENTITY = r"^\s*(GPU|GPU-I|GPU-CI)\s+([0-9]{1,4})\s+(.*)$"
OTHER_INSTANCE = (
    "an instance whose GPU the table does not name: fetch 'dcgmi discovery -c', or monitor one GPU"
)


@reads(matches(r"\A#.*\bgpu\s"))
def read_smi_dmon(paths: Sequence[str | Path], hints: Hints) -> Dataset:
    r"""Read ``nvidia-smi dmon``.

    Its ``sm`` is the legacy counter, not the SM activity. Without the columns of ``-o DT``, rows of a GPU
    are counted from the origin, by default a second apart.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "n1.txt"
    ...     _ = path.write_text("# gpu  pwr  sm\n# Idx    W   %\n    0   70   -\n")
    ...     read_smi_dmon([path], Hints(origin="2026-01-01T00:00:00Z")).samples["power_w", "sm_activity"].row(0)
    (70.0, None)
    """
    source = "smi-dmon"

    def parse(page: Rows) -> Rows:
        path = path_of(page)
        names, units = _header(page, path, source)
        page = _cut(page, names)
        page = _timed(page, names, hints, path, pl.int_range(pl.len()).over("gpu"))
        metrics = {
            name: known_unit(SMI_DMON[name], SMI_UNITS.get(unit, unit), f"{path}, column {name!r}")
            for name, unit in zip(names, units, strict=False)
            if name in SMI_DMON
        }
        unused = tuple(name for name in names if name not in {*metrics, "gpu", "Date", "Time"})
        return replace(read_wide(page, metrics), unused=unused)

    rows = _with_gpu(read_pages(paths, parse, source=source), hints)
    return telemetry_of(rows, Story(source, hints.tz, more=_assumed(rows, hints)))


@reads(matches(r"\A#.*\bgpu\s+pid\s"))
def read_smi_pmon(paths: Sequence[str | Path], hints: Hints) -> Dataset:
    r"""Read ``nvidia-smi pmon``: which processes are on the GPUs.

    The samples say that a GPU was looked at; activity per process is a share of the legacy counter that
    cannot be added up, so it is not read. A GPU without a process has a row of dashes.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "n1.txt"
    ...     _ = path.write_text("# gpu pid type command\n# Idx # C/G name\n 0 77 C NVIDIA Share.exe\n")
    ...     read_smi_pmon([path], Hints(origin="2026-01-01T00:00:00Z")).processes["pid", "command"].row(0)
    (77, 'NVIDIA Share.exe')
    """
    source = "smi-pmon"

    def parse(page: Rows) -> Rows:
        path = path_of(page)
        names, _ = _header(page, path, source, needed=("gpu", "pid", "type", "command"))
        page = _cut(page, names)
        pairs = list(zip(page.good["gpu"], page.good["pid"], strict=True))
        rounds = pl.lit(pl.Series(_rounds(pairs), dtype=pl.Int64))
        page = _timed(page, names, hints, path, rounds)
        number = pl.col("pid").cast(pl.Int64, strict=False)
        page = page.reject({"pid: not a number": number.is_null() & ~is_blank(pl.col("pid"))})
        memory = {"fb": Metric("memory_used", "MiB")} if "fb" in names else {}
        return replace(read_wide(page, memory), unused=("sm", "mem", "enc", "dec"))

    rows = _with_gpu(read_pages(paths, parse, source=source), hints)
    processes = rows.good.filter(~is_blank(pl.col("pid"))).select(
        "time",
        "node",
        "gpu",
        pl.col("pid").cast(pl.Int64),
        kind="type",
        command="command",
        memory_gib="memory_used",
    )
    rows = rows.with_columns(memory_used=pl.lit(None, pl.Float64))
    told = conform(processes, Processes, where="processes")
    return telemetry_of(rows, Story(source, hints.tz, more=_assumed(rows, hints), processes=told))


@reads(matches(r"^\s*#\s*Entity\s", re.M))
def read_dcgmi_dmon(paths: Sequence[str | Path], hints: Hints) -> Dataset:
    r"""Read ``dcgmi dmon``, with GPUs and MIG instances as entities.

    DCGM numbers instances through the node and not through the GPU. Their GPU is known only where the table
    names a single one; the numbers are DCGM's, not those of nvidia-smi.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "n1.txt"
    ...     _ = path.write_text("#Entity  SMACT  TENSO\nID\nGPU 0  N/A  N/A\nGPU 0  0.5  0.25\n")
    ...     read_dcgmi_dmon([path], Hints(origin="2026-01-01T00:00:00Z")).samples["sm_activity"].to_list()
    [None, 0.5]
    """
    source = "dcgmi-dmon"

    def parse(page: Rows) -> Rows:
        path = path_of(page)
        titles = page.good["raw"].filter(page.good["raw"].str.contains(r"^\s*#\s*Entity\s"))
        if titles.is_empty():
            raise TraceFormatError(_no_header(path, "# Entity", source))
        names = titles[0].replace("#", " ").split()[1:]
        page = data_only(page, ~pl.col("raw").str.contains(r"^\s*(#|I[dD]\b)"))
        parts = pl.col("raw").str.extract_groups(ENTITY).struct
        good = page.good.with_columns(entity=parts[0], number=parts[1].cast(pl.Int32), tail=parts[2])
        page = replace(page, good=good).reject(
            {
                "not a row of a GPU or an instance": pl.col("entity").is_null(),
                "a compute instance: its GPU instance counts": pl.col("entity") == "GPU-CI",
            }
        )
        page = _cut(page, names, "tail")
        gpus = page.good.filter(pl.col("entity") == "GPU")["number"].unique()
        page = page.reject({OTHER_INSTANCE: (pl.col("entity") == "GPU-I") & pl.lit(len(gpus) != 1)})
        parent = pl.lit(gpus[0] if len(gpus) else None, pl.Int32)
        whole = pl.col("entity") == "GPU"
        turn = pl.int_range(pl.len()).over("entity", "number")
        good = page.good.with_columns(
            gpu=pl.when(whole).then("number").otherwise(parent).cast(pl.String),
            instance=pl.when(~whole).then("number"),
            time=hints.nth_instant(turn, str(path), DEFAULT_INTERVAL_S),
        )
        unused = tuple(name for name in names if name not in DCGMI)
        metrics = {name: DCGMI[name] for name in names if name in DCGMI}
        return replace(read_wide(replace(page, good=good), metrics), unused=unused)

    rows = _with_gpu(read_pages(paths, parse, source=source), hints)
    return telemetry_of(rows, Story(source, hints.tz, more=_assumed(rows, hints)))


def _header(
    page: Rows, path: Path, source: str, needed: tuple[str, ...] = ("gpu",)
) -> tuple[list[str], list[str]]:
    """Names and units of the two header lines, which repeat every few rows."""
    heads = page.good["raw"].filter(page.good["raw"].str.starts_with("#")).to_list()
    names, units = (head.removeprefix("#").split() for head in [*heads[:2], "", ""][:2])
    names = [{"date": "Date", "time": "Time"}.get(name.casefold(), name) for name in names]
    if not set(needed) <= set(names):
        raise TraceFormatError(_no_header(path, f"# {' '.join(needed)}", source))
    other = [head for head in heads[::2] if head.split() != heads[0].split()]
    if other or len(units) < len(names):
        got = repr(other[0]) if other else f"{len(units)} units for {len(names)} columns"
        todo = "Split the file where its columns change."
        raise TraceFormatError(message(str(path), "the same two header lines throughout", got, todo))
    return names, units


def _cut(page: Rows, names: Sequence[str], column: str = "raw") -> Rows:
    """Cut the data lines into the named fields; the last field of a pmon row, the command, may hold blanks."""
    page = data_only(page, ~pl.col("raw").str.starts_with("#"))
    last = r"(\S.*?)" if names[-1] in ("command", "name") else r"(\S+)"
    pattern = r"^\s*" + r"\s+".join([*([r"(\S+)"] * (len(names) - 1)), last]) + r"\s*$"
    parts = pl.col(column).str.extract_groups(pattern).struct
    fields = {name: parts[place] for place, name in enumerate(names)}
    return page.with_columns(**fields).reject(
        {"the fields do not match the header": pl.col(names[0]).is_null()}
    )


def _timed(page: Rows, names: Sequence[str], hints: Hints, path: Path, turn: pl.Expr) -> Rows:
    if {"Date", "Time"} <= set(names):
        day = pl.col("Date").str.replace(r"^(\d{4})(\d{2})(\d{2})$", "$1-$2-$3")
        page = page.with_columns(stamp=day + " " + pl.col("Time"))
        return with_instants(page, "stamp", hints.tz, str(path))
    instant = hints.nth_instant(turn, str(path), DEFAULT_INTERVAL_S)
    return page.with_columns(time=instant)


def _rounds(pairs: Sequence[tuple[str, str]]) -> list[int]:
    """Number of the sampling round of each row: a new one begins when a GPU and process come again."""
    seen: set[tuple[str, str]] = set()
    rounds, current = [], 0
    for pair in pairs:
        if pair in seen:
            seen, current = set(), current + 1
        seen.add(pair)
        rounds.append(current)
    return rounds


def _with_gpu(rows: Rows, hints: Hints) -> Rows:
    gpu = pl.col("gpu").cast(pl.Int32, strict=False)
    return rows.with_columns(gpu=gpu, node=node_by_file(rows, hints))


def _assumed(rows: Rows, hints: Hints) -> list[Finding]:
    counted = 0 if hints.origin is None else rows.count
    return found_on_trust(False, counted, rows.files, rows.count, hints)


def _no_header(path: Path, header: str, source: str) -> str:
    got = "no such line"
    return message(str(path), f"a header line {header!r} of {source}", got, "Keep the header of the output.")
