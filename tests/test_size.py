"""The package has one limit of size: its lines of code, which only fall."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.lint

MAX_LINES_OF_CODE = 61_308
"""Lines of code of the package. Lower it with each removal; raise it only by an allowance that was agreed on."""

UNUSED_LINES = 150
"""How far the package may lie below the limit before the limit has to follow."""


def docstring_and_import_lines(tree: ast.Module) -> Iterator[int]:
    """Yield the numbers of all lines of imports and of docstrings, those under constants and fields included."""
    for node in ast.walk(tree):
        is_text = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


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
        'MAX = 3\n"""Most of them."""\n\n\n'
        'def load():\n    """Load it."""\n    # because\n    return json.loads(\n        "1"\n    )\n'
    )
    assert count_lines_of_code(text) == 5
