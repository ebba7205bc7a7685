"""Memory model fitted to measured runs, its bounds, and learning from a user's own runs."""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.errors import SchemaError, TraceFormatError
from gpuplanner.hardware.gpu_models import GpuModel, as_gpu_model
from gpuplanner.sizing.memory_components import PEAK_MEMORY_COMPONENTS
from gpuplanner.sizing.training_job import (
    GENERIC_TOOL,
    TrainingJob,
    compute_log_job_size,
    describe_layout,
    describe_training_kind,
    find_tool,
)

Floats = NDArray[np.float64]
"""Array of floats."""

MULTIPLIER_PRIOR_LOG_SD = dict(
    zip(PEAK_MEMORY_COMPONENTS, (0.02, 0.10, 0.15, 0.10, 0.15, 0.15, 0.30, 0.30, 0.40), strict=True)
)
"""Prior standard deviation of the logarithm of the multiplier of each memory component: model states are well known,
allocator slack is not.
"""
PEAK_NOISE_FRACTION = 0.065
"""Relative scatter of a measured peak about a perfect prediction: rounding, units and allocators."""
MAX_SOURCE_WEIGHT_ROWS = 20.0
"""Largest total weight of the runs of one source in a fit [rows]."""
MIN_FEW_ROWS = 5
"""Runs of a tool from which its upper bound is that of ``PeakModel.few``."""
UNKNOWN_TOOL_LOG_SD = 0.21
"""Standard deviation of the logarithm of the factor that all peaks of a tool without own runs share."""
# The root mean square over four public tables, 0.107, times what four leave open: 1.94 in 90 of 100.
OWN_FACTOR_LOG_SD, OWN_OFFSET_SD = 0.05, {True: 0.025, False: 0.05}
"""Prior standard deviations of the two terms that own runs of a tool share: the logarithm of a factor, and a constant
relative to their typical peak; by whether the tool is in the table of training tools.
"""
# Those for an unknown tool are the best of a grid on the mean over five tools, each left out with all its facts.
OWN_RUN_NOISE_FRACTION = {True: 0.12, False: 0.09}
"""Scatter of own runs about their prediction while few are known: noise, and what the two terms cannot express."""
STANDARD_NORMAL_P95 = 1.645
"""95 % point of the standard normal distribution."""
MAX_RADIUS_OF_FULLY_STATED_ROWS = STANDARD_NORMAL_P95 * math.hypot(UNKNOWN_TOOL_LOG_SD, PEAK_NOISE_FRACTION)
"""Largest logarithm of the factor from predicted peak to 95 % bound for an unknown tool, if every setting that decides
the peak is stated.
"""
TOOL_PRIOR_WIDTH = {True: 1.5, False: 2.5}
"""Width of the prior of a tool's multipliers around those common to all tools, relative to the width of the prior of
the common ones around 1.
"""
INCOMPLETE_ROW_WEIGHT = 0.1
"""Weight in a fit of a run that does not state a setting which decides its peak, relative to other runs."""
_NEWTON_STEPS = 12
"""Gauss-Newton steps of a fit."""


PRECISION_READINGS = {"pure": "parameters of 16 bit", "amp": "parameters of 32 bit"}
"""What a precision such as ``bf16`` may mean where no tool decides it: regimes of the trained parameters, in words."""


@dataclass(frozen=True)
class MeasuredRuns:
    """Measured runs as arrays: GiB of each component, GiB measured, source and what else a fit needs.

    - ``parts``, shape (n, 9): GiB of `PEAK_MEMORY_COMPONENTS`, in the unit of the tool's meter.
    - ``measured``, shape (n,): GiB measured.
    - ``sources``: Source of each run.
    - ``flagged``, shape (n,): Whether a setting that decides the peak is not stated; decided without the measurement.
    - ``worst``, shape (n,): Largest GiB under other values of settings that were not stated; 0 where there are none.
    - ``models``: Architecture of each run.
    - ``kinds``: Text with method, precision and whether weights are quantised.
    - ``readings``, shape (3, n, 9): ``parts``, and those under each of `PRECISION_READINGS` of an ambiguous precision.
    - ``extent``, shape (n, 3): Logarithms of parameters, tokens of a micro-batch and GPUs: how large the run is.
    """

    parts: Floats
    measured: Floats
    sources: tuple[str, ...]
    flagged: NDArray[np.bool_]
    worst: Floats
    models: tuple[str, ...]
    extent: Floats
    kinds: tuple[str, ...]
    readings: Floats

    def __len__(self) -> int:
        return len(self.measured)

    def select(self, selection: NDArray[np.bool_] | NDArray[np.int64]) -> MeasuredRuns:
        """Select some of the runs."""
        texts = (self.sources, self.models, self.kinds)
        sources, models, kinds = (tuple(np.array(names, dtype=object)[selection]) for names in texts)
        return MeasuredRuns(
            self.parts[selection], self.measured[selection], sources, self.flagged[selection], self.worst[selection],
            models, self.extent[selection], kinds, self.readings[:, selection],
        )  # fmt: skip

    def read_as(self, weights: Sequence[float] | Floats) -> MeasuredRuns:
        """Return the runs with the mean of their components over the readings of an ambiguous precision."""
        return replace(self, parts=np.tensordot(np.asarray(weights), self.readings, 1))

    def is_from(self, source: str) -> NDArray[np.bool_]:
        """Mask of the runs of a source."""
        return np.array([name == source for name in self.sources], dtype=np.bool_)


def fit_log_multipliers(runs: MeasuredRuns, centre: Floats | None = None, widen: float = 1.0) -> Floats:
    """Fit the logarithms of the component multipliers: robust least squares on log ratios with a normal prior.

    It minimises ``Σ w ρ((log m - log Σ e^θ c) / noise) + Σ ((θ - centre) / sd)²`` with Student's ρ of 4 degrees of
    freedom, by reweighted Gauss-Newton steps.

    Parameters
    ----------
    runs : MeasuredRuns
        Measured runs.
    centre : numpy.ndarray, shape (9,), optional
        Centre of the prior; default 0.
    widen : float
        Factor on the standard deviations of the prior.

    Returns
    -------
    numpy.ndarray, shape (9,)

    Examples
    --------
    >>> parts = np.zeros((40, 9))
    >>> parts[:, 3] = np.linspace(1, 40, 40)
    >>> none, names = np.zeros(40), ("a",) * 40
    >>> peaks, readings = parts.sum(axis=1) * 1.2, np.stack([parts] * 3)
    >>> runs = MeasuredRuns(parts, peaks, names, none > 0, none, names, np.zeros((40, 3)), names, readings)
    >>> round(float(np.exp(fit_log_multipliers(runs)[3])), 2)
    1.2
    """
    centre = np.zeros(len(PEAK_MEMORY_COMPONENTS)) if centre is None else centre
    spread = np.diag((widen * np.array(list(MULTIPLIER_PRIOR_LOG_SD.values()))) ** 2)
    return _fit_terms(runs, centre, spread, _row_weights(runs), PEAK_NOISE_FRACTION)[0]


def _fit_terms(
    runs: MeasuredRuns, centre: Floats, spread: Floats, weights: Floats, noise: float
) -> tuple[Floats, float]:
    """Fit the terms of `predict_gib` with a normal prior: logarithms of multipliers, and an offset if `centre` has one.

    The offset counts in typical peaks of the runs, and so it is returned. The second value is what was minimised, a
    negative logarithm of the likelihood.
    """
    theta, precision, count = centre.copy(), np.linalg.inv(spread), len(PEAK_MEMORY_COMPONENTS)
    if not len(runs):
        return theta, 0.0
    typical = float(np.exp(np.log(predict_gib(runs.parts, centre[:count])).mean()))
    for _ in range(_NEWTON_STEPS):
        predicted = predict_gib(runs.parts, np.append(theta[:count], theta[count:] * typical))
        residual = np.log(runs.measured / predicted)
        robust_weights = weights * 5.0 / (4.0 + (residual / noise) ** 2) / noise**2
        slope = np.column_stack([runs.parts * np.exp(theta[:count]), np.full((len(runs), len(theta) - count), typical)])
        slope /= predicted[:, None]
        curvature = (slope * robust_weights[:, None]).T @ slope + precision
        theta = theta + np.linalg.solve(curvature, slope.T @ (robust_weights * residual) - precision @ (theta - centre))
    terms = np.append(theta[:count], theta[count:] * typical)
    residual = np.log(runs.measured / predict_gib(runs.parts, terms))
    misfit = float((weights * 2.5 * np.log1p((residual / noise) ** 2 / 4.0)).sum())
    return terms, misfit + 0.5 * float((theta - centre) @ precision @ (theta - centre))


LEAST_FRACTION_OF_COMPONENTS = 0.3
"""Least predicted peak, as a fraction of the components' sum, whatever is subtracted from it."""


def predict_gib(parts: Floats, multipliers: Floats) -> Floats:
    """Predict the peaks of runs [GiB] from their components.

    Parameters
    ----------
    parts : numpy.ndarray, shape (n, 9)
        Components [GiB].
    multipliers : numpy.ndarray, shape (9,) or (10,)
        Logarithms of the components' multipliers, and of a tool with own runs the memory that is added [GiB].
    """
    count = len(PEAK_MEMORY_COMPONENTS)
    total = parts @ np.exp(multipliers[:count])
    return np.asarray(
        np.maximum(total + multipliers[count:].sum(), LEAST_FRACTION_OF_COMPONENTS * total), dtype=np.float64
    )


def learn_tool(runs: MeasuredRuns, centre: Floats, *, is_known_tool: bool = True) -> Floats:
    """Fit a tool's own terms around the common multipliers: a factor and a constant, with more rows each multiplier.

    Settings that its rows do not state are those of one user and one tool: such rows count as others do.
    """
    return _fit_tool(runs, centre, is_known_tool=is_known_tool)[0]


def weigh_readings(runs: MeasuredRuns, centre: Floats, *, is_known_tool: bool = True) -> Floats:
    """Weigh what an ambiguous precision of a tool's runs means, by how well the runs agree with each reading.

    Parameters
    ----------
    runs : MeasuredRuns
        Runs of one tool.
    centre : numpy.ndarray, shape (9,) or (10,)
        Terms common to all tools.
    is_known_tool : bool
        Whether the table of training tools has the tool.

    Returns
    -------
    numpy.ndarray, shape (3,)
        Posterior probabilities of the assumption and of `PRECISION_READINGS`, equal before any run; 1, 0, 0 where all
        runs state their precision.
    """
    if not np.ptp(runs.readings, axis=0).any():
        return np.array([1.0, 0.0, 0.0])
    costs = np.array(
        [_fit_tool(runs.read_as(reading), centre, is_known_tool=is_known_tool)[1] for reading in np.identity(3)]
    )
    likelihoods = np.exp(costs.min() - costs)
    return np.asarray((likelihoods / likelihoods.sum()).round(3), dtype=np.float64)


def _fit_tool(runs: MeasuredRuns, centre: Floats, *, is_known_tool: bool) -> tuple[Floats, float]:
    """Fit the terms of `learn_tool`, and return what was minimised beside them."""
    count = len(PEAK_MEMORY_COMPONENTS)
    spread = np.zeros((count + 1, count + 1))
    own_sd = TOOL_PRIOR_WIDTH[is_known_tool] * np.array(list(MULTIPLIER_PRIOR_LOG_SD.values()))
    spread[:count, :count] = np.diag(own_sd**2) + OWN_FACTOR_LOG_SD**2
    spread[count, count] = OWN_OFFSET_SD[is_known_tool] ** 2
    weights = np.full(len(runs), min(1.0, MAX_SOURCE_WEIGHT_ROWS / max(1, len(runs))))
    return _fit_terms(runs, np.append(centre[:count], 0.0), spread, weights, OWN_RUN_NOISE_FRACTION[is_known_tool])


def list_sources(runs: MeasuredRuns) -> Sequence[str]:
    """List the names of the sources (tools) of runs, sorted."""
    return sorted(set(runs.sources))


def _row_weights(runs: MeasuredRuns) -> Floats:
    """Return the weight of each run in a fit, so that no source dominates."""
    weights = np.where(runs.flagged, INCOMPLETE_ROW_WEIGHT, 1.0)
    for source in list_sources(runs):
        is_own = runs.is_from(source)
        total = weights[is_own].sum()
        weights[is_own] *= min(1.0, MAX_SOURCE_WEIGHT_ROWS / total) if total else 1.0
    return weights


PEAK_MODEL_FORMAT = "gpuplanner peak model 2"
"""Name and version of the file format of memory models."""
PEAK_MODEL_FILE_NAME = "memory_model.json"
"""Shipped memory model; ``python benchmarks/memory_model.py --write`` makes it."""
_STUDENT_T3_P95 = 2.353
"""95 % point of Student's t with 3 degrees of freedom, the distribution assumed for the logarithm of measured over
predicted peak.
"""
_UNMEASURED_KINDS = {"cp": "context parallelism", "ep": "expert parallelism", "experts": "models with experts"}
"""Parts of a layout without any run in the public tables, with their names; own runs may cover them."""
RunSizeRange = tuple[tuple[float, float], ...]
"""Lowest and highest logarithm of parameters, of tokens of a micro-batch, and of GPUs."""


@dataclass(frozen=True)
class PeakModel:
    """Multipliers of the memory components, common and by training tool, and bounds on measured peaks.

    A radius is the logarithm of the factor from the predicted peak to its 95 % bound.

    Parameters
    ----------
    provenance : str
        Description of the runs that the model was fitted to.
    multipliers : Mapping
        Multiplier of each component, for a tool without runs.
    tools : Mapping
        Tool → multipliers of its own, learned from its runs.
    radii : Mapping
        Tool → logarithm of the factor that 95 % of its runs stay below.
    unseen : float
        Radius of a tool with facts and without runs on one GPU, for a row that says all that decides its peak: between
        that of a tool whose facts were checked on other runs and that of an unknown one, as nothing was checked here.
        On several GPUs such a tool has the radius of an unknown one.
    generic : float
        Radius of an unknown tool, from tools that were left out with all their facts.
    few : float
        Radius after `MIN_FEW_ROWS` runs of a tool: the largest of the few tools for which this was measured.
    rows : Mapping
        Tool → number of runs fitted.
    few_generic : float
        As `few`, for an unknown tool.
    architecture, layout, beyond : float
        What a bound widens by, as logarithms that add by their squares: for an architecture without runs, for a
        layout over GPUs without runs, and for each factor of e by which a job is larger or smaller than all runs.
    models : tuple of str
        Architectures with runs.
    extents : Mapping
        Tool, or "" for all → lowest and highest logarithm of parameters, tokens of a micro-batch and GPUs.
    kinds : Mapping
        Tool → training methods with precision and layout that have runs.
    readings : Mapping
        Tool → probabilities of :func:`weigh_readings`, for tools whose runs do not say what their precision means.
    accuracy : Mapping
        Family of jobs → mean accuracy and rows, each source left out in turn.
    """

    provenance: str = "no measurement"
    multipliers: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(PEAK_MEMORY_COMPONENTS, 1.0))
    tools: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    radii: Mapping[str, float] = field(default_factory=dict)
    unseen: float = 0.35
    generic: float = 0.8
    few: float = 0.15
    rows: Mapping[str, int] = field(default_factory=dict)
    few_generic: float = 0.4
    architecture: float = 0.0
    layout: float = 0.0
    beyond: float = 0.0
    models: tuple[str, ...] = ()
    extents: Mapping[str, RunSizeRange] = field(default_factory=dict)
    kinds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    readings: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    accuracy: Mapping[str, tuple[float, int]] = field(default_factory=dict)

    def has_tool(self, tool: str) -> bool:
        """Whether the model was fitted with runs of the tool."""
        return tool in self.tools

    def logs(self, tool: str) -> Floats:
        """Return the terms of :func:`predict_gib` for a tool; memory is added only for tools with runs."""
        return self._logs[tool if tool in self.tools else None]

    @functools.cached_property
    def _logs(self) -> dict[str | None, Floats]:
        """Return the logarithms of the component multipliers by tool; the key None has those common to all tools."""
        every = [(None, self.multipliers), *self.tools.items()]
        return {
            tool: np.append(
                np.log([multipliers[name] for name in PEAK_MEMORY_COMPONENTS]), multipliers.get(OFFSET_NAME, 0.0)
            )
            for tool, multipliers in every
        }

    @functools.cached_property
    def layouts(self) -> frozenset[str]:
        """Layouts over GPUs that have runs."""
        return frozenset(kind.rpartition(" on ")[2] for kinds in self.kinds.values() for kind in kinds)

    def list_distances(
        self, tool: str, *, is_known_tool: bool, job: TrainingJob | None = None, decided: bool = False
    ) -> dict[str, float]:
        """List how far a job is from measured runs: in words, with the radius that each distance alone would make.

        Parameters
        ----------
        tool : str
            Tool of the job.
        is_known_tool : bool
            Whether the table of tool facts has it.
        job : TrainingJob, optional
            Widens the bound for an architecture or a layout without runs, and outside the sizes of all runs.
        decided : bool
            Whether nothing that matters was assumed, which narrows the bound.
        """
        unknown_radius = min(self.generic, MAX_RADIUS_OF_FULLY_STATED_ROWS) if decided else self.generic
        if tool in self.radii:
            distances = {f"runs of {tool} were measured": self.radii[tool]}
        elif not is_known_tool:
            distances = {
                "no tool with known defaults is named" if decided else "tool and settings are assumed": unknown_radius
            }
        elif decided and (job is None or job.n_gpus == 1):
            distances = {f"defaults of {tool} are from its documentation, no run was measured": self.unseen}
        else:
            gap = "settings are assumed" if not decided else "no run on several GPUs was measured"
            distances = {f"defaults of {tool} are from its documentation, {gap}": unknown_radius}
        if job is None:
            return distances
        if (kinds := self.kinds.get(tool)) and describe_training_kind(job) not in kinds:
            distances = {
                f"no run of {tool} with {describe_training_kind(job)} was measured": max(
                    self.unseen, *distances.values()
                )
            }
        if self.models and job.model.name not in self.models:
            distances[f"no run of {job.model.name} was measured"] = self.architecture
        within = self.extents.get(tool, self.extents.get("", ()))
        measured = {word for layout in self.layouts for word in layout.split()}
        new = [meaning for word, meaning in _UNMEASURED_KINDS.items() if word in describe_layout(job).split()
               and word not in measured] + ["training in fp8"] * (job.fp8_bytes is not None)  # fmt: skip
        if new:
            distances[f"nothing that was measured covers {' and '.join(new)}"] = self.generic
        elif self.layouts and describe_layout(job) not in self.layouts:
            distances[f"no run on {describe_layout(job)} was measured"] = self.layout
        if (outside := _log_distance_outside(compute_log_job_size(job), within)) > 0:
            distances["the job is smaller or larger than all measured runs"] = self.beyond * outside
        return distances

    def radius(self, tool: str, *, is_known_tool: bool, job: TrainingJob | None = None, decided: bool = False) -> float:
        """Return the logarithm of the factor from prediction to 95 % bound: distances add by their squares."""
        return math.hypot(*self.list_distances(tool, is_known_tool=is_known_tool, job=job, decided=decided).values())

    def few_radius(self, rows: int, *, is_known_tool: bool) -> float:
        """Return the radius after some runs of a tool, between those of no run and of `MIN_FEW_ROWS`."""
        none, few = (self.unseen, self.few) if is_known_tool else (self.generic, self.few_generic)
        return none + (few - none) * min(1.0, rows / MIN_FEW_ROWS)

    def p_oom(self, peak_gib: float, room_gib: float, radius: float) -> float:
        """Return the probability that a peak exceeds the memory, at least 3 / rows."""
        at = _STUDENT_T3_P95 * math.log(max(room_gib, 1e-3) / peak_gib) / radius / math.sqrt(3.0)
        above = 0.5 - (at / (1 + at * at) + math.atan(at)) / math.pi
        return max(above, min(0.5, 3.0 / max(1, sum(self.rows.values()))))


def _log_distance_outside(extent: tuple[float, ...], within: RunSizeRange) -> float:
    """Return the logarithm of the factor by which a job is larger or smaller than all runs, in the worst dimension."""
    ends = zip(extent, within, strict=False)
    return max((max(0.0, low - at, at - high) for at, (low, high) in ends), default=0.0)


def format_peak_model(model: PeakModel) -> str:
    """Format a memory model as stable, readable JSON.

    Examples
    --------
    >>> read_peak_model(format_peak_model(shipped_peak_model())) == shipped_peak_model()
    True
    """
    document: dict[str, Any] = {"format": PEAK_MODEL_FORMAT}
    for entry in fields(model):
        value = getattr(model, entry.name)
        # Components stand in the order in which they are counted, everything else in that of the names.
        by_name = isinstance(value, Mapping) and entry.name != "multipliers"
        document[entry.name] = dict(sorted(value.items())) if by_name else value
    document = json.loads(json.dumps(document), parse_float=lambda digits: round(float(digits), 4))
    return json.dumps(document, indent=1) + "\n"


def read_peak_model(text: str, *, source: str = "peak model") -> PeakModel:
    """Parse a memory model from JSON.

    Raises
    ------
    TraceFormatError
        If the text is not of this format.
    """
    try:
        document: dict[str, Any] = json.loads(text)
        if document["format"] != PEAK_MODEL_FORMAT:
            raise KeyError(document["format"])
        number_fields = ("unseen", "generic", "few", "few_generic", "architecture", "layout", "beyond")
        return PeakModel(
            provenance=str(document["provenance"]),
            multipliers={name: float(document["multipliers"][name]) for name in PEAK_MEMORY_COMPONENTS},
            tools={
                tool: {name: float(multipliers[name]) for name in (*PEAK_MEMORY_COMPONENTS, OFFSET_NAME)}
                for tool, multipliers in document["tools"].items()
            },
            radii={tool: float(value) for tool, value in document["radii"].items()},
            rows={tool: int(count) for tool, count in document["rows"].items()},
            models=tuple(document.get("models", ())),
            extents={
                tool: tuple((float(low), float(high)) for low, high in extent)
                for tool, extent in document.get("extents", {}).items()
            },
            kinds={tool: tuple(kinds) for tool, kinds in document.get("kinds", {}).items()},
            readings={tool: tuple(map(float, weights)) for tool, weights in document.get("readings", {}).items()},
            accuracy={name: (float(value), int(rows)) for name, (value, rows) in document["accuracy"].items()},
            **{name: float(document[name]) for name in number_fields},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        expected = f"JSON of format {PEAK_MODEL_FORMAT!r}, as --learn writes it"
        raise TraceFormatError(source, expected, repr(error), "Write it again with --learn.") from error


@functools.cache
def shipped_peak_model() -> PeakModel:
    """Load the shipped memory model."""
    return read_peak_model((resources.files(__package__) / PEAK_MODEL_FILE_NAME).read_text("utf-8"))


def learn_own_runs(model: PeakModel, runs: MeasuredRuns) -> PeakModel:
    """Return the model updated with own runs: one row of a tool already moves its multipliers and narrows its bound.

    Multipliers of other tools stay.
    """
    tools, radii, rows, extents = dict(model.tools), dict(model.radii), dict(model.rows), dict(model.extents)
    kinds, readings = dict(model.kinds), dict(model.readings)
    for name in list_sources(runs):
        tool_runs = runs.select(runs.is_from(name))
        is_known_tool = find_tool(name) != GENERIC_TOOL
        weights = weigh_readings(tool_runs, model.logs(name), is_known_tool=is_known_tool)
        if weights[0] < 1:
            readings[name] = tuple(weights.tolist())
        tool_runs = tool_runs.read_as(weights)
        multipliers = learn_tool(tool_runs, model.logs(name), is_known_tool=is_known_tool)
        residuals = np.log(tool_runs.measured / predict_gib(tool_runs.parts, multipliers))
        prior_radius = model.radii.get(name) or model.few_radius(len(tool_runs), is_known_tool=is_known_tool)
        tools[name], rows[name] = multipliers_by_component(multipliers), rows.get(name, 0) + len(tool_runs)
        radii[name] = round(combine_radius(residuals, prior_radius, is_known_tool=is_known_tool), 4)
        extents[name] = _union_size_ranges(find_run_size_range(tool_runs), extents.get(name, ()))
        kinds[name] = tuple(sorted({*kinds.get(name, ()), *tool_runs.kinds}))
    models = tuple(sorted({*model.models, *runs.models}))
    return replace(
        model, tools=tools, radii=radii, rows=rows, extents=extents, models=models, kinds=kinds, readings=readings
    )


def combine_radius(residuals: Floats, prior_radius: float, *, is_known_tool: bool = True) -> float:
    """Combine the radius of other tools after few rows with the spread of the tool's own rows, by their number.

    The variance is that of the other tools, which counts as many rows as `PRIOR_RADIUS_ROWS`, updated by the residuals
    of the own rows; the 95 % point, nearly ``1 + 1 / rows`` times the normal one, is that of Student's t for all of
    them. Two own rows and fewer tell nothing of the spread. The radius is at least the noise of a measured peak in a
    prediction from so many rows.
    """
    count, prior_rows = len(residuals), PRIOR_RADIUS_ROWS[is_known_tool]
    freedom = prior_rows + max(0, count - OWN_TERMS)
    prior_variance = (prior_radius / STANDARD_NORMAL_P95) ** 2
    variance = (prior_rows * prior_variance + float((residuals**2).sum())) / freedom
    noise = PEAK_NOISE_FRACTION * math.sqrt(1 + 1 / max(count, 1))
    student = 1 + 1 / freedom if count > OWN_TERMS else 1.0
    return STANDARD_NORMAL_P95 * max(noise, student * math.sqrt(variance))


OWN_TERMS, PRIOR_RADIUS_ROWS = 2, {True: 20.0, False: 5.0}
"""Number of terms that are fitted to the user's own runs (a factor and a constant), and the number of own runs whose
errors count as much as those of all other tools in the half-width of the bound, by whether the table of training tools
has the tool.
"""


def find_run_size_range(runs: MeasuredRuns) -> RunSizeRange:
    """Return the range of the logarithms of parameters, tokens of a micro-batch and GPUs of runs."""
    ends = zip(runs.extent.min(axis=0), runs.extent.max(axis=0), strict=True)
    return tuple((round(float(low), 3), round(float(high), 3)) for low, high in ends)


def _union_size_ranges(first: RunSizeRange, second: RunSizeRange) -> RunSizeRange:
    """Return the smallest range that covers both."""
    if not second:
        return first
    return tuple((min(a[0], b[0]), max(a[1], b[1])) for a, b in zip(first, second, strict=True))


OFFSET_NAME = "added_gib"
"""Name of the memory that is added to all peaks of a tool [GiB], beside its multipliers."""


def multipliers_by_component(logs: Floats) -> dict[str, float]:
    """Convert the terms of :func:`predict_gib` to multipliers by the name of the component, and the memory added."""
    count = len(PEAK_MEMORY_COMPONENTS)
    by_name = dict(zip(PEAK_MEMORY_COMPONENTS, np.exp(logs[:count]).tolist(), strict=True))
    by_name |= dict.fromkeys([OFFSET_NAME] * len(logs[count:]), float(logs[count:].sum()))
    return {name: round(value, 4) for name, value in by_name.items()}


PEAK_HEADROOM_FRACTION = 0.05
"""Fraction added to a measured peak before a slice is chosen; an upper bound already includes it."""
_EQUAL_PEAKS_TOLERANCE = 0.001
"""Relative difference up to which two peaks of a program count as equal."""
_MAX_STEP_PEAK_FRACTION = 0.75
"""Largest number of different peaks over the number of runs for which the peaks count as steps of an allocator."""
_MAX_STEP_PEAKS = 12
"""Largest number of different peaks of a program that count as steps of an allocator."""
_MIN_STEP_GROWTH = 1.5
"""Ratio of each rise to the rise before from which the peaks of a program count as growing allocation steps."""


def classify_peaks(peaks: pl.DataFrame) -> pl.DataFrame:
    """Classify each peak as measured, or as the upper bound of a framework that allocates in growing steps.

    Examples
    --------
    >>> peaks = pl.DataFrame({"program": ["a", "a", "b", "b"], "peak_gib": [9.7, 9.7, 5.0, 5.6]})
    >>> classify_peaks(peaks)["peak_is"].to_list()
    ['upper bound', 'upper bound', 'peak', 'peak']
    """
    steps = {}
    for (program,), rows in peaks.group_by("program", maintain_order=True):
        sorted_peaks = rows["peak_gib"].drop_nulls().sort().to_list()
        climbs = [
            high - low for low, high in itertools.pairwise(sorted_peaks) if high - low > _EQUAL_PEAKS_TOLERANCE * high
        ]
        shared = len(climbs) + 1 <= min(_MAX_STEP_PEAK_FRACTION * len(sorted_peaks), _MAX_STEP_PEAKS)
        grows = len(climbs) > 1 and all(b >= _MIN_STEP_GROWTH * a for a, b in itertools.pairwise(climbs))
        steps[program] = shared or grows
    bounded_programs = [name for name, grown in steps.items() if grown]
    peak_kind = pl.when(pl.col("program").is_in(bounded_programs)).then(pl.lit("upper bound")).otherwise(pl.lit("peak"))
    return peaks.with_columns(peak_is=peak_kind)


def list_fitting_slices(peaks: pl.DataFrame, gpu_model: GpuModel | str) -> pl.DataFrame:
    """Decide for each job and slice whether it fits: by its peak, overruled by runs on smaller slices.

    Examples
    --------
    >>> peaks = pl.DataFrame({"program": ["tf"] * 2, "job": ["64", "512"], "peak_gib": [5.5, 5.5],
    ...     "ran_profile": ["1g.5gb", None], "ran": [True, None]})
    >>> slices = list_fitting_slices(peaks, "A100-40GB").filter(pl.col("profile") == "1g.5gb")
    >>> slices.select("job", "fits", "because").rows()
    [('64', True, 'ran'), ('512', False, 'upper bound')]
    """
    missing_columns = [name for name in ("program", "job", "peak_gib") if name not in peaks.columns]
    if missing_columns:
        raise SchemaError("measured peaks", "program, job, peak_gib", f"no {', '.join(missing_columns)}", "Add them.")
    model = as_gpu_model(gpu_model)
    plain = [profile for profile in model.profiles if profile.memory_gib is not None and "+" not in profile.name]
    sizes = {profile.name: profile.memory_gib for profile in plain}
    profiles = pl.DataFrame({"profile": list(sizes), "memory_gib": list(sizes.values())})
    with_runs = peaks if {"ran_profile", "ran"} <= set(peaks.columns) else peaks.with_columns(
        ran_profile=pl.lit(None, pl.String), ran=pl.lit(None, pl.Boolean)
    )  # fmt: skip
    names = {word: model.profile(word).name for word in with_runs["ran_profile"].drop_nulls().unique().to_list()}
    ran_sizes = {word: sizes[name] for word, name in names.items() if name in sizes}
    ran_gib = pl.col("ran_profile").replace_strict(ran_sizes, default=None, return_dtype=pl.Float64)
    rows = classify_peaks(with_runs).with_columns(ran_gib=ran_gib).join(profiles, how="cross")
    larger = pl.col("ran") & (pl.col("memory_gib") >= pl.col("ran_gib"))
    smaller = ~pl.col("ran") & (pl.col("memory_gib") <= pl.col("ran_gib"))
    return rows.with_columns(
        fits=pl.when(larger).then(True).when(smaller).then(False).otherwise(pl.col("peak_gib") <= pl.col("memory_gib")),
        because=pl.when(larger).then(pl.lit("ran")).when(smaller).then(pl.lit("did not run")).otherwise("peak_is"),
    ).select("program", "job", "peak_gib", "peak_is", "profile", "memory_gib", "fits", "because")  # fmt: skip


def find_smallest_slices(peaks: pl.DataFrame, gpu_model: GpuModel | str) -> pl.DataFrame:
    """Find the smallest slice for each job, and the next smaller one on which a test run would decide.

    A peak gets `PEAK_HEADROOM_FRACTION`; an upper bound and a run need none. Where a peak is an upper bound,
    ``try_next`` names the largest slice that only the bound excludes: a run there overrules it.

    Examples
    --------
    >>> peaks = pl.DataFrame({"program": ["tf"] * 2, "job": ["64", "512"], "peak_gib": [5.5, 5.5]})
    >>> find_smallest_slices(peaks, "A100-40GB").select("profile", "try_next").rows()
    [('1g.10gb', '1g.5gb'), ('1g.10gb', '1g.5gb')]
    """
    slack = pl.when(pl.col("peak_is") == "peak").then(1 + PEAK_HEADROOM_FRACTION).otherwise(1.0)
    need = classify_peaks(peaks).with_columns(peak_gib=pl.col("peak_gib") * slack).drop("peak_is")
    table = list_fitting_slices(need, gpu_model).sort("memory_gib", "profile", maintain_order=True)
    smallest = table.filter("fits").group_by("program", "job", maintain_order=True).first()
    open_ones = table.filter(~pl.col("fits") & (pl.col("because") == "upper bound"))
    next_tries = open_ones.group_by("program", "job", maintain_order=True).agg(try_next=pl.col("profile").last())
    result = classify_peaks(peaks)
    for columns in (smallest.select("program", "job", "profile", "because"), next_tries):
        result = result.join(columns, on=["program", "job"], how="left")
    because = pl.col("because").fill_null("larger than all slices")
    return result.with_columns(pl.col("profile").fill_null("gpu"), because)
