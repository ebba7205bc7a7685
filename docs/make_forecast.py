"""Measure the forecast on the public traces and write ``docs/forecast.md``: ``python docs/make_forecast.py``.

Needs ``GPUPLANNER_DATA``. Takes a few CPU minutes on one core; the same data give the same figures.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from gpuplanner.forecast import CANDIDATES, CHOSEN, LEVELS, Judged, realised
from gpuplanner.inbox import Dataset
from gpuplanner.inbox.public.job_lists import read_itp
from gpuplanner.inbox.public.occupancy import read_helios_sequence
from gpuplanner.inbox.public.openb import read_openb
from gpuplanner.inbox.public.philly import read_philly
from gpuplanner.study.future.gpus_wanted import Wanted, laid_out, occupied
from gpuplanner.study.future.rolling import rolling
from gpuplanner.study.past.history import end_of, load_trace

DATA = Path(os.environ.get("GPUPLANNER_DATA", "../shared/data"))
FEWEST_JOBS = 500
PRICE = 5.0
GAP, HORIZON, FOLDS = 6, 24, 20
LEADS = ((0, 6), (6, 30), (30, 72), (72, 168))
LEAD_FOLDS = 34
"""Of which 13 only calibrate: 21 are judged."""
MIDDLE = LEVELS.index(0.5)
INTRO = """# The forecast, measured

Made by `python docs/make_forecast.py` from the public traces. Hourly GPUs wanted by virtual cluster or tenant with at
least {jobs} jobs; {folds} origins over the last half of each trace, at hours that walk through the day, of which the
first {calibrate} only calibrate; the first {gap} hours behind an origin are not judged, the {horizon} after them are.
Quantiles and choice at an origin come from earlier origins alone. MASE of the median and twice the pinball loss, both
in units of the seasonal naive error before the origin; cost of planning at the quantile of the price (a GPU-hour short
costs {price:g}, one planned 1), per GPU-hour needed; share of slots in the 90 % interval. Means over the series;
`chosen` is what somebody would have got; ± is the standard error over the origins, each a mean over the series.

What can be tuned (weights of past blocks, pseudo-events of hazards, what is believed of a candidate before it was
tried) was set on these traces; with origins 17 or 40 hours earlier the three
ratios of all sources together are 0.85, 0.84, 0.86 and 0.86, 0.78, 0.87.
"""


def sources() -> Iterator[tuple[str, Wanted]]:
    """Every source with its series."""
    public = DATA / "alibaba_gpu_v2023"
    yield "Philly", _large(read_philly([DATA / "philly" / "philly.csv.gz"]))
    yield "ITP", _large(read_itp(sorted((DATA / "itp").glob("*.csv.gz"))))
    nodes = public / "openb_node_list_gpu_node.csv"
    yield "OpenB", _large(read_openb([public / "openb_pod_list_default.csv.gz"], nodes=nodes))
    yield "sample", _large(load_trace("sample"))
    earth = read_helios_sequence(sorted((DATA / "helios" / "Earth_vcs").glob("*/cluster_sequence_vc.csv.gz")))
    yield "Helios Earth", occupied(earth.tables["occupancy"], 1.0, None)


def _large(trace: Dataset) -> Wanted:
    """Tenants with enough jobs to be judged; where none has, all of them."""
    jobs = trace.jobs.filter(pl.col("gpus") > 0)
    counts = jobs.group_by("tenant").len()
    large = counts.filter(pl.col("len") >= FEWEST_JOBS)["tenant"].to_list()
    few = load_trace("sample").jobs.height  # the sample is ours: all of its tenants count
    chosen = large if trace.jobs.height != few else counts["tenant"].to_list()
    return laid_out(jobs.filter(pl.col("tenant").is_in(chosen)), trace_end=end_of(trace))


def tenants(judged: Judged) -> np.ndarray:
    """Numbers of the series that are not sums of others."""
    return np.flatnonzero([not uid.startswith("all/") for uid in judged.test.grid.ids])


def figures(judged: Judged, part: slice = slice(None)) -> dict[str, dict[str, np.ndarray]]:
    """Measures by candidate; ``mase`` and ``pinball`` by series and judged origin, the others by series."""
    test, rows = judged.test, tenants(judged)
    origins = slice(judged.first, None)
    found = {}
    every = judged.quantiles | {CHOSEN: judged.of_chosen(judged.quantiles)}
    actual, scale = test.actual[rows, origins, part], test.scale[rows, origins]
    for model, quantiles in every.items():
        said = quantiles[rows, origins, part]
        cost = realised(actual, said, PRICE)
        inside = (actual >= said[..., 0]) & (actual <= said[..., -1])
        found[model] = {
            "mase": np.abs(actual - said[..., MIDDLE]).mean(axis=2) / scale,
            "pinball": 2 * realised(actual, said, None).mean(axis=2) / scale,
            "cost": cost.sum(axis=(1, 2)) / np.maximum(actual.sum(axis=(1, 2)), 1e-9),
            "coverage": inside.mean(axis=(1, 2)),
            "busy": (actual > 0).mean(axis=(1, 2)),
        }
    return found


def _with_error(values: np.ndarray) -> str:
    """Mean, and its standard error over the origins."""
    by_origin = np.nanmean(values, axis=0)
    return f"{np.nanmean(values):.3f} ± {by_origin.std(ddof=1) / np.sqrt(len(by_origin)):.3f}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines) + "\n"


def main() -> None:
    """Measure and write."""
    text = [INTRO.format(jobs=FEWEST_JOBS, folds=FOLDS, calibrate=8, gap=GAP, horizon=HORIZON, price=PRICE)]
    logs: dict[str, list[float]] = {"MASE / AutoETS": [], "MASE / Naive": [], "pinball / AutoETS": []}
    leads = []
    for name, source in sources():
        judged = rolling(source, horizon=HORIZON, gap=GAP, folds=FOLDS, models=CANDIDATES, price=PRICE)
        found = figures(judged)
        rows = [
            [model, _with_error(one["mase"]), _with_error(one["pinball"]), f"{one['cost'].mean():.3f}",
             f"{one['coverage'].mean():.3f}", f"{one['coverage'].min():.2f} to {one['coverage'].max():.2f}"]
            for model, one in found.items()
        ]  # fmt: skip
        best = min(one["cost"].mean() for model, one in found.items() if model != CHOSEN)
        busy = found[CHOSEN]["busy"] >= 0.1
        within = ((found[CHOSEN]["coverage"] >= 0.8) & (found[CHOSEN]["coverage"] <= 0.97))[busy].mean()
        test = judged.test
        remarks = " ".join(f"{one[0].upper()}{one[1:]}." for one in source.remarks)
        text += [
            f"## {name}\n",
            f"{len(tenants(judged))} series, {source.slots} hours, origins {test.step} hours apart from "
            f"{test.grid.time(test.origins[0]):%Y-%m-%d %H:%M} on. {remarks}".rstrip()
            + "\n",
            _table(["candidate", "MASE", "pinball", "cost", "in 90 %", "by series"], rows),
            f"Chosen costs {found[CHOSEN]['cost'].mean() / best:.3f} of the best single candidate; {within:.0%} of the "
            "series with demand in a tenth of the slots have 80 to 97 % in the interval.\n",
        ]
        if source.known is not None:
            for label, other, measure in (
                ("MASE / AutoETS", "AutoETS", "mase"), ("MASE / Naive", "Naive", "mase"),
                ("pinball / AutoETS", "AutoETS", "pinball"),
            ):  # fmt: skip
                mine, theirs = (np.nanmean(found[one][measure], axis=1) for one in (CHOSEN, other))
                logs[label] += list(np.log(mine / theirs))
        if name in ("Philly", "ITP"):
            long = rolling(
                source, horizon=LEADS[-1][1], gap=0, folds=LEAD_FOLDS, models=CANDIDATES, price=PRICE
            )
            for begin, end in LEADS:
                part = figures(long, slice(begin, end))
                errors = [_with_error(part[one]["mase"]) for one in ("Naive", "Median", "RunOff", CHOSEN)]
                leads.append([name, f"{begin} to {end}", *errors, f"{part[CHOSEN]['coverage'].mean():.3f}"])
    ratios = [[label, f"{np.exp(np.mean(values)):.3f}", str(len(values))] for label, values in logs.items()]
    text += [
        "## All sources with jobs together\n",
        _table(["chosen", "geometric mean over series", "series"], ratios),
        "## By lead\n",
        f"MASE by hours behind the origin, {LEAD_FOLDS} origins of a week ahead.\n",
        _table(["source", "hours", "Naive", "Median", "RunOff", "chosen", "in 90 %"], leads),
    ]
    (Path(__file__).parent / "forecast.md").write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
