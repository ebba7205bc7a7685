"""What one room hands to another has a type: no ``Mapping[str, Any]`` between rooms but where JSON begins and ends."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpuplanner

pytestmark = pytest.mark.lint

PACKAGE = Path(gpuplanner.__file__).parent
OPEN = re.compile(r"\b(?:dict|Mapping|MutableMapping)\[str, (?:typing\.)?Any\]")
"""A mapping of which nobody knows what stands in it."""
JSON_EDGE = {"to_dict", "from_dict", "of_dict", "board_from_plain", "from_plain"}
"""Where a record becomes what JSON holds, or is read from it, field by field."""
OPEN_BY_NATURE = {
    "ingest/dataset.py: Dataset": "its provenance holds what each source says of itself, facts of its own "
    "included, as provenance.json keeps it; other rooms read `stated` and show `summary`"
}
"""Name that crosses rooms with an open mapping all the same → why. The list may only get shorter."""


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def crossing(trees: dict[Path, ast.Module]) -> set[tuple[str, str]]:
    """Room and name of what another room imports, or what a room offers in ``__all__``."""
    found = set()
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gpuplanner."):
                room = str(node.module).split(".")[1]
                found |= {(room, alias.name) for alias in node.names if room != room_of(path)}
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                each = (one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant))
                found |= {(room_of(path), str(name)) for name in each}
    return found


def aliases(trees: dict[Path, ast.Module]) -> set[str]:
    """Other names that modules give to such a mapping."""
    return {
        ast.unparse(node.targets[0])
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.Assign)
        and not isinstance(node.value, ast.Call)
        and OPEN.search(ast.unparse(node.value))
    }


def annotations(node: ast.AST) -> Iterator[ast.expr]:
    """Of a function its parameters and what it returns; of a class its fields and its public functions."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        if node.name not in JSON_EDGE:
            every = ast.walk(node.args)
            yield from (one.annotation for one in every if isinstance(one, ast.arg) and one.annotation)
            yield from (node.returns,) if node.returns else ()
    elif isinstance(node, ast.AnnAssign):
        yield node.annotation
    elif isinstance(node, ast.ClassDef):
        for each in node.body:
            name = getattr(each, "name", None) or ast.unparse(getattr(each, "target", ast.Name("")))
            if not name.startswith("_") or name == "__init__":
                yield from annotations(each)


def test_no_open_mapping_goes_from_room_to_room(trees):
    known, other_names = crossing(trees), aliases(trees)
    found = defaultdict(set)
    for path, tree in trees.items():
        for node in tree.body:
            name = getattr(node, "name", None) or ast.unparse(getattr(node, "target", ast.Name("")))
            if (room_of(path), name) not in known:
                continue
            for annotation in annotations(node):
                said = {one.id for one in ast.walk(annotation) if isinstance(one, ast.Name)}
                if OPEN.search(ast.unparse(annotation)) or said & other_names:
                    found[f"{path.relative_to(PACKAGE).as_posix()}: {name}"].add(ast.unparse(annotation))
    unexpected = {name: told for name, told in found.items() if name not in OPEN_BY_NATURE}
    assert unexpected == {}, "make it a frozen dataclass; gpuplanner.core.serialization writes it as JSON"
    assert set(OPEN_BY_NATURE) - set(found) == set(), "these have their types: take them off the list"
