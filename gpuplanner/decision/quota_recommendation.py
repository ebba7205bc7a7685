"""Recommended quotas of teams and their budgets."""

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
from gpuplanner.core.schemas import WHOLE_GPU
from gpuplanner.core.stage_cache import stage
from gpuplanner.core.units import HOURS_PER_WEEK, SECONDS_PER_HOUR, SECONDS_PER_MINUTE
from gpuplanner.decision.policy_simulation import order_statistic
from gpuplanner.decision.sharing_rules import SharingRules, quota_share, rules_of
from gpuplanner.forecast.demand_outlook import demand_by_view, demand_paths
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.simulator.scheduling_rules import Checkpoints, Failures
from gpuplanner.simulator.simulation_state import Floats
from gpuplanner.usage.job_history import history

RISK = 0.1
"""Share of the hours in which a team's own GPUs may be too few, where it states none."""
NODE_FAIL = "NODE_FAIL"
HARDWARE_XIDS = (
    46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, *range(144, 151), 155, 156, 158, 160,
)  # fmt: skip
"""Errors after which a board is reset, its links are looked at or its machine starts anew [1]_; others, such as 13, 31
and 94, cost at most the work that runs.

.. [1] NVIDIA, Analyzing Xid Errors with the Xid Catalog, column *Immediate Action* (docs.nvidia.com/deploy/xid-errors);
   the same actions stand in NVIDIA/NVSentinel, ``xiderrorsmapping.csv`` at 6f8b0fc; both read 2026-11-27.
"""


@dataclass(frozen=True, eq=False)
class QuotaAdvice:
    """What teams should have, from sample paths of what runs and what will come.

    - ``quotas``: A row a team: its quota now, the share of the hours in which that will be too little, the risk that it
      states, the quota for that risk, in whole GPUs, so that less is expected
      then, and what that costs the others.
    - ``steps``: What each step between the two costs the others: GPU-hours a week that they borrow today and that the
      team would take back while the fleet is full.
    - ``budgets``: GPU-hours of the month against the budget, and when it is used up, of teams that have one.
    - ``checkpoints``: By team the interval between checkpoints by Young's formula and by Daly's, and the share of its
      hours that failures and checkpoints then take; failures are as often as data show, else as in the literature.
    - ``notes``: What the figures rest on.
    """

    quotas: pl.DataFrame
    steps: pl.DataFrame
    budgets: pl.DataFrame
    checkpoints: pl.DataFrame
    notes: tuple[str, ...]

    @property
    def told(self) -> tuple[tuple[str, pl.DataFrame], ...]:
        """The tables that say something, each with what it says."""
        titles = {
            "quotas": "Quota for the risk that a team accepts, and GPU-hours a week that it takes from others at "
            "full capacity",
            "steps": "Cost of each quota step to the other teams",
            "budgets": "GPU-hours of the month against budgets, and the date when a budget is used up",
            "checkpoints": "Checkpoint interval of lowest cost, by team (minutes of work)",
        }
        told = ((title, getattr(self, name)) for name, title in titles.items())
        return tuple((title, table) for title, table in told if table.height)

    def to_dict(self) -> dict[str, Any]:
        """The object of ``--json``."""
        tables = ("quotas", "steps", "budgets", "checkpoints")
        return {name: getattr(self, name).to_dicts() for name in tables} | {"notes": list(self.notes)}


@stage
def quota_advice(scenario: Scenario) -> QuotaAdvice:
    """Look ahead over the horizon of the scenario, and over the rest of the month for budgets."""
    known = history(scenario)
    rules = rules_of(scenario, known)
    teams = sorted({*demand_by_view(scenario)["rightsized"]["tenant"].unique(), *(one.name for one in rules.teams)})
    paths = _gpus(scenario, teams, known.fleet.gpu_model)
    quotas, steps = quotas_for(rules, teams, paths, float(known.fleet.gpus))
    notes = (
        f"Quotas cover {scenario.horizon_intervals * scenario.interval_hours:,.0f} hours ahead on {len(paths)} sample "
        "paths of right-sized demand; slices count the larger of their shares of compute and memory.",
    )
    return QuotaAdvice(quotas, steps, _budgets(scenario, rules), _checkpoints(scenario, rules), notes)


def _gpus(scenario: Scenario, teams: list[str], gpu_model: GpuModel) -> Floats:
    """Sample paths of the GPUs of each team, as quotas count them [path, team, slot]."""
    profiles = demand_by_view(scenario)["rightsized"]["profile"].unique().sort().to_list()
    share = np.array([1.0 if name == WHOLE_GPU else quota_share(gpu_model, name) for name in profiles])
    return np.asarray(np.einsum("ktps,p->kts", demand_paths(scenario, teams, profiles), share))


def quota_at(own: Floats, risk: float) -> int:
    """The fewest GPUs of which the demand asks for more in at most such a share of all hours and paths.

    Examples
    --------
    >>> quota_at(np.arange(1.0, 21.0), 0.1)
    18
    """
    return math.ceil(order_statistic(own.ravel(), 1.0 - risk) - 1e-9)


def quotas_for(
    rules: SharingRules, teams: list[str], paths: Floats, fleet_gpus: float
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The tables ``quotas`` and ``steps`` of :class:`QuotaAdvice`; paths of GPUs by path, team and slot.

    Examples
    --------
    >>> paths = np.array([[[1.0, 2.0, 3.0, 8.0], [4.0, 4.0, 4.0, 4.0]]])
    >>> found, steps = quotas_for(SharingRules(), ["a", "b"], paths, 10.0)
    >>> found["team", "gpus_for_risk"].rows()
    [('a', 8), ('b', 4)]
    """
    full = paths.sum(axis=1) > fleet_gpus
    rows, steps = [], []
    for number, name in enumerate(teams):
        one, own = rules.of(name), paths[:, number]
        risk = RISK if one.risk is None else one.risk
        needed = quota_at(own, risk)
        now = one.gpus
        more = None if now is None else _taken(own, full, now, needed)
        rows.append(
            {
                "team": name, "gpus_now": now, "risk_now": None if now is None else float((own > now + 1e-9).mean()),
                "risk_stated": risk, "gpus_for_risk": needed,
                "risk_then": float((own > needed + 1e-9).mean()), "costs_others_gpu_hours_week": more,
            }
        )  # fmt: skip
        begin = 0.0 if now is None else now
        for each in np.unique(np.round(np.linspace(begin, needed, 6))).tolist():
            if each > begin:
                left = float((own > each + 1e-9).mean())
                steps.append((name, each, left, _taken(own, full, begin, each)))
    names = ("gpus", "risk", "costs_others_gpu_hours_week")
    schema = {"team": pl.String, **dict.fromkeys(names, pl.Float64)}
    return pl.DataFrame(rows, infer_schema_length=None), pl.DataFrame(steps, schema=schema, orient="row")


def _taken(own: Floats, full: NDArray[np.bool_], now: float, then: float) -> float:
    """GPU-hours a week that a team has of its own with a larger quota, and not with the one before, in full hours."""
    more = np.clip(own, 0.0, then) - np.clip(own, 0.0, now)
    return float((more * full).mean() * HOURS_PER_WEEK)


def _budgets(scenario: Scenario, rules: SharingRules) -> pl.DataFrame:
    """GPU-hours of the calendar month that the plan begins in, against the budgets of teams that have one."""
    figures = ("budget_gpu_hours", "used_gpu_hours", "used_share", "month_share", "expected_gpu_hours")
    dates = dict.fromkeys(("exhausted_on", "early", "late"), pl.Datetime("us", "UTC"))
    schema: dict[str, Any] = {"team": pl.String, **dict.fromkeys(figures, pl.Float64)}
    schema |= {**dates, "chance": pl.Float64}
    stated = {one.name: one.gpu_hours_per_month for one in rules.teams if one.gpu_hours_per_month is not None}
    if not stated:
        return pl.DataFrame(schema=schema)
    known = history(scenario)
    here = known.plan_start.astimezone(ZoneInfo(scenario.tz))
    begin = here.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    end = (begin + timedelta(days=32)).replace(day=1)
    slots = max(math.ceil((end - here) / timedelta(hours=scenario.interval_hours)), 1)
    teams = sorted(stated)
    ahead = _gpus(scenario.but(horizon_intervals=slots), teams, known.fleet.gpu_model) * scenario.interval_hours
    rows = []
    for number, name in enumerate(teams):
        used = _held_hours(known.jobs.filter(pl.col("tenant") == name), begin, known.plan_start)
        sums = used + np.cumsum(ahead[:, number], axis=1)
        row = {"team": name, "budget_gpu_hours": stated[name], "used_gpu_hours": used}
        row |= burn_down(sums, stated[name], used, known.plan_start, scenario.interval_hours)
        rows.append(row | {"month_share": (here - begin) / (end - begin)})
    table = pl.DataFrame(rows, infer_schema_length=None)
    return table.select(pl.col(name).cast(kind) for name, kind in schema.items())


def burn_down(sums: Floats, budget: float, used: float, now: datetime, interval_hours: float) -> dict[str, Any]:
    """When sums of GPU-hours, by path and slot, pass a budget: the median, the 5 % and 95 % ends, and how likely.

    A date is None where the budget lasts in more than that share of the paths.

    Examples
    --------
    >>> from datetime import UTC
    >>> found = burn_down(np.array([[2.0, 4.0, 6.0]] * 3), 5.0, 1.0, datetime(2026, 3, 1, tzinfo=UTC), 24.0)
    >>> f"{found['exhausted_on']:%d}", found["chance"]
    ('04', 1.0)
    """
    over = sums > budget
    slot = np.where(over.any(axis=1), over.argmax(axis=1) + 1.0, np.inf)

    def date(share: float) -> datetime | None:
        at = float(np.sort(slot)[max(math.ceil(share * len(slot)) - 1, 0)])
        if used > budget:
            return now
        return None if at == np.inf else now + timedelta(hours=at * interval_hours)

    return {
        "used_share": used / budget if budget else None,
        "expected_gpu_hours": float(sums[:, -1].mean()),
        "exhausted_on": date(0.5), "early": date(0.05), "late": date(0.95), "chance": float(over.any(axis=1).mean()),
    }  # fmt: skip


def _held_hours(jobs: pl.DataFrame, begin: datetime, end: datetime) -> float:
    """GPU-hours that jobs held within a time."""
    low = pl.max_horizontal(pl.col("start_time"), pl.lit(begin))
    high = pl.min_horizontal(pl.col("end_time").fill_null(end), pl.lit(end))
    seconds = (high - low).dt.total_microseconds().clip(lower_bound=0) / 1e6
    began = jobs.filter(pl.col("start_time").is_not_null())
    return float(began.select((seconds * pl.col("gpus")).sum()).item()) / SECONDS_PER_HOUR


def _checkpoints(scenario: Scenario, rules: SharingRules) -> pl.DataFrame:
    """The interval between checkpoints of each team, for the GPUs that its work holds at once in one job."""
    known = history(scenario)
    mtbf_s = mtbf_seen_s(known.trace) or Failures().mtbf_s(1)
    # A checkpoint is taken to be written in a minute where nobody states it.
    write_s = rules.stopping.checkpoint_write_seconds or 60.0
    work = pl.col("gpus") * pl.col("run_s")
    teams = known.jobs.filter(pl.col("gpus") > 0).group_by(team="tenant")
    sizes = teams.agg(gpus_of_a_job=(pl.col("gpus") * work).sum() / work.sum()).drop_nulls().sort("team")
    rows = []
    for name, gpus in sizes.iter_rows():
        mean = mtbf_s / gpus
        young = Checkpoints(write_s=write_s).interval_of(mean)
        daly = daly_s(write_s, mean)
        rows.append(
            {
                "team": name, "gpus_of_a_job": gpus, "job_mtbf_h": mean / SECONDS_PER_HOUR,
                "young_minutes": young / SECONDS_PER_MINUTE, "daly_minutes": daly / SECONDS_PER_MINUTE,
                "lost_share": write_s / daly + daly / (2 * mean),
            }
        )  # fmt: skip
    return pl.DataFrame(rows, infer_schema_length=None)


def mtbf_seen_s(trace: Dataset) -> float | None:
    """Mean time between failures of a GPU [s]; None where nothing failed.

    Failures are jobs that the failure of a node ended, in the time that jobs held GPUs, or errors of hardware that
    telemetry saw (XID), in the time that it saw, whichever come more often: many are seen both ways. An error that
    follows an equal one is not seen.
    """
    times = [found for found in (_mtbf_of_jobs_s(trace.jobs), _mtbf_of_errors_s(trace)) if found is not None]
    return min(times, default=None)


def _mtbf_of_errors_s(trace: Dataset) -> float | None:
    samples, coverage = trace.samples, trace.coverage
    if samples is None or coverage is None or "xid" not in samples.columns:
        return None
    seen = samples.drop_nulls("xid").sort("time", maintain_order=True)
    anew = pl.col("xid") != pl.col("xid").shift(1).over("node", "gpu")
    errors = seen.filter(anew & pl.col("xid").is_in(HARDWARE_XIDS)).height
    return float(coverage["observed_gpu_h"].sum()) * SECONDS_PER_HOUR / errors if errors else None


def _mtbf_of_jobs_s(jobs: pl.DataFrame) -> float | None:
    failed = jobs.filter(pl.col("state").cast(pl.String) == NODE_FAIL).height
    held = (pl.col("end_time") - pl.col("start_time")).dt.total_seconds().fill_null(0) * pl.col("gpus")
    return float(jobs.select(held.sum()).item()) / failed if failed else None


def daly_s(write_s: float, mtbf_s: float) -> float:
    """Daly's optimum of the work between checkpoints [s]; no checkpoint pays off where writing takes twice the MTBF.

    References
    ----------
    J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22 (2006), eq. 37.

    Examples
    --------
    >>> round(daly_s(60.0, 120_000.0))
    3755
    """
    if write_s >= 2 * mtbf_s:
        return mtbf_s
    part = write_s / (2 * mtbf_s)
    return math.sqrt(2 * write_s * mtbf_s) * (1 + math.sqrt(part) / 3 + part / 9) - write_s
