"""Layouts that nodes get: none is changed that need not be."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.decision.policy_layouts import assign_layouts

LAYOUTS = ("gpu", "1g.5gb:7", "3g.20gb:2")


def test_nodes_that_have_wanted_layouts_keep_them():
    today = [("3g.20gb:2",) * 4, ("3g.20gb:2",) * 4, ("3g.20gb:2",) * 4, ("1g.5gb:7",) * 4]
    found = assign_layouts(today, [0, 1, 2, 3], ["1g.5gb:7"] * 8 + ["3g.20gb:2"] * 8)
    assert [number for number, layouts in found.items() if layouts != today[number]] == [2]


def test_a_layout_with_more_instances_than_needed_stays():
    """Deleting a 1g.5gb beside the needed 2g.10gb drains a node and gains nothing."""
    larger = "2g.10gb:3,1g.5gb:1"
    today = [(larger, "3g.20gb:2"), ("1g.5gb:7", "1g.5gb:7")]
    found = assign_layouts(today, [0, 1], ["2g.10gb:3", "3g.20gb:2", "1g.5gb:7", "2g.10gb:3"])
    assert found == {0: (larger, "3g.20gb:2"), 1: ("2g.10gb:3", "1g.5gb:7")}
    assert assign_layouts([(larger, larger)], [0], ["2g.10gb:3", "3g.20gb:2"]) == {0: (larger, "3g.20gb:2")}


def test_what_is_left_of_the_last_node_is_not_partitioned():
    assert assign_layouts([("gpu",) * 4], [0], ["1g.5gb:7"]) == {0: ("gpu", "gpu", "gpu", "1g.5gb:7")}


@given(st.lists(st.sampled_from(LAYOUTS), min_size=1, max_size=5), st.lists(st.sampled_from(LAYOUTS), max_size=10))
def test_every_wanted_layout_is_assigned_once(today: list[str], wanted: list[str]):
    wanted = wanted[: 2 * len(today)]
    nodes = [(layout,) * 2 for layout in today]
    found = assign_layouts(nodes, range(len(nodes)), wanted)
    given_out = Counter(layout for layouts in found.values() for layout in layouts)
    assert Counter(wanted) <= given_out
    assert set(given_out - Counter(wanted)) <= {"gpu"}
    assert len(found) <= len(wanted)
