"""The bound of a plan is proven again from the file, and what is forged is found."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpuplanner.errors import ScenarioError
from gpuplanner.planner import (
    Limits,
    PlanProblem,
    certified,
    plan,
    plan_from_json,
    plan_to_json,
    verify,
    verify_bound,
)
from gpuplanner.planner.contract.state_prices import StatePrices
from gpuplanner.planner.program import bound
from gpuplanner.planner.program.bound import instant_bound
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.planner.verification.bounds import proven_bound
from gpuplanner.planner.verification.weak_duality import NoProof
from gpuplanner.solving.effort import Effort
from tests.planner.conftest import MONDAY

PROFILES = ("1g.5gb", "2g.10gb", "3g.20gb", "gpu")


def some_problem(problem_of: Any, rng: np.random.Generator, **more: Any) -> PlanProblem:
    """A few slots, two tenants of two tiers; some GPUs kept whole, some pinned, some on before."""
    slots, gpus = int(rng.integers(3, 9)), int(rng.integers(8, 40))
    demand = rng.uniform(0, gpus / 3, (2, len(PROFILES), slots))
    values = {
        "gpus": gpus,
        "gpus_per_node": 4,
        "tiers": ["guaranteed", "best_effort"],
        "unmet_price": [10.0, 3.0],
        "whole_gpus_kept": int(rng.integers(0, 4)),
        "limits": Limits(pinned={"3g.20gb:2": int(rng.integers(0, 2))}),
        "initial": {"1g.5gb:7": 1, "gpu": 1} if rng.random() < 0.5 else None,
        "change_gpu_hours": float(rng.choice([0.05, 0.5])),
    }
    return problem_of(demand, PROFILES, **(values | more))


PRICES = StatePrices(parked_price=0.2, wake=0.05, dress=0.1, instance=0.02, mode=0.1, reboot=0.4, drain=0.2)


@pytest.mark.parametrize("prices", [None, pytest.param(PRICES, marks=pytest.mark.long)])
def test_bounds_of_random_plans_are_proven_again(problem_of: Any, prices: StatePrices | None) -> None:
    rng = np.random.default_rng(1)
    for _ in range(15):
        problem = some_problem(problem_of, rng, prices=prices)
        found = plan(problem, method="milp", gap_target=0.02)
        read, question = plan_from_json(plan_to_json(found, problem))
        assert verify(read, question) == []
        faults, words, proven = verify_bound(read, question)
        assert faults == []
        assert read.certificate is not None
        assert "proven again" in words
        assert proven == (not read.certificate.rest)
        assert ("without a solver" in words) == proven
        proof = instant_bound(Fluid.of(problem)).certificate(Fluid.of(problem))
        assert proof is not None
        assert proven_bound(proof, problem) >= proof.bound


def forged(values: dict[str, Any], rng: np.random.Generator) -> str:
    """Change one thing for the worse in what a plan file holds, and make the rest of the claim fit; say what."""
    found, proof = values["plan"], values["plan"]["certificate"]
    kind = str(
        rng.choice(["status", "bound", "counts", "prices", "trees", "floors", "layouts", "demand", "names"])
    )
    if kind in ("prices", "trees", "floors", "layouts", "names"):
        # A certificate that was made worse cannot prove the bound that it proved before.
        {
            "prices": lambda: proof.update(tree=scaled(proof["tree"], rng)),
            "trees": lambda: proof.update(trees=[[first, {}] for first, _ in proof["trees"]]),
            "floors": lambda: proof.update(floors=[[a + 1, b, c] for a, b, c in proof["floors"]][::-1]),
            "layouts": lambda: proof.update(layouts=proof["layouts"][1:]),
            "names": lambda: proof.update(tree=renamed(proof["tree"])),
        }[kind]()
        return kind
    if kind == "counts":
        slot, layout = rng.integers(len(found["counts"])), rng.integers(len(found["layouts"]))
        found["counts"][slot][layout] += 1
    elif kind == "demand":  # the certificate of another problem
        demand = values["problem"]["demand"]
        values["problem"]["demand"] = [[[0.6 * d for d in row] for row in tenant] for tenant in demand]
    else:
        share = 1.0 if kind == "status" else rng.uniform(0.5, 1.0)
        found["bound"] += share * (found["objective"] - found["bound"])
        found["gap"] = 1 - found["bound"] / found["objective"]
        if kind == "status":
            found |= {"status": "optimal", "gap": 0.0}
        if rng.random() < 0.5:
            proof["bound"] = found["bound"]
    return kind


def scaled(tree: Any, rng: np.random.Generator) -> Any:
    """A tree with prices made smaller."""
    if isinstance(tree, dict):
        return {name: price * rng.uniform(0.2, 0.8) for name, price in tree.items()}
    return [*tree[:2], scaled(tree[2], rng), scaled(tree[3], rng)]


def renamed(tree: Any) -> Any:
    """A tree with prices of rows that there are none of."""
    if isinstance(tree, dict):
        return {f"{name}9": price for name, price in tree.items()}
    return [*tree[:2], renamed(tree[2]), renamed(tree[3])]


@pytest.mark.long
def test_two_hundred_forgeries_are_all_found(problem_of: Any) -> None:
    """Of plans that change and of plans that do not, in pools that release GPUs and in pools that park them."""
    rng = np.random.default_rng(7)
    texts: list[str] = []
    while len(texts) < 15:
        problem = some_problem(problem_of, rng, prices=PRICES if len(texts) % 2 else None)
        method = "static" if len(texts) % 3 == 2 else "milp"
        found = certified(plan(problem, method=method, gap_target=0.03), problem)
        proof = found.certificate
        assert proof is not None
        honest = found.gap > 1e-3 and not proof.rest and proof.bound < found.bound + 1e-6
        if honest and proof.tree and (proof.floors or method == "static"):
            texts.append(plan_to_json(found, problem))
    kinds = set()
    number = 0
    while number < 200:
        values = json.loads(texts[number % len(texts)])
        before = copy.deepcopy(values)
        kind = forged(values, rng)
        if values == before:  # there are no floors to change in what says nothing of windows
            continue
        number += 1
        kinds.add(kind)
        read, question = plan_from_json(json.dumps(values))
        passes = not verify(read, question) and verify_bound(read, question).proven
        assert not passes, (number, kind, read.method)
    assert len(kinds) == 9


@pytest.mark.parametrize("prices", [None, PRICES])
def test_bounds_of_plans_without_change_are_proven_again(problem_of: Any, prices: StatePrices | None) -> None:
    """And none proves more than what the best plan without change costs, nor does it hold for plans that change."""
    rng = np.random.default_rng(11)
    for _ in range(10):
        problem = some_problem(problem_of, rng, prices=prices)
        best = plan(problem, method="static", gap_target=0)
        written, question = plan_from_json(plan_to_json(certified(best, problem), problem))
        assert verify(written, question) == []
        faults, words, _ = verify_bound(written, question)
        assert faults == []
        assert "proven again" in words
        assert written.certificate is not None
        proven = proven_bound(written.certificate, question, constant=True)
        assert 0.97 * best.objective <= proven <= best.objective + 1e-9
        free = plan(problem, method="greedy")
        claim = replace(written.certificate, rest="")
        moved = replace(free, certificate=claim, bound=min(written.certificate.bound, free.objective))
        assert verify_bound(moved, problem)[0] != []


def test_no_certificate_proves_more_than_the_optimum(problem_of: Any) -> None:
    """Whatever prices stand in it: random ones, and those of the search made larger, prove nothing false."""
    rng = np.random.default_rng(5)
    problem = problem_of(rng.uniform(0, 3, (1, 2, 4)), ["1g.5gb", "3g.20gb"], gpus=4)
    best = plan(problem, gap_target=0)
    assert best.status == "optimal"
    honest = plan(problem, method="milp", gap_target=0.3).certificate
    assert honest is not None
    for _ in range(100):
        wild = {name: price * rng.uniform(0, 3) for name, price in honest.tree.items()}
        wild |= {
            f"fleet_{rng.integers(4)}": -float(rng.exponential()),
            "coverage_1_0": float(rng.exponential()),
        }
        assert proven_bound(replace(honest, tree=wild), problem) <= best.objective + 1e-9


def test_words_for_what_was_not_checked(problem_of: Any) -> None:
    problem = problem_of([[[1.0, 2.0, 1.0]]], ["3g.20gb"], gpus=2)
    small = plan(problem)  # all states were tried: that leaves no proof behind
    assert verify_bound(small, problem) == (
        [],
        "bound not proven: the plan holds no certificate; plan again to have one",
        False,
    )
    static = plan(problem, method="static")
    assert verify_bound(static, problem)[1].startswith("bound not proven: the plan holds no certificate")
    assert "proven again" in verify_bound(certified(static, problem), problem)[1]
    whole = plan(problem, method="milp", gap_target=0)
    assert whole.certificate is not None
    assert verify_bound(whole, problem)[0] == []
    values = json.loads(plan_to_json(whole, problem))
    del values["plan"]["certificate"]
    old, question = plan_from_json(json.dumps(values))
    assert old.certificate is None
    assert "bound not proven" in verify_bound(old, question)[1]
    values["plan"]["certificate"] = {"bound": 3}
    with pytest.raises(ScenarioError, match="plan file: certificate"):
        plan_from_json(json.dumps(values))
    other = problem_of([[[1.0, 2.0, 1.0]]], ["7g.40gb"], gpus=2, slot_start=MONDAY)
    faults, *_ = verify_bound(whole, other)
    assert "proves nothing for this problem" in faults[0]
    assert "plan again" in faults[0]


def test_certificates_that_speak_for_themselves_or_leave_layouts_out_prove_nothing(problem_of: Any) -> None:
    problem = problem_of([[[1.0, 2.0, 1.0]]], ["3g.20gb"], gpus=2, initial={"1g.5gb:7": 1})
    best = plan(problem, method="milp", gap_target=0)
    honest = best.certificate
    assert honest is not None
    assert proven_bound(honest, problem) > 0
    wrong = {
        "it states a reason or a bound that there is not": [
            replace(honest, rest="proven elsewhere"),
            replace(honest, bound=True),
            replace(honest, bound=math.nan),
        ],
        "its layouts lack 1g.5gb:7": [
            replace(honest, layouts=[name for name in honest.layouts if name != "1g.5gb:7"])
        ],
        "its layouts lack names of their own": [
            replace(honest, layouts=[*honest.layouts, honest.layouts[0]])
        ],
    }
    for words, certificates in wrong.items():
        for certificate in certificates:
            with pytest.raises(NoProof, match=words):
                proven_bound(certificate, problem)


def test_plans_of_small_fleets_get_a_certificate_when_they_are_written(problem_of: Any) -> None:
    """All states were tried; branching over the horizon closes the proof of most, and the others say how far."""
    rng = np.random.default_rng(9)
    closed = 0
    for _ in range(20):
        demand = rng.uniform(0, 2, (1, 3, int(rng.integers(2, 13))))
        problem = problem_of(demand, ["1g.5gb", "2g.10gb", "3g.20gb"], gpus=3, change_gpu_hours=0.3)
        best = certified(plan(problem), problem)
        faults, words, _ = verify_bound(best, problem)
        assert faults == []
        assert "proven again" in words
        closed += "proven again, without a solver" in words
    assert closed >= 15


@pytest.mark.parametrize("prices", [None, PRICES])
def test_bounds_of_long_horizons_are_those_of_their_parts(
    problem_of: Any, prices: StatePrices | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes from one part to the next are free: a little is lost, and what is left is proven from the file."""
    problem = some_problem(problem_of, np.random.default_rng(5), prices=prices)
    fluid = Fluid.of(replace(problem, demand=np.tile(problem.demand, (1, 1, 6)), available=None))
    effort = Effort.begin(gap_target=0, seed=0, solver="highs")
    whole = bound.lower_bound(fluid, (), effort).bound
    monkeypatch.setattr(bound, "_PART", 7)
    parts = bound.lower_bound(fluid, (), effort)
    assert 0.97 * whole <= parts.bound <= whole + 1e-6
    certificate = parts.certificate(fluid)
    assert certificate is not None
    assert parts.bound - 1e-6 <= proven_bound(certificate, fluid.problem) <= whole + 1e-6
