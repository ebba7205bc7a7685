"""Speed law: throughput on a MIG slice as a function of its compute fraction and the boundness of the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import dataframely as dy
import numpy as np
import numpy.typing as npt
import polars as pl

from gpuplanner.core.errors import GeometryError
from gpuplanner.core.schemas import FULL_GPU, column_metadata, count_column, number_column, text_column
from gpuplanner.hardware.gpu_models import GpuModel, MigProfile
from gpuplanner.usage.requested_demand import plain_profiles

Floats = npt.NDArray[np.float64]
"""Array of floats."""

MAX_LOG_BOUNDNESS = 5.0
"""Largest absolute logarithm of the boundness of a job (time on the GPU over time elsewhere, on the full GPU): beyond
it no speed changes in its third digit.
"""


@dataclass(frozen=True)
class SpeedLaw:
    r"""Speed on a slice, relative to the full GPU, of a job with known boundness.

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
    >>> law.speed(np.array([-MAX_LOG_BOUNDNESS, 0.0, MAX_LOG_BOUNDNESS]), np.array(0.5)).round(2)
    array([1. , 0.59, 0.5 ])
    """

    fractions: tuple[float, ...]
    limits: tuple[float, ...]
    sharpness: float

    def limit(self, fraction: npt.ArrayLike) -> Floats:
        """Return the limit of slices with given SM fractions: log-linear between measured ones.

        Examples
        --------
        >>> SpeedLaw((0.25, 1.0), (0.36, 1.0), 4.0).limit([0.125, 0.25, 0.5]).round(2)
        array([0.18, 0.36, 0.6 ])
        """
        log_fraction = np.log(np.asarray(fraction, dtype=np.float64))
        measured, limits = np.log(self.fractions), np.log(self.limits)
        limit_of_fraction: Floats = np.exp(
            np.interp(log_fraction, measured, limits) + np.minimum(log_fraction - measured[0], 0.0)
        )
        return limit_of_fraction

    def speed(self, log_boundness: npt.ArrayLike, limit: npt.ArrayLike) -> Floats:
        """Return the relative speed (0-1]; arguments broadcast.

        Examples
        --------
        >>> law = SpeedLaw((0.25, 1.0), (0.25, 1.0), 1.0)
        >>> float(law.speed(0.0, 0.25))  # half on the host, half on a quarter of the GPU: 1 / (1/2 + 1/2 / 0.25)
        0.4
        """
        return (1 + self.gpu_weight(log_boundness) * self._excess(limit)) ** (-1 / self.sharpness)

    def gpu_weight(self, log_boundness: npt.ArrayLike) -> Floats:
        """Return the term s: the weight of the GPU's part of a step on the full GPU. [0-1].

        Examples
        --------
        >>> float(SpeedLaw((0.25, 1.0), (0.25, 1.0), 1.0).gpu_weight(0.0))
        0.5
        """
        return 1 / (1 + np.exp(-self.sharpness * np.asarray(log_boundness, dtype=np.float64)))

    def from_speed(self, speed: npt.ArrayLike, limit: npt.ArrayLike) -> Floats:
        """Return the log boundness at which a slice with this limit has this speed.

        Examples
        --------
        >>> law = SpeedLaw((0.5, 1.0), (0.5, 1.0), 4.0)
        >>> float(law.from_speed(law.speed(0.3, 0.5), 0.5).round(6))
        0.3
        """
        slower = np.maximum(np.asarray(speed, dtype=np.float64) ** -self.sharpness - 1, 0.0)
        return self._log_boundness(slower / self._excess(limit))

    def boundness_from_batch_times(
        self, batch: npt.ArrayLike, step_s: npt.ArrayLike, other_batch: npt.ArrayLike, other_step_s: npt.ArrayLike
    ) -> Floats:
        """Return the log boundness at one batch size, from the step times of two batch sizes on the full GPU.

        Parameters
        ----------
        batch, step_s : array_like
            Batch size of the job, and its step time [s].
        other_batch, other_step_s : array_like
            Another batch size, best the largest that fits, and its step time [s].

        Examples
        --------
        >>> law = SpeedLaw((0.5, 1.0), (0.5, 1.0), 1.0)
        >>> host_s, gpu_s_per_item = 0.02, 0.01
        >>> u = law.boundness_from_batch_times(4, host_s + 4 * gpu_s_per_item, 8, host_s + 8 * gpu_s_per_item)
        >>> float(np.exp(u).round(6))  # the GPU needs 0.04 s where the host needs 0.02 s
        2.0
        """
        q = self.sharpness
        batch_power, other_batch_power = (np.asarray(size, dtype=np.float64) ** q for size in (batch, other_batch))
        step, other_step = (np.asarray(time, dtype=np.float64) ** q for time in (step_s, other_step_s))
        per_item = (other_step - step) / (other_batch_power - batch_power)
        return self._log_boundness(per_item * batch_power / step)

    def _excess(self, limit: npt.ArrayLike) -> Floats:
        """Return how far a bound on speed [0-1] exceeds 1 on the scale of the law, to which resources add."""
        return np.asarray(limit, dtype=np.float64) ** -self.sharpness - 1

    def _log_boundness(self, share: Floats) -> Floats:
        """Return the logarithm of the boundness of a job from the share of its time at one limit [0-1]."""
        within = np.clip(share, np.finfo(np.float64).tiny, 1 - np.finfo(np.float64).eps)
        log_odds = np.log(within) - np.log1p(-within)
        return np.clip(log_odds / self.sharpness, -MAX_LOG_BOUNDNESS, MAX_LOG_BOUNDNESS)


JOB_KINDS = ("training", "inference")
"""Kinds of jobs."""

BOUNDNESS_TELEMETRY_COLUMNS = ("memory_utilisation", "power_share", "gpu_utilisation")
"""Telemetry on the full GPU from which the boundness can be estimated, best first."""


MAX_RELATIVE_SPEED = 1.5
"""Largest measured speed relative to the full GPU that is accepted; values above 1 are noise."""


class SpeedModelJobs(dy.Schema):
    """Known figures of classes of jobs; all but the name may be missing."""

    job_class = dy.String(nullable=False, primary_key=True, metadata=column_metadata("name of the class"))
    kind = dy.Enum(JOB_KINDS, nullable=True, metadata=column_metadata("what its jobs do"))
    memory_gib = number_column("memory that an instance must have", "GiB", nullable=True)
    gpu_utilisation = number_column(
        "share of time with a kernel running, on the full GPU", "0-1", nullable=True, high=1.0
    )
    memory_utilisation = number_column(
        "share of time with memory busy, on the full GPU", "0-1", nullable=True, high=1.0
    )
    power_share = number_column("mean power over the power limit, on the full GPU", "0-1", nullable=True, high=1.0)
    batch = count_column("items a step", nullable=True, low=1)
    step_s = dy.Float64(nullable=True, min_exclusive=0, metadata=column_metadata("a step on the full GPU", "s"))
    other_batch = count_column("another batch size, best the largest that fits", nullable=True, low=1)
    other_step_s = dy.Float64(nullable=True, min_exclusive=0, metadata=column_metadata("its step on the full GPU", "s"))
    measured_profile = text_column("profile on which the speed was measured", nullable=True)
    measured_speed = dy.Float64(
        nullable=True,
        min_exclusive=0,
        max=MAX_RELATIVE_SPEED,
        metadata=column_metadata("speed there over that on the full GPU"),
    )

    @dy.rule()
    def measured_profile_and_measured_speed_go_together(cls) -> pl.Expr:
        """Both or neither is given."""
        return pl.col("measured_profile").is_null() == pl.col("measured_speed").is_null()

    @dy.rule()
    def two_batch_sizes_need_both_step_times(cls) -> pl.Expr:
        """With another batch size come both batch sizes, which differ, and both step times."""
        other_columns = (pl.col(name).is_not_null() for name in ("batch", "step_s", "other_step_s"))
        no_other = pl.col("other_batch").is_null() & pl.col("other_step_s").is_null()
        differs = (pl.col("batch") != pl.col("other_batch")).fill_null(False)
        return no_other | (pl.all_horizontal(*other_columns) & differs)


EVIDENCE_ORDER = ("second profile", "telemetry", "two batch sizes", "GPU utilisation", "batch size", "nothing")
"""Evidence of a prediction, best first: the speed on another profile; memory utilisation and power on the full GPU;
step times of two batch sizes; GPU utilisation, which does not tell how much of the GPU kernels fill; the batch size
of an inference job; nothing but the other jobs."""

NUMERIC_JOB_COLUMNS = (
    "batch",
    "step_s",
    "other_batch",
    "other_step_s",
    *BOUNDNESS_TELEMETRY_COLUMNS,
    "measured_fraction",
    "measured_speed",
)
"""Numeric columns that describe a job; each may be null."""

_MIN_TELEMETRY_DISTANCE = 0.005
"""Least distance of a telemetry fraction from 0 and 1: telemetry is rounded, so 0 and 1 mean near 0 and near 1."""


@dataclass(frozen=True)
class BoundnessLink:
    """Linear link from a fact to the log boundness; fractions enter as log-odds, batch sizes as logarithms."""

    intercept: float
    slope: float


@dataclass(frozen=True)
class FittedSpeedLaw:
    """The fitted law and links.

    - ``law``: Speed by boundness.
    - ``links``: Boundness by a fact: one of :data:`BOUNDNESS_TELEMETRY_COLUMNS`, ``"batch"`` or ``"nothing"``.
    """

    law: SpeedLaw
    links: Mapping[str, BoundnessLink]


def estimate_log_boundness(fitted_speed: FittedSpeedLaw, facts: pl.DataFrame) -> pl.DataFrame:
    """Estimate the log boundness of jobs from the best evidence of each.

    Examples
    --------
    >>> links = {"power_share": BoundnessLink(0.0, 1.0), "nothing": BoundnessLink(0.1, 0.0)}
    >>> fitted = FittedSpeedLaw(SpeedLaw((0.5, 1.0), (0.5, 1.0), 4.0), links)
    >>> unknown = pl.DataFrame({name: [None, None] for name in ("kind", *NUMERIC_JOB_COLUMNS)})
    >>> estimate_log_boundness(fitted, unknown.with_columns(power_share=pl.Series([0.5, None]))).rows()
    [('telemetry', 0.0), ('nothing', 0.1)]
    """
    law, numbers = fitted_speed.law, {name: _float_column(facts, name) for name in NUMERIC_JOB_COLUMNS}
    with np.errstate(invalid="ignore"):
        second = law.from_speed(numbers["measured_speed"], law.limit(numbers["measured_fraction"]))
        measures = ("batch", "step_s", "other_batch", "other_step_s")
        batches = law.boundness_from_batch_times(*(numbers[name] for name in measures))
    inference = (facts["kind"].cast(pl.String) == "inference").fill_null(False).to_numpy()
    estimates = {
        "second profile": second,
        "telemetry": _mean_of_estimates(
            *(_estimate_from_fact(fitted_speed, name, numbers) for name in ("memory_utilisation", "power_share"))
        ),
        "two batch sizes": batches,
        "GPU utilisation": _estimate_from_fact(fitted_speed, "gpu_utilisation", numbers),
        "batch size": np.where(inference, _estimate_from_fact(fitted_speed, "batch", numbers), np.nan),
        "nothing": np.full(facts.height, fitted_speed.links["nothing"].intercept),
    }
    table = pl.DataFrame({name: estimates[name] for name in EVIDENCE_ORDER}, nan_to_null=True)
    names = [pl.when(pl.col(name).is_not_null()).then(pl.lit(name)) for name in EVIDENCE_ORDER]
    return table.select(evidence=pl.coalesce(names), log_boundness=pl.coalesce(EVIDENCE_ORDER))


def regressor(fact: str, values: Floats) -> Floats:
    """Transform telemetry or a batch size to the scale on which it is linear in the log boundness; NaN stays NaN.

    Examples
    --------
    >>> regressor("power_share", np.array([0.5])), regressor("batch", np.array([1.0]))
    (array([0.]), array([0.]))
    """
    if fact == "batch":
        return np.log(values)
    within = np.clip(values, _MIN_TELEMETRY_DISTANCE, 1 - _MIN_TELEMETRY_DISTANCE)
    return np.log(within / (1 - within))


def _float_column(facts: pl.DataFrame, name: str) -> Floats:
    """Return a column of a table as floats, with NaN for null."""
    return facts[name].cast(pl.Float64).fill_null(np.nan).to_numpy()


def _estimate_from_fact(fitted_speed: FittedSpeedLaw, fact: str, numbers: Mapping[str, Floats]) -> Floats:
    """Estimate the log boundness from one fact; NaN where it is missing or was not fitted."""
    link = fitted_speed.links.get(fact)
    if link is None:
        return np.full(numbers[fact].shape, np.nan)
    return link.intercept + link.slope * regressor(fact, numbers[fact])


def _mean_of_estimates(first: Floats, second: Floats) -> Floats:
    """Return the mean of two estimates, or the one that is not NaN."""
    return np.where(np.isnan(first), second, np.where(np.isnan(second), first, (first + second) / 2))


def find_full_profile(gpu_model: GpuModel) -> MigProfile:
    """Find the full-size profile of a GPU model, the reference of measured speeds.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import as_gpu_model
    >>> find_full_profile(as_gpu_model("H100-80GB-SXM5")).name
    '7g.80gb'
    """
    for profile in gpu_model.profiles:
        whole = (profile.compute_slices, profile.memory_slices) == (gpu_model.compute_slices, gpu_model.memory_slices)
        if whole and not profile.attribute:
            return profile
    todo = "Add its row, as the driver lists it."
    raise GeometryError(f"{gpu_model.name}: full-size profile", "one", "none", todo)


def sm_fraction(gpu_model: GpuModel, profile: MigProfile) -> float:
    """Return the SMs of a profile over those of the full-size profile. [0-1].

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import as_gpu_model
    >>> gpu_model = as_gpu_model("H100-80GB-SXM5")
    >>> round(sm_fraction(gpu_model, gpu_model.profile("3g.40gb")), 3)  # not 3/7
    0.455
    """
    return gpu_model.sms_of(profile.name) / gpu_model.sms_of(find_full_profile(gpu_model).name)


def make_profile_table(gpu_model: GpuModel) -> pl.DataFrame:
    """Make a table of the profiles of a GPU model, small to large, then the full GPU, with SM fractions.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import as_gpu_model
    >>> table = make_profile_table(as_gpu_model("A100-40GB")).select("profile", "fraction", "full")
    >>> table.with_columns(pl.col("fraction", "full").round(2)).rows()[-3:]
    [('4g.20gb', 0.57, 0.52), ('7g.40gb', 1.0, 0.91), ('gpu', 1.0, 1.0)]
    """
    full, sms = find_full_profile(gpu_model), gpu_model.sms_of(FULL_GPU)
    rows = []
    for profile in plain_profiles(gpu_model):
        fractions = (sm_fraction(gpu_model, profile), gpu_model.sms_of(profile.name) / sms)
        rows.append((profile.name, profile.compute_slices, profile.memory_slices, profile.memory_gib, *fractions))
    rows.append((FULL_GPU, full.compute_slices, full.memory_slices, full.memory_gib, 1.0, 1.0))
    names = ["profile", "compute_slices", "memory_slices", "memory_gib", "fraction", "full"]
    return pl.DataFrame(rows, schema=names, orient="row").with_row_index("rank")
