"""The command that sizes a job before it runs: ``size``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuplanner.cli.app import app, put, say
from gpuplanner.cli.options import Json
from gpuplanner.cli.show import plain, show, show_frame

if TYPE_CHECKING:
    import polars as pl

    from gpuplanner.sizing.predict import PeakModel

Rows = Annotated[
    Path | None,
    typer.Option(
        metavar="ROWS.csv", help="Predict the peak of each row: one run a row, measured columns not needed."
    ),
]


@app.command()
def size(
    table: Rows = None,
    evaluate: Annotated[
        Path | None,
        typer.Option(
            metavar="ROWS.csv", help="Score predictions of measured runs, each source left out in turn."
        ),
    ] = None,
    leave: Annotated[
        str | None, typer.Option(help="With --evaluate: leave out and score this source.")
    ] = None,
    learn: Annotated[
        Path | None,
        typer.Option(
            metavar="RUNS.csv", help="Learn from one's own runs: five rows of a tool move its knobs."
        ),
    ] = None,
    model_file: Annotated[
        Path | None,
        typer.Option(metavar="MODEL.json", help="What --learn wrote; by default what is shipped."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="File to write, with --table or --learn.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict the memory of jobs from model and tool before they run, with a bound that says how sure it is."""
    asked = [
        name for name, value in (("--table", table), ("--evaluate", evaluate), ("--learn", learn)) if value
    ]
    if len(asked) != 1:
        text = f"one of --table, --evaluate and --learn; got {' and '.join(asked) or 'none'}"
        raise typer.BadParameter(text)
    if leave is not None and evaluate is None:
        text = "--leave goes with --evaluate"
        raise typer.BadParameter(text)
    if table is not None:
        _predict(table, out, _model(model_file), as_json=as_json)
    elif learn is not None:
        _learn(learn, out, _model(model_file), as_json=as_json)
    elif evaluate is not None:
        _evaluate(evaluate, leave, as_json=as_json)


def _predict(path: Path, out: Path | None, model: PeakModel, *, as_json: bool) -> None:
    from gpuplanner.files import require_file, write_atomically
    from gpuplanner.sizing.predict import predict_table

    rows = _read(path)
    if out is not None:
        require_file(out, inputs=[path])
    found = predict_table(rows, model)
    if out is not None:
        write_atomically(out, lambda place: found.write_csv(place), inputs=[path])
        left = int((found["level"] == "not predicted").sum())
        say(f"written: {out}; {len(found)} rows, {left} of them not predicted")
    elif as_json:
        show({"rows": plain(found.to_dicts())}, as_json=True)
    else:
        show_frame(
            found.drop(name for name in rows.columns if name not in ("model", "method")), as_json=False
        )


def _learn(path: Path, out: Path | None, model: PeakModel, *, as_json: bool) -> None:
    from gpuplanner.files import require_file, write_atomically
    from gpuplanner.sizing.predict import learned, measured_runs, peak_model_text

    if out is None:
        text = "--learn goes with -o MODEL.json"
        raise typer.BadParameter(text)
    require_file(out, inputs=[path])
    runs, _ = measured_runs(_read(path))
    after = learned(model, runs)
    write_atomically(out, lambda place: place.write_text(peak_model_text(after), "utf-8"), inputs=[path])
    told = {
        tool: {"rows": runs.sources.count(tool), "moved": after.tools.get(tool) != model.tools.get(tool)}
        for tool in sorted(set(runs.sources))
    }
    say(f"written: {out}")
    show({"tools": told} if as_json else told, as_json=as_json)


def _evaluate(path: Path, leave: str | None, *, as_json: bool) -> None:
    import polars as pl

    from gpuplanner.sizing.predict import evaluate

    found: dict[str, Any] = evaluate(_read(path), leave)
    if as_json:
        show(plain(found), as_json=True)
        return
    for name in ("sources", "methods", "sizes", "levels", "undecided"):
        if found[name]:
            show_frame(pl.DataFrame(found[name], infer_schema_length=None), as_json=False, title=name)
    for name in ("overall", "decided", "generic", "out_of_memory", "not_predicted"):
        put(f"{name}")
        show(found[name] or {}, as_json=False)


def _model(path: Path | None) -> PeakModel:
    from gpuplanner.errors import TraceFormatError
    from gpuplanner.files import read_text
    from gpuplanner.sizing.predict import read_peak_model, shipped_model

    if path is None:
        return shipped_model()
    return read_peak_model(read_text(path, error=TraceFormatError, what="peak model"), where=path.name)


def _read(path: Path) -> pl.DataFrame:
    """A CSV table, every column as text."""
    import polars as pl

    from gpuplanner.errors import TraceFormatError, message

    try:
        table = pl.read_csv(path, infer_schema=False)
    except (OSError, pl.exceptions.PolarsError, UnicodeDecodeError) as error:
        text = message(
            f"table {path.name}", "a readable CSV file with a header", str(error).splitlines()[0], "Check it."
        )
        raise TraceFormatError(text) from error
    return table
