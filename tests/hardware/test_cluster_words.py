"""Words of clusters are facts that hold together: types, labels and resources against boards and prices."""

from __future__ import annotations

import polars as pl
import pytest

from gpuplanner.hardware.catalog import (
    facts,
    find_instance_type,
    list_gpu_models,
    list_node_labels,
    list_resource_names,
    list_sharing_systems,
    match_gpu_models,
)


def test_instance_types_are_known_once_and_of_boards_of_the_catalogue():
    types = facts("instance_types")
    assert types["instance_type"].str.to_lowercase().is_duplicated().sum() == 0
    assert set(types["gpu_model"]) <= set(list_gpu_models())
    assert types["gpus"].is_between(1, 16).all()
    assert types["board_share"].is_between(0, 1, closed="right").all()
    assert types.filter(pl.col("board_share") < 1)["gpus"].unique().to_list() == [1]
    assert types.height >= 300, "instance types were lost"


def test_instance_types_and_price_lists_say_the_same():
    prices = facts("gpu_prices").select("instance_type", "gpu_model", "gpu_count").unique()
    both = prices.join(facts("instance_types"), on="instance_type")
    assert both.height >= 50, "priced instance types were lost"
    assert both.filter(pl.col("gpu_count") != pl.col("gpus")).is_empty()
    for priced, gpu_model in both.select("gpu_model", "gpu_model_right").iter_rows():
        assert gpu_model in match_gpu_models(priced) or gpu_model.startswith(priced), (priced, gpu_model)


@pytest.mark.parametrize(
    ("name", "model", "gpus", "share"),
    [
        ("p5.48xlarge", "H100-80GB-SXM5", 8, 1.0),
        ("ml.g5.12xlarge", "A10G", 4, 1.0),
        ("a2-megagpu-16g", "A100-40GB", 16, 1.0),
        ("g2-standard-24", "L4", 2, 1.0),
        ("g2-standard-32", "L4", 1, 1.0),
        ("Standard_ND96isr_H100_v5", "H100-80GB-SXM5", 8, 1.0),
        ("standard_nv6ads_a10_v5", "A10", 1, 1 / 6),
        ("g6f.xlarge", "L4", 1, 1 / 8),
        ("BM.GPU.MI300X.8", "MI300X", 8, 1.0),
        ("gd-8xh100ib-i128", "H100-80GB-SXM5", 8, 1.0),
        ("gpu_8x_a100", "A100-40GB", 8, 1.0),
    ],
)
def test_a_type_has_the_gpus_that_its_cloud_states(name: str, model: str, gpus: int, share: float):
    found = find_instance_type(name)
    assert found is not None
    assert (found.gpu_model, found.gpus) == (model, gpus)
    assert found.board_share == pytest.approx(share, abs=1e-6)


def test_labels_and_resources_stand_once_for_a_meaning():
    labels, words = facts("node_labels"), facts("gpu_resources")
    assert labels["label"].is_duplicated().sum() == 0
    assert words.select("word", "place", "system", "role").is_duplicated().sum() == 0
    assert set(list_node_labels("memory").values()) == {"MiB", "GiB"}
    assert len(list_resource_names("resource", "accelerator")) >= 10
    assert all("cores" in system or "memory" in system for system in list_sharing_systems())


@pytest.mark.parametrize(
    ("word", "gpu_model"),
    [
        ("rtx-pro-server-6000", "RTX-PRO-6000-Blackwell-96GB"),
        ("H100_NVLINK_80GB", "H100-80GB-SXM5"),
        ("nvidia-l4-vws", "L4"),
        ("a100l", "A100-80GB"),
        ("v100l", "V100-32GB-SXM2"),
        ("Quadro RTX 8000", "Quadro-RTX-8000"),
        ("quadro_rtx_8000", "Quadro-RTX-8000"),
        ("rtxa5000", "RTX-A5000"),
        ("AMD_Instinct_MI300X_VF", "MI300X"),
        ("74a1", "MI300X"),
        ("NVIDIA-L20", "L20"),
    ],
)
def test_words_of_clouds_and_sites_lead_to_their_board(word: str, gpu_model: str):
    assert match_gpu_models(word) == (gpu_model,)


def test_a_word_of_two_boards_is_not_decided():
    assert set(match_gpu_models("rtx_6000")) == {"Quadro-RTX-6000", "RTX-6000-Ada"}
