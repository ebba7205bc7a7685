"""The commands ``start``, ``notebook`` and ``compile``."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from gpuplanner.cli import start_dialog
from gpuplanner.cli.application import (
    GpuModels,
    Json,
    Overwrite,
    Quiet,
    ScenarioOptions,
    app,
    echo,
    exit_code_of,
    name_library,
    notify,
    parse_gpu_models,
    parse_pairs,
    scenario_beside,
    show,
    show_frame,
    with_fields,
)
from gpuplanner.cli.start_dialog import StartPrompt
from gpuplanner.core.errors import GpuPlannerError, ScenarioError, TraceFormatError
from gpuplanner.core.output_manifests_and_overwrite_checks import read_manifest, resolve_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuplanner.core.scenario import Scenario
    from gpuplanner.decision.comparison_record import Comparison
    from gpuplanner.decision.study_pipeline import DatasetSummary
    from gpuplanner.ingest.dataset_import import SourceFiles
    from gpuplanner.usage.planning_history import FleetPools


def are_several_datasets(files: Sequence[str]) -> bool:
    """Whether the arguments are several dataset folders, each of a cluster."""
    from gpuplanner.ingest.dataset_folder import DATASET_MARK

    return len(files) > 1 and all((Path(file) / DATASET_MARK.file).is_file() for file in files)


def start_pools(
    pools: FleetPools, scenarios: Sequence[Scenario], folder: Path, *, as_json: bool, verbose: bool, page: bool
) -> None:
    """Compare the policies of each GPU pool, print the decisions, and write a page for the fleet and each pool.

    Parameters
    ----------
    pools : FleetPools
        Scenario of each pool.
    scenarios : sequence of Scenario
        Scenario of each cluster.
    folder : Path
        Folder of the results.
    as_json, verbose : bool
        Print JSON; print progress and tables.
    page : bool
        Write the report page.
    """
    from gpuplanner.decision.comparison_record import compare_policies
    from gpuplanner.decision.gpu_model_decisions import ComparedFleet, make_decision_table
    from gpuplanner.decision.inference_answers import list_data_warnings

    progress = start_dialog.Progress(verbose=verbose)
    comparisons: dict[str, Comparison] = {}
    for name, pool_scenario in pools.pools.items():
        progress.show_step(f"comparing policies for {name}")
        comparisons[name] = compare_policies(pool_scenario)
    progress.clear()
    fleet = ComparedFleet(comparisons)
    data = {cluster_scenario.data: cluster_scenario for cluster_scenario in scenarios}
    warnings = [warning for dataset in data.values() for warning in list_data_warnings(dataset)]
    if not as_json:
        echo(fleet.decision_text)
    if verbose:
        start_dialog.print_warnings(warnings)
        show_frame(make_decision_table(fleet.decisions), title="Decision by GPU pool")
        for name, cluster_scenario in fleet.decisions.items():
            echo(f"\n{name}: {cluster_scenario.sentence}")
            for number, step in enumerate(cluster_scenario.next_steps, start=1):
                echo(f"  {number}  {step.text}")
    written, error = _write_results(
        folder,
        lambda: start_dialog.write_pools(pools, scenarios, folder),
        lambda: start_dialog.write_pools(pools, scenarios, folder, comparisons=comparisons),
        reason=None if page else "--no-page",
        verbose=verbose,
    )
    if as_json:
        show(fleet.to_dict() | {"warnings": warnings, "folder": str(folder)} | written, as_json=True)
    elif verbose and error is None:
        echo(f"\n{'Report':<11}{written['page'] or 'none: ' + str(written['page_reason'])}")
    _end_without_report(error, folder)


def start_services(scenario: Scenario, folder: Path, *, as_json: bool, verbose: bool, page: bool) -> None:
    """Plan inference services without a list of jobs, print the answers, and write schedules and a page.

    Parameters
    ----------
    scenario : Scenario
        Data with requests, and services.
    folder : Path
        Folder of the results.
    as_json, verbose : bool
        Print JSON; print progress and warnings.
    page : bool
        Write the page.
    """
    from gpuplanner.core.serialization import to_plain
    from gpuplanner.decision.inference_answers import answer_services, list_data_warnings

    answer, warnings = answer_services(scenario), list_data_warnings(scenario)
    if answer is None:
        got, todo = f"none for {scenario.gpu_model}", "Set gpu_model: of a service to it, or leave --gpu-model away."
        raise ScenarioError("start", "a service of this GPU model", got, todo)
    start_dialog.write_services(scenario, folder, answer, warnings, page=page)
    page_path = str(folder / "index.html") if page else None
    if as_json:
        results = {"warnings": warnings, "folder": str(folder), "page": page_path}
        show({"inference": to_plain(answer), **results}, as_json=True)
        return
    if verbose:
        start_dialog.print_warnings(warnings)
    start_dialog.print_services(answer)
    echo(f"\n{'Report':<11}{page_path or 'none: --no-page'}", f"{'Bundle':<11}{folder / 'export' / 'README.md'}")


def _describe_linked_files(folder: Path) -> str:
    """Name the files that the page of a report links, of which each may have been left out; empty without one."""
    files = {"workbook": "workbook.xlsx", "change bundle": "export/README.md", "notebook": "report.ipynb"}
    written = [name for name, file in files.items() if (folder / file).exists()]
    names = " and ".join(", ".join(written).rsplit(", ", 1))
    return f"    {names} {'are' if len(written) > 1 else 'is'} linked there" if written else ""


def _write_results(
    folder: Path, write_page: Callable[[], None], write_files: Callable[[], None], *, reason: str | None, verbose: bool
) -> tuple[dict[str, str | None], GpuPlannerError | None]:
    """Write the report page with its files; the files alone if no page is wanted or it fails.

    Parameters
    ----------
    folder : Path
        Folder of the results.
    write_page, write_files : callable
        Write all results, or all but the page.
    reason : str, optional
        Why no page is wanted; None: write one.
    verbose : bool
        Show the step while it runs.

    Returns
    -------
    dict of str to str or None
        ``page``, and ``page_reason`` where there is none.
    GpuPlannerError or None
        Why the page could not be written.
    """
    failure: GpuPlannerError | None = None
    if reason is None:
        progress = start_dialog.Progress(verbose=verbose)
        progress.show_step("writing the report")
        try:
            write_page()
        except (GpuPlannerError, ImportError) as error:
            failure = name_library(error)
            reason = str(failure)
        progress.clear()
        if failure is None:
            return {"page": str(folder / "index.html"), "page_reason": None}, None
    write_files()
    return {"page": None, "page_reason": reason}, failure


def _end_without_report(error: GpuPlannerError | None, folder: Path) -> None:
    """End the command with the exit code of the error that prevented the report; nothing without one."""
    if error is not None:
        notify(
            f"gpuplanner: no report: {error}",
            f"All other results are in {folder}. Fix the cause and start again; without the page: --no-page. If the "
            "cause is not in your data or installation, report this message as a bug.",
        )
        raise typer.Exit(exit_code_of(error))


SAMPLE_NAME = "sample"
"""Argument that stands for the bundled sample dataset."""
JSON_PARTS = ("decision", "waits", "wait_curve", "headroom", "growth_per_week", "exhaustion", "projects", "inference")
"""Keys of a comparison that ``start --json`` prints."""
NO_GPU_JOBS_PATTERN = re.compile(r"got (\d+) rows and none of them: requests no GPU in \1 row")
"""Text of the ingest error of files in which no job requests a GPU."""


@app.command()
@with_fields("tz", "actuator", "gpu_model", "month", "projects", "services", "target_wait_minutes")
def start(
    files: Annotated[
        list[str],
        Argument(
            metavar="FILE...",
            help="Output of sacct, scontrol, kubectl, DCGM or nvidia-smi, in any order; or a scenario, dataset folders "
            "(one for each cluster), or 'sample'.",
        ),
    ],
    *,
    options: ScenarioOptions,
    out: Annotated[
        Path | None,
        Option("-o", "--out", help="Output folder of data, scenario and report. [default: build/start-NAME]"),
    ] = None,
    gpu_models: GpuModels = None,
    yes: Annotated[bool, Option("--yes", help="Ask no questions; print the defaults that are used.")] = False,
    page: Annotated[bool, Option("--page/--no-page", help="Write the report page.")] = True,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Analyze a cluster's files end to end and recommend what to change.

    Where no file has the time zone, GPU model or ownership, it asks a question with a
    default. The output folder receives the data, scenario.yaml, the
    report (index.html) and the change bundle with its steps (export/README.md).

    Example: gpuplanner start jobs.txt nodes.txt -o build/mine
    """
    from gpuplanner.core.scenario import Scenario
    from gpuplanner.core.stage_cache_and_data_folders import data_folder
    from gpuplanner.decision.announced_projects import read_projects
    from gpuplanner.decision.comparison_record import compare_policies
    from gpuplanner.decision.decision_types import REASON_NO_JOB_LIST
    from gpuplanner.decision.inference_answers import list_data_warnings
    from gpuplanner.decision.inference_services import read_services
    from gpuplanner.decision.study_pipeline import build_empty_comparison
    from gpuplanner.ingest.dataset_folder import DATASET_MARK
    from gpuplanner.usage.planning_history import combine_clusters, split_into_pools

    verbose = not (quiet or as_json)
    stated = dict(options.fields)
    ScenarioOptions(stated).apply_to(Scenario())  # raises on a wrong value, naming its option, before the long steps
    for name, read_file in (("projects", read_projects), ("services", read_services)):
        if name in stated:
            read_file(stated[name])  # raises on a wrong file, before the long steps
            stated[name] = str(resolve_path(stated[name]))
    asker = StartPrompt.for_terminal(yes=yes, verbose=verbose)
    stated_options = ScenarioOptions(stated, options.assignments)
    models = parse_gpu_models(gpu_models)
    groups = [[file] for file in files] if are_several_datasets(files) else [files]
    prepared = [_prepare_scenario(group, out, asker, stated_options, models) for group in groups]
    scenario, folder, source, no_data_reason = prepared[0]
    usable_scenarios = [usable for usable, _, _, reason in prepared if reason is None]
    if len(prepared) == 1 and no_data_reason == REASON_NO_JOB_LIST:
        start_services(scenario, folder, as_json=as_json, verbose=verbose, page=page)
        return
    pools = combine_clusters(usable_scenarios) if len(prepared) > 1 else None
    if len(prepared) == 1 and no_data_reason is None:
        pools = split_into_pools(scenario)
    if pools is not None and pools.several:
        if len(prepared) > 1:
            folder = out or Path("build") / f"start-{'+'.join(file.name for file in usable_scenarios)}"
        start_pools(pools, usable_scenarios, folder, as_json=as_json, verbose=verbose, page=page)
        return
    if no_data_reason is None:
        progress = start_dialog.Progress(verbose=verbose)
        comparison = compare_policies(scenario, progress)
        progress.clear()
    else:
        comparison = build_empty_comparison(scenario, no_data_reason, source)
    # Without a dataset there is no quality report.
    is_dataset = (data_folder(scenario.data) / DATASET_MARK.file).is_file()
    warnings = list_data_warnings(scenario) if is_dataset else []
    if verbose:
        start_dialog.print_warnings(warnings)
        if no_data_reason is None:
            start_dialog.print_today(comparison)
            start_dialog.print_policies(comparison)
        start_dialog.print_decision(comparison, scenario.data, folder)
        start_dialog.print_projects(comparison.projects)
        start_dialog.print_services(comparison.inference)
    elif quiet and not as_json:
        echo("\n".join(start_dialog.split_sentences(comparison.decision)[:2]))
    written, error = _write_results(
        folder,
        lambda: start_dialog.write_page(scenario, folder),
        lambda: start_dialog.write_scenario_and_bundle(scenario, folder, comparison),
        reason=(None if no_data_reason is None else "no policy could be compared") if page else "--no-page",
        verbose=verbose,
    )
    if as_json:
        comparison_values = comparison.to_dict()
        answer = {name: comparison_values[name] for name in JSON_PARTS}
        show(answer | {"warnings": warnings, "folder": str(folder)} | written, as_json=True)
    elif verbose and error is None:
        from gpuplanner.report.bundle_export import make_decision_bundle

        bundle = make_decision_bundle(scenario, comparison)
        page_text = written["page"] or f"none: {written['page_reason']}"
        echo(f"\n{'Report':<11}{page_text}{_describe_linked_files(folder) if written['page'] else ''}")
        if comparison.rules is not None:
            by_hand = ", ".join(bundle.manual_measures).replace("_", " ") if bundle else ""
            note = f" (steps by hand: {by_hand})" if by_hand else ""
            bundle_text = f"{folder / 'export' / 'README.md'}{note}" if bundle else "none: there is nothing to apply"
            echo(f"{'Bundle':<11}{bundle_text}")
    _end_without_report(error, folder)


def _prepare_scenario(
    files: list[str], out: Path | None, prompt: StartPrompt, options: ScenarioOptions, models: dict[str, str] | None
) -> tuple[Scenario, Path, str, str | None]:
    """Import the files of a cluster if needed, and make its scenario from options, data and answers.

    Parameters
    ----------
    files : list of str
        Files of a cluster, or one dataset, scenario or ``sample``.
    out : Path, optional
        Folder of the results.
    prompt : StartPrompt
        Asks for what neither options nor data state.
    options : ScenarioOptions
        Fields of the scenario that options state.
    models : dict of str to str or None
        GPU model by its label in the files.

    Returns
    -------
    tuple of Scenario, Path, str, and str or None
        Scenario, folder of the results, source of the jobs, and why no policy can be simulated, if so.
    """
    from gpuplanner.core.scenario import Scenario
    from gpuplanner.core.stage_cache_and_data_folders import data_folder
    from gpuplanner.decision.decision_types import REASON_NO_GPU_REQUESTED, REASON_NO_JOB_LIST
    from gpuplanner.decision.inference_services import has_job_list
    from gpuplanner.decision.study_pipeline import read_usual_actuator, resolve_actuator, summarize_dataset
    from gpuplanner.ingest.dataset_folder import read_source_facts

    assignments, stated = options.assignments, dict(options.fields)
    tz, actuator = stated.pop("tz", None), stated.pop("actuator", None)
    known_fields = {text.partition("=")[0].strip() for text in assignments} | set(stated)
    parts: tuple[SourceFiles, ...] = ()
    month_zone, basis = tz, "as stated"
    base_scenario = find_scenario(files)
    if base_scenario is None:
        from gpuplanner.ingest.dataset_import import group_files_by_source

        parts = group_files_by_source(files)
        name = parts[0].files[0].name.partition(".")[0]
        folder = out or Path("build") / f"start-{name}"
        naive_zone, month_zone, basis = start_dialog.ask_time_zone(prompt, parts, tz)
        base_scenario = Scenario(name=name, data=str(resolve_path(folder / "data")))
        may_lack_jobs = "services" in stated
        if not _import_files(parts, folder / "data", {"tz": naive_zone, "boards": models}, may_lack_jobs):
            source = parts[0].source
            stated |= {"actuator": resolve_actuator(source, actuator), "tz": month_zone or base_scenario.tz}
            return replace(base_scenario, **stated).with_text(assignments), folder, source, REASON_NO_GPU_REQUESTED
    else:
        folder = out or _results_folder(base_scenario, files[0])
        unstated = Scenario(name=base_scenario.name, data=base_scenario.data)
        # The scenario of a dataset folder alone has the actuator by its data.
        actuator_of_data = read_usual_actuator(data_folder(base_scenario.data))
        if base_scenario not in (unstated, replace(unstated, actuator=actuator_of_data)):
            known_fields |= {"actuator", "ownership", "gpu_model", "tz"}
    scenario = replace(base_scenario, **stated).with_text(assignments)
    if scenario.services is not None and not has_job_list(scenario):
        zone = tz or (month_zone if parts else scenario.tz) or scenario.tz
        return replace(scenario, tz=zone), folder, "", REASON_NO_JOB_LIST
    data_beginning = summarize_dataset(base_scenario.data)
    if prompt.verbose:
        data_path = data_folder(base_scenario.data)
        rows = {source_facts.source: source_facts.rows_kept for source_facts in read_source_facts(data_path)}
        start_dialog.print_files_read(parts, data_beginning, rows, data_path)
    known_fields |= {text.partition("=")[0].strip() for text in assignments}
    if "tz" not in known_fields or tz is not None:
        if month_zone is None:
            month_zone, basis = data_beginning.time_zone or scenario.tz, "as the times were read (--tz)"
        scenario = replace(scenario, tz=month_zone)
        prompt.print_assumption("Time zone", scenario.tz, basis)
    if actuator is not None or "actuator" not in known_fields:
        scenario = replace(scenario, actuator=actuator or data_beginning.actuator)
    resolve_actuator(data_beginning.source, scenario.actuator, data_beginning.actuator)  # raises on another scheduler's
    is_option = actuator is not None or any(text.startswith("actuator") for text in assignments)
    is_stated_in_file = "actuator" in known_fields
    basis = f"from {start_dialog.SCENARIO_FILE}" if is_stated_in_file else data_beginning.actuator_basis
    prompt.print_assumption("Actuator", scenario.actuator, "as stated" if is_option else f"{basis} (--actuator)")
    if data_beginning.no_run_reason is not None:
        return scenario, folder, data_beginning.source, data_beginning.no_run_reason
    return _complete_scenario(scenario, data_beginning, prompt, known_fields), folder, data_beginning.source, None


def _complete_scenario(
    scenario: Scenario, summary: DatasetSummary, prompt: StartPrompt, known_fields: set[str]
) -> Scenario:
    """Set GPU model and ownership of a scenario from the data or from answers.

    Parameters
    ----------
    scenario : Scenario
        Scenario so far.
    summary : DatasetSummary
        What the data state.
    prompt : StartPrompt
        Asks for what is missing.
    known_fields : set of str
        Fields that options or a scenario file state.
    """
    from gpuplanner.usage.study_fleet import is_catalogue_model

    word = summary.gpu_models[0] if summary.gpu_models else None
    is_model_clear = len(summary.gpu_models) > 1 or (word is not None and is_catalogue_model(word))
    if scenario.gpu_model is None and not is_model_clear and "gpu_model" not in known_fields:
        scenario = replace(scenario, gpu_model=start_dialog.ask_gpu_model(prompt, word))
    if len(summary.gpu_models) > 1:
        from gpuplanner.usage.planning_history import history, split_into_pools

        fleet = history(scenario).fleet
        if split_into_pools(scenario).several:
            basis = "each is its own pool (--gpu-model for one alone)"
            prompt.print_assumption("GPU models", fleet.installed.models_text, basis)
        else:
            prompt.print_assumption("GPU model", fleet.name or "none", next(iter(fleet.remarks()), ""))
    if scenario.ownership is None and "ownership" not in known_fields:
        if summary.ownership is not None:
            prompt.print_assumption("Ownership", summary.ownership, "from the inventory (--set ownership=…)")
        else:
            scenario = replace(scenario, ownership=start_dialog.ask_ownership(prompt, scenario.actuator))
    return scenario


def find_scenario(files: list[str]) -> Scenario | None:
    """Read the scenario that the arguments name; None for raw files.

    Parameters
    ----------
    files : list of str
        Arguments: a dataset folder, an output folder of ``start`` or ``report``, a scenario file, ``sample``, or files.
    """
    from gpuplanner.ingest.dataset_folder import DATASET_MARK

    if SAMPLE_NAME in files and len(files) > 1:
        got = f"'sample' and {len(files) - 1} more"
        raise ScenarioError("start", "files, or 'sample' alone", got, "Run: gpuplanner start sample.")
    if len(files) > 1:
        return None
    path = Path(files[0])
    written = read_manifest(path) if path.is_dir() else None
    is_output = written is not None and start_dialog.SCENARIO_FILE in written[1]
    is_dataset = files[0] == SAMPLE_NAME or (path / DATASET_MARK.file).is_file()
    if is_output or is_dataset or (path.suffix in (".yaml", ".yml") and not _is_source_file(path)):
        return _resolve_data(ScenarioOptions({}).make_scenario(files[0]))
    return None


def _resolve_data(scenario: Scenario) -> Scenario:
    """Return the scenario with the absolute path of its data, which page and notebook use too."""
    return scenario if scenario.data == SAMPLE_NAME else replace(scenario, data=str(resolve_path(scenario.data)))


def _is_source_file(path: Path) -> bool:
    """Whether a YAML file is a dump of a cluster; a file that cannot be read counts as a scenario."""
    from gpuplanner.ingest.source_registry import detect_source

    try:
        detect_source(path)
    except TraceFormatError:
        return False
    return True


def _results_folder(scenario: Scenario, text: str) -> Path:
    """Folder of the results of a scenario: that of an earlier start, else ``build/start-NAME``."""
    data = Path(scenario.data)
    if data.name == "data" and scenario_beside(data) is not None:
        return data.parent
    name = SAMPLE_NAME if text == SAMPLE_NAME else resolve_path(text).name.partition(".")[0]
    return Path("build") / f"start-{name}"


def _import_files(
    source_files: tuple[SourceFiles, ...], folder: Path, options: dict[str, Any], may_lack_jobs: bool
) -> bool:
    """Import files into a dataset folder; False if no job requests a GPU.

    Parameters
    ----------
    source_files : tuple of SourceFiles
        Files by source.
    folder : Path
        Dataset folder.
    options : dict
        Time zone and GPU models of the files.
    may_lack_jobs : bool
        Accept requests of services without a list of jobs.
    """
    from gpuplanner.core.libraries_plugins_and_workers import show_progress_bar
    from gpuplanner.decision.service_requests import REQUEST_TABLES
    from gpuplanner.ingest.dataset_folder import open_dataset
    from gpuplanner.ingest.dataset_import import add_sources, require_jobs

    try:
        with show_progress_bar(), start_dialog.withdraw_report(folder.parent):
            add_sources(source_files, folder, **options)
    except TraceFormatError as error:
        if NO_GPU_JOBS_PATTERN.search(str(error)):
            return False
        raise
    paths = [path for part in source_files for path in part.files]
    tables = open_dataset(folder, columns=["gpus"]).tables
    if not (may_lack_jobs and set(REQUEST_TABLES) & set(tables)):
        require_jobs(tables, paths, folder)
    return True


COMPILED_PARTS = ("simulation", "causes of waiting")
"""Parts of the code that ``compile`` compiles, each in a process of its own."""


@app.command(hidden=True)
def compile() -> None:
    """Compile the simulation code once, so that the first run is faster.

    Without it the first simulation compiles, which takes some minutes.
    """
    workers = min(os.cpu_count() or 1, len(COMPILED_PARTS))
    notify(f"compiling: {', '.join(COMPILED_PARTS)} ...")
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as processes:
        for finished in as_completed([processes.submit(compile_part, name) for name in COMPILED_PARTS]):
            name, seconds = finished.result()
            notify(f"  {name}: {seconds:.1f} s")
    echo("compiled for this installation")


def compile_part(name: str) -> tuple[str, float]:
    """Compile a part of the code by running it on one job; return its name and the time taken [s]."""
    import numpy as np

    from gpuplanner.decision.free_gpus_over_time import close_handover_gaps, observe_occupancy
    from gpuplanner.decision.queue_model import find_head_starts
    from gpuplanner.decision.wait_causes import attribute_waits, find_fit_times, observe_tenant_use
    from gpuplanner.simulator.scheduling_rules import QuotaGroup, Sharing
    from gpuplanner.simulator.simulation_inputs import NodeFleet, NodeRequests
    from gpuplanner.simulator.simulation_run import simulate_requests, simulate_shared_requests
    from gpuplanner.sizing.replica_queue import ReplicaStepTimes, RequestStream, serve_requests

    started_s = time.perf_counter()
    start_s, end_s, gpus, one_each = np.zeros(1), np.full(1, 9.0), np.full(1, 8), np.ones(1, np.int64)
    zero = np.zeros(1, np.int64)
    job, node = NodeRequests(start_s, start_s, end_s, end_s, zero, gpus, one_each), NodeFleet.of_full_gpus([8])
    if name == COMPILED_PARTS[0]:
        serve_requests(ReplicaStepTimes(np.ones(2), 1.0, 0.0, 9), RequestStream(start_s, one_each, one_each), 1)
        simulate_requests(job, node)
        simulate_shared_requests(job, node, Sharing(zero, zero, (QuotaGroup(8.0),)))
    else:
        occupancy = observe_occupancy(job, start_s, end_s, [[0]], node.capacity[:, 0, :])
        fits = find_fit_times(job, close_handover_gaps(occupancy, 60.0), node.weights)
        use = observe_tenant_use(zero, end_s, start_s, end_s)
        attribute_waits(fits, start_s, end_s, end_s, 60.0, use)
        find_head_starts(job, start_s, zero == 0, [zero], use, 0.0)
    return name, time.perf_counter() - started_s


@app.command()
def notebook(
    folder: Annotated[Path, Argument(help="Folder for a copy of the notebooks.")] = Path("notebooks"),
    port: Annotated[int, Option(help="Port of the server on localhost.")] = 8888,
    browser: Annotated[bool, Option("--browser/--no-browser", help="Open a browser window.")] = True,
    token: Annotated[str | None, Option(help="Access token of the server. [default: a new one]")] = None,
    allow_root: Annotated[bool, Option("--allow-root", help="Run as root as well, for containers.")] = False,
    dashboard: Annotated[
        bool, Option("--dashboard", help="Serve the notebooks without code, with live controls (voila).")
    ] = False,
    export: Annotated[
        str | None,
        Option(metavar="NAME", help="Run one notebook (04, or a file) and write it as a self-contained HTML page."),
    ] = None,
    out: Annotated[
        Path | None, Option("-o", "--out", help="With --export: file to write. [default: NAME.html]")
    ] = None,
    parameter: Annotated[
        list[str] | None,
        Option("-p", "--parameter", metavar="NAME=VALUE", help="With --export: a parameter; repeatable."),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Open the notebooks in JupyterLab, or export one to HTML."""
    if export is not None:
        from gpuplanner.notebook.notebook_pages import write_notebook_page

        page_path = out or Path(f"{Path(export).stem}.html")
        echo(str(write_notebook_page(export, page_path, _parse_parameters(parameter or []))))
        return
    if out is not None or parameter:
        raise typer.BadParameter("-o and -p need --export NAME")
    _serve(folder, port, browser=browser, token=token, allow_root=allow_root, dashboard=dashboard)


def _parse_parameters(texts: list[str]) -> dict[str, str | float | bool | None]:
    """Parse options ``NAME=VALUE`` of a notebook; values are JSON, else text."""
    parameters: dict[str, str | float | bool | None] = {}
    for name, value in parse_pairs(texts, "-p", "NAME=VALUE").items():
        try:
            parameters[name] = json.loads(value)
        except ValueError:
            parameters[name] = value
    return parameters


def _serve(folder: Path, port: int, *, browser: bool, token: str | None, allow_root: bool, dashboard: bool) -> None:
    """Copy missing notebooks to a folder and replace this process by the notebook server.

    Parameters
    ----------
    folder : Path
        Folder of the notebooks.
    port : int
        Port on localhost.
    browser : bool
        Open a browser window.
    token : str, optional
        Access token.
    allow_root : bool
        Run as root as well.
    dashboard : bool
        Serve with voila instead of JupyterLab.
    """
    import gpuplanner
    from gpuplanner.core.libraries_plugins_and_workers import import_optional
    from gpuplanner.core.stage_cache_and_data_folders import notebook_folder

    import_optional("voila" if dashboard else "jupyterlab", extra="dashboard" if dashboard else "notebook")
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(notebook_folder().glob("*.ipynb")):
        if not (folder / path.name).exists():
            shutil.copy(path, folder / path.name)
    if dashboard:
        # JUPYTER_PATH lets voila find our template, which loads nothing from the network.
        template_folder = Path(gpuplanner.__file__).parent / "notebook" / "served"
        paths = (str(template_folder), os.environ.get("JUPYTER_PATH"))
        os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, paths))
        # Each cell is shown when it has run.
        arguments = ["voila", str(folder), "--template=gpuplanner", "--progressive_rendering=True"]
        arguments += ["--Voila.ip=127.0.0.1", f"--token={token}" if token else "--token"]
    else:
        arguments = ["jupyterlab", "--notebook-dir", str(folder), "--ip=127.0.0.1"]
        arguments += [f"--IdentityProvider.token={token}"] if token else []
        arguments += ["--allow-root"] if allow_root else []
    arguments += [f"--port={port}", *([] if browser else ["--no-browser"])]
    os.execv(sys.executable, [sys.executable, "-m", *arguments])
