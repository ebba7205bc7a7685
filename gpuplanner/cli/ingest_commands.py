"""Commands that import data: ``ingest``, ``describe``, ``scrape`` and ``bill``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from gpuplanner.cli.application import (
    Exit,
    GpuModels,
    Json,
    Out,
    Overwrite,
    Quiet,
    SmallestGroup,
    Tz,
    WorkersOption,
    app,
    chart_option,
    echo,
    find_data,
    notify,
    parse_gpu_models,
    parse_pairs,
    parse_workers,
    require_outputs,
    show,
    show_frame,
)

if TYPE_CHECKING:
    import polars as pl

    from gpuplanner.ingest.dataset import Dataset


@app.command()
def ingest(
    source: Annotated[str | None, Argument(help="Source of the files (see --list), or 'auto' to detect it.")] = None,
    paths: Annotated[list[Path] | None, Argument(help="Files to import.")] = None,
    out: Out = Path("build/trace"),
    nodes: Annotated[Path | None, Option(help="Node list of the cluster that ran the jobs.")] = None,
    tz: Tz = None,
    origin: Annotated[str | None, Option(help="Start time of a source that counts seconds, ISO 8601.")] = None,
    interval: Annotated[
        float | None, Option(help="Seconds between two samples, for telemetry without times.", min=0)
    ] = None,
    node: Annotated[str | None, Option(help="Node of telemetry that names none. [default: the file name]")] = None,
    gpu: Annotated[int | None, Option(help="GPU index of telemetry that names none.", min=0)] = None,
    columns: Annotated[str | None, Option(help="Column names of a file without a header, separated by commas.")] = None,
    query: Annotated[
        str | None, Option(help="Query of a Prometheus response whose series have no metric name.")
    ] = None,
    pseudonyms: Annotated[
        str | None,
        Option(
            metavar="COLUMNS",
            help="Pseudonymize these columns: user, tenant, job_id, job_name, partition, project, separated by commas.",
        ),
    ] = None,
    key_file: Annotated[Path | None, Option(help="Key file of the pseudonyms (gpuplanner keygen).")] = None,
    gpu_models: GpuModels = None,
    append: Annotated[bool, Option("--append", help="Add only new or changed files (the default).")] = False,
    replace: Annotated[
        bool, Option("--replace", help="Read the source again and replace the rows that it gave before.")
    ] = False,
    workers: WorkersOption = None,
    list_sources: Annotated[bool, Option("--list", help="List the sources and exit.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Import job traces, telemetry, bills or node lists into a dataset.

    The folder keeps the rows, rejected rows with their reasons, a quality report
    and the provenance. 'gpuplanner scrape' reads telemetry from a live Prometheus
    server instead of files. Example: gpuplanner ingest auto jobs.txt -o build/mine
    """
    from gpuplanner import ingest
    from gpuplanner.core.libraries_plugins_and_workers import show_progress_bar

    if list_sources:
        show({name: ingest_source.description for name, ingest_source in ingest.SOURCES.items()}, as_json=as_json)
        return
    if source is None or not paths:
        raise typer.BadParameter(
            "ingest needs a SOURCE and at least one PATH; 'gpuplanner ingest --list' lists the sources"
        )
    if (pseudonyms is None) != (key_file is None):
        raise typer.BadParameter("--pseudonyms and --key-file need each other (gpuplanner keygen)")
    if append and replace:
        raise typer.BadParameter("use either --append or --replace")
    terms, change = _make_pseudonymizer(pseudonyms, key_file)
    with show_progress_bar(quiet=quiet):
        added = ingest.add_files(
            source,
            paths,
            out,
            replace_source=replace,
            change=change,
            terms=terms,
            workers=parse_workers(workers),
            tz=tz,
            origin=origin,
            nodes=nodes,
            boards=parse_gpu_models(gpu_models),
            columns=tuple(columns.split(",")) if columns else None,
            interval_s=interval,
            node=node,
            gpu=gpu,
            query=query,
        )
    show(added.metadata.summary(), as_json=as_json)
    notify(*_quality_lines(added.metadata), f"{out}: {added.describe_import()}", quiet=quiet)


def _quality_lines(dataset: Dataset) -> list[str]:
    """Make a line for each data-quality check that found rows of a dataset."""
    rows = dataset.quality.select("check", "severity", "rows").iter_rows()
    return [f"{severity}: {check}: {count:,} row{'s' * (count != 1)}" for check, severity, count in rows]


@app.command("keygen", hidden=True)
def make_key(path: Annotated[Path, Argument(metavar="FILE", help="Key file to create.")]) -> None:
    """Create a key file for pseudonyms, readable by its owner only.

    Keep it apart from the data.
    """
    from gpuplanner.core.privacy import write_new_key

    write_new_key(path)
    notify(f"written: {path}")


@app.command()
def describe(
    folder: Annotated[
        str, Argument(metavar="DIR", callback=find_data, help="Dataset folder from 'ingest', or 'sample'.")
    ],
    chart: Annotated[
        Path | None, chart_option("Write a chart of the data quality: .html (page) or .svg (chart alone).")
    ] = None,
    hours: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Write hourly telemetry by GPU and job: activity, memory, energy, coverage; .csv or .parquet.",
        ),
    ] = None,
    nodes: Annotated[bool, Option("--by-node", help="Also show the allocated GPU-hours of each node.")] = False,
    job_class: Annotated[
        str | None,
        Option(
            "--class",
            metavar="CLASS",
            help="List the jobs of a class: pretraining, fine-tuning, evaluation, inference, interactive, another "
            "one of the source, or all.",
        ),
    ] = None,
    smallest_group: SmallestGroup = 0,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Summarize a dataset: jobs, utilization, waits, data quality."""
    from gpuplanner import usage
    from gpuplanner.core.output_column_headings import replace_codes_by_text
    from gpuplanner.usage.dataset_description_and_data_quality import data_quality
    from gpuplanner.usage.rightsizing import GPU_HOURS_NOTE

    if smallest_group and job_class is not None:
        raise typer.BadParameter("use either --class or --smallest-group: one job shows one person")
    require_outputs(chart)
    if hours is not None:
        _write_hours(folder, hours)
        notify(f"written: {hours}", quiet=quiet)
    description = usage.describe(folder, smallest_group=smallest_group, nodes=nodes, job_class=job_class)
    for option, value in (("--smallest-group", smallest_group or None), ("--class", job_class)):
        if value is not None and description.jobs is None:
            notify(f"warning: {option} ignored: the folder holds no jobs")
    if chart is not None:
        from gpuplanner.report.dataset_sections import render_quality_page, render_quality_svg
        from gpuplanner.report.html_page import write_page_or_picture

        quality, title = data_quality(folder), f"Data quality: {Path(folder).name}"
        write_page_or_picture(
            chart, page=lambda: render_quality_page(quality, title=title), picture=lambda: render_quality_svg(quality)
        )
        notify(f"written: {chart}", quiet=quiet)
    if as_json:
        show(description.to_dict(), as_json=True)
        return
    show(description.all_facts)
    echo("")
    for title, table in description.tables.items():
        show_frame(replace_codes_by_text(_drop_zero_rows(table)), title=title)
    if description.hours is not None:
        echo(GPU_HOURS_NOTE)


def _drop_zero_rows(table: pl.DataFrame) -> pl.DataFrame:
    """Drop the rows of a table in which every number is zero."""
    import polars as pl

    numbers = [name for name, dtype in table.schema.items() if dtype.is_numeric()]
    if not numbers:
        return table
    return table.filter(pl.any_horizontal(pl.col(numbers).fill_null(0) != 0))


def _write_hours(folder: str, file: Path) -> None:
    """Write the hourly telemetry of a dataset as CSV or Parquet."""
    from gpuplanner.core.output_writing import write_atomically, write_csv_safe
    from gpuplanner.usage.dataset_description_and_data_quality import telemetry_by_hour

    if file.suffix not in (".csv", ".parquet"):
        raise typer.BadParameter("expected a file name that ends in .csv or .parquet", param_hint="--hours")
    require_outputs(file)
    table = telemetry_by_hour(folder)
    if file.suffix == ".csv":
        write_csv_safe(file, table)
    else:
        write_atomically(file, table.write_parquet)


def _make_pseudonymizer(
    columns: str | None, key_file: Path | None
) -> tuple[dict[str, object], Callable[[Dataset], Dataset]]:
    """Make the function that pseudonymizes a dataset, and the metadata that record it.

    Parameters
    ----------
    columns : str, optional
        Columns, separated by commas; None: no pseudonyms.
    key_file : Path, optional
        Key of the pseudonyms.

    Returns
    -------
    tuple of dict and callable
        Columns and a fingerprint of the key; and a function from a dataset to the pseudonymized one.
    """
    if columns is None or key_file is None:
        return {}, lambda dataset: dataset
    from gpuplanner.core.privacy import make_pseudonym, read_key
    from gpuplanner.ingest.dataset import pseudonymise_dataset

    key, column_names = read_key(key_file), [name.strip() for name in columns.split(",")]
    # The pseudonym of a public word tells keys apart and reveals nothing else.
    terms: dict[str, object] = {"pseudonyms": column_names, "key": make_pseudonym("gpuplanner", key, "key")}
    return terms, lambda dataset: pseudonymise_dataset(dataset, key, column_names)


@app.command()
def scrape(
    url: Annotated[str, Argument(metavar="URL", help="Address of the Prometheus server, without /api/v1.")],
    start: Annotated[str, Option(help="First time, ISO 8601 with an offset from UTC.")],
    end: Annotated[str, Option(help="Last time, ISO 8601 with an offset from UTC.")],
    out: Out = Path("build/telemetry"),
    interval: Annotated[
        float, Option(help="Scrape interval of the server in seconds; must match (see /api/v1/targets).", min=0.001)
    ] = 15.0,
    step: Annotated[
        float | None, Option(help="Request one value every so many seconds, not the raw scrapes.", min=0.001)
    ] = None,
    match: Annotated[
        list[str] | None, Option(metavar="LABEL=VALUE", help="Only series with this label; repeatable.")
    ] = None,
    ca_file: Annotated[Path | None, Option(help="Additional CA certificates to trust.")] = None,
    serving: Annotated[bool, Option("--serving", help="Import metrics of vLLM and SGLang instead.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Import GPU telemetry from a live Prometheus server.

    Set GPUPLANNER_PROMETHEUS_TOKEN to a bearer token. Reads DCGM and AMD metrics,
    with --serving those of vLLM and SGLang; not those of pods and nodes. Pass the
    output folder to 'gpuplanner start' with the files of jobs and nodes.
    """
    from gpuplanner.core.output_writing import reserve_directory
    from gpuplanner.ingest.dataset_folder import DATASET_MARK
    from gpuplanner.ingest.dataset_import import add_dataset
    from gpuplanner.ingest.telemetry.prometheus import PrometheusServer, read_live
    from gpuplanner.ingest.telemetry.serving_metrics import read_live_serving

    matchers = parse_pairs(match or [], "--match", "LABEL=VALUE")
    server = PrometheusServer(url, ca_file=ca_file)
    with reserve_directory(out, mark=DATASET_MARK):
        if serving:
            dataset = read_live_serving(server, start, end, interval_s=interval, matchers=matchers)
        else:
            dataset = read_live(server, start, end, interval_s=interval, step_s=step, matchers=matchers)
        add_dataset(dataset, out)
    show(dataset.summary(), as_json=as_json)
    notify(*_quality_lines(dataset), f"written: {out}", quiet=quiet)


@app.command(hidden=True)
def bill(
    folder: Annotated[Path, Argument(metavar="DIR", help="Dataset folder of an imported bill.")],
    tag: Annotated[str | None, Option(help="Tag key that names the team.")] = None,
    charge_period: Annotated[bool, Option("--charge-period", help="Group by month of use.")] = False,
    as_json: Json = False,
) -> None:
    """Sum a cloud bill by month, team and GPU instance type.

    Exits with 1 if the sums differ from the lines of the bill. The total of the
    invoice is not compared.
    """
    from gpuplanner.core.errors import TraceFormatError
    from gpuplanner.ingest.bills.bill_summary import compare_costs, find_unknown_types, sum_costs, summarise_bill
    from gpuplanner.ingest.dataset_folder import open_dataset

    dataset = open_dataset(folder)
    charges = dataset.tables.get("charges")
    if charges is None:
        todo = "Import a FOCUS or CUR export: gpuplanner ingest focus FILE -o DIR."
        raise TraceFormatError(str(folder), "the charges of a bill", f"{dataset.kind}", todo)
    summary = summarise_bill(charges, tag=tag, period="charge" if charge_period else "billing")
    totals, unknown_types = sum_costs(charges), find_unknown_types(charges)
    tables = {"summary": summary, "totals": totals, "unknown instance types": unknown_types}
    if as_json:
        show(tables, as_json=True)
    else:
        words = {"x_InstanceType": "instance type", "unused_gpu_hours": "paid but unused commitment, GPU-hours"}
        show_frame(summary.rename(words, strict=False), title="Cost and GPU-hours by month, team and instance type")
        show_frame(totals, title="Totals")
        title = "Usage that may be of GPUs, without GPU-hours above"
        if unknown_types.height:
            show_frame(unknown_types.rename({"x_InstanceType": "instance type, else description"}), title=title)
        else:
            echo(f"{title}: none")
    differences = [row for row in compare_costs(summary, charges).iter_rows() if any(row[1:])]
    for currency, *costs in differences:
        notify(f"problem: the summary differs from the bill by {', '.join(map(str, costs))} {currency}")
    if differences:
        raise typer.Exit(Exit.CHECK_FAILED)
