"""Layouts: validity, free slices, text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.errors import GeometryError
from gpuplanner.hardware import (
    Layout,
    Placement,
    format_layout,
    free_slices,
    is_valid,
    layout_faults,
    load_gpu_model,
    parse_layout,
    parse_placements,
    placed_layouts,
)

BOARD = "A100-40GB"
NAMES = [profile.name for profile in load_gpu_model("RTX-PRO-6000").profiles]


@given(st.dictionaries(st.sampled_from(NAMES), st.integers(1, 9)))
def test_text_round_trip(counts: dict[str, int]) -> None:
    text = format_layout(counts)
    assert parse_layout(text) == counts
    assert format_layout(parse_layout(text)) == text
    assert format_layout(dict(reversed(counts.items()))) == text


def test_text_is_canonical() -> None:
    assert (
        format_layout({"1g.20gb": 1, "2g.20gb": 1, "4g.40gb": 1, "3g.40gb": 0})
        == "4g.40gb:1,2g.20gb:1,1g.20gb:1"
    )
    assert format_layout({"MIG 1g.10gb": 2}) == "1g.10gb:2"
    assert parse_layout(" 1g.5gb:2 , 3g.20gb:1 ") == {"3g.20gb": 1, "1g.5gb": 2}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpu:1",
        "1g.5gb",
        "1g.5gb:0",
        "1g.5gb:-1",
        "1g.5gb:1.5",
        "1g.5gb:1,1g.5gb:2",
        "1g.5gb:1,",
        "gpu,off",
    ],
)
def test_text_that_is_no_layout(text: str) -> None:
    with pytest.raises(GeometryError):
        parse_layout(text)


@pytest.mark.parametrize(
    "counts", [{"gpu": 2}, {"gpu": 1, "1g.5gb": 1}, {"1g.5gb": -1}, {"1g.5gb": 1, "1G.5GB": 1}]
)
def test_counts_that_are_no_layout(counts: dict[str, int]) -> None:
    with pytest.raises(GeometryError, match="layout: expected profiles with counts above 0"):
        format_layout(counts)


@pytest.mark.parametrize("board", ["A30", BOARD, "RTX-PRO-6000"])
def test_every_enumerated_layout_is_valid_and_round_trips(board: str) -> None:
    slices = set(range(load_gpu_model(board).memory_slices))
    for layout in placed_layouts(board):
        assert parse_placements(board, str(layout)) == layout
        taken = [s for p in layout.placements for s in range(p.start, p.start + p.size)]
        assert set(free_slices(board, layout)) == slices - set(taken)
        assert len(taken) == len(set(taken))
        assert is_valid(board, layout)


def test_layouts_do_not_depend_on_the_order_of_their_placements() -> None:
    one, other = Placement(0, 4, "4g.20gb"), Placement(4, 4, "3g.20gb")
    assert Layout((one, other)) == Layout((other, one))
    assert Layout((other, one)).counts == {"4g.20gb": 1, "3g.20gb": 1}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("3g.20gb@2", "3g.20gb@2 is no legal start: 3g.20gb may start at 0, 4"),
        ("1g.5gb@7", "1g.5gb@7 is no legal start: 1g.5gb may start at 0-6"),
        ("2g.10gb@4 1g.5gb@5", "2g.10gb@4 and 1g.5gb@5 overlap in memory slices 5"),
        ("1g.5gb+me@0 1g.5gb+me@1", "1g.5gb+me x2: A100-40GB holds at most 1"),
    ],
)
def test_faults_in_words(text: str, fault: str) -> None:
    board = load_gpu_model(BOARD)
    faults = layout_faults(board, parse_placements(board, text))
    assert any(sorted(fault) == sorted(found) for found in faults), faults


def test_engine_fault_in_words() -> None:
    """On an A30 the two profiles with media extensions share one JPEG and one OFA engine."""
    faults = layout_faults("A30", parse_placements("A30", "2g.12gb+me@0 1g.6gb+me@2"))
    assert faults == [
        "2g.12gb+me x1 and 1g.6gb+me x1 need 2 JPEG engines; A30-24GB has 1",
        "2g.12gb+me x1 and 1g.6gb+me x1 need 2 OFA engines; A30-24GB has 1",
    ]


@pytest.mark.parametrize("text", ["3g.20gb", "3g.20gb@", "3g.20gb@-4", "4"])
def test_placement_text_that_cannot_be_read(text: str) -> None:
    with pytest.raises(GeometryError, match="profile@start"):
        parse_placements(BOARD, text)
