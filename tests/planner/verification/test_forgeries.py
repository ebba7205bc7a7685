"""No kind of forgery passes, whatever the plan; and no honest plan is refused."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuplanner.core.errors import GpuPlannerError
from gpuplanner.planner.fleet_limits_and_prices import Limits, Quota, StatePrices
from gpuplanner.planner.fleet_plans_and_comparisons import fleet_to_json, plan_fleet
from gpuplanner.planner.layout_plan import plan_from_json, plan_to_json
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import plan
from gpuplanner.planner.plan_verification import verify
from gpuplanner.report.plan_and_bundle_verification import verify_any
from tests.planner.conftest import MONDAY
from tests.planner.verification.forgeries import PLAN, PROBLEM, TEXT, Forge, pool_of

HOPPER = ("1g.10gb", "2g.20gb", "3g.40gb", "gpu")
PRICES = StatePrices(
    parked_price=0.2, wake=0.05, dress=0.1, instance=0.02, mode=0.1, reboot=0.4, drain=0.2, basis="as stated"
)
KINDS = {**PLAN, **PROBLEM}


def problem(seed: int, *, slots: int = 6, gpus: int = 16, **more: Any) -> PlanProblem:
    """Two tenants of two tiers on a board with seven profiles."""
    rng = np.random.default_rng(seed)
    values: dict[str, Any] = {
        "gpu_model": "H100-80GB-SXM5", "gpus": gpus, "gpus_per_node": 4, "slot_start": MONDAY, "interval_hours": 1.0,
        "tenants": ["ads", "web"], "profiles": HOPPER, "demand": rng.uniform(0, gpus / 4, (2, 4, slots)),
        "tiers": ["guaranteed", "best_effort"], "unmet_price": [10.0, 3.0], "change_gpu_hours": 0.4,
    }  # fmt: skip
    return PlanProblem(**(values | more))


def limited() -> PlanProblem:
    """Quotas, racks, nodes kept whole, what must stay, maintenance; and layouts that are there."""
    limits = Limits(
        pinned={"3g.40gb:2": 1}, whole_nodes_kept=1, gpus_on_per_rack=4, quotas={"ads": Quota(9.0, "lab", 2.0)}
    )
    there = {"1g.10gb:7": 2, "gpu": 3, "3g.40gb:2": 1}
    return problem(5, limits=limits, initial=there, available=[16, 14, 16, 16, 15, 16])


MADE: dict[str, Callable[[], str]] = {
    "released": lambda: written(problem(1), method="milp", gap_target=0.03),
    "parked": lambda: written(
        problem(2, prices=PRICES, initial={"1g.10gb:7": 3, "gpu": 4}), method="milp", gap_target=0.03
    ),
    "static": lambda: written(problem(3), method="static"),
    "static and parked": lambda: written(problem(4, prices=PRICES, initial={"gpu": 2}), method="static"),
    "every state": lambda: written(problem(8, slots=3, gpus=2), method="dp"),
    "slot after slot": lambda: written(problem(6), method="greedy"),
    "slot after slot, parked": lambda: written(problem(7, prices=PRICES), method="greedy"),
    "few sets": lambda: written(problem(9, prices=PRICES, initial={}), method="calendar", calendars=2),
    "limits": lambda: written(limited(), method="milp", gap_target=0.03),
    "several pools": lambda: fleet(),
}


def written(asked: PlanProblem, **how: Any) -> str:
    """A plan file."""
    return plan_to_json(plan(asked, **how), asked)


def fleet() -> str:
    """Two pools, one that parks and one that releases."""
    pools = {"old": problem(10, prices=PRICES), "new": problem(11, gpu_model="H100-96GB-GH200", profiles=["gpu"] * 1,
             demand=np.random.default_rng(3).uniform(0, 3, (2, 1, 6)))}  # fmt: skip
    made = plan_fleet(pools, method="milp", gap_target=0.03)
    return fleet_to_json(made, pools)


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return {name: make() for name, make in MADE.items()}


def problems_of(text: str) -> dict[str, PlanProblem]:
    values = json.loads(text)
    pools = values.get("pools", {"": values})
    return {name: PlanProblem.from_dict(pool["problem"]) for name, pool in pools.items()}


def outcome(text: str, folder: Path, due: dict[str, PlanProblem] | None) -> tuple[str, list[str]]:
    """``holds``, ``wrong`` or ``refused``, and what was said. Anything else is raised."""
    path = folder / "plan.json"
    path.write_text(text, encoding="utf-8")
    try:
        report = verify_any(path, None, expected_problems=due)
    except GpuPlannerError as error:
        return "refused", [str(error)]
    if report.problems:
        return "wrong", report.problems
    assert report.ok
    return "holds", report.findings


def test_the_plans_to_be_forged_hold(texts: dict[str, str], tmp_path: Path) -> None:
    for name, text in texts.items():
        assert outcome(text, tmp_path, problems_of(text))[0] == "holds", name
        assert outcome(text, tmp_path, None)[0] == "holds", name
    assert len(texts) == 10
    assert len(KINDS) + len(TEXT) >= 60


def forged(text: str, kind: Forge) -> str | None:
    """The text with its first pool forged; None where that cannot be done to it."""
    values = json.loads(text)
    if not kind(pool_of(values)):
        return None
    return json.dumps(values)


def drawn(kind: str) -> list[str]:
    """Three of the plans, others for every kind."""
    return random.Random(kind).sample(list(MADE), 3)


def tried(kind: str, names: list[str], texts: dict[str, str], folder: Path) -> Iterator[tuple[str, str, str]]:
    """Plan, outcome and words of each plan to which the kind can be done."""
    for name in names:
        text = forged(texts[name], KINDS[kind])
        if text is not None:
            # A file about another problem is right about itself; all else shows without the problem at hand.
            due = problems_of(texts[name]) if kind in PROBLEM else None
            verdict, words = outcome(text, folder, due)
            yield name, verdict, words[0]


def check(kind: str, names: list[str], texts: dict[str, str], folder: Path) -> int:
    done = 0
    for name, verdict, words in tried(kind, names, texts, folder):
        assert verdict in {"wrong", "refused"}, (name, verdict, words)
        assert "saves 90 %" not in words
        assert "\n" not in words
        done += 1
    return done


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_of_forgery_passes(kind: str, texts: dict[str, str], tmp_path: Path) -> None:
    check(kind, drawn(kind), texts, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_of_forgery_passes_with_any_plan(kind: str, texts: dict[str, str], tmp_path: Path) -> None:
    assert check(kind, list(MADE), texts, tmp_path)


@pytest.mark.parametrize("kind", TEXT)
def test_no_forged_text_passes(kind: str, texts: dict[str, str], tmp_path: Path) -> None:
    for text in texts.values():
        if (changed := TEXT[kind](text)) != text:
            assert outcome(changed, tmp_path, None)[0] == "refused"


def test_a_file_of_200_megabytes_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with path.open("w") as stream:
        stream.write("{")
        stream.truncate(200_000_000)
    with pytest.raises(GpuPlannerError, match="at most 64000000 bytes; got 200000000"):
        verify_any(path, None)


def test_pools_are_not_exchanged_left_out_or_emptied(texts: dict[str, str], tmp_path: Path) -> None:
    text = texts["several pools"]
    honest, due = json.loads(text), problems_of(text)

    def said(pools: dict[str, Any], against: dict[str, PlanProblem] | None = None) -> str:
        return outcome(json.dumps(honest | {"pools": pools}), tmp_path, against)[0]

    old, new = honest["pools"]["old"], honest["pools"]["new"]
    assert said({"old": old, "new": new}, due) == "holds"
    assert said({"old": new, "new": old}, due) == "wrong"
    assert said({"old": old}, due) == "wrong"
    assert said({"old": old, "new": new, "third": new}, due) == "wrong"
    assert said({"old": {**old, "plan": new["plan"]}, "new": new}) == "wrong"
    assert said({}) == "refused"
    later = copy.deepcopy(new)
    later["problem"]["interval_hours"] = 2.0
    assert said({"old": old, "new": later}) == "refused"


JUNK = (None, True, "3", "", -1, 0, -0.0, 0.5, 1e308, float("nan"), 10**400, [], {}, [[]], {"a": 1}, "x" * 5000)


def places(values: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all values."""
    yield path
    pairs = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, one in pairs:
        yield from places(one, (*path, key))


def with_junk(values: dict[str, Any], path: tuple[Any, ...], junk: Any) -> tuple[dict[str, Any], bool]:
    """The values with one of them replaced, and whether that says something else."""
    changed: Any = copy.deepcopy(values)
    at = changed
    for key in path[:-1]:
        at = at[key]
    before, at[path[-1]] = at[path[-1]], junk
    return changed, type(before) is not type(junk) or before != junk


@pytest.mark.parametrize("many", [150, pytest.param(5_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", ["parked", "limits"])
def test_junk_anywhere_is_refused_in_words(name: str, many: int, texts: dict[str, str], tmp_path: Path) -> None:
    values, due = json.loads(texts[name]), problems_of(texts[name])
    found = [path for path in places(values) if path]
    rng = random.Random(many)
    for _ in range(many):
        path, junk = rng.choice(found), rng.choice(JUNK)
        changed, differs = with_junk(values, path, junk)
        verdict, words = outcome(json.dumps(changed), tmp_path, due)
        # A zero may be one already.
        if verdict == "holds" and differs:
            again = problems_of(json.dumps(changed))
            assert {n: p.to_dict() for n, p in again.items()} == {n: p.to_dict() for n, p in due.items()}, path
            assert path[0] == "problem" or junk in (0, -0.0), (path, junk, words)


BOARDS = {
    "A30": ["1g.6gb", "2g.12gb", "4g.24gb", "gpu"],
    "A100-40GB": ["1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb", "gpu"],
    "H100-80GB-SXM5": ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb", "gpu"],
}


def any_problem(rng: np.random.Generator) -> PlanProblem:
    """Some board, state, tenants and prices; profiles that nobody asks for, slots without demand."""
    gpu_model = str(rng.choice(list(BOARDS)))
    names = rng.choice(BOARDS[gpu_model], int(rng.integers(1, 5)), replace=False).tolist()
    tenants, slots, gpus = int(rng.integers(1, 3)), int(rng.integers(1, 5)), int(rng.integers(1, 9))
    demand = rng.uniform(0, gpus, (tenants, len(names), slots)) * rng.choice([0.0, 0.3, 1.0], (1, len(names), 1))
    demand *= rng.random((1, 1, slots)) < 0.9
    state = rng.choice(["released", "parked", "run times"])
    whole = {"whole_gpus_kept": int(rng.integers(0, 2))}
    if state != "released":
        times = {name: rng.exponential(1.0, 3).tolist() for name in names if rng.random() < 0.6}
        whole["prices"] = StatePrices(
            *rng.uniform(0, 0.5, 7).round(3).tolist(), remaining_h=times if state == "run times" else {},
            limit_h=rng.choice([None, 1.0]), evicted_h=float(rng.choice([0.0, 0.3])),
        )  # fmt: skip
    if rng.random() < 0.5:
        whole["initial"] = {"gpu": int(rng.integers(0, gpus + 1))}
    return PlanProblem(
        gpu_model, gpus, int(rng.integers(1, 5)), MONDAY, float(rng.choice([0.5, 1.0])),
        [f"t{i}" for i in range(tenants)], names, demand, change_gpu_hours=0.3,
        unmet_price=float(rng.choice([2.0, 10.0])), **whole,
    )  # fmt: skip


@pytest.mark.parametrize("many", [40, pytest.param(300, marks=pytest.mark.long)])
def test_no_honest_plan_is_refused(many: int) -> None:
    rng = np.random.default_rng(many)
    for number in range(many):
        asked = any_problem(rng)
        method = str(rng.choice(["auto", "milp", "greedy", "calendar", "static"]))
        text = plan_to_json(plan(asked, method=method, gap_target=0.01), asked)
        read, again = plan_from_json(text)
        assert plan_to_json(read, again) == text
        assert verify(read, again) == [], (number, method)
