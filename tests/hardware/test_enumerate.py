"""Counts of layouts that were published or found by exhaustive search elsewhere."""

from __future__ import annotations

import pytest

from gpuplanner.core.errors import GeometryError
from gpuplanner.hardware import layout_enumeration as enumeration
from gpuplanner.hardware.catalog import mig_model_names
from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.hardware.layout_enumeration import (
    count_layouts,
    list_pareto_counts,
    list_placed_layouts,
    list_profile_counts,
)

EIGHT_SLICES = [name for name in mig_model_names() if load_gpu_model(name).memory_slices == 8]
CLASSIC = ["1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"]

# The 14 maximal ways to cut an A100, by compute slices, as in the MIG User Guide.
MAXIMAL_A100 = """
7
4 3
4 2 1
4 1 1 1
3 3
3 2 2
3 2 1 1
3 2 1
3 1 1 1 1
3 1 1 1
2 2 2 1
2 2 1 1 1
2 1 1 1 1 1
1 1 1 1 1 1 1
"""


def base(gpu_model: str) -> list[str]:
    """Profiles without media or graphics attribute."""
    return [profile.name for profile in load_gpu_model(gpu_model).profiles if not profile.attribute]


def as_tuple(counts: dict[str, int]) -> tuple[int, int, int, int]:
    return (counts["placed"], counts["placed_maximal"], counts["multisets"], counts["multisets_maximal"])


def test_a100_classic_profiles() -> None:
    assert as_tuple(count_layouts("A100-40GB", CLASSIC)) == (297, 19, 37, 14)


@pytest.mark.parametrize("gpu_model", EIGHT_SLICES)
def test_eight_slice_boards(gpu_model: str) -> None:
    assert as_tuple(count_layouts(gpu_model, base(gpu_model))) == (722, 78, 77, 38)
    assert as_tuple(count_layouts(gpu_model)) == (2318, 239, 127, 64)


def test_a30() -> None:
    assert as_tuple(count_layouts("A30", base("A30"))) == (25, 5, 9, 4)
    assert as_tuple(count_layouts("A30")) == (75, 17, 19, 8)


def test_rtx_pro_6000() -> None:
    assert as_tuple(count_layouts("RTX-PRO-6000", base("RTX-PRO-6000"))) == (25, 5, 9, 4)
    assert as_tuple(count_layouts("RTX-PRO-6000")) == (716, 302, 114, 64)


def test_fourteen_maximal_multisets_of_an_a100() -> None:
    expected = {tuple(map(int, line.split())) for line in MAXIMAL_A100.split("\n") if line}
    found = {
        tuple(int(name[0]) for name, count in counts.items() for _ in range(count))
        for counts in list_profile_counts("A100-40GB", CLASSIC, maximal=True)
    }
    assert found == expected
    assert len(expected) == 14


def test_maximal_layouts_are_left_halves_times_right_halves() -> None:
    """Six left halves (4; 3; 2+2; 2+1+1; 1+1+2; 1+1+1+1) times three right halves (3; 2+1; 1+1+1), and 7g."""
    layouts = list_placed_layouts("A100-40GB", CLASSIC, maximal=True)
    halves = [
        tuple(" ".join(p.profile[0] for p in layout.placements if (p.start < 4) is left) for left in (True, False))
        for layout in layouts
        if "7g.40gb" not in layout.counts
    ]
    assert len(halves) == 18
    assert {left for left, _ in halves} == {"4", "3", "2 2", "2 1 1", "1 1 2", "1 1 1 1"}
    assert {right for _, right in halves} == {"3", "2 1", "1 1 1"}


@pytest.mark.parametrize("gpu_model", mig_model_names())
def test_stand_alone_fill_of_a_profile_is_its_maximum(gpu_model: str) -> None:
    for profile in load_gpu_model(gpu_model).profiles:
        most = max(counts[profile.name] for counts in list_profile_counts(gpu_model, [profile.name]))
        assert most == profile.max_instances


@pytest.mark.parametrize("gpu_model", ["A100-40GB", "H100-80GB-SXM5", "B200"])
def test_twenty_five_placements(gpu_model: str) -> None:
    """The number of devices that the Kubernetes DRA driver publishes for one such GPU."""
    assert sum(len(profile.starts) for profile in load_gpu_model(gpu_model).profiles) == 25
    assert sum(len(layout.placements) == 1 for layout in list_placed_layouts(gpu_model)) == 25


@pytest.mark.parametrize("gpu_model", mig_model_names())
def test_maximal_means_that_nothing_can_be_added(gpu_model: str) -> None:
    """Removing an instance from a layout leaves a layout; only maximal ones come from no larger one."""
    every = list_placed_layouts(gpu_model)
    places = {layout.placements for layout in every}
    assert len(places) == len(every)
    smaller = {tuple(p for p in layout.placements if p is not gone) for layout in every for gone in layout.placements}
    assert smaller - {()} <= places
    assert {layout.placements for layout in list_placed_layouts(gpu_model, maximal=True)} == places - smaller


@pytest.mark.parametrize("gpu_model", ["A30", "A100-40GB", "RTX-PRO-6000", "RTX-PRO-5000", "RTX-PRO-4500"])
def test_pareto_counts_are_undominated_and_cover_everything(gpu_model: str) -> None:
    def within(small: dict[str, int], large: dict[str, int]) -> bool:
        return all(count <= large.get(name, 0) for name, count in small.items())

    front, every = list_pareto_counts(gpu_model), list_profile_counts(gpu_model)
    assert all(any(within(counts, top) for top in front) for counts in every)
    assert all(counts in every for counts in front)
    assert not any(within(one, other) for one in front for other in front if one is not other)
    assert front == sorted(front, key=every.index)


def test_too_many_layouts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enumeration, "MAX_LAYOUTS_PER_GPU_MODEL", 10)
    enumeration._enumerate_layouts.cache_clear()
    with pytest.raises(GeometryError, match="at most 10"):
        list_placed_layouts("RTX-PRO-4500")
