"""Knobs on components, fitted to measured peaks: a prior at 1, every source of equal weight, outliers held down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuplanner.sizing.predict.peak import COMPONENTS

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
        sources, models, kinds = (
            tuple(np.array(names, dtype=object)[chosen]) for names in (self.sources, self.models, self.kinds)
        )
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
