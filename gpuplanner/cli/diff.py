"""Commands that read what was written: ``diff`` holds a cluster against a plan, ``explain`` opens a figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuplanner.cli.app import Exit, app, put, say
from gpuplanner.cli.options import Given, Json, instant
from gpuplanner.cli.show import show, show_frame

if TYPE_CHECKING:
    from gpuplanner.study import Study


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


@app.command()
def explain(
    study: Annotated[
        str,
        typer.Argument(
            help="Folder of a report or a study, or what can be evaluated: a scenario, a dataset, 'sample'."
        ),
    ],
    number: Annotated[
        str | None, typer.Argument(help="Figure to explain; without, all are listed with their values.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say how a figure of the page comes about: its formula, what stands in it, and the rows behind it."""
    from gpuplanner.plain import to_plain
    from gpuplanner.study.explain import FIGURES, explained, told

    found = _opened(study)
    if number is None:
        every = [explained(found, name) for name in FIGURES]
        if as_json:
            show({one.name: to_plain(one.value) for one in every}, as_json=True)
            return
        show({one.name: one.sentence for one in every}, as_json=False)
        say(f"\ngpuplanner explain {study} {every[0].name} says how the first comes about")
        return
    one = explained(found, number)
    if as_json:
        facts = {
            "name": one.name,
            "label": one.label,
            "value": one.value,
            "unit": one.unit,
            "formula": one.formula,
        }
        show(facts | {"inputs": one.inputs, "rows": one.rows.to_dicts(), "source": one.source}, as_json=True)
        return
    put(f"{one.sentence}\n\n= {one.formula}\n")
    if one.inputs:
        show({name: told(value) for name, value in one.inputs.items()}, as_json=False)
        put("")
    if one.rows.height:
        show_frame(one.rows, as_json=False, title=f"rows, in full in {one.source}")


def _opened(text: str) -> Study:
    """A study that was written, or one that is made now."""
    from gpuplanner.study import evaluate, open_study

    if (Path(text) / "study.json").is_file():
        return open_study(text)
    say(f"evaluating {text} ...")
    return evaluate(Given({}).scenario(text))
