"""Speed on a MIG slice as a law of its compute share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import dataframely as dy
import numpy as np
import numpy.typing as npt
import polars as pl

from gpuplanner.core.errors import GeometryError
from gpuplanner.core.schemas import WHOLE_GPU, count, meaning, number, text
from gpuplanner.hardware.gpu_models import GpuModel, MigProfile
from gpuplanner.usage.requested_demand import plain_profiles

Floats = npt.NDArray[np.float64]

MAX_LOG = 5.0
"""Bound of the log of the boundness: beyond it, either way, no speed changes in its third digit."""


@dataclass(frozen=True)
class SpeedLaw:
    r"""Speed on a slice, relative to the whole GPU, of a job of known boundness.

    A step needs the host for :math:`L_0` and the whole GPU for :math:`b/C`. Throughput is the smooth minimum
    of both rates, :math:`\left((b/L_0)^{-q} + (C e_k)^{-q}\right)^{-1/q}`, so relative to the whole GPU

    .. math:: v_k = \left(1 + s\,(\rho_k^{-q} - 1)\right)^{-1/q}, \qquad s = \frac{u^q}{1 + u^q}.

    The boundness :math:`u = (b/L_0)/C` of a job is the rate at which its host can feed the GPU over the rate
    of the GPU itself; the limit :math:`\rho_k = e_k/e_{whole}` is the speed of a job bound by the slice alone.
    With :math:`q = 1` host and GPU take turns (Amdahl), with :math:`q \to \infty` they overlap perfectly.

    Parameters
    ----------
    fractions : tuple of float
        SMs of the measured slices over those of the full-size profile, ascending, ending with 1.
    limits : tuple of float
        Limit :math:`\rho` of each.
    sharpness : float
        The exponent :math:`q`.

    References
    ----------
    Williams et al., Roofline, CACM 2009, for the minimum of two bounds; the smooth form is that of a
    generalised mean.

    Examples
    --------
    >>> law = SpeedLaw(fractions=(0.5, 1.0), limits=(0.5, 1.0), sharpness=4.0)
    >>> law.speed(np.array([-MAX_LOG, 0.0, MAX_LOG]), np.array(0.5)).round(2)
    array([1. , 0.59, 0.5 ])
    """

    fractions: tuple[float, ...]
    limits: tuple[float, ...]
    sharpness: float

    def limit(self, fraction: npt.ArrayLike) -> Floats:
        """Limit of slices with so large a share of the SMs; a straight line between measured ones, in logs.

        Below the smallest measured slice the limit is proportional to the share.

        Examples
        --------
        >>> SpeedLaw((0.25, 1.0), (0.36, 1.0), 4.0).limit([0.125, 0.25, 0.5]).round(2)
        array([0.18, 0.36, 0.6 ])
        """
        at = np.log(np.asarray(fraction, dtype=np.float64))
        known, limits = np.log(self.fractions), np.log(self.limits)
        found: Floats = np.exp(np.interp(at, known, limits) + np.minimum(at - known[0], 0.0))
        return found

    def speed(self, log_boundness: npt.ArrayLike, limit: npt.ArrayLike) -> Floats:
        """Relative speed (0-1]; arguments broadcast.

        Examples
        --------
        >>> law = SpeedLaw((0.25, 1.0), (0.25, 1.0), 1.0)
        >>> float(law.speed(0.0, 0.25))  # half on the host, half on a quarter of the GPU: 1 / (1/2 + 1/2 / 0.25)
        0.4
        """
        return (1 + self.share(log_boundness) * self._excess(limit)) ** (-1 / self.sharpness)

    def share(self, log_boundness: npt.ArrayLike) -> Floats:
        """The term s: weight of the GPU's part in a step on the whole GPU, 0-1.

        Examples
        --------
        >>> float(SpeedLaw((0.25, 1.0), (0.25, 1.0), 1.0).share(0.0))
        0.5
        """
        return 1 / (1 + np.exp(-self.sharpness * np.asarray(log_boundness, dtype=np.float64)))

    def from_speed(self, speed: npt.ArrayLike, limit: npt.ArrayLike) -> Floats:
        """Log of the boundness at which a slice with this limit reaches this speed.

        Examples
        --------
        >>> law = SpeedLaw((0.5, 1.0), (0.5, 1.0), 4.0)
        >>> float(law.from_speed(law.speed(0.3, 0.5), 0.5).round(6))
        0.3
        """
        slower = np.maximum(np.asarray(speed, dtype=np.float64) ** -self.sharpness - 1, 0.0)
        return self._log_boundness(slower / self._excess(limit))

    def from_batches(
        self, batch: npt.ArrayLike, step_s: npt.ArrayLike, other: npt.ArrayLike, other_step_s: npt.ArrayLike
    ) -> Floats:
        """Log of the boundness at one batch size, from step times of two on the whole GPU.

        Both times fit ``step**q = L0**q + (batch / C)**q``, which is linear in the two unknowns.

        Parameters
        ----------
        batch, step_s : array_like
            Batch size of the job, and its step time [s].
        other, other_step_s : array_like
            Another batch size, best the largest that fits, and its step time [s].

        Examples
        --------
        >>> law = SpeedLaw((0.5, 1.0), (0.5, 1.0), 1.0)
        >>> host_s, gpu_s_per_item = 0.02, 0.01
        >>> u = law.from_batches(4, host_s + 4 * gpu_s_per_item, 8, host_s + 8 * gpu_s_per_item)
        >>> float(np.exp(u).round(6))  # the GPU needs 0.04 s where the host needs 0.02 s
        2.0
        """
        q = self.sharpness
        one, two = (np.asarray(size, dtype=np.float64) ** q for size in (batch, other))
        step, other_step = (np.asarray(time, dtype=np.float64) ** q for time in (step_s, other_step_s))
        per_item = (other_step - step) / (two - one)
        return self._log_boundness(per_item * one / step)

    def _excess(self, limit: npt.ArrayLike) -> Floats:
        return np.asarray(limit, dtype=np.float64) ** -self.sharpness - 1

    def _log_boundness(self, share: Floats) -> Floats:
        within = np.clip(share, np.finfo(np.float64).tiny, 1 - np.finfo(np.float64).eps)
        log_odds = np.log(within) - np.log1p(-within)
        return np.clip(log_odds / self.sharpness, -MAX_LOG, MAX_LOG)


KINDS = ("training", "inference")
"""What a job does."""

FACTS = ("memory_utilisation", "power_share", "gpu_utilisation")
"""Telemetry of a job on the whole GPU from which its boundness can be told, best first."""


MAX_SPEED = 1.5
"""A slice cannot outrun its board; what is measured above 1 is noise, and above this a mistake."""


class SpeedJobs(dy.Schema):
    """What is known of a class of jobs; everything but its name may be missing."""

    job_class = dy.String(nullable=False, primary_key=True, metadata=meaning("name of the class"))
    kind = dy.Enum(KINDS, nullable=True, metadata=meaning("what its jobs do"))
    memory_gib = number("memory that an instance must have", "GiB", nullable=True)
    gpu_utilisation = number("share of time with a kernel running, on the full GPU", "0-1", nullable=True, high=1.0)
    memory_utilisation = number("share of time with memory busy, on the full GPU", "0-1", nullable=True, high=1.0)
    power_share = number("mean power over the power limit, on the full GPU", "0-1", nullable=True, high=1.0)
    batch = count("items a step", nullable=True, low=1)
    step_s = dy.Float64(nullable=True, min_exclusive=0, metadata=meaning("a step on the full GPU", "s"))
    other_batch = count("another batch size, best the largest that fits", nullable=True, low=1)
    other_step_s = dy.Float64(nullable=True, min_exclusive=0, metadata=meaning("its step on the full GPU", "s"))
    measured_profile = text("profile on which the speed was measured", nullable=True)
    measured_speed = dy.Float64(
        nullable=True,
        min_exclusive=0,
        max=MAX_SPEED,
        metadata=meaning("speed there over that on the full GPU"),
    )

    @dy.rule()
    def measured_profile_and_measured_speed_go_together(cls) -> pl.Expr:
        """Both or neither is given."""
        return pl.col("measured_profile").is_null() == pl.col("measured_speed").is_null()

    @dy.rule()
    def two_batch_sizes_need_both_step_times(cls) -> pl.Expr:
        """With another batch size come both batch sizes, which differ, and both step times."""
        rest = (pl.col(name).is_not_null() for name in ("batch", "step_s", "other_step_s"))
        no_other = pl.col("other_batch").is_null() & pl.col("other_step_s").is_null()
        differs = (pl.col("batch") != pl.col("other_batch")).fill_null(False)
        return no_other | (pl.all_horizontal(*rest) & differs)


EVIDENCE = ("second profile", "telemetry", "two batch sizes", "GPU utilisation", "batch size", "nothing")
"""What a prediction rests on, best first: the speed on another profile; memory utilisation and power on the whole
GPU; step times of two batch sizes there; the share of time with a kernel running there, which does not say how much
of the GPU the kernels fill; the batch size of an inference job; nothing but the other jobs."""

NUMBERS = ("batch", "step_s", "other_batch", "other_step_s", *FACTS, "measured_fraction", "measured_speed")
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
        measures = ("batch", "step_s", "other_batch", "other_step_s")
        batches = law.from_batches(*(known[name] for name in measures))
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


def full_profile(gpu_model: GpuModel) -> MigProfile:
    """The profile that takes the whole board, against which speeds are measured.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import as_board
    >>> full_profile(as_board("H100-80GB-SXM5")).name
    '7g.80gb'
    """
    for profile in gpu_model.profiles:
        whole = (profile.compute_slices, profile.memory_slices) == (
            gpu_model.compute_slices,
            gpu_model.memory_slices,
        )
        if whole and not profile.attribute:
            return profile
    todo = "Add its row, as the driver lists it."
    raise GeometryError(f"{gpu_model.name}: full-size profile", "one", "none", todo)


def sm_fraction(gpu_model: GpuModel, profile: MigProfile) -> float:
    """SMs of a profile over those of the full-size profile.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import as_board
    >>> gpu_model = as_board("H100-80GB-SXM5")
    >>> round(sm_fraction(gpu_model, gpu_model.profile("3g.40gb")), 3)  # not 3/7
    0.455
    """
    return gpu_model.sms_of(profile.name) / gpu_model.sms_of(full_profile(gpu_model).name)


def profile_table(gpu_model: GpuModel) -> pl.DataFrame:
    """Profiles of a board from small to large, then the whole GPU, with what a speed depends on.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import as_board
    >>> table = profile_table(as_board("A100-40GB")).select("profile", "fraction", "full")
    >>> table.with_columns(pl.col("fraction", "full").round(2)).rows()[-3:]
    [('4g.20gb', 0.57, 0.52), ('7g.40gb', 1.0, 0.91), ('gpu', 1.0, 1.0)]
    """
    full, sms = full_profile(gpu_model), gpu_model.sms_of(WHOLE_GPU)
    rows = []
    for one in plain_profiles(gpu_model):
        fractions = (sm_fraction(gpu_model, one), gpu_model.sms_of(one.name) / sms)
        rows.append((one.name, one.compute_slices, one.memory_slices, one.memory_gib, *fractions))
    rows.append((WHOLE_GPU, full.compute_slices, full.memory_slices, full.memory_gib, 1.0, 1.0))
    names = ["profile", "compute_slices", "memory_slices", "memory_gib", "fraction", "full"]
    return pl.DataFrame(rows, schema=names, orient="row").with_row_index("rank")
