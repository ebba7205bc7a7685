"""Announced projects count in ``check`` and ``forecast``, and a wrong or missing file ends both."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.announced_projects import Project, project_span, tabulate_project_jobs
from gpuplanner.decision.fleet_checks_and_alerts import NEXT_DAYS, RUNWAY, check_capacity
from tests.decision.recurring.small_fleets import SmallFleet


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Sixteen GPUs of which half are used, to 2 March 2026."""
    return str(SmallFleet(3, weeks=8, nodes=2).write(tmp_path_factory.mktemp("ahead") / "trace"))


def checked(fleet, folder, text=""):
    path = folder / "projects.yaml"
    path.write_text(f"projects: {text or '[]'}\n")
    report = check_capacity(Scenario(data=fleet, projects=str(path)))
    return {check.name: check for check in report.checks}


def test_a_project_ahead_raises_the_chance_of_too_few_gpus(fleet, tmp_path):
    without = {check.name: check for check in check_capacity(Scenario(data=fleet)).checks}
    assert "announced" not in without[NEXT_DAYS].sentence
    assert checked(fleet, tmp_path)[NEXT_DAYS].value == without[NEXT_DAYS].value
    sure = "[{name: x, team: speech, gpus: 64, from: 2026-03-02}]"
    found = checked(fleet, tmp_path, sure)
    assert found[NEXT_DAYS].value == 1.0
    assert found[RUNWAY].value == 1.0
    assert "Beginning by then: 1 announced project, 64 GPUs on average." in found[NEXT_DAYS].sentence
    half = checked(fleet, tmp_path, sure.replace("from", "chance: 0.5, from"))[NEXT_DAYS].value
    usual = without[NEXT_DAYS].value
    assert half == pytest.approx((usual + 1.0) / 2, abs=0.05)


def test_projects_of_the_past_of_later_months_and_of_other_gpus_add_nothing_now(fleet, tmp_path):
    usual = checked(fleet, tmp_path)[NEXT_DAYS].value
    for when in ("from: 2026-01-05", "from: 2027-01", "gpu_model: T4, from: 2026-03-02"):
        assert checked(fleet, tmp_path, f"[{{name: x, team: a, gpus: 64, {when}}}]")[NEXT_DAYS].value == usual, when


@pytest.mark.parametrize("arguments", [("check",), ("forecast",), ("forecast", "--by", "tenant")])
def test_a_missing_file_of_projects_ends_the_command(fleet, command, tmp_path, arguments):
    code, _, said = command(*arguments, fleet, "--set", f"projects={tmp_path / 'none.yaml'}")
    assert code == 3
    assert "none.yaml: expected a readable YAML file" in said


def test_a_forecast_has_announced_projects(fleet, answer, tmp_path):
    path = tmp_path / "projects.yaml"
    path.write_text("projects: [{name: x, team: vision, gpus: 100, from: 2026-03-02, chance: 0.5}]\n")
    options = ("--by", "tenant", "--horizon", "48", "--json")
    usual, more = (answer("forecast", fleet, *options, *extra) for extra in ((), ("--set", f"projects={path}")))

    def mean(told, series):
        values = [row["mean"] for row in told["forecast"] if row["unique_id"] == series]
        return sum(values) / len(values)

    ids = {row["unique_id"] for row in usual["forecast"]}
    vision = next(name for name in ids if name.startswith("vision"))
    assert mean(more, vision) == pytest.approx(mean(usual, vision) + 50.0, abs=1e-6)


def test_a_backtest_refuses_announced_jobs(fleet, command, tmp_path):
    code, _, said = command("forecast", fleet, "--backtest", "--announced", str(tmp_path / "none.csv"))
    assert code == 2
    assert "--announced" in said


def test_days_of_projects_are_of_the_time_zone_and_both_included():
    project = Project("x", "nlp", 8, None, None, "2026-03-01", "2026-03-31", 0.25)
    begin, end = datetime(2026, 2, 28, 23, tzinfo=UTC), datetime(2026, 3, 31, 22, tzinfo=UTC)
    assert project_span(project, "Europe/Berlin") == (begin, end)
    assert tabulate_project_jobs([project], "Europe/Berlin").rows() == [("nlp", begin, end, 2.0)]
    assert tabulate_project_jobs([], "UTC").is_empty()


def test_a_project_file_with_an_error_is_named_by_check(fleet, tmp_path):
    with pytest.raises(ScenarioError, match="either gpus or jobs"):
        checked(fleet, tmp_path, "[{name: x, team: a, from: 2026-03-02}]")
