"""The gate ``gpuplanner check``: its questions, and alerts for other systems."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from email.message import EmailMessage
from email.policy import SMTP
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuplanner.core.errors import escape_controls
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.serialization import to_json
from gpuplanner.core.units import SECONDS_PER_DAY, SECONDS_PER_HOUR, SECONDS_PER_MINUTE, percent_text
from gpuplanner.decision.capacity_answers import why_none
from gpuplanner.decision.explained_waits import explain_waits
from gpuplanner.decision.headroom_and_growth import (
    FittedGrowth,
    MeasuredHeadroom,
    measure_headroom,
    weeks_to_exhaustion,
)
from gpuplanner.decision.policy_simulation import allocated_gpu_hours
from gpuplanner.decision.recommendation import build_wait_model, fit_submitted_growth, read_wait_target
from gpuplanner.decision.requests import JobReplayInputs, classify_job_sizes, read_replay_inputs
from gpuplanner.decision.wait_causes import LIMITS
from gpuplanner.decision.wait_curve import DAYS_PER_WEEK, WaitModel
from gpuplanner.forecast.gpu_demand import DemandHistory, lay_out_jobs
from gpuplanner.planner.layout_plan import format_utc
from gpuplanner.usage.job_history import History, history

SERVED, WILL_BE_SERVED = "waits last week", "capacity next week"
FORECAST, LASTS = "forecast accuracy", "capacity runway"
FEWEST_JUDGED = 20
"""Of fewer jobs a share is a matter of luck: such a size is judged with its neighbour."""
MOST_ORIGINS = 8
"""Weeks before the last one whose forecasts say how far forecasts of this cluster are off."""
PRIOR_WEEKS, PRIOR_MISS = 2, 0.15
"""Before any week is seen, what comes is taken to be this far off, in logarithms, beside what chance alone spreads, and
with the weight of so many weeks: little, since clusters differ (job counts of weeks in public records: 0.2 to 1.5)."""
JOBS_SHARE = 0.8
"""Share of the false alarms that the count of jobs may raise; the rest is for GPU-hours."""
INFERRED = "the number of GPUs is inferred from the jobs on them; import a node list for the true number"
UNREACHABLE = "no job size meets the wait target under any load"
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
        checks = [asdict(one) for one in self.checks]
        return {"passed": self.passed, "scenario": self.scenario, "at": self.at, "checks": checks}


def gate(scenario: Scenario) -> Gate:
    """Ask the four questions of the data of a scenario; limits are its fields ``gate_...``.

    What cannot be judged (no starts in the source, too short a record, a fleet that is only inferred) is said and
    fails nobody.
    """
    seen = _Judged(scenario, history(scenario))
    checks = (_served(seen), _will_be_served(seen), _forecast_accuracy(seen), _lasts(seen))
    return Gate(scenario.name, seen.until, checks)


class _Judged:
    """What the questions look at, each part made once."""

    def __init__(self, scenario: Scenario, known: History) -> None:
        self.scenario, self.known = scenario, known
        jobs = known.jobs.drop("run_s", "run_known", "key")
        self.wanted: DemandHistory = lay_out_jobs(
            jobs, trace_end=known.plan_start, at=known.plan_start if scenario.month else None,
            interval_hours=scenario.interval_hours,
        )  # fmt: skip

    @property
    def slots(self) -> int:
        """Slots of a week, or of what stands for one."""
        return max(round(24 * self.scenario.check_days / self.scenario.interval_hours), 1)

    @property
    def until(self) -> datetime:
        """End of the record, as far as it is complete."""
        return self.wanted.start + self.wanted.slots * timedelta(hours=self.wanted.interval_hours)

    @cached_property
    def asked(self) -> JobReplayInputs:
        """Jobs on today's nodes."""
        return read_replay_inputs(self.known)

    @cached_property
    def model(self) -> WaitModel:
        """The wait model of the record."""
        return build_wait_model(self.asked, explain_waits(self.asked))

    @cached_property
    def growth(self) -> FittedGrowth:
        """Growth of the submitted work."""
        return fit_submitted_growth(self.known)

    @cached_property
    def headroom(self) -> MeasuredHeadroom | str:
        """Load that today's GPUs carry within the wait target, in times that of the record, or why it is unknown."""
        reason = INFERRED if self.asked.nodes.inferred else why_none(self.model)
        if reason is not None:
            return reason
        target = read_wait_target(self.scenario)
        return measure_headroom(self.model, self.asked.fleet, target, self.growth) or UNREACHABLE

    @property
    def load_ahead(self) -> NDArray[np.float64]:
        """Work of the days to come in each sample path, in times the mean of the record; services left out."""
        asked, wanted = self.asked, self.wanted
        services = allocated_gpu_hours(asked, asked.is_service) * SECONDS_PER_HOUR / asked.observed_s
        first = max(round((asked.replay_start - wanted.start) / timedelta(hours=wanted.interval_hours)), 0)
        mean = float(np.nanmean(wanted.values[wanted.ids.index(wanted.whole), first:])) - services
        ahead = np.maximum(self.paths(wanted.slots).mean(axis=1) - services, 0.0)
        return np.asarray(ahead / max(mean, 1e-9) * self.scenario.arrival_scale)

    def paths(self, origin: int) -> NDArray[np.float64]:
        """Sample paths of all GPUs wanted in the slots from an origin on, as known then, shape (n_paths, slots)."""
        assert self.wanted.run_off is not None, "laid out from jobs"
        drawn = self.wanted.run_off.draws([self.wanted.whole], origin, self.slots, self.scenario.seed)[0]
        return np.asarray(drawn)

    def actual(self, origin: int) -> float:
        """GPU-hours wanted in the slots from an origin on."""
        row = self.wanted.values[self.wanted.ids.index(self.wanted.whole), origin : origin + self.slots]
        return float(row.sum()) * self.wanted.interval_hours


def _unjudged(name: str, limit: float, why: str) -> GateCheck:
    return GateCheck(name, True, None, limit, f"Not evaluated: {why}.")


def _served(seen: _Judged) -> GateCheck:
    """Whether the jobs of the last days started in time, by what they waited for want of GPUs."""
    scenario, limit = seen.scenario, seen.scenario.check_wait_share
    asked = seen.asked
    if asked.starts_assumed:
        return _unjudged(SERVED, limit, "the source has no start times of jobs")
    if asked.nodes.snapshot:
        return _unjudged(SERVED, limit, "the data are of one moment")
    model = seen.model
    if not model.waits.share.capacity_is_clear:
        return _unjudged(SERVED, limit, str(why_none(model)))
    until = (seen.until - asked.replay_start).total_seconds()
    since = until - scenario.check_days * 24 * 3600
    submit = asked.requests.submit_s
    judged = (submit >= max(since, 0.0)) & (submit < until) & ~asked.is_service
    if judged.sum() < FEWEST_JUDGED:
        return _unjudged(SERVED, limit, f"{judged.sum()} job(s) came in the last {scenario.check_days} days")
    kept_waiting_s = model.waits.seconds[:, :LIMITS].sum(axis=1)
    waited = kept_waiting_s > scenario.check_wait_minutes * SECONDS_PER_MINUTE
    late = judged & waited
    of, names = classify_job_sizes(asked, judged, FEWEST_JUDGED)
    late_jobs, jobs = (np.bincount(of[which], minlength=len(names)) for which in (late, judged))
    shares = {
        name: late_jobs[number] / jobs[number] for number, name in enumerate(names) if jobs[number] >= FEWEST_JUDGED
    } or {"all sizes": late.sum() / judged.sum()}
    worst = max(shares, key=lambda name: (shares[name], name))
    value, sizes = float(shares[worst]), "any size" if len(shares) == 1 else worst.replace(", ", " or ")
    alike = (submit < since) & ~asked.is_service & ((of == names.index(worst)) if worst in names else True)
    usual = f" Before that it was {percent_text(waited[alike].mean(), '.1f')}." if alike.sum() >= FEWEST_JUDGED else ""
    of_all = percent_text(late.sum() / judged.sum(), ".1f")
    sentence = (
        f"In the last {scenario.check_days} days {percent_text(value, '.1f')} of the jobs of {sizes} waited longer "
        f"than {scenario.check_wait_minutes:g} minutes for want of GPUs, of all jobs {of_all}; "
        f"{percent_text(limit, '.1f')} are allowed.{usual}"
    )
    return GateCheck(SERVED, value <= limit, round(value, 6), limit, sentence)


def _will_be_served(seen: _Judged) -> GateCheck:
    """Whether the work of the days to come stays within what today's fleet carries, by sample paths."""
    scenario, limit, measured = seen.scenario, seen.scenario.check_short_chance, seen.headroom
    gpus = seen.asked.nodes.total
    if isinstance(measured, str):
        return _unjudged(WILL_BE_SERVED, limit, measured)
    load = seen.load_ahead
    value = float((load[:, None] > measured.factors).mean())
    sentence = (
        f"With {percent_text(value)} chance the work of the next {scenario.check_days} days is more than {gpus:,} GPUs "
        f"as they run today carry within the wait target; {percent_text(limit)} is allowed. The forecast is "
        f"{np.median(load):.2f} times the mean of the record, the GPUs carry {measured.headroom.factor:.2f} times."
    )
    return GateCheck(WILL_BE_SERVED, value <= limit, round(value, 6), limit, sentence)


def _forecast_accuracy(seen: _Judged) -> GateCheck:
    """Whether jobs and GPU-hours of the last days lie where what was before them, and its past misses, say.

    Jobs that came tell of more demand soonest, since nothing of their run times is in them; GPU-hours tell of longer
    and wider jobs as well. False alarms are shared out between both (Bonferroni), most of them to jobs.
    """
    limit, week, days = seen.scenario.check_miss_chance, seen.slots, seen.scenario.check_days
    last = seen.wanted.slots - week
    origins = [last - back * week for back in range(MOST_ORIGINS + 1) if last - back * week >= 2 * week]
    if not origins:
        return _unjudged(FORECAST, limit, f"the evaluation of a forecast needs a record of {3 * days} days")
    jobs, hours = _jobs_missed(seen), _hours_missed(seen, origins)
    value = min(jobs.chance / JOBS_SHARE, hours.chance / (1 - JOBS_SHARE), 1.0)
    came, wanted = jobs.range(limit * JOBS_SHARE), hours.range(limit * (1 - JOBS_SHARE))
    sentence = (
        f"In the last {days} days {jobs.actual:,.0f} jobs came (expected {came}), with {hours.actual:,.0f} GPU-hours "
        f"(forecast {hours.expected:,.0f}, with its past errors {wanted}). Errors at least as large are "
        f"expected with a probability of {percent_text(value, '.1f')}; fails below {percent_text(limit, '.1f')}."
    )
    return GateCheck(FORECAST, value >= limit, round(value, 6), limit, sentence)


@dataclass(frozen=True)
class _Miss:
    """What came, what was expected, and how far off that is among ``drawn`` misses, in logarithms."""

    actual: float
    expected: float
    off: float
    drawn: NDArray[np.float64]

    @property
    def chance(self) -> float:
        """Chance of a miss as large."""
        return float((self.drawn >= abs(self.off)).mean())

    def range(self, limit: float) -> str:
        """Where it would pass by itself, in words."""
        wide = math.exp(float(np.quantile(self.drawn, 1 - limit)))
        return f"{self.expected / wide:,.0f} to {self.expected * wide:,.0f}"


def _jobs_missed(seen: _Judged) -> _Miss:
    """Jobs of the last days against the middle of up to eight spells before."""
    assert seen.wanted.run_off is not None, "laid out from jobs"
    spells = min(seen.wanted.slots // seen.slots, MOST_ORIGINS + 1)
    edges = (seen.wanted.slots - np.arange(spells, -1, -1) * seen.slots) * seen.wanted.interval_hours
    *past, last = np.log(np.histogram(seen.wanted.run_off.submit, edges)[0] + 1.0)
    middle, freedom = float(np.mean(past)), len(past) - 1
    expected = math.exp(middle)
    drawn = _drawn(float(np.var(past)) * len(past), freedom, 1 / math.sqrt(expected), seen.scenario.seed)
    wider = math.sqrt(1 + 1 / len(past))  # the middle is not known either
    return _Miss(math.exp(last) - 1, expected, float(last) - middle, drawn * wider)


def _hours_missed(seen: _Judged, origins: list[int]) -> _Miss:
    """GPU-hours of the last days against the forecast made before them, and the misses of those made before that."""
    (off, spread), *before = [_miss(seen, origin) for origin in origins]
    expected = float(seen.paths(origins[0]).sum(axis=1).mean()) * seen.wanted.interval_hours
    drawn = _drawn(sum(one**2 for one, _ in before), len(before), spread, seen.scenario.seed)
    return _Miss(seen.actual(origins[0]), expected, off, drawn)


def _drawn(squares: float, freedom: int, spread: float, seed: int) -> NDArray[np.float64]:
    """Sizes of misses that may come, by the squares of those that were and by what chance alone spreads."""
    squares, freedom = squares + PRIOR_WEEKS * (spread**2 + PRIOR_MISS**2), freedom + PRIOR_WEEKS
    drawn = np.random.default_rng(seed).standard_t(freedom, DRAWS)
    return np.asarray(np.abs(drawn) * math.sqrt(squares / freedom))


def _miss(seen: _Judged, origin: int) -> tuple[float, float]:
    """By how much a forecast was off, and how far apart its paths are, both in logarithms of GPU-hours."""
    sums = seen.paths(origin).sum(axis=1) * seen.wanted.interval_hours
    # A hundredth of a GPU all the time: none at all is no miracle.
    floor = seen.slots * seen.wanted.interval_hours * 0.01
    off = math.log((seen.actual(origin) + floor) / (float(sums.mean()) + floor))
    return off, float(np.log(sums + floor).std())


def _lasts(seen: _Judged) -> GateCheck:
    """Whether capacity is exhausted before more GPUs could be there."""
    scenario, limit, measured = seen.scenario, seen.scenario.check_exhaustion_chance, seen.headroom
    growth = seen.growth
    weekly = growth.weekly
    if isinstance(measured, str) or weekly.reason is not None:
        return _unjudged(LASTS, limit, measured if isinstance(measured, str) else str(weekly.reason))
    factors, days = measured.factors / scenario.arrival_scale, seen.asked.observed_s / SECONDS_PER_DAY
    weeks = weeks_to_exhaustion(growth, replace(measured, factors=factors), days)
    value = float((weeks <= scenario.purchase_lead_days / DAYS_PER_WEEK).mean())
    change, low, high = (percent_text(share or 0.0, "+.1f") for share in (weekly.value, weekly.low, weekly.high))
    sentence = (
        f"More GPUs take {scenario.purchase_lead_days} days from order to work; with {percent_text(value)} chance "
        f"capacity is exhausted before then; {percent_text(limit)} is allowed. The submitted work changes by {change} "
        f"per week (80 % interval {low} to {high}), the GPUs as they run today carry "
        f"{np.median(factors):.2f} times it."
    )
    return GateCheck(LASTS, value <= limit, round(value, 6), limit, sentence)


CHECK_FORMAT = "gpuplanner check 1"
"""First line of ``check.prom``, by which a folder of alerts is known."""
_MARKUP = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "@\u200b"})
"""Of the text that this gives, chats make no link, mention or markup of their own."""


@dataclass(frozen=True)
class Alerts:
    r"""What failed, as payloads of each channel, ready to be sent as they are; none where nothing failed.

    - ``alertmanager``: body of ``POST /api/v2/alerts``, one alert a check; it resolves when it is no longer sent.
    - ``chat``: body of an incoming webhook of Slack, Mattermost, Rocket.Chat, Google Chat or Teams: ``{"text": …}``.
    - ``mail``: ``subject`` and ``body``; :func:`mail_text` makes a message of them.
    - ``webhook``: a CloudEvent 1.0 in structured JSON; the same finding has the same ``id``, so that a receiver knows
      what it was told before.

    Nothing here is the clock's: all times are the end of the data.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> late = GateCheck("waits last week", False, 0.3, 0.1, "30% waited.")
    >>> found = Gate("lab <1>", datetime(2026, 3, 1, tzinfo=UTC), (late,))
    >>> print(Alerts(found).to_dict()["chat"]["text"])
    gpuplanner: 1 of 1 checks failed for lab &lt;1&gt; (data to 2026-03-01 00:00 UTC)
    - 30% waited.
    """

    found: Gate

    def to_dict(self) -> dict[str, Any]:
        """Payload by channel."""
        found = self.found
        if found.passed:
            return {}
        title, lines = subject(found), [one.sentence for one in found.failed]
        event = found.to_dict() | {"at": format_utc(found.at), "checks": [asdict(one) for one in found.failed]}
        name = hashlib.sha256(to_json(event).encode()).hexdigest()[:32]
        return {
            "alertmanager": [_alert(found, one) for one in found.failed],
            "chat": {"text": "\n".join([title, *(f"- {line}" for line in lines)]).translate(_MARKUP)},
            "mail": {"subject": title, "body": "\n".join([*lines, "", f"Data up to {_day(found)}.", ""])},
            "webhook": {
                "specversion": "1.0",
                "id": name,
                "source": f"/gpuplanner/{_word(found.scenario)}",
                "type": "gpuplanner.check.failed",
                "time": format_utc(found.at),
                "datacontenttype": "application/json",
                "data": event,
            },
        }


def subject(found: Gate) -> str:
    """How many checks failed, of what, in one line."""
    name = escape_controls(found.scenario).replace("\n", " ")
    return f"gpuplanner: {len(found.failed)} of {len(found.checks)} checks failed for {name} (data to {_day(found)})"


def mail_text(found: Gate) -> str:
    """A message for ``sendmail -t``, but for the addresses, which a site adds."""
    mail = Alerts(found).to_dict()["mail"]
    message = EmailMessage(policy=SMTP.clone(linesep="\n"))
    message["Subject"] = mail["subject"]
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(mail["body"])
    return message.as_string()


def metrics_text(found: Gate) -> str:
    """The checks as Prometheus reads them from a file of the node exporter's text collector."""
    lines = [
        f"# {CHECK_FORMAT}",
        "# HELP gpuplanner_check_passed Whether a check of the fleet passed (1) or failed (0).",
        "# TYPE gpuplanner_check_passed gauge",
        *(f'gpuplanner_check_passed{{check="{_word(one.name)}"}} {int(one.passed)}' for one in found.checks),
        "# HELP gpuplanner_check_data_end_seconds End of the data that were checked.",
        "# TYPE gpuplanner_check_data_end_seconds gauge",
        f"gpuplanner_check_data_end_seconds {found.at.timestamp():.0f}",
    ]
    return "\n".join(lines) + "\n"


def _alert(found: Gate, one: GateCheck) -> dict[str, Any]:
    scenario = escape_controls(found.scenario)
    labels = {"alertname": "GpuPlannerCheckFailed", "check": _word(one.name), "scenario": scenario}
    labels["severity"] = "warning"
    told = {"summary": f"{one.name}: failed for {scenario}", "description": one.sentence}
    return {"labels": labels, "annotations": told, "startsAt": format_utc(found.at)}


def _day(found: Gate) -> str:
    return f"{found.at:%Y-%m-%d %H:%M} UTC"


def _word(text: str) -> str:
    """Letters, digits and underscores alone: part of an address or of a label."""
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_") or "unnamed"
