"""Ground: rounding, names, atomic files, strict YAML, optional imports."""

from __future__ import annotations

import errno
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.core.errors import OutputError, ScenarioError
from gpuplanner.core.output_manifests_and_overwrite_checks import FolderMark
from gpuplanner.core.output_writing import replace_directory, write_atomically
from gpuplanner.core.serialization import from_plain, read_yaml, to_json, to_plain
from gpuplanner.core.units_and_number_formats import MISSING_VALUE_TEXT, figure_text, round_money, split_amount

MARK = FolderMark("mark.txt", "ours")


@dataclass(frozen=True)
class Inner:
    """A record within one."""

    count: int
    share: float
    named: str | None = None


@dataclass(frozen=True)
class Outer:
    """A record of every kind of field that is written."""

    inner: Inner
    many: tuple[Inner, ...]
    facts: Mapping[str, str | int | float | None]
    on: bool = False


RECORD = Outer(Inner(3, 0.5), (Inner(1, float("nan"), "x"),), {"a": 1, "b": "text", "c": None, "d": 0.25}, on=True)


def test_a_record_is_read_again_and_what_is_no_number_is_null():
    plain = to_plain(RECORD)
    assert plain["many"][0]["share"] is None
    assert to_plain(from_plain(Outer, plain)) == plain
    assert from_plain(Outer, plain | {"beside": 1}).facts == RECORD.facts


@pytest.mark.parametrize("share", [float("nan"), float("inf")])
def test_what_is_no_number_is_one_that_can_be_calculated_with_when_it_is_read_again(share):
    read = from_plain(Inner, to_plain(Inner(3, share)))
    assert math.isnan(read.share - 1.0)
    assert figure_text(read.share, ",.0f") == MISSING_VALUE_TEXT


@pytest.mark.parametrize(
    "change",
    [{"inner": 3}, {"inner": {"count": "3", "share": 1.0}}, {"inner": {"count": 3, "share": "0.5"}},
     {"inner": {"count": 3, "share": 1, "named": 5}}, {"many": 3}, {"many": [None]}, {"facts": []}, {"on": "yes"},
     {"facts": {"a": []}}, {"inner": {"count": None, "share": 1.0}}, {"inner": {"share": 1.0}},
     {"inner": {"count": 3, "share": 10**400}}, {"inner": {"count": 3, "share": float("inf")}}],
)  # fmt: skip
def test_a_record_of_another_kind_is_no_record(change):
    with pytest.raises(TypeError):
        from_plain(Outer, to_plain(RECORD) | change)


@given(st.decimals(min_value=0, max_value=10**9, places=2), st.lists(st.floats(0, 1e6), min_size=1, max_size=30))
def test_split_loses_no_cent_and_stays_near_the_share(total, weights):
    parts = split_amount(total, weights)
    assert sum(parts) == total
    scale = sum(weights)
    if scale > 1e-3:
        for part, weight in zip(parts, weights, strict=True):
            assert abs(float(part) - float(total) * weight / scale) < 0.011


def test_money_rounds_half_to_even():
    assert [str(round_money(x)) for x in (0.125, 0.135, 2.675)] == ["0.12", "0.14", "2.68"]


def test_failed_write_leaves_the_old_file(tmp_path):
    path = write_atomically(tmp_path / "a.txt", lambda place: place.write_text("old"))

    def half(temporary: Path) -> None:
        temporary.write_text("ne")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_atomically(path, half)
    assert path.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == [".a.txt.gpuplanner", "a.txt"]


def filled(path: Path, text: str = "ours") -> None:
    with replace_directory(path, mark=MARK) as folder:
        (folder / "mark.txt").write_text(text)


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), RuntimeError(), OSError(errno.ENOSPC, "full")])
def test_interrupted_directory_leaves_the_old_one(tmp_path, fault):
    out = tmp_path / "out"
    filled(out)

    def interrupted() -> None:
        with replace_directory(out, mark=MARK) as folder:
            (folder / "half.txt").write_text("")
            raise fault

    with pytest.raises((KeyboardInterrupt, RuntimeError, OutputError)):
        interrupted()
    assert sorted(p.name for p in out.iterdir()) == ["manifest.json", "mark.txt"]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_json_refuses_what_is_not_a_number():
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json({"a": float("nan")})


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: [1\n", "expected"),
        ("a: 1\na: 2\n", "twice"),
        ("a: &x {b: 1}\nc: {<<: *x}\n", "merge keys"),
        ("a: !!python/object/apply:os.system [ls]\n", "could not determine a constructor"),
        ("[" * 5000, "recursion"),
    ],
)
def test_yaml_that_is_no_plain_data_is_refused_with_its_line(tmp_path, text, fault):
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=fault):
        read_yaml(path)


def test_yaml_of_another_encoding_or_size_is_refused(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_bytes("ü: 1".encode("utf-16"))
    with pytest.raises(ScenarioError, match="UTF-8"):
        read_yaml(path)
    path.write_text("a: 1\n" * 10)
    with pytest.raises(ScenarioError, match="at most 20 bytes"):
        read_yaml(path, limit_bytes=20)
