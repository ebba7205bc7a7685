"""A notebook that has run, as one page that needs nothing else: no network, no script, no kernel."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpuplanner._optional import import_optional
from gpuplanner._version import __version__
from gpuplanner.errors import ScenarioError, message
from gpuplanner.files.place import require_file
from gpuplanner.files.single import write_atomically
from gpuplanner.names import resolve
from gpuplanner.report import page
from gpuplanner.report.render import cell_text, run_notebook
from gpuplanner.report.words import safe
from gpuplanner.study.bundled import notebook_folder

KINDS = ("text/html", "text/markdown", "image/svg+xml", "text/plain")
"""Of an output, the first of them that it has is shown; charts carry their picture as Markdown."""
WIDGET = "application/vnd.jupyter.widget-view+json"
CONTROLS = "Controls stand here where a kernel runs: gpuplanner notebook opens them."
_STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)
_HEADING = re.compile(r"^(#{1,2}) (.+)\n*")


def write_notebook_page(
    name: str, out: str | Path, parameters: Mapping[str, str | float | bool | None]
) -> Path:
    """Run a notebook, a shipped one by the beginning of its name or one by its path, and write it as a page."""
    source = _found(name)
    require_file(out, inputs=[source])
    with tempfile.TemporaryDirectory() as folder:
        ran = Path(folder) / source.name
        run_notebook(source, ran, parameters)
        html = notebook_page(ran.read_text("utf-8"), source.name, parameters)
    return write_atomically(out, lambda new: new.write_text(html, encoding="utf-8"), inputs=[source])


def notebook_page(
    text: str, name: str, parameters: Mapping[str, str | float | bool | None] | None = None
) -> str:
    """The cells of a notebook, given as its JSON, as a page: a section for each heading, code folded, outputs in full.

    Examples
    --------
    >>> cells = [{"cell_type": "markdown", "source": "# Why?"}, {"cell_type": "markdown", "source": "## So"}]
    >>> '<section id="so"><h2>So</h2>' in notebook_page(json.dumps({"cells": cells}), "why.ipynb")
    True
    """
    title, sections = name, [("", list[str]())]
    for cell in json.loads(text)["cells"]:
        text = cell_text(cell["source"])
        if cell["cell_type"] == "code":
            sections[-1][1].extend(_code(cell, text))
        elif cell["cell_type"] == "markdown":
            heading = _HEADING.match(text)
            if heading and heading[1] == "#":
                title = heading[2]
            elif heading:
                sections.append((heading[2], []))
            sections[-1][1].append(_markdown(_HEADING.sub("", text)))
    body = "\n".join(
        page.section(heading, *parts) if heading else "\n".join(parts) for heading, parts in sections
    )
    facts = {"notebook": name, "gpuplanner": __version__}
    facts |= {key: str(value) for key, value in (parameters or {}).items()}
    return page.render_page(body, title=title, subtitle="", provenance=facts)


def _found(name: str) -> Path:
    """A notebook by its path, or a shipped one by the beginning of its name."""
    if Path(name).suffix == ".ipynb":
        if not Path(name).is_file():
            raise ScenarioError(message(name, "a notebook", "nothing there", "Check the path."))
        return Path(name)
    shipped = [path.stem for path in sorted(notebook_folder().glob("[0-9]*.ipynb"))]
    return notebook_folder() / f"{resolve(name, shipped, what='notebook', error=ScenarioError)}.ipynb"


def _code(cell: Mapping[str, Any], source: str) -> Iterator[str]:
    """What a cell shows, with its code folded above it."""
    yield f'<details class="code"><summary>Code</summary>\n<pre>{safe(source)}</pre>\n</details>'
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        if WIDGET in data:
            yield page.note(CONTROLS)
        elif kind := next((kind for kind in KINDS if kind in data), None):
            shown = cell_text(data[kind])
            yield f"<pre>{safe(shown)}</pre>" if kind == "text/plain" else _STYLE.sub("", shown)


def _markdown(text: str) -> str:
    """Markup of Markdown; without markup of its own, which a page of anybody's notebook must not carry."""
    mistune = import_optional("mistune", extra="report")
    html: str = mistune.create_markdown(escape=True, plugins=["table"])(text)
    return html
