"""Names of the package that can be counted: each rule has a number by package, which only falls.

Run it as a program to list what it counts: ``python tests/test_names.py gpuplanner/planner``.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.lint

PACKAGE = Path(__file__).parents[1] / "gpuplanner"

STOP_LIST = frozenset({
    "again", "alike", "alone", "apart", "asked", "back", "beside", "come", "each", "else", "found", "gone",
    "held", "here", "it", "its", "known", "mine", "more", "most", "one", "other", "others", "own", "place",
    "rest", "said", "same", "seen", "that", "there", "this", "told", "way", "what", "when", "where", "which",
    "who", "whose",
})  # fmt: skip
"""Pronouns, adverbs and participles that name nothing: no function, parameter, variable or field."""

PARTICIPLES = frozenset({
    "begun", "born", "bought", "bound", "broken", "brought", "built", "cast", "caught", "chosen", "done",
    "drawn", "driven", "fallen", "found", "given", "gone", "grown", "heard", "held", "hidden", "kept", "known",
    "left", "lent", "lost", "made", "meant", "met", "moved", "paid", "read", "said", "seen", "sent", "shown",
    "shut", "sold", "spent", "split", "spoken", "stood", "sworn", "taken", "taught", "thought", "thrown",
    "told", "torn", "understood", "won", "worn", "woven", "written",
})  # fmt: skip
"""Irregular participles; the others end in ``ed``."""

MAX_MODULES = 3
"""Modules that may define functions of one name."""

PROTOCOLS = frozenset({
    "to_dict", "from_dict", "_repr_html_", "_repr_mimebundle_", "read", "main", "question",
    "waits", "forecast", "costs", "save", "find_faults",
})  # fmt: skip
"""Functions that several modules define for the same callers: of serialization, of notebooks, of readers; and the
methods by which a cluster and a study are asked the same, and panels check their controls."""

EXCEPTIONS: frozenset[tuple[str, str]] = frozenset(
    {
        ("decision/decision_types.py", "what"),  # a key of the JSON that users read
        ("decision/decision_types.py", "who"),  # a key of the JSON that users read
        ("decision/savings_track_record.py", "seen"),  # a key of the ledger of savings on disk
        ("ingest/quality_report.py", "what"),  # a key of the quality report that users read
        ("ingest/source_registry.py", "read"),  # the imperative, as in pandas and polars
        ("notebook/forecast_and_cost_views.py", "expected"),  # called by notebooks
        ("notebook/cluster.py", "read"),  # the imperative, as in pandas and polars
        ("notebook/layout_views.py", "asked"),  # called by notebooks
        ("planner/fleet_plans_and_comparisons.py", "bound"),  # the noun of optimization
        ("report/chart_rendering.py", "fitted"),  # the twin of a function in page.js
    }
)
"""Module and name of what is right as it is, each with its reason beside it."""


class Violation(NamedTuple):
    """A name that a rule counts."""

    rule: str
    package: str
    module: str
    line: int
    name: str


@cache
def module_trees() -> Mapping[str, ast.Module]:
    """Parse all modules of the package, by their paths below it."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text("utf-8")) for path in paths}


@cache
def project_classes() -> frozenset[str]:
    """List the classes that the package defines, without private ones."""
    nodes = (node for tree in module_trees().values() for node in ast.walk(tree))
    return frozenset(node.name for node in nodes if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))


def package_of(module: str) -> str:
    return module.split("/")[0] if "/" in module else "gpuplanner"


def bindings(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the names that a module binds: functions, parameters, variables and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno


def parameters_without_their_class(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield parameters of a class of the package whose name has no word of it."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.arg) or not isinstance(node.annotation, ast.Name):
            continue
        class_name = node.annotation.id
        if class_name not in project_classes():
            continue
        words = {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", class_name)}
        parameter_words = {word.removesuffix("s") for word in node.arg.strip("_").split("_")}
        if not parameter_words & {word.removesuffix("s") for word in words}:
            yield f"{node.arg}: {class_name}", node.lineno


def constants(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    """Yield name, value and line of the constants of a module."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id.isupper():
                    yield target.id, ast.dump(node.value), node.lineno


def is_bare_participle(name: str) -> bool:
    word = name.strip("_")
    is_regular = bool(re.fullmatch(r"[a-z]{3,}ed", word)) and not word.endswith("eed")
    return "_" not in word and (word in PARTICIPLES or is_regular)


def find_violations() -> Iterator[Violation]:
    """Yield what each rule counts."""
    values: dict[str, set[str]] = defaultdict(set)
    constant_places: dict[str, list[tuple[str, int]]] = defaultdict(list)
    function_places: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for module, tree in module_trees().items():
        package = package_of(module)
        for name, line in bindings(tree):
            if name.strip("_").lower() in STOP_LIST:
                yield Violation("stop list", package, module, line, name)
        for name, line in parameters_without_their_class(tree):
            yield Violation("parameter without its class", package, module, line, name)
        for name, value, line in constants(tree):
            values[name].add(value)
            constant_places[name].append((module, line))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                function_places[node.name].append((module, node.lineno))
                if is_bare_participle(node.name):
                    yield Violation("bare participle", package, module, node.lineno, node.name)
    for name, places in constant_places.items():
        if len(values[name]) > 1:
            for module, line in places:
                yield Violation("constant with two values", package_of(module), module, line, name)
    for name, places in function_places.items():
        is_dunder = name.startswith("__") and name.endswith("__")
        if len({module for module, _ in places}) > MAX_MODULES and not is_dunder and name not in PROTOCOLS:
            for module, line in places:
                yield Violation("function in many modules", package_of(module), module, line, name)


def count_violations(violations: Iterable[Violation]) -> dict[str, dict[str, int]]:
    """Count violations by rule and package, without exceptions."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for violation in violations:
        if (violation.module, violation.name) not in EXCEPTIONS:
            counts[violation.rule][violation.package] += 1
    return {rule: dict(sorted(by_package.items())) for rule, by_package in sorted(counts.items())}


MAX_VIOLATIONS: dict[str, dict[str, int]] = {}  # fmt: skip
"""Violations by rule and package. Lower a number when it has fallen."""


def test_violations_only_fall():
    assert count_violations(find_violations()) == MAX_VIOLATIONS


def test_exceptions_are_few_and_in_use():
    names = {(violation.module, violation.name) for violation in find_violations()}
    assert len(EXCEPTIONS) <= 20
    assert names >= EXCEPTIONS


def test_bare_participles_are_told_from_verbs():
    assert [is_bare_participle(name) for name in ("_compared", "compare_policies", "known", "read_rows", "feed")] == [
        True, False, True, False, False,
    ]  # fmt: skip


if __name__ == "__main__":
    below = tuple(Path(argument).resolve().relative_to(PACKAGE).as_posix() for argument in sys.argv[1:])
    for violation in sorted(find_violations()):
        if not below or violation.module.startswith(below):
            sys.stdout.write(f"{violation.rule}: gpuplanner/{violation.module}:{violation.line} {violation.name}\n")
    sys.stdout.write(f"{count_violations(find_violations())}\n")
