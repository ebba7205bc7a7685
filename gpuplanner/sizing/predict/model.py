"""What was learned from measured peaks: knobs, how wide a bound is and why, and the text that keeps them."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import resources
from typing import Any

import numpy as np

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.sizing.predict.calibrate import DECIDED, FEW, Floats
from gpuplanner.sizing.predict.job import TrainingJob, extent_of, kind_of
from gpuplanner.sizing.predict.peak import COMPONENTS

FORMAT = "gpuplanner peak model 1"
DEFAULT = "default.json"
"""The model that is shipped; ``python docs/make_memory.py --write`` makes it."""
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

    def radius(
        self, tool: str, *, known: bool, job: TrainingJob | None = None, decided: bool = False
    ) -> float:
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
            tools={
                tool: {name: float(knobs[name]) for name in COMPONENTS}
                for tool, knobs in told["tools"].items()
            },
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
        what = message(
            where, f"JSON that says {FORMAT!r}, as --learn writes it", repr(error), "Learn it again."
        )
        raise TraceFormatError(what) from error


@functools.cache
def shipped_model() -> PeakModel:
    """The model that is shipped."""
    return read_peak_model((resources.files(__package__) / DEFAULT).read_text("utf-8"))
