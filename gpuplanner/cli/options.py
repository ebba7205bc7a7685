"""Options that several commands share, so that they read and behave alike; those of a scenario come from its rows."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from gpuplanner.files.ours import allow_overwriting
from gpuplanner.knobs import knobs_of
from gpuplanner.scenario import Scenario


def drawable(path: Path | None) -> Path | None:
    """A name that says what to draw; the rest is no name of a chart."""
    if path is not None and path.suffix not in (".html", ".svg"):
        text = "the name must end in .html or .svg"
        raise typer.BadParameter(text)
    return path


def instant(text: str | None) -> datetime | None:
    """An instant that somebody gave; UTC if it has no zone."""
    if text is None:
        return None
    try:
        given = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return given if given.tzinfo is not None else given.replace(tzinfo=UTC)


def of_row(name: str, **how: Any) -> Any:  # noqa: ANN401 - what typer takes
    """The option of a field of a scenario, as its row says; further arguments are typer's."""
    row = knobs_of(Scenario)[name]
    return typer.Option(row.flag, **({"help": row.help} | how))


Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Out = Annotated[Path, typer.Option("-o", "--out", help="Folder or file to write.")]
Tz = Annotated[str | None, typer.Option("--tz", help="Zone of naive times in the source.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Seed of everything random.")]
SmallestGroup = Annotated[int, of_row("smallest_group", metavar="N", min=0)]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Replace files that gpuplanner did not write.", callback=allow_overwriting,
        expose_value=False,
    ),
]  # fmt: skip
Quiet = Annotated[bool, typer.Option("--quiet", help="No talk on stderr.")]
WorkersAsked = Annotated[
    str | None,
    typer.Option(
        "--workers",
        metavar="N|ADDRESS",
        help="Processes, or a Dask scheduler such as tcp://host:8786; the figures are the same.",
    ),
]
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
    str | None, typer.Option("--board", help="Board of the catalogue; a unique prefix will do.")
]
GpuModels = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu-model",
        metavar="WORD=MODEL[:PROFILE]",
        help="GPU model, or MIG profile of one, that a word of the source means.",
    ),
]


@dataclass(frozen=True)
class Given:
    """What a command was told of a scenario: fields by options of their own, and assignments by ``--set``."""

    fields: Mapping[str, Any]
    assignments: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything was told."""
        return bool(self.fields or self.assignments)

    def scenario(self, text: str) -> Scenario:
        """Make a scenario of a YAML file, of a trace folder, or of the word ``sample``, and change what was told."""
        path = Path(text)
        if text == "sample":
            found = Scenario()
        elif path.is_dir():
            from gpuplanner.study.decision.beginning import usual_path

            found = Scenario(name=path.name, data=str(path), path=usual_path(path))
        else:
            found = Scenario.from_yaml(path)
        return replace(found.with_text(self.assignments), **self.fields)


def stated_models(texts: list[str] | None) -> dict[str, str] | None:
    """GPU models by the words of a source, as the user gave them; None if none were given."""
    found = {}
    for text in texts or []:
        word, equals, name = text.partition("=")
        if not (equals and word and name):
            problem = f"--gpu-model takes WORD=MODEL or WORD=MODEL:PROFILE, not {text!r}"
            raise typer.BadParameter(problem)
        found[word] = name
    return found or None


def workers_of(text: str | None, otherwise: int = 1) -> int | str:
    """A number of processes, or the address of a scheduler, as somebody gave it."""
    if text is None:
        return otherwise
    if "://" in text:
        return text
    if text.isdecimal() and int(text) > 0:
        return int(text)
    reason = f"--workers: expected a number from 1 on, or an address such as tcp://host:8786; got {text!r}"
    raise typer.BadParameter(reason)


def takes(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each of some fields of a scenario, and ``--set``, where it has ``given``."""
    rows = knobs_of(Scenario)

    def expanded(command: Callable[..., None]) -> Callable[..., None]:
        asked = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None,
                              annotation=Annotated[rows[name].kinds[0] | None, of_row(name)])
            for name in names
        ]  # fmt: skip
        asked.append(
            inspect.Parameter("assignments", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Set)
        )
        parameters = []
        for own in inspect.signature(command, eval_str=True).parameters.values():
            parameters += asked if own.name == "given" else [own.replace(kind=inspect.Parameter.KEYWORD_ONLY)]

        @functools.wraps(command)
        def told(**values: Any) -> None:  # noqa: ANN401 - what typer read
            fields = {name: value for name in names if (value := values.pop(name)) is not None}
            command(given=Given(fields, tuple(values.pop("assignments") or ())), **values)

        told.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        told.__annotations__ = {one.name: one.annotation for one in parameters}
        return told

    return expanded
