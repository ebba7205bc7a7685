"""Track record: forecasts and promised savings of earlier months, and their outcomes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import polars as pl

from gpuplanner.core.errors import ScenarioError, first_error_line
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.serialization import from_plain, round_record, to_json, to_plain
from gpuplanner.core.step_functions import waiting_since
from gpuplanner.core.units_and_number_formats import HOURS_PER_WEEK, SECONDS_PER_HOUR, round_money
from gpuplanner.cost.showback import CENTS_DTYPE
from gpuplanner.decision.comparison_record import Comparison, study_comparison
from gpuplanner.decision.decision_types import RECORD_DECIMALS, LayoutOnNodes, Saving, compute_impact
from gpuplanner.decision.policy_comparison import NEEDS_ON_OFF, POLICIES
from gpuplanner.decision.policy_simulation import WAIT_QUANTILE
from gpuplanner.decision.study import Study
from gpuplanner.forecast.rolling_demand_forecast import at_quantile
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.planner.plan_problem import DEFAULT_UNMET_DEMAND_PRICE
from gpuplanner.usage.gpu_hour_ledger import ALLOCATED_BUCKETS
from gpuplanner.usage.period_accounts import scenario_ledger as gpu_time
from gpuplanner.usage.planning_history import history
from gpuplanner.usage.requested_demand import ALL_TENANTS_POOL_NAME, demand_series, pool_demand

LEDGER_KEY = ["unique_id", "cutoff", "ds"]
"""Columns that identify a row of the forecast ledger."""
_TIMES = dict.fromkeys(("cutoff", "ds"), pl.Datetime("us", "UTC"))
"""Columns of times in the forecast ledger: cutoff of the forecast, and begin of the forecast interval."""
_FIGURES = dict.fromkeys(("q05", "q50", "q95", "planned", "last_value", "price", "y"), pl.Float64())
"""Numeric columns of the forecast ledger."""
LEDGER_SCHEMA = pl.Schema({"unique_id": pl.String(), **_TIMES, "model": pl.String(), **_FIGURES})
"""Columns of the forecast ledger. ``planned`` is the demand at the scenario's quantile, ``last_value`` the naive
forecast, ``price`` the cost of a missing unit over that of a planned one, and ``y`` the observed demand: null until
a later report covers the interval."""


def read_ledger(path: str | Path) -> pl.DataFrame:
    """Read a ledger of forecasts; a missing file is an empty ledger."""
    ledger_path = Path(path)
    if not ledger_path.exists():
        return pl.DataFrame(schema=LEDGER_SCHEMA)
    try:
        return pl.read_parquet(ledger_path).select(list(LEDGER_SCHEMA)).cast(LEDGER_SCHEMA)
    except (OSError, pl.exceptions.PolarsError) as error:
        expected = f"a ledger of forecasts with {', '.join(LEDGER_SCHEMA)}"
        raise ScenarioError(str(ledger_path), expected, first_error_line(error), "Name another file.") from None


def update_forecast_ledger(ledger: pl.DataFrame, study: Study) -> pl.DataFrame:
    """Add a study's forecasts of the demand of all tenants to a ledger, and the observed demand to earlier forecasts.

    Forecasts in the ledger never change: a study of the same month adds nothing.
    """
    if study.plan is None:
        return ledger
    of_pool = pl.col("unique_id").str.starts_with(f"{ALL_TENANTS_POOL_NAME}/")
    past = study.tables["demand"].filter(of_pool)
    last_values = past.sort("ds").group_by("unique_id", maintain_order=True).agg(last_value=pl.col("y").last())
    forecast = study.tables["forecast"].filter(of_pool)
    planned = at_quantile(forecast, study.scenario.quantile).rename({"y": "planned"})
    new_rows = forecast.join(planned, on=["unique_id", "ds"]).join(last_values, on="unique_id")
    new_rows = new_rows.with_columns(price=pl.lit(DEFAULT_UNMET_DEMAND_PRICE), y=pl.lit(None))
    new_rows = new_rows.select(list(LEDGER_SCHEMA)).cast(LEDGER_SCHEMA)
    observed_demand = pl.concat([_earlier_demand(past, ledger, study), past.select("unique_id", "ds", came="y")])
    times = pl.lit(observed_demand["ds"])
    is_covered = pl.col("ds").is_between(times.min(), times.max())  # profiles without demand have no row
    rows = pl.concat([ledger, new_rows]).unique(LEDGER_KEY, keep="first", maintain_order=True)
    rows = rows.join(observed_demand, on=["unique_id", "ds"], how="left")
    outcome = pl.coalesce("y", "came", pl.when(is_covered).then(0.0))
    return rows.with_columns(y=outcome).select(list(LEDGER_SCHEMA)).sort(LEDGER_KEY)


def _earlier_demand(past: pl.DataFrame, ledger: pl.DataFrame, study: Study) -> pl.DataFrame:
    """Compute the observed demand of ledger intervals that are older than the demand table of a study."""
    missing = ledger.filter(pl.col("y").is_null())["ds"].sort()
    if missing.is_empty() or past.is_empty() or missing[0] >= (begin := past["ds"].sort()[0]):
        return past.select("unique_id", "ds", came="y").clear()
    jobs, interval_hours = history(study.scenario).views["rightsized"], study.scenario.interval_hours
    earlier = demand_series(jobs, interval_hours=interval_hours, start=missing[0], end=begin, clock="wanted")
    return pool_demand(earlier).select("unique_id", "ds", came="y")


def score_forecasts(ledger: pl.DataFrame) -> pl.DataFrame:
    """Score past forecasts by cutoff, over the intervals observed since: error, coverage, and cost per demanded unit.

    Examples
    --------
    >>> score_forecasts(pl.DataFrame(schema=LEDGER_SCHEMA)).height
    0
    """
    observed = ledger.filter(pl.col("y").is_not_null())

    def cost(plan: str) -> pl.Expr:
        short = (pl.col("y") - pl.col(plan)).clip(lower_bound=0.0)
        return (pl.col(plan) + pl.col("price") * short).sum() / pl.col("y").sum()

    scores = observed.group_by("cutoff", maintain_order=True).agg(
        slots=pl.col("ds").n_unique(),
        mae=(pl.col("y") - pl.col("q50")).abs().mean(),
        naive_mae=(pl.col("y") - pl.col("last_value")).abs().mean(),
        coverage_90=pl.col("y").is_between("q05", "q95").mean(),
        cost=cost("planned"),
        naive_cost=cost("last_value"),
    )
    return scores.sort("cutoff")


def price_forecast_errors(
    ledger: pl.DataFrame, scenario: Scenario, gpu_model: GpuModel, per_gpu_hour: float
) -> pl.DataFrame:
    """Sum the GPU-hours planned above and below demand by cutoff, and their cost over perfect foresight.

    Parameters
    ----------
    ledger : polars.DataFrame
        Ledger of forecasts.
    scenario : Scenario
        Length of an interval.
    gpu_model : GpuModel
        GPU model of the profiles.
    per_gpu_hour : float
        Price of a GPU-hour.

    Returns
    -------
    polars.DataFrame
        ``cutoff, over_gpu_hours, short_gpu_hours, cost``; a missing hour costs ``price`` planned ones, of which perfect
        foresight pays one as well.
    """
    share = {profile.name: gpu_model.gpu_fraction(profile.name) for profile in gpu_model.profiles}
    name = pl.col("unique_id").str.split("/").list.last()
    hours = name.replace_strict(share, default=1.0, return_dtype=pl.Float64) * scenario.interval_hours
    missed = (pl.col("planned") - pl.col("y")) * hours
    over, short = missed.clip(lower_bound=0.0), (-missed).clip(lower_bound=0.0)
    cost = (over + (pl.col("price") - 1) * short) * per_gpu_hour
    by_cutoff = ledger.filter(pl.col("y").is_not_null()).group_by("cutoff", maintain_order=True)
    return by_cutoff.agg(over_gpu_hours=over.sum(), short_gpu_hours=short.sum(), cost=cost.sum()).sort("cutoff")


SAVINGS_FORMAT = "gpuplanner savings 2"
"""Version of the savings ledger."""
SAVINGS_SUFFIX = ".savings.json"
"""Suffix of the file of a savings ledger."""
SIZE_NAMES = {1: "1 GPU or less", 4: "2-4 GPUs", 8: "5-8 GPUs"}
"""Names of the job sizes, by the most GPUs of each."""
LARGEST_SIZE_NAME = "more GPUs"
"""Name of the largest job size, which has no upper bound."""
FEWER_GPUS_SOURCE, POWERED_DOWN_SOURCE = "fewer GPUs allocated", "GPUs powered down"
"""Savings sources that the data of a month distinguish: removed GPUs, and hours in which GPUs were powered down."""
SAVING_STEPS = ("demand", "service", "not_carried_out")
"""Steps that lead from the promised to the realised saving: changed demand, added waiting, and measures not carried
out.
"""


@dataclass(frozen=True)
class SizeWait:
    """Waits of the jobs of one size that began in a month.

    - ``size``: Job size.
    - ``jobs``: Number of jobs.
    - ``minutes``: Quantile of their waits from eligibility to start [min].
    """

    size: str
    jobs: int
    minutes: float


@dataclass(frozen=True)
class ObservedMonth:
    """Observed figures of a month in GPU-hours a week: the baseline of its own promise, the outcome of the earlier one.

    - ``begin``, ``end``: Begin and end of the observation.
    - ``gpus``, ``installed_gpu_hours``: Installed GPUs on average, and their hours.
    - ``down_gpu_hours``, ``rest_gpu_hours``: Hours out of service, and those of them that count as powered down: what
      exceeds the first month's, and only once a promised policy powers nodes down. An outage is no saving.
    - ``busy_gpu_hours``: Hours allocated to jobs.
    - ``waits``: Waits by job size.
    - ``late_gpu_hours``, ``later_gpu_hours``: GPU-hours that jobs waited beyond the month's own limits, and beyond
      those of the earlier month in the ledger; a limit is a size's wait plus the minutes of the target.
    - ``ownership``: Ownership of the GPUs.
    - ``value_per_gpu_hour``, ``kwh_per_gpu_hour``: Value of a saved hour [USD], and its electricity [kWh]; None if
      unknown.
    - ``measured``: False where no node list states the installed GPUs: then no saving can be realised.
    """

    begin: str
    end: str
    gpus: float
    installed_gpu_hours: float
    down_gpu_hours: float
    rest_gpu_hours: float
    busy_gpu_hours: float
    waits: tuple[SizeWait, ...]
    late_gpu_hours: float
    later_gpu_hours: float | None
    ownership: str
    value_per_gpu_hour: float | None
    kwh_per_gpu_hour: float | None
    measured: bool

    @property
    def provisioned_gpu_hours(self) -> float:
        """Installed and powered-on GPU-hours a week."""
        return self.installed_gpu_hours - self.rest_gpu_hours

    @property
    def weeks(self) -> float:
        """Length of the month in weeks."""
        seconds = (datetime.fromisoformat(self.end) - datetime.fromisoformat(self.begin)).total_seconds()
        return seconds / SECONDS_PER_HOUR / HOURS_PER_WEEK


@dataclass(frozen=True)
class MeasureHours:
    """GPU-hours a week saved by one source (``lever``), such as fewer GPUs or powered-down GPUs."""

    lever: str
    gpu_hours: float


@dataclass(frozen=True)
class SavingPromise:
    """Saving that a month's decision promises for the next month, GPU-hours a week, and the decision behind it.

    - ``decision``, ``action``, ``policy``: The decision as a sentence, its action and its policy.
    - ``gpus``, ``layouts``: GPUs and layouts to provision.
    - ``gpu_hours``, ``low``, ``high``: Saving with its interval; 0 promises an unchanged fleet, a purchase is negative.
    - ``quantile``, ``minutes``: Wait target: quantile of jobs, and maximum added wait [min].
    - ``usd_per_week``: Value of the saving.
    - ``exhaustion``: Date when capacity is exhausted.
    """

    decision: str
    action: str
    policy: str
    gpus: int
    layouts: tuple[LayoutOnNodes, ...]
    gpu_hours: float
    low: float | None
    high: float | None
    quantile: float
    minutes: float
    usd_per_week: float | None
    exhaustion: str | None


@dataclass(frozen=True)
class SavingsMonth:
    """One month of the savings ledger.

    - ``month``, ``name``: Month, and name of the scenario.
    - ``seen``: Figures observed in the month; they never change.
    - ``promise``: Saving promised at its end.
    """

    month: str
    name: str
    seen: ObservedMonth
    promise: SavingPromise


@dataclass(frozen=True)
class SavingOutcome:
    """Outcome of a promise in the next month, GPU-hours a week, by steps from promised to realised.

    ``promised + demand + service + not_carried_out == realised``. ``levers`` sum to the saving before ``service``.
    """

    month: str
    next_month: str
    promised: float
    low: float | None
    high: float | None
    demand: float
    service: float
    not_carried_out: float
    realised: float
    demand_ratio: float
    levers: tuple[MeasureHours, ...]

    def money(self, usd_before: float, usd_after: float) -> dict[str, Decimal]:
        """Convert the steps to money a week, at the values of a GPU-hour in both months; the last step is the price.

        Parameters
        ----------
        usd_before, usd_after : float
            Value of a GPU-hour in the month of the promise, and in the next.

        Examples
        --------
        >>> one = SavingOutcome("2026-02", "2026-03", 100.0, None, None, 0.0, 0.0, -40.0, 60.0, 1.0, ())
        >>> {name: str(amount) for name, amount in one.money(2.0, 1.5).items() if amount}
        {'promised': '200.00', 'not_carried_out': '-80.00', 'price': '-30.00', 'realised': '90.00'}
        """
        steps = {name: round_money(getattr(self, name) * usd_before) for name in ("promised", *SAVING_STEPS)}
        realised = round_money(self.realised * usd_after)
        return {**steps, "price": realised - sum(steps.values(), Decimal()), "realised": realised}


def savings_file(ledger: Path) -> Path:
    """Return the path of the savings ledger: JSON beside the forecasts.

    Examples
    --------
    >>> savings_file(Path("past.parquet")).name, savings_file(Path("past.savings.json")).name
    ('past.savings.json', 'past.savings.json')
    """
    return ledger if ledger.name.endswith(SAVINGS_SUFFIX) else ledger.with_suffix(SAVINGS_SUFFIX)


def forecasts_file(ledger: Path) -> Path:
    """Return the path of the forecast ledger, whichever of the two files is named.

    Examples
    --------
    >>> forecasts_file(Path("past.savings.json")).name, forecasts_file(Path("past.parquet")).name
    ('past.parquet', 'past.parquet')
    """
    name = ledger.name.removesuffix(SAVINGS_SUFFIX)
    return ledger if name == ledger.name else ledger.with_name(f"{name}.parquet")


def read_savings(path: str | Path) -> tuple[SavingsMonth, ...]:
    """Read a savings ledger; a missing file is an empty ledger."""
    savings_path = Path(path)
    if not savings_path.exists():
        return ()
    try:
        values = json.loads(savings_path.read_text(encoding="utf-8"))
        if values["format"] != SAVINGS_FORMAT:
            raise ValueError(values["format"])
        return tuple(from_plain(SavingsMonth, month) for month in values["months"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        expected = f"a file of {SAVINGS_FORMAT!r}"
        raise ScenarioError(str(savings_path), expected, first_error_line(error), "Name another file.") from None


def savings_json(months: tuple[SavingsMonth, ...]) -> str:
    """Format a savings ledger as JSON: the same months give the same bytes."""
    return to_json({"format": SAVINGS_FORMAT, "months": [to_plain(month) for month in months]})


def add_month(
    months: tuple[SavingsMonth, ...], scenario: Scenario, policy_comparison: Comparison | None = None
) -> tuple[SavingsMonth, ...]:
    """Add a month to a savings ledger; a month in the ledger never changes.

    Parameters
    ----------
    months : tuple of SavingsMonth
        The ledger.
    scenario : Scenario
        Data and limits of the month.
    policy_comparison : Comparison, optional
        Comparison of the scenario; None: compute it.

    Returns
    -------
    tuple of SavingsMonth

    Raises
    ------
    ScenarioError
        If the month overlaps one of the ledger, or precedes its last.
    """
    job_history = history(scenario)
    begin, end = job_history.begin.isoformat(), job_history.end.isoformat()
    if any(earlier.seen.begin == begin and earlier.seen.end == end for earlier in months):
        return months
    if months and begin < months[-1].seen.end:
        got = f"{begin} to {end}, and {months[-1].seen.begin} to {months[-1].seen.end} stands already"
        todo = "Report months in their order, or begin another ledger."
        raise ScenarioError("savings ledger", "a month after its last", got, todo)
    promise = _read_promise(study_comparison(scenario) if policy_comparison is None else policy_comparison)
    month = scenario.month or f"{begin[:10]} to {end[:10]}"
    observed = _observe_month(scenario, months, promise)
    added = SavingsMonth(
        month, scenario.name, round_record(observed, RECORD_DECIMALS), round_record(promise, RECORD_DECIMALS)
    )
    return (*months, added)


def evaluate_promises(months: tuple[SavingsMonth, ...]) -> Iterator[SavingOutcome]:
    """Yield the outcome of each month's promise in the next month; none where no node list states the installed GPUs.

    Each promise is compared with its own month, so that outcomes sum to the difference of the first and the last month.
    ``demand`` is what the plan would have needed for the observed work, towards the outcome and no further; ``service``
    subtracts additional waiting; the remaining difference was not carried out.
    """
    for before, after in itertools.pairwise(months):
        if before.seen.measured and after.seen.measured:
            yield _evaluate_promise(before, after)


def savings_table(months: tuple[SavingsMonth, ...]) -> pl.DataFrame:
    """Tabulate each promise that is due: GPU-hours and money a week, step by step."""
    value = {month.month: month.seen.value_per_gpu_hour for month in months}
    hours_of = ("promised", "low", "high", *SAVING_STEPS, "realised")
    money_of = ("promised", *SAVING_STEPS, "price", "realised")
    columns: dict[str, pl.DataType] = dict.fromkeys(("month", "seen_in"), pl.String())
    columns |= dict.fromkeys(("demand_ratio", *(f"{name}_gpu_hours" for name in hours_of)), pl.Float64())
    columns |= {f"{name}_usd": CENTS_DTYPE for name in money_of}
    rows = []
    for outcome in evaluate_promises(months):
        then, now = value[outcome.month], value[outcome.next_month]
        steps = {} if then is None or now is None else outcome.money(then, now)
        hours = (getattr(outcome, name) for name in hours_of)
        usd = (steps.get(name) for name in money_of)
        rows.append((outcome.month, outcome.next_month, outcome.demand_ratio, *hours, *usd))
    return pl.DataFrame(rows, schema=columns, orient="row")


def baseline_table(months: tuple[SavingsMonth, ...]) -> pl.DataFrame:
    """Compare each month with the first, whose hours are the baseline: GPU-hours saved, and their value.

    ``saved_gpu_hours`` and ``saved_usd`` are of the entire month, ``total_usd`` of all months so far. Waiting beyond
    the limits of the earlier month is subtracted.
    """
    hours_of = ("on_gpu_hours_per_week", "baseline_gpu_hours_per_week", "saved_gpu_hours")
    columns: dict[str, pl.DataType] = {"month": pl.String(), **dict.fromkeys(hours_of, pl.Float64())}
    columns |= {"saved_usd": CENTS_DTYPE, "total_usd": CENTS_DTYPE}
    measured_months = [month for month in months if month.seen.measured]
    service = {outcome.next_month: outcome.service for outcome in evaluate_promises(months)}
    rows, total = [], Decimal()
    for month in measured_months:
        observed, first = month.seen, measured_months[0].seen.provisioned_gpu_hours
        weekly = first - observed.provisioned_gpu_hours + service.get(month.month, 0.0)
        saved = round(weekly * observed.weeks, RECORD_DECIMALS)
        saved_usd = None if observed.value_per_gpu_hour is None else round_money(saved * observed.value_per_gpu_hour)
        total += saved_usd or Decimal()
        rows.append((month.month, observed.provisioned_gpu_hours, first, saved, saved_usd, total))
    return pl.DataFrame(rows, schema=columns, orient="row")


def savings_sheets(months: tuple[SavingsMonth, ...]) -> dict[str, pl.DataFrame]:
    """Return the tables of savings and of their baseline, by their names in workbooks and JSON: Savings, Baseline."""
    return {"Savings": savings_table(months), "Baseline": baseline_table(months)}


def _evaluate_promise(promise_month: SavingsMonth, outcome_month: SavingsMonth) -> SavingOutcome:
    """Compute the outcome of the promise of one month in the next month."""
    base, observed, promise = promise_month.seen, outcome_month.seen, promise_month.promise
    planned, observed_on = base.provisioned_gpu_hours - promise.gpu_hours, observed.provisioned_gpu_hours
    ratio = observed.busy_gpu_hours / base.busy_gpu_hours if base.busy_gpu_hours else 1.0
    needed = min(planned * ratio, max(planned, base.provisioned_gpu_hours))
    # Towards the outcome and no further: less demand does not excuse a fleet that did not shrink.
    low, high = min(planned, observed_on), max(planned, observed_on)
    demand = planned - min(max(needed, low), high)
    saved = base.provisioned_gpu_hours - observed_on
    late = max((observed.later_gpu_hours or 0.0) - base.late_gpu_hours, 0.0)
    service = 0.0 - min(late, max(saved, 0.0))
    released = base.installed_gpu_hours - observed.installed_gpu_hours
    powered_down = observed.rest_gpu_hours - base.rest_gpu_hours
    split = (MeasureHours(FEWER_GPUS_SOURCE, released), MeasureHours(POWERED_DOWN_SOURCE, powered_down))
    return SavingOutcome(
        promise_month.month, outcome_month.month, promise.gpu_hours, promise.low, promise.high, demand, service,
        saved - promise.gpu_hours - demand, saved + service, ratio, split,
    )  # fmt: skip


def _read_promise(policy_comparison: Comparison) -> SavingPromise:
    """Read the promised saving from the decision of a comparison."""
    decision = policy_comparison.decision
    saving, added = decision.saving, decision.gpus - decision.fleet_gpus
    return SavingPromise(
        decision=decision.sentence, action=decision.action, policy=decision.policy, gpus=decision.gpus,
        layouts=decision.layouts, gpu_hours=-float(added * HOURS_PER_WEEK) if added > 0 else saving.value or 0.0,
        low=saving.low, high=saving.high, quantile=WAIT_QUANTILE, minutes=policy_comparison.minutes,
        usd_per_week=decision.financial_impact.usd_per_week, exhaustion=policy_comparison.exhaustion.date,
    )  # fmt: skip


def _observe_month(scenario: Scenario, months: tuple[SavingsMonth, ...], promise: SavingPromise) -> ObservedMonth:
    """Collect the observed figures of a month."""
    job_history = history(scenario)
    hours = (
        gpu_time(scenario)
        .group_by(pl.col("bucket").cast(pl.String), maintain_order=True)
        .agg(pl.col("gpu_hours").sum())
    )
    by_bucket = dict(hours.iter_rows())
    weeks = (job_history.end - job_history.begin).total_seconds() / SECONDS_PER_HOUR / HOURS_PER_WEEK
    installed, down = sum(by_bucket.values()) / weeks, by_bucket.get("down", 0.0) / weeks
    may_power_down = any(
        NEEDS_ON_OFF in POLICIES[month.promise.policy].needs for month in months if month.promise.policy in POLICIES
    )
    powered_down = max(down - months[0].seen.down_gpu_hours, 0.0) if may_power_down else 0.0
    waits = _wait_minutes_of_jobs(scenario)
    own_waits = _wait_quantile_by_size(waits, promise.quantile)
    last = months[-1] if months else None
    late_before = None if last is None else _late_gpu_hours(waits, last.seen.waits, last.promise.minutes) / weeks
    fleet = job_history.fleet.gpus
    impact = compute_impact(scenario, Saving(fleet * HOURS_PER_WEEK), 0, fleet, permanent=True)
    per_hour = max(fleet * HOURS_PER_WEEK, 1.0)
    return ObservedMonth(
        begin=job_history.begin.isoformat(), end=job_history.end.isoformat(), gpus=installed / HOURS_PER_WEEK,
        installed_gpu_hours=installed, down_gpu_hours=down, rest_gpu_hours=powered_down,
        busy_gpu_hours=sum(by_bucket.get(bucket, 0.0) for bucket in ALLOCATED_BUCKETS) / weeks, waits=own_waits,
        late_gpu_hours=_late_gpu_hours(waits, own_waits, promise.minutes) / weeks, later_gpu_hours=late_before,
        value_per_gpu_hour=None if impact.usd_per_week is None else impact.usd_per_week / per_hour,
        kwh_per_gpu_hour=None if impact.kwh_per_week is None else impact.kwh_per_week / per_hour,
        ownership=impact.ownership, measured=not job_history.fleet.installed.inferred,
    )  # fmt: skip


def _wait_minutes_of_jobs(scenario: Scenario) -> pl.DataFrame:
    """Table ``size, gpus, minutes`` of the jobs that began in the month: wait from eligibility, by requested size."""
    job_history = history(scenario)
    size = pl.lit(LARGEST_SIZE_NAME)
    for max_gpus, name in sorted(SIZE_NAMES.items(), reverse=True):
        size = pl.when(pl.col("gpus") <= max_gpus).then(pl.lit(name)).otherwise(size)
    is_begun = pl.col("start_time").is_between(job_history.begin, job_history.end, closed="left")
    waited = (pl.col("start_time") - waiting_since()).dt.total_seconds() / 60
    return job_history.jobs.lazy().filter(is_begun).select("gpus", size=size, minutes=waited.fill_null(0.0)).collect()


def _wait_quantile_by_size(waits: pl.DataFrame, quantile: float) -> tuple[SizeWait, ...]:
    """Compute the quantile of the waits of each job size."""
    minutes = pl.col("minutes").quantile(quantile, "equiprobable")
    quantiles = waits.group_by("size").agg(jobs=pl.len(), minutes=minutes).sort("size")
    return tuple(SizeWait(*row) for row in quantiles.iter_rows())


def _late_gpu_hours(waits: pl.DataFrame, sizes: Sequence[SizeWait], minutes: float) -> float:
    """GPU-hours that jobs waited beyond the wait of their size and added minutes; a missing size has the widest limit.

    Parameters
    ----------
    waits : polars.DataFrame
        ``size, gpus, minutes`` of jobs.
    sizes : sequence of SizeWait
        Wait of each size.
    minutes : float
        Maximum added wait [min].
    """
    limits = {size_wait.size: size_wait.minutes + minutes for size_wait in sizes}
    widest = max(limits.values(), default=float("inf"))
    limit = pl.col("size").replace_strict(limits, default=widest, return_dtype=pl.Float64)
    over = pl.col("gpus") * (pl.col("minutes") - limit).clip(lower_bound=0.0) / 60
    return float(waits.select(over.sum()).item() or 0.0)
