"""The limits panel in plain Python: choose a limit, set its value, look at the price."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime

import pytest

from gpuplanner.errors import ScenarioError
from gpuplanner.planner import Limits, PlanProblem, plan
from gpuplanner.planner.variants import AS_IT_STANDS, price_of_limits, with_limit
from gpuplanner.widgets import LimitsPanel, background
from gpuplanner.widgets.limits import LIMITS, price_html

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
    panel.choice.value = next(limit for limit in LIMITS if limit.argument == argument)
    panel.sliders[argument].value = value


def test_sliders_begin_where_the_problem_stands(panel):
    assert {name: slider.value for name, slider in panel.sliders.items()} == {
        "gpus": 3, "whole_nodes_kept": 0, "switches_per_day": 4,
    }  # fmt: skip


def test_limits_that_are_set_already_are_where_the_sliders_begin(problem):
    limited = LimitsPanel(with_limit(problem, whole_nodes_kept=1, switches_per_day=2))
    assert [limited.sliders[name].value for name in ("whole_nodes_kept", "switches_per_day")] == [1, 2]


def test_only_the_slider_of_the_chosen_limit_is_shown(panel):
    for limit in LIMITS:
        panel.choice.value = limit
        shown = [name for name, slider in panel.sliders.items() if slider.layout.display != "none"]
        assert shown == [limit.argument]


def test_controls_have_label_and_help(panel):
    for limit in LIMITS:
        slider = panel.sliders[limit.argument]
        assert (slider.description, slider.tooltip) == (limit.label, limit.help)
        assert not slider.continuous_update


@pytest.mark.parametrize(
    ("argument", "value"), [("gpus", 2), ("whole_nodes_kept", 1), ("switches_per_day", 1)]
)
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


def test_problem_as_it_stands_has_a_cost_and_no_price(panel):
    assert panel.ask().result(timeout=1800)["variant"].to_list() == [AS_IT_STANDS]
    assert panel.answer.value.count("<tr>") == 2  # headings, and the problem itself
    assert "No plan costs less (proven)" in panel.answer.value


def test_a_plan_that_is_there_already_is_the_base(problem):
    base = plan(problem, gap_target=0.5, work_limit=2)
    panel = LimitsPanel(problem, base=base, gap_target=0)
    assert panel.ask().result(timeout=1800)["objective"].item() == base.objective


def test_limits_that_contradict_each_other_are_explained(problem):
    stays = PlanProblem(**vars_of(problem) | {"limits": Limits({"3g.20gb:2": 2})})
    panel = LimitsPanel(stays, gap_target=0)
    chosen(panel, "whole_nodes_kept", 2)
    assert panel.ask().result(timeout=1800)["extra"][1] is None
    assert "<td>–</td>" in panel.answer.value
    assert "contradict each other" in panel.answer.value


def vars_of(problem: PlanProblem) -> dict:
    return {name: getattr(problem, name) for name in problem.__dataclass_fields__}


def test_fault_is_shown_as_text(problem):
    panel = LimitsPanel(with_limit(problem, whole_nodes_kept=3))
    chosen(panel, "gpus", 2)
    with pytest.raises(ScenarioError, match="at most 2, the full nodes"):
        panel.ask().result(timeout=1800)
    assert "No answer" in panel.status.value
    assert "the full nodes there are" in panel.status.value


def test_hostile_names_stay_text(panel):
    chosen(panel, "gpus", 2)
    prices = panel.ask().result(timeout=1800)
    assert HOSTILE in prices["explanation"][1]  # who goes short is named
    assert "<script" not in panel.answer.value
    assert "<script" not in price_html(prices.with_columns(variant=prices["variant"] + HOSTILE))


def test_a_drag_is_answered_once_and_off_the_kernels_thread(panel, monkeypatch):
    monkeypatch.setattr(background, "DEBOUNCE_S", 0.02)
    asked = []

    def computed(question):
        asked.append((question[1], threading.current_thread() is threading.main_thread()))
        return question

    panel._compute, panel._show = computed, lambda question: f"{question[1]} GPUs"

    async def drag():
        for gpus in (2, 1, 4, 5):
            panel.sliders["gpus"].value = gpus
        while panel.status.value != "Done.":
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(drag(), 30))
    assert asked == [(5, False)]
    assert panel.answer.value == "5 GPUs"
