"""Seeds of random cases that an oracle judges: few in the quick suite, the others in the long one."""

from __future__ import annotations

from typing import Any

import pytest


def seeds(quick: int, every: int, step: int = 1) -> list[Any]:
    """Numbers from 0 to `every` in steps, those from `quick` on marked as long."""
    later = (pytest.param(seed, marks=pytest.mark.long) for seed in range(quick, every, step))
    return [*range(0, quick, step), *later]
