"""CPU, time and memory of the backtest on many series: ``python benchmarks/forecast_scale.py 100 --workers 2``.

Tenants of made-up jobs, 90 days by the hour, eight origins, the default candidates of ``forecast --backtest``;
``--fast`` leaves out those that smooth, which cost most. ``--open 1000`` measures sample paths of one series instead,
with so many jobs open at the origin.
"""

from __future__ import annotations

import argparse
import resource
import time
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl

from gpuplanner.forecast.gpu_demand import lay_out_jobs
from gpuplanner.forecast.model_selection import fold_scores, mean_scores
from gpuplanner.forecast.rolling_demand_forecast import rolling_backtest
from gpuplanner.forecast.run_off import RUN_OFF_SAMPLE_PATHS, lay_out_run_off
from gpuplanner.forecast.statistical_models import affordable_candidates

START = datetime(2026, 1, 5, tzinfo=UTC)
DAYS, FOLDS, HORIZON, GAP = 90, 8, 24, 6
JOBS_A_DAY = 12
FAST = ("Naive", "SeasonalNaive", "WeeklyNaive", "WeeklyMean", "Reverting", "HourOfDay")


def made_up(tenants: int, seed: int = 1) -> pl.DataFrame:
    """Jobs that come with the day and last from minutes to days."""
    rng = np.random.default_rng(seed)
    count = tenants * DAYS * JOBS_A_DAY
    day, hour = rng.integers(0, DAYS, count), rng.normal(14, 4, count) % 24
    submit = [START + timedelta(hours=float(one)) for one in 24 * day + hour]
    run = np.exp(rng.normal(np.log(1.5), 1.3, count))
    end = [begin + timedelta(hours=float(one)) for begin, one in zip(submit, run, strict=True)]
    over = np.array(end) <= START + timedelta(days=DAYS)
    return pl.DataFrame(
        {
            "job_id": np.arange(count).astype(str),
            "attempt": 1,
            "tenant": np.char.add("t", np.char.zfill(rng.integers(0, tenants, count).astype(str), 4)),
            "submit_time": submit,
            "start_time": submit,
            "end_time": [one if done else None for one, done in zip(end, over, strict=True)],
            "state": np.where(over, "COMPLETED", "RUNNING"),
            "gpus": rng.choice([1.0, 2.0, 4.0, 8.0], count, p=[0.6, 0.2, 0.1, 0.1]),
        }
    )


def used() -> float:
    """CPU seconds of this process and of those that it began."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in both)


def paths_of(count: int, *, mean_h: float = 60.0, days: int = 60) -> None:
    """Print CPU seconds of one forecast by sample paths with about so many jobs open."""
    rng = np.random.default_rng(1)
    hours = 24 * days
    submit = np.sort(rng.uniform(0, hours, int(count / mean_h * hours)))
    end = submit + rng.exponential(mean_h, len(submit))
    at = [START + timedelta(hours=float(hour)) for hour in submit]
    jobs = pl.DataFrame(
        {
            "job_id": np.arange(len(submit)).astype(str),
            "attempt": 1,
            "tenant": "a",
            "submit_time": at,
            "start_time": at,
            "end_time": [None if one > hours else START + timedelta(hours=float(one)) for one in end],
            "state": np.where(end > hours, "RUNNING", "COMPLETED"),
            "gpus": rng.choice([1.0, 2.0, 4.0, 8.0], len(submit)),
        }
    )
    known = lay_out_run_off(jobs, start=START)
    for steps in (GAP + HORIZON, 168):
        known.draws(["a"], hours, steps, 1)
        cpu = time.process_time()
        for seed in range(10):
            known.draws(["a"], hours, steps, seed)
        spent = (time.process_time() - cpu) / 10
        print(
            f"{(end > hours).sum()} of {len(submit)} jobs open, {RUN_OFF_SAMPLE_PATHS} paths of {steps} h: "
            f"{spent:.3f} CPU s a forecast"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("series", type=int, nargs="?", default=100)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--open", type=int)
    asked = parser.parse_args()
    if asked.open:
        paths_of(asked.open)
        return
    source = lay_out_jobs(made_up(asked.series), trace_end=START + timedelta(days=DAYS))
    models = FAST if asked.fast else affordable_candidates(0.5, FOLDS)[0]
    began, cpu = time.perf_counter(), used()
    judged = rolling_backtest(
        source, horizon=HORIZON, gap=GAP, cutoffs=FOLDS, models=models, price=10.0, with_known=not asked.fast,
        workers=asked.workers,
    )  # fmt: skip
    scores = fold_scores(judged)
    peak = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(mean_scores(scores).select("model", "mase", "coverage_90", "cpu_s"))
    print({name: round(value, 1) for name, value in judged.test.cpu_s.items()})
    print(
        f"{len(source.ids)} series, {source.slots} hours, {asked.workers} processes: {used() - cpu:.0f} CPU s, "
        f"{time.perf_counter() - began:.0f} s, at most {peak / 2**20:.2f} GiB (largest child counted once)"
    )


if __name__ == "__main__":
    main()
