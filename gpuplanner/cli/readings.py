"""Commands that ask others: ``scrape`` a running Prometheus, ``bill`` what was paid."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuplanner.cli.app import Exit, app, say
from gpuplanner.cli.options import Json, Out, Quiet
from gpuplanner.cli.show import show, show_frame


@app.command(hidden=True)
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
    from gpuplanner.files.folder import held_directory
    from gpuplanner.inbox.additions import add_read
    from gpuplanner.inbox.store import MARK
    from gpuplanner.inbox.telemetry.readers.live import Server, read_live

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


@app.command(hidden=True)
def bill(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a bill written by 'ingest'.")],
    tag: Annotated[str | None, typer.Option(help="Key of the tag that names tenants.")] = None,
    charge_period: Annotated[
        bool, typer.Option("--charge-period", help="Months of use, not of billing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Sum a cloud bill by month, tenant and GPU instance type, and check the sums against its lines."""
    from gpuplanner.errors import TraceFormatError, message
    from gpuplanner.inbox.store import open_dataset
    from gpuplanner.inbox.bills.summary import difference, summarise, totals, unknown_types

    found = open_dataset(folder)
    charges = found.tables.get("charges")
    if charges is None:
        todo = "Ingest a FOCUS or CUR export first."
        raise TraceFormatError(message(str(folder), "the charges of a bill", f"{found.kind}", todo))
    summary = summarise(charges, tag=tag, period="charge" if charge_period else "billing")
    missing = difference(summary, charges)
    tables = {
        "summary": summary,
        "totals": totals(charges),
        "unknown instance types": unknown_types(charges),
    }
    if as_json:
        show({name: table.to_dicts() for name, table in tables.items()}, as_json=True)
    else:
        for name, table in tables.items():
            show_frame(table, as_json=False, title=name)
    off = [row for row in missing.iter_rows() if any(row[1:])]
    for currency, *costs in off:
        say(f"problem: the summary misses the bill by {', '.join(map(str, costs))} {currency}")
    if off:
        raise typer.Exit(Exit.CHECK_FAILED)
