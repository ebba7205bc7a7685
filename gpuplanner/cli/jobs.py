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
    """Schedule a job list and print its totals, with the CPU seconds of the event loop and with its tables."""
    from gpuplanner.simulate import Fleet, Rules, prepare, read_job_list, totals
    from gpuplanner.simulate.gangs import to_gangs
    from gpuplanner.simulate.schedule import checked_gangs, outcomes_of, run

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
    fleet = Fleet("H100-80GB-SXM5", gpus // size, size)
    begin = time.process_time()
    table = checked_gangs(jobs, fleet, rules)
    gangs = to_gangs(table, fleet, rules)
    loop = time.process_time()
    run(gangs, rules)
    looped = time.process_time()
    outcomes = outcomes_of(table, gangs, rules.order)
    seconds = {"seconds": looped - loop, "seconds_with_tables": time.process_time() - begin}
    show(totals(outcomes) | seconds, as_json=as_json)
