"""The command that reads a bill: ``bill``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuplanner.cli.app import Exit, app, say
from gpuplanner.cli.options import Json
from gpuplanner.cli.show import show, show_frame


@app.command()
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
    from gpuplanner.inbox import open_dataset
    from gpuplanner.inbox.bills import difference, summarise, totals, unknown_types

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
