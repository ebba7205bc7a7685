"""Draw mutants of the core, run the tests of their room on each, and say which of them nobody noticed."""

from __future__ import annotations

import argparse
import functools
import queue
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.draw import Mutant, draw, mutants
from tests.mutants.trial import ROOT, copies_of_checkout, tried, unmutated

HERE = Path(__file__).resolve().parent
EQUIVALENT = HERE / "equivalent.tsv"
"""Mutants that mean nothing: file, function, what, and why nobody could notice."""


@dataclass(frozen=True, eq=False)
class Room:
    """Code, and the tests that guard it."""

    name: str
    draws: int
    code: list[str]
    tests: list[str]

    @functools.cached_property
    def files(self) -> list[str]:
        """Modules of the room, from the root of the checkout."""
        paths = [ROOT / each for each in self.code]
        found = [path for each in paths for path in ([each] if each.is_file() else sorted(each.glob("*.py")))]
        return [path.relative_to(ROOT).as_posix() for path in found]

    def drawn(self, number: int | None, seed: int) -> list[Mutant]:
        """Mutants of this room; the same for the same code and seed."""
        found = [each for file in self.files for each in mutants(file, (ROOT / file).read_text())]
        return draw(found, self.draws if number is None else number, f"{seed}:{self.name}")

    def tests_of(self, file: str) -> list[str]:
        """Quickest to notice first: doctests of the module, tests named for it, all others."""
        named = [f"{each}/test_{Path(file).stem}.py" for each in self.tests]
        return [file, *(each for each in named if (ROOT / each).is_file()), *self.tests]


def main() -> int:
    """Exit 1 if a mutant survives that is not known to mean nothing, or if the list of those is wrong."""
    with (HERE / "rooms.toml").open("rb") as file:
        rooms = {name: Room(name, **table) for name, table in tomllib.load(file).items()}
    ask = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    ask.add_argument("rooms", nargs="*", metavar="ROOM", help=f"some of {', '.join(rooms)}; default: all")
    ask.add_argument("--draws", type=int, help="mutants of each room; default: as rooms.toml says")
    ask.add_argument("--seed", type=int, default=11)
    ask.add_argument("--jobs", type=int, default=1)
    ask.add_argument("--of", metavar="TEXT", default="", help="those of the drawn whose line holds a text")
    ask.add_argument(
        "--survived-in", type=Path, metavar="LOG", help="those of the drawn that survived in a log"
    )
    ask.add_argument("--list", action="store_true", help="name the mutants and run nothing")
    asked = ask.parse_args()
    again = None if asked.survived_in is None else asked.survived_in.read_text().splitlines()
    chosen = {}
    for room in (rooms[name] for name in asked.rooms or rooms):
        drawn = [each for each in room.drawn(asked.draws, asked.seed) if asked.of in _line(each)]
        if again is not None:
            drawn = [each for each in drawn if any("survived" in old and _line(each) in old for old in again)]
        chosen[room] = drawn
    if asked.list:
        for drawn in chosen.values():
            print(*map(_line, drawn), sep="\n")
        return 0
    known = {tuple(line.split("\t")[:3]) for line in EQUIVALENT.read_text().splitlines()[1:]}
    wrong = _stale(chosen, known)
    with copies_of_checkout(asked.jobs) as copies:
        for room, drawn in chosen.items():
            ends = _judged(copies, room, drawn, known)
            wrong += [f"{room.name}: {number} {end}" for end, number in ends.items() if _is_wrong(end)]
    print(*wrong, sep="\n")
    return 1 if wrong else 0


def _judged(
    copies: queue.Queue[Path], room: Room, drawn: list[Mutant], known: set[tuple[str, ...]]
) -> Counter[str]:
    """How the mutants of a room ended, each printed as it ends."""
    work_s = unmutated(copies, room.files[0], [*room.files, *room.tests])
    print(f"{room.name}: {len(drawn)} mutants; the tests alone take {work_s:.0f} s of processor", flush=True)
    ends = Counter[str]()
    with ThreadPoolExecutor(copies.qsize()) as workers:
        try:
            trials = [workers.submit(tried, copies, room.tests_of(one.file), work_s, one) for one in drawn]
            for mutant, trial in zip(drawn, trials, strict=True):
                end = trial.result()
                if mutant.key in known:
                    end = "equivalent" if end == "survived" else f"{end}, but listed"
                ends[end] += 1
                print(f"{end:12} {_line(mutant)}", flush=True)
        finally:
            workers.shutdown(cancel_futures=True)  # after Ctrl-C, wait for those at work alone
    meant = len(drawn) - ends["equivalent"]
    caught = meant - ends["survived"]
    print(
        f"{room.name}: {dict(sorted(ends.items()))}, caught {caught} of {meant} that mean something\n",
        flush=True,
    )
    return ends


def _is_wrong(end: str) -> bool:
    return end == "survived" or end.endswith("but listed")


def _stale(chosen: Iterable[Room], known: set[tuple[str, ...]]) -> list[str]:
    """Lines of the list that name no mutant of these rooms any more."""
    files = {file for room in chosen for file in room.files}
    there = {each.key for file in files for each in mutants(file, (ROOT / file).read_text())}
    old = sorted(
        key for key in known if (key[0] in files or not (ROOT / key[0]).is_file()) and key not in there
    )
    return [f"{EQUIVALENT.name}: no such mutant any more: {' '.join(key)}" for key in old]


def _line(mutant: Mutant) -> str:
    return f"{mutant.file} {mutant.function} [{mutant.kind}] {mutant.what}"


if __name__ == "__main__":
    sys.exit(main())
