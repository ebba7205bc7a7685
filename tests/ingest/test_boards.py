"""Words of a source become boards, shares and instances; what they do not decide is said, and never a whole GPU."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.hardware.catalog import mig_model_names
from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.ingest.job_gpu_counting import count_jobs_in_gpus, resolve_node_models


def job(devices=None, gpus=None, **further):
    return {"job_id": "1", "gpus": gpus, "devices": devices, "gpu_model": None, "node_list": None, **further}


def table(*rows):
    types = dict.fromkeys(("job_id", "devices", "gpu_model", "node_list", "profile_requested"), pl.String)
    return pl.DataFrame(rows, schema_overrides=types | {"gpus": pl.Float64}, infer_schema_length=None)


def nodes(*rows):
    names = ("node", "gpus", "gpu_model", "layouts")
    return pl.DataFrame(
        rows, schema=dict(zip(names, (pl.String, pl.Int32, pl.String, pl.String), strict=True)), orient="row"
    )


def resolved(*rows, inventory=None, stated=None):
    told, _, findings = count_jobs_in_gpus(table(*rows), inventory, stated)
    return told, {finding.check: finding for finding in findings}


UNKNOWN = "MIG instances of an unknown GPU model"
UNDECIDED = "GPU model ambiguous by its name"
STRANGE = "unknown GPU type"


@pytest.mark.parametrize(
    ("word", "gpu_model", "share", "memory", "profile"),
    [
        ("a100_1g.5gb", "A100-40GB", 1 / 7, 1 / 8, "1g.5gb"),
        ("NVIDIA_A100_3G.39GB", "A100-80GB", 3 / 7, 4 / 8, "3g.40gb"),  # as some drivers print it
        ("nvidia_h100_80gb_hbm3_3g.40gb", "H100-80GB-SXM5", 3 / 7, 4 / 8, "3g.40gb"),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.20gb-SHARED", "H100-80GB-SXM5", 1 / 7, 2 / 8, "1g.20gb"),
        ("h200_1g.18gb.me", "H200-141GB", 1 / 7, 1 / 8, "1g.18gb+me"),
        # The board is not known, its share is: every board that may be meant has the same.
        ("h100_1g.10gb", "h100", 1 / 7, 1 / 8, "1g.10gb"),
        ("a100_1g.10gb", "a100", 1 / 7, None, "1g.10gb"),  # an eighth of 80 GB, or two of 40 GB
        ("1g.10gb", None, 1 / 7, None, "1g.10gb"),
        ("own-name_1g.5gb", "A100-40GB", 1 / 7, 1 / 8, "1g.5gb"),  # no other board has it
        ("h100", "h100", 1.0, 1.0, None),
        ("nothing known", "nothing known", 1.0, 1.0, None),
    ],
)
def test_a_word_tells_board_and_share(word, gpu_model, share, memory, profile):
    told, found = resolved(job(f"{word}=2", 2.0))
    instances = None if profile is None else 2
    row = told.select("gpu_model", "gpus", "gpus_by_memory", "instances", "profile_requested").row(0)
    assert row[0] == gpu_model
    assert row[1] == pytest.approx(2 * share)
    assert row[2] == (pytest.approx(2 * memory) if memory is not None else None)
    assert row[3:] == (instances, profile)
    assert UNKNOWN not in found
    assert (UNDECIDED in found) == (gpu_model not in mig_model_names() and gpu_model not in ("T4", "nothing known"))
    assert (STRANGE in found) == (gpu_model == "nothing known")


@pytest.mark.parametrize("word", ["a100_9g.99gb", "t4_1g.5gb", "5g.40gb", "rtx_1g.24gb", "a100_0g.5gb", "2g.48gb"])
def test_what_no_word_decides_is_not_known_and_said(word):
    told, found = resolved(job(f"{word}=1", 1.0), job("a100=1", 1.0))
    assert told["gpus"].to_list() == [None, 1.0]
    assert told["instances"].to_list() == [1, None]
    assert (found[UNKNOWN].severity, found[UNKNOWN].rows) == ("warning", 1)
    assert word in found[UNKNOWN].example


@given(st.sampled_from(mig_model_names()), st.data(), st.integers(1, 7))
def test_every_profile_of_every_board_counts_its_slices(name, data, count):
    gpu_model = load_gpu_model(name)
    profile = data.draw(st.sampled_from(gpu_model.profiles))
    told, found = resolved(job(f"{name}-MIG-{profile.name}={count}", float(count)))
    assert told["gpus"][0] == pytest.approx(count * profile.compute_slices / gpu_model.compute_slices)
    assert told["gpus_by_memory"][0] == pytest.approx(count * profile.memory_slices / gpu_model.memory_slices)
    assert told.select("gpu_model", "profile_requested", "instances").row(0) == (name, profile.name, count)
    assert not {UNKNOWN, UNDECIDED} & set(found)


def test_words_and_the_number_held_may_differ():
    """What is held beyond its words are whole GPUs; where fewer are held than the words say, the share shrinks."""
    told, _ = resolved(job("a100_1g.5gb=2", 3.0), job("a100_1g.5gb=4", 2.0), job("a100_1g.5gb=4"), job("a100=4", 2.0))
    assert told["gpus"].to_list() == pytest.approx([2 / 7 + 1, 2 / 7, 4 / 7, 2.0])


def test_the_profiles_beside_it_tell_an_ambiguous_board():
    told, found = resolved(job("a100_1g.5gb=1", 1.0), job("a100=2", 2.0), job("h100=1", 1.0))
    assert told["gpu_model"].to_list() == ["A100-40GB", "A100-40GB", "h100"]
    line = found["GPU model inferred from its MIG profiles"]
    assert (line.rows, line.example) == (1, "'a100'")
    # Boards of both sizes: nothing is told.
    told, _ = resolved(job("a100_1g.5gb=1", 1.0), job("a100_3g.40gb=1", 1.0), job("a100=2", 2.0))
    assert told["gpu_model"].to_list() == ["A100-40GB", "A100-80GB", "a100"]


def test_the_user_decides_first():
    rows = [job("a100_1g.10gb=1", 1.0), job("special_2g.48gb=1", 1.0), job(None, 2.0)]
    stated = {"A100": "A100-40GB", "special_2g.48gb": "rtx-pro-5000", "gpu": "T4", "l40": "L40S"}
    told, found = resolved(*rows, stated=stated)
    assert told["gpu_model"].to_list() == ["A100-40GB", "RTX-PRO-5000-Blackwell-48GB", "T4"]
    assert told["gpus"].to_list() == pytest.approx([1 / 7, 1.0, 2.0])
    assert told["gpus_by_memory"].to_list() == pytest.approx([2 / 8, 1.0, 2.0])
    assert found["--map-gpu of no device"].example == "'l40'"


def test_a_model_that_was_stated_for_nodes_is_in_use():
    """Nodes are counted first, and then are called by the model that was stated for them."""
    stated = {"h100": "H100-80GB-SXM5", "l40": "L40S"}
    counted, _ = resolve_node_models(nodes(("n1", 8, "h100", None)), stated)
    _, found = resolved(job(None, 2.0, node_list="n1"), inventory=counted, stated=stated)
    assert found["--map-gpu of no device"].example == "'l40'"


def test_the_nodes_of_a_job_decide_between_boards():
    inventory = nodes(("n1", 4, "NVIDIA A100-SXM4-40GB", None), ("n2", 4, "NVIDIA-A100-SXM4-80GB", None))
    rows = [job("a100=1", 1.0, node_list=place) for place in ("n1", "n2", "n[1-2]", None, "n9", "n[1")]
    told, found = resolved(*rows, inventory=inventory)
    assert told["gpu_model"].to_list() == ["A100-40GB", "A100-80GB", *["a100"] * 4]
    assert found[UNDECIDED].rows == 4
    told, _ = resolved(*rows, job(None, 1.0), job(None, 0.0), inventory=inventory[:1])
    assert told["gpu_model"].to_list() == [*["A100-40GB"] * 7, None]  # a single board is installed


def test_jobs_that_name_nothing_hold_what_their_nodes_have():
    inventory = nodes(
        ("n1", 2, "a100", "1g.5gb:7;1g.5gb:7"), ("n2", 2, "a100", "gpu;1g.5gb:7"), ("n3", 1, "a100", "no layout")
    )
    told, _ = resolved(*(job(None, 3.0, node_list=place) for place in ("n1", "n2", "n3", None)), inventory=inventory)
    assert told["gpus"].to_list() == pytest.approx([3 / 7, 3.0, 3.0, 3.0])
    assert told["instances"].to_list() == [3, None, None, None]
    assert told["gpu_model"].to_list() == ["A100-40GB"] * 4


def test_instances_on_two_cut_boards_of_one_inventory_count_as_what_they_are():
    """1g of an A30 is a quarter, of an A100 a seventh; none of them is a whole GPU."""
    inventory = nodes(("n1", 1, "A30", "1g.6gb:4"), ("n2", 1, "A100-40GB", "1g.5gb:7"), ("n3", 1, "H100 PCIe", None))
    told, found = resolved(
        job("a30_1g.6gb=1", 1.0, node_list="n1"),
        job("a100_1g.5gb=1", 1.0, node_list="n2"),
        job("1g.6gb=1", 1.0),
        job("1g.5gb=1", 1.0),
        inventory=inventory,
    )
    assert told["gpu_model"].to_list() == ["A30-24GB", "A100-40GB"] * 2
    assert told["gpus"].to_list() == pytest.approx([1 / 4, 1 / 7] * 2)
    assert found["MIG instances counted as shares of GPUs"].rows == 4


def test_tables_that_were_resolved_stay_as_they_are():
    once, _ = resolved(job("a100_1g.5gb=2,a100=1", 3.0), job("a100_1g.5gb=2", 2.0), job("t4=1", 1.0), job(None, None))
    again, _, findings = count_jobs_in_gpus(once, None)
    assert again.equals(once)
    assert {finding.check for finding in findings} <= {UNDECIDED}


def test_nodes_have_the_boards_that_words_and_layouts_tell():
    inventory = nodes(
        ("n1", 1, "a100", "1g.5gb:7"),
        ("n2", 1, "a100", None),
        ("n3", 2, "T4|a30", "?"),
        ("n4", 2, "T4|x", None),
        ("n5", 0, None, None),
    )
    told, findings = resolve_node_models(inventory, {"y": "T4"})
    assert told["gpu_model"].to_list() == ["A100-40GB", "A100-40GB", "T4|A30-24GB", "T4|x", None]
    assert [(found.check, found.rows, found.example) for found in findings] == [
        ("unknown GPU type of nodes", 1, "'x'"),
        ("several GPU models on one node", 2, "'T4|A30-24GB', 'T4|x'"),
        ("--map-gpu of no device", 0, "'y'"),
    ]


def test_a_node_follows_the_jobs_that_name_its_model():
    nodes = pl.DataFrame({"node": ["n1", "n2", "n3"], "gpu_model": ["a100", "a100", "A100-40GB"], "gpus": 8})
    nodes = nodes.with_columns(layouts=pl.lit(None, pl.String))
    words = ["nvidia_a100-sxm4-80gb=8", "a100=8", "a100=8"]
    jobs = pl.DataFrame({"job_id": ["1", "2", "3"], "gpus": 8.0, "devices": words, "node_list": ["n1", "n2", "n3"]})
    told, known, _ = count_jobs_in_gpus(jobs, nodes)
    assert known is not None
    assert known["gpu_model"].to_list() == ["A100-80GB", "a100", "A100-40GB"], "n2 stays open"
    assert told["gpu_model"].to_list() == ["A100-80GB", "a100", "A100-40GB"]
