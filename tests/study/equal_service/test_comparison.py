"""Policies at equal service on the sample: one object, whose figures agree with each other and with a fresh run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats

from gpuplanner.cost import power_model
from gpuplanner.errors import ScenarioError
from gpuplanner.scenario import Scenario
from gpuplanner.simulate import Calendar
from gpuplanner.study.equal_service.comparison import EqualService, equal_service
from gpuplanner.study.equal_service.growth import growth
from gpuplanner.study.equal_service.hindsight import hindsight
from gpuplanner.study.equal_service.judging import JudgedPolicy, policy_row, told_apart
from gpuplanner.study.equal_service.levers import levers
from gpuplanner.study.equal_service.play import PolicySetting, play, play_in_full
from gpuplanner.study.equal_service.tables import hours_table
from gpuplanner.study.equal_service.target import wait_quantile
from gpuplanner.study.equal_service.weeks import weeks
from gpuplanner.study.equal_service.words import decision, how_sure, target_in_words
from gpuplanner.study.future.workload import fleet_and_rules
from gpuplanner.study.past.history import history

SAMPLE = Scenario(month="2026-02", replications=3, path="nvml")


@pytest.fixture(scope="module")
def found() -> EqualService:
    return equal_service(SAMPLE, ["static_whole", "static_mig", "reactive"])


@pytest.fixture(scope="module")
def shown(found: EqualService) -> dict[str, Any]:
    return found.to_dict()


def test_today_keeps_its_own_service_and_all_its_gpus(shown: dict[str, Any]) -> None:
    today = shown["today"]
    assert today["meets_target"]
    assert today["gpu_hours"] == 64 * 168
    assert all(row["wait_quantile_min"] <= row["target_min"] for row in today["by_class"])
    assert all(row["minutes"] == max(10.0, row["todays_wait_min"]) for row in shown["target"]["by_class"])


def test_the_saving_is_todays_hours_less_the_winners_and_the_winner_holds_the_target(
    shown: dict[str, Any],
) -> None:
    rows = {row["policy"]: row for row in [shown["today"], *shown["policies"]]}
    best, base = rows[shown["winner"]], rows[shown["baseline"]]
    assert best["meets_target"]
    assert shown["saving_gpu_hours_per_week"] == pytest.approx(
        shown["today"]["gpu_hours"] - best["gpu_hours"]
    )
    assert shown["saving_over_static"] == pytest.approx(base["gpu_hours"] - best["gpu_hours"])
    assert shown["baseline"] in ("today", "static_whole", "static_mig")
    assert shown["saving_low"] <= shown["saving_gpu_hours_per_week"] <= shown["saving_high"]
    holding = [row["gpu_hours"] for row in rows.values() if row["meets_target"]]
    assert best["gpu_hours"] == min(holding)


def test_a_row_is_what_its_knobs_give_when_they_are_played_again(found: EqualService) -> None:
    known, drawn = history(SAMPLE), weeks(SAMPLE)
    fleet, rules = fleet_and_rules(SAMPLE, known)
    static = found.judged("static_mig")
    mix = {name: int(count) for name, count in static.setting.knobs.items() if name != "gpus"}
    again = PolicySetting("static_mig", "rightsized", Calendar.constant(mix))
    runs = [play(again, week, fleet, rules) for week in drawn.judged]
    assert [run.gpu_hours for run in runs] == pytest.approx(static.gpu_hours)
    assert all(
        np.array_equal(one.waits_s, other.waits_s) for one, other in zip(runs, static.weeks, strict=True)
    )


def test_no_smaller_static_fleet_is_as_good_as_a_claimed_saving_of_reacting(found: EqualService) -> None:
    """What a trimmed static fleet would save as well must not be booked as a saving of changing layouts."""
    if found.winner in ("today", "static_whole", "static_mig"):
        return
    known, drawn = history(SAMPLE), weeks(SAMPLE)
    fleet, rules = fleet_and_rules(SAMPLE, known)
    base, best = found.judged("static_mig"), found.judged(found.winner)
    mix = {name: int(count) for name, count in base.setting.knobs.items() if name != "gpus"}
    affordable = int(best.gpu_hours.mean() // 168)
    while sum(mix.values()) > affordable:
        mix[max(mix, key=lambda name: mix[name])] -= 1
    trimmed = PolicySetting(
        "static_mig", "rightsized", Calendar.constant({k: v for k, v in mix.items() if v})
    )
    assert not found.target.met([play(trimmed, week, fleet, rules) for week in drawn.judged])


def test_only_what_the_path_can_do_may_win(found: EqualService) -> None:
    asked = replace(SAMPLE, path="operator")
    same = equal_service(asked, ["static_whole", "reactive"])
    assert same.judged("reactive").gpu_hours.mean() < same.judged("static_whole").gpu_hours.mean()
    assert same.winner in ("today", "static_whole")
    assert decision(same.to_dict())


def test_waits_of_a_row_are_those_of_its_jobs(found: EqualService, shown: dict[str, Any]) -> None:
    for row in shown["policies"]:
        weeks_of = found.judged(row["policy"]).weeks
        assert row["wait_quantile_min"] == pytest.approx(wait_quantile(weeks_of, None, 0.95) / 60, abs=1e-6)
        assert sum(part["jobs"] for part in row["by_class"]) == sum(len(week.waits_s) for week in weeks_of)


def test_every_hour_that_is_paid_went_somewhere(found: EqualService) -> None:
    for one in (found.today, *found.policies):
        for week in one.weeks:
            told = {name: week.hours[name] for name in ("busy", "idle", "reconfiguring")}
            assert sum(told.values()) == pytest.approx(week.gpu_hours)
            assert week.hours["stranded"] >= 0.0
            assert week.busy_gpu_hours <= told["busy"] + 1e-6
    table = hours_table(found.to_dict())
    parts = pl.sum_horizontal(pl.exclude("policy", "gpu_hours", "stranded_gpu_hours"))
    assert table.select(parts).to_series().to_list() == pytest.approx(table["gpu_hours"].to_list())


def test_policies_are_told_apart_from_the_winner_by_paired_weeks(
    found: EqualService, shown: dict[str, Any]
) -> None:
    best = found.judged(found.winner).gpu_hours
    rows = {row["policy"]: row for row in shown["told_apart"] if row["unit"] == "GPU h"}
    assert set(rows) == {"today", *(one.policy for one in found.policies)} - {found.winner}
    for policy, row in rows.items():
        difference = found.judged(policy).gpu_hours - best
        assert row["difference"] == pytest.approx(difference.mean())
        if difference.std() > 0:
            assert row["p_holm"] >= stats.ttest_1samp(difference, 0.0).pvalue - 1e-6
            assert (row["verdict"] != "not told apart") == (row["p_holm"] < 0.05)
    doubled = replace(
        found.judged(found.winner), setting=replace(found.judged(found.winner).setting, policy="twin")
    )
    twin = told_apart((found.judged(found.winner), doubled), found.winner)[0]
    assert (twin["difference"], twin["verdict"]) == (0.0, "not told apart")
    alike = shown | {"told_apart": [row | {"verdict": "not told apart"} for row in shown["told_apart"]]}
    assert "not told apart from" in next(how_sure(alike))


def test_why_jobs_can_never_start_is_said(found: EqualService, shown: dict[str, Any]) -> None:
    known, drawn = history(SAMPLE), weeks(SAMPLE)
    fleet, rules = fleet_and_rules(SAMPLE, known)
    slices = PolicySetting("static_mig", "whole", Calendar.constant({"gpu": 1, "1g.10gb:7": fleet.gpus - 1}))
    week = play_in_full(slices, drawn.judged[0], fleet, rules, None)
    assert len(week.misfits) >= week.never_started > 0
    told = policy_row(JudgedPolicy(slices, (week,), ()), found.target)["misfits"]
    assert "whole GPU" in told[0]["reason"]
    text = "\n".join(how_sure(shown | {"policies": [shown["policies"][0] | {"misfits": told}]}))
    assert f"{told[0]['jobs']:,} {told[0]['reason']}" in text


def test_levers_sum_to_the_saving_in_both_orders(found: EqualService, shown: dict[str, Any]) -> None:
    saved = shown["saving_gpu_hours_per_week"]
    for name in ("saved", "saved_reverse"):
        assert sum(row[name] for row in shown["levers"]) == pytest.approx(saved)
        assert all(row[name] >= 0 for row in shown["levers"])
    assert shown["levers"][-1]["gpu_hours"] == pytest.approx(found.judged(found.winner).gpu_hours.mean())
    still = found.judged("static_mig")
    booked = {row.lever: row for row in levers(found.today, [still], still)}
    assert booked["change layouts"].saved == booked["change layouts"].saved_reverse == 0.0
    assert sum(row.saved for row in booked.values()) == pytest.approx(
        (found.today.gpu_hours - still.gpu_hours).mean()
    )


def test_realised_savings_are_those_of_the_weeks_kept_back(
    found: EqualService, shown: dict[str, Any]
) -> None:
    best = found.judged(found.winner)
    assert shown["realised"] == pytest.approx(
        [64 * 168 - week.gpu_hours for week in best.held_back], abs=1e-5
    )
    promised = shown["promised"]
    inside = [promised["low"] <= saved <= promised["high"] for saved in shown["realised"]]
    assert shown["coverage"] == np.mean(inside)
    assert {row["assumption"] for row in promised["assumptions"]} == {"headroom", "evidence_share"}
    looser = {
        row["value"]: row["saving"] for row in promised["assumptions"] if row["assumption"] == "headroom"
    }
    assert looser[0.25] <= looser[0.0]


def test_energy_lies_between_all_idle_and_all_at_the_rating(shown: dict[str, Any]) -> None:
    law = power_model("H100-80GB-SXM5")
    for row in (shown["today"], *shown["policies"]):
        assert law.idle_w * row["gpu_hours"] / 1000 < row["gpu_kwh"] < law.tdp_w * row["gpu_hours"] / 1000
    rows = {row["policy"]: row["gpu_kwh"] for row in (shown["today"], *shown["policies"])}
    assert rows["reactive"] < rows["today"]


@pytest.mark.long
def test_in_hindsight_the_winner_needs_no_more_and_growth_needs_no_less(shown: dict[str, Any]) -> None:
    past = hindsight(SAMPLE, shown)
    assert past["ratio"] >= 1 - 1e-9
    assert (
        past["static_gpu_hours"] >= shown["policies"][1]["gpu_hours"] or past["static_policy"] != "static_mig"
    )
    for row in growth(SAMPLE, shown):
        sizes = [size["gpus"] for size in row["gpus"]]
        assert sizes == sorted(sizes)
        assert all(size["gpus_low"] <= size["gpus"] <= size["gpus_high"] for size in row["gpus"])
        assert row["todays_fleet_until"] >= (1.0 if row["policy"] == "today" else 0.9)


def test_the_target_may_hold_for_every_tenant_alone() -> None:
    asked = replace(SAMPLE, wait_by="tenant", replications=2)
    found = equal_service(asked, ["static_whole"]).to_dict()
    tenants = set(history(asked).jobs["tenant"].unique())
    named = {name for row in found["target"]["by_class"] for name in row["size_class"].split(", ")}
    assert named <= tenants
    assert len(found["target"]["by_class"]) > 1
    assert "of each tenant" in target_in_words(found)
    counted = sum(row["jobs"] for row in found["today"]["by_class"])
    assert counted == sum(week.judged.sum() for week in weeks(asked).judged)
    with pytest.raises(ScenarioError, match="wait_by 'size'"):
        replace(SAMPLE, wait_by="user")


def test_too_short_a_history_and_an_unknown_policy_are_refused() -> None:
    with pytest.raises(ScenarioError, match="at least 14 whole days"):
        equal_service(replace(SAMPLE, history_days=13))
    with pytest.raises(ScenarioError, match="Did you mean 'reactive'"):
        equal_service(SAMPLE, ["reactve"])


def test_pools_of_nodes_hold_the_target_on_the_path_that_can_only_cut_empty_nodes() -> None:
    asked = replace(SAMPLE, path="operator", replications=2)
    found = equal_service(asked, ["autoscaled_pools"])
    row = found.to_dict()["policies"][0]
    assert row["gpu_hours"] < 64 * 168
    assert row["gpu_hours"] >= row["busy_gpu_hours"]
    assert found.winner == "today" or row["meets_target"]
