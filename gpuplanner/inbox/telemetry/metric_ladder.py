"""The metric ladder: which counter a sample's activity comes from, and what it can therefore say.

SM activity, else engine activity, else - on a whole GPU that is not cut - the legacy counter, else nothing.
A device stands on one rung throughout: where a better counter fails for a moment the sample is missing, since
a worse one would put a spike in its place. The legacy counter is the share of time in which any kernel ran:
it reads 99 % while a tenth of the tensor cores work, and 100 % on a job that hangs.
"""

from __future__ import annotations

from typing import TypeVar

import polars as pl

from gpuplanner.inbox.telemetry.readers.device_key import DEVICE_KEY
from gpuplanner.inbox.telemetry.readers.metrics import QUANTITIES
from gpuplanner.schemas.domain import Samples
from gpuplanner.schemas.check import conform

Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame)

PROFILING, ENGINE, LEGACY, NO_COUNTER = "profiling", "engine", "legacy", "none"
RUNGS = (PROFILING, ENGINE, LEGACY, NO_COUNTER)
"""Values of ``activity_source``, best first."""

PROFILED = ("tensor_active", "dram_active")
ORDER = ("time", *DEVICE_KEY)
"""Order of samples, of which this is the key."""


def climbed(wide: pl.DataFrame) -> pl.DataFrame:
    """Climb down the ladder for every sample by itself; :func:`on_one_rung` then holds each device to one rung.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> row = {"time": datetime(2026, 1, 1, tzinfo=UTC), "node": "n1", "gpu": 0, "instance": None}
    >>> row |= dict.fromkeys(["profile", "job_id"]) | {"gpu_util": 0.99}
    >>> rows = [row | {"tensor_active": None}, row | {"gpu": 1, "tensor_active": 0.11}]
    >>> climbed(pl.DataFrame(rows, infer_schema_length=None))["activity_source"].to_list()
    ['legacy', 'profiling']
    """
    absent = [pl.lit(None, pl.Float64).alias(name) for name in QUANTITIES if name not in wide.columns]
    wide = wide.with_columns(absent).with_columns(pl.col(*QUANTITIES).cast(pl.Float64))
    cut = pl.col("mig_enabled").fill_null(False) if "mig_enabled" in wide.columns else pl.lit(False)
    rung = (
        pl.when(pl.col("sm_active").is_not_null())
        .then(pl.lit(PROFILING))
        .when(pl.col("engine_active").is_not_null())
        .then(pl.lit(ENGINE))
        .when(pl.any_horizontal(pl.col(*PROFILED).is_not_null()))
        .then(pl.lit(PROFILING))
        .when(pl.col("gpu_util").is_not_null() & ~cut)
        .then(pl.lit(LEGACY))
        .otherwise(pl.lit(NO_COUNTER))
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
        sm_occupancy=pl.col("sm_occupancy").clip(upper_bound=1.0),
        nvlink_gb_s=pl.col("nvlink_tx") + pl.col("nvlink_rx"),
        pcie_gb_s=pl.col("pcie_tx") + pl.col("pcie_rx"),
        memory_used_gib="memory_used",
        power_w="power",
        energy_counter_j="energy_counter",
        xid="xid",
        activity_source=rung,
    )
    return conform(samples, Samples, where="telemetry")


def rungs(samples: pl.DataFrame | pl.LazyFrame) -> pl.DataFrame:
    """What each device was ever read by."""
    source = pl.col("activity_source")
    return (
        samples.lazy()
        .group_by(DEVICE_KEY)
        .agg(
            has_sm=((source == PROFILING) & pl.col("sm_activity").is_not_null()).any(),
            has_better=source.is_in([PROFILING, ENGINE]).any(),
        )
        .sort(DEVICE_KEY)
        .collect(engine="streaming")
    )


def best_rungs(ever: pl.DataFrame) -> pl.DataFrame:
    """What :func:`rungs` tell of each device, with whether its GPU is ``cut``: has instances.

    Examples
    --------
    >>> told = {"node": "n1", "gpu": 0, "instance": [None, None, 7], "has_sm": [False, True, False], "has_better": True}
    >>> best_rungs(pl.DataFrame(told)).select("instance", "has_sm", "cut").rows()
    [(None, True, True), (7, False, True)]
    """
    return (
        ever.group_by(DEVICE_KEY)
        .agg(pl.col("has_sm", "has_better").any())
        .with_columns(cut=pl.col("instance").is_not_null().any().over("node", "gpu"))
        .sort(DEVICE_KEY)
    )


def on_one_rung(samples: Frame, ever: pl.DataFrame) -> Frame:
    """Take away activity that comes from a worse counter than the best that the device was ever read by.

    What is told of a device later can only take more away, so doing it again changes nothing.

    Examples
    --------
    >>> row = {"node": "n1", "gpu": 0, "instance": None, "tensor_activity": None, "dram_activity": None}
    >>> read = {"sm_activity": [0.99, 0.3], "activity_source": ["legacy", "profiling"]}
    >>> samples = pl.DataFrame(read).with_columns(pl.lit(value).alias(name) for name, value in row.items())
    >>> on_one_rung(samples, rungs(samples))["sm_activity"].to_list()
    [None, 0.3]
    """
    source = pl.col("activity_source")
    stays = pl.col("sm_activity").is_not_null() & (
        (source == PROFILING)
        | ((source == ENGINE) & ~pl.col("has_sm"))
        | ((source == LEGACY) & ~pl.col("has_better") & ~pl.col("cut"))
    )
    left = pl.any_horizontal(pl.col("tensor_activity", "dram_activity").is_not_null())
    judged = (
        samples.lazy()
        .join(best_rungs(ever).lazy(), on=DEVICE_KEY, how="left", nulls_equal=True, maintain_order="left")
        .with_columns(
            sm_activity=pl.when(stays).then("sm_activity"),
            activity_source=pl.when(stays)
            .then(source)
            .otherwise(pl.when(left).then(pl.lit(PROFILING)).otherwise(pl.lit(NO_COUNTER))),
        )
        .select(samples.collect_schema().names())
    )
    return judged if isinstance(samples, pl.LazyFrame) else judged.collect()
