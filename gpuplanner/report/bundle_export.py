"""Export of the change bundle of a decision into a folder, with the times to empty nodes, quotas and tickets."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner._version import __version__
from gpuplanner.core.errors import GpuPlannerError, ScenarioError
from gpuplanner.core.output_manifests_and_overwrite_checks import MANIFEST, FolderMark
from gpuplanner.core.output_writing import replace_directory
from gpuplanner.core.scenario import FILE_PATH_FIELDS, Scenario
from gpuplanner.core.schemas import QueueQuotas
from gpuplanner.core.setting_rules_and_controls import OWNERSHIP_RENTED
from gpuplanner.core.stage_cache_and_data_folders import data_folder, input_hashes
from gpuplanner.core.units_and_number_formats import SECONDS_PER_HOUR, SECONDS_PER_MINUTE, wait_text
from gpuplanner.decision.comparison_record import (
    Comparison,
    make_policy_table,
    make_wait_curve_table,
    make_wait_table,
    study_comparison,
)
from gpuplanner.decision.decision_text import format_node_list, format_resampled_waits
from gpuplanner.decision.decision_types import (
    IDLE_ACTIONS,
    WAIT_REDUCING_ACTIONS,
    WAIT_TOLERANCE_MINUTES,
    Decision,
    Measure,
)
from gpuplanner.decision.inference_services import plan_inference_services
from gpuplanner.decision.plan_rehearsal import make_drain_rule
from gpuplanner.decision.policy_comparison import POLICIES
from gpuplanner.decision.policy_layouts import PoolRule, TenantQuota
from gpuplanner.decision.study import Study, open_study
from gpuplanner.decision.study_pipeline import find_usual_actuator, resolve_actuator
from gpuplanner.hardware.gpu_models import GpuModel, load_any_gpu_model, make_non_mig_model
from gpuplanner.hardware.repartitioning_cost import find_change_cost
from gpuplanner.ingest.chunked_tables import read_table
from gpuplanner.ingest.dataset_folder import read_metadata
from gpuplanner.ingest.gpu_model_resolution_and_node_lists import try_expand_node_list
from gpuplanner.report.change_bundle import README_FILE, make_bundle
from gpuplanner.report.change_bundle_parts import Bundle, MeasureText, PageText
from gpuplanner.report.service_schedule_files import make_service_bundle
from gpuplanner.report.slurm_files import read_gres_types
from gpuplanner.usage.study_fleet import is_catalogue_model

BUNDLE_FOLDER_MARK = FolderMark(MANIFEST, "gpuplanner export 1")
"""Recognizes a folder of change bundles, which a new bundle may replace."""
BUNDLE_FOLDER = "export"
"""Subfolder for the change bundle in the folder of a report or of `gpuplanner start`."""


def emptying_times(scenario: Scenario, nodes: Sequence[str]) -> tuple[float, float] | None:
    """Estimate how long nodes take to drain: at each hour of the record, the time until their last running job ends.

    Returns
    -------
    tuple of float or None
        Median and p95 [s]; None if no job is known on the nodes.
    """
    file = data_folder(scenario.data) / "jobs.parquet"
    if not nodes or not file.exists():
        return None
    jobs = pl.read_parquet(file, columns=["node_list", "start_time", "end_time"]).drop_nulls()
    lists, wanted = jobs["node_list"].unique(), set(nodes)
    node_lists = [text for text in lists if not wanted.isdisjoint(try_expand_node_list(text) or ())]
    starts = jobs.filter(pl.col("node_list").is_in(node_lists)).sort("start_time").set_sorted("start_time")
    if starts.is_empty():
        return None
    ends = starts.select("start_time", last=pl.col("end_time").cum_max())
    hours = ends.select(pl.datetime_range(pl.col("start_time").min(), pl.col("start_time").max(), "1h"))
    remaining_s = (pl.col("last") - pl.col("start_time")).dt.total_seconds().clip(0)
    waits = hours.join_asof(ends, on="start_time").select(remaining_s).to_series()
    return float(waits.quantile(0.5) or 0), float(waits.quantile(0.95) or 0)


def make_decision_bundle(scenario: Scenario, comparison: Comparison, *, gres_type: str | None = None) -> Bundle | None:
    """Make the change bundle for the decision of a policy comparison; None if there is nothing to apply."""
    rules, decision = comparison.rules, comparison.decision
    services = plan_inference_services(scenario)
    if rules is None or not decision.has_changes:
        return make_service_bundle(services, scenario.tz)
    load_model = load_any_gpu_model if is_catalogue_model(rules.gpu_model) else make_non_mig_model
    gpu_model = load_model(rules.gpu_model)
    # Beside the DRA driver, the MIG manager sets fixed layouts, node by node.
    repartitioned = scenario.but(actuator="mig-manager") if rules.actuator == "dra" else scenario
    change = find_change_cost(repartitioned, gpu_model)
    returned = rules.returned or decision.financial_impact.ownership == OWNERSHIP_RENTED
    rules = replace(rules, returned=returned, quotas=tuple(_read_quotas(scenario, gpu_model, decision.measures)))
    drain, emptying, changed = make_drain_rule(repartitioned, change), "", rules.layout_plan().filter("changed")["node"]
    emptied = sorted({*changed, *rules.released})
    emptying_s = emptying_times(scenario, emptied)
    if emptying_s is not None and drain.scope == "node":
        median, p95 = (wait_text(seconds / SECONDS_PER_MINUTE) for seconds in emptying_s)
        emptying = f"the last job on {format_node_list(emptied)} would have ended after {median} (median), {p95} (p95)"
        if drain.limit_s == change.drain_s.high:  # no maintenance window limits it
            hours_s = math.ceil(emptying_s[1] / SECONDS_PER_HOUR) * SECONDS_PER_HOUR
            drain = replace(drain, limit_s=max(drain.limit_s, hours_s))
    gres_types = gres_type or (read_gres_types(scenario.data, gpu_model) if rules.actuator == "slurm" else None)
    risk = format_resampled_waits(decision) if any(size.rises_if_resampled for size in decision.service) else ""
    ticket = tuple(_ticket_lines(decision, risk, scenario.approved_by))
    new_pools = tuple(PoolRule("to buy", layouts, count) for layouts, count in decision.nodes_to_buy.items())
    page_words = PageText(
        decision.sentence, POLICIES[decision.policy].meaning, ticket, tuple(_describe_measures(decision)),
        f"gpuplanner export {scenario.data} --actuator {rules.actuator}",
        str(scenario.data), emptying, risk, find_actuator_mismatch(scenario), new_pools,
    )  # fmt: skip
    return make_bundle(rules, page_words, change, drain, gres_type=gres_types, services=services, zone=scenario.tz)


def find_actuator_mismatch(scenario: Scenario) -> str:
    """Return the error that ``start`` shows for an actuator of another scheduler than that of the data; else empty."""
    try:
        facts = read_metadata(data_folder(scenario.data)).source_facts
        resolve_actuator(facts.source, scenario.actuator, find_usual_actuator(facts)[0])
    except ScenarioError as error:
        return str(error)
    return ""


def write_bundle_into(scenario: Scenario, comparison: Comparison, folder: Path) -> None:
    """Write the change bundle into the subfolder ``export`` of a report folder."""
    bundle = make_decision_bundle(scenario, comparison)
    if bundle is not None:
        bundle.write(folder / BUNDLE_FOLDER)


def load_matching_study(folder: Path) -> Study | None:
    """Load the study that an earlier command saved in a folder; None if version or inputs have changed."""
    with contextlib.suppress(OSError, GpuPlannerError):
        study = open_study(folder)
        scenario = study.scenario
        inputs = input_hashes(scenario.data, *(getattr(scenario, name) for name in FILE_PATH_FIELDS))
        if (study.provenance.gpuplanner, study.provenance.inputs) == (__version__, inputs):
            return study
    return None


def export_decision(
    scenario: Scenario, out: str | Path, *, gres_type: str | None = None, kept_study: Study | None = None
) -> tuple[list[Path], tuple[str, ...]]:
    """Write the change bundle of a scenario.

    Parameters
    ----------
    scenario : Scenario
        Scenario to export.
    out : str or Path
        Folder that is replaced.
    gres_type : str, optional
        GRES type of a full GPU in Slurm.
    kept_study : Study, optional
        Study to use if it has the same scenario; otherwise the simulation on disk is used, or run.

    Returns
    -------
    tuple of list of Path and tuple of str
        Files, and warnings about what is missing.

    Raises
    ------
    ScenarioError
        If there is no decision to export.
    """
    # No project changes a file, but README.md states the cost at the scenario's prices, as the report does.
    is_kept = kept_study is not None and kept_study.scenario == scenario
    comparison = kept_study.comparison if kept_study is not None and is_kept else study_comparison(scenario)
    bundle = make_decision_bundle(scenario, comparison, gres_type=gres_type)
    if bundle is None:
        got = f"nothing to apply: {comparison.decision.sentence.rstrip('.')}"
        raise ScenarioError(
            f"export of {scenario.name}", "a decision that changes the fleet", got, "No file is needed."
        )
    with replace_directory(out, mark=BUNDLE_FOLDER_MARK) as folder:
        bundle.write(folder)
    return list_written_files(out), tuple(filter(None, (find_actuator_mismatch(scenario), *bundle.warnings)))


def list_written_files(folder: str | Path) -> list[Path]:
    """List all files of a folder that was just written, checksums and manifest included."""
    return sorted(path for path in Path(folder).rglob("*") if path.is_file())


def write_handover_folder(scenario: Scenario, comparison: Comparison, out: str | Path) -> Path:
    """Write the change bundle of a comparison and a workbook of its figures into a folder.

    The button of the what-if panel does the same: ``write_handover_folder(scenario, found, "build/export")``.

    Parameters
    ----------
    scenario : Scenario
        Scenario of the comparison.
    comparison : Comparison
        Comparison with its decision.
    out : str or Path
        Folder that is replaced.

    Returns
    -------
    Path
        README of the bundle, or the workbook if there is no bundle.
    """
    from gpuplanner.report.focus_files_and_workbooks import write_workbook

    bundle = make_decision_bundle(scenario, comparison)
    tables = {"Policies": make_policy_table(comparison), "Waits": make_wait_table(comparison)}
    tables["Wait curve"] = make_wait_curve_table(comparison)
    notes = {"Decision": comparison.decision.sentence, "Confidence": " ".join(comparison.decision.confidence)}
    title, locale = scenario.name, scenario.number_locale
    with replace_directory(out, mark=BUNDLE_FOLDER_MARK) as folder:
        if bundle is not None:
            bundle.write(folder)
        write_workbook(folder / "workbook.xlsx", tables, title=title, notes=notes, locale=locale)
    return Path(out) / (README_FILE if bundle is not None else "workbook.xlsx")


def _read_quotas(scenario: Scenario, gpu_model: GpuModel, measures: Sequence[Measure] = ()) -> Iterator[TenantQuota]:
    """Read the quotas of teams for a GPU model; flavors of other GPU models are left out.

    Where one of the measures raises limits, there are none: the recorded quotas would take the raised ones back.
    """
    file = data_folder(scenario.data) / "queue_quotas.parquet"
    if not file.exists() or any(measure.action == "raise_limit" for measure in measures):
        return
    table = read_table(file, QueueQuotas)
    share = pl.col("profile").map_elements(gpu_model.gpu_fraction, return_dtype=pl.Float64).fill_null(1.0)
    gpus = {name: (pl.col(name) * share).sum() for name in ("nominal", "borrow", "lend")}
    model_quotas = table.filter(pl.col("gpu_model").fill_null(gpu_model.name) == gpu_model.name)
    # A team without a limit in one flavor has no limit at all.
    is_unlimited = {name: pl.col(name).is_null().any() for name in ("borrow", "lend")}
    limits = (pl.when(none).then(None).otherwise(gpus[name]).alias(name) for name, none in is_unlimited.items())
    labels = pl.col("cohort", "namespaces").first()
    rows = model_quotas.group_by("tenant", maintain_order=True).agg(gpus["nominal"], *limits, labels)
    for tenant, nominal, borrow, lend, cohort, namespaces in rows.iter_rows():
        names = tuple(namespaces.split(",")) if namespaces else ()
        yield TenantQuota(tenant, nominal, cohort, borrow, lend, names)


def _ticket_lines(decision: Decision, risk: str, approved_by: str | None) -> Iterator[str]:
    """Yield the lines of a change ticket: reason, effect on waits, confidence without `risk`, cost, approval."""
    improved, observed_text = decision.most_improved_size, decision.demand_text or "observed"
    if missed := [size.size for size in decision.service if not size.is_no_worse]:
        late = f"jobs on {', '.join(missed)} wait longer than their limit and than today"
        yield f"Not recommended: on {decision.gpus:,} GPUs, as stated, {late}. Apply it only if this is accepted."
    elif decision.action == "release" and improved is not None:
        yield (
            f"Reason: on {decision.gpus:,} of {decision.fleet_gpus:,} GPUs the p95 queue wait of each job size is "
            "within its limit, or no longer than today."
        )
    elif improved is not None:
        observed, today = wait_text(improved.observed_p95_minutes), wait_text(improved.today_p95_minutes)
        yield (
            f"Reason: p95 queue wait on {improved.size} {observed} {observed_text}; in simulation {today} today and "
            f"{wait_text(improved.recommended_p95_minutes)} after the change."
        )
    slower_sizes = [size for size in decision.service if size.added_p95_minutes > WAIT_TOLERANCE_MINUTES]
    for size in slower_sizes:
        yield (
            f"Jobs on {size.size} wait longer: p95 queue wait {wait_text(size.recommended_p95_minutes)}, today "
            f"{wait_text(size.today_p95_minutes)}."
        )
    if decision.measures and decision.measures[-1].action in IDLE_ACTIONS:
        yield "Jobs that find no node powered on wait until one is up."
    elif not slower_sizes and decision.service:
        order = ", if the actions take effect in this order" if len(decision.measures) > 1 else ""
        rises = [
            f"{size.size} ({size.today_mean_minutes:.1f} → {size.recommended_mean_minutes:.1f} min)"
            for size in decision.service
            if size.recommended_mean_minutes - size.today_mean_minutes >= 0.1
        ]
        rise = f" The mean queue wait rises on {', '.join(rises)}." if rises else ""
        yield f"In the recorded period, no job size waits longer at p95 after the change{order}.{rise}"
    if any(measure.action == "buy" for measure in decision.measures):
        yield f"Purchase lead time {decision.purchase_lead_days} days; until then queue waits stay as they are today."
    if sentences := [sentence for sentence in decision.confidence if sentence != risk]:
        yield "\n  - ".join(("Confidence:", *sentences))
    yield f"Cost: {decision.financial_impact.basis.splitlines()[0].removeprefix('Spend ')}"
    # Only letters, digits and spaces of a name, so that it never becomes markup.
    name = re.sub(r"[^\w .,@()-]", "", approved_by or "").strip()
    yield f"Approved by: {name or '____'}"


def _describe_measures(decision: Decision) -> Iterator[MeasureText]:
    """Yield the measures in order, each with the condition that must hold before it."""
    latest = decision.longest_waiting
    check_command = decision.next_steps[-1].command if decision.next_steps else None
    for number, measure in enumerate(decision.measures):
        condition = f"Only once action {number} is in effect." if measure.condition else ""
        if measure.condition and latest and decision.measures[number - 1].action in WAIT_REDUCING_ACTIONS:
            condition = (
                f"Only once action {number} is in effect and has shortened waits: p95 queue wait on {latest.size} "
                f"{wait_text(latest.today_p95_minutes)} today, {wait_text(latest.recommended_p95_minutes)} simulated "
                f"with all actions. After a week, export the jobs again and check with `{check_command}`: "
                f"without action {number}, jobs wait longer."
            )
        steps = [
            (step.what, step.command)
            for step in decision.next_steps
            if step.action == measure.action and not (step.command or "").startswith("gpuplanner rightsize")
        ]  # requests are switched after the nodes are verified
        yield MeasureText(measure.action, measure.text, condition, steps)
