"""The gate: a planted shift of demand fails, a steady fleet passes, and what cannot be evaluated fails nobody."""

from __future__ import annotations

import email
import json

import jsonschema
import polars as pl
import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.fleet_checks_and_alerts import (
    FORECAST_ACCURACY,
    NEXT_DAYS,
    PAST_WAITS,
    RUNWAY,
    Alerts,
    CapacityCheckReport,
    SingleCheckResult,
    check_capacity,
    format_alert_mail,
)
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.ingest.dataset_writer import write_dataset
from tests.decision.recurring.small_fleets import MONDAY, SmallFleet

LAST_WEEK = 49.0
STEADY_LOAD = 0.35
ALERTMANAGER = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["labels"],
        "additionalProperties": False,
        "properties": {
            "startsAt": {"type": "string", "format": "date-time"},
            "endsAt": {"type": "string", "format": "date-time"},
            "generatorURL": {"type": "string", "format": "uri"},
            "labels": {
                "type": "object",
                "propertyNames": {"pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"},
                "additionalProperties": {"type": "string", "minLength": 1},
            },
            "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
        },
    },
}
"""``postableAlerts`` of ``api/v2/openapi.yaml`` of Alertmanager, with its rule for names of labels."""
CLOUD_EVENT = {
    "type": "object",
    "required": ["id", "source", "specversion", "type"],
    "properties": {
        "id": {"type": "string", "minLength": 1},
        "source": {"type": "string", "format": "uri-reference", "minLength": 1},
        "specversion": {"const": "1.0"},
        "type": {"type": "string", "minLength": 1},
        "datacontenttype": {"const": "application/json"},
        "time": {"type": "string", "format": "date-time"},
        "data": {"type": "object"},
    },
    "propertyNames": {"pattern": "^[a-z0-9]{1,20}$"},
}
"""``formats/cloudevents.json`` of CloudEvents 1.0.2, the attributes that we use."""
CHAT = {
    "type": "object",
    "required": ["text"],
    "additionalProperties": False,
    "properties": {"text": {"type": "string", "minLength": 1, "maxLength": 4096}},
}
"""Text alone is what incoming webhooks of Slack, Mattermost, Rocket.Chat and Google Chat (4,096 characters) share."""
MAIL = {
    "type": "object",
    "required": ["subject", "body"],
    "additionalProperties": False,
    "properties": {
        "subject": {"type": "string", "pattern": r"^[^\r\n]+$"}, "body": {"type": "string", "minLength": 1},
    },
}  # fmt: skip


def by_name(found):
    return {one.name: one for one in found.checks}


@pytest.fixture(scope="module")
def shifted(tmp_path_factory):
    fleet = SmallFleet(3, load=STEADY_LOAD, factor=2.5, from_day=LAST_WEEK)
    return str(fleet.write(tmp_path_factory.mktemp("shifted") / "trace"))


def test_command_fails_on_a_shift_and_json_keeps_its_form(shifted, command, tmp_path):
    code, out, _ = command("check", shifted, "--json", "-o", str(tmp_path / "alerts"))
    told = json.loads(out)
    assert code == 1
    assert told["passed"] is False
    assert [set(one) for one in told["checks"]] == [{"name", "passed", "value", "limit", "sentence"}] * 4
    assert {one["name"]: one["passed"] for one in told["checks"]}[PAST_WAITS] is False
    assert set(told["alerts"]) == {"alertmanager", "chat", "mail", "webhook"}
    written = sorted(path.name for path in (tmp_path / "alerts").iterdir())
    assert written == ["alertmanager.json", "chat.json", "check.prom", "mail.eml", "manifest.json", "webhook.json"]
    assert 'gpuplanner_check_passed{check="waits_last_week"} 0' in (tmp_path / "alerts/check.prom").read_text()


def test_the_share_of_late_jobs_is_that_of_the_jobs(shifted):
    """The fleet serves strictly in order and is full while anybody waits, so late jobs can be counted from starts."""
    jobs = open_dataset(shifted).jobs
    since = MONDAY + pl.duration(days=int(LAST_WEEK))
    last = jobs.filter(pl.col("submit_time") >= since).with_columns(
        wait=pl.col("start_time").fill_null(MONDAY + pl.duration(weeks=8)) - pl.col("submit_time")
    )
    shares = last.group_by("gpus").agg(late=(pl.col("wait") > pl.duration(minutes=60)).mean())
    found = by_name(check_capacity(Scenario(data=shifted)))[PAST_WAITS]
    assert found.value <= shares["late"].max() + 1e-9
    assert found.value > 0.5 * shares["late"].max()


def test_limits_are_fields_of_the_scenario(shifted):
    lenient = Scenario(
        data=shifted, check_wait_share=1.0, check_short_chance=1.0, check_miss_chance=0.0, check_exhaustion_chance=1.0
    )
    assert check_capacity(lenient).has_passed
    assert Alerts(check_capacity(lenient)).to_dict() == {}


def test_seconds_between_an_end_and_the_next_start_hide_no_wait(shifted, tmp_path):
    whole = open_dataset(shifted)
    jobs = whole.jobs.with_columns(pl.col("end_time") - pl.duration(seconds=5))
    write_dataset(whole.with_tables(jobs=jobs), tmp_path / "trace")
    plain, apart = (
        by_name(check_capacity(Scenario(data=data)))[PAST_WAITS] for data in (shifted, str(tmp_path / "trace"))
    )
    assert apart.value == pytest.approx(plain.value, abs=0.05)


@pytest.fixture(scope="module")
def steady(tmp_path_factory):
    return str(SmallFleet(3, load=STEADY_LOAD).write(tmp_path_factory.mktemp("steady") / "trace"))


def test_more_jobs_ahead_change_nothing_of_the_week_behind(steady):
    before, after = (by_name(check_capacity(Scenario(data=steady, arrival_scale=scale))) for scale in (0.5, 4.0))
    assert before[PAST_WAITS] == after[PAST_WAITS]
    assert before[FORECAST_ACCURACY] == after[FORECAST_ACCURACY]
    assert before[NEXT_DAYS].value < 0.2 < 0.8 < after[NEXT_DAYS].value
    assert before[RUNWAY].value < 0.5 < after[RUNWAY].value


def test_a_record_that_is_too_short_for_growth_is_said_to_be(tmp_path):
    fleet = SmallFleet(3, load=STEADY_LOAD, weeks=5)
    found = by_name(check_capacity(Scenario(data=str(fleet.write(tmp_path / "trace")))))[RUNWAY]
    assert (found.passed, found.value) == (True, None)
    assert "6 needed" in found.sentence


def test_no_starts_and_no_list_of_nodes_are_said(tmp_path, shifted):
    whole = open_dataset(shifted)
    unlisted = {name: table for name, table in whole.tables.items() if name != "inventory"}
    write_dataset(whole.__class__(unlisted, whole.rejects, whole.quality, whole.provenance), tmp_path / "trace")
    found = by_name(check_capacity(Scenario(data=str(tmp_path / "trace"))))
    assert found[NEXT_DAYS].value is None
    assert found[NEXT_DAYS].passed
    assert "inferred" in found[NEXT_DAYS].sentence
    assert found[RUNWAY].value is None


def test_payloads_keep_the_schemas_of_their_channels():
    late = SingleCheckResult("waits last week", False, 0.3, 0.1, "30% <of> the jobs & more waited.")
    found = CapacityCheckReport(
        "<!channel> & @all\r\nBcc: me", MONDAY, (late, SingleCheckResult("capacity runway", True, None, 0.9, "-"))
    )
    sent = Alerts(found).to_dict()
    forms = {"alertmanager": ALERTMANAGER, "webhook": CLOUD_EVENT, "chat": CHAT, "mail": MAIL}
    assert sent.keys() == forms.keys()
    for channel, form in forms.items():
        jsonschema.validate(sent[channel], form, format_checker=jsonschema.FormatChecker())
    assert [one["labels"]["check"] for one in sent["alertmanager"]] == ["waits_last_week"]
    assert not set("<>") & set(sent["chat"]["text"])
    assert "@all" not in sent["chat"]["text"]
    mail = email.message_from_string(format_alert_mail(found))
    assert mail["Bcc"] is None
    assert "30% <of> the jobs" in mail.get_payload(decode=True).decode()


@pytest.mark.long
@pytest.mark.parametrize(
    ("seeds", "factor", "least", "most"),
    [
        (4, 1.0, 0, 1), (4, 2.0, 3, 4),
        *(pytest.param(40, *row, marks=pytest.mark.long) for row in ((1.0, 0, 3), (1.5, 30, 40), (2.0, 38, 40))),
    ],
)  # fmt: skip
def test_a_shift_is_found_and_steady_demand_is_let_through(seeds, factor, least, most, tmp_path):
    """Fleets of 16 GPUs, eight weeks; the table in ``docs/recurring.md`` has other fleets and factors."""
    failed = 0
    for seed in range(seeds):
        fleet = SmallFleet(seed, load=STEADY_LOAD, factor=factor, from_day=LAST_WEEK)
        failed += not check_capacity(Scenario(data=str(fleet.write(tmp_path / str(seed))))).has_passed
    assert least <= failed <= most
