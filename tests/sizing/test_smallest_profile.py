"""The smallest profile that is enough, against a search by hand over the rows of the board."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.usage.requested_demand import slice_profiles, smallest_by_compute, smallest_for_share, smallest_profile

BOARDS = ("A100-40GB", "A100-80GB", "H100-80GB-SXM5", "A30-24GB", "B200-180GB", "RTX-PRO-6000-Blackwell-96GB")


def chosen(gpu_model, sms, memory_gib):
    needs = pl.DataFrame([(sms, memory_gib)], schema={"sms": pl.Float64, "memory_gib": pl.Float64}, orient="row")
    return needs.select(smallest_profile(gpu_model, pl.col("sms"), pl.col("memory_gib"))).item()


@settings(deadline=None)
@given(st.sampled_from(BOARDS), st.floats(0, 150), st.floats(0, 140))
def test_nothing_smaller_would_do_and_what_is_chosen_does(name, sms, memory_gib):
    gpu_model = load_gpu_model(name)
    rows = [
        (part.compute_slices, part.memory_slices, part.name)
        for part in gpu_model.profiles
        if part.attribute == ""
        and part.memory_slices < gpu_model.memory_slices
        and part.sms >= sms
        and part.memory_gib >= memory_gib
    ]
    assert chosen(name, sms, memory_gib) == (min(rows)[2] if rows else "gpu")


def test_a_need_that_was_not_observed_is_a_whole_gpu():
    assert chosen("H100-80GB-SXM5", None, 1.0) == chosen("H100-80GB-SXM5", 1.0, None) == "gpu"


def test_where_no_source_states_the_sizes_of_slices_all_are_whole_gpus():
    assert slice_profiles("B300") == ()
    assert chosen("B300", 1.0, 1.0) == "gpu"
    assert pl.DataFrame({"share": [0.1]}).select(smallest_for_share("B300", pl.col("share"))).item() == "gpu"


@settings(deadline=None)
@given(st.sampled_from(BOARDS), st.floats(0, 1))
def test_a_share_is_reached_in_sms_and_in_memory(name, share):
    gpu_model = load_gpu_model(name)
    rows = [
        (part.compute_slices, part.memory_slices, part.name)
        for part in slice_profiles(gpu_model)
        if part.sms / gpu_model.sms >= share and part.memory_slices / gpu_model.memory_slices >= share
    ]
    found = pl.DataFrame({"share": [share]}).select(smallest_for_share(name, pl.col("share"))).item()
    assert found == (min(rows)[2] if rows else "gpu")


@pytest.mark.parametrize("name", BOARDS)
def test_a_number_of_compute_slices_stands_for_its_least_memory(name):
    gpu_model = load_gpu_model(name)
    found = smallest_by_compute(gpu_model)
    assert set(found) == {part.compute_slices for part in gpu_model.profiles}
    for part in gpu_model.profiles:
        assert found[part.compute_slices].memory_slices <= part.memory_slices
    assert all(part.attribute == "" for part in found.values())


def test_graphics_need_a_profile_with_graphics():
    gpu_model = load_gpu_model("RTX-PRO-6000-Blackwell-96GB")
    assert not gpu_model.profile("4g.96gb").serves(gpu_model.profile("1g.24gb+gfx"))
