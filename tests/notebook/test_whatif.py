"""The what-if panel in plain Python: set a control, look at the estimate, the exact answer and the files."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import re
import threading
from concurrent.futures import CancelledError
from html import unescape

import fastexcel
import polars as pl
import pytest

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.units_and_number_formats import wait_text
from gpuplanner.decision.comparison_record import (
    Comparison,
    compare_policies,
    make_policy_table,
    make_wait_table,
    reprice_comparison,
)
from gpuplanner.decision.decision_text import format_decision, format_stated_fleet, make_empty_decision
from gpuplanner.decision.decision_types import CurvePoint, Measure
from gpuplanner.decision.fleet_size_decision import format_missed_limits, simulate_fleet_waits
from gpuplanner.decision.policy_comparison import SHORT_NAMES
from gpuplanner.notebook import views_and_panels as background
from gpuplanner.notebook.study_views import StudyView, compare, decide
from gpuplanner.notebook.what_if import CONTROL_ORDER, PRICE_FIELD, WhatIf, whatif
from gpuplanner.notebook.what_if_answer import answer_html, answer_waits, estimate_answer, exact_answer, headline
from gpuplanner.report.first_screen import render_first_screen
from gpuplanner.report.policy_and_team_sections import render_policy_section, render_wait_section

answers = importlib.import_module("gpuplanner.notebook.what_if_answer")
panels = importlib.import_module("gpuplanner.notebook.what_if")  # its function has the name of the module
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def start(quick) -> Comparison:
    """Comparison at which the panel begins."""
    return compare_policies(quick)


@pytest.fixture(scope="module")
def smaller(quick) -> Comparison:
    """Comparison of 48 GPUs."""
    return compare_policies(quick.but(gpus=48))


@pytest.fixture(scope="module")
def busier(quick) -> Comparison:
    """Comparison at 1.3 times the recorded demand."""
    return compare_policies(quick.but(arrival_scale=1.3))


@pytest.fixture
def panel(quick, start) -> WhatIf:
    return WhatIf(quick, start)


@pytest.fixture
def asked(monkeypatch, start) -> list[Scenario]:
    """Scenarios that the panel simulates; each is answered at once."""
    scenarios: list[Scenario] = []

    def compare(scenario, report_run):
        scenarios.append(scenario)
        report_run("mig_static", None)
        return start

    monkeypatch.setattr(panels, "compare_policies", compare)
    return scenarios


def cards(html: str) -> list[str]:
    """Texts of the values of the four cards."""
    return [unescape(re.sub("<.*?>", "", cell)) for cell in re.findall(r"<div class='value'>(.*?)</div>", html)]


def test_controls_start_at_the_recommendation(panel, quick, start):
    decision = start.decision
    assert panel.controls["gpus"].value == decision.gpus
    assert panel.controls["actuator"].value == quick.actuator
    assert panel.scenario == quick
    assert panel.pins[0].gpus == decision.fleet_gpus
    assert headline(panel.newest)[0] in decision.sentence
    assert f"{decision.gpus} recommended · {decision.fleet_gpus} today" in panel.notes["gpus"].value
    assert not panel.files.disabled


def test_a_browser_keeps_the_fleet_size_of_uneven_nodes(quick, start):
    assert WhatIf(quick).controls["gpus"].step == 1  # until the nodes are known
    uneven = dataclasses.replace(start.decision, gpus=47, fleet_gpus=47)
    slider = WhatIf(quick, dataclasses.replace(start, decision=uneven)).controls["gpus"]
    assert slider.value == 47
    assert (slider.value - slider.min) % slider.step == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gpus", 48),
        ("arrival_scale", 1.2),
        ("growth_per_week", 0.01),
        ("max_added_wait_minutes", 30.0),
        ("actuator", "dra"),
        ("mig_layout", "today"),
    ],
)
def test_every_control_is_estimated_at_once_and_exported_only_when_exact(panel, quick, name, value):
    panel.controls[name].value = value
    assert "≈" in panel.answer.value
    assert ("Estimate" in panel.state.value) == (name != "arrival_scale")  # no wait is guessed at another demand
    assert "Exact" not in panel.state.value
    assert panel.files.disabled
    assert getattr(panel.scenario, name) == value
    assert panel.newest.scenario == quick  # an estimate is not kept
    assert cards(panel.answer.value)[3].endswith("…")
    panel.write()
    assert "no exact answer" in panel.written.value


def test_actuator_and_growth_say_that_they_are_exact_only(panel):
    for name in CONTROL_ORDER:
        assert ("exact only" in panel.notes[name].value) == (name in ("arrival_scale", "actuator", "growth_per_week"))


def test_an_estimate_is_the_simulation_where_the_curve_was_simulated(quick, start, smaller):
    """Curve and stated fleet are of the same jobs and random draws."""
    layout = "recommended" if any(point.layout == "recommended" for point in start.wait_curve) else "today"
    simulated = {
        point.job_size: point.p95_minutes for point in start.wait_curve if (point.layout, point.gpus) == (layout, 48)
    }
    exact = {row.size: row.recommended_p95_minutes for row in smaller.decision.service}
    assert exact == pytest.approx({size: simulated[size] for size in exact}, abs=1e-6)
    estimate = estimate_answer(quick.but(gpus=48), start)
    assert {size: estimate.waits[size] for size in exact} == pytest.approx(exact, abs=1e-6)


def test_the_headline_names_every_size_that_misses_its_limit_with_its_wait_and_limit(smaller):
    decision = smaller.decision
    worst = max(decision.service, key=lambda row: row.recommended_p95_minutes - row.limit_minutes)
    assert worst.recommended_p95_minutes > worst.limit_minutes
    assert decision.sentence.startswith("48 GPUs miss the wait limit for jobs on ")
    waits = re.search(r"p95 queue wait \(limit\): ([^;]*)", decision.sentence)[1].rstrip(".").split(", ")
    missed = {row.size: row for row in decision.service if not row.meets_limit}
    assert waits[0].startswith(f"{worst.size} ")
    assert sorted(waits) == sorted(
        f"{size} {wait_text(row.recommended_p95_minutes)} ({wait_text(row.limit_minutes)})"
        for size, row in missed.items()
    )
    assert decision.gpus == 48
    assert not smaller.find_row(decision.policy).meets_target


def test_a_stated_fleet_of_the_recommended_size_has_the_recommended_waits(quick, start):
    stated = compare_policies(quick.but(gpus=start.find_row("mig_static").peak_gpus))
    limits = {row.size: row.limit_minutes for row in start.decision.service}
    assert {row.size: row.limit_minutes for row in stated.decision.service} == pytest.approx(limits)
    assert [row.recommended_p95_minutes for row in stated.decision.service] == [
        row.recommended_p95_minutes for row in start.decision.service
    ]


def test_more_demand_makes_jobs_wait_longer_and_a_wider_limit_does_not(quick, smaller):
    busier = compare_policies(quick.but(gpus=48, arrival_scale=1.3)).decision
    wider = compare_policies(quick.but(gpus=48, max_added_wait_minutes=25.0)).decision
    mean = smaller.decision.recommended_mean_minutes
    assert busier.recommended_mean_minutes > mean == wider.recommended_mean_minutes
    assert sum(row.jobs for row in busier.service) == pytest.approx(
        1.3 * sum(row.jobs for row in smaller.decision.service), rel=0.03
    )
    assert max(row.limit_minutes for row in wider.service) <= 30.0 < 48


def test_a_fleet_is_of_whole_nodes(quick):
    with pytest.raises(ScenarioError, match=r"whole nodes; got 50. The nearest fleet has 48 GPUs"):
        compare_policies(quick.but(gpus=50))


def curve(layout: str, *waits: tuple[int, float]) -> tuple[CurvePoint, ...]:
    return tuple(CurvePoint(layout, gpus, "1 GPU", wait, wait, wait, wait, 0.5, 0.0) for gpus, wait in waits)


def test_only_waits_at_the_demand_and_within_the_fleets_of_the_curve_are_estimated(quick, start):
    known = dataclasses.replace(start, wait_curve=curve("today", (40, 99.0), (50, 9.0), (60, 0.0)))
    assert estimate_answer(quick.but(gpus=60, arrival_scale=1.2, mig_layout="today"), known).waits == {}
    assert estimate_answer(quick.but(gpus=50, mig_layout="today"), known).waits["1 GPU"] == pytest.approx(9.0)
    halfway = estimate_answer(quick.but(gpus=45, mig_layout="today"), known).waits["1 GPU"]
    assert halfway == pytest.approx((100.0 * 10.0) ** 0.5 - 1)
    assert estimate_answer(quick.but(gpus=30, mig_layout="today"), known).waits["1 GPU"] is None


@pytest.mark.parametrize("mig_layout", ["recommended", "today"])
def test_the_marked_row_is_the_fleet_of_the_headline(quick, start, mig_layout):
    for gpus in (48, start.decision.fleet_gpus + 8):
        scenario = quick.but(gpus=gpus, mig_layout=mig_layout)
        found = compare_policies(scenario)
        html = answer_html(exact_answer(scenario, found, start))
        (marked,) = re.findall("<tr class='best'>(.*?)</tr>", html)
        assert f"<td>{gpus}</td><td>{gpus * 168:,}</td>" in marked
        missed = ", ".join(row.size for row in found.decision.service if not row.meets_limit)
        assert (f"no: {missed} over the wait limit" in marked) == bool(missed)
        assert found.decision.service == () or ("yes" in marked) != bool(missed)
        # The table of policies has the same rows, each with the GPUs and waits of its own fleet.
        table = make_policy_table(found)
        assert re.findall("<th scope='row'>(.*?)</th>", html) == [SHORT_NAMES[name] for name in table["policy"]]
        row = found.find_row(found.recommended_policy)
        assert (row.peak_gpus, row.gpu_hours_promised) == (gpus, gpus * 168.0)
        added = max(size.added_p95_minutes for size in found.decision.service)
        assert row.added_wait_p95_minutes == pytest.approx(max(added, 0.0), abs=1e-3)
        assert found.today.peak_gpus == start.decision.fleet_gpus


def test_an_estimate_marks_the_chosen_fleet(quick, start):
    for gpus, name in ((start.decision.fleet_gpus + 8, "more GPUs"), (start.decision.fleet_gpus - 8, "fewer nodes")):
        html = answer_html(estimate_answer(quick.but(gpus=gpus, mig_layout="today"), start))
        (marked,) = re.findall("<tr class='best'>(.*?)</tr>", html)
        assert f"{name}</th><td>{gpus}</td><td>{gpus * 168:,}</td>" in marked


def test_a_purchase_is_in_the_row_of_the_recommended_fleet(busier):
    decision, row = busier.decision, busier.find_row(busier.recommended_policy)
    assert decision.gpus > decision.fleet_gpus
    assert (row.peak_gpus, row.gpu_hours, row.meets_target) == (decision.gpus, decision.gpus * 168.0, True)
    assert f"buy {decision.gpus - decision.fleet_gpus} GPUs" in row.meaning
    assert row.energy_kwh is None  # the power of GPUs to buy is not estimated


def test_confidence_names_every_size_that_misses_on_the_next_smaller_fleet(quick, start):
    (sentence,) = (text for text in start.decision.confidence if "the p95 queue wait would be" in text)
    gpus = int(re.match(r"With (\d+) GPUs", sentence)[1])
    recommended = {row.size: row.recommended_p95_minutes for row in start.decision.service}
    missed = [
        row.size
        for row in compare_policies(quick.but(gpus=gpus)).decision.service
        if not row.meets_limit and row.recommended_p95_minutes > recommended[row.size]
    ]
    assert re.findall(r"on (.*?) \(limit", sentence) == missed


def test_decisions_stand_in_columns_called_by_what_differs(quick, start, smaller):
    studies = StudyView(quick, start), StudyView(quick.but(gpus=48), smaller)
    view = compare(*studies)
    frame, text = view.df, unescape(re.sub("<[^>]*>", " ", str(view.section)))
    assert frame["study"].to_list() == [f"{start.decision.gpus} GPUs", "48 GPUs"]
    assert frame["action"][1].endswith("release")
    assert "[USD a week]" in text
    assert "capacity exhausted on" not in text or frame["exhausted_on"].null_count() < 2
    size = max(smaller.decision.service, key=lambda row: row.today_p95_minutes)
    assert frame.select("p95_wait_minutes", "p95_wait_low", "p95_wait_high").row(1) == (
        size.recommended_p95_minutes, size.low, size.high,
    )  # fmt: skip
    assert {"makespan_difference_minutes"} == {name for name in frame.columns if name.startswith("makespan")}
    by_size = compare(*studies, by="job_size")
    assert by_size.df.height == len(start.decision.service) + len(smaller.decision.service)
    assert by_size.df["difference_minutes"].null_count() == len(start.decision.service)
    assert by_size.section.count(", over limit") == sum(
        not row.meets_limit for row in (*start.decision.service, *smaller.decision.service)
    )
    again = compare(StudyView(quick, start), StudyView(quick, start)).df["study"].to_list()
    assert again == [f"1: {quick.name}", f"2: {quick.name}"]


def test_the_frame_of_the_waits_is_what_the_screen_shows(quick, start):
    view = StudyView(quick, start).waits()
    assert view.df["size"].to_list() == [row.size for row in start.decision.service]
    assert {"recommended_p95_minutes", "low", "high", "limit_minutes", "waited", "fragmented"} <= set(view.df.columns)
    assert "cause and team" not in view.section
    teams = StudyView(quick, start).waits("team")
    assert teams.df["name"].to_list() == [row.name for row in start.waits.causes.team]
    assert "cause and team" in teams.section
    assert "p95 recommended" not in teams.section
    with pytest.raises(ScenarioError, match="Did you mean 'team'"):
        StudyView(quick, start).waits("teem")


def test_panel_and_decision_agree_at_another_demand(quick, start, busier):
    """A stated fleet has the waits, limits, layouts and curve of the decision without one at the same demand."""
    gpus = start.decision.fleet_gpus
    stated = compare_policies(quick.but(gpus=gpus, arrival_scale=1.3))
    sizes, decided = ({row.size: row for row in found.decision.service} for found in (stated, busier))
    for name in ("today_p95_minutes", "observed_p95_minutes", "limit_minutes"):
        expected = {size: getattr(row, name) for size, row in decided.items()}
        assert {size: getattr(row, name) for size, row in sizes.items()} == pytest.approx(expected)
    assert stated.wait_curve == busier.wait_curve
    layouts = {point.layout for point in busier.wait_curve}
    drawn = {
        point.job_size: point.p95_minutes
        for point in busier.wait_curve
        if point.gpus == gpus and point.layout == max(layouts, key=lambda name: name == "recommended")
    }
    assert {size: row.recommended_p95_minutes for size, row in sizes.items()} == pytest.approx(drawn, abs=1e-6)
    over_limit = {size for size, wait in drawn.items() if wait > decided[size].limit_minutes}
    assert {size for size, row in sizes.items() if not row.meets_limit} == over_limit
    assert {row.policy: row for row in stated.rows if row.policy != stated.winner} == {
        row.policy: row for row in busier.rows if row.policy != stated.winner
    }
    answer = exact_answer(quick.but(gpus=gpus, arrival_scale=1.3), stated, busier)
    html = answer_html(answer)
    assert {row.size for row in answer.sizes_over_limit} == over_limit
    assert html.count("no: " + ", ".join(size for size in sizes if size in over_limit)) >= bool(over_limit)
    assert (f"{busier.decision.gpus:,} meet the limits" in html) == (bool(over_limit) and busier.decision.gpus > gpus)
    assert "demand × 1.30" in html


@pytest.mark.parametrize("mig_layout", ["recommended", "today"])
def test_the_waits_of_a_fleet_come_first_and_stay(quick, start, busier, mig_layout):
    """Before recommendation, curve and policies: the same waits, no figure of another demand, nothing to export."""
    scenario = quick.but(gpus=48, arrival_scale=1.3, mig_layout=mig_layout)
    stated = compare_policies(scenario)
    waits = simulate_fleet_waits(scenario)
    for row in stated.decision.service:
        assert waits[row.size] == pytest.approx((row.today_p95_minutes, row.recommended_p95_minutes), abs=1e-3)
    first, last = answer_waits(scenario, waits, start), exact_answer(scenario, stated, busier)
    assert first.waits == pytest.approx(last.waits, abs=1e-3)
    assert first.missed_text == last.missed_text
    assert not first.is_exact
    html = answer_html(first)
    assert "≈" not in html
    assert "meet the limits" not in html
    assert "stroke-width='2.5'" not in html  # no curve
    assert html.count("simulated next") == 3  # months, curve, policies
    assert "demand × 1.30" in html
    assert cards(html)[3].endswith("…")


def test_the_panel_names_what_it_simulates(quick, start, monkeypatch):
    made, shown = WhatIf(quick, start), []
    monkeypatch.setattr(made, "_show_status", lambda number, text: shown.append(text))
    monkeypatch.setattr(made, "_show_state", shown.append)
    made.controls["arrival_scale"].value = 1.1
    made.ask().result(timeout=600)
    assert any(re.search(r"wait curve, fleet \d+ of \d+", text) for text in shown)
    assert any("fewest GPUs within the limits" in text for text in shown)
    assert "Exact waits" in next(text for text in shown if "●" in text)
    assert made.newest.is_exact


def test_a_scaled_demand_is_never_called_observed(start, busier):
    decision, html = busier.decision, render_first_screen(busier)
    assert "<b>Observed</b>" not in html
    assert "× 1.30 the recorded demand" in html
    assert "jobs and GPU-hours as recorded" in html
    assert not any("against the record" in text for text in decision.confidence)
    assert make_wait_table(busier)["observed_p95_minutes"].null_count() == len(decision.service)
    section = unescape(str(render_policy_section(busier)))
    assert "simulated at × 1.30 the recorded demand" in section
    assert "p95 observed" not in section
    assert busier.waits == start.waits  # causes are known of recorded waits alone
    assert "At the recorded demand, jobs waited" in section
    waits = str(render_wait_section(busier))
    assert waits.index("<caption>Queue wait by job size") < waits.index("At the recorded demand, jobs waited")
    exports = [step.command for step in decision.next_steps if step.command and "gpuplanner export" in step.command]
    assert all("--set arrival_scale=1.3" in command for command in exports)


def test_the_panel_follows_the_recommendation_at_another_demand(monkeypatch, quick, start, busier):
    made = WhatIf(quick, start)
    monkeypatch.setattr(panels, "compare_policies", lambda scenario, report_run: busier)
    made.controls["arrival_scale"].value = 1.3
    assert made.recommended.disabled
    assert "Now" not in made.pinned.value  # the answer of the settings is not known yet
    assert "before this change" in made.answer.value
    made.ask().result(timeout=60)
    assert made.recommended.description == f"Set to recommended ({busier.decision.gpus:,})"
    assert f"{busier.decision.gpus:,} recommended" in made.notes["gpus"].value
    made._recommend()
    assert made.controls["gpus"].value == busier.decision.gpus


def test_a_fleet_that_misses_its_limit_is_exported_only_when_asked_twice(quick, start, smaller, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = WhatIf(quick, start)
    made._show_exact(exact_answer(quick.but(gpus=48), smaller, start))
    made.files.click()
    assert "48 GPUs miss the wait limit" in made.written.value
    assert not list(tmp_path.iterdir())
    made.files.click()
    readme = (tmp_path / "build" / f"export-{quick.name.replace(' ', '-')}-48-gpus" / "README.md").read_text()
    assert "within its limit" not in readme
    for row in smaller.decision.service:
        assert row.is_no_worse or re.search(rf"Not recommended: .*{re.escape(row.size)}.* wait longer", readme)
    made.pin.click()
    assert "B: 48 GPUs<br>recommended<br>× 1.00" in made.pinned.value
    made.controls["gpus"].value = 56
    assert made.written.value == ""


def test_a_price_is_a_multiplication_and_exact_at_once(panel, asked, start):
    panel.controls[PRICE_FIELD].value = "3.5"
    fleet, mean = start.decision.fleet_gpus, start.decision.gpus_mean
    costs = dict.fromkeys(f"{gpus * 168 * 3.5:,.0f}" for gpus in (fleet, mean))  # one where nothing is freed
    assert cards(panel.answer.value)[2] == " → ".join(costs)
    assert "list price" not in panel.notes[PRICE_FIELD].value
    assert "Exact" in panel.state.value
    assert panel.newest.comparison.decision == reprice_comparison(panel.scenario, start).decision
    assert asked == []


@pytest.mark.parametrize("text", ["abc", "-1", "0", "", "nan", "inf", "2,50"])
def test_a_bad_price_is_marked_at_its_control_and_nothing_is_asked(panel, quick, text):
    panel.controls[PRICE_FIELD].value = text
    assert "gw-faulty" in panel.controls[PRICE_FIELD]._dom_classes
    assert "expected a price above 0" in panel.notes[PRICE_FIELD].value
    assert panel.controls[PRICE_FIELD].value == text  # not clamped
    assert panel.newest.scenario == quick
    panel.controls[PRICE_FIELD].value = "2.25"
    assert "gw-faulty" not in panel.controls[PRICE_FIELD]._dom_classes
    assert panel.newest.scenario.price_per_gpu_hour == 2.25


def test_a_fleet_without_a_price_can_be_changed(quick, start, asked, monkeypatch):
    monkeypatch.setattr(panels, "find_price", lambda scenario, fleet: None)
    panel = WhatIf(quick, start)
    assert panel.controls[PRICE_FIELD].value == ""
    panel.controls["gpus"].value = 56
    assert "gw-faulty" not in panel.controls[PRICE_FIELD]._dom_classes
    assert panel.question.gpus == 56


def test_policies_of_other_actuators_say_what_they_need(quick, start):
    found = dataclasses.replace(
        start,
        policies=tuple(
            dataclasses.replace(row, performable=False) if row.policy == "power_down_idle" else row
            for row in start.policies
        ),
    )
    html = answer_html(exact_answer(quick.but(actuator="mig-manager"), found, found))
    row = re.search(r"<tr class='muted'>.*?power down idle nodes.*?</tr>", html)[0]
    assert "needs autoscaler or slurm" in row
    assert row.count("…") == 3
    assert "simulated next" in row


def test_policies_of_other_actuators_have_the_figures_of_an_actuator_that_can_apply_them(quick, monkeypatch):
    scenario = quick.but(actuator="mig-manager", policies="mig_static,power_down_idle,mig_dynamic")
    needs = {"power_down_idle": "needs autoscaler (simulated) or slurm", "mig_dynamic": "needs dra (simulated)"}
    able = {"power_down_idle": "autoscaler", "mig_dynamic": "dra"}
    study = StudyView(scenario, compare_policies(scenario))
    before, after = study.policies().df, study.policies(other_actuators=True)

    grey = before.filter(~pl.col("performable"))
    assert grey["policy"].to_list() == list(needs)
    assert grey["reason"].str.starts_with("not with mig-manager: ").all()
    told = grey.drop("policy", "meaning", "performable", "reason")
    assert told.null_count().row(0) == (2,) * told.width  # nothing was simulated: no figure, no verdict, no zero

    assert after.df.filter("performable").equals(before.filter("performable"))
    for policy, actuator in able.items():
        alone = make_policy_table(compare_policies(scenario.but(actuator=actuator))).filter(policy=policy)
        (row,) = after.df.filter(policy=policy).iter_rows(named=True)
        assert row["reason"].startswith(needs[policy])
        assert row["gpu_hours"] > 0
        assert after.df.filter(policy=policy).drop("performable", "reason").equals(alone.drop("performable", "reason"))
    rows = re.findall(r'<tr class="muted">.*?</tr>', after._repr_html_())
    assert sorted(text for text in needs.values() if any(text in row for row in rows)) == sorted(needs.values())
    assert len(rows) == 2

    def refuse(scenario, report_run):
        raise ScenarioError("drain time", "a number", "none", "State it.")

    monkeypatch.setattr(answers, "compare_policies", refuse)
    refused = study.policies(other_actuators=True).df.filter(~pl.col("performable"))
    assert refused.drop("reason").equals(grey.drop("reason"))
    assert [text.partition("; ")[0] for text in refused["reason"]] == ["needs autoscaler or slurm", "needs dra"]
    assert refused["reason"].str.contains("drain time").all()


def outdated_notes(panel, shown: str) -> list[bool]:
    """Whether the rule of the panel shows each note of its settings in HTML."""
    panel_class, settings = re.search(r"<style>\.(of-\w+-\w+):not\(\.(set-\w+)\)", panel.code.value).groups()
    return [name != settings for name in re.findall(rf"<p class='{panel_class} (set-\w+)' style='display: none", shown)]


def test_views_of_the_panel_are_marked_once_it_has_other_settings(panel, quick):
    study = decide(panel)
    first = [study._repr_html_(), str(study.policies().section), str(compare(study.but(gpus=48), study).section)]
    assert [outdated_notes(panel, shown) for shown in first] == [[False]] * 3
    assert "Made at 64 GPUs, demand × 1.00" in first[0]
    panel.controls["gpus"].value = 48
    assert [outdated_notes(panel, shown) for shown in first] == [[True]] * 3
    assert outdated_notes(panel, decide(panel)._repr_html_()) == [False]
    panel._cancel()
    assert outdated_notes(panel, first[0]) == [False]
    panel.controls[PRICE_FIELD].value = "3.5"
    assert outdated_notes(panel, first[0]) == [True]
    assert outdated_notes(panel, decide(quick)._repr_html_()) == []  # not of the panel


def test_the_headline_states_the_trade_against_the_other_layout(start):
    rows = [
        dataclasses.replace(start.decision.service[0], size=size, recommended_p95_minutes=wait, limit_minutes=30.0)
        for size, wait in (("1g.10gb", 94.4), ("1 GPU", 5.0))
    ]
    assert format_missed_limits(64, rows[1:], (), "recommended") == ""
    first = "64 GPUs miss the wait limit for jobs on 1g.10gb. p95 queue wait over the limit of 30 min: 1g.10gb 94 min"
    assert format_missed_limits(64, rows, curve("today", (56, 9.0)), "recommended") == f"{first}."
    on_today = curve("today", (64, 190.0))  # of 1 GPU
    assert format_missed_limits(64, rows, on_today, "recommended") == f"{first}; with today's layout: 1 GPU 3.2 h."
    assert format_missed_limits(64, rows, on_today, "today") == f"{first}."
    assert format_missed_limits(64, rows, curve("recommended", (64, 0.0)), "today") == (
        f"{first}; with the recommended layout: none."
    )


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_a_larger_stated_fleet_is_no_advice_to_buy(start, is_partitioned):
    partition = (Measure("repartition", "Repartition", 64),) if is_partitioned else ()
    measures = (*partition, Measure("buy", "Buy 8 GPUs", 72))
    larger = dataclasses.replace(start.decision, fleet_gpus=64, gpus=72, action=measures[0].action, measures=measures)
    advice, _, waits = format_decision(larger).partition(". ")
    assert "buy 8 more" in advice.lower()
    layout = f": partition {larger.partitioned_gpus} of 64 H100s" if is_partitioned else ""
    expected = f"72 GPUs, 8 more than today, meet the wait limits{layout}. {waits}"
    assert format_stated_fleet(larger, {}) == expected


def test_policies_of_other_actuators_are_those_of_the_study(quick, start):
    made = WhatIf(quick.but(actuator="mig-manager"))
    made.ask().result(timeout=600)
    made._look_ahead(made._n_asked)
    row = next(row for row in made.newest.comparison.rows if row.policy == "power_down_idle")
    shown = re.search(r"<tr class='muted'>(?:(?!</tr>).)*power down idle nodes.*?</tr>", made.answer.value)[0]
    table = decide(made).policies(other_actuators=True).df
    gpus, hours = table.filter(policy=row.policy).select("peak_gpus", "gpu_hours_promised").row(0)
    assert f"<td>{gpus:,.0f}</td><td>{hours:,.0f}</td>" in shown


def test_undo_cancel_and_pins(panel, quick, tmp_path):
    panel.controls["gpus"].value = 48
    panel.controls["max_added_wait_minutes"].value = 30.0
    panel._undo()
    assert panel.scenario == quick.but(gpus=48)
    assert Scenario.from_yaml(panel.save(tmp_path / "kept.yaml")) == panel.scenario
    panel._cancel()
    assert panel.scenario == quick
    assert "Exact" in panel.state.value
    assert not panel.files.disabled
    panel.pin.click()
    assert len(panel.pins) == 2
    assert panel.pinned.value.count("<tr>") == 4  # of the head, the pins, and the current settings
    assert "<b>Now</b>: " in panel.pinned.value
    answer, size = panel.pins[1], panel.start.decision.longest_waiting
    assert f"B: {answer.gpus} GPUs<br>recommended<br>× 1.00<" in panel.pinned.value
    row = next(row for row in answer.service if row.size == size.size)
    assert f"<br>{wait_text(row.low)}–{wait_text(row.high)}<" in panel.pinned.value
    assert f">{len(answer.sizes_over_limit)}</span>" in panel.pinned.value


def test_outdated_questions_are_cancelled(monkeypatch, panel, start):
    begun, stopped = threading.Event(), threading.Event()

    def endless(scenario, report_run):
        while scenario.gpus == 48:
            begun.set()
            report_run("mig_static", None)
            stopped.wait(0.01)
        return start

    monkeypatch.setattr(panels, "compare_policies", endless)
    panel.controls["gpus"].value = 48
    first = panel.ask()
    assert begun.wait(60)
    panel.controls["gpus"].value = 40
    panel.ask().result(timeout=60)
    with pytest.raises(CancelledError):
        first.result(timeout=60)
    assert panel.newest.scenario.gpus == 40


def test_controls_that_follow_each_other_are_answered_once(monkeypatch, panel, asked):
    monkeypatch.setattr(background, "DEBOUNCE_S", 0.02)
    before = panel.newest

    async def drag():
        for gpus in (40, 48, 56):
            panel.controls["gpus"].value = gpus
        while panel.newest is before:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(drag(), 60))
    assert [scenario.gpus for scenario in asked] == [56]


def test_an_error_leaves_the_last_exact_answer(monkeypatch, panel, quick):
    def fail(scenario, report_run):
        raise ScenarioError("gpus", "whole nodes", "50", HOSTILE)

    monkeypatch.setattr(panels, "compare_policies", fail)
    panel.controls["gpus"].value = 48
    with pytest.raises(ScenarioError):
        panel.ask().result(timeout=60)
    assert "expected whole nodes" in panel.status.value
    assert "<script" not in panel.status.value
    assert panel.newest.scenario == quick
    assert panel.files.disabled


def test_showing_the_panel_asks_the_first_question(quick, asked):
    made = WhatIf(quick)
    assert "application/vnd.jupyter.widget-view+json" in made._repr_mimebundle_()
    made._pending.result(60)
    assert made.controls["gpus"].value == made.start.decision.gpus


def test_without_a_recommendation_the_panel_shows_what_to_add(quick):
    empty = Comparison(make_empty_decision(quick, "no job states when it ran"), 10.0)
    made = WhatIf(quick, empty)
    assert "No recommendation: no job states when it ran" in made.answer.value
    assert "gpuplanner ingest" in made.answer.value
    assert all(control.disabled for control in made.controls.values())
    assert made.files.disabled


def test_no_number_is_called_recommended_without_a_recommendation(quick, start):
    decision = dataclasses.replace(start.decision, action="none", measures=())
    panel = WhatIf(quick, dataclasses.replace(start, decision=decision))
    assert panel.recommended.description == "Set to recommended (none)"
    assert f"none recommended · {decision.fleet_gpus} today" in panel.notes_of_controls["gpus"]


def test_hostile_names_stay_text(panel, start):
    row = dataclasses.replace(start.policies[0], policy=HOSTILE, reason=HOSTILE)
    decision = dataclasses.replace(start.decision, sentence=HOSTILE)
    evil = dataclasses.replace(start, decision=decision, policies=(row,))
    panel._show_exact(exact_answer(panel.base, evil, evil))
    assert "<script" not in panel.answer.value + panel.pinned.value


def test_the_files_are_those_of_the_screen_and_open(quick, start, smaller, tmp_path):
    """A fleet that misses its limit says so in the first line of its files."""
    made = WhatIf(quick, start)
    made._show_exact(exact_answer(quick.but(gpus=48), smaller, start))
    made.write(tmp_path / "export")
    links = re.findall(r'href="([^"]*)"', made.written.value)
    assert links == [f"{tmp_path}/export/{name}" for name in ("README.md", "workbook.xlsx", f"{quick.actuator}/")]
    first_line = (tmp_path / "export" / "README.md").read_text().splitlines()[0].removeprefix("# ")
    first, second = headline(made.newest)
    assert first_line == f"{first} {second}"
    assert first in unescape(made.answer.value)
    assert second in unescape(made.answer.value)
    waits = fastexcel.read_excel(tmp_path / "export" / "workbook.xlsx").load_sheet("Waits").to_polars()
    shown = made.newest.shown_size
    row = next(row for row in waits.rows() if shown.size in row)
    assert any(isinstance(cell, float) and abs(cell - shown.recommended_p95_minutes) < 0.05 for cell in row)
    assert (tmp_path / "export" / quick.actuator).is_dir()


def test_the_line_of_code_gives_the_same_scenario(panel, quick):
    panel.controls["gpus"].value = 48
    code = unescape(re.search(r"<code>(.*)</code>", panel.code.value)[1])
    assert whatif(quick.but(gpus=48)).scenario == panel.scenario
    assert code.startswith("gp.decide('sample', ")
    assert "gpus=48" in code
    assert "month='2026-02'" in code
