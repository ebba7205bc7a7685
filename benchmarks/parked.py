"""What parking GPUs changes on the sample: departures, changes, GPU-hours and waits, beside GPUs that are released.

Run ``python benchmarks/parked.py`` (about a minute). All plans cover the same demand; the first is also priced as each
other is, with the best that parked GPUs could keep under it. Each is played on the same drawn weeks. ``None`` is the
price of idle power on the sample.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from gpuplanner.metrics import measure
from gpuplanner.planner.methods.best_path import parked_best
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.planner.program.realised_cost import counts_in
from gpuplanner.scenario import Scenario
from gpuplanner.simulate import Calendar, Fleet, Rules, simulate
from gpuplanner.solving.effort import Effort
from gpuplanner.study.future.plans import planned_calendar
from gpuplanner.study.future.workload import past_jobs, replicate, workload
from gpuplanner.study.past.history import history

WEEKS = 12
PRICES = ("released", None, 0.0, 0.1)


def priced(released, parked) -> float:
    """Cost of the GPUs on of one plan at the prices of another's problem."""
    named = dict.fromkeys(released.plan.layouts, 0) | dict(parked.problem.initial)
    fluid = Fluid.of(replace(parked.problem, initial=named))
    counts = counts_in(fluid, released.plan.layouts, released.plan.counts)
    effort = Effort.begin(gap_target=0.005, time_limit_s=60, seed=0, solver="highs")
    return fluid.cost(parked_best(fluid, counts, effort), before=fluid.initial)


def calendar_of(planned) -> Calendar:
    """The counts of a plan as the simulator's calendar."""
    problem, made = planned.problem, planned.plan
    starts = 3600.0 * problem.slot_hours * np.arange(problem.n_slots)
    return Calendar(starts, made.layouts, made.counts, parked=None if problem.prices is None else made.parked)


def main() -> None:
    """Print one line for each price of an hour parked."""
    print(
        f"{'parked_price':12} {'cost':>9} {'gap %':>6} {'CPU s':>6} {'departures':>10} {'changes':>8} ",
        end="",
    )
    print(f"{'on-hours':>9} {'recut':>6} {'wait s':>7} {'in 10 min':>9}  released at these prices")
    released = None
    for price in PRICES:
        scenario = Scenario(parked_price=price, replications=WEEKS, time_limit_s=60.0)
        cpu = time.process_time()
        planned = planned_calendar(scenario)
        cpu = time.process_time() - cpu
        known = history(scenario)
        past = past_jobs(known)
        fleet = Fleet(known.fleet.board, known.fleet.nodes, known.fleet.gpus_per_node)
        rules = Rules(scenario.queue, scenario.substitute, change=scenario.change(fleet.model))
        until, rows = scenario.horizon_slots * scenario.slot_s, []
        for week in range(WEEKS):
            jobs = workload(replicate(scenario, known, past, week), "rightsized")
            run = simulate(
                jobs, fleet, calendar_of(planned), rules, policy="plan", until_s=until, leave_unservable=True
            )
            found = measure(run, fleet.model, window=(0.0, until))
            waits = run.outcomes["wait_s"].drop_nulls()
            rows.append(
                (
                    found["provisioned_gpu_hours"],
                    found["reconfigurations"],
                    waits.mean(),
                    (waits <= 600).mean(),
                )
            )
        hours, recut, wait, within = np.mean(rows, axis=0)
        one = planned.plan
        released = released or planned
        beside = "" if planned.problem.prices is None else f"{priced(released, planned):.1f}"
        print(
            f"{price!s:12} {one.objective:9.1f} {100 * one.gap:6.2f} {cpu:6.1f} {one.departures:10} {one.changes:8} "
            f"{hours:9.1f} {recut:6.1f} {wait:7.1f} {within:9.5f}  {beside}",
            flush=True,
        )


if __name__ == "__main__":
    main()
