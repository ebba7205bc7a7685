"""The metric ladder: which counter a sample's activity comes from, and what it can therefore say.

SM activity, else engine activity, else - on a whole GPU that is not cut - the legacy counter, else nothing.
A device stands on one rung throughout: where a better counter fails for a moment the sample is missing, since
a worse one would put a spike in its place. The legacy counter is the share of time in which any kernel ran:
it reads 99 % while a tenth of the tensor cores work, and 100 % on a job that hangs.
"""

from __future__ import annotations

import polars as pl

from gpuplanner.schemas import Samples, conform
from gpuplanner.telemetry.joining import DEVICE_KEY
from gpuplanner.telemetry.metrics import QUANTITIES

PROFILING, ENGINE, LEGACY, NONE = "profiling", "engine", "legacy", "none"
RUNGS = (PROFILING, ENGINE, LEGACY, NONE)
"""Values of ``activity_source``, best first."""

EFFECTIVE_FROM = 0.8
"""SM activity that effective use of a GPU needs, although it does not prove it [1]_.

References
----------
.. [1] NVIDIA, DCGM User Guide, Feature Overview, Profiling Metrics: SM activity.
"""

PROFILED = ("sm_active", "tensor_active", "dram_active")


def to_samples(wide: pl.DataFrame) -> pl.DataFrame:
    """Climb down the ladder for every sample.

    Parameters
    ----------
    wide : polars.DataFrame
        One row per device and time: ``time``, ``node``, ``gpu``, ``instance``, ``profile``, ``job_id``, the
        quantities of :data:`gpuplanner.telemetry.metrics.QUANTITIES` in our units, and optionally
        ``mig_enabled``.

    Returns
    -------
    polars.DataFrame
        Table ``schemas.Samples``, sorted by time and device. ``sm_activity`` holds what the rung in
        ``activity_source`` gives. Where tensor or memory activity alone was measured, the rung is
        ``profiling`` and ``sm_activity`` is null. Traffic is null unless both directions were read.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> row = {"time": datetime(2026, 1, 1, tzinfo=UTC), "node": "n1", "gpu": 0, "instance": None}
    >>> row |= dict.fromkeys(["profile", "job_id", *QUANTITIES]) | {"gpu_util": 0.99}
    >>> to_samples(pl.DataFrame([row, row | {"gpu": 1, "tensor_active": 0.11}]))["activity_source"].to_list()
    ['legacy', 'profiling']
    """
    wide = wide.with_columns(pl.col(*QUANTITIES).cast(pl.Float64))
    cut = pl.col("instance").is_not_null().any().over("node", "gpu")
    if "mig_enabled" in wide.columns:
        cut |= pl.col("mig_enabled").fill_null(False)
    measured = {name: pl.col(name).is_not_null() for name in (*PROFILED, "engine_active", "gpu_util")}
    ever = {name: mark.any().over(DEVICE_KEY) for name, mark in measured.items()}
    profiled = pl.any_horizontal(ever[name] for name in PROFILED)
    rung = (
        pl.when(measured["sm_active"])
        .then(pl.lit(PROFILING))
        .when(measured["engine_active"] & ~ever["sm_active"])
        .then(pl.lit(ENGINE))
        .when(pl.any_horizontal(measured[name] for name in PROFILED))
        .then(pl.lit(PROFILING))
        .when(measured["gpu_util"] & ~cut & ~profiled & ~ever["engine_active"])
        .then(pl.lit(LEGACY))
        .otherwise(pl.lit(NONE))
    )
    activity = (
        pl.when(rung == PROFILING)
        .then("sm_active")
        .when(rung == ENGINE)
        .then("engine_active")
        .when(rung == LEGACY)
        .then("gpu_util")
    )
    samples = wide.select(
        "time",
        "node",
        "gpu",
        "instance",
        "profile",
        "job_id",
        sm_activity=activity.clip(upper_bound=1.0),
        tensor_activity=pl.col("tensor_active").clip(upper_bound=1.0),
        dram_activity=pl.col("dram_active").clip(upper_bound=1.0),
        nvlink_gb_s=pl.col("nvlink_tx") + pl.col("nvlink_rx"),
        pcie_gb_s=pl.col("pcie_tx") + pl.col("pcie_rx"),
        memory_used_gib="memory_used",
        power_w="power",
        activity_source=rung,
    )
    ordered = samples.sort("time", "node", "gpu", "instance", nulls_last=False, maintain_order=True)
    return conform(ordered, Samples, where="telemetry")


def effective_compute() -> pl.Expr:
    """Whether a sample can have computed effectively; null where its rung cannot tell.

    Only SM activity can: engine activity and the legacy counter are high as soon as one small kernel runs.

    Examples
    --------
    >>> frame = pl.DataFrame({"sm_activity": [0.9, 0.45, 0.99], "activity_source": [*["profiling"] * 2, "legacy"]})
    >>> frame.select(effective_compute()).to_series().to_list()
    [True, False, None]
    """
    return pl.when(pl.col("activity_source") == PROFILING).then(pl.col("sm_activity") >= EFFECTIVE_FROM)
