"""The fitted memory model, its bounds, and the user's own measured runs."""

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
from gpuplanner.hardware.gpu_models import GpuModel, as_board
from gpuplanner.sizing.memory_components import COMPONENTS
from gpuplanner.sizing.training_job import ANY, TrainingJob, extent_of, kind_of, tool_called

Floats = NDArray[np.float64]

PRIOR = dict(zip(COMPONENTS, (0.02, 0.10, 0.15, 0.10, 0.15, 0.15, 0.30, 0.30, 0.40), strict=True))
"""Standard deviation of the logarithm of each knob before anything is measured: states are known, slack is not."""
NOISE = 0.065
"""Scatter of a measured peak about a perfect model, as a share: rounding, units and allocators."""
SOURCE_ROWS = 20.0
"""What a source of any size weighs, in rows."""
FEW = 5
"""Rows of a tool after which a bound is that of few rows."""
BETWEEN = {True: 0.03, False: 0.235}
"""Standard deviation of the logarithm of a shift of all peaks of a tool, by whether its facts are known."""
# Of unknown ones the root mean square over four public tables, 0.12, times what four leave open: 1.94 in 90 of 100.
NORMAL = 1.645
"""The 95 % point of normal scatter."""
DECIDED = NORMAL * math.hypot(BETWEEN[False], NOISE)
"""Radius at most of a tool that is not known where a row leaves nothing open: a shift of its own, and the noise."""
SHRINK = 8.0
"""Rows that everybody's knobs weigh against a tool's own, as its first rows may be odd ones."""
TOOL_PRIOR = 1.5
"""How much wider the prior of a tool's knobs is about everybody's than everybody's about 1."""
FLAGGED = 0.1
"""Weight of a row that does not say what decides it."""
_STEPS = 12


@dataclass(frozen=True)
class Runs:
    """Measured runs as arrays: GiB of each component, GiB measured, source and what else a fit needs.

    - ``parts``, shape (n, 9): GiB of `COMPONENTS`, in the unit of the tool's meter.
    - ``measured``, shape (n,): GiB measured.
    - ``sources``: Source of each run.
    - ``flagged``, shape (n,): Rows that do not say what decides them, by a rule that reads no measurement.
    - ``worst``, shape (n,): GiB of the largest of the other answers to what was not said; 0 where there is none.
    - ``models``: Architecture of each run.
    - ``kinds``: Method, precision and whether weights are narrow.
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

    def __len__(self) -> int:
        return len(self.measured)

    def take(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> Runs:
        """Some of the runs."""
        texts = (self.sources, self.models, self.kinds)
        sources, models, kinds = (tuple(np.array(names, dtype=object)[chosen]) for names in texts)
        return Runs(
            self.parts[chosen], self.measured[chosen], sources, self.flagged[chosen], self.worst[chosen], models,
            self.extent[chosen], kinds,
        )  # fmt: skip

    def of(self, source: str) -> NDArray[np.bool_]:
        """Which runs are of a source."""
        return np.array([each == source for each in self.sources], dtype=np.bool_)


def fit_knobs(
    runs: Runs, centre: Floats | None = None, widen: float = 1.0, between: float = 0.0, shrink: float = 0.0
) -> Floats:
    """Logarithms of the knobs: robust least squares on log ratios with a normal prior.

    Knobs share a shift of the standard deviation `between` beside their own. Minimises
    ``Σ w ρ((log m - log Σ e^θ c) / noise) + Σ ((θ - centre) / sd)²`` with Student's ρ of 4 degrees, by
    reweighted Gauss-Newton steps.

    Examples
    --------
    >>> parts = np.zeros((40, 9))
    >>> parts[:, 3] = np.linspace(1, 40, 40)
    >>> none, names = np.zeros(40), ("a",) * 40
    >>> runs = Runs(parts, parts.sum(axis=1) * 1.2, names, none > 0, none, names, np.zeros((40, 3)), names)
    >>> round(float(np.exp(fit_knobs(runs)[3])), 2)
    1.2
    """
    centre = np.zeros(len(COMPONENTS)) if centre is None else centre
    spread = np.diag((widen * np.array(list(PRIOR.values()))) ** 2) + between**2
    precision = np.linalg.inv(spread)
    theta, weights = centre.copy(), _row_weights(runs) * len(runs) / (len(runs) + shrink or 1.0)
    if not len(runs):
        return theta
    for _ in range(_STEPS):
        scaled = runs.parts * np.exp(theta)
        predicted = scaled.sum(axis=1)
        residual = np.log(runs.measured / predicted)
        held = weights * 5.0 / (4.0 + (residual / NOISE) ** 2) / NOISE**2
        slope = scaled / predicted[:, None]
        curvature = (slope * held[:, None]).T @ slope + precision
        theta = theta + np.linalg.solve(curvature, slope.T @ (held * residual) - precision @ (theta - centre))
    return theta


def predicted_gib(parts: Floats, knobs: Floats) -> Floats:
    """GiB of runs under knobs given as logarithms."""
    return np.asarray(parts @ np.exp(knobs), dtype=np.float64)


def learn_tool(runs: Runs, centre: Floats, *, known: bool = True) -> Floats:
    """A tool's own knobs about everybody's: one row shifts them together, more move them apart."""
    return fit_knobs(runs, centre, TOOL_PRIOR, BETWEEN[known], SHRINK)


def source_names(runs: Runs) -> Sequence[str]:
    """Sources in the order of their names."""
    return sorted(set(runs.sources))


def _row_weights(runs: Runs) -> Floats:
    weights = np.where(runs.flagged, FLAGGED, 1.0)
    for source in source_names(runs):
        mine = runs.of(source)
        total = weights[mine].sum()
        weights[mine] *= min(1.0, SOURCE_ROWS / total) if total else 1.0
    return weights


FORMAT = "gpuplanner peak model 1"
DEFAULT = "memory_model.json"
"""The model that is shipped; ``python benchmarks/memory_model.py --write`` makes it."""
_TAIL = 2.353
"""The 95 % point of Student's t with 3 degrees of freedom, by which peaks scatter: a few are far off."""
Extent = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class PeakModel:
    """Knobs of everybody and of each tool, and how far measured peaks lie above what they predict.

    Parameters
    ----------
    provenance : str
        What the runs are that it was learned from.
    knobs : Mapping
        Multiplier of each component, for a tool that was not seen.
    tools : Mapping
        Tool → multipliers of its own, learned from its runs.
    radii : Mapping
        Tool → logarithm of the factor that 95 % of its runs stay below.
    unseen : float
        The same for a tool that was not seen, from the spread between sources.
    generic : float
        The same where the tool is not known at all.
    few : float
        The same after `FEW` rows of a tool: the largest of the tools that were tried so, as there are few of them.
    rows : Mapping
        Tool → rows learned from.
    few_generic : float
        As `few`, of a tool that is not known.
    architecture, beyond : float
        What a bound widens by, as logarithms that add by their squares: for an architecture that was not seen, and
        for each factor of e by which a job is larger or smaller than all runs.
    models : tuple of str
        Architectures that were seen.
    extents : Mapping
        Tool, or "" for all → lowest and highest logarithm of parameters, tokens of a micro-batch and GPUs.
    kinds : Mapping
        Tool → methods with the precision at which they were seen.
    accuracy : Mapping
        Family of jobs → mean accuracy and rows, each source left out in turn.
    """

    provenance: str = "no measurement"
    knobs: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(COMPONENTS, 1.0))
    tools: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    radii: Mapping[str, float] = field(default_factory=dict)
    unseen: float = 0.35
    generic: float = 0.8
    few: float = 0.15
    rows: Mapping[str, int] = field(default_factory=dict)
    few_generic: float = 0.4
    architecture: float = 0.0
    beyond: float = 0.0
    models: tuple[str, ...] = ()
    extents: Mapping[str, Extent] = field(default_factory=dict)
    kinds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    accuracy: Mapping[str, tuple[float, int]] = field(default_factory=dict)

    def seen(self, tool: str) -> bool:
        """Whether runs of the tool were learned from."""
        return tool in self.tools

    def logs(self, tool: str) -> Floats:
        """Logarithms of the knobs of a tool, as an array in the order of `COMPONENTS`."""
        return self._logs[tool if tool in self.tools else None]

    @functools.cached_property
    def _logs(self) -> dict[str | None, Floats]:
        every = [(None, self.knobs), *self.tools.items()]
        return {tool: np.log([knobs[name] for name in COMPONENTS]) for tool, knobs in every}

    def radius(self, tool: str, *, known: bool, job: TrainingJob | None = None, decided: bool = False) -> float:
        """Logarithm of the factor of the bound: of the tool, of tools unseen, or of no tool known; and of distance.

        A job of an architecture that was not seen, or larger or smaller than all runs, has a wider one; a tool that is
        not known a narrower one where its row is decided: nothing was assumed that matters.
        """
        stranger = min(self.generic, DECIDED) if decided else self.generic
        own = self.radii.get(tool, self.unseen if known else stranger)
        if job is None:
            return own
        if (kinds := self.kinds.get(tool)) and kind_of(job) not in kinds:
            own = max(own, self.unseen)  # the tool was seen, but not at this
        new = self.architecture if self.models and job.model.name not in self.models else 0.0
        within = self.extents.get(tool, self.extents.get("", ()))
        return math.hypot(own, new, self.beyond * _distance(extent_of(job), within))

    def few_radius(self, rows: int, *, known: bool) -> float:
        """Radius after some rows of a tool, from that of no row to that of `FEW`."""
        none, few = (self.unseen, self.few) if known else (self.generic, self.few_generic)
        return none + (few - none) * min(1.0, rows / FEW)

    def p_oom(self, peak_gib: float, room_gib: float, radius: float) -> float:
        """Probability that a peak is above the room, not below what the number of runs supports (3 / rows)."""
        at = _TAIL * math.log(max(room_gib, 1e-3) / peak_gib) / radius / math.sqrt(3.0)
        above = 0.5 - (at / (1 + at * at) + math.atan(at)) / math.pi
        return max(above, min(0.5, 3.0 / max(1, sum(self.rows.values()))))


def _distance(extent: tuple[float, ...], within: Extent) -> float:
    """Logarithm of the factor by which a job is outside of what was seen, in the direction in which it is farthest."""
    ends = zip(extent, within, strict=False)
    return max((max(0.0, low - at, at - high) for at, (low, high) in ends), default=0.0)


def peak_model_text(model: PeakModel) -> str:
    """Text of a model: stable, readable, no code.

    Examples
    --------
    >>> read_peak_model(peak_model_text(shipped_model())) == shipped_model()
    True
    """
    document: dict[str, Any] = {"format": FORMAT}
    for entry in fields(model):
        value = getattr(model, entry.name)
        # Components stand in the order in which they are counted, everything else in that of the names.
        by_name = isinstance(value, Mapping) and entry.name != "knobs"
        document[entry.name] = dict(sorted(value.items())) if by_name else value
    document = json.loads(json.dumps(document), parse_float=lambda digits: round(float(digits), 4))
    return json.dumps(document, indent=1) + "\n"


def read_peak_model(text: str, *, where: str = "peak model") -> PeakModel:
    """Read a model again.

    Raises
    ------
    TraceFormatError
        If it is no such text.
    """
    try:
        told: dict[str, Any] = json.loads(text)
        if told["format"] != FORMAT:
            raise KeyError(told["format"])
        told_numbers = ("unseen", "generic", "few", "few_generic", "architecture", "beyond")
        return PeakModel(
            provenance=str(told["provenance"]),
            knobs={name: float(told["knobs"][name]) for name in COMPONENTS},
            tools={tool: {name: float(knobs[name]) for name in COMPONENTS} for tool, knobs in told["tools"].items()},
            radii={tool: float(value) for tool, value in told["radii"].items()},
            rows={tool: int(count) for tool, count in told["rows"].items()},
            models=tuple(told.get("models", ())),
            extents={
                tool: tuple((float(low), float(high)) for low, high in extent)
                for tool, extent in told.get("extents", {}).items()
            },
            kinds={tool: tuple(kinds) for tool, kinds in told.get("kinds", {}).items()},
            accuracy={name: (float(value), int(rows)) for name, (value, rows) in told["accuracy"].items()},
            **{name: float(told[name]) for name in told_numbers},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        expected = f"JSON of format {FORMAT!r}, as --learn writes it"
        raise TraceFormatError(where, expected, repr(error), "Write it again with --learn.") from error


@functools.cache
def shipped_model() -> PeakModel:
    """The model that is shipped."""
    return read_peak_model((resources.files(__package__) / DEFAULT).read_text("utf-8"))


STUDENT = {2: 6.31, 3: 2.92, 4: 2.35, 5: 2.13, 6: 2.02, 7: 1.94, 8: 1.89}
"""One-sided 95 % points of Student's t by the number of values; of more they are nearly normal."""


def learned(model: PeakModel, runs: Runs) -> PeakModel:
    """The model with one's own runs: even one row of a tool moves its knobs and tightens its bound, not everybody's."""
    tools, radii, rows, extents = dict(model.tools), dict(model.radii), dict(model.rows), dict(model.extents)
    kinds = dict(model.kinds)
    for name in source_names(runs):
        own = runs.take(runs.of(name))
        known = tool_called(name) != ANY
        knobs = learn_tool(own, model.logs(name), known=known)
        residuals = np.log(own.measured / predicted_gib(own.parts, knobs))
        before = model.radii.get(name) or model.few_radius(len(own), known=known)
        tools[name], rows[name] = named_knobs(knobs), rows.get(name, 0) + len(own)
        radii[name] = round(own_radius(residuals, before), 4)
        extents[name] = _joined(learned_extent(own), extents.get(name, ()))
        kinds[name] = tuple(sorted({*kinds.get(name, ()), *own.kinds}))
    models = tuple(sorted({*model.models, *runs.models}))
    return replace(model, tools=tools, radii=radii, rows=rows, extents=extents, models=models, kinds=kinds)


def own_radius(residuals: Floats, few: float) -> float:
    """Radius after few rows: that of other tools after as few, and what one's own rows exceed, by their number.

    Not below what the noise of a measured peak gives a next value after a mean of so many, by Student's t.
    """
    count = len(residuals)
    spread = NORMAL * float(np.sqrt(np.mean(residuals**2))) if count else 0.0
    weight = count / (count + 20.0)
    floor = NOISE * STUDENT.get(count, 1.8) * math.sqrt(1 + 1 / max(count, 1))
    return max(floor, math.sqrt((1 - weight) * few**2 + weight * spread**2))


def learned_extent(runs: Runs) -> Extent:
    """Least and greatest logarithm of parameters, tokens and GPUs of some runs."""
    ends = zip(runs.extent.min(axis=0), runs.extent.max(axis=0), strict=True)
    return tuple((round(float(low), 3), round(float(high), 3)) for low, high in ends)


def _joined(one: Extent, other: Extent) -> Extent:
    if not other:
        return one
    return tuple((min(a[0], b[0]), max(a[1], b[1])) for a, b in zip(one, other, strict=True))


def named_knobs(logs: Floats) -> dict[str, float]:
    """Knobs by component, of their logarithms."""
    return {name: round(float(np.exp(value)), 4) for name, value in zip(COMPONENTS, logs, strict=True)}


HEADROOM = 0.05
"""What is added to a peak that is none but a peak; an upper bound has its headroom within."""
_SAME = 0.001
_FEW = 0.75
"""Share of different peaks among settings up to which they are steps and not needs."""
_MOST = 12
"""Different peaks that steps of any kind have at most: doublings of a GiB pass every board by then."""
_DOUBLING = 1.5


def with_kind(seen: pl.DataFrame) -> pl.DataFrame:
    """Say of each peak whether it is one, or an upper bound of a framework that takes memory in growing steps.

    Examples
    --------
    >>> seen = pl.DataFrame({"program": ["a", "a", "b", "b"], "peak_gib": [9.7, 9.7, 5.0, 5.6]})
    >>> with_kind(seen)["peak_is"].to_list()
    ['upper bound', 'upper bound', 'peak', 'peak']
    """
    steps = {}
    for (program,), rows in seen.group_by("program"):
        peaks = rows["peak_gib"].drop_nulls().sort().to_list()
        climbs = [high - low for low, high in itertools.pairwise(peaks) if high - low > _SAME * high]
        shared = len(climbs) + 1 <= min(_FEW * len(peaks), _MOST)
        grows = len(climbs) > 1 and all(b >= _DOUBLING * a for a, b in itertools.pairwise(climbs))
        steps[program] = shared or grows
    bounds = [name for name, grown in steps.items() if grown]
    known = pl.when(pl.col("program").is_in(bounds)).then(pl.lit("upper bound")).otherwise(pl.lit("peak"))
    return seen.with_columns(peak_is=known)


def fits(seen: pl.DataFrame, gpu_model: GpuModel | str) -> pl.DataFrame:
    """Whether each job fits each slice of a board: by its peak, overruled by a run on a smaller slice.

    Examples
    --------
    >>> seen = pl.DataFrame({"program": ["tf"] * 2, "job": ["64", "512"], "peak_gib": [5.5, 5.5],
    ...     "ran_profile": ["1g.5gb", None], "ran": [True, None]})
    >>> fits(seen, "A100-40GB").filter(pl.col("profile") == "1g.5gb").select("job", "fits", "because").rows()
    [('64', True, 'ran'), ('512', False, 'upper bound')]
    """
    lacking = [name for name in ("program", "job", "peak_gib") if name not in seen.columns]
    if lacking:
        raise SchemaError("measured peaks", "program, job, peak_gib", f"no {', '.join(lacking)}", "Add them.")
    known = as_board(gpu_model)
    plain = [one for one in known.profiles if one.memory_gib is not None and "+" not in one.name]
    sizes = {one.name: one.memory_gib for one in plain}
    profiles = pl.DataFrame({"profile": list(sizes), "memory_gib": list(sizes.values())})
    tried = seen if {"ran_profile", "ran"} <= set(seen.columns) else seen.with_columns(
        ran_profile=pl.lit(None, pl.String), ran=pl.lit(None, pl.Boolean)
    )  # fmt: skip
    names = {word: known.profile(word).name for word in tried["ran_profile"].drop_nulls().unique().to_list()}
    ran_sizes = {word: sizes[name] for word, name in names.items() if name in sizes}
    at = pl.col("ran_profile").replace_strict(ran_sizes, default=None, return_dtype=pl.Float64)
    rows = with_kind(tried).with_columns(ran_gib=at).join(profiles, how="cross")
    larger = pl.col("ran") & (pl.col("memory_gib") >= pl.col("ran_gib"))
    smaller = ~pl.col("ran") & (pl.col("memory_gib") <= pl.col("ran_gib"))
    return rows.with_columns(
        fits=pl.when(larger).then(True).when(smaller).then(False).otherwise(pl.col("peak_gib") <= pl.col("memory_gib")),
        because=pl.when(larger).then(pl.lit("ran")).when(smaller).then(pl.lit("did not run")).otherwise("peak_is"),
    ).select("program", "job", "peak_gib", "peak_is", "profile", "memory_gib", "fits", "because")  # fmt: skip


def smallest_that_fits(seen: pl.DataFrame, gpu_model: GpuModel | str) -> pl.DataFrame:
    """The smallest slice for each job with room to spare, and the next smaller one that a run would settle.

    A peak gets `HEADROOM`; an upper bound and a run need none. Where a peak is an upper bound, ``try_next`` names the
    largest slice below that only the bound speaks against: a run there overrules it.

    Examples
    --------
    >>> seen = pl.DataFrame({"program": ["tf"] * 2, "job": ["64", "512"], "peak_gib": [5.5, 5.5]})
    >>> smallest_that_fits(seen, "A100-40GB").select("profile", "try_next").rows()
    [('1g.10gb', '1g.5gb'), ('1g.10gb', '1g.5gb')]
    """
    slack = pl.when(pl.col("peak_is") == "peak").then(1 + HEADROOM).otherwise(1.0)
    need = with_kind(seen).with_columns(peak_gib=pl.col("peak_gib") * slack).drop("peak_is")
    table = fits(need, gpu_model).sort("memory_gib", "profile", maintain_order=True)
    good = table.filter("fits").group_by("program", "job", maintain_order=True).first()
    open_ones = table.filter(~pl.col("fits") & (pl.col("because") == "upper bound"))
    tries = open_ones.group_by("program", "job", maintain_order=True).agg(try_next=pl.col("profile").last())
    found = with_kind(seen)
    for more in (good.select("program", "job", "profile", "because"), tries):
        found = found.join(more, on=["program", "job"], how="left")
    because = pl.col("because").fill_null("larger than all slices")
    return found.with_columns(pl.col("profile").fill_null("gpu"), because)
