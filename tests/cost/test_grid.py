"""Carbon by hour: times with their offsets, and gaps that are named."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from gpuplanner.core.errors import ScenarioError
from gpuplanner.cost.energy_and_carbon import read_carbon_file

# Clocks in Berlin go forward on 29 March 2026: 01:00Z is 03:00+02:00.
HOURS = pl.Series([datetime(2026, 3, 29, tzinfo=UTC) + timedelta(hours=hour) for hour in range(3)])
HEAD = "time,location_g_per_kwh"
ROWS = ["2026-03-29T01:00:00+01:00,100", "2026-03-29T03:00:00+02:00,200", "2026-03-29T04:00:00+02:00,300"]


def test_hours_of_a_day_of_23_are_found_by_their_offsets(tmp_path: Path):
    (tmp_path / "grid.csv").write_text("\n".join([HEAD, *ROWS]) + "\n")
    found = read_carbon_file(tmp_path / "grid.csv", HOURS)
    assert found["location_g"].to_list() == [100, 200, 300]
    assert found["market_g"].null_count() == 3


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([HEAD, ROWS[0], ROWS[2]], "1 of them absent, the first 2026-03-29T01:00Z"),
        ([HEAD, *ROWS, ROWS[1]], "line 3"),
        ([HEAD, *ROWS[:2], "2026-03-29T04:00:00,300"], "line 4"),
        (["time,grams", *ROWS], "columns time, location_g_per_kwh"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, lines: list[str], told: str):
    (tmp_path / "grid.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(ScenarioError) as error:
        read_carbon_file(tmp_path / "grid.csv", HOURS)
    assert told in str(error.value)
