"""What another limit would give, at once: read from the settings that were tried, until the exact answer is there."""

from __future__ import annotations

from dataclasses import replace

from gpuplanner.study.decision.policies import SHORT
from gpuplanner.study.decision.record import Comparison, PolicyRow
from gpuplanner.study.decision.types import TODAY, Saving


def coarse(found: Comparison, minutes: float) -> Comparison:
    """The comparison at another limit, without playing anything.

    Of every way the cheapest setting that was tried and adds no more than that on the days tuned on; hours are those of
    these days. What no setting that was tried holds is out. The exact answer may find settings between them, and judges
    on other days: a coarse one has no range.

    Examples
    --------
    >>> from gpuplanner.scenario import Scenario
    >>> from gpuplanner.study.decision.record import FrontierPoint
    >>> from gpuplanner.study.decision.sentences import unknown_decision
    >>> today = PolicyRow("today", "all on", gpu_hours=1000.0, gpu_hours_promised=1000.0, added_minutes=0.0)
    >>> pools = PolicyRow("node_pools", "come and go", gpu_hours=600.0, gpu_hours_promised=600.0, added_minutes=9.0)
    >>> tried = tuple(FrontierPoint("node_pools", hours, added) for hours, added in ((600.0, 9.0), (800.0, 2.0)))
    >>> one = Comparison(unknown_decision(Scenario(), "none"), 0.95, 10.0, today, (pools,), tried)
    >>> [coarse(one, minutes).decision.saving.value for minutes in (10.0, 5.0, 1.0)]
    [400.0, 200.0, None]
    """
    if found.today is None:
        return replace(found, minutes=minutes)
    before = found.today.gpu_hours_promised or found.today.gpu_hours or 0.0
    today = replace(found.today, gpu_hours=before)
    rows = tuple(_at(row, found, minutes) for row in found.policies)
    held = [row for row in rows if row.meets_target and row.gpu_hours is not None and row.gpu_hours < before]
    best = min(held, key=lambda row: (row.gpu_hours or 0.0, row.policy), default=None)
    if best is None or best.gpu_hours is None:
        policy, saving = (
            TODAY,
            Saving(None, reason=f"no setting that was tried adds at most {minutes:g} minutes"),
        )
        said = f"Coarse: at {minutes:g} minutes nothing that was tried saves anything."
    else:
        policy, saving = best.policy, Saving(before - best.gpu_hours)
        said = (
            f"Coarse: at {minutes:g} minutes about {before - best.gpu_hours:,.0f} GPU-hours a week are saved, "
            f"{SHORT.get(policy, policy)}."
        )
    decision = replace(
        found.decision, sentence=said, policy=policy, saving=saving, how_sure=("The exact answer follows.",), monday=(),
    )  # fmt: skip
    return replace(found, decision=decision, minutes=minutes, today=today, policies=rows)


def _at(row: PolicyRow, found: Comparison, minutes: float) -> PolicyRow:
    """A way by the cheapest of its settings within a limit."""
    tried = [(one.gpu_hours, one.added_minutes) for one in found.frontier if one.policy == row.policy]
    if row.gpu_hours_promised is not None and row.added_minutes is not None:
        tried.append((row.gpu_hours_promised, row.added_minutes))
    within = [point for point in tried if point[1] <= minutes]
    if not within:
        out = row.reason or f"no setting that was tried adds at most {minutes:g} minutes"
        return replace(row, meets_target=False, reason=out)
    hours, added = min(within)
    return replace(row, gpu_hours=hours, added_minutes=added, meets_target=True, reason=None)
