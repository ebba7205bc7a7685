"""Rules as data: what the shipped ones name, and what a condition means."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.usage.job_classes import (
    JOB_CLASSES,
    NUMBER_RULE_COLUMNS,
    TEXT_RULE_COLUMNS,
    NameCondition,
    RangeCondition,
    Rule,
    classify_jobs,
    make_rule,
    shipped_rules,
)
from tests.examples import examples

NINE = datetime(2026, 2, 2, 9, tzinfo=UTC)


def rules_of(text: str) -> tuple[Rule, ...]:
    return tuple(map(make_rule, yaml.safe_load(text)["rules"]))


def one_rule(when: str, job_class: str = "evaluation") -> str:
    return f"rules:\n- name: r\n  class: {job_class}\n  when:\n    {when}\n"


def test_shipped_rules_name_every_class_and_only_what_is_known():
    rules = shipped_rules()
    assert {rule.job_class for rule in rules} == set(JOB_CLASSES)
    assert all(rule.because for rule in rules)
    assert len({rule.name for rule in rules}) == len(rules)
    facts = {condition.fact for rule in rules for condition in rule.conditions}
    assert {"job_name", "partition", "gpus", "run_s", "time_limit_s", "sm_activity", "activity_spread", "hour",
            "repeats"} <= facts <= {*TEXT_RULE_COLUMNS, *NUMBER_RULE_COLUMNS}  # fmt: skip
    assert all(rule.conditions for rule in rules)
    ranges = [each for rule in rules for each in rule.conditions if isinstance(each, RangeCondition)]
    assert all(each.low < each.high or each.fact == "hour" for each in ranges)
    # Sessions, services and the like are told by words; only they may speak before a job ran.
    assert {rule.name.rpartition(" by ")[0] != "" for rule in rules if rule.before_run} == {True}


def test_given_rules_take_the_place_of_the_shipped():
    rules = rules_of(one_rule("job_name: [Fine_Tune]\n    gpus: {from: 2}", "fine-tuning"))
    assert rules[0].conditions == (NameCondition("job_name", ("fine tune",)), RangeCondition("gpus", 2.0, float("inf")))
    jobs = jobs_of({"job_name": "FINE-tune7b", "gpus": 2.0}, {"job_name": "finetuned", "gpus": 2.0}, {"gpus": 2.0})
    assert classify_jobs(jobs, rules)["job_class"].to_list() == ["fine-tuning", None, None]


def jobs_of(*rows, **columns):
    usual = {"attempt": 1, "tenant": "t", "user": "u", "state": "COMPLETED", "gpus": 1.0, "submit_time": NINE,
             "start_time": NINE, "end_time": NINE + timedelta(hours=1)}  # fmt: skip
    table = [{"job_id": str(number)} | usual | columns | row for number, row in enumerate(rows)]
    return pl.DataFrame(table, infer_schema_length=None)


@pytest.mark.parametrize(
    ("name", "word", "holds"),
    [
        ("OOD Jupyter Notebook", "jupyter", True),
        ("myjupyterlab", "jupyter", False),
        ("code_server", "code server", True),
        ("server code", "code server", False),
        ("ÉVAL", "éval", True),
        (None, "eval", False),
    ],
)
def test_words_stand_alone_and_case_does_not_count(name, word, holds):
    jobs = jobs_of({"job_name": name}).with_columns(pl.col("job_name").cast(pl.String))
    rules = rules_of(one_rule(f"job_name: ['{word}']"))
    assert classify_jobs(jobs, rules)["job_class"].to_list() == ["evaluation" if holds else None]


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from([fact for fact in NUMBER_RULE_COLUMNS if fact != "hour"]),
    st.one_of(st.none(), st.floats(-5, 5)),
    st.floats(-5, 5),
    st.floats(0.1, 5),
)
def test_range_is_half_open_and_missing_never_holds(fact, value, low, width):
    condition = RangeCondition(fact, low, low + width)
    seen = pl.DataFrame({fact: [value]}, schema={fact: pl.Float64}).select(condition.holds().fill_null(False)).item()
    assert seen == (value is not None and low <= value < low + width)


@pytest.mark.parametrize(("hour", "holds"), [(21.9, False), (22.0, True), (3.0, True), (5.99, True), (6.0, False)])
def test_hours_pass_midnight(hour, holds):
    (rule,) = rules_of(one_rule("hour: {from: 22, below: 6}"))
    assert pl.DataFrame({"hour": [hour]}).select(rule.holds()).item() == holds


def test_first_rule_decides():
    text = one_rule("gpus: {from: 1}") + "- name: s\n  class: inference\n  when: {gpus: {from: 0.5}}\n"
    found = classify_jobs(jobs_of({"gpus": 2.0}, {"gpus": 0.5}, {"gpus": None}), rules_of(text))
    assert found["rule"].to_list() == ["r", "s", None]
    assert found["facts"].to_list() == ["gpus=2", "gpus=0.5", None]
