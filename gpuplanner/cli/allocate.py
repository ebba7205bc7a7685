"""The command that places pods on nodes as they arrive: ``allocate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuplanner.cli.app import app, put, say
from gpuplanner.cli.options import Json, Quiet
from gpuplanner.cli.show import plain, show_frame


@app.command()
def allocate(
    pods: Annotated[
        Path,
        typer.Argument(
            metavar="PODS", help="CSV with name, cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec."
        ),
    ],
    nodes: Annotated[
        Path, typer.Option("--nodes", metavar="NODES", help="CSV with sn, cpu_milli, memory_mib, gpu, model.")
    ],
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            help="first-fit, best-fit, worst-fit, dot-product, gpu-packing, random, or fgd: "
            "fragmentation gradient descent.",
        ),
    ] = "fgd",
    orders: Annotated[
        int, typer.Option("--orders", min=0, help="Orders of arrival to draw; 0 takes the lists as they are.")
    ] = 1,
    up_to: Annotated[
        float, typer.Option("--up-to", help="Demand that arrives in a drawn order, over the GPUs there are.")
    ] = 1.3,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Seed of the first order; the next have the next seeds.")
    ] = 0,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write what became of each arrival here, as CSV.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Place pods with CPU, memory and GPU shares on nodes as they arrive, and say what was lost in fragments."""
    import polars as pl

    from gpuplanner.files import require_file, to_json, write_atomically
    from gpuplanner.placement import allocate, as_listed, draw_arrivals, mean_curve, read_nodes, read_pods

    if out is not None:
        require_file(out, inputs=[pods, nodes])
    asked, there = read_pods(pods), read_nodes(nodes)
    seeds = range(seed, seed + max(orders, 1))
    found = [
        allocate(
            asked,
            there,
            policy,
            arrivals=draw_arrivals(asked, there, seed=one, up_to=up_to)
            if orders
            else as_listed(asked, there),
            seed=one,
        )
        for one in seeds
    ]
    runs = pl.DataFrame([{"seed": one} | run.to_dict() for one, run in zip(seeds, found, strict=True)])
    curve, unplaced = mean_curve(found), found[0].unplaced()
    if as_json:
        tables = {"runs": runs, "curve": curve, "unplaced_in_first_run": unplaced}
        put(to_json(plain({name: table.to_dicts() for name, table in tables.items()})))
    else:
        show_frame(runs, as_json=False, title="Orders of arrival")
        show_frame(curve, as_json=False, title="Share of all GPUs, by demand arrived")
        show_frame(unplaced, as_json=False, title=f"Left out, seed {seed}")
    if out is not None:
        table = pl.concat(
            run.to_frame().insert_column(0, pl.lit(one).alias("seed"))
            for one, run in zip(seeds, found, strict=True)
        )
        write_atomically(out, table.write_csv)
        if not quiet:
            say(f"written: {out}")
