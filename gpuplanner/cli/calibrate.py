"""The command that holds the simulator against what a cluster did: ``calibrate``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gpuplanner.cli.app import app, put, say
from gpuplanner.cli.options import Given, Json, Overwrite, ScenarioPath, drawable, takes
from gpuplanner.cli.show import show, show_frame


@app.command()
@takes("queue", "tz")
def calibrate(
    scenario: ScenarioPath,
    given: Given,
    chart: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            callback=drawable,
            help="Draw simulated beside observed waits: .html, a page of its own, or .svg, a picture.",
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Serve the jobs again as they came, hold simulated against observed waits, and name what the rest is made of."""
    from gpuplanner.files import require_file
    from gpuplanner.study.future.calibration import OUTCOMES, calibrate

    if chart is not None:
        require_file(chart, inputs=[scenario])
    asked = given.scenario(scenario)
    found = calibrate(asked)
    if chart is not None:
        from gpuplanner.report.forecast import calibration_page, calibration_svg
        from gpuplanner.report.page import write_drawn

        write_drawn(
            chart,
            page=lambda: calibration_page(found, title=f"Calibration: {asked.name}"),
            picture=lambda: calibration_svg(found),
            locale=asked.number_locale,
        )
        say(f"written: {chart}")
    if as_json:
        show(found.to_dict(), as_json=True)
        return
    put(f"{found.outcome}: {OUTCOMES[found.outcome]}")
    put(f"{found.sentence}\n")
    show(asdict(found.facts), as_json=False)
    put("")
    tables = {"what the waits are made of": found.causes}
    for name, group in found.groups.items():
        tables[f"by {name}"] = group.select(
            *group.columns[:1], *SHOWN, *(["verdict"] if name == "size" else [])
        )
    tables["jobs left out"] = found.left_out
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
