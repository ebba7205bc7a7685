"""Boards of the catalogue and boards of the user."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import polars as pl
import pytest

from gpuplanner.core.errors import GeometryError
from gpuplanner.hardware.catalog import facts, mig_model_names
from gpuplanner.hardware.gpu_models import LABEL_BY_RESOURCE, GpuModel, as_gpu_model, load_gpu_model
from gpuplanner.hardware.mig_layouts import prove
from gpuplanner.sizing.training_throughput import find_gpu_spec
from gpuplanner.usage.requested_demand import profile_sizes

Rows: TypeAlias = Callable[..., list[dict[str, Any]]]

# SMs per profile, from driver listings ("nvidia-smi mig -lgip").
LISTED_SMS = {
    "A100-40GB": {"1g.5gb": 14, "1g.10gb": 14, "2g.10gb": 28, "3g.20gb": 42, "4g.20gb": 56, "7g.40gb": 98},
    "H100-80GB-SXM5": {"1g.10gb": 16, "1g.20gb": 26, "2g.20gb": 32, "3g.40gb": 60, "4g.40gb": 64, "7g.80gb": 132},
    "H100-80GB-PCIe": {"1g.10gb": 14, "1g.20gb": 14, "2g.20gb": 30, "3g.40gb": 46, "4g.40gb": 62, "7g.80gb": 114},
    "B200-180GB": {"1g.23gb": 18, "1g.45gb": 30, "2g.45gb": 36, "3g.90gb": 70, "4g.90gb": 72, "7g.180gb": 148},
    "A30-24GB": {"1g.6gb": 14, "2g.12gb": 28, "4g.24gb": 56},
    "RTX-PRO-6000-Blackwell-96GB": {"1g.24gb": 46, "2g.48gb": 94, "4g.96gb": 188},
}


@pytest.mark.parametrize("gpu_model", LISTED_SMS)
def test_sms_are_those_that_the_driver_lists(gpu_model: str) -> None:
    model = load_gpu_model(gpu_model)
    assert {name: model.sms_of(name) for name in LISTED_SMS[gpu_model]} == LISTED_SMS[gpu_model]


def test_whole_board_has_the_sms_of_its_data_sheet() -> None:
    """An A100 that is not cut has 108 SMs, of which MIG reaches 98."""
    gpu_model = load_gpu_model("A100-80GB")
    assert (gpu_model.sms_of("gpu"), gpu_model.sms_of("7g.80gb")) == (108, 98)


@pytest.mark.parametrize(
    ("gpu_model", "name"),
    [("GB200", "3g.93gb"), ("B300", "gpu"), ("RTX-PRO-5000", "1g.24gb"), ("H20-96GB", "7g.96gb"), ("H20-141", "gpu")],
)
def test_sms_that_no_source_states_are_not_made_up(gpu_model: str, name: str) -> None:
    model = load_gpu_model(gpu_model)
    assert model.sms is None or name != "gpu"
    with pytest.raises(GeometryError, match="Nothing that counts SMs can be computed"):
        model.sms_of(name)


@pytest.mark.parametrize(
    ("gpu_model", "alias", "name"),
    [
        ("A100-80GB", "3g.39gb", "3g.40gb"),
        ("GB200", "1g.24gb", "1g.23gb"),  # pre-production boards
        ("H100-80GB-SXM5", "1g.10gb.me", "1g.10gb+me"),
        ("B200", "1g23gb", "1g.23gb"),
    ],
)
def test_names_of_other_drivers(gpu_model: str, alias: str, name: str) -> None:
    assert load_gpu_model(gpu_model).profile(alias).name == name


@pytest.mark.parametrize("name", ["H100-80GB", "V100", "", "A100-40GB-SXM4"])
def test_unknown_or_ambiguous_boards_are_refused(name: str) -> None:
    with pytest.raises(GeometryError, match="gpu_model"):
        load_gpu_model(name)


def test_own_board(toy_rows: Rows) -> None:
    gpu_model = load_gpu_model("TOY", pl.DataFrame(toy_rows(architecture="Hopper", board_sms=90)))
    assert isinstance(gpu_model, GpuModel)
    assert [profile.name for profile in gpu_model.profiles] == ["4g.32gb", "2g.16gb", "1g.8gb"]
    assert (gpu_model.sms_of("gpu"), gpu_model.sms_of("2g.16gb"), gpu_model.architecture) == (90, 40, "Hopper")
    assert gpu_model.budget == {"sms": 80, "copy_engines": 4}
    assert gpu_model.unstated_resources == ("decoders", "encoders", "jpeg_engines", "ofa_engines")
    assert prove(gpu_model, {"2g.16gb": 1, "1g.8gb": 2}).ok
    assert as_gpu_model(gpu_model) is gpu_model


def test_own_boards_stand_beside_the_catalogue(toy_rows: Rows) -> None:
    assert load_gpu_model("A30", toy_rows()) is load_gpu_model("A30")
    own = [row | {"gpu_model": "A30-24GB"} for row in toy_rows()]
    assert load_gpu_model("A30-24GB", own).memory_gib == 30
    unstated = [{name: value for name, value in row.items() if name != "memory_gib"} for row in own]
    assert load_gpu_model("A30-24GB", unstated).memory_gib == 32


@pytest.mark.parametrize("name", mig_model_names())
def test_a_gpu_has_the_memory_of_its_full_profile_in_every_module(name: str) -> None:
    gpu_model = load_gpu_model(name)
    rows = facts("mig_profiles").filter(gpu_model=name)
    full = rows.filter(pl.col("memory_slices") == pl.col("memory_slices_total"))["memory_gib"].max()
    assert gpu_model.memory_gib == (full or pytest.approx(0.98 * rows["memory_gib_total"][0]))
    assert all(
        profile.memory_gib is None or profile.memory_gib <= gpu_model.memory_gib for profile in gpu_model.profiles
    )
    specs = [find_gpu_spec(sheet) for sheet in facts("gpu_specs").filter(mig_model=name)["gpu_model"]]
    assert {spec.memory_gib for spec in specs if spec} <= {gpu_model.memory_gib}
    if gpu_model.sms is not None:
        assert profile_sizes(gpu_model).filter(profile="gpu")["memory_gib"].item() == gpu_model.memory_gib


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"profile": "small"}, "profile is not a name"),
        ({"profile": "2g.8gb"}, "compute_slices is 1, the name states 2"),
        ({"max_instances": 0}, "max_instances must be above 0"),
        ({"max_instances": 5}, "max_instances is 5 with 4 start"),
        ({"placement_starts": "0;x"}, "placement_starts must be slices"),
        ({"placement_size": 2}, "placement_size is 2, memory_slices 1"),
        ({"compute_slices_total": 5}, "compute_slices_total differs between rows: 4, 5"),
        ({"profile": "2g.17gb", "compute_slices": 2, "memory_slices": 2, "placement_starts": "0;2",
          "max_instances": 2}, "same slices and attribute"),
    ],
)  # fmt: skip
def test_rows_that_contradict_themselves_are_refused(toy_rows: Rows, changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(GeometryError, match=fault):
        load_gpu_model("TOY", toy_rows(**changes))


def test_catalogue_rows_stand_as_they_are() -> None:
    """Building the boards leaves nothing of the table out."""
    table = facts("mig_profiles")
    for row in table.iter_rows(named=True):
        profile = load_gpu_model(row["gpu_model"]).profile(row["profile"])
        assert profile.starts == tuple(int(start) for start in row["placement_starts"].split(";"))
        for key in ("compute_slices", "memory_slices", "max_instances", "memory_gib", *LABEL_BY_RESOURCE):
            assert getattr(profile, key) == row[key]


def test_a_profile_that_is_misspelled_is_answered_with_the_nearest_names():
    with pytest.raises(GeometryError, match=r"Did you mean '3g\.40gb'"):
        load_gpu_model("A100-80GB").profile("3g.40g")
