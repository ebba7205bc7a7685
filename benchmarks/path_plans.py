"""Plans from sample paths in weeks kept back, beside the fixed quantile: ``python benchmarks/path_plans.py``.

The sample, and months of its generator, are cut at each origin; both plans are made of what is known then, and the
jobs of the week after it, as they were, are played on each. Cost is GPU-hours on, and the price of a GPU-hour unmet for
every GPU-hour that jobs wait. ``--method milp`` plans with any number of sets of layouts.
"""

from __future__ import annotations

import argparse
import runpy
import tempfile
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from gpuplanner.inbox import Dataset, write_dataset
from gpuplanner.metrics import measure
from gpuplanner.scenario import Scenario
from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.simulate import Calendar, simulate
from gpuplanner.study.future.path_plans import path_plans
from gpuplanner.study.future.workload import fleet_and_rules, past_jobs, workload
from gpuplanner.study.past.history import begin_of, history, load_trace

HERE = Path(__file__).parent
HORIZON_S = 168 * 3600.0


def cut(trace: Dataset, at: datetime, place: Path) -> str:
    """What an ingest at an instant would have written, but for the ends of jobs, which a study leaves out itself."""
    jobs = trace.jobs.filter(pl.col("submit_time") < at)
    kept = replace(trace.with_tables(jobs=jobs), provenance={**trace.provenance, "span_end": at.isoformat()})
    write_dataset(kept, place)
    return str(place)


def week_after(scenario: Scenario, at: datetime) -> pl.DataFrame:
    """Jobs that run or wait at an instant, with the rest of their time, and those of the week after it."""

    def since(column: str) -> pl.Expr:
        return (pl.col(column) - pl.lit(at)).dt.total_microseconds() / 1e6

    begun = since("start_time").fill_null(0.0) < 0
    past = past_jobs(history(scenario)).filter(since("submit_time") < HORIZON_S)
    left = since("start_time") + pl.col("run_s")
    open_jobs = past.filter((since("submit_time") < 0) & (~begun | (left > 0))).with_columns(
        submit_s=pl.when(begun).then(-2.0).otherwise(-1.0),
        run_s=pl.when(begun).then(left).otherwise("run_s"),
    )
    later = past.filter(since("submit_time") >= 0).with_columns(submit_s=since("submit_time"))
    order = ("submit_s", "start_time", "submit_time", "key")
    jobs = (
        pl.concat([open_jobs, later])
        .sort(order)
        .with_columns(job_id="key", limit_s=pl.max_horizontal("limit_s", "run_s"))
    )
    return workload(jobs, "rightsized")


def played(planned, jobs: pl.DataFrame, scenario: Scenario) -> tuple[float, float, float]:
    """GPU-hours on, GPU-hours that jobs waited for, and the share of jobs that began within ten minutes."""
    fleet, rules = fleet_and_rules(scenario, history(scenario))
    made = planned.plan
    hours = Calendar(3600.0 * np.arange(len(made.counts)), made.layouts, made.counts)
    run = simulate(jobs, fleet, hours, rules, policy="plan", until_s=HORIZON_S, leave_unservable=True)
    names = jobs["profile"].unique().to_list()
    share = {name: 1.0 if name == WHOLE_GPU else fleet.model.share(name) for name in names}
    begun = pl.col("first_start").cast(pl.Float64).fill_null(HORIZON_S).clip(0, HORIZON_S)
    waits = run.outcomes.join(
        jobs.select("job_id", "profile", "submit_s", n="gpus"), on="job_id", how="inner"
    ).select(
        wait=(begun - pl.col("submit_s").clip(0)).clip(0),
        gpus=pl.col("n") * pl.col("profile").replace_strict(share, return_dtype=pl.Float64),
    )
    on = measure(run, fleet.model, window=(0.0, HORIZON_S))["provisioned_gpu_hours"]
    return on, (waits["wait"] * waits["gpus"]).sum() / 3600, float((waits["wait"] <= 600).mean())


def main() -> None:
    """Print a line for each plan and origin, and the spread over origins."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--months", type=int, default=0, help="Months of the generator beside the sample.")
    parser.add_argument("--days", default="14,17,21", help="Days of the month that are origins.")
    parser.add_argument("--method", default=None)
    asked = parser.parse_args()
    make = runpy.run_path(str(HERE.parent / "data" / "make_sample.py"))["make_sample"]
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        traces = {"sample": load_trace("sample")}
        for seed in range(1001, 1001 + asked.months):
            traces[f"month-{seed}"] = make(seed)
        for title, trace in traces.items():
            whole = Scenario(data=str(write_dataset(trace, Path(name) / title)))
            for day in map(int, asked.days.split(",")):
                at = begin_of(trace) + timedelta(days=day)
                scenario = Scenario(data=cut(trace, at, Path(name) / f"{title}-{day}"))
                found, jobs, costs = (
                    path_plans(scenario, most=3, method=asked.method),
                    week_after(whole, at),
                    {},
                )
                for plan in dict.fromkeys([found.fixed, found.best]):
                    on, waited, soon = played(found.candidates[plan], jobs, scenario)
                    costs[plan] = on + scenario.unmet_price * waited
                    print(
                        f"{title:12} day {day:2} {plan:26} cost {costs[plan]:9,.0f}  GPU-h on {on:7,.0f}  waited for "
                        f"{waited:7,.0f}  within 10 min {soon:.3f}",
                        flush=True,
                    )
                ratios.append(costs[found.best] / costs[found.fixed])
    logs = np.log(ratios)
    error = logs.std(ddof=1) / np.sqrt(len(logs)) if len(logs) > 1 else 0.0
    print(
        f"cost of the plan from paths over that of the fixed quantile, geometric mean over {len(logs)} weeks: "
        f"{np.exp(logs.mean()):.3f} (times or over {np.exp(error):.3f}), {min(ratios):.3f} to {max(ratios):.3f}"
    )


if __name__ == "__main__":
    main()
