"""What services are asked for: how many requests a second, and how soon each must be answered."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from gpuplanner.errors import ScenarioError, TraceFormatError, examples, message
from gpuplanner.inbox.core.lines.text_blocks import read_text_file

NOT_SERVED = "N/A"


def refuse(what: str, expected: str, got: str, todo: str) -> NoReturn:
    """Raise ``TraceFormatError`` with the four parts of its message."""
    raise TraceFormatError(message(what, expected, got, todo))


@dataclass(frozen=True)
class ServiceDemand:
    """Load of one service and the promise to its users.

    - ``rate_per_s``: Requests [1/s].
    - ``latency_ms``: Longest time from a request to its answer [ms].
    """

    rate_per_s: float
    latency_ms: float


def service_demands(
    rates: Mapping[str, float], latencies: Mapping[str, float], services: Iterable[str]
) -> dict[str, ServiceDemand]:
    """Join rates and latency limits, in the order of their services' names; a rate of 0 asks for nothing.

    Examples
    --------
    >>> service_demands({"bert": 19, "vgg16": 0}, {"bert": 6434, "vgg16": 400}, ["bert", "vgg16"])
    {'bert': ServiceDemand(rate_per_s=19.0, latency_ms=6434.0)}
    """
    faults = []
    known = set(services)
    if unknown := sorted({*rates, *latencies} - known):
        faults.append(f"no profiles of {examples(unknown)}")
    if unpaired := sorted(set(rates) ^ set(latencies)):
        faults.append(f"a rate or a latency limit, not both, of {examples(unpaired)}")
    for name, rate in rates.items():
        if not (_is_number(rate) and rate >= 0):
            faults.append(f"rate of {name} must be at least 0 and finite, not {rate!r}")
    for name, limit in latencies.items():
        if not (_is_number(limit) and limit > 0):
            faults.append(f"latency limit of {name} must be above 0 and finite, not {limit!r}")
    if faults:
        todo = "Name the same services in both, each with a profile file."
        text = message("services", "a rate [1/s] and a latency limit [ms] each", "; ".join(faults), todo)
        raise ScenarioError(text)
    asked = sorted(name for name, rate in rates.items() if rate > 0)
    return {name: ServiceDemand(float(rates[name]), float(latencies[name])) for name in asked}


def read_service_demands(
    rates: str | Path, latencies: str | Path, services: Sequence[str], *, row: int = 1
) -> tuple[dict[str, float], dict[str, float]]:
    """Read one scenario: the same row of a file of rates and of a file of latency limits.

    Parameters
    ----------
    rates, latencies : str or Path
        CSV files without a header: one row a scenario, one column a service, requests per second and
        milliseconds; ``N/A`` where a service is not served.
    services : sequence of str
        Services in the order of the columns: that of their profile files.
    row : int
        Which scenario, from 1; blank lines do not count.

    Returns
    -------
    rates, latencies : dict of str to float
        By service, without those that are not served.

    Raises
    ------
    TraceFormatError
        If a file cannot be read, has no such row, or a cell that is no number: file, row and column are named.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths = [Path(folder) / name for name in ("rates.csv", "limits.csv")]
    ...     _ = [path.write_text(text) for path, text in zip(paths, ["19,N/A", "6434,N/A"], strict=True)]
    ...     read_service_demands(*paths, ["bert", "vgg16"])
    ({'bert': 19.0}, {'bert': 6434.0})
    """
    asked, limits = (_read_row(Path(path), services, row) for path in (rates, latencies))
    unpaired = sorted(set(asked) ^ set(limits))
    if unpaired:
        what = f"{rates} and {latencies}, row {row}"
        refuse(what, f"the same services marked {NOT_SERVED}", examples(unpaired), "Mend one file.")
    return asked, limits


def _read_row(path: Path, services: Sequence[str], row: int) -> dict[str, float]:
    lines = [line for line in read_text_file(path).lines["text"].to_list() if line.strip()]
    if not 1 <= row <= len(lines):
        refuse(f"{path}, row {row}", f"a row from 1 to {len(lines)}", "no such row", "Choose one.")
    cells = [cell.strip().strip('"') for cell in lines[row - 1].split(",")]
    if len(cells) != len(services):
        what = f"{len(services)} columns, one for each of {examples(services)}"
        refuse(f"{path}, row {row}", what, f"{len(cells)} columns", "Compare with the profile files.")
    pairs = [(name, cell) for name, cell in zip(services, cells, strict=True) if cell.upper() != NOT_SERVED]
    return {name: _number(cell, f"{path}, row {row}, column {name}") for name, cell in pairs}


def _number(cell: str, where: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        refuse(where, f"a number of at least 0, or {NOT_SERVED}", repr(cell[:40]), "Mend the cell.")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
