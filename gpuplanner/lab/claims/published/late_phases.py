"""Whether jobs need fewer GPUs in their late phases."""

from __future__ import annotations

from typing import Any

import polars as pl

from gpuplanner.errors import ScenarioError, message
from gpuplanner.lab.claims.phases.measured_runs import late_over_early_steps, step_times, telemetry_of_runs
from gpuplanner.lab.claims.published_claim import Conditions, Measured, PublishedClaim
from gpuplanner.lab.claims.verdict import CANNOT_BE_TESTED_HERE, figure, figures_of
from gpuplanner.phases import Claim, claim_by_class, claim_table, judge_claim, phases_of_jobs
from gpuplanner.study import load_trace
from gpuplanner.study.past.explore import Inbox

EFFECT = 0.10
"""Smallest reduction of late demand that counts."""
BOARD = "H100-80GB-SXM5"
RUNS, LOGS = "h100_runs", "training_logs"
SAMPLE = "sample"


def measure(conditions: Conditions) -> Measured:
    """Compare late with early demand: of the user's own jobs, or of the measured runs of the public traces."""
    made_up = {"bundled sample, drawn by our own generator": _of_dataset(SAMPLE)}
    remarks = [
        "The bundled sample is made up, so its rows say that the test works and nothing about clusters.",
        f"A reduction counts from {EFFECT:.0%} on; fewer than six jobs cannot tell.",
    ]
    if conditions.own is not None:
        table = _of_dataset(conditions.own)
        rows = [
            _figure(f"{row['job_class'] or 'no class'} ({row['jobs']} jobs)", row)
            for row in table.filter(part="thirds", need="both").iter_rows(named=True)
        ]
        said = ", ".join(f"{row['figure']} {_number(row['measured'])}" for row in rows)
        whose = "of jobs that are made up, by class" if conditions.own == SAMPLE else "by class of job"
        why = f"Late over early demand {whose}, median: {said}."
        return Measured.by(
            figures_of(rows), why, tables={"by definition of late": table} | made_up, remarks=tuple(remarks)
        )
    if conditions.public is None or not all((conditions.public / name).is_dir() for name in (RUNS, LOGS)):
        why = (
            f"Real jobs are absent: set GPUPLANNER_DATA to the folder of the public traces ({RUNS}, {LOGS}), or give "
            "a dataset of your own with --data."
        )
        return Measured(CANNOT_BE_TESTED_HERE, why, tables=made_up, remarks=tuple(remarks))
    samples, jobs = telemetry_of_runs(conditions.public / RUNS)
    by_definition = claim_table(samples, phases_of_jobs(samples, jobs), BOARD, effect=EFFECT)
    steps = late_over_early_steps(step_times(conditions.public / LOGS))
    ratios = steps["ratio"].to_numpy()
    paced = judge_claim(ratios, effect=EFFECT)
    busy = by_definition.row(0, named=True)
    rows = [
        _figure(f"activity and memory of {busy['jobs']} measured runs", busy),
        _figure(f"time of a step in {paced.jobs} training logs", _row(paced)),
    ]
    few = busy["low"] is None and paced.low is None
    why = (
        f"Late over early: {_number(busy['ratio'])} of activity and memory at the median of {busy['jobs']} runs, "
        f"{_number(paced.ratio)} of the time of a step at the median of {paced.jobs} logs, from {ratios.min():.2f} to "
        f"{ratios.max():.2f}{'; too few runs to tell' if few else ''}."
    )
    tables = {
        "by definition of late, measured runs": by_definition,
        "time of a step, training logs": steps,
    } | made_up
    remarks.append(
        "The measured runs last five minutes each, the logs minutes to hours. A step that takes as long on as many "
        "GPUs is work that has not shrunk. 'gpuplanner claims late-phases --data DIR' measures it on jobs of your own."
    )
    return Measured.by(figures_of(rows), why, tables=tables, remarks=tuple(remarks))


def _of_dataset(data: str) -> pl.DataFrame:
    """The test on every class of jobs of a dataset."""
    trace = load_trace(data)
    mine = None if trace.samples is None else trace.samples.filter(pl.col("job_id").is_not_null())
    if mine is None or mine.is_empty():
        text = message(
            "late-phases", "telemetry that is matched to jobs", "none", "Ingest both into one folder."
        )
        raise ScenarioError(text)
    fleet = Inbox(trace).fleet
    if not fleet.in_catalogue:
        todo = "Use 'gpuplanner phases DIR --board NAME', which makes the same test."
        raise ScenarioError(message("late-phases", "data that name a board of the catalogue", "none", todo))
    return claim_by_class(mine, phases_of_jobs(mine, trace.jobs), fleet.board, effect=EFFECT)


def _figure(name: str, row: dict[str, Any]) -> dict[str, Any]:
    interval = (row["low"], row["high"])
    return figure(name, "late / early", row["ratio"], claimed=(None, 1 - EFFECT), interval=interval)


def _row(judged: Claim) -> dict[str, Any]:
    return {"ratio": judged.ratio, "low": judged.low, "high": judged.high}


def _number(ratio: float | None) -> str:
    return "not known" if ratio is None else f"{ratio:.2f}"


CLAIM = PublishedClaim(
    name="late-phases",
    title="Late phases",
    words="Jobs need most GPUs early; their demand shrinks by a tenth or more in late phases.",
    source="A vendor's premise; published recipes raise the batch as training goes on, and so the GPUs that are useful",
    on="your own jobs with --data; else four measured runs on eight H100 each, and training logs of the public traces",
    takes="some seconds",
    measure=measure,
    takes_own_data=True,
)
