"""Boards of the catalogue and boards of the user."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import polars as pl
import pytest

from gpuplanner.catalog import board_names, facts
from gpuplanner.errors import GeometryError
from gpuplanner.hardware import GpuModel, as_board, load_gpu_model, prove
from gpuplanner.hardware.gpu import RESOURCES
from gpuplanner.hardware.whole_boards import whole_board

Rows: TypeAlias = Callable[..., list[dict[str, Any]]]

# SMs per profile, from driver listings ("nvidia-smi mig -lgip").
LISTED_SMS = {
    "A100-40GB": {"1g.5gb": 14, "1g.10gb": 14, "2g.10gb": 28, "3g.20gb": 42, "4g.20gb": 56, "7g.40gb": 98},
    "H100-80GB-SXM5": {
        "1g.10gb": 16,
        "1g.20gb": 26,
        "2g.20gb": 32,
        "3g.40gb": 60,
        "4g.40gb": 64,
        "7g.80gb": 132,
    },
    "H100-80GB-PCIe": {
        "1g.10gb": 14,
        "1g.20gb": 14,
        "2g.20gb": 30,
        "3g.40gb": 46,
        "4g.40gb": 62,
        "7g.80gb": 114,
    },
    "B200-180GB": {
        "1g.23gb": 18,
        "1g.45gb": 30,
        "2g.45gb": 36,
        "3g.90gb": 70,
        "4g.90gb": 72,
        "7g.180gb": 148,
    },
    "A30-24GB": {"1g.6gb": 14, "2g.12gb": 28, "4g.24gb": 56},
    "RTX-PRO-6000-Blackwell-96GB": {"1g.24gb": 46, "2g.48gb": 94, "4g.96gb": 188},
}


@pytest.mark.parametrize("board", LISTED_SMS)
def test_sms_are_those_that_the_driver_lists(board: str) -> None:
    model = load_gpu_model(board)
    assert {name: model.sms_of(name) for name in LISTED_SMS[board]} == LISTED_SMS[board]


def test_whole_board_has_the_sms_of_its_data_sheet() -> None:
    """An A100 that is not cut has 108 SMs, of which MIG reaches 98."""
    board = load_gpu_model("A100-80GB")
    assert (board.sms_of("gpu"), board.sms_of("7g.80gb")) == (108, 98)


def test_two_halves_of_an_h100_have_more_sms_than_seven_sevenths() -> None:
    board = load_gpu_model("H100-80GB-SXM5")
    assert (2 * board.sms_of("3g.40gb"), 7 * board.sms_of("1g.10gb")) == (120, 112)


@pytest.mark.parametrize(
    ("board", "name"),
    [
        ("GB200", "3g.93gb"),
        ("B300", "gpu"),
        ("RTX-PRO-5000", "1g.24gb"),
        ("H20-96GB", "7g.96gb"),
        ("H20-141", "gpu"),
    ],
)
def test_sms_that_no_source_states_are_not_made_up(board: str, name: str) -> None:
    model = load_gpu_model(board)
    assert model.sms is None or name != "gpu"
    with pytest.raises(GeometryError, match="Nothing that counts SMs can be computed"):
        model.sms_of(name)


@pytest.mark.parametrize("board", board_names())
def test_shares_follow_compute_slices(board: str) -> None:
    model = load_gpu_model(board)
    assert model.share("gpu") == 1.0
    for profile in model.profiles:
        assert model.share(profile.name) == profile.compute_slices / model.compute_slices
    assert hash(model) == hash(load_gpu_model(board))
    assert load_gpu_model(board) is model


@pytest.mark.parametrize("board", board_names())
def test_names_alone_sort_profiles_by_their_slices(board: str) -> None:
    """Layout text is sorted without looking at the board; that must be the board's own order."""
    from gpuplanner.hardware import format_layout

    model = load_gpu_model(board)
    text = format_layout({profile.name: 1 for profile in reversed(model.profiles)})
    assert [part.partition(":")[0] for part in text.split(",")] == [p.name for p in model.profiles]


@pytest.mark.parametrize(
    ("board", "alias", "name"),
    [
        ("A100-80GB", "3g.39gb", "3g.40gb"),
        ("A100-80GB", "7g.79gb", "7g.80gb"),
        ("GB200", "1g.24gb", "1g.23gb"),  # pre-production boards
        ("GB200", "3g.95gb", "3g.93gb"),
        ("GB200", "7g.189gb", "7g.186gb"),
        ("H100-80GB-SXM5", "1g.10gb.me", "1g.10gb+me"),
        ("B200", "1g23gb", "1g.23gb"),
    ],
)
def test_names_of_other_drivers(board: str, alias: str, name: str) -> None:
    assert load_gpu_model(board).profile(alias).name == name


@pytest.mark.parametrize(
    ("board", "name"),
    [
        ("A100-40GB", "3g.40gb"),  # the name of an 80 GB board
        ("H100-94GB", "1g.10gb"),
        ("A100-40GB", "5g.25gb"),
        ("A100-40GB", "2g.10gb+me"),
        ("A100-40GB", "gpu"),
    ],
)
def test_profiles_of_other_boards_are_refused(board: str, name: str) -> None:
    with pytest.raises(GeometryError, match="MIG profile"):
        load_gpu_model(board).profile(name)


def test_unknown_profile_lists_those_there_are() -> None:
    with pytest.raises(GeometryError, match=r"one of 1g\.6gb, 1g\.6gb\+me, 2g\.12gb, 2g\.12gb\+me, 4g\.24gb"):
        load_gpu_model("A30").profile("3g.20gb")


def test_ambiguous_profile_is_refused(toy_rows: Rows) -> None:
    rows = toy_rows()
    rows.append(
        rows[0] | {"profile": "1g.9gb", "memory_slices": 2, "max_instances": 1, "placement_starts": "0"}
    )
    board = load_gpu_model("TOY", rows)
    assert board.profile("1g.8gb").memory_slices == 1
    with pytest.raises(GeometryError, match=r"'1g\.10gb' is unknown"):
        load_gpu_model("TOY", toy_rows()).profile("1g.10gb")
    rows[0]["profile"] = "1g.11gb"
    with pytest.raises(GeometryError, match=r"'1g\.10gb' is ambiguous"):
        load_gpu_model("TOY", rows).profile("1g.10gb")


def test_compute_instance_is_pointed_to_its_gpu_instance() -> None:
    with pytest.raises(GeometryError, match=r"Name the GPU instance: '3g\.20gb'"):
        load_gpu_model("A100-40GB").profile("1c.3g.20gb")


@pytest.mark.parametrize("name", ["H100-80GB", "V100", "", "A100-40GB-SXM4"])
def test_unknown_or_ambiguous_boards_are_refused(name: str) -> None:
    with pytest.raises(GeometryError, match="board"):
        load_gpu_model(name)


def test_own_board(toy_rows: Rows) -> None:
    board = load_gpu_model("TOY", pl.DataFrame(toy_rows(architecture="Hopper", board_sms=90)))
    assert isinstance(board, GpuModel)
    assert [profile.name for profile in board.profiles] == ["4g.32gb", "2g.16gb", "1g.8gb"]
    assert (board.sms_of("gpu"), board.sms_of("2g.16gb"), board.architecture) == (90, 40, "Hopper")
    assert board.budget == {"sms": 80, "copy_engines": 4}
    assert board.untested == ("decoders", "encoders", "jpeg_engines", "ofa_engines")
    assert prove(board, {"2g.16gb": 1, "1g.8gb": 2}).ok
    assert as_board(board) is board


def test_an_instance_may_have_less_than_a_gib(toy_rows: Rows) -> None:
    """Memory is any number above zero; what is none is not known."""
    for told, known in ((0.5, 0.5), ("0.5", 0.5), (0, None), (-1, None), ("much", None)):
        assert load_gpu_model("TOY", toy_rows(memory_gib=told)).profile("1g.8gb").memory_gib == known


@pytest.mark.parametrize("name", ["T4", "a word of the source"])
def test_a_board_that_nobody_can_cut_is_one_slice(name: str) -> None:
    board = whole_board(name)
    assert (board.memory_slices, board.compute_slices, board.profiles) == (1, 1, ())


def test_own_boards_stand_beside_the_catalogue(toy_rows: Rows) -> None:
    assert load_gpu_model("A30", toy_rows()) is load_gpu_model("A30")
    own = [row | {"gpu_model": "A30-24GB"} for row in toy_rows()]
    assert load_gpu_model("A30-24GB", own).memory_gib == 32


def test_board_without_a_full_size_profile_has_no_engine_budget(toy_rows: Rows) -> None:
    board = load_gpu_model("TOY", toy_rows()[:2])
    assert board.budget == {}
    assert board.untested == tuple(RESOURCES)
    assert prove(board, {"2g.16gb": 2}).ok


@pytest.mark.parametrize(("compute", "memory"), [(2, 4), (4, 2)])
def test_a_profile_of_full_size_takes_all_compute_and_all_memory(
    toy_rows: Rows, compute: int, memory: int
) -> None:
    """What takes all slices of one sort alone leaves engines of the board to others, so it says nothing of all."""
    rows = toy_rows()[:2]
    rows.append(
        rows[1]
        | {
            "profile": f"{compute}g.{8 * memory}gb",
            "compute_slices": compute,
            "memory_slices": memory,
            "sms": 40,
        }
        | {"max_instances": 1, "placement_starts": "0"}
    )
    half = load_gpu_model("TOY", rows)
    assert half.budget == {}
    assert half.untested == tuple(RESOURCES)
    assert load_gpu_model("TOY", [*rows, toy_rows()[2]]).budget == {"sms": 80, "copy_engines": 4}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"profile": "small"}, "profile is not a name"),
        ({"profile": "1c.1g.8gb"}, "compute instance"),
        ({"profile": "MIG 1g.8gb"}, "profile must be written '1g.8gb'"),
        ({"profile": "2g.8gb"}, "compute_slices is 1, the name says 2"),
        ({"max_instances": 0}, "max_instances must be above 0"),
        ({"memory_slices": None}, "memory_slices must be above 0"),
        ({"memory_slices": 1.5}, "memory_slices must be above 0"),
        ({"memory_gib_total": "much"}, "memory_gib_total must be above 0"),
        ({"max_instances": 5}, "max_instances is 5 with 4 start"),
        ({"placement_starts": "0;x"}, "placement_starts must be slices"),
        ({"placement_starts": None}, "placement_starts must be slices"),
        ({"placement_starts": "0;1;2;4"}, "would end beyond slice 3"),
        ({"placement_size": 2}, "placement_size is 2, memory_slices 1"),
        ({"memory_slices_total": 64}, "at most 16"),
        ({"compute_slices_total": 5}, "compute_slices_total differs between rows: 4, 5"),
        ({"compute_slices": 9, "profile": "9g.8gb"}, "above compute_slices_total"),
        ({"profile": "2g.17gb", "compute_slices": 2, "memory_slices": 2, "placement_starts": "0;2",
          "max_instances": 2}, "same slices and attribute"),
    ],
)  # fmt: skip
def test_rows_that_contradict_themselves_are_refused(
    toy_rows: Rows, changes: dict[str, Any], fault: str
) -> None:
    with pytest.raises(GeometryError, match=fault):
        load_gpu_model("TOY", toy_rows(**changes))


def test_board_names_go_into_files_and_are_checked(toy_rows: Rows) -> None:
    rows = [row | {"gpu_model": "TOY\nversion: v2"} for row in toy_rows()]
    with pytest.raises(GeometryError, match="gpu_model must be letters"):
        load_gpu_model("TOY", rows)


def test_all_faults_are_said_at_once(toy_rows: Rows) -> None:
    with pytest.raises(GeometryError, match="3 fault"):
        load_gpu_model("TOY", toy_rows(profile="x", max_instances=0, placement_starts="a"))


def test_a_lone_start_may_have_been_read_as_a_number(toy_rows: Rows) -> None:
    rows = toy_rows()
    rows[2]["placement_starts"] = 0.0
    assert load_gpu_model("TOY", rows).profile("4g.32gb").starts == (0,)


def test_catalogue_rows_stand_as_they_are() -> None:
    """Building the boards leaves nothing of the table out."""
    table = facts("mig_profiles")
    for row in table.iter_rows(named=True):
        profile = load_gpu_model(row["gpu_model"]).profile(row["profile"])
        assert profile.starts == tuple(int(start) for start in row["placement_starts"].split(";"))
        for key in ("compute_slices", "memory_slices", "max_instances", "memory_gib", *RESOURCES):
            assert getattr(profile, key) == row[key]
