"""Layout plans as mig-parted files."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.errors import GeometryError, SchemaError
from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.hardware.layout_enumeration import list_profile_counts
from gpuplanner.hardware.mig_layouts import format_layout
from gpuplanner.planner.layout_plan import NodeState
from gpuplanner.report.export_verification import verify_file
from gpuplanner.report.mig_manager_files import to_config_map, to_mig_parted
from gpuplanner.report.slurm_files import to_slurm
from tests.examples import examples

BOARD = "H100-80GB-SXM5"
NIGHT, DAY = datetime(2026, 11, 2, tzinfo=UTC), datetime(2026, 11, 2, 8, tzinfo=UTC)
LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")

WHOLE_PLAN = """\
# MIG configs for H100-80GB-SXM5, one per distinct state of a node.
# Check with: gpuplanner verify FILE --gpu-model H100-80GB-SXM5
version: v1
mig-configs:
  "all-disabled":
    - devices: all
      mig-enabled: false
  "1xgpu_1x3g.40gb_1x2g.20gb_2x1g.10gb_753f9e662d":
    - devices: [0]
      mig-enabled: false
    - devices: [1]
      mig-enabled: true
      mig-devices:
        "3g.40gb": 1
        "2g.20gb": 1
        "1g.10gb": 2
  "1xgpu_7x1g.10gb_2660f7c36d":
    - devices: [0]
      mig-enabled: true
      mig-devices:
        "1g.10gb": 7
    - devices: [1]
      mig-enabled: false
  "2xgpu_6c7ce06274":
    - devices: [0, 1]
      mig-enabled: false
"""


def of_plan(text: str) -> dict[str, Any]:
    """Configs of a file without the one that stands in every file."""
    configs: dict[str, Any] = yaml.safe_load(text)["mig-configs"]
    assert configs.pop("all-disabled") == [{"devices": "all", "mig-enabled": False}]
    return configs


def test_whole_calendar(plan: pl.DataFrame) -> None:
    assert to_mig_parted(plan, BOARD) == WHOLE_PLAN


def test_one_time_names_its_nodes(plan: pl.DataFrame) -> None:
    text = to_mig_parted(plan, BOARD, at=NIGHT + timedelta(hours=7))
    configs = of_plan(text)
    assert [name.rpartition("_")[0] for name in configs] == ["1xgpu_1x3g.40gb_1x2g.20gb_2x1g.10gb", "2xgpu"]
    assert '  # n2\n  "2xgpu_' in text
    assert (
        to_mig_parted(plan, BOARD, at=DAY).count("devices:") == 1 + 4 + 2
    )  # all-disabled, and two entries with mig-devices


def test_rows_in_any_order_give_the_same_bytes(plan: pl.DataFrame) -> None:
    assert to_mig_parted(plan.reverse(), BOARD) == WHOLE_PLAN
    assert to_mig_parted(plan.sample(fraction=1, shuffle=True, seed=3), BOARD) == WHOLE_PLAN


def test_plus_stays_in_keys_and_becomes_a_dot_in_names(make_plan: Callable[..., pl.DataFrame]) -> None:
    plan = make_plan([("n1", 0, 0, 1, "1g.10gb+me:1,1g.10gb:6", True)])
    (name, entries), *others = of_plan(to_mig_parted(plan, BOARD)).items()
    assert not others
    assert entries[0]["mig-devices"] == {"1g.10gb+me": 1, "1g.10gb": 6}
    assert name.startswith("1x1g.10gb.me_6x1g.10gb_")


def test_which_gpu_has_what_is_part_of_the_state(make_plan: Callable[..., pl.DataFrame]) -> None:
    plan = make_plan(
        [
            ("n1", 0, 0, 1, "gpu", True),
            ("n1", 1, 0, 1, "7g.80gb:1", True),
            ("n2", 0, 0, 1, "7g.80gb:1", True),
            ("n2", 1, 0, 1, "gpu", True),
        ]
    )
    assert len(of_plan(to_mig_parted(plan, BOARD))) == 2


def test_gpus_without_a_word_in_the_plan_are_left_out(make_plan: Callable[..., pl.DataFrame]) -> None:
    plan = make_plan(
        [("n1", 0, 0, 4, "gpu", True), ("n1", 1, 0, 2, "7g.80gb:1", True), ("n1", 0, 4, 8, "3g.40gb:2", True)]
    )
    after = of_plan(to_mig_parted(plan, BOARD, at=NIGHT + timedelta(hours=5)))
    assert [[entry["devices"] for entry in entries] for entries in after.values()] == [[[0]]]
    assert set(after) < set(of_plan(to_mig_parted(plan, BOARD)))


@given(
    st.lists(
        st.sampled_from(["gpu", "off", *map(format_layout, list_profile_counts("RTX-PRO-6000"))]),
        min_size=1,
        max_size=16,
    )
)
def test_names_are_legal_labels(layouts: list[str]) -> None:
    assert LABEL.fullmatch(NodeState(tuple(enumerate(layouts))).config_name)


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_every_exported_plan_reads_back_and_holds(
    make_plan: Callable[..., pl.DataFrame], tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    gpu_model = data.draw(st.sampled_from(["A30", "A100-40GB", BOARD, "RTX-PRO-6000", "B300"]))
    texts = ["gpu", "off", *map(format_layout, list_profile_counts(gpu_model))]
    gpus = data.draw(st.integers(1, 4))
    nodes = data.draw(st.integers(1, 3))
    rows = [
        (f"n{node}", gpu, hour, hour + 1, data.draw(st.sampled_from(texts)), True)
        for node in range(nodes)
        for gpu in range(gpus)
        for hour in range(2)
    ]
    plan = make_plan(rows)
    folder = tmp_path_factory.mktemp("plan")
    for name, text in {
        "parted.yaml": to_mig_parted(plan, gpu_model),
        "map.yaml": to_config_map(plan, gpu_model),
        "now.yaml": to_mig_parted(plan, gpu_model, at=NIGHT),
        "slurm.conf": to_slurm(plan, gpu_model, NIGHT),
    }.items():
        path = folder / name
        path.write_text(text)
        report = verify_file(path, gpu_model, gpus_per_node=gpus)
        assert report.ok, (text, report.problems)
        assert len(report.findings) >= min(nodes, 1)


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_any_planted_impossible_count_is_found(
    make_plan: Callable[..., pl.DataFrame], tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    """Raise one count of an exported file until the layout is one that the board cannot hold."""
    gpu_model = data.draw(st.sampled_from(["A30", "A100-40GB", BOARD, "RTX-PRO-6000"]))
    possible = list_profile_counts(gpu_model)
    counts = data.draw(st.sampled_from(possible))
    name = data.draw(st.sampled_from([profile.name for profile in load_gpu_model(gpu_model).profiles]))
    worse = dict(counts)
    while worse in possible:
        worse[name] = worse.get(name, 0) + 1
    document = yaml.safe_load(to_mig_parted(make_plan([("n1", 0, 0, 1, format_layout(counts), True)]), gpu_model))
    (config,) = document["mig-configs"].keys() - {"all-disabled"}
    entries = document["mig-configs"][config]
    entries[0]["mig-devices"] = worse
    path = tmp_path_factory.mktemp("plan") / "parted.yaml"
    path.write_text(yaml.safe_dump(document))
    report = verify_file(path, gpu_model, gpus_per_node=1)
    assert not report.ok
    assert len(report.problems) == 1
    assert f"config {config}, devices 0: " in report.problems[0]


@pytest.mark.parametrize(
    ("rows", "error", "fault"),
    [
        ([("n1", 0, 0, 1, "3g.40gb:2,1g.10gb:1", True)], GeometryError, "need 9 memory slices"),
        ([("n1", 0, 0, 1, "3g.20gb:1", True)], GeometryError, "MIG profile '3g.20gb' is unknown"),
        ([("$(reboot)", 0, 0, 1, "gpu", True)], GeometryError, "node names"),
        ([("n1", 0, 1, 1, "gpu", True)], SchemaError, "end after they start"),
        ([("n1", 0, 0, 3, "gpu", True), ("n1", 0, 2, 4, "gpu", True)], SchemaError, "do not overlap"),
        ([], SchemaError, "no row"),
    ],
)
def test_plans_that_are_not_exported(
    make_plan: Callable[..., pl.DataFrame], rows: list[Any], error: type[Exception], fault: str
) -> None:
    with pytest.raises(error, match=re.escape(fault)):
        to_mig_parted(make_plan(rows), BOARD)


def test_times_that_the_plan_does_not_know(plan: pl.DataFrame) -> None:
    with pytest.raises(SchemaError, match="2026-11-02T00:00:00Z to 2026-11-03T00:00:00Z"):
        to_mig_parted(plan, BOARD, at=NIGHT + timedelta(days=1))
    with pytest.raises(SchemaError, match="a time with its zone"):
        to_mig_parted(plan, BOARD, at=datetime(2026, 11, 2))
