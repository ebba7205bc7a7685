"""Figures of a published claim beside the measured ones, and the verdict that follows from them.

The programs of this folder share it. A figure holds if its whole interval lies within the claimed range, fails if its
whole interval lies outside, and is open otherwise.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from gpuplanner.simulator.replications import mean_interval

HOLDS, FAILS, OPEN = "holds", "does not hold", "inconclusive"
COLUMNS = {
    "figure": pl.String,
    "unit": pl.String,
    "claimed_low": pl.Float64,
    "claimed_high": pl.Float64,
    "measured": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "verdict": pl.String,
}


def figure_row(
    figure: str,
    unit: str,
    measured: float | None,
    *,
    claimed: tuple[float | None, float | None],
    interval: tuple[float | None, float | None],
) -> dict[str, object]:
    """One row of the table of figures.

    Parameters
    ----------
    figure, unit : str
        What is measured, and in which unit.
    measured : float or None
        The measured value.
    claimed : tuple of float or None
        Lowest and highest value that the claim allows; None where it sets no limit.
    interval : tuple of float or None
        95 % interval of the measured value; None where there are too few observations.
    """
    low, high = interval
    verdict = OPEN
    if low is not None and high is not None:
        lowest = -math.inf if claimed[0] is None else claimed[0]
        highest = math.inf if claimed[1] is None else claimed[1]
        if lowest <= low and high <= highest:
            verdict = HOLDS
        elif high < lowest or low > highest:
            verdict = FAILS
    values = (figure, unit, *claimed, measured, low, high, verdict)
    return dict(zip(COLUMNS, values, strict=True))


def figure_table(rows: Sequence[Mapping[str, object]]) -> pl.DataFrame:
    """Table of the rows that :func:`figure_row` made."""
    return pl.DataFrame(rows, schema=COLUMNS)


def overall_verdict(figures: pl.DataFrame) -> str:
    """Verdict on the claim: all of its figures hold, some do, none does, or the intervals are too wide."""
    verdicts = figures["verdict"].to_list()
    if verdicts and all(verdict == HOLDS for verdict in verdicts):
        return HOLDS
    if HOLDS in verdicts:
        return "holds in part"
    return FAILS if FAILS in verdicts else OPEN


def mean_with_interval(values: np.ndarray) -> tuple[float, tuple[float | None, float | None]]:
    """Mean of independent observations, and its 95 % interval by Student's t."""
    known = mean_interval(values)
    return known.mean, (known.low, known.high)


def share_interval(hits: int, count: int) -> tuple[float, float]:
    """95 % interval of a share, by E. B. Wilson, JASA 22 (1927)."""
    z = 1.959964
    share = hits / count
    spread = z * z / count
    middle = share + spread / 2
    half = z * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return (middle - half) / (1 + spread), (middle + half) / (1 + spread)


def grouped_interval(values: np.ndarray, groups: np.ndarray, *, draws: int = 2000) -> tuple[float, float]:
    """95 % interval of a mean where values of one group resemble each other: whole groups are drawn again.

    Parameters
    ----------
    values : array of float, shape (n_values,)
        Observations.
    groups : array, shape (n_values,)
        Group of each observation.
    draws : int
        Number of resamples.

    References
    ----------
    Field, Welsh, Bootstrapping clustered data, J. R. Statist. Soc. B 69(3), 2007.
    """
    _, member = np.unique(groups, return_inverse=True)
    sums = np.bincount(member, weights=values)
    counts = np.bincount(member)
    drawn = np.random.default_rng(0).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), draws)
    means = (drawn @ sums) / (drawn @ counts)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def argument_parser(description: str, *, seeds: int | None = None) -> argparse.ArgumentParser:
    """Options that the programs have in common.

    Parameters
    ----------
    description : str
        Text of the help.
    seeds : int, optional
        Default number of seeds; None: nothing in the program is random.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if seeds is not None:
        parser.add_argument("--seeds", type=int, default=seeds, help=f"number of seeds (default {seeds})")
        parser.add_argument("--first-seed", type=int, default=0, help="first seed (default 0)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write the tables here as CSV")
    return parser


def report(claim: str, tables: Mapping[str, pl.DataFrame], remarks: Sequence[str], out: Path | None) -> None:
    """Print a claim, its verdict and its tables; write the tables as CSV.

    Parameters
    ----------
    claim : str
        The claim with its source.
    tables : mapping of str to polars.DataFrame
        Tables by file name; the first holds the figures.
    remarks : sequence of str
        What limits the verdict.
    out : Path or None
        Folder for the CSV files; None: print alone.
    """
    figures = next(iter(tables.values()))
    print(f"{claim}\n\nVerdict: {overall_verdict(figures)}")
    style = {"tbl_rows": -1, "tbl_cols": -1, "tbl_width_chars": 160, "fmt_str_lengths": 70, "float_precision": 3}
    hidden = {"tbl_hide_dataframe_shape": True, "tbl_hide_column_data_types": True}
    with pl.Config(**style, **hidden, tbl_formatting="ASCII_MARKDOWN"):
        for name, table in tables.items():
            print(f"\n{name}\n{table}")
    print("\n" + "\n".join(f"- {remark}" for remark in remarks))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            rounded = table.with_columns(pl.selectors.float().round_sig_figs(6))
            rounded.write_csv(out / f"{name}.csv")
            print(f"written: {out / name}.csv")
