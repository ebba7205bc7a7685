"""Demand goes to the first GPU model in order that has room: hand counts, and laws on random pools."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.decision.gpu_model_decisions import (
    FlexibleDemand,
    Substitute,
    apply_transfers,
    find_substitute_profile,
    route_demand,
)
from gpuplanner.hardware.gpu_models import load_gpu_model, make_non_mig_model
from gpuplanner.planner.fleet_limits_and_prices import Limits, Quota
from gpuplanner.planner.plan_problem import PlanProblem

MONDAY = datetime(2026, 11, 2, tzinfo=UTC)
ALL = np.ones(1)


def pool(gpus, demand, *, model="T4", tenants=("ads",), **more):
    """A pool of full GPUs; demand by tenant and slot."""
    rows = np.array(demand, dtype=float)[:, None, :]
    return PlanProblem(make_non_mig_model(model), gpus, gpus, MONDAY, 1, tenants, ["gpu"], rows, **more)


def flexible(name, *order, part=ALL):
    """All demand of a pool's full GPUs, free to go to other pools in an order."""
    return FlexibleDemand(name, "gpu", part, tuple(Substitute(other, "gpu", each, part) for other, each in order))


def amounts(transfers):
    """By origin and place, what all tenants send, slot by slot."""
    return {(one.origin[0], one.destination[0]): one.amount.sum(axis=0).tolist() for one in transfers}


def test_the_first_model_with_room_takes_the_demand_and_the_next_one_the_rest():
    pools = {"a": pool(4, [[4, 4, 4]]), "b": pool(3, [[1, 3, 0]]), "c": pool(8, [[0, 0, 8]])}
    sent = route_demand(pools, [flexible("a", ("b", 1.0), ("c", 1.0))])
    assert amounts(sent) == {("a", "b"): [2, 0, 3], ("a", "c"): [2, 4, 0]}


def test_the_own_model_keeps_in_its_turn_what_it_has_room_for():
    pools = {"a": pool(4, [[2, 6]]), "b": pool(8, [[0, 0]])}
    assert amounts(route_demand(pools, [flexible("a", ("b", 1.0))])) == {("a", "b"): [2, 6]}
    own_first = flexible("a", ("a", 1.0), ("b", 1.0))
    assert amounts(route_demand(pools, [own_first])) == {("a", "b"): [0, 2]}


def test_a_slower_model_needs_more_room_and_more_instances():
    pools = {"a": pool(4, [[4]]), "b": pool(6, [[0]])}
    sent = route_demand(pools, [flexible("a", ("b", 2.0))])
    given_to = apply_transfers(pools, sent)
    assert amounts(sent) == {("a", "b"): [3]}
    assert (given_to["a"].demand.item(), given_to["b"].demand.item()) == (1, 6)


def test_room_that_demand_leaves_behind_serves_the_next_pool():
    pools = {"a": pool(2, [[2]]), "b": pool(2, [[0]]), "c": pool(2, [[4]])}
    sent = route_demand(pools, [flexible("a", ("b", 1.0)), flexible("c", ("a", 1.0))])
    assert amounts(sent) == {("a", "b"): [2], ("c", "a"): [2]}


def test_tenants_share_room_by_what_they_ask_for_and_bring_tier_and_price():
    both = pool(4, [[3], [1]], tenants=("ads", "bio"), tiers=("guaranteed", "standard"), unmet_price=(9.0, 5.0))
    pools = {"a": both, "b": pool(2, [[0]], tenants=("ads",), unmet_price=7.0), "c": pool(2, [[2]])}
    sent = route_demand(pools, [flexible("a", ("b", 1.0), part=np.ones(2))])
    assert sent[0].amount.tolist() == [[1.5], [0.5]]
    there = apply_transfers(pools, sent)
    assert there["b"].tenants == ("ads", "bio")
    assert there["b"].unmet_price == (7.0, 5.0)
    assert there["b"].tiers == ("standard", "standard")
    assert there["b"].demand[:, 0, 0].tolist() == [1.5, 0.5]
    assert there["c"] is pools["c"]


def test_what_quotas_refuse_goes_nowhere():
    held = pool(4, [[4]], limits=Limits(quotas={"ads": Quota(1.0)}))
    pools = {"a": held, "b": pool(4, [[0]])}
    sent = route_demand(pools, [flexible("a", ("b", 1.0))])
    assert amounts(sent) == {("a", "b"): [1]}
    there = apply_transfers(pools, sent)
    assert there["a"].pooled_demand.sum() == 0
    assert there["b"].pooled_demand.sum() == 1


@st.composite
def fleets(draw):
    """Three pools of one or two tenants, each with demand that may go to the other two."""
    names, pools, demand = ("a", "b", "c"), {}, []
    for name in names:
        tenants = ("ads", "bio")[: draw(st.integers(1, 2))]
        rows = [[draw(st.integers(0, 6)) / 2 for _ in range(3)] for _ in tenants]
        pools[name] = pool(draw(st.integers(1, 6)), rows, tenants=tenants)
        order = draw(st.permutations(names))[: draw(st.integers(1, 3))]
        part = np.array([draw(st.sampled_from([0.0, 0.5, 1.0])) for _ in tenants])
        fits = [part * draw(st.sampled_from([0.5, 1.0])) if other != name else part for other in order]
        places = [
            Substitute(other, "gpu", 1.0 if other == name else draw(st.sampled_from([1.0, 2.0])), fit)
            for other, fit in zip(order, fits, strict=True)
        ]
        demand.append(FlexibleDemand(name, "gpu", part, tuple(places)))
    return pools, demand


@given(fleets())
def test_no_demand_is_lost_or_made_and_none_fills_a_pool_beyond_its_gpus(made):
    pools, demand = made
    sent = route_demand(pools, demand)
    there = apply_transfers(pools, sent)
    for name, own in pools.items():
        gone = sum((one.amount for one in sent if one.origin[0] == name), np.zeros((len(own.tenants), 3)))
        (flexible_part,) = (one.movable_share for one in demand if one.pool == name)
        assert (gone <= own.demand[:, 0] * flexible_part[:, None] + 1e-9).all()
        came = sum(one.amount.sum(axis=0) * one.instances_for_one for one in sent if one.destination[0] == name)
        assert there[name].pooled_demand[0] == pytest.approx(own.pooled_demand[0] - gone.sum(axis=0) + came)
        # A pool is never fuller than its GPUs, or than it was.
        assert (there[name].pooled_demand[0] <= np.maximum(own.gpus, own.pooled_demand[0]) + 1e-9).all()


def test_a_slice_is_served_by_the_smallest_slice_with_as_much_of_everything():
    old, new = load_gpu_model("A100-40GB"), load_gpu_model("H100-80GB-SXM5")
    assert find_substitute_profile(old, "3g.20gb", new)[0] == "3g.40gb"
    # Three sevenths of 989 TFLOPS against 312: a gain elsewhere counts nothing.
    assert find_substitute_profile(new, "3g.40gb", old) == ("7g.40gb", pytest.approx(989 * 3 / 7 / 312, rel=0.01))
    assert find_substitute_profile(new, "7g.80gb", old) is None
    assert find_substitute_profile(make_non_mig_model("lab-x"), "gpu", old) is None
