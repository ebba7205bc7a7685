"""Texts of a decision: headline, next steps, confidence and assumptions."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.units_and_number_formats import (
    SECONDS_PER_DAY,
    SECONDS_PER_HOUR,
    SECONDS_PER_MINUTE,
    UNALLOCATED_TEAM,
    count_text,
    day_text,
    gpus_text,
    percent_text,
    wait_text,
)
from gpuplanner.decision.capacity_measures import (
    MIN_DAYS,
    MIN_JOBS,
    RECOMMENDED_LAYOUT,
    Recommendation,
    format_unbought_gpus,
)
from gpuplanner.decision.data_correction import DataCorrection
from gpuplanner.decision.decision_types import (
    IDLE_ACTIONS,
    LAYOUT_FULL,
    LAYOUT_PER_JOB,
    MIG_STATIC,
    PARTITION_ACTIONS,
    TODAY,
    WAIT_TOLERANCE_MINUTES,
    CurvePoint,
    Decision,
    FinancialImpact,
    Measure,
    MissingEvidence,
    NextStep,
    Saving,
    format_node_count,
)
from gpuplanner.decision.explained_waits import format_replay_error
from gpuplanner.decision.headroom_and_growth import FittedGrowth
from gpuplanner.decision.policy_comparison import PolicyResults
from gpuplanner.decision.policy_layouts import list_changed_layouts
from gpuplanner.decision.policy_simulation import PolicyRun
from gpuplanner.decision.wait_causes import LIMITS
from gpuplanner.decision.wait_curve import CURVE_RUNS, WaitModel, WaitTarget
from gpuplanner.hardware.catalog import find_measure_texts, mig_model_names
from gpuplanner.hardware.mig_layouts import parse_layout
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.usage.study_fleet import explain_full_gpus

MIN_COMPLETE_LIST_SHARE = 0.02
"""Smallest allocated share of a fleet for a recommendation [0-1]; below it the list of jobs may be incomplete."""
MAX_LISTED_NODES = 6
"""Most nodes that a text lists by name."""
MIN_LIMITS_SHARE = 0.2
"""Share of the waiting from which limits of teams are a next step [0-1]."""
MINUTES_PER_HOUR = 60
"""Minutes of an hour."""
NEW_DATA_TEXTS = {
    "slurm": "export the jobs submitted since then (sacct -S DATE)",
    "kubernetes": "make new dumps and start with these only (a dump has no time filter: older ones hold earlier jobs)",
}
"""How to get the data since a change, by source of the jobs; other sources have a general text."""
GAP_ADVICE = {
    ("slurm", "capacity"): "all jobs of these nodes, of every user and partition (sacct --allusers), and the limits of "
    "accounts and partitions (sacctmgr show assoc)",
    ("slurm", "size"): "time limits, priorities (Partition, QOS) and node events (sacctmgr show event), where missing",
    ("kubernetes", "capacity"): "all pods of these nodes, of every namespace (kubectl get pods -A), and the quotas of "
    "namespaces and queues (ResourceQuota, Kueue)",
    ("kubernetes", "size"): "dumps of more days, and the quotas of namespaces and queues (ResourceQuota, Kueue)",
    ("", "capacity"): "all jobs of these nodes, of every user and queue, and the limits of teams and queues",
    ("", "size"): "time limits, priorities and times at which nodes were down, where missing",
}
"""Data to add for a gap of the record, by source of the jobs and the result that the gap withholds."""
PLATFORM, PLANNER = "platform team", "planner"
"""Roles to which next steps are assigned: who changes the fleet, and who decides on it."""


def add_texts(
    decision: Decision,
    results: PolicyResults,
    recommendation: Recommendation,
    run: PolicyRun,
    curve: Sequence[CurvePoint],
) -> Decision:
    """Return a decision with its headline, next steps, missing data, confidence and assumptions.

    Parameters
    ----------
    decision : Decision
        Decision without texts.
    results : PolicyResults
        Simulated policies.
    recommendation : Recommendation
        Recommended measures.
    run : PolicyRun
        Simulation run of the recommended policy.
    curve : sequence of CurvePoint
        Queue waits by number of GPUs.
    """
    text = format_decision(decision, recommendation.order_gpus, find_layout_changes(decision, results, run))
    if decision.longest_waiting is not None and any(measure.action in IDLE_ACTIONS for measure in decision.measures):
        replayed_jobs, jobs = results.replayed_jobs, results.evaluation_jobs
        added_minutes = replayed_jobs.wait_minutes(run, jobs) - replayed_jobs.todays_minutes(jobs)
        added_text = wait_text(math.ceil(max(added_minutes.max(), 0.0)))
        text = f"{text.removesuffix('.')}; power-ups add up to {added_text}."
    return replace(
        decision, sentence=text, next_steps=tuple(_list_next_steps(decision, results, recommendation, run)),
        missing=tuple(_list_missing(decision, results, recommendation)),
        confidence=tuple(_list_confidence_sentences(decision, results, recommendation, curve)),
        assumptions=tuple(_list_assumptions(decision, results, recommendation.growth)),
    )  # fmt: skip


def _new_nodes_text(decision: Decision, form: str) -> str:
    """Format the nodes to buy in the pattern ``form``, such as ``({})``; empty if GPUs fill no equal nodes."""
    sizes = [len(layouts) for layouts, count in decision.nodes_to_buy.items() for _ in range(count)]
    return form.format(format_node_count(sum(sizes), len(sizes))) if len(set(sizes)) == 1 else ""


NodesByLayoutChange = Mapping[tuple[str, str], Sequence[str]]
"""Names of the nodes of repartitioned GPUs, one for each GPU, by layout before and after."""


def format_decision(
    decision: Decision, order_gpus: int = 0, changes: NodesByLayoutChange = MappingProxyType({})
) -> str:
    """Format the measures of a decision, and their effect on queue waits, as one sentence.

    Examples
    --------
    >>> make_empty_decision(Scenario(), "no job states when it ran").sentence
    'No recommendation: no job states when it ran.'
    """
    fleet_text = format_gpus(decision.fleet_gpus, decision.gpu_model)
    order_text = f"; order at least {count_text(order_gpus, 'GPU')} now for growth" if order_gpus else ""
    if decision.action == "none":
        return f"No recommendation: {decision.reason}."
    if not decision.measures:
        return f"Keep all {fleet_text}: {decision.reason}{order_text}."
    text = ", then ".join(list_measure_texts(decision, changes))
    return f"{text[:1].upper()}{text[1:]}{order_text}. {_format_wait_change(decision)}"


def format_stated_fleet(decision: Decision, changes: NodesByLayoutChange) -> str:
    """Format the decision on a stated fleet that meets its limits; a larger one is no advice to buy it."""
    if not decision.service or all(measure.action != "buy" for measure in decision.measures):
        return decision.sentence
    n_added = decision.gpus - decision.fleet_gpus
    fleet_text = f"{decision.gpus:,} GPUs, {n_added:,} more than today, meet the wait limits"
    measures = zip(decision.measures, list_measure_texts(decision, changes), strict=True)
    if layout_text := ", then ".join(text for measure, text in measures if measure.action != "buy"):
        fleet_text = f"{fleet_text}: {layout_text}"
    return f"{fleet_text}. {_format_wait_change(decision)}"


def list_measure_texts(decision: Decision, changes: NodesByLayoutChange) -> list[str]:
    """List the measures of a decision as parts of its sentence."""
    fleet_text = format_gpus(decision.fleet_gpus, decision.gpu_model)
    parts: list[str] = []
    measure_gpus, is_fleet_named = decision.fleet_gpus, False
    partitioned = sum(map(len, changes.values())) or decision.partitioned_gpus
    for measure in decision.measures:
        gpus_change = measure.gpus - measure_gpus
        of_fleet = "" if is_fleet_named else f" of {fleet_text}"
        is_fleet_named = is_fleet_named or measure.action != "pack"
        parts.append(
            {
                "release": f"release {-gpus_change:,}{of_fleet}",
                "buy": f"buy {gpus_change:,} more {decision.gpu_model or 'GPUs'}",
                "rightsize": f"partition {partitioned:,}{of_fleet} with MIG and rightsize small jobs",
                "repartition": f"{_partition_verb(changes)} {partitioned:,}{of_fleet}",
                "pack": "pack jobs on fewer nodes",
                "raise_limit": measure.text[:1].lower() + measure.text[1:],
                "power_down": f"power down idle nodes{of_fleet} ({gpus_text(decision.gpus_mean)} on average)",
                "autoscale": f"autoscale node pools{of_fleet} ({gpus_text(decision.gpus_mean)} on average)",
            }[measure.action]
        )  # fmt: skip
        measure_gpus = measure.gpus
    if decision.action == "buy":
        parts[0] += f"{_new_nodes_text(decision, ' ({})')} for the {fleet_text}"
    if not is_fleet_named:
        parts[0] = f"keep all {fleet_text} and {parts[0]}"
    return parts


def format_gpus(gpus: int, gpu_model: str | None) -> str:
    """Format a number of GPUs with the short name of their model.

    Examples
    --------
    >>> format_gpus(64, "H100-80GB-SXM5"), format_gpus(8, "L40S"), format_gpus(1, None)
    ('64 H100s', '8 L40S GPUs', '1 GPU')
    """
    short_model = (gpu_model or "").split("-")[0]
    if not short_model or gpus == 1 or short_model[-1:].lower() == "s":
        return count_text(gpus, f"{short_model} GPU".strip())
    return f"{gpus:,} {short_model}s"


def find_layout_changes(decision: Decision, results: PolicyResults, run: PolicyRun) -> NodesByLayoutChange:
    """Find the GPUs that are repartitioned; none if instances are created for each job."""
    return list_changed_layouts(results.asked_jobs, run.setting) if decision.policy == MIG_STATIC else {}


def _partition_verb(changes: NodesByLayoutChange) -> str:
    """Choose "repartition" if all changed GPUs are MIG-partitioned already, else "partition"."""
    return "repartition" if changes and all(before != FULL_GPU for before, _ in changes) else "partition"


def _format_wait_change(decision: Decision) -> str:
    """Format the change of the p95 queue wait on the most improved job size and on the others."""
    if (service := decision.most_improved_size) is None:
        return "Waits by job size are not shown: the simulation does not reproduce the recorded waits."
    worst = max(decision.service, key=lambda row: row.added_p95_minutes)
    # A p95 wait that changes by less than a minute is shown as unchanged.
    has_fallen = service.today_p95_minutes - service.recommended_p95_minutes >= 1.0
    before, after = (wait_text(minutes) for minutes in (service.today_p95_minutes, service.recommended_p95_minutes))
    text = f"Simulated p95 queue wait on {service.size}: {before} → {after}; " if has_fallen else ""
    if worst.added_p95_minutes <= WAIT_TOLERANCE_MINUTES:
        if text and (rises := [row for row in decision.service if row.rises_if_resampled]):
            longest = max(rises, key=lambda row: row.low)
            after = _format_wait_range(longest.low, longest.high)
            before = _format_wait_range(longest.today_low, longest.today_high)
            return f"{text}risk in resampled weeks: p95 on {longest.size} {after} (today {before})."
        return f"{text}no other p95 rises." if text else "No job size's p95 queue wait rises."
    limit = "" if worst.meets_limit else f", above the limit of {wait_text(worst.limit_minutes)}"
    rise = f"{wait_text(math.ceil(worst.added_p95_minutes))} more on {worst.size}{limit}"
    return f"{text or 'Simulated p95 queue wait: '}up to {rise}."


def format_node_list(nodes: Sequence[str]) -> str:
    """List nodes by name, each once; of many the first and the last.

    Examples
    --------
    >>> format_node_list(("n1", "n2"))
    'n1, n2'
    """
    unique_nodes = list(dict.fromkeys(nodes))
    if len(unique_nodes) <= MAX_LISTED_NODES:
        return ", ".join(unique_nodes)
    return f"{unique_nodes[0]} to {unique_nodes[-1]} ({len(unique_nodes)} nodes)"


def _list_next_steps(
    decision: Decision, results: PolicyResults, recommendation: Recommendation, run: PolicyRun
) -> Iterator[NextStep]:
    """Yield the next steps in order, those before a repartition first.

    Parameters
    ----------
    decision : Decision
        Decision to carry out.
    results : PolicyResults
        Simulated policies.
    recommendation : Recommendation
        Recommended measures.
    run : PolicyRun
        Simulation run of the recommended policy.
    """
    for measure in decision.measures:
        for step in _list_measure_steps(measure, decision, results, recommendation, run):
            yield replace(step, action=measure.action)
    if recommendation.order_gpus and (exhaustion_date := recommendation.exhaustion.date):
        ordered_text = count_text(recommendation.order_gpus, "GPU")
        task = f"order at least {ordered_text} now: growth exhausts capacity by {day_text(exhaustion_date)}"
        yield NextStep("finance", task)
    if recommendation.target_gpus:
        gpus = count_text(recommendation.target_gpus - decision.fleet_gpus, "GPU")
        target_min = f"{WaitTarget().target_s / SECONDS_PER_MINUTE:g}"
        command = f"{_format_command('start', results)} --set target_wait_minutes={target_min}"
        task = (
            f"a stated wait target is kept at any cost: with {target_min} min stated, the report recommends {gpus} more"
        )
        yield NextStep(PLANNER, task, command)
    waits = recommendation.model.waits
    hours_by_cause = waits.seconds[waits.is_evaluated].sum(axis=0)
    limits_share = float(hours_by_cause[LIMITS]) / max(float(hours_by_cause.sum()), 1e-9)
    if limits_share >= MIN_LIMITS_SHARE and not recommendation.limits and decision.action != "none":
        task = f"review team limits ({percent_text(limits_share)} of the waiting): no number of GPUs shortens it"
        yield NextStep(PLANNER, task)
    if decision.action == "none":
        yield NextStep(
            PLANNER, "add the missing data, most important first, then start again", "gpuplanner start FILES"
        )
    else:
        yield _make_recheck_step(decision, results)


def _list_measure_steps(
    measure: Measure, decision: Decision, results: PolicyResults, recommendation: Recommendation, run: PolicyRun
) -> Iterator[NextStep]:
    """Yield the next steps of a measure: role, task and command.

    Parameters
    ----------
    measure : Measure
        Measure to perform.
    decision : Decision
        Decision that the measure belongs to.
    results : PolicyResults
        Simulated policies.
    recommendation : Recommendation
        Recommended measures.
    run : PolicyRun
        Simulation run of the recommended policy.
    """
    data, abilities, export = results.scenario.data, results.abilities, _format_command("export", results)
    condition = (measure.condition or "").removeprefix("after ").replace("_", " ")
    after = f" when {condition} is in force" if condition else ""
    match measure.action:
        case "buy":
            bought_gpus = measure.gpus - decision.fleet_gpus
            model = decision.gpu_model
            gpus_text = f"{bought_gpus:,} × {model}" if model else count_text(bought_gpus, "GPU")
            lead = f"now{after}; delivery in about {decision.purchase_lead_days} days"
            nodes_text_part = _new_nodes_text(decision, ", {}")
            yield NextStep("finance", f"approve the order of {gpus_text}{nodes_text_part}, {lead}")
            if mig_parts := [part for part in decision.layouts if part.to_buy and part.layout != LAYOUT_FULL]:
                text = ", ".join(f"{count_text(part.gpus, 'GPU')} as {part.layout}" for part in mig_parts)
                yield NextStep(PLATFORM, f"after delivery, partition {text} on the new nodes, as simulated")
        case "pack":
            texts = find_measure_texts("pack", abilities.actuator)
            yield NextStep(PLATFORM, f"pack jobs on fewer nodes: {texts['edit']}", texts["command"] or None)
        case "raise_limit":
            texts = find_measure_texts("raise_limit", abilities.actuator)
            for limit in recommendation.limits:
                values = {"tenant": shlex.quote(limit.tenant), "gpus": limit.raised_gpus}
                task = f"raise the limit of {limit.tenant} from {limit.current_gpus:g} to {limit.raised_gpus} GPUs"
                edit_text = f" ({texts['edit'].format(**values)})" if texts["edit"] else ""
                yield NextStep(PLATFORM, f"{task}{edit_text}", texts["command"].format(**values))
        case "release":
            yield from _list_drain_steps(decision, results, after)
        case "power_down" | "autoscale":
            rule = run.setting.values
            kept = rule.get("idle_nodes_kept", rule.get("whole_nodes_kept", 0))
            idle = f"after {rule['idle_minutes']} min idle"
            yield NextStep(PLATFORM, f"power down nodes {idle}, keep {kept} idle nodes powered on{after}", export)
    if measure.action in (*PARTITION_ACTIONS, "autoscale"):
        changes = find_layout_changes(decision, results, run)
        if changes and results.asked_jobs.nodes.named:
            yield NextStep(PLATFORM, _format_partition_step(changes), export)
        for part in () if changes else decision.layouts:
            if part.layout == LAYOUT_FULL:
                continue
            nodes = format_node_list(part.nodes) or "nodes of one pool"
            manner = f"as {part.layout}" if part.layout != LAYOUT_PER_JOB else f"on demand, by {abilities.partitioner},"
            yield NextStep(PLATFORM, f"partition {count_text(part.gpus, 'GPU')} {manner} on {nodes}", export)
    if measure.action == "rightsize":
        # Jobs that request a profile before a node has it stay pending.
        task = "as soon as the layout of a node is verified, request the recommended profile there"
        yield NextStep("team leads", task, f"gpuplanner rightsize {data}")


def _format_command(verb: str, results: PolicyResults) -> str:
    """Format a command on the data of a decision, such as ``export``, with the settings that its scenario states."""
    settings = _format_stated_settings(results.scenario)
    return f"gpuplanner {verb} {results.scenario.data} --actuator {results.abilities.actuator}{settings}"


def _format_stated_settings(scenario: Scenario) -> str:
    """Format the settings that differ from the defaults, without data and actuator, as options of a command.

    Examples
    --------
    >>> print(_format_stated_settings(Scenario(gpu_model="A100-80GB", approved_by="J. Doe")))
     --set gpu_model=A100-80GB --set 'approved_by=J. Doe'
    """
    changes = Scenario(name=scenario.name, data=scenario.data, actuator=scenario.actuator).diff(scenario)
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, (_, value) in changes.items()}
    return "".join(f" --set {shlex.quote(f'{name}={text}')}" for name, text in texts.items())


def _format_partition_step(changes: NodesByLayoutChange) -> str:
    """Format which GPUs are partitioned and how; if all change alike, also from which layout.

    Examples
    --------
    >>> _format_partition_step({("3g.20gb:2", "1g.5gb:7"): ["gn04"]})
    'repartition 1 GPU on gn04 from 2 × 3g.20gb to 7 × 1g.5gb'
    """
    gpus_text = count_text(sum(map(len, changes.values())), "GPU")
    names = sorted({name for nodes in changes.values() for name in nodes})
    text = f"{_partition_verb(changes)} {gpus_text} on {format_node_list(names)}"
    if len(changes) == 1:
        before, after = map(format_layout_text, next(iter(changes)))
        return f"{text} from {before} to {after}"
    gpus_by_layout = Counter[str]()
    for (_, after), nodes in changes.items():
        gpus_by_layout[format_layout_text(after)] += len(nodes)
    return f"{text}: {', '.join(f'{number} as {layout}' for layout, number in gpus_by_layout.most_common())}"


def format_layout_text(layout: str) -> str:
    """Format a MIG layout as its number of instances by profile.

    Examples
    --------
    >>> format_layout_text("3g.40gb:2"), format_layout_text("gpu")
    ('2 × 3g.40gb', 'full GPU (MIG disabled)')
    """
    if layout == FULL_GPU:
        return "full GPU (MIG disabled)"
    return " + ".join(f"{number} × {profile}" for profile, number in parse_layout(layout).items())


def _make_recheck_step(decision: Decision, results: PolicyResults) -> NextStep:
    """Make the step to check a week after the change, on the days since then: earlier days have the waits of before."""
    dataset = results.job_history.trace
    files = [file["name"] for facts in (dataset.provenance, *dataset.other_sources) for file in facts.get("files", ())]
    source = dataset.source_facts.source
    are_named = 0 < len(files) <= MAX_LISTED_NODES
    names, command = (", ".join(files), shlex.join(files)) if are_named else ("the data", "FILES")
    gain = decision.most_improved_size
    today = "" if gain is None else f"{wait_text(gain.observed_p95_minutes)} on {gain.size}"
    today += f" (simulated at {decision.demand_text})" if today and decision.demand_text else ""
    time_text, until = "a week after the change", ""
    if decision.gpus > decision.fleet_gpus:
        time_text = (
            f"a week after the new GPUs are in service (about {decision.purchase_lead_days} days after the order)"
        )
        until = f"; until then p95 stays near {today}" if today and decision.action == "buy" else ""
    new_data = NEW_DATA_TEXTS.get(source, "export the jobs submitted since then")
    task = f"{time_text}, {new_data} and compare their p95 with {today or 'that of today'}{until}"
    if not decision.measures:
        return NextStep(PLANNER, f"in a week, export {names} again and start again", f"gpuplanner start {command}")
    return NextStep(PLANNER, task, "gpuplanner start FILES")


def _list_drain_steps(decision: Decision, results: PolicyResults, after: str) -> Iterator[NextStep]:
    """Yield the step that drains and releases nodes; ``after`` ends its text: the step that it has to follow."""
    kept_nodes = {name for part in decision.layouts for name in part.nodes}
    nodes, abilities = results.asked_jobs.nodes, results.abilities
    drained_nodes = [name for name in nodes.names if name not in kept_nodes] if nodes.named else []
    if not drained_nodes:
        yield NextStep(PLATFORM, f"drain and release {count_text(decision.fleet_gpus - decision.gpus, 'GPU')}{after}")
        return
    separator = "," if abilities.actuator == "slurm" else " "
    quoted_nodes = separator.join(shlex.quote(name) for name in drained_nodes)
    command = find_measure_texts("release", abilities.actuator)["command"].format(nodes=quoted_nodes)
    # The scripts of the change bundle wait until jobs end; the command of Kubernetes evicts them.
    if len(drained_nodes) > MAX_LISTED_NODES or abilities.actuator != "slurm":
        command = _format_command("export", results)
    yield NextStep(PLATFORM, f"drain and release {format_node_list(drained_nodes)}{after}", command)


NO_TELEMETRY_TEXT = "GPU telemetry: without it no utilization and no rightsizing"
"""Beginning of the missing evidence where neither telemetry nor job records have any use, by which the cards of teams
find it."""
NO_ACTIVITY_TEXT = "GPU activity of jobs: without it no utilization, and rightsizing counts the requested SMs as needed"
"""Missing evidence where telemetry and job records have memory, but no activity."""
NO_MEMORY_TEXT = "GPU memory of jobs: without it rightsizing counts the requested memory as needed"
"""Missing evidence where telemetry and job records have activity, but no memory."""


def has_measured(dataset: Dataset, of_job: str, of_sample: str) -> bool:
    """Whether a column of the job records, or of the telemetry samples, has any value."""
    return bool(dataset.jobs[of_job].count() or (dataset.samples is not None and dataset.samples[of_sample].count()))


def _list_missing(
    decision: Decision, results: PolicyResults, recommendation: Recommendation
) -> Iterator[MissingEvidence]:
    """Yield the data that would raise the confidence, most important first."""
    data, inputs, wait_model = results.scenario.data, results.asked_jobs, recommendation.model
    source, n_jobs = results.job_history.trace.source_facts.source, int(wait_model.waits.is_evaluated.sum())
    for gap in wait_model.waits.share.gaps[:1]:  # the other one is of the same simulation
        advice = GAP_ADVICE.get((source, gap.withholds), GAP_ADVICE["", gap.withholds])
        yield MissingEvidence(f"{gap.sentence} Add {advice}", f"gpuplanner ingest auto JOBS -o {data}")
    fleet = results.job_history.fleet
    has_mig = decision.partitioned_gpus or any(layout != FULL_GPU for node in inputs.nodes.layouts for layout in node)
    dataset = results.job_history.trace
    has_activity = has_measured(dataset, "sm_activity", "sm_activity")
    has_memory = has_measured(dataset, "memory_peak_gib", "memory_used_gib")
    telemetry = NO_MEMORY_TEXT
    if not has_activity:
        telemetry = NO_ACTIVITY_TEXT if has_memory else NO_TELEMETRY_TEXT
    if has_mig and not has_activity:
        telemetry += "; nvidia-smi has none with MIG: add DCGM_FI_PROF_GR_ENGINE_ACTIVE, then run 'report' again"
    telemetry_source = "prometheus" if source == "kubernetes" or has_mig else "nvidia-smi"
    candidates = (
        (decision.action == "none" and "incomplete" in str(decision.reason), "check that the list of jobs is complete",
         f"describe {data}"),
        (inputs.nodes.inferred, "installed GPUs: only the peak allocated is known", f"ingest nodes NODES -o {data}"),
        (inputs.observed_s < MIN_DAYS * SECONDS_PER_DAY, "a longer record of jobs", f"ingest auto JOBS -o {data}"),
        (n_jobs < MIN_JOBS, f"more jobs: {n_jobs:,} of {MIN_JOBS} that are needed", f"ingest auto JOBS -o {data}"),
        (inputs.starts_assumed, "start times of jobs: assumed equal to submission", f"ingest auto JOBS -o {data}"),
        (not fleet.in_catalogue, f"{explain_full_gpus(fleet.name)}: no MIG, energy or money is planned",
         f"start {data} --gpu-model {find_likely_gpu_model(decision.gpu_model or '')}"),
        (not (has_activity and has_memory), telemetry, f"ingest {telemetry_source} FILES -o {data}"),
        (decision.financial_impact.ownership == "unknown", "ownership of the GPUs: the financial impact depends on it",
         f"start {data} --set ownership=owned"),
    )  # fmt: skip
    for is_missing, description, command in candidates:
        if is_missing:
            yield MissingEvidence(description, f"gpuplanner {command}")


def find_likely_gpu_model(word: str) -> str:
    """Find the first GPU model of the catalogue whose name begins with a word; a placeholder if none does.

    Examples
    --------
    >>> find_likely_gpu_model("h100"), find_likely_gpu_model("quick")
    ('H100-80GB-SXM5', 'GPU_MODEL')
    """
    matching_models = (name for name in mig_model_names() if word and name.lower().startswith(word.lower()))
    return next(matching_models, "GPU_MODEL")


def _list_confidence_sentences(
    decision: Decision, results: PolicyResults, recommendation: Recommendation, curve: Sequence[CurvePoint]
) -> Iterator[str]:
    """Yield sentences on the evidence for a decision.

    Parameters
    ----------
    decision : Decision
        Decision to explain.
    results : PolicyResults
        Simulated policies.
    recommendation : Recommendation
        Recommended measures.
    curve : sequence of CurvePoint
        Queue waits by number of GPUs.
    """
    if decision.left_out_share > 0.01:
        jobs_text = "jobs rejected, contradictory or without a number of GPUs (1 assumed)"
        share_text = percent_text(decision.left_out_share)
        yield f"{share_text} of allocated GPU-hours count as unallocated, for no team: {jobs_text}."
    if use_text := _format_measured_use(decision):
        yield use_text
    share = recommendation.model.waits.share
    if not decision.demand_text and share.fraction is not None and share.capacity_is_clear:
        yield _format_replay_accuracy(decision, recommendation.model)
    if any(measure.action == "rightsize" for measure in decision.measures):
        full_gpus = sum(part.gpus for part in decision.layouts if part.layout == LAYOUT_FULL)
        in_turn = "" if decision.actuator == "slurm" else ": change the layout node by node"  # Slurm: all at once
        yield (
            f"The waits after the change hold only once small jobs request MIG profiles; until then {full_gpus:,} "
            f"full GPUs serve all jobs and waits are longer{in_turn}."
        )
    texts = (_format_completion(decision), _format_allocated_shares(decision, curve))
    yield from filter(None, (*texts, _format_smaller_fleet(decision, curve), format_resampled_waits(decision)))
    if recommendation.target_gpus and decision.measures:
        gpus, unbought = recommendation.target_gpus, format_unbought_gpus(recommendation)
        yield f"{gpus:,} GPUs would meet the wait target on {', '.join(recommendation.late_sizes)}, but {unbought}."
    elif recommendation.waiting_hours_per_gpu_hour is not None and decision.gpus > decision.fleet_gpus:
        yield f"Each GPU-hour bought saves {recommendation.waiting_hours_per_gpu_hour:.2f} GPU-hours of waiting."
    weekly, headroom = recommendation.growth.weekly, recommendation.headroom
    if any(measure.action == "release" for measure in decision.measures) and headroom is not None:
        load, interval = headroom.headroom.factor, f"{headroom.headroom.low:.2f} to {headroom.headroom.high:.2f}"
        grows = "" if weekly.value is None else "; no growth of the submitted work is measurable"
        if weekly.value is not None and weekly.log_slope:
            grows = f"; submitted work changes by {percent_text(weekly.value, '+.1f')} per week"
        yield f"The kept GPUs meet the limits at {load:.2f} times the load (80 % interval {interval}){grows}."
    if recommendation.limits:
        yield "Each raised limit is the peak allocation of the team in a simulation without limits."
    if decision.measures and decision.measures[-1].action in IDLE_ACTIONS:
        yield (
            f"The policy was fitted on {count_text(int(results.training_days.sum()), 'day')} and met the limit on the "
            f"{count_text(int(results.evaluation_days.sum()), 'day')} of evaluation."
        )
    if decision.saving.value is not None and decision.saving.varies:
        low, high = f"{decision.saving.low:,.0f}", f"{decision.saving.high:,.0f}"
        weeks = " and ".join(f"{week:,.0f}" for week in decision.saving.realised)
        realised_text = f"; {weeks} in the evaluation window" if weeks else ""
        yield (
            f"Capacity freed: {decision.saving.value:,.0f} GPU-hours per week in the training window "
            f"(90 % interval {low} to {high}){realised_text}."
        )
    if results.replayed_jobs.n_unservable:
        jobs_text = count_text(results.replayed_jobs.n_unservable, "job")
        yield f"Excluded: {jobs_text} that requested GPUs or MIG instances that today's nodes do not have."
    yield from dict.fromkeys((*results.asked_jobs.nodes.remarks, *results.job_history.fleet.remarks()))


def _format_replay_accuracy(decision: Decision, model: WaitModel) -> str:
    """Format how simulated waits compare with observed ones: on the most improved size, then in total."""
    waits, gain = model.waits, decision.most_improved_size
    if gain is None:
        text = format_replay_error(waits.share.error)
        return f"{text[:1].upper()}{text[1:]}."
    of_size = waits.is_evaluated & (model.size_of_job == model.size_names.index(gain.size))
    observed, on_size = (float(waits.waited_s[jobs].sum()) / SECONDS_PER_HOUR for jobs in (waits.is_evaluated, of_size))
    by_size = {row.size: row.jobs * row.today_mean_minutes / MINUTES_PER_HOUR for row in decision.service}
    simulated, waited_s = sum(by_size.values()), np.where(waits.is_evaluated, waits.waited_s, 0.0)
    hours = np.bincount(model.size_of_job, waited_s, len(model.size_names)) / SECONDS_PER_HOUR
    error = sum(abs(by_size[name] - float(waited)) for name, waited in zip(model.size_names, hours, strict=True))
    off = percent_text(error / max(observed, 1e-9))
    parts = [f"over all sizes {_compare_hours_text(simulated, observed)}, differences by size add up to {off}"]
    if 0 < on_size < 0.995 * observed:
        p95_text = f"p95 {wait_text(gain.today_p95_minutes)} against {wait_text(gain.observed_p95_minutes)}"
        verdict = ", so it understates today's waits on this size" if by_size[gain.size] < 0.9 * on_size else ""
        parts.insert(0, f"on {gain.size} {_compare_hours_text(by_size[gain.size], on_size)}, {p95_text}{verdict}")
    return f"Simulation of today ({CURVE_RUNS} replays) against the record: {'; '.join(parts)}."


def _compare_hours_text(simulated_h: float, observed_h: float) -> str:
    """Format simulated hours of waiting beside the observed ones.

    Examples
    --------
    >>> _compare_hours_text(222.0, 328.0)
    '222 against 328 hours of waiting (68 %)'
    """
    share = percent_text(simulated_h / max(observed_h, 1e-9))
    return f"{simulated_h:,.0f} against {observed_h:,.0f} hours of waiting ({share})"


def format_resampled_waits(decision: Decision) -> str:
    """Format which job sizes meet their limit in the record but not in most resampled weeks, with today's waits."""
    reasons = {
        True: "the change leaves these jobs no reserve for weeks unlike the record",
        False: "above the limit today as well",
    }
    texts = []
    for rises, reason in reasons.items():
        waits = ", ".join(
            f"on {row.size} {_format_wait_range(row.low, row.high)} "
            f"(today {_format_wait_range(row.today_low, row.today_high)})"
            for row in decision.service
            if row.misses_if_resampled and row.rises_if_resampled == rises
        )
        texts += [f"{waits}: {reason}"] if waits else []
    return f"Risk: in resampled weeks, p95 queue wait {'; '.join(texts)}." if texts else ""


def _format_wait_range(low: float, high: float) -> str:
    """Format two waits [min], with one unit if both have the same.

    Examples
    --------
    >>> _format_wait_range(356, 878), _format_wait_range(90, 180)
    ('5.9 to 14.6 h', '90 min to 3.0 h')
    """
    high_text = wait_text(high)
    return f"{wait_text(low).removesuffix(high_text.split()[-1]).rstrip()} to {high_text}"


def _format_smaller_fleet(decision: Decision, curve: Sequence[CurvePoint]) -> str:
    """Format the job sizes that miss their limit, and wait longer, on the next smaller fleet of the wait curve."""
    limits = {row.size: row.limit_minutes for row in decision.service}
    waits = {row.size: row.recommended_p95_minutes for row in decision.service}
    curve_layout = max((point.layout for point in curve), key=lambda name: name == RECOMMENDED_LAYOUT, default="")
    smaller_points = [point for point in curve if point.layout == curve_layout and point.gpus < decision.gpus]
    smaller_gpus = max((point.gpus for point in smaller_points), default=0)
    missed = [
        f"{_format_long_wait(point.p95_minutes)} on {size} (limit {wait_text(limits[size])})"
        for point in smaller_points
        if point.gpus == smaller_gpus
        and (size := point.job_size) in limits
        and (point.p95_minutes is None or point.p95_minutes > max(limits[size], waits[size]))
    ]
    return f"With {smaller_gpus:,} GPUs the p95 queue wait would be {', '.join(missed)}." if missed else ""


def _format_completion(decision: Decision) -> str:
    """Format the mean completion time of jobs today and rightsized; empty where they are not, or take no longer."""
    today, after = decision.mean_completion_minutes or (0.0, 0.0)
    if after < today + 1.0 or all(measure.action != "rightsize" for measure in decision.measures):
        return ""
    return f"Mean completion time {wait_text(today)} → {wait_text(after)}: jobs run longer on MIG instances."


def _format_long_wait(minutes: float | None) -> str:
    """Format a simulated wait [min]; one of over a week only shows that the queue does not empty within the record.

    Examples
    --------
    >>> _format_long_wait(258), _format_long_wait(57_060), _format_long_wait(None)
    ('4.3 h', 'over 7 days', 'no start')
    """
    if minutes is None:
        return "no start"
    return wait_text(minutes) if minutes <= 7 * SECONDS_PER_DAY / SECONDS_PER_MINUTE else "over 7 days"


def _format_allocated_shares(decision: Decision, curve: Sequence[CurvePoint]) -> str:
    """Format the share of the GPU-hours that jobs are allocated today and after a purchase; empty without one."""
    shares = {point.gpus: point.allocation_rate for point in curve}
    if decision.action != "buy" or not {decision.fleet_gpus, decision.gpus} <= {*shares}:
        return ""
    today, after = (percent_text(shares[gpus]) for gpus in (decision.fleet_gpus, decision.gpus))
    is_measured = any(row.busy_gpu_hours is not None for row in decision.teams if row.team != UNALLOCATED_TEAM)
    note = "" if is_measured else " The use of allocated GPUs is not measured."
    return (
        f"Jobs are allocated {today} of the GPU-hours of {decision.fleet_gpus:,} GPUs, {after} of "
        f"{decision.gpus:,}.{note}"
    )


def _format_measured_use(decision: Decision) -> str:
    """Format the share of the allocated GPU-hours with measured use; empty if no team has any."""
    teams = [row for row in decision.teams if row.team != UNALLOCATED_TEAM]
    measured_hours = sum((row.busy_gpu_hours or 0.0) + (row.idle_gpu_hours or 0.0) for row in teams)
    allocated_hours = sum(row.allocated_gpu_hours for row in teams)
    share_text = percent_text(measured_hours / max(allocated_hours, 1e-9))
    matched = decision.telemetry_matched_gpu_hours
    source_text = f"by telemetry for {matched:,.0f}, else by job records" if matched else "by job records"
    text = f"Use is known for {share_text} of {allocated_hours:,.0f} allocated GPU-hours ({source_text})."
    return text if measured_hours else ""


def _list_assumptions(decision: Decision, results: PolicyResults, growth: FittedGrowth) -> Iterator[str]:
    """Yield the assumptions of a decision, each with the option that changes it."""
    abilities = results.abilities
    yield f"actuator {decision.actuator}: {abilities.partitioner} (--actuator)"
    actions = {measure.action for measure in decision.measures}
    if abilities.switches_nodes and actions & set(IDLE_ACTIONS):
        usual_min, slow_min = (round(seconds / 60) for seconds in (abilities.lead.value, abilities.lead.high))
        yield f"node power-up {usual_min} min, slow {slow_min} min (--set node_lead_s=…)"
    if decision.demand_text:
        yield f"{decision.demand_text}, for which jobs are repeated or left out at random (--set arrival_scale=…)"
    target_setting, max_added_min = results.scenario.target_wait_minutes, results.scenario.max_added_wait_minutes
    target_min = 30 if target_setting is None else target_setting
    yield (
        f"wait target: p95 of {target_min:g} min, and at most {max_added_min:g} min more for job sizes below it "
        "(--set target_wait_minutes=…, max_added_wait_minutes=…)"
    )
    yield f"purchase lead time {decision.purchase_lead_days} days (--set purchase_lead_days=…)"
    if (weekly := growth.weekly).value is not None and weekly.low is not None and weekly.high is not None:
        low, high = (percent_text(side, "+.1f") for side in (weekly.low, weekly.high))
        growth_text = f"{percent_text(weekly.value, '+.1f')} per week (80 % interval {low} to {high})"
        note = f"; the {decision.gpus:,} GPUs are for today's load" if decision.gpus > decision.fleet_gpus else ""
        yield f"growth {growth_text}{'' if growth.slope else ': none is measurable'}{note}"
    if results.asked_jobs.nodes.inferred:
        yield "nodes inferred from their jobs (gpuplanner ingest nodes)"
    by_owner = int(results.job_history.rightsizing["by_owner"].sum())
    if "rightsize" in actions and by_owner:
        less = "less than other runs of the same user, class and request"
        yield f"{count_text(by_owner, 'job')} needed {less}: their owners choose by job (gpuplanner rightsize)"
    if standing_gpus := results.asked_jobs.service_gpus:
        yield f"services and jobs without an end keep their peak allocation of {gpus_text(standing_gpus)}"
    if results.asked_jobs.starts_assumed:
        yield "jobs started at submission"


def make_correction_decision(scenario: Scenario, correction: DataCorrection) -> Decision:
    """Make the decision for data with too many excluded GPU-hours: correct them first.

    Examples
    --------
    >>> make_correction_decision(Scenario(), DataCorrection(0.5, "shares of node n1", "label it")).missing[0].command
    'label it'
    """
    unresolved = f"{percent_text(correction.share)} of GPU-hours could not be resolved"
    decision = make_empty_decision(scenario, unresolved)
    missing = (MissingEvidence(correction.finding, correction.remedy),)
    sentence = f"Correct the data first: {unresolved}. No recommendation until this is corrected: {correction.finding}."
    return replace(decision, sentence=sentence, missing=missing, left_out_share=correction.share)


def make_empty_decision(scenario: Scenario, reason: str) -> Decision:
    """Make the decision for data that cannot be simulated, with the command that adds what is missing."""
    return Decision(
        sentence=f"No recommendation: {reason}.", action="none", fleet_gpus=0, gpus=0, gpus_mean=0.0, layouts=(),
        policy=TODAY, actuator=scenario.actuator, saving=Saving(None, reason=reason),
        financial_impact=FinancialImpact("unknown", None, "No GPU is released"),
        purchase_lead_days=scenario.purchase_lead_days,
        reason=reason, missing=(MissingEvidence(reason, f"gpuplanner ingest auto JOBS -o {scenario.data}"),),
    )  # fmt: skip
