"""The command that holds a cluster against a plan: ``diff``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuplanner.cli.app import Exit, app, put
from gpuplanner.cli.options import Json, instant
from gpuplanner.cli.show import show, show_frame


@app.command()
def diff(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="CURRENT... PLAN",
            help="The cluster as it is ('kubectl get nodes,pods -A -o json', 'scontrol show node' and sacct beside "
            "it, a node list, or another plan.json), and last the plan.json.",
        ),
    ],
    at: Annotated[
        str | None,
        typer.Option(help="Instant of the plan (ISO 8601, UTC if no zone); default: its beginning."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what a plan would do to a cluster as it is: by GPU what goes and comes, by name which jobs have to end."""
    from gpuplanner.study.difference import difference

    if len(files) < 2:
        text = "diff needs the cluster as it is and the plan: gpuplanner diff CURRENT PLAN"
        raise typer.BadParameter(text)
    found = difference(files[:-1], files[-1], instant(at))
    if as_json:
        tables = {"gpus": found.changes.to_dicts(), "victims": found.victims.to_dicts()}
        show(
            {"words": found.words(), **tables, "problems": found.problems, "notes": found.notes}, as_json=True
        )
    else:
        if found.changes.height:
            show_frame(found.changes, as_json=False, title="GPUs of the nodes that change")
        if found.victims.height:
            show_frame(found.victims, as_json=False, title="Jobs at work that have to end")
        for line in found.notes:
            put(f"note: {line}")
        for line in found.problems:
            put(f"problem: {line}")
        put(found.words())
    if found.problems:
        raise typer.Exit(Exit.CHECK_FAILED)
