"""Mutants of a module: one small fault each, where a fault would mean something."""

from __future__ import annotations

import ast
import hashlib
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

FLIPPED = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
EDGE = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
SWAPPED = {ast.And: ast.Or, ast.Or: ast.And, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd}
SIGNS = {ast.Add: ast.Sub, ast.Sub: ast.Add}
NOTHING = {
    "int": "0", "float": "0.0", "str": "''", "list": "[]", "Sequence": "[]", "tuple": "()", "set": "set()",
    "dict": "{}", "Mapping": "{}",
}  # fmt: skip
"""Annotated type of a function → what it returns when it does nothing; None for all others."""
SPEECH = ("message", "examples", "nearest", "warn", "warning", "info", "debug", "error", "exception")
"""Functions whose arguments are text for a reader."""
HERE = "<here>"
"""Stands for the statement that is kept behind an early return."""
LONGEST = 120
"""Characters of a description."""


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes
    ----------
    file : str
        The module.
    function : str
        Where the fault stands.
    what : str
        Code before and after, on one line; the second of two alike in a function ends in ``#2``.
    kind : str
        ``flip`` of a comparison, ``edge`` (off by one), ``not`` dropped, ``swap`` of and and or, ``sign``, ``nothing``
        returned, ``drop`` of a statement.
    line : int
        Where it begins.
    text : str
        The whole module with the fault.
    """

    file: str
    function: str
    what: str
    kind: str
    line: int
    text: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What names the mutant while the code around it changes."""
        return self.file, self.function, self.what


def mutants(file: str, source: str) -> list[Mutant]:
    """All mutants of a module, in the order of its text."""
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    raw = source.encode()
    found = []
    seen: Counter[tuple[str, str]] = Counter()
    for function, kind, node, after in _faults_in(ast.parse(source), ()):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        new = after.replace(HERE, " " * node.col_offset + raw[begin:end].decode())
        shown = "returns at once" if HERE in after else f"{ast.unparse(node)} -> {after}"
        what = textwrap.shorten(shown, LONGEST, placeholder="...")
        seen[function, what] += 1
        again = seen[function, what]
        named = what if again == 1 else f"{what} #{again}"
        text = (raw[:begin] + new.encode() + raw[end:]).decode()
        found.append(Mutant(file, function, named, kind, node.lineno, text))
    return sorted(found, key=lambda mutant: mutant.line)


def draw(found: Iterable[Mutant], number: int, seed: str) -> list[Mutant]:
    """Some mutants, as many of each kind as there are: rare kinds are not lost among many constants.

    Each has a lot of its own, from its name and the seed: a change of the code leaves those elsewhere drawn.
    """
    kinds: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in sorted(found, key=lambda one: hashlib.sha256(repr((seed, one.key)).encode()).digest()):
        kinds[mutant.kind].append(mutant)
    ranks = [(rank, kind) for kind, each in kinds.items() for rank in range(len(each))]
    drawn = [kinds[kind][rank] for rank, kind in sorted(ranks)[:number]]
    return sorted(drawn, key=lambda mutant: (mutant.file, mutant.line, mutant.what))


def _faults_in(node: ast.AST, path: tuple[str, ...]) -> Iterator[tuple[str, str, ast.stmt | ast.expr, str]]:
    """Function, kind, node, and the code that takes its place; declarations are left out."""
    if isinstance(node, ast.Module | ast.ClassDef):
        own = (*path, node.name) if isinstance(node, ast.ClassDef) else path
        for each in node.body:
            yield from _faults_in(each, own)
    elif isinstance(node, ast.FunctionDef):
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        if not body or node.name == "__repr__" or _only_speaks(node):
            return
        path = (*path, node.name)
        if _returns_no_value(node):
            yield ".".join(path), "nothing", body[0], f"return\n{HERE}"
        for statement in body:
            yield from _faults_below(statement, node.returns, path)


def _faults_below(
    node: ast.AST, returns: ast.expr | None, path: tuple[str, ...]
) -> Iterator[tuple[str, str, ast.stmt | ast.expr, str]]:
    """The same for a part of a function; what is text for a reader is left out."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield from _faults_in(node, path)
        return
    if isinstance(node, ast.JoinedStr | ast.Assert) or _speaks(node):
        return
    if isinstance(node, ast.stmt | ast.expr):
        yield from ((".".join(path), kind, node, after) for kind, after in _faults(node, returns))
    if isinstance(node, ast.Raise):
        return
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and field != "annotation":
                yield from _faults_below(child, returns, path)


def _faults(node: ast.AST, returns: ast.expr | None) -> Iterator[tuple[str, str]]:
    """Kind and text of all faults of one node."""
    if isinstance(node, ast.Compare):
        for place, op in enumerate(node.ops):
            for kind, table in (("flip", FLIPPED), ("edge", EDGE)):
                if type(op) in table:
                    ops = [*node.ops[:place], table[type(op)](), *node.ops[place + 1 :]]
                    yield kind, _text(ast.Compare(node.left, ops, node.comparators))
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield "edge", repr(node.value + 1)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert | ast.USub):
        yield "sign" if isinstance(node.op, ast.USub) else "not", _text(node.operand)
    elif isinstance(node, ast.BoolOp):
        yield "swap", _text(ast.BoolOp(SWAPPED[type(node.op)](), node.values))
    elif isinstance(node, ast.BinOp) and type(node.op) in (SWAPPED | SIGNS) and not _is_text(node):
        kind = "swap" if type(node.op) in SWAPPED else "sign"
        yield kind, _text(ast.BinOp(node.left, (SWAPPED | SIGNS)[type(node.op)](), node.right))
    elif isinstance(node, ast.Return) and node.value is not None:
        nothing = _nothing(node.value, returns)
        if nothing != ast.unparse(node.value):
            yield "nothing", f"return {nothing}"
    elif isinstance(node, ast.Raise | ast.AugAssign) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield "drop", "pass"


def _nothing(value: ast.expr, returns: ast.expr | None) -> str:
    outer = returns.value if isinstance(returns, ast.Subscript) else returns
    name = outer.id if isinstance(outer, ast.Name) else ""
    return f"not {_text(value)}" if name == "bool" else NOTHING.get(name, "None")


def _text(node: ast.AST) -> str:
    return f"({ast.unparse(ast.fix_missing_locations(node))})"


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in sides
    )


def _speaks(node: ast.AST) -> bool:
    """Whether a node is a call whose arguments a reader is to read."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) or _speaks(node.value)
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    name = (
        called.attr
        if isinstance(called, ast.Attribute)
        else called.id
        if isinstance(called, ast.Name)
        else ""
    )
    return name in SPEECH


def _only_speaks(node: ast.FunctionDef) -> bool:
    returned = [each.value for each in ast.walk(node) if isinstance(each, ast.Return)]
    return bool(returned) and all(value is not None and _speaks(value) for value in returned)


def _returns_no_value(node: ast.FunctionDef) -> bool:
    """Whether what a function does is not returned: it yields, or works on what it was given."""
    return not any(isinstance(each, ast.Return) and each.value is not None for each in ast.walk(node))
