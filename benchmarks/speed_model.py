"""How well the speed of a job on a MIG slice is predicted, on models that the fit has not seen.

Run ``python benchmarks/speed_model.py --data FOLDER`` with the folder of the public traces (or set
``GPUPLANNER_DATA``). The models of each source are halved by name, alternately; each half is predicted from a fit to
the other, and both directions stand in the tables. With ``--write DATE`` the model that is shipped is fitted again, on
all models, and written into the package.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import polars as pl
from speed_fit import accuracy, fit, held_out, measurements, model_to_json, relative_speeds
from speed_fit.calibrate import noise_radii
from speed_fit.fit import fit_law
from speed_fit.held_out import SPLIT, halves, transferred
from speed_fit.measurements import JOB

from gpuplanner.core.output_writing import write_atomically
from gpuplanner.sizing.mig_speed_law import MAX_LOG_BOUNDNESS
from gpuplanner.sizing.mig_speed_model import SPEED_MODEL_FILE_NAME

TARGET = 0.10
PACKAGE = Path(__file__).resolve().parent.parent / "gpuplanner" / "sizing" / "speed"
# Networks of one family are near relatives: a harder split leaves out the whole family.
FAMILIES = ("bert", "densenet", "inception", "mobilenet", "resnet", "transformer", "vgg")


def show(title, rows, *by):
    """One table of errors and coverages."""
    print(f"\n{title}")
    names = "".join(f"{name.replace('_', ' '):>17}" for name in by)
    print(f"{names}{'n':>6}{'models':>8}{'median':>9}{'p90':>8}{'in 80 %':>9}{'in 90 %':>9}")
    for row in accuracy(rows, *by).iter_rows(named=True):
        cells = "".join(f"{'-' if row[name] is None else row[name]!s:>17}" for name in by)
        mark = "" if row["median_error"] <= TARGET else "  above 10 %"
        print(
            f"{cells}{row['n']:>6}{row['models']:>8}{row['median_error']:>9.1%}{row['p90_error']:>8.0%}"
            f"{row['covered_80']:>9.0%}{row['covered_90']:>9.0%}{mark}"
        )


def floor(speeds):
    """Errors that remain if each job had the boundness that suits it best: misfit of the law, and noise."""
    parted = halves(speeds)
    print("\nfloor: law of the other half with the best boundness of each job (misfit of the law, and noise)")
    print(f"{'source':>17}{'compute slices':>17}{'n':>6}{'median':>9}{'p90':>8}")
    tables = []
    for half in (0, 1):
        law = fit_law(parted.filter(pl.col("half") != half)).law
        for _, job in parted.filter(half=half).group_by(JOB, maintain_order=True):
            grid = law.speed(
                np.linspace(-MAX_LOG_BOUNDNESS, MAX_LOG_BOUNDNESS, 2001)[:, None], law.limit(job["fraction"].to_numpy())
            )
            best = grid[np.abs(np.log(grid / job["speed"].to_numpy())).sum(axis=1).argmin()]
            tables.append(job.with_columns(error=(pl.Series(best) / pl.col("speed") - 1).abs()))
    groups = (
        pl.concat(tables)
        .group_by("source", "compute_slices")
        .agg(pl.len().alias("n"), pl.col("error").median().alias("median"), pl.col("error").quantile(0.9).alias("p90"))
    )
    for source, size, n, median, p90 in groups.sort("source", "compute_slices").iter_rows():
        print(f"{source:>17}{size:>17}{n:>6}{median:>9.1%}{p90:>8.0%}")


def by_family(speeds):
    """Each family of networks predicted from all others, in all sources at once."""
    tables = []
    for family in FAMILIES:
        ours = pl.col("model").str.starts_with(family)
        tables.append(transferred(speeds.filter(~ours), speeds.filter(ours)))
    return pl.concat(tables)


def oddities(table):
    """What in the published figures looks wrong; nothing is left out for it."""
    several = table.filter((pl.col("source") == "parvagpu") & (pl.col("outcome") == "measured"))
    sweep = ["model", "profile", "batch"]
    rates = several.with_columns(rate=(pl.col("batch") / pl.col("step_s")).round(3)).sort(*sweep, "processes")
    twice = rates.filter(pl.col("rate") == pl.col("rate").shift(1).over(sweep))
    print("\nthe same throughput to the last digit for different numbers of processes:")
    for row in twice.iter_rows(named=True):
        print(f"  {row['model']} batch {row['batch']} on {row['profile']}, {row['processes']} processes: {row['rate']}")


def main():
    """Print all tables, or write the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=os.environ.get("GPUPLANNER_DATA"), help="folder of the public traces")
    parser.add_argument("--write", metavar="DATE", help="fit on all models and write the model that is shipped")
    given = parser.parse_args()
    if given.data is None:
        parser.error("give --data or set GPUPLANNER_DATA")
    table = measurements(given.data)
    if given.write:
        text = model_to_json(fit(table, date=given.write))
        print(write_atomically(PACKAGE / SPEED_MODEL_FILE_NAME, lambda path: path.write_text(text, encoding="utf-8")))
        return
    speeds = relative_speeds(table.filter(processes=1))
    rows = held_out(speeds)
    print(f"split: {SPLIT}")
    outcomes = table.filter(processes=1).group_by("source", "outcome").len().sort("source", "outcome")
    print("settings: " + "; ".join(f"{source} {outcome} {n}" for source, outcome, n in outcomes.iter_rows()))
    above = speeds.filter(pl.col("speed") > 1)
    spread = table["step_spread"].drop_nulls()
    print(
        f"noise: medians of epochs (miso) lie {spread.median():.1%} from their median, at most {spread.max():.1%}; "
        f"{above.height} of {speeds.height} relative speeds are above 1, at most {above['speed'].max():.3f}; where "
        f"nothing slows a job, 80 % of the speeds lie within {noise_radii(speeds)[0]:.1%} of 1 and 90 % within "
        f"{noise_radii(speeds)[1]:.1%}"
    )
    for half in (0, 1):
        models = halves(speeds).filter(half=half).select(pl.format("{}/{}", "source", "model")).to_series().unique()
        print(f"half {half}: {', '.join(models.sort())}")
    alone = rows.filter(pl.col("evidence") != "second profile")
    second = rows.filter(evidence="second profile")
    show("(a, c) from the whole GPU alone", alone, "evidence", "source", "compute_slices")
    show("(a, c) by direction: half that was predicted", alone, "evidence", "half", "compute_slices")
    smallest = second.filter(pl.col("measured_slices") == pl.col("measured_slices").min().over(JOB))
    show("(b) whole GPU and the smallest profile that fits", smallest, "source", "half", "compute_slices")
    show("(b) whole GPU and any one profile", second, "measured_slices", "compute_slices")
    show("(c) by kind of evidence", rows, "evidence")
    show("(c) by kind of evidence and direction", rows, "evidence", "half")
    show("by regime: predicted speed 0.9 or more", rows, "evidence", "near_whole")
    show("a whole family of networks left out", by_family(speeds), "evidence")
    show("a whole family of networks left out, by size", by_family(speeds), "evidence", "compute_slices")
    floor(speeds)
    oddities(table)


if __name__ == "__main__":
    main()
