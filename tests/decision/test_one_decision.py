"""One decision: headline, findings, notes, tables and JSON say what it says, and nothing else is saved anywhere."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from dataclasses import replace

import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.comparison_record import compare_policies
from gpuplanner.decision.decision_text import _format_stated_settings
from gpuplanner.decision.study import Study, open_study
from gpuplanner.decision.study_pipeline import list_findings
from gpuplanner.report.focus_files_and_workbooks import study_notes


def test_every_door_says_the_same(study: Study):
    one, told = study.decision, json.loads(study.to_json())
    assert study.findings[2] == study_notes(study)["Decision"] == told["decision"]["sentence"] == one.sentence
    assert told["decision"] == told["comparison"]["decision"]
    assert told["comparison"] == json.loads(json.dumps(study.comparison.to_dict()))


def test_hours_are_what_the_tables_tell_apart(study: Study):
    rows = {row["policy"]: row for row in study.tables["policies"].iter_rows(named=True)}
    assert rows[study.decision.policy]["gpu_hours"] == pytest.approx(168 * study.decision.gpus_mean)
    assert rows["today"]["gpu_hours"] == 168 * study.decision.fleet_gpus
    service = study.tables["waits"].rows(named=True)
    assert {row["size"]: row["limit_minutes"] for row in service} == {
        row.size: row.limit_minutes for row in study.decision.service
    }


@pytest.mark.long
def test_next_steps_are_all_there_and_the_condition_comes_before_the_change(quick: Scenario):
    one = compare_policies(quick.but(actuator="mig-manager", policies="mig_static")).decision
    partitioned = [part for part in one.layouts if part.layout != "whole"]
    assert len(partitioned) > 2
    condition, *changes, again = one.next_steps
    assert condition.command == f"gpuplanner rightsize {quick.data}"
    changed: Counter[str] = Counter()
    for step in changes:
        gpus, layout, today = re.fullmatch(r"partition (\d+) GPUs? of .+ as (\S+) \(today (\S+)\)", step.what).groups()
        assert layout != today
        changed[layout] += int(gpus)
    assert changed == {part.layout: part.gpus for part in partitioned}
    assert again.command.startswith("gpuplanner start ")


def test_where_nothing_is_saved_no_finding_says_otherwise(study: Study):
    none = replace(study.decision.saving, value=None, low=None, high=None, reason="nothing is set free")
    worth = replace(study.decision.financial_impact, usd_per_week=None)
    kept = replace(study.decision, action="keep", policy="today", saving=none, financial_impact=worth)
    assert list_findings(study.headline, study.tables, kept)[2] == kept.sentence


def test_a_study_from_its_folder_has_the_same_decision(study: Study, tmp_path):
    study.save(tmp_path / "study")
    assert open_study(tmp_path / "study").comparison == study.comparison


def test_settings_of_a_printed_command_give_the_same_scenario():
    stated = Scenario(
        data="d", actuator="slurm", gpu_model="A100-80GB", tz="Europe/Berlin", ownership="rented", gpus=12,
        policies="today, fewer_nodes", growth_per_week=0.01, approved_by="J. Doe; $(x)", month="2026-03",
    )  # fmt: skip
    words = shlex.split(_format_stated_settings(stated))
    assert words[::2] == ["--set"] * (len(words) // 2)
    assert Scenario(data="d", actuator="slurm").with_text(words[1::2]) == stated
    assert _format_stated_settings(Scenario(data="d")) == ""
