"""Boards are found under every name that a scheduler, a driver or a cloud gives them."""

from __future__ import annotations

import polars as pl
import pytest

from gpuplanner.core.errors import GeometryError
from gpuplanner.hardware.catalog import (
    facts,
    find_slurm_type,
    list_gpu_models,
    list_model_aliases,
    match_gpu_models,
    mig_model_names,
)

AMBIGUOUS = {
    "a100", "gh200", "h100", "h100_80gb", "h20", "NVIDIA H100", "NVIDIA-H100", "P100", "v100", "V100M32", "v100_pcie",
    "volta", "rtx_6000", "AMD Instinct MI60 / MI50",
}  # fmt: skip
"""Names that several boards share; every other name belongs to one."""
NO_NVML_NAME = {
    "MI25", "MI50", "MI60", "MI100", "MI210", "MI300A", "MI308X", "MI350X", "Radeon-Pro-V520", "Radeon-Pro-V620",
    "Radeon-Pro-V710", "T4G", "M60", "GTX-1080-Ti",
}  # fmt: skip
"""Boards without a data sheet in the catalogue that are AMD's, or whose NVML name no source states."""


def test_every_board_of_the_catalogue_has_its_names():
    with_sheet = facts("gpu_specs").select(pl.coalesce("mig_model", "gpu_model")).to_series()
    amd = set(facts("gpu_specs").filter(vendor="AMD")["gpu_model"])
    assert {*mig_model_names(), *with_sheet} <= set(list_gpu_models())
    assert {
        gpu_model for gpu_model in list_gpu_models() if not list_model_aliases(gpu_model, "nvml")
    } == amd | NO_NVML_NAME
    assert all(list_model_aliases(gpu_model, "gres_type") for gpu_model in list_gpu_models())


def test_only_declared_names_are_shared():
    owners = facts("board_names").group_by("kind", "name").agg(pl.col("gpu_model").n_unique())
    assert set(owners.filter(pl.col("gpu_model") > 1)["name"]) == AMBIGUOUS


def test_every_name_leads_to_its_board_in_any_writing():
    for gpu_model, name in facts("board_names").select("gpu_model", "name").iter_rows():
        for text in (name, name.upper(), name.replace(" ", "_"), name.replace("-", " ").lower()):
            assert gpu_model in match_gpu_models(text), (gpu_model, text)
    for variant, gpu_model in facts("gpu_specs").select("gpu_model", "mig_model").iter_rows():
        assert match_gpu_models(variant) == (gpu_model or variant,)


@pytest.mark.parametrize(
    ("word", "boards"),
    [
        ("NVIDIA-A100-SXM4-80GB", ("A100-80GB",)),  # label of a node
        ("A100-SXM4-80GB", ("A100-80GB",)),  # drivers before 470 leave the maker out
        ("nvidia_a100", ("A100-40GB", "A100-80GB")),  # slurmd cuts at the first dash
        ("nvidia-tesla-a100", ("A100-40GB",)),  # label of GKE, not the ambiguous word
        ("h100", ("H100-80GB-SXM5", "H100-80GB-PCIe", "H100-94GB", "H100-64GB-SXM5")),
        ("Tesla-P100-PCIE-16GB", ("P100-16GB-PCIe",)),
        ("G2", ()),  # code names of OpenB that no source explains
        ("", ()),
    ],
)
def test_words_of_real_sources(word, boards):
    assert match_gpu_models(word) == boards


def test_slurm_types_are_those_of_the_usual_variant():
    # Cut by hand from the names that nvidia-smi prints.
    seen = {
        "A30-24GB": "nvidia_a30",
        "A100-40GB": "nvidia_a100",
        "A100-80GB": "nvidia_a100",
        "H100-80GB-SXM5": "nvidia_h100_80gb_hbm3",
        "H100-80GB-PCIe": "nvidia_h100_pcie",
        "H100-94GB": "nvidia_h100_nvl",
        "H200-141GB": "nvidia_h200",
        "V100-16GB-SXM2": "tesla_v100",
    }
    assert {gpu_model: find_slurm_type(gpu_model) for gpu_model in seen} == seen
    with pytest.raises(GeometryError, match="slurmd detects"):
        find_slurm_type("MI300X")
