"""Burst plan: jobs that run on rented GPUs while the installed GPUs are full."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.errors import ScenarioError, examples, suggest_name
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.serialization import make_file_error, read_list, read_number, read_rows, read_yaml, require_keys
from gpuplanner.core.step_functions import waiting_since
from gpuplanner.core.units_and_number_formats import SECONDS_PER_HOUR, money_text, percent_text, split_amount
from gpuplanner.core.units_and_number_formats import round_money as to_cents
from gpuplanner.cost.period_costs import load_price_book, require_on_demand_rate
from gpuplanner.cost.showback import CENTS_DTYPE
from gpuplanner.decision.purchase_and_refresh_plans import find_billing_terms, price_rented_gpus
from gpuplanner.planner.linear_programs_and_search_limits import LinearModel, SearchEffort
from gpuplanner.planner.milp_solvers import solve
from gpuplanner.usage.planning_history import history
from gpuplanner.usage.requested_demand import mean_occupancy

BURST_FILE_KEYS = ("stay", "spot", "data", "move")
"""Keys of a file of burst rules: which tenants' jobs may run on rented GPUs, and the cost of moving their data."""
BURST_DATA_KEYS = ("tenant", "gib", "source")
"""Keys of an entry of ``data`` in a file of burst rules: data that jobs of a tenant transfer."""
BURST_MOVE_KEYS = ("price", "unit", "gbit_per_s", "start_minutes", "source")
"""Keys of ``move`` in a file of burst rules: price, rate and source of data transfers."""
REASON_MAY_NOT_LEAVE, REASON_BEGINS_LATER = "may not leave", "would begin later than here"
"""Reasons why a job stays: its tenant's data may not leave, or it would start later on rented GPUs."""
OVERLOAD_TOLERANCE_GPU_HOURS = 1e-6
"""Rounding tolerance of the demand above the installed capacity in an hour [GPU h]."""
Array = NDArray[np.float64]
"""Array of float."""


@dataclass(frozen=True)
class BurstRules:
    """Rules by which jobs may run on rented GPUs when the fleet is full (burst), read from a file.

    - ``pinned_tenants``, ``spot_tenants``: Tenants whose jobs may not leave, and tenants whose jobs tolerate
      interruptions.
    - ``gib_per_job``: Data that a job of a tenant transfers [GiB].
    - ``price_per_gib``, ``currency``: Price of transferring a GiB, there and back.
    - ``gbit_per_s``, ``start_minutes``: Transfer rate, and how long a rented machine takes to start.
    - ``source``: Source of the transfer price.
    """

    pinned_tenants: tuple[str, ...]
    spot_tenants: tuple[str, ...]
    gib_per_job: Mapping[str, float]
    price_per_gib: float
    currency: str
    gbit_per_s: float
    start_minutes: float
    source: str


@dataclass(frozen=True, eq=False)
class BurstPlan:
    """Jobs to run on rented GPUs (burst) at the least cost, so that the remaining jobs fit on the installed GPUs.

    - ``jobs``: ``job_id, tenant, submit_time, gpus, hours, kind, begins_minutes, gib, cost``, by submission.
    - ``stays``: ``reason, jobs, gpu_hours`` of the jobs of overloaded hours that cannot leave.
    - ``over_gpu_hours``, ``left_gpu_hours``: Demand above the installed capacity, hour by hour, and what remains of it.
    - ``total``, ``gap``: Cost, and the optimality gap as a fraction of it.
    - ``currency``, ``notes``: Currency of all amounts, and sentences on prices.
    """

    jobs: pl.DataFrame
    stays: pl.DataFrame
    over_gpu_hours: float
    left_gpu_hours: float
    total: Decimal
    gap: float
    currency: str
    notes: tuple[str, ...]

    @property
    def advice_sentence(self) -> str:
        """Demand above the installed capacity, and the jobs to send out with their cost."""
        return (
            f"Demand above the installed capacity: {self.over_gpu_hours:,.1f} GPU-hours. Send {self.jobs.height:,} "
            f"jobs to rented GPUs for {money_text(self.total, self.currency)} {self.currency} (optimality gap "
            f"{percent_text(self.gap, '.2f')}); {self.left_gpu_hours:,.1f} GPU-hours stay above."
        )


def read_burst_rules(path: str | Path) -> BurstRules:
    """Read burst rules: lists ``stay``, ``spot`` and ``data``, and ``move``; see :class:`BurstRules`."""
    name = Path(path).name
    document = require_keys(read_yaml(path), BURST_FILE_KEYS, f"{name}, the file", 1, required_keys=("move",))
    [rows] = read_rows(document, {"data": (BURST_DATA_KEYS, BURST_DATA_KEYS)}, name)
    move = require_keys(document["move"], BURST_MOVE_KEYS, f"{name}, move", 1, required_keys=BURST_MOVE_KEYS)
    currency, _, quantity = str(move["unit"]).partition(" per ")
    if quantity != "GiB":
        raise make_file_error(name, move.lines["unit"], "unit 'USD per GiB'", repr(move["unit"]))
    return BurstRules(
        pinned_tenants=tuple(str(entry) for entry, _ in read_list(document, "stay", name)),
        spot_tenants=tuple(str(entry) for entry, _ in read_list(document, "spot", name)),
        gib_per_job={str(row["tenant"]): read_number(row, "gib", name, 0, 1e9) for row, _ in rows},
        price_per_gib=read_number(move, "price", name, 0, 1e4),
        currency=currency,
        gbit_per_s=read_number(move, "gbit_per_s", name, 1e-6, 1e6),
        start_minutes=read_number(move, "start_minutes", name, 0, 1e5),
        source=str(move["source"]),
    )


def _require_known_teams(rules: BurstRules, teams: pl.Series) -> None:
    """Raise an error for the teams of burst rules that no job has: a misspelled team would be free to leave."""
    named = {"stay": rules.pinned_tenants, "spot": rules.spot_tenants, "data": rules.gib_per_job}
    unknown = [
        f"{key} {name!r}{suggest_name(name, teams)}"
        for key, names in named.items()
        for name in names
        if name not in teams
    ]
    if unknown:
        todo = "Correct the teams in the file, or remove those without jobs."
        raise ScenarioError("burst rules", f"teams with jobs, {examples(teams.to_list())}", "; ".join(unknown), todo)


def plan_burst(scenario: Scenario, rules: BurstRules) -> BurstPlan:
    """Choose the jobs of the month to run on rented GPUs at least cost, so that the others start when submitted.

    Demand is counted hour by hour, each job from its submission for its run time; fragmentation on nodes is ignored.

    Parameters
    ----------
    scenario : Scenario
        Data, prices and limits of the search.
    rules : BurstRules
        Which jobs may leave, and cost and speed of the transfer.

    Returns
    -------
    BurstPlan

    Raises
    ------
    ScenarioError
        If a team of the rules has no job in the data.
    """
    job_history = history(scenario)
    _require_known_teams(rules, job_history.trace.jobs["tenant"].cast(pl.String).unique().drop_nulls().sort())
    period = (job_history.begin, job_history.end)
    price = require_on_demand_rate(scenario, job_history, "burst", period).price
    rent_terms = price_rented_gpus(scenario, job_history, price.value, 1.0 if rules.spot_tenants else 0.0, period)
    per_gib = load_price_book(scenario).convert(rules.price_per_gib, rules.currency, scenario.currency, job_history.end)
    tenant, hours = pl.col("tenant").cast(pl.String), pl.col("run_s").fill_null(0.0) / SECONDS_PER_HOUR
    gib = tenant.replace_strict(dict(rules.gib_per_job), default=0.0, return_dtype=pl.Float64)
    spot = tenant.is_in(list(rules.spot_tenants))
    terms = {kind: find_billing_terms(scenario, job_history, kind, period) for kind in ("spot", "on_demand")}
    rented_hours = hours + rules.start_minutes / 60
    billed_hours = (
        pl.when(spot)
        .then(terms["spot"].bill_hours(rented_hours))
        .otherwise(terms["on_demand"].bill_hours(rented_hours))
    )
    per_hour = pl.when(spot).then(rent_terms.spot_price).otherwise(rent_terms.on_demand)
    gbit_per_gib = 8 * 1.073741824
    start_minutes = rules.start_minutes + gib * gbit_per_gib / rules.gbit_per_s / 60
    waited_minutes = (pl.col("start_time").fill_null(job_history.end) - waiting_since()).dt.total_seconds() / 60
    jobs = job_history.jobs.select(
        "job_id", tenant.alias("tenant"), "submit_time", "gpus", hours=hours,
        kind=pl.when(spot).then(pl.lit("spot")).otherwise(pl.lit("on_demand")), begins_minutes=start_minutes, gib=gib,
        cost=pl.col("gpus") * billed_hours * per_hour + gib * per_gib,
        from_h=(pl.col("submit_time") - job_history.begin).dt.total_seconds() / SECONDS_PER_HOUR,
        reason=pl.when(tenant.is_in(list(rules.pinned_tenants))).then(pl.lit(REASON_MAY_NOT_LEAVE))
        .when(start_minutes >= waited_minutes).then(pl.lit(REASON_BEGINS_LATER)),
    )  # fmt: skip
    begin, length, gpus, cost = (jobs[name].to_numpy() for name in ("from_h", "hours", "gpus", "cost"))
    n_hours = int((job_history.end - job_history.begin).total_seconds() // SECONDS_PER_HOUR)
    overload = mean_demand_by_hour(begin, length, gpus, n_hours) - job_history.fleet.installed.gpus
    effort = SearchEffort.begin(**scenario.search_limits)
    may_leave = jobs["reason"].is_null().to_numpy()
    leaves, left_gpu_hours, bound = choose_leaving_jobs(
        begin, length, gpus, cost, may_leave, overload, effort, gap=scenario.gap_target
    )
    leaving_jobs = jobs.filter(leaves)
    exact_costs = leaving_jobs["cost"].to_list()
    total, total_cost = to_cents(sum(exact_costs)), float(sum(exact_costs))
    overloaded_hours = np.flatnonzero(overload > OVERLOAD_TOLERANCE_GPU_HOURS)
    in_overload = np.zeros(len(may_leave), bool)
    for hour in overloaded_hours:
        in_overload |= (begin < hour + 1) & (begin + length > hour)
    gpu_hours = (pl.col("gpus") * pl.col("hours")).sum()
    staying_jobs = (
        jobs.filter(in_overload & ~may_leave)
        .group_by("reason", maintain_order=True)
        .agg(jobs=pl.len(), gpu_hours=gpu_hours)
    )
    return BurstPlan(
        jobs=leaving_jobs.with_columns(cost=pl.Series(split_amount(total, exact_costs), dtype=CENTS_DTYPE))
        .drop("from_h", "reason").sort("submit_time", "job_id"),
        stays=staying_jobs.sort("reason"),
        over_gpu_hours=float(overload[overloaded_hours].sum()),
        left_gpu_hours=left_gpu_hours,
        total=total,
        gap=max(total_cost - bound, 0.0) / total_cost if total_cost else 0.0,
        currency=scenario.currency,
        notes=(
            f"Rent: {price.source}.",
            *(f"Rent {kind.replace('_', ' ')} is billed {term.text}." for kind, term in terms.items() if term.text),
            f"Moving data: {rules.source}.",
        ),
    )  # fmt: skip


def choose_leaving_jobs(
    start_h: Array, run_h: Array, gpus: Array, cost: Array, may_leave: NDArray[np.bool_], overload: Array,
    effort: SearchEffort, *, gap: float,
) -> tuple[NDArray[np.bool_], float, float]:  # fmt: skip
    """Choose the jobs whose leaving covers the overload of each hour at the least cost.

    Parameters
    ----------
    start_h, run_h : array of float, shape (n_jobs,)
        Start after the begin of the record, and run time [h].
    gpus, cost : array of float, shape (n_jobs,)
        GPUs, and cost of running the job on rented GPUs [currency].
    may_leave : array of bool, shape (n_jobs,)
        Jobs that can be chosen.
    overload : array of float, shape (n_hours,)
        Demand above the installed capacity in each hour [GPUs].
    effort : SearchEffort
        Limits of the search.
    gap : float
        Optimality gap at which the search ends.

    Returns
    -------
    leaves : array of bool, shape (n_jobs,)
        Jobs chosen.
    left_gpu_hours : float
        Overload that no choice covers [GPU h].
    bound : float
        Lower bound of the cost.

    Examples
    --------
    Two jobs of four GPUs overload one hour by three: the cheaper one goes.

    >>> one = np.ones(2)
    >>> found, left, bound = choose_leaving_jobs(0 * one, one, 4 * one, np.array([9.0, 7.0]), one > 0, np.array([3.0]),
    ...                              SearchEffort.begin(), gap=0.0)
    >>> found.tolist(), left, round(bound, 3)
    ([False, True], 0.0, 7.0)
    """
    rows, left_gpu_hours = [], 0.0
    for hour in np.flatnonzero(overload > OVERLOAD_TOLERANCE_GPU_HOURS):
        overlap_h = np.minimum(start_h + run_h, hour + 1) - np.maximum(start_h, hour)
        jobs_in_hour = np.flatnonzero(may_leave & (overlap_h > 0))
        gpu_hours = gpus[jobs_in_hour] * overlap_h[jobs_in_hour]
        left_gpu_hours += max(float(overload[hour] - gpu_hours.sum()), 0.0)
        rows.append((int(hour), jobs_in_hour, gpu_hours, min(float(overload[hour]), float(gpu_hours.sum()))))
    in_overload = [jobs_in_hour for _, jobs_in_hour, _, _ in rows]
    movable = np.unique(np.concatenate(in_overload)) if rows else np.zeros(0, np.int64)
    model = LinearModel()
    model.add_columns([f"j{job}" for job in movable], cost=cost[movable], high=np.ones(len(movable)))
    for number, jobs_in_hour, gpu_hours, required in rows:
        columns = np.searchsorted(movable, jobs_in_hour)
        model.add_row(f"h{number}", columns, gpu_hours, ">=", required - OVERLOAD_TOLERANCE_GPU_HOURS)
    solution = solve(model, effort, gap=gap)
    if solution.values is None:
        todo = "Give more work with --work-limit, or fewer jobs."
        raise ScenarioError("burst", "a choice of jobs", solution.status, todo)
    leave = np.zeros(len(start_h), bool)
    leave[movable[solution.values > 0.5]] = True
    return leave, left_gpu_hours, -np.inf if solution.bound is None else solution.bound


def mean_demand_by_hour(start_h: Array, run_h: Array, gpus: Array, n_hours: int) -> Array:
    """Average the GPUs demanded in each of the first hours, by the exact integral.

    Parameters
    ----------
    start_h, run_h : array of float, shape (n_jobs,)
        Start and run time [h].
    gpus : array of float, shape (n_jobs,)
        GPUs of each job.
    n_hours : int
        Hours, from 0.

    Returns
    -------
    array of float, shape (n_hours,)
        GPUs.

    Examples
    --------
    >>> mean_demand_by_hour(np.array([-1.0, 0.5]), np.array([1.5, 2.0]), np.array([4.0, 2.0]), 3).tolist()
    [3.0, 2.0, 1.0]
    """
    return np.asarray(mean_occupancy(start_h, start_h + run_h, gpus, np.zeros(len(start_h), np.int64), 1, n_hours)[0])
