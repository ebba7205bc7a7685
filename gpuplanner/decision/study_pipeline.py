"""Pipeline from a scenario to a study: checks, data, evaluation and findings."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.core.errors import GpuPlannerError, MissingDependencyError, OutputError, ScenarioError, TraceFormatError
from gpuplanner.core.output_manifests_and_overwrite_checks import is_intact
from gpuplanner.core.scenario import FILE_PATH_FIELDS, Scenario, require_scenario
from gpuplanner.core.stage_cache_and_data_folders import cache_folder, content_key, data_folder, input_hashes
from gpuplanner.core.step_functions import has_unknown_end, interval_ticks
from gpuplanner.core.units_and_number_formats import (
    HOURS_PER_WEEK,
    SECONDS_PER_DAY,
    count_text,
    gpus_text,
    percent_text,
)
from gpuplanner.cost.period_costs import Money, load_price_book, money
from gpuplanner.decision.comparison_record import (
    Comparison,
    compare_policies,
    make_policy_table,
    make_wait_curve_table,
    make_wait_table,
)
from gpuplanner.decision.data_correction import count_lost_rows, find_correction, has_run_jobs
from gpuplanner.decision.decision_text import has_measured, make_correction_decision, make_empty_decision
from gpuplanner.decision.decision_types import (
    REASON_NO_GPU_REQUESTED,
    REASON_NO_RUN_TIMES,
    TODAY,
    Decision,
    MissingEvidence,
    find_stated_ownership,
)
from gpuplanner.decision.inference_answers import tabulate_services
from gpuplanner.decision.layout_planning import (
    NODES_ADVICE,
    PlannedProblem,
    compare_study_plan_with_fixed,
    plan_choices,
    plan_study_layouts,
    table_weekly_fewest_gpus,
)
from gpuplanner.decision.quota_and_placement_comparison import (
    compare_placements,
    compare_stated_rules,
    states_sharing_rules,
)
from gpuplanner.decision.study import Headline, Study, build_headline, build_provenance, open_study
from gpuplanner.decision.team_fairness import assess_fairness
from gpuplanner.forecast.growth_and_announced_demand import complete_until
from gpuplanner.forecast.rolling_demand_forecast import OUTLOOK_STAGE_BY_VIEW, expected_gpu_hours, tomorrow
from gpuplanner.hardware.actuators import find_default_actuator
from gpuplanner.hardware.catalog import actuators_by_source, export_command, facts
from gpuplanner.hardware.power_carbon_and_prices import find_carbon_factor
from gpuplanner.ingest.dataset import Dataset, SourceFacts
from gpuplanner.ingest.dataset_folder import DATASET_MARK, open_dataset, read_metadata
from gpuplanner.ingest.implausible_jobs_and_past_nodes import drop_quarantined
from gpuplanner.ingest.telemetry.telemetry_quality import format_match_summary
from gpuplanner.planner.numbered_gpus import layout_changes
from gpuplanner.simulator.replications import explain_short_history
from gpuplanner.sizing.request_lines_and_gpu_sharing import recommend_sharing
from gpuplanner.usage.allocated_hours import allocated_by_state
from gpuplanner.usage.gpu_hour_ledger import hours_by_bucket, hours_by_tenant
from gpuplanner.usage.period_accounts import rightsizing_table, scenario_ledger, scenario_use
from gpuplanner.usage.planning_history import History, history, observation_ends_at
from gpuplanner.usage.requested_demand import pool_demand
from gpuplanner.usage.rightsizing import requested_and_used
from gpuplanner.usage.study_fleet import explain_full_gpus

SLURM, KUBERNETES = "Slurm", "Kubernetes"
"""Names of the schedulers."""
SCHEDULER_OF_ACTUATOR = {"slurm": SLURM, "mig-manager": KUBERNETES, "dra": KUBERNETES, "autoscaler": KUBERNETES}
"""Scheduler of each actuator that works with one scheduler only; NVML and mig-parted work with any."""
SCHEDULER_OF_USUAL_ACTUATOR = {"slurm": SLURM, "mig-manager": KUBERNETES}
"""Scheduler of a source by the usual actuator of the source."""
EXPORT_OF_SCHEDULER = {SLURM: "sacct", KUBERNETES: "kubectl"}
"""Command that exports the jobs of each scheduler."""


@dataclass(frozen=True)
class DatasetSummary:
    """Summary of a dataset before an evaluation.

    - ``source``: Source of the list of jobs.
    - ``jobs``, ``days``, ``teams``: Jobs without contradictions, days begun, and teams.
    - ``left_out_rows``: Rows that are unreadable or contradictory.
    - ``left_out_share``: Their share of all rows. [0-1]
    - ``time_zone``: Zone in which the times were read; None: they state their offsets, or their source has one.
    - ``gpu_models``: GPU models in the data.
    - ``ownership``: Ownership in the inventory, if it is the same for all GPUs.
    - ``no_run_reason``: Why nothing can be simulated; None if it can.
    - ``telemetry``: Share of the telemetry matched to jobs, and why the remaining was not.
    - ``actuator``, ``actuator_basis``: Actuator by the data, and why.
    """

    source: str
    jobs: int
    days: int
    teams: int
    left_out_rows: int
    left_out_share: float
    time_zone: str | None
    gpu_models: tuple[str, ...]
    ownership: str | None
    no_run_reason: str | None
    telemetry: str | None
    actuator: str
    actuator_basis: str


def summarize_dataset(data: str) -> DatasetSummary:
    """Summarize a dataset by name or path.

    Examples
    --------
    >>> found = summarize_dataset("sample")
    >>> found.days, found.gpu_models, found.no_run_reason
    (28, ('H100-80GB-SXM5',), None)
    """
    columns = ["tenant", "start_time", "end_time", "state", "gpus", "gpu_model", "quarantined"]
    dataset = open_dataset(data_folder(data), columns=columns)
    source_facts = dataset.source_facts
    jobs = drop_quarantined(dataset.jobs)
    inventory = dataset.inventory
    rows = max(source_facts.rows_in, dataset.jobs.height, 1)
    out = count_lost_rows(dataset) + dataset.jobs.height - jobs.height
    gpus = jobs.filter(pl.col("gpus") > 0)
    correction = find_correction(dataset)
    nothing = None
    if correction is not None:
        nothing = correction.reason
    elif gpus.is_empty():
        _require_tracked_gpus(dataset)
        nothing = REASON_NO_GPU_REQUESTED
    elif not has_run_jobs(gpus):
        nothing = REASON_NO_RUN_TIMES
    begin, end = source_facts.span
    models = jobs if inventory is None or inventory.is_empty() else inventory
    actuator, actuator_basis = find_usual_actuator(source_facts)
    boards = models["gpu_model"].cast(pl.String).drop_nulls().unique().sort().to_list()
    return DatasetSummary(
        source=source_facts.source,
        jobs=jobs.height,
        days=max(math.ceil((end - begin).total_seconds() / SECONDS_PER_DAY), 1),
        teams=jobs["tenant"].n_unique(),
        left_out_rows=out,
        left_out_share=out / rows,
        time_zone=source_facts.time_zone,
        gpu_models=tuple(boards),
        ownership=find_stated_ownership(inventory),
        no_run_reason=nothing,
        telemetry=format_match_summary(dataset),
        actuator=actuator,
        actuator_basis=actuator_basis,
    )


def _require_tracked_gpus(dataset: Dataset) -> None:
    """Reject Slurm accounting in which no job has a GPU, where the node list has some."""
    inventory = dataset.inventory
    installed = 0 if inventory is None else int(inventory["gpus"].sum() or 0)
    if dataset.source_facts.source != "slurm" or not installed or dataset.jobs["gpus"].has_nulls():
        return
    got = f"none in {dataset.jobs.height:,} jobs, and {installed} GPUs in the node list"
    todo = (
        "Accounting does not track GPUs: set AccountingStorageTRES=gres/gpu in slurm.conf, with gres/gpu:TYPE for each "
        "type, and restart slurmctld. Past jobs stay without: export again when jobs have run since."
    )
    raise TraceFormatError("slurm: AllocTRES", "gres/gpu of jobs", got, todo)


def find_usual_actuator(source_facts: SourceFacts) -> tuple[str, str]:
    """Find the actuator of a cluster by its data, and why: ``dra`` where most pods request GPUs so.

    Examples
    --------
    >>> facts = {"source": "kubernetes", "rows_in": 9, "rows_kept": 9, "rows_rejected": 0}
    >>> facts |= {"span_start": None, "span_end": None}
    >>> find_usual_actuator(SourceFacts(**facts, dra_pods=6, plugin_pods=3))
    ('dra', '6 pods with ResourceClaims (DRA), 3 with device-plugin requests')
    """
    usual = find_default_actuator(source_facts.source)
    if not (source_facts.dra_pods or source_facts.dra_nodes):
        return usual, f"usual for {source_facts.source}"
    basis = f"{count_text(source_facts.dra_pods, 'pod')} with ResourceClaims (DRA)"
    if source_facts.plugin_pods:
        basis += f", {source_facts.plugin_pods:,} with device-plugin requests"
    if not source_facts.dra_pods:
        basis += f", DRA driver on {count_text(source_facts.dra_nodes, 'node')}"
    return ("dra" if source_facts.dra_pods >= source_facts.plugin_pods else usual), basis


def read_usual_actuator(folder: Path) -> str:
    """Read the provenance of a dataset, and return the actuator by its data."""
    return find_usual_actuator(read_metadata(folder).source_facts)[0]


def resolve_actuator(source: str, requested_actuator: str | None, usual_actuator: str | None = None) -> str:
    """Return the requested actuator, if the source supports it; else the usual one.

    Parameters
    ----------
    source : str
        Source of the jobs.
    requested_actuator : str or None
        Actuator that the user requested.
    usual_actuator : str, optional
        Actuator by the data; None: that of the source.

    Raises
    ------
    ScenarioError
        If the actuator is part of another scheduler.

    Examples
    --------
    >>> resolve_actuator("slurm", None), resolve_actuator("kubernetes", "nvidia-smi")
    ('slurm', 'nvidia-smi')
    >>> resolve_actuator("kubernetes", "slurm")
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.ScenarioError: actuator slurm: expected an actuator that Kubernetes has: mig-manager, ...
    """
    usual_actuator = usual_actuator or find_default_actuator(source)
    if requested_actuator is None:
        return usual_actuator
    scheduler = SCHEDULER_OF_USUAL_ACTUATOR.get(actuators_by_source().get(source, ""))
    needed_scheduler = SCHEDULER_OF_ACTUATOR.get(requested_actuator)
    if scheduler is not None and needed_scheduler is not None and needed_scheduler != scheduler:
        actuators = ("mig-manager", "mig-parted", "nvidia-smi", "dra", "autoscaler", "slurm")
        fitting = [name for name in actuators if SCHEDULER_OF_ACTUATOR.get(name) in (None, scheduler)]
        expected = f"an actuator that {scheduler} has: {', '.join(fitting)}"
        got = f"jobs of {scheduler} ({source}), and {requested_actuator} is a part of {needed_scheduler}"
        todo = f"Leave --actuator out: it is {usual_actuator} then."
        raise ScenarioError(f"actuator {requested_actuator}", expected, got, todo)
    return requested_actuator


def build_empty_comparison(scenario: Scenario, reason: str, source: str) -> Comparison:
    """Build the comparison where nothing can be simulated, with the command that writes what is missing.

    Parameters
    ----------
    scenario : Scenario
        Data and limits.
    reason : str
        Why nothing can be simulated.
    source : str
        Source of the jobs.
    """
    export = export_command(EXPORT_OF_SCHEDULER[SCHEDULER_OF_USUAL_ACTUATOR.get(find_default_actuator(source), SLURM)])
    command = f"{export} && gpuplanner start {export.rpartition(' ')[2]}"
    has_data = (data_folder(scenario.data) / DATASET_MARK.file).is_file()
    correction = find_correction(scenario.data) if has_data else None
    decision = replace(make_empty_decision(scenario, reason), missing=(MissingEvidence(reason, command),))
    if correction is not None:
        decision = make_correction_decision(scenario, correction)
    return Comparison(decision, scenario.max_added_wait_minutes)


MIN_SHOWN_SHARE = 0.0005
"""Smallest share that a sentence states; a smaller one would be printed as 0.0 % [0-1]."""


def list_findings(headline: Headline, tables: Mapping[str, pl.DataFrame], decision: Decision) -> list[str]:
    """Format the three findings that a planner should remember; each states its uncertainty.

    Parameters
    ----------
    headline : Headline
        Figures of the study.
    tables : mapping of str to polars.DataFrame
        ``ledger_buckets`` and ``ledger_tenants``.
    decision : Decision
        The decision.
    """
    return [_describe_gpu_hours(headline, tables), _describe_small_jobs(headline), decision.sentence]


def _describe_gpu_hours(headline: Headline, tables: Mapping[str, pl.DataFrame]) -> str:
    """Describe how many of the installed GPU-hours were allocated, idle or unallocated."""
    buckets = {row["bucket"]: row for row in tables["ledger_buckets"].iter_rows(named=True)}
    total = sum(row["gpu_hours"] or 0.0 for row in buckets.values())
    share = {name: row["share"] or 0.0 for name, row in buckets.items()}
    allocated = share.get("used", 0.0) + share.get("no_telemetry", 0.0) + share.get("allocated_idle", 0.0)
    gpus = headline.installed_gpus
    part = percent_text(allocated, ".1f")
    text = f"Of {total:,.0f} installed GPU-hours ({gpus:,} GPUs), {allocated * total:,.0f} ({part}) were allocated"
    if share.get("no_telemetry", 0.0) > 0.5 * allocated:
        known_share = 1 - share["no_telemetry"] / allocated
        known_text = f"only {percent_text(known_share, '.1f')}" if known_share >= MIN_SHOWN_SHARE else "none"
        text += f"; {known_text} of these with telemetry, so use is unknown"
    elif "allocated_idle" in share:
        top = tables["ledger_tenants"].sort("allocated_idle", descending=True, nulls_last=True).row(0, named=True)
        idle = percent_text(share["allocated_idle"], ".1f")
        text += f"; {idle} were allocated but idle, {top['tenant']} most: {top['allocated_idle']:,.0f} GPU-hours"
    causes = {
        "unallocated": "without a waiting job",
        "fragmented": "fragmented (enough for a waiting job, but on too many nodes)",
        "idle_pending": "idle with eligible jobs pending (enough on one node; if as other MIG instances: wrong layout)",
        "reserved": "reserved", "reconfiguring": "reconfiguring", "down": "down",
    }  # fmt: skip
    shares = ((share.get(name, 0.0), words) for name, words in causes.items())
    parts = [f"{percent_text(part, '.1f')} {words}" for part, words in shares if part >= MIN_SHOWN_SHARE]
    return f"{text}. Not allocated: {', '.join(parts)}." if parts else f"{text}."


def _describe_small_jobs(headline: Headline) -> str:
    """Describe how many jobs that request one GPU or less request more than they need."""
    small, many = headline.small_jobs, headline.small_jobs_asking_too_much
    if small == 0:
        return "No job requests one GPU or less, so rightsizing and MIG save nothing here."
    if not headline.board_has_mig:
        return (
            f"{small:,} jobs request one GPU or less. Full GPUs are planned, since "
            f"{explain_full_gpus(headline.gpu_model)}, and requests are unchanged: rightsizing saves nothing here."
        )
    evidence = headline.small_jobs_with_evidence
    if evidence == 0:
        return (
            f"None of the {small:,} jobs that request one GPU or less has five measured runs of the same user, class "
            "and request: requests are unchanged, and the saving of rightsizing is not known."
        )
    return (
        f"{many:,} of {small:,} jobs that request one GPU or less ({percent_text(many / small)}) request more than "
        f"they need: as measured, or as all measured runs of the same user, class and request; {evidence:,} have at "
        f"least five such runs, and all others keep their request. In the period, all {small:,} take "
        f"{gpus_text(headline.small_gpus_whole)} on average if each has a full GPU, and would fill "
        f"{gpus_text(headline.small_gpus_rightsized)} on the recommended profiles; peaks need more."
    )


MAX_ALLOCATED_RATIO = 1.001
"""Largest ratio of allocated to installed GPU-hours that rounded times explain; above it one of them must be wrong."""


def list_doubts(job_history: History, ledger: pl.DataFrame, comparison: Comparison) -> list[str]:
    """List contradictions in the data of a study, the most serious first."""
    return [*_doubt_capacity(job_history, ledger), *_doubt_completeness(job_history), *_doubt_waits(comparison)]


def _doubt_capacity(job_history: History, ledger: pl.DataFrame) -> Iterator[str]:
    """Yield a sentence for jobs that were allocated more GPU-hours, or request more GPUs, than are installed."""
    fleet, installed = job_history.fleet, float(ledger["gpu_hours"].sum())
    gpus = fleet.accounted.gpus
    begin = pl.max_horizontal("start_time", pl.lit(job_history.begin))
    end = pl.min_horizontal(pl.col("end_time").fill_null(pl.lit(job_history.end)), pl.lit(job_history.end))
    inside = (end - begin).dt.total_microseconds().clip(0) / 3.6e9
    # Without this filter a missing start would count as the begin of the window.
    began = job_history.trace.jobs.lazy().filter(pl.col("start_time").is_not_null())
    used = float(began.select((inside * pl.col("gpus")).sum()).collect().item() or 0.0)
    if used > MAX_ALLOCATED_RATIO * installed:
        yield (
            f"Jobs were allocated {used:,.0f} GPU-hours, but {gpus:,} GPUs give {installed:,.0f}. The fleet is larger, "
            "or jobs share GPUs: import the nodes, or set nodes and gpus_per_node in the scenario."
        )
    largest = job_history.jobs.select(pl.col("gpus").max()).item() or 0
    if largest > fleet.gpus:
        yield f"A job requests {gpus_text(largest)} of a fleet of {fleet.gpus:,}: it can never start, under any policy."


def _doubt_completeness(job_history: History) -> Iterator[str]:
    """Yield a sentence for a record without running jobs, and one for a record without telemetry."""
    jobs = job_history.trace.jobs.select("start_time", "end_time", "state", "gpus").filter(~has_unknown_end())
    whole = complete_until(jobs, observation_ends_at(job_history.trace))
    # Plans do not depend on single hours: a record may be incomplete on its last day.
    if whole < job_history.plan_start - timedelta(days=1):
        yield (
            f"The record holds only jobs that ended: after {whole:%Y-%m-%d %H:%M} UTC more than a tenth of the "
            "demand is missing from it, so plans from it are too small. Choose a month that ends before."
        )
    if not has_measured(job_history.trace, "sm_activity", "sm_activity"):
        yield (
            "No telemetry: utilization is not reported, and energy takes allocated GPUs as fully busy, likely too much."
        )


def _doubt_waits(comparison: Comparison) -> Iterator[str]:
    """Yield a sentence for a recommended policy within the limit whose mean added wait is far above today's."""
    today, best = comparison.today, comparison.find_row(comparison.winner)
    if today is None or best is None or best.policy == TODAY:
        return
    before, after = today.added_wait_mean_minutes, best.added_wait_mean_minutes
    if before is not None and after is not None and after > max(10.0 * before, 1.0):
        yield (
            f"Within the target jobs start later than today: {after:,.1f} minutes on average instead of {before:,.1f}, "
            "counted from when they started."
        )


def check_options(scenario: Scenario) -> None:
    """Reject a scenario that no data could serve; all errors are reported at once.

    Examples
    --------
    >>> check_options(Scenario(currency="EUR"))
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.ScenarioError: currency: expected USD, the currency of the list prices, or one ...
    """
    faults = []
    grid = partial(interval_ticks, scenario.interval_hours, source="scenario")
    for check in (partial(find_carbon_factor, scenario.carbon_region), partial(_check_currency, scenario), grid):
        try:
            check()
        except GpuPlannerError as error:
            faults.append(str(error))
    if faults:
        raise ScenarioError(" ".join(faults))


def _check_currency(scenario: Scenario) -> None:
    """Reject a currency that neither the list prices nor the price book has, where the scenario states no price."""
    book, listed = load_price_book(scenario), facts("gpu_prices")["currency"].unique().sort().to_list()
    stated = {row.currency for row in book.prices} | {lot.currency for lot in book.owned}
    stated |= {code for row in book.rates for code in (row.from_currency, row.to_currency)}
    if scenario.price_per_gpu_hour <= 0 and scenario.currency not in {*listed, *stated}:
        expected = f"{' or '.join(listed)}, the currency of the list prices, or one of the price book"
        todo = "Give a price book with prices in it or an exchange rate, or set price_per_gpu_hour to your price in it."
        raise ScenarioError("currency", expected, scenario.currency, todo)


MAX_DEMAND_RATIO = 1.5
"""Ratio of past to forecast GPU-hours, or its inverse, above which a warning is shown."""


def evaluate(scenario: Scenario, *, cache: bool = True) -> Study:
    """Evaluate a scenario from data to decision: ledger, demand, forecast, plan, simulation, cost.

    Parameters
    ----------
    scenario : Scenario
        What to plan, on what data.
    cache : bool
        Store the study on disk by its content (scenario, input files, code) in the folder
        :func:`~gpuplanner.core.stage_cache_and_data_folders.cache_folder`, and return the stored study when it is
        evaluated again. Forecasts are stored there in any case, by the demand that they were made from.

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
    inputs = input_hashes(scenario.data, *(getattr(scenario, name) for name in FILE_PATH_FIELDS))
    folder = cache_folder() / content_key(scenario, inputs)
    if cache and is_intact(folder):
        return open_study(folder)
    study = _evaluate_stages(scenario, inputs)
    if cache:
        shutil.rmtree(folder, ignore_errors=True)  # what is there is damaged
        with suppress(OutputError):  # another run may be writing it
            study.save(folder)
    # Read back, so that a study is the same, order of keys included, whether it was made or kept.
    return open_study(folder) if cache and is_intact(folder) else study


def _evaluate_stages(scenario: Scenario, inputs: Mapping[str, str]) -> Study:
    """Run all stages: past, decision, and, where the history is long enough, forecast and plan."""
    job_history, money_totals, comparison = history(scenario), money(scenario), compare_policies(scenario)
    reason, planned, tables = explain_short_history(scenario), None, dict[str, pl.DataFrame]()
    try:
        tables["weeks"] = table_weekly_fewest_gpus(scenario)
        planned = None if reason else plan_study_layouts(scenario)
    except MissingDependencyError as error:
        reason = str(error)
    plan, problem = (None, None) if planned is None else (planned.plan, planned.problem)
    tables |= _past_tables(scenario, job_history, money_totals) | _compared_tables(comparison)
    tables |= assess_fairness(scenario).to_tables() | tabulate_services(scenario)
    tomorrow_demand = None
    if reason is None and states_sharing_rules(scenario):
        tables |= compare_stated_rules(scenario).to_tables()
    if reason is None and scenario.gang_slowdowns is not None:
        tables["placements"] = compare_placements(scenario)
    if reason is None and planned is not None:
        tables |= _planned_tables(scenario, planned)
        tomorrow_demand, cautions = tomorrow(scenario), _describe_demand_mismatch(scenario, comparison)
        if planned.problem.nodes is None and job_history.fleet.can_be_cut:
            cautions.append(f"No files for operators are written: the nodes of the plan have no names. {NODES_ADVICE}")
    else:
        cautions = [f"No forecast and no plan was made: {reason}. What happened stands by itself."]
    doubted = list_doubts(job_history, tables["ledger_buckets"], comparison)
    headline = build_headline(job_history, money_totals, tables, plan, tomorrow_demand)
    return Study(
        scenario=scenario,
        headline=headline,
        findings=tuple(list_findings(headline, tables, comparison.decision)),
        tables=tables,
        plan=plan,
        problem=problem,
        plan_choices=() if reason else plan_choices(scenario),
        over_fixed=None if reason else compare_study_plan_with_fixed(scenario),
        comparison=comparison,
        provenance=build_provenance(job_history, money_totals, inputs, cautions, doubted),
    )


def _past_tables(scenario: Scenario, job_history: History, money_totals: Money) -> dict[str, pl.DataFrame]:
    """Collect the tables of the observation window."""
    ledger = scenario_ledger(scenario)
    return {
        "quality": job_history.trace.quality,
        "ledger": ledger,
        "ledger_buckets": hours_by_bucket(ledger),
        "ledger_tenants": hours_by_tenant(ledger),
        "rightsizing": rightsizing_table(job_history.jobs, job_history.rightsizing),
        "sharing": recommend_sharing(requested_and_used(job_history.jobs, samples=job_history.trace.samples)),
        "costs": money_totals.costs,
        "energy": money_totals.states,
        "use": scenario_use(scenario),
        "ended": allocated_by_state(job_history.trace.jobs, start=job_history.begin, end=job_history.end),
    }


def _planned_tables(scenario: Scenario, planned: PlannedProblem) -> dict[str, pl.DataFrame]:
    """Collect the tables of demand, forecast and plan."""
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


def _compared_tables(comparison: Comparison) -> dict[str, pl.DataFrame]:
    """Collect the tables of the policy comparison; none where it has no rows."""
    if not comparison.rows:
        return {}
    tables = {"policies": make_policy_table(comparison), "waits": make_wait_table(comparison)}
    return tables | {"wait_curve": make_wait_curve_table(comparison)}


def _layout_counts(planned: PlannedProblem) -> pl.DataFrame:
    """Count GPUs by interval and layout of a plan."""
    plan = planned.plan
    rows = [
        (time, layout, int(plan.counts[slot, layout_index]))
        for slot, time in enumerate(planned.problem.slot_times[:-1])
        for layout_index, layout in enumerate(plan.layouts)
    ]
    schema: dict[str, Any] = {"slot_start": pl.Datetime("us", "UTC"), "layout": pl.String, "gpus": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _describe_demand_mismatch(scenario: Scenario, comparison: Comparison) -> list[str]:
    """Warn where the forecast demand and that of the evaluation window are far apart."""
    if comparison.today is None or comparison.today.busy_gpu_hours is None:
        return []
    span = scenario.horizon_intervals * scenario.interval_hours / HOURS_PER_WEEK
    expected, evaluated = expected_gpu_hours(scenario) / span, comparison.today.busy_gpu_hours
    if 1 / MAX_DEMAND_RATIO <= (evaluated + 1) / (expected + 1) <= MAX_DEMAND_RATIO:
        return []
    return [
        f"The forecast expects {expected:,.0f} GPU-hours of work a week, the evaluation window has "
        f"{evaluated:,.0f}: demand is not steady, and past results may not apply to the weeks ahead. "
        "Plan from a month with similar demand."
    ]
