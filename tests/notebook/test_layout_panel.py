"""The panel of layouts in plain Python: edit demand or a limit, look at the layouts, write their files."""

from __future__ import annotations

import csv
from datetime import UTC, datetime

import fastexcel
import pytest

import gpuplanner as gp
from gpuplanner.core.errors import InfeasiblePlanError, ScenarioError
from gpuplanner.decision.layout_planning import PlannedProblem
from gpuplanner.notebook import layout_views
from gpuplanner.notebook.layout_views import LayoutPanel, PlannedLayouts, render_limit_prices
from gpuplanner.planner.fleet_limits_and_prices import Limits
from gpuplanner.planner.fleet_plans_and_comparisons import price_of_limits, with_limit
from gpuplanner.planner.plan_problem import PlanProblem

HOSTILE = "<script>alert(1)</script>"
SCENARIO = gp.Scenario(gap_target=0.0)


def problem_of(limits: Limits | None = None) -> PlanProblem:
    """Two 3g, then four, then six, on three nodes of one GPU; a whole GPU now and then."""
    start = datetime(2026, 11, 2, tzinfo=UTC)
    demand = [[[2, 2, 4, 5], [0, 0, 0, 0.5]]]
    return PlanProblem(
        "A100-40GB", 3, 1, start, 6, [HOSTILE], ["3g.20gb", "gpu"], demand, initial={"gpu": 3},
        nodes=("n1", "n2", "n3"), limits=limits or Limits(),
    )  # fmt: skip


@pytest.fixture
def panel(tmp_path):
    problem = problem_of()
    return LayoutPanel(
        PlannedLayouts(SCENARIO, PlannedProblem(problem, gp.plan(problem, gap_target=0))), tmp_path / "f"
    )


def test_unchanged_numbers_give_the_plan_of_the_data(panel):
    shown = panel.ask().result(timeout=600)
    assert shown.plan.objective == pytest.approx(panel.base.plan.objective)
    assert "+0.0 against the plan of the data" in panel.answer.value


def test_layouts_follow_the_demand(panel):
    panel.demand["3g.20gb"].control.value = 2.5
    shown = panel.ask().result(timeout=600)
    assert shown.problem.demand[0, 0].tolist() == [1.0, 1.0, 2.0, 2.5]
    assert shown.problem.demand[0, 1].tolist() == [0, 0, 0, 0.5]
    assert shown.plan.objective < panel.base.plan.objective
    assert not shown.layout_counts.equals(panel.base.layout_counts)


@pytest.mark.parametrize(("argument", "value"), [("gpus", 2), ("whole_nodes_kept", 1), ("switches_per_day", 1)])
def test_a_limit_costs_as_much_as_its_price(panel, argument, value):
    panel.limits[argument].control.value = value
    shown = panel.ask().result(timeout=600)
    variants = {"limit": with_limit(panel.base.problem, **{argument: value})}
    price = price_of_limits(panel.base.problem, variants, base_plan=panel.base.plan, gap_target=0)["extra"][1]
    assert shown.plan.objective - panel.base.plan.objective == pytest.approx(price)


def test_the_button_writes_the_files_of_the_plan_on_the_screen(panel, tmp_path):
    button, message = panel.files.children
    for peak in (None, 2.5):
        if peak is not None:
            panel.demand["3g.20gb"].control.value = peak
            panel.ask().result(timeout=600)
        button.click()
        assert message.value.startswith("Written:"), message.value
        readme = (tmp_path / "f" / "README.md").read_text()
        shown = panel.shown_layouts
        assert readme.startswith("# Layout schedule of 3 × A100-40GB")
        assert f"cost {shown.plan.objective:,.1f} GPU-hours" in readme
        for layout, gpus in shown.in_use().df.select("layout", "most_gpus").iter_rows():
            assert f"{gpus} × {layout}" in readme
        sheet = fastexcel.read_excel(tmp_path / "f" / "workbook.xlsx").load_sheet("Layout plan").to_polars()
        assert sheet.height == shown.planned_problem.layout_plan.height
        with (tmp_path / "f" / "changes.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == shown.planned_problem.layout_plan.filter("changed").height


def test_a_number_out_of_range_is_marked_and_nothing_is_planned(panel):
    panel.limits["gpus"].control.value = 0
    with pytest.raises(ScenarioError, match="GPUs in the fleet: expected 1 to 300, got 0"):
        panel.ask().result()
    assert panel.shown_layouts is panel.base


def test_limits_that_contradict_each_other_and_hostile_names_are_shown_as_text():
    problem = problem_of(Limits({"3g.20gb:2": 2}))
    variants = {HOSTILE: with_limit(problem, whole_nodes_kept=2)}
    prices = price_of_limits(problem, variants, gap_target=0)
    html = render_limit_prices(prices)
    assert prices["extra"][1] is None
    assert '<td class="number">–</td>' in html
    assert "contradict each other" in html
    assert "<script" not in html


def test_data_that_support_no_plan_give_cards_with_the_fix(monkeypatch):
    def fail(*_: object) -> None:
        raise InfeasiblePlanError("plan", "demand of MIG profiles", "none", "Plan for another model: add --gpu-model.")

    monkeypatch.setattr(layout_views, "make_plan_problem", fail)
    layouts = gp.layouts(gp.Scenario())
    for view in (layouts.overview(), layouts.in_use(), layouts.kinds(), layouts.controls()):
        assert isinstance(view, gp.View)
        assert "add gpu_model=" in view._repr_html_()
        assert "gp.layouts(data, gpu_model=" in view._repr_html_()
        assert view.df.is_empty()
