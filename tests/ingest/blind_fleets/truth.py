"""Fleets with their own table of GPU-hours and GPUs, and the check that the command line is never silently wrong."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest.mock import patch

from gpuplanner.cli.application import main

RELATIVE_ERROR = Fraction(1, 10**9)


@dataclass(frozen=True)
class Fault:
    """What a mutation changed: words of which a warning must hold one, and the counts that it may state."""

    name: str
    words: tuple[str, ...]
    counts: frozenset[int]


@dataclass
class Fleet:
    """Files of a cluster, and what is true of it; without a fault, both numbers must be exact."""

    files: dict[str, str]
    gpu_hours: Fraction
    installed_gpus: int | None
    fault: Fault | None = None
    notes: list[str] = field(default_factory=list)

    def write(self, folder: Path) -> list[Path]:
        """Write the files and return their paths, jobs first."""
        paths = []
        for name, text in self.files.items():
            path = folder / name
            path.write_text(text, encoding="utf-8")
            paths.append(path)
        return paths


@dataclass
class Units:
    """Shares of GPUs that one job holds at a time, each with the second from which it is unallocated."""

    shares: list[Fraction]
    free_s: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free_s = [0] * len(self.shares)

    def take(self, indices: list[int], earliest_s: int, run_s: int) -> int:
        """Allocate units as soon as all of them are free, and return the second of the start."""
        start_s = max([earliest_s, *(self.free_s[i] for i in indices)])
        for i in indices:
            self.free_s[i] = start_s + run_s
        return start_s


def call(*arguments: str) -> tuple[int, str, str]:
    """Run a command in this process: exit code, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "argv", ["gpuplanner", *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
    return code, out.getvalue(), err.getvalue()


def names_fault(fault: Fault, warnings: list[Mapping[str, Any]]) -> bool:
    """Whether a warning names the fault with one of its counts."""
    for warning in warnings:
        text = str(warning["what"]).lower()
        if any(word.lower() in text for word in fault.words) and warning["count"] in fault.counts:
            return True
    return False


def violation(fleet: Fleet, code: int, message: str, described: Mapping[str, Any] | None) -> str | None:
    """Return what is silently wrong, or None.

    Parameters
    ----------
    fleet : Fleet
        Files and truth.
    code : int
        Exit code of the command that read the files.
    message : str
        What it wrote to stderr.
    described : mapping, optional
        Answer of ``describe --json``; None where reading failed.
    """
    if code != 0 or described is None:
        if fleet.fault is None:
            return f"a plain form is not read: exit {code}: {message.strip()[-400:]}"
        if len(message.strip().split()) < 5:
            return f"exit {code} without a sentence: {message!r}"
        return None

    said = [] if described["gpu_hours"] is None else [Fraction(described["gpu_hours"])]
    equal_hours = any(abs(hours - fleet.gpu_hours) <= RELATIVE_ERROR * fleet.gpu_hours for hours in said)
    equal_gpus = fleet.installed_gpus is None or described["installed_gpus"] == fleet.installed_gpus
    if equal_hours and equal_gpus:
        return None
    if fleet.fault is not None and names_fault(fleet.fault, described["warnings"]):
        return None

    wanted = f"{float(fleet.gpu_hours)} GPU-hours on {fleet.installed_gpus} GPUs"
    came = f"{described['gpu_hours']} GPU-hours on {described['installed_gpus']} GPUs"
    fault = f" (fault: {fleet.fault})" if fleet.fault else ""
    return f"expected {wanted}; got {came}; warnings: {described['warnings']}{fault}; notes: {fleet.notes}"


def read(fleet: Fleet, arguments: Callable[[list[Path], Path], list[str]]) -> str | None:
    """Read a fleet by the command that ``arguments`` make of its files and the output folder; return the violation."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out = folder / "out"
        code, _, message = call(*arguments(fleet.write(folder), out))
        described = None
        if code == 0:
            code, text, message = call("describe", str(out), "--json")
            described = json.loads(text) if code == 0 else None
        return violation(fleet, code, message, described)


def ingest_slurm(paths: list[Path], out: Path) -> list[str]:
    """Arguments that read sacct and, where there is one, a node list."""
    nodes = ["--nodes", str(paths[1])] if len(paths) > 1 else []
    return ["ingest", "auto", str(paths[0]), *nodes, "--tz", "UTC", "-o", str(out), "--quiet"]


def ingest_kubernetes(paths: list[Path], out: Path) -> list[str]:
    """Arguments that read a dump of objects."""
    return ["ingest", "auto", *map(str, paths), "-o", str(out), "--quiet"]
