"""What other settings of the controls would give, at once: read from what was tried; the exact answer follows."""

from __future__ import annotations

from dataclasses import replace

from gpuplanner.hardware.abilities import scenario_abilities
from gpuplanner.scenario import Scenario
from gpuplanner.study.decision.policies import SHORT, WAYS
from gpuplanner.study.decision.record import Comparison, PolicyRow, priced
from gpuplanner.study.decision.types import TODAY, Saving
from gpuplanner.study.past.history import history


def coarse(found: Comparison, known: Scenario, asked: Scenario) -> Comparison:
    """The answer to another scenario from the comparison that is known of the first, without playing anything.

    Limit, share and path choose anew among the settings that were tried on the days tuned on, which more jobs keep on
    for longer; prices are multiplied. The exact answer may find settings between those tried, and judges on other days:
    a coarse one has no range.
    """
    decision = found.decision
    if found.today is None or decision.action == "none":
        return found
    service = [(one.wait_minutes, one.path, one.arrival_scale) for one in (known, asked)]
    if service[0] != service[1]:
        found = _chosen(_at_demand(found, asked.arrival_scale / known.arrival_scale), asked)
    decision = replace(
        found.decision, purchase_lead_days=asked.purchase_lead_days,
        path=asked.path, how_sure=("Coarse, from settings that were tried: the exact answer follows.",),
    )  # fmt: skip
    return priced(asked, replace(found, decision=decision))


def _chosen(found: Comparison, asked: Scenario) -> Comparison:
    """Of every way that the path can perform the cheapest setting within the limit, and of these the cheapest."""
    assert found.today is not None
    minutes, before = asked.wait_minutes, found.today.gpu_hours_promised or found.today.gpu_hours or 0.0
    fleet = history(asked).fleet
    able = scenario_abilities(asked, fleet.board)
    rows = tuple(
        _at(row if row.performable else replace(row, reason=None, performable=True), found, minutes)
        if row.policy not in WAYS or (why_not := WAYS[row.policy].why_not(able, fleet)) is None
        else replace(row, meets_target=False, reason=why_not, performable=False)
        for row in found.policies
    )
    held = [row for row in rows if row.meets_target and row.gpu_hours is not None and row.gpu_hours < before]
    best = min(held, key=lambda row: (row.gpu_hours or 0.0, row.policy), default=None)
    if best is None or best.gpu_hours is None:
        policy, saving = TODAY, Saving(None, reason=_none_within(minutes))
        said = f"At {minutes:g} minutes nothing that was tried saves anything."
    else:
        policy, saving = best.policy, Saving(before - best.gpu_hours)
        said = (
            f"At {minutes:g} minutes about {before - best.gpu_hours:,.0f} GPU-hours a week are saved: "
            f"{SHORT.get(policy, policy)}."
        )
    decision = replace(found.decision, sentence=said, policy=policy, saving=saving, next_steps=())
    today = replace(found.today, gpu_hours=before)
    return replace(found, decision=decision, minutes=minutes, today=today, policies=rows)


def _at(row: PolicyRow, found: Comparison, minutes: float) -> PolicyRow:
    """A way by the cheapest of its settings within a limit."""
    tried = [(one.gpu_hours, one.added_minutes) for one in found.frontier if one.policy == row.policy]
    if row.gpu_hours_promised is not None and row.added_minutes is not None:
        # What was cheaper within the limit and was not taken does not hold on single days.
        taken = row.gpu_hours_promised
        tried = [(hours, added) for hours, added in tried if hours >= taken or added > found.minutes]
        tried.append((taken, row.added_minutes))
    within_it = [point for point in tried if point[1] <= minutes]
    if not within_it:
        return replace(row, meets_target=False, reason=row.reason or _none_within(minutes))
    hours, added = min(within_it)
    return replace(row, gpu_hours=hours, added_minutes=added, meets_target=True, reason=None)


def _none_within(minutes: float) -> str:
    return f"no setting that was tried adds at most {minutes:g} minutes"


def _at_demand(found: Comparison, times: float) -> Comparison:
    """The settings that were tried as so many times the jobs would keep them on; today's fleet is on whatever comes."""
    points = tuple(
        replace(one, gpu_hours=times * one.gpu_hours) for one in found.frontier if one.policy != TODAY
    )
    rows = tuple(
        replace(row, gpu_hours_promised=row.gpu_hours_promised and times * row.gpu_hours_promised)
        for row in found.policies
    )
    return replace(found, frontier=points, policies=rows)
