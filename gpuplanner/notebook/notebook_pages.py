"""Notebooks as self-contained HTML pages."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpuplanner._version import __version__
from gpuplanner.core.errors import ScenarioError, resolve_name
from gpuplanner.core.libraries_plugins_and_workers import import_optional
from gpuplanner.core.output_manifests_and_overwrite_checks import require_file
from gpuplanner.core.output_writing import write_atomically
from gpuplanner.core.stage_cache_and_data_folders import notebook_folder
from gpuplanner.report import html_page as page
from gpuplanner.report.number_formats_and_glossary import escape_html
from gpuplanner.report.report_rendering import join_cell_text, run_notebook

OUTPUT_MIME_TYPES = ("text/html", "text/markdown", "image/svg+xml", "text/plain")
"""MIME types of cell outputs in order of preference; charts have their image as Markdown."""
WIDGET_MIME_TYPE = "application/vnd.jupyter.widget-view+json"
"""MIME type of a cell output that is an ipywidgets control."""
CONTROLS_NEED_KERNEL = "Controls need a kernel: run gpuplanner notebook to open this notebook with them."
"""Text of an HTML page in place of controls."""
_STYLE_PATTERN = re.compile(r"<style>.*?</style>", re.DOTALL)
"""Style element of HTML."""
_HEADING_PATTERN = re.compile(r"^(#{1,2}) (.+)\n*")
"""Markdown heading of the first or second level at the start of a cell."""


def write_notebook_page(name: str, out: str | Path, parameters: Mapping[str, str | float | bool | None]) -> Path:
    """Run a notebook and write it as a self-contained HTML page.

    Parameters
    ----------
    name : str
        Path of a notebook, or beginning of the name of a shipped one.
    out : str or Path
        HTML file.
    parameters : mapping
        Values of its parameters by name.

    Returns
    -------
    Path
        The HTML file.
    """
    source = _find_notebook(name)
    require_file(out, inputs=[source])
    with tempfile.TemporaryDirectory() as folder:
        executed = Path(folder) / source.name
        run_notebook(source, executed, parameters)
        html = notebook_page(executed.read_text("utf-8"), source.name, parameters)
    return write_atomically(out, lambda new_path: new_path.write_text(html, encoding="utf-8"), inputs=[source])


def notebook_page(text: str, name: str, parameters: Mapping[str, str | float | bool | None] | None = None) -> str:
    """Make an HTML page of a notebook: a section for each heading, code folded, outputs in full.

    Parameters
    ----------
    text : str
        JSON of the notebook.
    name : str
        File name, for the provenance.
    parameters : mapping, optional
        Values of its parameters by name.

    Returns
    -------
    str
        HTML.

    Examples
    --------
    >>> cells = [{"cell_type": "markdown", "source": "# Why?"}, {"cell_type": "markdown", "source": "## So"}]
    >>> '<section id="so"><h2>So</h2>' in notebook_page(json.dumps({"cells": cells}), "why.ipynb")
    True
    """
    title, sections = name, [("", list[str]())]
    for cell in json.loads(text)["cells"]:
        text = join_cell_text(cell["source"])
        if cell["cell_type"] == "code":
            sections[-1][1].extend(_code_cell_html(cell, text))
        elif cell["cell_type"] == "markdown":
            heading = _HEADING_PATTERN.match(text)
            if heading and heading[1] == "#":
                title = heading[2]
            elif heading:
                sections.append((heading[2], []))
            sections[-1][1].append(_markdown_html(_HEADING_PATTERN.sub("", text)))
    body = "\n".join(page.section(heading, *parts) if heading else "\n".join(parts) for heading, parts in sections)
    facts = {"notebook": name, "gpuplanner": __version__}
    facts |= {key: str(value) for key, value in (parameters or {}).items()}
    return page.render_page(body, title=title, subtitle="", provenance=facts)


def _find_notebook(name: str) -> Path:
    """Find a notebook by its path, or a shipped one by the beginning of its name."""
    if Path(name).suffix == ".ipynb":
        if not Path(name).is_file():
            raise ScenarioError(name, "a notebook", "no such file", "Fix the path.")
        return Path(name)
    shipped = [path.stem for path in sorted(notebook_folder().glob("[0-9]*.ipynb"))]
    return notebook_folder() / f"{resolve_name(name, shipped, subject='notebook', error=ScenarioError)}.ipynb"


def _code_cell_html(cell: Mapping[str, Any], source: str) -> Iterator[str]:
    """Yield the HTML of a code cell: its code, folded, and its outputs."""
    yield f'<details class="code"><summary>Code</summary>\n<pre>{escape_html(source)}</pre>\n</details>'
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        if WIDGET_MIME_TYPE in data:
            yield page.note(CONTROLS_NEED_KERNEL)
        elif output_type := next((output_type for output_type in OUTPUT_MIME_TYPES if output_type in data), None):
            content = join_cell_text(data[output_type])
            yield (
                f"<pre>{escape_html(content)}</pre>" if output_type == "text/plain" else _STYLE_PATTERN.sub("", content)
            )


def _markdown_html(text: str) -> str:
    """Convert Markdown to HTML; embedded HTML is escaped, since the notebook may come from anybody."""
    mistune = import_optional("mistune", extra="report")
    html: str = mistune.create_markdown(escape=True, plugins=["table"])(text)
    return html
