"""gpuplanner.inbox.core.dataset: REJECTS."""

from __future__ import annotations

import polars as pl

REJECTS = pl.Schema({"file": pl.String(), "row": pl.Int64(), "reason": pl.String(), "raw": pl.String()})
"""Columns of the reject table: file name, 1-based line number, why, and the line as it stood."""
