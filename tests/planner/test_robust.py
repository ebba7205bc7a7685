"""Plans for several futures: a case worked by hand, and what must always hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from gpuplanner.errors import InfeasiblePlanError, ScenarioError
from gpuplanner.planner import Limits, StatePrices
from gpuplanner.planner.robust import robust

CALM, RUSH = np.array([[[1.0, 1.0]]]), np.array([[[3.0, 1.0]]])
CRITERIA = ("expected_cost", "worst_cost", "worst_regret")


def test_two_scenarios_by_hand(problem_of: Any) -> None:
    """Whole boards, one hour a slot, 1 a GPU-hour, 10 a GPU-hour short, 0.5 a cut.

    Calm: [1, 1] costs 2. Rush: [3, 1] costs 4. Calm's plan in the rush: 2 short, 2 + 20. Rush's plan in the
    calm: 2 more for an hour, 4. Nine times calm: the mean is 1.2, rounded up to 2 GPUs, as 0.2 short for an
    hour cost 2, a GPU 1.
    """
    problem = problem_of(CALM, ["7g.40gb"], gpus=4, change_gpu_hours=0.5)
    found = robust(
        problem,
        {"calm": CALM, "rush": RUSH},
        weights={"calm": 9, "rush": 1},
        quantiles=(0.9, 0.95),
        gap_target=0,
    )
    rows = {(row["plan"], row["scenario"]): row for row in found.table.to_dicts()}
    costs = {key: round(row["cost"], 6) for key, row in rows.items()}
    assert costs == {
        ("calm", "calm"): 2,
        ("calm", "rush"): 22,
        ("rush", "calm"): 4,
        ("rush", "rush"): 4,
        ("mean", "calm"): 3,
        ("mean", "rush"): 13,
        # Calm comes true with probability 0.9, so that the 0.9-quantile is calm.
        ("q90", "calm"): 2,
        ("q90", "rush"): 22,
        ("q95", "calm"): 4,
        ("q95", "rush"): 4,
    }
    assert rows["calm", "rush"]["regret"] == pytest.approx(18)
    assert rows["calm", "rush"]["regret_fraction"] == pytest.approx(4.5)
    assert rows["calm", "rush"]["bound"] == pytest.approx(4)
    summary = {row["plan"]: row for row in found.summary.to_dicts()}
    assert summary["calm"]["expected_cost"] == pytest.approx(0.9 * 2 + 0.1 * 22)
    assert summary["mean"]["expected_cost"] == pytest.approx(0.9 * 3 + 0.1 * 13)
    # 3.8 for calm's plan, 4.0 for rush's and for that of the mean.
    least = [found.summary.sort(name, maintain_order=True)["plan"][0] for name in CRITERIA]
    assert least == ["calm", "rush", "rush"]


@pytest.mark.parametrize("prices", [None, StatePrices(parked_price=0.1, dress=0.2, drain=0.3)])
def test_what_always_holds(problem_of: Any, prices: StatePrices | None) -> None:
    rng = np.random.default_rng(2)
    scenarios = {f"s{i}": rng.uniform(0, 2.5, size=(2, 2, 6)) for i in range(3)}
    problem = problem_of(
        scenarios["s0"],
        ["1g.5gb", "3g.20gb"],
        tiers=["guaranteed", "best_effort"],
        unmet_price=[9.0, 1.0],
        prices=prices,
    )
    found = robust(problem, scenarios, gap_target=0)
    table = found.table
    assert table.height == len(found.plans) * 3
    assert set(found.plans) == {"s0", "s1", "s2", "mean", "q50", "q90"}
    assert (table["cost"] >= table["bound"] - 1e-6).all()
    assert (table["regret"] >= 0).all()
    own = table.filter(pl.col("plan") == pl.col("scenario"))
    # Plans of their own are optimal here, so nothing is better under their scenario.
    assert own["regret"].max() == pytest.approx(0, abs=1e-6)
    assert own["cost"].to_list() == pytest.approx([found.plans[name].objective for name in own["plan"]])


def test_one_scenario_has_no_regret(problem_of: Any) -> None:
    problem = problem_of(CALM, ["7g.40gb"])
    found = robust(problem, {"only": RUSH}, quantiles=(0.5,), gap_target=0)
    assert found.table["regret"].to_list() == [0, 0, 0]
    assert [found.summary.sort(name, maintain_order=True)["plan"][0] for name in CRITERIA] == ["only"] * 3


def test_nothing_asked_for_is_no_division_by_zero(problem_of: Any) -> None:
    problem = problem_of(np.zeros((1, 1, 2)), ["7g.40gb"])
    found = robust(problem, {"none": np.zeros((1, 1, 2)), "some": np.ones((1, 1, 2))}, quantiles=())
    rows = {(row["plan"], row["scenario"]): row["regret_fraction"] for row in found.table.to_dicts()}
    assert rows["none", "none"] == 0
    assert rows["some", "none"] == float("inf")


def test_a_path_for_which_there_is_no_time_is_planned_slot_after_slot(problem_of: Any) -> None:
    """No search of a week in a microsecond has anything better than the greedy plan, which is there before."""
    demand = np.tile(RUSH, (1, 1, 24))
    problem = problem_of(demand, ["3g.20gb"], gpus=40, unmet_price=3.0)
    found = robust(
        problem, {"a": 9 * demand, "b": 3 * demand}, quantiles=(), method="milp", time_limit_s=1e-6
    )
    assert all(made.found and made.hit_time_limit for made in found.plans.values())
    assert (found.table["cost"] >= found.table["bound"] - 1e-6).all()
    assert found.plans["a"].objective < 1.1 * found.plans["a"].bound
    with pytest.raises(InfeasiblePlanError):
        robust(problem_of(demand, ["3g.20gb"], limits=Limits(pinned={"7g.40gb:1": 9})), {"a": demand})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scenarios": {}}, "no scenario"),
        ({"scenarios": {"a": np.ones((1, 1, 3))}}, r"shape \(1, 1, 3\) in 'a'"),
        ({"scenarios": {"mean": CALM}}, "named 'mean'"),
        ({"weights": {"a": 1}}, "weights for"),
        ({"weights": {"a": 1, "b": -1}}, "at least 0"),
        ({"weights": {"a": 0, "b": 0}}, "one above"),
        ({"quantiles": (1.0,)}, "quantile 1.0"),
    ],
)
def test_nonsense_is_refused(problem_of: Any, changes: dict[str, Any], words: str) -> None:
    values = {"scenarios": {"a": CALM, "b": RUSH}} | changes
    with pytest.raises(ScenarioError, match=words):
        robust(problem_of(CALM, ["7g.40gb"]), **values)
