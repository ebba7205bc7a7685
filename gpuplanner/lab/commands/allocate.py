"""The command that places pods on nodes, or MIG instances on GPUs, as they arrive: ``allocate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuplanner.cli.app import app, put, say
from gpuplanner.cli.options import Json, Quiet
from gpuplanner.cli.show import show, show_frame

if TYPE_CHECKING:
    import polars as pl


@app.command()
def allocate(
    pods: Annotated[
        Path,
        typer.Argument(
            metavar="PODS",
            help="CSV with name, cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec; "
            "with --board, with name, profile.",
        ),
    ],
    nodes: Annotated[
        Path | None,
        typer.Option("--nodes", metavar="NODES", help="CSV with sn, cpu_milli, memory_mib, gpu, model."),
    ] = None,
    board: Annotated[
        str | None,
        typer.Option("--board", help="Place MIG instances on GPUs of this board; a unique prefix will do."),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus", min=1, help="With --board: GPUs that there are.")
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            help="first-fit, best-fit, worst-fit, dot-product, gpu-packing, random, or fgd: "
            "fragmentation gradient descent. With --board first-fit, best-fit or fgd.",
        ),
    ] = "fgd",
    orders: Annotated[
        int | None,
        typer.Option(
            "--orders", min=0, help="Orders of arrival to draw, else one; 0 takes the lists as they are."
        ),
    ] = None,
    up_to: Annotated[
        float | None,
        typer.Option(
            "--up-to", help="Demand that arrives in a drawn order, over the GPUs there are; else 1.3."
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, help="Seed of the first order, else 0; the next have the next seeds."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write what became of each arrival here, as CSV.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Place pods on nodes, or MIG instances on GPUs, as they arrive, and say what was lost in fragments."""
    from gpuplanner.files import require_file
    from gpuplanner.files.csv import write_csv_safe

    if (nodes is None) == (board is None):
        text = "allocate needs --nodes NODES for pods, or --board BOARD for MIG instances"
        raise typer.BadParameter(text)
    if (gpus is None) != (board is None):
        text = "--board and --gpus go together"
        raise typer.BadParameter(text)
    if out is not None:
        require_file(out, inputs=[path for path in (pods, nodes) if path is not None])
    if board is not None and gpus is not None:
        if any(option is not None for option in (orders, up_to, seed)):
            text = (
                "--orders, --up-to and --seed mean nothing with --board: instances arrive as they are listed"
            )
            raise typer.BadParameter(text)
        table = _instances(pods, board, gpus, policy, as_json=as_json)
    else:
        assert nodes is not None
        count, most = 1 if orders is None else orders, 1.3 if up_to is None else up_to
        table = _pods(pods, nodes, policy, orders=count, up_to=most, seed=seed or 0, as_json=as_json)
    if out is not None:
        write_csv_safe(out, table)
        if not quiet:
            say(f"written: {out}")


def _pods(
    pods: Path, nodes: Path, policy: str, *, orders: int, up_to: float, seed: int, as_json: bool
) -> pl.DataFrame:
    """Place pods in each order of arrival, check and show it; what became of each arrival."""
    import polars as pl

    from gpuplanner.errors import require_sound
    from gpuplanner.lab.placement import (
        allocate,
        as_listed,
        draw_arrivals,
        left_by_model,
        mean_curve,
        read_nodes,
        read_pods,
        verify_allocation,
    )

    asked, there = read_pods(pods), read_nodes(nodes)
    found = {}
    for one in range(seed, seed + max(orders, 1)):
        drawn = draw_arrivals(asked, there, seed=one, up_to=up_to) if orders else as_listed(asked, there)
        found[one] = allocate(asked, there, policy, arrivals=drawn, seed=one)
        require_sound(f"{pods}, seed {one}", verify_allocation(found[one]))
    tables = {
        "runs": pl.DataFrame([{"seed": one} | run.to_dict() for one, run in found.items()]),
        "curve": mean_curve(list(found.values())),
        "unplaced_in_first_run": found[seed].unplaced(),
        "left_in_first_run": left_by_model(found[seed]),
    }
    titles = (
        "Orders of arrival",
        "Share of all GPUs, by demand arrived",
        f"Left out, seed {seed}",
        f"Idle and fragmented in the end, seed {seed}",
    )
    if as_json:
        show({name: table.to_dicts() for name, table in tables.items()}, as_json=True)
    else:
        for title, table in zip(titles, tables.values(), strict=True):
            show_frame(table, as_json=False, title=title)
    seeded = (run.to_frame().insert_column(0, pl.lit(one).alias("seed")) for one, run in found.items())
    return pl.concat(seeded)


def _instances(listed: Path, board: str, gpus: int, rule: str, *, as_json: bool) -> pl.DataFrame:
    """Place MIG instances as they are listed, check and show it; what became of each."""
    from gpuplanner.errors import require_sound
    from gpuplanner.lab.placement import left_by_layout, place_instances, read_requests, verify_instances

    asked = read_requests(listed)
    found = place_instances(board, asked["profile"].to_list(), gpus, rule=rule)
    require_sound(str(listed), verify_instances(found))
    tables = {"profiles": found.by_profile(), "layouts": left_by_layout(found)}
    if as_json:
        show(found.to_dict() | {name: table.to_dicts() for name, table in tables.items()}, as_json=True)
    else:
        show(found.to_dict(), as_json=False)
        put("")
        show_frame(tables["profiles"], as_json=False, title="Instances by profile")
        show_frame(
            tables["layouts"], as_json=False, title="GPUs by layout; free and fragmented slices of each"
        )
    return found.to_frame().insert_column(0, asked["name"])
