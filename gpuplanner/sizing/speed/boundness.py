"""How far a job is bound by the GPU rather than its host, from what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from gpuplanner.sizing.speed.law import Floats, SpeedLaw
from gpuplanner.sizing.speed.speed_tables import FACTS

EVIDENCE = ("second profile", "telemetry", "two batch sizes", "GPU utilisation", "batch size", "nothing")
"""What a prediction rests on, best first: the speed on another profile; memory utilisation and power on the whole
GPU; step times of two batch sizes there; the share of time with a kernel running there, which does not say how much
of the GPU the kernels fill; the batch size of an inference job; nothing but the other jobs."""

NUMBERS = (
    "batch",
    "step_s",
    "other_batch",
    "other_step_s",
    *FACTS,
    "measured_fraction",
    "measured_speed",
)
"""What may be known of a job, as columns; each may be null."""

_EDGE = 0.005  # telemetry is rounded, so 0 and 1 mean near 0 and near 1


@dataclass(frozen=True)
class Link:
    """Straight line from a fact to the log of the boundness; shares enter as their log-odds, batches as logs."""

    intercept: float
    slope: float


@dataclass(frozen=True)
class Fitted:
    """The law and the links: all that was fitted.

    - ``law``: Speed from boundness.
    - ``links``: Boundness from a fact: one of ``tables.FACTS``, ``"batch"`` or ``"nothing"``.
    """

    law: SpeedLaw
    links: Mapping[str, Link]


def log_boundness(fitted: Fitted, facts: pl.DataFrame) -> pl.DataFrame:
    """Estimate the boundness of jobs from the best that is known of each.

    Examples
    --------
    >>> links = {"power_share": Link(0.0, 1.0), "nothing": Link(0.1, 0.0)}
    >>> fitted = Fitted(SpeedLaw((0.5, 1.0), (0.5, 1.0), 4.0), links)
    >>> unknown = pl.DataFrame({name: [None, None] for name in ("kind", *NUMBERS)})
    >>> log_boundness(fitted, unknown.with_columns(power_share=pl.Series([0.5, None]))).rows()
    [('telemetry', 0.0), ('nothing', 0.1)]
    """
    law, known = fitted.law, {name: _numbers(facts, name) for name in NUMBERS}
    with np.errstate(invalid="ignore"):
        second = law.from_speed(known["measured_speed"], law.limit(known["measured_fraction"]))
        batches = law.from_batches(
            known["batch"], known["step_s"], known["other_batch"], known["other_step_s"]
        )
    inference = (facts["kind"].cast(pl.String) == "inference").fill_null(False).to_numpy()
    found = {
        "second profile": second,
        "telemetry": _mean(*(_linked(fitted, name, known) for name in ("memory_utilisation", "power_share"))),
        "two batch sizes": batches,
        "GPU utilisation": _linked(fitted, "gpu_utilisation", known),
        "batch size": np.where(inference, _linked(fitted, "batch", known), np.nan),
        "nothing": np.full(facts.height, fitted.links["nothing"].intercept),
    }
    table = pl.DataFrame({name: found[name] for name in EVIDENCE}, nan_to_null=True)
    names = [pl.when(pl.col(name).is_not_null()).then(pl.lit(name)) for name in EVIDENCE]
    return table.select(evidence=pl.coalesce(names), log_boundness=pl.coalesce(EVIDENCE))


def regressor(fact: str, values: Floats) -> Floats:
    """Scale on which a fact is linear in the log of the boundness; NaN stays NaN.

    Examples
    --------
    >>> regressor("power_share", np.array([0.5])), regressor("batch", np.array([1.0]))
    (array([0.]), array([0.]))
    """
    if fact == "batch":
        return np.log(values)
    within = np.clip(values, _EDGE, 1 - _EDGE)
    return np.log(within / (1 - within))


def _numbers(facts: pl.DataFrame, name: str) -> Floats:
    return facts[name].cast(pl.Float64).fill_null(np.nan).to_numpy()


def _linked(fitted: Fitted, fact: str, known: Mapping[str, Floats]) -> Floats:
    """Estimate from one fact; NaN where it is not known, or was of no job in the fit."""
    link = fitted.links.get(fact)
    if link is None:
        return np.full(known[fact].shape, np.nan)
    return link.intercept + link.slope * regressor(fact, known[fact])


def _mean(one: Floats, two: Floats) -> Floats:
    """Mean of two estimates, or the one that is there."""
    return np.where(np.isnan(one), two, np.where(np.isnan(two), one, (one + two) / 2))
