"""The command ``binpack``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from gpuplanner.cli.application import Exit, Json, Overwrite, Quiet, app, notify_written, require_outputs, show

if TYPE_CHECKING:
    from gpuplanner.planner.packing_problem import AnyPackingProblem, CostedPacking, Packing


_EXIT_BY_STOP_REASON = {"time_limit": Exit.TIME_LIMIT, "user": Exit.INTERRUPTED}
"""Exit code of ``binpack`` by the reason for which its search stopped early."""
_DEFAULT_COSTS = {"bin_cost": 1.0, "fire_up_cost": 0.0, "busy_cost": 0.0}
"""Costs that ``binpack`` takes for those not given if any is given, by argument of ``pack_for_cost``."""


@app.command()
def binpack(
    file: Annotated[
        Path,
        Argument(
            metavar="FILE",
            help="Text file: first line 'n capacity 0 0', then 'index start end size' of each item. With --gpu-model "
            "a CSV file with start, end, profile.",
        ),
    ],
    gpu_model: Annotated[
        str | None, Option(help="Pack MIG instances onto GPUs of this model; a unique prefix is enough.")
    ] = None,
    bin_cost: Annotated[
        float | None, Option(help="Minimize cost: cost of each GPU that is used. [default: 1 with another cost]")
    ] = None,
    fire_up_cost: Annotated[
        float | None, Option(help="Minimize cost: cost of each change of a GPU from empty to used.")
    ] = None,
    busy_cost: Annotated[
        float | None, Option(help="Minimize cost: cost of a unit of time in which a GPU is used.")
    ] = None,
    time_limit: Annotated[float, Option(min=0.1, help="Time limit in seconds.")] = 5.0,
    work_limit: Annotated[
        int | None, Option(min=1, help="Limit in million steps, for the same result on every machine.")
    ] = None,
    seed: Annotated[int, Option(min=0, help="Seed of the random numbers.")] = 0,
    out: Annotated[Path | None, Option("-o", "--out", help="CSV file that receives the bin of each item.")] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Pack jobs with known times onto the fewest GPUs.

    Also prints a proven lower bound on the number of GPUs.

    Example: gpuplanner binpack jobs.csv --gpu-model A100-80GB
    """
    from gpuplanner.core.output_writing import write_csv_safe
    from gpuplanner.planner.packing_files_and_verification import read_instances, read_packing

    require_outputs(out, inputs=[file])
    problem = read_packing(file) if gpu_model is None else read_instances(file, gpu_model)
    cost_options = {"bin_cost": bin_cost, "fire_up_cost": fire_up_cost, "busy_cost": busy_cost}
    costs = {name: cost for name, cost in cost_options.items() if cost is not None}
    limits: dict[str, Any] = {"time_limit_s": time_limit, "work_limit": work_limit, "seed": seed}
    result, packing = _pack_and_verify(file, problem, _DEFAULT_COSTS | costs if costs else {}, limits)
    if out is not None:
        write_csv_safe(out, packing.to_frame())
    show(result.to_dict(), as_json=as_json)
    notify_written(out, quiet=quiet)
    raise typer.Exit(_EXIT_BY_STOP_REASON.get(packing.stopped_by, Exit.DONE))


def _pack_and_verify(
    file: Path, problem: AnyPackingProblem, costs: dict[str, float], limits: dict[str, Any]
) -> tuple[Packing | CostedPacking, Packing]:
    """Pack items for the fewest GPUs, or for the lowest cost, and verify the result independently.

    Parameters
    ----------
    file : Path
        File of the problem, for errors.
    problem : AnyPackingProblem
        Items with their times and sizes.
    costs : dict of str to float
        Costs by argument of ``pack_for_cost``; empty: minimize the number of GPUs.
    limits : dict
        Time limit, work limit and seed of the search.

    Returns
    -------
    tuple
        Result to print, and the packing.
    """
    from gpuplanner.core.errors import require_no_faults
    from gpuplanner.planner.least_cost_packing import pack_for_cost
    from gpuplanner.planner.packing_files_and_verification import verify_cost, verify_packing
    from gpuplanner.planner.packing_search import pack

    if not costs:
        packing = pack(problem, **limits)
        require_no_faults(f"packing of {file}", verify_packing(packing, problem))
        return packing, packing
    costed_packing = pack_for_cost(problem, **(limits | costs))
    require_no_faults(f"packing of {file}", verify_cost(costed_packing, problem, **costs))
    return costed_packing, costed_packing.packing
