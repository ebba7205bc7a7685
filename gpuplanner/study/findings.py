"""Three findings in words: what is dark, what people ask for, what a change would save at the same service."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from gpuplanner.study.decision.types import Decision
from gpuplanner.study.headline import Headline

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
    if share.get("unexplained", 0.0) >= TOLD:
        text += (
            f". {share['unexplained']:.1%} stood free although waiting jobs asked for it and would have fitted: the "
            "fleet does not explain why they waited"
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
