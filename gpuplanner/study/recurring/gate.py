"""Four questions of a pipeline: was last week served, will next week be, do forecasts hold, does the fleet last."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuplanner.demand.growth import run_out
from gpuplanner.scenario import Scenario
from gpuplanner.study.decision.ahead import TOUCHED, WEEK_DAYS, weekly_needs
from gpuplanner.study.decision.asked import Asked, asked_of, size_classes
from gpuplanner.study.decision.shortage import kept_waiting_s
from gpuplanner.study.decision.types import ASSUMED
from gpuplanner.study.future.demand_at_hand import laid_out
from gpuplanner.study.future.gpus_wanted import Wanted
from gpuplanner.study.past.history import History, history
from gpuplanner.units import SECONDS_PER_MINUTE

SERVED, WILL_BE_SERVED, FORECAST, LASTS = (
    "last week served",
    "next week served",
    "forecast holds",
    "fleet lasts",
)
FEWEST_JUDGED = 20
"""Of fewer jobs a share is a matter of luck: such a size is judged with its neighbour."""
MOST_ORIGINS = 8
"""Weeks before the last one whose forecasts say how far forecasts of this cluster are off."""
PRIOR_WEEKS, PRIOR_MISS = 4.0, 0.15
"""Before any week is seen, forecasts are taken to be this far off, in logarithms, with the weight of so many weeks."""
DRAWS = 20_000


@dataclass(frozen=True)
class GateCheck:
    """One question: what was found, what is allowed, and the answer in a sentence.

    ``value`` and ``limit`` are shares [0-1]; ``value`` is None where the data cannot say: such a question fails nobody.
    """

    name: str
    passed: bool
    value: float | None
    limit: float
    sentence: str


@dataclass(frozen=True)
class Gate:
    """All questions, at the instant up to which the data go."""

    scenario: str
    at: datetime
    checks: tuple[GateCheck, ...]

    @property
    def passed(self) -> bool:
        """Whether no question failed."""
        return all(one.passed for one in self.checks)

    @property
    def failed(self) -> tuple[GateCheck, ...]:
        """The questions that failed."""
        return tuple(one for one in self.checks if not one.passed)

    def to_dict(self) -> dict[str, Any]:
        """What ``check --json`` prints, but for the alerts."""
        return {
            "passed": self.passed,
            "scenario": self.scenario,
            "at": self.at,
            "checks": [dataclasses.asdict(one) for one in self.checks],
        }


def gate(scenario: Scenario) -> Gate:
    """Ask the four questions of the data of a scenario; limits are its fields ``gate_...``.

    What cannot be judged (no starts in the source, too short a record, a fleet that is only inferred) is said and
    fails nobody.
    """
    seen = _Judged(scenario, history(scenario))
    checks = (_served(seen), _will_be_served(seen), _forecast_holds(seen), _lasts(seen))
    return Gate(scenario.name, seen.until, checks)


class _Judged:
    """What the questions look at, each part made once."""

    def __init__(self, scenario: Scenario, known: History) -> None:
        self.scenario, self.known = scenario, known
        jobs = known.jobs.drop("run_s", "run_known", "key")
        self.wanted: Wanted = laid_out(
            jobs, trace_end=known.plan_start, at=known.plan_start if scenario.month else None,
            slot_hours=scenario.slot_hours,
        )  # fmt: skip

    @property
    def slots(self) -> int:
        """Slots of a week, or of what stands for one."""
        return max(round(24 * self.scenario.gate_days / self.scenario.slot_hours), 1)

    @property
    def until(self) -> datetime:
        """End of the record, as far as it is complete."""
        return self.wanted.start + self.wanted.slots * timedelta(hours=self.wanted.slot_hours)

    @cached_property
    def asked(self) -> Asked:
        return asked_of(self.known)

    @cached_property
    def held_back_s(self) -> NDArray[np.float64]:
        """How long each job waited for want of GPUs [s]."""
        return kept_waiting_s(self.asked, self.asked.back())

    def paths(self, origin: int) -> NDArray[np.float64]:
        """Sample paths of all GPUs wanted in the slots from an origin on, as known then, shape (n_paths, slots)."""
        assert self.wanted.known is not None, "laid out from jobs"
        drawn = self.wanted.known.draws([self.wanted.whole], origin, self.slots, self.scenario.seed)[0]
        return np.asarray(drawn)

    def actual(self, origin: int) -> float:
        """GPU-hours wanted in the slots from an origin on."""
        row = self.wanted.values[self.wanted.ids.index(self.wanted.whole), origin : origin + self.slots]
        return float(row.sum()) * self.wanted.slot_hours


def _unjudged(name: str, limit: float, why: str) -> GateCheck:
    return GateCheck(name, True, None, limit, f"Not judged: {why}.")


def _served(seen: _Judged) -> GateCheck:
    """Whether the jobs of the last days started in time, by what they waited for want of GPUs."""
    scenario, limit = seen.scenario, seen.scenario.gate_late_share
    asked = seen.asked
    if asked.base == ASSUMED:
        return _unjudged(SERVED, limit, "the source does not say when jobs started")
    if asked.nodes.snapshot:
        return _unjudged(SERVED, limit, "the data are of one moment")
    until = (seen.until - asked.zero).total_seconds()
    since = until - scenario.gate_days * 24 * 3600
    submit = asked.granted.submit_s
    judged = (submit >= max(since, 0.0)) & (submit < until) & ~asked.standing
    if judged.sum() < FEWEST_JUDGED:
        count = int(judged.sum())
        return _unjudged(SERVED, limit, f"{count} job(s) came in the last {scenario.gate_days} days")
    late = judged & (seen.held_back_s > scenario.gate_wait_minutes * SECONDS_PER_MINUTE)
    of, names = size_classes(asked, judged, FEWEST_JUDGED)
    shares = {
        name: late[of == number].sum() / judged[of == number].sum()
        for number, name in enumerate(names)
        if judged[of == number].sum() >= FEWEST_JUDGED
    } or {"all sizes": late.sum() / judged.sum()}
    worst = max(shares, key=lambda name: (shares[name], name))
    value = float(shares[worst])
    sentence = (
        f"In the last {scenario.gate_days} days {value:.1%} of the jobs of {worst} waited longer than "
        f"{scenario.gate_wait_minutes:g} minutes for want of GPUs, of all jobs {late.sum() / judged.sum():.1%}; "
        f"{limit:.1%} are allowed."
    )
    return GateCheck(SERVED, value <= limit, round(value, 6), limit, sentence)


def _will_be_served(seen: _Judged) -> GateCheck:
    """Whether demand of the days to come stays within the fleet, by sample paths."""
    scenario, limit = seen.scenario, seen.scenario.gate_short_chance
    if seen.known.fleet.today.inferred:
        return _unjudged(WILL_BE_SERVED, limit, "how many GPUs there are is inferred from the jobs on them")
    gpus = seen.known.fleet.gpus
    above = (seen.paths(seen.wanted.slots) * scenario.arrival_scale > gpus).mean(axis=1)
    value = float((above > scenario.gate_short_share).mean())
    sentence = (
        f"With {value:.0%} chance more than {gpus:,} GPUs are wanted in over {scenario.gate_short_share:.0%} of the "
        f"hours of the next {scenario.gate_days} days; {limit:.0%} is allowed. The middle path is above them in "
        f"{np.median(above):.1%} of the hours."
    )
    return GateCheck(WILL_BE_SERVED, value <= limit, round(value, 6), limit, sentence)


def _forecast_holds(seen: _Judged) -> GateCheck:
    """Whether the GPU-hours of the last days lie where the forecast made before them, and its past errors, say."""
    limit, week = seen.scenario.gate_miss_chance, seen.slots
    last = seen.wanted.slots - week
    origins = [last - back * week for back in range(MOST_ORIGINS + 1) if last - back * week >= 2 * week]
    if not origins:
        days = 3 * seen.scenario.gate_days
        return _unjudged(FORECAST, limit, f"a record of {days} days is needed to look back at a forecast")
    misses = [_miss(seen, origin) for origin in origins]
    (off, spread), before = misses[0], [one for one, _ in misses[1:]]
    prior = max(spread, PRIOR_MISS)
    freedom = PRIOR_WEEKS + len(before)
    scale = math.sqrt((PRIOR_WEEKS * prior**2 + sum(one**2 for one in before)) / freedom)
    drawn = np.abs(np.random.default_rng(seen.scenario.seed).standard_t(freedom, DRAWS)) * scale
    value = float((drawn >= abs(off)).mean())
    expected = float(seen.paths(last).sum(axis=1).mean()) * seen.wanted.slot_hours
    wide = math.exp(float(np.quantile(drawn, 1 - limit)))
    sentence = (
        f"The last {seen.scenario.gate_days} days wanted {seen.actual(last):,.0f} GPU-hours; the forecast made before "
        f"them said {expected:,.0f}, and with its past errors {expected / wide:,.0f} to {expected * wide:,.0f}. A miss "
        f"as large has {value:.1%} chance; {limit:.1%} is the least that passes."
    )
    return GateCheck(FORECAST, value >= limit, round(value, 6), limit, sentence)


def _miss(seen: _Judged, origin: int) -> tuple[float, float]:
    """By how much a forecast was off, and how far apart its paths are, both in logarithms of GPU-hours."""
    sums = seen.paths(origin).sum(axis=1) * seen.wanted.slot_hours
    floor = (
        seen.slots * seen.wanted.slot_hours * 0.01
    )  # a hundredth of a GPU all the time: none at all is no miracle
    actual = seen.actual(origin)
    return math.log((actual + floor) / (float(sums.mean()) + floor)), float(np.log(sums + floor).std())


def _lasts(seen: _Judged) -> GateCheck:
    """Whether the fleet runs out before more could be there."""
    scenario, limit = seen.scenario, seen.scenario.gate_run_out_chance
    nodes = seen.asked.nodes
    late = seen.held_back_s > scenario.wait_minutes * SECONDS_PER_MINUTE
    minutes = scenario.wait_minutes if late.mean() > TOUCHED else None
    needs = weekly_needs(
        seen.known, rightsized=False, quantile=scenario.wait_quantile, minutes=minutes
    ) * scenario.arrival_scale  # fmt: skip
    weeks = max(math.ceil(scenario.purchase_lead_days / WEEK_DAYS), 1)
    found = run_out(
        needs, float(nodes.total), seen.until.date(), weeks_ahead=weeks, inferred=nodes.inferred, seed=scenario.seed
    )  # fmt: skip
    if not found.by_week:
        return _unjudged(LASTS, limit, str(found.reason))
    value = found.by_week[-1][1]
    when = (
        f"as likely as not from the week of {found.date:%Y-%m-%d} on"
        if found.date
        else "not the likelier case"
    )
    sentence = (
        f"More GPUs take {scenario.purchase_lead_days} days from order to work; until then {nodes.total:,} run out "
        f"with {value:.0%} chance, {when}; {limit:.0%} is allowed."
    )
    return GateCheck(LASTS, value <= limit, round(value, 6), limit, sentence)
