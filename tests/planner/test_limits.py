"""Further limits: quotas, what must stay, racks, nodes kept whole, switches a day."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.errors import ScenarioError
from gpuplanner.planner.fleet_limits_and_prices import Limits, Quota, apply_quotas
from gpuplanner.planner.layout_plan import plan_from_json, plan_to_json
from gpuplanner.planner.limit_verification import demand_within_quotas
from gpuplanner.planner.numbered_gpus import assign
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import plan
from gpuplanner.planner.plan_verification import verify

NAMES = ["1g.5gb", "3g.20gb", "gpu"]


def limited(problem_of: Any, demand: Any, **limits: Any) -> PlanProblem:
    """Three profiles, twelve GPUs on nodes of two."""
    return problem_of(demand, NAMES, gpus=12, gpus_per_node=2, change_gpu_hours=0.1, limits=Limits(**limits))


def wavy(slots: int) -> np.ndarray:
    hours = np.arange(slots)
    return np.array([[10 + 8 * (hours % 3), 4 + 3 * (hours % 2), 2 + hours % 4]], dtype=float)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_admission_agrees_with_the_check_and_with_common_sense(problem_of: Any, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 5))
    amounts = st.floats(0, 6).map(lambda x: round(x, 2))
    demand = np.array(data.draw(st.lists(amounts, min_size=n * 6, max_size=n * 6))).reshape(n, 3, 2)
    tiers = data.draw(st.lists(st.sampled_from(["guaranteed", "standard", "best_effort"]), min_size=n, max_size=n))
    quotas = {
        f"tenant{i}": Quota(gpus, cohort, *((borrow, lend) if cohort else ()))
        for i in range(n)
        if (gpus := data.draw(st.none() | amounts)) is not None
        for cohort in [data.draw(st.sampled_from([None, "a", "b"]))]
        for borrow, lend in [data.draw(st.tuples(st.none() | amounts, st.none() | amounts))]
    }
    problem = problem_of(demand, NAMES, tiers=tiers, limits=Limits(quotas=quotas))
    admitted = problem.admitted_demand
    assert np.allclose(admitted, demand_within_quotas(problem))
    used = np.einsum("ips,p->is", admitted, problem.shares)
    wanted = np.einsum("ips,p->is", demand, problem.shares)
    assert (admitted <= demand + 1e-12).all()
    for i in range(n):
        quota = quotas.get(f"tenant{i}")
        if quota is None:
            assert np.allclose(admitted[i], demand[i])
            continue
        assert (used[i] >= np.minimum(wanted[i], quota.gpus) - 1e-9).all()
        if quota.cohort is None:
            assert (used[i] <= quota.gpus + 1e-9).all()
    for cohort in "ab":
        members = [i for i in range(n) if (q := quotas.get(f"tenant{i}")) and q.cohort == cohort]
        total = sum(quotas[f"tenant{i}"].gpus for i in members)
        assert (used[members].sum(axis=0) <= total + 1e-9).all()
        if all((quotas[f"tenant{i}"].borrow, quotas[f"tenant{i}"].lend) == (None, None) for i in members):
            expected = np.minimum(wanted[members].sum(axis=0), total)
            assert np.allclose(used[members].sum(axis=0), expected)


def test_a_higher_tier_borrows_first():
    quotas = {name: Quota(2, cohort="lab") for name in "abc"}
    demand = np.array([[[4.0]], [[4.0]], [[1.0]]])
    admitted = apply_quotas(demand, np.ones(1), "abc", [1, 0, 2], quotas)
    assert admitted.ravel().tolist() == [2.0, 3.0, 1.0]
    kept = quotas | {"c": Quota(2, cohort="lab", lend=0.25)}
    assert apply_quotas(demand, np.ones(1), "abc", [1, 0, 2], kept).ravel().tolist() == [2.0, 2.25, 1.0]


def test_quotas_bound_what_is_planned_and_are_told(problem_of: Any) -> None:
    demand = np.array([[[4.0, 8.0]], [[4.0, 0.0]]])
    quotas = {"tenant0": Quota(3, cohort="x"), "tenant1": Quota(2, cohort="x")}
    problem = problem_of(demand, ["gpu"], gpus=12, limits=Limits(quotas=quotas))
    found = plan(problem, gap_target=0)
    assert found.status == "optimal"
    assert found.counts.sum(axis=1).tolist() == [5, 5]
    assert found.unmet.sum() == 0
    assert "Quotas reject 6.0 GPU-hours, most of them of tenant0 (4.0)" in found.explanation
    assert verify(found, problem, assign(found, problem)) == []
    served_too_much = replace(problem, limits=Limits(quotas={"tenant0": Quota(1), "tenant1": Quota(1)}))
    assert verify(found, served_too_much) == []  # more GPUs than needed are no fault, only dear
    assert verify(found, replace(problem, limits=Limits())) != []


@settings(max_examples=15, deadline=None)
@given(
    whole=st.integers(0, 3),
    most=st.sampled_from([None, 2, 3, 4]),
    racks=st.sampled_from([1, 3]),
    pinned=st.dictionaries(st.sampled_from(["1g.5gb:7", "3g.20gb:2", "gpu"]), st.integers(0, 2), max_size=2),
    seed=st.integers(0, 20),
)
def test_every_limit_is_kept_by_counts_and_numbered_gpus(
    problem_of: Any, whole: int, most: int | None, racks: int, pinned: dict[str, int], seed: int
) -> None:
    demand = np.random.default_rng(seed).integers(0, 25, (1, 3, 5)) * np.array([1.0, 0.4, 0.2])[:, None]
    kept = whole // racks * racks if most is not None else whole
    problem = limited(
        problem_of, demand, whole_nodes_kept=kept, gpus_on_per_rack=most, nodes_per_rack=racks, pinned=pinned
    )
    found = plan(problem, method="milp")
    if found.status == "infeasible":
        assert "Cheapest way out" in found.explanation
        assert verify(found, problem) == []
        return
    frame = assign(found, problem)
    assert verify(found, problem, frame) == []
    assert frame["changed"].sum() == found.changes


def test_planted_faults_against_the_limits_are_found(problem_of: Any) -> None:
    problem = problem_of(wavy(6), NAMES, gpus=12, gpus_per_node=2, change_gpu_hours=0.01)
    found = plan(problem, method="milp")
    frame = assign(found, problem)
    assert verify(found, problem, frame) == []
    for limits, words in (
        (Limits(pinned={"3g.20gb:2": 9}), "must keep it"),
        (Limits(whole_nodes_kept=5), "nodes must stay full"),
        (Limits(gpus_on_per_rack=1), "power for 6"),
        (Limits(switches_per_day=0), "changes layout"),
        (Limits(nodes_per_rack=3, gpus_on_per_rack=5), "in rack"),
    ):
        faults = verify(found, replace(problem, limits=limits), frame)
        assert any(words in fault for fault in faults), (limits, faults)
    cut = frame.filter(~pl.col("layout").is_in(["gpu", "off"]))["node"].max()
    on_first = frame.with_columns(pl.col("node").replace({"node0": cut, cut: "node0"})).sort(
        "node", "gpu", "slot_start"
    )
    faults = verify(found, replace(problem, limits=Limits(whole_nodes_kept=1)), on_first)
    assert any("on a node to be kept full" in fault for fault in faults)


@pytest.mark.parametrize("most", [pytest.param(0, marks=pytest.mark.long), 1, pytest.param(2, marks=pytest.mark.long)])
def test_no_gpu_is_cut_more_often_than_a_day_allows(problem_of: Any, most: int) -> None:
    """Demand that swings every hour; free, GPUs would be cut again and again."""
    hours = np.arange(30)
    demand = np.array([[np.where(hours % 2, 28.0, 7.0), np.where(hours % 2, 2.0, 8.0), 0 * hours]])
    free = problem_of(demand, NAMES, gpus=6, gpus_per_node=2, change_gpu_hours=0.001)
    problem = replace(free, limits=Limits(switches_per_day=most))
    loose, found = plan(free, gap_target=0), plan(problem, gap_target=0)
    assert loose.changes > 2 * 2 * 6
    assert found.is_feasible
    frame = assign(found, problem)
    assert verify(found, problem, frame) == []
    assert any("changes layout" in fault for fault in verify(loose, problem, assign(loose, problem)))
    per_day = frame.filter("changed").group_by("node", "gpu", pl.col("slot_start").dt.truncate("1d")).len()
    assert per_day["len"].max() in (None, *range(most + 1))
    # The bound is that of plans without the limit, so it holds for those with it.
    assert found.bound <= loose.objective + 1e-6 <= found.objective + 2e-6


def test_where_nothing_may_be_cut_things_stay_as_they_are(problem_of: Any) -> None:
    demand = [[[2.0, 2.0, 4.0, 5.0]]]
    problem = problem_of(
        demand, ["3g.20gb"], gpus=3, gpus_per_node=1, interval_hours=6.0, initial={"gpu": 3},
        limits=Limits(switches_per_day=0),
    )  # fmt: skip
    for method in ("auto", "milp", "static"):
        found = plan(problem, method=method, gap_target=0)
        assert (found.is_feasible, found.changes) == (True, 0)
        assert found.unmet_gpu_hours == pytest.approx(13 * 6 * 3 / 7)
        assert verify(found, problem, assign(found, problem)) == []


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"pinned": {"off": 1}}, "pinned must count GPUs that are on"),
        ({"whole_nodes_kept": 7}, "at most 6, the full nodes there are"),
        ({"nodes_per_rack": 2, "whole_nodes_kept": 1, "gpus_on_per_rack": 3}, "whole racks of 2 nodes"),
        ({"quotas": {"nobody": Quota(1)}}, "quotas must name known teams; unknown: 'nobody'"),
        ({"quotas": {"tenant0": Quota(1, borrow=1)}}, "names no cohort to do so in"),
    ],
)
def test_limits_that_make_no_sense_are_refused(problem_of: Any, limits: dict[str, Any], words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        limited(problem_of, wavy(2), **limits)


@pytest.mark.parametrize(
    ("changes", "limits", "words"),
    [
        ({}, {"pinned": {"1g.5gb:7": 10}, "whole_nodes_kept": 2},
         "10 that must stay partitioned and 4 to be kept full"),
        ({}, {"pinned": {"gpu": 7}, "gpus_on_per_rack": 1}, "release 1 of those that must stay"),
        ({"available": [12, 3]}, {"whole_nodes_kept": 2}, "keep at most 3 full, or have 1 more in service"),
        ({"initial": {"gpu": 2}}, {"pinned": {"1g.5gb:7": 1}, "switches_per_day": 0}, "allow one layout change a day"),
    ],
)  # fmt: skip
def test_contradictions_are_told_with_the_cheapest_way_out(
    problem_of: Any, changes: dict[str, Any], limits: dict[str, Any], words: str
) -> None:
    problem = replace(limited(problem_of, wavy(2), **limits), **changes)
    found = plan(problem)
    assert found.status == "infeasible"
    assert words in found.explanation
    assert verify(found, problem) == []
    assert verify(found, replace(problem, limits=Limits())) != []


def test_limits_survive_json(problem_of: Any) -> None:
    limits = Limits(
        pinned={"3g.20gb:2": 1},
        whole_nodes_kept=1,
        switches_per_day=2,
        quotas={"tenant0": Quota(5, cohort="a", borrow=1.5, lend=2.0)},
    )
    problem = replace(limited(problem_of, wavy(3)), limits=limits)
    found = plan(problem)
    again, question = plan_from_json(plan_to_json(found, problem))
    assert question.limits == problem.limits
    assert verify(again, question) == []
    text = plan_to_json(found, problem).replace('"switches_per_day"', '"switchs_per_day"')
    with pytest.raises(ScenarioError, match="unknown 'switchs_per_day'"):
        plan_from_json(text)


@pytest.mark.parametrize("method", ["calendar", "milp"])
@pytest.mark.parametrize(
    ("limits", "told"),
    [
        (Limits(change_slots=(6, 18, 30, 42)), "counts change, though no change is allowed then"),
        (Limits(node_changes_per_day=1), "is repartitioned 4 times on day"),
        (Limits(most_changes=2), "nodes are repartitioned"),
    ],
)
def test_limits_of_changes_are_kept_and_checked(problem_of, method, limits, told):
    """Slices and whole GPUs take turns on one node, four times a day: with a limit on changes they do not."""
    turn = np.arange(48) // 5 % 2
    demand = np.stack([14.0 * turn, 2.0 - 2.0 * turn])[None]
    free = problem_of(demand, ["1g.5gb", "gpu"], gpus=2, gpus_per_node=2, change_gpu_hours=0.01)
    found = plan(free, method=method, gap_target=0.0)
    problem = replace(free, limits=limits)
    assert any(told in fault for fault in verify(found, problem, assign(found, problem)))
    kept = plan(problem, method=method, gap_target=0.0)
    assert verify(kept, problem, assign(kept, problem)) == []
    assert kept.objective >= found.objective - 1e-9
    if method == "calendar":
        assert len(np.unique(kept.counts, axis=0)) <= 2
    if limits.change_slots is not None:
        assert (kept.counts[1:] != kept.counts[:-1]).any()


def test_with_every_slot_open_windows_limit_nothing(problem_of):
    rng = np.random.default_rng(3)
    problem = problem_of(rng.uniform(0, 6, (1, 2, 24)), ["1g.5gb", "3g.20gb"])
    windows = replace(problem, limits=Limits(change_slots=tuple(range(24))))
    assert plan(problem, method="calendar").objective == plan(windows, method="calendar").objective


def test_a_bound_counts_gpus_that_stay_whole(problem_of):
    """One of two GPUs may be cut; the demand wants two cuts that no GPU holds together, so one tenant goes short."""
    problem = problem_of([[[7, 7], [1, 1]]], ["1g.5gb", "7g.40gb"], gpus=2, whole_gpus_kept=1)
    found = plan(problem, gap_target=0)
    assert found.unmet_gpu_hours > 0
    assert found.status == "optimal"
    assert found.bound > plan(replace(problem, whole_gpus_kept=0), gap_target=0).objective
