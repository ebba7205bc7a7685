"""The record of a comparison: the same object from its JSON, fields that equal the decision, one interface."""

from __future__ import annotations

import json
from datetime import date

import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.core.serialization import to_json
from gpuplanner.decision.comparison_record import Comparison, record_comparison
from gpuplanner.decision.decision_text import make_empty_decision
from gpuplanner.decision.decision_types import ACTIONS, LAYOUT_PER_JOB
from gpuplanner.decision.recommendation import DecisionBasis
from gpuplanner.decision.study import Study
from gpuplanner.hardware.mig_layouts import parse_layout

FIELDS = {
    "decision": {"action", "measures", "sentence", "fleet_gpus", "gpus", "layouts", "service", "next_steps",
                 "conditions", "missing", "reason"},
    "waits": {"causes", "explained_fraction", "replay_error", "limits"},
    "growth_per_week": {"value", "low", "high", "reason"},
    "exhaustion": {"date", "probability", "order_by", "reason"},
}  # fmt: skip
ROWS = {
    "measures": {"action", "text", "gpus", "condition"},
    "service": {"size", "jobs", "observed_p95_minutes", "today_p95_minutes", "recommended_p95_minutes", "low", "high",
                "today_mean_minutes", "recommended_mean_minutes", "jobs_delayed", "limit_minutes", "today_low",
                "today_high", "today_completion_minutes", "completion_minutes", "completion_low", "completion_high"},
    "next_steps": {"who", "what", "command", "action"},
    "missing": {"what", "command"},
}  # fmt: skip
"""What others read of a decision: these names stay."""


def nothing() -> Comparison:
    return record_comparison(Scenario(), DecisionBasis(make_empty_decision(Scenario(), "no job states when it ran")))


@pytest.fixture(params=["sample", "nothing"])
def found(request, study: Study) -> Comparison:
    return study.comparison if request.param == "sample" else nothing()


def test_a_comparison_survives_its_json(found):
    again = Comparison.from_dict(json.loads(to_json(found.to_dict())))
    assert again == Comparison.from_dict(found.to_dict())
    assert again.to_dict() == found.to_dict()
    assert again.decision == Comparison.from_dict(again.to_dict()).decision
    assert isinstance(again.decision.layouts, tuple)
    for row in again.rows:
        assert row == found.find_row(row.policy)


def test_top_level_fields_equal_the_decision(found):
    told, one = found.to_dict(), found.decision
    saving = told["decision"]["saving_gpu_hours_per_week"]
    assert told["winner"] == told["decision"]["policy"] == one.policy
    assert told["saving_gpu_hours_per_week"] == saving["value"] == one.saving.value
    assert (told["saving_low"], told["saving_high"]) == (saving["low"], saving["high"])
    assert told["reason"] == saving["reason"]
    assert told["target"] == {"quantile": 0.95, "minutes": Scenario().max_added_wait_minutes}
    if told["today"] is not None:
        assert {"policy", "gpu_hours", "meets_target"} <= set(told["policies"][0])


def test_a_decision_follows_the_interface(found):
    told = found.to_dict()
    for name, fields in FIELDS.items():
        assert told[name] is None or fields <= set(told[name]), name
    one = told["decision"]
    for name, fields in ROWS.items():
        assert all(set(row) == fields for row in one[name]), name
    assert one["action"] in ACTIONS
    assert (one["action"] == "none") == (not one["measures"] and bool(one["reason"]) and one["gpus"] == 0)
    assert all(measure["action"] in ACTIONS for measure in one["measures"])
    assert one["conditions"] == [row["condition"] for row in one["measures"] if row["condition"]]
    ends = told["exhaustion"]
    assert ends["date"] is None or date.fromisoformat(ends["order_by"]) < date.fromisoformat(ends["date"])
    for row in one["missing"]:
        assert row["command"].startswith("gpuplanner ")
    assert one["saving_gpu_hours_per_week"]["value"] is not None or one["saving_gpu_hours_per_week"]["reason"]


def test_the_wait_curve_has_every_job_size_at_todays_gpus(study: Study):
    told = study.comparison.to_dict()
    keys = {
        "layout",
        "gpus",
        "job_size",
        "p95_minutes",
        "low",
        "high",
        "mean_minutes",
        "allocation_rate",
        "gpu_hours",
        "completion_minutes",
        "completion_low",
        "completion_high",
    }
    assert {frozenset(row) for row in told["wait_curve"]} == {frozenset(keys)}
    sizes = {row.size for row in study.decision.service}
    for layout in ("today", "recommended"):
        points = [row for row in told["wait_curve"] if row["layout"] == layout]
        assert {row["job_size"] for row in points if row["gpus"] == 64} == sizes
        assert min(row["gpus"] for row in points) <= 32 < 128 <= max(row["gpus"] for row in points)
        assert all(0 <= row["allocation_rate"] <= 1 for row in points)
        assert all(row["gpu_hours"] == pytest.approx(168 * row["gpus"]) for row in points)
    now = {row["job_size"]: row["p95_minutes"] for row in told["wait_curve"]
           if (row["layout"], row["gpus"]) == ("today", 64)}  # fmt: skip
    assert now == {row.size: pytest.approx(row.today_p95_minutes, abs=1e-5) for row in study.decision.service}


def test_layouts_are_those_of_the_gpus_that_are_on(study: Study):
    one = study.decision
    assert sum(part.gpus for part in one.layouts) == one.gpus <= one.fleet_gpus
    assert one.gpus_mean <= one.gpus
    assert nothing().decision.layouts == ()
    names = [name for part in one.layouts for name in part.nodes]
    nodes = set(study.problem.nodes)
    assert set(names) <= nodes, "no node is made up"
    for part in one.layouts:
        assert part.layout in ("full", LAYOUT_PER_JOB) or parse_layout(part.layout)


def test_each_job_size_keeps_its_limit_as_recommended(study: Study):
    one = study.decision
    assert one.action == "rightsize"
    assert all(row.meets_limit for row in one.service)
    assert one.longest_waiting.today_p95_minutes > 60 > one.longest_waiting.recommended_p95_minutes
    winner = study.comparison.find_row(one.policy)
    assert winner.meets_target
    assert winner.peak_gpus == one.gpus
    assert study.comparison.today.added_wait_p95_minutes == 0.0
