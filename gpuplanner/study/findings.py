"""A study in sentences: its three findings, and what speaks against its figures before a page is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta

import polars as pl

from gpuplanner.demand.record import complete_until
from gpuplanner.intervals import untimed
from gpuplanner.study.decision.record import Comparison
from gpuplanner.study.decision.types import TODAY, Decision
from gpuplanner.study.headline import Headline
from gpuplanner.study.past.history import History, end_of

TOLD = 0.0005
"""Shares that would be printed as 0.0 % are not worth a sentence."""


def findings(headline: Headline, tables: Mapping[str, pl.DataFrame], decision: Decision) -> list[str]:
    """Say the three findings that a planner should take away; each states its own uncertainty."""
    return [
        _where_time_went(headline, tables),
        _who_asks_too_much(headline),
        decision.sentence,
    ]


def _where_time_went(headline: Headline, tables: Mapping[str, pl.DataFrame]) -> str:
    buckets = {row["bucket"]: row for row in tables["ledger_buckets"].iter_rows(named=True)}
    total = sum(row["gpu_hours"] for row in buckets.values())
    share = {name: row["share"] for name, row in buckets.items()}
    allocated = share.get("used", 0.0) + share.get("unobserved", 0.0) + share.get("held_idle", 0.0)
    gpus = headline.installed_gpus
    text = f"Of {total:,.0f} installed GPU-hours ({gpus:,} GPUs), {allocated:.1%} were allocated"
    if share.get("unobserved", 0.0) > 0.5 * allocated:
        text += f"; no activity was measured for {share['unobserved'] / allocated:.0%} of these, so use is unknown"
    elif "held_idle" in share:
        top = tables["ledger_tenants"].sort("held_idle", descending=True).row(0, named=True)
        text += (
            f" and {share['held_idle']:.1%} were held idle; {top['tenant']} holds the most of the idle time "
            f"({top['held_idle']:,.0f} GPU-hours)"
        )
    if share.get("fragmented", 0.0) >= TOLD:
        text += f". {share['fragmented']:.1%} stood free in pieces too small for a job that waited"
    if share.get("idle_pending", 0.0) >= TOLD:
        text += (
            f". {share['idle_pending']:.1%} was idle with eligible jobs pending that requested no more; why "
            "they waited stands under Why jobs waited"
        )
    return text + "."


def _who_asks_too_much(headline: Headline) -> str:
    small, more = headline.small_jobs, headline.small_jobs_asking_too_much
    if small == 0:
        return "No job asks for one GPU or less, so right-sizing and MIG have nothing to cut here."
    if not headline.board_has_mig:
        why = f"{headline.board} cannot be cut" if headline.board else "the data do not name one board"
        return (
            f"{small:,} jobs ask for one GPU or less. Whole GPUs are planned, since {why}, "
            "and requests were taken as they are: no saving from right-sizing is claimed."
        )
    evidence = headline.small_jobs_with_evidence
    if evidence == 0:
        return (
            f"None of the {small:,} jobs that ask for one GPU or less has a measurement of memory or activity: "
            "requests were taken as they are, and no saving from right-sizing is claimed."
        )
    return (
        f"{more:,} of {small:,} jobs that ask for one GPU or less ({more / small:.0%}) ask for more than they "
        f"need, judged by measurements of {evidence:,} of them or of their class. Right-sized, they need "
        f"{headline.small_gpus_rightsized:.0f} GPUs on average instead of {headline.small_gpus_whole:.0f} "
        "whole ones."
    )


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
    # Of a job that never began nothing was held: without the filter its missing start would read as the beginning.
    began = known.trace.jobs.filter(pl.col("start_time").is_not_null())
    held = float(began.select((inside * pl.col("gpus")).sum()).item() or 0.0)
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
