"""Commands that read: ``ingest`` and ``describe``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuplanner.cli.app import app, put, say
from gpuplanner.cli.options import Json, Out, Quiet, Tz
from gpuplanner.cli.show import show, show_frame


@app.command()
def ingest(
    source: Annotated[
        str | None, typer.Argument(help="Name of the source, or 'auto' to find it from the content.")
    ] = None,
    paths: Annotated[list[Path] | None, typer.Argument(help="Files to read.")] = None,
    out: Out = Path("build/trace"),
    nodes: Annotated[Path | None, typer.Option(help="Node list that belongs to the jobs.")] = None,
    tz: Tz = None,
    origin: Annotated[
        str | None, typer.Option(help="Instant that a source which counts seconds starts from.")
    ] = None,
    list_sources: Annotated[bool, typer.Option("--list", help="Name the sources and stop.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Read a trace into a folder: jobs, rejected rows with reasons, quality report, provenance."""
    from gpuplanner.traces import SOURCES, read, write_trace

    if list_sources:
        show({name: known.description for name, known in SOURCES.items()}, as_json=as_json)
        return
    if source is None or not paths:
        text = "ingest needs a SOURCE and at least one PATH; 'gpuplanner ingest --list' names the sources"
        raise typer.BadParameter(text)
    trace = read(source, paths, nodes=nodes, tz=tz, origin=origin)
    write_trace(trace, out)
    show(trace.summary(), as_json=as_json)
    if not quiet:
        for check, severity, rows in trace.quality.select("check", "severity", "rows").iter_rows():
            say(f"{severity}: {check}: {rows} row(s)")
        say(f"written to {out}")


@app.command()
def describe(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder written by 'ingest', or 'sample'.")],
    as_json: Json = False,
) -> None:
    """Say what a trace holds: span, tenants, where the GPU-time went, and what is wrong with it."""
    from gpuplanner.study import describe_trace

    parts = {name: part for name, part in describe_trace(folder).items() if name != "hours"}
    if as_json:
        show(
            {name: part if isinstance(part, dict) else part.to_dicts() for name, part in parts.items()},
            as_json=True,
        )
        return
    for name, part in parts.items():
        if isinstance(part, dict):
            show(part, as_json=False)
            put("")
        else:
            show_frame(part, as_json=False, title=name)
