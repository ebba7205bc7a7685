"""Fitted model of speed on MIG slices, with prediction intervals."""

from __future__ import annotations

import functools
import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import polars as pl

from gpuplanner.core.errors import (
    GeometryError,
    GpuPlannerWarning,
    SchemaError,
    TraceFormatError,
    examples,
    format_message,
)
from gpuplanner.core.schema_checks import check_table, conform
from gpuplanner.hardware.gpu_models import GpuModel, as_gpu_model
from gpuplanner.sizing.mig_speed_law import (
    BoundnessLink,
    FittedSpeedLaw,
    SpeedLaw,
    SpeedModelJobs,
    estimate_log_boundness,
    find_full_profile,
    make_profile_table,
    sm_fraction,
)

SPEED_PREDICTION_COLUMNS = ("job_class", "profile", "speed", "speed_low", "speed_high", "evidence")
"""Columns of a prediction."""

NOMINAL_INTERVAL_COVERAGES = (0.8, 0.9)
"""Coverages of prediction intervals for which the model stores half-widths [0-1]."""

MIN_NEAR_FULL_SPEED_FRACTION = 0.9
"""Predicted speed from which a job counts as hardly slowed, which has smaller errors. [0-1]"""

CALIBRATION_GROUP_COLUMNS = (
    ("evidence", "measured_slices", "compute_slices", "near_whole"),
    ("evidence", "measured_slices", "compute_slices"),
    ("evidence", "measured_slices"),
    ("evidence",),
)
"""Columns that group predictions by the half-width of their interval, from narrow groups to wide ones."""


@dataclass(frozen=True, eq=False)
class SpeedModel:
    """Model of the speed of jobs on MIG profiles, relative to the full GPU, with intervals.

    Fitted by ``benchmarks/speed_model.py`` and parsed by :func:`speed_model_from_json`; :func:`default_speed_model` is
    the shipped one.

    Parameters
    ----------
    fitted : FittedSpeedLaw
        Law and links.
    radii : polars.DataFrame
        One row a group of :data:`CALIBRATION_GROUP_COLUMNS`: half-widths that covered errors on models left out of
        the fit.
    noise : tuple of float
        Half-widths of a speed that was measured, at each of :data:`NOMINAL_INTERVAL_COVERAGES`.
    slices : tuple of int
        Compute slices of the profiles measured, in the order of the fractions of the law; without the whole GPU.
    measured : tuple of (str, int, int)
        Board, compute slices and memory slices of the profiles measured. For all others the limit is carried
        over by the share of the SMs, and the interval widened.
    widening : float
        Factor on the log of the half-width of such intervals.
    provenance : mapping
        Data, split, and errors and coverage on held-out models; text and numbers.
    """

    fitted: FittedSpeedLaw
    radii: pl.DataFrame
    noise: tuple[float, ...]
    slices: tuple[int, ...]
    measured: tuple[tuple[str, int, int], ...]
    widening: float
    provenance: Mapping[str, object]

    def predict(
        self, jobs: pl.DataFrame, gpu_model: GpuModel | str, *, coverage: float = 0.9, source: str = "predict: jobs"
    ) -> pl.DataFrame:
        """Predict the speed of each class of jobs on each profile of a GPU model that it fits.

        Parameters
        ----------
        jobs : polars.DataFrame
            A table :class:`~gpuplanner.sizing.mig_speed_law.SpeedModelJobs`; the more is known, the narrower the
            interval.
            A ``measured_profile`` is one of this GPU model.
        gpu_model : GpuModel or str
            The GPU model.
        coverage : {0.8, 0.9}
            Nominal coverage of the intervals.
        source : str
            Where the table came from, for messages.

        Returns
        -------
        polars.DataFrame
            :data:`SPEED_PREDICTION_COLUMNS`, jobs in their order, profiles from small to large, then ``"gpu"``:
            ``speed`` relative to the full-size profile in (0, 1], the ends of its interval, and ``evidence``. A profile
            that a job does not fit has no row: the job is not slow there, it does not run. The interval of
            the full-size profile begins at its share of the SMs of the board that is not cut (98 of 108 on an
            A100), since no data compare the two.

        Raises
        ------
        SchemaError
            If the table is not what it should be, or `coverage` is none of those kept.
        GeometryError
            If the board or a profile is unknown, or no source states SMs or, where a job names its need,
            memory.

        Warns
        -----
        GpuPlannerWarning
            If a class of jobs fits no profile.

        Notes
        -----
        Telemetry was measured on training jobs only, batch sizes alone on inference only, and every board was
        an A100. Evidence that ends in "carried by SMs" rests on an assumption: the limit of a profile is that
        of the same share of the SMs of an A100, and the interval is widened by :attr:`widening`.

        Examples
        --------
        >>> jobs = pl.DataFrame({"job_class": ["tuning"], "memory_gib": 12.0, "power_share": 0.5})
        >>> default_speed_model().predict(jobs, "A100-40GB").select("profile", "evidence").rows()
        [('3g.20gb', 'telemetry'), ('4g.20gb', 'telemetry'), ('7g.40gb', 'full GPU'), ('gpu', 'full GPU')]
        """
        if coverage not in NOMINAL_INTERVAL_COVERAGES:
            expected = f"one of {', '.join(map(str, NOMINAL_INTERVAL_COVERAGES))}"
            raise SchemaError("predict: coverage", expected, repr(coverage), "Choose one.")
        model = as_gpu_model(gpu_model)
        table = check_table(conform(jobs, SpeedModelJobs, source=source), SpeedModelJobs, source=source).with_row_index(
            "job"
        )
        facts = _add_measured_fraction(table, model)
        facts = facts.with_columns(estimate_log_boundness(self.fitted, facts))
        rows = _pair_with_fitting_profiles(facts, make_profile_table(model))
        parts = self._add_interval(self._add_predicted_speed(rows.filter(pl.col("fraction") < 1), model), coverage)
        whole = rows.filter(pl.col("fraction") == 1).with_columns(
            speed=1.0, speed_low="full", speed_high=1.0, evidence=pl.lit("full GPU")
        )
        table = pl.concat([parts, whole], how="diagonal")
        return table.sort("job", "rank").select(SPEED_PREDICTION_COLUMNS)

    def _add_predicted_speed(self, rows: pl.DataFrame, gpu_model: GpuModel) -> pl.DataFrame:
        """Add limit and speed, and the calibration group of each profile."""
        limit = self.fitted.law.limit(rows["fraction"].to_numpy())
        speed = self.fitted.law.speed(rows["log_boundness"].to_numpy(), limit)
        is_measured = (pl.col("profile") == pl.col("measured_profile")).fill_null(False)
        keys = [(gpu_model.name, *size) for size in rows.select("compute_slices", "memory_slices").iter_rows()]
        has_calibration = pl.Series([key in self.measured for key in keys], dtype=pl.Boolean)
        return rows.with_columns(room=-pl.Series(limit).log(), speed=pl.Series(speed)).with_columns(
            speed=pl.when(is_measured).then(pl.col("measured_speed").clip(upper_bound=1.0)).otherwise("speed"),
            near_whole=pl.col("speed") >= MIN_NEAR_FULL_SPEED_FRACTION,
            compute_slices=self._nearest(rows["fraction"]),
            measured_slices=self._nearest(rows["measured_fraction"]),
            carried=~is_measured & ~has_calibration,
            evidence=pl.when(is_measured).then(pl.lit("measured")).otherwise("evidence"),
        )

    def _add_interval(self, rows: pl.DataFrame, coverage: float) -> pl.DataFrame:
        """Add the ends of the interval."""
        radius = pl.col(radius_name(coverage)) * pl.col("room")
        noise = self.noise[NOMINAL_INTERVAL_COVERAGES.index(coverage)]
        half = pl.when(pl.col("evidence") == "measured").then(noise).otherwise(radius)
        half = half * pl.when("carried").then(self.widening).otherwise(1.0)
        return add_radii(rows, self.radii).with_columns(
            speed_low=pl.col("speed") * (-half).exp(),
            speed_high=(pl.col("speed") * half.exp()).clip(upper_bound=1.0),
            evidence=pl.col("evidence") + pl.when("carried").then(pl.lit(", carried by SMs")).otherwise(pl.lit("")),
        )

    def _nearest(self, fractions: pl.Series) -> pl.Series:
        """Return the compute slices of the measured profile with the nearest SM fraction, by ratio."""
        log_fractions = [math.log(fraction) for fraction in self.fitted.law.fractions]

        def nearest(fraction: float) -> int:
            """Return the compute slices of the measured profile whose SM fraction is nearest by ratio."""
            sizes = zip(log_fractions, self.slices, strict=False)
            return min(sizes, key=lambda pair: abs(pair[0] - math.log(fraction)))[1]

        nearest_sizes = {fraction: nearest(fraction) for fraction in fractions.drop_nulls().unique()}
        return fractions.replace_strict(nearest_sizes, default=None, return_dtype=pl.Int64)


def _add_measured_fraction(table: pl.DataFrame, gpu_model: GpuModel) -> pl.DataFrame:
    """Add the SM fraction of the profile on which a speed was measured, under its name on this GPU model."""
    names = table["measured_profile"].drop_nulls().unique(maintain_order=True)
    profiles = {name: gpu_model.profile(name) for name in names}
    fractions = {name: sm_fraction(gpu_model, profile) for name, profile in profiles.items()}
    whole = [name for name, fraction in fractions.items() if fraction >= 1]
    if whole:
        expected = f"a profile smaller than {find_full_profile(gpu_model).name}"
        todo = "Its speed is 1; leave both columns empty."
        raise SchemaError("predict: measured_profile", expected, examples(whole), todo)
    column = pl.col("measured_profile")
    full_names = {name: profile.name for name, profile in profiles.items()}
    fraction = column.replace_strict(fractions, default=None, return_dtype=pl.Float64)
    named = column.replace_strict(full_names, default=None, return_dtype=pl.String)
    return table.with_columns(named, measured_fraction=fraction)


def _pair_with_fitting_profiles(facts: pl.DataFrame, profiles: pl.DataFrame) -> pl.DataFrame:
    """Pair every job with the profiles that it fits; warn of jobs that fit none."""
    unknown = profiles.filter(pl.col("memory_gib").is_null())["profile"]
    if len(unknown) and facts["memory_gib"].is_not_null().any():
        got = f"none for {examples(unknown.to_list())}"
        todo = "Give rows of your own with 'memory_gib', or leave the memory of the jobs empty."
        raise GeometryError("predict: memory of the profiles", "a number in the catalog", got, todo)
    pairs = facts.rename({"memory_gib": "needed_gib"}).join(profiles, how="cross")
    rows = pairs.filter(pl.col("needed_gib").is_null() | (pl.col("needed_gib") <= pl.col("memory_gib")))
    nowhere = facts.filter(~pl.col("job").is_in(rows["job"].unique().to_list()))["job_class"].to_list()
    if nowhere:
        got = f"more in {len(nowhere)} class(es): {examples(nowhere)}"
        todo = "They are left out: choose a larger GPU model, or more than one GPU."
        text = format_message("predict: memory_gib", "at most the memory of the full GPU", got, todo)
        warnings.warn(text, GpuPlannerWarning, stacklevel=3)
    return rows


def radius_name(coverage: float) -> str:
    """Return the name of the column with the half-width of an interval of a coverage.

    Examples
    --------
    >>> radius_name(0.9)
    'radius_90'
    """
    return f"radius_{round(100 * coverage)}"


def add_radii(rows: pl.DataFrame, radii: pl.DataFrame) -> pl.DataFrame:
    """Add half-widths of the 80 and 90 % intervals: of the finest calibration group that has any, infinite if none has.

    Examples
    --------
    >>> group = {"evidence": ["telemetry"], "measured_slices": [None], "compute_slices": [1], "near_whole": [False]}
    >>> rows = pl.DataFrame(group, schema_overrides={"measured_slices": pl.Int64})
    >>> radii = rows.with_columns(level=pl.lit(1), radius_80=pl.lit(0.08), radius_90=pl.lit(0.09))
    >>> add_radii(rows, radii).select("radius_80", "radius_90").row(0)
    (0.08, 0.09)
    """
    names = [radius_name(coverage) for coverage in NOMINAL_INTERVAL_COVERAGES]
    joined, groups = rows.lazy(), radii.lazy()
    for level, keys in enumerate(CALIBRATION_GROUP_COLUMNS):
        of_level = (pl.col(name).alias(f"{name}_{level}") for name in names)
        group = groups.filter(level=level).select(*keys, *of_level)
        joined = joined.join(group, on=keys, how="left", nulls_equal=True, maintain_order="left")
    narrowest = {name: [f"{name}_{level}" for level in range(len(CALIBRATION_GROUP_COLUMNS))] for name in names}
    bounded = (pl.coalesce(*columns, pl.lit(float("inf"))).alias(name) for name, columns in narrowest.items())
    return joined.select(*rows.columns, *bounded).collect()


SPEED_MODEL_FORMAT = "gpuplanner speed model 1"
"""Format of a stored speed model."""

SPEED_MODEL_FILE_NAME = "mig_speed_model.json"
"""Shipped model; ``python benchmarks/speed_model.py --write`` makes it."""

INTERVAL_RADII_SCHEMA = {
    "level": pl.Int32,
    "evidence": pl.String,
    "measured_slices": pl.Int64,
    "compute_slices": pl.Int64,
    "near_whole": pl.Boolean,
    "n": pl.Int64,
    **{radius_name(coverage): pl.Float64 for coverage in NOMINAL_INTERVAL_COVERAGES},
}
"""Columns of the stored half-widths of prediction intervals, with dtypes."""


def speed_model_from_json(text: str, *, source: str = "speed model") -> SpeedModel:
    """Parse a speed model from JSON.

    Parameters
    ----------
    text : str
        A model as the shipped ``mig_speed_model.json`` has it.
    source : str
        Where the text came from, for the message.

    Raises
    ------
    TraceFormatError
        If it is not such a text, with the part that is missing or wrong.

    Examples
    --------
    >>> speed_model_from_json('{"format": "other"}')
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.TraceFormatError: speed model: expected format 'gpuplanner speed model 1'; got 'other'. ...
    """
    todo = "Write it again with model_to_json."
    try:
        document = json.loads(text)
    except ValueError as error:
        raise TraceFormatError(source, "JSON", str(error), todo) from error
    stated_format = document.get("format") if isinstance(document, dict) else type(document).__name__
    if stated_format != SPEED_MODEL_FORMAT:
        raise TraceFormatError(source, f"format {SPEED_MODEL_FORMAT!r}", repr(stated_format), todo)
    try:
        return _parse_speed_model(document)
    except (KeyError, TypeError, ValueError, pl.exceptions.PolarsError) as error:
        got = f"{type(error).__name__}: {error}"
        raise TraceFormatError(source, "all parts of a speed model", got, todo) from error


@functools.cache
def default_speed_model() -> SpeedModel:
    """Load the shipped model, fitted to all public measurements; it needs no data.

    Examples
    --------
    >>> default_speed_model().slices
    (1, 2, 3, 4)
    """
    path = resources.files(__package__) / SPEED_MODEL_FILE_NAME
    return speed_model_from_json(path.read_text(encoding="utf-8"), source=f"gpuplanner/sizing/{SPEED_MODEL_FILE_NAME}")


def _parse_speed_model(document: dict[str, Any]) -> SpeedModel:
    """Build a speed model from its JSON document."""
    law = SpeedLaw(
        fractions=tuple(map(float, document["law"]["fractions"])),
        limits=tuple(map(float, document["law"]["limits"])),
        sharpness=float(document["law"]["sharpness"]),
    )
    slices = tuple(map(int, document["slices"]))
    if not len(law.fractions) == len(law.limits) == len(slices) + 1 > 1:
        raise ValueError("law: one fraction and limit more than slices, for the full GPU")
    links = {str(name): BoundnessLink(float(low), float(slope)) for name, (low, slope) in document["links"].items()}
    return SpeedModel(
        fitted=FittedSpeedLaw(law, links),
        radii=pl.DataFrame(document["radii"], schema=INTERVAL_RADII_SCHEMA, orient="row"),
        noise=tuple(math.inf if radius is None else float(radius) for radius in document["noise"]),
        slices=slices,
        measured=tuple(
            (str(gpu_model), int(compute), int(memory)) for gpu_model, compute, memory in document["measured"]
        ),
        widening=float(document["widening"]),
        provenance=dict(document["provenance"]),
    )
