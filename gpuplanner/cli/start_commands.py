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
    Given,
    GpuModels,
    Json,
    Overwrite,
    Quiet,
    app,
    put,
    say,
    show,
    show_frame,
    stated_models,
    takes,
)
from gpuplanner.core.errors import GpuPlannerError, ScenarioError, TraceFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuplanner.core.scenario import Scenario
    from gpuplanner.decision.comparison_record import Comparison
    from gpuplanner.decision.study_pipeline import DatasetSummary
    from gpuplanner.ingest.dataset_import import SourceFiles
    from gpuplanner.usage.job_history import FleetPools


def clusters(files: Sequence[str]) -> bool:
    """Whether several datasets are given, each a cluster."""
    from gpuplanner.ingest.dataset_folder import DATASET_MARK

    return len(files) > 1 and all((Path(one) / DATASET_MARK.file).is_file() for one in files)


def start_pools(
    pools: FleetPools, scenarios: Sequence[Scenario], place: Path, *, as_json: bool, talks: bool, page: bool
) -> None:
    """Decide for each pool, say what comes of all, and write a page with a page of each pool under it."""
    from gpuplanner.decision.comparison_record import compare_policies
    from gpuplanner.decision.policy_simulation import list_data_warnings
    from gpuplanner.decision.pool_decisions import ComparedFleet, make_decision_table

    progress = start_dialog.Progress(talks=talks)
    found: dict[str, Comparison] = {}
    for name, own in pools.pools.items():
        progress.doing(f"comparing policies for {name}")
        found[name] = compare_policies(own)
    progress.done()
    fleet = ComparedFleet(found)
    data = dict.fromkeys(one.data for one in scenarios)
    warnings = [warning for each in data for warning in list_data_warnings(each)]
    if not as_json:
        put(fleet.decision_text)
    if talks:
        start_dialog.warning_lines(warnings)
        show_frame(make_decision_table(fleet.decisions), title="Decision by GPU pool")
        for name, one in fleet.decisions.items():
            put(f"\n{name}: {one.sentence}")
            for number, step in enumerate(one.next_steps, start=1):
                put(f"  {number}  {step.text}")
    written = _write_results(
        place,
        lambda: start_dialog.pools_into(pools, scenarios, place),
        lambda: start_dialog.pools_into(pools, scenarios, place, found=found),
        reason=None if page else "--no-page",
        talks=talks,
    )
    if as_json:
        show(fleet.to_dict() | {"warnings": warnings, "folder": str(place)} | written, as_json=True)
    elif talks:
        put(f"\n{'Report':<11}{written['page'] or 'none: ' + str(written['page_reason'])}")


def _write_results(
    place: Path,
    write_page: Callable[[], None],
    write_files: Callable[[], None],
    *,
    reason: str | None,
    talks: bool,
) -> dict[str, str | None]:
    """Write the page with its files, or the files alone.

    Parameters
    ----------
    place : Path
        Folder of the results.
    write_page, write_files : callable
        Write all there, or all but the page.
    reason : str, optional
        Why there shall be no page; None: there shall be one.
    talks : bool
        Whether it is said that a page cannot be made.

    Returns
    -------
    dict of str to str or None
        ``page``, and ``page_reason`` where there is none.
    """
    if reason is None:
        progress = start_dialog.Progress(talks=talks)
        progress.doing("writing the report")
        try:
            write_page()
        except (GpuPlannerError, ImportError) as error:
            reason = str(error)
        progress.done()
        if reason is None:
            return {"page": str(place / "index.html"), "page_reason": None}
        say(f"gpuplanner: warning: no report: {reason}", quiet=not talks)
    write_files()
    return {"page": None, "page_reason": reason}


SAMPLE = "sample"
IN_JSON = ("decision", "waits", "wait_curve", "headroom", "growth_per_week", "exhaustion", "projects")
"""Parts of a comparison that the command prints as JSON."""
ONE_GPU_LESS = re.compile(r"got (\d+) rows and none of them: requests no GPU in \1 row")


@app.command()
@takes("tz", "actuator", "gpu_model", "month", "projects", "target_wait_minutes")
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
    given: Given,
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

    Where the files lack time zone, GPU model or ownership, it asks: at most three
    questions, each with a default. The output folder receives the data, scenario.yaml, the
    report (index.html) and the change bundle with its steps (export/README.md).

    Example: gpuplanner start jobs.txt nodes.txt -o build/mine
    """
    from gpuplanner.core.stage_cache import data_folder
    from gpuplanner.decision.comparison_record import compare_policies
    from gpuplanner.decision.policy_simulation import list_data_warnings
    from gpuplanner.decision.study_pipeline import build_empty_comparison
    from gpuplanner.ingest.dataset_folder import DATASET_MARK
    from gpuplanner.usage.job_history import combine_clusters, split_into_pools

    talks = not (quiet or as_json)
    stated = dict(given.fields)
    if "projects" in stated:
        from gpuplanner.decision.projects import read_projects

        read_projects(stated["projects"])  # what is wrong with it is said before anything takes time
        stated["projects"] = str(Path(stated["projects"]).resolve())
    asker = start_dialog.Asker.of(yes=yes, talks=talks)
    own = Given(stated, given.assignments)
    models = stated_models(gpu_models)
    groups = [[one] for one in files] if clusters(files) else [files]
    each = [_asked(group, out, asker, own, models) for group in groups]
    asked, place, source, nothing = each[0]
    playable = [one for one, _, _, nothing in each if nothing is None]
    pools = combine_clusters(playable) if len(each) > 1 else split_into_pools(asked) if nothing is None else None
    if pools is not None and pools.several:
        if len(each) > 1:
            place = out or Path("build") / f"start-{'+'.join(one.name for one in playable)}"
        start_pools(pools, playable, place, as_json=as_json, talks=talks, page=page)
        return
    if nothing is None:
        progress = start_dialog.Progress(talks=talks)
        found = compare_policies(asked, progress)
        progress.done()
    else:
        found = build_empty_comparison(asked, nothing, source)
    # Where nothing was read, there is no quality report.
    is_dataset = (data_folder(asked.data) / DATASET_MARK.file).is_file()
    warnings = list_data_warnings(asked.data) if is_dataset else []
    if talks:
        start_dialog.warning_lines(warnings)
        if nothing is None:
            start_dialog.today_line(found)
            start_dialog.policies_line(found)
        start_dialog.decision_lines(found, asked.data, place)
        start_dialog.project_lines(found.projects)
    elif quiet and not as_json:
        put("\n".join(start_dialog.sentences(found.decision)[:2]))
    written = _write_results(
        place,
        lambda: start_dialog.page_into(asked, place),
        lambda: start_dialog.scenario_into(asked, place, found),
        reason=(None if nothing is None else "no policy could be compared") if page else "--no-page",
        talks=talks,
    )
    if as_json:
        comparison = found.to_dict()
        answer = {name: comparison[name] for name in IN_JSON}
        show(answer | {"warnings": warnings, "folder": str(place)} | written, as_json=True)
    elif talks:
        shown = written["page"] or f"none: {written['page_reason']}"
        put(
            f"\n{'Report':<11}{shown}"
            + "    workbook, change bundle and notebook are linked there" * bool(written["page"])
        )
        if found.rules is not None:
            from gpuplanner.report.change_bundle import decision_pack

            pack = decision_pack(asked, found)
            by_hand = ", ".join(pack.by_hand).replace("_", " ") if pack else ""
            note = f" (steps by hand: {by_hand})" if by_hand else ""
            put(f"{'Bundle':<11}{place / 'export' / 'README.md'}{note}")


def _asked(
    files: list[str], out: Path | None, asker: start_dialog.Asker, given: Given, models: dict[str, str] | None
) -> tuple[Scenario, Path, str, str | None]:
    """The scenario, the folder it goes to, the source of its jobs, and why nothing can be played, if so.

    Parameters
    ----------
    files : list of str
        What was given: files of a cluster, or one dataset, scenario or sample.
    out : Path, optional
        Folder of the results.
    asker : asking.Asker
        Who answers what no option states.
    given : Given
        Fields of the scenario that were said.
    models : dict of str to str or None
        GPU model by the word that files have for it.
    """
    from gpuplanner.core.scenario import Scenario
    from gpuplanner.core.stage_cache import data_folder
    from gpuplanner.decision.decision_types import REASON_NO_GPU_REQUESTED
    from gpuplanner.decision.study_pipeline import resolve_actuator, summarize_dataset
    from gpuplanner.ingest.dataset_folder import read_source_facts

    assignments, stated = given.assignments, dict(given.fields)
    tz, actuator = stated.pop("tz", None), stated.pop("actuator", None)
    known = {text.partition("=")[0].strip() for text in assignments} | set(stated)
    parts: tuple[SourceFiles, ...] = ()
    months, basis = tz, "as stated"
    base = scenario_of(files)
    if base is None:
        from gpuplanner.ingest.dataset_import import group_files_by_source

        parts = group_files_by_source(files)
        name = parts[0].files[0].name.partition(".")[0]
        place = out or Path("build") / f"start-{name}"
        naive, months, basis = start_dialog.zone(asker, parts, tz)
        base = Scenario(name=name, data=str((place / "data").resolve()))
        if not _read(parts, place / "data", {"tz": naive, "boards": models}):
            source = parts[0].source
            asked = replace(base, actuator=resolve_actuator(source, actuator), tz=months or base.tz, **stated)
            return asked.with_text(assignments), place, source, REASON_NO_GPU_REQUESTED
    else:
        place = out or _folder_of(base, files[0])
        if base != Scenario(name=base.name, data=base.data):
            known |= {"actuator", "ownership", "gpu_model", "tz"}
    began = summarize_dataset(base.data)
    asked = replace(base, **stated).with_text(assignments)
    if asker.talks:
        folder = data_folder(base.data)
        rows = {one.source: one.rows_kept for one in read_source_facts(folder)}
        start_dialog.read_lines(parts, began, rows, folder)
    if "tz" not in known or tz is not None:
        if months is None:
            months, basis = began.time_zone or asked.tz, "as the times were read (--tz)"
        asked = replace(asked, tz=months)
        asker.said("Time zone", asked.tz, basis)
    if actuator is not None or "actuator" not in known:
        asked = replace(asked, actuator=resolve_actuator(began.source, actuator))
    else:
        resolve_actuator(began.source, asked.actuator)
    asker.said(
        "Actuator",
        asked.actuator,
        "as stated" if actuator else f"usual for {began.source} (--actuator)",
    )
    if began.no_run_reason is not None:
        return asked, place, began.source, began.no_run_reason
    return _completed(asked, began, asker, known), place, began.source, None


def _completed(asked: Scenario, began: DatasetSummary, asker: start_dialog.Asker, known: set[str]) -> Scenario:
    """The scenario with its board and ownership, as the data say or somebody answers."""
    if asked.gpu_model is None and not began.gpu_models and "gpu_model" not in known:
        asked = replace(asked, gpu_model=start_dialog.gpu_model(asker))
    if len(began.gpu_models) > 1:
        from gpuplanner.usage.job_history import history, split_into_pools

        fleet = history(asked).fleet
        if split_into_pools(asked).several:
            asker.said("GPU models", fleet.installed.models_text, "each is its own pool (--gpu-model for one alone)")
        else:
            asker.said("GPU model", fleet.name or "none", next(iter(fleet.remarks()), ""))
    if asked.ownership is None and "ownership" not in known:
        if began.ownership is not None:
            asker.said("Ownership", began.ownership, "from the inventory (--set ownership=…)")
        else:
            asked = replace(asked, ownership=start_dialog.ownership(asker, asked.actuator))
    return asked


def scenario_of(files: list[str]) -> Scenario | None:
    """The one scenario that was given, be it as a dataset, as a file or as the sample; None for files to be read."""
    from gpuplanner.ingest.dataset_folder import DATASET_MARK

    if SAMPLE in files and len(files) > 1:
        got = f"'sample' and {len(files) - 1} more"
        raise ScenarioError("start", "files, or 'sample' alone", got, "Run: gpuplanner start sample.")
    if len(files) > 1:
        return None
    given = Path(files[0])
    if files[0] == SAMPLE:
        return Given({}).scenario(SAMPLE)
    if (given / DATASET_MARK.file).is_file():
        return _resolved(Given({}).scenario(str(given)))
    if given.suffix in (".yaml", ".yml") and not _is_source(given):
        return _resolved(Given({}).scenario(str(given)))
    return None


def _resolved(own: Scenario) -> Scenario:
    """The scenario with its data by the one name that page and notebook know them by too."""
    return own if own.data == SAMPLE else replace(own, data=str(Path(own.data).resolve()))


def _is_source(given: Path) -> bool:
    """Whether a YAML file is what a cluster wrote; what cannot be read is left to the reader of scenarios."""
    from gpuplanner.ingest.source_registry import detect_source

    try:
        detect_source(given)
    except TraceFormatError:
        return False
    return True


def _folder_of(base: Scenario, given: str) -> Path:
    """Where the results of a scenario go: beside its data, where an earlier start put them."""
    data = Path(base.data)
    if data.name == "data" and (data.parent / "scenario.yaml").is_file():
        return data.parent
    name = SAMPLE if given == SAMPLE else Path(given).resolve().name.partition(".")[0]
    return Path("build") / f"start-{name}"


def _read(parts: tuple[SourceFiles, ...], folder: Path, options: dict[str, Any]) -> bool:
    """Read files into a folder; False where the list of jobs holds none that asks for a GPU."""
    from gpuplanner.core.execution import show_progress_bar
    from gpuplanner.ingest.dataset_folder import open_dataset
    from gpuplanner.ingest.dataset_import import add_sources, require_jobs

    try:
        with show_progress_bar():
            add_sources(parts, folder, **options)
    except TraceFormatError as error:
        if ONE_GPU_LESS.search(str(error)):
            return False
        raise
    given = [path for part in parts for path in part.files]
    require_jobs(open_dataset(folder, columns=["gpus"]).tables, given, folder)
    return True


LOOPS = ("simulation", "causes of waiting")
"""What is compiled, each by a process of its own; alone or with teams, jobs on nodes share most of what they need."""


@app.command(hidden=True)
def compile() -> None:
    """Compile the simulation code once, so that the first run is faster.

    Without it the first simulation compiles, which takes about half a minute.
    """
    workers = min(os.cpu_count() or 1, len(LOOPS))
    say(f"compiling: {', '.join(LOOPS)} ...")
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as processes:
        for done in as_completed([processes.submit(compiled, name) for name in LOOPS]):
            name, seconds = done.result()
            say(f"  {name}: {seconds:.1f} s")
    put("compiled for this installation")


def compiled(name: str) -> tuple[str, float]:
    """Play a job by one of the loops, and say how long that took."""
    import numpy as np

    from gpuplanner.decision.occupancy_changes import close_handover_gaps, observe_occupancy
    from gpuplanner.decision.wait_causes import attribute_waits, find_fit_times, observe_tenant_use
    from gpuplanner.simulator.scheduling_rules import QuotaGroup, Sharing
    from gpuplanner.simulator.simulated_fleet import NodeFleet, NodeRequests
    from gpuplanner.simulator.simulation_run import simulate_requests, simulate_shared_requests

    began = time.perf_counter()
    first, last, gpus, once = np.zeros(1), np.full(1, 9.0), np.full(1, 8), np.ones(1, np.int64)
    none = np.zeros(1, np.int64)
    one, node = NodeRequests(first, first, last, last, none, gpus, once), NodeFleet.of_full_gpus([8])
    if name == LOOPS[0]:
        simulate_requests(one, node)
        simulate_shared_requests(one, node, Sharing(none, none, (QuotaGroup(8.0),)))
    else:
        seen = observe_occupancy(one, first, last, [[0]], node.capacity[:, 0, :])
        fits = find_fit_times(one, close_handover_gaps(seen, 60.0), node.weights)
        attribute_waits(fits, first, last, last, 60.0, observe_tenant_use(none, last, first, last))
    return name, time.perf_counter() - began


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
        Option(
            metavar="NAME",
            help="Run one notebook (04, or a file) and write it as a self-contained HTML page.",
        ),
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
        from gpuplanner.notebook.views import write_notebook_page

        place = out or Path(f"{Path(export).stem}.html")
        put(str(write_notebook_page(export, place, _parameters(parameter or []))))
        return
    if out is not None or parameter:
        raise typer.BadParameter("-o and -p need --export NAME")
    _serve(folder, port, browser=browser, token=token, allow_root=allow_root, dashboard=dashboard)


def _parameters(given: list[str]) -> dict[str, str | float | bool | None]:
    """Parameters of a notebook as people write them: numbers, true and false, null, else text."""
    found: dict[str, str | float | bool | None] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"-p: expected NAME=VALUE; got {text!r}")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _serve(folder: Path, port: int, *, browser: bool, token: str | None, allow_root: bool, dashboard: bool) -> None:
    """Copy the notebooks that are not there yet, and become the server."""
    import gpuplanner
    from gpuplanner.core.execution import import_optional
    from gpuplanner.core.stage_cache import notebook_folder

    import_optional("voila" if dashboard else "jupyterlab", extra="dashboard" if dashboard else "notebook")
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(notebook_folder().glob("*.ipynb")):
        if not (folder / path.name).exists():
            shutil.copy(path, folder / path.name)
    if dashboard:
        # Its template, which asks nobody else, is found as those of Jupyter are.
        place = Path(gpuplanner.__file__).parent / "notebook" / "served"
        paths = (str(place), os.environ.get("JUPYTER_PATH"))
        os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, paths))
        words = ["voila", str(folder), "--template=gpuplanner", "--Voila.ip=127.0.0.1"]
        words += [f"--token={token}" if token else "--token"]
    else:
        words = ["jupyterlab", "--notebook-dir", str(folder), "--ip=127.0.0.1"]
        words += [f"--IdentityProvider.token={token}"] if token else []
        words += ["--allow-root"] if allow_root else []
    words += [f"--port={port}", *([] if browser else ["--no-browser"])]
    os.execv(sys.executable, [sys.executable, "-m", *words])
