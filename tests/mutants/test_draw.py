"""What is drawn: each fault is one place of a module that still compiles, and none is a declaration or a text."""

from __future__ import annotations

import ast
import random
import tomllib
from itertools import pairwise

import pytest
from hypothesis import settings

from tests.mutants.draw import draw, mutants

MODULE = '''
"""A module."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    MOST = 1 + 2

from .words import message

class Shelf:
    """Holds things."""
    room: int = 7

    def __repr__(self) -> str:
        return "<" + str(1 + self.room)

    def place(self, names: list[str], most: int = 3) -> int:
        """Put names on the shelf; `most` < 4 and not less."""
        if not names or len(names) > most:
            raise ValueError(message("names", 1 + 1, f"{len(names) + 1}"))
        assert names != []
        for name in names:
            self.held.append(name)
        self.room -= len(names)
        return self.room

def full(shelf: Shelf) -> bool:
    return shelf.room <= 0
'''


def test_every_fault_that_a_reader_would_name():
    found = {(each.function, each.kind, each.what) for each in mutants("shelf.py", MODULE)}
    assert found == {
        ("Shelf.place", "drop", "raise ValueError(message('names', 1 + 1, f'{len(names) + 1}')) -> pass"),
        ("Shelf.place", "drop", "self.held.append(name) -> pass"),
        ("Shelf.place", "drop", "self.room -= len(names) -> pass"),
        ("Shelf.place", "edge", "len(names) > most -> (len(names) >= most)"),
        ("Shelf.place", "flip", "len(names) > most -> (len(names) <= most)"),
        ("Shelf.place", "not", "not names -> (names)"),
        ("Shelf.place", "nothing", "return self.room -> return 0"),
        ("Shelf.place", "swap", "not names or len(names) > most -> (not names and len(names) > most)"),
        ("full", "edge", "0 -> 1"),
        ("full", "edge", "shelf.room <= 0 -> (shelf.room < 0)"),
        ("full", "flip", "shelf.room <= 0 -> (shelf.room > 0)"),
        ("full", "nothing", "return shelf.room <= 0 -> return not (shelf.room <= 0)"),
    }


@pytest.fixture(scope="module")
def of_the_core(root):
    files = sorted(
        [*(root / "gpuplanner" / "hardware").glob("*.py"), root / "gpuplanner/planner/numbered/assign.py"]
    )
    sources = {str(path): path.read_text() for path in files}
    return sources, [each for file, source in sources.items() for each in mutants(file, source)]


@pytest.mark.long
def test_every_mutant_compiles_and_is_another_program_at_one_place(of_the_core):
    sources, found = of_the_core
    assert len(found) > 500
    for mutant in random.Random(1).sample(found, 150):
        was, now = ast.parse(sources[mutant.file]), ast.parse(mutant.text)
        assert ast.dump(was) != ast.dump(now)
        assert ast.get_docstring(was) == ast.get_docstring(now)
        differing = [
            one for one, other in zip(was.body, now.body, strict=True) if ast.dump(one) != ast.dump(other)
        ]
        assert len(differing) == 1
        assert differing[0].lineno <= mutant.line <= differing[0].end_lineno


def test_a_draw_is_the_same_for_the_same_seed_and_no_kind_is_lost(of_the_core):
    _, found = of_the_core
    drawn = draw(found, 40, "1")
    assert drawn == draw(found, 40, "1") != draw(found, 40, "2")
    assert len({each.key for each in drawn}) == 40 == len(drawn)
    kinds = [each.kind for each in drawn]
    assert max(map(kinds.count, kinds)) - min(map(kinds.count, kinds)) <= 1
    assert all((one.file, one.line) <= (other.file, other.line) for one, other in pairwise(drawn))
    assert len(draw(found, 10**6, "1")) == len(found)


def test_a_change_elsewhere_leaves_what_is_drawn(of_the_core):
    """Without one module, what was drawn of all others is drawn again, and no more of a kind than were free."""
    _, found = of_the_core
    file = found[-1].file
    drawn, without = draw(found, 40, "1"), draw([each for each in found if each.file != file], 40, "1")
    assert {each.key for each in drawn if each.file != file} <= {each.key for each in without}


def test_rooms_stand_on_what_there_is(root):
    """Every room names code and tests that exist, and the tests know the profile that a run asks for."""
    rooms = tomllib.loads((root / "tests" / "mutants" / "rooms.toml").read_text())
    named = [each for room in rooms.values() for each in (*room["code"], *room["tests"])]
    assert [each for each in named if not (root / each).exists()] == []
    assert settings.get_profile("unshrunk").derandomize
