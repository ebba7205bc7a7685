"""Commands that read: ``ingest`` and ``describe``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuplanner.cli.app import app, put, say
from gpuplanner.cli.options import (
    GpuModels,
    Json,
    Out,
    Overwrite,
    Quiet,
    SmallestGroup,
    Tz,
    WorkersAsked,
    drawable,
    stated_models,
    workers_of,
)
from gpuplanner.cli.show import show, show_frame

if TYPE_CHECKING:
    import polars as pl

    from gpuplanner.inbox.core.dataset import (Dataset)


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
    query: Annotated[
        str | None, typer.Option(help="Query behind a Prometheus answer whose series lack metric names.")
    ] = None,
    pseudonyms: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS",
            help="Replace names: user, tenant, job_id, job_name, partition, joined by commas.",
        ),
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option("--key-file", help="Key of the pseudonyms, from 'gpuplanner new-key'.")
    ] = None,
    gpu_models: GpuModels = None,
    append: Annotated[
        bool, typer.Option("--append", help="Add only files that are new or changed: what is done anyway.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Read the source anew: forget what it said before.")
    ] = False,
    workers: WorkersAsked = None,
    list_sources: Annotated[bool, typer.Option("--list", help="Name the sources and stop.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Add a trace, telemetry, a bill or a node list to a dataset: rows, rejects with reasons, quality, provenance.

    'gpuplanner scrape' reads telemetry from a live Prometheus instead of files.
    """
    from gpuplanner import inbox
    from gpuplanner.inbox.core.progress import progress_bar

    if list_sources:
        show({name: each.description for name, each in inbox.SOURCES.items()}, as_json=as_json)
        return
    if source is None or not paths:
        text = "ingest needs a SOURCE and at least one PATH; 'gpuplanner ingest --list' names the sources"
        raise typer.BadParameter(text)
    if (pseudonyms is None) != (key_file is None):
        text = "--pseudonyms and --key-file go together"
        raise typer.BadParameter(text)
    if append and replace:
        text = "--append and --replace ask for different things: give one of them"
        raise typer.BadParameter(text)
    terms, change = _without_names(pseudonyms, key_file)
    with progress_bar(quiet=quiet):
        done = inbox.add(
            source,
            paths,
            out,
            replace_source=replace,
            change=change,
            terms=terms,
            workers=workers_of(workers),
            tz=tz,
            origin=origin,
            nodes=nodes,
            boards=stated_models(gpu_models),
            columns=tuple(columns.split(",")) if columns else None,
            interval_s=interval,
            node=node,
            gpu=gpu,
            query=query,
        )
    show(done.told.summary(), as_json=as_json)
    if not quiet:
        for check, severity, rows in done.told.quality.select("check", "severity", "rows").iter_rows():
            say(f"{severity}: {check}: {rows} row(s)")
        say(f"{out}: {done.news()}")


@app.command("new-key", hidden=True)
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
            callback=drawable,
            help="Draw what is wrong with the data: .html, a page of its own, or .svg, a picture.",
        ),
    ] = None,
    hours: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write telemetry by hour, device and job here: activity, memory, energy, coverage; .csv or .parquet.",
        ),
    ] = None,
    nodes: Annotated[
        bool, typer.Option("--by-node", help="Also say how many GPU-hours were held on each node.")
    ] = False,
    job_class: Annotated[
        str | None,
        typer.Option(
            "--class",
            metavar="CLASS",
            help="List the jobs of a class, which the source or a rule names: pretraining, fine-tuning, evaluation, "
            "inference, interactive, another of the source, or all.",
        ),
    ] = None,
    smallest_group: SmallestGroup = 0,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Say what a folder holds: jobs and where their time went, telemetry, bills, nodes, series; and what is wrong."""
    from gpuplanner import study
    from gpuplanner.files.place import require_file
    from gpuplanner.study.past.quality import data_quality

    if smallest_group and job_class is not None:
        text = "--class goes without --smallest-group: a job is one person's"
        raise typer.BadParameter(text)
    if chart is not None:
        require_file(chart)
    if hours is not None:
        _write_hours(folder, hours)
    told = study.describe(folder, smallest_group=smallest_group, nodes=nodes, job_class=job_class)
    if smallest_group and told.jobs is None:
        say("warning: --smallest-group means nothing without jobs: it was left out")
    if job_class is not None and told.jobs is None:
        say("warning: --class means nothing without jobs: it was left out")
    if chart is not None:
        from gpuplanner.report.inbox import quality_page, quality_svg
        from gpuplanner.report.page import write_drawn

        found, title = data_quality(folder), f"Data quality: {Path(folder).name}"
        write_drawn(chart, page=lambda: quality_page(found, title=title), picture=lambda: quality_svg(found))
        say(f"written: {chart}")
    if as_json:
        show(told.to_dict(), as_json=True)
        return
    show(told.facts, as_json=False)
    put("")
    for title, table in told.tables.items():
        show_frame(_something(table), as_json=False, title=title)


def _something(table: pl.DataFrame) -> pl.DataFrame:
    """A table without the rows in which every number is zero: they say nothing to who reads them."""
    import polars as pl

    numbers = [name for name, dtype in table.schema.items() if dtype.is_numeric()]
    if not numbers:
        return table
    return table.filter(pl.any_horizontal(pl.col(numbers).fill_null(0) != 0))


def _write_hours(folder: str, file: Path) -> None:
    from gpuplanner.files.place import require_file
    from gpuplanner.files.single import write_atomically
    from gpuplanner.files.csv import write_csv_safe
    from gpuplanner.study.past.description import hours_of_telemetry

    if file.suffix not in (".csv", ".parquet"):
        text = "the name must end in .csv or .parquet"
        raise typer.BadParameter(text, param_hint="--hours")
    require_file(file)
    table = hours_of_telemetry(folder)
    if file.suffix == ".csv":
        write_csv_safe(file, table)
    else:
        write_atomically(file, table.write_parquet)
    say(f"written: {file}")


def _without_names(
    columns: str | None, key_file: Path | None
) -> tuple[dict[str, object], Callable[[Dataset], Dataset]]:
    """What is remembered of the pseudonyms asked for, and what replaces the names."""
    if columns is None or key_file is None:
        return {}, lambda read: read
    from gpuplanner.inbox.core.pseudonyms import without_names
    from gpuplanner.privacy import pseudonym, read_key

    key, names = read_key(key_file), [name.strip() for name in columns.split(",")]
    # A name of which everybody knows the word tells one key from another, and nothing else.
    return {"pseudonyms": names, "key": pseudonym("gpuplanner", key, "key")}, lambda read: without_names(
        read, key, names
    )
