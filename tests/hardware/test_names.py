"""Words for devices, the boards that they may mean, and the fewest boards that hold some instances."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.hardware.catalog import derive_slurm_type, list_model_aliases, mig_model_names
from gpuplanner.hardware.gpu_model_names import (
    DeviceName,
    GpuFraction,
    common_gpu_fraction,
    parse_device_name,
    possible_gpu_models,
)
from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.hardware.layout_enumeration import MAX_GPUS_IN_FEWEST_GPUS_SEARCH, find_fewest_gpus, min_gpus_bound
from gpuplanner.hardware.mig_layouts import prove


@pytest.mark.parametrize(
    ("word", "gpu_model", "profile"),
    [
        ("a100_1g.5gb", "a100", "1g.5gb"),
        ("nvidia_a100_mig_1g.5gb", "nvidia_a100", "1g.5gb"),
        ("1g.5gb", None, "1g.5gb"),
        ("nvidia.com/mig-1g.10gb.me", None, "1g.10gb+me"),
        ("NVIDIA-H100-80GB-HBM3-SHARED", "NVIDIA-H100-80GB-HBM3", None),
        ("gpu", None, None),
        ("", None, None),
        ("h100_1c.3g.40gb", "h100", "1c.3g.40gb"),
        ("rtx_pro_6000_1g.24gb-me", "rtx_pro_6000", "1g.24gb-me"),
    ],
)
def test_a_word_has_two_parts(word, gpu_model, profile):
    assert parse_device_name(word) == DeviceName(gpu_model, profile)


@pytest.mark.parametrize("gpu_model", mig_model_names())
def test_what_labels_and_slurm_print_is_understood(gpu_model):
    """Labels and types as the tools derive them from NVML's names, with every profile of the board."""
    for name, profile in itertools.product(list_model_aliases(gpu_model, "nvml"), load_gpu_model(gpu_model).profiles):
        label = f"{name.replace(' ', '-')}-MIG-{profile.name.replace('+', '.')}"
        for word in (label, f"{derive_slurm_type(name)}_{profile.name}"):
            parts = parse_device_name(word)
            assert parts.profile == profile.name
            assert gpu_model in possible_gpu_models(parts.gpu_model, parts.profile)


def test_a_compute_instance_is_no_share():
    assert possible_gpu_models("h100", "1c.3g.40gb") == ()
    assert common_gpu_fraction([], "1c.3g.40gb") is None
    assert common_gpu_fraction(["A100-40GB", "T4"], "1g.5gb") is None
    assert common_gpu_fraction([], "gpu").compute == 1.0
    assert common_gpu_fraction(["A100-80GB", "H100-80GB-SXM5"], "1g.20gb") == GpuFraction(1 / 7, 2 / 8)


@given(st.sampled_from(["A100-40GB", "A30-24GB", "H100-80GB-SXM5"]), st.data())
def test_fewest_gpus_hold_all_and_no_fewer_do(name, data):
    gpu_model = load_gpu_model(name)
    profiles = [profile.name for profile in gpu_model.profiles if not profile.attribute]
    counts = data.draw(st.dictionaries(st.sampled_from(profiles), st.integers(1, 5), min_size=1, max_size=3))
    found = find_fewest_gpus(gpu_model, counts)
    assert found is not None
    assert all(prove(gpu_model, cut).ok for cut in found)
    assert {name: sum(cut.get(name, 0) for cut in found) for name in counts} == counts
    assert min_gpus_bound(gpu_model, counts) <= len(found)


def test_more_gpus_than_a_node_has_are_not_searched():
    assert (
        find_fewest_gpus("A100-40GB", {"1g.5gb": 7 * MAX_GPUS_IN_FEWEST_GPUS_SEARCH})
        == [{"1g.5gb": 7}] * MAX_GPUS_IN_FEWEST_GPUS_SEARCH
    )
    assert find_fewest_gpus("A100-40GB", {"1g.5gb": 7 * MAX_GPUS_IN_FEWEST_GPUS_SEARCH + 1}) is None
    assert find_fewest_gpus("A100-40GB", {}) == []
    assert min_gpus_bound(load_gpu_model("A100-40GB"), {"gpu": 2, "1g.5gb": 8}) == 4


@pytest.mark.parametrize(
    ("counts", "binding"),
    [
        ({"4g.40gb": 1, "2g.20gb": 2}, "8 of 7 compute slices"),
        ({"3g.40gb": 1, "1g.20gb": 3}, "10 of 8 memory slices"),
        ({"1g.10gb+me": 2}, "one has the media engines"),
    ],
)
def test_each_sort_of_slice_alone_may_ask_for_a_second_board(counts, binding):
    gpu_model = load_gpu_model("A100-80GB")
    assert min_gpus_bound(gpu_model, counts) == 2 == len(find_fewest_gpus(gpu_model, counts)), binding
