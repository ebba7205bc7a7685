"""How far daily peaks of public traces pass the largest of the days before: what `peaks only` rests on.

Run ``python benchmarks/peak_excess.py --data FOLDER --date YYYY-MM-DD`` (or with ``GPUPLANNER_DATA``): prints how often
the largest of n days was passed beside m / (n + m), and the size of the excess; ``--write`` renews
``gpuplanner/catalog/facts/peak_excess.csv``.

Windows are all stretches of n + m days of a series; a series counts by the stretches that fit into it without overlap.
The first week of a trace, in which it fills up, and its last day are left out. Where a quota is stated (Helios), what
waits counts as wanted, and windows whose n days touch the quota are left out, as the rule is not used there.
"""

from __future__ import annotations

import argparse
import os
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl

from gpuplanner.demand.peaks import chance_of_more, daily_peaks, unknown_because
from gpuplanner.inbox.public.job_tables import HELIOS_ZONE, ITP, PHILLY, PHILLY_ZONE
from gpuplanner.inbox.public.series import read_helios_sequence

TABLE = Path(__file__).parents[1] / "gpuplanner" / "catalog" / "facts" / "peak_excess.csv"
SEEN = (2, 3, 5, 7, 10, 14, 20)
AHEAD = (1, 7, 14, 28)
QUANTILES = (*np.round(np.arange(0.05, 0.96, 0.05), 2).tolist(), 0.975, 0.99)
FILLING_DAYS = 7
FEWEST_JOBS = 400
SOURCE = "daily peaks of Philly (virtual clusters), ITP and Helios Earth; benchmarks/peak_excess.py"


def peaks_of_jobs(jobs, zone):
    """Peaks of the whole days of a list of jobs, without those in which it fills up."""
    jobs = jobs.filter(pl.col("gpus") > 0, pl.col("end_time").is_not_null())
    times = jobs.select(
        pl.col("start_time", "end_time").dt.convert_time_zone(zone).dt.replace_time_zone(None)
    )
    begin, end = (times[name].dt.timestamp("us").to_numpy() / 86_400e6 for name in times.columns)
    first = np.ceil(begin.min()) + FILLING_DAYS
    days = int(np.floor(begin.max()) - first)
    return daily_peaks(begin - first, end - first, jobs["gpus"].to_numpy(), max(days, 0))


def series_of(folder):
    """Name → peaks of its days, and the quota that they may touch."""
    found = {}
    philly = PHILLY([folder / "philly" / "philly.csv.gz"]).jobs
    for (name,), jobs in philly.group_by("tenant", maintain_order=True):
        if jobs.height >= FEWEST_JOBS:
            found[f"Philly {name}"] = (peaks_of_jobs(jobs, PHILLY_ZONE), np.inf)
    for path in sorted((folder / "itp").glob("cluster*.csv.gz")):
        found[f"ITP {path.name[:9]}"] = (peaks_of_jobs(ITP([path]).jobs, "UTC"), np.inf)
    paths = sorted((folder / "helios" / "Earth_vcs").glob("*/cluster_sequence_vc.csv.gz"))
    table = read_helios_sequence(paths).tables["occupancy"]
    for (name,), rows in table.group_by("pool", maintain_order=True):
        day = pl.col("time").dt.convert_time_zone(HELIOS_ZONE).dt.date()
        wanted = (pl.col("allocated") + pl.col("pending")).max()
        days = (
            rows.group_by(day).agg(wanted.alias("peak"), pl.len()).filter(pl.col("len") == 1440).sort("time")
        )
        found[f"Helios {name}"] = (days["peak"].to_numpy().astype(float), float(rows["total"].max()))
    return found


def windows(series, n, m, *, exchangeable=True):
    """Ratios of the two largest of every window, and the weight of each."""
    ratios, weights, names = [], [], []
    for name, (peaks, quota) in series.items():
        starts = range(len(peaks) - n - m + 1)
        pairs = [(peaks[at : at + n], peaks[at + n : at + n + m].max()) for at in starts]
        kept = [
            (past.max(), ahead)
            for past, ahead in pairs
            if 0 < past.max() < quota and not (exchangeable and unknown_because(past, fleet=quota))
        ]
        if kept:
            past, ahead = np.array(kept).T
            ratios.append(ahead / past)
            weights.append(np.full(len(kept), len(peaks) / (n + m) / len(pairs)))
            names.append(name)
    return np.concatenate(ratios), np.concatenate(weights), names


def quantile(values, weights, levels):
    """Smallest value with at least so large a share of the weights up to it."""
    order = np.argsort(values)
    shares = weights[order].cumsum() / weights.sum()
    return values[order][np.minimum(np.searchsorted(shares, np.array(levels) - 1e-12), len(values) - 1)]


def main():
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", default=os.environ.get("GPUPLANNER_DATA"), help="folder of the public traces"
    )
    parser.add_argument("--date", help="date to write into the table")
    parser.add_argument("--write", action="store_true", help="renew the shipped table")
    given = parser.parse_args()
    if given.data is None or (given.write and not given.date):
        parser.error("--data is needed, and --date with --write")
    series = series_of(Path(given.data))
    print(", ".join(f"{name} {len(peaks)} d" for name, (peaks, _) in series.items()))
    rows = []
    print(f"{'n':>3}{'m':>4}{'m/(n+m)':>9}{'all':>7}{'no rise':>9}{'below 2x':>10}{'windows':>9}{'q90':>7}")
    for n, m in product(SEEN, AHEAD):
        every, every_weight, _ = windows(series, n, m, exchangeable=False)
        ratios, weights, names = windows(series, n, m)
        over = ratios > 1
        exceeded = weights[over].sum() / weights.sum()
        excess = quantile(ratios[over], weights[over], QUANTILES)
        print(
            f"{n:>3}{m:>4}{chance_of_more(n, m):>9.2f}{every_weight[every > 1].sum() / every_weight.sum():>7.2f}"
            f"{exceeded:>9.2f}{weights[ratios < 2].sum() / weights.sum():>10.2f}{len(ratios):>9}"
            f"{quantile(ratios, weights, [0.9])[0]:>7.2f}"
        )
        rows += [
            (n, m, round(float(exceeded), 4), level, round(float(ratio), 4), len(names), int(over.sum()))
            for level, ratio in zip(QUANTILES, excess, strict=True)
        ]
    if given.write:
        columns = ("n", "m", "exceeded", "quantile", "ratio", "series", "windows")
        table = pl.DataFrame(rows, schema=columns, orient="row")
        table.with_columns(source=pl.lit(SOURCE), date=pl.lit(given.date)).write_csv(TABLE)


if __name__ == "__main__":
    main()
