"""Rules as data: what a file may say, what a condition means, and what a bad file is told."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.errors import GpuPlannerError, ScenarioError
from gpuplanner.usage.job_classes import (
    JOB_CLASSES,
    UNIT_BY_NUMBER_RULE_COLUMN,
    NameCondition,
    RangeCondition,
    classify_jobs,
    read_rules,
    shipped_rules,
)
from tests.examples import examples

NINE = datetime(2026, 2, 2, 9, tzinfo=UTC)


@pytest.fixture
def rules_of(tmp_path: Path):
    def read(text: str):
        path = tmp_path / "rules.yaml"
        path.write_text(text, encoding="utf-8")
        return read_rules(path)

    return read


def one_rule(when: str, job_class: str = "evaluation") -> str:
    return f"rules:\n- name: r\n  class: {job_class}\n  when:\n    {when}\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[]", ["rules.yaml: expected a mapping with rules"]),
        ("rules: []", ["at least one rule"]),
        ("rule: []", ["line 1", "'rule'", "Did you mean 'rules'?"]),
        (one_rule("gpus: {from: 1}", "evaluating"), ["line 3", "'evaluating'", "Did you mean 'evaluation'?"]),
        ("rules:\n- name: r\n  class: evaluation", ["line 2", "rule 'r'", "at least one condition"]),
        (one_rule("gpus: 8"), ["line 5", "gpus", "{from: ..., below: ...}", "got 8"]),
        (one_rule("gpus: {from: 8, below: 8}"), ["line 5", "a range that holds something"]),
        (one_rule("run_s: {from: 2h}"), ["line 5", "run_s, from", "a number", "'2h'", "Unit: s"]),
        (one_rule("job_name: []"), ["line 5", "a list of words"]),
        (one_rule("gpus: {from: 1}") + one_rule("gpus: {from: 1}")[7:], ["different names", "'r'"]),
        ("rules: !!python/object/apply:os.system ['true']", ["line 1", "plain data"]),
    ],
)
def test_bad_file_is_told_line_value_and_nearest_key(rules_of, text, told):
    with pytest.raises(ScenarioError) as fault:
        rules_of(text)
    assert all(part in str(fault.value) for part in told), str(fault.value)


@settings(max_examples=examples(30), deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["rules", "name", "class", "when", "gpus", "from", "job_name", "x"]), inner
            )
        ),
        max_leaves=8,
    )
)
def test_any_document_is_read_or_refused(tmp_path_factory, document):
    path = tmp_path_factory.mktemp("rules") / "rules.yaml"
    path.write_text(yaml.safe_dump({"rules": [document]}), encoding="utf-8")
    with contextlib.suppress(GpuPlannerError):  # anything else is a fault
        assert read_rules(path)


def test_shipped_rules_name_every_class_and_only_what_is_known():
    rules = shipped_rules()
    assert {rule.job_class for rule in rules} == set(JOB_CLASSES)
    assert all(rule.because for rule in rules)
    facts = {condition.fact for rule in rules for condition in rule.conditions}
    assert {"job_name", "partition", "gpus", "run_s", "time_limit_s", "sm_activity", "activity_spread", "hour",
            "repeats"} <= facts  # fmt: skip
    # Sessions, services and the like are told by words; only they may speak before a job ran.
    assert {rule.name.rpartition(" by ")[0] != "" for rule in rules if rule.before_run} == {True}


def test_user_rules_take_the_place_of_the_shipped(rules_of):
    rules = rules_of(one_rule("job_name: Fine_Tune\n    gpus: {from: 2}", "fine-tuning"))
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
def test_words_stand_alone_and_case_does_not_count(rules_of, name, word, holds):
    jobs = jobs_of({"job_name": name}).with_columns(pl.col("job_name").cast(pl.String))
    rules = rules_of(one_rule(f"job_name: ['{word}']"))
    assert classify_jobs(jobs, rules)["job_class"].to_list() == ["evaluation" if holds else None]


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from([fact for fact in UNIT_BY_NUMBER_RULE_COLUMN if fact != "hour"]),
    st.one_of(st.none(), st.floats(-5, 5)),
    st.floats(-5, 5),
    st.floats(0.1, 5),
)
def test_range_is_half_open_and_missing_never_holds(fact, value, low, width):
    condition = RangeCondition(fact, low, low + width)
    seen = pl.DataFrame({fact: [value]}, schema={fact: pl.Float64}).select(condition.holds().fill_null(False)).item()
    assert seen == (value is not None and low <= value < low + width)


@pytest.mark.parametrize(("hour", "holds"), [(21.9, False), (22.0, True), (3.0, True), (5.99, True), (6.0, False)])
def test_hours_pass_midnight(rules_of, hour, holds):
    (rule,) = rules_of(one_rule("hour: {from: 22, below: 6}"))
    assert pl.DataFrame({"hour": [hour]}).select(rule.holds()).item() == holds


def test_first_rule_decides(rules_of):
    text = one_rule("gpus: {from: 1}") + "- name: s\n  class: inference\n  when: {gpus: {from: 0.5}}\n"
    found = classify_jobs(jobs_of({"gpus": 2.0}, {"gpus": 0.5}, {"gpus": None}), rules_of(text))
    assert found["rule"].to_list() == ["r", "s", None]
    assert found["facts"].to_list() == ["gpus=2", "gpus=0.5", None]
