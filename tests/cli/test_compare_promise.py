"""Doors show one saving: that of the study."""

from __future__ import annotations

import json

from gpuplanner.scenario import Scenario
from gpuplanner.study.equal_service.promise import promise

FEW = Scenario(month="2026-02", replications=2, policies="static_whole,whole_on_off")


def test_compare_prints_the_object_of_the_study(command) -> None:
    code, told, _ = command(
        "compare", "sample", "--json", "--quiet", "--replications", "2",
        "--policies", "static_whole,whole_on_off", "--set", "month=2026-02",
    )  # fmt: skip
    assert code == 0
    assert json.loads(told) == promise(FEW)
