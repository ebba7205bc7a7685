"""From a scenario to a study: checks, data, evaluation, findings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.core.errors import GpuPlannerError, ScenarioError, TraceFormatError
from gpuplanner.core.scenario import FILE_FIELDS, Scenario, require_scenario
from gpuplanner.core.stage_cache import cache_folder, content_key, data_folder, input_hashes
from gpuplanner.core.step_functions import has_unknown_end, interval_ticks
from gpuplanner.core.units import HOURS_PER_WEEK, SECONDS_PER_DAY, percent_text
from gpuplanner.cost.period_costs import Money, money
from gpuplanner.decision.comparison_record import (
    Comparison,
    PolicyRow,
    compared,
    curve_table,
    policy_table,
    priced,
    service_table,
)
from gpuplanner.decision.decision_text import no_decision, uncorrected_decision
from gpuplanner.decision.decision_types import NEVER_RAN, NO_GPU, TODAY, Decision, Missing, Saving, stated_ownership
from gpuplanner.decision.layout_planning import (
    NAME_THEM,
    Planned,
    plan_choices,
    plan_over_fixed,
    planned_calendar,
    weeks,
)
from gpuplanner.decision.policy_comparison import SHORT, WAYS
from gpuplanner.decision.policy_simulation import any_ran, correction_of, left_out_rows
from gpuplanner.decision.quota_comparison import is_asked, placement_table, rules_tried
from gpuplanner.decision.study import Headline, Study, headline_of, open_study, provenance_of
from gpuplanner.decision.team_fairness import fairness
from gpuplanner.forecast.demand_changes import complete_until
from gpuplanner.forecast.demand_outlook import OUTLOOK_STAGE_BY_VIEW, expected_gpu_hours, tomorrow
from gpuplanner.hardware.actuators import find_default_actuator, find_scenario_abilities
from gpuplanner.hardware.catalog import actuators_by_source, export_command, facts, has_list_price
from gpuplanner.hardware.power_and_carbon import find_carbon_factor, find_gpu_hour_price
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.dataset_folder import DATASET_MARK, open_dataset, read_metadata
from gpuplanner.ingest.quarantine import drop_quarantined
from gpuplanner.ingest.telemetry.telemetry_quality import format_match_summary
from gpuplanner.planner.numbered_gpus import layout_changes
from gpuplanner.simulator.replications import explain_short_history
from gpuplanner.sizing.request_lines import recommend_sharing
from gpuplanner.usage.allocated_hours import allocated_by_state
from gpuplanner.usage.gpu_hour_ledger import hours_by_bucket, hours_by_tenant
from gpuplanner.usage.job_history import History, end_of, history
from gpuplanner.usage.period_accounts import rightsizing_table, scenario_ledger, scenario_use
from gpuplanner.usage.requested_demand import pool_demand
from gpuplanner.usage.rightsizing import requested_and_used


def coarse(found: Comparison, known: Scenario, asked: Scenario) -> Comparison:
    """The answer to another scenario from the comparison that is known of the first, without playing anything.

    Limit, share and actuator choose among the settings that were tried on the days tuned on, which more jobs keep on
    for longer; prices are multiplied. The exact answer may find settings between those tried, and judges on other days:
    a coarse one has no range.
    """
    decision = found.decision
    if found.today is None or decision.action == "none":
        return found
    service = [(one.max_added_wait_minutes, one.actuator, one.arrival_scale) for one in (known, asked)]
    if service[0] != service[1]:
        found = _chosen(_at_demand(found, asked.arrival_scale / known.arrival_scale), asked)
    decision = replace(
        found.decision, purchase_lead_days=asked.purchase_lead_days,
        actuator=asked.actuator, confidence=("Coarse, from settings that were tried: the exact answer follows.",),
    )  # fmt: skip
    return priced(asked, replace(found, decision=decision))


def _chosen(found: Comparison, asked: Scenario) -> Comparison:
    """Of every way that the actuator can perform the cheapest setting within the limit, and of these the cheapest."""
    assert found.today is not None
    minutes, before = (asked.max_added_wait_minutes, found.today.gpu_hours_promised or found.today.gpu_hours or 0.0)
    fleet = history(asked).fleet
    able = find_scenario_abilities(asked, fleet.gpu_model)
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
        said = f"At {minutes:g} minutes nothing that was tried frees capacity."
    else:
        policy, saving = best.policy, Saving(before - best.gpu_hours)
        said = (
            f"At {minutes:g} minutes about {before - best.gpu_hours:,.0f} GPU-hours per week are freed: "
            f"{SHORT.get(policy, policy)}."
        )
    decision = replace(found.decision, sentence=said, policy=policy, saving=saving, next_steps=())
    today = replace(found.today, gpu_hours=before)
    return replace(found, decision=decision, minutes=minutes, today=today, policies=rows)


def _at(row: PolicyRow, found: Comparison, minutes: float) -> PolicyRow:
    """A way by the cheapest of its settings within a limit."""
    tried = [(one.gpu_hours, one.added_wait_p95_minutes) for one in found.frontier if one.policy == row.policy]
    if row.gpu_hours_promised is not None and row.added_wait_p95_minutes is not None:
        # What was cheaper within the limit and was not taken does not hold on single days.
        taken = row.gpu_hours_promised
        tried = [(hours, added) for hours, added in tried if hours >= taken or added > found.minutes]
        tried.append((taken, row.added_wait_p95_minutes))
    within_it = [point for point in tried if point[1] <= minutes]
    if not within_it:
        return replace(row, meets_target=False, reason=row.reason or _none_within(minutes))
    hours, added = min(within_it)
    return replace(row, gpu_hours=hours, added_wait_p95_minutes=added, meets_target=True, reason=None)


def _none_within(minutes: float) -> str:
    return f"no setting that was tried adds at most {minutes:g} minutes"


def _at_demand(found: Comparison, times: float) -> Comparison:
    """The settings that were tried as so many times the jobs would keep them on; today's fleet is on whatever comes."""
    tried = (one for one in found.frontier if one.policy != TODAY)
    points = tuple(replace(one, gpu_hours=times * one.gpu_hours) for one in tried)
    rows = tuple(
        replace(row, gpu_hours_promised=row.gpu_hours_promised and times * row.gpu_hours_promised)
        for row in found.policies
    )
    return replace(found, frontier=points, policies=rows)


SLURM, KUBERNETES = "Slurm", "Kubernetes"
NEEDS = {"slurm": SLURM, "mig-manager": KUBERNETES, "dra": KUBERNETES, "autoscaler": KUBERNETES}
"""Path → the scheduler that it is a part of; NVML and mig-parted work beside any."""
SCHEDULERS = {"slurm": SLURM, "mig-manager": KUBERNETES}
"""Usual actuator of a source → the scheduler that it speaks of."""
EXPORTS = {SLURM: "sacct", KUBERNETES: "kubectl"}
"""Scheduler → the export of its jobs in the catalogue."""


@dataclass(frozen=True)
class Beginning:
    """What data say of themselves.

    - ``source``: Source of the list of jobs.
    - ``jobs``, ``days``, ``teams``: Jobs that can be believed, whole days begun, and who they belong to.
    - ``left_out_rows``: Rows that cannot be read or believed.
    - ``left_out_share``: Their share of all rows.
    - ``zone``: Zone in which the times were read; None: they state their offsets, or their source has one.
    - ``boards``: Boards that the data name.
    - ``ownership``: What the inventory says, if it says one thing.
    - ``nothing``: Why nothing can be played.
    """

    source: str
    jobs: int
    days: int
    teams: int
    left_out_rows: int
    left_out_share: float
    zone: str | None
    boards: tuple[str, ...]
    ownership: str | None
    nothing: str | None
    telemetry: str | None = None
    """How much of the telemetry was matched to jobs, and why the rest was not."""


def beginning(data: str) -> Beginning:
    """Look into a dataset.

    Examples
    --------
    >>> found = beginning("sample")
    >>> found.days, found.boards, found.nothing
    (28, ('H100-80GB-SXM5',), None)
    """
    wanted = ["tenant", "start_time", "end_time", "state", "gpus", "gpu_model", "quarantined"]
    trace = open_dataset(data_folder(data), columns=wanted)
    stated = trace.source_facts
    if "jobs" not in trace.tables and "job_states" in trace.tables:
        return Beginning(stated.source, 0, 0, 0, 0, 0.0, None, (), None, NEVER_RAN)
    jobs = drop_quarantined(trace.jobs)
    inventory = trace.inventory
    rows = max(stated.rows_in, trace.jobs.height, 1)
    out = left_out_rows(trace) + trace.jobs.height - jobs.height
    gpus = jobs.filter(pl.col("gpus") > 0)
    correction = correction_of(trace)
    nothing = None
    if correction is not None:
        nothing = correction.reason
    elif gpus.is_empty():
        _require_tracked(trace)
        nothing = NO_GPU
    elif not any_ran(gpus):
        nothing = NEVER_RAN
    begin, end = stated.span
    models = jobs if inventory is None or inventory.is_empty() else inventory
    boards = models["gpu_model"].cast(pl.String).drop_nulls().unique().sort().to_list()
    return Beginning(
        source=stated.source,
        jobs=jobs.height,
        days=max(math.ceil((end - begin).total_seconds() / SECONDS_PER_DAY), 1),
        teams=jobs["tenant"].n_unique(),
        left_out_rows=out,
        left_out_share=out / rows,
        zone=stated.time_zone,
        boards=tuple(boards),
        ownership=stated_ownership(inventory),
        nothing=nothing,
        telemetry=format_match_summary(trace),
    )


def _require_tracked(trace: Dataset) -> None:
    """Refuse accounting of Slurm in which no job has a GPU, where the node list has some."""
    inventory = trace.inventory
    installed = 0 if inventory is None else int(inventory["gpus"].sum() or 0)
    if trace.source_facts.source != "slurm" or not installed or trace.jobs["gpus"].has_nulls():
        return
    got = f"none in {trace.jobs.height:,} jobs, and {installed} GPUs in the node list"
    todo = (
        "Accounting does not track GPUs: set AccountingStorageTRES=gres/gpu in slurm.conf, with gres/gpu:TYPE for each "
        "type, and restart slurmctld. Past jobs stay without: export again when jobs have run since."
    )
    raise TraceFormatError("slurm: AllocTRES", "gres/gpu of jobs", got, todo)


def usual_actuator(folder: Path) -> str:
    """Who changes the fleet that a dataset speaks of, unless somebody says otherwise."""
    return find_default_actuator(read_metadata(folder).source_facts.source)


def actuator_for(source: str, asked: str | None) -> str:
    """The actuator that was asked for, if the source can have it; else the usual one.

    Examples
    --------
    >>> actuator_for("slurm", None), actuator_for("kubernetes", "nvidia-smi")
    ('slurm', 'nvidia-smi')
    >>> actuator_for("kubernetes", "slurm")
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.ScenarioError: actuator slurm: expected an actuator that Kubernetes has: mig-manager, ...
    """
    if asked is None:
        return find_default_actuator(source)
    there = SCHEDULERS.get(actuators_by_source().get(source, ""))
    needs = NEEDS.get(asked)
    if there is not None and needs is not None and needs != there:
        known = ("mig-manager", "mig-parted", "nvidia-smi", "dra", "autoscaler", "slurm")
        fitting = [name for name in known if NEEDS.get(name) in (None, there)]
        expected = f"an actuator that {there} has: {', '.join(fitting)}"
        got = f"jobs of {there} ({source}), and {asked} is a part of {needs}"
        todo = f"Leave --actuator out: it is {find_default_actuator(source)} then."
        raise ScenarioError(f"actuator {asked}", expected, got, todo)
    return asked


def nothing_known(scenario: Scenario, reason: str, source: str) -> Comparison:
    """The answer where nothing can be played, with the command that writes what is missing."""
    export = export_command(EXPORTS[SCHEDULERS.get(find_default_actuator(source), SLURM)])
    command = f"{export} && gpuplanner start {export.rpartition(' ')[2]}"
    has_data = (data_folder(scenario.data) / DATASET_MARK.file).is_file()
    correction = correction_of(scenario.data) if has_data else None
    decision = replace(no_decision(scenario, reason), missing=(Missing(reason, command),))
    if correction is not None:
        decision = uncorrected_decision(scenario, correction)
    return Comparison(decision, scenario.wait_percentile, scenario.max_added_wait_minutes)


TOLD = 0.0005
"""Share below which a part is left out, as it would be printed as 0.0 %."""


def findings(headline: Headline, tables: Mapping[str, pl.DataFrame], decision: Decision) -> list[str]:
    """Say the three findings that a planner should take away; each states its own uncertainty."""
    return [_where_time_went(headline, tables), _who_asks_too_much(headline), decision.sentence]


def _where_time_went(headline: Headline, tables: Mapping[str, pl.DataFrame]) -> str:
    buckets = {row["bucket"]: row for row in tables["ledger_buckets"].iter_rows(named=True)}
    total = sum(row["gpu_hours"] or 0.0 for row in buckets.values())
    share = {name: row["share"] or 0.0 for name, row in buckets.items()}
    allocated = share.get("used", 0.0) + share.get("no_telemetry", 0.0) + share.get("allocated_idle", 0.0)
    gpus = headline.installed_gpus
    part = percent_text(allocated, ".1f")
    text = f"Of {total:,.0f} installed GPU-hours ({gpus:,} GPUs), {allocated * total:,.0f} ({part}) were allocated"
    if share.get("no_telemetry", 0.0) > 0.5 * allocated:
        unknown = percent_text(share["no_telemetry"] / allocated)
        text += f"; no activity was measured for {unknown} of these, so use is unknown"
    elif "allocated_idle" in share:
        top = tables["ledger_tenants"].sort("allocated_idle", descending=True, nulls_last=True).row(0, named=True)
        idle = percent_text(share["allocated_idle"], ".1f")
        text += f"; {idle} were allocated but idle, {top['tenant']} most: {top['allocated_idle']:,.0f} GPU-hours"
    causes = {"unallocated": "without a waiting job", "fragmented": "fragmented, too few per node for a waiting job",
              "idle_pending": "idle, though enough in number for a waiting job", "reserved": "reserved",
              "reconfiguring": "reconfiguring", "down": "down"}  # fmt: skip
    shares = ((share.get(name, 0.0), words) for name, words in causes.items())
    parts = [f"{percent_text(part, '.1f')} {words}" for part, words in shares if part >= TOLD]
    return f"{text}. Not allocated: {', '.join(parts)}." if parts else f"{text}."


def _who_asks_too_much(headline: Headline) -> str:
    small, more = headline.small_jobs, headline.small_jobs_asking_too_much
    if small == 0:
        return "No job requests one GPU or less, so rightsizing and MIG save nothing here."
    if not headline.board_has_mig:
        why = f"{headline.gpu_model} has no MIG" if headline.gpu_model else "the data do not name one GPU model"
        return (
            f"{small:,} jobs request one GPU or less. Full GPUs are planned, since {why}, and "
            "requests are unchanged: rightsizing saves nothing here."
        )
    evidence = headline.small_jobs_with_evidence
    if evidence == 0:
        return (
            f"None of the {small:,} jobs that request one GPU or less has a measurement of memory or activity: "
            "requests are unchanged, and the saving of rightsizing is not known."
        )
    return (
        f"{more:,} of {small:,} jobs that request one GPU or less ({percent_text(more / small)}) request more than "
        f"they need; {evidence:,} have a measurement of their own or of their class. On average all {small:,} fill "
        f"{headline.small_gpus_whole:.0f} GPUs if each holds a full GPU, and on recommended profiles the slices of "
        f"{headline.small_gpus_rightsized:.0f}. Peaks and packing need more: the GPUs of each week below, and those "
        "that the recommendation partitions to meet the wait limits."
    )


FULL = 1.001
"""Held over installed GPU-hours from which they cannot both be right; below it, rounding of instants."""


def doubts(known: History, booked: pl.DataFrame, found: Comparison) -> list[str]:
    """Say what speaks against the figures of a study, most serious first."""
    return [*_more_than_there_is(known, booked), *_thin_record(known), *_longer(found)]


def _more_than_there_is(known: History, booked: pl.DataFrame) -> Iterator[str]:
    """Jobs cannot hold more GPU time than is installed, nor one of them more GPUs."""
    installed, gpus = float(booked["gpu_hours"].sum()), known.fleet.installed.gpus
    begin = pl.max_horizontal("start_time", pl.lit(known.begin))
    end = pl.min_horizontal(pl.col("end_time").fill_null(pl.lit(known.end)), pl.lit(known.end))
    inside = (end - begin).dt.total_microseconds().clip(0) / 3.6e9
    # Of a job that never began nothing was held: without the filter its missing start would read as the beginning.
    began = known.trace.jobs.filter(pl.col("start_time").is_not_null())
    held = float(began.select((inside * pl.col("gpus")).sum()).item() or 0.0)
    if held > FULL * installed:
        yield (
            f"Jobs were allocated {held:,.0f} GPU-hours, but {gpus:,} GPUs give {installed:,.0f}. The fleet is larger, "
            "or jobs share GPUs: import the nodes, or set nodes and gpus_per_node in the scenario."
        )
    largest = max(known.jobs["gpus"].to_list(), default=0)
    if largest > known.fleet.gpus:
        yield (
            f"A job requests {largest:,.0f} GPUs of a fleet of {known.fleet.gpus:,}: it can never start, under any "
            "policy."
        )


def _thin_record(known: History) -> Iterator[str]:
    """A record that holds only jobs that ended lacks those that had not; energy rests on measured activity."""
    whole = complete_until(known.trace.jobs.filter(~has_unknown_end()), end_of(known.trace))
    # Nothing that is planned rests on hours: a record may thin out a day before its end.
    if whole < known.plan_start - timedelta(days=1):
        yield (
            f"The record holds only jobs that ended: after {whole:%Y-%m-%d %H:%M} UTC more than a tenth of the "
            "demand is missing from it, so plans from it are too small. Choose a month that ends before."
        )
    if known.jobs["sm_activity"].null_count() == known.jobs.height:
        yield (
            "No telemetry: utilization is not reported, and energy counts allocated GPUs as fully busy, an upper bound."
        )


def _longer(found: Comparison) -> Iterator[str]:
    """Within the target, and yet far later than today: the reader is told."""
    today, best = found.today, found.row(found.winner)
    if today is None or best is None or best.policy == TODAY:
        return
    before, after = today.added_wait_mean_minutes, best.added_wait_mean_minutes
    if before is not None and after is not None and after > max(10.0 * before, 1.0):
        yield (
            f"Within the target jobs start later than today: {after:,.1f} minutes on average instead of {before:,.1f}, "
            "counted from when they started."
        )


def check_options(scenario: Scenario) -> None:
    """Refuse a scenario that cannot be evaluated whatever the data hold; all faults are named at once.

    Examples
    --------
    >>> check_options(Scenario(currency="EUR"))
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.ScenarioError: currency: expected USD, the currency of the list prices; got EUR. Set ...
    """
    faults = []
    grid = partial(interval_ticks, scenario.interval_hours, source="scenario")
    for check in (partial(find_carbon_factor, scenario.carbon_region), partial(_currency, scenario), grid):
        try:
            check()
        except GpuPlannerError as error:
            faults.append(str(error))
    if faults:
        raise ScenarioError(" ".join(faults))


def _currency(scenario: Scenario) -> None:
    """Without a price of one's own nothing is converted; whose board it is may not be known yet."""
    if scenario.price_usd_per_gpu_hour > 0:
        return
    if scenario.gpu_model and has_list_price(scenario.gpu_model):
        find_gpu_hour_price(scenario.gpu_model, currency=scenario.currency)
    listed = facts("gpu_prices")["currency"].unique().sort().to_list()
    if scenario.currency not in listed:
        expected = f"{' or '.join(listed)}, the currency of the list prices"
        todo = "Set price_usd_per_gpu_hour to your own price in that currency."
        raise ScenarioError("currency", expected, scenario.currency, todo)


MISMATCH = 1.5
"""Past weeks and forecast may differ in GPU-hours by this factor before the reader is warned."""


def evaluate(scenario: Scenario, *, cache: bool = True) -> Study:
    """Walk from data to decision: ledger, demand, forecast, plans, simulation, money.

    Parameters
    ----------
    scenario : Scenario
        What to plan, on what data.
    cache : bool
        Keep the study on disk by its content (scenario, input files, code) and give it back when it is asked
        for again, in the folder :func:`~gpuplanner.core.stage_cache.cache_folder`. Forecasts are kept there in any
        case, by the demand that they were made from.

    Returns
    -------
    Study
        The same scenario, data and seed give the same study, to the byte.

    Raises
    ------
    GpuPlannerError
        If the data or the scenario cannot be used; the message says what to do.
    """
    require_scenario(scenario)
    check_options(scenario)
    inputs = input_hashes(scenario.data, *(getattr(scenario, name) for name in FILE_FIELDS))
    place = cache_folder() / content_key(scenario, inputs)
    if cache and (place / "study.json").exists():
        return open_study(place)
    study = _walk(scenario, inputs)
    if cache:
        study.save(place)
    return study


def _walk(scenario: Scenario, inputs: Mapping[str, str]) -> Study:
    """What happened, what to do with the fleet, and, where the past is long enough, a plan."""
    known, priced, found = history(scenario), money(scenario), compared(scenario)
    reason = explain_short_history(scenario)
    planned = None if reason else planned_calendar(scenario)
    plan, problem = (None, None) if planned is None else (planned.plan, planned.problem)
    tables = _past_tables(scenario, known, priced) | _compared_tables(found) | fairness(scenario).to_tables()
    ahead = None
    if reason is None and is_asked(scenario):
        tables |= rules_tried(scenario).to_tables()
    if reason is None and scenario.gang_slowdowns is not None:
        tables["placements"] = placement_table(scenario)
    if reason is None and planned is not None:
        tables |= _planned_tables(scenario, planned)
        ahead, cautions = tomorrow(scenario), _mismatch(scenario, found)
        if planned.problem.nodes is None and known.fleet.can_be_cut:
            cautions.append(f"No files for operators are written: the nodes of the plan have no names. {NAME_THEM}")
    else:
        cautions = [f"No forecast and no plan was made: {reason}. What happened stands by itself."]
    doubted = doubts(known, tables["ledger_buckets"], found)
    headline = headline_of(known, priced, found.decision, tables, plan, ahead)
    return Study(
        scenario=scenario,
        headline=headline,
        findings=tuple(findings(headline, tables, found.decision)),
        tables=tables,
        plan=plan,
        problem=problem,
        plan_choices=() if reason else plan_choices(scenario),
        over_fixed=None if reason else plan_over_fixed(scenario),
        comparison=found,
        provenance=provenance_of(known, priced, inputs, cautions, doubted),
    )


def _past_tables(scenario: Scenario, known: History, priced: Money) -> dict[str, pl.DataFrame]:
    booked = scenario_ledger(scenario)
    return {
        "quality": known.trace.quality,
        "ledger": booked,
        "ledger_buckets": hours_by_bucket(booked),
        "ledger_tenants": hours_by_tenant(booked),
        "rightsizing": rightsizing_table(known.jobs, known.rightsizing),
        "sharing": recommend_sharing(requested_and_used(known.jobs, samples=known.trace.samples)),
        "costs": priced.costs,
        "energy": priced.states,
        "weeks": weeks(scenario),
        "use": scenario_use(scenario),
        "ended": allocated_by_state(known.trace.jobs, start=known.begin, end=known.end),
    }


def _planned_tables(scenario: Scenario, planned: Planned) -> dict[str, pl.DataFrame]:
    outlook = OUTLOOK_STAGE_BY_VIEW["rightsized"](scenario)
    return {
        "demand": pl.concat([pool_demand(outlook.demand), outlook.demand]),
        "forecast": outlook.result.forecast,
        "scores": outlook.result.scores,
        "choice": outlook.result.choice,
        "layout_plan": planned.layout_plan,
        "layout_counts": _layout_counts(planned),
        "layout_changes": layout_changes(planned.plan, planned.problem),
    }


def _compared_tables(found: Comparison) -> dict[str, pl.DataFrame]:
    if not found.rows:
        return {}
    return {"policies": policy_table(found), "waits": service_table(found), "wait_curve": curve_table(found)}


def _layout_counts(planned: Planned) -> pl.DataFrame:
    plan = planned.plan
    rows = [
        (time, layout, int(plan.counts[slot, place]))
        for slot, time in enumerate(planned.problem.slot_times[:-1])
        for place, layout in enumerate(plan.layouts)
    ]
    schema: dict[str, Any] = {"slot_start": pl.Datetime("us", "UTC"), "layout": pl.String, "gpus": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _mismatch(scenario: Scenario, compared: Comparison) -> list[str]:
    """Whether what the forecast expects and what policies were judged on are far apart."""
    if compared.today is None or compared.today.busy_gpu_hours is None:
        return []
    span = scenario.horizon_intervals * scenario.interval_hours / HOURS_PER_WEEK
    expected, judged = expected_gpu_hours(scenario) / span, compared.today.busy_gpu_hours
    if 1 / MISMATCH <= (judged + 1) / (expected + 1) <= MISMATCH:
        return []
    return [
        f"The forecast expects {expected:,.0f} GPU-hours of work a week, the evaluation window has "
        f"{judged:,.0f}: demand is not steady, and past results may not apply to the weeks ahead. "
        "Plan from a month with similar demand."
    ]
