"""Text of a speed model, as it is shipped."""

from __future__ import annotations

import json
import math
from typing import Any

import polars as pl

from gpuplanner.sizing.mig_speed_model import INTERVAL_RADII_SCHEMA, SPEED_MODEL_FORMAT, SpeedModel

_DIGITS = 5


def model_to_json(model: SpeedModel) -> str:
    """Text of a model: stable, readable, no code.

    Examples
    --------
    >>> from gpuplanner.sizing.mig_speed_model import default_speed_model, speed_model_from_json
    >>> speed_model_from_json(model_to_json(default_speed_model())).fitted == default_speed_model().fitted
    True
    """
    law = model.fitted.law
    document = {
        "format": SPEED_MODEL_FORMAT,
        "provenance": dict(model.provenance),
        "law": {"fractions": law.fractions, "limits": law.limits, "sharpness": law.sharpness},
        "links": {name: [link.intercept, link.slope] for name, link in model.fitted.links.items()},
        "slices": model.slices,
        "measured": model.measured,
        "widening": model.widening,
        "noise": [_finite(radius) for radius in model.noise],
        "radii": [list(row) for row in _rounded(model.radii).iter_rows()],
    }
    return _by_line(document)


def _rounded(radii: pl.DataFrame) -> pl.DataFrame:
    return radii.select(INTERVAL_RADII_SCHEMA.keys()).with_columns(pl.selectors.float().round(_DIGITS))


def _finite(radius: float) -> float | None:
    """JSON has no infinity."""
    return round(radius, _DIGITS) if math.isfinite(radius) else None


def _by_line(document: dict[str, Any]) -> str:
    """JSON with one line for each row of a table, so that a change of the data can be read as a difference."""
    parts = []
    for name, value in document.items():
        rows = value if isinstance(value, list) and value and isinstance(value[0], list | dict) else None
        listed = ",\n  ".join(json.dumps(row) for row in rows) if rows else ""
        parts.append(f'"{name}": [\n  {listed}\n]' if rows else f'"{name}": {json.dumps(value)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"
