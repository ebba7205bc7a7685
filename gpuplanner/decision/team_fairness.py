"""Fair share of teams: GPU-hours entitled to and allocated, and the slowdown of jobs by sharing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.errors import SchemaError
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.serialization import from_plain, to_plain
from gpuplanner.core.stage_cache_and_data_folders import stage
from gpuplanner.core.units_and_number_formats import (
    SECONDS_PER_HOUR,
    day_text,
    last_day_text,
    percent_text,
    waiting_hours_text,
)
from gpuplanner.decision.explained_waits import CAUSE_TEXTS
from gpuplanner.decision.policy_comparison import load_policy_simulation
from gpuplanner.decision.requested_jobs import JobReplayInputs
from gpuplanner.decision.sharing_rules import SharingRules, entitled_gpus, quota_share, read_sharing_rules
from gpuplanner.decision.wait_causes import CAUSES, INSUFFICIENT
from gpuplanner.simulator.simulation_inputs import NodeFleet, NodeRequests
from gpuplanner.simulator.simulation_run import simulate_requests
from gpuplanner.simulator.simulation_state import QUOTA_UNITS_PER_GPU
from gpuplanner.usage.fair_share import (
    NO_TENANT_LABEL,
    Claims,
    borrowed_hours,
    jain_index,
    lent_hours,
    shares_over_time,
    tenant_accounts,
)

Schedule = Callable[[pl.DataFrame, int], pl.DataFrame]
"""Function that simulates jobs on a number of GPUs and returns their outcomes (times of start and end)."""


def isolated_outcomes(jobs: pl.DataFrame, entitled: Mapping[str, float], run: Schedule) -> pl.DataFrame:
    """Run the jobs of every tenant alone on its entitled GPUs.

    A job that requests more than the tenant's share runs on the full share and takes longer in proportion (limits too),
    as perfect scaling has it. Shares are rounded down to full GPUs, but never below one.

    Parameters
    ----------
    jobs : polars.DataFrame
        Jobs to simulate: ``tenant, gpus, run_s`` and more.
    entitled : mapping of str to float
        GPUs of each tenant; 1/n of the cluster in the definition of Themis.
    run : callable
        Schedules jobs on a number of GPUs, by the same rules as the shared run.

    Returns
    -------
    polars.DataFrame
        The outcomes of all tenants.

    Raises
    ------
    SchemaError
        If a tenant has no entitlement.

    References
    ----------
    K. Mahajan et al., Themis: Fair and efficient GPU cluster scheduling, NSDI 2020, section 3.

    Examples
    --------
    >>> def run(jobs, gpus):
    ...     return jobs.select("job_id", "tenant", jct_s=pl.col("run_s"))
    >>> jobs = pl.DataFrame({"job_id": ["a"], "tenant": ["x"], "gpus": [4], "run_s": [60.0]})
    >>> isolated_outcomes(jobs, {"x": 2.0}, run).rows()
    [('a', 'x', 120.0)]
    """
    tenants = jobs["tenant"].unique().sort()
    without = [tenant for tenant in tenants if not entitled.get(tenant, 0.0) > 0]
    if without:
        expected = "a quota above 0 for every team"
        todo = "Give every team a quota in quotas.yaml, or leave out its jobs."
        raise SchemaError("finish-time fairness", expected, f"none for {without}", todo)
    parts = []
    for tenant in tenants:
        gpus = max(1, math.floor(entitled[tenant] + 1e-9))
        slowdown = (pl.col("gpus") / gpus).clip(lower_bound=1.0)
        times = [name for name in ("run_s", "limit_s") if name in jobs.columns]
        capped_gpus = pl.col("gpus").clip(upper_bound=gpus)
        parts.append(run(jobs.filter(tenant=tenant).with_columns(pl.col(times) * slowdown, capped_gpus), gpus))
    return pl.concat(parts)


def finish_time_fairness(shared: pl.DataFrame, isolated: pl.DataFrame) -> pl.DataFrame:
    """Compare completion times in the shared cluster with those of every tenant alone.

    ``rho = T_shared / T_isolated``, with T from submission to end: 1 is what sharing promises; above it, the tenant
    would have been better off with its own share.

    Parameters
    ----------
    shared, isolated : polars.DataFrame
        Outcomes of the same jobs: ``job_id, tenant, jct_s``.

    Returns
    -------
    polars.DataFrame
        ``job_id, tenant, shared_jct_s, isolated_jct_s, rho``, in the order of `shared`; rho is null where a
        job did not end in both, or took no time alone.

    Raises
    ------
    SchemaError
        If the jobs are not the same.

    Examples
    --------
    >>> assess_shares = pl.DataFrame({"job_id": ["a", "b"], "tenant": "x", "jct_s": [60.0, 90.0]})
    >>> finish_time_fairness(assess_shares, assess_shares.with_columns(jct_s=60.0))["rho"].to_list()
    [1.0, 1.5]
    """
    if sorted(shared["job_id"]) != sorted(isolated["job_id"]):
        expected, todo = "the same jobs shared and alone", "Run both on the same jobs."
        got = f"{shared.height} and {isolated.height} jobs, not all the same"
        raise SchemaError("finish-time fairness", expected, got, todo)
    shared_times = shared.select("job_id", "tenant", shared_jct_s="jct_s")
    isolated_times = isolated.select("job_id", isolated_jct_s="jct_s")
    both = shared_times.join(isolated_times, on="job_id", how="left", maintain_order="left")
    rho = pl.col("shared_jct_s") / pl.col("isolated_jct_s")
    return both.with_columns(rho=pl.when(pl.col("isolated_jct_s") > 0).then(rho))


def slowdown_by_tenant(fairness: pl.DataFrame) -> pl.DataFrame:
    """Summarize the slowdown of each tenant: mean, p95, maximum and share of slower jobs.

    Parameters
    ----------
    fairness : polars.DataFrame
        From :func:`finish_time_fairness`.

    Returns
    -------
    polars.DataFrame
        ``tenant``, ``jobs`` with a slowdown, ``mean_slowdown``, ``p95_slowdown``, ``max_slowdown`` and
        ``slower_share``, the share of them with rho above 1, sorted by tenant.

    Examples
    --------
    >>> slowdown_by_tenant(pl.DataFrame({"tenant": "x", "rho": [1.0, 3.0]})).row(0)
    ('x', 2, 2.0, 2.9, 3.0, 0.5)
    """
    rho = pl.col("rho")
    p95, late = rho.quantile(0.95, "linear"), (rho > 1).mean()
    tenants = fairness.drop_nulls("rho").group_by("tenant", maintain_order=True)
    slowdowns = tenants.agg(
        jobs=pl.len(), mean_slowdown=rho.mean(), p95_slowdown=p95, max_slowdown=rho.max(), slower_share=late
    )
    return slowdowns.sort("tenant")


UNNAMED_TEAM = "(no team)"
"""Name that stands for the team of jobs that state none."""
NEXT_STEP_BY_CAUSE = {
    "fragmented": "Platform team: fill nodes one by one; team: fewer GPUs per node.",
    "wrong_layout": "Partition GPUs into the instances that jobs request.",
    "queued_behind": "State time limits near the run times, so that backfill starts jobs, or raise the priority.",
    "limits": "Raise the limit of the team, or of its account, partition or QOS.",
    "unexplained": "Add what the record lacks: all jobs of these nodes, and limits of accounts, partitions and QOS.",
}
"""Next step of a team by the largest cause of its waits; for insufficient capacity it depends on quotas as well."""
MIN_SHORTFALL_GPU_HOURS = 0.05
"""Shortfalls up to this count as none [GPU h]."""
MIN_FRAGMENTED_SHARE = 0.1
"""Share of a team's waiting from which fragmentation is the first to reduce while GPUs are idle. [0-1]"""
MIN_SHORTFALL_SHARE = 0.01
"""Share of a team's allocated GPU-hours below which a shortfall or a wait needs no action. [0-1]"""
_FACT_FIELDS = ("basis", "rules", "notes", "mean_slowdown", "max_slowdown", "jain_fair_share_received", "jain_slowdown")
"""Fields of :class:`Fairness` that are not tables."""


@dataclass(frozen=True, eq=False)
class Fairness:
    """How a fleet was shared.

    - ``basis``: Source of starts and ends.
    - ``rules``: Quotas, and their source.
    - ``notes``: Notes on the quotas.
    - ``teams``: A row a team: GPU-hours entitled to, allocated, lent, borrowed and short; share of its fair share that
      it received; hours in which it starved; slowdown of its jobs against a dedicated share (rho); hours of waiting by
      cause, and in GPU-hours; ``why`` its jobs waited and its ``next_step``.
    - ``borrowed``: Pairs of lender and borrower, from :mod:`gpuplanner.usage.fair_share`.
    - ``shares``: Shares over time, from :func:`gpuplanner.usage.fair_share.shares_over_time`.
    - ``mean_slowdown``, ``max_slowdown``: Over all jobs.
    - ``jain_fair_share_received``, ``jain_slowdown``: Jain's index of the received fair shares, and of 1 / mean rho.
    """

    basis: str
    rules: SharingRules
    notes: tuple[str, ...]
    teams: pl.DataFrame
    borrowed: pl.DataFrame
    shares: pl.DataFrame
    mean_slowdown: float | None
    max_slowdown: float | None
    jain_fair_share_received: float | None
    jain_slowdown: float | None

    @property
    def shortfall_sentence(self) -> str:
        """The finding in one sentence."""
        least = MIN_SHORTFALL_SHARE * pl.col("allocated_gpu_hours")
        threshold = pl.max_horizontal(pl.lit(MIN_SHORTFALL_GPU_HOURS), least)
        behind = self.teams.filter(pl.col("shortfall_gpu_hours") > threshold)
        lent = float(self.teams["lent_gpu_hours"].sum())
        if behind.is_empty():
            return (
                "No team was short of its fair share by over 1 % of its use; teams lent each other "
                f"{lent:,.0f} unused GPU-hours."
            )
        were = "was" if behind.height == 1 else "were"
        worst = behind.sort("shortfall_gpu_hours", "tenant", descending=[True, False]).row(0, named=True)
        short, allocated = (float(self.teams[f"{name}_gpu_hours"].sum()) for name in ("shortfall", "allocated"))
        return (
            f"{behind.height} of {self.teams.height} teams {were} short of their fair share by over 1 % of their use: "
            f"{short:,.0f} GPU-hours short ({percent_text(short / allocated)} of allocated), {worst['tenant']} most, "
            f"with {worst['shortfall_gpu_hours']:,.0f}."
        )

    @property
    def _facts(self) -> dict[str, Any]:
        """Return the fields that are not tables as plain values."""
        return {name: to_plain(getattr(self, name)) for name in _FACT_FIELDS}

    def to_dict(self) -> dict[str, Any]:
        """Return the object of ``--json``, without the shares over time."""
        rows = {"teams": self.teams.to_dicts(), "borrowed": self.borrowed.to_dicts()}
        return {"sentence": self.shortfall_sentence} | self._facts | rows

    def to_tables(self) -> dict[str, pl.DataFrame]:
        """Return everything as tables that a study stores."""
        tables = {"teams": self.teams, "team_borrowing": self.borrowed, "team_shares": self.shares}
        return tables | {"team_facts": pl.DataFrame({"facts": [json.dumps(self._facts)]})}

    @classmethod
    def of_tables(cls, tables: Mapping[str, pl.DataFrame]) -> Self | None:
        """Restore the object from the tables of a study; None where the study has none."""
        if "team_facts" not in tables:
            return None
        facts = json.loads(tables["team_facts"]["facts"][0])
        facts |= {"rules": from_plain(SharingRules, facts["rules"]), "notes": tuple(facts["notes"])}
        borrowed, shares = tables["team_borrowing"], tables["team_shares"]
        return cls(teams=tables["teams"], borrowed=borrowed, shares=shares, **facts)


@stage
def assess_fairness(scenario: Scenario) -> Fairness:
    """Account for the GPU-hours that every team was entitled to and received in the recent past.

    Where the source has no starts, they are simulated on today's fleet from the arrivals.
    """
    job_history, inputs, replayed_jobs, _ = load_policy_simulation(scenario)
    rules = read_sharing_rules(scenario, job_history)
    start, end, basis = inputs.start_s, inputs.end_s, "job starts as observed"
    period = f", {day_text(inputs.replay_start)} to {last_day_text(inputs.end.isoformat())}"
    seconds = replayed_jobs.waits.seconds * replayed_jobs.waits.is_evaluated[:, None]
    if inputs.starts_assumed:
        requests = inputs.requests
        start = simulate_requests(requests, inputs.fleet, queue=scenario.queue).start_s
        end, basis = start + requests.run_s, "job starts simulated on today's fleet: the source has none"
        seconds = wait_seconds_until(inputs, start)
    return assess_shares(inputs, rules, start, end, sum_waits_by_team(inputs, seconds), basis + period, scenario.queue)


def team_of_jobs(inputs: JobReplayInputs) -> pl.Series:
    """Return the team name of each job; jobs that state none share one name."""
    return inputs.jobs["tenant"].fill_null(UNNAMED_TEAM).cast(pl.String)


def assess_shares(
    inputs: JobReplayInputs,
    rules: SharingRules,
    start_s: NDArray[np.float64],
    end_s: NDArray[np.float64],
    waits: pl.DataFrame,
    basis: str,
    queue: str,
) -> Fairness:
    """Account for entitled and received GPU-hours of jobs with given starts and ends.

    Parameters
    ----------
    inputs : JobReplayInputs
        Jobs and fleet.
    rules : SharingRules
        Quotas and weights.
    start_s, end_s : array of float, shape (n_jobs,)
        Start and end of each job [s]; NaN: not within the record.
    waits : polars.DataFrame
        Waits by team, from :func:`sum_waits_by_team`.
    basis : str
        Source of starts and ends.
    queue : str
        Queue rule of the isolated runs.

    Returns
    -------
    Fairness
    """
    team, requests = team_of_jobs(inputs), inputs.requests
    # A slice counts against a quota as the larger of its shares of compute and memory.
    parts = [1.0, *(quota_share(inputs.gpu_model, name) for name in inputs.fleet.profiles[1:])]
    units = np.round(QUOTA_UNITS_PER_GPU * np.array(parts)).astype(np.int64)[requests.profile] * requests.total
    entitled, notes = entitled_gpus(rules, team, float(inputs.nodes.total))
    job_id = pl.int_range(len(team), eager=True).cast(pl.String)
    began, ended = (pl.Series(times_s).fill_nan(None) for times_s in (start_s, end_s))
    frame = pl.DataFrame({"job_id": job_id, "tenant": team, "start_s": began, "end_s": ended, "gpus": units})
    ready_s = np.where(start_s < 0, start_s, requests.ready_s)
    frame = frame.with_columns(ready_s=ready_s, run_s=requests.run_s, limit_s=requests.limit_s)
    observed_s = inputs.observed_s
    begun = pl.col("start_s").fill_null(observed_s)
    end = pl.col("end_s").fill_null(pl.max_horizontal(begun, pl.lit(observed_s)))
    jobs = frame.select("tenant", submit_s="ready_s", start_s=begun, end_s=end, wanted="gpus", held="gpus")
    claims = Claims(jobs, QUOTA_UNITS_PER_GPU, (0.0, observed_s))
    rho = _slowdown_of_jobs(frame, {name: gpus * QUOTA_UNITS_PER_GPU for name, gpus in entitled.items()}, queue)
    slowdowns, borrowing = slowdown_by_tenant(rho), borrowed_hours(claims, entitled)
    lent = pl.DataFrame(lent_hours(claims, entitled), schema=["tenant", "lent_gpu_hours"], orient="row")
    job_counts = frame.group_by("tenant", maintain_order=True).agg(jobs=pl.len())
    names = {"deficit_gpu_hours": "shortfall_gpu_hours", "above_gpu_hours": "borrowed_gpu_hours"}
    teams = tenant_accounts(claims, entitled).rename(names)
    for table in (lent, job_counts, slowdowns.drop("jobs"), waits):
        teams = teams.join(table, on="tenant", how="left", maintain_order="left")
    teams = teams.with_columns(pl.col("jobs", "lent_gpu_hours", "^waited_.*$").fill_null(0))
    quotas = any(team.gpus is not None for team in rules.teams)
    explanations = [explain_team_waits(row, borrowing, quotas=quotas) for row in teams.iter_rows(named=True)]
    reasons = pl.DataFrame(explanations, schema={"why": pl.String, "next_step": pl.String}, orient="row")
    teams = teams.hstack(reasons).select(*_FIRST_COLUMNS, pl.exclude(_FIRST_COLUMNS))
    mean_slowdown, max_slowdown = rho.select(mean=pl.col("rho").mean(), max=pl.col("rho").max()).row(0)
    return Fairness(
        basis=basis, rules=rules, notes=notes, teams=teams, borrowed=borrowing,
        # Shares of teams are shown in at most 120 intervals.
        shares=shares_over_time(claims, slot_s=max(observed_s / 120, SECONDS_PER_HOUR)),
        mean_slowdown=mean_slowdown, max_slowdown=max_slowdown,
        jain_fair_share_received=jain_index(teams["fair_share_received"].drop_nulls().to_numpy()),
        jain_slowdown=jain_index(1 / slowdowns["mean_slowdown"].to_numpy()),
    )  # fmt: skip


_FIRST_COLUMNS = (
    "tenant", "jobs", "entitled_gpus", "allocated_gpu_hours", "due_gpu_hours", "lent_gpu_hours", "borrowed_gpu_hours",
    "shortfall_gpu_hours", "fair_share_received", "starved_hours",
)  # fmt: skip
"""Columns of the table of teams that come first, in order."""


def _slowdown_of_jobs(frame: pl.DataFrame, entitled: dict[str, float], queue: str) -> pl.DataFrame:
    """Compute the slowdown of each job against its team's jobs alone on the team's share, as one pool.

    Parameters
    ----------
    frame : polars.DataFrame
        Jobs with ``ready_s, start_s, end_s, run_s, limit_s`` [s] and ``gpus`` in quota units.
    entitled : dict of str to float
        Quota units of each team.
    queue : str
        Queue rule.

    Returns
    -------
    polars.DataFrame
        From :func:`finish_time_fairness`.
    """
    tenants = [name for name, units in entitled.items() if units > 0]
    entitled_jobs = frame.filter(pl.col("tenant").is_in(tenants), pl.col("start_s").is_not_null())

    def run_isolated(tenant_jobs: pl.DataFrame, units: int) -> pl.DataFrame:
        submit, run, limit = (tenant_jobs[name].to_numpy() for name in ("ready_s", "run_s", "limit_s"))
        profile, gpus = np.zeros(tenant_jobs.height, np.int64), tenant_jobs["gpus"].to_numpy()
        requests = NodeRequests(submit, submit, run, limit, profile, gpus, np.ones(tenant_jobs.height, np.int64))
        end = simulate_requests(requests, NodeFleet.of_full_gpus([units]), queue=queue).start_s + run
        return tenant_jobs.select("job_id", "tenant", jct_s=pl.Series(end - submit))

    if entitled_jobs.is_empty():
        return pl.DataFrame(schema={"job_id": pl.String, "tenant": pl.String, "rho": pl.Float64})
    shared_times = entitled_jobs.select("job_id", "tenant", jct_s=pl.col("end_s") - pl.col("ready_s"))
    return finish_time_fairness(shared_times, isolated_outcomes(entitled_jobs, entitled, run_isolated))


def wait_seconds_until(inputs: JobReplayInputs, start_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds that jobs wait until simulated starts, all by insufficient capacity, shape (n_jobs, n_causes) [s]."""
    until = np.where(np.isnan(start_s), inputs.observed_s, start_s)
    seconds = np.zeros((len(until), len(CAUSES)))
    seconds[:, INSUFFICIENT] = np.clip(until - np.maximum(inputs.requests.ready_s, 0.0), 0.0, None)
    return seconds


def sum_waits_by_team(inputs: JobReplayInputs, seconds: NDArray[np.float64]) -> pl.DataFrame:
    """Sum the waits of each team's jobs by cause.

    Parameters
    ----------
    inputs : JobReplayInputs
        The jobs.
    seconds : array of float, shape (n_jobs, n_causes)
        Wait of each job, by cause [s].

    Returns
    -------
    polars.DataFrame
        ``tenant``, ``waited_<cause>_hours`` for each of :data:`~gpuplanner.decision.wait_causes.CAUSES` [h], and
        ``waited_gpu_hours`` [GPU h].
    """
    hours = seconds / SECONDS_PER_HOUR
    waited = {f"waited_{cause}_hours": hours[:, i] for i, cause in enumerate(CAUSES)}
    waited["waited_gpu_hours"] = inputs.gpus_by_job() * hours.sum(axis=1)
    tenants, tenant_of_job = np.unique(np.asarray(team_of_jobs(inputs), dtype=str), return_inverse=True)
    # Summed in the order of the jobs: a multi-threaded group-by would vary in the last digits.
    sums = {name: np.bincount(tenant_of_job, values, len(tenants)) for name, values in waited.items()}
    return pl.DataFrame({"tenant": tenants.tolist(), **sums}, schema_overrides={"tenant": pl.String})


def explain_team_waits(row: dict[str, Any], pairs: pl.DataFrame, *, quotas: bool = True) -> tuple[str, str]:
    """Explain why the jobs of a team waited, and what the team can do about it.

    Parameters
    ----------
    row : dict
        Row of the table ``teams``.
    pairs : polars.DataFrame
        Pairs of lender and borrower with GPU-hours.

    Returns
    -------
    tuple of str
        Reason and next step.

    Without ``quotas`` no step changes one: first they have to be set.

    Examples
    --------
    >>> row = {f"waited_{cause}_hours": 0.0 for cause in CAUSES} | {"waited_limits_hours": 8.0}
    >>> explain_team_waits(row, pl.DataFrame())[0]
    'Its jobs waited 8 hours, 100 % of it limits of teams.'
    """
    waited = {name: row[f"waited_{name}_hours"] for name in CAUSES}
    total, cause = sum(waited.values()), max(CAUSES, key=lambda name: waited[name])
    if total <= 0.05:  # hours that are shown as none
        return "Its jobs did not wait.", "Nothing to do."
    share = percent_text(waited[cause] / total)
    why = f"Its jobs waited {waiting_hours_text(total)}, {share} of it {CAUSE_TEXTS[cause]}."
    if cause in NEXT_STEP_BY_CAUSE:
        return why, NEXT_STEP_BY_CAUSE[cause]

    shortfall, allocated = row["shortfall_gpu_hours"], row["allocated_gpu_hours"]
    if not row["entitled_gpus"] > 0:
        return f"{why} It has no quota.", "Give it a quota."
    if max(shortfall, row["waited_gpu_hours"]) < MIN_SHORTFALL_SHARE * allocated:
        return f"{why} That is less than 1 % of its GPU-hours.", "Nothing to do."
    # Reclaiming borrowed GPUs helps only if the shortfall is above a tenth of the waiting.
    if shortfall > max(MIN_SHORTFALL_GPU_HOURS, 0.1 * row["waited_gpu_hours"]):
        lent_rows = pairs.filter(pl.col("lender") == row["tenant"])
        lent_rows = lent_rows.sort("gpu_hours", "borrower", descending=[True, False])
        lent_to_teams = lent_rows.filter(pl.col("borrower") != NO_TENANT_LABEL)
        idle = float(lent_rows.filter(borrower=NO_TENANT_LABEL)["gpu_hours"].sum())
        above = float(lent_to_teams["gpu_hours"].sum())
        parts = [f"{idle:,.1f} while GPUs were idle"] if idle else []
        if lent_to_teams.height:
            largest_text = f"{lent_to_teams['borrower'][0]}, {lent_to_teams['gpu_hours'][0]:,.1f}"
            parts.append(f"{above:,.1f} while other teams were above their fair share (most: {largest_text})")
        step = "Set quotas, or add GPUs."
        if quotas:
            step = "Allow reclaim from borrowers (preemption), or limit borrowing."
        if above < 2 * idle:
            step = "GPUs were idle in much of this time: "
            fragmented = waited["fragmented"] / total
            if fragmented >= MIN_FRAGMENTED_SHARE:
                step += f"reduce fragmentation first, the cause of {percent_text(fragmented)} of the waiting."
            else:
                step += "find out why its jobs did not start on them, before you change quotas or add GPUs."
        return f"{why} Its shortfall was {shortfall:,.1f} GPU-hours: {', '.join(parts)}.", step
    short = f"Its shortfall was only {shortfall:,.1f} GPU-hours."
    received = "It received its fair share." if shortfall <= MIN_SHORTFALL_GPU_HOURS else short
    return f"{why} {received}", "Raise its quota, at the cost of others, or add GPUs." if quotas else "Add GPUs."
