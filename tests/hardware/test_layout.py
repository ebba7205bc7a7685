"""Layouts: validity, free slices, text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.core.errors import GeometryError
from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.hardware.layout_enumeration import list_placed_layouts
from gpuplanner.hardware.mig_layouts import (
    find_free_slices,
    find_layout_faults,
    format_layout,
    parse_layout,
    parse_placements,
)

BOARD = "A100-40GB"
NAMES = [profile.name for profile in load_gpu_model("RTX-PRO-6000").profiles]


@given(st.dictionaries(st.sampled_from(NAMES), st.integers(1, 9)))
def test_text_round_trip(counts: dict[str, int]) -> None:
    text = format_layout(counts)
    assert parse_layout(text) == counts
    assert format_layout(parse_layout(text)) == text
    assert format_layout(dict(reversed(counts.items()))) == text


@pytest.mark.parametrize(
    "text", ["", "gpu:1", "1g.5gb", "1g.5gb:0", "1g.5gb:-1", "1g.5gb:1.5", "1g.5gb:1,1g.5gb:2", "1g.5gb:1,", "gpu,off"]
)
def test_text_that_is_no_layout(text: str) -> None:
    with pytest.raises(GeometryError):
        parse_layout(text)


@pytest.mark.parametrize("counts", [{"gpu": 2}, {"gpu": 1, "1g.5gb": 1}, {"1g.5gb": -1}, {"1g.5gb": 1, "1G.5GB": 1}])
def test_counts_that_are_no_layout(counts: dict[str, int]) -> None:
    with pytest.raises(GeometryError, match="layout: expected profiles with counts above 0"):
        format_layout(counts)


@pytest.mark.parametrize("gpu_model", ["A30", BOARD, "RTX-PRO-6000"])
def test_every_enumerated_layout_is_valid_and_round_trips(gpu_model: str) -> None:
    slices = set(range(load_gpu_model(gpu_model).memory_slices))
    for layout in list_placed_layouts(gpu_model):
        assert parse_placements(gpu_model, str(layout)) == layout
        taken = [s for p in layout.placements for s in range(p.start, p.start + p.size)]
        assert set(find_free_slices(gpu_model, layout)) == slices - set(taken)
        assert len(taken) == len(set(taken))
        assert not find_layout_faults(gpu_model, layout)


@pytest.mark.parametrize("text", ["3g.20gb", "3g.20gb@", "3g.20gb@-4", "4"])
def test_placement_text_that_cannot_be_read(text: str) -> None:
    with pytest.raises(GeometryError, match="profile@start"):
        parse_placements(BOARD, text)
