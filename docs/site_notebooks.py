"""A hook of mkdocs: notebooks are run where the site is built, and stand in it as pages; their sources stay clean."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from gpuplanner.notebook.notebook_pages import write_notebook_page

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page of each notebook, to which ``notebooks.md`` leads."""
    from mkdocs.structure.files import File

    for source in sorted(NOTEBOOKS.glob("[0-9]*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            page = write_notebook_page(str(source), Path(folder) / "page.html", {})
            made = File.generated(config, f"notebooks/{source.stem}.html", content=page.read_text("utf-8"))
            files.append(made)
    return files
