"""The command that serves the same jobs under several policies: ``simulate``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuplanner.cli.app import app
from gpuplanner.cli.options import Given, Json, Quiet, takes
from gpuplanner.cli.show import show
from gpuplanner.errors import MissingDependencyError

if TYPE_CHECKING:
    from gpuplanner.scenario import Scenario

LAB_JOBS = "gpuplanner.lab.commands.job_list"
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
            help="With --jobs: GPU-hours held, of lasting use, idle while jobs waited, and of no use to who waits "
            "longest.",
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
        lab = _lab_jobs()
        lab.simulate_jobs(jobs, fleet, served, limit_factor or 1.0, idle=idle, as_json=as_json, quiet=quiet)
    else:
        assert scenario is not None
        _simulate_scenario(given.scenario(scenario), as_json=as_json, quiet=quiet)


def _lab_jobs() -> Any:  # noqa: ANN401 - a module has no narrower type
    """Command of the lab that schedules job lists; a package may come without."""
    try:
        return importlib.import_module(LAB_JOBS)
    except ModuleNotFoundError as error:
        text = (
            "simulate --jobs belongs to the lab, gpuplanner/lab, which this package lacks; install it whole"
        )
        raise MissingDependencyError(text) from error


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


def _simulate_scenario(asked: Scenario, *, as_json: bool, quiet: bool) -> None:
    """Compare the policies of a scenario at equal service, as ``compare`` does with no options."""
    from gpuplanner.cli.compare import Told, show_comparison
    from gpuplanner.study.decision.record import compared

    found = compared(asked, None if quiet else Told())
    if as_json:
        show(found.to_dict(), as_json=True)
    else:
        show_comparison(found, quiet=quiet)
