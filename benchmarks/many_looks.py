"""Memory and CPU seconds of one watch over many looks, and of one look at a large fleet.

``python benchmarks/many_looks.py`` looks 1,000 times, every six hours of data, at eight GPUs of which the
last four weeks are on record; the same process goes on, as a watch does, and plans of earlier looks are evaluated.
``--gpus 1000`` looks once at a fleet of that size instead, in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.replanning import evaluate_fleet, read_past_advice, read_watch_state, save_watch_state

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.decision.recurring.small_fleets import SmallFleet

ON_RECORD = 28
STEP_DAYS = 0.25
MIB = 1 << 20


def say(text: str) -> None:
    """Tell how far it is."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def resident() -> float:
    """Memory of this process now [MiB]."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def used() -> float:
    """CPU seconds of this process."""
    told = resource.getrusage(resource.RUSAGE_SELF)
    return told.ru_utime + told.ru_stime


def many_looks(count: int, place: Path) -> list[float]:
    """Look again and again at data that go on; the memory held after each look [MiB]."""
    weeks = 5 + int(count * STEP_DAYS / 7)
    fleet = SmallFleet(2, weeks=weeks, nodes=1, load=0.3, sizes={1: 1.0})
    data, out = place / "trace", place / "watch"
    asked = Scenario(data=str(data), horizon_intervals=12, work_limit=8)
    say(f"{'looks':>6} {'packs':>6} {'evaluated':>6} {'regret':>8} {'MiB':>7} {'CPU s':>7}")
    held = []
    for number in range(1, count + 1):
        now = replace(fleet, days=ON_RECORD + number * STEP_DAYS)
        since = now.end - timedelta(days=ON_RECORD)
        _Late(**(vars(now) | {"since": since})).write(data)
        state = read_watch_state(out)
        found = evaluate_fleet(asked, 6, read_past_advice(out, state))
        state = state.add_evaluation(found, str(number))
        save_watch_state(out, state, found)
        held.append(resident())
        if number in (1, 10) or number % 100 == 0:
            say(
                f"{state.looks:6} {state.packs:6} {state.evaluated:6} {state.regret:8.0f} {resident():7.0f} "
                f"{used():7.0f}"
            )
    return held


class _Late(SmallFleet):
    """A fleet whose record begins late: older jobs are no longer kept."""

    def __init__(self, since: datetime, **fields: object):
        super().__init__(**fields)
        object.__setattr__(self, "since", since)

    def jobs(self) -> pl.DataFrame:
        return super().jobs().filter(pl.col("submit_time") >= self.since)


def one_look(gpus: int, place: Path) -> None:
    """Looks of ``watch --once`` eight days apart, the start of the process included: the second judges the first."""
    fleet = SmallFleet(3, weeks=4, nodes=-(-gpus // 8), load=0.6)
    command = [sys.executable, "-m", "gpuplanner", "watch", str(place / "trace"), "--once", "-o", str(place / "watch")]
    for days in (20, 28):
        replace(fleet, days=days).write(place / "trace")
        process = subprocess.Popen(command)
        _, status, told = os.wait4(process.pid, 0)
        state = read_watch_state(place / "watch")
        say(
            f"{state.gpus} GPUs, day {days}: {told.ru_utime + told.ru_stime:.1f} CPU s, "
            f"{told.ru_maxrss / 1024:.0f} MiB, {state.evaluated} evaluated, exit {os.waitstatus_to_exitcode(status)}"
        )


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--looks", type=int, default=1000)
    parser.add_argument("--gpus", type=int)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.gpus:
            one_look(given.gpus, Path(folder))
        else:
            many_looks(given.looks, Path(folder))


if __name__ == "__main__":
    main()
