"""The limits panel in plain Python: choose a limit, set its value, look at the price."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gpuplanner.notebook.layout_views import LIMIT_CONTROLS, LimitsPanel, price_html
from gpuplanner.planner.fleet_limits_and_prices import Limits
from gpuplanner.planner.fleet_plans_and_comparisons import price_of_limits, with_limit
from gpuplanner.planner.plan_problem import PlanProblem

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def problem() -> PlanProblem:
    """Two 3g, then four, then six, on three nodes of one GPU; a whole GPU now and then."""
    start = datetime(2026, 11, 2, tzinfo=UTC)
    demand = [[[2, 2, 4, 5], [0, 0, 0, 0.5]]]
    return PlanProblem("A100-40GB", 3, 1, start, 6, [HOSTILE], ["3g.20gb", "gpu"], demand, initial={"gpu": 3})


@pytest.fixture
def panel(problem):
    return LimitsPanel(problem, gap_target=0)


def chosen(panel, argument, value):
    """Set one limit."""
    panel.choice.value = next(limit for limit in LIMIT_CONTROLS if limit.argument == argument)
    panel.sliders[argument].value = value


@pytest.mark.parametrize(("argument", "value"), [("gpus", 2), ("whole_nodes_kept", 1), ("switches_per_day", 1)])
def test_answer_is_that_of_price_of_limits(panel, problem, argument, value):
    chosen(panel, argument, value)
    found = panel.ask().result(timeout=1800)
    name = found["variant"][1]
    variants = {name: with_limit(problem, **{argument: value})}
    assert found.equals(price_of_limits(problem, variants, gap_target=0))
    assert found.equals(panel.prices)
    assert panel.status.value == "Done."
    assert f"found.limits({argument}={value})" in panel.code.value
    assert f"{found['objective'][0]:,.1f}" in panel.answer.value
    assert f"{found['objective'][1]:,.1f}" in panel.answer.value
    ends = [f"{found[name][1] + 0.0:+,.1f}" for name in ("extra", "extra_low", "extra_high")]
    assert "".join(f"<td>{end}</td>" for end in ends) in panel.answer.value


def test_limits_that_contradict_each_other_are_explained(problem):
    stays = PlanProblem(**vars_of(problem) | {"limits": Limits({"3g.20gb:2": 2})})
    panel = LimitsPanel(stays, gap_target=0)
    chosen(panel, "whole_nodes_kept", 2)
    assert panel.ask().result(timeout=1800)["extra"][1] is None
    assert "<td>–</td>" in panel.answer.value
    assert "contradict each other" in panel.answer.value


def vars_of(problem: PlanProblem) -> dict:
    return {name: getattr(problem, name) for name in problem.__dataclass_fields__}


def test_hostile_names_stay_text(panel):
    chosen(panel, "gpus", 2)
    prices = panel.ask().result(timeout=1800)
    assert HOSTILE in prices["explanation"][1]  # who goes short is named
    assert "<script" not in panel.answer.value
    assert "<script" not in price_html(prices.with_columns(variant=prices["variant"] + HOSTILE))
