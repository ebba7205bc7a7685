"""A small problem to vary."""

from __future__ import annotations

from typing import Any

import pytest

from tests.planner.conftest import make_problem


@pytest.fixture(scope="session")
def problem_of() -> Any:
    return make_problem
