"""The quantiles that forecasts state."""

from __future__ import annotations

LEVELS = (0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95)
"""Quantiles of ``schemas.Forecast``."""
