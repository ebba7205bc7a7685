"""The house only shrinks: a room weighs at most what its row in ``tests/house_budget.csv`` allows."""

from __future__ import annotations

from dataclasses import astuple

import pytest

from tests.house_budget import Weight, budget, lowered, rooms, weight_of

SLACK = Weight(60, 1, 2)
"""How far a room may lie below its row before the row follows it down."""


@pytest.fixture(scope="module")
def now():
    """What each room weighs."""
    return rooms()


def test_every_room_has_a_row(now):
    assert [row.room for row in budget()] == sorted(now)


@pytest.mark.parametrize("row", budget(), ids=lambda row: row.room)
def test_a_room_weighs_at_most_its_row(now, row):
    heavier = [weighs > most for weighs, most in zip(astuple(now[row.room]), astuple(row.most), strict=True)]
    assert not any(heavier), (
        f"{row.room} weighs {now[row.room]}, its row allows {row.most}: take out what is not needed, "
        "or raise the row and state in it which capability came"
    )


@pytest.mark.parametrize("row", budget(), ids=lambda row: row.room)
def test_a_row_follows_its_room_down(now, row):
    spare = [most - weighs for weighs, most in zip(astuple(now[row.room]), astuple(row.most), strict=True)]
    within = [unused <= slack for unused, slack in zip(spare, astuple(SLACK), strict=True)]
    assert all(within), "python -m tests.house_budget --lower"


def test_lines_are_counted_as_a_reader_would(tmp_path):
    module = tmp_path / "__init__.py"
    module.write_text(
        '"""A module.\n\nIn three lines."""\n\nimport json\nfrom os import (\n    path,\n)\n\n\n'
        'def one():\n    """Say one."""\n    # because\n    return json.loads(\n        "1"\n    )\n'
    )
    assert weight_of(module) == Weight(code=4, modules=1)


def test_lowering_never_raises():
    rows = budget()
    heavier = {row.room: Weight(*(value + 7 for value in astuple(row.most))) for row in rows}
    assert lowered(rows, heavier) == rows
