"""Lists of jobs to pack: the text format of the public sets, and CSV of MIG instances."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import numpy as np

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.files.text import read_text
from gpuplanner.hardware.gpu import GpuModel, as_board
from gpuplanner.inbox.core.lines.fields import Field
from gpuplanner.inbox.core.lines.reading import read_faultless
from gpuplanner.packing.problem import LARGEST, MAX_ITEMS, MigPackingProblem, PackingProblem

INSTANCE_COLUMNS = {
    "start": Field("starts", "number", low=-LARGEST, high=LARGEST),
    "end": Field("ends", "number", low=-LARGEST, high=LARGEST),
    "profile": Field("profiles"),
}
"""Column of a list of instances, and what :class:`gpuplanner.packing.MigPackingProblem` calls it."""


def read_packing(path: str | Path) -> PackingProblem:
    r"""Read the text format of the public temporal bin packing sets.

    The first line is ``n capacity 0 0``, then one line an item: index, start, end, size, separated by tabs or
    blanks; the indices are 0 to n - 1 in any order, each once.

    Parameters
    ----------
    path : str or Path
        The file.

    Returns
    -------
    PackingProblem
        Items by index.

    Raises
    ------
    TraceFormatError
        If the file cannot be read as that; the message names file and line, what was expected and what came.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "two.txt"
    ...     _ = path.write_text("2\t100\t0\t0\n0\t2\t25\t64\n1\t2\t48\t74\n")
    ...     read_packing(path).sizes.tolist()
    [64, 74]
    """
    path = Path(path)
    lines = read_text(path, error=TraceFormatError).split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        _refuse_line(path, 1, "'n capacity 0 0'", "an empty file")
    n, capacity = _numbers(path, 1, lines[0], "'n capacity 0 0'")[:2]
    if not 1 <= n <= MAX_ITEMS:
        _refuse_line(path, 1, f"from 1 to {MAX_ITEMS} items", f"n = {n}")
    if not 1 <= capacity <= LARGEST:
        _refuse_line(path, 1, f"a capacity from 1 to {LARGEST}", f"capacity = {capacity}")
    if len(lines) != n + 1:
        _refuse_line(path, len(lines), f"{n} lines of items, as line 1 says", f"{len(lines) - 1}")
    items = np.empty((n, 3), dtype=np.int64)
    seen: dict[int, int] = {}
    for number, line in enumerate(lines[1:], start=2):
        index, start, end, size = _numbers(path, number, line, "'index start end size'")
        if not 0 <= index < n:
            _refuse_line(path, number, f"an index from 0 to {n - 1}", str(index))
        if index in seen:
            _refuse_line(path, number, "an index of its own", f"{index}, as in line {seen[index]}")
        if abs(start) > LARGEST or abs(end) > LARGEST:
            _refuse_line(path, number, f"instants of at most {LARGEST}", f"{start} to {end}")
        if end <= start:
            _refuse_line(path, number, "an end after the start", f"start {start}, end {end}")
        if not 1 <= size <= capacity:
            _refuse_line(path, number, f"a size from 1 to the capacity {capacity}", str(size))
        seen[index] = number
        items[index] = (start, end, size)
    return PackingProblem(items[:, 0], items[:, 1], items[:, 2], capacity)


def read_instances(path: str | Path, board: GpuModel | str) -> MigPackingProblem:
    r"""Read jobs that each ask for one MIG instance: ``start,end,profile``.

    Parameters
    ----------
    path : str or Path
        CSV file, plain or gzip; further columns are passed over. ``gpu`` asks for a GPU that is not cut.
    board : GpuModel or str
        The board; a unique prefix of its name will do.

    Returns
    -------
    MigPackingProblem
        Items in the order of the file.

    Raises
    ------
    TraceFormatError
        If the file is no such list, or any row is faulty.
    ScenarioError
        If an instant makes no sense.
    GeometryError
        If the board or a profile is unknown.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "jobs.csv"
    ...     _ = path.write_text("start,end,profile\n0,4,3g.40gb\n2,9,gpu\n")
    ...     read_instances(path, "A100-80GB").profiles
    ('3g.40gb', 'gpu')
    """
    good = read_faultless(path, INSTANCE_COLUMNS, "list of instances")
    times = good["starts"].to_numpy(), good["ends"].to_numpy()
    return MigPackingProblem(*times, tuple(good["profiles"]), as_board(board))


def _numbers(path: Path, number: int, line: str, form: str) -> tuple[int, int, int, int]:
    words = line.split()
    try:
        if len(words) != 4:
            raise ValueError
        index, start, end, size = map(int, words)
    except ValueError:
        _refuse_line(path, number, f"four whole numbers, {form}", repr(line[:60]))
    return index, start, end, size


def _refuse_line(path: Path, number: int, expected: str, got: str) -> NoReturn:
    raise TraceFormatError(message(f"{path}, line {number}", expected, got, "Mend the file."))
