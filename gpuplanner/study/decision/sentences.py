"""A decision in words: the sentence, what to do on Monday, how sure it is, and what would make it surer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from gpuplanner.demand.peaks import exceed_chance
from gpuplanner.inbox.telemetry.join_report import match_words
from gpuplanner.scenario import Scenario
from gpuplanner.study.decision.asked import RIGHTSIZED
from gpuplanner.study.decision.compare import Contest
from gpuplanner.study.decision.left_out import MAX_LEFT_OUT_SHARE, Correction
from gpuplanner.study.decision.policies import REST, WAYS
from gpuplanner.study.decision.types import (
    CUT_BY_JOBS,
    HELD_BACK,
    LEFT_OUT,
    ON_DEMAND,
    PEAKS,
    STATIC_WHOLE,
    TODAY,
    Decision,
    LayoutOnNodes,
    Missing,
    RunOut,
    RunOutSide,
    Saving,
    Service,
    Shortage,
    Worth,
)
from gpuplanner.units import counted, day_text

WHOLE_LIST = 0.02
"""A fleet that is held below this share is asked about before anything is given back."""
QUOTA_SHARE, QUOTA_JOBS = 0.5, 20
QUARANTINE = 0.01
MOST_NODES_NAMED = 6


def in_words(
    decision: Decision,
    found: Contest,
    *,
    held_share: float,
    kept_elsewhere: tuple[float, int],
    peaks: np.ndarray,
) -> Decision:
    """The decision with its sentences."""
    quota = kept_elsewhere[0] >= QUOTA_SHARE and kept_elsewhere[1] >= QUOTA_JOBS
    return replace(
        decision,
        sentence=sentence(decision, held_share=held_share, shared_share=found.known.shared_share),
        monday=tuple(_monday(decision, found, quota=quota, jobs=kept_elsewhere[1])),
        missing=tuple(_missing(decision, found, held_share)),
        how_sure=tuple(_how_sure(decision, found, peaks)),
        assumptions=tuple(_assumptions(decision, found)),
    )


def sentence(one: Decision, *, held_share: float = 1.0, shared_share: float = 0.0) -> str:
    """What to do with how many, and what it costs those who wait.

    Parameters
    ----------
    one : Decision
        The decision.
    held_share : float
        Share of the fleet's GPU-hours that jobs held. [0-1]
    shared_share : float
        Share of the jobs' GPU-hours that jobs held on GPUs which they share without MIG. [0-1]

    Examples
    --------
    >>> from gpuplanner.study.decision.sentences import unknown_decision
    >>> unknown_decision(Scenario(), "no job states when it ran").sentence
    'Nothing can be decided yet: no job states when it ran.'
    """
    fleet = _fleet(one)
    if one.action == "buy":
        more = one.gpus - one.fleet_gpus
        date = one.run_out.recommended.date
        when = "as soon as they can be had" if date is None or one.shortage.jobs else f"by {day_text(date)}"
        why = (
            f"{counted(one.shortage.jobs, 'job')} a week {'waits' if one.shortage.jobs == 1 else 'wait'} too long "
            f"for want of {'it' if more == 1 else 'them'}"
            if one.shortage.jobs
            else "then the fleet no longer starts jobs as it does today"
        )
        return f"Buy {counted(more, 'GPU')} more for your {fleet}, {when}: {why}."
    if one.action == "give_back":
        if one.gpus == one.fleet_gpus:
            text = f"Let nodes of your {fleet} rest when they are idle: {one.gpus_mean:,.0f} GPUs are on on average"
        else:
            text = f"Keep {one.gpus:,} of your {fleet} and give {one.fleet_gpus - one.gpus:,} back"
            rests = one.gpus_mean <= one.gpus - 0.5
            text += f"; let nodes rest, so that {one.gpus_mean:,.0f} are on" if rests else ""
        return f"{text}{_cut_how(one)}. {_waits(one)}"
    if one.action == "cut":
        how = "as jobs come and go" if one.policy == ON_DEMAND else "otherwise"
        return f"Keep your {fleet} on, and cut {one.cut_gpus:,} of them {how}. {_waits(one)}"
    why = "no way on this path does with less"
    why = "too little was seen to give any back" if one.confidence == PEAKS else why
    if shared_share > MAX_LEFT_OUT_SHARE:
        why = "jobs share their GPUs, which the simulation does not follow"
    if held_share < WHOLE_LIST:
        why = f"the jobs that were seen held {held_share:.1%} of them, so that the list may not be whole"
    return f"Keep your {fleet} as they are: {why}."


def _fleet(one: Decision) -> str:
    if one.board:
        return f"{one.fleet_gpus:,} {one.board}"
    return counted(one.fleet_gpus, "GPU")


def _cut_how(one: Decision) -> str:
    cut = one.cut_gpus
    how = "as jobs come and go" if one.policy == ON_DEMAND else "into slices"
    return f"; {cut:,} of them cut {how}" if cut else ""


def _waits(one: Decision) -> str:
    share, added = round(100 * one.service.quantile), one.service.added_minutes
    if added < 0.5:
        return f"{share} of 100 jobs of every size start as soon as today."
    return f"{share} of 100 jobs of every size start at most {added:,.0f} minutes later than today."


def nodes_text(part: LayoutOnNodes) -> str:
    """The nodes of a layout, the first few by name.

    Examples
    --------
    >>> nodes_text(LayoutOnNodes("whole", 16, ("n1", "n2")))
    'n1, n2'
    """
    if len(part.nodes) <= MOST_NODES_NAMED:
        return ", ".join(part.nodes)
    return f"{part.nodes[0]} to {part.nodes[-1]} ({len(part.nodes)} nodes)"


def _monday(one: Decision, found: Contest, *, quota: bool, jobs: int) -> Iterator[str]:
    """All steps in their order; what has to hold before nodes are repartitioned comes before that."""
    data = found.scenario.data
    if quota:
        yield (
            f"look at quotas, limits and dependencies: {counted(jobs, 'job')} waited over "
            f"{found.arena.minutes:g} minutes although their GPUs were free"
        )
    if one.action == "buy":
        more = one.gpus - one.fleet_gpus
        there = "it is" if more == 1 else "they are"
        yield f"order {counted(more, 'GPU')}, or move work elsewhere until {there} there"
    knobs = _knobs(found, one.policy)
    if knobs.get("requests") == RIGHTSIZED:
        yield (
            "agree with teams that jobs request the profile that they need, as the figures depend on it: "
            f"gpuplanner hints {data}"
        )
    if one.action in ("cut", "give_back") and one.policy != STATIC_WHOLE:
        for part in one.layouts:
            what, where = counted(part.gpus, "GPU"), nodes_text(part) or "nodes of one pool"
            if part.layout == CUT_BY_JOBS:
                yield f"let {found.able.who} cut {what} as jobs ask, on {where}"
            elif part.layout != "whole":
                yield f"cut {what} as {part.layout} on {where}"
    if one.action == "give_back":
        kept = {name for part in one.layouts for name in part.nodes}
        named = found.asked.nodes.names if found.asked.nodes.named else ()
        gone = tuple(name for name in named if name not in kept)
        if gone:
            them = "it" if len(gone) == 1 else "them"
            yield f"drain {nodes_text(LayoutOnNodes('', 0, gone))} and let {them} rest"
        if REST in WAYS[one.policy].levers:
            yield (
                f"let nodes rest after {knobs['idle_minutes']} minutes without work, and keep "
                f"{knobs.get('idle_nodes_kept', knobs.get('whole_nodes_kept', 0))} idle ones on"
            )
    yield f"look again in a week: gpuplanner start {data}"


def _knobs(found: Contest, policy: str) -> dict[str, float | int | str]:
    for one in found.judged:
        if one.policy == policy and one.trial is not None:
            return dict(one.trial.setting.knobs)
    return {}


def _missing(one: Decision, found: Contest, held_share: float) -> Iterator[Missing]:
    """What would make the decision surer, by what it would change."""
    data = found.scenario.data
    rows = (
        (held_share < WHOLE_LIST, f"whether the list of jobs is whole: they held {held_share:.1%} of the GPUs",
         f"describe {data}"),
        (found.asked.nodes.inferred,
         "how many GPUs are installed: their number is the most that jobs were seen to hold",
         f"ingest nodes NODES -o {data}"),
        (one.confidence == PEAKS, "more days of jobs than were seen", f"ingest auto JOBS -o {data}"),
        (found.asked.starts_assumed, "when jobs started: they are taken to have started when they came",
         f"ingest auto JOBS -o {data}"),
        (one.board is None, "which board it is: nothing is said of cutting, energy or money",
         f"start {data} --board BOARD"),
        (found.known.trace.samples is None, "what the GPUs did while they were held",
         f"ingest nvidia-smi FILES -o {data}"),
        (one.worth.ownership == "unknown", "who owns the GPUs: what a saving is worth depends on it",
         f"start {data} --set ownership=owned"),
    )  # fmt: skip
    for lacking, what, command in rows:
        if lacking:
            yield Missing(what, f"gpuplanner {command}")


def _how_sure(one: Decision, found: Contest, peaks: np.ndarray) -> Iterator[str]:
    """What it rests on, in words that a director knows."""
    if one.left_out_share > QUARANTINE:
        yield f"{one.left_out_share:.0%} of the GPU-hours are left out, as their jobs cannot be true beside the others."
    if matched := match_words(found.known.trace):
        yield f"{matched}."
    days = int(found.asked.seen_s // 86400)
    if one.confidence == HELD_BACK:
        yield (
            f"Tuned on the first {counted(int(found.earlier_days.sum()), 'day')}, judged on the "
            f"{counted(int(found.later_days.sum()), 'day')} after them."
        )
    elif one.confidence == LEFT_OUT:
        few = "day is" if days == 1 else "days are"
        yield f"{days} {few} too few to keep weeks back: each day was judged by the others."
    else:
        yield f"Only the peaks of {counted(len(peaks), 'complete day')} speak."
        passed = (
            exceed_chance(peaks, one.gpus, one.horizon_days, fleet=one.fleet_gpus) if len(peaks) else None
        )
        if passed is not None:
            gpus = counted(one.gpus, "GPU")
            yield f"The chance that the next {counted(one.horizon_days, 'day')} pass {gpus} is {passed:.0%}."
    yield from _thin(one)
    if one.gpus_hold_rate is not None and one.confidence != PEAKS:
        yield f"The target was held on {one.gpus_hold_rate:.0%} of the days not used to set it."
    if one.saving.value is not None and one.saving.low is not None and one.saving.high is not None:
        low, high = f"{one.saving.low:,.0f}", f"{one.saving.high:,.0f}"
        spread = "" if low == high else f", {low} to {high} in 9 of 10 weeks"
        realised = _realised(one.saving.realised) if one.saving.realised and spread else ""
        yield f"A week saves {one.saving.value:,.0f} GPU-hours{spread}{realised}."
    if one.policy == found.winner.policy and (slower := found.arena.slower(found.winner.trial)) > 1.0:
        yield f"It also holds where jobs on smaller slices run as slowly as they may, {slower - 1:.0%} longer."
    if found.times > 1.0:
        yield f"It also holds with {found.times - 1:.0%} more jobs."
    if found.arena.unservable:
        jobs = counted(found.arena.unservable, "job")
        yield f"Not compared: {jobs} with a request for GPUs or MIG instances that today's nodes do not have."
    if found.known.shared_share > MAX_LEFT_OUT_SHARE:
        yield (
            f"Jobs that share a GPU have {found.known.shared_share:.0%} of the GPU-hours, and the simulation gives "
            "each a GPU of its own: its waiting is too long, and no purchase follows from it."
        )
    yield from dict.fromkeys((*found.asked.nodes.remarks, *found.known.fleet.remarks()))


def _thin(one: Decision) -> Iterator[str]:
    """That jobs of all sizes were judged as one, for want of jobs: what holds for all need not hold for each."""
    groups = one.service.by_class
    if one.action != "keep" and len(groups) == 1 and ", " in groups[0].size_class:
        yield (
            f"This is thin: only {counted(groups[0].jobs, 'job')} speak, too few to judge each size by itself, so that "
            "one of them may wait longer; ask again with a longer record before anything is given away."
        )


def _realised(weeks: Sequence[float]) -> str:
    return f"; the weeks kept back saved {' and '.join(f'{week:,.0f}' for week in weeks)}"


def _assumptions(one: Decision, found: Contest) -> Iterator[str]:
    """What was assumed, with the option that changes it."""
    able = found.able
    yield f"path {one.path}: {able.who}; --path to change"
    if able.switches_nodes:
        usual, slow = (round(seconds / 60) for seconds in (able.lead.value, able.lead.high))
        yield f"a node takes {usual} minutes to come, {slow} where it is slow; --set node_lead_s=… to change"
    yield f"peaks are looked at {one.horizon_days} days ahead, purchases {one.purchase_lead_days}"
    if found.asked.nodes.inferred:
        yield "nodes are inferred from the jobs on them"
    known = found.known
    if RIGHTSIZED in found.asked.views and known.undecided:
        yield f"{known.undecided:.0%} of the jobs are of no known class: unmeasured, they need what they ask for"
    if RIGHTSIZED in found.asked.views and known.like_others is not None:
        yield f"classes without a name follow from size, duration and hour: {known.like_others:.0%} of those alike"
    if standing := found.asked.standing_gpus:
        yield f"services and what ran all along have no end: they keep the {standing:,.1f} GPUs that they held at most"
    if found.asked.starts_assumed:
        yield "jobs are taken to have started when they came"


def uncorrected_decision(scenario: Scenario, correction: Correction) -> Decision:
    """The answer where too many GPU-hours are left out: nothing but what to correct first.

    Examples
    --------
    >>> uncorrected_decision(Scenario(), Correction(0.5, "shares of node n1", "label it")).missing[0].command
    'label it'
    """
    decision = unknown_decision(scenario, correction.reason)
    return replace(
        decision,
        missing=(Missing(correction.what, correction.how),),
        left_out_share=correction.share,
    )


def unknown_decision(scenario: Scenario, reason: str) -> Decision:
    """The answer where nothing can be played, with the command that adds what is missing."""
    none = RunOutSide(None, (), reason)
    return Decision(
        sentence=f"Nothing can be decided yet: {reason}.", action="unknown", fleet_gpus=0, gpus=0, gpus_mean=0.0,
        layouts=(), policy=TODAY, path=scenario.path, confidence=PEAKS,
        shortage=Shortage(0.0, 0, 0, None), saving=Saving(None, reason=reason),
        worth=Worth("unknown", None, "nothing is saved"), service=Service(scenario.wait_quantile, 0.0),
        run_out=RunOut(none, none), horizon_days=scenario.horizon_days, purchase_lead_days=scenario.purchase_lead_days,
        monday=(),
        missing=(Missing(reason, f"gpuplanner ingest auto JOBS -o {scenario.data}"),),
    )  # fmt: skip
