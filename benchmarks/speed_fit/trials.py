"""Predictions of jobs whose speeds are known, each from one kind of evidence alone, as a user would have it."""

from __future__ import annotations

import polars as pl

from gpuplanner.sizing.mig_speed_law import EVIDENCE_ORDER, NUMERIC_JOB_COLUMNS, FittedSpeedLaw, estimate_log_boundness
from speed_fit.measurements import JOB

_KNOWN = {
    "second profile": ("measured_fraction", "measured_speed"),
    "telemetry": ("memory_utilisation", "power_share"),
    "two batch sizes": ("batch", "step_s", "other_batch", "other_step_s"),
    "GPU utilisation": ("gpu_utilisation",),
    "batch size": ("batch",),
    "nothing": (),
}


def trials(fitted: FittedSpeedLaw, speeds: pl.DataFrame) -> pl.DataFrame:
    """Predict every measured speed from every kind of evidence that the measurements allow.

    Examples
    --------
    >>> from speed_fit.measurements import own_measurements, relative_speeds
    >>> from speed_fit.fit import fit_law
    >>> frame = pl.DataFrame({"kind": "inference", "gpu_model": "A100-80GB", "model": "m", "batch": 8,
    ...     "profile": ["1g.10gb", "7g.80gb"], "step_s": [0.4, 0.1]})
    >>> speeds = relative_speeds(own_measurements(frame))
    >>> trials(fit_law(speeds), speeds)["evidence"].to_list()
    ['batch size', 'nothing']
    """
    second = speeds.select(*JOB, measured_slices="compute_slices", measured_fraction="fraction", measured_speed="speed")
    pairs = speeds.join(second, on=JOB).filter(pl.col("measured_slices") != pl.col("compute_slices"))
    alone = speeds.with_columns(
        measured_slices=pl.lit(None, pairs.schema["measured_slices"]),
        measured_fraction=pl.lit(None, pl.Float64),
        measured_speed=pl.lit(None, pl.Float64),
    )
    tables = [
        _predicted(fitted, pairs if evidence == "second profile" else alone, evidence) for evidence in EVIDENCE_ORDER
    ]
    return pl.concat(tables)


def _predicted(fitted: FittedSpeedLaw, rows: pl.DataFrame, evidence: str) -> pl.DataFrame:
    """Predictions from one kind of evidence, for the rows that have it; all else is hidden."""
    shown = {name: pl.col(name) if name in _KNOWN[evidence] else pl.lit(None) for name in NUMERIC_JOB_COLUMNS}
    found = estimate_log_boundness(fitted, rows.select("kind", **shown))
    speed = fitted.law.speed(found["log_boundness"].to_numpy(), fitted.law.limit(rows["fraction"].to_numpy()))
    table = rows.with_columns(found["evidence"], pl.Series("predicted", speed)).filter(evidence=evidence)
    return table.select(*JOB, "evidence", "measured_slices", "compute_slices", "fraction", "speed", "predicted")
