"""Telemetry as read: samples in the common form, with everything needed to trust or doubt them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from gpuplanner.inbox.core.trace import SUMMARY

PROCESSES = pl.Schema(
    {
        "time": pl.Datetime("us", "UTC"),
        "node": pl.String(),
        "gpu": pl.Int32(),
        "pid": pl.Int64(),
        "kind": pl.String(),
        "command": pl.String(),
        "memory_gib": pl.Float64(),
    }
)
"""Columns of the process table: a process seen on a GPU; `kind` is C (compute), G (graphics) or both."""


@dataclass(frozen=True, eq=False)
class Telemetry:
    """Samples read from a source.

    Attributes
    ----------
    samples : polars.DataFrame
        Table ``schemas.Samples``, sorted by time and device.
    rejects : polars.DataFrame
        Rows that cannot be read or believed: ``file``, ``row``, ``reason``, ``raw``.
    quality : polars.DataFrame
        ``check``, ``severity``, ``rows``, ``effect``, ``example``; gravest first.
    coverage : polars.DataFrame
        How much of each node and UTC day was seen, see :func:`gpuplanner.inbox.telemetry.coverage.coverage`.
    provenance : mapping
        Where the rows came from and what was counted; ready for JSON.
    processes : polars.DataFrame, optional
        Processes on the GPUs, columns :data:`PROCESSES`, where the source lists them.
    told : polars.DataFrame, optional
        Where each sample was read first: ``file``, ``row``, ``raw``, in the order of the samples. Not kept in a
        folder.
    """

    samples: pl.DataFrame
    rejects: pl.DataFrame
    quality: pl.DataFrame
    coverage: pl.DataFrame
    provenance: Mapping[str, Any]
    processes: pl.DataFrame | None = None
    told: pl.DataFrame | None = None

    def summary(self) -> dict[str, Any]:
        """The seven facts to show first; here, GPU-hours are those observed, each GPU counted once."""
        return {key: self.provenance[key] for key in SUMMARY}

    def __repr__(self) -> str:
        facts = ", ".join(f"{key}={value!r}" for key, value in self.summary().items())
        return f"Telemetry({facts})"
