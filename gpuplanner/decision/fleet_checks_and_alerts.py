"""The capacity check of ``gpuplanner check``: four checks of a fleet, and alerts for other systems."""

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
from gpuplanner.core.units_and_number_formats import (
    SECONDS_PER_DAY,
    SECONDS_PER_HOUR,
    SECONDS_PER_MINUTE,
    count_text,
    gpus_text,
    percent_text,
)
from gpuplanner.decision.announced_projects import Project, project_span, read_projects
from gpuplanner.decision.capacity_measures import find_reason_against_recommendation
from gpuplanner.decision.explained_waits import explain_waits
from gpuplanner.decision.headroom_and_growth import (
    FittedGrowth,
    MeasuredHeadroom,
    draw_weeks_to_exhaustion,
    measure_headroom,
)
from gpuplanner.decision.policy_simulation import sum_allocated_gpu_hours
from gpuplanner.decision.recommendation import build_wait_model, fit_submitted_growth, read_wait_target
from gpuplanner.decision.requested_jobs import JobReplayInputs, classify_job_sizes, read_replay_inputs
from gpuplanner.decision.wait_causes import LIMITS
from gpuplanner.decision.wait_curve import DAYS_PER_WEEK, WaitModel
from gpuplanner.forecast.gpu_demand import DemandHistory, lay_out_jobs
from gpuplanner.planner.layout_plan import format_utc
from gpuplanner.usage.planning_history import History, history

PAST_WAITS, NEXT_DAYS = "waits last week", "capacity next week"
"""Printed names of the check of past queue waits, and of the check of forecast demand against capacity."""
FORECAST_ACCURACY, RUNWAY = "forecast accuracy", "capacity runway"
"""Printed names of the check of forecast errors, and of the check of the time until capacity is exhausted."""
MIN_JOBS_PER_CHECKED_SIZE = 20
"""Fewest jobs of a job size for a share of jobs over the wait target; a smaller one is evaluated with its neighbour."""
MAX_PAST_FORECASTS = 8
"""Most weeks before the last one whose forecast errors are measured."""
PRIOR_WEEKS, PRIOR_LOG_ERROR = 2, 0.15
"""Weight [weeks] and size [log] of the forecast error that is assumed before any week is observed.

The weight is small because clusters differ: weekly job counts of public traces vary by 0.2 to 1.5 [log].
"""
JOB_ALARM_SHARE = 0.8
"""Share of the accepted false alarm rate that is spent on the test of the number of jobs [0-1]; the rest is spent on
that of GPU-hours.
"""
INFERRED_FLEET_REASON = "the number of GPUs is inferred from the jobs on them; import a node list for the true number"
"""Reason why a fleet without a node list passes a check unchecked."""
UNREACHABLE_TARGET_REASON = "no job size meets the wait target under any load"
"""Reason why a fleet passes a check unchecked if its jobs miss the wait target under any load."""
N_RANDOM_FORECAST_ERRORS = 20_000
"""Number of random forecast errors to which the last forecast error is compared."""


@dataclass(frozen=True)
class SingleCheckResult:
    """Result of one check: its value, its limit, and a sentence.

    ``value`` and ``limit`` are shares [0-1]; ``value`` is None if the data do not suffice, and the check then passes.
    """

    name: str
    passed: bool
    value: float | None
    limit: float
    sentence: str


@dataclass(frozen=True)
class CapacityCheckReport:
    """Results of all checks of a fleet.

    - ``scenario``: Name of the scenario.
    - ``data_end``: End of the data.
    - ``checks``: Results in their order.
    """

    scenario: str
    data_end: datetime
    checks: tuple[SingleCheckResult, ...]

    @property
    def has_passed(self) -> bool:
        """Whether no check failed."""
        return all(result.passed for result in self.checks)

    @property
    def failed_checks(self) -> tuple[SingleCheckResult, ...]:
        """Results of the checks that failed."""
        return tuple(result for result in self.checks if not result.passed)

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``check --json`` prints, without its alerts."""
        checks = [asdict(result) for result in self.checks]
        return {"passed": self.has_passed, "scenario": self.scenario, "at": self.data_end, "checks": checks}


def check_capacity(scenario: Scenario) -> CapacityCheckReport:
    """Run the four checks on the data of a scenario, with the limits of its fields ``check_...``.

    A check that the data do not support (no start times, too short a record, inferred nodes) passes with the reason.
    """
    if scenario.projects is not None:
        read_projects(scenario.projects)  # raises on a wrong or missing file, also where no check uses it
    record = _CheckedRecord(scenario, history(scenario))
    checks = (_check_past_waits(record), _check_next_days(record), _check_forecast(record), _check_runway(record))
    return CapacityCheckReport(scenario.name, record.record_end, checks)


class _CheckedRecord:
    """Inputs of the checks: demand, jobs, wait model, growth and headroom of a scenario, each computed once.

    The checked days are the last days of the record, as many as the scenario states in ``check_days``.
    """

    def __init__(self, scenario: Scenario, job_history: History) -> None:
        self.scenario, self.job_history = scenario, job_history
        jobs = job_history.jobs.drop("run_s", "run_known")
        self.demand: DemandHistory = lay_out_jobs(
            jobs, trace_end=job_history.plan_start, at=job_history.plan_start if scenario.month else None,
            interval_hours=scenario.interval_hours,
        )  # fmt: skip

    @property
    def week_slots(self) -> int:
        """Number of intervals of the demand series in the checked days."""
        return max(round(24 * self.scenario.check_days / self.scenario.interval_hours), 1)

    @property
    def record_end(self) -> datetime:
        """End of the complete part of the record."""
        return self.demand.end

    @cached_property
    def asked_jobs(self) -> JobReplayInputs:
        """Observed jobs as requests on today's nodes."""
        return read_replay_inputs(self.job_history)

    @cached_property
    def model(self) -> WaitModel:
        """Wait model of the observed jobs."""
        return build_wait_model(self.asked_jobs, explain_waits(self.asked_jobs))

    @cached_property
    def growth(self) -> FittedGrowth:
        """Weekly growth of the submitted work."""
        return fit_submitted_growth(self.job_history)

    @cached_property
    def headroom(self) -> MeasuredHeadroom | str:
        """Load that today's GPUs carry within the wait target, or why it is unknown.

        It is a factor of the observed load.
        """
        reason = (
            INFERRED_FLEET_REASON if self.asked_jobs.nodes.inferred else find_reason_against_recommendation(self.model)
        )
        if reason is not None:
            return reason
        target = read_wait_target(self.scenario)
        return measure_headroom(self.model, self.asked_jobs.fleet, target, self.growth) or UNREACHABLE_TARGET_REASON

    @cached_property
    def coming_projects(self) -> tuple[Project, ...]:
        """Announced projects on these GPUs that begin after the record: earlier ones are part of it."""
        if self.scenario.projects is None:
            return ()
        gpu_models = (None, self.asked_jobs.gpu_model.name)
        return tuple(
            project
            for project in read_projects(self.scenario.projects).projects
            if project.gpu_model in gpu_models and project_span(project, self.scenario.tz)[0] >= self.record_end
        )

    @property
    def mean_gpus(self) -> float:
        """Mean GPUs of the observed load, without services."""
        inputs, demand = self.asked_jobs, self.demand
        first_slot = max(round((inputs.replay_start - demand.start) / timedelta(hours=demand.interval_hours)), 0)
        all_gpus = float(np.nanmean(demand.values[demand.ids.index(demand.whole), first_slot:]))
        return max(all_gpus - self.service_gpus, 1e-9)

    @property
    def service_gpus(self) -> float:
        """Mean GPUs of services."""
        inputs = self.asked_jobs
        return sum_allocated_gpu_hours(inputs, inputs.is_service) * SECONDS_PER_HOUR / inputs.observed_s

    def draw_project_load(self, days: float, n_draws: int) -> NDArray[np.float64]:
        """Draw the load of announced projects in the next days, as a factor of the observed load, shape (n_draws,)."""
        begin, load = self.record_end, np.zeros(n_draws)
        end, rng = begin + timedelta(days=days), np.random.default_rng([self.scenario.seed, 59])
        for project in self.coming_projects:
            first, last = project_span(project, self.scenario.tz)
            share = max((min(last, end) - first) / (end - begin), 0.0)
            load += (rng.random(n_draws) < project.chance) * share * project.concurrent_gpus / self.mean_gpus
        return load

    def describe_projects(self, days: float) -> str:
        """Describe the announced projects of the next days in a sentence; empty if there is none."""
        if self.scenario.projects is None:
            return ""
        end = self.record_end + timedelta(days=days)
        begun = [project for project in self.coming_projects if project_span(project, self.scenario.tz)[0] < end]
        if not begun:
            return ""
        gpus = sum(project.chance * project.concurrent_gpus for project in begun)
        return f" Beginning by then: {count_text(len(begun), 'announced project')}, {gpus_text(gpus)} on average."

    @property
    def load_factors(self) -> NDArray[np.float64]:
        """Forecast load of the next days in each sample path, without services, as a factor of the observed load."""
        sampled_gpus = np.maximum(self.sample_demand(self.demand.slots).mean(axis=1) - self.service_gpus, 0.0)
        usual = sampled_gpus / self.mean_gpus * self.scenario.arrival_scale
        return np.asarray(usual + self.draw_project_load(self.scenario.check_days, len(usual)))

    def sample_demand(self, first_slot: int) -> NDArray[np.float64]:
        """Draw sample paths of the total demand [GPUs] as forecast at an interval, shape (n_paths, n_intervals)."""
        assert self.demand.run_off is not None, "laid out from jobs"
        draws = self.demand.run_off.draws([self.demand.whole], first_slot, self.week_slots, self.scenario.seed)[0]
        return np.asarray(draws)

    def count_gpu_hours(self, first_slot: int) -> float:
        """Count the GPU-hours requested in the checked days from an interval on."""
        row = self.demand.values[self.demand.ids.index(self.demand.whole), first_slot : first_slot + self.week_slots]
        return float(row.sum()) * self.demand.interval_hours


def _skip_check(name: str, limit: float, reason: str) -> SingleCheckResult:
    """Return the result of a check that the data do not support: it passes."""
    return SingleCheckResult(name, True, None, limit, f"Not evaluated: {reason}.")


def _check_past_waits(record: _CheckedRecord) -> SingleCheckResult:
    """Check whether the share of jobs of the last days that waited too long for capacity is within its limit."""
    scenario, limit = record.scenario, record.scenario.check_wait_share
    inputs = record.asked_jobs
    if inputs.starts_assumed:
        return _skip_check(PAST_WAITS, limit, "the source has no start times of jobs")
    if inputs.nodes.snapshot:
        return _skip_check(PAST_WAITS, limit, "the data are of one moment")
    model = record.model
    if not model.waits.share.capacity_is_clear:
        return _skip_check(PAST_WAITS, limit, str(find_reason_against_recommendation(model)))
    until_s = (record.record_end - inputs.replay_start).total_seconds()
    since_s = until_s - scenario.check_days * 24 * 3600
    submit = inputs.requests.submit_s
    evaluated = (submit >= max(since_s, 0.0)) & (submit < until_s) & ~inputs.is_service
    if evaluated.sum() < MIN_JOBS_PER_CHECKED_SIZE:
        return _skip_check(PAST_WAITS, limit, f"{evaluated.sum()} job(s) came in the last {scenario.check_days} days")
    capacity_wait_s = model.waits.seconds[:, :LIMITS].sum(axis=1)
    waited = capacity_wait_s > scenario.check_wait_minutes * SECONDS_PER_MINUTE
    late = evaluated & waited
    size, names = classify_job_sizes(inputs, evaluated, MIN_JOBS_PER_CHECKED_SIZE)
    late_jobs, all_jobs = (np.bincount(size[mask], minlength=len(names)) for mask in (late, evaluated))
    shares = {
        name: late_jobs[i] / all_jobs[i] for i, name in enumerate(names) if all_jobs[i] >= MIN_JOBS_PER_CHECKED_SIZE
    } or {"all sizes": late.sum() / evaluated.sum()}
    worst = max(shares, key=lambda name: (shares[name], name))
    share, size_text = float(shares[worst]), "any size" if len(shares) == 1 else worst.replace(", ", " or ")
    prior = (submit < since_s) & ~inputs.is_service & ((size == names.index(worst)) if worst in names else True)
    usual = (
        f" Before that it was {percent_text(waited[prior].mean(), '.1f')}."
        if prior.sum() >= MIN_JOBS_PER_CHECKED_SIZE
        else ""
    )
    of_all = percent_text(late.sum() / evaluated.sum(), ".1f")
    sentence = (
        f"In the last {scenario.check_days} days {percent_text(share, '.1f')} of the jobs of {size_text} waited longer "
        f"than {scenario.check_wait_minutes:g} minutes for want of suitable GPUs, of all jobs {of_all}; "
        f"{percent_text(limit, '.1f')} are allowed.{usual}"
    )
    return SingleCheckResult(PAST_WAITS, share <= limit, round(share, 6), limit, sentence)


def _check_next_days(record: _CheckedRecord) -> SingleCheckResult:
    """Check whether the forecast work of the next days stays within what today's fleet carries, by sample paths."""
    scenario, limit, headroom = record.scenario, record.scenario.check_short_chance, record.headroom
    gpus = record.asked_jobs.nodes.total
    if isinstance(headroom, str):
        return _skip_check(NEXT_DAYS, limit, headroom)
    load_factors = record.load_factors
    chance = float((load_factors[:, None] > headroom.factors).mean())
    sentence = (
        f"The work of the next {scenario.check_days} days is forecast at {np.median(load_factors):.2f} times the mean "
        f"of the record; {gpus:,} GPUs as they run today carry {headroom.headroom.factor:.2f} times within the wait "
        f"target. It exceeds that with a probability of {percent_text(chance)}; {percent_text(limit)} is allowed."
        f"{record.describe_projects(scenario.check_days)}"
    )
    return SingleCheckResult(NEXT_DAYS, chance <= limit, round(chance, 6), limit, sentence)


def _check_forecast(record: _CheckedRecord) -> SingleCheckResult:
    """Check whether jobs and GPU-hours of the last days are within the usual error of the forecasts made before them.

    The number of jobs shows new demand first, as it does not depend on run times; GPU-hours show longer and larger jobs
    as well. The false alarm rate is divided between both (Bonferroni), with the larger part for the number of jobs.
    """
    limit, slots, days = (record.scenario.check_miss_chance, record.week_slots, record.scenario.check_days)
    last = record.demand.slots - slots
    origins = [last - weeks * slots for weeks in range(MAX_PAST_FORECASTS + 1) if last - weeks * slots >= 2 * slots]
    if not origins:
        return _skip_check(FORECAST_ACCURACY, limit, f"the evaluation of a forecast needs a record of {3 * days} days")
    jobs, hours = _measure_job_count_error(record), _measure_gpu_hour_error(record, origins)
    chance = min(jobs.chance / JOB_ALARM_SHARE, hours.chance / (1 - JOB_ALARM_SHARE), 1.0)
    job_range = jobs.format_range(limit * JOB_ALARM_SHARE)
    hour_range = hours.format_range(limit * (1 - JOB_ALARM_SHARE))
    sentence = (
        f"In the last {days} days {jobs.actual:,.0f} jobs came (expected {job_range}), with {hours.actual:,.0f} "
        f"GPU-hours (forecast {hours.expected:,.0f}, with its past errors {hour_range}). Errors at least as large are "
        f"expected with a probability of {percent_text(chance, '.1f')}; fails below {percent_text(limit, '.1f')}."
    )
    return SingleCheckResult(FORECAST_ACCURACY, chance >= limit, round(chance, 6), limit, sentence)


@dataclass(frozen=True)
class _ForecastError:
    """Error of the last forecast, and random errors that show how unusual it is.

    - ``actual``, ``expected``: Observed and forecast number of jobs, or GPU-hours.
    - ``log_error``: Logarithm of their ratio.
    - ``error_sizes``: Absolute values of random errors, in logarithms.
    """

    actual: float
    expected: float
    log_error: float
    error_sizes: NDArray[np.float64]

    @property
    def chance(self) -> float:
        """Probability of a forecast error at least as large as the last one [0-1]."""
        return float((self.error_sizes >= abs(self.log_error)).mean())

    def format_range(self, limit: float) -> str:
        """Format the range of values that pass at a limit of the probability."""
        wide = math.exp(float(np.quantile(self.error_sizes, 1 - limit)))
        return f"{self.expected / wide:,.0f} to {self.expected * wide:,.0f}"


def _measure_job_count_error(record: _CheckedRecord) -> _ForecastError:
    """Measure the number of jobs of the checked days against the mean of up to eight periods of that length before."""
    assert record.demand.run_off is not None, "laid out from jobs"
    spells = min(record.demand.slots // record.week_slots, MAX_PAST_FORECASTS + 1)
    edges = (record.demand.slots - np.arange(spells, -1, -1) * record.week_slots) * record.demand.interval_hours
    *past, last_log = np.log(np.histogram(record.demand.run_off.submit, edges)[0] + 1.0)
    mean_log, degrees = float(np.mean(past)), len(past) - 1
    expected = math.exp(mean_log)
    sizes = _draw_error_sizes(float(np.var(past)) * len(past), degrees, 1 / math.sqrt(expected), record.scenario.seed)
    widening = math.sqrt(1 + 1 / len(past))  # the middle is not known either
    return _ForecastError(math.exp(last_log) - 1, expected, float(last_log) - mean_log, sizes * widening)


def _measure_gpu_hour_error(record: _CheckedRecord, first_slots: list[int]) -> _ForecastError:
    """Measure the GPU-hours of the checked days against their forecast, with the errors of earlier forecasts.

    ``first_slots`` are the first intervals of the checked days and of the earlier forecast periods, latest first.
    """
    (log_error, spread), *past = [_log_forecast_error(record, origin) for origin in first_slots]
    expected = float(record.sample_demand(first_slots[0]).sum(axis=1).mean()) * record.demand.interval_hours
    sizes = _draw_error_sizes(sum(error**2 for error, _ in past), len(past), spread, record.scenario.seed)
    return _ForecastError(record.count_gpu_hours(first_slots[0]), expected, log_error, sizes)


def _draw_error_sizes(squared_errors: float, degrees: int, spread: float, seed: int) -> NDArray[np.float64]:
    """Draw absolute errors of the logarithm of a forecast from the posterior Student's t distribution.

    The posterior combines the past errors with `PRIOR_WEEKS` assumed ones, each of the variance
    ``spread**2 + PRIOR_LOG_ERROR**2``.

    Parameters
    ----------
    squared_errors : float
        Sum of the squared past errors, in logarithms.
    degrees : int
        Number of past errors.
    spread : float
        Standard deviation of the forecast paths, in logarithms; part of the assumed variance.
    seed : int
        Seed of the random numbers.

    Returns
    -------
    numpy.ndarray, shape (N_RANDOM_FORECAST_ERRORS,)
        Absolute errors, in logarithms.
    """
    squared_errors, degrees = squared_errors + PRIOR_WEEKS * (spread**2 + PRIOR_LOG_ERROR**2), degrees + PRIOR_WEEKS
    draws = np.random.default_rng(seed).standard_t(degrees, N_RANDOM_FORECAST_ERRORS)
    return np.asarray(np.abs(draws) * math.sqrt(squared_errors / degrees))


def _log_forecast_error(record: _CheckedRecord, first_slot: int) -> tuple[float, float]:
    """Return the error of a forecast, and the standard deviation of its paths, both in logarithms of GPU-hours."""
    sums = record.sample_demand(first_slot).sum(axis=1) * record.demand.interval_hours
    # A hundredth of a GPU all the time: none at all is no miracle.
    floor = record.week_slots * record.demand.interval_hours * 0.01
    log_error = math.log((record.count_gpu_hours(first_slot) + floor) / (float(sums.mean()) + floor))
    return log_error, float(np.log(sums + floor).std())


def _check_runway(record: _CheckedRecord) -> SingleCheckResult:
    """Check whether growth exhausts capacity before ordered GPUs could be delivered."""
    scenario, limit, headroom = (record.scenario, record.scenario.check_exhaustion_chance, record.headroom)
    growth = record.growth
    weekly = growth.weekly
    if isinstance(headroom, str) or weekly.reason is not None:
        return _skip_check(RUNWAY, limit, headroom if isinstance(headroom, str) else str(weekly.reason))
    factors, record_days = headroom.factors / scenario.arrival_scale, record.asked_jobs.observed_s / SECONDS_PER_DAY
    projects = record.draw_project_load(scenario.purchase_lead_days, len(factors))
    factors = np.maximum(factors - projects, 1e-9)
    weeks = draw_weeks_to_exhaustion(growth, replace(headroom, factors=factors), record_days)
    chance = float((weeks <= scenario.purchase_lead_days / DAYS_PER_WEEK).mean())
    change, low, high = (percent_text(share or 0.0, "+.1f") for share in (weekly.value, weekly.low, weekly.high))
    sentence = (
        f"More GPUs take {scenario.purchase_lead_days} days from order to work; with {percent_text(chance)} chance "
        f"capacity is exhausted before then; {percent_text(limit)} is allowed. The submitted work changes by {change} "
        f"per week (80 % interval {low} to {high}), the GPUs as they run today carry "
        f"{np.median(factors):.2f} times it.{record.describe_projects(scenario.purchase_lead_days)}"
    )
    return SingleCheckResult(RUNWAY, chance <= limit, round(chance, 6), limit, sentence)


CHECK_FORMAT = "gpuplanner check 1"
"""First line of ``check.prom``; it identifies a folder of alerts."""
_CHAT_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "@\u200b"})
"""Escapes that keep chats from reading text as links, mentions or markup."""


@dataclass(frozen=True)
class Alerts:
    r"""Alerts of failed checks for each channel, ready to send; none if no check failed.

    - ``alertmanager``: body of ``POST /api/v2/alerts``, one alert for each check; it resolves when it is no longer
      sent.
    - ``chat``: body of an incoming webhook of Slack, Mattermost, Rocket.Chat, Google Chat or Teams: ``{"text": …}``.
    - ``mail``: ``subject`` and ``body``; :func:`format_alert_mail` makes a message of them.
    - ``webhook``: a CloudEvent 1.0 in structured JSON; the same result has the same ``id``, so that a receiver
      recognizes repeats.

    No time is read from the clock: all times are the end of the data.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> late = SingleCheckResult("waits last week", False, 0.3, 0.1, "30% waited.")
    >>> found = CapacityCheckReport("lab <1>", datetime(2026, 3, 1, tzinfo=UTC), (late,))
    >>> print(Alerts(found).to_dict()["chat"]["text"])
    gpuplanner: 1 of 1 checks failed for lab &lt;1&gt; (data to 2026-03-01 00:00 UTC)
    - 30% waited.
    """

    capacity_check: CapacityCheckReport

    def to_dict(self) -> dict[str, Any]:
        """Return the payload of each channel."""
        check = self.capacity_check
        if check.has_passed:
            return {}
        title, lines = format_alert_subject(check), [result.sentence for result in check.failed_checks]
        failed = [asdict(result) for result in check.failed_checks]
        event = check.to_dict() | {"at": format_utc(check.data_end), "checks": failed}
        digest = hashlib.sha256(to_json(event).encode()).hexdigest()[:32]
        return {
            "alertmanager": [_make_alert(check, result) for result in check.failed_checks],
            "chat": {"text": "\n".join([title, *(f"- {line}" for line in lines)]).translate(_CHAT_ESCAPES)},
            "mail": {"subject": title, "body": "\n".join([*lines, "", f"Data up to {_format_data_end(check)}.", ""])},
            "webhook": {
                "specversion": "1.0",
                "id": digest,
                "source": f"/gpuplanner/{_to_label_word(check.scenario)}",
                "type": "gpuplanner.check.failed",
                "time": format_utc(check.data_end),
                "datacontenttype": "application/json",
                "data": event,
            },
        }


def format_alert_subject(check: CapacityCheckReport) -> str:
    """Format the number of failed checks and the scenario as the subject of an alert."""
    name = escape_controls(check.scenario).replace("\n", " ")
    failed = f"{len(check.failed_checks)} of {len(check.checks)} checks failed"
    return f"gpuplanner: {failed} for {name} (data to {_format_data_end(check)})"


def format_alert_mail(check: CapacityCheckReport) -> str:
    """Format a mail message for ``sendmail -t``, without addresses."""
    alert = Alerts(check).to_dict()["mail"]
    mail_message = EmailMessage(policy=SMTP.clone(linesep="\n"))
    mail_message["Subject"] = alert["subject"]
    mail_message["Auto-Submitted"] = "auto-generated"
    mail_message.set_content(alert["body"])
    return mail_message.as_string()


def format_check_metrics(check: CapacityCheckReport) -> str:
    """Format the results as Prometheus metrics for the text collector of the node exporter."""
    lines = [
        f"# {CHECK_FORMAT}",
        "# HELP gpuplanner_check_passed Whether a check of the fleet passed (1) or failed (0).",
        "# TYPE gpuplanner_check_passed gauge",
        *(
            f'gpuplanner_check_passed{{check="{_to_label_word(result.name)}"}} {int(result.passed)}'
            for result in check.checks
        ),
        "# HELP gpuplanner_check_data_end_seconds End of the data that were checked.",
        "# TYPE gpuplanner_check_data_end_seconds gauge",
        f"gpuplanner_check_data_end_seconds {check.data_end.timestamp():.0f}",
    ]
    return "\n".join(lines) + "\n"


def _make_alert(check: CapacityCheckReport, result: SingleCheckResult) -> dict[str, Any]:
    """Make the Alertmanager alert of a failed check."""
    scenario = escape_controls(check.scenario)
    labels = {"alertname": "GpuPlannerCheckFailed", "check": _to_label_word(result.name), "scenario": scenario}
    labels["severity"] = "warning"
    annotations = {"summary": f"{result.name}: failed for {scenario}", "description": result.sentence}
    return {"labels": labels, "annotations": annotations, "startsAt": format_utc(check.data_end)}


def _format_data_end(check: CapacityCheckReport) -> str:
    """Format the end of the data as date and time in UTC."""
    return f"{check.data_end:%Y-%m-%d %H:%M} UTC"


def _to_label_word(text: str) -> str:
    """Replace everything but letters and digits by underscores, for addresses and labels."""
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_") or "unnamed"
