"""Which instance serves which request, against matching by brute force."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.hardware.catalog import mig_model_names
from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.planner.plan_problem import can_serve, find_up_sets
from gpuplanner.planner.plan_verification import InstanceMatching
from tests.examples import examples

A100 = load_gpu_model("A100-40GB")
NAMES = ("1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "7g.40gb", "gpu")


def test_base_profiles_of_a_data_centre_board_are_a_chain() -> None:
    chain = ("7g.80gb", "4g.40gb", "3g.40gb", "2g.20gb", "1g.20gb", "1g.10gb")
    gpu_model = load_gpu_model("H100-80GB-SXM5")
    for (i, larger), (j, smaller) in itertools.product(enumerate(chain), repeat=2):
        assert can_serve(gpu_model, larger, smaller) == (i <= j)


def test_media_and_graphics_need_their_engines() -> None:
    assert not can_serve(A100, "4g.20gb", "1g.5gb+me")
    assert can_serve(A100, "7g.40gb", "1g.5gb+me")
    assert can_serve(A100, "1g.5gb+me", "1g.5gb")
    rtx = load_gpu_model("RTX-PRO-6000-Blackwell-96GB")
    assert can_serve(rtx, "1g.24gb+gfx", "1g.24gb")
    assert not can_serve(rtx, "2g.48gb", "1g.24gb+gfx")
    assert not can_serve(rtx, "2g.48gb-me", "1g.24gb")


@pytest.mark.parametrize("name", mig_model_names())
def test_serving_is_an_order_with_the_whole_board_above_all_its_own_kind(name: str) -> None:
    gpu_model = load_gpu_model(name)
    names = [profile.name for profile in gpu_model.profiles]
    for a, b, c in itertools.product(names, repeat=3):
        assert can_serve(gpu_model, a, a)
        if can_serve(gpu_model, a, b) and can_serve(gpu_model, b, c):
            assert can_serve(gpu_model, a, c)
    assert not any(can_serve(gpu_model, "gpu", p) or can_serve(gpu_model, p, "gpu") for p in names)


def can_match(requests: list[str], instances: list[str]) -> bool:
    """Give each request an instance of its own, by trying."""
    if not requests:
        return True
    return any(
        can_serve(A100, instance, requests[0]) and can_match(requests[1:], instances[:i] + instances[i + 1 :])
        for i, instance in enumerate(instances)
    )


@settings(max_examples=examples(40), deadline=None)
@given(requests=st.lists(st.sampled_from(NAMES), max_size=5), instances=st.lists(st.sampled_from(NAMES), max_size=6))
def test_up_sets_and_augmenting_paths_decide_every_matching(requests: list[str], instances: list[str]) -> None:
    asked, there = tuple(dict.fromkeys(requests)), tuple(dict.fromkeys(instances))
    possible = can_match(requests, instances)
    by_sets = all(
        sum(requests.count(asked[r]) for r in rs) <= sum(instances.count(there[i]) for i in served)
        for rs, served in find_up_sets(A100, asked, there)
    )
    able = [[i for i in there if can_serve(A100, i, r)] for r in asked]
    matching = InstanceMatching(able, {i: instances.count(i) for i in there})
    by_paths = all(matching.serve(n, requests.count(r)) == requests.count(r) for n, r in enumerate(asked))
    assert by_sets == by_paths == possible
