"""Coverage of the 90 % interval after a few days of data: ``python benchmarks/short_history.py OpenB --windows 24``.

Each public trace is cut into windows of 5, 10 and 20 days as if the cluster had begun with them: of jobs submitted
before nothing is known, and nothing of them counts in what came. Forecast are hours 6 to 30 behind each window, as
``forecast`` does; judged are tenants with demand in a tenth of the window. Ties shared out: a value that came and that
an end of the interval states as well counts by those of its levels that lie inside. Needs ``GPUPLANNER_DATA``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from gpuplanner.forecast.gpu_demand import lay_out_jobs
from gpuplanner.forecast.model_selection import realised_cost
from gpuplanner.forecast.rolling_demand_forecast import forecast_ahead
from gpuplanner.forecast.statistical_models import QUANTILE_LEVELS
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.public.job_lists import ITP_TRACE, OPENB_TRACE, PHILLY_TRACE
from gpuplanner.usage.planning_history import load_dataset, observation_ends_at

DATA = Path(os.environ.get("GPUPLANNER_DATA", "../shared/data"))
OPEN = DATA / "alibaba_gpu_v2023"
SOURCES: dict[str, Callable[[], Dataset]] = {
    "Philly": lambda: PHILLY_TRACE([DATA / "philly" / "philly.csv.gz"]),
    "ITP": lambda: ITP_TRACE(sorted((DATA / "itp").glob("*.csv.gz"))),
    "OpenB": lambda: OPENB_TRACE([OPEN / "openb_pod_list_default.csv.gz"], nodes=OPEN / "openb_node_list_gpu_node.csv"),
    "sample": lambda: load_dataset("sample"),
}
DAYS, GAP, HORIZON, BUSY = (5, 10, 20), 6, 24, 0.1
NAMES = [f"q{round(100 * level):02d}" for level in QUANTILE_LEVELS]
HOUR = timedelta(hours=1)


def cuts(trace: Dataset, days: int, windows: int, offset: float) -> list[datetime]:
    """Ends of windows, evenly from where a hundredth of all jobs has come; ``offset`` is a share of their distance."""
    submitted = trace.jobs["submit_time"].sort()
    first = submitted[len(submitted) // 100] + timedelta(days=days)
    room = observation_ends_at(trace) - (GAP + HORIZON) * HOUR - first
    shares = (np.arange(windows) + offset) / windows
    return [(first + float(share) * room).replace(minute=0, second=0, microsecond=0) for share in shares]


def told(trace: Dataset, days: int, cut: datetime) -> tuple[np.ndarray, np.ndarray]:
    """What came after a window (n_series, horizon), and quantiles said of it (n_series, horizon, n_levels)."""
    jobs = trace.jobs.filter(pl.col("gpus") > 0, pl.col("submit_time") >= cut - timedelta(days=days))
    if jobs["submit_time"].min() > cut - timedelta(days=days - 1):  # nobody was there
        return np.empty((0, HORIZON)), np.empty((0, HORIZON, len(QUANTILE_LEVELS)))
    source = lay_out_jobs(jobs, trace_end=observation_ends_at(trace), at=cut)
    _, table = forecast_ahead(source, horizon=HORIZON, gap=GAP, price=None)
    later = lay_out_jobs(jobs, trace_end=observation_ends_at(trace), at=observation_ends_at(trace))
    busy = (source.values > 0).mean(axis=1) >= BUSY
    ids = [uid for uid, often in zip(source.ids, busy, strict=True) if often and not uid.startswith("all/")]
    begin = source.slots + GAP
    came = np.array([later.values[later.ids.index(uid), begin : begin + HORIZON] for uid in ids])
    said = [table.filter(unique_id=uid).sort("ds").select(NAMES).to_numpy() for uid in ids]
    return came.reshape(-1, HORIZON), np.array(said).reshape(-1, HORIZON, len(QUANTILE_LEVELS))


def ties_shared_out(actual: np.ndarray, said: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Coverage where a value that holds several levels counts by those of them that lie in the interval."""
    levels, last = np.array(QUANTILE_LEVELS), len(QUANTILE_LEVELS) - 1
    edges = np.array([0.0, *(levels[1:] + levels[:-1]) / 2, 1.0])
    tied = np.isclose(said, actual[..., None], atol=1e-9)
    low, high = edges[tied.argmax(axis=-1)], edges[last - tied[..., ::-1].argmax(axis=-1) + 1]
    part = (np.minimum(high, levels[-1]) - np.maximum(low, levels[0])) / (high - low)
    return np.asarray(np.where(tied[..., 0] | tied[..., -1], np.clip(part, 0.0, 1.0), inside))


def measured(trace: Dataset, days: int, windows: int, offset: float) -> dict[str, float]:
    """Means over the windows, each a mean over its tenants."""
    inside, shared, width, loss, series = [], [], [], [], 0
    for cut in cuts(trace, days, windows, offset):
        came, said = told(trace, days, cut)
        if not len(came):
            continue
        series += len(came)
        within = (came >= said[..., 0]) & (came <= said[..., -1])
        inside.append(within.mean())
        shared.append(ties_shared_out(came, said, within).mean())
        need = max(float(came.mean()), 1.0)
        width.append((said[..., -1] - said[..., 0]).mean() / need)
        loss.append(2 * realised_cost(came, said, None).mean() / need)
    error = float(np.std(inside, ddof=1) / np.sqrt(len(inside)))
    return {
        "windows": len(inside),
        "tenants": series,
        "in 90 %": float(np.mean(inside)),
        "±": error,
        "ties shared out": float(np.mean(shared)),
        "width": float(np.median(width)),
        "pinball": float(np.median(loss)),
    }


def main() -> None:
    """Measure and print; width and pinball loss are medians by the mean need of the window."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="*", metavar="SOURCE", help=f"of {', '.join(SOURCES)}; default: all")
    parser.add_argument("--windows", type=int, default=12)
    parser.add_argument("--offset", type=float, default=0.5, help="from 0 to 1: other windows of the same traces")
    asked = parser.parse_args()
    rows = []
    for name in asked.sources or SOURCES:
        trace = SOURCES[name]()
        for days in DAYS:
            rows.append({"source": name, "days": days} | measured(trace, days, asked.windows, asked.offset))
            print({key: round(one, 3) if isinstance(one, float) else one for key, one in rows[-1].items()})
    with pl.Config(tbl_rows=-1, float_precision=3):
        print(pl.DataFrame(rows))


if __name__ == "__main__":
    main()
