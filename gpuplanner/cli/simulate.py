"""The command that serves the same jobs under several policies: ``simulate``."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuplanner.cli.app import app, put, say
from gpuplanner.cli.options import Given, Json, Quiet, takes
from gpuplanner.cli.show import show, show_frame

if TYPE_CHECKING:
    from gpuplanner.scenario import Scenario
    from gpuplanner.simulate import Rules

LAB_ORDERS = "gpuplanner.lab.orders"
TAKES = {
    "SCENARIO": ("--set", "--board", "--seed"),
    "--jobs": ("--gpus", "--gpus-per-node", "--order", "--queue", "--limit-factor", "--idle"),
}
"""What is simulated, and the options that mean something to it."""


@app.command()
@takes("board", "seed")
def simulate(
    scenario: Annotated[
        str | None, typer.Argument(metavar="SCENARIO", help="Scenario YAML, trace folder, or 'sample'.")
    ] = None,
    *,
    given: Given,
    jobs: Annotated[
        Path | None,
        typer.Option(
            help="Job list instead of a scenario: CSV, plain or gzip, with job_id, submit_time and duration in s, "
            "num_gpus; if there are, tenant, tier, limit_s, predicted_gpu_s."
        ),
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs, with --jobs.")] = None,
    per_node: Annotated[
        int | None, typer.Option("--gpus-per-node", min=1, help="With --jobs; one pool if not given.")
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(
            help="With --jobs: fifo (if not given), sjf, qssf, fair, and of the lab srtf or las, which stop running "
            "jobs; that costs them what simulate.Preemption says."
        ),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(
            help="With --jobs, what may overtake a job that does not fit: strict (nothing, if not given), "
            "pass (all that fits), easy or, of the lab, conservative (backfill by limits)."
        ),
    ] = None,
    limit_factor: Annotated[
        float | None,
        typer.Option(
            min=1.0, max=1e6, help="With --jobs: time limits, or durations where there are none, times this."
        ),
    ] = None,
    idle: Annotated[
        bool,
        typer.Option(
            "--idle",
            help="With --jobs: GPU-hours idle while jobs waited, and those of no use to who waits longest.",
        ),
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Serve the same jobs under every policy at equal service, on weeks that none was tuned on; or a job list."""
    doors = dict(zip(TAKES, (scenario, jobs), strict=True))
    options = {
        "--gpus": gpus, "--gpus-per-node": per_node, "--order": order, "--queue": queue,
        "--limit-factor": limit_factor, "--set": given.assignments or None, "--board": given.fields.get("board"),
        "--seed": given.fields.get("seed"), "--idle": idle or None,
    }  # fmt: skip
    _refuse_what_means_nothing(doors, options)
    if jobs is not None:
        if gpus is None:
            text = "--jobs needs --gpus, the number of GPUs to simulate"
            raise typer.BadParameter(text)
        size = per_node or gpus
        if gpus % size:
            text = f"--gpus {gpus} is not a number of whole nodes of {size} GPUs"
            raise typer.BadParameter(text)
        served = (order or "fifo", queue or "strict")
        fleet = (gpus // size, size)
        _simulate_jobs(jobs, fleet, served, limit_factor or 1.0, idle=idle, as_json=as_json, quiet=quiet)
    else:
        assert scenario is not None
        _simulate_scenario(given.scenario(scenario), as_json=as_json, quiet=quiet)


def _refuse_what_means_nothing(doors: Mapping[str, object], options: Mapping[str, object]) -> None:
    given = [door for door, value in doors.items() if value is not None]
    if len(given) != 1:
        text = "give one of SCENARIO and --jobs FILE"
        raise typer.BadParameter(text)
    known = TAKES[given[0]]
    strange = [name for name, value in options.items() if value is not None and name not in known]
    if strange:
        text = f"{', '.join(strange)}: without meaning with {given[0]}, which takes {', '.join(known)}"
        raise typer.BadParameter(text)


def _simulate_jobs(
    path: Path,
    nodes: tuple[int, int],
    served: tuple[str, str],
    limit_factor: float,
    *,
    idle: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Schedule a job list and print its totals, with the CPU seconds of the event loop and with its tables."""
    import polars as pl

    from gpuplanner.hardware import whole_board
    from gpuplanner.metrics import distribution, fragmentation, fragmentation_totals
    from gpuplanner.simulate import Fleet, prepare, read_job_list, totals
    from gpuplanner.simulate.gangs.arrays import to_gangs
    from gpuplanner.simulate.gangs.schedule import checked_gangs, outcomes_of, run_of

    order, queue = served
    rules = _rules(order, queue)
    jobs, remarks = read_job_list(path)
    jobs = jobs.with_columns(pl.col("limit_s") * limit_factor)
    if not quiet:
        for remark in remarks:
            say(f"{path.name}: {remark}")
    fleet = Fleet(whole_board("any"), *nodes)
    prepare(rules)
    begin = time.process_time()
    table = checked_gangs(jobs, fleet, rules)
    gangs = to_gangs(table, fleet, rules)
    loop = time.process_time()
    stops = rules.run(gangs)
    looped = time.process_time()
    outcomes = outcomes_of(table, gangs, rules.order)
    seconds = {"seconds": looped - loop, "seconds_with_tables": time.process_time() - begin}
    told, spread = totals(outcomes) | seconds, distribution(outcomes)
    if idle:
        pieces = fragmentation(run_of(table, gangs, stops, order), nodes=nodes[0], gpus_per_node=nodes[1])
        told |= fragmentation_totals(pieces)
    if as_json:
        show(told | {"distribution": spread.to_dicts()}, as_json=True)
        return
    show(told, as_json=False)
    put("")
    show_frame(spread, as_json=False, title="Measures of single jobs; tail_mean: of the worst 5 %")


def _rules(order: str, queue: str) -> Rules:
    """Rules by name; where the lab is installed, its orders and queues are known too."""
    if importlib.util.find_spec("gpuplanner.lab"):
        research: type[Rules] = importlib.import_module(LAB_ORDERS).ResearchRules
        return research(order=order, queue=queue)
    from gpuplanner.simulate import Rules

    return Rules(order=order, queue=queue)


def _simulate_scenario(asked: Scenario, *, as_json: bool, quiet: bool) -> None:
    """Compare the policies of a scenario at equal service, as ``compare`` does with no options."""
    from gpuplanner.cli.compare import Told, show_comparison
    from gpuplanner.study.decision.record import compared

    found = compared(asked, None if quiet else Told())
    if as_json:
        show(found.to_dict(), as_json=True)
    else:
        show_comparison(found, quiet=quiet)
