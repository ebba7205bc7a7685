"""How well phases of jobs, and the pace of their dips, are found."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import polars as pl

from gpuplanner.lab.claims.phases.held_out_jobs import GROUPS, LEAST_DIPS, make_held_out
from gpuplanner.lab.claims.phases.score import score_changes, tolerance
from gpuplanner.lab.claims.phases.synthetic_jobs import SyntheticJob, make_job
from gpuplanner.lab.claims.published_claim import Conditions, Measured, PublishedClaim
from gpuplanner.lab.claims.verdict import figure, figures_of, share_over_units
from gpuplanner.phases import find_phases, find_spikes

SEEDS = 10
TUNED_JOBS = 15
"""Jobs of the generator that the detector was tuned on, for each seed; of other seeds than it was tuned on."""
UNSEEN = 10_000
LEAST = 0.9
PACE_WITHIN = 0.05
KINDS = ("tuned set", "held-out set")
"""Jobs of the generator that the detector was tuned on, and of the other one."""


def measure(conditions: Conditions) -> Measured:
    """Find the phases of jobs whose phases are known, and compare."""
    seeds = conditions.run_over(SEEDS)
    first = UNSEEN + seeds.start * TUNED_JOBS
    tuned = (make_job(seed) for seed in range(first, first + TUNED_JOBS * len(seeds)))
    held_out = (make_held_out(group, seed) for group in GROUPS for seed in seeds)
    rows = pl.concat([_scored(tuned, KINDS[0]), _scored(held_out, KINDS[1])])
    figures = []
    for kind in KINDS:
        mine = rows.filter(kind=kind)
        for name, unit, hits, of in (
            ("reported changes", "% right", "right", "found"),
            ("true changes", "% found", "hit", "true"),
            ("paces, within 5 %", "% found", "pace_right", "paces"),
        ):
            figures.append(_share(f"{name}, {kind}", unit, mine[hits], mine[of], conditions.seed))
    counts = rows.group_by("kind", "group", maintain_order=True).agg(
        pl.col("true", "hit", "found", "right", "paces", "pace_right", "no_pace", "false_pace").sum(),
        jobs=pl.len(),
    )
    alarms, without = int(rows["false_pace"].sum()), int(rows["no_pace"].sum())
    why = (
        f"Of {rows['true'].sum()} changes in {rows.height} jobs {rows['hit'].sum()} are found, and "
        f"{rows['right'].sum()} of {rows['found'].sum()} that are reported are right. Of {rows['paces'].sum()} paces "
        f"{rows['pace_right'].sum()} are found; {alarms} of {without} jobs without a pace seem to have one."
    )
    return Measured.by(
        figures_of(figures),
        why,
        tables={"by group of jobs": counts},
        remarks=(
            "A change is found if it lies within 2 minutes, or 1 % of the length of the job, of the true one.",
            "The jobs are made up, by two generators; of real jobs nobody has published phases that long.",
            "Intervals are those of drawing the jobs anew, at 95 %.",
        ),
    )


def _scored(jobs: Iterable[SyntheticJob], kind: str) -> pl.DataFrame:
    """Counts of each job."""
    rows = []
    for job in jobs:
        length = job.samples["time"][-1] - job.samples["time"][0]
        found = find_phases(job.samples)["start"][1:].to_list()
        score = score_changes(found, job.changes, tolerance(length))
        rows.append(
            {"kind": kind, "group": job.shape, "true": score.true, "hit": score.hit, "found": score.found}
            | {"right": score.right}
            | _pace(job)
        )
    return pl.DataFrame(rows)


def _pace(job: SyntheticJob) -> dict[str, int]:
    """Whether there is a pace and it is found, and whether one is found where there is none."""
    none = {"paces": 0, "pace_right": 0, "no_pace": 0, "false_pace": 0}
    if job.samples["sm_activity"].count() == 0:
        return none
    period: timedelta | None = find_spikes(job.samples).period
    if job.period is not None:
        right = period is not None and abs(period / job.period - 1) <= PACE_WITHIN
        return none | {"paces": 1, "pace_right": int(right)}
    if job.shape == "dips at random" or job.spikes.height < LEAST_DIPS:
        return none | {"no_pace": 1, "false_pace": int(period is not None)}
    return none


def _share(name: str, unit: str, hits: pl.Series, of: pl.Series, seed: int) -> dict[str, object]:
    low, high = share_over_units(hits.to_list(), of.to_list(), seed=seed)
    share = 100 * float(hits.sum()) / float(of.sum())
    return figure(name, unit, share, claimed=(100 * LEAST, None), interval=(100 * low, 100 * high))


CLAIM = PublishedClaim(
    name="phase-detection",
    title="Finding phases",
    words="Phases of a job and the pace of its checkpoints show in ordinary telemetry: nine of ten are found, and nine "
    "of ten that are reported are right.",
    source="What any phase-aware scheduler rests on; nobody published how well it is met, and the border is ours",
    on="jobs of known phases, drawn by seed: those of the generator that the detector was tuned on, and 17 groups of "
    "another that it was not",
    takes="about 15 s",
    measure=measure,
    seeds=SEEDS,
)
