"""Options that several commands share, so that they read and behave alike."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def drawable(path: Path | None) -> Path | None:
    """A name that says what to draw; the rest is no name of a chart."""
    if path is not None and path.suffix not in (".html", ".svg"):
        text = "the name must end in .html or .svg"
        raise typer.BadParameter(text)
    return path


Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Out = Annotated[Path, typer.Option("-o", "--out", help="Folder or file to write.")]
Tz = Annotated[
    str | None, typer.Option("--tz", help="Zone of naive times in the source, or of calendar months.")
]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Seed of everything random.")]
TimeLimit = Annotated[float | None, typer.Option("--time-limit", min=0.1, help="Seconds for the planner.")]
Currency = Annotated[str | None, typer.Option("--currency", help="ISO 4217 code of the price.")]
SmallestGroup = Annotated[
    int,
    typer.Option(
        "--smallest-group", metavar="N", min=0,
        help="For output that is shared: tenants of fewer people stand together, and nobody is named. 0: as it is.",
    ),
]  # fmt: skip
Quiet = Annotated[bool, typer.Option("--quiet", help="No talk on stderr.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a field of the scenario; may be repeated."),
]
ScenarioPath = Annotated[
    str,
    typer.Argument(
        metavar="SCENARIO",
        help="A scenario YAML file, a folder written by 'gpuplanner ingest', or 'sample'.",
    ),
]
Board = Annotated[
    str | None,
    typer.Option("--board", help="Board of the catalogue, else the data's own; a unique prefix will do."),
]
