"""Commands that deliver and verify: ``export``, ``diff``, ``verify`` and ``catalog``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from gpuplanner.cli.application import (
    Exit,
    Json,
    Out,
    Quiet,
    ScenarioOptions,
    app,
    echo,
    notify,
    parse_time,
    show,
    show_frame,
    with_fields,
)

if TYPE_CHECKING:
    from gpuplanner.core.scenario import Scenario


@app.command()
def diff(
    files: Annotated[
        list[Path],
        Argument(
            metavar="CURRENT... PLAN",
            help="Dumps of the cluster ('kubectl get nodes,pods -A -o json'; 'scontrol show node' and sacct, two "
            "files; a node list; or another plan.json), and the plan.json last.",
        ),
    ],
    at: Annotated[
        str | None, Option(help="Time of the plan, ISO 8601; without an offset, UTC. [default: its start]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a plan would change on a cluster as dumped.

    Lists the MIG instances to delete and create on each GPU, and the running jobs
    that would have to end. A plan.json is a layout schedule, not the recommended
    layout: see export/README.md of the report for that.
    """
    from gpuplanner.report.plan_and_bundle_verification import compare_with_plan

    if len(files) < 2:
        raise typer.BadParameter("expected a dump of the cluster and a plan: gpuplanner diff CURRENT PLAN")
    result = compare_with_plan(files[:-1], files[-1], parse_time(at))
    if as_json:
        tables = {"words": result.describe(), "gpus": result.changes, "victims": result.ending_jobs}
        show({**tables, "problems": result.problems, "notes": result.notes}, as_json=True)
    else:
        if result.changes.height:
            show_frame(result.changes, title="GPUs of the nodes that change")
        if result.ending_jobs.height:
            show_frame(result.ending_jobs, title="Running jobs that would have to end")
        echo(*(f"note: {line}" for line in result.notes), *(f"problem: {line}" for line in result.problems))
        echo(result.describe())
    if result.problems:
        raise typer.Exit(Exit.CHECK_FAILED)


catalog = typer.Typer(help="Browse GPU models, MIG profiles, prices and carbon factors.", no_args_is_help=True)
"""Group of the commands ``catalog ...``, which browse GPU models, MIG profiles and prices."""
app.add_typer(catalog, name="catalog")

GpuModelArgument = Annotated[str, Argument(metavar="MODEL", help="GPU model; a unique prefix is enough.")]
"""Argument MODEL of the ``catalog`` commands: GPU model or a unique prefix of its name."""


@catalog.command("gpu-models")
def catalog_gpu_models(as_json: Json = False) -> None:
    """List the GPU models whose MIG profiles are known."""
    import polars as pl

    from gpuplanner.hardware.catalog import mig_model_names
    from gpuplanner.hardware.gpu_models import load_gpu_model

    columns = ("name", "compute_slices", "memory_slices", "memory_gib", "sms", "profiles")
    rows = ([getattr(gpu_model, name) for name in columns] for gpu_model in map(load_gpu_model, mig_model_names()))
    table = pl.DataFrame([[*row[:-1], len(row[-1])] for row in rows], schema=columns, orient="row")
    show_frame(table.rename({"name": "gpu_model"}), as_json=as_json)


@catalog.command("profiles")
def catalog_profiles(gpu_model: GpuModelArgument, as_json: Json = False) -> None:
    """List the MIG profiles of a GPU model, or the partition modes of an AMD model.

    Each row names its source. Plans use no partition modes of AMD.
    """
    import polars as pl

    from gpuplanner.hardware.catalog import facts, resolve_mig_model
    from gpuplanner.hardware.gpu_models import DRIVER_MEMORY_FRACTION

    modes = facts("partition_modes").filter(pl.col("gpu_model").str.to_lowercase() == gpu_model.lower())
    modes = modes.with_columns(pl.col("memory_gb") * DRIVER_MEMORY_FRACTION).rename({"memory_gb": "memory_gib"})
    if modes.height:
        show_frame(modes if as_json else modes.drop("gpu_model", "source"), as_json=as_json)
        return
    rows = facts("mig_profiles").filter(pl.col("gpu_model") == resolve_mig_model(gpu_model))
    columns = [
        "profile", "compute_slices", "memory_slices", "memory_gib", "sms", "max_instances", "placement_starts",
        "source",
    ]  # fmt: skip
    if not as_json:
        rows = rows.select(columns).with_columns(pl.col("source").str.slice(0, 40))
    show_frame(rows, as_json=as_json)


@catalog.command("layouts")
def catalog_layouts(
    gpu_model: GpuModelArgument,
    profiles: Annotated[str | None, Option(help="Only these profiles, separated by commas.")] = None,
    lists_layouts: Annotated[
        bool, Option("--list", help="List the maximal layouts, by profile counts and by placement.")
    ] = False,
    fixed_placements: Annotated[
        str | None,
        Option("--beside", metavar="PLACEMENTS", help="Only layouts with these instances: '3g.40gb@4 1g.10gb@0'."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Count the MIG layouts of a GPU model, or list the maximal ones (--list)."""
    from gpuplanner.hardware.layout_enumeration import count_layouts, list_layouts
    from gpuplanner.hardware.mig_layouts import parse_placements

    chosen = None if profiles is None else [name.strip() for name in profiles.split(",") if name.strip()]
    if not lists_layouts and fixed_placements is None:
        show(count_layouts(gpu_model, chosen), as_json=as_json)
        return
    layouts = list_layouts(gpu_model, chosen, fixed_layout=parse_placements(gpu_model, fixed_placements or ""))
    if as_json:
        show({"by_counts": layouts.by_counts, "placed": layouts.placed}, as_json=True)
        return
    show_frame(layouts.by_counts, title="Maximal layouts, as the driver places them")
    show_frame(layouts.placed, title="Maximal layouts by placement")


@catalog.command("prices")
def catalog_prices(gpu_model: GpuModelArgument, as_json: Json = False) -> None:
    """List the catalog prices of a GPU model, with source and date."""
    import polars as pl

    from gpuplanner.hardware.catalog import facts, resolve_mig_model

    rows = facts("gpu_prices").filter(pl.col("gpu_model") == resolve_mig_model(gpu_model))
    show_frame(rows if as_json else rows.drop("source", "licence"), as_json=as_json)


EXAMPLE_FILES = {
    "prices": "prices.yaml", "burst": "burst.yaml", "quotas": "quotas.yaml", "projects": "projects.yaml",
    "calendar": "calendar.csv", "announced": "announced.csv",
}  # fmt: skip
"""Example file of ``catalog example`` by name: whole, valid, with its keys described at the top."""


@catalog.command("example")
def catalog_example(
    name: Annotated[str | None, Argument(metavar="|".join(EXAMPLE_FILES), help="File to print.")] = None,
) -> None:
    """Print a whole example of a file that you write, with its keys.

    Without a name, list the files. Example: gpuplanner catalog example prices > prices.yaml
    """
    from importlib import resources

    from gpuplanner.core.errors import ScenarioError, resolve_name

    folder = resources.files("gpuplanner.core") / "examples"
    if name is None:
        texts = {file: (folder / file).read_text("utf-8").partition("\n")[0] for file in EXAMPLE_FILES.values()}
        show({file: text.removeprefix("# ") for file, text in texts.items()})
        return
    stem = resolve_name(name.partition(".")[0], list(EXAMPLE_FILES), subject="example", error=ScenarioError)
    echo((folder / EXAMPLE_FILES[stem]).read_text("utf-8").removesuffix("\n"))


@app.command()
@with_fields()
def verify(
    file: Annotated[
        Path,
        Argument(
            help="plan.json, a report folder, a change bundle or a file of it; with --against a dump of the cluster."
        ),
    ],
    gpu_model: Annotated[
        str | None, Option("--gpu-model", help="GPU model, as in the catalog, NVML, a node label or Slurm.")
    ] = None,
    gpus_per_node: Annotated[int | None, Option(min=1, help="GPUs of each node. [default: as in the file]")] = None,
    against: Annotated[
        Path | None, Option(metavar="PLAN", help="plan.json that the cluster dump FILE has to match.")
    ] = None,
    at: Annotated[
        str | None, Option(help="Time of that plan, ISO 8601; without an offset, UTC. [default: its start]")
    ] = None,
    *,
    options: ScenarioOptions,
    scenario_path: Annotated[
        str | None,
        Option(
            "--scenario",
            help="Scenario, dataset folder, 'sample' or problem file that the plan has to belong to. [default: the "
            "problem in the plan file]",
        ),
    ] = None,
    all_checks: Annotated[
        bool, Option("--all", help="Print every check that passed. [default: a summary, and all problems]")
    ] = False,
    as_json: Json = False,
) -> None:
    """Re-check a plan or an exported file independently.

    Checks counts, limits, numbered GPUs and MIG geometry without a solver. All
    files of a change bundle are compared with their hash in manifest.json, and
    those with layouts are checked too, also where they were edited. Node names,
    labels and GRES types of the cluster are compared by 'check' of its script.
    A plan.json is a layout schedule, not the recommended layout: --against cannot
    verify the recommendation, 'verify' of the script in export/ does.
    The lower bound of a plan is not proven again. Exits with 1 if a check fails.
    """
    from gpuplanner.core.units_and_number_formats import count_text
    from gpuplanner.decision.layout_planning import make_plan_problem
    from gpuplanner.planner.fleet_plans_and_comparisons import read_problems
    from gpuplanner.report.plan_and_bundle_verification import summarize_findings, verify_any, verify_carried_out

    if (file / "export").is_dir():  # of a report, the pack in it
        file = file / "export"
    expected_problems = None
    if scenario_path is not None and scenario_path.endswith(".json"):
        expected_problems = read_problems(scenario_path)
    elif scenario_path is not None:
        scenario = options.make_scenario(scenario_path)
        scenario = scenario if gpu_model is None else replace(scenario, gpu_model=gpu_model)
        expected_problems = {"": make_plan_problem(scenario, "rightsized")}
    if against is None:
        report = verify_any(file, gpu_model, gpus_per_node=gpus_per_node, expected_problems=expected_problems)
    else:
        report = verify_carried_out(file, against, parse_time(at))
    if as_json:
        parts = {name: getattr(report, name) for name in ("ok", "problems", "findings")}
        show(parts, as_json=True)
    else:
        findings = report.findings if all_checks else summarize_findings(report.findings)
        echo(*(f"ok: {line}" for line in findings), *(f"problem: {line}" for line in report.problems))
        omitted = "" if len(findings) == len(report.findings) else " (each check: --all)"
        result = "all checks passed" if report.ok else f"checks failed: {count_text(len(report.problems), 'problem')}"
        echo(f"{file}: {result}{omitted}")
    if not report.ok:
        raise typer.Exit(Exit.CHECK_FAILED)


def _scenario_of_folder(given_file: str, options: ScenarioOptions) -> Scenario:
    """Find the scenario of a file, of a folder with scenario.yaml, or of a dataset as ``start`` opens it."""
    from gpuplanner.cli.start_notebook_and_compile_commands import find_scenario

    scenario_file = Path(given_file) / "scenario.yaml"
    scenario = find_scenario([str(scenario_file) if scenario_file.is_file() else given_file])
    return options.make_scenario(given_file) if scenario is None else options.apply_to(scenario)


@app.command("export")
@with_fields("actuator")
def export_configuration(
    given_file: Annotated[
        str,
        Argument(
            metavar="SCENARIO|FOLDER|PLAN",
            help="Scenario, dataset folder, 'sample', or the output folder of start or report: exports the "
            "recommendation. A plan.json: exports its layout schedule.",
        ),
    ],
    to: Annotated[
        str,
        Option(
            help="With plan.json: files to write: mig-parted, configmap, runbook (Kubernetes scripts), slurm, the name "
            "of a plugin, or all. Without plan.json: see --actuator."
        ),
    ] = "all",
    out: Out = Path("build/export"),
    at: Annotated[
        str | None, Option(help="Only the layouts in force at this time, ISO 8601; without an offset, UTC.")
    ] = None,
    gres_type: Annotated[
        str | None,
        Option(
            metavar="TYPE",
            help="GRES type of a full GPU in slurm.conf. [default: as the nodes have it, else as slurmd detects]",
        ),
    ] = None,
    *,
    options: ScenarioOptions,
    scenario_path: Annotated[
        str | None,
        Option(
            "--scenario",
            help="With plan.json: scenario, dataset folder or 'sample' of the plan; changes.md then shows the "
            "simulated drain time of each change.",
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write MIG, Kubernetes or Slurm configuration from a plan.

    start and report write those of the recommendation to OUT/export already. Where
    there is nothing to apply, none are written.
    README.md in the folder has the steps: agree, preflight, apply, verify,
    switch requests, roll back. Example: gpuplanner export sample -o build/export
    """
    from gpuplanner.report.layout_schedule_files import export_plan

    if not given_file.endswith(".json"):
        given = {"--to": to != "all", "--at": at is not None, "--scenario": scenario_path is not None}
        if names := ", ".join(name for name, is_given in given.items() if is_given):
            raise typer.BadParameter(
                f"{names}: only with a plan.json; the files of the recommendation follow --actuator"
            )
        from gpuplanner.report.bundle_export import export_decision, load_matching_study

        study = load_matching_study(Path(given_file))
        decided = _scenario_of_folder(given_file, options) if study is None else options.apply_to(study.scenario)
        paths, warnings = export_decision(decided, out, gres_type=gres_type, kept_study=study)
        notify(*(f"gpuplanner: warning: {text}" for text in warnings))
        notify(*(f"written: {path}" for path in paths), quiet=quiet)
        return
    scenario = None if scenario_path is None else options.make_scenario(scenario_path)
    paths = export_plan(given_file, out, formats=to, at=parse_time(at), gres_type=gres_type, scenario=scenario)
    notify(*(f"written: {path}" for path in paths), quiet=quiet)
    notify("note: a layout schedule, not the change that the report recommends")
