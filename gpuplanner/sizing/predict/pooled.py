"""Memory outside the board, on paper: what can move, what smaller place then holds the job, and what that costs."""

from __future__ import annotations

import polars as pl

from gpuplanner.catalog import parameter
from gpuplanner.hardware import load_gpu_model
from gpuplanner.sizing.predict.architecture import Architecture
from gpuplanner.sizing.predict.job import TrainingJob
from gpuplanner.sizing.predict.overheads import GIB
from gpuplanner.sizing.predict.peak import peak_gib
from gpuplanner.sizing.predict.serving import cache_bytes_per_token
from gpuplanner.sizing.predict.static import regime_bytes, stage_params
from gpuplanner.sizing.predict.throughput import board_facts, tokens_per_s

MOVES = (
    "link", "moved", "moved_gib", "peak_gib", "left_gib", "place_before", "place", "slowdown", "pays",
)  # fmt: skip
"""Columns of what a move frees."""
LINKS = ("link_nvlink_c2c_gb_s", "link_pcie5_gb_s", "link_cxl_gb_s")
"""Ways out of the board, rows of the parameter table with their sources."""


def pooled_training(job: TrainingJob, board: str) -> pl.DataFrame:
    """What moving states or weights out of the board frees, and what it costs in time. A calculation, no measurement.

    Optimiser states are read and written once a step; weights are read twice a micro-batch (forward, backward) beside
    the states. What is moved is not on the board; the slow-down is the traffic that a step waits for, with nothing
    hidden behind computing, so it is an upper estimate.

    Examples
    --------
    >>> from gpuplanner.sizing.predict.describe import preset
    >>> job = TrainingJob(preset("llama-3.2-1b"), 2048, 1, 64, regime="mixed", recompute="full")
    >>> pooled_training(job, "H100-80GB-SXM5").select("link", "moved", "place_before", "place").row(0)
    ('nvlink c2c', 'optimiser', '3g.40gb', '1g.20gb')
    """
    facts = board_facts(board)
    if facts is None:
        return pl.DataFrame()
    params = stage_params(job.model, job.tp, job.pp)
    weights, _, states = regime_bytes(job.regime, job.optimizer)
    before = sum(peak_gib(job))
    step_s = job.tokens * job.shards * job.accumulation / tokens_per_s(job, facts)[1]
    shards = job.shards if job.sharding in ("fsdp", "zero3") else 1
    own = job.shards if job.sharding in ("zero1", "zero2", "fsdp", "zero3") else 1
    optimiser, base = states * params / own, weights * params / shards
    cases = {"optimiser": (optimiser, 2 * optimiser)}
    cases["optimiser and weights"] = (optimiser + base, 2 * optimiser + 2 * base * job.accumulation)
    rows = []
    for link in LINKS:
        speed = parameter(link).value * 1e9
        for moved, (size, traffic) in cases.items():
            left = before - size / GIB
            now, then = _place(before, board, facts.memory_gib), _place(left, board, facts.memory_gib)
            slow = traffic / speed / step_s
            rows.append(_move(link, moved, size, (before, left), (now, then), slow))
    return pl.DataFrame(rows, schema=MOVES, orient="row")


def pooled_serving(model: Architecture, board: str, seq: int, sequences: int) -> pl.DataFrame:
    """What moving the key and value cache out of the board frees, by the same reckoning, for a decoding step.

    Examples
    --------
    >>> from gpuplanner.sizing.predict.describe import preset
    >>> pooled_serving(preset("llama-3.1-8b"), "H100-80GB-SXM5", 8192, 32)["moved_gib"].round(1).to_list()
    [32.0, 32.0, 32.0]
    """
    facts = board_facts(board)
    if facts is None:
        return pl.DataFrame()
    weights, cache = 2.0 * model.params(), cache_bytes_per_token(model) * seq * sequences
    read = facts.memory_bandwidth * parameter("decode_bandwidth_share").value
    step_s = (weights + cache / 2) / read
    before, left = (weights + cache) / GIB, weights / GIB
    now, then = _place(before, board, facts.memory_gib), _place(left, board, facts.memory_gib)
    rows = []
    for link in LINKS:
        slow = (cache / 2) / (parameter(link).value * 1e9) / step_s
        rows.append(_move(link, "cache", cache, (before, left), (now, then), slow))
    return pl.DataFrame(rows, schema=MOVES, orient="row")


def _move(
    link: str,
    moved: str,
    size: float,
    peaks: tuple[float, float],
    places: tuple[tuple[str, float], tuple[str, float]],
    slow: float,
) -> tuple[object, ...]:
    """A row of what a move frees: peak [GiB] and place before and after; it pays if it frees more than it slows."""
    now, then = places
    freed = 1 - then[1] / now[1]
    return (_name(link), moved, size / GIB, *peaks, now[0], then[0], slow, freed > slow / (1 + slow))


def pooled_trace(history: pl.DataFrame, *, touched_per_s: float = 1.0) -> pl.DataFrame:
    """Jobs of a trace that would fit the next smaller slice if what is over moved out of the board."""
    seen = history.drop_nulls(["board", "memory_peak_gib"])
    counts = {link: [0, 0, 0.0] for link in LINKS}
    for board, profile, peak in seen.select("board", "profile", "memory_peak_gib").iter_rows():
        known = load_gpu_model(board)
        slices = sorted({one.memory_gib for one in known.profiles if one.memory_gib})
        smaller = [size for size in slices if size < peak]
        if not smaller:
            continue
        held = next((one for one in known.profiles if one.name == profile), None)
        share = held.memory_slices / known.memory_slices if held else 1.0
        freed = 1 - smaller[-1] / slices[-1] / share
        moved = peak - smaller[-1]
        for link in LINKS:
            slow = moved * GIB * touched_per_s / (parameter(link).value * 1e9)
            counts[link][0] += 1
            counts[link][1] += freed > slow / (1 + slow)
            counts[link][2] += moved
    rows = [(_name(link), int(jobs), int(pays), gib) for link, (jobs, pays, gib) in counts.items()]
    return pl.DataFrame(rows, schema=("link", "jobs", "pays", "moved_gib"), orient="row")


def _place(gib: float, board: str, whole_gib: float) -> tuple[str, float]:
    """Smallest slice of the board that holds so much, and its share of the board; else how many boards."""
    try:
        known = load_gpu_model(board)
    except ValueError:
        return (
            ("gpu", 1.0) if gib <= whole_gib else (f"{-(-gib // whole_gib):.0f} gpus", -(-gib // whole_gib))
        )
    sizes = sorted(
        (one.memory_slices, one.memory_gib or 0.0, one.compute_slices, one.name) for one in known.profiles
    )
    for memory, size, _, name in sizes:
        if gib <= size and "+" not in name:
            return name, memory / known.memory_slices
    return f"{-(-gib // whole_gib):.0f} gpus", -(-gib // whole_gib)


def _name(link: str) -> str:
    return link.removeprefix("link_").removesuffix("_gb_s").replace("_", " ")
