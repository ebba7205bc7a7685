"""Quotas and sharing rules compared on the same jobs, with hours lost to distant placement."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import polars as pl

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.scenario import Scenario, parse_gang_slowdowns
from gpuplanner.core.stage_cache import stage
from gpuplanner.core.units import SECONDS_PER_DAY, SECONDS_PER_HOUR, SECONDS_PER_MINUTE, percent_text
from gpuplanner.decision.explained_waits import MAX_ERROR
from gpuplanner.decision.policy_comparison import opened
from gpuplanner.decision.policy_simulation import Arena, simulate_once
from gpuplanner.decision.quota_recommendation import NODE_FAIL, mtbf_seen_s
from gpuplanner.decision.requests import AS_TODAY, Asked
from gpuplanner.decision.sharing_rules import (
    SharingRules,
    TeamQuota,
    openings,
    quota_share,
    rules_in,
    rules_of,
    unmatched,
)
from gpuplanner.decision.team_fairness import NO_TEAM, teams_of
from gpuplanner.simulator.replications import compare_paired
from gpuplanner.simulator.scheduling_rules import (
    Checkpoints,
    Failures,
    FairShare,
    Preemption,
    QuotaGroup,
    SharedOutcome,
    Sharing,
)
from gpuplanner.simulator.simulated_fleet import NodeNetwork
from gpuplanner.simulator.simulation_run import simulate_shared_requests
from gpuplanner.simulator.simulation_state import Floats, Ints
from gpuplanner.usage.job_history import History, history

EVERYBODY = "(all)"
NEAR_S = 600.0
"""Waits up to this confirm no simulation [s]."""
_WAITS = ("wait_before_min", "wait_after_min")
WEEK_S = 7 * SECONDS_PER_DAY
FEWEST_BLOCKS = 3
"""With fewer whole weeks, days are compared."""
MORE, LESS, UNCLEAR, SAME = "waits more", "waits less", "no clear change", "as before"
MORE_NEVER_START, FEWER_NEVER_START = "more jobs never start", "fewer jobs never start"


@dataclass(frozen=True)
class PlayedRules:
    """Rules by which jobs are played, failures, and the zone of local hours; ``name`` says which."""

    name: str
    rules: SharingRules
    failures: Failures | None = None
    tz: str = "UTC"


@dataclass(frozen=True, eq=False)
class SharingTried:
    """The same jobs under two sets of rules.

    - ``before``, ``after``: What is compared.
    - ``teams``: A row a team, and last one for all: its jobs; of those that start under both, the mean wait in minutes
      and the GPU-hours a week that they waited, with the change and its interval; the verdict, on jobs that never
      start where their number differs, else on that change; GPU-hours a week that were held for nothing that lasts,
      and the change with its interval; stops and failures a week; jobs that never start.
    - ``blocks``: What intervals are over, in words.
    - ``notes``: What the figures rest on.
    """

    before: str
    after: str
    teams: pl.DataFrame
    blocks: str
    notes: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The finding in one sentence."""
        teams = self.teams.filter(pl.col("team") != EVERYBODY)
        everybody = self.teams.row(-1, named=True)
        parts = []
        change = pl.col("change").abs()
        for verdict, words in (
            (MORE_NEVER_START, "have more jobs that never start"),
            (FEWER_NEVER_START, "have fewer jobs that never start"),
            (MORE, "wait more"),
            (LESS, "wait less"),
        ):
            names = teams.filter(verdict=verdict).sort(change, descending=True)["team"].to_list()
            said = f" ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})" if names else ""
            if names or verdict in (MORE, LESS):
                parts.append(f"{len(names)}{said} {words}")
        lost = f"{everybody['lost_after']:,.1f} GPU-hours a week are lost instead of {everybody['lost_before']:,.1f}"
        return f"With {self.after} instead of {self.before}, of {teams.height} teams {', '.join(parts)}; {lost}."

    @property
    def _facts(self) -> dict[str, Any]:
        """What is no table, as plain values."""
        return {"before": self.before, "after": self.after, "blocks": self.blocks, "notes": list(self.notes)}

    def to_dict(self) -> dict[str, Any]:
        """The object of ``--json``."""
        return {"sentence": self.sentence} | self._facts | {"teams": self.teams.to_dicts()}

    def to_tables(self) -> dict[str, pl.DataFrame]:
        """Everything as tables that a study keeps."""
        facts = pl.DataFrame({"facts": [json.dumps(self._facts)]})
        return {"rules_tried": self.teams, "rules_tried_facts": facts}

    @classmethod
    def of_tables(cls, tables: Mapping[str, pl.DataFrame]) -> Self | None:
        """The inverse of :meth:`to_tables`; None where a study tried no rules."""
        if "rules_tried" not in tables:
            return None
        facts = json.loads(tables["rules_tried_facts"]["facts"][0])
        return cls(teams=tables["rules_tried"], **facts | {"notes": tuple(facts["notes"])})


def is_asked(scenario: Scenario) -> bool:
    """Whether a scenario states rules to play."""
    return any(one is not None for one in (scenario.quotas, scenario.quotas_to_try, scenario.gpu_mtbf_hours))


@stage
def rules_tried(scenario: Scenario) -> SharingTried:
    """Play the recent past on today's fleet under the rules that a scenario has, and those that it is to try.

    Without rules to try, no rules are held against those that it states, or, where it states none, no failures against
    failures as often as it says.
    """
    known = history(scenario)
    present = rules_of(scenario, known)
    if scenario.quotas_to_try is not None:
        return tried_with(scenario, present, rules_in(scenario.quotas_to_try, known))
    if scenario.quotas is not None:
        return tried_with(scenario, SharingRules(source="no quotas"), present)
    after = _played("failures", present, scenario)
    return _between(scenario, replace(after, name="no failures", failures=None), after)


def rules_at_hand(scenario: Scenario) -> SharingRules:
    """The rules that a scenario or its data state; else equal shares of the fleet, which lend to each other."""
    known = history(scenario)
    present = rules_of(scenario, known)
    if present.stated:
        return present
    teams = sorted(set(known.jobs["tenant"].fill_null(NO_TEAM).cast(pl.String)))
    share = known.fleet.gpus / max(len(teams), 1)
    shares = tuple(TeamQuota(name, share, cohort="all teams") for name in teams)
    return replace(present, teams=shares, source="equal shares that lend to each other: no quota is stated")


def tried_with(scenario: Scenario, before: SharingRules, after: SharingRules) -> SharingTried:
    """Play the recent past on today's fleet under two sets of rules, with the failures of the scenario."""
    return _between(scenario, *(_played(rules.source, rules, scenario) for rules in (before, after)))


def _between(scenario: Scenario, before: PlayedRules, after: PlayedRules) -> SharingTried:
    _, _, arena, _ = opened(scenario)
    found = tried_on(arena, before, after)
    notes = (_basis(arena), *found.notes)
    if scenario.pool is not None:
        notes = (*notes, f"Quotas count here for the GPUs of {scenario.pool} alone.")
    return replace(found, notes=notes)


def mtbf_hours(scenario: Scenario) -> float | None:
    """The mean time between failures that a scenario states, or that its data show; None where nothing fails."""
    stated = scenario.gpu_mtbf_hours
    if not isinstance(stated, str):
        return stated
    if (seen := mtbf_seen_s(history(scenario).trace)) is None:
        todo = "State hours instead: gpu_mtbf_hours: 50000."
        expected = f"jobs that ended as {NODE_FAIL}, or XID errors of hardware"
        raise ScenarioError("scenario: gpu_mtbf_hours", expected, "none", todo)
    return seen / SECONDS_PER_HOUR


def _played(name: str, rules: SharingRules, scenario: Scenario) -> PlayedRules:
    """Rules with the failures of a scenario."""
    hours, restart = mtbf_hours(scenario), SECONDS_PER_MINUTE * rules.stopping.restart_minutes
    failures = None if hours is None else Failures(hours, restart, scenario.seed)
    return PlayedRules(name, rules, failures, scenario.tz)


def _basis(arena: Arena) -> str:
    """How far the waits of the trace are explained by what is played."""
    if arena.asked.starts_assumed:
        return "The data have no start times: waits are simulated, without observed waits to compare."
    waited_s = arena.asked.start_s - arena.asked.granted.ready_s
    if not (waited_s[arena.judged] > NEAR_S).any():
        return "No job waited for 10 minutes in the data to compare the simulation with."
    error = arena.waits.share.error
    if error <= MAX_ERROR:
        return f"The simulation of today differs from the observed waits by {percent_text(error)}."
    return (
        f"NOT EXPLAINED: the replay of today differs from the observed waits by {percent_text(error)} of them: "
        "trust directions more than figures."
    )


def tried_on(arena: Arena, before: PlayedRules, after: PlayedRules) -> SharingTried:
    """Play the jobs of an arena on today's fleet under two sets of rules."""
    asked, requests = arena.asked, arena.requests(AS_TODAY)
    length, count, blocks = parts_of(asked.seen_s)
    jobs = pl.DataFrame(
        {"team": teams_of(asked), "gpus": asked.gpus(), "ready_s": requests.ready_s, "judged": arena.judged}
    )
    how: dict[str, Any] = {"queue": arena.queue, "placement": arena.placement(), "larger": arena.larger}
    played = (simulate_shared_requests(requests, asked.fleet, sharing_of(one, asked), **how) for one in (before, after))
    sides = [_what_came(jobs, outcome) for outcome in played]
    names = sorted(set(jobs["team"]))
    notes = [note for one in (before, after) for note in unmatched(one.rules, names)]
    found = [_row(name, sides, length, count) for name in [*names, EVERYBODY]]
    teams = pl.DataFrame(found, schema_overrides=dict.fromkeys(_WAITS, pl.Float64))
    return SharingTried(before.name, after.name, teams, blocks, tuple(dict.fromkeys(notes)))


def parts_of(seen_s: float) -> tuple[float, int, str]:
    """Length and number of the parts of the observation that are compared, and what they are in words."""
    weeks = int(seen_s // WEEK_S)
    if weeks >= FEWEST_BLOCKS:
        return WEEK_S, weeks, f"95 %, over {weeks} weeks"
    days = int(seen_s // SECONDS_PER_DAY)
    if not days:
        got = f"{seen_s / SECONDS_PER_HOUR:.1f} hours"
        raise ScenarioError("rules to try", "a day of jobs at least", got, "Ingest more of the past.")
    return SECONDS_PER_DAY, days, f"95 %, over {days} days: whole weeks are fewer than {FEWEST_BLOCKS}"


def sharing_of(played: PlayedRules, asked: Asked) -> Sharing:
    """Rules as the engine takes them."""
    rules, stopping = played.rules, played.rules.stopping
    team = teams_of(asked)
    teams = list(dict.fromkeys([*(one.name for one in rules.teams), *sorted(set(team))]))
    given = {one.name: one for one in rules.cohorts}
    cohorts = list(dict.fromkeys([*given, *(one.cohort for one in rules.teams if one.cohort is not None)]))
    number: dict[str | None, int] = {None: -1}
    number |= {name: len(teams) + place for place, name in enumerate(cohorts)}
    groups = [
        QuotaGroup(one.gpus, one.borrow, one.lend, number[one.cohort], one.weight) for one in map(rules.of, teams)
    ]
    groups += [
        QuotaGroup(one.gpus or 0.0, one.borrow, one.lend, number[one.cohort])
        for one in (given.get(name, TeamQuota(name)) for name in cohorts)
    ]
    place = {name: number for number, name in enumerate(teams)}
    interval = stopping.checkpoint_minutes
    tier = _tiers(rules, team, asked.jobs["tier"])
    interval_s = math.inf if interval is None else SECONDS_PER_MINUTE * interval
    return Sharing(
        np.array([place[name] for name in team], np.int64),
        tier,
        tuple(groups),
        np.array([1.0, *(quota_share(asked.gpu_model, name) for name in asked.fleet.profiles[1:])]),
        rules.order,
        FairShare(rules.half_life_days * SECONDS_PER_DAY),
        stopping.by_tier,
        stopping.reclaim,
        Preemption(SECONDS_PER_MINUTE * stopping.restart_minutes, SECONDS_PER_MINUTE * stopping.min_run_minutes),
        Checkpoints(interval_s, stopping.checkpoint_write_seconds),
        played.failures,
        _hours(rules, team, tier),
        tuple(openings(one.hours, played.tz, asked.zero, asked.seen_s) for one in rules.start_hours),
    )


def _hours(rules: SharingRules, team: pl.Series, tier: Ints) -> Ints:
    """The hours in which each job may start: those of its team, else of its tier, else all."""
    found = np.full(len(team), -1)
    for number, one in sorted(enumerate(rules.start_hours), key=lambda each: each[1].team is not None):
        mine = tier == rules.tiers.index(one.tier) if one.tier is not None else (team == one.team).to_numpy()
        found[mine] = number
    return found


def _tiers(rules: SharingRules, team: pl.Series, own: pl.Series) -> Ints:
    """The tier of each job: its team's, else its own, else behind all that are named."""
    place = {name: number for number, name in enumerate(rules.tiers)}
    names = (rules.of(name).tier or mine for name, mine in zip(team, own, strict=True))
    return np.array([place.get(name, len(place)) if place else 0 for name in names], np.int64)


def _what_came(jobs: pl.DataFrame, found: SharedOutcome) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Waits of the judged jobs, null where a job never starts, and ends of all runs with the GPU-hours that each lost.

    What the last run of a job pays for restarts and checkpoints is counted when it ends.
    """
    stopped = found.stopped.with_columns(pl.col("request").cast(pl.Int64))
    rest = found.lost_s - np.bincount(stopped["request"], stopped["lost_s"], jobs.height)
    last = pl.DataFrame({"at_s": found.end_s, "lost_s": rest}).with_row_index("request").fill_nan(None)
    ends = pl.concat([stopped, last.drop_nulls().cast({"request": pl.Int64})], how="diagonal")
    mine = jobs[ends["request"].to_list()]
    ends = ends.select(
        "at_s", mine["team"], lost=pl.col("lost_s") / SECONDS_PER_HOUR * mine["gpus"],
        stops=(~pl.col("failed")).fill_null(value=False).cast(pl.Float64),
        failures=pl.col("failed").fill_null(value=False).cast(pl.Float64),
    )  # fmt: skip
    never = np.isnan(found.end_s)
    wait = pl.when(~pl.Series(never)).then(pl.Series(found.queued_s))
    waits = jobs.with_columns(never=never, wait_s=wait).filter("judged").select(
        "team", "wait_s", "never", at_s="ready_s", waited=pl.col("wait_s") / SECONDS_PER_HOUR * pl.col("gpus")
    )  # fmt: skip
    return waits, ends


def _row(name: str, sides: Sequence[tuple[pl.DataFrame, pl.DataFrame]], length: float, count: int) -> dict[str, Any]:
    """The row of a team."""
    mine = pl.lit(value=True) if name == EVERYBODY else pl.col("team") == name
    waits, ends = zip(*((one.filter(mine), other.filter(mine)) for one, other in sides), strict=True)
    never = [int(one["never"].sum()) for one in waits]
    # A wait that has no end is none: what is compared are the waits of jobs that start under both.
    ends_both = ~(waits[0]["never"] | waits[1]["never"])
    started = [one.filter(ends_both) for one in waits]
    row: dict[str, Any] = {"team": name, "jobs": waits[0].height}
    for side, one in zip(("before", "after"), started, strict=True):
        row[f"wait_{side}_min"] = one.select(pl.col("wait_s").mean() / SECONDS_PER_MINUTE).item()
    before, after = (a_week(one, "waited", length, count) for one in started)
    row |= _changed("", "waited", before, after)
    row["verdict"] = SAME if np.allclose(before, after, rtol=0.0, atol=1e-9) else _verdict(row)
    if never[0] != never[1]:
        row["verdict"] = MORE_NEVER_START if never[1] > never[0] else FEWER_NEVER_START
    row |= _changed("lost_", "lost", *(a_week(one, "lost", length, count) for one in ends))
    for side, other in zip(("before", "after"), ends, strict=True):
        for kind in ("stops", "failures"):
            row[f"{kind}_{side}"] = float(a_week(other, kind, length, count).mean())
    return row | {"never_before": never[0], "never_after": never[1]}


def a_week(table: pl.DataFrame, column: str, length: float, count: int) -> Floats:
    """Sums over the parts of the observation, as if each were a week; what is outside counts nowhere."""
    inside = table.filter(pl.col("at_s").is_between(0, count * length, closed="left"))
    block = (inside["at_s"].to_numpy() // length).astype(np.int64)
    return np.asarray(np.bincount(block, inside[column].to_numpy(), count) * WEEK_S / length, np.float64)


def _changed(prefix: str, kind: str, before: Floats, after: Floats) -> dict[str, float | None]:
    """Means of two sets of weeks, and the mean change with its interval."""
    change = compare_paired(before, after).difference
    return {
        f"{kind}_before": float(before.mean()), f"{kind}_after": float(after.mean()), f"{prefix}change": change.mean,
        f"{prefix}change_low": change.low, f"{prefix}change_high": change.high,
    }  # fmt: skip


def _verdict(row: Mapping[str, float | None]) -> str:
    low, high, change = row["change_low"], row["change_high"], row["change"]
    if low is None or high is None or change is None or low <= 0.0 <= high:
        return UNCLEAR
    return MORE if change > 0 else LESS


PLACEMENTS = {"lowest": "first idle nodes", "consolidate": "consolidated", "spread": "spread"}
"""Placement rules of the simulator, and what they are called in the table."""


@stage
def placement_table(scenario: Scenario) -> pl.DataFrame:
    """Simulate the recent jobs on today's nodes under each placement rule, with the stated slow-downs by tier.

    A row for each placement: ``jobs``, ``multi_node_jobs``, their ``slowdown`` (mean, weighted by GPU-hours),
    ``lost_gpu_hours`` a week, ``mean_wait_minutes`` of all jobs, and ``never_started``.
    """
    known, _, arena, _ = opened(scenario)
    rack, beyond = parse_gang_slowdowns(scenario.gang_slowdowns or "") or (1.0, 1.0)
    network = NodeNetwork(node_domains(known, arena.asked.nodes.names), np.array([1.0, 1.0, rack, beyond]))
    fleet = replace(arena.asked.fleet, network=network)
    requests, evaluated = arena.requests(AS_TODAY), arena.judged
    gpu_seconds = arena.asked.gpus() * requests.run_s
    length, count, _ = parts_of(arena.asked.seen_s)
    found: list[dict[str, Any]] = []
    for rule, name in PLACEMENTS.items():
        outcome = simulate_once(requests, fleet, queue=arena.queue, placement=rule, larger=arena.larger)
        started = ~np.isnan(outcome.start_s)
        wait_s = np.where(started, outcome.start_s, arena.asked.seen_s) - requests.ready_s
        wide = evaluated & started & (requests.nodes > 1)
        factor = np.nan_to_num(outcome.factor, nan=1.0)
        lost = gpu_seconds * (factor - 1.0) * evaluated / SECONDS_PER_HOUR
        weeks = a_week(pl.DataFrame({"at_s": requests.ready_s, "lost": lost}), "lost", length, count)
        found.append({
            "placement": name,
            "jobs": int(evaluated.sum()),
            "multi_node_jobs": int(wide.sum()),
            "slowdown": float(np.average(factor[wide], weights=gpu_seconds[wide])) if wide.any() else 1.0,
            "lost_gpu_hours": float(weeks.mean()),
            "mean_wait_minutes": float(wait_s[evaluated].mean()) / SECONDS_PER_MINUTE if evaluated.any() else 0.0,
            "never_started": int((evaluated & ~started).sum()),
        })  # fmt: skip
    return pl.DataFrame(found)


def node_domains(known: History, names: Sequence[str]) -> np.ndarray:
    """NVLink domain and rack of nodes by number, shape (2, n_nodes); a node without one is a domain of its own."""
    inventory = known.fleet.installed.inventory
    tiers = []
    for column in ("nvlink_domain", "rack"):
        stated: dict[str, str] = {}
        if column in inventory.columns:
            stated = dict(inventory.select("node", column).drop_nulls().iter_rows())
        labels = [(column, stated[name]) if name in stated else ("node", name) for name in names]
        _, numbers = np.unique([f"{kind} {label}" for kind, label in labels], return_inverse=True)
        tiers.append(numbers)
    return np.stack(tiers)
