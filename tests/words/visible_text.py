"""Find the texts of the project that users read."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

TEMPLATES = {".html", ".sh", ".yaml", ".conf", ".md", ".txt"}
TABLES = {
    "glossary.csv",
    "source_checks.csv",
    "sources.csv",
    "schema_columns.csv",
    "sheet_columns.csv",
    "study_sheets.csv",
}
Text = tuple[str, int, str]
"""File, line and text."""


def visible_texts(root: Path) -> Iterator[Text]:
    """Yield what users read: literals outside docstrings, help, templates, notebooks and documentation."""
    for path in sorted((root / "gpuplanner").rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.suffix == ".py":
            for line, text in python_texts(path.read_text("utf-8"), help_texts=name.startswith("gpuplanner/cli/")):
                yield name, line, text
        elif path.suffix in TEMPLATES or path.name in TABLES:
            yield from lines_of(name, path.read_text("utf-8"))
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            name, source = path.relative_to(root).as_posix(), "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                yield from lines_of(name, source)
            else:
                for line, text in python_texts(source, comments=True):
                    yield name, line, text
    documents = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]
    for path in [*documents, *sorted((root / "data").glob("*.md")), *sorted((root / "reports").glob("*.md"))]:
        yield from lines_of(path.relative_to(root).as_posix(), path.read_text("utf-8"))


def lines_of(name: str, text: str) -> Iterator[Text]:
    """Yield the lines of a file with their numbers."""
    for number, line in enumerate(text.splitlines(), start=1):
        yield name, number, line


def python_texts(source: str, *, help_texts: bool = False, comments: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the literals of a module that are no docstrings, keys or names; help is a command's docstring.

    A literal of one word is a key, not a text.
    """
    tree = ast.parse(source)
    docstrings = {id(node) for node in docstring_nodes(tree)}
    shown = {id(node) for node in docstring_nodes(tree, commands=True)} if help_texts else set()
    inside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if part is not node
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield node.lineno, "".join(str(part) for part in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            if id(node) in docstrings - shown or (" " not in node.value.strip() and not comments):
                continue
            yield node.lineno, node.value
    if comments:
        for number, line in enumerate(source.splitlines(), start=1):
            if "#" in line:
                yield number, line[line.index("#") :]


def docstring_nodes(tree: ast.Module, *, commands: bool = False) -> Iterator[ast.Constant]:
    """Yield the texts that stand as statements; with ``commands`` only those of commands."""
    if not commands:
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                yield node.value
        return
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and any("command" in ast.dump(one) for one in function.decorator_list):
            first = function.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield first.value
