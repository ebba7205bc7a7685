"""How good predictions are on models that neither fit nor intervals have seen."""

from __future__ import annotations

import polars as pl

from gpuplanner.sizing.mig_speed_model import NOMINAL_INTERVAL_COVERAGES, add_radii, radius_name
from speed_fit.calibrate import conformal_radii, left_out, scored
from speed_fit.fit import fit_law
from speed_fit.trials import trials

SPLIT = (
    "models of each source by name, alternately first and second half; each half is predicted from a fit to the other, "
    "with intervals from models left out of that fit one at a time"
)
"""What :func:`held_out` does, in words."""


def halves(speeds: pl.DataFrame) -> pl.DataFrame:
    """Add ``half``: 0 and 1 by turns over the models of each source by name.

    Examples
    --------
    >>> speeds = pl.DataFrame({"source": ["x"] * 4, "model": ["b", "a", "c", "a"]})
    >>> halves(speeds)["half"].to_list()
    [1, 0, 0, 0]
    """
    return speeds.with_columns(half=(pl.col("model").rank("dense").over("source") + 1).cast(pl.Int64) % 2)


def held_out(speeds: pl.DataFrame) -> pl.DataFrame:
    """Predict each half of the models from the other.

    Parameters
    ----------
    speeds : polars.DataFrame
        From :func:`~speed_fit.measurements.relative_speeds`.

    Returns
    -------
    polars.DataFrame
        As from :func:`~speed_fit.trials.trials`, with ``half`` (that of the job), ``score``,
        ``near_whole``, ``radius_80`` and ``radius_90``, both on the scale of the score.

    Examples
    --------
    >>> from speed_fit.measurements import own_measurements, relative_speeds
    >>> rows = [(m, p, s) for m in "abcd" for p, s in (("1g.10gb", 0.4), ("7g.80gb", 0.1))]
    >>> frame = pl.DataFrame(rows, schema=["model", "profile", "step_s"], orient="row")
    >>> frame = frame.with_columns(kind=pl.lit("inference"), gpu_model=pl.lit("A100-80GB"), batch=8)
    >>> speeds = relative_speeds(own_measurements(frame))
    >>> held_out(speeds).group_by("half", maintain_order=True).agg(pl.col("model").unique().sort()).rows()
    [(0, ['a', 'c']), (1, ['b', 'd'])]
    """
    parted = halves(speeds)
    tables = []
    for half in (0, 1):
        seen, unseen = (parted.filter((pl.col("half") == half) == same).drop("half") for same in (False, True))
        tables.append(transferred(seen, unseen).with_columns(half=pl.lit(half)))
    return pl.concat(tables)


def transferred(seen: pl.DataFrame, unseen: pl.DataFrame) -> pl.DataFrame:
    """Predict some measurements from a fit to others, with the intervals of that fit.

    Examples
    --------
    >>> from speed_fit.measurements import own_measurements, relative_speeds
    >>> rows = [(m, p, s) for m in "abc" for p, s in (("1g.10gb", 0.4), ("7g.80gb", 0.1))]
    >>> frame = pl.DataFrame(rows, schema=["model", "profile", "step_s"], orient="row")
    >>> frame = frame.with_columns(kind=pl.lit("inference"), gpu_model=pl.lit("A100-80GB"), batch=8)
    >>> speeds = relative_speeds(own_measurements(frame))
    >>> unseen = pl.col("model") == "c"
    >>> transferred(speeds.filter(~unseen), speeds.filter(unseen))["predicted"].to_list()
    [0.25, 0.25]
    """
    fitted = fit_law(seen)
    return add_radii(scored(fitted, trials(fitted, unseen)), conformal_radii(left_out(seen)))


def accuracy(rows: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Errors and coverage of predictions.

    Parameters
    ----------
    rows : polars.DataFrame
        From :func:`held_out`.
    *by : str
        Columns whose values stand on rows of their own.

    Returns
    -------
    polars.DataFrame
        The columns `by`, ``n``, ``models``, ``median_error`` and ``p90_error`` (of predicted over measured
        speed less 1, absolute), and ``covered_80`` and ``covered_90``, the shares of measured speeds (noise
        above 1 taken as 1) inside the intervals.

    Examples
    --------
    >>> rows = pl.DataFrame({"model": ["a", "b"], "speed": [0.5, 0.4], "predicted": [0.5, 0.5],
    ...     "score": [0.0, 0.3], "radius_80": 0.1, "radius_90": 0.4})
    >>> accuracy(rows).select("n", "median_error", "covered_80", "covered_90").row(0)
    (2, 0.125, 0.5, 1.0)
    """
    error = (pl.col("predicted") / pl.col("speed") - 1).abs()
    measures = [
        pl.len().alias("n"),
        pl.col("model").n_unique().alias("models"),
        error.median().alias("median_error"),
        error.quantile(0.9, "linear").alias("p90_error"),
        *(
            (pl.col("score") <= pl.col(radius_name(coverage))).mean().alias(f"covered_{round(100 * coverage)}")
            for coverage in NOMINAL_INTERVAL_COVERAGES
        ),
    ]
    return rows.group_by(by).agg(measures).sort(by, nulls_last=False) if by else rows.select(measures)
