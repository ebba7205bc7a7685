"""Commands that deliver and verify: ``export``, ``diff``, ``verify`` and ``catalog``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from gpuplanner.cli.application import (
    Exit,
    Given,
    Json,
    Out,
    Quiet,
    app,
    instant,
    put,
    say,
    show,
    show_frame,
    takes,
)

if TYPE_CHECKING:
    from gpuplanner.core.scenario import Scenario


@app.command()
def diff(
    files: Annotated[
        list[Path],
        Argument(
            metavar="CURRENT... PLAN",
            help="The cluster as it is ('kubectl get nodes,pods -A -o json', 'scontrol show node' and sacct beside "
            "it, a node list, or another plan.json), and last the plan.json.",
        ),
    ],
    at: Annotated[
        str | None, Option(help="Instant of the plan (ISO 8601, UTC if no zone); default: its beginning.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what a plan would do to a cluster as it is: by GPU what goes and comes, by name which jobs have to end."""
    from gpuplanner.report.handover_verification import difference

    if len(files) < 2:
        raise typer.BadParameter("diff needs the cluster as it is and the plan: gpuplanner diff CURRENT PLAN")
    found = difference(files[:-1], files[-1], instant(at))
    if as_json:
        tables = {"words": found.words(), "gpus": found.changes, "victims": found.victims}
        show({**tables, "problems": found.problems, "notes": found.notes}, as_json=True)
    else:
        if found.changes.height:
            show_frame(found.changes, title="GPUs of the nodes that change")
        if found.victims.height:
            show_frame(found.victims, title="Jobs at work that have to end")
        put(*(f"note: {line}" for line in found.notes), *(f"problem: {line}" for line in found.problems))
        put(found.words())
    if found.problems:
        raise typer.Exit(Exit.CHECK_FAILED)


catalog = typer.Typer(help="Facts about boards, prices and carbon, with their sources.", no_args_is_help=True)
app.add_typer(catalog, name="catalog")

BoardName = Annotated[str, Argument(metavar="BOARD", help="Board; a unique prefix will do.")]


@catalog.command("boards")
def catalog_boards(as_json: Json = False) -> None:
    """List the boards whose MIG geometry is known."""
    import polars as pl

    from gpuplanner.hardware.catalog import board_names
    from gpuplanner.hardware.gpu_models import load_gpu_model

    boards = [load_gpu_model(name) for name in board_names()]
    facts = {"board": [board.name for board in boards]}
    for column in ("compute_slices", "memory_slices", "memory_gib", "sms"):
        facts[column] = [getattr(board, column) for board in boards]
    show_frame(pl.DataFrame(facts | {"profiles": [len(board.profiles) for board in boards]}), as_json=as_json)


@catalog.command("profiles")
def catalog_profiles(board: BoardName, as_json: Json = False) -> None:
    """List the MIG profiles of a board, with the source of each row; of one of AMD its partition modes.

    Plans cut no board into partition modes: all partitions of a mode are alike, and jobs see a board in one mode.
    """
    import polars as pl

    from gpuplanner.hardware.catalog import facts, find_board

    modes = facts("partition_modes").filter(pl.col("gpu_model").str.to_lowercase() == board.lower())
    if modes.height:
        show_frame(modes if as_json else modes.drop("gpu_model", "source"), as_json=as_json)
        return
    rows = facts("mig_profiles").filter(pl.col("gpu_model") == find_board(board))
    columns = [
        "profile", "compute_slices", "memory_slices", "memory_gib", "sms", "max_instances", "placement_starts",
        "source",
    ]  # fmt: skip
    if not as_json:
        rows = rows.select(columns).with_columns(pl.col("source").str.slice(0, 40))
    show_frame(rows, as_json=as_json)


@catalog.command("layouts")
def catalog_layouts(
    board: BoardName,
    profiles: Annotated[str | None, Option(help="Only these profiles, joined by commas.")] = None,
    listed: Annotated[
        bool, Option("--list", help="List the maximal layouts: by profile counts, and with their places.")
    ] = False,
    beside: Annotated[
        str | None,
        Option(metavar="PLACES", help="List only layouts that hold these instances: '3g.40gb@4 1g.10gb@0'."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Count the layouts of a board, placed and by profile counts, all and maximal; or list the maximal ones."""
    from gpuplanner.hardware.layout_enumeration import layout_counts, list_layouts
    from gpuplanner.hardware.mig_layouts import parse_placements

    chosen = None if profiles is None else [name.strip() for name in profiles.split(",") if name.strip()]
    if not listed and beside is None:
        show(layout_counts(board, chosen), as_json=as_json)
        return
    found = list_layouts(board, chosen, beside=parse_placements(board, beside or ""))
    if as_json:
        show({"by_counts": found.by_counts, "placed": found.placed}, as_json=True)
        return
    show_frame(found.by_counts, title="Maximal layouts, and where the driver puts them")
    show_frame(found.placed, title="With their places")


@catalog.command("prices")
def catalog_prices(board: BoardName, as_json: Json = False) -> None:
    """List the shipped prices of a board, with source and date."""
    import polars as pl

    from gpuplanner.hardware.catalog import facts, find_board

    rows = facts("gpu_prices").filter(pl.col("gpu_model") == find_board(board))
    show_frame(rows if as_json else rows.drop("source", "licence"), as_json=as_json)


@app.command()
@takes()
def verify(
    file: Annotated[
        Path,
        Argument(
            help="plan.json, of services too, a report, a pack or file of it, or with --against a dump of the cluster."
        ),
    ],
    board: Annotated[
        str | None,
        Option("--gpu-model", help="GPU model as the catalogue, NVML, a node label or Slurm calls it."),
    ] = None,
    gpus_per_node: Annotated[int, Option(min=1, help="GPUs on each node.")] = 8,
    against: Annotated[
        Path | None,
        Option(metavar="PLAN", help="plan.json that the cluster, of which FILE is a dump, shall be as."),
    ] = None,
    at: Annotated[
        str | None, Option(help="Instant of that plan (ISO 8601, UTC if no zone); default: its beginning.")
    ] = None,
    *,
    given: Given,
    scenario: Annotated[
        str | None,
        Option(
            help="What a plan must be of: a scenario, trace folder or 'sample' as 'plan' takes them, or a problem "
            "file. Without, a plan is held against the problem in its own file."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a plan, an exported file or a pack again, without a solver: counts, limits, numbered GPUs, geometry.

    Files of a pack that state no layouts are compared with the hash in its manifest. A plan's bound is the planner's
    word: it may not exceed the cost. Exits with 1 if something is wrong.
    """
    from gpuplanner.decision.layout_planning import plan_problem
    from gpuplanner.planner.plan_variants import read_problems
    from gpuplanner.report.handover_verification import carried_out, verify_any

    if (file / "export").is_dir():  # of a report, the pack in it
        file = file / "export"
    due = None
    if scenario is not None and scenario.endswith(".json"):
        due = read_problems(scenario)
    elif scenario is not None:
        asked = given.scenario(scenario)
        due = {"": plan_problem(asked if board is None else replace(asked, board=board), "rightsized")}
    if against is None:
        report = verify_any(file, board, gpus_per_node=gpus_per_node, against=due)
    else:
        report = carried_out(file, against, instant(at))
    if as_json:
        parts = {name: getattr(report, name) for name in ("ok", "problems", "findings")}
        show(parts, as_json=True)
    else:
        put(*(f"ok: {line}" for line in report.findings), *(f"problem: {line}" for line in report.problems))
        put(f"{file}: {'holds' if report.ok else 'does not hold'}")
    if not report.ok:
        raise typer.Exit(Exit.CHECK_FAILED)


def _scenario_beside(given_file: str, given: Given) -> Scenario:
    """The scenario of a file, of the folder that holds one, or of a dataset as ``start`` opens it."""
    from gpuplanner.cli.start_commands import scenario_of

    beside = Path(given_file) / "scenario.yaml"
    opened = scenario_of([str(beside) if beside.is_file() else given_file])
    return given.scenario(given_file) if opened is None else given.changed(opened)


@app.command()
@takes("path")
def export(
    given_file: Annotated[
        str,
        Argument(
            metavar="SCENARIO|FOLDER|PLAN",
            help="Scenario, trace folder, 'sample', or the folder of a start or report: files of its decision; "
            "plan.json: those of a calendar.",
        ),
    ],
    to: Annotated[
        str,
        Option(help="Of a calendar: mig-parted, configmap, runbook, slurm, an exporter plugged in, or all."),
    ] = "all",
    out: Out = Path("build/export"),
    at: Annotated[
        str | None, Option(help="Only the layouts in force at this instant (ISO 8601, UTC if no zone).")
    ] = None,
    gres_type: Annotated[
        str | None,
        Option(metavar="TYPE", help="Slurm's type of a whole GPU, where it is not what slurmd finds."),
    ] = None,
    *,
    given: Given,
    scenario: Annotated[
        str | None,
        Option(
            help="What the plan was made of (scenario, trace folder or 'sample'): the index then says how long each "
            "change will take to drain."
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write what is decided, or a calendar, as files that operators apply, with a README that says how."""
    from gpuplanner.report.layout_schedule_files import export_plan

    if not given_file.endswith(".json"):
        from gpuplanner.report.change_bundle import export_decision, kept_study

        kept = kept_study(Path(given_file))
        asked = _scenario_beside(given_file, given) if kept is None else given.changed(kept.scenario)
        paths, warnings = export_decision(asked, out, gres_type=gres_type, kept=kept)
        say(*(f"written: {path}" for path in paths), quiet=quiet)
        say(*(f"gpuplanner: warning: {text}" for text in warnings))
        return
    made_of = None if scenario is None else given.scenario(scenario)
    paths = export_plan(given_file, out, formats=to, at=instant(at), gres_type=gres_type, scenario=made_of)
    say(*(f"written: {path}" for path in paths), quiet=quiet)
