"""A decision in sentences: headline, next steps, confidence."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schemas import WHOLE_GPU
from gpuplanner.core.units import SECONDS_PER_HOUR, UNALLOCATED, count_text, day_text, percent_text, wait_text
from gpuplanner.decision.capacity_answers import MIN_DAYS, MIN_JOBS, RECOMMENDED, Recommendation
from gpuplanner.decision.decision_types import (
    CUT_BY_JOBS,
    FULL,
    MIG_STATIC,
    ROUNDING_MINUTES,
    TODAY,
    CurvePoint,
    Decision,
    FinancialImpact,
    Measure,
    Missing,
    NextStep,
    Saving,
    nodes_of,
)
from gpuplanner.decision.headroom_and_growth import FittedGrowth
from gpuplanner.decision.policy_comparison import Contest
from gpuplanner.decision.policy_fleets import changed_layouts
from gpuplanner.decision.policy_simulation import Correction, Trial
from gpuplanner.decision.wait_curve import CURVE_RUNS, WaitModel, WaitTarget
from gpuplanner.hardware.catalog import find_measure_texts, mig_model_names
from gpuplanner.hardware.mig_layouts import parse_layout

WHOLE_LIST = 0.02
"""Allocated share of a fleet below which nothing is recommended: the list of jobs may be incomplete."""
MOST_NODES_NAMED = 6
MINUTES_PER_HOUR = 60
IDLE_ACTIONS = ("power_down", "autoscale")
"""Measures under which jobs may wait for a node to power up."""
PLATFORM, PLANNER = "platform team", "planner"


def in_words(
    decision: Decision, found: Contest, advice: Recommendation, trial: Trial, curve: Sequence[CurvePoint]
) -> Decision:
    """The decision with its sentences."""
    text = sentence(decision, advice.order_gpus, _changes(decision, found, trial))
    if decision.latest is not None and any(one.action in IDLE_ACTIONS for one in decision.measures):
        later = found.arena.late_minutes(trial, found.later) - found.arena.todays_minutes(found.later)
        added = wait_text(math.ceil(max(later.max(), 0.0)))
        text = f"{text.removesuffix('.')}; power-ups add up to {added}."
    return replace(
        decision,
        sentence=text,
        next_steps=tuple(_next_steps(decision, found, advice, trial)),
        missing=tuple(_missing(decision, found, advice)),
        confidence=tuple(_confidence(decision, found, advice, curve)),
        assumptions=tuple(_assumptions(decision, found, advice.growth)),
    )


def _new_nodes(decision: Decision, form: str) -> str:
    """Nodes to buy, in a form; empty where GPUs fill no nodes of equal size."""
    bought = next((part for part in decision.layouts if part.new_nodes), None)
    return "" if bought is None else form.format(nodes_of(bought.gpus, bought.new_nodes))


Changes = Mapping[tuple[str, str], Sequence[str]]
"""Nodes of the GPUs that are repartitioned, one name for each GPU, by layout before and after."""


def sentence(one: Decision, order_gpus: int = 0, changes: Changes = MappingProxyType({})) -> str:
    """What to do, and what it does to queue waits.

    Examples
    --------
    >>> no_decision(Scenario(), "no job states when it ran").sentence
    'No recommendation: no job states when it ran.'
    """
    fleet = gpus_text(one.fleet_gpus, one.gpu_model)
    ordered = count_text(order_gpus, "GPU")
    order = f"; order at least {ordered} now for growth" if order_gpus else ""
    if one.action == "none":
        return f"No recommendation: {one.reason}."
    if not one.measures:
        return f"Keep all {fleet}: {one.reason}{order}."
    parts: list[str] = []
    gpus = one.fleet_gpus
    partitioned = sum(map(len, changes.values())) or one.cut_gpus
    for measure in one.measures:
        more = measure.gpus - gpus
        on = "" if parts else f" of {fleet}"
        parts.append(
            {
                "release": f"release {-more:,}{on}", "buy": f"buy {more:,} more {one.gpu_model or 'GPUs'}",
                "rightsize": f"partition {partitioned:,}{on} with MIG and rightsize small jobs",
                "repartition": f"{_verb(changes)} {partitioned:,}{on}",
                "pack": f"pack jobs on few nodes{on}",
                "raise_limit": measure.text[:1].lower() + measure.text[1:],
                "power_down": f"power down idle nodes{on} ({one.gpus_mean:,.0f} GPUs on average)",
                "autoscale": f"autoscale node pools{on} ({one.gpus_mean:,.0f} GPUs on average)",
            }[measure.action]
        )  # fmt: skip
        gpus = measure.gpus
    if one.action == "buy":
        parts[0] += f"{_new_nodes(one, ' ({})')} for the {fleet}"
    text = ", then ".join(parts)
    return f"{text[:1].upper()}{text[1:]}{order}. {_waits(one)}"


def gpus_text(gpus: int, gpu_model: str | None) -> str:
    """GPUs with the short name of their model.

    Examples
    --------
    >>> gpus_text(64, "H100-80GB-SXM5"), gpus_text(8, "L40S"), gpus_text(1, None)
    ('64 H100s', '8 L40S GPUs', '1 GPU')
    """
    model = (gpu_model or "").split("-")[0]
    if not model or gpus == 1 or model[-1:].lower() == "s":
        return count_text(gpus, f"{model} GPU".strip())
    return f"{gpus:,} {model}s"


def _changes(one: Decision, found: Contest, trial: Trial) -> Changes:
    """GPUs that are repartitioned; none where jobs do it."""
    return changed_layouts(found.asked, trial.setting) if one.policy == MIG_STATIC else {}


def _verb(changes: Changes) -> str:
    """Full GPUs are partitioned; those that are MIG-partitioned already are repartitioned."""
    return "repartition" if changes and all(before != WHOLE_GPU for before, _ in changes) else "partition"


def _waits(one: Decision) -> str:
    """What it does to the wait of the size that gains most, and to the others."""
    if (latest := one.most_improved) is None:
        return "Waits by job size are not known: the replay of today is too far from the record."
    worst = max(one.service, key=lambda row: row.added_p95_minutes)
    # A p95 wait that changes by less than a minute is shown as unchanged.
    fell = latest.today_p95_minutes - latest.recommended_p95_minutes >= 1.0
    now, then = (wait_text(minutes) for minutes in (latest.today_p95_minutes, latest.recommended_p95_minutes))
    text = f"Simulated p95 queue wait on {latest.size}: {now} → {then}; " if fell else ""
    if worst.added_p95_minutes <= ROUNDING_MINUTES:
        if text and any(row.rises_if_resampled for row in one.service):
            return f"{text}other sizes may wait longer (see Confidence)."
        return f"{text}p95 of no other size rises." if text else "No job size's p95 queue wait rises."
    limit = "" if worst.meets_limit else f", above the limit of {wait_text(worst.limit_minutes)}"
    rise = f"{wait_text(math.ceil(worst.added_p95_minutes))} more on {worst.size}{limit}"
    return f"{text or 'Simulated p95 queue wait: '}up to {rise}."


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
        gpus = count_text(advice.order_gpus, "GPU")
        what = f"order at least {gpus} now: growth exhausts capacity by {day_text(due)}"
        yield NextStep("finance", what)
    if advice.enough_gpus and not one.measures:
        more = count_text(advice.enough_gpus - one.fleet_gpus, "GPU")
        target = f"target_wait_minutes={WaitTarget().target_s / 60:g}"
        command = f"gpuplanner start {found.scenario.data} --set {target}"
        yield NextStep(PLANNER, f"if the wait limit is firm, set it for a recommendation with {more} more", command)
    if one.action == "none":
        yield NextStep(
            PLANNER, "add the missing data, most important first, then start again", "gpuplanner start FILES"
        )
    else:
        yield _check_again(one, found)


def _steps_of(
    measure: Measure, one: Decision, found: Contest, advice: Recommendation, trial: Trial
) -> Iterator[NextStep]:
    """Who does what for a measure, with the command; what files perform is written by ``gpuplanner export``."""
    data, able = found.scenario.data, found.able
    before = (measure.condition or "").removeprefix("after ").replace("_", " ")
    when = f" when {before} is in force" if before else ""
    files = f"gpuplanner export {data} --actuator {able.actuator}"
    match measure.action:
        case "buy":
            more = measure.gpus - one.fleet_gpus
            gpus = f"{more:,} × {one.gpu_model}" if one.gpu_model else count_text(more, "GPU")
            lead = f"now{when}; delivery in about {one.purchase_lead_days} days"
            yield NextStep("finance", f"approve the order of {gpus}{_new_nodes(one, ', {}')}, {lead}")
        case "pack":
            words = find_measure_texts("pack", able.actuator)
            yield NextStep(PLATFORM, f"pack jobs on few nodes: {words['edit']}", words["command"] or None)
        case "raise_limit":
            words = find_measure_texts("raise_limit", able.actuator)
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
            idle = f"after {knobs['idle_minutes']} min idle"
            yield NextStep(PLATFORM, f"power down nodes {idle}, keep {kept} idle nodes powered on{when}", files)
    if measure.action in ("rightsize", "repartition", "autoscale"):
        changed = _changes(one, found, trial)
        if changed and found.asked.nodes.named:
            yield NextStep(PLATFORM, _partition_text(changed), files)
        for part in () if changed else one.layouts:
            if part.layout == FULL:
                continue
            where = nodes_text(part.nodes) or "nodes of one pool"
            how = f"as {part.layout}" if part.layout != CUT_BY_JOBS else f"on demand, by {able.partitioner},"
            yield NextStep(PLATFORM, f"partition {count_text(part.gpus, 'GPU')} {how} on {where}", files)
    if measure.action == "rightsize":
        # Jobs that request a profile before a node has it stay pending.
        what = "as soon as the layout of a node is verified, request the recommended profile there"
        yield NextStep("team leads", what, f"gpuplanner rightsize {data}")


def _partition_text(changes: Changes) -> str:
    """Which GPUs are partitioned and how; of a single change, the layout before as well.

    Examples
    --------
    >>> _partition_text({("3g.20gb:2", "1g.5gb:7"): ["gn04"]})
    'repartition 1 GPU on gn04 from 2 × 3g.20gb to 7 × 1g.5gb'
    """
    gpus = count_text(sum(map(len, changes.values())), "GPU")
    text = f"{_verb(changes)} {gpus} on {nodes_text(sorted({name for nodes in changes.values() for name in nodes}))}"
    if len(changes) == 1:
        before, after = map(layout_text, next(iter(changes)))
        return f"{text} from {before} to {after}"
    parts = Counter[str]()
    for (_, after), nodes in changes.items():
        parts[layout_text(after)] += len(nodes)
    return f"{text}: {', '.join(f'{number} as {layout}' for layout, number in parts.most_common())}"


def layout_text(layout: str) -> str:
    """A layout in words.

    Examples
    --------
    >>> layout_text("3g.40gb:2"), layout_text("gpu")
    ('2 × 3g.40gb', 'full GPU (MIG disabled)')
    """
    if layout == WHOLE_GPU:
        return "full GPU (MIG disabled)"
    return " + ".join(f"{number} × {profile}" for profile, number in parse_layout(layout).items())


def _check_again(decision: Decision, found: Contest) -> NextStep:
    """Check a week after the change, on the days since then: earlier days have the waits of before."""
    trace = found.known.trace
    files = [file["name"] for facts in (trace.provenance, *trace.other_sources) for file in facts.get("files", ())]
    named = 0 < len(files) <= MOST_NODES_NAMED
    names, command = (", ".join(files), shlex.join(files)) if named else ("the data", "FILES")
    gains = decision.most_improved
    today = "" if gains is None else f"{wait_text(gains.observed_p95_minutes)} on {gains.size}"
    when, until = "a week after the change", ""
    if decision.gpus > decision.fleet_gpus:
        when = f"a week after the new GPUs are in service (about {decision.purchase_lead_days} days after the order)"
        until = f"; until then p95 stays near {today}" if today and decision.action == "buy" else ""
    only = f"{names} for the days since then only"
    what = f"{when}, export {only} and compare the observed p95 with {today or 'that of today'}{until}"
    if not decision.measures:
        what = f"in a week, export {names} again and start again"
    return NextStep(PLANNER, what, f"gpuplanner start {command}")


def _drained(one: Decision, found: Contest, when: str) -> Iterator[NextStep]:
    """Which nodes to empty for a release."""
    kept = {name for part in one.layouts for name in part.nodes}
    nodes, able = found.asked.nodes, found.able
    gone = [name for name in nodes.names if name not in kept] if nodes.named else []
    if not gone:
        yield NextStep(PLATFORM, f"drain and release {count_text(one.fleet_gpus - one.gpus, 'GPU')}{when}")
        return
    separator = "," if able.actuator == "slurm" else " "
    names = separator.join(shlex.quote(name) for name in gone)
    command = find_measure_texts("release", able.actuator)["command"].format(nodes=names)
    if len(gone) > MOST_NODES_NAMED:
        command = f"gpuplanner export {found.scenario.data} --actuator {able.actuator}"
    yield NextStep(PLATFORM, f"drain and release {nodes_text(gone)}{when}", command)


def _missing(one: Decision, found: Contest, advice: Recommendation) -> Iterator[Missing]:
    """What would raise the confidence, by its effect."""
    data, asked, model = found.scenario.data, found.asked, advice.model
    for gap in model.waits.share.gaps:
        yield Missing(f"{gap.sentence} Add {gap.add}", f"gpuplanner ingest auto JOBS -o {data}")
    thin = asked.observed_s < MIN_DAYS * 86_400 or model.waits.judged.sum() < MIN_JOBS
    rows = (
        (one.action == "none" and "incomplete" in str(one.reason), "check that the list of jobs is complete",
         f"describe {data}"),
        (asked.nodes.inferred, "installed GPUs: only the peak allocated is known", f"ingest nodes NODES -o {data}"),
        (thin, "a longer record of jobs", f"ingest auto JOBS -o {data}"),
        (asked.starts_assumed, "start times of jobs: assumed equal to submission", f"ingest auto JOBS -o {data}"),
        (not found.known.fleet.in_catalogue, "the GPU model: without it no MIG, energy or money",
         f"start {data} --gpu-model {likely_board(one.gpu_model or '')}"),
        (found.known.trace.samples is None, "GPU telemetry: without it no utilization and no rightsizing",
         f"ingest nvidia-smi FILES -o {data}"),
        (one.financial_impact.ownership == "unknown", "ownership of the GPUs: the financial impact depends on it",
         f"start {data} --set ownership=owned"),
    )  # fmt: skip
    for lacking, what, command in rows:
        if lacking:
            yield Missing(what, f"gpuplanner {command}")


def likely_board(word: str) -> str:
    """The first GPU model of the catalogue whose name begins with a word of the data; a placeholder where none does.

    Examples
    --------
    >>> likely_board("h100"), likely_board("quick")
    ('H100-80GB-SXM5', 'GPU_MODEL')
    """
    alike = (name for name in mig_model_names() if word and name.lower().startswith(word.lower()))
    return next(alike, "GPU_MODEL")


def _confidence(one: Decision, found: Contest, advice: Recommendation, curve: Sequence[CurvePoint]) -> Iterator[str]:
    """What it rests on, in words that a director knows."""
    if one.left_out_share > 0.01:
        yield f"{percent_text(one.left_out_share)} of the GPU-hours are excluded: their jobs contradict others."
    if known := _use_known(one):
        yield known
    if (share := advice.model.waits.share).fraction is not None:
        yield _accuracy(one, advice.model, share.fraction)
    if any(measure.action == "rightsize" for measure in one.measures):
        yield (
            f"This holds only once small jobs request MIG profiles; until then {one.gpus - one.cut_gpus:,} full GPUs "
            "serve all jobs and waits are longer: change the layout node by node."
        )
    yield from filter(None, (_allocated_after(one, curve), _smaller_fleet(one, curve), resampled_waits(one)))
    if advice.waiting_hours_per_gpu_hour is not None and one.action == "buy":
        yield f"Each GPU-hour bought saves {advice.waiting_hours_per_gpu_hour:.2f} GPU-hours of waiting."
    weekly, measured = advice.growth.weekly, advice.headroom
    if any(measure.action == "release" for measure in one.measures) and measured is not None:
        load, in_most = measured.headroom.factor, measured.headroom.low
        grows = (
            "" if weekly.value is None else f"; submitted work changes by {percent_text(weekly.value, '+.1f')} per week"
        )
        yield f"The kept GPUs meet the limits at {load:.2f} times the load (80 % interval from {in_most:.2f}){grows}."
    if advice.limits:
        yield "Each raised limit is the peak allocation of the team in a simulation without limits."
    if one.measures and one.measures[-1].action in IDLE_ACTIONS:
        yield (
            f"The policy was fitted on {count_text(int(found.earlier_days.sum()), 'day')} and met the limit on the "
            f"{count_text(int(found.later_days.sum()), 'day')} of evaluation."
        )
    if one.saving.value is not None and one.saving.varies:
        low, high = f"{one.saving.low:,.0f}", f"{one.saving.high:,.0f}"
        weeks = " and ".join(f"{week:,.0f}" for week in one.saving.realised)
        realised = f"; {weeks} in the evaluation window" if weeks else ""
        yield (
            f"Capacity freed: {one.saving.value:,.0f} GPU-hours per week in the training window "
            f"(90 % interval {low} to {high}){realised}."
        )
    if found.arena.unservable:
        jobs = count_text(found.arena.unservable, "job")
        yield f"Excluded: {jobs} that requested GPUs or MIG instances that today's nodes do not have."
    yield from dict.fromkeys((*found.asked.nodes.remarks, *found.known.fleet.remarks()))


def _accuracy(decision: Decision, model: WaitModel, closest: float) -> str:
    """How the simulated waits compare with the observed ones: on the size of the headline, then in all."""
    waits, gains = model.waits, decision.most_improved
    if gains is None:
        return f"The closest of the replays of today reproduces {percent_text(closest)} of the hours of waiting."
    mine = waits.judged & (model.size_of_job == model.size_names.index(gains.size))
    observed, on_size = (float(waits.waited_s[jobs].sum()) / SECONDS_PER_HOUR for jobs in (waits.judged, mine))
    by_size = {row.size: row.jobs * row.today_mean_minutes / MINUTES_PER_HOUR for row in decision.service}
    simulated = sum(by_size.values())
    parts = [f"over all sizes {_against(simulated, observed)}"]
    if 0 < on_size < 0.995 * observed:
        p95 = f"p95 {wait_text(gains.today_p95_minutes)} against {wait_text(gains.observed_p95_minutes)}"
        verdict = ", so it understates today's waits on this size" if by_size[gains.size] < 0.9 * on_size else ""
        parts.insert(0, f"on {gains.size} {_against(by_size[gains.size], on_size)}, {p95}{verdict}")
    return f"Simulation of today (median of {CURVE_RUNS} replays) against the record: {'; '.join(parts)}."


def _against(simulated_h: float, observed_h: float) -> str:
    """Simulated hours of waiting beside the observed ones.

    Examples
    --------
    >>> _against(222.0, 328.0)
    '222 against 328 hours of waiting (68 %)'
    """
    share = percent_text(simulated_h / max(observed_h, 1e-9))
    return f"{simulated_h:,.0f} against {observed_h:,.0f} hours of waiting ({share})"


def resampled_waits(decision: Decision) -> str:
    """State which job sizes meet their limit in the record but not in most resampled records, today beside it."""
    rises = [row for row in decision.service if row.rises_if_resampled]
    longer = rises or [row for row in decision.service if row.meets_limit and row.low > row.limit_minutes]
    if not longer:
        return ""
    waits = ", ".join(
        f"on {row.size} {_range_text(row.low, row.high)} (today {_range_text(row.today_low, row.today_high)})"
        for row in longer
    )
    why = (
        "the change leaves these jobs no reserve for weeks unlike the record"
        if rises
        else "the fleet has no reserve for weeks unlike the record, with or without the change"
    )
    return f"Risk: with the days of the record resampled, p95 queue wait {waits}: {why}."


def _range_text(low: float, high: float) -> str:
    """Two waits, with one unit where both have the same.

    Examples
    --------
    >>> _range_text(356, 878), _range_text(90, 180)
    ('5.9 to 14.6 h', '90 min to 3.0 h')
    """
    most = wait_text(high)
    return f"{wait_text(low).removesuffix(most.split()[-1]).rstrip()} to {most}"


def _smaller_fleet(decision: Decision, curve: Sequence[CurvePoint]) -> str:
    """Which job size misses its limit on the next smaller fleet of the wait curve; empty where none does."""
    limits = {row.size: row.limit_minutes for row in decision.service}
    layout = max((point.layout for point in curve), key=lambda name: name == RECOMMENDED, default="")
    smaller = [point for point in curve if point.layout == layout and point.gpus < decision.gpus]
    most = max((point.gpus for point in smaller), default=0)
    missed = [
        f"{wait_text(point.p95_minutes)} on {point.job_size} (limit {wait_text(limits[point.job_size])})"
        for point in smaller
        if point.gpus == most and point.p95_minutes > limits.get(point.job_size, math.inf)
    ]
    return f"With {most:,} GPUs the p95 queue wait would be {', '.join(missed)}." if missed else ""


def _allocated_after(one: Decision, curve: Sequence[CurvePoint]) -> str:
    """Share of the GPU-hours that jobs are allocated today and after a purchase; empty without a purchase."""
    shares = {point.gpus: point.utilization for point in curve}
    if one.action != "buy" or not {one.fleet_gpus, one.gpus} <= {*shares}:
        return ""
    today, after = (percent_text(shares[gpus]) for gpus in (one.fleet_gpus, one.gpus))
    known = any(row.busy_gpu_hours is not None for row in one.teams if row.team != UNALLOCATED)
    unknown = "" if known else " The use of allocated GPUs is not measured."
    return f"Jobs are allocated {today} of the GPU-hours of {one.fleet_gpus:,} GPUs, {after} of {one.gpus:,}.{unknown}"


def _use_known(one: Decision) -> str:
    """Share of the allocated GPU-hours whose use is known; empty where it is not known of any team."""
    teams = [row for row in one.teams if row.team != UNALLOCATED]
    known = sum((row.busy_gpu_hours or 0.0) + (row.idle_gpu_hours or 0.0) for row in teams)
    allocated = sum(row.allocated_gpu_hours for row in teams)
    share = percent_text(known / max(allocated, 1e-9))
    return f"Use is known for {share} of {allocated:,.0f} allocated GPU-hours." if known else ""


def _assumptions(one: Decision, found: Contest, growth: FittedGrowth) -> Iterator[str]:
    """Each assumption with its option."""
    able = found.able
    yield f"actuator {one.actuator}: {able.partitioner} (--actuator)"
    actions = {measure.action for measure in one.measures}
    if able.switches_nodes and actions & set(IDLE_ACTIONS):
        usual, slow = (round(seconds / 60) for seconds in (able.lead.value, able.lead.high))
        yield f"node power-up {usual} min, slow {slow} min (--set node_lead_s=…)"
    target, added = found.scenario.target_wait_minutes, found.scenario.max_added_wait_minutes
    most = 30 if target is None else target
    yield (
        f"wait target: p95 of {most:g} min for every job size; sizes that meet it today may wait at most {added:g} "
        "min longer (--set target_wait_minutes=…, max_added_wait_minutes=…)"
    )
    yield f"purchase lead time {one.purchase_lead_days} days (--set purchase_lead_days=…)"
    if (weekly := growth.weekly).value is not None and weekly.low is not None and weekly.high is not None:
        low, high = (percent_text(side, "+.1f") for side in (weekly.low, weekly.high))
        measured = f"{percent_text(weekly.value, '+.1f')} per week (80 % interval {low} to {high})"
        counted = f"; the {one.gpus:,} GPUs are for today's load" if one.gpus > one.fleet_gpus else ""
        yield f"growth {measured}{'' if growth.slope else ': none is measurable'}{counted}"
    if found.asked.nodes.inferred:
        yield "nodes inferred from their jobs (gpuplanner ingest nodes)"
    known = found.known
    if "rightsize" in actions and known.undecided:
        yield f"{percent_text(known.undecided)} of the jobs resemble no known kind of job: they need what they request"
    if "rightsize" in actions and known.like_others is not None:
        yield f"kind of unnamed jobs inferred from similar jobs, of which {percent_text(known.like_others)} agree"
    if standing := found.asked.service_gpus:
        yield f"services and jobs without an end keep their peak allocation of {standing:,.1f} GPUs"
    if found.asked.starts_assumed:
        yield "jobs started at submission"


def uncorrected_decision(scenario: Scenario, correction: Correction) -> Decision:
    """The answer where too many GPU-hours are left out: nothing but what to correct first.

    Examples
    --------
    >>> uncorrected_decision(Scenario(), Correction(0.5, "shares of node n1", "label it")).missing[0].command
    'label it'
    """
    unresolved = f"{percent_text(correction.share)} of GPU-hours could not be resolved"
    decision = no_decision(scenario, unresolved)
    missing = (Missing(correction.what, correction.how),)
    sentence = f"Correct the data first: {unresolved}. No recommendation until this is corrected: {correction.what}."
    return replace(decision, sentence=sentence, missing=missing, left_out_share=correction.share)


def no_decision(scenario: Scenario, reason: str) -> Decision:
    """The answer where nothing can be simulated, with the command that adds what is missing."""
    return Decision(
        sentence=f"No recommendation: {reason}.", action="none", fleet_gpus=0, gpus=0, gpus_mean=0.0, layouts=(),
        policy=TODAY, actuator=scenario.actuator, saving=Saving(None, reason=reason),
        financial_impact=FinancialImpact("unknown", None, "No GPU is released"),
        purchase_lead_days=scenario.purchase_lead_days,
        reason=reason, missing=(Missing(reason, f"gpuplanner ingest auto JOBS -o {scenario.data}"),),
    )  # fmt: skip
