"""The command ``simulate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from gpuplanner.cli.application import Json, Quiet, app, echo, notify, show, show_frame
from gpuplanner.core.output_column_headings import read_table_headings

WAIT_LABELS = read_table_headings("simulated waits")
"""Printed labels by key of the JSON output of ``simulate``."""


@app.command()
def simulate(
    jobs: Annotated[
        Path,
        Argument(
            metavar="JOBS.csv",
            help="CSV file of jobs, plain or gzip: job_id, submit_time and duration in seconds, num_gpus; optional "
            "tenant (the team) and limit_s.",
        ),
    ],
    *,
    gpus: Annotated[int, Option(min=1, help="GPUs of the fleet.")],
    gpus_per_node: Annotated[
        int | None, Option(min=1, help="GPUs of each node. [default: one pool without nodes]")
    ] = None,
    queue: Annotated[
        str,
        Option(
            help="Queue order: fifo (in order of arrival), pass (first fit: any job that fits), backfill (EASY), "
            "sjf (shortest job first) or fair (backfill, teams with the least recent use first)."
        ),
    ] = "fifo",
    curve: Annotated[
        bool, Option("--curve", help="Also show the wait curve: queue wait at 50 to 200 % of the GPUs, in whole nodes.")
    ] = False,
    replications: Annotated[
        int,
        Option(
            min=0,
            max=1000,
            help="Also simulate so many resampled lists, and show 80 % intervals of queue wait, completion time and "
            "makespan.",
        ),
    ] = 0,
    seed: Annotated[int, Option(min=0, help="Seed of the random numbers.")] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show queue wait against number of GPUs for a list of jobs.

    Counts full GPUs, without MIG; 'gpuplanner compare' simulates MIG layouts.

    Example: gpuplanner simulate JOBS.csv --gpus 64 --queue backfill --curve
    """
    import polars as pl

    from gpuplanner.simulator.job_list_simulation import (
        read_job_list,
        resample_run,
        simulate_job_list,
        summarize_run,
        tabulate_wait_curve,
        tabulate_waits,
    )

    table, remarks = read_job_list(jobs)
    notify(*(f"{jobs.name}: {remark}" for remark in remarks), quiet=quiet)
    node_gpus = gpus_per_node or gpus
    outcomes = simulate_job_list(table, gpus=gpus, gpus_per_node=node_gpus, queue=queue)
    summary, waits = summarize_run(outcomes, gpus=gpus), tabulate_waits(outcomes)
    fleet: dict[str, Any] = {"gpus": gpus, "gpus_per_node": node_gpus, "queue": queue}
    points = tabulate_wait_curve(table, **fleet | {"gpus_per_node": gpus_per_node}) if curve else None
    if points is not None and (least := points["gpus"][0]) > gpus / 2:
        fleets = "fleet of whole nodes" if gpus_per_node else "fleet"
        largest = f"no smaller {fleets} has the GPUs of the largest job, {table['gpus'].to_numpy().max()}"
        notify(f"the wait curve begins at {least} GPUs: {largest}", quiet=quiet)
    intervals = resample_run(table, **fleet, replications=replications, seed=seed) if replications else {}
    if as_json:
        optional = {"curve": points, "intervals": intervals or None}
        show(summary | {"waits": waits} | {k: v for k, v in optional.items() if v is not None}, as_json=True)
        return
    show({WAIT_LABELS[name]: value for name, value in summary.items()})
    if intervals:
        echo("")
        rows = [(WAIT_LABELS[name], summary[name], *ends) for name, ends in intervals.items()]
        title = f"80 % interval over {replications} resampled lists"
        show_frame(pl.DataFrame(rows, schema=["figure", "value", "low", "high"], orient="row"), title=title)
    echo("")
    labelled_waits = waits.with_columns(waits["measure"].replace_strict(WAIT_LABELS))
    show_frame(labelled_waits, title="Queue wait and completion time of the jobs (s)")
    if points is not None:
        show_frame(points, title="Queue wait by number of GPUs (s)")
