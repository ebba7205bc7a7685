"""What was learned from measured peaks: knobs, the spread about them, and the text that keeps both."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import numpy as np

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.sizing.predict.calibrate import (
    FEW,
    NOISE,
    Floats,
    Runs,
    few_rows,
    fit_knobs,
    learn_tool,
    predicted_gib,
    quantile,
    source_names,
)
from gpuplanner.sizing.predict.peak import COMPONENTS

FORMAT = "gpuplanner peak model 1"
DEFAULT = "default.json"
"""The model that is shipped; ``python docs/make_memory.py --write`` makes it."""
LEVEL = 0.95
"""Share of runs that stay below a bound."""
_STUDENT = {2: 6.31, 3: 2.92, 4: 2.35, 5: 2.13, 6: 2.02, 7: 1.94, 8: 1.89}
"""One-sided 95 % points of Student's t by the number of sources; further ones are nearly normal."""
_SMALLEST = 0.03
_DRAWS = 20


@dataclass(frozen=True)
class PeakModel:
    """Knobs of everybody and of each tool, and how far measured peaks lie above what they predict.

    Parameters
    ----------
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
    accuracy : Mapping
        Family of jobs → mean accuracy and rows, each source left out in turn.
    """

    knobs: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(COMPONENTS, 1.0))
    tools: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    radii: Mapping[str, float] = field(default_factory=dict)
    unseen: float = 0.35
    generic: float = 0.8
    few: float = 0.15
    rows: Mapping[str, int] = field(default_factory=dict)
    accuracy: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    provenance: str = "no measurement"

    def seen(self, tool: str) -> bool:
        """Whether runs of the tool were learned from."""
        return tool in self.tools

    def logs(self, tool: str) -> Floats:
        """Logarithms of the knobs of a tool, as an array in the order of `COMPONENTS`."""
        knobs = self.tools.get(tool, self.knobs)
        return np.asarray(np.log([knobs[name] for name in COMPONENTS]), dtype=np.float64)

    def radius(self, tool: str, *, known: bool) -> float:
        """Logarithm of the factor of the bound: of the tool, of tools unseen, or of no tool known."""
        return self.radii.get(tool, self.unseen) if known else self.generic


def fit_model(runs: Runs, *, generic: Runs | None = None, provenance: str = "", seed: int = 0) -> PeakModel:
    """Fit everything on runs; ``sources`` of the runs are the names of their tools.

    Parameters
    ----------
    runs, generic : Runs
        Measured runs, and the same runs as they would be predicted if their tool were not known.
    provenance : str
        What they are.
    seed : int
        Of the draws of few rows.

    Examples
    --------
    >>> model = shipped_model()
    >>> sorted(model.tools)
    ['litgpt', 'megatron-deepspeed', 'qwen-finetune', 'torchtune']
    """
    everybody, names = fit_knobs(runs), source_names(runs)
    tools, radii, few = {}, {}, []
    for name in names:
        own = runs.take(runs.of(name))
        if len(own) >= FEW:
            tools[name] = _named(learn_tool(own, everybody))
            radii[name] = max(_SMALLEST, quantile(_crossed(own, everybody), LEVEL))
        if len(own) > 3 * FEW:
            others = runs.take(~runs.of(name))
            few.append(_few_radius(own, fit_knobs(others), seed))
    return PeakModel(
        _named(everybody), tools, radii, _unseen(runs),
        0.8 if generic is None else _above(generic, np.zeros(len(COMPONENTS))),
        max(few, default=0.15), {name: int(runs.of(name).sum()) for name in names}, {}, provenance,
    )  # fmt: skip


def learned(model: PeakModel, runs: Runs) -> PeakModel:
    """The model with one's own runs: `FEW` rows of a tool move its knobs, not everybody's."""
    tools, radii, rows = dict(model.tools), dict(model.radii), dict(model.rows)
    for name in source_names(runs):
        own = runs.take(runs.of(name))
        if len(own) < FEW:
            continue
        knobs = learn_tool(own, model.logs(name))
        residuals = np.log(own.measured / predicted_gib(own.parts, knobs))
        tools[name], rows[name] = _named(knobs), rows.get(name, 0) + len(own)
        radii[name] = round(own_radius(residuals, model.radii.get(name, model.few)), 4)
    return PeakModel(
        model.knobs,
        tools,
        radii,
        model.unseen,
        model.generic,
        model.few,
        rows,
        model.accuracy,
        model.provenance,
    )


def own_radius(residuals: Floats, few: float) -> float:
    """Radius after few rows: that of other tools after as few, and what one's own rows exceed, by their number.

    Not below what the noise of a measured peak gives a next value after a mean of so many, by Student's t.
    """
    count = len(residuals)
    spread = 1.645 * float(np.sqrt(np.mean(residuals**2))) if count else 0.0
    weight = count / (count + 20.0)
    floor = NOISE * _STUDENT.get(count, 1.8) * math.sqrt(1 + 1 / max(count, 1))
    return max(floor, math.sqrt((1 - weight) * few**2 + weight * spread**2))


def _unseen(runs: Runs) -> float:
    """The spread between sources, each left out: mean and Student's point of what is above, as there are few."""
    names = source_names(runs)
    if len(names) < 2:
        return 0.5
    above = []
    for name in names:
        mine = runs.of(name)
        above.append(_above(runs.take(mine), fit_knobs(runs.take(~mine))))
    spread = float(np.std(above, ddof=1)) * math.sqrt(1 + 1 / len(above))
    return max(max(above), float(np.mean(above)) + _STUDENT.get(len(above), 1.86) * spread)


def _above(runs: Runs, knobs: Floats) -> float:
    """How far 95 % of measured peaks lie above prediction, where what was not said has its largest answer."""
    predicted = np.maximum(predicted_gib(runs.parts, knobs), runs.worst)
    return max(_SMALLEST, quantile(np.log(runs.measured / predicted), LEVEL))


def _crossed(runs: Runs, centre: Floats, folds: int = 5) -> Floats:
    """Residuals of each row under knobs learned from the other folds of its tool; equal runs stay in one fold."""
    residuals = np.empty(len(runs))
    order = np.unique(np.round(runs.parts, 6), axis=0, return_inverse=True)[1].reshape(-1) % folds
    for fold in range(folds):
        out = order == fold
        if out.any():
            knobs = learn_tool(runs.take(~out), centre)
            part = runs.take(out)
            predicted = np.maximum(predicted_gib(part.parts, knobs), part.worst)
            residuals[out] = np.log(part.measured / predicted)
    return residuals


def _few_radius(runs: Runs, centre: Floats, seed: int) -> float:
    rest = few_rows(runs, centre, draws=_DRAWS, seed=seed)
    above = [np.log(r.measured / np.maximum(predicted_gib(r.parts, knobs), r.worst)) for knobs, r, _ in rest]
    return max(_SMALLEST, quantile(np.concatenate(above), LEVEL))


def _named(logs: Floats) -> dict[str, float]:
    return {name: round(float(np.exp(value)), 4) for name, value in zip(COMPONENTS, logs, strict=True)}


def peak_model_text(model: PeakModel) -> str:
    """Text of a model: stable, readable, no code.

    Examples
    --------
    >>> read_peak_model(peak_model_text(shipped_model())) == shipped_model()
    True
    """
    document = {
        "format": FORMAT,
        "provenance": model.provenance,
        "knobs": dict(model.knobs),
        "tools": {name: dict(knobs) for name, knobs in sorted(model.tools.items())},
        "radii": {name: round(value, 4) for name, value in sorted(model.radii.items())},
        "unseen": round(model.unseen, 4),
        "generic": round(model.generic, 4),
        "few": round(model.few, 4),
        "rows": dict(sorted(model.rows.items())),
        "accuracy": {name: [round(value[0], 4), value[1]] for name, value in sorted(model.accuracy.items())},
    }
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
        return PeakModel(
            {name: float(told["knobs"][name]) for name in COMPONENTS},
            {
                tool: {name: float(knobs[name]) for name in COMPONENTS}
                for tool, knobs in told["tools"].items()
            },
            {tool: float(value) for tool, value in told["radii"].items()},
            float(told["unseen"]),
            float(told["generic"]),
            float(told["few"]),
            {tool: int(count) for tool, count in told["rows"].items()},
            {name: (float(value), int(rows)) for name, (value, rows) in told["accuracy"].items()},
            str(told["provenance"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = message(
            where, f"JSON that says {FORMAT!r}, as --learn writes it", repr(error), "Learn it again."
        )
        raise TraceFormatError(what) from error


@functools.cache
def shipped_model() -> PeakModel:
    """The model that is shipped."""
    return read_peak_model((resources.files(__package__) / DEFAULT).read_text("utf-8"))
