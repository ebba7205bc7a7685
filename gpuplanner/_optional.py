"""Load what is heavy when it is used: optional libraries, and public names of rooms that compile or draw."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuplanner.errors import MissingDependencyError


def import_optional(name: str, extra: str) -> Any:  # noqa: ANN401 - a module has no narrower type
    """Import a library that belongs to an extra.

    Examples
    --------
    >>> import_optional("json", extra="plot").dumps(1)
    '1'
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = (
            f"{name} is not installed; this feature needs it. Install the extra: "
            f"pip install 'gpuplanner[{extra}]' ({error})"
        )
        raise MissingDependencyError(missing) from error


def late_name(package: str, homes: Mapping[str, str], name: str) -> Any:  # noqa: ANN401 - whatever has that name
    """Find a public name of a package in the module that holds it, which is loaded only now.

    Examples
    --------
    >>> late_name("json", {"JSONDecoder": "decoder"}, "JSONDecoder").__name__
    'JSONDecoder'
    """
    if name not in homes:
        missing = f"module {package!r} has no attribute {name!r}"
        raise AttributeError(missing)
    return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)


def names_of_stub(package: str) -> dict[str, str]:
    """Public names of a package, and the modules that hold them, from the stub beside its ``__init__.py``.

    Examples
    --------
    >>> import gpuplanner.plot
    >>> names_of_stub(gpuplanner.plot.__file__)["plot_ledger"]
    'ledger'
    """
    stub = Path(package).with_suffix(".pyi")
    imports = [node for node in ast.parse(stub.read_text("utf-8")).body if isinstance(node, ast.ImportFrom)]
    within = f".{stub.parent.name}."
    return {name.name: str(node.module).partition(within)[2] for node in imports for name in node.names}
