"""GPU-hours, queue waits and utilization of a dataset, filtered and grouped as a planner asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import polars as pl

from gpuplanner.core.errors import ScenarioError, TraceFormatError, examples, nearest_names, resolve_name
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schemas import GPU_TIME_BUCKETS
from gpuplanner.core.step_functions import waiting_since
from gpuplanner.core.units_and_number_formats import UNALLOCATED_LABEL, count_text, day_text
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.usage.allocated_hours import ALLOCATED_IDLE_STATES, allocated_and_active
from gpuplanner.usage.gpu_hour_ledger import ALLOCATED_BUCKETS, POLARS_DURATION_BY_PERIOD, UNALLOCATED_TENANT_LABEL
from gpuplanner.usage.job_classes import classify_jobs
from gpuplanner.usage.period_accounts import dataset_ledger
from gpuplanner.usage.planning_history import months_from, observation_begins_at, observation_ends_at

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
"""Labels of the days of a week, in their order."""
TIME_GROUPS = ("hour_of_day", "weekday", "day", "week", "month")
"""Groups that are parts of the time: the hour 0 to 23, the day of the week, or the first day of a period."""
JOB_GROUPS = ("user", "partition", "project", "tier", "job_class", "job")
"""Groups that only jobs have: their tables leave out GPU-hours that no job was allocated."""
LEDGER_GROUPS = ("team", "gpu_model", *JOB_GROUPS, *TIME_GROUPS)
"""Groups of the ledger and of utilization."""
WAIT_GROUPS = ("job_size", "team", "gpu_model", *JOB_GROUPS, *TIME_GROUPS)
"""Groups of queue waits."""
JOB_SIZE_LABELS = ("1 GPU", "2-4 GPUs", "5-8 GPUs", "9+ GPUs")
"""Labels of job sizes by requested GPUs; requests of a MIG profile have the name of the profile."""
MAX_GPUS_OF_JOB_SIZES = (1, 4, 8)
"""Upper bounds of the job sizes on full GPUs [GPUs]; the last job size has none."""


@dataclass(frozen=True)
class UsageFilter:
    """Team, partition, job class, request and period that a table of usage is limited to; None: all.

    - ``team``, ``partition``, ``job_class``: Names as in the jobs.
    - ``gpus``: Fewest and most full GPUs that a job requests; requests of MIG profiles are then left out [GPU].
    - ``start``, ``end``: First instant, and first instant after the period: ISO 8601 text or datetime, in the zone of
      the request where it has no offset.
    - ``month``: Calendar month such as ``2026-02``, in that zone.
    """

    team: str | None = None
    partition: str | None = None
    job_class: str | None = None
    gpus: tuple[float, float] | None = None
    start: str | datetime | None = None
    end: str | datetime | None = None
    month: str | None = None

    @property
    def limits_jobs(self) -> bool:
        """Whether only some of the jobs of a team count."""
        return (self.partition, self.job_class, self.gpus) != (None, None, None)

    def period_in(self, dataset: Dataset, tz: str) -> tuple[datetime, datetime]:
        """Return the first instant and the first instant after the period, within the observation of the dataset."""
        first, last = observation_begins_at(dataset), observation_ends_at(dataset)
        require_month(self.month, dataset, tz)
        month = Scenario(month=self.month, tz=tz).month_span() or (first, last)
        start = first if self.start is None else parse_instant(self.start, tz, option="start")
        end = last if self.end is None else parse_instant(self.end, tz, option="end")
        start, end = max(first, month[0], start), min(last, month[1], end)
        if end <= start:
            expected = f"a period within {first:%Y-%m-%d} to {last:%Y-%m-%d}"
            got = f"{self.month or 'any month'}, {self.start} to {self.end}"
            raise ScenarioError("month, start and end", expected, got, "Fix month=, start= or end=.")
        return start, end

    @property
    def filter_text(self) -> str:
        """Words for what jobs are limited to, as the begin of a subtitle; empty where all count.

        Examples
        --------
        >>> UsageFilter(team="vision", gpus=(1, 2)).filter_text
        'vision, 1-2 GPUs, '
        """
        gpus = self.gpus and f"{self.gpus[0]:g}-{self.gpus[1]:g} GPUs"
        return "".join(f"{name}, " for name in (self.team, self.partition, self.job_class, gpus) if name)

    def jobs_in(self, dataset: Dataset, groups: Sequence[str] = ()) -> pl.DataFrame:
        """Return the jobs of the team, partition, class and request, of all periods.

        With `job_class` among the groups or as filter, rules name the classes that the source lacks.
        """
        jobs = dataset.jobs.with_columns(job="job_id")
        if self.job_class is not None or "job_class" in groups:
            jobs = jobs.with_columns(classify_jobs(jobs, samples=dataset.samples)["job_class"])
        limits = {"tenant": self.team, "partition": self.partition, "job_class": self.job_class}
        for column, name in limits.items():
            subject = "team" if column == "tenant" else column.replace("_", " ")
            if name is not None:
                names = _require_stated(jobs, column, f"{subject}=").unique().sort().to_list()
                jobs = jobs.filter(pl.col(column) == resolve_name(name, names, subject=subject, error=ScenarioError))
        for name in set(groups) & {"user", "partition", "project", "tier"}:
            _require_stated(jobs, name, f"by={name!r}")
        if self.gpus is not None:
            low, high = _require_range(self.gpus)
            jobs = jobs.filter(pl.col("profile_requested").is_null(), pl.col("gpus").is_between(low, high))
        return jobs


def months_in(dataset: Dataset, tz: str) -> list[str]:
    """List the calendar months ``YYYY-MM`` of a dataset."""
    ends = observation_begins_at(dataset), observation_ends_at(dataset) - timedelta(microseconds=1)
    return months_from(*(f"{time.astimezone(ZoneInfo(tz)):%Y-%m}" for time in ends))


def require_month(month: str | None, dataset: Dataset, tz: str) -> None:
    """Raise ScenarioError with the months of a dataset unless it has a month; None: all months."""
    months = months_in(dataset, tz)
    if month is not None and month not in months:
        todo = f"Write month={months[-1]!r}, or leave it out for all data."
        raise ScenarioError("month", f"a month of the data: {examples(months)}", repr(month), todo)


def _require_stated(jobs: pl.DataFrame, column: str, option: str) -> pl.Series:
    """Return the values of a column of the jobs; raise TraceFormatError if no job states any."""
    stated = jobs[column].drop_nulls()
    if stated.is_empty() and jobs.height:
        todo = f"Leave {option} out, or import a source that states it."
        raise TraceFormatError(option, f"jobs that state their {column}", f"none of {jobs.height:,}", todo)
    return stated


def _require_range(gpus: object) -> tuple[float, float]:
    """Return the fewest and most GPUs of a request; raise ScenarioError for anything else."""
    match gpus:
        case (int() | float() as low, int() | float() as high) if 0 <= low <= high:
            return low, high
    raise ScenarioError("gpus", "the fewest and most GPUs of a request, such as (1, 2)", repr(gpus), "Fix gpus=.")


def parse_instant(value: str | date, tz: str = "UTC", *, option: str) -> datetime:
    """Parse an instant: ISO 8601 text, a date or a datetime, in the zone `tz` where it has no offset.

    Examples
    --------
    >>> parse_instant("2026-02-01", "Europe/Oslo", option="start").isoformat()
    '2026-01-31T23:00:00+00:00'
    """
    try:
        instant = datetime.fromisoformat(value if isinstance(value, str) else value.isoformat())
    except (ValueError, AttributeError):
        fix = "Write the day; month= takes a month." if option in ("start", "end") else "Fix the date."
        raise ScenarioError(option, "a date such as 2026-02-01", repr(value), fix) from None
    return instant.replace(tzinfo=ZoneInfo(tz)).astimezone(UTC) if instant.tzinfo is None else instant


def require_groups(by: str | Sequence[str], known_groups: Sequence[str]) -> list[str]:
    """Return the names of groups in full; raise ScenarioError for an unknown or a repeated one."""
    given = [by] if isinstance(by, str) else list(by)
    names = [resolve_name(name, known_groups, subject="by", error=ScenarioError) for name in given]
    if not names or len(set(names)) < len(names):
        raise ScenarioError("by", "one or more different groups", repr(by), f"Choose from {', '.join(known_groups)}.")
    return names


def time_group(name: str, instant: str, tz: str) -> pl.Expr:
    """Return the expression of a group of :data:`TIME_GROUPS` for a column of instants, in the zone `tz`.

    Examples
    --------
    >>> hours = pl.DataFrame({"hour": [datetime(2026, 2, 1, 23, tzinfo=UTC)]})
    >>> hours.select(time_group("weekday", "hour", "Europe/Oslo")).item()
    'Mon'
    """
    local = pl.col(instant).dt.convert_time_zone(tz)
    if name == "hour_of_day":
        return local.dt.hour().cast(pl.Int64).alias(name)
    if name == "weekday":
        labels = dict(enumerate(WEEKDAYS, start=1))
        return local.dt.weekday().replace_strict(labels, return_dtype=pl.Enum(WEEKDAYS)).alias(name)
    return local.dt.replace_time_zone(None).dt.truncate(POLARS_DURATION_BY_PERIOD[name]).dt.date().alias(name)


def describe_partial_periods(table: pl.DataFrame, groups: Sequence[str], start: datetime, end: datetime) -> str:
    """Name the weeks or months of a table that a period covers in part, with their days; empty where there are none.

    Parameters
    ----------
    table : polars.DataFrame
        Table with the groups.
    groups : sequence of str
        Its groups, of which ``week`` or ``month`` holds the first day.
    start, end : datetime
        First instant, and first instant after the period, in the zone of the groups.

    Examples
    --------
    >>> weeks = pl.DataFrame({"week": [date(2026, 1, 26), date(2026, 2, 2)]})
    >>> describe_partial_periods(weeks, ["week"], datetime(2026, 2, 1), datetime(2026, 2, 9))
    'Observed in part: week from 26 Jan 2026 (1 day).'
    """
    every = next((name for name in ("week", "month") if name in groups), None)
    if every is None:
        return ""
    first, stop = pl.col(every), (end - timedelta(microseconds=1)).date() + timedelta(days=1)
    after = first.dt.offset_by(POLARS_DURATION_BY_PERIOD[every])
    days = pl.min_horizontal(after, pl.lit(stop)) - pl.max_horizontal(first, pl.lit(start.date()))
    periods = table.select(every).drop_nulls().unique().sort(every).with_columns(days=days.dt.total_days(), after=after)
    partial = periods.filter((pl.col("after") - first).dt.total_days() > pl.col("days")).select(every, "days")
    names = (f"{every} from {day_text(day)} ({count_text(count, 'day')})" for day, count in partial.iter_rows())
    return f"Observed in part: {'; '.join(names)}." if partial.height else ""


def group_ledger(
    dataset: Dataset, by: str | Sequence[str] = "team", *, usage_filter: UsageFilter | None = None, tz: str = "UTC"
) -> pl.DataFrame:
    """Sum the installed GPU-hours by group, with a column for each bucket that occurs.

    Parameters
    ----------
    dataset : Dataset
        Jobs, nodes and telemetry.
    by : str or sequence of str
        Groups, of :data:`LEDGER_GROUPS`. A clock hour belongs to the period in which it begins.
    usage_filter : UsageFilter, optional
        With a team, a partition or a job class the table has its allocated GPU-hours alone: installed GPUs have none.
    tz : str
        IANA zone of hours, days, weeks (from Monday) and months.

    Returns
    -------
    polars.DataFrame
        The groups, the GPU-hours of each bucket [GPU h], and their sum ``gpu_hours``; sorted by group. The team
        ``Unallocated`` has the GPU-hours that no team was allocated.

    Raises
    ------
    ScenarioError
        If a group, team or partition is unknown, or the period is empty.

    Examples
    --------
    >>> from gpuplanner.usage.planning_history import load_dataset
    >>> table = group_ledger(load_dataset("sample"), ["team", "week"])
    >>> table.columns[:3], round(table["gpu_hours"].sum())
    (['team', 'week', 'used'], 43008)
    """
    names = require_groups(by, LEDGER_GROUPS)
    usage_filter = usage_filter or UsageFilter()
    start, end = usage_filter.period_in(dataset, tz)
    jobs = usage_filter.jobs_in(dataset, names)
    job_groups = [name for name in JOB_GROUPS if name in names]
    is_of_jobs = bool(job_groups) or usage_filter.limits_jobs
    keys = ["tenant", *job_groups]
    if is_of_jobs:  # the ledger tells tenants apart: each combination of groups stands for one
        labels = jobs.select(pl.col(keys).cast(pl.String)).unique(maintain_order=True).with_row_index("key")
        labels = labels.with_columns(pl.col("key").cast(pl.String))
        named = jobs.select(pl.col(keys).cast(pl.String)).join(labels, on=keys, how="left", nulls_equal=True,
                                                               maintain_order="left")  # fmt: skip
        dataset = dataset.with_tables(jobs=jobs.with_columns(tenant=named["key"]))
    if is_of_jobs and {"gpu_model", *TIME_GROUPS}.isdisjoint(names):  # hours need not be told apart
        states = allocated_and_active(dataset.jobs, dataset.samples, start=start, end=end)
        idle = pl.sum_horizontal(ALLOCATED_IDLE_STATES).alias("allocated_idle")
        rows = states.select("tenant", "used", "no_telemetry", idle).with_columns(gpu_model=pl.lit(None, pl.String))
        rows = rows.unpivot(
            ALLOCATED_BUCKETS, index=["tenant", "gpu_model"], variable_name="bucket", value_name="gpu_hours"
        )
        rows = rows.filter(pl.col("gpu_hours") > 1e-9)  # differences of sums of many samples
    else:
        rows = dataset_ledger(dataset, start, end).with_columns(pl.col("bucket").cast(pl.String))
    if is_of_jobs:
        rows = rows.filter(pl.col("bucket").is_in(ALLOCATED_BUCKETS)).rename({"tenant": "key"})
        rows = rows.with_columns(pl.col("key").cast(pl.String)).join(labels, on="key", maintain_order="left")
    if usage_filter.team is not None:
        rows = rows.filter(pl.col("tenant") == jobs["tenant"].first())
    groups = [time_group(name, "hour", tz) for name in names if name in TIME_GROUPS]
    team = pl.col("tenant").cast(pl.String).replace({UNALLOCATED_TENANT_LABEL: UNALLOCATED_LABEL})
    rows = rows.with_columns(pl.col("gpu_model").cast(pl.String), *groups, team=team)
    sums = rows.group_by(*names, "bucket", maintain_order=True).agg(pl.col("gpu_hours").sum())
    wide = sums.pivot("bucket", index=names, values="gpu_hours", aggregate_function="first")
    buckets = [bucket for bucket in GPU_TIME_BUCKETS if bucket in wide.columns]
    measured = [name for name in ("used", "allocated_idle") if name in buckets]
    hours = [pl.col(name).fill_null(0.0) for name in buckets]
    if "no_telemetry" in buckets and measured:  # where nothing was measured, use is not known, and not zero
        is_known = pl.any_horizontal(pl.col(measured).is_not_null()) | pl.col("no_telemetry").is_null()
        hours = [pl.when(is_known).then(value) if value.meta.output_name() in measured else value for value in hours]
    return wide.select(*names, *hours, gpu_hours=pl.sum_horizontal(buckets)).sort(names)


def keep_largest(
    table: pl.DataFrame, by: str | Sequence[str], column: str, top: int | tuple[int, int] | None
) -> pl.DataFrame:
    """Sort a table of groups by a column, the largest first, and keep the top.

    Parameters
    ----------
    table : polars.DataFrame
        Table of this module.
    by : str or sequence of str
        Its groups.
    column : str
        Column to sort by, such as ``allocated_idle``; rows where it is not known are left out.
    top : int or tuple of two int, optional
        Number of rows; or of values of the first group, by their sums, and of rows of each; None: all.

    Raises
    ------
    ScenarioError
        If the column or the numbers are not valid.
    TraceFormatError
        If the data have no values of the column.

    Examples
    --------
    >>> table = pl.DataFrame({"user": ["a", "b", "b"], "job": ["1", "2", "3"], "gpu_hours": [5.0, 4.0, 3.0]})
    >>> keep_largest(table, ["user", "job"], "gpu_hours", (1, 1)).rows()
    [('b', '2', 4.0)]
    """
    first, *later_groups = require_groups(by, LEDGER_GROUPS)
    counts = top if isinstance(top, tuple) else (table.height + 1 if top is None else top,)
    if any(type(count) is not int or count < 1 for count in counts) or len(counts) > 2:
        expected = "a number of rows, or two: of the first group, and rows of each, such as (20, 3)"
        raise ScenarioError("top", expected, repr(top), "Fix top=.")
    hour_columns = [*GPU_TIME_BUCKETS, "gpu_hours"]
    if column not in hour_columns:  # "idle" would be one of two buckets without notice
        near = [name for name in hour_columns if column and column in name] or nearest_names(column, hour_columns)
        todo = f"Did you mean {examples(near or hour_columns)}?"
        raise ScenarioError(f"sort {column!r} is unknown", f"one of {', '.join(hour_columns)}", repr(column), todo)
    if column not in table.columns or not table[column].count():
        todo = "Import telemetry with the jobs, or sort by gpu_hours."
        raise TraceFormatError("sort", f"GPU-hours in the bucket {column}", "none", todo)
    order = [column, first, *later_groups]
    table = table.drop_nulls(column).sort(order, descending=[True, *[False] * (len(order) - 1)])
    if len(counts) == 1:
        return table.head(counts[0])
    sums = table.group_by(first, maintain_order=True).agg(pl.col(column).sum())
    ranked = sums.sort(column, first, descending=[True, False]).head(counts[0]).select(first).with_row_index("rank")
    rows = table.join(ranked, on=first, nulls_equal=True, maintain_order="left").sort("rank", maintain_order=True)
    return rows.group_by(first, maintain_order=True).head(counts[1]).drop("rank")


def group_utilization(
    dataset: Dataset,
    by: str | Sequence[str] = "hour_of_day",
    *,
    usage_filter: UsageFilter | None = None,
    tz: str = "UTC",
) -> pl.DataFrame:
    """Compute the shares of the GPU-hours that were allocated and used, by group.

    Parameters
    ----------
    dataset : Dataset
        Jobs, nodes and telemetry.
    by : str or sequence of str
        Groups, of :data:`LEDGER_GROUPS`.
    usage_filter : UsageFilter, optional
        Team, partition and period.
    tz : str
        IANA zone of hours, days, weeks and months.

    Returns
    -------
    polars.DataFrame
        The groups; ``gpu_hours`` and ``allocated_gpu_hours`` [GPU h]; ``allocated_fraction`` of the installed
        GPU-hours [0-1], null where installed GPU-hours have no such group (a team, partition or job class);
        ``used_fraction`` of the allocated GPU-hours with telemetry [0-1], null without any.

    Raises
    ------
    ScenarioError
        If a group, team or partition is unknown, or the period is empty.

    Examples
    --------
    >>> from gpuplanner.usage.planning_history import load_dataset
    >>> table = group_utilization(load_dataset("sample"))
    >>> table.height, 0.4 < table["allocated_fraction"].mean() < 0.6
    (24, True)
    """
    table = group_ledger(dataset, by, usage_filter=usage_filter, tz=tz)
    names = table.columns[: 1 if isinstance(by, str) else len(by)]
    zero = [pl.lit(0.0).alias(bucket) for bucket in ALLOCATED_BUCKETS if bucket not in table.columns]
    table = table.with_columns(zero)
    is_limited = usage_filter is not None and (usage_filter.team is not None or usage_filter.limits_jobs)
    has_no_installed_gpus = is_limited or not {"team", *JOB_GROUPS}.isdisjoint(names)
    allocated = pl.sum_horizontal(ALLOCATED_BUCKETS)
    measured = pl.col("used") + pl.col("allocated_idle")
    if "team" in names:
        table = table.filter(allocated > 0)
    return table.select(
        *names,
        "gpu_hours",
        allocated_gpu_hours=allocated,
        allocated_fraction=pl.lit(None, pl.Float64) if has_no_installed_gpus else allocated / pl.col("gpu_hours"),
        used_fraction=pl.when(measured > 0).then(pl.col("used") / measured),
    )


def group_waits(
    dataset: Dataset,
    by: str | Sequence[str] = "job_size",
    *,
    percentile: float = 0.95,
    usage_filter: UsageFilter | None = None,
    tz: str = "UTC",
) -> pl.DataFrame:
    """Compute the observed queue waits by group, from when a job is eligible to its first start on GPUs.

    Parameters
    ----------
    dataset : Dataset
        Jobs.
    by : str or sequence of str
        Groups, of :data:`WAIT_GROUPS`; time groups are those of the submission.
    percentile : float
        Percentile of the queue wait. [0-1]
    usage_filter : UsageFilter, optional
        Team and partition, and the period of the submission.
    tz : str
        IANA zone of hours, days, weeks and months.

    Returns
    -------
    polars.DataFrame
        The groups; ``jobs`` that started, and ``jobs_not_started``; ``mean_wait_minutes``, the percentile
        (``p95_wait_minutes``) and ``max_wait_minutes`` [min], null where no job started; ``wait_hours``, their sum [h].

    Raises
    ------
    ScenarioError
        If a group, team, partition or percentile is not valid, or the period is empty.

    Examples
    --------
    >>> from gpuplanner.usage.planning_history import load_dataset
    >>> group_waits(load_dataset("sample"), percentile=0.95).select("job_size", "jobs").row(0)
    ('1g.10gb', 1785)
    """
    names = require_groups(by, WAIT_GROUPS)
    if not 0.0 <= percentile <= 1.0:
        raise ScenarioError("percentile", "a number from 0 to 1, such as 0.95", str(percentile), "Fix percentile=.")
    jobs = select_waiting_jobs(dataset, names, usage_filter=usage_filter or UsageFilter(), tz=tz)
    jobs = jobs.filter(pl.col("attempt") == 1)
    minutes = (pl.col("start_time") - waiting_since()).dt.total_microseconds() / 6e7
    return (
        jobs.group_by(names, maintain_order=True)
        .agg(
            jobs=pl.col("start_time").count(),
            jobs_not_started=pl.col("start_time").null_count(),
            mean_wait_minutes=minutes.mean(),
            percentile_wait=minutes.quantile(percentile, "equiprobable"),
            max_wait_minutes=minutes.max(),
            wait_hours=minutes.sum() / 60,
        )
        .rename({"percentile_wait": f"p{100 * percentile:g}_wait_minutes"})
        .sort(names)
    )


def select_waiting_jobs(
    dataset: Dataset, groups: Sequence[str], *, usage_filter: UsageFilter, tz: str = "UTC"
) -> pl.DataFrame:
    """Select the jobs that a filter names by their submission, with a column for each group of queue waits.

    Parameters
    ----------
    dataset : Dataset
        Jobs.
    groups : sequence of str
        Groups, of :data:`WAIT_GROUPS`.
    usage_filter : UsageFilter
        Which jobs.
    tz : str
        IANA zone of hours, days, weeks and months.
    """
    start, end = usage_filter.period_in(dataset, tz)
    in_period = (pl.col("submit_time") >= start) & (pl.col("submit_time") < end)
    jobs = usage_filter.jobs_in(dataset, groups).filter(in_period)

    profiles = jobs["profile_requested"].cast(pl.String).drop_nulls().unique().sort().to_list()
    size_number = pl.sum_horizontal(pl.col("gpus") > max_gpus for max_gpus in MAX_GPUS_OF_JOB_SIZES)
    size_label = size_number.replace_strict(dict(enumerate(JOB_SIZE_LABELS)), return_dtype=pl.String)
    size_by_gpus = pl.when(pl.col("gpus").is_not_null()).then(size_label)
    sizes = pl.Enum([*profiles, *JOB_SIZE_LABELS])
    job_size = pl.coalesce(pl.col("profile_requested").cast(pl.String), size_by_gpus).cast(sizes)
    times = [time_group(name, "submit_time", tz) for name in groups if name in TIME_GROUPS]
    return jobs.with_columns(pl.col("tenant").alias("team"), *times, job_size=job_size)
