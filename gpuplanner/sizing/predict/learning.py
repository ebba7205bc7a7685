"""A model of peaks with the user's own runs: knobs of a tool, the bound about them, and how large its runs are."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from gpuplanner.sizing.predict.calibrate import (
    NOISE,
    NORMAL,
    Floats,
    Runs,
    learn_tool,
    predicted_gib,
    source_names,
)
from gpuplanner.sizing.predict.model import Extent, PeakModel
from gpuplanner.sizing.predict.peak import COMPONENTS
from gpuplanner.sizing.predict.tools import ANY, tool_called

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
