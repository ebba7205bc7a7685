"""The fitted speed model and its predictions."""

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
    message,
)
from gpuplanner.core.schema_checks import check, conform
from gpuplanner.hardware.gpu_models import GpuModel, as_board
from gpuplanner.sizing.mig_speed_law import (
    Fitted,
    Link,
    SpeedJobs,
    SpeedLaw,
    full_profile,
    log_boundness,
    profile_table,
    sm_fraction,
)

COLUMNS = ("job_class", "profile", "speed", "speed_low", "speed_high", "evidence")
"""Columns of a prediction."""

COVERAGES = (0.8, 0.9)
"""Nominal coverages for which radii are kept."""

NEAR_WHOLE = 0.9
"""Predicted speed from which a job counts as hardly slowed: its errors are smaller."""

LEVELS = (
    ("evidence", "measured_slices", "compute_slices", "near_whole"),
    ("evidence", "measured_slices", "compute_slices"),
    ("evidence", "measured_slices"),
    ("evidence",),
)
"""Groups from narrow to wide."""


@dataclass(frozen=True, eq=False)
class SpeedModel:
    """Speed of jobs on MIG profiles, relative to the whole GPU, with intervals.

    Fitted by ``benchmarks/speed_model.py``, read by :func:`~gpuplanner.sizing.mig_speed_model.model_from_json`; the one
    that is shipped is :func:`~gpuplanner.sizing.mig_speed_model.default_model`.

    Parameters
    ----------
    fitted : Fitted
        Law and links.
    radii : polars.DataFrame
        One row a group of :data:`LEVELS`: half-widths that covered errors on models left out of the fit.
    noise : tuple of float
        Half-widths of a speed that was measured, at each of :data:`COVERAGES`.
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

    fitted: Fitted
    radii: pl.DataFrame
    noise: tuple[float, ...]
    slices: tuple[int, ...]
    measured: tuple[tuple[str, int, int], ...]
    widening: float
    provenance: Mapping[str, object]

    def predict(
        self,
        jobs: pl.DataFrame,
        gpu_model: GpuModel | str,
        *,
        coverage: float = 0.9,
        where: str = "predict: jobs",
    ) -> pl.DataFrame:
        """Speed of each class of jobs on each profile of a board that it fits.

        Parameters
        ----------
        jobs : polars.DataFrame
            A table :class:`~gpuplanner.sizing.mig_speed_law.SpeedJobs`; the more is known, the narrower the interval.
            A ``measured_profile`` is one of this board.
        gpu_model : GpuModel or str
            The board.
        coverage : {0.8, 0.9}
            Nominal coverage of the intervals.
        where : str
            Where the table came from, for messages.

        Returns
        -------
        polars.DataFrame
            :data:`COLUMNS`, jobs in their order, profiles from small to large, then ``"gpu"``: ``speed``
            relative to the full-size profile in (0, 1], the ends of its interval, and ``evidence``. A profile
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
        >>> default_model().predict(jobs, "A100-40GB").select("profile", "evidence").rows()
        [('3g.20gb', 'telemetry'), ('4g.20gb', 'telemetry'), ('7g.40gb', 'full GPU'), ('gpu', 'full GPU')]
        """
        if coverage not in COVERAGES:
            expected = f"one of {', '.join(map(str, COVERAGES))}"
            raise SchemaError("predict: coverage", expected, repr(coverage), "Choose one.")
        known = as_board(gpu_model)
        table = check(conform(jobs, SpeedJobs, where=where), SpeedJobs, where=where).with_row_index("job")
        facts = _with_measured(table, known)
        facts = facts.with_columns(log_boundness(self.fitted, facts))
        rows = _fitting(facts, profile_table(known))
        parts = self._bounded(self._predicted(rows.filter(pl.col("fraction") < 1), known), coverage)
        whole = rows.filter(pl.col("fraction") == 1).with_columns(
            speed=1.0, speed_low="full", speed_high=1.0, evidence=pl.lit("full GPU")
        )
        both = pl.concat([parts, whole], how="diagonal")
        return both.sort("job", "rank").select(COLUMNS)

    def _predicted(self, rows: pl.DataFrame, gpu_model: GpuModel) -> pl.DataFrame:
        """Add the limit and the speed, and what of the calibration holds for the profile."""
        limit = self.fitted.law.limit(rows["fraction"].to_numpy())
        speed = self.fitted.law.speed(rows["log_boundness"].to_numpy(), limit)
        own = (pl.col("profile") == pl.col("measured_profile")).fill_null(False)
        places = [(gpu_model.name, *size) for size in rows.select("compute_slices", "memory_slices").iter_rows()]
        known = pl.Series([place in self.measured for place in places], dtype=pl.Boolean)
        return rows.with_columns(room=-pl.Series(limit).log(), speed=pl.Series(speed)).with_columns(
            speed=pl.when(own).then(pl.col("measured_speed").clip(upper_bound=1.0)).otherwise("speed"),
            near_whole=pl.col("speed") >= NEAR_WHOLE,
            compute_slices=self._nearest(rows["fraction"]),
            measured_slices=self._nearest(rows["measured_fraction"]),
            carried=~own & ~known,
            evidence=pl.when(own).then(pl.lit("measured")).otherwise("evidence"),
        )

    def _bounded(self, rows: pl.DataFrame, coverage: float) -> pl.DataFrame:
        """Add the interval."""
        radius = pl.col(radius_name(coverage)) * pl.col("room")
        noise = self.noise[COVERAGES.index(coverage)]
        half = pl.when(pl.col("evidence") == "measured").then(noise).otherwise(radius)
        half = half * pl.when("carried").then(self.widening).otherwise(1.0)
        return with_radii(rows, self.radii).with_columns(
            speed_low=pl.col("speed") * (-half).exp(),
            speed_high=(pl.col("speed") * half.exp()).clip(upper_bound=1.0),
            evidence=pl.col("evidence") + pl.when("carried").then(pl.lit(", carried by SMs")).otherwise(pl.lit("")),
        )

    def _nearest(self, fractions: pl.Series) -> pl.Series:
        """Compute slices of the measured profile whose share of the SMs is nearest, as a ratio."""
        known = [math.log(fraction) for fraction in self.fitted.law.fractions]

        def nearest(fraction: float) -> int:
            sizes = zip(known, self.slices, strict=False)
            return min(sizes, key=lambda one: abs(one[0] - math.log(fraction)))[1]

        found = {fraction: nearest(fraction) for fraction in fractions.drop_nulls().unique()}
        return fractions.replace_strict(found, default=None, return_dtype=pl.Int64)


def _with_measured(table: pl.DataFrame, gpu_model: GpuModel) -> pl.DataFrame:
    """Add the share of the SMs of the profile on which a speed was measured, under its name on this board."""
    names = table["measured_profile"].drop_nulls().unique(maintain_order=True)
    profiles = {name: gpu_model.profile(name) for name in names}
    fractions = {name: sm_fraction(gpu_model, profile) for name, profile in profiles.items()}
    whole = [name for name, fraction in fractions.items() if fraction >= 1]
    if whole:
        expected = f"a profile smaller than {full_profile(gpu_model).name}"
        todo = "Its speed is 1; leave both columns empty."
        raise SchemaError("predict: measured_profile", expected, examples(whole), todo)
    column = pl.col("measured_profile")
    full_names = {name: profile.name for name, profile in profiles.items()}
    fraction = column.replace_strict(fractions, default=None, return_dtype=pl.Float64)
    named = column.replace_strict(full_names, default=None, return_dtype=pl.String)
    return table.with_columns(named, measured_fraction=fraction)


def _fitting(facts: pl.DataFrame, profiles: pl.DataFrame) -> pl.DataFrame:
    """Every job on every profile that holds it; those that none holds are named."""
    unknown = profiles.filter(pl.col("memory_gib").is_null())["profile"]
    if len(unknown) and facts["memory_gib"].is_not_null().any():
        got = f"none for {examples(unknown.to_list())}"
        todo = "Give rows of your own with 'memory_gib', or leave the memory of the jobs empty."
        raise GeometryError("predict: memory of the profiles", "a number in the catalogue", got, todo)
    pairs = facts.rename({"memory_gib": "needed_gib"}).join(profiles, how="cross")
    rows = pairs.filter(pl.col("needed_gib").is_null() | (pl.col("needed_gib") <= pl.col("memory_gib")))
    nowhere = facts.filter(~pl.col("job").is_in(rows["job"].unique().to_list()))["job_class"].to_list()
    if nowhere:
        got = f"more in {len(nowhere)} class(es): {examples(nowhere)}"
        todo = "They are left out: choose a larger GPU model, or more than one GPU."
        text = message("predict: memory_gib", "at most the memory of the full GPU", got, todo)
        warnings.warn(text, GpuPlannerWarning, stacklevel=3)
    return rows


def radius_name(coverage: float) -> str:
    """Column of a coverage.

    Examples
    --------
    >>> radius_name(0.9)
    'radius_90'
    """
    return f"radius_{round(100 * coverage)}"


def with_radii(rows: pl.DataFrame, radii: pl.DataFrame) -> pl.DataFrame:
    """Add to predictions the radii of the narrowest group that has any.

    Examples
    --------
    >>> group = {"evidence": ["telemetry"], "measured_slices": [None], "compute_slices": [1], "near_whole": [False]}
    >>> rows = pl.DataFrame(group, schema_overrides={"measured_slices": pl.Int64})
    >>> radii = rows.with_columns(level=pl.lit(1), radius_80=pl.lit(0.08), radius_90=pl.lit(0.09))
    >>> with_radii(rows, radii).select("radius_80", "radius_90").row(0)
    (0.08, 0.09)
    """
    names = [radius_name(coverage) for coverage in COVERAGES]
    found, groups = rows.lazy(), radii.lazy()
    for level, keys in enumerate(LEVELS):
        of_level = (pl.col(name).alias(f"{name}_{level}") for name in names)
        group = groups.filter(level=level).select(*keys, *of_level)
        found = found.join(group, on=keys, how="left", nulls_equal=True, maintain_order="left")
    narrowest = {name: [f"{name}_{level}" for level in range(len(LEVELS))] for name in names}
    bounded = (pl.coalesce(*columns, pl.lit(float("inf"))).alias(name) for name, columns in narrowest.items())
    return found.select(*rows.columns, *bounded).collect()


FORMAT = "gpuplanner speed model 1"
"""What the text says that it is."""

DEFAULT = "mig_speed_model.json"
"""The model that is shipped; ``python benchmarks/speed_model.py --write`` makes it."""

RADII = {
    "level": pl.Int32,
    "evidence": pl.String,
    "measured_slices": pl.Int64,
    "compute_slices": pl.Int64,
    "near_whole": pl.Boolean,
    "n": pl.Int64,
    **{radius_name(coverage): pl.Float64 for coverage in COVERAGES},
}


def model_from_json(text: str, *, where: str = "speed model") -> SpeedModel:
    """Read a model from its text.

    Parameters
    ----------
    text : str
        A model as the shipped ``mig_speed_model.json`` has it.
    where : str
        Where the text came from, for the message.

    Raises
    ------
    TraceFormatError
        If it is not such a text, with the part that is missing or wrong.

    Examples
    --------
    >>> model_from_json('{"format": "other"}')
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.TraceFormatError: speed model: expected format 'gpuplanner speed model 1'; got 'other'. ...
    """
    todo = "Write it again with model_to_json."
    try:
        document = json.loads(text)
    except ValueError as error:
        raise TraceFormatError(where, "JSON", str(error), todo) from error
    found = document.get("format") if isinstance(document, dict) else type(document).__name__
    if found != FORMAT:
        raise TraceFormatError(where, f"format {FORMAT!r}", repr(found), todo)
    try:
        return _model(document)
    except (KeyError, TypeError, ValueError, pl.exceptions.PolarsError) as error:
        got = f"{type(error).__name__}: {error}"
        raise TraceFormatError(where, "all parts of a speed model", got, todo) from error


@functools.cache
def default_model() -> SpeedModel:
    """The shipped model, fitted on all public measurements; it needs no data.

    Examples
    --------
    >>> default_model().slices
    (1, 2, 3, 4)
    """
    path = resources.files(__package__) / DEFAULT
    return model_from_json(path.read_text(encoding="utf-8"), where=f"gpuplanner/sizing/{DEFAULT}")


def _model(document: dict[str, Any]) -> SpeedModel:
    law = SpeedLaw(
        fractions=tuple(map(float, document["law"]["fractions"])),
        limits=tuple(map(float, document["law"]["limits"])),
        sharpness=float(document["law"]["sharpness"]),
    )
    slices = tuple(map(int, document["slices"]))
    if not len(law.fractions) == len(law.limits) == len(slices) + 1 > 1:
        raise ValueError("law: one fraction and limit more than slices, for the full GPU")
    links = {str(name): Link(float(low), float(slope)) for name, (low, slope) in document["links"].items()}
    return SpeedModel(
        fitted=Fitted(law, links),
        radii=pl.DataFrame(document["radii"], schema=RADII, orient="row"),
        noise=tuple(math.inf if radius is None else float(radius) for radius in document["noise"]),
        slices=slices,
        measured=tuple(
            (str(gpu_model), int(compute), int(memory)) for gpu_model, compute, memory in document["measured"]
        ),
        widening=float(document["widening"]),
        provenance=dict(document["provenance"]),
    )
