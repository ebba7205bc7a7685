"""Which jobs go to rented GPUs where more is wanted than there is: when, at what price, with their data; which stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.cost.showback import (CENTS)
from gpuplanner.demand.series import occupancy
from gpuplanner.errors import ScenarioError, message
from gpuplanner.files.text import read_yaml
from gpuplanner.files.strict_rows import fault, keys_of, list_of, number_of
from gpuplanner.intervals import waiting_since
from gpuplanner.scenario import Scenario
from gpuplanner.solving.effort import Effort
from gpuplanner.solving.linear import LinearModel
from gpuplanner.solving.solver import solve
from gpuplanner.study.future.money import book_of, on_demand_price
from gpuplanner.study.future.purchase import rented
from gpuplanner.study.past.history import history
from gpuplanner.units import SECONDS_PER_HOUR, money_text, split_exactly
from gpuplanner.units import money as to_cents

KEYS = ("stay", "spot", "data", "move")
DATA = ("tenant", "gib", "source")
MOVE = ("price", "unit", "gbit_per_s", "start_minutes", "source")
GBIT_PER_GIB = 8 * 1.073741824
STAYS, SLOW = "may not leave", "would begin later than here"
LEAST_H = 1e-6
"""Overload of an hour below this many GPU-hours is none."""
Array = NDArray[np.float64]


@dataclass(frozen=True)
class BurstRules:
    """What a file says of leaving.

    - ``stay``, ``spot``: Tenants whose jobs may not leave, and those whose jobs bear interruptions.
    - ``gib``: Data that a job of a tenant takes along [GiB].
    - ``per_gib``, ``currency``: What moving a GiB costs, there and back.
    - ``gbit_per_s``, ``start_minutes``: How fast data move, and how long a rented machine takes to start.
    """

    stay: tuple[str, ...]
    spot: tuple[str, ...]
    gib: Mapping[str, float]
    per_gib: float
    currency: str
    gbit_per_s: float
    start_minutes: float
    source: str


@dataclass(frozen=True, eq=False)
class BurstPlan:
    """Jobs that go out so that what stays fits, at the least cost.

    - ``jobs``: ``job_id, tenant, submit_time, gpus, hours, kind, begins_minutes, gib, cost``, by submission.
    - ``stays``: ``reason, jobs, gpu_hours`` of the jobs of overloaded hours that cannot leave.
    - ``over_gpu_hours``, ``left_gpu_hours``: Wanted beyond what is installed, hour by hour, and what stays of it.
    - ``total``, ``gap``: What it costs, and by how much of it another choice could be cheaper.
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
    def sentence(self) -> str:
        """How much was wanted beyond what there is, and what goes out for how much."""
        return (
            f"{self.over_gpu_hours:,.1f} GPU-hours were wanted beyond what is installed; {self.jobs.height:,} jobs go "
            f"out for {money_text(self.total, self.currency)} {self.currency} (gap {self.gap:.2%}), "
            f"{self.left_gpu_hours:,.1f} GPU-hours stay over."
        )


def read_burst(path: str | Path) -> BurstRules:
    """Read the rules of leaving: lists ``stay``, ``spot`` and ``data``, and ``move``; see :class:`BurstRules`."""
    name = Path(path).name
    top = keys_of(read_yaml(path), KEYS, f"{name}, the file", 1, needed=("move",))
    data = list_of(top, "data", name)
    rows = [keys_of(one, DATA, f"{name}, data", line, needed=DATA) for one, line in data]
    move = keys_of(top["move"], MOVE, f"{name}, move", 1, needed=MOVE)
    currency, _, per = str(move["unit"]).partition(" per ")
    if per != "GiB":
        raise fault(name, move.lines["unit"], "unit 'USD per GiB'", repr(move["unit"]))
    return BurstRules(
        stay=tuple(str(one) for one, _ in list_of(top, "stay", name)),
        spot=tuple(str(one) for one, _ in list_of(top, "spot", name)),
        gib={str(row["tenant"]): number_of(row, "gib", name, 0, 1e9) for row in rows},
        per_gib=number_of(move, "price", name, 0, 1e4),
        currency=currency,
        gbit_per_s=number_of(move, "gbit_per_s", name, 1e-6, 1e6),
        start_minutes=number_of(move, "start_minutes", name, 0, 1e5),
        source=str(move["source"]),
    )


def burst_plan(scenario: Scenario, rules: BurstRules) -> BurstPlan:
    """Choose the jobs of the month whose leaving costs least and lets the others begin when they are submitted.

    What is wanted is counted hour by hour, each job from its submission for as long as it ran; where jobs fit on nodes
    is not looked at.
    """
    known = history(scenario)
    price = on_demand_price(scenario, known.fleet, "burst")
    rent = rented(scenario, known, price.value, 1.0 if rules.spot else 0.0)
    per_gib = book_of(scenario).converted(rules.per_gib, rules.currency, scenario.currency, known.end)
    tenant, hours = pl.col("tenant").cast(pl.String), pl.col("run_s").fill_null(0.0) / SECONDS_PER_HOUR
    gib = tenant.replace_strict(dict(rules.gib), default=0.0, return_dtype=pl.Float64)
    spot = tenant.is_in(list(rules.spot))
    per_hour = pl.when(spot).then(rent.spot_price).otherwise(rent.on_demand)
    begins = rules.start_minutes + gib * GBIT_PER_GIB / rules.gbit_per_s / 60
    waited = (pl.col("start_time").fill_null(known.end) - waiting_since()).dt.total_seconds() / 60
    jobs = known.jobs.select(
        "job_id", tenant.alias("tenant"), "submit_time", "gpus", hours=hours,
        kind=pl.when(spot).then(pl.lit("spot")).otherwise(pl.lit("on_demand")), begins_minutes=begins, gib=gib,
        cost=pl.col("gpus") * (hours + rules.start_minutes / 60) * per_hour + gib * per_gib,
        from_h=(pl.col("submit_time") - known.begin).dt.total_seconds() / SECONDS_PER_HOUR,
        reason=pl.when(tenant.is_in(list(rules.stay))).then(pl.lit(STAYS)).when(begins >= waited).then(pl.lit(SLOW)),
    )  # fmt: skip
    begin, length, gpus, cost = (jobs[name].to_numpy() for name in ("from_h", "hours", "gpus", "cost"))
    until = int((known.end - known.begin).total_seconds() // SECONDS_PER_HOUR)
    over = wanted(begin, length, gpus, until) - known.fleet.installed.gpus
    effort = Effort.begin(**scenario.effort)
    free = jobs["reason"].is_null().to_numpy()
    leave, left, bound = leavers(begin, length, gpus, cost, free, over, effort, gap=scenario.gap_target)
    out = jobs.filter(leave)
    exact = out["cost"].to_list()
    total, best = to_cents(sum(exact)), float(sum(exact))
    busy = np.flatnonzero(over > LEAST_H)
    there = np.zeros(len(free), bool)
    for hour in busy:
        there |= (begin < hour + 1) & (begin + length > hour)
    held = jobs.filter(there & ~free).group_by("reason").agg(
        jobs=pl.len(), gpu_hours=(pl.col("gpus") * pl.col("hours")).sum()
    )  # fmt: skip
    return BurstPlan(
        jobs=out.with_columns(cost=pl.Series(split_exactly(total, exact), dtype=CENTS))
        .drop("from_h", "reason").sort("submit_time", "job_id"),
        stays=held.sort("reason"),
        over_gpu_hours=float(over[busy].sum()),
        left_gpu_hours=left,
        total=total,
        gap=max(best - bound, 0.0) / best if best else 0.0,
        currency=scenario.currency,
        notes=(f"Rent: {price.source}.", f"Moving data: {rules.source}."),
    )  # fmt: skip


def leavers(
    begin: Array, hours: Array, gpus: Array, cost: Array, free: NDArray[np.bool_], over: Array, effort: Effort,
    *, gap: float,
) -> tuple[NDArray[np.bool_], float, float]:  # fmt: skip
    """Jobs whose leaving covers the overload of each hour at the least cost, what is left of it, and a bound.

    Examples
    --------
    Two jobs of four GPUs overload one hour by three: the cheaper one goes.

    >>> one = np.ones(2)
    >>> found, left, bound = leavers(0 * one, one, 4 * one, np.array([9.0, 7.0]), one > 0, np.array([3.0]),
    ...                              Effort.begin(), gap=0.0)
    >>> found.tolist(), left, round(bound, 3)
    ([False, True], 0.0, 7.0)
    """
    rows, left = [], 0.0
    for hour in np.flatnonzero(over > LEAST_H):
        shared = np.minimum(begin + hours, hour + 1) - np.maximum(begin, hour)
        mine = np.flatnonzero(free & (shared > 0))
        share = gpus[mine] * shared[mine]
        left += max(float(over[hour] - share.sum()), 0.0)
        rows.append((int(hour), mine, share, min(float(over[hour]), float(share.sum()))))
    movable = np.unique(np.concatenate([mine for _, mine, _, _ in rows])) if rows else np.zeros(0, np.int64)
    model = LinearModel()
    model.add_columns([f"j{job}" for job in movable], cost=cost[movable], high=np.ones(len(movable)))
    for number, mine, share, much in rows:
        model.add_row(f"h{number}", np.searchsorted(movable, mine), share, ">=", much - LEAST_H)
    found = solve(model, effort, gap=gap)
    if found.values is None:
        todo = "Give more work with --work-limit, or fewer jobs."
        raise ScenarioError(message("burst", "a choice of jobs", found.status, todo))
    leave = np.zeros(len(begin), bool)
    leave[movable[found.values > 0.5]] = True
    return leave, left, -np.inf if found.bound is None else found.bound


def wanted(begin: Array, hours: Array, gpus: Array, until: int) -> Array:
    """GPUs wanted on average in each of the hours from 0, by the exact integral.

    Examples
    --------
    >>> wanted(np.array([-1.0, 0.5]), np.array([1.5, 2.0]), np.array([4.0, 2.0]), 3).tolist()
    [3.0, 2.0, 1.0]
    """
    end = begin + hours
    return np.asarray(occupancy(begin, end, gpus, np.zeros(len(begin), np.int64), 1, until)[0])
