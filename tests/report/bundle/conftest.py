"""Layout plans to export."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

START = datetime(2026, 11, 2, tzinfo=UTC)
Row = tuple[str, int, int, int, str, bool]


def _make_plan(rows: list[Row]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "node": [row[0] for row in rows],
            "gpu": [row[1] for row in rows],
            "slot_start": [START + timedelta(hours=row[2]) for row in rows],
            "slot_end": [START + timedelta(hours=row[3]) for row in rows],
            "layout": [row[4] for row in rows],
            "changed": [row[5] for row in rows],
        },
        schema_overrides={"gpu": pl.Int32, "node": pl.String, "layout": pl.String, "changed": pl.Boolean},
    )


@pytest.fixture(scope="session")
def make_plan() -> Callable[[list[Row]], pl.DataFrame]:
    """Make a plan from rows (node, gpu, first hour, last hour, layout, changed)."""
    return _make_plan


@pytest.fixture
def plan() -> pl.DataFrame:
    """Two nodes of two GPUs over a day; at eight o'clock one GPU of n2 is cut anew, and one is parked."""
    rows = _make_plan(
        [
            ("n1", 0, 0, 24, "gpu", False),
            ("n1", 1, 0, 24, "3g.40gb:1,2g.20gb:1,1g.10gb:2", True),
            ("n2", 0, 0, 8, "gpu", True),
            ("n2", 0, 8, 24, "1g.10gb:7", True),
            ("n2", 1, 0, 8, "gpu", True),
            ("n2", 1, 8, 24, "off", False),
        ]
    )
    return rows.with_columns(parked=pl.when(pl.col("layout") == "off").then(pl.lit("gpu")))
