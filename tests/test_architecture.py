"""The package keeps its map: a class name has one meaning, and every public name serves a command or a notebook."""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpuplanner

pytestmark = pytest.mark.lint

PACKAGE = Path(gpuplanner.__file__).parent

TOOLS = ("docs/make_reference.py", "docs/make_forecast.py", "data/make_sample.py", "benchmarks/memory_fit/fitting.py")
"""What the project itself runs on its own package, beside commands and notebooks."""


ENTRY = re.compile(r"[a-z_]+(?:\.[a-z_]+)+:(\w+)")
"""A name in a module that is loaded when it is used, ``public.pai:read_pai``."""


SOURCE_TABLE = PACKAGE / "ingest" / "sources.csv"
"""The table of sources, which names the reader of each kind of files."""


def words(tree: ast.AST) -> set[str]:
    """Names that code uses, whatever they belong to."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and (entry := ENTRY.fullmatch(str(node.value))):
            found.add(entry[1])
    return found


def named(node: ast.stmt) -> list[str]:
    """Names that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
    return []


def code_of(notebook: Path) -> ast.Module:
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    lines = [line for cell in cells if cell["cell_type"] == "code" for line in "".join(cell["source"]).split("\n")]
    return ast.parse("\n".join(line for line in lines if not line.lstrip().startswith(("%", "!"))))


def recipes(root: Path) -> set[str]:
    """Names that the examples for contributors use; the tests run them."""
    text = (root / "docs" / "where_to_change.md").read_text("utf-8")
    return set().union(*(words(ast.parse(code)) for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL)))


def said_at_doors(root: Path, trees: dict[Path, ast.Module]) -> set[str]:
    """Names that commands, notebooks and the project's own tools use, and what modules run as they load."""
    said = set().union(*(words(code_of(path)) for path in (root / "notebooks").glob("*.ipynb")))
    said |= set().union(*(words(ast.parse((root / tool).read_text("utf-8"))) for tool in TOOLS))
    for path, tree in trees.items():
        for node in tree.body:
            if path.is_relative_to(PACKAGE / "cli"):
                said |= words(node) | set(named(node))
            elif isinstance(node, ast.Expr) or named(node) == ["__getattr__"]:  # which Python calls by itself
                said |= words(node)
    readers = {entry[1] for entry in re.finditer(r"[a-z_]+(?:\.[a-z_]+)+:(\w+)", SOURCE_TABLE.read_text("utf-8"))}
    return said | readers | recipes(root) | {"SOURCE"}  # readers are found by this name


def reached(root: Path, trees: dict[Path, ast.Module]) -> set[str]:
    """Names that are used by what a door uses, however many steps behind it."""
    bodies: defaultdict[str, set[str]] = defaultdict(set)
    for tree in trees.values():
        for node in tree.body:
            if "__all__" not in (names := named(node)):
                for name in names:
                    bodies[name] |= words(node)
    found: set[str] = set()
    todo = list(said_at_doors(root, trees))
    while todo:
        if (name := todo.pop()) not in found:
            found.add(name)
            todo += bodies.get(name, ())
    return found


def public(trees: dict[Path, ast.Module]) -> Iterator[tuple[str, str]]:
    """Module and name of every public function and class."""
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                yield path.relative_to(PACKAGE).with_suffix("").as_posix(), node.name


def test_every_public_name_is_reached_from_a_door(root, trees):
    known = reached(root, trees)
    unreached = {f"{module}: {name}" for module, name in public(trees) if name not in known}
    assert unreached == set(), "give it a command or a notebook, or take it out"


def test_a_class_name_has_one_meaning(trees):
    homes = defaultdict(list)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(path.relative_to(PACKAGE).as_posix())
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/where_to_change.md", "CONTRIBUTING.md", "README.md"])
def test_files_that_the_map_names_are_there(root, page):
    text = (root / page).read_text("utf-8")
    named_files = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|csv|md)|[a-z_]+\.csv|[a-z_]+/scenario\.py)`", text)
    homes = (root, PACKAGE, PACKAGE / "hardware" / "facts")
    assert [name for name in named_files if not any((home / name).is_file() for home in homes)] == []
