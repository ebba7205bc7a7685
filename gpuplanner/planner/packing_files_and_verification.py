"""Files of packing problems, and an independent check of packings."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.serialization import read_text
from gpuplanner.hardware.gpu_models import GpuModel, as_gpu_model
from gpuplanner.hardware.mig_layouts import Layout, Placement, find_layout_faults
from gpuplanner.ingest.source_fields import Field
from gpuplanner.ingest.typed_row_reader import read_integer_list
from gpuplanner.planner.packing_problem import (
    MAX_PACKING_INTEGER,
    MAX_PACKING_ITEMS,
    PACKING_STOP_REASONS,
    AnyPackingProblem,
    CostedPacking,
    MigPackingProblem,
    Packing,
    PackingProblem,
)

PACKING_INSTANCE_COLUMNS = {
    "start": Field("starts", "number", low=-MAX_PACKING_INTEGER, high=MAX_PACKING_INTEGER),
    "end": Field("ends", "number", low=-MAX_PACKING_INTEGER, high=MAX_PACKING_INTEGER),
    "profile": Field("profiles"),
}
"""Columns of a file of instances, and the fields of :class:`gpuplanner.planner.packing_problem.MigPackingProblem`."""


def read_packing(path: str | Path) -> PackingProblem:
    r"""Read a packing problem in the text format of the public temporal bin packing sets.

    The first line is ``n capacity 0 0``, then one line an item: index, start, end, size, separated by tabs or blanks;
    the indices are 0 to n - 1 in any order, each once.

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
        If the file has another format; the message names file and line, the expected and the actual text.

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
        _raise_line_error(path, 1, "'n capacity 0 0'", "an empty file")
    n, capacity = _parse_item_line(path, 1, lines[0], "'n capacity 0 0'")[:2]
    if not 1 <= n <= MAX_PACKING_ITEMS:
        _raise_line_error(path, 1, f"from 1 to {MAX_PACKING_ITEMS} items", f"n = {n}")
    if not 1 <= capacity <= MAX_PACKING_INTEGER:
        _raise_line_error(path, 1, f"a capacity from 1 to {MAX_PACKING_INTEGER}", f"capacity = {capacity}")
    if len(lines) != n + 1:
        _raise_line_error(path, len(lines), f"{n} lines of items, as line 1 states", f"{len(lines) - 1}")
    items = np.empty((n, 3), dtype=np.int64)
    line_of_index: dict[int, int] = {}
    for number, line in enumerate(lines[1:], start=2):
        index, start, end, size = _parse_item_line(path, number, line, "'index start end size'")
        if not 0 <= index < n:
            _raise_line_error(path, number, f"an index from 0 to {n - 1}", str(index))
        if index in line_of_index:
            _raise_line_error(path, number, "an index of its own", f"{index}, as in line {line_of_index[index]}")
        if abs(start) > MAX_PACKING_INTEGER or abs(end) > MAX_PACKING_INTEGER:
            _raise_line_error(path, number, f"instants of at most {MAX_PACKING_INTEGER}", f"{start} to {end}")
        if end <= start:
            _raise_line_error(path, number, "an end after the start", f"start {start}, end {end}")
        if not 1 <= size <= capacity:
            _raise_line_error(path, number, f"a size from 1 to the capacity {capacity}", str(size))
        line_of_index[index] = number
        items[index] = (start, end, size)
    return PackingProblem(items[:, 0], items[:, 1], items[:, 2], capacity)


def read_instances(path: str | Path, gpu_model: GpuModel | str) -> MigPackingProblem:
    r"""Read jobs that need one MIG instance each, from a CSV file with ``start,end,profile``.

    Parameters
    ----------
    path : str or Path
        CSV file, plain or gzip; other columns are ignored. ``gpu`` requests a full GPU.
    gpu_model : GpuModel or str
        The GPU model; a unique prefix of its name will do.

    Returns
    -------
    MigPackingProblem
        Items in the order of the file.

    Raises
    ------
    TraceFormatError
        If the file is no such list, or any row is faulty.
    ScenarioError
        If an instant is invalid.
    GeometryError
        If the GPU model or a profile is unknown.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "jobs.csv"
    ...     _ = path.write_text("start,end,profile\n0,4,3g.40gb\n2,9,gpu\n")
    ...     read_instances(path, "A100-80GB").profiles
    ('3g.40gb', 'gpu')
    """
    good = read_integer_list(path, PACKING_INSTANCE_COLUMNS, "list of instances")
    times = good["starts"].to_numpy(), good["ends"].to_numpy()
    return MigPackingProblem(*times, tuple(good["profiles"]), as_gpu_model(gpu_model))


def _parse_item_line(path: Path, number: int, line: str, form: str) -> tuple[int, int, int, int]:
    """Parse a line of four whole numbers, or raise a TraceFormatError.

    Parameters
    ----------
    path : Path
        The file.
    number : int
        Number of the line.
    line : str
        Text of the line.
    form : str
        Expected format, for the error message.
    """
    words = line.split()
    try:
        if len(words) != 4:
            raise ValueError
        index, start, end, size = map(int, words)
    except ValueError:
        _raise_line_error(path, number, f"four whole numbers, {form}", repr(line[:60]))
    return index, start, end, size


def _raise_line_error(path: Path, number: int, expected: str, got: str) -> NoReturn:
    """Raise a TraceFormatError on a line of a file.

    Parameters
    ----------
    path : Path
        The file.
    number : int
        Number of the line.
    expected : str
        Expected text.
    got : str
        Actual text.
    """
    raise TraceFormatError(f"{path}, line {number}", expected, got, f"Fix line {number}.")


def verify_packing(packing: Packing, problem: AnyPackingProblem) -> list[str]:
    """List everything that is wrong with a packing.

    Parameters
    ----------
    packing : Packing
        The packing.
    problem : PackingProblem or MigPackingProblem
        The problem that it answers.

    Returns
    -------
    list of str
        Faults; empty if the packing is feasible. Whether the lower bound is true cannot be checked from a packing, only
        that it contradicts neither the packing nor the load at any moment.

    Examples
    --------
    >>> import numpy as np
    >>> problem = PackingProblem([0, 1], [2, 3], [60, 50], 100)
    >>> verify_packing(Packing(1, 1, np.array([0, 0]), None, "proof", 0.0), problem)
    ['bin 0 holds 110 of 100 at moment 1: items 0, 1', ...]
    """
    bins = [int(number) for number in packing.assignment]
    count = len(problem.starts)
    if len(bins) != count:
        return [f"{len(bins)} assignments for {count} items"]
    faults = [f"item {item} has no bin" for item, number in enumerate(bins) if number < 0]
    if not faults and sorted(set(bins)) != list(range(packing.bins)):
        faults.append(f"bins in use are {len(set(bins))}, not 0 to {packing.bins - 1}")
    members: dict[int, list[int]] = defaultdict(list)
    for item, number in enumerate(bins):
        members[number].append(item)
    for number, items in sorted(members.items()):
        if isinstance(problem, MigPackingProblem):
            faults += _find_packed_gpu_faults(packing, problem, number, items)
        else:
            faults += _find_load_faults(problem, number, items)
    return faults + _find_packing_claim_faults(packing, problem)


def verify_cost(
    costed_packing: CostedPacking, problem: AnyPackingProblem, *, bin_cost: float, fire_up_cost: float, busy_cost: float
) -> list[str]:
    """List everything that is wrong with a packing and its cost.

    Parameters
    ----------
    costed_packing : CostedPacking
        The packing with its cost.
    problem : PackingProblem or MigPackingProblem
        The problem that it answers.
    bin_cost, fire_up_cost, busy_cost : float
        The costs of the search.

    Returns
    -------
    list of str
        Faults; empty if packing and cost are right.
    """
    moments_by_bin: dict[int, set[int]] = defaultdict(set)
    instants = sorted({int(t) for t in problem.starts} | {int(t) for t in problem.ends})
    number_of = {instant: number for number, instant in enumerate(instants)}
    for item, number in enumerate(costed_packing.packing.assignment):
        first, last = number_of[int(problem.starts[item])], number_of[int(problem.ends[item])]
        moments_by_bin[int(number)].update(range(first, last))
    fire_ups = sum(step - 1 not in steps for steps in moments_by_bin.values() for step in steps)
    busy = sum(instants[step + 1] - instants[step] for steps in moments_by_bin.values() for step in steps)
    cost = bin_cost * len(moments_by_bin) + fire_up_cost * fire_ups + busy_cost * busy
    faults = verify_packing(costed_packing.packing, problem)
    stated_figures = (("fire-ups", costed_packing.fire_ups, fire_ups), ("busy time", costed_packing.busy_time, busy))
    for name, stated, counted in (*stated_figures, ("cost", costed_packing.cost, cost)):
        if not math.isclose(stated, counted, rel_tol=1e-9, abs_tol=1e-9):
            faults.append(f"{name} {stated}, counted {counted}")
    if costed_packing.bound > costed_packing.cost:
        faults.append(f"bound {costed_packing.bound} above the cost {costed_packing.cost}")
    return faults


def _active_sets(problem: AnyPackingProblem, items: list[int]) -> Iterator[tuple[int, list[int]]]:
    """Yield each moment at which an item of a bin starts, with all items that are active then."""
    starts, ends = problem.starts[items].tolist(), problem.ends[items].tolist()
    events = sorted(zip(starts, items, ends, strict=True))
    active: list[tuple[int, int]] = []
    for moment, group in itertools.groupby(events, key=lambda event: event[0]):
        active = [(item, end) for item, end in active if end > moment]
        active += [(item, end) for _, item, end in group]
        yield moment, sorted(item for item, _ in active)


def _find_load_faults(problem: PackingProblem, number: int, items: list[int]) -> list[str]:
    """List the moments at which the items of a bin exceed its capacity."""
    faults = []
    for moment, active in _active_sets(problem, items):
        load = sum(int(problem.sizes[item]) for item in active)
        if load > problem.capacity:
            item_list = ", ".join(map(str, active))
            faults.append(f"bin {number} holds {load} of {problem.capacity} at moment {moment}: items {item_list}")
    return faults


def _find_packed_gpu_faults(packing: Packing, problem: MigPackingProblem, number: int, items: list[int]) -> list[str]:
    """List the moments at which the instances of a GPU are no possible layout.

    Parameters
    ----------
    packing : Packing
        The packing.
    problem : MigPackingProblem
        The problem.
    number : int
        Number of the GPU.
    items : list of int
        Items on it.
    """
    if packing.places is None or len(packing.places) != len(problem.starts):
        return [f"GPU {number}: its instances have no start slices"]
    faults = []
    for moment, active in _active_sets(problem, items):
        names = [problem.profiles[item] for item in active]
        if FULL_GPU in names:
            wrong = [f"{len(active) - 1} instances beside a full GPU"] if len(active) > 1 else []
        else:
            placed = [
                Placement.at_start(problem.gpu_model.profile(name), int(packing.places[item]))
                for name, item in zip(names, active, strict=True)
            ]
            wrong = find_layout_faults(problem.gpu_model, Layout(tuple(placed)))
        faults += [f"GPU {number} at moment {moment}: {fault}" for fault in wrong]
    return faults


def _find_packing_claim_faults(packing: Packing, problem: AnyPackingProblem) -> list[str]:
    """List contradictions between a packing's stated number of bins, lower bound and gap, and the peak load."""
    faults = []
    if not 1 <= packing.lower_bound <= packing.bins:
        faults.append(f"lower bound {packing.lower_bound} is not from 1 to {packing.bins}, the bins in use")
    if packing.proven != (packing.bins == packing.lower_bound):
        faults.append(f"proven is {packing.proven} with {packing.bins} bins, bound {packing.lower_bound}")
    if packing.stopped_by not in PACKING_STOP_REASONS:
        faults.append(f"stopped by {packing.stopped_by!r}, which is none of {', '.join(PACKING_STOP_REASONS)}")
    if not math.isclose(packing.gap, 1 - packing.lower_bound / packing.bins, abs_tol=1e-12):
        faults.append(f"gap is {packing.gap}, which bins and bound contradict")
    if isinstance(problem, PackingProblem):
        peak = _peak_load(problem)
        if packing.bins * problem.capacity < peak:
            faults.append(f"{packing.bins} bins of {problem.capacity} cannot hold the peak load of {peak}")
    return faults


def _peak_load(problem: PackingProblem) -> int:
    """Return the largest total size of the items that are active at one moment."""
    events = [(int(t), int(size)) for t, size in zip(problem.starts, problem.sizes, strict=True)]
    events += [(int(t), -int(size)) for t, size in zip(problem.ends, problem.sizes, strict=True)]
    load = peak = 0
    for _, change in sorted(events):  # ends (negative) sort before starts of the same moment
        load += change
        peak = max(peak, load)
    return peak
