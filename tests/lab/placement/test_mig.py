"""MIG instances: fragmentation by its definition, placement by trying everything."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.errors import GeometryError, ScenarioError
from gpuplanner.hardware import Layout, Placement, as_board, is_valid, parse_placements, placed_layouts
from gpuplanner.lab.placement import mig_fragmentation, place_instances, verify_instances

PLAIN = ["1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"]


def useless(board, layout, demand):
    """Free slices of which no legal start of the profile makes use, by trying every start."""
    free = {s for s in range(board.memory_slices) if not layout.mask >> s & 1}
    total = 0.0
    for name, count in demand.items():
        profile = board.profile(name)
        used = set()
        for start in profile.starts:
            place = Placement.of(profile, start)
            grown = Layout((*layout.placements, place))
            if is_valid(board, grown):
                used |= {start + offset for offset in range(profile.memory_slices)}
        total += count * len(free - used)
    return total / sum(demand.values())


@pytest.mark.parametrize("name", ["A100-40GB", "A30-24GB", "H200-141GB"])
def test_fragmentation_by_definition(name):
    board = as_board(name)
    plain = [profile.name for profile in board.profiles if not profile.attribute]
    demand = {profile: weight for weight, profile in enumerate(plain, start=1)}
    layouts = [Layout(), *placed_layouts(board, plain)]
    for layout in layouts[:: max(len(layouts) // 60, 1)]:
        assert mig_fragmentation(board, layout, demand) == pytest.approx(useless(board, layout, demand))


def test_fragmentation_where_nothing_is_left_to_start():
    """Two 1g instances block all starts of 3g and 4g; all six free slices are lost to them."""
    layout = parse_placements("A100-40GB", "1g.5gb@1 1g.5gb@5")
    assert mig_fragmentation("A100-40GB", layout, {"3g.20gb": 1, "4g.20gb": 1}) == 6
    full = parse_placements("A100-40GB", "7g.40gb@0")
    assert mig_fragmentation("A100-40GB", full, {"1g.5gb": 3}) == 0


def test_maxima_and_engines_count():
    """A profile that one board holds once can use no slice once it stands there."""
    board = as_board("A100-80GB")
    once = next(profile for profile in board.profiles if profile.max_instances == 1 and profile.attribute)
    layout = Layout((Placement.of(once, once.starts[0]),))
    free = board.memory_slices - once.memory_slices
    assert mig_fragmentation(board, layout, {once.name: 1}) == free
    assert place_instances(board, [once.name] * 3, 2).gpu.tolist() == [0, 1, -1]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(PLAIN), min_size=1, max_size=12),
    st.integers(1, 3),
    st.sampled_from(["first-fit", "best-fit", "fgd"]),
)
def test_each_step_is_the_best_of_all_steps(asked, gpus, rule):
    board = as_board("A100-40GB")
    found = place_instances(board, asked, gpus, rule=rule)
    assert verify_instances(found) == []
    demand = Counter(asked)
    held = [Layout()] * gpus
    for number, name in enumerate(asked):
        gpu, start = int(found.gpu[number]), int(found.start[number])
        if gpu < 0:
            continue
        profile = board.profile(name)
        grown = {
            (one, place): Layout((*held[one].placements, Placement.of(profile, place)))
            for one in range(gpus)
            for place in profile.starts
        }
        legal = {key: layout for key, layout in grown.items() if is_valid(board, layout)}
        if rule == "first-fit":
            assert gpu == min(one for one, _ in legal)
        elif rule == "best-fit":
            assert held[gpu].mask.bit_count() == max(held[one].mask.bit_count() for one, _ in legal)
        else:
            rise = {
                (one, place): useless(board, layout, demand) - useless(board, held[one], demand)
                for (one, place), layout in legal.items()
            }
            least = min(rise.values())
            assert rise[gpu, start] == pytest.approx(least)
            assert gpu == min(one for (one, _), value in rise.items() if value <= least + 1e-9)
        held[gpu] = grown[gpu, start]
        total = sum(useless(board, layout, demand) for layout in held)
        assert found.fragmented_slices[number] == pytest.approx(total)
    assert found.layouts() == held
    assert found.allocated_slices == sum(layout.mask.bit_count() for layout in held)


def test_descent_holds_more_than_first_fit():
    """Small instances and halves in turn; the driver's own places scatter the small ones."""
    asked = np.random.default_rng(0).choice(["1g.5gb", "2g.10gb", "3g.20gb"], 300).tolist()
    placed = {
        rule: place_instances("A100-40GB", asked, 40, rule=rule).placed for rule in ("first-fit", "fgd")
    }
    assert placed["fgd"] > placed["first-fit"]


def test_faults_are_found():
    found = place_instances("A30", ["2g.12gb", "2g.12gb"], 1)
    found.start[1] = found.start[0]
    assert "cannot hold" in verify_instances(found)[0]
    found = place_instances("A30", ["2g.12gb", "2g.12gb"], 1)
    found.gpu[1] = -1
    assert verify_instances(found) == ["arrival 1: 2g.12gb was left out although a GPU has room"]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"gpus": 0}, ScenarioError),
        ({"profiles": []}, ScenarioError),
        ({"rule": "tetris"}, ScenarioError),
        ({"demand": {"1g.5gb": -1}}, ScenarioError),
        ({"demand": {"1g.5gb": 0}}, ScenarioError),
        ({"profiles": ["9g.99gb"]}, GeometryError),
        ({"board": "nothing"}, GeometryError),
    ],
)
def test_bad_input(given, error):
    with pytest.raises(error):
        place_instances(**{"board": "A100-40GB", "profiles": ["1g.5gb"], "gpus": 1} | given)
