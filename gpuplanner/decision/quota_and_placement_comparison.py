"""Comparison of quotas, sharing rules and placements on the same jobs."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import polars as pl

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.scenario import Scenario, parse_gang_slowdowns
from gpuplanner.core.stage_cache_and_data_folders import stage
from gpuplanner.core.units_and_number_formats import SECONDS_PER_DAY, SECONDS_PER_HOUR, SECONDS_PER_MINUTE, percent_text
from gpuplanner.decision.explained_waits import MAX_REPLAY_ERROR
from gpuplanner.decision.policy_comparison import load_policy_simulation
from gpuplanner.decision.policy_simulation import ReplayedJobs, simulate_once
from gpuplanner.decision.queue_model import arrival_jitter_s
from gpuplanner.decision.quota_recommendation import NODE_FAIL_STATE, observed_mtbf_s
from gpuplanner.decision.requested_jobs import AS_TODAY, JobReplayInputs, classify_job_sizes
from gpuplanner.decision.sharing_rules import (
    SharingRules,
    TeamQuota,
    describe_unmatched_teams,
    list_openings,
    quota_share,
    read_rules_file,
    read_sharing_rules,
)
from gpuplanner.decision.team_fairness import UNNAMED_TEAM, team_of_jobs
from gpuplanner.decision.wait_curve import CURVE_INTERVAL
from gpuplanner.simulator.replications import compare_paired
from gpuplanner.simulator.scheduling_rules import (
    Checkpoints,
    Failures,
    FairShare,
    PreemptionCosts,
    QuotaGroup,
    SharedOutcome,
    Sharing,
)
from gpuplanner.simulator.simulation_inputs import NodeNetwork, NodeRequests
from gpuplanner.simulator.simulation_run import simulate_shared_requests
from gpuplanner.simulator.simulation_state import Floats, Ints
from gpuplanner.usage.planning_history import History, history

ALL_TEAMS_ROW_NAME = "(all)"
"""Name of the row for all teams."""
MAX_UNCONFIRMED_WAIT_S = 600.0
"""Waits up to this are too short to confirm a simulation [s]."""
_WAIT_COLUMNS = ("wait_before_min", "wait_after_min")
"""Columns of mean waits [min]."""
WEEK_S = 7 * SECONDS_PER_DAY
"""Length of a week [s]."""
N_PERCENTILE_DRAWS = 200
"""Resampled records for the interval of a percentile."""
N_RESUBMISSION_ROUNDS = 3
"""Most simulations until the requests of a job beyond the limit of run times follow one another."""
_PERCENTILE_COLUMNS: dict[str, Any] = {
    "team": pl.String, "job_size": pl.String, "jobs": pl.Int64,
    **dict.fromkeys(("p95_before_minutes", "p95_after_minutes", "p95_after_low", "p95_after_high",
                     "p95_difference_minutes", "p95_difference_low", "p95_difference_high"), pl.Float64),
    "never_before": pl.Int64, "never_after": pl.Int64,
}  # fmt: skip
"""Columns of the table of :func:`compare_wait_percentiles`."""
MIN_WEEKS_COMPARED = 3
"""Fewest full weeks in the record for a comparison by week; shorter records are compared by day."""
WAITS_MORE, WAITS_LESS, WAITS_UNCLEAR, WAITS_UNCHANGED = ("waits more", "waits less", "no clear change", "as before")
"""Verdicts on the change of a team's waits."""
MORE_NEVER_START, FEWER_NEVER_START = "more jobs never start", "fewer jobs never start"
"""Verdicts where the number of jobs that never start changes."""


@dataclass(frozen=True)
class SimulatedRules:
    """Sharing rules of one simulation, with failures.

    - ``name``: Name in tables and sentences.
    - ``rules``: Quotas, tiers and preemption.
    - ``failures``: Failures of GPUs; None: none.
    - ``tz``: Time zone of local hours.
    """

    name: str
    rules: SharingRules
    failures: Failures | None = None
    tz: str = "UTC"


@dataclass(frozen=True, eq=False)
class RulesComparison:
    """The same jobs simulated under two sets of sharing rules.

    - ``before``, ``after``: Names of the two sets.
    - ``teams``: A row a team, and a last one for all: its jobs; of those that start under both, the mean wait [min] and
      the GPU-hours a week spent waiting, with the change and its interval; the verdict, on jobs that never start where
      their number differs, else on that change; GPU-hours a week lost, and the change with its interval; preemptions
      and failures a week; jobs that never start.
    - ``waits``: A row a team and job size, see :func:`compare_wait_percentiles`.
    - ``blocks``: Level and period of the intervals, such as "95 %, over 4 weeks".
    - ``notes``: Assumptions behind the figures.
    """

    before: str
    after: str
    teams: pl.DataFrame
    waits: pl.DataFrame
    blocks: str
    notes: tuple[str, ...]

    @property
    def verdict_sentence(self) -> str:
        """The finding in one sentence."""
        teams = self.teams.filter(pl.col("team") != ALL_TEAMS_ROW_NAME)
        total = self.teams.row(-1, named=True)
        parts = []
        change = pl.col("change").abs()
        for verdict, predicate in (
            (MORE_NEVER_START, "have more jobs that never start"),
            (FEWER_NEVER_START, "have fewer jobs that never start"),
            (WAITS_MORE, "wait more"),
            (WAITS_LESS, "wait less"),
        ):
            names = teams.filter(verdict=verdict).sort(change, descending=True)["team"].to_list()
            listed = f" ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})" if names else ""
            if names or verdict in (WAITS_MORE, WAITS_LESS):
                parts.append(f"{len(names)}{listed} {predicate}")
        lost = f"{total['lost_after']:,.1f} GPU-hours a week are lost instead of {total['lost_before']:,.1f}"
        return f"With {self.after} instead of {self.before}, of {teams.height} teams {', '.join(parts)}; {lost}."

    @property
    def _facts(self) -> dict[str, Any]:
        """Return the fields that are not tables as plain values."""
        return {"before": self.before, "after": self.after, "blocks": self.blocks, "notes": list(self.notes)}

    def to_dict(self) -> dict[str, Any]:
        """Return the object of ``--json``."""
        tables = {"teams": self.teams.to_dicts(), "waits": self.waits.to_dicts()}
        return {"sentence": self.verdict_sentence} | self._facts | tables

    def to_tables(self) -> dict[str, pl.DataFrame]:
        """Return everything as tables that a study stores."""
        facts = pl.DataFrame({"facts": [json.dumps(self._facts)]})
        return {"rules_tried": self.teams, "rules_tried_waits": self.waits, "rules_tried_facts": facts}

    @classmethod
    def of_tables(cls, tables: Mapping[str, pl.DataFrame]) -> Self | None:
        """Restore the comparison from the tables of a study; None where the study has none."""
        if "rules_tried" not in tables:
            return None
        facts = json.loads(tables["rules_tried_facts"]["facts"][0])
        waits = tables["rules_tried_waits"]
        return cls(teams=tables["rules_tried"], waits=waits, **facts | {"notes": tuple(facts["notes"])})


def states_sharing_rules(scenario: Scenario) -> bool:
    """Whether a scenario states quotas, quotas to try or failures."""
    return any(stated is not None for stated in (scenario.quotas, scenario.quotas_to_try, scenario.gpu_mtbf_hours))


@stage
def compare_stated_rules(scenario: Scenario) -> RulesComparison:
    """Compare the sharing rules of a scenario with those that it states to try, on the recent past and today's fleet.

    Without quotas to try, the stated quotas are compared with no quotas, or, without quotas, the stated failures with
    none.
    """
    job_history = history(scenario)
    rules = read_sharing_rules(scenario, job_history)
    if scenario.quotas_to_try is not None:
        return compare_rules(scenario, rules, read_rules_file(scenario.quotas_to_try, job_history))
    if scenario.quotas is not None:
        return compare_rules(scenario, SharingRules(source="no quotas"), rules)
    with_failures = _add_failures("failures", rules, scenario)
    without_failures = replace(with_failures, name="no failures", failures=None)
    return _compare_sides(scenario, without_failures, with_failures)


def rules_or_equal_shares(scenario: Scenario) -> SharingRules:
    """Return the sharing rules of a scenario or its data; else equal shares of the fleet that lend to each other."""
    job_history = history(scenario)
    rules = read_sharing_rules(scenario, job_history)
    if rules.has_quotas:
        return rules
    teams = sorted(set(job_history.jobs["tenant"].fill_null(UNNAMED_TEAM).cast(pl.String)))
    share = job_history.fleet.gpus / max(len(teams), 1)
    quotas = tuple(TeamQuota(name, share, cohort="all teams") for name in teams)
    return replace(rules, teams=quotas, source="equal shares that lend to each other: no quota is stated")


def compare_rules(scenario: Scenario, rules_before: SharingRules, rules_after: SharingRules) -> RulesComparison:
    """Simulate the recent past on today's fleet under two sets of rules, with the failures of the scenario."""
    sides = (_add_failures(rules.source, rules, scenario) for rules in (rules_before, rules_after))
    return _compare_sides(scenario, *sides)


def _compare_sides(scenario: Scenario, rules_before: SimulatedRules, rules_after: SimulatedRules) -> RulesComparison:
    """Simulate the jobs of a scenario under two sets of sharing rules, with notes on the accuracy."""
    _, _, replayed_jobs, _ = load_policy_simulation(scenario)
    comparison = compare_rules_on_replay(replayed_jobs, rules_before, rules_after)
    notes = (_describe_agreement(replayed_jobs), *comparison.notes)
    if scenario.pool is not None:
        notes = (*notes, f"Quotas count here for the GPUs of {scenario.pool} alone.")
    return replace(comparison, notes=notes)


def mtbf_hours(scenario: Scenario) -> float | None:
    """Return the mean time between failures of a GPU [h], as stated or as the data show; None: no failures."""
    stated = scenario.gpu_mtbf_hours
    if not isinstance(stated, str):
        return stated
    if (observed_s := observed_mtbf_s(history(scenario).trace)) is None:
        todo = "State hours instead: gpu_mtbf_hours: 50000."
        expected = f"jobs that ended as {NODE_FAIL_STATE}, or XID errors of hardware"
        raise ScenarioError("scenario: gpu_mtbf_hours", expected, "none", todo)
    return observed_s / SECONDS_PER_HOUR


def _add_failures(name: str, rules: SharingRules, scenario: Scenario) -> SimulatedRules:
    """Combine sharing rules with the failures and the time zone of a scenario."""
    mtbf_h, restart_s = mtbf_hours(scenario), SECONDS_PER_MINUTE * rules.stopping.restart_minutes
    failures = None if mtbf_h is None else Failures(mtbf_h, restart_s, scenario.seed)
    return SimulatedRules(name, rules, failures, scenario.tz)


def _describe_agreement(replayed_jobs: ReplayedJobs) -> str:
    """Describe how far the simulation of today differs from the observed waits."""
    if replayed_jobs.asked_jobs.starts_assumed:
        return "The data have no start times: waits are simulated, without observed waits to compare."
    waited_s = replayed_jobs.asked_jobs.start_s - replayed_jobs.asked_jobs.requests.ready_s
    if not (waited_s[replayed_jobs.is_evaluated] > MAX_UNCONFIRMED_WAIT_S).any():
        return "No job waited for 10 minutes in the data to compare the simulation with."
    error = replayed_jobs.waits.share.error
    if error <= MAX_REPLAY_ERROR:
        sums = f"differs from the observed waits by {percent_text(error)}, in hours of waiting by team and job size"
        return f"The simulation of today {sums}; the p95 of a single job size can differ more."
    return (
        f"NOT EXPLAINED: the replay of today differs from the observed waits by {percent_text(error)} of them: "
        "trust directions more than figures."
    )


def compare_rules_on_replay(
    replayed_jobs: ReplayedJobs, rules_before: SimulatedRules, rules_after: SimulatedRules
) -> RulesComparison:
    """Simulate the jobs of a replay on today's fleet under two sets of rules, and compare waits and losses by team."""
    inputs, requests = replayed_jobs.asked_jobs, replayed_jobs.make_requests(AS_TODAY)
    block_s, n_blocks, block_text = split_into_blocks(inputs.observed_s)
    jobs = pl.DataFrame({"team": team_of_jobs(inputs), "gpus": inputs.gpus_by_job(), "ready_s": requests.ready_s})
    jobs = jobs.with_columns(is_evaluated=replayed_jobs.is_evaluated)
    names = sorted(set(jobs["team"]))
    size, size_names = classify_job_sizes(inputs, replayed_jobs.is_evaluated, min_jobs=1)
    sizes = pl.Series([size_names[number] for number in size.tolist()], dtype=pl.Enum(size_names))
    jobs = jobs.with_columns(job_size=sizes)
    sides, notes = [], []
    for rules in (rules_before, rules_after):
        job_of_request, outcome = _simulate_rules(replayed_jobs, requests, rules)
        sides.append(_list_waits_and_runs(jobs, job_of_request, outcome))
        if (limit_h := rules.rules.max_run_hours) is not None:
            longer = int((np.bincount(job_of_request) > 1).sum())
            notes.append(f"{longer:,} jobs ran for more than {limit_h:g} h: each queues again for its remaining work.")
        notes += describe_unmatched_teams(rules.rules, names)
    rows = [_compare_team(name, sides, block_s, n_blocks) for name in [*names, ALL_TEAMS_ROW_NAME]]
    teams = pl.DataFrame(rows, schema_overrides=dict.fromkeys(_WAIT_COLUMNS, pl.Float64))
    waits = compare_wait_percentiles(sides[0][0], sides[1][0], block_s)
    return RulesComparison(rules_before.name, rules_after.name, teams, waits, block_text, tuple(dict.fromkeys(notes)))


def compare_wait_percentiles(before: pl.DataFrame, after: pl.DataFrame, block_s: float) -> pl.DataFrame:
    """Compare the p95 queue wait of each team and job size under two sets of rules, on the same jobs.

    Parameters
    ----------
    before, after : polars.DataFrame
        ``team, job_size, wait_s, never, at_s`` of the same jobs. [s]
    block_s : float
        Length of a block; intervals are the 90 % of resampled blocks, with the jobs submitted in them. [s]

    Returns
    -------
    polars.DataFrame
        ``team``, ``job_size``, ``jobs`` that start under both; ``p95_before_minutes``, ``p95_after_minutes`` with
        ``p95_after_low`` and ``p95_after_high``, ``p95_difference_minutes`` with ``p95_difference_low`` and
        ``p95_difference_high`` [min], null without such jobs, intervals also where all were submitted in one block;
        ``never_before``, ``never_after``: jobs that never start.

    Examples
    --------
    >>> jobs = {"team": "a", "job_size": "1 GPU", "never": False, "at_s": [0.0, 0.0, 5.0]}
    >>> before, after = (pl.DataFrame(jobs | {"wait_s": waits}) for waits in ([0.0, 60.0, 0.0], [60.0, 120.0, 60.0]))
    >>> row = compare_wait_percentiles(before, after, 5.0).row(0, named=True)
    >>> round(row["p95_before_minutes"], 2), round(row["p95_after_minutes"], 2), round(row["p95_difference_high"], 2)
    (0.9, 1.9, 1.0)
    """
    both = before.with_columns(after_s=after["wait_s"], never_after=after["never"]).sort("team", "job_size")
    rows = []
    for (team, job_size), group in both.group_by("team", "job_size", maintain_order=True):
        started = group.filter(~pl.col("never"), ~pl.col("never_after"))
        minutes = started.select(pl.col("wait_s", "after_s") / SECONDS_PER_MINUTE).to_numpy()
        values: list[float | None] = [None] * 7
        if len(minutes):
            block = (started["at_s"].to_numpy() // block_s).astype(np.int64)
            blocks = [np.flatnonzero(block == number) for number in np.unique(block)]
            draws = np.random.default_rng(1).integers(len(blocks), size=(N_PERCENTILE_DRAWS, len(blocks)))
            samples = [np.concatenate([blocks[number] for number in draw]) for draw in draws]
            drawn = np.array([np.quantile(minutes[sample], 0.95, axis=0) for sample in samples])
            was, now = np.quantile(minutes, 0.95, axis=0).tolist()
            interval = change = [None, None]
            if len(blocks) > 1:  # one block alone does not vary
                interval, change = np.quantile(
                    [drawn[:, 1], drawn[:, 1] - drawn[:, 0]], (0.05, 0.95), axis=1
                ).T.tolist()
            values = [was, now, *interval, now - was, *change]
        never = (int(group["never"].sum()), int(group["never_after"].sum()))
        rows.append((team, job_size, len(minutes), *values, *never))
    return pl.DataFrame(rows, schema=_PERCENTILE_COLUMNS | {"job_size": both.schema["job_size"]}, orient="row")


def _simulate_rules(
    replayed_jobs: ReplayedJobs, requests: NodeRequests, rules: SimulatedRules
) -> tuple[Ints, SharedOutcome]:
    """Simulate jobs under sharing rules; a job beyond the limit of run times is several requests.

    Each request but the first becomes ready when the one before it ends, found by repeated simulation. What ran before
    the record, and services, keep their run time.

    Parameters
    ----------
    replayed_jobs : ReplayedJobs
        Jobs and nodes.
    requests : NodeRequests
        Their requests.
    rules : SimulatedRules
        Rules to simulate.

    Returns
    -------
    tuple of array of int, shape (n_requests,), and SharedOutcome
        Row of the job of each request, and the outcome of the requests.
    """
    inputs, max_run_h = replayed_jobs.asked_jobs, rules.rules.max_run_hours
    max_run_s = math.inf if max_run_h is None else max_run_h * SECONDS_PER_HOUR
    is_limited = replayed_jobs.is_evaluated & ~inputs.is_service
    parts = np.where(is_limited, np.maximum(np.ceil(requests.run_s / max_run_s), 1), 1).astype(np.int64)
    rows = np.repeat(np.arange(len(parts)), parts)
    number = np.arange(len(rows)) - np.repeat(np.cumsum(parts) - parts, parts)
    done_s, limit_s = np.zeros(len(rows)), np.where(is_limited[rows], max_run_s, math.inf)
    done_s[number > 0] = number[number > 0] * max_run_s
    restart_s = SECONDS_PER_MINUTE * rules.rules.stopping.restart_minutes * (number > 0)
    pieces = requests.select(rows)
    pieces = replace(
        pieces, run_s=np.minimum(pieces.run_s - done_s, limit_s) + restart_s,
        limit_s=np.minimum(pieces.limit_s, limit_s), ready_s=pieces.ready_s + done_s,
    )  # fmt: skip
    sharing = build_sharing(rules, inputs)
    hours = None if sharing.hours is None else sharing.hours[rows]
    sharing = replace(sharing, team=sharing.team[rows], tier=sharing.tier[rows], hours=hours)
    for _ in range(N_RESUBMISSION_ROUNDS):
        outcome = simulate_shared_requests(
            pieces, inputs.fleet, sharing, queue=replayed_jobs.queue, placement=replayed_jobs.choose_placement(),
            larger=replayed_jobs.larger_profiles,
        )  # fmt: skip
        end_before_s = np.roll(outcome.end_s, 1)
        ready_s = np.where((number > 0) & np.isfinite(end_before_s), end_before_s, pieces.ready_s)
        if np.allclose(ready_s, pieces.ready_s, rtol=0.0, atol=1.0):
            break
        pieces = replace(pieces, ready_s=ready_s, submit_s=np.where(number > 0, ready_s, pieces.submit_s))
    return rows, outcome


def split_into_blocks(seen_s: float) -> tuple[float, int, str]:
    """Choose the blocks of the record that are compared.

    Parameters
    ----------
    seen_s : float
        Length of the record [s].

    Returns
    -------
    length_s : float
        Length of a block, a week or a day [s].
    n_blocks : int
        Number of blocks.
    text : str
        Level and period of the intervals.

    Raises
    ------
    ScenarioError
        If the record is shorter than a day.
    """
    weeks = int(seen_s // WEEK_S)
    if weeks >= MIN_WEEKS_COMPARED:
        return WEEK_S, weeks, f"95 %, over {weeks} weeks"
    days = int(seen_s // SECONDS_PER_DAY)
    if not days:
        got = f"{seen_s / SECONDS_PER_HOUR:.1f} hours"
        raise ScenarioError("rules to try", "a day of jobs at least", got, "Ingest more of the past.")
    return SECONDS_PER_DAY, days, f"95 %, over {days} days: whole weeks are fewer than {MIN_WEEKS_COMPARED}"


def build_sharing(simulated_rules: SimulatedRules, inputs: JobReplayInputs) -> Sharing:
    """Convert sharing rules to the form of the simulator, for the jobs of a replay.

    Parameters
    ----------
    simulated_rules : SimulatedRules
        Rules, failures and time zone.
    inputs : JobReplayInputs
        Jobs and nodes.

    Returns
    -------
    Sharing
    """
    rules, stopping = simulated_rules.rules, simulated_rules.rules.stopping
    team = team_of_jobs(inputs)
    teams = list(dict.fromkeys([*(quota.name for quota in rules.teams), *sorted(set(team))]))
    stated_cohorts = {cohort.name: cohort for cohort in rules.cohorts}
    cohorts_of_teams = (quota.cohort for quota in rules.teams if quota.cohort is not None)
    cohorts = list(dict.fromkeys([*stated_cohorts, *cohorts_of_teams]))
    group_number: dict[str | None, int] = {None: -1}
    group_number |= {name: len(teams) + position for position, name in enumerate(cohorts)}
    groups = [
        QuotaGroup(quota.gpus, quota.borrow, quota.lend, group_number[quota.cohort], quota.weight)
        for quota in map(rules.quota_of, teams)
    ]
    groups += [
        QuotaGroup(cohort.gpus or 0.0, cohort.borrow, cohort.lend, group_number[cohort.cohort])
        for cohort in (stated_cohorts.get(name, TeamQuota(name)) for name in cohorts)
    ]
    team_number = {name: position for position, name in enumerate(teams)}
    interval = stopping.checkpoint_minutes
    tier = _tier_of_jobs(rules, team, inputs.jobs["tier"])
    interval_s = math.inf if interval is None else SECONDS_PER_MINUTE * interval
    period = (inputs.replay_start, inputs.observed_s)
    return Sharing(
        np.array([team_number[name] for name in team], np.int64),
        tier,
        tuple(groups),
        np.array([1.0, *(quota_share(inputs.gpu_model, name) for name in inputs.fleet.profiles[1:])]),
        rules.order,
        FairShare(rules.half_life_days * SECONDS_PER_DAY),
        stopping.by_tier,
        stopping.reclaim,
        PreemptionCosts(SECONDS_PER_MINUTE * stopping.restart_minutes, SECONDS_PER_MINUTE * stopping.min_run_minutes),
        Checkpoints(interval_s, stopping.checkpoint_write_seconds),
        simulated_rules.failures,
        _start_window_of_jobs(rules, team, tier),
        tuple(list_openings(window.hours, simulated_rules.tz, *period) for window in rules.start_hours),
    )


def _start_window_of_jobs(rules: SharingRules, team: pl.Series, tier: Ints) -> Ints:
    """Return the number of the start-hours rule of each job: that of its team, else of its tier; -1: none."""
    window_of_job = np.full(len(team), -1)
    for number, window in sorted(enumerate(rules.start_hours), key=lambda item: item[1].team is not None):
        is_member = (
            tier == rules.tiers.index(window.tier) if window.tier is not None else (team == window.team).to_numpy()
        )
        window_of_job[is_member] = number
    return window_of_job


def _tier_of_jobs(rules: SharingRules, team: pl.Series, job_tiers: pl.Series) -> Ints:
    """Return the tier number of each job: that of its team, else its own; unnamed tiers come after all named ones."""
    tier_number = {name: number for number, name in enumerate(rules.tiers)}
    names = (rules.quota_of(name).tier or job_tier for name, job_tier in zip(team, job_tiers, strict=True))
    return np.array([tier_number.get(name, len(tier_number)) if tier_number else 0 for name in names], np.int64)


def _list_waits_and_runs(jobs: pl.DataFrame, rows: Ints, outcome: SharedOutcome) -> tuple[pl.DataFrame, pl.DataFrame]:
    """List waits of evaluated jobs, null if they never start, and ends of all runs with the GPU-hours lost.

    Losses of the last run of a job to restarts and checkpoints count when it ends. `rows` is the job of each request.
    """
    stopped = outcome.stopped.with_columns(pl.col("request").cast(pl.Int64))
    last_lost_s = outcome.lost_s - np.bincount(stopped["request"], stopped["lost_s"], len(rows))
    last_runs = pl.DataFrame({"at_s": outcome.end_s, "lost_s": last_lost_s}).with_row_index("request").fill_nan(None)
    ends = pl.concat([stopped, last_runs.drop_nulls().cast({"request": pl.Int64})], how="diagonal")
    jobs_of_runs = jobs[rows[ends["request"].to_numpy()].tolist()]
    ends = ends.select(
        "at_s", jobs_of_runs["team"], lost=pl.col("lost_s") / SECONDS_PER_HOUR * jobs_of_runs["gpus"],
        stops=(~pl.col("failed")).fill_null(value=False).cast(pl.Float64),
        failures=pl.col("failed").fill_null(value=False).cast(pl.Float64),
    )  # fmt: skip
    never = np.bincount(rows, np.isnan(outcome.end_s), jobs.height) > 0
    wait = pl.when(~pl.Series(never)).then(pl.Series(np.bincount(rows, outcome.queued_s, jobs.height)))
    waits = jobs.with_columns(never=never, wait_s=wait).filter("is_evaluated").select(
        "team", "job_size", "wait_s", "never", at_s="ready_s",
        waited=pl.col("wait_s") / SECONDS_PER_HOUR * pl.col("gpus"),
    )  # fmt: skip
    return waits, ends


def _compare_team(
    name: str, sides: Sequence[tuple[pl.DataFrame, pl.DataFrame]], block_s: float, n_blocks: int
) -> dict[str, Any]:
    """Compare one team, or all teams, before and after.

    Parameters
    ----------
    name : str
        Team, or :data:`ALL_TEAMS_ROW_NAME`.
    sides : sequence of tuple of two polars.DataFrame
        Waits and runs, before and after.
    block_s : float
        Length of a block [s].
    n_blocks : int
        Number of blocks.

    Returns
    -------
    dict
        Row of the table ``teams``.
    """
    of_team = pl.lit(value=True) if name == ALL_TEAMS_ROW_NAME else pl.col("team") == name
    waits = [table.filter(of_team) for table, _ in sides]
    ends = [table.filter(of_team) for _, table in sides]
    never_started = [int(table["never"].sum()) for table in waits]
    # Only waits of jobs that start under both sets of rules are compared.
    starts_in_both = ~(waits[0]["never"] | waits[1]["never"])
    started = [table.filter(starts_in_both) for table in waits]
    row: dict[str, Any] = {"team": name, "jobs": waits[0].height}
    for side, table in zip(("before", "after"), started, strict=True):
        row[f"wait_{side}_min"] = table.select(pl.col("wait_s").mean() / SECONDS_PER_MINUTE).item()
    before, after = (weekly_sums(table, "waited", block_s, n_blocks) for table in started)
    row |= _weekly_change("", "waited", before, after)
    row["verdict"] = WAITS_UNCHANGED if np.allclose(before, after, rtol=0.0, atol=1e-9) else _judge_wait_change(row)
    if never_started[0] != never_started[1]:
        row["verdict"] = MORE_NEVER_START if never_started[1] > never_started[0] else FEWER_NEVER_START
    row |= _weekly_change("lost_", "lost", *(weekly_sums(table, "lost", block_s, n_blocks) for table in ends))
    for side, table in zip(("before", "after"), ends, strict=True):
        for kind in ("stops", "failures"):
            row[f"{kind}_{side}"] = float(weekly_sums(table, kind, block_s, n_blocks).mean())
    return row | {"never_before": never_started[0], "never_after": never_started[1]}


def weekly_sums(table: pl.DataFrame, column: str, block_s: float, n_blocks: int) -> Floats:
    """Sum a column by block of the record, scaled to a week; rows outside of all blocks do not count.

    Parameters
    ----------
    table : polars.DataFrame
        ``at_s`` [s] and the column.
    column : str
        Column to sum.
    block_s : float
        Length of a block [s].
    n_blocks : int
        Number of blocks.

    Returns
    -------
    array of float, shape (n_blocks,)
        Sums a week.
    """
    inside = table.filter(pl.col("at_s").is_between(0, n_blocks * block_s, closed="left"))
    block = (inside["at_s"].to_numpy() // block_s).astype(np.int64)
    return np.asarray(np.bincount(block, inside[column].to_numpy(), n_blocks) * WEEK_S / block_s, np.float64)


def _weekly_change(prefix: str, kind: str, before: Floats, after: Floats) -> dict[str, float | None]:
    """Return the means before and after, and the mean paired change with its interval.

    Parameters
    ----------
    prefix : str
        Prefix of the keys of the change.
    kind : str
        Prefix of the keys of the means.
    before, after : array of float, shape (n_blocks,)
        Sums a week.
    """
    change = compare_paired(before, after).difference
    return {
        f"{kind}_before": float(before.mean()), f"{kind}_after": float(after.mean()), f"{prefix}change": change.mean,
        f"{prefix}change_low": change.low, f"{prefix}change_high": change.high,
    }  # fmt: skip


def _judge_wait_change(row: Mapping[str, float | None]) -> str:
    """Choose the verdict on a change of waits: no clear change where its interval holds 0."""
    low, high, change = row["change_low"], row["change_high"], row["change"]
    if low is None or high is None or change is None or low <= 0.0 <= high:
        return WAITS_UNCLEAR
    return WAITS_MORE if change > 0 else WAITS_LESS


PLACEMENT_NAMES = {"lowest": "first idle nodes", "consolidate": "consolidated", "spread": "spread"}
"""Placement rule of the simulator → its name in the table."""
N_PLACEMENT_REPLAYS = 10
"""Number of replays of the record under each placement rule."""


@stage
def compare_placements(scenario: Scenario) -> pl.DataFrame:
    """Simulate the recent jobs on today's nodes under each placement rule, with stated multi-node slowdowns.

    Which nodes are idle when a job starts is a matter of chance, so that a single run of few multi-node jobs may rank
    the rules wrongly: each is simulated in :data:`N_PLACEMENT_REPLAYS` replays with arrivals up to half a minute later.

    A row for each placement: ``jobs``, ``multi_node_jobs``, their ``slowdown`` (mean, weighted by GPU-hours),
    ``lost_gpu_hours`` a week with its 80 % interval over replays ``lost_gpu_hours_low`` and ``lost_gpu_hours_high``,
    ``mean_wait_minutes`` of all jobs, and ``never_started``; means over replays, and medians of numbers of jobs.
    """
    job_history, _, replayed_jobs, _ = load_policy_simulation(scenario)
    rack, beyond = parse_gang_slowdowns(scenario.gang_slowdowns or "") or (1.0, 1.0)
    network = NodeNetwork(
        node_domains(job_history, replayed_jobs.asked_jobs.nodes.names), np.array([1.0, 1.0, rack, beyond])
    )
    fleet = replace(replayed_jobs.asked_jobs.fleet, network=network)
    requests, evaluated = replayed_jobs.make_requests(AS_TODAY), replayed_jobs.is_evaluated
    gpu_seconds = replayed_jobs.asked_jobs.gpus_by_job() * requests.run_s
    observed_s = replayed_jobs.asked_jobs.observed_s
    block_s, n_blocks, _ = split_into_blocks(observed_s)
    replays: list[dict[str, Any]] = []
    for (rule, name), number in itertools.product(PLACEMENT_NAMES.items(), range(N_PLACEMENT_REPLAYS)):
        delayed = requests.with_ready_times(requests.ready_s + arrival_jitter_s(len(requests.ready_s), number))
        outcome = simulate_once(
            delayed, fleet, queue=replayed_jobs.queue, placement=rule, larger=replayed_jobs.larger_profiles
        )
        started = ~np.isnan(outcome.start_s)
        wait_s = np.where(started, outcome.start_s, observed_s) - delayed.ready_s
        is_wide = evaluated & started & (requests.nodes > 1)
        factor = np.nan_to_num(outcome.factor, nan=1.0)
        lost_gpu_hours = gpu_seconds * (factor - 1.0) * evaluated / SECONDS_PER_HOUR
        weeks = weekly_sums(pl.DataFrame({"at_s": requests.ready_s, "lost": lost_gpu_hours}), "lost", block_s, n_blocks)
        replays.append({
            "placement": name,
            "multi_node_jobs": int(is_wide.sum()),
            "slowdown": float(np.average(factor[is_wide], weights=gpu_seconds[is_wide])) if is_wide.any() else 1.0,
            "lost_gpu_hours": float(weeks.mean()),
            "mean_wait_minutes": float(wait_s[evaluated].mean()) / SECONDS_PER_MINUTE if evaluated.any() else 0.0,
            "never_started": int((evaluated & ~started).sum()),
        })  # fmt: skip
    lost_bounds = zip(("lost_gpu_hours_low", "lost_gpu_hours_high"), CURVE_INTERVAL, strict=True)
    return pl.DataFrame(replays).group_by("placement", maintain_order=True).agg(
        pl.lit(int(evaluated.sum())).alias("jobs"),
        pl.col("multi_node_jobs").median().round().cast(pl.Int64),
        pl.col("slowdown", "lost_gpu_hours").mean(),
        *(pl.col("lost_gpu_hours").quantile(bound, "linear").alias(column) for column, bound in lost_bounds),
        pl.col("mean_wait_minutes").mean(),
        pl.col("never_started").median().round().cast(pl.Int64),
    )  # fmt: skip


def node_domains(job_history: History, node_names: Sequence[str]) -> np.ndarray:
    """Number NVLink domain and rack of each node, shape (2, n_nodes); a node without one is its own domain."""
    inventory = job_history.fleet.installed.inventory
    tiers = []
    for column in ("nvlink_domain", "rack"):
        stated: dict[str, str] = {}
        if column in inventory.columns:
            stated = dict(inventory.select("node", column).drop_nulls().iter_rows())
        labels = [(column, stated[name]) if name in stated else ("node", name) for name in node_names]
        _, numbers = np.unique([f"{kind} {label}" for kind, label in labels], return_inverse=True)
        tiers.append(numbers)
    return np.stack(tiers)
