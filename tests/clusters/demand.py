"""Demand as lanes: each lane is one person or service that submits the next job soon after the last one's run time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from tests.clusters.model import WHOLE, Job

HOUR, DAY, WEEK = 3600, 86400, 604800


@dataclass(frozen=True)
class Lane:
    """One stream of jobs that never asks for more than `devices` at once, if each of them starts when submitted.

    `hours` are those of the day in which it submits (on weekdays, or on all days), `outside` turns that around. Jobs
    end with their window where they have one, as a session that is closed or a limit until the morning. `weeks` are
    the first and the last week, in weeks, in which the lane is there.
    """

    account: str
    name: str
    kind: str = WHOLE
    each: int = 1
    nodes: int = 1
    hours: tuple[float, float] | None = None
    weekdays: bool = True
    outside: bool = False
    run_h: float = 6.0
    spread: float = 0.5
    gap_s: float = 90.0
    absent: float = 0.0
    weeks: tuple[float, float] = (0.0, 1e9)
    user: str = ""


def lanes(number: int, lane: Lane) -> list[Lane]:
    """A number of equal lanes of different users."""
    return [Lane(**{**vars(lane), "user": f"{lane.account[:4]}{place + 1:02d}"}) for place in range(number)]


def jobs_of(listed: Iterable[Lane], until: int, random: Random) -> list[Job]:
    """Jobs of all lanes up to an instant, numbered by submission.

    Their submissions are those of a fleet on which each starts at once: they do not hang on the fleet that is there.
    """
    drawn: list[tuple[int, int, int, Lane]] = []
    for place, lane in enumerate(listed):
        drawn += [(submit, place, run, lane) for submit, run in _stream(lane, until, random)]
    drawn.sort(key=lambda each: each[:2])
    jobs = []
    for number, (submit, _, run, lane) in enumerate(drawn, 1):
        end, limit = _ending(random), _limit(run, random)
        if end == "TIMEOUT":
            run = limit = max(300, run // 60 * 60)
        jobs.append(
            Job(
                number,
                submit,
                run,
                limit,
                lane.kind,
                lane.each,
                lane.nodes,
                lane.account,
                lane.user or lane.account,
                lane.name,
                end,
            )
        )
    return jobs


def _stream(lane: Lane, until: int, random: Random) -> list[tuple[int, int]]:
    """Submissions and run times of one lane."""
    found: list[tuple[int, int]] = []
    begin, last = int(lane.weeks[0] * WEEK), min(until, int(lane.weeks[1] * WEEK))
    now = begin + random.randrange(1, 2 * HOUR)
    while True:
        opened = _window(lane, now, random)
        if opened is None or opened[0] >= last:
            return found
        now, close = opened
        run = int(lane.run_h * HOUR * random.lognormvariate(0.0, lane.spread))
        run = max(300, min(run, int(4 * lane.run_h * HOUR), close - now))
        found.append((now, run))
        now += run + 5 + int(random.expovariate(1 / lane.gap_s))


def _window(lane: Lane, now: int, random: Random) -> tuple[int, int]:
    """The first instant from now at which the lane submits, and when that window closes."""
    if lane.hours is None:
        return now, now + 10**9
    opens, closes = (int(hour * HOUR) for hour in lane.hours)
    while True:
        day = now // DAY * DAY
        works = day // DAY % 7 < 5 or not lane.weekdays
        begin, end = day + opens, day + closes
        if lane.outside:
            if not works:
                return now, _opens_next(lane, day)
            if now < begin - 1200:
                return now, begin
            now = max(now, end + random.randrange(60, 600))
            if now < day + DAY:
                return now, _opens_next(lane, day)
            continue
        if works and now < end - 1200 and not (lane.absent and _absent(lane, day)):
            return max(now, begin + random.randrange(0, 1200) if now < begin else now), end
        now = day + DAY


def _opens_next(lane: Lane, day: int) -> int:
    """The next time at which the working day of a lane opens."""
    while True:
        day += DAY
        if day // DAY % 7 < 5 or not lane.weekdays:
            return day + int(lane.hours[0] * HOUR) if lane.hours else day


def _absent(lane: Lane, day: int) -> bool:
    return Random(f"{lane.account} {lane.user} {lane.name} {day}").random() < lane.absent


def _limit(run: int, random: Random) -> int:
    """What people ask for: half as much again to three times, in whole quarters of an hour."""
    return -(-int(run * random.choice((1.2, 1.5, 2.0, 3.0))) // 900) * 900


def _ending(random: Random) -> str:
    draw = random.random()
    for end, below in (("FAILED", 0.05), ("TIMEOUT", 0.07), ("CANCELLED", 0.085), ("OUT_OF_MEMORY", 0.09)):
        if draw < below:
            return end
    return "COMPLETED"
