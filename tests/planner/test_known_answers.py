"""Cases worked by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuplanner.core.serialization import read_yaml
from gpuplanner.planner.numbered_gpus import assign
from gpuplanner.planner.plan_search import plan
from gpuplanner.planner.plan_verification import verify

CASES = read_yaml(Path(__file__).with_name("known_answers.yaml"))


@pytest.mark.parametrize("solver", ["highs", pytest.param("cbc", marks=pytest.mark.long)])
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_known_answer(problem_of: Any, case: dict[str, Any], solver: str) -> None:
    options = {k: v for k, v in case.items() if k not in ("name", "demand", "objective", "counts", "unmet")}
    problem = problem_of(case["demand"], **options)
    found = plan(problem, gap_target=0, solver=solver)
    assert found.status == "optimal"
    assert found.objective == pytest.approx(case["objective"])
    assert {k: v.tolist() for k, v in zip(found.layouts, found.counts.T, strict=True)} == case["counts"]
    if "unmet" in case:
        np.testing.assert_allclose(found.unmet, case["unmet"], atol=1e-9)
    assert verify(found, problem, assign(found, problem)) == []
