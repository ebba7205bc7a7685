"""The package has one limit of size: its lines of code, which only fall."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.lint

MAX_LINES_OF_CODE = 57_913
"""Lines of code of the package. Lower it with each removal; raise it only by an allowance that was agreed on."""

UNUSED_LINES = 150
"""How far the package may lie below the limit before the limit has to follow."""


def docstring_of(node: ast.AST) -> ast.stmt | None:
    """Return the statement that holds the docstring of a module, class or function."""
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    if not node.body or not isinstance(statement := node.body[0], ast.Expr):
        return None
    is_text = isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str)
    return statement if is_text else None


def docstring_and_import_lines(tree: ast.Module) -> Iterator[int]:
    """Yield the numbers of all lines of docstrings and imports."""
    for node in ast.walk(tree):
        for statement in (
            docstring_of(node),
            node if isinstance(node, ast.Import | ast.ImportFrom) else None,
        ):
            if statement is not None:
                yield from range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)


def count_lines_of_code(text: str) -> int:
    """Count the lines of a module without blank lines, comments, docstrings and imports."""
    left_out = set(docstring_and_import_lines(ast.parse(text)))
    return sum(
        1
        for number, line in enumerate(text.splitlines(), start=1)
        if number not in left_out and line.strip() and not line.lstrip().startswith("#")
    )


def test_the_package_stays_within_its_limit(root: Path):
    modules = sorted((root / "gpuplanner").rglob("*.py"))
    lines = sum(count_lines_of_code(path.read_text("utf-8")) for path in modules)
    summary = f"{lines:,} lines of code in {len(modules)} modules"
    assert lines <= MAX_LINES_OF_CODE, f"{summary}: remove what is not needed"
    assert lines > MAX_LINES_OF_CODE - UNUSED_LINES, f"{summary}: lower MAX_LINES_OF_CODE to {lines:_}"


def test_lines_are_counted_without_docstrings_comments_and_imports():
    text = (
        '"""A module.\n\nIn three lines."""\n\nimport json\nfrom os import (\n    path,\n)\n\n\n'
        'def load():\n    """Load it."""\n    # because\n    return json.loads(\n        "1"\n    )\n'
    )
    assert count_lines_of_code(text) == 4
