"""A chain whose process is killed at random moments, and goes on each time, writes what an undisturbed one does."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.report import monthly_report_chain as room
from gpuplanner.report.month_records import read_chain
from tests.decision.recurring.small_fleets import SmallFleet
from tests.report.test_months import SIX, Works, files

SMALL = "replications: 2\npolicies: fewer_nodes\nwork_limit: 1\nhorizon_slots: 24\nhistory_days: 14\n"
STUBBED = """
import sys, time
from tests.report.test_months import Works, room
from gpuplanner.core.scenario import Scenario

works = Works()
works.moment = lambda: time.sleep(0.005)
room.evaluate, room.write_report = works.evaluate, works.write_report
told = lambda text: print(text, file=sys.stderr, flush=True)
room.report_months(Scenario(data=sys.argv[1]), sys.argv[3:], sys.argv[2], report_progress=told)
"""
"""A few files stand for the walk and the report of a month."""

Run = tuple[Callable[[], list[str]], Iterator[str]]


@dataclass
class Killer:
    """Ends runs of a chain at moments that it draws, and counts what each of them began."""

    out: Path
    rng: random.Random
    longest_s: float = 0.0
    most_lines: int = 1
    kills: Counter[str] = field(default_factory=Counter)
    again: list[str] = field(default_factory=list)

    def watch(
        self, kill: Callable[[], list[str]], told: Iterator[str], *, to_the_end: bool = False, anew: Sequence[str] = ()
    ) -> None:
        """Read so many lines, wait a while, kill; note steps that were begun although they stood as done."""
        stood = {
            f"{month.month}: {step.name}"
            for month in read_chain(self.out).months if month.month not in anew
            for step in month.steps if step.state == "done"
        }  # fmt: skip
        wanted, last = self.rng.randint(1, self.most_lines), ""
        for number, line in enumerate(told, start=1):
            if line in stood:
                self.repeated.append(line)
            last = line if "stands" not in line else last
            if number >= wanted and last and not to_the_end:
                time.sleep(self.rng.uniform(0, self.longest_s))
                last = [last, *(line for line in kill() if "stands" not in line)][-1]
                self.kills[last.rpartition(": ")[2]] += 1
                return


def begin(words: list[str], out: Path) -> Run:
    """Start a run with a cache of its own; gives what kills it and reads the rest, and what it tells of its steps."""
    own = os.environ | {"GPUPLANNER_CACHE": f"{out}-cache"}
    own.pop("GPUPLANNER_BROWSER", None)  # pages are printed as well where a browser is
    process = subprocess.Popen(
        [sys.executable, *words], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=own
    )

    assert process.stderr is not None
    lines, said = process.stderr, []

    def steps() -> Iterator[str]:
        for line in lines:
            said.append(line)
            if line.startswith("2026-"):
                yield line.strip()

    def kill() -> list[str]:
        process.kill()
        with process:
            return list(steps())

    def told() -> Iterator[str]:
        with process:
            yield from steps()
        assert process.returncode == 0, "".join(said)

    return kill, told()


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """Half a year of four GPUs."""
    made = SmallFleet(11, weeks=26, nodes=1, gpus_per_node=4, load=0.3, begin=datetime(2026, 1, 1, tzinfo=UTC))
    return made.write(tmp_path / "trace")


def require_equal(killer: Killer, undisturbed: Path) -> None:
    """No step that stood as done was begun again, all are done, and nothing lies about."""
    assert not killer.again
    assert all(one.is_complete for one in read_chain(killer.out).months)
    assert files(killer.out) == files(undisturbed)
    assert [path.name for path in killer.out.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.long
def test_a_process_killed_at_random_moments_changes_nothing(fleet: Path, tmp_path: Path, monkeypatch):
    works, months = Works(), SIX[:3]
    monkeypatch.setattr(room, "evaluate", works.evaluate)
    monkeypatch.setattr(room, "write_report", works.write_report)
    killer = Killer(tmp_path / "killed", random.Random(3), longest_s=0.05, most_lines=6)
    for _ in range(2):
        killer.watch(*begin(["-c", STUBBED, str(fleet), str(killer.out), *months], killer.out))
    assert killer.kills.total() == 2
    for out in ("killed", "undisturbed"):
        room.report_months(Scenario(data=str(fleet)), months, tmp_path / out, report_progress=lambda _: None)
    require_equal(killer, tmp_path / "undisturbed")


@pytest.mark.long
def test_half_a_year_killed_at_twenty_moments_equals_the_undisturbed_one(fleet: Path, tmp_path: Path):
    """The command itself, with kernel and browser, and its report; each folder has a cache of its own."""
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(f"data: {fleet}\n{SMALL}")
    rest = Killer(tmp_path / "undisturbed", random.Random(0))
    begun = time.monotonic()
    rest.watch(*command(scenario, rest.out), to_the_end=True)
    month_s = (time.monotonic() - begun) / len(SIX)
    killer = Killer(tmp_path / "killed", random.Random(7), longest_s=0.6 * month_s, most_lines=2)
    twenty_kills(killer, scenario)
    require_equal(killer, rest.out)


def command(scenario: Path, out: Path, *more: str) -> Run:
    months = f"{SIX[0]}..{SIX[-1]}"
    return begin(["-m", "gpuplanner", "report", months, "--data", str(scenario), "-o", str(out), *more], out)


def twenty_kills(killer: Killer, scenario: Path) -> None:
    """Kill and go on; where all is done before the last kill, one of the months is made anew."""
    more: tuple[str, ...] = ()
    while killer.kills.total() < 20:
        before = killer.kills.total()
        killer.watch(*command(scenario, killer.out, *more), anew=more[-1:])
        more = ("--again", killer.rng.choice(SIX)) if killer.kills.total() == before else ()
    killer.watch(*command(scenario, killer.out), to_the_end=True)
    sys.stdout.write(f"killed during {dict(killer.kills)}\n")
    assert killer.kills["report"] > 3
