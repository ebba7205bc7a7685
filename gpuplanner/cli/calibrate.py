"""The command that holds the simulator against what a cluster did: ``calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuplanner.cli.app import app, put, say
from gpuplanner.cli.options import Json, drawable
from gpuplanner.cli.show import show, show_frame


@app.command()
def calibrate(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder written by 'ingest', or 'sample'.")],
    gpus: Annotated[
        int | None,
        typer.Option(
            "--gpus", min=1, help="GPUs of the fleet; else the inventory, else the most that were ever held."
        ),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue", help="strict, pass, easy or conservative; else easy if most jobs have limits, or pass."
        ),
    ] = None,
    tz: Annotated[str, typer.Option("--tz", help="Zone of the hours of the day.")] = "UTC",
    chart: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            callback=drawable,
            help="Draw simulated beside observed waits: .html, a page of its own, or .svg, a picture.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Serve the jobs of a trace again, and say how well simulated waits agree with observed ones."""
    from gpuplanner.files import require_file
    from gpuplanner.simulate import Rules
    from gpuplanner.study.future.calibration import OUTCOMES, calibrate
    from gpuplanner.study.past.history import load_trace

    if chart is not None:
        require_file(chart, inputs=[folder])
    rules = None if queue is None else Rules(queue=queue)
    found = calibrate(load_trace(folder), gpus=gpus, rules=rules, tz=tz)
    if chart is not None:
        from gpuplanner.report.calibration import calibration_page, calibration_svg
        from gpuplanner.report.picture import write_drawn

        title = f"Calibration: {Path(folder).name}"
        write_drawn(
            chart,
            page=lambda: calibration_page(found, title=title),
            picture=lambda: calibration_svg(found),
        )
        say(f"written: {chart}")
    if as_json:
        show(found.to_dict(), as_json=True)
        return
    put(f"{found.outcome}: {OUTCOMES[found.outcome]}")
    put(f"{found.sentence}\n")
    show(found.facts, as_json=False)
    put("")
    tables = {f"by {name}": group.select(*group.columns[:1], *SHOWN) for name, group in found.groups.items()}
    tables |= {
        "other fleets and queues, best first": found.candidates,
        "what a queue over one fleet cannot explain": found.obstacles,
        "jobs left out": found.left_out,
    }
    for title, table in tables.items():
        show_frame(table, as_json=False, title=title)


SHOWN = (
    "jobs",
    "waited",
    "observed_mean_s",
    "simulated_mean_s",
    "median_error_s",
    "skill",
    "typical_factor",
    "within_10min",
    "within_1h",
)
"""Measures of each group in the text; JSON has all."""
