"""No page, JSON or terminal output contains two statements that contradict each other."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from html import unescape

import pytest

from gpuplanner.cli.start_dialog import decision_key_numbers
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.serialization import to_json
from gpuplanner.core.units_and_number_formats import day_text
from gpuplanner.decision.comparison_record import Comparison, record_comparison, reprice_comparison
from gpuplanner.decision.decision_types import FEWER_NODES, MIG_STATIC, TODAY, WAIT_TOLERANCE_MINUTES
from gpuplanner.decision.policy_comparison import EXCLUSION_REASON_BY_POLICY
from gpuplanner.decision.recommendation import decide
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.report.first_screen import render_first_screen
from gpuplanner.report.policy_and_team_sections import render_policy_section, render_wait_section
from tests.clusters import planted, traces

DAY = re.compile(r"\b\d{1,2} [A-Z][a-z]{2} \d{4}\b")


def contradictions(found: Comparison) -> Iterator[str]:
    """What of a comparison pulls apart."""
    one, actions = found.decision, [measure.action for measure in found.decision.measures]
    yield from steps_apart(found)
    late = [row for row in one.service if row.today_p95_minutes > row.limit_minutes + 0.5]
    if one.gpus < one.fleet_gpus and any(row.recommended_p95_minutes > row.today_p95_minutes + 0.5 for row in late):
        yield "a release lets a size wait longer that is late already"
    if "buy" in actions and one.service and not late:
        yield "GPUs are bought and no job size is late"
    if "buy" in actions and "release" in actions:
        yield "GPUs are bought and released"
    if one.action == "keep" and one.gpus != one.fleet_gpus:
        yield "all is kept, with another number of GPUs"
    if one.action == "none" and (one.measures or found.wait_curve):
        yield "nothing is recommended, and measures or a wait curve are shown"
    if one.action in ("keep", "none") and not one.reason:
        yield f"{one.action} without a reason"

    ends, growth = found.exhaustion, found.growth_per_week
    if ends.date is not None and not (growth.low or 0.0) > 0:
        yield "a date of exhaustion, and demand that may be flat"
    if (ends.date is None) != (ends.order_by is None) or (ends.date is None) != bool(ends.reason):
        yield "a date of exhaustion and a reason for none"
    if one.action == "buy" and found.headroom is not None and found.headroom.factor < 0.95:
        yield "GPUs are bought, and with them the GPUs do not carry the load"
    purchase = one.financial_impact.purchase
    if purchase is not None and (purchase.date, purchase.order_by) != (ends.date, ends.order_by):
        yield "two dates of the next purchase"

    if one.action == "keep" and f"{one.reason}".endswith("a job size would wait longer than its limit"):
        limits = {row.size: row.limit_minutes for row in one.service}
        smaller = [point for point in found.wait_curve if point.gpus < one.gpus and point.job_size in limits]
        nearest = [point for point in smaller if point.gpus == max(other.gpus for other in smaller)]
        if nearest and not any(point.exceeds(limits[point.job_size]) for point in nearest):
            yield "all is kept for waits that the wait curve does not show"
    fewer = found.find_row(FEWER_NODES)
    if one.action == "keep" and "would meet" in f"{one.reason}" and fewer is not None and fewer.reason != one.reason:
        yield "two reasons to keep all GPUs"
    yield from waits_apart(found)
    yield from policies_apart(found)
    saving, kwh = one.saving, one.financial_impact.kwh_per_week
    if (saving.value is None) != bool(saving.reason):
        yield "a saving with a reason for none"
    if kwh and "No electricity is saved" in one.financial_impact.basis:
        yield "energy saved and not saved"
    if kwh and saving.value is None:
        yield "energy is saved, and no GPU-hour"
    if saving.value is None and (one.gpus < one.fleet_gpus or one.gpus_mean < one.fleet_gpus - 0.5):
        yield "fewer GPUs, and nothing is saved"
    row = found.find_row(one.policy)
    if row is not None and one.policy not in (TODAY, FEWER_NODES, MIG_STATIC) and not row.meets_target:
        yield "the recommended policy misses the limit"
    if row is not None and row.saved_kwh is not None and kwh is not None and abs(row.saved_kwh - kwh) > 0.01:
        yield "two figures of the energy saved"


def waits_apart(found: Comparison) -> Iterator[str]:
    """Waits that the sentence, the table by job size and the wait curve state differently."""
    one = found.decision
    rises = [row for row in one.service if row.added_p95_minutes > WAIT_TOLERANCE_MINUTES]
    if rises and re.search(r"No (other|job) size's p95", one.sentence):
        yield "a wait rises, and rises for no job size"
    layouts = {point.layout for point in found.wait_curve}
    bold = "recommended" if "recommended" in layouts else "today"
    for row in one.service:
        for layout, gpus, minutes in (
            ("today", one.fleet_gpus, row.today_p95_minutes), (bold, one.gpus, row.recommended_p95_minutes)
        ):  # fmt: skip
            for point in found.wait_curve:
                same = (point.layout, point.gpus, point.job_size) == (layout, gpus, row.size)
                if same and abs(point.p95_minutes - minutes) > 1e-6 and (layout != bold or one.gpus == gpus):
                    yield f"{minutes} min at {row.size} beside the curve, {point.p95_minutes} on it"


def policies_apart(found: Comparison) -> Iterator[str]:
    """Rows of policies whose verdict does not follow from them, or that are not what is recommended."""
    one = found.decision
    for row in found.policies:
        if row.policy not in EXCLUSION_REASON_BY_POLICY and row.added_wait_p95_minutes is not None:
            if row.meets_target and row.added_wait_p95_minutes > found.minutes + 1e-3:
                yield f"{row.policy} adds {row.added_wait_p95_minutes} min and meets the limit"
            if not row.meets_target and not row.reason:
                yield f"{row.policy} misses the limit without a reason"
    best, today = found.find_row(one.policy), found.today
    if best is None or today is None or one.action == "none" or one.policy == TODAY:
        return
    assert best.gpu_hours_promised is not None
    assert today.gpu_hours_promised is not None
    freed = today.gpu_hours_promised - best.gpu_hours_promised
    if one.saving.value is not None and abs(freed - one.saving.value) > 0.01:
        yield f"{one.saving.value} GPU-hours are freed, {freed} by the table of policies"
    if (best.peak_gpus or 0) > max(one.gpus, one.fleet_gpus if one.action == "buy" else 0):
        yield f"{one.gpus} GPUs are needed, {best.peak_gpus} by the table of policies"
    sized = found.find_row(FEWER_NODES)
    releases = "release" in [measure.action for measure in one.measures]
    if releases and one.partitioned_gpus == 0 and sized is not None and sized.gpu_hours is None:
        yield "nodes are released, and with fewer nodes a job size waits longer than its limit"
    if best.policy in EXCLUSION_REASON_BY_POLICY and one.service:
        added = max(max(row.added_p95_minutes for row in one.service), 0.0)
        if best.added_wait_p95_minutes is None or abs(best.added_wait_p95_minutes - added) > 1e-3:
            yield f"{best.added_wait_p95_minutes} min are added, {added} by job size"


def steps_apart(found: Comparison) -> Iterator[str]:
    """Measures whose steps or numbers are missing."""
    one, gpus, steps = (
        found.decision,
        found.decision.fleet_gpus,
        " ".join(step.what for step in found.decision.next_steps),
    )
    words = {
        "release": "drain", "buy": "order", "rightsize": "request the recommended profile", "repartition": "partition",
        "pack": "pack jobs on fewer nodes", "raise_limit": "raise the limit", "power_down": "power down nodes",
        "autoscale": "power down nodes",
    }  # fmt: skip
    for measure in one.measures:
        if words[measure.action] not in steps:
            yield f"no step for {measure.action}"
        if measure.condition and measure.condition.removeprefix("after ").replace("_", " ") not in steps:
            yield f"the condition {measure.condition} is no step"
        if (measure.action == "release") != (measure.gpus < gpus) and measure.action in ("release", "buy"):
            yield f"{measure.action} from {gpus} to {measure.gpus}"
        gpus = measure.gpus
    if one.action != "none" and gpus != one.gpus:
        yield f"the measures end at {gpus} GPUs, the decision at {one.gpus}"
    if sum(part.gpus for part in one.layouts) != one.gpus:
        yield "layouts of another number of GPUs"


def check(found: Comparison) -> None:
    assert list(contradictions(found)) == []
    told = json.loads(to_json(found.to_dict()))
    assert list(contradictions(Comparison.from_dict(told))) == []
    page = unescape(
        re.sub(
            r"<[^>]*>", " ", f"{render_first_screen(found)}{render_wait_section(found)}{render_policy_section(found)}"
        )
    )
    terminal = " ".join(" ".join(row) for row in decision_key_numbers(found))
    ends = found.exhaustion
    for text in (page, terminal):
        for phrase in re.findall(r"[Ee]xhausted (?:by )?([^.;·]*)", text):
            days = DAY.findall(phrase)
            assert set(days) <= {day_text(each) for each in (ends.date, ends.order_by) if each}, phrase
    counts = set(re.findall(r"(\d+ of \d+) policies meet", page))
    performable = [row for row in found.policies if row.performable]
    met = sum(row.meets_target for row in performable)
    assert counts <= {f"{met} of {len(performable)}"}, counts
    gpus = f"{found.decision.gpus:,}"
    assert found.decision.action == "none" or gpus in terminal
    if ends.date is not None:
        assert date.fromisoformat(ends.date) > date.fromisoformat(ends.order_by)


def compared(scenario: Scenario) -> Comparison:
    return reprice_comparison(scenario, record_comparison(scenario, decide(scenario)))


def test_the_study_of_the_sample(study):
    check(study.comparison)


def test_a_fleet_that_is_kept_for_growth_has_one_reason(handed_over):
    data = handed_over(planted.planted("too_large-1").cluster)
    found = compared(Scenario(data=data, actuator="slurm", policies="fewer_nodes", growth_per_week=0.2))
    check(found)
    assert "16 GPUs would meet the wait limits today" in found.decision.sentence
    assert found.decision.reason in found.decision.financial_impact.basis


@pytest.mark.long
@pytest.mark.parametrize("name", ["too_large-1", "short-1", "tight-2"])
def test_planted_clusters(name, handed_over):
    check(compared(Scenario(data=handed_over(planted.planted(name).cluster), actuator="slurm", ownership="owned")))


@pytest.mark.long
@pytest.mark.parametrize("name", planted.names())
def test_all_planted_clusters(name, handed_over):
    cluster = planted.planted(name).cluster
    paths = ("slurm", "nvidia-smi") if cluster.source == "slurm" else ("mig-manager", "autoscaler", "dra")
    for path in paths:
        check(compared(Scenario(data=handed_over(cluster), actuator=path, ownership="rented")))


@pytest.mark.data
@pytest.mark.long
@pytest.mark.parametrize("name", list(traces.PUBLIC))
def test_public_traces(name: str, public_data, tmp_path):
    write_dataset(traces.PUBLIC[name](public_data), tmp_path / "data")
    check(compared(Scenario(data=str(tmp_path / "data"), actuator="slurm")))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda one: {"gpus": one.gpus - 8}, "the measures end at"),
        (lambda one: {"next_steps": ()}, "no step for rightsize"),
        (
            lambda one: {
                "sentence": "No job size's p95 queue wait rises.",
                "service": (replace(one.service[0], recommended_p95_minutes=9.0), *one.service[1:]),
            },
            "a wait rises",
        ),
        (lambda one: {"saving": type(one.saving)(12.0, 12.0, 12.0, "none")}, "a saving with a reason"),
    ],
)
def test_what_pulls_apart_is_found(study, spoil: Callable, says: str):
    one = study.comparison.decision
    spoilt = replace(study.comparison, decision=replace(one, **spoil(one)))
    assert any(text.startswith(says) for text in contradictions(spoilt))
