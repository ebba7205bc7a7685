"""Speed models as JSON text, and the one that is shipped."""

from __future__ import annotations

import functools
import json
import math
from importlib import resources
from typing import Any

import polars as pl

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.sizing.speed.boundness import Fitted, Link
from gpuplanner.sizing.speed.law import SpeedLaw
from gpuplanner.sizing.speed.model import COVERAGES, SpeedModel, radius_name

FORMAT = "gpuplanner speed model 1"
"""What the text says that it is."""

DEFAULT = "default.json"
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
        From :func:`model_to_json`.
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
    gpuplanner.errors.TraceFormatError: speed model: expected format 'gpuplanner speed model 1'; got 'other'. ...
    """
    todo = "Write it again with model_to_json."
    try:
        document = json.loads(text)
    except ValueError as error:
        raise TraceFormatError(message(where, "JSON", str(error), todo)) from error
    found = document.get("format") if isinstance(document, dict) else type(document).__name__
    if found != FORMAT:
        raise TraceFormatError(message(where, f"format {FORMAT!r}", repr(found), todo))
    try:
        return _model(document)
    except (KeyError, TypeError, ValueError, pl.exceptions.PolarsError) as error:
        got = f"{type(error).__name__}: {error}"
        raise TraceFormatError(message(where, "all parts of a speed model", got, todo)) from error


@functools.cache
def default_model() -> SpeedModel:
    """The shipped model, fitted on all public measurements; it needs no data.

    Examples
    --------
    >>> default_model().slices
    (1, 2, 3, 4)
    """
    path = resources.files("gpuplanner.sizing.speed") / DEFAULT
    return model_from_json(path.read_text(encoding="utf-8"), where=f"gpuplanner/sizing/speed/{DEFAULT}")


def _model(document: dict[str, Any]) -> SpeedModel:
    law = SpeedLaw(
        fractions=tuple(map(float, document["law"]["fractions"])),
        limits=tuple(map(float, document["law"]["limits"])),
        sharpness=float(document["law"]["sharpness"]),
    )
    slices = tuple(map(int, document["slices"]))
    if not len(law.fractions) == len(law.limits) == len(slices) + 1 > 1:
        text = "law: one fraction and limit more than slices, for the whole GPU"
        raise ValueError(text)
    links = {str(name): Link(float(low), float(slope)) for name, (low, slope) in document["links"].items()}
    return SpeedModel(
        fitted=Fitted(law, links),
        radii=pl.DataFrame(document["radii"], schema=RADII, orient="row"),
        noise=tuple(math.inf if radius is None else float(radius) for radius in document["noise"]),
        slices=slices,
        measured=tuple(
            (str(board), int(compute), int(memory)) for board, compute, memory in document["measured"]
        ),
        widening=float(document["widening"]),
        provenance=dict(document["provenance"]),
    )
