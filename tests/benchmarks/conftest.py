"""The programs of ``benchmarks/claims``, imported as they run: from their own folder."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

PROGRAMS = Path(__file__).parents[2] / "benchmarks" / "claims"


@pytest.fixture(scope="session")
def program() -> Callable[[str], ModuleType]:
    """Import one program by its name."""
    if str(PROGRAMS) not in sys.path:
        sys.path.insert(0, str(PROGRAMS))
    return importlib.import_module
