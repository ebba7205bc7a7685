"""Hazard rates of job run times, estimated with running jobs as censored, and remaining run times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import polars as pl

from gpuplanner.core.errors import SchemaError

JOB_AGE_EDGES_H = np.concatenate([[0.0], np.geomspace(1 / 60, 2000.0, 60)])
"""Edges of the bins of job age in which the hazard is constant [h], from a minute to twelve weeks; the last bin has no
end.
"""
JOB_AGE_BIN_WIDTHS_H = np.diff(JOB_AGE_EDGES_H)
"""Widths of the job-age bins [h]."""
PRIOR_HAZARD_TIMES_AGE = 0.7
"""Prior of hazard times job age: without observed jobs, a job of age t ends at the rate 0.7 / t, as run times are
heavy-tailed.
"""
PRIOR_JOB_ENDS_PER_BIN = 0.5
"""Weight of the rate of the larger group in each age bin of a smaller group, in job ends, as in the prior of Jeffreys
for a rate.
"""
HAZARD_HALF_LIFE_H = 90 * 24.0
"""Half-life of the weight of a past job end [h]: an end so long ago counts half."""
JOB_SIZE_EDGES_GPUS = (1.01, 4.01, 8.01)
"""Edges between job sizes [GPUs]: 1, 2 to 4, 5 to 8, more."""


@dataclass(frozen=True, eq=False)
class Hazards:
    """Hazards of run times: a piecewise exponential distribution for each class of jobs.

    Parameters
    ----------
    rate : numpy.ndarray, shape (n_classes, n_bins)
        Ends an hour of jobs whose age lies in a bin of :data:`JOB_AGE_EDGES_H` [1/h], above 0.
    seen_h : numpy.ndarray, shape (n_classes, n_bins)
        Time at risk behind each rate [h], pseudo-events included: its variance is ``rate / seen_h``.
    """

    rate: np.ndarray
    seen_h: np.ndarray

    def used(self, kind: np.ndarray, age_h: np.ndarray) -> np.ndarray:
        """Compute the cumulative hazard at an age, ``-log S(age)``.

        Parameters
        ----------
        kind : numpy.ndarray of int, shape (n,)
            Class of each job.
        age_h : numpy.ndarray, shape (n,)
            Time since its start [h].
        """
        summed = self._cumulative_hazard()
        age_bin = np.clip(np.searchsorted(JOB_AGE_EDGES_H, age_h, side="right") - 1, 0, len(JOB_AGE_BIN_WIDTHS_H) - 1)
        return np.asarray(summed[kind, age_bin] + self.rate[kind, age_bin] * (age_h - JOB_AGE_EDGES_H[age_bin]))

    def remaining(self, kind: np.ndarray, age_h: np.ndarray, hazard: np.ndarray) -> np.ndarray:
        """Compute the time in which the cumulative hazard of a job grows by a given amount [h].

        With ``hazard`` drawn from the exponential distribution of mean 1, the results are draws of the remaining run
        time; with ``-log(1 - p)`` they are its quantile p.

        Parameters
        ----------
        kind, age_h : numpy.ndarray, shape (n,)
            Class and age of each job.
        hazard : numpy.ndarray, shape (..., n)
            Amount by which the cumulative hazard of each job grows, above 0.

        Returns
        -------
        numpy.ndarray, shape (..., n)
        """
        goal = self.used(kind, age_h) + hazard
        summed, end_age_h = self._cumulative_hazard(), np.empty_like(goal)
        for class_number in np.unique(kind):
            is_class, sums = kind == class_number, summed[class_number]
            wanted = goal[..., is_class]
            age_bin = np.clip(np.searchsorted(sums, wanted, side="right") - 1, 0, len(JOB_AGE_BIN_WIDTHS_H) - 1)
            in_bin_h = (wanted - sums[age_bin]) / self.rate[class_number][age_bin]
            end_age_h[..., is_class] = JOB_AGE_EDGES_H[age_bin] + in_bin_h
        return np.asarray(np.maximum(end_age_h - age_h, 0.0))

    def mean_remaining(self, kind: np.ndarray, age_h: np.ndarray) -> np.ndarray:
        """Compute the expected remaining run time of jobs of a class and age [h], shape (n,)."""
        inside = np.exp(-self.rate * JOB_AGE_BIN_WIDTHS_H)
        ahead = np.empty((len(self.rate), len(JOB_AGE_EDGES_H)))
        ahead[:, -1] = 1.0 / self.rate[:, -1]
        for later_bin in reversed(range(len(JOB_AGE_BIN_WIDTHS_H))):
            stays = inside[:, later_bin]
            ahead[:, later_bin] = (1 - stays) / self.rate[:, later_bin] + stays * ahead[:, later_bin + 1]
        age_bin = np.clip(np.searchsorted(JOB_AGE_EDGES_H, age_h, side="right") - 1, 0, len(JOB_AGE_BIN_WIDTHS_H) - 1)
        rate = self.rate[kind, age_bin]
        stays = np.exp(-rate * np.maximum(JOB_AGE_EDGES_H[age_bin + 1] - age_h, 0.0))
        return np.asarray((1 - stays) / rate + stays * ahead[kind, age_bin + 1])

    def _cumulative_hazard(self) -> np.ndarray:
        """Compute the cumulative hazard at the edges of the bins, shape (n_classes, n_bins + 1)."""
        return np.pad(np.cumsum(self.rate * JOB_AGE_BIN_WIDTHS_H, axis=1), ((0, 0), (1, 0)))


def fit_hazards(
    ran_h: np.ndarray, ended: np.ndarray, groups: Sequence[np.ndarray] = (), *, weight: np.ndarray | None = None
) -> Hazards:
    """Estimate hazard rates of run times from jobs that ended and jobs that still run.

    The rate of a bin is the number of ends in it over the time that jobs spent in it, each with pseudo-events at
    the rate of the next larger group (the mean of a Gamma posterior): all jobs towards :data:`PRIOR_HAZARD_TIMES_AGE`
    over t, the first of `groups` towards all jobs, the second towards the first. The rates of a class with few job ends
    are close to those of its larger group.

    Parameters
    ----------
    ran_h : numpy.ndarray, shape (n,)
        How long each job has run up to now [h].
    ended : numpy.ndarray of bool, shape (n,)
        Whether it ended then; else it is censored: it runs on.
    groups : sequence of numpy.ndarray of int, each of shape (n,)
        Numbers of the groups that each job is in, from large to small; a smaller group lies within one larger one.
    weight : numpy.ndarray, optional, shape (n,)
        How much each job counts; 1 if not given.

    Returns
    -------
    Hazards
        One row for each number of the last of `groups`; one row in all without groups.

    References
    ----------
    Piecewise exponential model with Gamma priors: Ibrahim, Chen, Sinha, "Bayesian Survival Analysis", Springer,
    2001, section 3.1.

    Examples
    --------
    >>> law = fit_hazards(np.full(5000, 2.0), np.arange(5000) % 2 == 0)
    >>> round(float(law.mean_remaining(np.array([0]), np.array([0.0]))[0]), 1) > 2
    True
    """
    count = np.ones(len(ran_h)) if weight is None else weight
    middle = np.sqrt(np.maximum(JOB_AGE_EDGES_H[:-1], 1 / 240) * JOB_AGE_EDGES_H[1:])
    rate = seen_h = (PRIOR_HAZARD_TIMES_AGE / middle)[None, :]
    above = np.zeros(len(ran_h), dtype=np.int64)
    for number in (np.zeros(len(ran_h), dtype=np.int64), *groups):
        size = int(number.max()) + 1 if len(number) else 1
        ends, time = _count_ends(ran_h, ended, number, count, size)
        parent = np.zeros(size, dtype=np.int64)
        parent[number] = above
        seen_h = time + PRIOR_JOB_ENDS_PER_BIN / rate[parent]
        rate = (ends + PRIOR_JOB_ENDS_PER_BIN) / seen_h
        above = number
    return Hazards(rate, seen_h)


def job_size_class(gpus: np.ndarray) -> np.ndarray:
    """Classify jobs by requested GPUs: 0 for 1, 1 for 2 to 4, 2 for 5 to 8, 3 for more.

    Examples
    --------
    >>> job_size_class(np.array([0.5, 1, 4, 8, 16])).tolist()
    [0, 0, 1, 2, 3]
    """
    return np.asarray(np.digitize(gpus, JOB_SIZE_EDGES_GPUS))


def remaining_run_time(
    jobs: pl.DataFrame, *, levels: Sequence[float] = (0.5, 0.9), by: Sequence[str] = ()
) -> pl.DataFrame:
    """Estimate the remaining run time of every job, as mean and quantiles.

    What a drain of a running job costs, or how long a reservation behind it must be, follows from it. Running jobs
    are counted as censored; leaving them out would leave out the longest.

    Parameters
    ----------
    jobs : polars.DataFrame
        ``ran_h`` (how long it has run [h]), ``ended`` (whether it is over), ``gpus``; and the columns of `by`.
    levels : sequence of float
        Quantiles, above 0 and below 1.
    by : sequence of str
        Columns that divide jobs into classes, from large to small; job size divides them further.

    Returns
    -------
    polars.DataFrame
        The jobs with ``remaining_h`` (expected, [h]) and ``remaining_q50_h`` and the like, null for jobs that are
        over.

    Raises
    ------
    SchemaError
        If a time is negative or not finite.

    Examples
    --------
    >>> jobs = pl.DataFrame({"ran_h": [1.0] * 50 + [0.0], "ended": [True] * 50 + [False], "gpus": 1.0})
    >>> row = remaining_run_time(jobs).row(-1, named=True)
    >>> 0.8 < row["remaining_q50_h"] < 1.3
    True
    """
    ran_h, ended = jobs["ran_h"].to_numpy(), jobs["ended"].to_numpy()
    if not (np.isfinite(ran_h).all() and (ran_h >= 0).all()):
        raise SchemaError("remaining run time", "hours of at least 0", "others", "Look at starts and ends.")
    groups = group_numbers(jobs.select(*by, wide=pl.Series(job_size_class(jobs["gpus"].to_numpy()))))
    hazards = fit_hazards(ran_h, ended, groups)
    kind = groups[-1]
    columns = {"remaining_h": hazards.mean_remaining(kind, ran_h)}
    for level in levels:
        hazard = np.full(len(kind), -np.log1p(-level))
        columns[f"remaining_q{100 * level:02g}_h"] = hazards.remaining(kind, ran_h, hazard)
    over = pl.Series(ended)
    return jobs.with_columns(**{name: pl.when(~over).then(pl.Series(values)) for name, values in columns.items()})


def remaining_while_busy(run_h: np.ndarray, weight: np.ndarray | None = None, *, values: int = 20) -> np.ndarray:
    """Compute equally likely remaining run times at a random instant [h], ascending.

    At a random instant long jobs are running more often than short ones. With the distribution F of run times and their
    mean m, what remains has the density (1 - F(t)) / m.

    Parameters
    ----------
    run_h : numpy.ndarray, shape (n,)
        Run times [h], above 0.
    weight : numpy.ndarray, optional, shape (n,)
        How often each counts, as a job that runs on several instances does; once if None.
    values : int
        How many values to give.

    Returns
    -------
    numpy.ndarray, shape (values,)

    References
    ----------
    Cox, "Renewal Theory", Methuen, 1962, section 5.1.

    Examples
    --------
    Of jobs that all take two hours, two hours remain at most and one on average:

    >>> remaining_while_busy(np.full(10, 2.0), values=4).tolist()
    [0.25, 0.75, 1.25, 1.75]
    """
    order = np.argsort(run_h, kind="stable")
    ends, count = run_h[order], (np.ones(len(run_h)) if weight is None else weight)[order]
    longer = count.sum() - np.cumsum(count)
    over = (np.cumsum(ends * count) + ends * longer) / (ends * count).sum()
    levels = (np.arange(values) + 0.5) / values
    return np.asarray(np.interp(levels, np.concatenate([[0.0], over]), np.concatenate([[0.0], ends])))


def group_numbers(columns: pl.DataFrame) -> list[np.ndarray]:
    """Number the groups of the first column, of the first two columns, and so on.

    Examples
    --------
    >>> [one.tolist() for one in group_numbers(pl.DataFrame({"a": ["x", "y", "y"], "b": [1, 1, 2]}))]
    [[0, 1, 1], [0, 1, 2]]
    """
    numbers, groups = np.zeros(columns.height, np.int32), []
    for column in columns.iter_columns():
        # Names are numbered first: ranks of whole rows would copy and sort the texts of all jobs.
        names = column.drop_nulls().unique().sort().cast(pl.String)
        texts = column if column.dtype == pl.Categorical else column.cast(pl.String)
        codes = texts.cast(pl.Enum(names)).to_physical().cast(pl.Int64).fill_null(-1)
        codes += pl.Series(numbers, dtype=pl.Int64) * (len(names) + 1)
        numbers = np.searchsorted(codes.unique().sort().to_numpy(), codes.to_numpy()).astype(np.int32)
        groups.append(numbers)
    return groups


def _count_ends(
    ran_h: np.ndarray, ended: np.ndarray, group: np.ndarray, weight: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Count ends and sum exposure in each age bin, by group, shape (size, n_bins) each.

    Parameters
    ----------
    ran_h : numpy.ndarray, shape (n_jobs,)
        Time run. [h]
    ended : numpy.ndarray of bool, shape (n_jobs,)
        Whether the job ended then.
    group : numpy.ndarray of int, shape (n_jobs,)
        Group of each job.
    weight : numpy.ndarray, shape (n_jobs,)
        Weight of each job.
    size : int
        Number of groups.
    """
    bins = len(JOB_AGE_BIN_WIDTHS_H)
    age_bin = np.clip(np.searchsorted(JOB_AGE_EDGES_H, ran_h, side="right") - 1, 0, bins - 1)
    cell, shape = group * bins + age_bin, (size, bins)
    left = np.bincount(cell, weights=weight, minlength=size * bins).reshape(shape)
    ends = np.bincount(cell, weights=weight * ended, minlength=size * bins).reshape(shape)
    within_h = weight * (ran_h - JOB_AGE_EDGES_H[age_bin])
    inside = np.bincount(cell, weights=within_h, minlength=size * bins).reshape(shape)
    passed = left[:, ::-1].cumsum(axis=1)[:, ::-1] - left  # those that went through the whole bin
    return ends, passed * JOB_AGE_BIN_WIDTHS_H + inside


def decay_weight(since_h: np.ndarray) -> np.ndarray:
    """Compute the weight of a past job end from the time since then [h]; it halves in 90 days.

    Examples
    --------
    >>> decay_weight(np.array([0.0, HAZARD_HALF_LIFE_H])).tolist()
    [1.0, 0.5]
    """
    return np.asarray(0.5 ** (since_h / HAZARD_HALF_LIFE_H))


def impute_run_times(jobs: pl.DataFrame, until: datetime, *, seed: int) -> pl.DataFrame:
    """Add a run time to every job, drawn where it has not ended.

    Leaving unended jobs out would leave out the longest ones. A job that runs for ``a`` seconds already gets
    the run time of an ended job of its class, drawn among those that ran for at least ``a``; where no job of
    the class ran that long, twice its age. A job that waits is drawn among all of its class.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``.
    until : datetime
        End of the observation.
    seed : int
        Seed of the random numbers.

    Returns
    -------
    polars.DataFrame
        The jobs with ``run_s`` [s] (null for those that ended without ever starting) and ``run_known``.

    Examples
    --------
    >>> from datetime import UTC, timedelta
    >>> t0 = datetime(2026, 1, 1, tzinfo=UTC)
    >>> jobs = pl.DataFrame({
    ...     "job_id": ["a", "b"], "tenant": "t", "job_class": None, "state": ["COMPLETED", "RUNNING"],
    ...     "start_time": [t0, t0], "end_time": [t0 + timedelta(hours=5), None]})
    >>> impute_run_times(jobs, t0 + timedelta(hours=2), seed=1)["run_s"].to_list()
    [18000.0, 18000.0]
    """
    rng = np.random.default_rng(seed)
    end = pl.col("end_time").cast(pl.Datetime("us", "UTC"))
    known_s = (end - pl.col("start_time")).dt.total_microseconds()
    age_s = (pl.lit(until) - pl.col("start_time")).dt.total_microseconds() / 1e6
    running_s = pl.when(pl.col("state") == "RUNNING").then(age_s).otherwise(0.0)
    table = jobs.with_columns(
        run_s=known_s / 1e6,
        age_s=running_s.fill_null(0.0).clip(lower_bound=0.0),
        kind=pl.coalesce(pl.col("job_class").cast(pl.String), pl.col("tenant")),
        open=pl.col("end_time").is_null() & pl.col("state").cast(pl.String).is_in(["RUNNING", "PENDING"]),
    )
    ended = table.select("kind", "run_s").drop_nulls("run_s")
    groups = ended.group_by("kind", maintain_order=True)
    pools = {kind: np.sort(group["run_s"].to_numpy()) for (kind,), group in groups}
    everyone = np.sort(ended["run_s"].to_numpy())
    drawn = [
        _draw_longer_run(pools.get(kind, everyone), age, rng) if is_open else None
        for kind, age, is_open in table.select("kind", "age_s", "open").iter_rows()
    ]
    return table.with_columns(
        run_known=pl.col("run_s").is_not_null(), run_s=pl.coalesce("run_s", pl.Series(drawn, dtype=pl.Float64))
    ).drop("age_s", "kind", "open")


def _draw_longer_run(pool: np.ndarray, age_s: float, rng: np.random.Generator) -> float:
    """Draw a run time [s] from the sorted ones that are at least as long as an age; twice the age if none is."""
    longer = pool[np.searchsorted(pool, age_s) :]
    return float(rng.choice(longer)) if len(longer) else 2.0 * age_s
