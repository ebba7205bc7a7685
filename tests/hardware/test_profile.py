"""Profile names: what drivers, resource lists, Slurm and DRA write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.core.errors import GeometryError
from gpuplanner.hardware.gpu_models import ProfileName

ATTRIBUTES = ["", "+me", "+me.all", "-me", "+gfx"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("1G.10GB", "1g.10gb"),
        ("MIG 1g.10gb", "1g.10gb"),
        ("mig-1g.10gb.me", "1g.10gb+me"),  # resource name nvidia.com/mig-1g.10gb.me
        ("1g.24gb-me", "1g.24gb-me"),
        ("1g.24gb.me.all", "1g.24gb+me.all"),
        ("1g23gb", "1g.23gb"),  # DRA device name
        ("1c.3g.20gb", "1c.3g.20gb"),
        (" 3g.40gb ", "3g.40gb"),
    ],
)
def test_spellings(text: str, name: str) -> None:
    assert str(ProfileName.parse_name(text)) == name


@pytest.mark.parametrize(
    "text", ["", "gpu", "3g", "g.10gb", "1g.gb", "0g.10gb", "1g.10", "1g.10gb+x", "1g.10gb ; rm", "1g.10gb\n3g.40gb"]
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(GeometryError, match="MIG profile"):
        ProfileName.parse_name(text)


@given(
    st.builds(
        ProfileName,
        compute_slices=st.integers(1, 9),
        memory_gb=st.integers(0, 999),
        attribute=st.sampled_from(ATTRIBUTES),
        compute_instance=st.none() | st.integers(1, 9),
    )
)
def test_print_and_parse_round_trip(name: ProfileName) -> None:
    assert ProfileName.parse_name(str(name)) == name
    assert ProfileName.parse_name(f"MIG {str(name).upper()}") == name
