"""``phases``: in which phases jobs use their GPUs, what they wait for, and which slice each phase needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuplanner.cli.app import app, say
from gpuplanner.cli.options import Board, Json, Quiet
from gpuplanner.cli.show import show, show_frame

if TYPE_CHECKING:
    import polars as pl

    from gpuplanner.hardware.gpu import GpuModel


@app.command()
def phases(
    data: Annotated[
        str, typer.Argument(metavar="DIR", help="A folder written by 'gpuplanner ingest', or 'sample'.")
    ],
    job: Annotated[str | None, typer.Option("--job", help="Show the phases and dips of one job.")] = None,
    board: Board = None,
    effect: Annotated[
        float, typer.Option(min=0.001, max=0.999, help="Smallest reduction of late demand that counts.")
    ] = 0.10,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show phases, dips, bottlenecks and slice fit of jobs with telemetry, by class or of one job."""
    from gpuplanner.phases.demand import phases_of_jobs
    from gpuplanner.study.past.history import load_trace
    from gpuplanner.study.past.explore import Inbox

    trace = load_trace(data)
    fleet = Inbox(trace, board).fleet
    samples = _of_jobs(trace.samples, trace.jobs, job)
    found = phases_of_jobs(samples, trace.jobs)
    fleet.require_mig("phases")
    known = fleet.board
    if job is not None:
        _one_job(samples, found, trace.jobs, known, as_json=as_json)
    else:
        _all_jobs(samples, found, trace.jobs, known, effect, as_json=as_json)
        if not quiet and not as_json:
            say("--job ID shows one job with its dips and the evidence; --json gives every column")


def _of_jobs(samples: pl.DataFrame | None, jobs: pl.DataFrame, job: str | None) -> pl.DataFrame:
    """Samples that belong to jobs, or to the one job that was asked for."""
    import polars as pl

    from gpuplanner.errors import ScenarioError, message
    from gpuplanner.names import resolve

    mine = None if samples is None else samples.filter(pl.col("job_id").is_not_null())
    if mine is None or mine.is_empty():
        text = message(
            "phases",
            "telemetry that is matched to jobs",
            "none",
            "Ingest jobs and telemetry into one folder.",
        )
        raise ScenarioError(text)
    if job is None:
        return mine
    sampled = mine["job_id"].unique().sort().to_list()
    return mine.filter(job_id=resolve(job, sampled, what="job with telemetry", error=ScenarioError))


def _one_job(
    samples: pl.DataFrame, found: pl.DataFrame, jobs: pl.DataFrame, board: GpuModel, *, as_json: bool
) -> None:
    import polars as pl

    from gpuplanner.phases.spikes import find_spikes
    from gpuplanner.phases.fit import fit_phases
    from gpuplanner.phases.signatures.jobs import signatures_of

    fitted = fit_phases(found, board)
    spans = fitted.select("phase", phase_start="start").sort("phase_start")
    placed = samples.sort("time").join_asof(spans, left_on="time", right_on="phase_start")
    by_phase = signatures_of(placed, board, jobs=jobs, by=("job_id", "phase"))
    whole = signatures_of(samples, board, jobs=jobs)
    columns = ["phase", "label", "start", "end", "share", "gpus", "sm_activity", "memory_peak_gib", "power_w",
               "profile_phase", "profile_job", "saved_gpu_hours"]  # fmt: skip
    table = fitted.select(columns).join(by_phase.select("phase", "bound"), on="phase", how="left")
    tables = {"phases": table, "bottleneck": whole.select("job_id", "bound", "evidence")}
    facts: dict[str, Any] = {"period_s": None, "rule": None}
    if samples["sm_activity"].count():
        spikes = find_spikes(samples)
        tables["dips"] = spikes.table.select("start", "end", "label", pl.col("depth").round(3), "evidence")
        period = None if spikes.period is None else spikes.period.total_seconds()
        facts = {"period_s": period, "rule": spikes.rule}
    _print(tables, facts, as_json=as_json)


def _all_jobs(
    samples: pl.DataFrame,
    found: pl.DataFrame,
    jobs: pl.DataFrame,
    board: GpuModel,
    effect: float,
    *,
    as_json: bool,
) -> None:
    import polars as pl

    from gpuplanner.phases.claim import claim_by_class
    from gpuplanner.phases.demand import demand_by_class
    from gpuplanner.phases.fit import fit_phases
    from gpuplanner.phases.spikes import spikes_of_jobs
    from gpuplanner.phases.signatures.jobs import signatures_by_class, signatures_of

    demand = demand_by_class(found)
    bounds = signatures_by_class(signatures_of(samples, board, jobs=jobs), jobs)
    claim = claim_by_class(samples, found, board, effect=effect)
    dips = (
        spikes_of_jobs(samples)
        .join(jobs.select("job_id", "job_class").unique("job_id"), on="job_id", how="left")
        .group_by("job_class", "label")
        .agg(jobs=pl.len(), dips=pl.col("dips").sum(), every_s=pl.col("every_s").median(),
             last_s=pl.col("last_s").median())
        .sort("job_class", "label")
    )  # fmt: skip
    saved = (
        fit_phases(found, board)
        .filter(pl.col("gpus") <= 1)
        .group_by("job_class")
        .agg(jobs=pl.col("job_id").n_unique(), gpu_hours=pl.col("run_s").sum() / 3600.0,
             saved_gpu_hours_at_most=pl.col("saved_gpu_hours").sum())
        .sort("job_class")
    )  # fmt: skip
    tables = {
        "demand by class and phase": demand,
        "dips by class": dips,
        "what the GPUs wait for": bounds,
        "do late phases need fewer GPUs?": claim,
        "slices cut by phase instead of by job, jobs on one GPU": saved,
    }
    if not as_json:
        tables["demand by class and phase"] = demand.select(
            "job_class", "label", "jobs", "share", "share_q25", "share_q75", "sm_activity", "memory_peak_gib",
            "power_w", "gpus",
        )  # fmt: skip
        tables["what the GPUs wait for"] = bounds.drop("board")
        first = (pl.col("part") == "thirds") & (pl.col("need") == "both")
        tables["do late phases need fewer GPUs?"] = claim.with_columns(
            same_verdict=pl.format(
                "{} of {}",
                (pl.col("verdict") == pl.col("verdict").first()).sum().over("job_class"),
                pl.len().over("job_class"),
            )
        ).filter(first)
    _print(tables, {}, as_json=as_json)


def _print(tables: Mapping[str, pl.DataFrame], facts: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        show({name: table.to_dicts() for name, table in tables.items()} | dict(facts), as_json=True)
        return
    for name, table in tables.items():
        show_frame(table, as_json=False, title=name)
    if facts:
        show(facts, as_json=False)
