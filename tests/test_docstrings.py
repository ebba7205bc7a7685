"""What a package makes public has a docstring."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpuplanner

pytestmark = pytest.mark.lint

PACKAGE = Path(gpuplanner.__file__).parent


def offered() -> Iterator[tuple[str, object]]:
    """What the rooms list in ``__all__``, by the place where it is written."""
    for path in sorted(PACKAGE.rglob("__init__.py")):
        room = importlib.import_module(".".join(path.parent.relative_to(PACKAGE.parent).parts))
        for name in getattr(room, "__all__", ()):
            thing = getattr(room, name)
            for each in (thing, getattr(thing, "py_func", None), inspect.unwrap(thing) if callable(thing) else None):
                if each is not None and not inspect.ismodule(each):
                    yield name, each


@pytest.fixture(scope="module")
def public() -> set[tuple[str, str]]:
    """Module and qualified name of what a room offers."""
    return {(thing.__module__, thing.__qualname__) for _, thing in offered() if hasattr(thing, "__qualname__")}


def functions(node: ast.AST, module: str, outer: str, public: set[tuple[str, str]]) -> Iterator[tuple[str, bool, str]]:
    """Every function of a module: where it is, whether it is public, and its docstring."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If | ast.Try):
            yield from functions(child, module, outer, public)
        if not isinstance(child, ast.FunctionDef | ast.ClassDef):
            continue
        name = f"{outer}.{child.name}".lstrip(".")
        of_class = (module, outer) in public and not re.match(r"_(?!_init__)", child.name)
        is_public = module.startswith("gpuplanner.core.schema") or (module, name) in public or of_class
        if isinstance(child, ast.FunctionDef) or not is_public:
            yield f"{module}:{child.lineno} {name}", is_public, ast.get_docstring(child) or ""
        if isinstance(child, ast.ClassDef) or not is_public:
            yield from functions(child, module, name, public)


@pytest.fixture(scope="module")
def documented(public, trees) -> list[tuple[str, bool, str]]:
    found: list[tuple[str, bool, str]] = []
    for path, tree in trees.items():
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        found += functions(tree, module, "", public)
    return found


def test_what_a_room_offers_has_a_docstring(documented):
    named = ((where, where.rpartition(" ")[2].rpartition(".")[2], text) for where, offer, text in documented if offer)
    assert [where for where, name, text in named if not text and not name.startswith("_")] == []
