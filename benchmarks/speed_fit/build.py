"""From measurements to a model: fit, intervals, and what it says of itself."""

from __future__ import annotations

import itertools
from typing import Any

import polars as pl

from gpuplanner.core.errors import TraceFormatError, format_message
from gpuplanner.sizing.mig_speed_model import SpeedModel
from speed_fit import miso, parvagpu
from speed_fit.calibrate import conformal_radii, left_out, noise_radii
from speed_fit.fit import fit_law
from speed_fit.held_out import SPLIT, accuracy, held_out, transferred
from speed_fit.measurements import JOB, relative_speeds

CITATIONS = {miso.SOURCE: miso.CITATION, parvagpu.SOURCE: parvagpu.CITATION}
"""Where each data set comes from."""

LEAST_WIDENING = 2.0
"""Factor on intervals of profiles that nobody measured, at least: an assumption, since no data test it."""

FEWEST_MODELS = 4
"""Fewest models for a fit, so that a half of them can lose one and still be fitted."""

TESTED = ("second profile", "two batch sizes")  # evidence that every source has
_DIGITS = 3


def fit(table: pl.DataFrame, *, date: str | None = None) -> SpeedModel:
    """Fit a speed model, calibrate its intervals, and test it on models held out.

    The coefficients come from all models; intervals from models left out one at a time; the errors and
    coverages in the provenance from both halves, each predicted from the other.

    Parameters
    ----------
    table : polars.DataFrame
        From :func:`~speed_fit.measurements`. Only jobs that have an instance to themselves are used.
    date : str, optional
        Date for the provenance.

    Returns
    -------
    SpeedModel

    Raises
    ------
    TraceFormatError
        If too little was measured: four models on the whole GPU and on a slice, so that each half has two.

    Examples
    --------
    >>> from speed_fit.measurements import own_measurements
    >>> rows = [(m, b, p, 0.01 * k + b * s / 1000) for k, m in enumerate("abcd", 1) for b in (1, 100)
    ...     for p, s in (("1g.10gb", 6), ("7g.80gb", 1))]
    >>> frame = pl.DataFrame(rows, schema=["model", "batch", "profile", "step_s"], orient="row")
    >>> frame = frame.with_columns(kind=pl.lit("inference"), gpu_model=pl.lit("A100-80GB"))
    >>> fit(own_measurements(frame)).fitted.law.limits
    (0.1902, 1.0)
    """
    speeds = relative_speeds(table.filter(pl.col("processes") == 1))
    models = speeds["model"].n_unique()
    if models < FEWEST_MODELS:
        text = format_message("measurements", f"{FEWEST_MODELS} models or more", f"{models}", "Add the public ones.")
        raise TraceFormatError(text)
    fitted = fit_law(speeds)
    sizes = speeds.select("fraction", "compute_slices").unique().sort("fraction")["compute_slices"]
    return SpeedModel(
        fitted=fitted,
        radii=conformal_radii(left_out(speeds)),
        noise=noise_radii(speeds),
        slices=tuple(sizes),
        measured=tuple(speeds.select("gpu_model", "compute_slices", "memory_slices").unique().sort(pl.all()).rows()),
        widening=widening(speeds),
        provenance=_provenance(speeds, held_out(speeds), date),
    )


def widening(speeds: pl.DataFrame) -> float:
    """Factor on intervals where a profile was not measured.

    The sources differ in board, in kind of job and in who measured. Each predicts the other, without models of
    the same name; the factor is that by which its 90 % intervals would have to grow to cover 90 % there, the
    larger of both directions and no less than :data:`LEAST_WIDENING`. All boards measured are of one
    architecture, so what another adds is not known.

    Examples
    --------
    >>> from speed_fit.measurements import own_measurements, relative_speeds
    >>> rows = [(m, p, s) for m in "ab" for p, s in (("1g.10gb", 0.4), ("7g.80gb", 0.1))]
    >>> frame = pl.DataFrame(rows, schema=["model", "profile", "step_s"], orient="row")
    >>> frame = frame.with_columns(kind=pl.lit("inference"), gpu_model=pl.lit("A100-80GB"), batch=8)
    >>> speeds = relative_speeds(own_measurements(frame))
    >>> widening(speeds)  # one source alone says nothing of others
    2.0
    """
    factors = [LEAST_WIDENING]
    counts = speeds.group_by("source").agg(pl.col("model").n_unique()).sort("source")
    sources = counts.filter(pl.col("model") > 1)["source"]
    for seen, unseen in itertools.permutations(sources, 2):
        fitting = speeds.filter(source=seen)
        others = pl.col("model").is_in(fitting["model"].unique().to_list()).not_()
        rows = transferred(fitting, speeds.filter(others, source=unseen))
        grown = (
            rows.filter(pl.col("evidence").is_in(TESTED))
            .group_by("evidence")
            .agg((pl.col("score") / pl.col("radius_90")).quantile(0.9, "higher").alias("factor"))
        )
        factors += grown["factor"].to_list()
    return round(max(factors), 2)


def _provenance(speeds: pl.DataFrame, rows: pl.DataFrame, date: str | None) -> dict[str, Any]:
    jobs = speeds.unique(JOB)
    return {
        "date": date,
        "data": [
            {
                "source": source,
                "citation": CITATIONS.get(source, ""),
                "kind": part["kind"][0],
                "gpu_model": ", ".join(part["gpu_model"].unique().sort()),
                "models": part["model"].unique().sort().to_list(),
                "jobs": part.height,
            }
            for (source,), part in jobs.sort(JOB).group_by("source", maintain_order=True)
        ],
        "full GPU": "the full-size profile; it was not compared with a GPU with MIG disabled",
        "split": SPLIT,
        "held out": accuracy(rows, "evidence", "measured_slices", "compute_slices")
        .with_columns(pl.selectors.float().round(_DIGITS))
        .to_dicts(),
    }
