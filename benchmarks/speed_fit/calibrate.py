"""How far predictions are off: conformal radii from models that the fit did not see."""

from __future__ import annotations

import polars as pl

from gpuplanner.sizing.mig_speed_law import FittedSpeedLaw
from gpuplanner.sizing.mig_speed_model import (
    CALIBRATION_GROUP_COLUMNS,
    MIN_NEAR_FULL_SPEED_FRACTION,
    NOMINAL_INTERVAL_COVERAGES,
    radius_name,
)
from speed_fit.fit import fit_law
from speed_fit.measurements import JOB
from speed_fit.trials import trials

UNSLOWED = 0.95
"""Measured speed from which a job on the smallest slice counts as not slowed at all."""

FEWEST = 10
"""Fewest predictions that make a group of their own; a smaller one shares the radius of a wider group."""


def left_out(speeds: pl.DataFrame) -> pl.DataFrame:
    """Predict each model from a fit to the others.

    Examples
    --------
    >>> from speed_fit.measurements import own_measurements, relative_speeds
    >>> rows = [(m, p, s) for m in "ab" for p, s in (("1g.10gb", 0.4), ("7g.80gb", 0.1))]
    >>> frame = pl.DataFrame(rows, schema=["model", "profile", "step_s"], orient="row")
    >>> frame = frame.with_columns(kind=pl.lit("inference"), gpu_model=pl.lit("A100-80GB"), batch=8)
    >>> speeds = relative_speeds(own_measurements(frame))
    >>> left_out(speeds).select("model", "evidence", "predicted").rows()[0]
    ('a', 'batch size', 0.25)
    """
    models = speeds["model"].unique().sort().to_list()
    tables = []
    for model in models:
        fitted = fit_law(speeds.filter(pl.col("model") != model))
        tables.append(scored(fitted, trials(fitted, speeds.filter(pl.col("model") == model))))
    return pl.concat(tables)


def scored(fitted: FittedSpeedLaw, rows: pl.DataFrame) -> pl.DataFrame:
    """Add ``score``, the absolute error of the log speed over the log of the slice's limit, and ``near_whole``.

    The limit is what a job can lose at most, so that scores of small and large slices are alike. Measured
    speeds above 1 are noise and count as 1.

    Examples
    --------
    >>> from gpuplanner.sizing.mig_speed_law import SpeedLaw
    >>> fitted = FittedSpeedLaw(SpeedLaw((0.5, 1.0), (0.5, 1.0), 4.0), {})
    >>> rows = pl.DataFrame({"fraction": 0.5, "speed": [0.5, 1.02], "predicted": [1.0, 1.0]})
    >>> scored(fitted, rows).select("score", "near_whole").rows()
    [(1.0, True), (0.0, True)]
    """
    room = -pl.Series(fitted.law.limit(rows["fraction"].to_numpy())).log()
    error = (pl.col("speed").clip(upper_bound=1.0) / pl.col("predicted")).log().abs()
    return rows.with_columns(score=error / room, near_whole=pl.col("predicted") >= MIN_NEAR_FULL_SPEED_FRACTION)


def conformal_radii(scores: pl.DataFrame) -> pl.DataFrame:
    """Radii that cover the next score with the nominal probability, by group.

    References
    ----------
    Lei et al., Distribution-free predictive inference for regression, JASA 113 (2018), split conformal. The scores of
    one job on several slices come from one estimate, so jobs are counted, not rows, in the correction for small
    samples. Jobs of one model are alike too, and models are few: coverage is measured on models of the other half.

    Examples
    --------
    >>> scores = pl.DataFrame({"evidence": "telemetry", "measured_slices": [None] * 9, "compute_slices": 1,
    ...     "near_whole": False, "score": [0.01 * k for k in range(1, 10)], "batch": range(9)})
    >>> scores = scores.with_columns(pl.lit("a").alias(name) for name in JOB if name != "batch")
    >>> conformal_radii(scores).select("evidence", "compute_slices", "n", "radius_80", "radius_90").rows()
    [('telemetry', None, 9, 0.08, 0.09)]
    """
    tables = []
    for level, keys in enumerate(CALIBRATION_GROUP_COLUMNS):
        groups = scores.group_by(keys, maintain_order=True).agg(
            pl.len().alias("n"), *(_ranked(coverage) for coverage in NOMINAL_INTERVAL_COVERAGES)
        )
        widest = keys == CALIBRATION_GROUP_COLUMNS[-1]
        tables.append(groups.filter((pl.col("n") >= FEWEST) | widest).with_columns(level=pl.lit(level)))
    order = (
        "level",
        *CALIBRATION_GROUP_COLUMNS[0],
        "n",
        *(radius_name(coverage) for coverage in NOMINAL_INTERVAL_COVERAGES),
    )
    return pl.concat(tables, how="diagonal").select(order).sort(order[:5])


def noise_radii(speeds: pl.DataFrame) -> tuple[float, ...]:
    """How far two measurements of one speed are apart, as absolute log, at each of :data:`NOMINAL_INTERVAL_COVERAGES`.

    Where even the smallest slice does not slow a job, larger ones do not either: what their speeds differ
    from 1 is noise. Infinite if there are too few such jobs.

    Examples
    --------
    >>> speeds = pl.DataFrame({name: ["x"] * 10 for name in JOB}).with_columns(batch=pl.int_range(10) // 2 + 1)
    >>> speeds = speeds.with_columns(fraction=pl.Series([0.1, 0.2] * 5), speed=pl.Series([1.0, 1.02] * 5))
    >>> noise_radii(speeds)
    (inf, inf)
    """
    smallest = pl.col("fraction") == speeds["fraction"].min()
    unslowed = (smallest & (pl.col("speed") >= UNSLOWED)).any().over(JOB)
    noise = speeds.filter(unslowed & ~smallest).select(*JOB, score=pl.col("speed").log().abs())
    found = (
        noise.select(_ranked(coverage) for coverage in NOMINAL_INTERVAL_COVERAGES).row(0)
        if noise.height
        else (None, None)
    )
    return tuple(float("inf") if radius is None or noise.height < FEWEST else radius for radius in found)


def _ranked(coverage: float) -> pl.Expr:
    jobs = pl.struct(JOB).n_unique()
    # A hair less before rounding up: (9 + 1) x 0.9 is 9, not a little more.
    by_rows, by_jobs = (
        (count - 1e-9).ceil().cast(pl.Int64)
        for count in ((pl.len() + 1) * coverage, (jobs + 1) * coverage / jobs * pl.len())
    )
    place = pl.max_horizontal(by_rows, pl.min_horizontal(by_jobs, pl.len().cast(pl.Int64))) - 1
    return pl.col("score").sort().get(place, null_on_oob=True).alias(radius_name(coverage))
