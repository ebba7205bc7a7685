"""The command that opens notebooks, writes one as a page, and serves them without code: ``notebook``."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from gpuplanner.cli.app import app, put
from gpuplanner.cli.options import Overwrite


@app.command()
def notebook(
    folder: Annotated[Path, typer.Argument(help="Where the notebooks are copied to.")] = Path("notebooks"),
    port: Annotated[
        int, typer.Option(help="Port of the server, which listens on this machine alone.")
    ] = 8888,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser.")] = True,
    token: Annotated[
        str | None, typer.Option(help="Token that the server asks for; default: a new one.")
    ] = None,
    allow_root: Annotated[bool, typer.Option("--allow-root", help="Also as root, as in containers.")] = False,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Serve them without code, controls live (voila).")
    ] = False,
    export: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Run one, such as 04 or a path, and write it as a page that needs nothing."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="With --export: its name. [default: NAME.html]")
    ] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "-p", "--parameter", metavar="NAME=VALUE", help="With --export: a parameter; may be repeated."
        ),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Open the notebooks in JupyterLab, serve them without code, or write one as a page."""
    if export is not None:
        from gpuplanner.views.notebook_page import write_notebook_page

        place = out or Path(f"{Path(export).stem}.html")
        put(str(write_notebook_page(export, place, _parameters(parameter or []))))
        return
    if out is not None or parameter:
        text = "-o and -p go with --export NAME"
        raise typer.BadParameter(text)
    _serve(folder, port, browser=browser, token=token, allow_root=allow_root, dashboard=dashboard)


def _parameters(given: list[str]) -> dict[str, str | float | bool | None]:
    """Parameters of a notebook as people write them: numbers, true and false, null, else text."""
    found: dict[str, str | float | bool | None] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals):
            wrong = f"-p: NAME=VALUE, not {text!r}"
            raise typer.BadParameter(wrong)
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _serve(
    folder: Path, port: int, *, browser: bool, token: str | None, allow_root: bool, dashboard: bool
) -> None:
    """Copy the notebooks that are not there yet, and become the server."""
    import gpuplanner
    from gpuplanner._optional import import_optional
    from gpuplanner.study.bundled import notebook_folder

    import_optional("voila" if dashboard else "jupyterlab", extra="dashboard" if dashboard else "notebook")
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(notebook_folder().glob("*.ipynb")):
        if not (folder / path.name).exists():
            shutil.copy(path, folder / path.name)
    if dashboard:
        # Its template, which asks nobody else, is found as those of Jupyter are.
        place = Path(gpuplanner.__file__).parent / "views" / "served"
        os.environ["JUPYTER_PATH"] = os.pathsep.join(
            filter(None, (str(place), os.environ.get("JUPYTER_PATH")))
        )
        words = ["voila", str(folder), "--template=gpuplanner", "--Voila.ip=127.0.0.1"]
        words += [f"--token={token}" if token else "--token"]
    else:
        words = ["jupyterlab", "--notebook-dir", str(folder), "--ip=127.0.0.1"]
        words += [f"--IdentityProvider.token={token}"] if token else []
        words += ["--allow-root"] if allow_root else []
    words += [f"--port={port}", *([] if browser else ["--no-browser"])]
    os.execv(sys.executable, [sys.executable, "-m", *words])
