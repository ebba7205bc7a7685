"""A decision in sentences: headline, next steps, confidence."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpuplanner.core.scenario import Scenario
from gpuplanner.core.units import counted, day_text, wait_text
from gpuplanner.decision.capacity_answers import MIN_DAYS, MIN_JOBS, Recommendation
from gpuplanner.decision.decision_types import (
    CUT_BY_JOBS,
    ROUNDING_MINUTES,
    STATIC_MIG,
    TODAY,
    Decision,
    Measure,
    Missing,
    NextStep,
    Saving,
    Worth,
)
from gpuplanner.decision.policy_comparison import Contest
from gpuplanner.decision.policy_fleets import changed_layouts
from gpuplanner.decision.policy_simulation import Correction, Trial
from gpuplanner.decision.requests import RIGHTSIZED
from gpuplanner.decision.wait_curve import WaitTarget
from gpuplanner.hardware.catalog import board_names, measure_words
from gpuplanner.ingest.telemetry.telemetry_quality import match_words

WHOLE_LIST = 0.02
"""Of a fleet that is held below this share nothing is recommended before the list of jobs is known to be whole."""
MOST_NODES_NAMED = 6
IDLE_ACTIONS = ("power_down", "autoscale")
"""Measures under which jobs may wait for a node to come."""
PLATFORM, PLANNER = "platform team", "planner"


def in_words(decision: Decision, found: Contest, advice: Recommendation, trial: Trial) -> Decision:
    """The decision with its sentences."""
    text = sentence(decision, advice.order_gpus, _changes(decision, found, trial))
    if decision.latest is not None and any(one.action in IDLE_ACTIONS for one in decision.measures):
        later = found.arena.late_minutes(trial, found.later) - found.arena.todays_minutes(found.later)
        added = wait_text(math.ceil(max(later.max(), 0.0)))
        text = f"{text.removesuffix('.')} while all are on, and by up to {added} as nodes power down."
    return replace(
        decision,
        sentence=text,
        next_steps=tuple(_next_steps(decision, found, advice, trial)),
        missing=tuple(_missing(decision, found, advice)),
        how_sure=tuple(_how_sure(decision, found, advice)),
        assumptions=tuple(_assumptions(decision, found)),
    )


def sentence(one: Decision, order_gpus: int = 0, changes: tuple[int, str] | None = None) -> str:
    """What to do, and what it does to queue waits; ``changes``: GPUs that are repartitioned, and which.

    Examples
    --------
    >>> no_decision(Scenario(), "no job states when it ran").sentence
    'No recommendation: no job states when it ran.'
    """
    fleet = f"your {one.fleet_gpus:,} {one.board}" if one.board else f"your {counted(one.fleet_gpus, 'GPU')}"
    ordered = counted(order_gpus, "GPU")
    order = f"; order at least {ordered} now, as growth exhausts them" if order_gpus else ""
    if one.action == "none":
        return f"No recommendation: {one.reason}."
    if not one.measures:
        return f"Keep {fleet} as they are: {one.reason}{order}."
    parts: list[str] = []
    gpus = one.fleet_gpus
    cut_gpus, which = changes or (one.cut_gpus, "")
    for measure in one.measures:
        more = measure.gpus - gpus
        on = "of them" if parts else f"of {fleet}"
        parts.append(
            {
                "release": f"release {-more:,} {on}", "buy": f"buy {counted(more, 'GPU')}",
                "rightsize": f"rightsize small jobs and partition {cut_gpus:,} {on}{which}",
                "repartition": f"partition {cut_gpus:,} {on} as jobs need{which}",
                "pack": f"let jobs fill the nodes of {fleet} one by one",
                "raise_limit": measure.text[:1].lower() + measure.text[1:],
                "power_down": f"power idle nodes {on} down ({one.gpus_mean:,.0f} GPUs on average)",
                "autoscale": f"let pools {on} scale ({one.gpus_mean:,.0f} GPUs on average)",
            }[measure.action]
        )  # fmt: skip
        gpus = measure.gpus
    if one.action == "buy":
        parts[0] += f" for {fleet}"
    text = ", then ".join(parts)
    return f"{text[:1].upper()}{text[1:]}{order}. {_waits(one)}"


def _changes(one: Decision, found: Contest, trial: Trial) -> tuple[int, str] | None:
    """GPUs that are repartitioned, and the nodes that they are on with both layouts; None where jobs do it."""
    if one.policy != STATIC_MIG or not (changed := changed_layouts(found.asked, trial.setting)):
        return None
    named = (f"{nodes_text(on)} from {old} to {new}" for (old, new), on in changed.items())
    which = f" ({', '.join(named)})" if found.asked.nodes.named and len(changed) <= 3 else ""
    return sum(map(len, changed.values())), which


def _waits(one: Decision) -> str:
    """What it does to the size that waits longest, and what others pay for it."""
    if (latest := one.latest) is None:
        return (
            "How long each job size waits then is not stated: a replay of today is too far from the record."
        )
    worst = max(one.service, key=lambda row: row.added_p95_minutes)
    # A p95 wait that changes by less than a minute is not said to change.
    fell = latest.today_p95_minutes - latest.recommended_p95_minutes >= 1.0
    now, then = (wait_text(each) for each in (latest.today_p95_minutes, latest.recommended_p95_minutes))
    text = f"p95 queue wait on {latest.size} falls from {now} to {then}" if fell else ""
    if text and (observed := wait_text(latest.observed_p95_minutes)) != now:
        text += f" in simulation (observed {observed})"
    if worst.added_p95_minutes <= ROUNDING_MINUTES:
        return f"{text}, and rises for no job size." if text else "p95 queue waits rise for no job size."
    added = wait_text(math.ceil(worst.added_p95_minutes))
    place = "within" if worst.meets_limit else "above"
    paid = f"at most {added} ({worst.size}, {place} the limit of {wait_text(worst.limit_minutes)})"
    return f"{text}, and rises by {paid}." if text else f"p95 queue waits rise by {paid}."


def nodes_text(nodes: Sequence[str]) -> str:
    """List nodes by name, each once, of many the first and the last.

    Examples
    --------
    >>> nodes_text(("n1", "n2"))
    'n1, n2'
    """
    names = list(dict.fromkeys(nodes))
    if len(names) <= MOST_NODES_NAMED:
        return ", ".join(names)
    return f"{names[0]} to {names[-1]} ({len(names)} nodes)"


def _next_steps(one: Decision, found: Contest, advice: Recommendation, trial: Trial) -> Iterator[NextStep]:
    """All steps in their order; what has to hold before nodes are repartitioned comes before that."""
    for measure in one.measures:
        for step in _steps_of(measure, one, found, advice, trial):
            yield replace(step, action=measure.action)
    if advice.order_gpus and (due := advice.exhaustion.date):
        gpus = counted(advice.order_gpus, "GPU")
        what = f"order at least {gpus} at once: the work grows, and exhausts capacity by {day_text(due)}"
        yield NextStep("finance", what)
    if advice.enough_gpus and not one.measures:
        more = counted(advice.enough_gpus - one.fleet_gpus, "GPU")
        target = f"target_wait_minutes={WaitTarget().target_s / 60:g}"
        command = f"gpuplanner start {found.scenario.data} --set {target}"
        yield NextStep(PLANNER, f"if the target must be met, have {more} more recommended", command)
    yield _check_again(found)


def _steps_of(
    measure: Measure, one: Decision, found: Contest, advice: Recommendation, trial: Trial
) -> Iterator[NextStep]:
    """Who does what for a measure, with the command; what files perform is written by ``gpuplanner export``."""
    data, able = found.scenario.data, found.able
    before = (measure.condition or "").removeprefix("after ").replace("_", " ")
    when = f" when {before} is in force" if before else ""
    files = f"gpuplanner export {data} --path {able.path}"
    match measure.action:
        case "buy":
            gpus = counted(measure.gpus - one.fleet_gpus, "GPU")
            due, end = advice.exhaustion.order_by, found.asked.end.date().isoformat()
            day = "at once" if due is None or due <= end else f"by {day_text(due)}"
            yield NextStep("finance", f"order {gpus} {day}{when}")
        case "pack":
            words = measure_words("pack", able.path)
            yield NextStep(PLATFORM, f"fill nodes first: {words['edit']}", words["command"] or None)
        case "raise_limit":
            words = measure_words("raise_limit", able.path)
            for limit in advice.limits:
                values = {"tenant": shlex.quote(limit.tenant), "gpus": limit.gpus}
                what = f"raise the limit of {limit.tenant} from {limit.today:g} to {limit.gpus} GPUs"
                edit = f" ({words['edit'].format(**values)})" if words["edit"] else ""
                yield NextStep(PLATFORM, f"{what}{edit}", words["command"].format(**values))
        case "release":
            yield from _drained(one, found, when)
        case "power_down" | "autoscale":
            knobs = trial.setting.knobs
            kept = knobs.get("idle_nodes_kept", knobs.get("whole_nodes_kept", 0))
            idle = f"after {knobs['idle_minutes']} minutes without work"
            yield NextStep(PLATFORM, f"power nodes down {idle}, and keep {kept} idle ones on{when}", files)
        case "rightsize":
            yield NextStep("teams", "request the profile that jobs need", f"gpuplanner hints {data}")
    if measure.action in ("rightsize", "repartition", "autoscale"):
        changed = changed_layouts(found.asked, trial.setting) if one.policy == STATIC_MIG else {}
        for (old, new), nodes in changed.items() if found.asked.nodes.named else ():
            where = nodes_text(nodes)
            what = f"partition {counted(len(nodes), 'GPU')} of {where} as {new} (today {old})"
            yield NextStep(PLATFORM, what, files)
        for part in () if changed else one.layouts:
            if part.layout == "whole":
                continue
            where = nodes_text(part.nodes) or "nodes of one pool"
            how = f"as {part.layout}" if part.layout != CUT_BY_JOBS else f"as jobs ask, by {able.who},"
            yield NextStep(PLATFORM, f"partition {counted(part.gpus, 'GPU')} {how} on {where}", files)


def _check_again(found: Contest) -> NextStep:
    """Check in a week, on files that are exported again: those read before hold no newer job."""
    trace = found.known.trace
    files = [file["name"] for facts in (trace.provenance, *trace.others) for file in facts.get("files", ())]
    if not 0 < len(files) <= MOST_NODES_NAMED:
        return NextStep(PLANNER, "check again in a week, on newly exported data", "gpuplanner start FILES")
    what = f"in a week, export {', '.join(files)} again (docs/export_from_your_cluster.md), and check again"
    return NextStep(PLANNER, what, f"gpuplanner start {shlex.join(files)}")


def _drained(one: Decision, found: Contest, when: str) -> Iterator[NextStep]:
    """Which nodes to empty for a release."""
    kept = {name for part in one.layouts for name in part.nodes}
    nodes, able = found.asked.nodes, found.able
    gone = [name for name in nodes.names if name not in kept] if nodes.named else []
    if not gone:
        yield NextStep(PLATFORM, f"drain and release {counted(one.fleet_gpus - one.gpus, 'GPU')}{when}")
        return
    separator = "," if able.path == "slurm" else " "
    names = separator.join(shlex.quote(name) for name in gone)
    command = measure_words("release", able.path)["command"].format(nodes=names)
    if len(gone) > MOST_NODES_NAMED:
        command = f"gpuplanner export {found.scenario.data} --path {able.path}"
    yield NextStep(PLATFORM, f"drain and release {nodes_text(gone)}{when}", command)


def _missing(one: Decision, found: Contest, advice: Recommendation) -> Iterator[Missing]:
    """What would make the decision surer, by what it would change."""
    data, asked, model = found.scenario.data, found.asked, advice.model
    for gap in model.waits.share.gaps:
        yield Missing(f"{gap.sentence} What would help: {gap.add}", f"gpuplanner ingest auto JOBS -o {data}")
    thin = asked.seen_s < MIN_DAYS * 86_400 or model.waits.judged.sum() < MIN_JOBS
    rows = (
        (one.action == "none" and "whole" in str(one.reason), "whether the list of jobs is whole", f"describe {data}"),
        (asked.nodes.inferred,
         "how many GPUs are installed: their number is the most that jobs were seen to hold",
         f"ingest nodes NODES -o {data}"),
        (thin, "more days of jobs than were seen", f"ingest auto JOBS -o {data}"),
        (asked.starts_assumed, "when jobs started: they are taken to have started when they came",
         f"ingest auto JOBS -o {data}"),
        (not found.known.fleet.in_catalogue, "which GPU model it is: nothing is said of MIG, energy or money",
         f"start {data} --board {likely_board(one.board or '')}"),
        (found.known.trace.samples is None, "what the GPUs did while they were held",
         f"ingest nvidia-smi FILES -o {data}"),
        (one.worth.ownership == "unknown", "who owns the GPUs: what a saving is worth depends on it",
         f"start {data} --set ownership=owned"),
    )  # fmt: skip
    for lacking, what, command in rows:
        if lacking:
            yield Missing(what, f"gpuplanner {command}")


def likely_board(word: str) -> str:
    """The first board of the catalogue whose name begins with a word of the data; where none does, a placeholder.

    Examples
    --------
    >>> likely_board("h100"), likely_board("quick")
    ('H100-80GB-SXM5', 'BOARD')
    """
    alike = (name for name in board_names() if word and name.lower().startswith(word.lower()))
    return next(alike, "BOARD")


def _how_sure(one: Decision, found: Contest, advice: Recommendation) -> Iterator[str]:
    """What it rests on, in words that a director knows."""
    if one.left_out_share > 0.01:
        yield f"{one.left_out_share:.0%} of the GPU-hours are left out, as their jobs cannot be true beside the others."
    if matched := match_words(found.known.trace):
        yield f"{matched}."
    share, days = advice.model.waits.share, int(found.asked.seen_s // 86_400)
    if share.fraction is not None:
        # Job sizes of whose waiting the replay reproduces less are named.
        less = [f"{part:.0%} on {name}" for name, part in share.by_size.items() if part < 0.9]
        yield (
            f"A replay of {counted(days, 'day')} reproduces {share.fraction:.0%} of the waiting"
            f"{' (' + ', '.join(less) + ')' if less else ''}; by team and size it is wrong by {share.error:.0%}."
        )
    if (latest := one.latest) is not None and latest.replay_is_apart:
        now, observed = (wait_text(each) for each in (latest.today_p95_minutes, latest.observed_p95_minutes))
        yield (
            f"The p95 wait on {latest.size} is {now} in the median replay of today and {observed} as observed: "
            f"{counted(math.ceil(0.05 * latest.jobs), 'job')} of {latest.jobs:,} decide it. Fleets are compared "
            "by replays."
        )
    if advice.worth is not None and one.action == "buy":
        yield f"Each GPU-hour bought ends {advice.worth:.2f} GPU-hours of waiting."
    weekly, measured = advice.growth.weekly, advice.headroom
    if any(measure.action == "release" for measure in one.measures) and measured is not None:
        load, in_most = measured.headroom.factor, measured.headroom.low
        grows = "" if weekly.value is None else f"; the work changes by {weekly.value:+.1%} a week"
        yield f"What is kept carries {load:.2f} times the load ({in_most:.2f} in 9 of 10 draws){grows}."
    if advice.limits:
        yield "A raised limit is the most that a team held at once in a replay without limits."
    if one.action == "rightsize":
        yield f"How many later runs may need more than the recommended size: gpuplanner hints {found.scenario.data}."
    if one.measures and one.measures[-1].action in IDLE_ACTIONS:
        yield (
            f"The policy was fitted on {counted(int(found.earlier_days.sum()), 'day')}, and met the limit on the "
            f"{counted(int(found.later_days.sum()), 'day')} after them."
        )
    if one.saving.value is not None and one.saving.varies:
        low, high = f"{one.saving.low:,.0f}", f"{one.saving.high:,.0f}"
        weeks = " and ".join(f"{week:,.0f}" for week in one.saving.realised)
        realised = f"; the weeks of evaluation freed {weeks}" if weeks else ""
        yield (
            f"A week frees {one.saving.value:,.0f} GPU-hours by the training window, {low} to {high} in 9 of 10 "
            f"weeks{realised}."
        )
    if found.arena.unservable:
        jobs = counted(found.arena.unservable, "job")
        yield f"Not compared: {jobs} with a request for GPUs or MIG instances that today's nodes do not have."
    yield from dict.fromkeys((*found.asked.nodes.remarks, *found.known.fleet.remarks()))


def _assumptions(one: Decision, found: Contest) -> Iterator[str]:
    """What was assumed, with the option that changes it."""
    able = found.able
    yield f"path {one.path}: {able.who}; --path to change"
    if able.switches_nodes:
        usual, slow = (round(seconds / 60) for seconds in (able.lead.value, able.lead.high))
        more = f"{slow} where it is slow, and jobs then wait up to {slow - usual} more"
        yield f"a node takes {usual} minutes to come, {more}; --set node_lead_s=… to change"
    target = found.scenario.target_wait_minutes
    stated = f"{30 if target is None else target:g} minutes"
    yield f"a job size is late if its p95 queue wait is over {stated}; --set target_wait_minutes=… to change"
    yield f"GPUs take {one.purchase_lead_days} days from order to work; --set purchase_lead_days=… to change"
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
    decision = no_decision(scenario, correction.reason)
    missing = (Missing(correction.what, correction.how),)
    return replace(decision, missing=missing, left_out_share=correction.share)


def no_decision(scenario: Scenario, reason: str) -> Decision:
    """The answer where nothing can be simulated, with the command that adds what is missing."""
    return Decision(
        sentence=f"No recommendation: {reason}.", action="none", fleet_gpus=0, gpus=0, gpus_mean=0.0, layouts=(),
        policy=TODAY, path=scenario.path, saving=Saving(None, reason=reason),
        worth=Worth("unknown", None, "nothing is released"), purchase_lead_days=scenario.purchase_lead_days,
        reason=reason, missing=(Missing(reason, f"gpuplanner ingest auto JOBS -o {scenario.data}"),),
    )  # fmt: skip
