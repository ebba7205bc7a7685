"""What earlier months forecast and promised, and what came of it."""

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
from gpuplanner.core.units import HOURS_PER_WEEK, SECONDS_PER_HOUR, round_money
from gpuplanner.cost.showback import CENTS
from gpuplanner.decision.comparison_record import Comparison, comparison
from gpuplanner.decision.decision_types import DECIMALS, LayoutOnNodes, Saving, financial_impact_of
from gpuplanner.decision.policy_comparison import POWER, WAYS
from gpuplanner.decision.study import Study
from gpuplanner.forecast.demand_outlook import at_quantile
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.planner.plan_problem import DEFAULT_UNMET_DEMAND_PRICE
from gpuplanner.usage.gpu_hour_ledger import ALLOCATED_BUCKETS
from gpuplanner.usage.job_history import history
from gpuplanner.usage.period_accounts import scenario_ledger as gpu_time
from gpuplanner.usage.requested_demand import ALL_TENANTS_POOL_NAME, demand_series, pool_demand

KEY = ["unique_id", "cutoff", "ds"]
_TIMES = dict.fromkeys(("cutoff", "ds"), pl.Datetime("us", "UTC"))
_FIGURES = dict.fromkeys(("q05", "q50", "q95", "planned", "last_value", "price", "y"), pl.Float64())
SCHEMA = pl.Schema({"unique_id": pl.String(), **_TIMES, "model": pl.String(), **_FIGURES})
"""``planned`` is the demand at the scenario's quantile, ``last_value`` what the naive forecast says, ``price`` that of
a unit short in units planned, and ``y`` what came: null until a later report has seen the slot."""


def read_ledger(path: str | Path) -> pl.DataFrame:
    """Open a ledger of forecasts; one that does not exist is empty."""
    place = Path(path)
    if not place.exists():
        return pl.DataFrame(schema=SCHEMA)
    try:
        return pl.read_parquet(place).select(list(SCHEMA)).cast(SCHEMA)
    except (OSError, pl.exceptions.PolarsError) as error:
        expected = f"a ledger of forecasts with {', '.join(SCHEMA)}"
        raise ScenarioError(str(place), expected, first_error_line(error), "Name another file.") from None


def remember(ledger: pl.DataFrame, study: Study) -> pl.DataFrame:
    """Write down what a study forecasts for the pool, and what came of what was forecast before.

    What was once said of a slot stands: a study of the same month changes nothing of it.
    """
    if study.plan is None:
        return ledger
    of_pool = pl.col("unique_id").str.starts_with(f"{ALL_TENANTS_POOL_NAME}/")
    past = study.tables["demand"].filter(of_pool)
    last = past.sort("ds").group_by("unique_id").agg(last_value=pl.col("y").last())
    forecast = study.tables["forecast"].filter(of_pool)
    planned = at_quantile(forecast, study.scenario.quantile).rename({"y": "planned"})
    new = forecast.join(planned, on=["unique_id", "ds"]).join(last, on="unique_id")
    new = new.with_columns(price=pl.lit(DEFAULT_UNMET_DEMAND_PRICE), y=pl.lit(None)).select(list(SCHEMA)).cast(SCHEMA)
    came = pl.concat([_before(past, ledger, study), past.select("unique_id", "ds", came="y")])
    times = pl.lit(came["ds"])
    seen = pl.col("ds").is_between(times.min(), times.max())  # what nobody wanted has no row there
    rows = pl.concat([ledger, new]).unique(KEY, keep="first", maintain_order=True)
    rows = rows.join(came, on=["unique_id", "ds"], how="left")
    outcome = pl.coalesce("y", "came", pl.when(seen).then(0.0))
    return rows.with_columns(y=outcome).select(list(SCHEMA)).sort(KEY)


def _before(past: pl.DataFrame, ledger: pl.DataFrame, study: Study) -> pl.DataFrame:
    """What came in slots of the ledger that lie before the recent past of a study: months differ in length."""
    missing = ledger.filter(pl.col("y").is_null())["ds"].sort()
    if missing.is_empty() or past.is_empty() or missing[0] >= (begin := past["ds"].sort()[0]):
        return past.select("unique_id", "ds", came="y").clear()
    jobs, interval_hours = history(study.scenario).views["rightsized"], study.scenario.interval_hours
    earlier = demand_series(jobs, interval_hours=interval_hours, start=missing[0], end=begin, clock="wanted")
    return pool_demand(earlier).select("unique_id", "ds", came="y")


def record_of(ledger: pl.DataFrame) -> pl.DataFrame:
    """How good each past forecast was, by its cutoff, over the slots that have come since.

    Examples
    --------
    >>> record_of(pl.DataFrame(schema=SCHEMA)).height
    0
    """
    known = ledger.filter(pl.col("y").is_not_null())

    def cost(plan: str) -> pl.Expr:
        short = (pl.col("y") - pl.col(plan)).clip(lower_bound=0.0)
        return (pl.col(plan) + pl.col("price") * short).sum() / pl.col("y").sum()

    found = known.group_by("cutoff").agg(
        slots=pl.col("ds").n_unique(),
        mae=(pl.col("y") - pl.col("q50")).abs().mean(),
        naive_mae=(pl.col("y") - pl.col("last_value")).abs().mean(),
        coverage_90=pl.col("y").is_between("q05", "q95").mean(),
        cost=cost("planned"),
        naive_cost=cost("last_value"),
    )
    return found.sort("cutoff")


def errors_in_money(ledger: pl.DataFrame, scenario: Scenario, gpu_model: GpuModel, per_gpu_hour: float) -> pl.DataFrame:
    """GPU-hours that were planned too many and too few, by cutoff, and what they cost beyond perfect sight.

    An hour too few costs ``price`` planned ones, of which sight would have paid one as well.
    """
    share = {profile.name: gpu_model.gpu_fraction(profile.name) for profile in gpu_model.profiles}
    name = pl.col("unique_id").str.split("/").list.last()
    hours = name.replace_strict(share, default=1.0, return_dtype=pl.Float64) * scenario.interval_hours
    missed = (pl.col("planned") - pl.col("y")) * hours
    over, short = missed.clip(lower_bound=0.0), (-missed).clip(lower_bound=0.0)
    cost = (over + (pl.col("price") - 1) * short) * per_gpu_hour
    found = ledger.filter(pl.col("y").is_not_null()).group_by("cutoff")
    return found.agg(over_gpu_hours=over.sum(), short_gpu_hours=short.sum(), cost=cost.sum()).sort("cutoff")


FORMAT = "gpuplanner savings 2"
ENDING = ".savings.json"
SIZES = {1: "1 GPU or less", 4: "2-4 GPUs", 8: "5-8 GPUs"}
LARGER = "more GPUs"
HELD, RESTED = "fewer GPUs allocated", "GPUs powered down"
"""Levers that a month's data can tell apart: GPUs that are no longer there, and hours in which GPUs were off."""
REASONS = ("demand", "service", "not_carried_out")


@dataclass(frozen=True)
class ClassWait:
    """Jobs of one size that began in a month, and the wait from submission that the quantile of them had [min]."""

    size: str
    jobs: int
    minutes: float


@dataclass(frozen=True)
class MonthSeen:
    """What the data of a month say, GPU-hours a week: the baseline of its own promise, the outcome of the one before.

    - ``begin``, ``end``: Instants of what was observed.
    - ``gpus``, ``installed_gpu_hours``: Installed GPUs, their mean, and their hours.
    - ``down_gpu_hours``, ``rest_gpu_hours``: Hours out of service, and those of them that are rest: beyond the first
      month's, once a plan lets GPUs rest. An outage is no saving.
    - ``busy_gpu_hours``: Hours that jobs held.
    - ``waits``: How long jobs waited, by size.
    - ``late_gpu_hours``, ``later_gpu_hours``: GPU-hours that jobs waited longer than the month's own limits allow, and
      longer than those of the month before in the ledger; a limit is a size's wait and the minutes of the target.
    - ``value_per_gpu_hour``, ``kwh_per_gpu_hour``: What an hour less is worth to who pays [USD], and its electricity;
      None where nobody knows.
    - ``measured``: False where no node list says what is installed: then nothing can be realised.
    """

    begin: str
    end: str
    gpus: float
    installed_gpu_hours: float
    down_gpu_hours: float
    rest_gpu_hours: float
    busy_gpu_hours: float
    waits: tuple[ClassWait, ...]
    late_gpu_hours: float
    later_gpu_hours: float | None
    ownership: str
    value_per_gpu_hour: float | None
    kwh_per_gpu_hour: float | None
    measured: bool

    @property
    def on_gpu_hours(self) -> float:
        """GPU-hours a week in which GPUs were there and on."""
        return self.installed_gpu_hours - self.rest_gpu_hours

    @property
    def weeks(self) -> float:
        """Length of the month."""
        seconds = (datetime.fromisoformat(self.end) - datetime.fromisoformat(self.begin)).total_seconds()
        return seconds / SECONDS_PER_HOUR / HOURS_PER_WEEK


@dataclass(frozen=True)
class LeverHours:
    """GPU-hours a week that come by one lever."""

    lever: str
    gpu_hours: float


@dataclass(frozen=True)
class SavingPromise:
    """What a month's decision promises for the next, GPU-hours a week with their range, and the plan that it rests on.

    ``gpu_hours`` 0 is a promise as well: keep the fleet; of a purchase they are below 0. ``minutes`` and ``quantile``
    are the target of its service, ``exhaustion`` is the day on which capacity is exhausted.
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
    """One month of the ledger: what was seen in it, frozen, and what was promised at its end."""

    month: str
    name: str
    seen: MonthSeen
    promise: SavingPromise


@dataclass(frozen=True)
class SavingOutcome:
    """What came of a promise in the month after, GPU-hours a week; the reasons lead from promised to realised.

    ``promised + demand + service + not_carried_out == realised``. ``levers`` sum to what was saved before service.
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
    levers: tuple[LeverHours, ...]

    def money(self, then: float, now: float) -> dict[str, Decimal]:
        """The same steps in money a week, at a GPU-hour's worth then and now; their last one is the price.

        Examples
        --------
        >>> one = SavingOutcome("2026-02", "2026-03", 100.0, None, None, 0.0, 0.0, -40.0, 60.0, 1.0, ())
        >>> {name: str(amount) for name, amount in one.money(2.0, 1.5).items() if amount}
        {'promised': '200.00', 'not_carried_out': '-80.00', 'price': '-30.00', 'realised': '90.00'}
        """
        steps = {name: round_money(getattr(self, name) * then) for name in ("promised", *REASONS)}
        realised = round_money(self.realised * now)
        return {**steps, "price": realised - sum(steps.values(), Decimal()), "realised": realised}


def savings_file(ledger: Path) -> Path:
    """Where a ledger keeps what was promised and realised: beside its forecasts, as JSON that people can read.

    Examples
    --------
    >>> savings_file(Path("past.parquet")).name, savings_file(Path("past.savings.json")).name
    ('past.savings.json', 'past.savings.json')
    """
    return ledger if ledger.name.endswith(ENDING) else ledger.with_suffix(ENDING)


def forecasts_file(ledger: Path) -> Path:
    """Where a ledger keeps its forecasts, whichever of its two files is named.

    Examples
    --------
    >>> forecasts_file(Path("past.savings.json")).name, forecasts_file(Path("past.parquet")).name
    ('past.parquet', 'past.parquet')
    """
    name = ledger.name.removesuffix(ENDING)
    return ledger if name == ledger.name else ledger.with_name(f"{name}.parquet")


def read_savings(path: str | Path) -> tuple[SavingsMonth, ...]:
    """Open a savings ledger; one that does not exist is empty."""
    place = Path(path)
    if not place.exists():
        return ()
    try:
        values = json.loads(place.read_text(encoding="utf-8"))
        if values["format"] != FORMAT:
            raise ValueError(values["format"])
        return tuple(from_plain(SavingsMonth, one) for one in values["months"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        expected = f"a file of {FORMAT!r}"
        raise ScenarioError(str(place), expected, first_error_line(error), "Name another file.") from None


def savings_json(months: tuple[SavingsMonth, ...]) -> str:
    """The ledger as it is kept: the same months give the same bytes."""
    return to_json({"format": FORMAT, "months": [to_plain(one) for one in months]})


def booked(
    months: tuple[SavingsMonth, ...], scenario: Scenario, found: Comparison | None = None
) -> tuple[SavingsMonth, ...]:
    """Add a month behind those that are there; what once stood of a month stands.

    A month that overlaps one of the ledger, or lies before the last of them, is a ``ScenarioError``.
    """
    known = history(scenario)
    begin, end = known.begin.isoformat(), known.end.isoformat()
    if any(one.seen.begin == begin and one.seen.end == end for one in months):
        return months
    if months and begin < months[-1].seen.end:
        got = f"{begin} to {end}, and {months[-1].seen.begin} to {months[-1].seen.end} stands already"
        todo = "Report months in their order, or begin another ledger."
        raise ScenarioError("savings ledger", "a month after its last", got, todo)
    promise = _promise(comparison(scenario) if found is None else found)
    month = scenario.month or f"{begin[:10]} to {end[:10]}"
    seen = _seen(scenario, months, promise)
    added = SavingsMonth(month, scenario.name, round_record(seen, DECIMALS), round_record(promise, DECIMALS))
    return (*months, added)


def outcomes(months: tuple[SavingsMonth, ...]) -> Iterator[SavingOutcome]:
    """What came of each month's promise in the month after; none where no node list says what was installed.

    Each is held against the month that made it, so that they sum to what the last month has less than the first, and
    no hour is counted for two promises. Demand explains what the plan would have needed for the work that came, in the
    direction of the miss and no further; service takes back what jobs waited longer; the rest was not carried out.
    """
    for before, after in itertools.pairwise(months):
        if before.seen.measured and after.seen.measured:
            yield _outcome(before, after)


def savings_table(months: tuple[SavingsMonth, ...]) -> pl.DataFrame:
    """A row for each promise that came due: hours a week and money a week, step by step."""
    seen = {one.month: one.seen for one in months}
    hours_of = ("promised", "low", "high", *REASONS, "realised")
    money_of = ("promised", *REASONS, "price", "realised")
    columns: dict[str, pl.DataType] = dict.fromkeys(("month", "seen_in"), pl.String())
    columns |= dict.fromkeys(("demand_ratio", *(f"{name}_gpu_hours" for name in hours_of)), pl.Float64())
    columns |= {f"{name}_usd": CENTS for name in money_of}
    rows = []
    for one in outcomes(months):
        then, now = seen[one.month].value_per_gpu_hour, seen[one.next_month].value_per_gpu_hour
        steps = {} if then is None or now is None else one.money(then, now)
        hours = (getattr(one, name) for name in hours_of)
        usd = (steps.get(name) for name in money_of)
        rows.append((one.month, one.next_month, one.demand_ratio, *hours, *usd))
    return pl.DataFrame(rows, schema=columns, orient="row")


def standing_table(months: tuple[SavingsMonth, ...]) -> pl.DataFrame:
    """Each month beside the first, whose hours are the frozen baseline: what it had less, and what that was worth.

    ``saved_gpu_hours`` and ``saved_usd`` are of the whole month, ``total_usd`` all so far. What jobs waited longer than
    the month before allows is taken off.
    """
    hours_of = ("on_gpu_hours_per_week", "baseline_gpu_hours_per_week", "saved_gpu_hours")
    columns: dict[str, pl.DataType] = {"month": pl.String(), **dict.fromkeys(hours_of, pl.Float64())}
    columns |= {"saved_usd": CENTS, "total_usd": CENTS}
    there = [one for one in months if one.seen.measured]
    service = {one.next_month: one.service for one in outcomes(months)}
    rows, total = [], Decimal()
    for one in there:
        seen, first = one.seen, there[0].seen.on_gpu_hours
        saved = round((first - seen.on_gpu_hours + service.get(one.month, 0.0)) * seen.weeks, DECIMALS)
        worth = None if seen.value_per_gpu_hour is None else round_money(saved * seen.value_per_gpu_hour)
        total += worth or Decimal()
        rows.append((one.month, seen.on_gpu_hours, first, saved, worth, total))
    return pl.DataFrame(rows, schema=columns, orient="row")


def savings_sheets(months: tuple[SavingsMonth, ...]) -> dict[str, pl.DataFrame]:
    """The two tables by the names that they have in workbooks and in JSON."""
    return {"Savings": savings_table(months), "Baseline": standing_table(months)}


def _outcome(before: SavingsMonth, after: SavingsMonth) -> SavingOutcome:
    base, came, promise = before.seen, after.seen, before.promise
    planned, on = base.on_gpu_hours - promise.gpu_hours, came.on_gpu_hours
    ratio = came.busy_gpu_hours / base.busy_gpu_hours if base.busy_gpu_hours else 1.0
    needed = min(planned * ratio, max(planned, base.on_gpu_hours))
    # Towards what came, and no further: less demand does not excuse a fleet that did not shrink.
    low, high = min(planned, on), max(planned, on)
    demand = planned - min(max(needed, low), high)
    saved = base.on_gpu_hours - on
    late = max((came.later_gpu_hours or 0.0) - base.late_gpu_hours, 0.0)
    service = 0.0 - min(late, max(saved, 0.0))
    held = base.installed_gpu_hours - came.installed_gpu_hours
    split = (LeverHours(HELD, held), LeverHours(RESTED, came.rest_gpu_hours - base.rest_gpu_hours))
    return SavingOutcome(
        before.month, after.month, promise.gpu_hours, promise.low, promise.high, demand, service,
        saved - promise.gpu_hours - demand, saved + service, ratio, split,
    )  # fmt: skip


def _promise(found: Comparison) -> SavingPromise:
    decision = found.decision
    saving, more = decision.saving, decision.gpus - decision.fleet_gpus
    return SavingPromise(
        decision=decision.sentence, action=decision.action, policy=decision.policy, gpus=decision.gpus,
        layouts=decision.layouts, gpu_hours=-float(more * HOURS_PER_WEEK) if more > 0 else saving.value or 0.0,
        low=saving.low, high=saving.high, quantile=found.quantile, minutes=found.minutes,
        usd_per_week=decision.financial_impact.usd_per_week, exhaustion=found.exhaustion.date,
    )  # fmt: skip


def _seen(scenario: Scenario, months: tuple[SavingsMonth, ...], promise: SavingPromise) -> MonthSeen:
    known = history(scenario)
    hours = gpu_time(scenario).group_by(pl.col("bucket").cast(pl.String)).agg(pl.col("gpu_hours").sum())
    by_bucket = dict(hours.iter_rows())
    weeks = (known.end - known.begin).total_seconds() / SECONDS_PER_HOUR / HOURS_PER_WEEK
    installed, down = sum(by_bucket.values()) / weeks, by_bucket.get("down", 0.0) / weeks
    may_rest = any(POWER in WAYS[one.promise.policy].needs for one in months if one.promise.policy in WAYS)
    rest = max(down - months[0].seen.down_gpu_hours, 0.0) if may_rest else 0.0
    waits = _waits(scenario)
    own = _by_size(waits, promise.quantile)
    last = months[-1] if months else None
    late_before = None if last is None else _late(waits, last.seen.waits, last.promise.minutes) / weeks
    fleet = known.fleet.gpus
    worth = financial_impact_of(scenario, Saving(fleet * HOURS_PER_WEEK), 0, fleet, gone=True)
    per_hour = max(fleet * HOURS_PER_WEEK, 1.0)
    return MonthSeen(
        begin=known.begin.isoformat(), end=known.end.isoformat(), gpus=installed / HOURS_PER_WEEK,
        installed_gpu_hours=installed, down_gpu_hours=down, rest_gpu_hours=rest,
        busy_gpu_hours=sum(by_bucket.get(bucket, 0.0) for bucket in ALLOCATED_BUCKETS) / weeks, waits=own,
        late_gpu_hours=_late(waits, own, promise.minutes) / weeks, later_gpu_hours=late_before,
        value_per_gpu_hour=None if worth.usd_per_week is None else worth.usd_per_week / per_hour,
        kwh_per_gpu_hour=None if worth.kwh_per_week is None else worth.kwh_per_week / per_hour,
        ownership=worth.ownership, measured=not known.fleet.installed.inferred,
    )  # fmt: skip


def _waits(scenario: Scenario) -> pl.DataFrame:
    """``size, gpus, minutes`` of the jobs that began in the month: from eligibility, by what they asked for."""
    known = history(scenario)
    size = pl.lit(LARGER)
    for most, name in sorted(SIZES.items(), reverse=True):
        size = pl.when(pl.col("gpus") <= most).then(pl.lit(name)).otherwise(size)
    began = known.jobs.filter(pl.col("start_time").is_between(known.begin, known.end, closed="left"))
    waited = (pl.col("start_time") - waiting_since()).dt.total_seconds() / 60
    return began.select("gpus", size=size, minutes=waited.fill_null(0.0))


def _by_size(waits: pl.DataFrame, quantile: float) -> tuple[ClassWait, ...]:
    minutes = pl.col("minutes").quantile(quantile, interpolation="higher")
    found = waits.group_by("size").agg(jobs=pl.len(), minutes=minutes).sort("size")
    return tuple(ClassWait(*row) for row in found.iter_rows())


def _late(waits: pl.DataFrame, sizes: Sequence[ClassWait], minutes: float) -> float:
    """GPU-hours that jobs waited longer than their size and so much; a size that was not there has the widest limit."""
    limits = {one.size: one.minutes + minutes for one in sizes}
    widest = max(limits.values(), default=float("inf"))
    limit = pl.col("size").replace_strict(limits, default=widest, return_dtype=pl.Float64)
    over = pl.col("gpus") * (pl.col("minutes") - limit).clip(lower_bound=0.0) / 60
    return float(waits.select(over.sum()).item() or 0.0)
