"""Files of a layout schedule with its timer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import FunctionType
from typing import Any

from gpuplanner.core.errors import GeometryError, GpuPlannerError, OutputError, ScenarioError, resolve_name
from gpuplanner.core.execution import EXPORTER_ENTRY_POINT_GROUP, load_plugins
from gpuplanner.core.output_writing import escape_formulas, replace_directory
from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.layout_planning import NODES_ADVICE, PlannedProblem
from gpuplanner.decision.plan_rehearsal import make_drain_rule, rehearse_layout_changes
from gpuplanner.planner.layout_plan import Plan
from gpuplanner.planner.numbered_gpus import assign, initial_gpu_layouts
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.report.bundle_files import (
    CONFIG_MAP,
    NAMESPACE,
    POLICY_STEP,
    Pack,
    Step,
    change_index,
    filled,
    to_index_text,
)
from gpuplanner.report.change_bundle import MARK, PAGE, page_tables
from gpuplanner.report.export_verification import states_layouts, verify_file
from gpuplanner.report.finance_exports import FOCUS_TIME, write_workbook
from gpuplanner.report.handover_verification import MADE_ELSEWHERE, read_plan
from gpuplanner.report.mig_manager_files import to_change_scripts, to_config_map, to_mig_parted
from gpuplanner.report.slurm_files import to_slurm, to_slurm_files
from gpuplanner.simulator.scheduling_rules import Drain

FORMATS = ("mig-parted", "configmap", "runbook", "slurm", "all")
TIMER = ("timer.sh", "timer.service", "timer.timer", "timer.yaml")
"""The script that is run to put a timer in place, and what it puts there; the last is for Kubernetes."""
FOLDER, IMAGE = "FOLDER", "IMAGE"
"""What stands for the place of the pack and for an image until the timer is put in place."""


def export_plan(
    path: str | Path,
    out: str | Path,
    *,
    formats: str = "all",
    at: datetime | None = None,
    gres_type: str | None = None,
    scenario: Scenario | None = None,
) -> list[Path]:
    """Write a plan as the files that operators apply.

    Parameters
    ----------
    path : str or Path
        plan.json.
    out : str or Path
        Folder to put in place; what stood there stays if anything fails.
    formats : str
        One of :data:`FORMATS`, or the name of an exporter of another installed package.
    at : datetime, optional
        Only the layouts in force at that instant; default: the whole calendar.
    gres_type : str, optional
        Slurm's type of a whole GPU; default: what slurmd finds for the board.
    scenario : Scenario, optional
        What the plan was made of: says how changes are made, and rehearses them for the index.

    Returns
    -------
    list of Path
        The files, sorted.

    Raises
    ------
    ScenarioError
        If there is no such format, or nothing to apply.
    OutputError
        If a file does not hold when it is read back, or cannot be written.
    """
    plan, problem = read_plan(path)
    pack = calendar_pack(plan, problem, formats=formats, at=at, gres_type=gres_type, scenario=scenario)
    with replace_directory(out, mark=MARK, inputs=[path]) as folder:
        pack.write(folder)
        _check_layouts(folder, problem)
    return [Path(out) / name for name in sorted(pack.files)]


def calendar_pack(
    plan: Plan,
    problem: PlanProblem,
    *,
    formats: str = "all",
    at: datetime | None = None,
    gres_type: str | None = None,
    scenario: Scenario | None = None,
) -> Pack:
    """The files of a planned calendar, a folder for each path; parameters as for :func:`export_plan`.

    What names of nodes cannot enter is left out with a warning, unless it is all that was asked for.
    """
    others = load_plugins(EXPORTER_ENTRY_POINT_GROUP, FunctionType, frozenset(FORMATS))
    formats = resolve_name(formats, (*FORMATS, *others), subject="format", error=ScenarioError)
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
    known: dict[str, Any] = {"change": problem.change, "drain": drain, "initial": initial}
    wanted = FORMATS[:-1] if formats == "all" else (formats,)
    pack = Pack()
    if "mig-parted" in wanted:
        step = Step("mig-parted/mig-parted.yaml", "MIG configurations for mig-parted")
        pack.add(to_mig_parted(layouts, gpu_model, at=at), step)
    if "configmap" in wanted:
        step = Step.manifest("mig-manager/configmap.yaml", "the same as a ConfigMap for the MIG manager")
        pack.add(to_config_map(layouts, gpu_model, at=at), step)
    if "runbook" in wanted:
        try:
            scripts = to_change_scripts(layouts, gpu_model, **known)
        except GeometryError as error:
            if formats == "runbook":
                raise
            scripts = {}
            pack.warnings.append(f"the scripts for Kubernetes are left out: {error}")
        if scripts and drain.scope == "node":
            known_to_it = {"CONFIG_MAP": CONFIG_MAP, "NAMESPACE": NAMESPACE}
            # policy.sh creates the ConfigMap, with the configurations that are in it already.
            pack.steps = [replace(step, do="", undo="") for step in pack.steps]
            pack.add(filled("policy.sh", known_to_it), Step.script("mig-manager/policy.sh", POLICY_STEP))
        _add_scripts(pack, "nvidia-smi" if drain.scope == "gpu" else "mig-manager", scripts, drain)
    if "slurm" in wanted:
        if at is None:
            lines = to_slurm_files(layouts, gpu_model, gres_type=gres_type, **known)
        else:
            lines = {"slurm.conf": to_slurm(layouts, gpu_model, at, gres_type=gres_type)}
        pack.files |= {f"slurm/{name}": text for name, text in lines.items()}
        scripts = {name: text for name, text in lines.items() if name.startswith("change-")}
        _add_scripts(pack, "slurm", scripts, drain)
    if at is None and {"runbook", "slurm"} & set(wanted):
        rehearsed = None if scenario is None else rehearse_layout_changes(scenario, layouts, problem)
        index = change_index(layouts, gpu_model, **known, expected=rehearsed)
        pack.files["changes.csv"] = escape_formulas(index, FOCUS_TIME).write_csv()
        pack.add(to_index_text(index, gpu_model, problem.change), Step("changes.md", "all changes by time"))
    for name in others if formats == "all" else others.keys() & {formats}:
        for file, text in others[name](layouts, gpu_model).items():
            pack.add(
                text, Step(f"{MADE_ELSEWHERE}/{name}/{Path(file).name}", "written by another package, not checked")
            )
    pack.files[PAGE] = filled("calendar/page.md", {"GPU_MODEL": gpu_model.name, **page_tables(pack)})
    return pack


def hand_over_plan(planned: PlannedProblem, out: str | Path, *, scenario: Scenario | None = None) -> Path:
    """Write the pack of a plan that is at hand, and a workbook of it, into a folder: its README.

    It is what the button of the notebook of layouts does: ``hand_over_plan(free, "build/plan", scenario=scenario)``.
    """
    problem, cuts = planned.problem, planned.layout_plan
    pack = calendar_pack(planned.plan, problem, scenario=scenario)
    tables = {
        "Layout plan": cuts,
        "Layout changes": change_index(cuts, problem.gpu_model, initial=initial_gpu_layouts(planned.plan, problem)),
    }
    notes = {"Cost": f"{planned.plan.objective:.6g} GPU-hours; lower bound {planned.plan.bound:.6g}"}
    with replace_directory(out, mark=MARK) as folder:
        pack.write(folder)
        _check_layouts(folder, problem)
        write_workbook(folder / "workbook.xlsx", tables, title=f"Layouts of {problem.gpu_model.name}", notes=notes)
    return Path(out) / PAGE


def _add_scripts(pack: Pack, path: str, scripts: Mapping[str, str], drain: Drain) -> None:
    """The scripts of a calendar, and the timer that finds out which of them is due."""
    if not scripts:
        return
    pack.files |= {f"{path}/{name}": text for name, text in scripts.items()}
    pack.steps.append(Step(f"{path}/change-*.sh", "one layout change each"))
    known = {"ACTUATOR": path, "NAMESPACE": NAMESPACE, "AHEAD_S": f"{drain.ahead_s:.0f}"}
    known |= {"FOLDER": FOLDER, "IMAGE": IMAGE}
    kept = {name: filled(f"calendar/{name}", known) for name in TIMER if path == "mig-manager" or name != "timer.yaml"}
    pack.files |= {f"{path}/{name}": text for name, text in kept.items()}
    what = ", ".join(f"`{name}`" for name in list(kept)[1:])
    pack.steps.append(Step.script(f"{path}/timer.sh", f"runs them at their planned times; uses {what}"))


def _check_layouts(folder: Path, problem: PlanProblem) -> None:
    """Check every file that states layouts; raise where one does not hold."""
    for path in sorted(folder.rglob("*")):
        if path.is_dir() or path.name == PAGE or MADE_ELSEWHERE in path.relative_to(folder).parts:
            continue
        if not states_layouts(path.read_text(encoding="utf-8")):
            continue
        try:
            report = verify_file(path, problem.gpu_model, gpus_per_node=problem.gpus_per_node)
        except GpuPlannerError as error:
            raise OutputError(f"Fix {path.name}: it cannot be read back: {error}") from error
        if not report.ok:
            expected = "an export that holds when it is read back"
            todo = "Report it."
            raise OutputError(path.name, expected, "; ".join(report.problems[:5]), todo)
