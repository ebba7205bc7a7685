"""Requests as profiles of a board: names, fractions, whole GPUs."""

from __future__ import annotations

import pytest

from gpuplanner.core.errors import GeometryError, GpuPlannerWarning
from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.usage.requested_demand import profile_sizes, resolve_requests, slice_profiles, unknown_profiles


def resolved(jobs, gpu_model="H100-80GB-SXM5"):
    return resolve_requests(jobs, gpu_model).select("profile", "instances").rows()


@pytest.mark.parametrize(
    ("gpus", "named", "expected"),
    [
        (1.0, "3g.40gb", ("3g.40gb", 1)),
        (None, "1g.10gb", ("1g.10gb", 1)),
        (1.0, "1g.10gb+me", ("1g.10gb+me", 1)),
        (1.0, None, ("gpu", 1)),
        (8.0, None, ("gpu", 8)),
        (0.0, None, (None, 0)),
    ],
)
def test_requests_of_an_h100(make_jobs, gpus, named, expected):
    assert resolved(make_jobs({"gpus": gpus, "profile_requested": named})) == [expected]


@pytest.mark.parametrize(
    ("gpu_model", "fraction", "expected"),
    [
        # H100: 16, 26, 32, 60, 64 of 132 SMs; 1, 2, 2, 4, 4 of 8 memory slices
        ("H100-80GB-SXM5", 0.12, "1g.10gb"),
        ("H100-80GB-SXM5", 0.20, "2g.20gb"),
        ("H100-80GB-SXM5", 0.46, "4g.40gb"),
        ("A100-80GB", 0.13, "2g.20gb"),
        ("A30-24GB", 0.50, "2g.12gb"),
    ],
)
def test_fractions_are_covered_in_sms_and_memory(make_jobs, gpu_model, fraction, expected):
    assert resolved(make_jobs({"gpus": fraction}), gpu_model) == [(expected, 1)]


def test_unknown_profiles_fall_back_to_gpus_and_are_counted(make_jobs):
    jobs = make_jobs(
        {"profile_requested": "1g.5gb", "gpus": 0.1},
        {"profile_requested": "1g.5gb"},
        {"profile_requested": "nonsense"},
        {"profile_requested": "1g.10gb"},
    )
    with pytest.warns(GpuPlannerWarning, match="3 jobs name a profile that H100-80GB-SXM5 does not have"):
        assert resolved(jobs) == [("1g.10gb", 1), ("gpu", 1), ("gpu", 1), ("1g.10gb", 1)]
    assert unknown_profiles(jobs, "H100-80GB-SXM5").rows() == [("1g.5gb", 2), ("nonsense", 1)]


def test_a_board_whose_sms_no_source_states_has_no_slices_to_map_to(make_jobs):
    assert slice_profiles("B300") == ()
    assert resolved(make_jobs({"gpus": 0.1}, {"profile_requested": "1g.34gb"}), "B300") == [("gpu", 1), ("1g.34gb", 1)]
    with pytest.raises(GeometryError, match="SMs"):
        profile_sizes(load_gpu_model("B300"))


def test_ranks_run_from_slices_to_the_whole_gpu():
    ranks = dict(profile_sizes(load_gpu_model("H100-80GB-SXM5")).select("profile", "rank").iter_rows())
    assert sorted((rank, name) for name, rank in ranks.items() if rank is not None) == [
        (0, "1g.10gb"),
        (1, "1g.20gb"),
        (2, "2g.20gb"),
        (3, "3g.40gb"),
        (4, "4g.40gb"),
        (5, "7g.80gb"),
        (6, "gpu"),
    ]
    assert ranks["1g.10gb+me"] is None
