"""Recommended quotas, budgets and checkpoint intervals of teams."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.stage_cache_and_data_folders import stage
from gpuplanner.core.units_and_number_formats import HOURS_PER_WEEK, SECONDS_PER_HOUR, SECONDS_PER_MINUTE
from gpuplanner.decision.policy_simulation import take_order_statistic
from gpuplanner.decision.sharing_rules import SharingRules, quota_share, read_sharing_rules
from gpuplanner.forecast.rolling_demand_forecast import demand_by_view, demand_paths
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.simulator.scheduling_rules import Checkpoints, Failures
from gpuplanner.simulator.simulation_state import Floats
from gpuplanner.usage.planning_history import history

DEFAULT_RISK_FRACTION = 0.1
"""Share of the hours in which the quota of a team may be too small, where it states none. [0-1]"""
NODE_FAIL_STATE = "NODE_FAIL"
"""Slurm state of jobs that a node failure ended."""
HARDWARE_XIDS = (
    46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, *range(144, 151), 155, 156, 158, 160,
)  # fmt: skip
"""XID errors after which a GPU is reset, its links are checked or its machine restarts [1]_; others, such as 13, 31
and 94, end at most the running work.

.. [1] NVIDIA, Analyzing Xid Errors with the Xid Catalog, column *Immediate Action* (docs.nvidia.com/deploy/xid-errors);
   the same actions are in NVIDIA/NVSentinel, ``xiderrorsmapping.csv`` at 6f8b0fc; both read 2026-11-27.
"""


@dataclass(frozen=True, eq=False)
class QuotaAdvice:
    """Recommended quotas of teams, from sample paths of running and expected work.

    - ``quotas``: A row a team: its quota now, the share of the hours in which it will be too small, the accepted risk,
      the quota for that risk in full GPUs, the risk with it, and its cost to the other teams.
    - ``steps``: Cost of each quota step to the others: GPU-hours a week that they borrow today and that the team would
      reclaim while the fleet is full.
    - ``budgets``: GPU-hours of the month against the budget, and the date when it is used up, of teams that have one.
    - ``checkpoints``: By team the interval between checkpoints by Young's formula and by Daly's, and the share of its
      hours that failures and checkpoints take; the failure rate is of the data, else of the literature.
    - ``notes``: Assumptions behind the figures.
    """

    quotas: pl.DataFrame
    steps: pl.DataFrame
    budgets: pl.DataFrame
    checkpoints: pl.DataFrame
    notes: tuple[str, ...]

    @property
    def titled_tables(self) -> tuple[tuple[str, pl.DataFrame], ...]:
        """Tables that are not empty, each with its title."""
        titles = {
            "quotas": "Quota for the risk that a team accepts, and GPU-hours a week that it takes from others at "
            "full capacity",
            "steps": "Cost of each quota step to the other teams",
            "budgets": "GPU-hours of the month against budgets, and the date when a budget is used up",
            "checkpoints": "Checkpoint interval of lowest cost, by team (minutes of work)",
        }
        tables = ((title, getattr(self, name)) for name, title in titles.items())
        return tuple((title, table) for title, table in tables if table.height)

    def to_dict(self) -> dict[str, Any]:
        """Return the object of ``--json``."""
        tables = ("quotas", "steps", "budgets", "checkpoints")
        return {name: getattr(self, name).to_dicts() for name in tables} | {"notes": list(self.notes)}


@stage
def advise_quotas(scenario: Scenario) -> QuotaAdvice:
    """Recommend quotas over the horizon of the scenario, and project budgets to the end of the month."""
    job_history = history(scenario)
    rules = read_sharing_rules(scenario, job_history)
    teams = sorted({*demand_by_view(scenario)["rightsized"]["tenant"].unique(), *(quota.name for quota in rules.teams)})
    paths = _sample_team_gpus(scenario, teams, job_history.fleet.gpu_model)
    quotas, steps = recommend_quotas(rules, teams, paths, float(job_history.fleet.gpus))
    notes = (
        f"Quotas cover {scenario.horizon_intervals * scenario.interval_hours:,.0f} hours ahead on {len(paths)} sample "
        "paths of right-sized demand; slices count the larger of their shares of compute and memory.",
    )
    return QuotaAdvice(quotas, steps, _forecast_budgets(scenario, rules), _checkpoint_intervals(scenario, rules), notes)


def _sample_team_gpus(scenario: Scenario, teams: list[str], gpu_model: GpuModel) -> Floats:
    """Sample paths of the GPUs of each team, counted as quotas count them, shape (n_paths, n_teams, n_intervals)."""
    profiles = demand_by_view(scenario)["rightsized"]["profile"].unique().sort().to_list()
    share = np.array([1.0 if name == FULL_GPU else quota_share(gpu_model, name) for name in profiles])
    return np.asarray(np.einsum("ktps,p->kts", demand_paths(scenario, teams, profiles), share))


def quota_for_risk(team_gpus: Floats, risk: float) -> int:
    """Return the fewest GPUs that demand exceeds in at most a share ``risk`` of all hours and paths.

    Examples
    --------
    >>> quota_for_risk(np.arange(1.0, 21.0), 0.1)
    18
    """
    return math.ceil(take_order_statistic(team_gpus.ravel(), 1.0 - risk) - 1e-9)


def recommend_quotas(
    rules: SharingRules, teams: list[str], paths: Floats, fleet_gpus: float
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Compute the tables ``quotas`` and ``steps`` of :class:`QuotaAdvice`.

    Parameters
    ----------
    rules : SharingRules
        Quotas now, and accepted risks.
    teams : list of str
        Names of the teams, in the order of `paths`.
    paths : array of float, shape (n_paths, n_teams, n_intervals)
        Sample paths of demand [GPUs].
    fleet_gpus : float
        GPUs of the fleet.

    Returns
    -------
    quotas, steps : polars.DataFrame

    Examples
    --------
    >>> paths = np.array([[[1.0, 2.0, 3.0, 8.0], [4.0, 4.0, 4.0, 4.0]]])
    >>> found, steps = recommend_quotas(SharingRules(), ["a", "b"], paths, 10.0)
    >>> found["team", "gpus_for_risk"].rows()
    [('a', 8), ('b', 4)]
    """
    is_full = paths.sum(axis=1) > fleet_gpus
    rows, steps = [], []
    for number, name in enumerate(teams):
        quota, team_gpus = rules.quota_of(name), paths[:, number]
        risk = DEFAULT_RISK_FRACTION if quota.risk is None else quota.risk
        needed = quota_for_risk(team_gpus, risk)
        quota_gpus = quota.gpus
        taken_gpu_hours = None if quota_gpus is None else _gpu_hours_taken(team_gpus, is_full, quota_gpus, needed)
        rows.append(
            {
                "team": name, "gpus_now": quota_gpus,
                "risk_now": None if quota_gpus is None else float((team_gpus > quota_gpus + 1e-9).mean()),
                "risk_stated": risk, "gpus_for_risk": needed,
                "risk_then": float((team_gpus > needed + 1e-9).mean()), "costs_others_gpu_hours_week": taken_gpu_hours,
            }
        )  # fmt: skip
        first_gpus = 0.0 if quota_gpus is None else quota_gpus
        for step_gpus in np.unique(np.round(np.linspace(first_gpus, needed, 6))).tolist():
            if step_gpus > first_gpus:
                step_risk = float((team_gpus > step_gpus + 1e-9).mean())
                steps.append((name, step_gpus, step_risk, _gpu_hours_taken(team_gpus, is_full, first_gpus, step_gpus)))
    names = ("gpus", "risk", "costs_others_gpu_hours_week")
    schema = {"team": pl.String, **dict.fromkeys(names, pl.Float64)}
    return pl.DataFrame(rows, infer_schema_length=None), pl.DataFrame(steps, schema=schema, orient="row")


def _gpu_hours_taken(team_gpus: Floats, is_full: NDArray[np.bool_], gpus_before: float, gpus_after: float) -> float:
    """GPU-hours a week within a larger quota of a team but not within the smaller one, in hours of a full fleet.

    Parameters
    ----------
    team_gpus : array of float, shape (n_paths, n_intervals)
        Demand of the team [GPUs].
    is_full : array of bool, shape (n_paths, n_intervals)
        Whether all teams together demand more than the fleet has.
    gpus_before, gpus_after : float
        Smaller and larger quota [GPUs].
    """
    extra_gpus = np.clip(team_gpus, 0.0, gpus_after) - np.clip(team_gpus, 0.0, gpus_before)
    return float((extra_gpus * is_full).mean() * HOURS_PER_WEEK)


def _forecast_budgets(scenario: Scenario, rules: SharingRules) -> pl.DataFrame:
    """Project the GPU-hours of the current calendar month against the budgets of teams that have one."""
    figures = ("budget_gpu_hours", "used_gpu_hours", "used_share", "month_share", "expected_gpu_hours")
    dates = dict.fromkeys(("exhausted_on", "early", "late"), pl.Datetime("us", "UTC"))
    schema: dict[str, Any] = {"team": pl.String, **dict.fromkeys(figures, pl.Float64)}
    schema |= {**dates, "chance": pl.Float64}
    budgets = {quota.name: quota.gpu_hours_per_month for quota in rules.teams if quota.gpu_hours_per_month is not None}
    if not budgets:
        return pl.DataFrame(schema=schema)
    job_history = history(scenario)
    now = job_history.plan_start
    local_now = now.astimezone(ZoneInfo(scenario.tz))
    begin = local_now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    end = (begin + timedelta(days=32)).replace(day=1)
    n_intervals = max(math.ceil((end - local_now) / timedelta(hours=scenario.interval_hours)), 1)
    teams = sorted(budgets)
    month = scenario.but(horizon_intervals=n_intervals)
    future_gpu_hours = _sample_team_gpus(month, teams, job_history.fleet.gpu_model) * scenario.interval_hours
    rows = []
    for number, name in enumerate(teams):
        used = _allocated_gpu_hours(job_history.jobs.filter(pl.col("tenant") == name), begin, now)
        cumulative_gpu_hours = used + np.cumsum(future_gpu_hours[:, number], axis=1)
        row = {"team": name, "budget_gpu_hours": budgets[name], "used_gpu_hours": used}
        row |= budget_burn_down(cumulative_gpu_hours, budgets[name], used, now, scenario.interval_hours)
        rows.append(row | {"month_share": (local_now - begin) / (end - begin)})
    table = pl.DataFrame(rows, infer_schema_length=None)
    return table.select(pl.col(name).cast(kind) for name, kind in schema.items())


def budget_burn_down(
    cumulative_gpu_hours: Floats, budget_gpu_hours: float, used_gpu_hours: float, now: datetime, interval_hours: float
) -> dict[str, Any]:
    """Find when cumulative GPU-hours exceed a budget: median date, 5 % and 95 % ends, and probability.

    A date is None where the budget lasts in more than that share of the paths.

    Parameters
    ----------
    cumulative_gpu_hours : array of float, shape (n_paths, n_intervals)
        GPU-hours since the begin of the month, at the end of each interval.
    budget_gpu_hours, used_gpu_hours : float
        Budget of the month, and GPU-hours used until now.
    now : datetime
        Begin of the first interval.
    interval_hours : float
        Length of an interval [h].

    Returns
    -------
    dict
        ``used_share``, ``expected_gpu_hours``, ``exhausted_on``, ``early``, ``late`` and ``chance``.

    Examples
    --------
    >>> from datetime import UTC
    >>> found = budget_burn_down(np.array([[2.0, 4.0, 6.0]] * 3), 5.0, 1.0, datetime(2026, 3, 1, tzinfo=UTC), 24.0)
    >>> f"{found['exhausted_on']:%d}", found["chance"]
    ('04', 1.0)
    """
    over = cumulative_gpu_hours > budget_gpu_hours
    first_interval_over = np.where(over.any(axis=1), over.argmax(axis=1) + 1.0, np.inf)

    def date(share: float) -> datetime | None:
        interval = float(np.sort(first_interval_over)[max(math.ceil(share * len(first_interval_over)) - 1, 0)])
        if used_gpu_hours > budget_gpu_hours:
            return now
        return None if interval == np.inf else now + timedelta(hours=interval * interval_hours)

    return {
        "used_share": used_gpu_hours / budget_gpu_hours if budget_gpu_hours else None,
        "expected_gpu_hours": float(cumulative_gpu_hours[:, -1].mean()),
        "exhausted_on": date(0.5), "early": date(0.05), "late": date(0.95), "chance": float(over.any(axis=1).mean()),
    }  # fmt: skip


def _allocated_gpu_hours(jobs: pl.DataFrame, begin: datetime, end: datetime) -> float:
    """Sum the GPU-hours allocated to jobs within a period."""
    begin_in_period = pl.max_horizontal(pl.col("start_time"), pl.lit(begin))
    end_in_period = pl.min_horizontal(pl.col("end_time").fill_null(end), pl.lit(end))
    seconds = (end_in_period - begin_in_period).dt.total_microseconds().clip(lower_bound=0) / 1e6
    began = jobs.filter(pl.col("start_time").is_not_null())
    return float(began.select((seconds * pl.col("gpus")).sum()).item()) / SECONDS_PER_HOUR


def _checkpoint_intervals(scenario: Scenario, rules: SharingRules) -> pl.DataFrame:
    """Compute the checkpoint interval of each team, for the mean GPUs of one of its jobs."""
    job_history = history(scenario)
    mtbf_s = observed_mtbf_s(job_history.trace) or Failures().mtbf_s(1)
    # Without a stated time, writing a checkpoint is assumed to take a minute.
    write_s = rules.stopping.checkpoint_write_seconds or 60.0
    work = pl.col("gpus") * pl.col("run_s")
    teams = job_history.jobs.filter(pl.col("gpus") > 0).group_by(team="tenant", maintain_order=True)
    sizes = teams.agg(gpus_of_a_job=(pl.col("gpus") * work).sum() / work.sum()).drop_nulls().sort("team")
    rows = []
    for name, gpus in sizes.iter_rows():
        job_mtbf_s = mtbf_s / gpus
        young = Checkpoints(write_s=write_s).interval_of(job_mtbf_s)
        daly = daly_interval_s(write_s, job_mtbf_s)
        rows.append(
            {
                "team": name, "gpus_of_a_job": gpus, "job_mtbf_h": job_mtbf_s / SECONDS_PER_HOUR,
                "young_minutes": young / SECONDS_PER_MINUTE, "daly_minutes": daly / SECONDS_PER_MINUTE,
                "lost_share": write_s / daly + daly / (2 * job_mtbf_s),
            }
        )  # fmt: skip
    return pl.DataFrame(rows, infer_schema_length=None)


def observed_mtbf_s(dataset: Dataset) -> float | None:
    """Mean time between failures of a GPU [s]; None where nothing failed.

    Failures are jobs that ended by a node failure, over the GPU time of jobs, or hardware errors in telemetry (XID),
    over the observed GPU time. The more frequent of the two counts: many failures show in both. A repeated
    equal error is not counted.
    """
    times = [mtbf_s for mtbf_s in (_mtbf_of_jobs_s(dataset.jobs), _mtbf_of_errors_s(dataset)) if mtbf_s is not None]
    return min(times, default=None)


def _mtbf_of_errors_s(dataset: Dataset) -> float | None:
    """Mean time between hardware errors (XID) of a GPU in telemetry [s]; None without any."""
    samples, coverage = dataset.samples, dataset.coverage
    if samples is None or coverage is None or "xid" not in samples.columns:
        return None
    readings = samples.drop_nulls("xid").sort("time", maintain_order=True)
    is_new_error = pl.col("xid") != pl.col("xid").shift(1).over("node", "gpu")
    errors = readings.filter(is_new_error & pl.col("xid").is_in(HARDWARE_XIDS)).height
    return float(coverage["observed_gpu_h"].sum()) * SECONDS_PER_HOUR / errors if errors else None


def _mtbf_of_jobs_s(jobs: pl.DataFrame) -> float | None:
    """Mean GPU time between jobs that ended by a node failure [s]; None without any."""
    failed = jobs.filter(pl.col("state").cast(pl.String) == NODE_FAIL_STATE).height
    allocated_gpu_s = (pl.col("end_time") - pl.col("start_time")).dt.total_seconds().fill_null(0) * pl.col("gpus")
    return float(jobs.select(allocated_gpu_s.sum()).item()) / failed if failed else None


def daly_interval_s(write_s: float, mtbf_s: float) -> float:
    """Daly's optimal work between checkpoints [s]; the MTBF where writing one takes twice the MTBF or longer.

    References
    ----------
    J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22 (2006), eq. 37.

    Examples
    --------
    >>> round(daly_interval_s(60.0, 120_000.0))
    3755
    """
    if write_s >= 2 * mtbf_s:
        return mtbf_s
    part = write_s / (2 * mtbf_s)
    return math.sqrt(2 * write_s * mtbf_s) * (1 + math.sqrt(part) / 3 + part / 9) - write_s
