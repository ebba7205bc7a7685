"""Generate the jobs of a planted cluster: arrivals by hour and weekday, long tails, overstated time limits."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl
from queue_simulator import NEVER_S, QueueJobs

HOUR_S, DAY_S, WEEK_S = 3600, 86400, 7 * 86400
RECORD_S = 8 * WEEK_S
WARM_UP_S = WEEK_S
RUN_ON_S = WEEK_S
TENANTS = ("vision", "nlp", "robotics", "bio", "speech", "infra")
TENANT_WEIGHTS = np.arange(1, len(TENANTS) + 1) ** -0.8
USERS_PER_TENANT = 5
HOUR_PERCENTS = "30 22 18 14 12 14 22 45 85 125 150 150 125 140 160 160 150 130 100 80 70 60 50 40"
HOUR_WEIGHTS = np.array(HOUR_PERCENTS.split(), dtype=float) / 100
WEEKDAY_WEIGHTS = np.array([1.05, 1.1, 1.1, 1.1, 0.95, 0.45, 0.4])
MENU_LIMITS_S = np.array([0.25, 0.5, 1, 2, 4, 8, 12, 24, 48, 72, 168]) * HOUR_S
RUN_MEDIANS_S = np.array([360.0, 4300.0, 26000.0])
RUN_SIGMAS = np.array([1.1, 1.2, 0.8])
RUN_WEIGHTS = np.array([0.3, 0.55, 0.15])
MAX_RUN_S = 70 * HOUR_S


@dataclass(frozen=True)
class Demand:
    """Submitted work of one layout over the record."""

    jobs: int  # of the record, roughly
    load: float  # mean GPUs or instances that the jobs use over the record if none waits
    sizes: dict[int, float] = field(default_factory=lambda: {1: 0.66, 2: 0.13, 4: 0.1, 8: 0.09, 16: 0.02})
    layout: int = 0
    weekly_growth: float = 0.0
    weekly_noise: float = 0.08
    urgent_fraction: float = 0.0  # jobs of the partition "urgent"
    low_use_fraction: float = 0.0  # jobs that use a tenth of their GPUs


def generate_jobs(demand: Demand, seed: int, *, node_gpus: int, until_s: int = RECORD_S + RUN_ON_S):
    """Generate jobs from a week before the record on.

    Parameters
    ----------
    demand : Demand
        Work that is submitted.
    seed : int
        Seed of the generator; the same seed gives the same jobs.
    node_gpus : int
        GPUs of a node; larger jobs use several nodes.
    until_s : int
        End of the arrivals, counted from the start of the record. [s]

    Returns
    -------
    polars.DataFrame
        A row for each job.
    """
    rng = np.random.default_rng([seed, demand.layout])
    submit_s, sweep = _arrivals(demand, rng, until_s)
    count = len(submit_s)
    first = np.flatnonzero(np.diff(sweep, prepend=-1))
    member = np.cumsum(np.diff(sweep, prepend=-1) != 0) - 1
    in_sweep = np.bincount(member)[member] > 1

    def shared(values):
        """Give all jobs of a parameter sweep the value of its first job."""
        return values[first][member]

    tenant = shared(rng.choice(len(TENANTS), count, p=TENANT_WEIGHTS / TENANT_WEIGHTS.sum()))
    user_weights = 1 / np.arange(1, USERS_PER_TENANT + 1)
    user = shared(rng.choice(USERS_PER_TENANT, count, p=user_weights / user_weights.sum()))
    hour = submit_s // HOUR_S % 24
    interactive = (rng.random(count) < 0.14) & (hour >= 8) & (hour < 18) & ~in_sweep
    sizes = np.array(list(demand.sizes))
    gpus = rng.choice(sizes, count, p=np.array(list(demand.sizes.values())) / sum(demand.sizes.values()))
    gpus = np.where(interactive | in_sweep, 1, gpus)
    kind = shared(rng.choice(3, count, p=RUN_WEIGHTS))
    base_s = RUN_MEDIANS_S[kind] * np.exp(RUN_SIGMAS[kind] * shared(rng.normal(size=count)))
    base_s *= np.exp(0.15 * rng.normal(size=count)) * np.where(gpus >= 8, 2.0, 1.0)
    base_s = np.where(interactive, 5400 * np.exp(0.9 * rng.normal(size=count)), base_s)

    # Users overstate: by a habit of their own, up to the next limit of the menu; a quarter takes the longest.
    habit = np.exp(rng.normal(0.9, 0.5, (len(TENANTS), USERS_PER_TENANT)))[tenant, user]
    overstated = 1 + habit * rng.exponential(1.0, count)
    careless = rng.random(count) < 0.25
    fate = rng.random(count)
    cut_short = rng.random(count)

    def outcome(scale):
        full_s = np.clip(base_s * scale, 20, MAX_RUN_S)
        limit_s = MENU_LIMITS_S[np.searchsorted(MENU_LIMITS_S, full_s * overstated).clip(max=len(MENU_LIMITS_S) - 1)]
        limit_s = np.where(careless, MENU_LIMITS_S[-1], limit_s)
        run_s = np.where(fate < 0.14, full_s * cut_short**2, np.where(fate < 0.25, full_s * cut_short, full_s))
        timeout = (fate >= 0.25) & (fate < 0.28)
        limit_s = np.where(timeout, full_s // 60 * 60 + 60, limit_s)
        run_s = np.where(timeout, limit_s, run_s)
        return np.maximum(run_s, 20).astype(np.int64), limit_s.astype(np.int64)

    recorded = (submit_s >= 0) & (submit_s < RECORD_S)
    low, high = 0.01, 100.0
    for _ in range(40):
        scale = np.sqrt(low * high)
        load = (gpus * outcome(scale)[0])[recorded].sum() / RECORD_S
        low, high = (scale, high) if load < demand.load else (low, scale)
    run_s, limit_s = outcome(low)

    patience_s = np.exp(rng.normal(np.log(3 * HOUR_S), 1.0, count)).astype(np.int64)
    patience_s = np.where(rng.random(count) < 0.06, np.maximum(patience_s, 5), NEVER_S)
    delay_s = np.exp(rng.normal(np.log(2 * HOUR_S), 0.8, count)).astype(np.int64)
    delay_s = np.where(rng.random(count) < 0.02, delay_s, 0)
    urgent = rng.random(count) < demand.urgent_fraction
    states = np.array(["FAILED", "CANCELLED", "TIMEOUT", "COMPLETED"])
    return pl.DataFrame({
        "submit_s": submit_s,
        "eligible_s": submit_s + delay_s,
        "gpus_per_node": np.minimum(gpus, node_gpus),
        "nodes": np.maximum(1, gpus // node_gpus),
        "run_s": run_s,
        "time_limit_s": limit_s,
        "patience_s": patience_s,
        "tenant": tenant,
        "user": user,
        "layout": np.full(count, demand.layout),
        "boost_s": np.where(urgent, DAY_S, 0),
        "state": states[np.searchsorted([0.14, 0.25, 0.28], fate, side="right")],
        "low_use": rng.random(count) < demand.low_use_fraction,
        "service": np.zeros(count, dtype=bool),
    })  # fmt: skip


def _arrivals(demand: Demand, rng, until_s: int):
    """Return the sorted seconds of submission, and the sweep that each job belongs to."""
    hours = np.arange(-WARM_UP_S // HOUR_S, until_s // HOUR_S)
    week = hours // (24 * 7)
    noise = np.exp(rng.normal(0, demand.weekly_noise, week.max() - week.min() + 1))
    weights = HOUR_WEIGHTS[hours % 24] * WEEKDAY_WEIGHTS[hours // 24 % 7] * noise[week - week.min()]
    weights *= (1 + demand.weekly_growth) ** (hours / (24 * 7))
    recorded = (hours >= 0) & (hours < RECORD_S // HOUR_S)
    jobs_per_event = 1 + 0.012 * 14
    events = rng.poisson(demand.jobs / jobs_per_event * weights / weights[recorded].sum())
    second = np.repeat(hours * HOUR_S, events) + rng.integers(0, HOUR_S, events.sum())
    second.sort()
    members = np.where(rng.random(len(second)) < 0.012, rng.integers(6, 25, len(second)), 1)
    sweep = np.repeat(np.arange(len(second)), members)
    return np.repeat(second, members), sweep


def generate_services(services, seed: int, until_s: int = RECORD_S + RUN_ON_S):
    """Generate replicas of services that follow the day: more by day, few by night and at weekends.

    Parameters
    ----------
    services : sequence of (int, int)
        Replicas by day and by night of each service; a replica uses one GPU.
    seed : int
        Seed of the generator.
    until_s : int
        End of the arrivals, counted from the start of the record. [s]
    """
    rng = np.random.default_rng([seed, 77])
    rows = []
    for service, (day, night) in enumerate(services):
        for replica in range(day):
            if replica < night:
                rows.append((-WARM_UP_S, until_s + WARM_UP_S, service))
                continue
            for midnight in range(-WARM_UP_S, until_s, DAY_S):
                if midnight // DAY_S % 7 >= 5 and replica >= (day + night) // 2:
                    continue
                rank = (replica - night) / (day - night)
                up_s = midnight + int(7.5 * HOUR_S + 1.5 * HOUR_S * rank) + int(rng.integers(0, 240))
                down_s = midnight + int(22 * HOUR_S - 3 * HOUR_S * rank) + int(rng.integers(0, 240))
                rows.append((up_s, down_s - up_s, service))
    submit_s, run_s, service = np.array(rows).T
    jobs = pl.DataFrame({"submit_s": submit_s, "eligible_s": submit_s, "run_s": run_s, "user": service})
    ones = {"gpus_per_node": 1, "nodes": 1, "tenant": len(TENANTS) - 1, "layout": 0, "boost_s": 3 * DAY_S}
    ones |= {"patience_s": NEVER_S, "state": "COMPLETED", "low_use": False, "service": True}
    limit_s = pl.max_horizontal("run_s", pl.lit(30 * DAY_S))
    return jobs.with_columns(time_limit_s=limit_s, **{name: pl.lit(value) for name, value in ones.items()})


def queue_jobs(jobs: pl.DataFrame) -> QueueJobs:
    """Return the arrays that the simulator takes; the frame must be sorted by eligibility."""
    fields = [jobs[name].to_numpy().astype(np.int64) for name in QueueJobs._fields[:-1]]
    requests = jobs.select(pl.struct("layout", "gpus_per_node", "nodes").rank("dense") - 1).to_series()
    return QueueJobs(*fields, requests.to_numpy().astype(np.int64))
