"""The record of a comparison: the same object from its JSON, fields that equal the decision, one interface."""

from __future__ import annotations

import json
from datetime import date

import pytest

from gpuplanner.files import to_json
from gpuplanner.hardware import parse_layout
from gpuplanner.scenario import Scenario
from gpuplanner.study.decision.decide import Answer
from gpuplanner.study.decision.record import Comparison, comparison_of
from gpuplanner.study.decision.sentences import unknown_decision
from gpuplanner.study.decision.types import ACTIONS, CONFIDENCES, CUT_BY_JOBS
from gpuplanner.study.study import Study

FIELDS = {
    "": {"sentence", "action", "fleet_gpus", "gpus", "gpus_mean", "layouts", "policy", "path", "confidence",
         "shortage", "saving_gpu_hours_per_week", "worth", "service", "run_out", "monday", "missing"},
    "shortage": {"gpu_hours", "jobs", "by_place", "gpus_needed"},
    "saving_gpu_hours_per_week": {"value", "low", "high", "reason"},
    "worth": {"ownership", "usd_per_week", "basis"},
    "service": {"quantile", "added_minutes", "by_class"},
    "run_out": {"today", "recommended"},
}  # fmt: skip
"""What others read of a decision: these names stay."""


def unknown() -> Comparison:
    return comparison_of(Answer(unknown_decision(Scenario(), "no job states when it ran"), None))


@pytest.fixture(params=["sample", "unknown"])
def found(request, study: Study) -> Comparison:
    return study.comparison if request.param == "sample" else unknown()


def test_a_comparison_survives_its_json(found):
    again = Comparison.from_dict(json.loads(to_json(found.to_dict())))
    assert again == Comparison.from_dict(found.to_dict())
    assert again.to_dict() == found.to_dict()
    assert again.decision == Comparison.from_dict(again.to_dict()).decision
    assert isinstance(again.decision.layouts, tuple)
    for row in again.rows:
        assert row == found.row(row.policy)


def test_top_level_fields_equal_the_decision(found):
    told, one = found.to_dict(), found.decision
    saving = told["decision"]["saving_gpu_hours_per_week"]
    assert told["winner"] == told["decision"]["policy"] == one.policy
    assert told["saving_gpu_hours_per_week"] == saving["value"] == one.saving.value
    assert (told["saving_low"], told["saving_high"]) == (saving["low"], saving["high"])
    assert told["reason"] == saving["reason"]
    assert told["target"]["quantile"] == one.service.quantile
    if told["today"] is not None:
        assert told["target"]["minutes"] == Scenario().wait_minutes
        assert {"policy", "gpu_hours", "meets_target"} <= set(told["policies"][0])


def test_a_decision_follows_the_interface(found):
    told = found.to_dict()["decision"]
    for name, fields in FIELDS.items():
        part = told[name] if name else told
        assert fields <= set(part), name
    assert told["action"] in ACTIONS
    assert told["confidence"] in CONFIDENCES
    for side in told["run_out"].values():
        assert {"date", "by_week"} <= set(side)
        assert (side["date"] is None) == (side["reason"] is not None)
        chances = [chance for _, chance in side["by_week"]]
        assert chances == sorted(chances), "what has run out stays so"
        if side["date"] is not None:
            date.fromisoformat(side["date"])
    for row in told["missing"]:
        assert set(row) == {"what", "command"}
        assert row["command"].startswith("gpuplanner ")
    assert (
        told["saving_gpu_hours_per_week"]["value"] is not None or told["saving_gpu_hours_per_week"]["reason"]
    )


def test_layouts_are_those_of_the_gpus_that_are_on(study: Study):
    one = study.decision
    assert sum(part.gpus for part in one.layouts) == one.gpus <= one.fleet_gpus
    assert one.gpus_mean <= one.gpus
    assert unknown().decision.layouts == ()
    names = [name for part in one.layouts for name in part.nodes]
    nodes = set(study.problem.nodes)
    assert set(names) <= nodes, "no node is made up"
    for part in one.layouts:
        assert part.layout in ("whole", CUT_BY_JOBS) or parse_layout(part.layout)


def test_the_class_that_pays_most_is_what_is_added(study: Study):
    service = study.decision.service
    assert service.added_minutes >= max(row.added_minutes for row in service.by_class) - 1e-9
    assert all(row.minutes <= row.limit_minutes + 1e-9 for row in service.by_class), (
        "the recommended way holds"
    )
    winner = study.comparison.row(study.decision.policy)
    assert winner.meets_target
    assert winner.added_minutes == pytest.approx(service.added_minutes, abs=1e-5)
    assert study.comparison.today.added_minutes == 0.0
