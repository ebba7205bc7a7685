"""Each optional library is named with the extra that installs it, by an error and not by a traceback."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest

import gpuplanner
from gpuplanner.cli.application import exit_code_of, name_library
from gpuplanner.core.errors import MissingDependencyError
from gpuplanner.core.libraries_plugins_and_workers import import_optional

PACKAGE = Path(gpuplanner.__file__).parent


def optional_imports() -> list[tuple[str, str]]:
    """List module and extra of each call of ``import_optional`` in the package whose arguments are constants."""
    pairs = set()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if "import_optional(" in text else ():
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "import_optional":
                values = [*node.args, *(keyword.value for keyword in node.keywords)]
                if all(isinstance(value, ast.Constant) for value in values):
                    pairs.add(tuple(value.value for value in values))
    return sorted(pairs)


def libraries_of(extra: str) -> set[str]:
    """Collect the distributions that an extra installs, with those that they need."""
    wanted = [text for text in requires("gpuplanner") or () if re.search(f"extra == .{extra}\\b", text)]
    found: set[str] = set()
    while wanted:
        name = re.match(r"[\w.-]+", wanted.pop())[0].lower().replace("_", "-")
        if name in found:
            continue
        found.add(name)
        try:
            wanted += [text for text in requires(name) or () if "extra ==" not in text]
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@pytest.mark.parametrize(("module", "extra"), optional_imports())
def test_a_missing_library_is_named_with_an_extra_that_installs_it(module: str, extra: str, monkeypatch):
    library = module.partition(".")[0]
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependencyError, match=rf"{module} is not installed.*'gpuplanner\[{extra}\]'"):
        import_optional(module, extra=extra)
    names = {name.lower().replace("_", "-") for name in packages_distributions().get(library, ())}
    if not names:
        pytest.skip(f"{library} is not installed")
    assert names & libraries_of(extra)


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("altair", "plot"), ("altair.vegalite", "plot"), ("numba", "simulate"), ("pyarrow.parquet", "bills"),
        ("statsforecast", "forecast"), ("vl_convert", "plot"), ("nbconvert", "report"), ("distributed", "scale"),
        ("a_library_of_nobody", "all"),
    ],
)  # fmt: skip
def test_a_failed_import_ends_with_the_line_that_installs_it(module: str, extra: str):
    error = name_library(ModuleNotFoundError(f"No module named {module!r}", name=module))
    assert (
        f"{module} is not installed; this feature needs it. Install the extra: pip install 'gpuplanner[{extra}]'"
        in (str(error))
    )
    assert exit_code_of(error) == 7
