"""The map of the house is true: what a newcomer reads in ``docs/house.md`` and ``CONTRIBUTING.md`` is what there is."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import gpuplanner

PACKAGE = Path(gpuplanner.__file__).parent
MOST_FILES = 20
"""Files on one level of the house, beside its door, that a newcomer can hold in mind."""

COMING = {
    # name → the door that it is to get
    "planner.robust": "plan: a plan for several forecasts",
}
"""Public names that no door reaches yet. The list may only get shorter."""


def sources() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    return sources()


def words(tree: ast.AST) -> set[str]:
    """Every name that code uses."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.name for alias in node.names}
    return found
