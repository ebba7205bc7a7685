"""Rules of sharing on the same jobs: a planted flood, its meek neighbour, and what quotas and failures do to both."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import numpy as np
import polars as pl
import pytest

from gpuplanner import Scenario
from gpuplanner.core.errors import ScenarioError
from gpuplanner.decision.explained_waits import explain_waits
from gpuplanner.decision.policy_simulation import ReplayedJobs
from gpuplanner.decision.quota_and_placement_comparison import (
    ALL_TEAMS_ROW_NAME,
    RulesComparison,
    SimulatedRules,
    build_sharing,
    compare_rules_on_replay,
    mtbf_hours,
)
from gpuplanner.decision.quota_recommendation import observed_mtbf_s
from gpuplanner.decision.requested_jobs import JobReplayInputs
from gpuplanner.decision.sharing_rules import PreemptionRules, SharingRules, StartHours, TeamQuota
from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.simulator.scheduling_rules import Failures
from gpuplanner.simulator.simulation_inputs import NodeFleet, NodeRequests
from gpuplanner.simulator.simulation_run import simulate_requests, simulate_shared_requests
from gpuplanner.usage.current_nodes import TodaysNodes
from tests.decision.test_fairness import ZERO
from tests.usage.test_fleet import MIXED, TWO_BOARDS, made

DAY = 86_400.0
QUOTAS = (TeamQuota("flood", 8.0, cohort="all"), TeamQuota("meek", 8.0, cohort="all"))
LENT = SharingRules(QUOTAS, source="lent")
TAKEN_BACK = SharingRules(QUOTAS, stopping=PreemptionRules(reclaim=True, restart_minutes=1.0), source="taken back")
APART = SharingRules(tuple(TeamQuota(one.name, 8.0) for one in QUOTAS), source="apart")


def flooded(days: int = 6, largest: int = 1) -> ReplayedJobs:
    """Two nodes of 8 GPUs; every morning a team floods the queue, and another wants a GPU every half hour.

    The last job of the other team wants as many GPUs as `largest` says, on both nodes.
    """
    flood = np.repeat(DAY * np.arange(days), 60)
    meek = np.arange(600.0, days * DAY, 1800.0)
    submit = np.concatenate([flood, meek])
    run = np.concatenate([np.full(len(flood), 4 * 3600.0), np.full(len(meek), 1800.0)])
    order = np.argsort(submit, kind="stable")
    team = np.array(["flood"] * len(flood) + ["meek"] * len(meek))[order]
    ones = np.ones(len(submit), int)
    total, on = ones.copy(), ones.copy()
    total[-1], on[-1] = largest, 1 + (largest > 8)
    requests = NodeRequests(submit[order], submit[order], run[order], run[order], 0 * ones, total, on)
    fleet = NodeFleet.of_full_gpus([8, 8])
    start = simulate_requests(requests, fleet).start_s
    nodes = TodaysNodes(("a", "b"), (8, 8), (("gpu",) * 8,) * 2, True, False, False)
    none = [None] * len(team)
    types = dict.fromkeys(("tier", "partition"), pl.String)
    frame = pl.DataFrame({"tenant": team, "tier": none, "partition": none}, schema_overrides=types)
    asked = JobReplayInputs(
        frame, nodes, fleet, load_gpu_model("H100-80GB-SXM5"), {"today": requests},
        start, start + run[order], [None] * len(team), False, ZERO, ZERO + timedelta(days=days),
        np.zeros(len(team), bool),
    )  # fmt: skip
    return ReplayedJobs(asked, explain_waits(asked), "easy", 10.0, None, 0)


def rows(before: SharingRules, after: SharingRules, failures: Failures | None = None, days: int = 6):
    found = compare_rules_on_replay(
        flooded(days), SimulatedRules(before.source, before), SimulatedRules(after.source, after, failures)
    )
    json.dumps(found.to_dict())
    return found, {row["team"]: row for row in found.teams.iter_rows(named=True)}


def test_quotas_that_are_lent_out_make_the_meek_wait_less_and_stop_nobody():
    found, by = rows(SharingRules(source="none"), LENT)
    assert (by["meek"]["verdict"], by["flood"]["verdict"]) == ("waits less", "waits more")
    assert by["meek"]["change_high"] < 0 < by["flood"]["change_low"]
    assert by[ALL_TEAMS_ROW_NAME]["lost_after"] == by[ALL_TEAMS_ROW_NAME]["stops_after"] == 0
    assert by[ALL_TEAMS_ROW_NAME]["change"] == pytest.approx(by["meek"]["change"] + by["flood"]["change"])
    assert (
        "1 (flood) wait more, 1 (meek) wait less; 0.0 GPU-hours a week are lost instead of 0.0"
        in found.verdict_sentence
    )
    assert "6 days" in found.blocks
    assert RulesComparison.of_tables(found.to_tables()).to_dict() == found.to_dict()


def test_what_is_taken_back_is_had_at_once_and_the_flood_does_its_work_again():
    _, by = rows(LENT, TAKEN_BACK)
    assert by["meek"]["wait_after_min"] == 0.0 < by["meek"]["wait_before_min"]
    assert by["flood"]["stops_after"] > 0
    assert by["flood"]["lost_after"] > 0
    assert by["meek"]["stops_after"] == by["meek"]["lost_after"] == 0
    # One GPU an hour is the meek team's; nobody else is stopped for it, so no more work is lost than it takes back.
    assert by["flood"]["lost_after"] <= by["flood"]["stops_after"] * (4 + 1 / 60)


def test_who_may_start_at_night_alone_leaves_the_day_to_others():
    free = SharingRules(source="free")
    nights = replace(free, source="nights", start_hours=(StartHours("20:00-06:00", team="flood"),))
    _, by = rows(free, nights)
    assert (by["meek"]["verdict"], by["flood"]["verdict"]) == ("waits less", "waits more")
    replayed_jobs = flooded()
    requests = replayed_jobs.make_requests("today")
    rules = build_sharing(SimulatedRules("nights", nights, tz="Asia/Kolkata"), replayed_jobs.asked_jobs)
    start = simulate_shared_requests(requests, replayed_jobs.asked_jobs.fleet, rules).start_s
    hour = (start + 5.5 * 3600.0) % DAY / 3600.0
    flood = (replayed_jobs.asked_jobs.jobs["tenant"] == "flood").to_numpy()
    assert ((hour >= 20.0) | (hour < 6.0) | (start > 34 * DAY))[flood].all()
    assert not ((hour >= 20.0) | (hour < 6.0))[~flood].all()
    as_tier = replace(nights, tiers=("day", "night"), teams=(TeamQuota("flood", tier="night"),))
    as_tier = replace(as_tier, start_hours=(StartHours("20:00-06:00", tier="night"),))
    wait = rows(free, as_tier)[1]["flood"]["wait_after_min"]
    assert wait == pytest.approx(by["flood"]["wait_after_min"], rel=0.01)
    nobody = replace(nights, start_hours=(StartHours("sat", team="fluod"),))
    assert rows(free, nobody)[0].notes == ("No job is of 'fluod': their start_hours have no effect.",)


def test_a_wall_between_teams_costs_the_one_that_borrowed():
    _, by = rows(LENT, APART)
    assert by["flood"]["verdict"] == "waits more"
    assert by["meek"]["wait_after_min"] == 0.0


def test_the_same_rules_change_nothing_and_failures_alone_lose_work_as_often_as_stated():
    _, by = rows(LENT, LENT)
    assert {row["verdict"] for row in by.values()} == {"as before"}
    found, by = rows(LENT, LENT, Failures(100.0, 60.0, 1), days=28)
    assert "4 weeks" in found.blocks
    hours_a_week = 7 * (60 * 4 + 48 * 0.5) + by[ALL_TEAMS_ROW_NAME]["lost_after"]
    assert by[ALL_TEAMS_ROW_NAME]["failures_after"] == pytest.approx(hours_a_week / 100.0, rel=0.25)
    assert by[ALL_TEAMS_ROW_NAME]["failures_before"] == by[ALL_TEAMS_ROW_NAME]["lost_before"] == 0
    assert by[ALL_TEAMS_ROW_NAME]["lost_change_low"] > 0


def test_a_quota_below_what_a_job_wants_keeps_it_for_ever_and_says_so():
    none = SharingRules((TeamQuota("flood", 0.0), TeamQuota("meek", 8.0), TeamQuota("meeek", 1.0)), source="none")
    found, by = rows(LENT, none)
    assert by["flood"]["never_after"] == by["flood"]["jobs"] == 360
    assert by["flood"]["verdict"] == "more jobs never start"
    assert by["flood"]["wait_after_min"] is None
    assert any("'meeek' (did you mean 'meek'?)" in note for note in found.notes)


def test_one_job_that_never_starts_decides():
    replayed_jobs = flooded(largest=16)
    sides = SimulatedRules("lent", LENT), SimulatedRules("apart", APART)
    found = compare_rules_on_replay(replayed_jobs, *sides)
    by = {row["team"]: row for row in found.teams.to_dicts()}
    assert (by["meek"]["never_before"], by["meek"]["never_after"]) == (0, 1)
    assert by["meek"]["verdict"] == by[ALL_TEAMS_ROW_NAME]["verdict"] == "more jobs never start"
    assert by["meek"]["wait_after_min"] == 0.0, "a wait without an end is no part of the mean"
    assert "1 (meek) have more jobs that never start" in found.verdict_sentence
    back = compare_rules_on_replay(replayed_jobs, *reversed(sides)).teams
    assert back.filter(team="meek")["verdict"].item() == "fewer jobs never start"


def test_failures_are_as_often_as_the_data_show(tmp_path):
    trace = made(MIXED, TWO_BOARDS)
    asked = Scenario(data=str(write_dataset(trace, tmp_path / "sound")), gpu_mtbf_hours="observed")
    with pytest.raises(ScenarioError, match="jobs that ended as NODE_FAIL, or XID errors of hardware; got none"):
        mtbf_hours(asked)
    first = pl.int_range(pl.len()) < 2
    state = pl.when(first).then(pl.lit("NODE_FAIL")).otherwise(pl.col("state").cast(pl.String))
    jobs = trace.jobs.with_columns(state=state.cast(trace.jobs.schema["state"]))
    failed = trace.with_tables(jobs=jobs)
    held = jobs.select(((pl.col("end_time") - pl.col("start_time")).dt.total_seconds() * pl.col("gpus")).sum()).item()
    known = asked.but(data=str(write_dataset(failed, tmp_path / "failed")))
    assert mtbf_hours(known) == pytest.approx(held / 3600 / 2)
    assert mtbf_hours(known.but(gpu_mtbf_hours=50.0)) == 50.0
    told = [(0, 0, 79), (1, 0, 79), (2, 0, 31), (3, 0, 79), (4, 0, 0), (0, 1, 0), (4, 1, 13), (0, 2, None)]
    samples = pl.DataFrame(told, schema=["time", "gpu", "xid"], orient="row").with_columns(node=pl.lit("n1"))
    coverage = pl.DataFrame({"observed_gpu_h": [8.0, 2.0]})
    assert observed_mtbf_s(failed.with_tables(samples=samples, coverage=coverage)) == 10.0 * 3600
    assert observed_mtbf_s(trace.with_tables(samples=samples)) is None
    with pytest.raises(ScenarioError, match="between 1 and 1000000000, or 'observed'"):
        known.but(gpu_mtbf_hours="often")
