"""What each room may weigh: lines of code, modules and public names, held by ``tests/house_budget.csv``.

``python -m tests.house_budget`` prints the rooms as they are beside their budget; ``--lower`` takes every budget down
to what its room needs. No command raises one: that is done by hand, with the reason in the row.
"""

from __future__ import annotations

import ast
import csv
import sys
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields, replace
from importlib import import_module
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "gpuplanner"
BUDGET = Path(__file__).with_name("house_budget.csv")


@dataclass(frozen=True)
class Weight:
    """Lines of code without blank lines, comments, docstrings and imports; files; names in ``__all__`` lists."""

    code: int = 0
    modules: int = 0
    public_names: int = 0

    def __add__(self, other: Weight) -> Weight:
        return Weight(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Row:
    """The budget of one room, and why it was raised, if it ever was."""

    room: str
    most: Weight
    reason: str


def _docstring(node: ast.AST) -> ast.stmt | None:
    if (
        not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        or not node.body
    ):
        return None
    first = node.body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return first if is_text and isinstance(first.value.value, str) else None


def _not_code(tree: ast.Module) -> Iterator[int]:
    """Lines of docstrings and imports."""
    for node in ast.walk(tree):
        for each in (_docstring(node), node if isinstance(node, ast.Import | ast.ImportFrom) else None):
            if each is not None:
                yield from range(each.lineno, (each.end_lineno or each.lineno) + 1)


def weight_of(path: Path) -> Weight:
    """What one module weighs.

    Examples
    --------
    >>> weight_of(Path(__file__)).modules
    1
    """
    text = path.read_text("utf-8")
    tree = ast.parse(text)
    left_out = set(_not_code(tree))
    code = sum(
        1
        for number, line in enumerate(text.splitlines(), start=1)
        if number not in left_out and line.strip() and not line.lstrip().startswith("#")
    )
    return Weight(code, 1)


def _offered(path: Path, package: Path) -> Weight:
    """Names that a room, or a room in it, lists in ``__all__``."""
    if path.name != "__init__.py":
        return Weight()
    room = import_module(".".join(path.parent.relative_to(package.parent).parts))
    return Weight(public_names=len(getattr(room, "__all__", ())))


def rooms(package: Path = PACKAGE) -> dict[str, Weight]:
    """Every room, and the ground floor's single files as ``ground``, by name."""
    found: dict[str, Weight] = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        room = parts[0] if len(parts) > 1 else "ground"
        found[room] = found.get(room, Weight()) + weight_of(path) + _offered(path, package)
    return found


def budget(path: Path = BUDGET) -> list[Row]:
    """The rows of the budget."""
    names = [each.name for each in fields(Weight)]
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Row(row["room"], Weight(*(int(row[name]) for name in names)), row["reason"])
            for row in csv.DictReader(file)
        ]


def lowered(rows: list[Row], now: dict[str, Weight]) -> list[Row]:
    """The same rows with no budget above what its room weighs now; rooms that are gone leave, none is raised."""
    return [
        replace(row, most=Weight(*map(min, astuple(row.most), astuple(now[row.room]))))
        for row in rows
        if row.room in now
    ]


def write(rows: list[Row], path: Path = BUDGET) -> None:
    """Put the rows into the file, by name of the room."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["room", *(each.name for each in fields(Weight)), "reason"])
        writer.writerows(
            (row.room, *astuple(row.most), row.reason) for row in sorted(rows, key=lambda row: row.room)
        )


if __name__ == "__main__":
    now = rooms()
    if "--lower" in sys.argv:
        write(lowered(budget(), now))
    allowed = {row.room: row.most for row in budget()}
    for name, weight in {**now, "all": sum(now.values(), Weight())}.items():
        print(f"{name:12} {weight} of {allowed.get(name)}")  # noqa: T201 - a tool for the terminal
