"""The command that asks a running Prometheus: ``scrape``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuplanner.cli.app import app, say
from gpuplanner.cli.options import Json, Out, Quiet
from gpuplanner.cli.show import show


@app.command()
def scrape(
    url: Annotated[str, typer.Argument(metavar="URL", help="Address of Prometheus, without /api/v1.")],
    start: Annotated[str, typer.Option(help="First instant, ISO 8601 with an offset from UTC.")],
    end: Annotated[str, typer.Option(help="Last instant, ISO 8601 with an offset from UTC.")],
    out: Out = Path("build/telemetry"),
    interval: Annotated[float, typer.Option(help="Scrape interval in seconds.", min=0.001)] = 15.0,
    step: Annotated[
        float | None,
        typer.Option(help="Ask for a grid of this many seconds, not for the scrapes.", min=0.001),
    ] = None,
    match: Annotated[
        list[str] | None, typer.Option(metavar="LABEL=VALUE", help="Only series with this label; repeatable.")
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option("--ca-file", help="Certificates to trust beside the system's.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Read GPU telemetry of a span from a live Prometheus; a token goes in GPUPLANNER_PROMETHEUS_TOKEN."""
    from gpuplanner.files import held_directory
    from gpuplanner.inbox import add_read
    from gpuplanner.inbox.store import MARK
    from gpuplanner.inbox.telemetry import Server, read_live

    matchers = {}
    for text in match or []:
        label, equals, value = text.partition("=")
        if not equals:
            problem = f"--match takes LABEL=VALUE, not {text!r}"
            raise typer.BadParameter(problem)
        matchers[label] = value
    server = Server(url, ca_file=ca_file)
    with held_directory(out, mark=MARK):
        read = read_live(server, start, end, interval_s=interval, step_s=step, matchers=matchers)
        add_read(read, out)
    show(read.summary(), as_json=as_json)
    if not quiet:
        for check, severity, rows in read.quality.select("check", "severity", "rows").iter_rows():
            say(f"{severity}: {check}: {rows} row(s)")
        say(f"written to {out}")
