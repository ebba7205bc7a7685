"""One decision: headline, findings, notes, tables and JSON say what it says, and nothing else is saved anywhere."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpuplanner.scenario import Scenario
from gpuplanner.study import open_study
from gpuplanner.study.decision.frames import hours_table, policy_table
from gpuplanner.study.decision.record import compared
from gpuplanner.study.findings import findings
from gpuplanner.study.future.money import money
from gpuplanner.study.handover.workbooks import notes
from gpuplanner.study.headline import headline_of
from gpuplanner.study.past.history import history
from gpuplanner.study.study import Study


def test_every_door_says_the_same(study: Study):
    one, told = study.decision, json.loads(study.to_json())
    assert one.saving.value > 0
    assert study.headline.saved_gpu_hours_per_week == one.saving.value
    assert study.headline.saved_cost_per_week == pytest.approx(one.worth.usd_per_week, abs=1e-6)
    assert study.headline.saved_fraction == pytest.approx(one.saving.value / (168 * one.fleet_gpus), abs=1e-6)
    assert (study.headline.action, study.headline.winner) == (one.action, one.policy)
    assert study.headline.recommended_gpus == one.gpus
    assert study.findings[2] == notes(study)["Decision"] == told["decision"]["sentence"] == one.sentence
    assert told["decision"] == told["comparison"]["decision"]
    assert told["comparison"] == json.loads(json.dumps(study.comparison.to_dict()))


def test_what_is_saved_is_what_the_tables_tell_apart(study: Study):
    rows = {row["policy"]: row for row in study.tables["policies"].iter_rows(named=True)}
    promised = rows["today"]["gpu_hours_promised"] - rows[study.decision.policy]["gpu_hours_promised"]
    assert promised == pytest.approx(study.decision.saving.value, abs=0.01)
    assert rows["today"]["gpu_hours"] == 168 * study.decision.fleet_gpus
    hours = hours_table(study.comparison).to_dicts()
    for row in hours:
        assert row["busy_gpu_hours"] + row["idle_gpu_hours"] == pytest.approx(row["gpu_hours"])
        assert row["gpu_hours"] == rows[row["policy"]]["gpu_hours"]


@pytest.mark.parametrize("path", ["slurm", "operator"])  # one powers nodes down, the other cannot
def test_electricity_is_one_figure(quick: Scenario, path):
    found = compared(quick.but(path=path))
    rows = {row["policy"]: row for row in policy_table(found).to_dicts()}
    today, best, kwh = rows["today"], rows[found.winner], found.decision.worth.kwh_per_week
    assert (kwh > 0) == (path == "slurm")
    assert found.decision.saving.value > 0
    assert (today["saved_kwh"], best["saved_kwh"]) == (0.0, pytest.approx(kwh, abs=1e-5))
    assert today["energy_kwh"] - best["energy_kwh"] == pytest.approx(kwh, abs=1e-5)
    assert best["off_gpu_hours"] == (found.decision.saving.value if kwh else 0.0)


def test_next_steps_are_all_there_and_the_condition_comes_before_the_change(quick: Scenario):
    one = compared(quick.but(path="operator", policies="static_mig")).decision
    partitioned = [part for part in one.layouts if part.layout != "whole"]
    assert len(partitioned) > 2
    condition, *changes, drain, again = one.monday
    assert condition.endswith(f"gpuplanner hints {quick.data}")
    assert [f"cut {part.gpus} GPU{'s' * (part.gpus > 1)} as {part.layout}" for part in partitioned] == [
        step.partition(" on ")[0] for step in changes
    ]
    assert drain.startswith("drain n")
    assert again.endswith(f"gpuplanner start {quick.data}")


def test_where_nothing_is_saved_no_figure_says_otherwise(study: Study):
    none = replace(study.decision.saving, value=None, low=None, high=None, reason="nothing is set free")
    worth = replace(study.decision.worth, usd_per_week=None)
    kept = replace(study.decision, action="keep", policy="today", saving=none, worth=worth)
    asked = study.scenario
    found = headline_of(history(asked), money(asked), kept, study.tables, study.plan, None).to_dict()
    assert [found[name] for name in found if name.startswith("saved_")] == [None] * 3
    assert found.keys() == study.headline.to_dict().keys()
    assert findings(study.headline, study.tables, kept)[2] == kept.sentence


def test_a_study_from_its_folder_has_the_same_decision(study: Study, tmp_path):
    study.save(tmp_path / "study")
    assert open_study(tmp_path / "study").comparison == study.comparison
