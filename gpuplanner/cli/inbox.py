"""Commands that read: ``ingest`` and ``describe``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuplanner.cli.app import app, put, say
from gpuplanner.cli.options import Json, Out, Quiet, SmallestGroup, Tz
from gpuplanner.cli.show import show, show_frame

if TYPE_CHECKING:
    from gpuplanner.inbox import Reading, Trace
    from gpuplanner.inbox.telemetry import Appended, Telemetry


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
    interval: Annotated[
        float | None, typer.Option(help="Seconds between samples, for telemetry without times.", min=0)
    ] = None,
    node: Annotated[
        str | None, typer.Option(help="Node of telemetry that does not name it; else the file name.")
    ] = None,
    gpu: Annotated[
        int | None, typer.Option(help="GPU of telemetry that does not say which it is of.", min=0)
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Fields of a file without a header, joined by commas.")
    ] = None,
    pseudonyms: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS", help="Replace names: user, tenant, job_id, job_name, joined by commas."
        ),
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option("--key-file", help="Key of the pseudonyms, from 'gpuplanner new-key'.")
    ] = None,
    append: Annotated[
        bool, typer.Option("--append", help="Add to DIR, reading only files that are new or changed.")
    ] = False,
    list_sources: Annotated[bool, typer.Option("--list", help="Name the sources and stop.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Read a trace or telemetry into a folder: rows, rejected rows with reasons, quality, provenance."""
    from gpuplanner import inbox as traces
    from gpuplanner.inbox import telemetry

    if list_sources:
        known = {name: each.description for name, each in traces.SOURCES.items()}
        known |= {name: each.description for name, each in telemetry.SOURCES.items()}
        show(known, as_json=as_json)
        return
    if source is None or not paths:
        text = "ingest needs a SOURCE and at least one PATH; 'gpuplanner ingest --list' names the sources"
        raise typer.BadParameter(text)
    if (pseudonyms is None) != (key_file is None):
        text = "--pseudonyms and --key-file go together"
        raise typer.BadParameter(text)
    if append and (nodes is not None or pseudonyms is not None):
        text = "--append goes without --nodes and --pseudonyms: they depend on all files at once"
        raise typer.BadParameter(text)
    fields = tuple(columns.split(",")) if columns else None
    hints = {"interval_s": interval, "node": node, "gpu": gpu, "columns": fields}
    read: Trace | Reading | Telemetry | Appended
    news = f"written to {out}"
    if telemetry.speaks(source, paths, fields):
        _refuse({"--nodes": nodes, "--pseudonyms": pseudonyms}, "telemetry")
        if append:
            read = telemetry.append(source, paths, out, tz=tz, origin=origin, **hints)
            news = read.news()
        else:
            read = telemetry.read(source, paths, tz=tz, origin=origin, **hints)
            telemetry.write_telemetry(read, out)
    else:
        _refuse({"--interval": interval, "--node": node, "--gpu": gpu}, "a list of jobs")
        if append:
            done = traces.append(source, paths, out, tz=tz, origin=origin, columns=fields)
            read, news = done.trace, done.news()
        else:
            read = traces.read(source, paths, nodes=nodes, tz=tz, origin=origin, columns=fields)
            if pseudonyms is not None and key_file is not None:
                read = _without_names(read, key_file, pseudonyms)
            traces.write(read, out)
    show(read.summary(), as_json=as_json)
    if not quiet:
        for check, severity, rows in read.quality.select("check", "severity", "rows").iter_rows():
            say(f"{severity}: {check}: {rows} row(s)")
        say(news)


@app.command("new-key")
def make_key(path: Annotated[Path, typer.Argument(metavar="FILE", help="File to make.")]) -> None:
    """Make a key for pseudonyms, readable by its owner alone; keep it apart from the data."""
    from gpuplanner.privacy import new_key

    new_key(path)
    say(f"written: {path}")


@app.command()
def describe(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder written by 'ingest', or 'sample'.")],
    chart: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw what is wrong with the data: .html, a page of its own, or .svg, a picture.",
        ),
    ] = None,
    smallest_group: SmallestGroup = 0,
    as_json: Json = False,
) -> None:
    """Say what a trace or telemetry holds: span, tenants, where the GPU-time went, and what is wrong with it."""
    from gpuplanner.study import describe_trace
    from gpuplanner.study.quality import data_quality, describe_telemetry, is_telemetry

    if chart is not None and chart.suffix not in (".html", ".svg"):
        text = "the name must end in .html or .svg"
        raise typer.BadParameter(text, param_hint="--chart")
    if is_telemetry(folder):
        _refuse({"--smallest-group": smallest_group or None}, "telemetry")
        told = describe_telemetry(folder)
    else:
        told = describe_trace(folder, smallest_group=smallest_group)
    parts = {name: part for name, part in told.items() if name != "hours"}
    if chart is not None:
        from gpuplanner.report.quality import write_quality

        write_quality(data_quality(folder), chart, title=f"Data quality: {Path(folder).name}")
        say(f"written: {chart}")
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


def _refuse(options: dict[str, object], what: str) -> None:
    """Refuse options that were given and would change nothing."""
    given = [name for name, value in options.items() if value is not None]
    if given:
        verb = "mean" if len(given) > 1 else "means"
        text = f"{' and '.join(given)} {verb} nothing for {what}"
        raise typer.BadParameter(text)


def _without_names(read: Trace | Reading, key_file: Path, columns: str) -> Trace:
    from gpuplanner.inbox import Trace
    from gpuplanner.inbox.core.pseudonyms import without_names
    from gpuplanner.privacy import read_key

    if not isinstance(read, Trace):
        text = "--pseudonyms means nothing for what is no list of jobs"
        raise typer.BadParameter(text)
    return without_names(read, read_key(key_file), [name.strip() for name in columns.split(",")])
