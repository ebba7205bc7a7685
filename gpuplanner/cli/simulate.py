"""The command ``simulate``: queue waits of a list of jobs on a fleet of equal nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuplanner.cli.app import app, put, say
from gpuplanner.cli.options import Json, Quiet
from gpuplanner.cli.show import show, show_frame

LABELS = {
    "mean_completion_s": "mean completion time (s)",
    "mean_wait_s": "mean queue wait (s)",
    "last_end_s": "last end (s)",
    "makespan_s": "first submission to last end (s)",
    "utilization": "GPUs allocated (share of GPU-time)",
    "wait_s": "queue wait (s)",
    "completion_s": "completion time (s)",
}
"""What each figure of the JSON output is called in the text output."""


@app.command()
def simulate(
    jobs: Annotated[
        Path,
        typer.Argument(
            metavar="JOBS.csv",
            help="List of jobs, CSV, plain or gzip: job_id, submit_time and duration in seconds, num_gpus; "
            "optional tenant and limit_s.",
        ),
    ],
    *,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of the fleet.")],
    gpus_per_node: Annotated[
        int | None, typer.Option(min=1, help="GPUs of each node; one pool without nodes if not given.")
    ] = None,
    queue: Annotated[
        str,
        typer.Option(
            help="Which job starts next: fifo (nobody passes), pass (whoever fits), backfill (EASY, by time limits), "
            "sjf (shortest first) or fair (recent use of the team first, with backfill)."
        ),
    ] = "fifo",
    curve: Annotated[
        bool, typer.Option("--curve", help="Also show the waits on 50 to 200 % of the GPUs, in whole nodes.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Simulate queue waits of a list of jobs on a number of GPUs."""
    from gpuplanner.simulate.job_list import (
        draw_curve,
        read_job_list,
        simulate_job_list,
        summarize_run,
        tabulate_waits,
    )

    table, remarks = read_job_list(jobs)
    if not quiet:
        for remark in remarks:
            say(f"{jobs.name}: {remark}")
    size = gpus_per_node or gpus
    outcomes = simulate_job_list(table, gpus=gpus, gpus_per_node=size, queue=queue)
    summary, waits = summarize_run(outcomes, gpus=gpus), tabulate_waits(outcomes)
    points = draw_curve(table, gpus=gpus, gpus_per_node=size, queue=queue) if curve else None
    if as_json:
        tables = {"waits": waits, "curve": points}
        rows = {name: one.to_dicts() for name, one in tables.items() if one is not None}
        show({**summary, **rows}, as_json=True)
        return
    show({LABELS[name]: value for name, value in summary.items()}, as_json=False)
    put("")
    labelled = waits.with_columns(waits["measure"].replace_strict(LABELS))
    show_frame(labelled, as_json=False, title="Seconds over the jobs")
    if points is not None:
        show_frame(points, as_json=False, title="Queue wait against number of GPUs, seconds")
