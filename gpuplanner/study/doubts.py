"""What a study is held against before a page is written: what cannot be, or must not be read as it stands."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import polars as pl

from gpuplanner.demand import complete_until
from gpuplanner.intervals import untimed
from gpuplanner.study.decision.record import Comparison
from gpuplanner.study.decision.types import TODAY
from gpuplanner.study.past.history import History, end_of

FULL = 1.001
"""Held over installed GPU-hours from which they cannot both be right; below it, rounding of instants."""
THINNING = timedelta(days=1)
"""A record may thin out so long before its end without a word: nothing that is planned rests on hours."""
MUCH_LONGER = 10.0


def doubts(known: History, booked: pl.DataFrame, found: Comparison) -> list[str]:
    """Say what speaks against the figures of a study, most serious first."""
    return [
        *_more_than_there_is(known, booked),
        *_thinning_end(known),
        *_nobody_measured(known),
        *_longer(found),
    ]


def _more_than_there_is(known: History, booked: pl.DataFrame) -> Iterator[str]:
    """Jobs cannot hold more GPU time than is installed, nor one of them more GPUs."""
    installed, gpus = float(booked["gpu_hours"].sum()), known.fleet.installed.gpus
    begin = pl.max_horizontal("start_time", pl.lit(known.begin))
    end = pl.min_horizontal(pl.col("end_time").fill_null(pl.lit(known.end)), pl.lit(known.end))
    inside = (end - begin).dt.total_microseconds().clip(0) / 3.6e9
    held = float(known.trace.jobs.select((inside * pl.col("gpus")).sum()).item() or 0.0)
    if held > FULL * installed:
        yield (
            f"Jobs held {held:,.0f} GPU-hours of {installed:,.0f} installed: {gpus:,} GPUs cannot have done that. The "
            "fleet is larger, or jobs share GPUs; give the nodes (--nodes, or nodes and gpus_per_node in the scenario)."
        )
    largest = max(known.jobs["gpus"].to_list(), default=0)
    if largest > known.fleet.gpus:
        yield (
            f"A job asks for {largest:,.0f} GPUs of a fleet of {known.fleet.gpus:,}: it can never start, under no "
            "policy."
        )


def _thinning_end(known: History) -> Iterator[str]:
    """Where a record holds only jobs that ended, its end lacks those that had not."""
    end = end_of(known.trace)
    whole = complete_until(known.trace.jobs.filter(~untimed()), end)
    if whole < known.plan_start - THINNING:
        yield (
            f"The record holds only jobs that ended: after {whole:%Y-%m-%d %H:%M} UTC more than a tenth of the "
            "demand is missing from it, so what is planned from it is too little. Choose a month that ends before."
        )


def _nobody_measured(known: History) -> Iterator[str]:
    """Activity that nobody measured is not stated, and energy rests on it."""
    if known.jobs["sm_activity"].null_count() == known.jobs.height:
        yield (
            "Nobody measured the activity of any job: none is stated, and energy, where it is, takes GPUs that are "
            "held for fully busy, an upper bound."
        )


def _longer(found: Comparison) -> Iterator[str]:
    """Within the target, and yet far later than today: the reader is told."""
    today, best = found.today, found.row(found.winner)
    if today is None or best is None or best.policy == TODAY:
        return
    before, after = today.late_mean_min, best.late_mean_min
    if before is not None and after is not None and after > max(MUCH_LONGER * before, 1.0):
        yield (
            f"Within the target jobs start later than today: {after:,.1f} minutes on average instead of {before:,.1f}, "
            "counted from when they started."
        )
