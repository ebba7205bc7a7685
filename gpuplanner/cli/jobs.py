"""``simulate --jobs``: a job list on whole GPUs."""

from __future__ import annotations

import time
from pathlib import Path

import typer

from gpuplanner.cli.app import Exit, say
from gpuplanner.cli.show import show


def simulate_jobs(
    path: Path, gpus: int | None, per_node: int | None, order: str, queue: str, *, as_json: bool, quiet: bool
) -> None:
    """Schedule a job list and print its totals, with the CPU seconds of the simulation."""
    from gpuplanner.simulate import Fleet, Rules, prepare, read_job_list, schedule, totals

    if gpus is None:
        say("gpuplanner: --jobs needs --gpus, the number of GPUs to simulate")
        raise typer.Exit(Exit.USAGE)
    size = per_node or gpus
    if gpus < 1 or size < 1 or gpus % size:
        say(f"gpuplanner: --gpus {gpus} is not a number of whole nodes of {size} GPUs")
        raise typer.Exit(Exit.USAGE)
    rules = Rules(order=order, queue=queue)
    jobs, remarks = read_job_list(path)
    if not quiet:
        for remark in remarks:
            say(f"{path.name}: {remark}")
    prepare(rules)
    begin = time.process_time()
    outcomes = schedule(jobs, Fleet("H100-80GB-SXM5", gpus // size, size), rules, policy=rules.order)
    show(totals(outcomes) | {"seconds": time.process_time() - begin}, as_json=as_json)
