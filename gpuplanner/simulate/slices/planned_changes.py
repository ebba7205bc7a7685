"""From a calendar to the operations that carry it out, and from these to a table."""

from __future__ import annotations

import numpy as np
import polars as pl

from gpuplanner.simulate.fleet import Calendar, Fleet
from gpuplanner.simulate.rules import Drain
from gpuplanner.simulate.slices.world import NONE, OPERATION, OUTCOMES, WHOLE, Ints, Table, table

CHANGES = {
    "node": pl.Int32,
    "gpu": pl.Int32,
    "gpus": pl.Int32,
    "before": pl.String,
    "after": pl.String,
    "wanted_s": pl.Float64,
    "began_s": pl.Float64,
    "drained_s": pl.Float64,
    "ended_s": pl.Float64,
    "drain_minutes": pl.Float64,
    "outcome": pl.String,
}
"""Columns of ``Run.changes``."""


def number_gpus(targets: Ints, first: Ints, per_node: int) -> Ints:
    """Say which GPU has which layout in each slot, so that few nodes change."""
    rows, off = [first], targets.shape[1]
    for target in targets[1:]:
        now = np.where(rows[-1] == NONE, off, rows[-1])
        wanted = np.append(target, len(first) - target.sum())
        surplus = np.bincount(now, minlength=off + 1) - wanted
        while (surplus > 0).any():
            counts = np.zeros((len(first) // per_node, off + 1), np.int64)
            np.add.at(counts, (np.arange(len(first)) // per_node, now), 1)
            node = int(np.minimum(counts, np.maximum(surplus, 0)).sum(axis=1).argmax())
            for gpu in range(node * per_node, (node + 1) * per_node):
                if surplus[now[gpu]] > 0:
                    layout = int(surplus.argmin())
                    surplus[now[gpu]] -= 1
                    surplus[layout] += 1
                    now[gpu] = layout
        rows.append(np.where(now == off, NONE, now))
    return np.array(rows)


def to_operations(drain: Drain, slot_starts: np.ndarray, cut: Ints, per_node: int) -> Table:
    """List the operations by which GPUs come to be cut as planned, by their cordon and the lowest GPU.

    One that has not been carried out when the next one on the same GPUs is planned is given up. Being released needs no
    operation, and coming back as it is does not either.
    """
    size = per_node if drain.scope == "node" else 1
    rows: list[tuple[float, int, int, float, float]] = []
    last: dict[int, int] = {}
    recut = recut_in(cut)
    for slot in range(1, len(cut)):
        for group in np.flatnonzero(recut[slot].reshape(-1, size).any(axis=1)).tolist():
            at = float(slot_starts[slot])
            # Jobs of the layout before are not kept from GPUs that do not have it yet.
            cordon = max(at - drain.ahead_s, rows[last[group]][3] if group in last else 0.0)
            if group in last:
                before = rows[last[group]]
                rows[last[group]] = (*before[:4], min(before[4], at))
            last[group] = len(rows)
            rows.append(
                (cordon, group * size, slot, at, np.inf if drain.limit_s is None else at + drain.limit_s)
            )
    operations = table(OPERATION, len(rows))
    operations.gpus, operations.outcome, operations.then = size, NONE, NONE
    operations.began = operations.drained = operations.ended = np.nan
    for number, row in enumerate(sorted(rows)):
        mine = operations[number]
        mine.cordon, mine.first, mine.slot, mine.planned, mine.deadline = row
    return operations


def as_cut(numbered: Ints) -> Ints:
    """How every GPU is cut in each slot: one that is off stays as it was, at first whole.

    Examples
    --------
    >>> as_cut(np.array([[NONE, 1], [2, NONE], [NONE, 0]])).tolist()
    [[0, 1], [2, 1], [2, 0]]
    """
    rows = np.where(numbered == NONE, WHOLE, numbered)
    for slot in range(1, len(rows)):
        rows[slot] = np.where(numbered[slot] == NONE, rows[slot - 1], numbered[slot])
    return rows


def recut_in(cut: Ints) -> Ints:
    """Which GPUs are cut anew as each slot begins: one that was released had no layout, nothing is done to one that is.

    Examples
    --------
    >>> recut_in(np.array([[WHOLE, 1], [2, NONE], [NONE, 1]])).tolist()
    [[False, False], [True, False], [False, True]]
    """
    before = np.concatenate([cut[:1], cut[:-1]])
    return np.asarray((cut != NONE) & (cut != np.where(before == NONE, WHOLE, before)))


def changes_of(
    operations: Table, cut: Ints, layouts: tuple[str, ...], fleet: Fleet, drain: Drain | None
) -> pl.DataFrame:
    """What became of every operation, in the order of their cordons."""
    gpus, texts = [], []
    recut = recut_in(cut)
    for mine in operations:
        before = cut[mine.slot - 1]
        both = np.where(before == NONE, WHOLE, before), cut[mine.slot]
        changed = [gpu for gpu in range(mine.first, mine.first + mine.gpus) if recut[mine.slot, gpu]]
        gpus.append(len(changed))
        texts.append([
            " ".join(f"{gpu % fleet.gpus_per_node}={layouts[side[gpu]]}" for gpu in changed) for side in both
        ])  # fmt: skip
    first = pl.Series(operations.first, dtype=pl.Int64)
    single = drain is not None and drain.scope == "gpu"
    names = dict(enumerate(OUTCOMES))
    found = pl.DataFrame(
        {
            "first": first,
            "gpus": gpus,
            "before": [before for before, _ in texts],
            "after": [after for _, after in texts],
            "wanted_s": operations.planned,
            "began_s": operations.began,
            "drained_s": operations.drained,
            "ended_s": operations.ended,
            "outcome": operations.outcome,
        },
        schema_overrides={"gpus": pl.Int32, "before": pl.String, "after": pl.String, "outcome": pl.Int64},
    ).with_columns(
        pl.col("began_s", "drained_s", "ended_s").fill_nan(None),
        pl.col("outcome").replace_strict(names, default=None, return_dtype=pl.String),
        node=first // fleet.gpus_per_node,
        gpu=pl.when(pl.lit(single)).then(first % fleet.gpus_per_node),
        drain_minutes=(pl.col("drained_s") - pl.col("began_s")).fill_nan(None) / 60,
    )
    return found.select(pl.col(name).cast(kind) for name, kind in CHANGES.items())


def planned_layouts(
    calendar: Calendar, layouts: tuple[str, ...], targets: Ints, first: Ints, fleet: Fleet
) -> tuple[Ints, Ints]:
    """Layout of every GPU in each slot, and how it is cut: as the calendar has it, or so that few nodes change.

    Of GPUs that nobody has numbered, those off stay as they were. Numbered ones are released, ``NONE``, unless the
    calendar says how they are cut meanwhile.
    """
    if calendar.numbered is None:
        numbered = number_gpus(targets, first, fleet.gpus_per_node)
        return numbered, as_cut(numbered)
    number = np.array([*(layouts.index(name) for name in calendar.layouts), NONE])
    numbered = number[calendar.numbered]
    return numbered, numbered if calendar.held is None else number[calendar.held]
