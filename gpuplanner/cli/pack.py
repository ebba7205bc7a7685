"""The command that packs jobs into bins over time: ``pack``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuplanner.cli.app import Exit, app, say
from gpuplanner.cli.options import Json, Overwrite, Quiet
from gpuplanner.cli.show import show

if TYPE_CHECKING:
    from gpuplanner.packing.result import CostedPacking, Packing
    from gpuplanner.packing.problem import AnyProblem

_EXITS = {"time_limit": Exit.TIME_LIMIT, "user": Exit.INTERRUPTED}
_COSTS = {"bin_cost": 1.0, "fire_up_cost": 0.0, "busy_cost": 0.0}


@app.command()
def pack(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="First line 'n capacity 0 0', then 'index start end size' of each item; "
            "with --board, CSV with start, end, profile.",
        ),
    ],
    board: Annotated[
        str | None,
        typer.Option("--board", help="Pack MIG instances onto GPUs of this board; a unique prefix will do."),
    ] = None,
    bin_cost: Annotated[
        float | None,
        typer.Option(
            "--bin-cost", help="Pack for cost: that of a GPU in use at all; 1 if only others are given."
        ),
    ] = None,
    fire_up_cost: Annotated[
        float | None,
        typer.Option(
            "--fire-up-cost", help="Pack for cost: that of each change of a GPU from empty to used."
        ),
    ] = None,
    busy_cost: Annotated[
        float | None,
        typer.Option("--busy-cost", help="Pack for cost: that of a unit of time that a GPU is used."),
    ] = None,
    time_limit: Annotated[float, typer.Option("--time-limit", min=0.1, help="Most seconds.")] = 5.0,
    work_limit: Annotated[
        int | None,
        typer.Option(
            "--work-limit",
            min=1,
            help="Most million steps; if it ends the search, the answer does not depend on the machine's speed.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of everything random.")] = 0,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write the bin of each item here, as CSV.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Pack jobs that start, end and take a part of a GPU into few GPUs, or cheap ones, with a proven bound."""
    from gpuplanner.files.place import require_file
    from gpuplanner.files.csv import write_csv_safe
    from gpuplanner.packing.read import read_instances, read_packing

    if out is not None:
        require_file(out, inputs=[file])
    problem = read_packing(file) if board is None else read_instances(file, board)
    asked = {"bin_cost": bin_cost, "fire_up_cost": fire_up_cost, "busy_cost": busy_cost}
    costs = {name: cost for name, cost in asked.items() if cost is not None}
    limits: dict[str, Any] = {"time_limit_s": time_limit, "work_limit": work_limit, "seed": seed}
    told, packing = _packed(file, problem, _COSTS | costs if costs else {}, limits)
    if out is not None:
        write_csv_safe(out, packing.to_frame())
    show(told.to_dict(), as_json=as_json)
    if out is not None and not quiet:
        say(f"written: {out}")
    raise typer.Exit(_EXITS.get(packing.stopped_by, Exit.DONE))


def _packed(
    file: Path, problem: AnyProblem, costs: dict[str, float], limits: dict[str, Any]
) -> tuple[Packing | CostedPacking, Packing]:
    """What there is to say, and the packing: for few bins, or for the costs; checked again."""
    from gpuplanner.errors import require_sound
    from gpuplanner.packing.search import pack
    from gpuplanner.packing.costs import pack_for_cost
    from gpuplanner.packing.verify import verify_cost, verify_packing

    if not costs:
        found = pack(problem, **limits)
        require_sound(f"packing of {file}", verify_packing(found, problem))
        return found, found
    cheap = pack_for_cost(problem, **(limits | costs))
    require_sound(f"packing of {file}", verify_cost(cheap, problem, **costs))
    return cheap, cheap.packing
