"""Export of a planned layout calendar: files by actuator, and a timer that runs the changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import FunctionType
from typing import Any

from gpuplanner.core.errors import GeometryError, GpuPlannerError, OutputError, ScenarioError, resolve_name
from gpuplanner.core.libraries_plugins_and_workers import EXPORTER_ENTRY_POINT_GROUP, load_plugins
from gpuplanner.core.output_writing import escape_formulas, replace_directory
from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.layout_planning import NODES_ADVICE, PlannedProblem
from gpuplanner.decision.plan_rehearsal import make_drain_rule, rehearse_layout_changes
from gpuplanner.planner.layout_plan import Plan
from gpuplanner.planner.numbered_gpus import assign, initial_gpu_layouts
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.report.bundle_export import BUNDLE_FOLDER_MARK, list_written_files
from gpuplanner.report.change_bundle import README_FILE, step_tables
from gpuplanner.report.change_bundle_parts import (
    CLUSTER_POLICY_PURPOSE,
    GPU_OPERATOR_NAMESPACE,
    MIG_CONFIG_MAP_NAME,
    Bundle,
    FileStep,
    change_index,
    fill_template,
    to_index_text,
)
from gpuplanner.report.export_verification import looks_like_layout_file, verify_file
from gpuplanner.report.focus_files_and_workbooks import FOCUS_TIME_FORMAT, write_workbook
from gpuplanner.report.mig_manager_files import to_change_scripts, to_config_map, to_mig_parted
from gpuplanner.report.plan_and_bundle_verification import UNCHECKED_FOLDER, read_plan
from gpuplanner.report.slurm_files import to_slurm, to_slurm_files
from gpuplanner.simulator.scheduling_rules import Drain
from gpuplanner.usage.planning_history import history

FORMATS = ("mig-parted", "configmap", "runbook", "slurm", "all")
"""Formats that ``export --to`` accepts for the plan of layouts."""
TIMER_FILES = ("timer.sh", "timer.service", "timer.timer", "timer.yaml")
"""Files of the timer that runs change scripts: the script that installs it, two systemd units, and a Kubernetes
manifest."""
FOLDER_PLACEHOLDER = "FOLDER"
"""Word for the bundle's folder in the timer files, replaced when the timer is installed."""
IMAGE_PLACEHOLDER = "IMAGE"
"""Word for the container image in the timer files, replaced when the timer is installed."""


def export_plan(
    path: str | Path, out: str | Path, *, formats: str = "all", at: datetime | None = None,
    gres_type: str | None = None, scenario: Scenario | None = None,
) -> list[Path]:  # fmt: skip
    """Write a plan as the files that operators apply.

    Parameters
    ----------
    path : str or Path
        plan.json.
    out : str or Path
        Folder that is replaced; the earlier one stays if anything fails.
    formats : str
        One of :data:`FORMATS`, or the name of an exporter of another installed package.
    at : datetime, optional
        Export only the layouts at this time; default: the whole calendar.
    gres_type : str, optional
        GRES type of a full GPU in Slurm; default: what slurmd detects for the GPU model.
    scenario : Scenario, optional
        Scenario of the plan: its drain rules, and the jobs with which the drain before each change is simulated.

    Returns
    -------
    list of Path
        The files, sorted.

    Raises
    ------
    ScenarioError
        If the format is unknown, or there is nothing to apply.
    OutputError
        If a written file fails its verification, or cannot be written.
    """
    plan, problem = read_plan(path)
    bundle = make_calendar_bundle(plan, problem, formats=formats, at=at, gres_type=gres_type, scenario=scenario)
    with replace_directory(out, mark=BUNDLE_FOLDER_MARK, inputs=[path]) as folder:
        bundle.write(folder)
        _check_layouts(folder, problem)
    return list_written_files(out)


def make_calendar_bundle(
    plan: Plan, problem: PlanProblem, *, formats: str = "all", at: datetime | None = None, gres_type: str | None = None,
    scenario: Scenario | None = None, rehearse: bool = True,
) -> Bundle:  # fmt: skip
    """Make the files of a planned calendar, one folder for each actuator.

    Files that need node names are left out with a warning if nodes have none, unless they are the only format
    requested.

    Parameters
    ----------
    plan : Plan
        Plan with layouts by interval.
    problem : PlanProblem
        Problem that it solves.
    formats, at, gres_type, scenario
        As for :func:`export_plan`.
    rehearse : bool
        Simulate the changes with the jobs of the scenario; its fleet must be that of the problem.

    Returns
    -------
    Bundle
        Files and steps.
    """
    plugin_exporters = load_plugins(EXPORTER_ENTRY_POINT_GROUP, FunctionType, frozenset(FORMATS))
    formats = resolve_name(formats, (*FORMATS, *plugin_exporters), subject="format", error=ScenarioError)
    gpu_model = problem.gpu_model
    if not gpu_model.profiles:
        expected = "a plan for a GPU model with MIG"
        got = "full GPUs, powered up and down"
        todo = "Plan for a GPU model with MIG: add --gpu-model."
        raise ScenarioError(f"export of a plan for {gpu_model.name}", expected, got, todo)
    if problem.nodes is None:
        got = "a plan of nodes without names"
        raise ScenarioError("export", "a plan that names its nodes", got, NODES_ADVICE)
    layouts, initial = assign(plan.require(), problem), initial_gpu_layouts(plan, problem)
    drain = make_drain_rule(scenario or Scenario(actuator=problem.change.actuator), problem.change)
    change_arguments: dict[str, Any] = {"change": problem.change, "drain": drain, "initial": initial}
    chosen_formats = FORMATS[:-1] if formats == "all" else (formats,)
    bundle = Bundle()
    if "mig-parted" in chosen_formats:
        step = FileStep("mig-parted/mig-parted.yaml", "MIG configurations for mig-parted")
        bundle.add(to_mig_parted(layouts, gpu_model, at=at), step)
    if "configmap" in chosen_formats:
        step = FileStep.manifest("mig-manager/configmap.yaml", "the same as a ConfigMap for the MIG manager")
        bundle.add(to_config_map(layouts, gpu_model, at=at), step)
    if "runbook" in chosen_formats:
        try:
            scripts = to_change_scripts(layouts, gpu_model, **change_arguments)
        except GeometryError as error:
            if formats == "runbook":
                raise
            scripts = {}
            bundle.warnings.append(f"the scripts for Kubernetes are left out: {error}")
        if scripts and drain.scope == "node":
            policy_values = {"CONFIG_MAP": MIG_CONFIG_MAP_NAME, "NAMESPACE": GPU_OPERATOR_NAMESPACE}
            # policy.sh creates the ConfigMap, with the configurations that are in it already.
            bundle.steps = [replace(step, do="", check="", undo="") for step in bundle.steps]
            bundle.add(
                fill_template("policy.sh", policy_values),
                FileStep.script("mig-manager/policy.sh", CLUSTER_POLICY_PURPOSE),
            )
        _add_scripts(bundle, "nvidia-smi" if drain.scope == "gpu" else "mig-manager", scripts, drain)
    if "slurm" in chosen_formats:
        if at is None:
            lines = to_slurm_files(layouts, gpu_model, gres_type=gres_type, **change_arguments)
        else:
            lines = {"slurm.conf": to_slurm(layouts, gpu_model, at, gres_type=gres_type)}
        bundle.files |= {f"slurm/{name}": text for name, text in lines.items()}
        scripts = {name: text for name, text in lines.items() if name.startswith("change-")}
        _add_scripts(bundle, "slurm", scripts, drain)
    if at is None and {"runbook", "slurm"} & set(chosen_formats):
        rehearsed = rehearse_layout_changes(scenario, layouts, problem) if scenario is not None and rehearse else None
        index = change_index(layouts, gpu_model, **change_arguments, expected=rehearsed)
        bundle.files["changes.csv"] = escape_formulas(index, FOCUS_TIME_FORMAT).write_csv()
        bundle.add(to_index_text(index, gpu_model, problem.change), FileStep("changes.md", "all changes by time"))
    for name in plugin_exporters if formats == "all" else plugin_exporters.keys() & {formats}:
        for file, text in plugin_exporters[name](layouts, gpu_model).items():
            file_path = f"{UNCHECKED_FOLDER}/{name}/{Path(file).name}"
            bundle.add(text, FileStep(file_path, "written by another package, not checked"))
    peaks = dict(zip(plan.layouts, plan.counts.max(axis=0).tolist(), strict=True))
    shown = ", ".join(f"{gpus} × {layout}" for layout, gpus in sorted(peaks.items()) if gpus)
    facts = {"GPU_MODEL": gpu_model.name, "GPUS": f"{problem.gpus:,}"}
    facts["PLAN"] = (
        f"{problem.n_slots:,} intervals of {problem.interval_hours:g} h from {problem.slot_start:%Y-%m-%d %H:%M} UTC, "
        f"{plan.changes:,} layout changes, cost {plan.objective:,.1f} GPU-hours. Most GPUs with each layout: {shown}."
        f"{'' if rehearse else ' The fleet differs from that of the data, so the changes are not rehearsed.'}"
    )
    steps = [_name_actuator(step) for step in bundle.steps]
    bundle.files[README_FILE] = fill_template("calendar/page.md", facts | step_tables(replace(bundle, steps=steps)))
    return bundle


def _name_actuator(step: FileStep) -> FileStep:
    """Begin the commands of a step with its actuator, the folder of its file: a README block for each."""
    heading, verbs = f"# With `{step.file.partition('/')[0]}`:\n", ("do", "check", "undo")
    return replace(step, **{verb: heading + getattr(step, verb) for verb in verbs if getattr(step, verb)})


def write_plan_handover(planned: PlannedProblem, out: str | Path, *, scenario: Scenario | None = None) -> Path:
    """Write the bundle of a plan and a workbook of its layouts into a folder.

    The button of the notebook of layouts does the same: ``write_plan_handover(free, "build/plan", scenario=scenario)``.

    Parameters
    ----------
    planned : PlannedProblem
        Plan with its problem.
    out : str or Path
        Folder that is replaced.
    scenario : Scenario, optional
        Scenario of the plan.

    Returns
    -------
    Path
        README of the bundle.
    """
    problem, layout_plan = planned.problem, planned.layout_plan
    rehearse = scenario is None or history(scenario).fleet.gpus == problem.gpus
    bundle = make_calendar_bundle(planned.plan, problem, scenario=scenario, rehearse=rehearse)
    initial = initial_gpu_layouts(planned.plan, problem)
    changes = change_index(layout_plan, problem.gpu_model, initial=initial)
    tables = {"Layout plan": layout_plan, "Layout changes": changes}
    notes = {"Cost": f"{planned.plan.objective:.6g} GPU-hours; lower bound {planned.plan.bound:.6g}"}
    with replace_directory(out, mark=BUNDLE_FOLDER_MARK) as folder:
        bundle.write(folder)
        _check_layouts(folder, problem)
        write_workbook(folder / "workbook.xlsx", tables, title=f"Layouts of {problem.gpu_model.name}", notes=notes)
    return Path(out) / README_FILE


def _add_scripts(bundle: Bundle, actuator: str, scripts: Mapping[str, str], drain: Drain) -> None:
    """Add the change scripts of an actuator by file name, and the timer that runs each at its planned time."""
    if not scripts:
        return
    bundle.files |= {f"{actuator}/{name}": text for name, text in scripts.items()}
    bundle.steps.append(FileStep(f"{actuator}/change-*.sh", "one layout change each"))
    timer_values = {"ACTUATOR": actuator, "NAMESPACE": GPU_OPERATOR_NAMESPACE, "AHEAD_S": f"{drain.ahead_s:.0f}"}
    timer_values |= {"FOLDER": FOLDER_PLACEHOLDER, "IMAGE": IMAGE_PLACEHOLDER}
    names = [name for name in TIMER_FILES if actuator == "mig-manager" or name != "timer.yaml"]
    timer_texts = {name: fill_template(f"calendar/{name}", timer_values) for name in names}
    bundle.files |= {f"{actuator}/{name}": text for name, text in timer_texts.items()}
    file_names = ", ".join(f"`{name}`" for name in list(timer_texts)[1:])
    bundle.steps.append(FileStep.script(f"{actuator}/timer.sh", f"runs them at their planned times; uses {file_names}"))


def _check_layouts(folder: Path, problem: PlanProblem) -> None:
    """Verify every written file that states layouts; raise an error if one fails."""
    for path in sorted(folder.rglob("*")):
        if path.is_dir() or path.name == README_FILE or UNCHECKED_FOLDER in path.relative_to(folder).parts:
            continue
        if not looks_like_layout_file(path.read_text(encoding="utf-8")):
            continue
        try:
            report = verify_file(path, problem.gpu_model, gpus_per_node=problem.gpus_per_node)
        except GpuPlannerError as error:
            raise OutputError(f"Fix {path.name}: it cannot be read back: {error}") from error
        if not report.ok:
            expected = "an export that holds when it is read back"
            todo = "Report it."
            raise OutputError(path.name, expected, "; ".join(report.problems[:5]), todo)
