"""What ``simulate --jobs`` does: a job list under one order and queue, with the lab's among them."""

from __future__ import annotations

import time
from pathlib import Path

from gpuplanner.cli.app import put, say
from gpuplanner.cli.show import show, show_frame


def simulate_jobs(
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
    from gpuplanner.lab.gangs import prepare, run_gangs
    from gpuplanner.lab.gangs.arrays import to_gangs
    from gpuplanner.lab.gangs.schedule import checked_gangs, outcomes_of
    from gpuplanner.lab.job_lists import (
        distribution,
        fragmentation,
        fragmentation_totals,
        read_job_list,
        totals,
    )
    from gpuplanner.lab.orders import ResearchRules
    from gpuplanner.metrics import always_on, measure
    from gpuplanner.simulate import Fleet

    order, queue = served
    rules = ResearchRules(order=order, queue=queue)
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
    rules.run(gangs)
    looped = time.process_time()
    outcomes = outcomes_of(table, gangs, rules.order)
    seconds = {"seconds": looped - loop, "seconds_with_tables": time.process_time() - begin}
    told, spread = totals(outcomes) | seconds, distribution(outcomes)
    if idle:
        run = run_gangs(jobs, fleet, rules, policy=order)
        told |= fragmentation_totals(fragmentation(run, nodes=nodes[0], gpus_per_node=nodes[1]))
        used = measure(always_on(run, fleet.gpus), fleet.board)
        told |= {name: float(used[name] or 0.0) for name in ("busy_gpu_hours", "useful_gpu_hours")}
    if as_json:
        show(told | {"distribution": spread.to_dicts()}, as_json=True)
        return
    show(told, as_json=False)
    put("")
    show_frame(spread, as_json=False, title="Measures of single jobs; tail_mean: of the worst 5 %")
