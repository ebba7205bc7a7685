"""The command that packs jobs into bins over time: ``pack``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuplanner.cli.app import Exit, app, say
from gpuplanner.cli.options import Json, Quiet
from gpuplanner.cli.show import show

_EXITS = {"time_limit": Exit.TIME_LIMIT, "user": Exit.INTERRUPTED}


@app.command()
def pack(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="First line 'n capacity 0 0', then 'index start end size' of each item."
        ),
    ],
    time_limit: Annotated[float, typer.Option("--time-limit", min=0.1, help="Most seconds.")] = 5.0,
    work_limit: Annotated[
        int | None,
        typer.Option(
            "--work-limit",
            min=1,
            help="Most million steps; if it ends the search, the answer does not depend on the machine's speed.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of everything random.")] = 0,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write the bin of each item here, as CSV.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Pack jobs that start, end and take a part of a GPU into few GPUs, with a proven bound."""
    from gpuplanner.files import require_file, write_atomically
    from gpuplanner.packing import pack, read_packing

    if out is not None:
        require_file(out, inputs=[file])
    found = pack(read_packing(file), time_limit_s=time_limit, work_limit=work_limit, seed=seed)
    if out is not None:
        text = found.to_csv()
        write_atomically(out, lambda path: path.write_text(text, encoding="utf-8"))
    show(found.to_dict(), as_json=as_json)
    if out is not None and not quiet:
        say(f"written: {out}")
    raise typer.Exit(_EXITS.get(found.stopped_by, Exit.DONE))
