"""How a fleet was shared: identities of lending and borrowing, waits by cause, and files of quotas."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from gpuplanner import Scenario
from gpuplanner.core.errors import ScenarioError
from gpuplanner.decision.comparison_record import study_comparison
from gpuplanner.decision.quota_recommendation import budget_burn_down, daly_interval_s, recommend_quotas
from gpuplanner.decision.requested_jobs import JobReplayInputs
from gpuplanner.decision.sharing_rules import SharingRules, TeamQuota, convert_queue_quotas, entitled_gpus, read_quotas
from gpuplanner.decision.team_fairness import (
    Fairness,
    assess_fairness,
    assess_shares,
    explain_team_waits,
    sum_waits_by_team,
    wait_seconds_until,
)
from gpuplanner.decision.wait_causes import CAUSES
from gpuplanner.hardware.gpu_models import load_any_gpu_model, load_gpu_model
from gpuplanner.simulator.simulation_inputs import NodeFleet, NodeRequests
from gpuplanner.simulator.simulation_run import simulate_requests
from gpuplanner.usage.current_nodes import TodaysNodes

BOARD = load_gpu_model("H100-80GB-SXM5")
ZERO = datetime(2026, 3, 2, tzinfo=UTC)
PROFILES = ("gpu", "1g.20gb", "3g.40gb")


def two_teams(seed: int, jobs: int = 300) -> JobReplayInputs:
    """A team that floods the queue at once, and one that comes now and then, on slices and whole GPUs."""
    rng = np.random.default_rng(seed)
    flood = rng.random(jobs) < 0.8
    submit = np.where(flood, 0.0, np.sort(rng.uniform(0, 40_000, jobs)))
    run = rng.integers(300, 4000, jobs).astype(float)
    profile = rng.choice(3, jobs)
    total = np.where(profile == 0, rng.choice([1, 2], jobs), 1)
    ones = np.ones(jobs)
    requests = NodeRequests(submit, submit, run, run, profile, total, ones)
    fleet = NodeFleet(
        PROFILES, np.array([8, 8]), np.array([[[4, 4, 6]], [[8, 0, 0]]]), np.zeros(2), np.array([1, 1 / 7, 3 / 7])
    )
    start = simulate_requests(requests, fleet).start_s
    layouts = (("gpu",) * 4 + ("3g.40gb:2",) * 3 + ("1g.20gb:4",), ("gpu",) * 8)
    frame = pl.DataFrame({"tenant": np.where(flood, "flood", "meek")})
    return JobReplayInputs(
        frame, TodaysNodes(("a", "b"), (8, 8), layouts, True, False, False), fleet, BOARD,
        {"today": requests}, start, start + run, [None] * jobs, "observed starts", ZERO,
        ZERO + timedelta(seconds=float(np.ceil(start.max() + 5000))), np.zeros(jobs, bool),
    )  # fmt: skip


def account(asked: JobReplayInputs, rules: SharingRules) -> Fairness:
    waits = sum_waits_by_team(asked, wait_seconds_until(asked, asked.start_s))
    return assess_shares(asked, rules, asked.start_s, asked.end_s, waits, "as played", "easy")


@pytest.mark.parametrize("seed", range(3))
def test_what_is_lent_owed_and_borrowed_adds_up(seed):
    asked = two_teams(seed)
    found = account(asked, SharingRules((TeamQuota("meek", gpus=10.0), TeamQuota("flood", gpus=4.0))))
    teams = {row["tenant"]: row for row in found.teams.iter_rows(named=True)}
    quota = np.array([1.0, 0.25, 0.5])[asked.requests.profile] * asked.requests.total
    for name, row in teams.items():
        mine = (asked.jobs["tenant"] == name).to_numpy()
        assert row["allocated_gpu_hours"] == pytest.approx(quota[mine] @ asked.requests.run_s[mine] / 3600)
    borrowed = sum(row["borrowed_gpu_hours"] for row in teams.values())
    between = found.borrowed.filter(pl.col("borrower") != "-")
    assert between["gpu_hours"].sum() == pytest.approx(borrowed)
    owed = found.borrowed.filter(pl.col("lender") != "-")
    assert owed["gpu_hours"].sum() == pytest.approx(sum(row["shortfall_gpu_hours"] for row in teams.values()))
    freely = between.filter(lender="-")["gpu_hours"].sum()
    lent = sum(row["lent_gpu_hours"] for row in teams.values())
    assert 0 < lent <= freely + 1e-9  # the rest comes from the two GPUs that nobody has a quota for
    assert freely - lent <= 2 * asked.observed_s / 3600
    assert teams["flood"]["waited_insufficient_hours"] > 100 * teams["meek"]["waited_limits_hours"]


def test_nobody_borrows_from_anybody_where_there_is_one_team():
    asked = two_teams(1)
    alone = JobReplayInputs(**{**vars(asked), "jobs": pl.DataFrame({"tenant": ["only"] * asked.jobs.height})})
    found = account(alone, SharingRules())
    assert set(found.borrowed["borrower"]) <= {"-"}
    assert found.teams["borrowed_gpu_hours"].item() == found.teams["lent_gpu_hours"].item() == 0.0
    assert found.jain_fair_share_received == found.jain_slowdown == 1.0
    assert Fairness.of_tables(found.to_tables()).to_dict() == found.to_dict()


@pytest.mark.long
def test_the_sample_says_of_each_team_why_its_jobs_waited():
    found = assess_fairness(Scenario())
    rows = {row.name: row for row in study_comparison(Scenario()).waits.causes.team}
    for row in found.teams.iter_rows(named=True):
        for cause in CAUSES:
            assert row[f"waited_{cause}_hours"] == pytest.approx(getattr(rows[row["tenant"]], cause), abs=1e-5)
    waited = found.teams.filter(pl.col("waited_gpu_hours") > 1)
    assert waited.height > 0
    assert not (waited["why"] == "Its jobs did not wait.").any()
    assert found.teams["entitled_gpus"].sum() == pytest.approx(64)
    assert "equal shares" in found.notes[0]


def written(folder: Path, text: str) -> Path:
    file = folder / "quotas.yaml"
    file.write_text(text, "utf-8")
    return file


def test_no_step_changes_a_quota_where_none_is_stated():
    row = dict.fromkeys((f"waited_{cause}_hours" for cause in CAUSES), 0.0) | {"waited_insufficient_hours": 800.0}
    row |= {"tenant": "a", "shortfall_gpu_hours": 560.0, "allocated_gpu_hours": 6396.0, "entitled_gpus": 5.3}
    pairs = pl.DataFrame({"lender": ["a"], "borrower": ["b"], "gpu_hours": [560.0]})
    for waited, stated, unstated in (
        (900.0, "Allow reclaim from borrowers (preemption), or limit borrowing.", "Set quotas, or add GPUs."),
        (9000.0, "Raise its quota, at the cost of others, or add GPUs.", "Add GPUs."),
    ):
        row["waited_gpu_hours"] = waited
        assert explain_team_waits(row, pairs)[1] == stated
        assert explain_team_waits(row, pairs, quotas=False)[1] == unstated


@pytest.mark.parametrize(
    ("fragmented", "step"),
    [(0.0, "find out why its jobs did not start on them"), (300.0, "reduce fragmentation first, the cause of 27 %")],
)
def test_fragmentation_is_named_only_where_jobs_waited_for_it(fragmented, step):
    row = dict.fromkeys((f"waited_{cause}_hours" for cause in CAUSES), 0.0) | {"waited_insufficient_hours": 800.0}
    row |= {"tenant": "a", "shortfall_gpu_hours": 560.0, "allocated_gpu_hours": 6396.0, "entitled_gpus": 5.3}
    row |= {"waited_fragmented_hours": fragmented, "waited_gpu_hours": 900.0}
    idle = pl.DataFrame({"lender": ["a"], "borrower": ["-"], "gpu_hours": [560.0]})
    assert step in explain_team_waits(row, idle)[1]


def test_a_file_of_quotas_is_read(tmp_path):
    text = (
        "teams:\n- {name: a, gpus: 32, borrow: 8, lend: 4, cohort: x, weight: 2, tier: low, risk: 0.1}\n"
        "- {name: b, gpu_hours_per_month: 900}\n"
        "cohorts:\n- {name: x, parent: all, gpus: 8}\n- {name: all}\ntiers: [high, low]\norder: fair\n"
        "preemption: {by_tier: true, reclaim: true, min_run_minutes: 5, checkpoint_minutes: 60}\n"
    )
    found = read_quotas(written(tmp_path, text))
    assert found.quota_of("a") == TeamQuota("a", 32.0, 8.0, 4.0, "x", 2.0, "low", None, 0.1)
    assert found.quota_of("b").gpu_hours_per_month == 900.0
    assert found.quota_of("c") == TeamQuota("c")
    assert [one.cohort for one in found.cohorts] == ["all", None]
    assert found.stopping.by_tier
    assert found.stopping.checkpoint_minutes == 60.0


def test_quotas_count_on_the_board_that_they_are_for(tmp_path):
    text = "teams:\n- {name: a, gpus: 8}\n- {name: a, gpu_model: L40S, gpus: 2}\n"
    text += "- {name: b, gpu_model: A100-40GB, gpus: 4}\n"
    rules = read_quotas(written(tmp_path, text))
    on = {
        gpu_model: {one.name: one.gpus for one in rules.for_gpu_model(gpu_model, ["A100-40GB", "L40S"]).teams}
        for gpu_model in ("L40S", "T4")
    }
    assert on == {"L40S": {"a": 2.0}, "T4": {"a": 8.0}}
    with pytest.raises(ScenarioError, match=r"a GPU model of the fleet.*'A100-40GB' for 'b'"):
        rules.for_gpu_model("L40S")
    row = {"tenant": "t", "cohort": None, "borrow": None, "lend": None}
    flavors = [("NVIDIA-H100-80GB-HBM3", "3g.40gb", 2.0), ("NVIDIA-L40S", None, 4.0), (None, None, 1.0)]
    rows = pl.DataFrame([row | dict(zip(("gpu_model", "profile", "nominal"), one, strict=True)) for one in flavors])
    due = {
        name: convert_queue_quotas(rows, load_any_gpu_model(name)).quota_of("t").gpus
        for name in ("H100-80GB-SXM5", "L40S")
    }
    assert due == {"H100-80GB-SXM5": 2.0, "L40S": 5.0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("teams:\n- {name: a, gpus: 1}\n- {name: a, gpus: 2}\n", "teams of different names"),
        ("teams:\n- {name: a, gpus: 1, weight: 0}\n", "line 2.*weight"),
        ("teams:\n- {name: a, gpu: 1}\n", "did you mean 'gpus'"),
        ("tiers: [x, y]\nteams:\n- {name: a, tier: z}\n", "line 3.*tier x or y"),
        ("cohorts:\n- {name: x, parent: y}\n- {name: y, parent: x}\n", "a circle: x in y in x"),
        ("preemption: {by_tier: true}\n", "two tiers"),
        ("preemption: {reclaim: maybe}\n", "true or false"),
        ("start_hours:\n- {team: a, hours: nights}\n", "line 2: expected hours such as 20:00-06:00.*'nights'"),
    ],
)
def test_what_is_wrong_in_a_file_of_quotas_is_named(tmp_path, text, said):
    with pytest.raises(ScenarioError, match=said):
        read_quotas(written(tmp_path, text))


def test_quotas_that_cannot_be_as_stated_are_said_to_be_so():
    rules = SharingRules((TeamQuota("a", gpus=90.0), TeamQuota("nobody", gpus=30.0)), source="q.yaml")
    entitled, notes = entitled_gpus(rules, ["a", "b"], 60)
    assert entitled == {"a": 45.0, "nobody": 15.0, "b": 0.0}
    assert all(word in note for word, note in zip(("above 60 installed", "'b'", "'nobody'"), notes, strict=True))


def test_quotas_for_a_risk_cost_others_what_they_hold_of_full_hours():
    rng = np.random.default_rng(3)
    paths = rng.poisson([[[4.0]], [[7.0]]], (2, 2, 500)).swapaxes(0, 1).astype(float)
    rules = SharingRules((TeamQuota("a", gpus=2.0, risk=0.05), TeamQuota("b")))
    quotas, steps = recommend_quotas(rules, ["a", "b"], paths, 12.0)
    one = quotas.row(0, named=True)
    own = paths[:, 0]
    assert (own > one["gpus_for_risk"]).mean() <= 0.05 < (own > one["gpus_for_risk"] - 1).mean()
    assert one["risk_now"] == (own > 2).mean()
    full = paths.sum(axis=1) > 12
    more = np.minimum(own, one["gpus_for_risk"]) - np.minimum(own, 2)
    assert one["costs_others_gpu_hours_week"] == pytest.approx((more * full).mean() * 168)
    mine = steps.filter(team="a")
    assert mine["gpus"].to_list()[-1] == one["gpus_for_risk"]
    assert mine["costs_others_gpu_hours_week"].to_list()[-1] == pytest.approx(one["costs_others_gpu_hours_week"])
    assert mine["risk"].is_sorted(descending=True)


def test_a_budget_is_used_up_when_the_paths_pass_it():
    sums = 100.0 + np.cumsum(np.ones((100, 240)) * np.linspace(0.5, 1.5, 100)[:, None], axis=1)
    found = budget_burn_down(sums, 250.0, 100.0, ZERO, 1.0)
    days = {name: (found[name] - ZERO).total_seconds() / 86_400 for name in ("early", "exhausted_on")}
    assert days["exhausted_on"] == pytest.approx(150 / 24, rel=0.02)
    assert days["early"] == pytest.approx(150 / 1.45 / 24, rel=0.02)
    assert found["late"] is None  # one path in eight lasts the month
    assert found["chance"] == pytest.approx((np.linspace(0.5, 1.5, 100) > 150 / 240).mean(), abs=0.011)


def test_daly_is_near_the_least_of_what_is_lost():
    write, mtbf = 60.0, 40_000.0

    def lost(every: float) -> float:  # exact for exponential failures: Daly 2006, eq. 13 without restart
        return mtbf * np.expm1((every + write) / mtbf) / every

    best = min(range(200, 20_000), key=lost)
    assert daly_interval_s(write, mtbf) == pytest.approx(best, rel=0.01)
